"""The exchanges of collectives_latency.cpp in Python: by Accelerate, and by torch.distributed without it, in turns.

torch.distributed works in place and into buffers made once, which is the least that a program in Python can pay.
"""

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
PAYLOADS = [("4 B", (), 5), ("1 KB", (256,), 5), ("64 KB", (16384,), 5), ("1 MB", (262144,), 2)]
OBJECT = {"name": "train", "epoch": 3, "loss": 0.25, "sizes": [1, 2, 3]}


def exchanges(accelerator):
    """Yields name, calls in a block, Accelerate's call, torch.distributed's call."""
    size = accelerator.num_processes
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
    yield "barrier", CALLS, accelerator.wait_for_everyone, dist.barrier
    for name, shape, calls in PAYLOADS:
        data, zeros = torch.ones(shape), torch.zeros(shape)  # zeros stay zeros however often they are added up
        row = data.view(-1)  # torch.distributed gathers nothing without dimensions
        output = torch.empty(size * row.numel())
        yield f"gather {name}", calls, lambda: accelerator.gather(data), lambda: gather(output, row)
        yield f"reduce {name}", calls, lambda: accelerator.reduce(data, "sum"), lambda: dist.all_reduce(zeros)
        yield f"broadcast {name}", calls, lambda: broadcast(data), lambda: dist.broadcast(data, 0)
    everyone = [None] * size
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
    # As in C++: an exchange has taken as long as it took the slower process.
    dist.all_reduce(times, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(name, *(f"{statistics.median(side):.2f}" for side in times.tolist()), sep="\t")


def main():
    accelerator = Accelerator(cpu=True)
    with torch.no_grad():
        for exchange in exchanges(accelerator):
            measure(*exchange)
    accelerator.end_training()


main()
sys.stdout.flush()
# Without the interpreter's own end, which aborts now and then when gloo's threads are still there.
os._exit(0)
