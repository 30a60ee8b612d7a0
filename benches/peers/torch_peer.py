"""The workloads in PyTorch, in eager mode or compiled: `THREADS=1 python torch_peer.py eager mlp` (or `compile`).

`eager tape` times rows of operators on tensors of one element.
"""

import sys
import time

from common import GPT, OPERATORS, THREADS, bench, data, parameters, rate, rows

import torch
import torch.nn.functional as F

torch.set_num_threads(THREADS)
mode, workload = sys.argv[1], sys.argv[2]


def tensor(x):
    return None if x is None else torch.from_numpy(x)


def mlp(p, x, y):
    h = torch.relu(torch.addmm(p[1], x, p[0]))
    h = torch.relu(torch.addmm(p[3], h, p[2]))
    return F.cross_entropy(torch.addmm(p[5], h, p[4]), y)


def tiny_mlp(p, x, y):
    h = torch.tanh(torch.addmm(p[1], x, p[0]))
    h = torch.tanh(torch.addmm(p[3], h, p[2]))
    return F.mse_loss(torch.addmm(p[5], h, p[4]), y)


def chain(p, x, y):
    h = x
    for i in range(OPERATORS[workload]):
        h = torch.tanh(h) if i % 3 == 0 else (h * 1.01 if i % 3 == 1 else h + p[0])
    return h.sum()


def lenet(p, x, y):
    h = F.max_pool2d(F.conv2d(x, p[0], p[1]), 2)
    h = F.max_pool2d(F.conv2d(h, p[2], p[3]), 2).reshape(64, 800)
    return F.cross_entropy(torch.addmm(p[7], torch.relu(torch.addmm(p[5], h, p[4])), p[6]), y)


layer = torch.nn.LSTM(64, 128)


def lstm(p, x, y):
    return F.mse_loss(layer(x)[0][-1], y)


def gpt(p, x, y):
    batch, length, width, heads = (GPT[k] for k in ("batch", "length", "width", "heads"))
    h = (F.embedding(x, p[0]) + p[1]).reshape(batch * length, width)
    for block in range(GPT["blocks"]):
        s1, b1, wq, bq, wo, bo, s2, b2, w1, c1, w2, c2 = p[2 + 12 * block : 14 + 12 * block]
        a = torch.addmm(bq, F.layer_norm(h, (width,), s1, b1), wq)
        q, k, v = a.reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        h = h + torch.addmm(bo, mixed.reshape(batch * length, width), wo)
        hidden = F.gelu(torch.addmm(c1, F.layer_norm(h, (width,), s2, b2), w1), approximate="tanh")
        h = h + torch.addmm(c2, hidden, w2)
    return F.cross_entropy(F.layer_norm(h, (width,), p[-3], p[-2]) @ p[-1], y)


def row(operator, length):
    x, w = (torch.tensor([number], requires_grad=True) for number in (0.5, 1.01))
    start = time.perf_counter()
    y = x
    for _ in range(length):
        y = operator(y, w)
    recorded = time.perf_counter()
    y.backward()
    del y
    return recorded - start, time.perf_counter() - recorded


if workload == "tape":
    operators = dict(elementwise_add=lambda y, w: y + w, elementwise_sub=lambda y, w: y - w)
    operators |= dict(elementwise_mul=lambda y, w: y * w, elementwise_div=lambda y, w: y / w)
    operators |= dict(scale=lambda y, w: y * 1.01, tanh=lambda y, w: torch.tanh(y))
    operators |= dict(sigmoid=lambda y, w: torch.sigmoid(y), exp=lambda y, w: torch.exp(y))
    operators |= dict(sin=lambda y, w: torch.sin(y), relu=lambda y, w: torch.relu(y))
    rows("torch", operators, row)
    sys.exit()

values, (x, y) = [tensor(p).requires_grad_() for p in parameters(workload)], map(tensor, data(workload))
if workload == "lstm":
    values = [layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0]
    # One bias is trained; another would be the same again, at twice the rate.
    torch.nn.init.zeros_(layer.bias_hh_l0.requires_grad_(False))


@torch.no_grad()
def reset():
    first = [tensor(p) for p in parameters(workload)]
    if workload == "lstm":
        first = [first[0].T, first[1].T, first[2]]
    for value, first in zip(values, first):
        value.copy_(first)


models = dict(mlp=mlp, tiny_mlp=tiny_mlp, chain_small=chain, chain_big=chain, lenet=lenet, lstm=lstm, gpt=gpt)
start = time.perf_counter()
model = models[workload] if mode == "eager" else torch.compile(models[workload])


def step():
    # Faster than `torch.optim.SGD` on small models.
    for value in values:
        value.grad = None
    loss = model(values, x, y)
    loss.backward()
    with torch.no_grad():
        torch._foreach_sub_(values, [value.grad for value in values], alpha=rate(workload))
    return float(loss.detach())


step()
build_ms = (time.perf_counter() - start) * 1e3
reset()
bench("torch_" + mode, workload, build_ms, step)
