"""Writes tests/golden/deepspeed_config.json: what DeepSpeedPlugin makes of ACCELERATE_* variables and a DeepSpeed configuration (null:
it refuses them). "auto" is what Python fills in later, when a model is prepared.

    pip install torch==2.13.0 accelerate==1.15.0
    python3 tests/conformance/make_deepspeed_config.py tests/golden/deepspeed_config.json
"""

import json
import logging
import os
import random
import sys
import warnings

from accelerate.utils import DeepSpeedPlugin

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

VARIABLES = {
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": ["0", "1", "2", "3", "two"],
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ["1", "8", "auto"],
    "ACCELERATE_GRADIENT_CLIPPING": ["0", "0.5", "2", "auto", "none"],
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": ["none", "cpu"],
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": ["none"],
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": ["true", "false", "1", "perhaps"],
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": ["true", "false"],
    "ACCELERATE_MIXED_PRECISION": ["no", "fp16", "bf16"],
    "ACCELERATE_CONFIG_DS_FIELDS": ["deepspeed_config_file", "deepspeed_config_file,zero_stage", "deepspeed_config_file,mixed_precision"],
}
STAGES = [{"stage": 3}, {"stage": 2}, {"stage": "auto"}, {}, {"stage": 3, "offload_optimizer": {"device": "auto"}},
          {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "offload_param": {"device": "cpu"}},
          {"stage": "auto", "stage3_gather_16bit_weights_on_model_save": "auto"},
          {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}, None]
OTHERS = {"gradient_accumulation_steps": [1, 4, "auto"], "gradient_clipping": [0, 1.5, "auto"],
          "fp16": [{"enabled": True}, {"enabled": "auto"}, {"enabled": False}], "bf16": [{"enabled": True}, {"enabled": "auto"}]}


def outcome(variables):
    for key in list(os.environ):
        if key.startswith("ACCELERATE_"):
            del os.environ[key]
    os.environ.update(variables)
    try:
        plugin = DeepSpeedPlugin()
        plugin.set_mixed_precision(variables.get("ACCELERATE_MIXED_PRECISION", "no"))
    except Exception:
        return None
    config = plugin.deepspeed_config
    zero = config["zero_optimization"]
    enabled = [name for name in ("fp16", "bf16") if config[name]["enabled"]]
    return {"zero_stage": zero.get("stage", 0), "gradient_accumulation_steps": config["gradient_accumulation_steps"],
            "gradient_clipping": config.get("gradient_clipping"), "mixed_precision": (enabled or ["no"])[0], "both": len(enabled) == 2,
            "offload": [zero.get("offload_" + what, {}).get("device", "none") for what in ("optimizer", "param")],
            "zero3_init_flag": plugin.zero3_init_flag,
            "save_16bit_model": zero.get("stage3_gather_16bit_weights_on_model_save", False)}


def cases():
    yield {}
    for name, values in VARIABLES.items():
        for value in values:
            yield {name: value}
    chooser = random.Random(9)
    for _ in range(160):
        names = chooser.sample(sorted(VARIABLES), chooser.randrange(0, 5))
        variables = {name: chooser.choice(VARIABLES[name][:4]) for name in names}
        document = {key: chooser.choice(OTHERS[key]) for key in chooser.sample(sorted(OTHERS), chooser.randrange(0, 4))}
        stage = chooser.choice(STAGES)
        if stage is not None:
            document["zero_optimization"] = stage
        if chooser.random() < 0.75:
            variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = json.dumps(document)
        yield variables


lines = [json.dumps({"variables": case, "plugin": outcome(case)}) for case in cases()]
with open(sys.argv[1], "w") as file:
    file.write('{"cases": [\n' + ",\n".join(lines) + "\n]}\n")
