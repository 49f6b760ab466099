"""The same with Python Accelerate. Speaks the protocol of checkpoint_speed.cpp; "save_durable" is a save and fsync of all it wrote."""

import ctypes
import os
import pathlib
import sys
import time

import torch
from accelerate import Accelerator
from torch import nn

LAYERS, WIDTH = 24, 2048


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(LAYERS):
            self.register_module(f"fc{i}", nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return x


def memory(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0


def make_durable(folder):
    for path in [*pathlib.Path(folder).iterdir(), folder, pathlib.Path(folder).parent]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def act(accelerator, action, folder):
    if action == "load":
        accelerator.load_state(folder)
        return
    accelerator.save_state(folder)
    if action == "save_durable":
        make_durable(folder)


def main():
    accelerator = Accelerator()
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-4))
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 0.01)
    optimizer.step()
    optimizer.zero_grad()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    for line in sys.stdin:
        action, folder = line.split()
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        cpu, start = time.process_time(), time.perf_counter()
        act(accelerator, action, folder)
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - start
        print(took, took, time.process_time() - cpu, memory("VmHWM") - before, flush=True)


if __name__ == "__main__":
    main()
