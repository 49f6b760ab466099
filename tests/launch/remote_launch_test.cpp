#include "launch/remote_launch.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <accelerate/core/error.h>
#include "config/config_file.h"
#include "launch/command_plan.h"
#include "launch/worker_scripts.h"
#include "support/error_text.h"
#include "support/held_port.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using Words = std::vector<std::string>;
using Table = std::map<std::string, std::string>;

/// A host on which a launch is planned: its files, variables and programs.
struct Planner {
  Table files = {{"hosts", "worker-0 slots=2\nworker-1 slots=2\n"}};
  Table variables = {{"HOME", "/home/me"}};
  Words names = {"worker-1.example.org", "10.0.0.2"};
  bool has_pdsh = false;
  std::string program = "/opt/bin/accelerate";
  std::string folder = "/srv/it's here";

  MachineFacts machine() const {
    MachineFacts facts;
    facts.program = program;
    facts.current_folder = folder;
    facts.reserve_port = [](int) { return true; };
    facts.reserve_free_port = [] { return 41234; };
    facts.own_names = [this] { return names; };
    facts.read_file = [this](const std::string& path) -> std::optional<std::string> {
      return files.contains(path) ? std::optional(files.at(path)) : std::nullopt;
    };
    facts.has_program = [this](const std::string& name) { return name == "pdsh" && has_pdsh; };
    facts.variable_names = [this] {
      Words all;
      for (const auto& [name, value] : variables) all.push_back(name);
      return all;
    };
    return facts;
  }

  LaunchPlan plan(Words line, const std::string& config = {}) const {
    if (config.find("deepspeed_hostfile") == std::string::npos) line.insert(line.begin(), {"--deepspeed_hostfile", "hosts"});
    const Environment environment = [this](const std::string& name) -> std::optional<std::string> {
      return variables.contains(name) ? std::optional(variables.at(name)) : std::nullopt;
    };
    const Config file = config.empty() ? Config{} : parse_config(config, "config.yaml");
    return plan_command(parse_launch_arguments(line), config.empty() ? nullptr : &file.fields, environment, machine());
  }

  std::string refused(const Words& line, const std::string& config = {}) const {
    return message_of<Error>([&] { plan(line, config); });
  }
};

/// What the host gets as its command line.
std::string line_for(const LaunchPlan& plan, size_t host) { return plan.workers.at(host).argv.back(); }

TEST(RemoteLaunch, EveryHostGetsItsLauncherThroughSsh) {
  const LaunchPlan plan = Planner().plan({"--cpu", "--mixed_precision", "bf16", "--grace_period=2.5", "./train", "--lr", "1e-3"});
  ASSERT_EQ(plan.workers.size(), 2U);
  EXPECT_TRUE(plan.signals_to_stdin);
  EXPECT_EQ(plan.workers[1].name, "worker-1");
  EXPECT_EQ(plan.workers[1].argv.front(), "ssh");
  EXPECT_EQ(plan.workers[1].argv.end()[-2], "worker-1");
  EXPECT_EQ(line_for(plan, 1),
            "cd '/srv/it'\\''s here' && exec env ACCELERATE_LAUNCH_UNTIL_STDIN_CLOSES=1 /opt/bin/accelerate launch "
            "--cpu --mixed_precision=bf16 --grace_period=2.5 --num_machines 2 --machine_rank 1 --main_process_ip worker-0 "
            "--main_process_port 29500 --nproc_per_node 2 --deepspeed_multinode_launcher standard ./train --lr 1e-3");
  EXPECT_NE(line_for(plan, 0).find("--machine_rank 0 "), std::string::npos);
}

