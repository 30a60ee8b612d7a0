//! `grad = Composed`: the gradient of an operator is the gradient of its composition.
//!
//! The composition is a sequence of operators (a line) in a program of its own. The line is differentiated in reverse
//! mode, and its live operators are emitted.
//!
//! The composition also fills in what a gradient operator leaves out: gradients from outputs that it ignores, and
//! gradients of inputs that it does not compute.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{nesting::within, not_set};
use crate::{
    Arity, BlockId, Error, ErrorKind, Meta, Op, OpDesc, OpInfoMap, Program, Result, Schema, Slots, Var,
    VarDesc,
    desc::GRAD,
    op::{
        CompositionEntry, DeclaredVars, GradCx, GradKind, GradRequest, GradRule, LoopForm, OpSequence,
        OpSequenceFn, SequenceInput, forward_op,
    },
    operators::{Assign, sum, zeros},
};

/// The gradient of the operator is the gradient of its [`Composition`](crate::Composition). A gradient operator with
/// `grad_of` may use the composition of its forward operator, if it reads all inputs of that operator.
#[derive(Debug)]
pub struct Composed;

impl<O: Op> GradRule<O> for Composed {
    const KIND: GradKind = GradKind::Composed;
    fn emit(_: &O, _: &mut GradCx<'_>) {}
}

/// Emits the gradient of an operator's composition, from some of its output slots to some of its input slots.
///
/// # Errors
/// The errors of the composition; one of its operators has no gradient.
pub(super) fn emit(
    composing: CompositionEntry,
    g: &mut GradCx<'_>,
    from: &dyn Fn(&str) -> bool,
    to: &dyn Fn(&str) -> bool,
) -> Result<()> {
    let (ops, fwd) = (g.request.ops, g.forward().clone());
    let arriving =
        fwd.outputs.iter().any(|(slot, args)| from(&slot) && args.iter().any(|var| g.arrives(*var)));
    let asked =
        fwd.inputs.iter().any(|(slot, args)| to(&slot) && args.iter().any(|var| g.wanted(*var).is_some()));
    if !arriving || !asked {
        return Ok(());
    }
    let mut line = OpSequence::of(ops, composing, &fwd, &|var| g.meta(var), LoopForm::Unrolled)?;
    let mut bound: Vec<(Var, Var)> = line.inputs.iter().map(|input| (input.outer, input.inner)).collect();
    let mut seeds = vec![];
    for SequenceInput { slot, outer, inner } in line.outputs.clone() {
        if from(&slot) && g.arrives(outer) && line.has_gradient(inner) {
            let seed = line.declare("dy", line.meta(inner)?);
            bound.push((g.grad(outer), seed));
            seeds.push((inner, seed));
        }
    }
    let asked = line.inputs.iter().filter(|input| to(&input.slot));
    let wanted: Vec<(Var, Var)> =
        asked.filter_map(|input| Some((g.wanted(input.outer)?, input.inner))).collect();
    let sources: Vec<Var> = wanted.iter().map(|(_, inner)| *inner).collect();
    let gradients = within(&fwd, || line.reverse(ops, seeds, &sources))?;
    let results = wanted.iter().filter_map(|(outer, inner)| Some((*outer, *gradients.get(inner)?)));
    let results: Vec<(Var, Var)> = results.collect();
    let (parts, _) = line.splice(ops, &bound, &results, &mut |what| g.fresh(what));
    parts.into_iter().for_each(|part| g.push(part));
    Ok(())
}

impl OpSequence {
    /// The composition of an operator, with dtypes and shapes of inputs from `meta`. A composition that is differentiated
    /// has unrolled loops.
    pub(crate) fn of(
        ops: &OpInfoMap,
        composing: CompositionEntry,
        op: &OpDesc,
        meta: &dyn Fn(Var) -> Option<Meta>,
        loops: LoopForm,
    ) -> Result<OpSequence> {
        match composing.forward {
            None => (composing.compose)(ops, op, meta, loops),
            Some(forward) => OpSequence::of_gradient(ops, composing.compose, forward, op, meta),
        }
    }

