"""Models of the repository, in a folder of their own, which is the working directory of all tests."""

from pathlib import Path

import numpy as np
import pytest

import autobwd

OPS = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    for source in [
        OPS / "onnx/tests/models/images.onnx",
        OPS / "onnx/tests/models/encoder.onnx",
        OPS / "paddle/tests/models/images.pdmodel",
        OPS / "paddle/tests/models/images.pdiparams",
        OPS / "models/tests/fixtures/qwen2",
    ]:
        (tmp_path / source.name).symlink_to(source)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model():
    return autobwd.load("images.onnx")


@pytest.fixture
def images():
    return np.random.default_rng(1).random([4, 1, 8, 10], np.float32)


@pytest.fixture
def labels():
    return np.array([0, 1, 2, 0])
