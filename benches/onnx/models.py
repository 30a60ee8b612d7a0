"""Runs ONNX models from Python packages in ONNX Runtime.

`models.py OUT NAME --threads N --seconds S` writes OUT/NAME.onnx, and for each size of inputs the folder OUT/NAME/I with
`input_0.pb`, ... and `output_0.pb`, ..., tensors in ONNX's format. It prints a JSON line: the names of the inputs and of
those whose values decide about shapes, and the number of sizes. Then it answers each line that it reads with the median
milliseconds of an inference of the first size, over S seconds. With `--start`, it prints the milliseconds and megabytes
from the file to the first results instead.
"""
import argparse
import glob
import json
import os
import re
import shutil
import sys
import time
from importlib.util import find_spec

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(7)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


def image(*shape):
    return {"x": floats(*shape)}


def text(n, height, width):
    """Images of dark signs of random strokes in rows on bright paper, from -1 to 1."""
    images = np.full((n, 1, height, width), 0.8, "float32")
    for image in images:
        for top in range(8, height - 28, 40):
            for left in range(8, width - 20, 20):
                sign = np.kron(RANDOM.random((7, 4)) < 0.5, np.ones((4, 4)))
                image[0, top:top + 28, left:left + 16][sign > 0] = -0.9
    noise = 0.1 * floats(n, 3, height, width)
    return {"x": (images + noise).clip(-1, 1)}


def sound(samples, batch=1):
    return {"input": 0.1 * floats(batch, samples), "state": 0.1 * floats(2, batch, 128)}


def sound_at(rate, samples, batch=1):
    return sound(samples, batch) | {"sr": np.array(rate, "int64")}


def files(*ends):
    """The beginnings of files, padded with the token 256."""
    tokens = RANDOM.integers(0, 256, (len(ends), 2048)).astype("int32")
    for row, end in zip(tokens, ends):
        row[end:1024] = 256
    return {"bytes": tokens}


def gray(width):
    """Letters as the recogniser of ddddocr gets them."""
    [letters] = text(1, 64, width).values()
    return {"input1": letters.mean(1, keepdims=True)}


def sequence(steps):
    return {"input": 0.1 * floats(steps, 576), "h": 0.1 * floats(1, 1, 128), "c": 0.1 * floats(1, 1, 128)}


OCR, SILERO = "rapidocr_onnxruntime/models/", "silero_vad/data/"
# The file in its package, and inputs of several sizes by name.
MODELS = {
    "ocr_det": (OCR + "ch_PP-OCRv4_det_infer.onnx",
                lambda: [text(1, 96, 160), text(2, 160, 224), text(1, 320, 96)]),
    "ocr_rec": (OCR + "ch_PP-OCRv4_rec_infer.onnx",
                lambda: [text(1, 48, 320), text(3, 48, 320), text(2, 48, 480)]),
    "ocr_cls": (OCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx",
                lambda: [text(1, 48, 192), text(4, 48, 192), text(2, 48, 256)]),
    "silero_vad": (SILERO + "silero_vad.onnx",
                   lambda: [sound_at(16000, 576), sound_at(16000, 576, 3), sound_at(8000, 288, 2)]),
    "silero_vad_16k_op15": (SILERO + "silero_vad_16k_op15.onnx",
                            lambda: [sound_at(16000, 576), sound_at(16000, 576, 3)]),
    "silero_vad_half": (SILERO + "silero_vad_half.onnx",
                        lambda: [sound(576), sound(576, 3)]),
    "silero_vad_ifless": (SILERO + "silero_vad_op18_ifless.onnx",
                          lambda: [sound_at(16000, 576), sound_at(16000, 576, 3), sound_at(8000, 288, 2)]),
    "silero_vad_sequence": (SILERO + "silero_vad_16k_sequence.onnx", lambda: [sequence(4), sequence(31)]),
    # All dimensions are fixed.
    "silero_vad_openvino": (SILERO + "silero_vad_openvino_16k.onnx", lambda: [sound(576)]),
    "magika": ("magika/models/*/model.onnx", lambda: [files(1024), files(1024, 500, 0)]),
    "ddddocr": ("ddddocr/common.onnx", lambda: [gray(160), gray(232)]),
    "ddddocr_det": ("ddddocr/common_det.onnx", lambda: [{"images": floats(1, 3, 416, 416)}]),
    "resnet50": (None, lambda: [image(1, 3, 224, 224), image(3, 3, 160, 192)]),
}


# Rows and columns of images for architectures of a package, where they are not 224.
SIDES = {"ultralytics": 640}