    /// The composition of a gradient operator, from the composition of its forward operator.
    fn of_gradient(
        ops: &OpInfoMap,
        compose: OpSequenceFn,
        forward: &Schema,
        op: &OpDesc,
        meta: &dyn Fn(Var) -> Option<Meta>,
    ) -> Result<OpSequence> {
        let grads = |slots: &Slots, slot: &str| slots.get(&format!("{slot}@GRAD")).to_vec();
        let fwd = forward_op(forward, op);
        let mut line = compose(ops, &fwd, meta, LoopForm::Unrolled)?;
        let outputs = std::mem::take(&mut line.outputs);
        let (mut seeds, mut wanted) = (vec![], vec![]);
        for slot in forward.outputs {
            let own = outputs.iter().filter(|output| output.slot == slot.name);
            let arriving = own.zip(grads(&op.inputs, slot.name)).filter(|(_, grad)| *grad != Var::EMPTY);
            for (output, outer) in arriving {
                let inner = line.declare("dy", line.meta(output.inner)?);
                line.inputs.push(SequenceInput { slot: format!("{}@GRAD", slot.name), outer, inner });
                seeds.push((output.inner, inner));
            }
        }
        for slot in forward.inputs {
            let own = line.inputs.iter().filter(|input| input.slot == slot.name);
            let written = own.zip(grads(&op.outputs, slot.name)).filter(|(_, grad)| *grad != Var::EMPTY);
            wanted.extend(written.map(|(input, grad)| (slot.name, grad, input.inner)));
        }
        let sources: Vec<Var> = wanted.iter().map(|(.., inner)| *inner).collect();
        let gradients = within(op, || line.reverse(ops, seeds, &sources))?;
        let outputs = wanted.into_iter().filter_map(|(slot, outer, inner)| {
            Some(SequenceInput { slot: format!("{slot}@GRAD"), outer, inner: *gradients.get(&inner)? })
        });
        line.outputs = outputs.collect();
        Ok(line)
    }

    fn meta(&self, var: Var) -> Result<Meta> {
        let known = self.program.root().vars.get(&var).map(VarDesc::meta);
        known.ok_or_else(|| Error::internal("a composition has a variable that is not declared"))
    }

    fn has_gradient(&self, var: Var) -> bool {
        self.program.root().vars.get(&var).is_some_and(|desc| desc.dtype.is_float() && !desc.stop_gradient)
    }

    fn declare(&mut self, what: &str, meta: Meta) -> Var {
        let var = self.program.fresh(what);
        self.program.root_mut().vars.insert(var, VarDesc::of(meta));
        var
    }

    /// Appends an operator, with outputs declared by its shape rule.
    fn append(&mut self, ops: &OpInfoMap, op: OpDesc) -> Result<()> {
        let (info, mut metas) = (ops.get(&op.ty)?, vec![]);
        info.infer(&op, &|var| self.meta(var), &mut |var, meta| metas.push((var, meta)))?;
        let root = self.program.root_mut();
        root.vars.extend(metas.into_iter().map(|(var, meta)| (var, VarDesc::of(meta))));
        root.ops.push(op);
        Ok(())
    }

