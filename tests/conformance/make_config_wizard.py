"""Writes tests/golden/config_wizard.json: the files that the wizard of Python Accelerate writes for given answers.

    build/venv/bin/python3 tests/conformance/make_config_wizard.py > tests/golden/config_wizard.json

The wizard itself runs; only what stands behind a keyboard is replaced: `input`, the menus, and the questions whether a package is
installed. Answers are named as ours names its questions; PROMPTS says which of Python's questions each name belongs to. A
question without an answer gets its default, and an answer that no question asked for is an error.
"""

import builtins
import json
import os
import sys
import tempfile
from importlib.metadata import version
from unittest import mock

os.environ["HOME"] = "/home/somebody"

from accelerate.commands.config import cluster, config, config_utils  # noqa: E402

PROMPTS = {
    "compute_environment": "In which compute environment",
    "distributed_type": ("Which type of machine", "What is the distributed mode"),
    "num_machines": ("How many different machines", "How many machines do you want"),
    "machine_rank": "What is the rank of this machine",
    "main_process_ip": "What is the IP address",
    "main_process_port": "What is the port",
    "same_network": "Are all the machines on the same local network",
    "rdzv_backend": "What rendezvous backend",
    "debug": "Should distributed operations be checked",
    "use_cpu": "on CPU only",
    "use_mpirun": "launch mpirun",
    "mpirun_config.mpirun_hostfile": "hostfile to use with mpirun",
    "use_dynamo": "optimize your script with torch dynamo",
    "dynamo_config.dynamo_backend": "Which dynamo backend",
    "dynamo_config.customize": "customize the defaults sent to torch.compile",
    "dynamo_config.dynamo_mode": "Which mode do you want",
    "dynamo_config.dynamo_use_fullgraph": "fullgraph mode",
    "dynamo_config.dynamo_use_dynamic": "dynamic shape tracing",
    "dynamo_config.dynamo_use_regional_compilation": "regional compilation",
    "use_deepspeed": "use DeepSpeed?",
    "deepspeed_config.use_config_file": "specify a json file to a DeepSpeed",
    "deepspeed_config.deepspeed_config_file": "path to the json DeepSpeed",
    "deepspeed_config.zero_stage": "ZeRO optimization stage",
    "deepspeed_config.offload_optimizer_device": "Where to offload optimizer states",
    "deepspeed_config.offload_param_device": "Where to offload parameters",
    "deepspeed_config.offload_param_nvme_path": "Nvme Path to offload parameters",
    "deepspeed_config.offload_optimizer_nvme_path": "Nvme Path to offload optimizer",
    "deepspeed_config.gradient_accumulation_steps": "How many gradient accumulation steps",
    "deepspeed_config.use_gradient_clipping": "use gradient clipping?",
    "deepspeed_config.gradient_clipping": "What is the gradient clipping value? ",
    "deepspeed_config.zero3_save_16bit_model": "save 16-bit model weights",
    "deepspeed_config.zero3_init_flag": "deepspeed.zero.Init",
    "deepspeed_config.use_moe": "enable Mixture-of-Experts",
    "deepspeed_config.deepspeed_moe_layer_cls_names": "transformers MoE layer class names",
    "deepspeed_config.deepspeed_multinode_launcher": "Which Type of launcher",
    "deepspeed_config.deepspeed_hostfile": "location of hostfile",
    "deepspeed_config.use_exclusion_filter": "specify exclusion filter",
    "deepspeed_config.deepspeed_exclusion_filter": "DeepSpeed exclusion filter",
    "deepspeed_config.use_inclusion_filter": "specify inclusion filter",
    "deepspeed_config.deepspeed_inclusion_filter": "DeepSpeed inclusion filter",
    "use_fsdp": "use FullyShardedDataParallel",
    "fsdp_config.fsdp_version": "your FSDP version",
    "fsdp_config.fsdp_reshard_after_forward": ("your sharding strategy", "resharding after forward"),
    "fsdp_config.fsdp_offload_params": "offload parameters and gradients to CPU",
    "fsdp_config.fsdp_auto_wrap_policy": "auto wrap policy?",
    "fsdp_config.use_no_split_modules": "_no_split_modules",
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "transformer layer class names",
    "fsdp_config.fsdp_min_num_params": "minimum number of parameters",
    "fsdp_config.fsdp_backward_prefetch": "backward prefetch policy",
    "fsdp_config.fsdp_state_dict_type": "state dict type",
    "fsdp_config.fsdp_forward_prefetch": "forward prefetch policy",
    "fsdp_config.fsdp_use_orig_params": "use_orig_params",
    "fsdp_config.fsdp_cpu_ram_efficient_loading": "RAM efficient",
    "fsdp_config.fsdp_sync_module_states": "broadcast module parameters",
    "fsdp_config.fsdp_activation_checkpointing": "activation checkpointing",
    "use_parallelism_config": "use the parallelism config",
    "parallelism_config.parallelism_config_dp_replicate_size": "data parallelism replicate size",
    "parallelism_config.parallelism_config_dp_shard_size": "FSDP shard size",
    "parallelism_config.parallelism_config_tp_size": "tensor parallelism size",
    "parallelism_config.parallelism_config_cp_size": "context parallelism size",
    "parallelism_config.parallelism_config_cp_comm_strategy": "parallelism communication strategy",
    "use_megatron_lm": "use Megatron-LM",
    "megatron_lm_config.megatron_lm_tp_degree": "Tensor Parallelism degree",
    "megatron_lm_config.megatron_lm_sequence_parallelism": "Sequence Parallelism",
    "megatron_lm_config.megatron_lm_pp_degree": "Pipeline Parallelism degree",
    "megatron_lm_config.megatron_lm_num_micro_batches": "number of micro-batches",
    "megatron_lm_config.megatron_lm_recompute_activations": "selective activation recomputation",
    "megatron_lm_config.megatron_lm_use_distributed_optimizer": "use distributed optimizer",
    "megatron_lm_config.megatron_lm_gradient_clipping": "based on global L2 Norm",
    "num_processes": "should be used for distributed training",
    "gpu_ids": "(by id) should be used",
    "enable_cpu_affinity": "numa efficiency",
    "main_training_function": "name of the function in your script",
    "tpu_use_cluster": "using a TPU cluster",
    "tpu_name": "name of your TPU cluster",
    "tpu_zone": "zone of your TPU cluster",
    "tpu_use_sudo": "should `sudo` be used",
    "use_commands": "run on startup in each pod?",
    "use_command_file": "located in a bash script",
    "command_file": "path to your bash script",
    "commands": "a single command to be ran",
    "another_command": "add another command",
    "tpu_vm": "names of the Compute VM instances",
    "tpu_env": "environment variables do you wish to set",
    "mixed_precision": ("use mixed precision?", "FP16 or BF16"),
    "fp8_config.backend": "Which FP8 backend",
    "fp8_config.use_autocast_during_eval": "autocast during eval",
    "fp8_config.margin": "What margin",
    "fp8_config.interval": "What interval",
    "fp8_config.fp8_format": "weight format",
    "fp8_config.amax_history_length": "length of history",
    "fp8_config.amax_compute_algorithm": "Which algorithm",
    "fp8_config.override_linear_precision": "GEMMS in higher precision",
    "fp8_config.fprop": "Should `fprop`",
    "fp8_config.dgrad": "Should `dgrad`",
    "fp8_config.wgrad": "Should `wgrad`",
    "fp8_config.optimization_level": "optimization level",
    "fp8_config.enable_fsdp_float8_all_gather": "float8 all gather",
    "fp8_config.pad_inner_dim": "pad the inner dimension",
    "credentials": "How do you want to authorize",
    "profile": "AWS Profile name",
    "access_key": "AWS Access Key ID",
    "secret_key": "AWS Secret Access Key",
    "region": "AWS Region",
    "role": "already have an IAM Role",
    "iam_role_name": "your IAM role name",
    "use_image_uri": "custom Docker image?",
    "image_uri": "Enter your Docker image",
    "use_sagemaker_inputs_file": "input channels",
    "sagemaker_inputs_file": "inputs TSV",
    "use_sagemaker_metrics_file": "enable SageMaker metrics",
    "sagemaker_metrics_file": "metrics TSV",
    "ec2_instance_type": "Which EC2 instance",
}

