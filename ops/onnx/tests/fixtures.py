"""Writes the models of `tests/models` and of the command's examples, with inputs and results of ONNX Runtime.

Run with `pip install onnx==1.22.0 onnxruntime==1.32.0`: python3 fixtures.py models ../../../ops/cli/tests/cmd/onnx.in
"""
import json
import os
import struct
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

models, examples = sys.argv[1:3]
draw = np.random.default_rng(7)
F32, I64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def weight(name, *dims):
    return numpy_helper.from_array((draw.normal(size=dims) * 0.5).astype(np.float32), name)


def known(name, values):
    return numpy_helper.from_array(np.array(values), name)


def model(nodes, inputs, outputs, initializers=(), name="model"):
    def infos(values):
        return [helper.make_tensor_value_info(name, ty, dims) for name, ty, dims in values]

    graph = helper.make_graph(nodes, name, infos(inputs), infos(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(folder, name, made, check=True):
    if check:
        onnx.checker.check_model(made)
    with open(os.path.join(folder, f"{name}.onnx"), "wb") as file:
        file.write(made.SerializeToString())


def save_safetensors(path, arrays):
    """The format of https://huggingface.co/docs/safetensors, without its package."""
    names = {np.dtype("float32"): "F32", np.dtype("int64"): "I64"}
    header, data = {}, b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": [len(data), end]}
        data += np.ascontiguousarray(array).tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def results(name, inputs, run=""):
    """Writes inputs and what ONNX Runtime computes from them."""
    session = onnxruntime.InferenceSession(os.path.join(models, f"{name}.onnx"))
    outputs = session.run(None, inputs)
    arrays = {f"in.{i}": array for i, array in enumerate(inputs.values())}
    arrays |= {f"out.{i}": array for i, array in enumerate(outputs)}
    save_safetensors(os.path.join(models, f"{name}{run}.safetensors"), arrays)


# Convolutions, normalization, pooling; the batch and the size of images are open.
images = model(
    [
        node("Conv", ["x", "first.weight"], ["first"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["first", "norm.scale", "norm.bias", "norm.mean", "norm.variance"], ["norm"]),
        node("Relu", ["norm"], ["relu"]),
        node("MaxPool", ["relu"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["pool", "second.weight", "second.bias"], ["second"], group=2, strides=[2, 2]),
        node("GlobalAveragePool", ["second"], ["mean"]),
        node("Flatten", ["mean"], ["features"]),
        node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], transB=1),
        node("Softmax", ["logits"], ["scores"]),
    ],
    [("x", F32, ["N", 1, "H", "W"])],
    [("scores", F32, ["N", 3])],
    [
        weight("first.weight", 4, 1, 3, 3),
        weight("norm.scale", 4),
        weight("norm.bias", 4),
        weight("norm.mean", 4),
        numpy_helper.from_array(np.full(4, 0.8, np.float32), "norm.variance"),
        weight("second.weight", 6, 2, 3, 3),
        weight("second.bias", 6),
        weight("head.weight", 3, 6),
        weight("head.bias", 3),
    ],
)
for folder in (models, examples):
    write(folder, "images", images)
pictures = draw.normal(size=(2, 1, 8, 10)).astype(np.float32)
results("images", {"x": pictures})
np.savez(os.path.join(examples, "images.npz"), x=pictures)

# A classifier with its loss.
classifier = model(
    [
        node("MatMul", ["x", "hidden.weight"], ["hidden"]),
        node("Add", ["hidden", "hidden.bias"], ["biased"]),
        node("Tanh", ["biased"], ["tanh"]),
        node("Gemm", ["tanh", "head.weight", "head.bias"], ["logits"]),
        node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], reduction="mean"),
    ],
    [("x", F32, ["N", 4]), ("labels", I64, ["N"])],
    [("logits", F32, ["N", 3]), ("loss", F32, [])],
    [weight("hidden.weight", 4, 5), weight("hidden.bias", 5), weight("head.weight", 5, 3), weight("head.bias", 3)],
)
for folder in (models, examples):
    write(folder, "classifier", classifier)
rows = {"x": draw.normal(size=(6, 4)).astype(np.float32), "labels": np.array([0, 2, 1, 1, 0, 2])}
results("classifier", rows)
np.savez(os.path.join(examples, "rows.npz"), **rows)