TEST(RemoteLaunch, PdshIsTheDefaultWhereItIsInstalledAsForDeepSpeed) {
  const Planner planner = {.has_pdsh = true};
  const LaunchPlan plan = planner.plan({"./train", "%n", "100%"});
  ASSERT_EQ(plan.workers.size(), 2U);
  EXPECT_FALSE(plan.signals_to_stdin);
  const Words argv = plan.workers[1].argv;
  EXPECT_EQ(Words(argv.begin(), argv.end() - 1), (Words{"pdsh", "-S", "-b", "-R", "ssh", "-t", "20", "-w", "worker-1"}));
  EXPECT_TRUE(argv.back().ends_with(" ./train %%n 100%%")) << argv.back();
  EXPECT_EQ(planner.plan({"--deepspeed_multinode_launcher", "ssh", "./train"}).workers[1].argv.front(), "ssh");
}

TEST(RemoteLaunch, SlotsAndFlagsSayHowManyProcessesEachHostRuns) {
  const Planner planner;
  const auto processes = [&](const Words& line, const std::string& config = {}) {
    const std::string text = line_for(planner.plan(line, config), 0);
    const size_t at = text.find("--nproc_per_node ") + 17;
    return text.substr(at, text.find(' ', at) - at);
  };
  EXPECT_EQ(processes({"./p"}), "2");
  EXPECT_EQ(processes({"--num_processes", "2", "./p"}), "1");
  EXPECT_EQ(processes({"--nproc_per_node", "1", "./p"}), "1");
  EXPECT_EQ(processes({"./p"}, "distributed_type: 'NO'\nnum_processes: 1\nnum_machines: 1\n"), "2") << "a file for one machine";
  const std::string several =
      "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\nnum_machines: 2\nmain_process_ip: w\n";
  EXPECT_EQ(processes({"./p"}, several), "1");
  EXPECT_EQ(processes({"--num_processes", "4", "./p"}, several), "2");
  expect_parts(planner.refused({"--num_processes", "3", "./p"}), {"--num_processes is 3", "2 hosts", "multiple of 2"});
  expect_parts(planner.refused({"--num_processes", "0", "./p"}), {"--num_processes is 0"});
  expect_parts(planner.refused({"--num_processes", "6", "./p"}), {"3 processes on each host", "2 slot(s) of host 'worker-0'"});
  expect_parts(planner.refused({"--nproc_per_node", "many", "./p"}), {"--nproc_per_node is 'many'"});
  expect_parts(planner.refused({"--num_machines", "3", "./p"}), {"--num_machines is 3", "2 host(s): worker-0, worker-1"});
  expect_parts(planner.refused({"--num_machines", "1:2", "./p"}), {"--num_machines is 1:2"});
}

TEST(RemoteLaunch, HostsWithDifferentNumbersOfSlotsRunDifferentNumbersOfProcesses) {
  const Planner planner = {.files = {{"hosts", "a slots=2\nb slots=3\n"}}};
  const LaunchPlan plan = planner.plan({"./p"});
  EXPECT_NE(line_for(plan, 0).find(" --nproc_per_node 2 --heterogeneous "), std::string::npos) << line_for(plan, 0);
  EXPECT_NE(line_for(plan, 1).find(" --nproc_per_node 3 --heterogeneous "), std::string::npos) << line_for(plan, 1);
  EXPECT_EQ(line_for(planner.plan({"--num_processes", "5", "./p"}), 1), line_for(plan, 1));
  EXPECT_EQ(line_for(planner.plan({"--nproc_per_node", "2", "./p"}), 1).find("--heterogeneous"), std::string::npos);
  EXPECT_EQ(line_for(planner.plan({"--deepspeed_exclusion_filter", "b:0", "./p"}), 1).find("--heterogeneous"), std::string::npos);
}

TEST(RemoteLaunch, FilteredSlotsAreTheGpusOfAHost) {
  const Planner planner;
  const LaunchPlan plan = planner.plan({"--deepspeed_inclusion_filter", "worker-0:1@worker-1:0", "./p"});
  EXPECT_NE(line_for(plan, 0).find(" --gpu_ids 1 "), std::string::npos) << line_for(plan, 0);
  EXPECT_NE(line_for(plan, 1).find(" --gpu_ids 0 "), std::string::npos) << line_for(plan, 1);
  const LaunchPlan on_cpu = planner.plan({"--cpu", "--deepspeed_inclusion_filter", "worker-0:1@worker-1:0", "./p"});
  EXPECT_EQ(line_for(on_cpu, 0).find("--gpu_ids"), std::string::npos);
  expect_parts(planner.refused({"--gpu_ids", "0", "--deepspeed_inclusion_filter", "worker-0:1", "./p"}), {"--gpu_ids"});
}

