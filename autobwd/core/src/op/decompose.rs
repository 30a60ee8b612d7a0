//! Decomposition of operators into elementwise ones, for fusion.

use smallvec::SmallVec;

use crate::{Meta, Op, OpDesc, Shape, Var};

/// The elementwise operators that are equivalent to an operator declared `decomposed`, so that it can be fused with its
/// neighbours: the sum of several tensors, say, or a mean.
///
/// The operator still has a kernel, which runs where its parts cannot: when an input is not a dense tensor, or when it
/// would reduce a value that is in memory anyway.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no decomposition",
    label = "this operator is declared `decomposed`",
    note = "write `impl Decompose for {Self}`"
)]
pub trait Decompose: Op {
    /// Pushes the parts, which read and write only variables of the operator. Without parts, the kernel runs.
    fn decompose(&self, parts: &mut Parts<'_>);
}

/// The parts of an operator.
#[derive(Debug, Default)]
pub struct Decomposition {
    /// Elementwise operators, in order.
    pub ops: SmallVec<[OpDesc; 2]>,
    /// Variables with explicit dimensions.
    pub aligned: SmallVec<[(Var, Shape); 1]>,
}

/// The list that receives the parts of an operator.
pub struct Parts<'a> {
    meta: &'a dyn Fn(Var) -> Option<Meta>,
    pub(super) decomposition: Decomposition,
}

impl<'a> Parts<'a> {
    pub(super) fn new(meta: &'a dyn Fn(Var) -> Option<Meta>) -> Parts<'a> {
        Parts { meta, decomposition: Decomposition::default() }
    }

    /// The shape of one of the operator's variables.
    pub fn dims(&self, var: Var) -> Shape {
        (self.meta)(var).and_then(|meta| meta.dims.known()).unwrap_or_default()
    }

    /// Adds an elementwise operator that runs after those before it. A variable that is written again has the new value
    /// from there on.
    pub fn push(&mut self, op: impl Into<OpDesc>) {
        self.decomposition.ops.push(op.into());
    }

    /// Aligns a variable with variables of full shape: gives its dimensions, with 1 where it is broadcast as an input
    /// or summed over as an output.
    pub fn align(&mut self, var: Var, dims: Shape) {
        self.decomposition.aligned.push((var, dims));
    }
}
