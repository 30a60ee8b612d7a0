"""Writes programs that PaddlePaddle 2.6.2 has made by `paddle.static.amp.decorate`, with losses and values of five steps.

Run with `pip install paddlepaddle==2.6.2 numpy==1.26.4 safetensors==0.4.5`: python3 mixed_precision_fixtures.py models

PaddlePaddle has nearly no kernels of 16 bits for CPUs, and its casts on CPUs truncate, where those on GPUs round. So the
steps are those of the same program in float32 (`in_float32`), in which each result of 16 bits is rounded to nearest even.
"""
import sys

import numpy as np
import paddle
from paddle.base.proto import framework_pb2
from paddle.static.amp import fp16_lists
from paddle.static.nn.common import PyFuncRegistry
from safetensors.numpy import save_file

out = sys.argv[1]
nn, F, static = paddle.nn, paddle.nn.functional, paddle.static
Type = framework_pb2.VarType

# Operators without a 16-bit kernel for GPUs stay in float32. A build for CPUs has none, a build for GPUs has one for each
# operator of these programs.
fp16_lists._get_unsupported_list = lambda dtype: (set(), set())


def float16(x):
    with np.errstate(over="ignore"):
        return np.array(x).astype("float16").astype("float32")


def bfloat16(x):
    x = np.array(x)
    bits = x.reshape(-1).view("uint32")
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.view("float32").reshape(x.shape), x)


# Shapes alone, and statistics that kernels of GPUs store in float32 whatever is declared.
NOT_ROUNDED = ["XShape", "SavedMean", "SavedVariance"]
ROUNDINGS = {Type.FP16: PyFuncRegistry(float16)._id, Type.BF16: PyFuncRegistry(bfloat16)._id}


def in_float32(program):
    """The program in float32. Results that it declares as 16-bit are rounded; updates are those of master weights."""
    file = framework_pb2.ProgramDesc.FromString(program.desc.serialize_to_string())
    for block in file.blocks:
        dtypes = {}
        for var in list(block.vars):
            tensor = var.type.lod_tensor.tensor
            if tensor.data_type in ROUNDINGS:
                dtypes[var.name], tensor.data_type = tensor.data_type, Type.FP32
                rounded = block.vars.add()
                rounded.CopyFrom(var)
                rounded.name, rounded.persistable, rounded.is_parameter = f"{var.name}.rounded", False, False
        ops = list(block.ops)
        del block.ops[:]

        def append(ty, x, y, attrs):
            op = block.ops.add(type=ty)
            op.inputs.add(parameter="X", arguments=[x])
            op.outputs.add(parameter="Out", arguments=[y])
            for name, value in attrs.items():
                op.attrs.add(name=name, type=framework_pb2.INT, i=value)

        for op in ops:
            for attr in op.attrs:
                if attr.name in ["dtype", "in_dtype", "out_dtype"] and attr.i in ROUNDINGS:
                    attr.i = Type.FP32
                if attr.name == "multi_precision":
                    attr.b = False
            slots = {slot.parameter: slot.arguments for slot in [*op.inputs, *op.outputs]}
            written = [x for slot in op.outputs if slot.parameter not in NOT_ROUNDED for x in slot.arguments]
            masters = list(zip(slots.get("MasterParamOut", []), slots.get("ParamOut", [])))
            if masters:
                slots["Param"][:] = slots.pop("MasterParam")
                slots["ParamOut"][:] = slots.pop("MasterParamOut")
                for slots in [op.inputs, op.outputs]:
                    kept = [slot for slot in slots if not slot.parameter.startswith("MasterParam")]
                    del slots[:]
                    slots.extend(kept)
            block.ops.add().CopyFrom(op)
            for master, parameter in masters:
                append("assign", master, parameter, {})
            for x in written:
                if x in dtypes:
                    ids = {"forward_callable_id": ROUNDINGS[dtypes[x]], "backward_callable_id": -1}
                    append("py_func", x, f"{x}.rounded", ids)
                    append("assign", f"{x}.rounded", x, {})
    return static.Program.parse_from_string(file.SerializeToString())


def single(value):
    """Numbers as float32; NumPy has bfloat16 as integers."""
    value = np.array(value)
    if value.dtype == np.uint16:
        return (value.reshape(-1).astype("uint32") << 16).view("float32").reshape(value.shape)
    return value.astype("float32")


