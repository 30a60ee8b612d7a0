//! Compile-time checks of an operator's declarations, and of trait implementations that `#[register_op]` would ignore.

use std::marker::PhantomData;

use super::{Decompose, OpSequenceFn};
use crate::{
    Control, Infer, Kernel, Pointwise,
    schema::{Arity, ConstText, Schema, const_for, has_slot},
};

/// Detects the traits that a type implements: an inherent constant here hides the constant of [`ImplDefaults`].
#[derive(Debug)]
pub struct ImplProbe<T>(PhantomData<T>);

/// The defaults of [`ImplProbe`], for traits that a type does not implement.
pub trait ImplDefaults {
    /// For [`Infer`].
    const INFER: bool = false;
    /// For [`Kernel`].
    const KERNEL: bool = false;
    /// For [`Pointwise`].
    const POINTWISE: bool = false;
    /// For [`Decompose`].
    const DECOMPOSE: bool = false;
    /// For [`Control`].
    const CONTROL: bool = false;
    /// For [`Composition`](crate::Composition).
    const COMPOSITION: Option<OpSequenceFn> = None;
}
impl<T> ImplDefaults for ImplProbe<T> {}

impl<T: Infer> ImplProbe<T> {
    /// It is implemented.
    pub const INFER: bool = true;
}
impl<T: Kernel> ImplProbe<T> {
    /// It is implemented.
    pub const KERNEL: bool = true;
}
impl<T: Pointwise> ImplProbe<T> {
    /// It is implemented.
    pub const POINTWISE: bool = true;
}
impl<T: Decompose> ImplProbe<T> {
    /// It is implemented.
    pub const DECOMPOSE: bool = true;
}
impl<T: Control> ImplProbe<T> {
    /// It is implemented.
    pub const CONTROL: bool = true;
}

/// Rejects `grad = Composed` and `composed` for an operator without a composition; `forward` is the operator that it is
/// the gradient of.
#[track_caller]
pub const fn check_composed(op: &str, grad_of: Option<&Schema>, own: &Schema, composing: [bool; 2]) {
    let text = ConstText::<512>::EMPTY.add("`").add(op).add("` has no composition: ");
    match (grad_of, composing) {
        (_, [true, _]) => {}
        (None, _) => panic!("{}", text.add("write `impl Composition for ").add(op).add("<Expr>`").as_str()),
        (Some(forward), [_, false]) => {
            let text = text.add("write `impl Composition` for it or for `").add(forward.name).add("`");
            panic!("{}", text.as_str());
        }
        (Some(forward), [_, true]) => {
            if let Some(input) = unread_input(forward, own) {
                let text = text.add("the composition of `").add(forward.name).add("` needs input `");
                let text = text.add(input).add("`, which `").add(op).add("` does not read");
                panic!("{}", text.as_str());
            }
        }
    }
}

/// The first input of an operator that its gradient operator does not read, if there is one.
pub(crate) const fn unread_input(forward: &Schema, gradient: &Schema) -> Option<&'static str> {
    const_for!(input in forward.inputs => {
        if !has_slot(gradient.inputs, input.name, "") {
            return Some(input.name);
        }
    });
    None
}

/// Rejects `grad = Multilinear` for operators other than gradient operators, and for gradient operators that do not
/// read all inputs of the forward operator without a gradient.
#[track_caller]
pub const fn check_multilinear(op: &str, grad_of: Option<&Schema>, own: &Schema) {
    let text = ConstText::<512>::EMPTY.add("`").add(op).add("` cannot have `grad = Multilinear`: ");
    let Some(forward) = grad_of else {
        panic!("{}", text.add("that is for gradient operators, with `grad_of = ..`").as_str());
    };
    check_reads(text, forward, own, true);
}

/// Rejects `grad = SelfAdjoint` for operators that are not linear in one input, or have not exactly one output.
#[track_caller]
pub const fn check_self_adjoint(op: &str, own: &Schema) {
    let text = ConstText::<512>::EMPTY.add("`").add(op).add("` cannot have `grad = SelfAdjoint`: ");
    if !matches!(own.outputs, [output] if !output.arity.is_list()) {
        panic!("{}", text.add("that is for operators with one output, which is not a list").as_str());
    }
    if linear_input(own).is_none() {
        let text = text.add("that is for operators with one input, or one gradient among their inputs");
        panic!("{}", text.add(", which is not a list").as_str());
    }
}

/// The input in which an operator with `grad = SelfAdjoint` is linear: the only one, or the only gradient.
pub(crate) const fn linear_input(schema: &Schema) -> Option<&'static str> {
    let mut linear = None;
    const_for!(input in schema.inputs => {
        let is_gradient = matches!(input.name.as_bytes(), [.., b'@', b'G', b'R', b'A', b'D']);
        if schema.inputs.len() == 1 || is_gradient {
            if linear.is_some() || input.arity.is_list() {
                return None;
            }
            linear = Some(input.name);
        }
    });
    linear
}

/// Rejects `inferred` for a gradient operator that reads neither an input of its forward operator nor an output `like`
/// it.
#[track_caller]
pub const fn check_inferred(op: &str, forward: &Schema, own: &Schema) {
    let text = ConstText::<512>::EMPTY.add("`").add(op).add("` cannot be `inferred`: ");
    check_reads(text, forward, own, false);
}

/// Panics if a required input of the forward operator is not read. With `or_written`, writing its gradient suffices;
/// otherwise, reading a value with its dtype and shape does.
#[track_caller]
const fn check_reads(text: ConstText<512>, forward: &Schema, own: &Schema, or_written: bool) {
    const_for!(input in forward.inputs => {
        let is_written = has_slot(own.outputs, input.name, "@GRAD");
        let is_needed = !matches!(input.arity, Arity::Optional) || is_written;
        let is_known = if or_written { is_written } else { forward.read_like(input, own).is_some() };
        if is_needed && !has_slot(own.inputs, input.name, "") && !is_known {
            let text = text.add("it does not read input `").add(input.name).add("` of `").add(forward.name);
            panic!("{}", text.add("`").as_str());
        }
    });
}

/// Rejects the implementation of a trait that an operator does not use.
#[track_caller]
pub const fn refuse_unused(op: &str, of: &str, written: bool, instead: &str) {
    if written {
        let text =
            ConstText::<512>::EMPTY.add("`impl ").add(of).add("` of `").add(op).add("` would be ignored: ");
        panic!("{}", text.add(instead).as_str());
    }
}
