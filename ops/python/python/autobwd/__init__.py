"""Models of ONNX, PaddlePaddle and Hugging Face: run, differentiated and trained on CPUs.

>>> model = autobwd.load("images.onnx")
>>> step = model.loss("cross_entropy").train_step("adam:0.01")
>>> loss = step(np.ones([2, 1, 8, 10], np.float32), np.array([0, 1]))
>>> scores = model(np.ones([2, 1, 8, 10], np.float32))
"""

from autobwd._autobwd import Error, Generator, Model, Plan, TensorSpec, __version__, load

__all__ = ["Error", "Generator", "Model", "Plan", "TensorSpec", "__version__", "load"]
