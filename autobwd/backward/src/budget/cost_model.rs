//! Cost model of a run: costs of operators and lifetimes of forward values, without planning it.
//!
//! Time is counted in groups of the plan without recomputation.

use rustc_hash::FxHashMap;

use super::RecomputeSet;
use crate::{FinishedBackward, recompute::ForwardReads};
use autobwd_core::{__private::internals::*, Cost, Error, Origin, Program, Result, Var, tensor::padded};
use autobwd_plan::{self, Instruction, Location, Plan, ValueSource};

/// A forward value that the backward pass or a recomputed operator may read.
pub(super) struct ForwardValue {
    pub(super) bytes: usize,
    /// The operator that can recompute it.
    pub(super) writer: Option<usize>,
    /// Times of the first and the last read by gradients.
    pub(super) reads: Option<(usize, usize)>,
    /// Whether it takes no memory if recomputed where gradients read it, because one fused kernel does both.
    pub(super) fuses: bool,
    /// Operators that may be recomputed and read it.
    pub(super) readers: Vec<usize>,
    /// Times of its write and of its last read by the forward pass.
    forward: (usize, usize),
    /// Whether it takes no memory if only the forward pass reads it.
    brief: bool,
}

/// Forward operators and values, and the remaining memory of a run.
pub(super) struct CostModel {
    /// Operators worth recomputing, in program order.
    pub(super) candidates: Vec<usize>,
    /// By operator; nothing if it does not run.
    pub(super) costs: Vec<Cost>,
    pub(super) values: Vec<ForwardValue>,
    /// By operator: the recomputable values that it writes.
    pub(super) writes: Vec<Vec<usize>>,
    /// By time: the operator whose gradients are computed; the number of operators during the forward pass.
    pub(super) rule: Vec<usize>,
    /// By time: bytes apart from the values.
    memory: Vec<usize>,
}

impl CostModel {
    /// The model of a run, from its plan without recomputation.
    pub(super) fn new(
        program: &Program,
        done: &FinishedBackward,
        needs: &ForwardReads,
        plan: &Plan,
    ) -> Result<CostModel> {
        let count = program.root().ops.len();
        let forward = forward_values(plan, count);
        let (mut costs, mut pointwise) = (vec![Cost::default(); count], vec![false; count]);
        let mut counted = vec![false; count];
        for node in plan.graph.instructions.iter().filter(|node| node.index < count) {
            // A sum is an instruction for each of its terms.
            if std::mem::replace(&mut counted[node.index], true) {
                continue;
            }
            let of = |var: Var| match forward.get(&var) {
                Some(id) => Ok(plan.graph.values[*id].meta.clone()),
                None => Err(Error::internal("a scheduled operator reads a value without writer")),
            };
            // An operator that takes the shape alone of a value that does not run moves no data of it.
            costs[node.index] = node.info.cost(&node.desc, &of).unwrap_or_default();
            pointwise[node.index] = node.info.lanes().is_some();
        }
        let candidates = candidates(needs, count);
        let mut model = CostModel {
            candidates,
            costs,
            values: vec![],
            writes: vec![vec![]; count],
            rule: vec![],
            memory: vec![],
        };

        let lives = lifetimes(plan);
        let mut known: FxHashMap<usize, usize> = FxHashMap::default();
        let mut value = |model: &mut CostModel, id: usize| {
            let value = &plan.graph.values[id];
            if value.in_scope || forward.get(&value.var) != Some(&id) {
                return None;
            }
            let new = model.values.len();
            let own = *known.entry(id).or_insert(new);
            if own == new {
                let writer = needs.writer[value.var.index()];
                model.values.push(ForwardValue {
                    bytes: bytes(value),
                    writer,
                    reads: None,
                    fuses: false,
                    readers: vec![],
                    forward: (lives[id].0, lives[id].0),
                    brief: plan.memory.locations[id] == Location::Register,
                });
                writer.into_iter().for_each(|op| model.writes[op].push(new));
            }
            Some(own)
        };
        for (time, group) in plan.groups.iter().enumerate() {
            let nodes = &plan.graph.instructions[group.nodes.clone()];
            let rule =
                nodes.iter().find_map(|node| match done.ops.get(node.index.checked_sub(count)?)?.origin {
                    Origin::Gradient { of } => Some(of),
                    _ => None,
                });
            model.rule.push(rule.or(model.rule.last().copied()).unwrap_or(count));
            for node in nodes {
                for read in node.reads() {
                    let Some(id) = value(&mut model, read) else { continue };
                    let value = &mut model.values[id];
                    if node.index < count {
                        value.forward.1 = time;
                    } else {
                        let first = value.reads.map_or(time, |(first, _)| first);
                        value.reads = Some((first, time));
                        value.fuses = group.space.is_some() && first == time;
                    }
                }
            }
        }
        for op in model.candidates.clone() {
            for var in &needs.reads[op] {
                let id = forward.get(var).and_then(|id| value(&mut model, *id));
                id.into_iter().for_each(|id| model.values[id].readers.push(op));
            }
        }
        for value in &mut model.values {
            let formula = value.writer.is_some_and(|op| pointwise[op]);
            value.fuses &= formula;
            value.brief |= formula && value.forward.0 == value.forward.1;
        }
        let mut change = vec![0; plan.groups.len() + 2];
        for (id, (first, last)) in lives.iter().enumerate() {
            if matches!(plan.memory.locations[id], Location::Arena(_)) && !known.contains_key(&id) {
                add(&mut change, *first, *last, bytes(&plan.graph.values[id]));
            }
        }
        model.memory = sums(&change).take(plan.groups.len()).collect();
        Ok(model)
    }