def write(program, path):
    """Writes a program, without the lines of Python that added operators."""
    file = framework_pb2.ProgramDesc.FromString(program.desc.serialize_to_string())
    for op in [op for block in file.blocks for op in block.ops]:
        kept = [attr for attr in op.attrs if attr.name != "op_callstack"]
        del op.attrs[:]
        op.attrs.extend(kept)
    with open(path, "wb") as output:
        output.write(file.SerializeToString())


def train(name, net, shape, optimizer, **options):
    """A training program, the values after its startup program, and five steps from there."""
    paddle.enable_static()
    paddle.seed(7)
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    names = paddle.utils.unique_name.guard()
    with names, static.program_guard(main, startup), static.scope_guard(scope):
        x, y = static.data("x", [-1, *shape]), static.data("y", [-1, 1], "int64")
        loss = F.cross_entropy(net(x), y)
        optimizer = static.amp.decorate(optimizer(), **options)
        optimizer.minimize(loss)
        place = paddle.CPUPlace()
        executor = static.Executor(place)
        executor.run(startup)
        optimizer.amp_init(place, scope)
        write(main, f"{out}/{name}.pdmodel")
        if name == "amp_o2_bfloat16":
            write(startup, f"{out}/{name}_startup.pdmodel")
        is_kept = lambda var: var.persistable
        static.io.save_vars(executor, out, main, predicate=is_kept, filename=f"{name}.pdiparams")
        kept = {var.name: scope.find_var(var.name).get_tensor() for var in main.list_vars() if var.persistable}
        for tensor in kept.values():
            if np.array(tensor).dtype in ["uint16", "float16"]:
                tensor.set(single(tensor), place)
        # With these numbers, no result lies so near a tie that the order of a sum decides how it is rounded.
        random, steps = np.random.default_rng(5), in_float32(main)
        feeds = {"x": random.standard_normal((6, *shape)).astype("float32"), "y": random.integers(0, 3, (6, 1))}
        losses = np.array([single(executor.run(steps, feeds, [loss.name])[0]).item() for _ in range(5)], "float32")
        print(name, loss.name, losses)
    values = {f"value.{name}": single(tensor) for name, tensor in kept.items()}
    save_file(feeds | {"losses": losses} | values, f"{out}/{name}.safetensors")
    paddle.disable_static()


def images(x):
    h = static.nn.batch_norm(static.nn.conv2d(x, 4, 3, padding=1, bias_attr=False))
    return static.nn.fc(F.max_pool2d(F.relu(h), 2), 3)


def rows(x):
    return static.nn.fc(paddle.tanh(nn.LayerNorm(7)(static.nn.fc(x, 7))), 3)


def maps(x):
    return static.nn.fc(F.silu(nn.InstanceNorm2D(4)(nn.Conv2D(1, 4, 3)(x))), 3)


# The first steps overflow.
dynamic = {"init_loss_scaling": 2.0**18, "decr_every_n_nan_or_inf": 1, "decr_ratio": 0.25}
fixed = {"init_loss_scaling": 128.0, "use_dynamic_loss_scaling": False}
clip = nn.ClipGradByGlobalNorm(0.5)
momentum = lambda: paddle.optimizer.Momentum(0.1, 0.9, weight_decay=0.01, grad_clip=clip)
train("amp_o1_float16", images, [1, 6, 6], momentum, level="O1", dtype="float16", **dynamic)
adam = lambda: paddle.optimizer.Adam(0.01)
train("amp_o2_float16", images, [1, 6, 6], adam, level="O2", dtype="float16", master_weight=True, **dynamic)
adamw = lambda: paddle.optimizer.AdamW(0.01, weight_decay=0.1)
options = {"level": "O2", "dtype": "bfloat16", "use_dynamic_loss_scaling": False}
train("amp_o2_bfloat16", rows, [5], adamw, master_weight=True, init_loss_scaling=1.0, **options)
sgd = lambda: paddle.optimizer.SGD(0.1)
train("amp_master_grad", rows, [5], sgd, level="O2", dtype="float16", master_weight=True, master_grad=True, **fixed)
train("amp_no_master", maps, [1, 5, 5], sgd, level="O2", dtype="float16", master_weight=False, **fixed)