# A loop over known steps, a branch, a function of the model, shapes as values, an LSTM.
body = helper.make_graph(
    [node("Mul", ["state", "half"], ["next"]), node("Identity", ["go"], ["go_on"])],
    "body",
    [
        helper.make_tensor_value_info("step", I64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("state", F32, ["N", "T", 3]),
    ],
    [
        helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("next", F32, ["N", "T", 3]),
    ],
)


def branch(op):
    return helper.make_graph(
        [node(op, ["halved"], [op])], op, [], [helper.make_tensor_value_info(op, F32, ["N", "T", 3])]
    )


control = model(
    [
        node("Loop", ["three", "", "x"], ["halved"], body=body),
        node("ReduceSum", ["halved"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("If", ["positive"], ["chosen"], then_branch=branch("Tanh"), else_branch=branch("Neg")),
        node("Doubled", ["chosen"], ["doubled"], domain="local"),
        node("Transpose", ["doubled"], ["steps"], perm=[1, 0, 2]),
        node("LSTM", ["steps", "w", "r", "b"], ["all", "last"], hidden_size=2),
        node("Shape", ["all"], ["sizes"]),
        node("Gather", ["sizes", "zero_index"], ["length"]),
        node("Concat", ["length", "rest"], ["shape"], axis=0),
        node("Reshape", ["all", "shape"], ["rows"]),
    ],
    [("x", F32, ["N", "T", 3])],
    [("rows", F32, ["T", None, 2]), ("last", F32, [1, "N", 2])],
    [
        known("three", np.int64(3)),
        known("half", np.float32(0.5)),
        known("zero", np.float32(0)),
        known("zero_index", np.array([0])),
        known("rest", np.array([-1, 2])),
        weight("w", 1, 8, 3),
        weight("r", 1, 8, 2),
        weight("b", 1, 16),
    ],
)
control.opset_import.append(helper.make_opsetid("local", 1))
control.functions.append(
    helper.make_function("local", "Doubled", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)])
)
write(models, "control", control)
results("control", {"x": draw.normal(size=(2, 4, 3)).astype(np.float32)})


def external(location):
    """A product with a matrix outside of the file."""
    made = model([node("MatMul", ["x", "w"], ["y"])], [("x", F32, [None, 3])], [("y", F32, [None, 2])])
    tensor = TensorProto(name="w", data_type=F32, dims=[3, 2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "8"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)
    made.graph.initializer.append(tensor)
    return made


for folder in (models, examples):
    with open(os.path.join(folder, "weights.bin"), "wb") as file:
        file.write(bytes(8) + np.array([1, 2, 3, 4, 5, 6], np.float32).tobytes())
    write(folder, "external", external("weights.bin"), check=False)
    write(folder, "outside", external("../weights.bin"), check=False)
    write(folder, "lacking", external("other.bin"), check=False)

# A shuffle of pixels, whose shape must be known; the number of the largest ones is an input.
shuffle = model(
    [
        node("DepthToSpace", ["x"], ["large"], blocksize=2),
        node("Flatten", ["large"], ["flat"]),
        node("TopK", ["flat", "k"], ["best", "at"]),
    ],
    [("x", F32, ["N", 4, "H", "W"]), ("k", I64, [1])],
    [("best", F32, ["N", "K"])],
)
for folder in (models, examples):
    write(folder, "shuffle", shuffle)
np.savez(os.path.join(examples, "k.npz"), k=np.array([3]))

# Obstacles of several kinds.
unknown = model(
    [
        node("Rellu", ["x"], ["a"]),
        node("Gelu", ["a"], ["b"], domain="com.example"),
        node("Relu", ["x"], ["c"], slope=0.1),
        node("Rellu", ["c"], ["d"]),
        node("LeakyRelu", ["x"], ["e"], alpha=0.1),
        node("Softmax", ["x"], ["f"], axis=5),
    ],
    [("x", F32, [2, 3]), ("text", TensorProto.STRING, [2])],
    [("b", F32, [2, 3]), ("e", F32, [2, 3]), ("f", F32, [2, 3]), ("g", F32, [2, 3])],
)
for folder in (models, examples):
    write(folder, "unknown", unknown, check=False)
with open(os.path.join(examples, "truncated.onnx"), "wb") as file:
    file.write(images.SerializeToString()[:-40])

# Loops whose number of steps depends on the inputs, one of them with a state that grows; a scan of any length.
info, BOOL = helper.make_tensor_value_info, TensorProto.BOOL
counted = helper.make_graph(
    [
        node("Cast", ["step"], ["number"], to=F32),
        node("Mul", ["state", "half"], ["less"]),
        node("Add", ["less", "number"], ["next"]),
        node("Identity", ["go"], ["go_on"]),
        node("Neg", ["next"], ["scanned"]),
    ],
    "counted",
    [info("step", I64, []), info("go", BOOL, []), info("state", F32, [2, 3])],
    [info("go_on", BOOL, []), info("next", F32, [2, 3]), info("scanned", F32, [2, 3])],
)
growing = helper.make_graph(
    [
        node("ReduceSum", ["rows"], ["total"], keepdims=0),
        node("ReduceSum", ["rows", "zero_axis"], ["row"]),
        node("Concat", ["rows", "row"], ["more"], axis=0),
        node("Less", ["total", "limit"], ["again"]),
    ],
    "growing",
    [info("step", I64, []), info("go", BOOL, []), info("rows", F32, ["R", 3])],
    [info("again", BOOL, []), info("more", F32, ["R_more", 3])],
)
running = helper.make_graph(
    [
        node("Add", ["sum", "element"], ["sum_next"]),
        node("Mul", ["sum_next", "half"], ["a"]),
        node("Identity", ["sum"], ["b"]),
    ],
    "running",
    [info("sum", F32, [2]), info("element", F32, [2]), info("other", F32, [2])],
    [info("sum_next", F32, [2]), info("a", F32, [2]), info("b", F32, [2])],
)
loops = model(
    [
        node("Loop", ["n", "", "x"], ["last", "all"], body=counted),
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Less", ["sum", "limit"], ["begins"]),
        node("Loop", ["", "begins", "x"], ["grown"], body=growing),
        node(
            "Scan",
            ["zeros", "sequence", "sequence"],
            ["total_sum", "forward", "backward"],
            body=running,
            num_scan_inputs=2,
            scan_input_axes=[1, 1],
            scan_input_directions=[1, 0],
            scan_output_axes=[-1, 0],
            scan_output_directions=[0, 1],
        ),
    ],
    [("x", F32, [2, 3]), ("n", I64, []), ("limit", F32, []), ("sequence", F32, [2, "T"])],
    [
        ("last", F32, [2, 3]),
        ("all", F32, [None, 2, 3]),
        ("grown", F32, [None, 3]),
        ("total_sum", F32, [2]),
        ("forward", F32, [2, "T"]),
        ("backward", F32, ["T", 2]),
    ],
    [known("half", np.float32(0.5)), known("zeros", np.zeros(2, np.float32)), known("zero_axis", np.array([0]))],
    name="loops",
)
write(models, "loops", loops)
for run, (n, limit, length) in enumerate([(3, 50, 4), (0, -50, 1), (1, 10, 2), (12, 300, 7)]):
    inputs = {
        "x": np.abs(draw.normal(size=(2, 3))).astype(np.float32),
        "n": np.array(n),
        "limit": np.array(limit, np.float32),
        "sequence": draw.normal(size=(2, length)).astype(np.float32),
    }
    results("loops", inputs, f"_{run}")

# Features of the boxes with the best scores, in the order of the boxes, not of their images.
detector = model(
    [
        node("Greater", ["scores", "least"], ["is_kept"]),
        node("NonZero", ["is_kept"], ["places"]),
        node("Squeeze", ["places", "first_axis"], ["kept"]),
        node("Gather", ["boxes", "kept"], ["kept_boxes"]),
        node("Gather", ["images", "kept"], ["kept_images"]),
        node("RoiAlign", ["x", "kept_boxes", "kept_images"], ["fine"], output_height=2, output_width=3, sampling_ratio=2),
        node(
            "RoiAlign",
            ["x", "kept_boxes", "kept_images"],
            ["coarse"],
            output_height=2,
            output_width=3,
            spatial_scale=0.5,
            coordinate_transformation_mode="output_half_pixel",
        ),
        node("Sub", ["fine", "coarse"], ["difference"]),
        node("Shape", ["kept"], ["count"]),
        node("Concat", ["count", "rest"], ["matrix"], axis=0),
        node("Reshape", ["difference", "matrix"], ["features"]),
    ],
    [("x", F32, ["N", 2, 8, 9]), ("boxes", F32, ["B", 4]), ("images", I64, ["B"]), ("scores", F32, ["B"])],
    [("features", F32, [None, None])],
    [known("least", np.float32(0.3)), known("first_axis", np.array([0])), known("rest", np.array([-1]))],
    name="detector",
)
write(models, "detector", detector)
corners = draw.uniform(0, 5, size=(5, 2)).astype(np.float32)
results(
    "detector",
    {
        "x": draw.normal(size=(3, 2, 8, 9)).astype(np.float32),
        "boxes": np.concatenate([corners, corners + draw.uniform(0.5, 6, size=(5, 2)).astype(np.float32)], axis=1),
        "images": np.array([2, 0, 2, 1, 0]),
        "scores": np.array([0.9, 0.4, 0.1, 0.8, 0.5], np.float32),
    },
)

# Layers of an encoder as PyTorch's exporters write them out: the names of the first layer's nodes are paths, and the second
# layer's nodes have metadata instead.
nodes, weights = [], []


def add(layer, module, op, inputs, output, **attributes):
    path = f"encoder.layers.{layer}" + (f".{module}" if module else "")
    if layer == 0:
        made = node(op, inputs, [output], name=f"/encoder/layers.0/{module + '/' if module else ''}{output}", **attributes)
    else:
        made = node(op, inputs, [output], name=f"node_{output}", **attributes)
        scopes = ["", "encoder", f"encoder.layers.{layer}"] + ([path] if module else []) + [output]
        made.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
    nodes.append(made)
    return output


def parameter(layer, name, *dims):
    weights.append(weight(f"layers.{layer}.{name}", *dims))
    return weights[-1].name


def encoder_layer(layer, x):
    at = lambda name: f"{name}_{layer}"
    square = add(layer, "norm", "Pow", [x, "two"], at("square"))
    mean = add(layer, "norm", "ReduceMean", [square], at("mean"), axes=[-1])
    shifted = add(layer, "norm", "Add", [mean, "epsilon"], at("shifted"))
    root = add(layer, "norm", "Sqrt", [shifted], at("root"))
    quotient = add(layer, "norm", "Div", [x, root], at("quotient"))
    normal = add(layer, "norm", "Mul", [parameter(layer, "norm.weight", 8), quotient], at("normal"))
    heads = {}
    for name, order in [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])]:
        linear = add(layer, "attention", "MatMul", [normal, parameter(layer, f"attention.{name}.weight", 8, 8)], at(f"{name}_linear"))
        split = add(layer, "attention", "Reshape", [linear, "split"], at(f"{name}_split"))
        heads[name] = add(layer, "attention", "Transpose", [split], at(name), perm=order)
    scores = add(layer, "attention", "MatMul", [heads["q"], heads["k"]], at("scores"))
    scaled = add(layer, "attention", "Mul", [scores, "half"], at("scaled"))
    softmax = add(layer, "attention", "Softmax", [scaled], at("softmax"), axis=-1)
    product = add(layer, "attention", "MatMul", [softmax, heads["v"]], at("product"))
    back = add(layer, "attention", "Transpose", [product], at("back"), perm=[0, 2, 1, 3])
    merged = add(layer, "attention", "Reshape", [back, "merged"], at("merged_heads"))
    attended = add(layer, "", "Add", [x, merged], at("attended"))
    wide = add(layer, "mlp", "MatMul", [attended, parameter(layer, "mlp.up.weight", 8, 16)], at("wide"))
    divided = add(layer, "mlp", "Div", [wide, "root_of_two"], at("divided"))
    erf = add(layer, "mlp", "Erf", [divided], at("erf"))
    distribution = add(layer, "mlp", "Add", [erf, "one"], at("distribution"))
    twice = add(layer, "mlp", "Mul", [wide, distribution], at("twice"))
    gelu = add(layer, "mlp", "Mul", [twice, "half"], at("gelu"))
    down = add(layer, "mlp", "MatMul", [gelu, parameter(layer, "mlp.down.weight", 16, 8)], at("down"))
    return add(layer, "", "Add", [attended, down], at("out"))


out = "x"
for layer in range(2):
    out = encoder_layer(layer, out)
numbers = {"two": 2, "epsilon": 1e-6, "half": 0.5, "root_of_two": 2**0.5, "one": 1}
constants = [
    node("Constant", [], [name], value=known(name, np.float32(number))) for name, number in numbers.items()
] + [
    node("Constant", [], [name], value=known(name, np.array(dims)))
    for name, dims in [("split", [0, 0, 2, 4]), ("merged", [0, 0, 8])]
]
encoder = model(
    constants + nodes, [("x", F32, ["batch", "length", 8])], [(out, F32, ["batch", "length", 8])], weights, name="encoder"
)
write(models, "encoder", encoder)
write(examples, "encoder", encoder)
results("encoder", {"x": draw.normal(size=(2, 5, 8)).astype(np.float32)})
