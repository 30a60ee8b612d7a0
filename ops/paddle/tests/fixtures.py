"""Writes the models of `tests/models`, as PaddlePaddle 2.6.2 exports them, with inputs and results.

Programs of mixed precision are in `mixed_precision_fixtures.py`.

Run with `pip install paddlepaddle==2.6.2 numpy==1.26.4 safetensors==0.4.5`: python3 fixtures.py models
"""
import os
import sys

import numpy as np
import paddle
from paddle.base.proto import framework_pb2
from paddle.static import InputSpec
from safetensors.numpy import save_file

out = sys.argv[1]
nn, F = paddle.nn, paddle.nn.functional


class Images(nn.Layer):
    """Convolutions, normalization, pooling, a resized map."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2D(1, 4, 3, padding=1, bias_attr=False)
        self.norm = nn.BatchNorm2D(4)
        self.second = nn.Conv2D(4, 6, 3, stride=2, groups=2)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.max_pool2d(F.hardswish(self.norm(self.first(x))), 2)
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = F.adaptive_avg_pool2d(F.relu(self.second(x)), 1)
        return F.softmax(self.head(paddle.flatten(x, 1)))


class Attention(nn.Layer):
    """An encoder of texts."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, activation="gelu"), 1)

    def forward(self, words):
        mask = paddle.unsqueeze((words == 0).astype("float32") * -1e4, [1, 2])
        return self.encoder(self.words(words), mask)


class Recurrent(nn.Layer):
    """Two layers of LSTM in both directions, and a GRU."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, direction="bidirect")
        self.gru = nn.GRU(8, 5)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0]


class Shapes(nn.Layer):
    """Shapes that are computed."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x):
        n, t = paddle.shape(x)[0], paddle.shape(x)[1]
        y = paddle.reshape(self.linear(x), [n, t, 2, 3])
        y = paddle.transpose(y, [0, 2, 1, 3])
        return paddle.reshape(y, [n, t * 6]) + paddle.full([n, 1], 0.5)


def anonymous(path):
    """Replaces the lines of Python that added operators, which name folders of the machine."""
    file = framework_pb2.ProgramDesc.FromString(open(path, "rb").read())
    for block in file.blocks:
        for i, op in enumerate(block.ops):
            for attr in op.attrs:
                if attr.name == "op_callstack":
                    del attr.strings[:]
                    attr.strings.extend([f'  File "model.py", line {i + 1}, in forward', "    return net(x)"])
    open(path, "wb").write(file.SerializeToString())


def run(path, inputs, name):
    paddle.enable_static()
    scope, executor = paddle.static.Scope(), paddle.static.Executor()
    with paddle.static.scope_guard(scope):
        program, feeds, fetches = paddle.static.load_inference_model(path, executor)
        results = executor.run(program, dict(zip(feeds, inputs)), fetches)
    data = {f"in.{i}": x for i, x in enumerate(inputs)} | {f"out.{i}": x for i, x in enumerate(results)}
    save_file({key: np.ascontiguousarray(x) for key, x in data.items()}, f"{out}/{name}.safetensors")
    paddle.disable_static()


def export(name, net, inputs):
    net.eval()
    spec = [InputSpec([None, *x.shape[1:]], str(x.dtype)) for x in inputs]
    if name == "shapes":
        spec = [InputSpec([None, None, 4], "float32")]
    paddle.jit.save(net, f"{out}/{name}", input_spec=spec)
    anonymous(f"{out}/{name}.pdmodel")
    run(f"{out}/{name}", inputs, name)


def training():
    """A training program: forward and backward part, and updates by AdamW."""
    paddle.enable_static()
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        x, y = paddle.static.data("x", [-1, 5]), paddle.static.data("y", [-1, 1], "int64")
        hidden = paddle.tanh(paddle.static.nn.fc(x, 7))
        loss = F.cross_entropy(paddle.static.nn.fc(hidden, 3), y)
        paddle.optimizer.AdamW(0.01, weight_decay=0.1).minimize(loss)
        executor = paddle.static.Executor()
        executor.run(startup)
        is_kept = lambda var: var.persistable
        paddle.static.io.save_vars(executor, out, main, predicate=is_kept, filename="training.pdiparams")
        with open(f"{out}/training.pdmodel", "wb") as file:
            file.write(main.desc.serialize_to_string())
        anonymous(f"{out}/training.pdmodel")
        random = np.random.default_rng(3)
        feeds = {"x": random.standard_normal((6, 5)).astype("float32"), "y": random.integers(0, 3, (6, 1))}
        losses = np.array([float(executor.run(main, feeds, ["mean_0.tmp_0"])[0]) for _ in range(5)], "float32")
    save_file(feeds | {"losses": losses}, f"{out}/training.safetensors")
    paddle.disable_static()


