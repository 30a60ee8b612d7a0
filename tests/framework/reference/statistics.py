"""Prints the errors of float32 normalisations of PaddlePaddle 2.6.2: of the result and of the gradient of the input,
relative to the largest number, against float64. `exactness.rs` has them as bounds, for the same numbers.

Run with `pip install paddlepaddle==2.6.2 numpy==1.26.4`: python3 statistics.py
"""
import os

os.environ["GLOG_minloglevel"] = "3"
import numpy as np
import paddle

paddle.enable_static()


def numbers(shape, seed):
    values = []
    for _ in range(np.prod(shape)):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append((seed >> 43) / 2**20 - 1.0)
    return np.array(values).reshape(shape)


LAYERS = {
    "batch": lambda shape: paddle.nn.BatchNorm2D(shape[1]),
    "layer": lambda shape: paddle.nn.LayerNorm(shape[1:]),
    "group": lambda shape: paddle.nn.GroupNorm(2, shape[1]),
    "instance": lambda shape: paddle.nn.InstanceNorm2D(shape[1]),
}


def run(layer, x, weights, dtype):
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    names = paddle.utils.unique_name.guard()
    with names, paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        paddle.set_default_dtype(dtype)
        parameter = paddle.create_parameter(x.shape, dtype, attr=paddle.ParamAttr(name="x"))
        factors = paddle.static.data("weights", weights.shape, dtype)
        y = layer(x.shape)(parameter)
        gradient = paddle.static.gradients([paddle.sum(y * factors)], [parameter])[0]
        executor = paddle.static.Executor()
        executor.run(startup)
        scope.var("x").get_tensor().set(x.astype(dtype), paddle.CPUPlace())
        return executor.run(main, {"weights": weights.astype(dtype)}, [y, gradient])


for name, layer in LAYERS.items():
    for mean, shape in [(0.0, (4, 6, 16, 6)), (3.0, (4, 6, 16, 6)), (30.0, (4, 6, 16, 6)), (3.0, (2, 6, 2, 6))]:
        x = (numbers(shape, 5) * 1.7 + mean).astype("float32")
        both = [run(layer, x, numbers(shape, 3), dtype) for dtype in ("float32", "float64")]
        errors = [np.abs(single - double).max() / np.abs(double).max() for single, double in zip(*both)]
        print(name, mean, shape, *(f"{error:.1e}" for error in errors))
