//! Lowering of trees to programs, with step nets unrolled.

use rustc_hash::FxHashSet;

use super::{NamedOp, Operator, RnnGradOp, RnnOp, rnn::UpstreamSource};
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
    /// Names of the step.
    local: FxHashSet<&'a str>,
    /// Outer names that the steps have a copy of, and the prefix of the copy.
    shared: FxHashSet<&'a str>,
    copies: String,
}

impl<'a> NameScope<'a> {
    pub(super) fn full_name(&self, name: &str) -> String {
        match self.outer {
            None => name.into(),
            Some(_) if self.local.contains(name) => format!("{}{name}", self.prefix),
            Some(_) if self.shared.contains(name) => format!("{}{name}", self.copies),
            Some(outer) => outer.full_name(name),
        }
    }

    /// The names of any step of a recurrent operator in this scope.
    pub(super) fn any_step(&'a self, rnn: &RnnOp, local: FxHashSet<&'a str>) -> NameScope<'a> {
        let prefix = format!("{}{}@t/", self.prefix, rnn.name());
        NameScope { outer: Some(self), prefix, local, ..NameScope::default() }
    }

    /// The prefix of the names of a step of a recurrent operator in this scope.
    fn step(&self, rnn: &RnnOp, t: usize) -> String {
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
        for link in rnn.step_inputs() {
            let var = self.program.var(&names.full_name(&link.outer));
            self.declared(var)?;
            let dims = self.program.root().vars.get(&var).map(|desc| desc.dims.clone()).unwrap_or_default();
            let steps = dims.first().and_then(|dim| dim.get());
            let steps = steps.ok_or_else(|| {
                Error::new(
                    ErrorKind::Shape,
                    format!("`{}` of shape {dims} is not a sequence of steps", link.outer),
                )
            })?;
            match found {
                Some((other, name)) if other != steps => {
                    let text = format!("`{}` has {steps} steps, but `{name}` has {other}", link.outer);
                    return Err(Error::new(ErrorKind::Shape, text));
                }
                _ => found = Some((steps, &link.outer)),
            }
        }
        match found {
            None => Err(rnn.no_sequence()),
            Some((steps, name)) if steps > MOST_STEPS => {
                let text = format!("`{name}` has {steps} steps; a net unrolls at most {MOST_STEPS}");
                Err(Error::new(ErrorKind::Shape, text))
            }
            Some((steps, _)) => Ok(steps),
        }
    }

    fn rnn(&mut self, rnn: &RnnOp, names: &NameScope<'_>) -> Result<()> {
        if !self.scopes.insert(names.step(rnn, 0)) {
            return Err(rnn.same_name());
        }
        let place = |e: Error| e.at_op(|| OpContext::new("recurrent operator", rnn.name()));
        let steps = self.count_steps(rnn, names).map_err(place)?;
        if steps == 0 {
            return self.no_steps(rnn, names);
        }
        let every = |name: &str| (0..steps).map(|t| names.step(rnn, t) + name).collect();
        for link in rnn.step_inputs() {
            self.unstack(names.full_name(&link.outer), every(&link.inner))?;
        }
        let copies = format!("{}{}/", names.prefix, rnn.name());
        for name in rnn.shared() {
            self.copy(names.full_name(name), format!("{copies}{name}"))?;
        }
        for t in 0..steps {
            let prefix = names.step(rnn, t);
            for memory in rnn.memories() {
                let before = match t {
                    0 => names.full_name(&memory.boot),
                    _ => names.step(rnn, t - 1) + &memory.state,
                };
                self.copy(before, format!("{prefix}{}", memory.pre))?;
            }
            let local = rnn.locals();
            let shared = rnn.shared().into_iter().collect();
            let inside = NameScope { outer: Some(names), prefix, local, shared, copies: copies.clone() };
            rnn.step().ops().iter().try_for_each(|op| self.operator(op, &inside))?;
        }
        for link in rnn.step_outputs() {
            self.stack(every(&link.inner), names.full_name(&link.outer))?;
        }
        Ok(())
    }

    /// Sequences of length 0, with the shapes that one step would give them.
    fn no_steps(&mut self, rnn: &RnnOp, names: &NameScope<'_>) -> Result<()> {
        let sequences: FxHashSet<String> =
            rnn.step_inputs().iter().map(|link| names.full_name(&link.outer)).collect();
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
        for link in rnn.step_outputs() {
            let name = names.full_name(&link.outer);
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

    /// The gradient of no steps: zeros, because no output depends on an input.
    fn no_steps_grad(&mut self, grad: &RnnGradOp, names: &NameScope<'_>) -> Result<()> {
        let sequences = grad.input_links().map(|(link, to)| (&link.outer, to));
        let boots = grad.boot_links().map(|(memory, to)| (&memory.boot, to));
        let shared = grad.shared_grads.iter().map(|(name, to)| (name, &**to));
        let mut values = sequences.chain(boots).chain(shared);
        values.try_for_each(|(value, to)| self.zeros(names.full_name(value), names.full_name(to)))
    }

    fn rnn_grad(&mut self, grad: &RnnGradOp, names: &NameScope<'_>) -> Result<()> {
        let rnn = grad.forward();
        let place = |e: Error| e.at_op(|| OpContext::new("the gradient of recurrent operator", rnn.name()));
        let steps = self.count_steps(rnn, names).map_err(place)?;
        if steps == 0 {
            return self.no_steps_grad(grad, names);
        }
        let step = |t: usize, name: &str| names.step(rnn, t) + name;
        let grad_name = |name: &str| format!("{name}{GRAD}");
        let gradient = |t: usize| &grad.steps[(steps - 1 - t).min(grad.steps.len() - 1)];
        for (i, outer) in grad.output_grads.iter().enumerate() {
            let slice_name = |t: usize| {
                let mut arrivals = gradient(t).arrivals.iter();
                let own =
                    arrivals.find(|(from, _)| *from == UpstreamSource::Output(i)).map(|(_, name)| &**name);
                own.map(|name| step(t, name))
            };
            if let Some(outer) = outer
                && let Some(parts) = (0..steps).map(slice_name).collect()
            {
                self.unstack(names.full_name(outer), parts)?;
            }
        }
        for t in (0..steps).rev() {
            let grad_step = gradient(t);
            for (from, name) in &grad_step.arrivals {
                if let UpstreamSource::Memory(i) = from {
                    self.copy(step(t + 1, &grad_name(&rnn.memories()[*i].pre)), step(t, name))?;
                }
            }
            let local = grad.locals(grad_step);
            let inside =
                NameScope { outer: Some(names), prefix: names.step(rnn, t), local, ..NameScope::default() };
            self.operator(&grad_step.op, &inside)?;
        }
        // A gradient that no step has computed is zero.
        for (link, outer) in grad.input_links() {
            for t in (0..steps).filter(|t| !gradient(*t).writes(&grad_name(&link.inner))) {
                self.zeros(step(t, &link.inner), step(t, &grad_name(&link.inner)))?;
            }
            self.stack(
                (0..steps).map(|t| step(t, &grad_name(&link.inner))).collect(),
                names.full_name(outer),
            )?;
        }
        for (memory, outer) in grad.boot_links() {
            match gradient(0).writes(&grad_name(&memory.pre)) {
                true => self.copy(step(0, &grad_name(&memory.pre)), names.full_name(outer))?,
                false => self.zeros(names.full_name(&memory.boot), names.full_name(outer))?,
            }
        }
        for (i, (name, outer)) in grad.shared_grads.iter().enumerate() {
            let in_step = |t: usize| gradient(t).parts[i].iter().map(move |part| step(t, part));
            let parts: Vec<String> = (0..steps).rev().flat_map(in_step).collect();
            if parts.is_empty() {
                self.zeros(names.full_name(name), names.full_name(outer))?;
                continue;
            }
            let parts: Vec<Var> = parts.iter().map(|part| self.program.var(part)).collect();
            let outer = self.program.var(&names.full_name(outer));
            self.push(sum(parts, outer))?;
        }
        Ok(())
    }
}
