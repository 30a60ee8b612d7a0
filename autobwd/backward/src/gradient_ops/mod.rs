//! Emission of gradient operators, in reverse order of the relevant operators.

pub(crate) mod block;
mod templates;

use std::borrow::Cow;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    grad_names::GradNames, gradient_ops::block::PendingGradBlock, preserve_overwritten::ValueVersions,
};
use autobwd_core::{
    __private::{DeclaredVars, GradRequest, Lookup, check_emitted, internals::*},
    BlockId, Error, ErrorKind, GradBlock, GradKind, OpDesc, OpInfo, OpInfoMap, Origin, Program, Result,
    StepCount, Var, VarDesc, VarKind,
};
use templates::GradientCall;
pub(crate) use templates::GradientTemplates;

/// The state of the walk from the last operator to the first.
pub(crate) struct GradientEmitter<'a> {
    pub(crate) ops: &'a OpInfoMap,
    pub(crate) infos: Lookup<'a>,
    pub(crate) templates: GradientTemplates,
    pub(crate) program: &'a mut Program,
    /// The block that is differentiated, and the block of its gradient.
    pub(crate) block: BlockId,
    pub(crate) into: BlockId,
    /// By variable: whether it has no gradient.
    pub(crate) no_grad: &'a [bool],
    /// By variable: whether the gradient of its last value is requested.
    pub(crate) computed: &'a [bool],
    pub(crate) names: &'a mut GradNames,
    pub(crate) values: &'a mut ValueVersions,
    pub(crate) emitted: &'a mut Vec<OpDesc>,
    /// Gradients of sub-blocks.
    pub(crate) inners: &'a mut Vec<PendingGradBlock>,
}

/// Emits the gradient operators of every operator of the path, from the last to the first, into `emitted`. They read
/// stand-ins for values that are overwritten.
///
/// Rules of operators without arriving gradient are called, too: as in the reference, their outputs count among the
/// contributions to a gradient when these are named. [`prune`](crate::prune) removes them.
///
/// # Errors
/// A rule that emits an unknown operator or illegal slots, or writes a variable of the model.
pub(crate) fn emit(mut walk: GradientEmitter<'_>, path: &[usize]) -> Result<()> {
    // Taken out of the program, so that rules can read operators while they create names.
    let id = walk.block;
    let no_block = || Error::internal("no such block");
    let forward = std::mem::take(&mut walk.program.block_mut(id).ok_or_else(no_block)?.ops);
    let mut path = path.iter().rev().copied().peekable();
    let mut outcome = Ok(());
    for (index, fwd) in forward.iter().enumerate().rev() {
        if path.next_if_eq(&index).is_none() {
            for var in walk.program.full_overwrites(id, fwd) {
                walk.names.start_older(var, index);
            }
            walk.visit(index, fwd);
        } else if let Err(e) = walk.operator(index, fwd, &forward[..index]) {
            outcome = Err(e.at_op(|| walk.program.describe_op(id, index, fwd)));
            break;
        }
    }
    if let Some(block) = walk.program.block_mut(id) {
        block.ops = forward;
    }
    outcome
}

/// A variable or the stand-in for its value, with its gradient; `None` if that is not wanted.
type GradientSlots<T> = SmallVec<[(Var, T); 4]>;

/// Looks up the entry of a variable: by linear search among few, in a table among many.
fn finder<T: Copy>(slots: &GradientSlots<T>) -> impl Fn(Var) -> Option<T> {
    const FEW: usize = 16;
    // The first of several entries stays.
    let table: Option<FxHashMap<Var, T>> = (slots.len() > FEW).then(|| slots.iter().rev().copied().collect());
    move |var| match &table {
        Some(table) => table.get(&var).copied(),
        None => slots.iter().find(|(v, _)| *v == var).map(|(_, found)| *found),
    }
}

