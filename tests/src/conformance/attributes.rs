//! Attributes that are compared.

use autobwd::{op::OpInfo, program::AttrMap};

use super::Difference;

/// Attributes of the reference's operators that autobwd does not need, with the operators that may omit them. Any other
/// undeclared attribute is a difference.
const IGNORED: &[(&str, &[&str])] = &[
    // Left over from `split`; the number of operands is known.
    ("num", &["concat"]),
    ("sections", &["concat"]),
    // Layouts of vendor libraries, always "AnyLayout" or empty.
    ("data_format", &["softmax", "softmax_grad", "transpose2", "transpose2_grad"]),
    ("x_data_format", &["elementwise_min", "elementwise_min_grad"]),
    ("y_data_format", &["elementwise_min", "elementwise_min_grad"]),
    // Training and inference are the same for these operators.
    (
        "is_test",
        &[
            "conv2d",
            "conv2d_grad",
            "conv2d_transpose",
            "conv2d_transpose_grad",
            "layer_norm",
            "layer_norm_grad",
            "lookup_table",
            "lookup_table_grad",
            "pool2d",
            "pool2d_grad",
            "prelu",
            "prelu_grad",
            "softmax",
            "softmax_grad",
            "while",
            "while_grad",
        ],
    ),
    // `Indices` has the positions.
    ("descending", &["argsort_grad"]),
    ("largest", &["top_k_v2_grad"]),
    ("sorted", &["top_k_v2_grad"]),
    // Generators of vendor devices.
    ("deterministic", &["seed"]),
    ("rng_name", &["seed"]),
    // The mask has been drawn.
    ("fix_seed", &["dropout_grad"]),
    ("seed", &["dropout_grad"]),
    // Padding has no gradient.
    ("pad_value", &["pad_grad"]),
    ("value", &["pad3d_grad"]),
    // For the running statistics, which have no gradient.
    ("momentum", &["batch_norm_grad"]),
    // Whether a bound is known while building; shapes tell the same.
    ("infer_flags", &["slice", "slice_grad"]),
];

fn is_ignored(ty: &str, name: &str) -> bool {
    IGNORED.iter().any(|(ignored, of)| *ignored == name && of.contains(&ty))
}

/// The attributes to compare: those that the operator declares, or all of an unknown operator.
///
/// # Errors
/// An attribute that is neither declared nor ignored.
pub(super) fn relevant(ty: &str, info: Option<&OpInfo>, attrs: &AttrMap) -> Result<AttrMap, Difference> {
    let mut kept = AttrMap::default();
    for (name, value) in attrs.iter() {
        let declared = info.is_none_or(|info| info.schema().attr(&name).is_some());
        if declared {
            kept.set(name, value.clone());
        } else if !is_ignored(ty, &name) {
            let text = format!(
                "operator `{ty}`: attribute `{name}` is neither declared nor on the list of ignored ones"
            );
            return Err(Difference::new(text));
        }
    }
    Ok(kept)
}
