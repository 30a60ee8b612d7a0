"""Trains with ONNX Runtime, by a training step that `training_step.rs` has written (pip install numpy onnxruntime)."""

import sys

import numpy as np
import onnxruntime

options = onnxruntime.SessionOptions()
options.log_severity_level = 3  # It warns of inputs with a default.
session = onnxruntime.InferenceSession(sys.argv[1], options)
names = [output.name for output in session.get_outputs()]
rng = np.random.default_rng(0)
state = {}
for step in range(301):
    x = rng.normal(size=(32, 2)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:] > 0).astype(np.int64)
    values = dict(zip(names, session.run(None, {"x": x, "y": y} | state)))
    state = {name.removesuffix(".next"): value for name, value in values.items() if name.endswith(".next")}
    if step % 50 == 0:
        print(f"step {step}: loss {float(values[names[0]].item()):.4f}")
