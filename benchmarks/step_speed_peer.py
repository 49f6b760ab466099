"""The same steps with Python Accelerate (and transformers):
step_speed_peer.py gpt2|mlp|resnet|bert plain|fused|compile|reduce STEPS [--device cpu] [--small] [--kernels]"""

import argparse
import json
import os
import tempfile
import time

import torch
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin, set_seed
from torch import nn
from torch.nn import functional as F

BATCHES, WINDOWS, ALONE, PROFILED, SHOWN_KERNELS = 8, 5, 10, 10, 40


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, width), nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def convolution(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = convolution(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        self.shortcut = None
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + (x if self.shortcut is None else self.shortcut(x)))


class SmallResNet(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.stem, self.norm = convolution(3, widths[0], 3, 1), nn.BatchNorm2d(widths[0])
        blocks, inputs = [], widths[0]
        for width in widths:
            blocks += [BasicBlock(inputs, width, 1 if width == widths[0] else 2), BasicBlock(width, width, 1)]
            inputs = width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(widths[3], 10)

    def forward(self, images):
        return self.head(self.blocks(torch.relu(self.norm(self.stem(images)))).mean((2, 3)))


def class_batches(rows, shape, device):
    made = []
    for _ in range(BATCHES):
        inputs = torch.randn(rows, *shape, device=device)
        if len(shape) == 3:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        made.append({"inputs": inputs, "labels": torch.randint(0, 10, (rows,), device=device)})
    return made


def class_loss(model, batch):
    return F.cross_entropy(model(batch["inputs"]), batch["labels"])


def language_loss(model, batch):
    return model(**batch).loss


def make_mlp(small, device):
    net = Mlp(32 if small else 512)
    return net, class_batches(8 if small else 32, (784,), device), class_loss, (torch.optim.AdamW, {"lr": 1e-3}), None


def make_resnet(small, device):
    net = SmallResNet([8, 16, 32, 64] if small else [64, 128, 256, 512]).to(memory_format=torch.channels_last)
    side = 16 if small else 32
    optimizer = (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4})
    return net, class_batches(4 if small else 256, (3, side, side), device), class_loss, optimizer, None


def make_gpt2(small, device):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 211, "n_positions": 64} if small else {}
    # No cache of keys and values: a step has no use for one, and without it the peer is faster.
    config = GPT2Config(attn_implementation="sdpa", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False, **sizes)
    rows, length = (2, 16) if small else (8, 512)
    ids = [torch.randint(0, config.vocab_size, (rows, length), device=device) for _ in range(BATCHES)]
    batches = [{"input_ids": each, "labels": each} for each in ids]
    return GPT2LMHeadModel(config), batches, language_loss, (torch.optim.AdamW, {"lr": 3e-4, "weight_decay": 0.1}), 1.0


def make_bert(small, device):
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256,
             "vocab_size": 211, "max_position_embeddings": 64} if small else {}
    config = BertConfig(attn_implementation="sdpa", hidden_dropout_prob=0, attention_probs_dropout_prob=0, **sizes)
    rows, length = (2, 16) if small else (16, 128)
    tokens = lambda: torch.randint(0, config.vocab_size, (rows, length), device=device)
    batches = [{"input_ids": tokens(), "labels": tokens()} for _ in range(BATCHES)]
    return BertForMaskedLM(config), batches, language_loss, (torch.optim.AdamW, {"lr": 1e-4, "weight_decay": 0.01}), None


MAKERS = {"gpt2": make_gpt2, "mlp": make_mlp, "resnet": make_resnet, "bert": make_bert}


def show(name, value):
    print(f"{name} {value:.9g}", flush=True)