MULTI_CPU, MULTI_XPU, MULTI_HPU, MULTI_GPU, MULTI_NPU, NEURON, TPU = 1, 2, 3, 4, 5, 9, 10
TWO_MACHINES = {"num_machines": "2", "machine_rank": 1, "main_process_ip": "10.0.0.1", "main_process_port": "29501"}
GPUS = {"distributed_type": MULTI_GPU, "num_processes": "4"}


def named(section, **answers):
    return {f"{section}.{key}": value for key, value in answers.items()}


# A number answers a menu, a text answers a question, a list answers the same question several times.
CASES = {
    "defaults": {},
    "cpu": {"use_cpu": "yes"},
    "single_gpu": {"gpu_ids": "3", "enable_cpu_affinity": "yes", "mixed_precision": 2},
    "multi_cpu": {"distributed_type": MULTI_CPU, "num_processes": "4", "debug": "yes"},
    "multi_cpu_mpirun": {"distributed_type": MULTI_CPU, "num_processes": "8", **TWO_MACHINES, "use_mpirun": "yes",
                         "mpirun_config.mpirun_hostfile": "~/hosts"},
    "multi_cpu_mpirun_default": {"distributed_type": MULTI_CPU, "num_processes": "2", "use_mpirun": "yes"},
    "multi_gpu": {**GPUS, "gpu_ids": "0,1,2,3", "mixed_precision": 1},
    "multi_gpu_two_machines": {**GPUS, **TWO_MACHINES, "same_network": "no", "rdzv_backend": "c10d"},
    "multi_xpu": {"distributed_type": MULTI_XPU, "num_processes": "2"},
    "multi_npu": {"distributed_type": MULTI_NPU, "num_processes": "2", "mixed_precision": 2},
    "neuron": {"distributed_type": NEURON, "num_processes": "2"},
    "dynamo": {"use_dynamo": "yes"},
    "dynamo_customized": {"use_dynamo": "yes",
                          **named("dynamo_config", dynamo_backend=5, customize="yes", dynamo_mode=2, dynamo_use_fullgraph="yes",
                                  dynamo_use_dynamic="no", dynamo_use_regional_compilation="yes")},
    "deepspeed": {**GPUS, "use_deepspeed": "yes", "mixed_precision": 2},
    "deepspeed_stage_1": {**GPUS, "use_deepspeed": "yes", "deepspeed_config.zero_stage": 1},
    "deepspeed_stage_3": {**GPUS, "use_deepspeed": "yes",
                          **named("deepspeed_config", zero_stage=3, offload_optimizer_device=2, offload_param_device=2,
                                  offload_param_nvme_path="/fast", gradient_accumulation_steps="4", use_gradient_clipping="yes",
                                  gradient_clipping="0.5", zero3_save_16bit_model="yes", zero3_init_flag="yes", use_moe="yes",
                                  deepspeed_moe_layer_cls_names="JetMoEAttention,JetMoEBlock")},
    "deepspeed_file": {"num_processes": "1", "use_deepspeed": "yes",
                       **named("deepspeed_config", use_config_file="yes", deepspeed_config_file="/etc/ds.json")},
    "deepspeed_two_machines": {**GPUS, **TWO_MACHINES, "use_deepspeed": "yes",
                               **named("deepspeed_config", deepspeed_multinode_launcher=0, deepspeed_hostfile="/etc/hostfile",
                                       use_exclusion_filter="yes", deepspeed_exclusion_filter="worker-1:0",
                                       use_inclusion_filter="yes", deepspeed_inclusion_filter="worker-0@worker-1:0,2")},
    "deepspeed_standard_launcher": {**GPUS, **TWO_MACHINES, "use_deepspeed": "yes",
                                    "deepspeed_config.deepspeed_multinode_launcher": 1},
    "fsdp1": {**GPUS, "use_fsdp": "yes",
              **named("fsdp_config", fsdp_version=0, fsdp_reshard_after_forward=1, fsdp_auto_wrap_policy=1, fsdp_state_dict_type=2)},
    "fsdp1_changed": {**GPUS, "use_fsdp": "yes",
                      **named("fsdp_config", fsdp_version=0, fsdp_reshard_after_forward=4, fsdp_offload_params="yes",
                              fsdp_auto_wrap_policy=2, fsdp_backward_prefetch=1, fsdp_forward_prefetch="yes",
                              fsdp_use_orig_params="no", fsdp_cpu_ram_efficient_loading="no", fsdp_sync_module_states="no",
                              fsdp_activation_checkpointing="yes")},
    "fsdp2": {**GPUS, "use_fsdp": "yes", "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "BertLayer,BertEmbeddings",
              "mixed_precision": 2},
    "fsdp2_parallelism": {**GPUS, "use_fsdp": "yes", "use_parallelism_config": "yes", "fsdp_config.use_no_split_modules": "yes",
                          "fsdp_config.fsdp_reshard_after_forward": "no",
                          **named("parallelism_config", parallelism_config_dp_replicate_size="2", parallelism_config_tp_size="2",
                                  parallelism_config_cp_size="2", parallelism_config_cp_comm_strategy=1)},
    "megatron": {**GPUS, "use_megatron_lm": "yes"},
    "megatron_changed": {**GPUS, "use_megatron_lm": "yes",
                         **named("megatron_lm_config", megatron_lm_tp_degree="2", megatron_lm_sequence_parallelism="no",
                                 megatron_lm_pp_degree="2", megatron_lm_num_micro_batches="8",
                                 megatron_lm_recompute_activations="no", megatron_lm_use_distributed_optimizer="no",
                                 megatron_lm_gradient_clipping="0")},
    "fp8_ao": {"mixed_precision": 3},
    "fp8_te": {"mixed_precision": 3, "fp8_config.backend": 1},
    "fp8_te_changed": {"mixed_precision": 3,
                       **named("fp8_config", backend=1, use_autocast_during_eval="yes", margin="2", interval="3", fp8_format=1,
                               amax_history_length="16", amax_compute_algorithm=1, override_linear_precision="yes", fprop="no",
                               dgrad="yes", wgrad="yes")},
    "fp8_msamp": {"mixed_precision": 3, "fp8_config.backend": 2},
    "tpu": {"distributed_type": TPU, "num_processes": "8"},
    "tpu_cluster": {"distributed_type": TPU, "num_processes": "32", "main_training_function": "train", "tpu_use_cluster": "yes",
                    "tpu_name": "pod", "tpu_zone": "europe-west4-a", "use_commands": "yes",
                    "commands": ["pip install -r requirements.txt", "echo 'ready: yes'"], "another_command": ["yes", "no"],
                    "tpu_vm": "vm-0,vm-1", "tpu_env": "A=1,B=two words"},
    "tpu_cluster_script": {"distributed_type": TPU, "num_processes": "8", "tpu_use_cluster": "yes", "tpu_name": "pod",
                           "tpu_zone": "z", "use_commands": "yes", "use_command_file": "yes", "command_file": "/srv/start.sh"},
    "long_text": {"distributed_type": MULTI_GPU, "num_processes": "2", "use_fsdp": "yes",
                  "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Bert Layer " * 20 + "end: # yes"},
    "sagemaker": {"compute_environment": 1, "credentials": 0, "profile": "work", "iam_role_name": "trainer", "distributed_type": 1,
                  "num_machines": "2", "mixed_precision": 1},
    "sagemaker_single": {"compute_environment": 1, "credentials": 0, "region": "eu-west-1", "iam_role_name": "trainer",
                         "use_image_uri": "yes", "image_uri": "image:1", "use_sagemaker_inputs_file": "yes",
                         "sagemaker_inputs_file": "inputs.tsv", "use_sagemaker_metrics_file": "yes",
                         "sagemaker_metrics_file": "metrics.tsv"},
}


