//! Implementations that `#[register_op]` takes no notice of.

use std::marker::PhantomData;

use super::ConstText;
use crate::{Compose, Control, Infer, Kernel, Pointwise};

/// Tells which traits a type implements: where it does, the constant here hides that of [`Unwritten`].
pub struct Written<T>(PhantomData<T>);

/// What [`Written`] says of traits that a type does not implement.
pub trait Unwritten {
    /// Of [`Infer`].
    const INFER: bool = false;
    /// Of [`Kernel`].
    const KERNEL: bool = false;
    /// Of [`Pointwise`].
    const POINTWISE: bool = false;
    /// Of [`Compose`].
    const COMPOSE: bool = false;
    /// Of [`Control`].
    const CONTROL: bool = false;
}
impl<T> Unwritten for Written<T> {}

impl<T: Infer> Written<T> {
    /// It is implemented.
    pub const INFER: bool = true;
}
impl<T: Kernel> Written<T> {
    /// It is implemented.
    pub const KERNEL: bool = true;
}
impl<T: Pointwise> Written<T> {
    /// It is implemented.
    pub const POINTWISE: bool = true;
}
impl<T: Compose> Written<T> {
    /// It is implemented.
    pub const COMPOSE: bool = true;
}
impl<T: Control> Written<T> {
    /// It is implemented.
    pub const CONTROL: bool = true;
}

/// Refuses the implementation of a trait that an operator does not use.
#[track_caller]
pub const fn refuse_unused(op: &str, of: &str, written: bool, instead: &str) {
    if written {
        let text =
            ConstText::<512>::EMPTY.add("`impl ").add(of).add("` of `").add(op).add("` would be ignored: ");
        panic!("{}", text.add(instead).as_str());
    }
}
