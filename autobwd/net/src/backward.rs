//! Reverse-mode differentiation of a tree, which yields a tree.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    NamedOp, NetOp, Operator, RnnGradOp, RnnOp,
    accumulate::{AccumulatedNet, accumulate},
    reachability::{VariableNames, check_known, check_written_once, reach, reach_step},
    rnn::{GradStep, UpstreamSource},
};
use autobwd_core::{
    __private::{OperatorGradients, internals::*},
    Error, ErrorKind, GradKind, OpDesc, OpInfoMap, Program, Result, Var,
    desc::GRAD,
    operators::zeros,
};

/// The gradient operator of an operator, from those linked into this binary, in four steps:
///
/// 1. look up the gradient operator or rule registered for its type;
/// 2. copy the inputs and outputs that the gradient needs;
/// 3. add the gradients of its outputs as inputs, and those of its inputs as outputs: `x@GRAD`;
/// 4. build the gradient operator with these and with the attributes.
///
/// A rule that composes the gradient of several operators yields a net of them; a zero gradient is
/// [`Nop`](Operator::Nop). An input that is read twice has its gradient written twice; [`backward`] sums them.
///
/// # Errors
/// An unknown operator; wrong slots or attributes; an operator without gradient.
pub fn build_grad_op(op: &NamedOp) -> Result<Operator> {
    let tree = Operator::from(op.clone());
    let no_grad = VariableNames::default();
    let reached: VariableNames = op.reads().chain(op.writes()).map(String::from).collect();
    let mut walk = NetBackward::new(OpInfoMap::linked()?, std::slice::from_ref(&tree), &no_grad, &reached);
    op.writes().try_for_each(|name| walk.arrives(name))?;
    Ok(match walk.operator(&tree)? {
        Operator::Net(net) => net.completed().into(),
        gradient => gradient,
    })
}

/// The gradient of a tree, with the operators linked into this binary. It reads the gradients `y@GRAD` of the tree's
/// outputs (except outputs in `no_grad_vars` and those that no differentiable input influences), and writes the
/// gradients of all inputs that are not in `no_grad_vars`.
///
/// - An operator without upstream gradient, or without wanted gradient, yields [`Nop`](Operator::Nop).
/// - A net yields the gradients of its operators, including nested nets, in reverse.
/// - Several contributions to one gradient, in any nested net, are called `w@GRAD@RENAME@0`, `@1`, … in the order of
///   computation. Their sum follows the last of them, in the innermost net that contains them all; if an operator of a
///   net in it reads the gradient after the last of them, then in that net.
/// - `fill_zeros_like` supplies a needed gradient without writer.
/// - A step net yields a step net over the steps in reverse; its memories pass gradients to the previous step.
///
/// # Errors
/// Unknown operators and names; wrong slots or attributes; an operator without gradient on a path; a variable that is
/// written twice, or after a read; a variable with the name of a gradient.
pub fn backward(op: &Operator, no_grad_vars: &[&str]) -> Result<Operator> {
    let ops = OpInfoMap::linked()?;
    check_known(op, no_grad_vars)?;
    let tree = std::slice::from_ref(op);
    check_written_once(tree)?;
    let no_grad: VariableNames = no_grad_vars.iter().map(ToString::to_string).collect();
    let inputs = op.inputs().into_iter().filter(|name| !no_grad.contains(*name));
    let mut reached = inputs.map(String::from).collect();
    reach(ops, tree, &no_grad, &mut reached)?;
    let mut walk = NetBackward::new(ops, tree, &no_grad, &reached);
    let outputs = op.outputs().into_iter().filter(|name| reached.contains(*name));
    outputs.into_iter().try_for_each(|name| walk.arrives(name))?;
    let gradient = walk.operator(op)?;
    Ok(walk.accumulate(gradient, &[], &[]).op)
}

/// The state of the walk from the last operator of a scope to the first.
struct NetBackward<'a> {
    ops: &'a OpInfoMap,
    no_grad: &'a VariableNames,
    /// Variables that have a gradient if it is needed.
    reached: &'a VariableNames,
    /// All names; the first `model` ones belong to the model.
    names: Program,
    model: usize,
    /// By variable: its gradient.
    grads: FxHashMap<Var, Var>,
    /// Gradients computed or given so far, and values that rules derived from these.
    computed: FxHashSet<Var>,
}

