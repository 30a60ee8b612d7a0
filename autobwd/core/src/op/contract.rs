//! The contract between an operator and its gradient operator, checked at compile time.
//!
//! `#[track_caller]` on every function of the chain puts the caret on the author's code.
//!
//! Slots, arity and attributes are compared. Defaults and bounds that are no literals are compared by the registry
//! (`registry/declaration.rs`).

use super::{GradKind, GradRule, Op};
use crate::schema::{
    Arity, AttrDef, AttrType, ConstText, MAX_SLOTS, Nearest, Role, Schema, ScratchDef, SlotDef, const_for,
    find_attr, find_slot, is_joined,
};

type ContractText = ConstText<512>;

/// Checks an operator's declarations against each other and against its gradient operator. Evaluated once per operator.
#[track_caller]
pub const fn check_contract<O: Op>() {
    check_slots(&O::SCHEMA);
    check_scratch(&O::SCHEMA);
    if let GradKind::Operator(grad) = <O::Grad as GradRule<O>>::KIND {
        check_grad(&O::SCHEMA, grad);
    }
}

/// Checks that names in programs are unique on each side. The macro sees neither the attributes of a group nor the
/// names that a gradient operator inherits.
#[track_caller]
pub const fn check_names(op: &Schema) {
    check_slot_names(op, "input", op.inputs);
    check_slot_names(op, "output", op.outputs);
    const_for!(i, attr in op.attrs => {
        let (earlier, _) = op.attrs.split_at(i);
        if let Some(first) = find_attr(earlier, attr.name, false) {
            refuse_twice(op, "attribute", attr.name, [first.place(), attr.place()]);
        }
    });
}

#[track_caller]
const fn check_slot_names(op: &Schema, side: &str, slots: &[SlotDef]) {
    const_for!(i, slot in slots => {
        let (earlier, _) = slots.split_at(i);
        if let Some(first) = find_slot(earlier, slot.name, "") {
            let places = [(first.field, op.file, first.line), (slot.field, op.file, slot.line)];
            refuse_twice(op, side, slot.name, places);
        }
    });
}

#[track_caller]
const fn refuse_twice(op: &Schema, side: &str, name: &str, [one, other]: [(&str, &str, u32); 2]) {
    let text = ContractText::EMPTY.add(side).add(" `").add(name).add("` of `").add(op.name);
    let text = text.add("` is declared twice: by `").add(one.0).add("` (").add(one.1).add(":").number(one.2);
    let text = text.add(") and by `").add(other.0).add("` (").add(other.1).add(":").number(other.2);
    panic!("{}", text.add("); give one of them another name in quotes").as_str());
}

/// The macro has already checked that no slot of a formula is a list.
#[track_caller]
const fn check_slots(op: &Schema) {
    if op.pointwise && op.inputs.len() + op.outputs.len() > MAX_SLOTS {
        let text = ContractText::EMPTY.add("pointwise operator `").add(op.name).add("` has more than ");
        panic!(
            "{}",
            text.number(MAX_SLOTS as u32).add(" slots; write a kernel instead of a formula").as_str()
        );
    }
}

/// Scratch memory is one tensor; the macro has already checked that its slot takes one variable.
#[track_caller]
const fn check_scratch(op: &Schema) {
    const_for!(scratch in op.scratch => {
        let ScratchDef { field, role, like } = *scratch;
        let slots = match role {
            Role::Input => op.inputs,
            Role::Output => op.outputs,
        };
        if let Some(SlotDef { array: true, .. }) = find_slot(slots, like, "") {
            let text = ContractText::EMPTY.add("scratch memory `").add(field).add("` of `").add(op.name);
            let text = text.add("` is like `").add(like).add("`, which may hold a tensor array");
            panic!("{}", text.as_str());
        }
    });
}

/// Checks that an attribute of this type can have bounds.
#[track_caller]
pub const fn check_bounds(name: &str, ty: AttrType) {
    if !matches!(ty, AttrType::I32 | AttrType::I64 | AttrType::F32 | AttrType::F64) {
        let text = ContractText::EMPTY.add("`").add(name).add("` is of type ").add(ty.name());
        panic!("{}", text.add("; only numbers have bounds").as_str());
    }
}

#[track_caller]
const fn check_grad(op: &Schema, grad: &Schema) {
    const_for!(input in grad.inputs => { check_read(op, grad, input); });
    const_for!(output in grad.outputs => { check_write(op, grad, output); });
    const_for!(attr in grad.attrs => { check_attr(op, grad, attr); });
}

