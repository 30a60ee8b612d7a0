"""Arrays in and out."""

import array
import gc
import json
import sys
import threading
import tracemalloc
from pathlib import Path

import ml_dtypes  # noqa: F401, adds bfloat16 to NumPy
import numpy as np
import pytest

import autobwd


def test_layouts_of_an_input_give_the_same_bits(model, images):
    expected = model(images)
    fortran = np.asfortranarray(images)
    strided = np.zeros([4, 1, 8, 20], np.float32)
    strided[..., ::2] = images
    reversed_ = images[::-1].copy()
    unaligned = np.frombuffer(b"\0" + images.tobytes(), np.uint8)[1:].view(np.float32).reshape(images.shape)
    swapped = images.astype(">f4")
    for other in (fortran, strided[..., ::2], reversed_[::-1], unaligned, swapped, images.tolist()):
        np.testing.assert_array_equal(model(other), expected)


def test_an_array_of_one_broadcast_element_is_fed(model):
    np.testing.assert_array_equal(
        model(np.broadcast_to(np.float32(0.5), [2, 1, 8, 10])), model(np.full([2, 1, 8, 10], 0.5, np.float32))
    )


def test_a_result_takes_over_its_memory_and_outlives_its_model(images):
    model = autobwd.load("images.onnx")
    first, expected = model(images), model(images).copy()
    second = model(images * 2)
    del model
    gc.collect()
    np.testing.assert_array_equal(first, expected)
    assert not np.shares_memory(first, second)
    assert first.flags.c_contiguous and first.flags.writeable


def test_numpy_allocates_no_copy_of_inputs_and_results():
    model, values = copying_model("float32"), np.ones([1 << 18, 2], np.float32)
    tracemalloc.start()
    try:
        result = model(values[::-1])
        assert tracemalloc.get_traced_memory()[1] < values.nbytes / 4
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(result, values)


def test_a_result_shares_no_memory_with_inputs_and_values(model, images, labels):
    copying, values = copying_model("float32"), np.ones([3, 2], np.float32)
    copy = copying(values)
    values[:] = 2
    assert (copy == 1).all()
    copy[:] = 3
    assert (values == 2).all() and (copying(values) == 2).all()

    scores, bias = model(images), model.run({"x": images}, outputs=["head.bias"])["head.bias"]
    before = bias.copy()
    bias[:] = 7
    np.testing.assert_array_equal(model(images), scores)
    np.testing.assert_array_equal(model.state_dict()["head.bias"], before)
    bias[:] = before
    model.loss("cross_entropy").train_step("sgd:1")(images, labels)
    np.testing.assert_array_equal(bias, before)
    assert (model.state_dict()["head.bias"] != before).any()


def test_an_input_that_is_written_meanwhile_is_read_as_old_and_new_elements():
    model, values, is_over = copying_model("float32"), np.ones([1 << 16, 2], np.float32), threading.Event()

    def write():
        while not is_over.is_set():
            values[:] = 3 - values[0, 0]

    writer = threading.Thread(target=write)
    writer.start()
    try:
        results = [model(values) for _ in range(50)]
    finally:
        is_over.set()
        writer.join()
    assert all(np.isin(result, [1, 2]).all() for result in results)


def test_results_are_exchanged_by_the_buffer_protocol_and_dlpack(model, images):
    scores = model(images)
    assert memoryview(scores).shape == (4, 3)
    assert np.shares_memory(np.from_dlpack(scores), scores)
    loss = model.loss("cross_entropy")(images, [0, 1, 2, 0])
    assert np.from_dlpack(loss).shape == () and np.shares_memory(np.from_dlpack(loss), loss)


class Foreign:
    """A tensor of another library, which has DLPack alone."""

    def __init__(self, own, device=None, mistake=None):
        self.own, self.mistake = own, mistake
        self.device = device or own.__dlpack_device__()

    def __dlpack__(self, **kwargs):
        if self.mistake:
            raise self.mistake
        return self.own.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.device


def test_objects_with_dlpack_alone_are_fed(model, images):
    expected = model(images)
    for other in (images, np.asfortranarray(images), images[::-1].copy()[::-1]):
        np.testing.assert_array_equal(model(Foreign(other)), expected)
    assert model(Foreign(np.zeros([0, 1, 8, 10], np.float32))).shape == (0, 3)
    step, target = model.loss("mse_loss"), expected.copy()
    assert step(Foreign(images), Foreign(target)) == 0
    one = scalar_model()
    assert one(Foreign(np.array(2.0, np.float32))) == 2 and one(np.float32(2)).shape == ()


@pytest.mark.parametrize(
    "value, reason",
    [
        (Foreign(np.ones(2), device=(2, 1)), r"`x` is on another device than the CPU, \(2, 1\) in DLPack"),
        (Foreign(np.ones(2), device="cpu"), "`x` cannot be read as an array of NumPy: TypeError"),
        (Foreign(np.ones(2), mistake=BufferError("no export")), "NumPy: BufferError: no export"),
        (Foreign(np.ones(2), mistake=RuntimeError("no stream")), "NumPy: RuntimeError: no stream"),
        (Foreign(np.ones(2, np.uint16)), "`x` is an array of `uint16`: known are"),
        (Foreign(np.ones(2, complex)), "`x` is an array of `complex128`: known are"),
        ([[1.0], [2.0, 3.0]], "`x` cannot be read as an array of NumPy: ValueError"),
        (["a"], "`x` cannot be read as an array of NumPy: ValueError"),
    ],
)
def test_what_is_no_array_of_the_cpu_is_refused(model, value, reason):
    with pytest.raises(autobwd.Error, match=reason):
        model(value)


