"""The same steps with PyTorch itself: fully_shard, DistributedDataParallel, or neither. Speaks the protocol of shard_speed.cpp."""

import ctypes
import gc
import os
import re
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

HEADS, CLASSES = 6, 10
UNEVEN = (64, 4096, 32, 2048, 2048, 16, 3000, 1500, CLASSES)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, width, length, vocabulary):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device)))))


def uneven_mlp():
    layers = []
    for inputs, outputs in zip(UNEVEN, UNEVEN[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def anonymous_bytes():
    """Without what the heap keeps although it was freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as status:
        return int(re.search(r"RssAnon:\s+(\d+) kB", status.read())[1]) * 1024


def written_bytes():
    with open("/proc/self/io") as counts:
        return int(re.search(r"wchar: (\d+)", counts.read())[1])


class Training:
    def __init__(self, mode, model, layers, width, rows, length, vocabulary, device, budget_mb):
        self.device, self.on_gpu = device, device == "cuda"
        if budget_mb:
            self.ballast = torch.empty(torch.cuda.mem_get_info()[0] - (budget_mb << 20), dtype=torch.uint8, device=device)
        self.before = anonymous_bytes()
        torch.manual_seed(0)
        offloads = mode.startswith("offload")
        if model == "gpt":
            net = Gpt(layers, width, length, vocabulary)
            units = list(net.blocks)
            text = torch.randint(0, vocabulary, (rows, length + 1))
            self.inputs, self.targets = text[:, :-1].contiguous().to(device), text[:, 1:].reshape(-1).to(device)
        else:
            net = uneven_mlp()
            units = [each for each in net if isinstance(each, nn.Linear)]
            self.inputs, self.targets = torch.randn(rows, UNEVEN[0]).to(device), torch.randint(0, CLASSES, (rows,)).to(device)
        if not offloads:
            net.to(device)
        self.parameters = sum(each.nbytes for each in net.parameters())
        self.autocast = False
        if mode.startswith(("sharded", "offload")):
            mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
            how = {"mesh": mesh}
            if self.on_gpu:
                how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            if offloads:
                how["offload_policy"] = CPUOffloadPolicy()
            for unit in units:
                fully_shard(unit, **how)
            fully_shard(net, **how)
            self.model = net
            self.held = sum(each.to_local().nbytes for each in net.parameters())
        else:
            self.model, self.held, self.autocast = net, self.parameters, self.on_gpu
            if mode.startswith("ddp"):
                self.model = DistributedDataParallel(net)
        # The kernel that steps many parameters at once, as ours does, or what PyTorch does unasked.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True if mode.endswith("_fused") else None)
        self.prepared = anonymous_bytes()

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            output = self.model(self.inputs)
        loss = F.cross_entropy(output.reshape(-1, output.shape[-1]).float(), self.targets)
        del output
        loss.backward()
        self.optimizer.step()

    def run(self, steps):
        self.synchronize()
        dist.barrier()
        start, busy = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.step()
        self.synchronize()
        return (time.perf_counter() - start) * 1e6 / steps, (time.process_time() - busy) * 1e6 / steps

    def states(self):
        return dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer)))

    def load(self, folder):
        states = self.states()
        dcp.load(states, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])

    def saves(self, folder, times):
        """Microseconds a save, a load, and the bytes that this rank writes."""
        warnings.simplefilter("ignore")  # it overwrites the checkpoint, as ours does
        self.step()
        dcp.save(self.states(), checkpoint_id=folder)
        saved = loaded = written = 0
        for _ in range(times):
            before = written_bytes()
            dist.barrier()
            start = time.perf_counter()
            dcp.save(self.states(), checkpoint_id=folder)
            saved += time.perf_counter() - start
            written += written_bytes() - before
            dist.barrier()
            start = time.perf_counter()
            self.load(folder)
            loaded += time.perf_counter() - start
        return saved * 1e6 / times, loaded * 1e6 / times, written // times

    def figures(self, steps):
        self.run(2)
        written = written_bytes()
        self.run(steps)
        sent = (written_bytes() - written) / steps
        self.optimizer.zero_grad()
        found = (f"parameters {self.parameters} held {self.held} before {self.before} prepared {self.prepared} "
                 f"between {anonymous_bytes()} sent {sent}")
        if self.on_gpu:
            found += f" allocated {torch.cuda.max_memory_allocated()} reserved {torch.cuda.max_memory_reserved()}"
        return found


def main():
    mode, model, *sizes, device, budget_mb, folder = sys.argv[1:]
    if device == "cuda":
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    training = Training(mode, model, *map(int, sizes), device, int(budget_mb))
    for line in sys.stdin:
        command, steps = line.split()
        answers = {"run": training.run, "save": lambda times: training.saves(folder, times), "figures": lambda count: training.figures(count).split()}
        print(*answers[command](int(steps)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 aborts now and then while its interpreter ends


main()
