"""Writes tests/golden/fsdp_environment.json: what FullyShardedDataParallelPlugin makes of FSDP_* variables (null: it refuses them).
None, false, 0 and empty lists are left out.

    pip install torch==2.13.0 accelerate==1.15.0
    python3 tests/conformance/make_fsdp_environment.py tests/golden/fsdp_environment.json
"""

import json
import logging
import os
import random
import sys
import warnings

import torch
from accelerate.utils import FullyShardedDataParallelPlugin, dataclasses

# The plugin asks for the current device where weights are broadcast: any number will do.
dataclasses.is_cuda_available = lambda: True
torch.cuda.current_device = lambda: 0
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

TRUTHS = ["true", "False", "1", "no", "ON", "f", "", "2", "maybe"]
VALUES = {
    "VERSION": ["1", "2", " 2 ", "two"],
    "SHARDING_STRATEGY": ["FULL_SHARD", "shard_grad_op", "No_Shard", "HYBRID_SHARD", "hybrid_shard_zero2", "_HYBRID_SHARD_ZERO2", "1", "2",
                          "3", "4", "5", "0", "6", "01", "ZERO3", ""],
    "RESHARD_AFTER_FORWARD": TRUTHS + ["FULL_SHARD"],
    "OFFLOAD_PARAMS": TRUTHS,
    "BACKWARD_PREFETCH": ["BACKWARD_PRE", "backward_post", "no_prefetch", "1", "2", "3", "", "before"],
    "STATE_DICT_TYPE": ["FULL_STATE_DICT", "sharded_state_dict", "LOCAL_STATE_DICT", "1", "2", "3", "4", "full", ""],
    "AUTO_WRAP_POLICY": ["TRANSFORMER_BASED_WRAP", "size_based_wrap", "NO_WRAP", "1", "", "lambda"],
    "TRANSFORMER_CLS_TO_WRAP": ["Block", "Block,Head"],
    "MIN_NUM_PARAMS": ["0", "1000", "100000000", "many", "1.5", ""],
    "USE_ORIG_PARAMS": TRUTHS,
    "SYNC_MODULE_STATES": TRUTHS,
    "FORWARD_PREFETCH": TRUTHS,
    "ACTIVATION_CHECKPOINTING": TRUTHS,
    "ACTIVATION_CHECKPOINTING_OFFLOAD": TRUTHS,
    "CPU_RAM_EFFICIENT_LOADING": TRUTHS,
    "IGNORED_MODULES": ["head", r".*\.norm\d+"],
}


def name_of(value):
    return None if value is None else getattr(value, "name", value).lstrip("_").lower()


def outcome(variables):
    for key in list(os.environ):
        if key.startswith("FSDP_"):
            del os.environ[key]
    os.environ.update(variables)
    try:
        plugin = FullyShardedDataParallelPlugin()
    except Exception:
        return None
    wraps = getattr(plugin.auto_wrap_policy, "__name__", "none")
    found = {
        "version": plugin.fsdp_version,
        "sharding_strategy": name_of(plugin.sharding_strategy),
        "reshard_after_forward": plugin.reshard_after_forward if plugin.fsdp_version == 2 else None,
        "cpu_offload": bool(getattr(plugin.cpu_offload, "offload_params", False)) if plugin.fsdp_version == 1
        else type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy",
        "backward_prefetch": name_of(plugin.backward_prefetch),
        "state_dict_type": name_of(plugin.state_dict_type),
        "transformer_layer_classes": (plugin.transformer_cls_names_to_wrap or []) if wraps.startswith("transformer") else [],
        "min_num_params": plugin.min_num_params if wraps.startswith("size") else 0,
        "sync_module_states": plugin.sync_module_states,
        "forward_prefetch": plugin.forward_prefetch,
        "activation_checkpointing": plugin.activation_checkpointing,
        "activation_checkpointing_offload": plugin.activation_checkpointing_offload,
        "ignored_modules": plugin.ignored_modules,
    }
    return {key: value for key, value in found.items() if value is not None and value is not False and value not in (0, [])}


def cases():
    """Each value of each variable in both versions, then random combinations."""
    yield {}
    yield {"FSDP_VERSION": "2"}
    for name, values in VALUES.items():
        for value in values:
            for version in ("1", "2") if name != "VERSION" else (value,):
                yield {"FSDP_VERSION": version, "FSDP_" + name: value}
    chooser = random.Random(22)
    for _ in range(150):
        names = chooser.sample(sorted(VALUES), chooser.randrange(2, 9))
        yield {"FSDP_" + name: chooser.choice(VALUES[name][:6]) for name in names}


lines = [json.dumps({"variables": case, "plugin": outcome(case)}) for case in cases()]
with open(sys.argv[1], "w") as file:
    file.write('{"cases": [\n' + ",\n".join(lines) + "\n]}\n")
