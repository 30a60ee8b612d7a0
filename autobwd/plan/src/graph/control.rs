//! Operators that run sub-blocks: the block is planned for the shapes at hand, as a plan within the plan.

use std::sync::Arc;

use crate::{
    Plan,
    graph::{
        Build, Node, Request, ScratchValues, Source, ValueId, Wires,
        enter::{Entering, StepEnds, StepInputs, check_carried, check_term, recorded, unsupplied},
    },
};
use autobwd_core::{
    BlockId, Call, Dims, Error, ErrorKind, First, Meta, OpDesc, OpInfo, Result, StepCount, Var, VarKind,
    tensor::padded,
};

/// What a step leaves for a backward part.
#[derive(Debug, Default)]
pub struct Record {
    pub entries: Vec<Entry>,
    /// Step scopes of the operators within; what these have left is not known before it is there, if nothing is said.
    pub nested: Vec<(Var, Option<Arc<Record>>)>,
    /// If only some steps leave something, what they find: the steps to be run again, one in how many, and how many there
    /// are, if that is known.
    again: Option<(Call, usize, Option<usize>)>,
}

#[derive(Debug, PartialEq)]
/// Where a value enters a block.
pub struct Entry {
    pub var: Var,
    pub meta: Meta,
    /// Where it is stored; nowhere if only its shape is needed.
    pub at: Option<usize>,
}

impl Record {
    /// What there is of that, and where it is if its elements are wanted.
    pub fn read(&self, reads: &[(Var, bool)]) -> impl Iterator<Item = (&Entry, Option<usize>)> {
        let find = |(var, elements): &(Var, bool)| {
            let entry = self.entries.iter().find(|entry| entry.var == *var)?;
            Some((entry, entry.at.filter(|_| *elements)))
        };
        reads.iter().filter_map(find)
    }

    /// Whether it says the same.
    pub fn is(&self, other: &Record) -> bool {
        let nested = |record: &Record| {
            let id = |(var, record): &(Var, Option<Arc<Record>>)| (*var, record.as_ref().map(Arc::as_ptr));
            record.nested.iter().map(id).collect::<Vec<_>>()
        };
        self.entries == other.entries && nested(self) == nested(other)
    }
}

/// A plan of a block that runs as one step: what is copied in before, and what comes out.
#[derive(Debug)]
pub struct StepPlan {
    pub plan: Plan,
    pub inputs: StepInputs,
    pub ends: StepEnds,
}

/// A sub-block with its plan. Values are numbered as in the plan around it, or as in its own (`inner`).
#[derive(Debug)]
pub struct Called {
    pub step: StepPlan,
    pub steps: StepCount,
    /// How often it runs, if that is known.
    pub count: Option<usize>,
    pub entering: Entering,
    /// Whether it fills step scopes.
    pub fills: bool,
    /// Whether a later operator consumes the same step scopes.
    pub shared: bool,
    /// Inner values, and their offsets in what each step leaves.
    pub left: Vec<(ValueId, usize)>,
    /// Bytes that each step leaves.
    pub left_bytes: usize,
    /// One step in how many leaves something.
    pub every: usize,
    /// The steps that it runs again to have what they leave.
    pub again: Option<Box<Again>>,
}

/// A sub-block that the backward part runs again, from what one step in so many has left.
#[derive(Debug)]
pub struct Again {
    pub block: BlockId,
    pub called: Called,
    /// Inner values, and their offsets in what such a step has left.
    pub starts: Vec<(ValueId, usize)>,
}

/// A sub-block with its plan, whose outputs have no values yet.
struct Planned {
    called: Called,
    inputs: Wires,
    /// What its outputs are: of what is carried, stacks, sums, and step scopes.
    metas: Vec<(Var, Meta)>,
    record: Option<Arc<Record>>,
}

impl Called {
    /// Bytes that its steps leave, where it is known how many there are.
    pub fn held_bytes(&self) -> usize {
        let steps = self.count.filter(|_| !matches!(self.steps, StepCount::Recorded { .. }));
        steps.map_or(0, |steps| steps.div_ceil(self.every).saturating_mul(self.left_bytes))
    }
}

impl Again {
    /// Bytes that the steps leave that are run again at a time.
    pub fn held_bytes(&self) -> usize {
        let Called { every, count, left_bytes, .. } = self.called;
        count.map_or(0, |count| count.min(every).saturating_mul(left_bytes))
    }
}

