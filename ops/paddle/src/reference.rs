//! The operators that PaddlePaddle 2.6.2 knows: slots, attributes with their defaults, and versions.
//!
//! The table `reference.json`, which `reference.py` writes, also decides which unknown attributes are harmless.

use std::{collections::BTreeMap, sync::LazyLock};

use autobwd::{Attr, DType, Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::proto::AttrType;

/// An operator of the reference.
#[derive(Default, Deserialize)]
pub(crate) struct ReferenceOp {
    /// Slots; empty for gradient operators, which have no prototype.
    #[serde(default)]
    pub(crate) inputs: Vec<String>,
    #[serde(default)]
    pub(crate) outputs: Vec<String>,
    /// Types and defaults of the prototype's attributes.
    #[serde(default)]
    attrs: BTreeMap<String, (String, Value)>,
    /// Those of others, execution hints among them.
    #[serde(default)]
    extra: BTreeMap<String, (String, Value)>,
    /// The version of its definition, if it ever changed.
    #[serde(default)]
    pub(crate) version: Option<i32>,
}

/// The table that `reference.py` writes.
static REFERENCE: LazyLock<Result<BTreeMap<String, ReferenceOp>>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("reference.json"))
        .map_err(|e| Error::new(ErrorKind::Internal, format!("the table of reference operators: {e}")))
});

/// Attributes that select an implementation and change no result.
const HINTS: [&str; 33] = [
    "dst_place_type",
    "epmap",
    "exhaustive_search",
    "force_cpu",
    "force_fp32_output",
    "height_sections",
    "is_distributed",
    "mkldnn_data_type",
    "onednn_data_type",
    "op_callstack",
    "op_device",
    "op_namescope",
    "op_role",
    "op_role_var",
    "place_type",
    "quantization_type",
    "remote_prefetch",
    "skip_eager_deletion_vars",
    "skip_quant",
    "slot",
    "table_names",
    "trainer_id",
    "use_addto",
    "use_cudnn",
    "use_mkldnn",
    "use_onednn",
    "use_quantizer",
    "with_quant_attr",
    "workspace_size_MB",
    "min_row_size_to_use_multithread",
    "infer_flags",
    "op_trace_id",
    "multi_precision",
];

/// Operators that copy a tensor from one device to another: a program has one device.
const COPIES: [&str; 3] = ["memcpy", "memcpy_d2h", "memcpy_h2d"];

/// Slots of the float32 master weights in an update of 16-bit parameters.
const MASTER_WEIGHTS: [&str; 2] = ["MasterParam", "MasterParamOut"];

/// Slots with another name there: operator, name here, name there.
const RENAMED_SLOTS: [(&str, &str, &str); 1] = [("meshgrid_grad", "Out@GRAD", "outputs@GRAD")];

/// Operators that are the gradient of another one, with the attributes that they copy from it and do not read.
const DIFFERENTIATED: [(&str, &[&str]); 1] = [("concat", &["num", "sections"])];

/// Outputs of another dtype than the reference declares: operator, slot, dtype of the values.
const DECLARED_AS_FLOAT: [(&str, &str, DType); 2] =
    [("accuracy", "Correct", DType::I32), ("accuracy", "Total", DType::I32)];

/// The type of an operator here, by that in the reference.
pub(crate) fn op_here(there: &str) -> &str {
    if COPIES.contains(&there) { "assign" } else { there }
}

/// The name of a slot of master weights, which registered updates do not have.
pub(crate) fn master_weights(slot: &str) -> Option<&'static str> {
    MASTER_WEIGHTS.into_iter().find(|name| *name == slot)
}

/// The name of a slot here, by that in the reference.
pub(crate) fn slot_here<'a>(ty: &str, there: &'a str) -> &'a str {
    RENAMED_SLOTS.iter().find(|(op, _, name)| *op == ty && *name == there).map_or(there, |(_, here, _)| *here)
}

/// The name of a slot in the reference, by that here.
pub(crate) fn slot_there<'a>(ty: &str, here: &'a str) -> &'a str {
    RENAMED_SLOTS.iter().find(|(op, name, _)| *op == ty && *name == here).map_or(here, |(.., there)| *there)
}

/// The dtype of an output, if the reference declares another one.
pub(crate) fn true_dtype(ty: &str, slot: &str) -> Option<DType> {
    DECLARED_AS_FLOAT.iter().find(|(op, name, _)| *op == ty && *name == slot).map(|(.., dtype)| *dtype)
}

/// Whether a slot of a gradient operator is an output of its forward operator. One that the registered gradient does not
/// have is computed from the inputs.
pub(crate) fn is_forward_output(ty: &str, slot: &str) -> bool {
    let forward = ty.strip_suffix("_grad").map(reference);
    matches!(forward, Some(Ok(Some(op))) if op.outputs.iter().any(|output| output == slot))
}

