//! Going back: a queue of values with their derivatives.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    fmt,
    panic::Location,
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::rule::chain_rule;
use crate::{
    Builder, DType, Error, Expr, Meta, OpDesc, Result, Tensor, Var,
    build::eager::{Call, Eager, Node, Subset, Value},
};

/// Derivatives on their way back. The value that was computed last goes first: whatever contributes to its derivative was
/// computed after it, so by then all contributions are there.
#[derive(Default)]
pub struct Queue {
    heap: BinaryHeap<Entry>,
    arrivals: u64,
    limit: usize,
}

struct Entry {
    of: Value,
    derivative: Value,
    arrival: u64,
}

impl Entry {
    fn key(&self) -> (u64, Reverse<(u32, u64)>) {
        // Contributions to one value in the order in which they came: sums are those of a program, to the bit.
        (self.of.node.number, Reverse((self.of.out, self.arrival)))
    }
}
impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Queue {
    fn push(&mut self, of: Value, derivative: Value) {
        self.heap.push(Entry { of, derivative, arrival: self.arrivals });
        self.arrivals += 1;
    }

    /// Whether contributions should be added up before more of them fill the memory.
    fn is_full(&self) -> bool {
        self.heap.len() >= self.limit.max(64)
    }

    /// The next value with all contributions to its derivative.
    fn pop(&mut self) -> Option<(Value, SmallVec<[Value; 2]>)> {
        let first = self.heap.pop()?;
        let mut parts = SmallVec::from_elem(first.derivative, 1);
        while self.heap.peek().is_some_and(|entry| entry.of.same(&first.of)) {
            parts.extend(self.heap.pop().map(|entry| entry.derivative));
        }
        Some((first.of, parts))
    }
}
impl fmt::Display for Queue {
    /// Values with their derivatives, next first: `` `x`: 3, `y`: 2 + 1 ``.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entries: Vec<&Entry> = self.heap.iter().collect();
        entries.sort_by(|a, b| b.cmp(a));
        let mut last: Option<&Value> = None;
        for Entry { of, derivative, .. } in entries {
            match last {
                Some(last) if last.same(of) => f.write_str(" + ")?,
                last => write!(f, "{}{}: ", if last.is_some() { ", " } else { "" }, of.name())?,
            }
            match derivative.tensor().map(|t| t.to_f64s()).as_deref() {
                Ok([x]) => write!(f, "{x}")?,
                Ok(all) => write!(f, "{all:?}")?,
                Err(_) => return Err(fmt::Error),
            }
            last = Some(of);
        }
        Ok(())
    }
}

