#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/run_program.h"
#include "support/temporary_folder.h"

// Command lines, config files and environments that cannot be launched.
namespace accelerate::testing {
namespace {

struct BadLaunch {
  /// Words between `accelerate launch` and the program. CONFIG is the file below.
  std::vector<std::string> flags;
  /// What the message must name.
  std::string named;
  std::string config = {};
  std::map<std::string, std::optional<std::string>> environment = {};
};

const std::string kFine = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n";

std::vector<BadLaunch> bad_flags() {
  return {
      {{"--no_such_flag"}, "--no_such_flag"},
      {{"--num_proc", "2"}, "--num_processes"},
      {{"--num_processes2"}, "--num_processes"},
      {{"-x"}, "-x"},
      {{"-qx"}, "-qx"},
      {{"---cpu"}, "--cpu"},
      {{"--=3"}, "no flag --;"},
      {{"--cpu=1"}, "--cpu takes no value"},
      {{"--num_processes", "two"}, "--num_processes is 'two'"},
      {{"--num_processes", "2.5"}, "--num_processes is '2.5'"},
      {{"--num_processes", "99999999999"}, "--num_processes is '99999999999'"},
      {{"--num_processes", "2000000000"}, "--num_processes is 2000000000"},
      {{"--num_processes", " 2"}, "--num_processes is ' 2'"},
      {{"--num_processes", "0x2"}, "--num_processes is '0x2'"},
      {{"--num_processes="}, "--num_processes is ''"},
      {{"--num_processes", "0"}, "--num_processes is 0"},
      {{"--num_processes", "-3"}, "--num_processes is -3"},
      {{"--num_processes", "--cpu"}, "--num_processes needs a value"},
      {{"--num_machines", "0"}, "--num_machines is 0"},
      {{"--num_machines", "2000000000", "--main_process_ip", "a"}, "--num_machines is 2000000000"},
      {{"--num_machines", "2"}, "--main_process_ip is missing"},
      {{"--num_machines", "2", "--num_processes", "3", "--main_process_ip", "a"}, "--num_processes is 3"},
      {{"--num_machines", "2", "--num_processes", "2", "--main_process_ip", "a", "--main_process_port", "0"},
       "--main_process_port is 0"},
      {{"--machine_rank", "1"}, "--machine_rank is 1"},
      {{"--machine_rank", "-1"}, "--machine_rank is -1"},
      {{"--main_process_port", "65536"}, "--main_process_port is 65536"},
      {{"--main_process_port", "-1"}, "--main_process_port is -1"},
      {{"--main_process_port", "http"}, "--main_process_port is 'http'"},
      {{"--num_cpu_threads_per_process", "0"}, "--num_cpu_threads_per_process is 0"},
      {{"--mixed_precision", "fp4"}, "--mixed_precision is 'fp4'"},
      {{"--mixed_precision", "BF16"}, "--mixed_precision is 'BF16'"},
      {{"--mixed_precision="}, "--mixed_precision is ''"},
      {{"--dynamo_backend", "nope"}, "--dynamo_backend is 'nope'"},
      {{"--dynamo_mode", "fast"}, "--dynamo_mode is 'fast'"},
      {{"--multi_gpu", "--cpu"}, "--cpu and --multi_gpu"},
      {{"--use_fsdp", "--use_deepspeed"}, "--use_deepspeed and --use_fsdp"},
      {{"--tpu", "--multi_gpu"}, "--multi_gpu and --tpu"},
      {{"--multi_gpu", "--num_processes", "1"}, "--multi_gpu"},
      {{"--multi_gpu", "--nproc_per_node", "1"}, "--nproc_per_node starts 1 process with --multi_gpu"},
      {{"--nproc_per_node", "0"}, "--nproc_per_node is 0; at least 1"},
      {{"--nproc_per_node", "-1"}, "--nproc_per_node is -1; at least 1"},
      {{"-num_processes", "2"}, "written with two dashes: --num_processes"},
      {{"-nnodes", "2"}, "written with two dashes: --nnodes"},
      {{"-nproc_per_node=4"}, "written with two dashes: --nproc_per_node"},
      {{"--nnodes", "1:4", "--main_process_ip", "a"}, "use --rdzv_backend c10d"},
      {{"--nnodes", "4:2", "--main_process_ip", "a"}, "--num_machines is 4:2"},
      {{"--nnodes", "1:4", "--main_process_ip", "a", "--rdzv_backend", "c10d", "--num_processes", "8"}, "give --nproc_per_node"},
      {{"--nnodes", "1:4", "--main_process_ip", "a", "--rdzv_backend", "c10d", "--machine_rank", "1"}, "without --machine_rank"},
      {{"--nnodes", "0:4"}, "at least 1 machine"},
      {{"--nnodes", "2:x"}, "--nnodes is 'x'"},
      {{"--nnodes", ":"}, "--nnodes is ''"},
      {{"--nnodes", "2", "--main_process_ip", "a", "--heterogeneous"}, "without --nproc_per_node"},
      {{"--num_processes", "1:4"}, "--num_machines may be MIN:MAX"},
      {{"--rdzv_endpoint", ":29400"}, "--rdzv_endpoint is ':29400'"},
      {{"--rdzv_endpoint", "host:port"}, "--rdzv_endpoint is 'host:port'"},
      {{"--nnodes", "2", "--main_process_ip", "a", "--rdzv_conf", "last_call_timeout=soon"}, "last_call_timeout=soon"},
      {{"--nnodes", "2", "--main_process_ip", "a", "--rdzv_conf", "is_host=maybe"}, "is_host"},
      {{"--master_port", "10.0.0.1:29500"}, "--master_port is '10.0.0.1:29500'; give an integer."},
      {{"--multi_gpu", "--gpu_ids", "1", "--num_processes", "2"}, "--gpu_ids is '1'"},
      {{"--gpu_ids", "one"}, "--gpu_ids is 'one'"},
      {{"--gpu_ids", "0,,1"}, "--gpu_ids is '0,,1'"},
      {{"--gpu_ids", "-1"}, "--gpu_ids is '-1'"},
      {{"--gpu_ids="}, "--gpu_ids is ''"},
      {{"--module", "--no_python"}, "--no_python"},
      {{"--use_parallelism_config", "--num_processes", "2"}, "--use_parallelism_config"},
      {{"--use_fsdp", "--fsdp_version", "1", "--use_parallelism_config", "--num_processes", "2"}, "--fsdp_version 2"},
      {{"--use_fsdp", "--fsdp_version", "3"}, "--fsdp_version is '3'"},
      {{"--use_fsdp", "--fsdp_offload_params", "maybe"}, "--fsdp_offload_params is 'maybe'"},
      {{"--use_fsdp", "--fsdp_sync_module_states", "false", "--num_processes", "2"}, "--fsdp_sync_module_states"},
      {{"--use_fsdp", "--fsdp_min_num_params", "1e8"}, "--fsdp_min_num_params is '1e8'"},
      {{"--tpu", "--num_processes", "8"}, "no XLA device"},
      {{"--fp8_override_linear_precision", "true,false"}, "--fp8_override_linear_precision is 'true,false'"},
      {{"--fp8_override_linear_precision", "a,b,c"}, "--fp8_override_linear_precision is 'a,b,c'"},
      {{"--fp8_backend", "TE"}, "--fp8_backend is 'TE'"},
      {{"--fp8_pad_inner_dim", "2"}, "--fp8_pad_inner_dim is '2'"},
      {{"--gradient_clipping", "inf"}, "--gradient_clipping is 'inf'"},
      {{"--gradient_clipping", "1,5"}, "--gradient_clipping is '1,5'"},
      {{"--deepspeed_multinode_launcher", "rsh"}, "--deepspeed_multinode_launcher is 'rsh'"},
      {{"--deepspeed_hostfile", "/no/such/hosts"}, "'/no/such/hosts', which cannot be read"},
      {{"--deepspeed_hostfile", "/"}, "'/', which cannot be read"},
      {{"--megatron_lm_no_load_optim", "perhaps"}, "--megatron_lm_no_load_optim is 'perhaps'"},
      {{"--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config", "--parallelism_config_cp_size", "0", "--num_processes",
        "2"},
       "parallelism_config_cp_size is 0"},
      {{"--rdzv_backend", "smoke"}, "--rdzv_backend is 'smoke'"},
      {{"--rdzv_conf", "timeout"}, "--rdzv_conf is 'timeout'"},
      {{"--rdzv_conf", "=3"}, "--rdzv_conf is '=3'"},
      {{"--monitor_interval", "0"}, "--monitor_interval is 0"},
      {{"--monitor_interval", "often"}, "--monitor_interval is 'often'"},
      {{"--max_restarts", "-1"}, "--max_restarts is -1"},
      {{"--grace_period", "-1"}, "--grace_period is -1"},
      {{"--grace_period", "nan"}, "--grace_period is 'nan'"},
      {{"--tee", "7"}, "--tee"},
      {{"--tee", "0:9"}, "--tee"},
      {{"-t", "--cpu"}, "--tee needs a value"},
      {{"--config_file", "/no/such/file.yaml"}, "/no/such/file.yaml"},
      {{"--config_file", "/"}, "/"},
      {{"--cpu", "--mpirun_hostfile", "hosts", "--num_processes", "2"}, "mpirun", {}, {{"PATH", "/nonexistent"}}},
      {{"--mixed_precision", "fp8"}, "fp8", {}, {{"PYTHON_EXEC", "/bin/false"}}},
  };
}

std::vector<BadLaunch> bad_files_and_environments() {
  const std::vector<std::string> file = {"--config_file", "CONFIG"};
  return {
      {file, "config.yaml", ""},
      {{"--config_file", "CONFIG", "--num_processes", "-1"}, "--num_processes is -1", kFine},
      {{"--config_file", "CONFIG", "--nproc_per_node", "-1"}, "--nproc_per_node is -1", kFine},
      {file, "config.yaml", "- a\n- b\n"},
      {file, "config.yaml", "a: [1\n"},
      {file, "surprise", kFine + "surprise: 1\n"},
      {file, "num_processes", "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: two\n"},
      {file, "--num_processes", "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n"},
      {file, "num_processes", "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 0\n"},
      {file, "distributed_type", "compute_environment: LOCAL_MACHINE\ndistributed_type: MANY_GPU\nnum_processes: 2\n"},
      {file, "distributed_type", "num_processes: 2\n"},
      {file, "mixed_precision", kFine + "mixed_precision: fp4\n"},
      {file, "gpu_ids", kFine + "gpu_ids: '0'\n"},
      {file, "gpu_ids", kFine + "gpu_ids: one,two\n"},
      {file, "main_process_ip", kFine + "num_machines: 2\n"},
      {file, "main_process_port", kFine + "main_process_port: 70000\n"},
      {file, "machine_rank", kFine + "machine_rank: 5\n"},
      {file, "use_cpu", kFine + "use_cpu: perhaps\n"},
      {file, "dynamo_backend", kFine + "dynamo_config:\n  dynamo_backend: NOPE\n"},
      {file, "XLA", "compute_environment: LOCAL_MACHINE\ndistributed_type: XLA\nnum_processes: 8\n"},
      {file, "fsdp_sync_module_states",
       "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n  "
       "fsdp_sync_module_states: false\n"},
      {file, "parallelism_config_cp_size",
       "distributed_type: FSDP\nnum_processes: 2\nparallelism_config:\n  parallelism_config_cp_size: many\n"},
      {file, "SageMaker",
       "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\nec2_instance_type: ml.p3\niam_role_name: role\n"},
      {{}, "OMP_NUM_THREADS", {}, {{"OMP_NUM_THREADS", "many"}}},
      {{}, "OMP_NUM_THREADS", {}, {{"OMP_NUM_THREADS", ""}}},
      {{"--cpu", "--num_processes", "2"}, "OMPI_COMM_WORLD_LOCAL_SIZE", {}, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2.5"}}},
      {{"--cpu", "--num_processes", "2"}, "MPI_LOCALNRANKS", {}, {{"MPI_LOCALNRANKS", "x"}}},
  };
}

void expect_refusal(const BadLaunch& bad) {
  const TemporaryFolder folder;
  const TemporaryFolder config;
  const std::string file = config / "config.yaml";
  std::ofstream(file) << bad.config;
  std::vector<std::string> command = {"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", folder.name(), ACCELERATE_CLI, "launch"};
  for (const std::string& flag : bad.flags) command.push_back(flag == "CONFIG" ? file : flag);
  for (const char* word : {"/bin/sh", "-c", ": > started"}) command.emplace_back(word);
  const auto result = run_program(command, {.environment = bad.environment});
  EXPECT_TRUE(result.exit_code == 1 || result.exit_code == 2) << result.exit_code << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.errors, "\n"), 1) << result.errors;
  EXPECT_TRUE(result.errors.starts_with("accelerate launch: ")) << result.errors;
  EXPECT_TRUE(result.errors.find(bad.named) != std::string::npos) << result.errors << "does not name " << bad.named;
  EXPECT_EQ(result.output, "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.name()));
}

TEST(BadLaunch, ALineThatCannotBeMeantIsRefusedInOneLineAndNothingIsStarted) {
  for (const BadLaunch& bad : bad_flags()) {
    std::string line;
    for (const std::string& flag : bad.flags) line += " " + flag;
    SCOPED_TRACE(line);
    expect_refusal(bad);
  }
}

TEST(BadLaunch, AFileOrAnEnvironmentThatCannotBeMeantIsRefusedInOneLineAndNothingIsStarted) {
  for (const BadLaunch& bad : bad_files_and_environments()) {
    SCOPED_TRACE(bad.config + bad.named);
    expect_refusal(bad);
  }
}

}  // namespace
}  // namespace accelerate::testing
