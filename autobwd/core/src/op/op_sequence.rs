//! Compositions as the registry stores them.

use super::{GradCx, OpInfoMap};
use crate::{Meta, OpDesc, Program, Result, Schema, SlotDef, Var};

/// A sequence of operators, in the root block of a program of its own.
#[derive(Debug)]
pub struct OpSequence {
    /// The program.
    pub program: Program,
    /// Bindings of the inputs.
    pub inputs: Vec<SequenceInput>,
    /// Bindings of the outputs.
    pub outputs: Vec<SequenceInput>,
}

/// A variable of an operator and the variable that replaces it in the line. A variable in two slots has two bindings,
/// whose gradients differ.
#[derive(Clone, Debug)]
pub struct SequenceInput {
    /// The operator's slot.
    pub slot: String,
    /// The operator's variable.
    pub outer: Var,
    /// The line's variable.
    pub inner: Var,
}

/// The form of recurrences in a composition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopForm {
    /// One operator with a block for the step.
    Block,
    /// The operators of all steps, for a known number of steps.
    Unrolled,
}

/// Expands an operator whose inputs have these dtypes and shapes into a line.
pub type OpSequenceFn = fn(&OpInfoMap, &OpDesc, &dyn Fn(Var) -> Option<Meta>, LoopForm) -> Result<OpSequence>;

/// Emits the gradient of an operator's composition, from some of its output slots to some of its input slots.
type EmitFn =
    fn(CompositionEntry, &mut GradCx<'_>, &dyn Fn(&str) -> bool, &dyn Fn(&str) -> bool) -> Result<()>;

/// The composition of an operator.
#[derive(Clone, Copy, Debug)]
pub struct CompositionEntry {
    /// Expands the operator itself, or its forward operator if it is a gradient operator.
    pub(crate) compose: OpSequenceFn,
    /// The forward operator, if it is a gradient operator.
    pub(crate) forward: Option<&'static Schema>,
    /// Differentiates a composition.
    pub(crate) emit: EmitFn,
}

impl CompositionEntry {
    /// Emits the gradient of the composition, from some output slots to some input slots.
    ///
    /// # Errors
    /// The errors of the composition; one of its operators has no gradient.
    pub(super) fn emit(
        self,
        g: &mut GradCx<'_>,
        from: &dyn Fn(&str) -> bool,
        to: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        (self.emit)(self, g, from, to)
    }

    /// Emits the part of the gradient that the gradient operator with this schema leaves out: from output gradients
    /// that it does not read, and to input gradients that it does not write.
    ///
    /// # Errors
    /// As [`emit`](CompositionEntry::emit).
    pub(super) fn emit_rest(self, gradient: &Schema, g: &mut GradCx<'_>) -> Result<()> {
        let any = |slots: &[SlotDef], of: &str| {
            slots.iter().any(|slot| slot.name.strip_suffix("@GRAD") == Some(of))
        };
        let is_read = |slot: &str| any(gradient.inputs, slot);
        let is_written = |slot: &str| any(gradient.outputs, slot);
        self.emit(g, &|slot| !is_read(slot), &|_| true)?;
        self.emit(g, &is_read, &|slot| !is_written(slot))
    }
}
