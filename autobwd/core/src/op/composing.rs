//! What the registry keeps of compositions.

use super::{GradCx, OpInfoMap};
use crate::{Meta, OpDesc, Program, Result, Schema, SlotDef, Var};

/// A straight line of operators in the root block of a program of its own.
#[derive(Debug)]
pub struct Line {
    /// The program.
    pub program: Program,
    /// What stands for the inputs.
    pub inputs: Vec<Binding>,
    /// What stands for the outputs.
    pub outputs: Vec<Binding>,
}

/// What stands for a variable of the operator in the line. A variable in two slots has two bindings: their gradients are
/// two things.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The operator's slot.
    pub slot: String,
    /// Its variable.
    pub outer: Var,
    /// That of the line.
    pub inner: Var,
}

/// Composes an operator, whose inputs have those dtypes and shapes.
pub type LineFn = fn(&OpInfoMap, &OpDesc, &dyn Fn(Var) -> Option<Meta>) -> Result<Line>;

/// Emits the gradient of an operator's composition, as far as it comes from some of its output slots and goes to some of
/// its input slots.
type EmitFn = fn(Composing, &mut GradCx<'_>, &dyn Fn(&str) -> bool, &dyn Fn(&str) -> bool) -> Result<()>;

/// A composition that an operator has.
#[derive(Clone, Copy, Debug)]
pub struct Composing {
    /// Composes the operator itself, or the one that it is the gradient operator of.
    pub(crate) compose: LineFn,
    /// The latter.
    pub(crate) forward: Option<&'static Schema>,
    /// Differentiates a composition.
    pub(crate) emit: EmitFn,
}

impl Composing {
    /// Emits the gradient of the composition, as far as it comes from some output slots and goes to some input slots.
    ///
    /// # Errors
    /// Those of the composition; one of its operators has no gradient.
    pub(super) fn emit(
        self,
        g: &mut GradCx<'_>,
        from: &dyn Fn(&str) -> bool,
        to: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        (self.emit)(self, g, from, to)
    }

    /// Emits what the gradient operator of that schema leaves out: gradients that it does not read, and those that it does
    /// not write.
    ///
    /// # Errors
    /// As [`emit`](Composing::emit).
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
