"""The peer of sharded_peer.cpp: the same model, sharded by PyTorch over two processes and saved by Accelerate's own functions for FSDP.

sharded_peer.py save FOLDER      trains, saves FOLDER/shards (SHARDED_STATE_DICT) and FOLDER/whole (FULL_STATE_DICT)
sharded_peer.py load FOLDER...   loads each, shards where there are some, and tells what it has
"""

import os
import sys
import tempfile
import warnings
from types import SimpleNamespace

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import load_fsdp_model, load_fsdp_optimizer, save_fsdp_model, save_fsdp_optimizer
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

warnings.filterwarnings("ignore")
RANKS = 2


class Borrower(torch.nn.Module):
    """A layer whose weight is another's."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 7)
        self.second = torch.nn.Linear(7, 5)
        self.third = Borrower(self.first.weight)
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x):
        return torch.nn.functional.linear(self.second(torch.tanh(self.first(x))), self.third.weight) * self.scale


def sharded(seed):
    torch.manual_seed(seed)
    net = Net()
    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(net.second, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def print_numbers(label, name, tensor):
    """Sums of the bits, weighted by their places, which C++ computes in the same way."""
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    bits = tensor.detach().reshape(-1).contiguous().view(torch.int32).to(torch.int64)
    if dist.get_rank() == 0:
        print(label, name, (bits * (torch.arange(bits.numel()) + 1)).sum().item(), flush=True)


def tell(label, net, optimizer):
    for name, tensor in get_model_state_dict(net).items():
        print_numbers(label, name, tensor)
    state = get_optimizer_state_dict(net, optimizer)
    for name, fields in state["state"].items():
        for field, tensor in fields.items():
            print_numbers(label, f"{name}.{field}", tensor)
    if dist.get_rank() == 0:
        print(label, "lr", round(state["param_groups"][0]["lr"] * 1e9), flush=True)


def accelerator():
    """What the functions ask of one: on a CPU a real one ignores FSDP."""
    return SimpleNamespace(process_index=dist.get_rank(), num_processes=RANKS, is_fsdp2=True, is_main_process=dist.get_rank() == 0,
                           wait_for_everyone=dist.barrier)


def plugin(kind):
    return FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind)


def save(folder):
    net, optimizer = sharded(0)
    for _ in range(2):
        net(torch.arange(10.0).reshape(2, 5) / (3 + dist.get_rank())).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for label, kind in (("shards", "SHARDED_STATE_DICT"), ("whole", "FULL_STATE_DICT")):
        save_fsdp_model(plugin(kind), accelerator(), net, f"{folder}/{label}")
        save_fsdp_optimizer(plugin(kind), accelerator(), optimizer, net, f"{folder}/{label}")
    tell("saved", net, optimizer)


def load(folder):
    net, optimizer = sharded(1)
    kind = "SHARDED_STATE_DICT" if os.path.isdir(f"{folder}/pytorch_model_fsdp_0") else "FULL_STATE_DICT"
    load_fsdp_model(plugin(kind), accelerator(), net, folder)
    load_fsdp_optimizer(plugin(kind), accelerator(), optimizer, net, folder)
    tell("loaded", net, optimizer)


def run(rank, store, act, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=rank, world_size=RANKS)
    PartialState(cpu=True)  # Accelerate's loggers want one
    act(folder)
    dist.destroy_process_group()


def together(act, folder):
    context = torch.multiprocessing.get_context("fork")  # torch is imported once
    with tempfile.TemporaryDirectory() as store:
        ranks = [context.Process(target=run, args=(rank, store, act, folder)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    assert all(rank.exitcode == 0 for rank in ranks)


if __name__ == "__main__":
    for each in sys.argv[2:]:
        together(save if sys.argv[1] == "save" else load, each)
