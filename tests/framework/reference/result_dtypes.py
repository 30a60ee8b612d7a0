"""Writes result_dtypes.txt: the dtypes of results of PaddlePaddle 2.6.2's reductions and elementwise operators.

Run with `pip install paddlepaddle==2.6.2 numpy==1.26.4`: python3 result_dtypes.py > result_dtypes.txt

Each operator runs on the CPU with all of its inputs in one dtype: one line an operator with its attributes, and for
each dtype that it takes the dtypes of its outputs. The attributes that state a result's dtype are left out.
"""
import os

os.environ["GLOG_minloglevel"] = "3"
import numpy
import paddle

paddle.enable_static()

DTYPES = ["bool", "uint8", "int32", "int64", "float32", "float64"]
UNARY = """abs acos acosh asin asinh assign atan atanh brelu ceil celu cos cosh elu erf exp expm1 floor gelu
hard_shrink hard_sigmoid hard_swish isfinite_v2 isinf_v2 isnan_v2 leaky_relu log log10 log1p log2 logical_not
logit logsigmoid bitwise_not mish reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin sinh softplus
softshrink softsign sqrt square stanh swish tan tanh tanh_shrink thresholded_relu trunc scale pow
softmax log_softmax fill_zeros_like fill_any_like mean squared_l2_norm""".split()
BINARY = """elementwise_add elementwise_div elementwise_floordiv elementwise_fmax elementwise_fmin
elementwise_heaviside elementwise_max elementwise_min elementwise_mod elementwise_mul elementwise_pow
elementwise_sub equal greater_equal greater_than less_equal less_than not_equal logical_and logical_or
logical_xor bitwise_and bitwise_or bitwise_xor minus""".split()
REDUCTIONS = "reduce_all reduce_amax reduce_amin reduce_any reduce_max reduce_mean reduce_min reduce_prod reduce_sum frobenius_norm".split()

ALONG = {"dim": [1], "keep_dim": False, "reduce_all": False}
ALL = {"dim": [0], "keep_dim": False, "reduce_all": True}
# Operator, attributes, input slots, output slots.
CASES = [(op, {}, ["X"], ["Out"]) for op in UNARY]
CASES += [(op, {}, ["X", "Y"], ["Out"]) for op in BINARY]
CASES += [(op, attrs, ["X"], ["Out"]) for op in REDUCTIONS for attrs in (ALONG, ALL)]
CASES += [
    ("increment", {}, ["X"], ["Out"]),
    ("atan2", {}, ["X1", "X2"], ["Out"]),
    ("clip", {"min": 0.0, "max": 1.0}, ["X"], ["Out"]),
    ("lerp", {}, ["X", "Y", "Weight"], ["Out"]),
    ("dot", {}, ["X", "Y"], ["Out"]),
    ("sum", {}, ["X"], ["Out"]),
    ("arg_max", {"axis": 0}, ["X"], ["Out"]),
    ("arg_min", {"axis": 0}, ["X"], ["Out"]),
    ("argsort", {"axis": 0}, ["X"], ["Out", "Indices"]),
    ("top_k_v2", {"k": 1}, ["X"], ["Out", "Indices"]),
    ("cumsum", {"axis": 0}, ["X"], ["Out"]),
    ("cumsum", {"flatten": True}, ["X"], ["Out"]),
    ("cumprod", {"dim": 0}, ["X"], ["Out"]),
    ("logcumsumexp", {"axis": 0}, ["X"], ["Out"]),
    ("logsumexp", {"axis": [0], "keepdim": False, "reduce_all": False}, ["X"], ["Out"]),
    ("p_norm", {"axis": 0}, ["X"], ["Out"]),
]


def results(op, attrs, inputs, outputs, dtype):
    """The dtypes of the outputs, or None if the operator does not take the dtype."""
    shape = [1] if op == "increment" else [2, 3]
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        block = main.global_block()
        ins = {slot: [paddle.static.data(slot, shape, dtype)] for slot in inputs}
        outs = {slot: [block.create_var(name="out_" + slot)] for slot in outputs}
        try:
            block.append_op(type=op, inputs=ins, outputs=outs, attrs=dict(attrs))
            feed = {slot: numpy.ones(shape, dtype) for slot in inputs}
            found = paddle.static.Executor().run(main, feed, [var for slot in outputs for var in outs[slot]])
        except Exception:
            return None
    return " ".join(str(value.dtype) for value in found)


def show(value):
    return str(value).lower().replace(" ", "") if isinstance(value, (bool, list)) else str(value)


print("# The dtypes of results of PaddlePaddle 2.6.2 by the dtype of the inputs; other dtypes it refuses.")
print("# Written by result_dtypes.py.")
for op, attrs, inputs, outputs in CASES:
    found = [(dtype, results(op, attrs, inputs, outputs, dtype)) for dtype in DTYPES]
    text = ", ".join(f"{dtype} -> {result}" for dtype, result in found if result)
    given = " ".join(f"{name}={show(value)}" for name, value in attrs.items())
    print(f"{op} {given}".strip() + f": {text}")
