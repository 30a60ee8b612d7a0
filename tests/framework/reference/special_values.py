"""Writes special_values.txt: elementwise functions and their gradients at infinities, zeros, NaN and large numbers.

Run with `pip install torch==2.2.2 numpy==1.26.4`: python3 special_values.py > special_values.txt

All numbers are float64. One line a point: operator with attributes, operands, result, gradient of each operand.
"""
import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")
POINTS = [-INF, -1e200, -1e3, -2.5, -1.0, -0.25, -0.0, 0.0, 0.25, 1.0, 2.5, 1e3, 1e200, INF, NAN]
PAIRS = [-INF, -1e200, -2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 1e200, INF, NAN]

UNARY = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "brelu t_min=0.0 t_max=24.0": lambda x: F.hardtanh(x, 0.0, 24.0),
    "ceil": torch.ceil,
    "celu alpha=1.0": F.celu,
    "clip min=-1.5 max=2.0": lambda x: torch.clamp(x, -1.5, 2.0),
    "cos": torch.cos,
    "cosh": torch.cosh,
    "elu alpha=1.0": F.elu,
    "erf": torch.erf,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "gelu approximate=false": F.gelu,
    "gelu approximate=true": lambda x: F.gelu(x, approximate="tanh"),
    "hard_shrink threshold=0.5": F.hardshrink,
    "hard_swish": F.hardswish,
    "leaky_relu alpha=0.02": lambda x: F.leaky_relu(x, 0.02),
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "pow factor=-2.0": lambda x: x**-2.0,
    "pow factor=-1.0": lambda x: x**-1.0,
    "pow factor=-0.5": lambda x: x**-0.5,
    "pow factor=0.0": lambda x: x**0.0,
    "pow factor=0.5": lambda x: x**0.5,
    "pow factor=1.0": lambda x: x**1.0,
    "pow factor=1.5": lambda x: x**1.5,
    "pow factor=2.0": lambda x: x**2.0,
    "pow factor=3.0": lambda x: x**3.0,
    "reciprocal": torch.reciprocal,
    "relu": F.relu,
    "relu6": F.relu6,
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softplus beta=1.0 threshold=20.0": F.softplus,
    "softplus beta=2.0 threshold=1000.0": lambda x: F.softplus(x, 2.0, 1000.0),
    "softshrink lambda=0.5": F.softshrink,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "swish beta=1.0": F.silu,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "tanh_shrink": F.tanhshrink,
    "thresholded_relu threshold=1.0": lambda x: F.threshold(x, 1.0, 0.0),
    "trunc": torch.trunc,
}
BINARY = {
    "atan2": torch.atan2,
    "elementwise_add": torch.add,
    "elementwise_div": torch.div,
    "elementwise_fmax": torch.fmax,
    "elementwise_fmin": torch.fmin,
    "elementwise_max": torch.maximum,
    "elementwise_min": torch.minimum,
    "elementwise_mul": torch.mul,
    "elementwise_pow": torch.pow,
    "elementwise_sub": torch.sub,
}

print("# Elementwise functions and their gradients at special numbers: operands -> result, gradients.")
print("# Written by special_values.py with PyTorch 2.2.2, in float64.")


def write(name, f, *operands):
    operands = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in operands]
    out = f(*operands)
    out.sum().backward()
    show = lambda *all: " ".join(repr(x) for x in all)
    for values in zip(*(x.tolist() for x in operands), out.tolist(), *(x.grad.tolist() for x in operands)):
        print(f"{name}: {show(*values[:len(operands)])} -> {show(*values[len(operands):])}")


for name, f in UNARY.items():
    write(name, f, POINTS)
for name, f in BINARY.items():
    write(name, f, [x for x in PAIRS for _ in PAIRS], PAIRS * len(PAIRS))