impl GradientEmitter<'_> {
    /// Steps back over the writes of an operator. A recomputed value equals the original.
    fn visit(&mut self, index: usize, op: &OpDesc) {
        if !matches!(op.origin, Origin::Recompute { .. }) {
            op.writes().for_each(|v| self.values.record_write(v, index));
        }
    }

    fn operator(&mut self, index: usize, op: &OpDesc, earlier: &[OpDesc]) -> Result<()> {
        let info = self.infos.get(op.ty)?;
        // The operator as its rule sees it, with stand-ins for overwritten values.
        let mut fwd = Cow::Borrowed(op);
        let mut outputs: GradientSlots<Var> = SmallVec::new();
        for var in op.writes() {
            let (grad, value) = (self.names.here(self.program, var), self.values.here(var));
            if value != var {
                self.names.record_stand_in(grad, value);
                replace(fwd.to_mut().outputs.args_mut(), var, value);
            }
            outputs.push((value, grad));
        }
        // In sub-blocks, rules of operators that write stopped variables are also called, as in the reference; their
        // output is pruned.
        let stopped = self.block != BlockId::ROOT && op.writes().any(|v| self.no_grad[v.index()]);
        let arrives = stopped || outputs.iter().any(|(_, grad)| self.names.arrives(*grad));
        let in_place = |v: &Var| !self.computed[v.index()] && is_in_place(info, op, *v);
        let keeps_name = |v: &Var| in_place(v) && is_overwritten(info, op, *v);
        let older = self.program.full_overwrites(self.block, op).filter(|v| !keeps_name(v));
        let older = older.filter_map(|v| Some((v, self.names.start_older(v, index)?)));
        let older: Vec<(Var, Var)> = older.filter(|(v, _)| in_place(v)).collect();
        // A sub-block saves the values that it overwrites for its own gradient.
        let in_block = op.attrs.blocks().next().is_some();
        if !in_block {
            self.visit(index, op);
        }
        if arrives || !in_block {
            let inner = if in_block { self.inner(info, op, &outputs, earlier)? } else { None };
            let mut inputs: GradientSlots<Option<Var>> = SmallVec::new();
            for var in op.reads() {
                let grad = self.is_wanted(var).then(|| self.names.here(self.program, var));
                // A value that the gradient of a sub-block does not read may be any version.
                let by_name = inner.as_ref().is_none_or(|inner| inner.reads.contains(&var));
                let value = if by_name { self.values.here(var) } else { var };
                if value != var {
                    replace(fwd.to_mut().inputs.args_mut(), var, value);
                }
                inputs.push((value, grad));
            }
            let before = self.emitted.len();
            let call = GradientCall { info, fwd: &fwd, outputs: &outputs, inputs: &inputs };
            let asked = self.apply_rule(index, call, inner.as_ref().map(|inner| &inner.block));
            for (var, newer) in older {
                let own = &mut self.emitted[before..];
                if let Some(older) = self.names.known(var).filter(|older| may_share(own, newer, *older)) {
                    own.iter_mut().for_each(|op| replace(op.outputs.args_mut(), older, newer));
                    self.names.share(var, newer);
                }
            }
            if arrives {
                asked?;
                let own = &self.emitted[before..];
                own.iter().flat_map(OpDesc::writes).for_each(|grad| self.names.record_contribution(grad));
            } else if asked.is_err() || !self.emitted[before..].iter().all(|op| self.is_pass_through(op)) {
                self.emitted.truncate(before);
            }
        }
        if in_block {
            self.visit(index, op);
        }
        Ok(())
    }

    /// Whether an operator computes only gradients from gradients, and no value for another operator of its rule.
    fn is_pass_through(&self, op: &OpDesc) -> bool {
        let is_gradient = |v: Var| self.names.base(v).is_some();
        op.reads().any(is_gradient) && op.writes().all(is_gradient)
    }

    fn is_wanted(&self, var: Var) -> bool {
        let declared = self.program.lookup(self.block, var);
        let differentiable = |desc: &VarDesc| desc.dtype.is_float() && desc.kind != VarKind::StepScopes;
        !self.no_grad[var.index()] && declared.is_none_or(differentiable)
    }

    /// The gradient of an operator's sub-block, if there is one.
    fn inner(
        &mut self,
        info: &OpInfo,
        op: &OpDesc,
        outputs: &GradientSlots<Var>,
        earlier: &[OpDesc],
    ) -> Result<Option<block::GradBlockInfo>> {
        let call = info.call(op, self.program)?;
        let Some(call) = call.filter(|_| matches!(info.grad_kind(), GradKind::Rule)) else { return Ok(None) };
        let arriving = |(_, grad): &&(Var, Var)| self.names.arrives(*grad);
        let arriving: Vec<Var> =
            outputs.iter().filter(arriving).map(|(v, _)| self.values.variable(*v)).collect();
        if let StepCount::If(_) | StepCount::While(_) | StepCount::Times(0) = call.steps {
            let own = self.program.block(self.block);
            let outside =
                |v: Var| self.block != BlockId::ROOT && own.is_some_and(|b| !b.vars.contains_key(&v));
            let kept = |v: &&Var| {
                let older = earlier.iter().any(|op| op.writes().any(|w| w == **v)) || outside(**v);
                older && self.is_wanted(**v) && !op.reads().any(|r| r == **v)
            };
            if let Some(var) = arriving.iter().find(kept) {
                let text = format!(
                    "`{}` keeps its older value when the block does not run, and the gradient of that value would \
                     be lost: add it to the inputs",
                    self.program.name(*var)
                );
                return Err(Error::new(ErrorKind::NoGradient, text));
            }
        }
        let GradientEmitter { ops, program, into, no_grad, inners, .. } = self;
        block::build(ops, program, (op, &call), *into, no_grad, &arriving, inners)
    }

    fn apply_rule(&mut self, index: usize, call: GradientCall<'_>, inner: Option<&GradBlock>) -> Result<()> {
        let (before, names) = (self.emitted.len(), &*self.names);
        let arrives = |grad: Var| names.arrives(grad);
        let templates = if inner.is_none() { Some(&mut self.templates) } else { None };
        let found = templates
            .and_then(|templates| templates.emit(self.ops, self.program, call, arrives, self.emitted));
        if found.is_none() {
            self.run_rule(call, inner)?;
        }
        for op in &mut self.emitted[before..] {
            (op.site, op.origin) = (call.fwd.site, Origin::Gradient { of: index });
        }
        Ok(())
    }

    fn run_rule(&mut self, call: GradientCall<'_>, inner: Option<&GradBlock>) -> Result<()> {
        let GradientCall { info, fwd, outputs, inputs } = call;
        let names = &*self.names;
        let (output_grads, input_grads) = (finder(outputs), finder(inputs));
        let of_output = |var: Var| output_grads(var).unwrap_or(Var::EMPTY);
        let wanted = |var: Var| input_grads(var).flatten();
        let arrives = |var: Var| names.arrives(of_output(var));
        let before = self.emitted.len();
        let values = &*self.values;
        let request = GradRequest {
            ops: self.ops,
            fwd,
            names: self.program,
            declared: DeclaredVars { block: self.block, original: &|var| values.variable(var) },
            of_output: &of_output,
            wanted: &wanted,
            arrives: &arrives,
            block: inner,
            emitted: self.emitted,
        };
        for input in info.emit_grad(request)? {
            // The operator has passed its input through unchanged.
            let same = |(v, _): &&(Var, Var)| self.values.variable(*v) == self.values.variable(input);
            if let Some((output, _)) = outputs.iter().find(same) {
                let own = &mut self.emitted[before..];
                own.iter_mut().for_each(|op| replace(op.inputs.args_mut(), input, *output));
            }
        }
        let own = &self.emitted[before..];
        if !matches!(info.grad_kind(), GradKind::Operator(_)) {
            let is_gradient = |v: Var| names.base(v).is_some();
            let declared = |v: &Var| self.program.block(self.block).is_some_and(|b| b.vars.contains_key(v));
            let of_model = |v: Var| Some(self.values.variable(v)).filter(declared);
            return check_emitted(self.ops, self.program, fwd, own, &is_gradient, &of_model);
        }
        // An operator wired by name matches its declaration.
        own.iter().try_for_each(|op| self.infos.get(op.ty).map(drop))
    }
}

