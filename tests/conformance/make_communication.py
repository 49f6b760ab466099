"""Writes tests/golden/communication.json: what PyTorch's PowerSGD hooks made of gradients, Accelerate's LocalSGD of weights, and
batch norm of a batch that processes share.

    pip install torch==2.13.0 accelerate==1.15.0
    python3 tests/conformance/make_communication.py tests/golden/communication.json

Gradients, data and weights are `wave(shape, seed)`, so that the file holds results alone.

power_sgd: `options` of PowerSGDState, the hook, the wrapper, the shapes of the parameters of one bucket, and for each iteration
from the third on what process 0 (and so every process) had of each gradient after the collective. Each process puts in
wave(shape, 1000 * iteration + 100 * rank + parameter). The batched hook of this release hands a matrix where a batch of matrices
is asserted, and fails; it was run with the assertion satisfied by a batch of one.
local_sgd: the weights of a Linear(4, 3) on rank 0 after each step of SGD, and after the scope.
batch_norm: outputs, gradients and statistics of torch's BatchNorm on the whole batch, which processes have parts of.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook


def wave(shape, seed):
    count = 1
    for size in shape:
        count *= size
    numbers = torch.arange(count, dtype=torch.float64)
    waves = torch.sin(numbers * 0.7 + seed * 1.3) + 0.3 * torch.cos(numbers * numbers * 0.11 + seed)
    return waves.to(torch.float32).view(shape)


def batched_orthogonalize(orthogonalize):
    def call(matrices, epsilon=0):
        orthogonalize(matrices.unsqueeze(0) if matrices.dim() == 2 else matrices, epsilon=epsilon)

    return call


class Parameters(torch.nn.Module):
    """Its gradients are what is asked for."""

    def __init__(self, shapes):
        super().__init__()
        self.all = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, gradients):
        return sum((parameter * gradient).sum() for parameter, gradient in zip(self.all, gradients))


def power_sgd(case, rank):
    model = torch.nn.parallel.DistributedDataParallel(Parameters(case["shapes"]), bucket_cap_mb=case.get("bucket_cap_mb", 25))
    state = powerSGD_hook.PowerSGDState(None, **case["options"])
    hook = {"power_sgd": powerSGD_hook.powerSGD_hook, "batched_power_sgd": powerSGD_hook.batched_powerSGD_hook}[case["hook"]]
    wrappers = {"fp16": default_hooks.fp16_compress_wrapper}  # bf16 needs a GPU in Python
    if "wrapper" in case:
        hook = wrappers[case["wrapper"]](hook)
    model.register_comm_hook(state, hook)
    results = []
    for iteration in range(case["iterations"]):
        model.zero_grad()
        gradients = [wave(shape, 1000 * iteration + 100 * rank + i) for i, shape in enumerate(case["shapes"])]
        model(gradients).backward()
        if iteration >= 2:
            results.append([parameter.grad.flatten().tolist() for parameter in model.module.all])
    return results


def local_sgd(case, rank):
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    linear = torch.nn.Linear(4, 3)
    with torch.no_grad():
        linear.weight.copy_(wave([3, 4], 1))
        linear.bias.copy_(wave([3], 2))
    model, optimizer = accelerator.prepare(linear, torch.optim.SGD(linear.parameters(), lr=0.1))
    trajectory = []
    weights = lambda: [parameter.detach().flatten().tolist() for parameter in model.parameters()]
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=case["steps"], enabled=case["enabled"]) as local:
        for step in range(case["iterations"]):
            optimizer.zero_grad()
            output = model(wave([5, 4], 10 * step + rank))
            accelerator.backward((output - wave([5, 3], 10 * step + rank + 500)).square().mean())
            optimizer.step()
            local.step()
            trajectory.append(weights())
    trajectory.append(weights())
    return trajectory


RUNS = {"power_sgd": power_sgd, "local_sgd": local_sgd}


def process(rank, size, port, kind, cases, path):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    powerSGD_hook._orthogonalize = batched_orthogonalize(powerSGD_hook._orthogonalize)
    dist.init_process_group("gloo")
    results = [{**case, "processes": size, "results": RUNS[kind](case, rank)} for case in cases]
    if rank == 0:
        with open(path, "w") as file:
            json.dump(results, file)
    dist.barrier()
    dist.destroy_process_group()


def power_sgd_cases():
    shapes = [[12, 10], [12], [10, 12], [4, 3, 5, 2], [12, 10], [7]]
    cases = []
    for hook in ("power_sgd", "batched_power_sgd"):
        for rank in (1, 2):
            for warm in (False, True):
                for feedback in (False, True):
                    options = {"matrix_approximation_rank": rank, "start_powerSGD_iter": 2, "warm_start": warm,
                               "use_error_feedback": feedback, "min_compression_rate": 1}
                    cases.append({"hook": hook, "options": options, "shapes": shapes, "iterations": 5})
    more = [
        ("power_sgd", {"matrix_approximation_rank": 3}, {}),
        ("power_sgd", {"matrix_approximation_rank": 1, "random_seed": 7, "warm_start": False}, {}),
        ("power_sgd", {"matrix_approximation_rank": 1, "min_compression_rate": 4}, {}),
        ("power_sgd", {"matrix_approximation_rank": 1, "min_compression_rate": 0.5}, {}),
        ("power_sgd", {"matrix_approximation_rank": 2, "batch_tensors_with_same_shape": True}, {}),
        ("power_sgd", {"matrix_approximation_rank": 2, "orthogonalization_epsilon": 0.01}, {}),
        ("power_sgd", {"matrix_approximation_rank": 1, "start_powerSGD_iter": 4}, {}),
        ("power_sgd", {"matrix_approximation_rank": 1}, {"wrapper": "fp16"}),
        ("batched_power_sgd", {"matrix_approximation_rank": 1}, {"wrapper": "fp16"}),
    ]
    for hook, options, rest in more:
        options = {"start_powerSGD_iter": 2, **options}
        cases.append({"hook": hook, "options": options, "shapes": shapes, "iterations": 5, **rest})
    return cases


def local_sgd_cases():
    kinds = ((1, True), (3, True), (8, True), (3, False))
    return [{"steps": steps, "enabled": enabled, "iterations": 7} for steps, enabled in kinds]


def batch_norm_case(dims, options, rows, steps=3):
    """`rows` has the number of samples of each process at each step."""
    features = 3
    norm = getattr(torch.nn, f"BatchNorm{dims}d")(features, **options)
    rest = {1: [], 2: [2, 3], 3: [2, 2, 2]}[dims]
    if norm.affine:
        with torch.no_grad():
            norm.weight.copy_(wave([features], 1))
            norm.bias.copy_(wave([features], 2))
    recorded = []
    for step in range(steps):
        counts = rows[step % len(rows)]
        parts = [wave([count, features] + rest, 10 * step + rank) for rank, count in enumerate(counts)]
        inputs = torch.cat(parts).requires_grad_()
        weights = torch.cat([wave([count, features] + rest, 10 * step + rank + 500) for rank, count in enumerate(counts)])
        norm.zero_grad()
        output = norm(inputs)
        (output * weights).sum().backward()
        recorded.append({
            "rows": counts,
            "output": output.flatten().tolist(),
            "input_gradient": inputs.grad.flatten().tolist(),
            "weight_gradient": norm.weight.grad.tolist() if norm.affine else None,
            "bias_gradient": norm.bias.grad.tolist() if norm.affine else None,
            "running_mean": norm.running_mean.tolist() if norm.track_running_stats else None,
            "running_var": norm.running_var.tolist() if norm.track_running_stats else None,
        })
    norm.eval()
    evaluated = norm(wave([4, features] + rest, 99))
    case = {"dims": dims, "options": options, "processes": len(rows[0]), "steps": recorded}
    return {**case, "evaluated": evaluated.flatten().tolist()}


def batch_norm_cases():
    cases = []
    for rows in ([[3, 3], [2, 5], [0, 5]], [[2, 2, 2], [2, 4, 3], [3, 0, 4]]):
        for dims in (1, 2, 3):
            cases.append(batch_norm_case(dims, {}, rows))
        cases.append(batch_norm_case(2, {"affine": False}, rows))
        cases.append(batch_norm_case(2, {"momentum": None}, rows))
        cases.append(batch_norm_case(1, {"momentum": 0.3, "eps": 0.01}, rows))
        cases.append(batch_norm_case(1, {"track_running_stats": False}, rows))
        cases.append(batch_norm_case(2, {"track_running_stats": False, "affine": False}, rows))
    return cases


def rounded(node):
    if isinstance(node, float):
        return float(f"{node:.7g}")
    if isinstance(node, list):
        return [rounded(item) for item in node]
    if isinstance(node, dict):
        return {name: rounded(item) for name, item in node.items()}
    return node


def main():
    golden = {"power_sgd": [], "local_sgd": [], "batch_norm": batch_norm_cases()}
    port = 29700
    for size in (2, 3):
        for kind, cases in (("power_sgd", power_sgd_cases()), ("local_sgd", local_sgd_cases())):
            port += 1
            path = sys.argv[1] + ".part"
            mp.spawn(process, (size, port, kind, cases, path), nprocs=size)
            with open(path) as file:
                golden[kind] += json.load(file)
            os.remove(path)
    with open(sys.argv[1], "w") as file:
        json.dump(rounded(golden), file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