TEST(RemoteLaunch, ALaunchWithoutSshFindsItsRankByTheNameOfItsHost) {
  Planner planner;
  const auto rank = [&] {
    const LaunchPlan plan = planner.plan({"--cpu", "--deepspeed_multinode_launcher", "nossh", "./p"});
    EXPECT_EQ(plan.workers.size(), 2U);
    EXPECT_EQ(plan.workers.front().argv, Words{"./p"});
    EXPECT_EQ(plan.machines->address, planner.files.at("hosts").substr(0, planner.files.at("hosts").find(' ')));
    return plan.workers.front().variables.at("GROUP_RANK");
  };
  EXPECT_EQ(rank(), "1") << "without the domain";
  planner.files["hosts"] = "10.0.0.1 slots=2\n10.0.0.2 slots=2\n";
  EXPECT_EQ(rank(), "1") << "by an address";
  planner.names = {"elsewhere"};
  expect_parts(planner.refused({"--deepspeed_multinode_launcher", "nossh", "./p"}),
               {"This host is elsewhere", "10.0.0.1, 10.0.0.2"});
  EXPECT_EQ(planner.plan({"--cpu", "--machine_rank", "0", "--deepspeed_multinode_launcher", "nossh", "./p"})
                .workers.front()
                .variables.at("GROUP_RANK"),
            "0");
}

TEST(RemoteLaunch, WhatCannotBeMeantIsRefused) {
  const Planner planner;
  for (const char* launcher : {"openmpi", "mpich", "mvapich"}) {
    expect_parts(planner.refused({"--deepspeed_multinode_launcher", launcher, "./p"}), {launcher, "--mpirun_hostfile"});
  }
  expect_parts(planner.refused({"--deepspeed_multinode_launcher", "slurm", "./p"}), {"slurm", "srun"});
  expect_parts(planner.refused({"--cpu", "--mpirun_hostfile", "h", "./p"}), {"--mpirun_hostfile and --deepspeed_hostfile"});
  expect_parts(planner.refused({"--main_process_port", "0", "./p"}), {"--main_process_port is 0"});
  const Planner with_secret = {.variables = {{"ACCELERATE_RENDEZVOUS_SECRET", "hush"}}};
  expect_parts(with_secret.refused({"./p"}), {"ACCELERATE_RENDEZVOUS_SECRET_FILE"});
  const Planner with_bad_file = {.files = {{"hosts", "a slots=1\n"}, {"/home/me/.deepspeed_env", "A=1\nexport B=2\n"}}};
  expect_parts(with_bad_file.refused({"./p"}), {"/home/me/.deepspeed_env, line 2", "'export B=2'", "NAME=VALUE"});
  expect_parts(planner.refused({"--use_deepspeed", "--num_machines", "2", "--main_process_ip", "a", "--num_processes", "2",
                                "--deepspeed_multinode_launcher", "ssh", "p.py"}),
               {"ssh starts C++ programs only"});
}

// --- What a shell makes of the line ------------------------------------------------------------------------------------------

/// Runs the line of the first host as a shell there would, with a program that shows what reached it in place of the launcher.
std::string shown_by_shell(Planner planner, const Words& line) {
  const TemporaryFolder folder;
  const std::string program = folder / "accelerate";
  std::ofstream(program) << "#!/bin/sh\npwd\nenv | grep -a '^\\(ACCELERATE\\|NCCL\\|WITH\\|SECRET\\|RANK\\)' | sort\n"
                            "while [ \"$1\" != ./p ]; do shift; done\nprintf '<%s>' \"$@\"\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  planner.program = program;
  planner.folder = folder / "it's $HOME & more";
  std::filesystem::create_directory(planner.folder);
  const auto result = run_program({"env", "-i", "PATH=/usr/bin:/bin", "/bin/sh", "-c", line_for(planner.plan(line), 0)});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_TRUE(result.output.starts_with(planner.folder + "\n")) << result.output;
  return result.output.substr(planner.folder.size() + 1);
}

