//! Going back: a queue of values with their derivatives.

use std::{cmp::Reverse, collections::BTreeMap, fmt, mem, panic::Location, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::rule::chain_rule;
use crate::{
    Builder, DType, Error, Expr, Meta, OpDesc, Result, Tensor, Var, Words,
    build::eager::{Call, Eager, Given, Node, Reading, Ready, Rule, RuleStep, Value},
    tensor::Memory,
};

/// Derivatives on their way back. The value that was computed last goes first: whatever contributes to its derivative was
/// computed after it, so by then all contributions are there.
#[derive(Default)]
pub struct Queue<'a> {
    /// The next one, unless it is the last of the rest: a chain needs no more.
    next: Option<Entry<'a>>,
    rest: BTreeMap<Key, Entry<'a>>,
}

/// Later nodes go first, of one node the first outputs. Threads give the same numbers to nodes of theirs.
type Key = (u64, *const Node, Reverse<u32>);

/// A value with what has arrived so far.
struct Entry<'a> {
    of: &'a Value,
    derivative: Derivative<'a>,
    /// What could not be added at once: some are rows of a tensor.
    more: Vec<Derivative<'a>>,
}

impl Entry<'_> {
    fn key(&self) -> Key {
        key(self.of)
    }
}

fn key(of: &Value) -> Key {
    (of.node.number, Arc::as_ptr(&of.node), Reverse(of.out()))
}

impl<'a> Queue<'a> {
    fn find(&mut self, of: &Value) -> Option<&mut Entry<'a>> {
        let key = key(of);
        match &mut self.next {
            Some(next) if next.key() == key => Some(next),
            _ => self.rest.get_mut(&key),
        }
    }

    fn insert(&mut self, entry: Entry<'a>) {
        let key = entry.key();
        let is_next = match &self.next {
            Some(next) => next.key() < key,
            None => self.rest.last_key_value().is_none_or(|(last, _)| *last < key),
        };
        let other = if is_next { self.next.replace(entry) } else { Some(entry) };
        if let Some(other) = other {
            self.rest.insert(other.key(), other);
        }
    }

    fn pop(&mut self) -> Option<Entry<'a>> {
        self.next.take().or_else(|| self.rest.pop_last().map(|(_, entry)| entry))
    }

    /// Takes the next one if it is another output of that node.
    fn pop_of(&mut self, node: &Arc<Node>) -> Option<Entry<'a>> {
        let next = self.next.as_ref().or_else(|| self.rest.last_key_value().map(|(_, entry)| entry))?;
        if Arc::ptr_eq(&next.of.node, node) { self.pop() } else { None }
    }
}

impl fmt::Display for Queue<'_> {
    /// Values with their derivatives, next first: `x: 3, y: 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Entry { of, derivative, more }) in
            self.next.iter().chain(self.rest.values().rev()).enumerate()
        {
            write!(f, "{}{}: ", if i > 0 { ", " } else { "" }, of.name())?;
            for (i, part) in [derivative].into_iter().chain(more).enumerate() {
                f.write_str(if i > 0 { " + " } else { "" })?;
                let tensor = part.memory().and_then(|memory| Tensor::copy_of(memory, 0, part.meta()));
                match tensor.map(|t| t.to_f64s()).as_deref() {
                    Ok([x]) => write!(f, "{x}")?,
                    Ok(all) => write!(f, "{all:?}")?,
                    Err(_) => return Err(fmt::Error),
                }
            }
        }
        Ok(())
    }
}

/// One way back, from values to what they were computed from.
pub(super) struct Walk<'a> {
    builder: &'a Builder,
    eager: &'a Eager,
    queue: Queue<'a>,
    goal: Goal<'a>,
    /// Whether nobody will ask how derivatives came about.
    forgets: bool,
    /// Adds two derivatives of the shape that came last.
    adder: Option<Arc<Ready>>,
    /// Derivatives of an operator's outputs, and what its chain rule computes of them.
    steps: Vec<Option<Derivative<'a>>>,
    site: &'static Location<'static>,
}

/// What derivatives are for.
pub(super) enum Goal<'a> {
    /// Every leaf adds its own up.
    Leaves,
    /// Those with respect to these values are returned; only nodes that lead there are visited.
    Asked { inputs: &'a [Value], leads: FxHashSet<*const Node>, found: Vec<Option<Value>> },
}

