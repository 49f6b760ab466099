"""Writes tests/golden/schedulers.json: what PyTorch's and transformers' schedulers did, step by step.

    pip install torch==2.13.0 transformers==5.17.0
    python3 tests/conformance/make_schedulers.py tests/golden/schedulers.json

Each case has the optimizer's rates (one for each group), a `scheduler` as a kind with options, the rates that someone else set
before a step (`set_lr`), the epochs given to `step` where they were, the rates after each step (the first are those after
construction), the momentum where it is cycled, and the state after some steps.
"""

import json
import random
import sys
import warnings

import torch
import transformers
from torch.optim import lr_scheduler as torch_schedulers
from transformers import optimization

warnings.filterwarnings("ignore")

FUNCTIONS = {
    "tenths": lambda step: 1 - step / 10,
    "decay": lambda step: 0.95**step,
    "wave": lambda step: 0.5 + (step % 3) / 4,
}

WARMUPS = {
    "ConstantSchedule": optimization.get_constant_schedule,
    "ConstantWithWarmup": optimization.get_constant_schedule_with_warmup,
    "LinearWithWarmup": optimization.get_linear_schedule_with_warmup,
    "CosineWithWarmup": optimization.get_cosine_schedule_with_warmup,
    "CosineWithHardRestartsWithWarmup": optimization.get_cosine_with_hard_restarts_schedule_with_warmup,
    "PolynomialWithWarmup": optimization.get_polynomial_decay_schedule_with_warmup,
}
PYTHON_NAMES = {"warmup_steps": "num_warmup_steps", "total_steps": "num_training_steps"}


def make_optimizer(recipe):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in recipe["lrs"]]
    return getattr(torch.optim, recipe["kind"])(groups, lr=recipe["default_lr"])


def make_scheduler(optimizer, recipe):
    kind, options = recipe["kind"], dict(recipe.get("options", {}))
    if kind in ("LambdaLR", "MultiplicativeLR"):
        functions = [FUNCTIONS[name] for name in recipe["functions"]]
        return getattr(torch_schedulers, kind)(optimizer, functions if len(functions) > 1 else functions[0])
    if kind in WARMUPS:
        return WARMUPS[kind](optimizer, **{PYTHON_NAMES.get(name, name): value for name, value in options.items()})
    if kind in ("SequentialLR", "ChainedScheduler"):
        made = {}
        for index in recipe["order"]:
            made[index] = make_scheduler(optimizer, recipe["schedulers"][index])
        schedulers = [made[index] for index in range(len(made))]
        if kind == "ChainedScheduler":
            return torch_schedulers.ChainedScheduler(schedulers)
        return torch_schedulers.SequentialLR(optimizer, schedulers, options["milestones"])
    return getattr(torch_schedulers, kind)(optimizer, **options)


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def momenta(optimizer):
    return [group["betas"][0] if "betas" in group else group["momentum"] for group in optimizer.param_groups]


def state_of(scheduler):
    """As JSON has it. A chain that is part of a sequence is given counters that it never uses: they are left out."""

    def cleaned(state):
        if "_schedulers" not in state:
            return state
        unused = ("_step_count", "_is_initial")
        state = {name: value for name, value in state.items() if name not in unused}
        return {**state, "_schedulers": [cleaned(each) for each in state["_schedulers"]]}

    return json.loads(json.dumps(cleaned(scheduler.state_dict())))