TEST(RemoteLaunch, WordsAndVariablesSurviveTheShellOfAHost) {
  const Planner planner = {.variables = {{"HOME", "/home/me"},
                                         {"NCCL_DEBUG", "it's; $(touch x) \"`id`\""},
                                         {"ACCELERATE_LAUNCH_ID", "of another launch"},
                                         {"RANK", "3"},
                                         {"SECRET_TOKEN", "hush"}}};
  Planner with_files = planner;
  with_files.files["/home/me/.deepspeed_env"] = "# for all hosts\n\nWITH_SPACE= a  b \nWITH_EQUALS=a=b\r\n";
  EXPECT_EQ(shown_by_shell(with_files, {"./p", "it's", "", "$HOME", "two  words", "a\nb", "\\n", "*", "%n", "-x", "ü\x01", "!1"}),
            "ACCELERATE_LAUNCH_UNTIL_STDIN_CLOSES=1\nNCCL_DEBUG=it's; $(touch x) \"`id`\"\nWITH_EQUALS=a=b\nWITH_SPACE= a  b \n"
            "<./p><it's><><$HOME><two  words><a\nb><\\n><*><%n><-x><ü\x01><!1>");
}

// --- Launches through an ssh that stays on this host --------------------------------------------------------------------------

/// Makes `ssh` run commands here: like sshd, in a session of their own that a signal to ssh does not reach, and without its
/// variables. The "hosts" are names for the loopback interface.
class LocalSsh {
 public:
  LocalSsh() {
    const std::string ssh = folder_ / "ssh";
    std::ofstream(ssh)
        << "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\n"
           "[ \"$1\" != refused.test ] || { echo 'Host key verification failed.' >&2; exit 255; }\n"
           "exec 3<&0\nenv --default-signal -u ACCELERATE_LAUNCH_ID setsid sh -c \"$2\" <&3 3<&- &\nexec 3<&-\nwait $!\n";
    std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
    write_hosts("one.test slots=1\ntwo.test slots=1\n");
  }

  void write_hosts(const std::string& text) const { std::ofstream(folder_ / "hosts") << text; }

  Words line(const std::string& script, const Words& flags = {}) const {
    Words words = {ACCELERATE_CLI,
                   "launch",
                   "--cpu",
                   "--num_cpu_threads_per_process",
                   "1",
                   "--deepspeed_hostfile",
                   folder_ / "hosts",
                   "--deepspeed_multinode_launcher",
                   "ssh",
                   "--main_process_ip",
                   "127.0.0.1",
                   "--main_process_port",
                   port_.text()};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"sh", "-c", script});
    return words;
  }

  RunOptions options() const { return {.environment = {{"PATH", folder_.name() + ":" + std::getenv("PATH")}}}; }

 private:
  TemporaryFolder folder_;
  HeldPort port_;
};

TEST(RemoteLaunches, RanksOfAllHostsAreOneJobWithAnEmptyStdin) {
  const LocalSsh ssh;
  const auto result = run_program(
      ssh.line("cat; echo rank $RANK of $WORLD_SIZE, $ACCELERATE_LAUNCH_UNTIL_STDIN_CLOSES.; echo bad >&2"), ssh.options());
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  for (const char* line : {"rank 0 of 2, .\n", "rank 1 of 2, .\n"})
    EXPECT_NE(result.output.find(line), std::string::npos) << result.output;
  EXPECT_EQ(result.errors, "bad\nbad\n");
}