/// One way back, from values to what they were computed from.
pub(super) struct Walk<'a> {
    builder: &'a Builder,
    eager: &'a Eager,
    queue: Queue,
    goal: Goal<'a>,
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
        Walk { builder, eager, queue: Queue::default(), goal, site }
    }

    /// Adds a value with its derivative, if it has any.
    pub(super) fn start(&mut self, of: &Value, derivative: Value) {
        if self.goal.wants(of) {
            self.queue.push(of.clone(), derivative);
        }
    }

    /// Visits all, calling `look` before each.
    ///
    /// # Errors
    /// An operator without gradient; a value that was overwritten; those of hooks.
    pub(super) fn run(mut self, look: &mut dyn FnMut(&Queue)) -> Result<Goal<'a>> {
        loop {
            look(&self.queue);
            let Some((value, parts)) = self.queue.pop() else { return Ok(self.goal) };
            let node = value.node.clone();
            let mut arrived: SmallVec<[Option<Value>; 1]> = SmallVec::new();
            self.arrive(&value, parts, &mut arrived)?;
            while self.queue.heap.peek().is_some_and(|entry| Arc::ptr_eq(&entry.of.node, &node)) {
                if let Some((value, parts)) = self.queue.pop() {
                    self.arrive(&value, parts, &mut arrived)?;
                }
            }
            if let Some(call) = node.call() {
                self.chain_rule(&node, call, &arrived)?;
            }
        }
    }

    /// All that contributes to the derivative of a value is there.
    fn arrive(
        &mut self,
        value: &Value,
        parts: SmallVec<[Value; 2]>,
        arrived: &mut SmallVec<[Option<Value>; 1]>,
    ) -> Result<()> {
        let site = value.node.call().map_or(self.site, |call| call.site);
        let mut derivative = self.sum(parts, site)?;
        let (hooks, retain) = value.watched(|w| (w.hooks.clone(), w.retain)).unwrap_or_default();
        for (_, hook) in hooks {
            derivative = self.hooked(value, &derivative, &*hook)?;
        }
        match &mut self.goal {
            Goal::Leaves if retain || value.is_leaf() => {
                let known = value.watched(|w| w.derivative.take()).flatten();
                let parts = known.into_iter().chain([derivative.clone()]).collect();
                let sum = self.sum(parts, site)?;
                value.watch(|w| w.derivative = Some(sum));
            }
            Goal::Leaves => {}
            Goal::Asked { inputs, found, .. } => {
                for (_, found) in inputs.iter().zip(found).filter(|(input, _)| input.same(value)) {
                    *found = Some(derivative.clone());
                }
            }
        }
        let out = value.out as usize;
        if arrived.len() <= out {
            arrived.resize(out + 1, None);
        }
        arrived[out] = Some(derivative);
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
    fn sum(&self, mut parts: SmallVec<[Value; 2]>, site: &'static Location<'static>) -> Result<Value> {
        if parts.len() == 1
            && let Some(only) = parts.pop()
        {
            return Ok(only);
        }
        let desc = OpDesc::new("sum")
            .input("X", (1..=parts.len()).map(Var::stand_in))
            .output("Out", [Var::stand_in(parts.len() + 1)]);
        let node = self.eager.call(self.builder.ops()?, &desc, parts, &[], site)?;
        Ok(Value::of(node, 0))
    }

    /// Derivatives of an operator's inputs, from those of its outputs.
    fn chain_rule(&mut self, node: &Arc<Node>, call: &Call, arrived: &[Option<Value>]) -> Result<()> {
        let wanted = call.inputs.iter().enumerate().filter(|(_, input)| self.goal.wants(&input.value));
        let wanted: Subset = wanted.map(|(i, _)| i).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let outs = arrived.iter().enumerate().filter(|(_, derivative)| derivative.is_some());
        let asked = (outs.map(|(i, _)| i).collect(), wanted);
        let ops = self.builder.ops()?;
        let rule = call.ready.rule(&asked, || chain_rule(ops, call, &asked))?;
        for (_, input) in call.inputs.iter().enumerate().filter(|(i, _)| rule.reads.contains(*i)) {
            input
                .value
                .expect_version(input.version)
                .map_err(|e| e.at_op(|| call.ready.describe(call.site)))?;
        }
        let (n, m) = (call.inputs.len(), call.outputs.len());
        let is_sparse = |value: &Value| value.meta().rows.is_some();
        let sparse = arrived.iter().flatten().any(is_sparse);
        let mut made: SmallVec<[Option<Value>; 4]> = SmallVec::from_elem(None, rule.values - n - 2 * m);
        let value = |at: usize, made: &[Option<Value>]| match at {
            at if at < n => Some(call.inputs[at].value.clone()),
            at if at < n + m => Some(Value::of(node.clone(), at - n)),
            at if at < n + 2 * m => arrived.get(at - n - m).cloned().flatten(),
            at => made[at - n - 2 * m].clone(),
        };
        for step in &rule.steps {
            let inputs: Option<SmallVec<[Value; 2]>> =
                step.inputs.iter().map(|at| value(*at, &made)).collect();
            let inputs = inputs.ok_or_else(|| Error::internal("a derivative is read before it is there"))?;
            let ran = match sparse {
                // Rows of a tensor are no whole one, which the step is ready for.
                true => self.eager.call(ops, &step.ready.desc, inputs, &[], call.site)?,
                false => self.eager.run(&step.ready, inputs, &[], call.site)?,
            };
            for (out, at) in step.outputs.iter().enumerate() {
                made[at - n - 2 * m] = Some(Value::of(ran.clone(), out));
            }
        }
        for (input, at) in &rule.derivatives {
            if let Some(derivative) = value(*at, &made) {
                self.queue.push(call.inputs[*input].value.clone(), derivative);
            }
        }
        if self.queue.is_full() { self.merge() } else { Ok(()) }
    }

    /// Adds up what has arrived so far.
    fn merge(&mut self) -> Result<()> {
        let mut merged = Queue::default();
        while let Some((of, parts)) = self.queue.pop() {
            let derivative = self.sum(parts, of.node.call().map_or(self.site, |call| call.site))?;
            merged.push(of, derivative);
        }
        merged.limit = 2 * merged.heap.len();
        self.queue = merged;
        Ok(())
    }
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