class Answers:
    def __init__(self, answers):
        self.left = {name: list(value) if isinstance(value, list) else [value] for name, value in answers.items()}

    def to(self, prompt):
        prompts = {p: name for name, given in PROMPTS.items() for p in ([given] if isinstance(given, str) else given)}
        fits = sorted({name for p, name in prompts.items() if p in prompt}, key=lambda name: -len(name))
        fits = [name for name in fits if name in self.left] or fits
        assert fits, f"nobody knows the question {prompt!r}"
        name = fits[0]
        return name, self.left[name].pop(0) if self.left.get(name) else None


def run(answers):
    given = Answers(answers)

    def answer_line(prompt=""):
        name, answer = given.to(prompt)
        assert answer is None or isinstance(answer, str), (name, answer)
        return "" if answer is None else answer

    def answer_menu(menu, default_choice=0):
        name, answer = given.to(menu.prompt)
        assert answer is None or (isinstance(answer, int) and answer < len(menu.choices)), (name, answer)
        return default_choice if answer is None else answer

    gates = [mock.patch.object(cluster, gate, lambda: True)
             for gate in dir(cluster) if gate in ("is_deepspeed_available", "is_transformers_available", "is_fp8_available",
                                                  "is_transformer_engine_available", "is_msamp_available", "is_torchao_available")]
    with mock.patch.object(builtins, "input", answer_line), mock.patch.object(config_utils.BulletMenu, "run", answer_menu), \
            mock.patch("sys.stdout", open(os.devnull, "w")):
        for gate in gates:
            gate.start()
        written = {}
        for extension in ("yaml", "json"):
            given.__init__(answers)
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, f"config.{extension}")
                arguments = mock.Mock(config_file=path)
                config.config_command(arguments)
                assert not any(given.left.values()), f"nobody asked for {given.left}"
                with open(path, encoding="utf-8") as file:
                    written[extension] = file.read()
        for gate in gates:
            gate.stop()
    return written


def main():
    cases = [{"name": name, "answers": answers, **run(answers)} for name, answers in CASES.items()]
    meta = {"topic": "config_wizard", "accelerate": version("accelerate"), "python": sys.version.split()[0]}
    json.dump({"meta": meta, "home": os.environ["HOME"], "cases": cases}, sys.__stdout__, indent=1)
    sys.__stdout__.write("\n")


if __name__ == "__main__":
    main()