def test_an_error_of_another_kind_passes(model):
    with pytest.raises(KeyError):
        model(Foreign(np.ones(2), mistake=KeyError("a fault of its own")))


def test_objects_with_the_buffer_protocol_are_fed():
    model = copying_model("float32")
    numbers = array.array("f", [1, 2, 3, 4])
    expected = np.array([[1, 2], [3, 4]], np.float32)
    shaped = memoryview(numbers).cast("B").cast("f", [2, 2])
    for buffer in (shaped, memoryview(bytes(shaped)).cast("f", [2, 2]), memoryview(expected)):
        np.testing.assert_array_equal(model(buffer), expected)


def test_tensors_of_pytorch_are_fed_and_made_of_results(model, images):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    expected = model(images)
    tensor = torch.from_numpy(images)
    for other in (tensor, tensor.clone().transpose(2, 3).contiguous().transpose(2, 3), tensor.flip(0).flip(0)):
        np.testing.assert_array_equal(model(other), expected)
    assert model(torch.zeros(0, 1, 8, 10)).shape == (0, 3)
    assert scalar_model()(torch.tensor(2.0)) == 2

    scores = model(images)
    taken = torch.from_dlpack(scores)
    taken += 1
    np.testing.assert_array_equal(scores, expected + 1)
    for dtype in ("bool", "uint8", "int32", "int64", "float16", "float32", "float64"):
        result = copying_model(dtype)(np.ones([3, 2], dtype))
        assert torch.from_dlpack(result).dtype == getattr(torch, dtype)
    halves = copying_model("bfloat16")(np.ones([3, 2], "bfloat16"))
    assert (torch.from_numpy(halves.view(np.int16)).view(torch.bfloat16) == 1).all()

    for refused, reason in [
        (tensor.clone().requires_grad_(), "requires grad"),
        (tensor.bfloat16(), "BFloat16"),
        (tensor.to("meta"), "meta"),
        (tensor[0, 0].to_sparse(), "Sparse"),
    ]:
        with pytest.raises(autobwd.Error, match=f"`x` cannot be read as an array of NumPy: .*{reason}"):
            model(refused)


def test_an_empty_array_gives_an_empty_result(model):
    assert model(np.zeros([0, 1, 8, 10], np.float32)).shape == (0, 3)


def test_numbers_and_lists_get_the_declared_dtype(model, images):
    step = model.loss("cross_entropy")
    assert step(images[:1], [2]) == step(images[:1], np.array([2]))


@pytest.mark.parametrize(
    "value, reason",
    [
        (np.zeros([4, 8, 10], np.float32), "shape"),
        (np.zeros([4, 1, 8, 10]), "the program declares float32, but the tensor is float64"),
        (np.zeros([4, 1, 8, 10], complex), "`x` is an array of `complex128`"),
        (np.array(["a"]), "`x` is an array of `str32`"),
        (None, "`x` is an array of `object`"),
        (np.zeros([4, 2, 8, 10], np.float32), "shape"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(model, value, reason):
    with pytest.raises(autobwd.Error, match=reason):
        model(value)


def copying_model(dtype, shape=(-1, 2)):
    """A model whose output is its input, with names of its own for both."""

    def variable(name):
        return {
            "name": name,
            "type": "lod_tensor",
            "dtype": dtype,
            "shape": list(shape),
            "persistable": False,
            "stop_gradient": True,
            "is_parameter": False,
        }

    op = {"type": "assign", "inputs": {"X": ["x_0"]}, "outputs": {"Out": ["y_0"]}, "attrs": {}}
    signature = {
        "inputs": [{"name": "x", "variable": "x_0"}],
        "outputs": [{"name": "y", "variable": "y_0"}],
    }
    block = {"idx": 0, "parent_idx": -1, "vars": [variable("x_0"), variable("y_0")], "ops": [op]}
    Path("copy.json").write_text(json.dumps({"blocks": [block], "signature": signature}))
    return autobwd.load("copy.json")


def scalar_model():
    return copying_model("float32", shape=())


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_elements_of_each_dtype_come_back(dtype):
    model, values = copying_model(dtype), np.array([[0, 1], [2, 3], [1, 0]]).astype(dtype)
    assert repr(model) == f"<autobwd.Model: x {dtype} [-1, 2] -> y {dtype} [-1, 2]>"
    for given in (values, values[::-1], values.T.copy().T):
        (name, result), *_ = model.run({"x": given}).items()
        assert (name, result.dtype, model.inputs["x"].shape) == ("y", values.dtype, (None, 2))
        np.testing.assert_array_equal(result, given)


def test_a_bool_is_true_or_false_whatever_its_byte():
    values = np.array([[0, 1], [2, 255]], np.uint8).view(bool)
    for given in (values, values.T):
        result = copying_model("bool")(given)
        np.testing.assert_array_equal(result.view(np.uint8), given.view(np.uint8) != 0)


def test_bfloat16_needs_a_package(monkeypatch):
    model = copying_model("bfloat16")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(autobwd.Error, match="which NumPy has with the package `ml_dtypes`"):
        model([[1.0, 2.0]])


def test_values_of_a_model_are_copies_and_come_back(model, tmp_path):
    values = model.state_dict()
    values["head.bias"][:] = [1, 2, 3]
    assert (model.state_dict()["head.bias"] != values["head.bias"]).any()
    model.load_state_dict(values)
    model.save(tmp_path / "values.safetensors")
    again = autobwd.load("images.onnx", weights=tmp_path / "values.safetensors").state_dict()
    assert again.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(again[name], value)
