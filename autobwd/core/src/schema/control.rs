//! The interface of control flow operators, which run sub-blocks.
//!
//! Loops, branches, recurrences and their gradients differ in their `BlockCall` only. A gradient that an operator with
//! a block reads and that has no writer counts as zero, so its variable need not be declared.

use crate::{BlockId, Error, ErrorKind, OpDesc, Program, Result, Var};

/// The control flow of an operator with a `#[block]`, implemented for its description in place of a shape rule and a
/// kernel.
///
/// It determines how the operator is planned, run and differentiated.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has a block, but no `impl Control`",
    label = "this operator needs `impl Control for {Self}`"
)]
pub trait Control {
    /// The block, its number of steps, its inputs and its outputs.
    ///
    /// # Errors
    /// Inconsistent slots.
    fn call(&self, program: &Program) -> Result<BlockCall>;
}

/// The step-by-step execution of a sub-block.
///
/// The block sees its own variables, its inputs under the names given by these fields, and, if it is the gradient of
/// another operator, the saved state of that operator's steps. Its own variables are dropped at the end of a step. Of
/// other variables, it may write outputs only.
#[derive(Clone, Debug)]
pub struct BlockCall {
    /// The block to run.
    pub block: BlockId,
    /// The number of steps.
    pub steps: StepCount,
    /// Inputs that the block reads under their own names; loop invariant.
    pub reads: Vec<Var>,
    /// Loop-carried values.
    pub carried: Vec<CarriedValue>,
    /// Inputs that are sliced along the first dimension, one slice per step: the input, its name in the block, and an
    /// input of the same shape that gives the shape of zeros if the first is not written.
    pub slices: Vec<(Var, Var, Var)>,
    /// Outputs that stack the steps' results along a new first dimension: the name in the block, and the output.
    pub stacks: Vec<(Var, Var)>,
    /// Outputs that are sums over all steps, zeros without steps: the name in the block, the output, and an input of
    /// its dtype and shape.
    pub sums: Vec<(Var, Var, Var)>,
    /// The variable for the saved step state of the backward pass: written, or consumed if steps are
    /// [`Recorded`](StepCount::Recorded).
    pub scopes: Option<Var>,
    /// The interval of steps that save their inputs; the backward pass recomputes the steps between them. With `None`,
    /// every step saves all that the backward pass reads.
    pub every: Option<usize>,
}

/// The number of times a sub-block runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepCount {
    /// While this carried bool is true.
    While(Var),
    /// Once, if this bool is true.
    If(Var),
    /// A fixed number of times, which is also the length of slices.
    Times(usize),
    /// Once per slice.
    Each {
        /// Whether the last slice is the first.
        reverse: bool,
    },
    /// Once per saved step of the forward operator, from the last to the first. If the forward block visited its slices
    /// in reverse, this visits them in order.
    Recorded {
        /// Whether the forward steps visited their slices in reverse.
        reverse: bool,
    },
}

/// A loop-carried value.
#[derive(Clone, Copy, Debug)]
pub struct CarriedValue {
    /// The initial value.
    pub first: CarriedInit,
    /// Its name in the block at the start of a step.
    pub start: Var,
    /// Its name in the block at the end of a step.
    pub end: Var,
    /// The output that receives the final value: the initial value if there are no steps.
    pub last: Option<Var>,
}

/// The initial value of a loop-carried value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedInit {
    /// An input; zeros like the second variable if that is not written.
    Value(Var, Var),
    /// Zeros with the dtype and shape of this variable.
    ZerosLike(Var),
}

impl BlockCall {
    /// A call of a block without inputs.
    pub fn new(block: BlockId, steps: StepCount) -> BlockCall {
        BlockCall {
            block,
            steps,
            reads: vec![],
            carried: vec![],
            slices: vec![],
            stacks: vec![],
            sums: vec![],
            scopes: None,
            every: None,
        }
    }

    /// The same steps, for recomputation from saved inputs: only their step state is wanted.
    pub(crate) fn replay(&self) -> BlockCall {
        let like = |first: CarriedInit| match first {
            CarriedInit::Value(_, like) | CarriedInit::ZerosLike(like) => CarriedInit::ZerosLike(like),
        };
        let carried = |c: &CarriedValue| CarriedValue { first: like(c.first), last: None, ..*c };
        BlockCall {
            carried: self.carried.iter().map(carried).collect(),
            stacks: vec![],
            sums: vec![],
            every: None,
            ..self.clone()
        }
    }

    /// Faults of the block as the operator `op` runs it, except for shapes.
    pub(crate) fn faults(&self, op: &OpDesc, program: &Program) -> Vec<Error> {
        let (mut found, number) = (vec![], self.block.index());
        let mut refuse = |text: String| found.push(Error::new(ErrorKind::Program, text));
        let parameter = |v: &Var| program.lookup(self.block, *v).is_some_and(|desc| desc.parameter);
        for var in op.writes().filter(parameter) {
            refuse(format!("block {number} writes the parameter `{}`", program.name(var)));
        }
        let own = program.block(self.block).map_or(&[][..], |block| &block.ops);
        let written = |var: Var| own.iter().any(|op| op.writes().any(|v| v == var));
        if let StepCount::While(var) = self.steps
            && !(written(var) && self.carried.iter().any(|c| c.end == var))
        {
            let name = program.name(var);
            refuse(format!("the body never changes the condition `{name}`, so the loop would not end"));
        }
        let counted = matches!(self.steps, StepCount::Times(_)) || !self.slices.is_empty();
        for (var, _) in &self.stacks {
            if !counted || !(written(*var) || self.supplied().any(|v| v == *var)) {
                refuse(format!("block {number} does not compute `{}`", program.name(*var)));
            }
        }
        let ends: Vec<Var> = self.ends().collect();
        found.extend(program.check_outer_writes(self.block, &ends));
        found
    }

    /// The condition.
    pub fn condition(&self) -> Option<Var> {
        match self.steps {
            StepCount::While(condition) | StepCount::If(condition) => Some(condition),
            StepCount::Times(_) | StepCount::Each { .. } | StepCount::Recorded { .. } => None,
        }
    }

    /// Whether it reads saved steps, as a gradient does.
    pub fn is_recorded(&self) -> bool {
        matches!(self.steps, StepCount::Recorded { .. })
    }

    /// Names of the block's inputs that are neither its own variables nor results of earlier steps.
    pub fn supplied(&self) -> impl Iterator<Item = Var> + '_ {
        let carried = self.carried.iter().map(|carried| carried.start);
        self.reads.iter().copied().chain(carried).chain(self.slices.iter().map(|(_, inner, _)| *inner))
    }

    /// Variables that the block must have computed at the end of a step.
    pub fn ends(&self) -> impl Iterator<Item = Var> + '_ {
        let (stacks, sums) = (self.stacks.iter().map(|(v, _)| *v), self.sums.iter().map(|(v, ..)| *v));
        self.carried.iter().map(|carried| carried.end).chain(stacks).chain(sums)
    }
}
