"""The same loops with Python Accelerate. Speaks the protocol of training_speed.cpp: "scenario steps" in, microseconds a step out."""

import os
import resource
import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WIDTH, HEADS, LENGTH, VOCABULARY = 256, 4, 128, 1000


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1])))))


def mlp_data():
    return TensorDataset(torch.randn(8192, 784), torch.randint(0, 10, (8192,)))


def gpt_data():
    text = torch.randint(0, VOCABULARY, (512, LENGTH + 1))
    return TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def gpt_loss(output, targets):
    return F.cross_entropy(output.reshape(-1, VOCABULARY), targets.reshape(-1))


class Prepared:
    def __init__(self, accelerator, net, data, batch_size, loss, fused):
        self.accelerator, self.loss = accelerator, loss
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, **({"fused": True} if fused else {}))
        loader = DataLoader(data, batch_size=batch_size, shuffle=True)
        self.model, self.optimizer, self.loader = accelerator.prepare(net, optimizer, loader)

    def run(self, steps):
        done, start = 0, time.perf_counter()
        while True:
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                self.accelerator.backward(self.loss(self.model(inputs), targets))
                self.optimizer.step()
                done += 1
                if done == steps:
                    return (time.perf_counter() - start) * 1e6 / steps


class Reading:
    def __init__(self, accelerator, workers):
        data = TensorDataset(torch.randn(100000, 32), torch.randint(0, 10, (100000,)))
        self.loader = accelerator.prepare(DataLoader(data, batch_size=64, shuffle=True, num_workers=workers))

    def run(self, steps):
        done, start = 0, time.perf_counter()
        while True:
            for _ in self.loader:
                done += 1
                if done == steps:
                    return (time.perf_counter() - start) * 1e6 / steps


class Tiny:
    def __init__(self, accelerator, prepared):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.backward = lambda loss: loss.backward()
        if prepared:
            self.model, self.optimizer = accelerator.prepare(self.model, self.optimizer)
            self.backward = accelerator.backward
        self.x, self.y = torch.randn(4, 4), torch.randn(4, 1)

    def run(self, steps):
        start = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.backward(F.mse_loss(self.model(self.x), self.y))
            self.optimizer.step()
        return (time.perf_counter() - start) * 1e6 / steps


class Memory:
    def run(self, steps):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(accelerator, scenario):
    fused = scenario.endswith("_fused")
    kind = scenario.removesuffix("_fused")
    if kind in ("mlp4", "mlp64"):
        return Prepared(accelerator, Mlp(), mlp_data(), int(kind[3:]), F.cross_entropy, fused)
    if kind == "gpt":
        return Prepared(accelerator, Gpt(), gpt_data(), 8, gpt_loss, fused)
    if kind.startswith("loader"):
        return Reading(accelerator, 2 if "2_workers" in kind else 0)
    if kind == "peak_memory":
        return Memory()
    return Tiny(accelerator, prepared=kind == "tiny")


def main():
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    made = {}
    for line in sys.stdin:
        scenario, steps = line.split()
        if scenario not in made:
            made[scenario] = make(accelerator, scenario)
        print(made[scenario].run(int(steps)), flush=True)
    accelerator.end_training()
    sys.stdout.flush()
    os._exit(0)  # several processes of torch 2.13 abort at interpreter exit now and then


if __name__ == "__main__":
    main()
