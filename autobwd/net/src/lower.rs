//! Lowering of trees to programs, with step nets unrolled.

use std::fmt::Display;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    NamedOp, Operator, RnnGradOp, RnnOp,
    rnn::{StepValue, StepsGradientKind},
};
use autobwd_core::{
    __private::internals::*,
    BlockId, Dim, Dims, Error, ErrorKind, Meta, OpContext, OpDesc, OpInfoMap, Program, Result, Var, VarDesc,
    desc::GRAD,
    operators::{Assign, FillConstant, Stack, Unstack},
    operators::{sum, zeros},
};

/// Maximum number of unrolled steps.
const MOST_STEPS: usize = 100_000;

impl Operator {
    /// The tree as a program of the operators linked into this binary, for inputs of these dtypes and shapes. A step
    /// net is unrolled over the length of its sequences.
    ///
    /// Shared variables are copied once for all steps, and memories from step to step, so that the gradient of the
    /// program is summed in the same order as that of the tree.
    ///
    /// # Errors
    /// A variable that is read and neither written before nor among the inputs; unknown operators; wrong slots,
    /// attributes or shapes; sequences of more than 100,000 steps, of different or of unknown length.
    pub fn lower(&self, inputs: &[(&str, Meta)]) -> Result<Program> {
        let known =
            |name: &str| inputs.iter().find(|(known, _)| *known == name).map(|(_, meta)| meta.clone());
        Ok(self.lowered(OpInfoMap::linked()?, &known)?.0)
    }

    /// The program, and the variables that it reads before any write.
    pub(super) fn lowered(
        &self,
        ops: &OpInfoMap,
        known: &dyn Fn(&str) -> Option<Meta>,
    ) -> Result<(Program, Vec<Var>)> {
        let mut lower = NetLowering::new(ops, known);
        lower.operator(self, &NameScope::default())?;
        Ok((lower.program, lower.inputs))
    }
}

/// The mapping from names of a scope to names of the program.
#[derive(Default)]
pub(super) struct NameScope<'a> {
    /// For a step: the scope of its recurrent operator.
    outer: Option<&'a NameScope<'a>>,
    /// Prefix of the step's names.
    prefix: String,
    /// The full names of the scope's variables; other names belong to the outer scope.
    names: FxHashMap<&'a str, String>,
}

impl<'a> NameScope<'a> {
    pub(super) fn full_name(&self, name: &str) -> String {
        match (self.names.get(name), self.outer) {
            (Some(full), _) => full.clone(),
            (None, Some(outer)) => outer.full_name(name),
            (None, None) => name.into(),
        }
    }

    /// The names of step `t` of a recurrent operator in this scope.
    pub(super) fn step(
        &'a self,
        rnn: &RnnOp,
        t: impl Display,
        local: impl Iterator<Item = &'a str>,
    ) -> NameScope<'a> {
        let prefix = self.prefix(rnn, t);
        let names = local.map(|name| (name, format!("{prefix}{name}"))).collect();
        NameScope { outer: Some(self), prefix, names }
    }

    /// The prefix of the names of that step.
    fn prefix(&self, rnn: &RnnOp, t: impl Display) -> String {
        format!("{}{}@{t}/", self.prefix, rnn.name())
    }
}

struct NetLowering<'a> {
    ops: &'a OpInfoMap,
    known: &'a dyn Fn(&str) -> Option<Meta>,
    program: Program,
    /// The variables that the program reads before any write.
    inputs: Vec<Var>,
    /// For recurrent operators: the prefix of the names of their first step.
    scopes: FxHashSet<String>,
}