/// What a step finds that others have left, with offsets in memory for all of it, and how large that is.
fn starts(called: &Called) -> (Vec<(ValueId, usize)>, usize) {
    let (mut starts, mut bytes) = (vec![], 0);
    for start in called.step.inputs.starts.iter().copied().flatten() {
        starts.push((start, bytes));
        bytes += padded(called.step.plan.graph.values[start].meta.bytes().unwrap_or(0));
    }
    (starts, bytes)
}

impl Build<'_> {
    /// An operator that runs a sub-block.
    pub(crate) fn call(
        &mut self,
        index: usize,
        desc: &OpDesc,
        info: &'static OpInfo,
        call: &Call,
    ) -> Result<()> {
        let leaves = call.scopes.filter(|v| !call.is_recorded() && self.left[v.index()]);
        let leave = leaves.map(|scopes| recorded(self.program, self.ops, scopes)).transpose()?;
        let entering = self.enter(call)?;
        let Some(planned) = self.planned(call, &entering, leave.clone())? else {
            self.late = Some(self.late(index, call, entering, leave)?);
            return Ok(());
        };
        let Planned { mut called, inputs, metas, record } = planned;
        called.shared = self.shares_steps(index, call);

        let (node, mut outputs) = (self.graph.nodes.len(), Wires::new());
        for (var, meta) in metas {
            let meta = meta.in_slot(desc.outputs.slot_of(var).map_or("", |slot| slot.as_str()));
            self.check_output(var, &meta)?;
            let id = self.define(var, meta, Source::Node(node));
            if Some(var) == call.scopes {
                self.graph.values[id].record = record.clone();
            }
            outputs.push((None, Some(id)));
        }
        let called = Some(Box::new(called));
        let (desc, scratch) = (Arc::new(desc.clone()), ScratchValues::new());
        let node = Node { index, desc, info, inputs, outputs, scratch, part: None, called };
        self.graph.nodes.push(node);
        Ok(())
    }

    /// Whether an operator goes back through steps that a later operator of the block goes back through, too: the
    /// gradients of two targets do.
    pub(crate) fn shares_steps(&self, index: usize, call: &Call) -> bool {
        let Some(scopes) = call.scopes.filter(|_| call.is_recorded()) else { return false };
        let block = self.program.block(self.request.block);
        let later = block.into_iter().flat_map(|block| block.ops.iter().skip(index + 1));
        later.flat_map(OpDesc::reads).any(|var| var == scopes)
    }

    /// Plans a sub-block of which each step leaves these values, and whether their elements; not if its shapes are not
    /// the same in all steps.
    fn planned(
        &mut self,
        call: &Call,
        entering: &Entering,
        leave: Option<Vec<(Var, bool)>>,
    ) -> Result<Option<Planned>> {
        let program = self.program;
        let mut inputs = entering.inputs();

        // What an operator has left for this one.
        let reads = unsupplied(program, self.ops, call)?;
        let (mut record, mut again) = (None, None);
        if let Some(id) = entering.scopes {
            let Some(left) = self.graph.values[id].record.clone() else { return Ok(None) };
            record = Some(left.clone());
            if let Some((call, every, count)) = &left.again {
                let entering = self.enter(call)?;
                let planned = self.planned(call, &entering, Some(reads.clone()))?;
                let planned = planned.ok_or_else(|| Error::internal("steps of several shapes, again"))?;
                inputs.extend(planned.inputs);
                let called = Called { every: *every, count: *count, ..planned.called };
                let (starts, _) = starts(&called);
                again = Some(Box::new(Again { block: call.block, called, starts }));
                record = planned.record.or(record);
            }
        } else if let Some((var, _)) = reads.first() {
            let text = format!(
                "`{}` is read in block {}, but it is not among the inputs",
                program.name(*var),
                call.block.index()
            );
            return Err(Error::new(ErrorKind::Program, text));
        }

        // What it leaves itself.
        let fills = leave.is_some();
        // Of all steps at once, none would be spared: the square root is the best of both.
        let root = |every: usize| match entering.count.and_then(|(_, steps)| steps.get()) {
            Some(steps) if steps <= every => steps.isqrt().max(1),
            _ => every,
        };
        let every = call.every.filter(|_| fills).map(root);
        let leave = leave.filter(|_| every.is_none()).unwrap_or_default();
        if every.is_some() && call.carried.iter().any(|c| self.is_list(c.start)) {
            let text = "its steps change a list of tensors: they cannot be run again";
            return Err(Error::new(ErrorKind::Program, text));
        }

        let (given, mut step_inputs) = entering.step_inputs(record.as_deref(), &reads);
        let ends = StepEnds::new(program, call, entering, &given, &leave);
        let request = Request {
            block: call.block,
            first: 0,
            given: &given,
            ends: &ends.vars,
            feeds: &[],
            kept: &|_| None,
            fetches: &[],
            apart: self.request.apart,
        };
        let plan = Plan::new(program, self.ops, &request)?;
        if plan.graph.late.is_some() {
            return Ok(None);
        }
        // Positions in what is given are the numbers of the values.
        let start_of = |v: Var| given.iter().position(|given| given.var == v);
        let end_of = |var: Var| Some(plan.graph.ends[ends.vars.iter().position(|v| *v == var)?]);
        let inner = |id: ValueId| plan.graph.values[id].meta.clone();
        let end = |k: usize| inner(plan.graph.ends[k]);

        let mut metas: Vec<(Var, Meta)> = vec![];
        for ((entered, start), end) in
            entering.carried.iter().zip(&step_inputs.starts).zip(ends.carried.iter().map(|k| k.map(end)))
        {
            let (each, first) = (entered.carried, entered.first);
            if entered.is_list() {
                metas.extend(each.last.zip(end.or(entered.meta.clone())));
                continue;
            }
            let before = entered.meta.as_ref().filter(|_| start.is_some() || first.is_some());
            let meta = match (end, before) {
                (Some(meta), Some(before)) => {
                    check_carried(program.name(each.start), before, &meta)?;
                    if meta.dims != before.dims {
                        return Ok(None);
                    }
                    meta.whole()
                }
                (Some(meta), None) => meta.whole(),
                (None, Some(before)) => before.clone(),
                (None, None) => self.meta_of(None, like(&each.first), each.start)?.whole(),
            };
            metas.extend(each.last.map(|last| (last, meta)));
        }
        for ((var, out), k) in call.stacks.iter().zip(&ends.stacks) {
            let (Some(meta), Some((_, steps))) = (k.map(end), entering.count) else {
                let text = format!("block {} does not compute `{}`", call.block.index(), program.name(*var));
                return Err(Error::new(ErrorKind::Program, text));
            };
            let dims: Dims = std::iter::once(steps).chain(meta.dims.iter().copied()).collect();
            metas.push((*out, Meta::new(meta.dtype, dims)));
        }
        for ((var, out, like), k) in call.sums.iter().zip(&ends.sums) {
            let meta = self.meta_of(None, *like, *like)?.whole();
            if let Some(term) = k.map(end) {
                check_term(program, *var, &term, *out, &meta)?;
            }
            metas.push((*out, meta));
        }
        metas.extend(call.scopes.filter(|_| !call.is_recorded()).map(|scopes| (scopes, Meta::scopes())));

        let is_scopes =
            |v: Var| program.lookup(call.block, v).is_some_and(|desc| desc.kind == VarKind::StepScopes);
        let (inner_scopes, leave): (Vec<_>, Vec<_>) = leave.into_iter().partition(|(v, _)| is_scopes(*v));
        let mut left_bytes = 0;
        let mut left = vec![];
        let entry = |(var, elements): &(Var, bool)| {
            let id = start_of(*var).or_else(|| end_of(*var)).unwrap_or(0);
            let at = elements.then_some(left_bytes);
            if let Some(at) = at {
                left.push((id, at));
                left_bytes += padded(inner(id).bytes().unwrap_or(0));
            }
            Entry { var: *var, meta: inner(id), at }
        };
        let entries = leave.iter().map(entry).collect();
        let of = |(v, _): &(Var, bool)| (*v, end_of(*v).and_then(|id| plan.graph.values[id].record.clone()));
        let mut leaves = Record { entries, nested: inner_scopes.iter().map(of).collect(), again: None };
        step_inputs.nested.extend(inner_scopes.iter().map(|(var, _)| *var));
        inputs.sort();
        inputs.dedup();
        let mut called = Called {
            steps: call.steps,
            count: entering.count.and_then(|(_, steps)| steps.get()),
            entering: entering.clone(),
            fills,
            shared: false,
            left,
            left_bytes,
            every: every.unwrap_or(1),
            again,
            step: StepPlan { plan, inputs: step_inputs, ends },
        };
        if let Some(every) = every {
            (called.left, called.left_bytes) = starts(&called);
            leaves.again = Some((call.again(), every, called.count));
        }
        let record = fills.then(|| Arc::new(leaves));
        Ok(Some(Planned { called, inputs, metas, record }))
    }
}

fn like(first: &First) -> Var {
    match first {
        First::Value(_, like) | First::ZerosLike(like) => *like,
    }
}
