//! Going back: a queue of values with their derivatives.

use std::{cmp::Reverse, collections::BTreeMap, fmt, panic::Location, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::rule::chain_rule;
use crate::{
    Builder, DType, Error, Expr, Meta, OpDesc, Result, Tensor, Var, Words,
    build::eager::{Call, Eager, Input, Node, Ready, Rule, Value},
};

/// Derivatives on their way back. The value that was computed last goes first: whatever contributes to its derivative was
/// computed after it, so by then all contributions are there.
#[derive(Default)]
pub struct Queue<'a> {
    /// The next one, unless it is the last of the rest: a chain needs no more.
    next: Option<Entry<'a>>,
    rest: BTreeMap<Key, Entry<'a>>,
}

/// Later nodes go first, of one node the first outputs.
type Key = (u64, Reverse<u32>);

/// A value with what has arrived so far.
struct Entry<'a> {
    of: &'a Value,
    derivative: Value,
    /// What could not be added at once: some are rows of a tensor.
    more: Vec<Value>,
}

impl Entry<'_> {
    fn key(&self) -> Key {
        key(self.of)
    }
}

fn key(of: &Value) -> Key {
    (of.node.number, Reverse(of.out))
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
                match part.tensor().map(|t| t.to_f64s()).as_deref() {
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
    /// Adds two derivatives of the shape that came last.
    adder: Option<Arc<Ready>>,
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
                rest.extend(read.iter().filter(|i| i.value.has_derivative()).map(|i| &i.value.node));
            }
        }
        let mut nodes: Vec<&Node> = seen.into_values().collect();
        nodes.sort_unstable_by_key(|node| node.number);
        let mut leads: FxHashSet<*const Node> = inputs.iter().map(|v| Arc::as_ptr(&v.node)).collect();
        for node in nodes {
            let read = node.call().map(|call| &call.inputs[..]).unwrap_or_default();
            if read.iter().any(|i| i.value.has_derivative() && leads.contains(&Arc::as_ptr(&i.value.node))) {
                leads.insert(node);
            }
        }
        Goal::Asked { inputs, leads, found: vec![None; inputs.len()] }
    }

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
        Walk { builder, eager, queue: Queue::default(), goal, adder: None, site }
    }

    /// Adds a value with its derivative, if it has any.
    pub(super) fn start(&mut self, of: &'a Value, derivative: Value) -> Result<()> {
        if self.goal.wants(of) { self.push(of, derivative) } else { Ok(()) }
    }

    /// Adds a value to the queue; if it is there already, its derivative to what has arrived, in the order of a program.
    fn push(&mut self, of: &'a Value, derivative: Value) -> Result<()> {
        match self.queue.find(of) {
            None => self.queue.insert(Entry { of, derivative, more: vec![] }),
            Some(entry) if [&entry.derivative, &derivative].iter().all(|d| d.meta().rows.is_none()) => {
                let site = of.node.call().map_or(self.site, |call| call.site);
                let terms = [&entry.derivative, &derivative];
                entry.derivative = add(self.eager, self.builder, &mut self.adder, terms, site)?;
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
            let Some(entry) = self.queue.pop() else { return Ok(self.goal) };
            let of = entry.of;
            let derivative = self.arrive(entry)?;
            match of.node.call() {
                Some(call) if call.outputs.len() == 1 => self.chain_rule(of, call, &[Some(derivative)])?,
                Some(call) => {
                    let mut arrived = vec![None; call.outputs.len()];
                    arrived[of.out as usize] = Some(derivative);
                    while let Some(entry) = self.queue.pop_of(&of.node) {
                        let out = entry.of.out as usize;
                        arrived[out] = Some(self.arrive(entry)?);
                    }
                    self.chain_rule(of, call, &arrived)?;
                }
                None => {}
            }
        }
    }

    /// All that contributes to the derivative of a value is there; it is returned.
    fn arrive(&mut self, entry: Entry<'a>) -> Result<Value> {
        let Entry { of, mut derivative, more } = entry;
        let site = of.node.call().map_or(self.site, |call| call.site);
        if !more.is_empty() {
            derivative = self.sum([derivative].iter().chain(&more), site)?;
        }
        let (hooks, retain) = of.watched(|w| (w.hooks.clone(), w.retain)).unwrap_or_default();
        for (_, hook) in hooks {
            derivative = self.hooked(of, &derivative, &*hook)?;
        }
        match &mut self.goal {
            Goal::Leaves if retain || of.is_leaf() => {
                let sum = match of.watched(|w| w.derivative.take()).flatten() {
                    Some(known) => self.sum([&known, &derivative].into_iter(), site)?,
                    None => derivative.clone(),
                };
                of.watch(|w| w.derivative = Some(sum));
            }
            Goal::Leaves => {}
            Goal::Asked { inputs, found, .. } => {
                for (_, found) in inputs.iter().zip(found).filter(|(input, _)| input.same(of)) {
                    *found = Some(derivative.clone());
                }
            }
        }
        Ok(derivative)
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
    fn sum<'v>(
        &self,
        parts: impl Iterator<Item = &'v Value>,
        site: &'static Location<'static>,
    ) -> Result<Value> {
        let parts: Vec<&Value> = parts.collect();
        let desc = OpDesc::new("sum")
            .input("X", (1..=parts.len()).map(Var::stand_in))
            .output("Out", [Var::stand_in(parts.len() + 1)]);
        Ok(Value::of(self.call(&desc, &parts, site)?, 0))
    }

    fn call(&self, desc: &OpDesc, inputs: &[&Value], site: &'static Location<'static>) -> Result<Arc<Node>> {
        let ops = self.builder.ops()?;
        self.eager.call(ops, &mut Words::of(desc), &mut || Ok(desc.clone()), inputs, &[], site)
    }

    /// Derivatives of an operator's inputs, from those of its outputs, one of which is `of`.
    fn chain_rule(&mut self, of: &'a Value, call: &'a Call, arrived: &[Option<Value>]) -> Result<()> {
        let is_wanted = |input: &Input| self.goal.wants(&input.value);
        if !call.inputs.iter().any(is_wanted) {
            return Ok(());
        }
        let (wanted, arrives) =
            (|| call.inputs.iter().map(is_wanted), || arrived.iter().map(Option::is_some));
        let fits = |rule: &Rule| {
            rule.wanted.iter().copied().eq(wanted()) && rule.arrived.iter().copied().eq(arrives())
        };
        let builder = self.builder;
        let make = || chain_rule(builder.ops()?, call, arrives().collect(), wanted().collect());
        let rule = call.ready.rule(fits, make)?;
        for (input, _) in call.inputs.iter().zip(&rule.reads).filter(|(_, read)| **read) {
            input
                .value
                .expect_version(input.version)
                .map_err(|e| e.at_op(|| call.ready.describe(call.site)))?;
        }
        let (n, m) = (call.inputs.len(), call.outputs.len());
        let sparse = arrived.iter().flatten().any(|value| value.meta().rows.is_some());
        let all: Vec<Value>;
        let outs = match m {
            1 => std::slice::from_ref(of),
            _ => {
                all = (0..m).map(|out| Value::of(of.node.clone(), out)).collect();
                &all
            }
        };
        let mut made: SmallVec<[Option<Value>; 2]> = SmallVec::new();
        for step in &rule.steps {
            let mut inputs: SmallVec<[&Value; 4]> = SmallVec::new();
            for at in &step.inputs {
                let value = match *at {
                    at if at < n => Some(&call.inputs[at].value),
                    at if at < n + m => Some(&outs[at - n]),
                    at if at < n + 2 * m => arrived[at - n - m].as_ref(),
                    at => made[at - n - 2 * m].as_ref(),
                };
                let missing = || Error::internal("a derivative is read before it is there");
                inputs.push(value.ok_or_else(missing)?);
            }
            let ran = match sparse {
                // Rows of a tensor are no whole one, which the step is ready for.
                true => self.call(&step.ready.desc, &inputs, call.site)?,
                false => self.eager.run(step.ready.clone(), &inputs, &[], call.site)?,
            };
            drop(inputs);
            for out in 1..step.outputs {
                made.push(Some(Value::of(ran.clone(), out - 1)));
            }
            made.push(Some(Value::of(ran, step.outputs - 1)));
        }
        for (k, (input, at)) in rule.derivatives.iter().enumerate() {
            // What is wanted again comes next.
            let again = rule.derivatives.get(k + 1).is_some_and(|(_, next)| next == at);
            let derivative = match *at {
                at if at < n + 2 * m => arrived[at - n - m].clone(),
                at if again => made[at - n - 2 * m].clone(),
                at => made[at - n - 2 * m].take(),
            };
            if let Some(derivative) = derivative {
                self.push(&call.inputs[*input].value, derivative)?;
            }
        }
        Ok(())
    }
}

/// The sum of two derivatives; `adder` is what has added the last ones.
fn add(
    eager: &Eager,
    builder: &Builder,
    adder: &mut Option<Arc<Ready>>,
    terms: [&Value; 2],
    site: &'static Location<'static>,
) -> Result<Value> {
    if let Some(ready) = adder.as_ref().filter(|ready| ready.inputs[0].agrees(terms[0].meta())) {
        return Ok(Value::of(eager.run(ready.clone(), &terms, &[], site)?, 0));
    }
    let [x, y, out] = [1, 2, 3].map(|k| [Var::stand_in(k)]);
    let desc = OpDesc::new("elementwise_add").input("X", x).input("Y", y).output("Out", out);
    let desc = &mut || Ok(desc.clone());
    let node = eager.call(builder.ops()?, &mut Words::of(&desc()?), desc, &terms, &[], site)?;
    *adder = node.call().map(|call| call.ready.clone());
    Ok(Value::of(node, 0))
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
