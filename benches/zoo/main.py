"""Exports architectures to ONNX with open dimensions, and checks what autobwd makes of them.

    python main.py FOLDER --autobwd COMMAND [--only NAME ...] [--exporter dynamo|script]

Files that are in the folder are not exported again. For each: whether the file loads as it is; outputs at two sizes;
gradients of all parameters, which parameters have none, and which constants are trained; the losses of five steps of
SGD; the file written back, read and run again. One JSON line each, and a summary. The loss is the mean square of the
output.

SGD trains the parameters that the file has as they are, in PyTorch, too. An exporter may compute an initializer from
several parameters, such as a table from the weights of a small network; to train that is another training.

Differences are relative to the largest magnitude of what PyTorch computes in float64; a result is right below 1e-3
(gradients, by their norms, below 1e-2), or below ten times the difference of PyTorch's float32.

Needs torch, torchvision, transformers, timm, onnx, onnxruntime, onnxscript and numpy. A file of which ONNX Runtime computes
something else than PyTorch is not counted: its exporter has failed.
"""

import argparse
import ast
import contextlib
import copy
import json
import logging
import os
import pathlib
import subprocess
import warnings

import numpy
import onnx
import onnxruntime
import torch

from architectures import ARCHITECTURES

# The learning rate; where gradients are large, the first step lowers the loss by this part of it, so that no training
# diverges.
RATE, PART = 1e-4, 1e-2


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        y = self.model(*inputs)
        return y, y.square().mean()


def export(name, exporter, folder):
    """Writes the file, and what PyTorch computes at two sizes: feeds, and what `reference` returns."""
    make, inputs, dims = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = WithLoss(make()).eval()
    # Exporters write equal tensors once; no two of these are equal.
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.dtype == torch.float32:
                tensor.mul_(1 + 0.1 * torch.rand_like(tensor))
                if tensor.dim() < 2 or not tensor.any():
                    tensor.add_(0.01 * torch.rand_like(tensor))
    names = [f"x{i}" for i in range(len(dims))]
    options = dict(input_names=names, output_names=["y", "loss"])
    if exporter == "script":
        options |= dict(dynamo=False, dynamic_axes=dict(zip(names, dims)), opset_version=17)
        options |= dict(do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE)
    else:
        dynamic = torch.export.Dim.DYNAMIC
        shapes = tuple({axis: dynamic for axis in axes} for axes in dims)
        # Optimised files have no batch normalisations.
        plain = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in model.modules())
        options |= dict(dynamo=True, dynamic_shapes=(shapes,), optimize=not plain)
    stem = folder / f"{name}-{exporter}"
    torch.onnx.export(model, tuple(inputs(0)), stem.with_suffix(".onnx"), **options)
    trained = {p for p, _ in parameters(stem.with_suffix(".onnx")).values()}
    for size in range(2):
        torch.manual_seed(size)
        feeds = inputs(size)
        numpy.savez(f"{stem}-{size}.npz", **dict(zip(names, (feed.numpy() for feed in feeds))))
        # In float64 what is expected, and in float32 how far PyTorch is from it.
        wide = [feed.double() if feed.is_floating_point() else feed for feed in feeds]
        steps = 5 if size == 1 else 0
        expected = reference(copy.deepcopy(model).double(), wide, trained, steps)
        session = onnxruntime.InferenceSession(stem.with_suffix(".onnx"))
        if not difference(session.run(["y"], dict(numpy.load(f"{stem}-{size}.npz")))[0], expected["y"]) < 1e-3:
            raise ValueError("ONNX Runtime computes something else than PyTorch")
        numpy.savez(f"{stem}-{size}.float64.npz", **expected)
        peer = reference(copy.deepcopy(model), feeds, trained, steps, expected["rate"])
        numpy.savez(f"{stem}-{size}.float32.npz", **peer)


