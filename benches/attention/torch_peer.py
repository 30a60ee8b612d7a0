"""Attention in PyTorch: `torch_peer.py 4096 1 3` for sequences of 4,096, one thread and three steps."""

import json
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F

length, threads, steps = map(int, sys.argv[1:4])
torch.set_num_threads(threads)
q, k, v = (torch.rand(1, length, 8, 64) - 0.5 for _ in range(3))
q, k, v = (x.transpose(1, 2).requires_grad_() for x in (q, k, v))


def forward():
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def both():
    q.grad = k.grad = v.grad = None
    out = forward()
    out.backward(torch.ones_like(out))


def median_ms(call):
    times = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


before = peak_bytes()
both_ms = median_ms(both)
measured_bytes = peak_bytes() - before
with torch.no_grad():
    forward_ms = median_ms(forward)
print(json.dumps({"forward_ms": forward_ms, "both_ms": both_ms, "measured_bytes": measured_bytes}))