def train(name, build, feeds, keys):
    """Five steps of a training program, which `build` makes; it returns the results that are recorded as `keys`."""
    paddle.enable_static()
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    names = paddle.utils.unique_name.guard()
    with names, paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        results = build()
        executor = paddle.static.Executor()
        executor.run(startup)
        is_kept = lambda var: var.persistable
        paddle.static.io.save_vars(executor, out, main, predicate=is_kept, filename=f"{name}.pdiparams")
        with open(f"{out}/{name}.pdmodel", "wb") as file:
            file.write(main.desc.serialize_to_string())
        anonymous(f"{out}/{name}.pdmodel")
        steps = [executor.run(main, feeds, results) for _ in range(5)]
        print(name, [result.name for result in results])
    recorded = {key: np.array([float(step[i]) for step in steps], "float32") for i, key in enumerate(keys)}
    save_file(feeds | recorded, f"{out}/{name}.safetensors")
    paddle.disable_static()


def norms():
    """A training program: normalisations in groups, a grid, activations with derived gradients, an accuracy, SGD."""

    def build():
        x, y = paddle.static.data("x", [-1, 4, 3, 2]), paddle.static.data("y", [-1, 1], "int64")
        h = nn.GroupNorm(2, 4)(nn.Conv2D(4, 4, 1)(x))
        h = F.elu(F.silu(nn.InstanceNorm2D(4)(h)))
        rows, columns = paddle.meshgrid([paddle.mean(h, axis=[0, 1, 2]), paddle.mean(h, axis=[0, 1, 3])])
        scores = paddle.static.nn.fc(h, 3)
        loss = F.cross_entropy(scores, y) + paddle.mean(rows * columns)
        accuracy = paddle.static.accuracy(F.softmax(scores), y)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss, accuracy]

    random = np.random.default_rng(7)
    feeds = {"x": random.standard_normal((6, 4, 3, 2)).astype("float32"), "y": random.integers(0, 3, (6, 1))}
    train("norms", build, feeds, ["losses", "accuracies"])


def orders():
    """A training program: attributes that gradient operators copy from their operators, and do not need."""

    def build():
        x, rows = paddle.static.data("x", [6, 5]), paddle.static.data("rows", [4], "int64")
        h = paddle.static.nn.batch_norm(paddle.static.nn.fc(x, 5), momentum=0.7)
        scattered = paddle.scatter(h, rows, paddle.static.nn.fc(x[:4], 5))
        summed = paddle.scatter(h, rows, paddle.tanh(h[:4]), overwrite=False)
        ordered = paddle.sort(scattered, descending=True) * paddle.arange(5, dtype="float32")
        least, _ = paddle.topk(summed, 2, largest=False)
        triangle = paddle.unsqueeze(paddle.tril(h[:5], -1), 0)
        padded = F.pad(triangle, [1, 1], value=2.0, data_format="NCL")
        loss = paddle.mean(ordered) + paddle.mean(paddle.square(padded)) - paddle.sum(least) * 0.1
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss]

    random = np.random.default_rng(11)
    # No row twice: the reference gives overwritten updates a gradient.
    feeds = {"x": random.standard_normal((6, 5)).astype("float32"), "rows": np.array([4, 0, 5, 2])}
    train("orders", build, feeds, ["losses"])


def composed():
    """A training program: gradients of composed operators, a branch, gradients of integers, a computed shape."""

    def build():
        x, labels = paddle.static.data("x", [-1, 2, 4, 6]), paddle.static.data("labels", [-1, 2], "int32")
        other = paddle.static.data("other", [-1, 2], "int32")
        h = F.local_response_norm(nn.Conv2D(2, 4, 3, padding=1)(x), 3)
        first, second = paddle.split(h, 2, axis=1)
        second = paddle.reshape(second, paddle.shape(first))
        steps = paddle.transpose(paddle.flatten(first, 1, 2), [2, 0, 1])
        lengths = paddle.full([3], 6, "int64"), paddle.full([3], 2, "int64")
        # Two losses of the same scores: their gradient operators do not read the labels.
        loss = F.ctc_loss(steps, labels, *lengths) + 2 * F.ctc_loss(steps, other, *lengths)
        positive = paddle.sum(paddle.cast(second > 0, "int32")) * 1.0
        branches = {0: lambda: second * 2, 1: lambda: second * 3}
        case = paddle.static.nn.switch_case(paddle.full([1], 1, "int32"), branches)
        across = paddle.cross(first[:, :, :3], paddle.tanh(first[:, :, :3]), axis=2)
        loss = loss + paddle.mean(case * case) + positive * 0.01 * paddle.mean(across)
        volume = nn.Conv3DTranspose(1, 2, 2)(paddle.unsqueeze(x, 1))
        loss = loss + paddle.mean(volume * volume)
        paddle.optimizer.SGD(0.05).minimize(loss)
        return [loss]

    random = np.random.default_rng(13)
    feeds = {"x": random.standard_normal((3, 2, 4, 6)).astype("float32")}
    feeds["labels"] = np.array([[1, 2], [3, 1], [2, 2]], "int32")
    feeds["other"] = np.array([[2, 1], [1, 3], [3, 2]], "int32")
    train("composed", build, feeds, ["losses"])