def resnet50():
    """ResNet-50 with random weights."""
    nodes, weights = [], []

    def weight(values):
        weights.append(numpy_helper.from_array(values.astype("float32"), f"w{len(weights)}"))
        return weights[-1].name

    def op(kind, inputs, **attributes):
        name = f"{kind}{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def conv(x, before, behind, size, stride=1, gain=1.0):
        filters = RANDOM.standard_normal((behind, before, size, size)) * np.sqrt(2 / (before * size * size))
        pad = size // 2
        x = op("Conv", [x, weight(filters)], strides=[stride] * 2, pads=[pad] * 4, kernel_shape=[size] * 2)
        uniform = lambda low, high: weight(RANDOM.uniform(low, high, behind))
        statistics = [uniform(0.8 * gain, 1.2 * gain), uniform(-0.1, 0.1), uniform(-0.1, 0.1), uniform(0.8, 1.2)]
        return op("BatchNormalization", [x, *statistics])

    x = op("Relu", [conv("x", 3, 64, 7, 2)])
    x = op("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    before = 64
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            y = op("Relu", [conv(x, before, width, 1)])
            y = op("Relu", [conv(y, width, width, 3, stride)])
            y = conv(y, width, 4 * width, 1, gain=0.3)
            if block == 0:
                x = conv(x, before, 4 * width, 1, stride, 0.7)
            x = op("Relu", [op("Add", [y, x])])
            before = 4 * width
    x = op("Flatten", [op("GlobalAveragePool", [x])])
    x = op("Gemm", [x, weight(RANDOM.standard_normal((1000, 2048)) / 45), weight(RANDOM.standard_normal(1000))],
           transB=1)
    inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    scores = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", 1000])
    graph = helper.make_graph(nodes, "resnet50", [inputs], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def export(name, path):
    """Writes an architecture of a package of PyTorch, with random weights and an open batch."""
    import torch
    package, architecture = name.split(".")
    torch.manual_seed(0)
    if package == "timm":
        import timm
        model = timm.create_model(architecture, pretrained=False)
    elif package == "ultralytics":
        from ultralytics.nn.tasks import DetectionModel
        model = DetectionModel(f"{architecture}.yaml", verbose=False)
        model.model[-1].export, model.model[-1].format = True, "onnx"
    else:
        import torchvision
        model = getattr(torchvision.models, architecture)(weights=None)
    for module in model.eval().modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for values, low, high in [(module.running_mean, -.1, .1), (module.running_var, .8, 1.2),
                                      (module.weight.data, .8, 1.2), (module.bias.data, -.1, .1)]:
                values.uniform_(low, high)
    if getattr(model, "get_classifier", None) and not model.get_classifier().weight.any():
        torch.nn.init.normal_(model.get_classifier().weight, std=.02)
    side = SIDES.get(package, 224)
    torch.onnx.export(model, torch.zeros(1, 3, side, side), path, input_names=["x"], dynamo=False, opset_version=17,
                      dynamic_axes={"x": {0: "n"}}, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.PRESERVE)


def write(name, path):
    """Writes the file of a model."""
    if name == "resnet50":
        return onnx.save(resnet50(), path)
    if "." in name:
        return export(name, path)
    package, rest = MODELS[name][0].split("/", 1)
    # Without importing the package, which would need more packages.
    folder = find_spec(package).submodule_search_locations[0]
    shutil.copy(glob.glob(f"{folder}/{rest}")[0], path)


def median_ms(step, seconds):
    step()
    times = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e3


def session_of(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def status_mb(key):
    with open("/proc/self/status") as file:
        return int(re.search(rf"^{key}:\s+(\d+) kB", file.read(), re.M)[1]) / 1024


def start(name, out, threads):
    """Time and memory from a file to the first results."""
    files = sorted(glob.glob(f"{out}/{name}/0/input_*.pb"), key=lambda path: int(path[:-3].rsplit("_", 1)[1]))
    inputs = [numpy_helper.to_array(onnx.load_tensor(path)) for path in files]
    before = status_mb("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    begin = time.perf_counter()
    session = session_of(f"{out}/{name}.onnx", threads)
    session.run(None, {known.name: x for known, x in zip(session.get_inputs(), inputs)})
    ms = (time.perf_counter() - begin) * 1e3
    print(json.dumps({
        "ms": ms, "resident_mb": status_mb("VmRSS") - before, "peak_mb": status_mb("VmHWM") - before
    }), flush=True)


def run(name, out, threads, seconds):
    path = f"{out}/{name}.onnx"
    if not os.path.exists(path):
        write(name, path)
    session = session_of(path, threads)
    side = SIDES.get(name.split(".")[0], 224)
    sizes = [image(1, 3, side, side), image(2, 3, side, side)] if "." in name else MODELS[name][1]()
    for i, feeds in enumerate(sizes):
        folder = f"{out}/{name}/{i}"
        os.makedirs(folder, exist_ok=True)
        results = session.run(None, feeds)
        for kind, tensors in [("input", feeds.values()), ("output", results)]:
            for j, x in enumerate(tensors):
                with open(f"{folder}/{kind}_{j}.pb", "wb") as file:
                    file.write(numpy_helper.from_array(x).SerializeToString())
    names = list(sizes[0])
    # The sampling rate decides about shapes.
    values = [name for name in names if name == "sr"]
    print(json.dumps({"inputs": names, "values": values, "sizes": len(sizes)}), flush=True)
    for _ in sys.stdin:
        print(median_ms(lambda: session.run(None, sizes[0]), seconds), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("name", help="one of MODELS, `torchvision.NAME`, `timm.NAME` or `ultralytics.NAME`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--start", action="store_true", help="measure the start alone, on written inputs")
    args = parser.parse_args()
    if args.start:
        start(args.name, args.out, args.threads)
    else:
        run(args.name, args.out, args.threads, args.seconds)