/// Whether an operator copies an attribute from the operator that it is the gradient of, and does not read it.
pub(crate) fn is_of_differentiated(ty: &str, attr: &str) -> bool {
    DIFFERENTIATED.iter().any(|(op, attrs)| *op == ty && attrs.contains(&attr))
}

/// Whether an attribute changes no result.
pub(crate) fn is_hint(attr: &str) -> bool {
    HINTS.contains(&attr)
}

/// An operator of the reference by its type.
pub(crate) fn reference(ty: &str) -> Result<Option<&'static ReferenceOp>> {
    match &*REFERENCE {
        Ok(ops) => Ok(ops.get(ty)),
        Err(e) => Err(e.clone()),
    }
}

/// The forward operator of a gradient operator's type.
fn forward(ty: &str) -> Option<&str> {
    ty.strip_suffix("_grad").or_else(|| ty.strip_suffix("_double"))
}

/// The type of an attribute in the reference, and its default if it has one. A gradient operator has the attributes of
/// its forward operator.
pub(crate) fn reference_attr(ty: &str, attr: &str) -> Result<Option<(AttrType, Option<Attr>)>> {
    let mut at = Some(ty);
    while let Some(ty) = at {
        if let Some((kind, default)) =
            reference(ty)?.and_then(|op| op.attrs.get(attr).or_else(|| op.extra.get(attr)))
        {
            let kind = AttrType::from_str_name(kind).ok_or_else(|| {
                Error::new(ErrorKind::Internal, format!("the table of reference operators: type `{kind}`"))
            })?;
            return Ok(Some((kind, default_value(kind, default))));
        }
        at = forward(ty);
    }
    Ok(None)
}

/// The defaults of a gradient operator's attributes, which are those of its forward operator's prototype.
pub(crate) fn gradient_defaults(ty: &str) -> Result<Vec<(&'static str, Attr)>> {
    let (mut at, mut found) = (Some(ty), vec![]);
    while let Some(ty) = at {
        for (name, (kind, default)) in reference(ty)?.iter().flat_map(|op| &op.attrs) {
            let default = AttrType::from_str_name(kind).and_then(|kind| default_value(kind, default));
            if let Some(default) = default.filter(|_| found.iter().all(|(known, _)| known != name)) {
                found.push((name.as_str(), default));
            }
        }
        at = forward(ty);
    }
    Ok(found)
}

/// A default as an attribute; `None` if there is none, or if programs have no attributes of its type.
fn default_value(kind: AttrType, value: &Value) -> Option<Attr> {
    fn all<T>(value: &Value, one: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
        value.as_array()?.iter().map(one).collect()
    }
    let int = |value: &Value| i32::try_from(value.as_i64()?).ok();
    let float = |value: &Value| Some(value.as_f64()? as f32);
    let text = |value: &Value| Some(value.as_str()?.to_string());
    Some(match kind {
        AttrType::Int => Attr::I32(int(value)?),
        AttrType::Float => Attr::F32(float(value)?),
        AttrType::String => Attr::Str(text(value)?),
        AttrType::Ints => Attr::I32s(all(value, int)?),
        AttrType::Floats => Attr::F32s(all(value, float)?),
        AttrType::Strings => Attr::Strs(all(value, text)?),
        AttrType::Boolean => Attr::Bool(value.as_bool()?),
        AttrType::Booleans => Attr::Bools(all(value, Value::as_bool)?),
        AttrType::Long => Attr::I64(value.as_i64()?),
        AttrType::Longs => Attr::I64s(all(value, Value::as_i64)?),
        AttrType::Float64 => Attr::F64(value.as_f64()?),
        AttrType::Float64s => Attr::F64s(all(value, Value::as_f64)?),
        _ => return None,
    })
}

/// The neutral value of an attribute that files of PaddlePaddle 2.0 to 2.5 contain and 2.6 dropped: those of fused and
/// quantised convolutions, products and sums.
pub(crate) fn is_neutral_in_earlier_versions(attr: &str, value: &Attr) -> bool {
    match (attr, value) {
        ("fuse_brelu_threshold", Attr::F32(x)) => *x == 6.0,
        (_, Attr::F32(x)) if attr.starts_with("Scale_") => *x == 1.0,
        (_, Attr::F32s(all)) if attr.starts_with("Scale_") => all.iter().all(|x| *x == 1.0),
        ("x_data_format" | "y_data_format", Attr::Str(text)) => text.is_empty(),
        _ if attr.starts_with("fuse_") || attr.starts_with("fused_") => match value {
            Attr::Bool(on) => !on,
            Attr::F32(x) => *x == 0.0,
            Attr::I32(x) => *x == 0,
            Attr::Str(text) => text.is_empty(),
            Attr::I32s(all) => all.is_empty(),
            Attr::Strs(all) => all.is_empty(),
            _ => false,
        },
        _ => false,
    }
}