    /// Differentiates the line in reverse mode: `seeds` are gradients of its variables, and the result has the
    /// gradients of the `sources` that depend on them.
    fn reverse(
        &mut self,
        ops: &OpInfoMap,
        seeds: Vec<(Var, Var)>,
        sources: &[Var],
    ) -> Result<FxHashMap<Var, Var>> {
        let line = self.program.root().ops.clone();
        let mut depends: FxHashSet<Var> = sources.iter().copied().collect();
        for op in &line {
            let is_zero = matches!(ops.get(&op.ty)?.grad_kind(), GradKind::Zero);
            if !is_zero && op.reads().any(|var| depends.contains(&var)) {
                depends.extend(op.writes().filter(|var| self.has_gradient(*var)));
            }
        }
        let mut parts: FxHashMap<Var, Vec<Var>> = FxHashMap::default();
        for (var, seed) in seeds {
            parts.entry(var).or_default().push(seed);
        }
        for op in line.iter().rev() {
            if op.writes().any(|var| depends.contains(&var) && parts.contains_key(&var)) {
                self.gradient_of(ops, op, &depends, &mut parts)?;
            }
        }
        let mut gradients = FxHashMap::default();
        for source in sources {
            if let Some(gradient) = self.total(ops, parts.remove(source))? {
                gradients.insert(*source, gradient);
            }
        }
        Ok(gradients)
    }

    /// The sum of contributions to a gradient.
    fn total(&mut self, ops: &OpInfoMap, parts: Option<Vec<Var>>) -> Result<Option<Var>> {
        match parts.as_deref() {
            None | Some([]) => Ok(None),
            Some([one]) => Ok(Some(*one)),
            Some(parts) => {
                let total = self.program.fresh("sum");
                self.append(ops, sum(parts.iter().copied(), total))?;
                Ok(Some(total))
            }
        }
    }

