"""The collectives of collectives_latency.cpp in Python: by Accelerate, and by torch.distributed without it, interleaved."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast, broadcast_object_list, gather_object

BLOCKS = 120
CALLS = 5
PAYLOADS = [("4 B", (), 5), ("1 KB", (256,), 5), ("4 KB", (1024,), 5), ("64 KB", (16384,), 5), ("1 MB", (262144,), 2)]
OBJECT = {"name": "train", "epoch": 3, "loss": 0.25, "sizes": [1, 2, 3]}


class Bare:
    """torch.distributed alone. As in C++, what was gathered, reduced or received lies in memory of its own."""

    # The second is its name before torch 2.13.
    all_gather = staticmethod(getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)

    def gather(self, data):
        result = torch.empty(dist.get_world_size() * data.numel())
        self.all_gather(result, data if data.dim() else data[None])  # nothing without dimensions can be gathered
        return result

    def reduce(self, data):
        result = data.clone()
        dist.all_reduce(result)
        return result

    def broadcast(self, data):
        result = data if dist.get_rank() == 0 else torch.empty_like(data)
        dist.broadcast(result, 0)
        return result


def collectives(accelerator):
    """Yields name, calls in a block, Accelerate's call, torch.distributed's call."""
    bare = Bare()
    yield "barrier", CALLS, accelerator.wait_for_everyone, dist.barrier
    for name, shape, calls in PAYLOADS:
        data = torch.ones(shape)
        yield f"gather {name}", calls, lambda: accelerator.gather(data), lambda: bare.gather(data)
        yield f"reduce {name}", calls, lambda: accelerator.reduce(data, "sum"), lambda: bare.reduce(data)
        yield f"broadcast {name}", calls, lambda: broadcast(data), lambda: bare.broadcast(data)
    everyone = [None] * accelerator.num_processes
    yield "gather_object", CALLS, lambda: gather_object([OBJECT]), lambda: dist.all_gather_object(everyone, [OBJECT])
    yield "broadcast_object_list", CALLS, lambda: broadcast_object_list([OBJECT]), lambda: dist.broadcast_object_list([OBJECT], 0)


def block_time(call, calls):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def measure(name, calls, with_accelerate, alone):
    sides = (with_accelerate, alone)
    times = torch.empty(2, BLOCKS, dtype=torch.float64)
    for side in sides:
        block_time(side, calls)
    for block in range(BLOCKS):
        for turn in range(2):
            side = (block + turn) % 2
            times[side, block] = block_time(sides[side], calls)
    # As in C++: a collective has taken as long as it took the slower process.
    dist.all_reduce(times, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(name, *(f"{statistics.median(side):.2f}" for side in times.tolist()), sep="\t")


def main():
    accelerator = Accelerator(cpu=True)
    with torch.no_grad():
        for collective in collectives(accelerator):
            measure(*collective)
    accelerator.end_training()


main()
sys.stdout.flush()
# Without the interpreter's own end, which aborts now and then when gloo's threads are still there.
os._exit(0)