    /// Whether gradients or recomputed operators read an output of this operator.
    pub(super) fn is_needed(&self, op: usize, again: &[bool]) -> bool {
        self.writes[op].iter().any(|id| self.is_live(&self.values[*id], again))
    }

    /// Whether a value must be in memory when the backward pass begins, unless it is recomputed.
    fn is_live(&self, value: &ForwardValue, again: &[bool]) -> bool {
        value.reads.is_some() || value.readers.iter().any(|op| again[*op])
    }

    /// The total cost of operators.
    pub(super) fn cost(&self, of: &[bool]) -> Cost {
        self.costs.iter().zip(of).filter(|(_, counts)| **counts).map(|(cost, _)| *cost).sum()
    }

    /// A set of operators, tried for every budget.
    pub(super) fn set(&self, again: Vec<bool>) -> RecomputeSet {
        RecomputeSet { least: 0, cost: self.cost(&again), again }
    }

    /// The set of operators and its estimated arena, tried for budgets above that but for an eighth of slack, because the
    /// planner does better than the estimate.
    pub(super) fn estimated_set(&self, again: Vec<bool>) -> (RecomputeSet, usize) {
        let arena_bytes = self.arena_bytes(&again);
        (RecomputeSet { least: arena_bytes - arena_bytes / 8, ..self.set(again) }, arena_bytes)
    }

    /// Estimated arena: the maximum of live bytes over time.
    pub(super) fn arena_bytes(&self, again: &[bool]) -> usize {
        // By operator: the time at which it is recomputed.
        let mut at = vec![usize::MAX; self.costs.len()];
        let readers = |value: &ForwardValue, at: &[usize]| -> Vec<usize> {
            value.readers.iter().filter(|op| again[**op]).map(|op| at[*op]).collect()
        };
        for op in self.candidates.iter().rev().filter(|op| again[**op]) {
            for value in self.writes[*op].iter().map(|id| &self.values[*id]) {
                let first = readers(value, &at).into_iter().chain(value.reads.map(|(first, _)| first)).min();
                at[*op] = at[*op].min(first.unwrap_or(usize::MAX));
            }
        }
        let mut change = vec![0; self.memory.len() + 2];
        for value in &self.values {
            let last = readers(value, &at).into_iter().chain(value.reads.map(|(_, last)| last)).max();
            let (written, forward) = value.forward;
            match (value.writer.filter(|op| again[*op]), last) {
                (None, Some(last)) => add(&mut change, written, last, value.bytes),
                (op, last) => {
                    add(&mut change, written, forward, if value.brief { 0 } else { value.bytes });
                    // A value is freed if its only readers are recomputed at the same time.
                    if let (Some(op), Some(last)) = (op, last)
                        && (last > at[op] || (value.reads.is_some() && !value.fuses))
                    {
                        add(&mut change, at[op], last, value.bytes);
                    }
                }
            }
        }
        sums(&change).zip(&self.memory).map(|(values, apart)| values + apart).max().unwrap_or(0)
    }