def reference(model, feeds, trained, steps, rate=None):
    """The output, the gradients of the parameters, and the losses of steps that train some of them, by name."""
    y, loss = model(*feeds)
    loss.backward()
    found = {"y": y.detach().numpy()}
    found |= {f"{n}@GRAD": p.grad.clone().numpy() for n, p in model.named_parameters(remove_duplicate=False) if p.grad is not None}
    # A parameter with two names is trained once.
    weights = {id(p): p for n, p in model.named_parameters(remove_duplicate=False) if n in trained}
    weights = [p for p in weights.values() if p.grad is not None]
    if rate is None:
        square = sum(p.grad.square().sum().item() for p in weights)
        rate = min(RATE, PART * loss.item() / square) if square > 0 else RATE
    optimizer, losses = torch.optim.SGD(weights, rate), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*feeds)[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return found | {"losses": numpy.array(losses), "rate": rate}


def difference(actual, expected, floor=0.0, size=lambda x: numpy.abs(x).max()):
    """The size of the difference, relative to the size of what is expected, or to `floor`."""
    if actual.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    scale = max(size(expected), floor)
    if not numpy.isfinite(scale):
        return 0.0 if (numpy.isfinite(actual) == numpy.isfinite(expected)).all() else float("inf")
    return float(size(actual - expected) / (scale if scale > 0 else 1))


class Failure(Exception):
    pass


def command(autobwd, *args):
    run = subprocess.run([autobwd, *map(str, args)], capture_output=True, text=True)
    if run.returncode:
        raise Failure(run.stderr.strip() or f"exit status {run.returncode}")
    return run.stdout


def outputs(autobwd, model, feeds, *args):
    out = model.with_suffix(".out.npz")
    command(autobwd, "run", model, "--feeds", feeds, "--out", out, *args)
    return dict(numpy.load(out))


@contextlib.contextmanager
def quiet(log):
    """Writes standard output and standard error to a file."""
    kept = [os.dup(fd) for fd in (1, 2)]
    with open(log, "a") as file:
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        for fd, copy_ in zip((1, 2), kept):
            os.dup2(copy_, fd)
            os.close(copy_)


def check(name, exporter, folder, autobwd):
    result = {"name": name, "exporter": exporter}
    path = folder / f"{name}-{exporter}.onnx"
    feeds = [folder / f"{path.stem}-{size}.npz" for size in range(2)]
    if not feeds[1].with_suffix(".float32.npz").exists():
        try:
            with quiet(folder / "exporter.log"):
                export(name, exporter, folder)
        except Exception as error:
            return result | {"exported": str(error).splitlines()[0][:200]}
    kinds = [".float64.npz", ".float32.npz"]
    references = [[dict(numpy.load(f.with_suffix(kind))) for kind in kinds] for f in feeds]

    def attempt(key, action):
        try:
            result[key] = action()
        except Failure as error:
            result[key] = str(error)
        return isinstance(result[key], (bool, float))

    def compare(names, found, expected, peer, bound=1e-3, **size):
        """The largest difference, unless one is not right."""
        # A gradient that is zero but for rounding, such as of the biases of keys, is compared to the others.
        floor = 1e-6 * max((numpy.linalg.norm(expected[name]) for name in names), default=0.0)
        largest = 0.0
        for name in names:
            ours, theirs = (difference(values[name], expected[name], floor, **size) for values in (found, peer))
            largest = max(largest, ours)
            # NaN is not below the bound either.
            if not ours < max(bound, 10 * theirs):
                raise Failure(f"{name} differs by {ours:.2g}")
        return largest

    def at_two_sizes(model):
        return max(compare(["y"], outputs(autobwd, model, f), *r) for f, r in zip(feeds, references))

    weights, program = path.with_suffix(".safetensors"), path.with_suffix(".json")

    def gradients():
        written = path.with_suffix(".grad.json")
        command(autobwd, "convert", path, program, "--save", weights)
        command(autobwd, "grad", program, "--loss", "loss", "-o", written)
        have = {v["name"] for v in variables(json.loads(written.read_text()))}
        # Names of gradients there, with what PyTorch calls them, and whether the exporter has transposed the parameter.
        names = {f"{n}@GRAD": (f"{p}@GRAD", t) for n, (p, t) in parameters(path).items() if f"{p}@GRAD" in references[0][0]}
        result["lost"] = [n[:-5] for n in names if n not in have]
        trained = {v["name"] for v in variables(json.loads(program.read_text())) if v.get("is_parameter")}
        result["constants"] = sorted(trained - {n[:-5] for n in names} - folded(path))
        names = {n: of for n, of in names.items() if n in have}
        fetches = [a for n in names for a in ("--fetch", n)]

        def by_parameter(found):
            """Exporters untie parameters: their gradients add up."""
            total = {}
            for n, (p, t) in names.items():
                total[p] = total.get(p, 0.0) + (found[n].T if t else found[n])
            return total

        largest = 0.0
        for f, r in zip(feeds, references):
            found = by_parameter(outputs(autobwd, written, f, "--weights", weights, *fetches))
            # By norms: a rectifier near 0 turns single elements.
            largest = max(largest, compare(found, found, *r, bound=1e-2, size=numpy.linalg.norm))
            result["compared"] = len(found)
        return largest

    def steps():
        written, startup = path.with_suffix(".step.json"), path.with_suffix(".startup.json")
        chosen = [n for n, (p, _) in parameters(path).items() if f"{p}@GRAD" in references[1][0]]
        trained = [a for n in chosen for a in ("--parameters", n)]
        optimizer = ["--optimizer", f"sgd:{float(references[1][0]['rate'])}", "--startup", startup]
        command(autobwd, "grad", program, "--loss", "loss", *trained, *optimizer, "-o", written)
        run = ["--startup", startup, "--weights", weights, "--feeds", feeds[1], "--steps", 5, "--fetch", "loss"]
        lines = map(json.loads, command(autobwd, "run", written, *run).splitlines())
        losses = [float(line["scalars"]["loss"]) for line in lines if "scalars" in line]
        return compare(["losses"], {"losses": numpy.array(losses)}, *references[1])

    def again():
        written = path.with_suffix(".again.onnx")
        command(autobwd, "convert", path, written, "--fetch", "y")
        return at_two_sizes(written)

    if attempt("loads", lambda: bool(command(autobwd, "show", path))) and attempt("outputs", lambda: at_two_sizes(path)):
        attempt("gradients", gradients)
        attempt("steps", steps)
        attempt("again", again)
    return result


def parameters(path):
    """The parameters of the module by the names of initializers, and whether they are transposed."""
    graph = onnx.load(path, load_external_data=False).graph
    found = {tensor.name: (tensor.name, False) for tensor in graph.initializer}
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for name, sources in folded_sources(graph):
        # Optimised files have the transposed weights of products.
        if len(sources) == 1 and "." in sources[0] and ranks.get(name) == 2:
            found[name] = (sources[0], True)
    return found


def folded(path):
    """The initializers that the exporter has computed from values of the module."""
    graph = onnx.load(path, load_external_data=False).graph
    return {name for name, sources in folded_sources(graph) if any("." in source for source in sources)}


def folded_sources(graph):
    for info in graph.value_info:
        listed = {pair.key: pair.value for pair in info.metadata_props}.get("pkg.onnxscript.optimizer.folded_from")
        if listed:
            yield info.name, ast.literal_eval(listed)


def variables(program):
    return [v for block in program["blocks"] for v in block["vars"]]


parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--autobwd", required=True)
parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES))
parser.add_argument("--exporter", choices=["dynamo", "script"])
args = parser.parse_args()
args.folder.mkdir(parents=True, exist_ok=True)
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

results = []
for name in args.only:
    for exporter in [args.exporter] if args.exporter else ["dynamo", "script"]:
        results.append(check(name, exporter, args.folder, args.autobwd))
        print(json.dumps(results[-1]), flush=True)
exported = [r for r in results if "exported" not in r]
right = {key: sum(isinstance(r.get(key), float) for r in exported) for key in ["outputs", "gradients", "steps", "again"]}
loads = sum(r["loads"] is True for r in exported)
print(json.dumps({"architectures": len(results), "exported": len(exported), "loads": loads} | right))
