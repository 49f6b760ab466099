#include "launch/command_plan.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <accelerate/core/error.h>
#include <fstream>

#include "config/config_file.h"
#include "launch/plan_text.h"
#include "support/error_text.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using Table = std::map<std::string, std::string>;

MachineFacts machine_with(int gpus) {
  MachineFacts facts;
  facts.gpus = gpus;
  facts.physical_cores = 16;
  facts.current_folder = "/here";
  facts.reserve_port = [](int) { return true; };
  facts.reserve_free_port = [] { return 41234; };
  return facts;
}

LaunchPlan planned(const std::vector<std::string>& line, const std::string& config = {},
                   const MachineFacts& facts = machine_with(0), const Table& variables = {}) {
  const Environment environment = [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const Config file = config.empty() ? Config{} : parse_config(config, "config.yaml");
  return plan_command(parse_launch_arguments(line), config.empty() ? nullptr : &file.fields, environment, facts);
}

std::string value_of(const LaunchPlan& plan, const std::string& name) {
  const auto found = plan.workers.front().variables.find(name);
  return found == plan.workers.front().variables.end() ? "(none)" : found->second;
}

using Words = std::vector<std::string>;

TEST(LaunchPrograms, PythonRunsScriptsAndModulesAndNothingElse) {
  EXPECT_EQ(planned({"train.py", "a"}).workers.front().argv, (Words{"python3", "train.py", "a"}));
  EXPECT_EQ(planned({"-m", "pkg.train", "a"}).workers.front().argv, (Words{"python3", "-m", "pkg.train", "a"}));
  EXPECT_EQ(planned({"--no_python", "train.py"}).workers.front().argv, (Words{"train.py"}));
  EXPECT_EQ(planned({"./train", "x.py"}).workers.front().argv, (Words{"./train", "x.py"}));
  EXPECT_EQ(planned({"--num_processes", "2", "train.py"}).workers.back().argv, (Words{"python3", "-u", "train.py"}));
  EXPECT_EQ(planned({"train.py"}, {}, machine_with(0), {{"PYTHON_EXEC", "/opt/py"}}).workers.front().argv,
            (Words{"/opt/py", "train.py"}));
}

std::string notes_of(const LaunchPlan& plan) {
  std::string text;
  for (const std::string& note : plan.notes) text += note + "\n";
  return text;
}

std::string refused(const Words& line, const std::string& config = {}, const MachineFacts& facts = machine_with(0)) {
  return message_of<Error>([&] { planned(line, config, facts); });
}

TEST(LaunchGpus, SeveralGpusOnAMachineWithoutAnyAreSaid) {
  const std::string file = "distributed_type: MULTI_GPU\nnum_processes: 2\n";
  const std::string of_flag = notes_of(planned({"--multi_gpu", "--num_processes", "2", "p"}));
  EXPECT_NE(of_flag.find("--multi_gpu is given, but no CUDA GPU was found in /proc/driver/nvidia or /dev: a program that finds "
                         "none either falls back to the CPU"),
            std::string::npos)
      << of_flag;
  EXPECT_NE(notes_of(planned({"p"}, file)).find("distributed_type in the config file is a multi-GPU type, but no CUDA GPU"),
            std::string::npos);
  EXPECT_EQ(notes_of(planned({"--multi_gpu", "--num_processes", "2", "p"}, {}, machine_with(2))), "");
  EXPECT_EQ(notes_of(planned({"p"}, "distributed_type: MULTI_XPU\nnum_processes: 2\n")), "") << "others are not looked for";
  EXPECT_NE(refused({"--multi_gpu", "p"}).find("no CUDA GPU was found on this machine: use --cpu"), std::string::npos);
}

TEST(LaunchProcesses, TorchrunCountsThoseOfEachMachine) {
  const std::string file = "distributed_type: MULTI_CPU\nnum_processes: 9\nnum_machines: 3\nmain_process_ip: a\nuse_cpu: true\n";
  const LaunchPlan from_file = planned({"--nproc_per_node", "2", "p"}, file);
  EXPECT_EQ(from_file.workers.size(), 2u);
  EXPECT_EQ(value_of(from_file, "WORLD_SIZE"), "6");
  EXPECT_EQ(value_of(planned({"--nproc_per_node", "gpu", "p"}, {}, machine_with(4)), "WORLD_SIZE"), "4");
  EXPECT_NE(refused({"--nproc_per_node", "gpu", "p"}).find("is gpu, but no CUDA GPU was found"), std::string::npos);
  const auto on_gpus = [](const Words& line, const std::string& in_file = {}) {
    return planned(line, in_file, machine_with(8)).workers.size();
  };
  EXPECT_EQ(on_gpus({"--nproc_per_node", "gpu", "--gpu_ids", "0,1", "p"}), 2U) << "those that the processes may use";
  EXPECT_EQ(on_gpus({"--nproc_per_node", "gpu", "p"}, "distributed_type: MULTI_GPU\nnum_processes: 8\ngpu_ids: 0,3,5\n"), 3U);
  EXPECT_EQ(on_gpus({"--nproc_per_node", "gpu", "--gpu_ids", "all", "p"}), 8U);
  EXPECT_EQ(planned({"--nproc_per_node", "1", "--multi_gpu", "--nnodes", "2", "--master_addr", "a", "p"}, {}, machine_with(1))
                .workers.size(),
            1u);
}

TEST(LaunchConfig, TheCommandLineComesBeforeTheFileAndTheFileBeforeDefaults) {
  const std::string file =
      "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: fp16\ngpu_ids: 0,1,2,3\nmain_process_port: 5000\ndebug: "
      "true\n";
  const LaunchPlan from_file = planned({"p"}, file, machine_with(8));
  EXPECT_EQ(from_file.workers.size(), 4u);
  EXPECT_EQ(value_of(from_file, "ACCELERATE_MIXED_PRECISION"), "fp16");
  EXPECT_EQ(value_of(from_file, "CUDA_VISIBLE_DEVICES"), "0,1,2,3");
  EXPECT_EQ(value_of(from_file, "MASTER_PORT"), "5000");
  EXPECT_EQ(value_of(from_file, "ACCELERATE_DEBUG_MODE"), "true");
  const LaunchPlan from_line =
      planned({"--num_processes", "2", "--mixed_precision", "no", "--gpu_ids", "all", "--main_process_port", "6000", "p"}, file,
              machine_with(8));
  EXPECT_EQ(from_line.workers.size(), 2u);
  EXPECT_EQ(value_of(from_line, "ACCELERATE_MIXED_PRECISION"), "no");
  EXPECT_EQ(value_of(from_line, "CUDA_VISIBLE_DEVICES"), "(none)");
  EXPECT_EQ(value_of(from_line, "MASTER_PORT"), "6000");
}

TEST(LaunchConfig, AParadigmOnTheCommandLinePutsThatOfTheFileAside) {
  const std::string file = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  offload_params: true\n";
  EXPECT_EQ(value_of(planned({"p.py"}, file), "FSDP_OFFLOAD_PARAMS"), "true");
  EXPECT_EQ(value_of(planned({"--fsdp_offload_params", "false", "p.py"}, file), "FSDP_OFFLOAD_PARAMS"), "false");
  EXPECT_EQ(value_of(planned({"--multi_gpu", "p.py"}, file), "ACCELERATE_USE_FSDP"), "(none)");
  EXPECT_EQ(value_of(planned({"--cpu", "p.py"}, file), "ACCELERATE_USE_FSDP"), "(none)");
}

TEST(LaunchSharding, CppProgramsHearOfFsdpOnTheCpuToo) {
  const LaunchPlan plan =
      planned({"--cpu", "--num_processes", "2", "--use_fsdp", "--fsdp_sharding_strategy", "SHARD_GRAD_OP", "./p"});
  EXPECT_EQ(plan.workers.size(), 2u);
  EXPECT_EQ(value_of(plan, "ACCELERATE_USE_FSDP"), "true");
  EXPECT_EQ(value_of(plan, "FSDP_SHARDING_STRATEGY"), "SHARD_GRAD_OP");
  EXPECT_EQ(value_of(plan, "ACCELERATE_USE_CPU"), "True");
  EXPECT_EQ(value_of(plan, "WORLD_SIZE"), "2");
  EXPECT_EQ(notes_of(plan).find("C++ programs"), std::string::npos) << notes_of(plan);
  EXPECT_NE(refused({"--cpu", "--use_fsdp", "p.py"}).find("--cpu and --use_fsdp"), std::string::npos)
      << "Python ignores it there";
  EXPECT_NE(refused({"--cpu", "--use_fsdp", "--use_deepspeed", "./p"}).find("--use_deepspeed and --use_fsdp"), std::string::npos);
}

TEST(LaunchSharding, ConfigFilesOfFsdpWorkForCppPrograms) {
  const std::string file =
      "distributed_type: FSDP\nnum_processes: 4\nuse_cpu: true\nfsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: true\n"
      "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 2\n";
  const LaunchPlan plan = planned({"./p"}, file);
  EXPECT_EQ(plan.workers.size(), 4u);
  EXPECT_EQ(value_of(plan, "ACCELERATE_USE_CPU"), "True");
  EXPECT_EQ(value_of(plan, "FSDP_VERSION"), "2");
  EXPECT_EQ(value_of(plan, "FSDP_OFFLOAD_PARAMS"), "true");
  EXPECT_EQ(value_of(plan, "PARALLELISM_CONFIG_DP_SHARD_SIZE"), "2");
  EXPECT_EQ(value_of(plan, "ACCELERATE_USE_PARALLELISM_CONFIG"), "true");
  EXPECT_EQ(value_of(planned({"--cpu", "./p"}, file), "ACCELERATE_USE_FSDP"), "true");
  EXPECT_EQ(value_of(planned({"./p"}, file, machine_with(4)), "ACCELERATE_USE_FSDP"), "true");
}

TEST(LaunchSharding, CppProgramsPrefetchUnlessSomebodySaysNo) {
  const Words line = {"--cpu", "--num_processes", "2", "--use_fsdp"};
  const auto with = [&](Words more, const std::string& file = {}) {
    more.insert(more.begin(), line.begin(), line.end());
    return value_of(planned(more, file), "FSDP_FORWARD_PREFETCH");
  };
  EXPECT_EQ(with({"./p"}), "(none)");
  EXPECT_EQ(with({"--fsdp_forward_prefetch", "false", "./p"}), "false");
  EXPECT_EQ(with({"./p"}, "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_forward_prefetch: false\n"), "false");
  EXPECT_EQ(value_of(planned({"--use_fsdp", "--num_processes", "2", "p.py"}), "FSDP_FORWARD_PREFETCH"), "false");
}

TEST(LaunchSharding, CppProgramsHearOfDeepSpeedAndNeedNoLauncherOfItsOwn) {
  const std::string file =
      "distributed_type: DEEPSPEED\nnum_processes: 4\nnum_machines: 2\nmain_process_ip: a\ndeepspeed_config:\n  zero_stage: 3\n  "
      "deepspeed_hostfile: hosts\n  deepspeed_multinode_launcher: standard\n";
  const LaunchPlan plan = planned({"./p"}, file);
  ASSERT_EQ(plan.workers.size(), 2u);
  EXPECT_EQ(plan.workers.front().argv, (Words{"./p"}));
  EXPECT_EQ(value_of(plan, "ACCELERATE_USE_DEEPSPEED"), "true");
  EXPECT_EQ(value_of(plan, "ACCELERATE_DEEPSPEED_ZERO_STAGE"), "3");
  EXPECT_EQ(value_of(plan, "ACCELERATE_CONFIG_DS_FIELDS"), "deepspeed_hostfile,deepspeed_multinode_launcher,zero_stage");
  EXPECT_EQ(value_of(plan, "WORLD_SIZE"), "4");
  EXPECT_EQ(value_of(plan, "PYTHONPATH"), "(none)");
  EXPECT_EQ(notes_of(plan), "") << "every machine runs its own command";
  EXPECT_EQ(planned({"p.py"}, file).workers.front().argv.front(), "python3");
  EXPECT_NE(
      notes_of(planned({"--deepspeed_inclusion_filter", "w1", "./p"})).find("chooses among the hosts of --deepspeed_hostfile"),
      std::string::npos);
  const LaunchPlan on_cpu = planned({"--cpu", "--num_processes", "2", "--use_deepspeed", "--zero_stage", "1", "./p"});
  EXPECT_EQ(value_of(on_cpu, "ACCELERATE_DEEPSPEED_ZERO_STAGE"), "1");
  EXPECT_EQ(value_of(on_cpu, "ACCELERATE_USE_CPU"), "True");
}

TEST(LaunchConfig, ALoneProcessUnderFsdpIsToldItsPlace) {
  EXPECT_EQ(value_of(planned({"--use_fsdp", "--num_processes", "1", "p.py"}), "WORLD_SIZE"), "1");
  EXPECT_EQ(value_of(planned({"--use_fsdp", "--num_processes", "1", "p.py"}), "ACCELERATE_USE_CPU"), "(none)");
  EXPECT_EQ(value_of(planned({"--num_processes", "1", "p.py"}), "WORLD_SIZE"), "(none)");
}

TEST(LaunchConfig, MegatronAndSequenceParallelSettingsBecomeVariables) {
  const LaunchPlan megatron = planned({"--use_megatron_lm", "--num_processes", "2", "--megatron_lm_no_load_optim", "true",
                                       "--megatron_lm_gradient_clipping", "0.5", "p.py"});
  EXPECT_EQ(value_of(megatron, "ACCELERATE_USE_MEGATRON_LM"), "true");
  EXPECT_EQ(value_of(megatron, "MEGATRON_LM_NO_LOAD_OPTIM"), "True");
  EXPECT_EQ(value_of(megatron, "MEGATRON_LM_NO_SAVE_OPTIM"), "False");
  EXPECT_EQ(value_of(megatron, "MEGATRON_LM_GRADIENT_CLIPPING"), "0.5");
  EXPECT_EQ(value_of(megatron, "MEGATRON_LM_NUM_MICRO_BATCHES"), "(none)");
  const LaunchPlan sequence = planned({"--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config",
                                       "--parallelism_config_sp_size", "2", "--num_processes", "2", "p.py"});
  EXPECT_EQ(value_of(sequence, "PARALLELISM_CONFIG_SP_SEQ_LENGTH"), "None");
  EXPECT_EQ(value_of(sequence, "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"), "True");
  EXPECT_EQ(value_of(sequence, "PARALLELISM_CONFIG_CP_COMM_STRATEGY"), "(none)");
}

TEST(LaunchConfig, DeepSpeedHearsOfNvmePathsCompilersAndTheWordAuto) {
  const std::string file =
      "distributed_type: DEEPSPEED\nnum_processes: 2\ndynamo_config:\n  backend: INDUCTOR\ndeepspeed_config:\n  "
      "gradient_clipping: auto\n"
      "  offload_param_nvme_path: /fast\n";
  const LaunchPlan plan = planned({"p.py"}, file, machine_with(0), {{"PYTHONPATH", "/lib"}});
  EXPECT_EQ(value_of(plan, "ACCELERATE_GRADIENT_CLIPPING"), "auto");
  EXPECT_EQ(value_of(plan, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"), "/fast");
  EXPECT_EQ(value_of(plan, "ACCELERATE_DYNAMO_BACKEND"), "INDUCTOR");
  EXPECT_EQ(value_of(plan, "PYTHONPATH"), "/lib:/here");
}

TEST(LaunchNotes, WhatACppProgramCannotHonourIsNamed) {
  const std::string file = "distributed_type: MEGATRON_LM\nnum_processes: 2\ndynamo_config:\n  backend: INDUCTOR\n";
  const LaunchPlan cpp = planned({"./program"}, file);
  ASSERT_EQ(cpp.notes.size(), 2u);
  EXPECT_EQ(cpp.notes[0], "dynamo_backend (LibTorch has no torch.compile) has no effect on C++ programs.");
  EXPECT_NE(cpp.notes[1].find("use_megatron_lm (Megatron-LM is a Python package)"), std::string::npos) << cpp.notes[1];
  EXPECT_NE(cpp.notes[1].find(" is not supported by C++ programs"), std::string::npos) << cpp.notes[1];
  EXPECT_TRUE(planned({"program.py"}, file).notes.empty());
  EXPECT_TRUE(planned({"python3", "program"}, file).notes.empty());
}

TEST(LaunchNotes, SeveralGpusThatNobodyAskedForAreTold) {
  EXPECT_EQ(planned({"p"}, {}, machine_with(4)).notes.size(), 1u);
  EXPECT_TRUE(planned({"--num_processes", "4", "p"}, {}, machine_with(4)).notes.empty());
  EXPECT_TRUE(planned({"p"}, {}, machine_with(1)).notes.empty());
}

TEST(LaunchNotes, AnEtcdServerThatNobodyAsksIsTold) {
  EXPECT_EQ(planned({"--rdzv_backend", "etcd", "p"}).notes.size(), 1u);
  EXPECT_TRUE(planned({"--rdzv_backend", "c10d", "p"}).notes.empty());
  EXPECT_TRUE(planned({"--rdzv_backend", "static", "--same_network", "--rdzv_conf", "timeout=30", "p"}).notes.empty());
}

TEST(LaunchMachines, ThatJoinWithoutARankHaveTheSameCommand) {
  const LaunchPlan plan = planned({"--rdzv_backend", "c10d", "--nnodes", "2:4", "--nproc_per_node", "2", "--rdzv_endpoint",
                                   "node-a:29400", "--rdzv_id", "job7", "--rdzv_conf", "timeout=60,last_call_timeout=5", "p"});
  ASSERT_TRUE(plan.machines);
  EXPECT_FALSE(plan.machines->rank);
  EXPECT_EQ(plan.machines->fewest(), 2);
  EXPECT_EQ(plan.machines->count, 4);
  EXPECT_EQ(plan.machines->address, "node-a");
  EXPECT_EQ(plan.machines->port, 29400);
  EXPECT_EQ(plan.machines->job, "job7");
  EXPECT_EQ(plan.machines->patience, std::chrono::seconds(60));
  EXPECT_EQ(plan.machines->last_call, std::chrono::seconds(5));
  EXPECT_FALSE(plan.machines->hosts);
  EXPECT_EQ(plan.workers.size(), 2u);
  EXPECT_EQ(plan.workers[0].variables.at("TORCHELASTIC_RUN_ID"), "job7");
  EXPECT_EQ(planned({"--rdzv_backend", "c10d", "--nnodes", "2", "--main_process_ip", "a", "--rdzv_conf", "is_host=true", "p"})
                .machines->hosts,
            true);
}

TEST(LaunchMachines, ThatHaveARankKeepItWhateverTheBackend) {
  const std::vector<std::string> line = {"--rdzv_backend", "c10d", "--num_machines", "2", "--main_process_ip", "a", "p"};
  auto ranked = line;
  ranked.insert(ranked.begin(), {"--machine_rank", "1"});
  EXPECT_EQ(planned(ranked).machines->rank, 1);
  // `accelerate config` writes a rank into every file, also where nobody chose one.
  EXPECT_FALSE(planned(line, "distributed_type: MULTI_CPU\nnum_processes: 2\nmachine_rank: 1\n").machines->rank);
}

TEST(LaunchMachines, AnEndpointIsAnAddressAndAPort) {
  const auto place = [](const std::vector<std::string>& flags) {
    std::vector<std::string> line = {"--nnodes", "2", "--node_rank", "1"};
    line.insert(line.end(), flags.begin(), flags.end());
    line.emplace_back("p");
    const auto machines = planned(line).machines;
    return machines->address + " " + std::to_string(machines->port);
  };
  EXPECT_EQ(place({"--rdzv_endpoint", "host"}), "host 29500");
  EXPECT_EQ(place({"--rdzv_endpoint", "[fe80::1]:7"}), "fe80::1 7");
  EXPECT_EQ(place({"--rdzv_endpoint", "fe80::1"}), "fe80::1 29500");
  EXPECT_EQ(place({"--rdzv_endpoint", "host:7", "--main_process_ip", "other", "--main_process_port", "8"}), "other 8");
}

TEST(LaunchMachines, ThatAreHeterogeneousStartWhatTheySay) {
  const LaunchPlan plan =
      planned({"--nnodes", "3", "--node_rank", "2", "--main_process_ip", "a", "--heterogeneous", "--nproc_per_node", "5", "p"});
  EXPECT_EQ(plan.workers.size(), 5u);
  EXPECT_EQ(plan.machines->processes, 5);
  EXPECT_TRUE(plan.machines->heterogeneous);
}

TEST(LaunchGpus, ThoseThatWereNamedAreCountedAndShown) {
  const LaunchPlan plan = planned({"--gpu_ids", "1, 3", "p"}, {}, machine_with(4));
  EXPECT_EQ(plan.workers.size(), 2u);
  EXPECT_EQ(value_of(plan, "CUDA_VISIBLE_DEVICES"), "1, 3");
}

TEST(LaunchGpus, ThoseThatCannotTalkToEachOtherAreToldNotTo) {
  MachineFacts facts = machine_with(2);
  facts.lacks_peer_access = true;
  EXPECT_EQ(value_of(planned({"p"}, {}, facts), "NCCL_P2P_DISABLE"), "1");
  EXPECT_EQ(value_of(planned({"p"}, {}, facts, {{"NCCL_P2P_DISABLE", "0"}}), "NCCL_P2P_DISABLE"), "(none)");
  EXPECT_EQ(value_of(planned({"--num_processes", "1", "p"}, {}, facts), "NCCL_P2P_DISABLE"), "(none)");
}

TEST(LaunchAffinity, EachProcessIsKeptNearTheGpuThatItUses) {
  MachineFacts facts = machine_with(4);
  facts.cpu_topology = [] { return CpuTopology{.nodes = {{0, {0, 1}}, {1, {2, 3}}}, .gpu_nodes = {0, 0, 1, 1}}; };
  EXPECT_TRUE(planned({"p"}, {}, facts).workers.front().cpus.empty());
  const LaunchPlan all = planned({"--enable_cpu_affinity", "p"}, {}, facts);
  EXPECT_EQ(value_of(all, "ACCELERATE_CPU_AFFINITY"), "1");
  EXPECT_EQ(all.workers[1].cpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(all.workers[2].cpus, (std::vector<int>{2, 3}));
  EXPECT_EQ(planned({"--enable_cpu_affinity", "--gpu_ids", "3,0", "p"}, {}, facts).workers[0].cpus, (std::vector<int>{2, 3}));
  EXPECT_EQ(planned({"--enable_cpu_affinity", "p"}, {}, facts, {{"CUDA_VISIBLE_DEVICES", "2,3,0,1"}}).workers[2].cpus,
            (std::vector<int>{0, 1}));
  const LaunchPlan cpu = planned({"--cpu", "--num_processes", "4", "--enable_cpu_affinity", "p"}, {}, facts);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(cpu.workers[static_cast<size_t>(rank)].cpus, (std::vector<int>{rank}));
}

TEST(LaunchAffinity, WorkersReallyRunWhereTheyAreKept) {
  const auto result = run_program({ACCELERATE_CLI, "launch", "--cpu", "--num_processes", "2", "--enable_cpu_affinity", "--quiet",
                                   "sh", "-c", "grep Cpus_allowed_list /proc/self/status | sed \"s/.*:/$RANK/\""});
  const std::set<int> allowed = allowed_cpus();
  const CpuTopology topology = read_cpu_topology("/", allowed);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string line = std::to_string(rank) + "\t" + cpu_list_text(cpus_for(topology, rank, 2, std::nullopt)) + "\n";
    EXPECT_NE(result.output.find(line), std::string::npos) << result.output << result.errors;
  }
}

// --- MPI ------------------------------------------------------------------------------------------------------------------

std::string fake_mpi(const TemporaryFolder& folder, const std::string& name, const std::string& version) {
  const std::string path = folder / name;
  std::ofstream(path) << "#!/bin/sh\nif [ \"$1\" = --version ]; then echo '" << version
                      << "'; else echo \"$OMP_NUM_THREADS $MASTER_ADDR $RANK\"; echo \"$@\"; fi\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return folder.name();
}

std::string launched_with_mpi(const std::string& path) {
  return run_program({ACCELERATE_CLI, "launch", "--cpu", "--num_processes", "4", "--mpirun_hostfile", "hosts",
                      "--num_cpu_threads_per_process", "3", "./program", "a b"},
                     {.environment = {{"PATH", path}, {"NCCL_DEBUG", "INFO"}, {"ACCELERATE_LAUNCH_ID", "other"}}})
      .output;
}

TEST(LaunchMpi, OpenMpiAndTheOthersAreTalkedToInTheirOwnWords) {
  const TemporaryFolder open;
  const std::string with_open_mpi = launched_with_mpi(fake_mpi(open, "mpirun", "mpirun (Open MPI) 4.1.4"));
  EXPECT_TRUE(with_open_mpi.starts_with("3 127.0.0.1 \n--hostfile hosts --npernode 4 -n 4 --bind-to socket -x "))
      << with_open_mpi;
  EXPECT_TRUE(with_open_mpi.ends_with(" ./program a b\n")) << with_open_mpi;
  for (const char* name : {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG",
                           "OMP_NUM_THREADS", "PATH"}) {
    EXPECT_NE(with_open_mpi.find(std::string(" -x ") + name + " "), std::string::npos) << name << " in " << with_open_mpi;
  }
  for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "HOME", "ACCELERATE_LAUNCH_ID"}) {
    EXPECT_EQ(with_open_mpi.find(std::string(" -x ") + name + " "), std::string::npos) << name << " in " << with_open_mpi;
  }
  const TemporaryFolder open_mpiexec;
  const std::string with_mpiexec = launched_with_mpi(fake_mpi(open_mpiexec, "mpiexec", "mpiexec (OpenRTE) 4.1.4"));
  EXPECT_NE(with_mpiexec.find("--hostfile hosts"), std::string::npos) << with_mpiexec;
  const TemporaryFolder intel;
  EXPECT_EQ(launched_with_mpi(fake_mpi(intel, "mpiexec", "Intel(R) MPI Library for Linux* OS, Version 2021.9")),
            "3 127.0.0.1 \n-f hosts -ppn 4 -n 4 ./program a b\n");
}

// --- What the launcher says -------------------------------------------------------------------------------------------------

TEST(LaunchDryRun, WhatItPrintsCanBeGivenToAShell) {
  const TemporaryFolder folder;
  const auto dry = run_program({ACCELERATE_CLI, "launch", "--cpu", "--num_processes", "2", "--dry_run", "--role", "it's $HOME",
                                "printf", "<%s>", "two words", "it's", "$HOME", ""});
  ASSERT_EQ(dry.exit_code, 0) << dry.errors;
  const auto shown = run_program({"/bin/sh", "-c", dry.output});
  EXPECT_EQ(shown.output, "<two words><it's><$HOME><><two words><it's><$HOME><>") << dry.output;
  const auto variables =
      run_program({ACCELERATE_CLI, "launch", "--cpu", "--num_processes", "2", "--dry_run", "--role", "it's $HOME", "env"});
  const auto pasted = run_program({"/bin/sh", "-c", variables.output});
  for (const char* line : {"ROLE_NAME=it's $HOME\n", "RANK=0\n", "RANK=1\n", "WORLD_SIZE=2\n"}) {
    EXPECT_NE(pasted.output.find(line), std::string::npos) << line;
  }
}

TEST(LaunchDryRun, StartsNothing) {
  const TemporaryFolder folder;
  const auto result = run_program({ACCELERATE_CLI, "launch", "--dry_run", "touch", folder / "started"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.name()));
}

TEST(LaunchDryRun, ShowsVariablesThatChangeAndThoseThatGo) {
  const LaunchPlan plan = planned({"p"}, {}, machine_with(0), {{"OMP_NUM_THREADS", "1"}, {"RANK", "3"}});
  const Environment environment = [](const std::string& name) -> std::optional<std::string> {
    return name == "OMP_NUM_THREADS" ? std::optional<std::string>("1") : std::nullopt;
  };
  const std::string text = plan_text(plan, environment);
  EXPECT_EQ(text.find("OMP_NUM_THREADS"), std::string::npos) << text;
  EXPECT_NE(text.find("-u RANK"), std::string::npos) << text;
}

TEST(LaunchQuiet, OnlyTheExitCodeTells) {
  const auto result =
      run_program({ACCELERATE_CLI, "launch", "--quiet", "--cpu", "--num_processes", "2", "--tee", "1", "sh", "-c", "exit 7"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.errors, "");
  const auto missing = run_program({ACCELERATE_CLI, "launch", "--quiet", "/no/such/program"});
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_EQ(missing.errors, "");
}

// --- The default config file ------------------------------------------------------------------------------------------------

TEST(LaunchConfig, TheDefaultFileCountsUnlessTheCpuIsAskedFor) {
  const TemporaryFolder home;
  std::filesystem::create_directory(home / "accelerate");
  std::ofstream(home / "accelerate/default_config.yaml") << "distributed_type: MULTI_GPU\nnum_processes: 3\n";
  const auto processes = [&home](std::vector<std::string> flags) {
    std::vector<std::string> command = {ACCELERATE_CLI, "launch", "--quiet"};
    command.insert(command.end(), flags.begin(), flags.end());
    for (const char* word : {"sh", "-c", "echo ${WORLD_SIZE:-1}"}) command.emplace_back(word);
    return run_program(command, {.environment = {{"HF_HOME", home.name()}}}).output;
  };
  EXPECT_EQ(processes({}), "3\n3\n3\n");
  EXPECT_EQ(processes({"--num_processes", "2"}), "2\n2\n");
  EXPECT_EQ(processes({"--cpu"}), "1\n");
}

TEST(LaunchTpu, SetsWhatPythonSets) {
  MachineFacts facts = machine_with(0);
  facts.tpu = true;
  const LaunchPlan plan =
      planned({"--tpu", "--num_processes", "8", "--mixed_precision", "bf16", "--downcast_bf16", "p.py"}, {}, facts);
  EXPECT_EQ(plan.workers.size(), 1u);
  EXPECT_EQ(plan.workers.front().variables, (Table{{"XLA_DOWNCAST_BF16", "1"}}));
  EXPECT_THROW(planned({"--tpu", "--no_python", "p.py"}, {}, facts), UsageError);
  EXPECT_THROW(planned({"--tpu", "--tpu_cluster", "p.py"}, {}, facts), UsageError);
}

}  // namespace
}  // namespace accelerate::testing
