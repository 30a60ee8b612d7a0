//! The backward pass: a priority queue of values with their gradients, newest first.
//!
//! Contributions are summed in the order of a program, so they are bit-identical to the gradients of a program. Control
//! flow is the exception: the tape sums the contributions of all steps to an outer value one after the other, a program
//! sums the contributions of a block first, so last bits may differ.

use std::{cmp::Reverse, collections::BTreeMap, fmt, mem, panic::Location, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::{
    gradient::{Adder, Gradient, PendingGradient},
    rule::chain_rule,
};
use crate::{
    engine::Eager,
    prepared::{self, ChainRule, RuleSource, RuleStep},
};
use autobwd_core::{
    __private::{FunctionCall, Memory, MemoryGuard, NodeOrigin, OpCall, TapeNode, internals::*},
    Builder, Error, ErrorKind, Expr, OpKey, Result, Tensor, Var,
    graph_builder::Value,
    operators::Sum,
};

/// The queue of the backward pass. It returns the value that was computed last: all of its consumers were computed
/// after it, so its gradient is complete.
#[derive(Default)]
pub struct Queue<'a> {
    /// The first entry, unless it is the last of `rest`; a chain of operators needs no more.
    next: Option<Box<PendingGradient<'a>>>,
    rest: BTreeMap<QueueKey, Box<PendingGradient<'a>>>,
    /// Empty entries, for reuse.
    #[expect(clippy::vec_box, reason = "moving an entry between lists moves only its address")]
    empty: Vec<Box<PendingGradient<'a>>>,
}

/// Later nodes come first, and of one node the first outputs. Nodes of different threads may have equal numbers.
pub(super) type QueueKey = (u64, *const TapeNode, Reverse<u32>);

pub(super) fn key(of: &Value) -> QueueKey {
    (of.node().number, Arc::as_ptr(of.node()), Reverse(of.out()))
}

impl<'a> Queue<'a> {
    /// The entries, next first.
    pub fn iter(&self) -> impl Iterator<Item = QueueEntry<'_>> {
        self.next.iter().chain(self.rest.values().rev()).map(|entry| QueueEntry(entry))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.rest.len() + usize::from(self.next.is_some())
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether that key comes before all entries.
    #[inline]
    fn is_first(&self, at: QueueKey) -> bool {
        match &self.next {
            Some(next) => key(next.of) < at,
            None => self.rest.last_key_value().is_none_or(|(last, _)| *last < at),
        }
    }

    fn find(&mut self, at: QueueKey) -> Option<&mut PendingGradient<'a>> {
        match &mut self.next {
            Some(next) if key(next.of) == at => Some(next),
            _ => self.rest.get_mut(&at).map(|entry| &mut **entry),
        }
    }

    /// Adds a new entry, as the first one or after it.
    #[inline(always)]
    fn insert(&mut self, of: &'a Value, derivative: Gradient, first: bool) {
        let mut entry = self.empty.pop().unwrap_or_else(|| Box::new(PendingGradient::of(of)));
        (entry.of, entry.derivative) = (of, derivative);
        let other = if first { self.next.replace(entry) } else { Some(entry) };
        if let Some(other) = other {
            self.rest.insert(key(other.of), other);
        }
    }

    fn pop(&mut self) -> Option<Box<PendingGradient<'a>>> {
        self.next.take().or_else(|| self.rest.pop_last().map(|(_, entry)| entry))
    }

    /// Recycles an entry.
    fn done(&mut self, mut entry: Box<PendingGradient<'a>>) {
        entry.derivative = Gradient::default();
        entry.more.clear();
        self.empty.push(entry);
    }

    /// Takes the next entry if it is another output of that node.
    fn pop_of(&mut self, node: &Arc<TapeNode>) -> Option<Box<PendingGradient<'a>>> {
        let next = self.next.as_ref().or_else(|| self.rest.last_key_value().map(|(_, entry)| entry))?;
        if Arc::ptr_eq(next.of.node(), node) { self.pop() } else { None }
    }
}