def arguments():
    """Tensors in the place of attributes, assigned slices, and a shape of another tensor."""
    paddle.enable_static()
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        x, rows = paddle.static.data("x", [-1, 1, 4]), paddle.static.data("rows", [2], "int64")
        one = paddle.full([1], 1, "int32")
        y = paddle.expand(x, paddle.shape(paddle.concat([x, x, x], 1))) * 2
        y = paddle.static.setitem(y, (slice(None), slice(one, one + 1)), x)
        y = paddle.static.setitem(y, (slice(None), slice(None), 0), 0.5)
        y = paddle.gather(y, rows, axis=one)
        y = paddle.clip(y, paddle.full([1], -0.75), paddle.full([1], 1.25))
        z = paddle.squeeze(paddle.sum(y, 1, keepdim=True), one)
        corners = paddle.concat([x, x + 1, x + 2], 1)[:, :, :2]
        boxes = paddle.concat([corners, corners + 2], 2)
        scores = paddle.transpose(F.softmax(corners * corners), [0, 2, 1])
        kept, _, _ = paddle.vision.ops.matrix_nms(boxes, scores, 0.3, 0.1, 10, 2, background_label=-1)
        executor = paddle.static.Executor()
        paddle.static.save_inference_model(f"{out}/arguments", [x, rows], [y, z, kept], executor, program=main)
    paddle.disable_static()
    anonymous(f"{out}/arguments.pdmodel")
    random = np.random.default_rng(17)
    run(f"{out}/arguments", [random.standard_normal((2, 1, 4)).astype("float32"), np.array([2, 1])], "arguments")


def control():
    """A loop and a branch: powers of two below a number, and their sign by the mean of `x`."""
    paddle.enable_static()
    main, scope = paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, paddle.static.Program()), paddle.static.scope_guard(scope):
        x = paddle.static.data("x", [2, 3])
        i, y = paddle.full([1], 0, "int64"), paddle.assign(x)
        less = lambda i, y: paddle.less_than(i, paddle.full([1], 3, "int64"))
        _, y = paddle.static.nn.while_loop(less, lambda i, y: [i + 1, y * 2], [i, y])
        z = paddle.static.nn.cond(paddle.mean(x) > 0, lambda: y + 1, lambda: -y)
        executor = paddle.static.Executor()
        paddle.static.save_inference_model(f"{out}/control", [x], [z], executor, program=main)
    paddle.disable_static()
    anonymous(f"{out}/control.pdmodel")
    run(f"{out}/control", [floats(2, 3)], "control")


def sums():
    """Sums of int32 that overflow it, and of truth values; products and cumulative sums of int32."""
    paddle.enable_static()
    main, scope = paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, paddle.static.Program()), paddle.static.scope_guard(scope):
        x, mask = paddle.static.data("x", [-1, 3], "int32"), paddle.static.data("mask", [-1, 3], "bool")
        # The product keeps int32, which the operator does without `out_dtype`.
        block = main.global_block()
        product = block.create_var(name="product", dtype="int32")
        attrs = {"dim": [1], "keep_dim": False, "reduce_all": False}
        block.append_op(type="reduce_prod", inputs={"X": [x]}, outputs={"Out": [product]}, attrs=attrs)
        running = block.create_var(name="running", dtype="int32")
        block.append_op(type="cumsum", inputs={"X": [x]}, outputs={"Out": [running]}, attrs={"axis": 1})
        results = [paddle.sum(x, axis=1), paddle.sum(mask, axis=1), product, running]
        executor = paddle.static.Executor()
        paddle.static.save_inference_model(f"{out}/sums", [x, mask], results, executor, program=main)
    paddle.disable_static()
    anonymous(f"{out}/sums.pdmodel")
    numbers = np.array([[2**30, 2**30, 3], [-(2**31), -1, 2**31 - 1]], "int32")
    run(f"{out}/sums", [numbers, np.array([[True, False, True], [False, True, False]])], "sums")


def separate():
    """The model `shapes` with one file for each variable, as PaddlePaddle 1 saved it."""
    paddle.enable_static()
    os.makedirs(f"{out}/separate", exist_ok=True)
    scope, executor = paddle.static.Scope(), paddle.static.Executor()
    with paddle.static.scope_guard(scope):
        program, _, _ = paddle.static.load_inference_model(f"{out}/shapes", executor)
        is_tensor = lambda var: var.persistable and var.name not in ["feed", "fetch"]
        paddle.static.io.save_vars(executor, f"{out}/separate", program, predicate=is_tensor)
    with open(f"{out}/shapes.pdmodel", "rb") as file:
        open(f"{out}/separate/__model__", "wb").write(file.read())
    paddle.disable_static()


paddle.seed(5)
random = np.random.default_rng(1)
floats = lambda *shape: random.standard_normal(shape).astype("float32")
export("images", Images(), [floats(2, 1, 8, 10)])
export("attention", Attention(), [np.array([[1, 2, 3, 0], [4, 10, 0, 0]])])
export("recurrent", Recurrent(), [floats(2, 5, 3)])
export("shapes", Shapes(), [floats(2, 3, 4)])
training()
norms()
orders()
composed()
arguments()
control()
sums()
separate()
