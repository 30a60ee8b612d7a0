//! Operators that are nothing but elementwise ones.

use smallvec::SmallVec;

use crate::{Meta, Op, OpDesc, Shape, Var};

/// The elementwise operators that do the same as an operator declared `decomposed`, so that it can run within the same
/// pass as its neighbours: the sum of several tensors, say, or a mean.
///
/// The operator has a kernel all the same, which runs where its parts cannot: when an input is no whole tensor, or when
/// it would reduce something that is in memory anyway.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what it is decomposed into",
    label = "this operator is declared `decomposed`",
    note = "write `impl Decompose for {Self}`"
)]
pub trait Decompose: Op {
    /// Pushes the parts, which read and write nothing but what the operator does. None means: the kernel.
    fn decompose(&self, parts: &mut Parts<'_>);
}

/// Where an operator puts its parts.
pub struct Parts<'a> {
    meta: &'a dyn Fn(Var) -> Option<Meta>,
    #[doc(hidden)]
    pub ops: SmallVec<[OpDesc; 2]>,
    #[doc(hidden)]
    pub aligned: SmallVec<[(Var, Shape); 1]>,
}

impl<'a> Parts<'a> {
    #[doc(hidden)]
    pub fn new(meta: &'a dyn Fn(Var) -> Option<Meta>) -> Parts<'a> {
        Parts { meta, ops: SmallVec::new(), aligned: SmallVec::new() }
    }

    /// The shape of one of the operator's variables.
    pub fn dims(&self, var: Var) -> Shape {
        (self.meta)(var).and_then(|meta| meta.dims.known()).unwrap_or_default()
    }

    /// Adds an elementwise operator, run after those before it. A variable that is written again means the new value
    /// from there on.
    pub fn push(&mut self, op: impl Into<OpDesc>) {
        self.ops.push(op.into());
    }

    /// Says how a variable lines up with those of full shape: its dimensions, 1 where it is repeated as an input, and
    /// summed over as an output.
    pub fn align(&mut self, var: Var, dims: Shape) {
        self.aligned.push((var, dims));
    }
}
