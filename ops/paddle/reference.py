"""Writes reference.json: the operators of PaddlePaddle 2.6.2 that program files can hold.

Run with `pip install paddlepaddle==2.6.2 numpy==1.26.4`: python3 reference.py > reference.json

One line an operator: its input and output slots (none are recorded for gradient operators), and its attributes, each
with its type and default value, `null` where there is no default; `extra` are those outside of its prototype.
"""
import json

from paddle.base import core
from paddle.base.proto import framework_pb2

COMMON = {"op_role", "op_role_var", "op_namescope", "op_callstack", "op_device", "with_quant_attr"}
TYPES = framework_pb2.AttrType


def attr_type(value):
    """The type of an attribute that is outside of the OpProto, by its default value."""
    if isinstance(value, list):
        return attr_type(value[0]) + "S" if value else "INTS"
    return {bool: "BOOLEAN", int: "INT", float: "FLOAT", str: "STRING"}[type(value)]


protos = {}
for text in core.get_all_op_protos():
    proto = framework_pb2.OpProto.FromString(text)
    protos[proto.type] = proto

print("{")
lines = []
versions = core.get_op_version_map()
for name in sorted(core.get_all_op_names()):
    if name.endswith("_p"):
        continue
    proto = protos.get(name)
    defaults = dict(core.get_op_attrs_default_value(name.encode()))
    extra = dict(core.get_op_extra_attrs(name))
    attrs = {}
    for attr in proto.attrs if proto else []:
        if attr.name not in COMMON:
            attrs[attr.name] = [TYPES.Name(attr.type), defaults.get(attr.name)]
    extra = {attr: [attr_type(value), value] for attr, value in extra.items() if attr not in COMMON | attrs.keys()}
    entry = {"inputs": [slot.name for slot in proto.inputs], "outputs": [slot.name for slot in proto.outputs]} if proto else {}
    if name in versions:
        entry["version"] = versions[name].version_id()
    if attrs:
        entry["attrs"] = dict(sorted(attrs.items()))
    if extra:
        entry["extra"] = dict(sorted(extra.items()))
    lines.append(json.dumps(name) + ": " + json.dumps(entry, separators=(", ", ": ")))
print(",\n".join(lines))
print("}")
