// The job files of `accelerate launch --submit`, through the command line.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/error_text.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

ProgramResult submitted(std::vector<std::string> words, RunOptions options = {}) {
  words.insert(words.begin(), {ACCELERATE_CLI, "launch", "--submit"});
  return run_program(words, options);
}

std::string job_file(std::vector<std::string> words, const RunOptions& options = {}) {
  words.insert(words.begin(), "--dry_run");
  const ProgramResult result = submitted(words, options);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  return result.output;
}

std::string submit_refusal(const std::vector<std::string>& words) {
  const ProgramResult result = submitted(words);
  EXPECT_EQ(result.exit_code, 2) << result.output;
  return result.errors;
}

TEST(JobFile, AsksForWhatTheLaunchNeedsOfEachNode) {
  const std::string file = job_file({"--sbatch", "--time=2:00:00 --partition=gpu", "--num_machines", "2", "--nproc_per_node", "8",
                                     "--max_restarts", "3", "./train", "--epochs", "3"});
  EXPECT_EQ(file,
            "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n"
            "#SBATCH --cpus-per-task=8\n#SBATCH --output=%x-%j.out\n#SBATCH --open-mode=append\n#SBATCH --signal=USR1@60\n"
            "#SBATCH --requeue\n#SBATCH --time=2:00:00 --partition=gpu\n\nsrun --kill-on-bad-exit=1 "
            "--cpus-per-task=\"$SLURM_CPUS_PER_TASK\" " ACCELERATE_CLI
            " launch --num_machines 2 --nproc_per_node 8 --max_restarts 3 ./train --epochs 3\n");
}

TEST(JobFile, CountsGpusAndCpus) {
  struct Case {
    std::vector<std::string> flags;
    std::string nodes, gpus, cpus;
  };
  const std::vector<Case> cases = {
      {{"--cpu"}, "1", "", "1"},
      {{"--cpu", "--num_processes", "4"}, "1", "", "4"},
      {{"--cpu", "--num_machines", "2", "--num_processes", "4", "--num_cpu_threads_per_process", "8"}, "2", "", "16"},
      {{"--num_machines", "4", "--num_processes", "16"}, "4", "4", "4"},
      {{"--gpu_ids", "0,3", "--num_processes", "2"}, "1", "2", "2"},
      {{"--nproc_per_node", "gpu", "--sbatch", "--gpus-per-node=8"}, "1", "", ""},
      {{"--np", "2"}, "1", "2", "2"},
  };
  const auto option = [](const std::string& file, const std::string& name) -> std::string {
    const size_t at = file.find("#SBATCH --" + name + "=");
    return at == file.npos ? "" : file.substr(at + name.size() + 11, file.find('\n', at) - at - name.size() - 11);
  };
  for (const Case& each : cases) {
    auto words = each.flags;
    words.emplace_back("p");
    const std::string file = job_file(words);
    EXPECT_EQ(option(file, "nodes"), each.nodes) << file;
    if (each.flags.back() != "--gpus-per-node=8") {
      EXPECT_EQ(option(file, "gpus-per-node"), each.gpus) << file;
    }
    EXPECT_EQ(option(file, "cpus-per-task"), each.cpus) << file;
    EXPECT_EQ(file.find("--requeue"), file.npos) << "nobody wants restarts: " << file;
  }
}

TEST(JobFile, ReadsTheConfigFileToo) {
  const TemporaryFolder folder;
  std::ofstream(folder / "c.yaml")
      << "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 3\nnum_processes: 6\n";
  const std::string file = job_file({"--config_file", folder / "c.yaml", "p"});
  expect_parts(file, {"#SBATCH --nodes=3\n", "#SBATCH --gpus-per-node=2\n", "launch --config_file"});
}

