"""A model of PyTorch is exported, trained by autobwd within a memory budget, and loaded back.

    pip install autobwd torch onnx onnxscript
    python fine_tune.py [--steps 10] [--batch 32] [--budget 180MB]

PyTorch trains a copy on the same data. Each training is a process of its own, whose peak of memory is printed, with the
losses of both; the outputs of the model that is loaded back are compared with the outputs of autobwd.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

SIZE, CLASSES, RATE = 48, 10, 0.005


def network():
    """A residual network of convolutions."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, 3, padding=1)
            self.norm = nn.GroupNorm(4, channels)

        def forward(self, x):
            return x + self.norm(self.conv(x)).relu()

    class Network(nn.Module):
        def __init__(self, channels=32, depth=16):
            super().__init__()
            self.stem = nn.Conv2d(3, channels, 3, padding=1)
            self.blocks = nn.Sequential(*[Block(channels) for _ in range(depth)])
            self.head = nn.Linear(channels, CLASSES)

        def forward(self, x):
            return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    return Network()


def data(options):
    """Random images, whose classes show in their brightness."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, options.batch)
    images = random.standard_normal([options.batch, 3, SIZE, SIZE], np.float32)
    return images + labels[:, None, None, None].astype(np.float32) / CLASSES, labels


def peak():
    """The peak of this process's memory in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def export(folder):
    import torch

    torch.manual_seed(0)
    model = network()
    torch.save(model.state_dict(), folder / "model.pt")
    batch = torch.export.Dim("batch")
    example = (torch.zeros(2, 3, SIZE, SIZE),)
    # Without `optimize=False`, the exporter folds parameters, which are then no parameters.
    torch.onnx.export(
        model,
        example,
        folder / "model.onnx",
        input_names=["images"],
        output_names=["scores"],
        dynamic_shapes=({0: batch},),
        external_data=False,
        optimize=False,
        verbose=False,
    )


def train_with_pytorch(folder, options):
    import torch

    torch.set_num_threads(options.threads)
    model = network()
    model.load_state_dict(torch.load(folder / "model.pt"))
    images, labels = map(torch.from_numpy, data(options))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses, start = [], time.monotonic()
    for _ in range(options.steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (time.monotonic() - start) / options.steps, peak()


def train_with_autobwd(folder, options):
    import autobwd

    images, labels = data(options)
    model = autobwd.load(folder / "model.onnx", threads=options.threads)
    shapes = {"images": images.shape, "labels": labels.shape}
    loss = model.loss("cross_entropy", target="labels")
    step = loss.train_step(f"sgd:{RATE}", budget=options.budget, shapes=shapes)
    start = time.monotonic()
    losses = [float(step(images, labels)) for _ in range(options.steps)]
    seconds = (time.monotonic() - start) / options.steps
    used = peak()
    np.savez(folder / "trained.npz", **model.state_dict())
    np.save(folder / "scores.npy", model(images[:4]))
    return losses, seconds, used


def load_back(folder, options):
    """The largest deviation of PyTorch's outputs from autobwd's, after training."""
    import torch

    model = network()
    trained = {name: torch.from_numpy(value) for name, value in np.load(folder / "trained.npz").items()}
    names = model.state_dict().keys()
    model.load_state_dict({name: trained[name] for name in names})
    with torch.no_grad():
        scores = model(torch.from_numpy(data(options)[0][:4]))
    return float((scores - torch.from_numpy(np.load(folder / "scores.npy"))).abs().max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--budget", default="180MB")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)

        def in_own_process(function, *arguments):
            with ProcessPoolExecutor(1, context) as process:
                return process.submit(function, folder, *arguments).result()

        in_own_process(export)
        peaks = []
        for name, train in [("PyTorch", train_with_pytorch), ("autobwd", train_with_autobwd)]:
            losses, seconds, used = in_own_process(train, options)
            shown = " ".join(f"{loss:.4f}" for loss in (losses[0], losses[len(losses) // 2], losses[-1]))
            print(f"{name}: losses {shown}, {seconds:.2f} s a step, peak {used:.0f} MB")
            peaks.append(used)
        print(f"autobwd takes {peaks[1] / peaks[0]:.2f} of the memory")
        deviation = in_own_process(load_back, options)
        print(f"loaded back: outputs differ by {deviation:.1e} at most")
        assert deviation < 1e-3


if __name__ == "__main__":
    main()