TEST(RemoteLaunches, TheFirstFailureAnywhereEndsAllWithItsExitCode) {
  const LocalSsh ssh;
  const auto result = run_program(ssh.line("[ $RANK = 0 ] && sleep 600; exit 3"), ssh.options());
  EXPECT_EQ(result.exit_code, 3) << result.errors;
  EXPECT_LT(result.seconds, 20);
  expect_parts(result.errors, {"accelerate launch: rank 1 failed with exit code 3", "accelerate launch: rank 1 on machine 1",
                               ".test failed with exit code 3"});
}

TEST(RemoteLaunches, SignalsReachTheRanksOfEveryHostWhichEndInPeace) {
  const LocalSsh ssh;
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    RunningProgram launch(
        ssh.line("trap 'echo notified' USR1; trap 'sleep 0.2; echo ended; exit 0' TERM INT HUP; " + std::string(kWaitForever)),
        ssh.options());
    launch.wait_for_output("ready", 2);
    launch.signal(SIGUSR1);
    launch.wait_for_output("notified", 2);
    launch.signal(number);
    const auto result = launch.wait();
    EXPECT_EQ(result.exit_code, 128 + number) << result.errors;
    EXPECT_EQ(RunningProgram::occurrences(result.output, "ended"), 2) << result.output;
  }
}

TEST(RemoteLaunches, NothingStaysOnAHostWhenTheLauncherIsKilled) {
  const LocalSsh ssh;
  RunningProgram launch(ssh.line("echo rank $$; trap '' TERM; exec sleep 600", {"--grace_period", "0.2"}), ssh.options());
  launch.wait_for_output("rank", 2);
  launch.signal(SIGKILL);
  for (const pid_t rank : pids_after("rank", launch.output()))
    wait_until("the end of a rank", [rank] { return has_ended(rank); });
}

TEST(RemoteLaunches, AHostThatCannotBeReachedIsNamedWithWhatSshSays) {
  const LocalSsh ssh;
  ssh.write_hosts("one.test slots=1\nrefused.test slots=1\n");
  const auto result = run_program(ssh.line("echo never; sleep 600"), ssh.options());
  EXPECT_EQ(result.exit_code, 255);
  EXPECT_LT(result.seconds, 20);
  expect_parts(result.errors,
               {"refused.test failed with exit code 255", "; stopping the other host.", "Host key verification failed."});
  EXPECT_EQ(result.output, "");
}

TEST(RemoteLaunches, RestartsAreThoseOfTheHosts) {
  const LocalSsh ssh;
  const auto result = run_program(
      ssh.line("echo attempt $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]", {"--max_restarts", "1"}),
      ssh.options());
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.output, "attempt 1"), 2) << result.output << result.errors;
}

TEST(RemoteLaunches, ADryRunShowsTheCommandsAndStartsNone) {
  const LocalSsh ssh;
  const auto result = run_program(ssh.line("exit 1", {"--dry_run"}), ssh.options());
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  expect_parts(result.output, {"# one.test\n", "# two.test\n", "ssh -T -o BatchMode=yes"});
}

// --- The other side: a launcher that takes signals from its stdin
// ---------------------------------------------------------------

TEST(StdinSignals, TheEndOfStdinEndsALaunchAndOnlyWhereItIsAskedFor) {
  const Words line = launch(2, "echo up; sleep 600");
  const auto result = run_program(line, {.environment = {{"ACCELERATE_LAUNCH_UNTIL_STDIN_CLOSES", "1"}}});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.errors;
  EXPECT_EQ(run_program(launch(2, "exit 0"), {.environment = {{"ACCELERATE_LAUNCH_UNTIL_STDIN_CLOSES", "0"}}}).exit_code, 0);
}

TEST(StdinSignals, LinesThatAreNoSignalsAreIgnored) {
  const Words line = launch(1, "sleep 600");
  const auto result = run_program(line, {.environment = {{"ACCELERATE_LAUNCH_UNTIL_STDIN_CLOSES", "1"}},
                                         .input = "\nKILL\nSIGSTOP\n" + std::string(5000, 'x') + "SIGQUIT\nSIGINT\n"});
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.errors;
}

}  // namespace
}  // namespace accelerate::testing
