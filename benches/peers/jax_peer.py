"""The workloads in JAX, compiled: `THREADS=1 python jax_peer.py mlp`.

The environment variable `PJRT_PLUGIN` names a plugin for the CPU to run on instead of JAX's own; `DTYPE` is the dtype of
products and attention of `gpt`, whose norms, sums and losses stay in float32, and `WIDE=1` makes it wide.
"""

import os
import sys
import time

from common import GPT, OPERATORS, bench, data, parameters, rate

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

workload = sys.argv[1]
if plugin := os.environ.get("PJRT_PLUGIN"):
    from jax._src import xla_bridge

    xla_bridge.register_plugin("plugin", library_path=plugin, options={"cpu_device_count": 1}, priority=1000)
    jax.config.update("jax_platforms", "plugin")


def array(x):
    return None if x is None else jnp.asarray(x.astype(np.int32) if x.dtype == np.int64 else x)


def cross_entropy(logits, y):
    shares = jax.nn.log_softmax(logits, -1)
    return -jnp.mean(jnp.sum(shares * jax.nn.one_hot(y, logits.shape[-1], dtype=shares.dtype), -1))


def mlp(p, x, y):
    h = jax.nn.relu(x @ p[0] + p[1])
    h = jax.nn.relu(h @ p[2] + p[3])
    return cross_entropy(h @ p[4] + p[5], y)


def tiny_mlp(p, x, y):
    h = jnp.tanh(x @ p[0] + p[1])
    h = jnp.tanh(h @ p[2] + p[3])
    return jnp.mean((h @ p[4] + p[5] - y) ** 2)


def chain(p, x, y):
    h = x
    for i in range(OPERATORS[workload]):
        h = jnp.tanh(h) if i % 3 == 0 else (h * 1.01 if i % 3 == 1 else h + p[0])
    return jnp.sum(h)


def lenet(p, x, y):
    def conv(x, k, b):
        return lax.conv_general_dilated(x, k, (1, 1), "VALID") + b[None, :, None, None]

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    h = pool(conv(pool(conv(x, p[0], p[1])), p[2], p[3])).reshape(64, 800)
    return cross_entropy(jax.nn.relu(h @ p[4] + p[5]) @ p[6] + p[7], y)


def lstm(p, x, y):
    def cell(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ p[0] + h @ p[1] + p[2], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zeros = jnp.zeros((32, 128))
    (h, _), _ = lax.scan(cell, (zeros, zeros), x)
    return jnp.mean((h - y) ** 2)


DTYPE = jnp.dtype(os.environ.get("DTYPE", "float32"))


def linear(x, w, b):
    return x.astype(DTYPE) @ w.astype(DTYPE) + b.astype(DTYPE)


def norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias


def gpt(p, x, y):
    batch, length, width, heads = (GPT[k] for k in ("batch", "length", "width", "heads"))
    h = (p[0][x] + p[1][None]).reshape(batch * length, width)
    mask = jnp.tril(jnp.ones((length, length), bool))
    for block in range(GPT["blocks"]):
        s1, b1, wq, bq, wo, bo, s2, b2, w1, c1, w2, c2 = p[2 + 12 * block : 14 + 12 * block]
        a = linear(norm(h, s1, b1), wq, bq).reshape(batch, length, 3, heads, width // heads)
        q, k, v = a.transpose(2, 0, 3, 1, 4)
        scores = jnp.where(mask, (q @ k.swapaxes(-1, -2)).astype(h.dtype) / np.sqrt(width // heads), -1e9)
        weights = jax.nn.softmax(scores, -1).astype(DTYPE)
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch * length, width)
        h = h + linear(mixed, wo, bo).astype(h.dtype)
        h = h + linear(jax.nn.gelu(linear(norm(h, s2, b2), w1, c1), approximate=True), w2, c2).astype(h.dtype)
    return cross_entropy((norm(h, p[-3], p[-2]).astype(DTYPE) @ p[-1].astype(DTYPE)).astype(h.dtype), y)


models = dict(mlp=mlp, tiny_mlp=tiny_mlp, chain_small=chain, chain_big=chain, lenet=lenet, lstm=lstm, gpt=gpt)


def update(p, x, y):
    loss, gradients = jax.value_and_grad(models[workload])(p, x, y)
    return loss, [a - rate(workload) * b for a, b in zip(p, gradients)]


values, (x, y) = [array(p) for p in parameters(workload)], map(array, data(workload))
start = time.perf_counter()
compiled = jax.jit(update, donate_argnums=0).lower(values, x, y).compile()
build_ms = (time.perf_counter() - start) * 1e3


def step():
    global values
    loss, values = compiled(values, x, y)
    jax.block_until_ready(values)
    return float(loss)


bench("jax", workload, build_ms, step)