class Measurement:
    """Takes steps, batch after batch, and prints how long they took."""

    def __init__(self, step, batches, on_gpu):
        self.step, self.batches, self.on_gpu = step, batches, on_gpu
        self.next, self.loss = 0, None

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def take(self, steps):
        for _ in range(steps):
            self.loss = self.step(self.batches[self.next % len(self.batches)])
            self.next += 1

    def warm_up(self):
        """The first step, then rounds until one takes as long as the one before it, within a twentieth."""
        self.wait()
        start = time.perf_counter()
        self.take(1)
        self.wait()
        show("first_s", time.perf_counter() - start)
        show("loss_first", self.loss.item())
        before = 0
        for _ in range(10):
            begin = time.perf_counter()
            self.take(BATCHES)
            self.wait()
            took = time.perf_counter() - begin
            steady = abs(took - before) < before / 20
            before = took
            if steady:
                break
        show("warm_s", time.perf_counter() - start)

    def window(self, steps):
        start = time.perf_counter()
        self.take(steps)
        issued = time.perf_counter()
        self.wait()
        show("host_ms", 1e3 * (issued - start) / steps)
        show("step_ms", 1e3 * (time.perf_counter() - start) / steps)

    def run(self, steps, kernels):
        self.warm_up()
        for _ in range(WINDOWS):
            self.window(max(steps // WINDOWS, 1))
        for _ in range(ALONE):  # the device has nothing to do: the host never waits for room in its queue
            start = time.perf_counter()
            self.take(1)
            show("issue_ms", 1e3 * (time.perf_counter() - start))
            self.wait()
        self.next = 0
        self.take(1)
        show("loss_last", self.loss.item())
        if self.on_gpu:
            show("peak_allocated_MB", torch.cuda.max_memory_allocated() / 1e6)
            show("peak_reserved_MB", torch.cuda.max_memory_reserved() / 1e6)
        self.profile(kernels)

    def profile(self, kernels):
        activity = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[activity.CPU] + [activity.CUDA] * self.on_gpu) as profiler:
            self.take(PROFILED)
            self.wait()
        # The file tells kernels from annotations, which lie on the device too and cover its pauses.
        with tempfile.TemporaryDirectory() as folder:
            profiler.export_chrome_trace(os.path.join(folder, "trace.json"))
            with open(os.path.join(folder, "trace.json"), errors="replace") as file:
                events = json.load(file, strict=False)["traceEvents"]
        done = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in event]
        busy, end = 0, 0
        for start, stop in sorted((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in done):
            busy += max(stop - max(start, end), 0)
            end = max(stop, end)
        show("busy_ms", busy / 1e3 / PROFILED)
        show("kernels", sum(event["cat"] == "kernel" for event in done) / PROFILED)
        totals = {}
        for event in done:
            total = totals.setdefault(event["name"], [0, 0])
            total[0] += float(event["dur"])
            total[1] += 1
        for name, (microseconds, calls) in sorted(totals.items(), key=lambda item: -item[1][0])[:SHOWN_KERNELS if kernels else 0]:
            print(f"kernel {microseconds / PROFILED:.2f} {calls / PROFILED:.1f} {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MAKERS)
    parser.add_argument("mode", choices=["plain", "fused", "compile", "reduce"])
    parser.add_argument("steps", type=int)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    wishes = parser.parse_args()
    on_gpu = wishes.device != "cpu"
    set_seed(0)
    compiled = {"compile": "default", "reduce": "reduce-overhead"}.get(wishes.mode)
    accelerator = Accelerator(cpu=not on_gpu, mixed_precision="no" if wishes.model == "mlp" else "bf16",
                              dynamo_plugin=TorchDynamoPlugin(backend="inductor", mode=compiled) if compiled else None)
    if on_gpu and accelerator.device.type != "cuda":
        parser.error("there is no GPU: give --device cpu")
    net, batches, loss_of, (kind, options), max_norm = MAKERS[wishes.model](wishes.small, accelerator.device)
    start = time.perf_counter()
    net.train()
    plain_optimizer = kind(net.parameters(), **options, **({} if wishes.mode == "plain" else {"fused": True}))
    schedule = torch.optim.lr_scheduler.LambdaLR(plain_optimizer, lambda step: max(0.0, 1 - step / 100000))
    model, optimizer, scheduler = accelerator.prepare(net, plain_optimizer, schedule)

    def step(batch):
        if wishes.mode == "reduce":
            torch.compiler.cudagraph_mark_step_begin()
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            if max_norm is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            scheduler.step()
        return loss.detach()

    show("prepare_s", time.perf_counter() - start)
    show("parameters", sum(each.numel() for each in model.parameters()))
    Measurement(step, batches, on_gpu).run(wishes.steps, wishes.kernels)


if __name__ == "__main__":
    main()