    /// By time: bytes apart from recomputable values.
    pub(super) fn fixed_bytes(&self) -> Vec<usize> {
        let mut change = vec![0; self.memory.len() + 2];
        for value in self.values.iter().filter(|value| value.writer.is_none()) {
            let last = value.reads.map_or(value.forward.1, |(_, last)| last);
            add(&mut change, value.forward.0, last, value.bytes);
        }
        sums(&change).zip(&self.memory).map(|(values, apart)| values + apart).collect()
    }
}

fn bytes(value: &autobwd_plan::GraphValue) -> usize {
    padded(value.meta.bytes().unwrap_or(0))
}

/// Adds bytes from one time to another, both included.
fn add(change: &mut [isize], first: usize, last: usize, bytes: usize) {
    if first <= last {
        change[first] += bytes as isize;
        change[last + 1] -= bytes as isize;
    }
}

fn sums(change: &[isize]) -> impl Iterator<Item = usize> {
    change.iter().scan(0, |sum, change| {
        *sum += change;
        Some(*sum as usize)
    })
}

/// Values of the plan, by variable, that are live at the end of the forward pass.
fn forward_values(plan: &Plan, count: usize) -> FxHashMap<Var, usize> {
    let given = plan.graph.values.iter().enumerate().filter_map(|(id, value)| match value.source {
        ValueSource::Instruction(_) | ValueSource::Unread | ValueSource::Scratch => None,
        ValueSource::Copy(of) => Some((value.var, of)),
        _ => Some((value.var, id)),
    });
    let nodes = plan.graph.instructions.iter().filter(|node| node.index < count);
    let written = nodes.flat_map(Instruction::writes).map(|id| (plan.graph.values[id].var, id));
    given.chain(written).collect()
}

/// Recomputable operators that gradients read, directly or through others.
fn candidates(needs: &ForwardReads, count: usize) -> Vec<usize> {
    let mut found = vec![false; count];
    let mut next: Vec<usize> = needs.rules.iter().flat_map(|(_, vars)| needs.writers(vars)).collect();
    while let Some(op) = next.pop() {
        if !std::mem::replace(&mut found[op], true) {
            next.extend(needs.writers(&needs.reads[op]));
        }
    }
    (0..count).filter(|op| found[*op]).collect()
}

/// By value: the first and the last group in which it has its own memory; a value that reuses the memory of another
/// begins after it.
fn lifetimes(plan: &Plan) -> Vec<(usize, usize)> {
    let mut group_of = vec![0; plan.graph.instructions.len()];
    for (g, group) in plan.groups.iter().enumerate() {
        group_of[group.nodes.clone()].fill(g);
    }
    // By offset.
    let mut until: FxHashMap<usize, usize> = FxHashMap::default();
    let life = |((value, spot), last): ((&autobwd_plan::GraphValue, &Location), Option<usize>)| {
        let first = match value.source {
            ValueSource::Instruction(node) => group_of[node],
            ValueSource::Scratch => last.unwrap_or(0),
            _ => 0,
        };
        let last = last.unwrap_or(first).max(first);
        match spot {
            Location::Arena(offset) if until.insert(*offset, last) == Some(first) => (first + 1, last),
            _ => (first, last),
        }
    };
    plan.graph.values.iter().zip(&plan.memory.locations).zip(plan.last_reads()).map(life).collect()
}
