"""Arrays in and out."""

import gc

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


def test_dtypes_go_through_casts_unchanged(model, tmp_path):
    """Values of every dtype that NumPy has itself, as values that a program keeps."""
    values = model.state_dict()
    assert {str(value.dtype) for value in values.values()} == {"float32"}
    values["head.bias"] = np.array([1, 2, 3], np.float32)
    model.load_state_dict(values)
    model.save(tmp_path / "values.safetensors")
    again = autobwd.load("images.onnx", weights=tmp_path / "values.safetensors").state_dict()
    for name, value in values.items():
        np.testing.assert_array_equal(again[name], value)
