"""Arrays in and out."""

import gc
import json
import sys
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


def test_a_result_owns_its_memory_and_outlives_its_model(images):
    model = autobwd.load("images.onnx")
    first, expected = model(images), model(images).copy()
    second = model(images * 2)
    del model
    gc.collect()
    np.testing.assert_array_equal(first, expected)
    assert not np.shares_memory(first, second)
    assert first.flags.c_contiguous and first.flags.writeable


def test_results_are_exchanged_by_the_buffer_protocol_and_dlpack(model, images):
    scores = model(images)
    assert memoryview(scores).shape == (4, 3)
    assert np.shares_memory(np.from_dlpack(scores), scores)


def test_objects_with_dlpack_alone_are_fed(model, images):
    class Foreign:
        def __dlpack__(self, **kwargs):
            return images.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return images.__dlpack_device__()

    np.testing.assert_array_equal(model(Foreign()), model(images))


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


def copying_model(dtype):
    """A model whose output is its input, with names of its own for both."""

    def variable(name):
        return {
            "name": name,
            "type": "lod_tensor",
            "dtype": dtype,
            "shape": [-1, 2],
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
