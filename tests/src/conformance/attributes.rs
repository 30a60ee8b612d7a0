//! Which attributes count.

use autobwd::{OpInfo, program::AttrMap};

use super::Difference;

/// Attributes of the reference's operators that autobwd has no use for, with the operators they are left out of where
/// these do not declare them. One that is neither declared nor here is a difference, not an oversight.
const IGNORED: &[(&str, &[&str])] = &[
    // Left over from `split`: the number of operands says it all.
    ("num", &["concat"]),
    ("sections", &["concat"]),
    // Layouts of vendors' libraries, always "AnyLayout" or empty.
    ("data_format", &["softmax", "softmax_grad", "transpose2", "transpose2_grad"]),
    ("x_data_format", &["elementwise_min", "elementwise_min_grad"]),
    ("y_data_format", &["elementwise_min", "elementwise_min_grad"]),
    // Training and inference are the same for these.
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
    // Which elements were chosen is in `Indices`.
    ("largest", &["top_k_v2_grad"]),
    ("sorted", &["top_k_v2_grad"]),
    // Generators of vendors' devices.
    ("deterministic", &["seed"]),
    ("rng_name", &["seed"]),
    // The mask has been drawn.
    ("fix_seed", &["dropout_grad"]),
    ("seed", &["dropout_grad"]),
    // What stood around the inner part has no gradient.
    ("pad_value", &["pad_grad"]),
    // Of the running statistics, which have no gradient.
    ("momentum", &["batch_norm_grad"]),
    // Whether a bound is known while building, which the shapes say as well.
    ("infer_flags", &["slice", "slice_grad"]),
];

fn is_ignored(ty: &str, name: &str) -> bool {
    IGNORED.iter().any(|(ignored, of)| *ignored == name && of.contains(&ty))
}

/// The attributes that count: those that the operator declares, all when nobody knows the operator.
///
/// # Errors
/// One that is neither declared nor known to be of no use.
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