def run(case):
    optimizer = make_optimizer(case["optimizer"])
    scheduler = make_scheduler(optimizer, case["scheduler"])
    cycled = case["scheduler"]["kind"] == "OneCycleLR" and case["scheduler"]["options"].get("cycle_momentum", True)
    case["lrs"] = [rates(optimizer)]
    if cycled:
        case["momenta"] = [momenta(optimizer)]
    case["states"] = {"0": state_of(scheduler)}
    for step in range(1, case["steps"] + 1):
        optimizer.step()
        for group, lr in zip(optimizer.param_groups, case.get("set_lr", {}).get(str(step), [])):
            group["lr"] = lr
        if "epochs" in case:
            scheduler.step(case["epochs"][step - 1])
        else:
            scheduler.step()
        case["lrs"].append(rates(optimizer))
        assert scheduler.get_last_lr() == rates(optimizer)
        if cycled:
            case["momenta"].append(momenta(optimizer))
        if step in (case["steps"] // 3, case["steps"] - 2):
            case["states"][str(step)] = state_of(scheduler)
    return case


def one(kind, **options):
    return {"kind": kind, "options": options}


def composed(kind, schedulers, order=None, **options):
    order = order or list(range(len(schedulers)))
    return {"kind": kind, "options": options, "schedulers": schedulers, "order": order}


def random_number(draw, low, high):
    return round(draw.uniform(low, high), 4)


def random_simple(draw):
    number = lambda low, high: random_number(draw, low, high)
    steps = lambda low, high: draw.randint(low, high)
    return draw.choice(
        [
            lambda: one("StepLR", step_size=steps(1, 6), gamma=number(0.1, 0.9)),
            lambda: one("MultiStepLR", milestones=sorted(draw.choices(range(1, 20), k=3)), gamma=number(0.1, 0.9)),
            lambda: one("ConstantLR", factor=number(0.1, 1), total_iters=steps(1, 10)),
            lambda: one("LinearLR", start_factor=number(0.05, 1), end_factor=number(0, 1), total_iters=steps(1, 12)),
            lambda: one("ExponentialLR", gamma=number(0.8, 1)),
            lambda: one("PolynomialLR", total_iters=steps(1, 20), power=number(0.5, 3)),
            lambda: one("CosineAnnealingLR", T_max=steps(1, 15), eta_min=number(0, 0.01)),
            lambda: one("CosineAnnealingWarmRestarts", T_0=steps(1, 6), T_mult=steps(1, 3), eta_min=number(0, 0.01)),
            lambda: {"kind": "LambdaLR", "functions": [draw.choice(list(FUNCTIONS))]},
            lambda: {"kind": "MultiplicativeLR", "functions": [draw.choice(list(FUNCTIONS))]},
        ]
    )()


def random_warmup(draw):
    steps = {"warmup_steps": draw.randint(0, 8), "total_steps": draw.randint(9, 22)}
    return draw.choice(
        [
            lambda: one("ConstantWithWarmup", warmup_steps=steps["warmup_steps"]),
            lambda: one("LinearWithWarmup", **steps),
            lambda: one("CosineWithWarmup", **steps, num_cycles=random_number(draw, 0.25, 3)),
            lambda: one("CosineWithHardRestartsWithWarmup", **steps, num_cycles=draw.randint(1, 4)),
            lambda: one("PolynomialWithWarmup", **steps, lr_end=1e-5, power=random_number(draw, 0.5, 3)),
        ]
    )()


def random_composed(draw):
    count = draw.randint(2, 3)
    schedulers = [random_simple(draw) for _ in range(count)]
    order = draw.sample(range(count), count)
    if draw.random() < 0.4:
        return composed("ChainedScheduler", schedulers, order)
    return composed("SequentialLR", schedulers, order, milestones=sorted(draw.sample(range(1, 16), count - 1)))


def chosen():
    yield one("ConstantSchedule"), 3
    yield one("CosineWithWarmup", warmup_steps=8, total_steps=21), 30
    yield one("LinearWithWarmup", warmup_steps=0, total_steps=5), 8
    yield one("LinearWithWarmup", warmup_steps=5, total_steps=5), 8
    yield one("CosineWithHardRestartsWithWarmup", warmup_steps=2, total_steps=10), 13
    yield one("PolynomialWithWarmup", warmup_steps=3, total_steps=9), 12
    yield one("CosineAnnealingLR", T_max=5), 22
    yield one("LinearLR"), 8
    yield one("ConstantLR"), 8
    yield one("PolynomialLR"), 8
    yield one("CosineAnnealingWarmRestarts", T_0=3), 10
    yield {"kind": "LambdaLR", "functions": ["tenths", "wave"]}, 6
    yield {"kind": "MultiplicativeLR", "functions": ["decay", "wave"]}, 6
    yield one("MultiStepLR", milestones=[2, 2, 5, 40], gamma=0.5), 8
    warmup, cycle = one("LinearLR", start_factor=0.1, total_iters=4), one("OneCycleLR", max_lr=0.3, total_steps=9)
    yield composed("SequentialLR", [warmup, one("CosineAnnealingLR", T_max=10)], milestones=[4]), 16
    yield composed("SequentialLR", [one("ConstantLR", factor=0.5), cycle], milestones=[3]), 11
    yield composed("SequentialLR", [one("StepLR", step_size=2, gamma=0.5), one("ExponentialLR", gamma=0.9)], milestones=[0]), 5
    yield composed("SequentialLR", [one("LinearWithWarmup", warmup_steps=2, total_steps=9)], milestones=[]), 5
    nested = composed("SequentialLR", [one("LinearLR", total_iters=3), one("ExponentialLR", gamma=0.9)], milestones=[3])
    yield composed("ChainedScheduler", [nested, one("ConstantLR", factor=0.5, total_iters=5)]), 9
    chain = composed("ChainedScheduler", [one("ExponentialLR", gamma=0.9), one("StepLR", step_size=2, gamma=0.5)])
    yield composed("SequentialLR", [chain, one("ConstantLR", factor=0.5, total_iters=5)], milestones=[4]), 9
    yield one("OneCycleLR", max_lr=0.1, total_steps=12), 12
    yield one("OneCycleLR", max_lr=[0.1, 0.2], epochs=3, steps_per_epoch=5, anneal_strategy="linear"), 15
    yield one("OneCycleLR", max_lr=0.1, total_steps=20, three_phase=True, pct_start=0.25), 20
    yield one("OneCycleLR", max_lr=0.1, total_steps=20, three_phase=True, base_momentum=[0.8, 0.7], max_momentum=0.9), 20
    yield one("OneCycleLR", max_lr=0.1, total_steps=10, cycle_momentum=False, div_factor=10.0, final_div_factor=100.0), 10
    yield one("OneCycleLR", max_lr=0.1, total_steps=1), 1


def cases():
    draw = random.Random(5)
    optimizers = ["SGD", "AdamW", "Adam", "RMSprop"]
    for index, (scheduler, steps) in enumerate(chosen()):
        optimizer = {"kind": optimizers[index % 4], "lrs": [0.1, 0.025], "default_lr": 0.1}
        yield {"optimizer": optimizer, "scheduler": scheduler, "steps": steps}
    for index in range(60):
        scheduler = [random_simple, random_warmup, random_composed][index % 3](draw)
        lrs = [random_number(draw, 0.01, 1) for _ in range(draw.randint(1, 2))]
        case = {"optimizer": {"kind": "SGD", "lrs": lrs, "default_lr": lrs[0]}, "scheduler": scheduler, "steps": 25}
        if index % 2:
            case["set_lr"] = {str(draw.randint(1, 25)): [random_number(draw, 0.01, 1) for _ in lrs]}
        yield case
    for growth in (1, 2, 3):
        yield {
            "optimizer": {"kind": "SGD", "lrs": [0.1], "default_lr": 0.1},
            "scheduler": one("CosineAnnealingWarmRestarts", T_0=2, T_mult=growth, eta_min=0.001),
            "steps": 24,
            "epochs": [step / 4 for step in range(20)] + [14.0, 15.5, 1.25, 30.0],
        }


def main():
    with open(sys.argv[1], "w") as file:
        meta = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
        file.write('{"meta": %s, "cases": [\n' % json.dumps(meta))
        file.write(",\n".join(json.dumps(run(case)) for case in cases()))
        file.write("\n]}\n")


if __name__ == "__main__":
    main()
