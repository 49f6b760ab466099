"""The same measurement with Python Accelerate: big_model_speed_peer.py CHECKPOINT WIDTH DEPTH resident|disk PASSES OFFLOAD_FOLDER"""

import sys
import time

import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Tower(torch.nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.depth = depth
        for i in range(depth):
            setattr(self, f"block{i}", Block(width))

    def forward(self, x):
        for i in range(self.depth):
            x = getattr(self, f"block{i}")(x)
        return x


def main():
    checkpoint, width, depth, mode, passes, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), sys.argv[6]
    with init_empty_weights():
        model = Tower(width, depth)
    x = torch.full((1, width), 0.01, dtype=torch.bfloat16)
    begin = time.perf_counter()
    # The peer cannot put all of a model on disk: its last block stays in memory.
    device_map = {f"block{i}": "disk" if mode == "disk" and i < depth - 1 else "cpu" for i in range(depth)}
    model = load_checkpoint_and_dispatch(model, checkpoint, device_map=device_map, dtype=torch.bfloat16, offload_folder=folder)
    if mode == "resident":
        for p in model.parameters():
            p.data.view(torch.uint8).view(-1)[::4096].sum()  # what is mapped is read
    print(f"load {time.perf_counter() - begin:.6f}")
    with torch.inference_mode():
        for i in range(passes):
            start = time.perf_counter()
            total = model(x).sum().item()
            print(f"forward {time.perf_counter() - start:.6f}")
            if i == 0:
                print(f"sum {total:.9g}")


main()