impl<'a> Goal<'a> {
    pub(super) fn asked(outputs: &[Value], inputs: &'a [Value]) -> Goal<'a> {
        // Nothing leads to a node that is older than all inputs.
        let oldest = inputs.iter().map(|v| v.node.number).min().unwrap_or(u64::MAX);
        let mut seen: FxHashMap<*const Node, &Node> = FxHashMap::default();
        let mut rest: Vec<&Arc<Node>> = outputs.iter().map(|v| &v.node).collect();
        while let Some(node) = rest.pop() {
            if node.number >= oldest && seen.insert(Arc::as_ptr(node), node).is_none() {
                let read = node.call().map(|call| &call.inputs[..]).unwrap_or_default();
                rest.extend(read.iter().filter(|value| value.has_derivative()).map(|value| &value.node));
            }
        }
        let mut nodes: Vec<&Node> = seen.into_values().collect();
        nodes.sort_unstable_by_key(|node| node.number);
        let mut leads: FxHashSet<*const Node> = inputs.iter().map(|v| Arc::as_ptr(&v.node)).collect();
        for node in nodes {
            let read = node.call().map(|call| &call.inputs[..]).unwrap_or_default();
            if read.iter().any(|value| value.has_derivative() && leads.contains(&Arc::as_ptr(&value.node))) {
                leads.insert(node);
            }
        }
        Goal::Asked { inputs, leads, found: vec![None; inputs.len()] }
    }

    #[inline]
    fn wants(&self, value: &Value) -> bool {
        value.has_derivative()
            && match self {
                Goal::Leaves => true,
                Goal::Asked { leads, .. } => leads.contains(&Arc::as_ptr(&value.node)),
            }
    }

    /// The derivatives that were asked for.
    pub(super) fn found(self) -> Vec<Option<Value>> {
        match self {
            Goal::Leaves => vec![],
            Goal::Asked { found, .. } => found,
        }
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        builder: &'a Builder,
        eager: &'a Eager,
        goal: Goal<'a>,
        site: &'static Location<'static>,
    ) -> Walk<'a> {
        let forgets = eager.forgets();
        Walk { builder, eager, queue: Queue::default(), goal, forgets, adder: None, steps: vec![], site }
    }

    /// Adds a value with its derivative, if it has any.
    pub(super) fn start(&mut self, of: &'a Value, derivative: Value) -> Result<()> {
        if self.goal.wants(of) { self.push(of, Derivative::of(derivative)) } else { Ok(()) }
    }

    /// Adds a value to the queue; if it is there already, its derivative to what has arrived, in the order of a program.
    fn push(&mut self, of: &'a Value, mut derivative: Derivative<'a>) -> Result<()> {
        match self.queue.find(of) {
            None => self.queue.insert(Entry { of, derivative, more: vec![] }),
            Some(Entry { derivative: sum, .. })
                if [&*sum, &derivative].iter().all(|d| d.meta().rows.is_none()) =>
            {
                let site = of.node.call().map_or(self.site, |call| call.site);
                let ready = self.adder.take().filter(|ready| ready.inputs[0].agrees(derivative.meta()));
                let ready = match ready {
                    Some(ready) => ready,
                    None => adder(self.eager, self.builder, [sum.meta(), derivative.meta()], site)?,
                };
                *sum = match self.forgets {
                    true => {
                        let terms = [&*sum, &derivative];
                        let mut memory = Memory::any(ready.sizes[0])?;
                        let outputs = [&mut memory].into_iter();
                        self.eager.compute(&ready, |i| terms[i].memory(), outputs, site)?;
                        self.eager.check(&ready, [&memory].into_iter(), site)?;
                        Derivative::Loose(of.meta(), memory)
                    }
                    false => {
                        let terms = [sum.share()?, derivative.share()?];
                        Derivative::of(Value::of(self.eager.run(ready.clone(), &terms, &[], site)?, 0))
                    }
                };
                self.adder = Some(ready);
            }
            Some(entry) => entry.more.push(derivative),
        }
        Ok(())
    }

