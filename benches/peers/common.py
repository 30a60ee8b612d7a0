"""Data, initial values and timing of the workloads, for peers written in Python.

Everything comes from a portable integer hash, the same as in benches/common/workload/data.rs.
"""

import json
import os
import time

THREADS = int(os.environ.get("THREADS", "2"))
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = str(THREADS)

import numpy as np

RATE = 0.01
CHAIN_RATE = 1e-5
OPERATORS = {"chain_small": 1000, "chain_big": 20}
GPT = dict(batch=8, length=64, width=128, heads=4, words=256, blocks=2)
if os.environ.get("WIDE") == "1":
    GPT = dict(batch=16, length=512, width=1024, heads=16, words=32768, blocks=8)


def hashed(seed, n):
    mask = np.uint64(0xFFFFFFFF)
    x = np.arange(n, dtype=np.uint64) * np.uint64(2654435761)
    x = (x + np.uint64((seed * 40503 + 12345) & 0xFFFFFFFF)) & mask
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(0x45D9F3B)) & mask
    return x ^ (x >> np.uint64(16))


def numbers(seed, shape, scale):
    """Numbers within ±scale."""
    x = hashed(seed, int(np.prod(shape))).astype(np.float64) / 4294967296.0 * 2.0 - 1.0
    return (x * scale).astype(np.float32).reshape(shape)


def integers(seed, shape, bound):
    """Integers below a bound."""
    x = (hashed(seed, int(np.prod(shape))) >> np.uint64(8)) % np.uint64(bound)
    return x.astype(np.int64).reshape(shape)


def weights(seed, shape, fan_in):
    return numbers(seed, shape, 1 / np.sqrt(fan_in))


def zeros(*shape):
    return np.zeros(shape, np.float32)


def ones(*shape):
    return np.ones(shape, np.float32)


def layers(first, sizes):
    """Weights and biases of linear layers, the first with that seed."""
    out = []
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        out += [weights(first + i, (inputs, outputs), inputs), zeros(outputs)]
    return out


def parameters(workload):
    if workload == "mlp":
        return layers(1, (784, 512, 512, 10))
    if workload == "tiny_mlp":
        return layers(1, (4, 8, 8, 1))
    if workload == "chain_small":
        return [numbers(1, (16,), 0.1)]
    if workload == "chain_big":
        return [numbers(1, (1_000_000,), 0.1)]
    if workload == "lenet":
        filters = [weights(1, (20, 1, 5, 5), 25), zeros(20), weights(2, (50, 20, 5, 5), 500), zeros(50)]
        return filters + layers(3, (800, 500, 10))
    if workload == "lstm":
        return [weights(1, (64, 512), 64), weights(2, (128, 512), 128), zeros(512)]
    width, words = GPT["width"], GPT["words"]
    out = [numbers(1, (words, width), 0.1), numbers(2, (GPT["length"], width), 0.1)]
    for block in range(GPT["blocks"]):
        seed = 10 * (block + 1)
        out += [ones(width), zeros(width), weights(seed, (width, 3 * width), width), zeros(3 * width)]
        out += [weights(seed + 1, (width, width), width), zeros(width)]
        out += [ones(width), zeros(width), weights(seed + 2, (width, 4 * width), width), zeros(4 * width)]
        out += [weights(seed + 3, (4 * width, width), 4 * width), zeros(width)]
    return out + [ones(width), zeros(width), weights(3, (width, words), width)]


def data(workload):
    """Inputs and targets."""
    if workload == "mlp":
        return numbers(100, (128, 784), 1.0), integers(101, (128,), 10)
    if workload == "tiny_mlp":
        return numbers(100, (4, 4), 1.0), numbers(101, (4, 1), 1.0)
    if workload == "chain_small":
        return numbers(100, (16,), 1.0), None
    if workload == "chain_big":
        return numbers(100, (1_000_000,), 1.0), None
    if workload == "lenet":
        return numbers(100, (64, 1, 28, 28), 1.0), integers(101, (64,), 10)
    if workload == "lstm":
        return numbers(100, (32, 32, 64), 1.0), numbers(101, (32, 128), 0.5)
    batch, length, words = (GPT[k] for k in ("batch", "length", "words"))
    return integers(100, (batch, length), words), integers(101, (batch * length,), words)


def rate(workload):
    return CHAIN_RATE if workload.startswith("chain") else RATE


def resident_mb():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def bench(lib, workload, build_ms, step):
    """Times steps as benches/common/timing.rs does; `step` returns the loss."""
    seconds = float(os.environ.get("SECONDS", "2"))
    loss1 = loss10 = step()
    for _ in range(9):
        loss10 = step()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < 0.3 or count < 2:
        step()
        count += 1
    times, start = [], time.perf_counter()
    while (time.perf_counter() - start < seconds and len(times) < 50_000) or len(times) < 10:
        one = time.perf_counter()
        step()
        times.append((time.perf_counter() - one) * 1e3)
    times.sort()
    at = lambda share: round(times[int(len(times) * share)], 5)
    line = dict(lib=lib, workload=workload, threads=THREADS, median_ms=at(0.5), min_ms=at(0.0), p90_ms=at(0.9))
    line |= dict(reps=len(times), peak_rss_mb=round(resident_mb(), 1), build_ms=round(build_ms, 1))
    print(json.dumps(line | dict(loss1=round(loss1, 8), loss10=round(loss10, 8))), flush=True)


def rows(lib, operators, row, length=1000, rounds=201):
    """Times rows of operators as benches/common/timing.rs does; `row` returns the seconds of recording and of the backward pass."""
    middle = lambda numbers: sorted(numbers)[len(numbers) // 2]

    def show(name, forward, backward, both):
        line = dict(lib=lib, operator=name, forward_ns=round(forward, 1), backward_ns=round(backward, 1))
        print(json.dumps(line | dict(ns=round(both, 1))), flush=True)

    figures = []
    for name, operator in operators.items():
        times = zip(*(row(operator, length) for _ in range(rounds)))
        forward, backward = (middle(seconds) * 1e9 / length for seconds in times)
        figures.append((forward, backward, forward + backward))
        show(name, *figures[-1])
    show("median", *map(middle, zip(*figures)))
