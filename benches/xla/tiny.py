"""The time of a compiled addition of single numbers in JAX: with and without a copy of the result to the host."""

import json
import time

import jax
import jax.numpy as jnp

add = jax.jit(lambda x, y: x + y)
x, y = jnp.zeros((1,), jnp.float32), jnp.ones((1,), jnp.float32)


def median_us(call, calls=20_000):
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return sorted(times)[len(times) // 2]


add(x, y)
run = median_us(lambda: jax.block_until_ready(add(x, y)))
print(json.dumps(dict(run_us=run, fetch_us=median_us(lambda: float(add(x, y)[0])))))