/// A value in a [`Queue`], with its gradient so far.
pub struct QueueEntry<'q>(&'q PendingGradient<'q>);

impl<'q> QueueEntry<'q> {
    /// The value; [`Builder::hold`] makes an expression of it.
    pub fn value(&self) -> &'q Value {
        self.0.of
    }

    /// Its name, or else the name of its operator.
    pub fn name(&self) -> String {
        self.0.of.name()
    }

    /// The contributions so far, to be summed: one tensor, or several if some are sparse or have 16 bits.
    ///
    /// # Errors
    /// No memory.
    pub fn derivatives(&self) -> Result<Vec<Tensor>> {
        let PendingGradient { of, derivative, more } = self.0;
        let copy = |part: &Gradient| Tensor::copy_of(part.memory()?, 0, part.meta(of));
        [derivative].into_iter().chain(more).map(copy).collect()
    }
}

impl fmt::Display for Queue<'_> {
    /// Values with their gradients, next first: `x: 3, y: 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, entry) in self.iter().enumerate() {
            write!(f, "{}{}: ", if i > 0 { ", " } else { "" }, entry.name())?;
            for (i, part) in entry.derivatives().map_err(|_| fmt::Error)?.iter().enumerate() {
                f.write_str(if i > 0 { " + " } else { "" })?;
                match part.to_f64s()[..] {
                    [x] => write!(f, "{x}")?,
                    ref all => write!(f, "{all:?}")?,
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
impl fmt::Debug for QueueEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueEntry").field(&self.name()).finish()
    }
}

/// A backward pass from some values to their leaves or to given inputs.
pub(super) struct BackwardWalk<'a> {
    builder: &'a Builder,
    eager: &'a Eager,
    queue: Queue<'a>,
    goal: GradientTarget<'a>,
    /// Whether gradients are not recorded.
    forgets: bool,
    adder: Adder<'a>,
    /// Gradients of an operator's outputs.
    arrived: Vec<Option<Box<PendingGradient<'a>>>>,
    /// Unshared results of its chain rule.
    made: Vec<Option<Memory>>,
    site: &'static Location<'static>,
}

/// The destination of gradients.
pub(super) enum GradientTarget<'a> {
    /// Every leaf accumulates its own.
    Leaves,
    /// Gradients with respect to these values are returned; only nodes on a path are visited.
    Asked { inputs: &'a [Value], leads: FxHashSet<*const TapeNode>, found: Vec<Option<Value>> },
}

impl<'a> GradientTarget<'a> {
    pub(super) fn inputs(outputs: &[Value], inputs: &'a [Value]) -> GradientTarget<'a> {
        // A node older than all inputs does not depend on them.
        let oldest = inputs.iter().map(|v| v.node().number).min().unwrap_or(u64::MAX);
        let mut seen: FxHashMap<*const TapeNode, &TapeNode> = FxHashMap::default();
        let mut rest: Vec<&Arc<TapeNode>> = outputs.iter().map(|v| v.node()).collect();
        while let Some(node) = rest.pop() {
            if node.number >= oldest && seen.insert(Arc::as_ptr(node), node).is_none() {
                rest.extend(
                    node.inputs().iter().filter(|value| value.requires_grad()).map(|value| value.node()),
                );
            }
        }
        let mut nodes: Vec<&TapeNode> = seen.into_values().collect();
        nodes.sort_unstable_by_key(|node| node.number);
        let mut leads: FxHashSet<*const TapeNode> = inputs.iter().map(|v| Arc::as_ptr(v.node())).collect();
        for node in nodes {
            if node
                .inputs()
                .iter()
                .any(|value| value.requires_grad() && leads.contains(&Arc::as_ptr(value.node())))
            {
                leads.insert(node);
            }
        }
        GradientTarget::Asked { inputs, leads, found: vec![None; inputs.len()] }
    }

    #[inline]
    pub(super) fn visits(&self, value: &Value) -> bool {
        value.requires_grad()
            && match self {
                GradientTarget::Leaves => true,
                GradientTarget::Asked { leads, .. } => leads.contains(&Arc::as_ptr(value.node())),
            }
    }

    /// The requested gradients.
    pub(super) fn found(self) -> Vec<Option<Value>> {
        match self {
            GradientTarget::Leaves => vec![],
            GradientTarget::Asked { found, .. } => found,
        }
    }
}

impl<'a> BackwardWalk<'a> {
    pub(super) fn new(
        builder: &'a Builder,
        eager: &'a Eager,
        goal: GradientTarget<'a>,
        site: &'static Location<'static>,
    ) -> BackwardWalk<'a> {
        let forgets = eager.skips_recording();
        let adder = Adder { builder, eager, forgets, ready: None, site };
        let (queue, arrived, made) = (Queue::default(), vec![], vec![]);
        BackwardWalk { builder, eager, queue, goal, forgets, adder, arrived, made, site }
    }

