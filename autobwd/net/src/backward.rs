//! Reverse-mode differentiation of a tree, which yields a tree.

use std::slice;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    NamedOp, NetOp, Operator, RnnGradOp, RnnOp,
    flat::FlatScope,
    gradient_tree::GradientTree,
    reachability::{VariableNames, check_known, check_written_once, reach, reach_step},
    rnn::{GradStep, StepOutput, StepValue, StepsGradient, StepsGradientKind},
};
use autobwd_backward::__private::{GradNames, accumulate, prune};
use autobwd_core::{
    __private::{OperatorGradients, internals::*},
    BlockId, Error, ErrorKind, GradKind, Name, OpDesc, OpInfoMap, Origin, Result, Slots, Var,
    desc::GRAD,
    operators::Assign,
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
    let tree = [Operator::from(op.clone())];
    let reached = op.reads().chain(op.writes()).collect();
    let no_grad = VariableNames::default();
    let mut scope = ScopeGradient::new(OpInfoMap::linked()?, &tree, &no_grad, &reached);
    op.writes().try_for_each(|name| scope.seed(name))?;
    scope.differentiate()?;
    scope.prune();
    Ok(scope.tree(&tree).pop().unwrap_or(Operator::Nop))
}

/// The gradient of a tree, with the operators linked into this binary. It reads the gradients `y@GRAD` of the tree's
/// outputs (except outputs in `no_grad_vars` and those that no differentiable input influences), and writes the
/// gradients of all inputs that are not in `no_grad_vars`.
///
/// - An operator without upstream gradient, or without wanted gradient, yields [`Nop`](Operator::Nop).
/// - A net yields the gradients of its operators, including nested nets, in reverse.
/// - Several contributions to one gradient, in any nested net, are called `w@GRAD@RENAME@0`, `@1`, … in the order of
///   computation. Their sum follows the last of them in the innermost net that contains them all, or, if that is deeper,
///   in the innermost net that contains the last of them and the reader of the gradient.
/// - `fill_zeros_like` supplies a needed gradient without writer.
/// - A step net yields a step net over the steps in reverse; its memories pass gradients to the previous step.
///
/// # Errors
/// Unknown operators and names; wrong slots or attributes; an operator without gradient on a path; a variable that is
/// written twice, or after a read; a variable with the name of a gradient.
pub fn backward(op: &Operator, no_grad_vars: &[&str]) -> Result<Operator> {
    let ops = OpInfoMap::linked()?;
    check_known(op, no_grad_vars)?;
    let tree = slice::from_ref(op);
    check_written_once(tree)?;
    let no_grad: VariableNames<'_> = no_grad_vars.iter().copied().collect();
    let mut reached = op.inputs().into_iter().filter(|name| !no_grad.contains(name)).collect();
    reach(ops, tree, &no_grad, &mut reached)?;
    let mut scope = ScopeGradient::new(ops, tree, &no_grad, &reached);
    let outputs = op.outputs().into_iter().filter(|name| reached.contains(name));
    outputs.into_iter().try_for_each(|name| scope.seed(name))?;
    scope.differentiate()?;
    scope.accumulate();
    scope.prune();
    let mut list = scope.tree(tree);
    Ok(match list.len() {
        0 => Operator::Nop,
        1 => list.swap_remove(0),
        _ => NetOp::gradient(&op.label(), list).into(),
    })
}

/// The gradient of the operators of one scope, as a flat list of operators, from the last operator to the first.
struct ScopeGradient<'a> {
    ops: &'a OpInfoMap,
    /// The scope, whose program also has the names of gradients.
    flat: FlatScope<'a>,
    /// The number of variables of the model.
    model: usize,
    /// Names without gradient, also of steps.
    excluded: &'a VariableNames<'a>,
    /// Variables that have a gradient if it is needed.
    reached: &'a VariableNames<'a>,
    /// By variable of the model: whether it is not reached.
    no_grad: Vec<bool>,
    names: GradNames,
    /// Seeds, which stand for upstream gradients, and gradient operators; a recurrent one stands for its steps.
    emitted: Vec<OpDesc>,
    /// By node: the gradients of recurrent operators.
    rnns: FxHashMap<usize, RnnGradOp>,
}