/// A gradient operator reads slots of the forward operator, or gradients of its outputs.
#[track_caller]
const fn check_read(op: &Schema, grad: &Schema, slot: &SlotDef) {
    let own = match find_slot(op.inputs, slot.name, "") {
        None => find_slot(op.outputs, slot.name, ""),
        found => found,
    };
    let (own, is_gradient) = match own {
        Some(own) => (Some(own), false),
        None => (find_slot(op.outputs, slot.name, "@GRAD"), true),
    };
    let Some(own) = own else {
        let text = at(grad, slot.line, "reads slot `", slot.name).add("), which `").add(op.name);
        let text = text.add("` cannot supply; it has inputs [").names(op.inputs).add("] and outputs [");
        let near = Nearest::NONE
            .or_slot(slot.name, op.inputs, "")
            .or_slot(slot.name, op.outputs, "")
            .or_slot(slot.name, op.outputs, "@GRAD");
        panic!("{}", text.names(op.outputs).add("]").did_you_mean(near).as_str());
    };
    let fits = match own.arity {
        Arity::One => matches!(slot.arity, Arity::One | Arity::Optional),
        Arity::Optional => matches!(slot.arity, Arity::Optional),
        // Some gradients of a list may be missing; without holes, zeros replace them.
        Arity::Many => matches!(slot.arity, Arity::Many | Arity::Holes),
        Arity::Holes => matches!(slot.arity, Arity::Holes),
    };
    if !fits {
        let of = if is_gradient { "), the gradient of a slot that is " } else { "), which is " };
        let text = at(grad, slot.line, "reads slot `", slot.name).add(of).add(own.arity.written());
        panic!("{}", differs(text, op, own.arity, slot.arity).as_str());
    }
    if own.array && !slot.array {
        let text =
            at(grad, slot.line, "reads slot `", slot.name).add("), which may hold a tensor array in `");
        panic!("{}", text.add(op.name).add("`; mark it `array`").as_str());
    }
}

/// A gradient operator writes the gradients of the forward operator's inputs that are wanted.
#[track_caller]
const fn check_write(op: &Schema, grad: &Schema, slot: &SlotDef) {
    let Some(own) = find_slot(op.inputs, slot.name, "@GRAD") else {
        let text = at(grad, slot.line, "writes slot `", slot.name);
        let text = text.add("), which is not the gradient of an input of `").add(op.name);
        let text = text.add("`; its inputs are [").names(op.inputs).add("]");
        let near = Nearest::NONE.or_slot(slot.name, op.inputs, "@GRAD");
        panic!("{}", text.did_you_mean(near).as_str());
    };
    if grad.outputs.len() > 1 && matches!(slot.arity, Arity::One) {
        let text = at(grad, slot.line, "writes slot `", slot.name);
        panic!("{}", text.add(") even if that gradient is not wanted; make it `Option<V>`").as_str());
    }
    let fits = match own.arity {
        Arity::One => matches!(slot.arity, Arity::One | Arity::Optional),
        Arity::Optional => matches!(slot.arity, Arity::One | Arity::Optional),
        Arity::Many | Arity::Holes => matches!(slot.arity, Arity::Holes),
    };
    if !fits {
        let text = at(grad, slot.line, "writes slot `", slot.name).add("), the gradient of a slot that is ");
        let needed = if own.arity.is_list() { Arity::Holes } else { Arity::Optional };
        panic!("{}", differs(text.add(own.arity.written()), op, needed, slot.arity).as_str());
    }
    if own.array && !slot.array {
        let text = at(grad, slot.line, "writes slot `", slot.name)
            .add("), the gradient of a slot that may hold a tensor ");
        panic!("{}", text.add("array in `").add(op.name).add("`; mark it `array`").as_str());
    }
}

/// … `` in `concat`: make it `Vec<Option<V>>` instead of `V` ``
const fn differs(text: ContractText, op: &Schema, needed: Arity, written: Arity) -> ContractText {
    let text = text.add(" in `").add(op.name).add("`: make it ").add(needed.written());
    text.add(" instead of ").add(written.written())
}

#[track_caller]
const fn check_attr(op: &Schema, grad: &Schema, attr: &AttrDef) {
    match find_attr(op.attrs, attr.name, false) {
        None => {
            let text = at_attr(grad, attr).add("), which `").add(op.name);
            let near = Nearest::NONE.or_attr(attr.name, op.attrs);
            panic!("{}", text.add("` does not have").did_you_mean(near).as_str());
        }
        Some(own) if own.ty as u8 != attr.ty as u8 => {
            let text = at_attr(grad, attr).add(") of type ").add(attr.ty.name());
            let text = text.add(", but in `").add(op.name).add("` it is ").add(own.ty.name());
            panic!("{}", text.as_str());
        }
        // The registry compares defaults that are no literals.
        Some(own)
            if !own.literal.is_empty()
                && !attr.literal.is_empty()
                && !is_joined(own.literal, attr.literal, "") =>
        {
            let text = at_attr(grad, attr).add(") with the default ").add(attr.literal);
            let text = text.add(", but in `").add(op.name).add("` it is ").add(own.literal);
            panic!("{}", text.add("; both need the same").as_str());
        }
        Some(_) => {}
    }
}

/// `` gradient operator `mul_grad` has attribute `axis` (src/mul.rs:12 ``
const fn at_attr(grad: &Schema, attr: &AttrDef) -> ContractText {
    at_place(grad, (attr.file, attr.line), "has attribute `", attr.name)
}

/// `` gradient operator `mul_grad` reads slot `Z` (src/mul.rs:12 ``
const fn at(grad: &Schema, line: u32, what: &str, name: &str) -> ContractText {
    at_place(grad, (grad.file, line), what, name)
}

const fn at_place(grad: &Schema, (file, line): (&str, u32), what: &str, name: &str) -> ContractText {
    let text = ContractText::EMPTY
        .add("gradient operator `")
        .add(grad.name)
        .add("` ")
        .add(what)
        .add(name)
        .add("` (");
    text.add(file).add(":").number(line)
}