    /// Adds a value with its gradient, if it is differentiable.
    pub(super) fn start(&mut self, of: &'a Value, derivative: Value) -> Result<()> {
        if self.goal.visits(of) { self.push(of, Gradient::of(derivative)) } else { Ok(()) }
    }

    /// Adds a value to the queue; if it is queued, adds the contribution to its gradient.
    #[inline(always)]
    fn push(&mut self, of: &'a Value, derivative: Gradient) -> Result<()> {
        let at = key(of);
        let first = self.queue.is_first(at);
        match if first { None } else { self.queue.find(at) } {
            Some(entry) => return self.adder.add(entry, derivative),
            None => self.queue.insert(of, derivative, first),
        }
        Ok(())
    }

    /// Runs the backward pass; calls `look` before each step.
    ///
    /// # Errors
    /// An operator without gradient; an overwritten value; the errors of hooks.
    pub(crate) fn run(mut self, look: &mut dyn FnMut(&Queue<'_>)) -> Result<GradientTarget<'a>> {
        loop {
            look(&self.queue);
            let Some(mut entry) = self.queue.pop() else { return Ok(self.goal) };
            let of = entry.of;
            self.finish_gradient(&mut entry)?;
            let call = match &of.node().origin {
                NodeOrigin::Computed(call) => call,
                NodeOrigin::Applied(applied) => {
                    self.applied(applied, &entry).map_err(|e| e.at_op(|| applied.describe()))?;
                    continue;
                }
                NodeOrigin::Source(_) => continue,
            };
            if call.outputs.len() == 1 {
                self.arrived.push(Some(entry));
            } else {
                self.arrived.resize_with(call.outputs.len(), || None);
                self.arrived[of.out() as usize] = Some(entry);
                while let Some(mut entry) = self.queue.pop_of(of.node()) {
                    self.finish_gradient(&mut entry)?;
                    let out = entry.of.out();
                    self.arrived[out as usize] = Some(entry);
                }
            }
            self.chain_rule(of, call)?;
            while let Some(entry) = self.arrived.pop() {
                if let Some(entry) = entry {
                    self.queue.done(entry);
                }
            }
        }
    }

    /// Handles a value whose gradient is complete.
    fn finish_gradient(&mut self, entry: &mut PendingGradient<'a>) -> Result<()> {
        let PendingGradient { of, derivative, more } = entry;
        let leaf = of.is_leaf();
        if more.is_empty() && !of.has_settings() && !leaf && matches!(self.goal, GradientTarget::Leaves) {
            return Ok(());
        }
        let site = of.node().call().map_or(self.site, |call| call.site);
        if !more.is_empty() {
            let parts = [&mut *derivative].into_iter().chain(more).map(|part| part.share(of.meta()));
            *derivative = Gradient::of(self.sum(&parts.collect::<Result<Vec<_>>>()?, site)?);
        }
        let (hooks, retain) = of.settings(|w| (w.hooks.clone(), w.retain)).unwrap_or_default();
        for (_, hook) in hooks {
            *derivative = Gradient::of(self.hooked(of, derivative.share(of.meta())?, &*hook)?);
        }
        match &mut self.goal {
            GradientTarget::Leaves if retain || leaf => {
                let sum = match of.settings(|w| w.derivative.take()).flatten() {
                    Some(known) => self.sum(&[&known, derivative.share(of.meta())?], site)?,
                    None => derivative.share(of.meta())?.clone(),
                };
                of.with_settings(|w| w.derivative = Some(sum));
            }
            GradientTarget::Leaves => {}
            GradientTarget::Asked { inputs, found, .. } => {
                for (_, found) in inputs.iter().zip(found).filter(|(input, _)| input.same(of)) {
                    *found = Some(derivative.share(of.meta())?.clone());
                }
            }
        }
        Ok(())
    }

    fn hooked(
        &self,
        value: &Value,
        derivative: &Value,
        hook: &(dyn Fn(&Expr) -> Expr + Send + Sync),
    ) -> Result<Value> {
        let changed = hook(&Expr::of_value(self.builder, derivative.clone()));
        let changed = changed.value()?;
        let needed = value.meta().clone().in_slot("hook");
        changed.meta().clone().in_slot("derivative").same_as(&needed)?;
        Ok(changed.clone())
    }

    /// The sum of contributions, in their order.
    fn sum(&self, parts: &[&Value], site: &'static Location<'static>) -> Result<Value> {
        let terms = (1..=parts.len()).map(Var::stand_in);
        let desc = Sum::description(terms, Var::stand_in(parts.len() + 1));
        let (words, desc) = (&mut OpKey::of(&desc), &mut || Ok(desc.clone()));
        Ok(Value::of(self.eager.call(self.builder, words, desc, parts, site)?, 0))
    }

    /// The gradients of an operator's inputs, from the complete gradients of its outputs; `of` is one of these.
    #[inline(always)]
    fn chain_rule(&mut self, of: &'a Value, call: &'a OpCall) -> Result<()> {
        let (goal, arrived) = (&self.goal, &self.arrived);
        if matches!(goal, GradientTarget::Asked { .. }) && !call.inputs.iter().any(|input| goal.visits(input))
        {
            return Ok(());
        }
        let wanted = || call.inputs.iter().map(|input| goal.visits(input));
        let arrives = || arrived.iter().map(Option::is_some);
        let fits = |rule: &ChainRule| {
            rule.wanted.iter().zip(wanted()).all(|(a, b)| *a == b)
                && rule.arrived.iter().zip(arrives()).all(|(a, b)| *a == b)
        };
        let make = || chain_rule(self.builder.ops()?, call, arrives().collect(), wanted().collect());
        let rule = prepared::rule(&call.prepared, fits, make)?;
        for (input, read) in call.inputs.iter().zip(&rule.reads) {
            if *read {
                input.expect_version().map_err(|e| e.at_op(|| call.prepared.describe(call.site)))?;
            }
        }
        // The steps are prepared for whole tensors, so sparse gradients need others.
        let sparse = arrived.iter().flatten().any(|entry| entry.derivative.is_sparse());
        match self.forgets && rule.apart && !sparse {
            true => self.compute(rule, call),
            false => self.record(rule, of, call, sparse),
        }
    }

    /// Differentiates a user-defined function.
    fn applied(&mut self, applied: &'a FunctionCall, entry: &PendingGradient<'a>) -> Result<()> {
        if !self.forgets {
            let text = "the tape does not record the `backward` of a Rust function, so its gradient has no \
                        gradient: write an operator instead";
            return Err(Error::new(ErrorKind::NoGradient, text));
        }
        let PendingGradient { of, derivative, .. } = entry;
        let gradient = Tensor::copy_of(derivative.memory()?, 0, derivative.meta(of))?;
        for (input, gradient) in applied.inputs.iter().zip(applied.backward(&gradient)?) {
            if self.goal.visits(input) {
                self.push(input, Gradient::Loose(gradient.into_memory()?))?;
            }
        }
        Ok(())
    }

    /// Runs a chain rule on unshared buffers.
    fn compute(&mut self, rule: &ChainRule, call: &'a OpCall) -> Result<()> {
        let (arrived, made) = (&self.arrived, &mut self.made);
        made.clear();
        let reading = MemoryGuard::of(call.inputs.iter());
        for RuleStep { ready, inputs } in &rule.steps {
            let known = made.len();
            for size in &ready.sizes {
                made.push(Some(Memory::any(*size)?));
            }
            let (made, new) = made.split_at_mut(known);
            let input = |i: usize| match inputs[i] {
                RuleSource::Input(i) => reading.memory(i, &call.inputs[i]),
                RuleSource::Output(i) => Ok(&call.outputs[i]),
                RuleSource::Arrived(i) => expect_gradient(&arrived[i])?.derivative.memory(),
                RuleSource::Made(i) => expect_gradient(&made[i]),
            };
            self.eager.compute(ready, input, new.iter_mut().flatten(), call.site)?;
            self.eager.check(ready, new.iter().flatten(), call.site)?;
        }
        for (input, source) in &rule.derivatives {
            let input = &call.inputs[*input];
            match source {
                RuleSource::Made(i) => {
                    if let Some(memory) = self.made[*i].take() {
                        self.push(input, Gradient::Loose(memory))?;
                    }
                }
                RuleSource::Arrived(i) => {
                    if let Some(entry) = &mut self.arrived[*i] {
                        let derivative = mem::take(&mut entry.derivative);
                        self.push(input, derivative)?;
                    }
                }
                RuleSource::Input(_) | RuleSource::Output(_) => return Err(no_derivative()),
            }
        }
        Ok(())
    }

    /// Runs the chain rule of an operator, one of whose outputs is `of`, as ordinary operators, so that it is recorded.
    fn record(&mut self, rule: &ChainRule, of: &'a Value, call: &'a OpCall, sparse: bool) -> Result<()> {
        for entry in self.arrived.iter_mut().flatten() {
            entry.derivative.share(entry.of.meta())?;
        }
        let outs = (0..call.outputs.len()).map(|out| Value::of(of.node().clone(), out));
        let (outs, mut made) = (outs.collect::<SmallVec<[Value; 2]>>(), SmallVec::<[Value; 2]>::new());
        for RuleStep { ready, inputs } in &rule.steps {
            let mut read = SmallVec::<[&Value; 4]>::new();
            for source in inputs {
                read.push(match *source {
                    RuleSource::Input(i) => &call.inputs[i],
                    RuleSource::Output(i) => &outs[i],
                    RuleSource::Arrived(i) => expect_gradient(&self.arrived[i])?.derivative.value()?,
                    RuleSource::Made(i) => &made[i],
                });
            }
            let ran = match sparse {
                true => {
                    let (words, desc) = (&mut OpKey::of(&ready.desc), &mut || Ok(ready.desc.clone()));
                    self.eager.call(self.builder, words, desc, &read, call.site)?
                }
                false => self.eager.run(ready, &read, &[], call.site)?,
            };
            drop(read);
            made.extend((0..ready.outputs.len()).map(|out| Value::of(ran.clone(), out)));
        }
        for (input, source) in &rule.derivatives {
            let derivative = match source {
                RuleSource::Made(i) => made[*i].clone(),
                RuleSource::Arrived(i) => expect_gradient(&self.arrived[*i])?.derivative.value()?.clone(),
                RuleSource::Input(_) | RuleSource::Output(_) => return Err(no_derivative()),
            };
            self.push(&call.inputs[*input], Gradient::of(derivative))?;
        }
        Ok(())
    }
}

#[inline]
fn expect_gradient<T>(derivative: &Option<T>) -> Result<&T> {
    derivative.as_ref().ok_or_else(|| Error::internal("a gradient is read before it is computed"))
}

#[cold]
fn no_derivative() -> Error {
    Error::internal("an older value is taken for a gradient")
}