impl<'a> NetBackward<'a> {
    fn new(
        ops: &'a OpInfoMap,
        tree: &[Operator],
        no_grad: &'a VariableNames,
        reached: &'a VariableNames,
    ) -> NetBackward<'a> {
        let mut names = Program::new();
        let mut note = |op: &Operator| {
            for name in op.inputs().into_iter().chain(op.outputs()) {
                names.var(name);
            }
        };
        tree.iter().for_each(|op| op.each(&mut note));
        let model = names.name_count();
        let (grads, computed) = Default::default();
        NetBackward { ops, no_grad, reached, names, model, grads, computed }
    }

    /// The gradient of a variable.
    fn grad(&mut self, name: &str) -> Result<Var> {
        let var = self.names.var(name);
        if let Some(grad) = self.grads.get(&var) {
            return Ok(*grad);
        }
        let grad_name = format!("{name}{GRAD}");
        let grad = self.names.var(&grad_name);
        if grad.index() < self.model {
            let text =
                format!("the gradient of `{name}` would be `{grad_name}`, which is a variable of the net");
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        self.grads.insert(var, grad);
        Ok(grad)
    }

    /// Records that a gradient is computed or given.
    fn arrives(&mut self, name: &str) -> Result<()> {
        let grad = self.grad(name)?;
        self.computed.insert(grad);
        Ok(())
    }

    fn has_gradient(&self, name: &str) -> bool {
        let grad = self.names.find(name).and_then(|var| self.grads.get(&var));
        grad.is_some_and(|grad| self.computed.contains(grad))
    }

    /// The gradients of an operator; contributions to one gradient still share a name.
    fn operator(&mut self, op: &Operator) -> Result<Operator> {
        match op {
            Operator::Nop => Ok(Operator::Nop),
            Operator::Op(op) => self.single(op).map_err(|e| e.at_op(|| op.describe())),
            Operator::Net(net) => self.net(net),
            Operator::Rnn(rnn) => self.rnn(rnn),
            Operator::RnnGrad(grad) => {
                match grad.outputs().into_iter().find(|name| self.has_gradient(name)) {
                    None => Ok(Operator::Nop),
                    Some(name) => Err(self.without_gradient(name).at_op(|| op.describe())),
                }
            }
        }
    }

    fn net(&mut self, net: &NetOp) -> Result<Operator> {
        let mut ops = vec![];
        for op in net.ops().iter().rev() {
            match self.operator(op)? {
                Operator::Nop => {}
                op => ops.push(op),
            }
        }
        Ok(if ops.is_empty() {
            Operator::Nop
        } else {
            NetOp::draft(format!("{}_grad", net.name()), ops).into()
        })
    }

    fn without_gradient(&self, name: &str) -> Error {
        let text = format!("the operator has no gradient, but the gradient of `{name}` passes through it");
        Error::new(ErrorKind::NoGradient, text)
    }

    fn single(&mut self, op: &NamedOp) -> Result<Operator> {
        let info = op.info(self.ops)?;
        let Some(arriving) = op.writes().find(|name| self.has_gradient(name)) else {
            return Ok(Operator::Nop);
        };
        if !op.reads().any(|name| self.reached.contains(name)) {
            return Ok(Operator::Nop);
        }
        match info.grad_kind() {
            GradKind::Zero => return Ok(Operator::Nop),
            GradKind::None => return Err(self.without_gradient(arriving)),
            GradKind::Operator(_) | GradKind::Derived(_) | GradKind::Composed | GradKind::Rule => {}
        }
        let fwd = op.desc(&mut |name| self.names.var(name));
        let mut grads = OperatorGradients::default();
        for name in op.reads().filter(|name| self.reached.contains(*name)) {
            grads.wanted.insert(self.names.var(name), self.grad(name)?);
        }
        for name in op.writes() {
            grads.of_output.insert(self.names.var(name), self.grad(name)?);
        }
        let arrives = |grad: Var| self.computed.contains(&grad);
        let of_model = |var: Var| Some(var).filter(|var| var.index() < self.model);
        let emitted = grads.emit(self.ops, info, &fwd, &mut self.names, &arrives, &of_model, None)?;
        let ops = self.prune(&fwd, emitted, &grads.variables());
        Ok(match ops.len() {
            0 => Operator::Nop,
            1 => ops.into_iter().next().unwrap_or(Operator::Nop),
            _ => NetOp::draft(format!("{}_grad", op.ty), ops).into(),
        })
    }

    /// Drops operators without incoming gradient; for the others, fills gradients without writer with zeros.
    /// `variables` maps a gradient to its variable.
    fn prune(
        &mut self,
        fwd: &OpDesc,
        emitted: Vec<OpDesc>,
        variables: &FxHashMap<Var, Var>,
    ) -> Vec<Operator> {
        let mut ops = vec![];
        let mut zero_filled = FxHashSet::default();
        let is_gradient = |var: &Var| variables.contains_key(var);
        for op in emitted {
            let has_upstream = op.reads().any(|v| self.computed.contains(&v));
            // A value that is no gradient is kept, because another operator of the same rule reads it.
            let writes_auxiliary = op.writes().any(|v| !is_gradient(&v));
            let reads_no_gradient = !op.reads().any(|v| is_gradient(&v));
            if op.writes().next().is_none() || !(has_upstream || writes_auxiliary || reads_no_gradient) {
                continue;
            }
            for grad in op.reads() {
                if let Some(value) = variables.get(&grad)
                    && !self.computed.contains(&grad)
                    && zero_filled.insert(grad)
                {
                    ops.push(OpDesc { site: fwd.site, ..zeros(*value, grad) });
                }
            }
            self.computed.extend(op.writes().filter(|v| has_upstream || is_gradient(v)));
            ops.push(OpDesc { site: fwd.site, ..op });
        }
        ops.iter().map(|op| NamedOp::from_desc(op, &self.names).into()).collect()
    }

    fn rnn(&mut self, rnn: &RnnOp) -> Result<Operator> {
        let NetBackward { ops, no_grad, reached, .. } = *self;
        let arriving: Vec<bool> =
            rnn.step_outputs().iter().map(|link| self.has_gradient(&link.outer)).collect();
        if !arriving.contains(&true) {
            return Ok(Operator::Nop);
        }
        let inner = reach_step(ops, rnn, no_grad, reached)?;
        let wanted: Vec<&str> = rnn.shared().into_iter().filter(|name| reached.contains(*name)).collect();
        let mut carried = vec![false; rnn.memories().len()];
        let mut steps = vec![];
        let mut computed = VariableNames::default();
        loop {
            let mut walk = NetBackward::new(ops, rnn.step().ops(), no_grad, &inner);
            steps.push(walk.step(rnn, &arriving, &carried, &wanted)?);
            let names = rnn.given().chain(wanted.iter().copied()).filter(|name| walk.has_gradient(name));
            computed.extend(names.map(String::from));
            let memories = rnn.memories().iter().zip(&carried);
            let next: Vec<bool> = memories.map(|(m, known)| *known || walk.has_gradient(&m.pre)).collect();
            if next == carried {
                break;
            }
            carried = next;
        }
        let mut outer_grad = |inner: &str, outer: &str| -> Result<Option<String>> {
            if !computed.contains(inner) || !reached.contains(outer) {
                return Ok(None);
            }
            self.arrives(outer)?;
            Ok(Some(format!("{outer}{GRAD}")))
        };
        let links = rnn.step_inputs().iter();
        let input_grads =
            links.map(|link| outer_grad(&link.inner, &link.outer)).collect::<Result<Vec<_>>>()?;
        let memories = rnn.memories().iter();
        let boot_grads = memories.map(|m| outer_grad(&m.pre, &m.boot)).collect::<Result<Vec<_>>>()?;
        let shared_grads = wanted.iter().map(|name| outer_grad(name, name)).collect::<Result<Vec<_>>>()?;
        for step in &mut steps {
            // Without those to which no step contributes.
            let mut contributes = shared_grads.iter().map(Option::is_some);
            step.parts.retain(|_| contributes.next().unwrap_or(false));
        }
        let shared_grads = wanted.iter().zip(shared_grads);
        let shared_grads: Vec<_> =
            shared_grads.filter_map(|(name, grad)| Some((name.to_string(), grad?))).collect();
        if input_grads.iter().chain(&boot_grads).all(Option::is_none) && shared_grads.is_empty() {
            return Ok(Operator::Nop);
        }
        let outputs = rnn.step_outputs().iter().zip(arriving);
        let output_grads =
            outputs.map(|(link, arrives)| arrives.then(|| format!("{}{GRAD}", link.outer))).collect();
        let forward = rnn.clone();
        let grad = RnnGradOp { forward, steps, output_grads, input_grads, boot_grads, shared_grads };
        Ok(Operator::RnnGrad(grad.into()))
    }

    /// The gradient of a step with upstream gradients at some outputs and memories; contributions to gradients of the
    /// variables `open` are not summed.
    fn step(&mut self, rnn: &RnnOp, arriving: &[bool], carried: &[bool], open: &[&str]) -> Result<GradStep> {
        // In the order of a program's gradient.
        let outputs = (0..arriving.len()).rev().filter(|i| arriving[*i]);
        let outputs = outputs.map(|i| (UpstreamSource::Output(i), &rnn.step_outputs()[i].inner));
        let memories = (0..carried.len()).rev().filter(|i| carried[*i]);
        let memories = memories.map(|i| (UpstreamSource::Memory(i), &rnn.memories()[i].state));
        let all: Vec<_> = outputs.chain(memories).filter(|(_, name)| self.reached.contains(*name)).collect();
        all.iter().try_for_each(|(_, name)| self.arrives(name))?;
        let gradient = self.net(rnn.step())?;
        let arrivals = all.iter().map(|(_, name)| self.grad(name)).collect::<Result<Vec<_>>>()?;
        let open = open.iter().map(|name| self.grad(name)).collect::<Result<Vec<_>>>()?;
        let AccumulatedNet { op, arrivals, parts } = self.accumulate(gradient, &arrivals, &open);
        let arrivals = all.into_iter().map(|(from, _)| from).zip(arrivals).collect();
        Ok(GradStep { op, arrivals, parts })
    }

    fn accumulate(&mut self, gradient: Operator, arrivals: &[Var], open: &[Var]) -> AccumulatedNet {
        let grads: FxHashSet<Var> = self.grads.values().copied().collect();
        accumulate(&mut self.names, |var| grads.contains(&var), gradient, arrivals, open)
    }
}