    /// Visits all, calling `look` before each.
    ///
    /// # Errors
    /// An operator without gradient; a value that was overwritten; those of hooks.
    pub(super) fn run(mut self, look: &mut dyn FnMut(&Queue<'_>)) -> Result<Goal<'a>> {
        loop {
            look(&self.queue);
            let Some(mut entry) = self.queue.pop() else { return Ok(self.goal) };
            let of = entry.of;
            self.arrive(&mut entry)?;
            let Some(call) = of.node.call() else { continue };
            self.steps.clear();
            if call.outputs.len() == 1 {
                self.steps.push(Some(entry.derivative));
            } else {
                self.steps.resize_with(call.outputs.len(), || None);
                self.steps[of.out() as usize] = Some(entry.derivative);
                while let Some(mut entry) = self.queue.pop_of(&of.node) {
                    self.arrive(&mut entry)?;
                    self.steps[entry.of.out() as usize] = Some(entry.derivative);
                }
            }
            self.chain_rule(of, call)?;
        }
    }

    /// All that contributes to the derivative of a value is there.
    fn arrive(&mut self, entry: &mut Entry<'a>) -> Result<()> {
        let Entry { of, derivative, more } = entry;
        let leaf = of.is_leaf();
        if more.is_empty() && !of.is_watched() && !leaf && matches!(self.goal, Goal::Leaves) {
            return Ok(());
        }
        let site = of.node.call().map_or(self.site, |call| call.site);
        if !more.is_empty() {
            let parts = [&mut *derivative].into_iter().chain(more).map(Derivative::share);
            *derivative = Derivative::of(self.sum(&parts.collect::<Result<Vec<_>>>()?, site)?);
        }
        let (hooks, retain) = of.watched(|w| (w.hooks.clone(), w.retain)).unwrap_or_default();
        for (_, hook) in hooks {
            *derivative = Derivative::of(self.hooked(of, derivative.share()?, &*hook)?);
        }
        match &mut self.goal {
            Goal::Leaves if retain || leaf => {
                let sum = match of.watched(|w| w.derivative.take()).flatten() {
                    Some(known) => self.sum(&[&known, derivative.share()?], site)?,
                    None => derivative.share()?.clone(),
                };
                of.watch(|w| w.derivative = Some(sum));
            }
            Goal::Leaves => {}
            Goal::Asked { inputs, found, .. } => {
                for (_, found) in inputs.iter().zip(found).filter(|(input, _)| input.same(of)) {
                    *found = Some(derivative.share()?.clone());
                }
            }
        }
        Ok(())
    }

    fn hooked(
        &self,
        value: &Value,
        derivative: &Value,
        hook: &(dyn Fn(&Expr) -> Result<Expr> + Send + Sync),
    ) -> Result<Value> {
        let changed = hook(&Expr::of_value(self.builder, derivative.clone()))?;
        let changed = changed.held_value().ok_or_else(|| Error::internal("a hook returns a variable"))?;
        let needed = value.meta().clone().in_slot("hook");
        changed.meta().clone().in_slot("derivative").same_as(&needed)?;
        Ok(changed.clone())
    }

    /// The sum of contributions, in their order.
    fn sum(&self, parts: &[&Value], site: &'static Location<'static>) -> Result<Value> {
        let desc = OpDesc::new("sum")
            .input("X", (1..=parts.len()).map(Var::stand_in))
            .output("Out", [Var::stand_in(parts.len() + 1)]);
        let (words, desc) = (&mut Words::of(&desc), &mut || Ok(desc.clone()));
        Ok(Value::of(self.eager.call(self.builder.ops()?, words, desc, parts, &[], site)?, 0))
    }

    /// Derivatives of an operator's inputs, from those of its outputs, one of which is `of`; they are the first of `steps`.
    fn chain_rule(&mut self, of: &'a Value, call: &'a Call) -> Result<()> {
        let goal = &self.goal;
        if matches!(goal, Goal::Asked { .. }) && !call.inputs.iter().any(|input| goal.wants(input)) {
            return Ok(());
        }
        let (builder, steps) = (self.builder, &mut self.steps);
        let wanted = || call.inputs.iter().map(|input| goal.wants(input));
        let arrives = || steps.iter().map(Option::is_some);
        let fits = |rule: &Rule| {
            rule.wanted.iter().zip(wanted()).all(|(a, b)| *a == b)
                && rule.arrived.iter().zip(arrives()).all(|(a, b)| *a == b)
        };
        let make = || chain_rule(builder.ops()?, call, arrives().collect(), wanted().collect());
        let rule = call.ready.rule(fits, make)?;
        for (input, _) in call.inputs.iter().zip(&rule.reads).filter(|(_, read)| **read) {
            input.expect_version().map_err(|e| e.at_op(|| call.ready.describe(call.site)))?;
        }
        let (n, m) = (call.inputs.len(), call.outputs.len());
        // Rows of a tensor are no whole one, which the steps are ready for.
        let sparse = steps.iter().flatten().any(|derivative| derivative.meta().rows.is_some());
        let reading = Reading::of(call.inputs.iter());
        for RuleStep { ready, inputs } in &rule.steps {
            if self.forgets && !sparse {
                let known = steps.len();
                steps.resize_with(known + ready.outputs.len(), || None);
                let (steps, new) = steps.split_at_mut(known);
                for (new, (meta, size)) in new.iter_mut().zip(ready.outputs.iter().zip(&ready.sizes)) {
                    *new = Some(Derivative::Loose(meta, Memory::any(*size)?));
                }
                let input = |i: usize| match inputs[i] {
                    at if at < n => reading.memory(at, &call.inputs[at]),
                    at if at < n + m => Ok(&call.outputs[at - n]),
                    at => there(&steps[at - n - m])?.memory(),
                };
                let outputs = new.iter_mut().filter_map(|new| new.as_mut()?.loose());
                self.eager.compute(ready, input, outputs, call.site)?;
                let computed = new.iter().filter_map(|new| new.as_ref()?.memory().ok());
                self.eager.check(ready, computed, call.site)?;
                continue;
            }
            for derivative in steps.iter_mut().flatten() {
                derivative.share()?;
            }
            let outs: SmallVec<[Value; 2]> = (0..m).map(|out| Value::of(of.node.clone(), out)).collect();
            let mut read = SmallVec::<[&Value; 4]>::new();
            for at in inputs {
                read.push(match *at {
                    at if at < n => &call.inputs[at],
                    at if at < n + m => &outs[at - n],
                    at => there(&steps[at - n - m])?.value()?,
                });
            }
            let ran = match sparse {
                true => {
                    let (desc, ops) = (&ready.desc, builder.ops()?);
                    let (words, desc) = (&mut Words::of(desc), &mut || Ok(desc.clone()));
                    self.eager.call(ops, words, desc, &read, &[], call.site)?
                }
                false => self.eager.run(ready.clone(), &read, &[], call.site)?,
            };
            drop(read);
            let computed = (0..ready.outputs.len()).map(|out| Derivative::of(Value::of(ran.clone(), out)));
            steps.extend(computed.map(Some));
        }
        for (k, (input, at)) in rule.derivatives.iter().enumerate() {
            let derivative = &mut self.steps[at - n - m];
            // What is wanted again comes next.
            let again = rule.derivatives.get(k + 1).is_some_and(|(_, next)| next == at);
            let derivative = match (again, &mut *derivative) {
                (true, Some(shared)) => Some(Derivative::of(shared.share()?.clone())),
                _ => derivative.take(),
            };
            if let Some(derivative) = derivative {
                self.push(&call.inputs[*input], derivative)?;
            }
        }
        Ok(())
    }
}

/// A derivative on its way.
enum Derivative<'a> {
    /// One that others may have, too; with its memory, if that does not stay.
    Value(Value, Option<Arc<Memory>>),
    /// What was computed on the way, and nobody else has: elements alone.
    Loose(&'a Meta, Memory),
}

impl Derivative<'_> {
    fn of(value: Value) -> Self {
        let shared = value.shared();
        Derivative::Value(value, shared)
    }

    fn meta(&self) -> &Meta {
        match self {
            Derivative::Value(value, _) => value.meta(),
            Derivative::Loose(meta, _) => meta,
        }
    }

    #[inline]
    fn memory(&self) -> Result<&Memory> {
        match self {
            Derivative::Value(value, shared) => value.memory(shared.as_ref()),
            Derivative::Loose(_, memory) => Ok(memory),
        }
    }

    /// What is loose can be written.
    #[inline]
    fn loose(&mut self) -> Option<&mut Memory> {
        match self {
            Derivative::Value(..) => None,
            Derivative::Loose(_, memory) => Some(memory),
        }
    }

    /// The derivative as a value, which others may have, too.
    fn share(&mut self) -> Result<&Value> {
        if let Derivative::Loose(meta, memory) = self {
            let memory = mem::replace(memory, Memory::any(0)?);
            *self = Derivative::of(Given::of(String::new(), meta.clone(), memory, false).into());
        }
        self.value()
    }

    fn value(&self) -> Result<&Value> {
        match self {
            Derivative::Value(value, _) => Ok(value),
            Derivative::Loose(..) => Err(Error::internal("a derivative that is no value")),
        }
    }
}

fn there<'v, 'a>(derivative: &'v Option<Derivative<'a>>) -> Result<&'v Derivative<'a>> {
    derivative.as_ref().ok_or_else(|| Error::internal("a derivative is read before it is there"))
}

/// What adds two derivatives.
fn adder(
    eager: &Eager,
    builder: &Builder,
    terms: [&Meta; 2],
    site: &'static Location<'static>,
) -> Result<Arc<Ready>> {
    let [x, y, out] = [1, 2, 3].map(|k| [Var::stand_in(k)]);
    let desc = OpDesc::new("elementwise_add").input("X", x).input("Y", y).output("Out", out);
    eager.ready(builder.ops()?, &mut Words::of(&desc), &mut || Ok(desc.clone()), terms.into_iter(), site)
}

/// The derivative of a value with respect to itself.
pub(super) fn ones(meta: &Meta) -> Result<Tensor> {
    let mut ones = Tensor::zeros(meta.dtype, &meta.dims.known().unwrap_or_default())?;
    match meta.dtype {
        DType::F32 => ones.slice_mut::<f32>()?.fill(1.0),
        DType::F64 => ones.slice_mut::<f64>()?.fill(1.0),
        _ => return Err(meta.wrong("floating point numbers are needed")),
    }
    Ok(ones)
}
