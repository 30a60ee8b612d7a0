"""The models of `precision` in PyTorch.

`torch_peer.py gpt2 bfloat16 1 5 64 false` trains 5 steps on one thread, by autocast, on rows of 64 words, uncompiled.
"""

import json
import resource
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, HEADS = 768, 12


class Block(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).split(WIDTH, 2)
        q, k, v = [part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self, words, causal):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, WIDTH), nn.Embedding(1024, WIDTH)
        self.blocks = nn.ModuleList([Block(causal) for _ in range(12)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x).view(-1, WIDTH), self.words.weight)


class Convolution(nn.Module):
    def __init__(self, inputs, outputs, window, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, window, stride, window // 2)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return self.norm(self.conv(x))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = Convolution(inputs, outputs, 3, stride)
        self.second = Convolution(outputs, outputs, 3, 1)
        self.shortcut = nn.Identity() if inputs == outputs else Convolution(inputs, outputs, 1, stride)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def resnet18():
    layers, channels = [Convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2)], 64
    for stage, outputs in enumerate([64, 128, 256, 512]):
        for block in range(2):
            layers.append(Residual(channels, outputs, 2 if stage > 0 and block == 0 else 1))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mobilenet_v3():
    from torchvision.models import mobilenet_v3_large

    return mobilenet_v3_large(dropout=0.0)


def main():
    name, dtype, compiled = sys.argv[1], sys.argv[2], sys.argv[6] == "true"
    threads, steps, length = map(int, sys.argv[3:6])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if name in ("resnet18", "mobilenet-v3"):
        model = resnet18() if name == "resnet18" else mobilenet_v3()
        model = model.to(memory_format=torch.channels_last)
        x = torch.rand(8, 3, 112, 112).to(memory_format=torch.channels_last)
        y = torch.randint(0, 1000, (8,))
        optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    else:
        words = 50257 if name == "gpt2" else 30522
        model = Transformer(words, name == "gpt2")
        x, y = torch.randint(0, words, (4, length)), torch.randint(0, words, (4 * length,))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    if compiled:
        model = torch.compile(model)
    times, losses = [], []
    for _ in range(steps + 1):
        start = time.time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.time() - start) * 1e3)
        losses.append(round(loss.item(), 4))
    print(json.dumps({
        "lib": "torch",
        "model": name,
        "dtype": dtype,
        "threads": threads,
        "median_ms": round(sorted(times[1:])[steps // 2], 1),
        "losses": losses,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1000000,
    }))


main()