TEST(JobFile, QuotesTheCommandForAShell) {
  const TemporaryFolder folder;
  std::ofstream(folder / "srun") << "#!/bin/sh\nprintf '<%s>' \"$@\"\n";
  std::filesystem::permissions(folder / "srun", std::filesystem::perms::owner_all);
  const std::string file = job_file({"--cpu", "--sbatch", "--time=5 -p x", "--rdzv-conf=a=1", "--role", "a b", "-q", "--",
                                     "./my prog", "it's", "$HOME", "--submit", "--dry_run", "", "new\nline"});
  expect_parts(file, {"#SBATCH --job-name=my_prog\n", "#SBATCH --time=5 -p x\n"});
  std::ofstream(folder / "job") << file;
  const ProgramResult ran = run_program(
      {"bash", folder / "job"}, {.environment = {{"PATH", folder.name() + ":/usr/bin:/bin"}, {"SLURM_CPUS_PER_TASK", "1"}}});
  EXPECT_EQ(ran.output, "<--kill-on-bad-exit=1><--cpus-per-task=1><" ACCELERATE_CLI
                        "><launch><--cpu><--rdzv_conf><a=1><--role><a b><--quiet><./my prog><it's><$HOME><--submit><--dry_run><>"
                        "<new\nline>");
}

TEST(JobFile, IsWhatSbatchGets) {
  const TemporaryFolder folder;
  std::ofstream(folder / "sbatch") << "#!/bin/sh\necho \"$@\" >args; cat >job\necho a hint >&2\necho '12;cluster'\n";
  std::filesystem::permissions(folder / "sbatch", std::filesystem::perms::owner_all);
  const RunOptions options = {.environment = {{"PATH", folder.name() + ":/usr/bin:/bin"}, {"PWD", folder.name()}}};
  const ProgramResult result =
      run_program({"sh", "-c", "cd " + folder.name() + " && exec " ACCELERATE_CLI " launch --submit --cpu p"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output, "Submitted batch job 12\n");
  EXPECT_EQ(result.errors, "a hint\n");
  std::ifstream job(folder / "job");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(job), {}), job_file({"--cpu", "p"}));
}

TEST(JobFile, WhatSbatchSaysAgainstItIsShown) {
  const TemporaryFolder folder;
  std::ofstream(folder / "sbatch") << "#!/bin/sh\necho 'sbatch: error: no such partition' >&2; exit 1\n";
  std::filesystem::permissions(folder / "sbatch", std::filesystem::perms::owner_all);
  const ProgramResult result = submitted({"--cpu", "p"}, {.environment = {{"PATH", folder.name()}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.errors.find("accelerate launch: sbatch refused the job: sbatch: error: no such partition"), std::string::npos)
      << result.errors;
  const ProgramResult without = submitted({"--cpu", "p"}, {.environment = {{"PATH", "/nowhere"}}});
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_NE(without.errors.find("--submit needs sbatch, which is not on PATH"), std::string::npos) << without.errors;
}

TEST(JobFile, WhatCannotRunIsRefusedBeforeItIsSubmitted) {
  expect_parts(submit_refusal({"p"}), {"--submit must know how many GPUs each node is to have"});
  expect_parts(submit_refusal({"--cpu"}), {"No program was given"});
  expect_parts(submit_refusal({"--cpu", "--num_machines", "2", "--num_processes", "3", "p"}), {"give a multiple of 2"});
  expect_parts(submit_refusal({"--cpu", "--num_machines", "2", "--machine_rank", "1", "p"}),
               {"--machine_rank cannot be used with --submit: each launcher of the job learns it from Slurm"});
  expect_parts(submit_refusal({"--cpu", "--main_process_ip", "a", "p"}), {"--main_process_ip cannot be used with --submit"});
  expect_parts(submit_refusal({"--cpu", "--sbatch", "2:00:00", "p"}), {"--sbatch is '2:00:00'; give options of sbatch"});
  expect_parts(submit_refusal({"--cpu", "--sbatch", "--time=1\nrm", "p"}), {"on one line"});
  expect_parts(submit_refusal({"--cpu", "--multi_gpu", "p"}), {"--cpu and --multi_gpu cannot be used together"});
  const ProgramResult alone = run_program({ACCELERATE_CLI, "launch", "--cpu", "--sbatch", "--time=1", "true"});
  EXPECT_EQ(alone.exit_code, 2);
  expect_parts(alone.errors, {"--sbatch is given without --submit"});
}

}  // namespace
}  // namespace accelerate::testing
