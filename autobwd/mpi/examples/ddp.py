"""The figures of `speed` in PyTorch: DistributedDataParallel with Gloo, two processes of one thread; one of two threads.

`python ddp.py SECONDS` prints a JSON object a line.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

SECONDS = float(sys.argv[1])


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def forward(self, x, y):
        return F.cross_entropy(self.layers(x), y)

    @staticmethod
    def batch(ranks):
        return torch.rand(128 // ranks, 784), torch.randint(10, (128 // ranks,))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(128), nn.LayerNorm(128)])
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, h):
        q, k, v = self.qkv(self.norms[0](h)).reshape(-1, 64, 3, 4, 32).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        h = h + self.out(mixed.reshape(-1, 64, 128))
        return h + self.down(F.gelu(self.up(self.norms[1](h)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(256, 128)
        self.places = nn.Parameter(torch.rand(64, 128))
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 256, bias=False)

    def forward(self, x, y):
        h = self.blocks(self.words(x) + self.places)
        return F.cross_entropy(self.head(self.norm(h)).reshape(-1, 256), y)

    @staticmethod
    def batch(ranks):
        return torch.randint(256, (8 // ranks, 64)), torch.randint(256, (8 // ranks * 64,))


def measure(name, ranks, threads, call):
    start = time.perf_counter()
    for _ in range(3):
        call()
    calls = torch.tensor([max(10, int(SECONDS / (time.perf_counter() - start) * 3))])
    if ranks > 1:
        dist.broadcast(calls, 0)
    times = []
    for _ in range(int(calls)):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    if ranks == 1 or dist.get_rank() == 0:
        ms = statistics.median(times) * 1e3
        print(json.dumps({"name": "torch_" + name, "processes": ranks, "threads": threads, "ms": ms}), flush=True)


def workloads(ranks, threads):
    for name, Model in (("mlp", Mlp), ("gpt", Gpt)):
        torch.manual_seed(0)
        model = Model()
        if ranks > 1:
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = Model.batch(ranks)

        def step():
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()

        measure(name, ranks, threads, step)


def rank(number):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=2)
    for name, numbers in (("allreduce_1kB", 256), ("allreduce_4MB", 1 << 20)):
        x = torch.zeros(numbers)
        measure(name, 2, 1, lambda: dist.all_reduce(x))
    workloads(2, 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    context = torch.multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank, args=(number,)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    torch.set_num_threads(2)
    workloads(1, 2)