    /// Appends the gradient operators of one operator of the line.
    fn gradient_of(
        &mut self,
        ops: &OpInfoMap,
        op: &OpDesc,
        depends: &FxHashSet<Var>,
        parts: &mut FxHashMap<Var, Vec<Var>>,
    ) -> Result<()> {
        let info = ops.get(&op.ty)?;
        if let kind @ GradKind::None(_) = info.grad_kind() {
            let because = kind.because();
            let text = format!("operator `{}` of the composition has no gradient{because}", op.ty);
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        let (mut arriving, mut missing, mut wanted) =
            (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        for var in op.writes() {
            match self.total(ops, parts.remove(&var))? {
                Some(total) => arriving.insert(var, total),
                None => missing.insert(self.program.fresh("zeros"), var),
            };
        }
        for var in op.reads().filter(|var| depends.contains(var)) {
            wanted.entry(var).or_insert_with(|| self.program.fresh("dx"));
        }
        let missing_of = |var: Var| missing.iter().find(|(_, of)| **of == var).map(|(zeros, _)| *zeros);
        let of_output =
            |var: Var| arriving.get(&var).copied().or_else(|| missing_of(var)).unwrap_or(Var::EMPTY);
        let mut emitted = vec![];
        info.emit_grad(GradRequest {
            ops,
            fwd: op,
            names: &mut self.program,
            declared: DeclaredVars { block: BlockId::ROOT, original: &|var| var },
            of_output: &of_output,
            wanted: &|var| wanted.get(&var).copied(),
            arrives: &|var| arriving.contains_key(&var),
            block: None,
            emitted: &mut emitted,
        })?;
        for mut op in emitted {
            for arg in op.outputs.args_mut() {
                if let Some((var, _)) = wanted.iter().find(|(_, grad)| **grad == *arg) {
                    *arg = self.program.fresh("dx");
                    parts.entry(*var).or_default().push(*arg);
                }
            }
            if op.writes().next().is_none() {
                continue;
            }
            for zero in op.reads().collect::<Vec<_>>() {
                if let Some(of) = missing.remove(&zero) {
                    self.append(ops, zeros(of, zero))?;
                }
            }
            self.append(ops, op)?;
        }
        Ok(())
    }

    /// The operators that `results` need, in terms of outer variables: `bound` maps these to variables here, `fresh`
    /// creates new ones. Each result is written to its variable. Also returns the map from variables of the line to outer variables.
    pub(crate) fn splice(
        &self,
        ops: &OpInfoMap,
        bound: &[(Var, Var)],
        results: &[(Var, Var)],
        fresh: &mut dyn FnMut(&str) -> Var,
    ) -> (Vec<OpDesc>, FxHashMap<Var, Var>) {
        let mut live: FxHashSet<Var> = results.iter().map(|(_, inner)| *inner).collect();
        let mut needed: Vec<OpDesc> = vec![];
        for op in self.program.root().ops.iter().rev().filter(|op| !op.ty.is_empty()) {
            if op.writes().any(|var| live.contains(&var)) {
                live.extend(op.reads());
                needed.push(without_dead_outputs(ops, op, &live));
            }
        }
        needed.reverse();
        let read: FxHashSet<Var> = needed.iter().flat_map(OpDesc::reads).collect();
        let mut names: FxHashMap<Var, Var> = bound.iter().map(|(outer, inner)| (*inner, *outer)).collect();
        let mut firsts = vec![];
        for (outer, inner) in bound {
            if is_overwritten_before_read(&needed, *inner, *outer, results) {
                let copy = fresh("x");
                firsts.push(Assign { x: *outer, out: copy }.into());
                names.insert(*inner, copy);
            }
        }
        let mut copies = vec![];
        for (outer, inner) in results {
            // A rule may not read a gradient that it has written, which may have other contributions.
            if read.contains(inner) || names.contains_key(inner) {
                copies.push((*outer, *inner));
            } else {
                names.insert(*inner, *outer);
            }
        }
        for op in &mut needed {
            let what = op.ty.to_string();
            for arg in op.inputs.args_mut().chain(op.outputs.args_mut()).filter(|arg| **arg != Var::EMPTY) {
                *arg = *names.entry(*arg).or_insert_with(|| fresh(&what));
            }
        }
        for (outer, inner) in copies {
            if let Some(of) = names.get(&inner) {
                needed.push(Assign { x: *of, out: outer }.into());
            }
        }
        firsts.extend(needed);
        (firsts, names)
    }
}

/// Whether a result overwrites the variable `outer` of the input `inner` before the line has read the input for the last
/// time, as the replaced operator works in place.
fn is_overwritten_before_read(line: &[OpDesc], inner: Var, outer: Var, results: &[(Var, Var)]) -> bool {
    let Some((_, result)) = results.iter().find(|(of, _)| *of == outer) else { return false };
    let written = line.iter().position(|op| op.writes().any(|var| var == *result));
    let read = line.iter().rposition(|op| op.reads().any(|var| var == inner));
    let is_copied = results.iter().any(|(of, result)| *result == inner && *of != outer);
    // An operator with a block has read all of its input only after its last step.
    let has_block = |at: usize| line[at].attrs.blocks().next().is_some();
    let is_late = |(read, written)| read > written || read == written && has_block(read);
    is_copied || read.zip(written).is_some_and(is_late)
}

/// The operator without unread optional outputs.
fn without_dead_outputs(ops: &OpInfoMap, op: &OpDesc, live: &FxHashSet<Var>) -> OpDesc {
    let mut op = op.clone();
    let Ok(info) = ops.get(&op.ty) else { return op };
    for slot in
        info.schema().outputs.iter().filter(|slot| matches!(slot.arity, Arity::Optional | Arity::Holes))
    {
        let args: Vec<Var> = op.outputs.get(slot.name).to_vec();
        let kept = args.iter().map(|var| if live.contains(var) { *var } else { Var::EMPTY });
        op.outputs.set(slot.name, kept.collect::<Vec<_>>());
    }
    op
}

impl OpInfoMap {
    /// The operators that replace an operator, by its [`Composition`](crate::Composition): they read and write the same
    /// variables, and new ones that are declared in the program. Recurrences among them run new blocks of the program.
    /// `None` for an operator without a composition.
    ///
    /// ```
    /// use autobwd::{Builder, DType, OpInfoMap};
    /// use autobwd_ops::Math;
    ///
    /// let net = Builder::new();
    /// let y = net.input("x", DType::F32, &[-1, 3]).softmax(-1);
    /// let mut program = net.program()?.clone();
    /// let softmax = program.root().ops[0].clone();
    /// let parts = OpInfoMap::linked()?.composition(&mut program, &softmax)?.unwrap_or_default();
    /// let types: Vec<_> = parts.iter().map(|op| op.ty.as_str()).collect();
    /// assert!(types.contains(&"exp") && !types.contains(&"softmax"), "{types:?}");
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown operator; inputs that are not declared in the root block; the errors of the composition.
    pub fn composition(&self, program: &mut Program, op: &OpDesc) -> Result<Option<Vec<OpDesc>>> {
        self.composition_in(program, BlockId::ROOT, op)
    }

    /// The same for an operator of another block.
    ///
    /// # Errors
    /// An unknown operator; inputs that are not declared; the errors of the composition.
    pub fn composition_in(
        &self,
        program: &mut Program,
        block: BlockId,
        op: &OpDesc,
    ) -> Result<Option<Vec<OpDesc>>> {
        let Some(composing) = self.get(&op.ty)?.own_composition() else { return Ok(None) };
        let meta = |var: Var| program.lookup(block, var).map(VarDesc::meta);
        let line = OpSequence::of(self, composing, op, &meta, LoopForm::Block)?;
        line.check_nesting(self, op)?;
        let (mut parts, names) = line.in_place_of(self, op, &mut |what| program.fresh(what))?;
        line.complete((program, block), op, &mut parts, names);
        Ok(Some(parts))
    }

    /// The operators that run in place of a [composed](crate::OpInfo::is_composed) operator: `meta` returns dtypes and shapes
    /// of its inputs, `fresh` new variables. Operators among them may also be composed: `within_composition` refuses
    /// circles.
    ///
    /// # Errors
    /// An operator without a composition; inputs that are unknown; the errors of the composition.
    pub(crate) fn composed(
        &self,
        op: &OpDesc,
        meta: &dyn Fn(Var) -> Option<Meta>,
        fresh: &mut dyn FnMut(&str) -> Var,
    ) -> Result<Vec<OpDesc>> {
        let composing = self.get(&op.ty)?.own_composition();
        let composing = composing.ok_or_else(|| Error::internal("an operator without its composition"))?;
        let line = OpSequence::of(self, composing, op, meta, LoopForm::Unrolled)?;
        Ok(line.in_place_of(self, op, fresh)?.0)
    }
}

impl OpSequence {
    /// Its operators, in terms of the variables of the operator that it is the composition of; and the map from its
    /// own variables to variables of the program.
    fn in_place_of(
        &self,
        ops: &OpInfoMap,
        op: &OpDesc,
        fresh: &mut dyn FnMut(&str) -> Var,
    ) -> Result<(Vec<OpDesc>, FxHashMap<Var, Var>)> {
        let pairs = |bindings: &[SequenceInput]| -> Vec<(Var, Var)> {
            bindings.iter().map(|binding| (binding.outer, binding.inner)).collect()
        };
        let (mut parts, names) = self.splice(ops, &pairs(&self.inputs), &pairs(&self.outputs), fresh);
        let written: FxHashSet<Var> = parts.iter().flat_map(OpDesc::writes).collect();
        for (slot, args) in op.outputs.iter() {
            for (k, var) in args.iter().enumerate().filter(|(_, var)| !written.contains(var)) {
                // A gradient that is zero everywhere has no operator.
                let of = slot.strip_suffix(GRAD).and_then(|of| op.inputs.get(of).get(k));
                match of {
                    _ if *var == Var::EMPTY => {}
                    Some(of) if *of != Var::EMPTY => parts.push(zeros(*of, *var)),
                    _ => return Err(not_set(&slot)),
                }
            }
        }
        parts.iter_mut().for_each(|part| (part.site, part.origin) = (op.site, op.origin));
        Ok((parts, names))
    }
}
