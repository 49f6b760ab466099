"""The other side of the round trips of configuration files, run with the real Python package.

config_peer.py write FOLDER SEED COUNT   writes random configurations, and index.json with what each holds
config_peer.py fsdp1 FOLDER SEED COUNT   writes random configurations of FSDP1, and beside each, in .2.yaml, what to-fsdp2 makes of it
config_peer.py fsdp2 IN OUT ...          converts files with the real to-fsdp2
config_peer.py check FOLDER              loads every file that index.json names, and prints those that hold something else
"""

import json
import os
import random
import sys

import yaml
from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig, load_config_from_file

WORDS = ["yes", "no", "on", "Off", "true", "null", "~", "", " ", "1", "-1", "0x1f", "017", "0o17", "1_000", "1e8", "1.5e+3", ".5", ".inf",
         "-.INF", ".nan", "12:30", "1:2.5", "2026-01-02", "2026-1-2 3:04:05", "=", "<<", "- a", "-", "--", "---", "...", "? a", "?a",
         ": a", "a: b", "a:b", "a #b", "a#b", "#", "[a]", "{a: b}", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a`", "'", '"', "it's",
         "a\nb", "a\n", "\na", "a\n\n b", "a \nb", "\n", " a", "a ", "a  b", "tab\there", "\tx", "bell\a", "\x00", "\x1b[0m", "\x7f",
         "café", "\x85", "\xa0", "\u2028x", "\u2029", "\ufeff", "\ufffd", "日本語", "\U0001f600", "C:\\dir", "a,b", "0,1", "~/x", "$HOME", "word"]
KEYS = ["fsdp_version", "a", "key with spaces", "yes", "1", "x: y", "é", "k" * 122, "k" * 123, "k" * 200, "", "multi\nline", "'q'", "- d"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self):
        count = self.random.choice([1, 1, 1, 2, 3, 10, 40])
        separator = self.random.choice([" ", "", "  ", "\n", ", "])
        return separator.join(self.random.choice(WORDS) for _ in range(count))

    def number(self):
        choice = self.random.randrange(6)
        if choice < 3:
            return self.random.choice([0, 1, -1, 29500, 2**31, -(2**63), 2**63 - 1, 2**64 - 1])
        if choice == 3:
            return self.random.choice([0.0, -0.0, 1.0, 0.1, 1e16, 1e15, 1e-4, 1e-5, 1.5e300, 5e-324, 1e22, 123456789.125])
        return self.random.uniform(-1, 1) * 10.0 ** self.random.randrange(-20, 25)

    def scalar(self):
        return self.random.choice([self.text, self.text, self.number, lambda: self.random.random() < 0.5, lambda: None])()

    def value(self, depth):
        kind = self.random.random()
        if depth > 0 and kind < 0.2:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        if depth > 0 and kind < 0.4:
            return self.mapping(depth - 1)
        return self.scalar()

    def mapping(self, depth):
        return {self.random.choice(KEYS): self.value(depth) for _ in range(self.random.randrange(5))}

    def config(self):
        kind = self.random.choice(["local", "local", "local", "sagemaker"])
        common = {"mixed_precision": self.random.choice(["no", "fp16", "bf16", "fp8", None]), "use_cpu": self.random.random() < 0.5,
                  "debug": self.random.random() < 0.5}
        if kind == "sagemaker":
            return SageMakerConfig(compute_environment="AMAZON_SAGEMAKER", distributed_type="DATA_PARALLEL", ec2_instance_type=self.text(),
                                   iam_role_name=self.text(), additional_args=self.mapping(3), **common)
        return ClusterConfig(
            compute_environment="LOCAL_MACHINE", distributed_type=self.random.choice(["NO", "MULTI_GPU", "FSDP", "XLA"]),
            num_processes=self.random.choice([1, 8, -1]), main_process_ip=self.text(), gpu_ids=self.text(), tpu_name=self.text(),
            fsdp_config=self.mapping(3), deepspeed_config=self.mapping(2), fp8_config=self.mapping(1),
            commands=[self.text() for _ in range(self.random.randrange(4))], tpu_env=self.random.choice([None, [], [self.text()]]), **common)


def fields(config):
    return {key: getattr(value, "value", value) for key, value in vars(config).items()}


def write(folder, seed, count):
    index = {}
    maker = Maker(seed)
    for number in range(count):
        config = maker.config()
        for extension, save in (("yaml", config.to_yaml_file), ("json", config.to_json_file)):
            name = f"{number}.{extension}"
            save(os.path.join(folder, name))
            index[name] = fields(load_config_from_file(os.path.join(folder, name)))
    with open(os.path.join(folder, "index.json"), "w") as file:
        json.dump(index, file)


def fsdp2(before, after):
    from accelerate.commands.to_fsdp2 import to_fsdp2_command, to_fsdp2_command_parser

    to_fsdp2_command(to_fsdp2_command_parser().parse_args(["--config_file", before, "--output_file", after]))


def fsdp1(folder, seed, count):
    maker = Maker(seed)
    strategies = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "full_shard", 1]
    keys = ["auto_wrap_policy", "backward_prefetch", "forward_prefetch", "cpu_ram_efficient_loading", "offload_params", "state_dict_type",
            "sync_module_states", "transformer_layer_cls_to_wrap", "min_num_params", "use_orig_params", "activation_checkpointing", "mine"]
    for number in range(count):
        section = {"fsdp_" + key: maker.scalar() for key in maker.random.sample(keys, maker.random.randrange(len(keys)))}
        for key in ("fsdp_reshard_after_forward", "fsdp_sharding_strategy"):
            if maker.random.random() < 0.6:
                section[key] = maker.random.choice(strategies)
        if maker.random.random() < 0.5:
            section["fsdp_version"] = maker.random.choice([1, 1, 2, "2", 2.0])
        config = {"distributed_type": "FSDP", "num_processes": 2, "unknown": maker.value(2), "fsdp_config": section}
        before, after = os.path.join(folder, f"{number}.yaml"), os.path.join(folder, f"{number}.2.yaml")
        with open(before, "w") as file:
            yaml.safe_dump(config, file)
        fsdp2(before, after)


def check(folder):
    with open(os.path.join(folder, "index.json")) as file:
        index = json.load(file)
    for name, expected in index.items():
        try:
            found = fields(load_config_from_file(os.path.join(folder, name)))
        except Exception as error:  # whatever it is, the file was not loaded
            found = f"{type(error).__name__}: {error}"
        if found != expected:
            print(f"{name}: {found}\n    and not {expected}")


if __name__ == "__main__":
    {"write": lambda: write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), "fsdp1": lambda: fsdp1(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])),
     "fsdp2": lambda: [fsdp2(*pair) for pair in zip(sys.argv[2::2], sys.argv[3::2])], "check": lambda: check(sys.argv[2])}[sys.argv[1]]()
