"""Writes a checkpoint for examples/big_model.cpp in shards, as Python does, and prints the checksum that torch computes from it.

big_model_peer.py FOLDER
"""

import sys

import torch
from accelerate import Accelerator

WIDTH, DEPTH, VOCABULARY = 256, 8, 1000


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(7)
tower = Tower()
Accelerator(cpu=True).save_model(tower, sys.argv[1], max_shard_size="5MB")
with torch.inference_mode():
    print(f"checksum {tower(torch.arange(16).reshape(1, 16)).double().sum().item():.17g}", flush=True)
