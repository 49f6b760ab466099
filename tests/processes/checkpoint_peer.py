"""What checkpoint_peer.cpp does, in Python: trains small models for three steps, saves each, and trains on.

    checkpoint_peer.py save FOLDER   from the beginning, saving after three steps into FOLDER/<kind>
    checkpoint_peer.py load FOLDER   from what is in FOLDER/<kind>
    checkpoint_peer.py draw FOLDER   random numbers after loading FOLDER/seeded, then after set_seed(123)

Prints "<kind> <step> <rank> <loss>" for every step, then "<kind> meter <rank> <sum of losses> <steps>" and
"<kind> rate <rank> <learning rate>". The kinds are all optimizers of LibTorch, with their options, and all schedulers of ours and
LibTorch's, a pair each.
"""

import collections
import functools
import logging
import math
import os
import random
import sys

import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim import lr_scheduler

OTHER_MODELS = ["groups_sequential", "tied", "bf16"]


def schedule_after_warmup(curve, step, warmup=4, total=16):
    """What transformers' schedules are: a line up, then a curve over the part of the way that is behind."""
    return step / warmup if step < warmup else curve((step - warmup) / (total - warmup))


def lambda_lr(curve):
    # As transformers gives its functions: an object, whose state is saved as an empty dictionary.
    return lambda optimizer: lr_scheduler.LambdaLR(optimizer, functools.partial(schedule_after_warmup, curve))


def make_chained(optimizer):
    constant = lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=4)
    return lr_scheduler.ChainedScheduler([constant, lr_scheduler.ExponentialLR(optimizer, gamma=0.9)])


def make_one_cycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=30, three_phase=True, anneal_strategy="linear")


def make_restarts(optimizer):
    return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4, T_mult=2, eta_min=0.001)


def make_plateau(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, threshold=0.01)


step_lr = functools.partial(lr_scheduler.StepLR, step_size=3, gamma=0.5)
sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
rmsprop, adagrad, lbfgs = torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.LBFGS
PAIRS = {
    "adamw_linear": (adamw, dict(lr=0.02), functools.partial(lr_scheduler.LinearLR, start_factor=0.1, total_iters=20)),
    "sgd_cosine": (sgd, dict(lr=0.1, momentum=0.9, nesterov=True), functools.partial(lr_scheduler.CosineAnnealingLR, T_max=20)),
    "rmsprop_onecycle": (
        rmsprop,
        dict(lr=0.01, momentum=0.5, centered=True),
        functools.partial(lr_scheduler.OneCycleLR, max_lr=0.02, total_steps=30),
    ),
    "adam_multistep": (
        adam,
        dict(lr=0.02, amsgrad=True),
        functools.partial(lr_scheduler.MultiStepLR, milestones=[2, 5, 5, 9], gamma=0.5),
    ),
    "adagrad_exponential": (adagrad, dict(lr=0.05), functools.partial(lr_scheduler.ExponentialLR, gamma=0.9)),
    "sgd_step": (sgd, dict(lr=0.1), step_lr),
    "sgd_constant": (
        sgd,
        dict(lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
        functools.partial(lr_scheduler.ConstantLR, factor=0.5, total_iters=5),
    ),
    "adam_polynomial": (
        adam,
        dict(lr=0.02, weight_decay=0.01),
        functools.partial(lr_scheduler.PolynomialLR, total_iters=15, power=2.0),
    ),
    "adamw_restarts": (adamw, dict(lr=0.02, amsgrad=True), make_restarts),
    "adam_onecycle": (adam, dict(lr=0.02), make_one_cycle),
    "rmsprop_lambda": (rmsprop, dict(lr=0.01), lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)),
    "rmsprop_multiplicative": (
        rmsprop,
        dict(lr=0.01, momentum=0.5),
        lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.8 if step % 2 else 1.1),
    ),
    "adagrad_chained": (adagrad, dict(lr=0.05, lr_decay=0.01, weight_decay=0.01, initial_accumulator_value=0.1), make_chained),
    "warmup_none": (
        rmsprop,
        dict(lr=0.01, centered=True, weight_decay=0.01),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, functools.partial(pow, 1)),
    ),
    "warmup_constant": (sgd, dict(lr=0.1), lambda_lr(lambda part: 1)),
    "warmup_linear": (adamw, dict(lr=0.02), lambda_lr(lambda part: max(0, 1 - part))),
    "warmup_cosine": (adam, dict(lr=0.02), lambda_lr(lambda part: (1 + math.cos(math.pi * part)) / 2)),
    "warmup_restarts": (sgd, dict(lr=0.1, momentum=0.9), lambda_lr(lambda part: (1 + math.cos(math.pi * (2 * part % 1))) / 2)),
    "warmup_polynomial": (adamw, dict(lr=0.02), lambda_lr(lambda part: 0.25 + 0.75 * (1 - part) ** 2)),
    "lbfgs": (lbfgs, dict(lr=0.3, max_iter=3, history_size=4), step_lr),
    "lbfgs_wolfe": (lbfgs, dict(lr=1.0, max_iter=3, history_size=2, line_search_fn="strong_wolfe"), step_lr),
    "lbfgs_once": (lbfgs, dict(lr=0.1, max_iter=1), step_lr),
    "libtorch_step": (sgd, dict(lr=0.1), step_lr),
    "libtorch_plateau": (sgd, dict(lr=0.1), make_plateau),
}
METRICS = [1.0, 0.9, 0.95, 0.97, 0.96, 0.98]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 6)
        self.fc2 = nn.Linear(6, 2)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


class TiedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Meter:
    def __init__(self):
        self.total, self.steps = 0.0, 0

    def state_dict(self):
        return {"total": self.total, "steps": self.steps}

    def load_state_dict(self, state):
        self.total, self.steps = state["total"], state["steps"]


def build(kind):
    net = TiedNet() if kind == "tied" else Net()
    if kind == "bf16":
        net = net.to(torch.bfloat16)
    if kind == "groups_sequential":
        groups = [{"params": list(net.fc1.parameters())}, {"params": list(net.fc2.parameters()), "lr": 0.05}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        parts = [
            lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4),
            lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3], gamma=0.5),
        ]
        return net, optimizer, lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])
    make_optimizer, options, make_scheduler = PAIRS.get(kind, PAIRS["adamw_linear"])
    optimizer = make_optimizer(net.parameters(), **options)
    return net, optimizer, make_scheduler(optimizer)


def train(kind, mode, folder):
    set_seed(11)
    accelerator = Accelerator(cpu=True)
    net, optimizer, scheduler = build(kind)
    net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
    meter = Meter()
    accelerator.register_for_checkpointing(meter)
    rank, world = accelerator.process_index, accelerator.num_processes
    if mode == "load":
        accelerator.load_state(f"{folder}/{kind}")
    if kind == "adam_multistep":
        assert isinstance(scheduler.scheduler.milestones, collections.Counter)
    if kind == "groups_sequential":
        assert [group["initial_lr"] for group in optimizer.param_groups] == [0.1, 0.05]
    for step in range(3 if mode == "load" else 0, 6):
        # The line search of LBFGS goes by the loss, so that it has to be that of all processes.
        place = step if kind.startswith("lbfgs") else step * world + rank
        rows = torch.arange(4).add(place * 4).to(torch.float32)
        x, y = torch.sin(torch.outer(rows, torch.arange(1.0, 5.0))), torch.cos(torch.outer(rows, torch.arange(1.0, 3.0)))

        def backward():
            loss = nn.functional.mse_loss(net(x.to(torch.bfloat16) if kind == "bf16" else x).to(torch.float32), y)
            accelerator.backward(loss)
            return loss

        losses = []

        def closure():
            optimizer.zero_grad()
            losses.append(backward())
            return losses[-1]

        if kind == "lbfgs_once" and step < 2:
            loss = backward()  # so that only one step is behind the checkpoint, which leaves another kind of state
        elif kind.startswith("lbfgs"):
            optimizer.step(closure)
            loss = losses[0]
        else:
            loss = backward()
            optimizer.step()
        scheduler.step(METRICS[step]) if kind == "libtorch_plateau" else scheduler.step()
        optimizer.zero_grad()
        meter.total += loss.item()
        meter.steps += 1
        print(f"{kind} {step} {rank} {loss.item():.9f}", flush=True)
        if step == 2 and mode == "save":
            accelerator.save_state(f"{folder}/{kind}", safe_serialization=kind != "sgd_cosine")
    # Objects are saved by the first process alone, so the others have its sum where a run goes on.
    if rank == 0:
        print(f"{kind} meter 0 {meter.total:.9f} {meter.steps}")
        print(f"{kind} rate 0 {optimizer.param_groups[-1]['lr']:.12g}", flush=True)


def draw(folder):
    accelerator = Accelerator(cpu=True)
    net = accelerator.prepare(Net())
    accelerator.load_state(f"{folder}/seeded")
    print("loaded", torch.rand(2).tolist(), random.random(), numpy.random.rand(2).tolist())
    set_seed(123)
    print("seeded", torch.rand(2).tolist(), random.random(), numpy.random.rand(2).tolist())


logging.basicConfig(level=logging.WARNING)
logging.getLogger("accelerate.checkpointing").setLevel(logging.INFO)
if sys.argv[1] == "draw":
    draw(sys.argv[2])
else:
    for each in [*PAIRS, *OTHER_MODELS]:
        train(each, sys.argv[1], sys.argv[2])
# Interpreters that have used gloo abort at their end every now and then.
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