impl<'a> NetLowering<'a> {
    fn new(ops: &'a OpInfoMap, known: &'a dyn Fn(&str) -> Option<Meta>) -> NetLowering<'a> {
        NetLowering { ops, known, program: Program::new(), inputs: vec![], scopes: FxHashSet::default() }
    }

    fn operator(&mut self, op: &Operator, names: &NameScope<'_>) -> Result<()> {
        match op {
            Operator::Nop => Ok(()),
            Operator::Op(op) => self.single(op, names),
            Operator::Net(net) => net.ops().iter().try_for_each(|op| self.operator(op, names)),
            Operator::Rnn(rnn) => self.rnn(rnn, names),
            Operator::RnnGrad(grad) => self.rnn_grad(grad, names),
        }
    }

    fn single(&mut self, op: &NamedOp, names: &NameScope<'_>) -> Result<()> {
        op.info(self.ops).map_err(|e| e.at_op(|| op.describe()))?;
        let desc = op.desc(&mut |name| self.program.var(&names.full_name(name)));
        self.push(desc)
    }

    /// Appends an operator, and declares its inputs and outputs.
    fn push(&mut self, op: OpDesc) -> Result<()> {
        let mut metas = vec![];
        let outcome = op.reads().try_for_each(|var| self.declared(var)).and_then(|()| {
            let of = |var| match self.program.lookup(BlockId::ROOT, var) {
                Some(desc) => Ok(desc.meta()),
                None => Err(Error::internal("an undeclared variable")),
            };
            self.ops.get(&op.ty)?.infer(&op, &of, &mut |var, meta| metas.push((var, meta)))?;
            self.program.check_declared(BlockId::ROOT, &metas)
        });
        let index = self.program.root().ops.len();
        outcome.map_err(|e| e.at_op(|| self.program.describe_op(BlockId::ROOT, index, &op)))?;
        let root = self.program.root_mut();
        for (var, meta) in metas {
            if !root.vars.contains_key(&var) {
                root.vars.insert(var, VarDesc::of(meta));
            }
        }
        root.ops.push(op);
        Ok(())
    }

    /// Ensures that a variable that is read is written or given.
    fn declared(&mut self, var: Var) -> Result<()> {
        if self.program.root().vars.contains_key(&var) {
            return Ok(());
        }
        let name = self.program.name(var);
        let Some(meta) = (self.known)(name) else {
            let text = format!("`{name}` is read, but neither given nor written before");
            return Err(Error::new(ErrorKind::NoValue, text));
        };
        self.program.root_mut().vars.insert(var, VarDesc::of(meta));
        self.inputs.push(var);
        Ok(())
    }

    fn copy(&mut self, from: String, to: String) -> Result<()> {
        let (from, to) = (self.program.var(&from), self.program.var(&to));
        self.push(Assign { x: from, out: to }.into())
    }

    fn zeros(&mut self, like: String, to: String) -> Result<()> {
        let (like, to) = (self.program.var(&like), self.program.var(&to));
        self.push(zeros(like, to))
    }

    /// Splits a sequence into its elements.
    fn unstack(&mut self, sequence: String, parts: Vec<String>) -> Result<()> {
        let sequence = self.program.var(&sequence);
        let parts: Vec<Var> = parts.iter().map(|name| self.program.var(name)).collect();
        let num = i32::try_from(parts.len())
            .map_err(|_| Error::attr("num", "the steps are more than int32 can count"))?;
        self.push(Unstack { x: sequence, y: parts, axis: 0, num }.into())
    }

    /// Stacks elements to a sequence.
    fn stack(&mut self, parts: Vec<String>, sequence: String) -> Result<()> {
        let parts: Vec<Var> = parts.iter().map(|name| self.program.var(name)).collect();
        let sequence = self.program.var(&sequence);
        self.push(Stack { x: parts, y: sequence, axis: 0 }.into())
    }

    /// The number of steps, which may be 0.
    fn count_steps(&mut self, rnn: &RnnOp, names: &NameScope<'_>) -> Result<usize> {
        let mut found: Option<(usize, &str)> = None;
        for sequence in rnn.starts.iter().filter_map(StepValue::sequence) {
            let var = self.program.var(&names.full_name(sequence));
            self.declared(var)?;
            let dims = self.program.root().vars.get(&var).map(|desc| desc.dims.clone()).unwrap_or_default();
            let text = match (dims.first().and_then(|dim| dim.get()), found) {
                (None, _) => format!("`{sequence}` of shape {dims} is not a sequence of steps"),
                (Some(steps), Some((other, name))) if other != steps => {
                    format!("`{sequence}` has {steps} steps, but `{name}` has {other}")
                }
                (Some(steps), _) => {
                    found = Some((steps, sequence));
                    continue;
                }
            };
            return Err(Error::new(ErrorKind::Shape, text));
        }
        let (steps, name) = found.ok_or_else(|| rnn.no_sequence())?;
        if steps <= MOST_STEPS {
            return Ok(steps);
        }
        let text = format!("`{name}` has {steps} steps; a net unrolls at most {MOST_STEPS}");
        Err(Error::new(ErrorKind::Shape, text))
    }

    fn rnn(&mut self, rnn: &RnnOp, names: &NameScope<'_>) -> Result<()> {
        if !self.scopes.insert(names.prefix(rnn, 0)) {
            return Err(rnn.same_name());
        }
        let place = |e: Error| e.at_op(|| OpContext::new("recurrent operator", rnn.name()));
        let steps = self.count_steps(rnn, names).map_err(place)?;
        if steps == 0 {
            return self.no_steps(rnn, names);
        }
        let at = |t: usize, name: &str| names.prefix(rnn, t) + name;
        let every = |name: &str| (0..steps).map(|t| at(t, name)).collect();
        for StepValue { name, state, outer } in &rnn.starts {
            let outer = names.full_name(outer.as_deref().unwrap_or_default());
            match state {
                None => self.unstack(outer, every(name))?,
                Some(_) => self.copy(outer, at(0, name))?,
            }
        }
        let copies = format!("{}{}/", names.prefix, rnn.name());
        for name in rnn.shared() {
            self.copy(names.full_name(name), format!("{copies}{name}"))?;
        }
        for t in 0..steps {
            for start in rnn.starts.iter().filter(|_| t > 0) {
                if let Some(state) = &start.state {
                    self.copy(at(t - 1, state), at(t, &start.name))?;
                }
            }
            let mut inside = names.step(rnn, t, rnn.locals());
            inside.names.extend(rnn.shared().into_iter().map(|name| (name, format!("{copies}{name}"))));
            rnn.step().ops().iter().try_for_each(|op| self.operator(op, &inside))?;
        }
        rnn.outputs.iter().try_for_each(|out| self.stack(every(&out.value), names.full_name(&out.sequence)))
    }

    /// Sequences of length 0, with the shapes that one step would give them.
    fn no_steps(&mut self, rnn: &RnnOp, names: &NameScope<'_>) -> Result<()> {
        let sequences: FxHashSet<String> =
            rnn.starts.iter().filter_map(StepValue::sequence).map(|name| names.full_name(name)).collect();
        let known = |name: &str| {
            let declared = self.program.find(name).and_then(|var| self.program.lookup(BlockId::ROOT, var));
            let meta = declared.map(VarDesc::meta).or_else(|| (self.known)(name))?;
            let rest = meta.dims.iter().skip(1).copied();
            let dims = || [Dim::from(1)].into_iter().chain(rest).collect::<Dims>();
            Some(if sequences.contains(name) { Meta::new(meta.dtype, dims()) } else { meta })
        };
        let mut one = NetLowering::new(self.ops, &known);
        one.rnn(rnn, names)?;
        let mut empty = vec![];
        for output in &rnn.outputs {
            let name = names.full_name(&output.sequence);
            let meta = one.program.find(&name).and_then(|var| one.program.lookup(BlockId::ROOT, var));
            let meta = meta.map(VarDesc::meta).ok_or_else(|| Error::internal("a sequence without shape"))?;
            empty.push((name, meta));
        }
        for (name, meta) in empty {
            let shape = [0].into_iter().chain(meta.dims.iter().skip(1).map(|dim| dim.wire())).collect();
            let out = self.program.var(&name);
            self.push(FillConstant::exactly(0.0, shape, meta.dtype, out))?;
        }
        Ok(())
    }

    fn rnn_grad(&mut self, grad: &RnnGradOp, names: &NameScope<'_>) -> Result<()> {
        let rnn = grad.forward();
        let place = |e: Error| e.at_op(|| OpContext::new("the gradient of recurrent operator", rnn.name()));
        let steps = self.count_steps(rnn, names).map_err(place)?;
        let at = |t: usize, name: &str| names.prefix(rnn, t) + name;
        let step = |t: usize| &grad.steps[(steps - 1 - t).min(grad.steps.len() - 1)];
        for start in grad.steps[0].starts.iter().filter(|_| steps > 0) {
            let own = |t: usize| step(t).starts.iter().find(|own| own.sequence() == start.sequence());
            if let Some(outer) = start.sequence()
                && let Some(parts) = (0..steps).map(|t| Some(at(t, &own(t)?.name))).collect()
            {
                self.unstack(names.full_name(outer), parts)?;
            }
        }
        for t in (0..steps).rev() {
            for start in &step(t).starts {
                if let Some(state) = &start.state {
                    self.copy(at(t + 1, state), at(t, &start.name))?;
                }
            }
            let inside = names.step(rnn, t, rnn.locals().chain(step(t).locals()));
            step(t).net.ops().iter().try_for_each(|op| self.operator(op, &inside))?;
        }
        // A gradient that no step has computed is zero.
        for (i, result) in grad.results.iter().enumerate() {
            let own = |t: usize| step(t).parts[i].iter().map(move |part| at(t, part));
            let element = |t: usize| at(t, &format!("{}{GRAD}", result.value));
            let (of, to) = (names.full_name(&result.of), names.full_name(&result.grad));
            let mut parts: Vec<String> = match result.kind {
                StepsGradientKind::Stacked => (0..steps).map(element).collect(),
                StepsGradientKind::First => (0..steps.min(1)).flat_map(own).collect(),
                StepsGradientKind::Summed => (0..steps).rev().flat_map(own).collect(),
            };
            match result.kind {
                _ if parts.is_empty() => self.zeros(of, to)?,
                StepsGradientKind::Stacked => {
                    for t in (0..steps).filter(|t| step(*t).parts[i].is_empty()) {
                        self.zeros(at(t, &result.value), element(t))?;
                    }
                    self.stack(parts, to)?;
                }
                StepsGradientKind::First => self.copy(parts.swap_remove(0), to)?,
                StepsGradientKind::Summed => {
                    let parts: Vec<Var> = parts.iter().map(|part| self.program.var(part)).collect();
                    let to = self.program.var(&to);
                    self.push(sum(parts, to))?;
                }
            }
        }
        Ok(())
    }
}