fn replace<'a>(args: impl Iterator<Item = &'a mut Var>, from: Var, to: Var) {
    args.filter(|v| **v == from).for_each(|v| *v = to);
}

/// Whether an operator overwrites an input that it reads once with an output that may share its memory.
fn is_in_place(info: &OpInfo, fwd: &OpDesc, var: Var) -> bool {
    // Most operators overwrite nothing.
    if fwd.reads().filter(|v| *v == var).count() != 1 {
        return false;
    }
    let (Some(input), Some(output)) = (fwd.inputs.slot_of(var), fwd.outputs.slot_of(var)) else {
        return false;
    };
    info.schema().output(&output).is_some_and(|out| out.inplace == Some(input.as_str()))
}

/// Whether an operator in place may give the input's gradient the output's name: only a single gradient operator that
/// writes it once is sure to read the old gradient before it writes the new one.
fn is_overwritten(info: &OpInfo, fwd: &OpDesc, var: Var) -> bool {
    let gradient = match info.grad_kind() {
        GradKind::Operator(gradient) => gradient,
        GradKind::Derived(gradient) => gradient.schema(),
        _ => return false,
    };
    let Some(input) = fwd.inputs.slot_of(var) else { return false };
    gradient.outputs.iter().any(|out| out.name.strip_suffix("@GRAD") == Some(input.as_str()))
}

/// Whether operators that a rule has emitted may write the gradient `older` of an input in place of the output's, `newer`:
/// one of them reads that and writes `older`, and no other reads or writes either of them from then on.
fn may_share(own: &[OpDesc], newer: Var, older: Var) -> bool {
    let Some(writer) = own.iter().position(|op| op.writes().any(|v| v == older)) else { return false };
    let (of_writer, rest) = (&own[writer], &own[writer + 1..]);
    let mut after = rest.iter().flat_map(|op| op.reads().chain(op.writes()));
    of_writer.reads().any(|v| v == newer)
        && of_writer.writes().filter(|v| *v == older).count() == 1
        && after.all(|v| v != newer && v != older)
}
