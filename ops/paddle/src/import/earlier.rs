//! Operators of PaddlePaddle 1.x as the operators that replaced them, which mean the same.

use crate::proto::{AttrType, OpDesc, op_desc::Attr};

/// A name then and now.
type Renaming = (&'static str, &'static str);

/// Types of operators, with the names of their slots and attributes.
const REPLACED: &[(Renaming, &[Renaming])] = &[
    (("bilinear_interp", "bilinear_interp_v2"), &[]),
    (
        ("expand", "tile"),
        &[
            ("ExpandTimes", "RepeatTimes"),
            ("expand_times_tensor", "repeat_times_tensor"),
            ("expand_times", "repeat_times"),
        ],
    ),
    (("fill_zeros_like2", "fill_any_like"), &[]),
    (("grad_add", "elementwise_add"), &[]),
    (("nearest_interp", "nearest_interp_v2"), &[]),
    (("reshape", "reshape2"), &[]),
    (("top_k", "top_k_v2"), &[]),
    (("transpose", "transpose2"), &[]),
];

/// The operator as PaddlePaddle 2.x writes it.
pub(super) fn modern(mut op: OpDesc) -> OpDesc {
    if op.r#type == "flatten2" {
        return flatten(op);
    }
    if op.r#type.starts_with("conv3d_transpose") {
        // The default, which means that channels come first.
        let layout = op.attrs.iter_mut().filter(|attr| attr.name == "data_format");
        layout
            .filter(|attr| attr.s.as_deref() == Some("NCHW"))
            .for_each(|attr| attr.s = Some("NCDHW".into()));
    }
    let Some(((_, now), names)) = REPLACED.iter().find(|((then, _), _)| *then == op.r#type) else {
        return op;
    };
    op.r#type = now.to_string();
    let slots = op.inputs.iter_mut().chain(&mut op.outputs).map(|slot| &mut slot.parameter);
    for name in slots.chain(op.attrs.iter_mut().map(|attr| &mut attr.name)) {
        if let Some((_, now)) = names.iter().find(|(then, _)| then == name) {
            *name = now.to_string();
        }
    }
    if now.ends_with("_interp_v2") {
        op.attrs.iter_mut().filter(|attr| attr.name == "scale").for_each(scale_of_each_axis);
    }
    op
}

/// One factor for all axes, or none if it is 0.
fn scale_of_each_axis(scale: &mut Attr) {
    if let Some(factor) = scale.f.take() {
        scale.floats = if factor > 0.0 { vec![factor; 2] } else { vec![] };
        scale.r#type = AttrType::Floats.into();
    }
}

/// `flatten2` makes matrices. From the second dimension on, that is what `flatten_contiguous_range` does; it does not know
/// another `axis`.
fn flatten(mut op: OpDesc) -> OpDesc {
    op.r#type = "flatten_contiguous_range".into();
    if let Some(axis) = op.attrs.iter_mut().find(|attr| attr.name == "axis" && attr.i == Some(1)) {
        axis.name = "start_axis".into();
    }
    let stop =
        Attr { name: "stop_axis".into(), r#type: AttrType::Int.into(), i: Some(-1), ..Attr::default() };
    op.attrs.push(stop);
    op
}
