"""What checkpoint_peer.cpp does, in Python: trains small models for three steps, saves each, and trains on.

    checkpoint_peer.py save FOLDER   from the beginning, saving after three steps into FOLDER/<kind>
    checkpoint_peer.py load FOLDER   from what is in FOLDER/<kind>
    checkpoint_peer.py draw FOLDER   random numbers after loading FOLDER/seeded, then after set_seed(123)

Prints "<kind> <step> <rank> <loss>" for every step, then "<kind> meter <rank> <sum of losses> <steps>".
"""

import collections
import logging
import os
import random
import sys

import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim import lr_scheduler

KINDS = ["adamw_linear", "sgd_cosine", "rmsprop_onecycle", "adam_multistep", "adagrad_exponential", "groups_sequential", "tied", "bf16"]


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
    parameters = list(net.parameters())
    if kind == "sgd_cosine":
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)
        return net, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    if kind == "rmsprop_onecycle":
        optimizer = torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True)
        return net, optimizer, lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=30)
    if kind == "adam_multistep":
        optimizer = torch.optim.Adam(parameters, lr=0.02, amsgrad=True)
        return net, optimizer, lr_scheduler.MultiStepLR(optimizer, milestones=[2, 5, 5, 9], gamma=0.5)
    if kind == "adagrad_exponential":
        optimizer = torch.optim.Adagrad(parameters, lr=0.05)
        return net, optimizer, lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    if kind == "groups_sequential":
        groups = [{"params": list(net.fc1.parameters())}, {"params": list(net.fc2.parameters()), "lr": 0.05}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        parts = [
            lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4),
            lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3], gamma=0.5),
        ]
        return net, optimizer, lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])
    optimizer = torch.optim.AdamW(parameters, lr=0.02)
    return net, optimizer, lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)


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
        rows = torch.arange(4).add((step * world + rank) * 4).to(torch.float32)
        x, y = torch.sin(torch.outer(rows, torch.arange(1.0, 5.0))), torch.cos(torch.outer(rows, torch.arange(1.0, 3.0)))
        loss = nn.functional.mse_loss(net(x.to(torch.bfloat16) if kind == "bf16" else x).to(torch.float32), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        meter.total += loss.item()
        meter.steps += 1
        print(f"{kind} {step} {rank} {loss.item():.9f}", flush=True)
        if step == 2 and mode == "save":
            accelerator.save_state(f"{folder}/{kind}", safe_serialization=kind != "sgd_cosine")
    # Objects are saved by the first process alone, so the others have its sum where a run goes on.
    print(f"{kind} meter 0 {meter.total:.9f} {meter.steps}" if rank == 0 else "", flush=True)


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
    for each in KINDS:
        train(each, sys.argv[1], sys.argv[2])
# Interpreters that have used gloo abort at their end every now and then.
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
