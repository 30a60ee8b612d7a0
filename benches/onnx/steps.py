"""Checks a training step and runs some with ONNX Runtime; prints the losses, and what is kept if that is small."""

import json
import sys

import onnx
import onnxruntime

path, steps = sys.argv[1], int(sys.argv[2])
onnx.checker.check_model(path, full_check=True)
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
losses, state = [], {}
for _ in range(steps):
    values = dict(zip(names, session.run(None, state)))
    state = {name.removesuffix(".next"): value for name, value in values.items() if name.endswith(".next")}
    losses.append(float(values[names[0]].item()))
small = sum(value.size for value in state.values()) < 10_000
kept = {name: value.ravel().tolist() for name, value in state.items()} if small else {}
print(json.dumps({"losses": losses, "state": kept, "nodes": len(onnx.load(path).graph.node)}))
