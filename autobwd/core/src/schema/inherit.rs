//! Declarations that a gradient operator with `grad_of = Tanh` inherits from its forward operator, during constant
//! evaluation.
//!
//! A field with the name of a field of the forward operator is the same slot or attribute. A field with the name of a
//! slot and a prefix `d` is that slot's gradient. For an unknown name, which `check_slot` or `check_attr` has reported,
//! the other functions return an arbitrary value.

use super::{
    Arity, AttrCheck, AttrDef, AttrType, ConstText, Role, Schema, SlotDef,
    const_for::const_for,
    const_lookup::{find_attr, find_field},
    const_text::Nearest,
};

/// The slot that a field of the gradient operator refers to.
#[derive(Clone, Copy)]
struct InheritedSlot {
    /// The slot of the forward operator.
    slot: SlotDef,
    side: Role,
    /// Whether the field is that slot's gradient.
    is_gradient: bool,
}

/// Slot names take precedence over gradients: if `dout` and `out` are both slots, `d_out` is the gradient of `out`.
const fn find(forward: &Schema, field: &str) -> Option<InheritedSlot> {
    const_for!(k, prefix in &["", "d", "d_"] => {
        let is_gradient = k > 0;
        if let Some(slot) = find_field(forward.inputs, prefix, field) {
            return Some(InheritedSlot { slot: *slot, side: Role::Input, is_gradient });
        }
        if let Some(slot) = find_field(forward.outputs, prefix, field) {
            return Some(InheritedSlot { slot: *slot, side: Role::Output, is_gradient });
        }
    });
    None
}

/// Checks that a field of a gradient operator refers to a slot that is valid on its side.
#[track_caller]
pub const fn check_slot(forward: &Schema, field: &str, role: Role) {
    let text = ConstText::<512>::EMPTY.add("`").add(field).add("` ");
    let Some(found) = find(forward, field) else {
        let text = text
            .add("is not a slot of `")
            .add(forward.name)
            .add("`, nor the gradient of one: its inputs are [");
        let text = text.fields(forward.inputs).add("], its outputs [").fields(forward.outputs).add("]");
        let near = Nearest::NONE
            .or_field(field, "", forward.inputs)
            .or_field(field, "", forward.outputs)
            .or_field(field, "d", forward.inputs)
            .or_field(field, "d", forward.outputs);
        panic!("{}", text.did_you_mean(near).as_str());
    };
    let of = found.slot.field;
    match (role, found.is_gradient, found.side) {
        (Role::Input, false, _) | (Role::Input, true, Role::Output) | (Role::Output, true, Role::Input) => {}
        (Role::Input, true, Role::Input) => {
            let text =
                text.add("is the gradient of the input `").add(of).add("`, which a gradient operator writes");
            panic!("{}", text.add(": mark it `#[output]`").as_str());
        }
        (Role::Output, true, Role::Output) => {
            let text =
                text.add("is the gradient of the output `").add(of).add("`, which a gradient operator reads");
            panic!("{}", text.add(": remove `#[output]`").as_str());
        }
        (Role::Output, false, _) => {
            let text =
                text.add("is a slot of `").add(forward.name).add("`, which a gradient operator only reads");
            panic!("{}", text.add(": remove `#[output]`").as_str());
        }
    }
}

/// Length of the slot's name in programs.
pub const fn slot_name_len(forward: &Schema, field: &str) -> usize {
    match find(forward, field) {
        Some(found) => found.slot.name.len() + if found.is_gradient { GRAD.len() } else { 0 },
        None => 0,
    }
}

const GRAD: &str = "@GRAD";

/// The slot's name in programs, as bytes.
pub const fn slot_name<const N: usize>(forward: &Schema, field: &str) -> [u8; N] {
    let mut name = [0; N];
    if let Some(found) = find(forward, field) {
        let (own, mut i) = (found.slot.name.as_bytes(), 0);
        while i < N {
            name[i] = if i < own.len() { own[i] } else { GRAD.as_bytes()[i - own.len()] };
            i += 1;
        }
    }
    name
}

/// The slot of a gradient operator's field, with documentation and `array` of the forward operator.
pub const fn inherit_slot(
    forward: &Schema,
    field: &'static str,
    name: &'static str,
    arity: Arity,
    doc: &'static str,
    line: u32,
) -> SlotDef {
    let slot = SlotDef::new(name, arity, doc, line).field(field);
    match find(forward, field) {
        Some(found) => {
            let doc = if doc.is_empty() && !found.is_gradient { found.slot.doc } else { doc };
            SlotDef { doc, array: found.slot.array, checked: found.slot.checked, ..slot }
        }
        None => slot,
    }
}

/// Checks that a field of a gradient operator is an attribute of the forward operator.
#[track_caller]
pub const fn check_attr(forward: &Schema, field: &str, ty: AttrType) {
    let text = ConstText::<512>::EMPTY.add("`").add(field).add("` ");
    match find_attr(forward.attrs, field, true) {
        None => {
            let text = text.add("is not an attribute of `").add(forward.name).add("`");
            panic!("{}", text.did_you_mean(Nearest::NONE.or_attr(field, forward.attrs)).as_str());
        }
        Some(own) if own.ty as u8 != ty as u8 => {
            let text =
                text.add("is an attribute of type ").add(ty.name()).add(", but in `").add(forward.name);
            panic!("{}", text.add("` it is ").add(own.ty.name()).as_str());
        }
        Some(_) => {}
    }
}

/// The attribute of a field, with name, default and bounds of the forward operator, and with its documentation if the
/// field has none.
pub const fn inherit_attr(
    forward: &Schema,
    field: &'static str,
    (ty, check): (AttrType, AttrCheck),
    doc: &'static str,
    (file, line): (&'static str, u32),
) -> AttrDef {
    match find_attr(forward.attrs, field, true) {
        Some(own) => {
            AttrDef { field, ty, check, doc: if doc.is_empty() { own.doc } else { doc }, file, line, ..*own }
        }
        None => AttrDef {
            name: field,
            field,
            ty,
            default: None,
            literal: "",
            bounds: &[],
            check,
            doc,
            file,
            line,
        },
    }
}
