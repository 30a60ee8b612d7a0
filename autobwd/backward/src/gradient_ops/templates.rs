//! A cache of gradient operators whose slots are connected by name, for passes over many operators.
//!
//! Layers repeat: most operators of a large program share type, attributes and filled slots with an earlier one, and so
//! their gradient operators differ in the variables only.

use super::GradientSlots;
use autobwd_core::{
    __private::{DeclaredVars, GradRequest, internals::*},
    BlockId, GradKind, Name, OpDesc, OpInfo, OpInfoMap, Program, Schema, SlotDef, Var,
};

/// A direct-mapped cache of gradient operators with placeholders for variables.
#[derive(Default)]
pub(crate) struct GradientTemplates {
    entries: Vec<Option<GradientTemplate>>,
    /// By placeholder: the variable of the current operator.
    bound: Vec<Var>,
}

/// Number of entries.
const ENTRIES: usize = 64;
/// Operators with more inputs or outputs have no template.
const MOST_ARGS: usize = u64::BITS as usize;

struct GradientTemplate {
    asked: AskedGradients,
    fwd: OpDesc,
    gradient: OpDesc,
}

/// The gradients that a gradient operator reads and writes.
#[derive(Clone, Copy, PartialEq)]
struct AskedGradients {
    /// By output, as bits: whether its gradient has a contribution.
    arriving: u64,
    /// By input, as bits: whether its gradient is wanted.
    wanted: u64,
}

/// The variables of an operator, each with its gradient, as its rule sees them.
#[derive(Clone, Copy)]
pub(super) struct GradientCall<'a> {
    pub(super) info: &'a OpInfo,
    pub(super) fwd: &'a OpDesc,
    pub(super) outputs: &'a GradientSlots<Var>,
    pub(super) inputs: &'a GradientSlots<Option<Var>>,
}

impl GradientTemplates {
    /// Emits the gradient operator of a rule that connects its slots by name and does nothing else. `None` if the rule
    /// has to run, or fails.
    pub(super) fn emit(
        &mut self,
        ops: &OpInfoMap,
        names: &mut Program,
        call: GradientCall<'_>,
        arrives: impl Fn(Var) -> bool,
        emitted: &mut Vec<OpDesc>,
    ) -> Option<()> {
        let GradKind::Operator(schema) = call.info.grad_kind() else { return None };
        let asked = self.bind(call, arrives)?;
        if self.entries.is_empty() {
            self.entries.resize_with(ENTRIES, || None);
        }
        let entry = self.entries.get_mut(asked.place(call.info))?;
        if !entry.as_ref().is_some_and(|known| known.is(asked, call.fwd)) {
            *entry = Some(GradientTemplate::of(ops, names, (call.info, schema), asked, call.fwd)?);
        }
        emitted.push(entry.as_ref()?.gradient.clone());
        let gradient = emitted.last_mut()?;
        let args = gradient.inputs.args_mut().chain(gradient.outputs.args_mut());
        args.for_each(|arg| *arg = self.bound[arg.index()]);
        Some(())
    }

    /// Numbers the variables: none, the inputs, the outputs, the gradients of the outputs, the gradients of the inputs.
    fn bind(&mut self, call: GradientCall<'_>, arrives: impl Fn(Var) -> bool) -> Option<AskedGradients> {
        let GradientCall { fwd, outputs, inputs, .. } = call;
        self.bound.clear();
        self.bound.push(Var::EMPTY);
        self.bound.extend(fwd.inputs.args());
        let first_output = self.bound.len();
        self.bound.extend(fwd.outputs.args());
        let first_gradient = self.bound.len();
        if first_output > MOST_ARGS || first_gradient - first_output > MOST_ARGS {
            return None;
        }
        let mut asked = AskedGradients { arriving: 0, wanted: 0 };
        let mut grads = outputs.iter().map(|(_, grad)| *grad);
        for (i, var) in fwd.outputs.args().enumerate() {
            let grad = if var == Var::EMPTY { var } else { grads.next()? };
            asked.arriving |= u64::from(arrives(grad)) << i;
            self.bound.push(grad);
        }
        let mut grads = inputs.iter().map(|(_, grad)| grad.unwrap_or(Var::EMPTY));
        for (i, var) in fwd.inputs.args().enumerate() {
            let grad = if var == Var::EMPTY { var } else { grads.next()? };
            asked.wanted |= u64::from(grad != Var::EMPTY) << i;
            self.bound.push(grad);
        }
        Some(asked)
    }
}

impl AskedGradients {
    /// The index of an operator's entry.
    fn place(self, info: &OpInfo) -> usize {
        let address = std::ptr::from_ref(info).addr() as u64;
        let words = address ^ self.arriving.rotate_left(24) ^ self.wanted.rotate_left(40);
        (words.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % ENTRIES
    }
}

impl GradientTemplate {
    fn is(&self, asked: AskedGradients, fwd: &OpDesc) -> bool {
        self.asked == asked
            && self.fwd.ty == fwd.ty
            && self.fwd.inputs.fills_as(&fwd.inputs)
            && self.fwd.outputs.fills_as(&fwd.outputs)
            && self.fwd.attrs == fwd.attrs
    }

    /// Runs the rule on placeholders.
    fn of(
        ops: &OpInfoMap,
        names: &mut Program,
        (info, gradient): (&OpInfo, &Schema),
        asked: AskedGradients,
        fwd: &OpDesc,
    ) -> Option<GradientTemplate> {
        let (inputs, outputs) = (fwd.inputs.args().count(), fwd.outputs.args().count());
        let mut fwd = fwd.clone();
        let args = fwd.inputs.args_mut().chain(fwd.outputs.args_mut()).enumerate();
        args.filter(|(_, var)| **var != Var::EMPTY).for_each(|(i, var)| *var = Var::stand_in(i + 1));
        let after = |var: Var, count: usize| Var::stand_in(var.index() + count);
        let arrives = |var: Var| var != Var::EMPTY && asked.arriving >> (var.index() - inputs - 1) & 1 == 1;
        let wanted = |var: Var| {
            let is_wanted = var != Var::EMPTY && asked.wanted >> (var.index() - 1) & 1 == 1;
            is_wanted.then(|| after(var, inputs + 2 * outputs))
        };
        let of_output = |var: Var| if var == Var::EMPTY { var } else { after(var, outputs) };
        // The composition supplies gradients that the operator does not read or write, but from declarations.
        let has = |slots: &[SlotDef], of: Name| {
            slots.iter().any(|slot| slot.name.strip_suffix("@GRAD") == Some(of.as_str()))
        };
        let reads = |(slot, args): (Name, &[Var])| {
            has(gradient.inputs, slot) || !args.iter().any(|output| arrives(*output))
        };
        let writes = |(slot, args): (Name, &[Var])| {
            has(gradient.outputs, slot) || args.iter().all(|input| wanted(*input).is_none())
        };
        if !fwd.outputs.iter().all(reads) || !fwd.inputs.iter().all(writes) {
            return None;
        }
        let mut emitted = vec![];
        let request = GradRequest {
            ops,
            fwd: &fwd,
            names,
            declared: DeclaredVars { block: BlockId::ROOT, original: &|var| var },
            of_output: &of_output,
            wanted: &wanted,
            arrives: &arrives,
            block: None,
            emitted: &mut emitted,
        };
        info.emit_grad(request).ok()?;
        let gradient = emitted.pop().filter(|op| emitted.is_empty() && ops.get(&op.ty).is_ok())?;
        Some(GradientTemplate { asked, fwd, gradient })
    }
}
