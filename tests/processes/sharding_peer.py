"""The peer of sharding_peer_test.cpp: torch's fully_shard over gloo trains the model of sharding_scenes.cpp.

sharding_peer.py FOLDER   reads FOLDER/NAME_begin.safetensors, writes FOLDER/NAME_theirs.safetensors and FOLDER/their_losses_RANK.safetensors
"""

import os
import sys

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH, STEPS = 23, 12, 7, 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 31), nn.Linear(31, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return y + self.down(F.gelu(self.up(y)))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.Sequential(Block(), Block(), Block()), nn.LayerNorm(WIDTH)

    def forward(self, ids):
        return torch.matmul(self.norm(self.blocks(self.embedding(ids))), self.embedding.weight.t())


def batch(step, rank):
    return (torch.arange(3 * (LENGTH + 1)).view(3, LENGTH + 1) * 7 + step * 13 + rank * 5) % VOCABULARY


def train(folder, name, mesh):
    net, rank = Gpt(), dist.get_rank()
    net.load_state_dict(load_file(f"{folder}/{name}_begin.safetensors"))
    for module in [*net.blocks, net]:
        fully_shard(module, mesh=mesh, reshard_after_forward=name == "reshards")
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = torch.zeros(STEPS)
    for step in range(STEPS):
        ids = batch(step, rank)
        loss = F.cross_entropy(net(ids[:, :LENGTH]).reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        losses[step] = loss.detach()
        loss.backward()
        sgd.step()
        sgd.zero_grad()
    whole = {key: value.full_tensor().contiguous() for key, value in net.state_dict().items()}
    if rank == 0:
        save_file(whole, f"{folder}/{name}_theirs.safetensors")
    return losses


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    losses = {name: train(folder, name, mesh) for name in ("reshards", "keeps")}
    save_file(losses, f"{folder}/their_losses_{dist.get_rank()}.safetensors")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 aborts now and then while its interpreter ends


main(sys.argv[1])
