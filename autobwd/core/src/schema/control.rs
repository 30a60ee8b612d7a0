//! Operators that run sub-blocks: what they say about it.

use crate::{BlockId, Error, ErrorKind, OpDesc, Program, Result, Var};

/// How an operator runs its sub-block: implemented, in place of a shape rule and a kernel, for the description of an
/// operator with a `#[block]`.
///
/// From what it says follows how the operator is planned, run and differentiated.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has a block, but does not say how it runs it",
    label = "this operator needs `impl Control for {Self}`"
)]
pub trait Control {
    /// What is run how often, what goes in and what comes out.
    ///
    /// # Errors
    /// Slots that do not fit each other.
    fn call(&self, program: &Program) -> Result<Call>;
}

/// A sub-block that is run step by step.
///
/// The block finds its own variables, what the fields say goes in under its names, and, in the gradient of another
/// operator, what the steps of that have left. Its own variables are gone when the step ends; of others, it may write what
/// comes out, and nothing else.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is run.
    pub block: BlockId,
    /// How often.
    pub steps: StepCount,
    /// Inputs that the block reads under their own names, the same in every step.
    pub reads: Vec<Var>,
    /// What a step hands to the next.
    pub carried: Vec<Carried>,
    /// Inputs of which every step reads its part, along the first dimension: the input, what it is called in the block, and
    /// an input of the same shape, of which it is zeros if nobody has written it.
    pub slices: Vec<(Var, Var, Var)>,
    /// Outputs to which every step contributes its part, along a first dimension: what it is called in the block, and the
    /// output.
    pub stacks: Vec<(Var, Var)>,
    /// Outputs that are sums over all steps, zeros when there is none: what a step contributes, the output, and an input
    /// of its dtype and shape.
    pub sums: Vec<(Var, Var, Var)>,
    /// The variable for what steps leave for a backward part: written, or consumed where steps are
    /// [`Recorded`](StepCount::Recorded).
    pub scopes: Option<Var>,
    /// Every so many steps, a step leaves what it finds; the backward part runs the steps in between again. Otherwise, each
    /// step leaves what the backward part reads.
    pub every: Option<usize>,
}

/// How often a sub-block runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepCount {
    /// While a boolean is true, which is among what is carried.
    While(Var),
    /// Once, if a boolean is true.
    If(Var),
    /// A fixed number of times; slices have so many parts.
    Times(usize),
    /// For every part of the slices.
    Each {
        /// From the last to the first.
        reverse: bool,
    },
    /// For every step that an operator has left, from the last to the first. In a forward block that ran through its
    /// slices in reverse, these are in order.
    Recorded {
        /// Whether the steps ran through slices in reverse.
        reverse: bool,
    },
}

/// A value that a step hands to the next.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// What the first step finds.
    pub first: First,
    /// What the block calls it when a step starts.
    pub start: Var,
    /// What the block calls it when a step ends.
    pub end: Var,
    /// The output that gets what the last step ends with; what the first finds, if there is none.
    pub last: Option<Var>,
}

/// What the first step finds of a value that is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The value of an input; zeros like the other variable if nobody has written it.
    Value(Var, Var),
    /// Zeros of that variable's dtype and shape.
    ZerosLike(Var),
}

impl Call {
    /// A call of a block into which nothing goes.
    pub fn new(block: BlockId, steps: StepCount) -> Call {
        Call {
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

    /// The same steps, run again from what some of them have found, for what they leave.
    #[doc(hidden)]
    pub fn again(&self) -> Call {
        let like = |first: First| match first {
            First::Value(_, like) | First::ZerosLike(like) => First::ZerosLike(like),
        };
        let carried = |c: &Carried| Carried { first: like(c.first), last: None, ..*c };
        Call {
            carried: self.carried.iter().map(carried).collect(),
            stacks: vec![],
            sums: vec![],
            every: None,
            ..self.clone()
        }
    }

    /// What is wrong with the block as the operator `op` runs it, shapes apart.
    #[doc(hidden)]
    pub fn faults(&self, op: &OpDesc, program: &Program) -> Vec<Error> {
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
            refuse(format!("the body never changes the condition `{name}`: the loop would not end"));
        }
        let counted = matches!(self.steps, StepCount::Times(_)) || !self.slices.is_empty();
        for (var, _) in &self.stacks {
            if !counted || !(written(*var) || self.supplied().any(|v| v == *var)) {
                refuse(format!("block {number} does not compute `{}`", program.name(*var)));
            }
        }
        let ends: Vec<Var> = self.ends().collect();
        found.extend(program.lost_writes(self.block, &ends));
        found
    }

    /// The boolean that decides.
    #[doc(hidden)]
    pub fn condition(&self) -> Option<Var> {
        match self.steps {
            StepCount::While(condition) | StepCount::If(condition) => Some(condition),
            StepCount::Times(_) | StepCount::Each { .. } | StepCount::Recorded { .. } => None,
        }
    }

    #[doc(hidden)]
    pub fn is_recorded(&self) -> bool {
        matches!(self.steps, StepCount::Recorded { .. })
    }

    /// Names under which the block finds something that is not its own and that no earlier step has left.
    #[doc(hidden)]
    pub fn supplied(&self) -> impl Iterator<Item = Var> + '_ {
        let carried = self.carried.iter().map(|carried| carried.start);
        self.reads.iter().copied().chain(carried).chain(self.slices.iter().map(|(_, inner, _)| *inner))
    }

    /// What the block must have computed when a step ends.
    #[doc(hidden)]
    pub fn ends(&self) -> impl Iterator<Item = Var> + '_ {
        let (stacks, sums) = (self.stacks.iter().map(|(v, _)| *v), self.sums.iter().map(|(v, ..)| *v));
        self.carried.iter().map(|carried| carried.end).chain(stacks).chain(sums)
    }
}
