//! What a gradient operator may ask of its forward operator, checked by the compiler.
//!
//! `#[track_caller]` on every function of the chain puts the caret on the author's code.

use super::{Arity, AttrDef, Op, Schema, SlotDef};
use crate::{GradKind, GradRule, lanes::MAX_SLOTS};

/// Checks an operator's declarations against each other and against its gradient operator. Const-evaluated once an
/// operator.
#[track_caller]
pub const fn check_contract<O: Op>() {
    check_slots(&O::SCHEMA);
    if let GradKind::Operator(grad) = <O::Grad as GradRule<O>>::KIND {
        check_grad(&O::SCHEMA, grad);
    }
}

/// That no slot of a formula is a list, the macro has seen.
#[track_caller]
const fn check_slots(op: &Schema) {
    if op.pointwise && op.inputs.len() + op.outputs.len() > MAX_SLOTS {
        let text = Text::new().add("pointwise operator `").add(op.name).add("` has more than ");
        panic!(
            "{}",
            text.number(MAX_SLOTS as u32).add(" slots; write a kernel instead of a formula").as_str()
        );
    }
}

#[track_caller]
const fn check_grad(op: &Schema, grad: &Schema) {
    let mut i = 0;
    while i < grad.inputs.len() {
        let slot = &grad.inputs[i];
        let supplied = has(op.inputs, slot.name, "") || has(op.outputs, slot.name, "");
        if !(supplied || has(op.outputs, slot.name, "@GRAD")) {
            let text = at(grad, slot.line, "reads slot `", slot.name).add("), which `").add(op.name);
            let text = text.add("` cannot supply; it has inputs [").names(op.inputs).add("] and outputs [");
            panic!("{}", text.names(op.outputs).add("]").as_str());
        }
        i += 1;
    }
    i = 0;
    while i < grad.outputs.len() {
        let slot = &grad.outputs[i];
        if !has(op.inputs, slot.name, "@GRAD") {
            let text = at(grad, slot.line, "writes slot `", slot.name);
            let text = text
                .add("), which is not the gradient of an input of `")
                .add(op.name)
                .add("`; its inputs are [");
            panic!("{}", text.names(op.inputs).add("]").as_str());
        }
        if grad.outputs.len() > 1 && matches!(slot.arity, Arity::One) {
            let text = at(grad, slot.line, "writes slot `", slot.name);
            panic!("{}", text.add(") whether it is wanted or not; make it `Option<V>`").as_str());
        }
        i += 1;
    }
    i = 0;
    while i < grad.attrs.len() {
        let attr = &grad.attrs[i];
        match find(op.attrs, attr.name) {
            None => {
                let text = at(grad, attr.line, "has attribute `", attr.name).add("), which `").add(op.name);
                panic!("{}", text.add("` has not").as_str());
            }
            Some(own) if own.ty as u8 != attr.ty as u8 => {
                let text =
                    at(grad, attr.line, "has attribute `", attr.name).add(") of type ").add(attr.ty.name());
                let text = text.add(", but in `").add(op.name).add("` it is ").add(own.ty.name());
                panic!("{}", text.as_str());
            }
            Some(_) => {}
        }
        i += 1;
    }
}

/// `` gradient operator `mul_grad` reads slot `Z` (src/mul.rs:12 ``
const fn at(grad: &Schema, line: u32, what: &str, name: &str) -> Text {
    let text = Text::new().add("gradient operator `").add(grad.name).add("` ").add(what).add(name).add("` (");
    text.add(grad.file).add(":").number(line)
}

const fn find(attrs: &'static [AttrDef], name: &str) -> Option<&'static AttrDef> {
    let mut i = 0;
    while i < attrs.len() {
        if is_joined(name, attrs[i].name, "") {
            return Some(&attrs[i]);
        }
        i += 1;
    }
    None
}

/// Whether `name` is some slot's name followed by `suffix`.
const fn has(slots: &[SlotDef], name: &str, suffix: &str) -> bool {
    let mut i = 0;
    while i < slots.len() {
        if is_joined(name, slots[i].name, suffix) {
            return true;
        }
        i += 1;
    }
    false
}

const fn is_joined(whole: &str, head: &str, tail: &str) -> bool {
    let (whole, head, tail) = (whole.as_bytes(), head.as_bytes(), tail.as_bytes());
    if whole.len() != head.len() + tail.len() {
        return false;
    }
    let mut i = 0;
    while i < whole.len() {
        let expected = if i < head.len() { head[i] } else { tail[i - head.len()] };
        if whole[i] != expected {
            return false;
        }
        i += 1;
    }
    true
}

/// Text put together during constant evaluation, for panic messages.
pub(super) struct Text {
    bytes: [u8; 512],
    len: usize,
}

impl Text {
    pub(super) const fn new() -> Text {
        Text { bytes: [0; 512], len: 0 }
    }

    pub(super) const fn add(mut self, text: &str) -> Text {
        let text = text.as_bytes();
        let mut i = 0;
        while i < text.len() && self.len < self.bytes.len() {
            self.bytes[self.len] = text[i];
            self.len += 1;
            i += 1;
        }
        self
    }

    const fn number(self, n: u32) -> Text {
        let text = if n >= 10 { self.number(n / 10) } else { self };
        let digit = [b'0' + (n % 10) as u8];
        match core::str::from_utf8(&digit) {
            Ok(digit) => text.add(digit),
            Err(_) => text,
        }
    }

    const fn names(mut self, slots: &[SlotDef]) -> Text {
        let mut i = 0;
        while i < slots.len() {
            if i > 0 {
                self = self.add(", ");
            }
            self = self.add(slots[i].name);
            i += 1;
        }
        self
    }

    pub(super) const fn as_str(&self) -> &str {
        let mut len = self.len;
        loop {
            match core::str::from_utf8(self.bytes.split_at(len).0) {
                Ok(text) => return text,
                // Cut within a character.
                Err(_) => len -= 1,
            }
        }
    }
}