impl<'a> ScopeGradient<'a> {
    fn new(
        ops: &'a OpInfoMap,
        tree: &'a [Operator],
        excluded: &'a VariableNames<'a>,
        reached: &'a VariableNames<'a>,
    ) -> ScopeGradient<'a> {
        let flat = FlatScope::new(tree);
        let model = flat.program.name_count();
        let mut no_grad = vec![false; model];
        for var in flat.program.root().ops.iter().flat_map(|op| op.reads().chain(op.writes())) {
            no_grad[var.index()] = !reached.contains(flat.program.name(var));
        }
        let (emitted, rnns, names) = (vec![], FxHashMap::default(), GradNames::new(&flat.program));
        ScopeGradient { ops, flat, model, excluded, reached, no_grad, names, emitted, rnns }
    }

    /// The gradient of a variable.
    fn grad(&mut self, var: Var) -> Result<Var> {
        let grad = self.names.here(&mut self.flat.program, var);
        if grad.index() >= self.model {
            return Ok(grad);
        }
        let [name, grad] = [var, grad].map(|var| self.flat.program.name(var));
        let text = format!("the gradient of `{name}` would be `{grad}`, which is a variable of the net");
        Err(Error::new(ErrorKind::NoGradient, text))
    }

    /// Adds an upstream gradient.
    fn seed(&mut self, name: &str) -> Result<()> {
        let var = self.flat.program.var(name);
        let seed = Assign { x: Var::EMPTY, out: self.grad(var)? };
        self.emit(OpDesc { origin: Origin::Seed, ..seed.into() });
        Ok(())
    }

    fn emit(&mut self, op: OpDesc) {
        op.writes().for_each(|var| self.names.record_contribution(var));
        self.emitted.push(op);
    }

    fn arrives(&self, var: Var) -> bool {
        self.names.known(var).is_some_and(|grad| self.names.arrives(grad))
    }

    /// Emits the gradient operators; contributions to one gradient share a name.
    fn differentiate(&mut self) -> Result<()> {
        for (index, fwd) in self.flat.program.root().ops.clone().iter().enumerate().rev() {
            let node = self.flat.nodes[index];
            let own = self.operator(index, node, fwd).map_err(|e| e.at_op(|| node.describe()))?;
            for op in own {
                self.emit(OpDesc { site: fwd.site, origin: Origin::Gradient { of: index }, ..op });
            }
        }
        Ok(())
    }

    fn operator(&mut self, index: usize, node: &'a Operator, fwd: &OpDesc) -> Result<Vec<OpDesc>> {
        let info = if let Operator::Op(op) = node { Some(op.info(self.ops)?) } else { None };
        let Some(arriving) = fwd.writes().find(|var| self.arrives(*var)) else { return Ok(vec![]) };
        if fwd.reads().all(|var| self.no_grad[var.index()]) {
            return Ok(vec![]);
        }
        match (node, info.map(|info| (info, info.grad_kind()))) {
            (Operator::Rnn(rnn), _) => self.rnn(index, rnn),
            (_, Some((_, GradKind::Zero))) => Ok(vec![]),
            (_, kind @ (None | Some((_, GradKind::None(_))))) => {
                let name = self.flat.program.name(arriving);
                let because = kind.map_or(String::new(), |(_, kind)| kind.because());
                let text = format!(
                    "the operator has no gradient, but the gradient of `{name}` passes through it{because}"
                );
                Err(Error::new(ErrorKind::NoGradient, text))
            }
            (_, Some((info, _))) => {
                let mut grads = OperatorGradients::default();
                for var in fwd.reads().filter(|var| !self.no_grad[var.index()]).collect::<Vec<_>>() {
                    grads.wanted.insert(var, self.grad(var)?);
                }
                for var in fwd.writes() {
                    grads.of_output.insert(var, self.grad(var)?);
                }
                let arrives = |grad: Var| self.names.arrives(grad);
                let of_model = |var: Var| Some(var).filter(|var| var.index() < self.model);
                grads.emit(self.ops, info, fwd, &mut self.flat.program, &arrives, &of_model, None)
            }
        }
    }

    /// Gives contributions to one gradient names of their own, and sums them.
    fn accumulate(&mut self) {
        let emitted = std::mem::take(&mut self.emitted);
        let given = FxHashSet::default();
        self.emitted = accumulate(&mut self.flat.program, &mut self.names, BlockId::ROOT, &given, emitted);
    }

    /// Drops operators without upstream gradient, and fills missing gradients of the others with zeros.
    fn prune(&mut self) {
        let (emitted, given) = (std::mem::take(&mut self.emitted), FxHashSet::default());
        self.emitted = prune(self.flat.program.name_count(), &self.names, &given, &self.no_grad, emitted);
    }

    /// The gradient operators as a tree of the same form as the scope.
    fn tree(self, tree: &[Operator]) -> Vec<Operator> {
        GradientTree::new(self.emitted, self.flat.nodes.len(), self.rnns, &self.flat.program).list_of(tree)
    }

    fn rnn(&mut self, index: usize, rnn: &'a RnnOp) -> Result<Vec<OpDesc>> {
        let inner = reach_step(self.ops, rnn, self.excluded, self.reached)?;
        let program = &self.flat.program;
        let arrives = |name: &str| program.find(name).is_some_and(|var| self.arrives(var));
        let arriving: Vec<&StepOutput> = rnn.outputs.iter().filter(|out| arrives(&out.sequence)).collect();
        let mut results = rnn.gradients();
        let (mut carried, mut steps) = (vec![false; rnn.starts.len()], vec![]);
        loop {
            let scope = ScopeGradient::new(self.ops, rnn.step().ops(), self.excluded, &inner);
            let step = scope.step(rnn, &arriving, &carried, &results)?;
            let memories = rnn.starts.iter().map(|start| start.state.is_some());
            let known = memories.zip(&step.parts).zip(&carried);
            let next = known.map(|((memory, parts), known)| *known || (memory && !parts.is_empty()));
            let next: Vec<bool> = next.collect();
            steps.push(step);
            if next == carried {
                break;
            }
            carried = next;
        }
        let computed = |i: usize| steps.iter().any(|step| !step.parts[i].is_empty());
        let of = results.iter().map(|result| &*result.of).enumerate();
        let kept: Vec<bool> = of.map(|(i, of)| self.reached.contains(of) && computed(i)).collect();
        retain(&mut results, &kept);
        steps.iter_mut().for_each(|step| retain(&mut step.parts, &kept));
        if results.is_empty() {
            return Ok(vec![]);
        }
        let mut writes = vec![];
        for result in results.iter().rev() {
            let var = self.flat.program.var(&result.of);
            writes.push(self.grad(var)?);
        }
        let upstream = steps[0].starts.iter().filter_map(StepValue::sequence);
        let reads: Vec<Var> = upstream.filter_map(|name| self.flat.program.find(name)).collect();
        let op = OpDesc::new(Name::new(rnn.name())).input("X", reads).output("Out", writes);
        self.rnns.insert(index, RnnGradOp { forward: rnn.clone(), steps, results });
        Ok(vec![op])
    }

    /// The gradient of a step with upstream gradients of the outputs `arriving` and of the memories `carried`.
    fn step(
        mut self,
        rnn: &RnnOp,
        arriving: &[&StepOutput],
        carried: &[bool],
        results: &[StepsGradient],
    ) -> Result<GradStep> {
        // In the order of a program's gradient.
        let outputs = arriving.iter().rev().map(|out| (&*out.value, None, Some(&out.sequence)));
        let memories = rnn.starts.iter().zip(carried).rev().filter(|(_, carried)| **carried);
        let memories =
            memories.filter_map(|(start, _)| Some((&**start.state.as_ref()?, Some(&start.name), None)));
        let upstream: Vec<_> = outputs.chain(memories).filter(|(v, ..)| self.reached.contains(v)).collect();
        upstream.iter().try_for_each(|(value, ..)| self.seed(value))?;
        self.differentiate()?;
        self.accumulate();
        self.prune();
        let mut writer = FxHashMap::default();
        for (at, op) in self.emitted.iter().enumerate() {
            op.writes().for_each(|var| _ = writer.insert(var, at));
        }
        let parts = results.iter().map(|result| self.parts(result, &writer)).collect();
        self.emitted.retain(|op| op.writes().next().is_some());
        let seeds = self.emitted.iter().filter(|op| op.origin == Origin::Seed).flat_map(OpDesc::writes);
        let gradient = |name: &String| format!("{name}{GRAD}");
        let starts = upstream.into_iter().zip(seeds).map(|((_, state, outer), grad)| {
            let name = self.flat.program.name(grad).to_string();
            StepValue { name, state: state.map(gradient), outer: outer.map(gradient) }
        });
        let starts = starts.collect();
        let step = rnn.step();
        Ok(GradStep { net: NetOp::gradient(step.name(), self.tree(step.ops())), starts, parts })
    }

    /// The contributions of a step to a gradient, by the operators that write them. If the contributions of all steps
    /// are summed, the sum of the step loses its output.
    fn parts(&mut self, result: &StepsGradient, writer: &FxHashMap<Var, usize>) -> Vec<String> {
        let grad = self.flat.program.find(&result.value).and_then(|var| self.names.known(var));
        let Some((grad, at)) = grad.and_then(|grad| Some((grad, *writer.get(&grad)?))) else { return vec![] };
        let op = &mut self.emitted[at];
        let parts = match result.kind == StepsGradientKind::Summed && op.origin == Origin::Accumulate {
            true => {
                op.outputs = Slots::default();
                op.reads().collect()
            }
            false => vec![grad],
        };
        parts.into_iter().map(|part| self.flat.program.name(part).to_string()).collect()
    }
}

/// Keeps the items whose flag is set.
fn retain<T>(items: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    items.retain(|_| kept.next().is_some_and(|kept| *kept));
}
