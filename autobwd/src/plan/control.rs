//! Operators that run sub-blocks: the block is planned for the shapes at hand, as a plan within the plan.

use std::{collections::HashSet, sync::Arc};

use super::{
    Plan,
    graph::{Build, Given, Node, Request, Source, ValueId, Wires},
};
use crate::{
    Block, BlockId, Call, Carried, DType, Dim, Dims, Error, ErrorKind, First, Meta, OpDesc, OpInfo,
    OpInfoMap, Program, Result, StepCount, Var, VarKind, tensor::padded,
};

/// What a step leaves for a backward part.
#[derive(Debug)]
pub(crate) struct Record {
    entries: Vec<Entry>,
    /// Step scopes of the operators within.
    nested: Vec<(Var, Option<Arc<Record>>)>,
    /// If only some steps leave something, what they find: the steps to be run again, one in how many, and how many there
    /// are, if that is known.
    again: Option<(Call, usize, Option<usize>)>,
}

#[derive(Debug)]
struct Entry {
    var: Var,
    meta: Meta,
    /// Where it is stored; nowhere if only its shape is needed.
    at: Option<usize>,
}

/// A sub-block with its plan. Values are numbered as in the plan around it, or as in its own (`inner`).
pub(crate) struct Called {
    pub(crate) plan: Plan,
    pub(crate) steps: StepCount,
    /// How often it runs, if that is known.
    pub(crate) count: Option<usize>,
    /// Decides whether it runs at all.
    pub(crate) condition: Option<ValueId>,
    /// Inner: decides whether it runs again.
    pub(crate) repeat: Option<ValueId>,
    /// What it finds outside.
    pub(crate) outer: Vec<ValueId>,
    pub(crate) carried: Vec<Handed>,
    /// Input, and inner value.
    pub(crate) slices: Vec<(ValueId, ValueId)>,
    /// Inner value, and output.
    pub(crate) stacks: Vec<(ValueId, ValueId)>,
    /// Inner value, if the block computes it, and output.
    pub(crate) sums: Vec<(Option<ValueId>, ValueId)>,
    /// The step scopes that it fills or consumes.
    pub(crate) scopes: Option<ValueId>,
    /// Inner values, and their offsets in what each step leaves.
    pub(crate) left: Vec<(ValueId, usize)>,
    /// Bytes that each step leaves.
    pub(crate) left_bytes: usize,
    /// Step scopes of the operators within, which move in and out of what each step leaves.
    pub(crate) nested: Vec<Var>,
    /// One step in how many leaves something.
    pub(crate) every: usize,
    /// The steps that it runs again to have what they leave.
    pub(crate) again: Option<Box<Again>>,
}

/// A sub-block that the backward part runs again, from what one step in so many has left.
pub(crate) struct Again {
    pub(crate) block: BlockId,
    pub(crate) called: Called,
    /// Inner values, and their offsets in what such a step has left.
    pub(crate) starts: Vec<(ValueId, usize)>,
}

/// A sub-block with its plan, whose outputs have no values yet.
struct Planned {
    called: Called,
    inputs: Wires,
    /// What its outputs are.
    metas: Vec<(Var, Meta)>,
    /// The outputs of what is carried, of stacks and of sums.
    lasts: Vec<Option<Var>>,
    stacks: Vec<(ValueId, Var)>,
    sums: Vec<(Option<ValueId>, Var)>,
    record: Option<Arc<Record>>,
}

impl Called {
    /// Bytes that its steps leave, where it is known how many there are.
    pub(crate) fn held_bytes(&self) -> usize {
        let steps = self.count.filter(|_| !matches!(self.steps, StepCount::Recorded { .. }));
        steps.map_or(0, |steps| steps.div_ceil(self.every).saturating_mul(self.left_bytes))
    }
}

impl Again {
    /// Bytes that the steps leave that are run again at a time.
    pub(crate) fn held_bytes(&self) -> usize {
        let Called { every, count, left_bytes, .. } = self.called;
        count.map_or(0, |count| count.min(every).saturating_mul(left_bytes))
    }
}

/// A tensor that a step hands to the next.
pub(crate) struct Handed {
    /// What the first step finds; zeros if there is none.
    pub(crate) first: Option<ValueId>,
    /// Inner: where a step finds it, if it reads it.
    pub(crate) start: Option<ValueId>,
    /// Inner: where a step leaves it; zeros if it computes none.
    pub(crate) end: Option<ValueId>,
    /// The output.
    pub(crate) last: Option<ValueId>,
}

/// What a step finds that others have left, with offsets in memory for all of it, and how large that is.
fn starts(called: &Called) -> (Vec<(ValueId, usize)>, usize) {
    let (mut starts, mut bytes) = (vec![], 0);
    for start in called.carried.iter().filter_map(|handed| handed.start) {
        starts.push((start, bytes));
        bytes += padded(called.plan.graph.values[start].meta.bytes().unwrap_or(0));
    }
    (starts, bytes)
}

/// What the backward part reads of the steps of a forward block, and whether it reads the elements.
fn recorded(program: &Program, ops: &OpInfoMap, scopes: Var) -> Result<Vec<(Var, bool)>> {
    let mut names: Vec<(Var, bool)> = vec![];
    for op in
        program.blocks().iter().flat_map(|block| &block.ops).filter(|op| op.reads().any(|v| v == scopes))
    {
        let Some(call) = ops.get(&op.ty)?.call(op, program)?.filter(Call::is_recorded) else { continue };
        for (var, elements) in unsupplied(program, ops, &call)? {
            match names.iter_mut().find(|(v, _)| *v == var) {
                Some((_, e)) => *e |= elements,
                None => names.push((var, elements)),
            }
        }
    }
    Ok(names)
}

/// What a block reads and its operator does not supply, and whether it reads the elements; in a gradient, without the
/// gradients that count as zero because nobody has written them.
fn unsupplied(program: &Program, ops: &OpInfoMap, call: &Call) -> Result<Vec<(Var, bool)>> {
    let supplied: HashSet<Var> = call.supplied().collect();
    let block = program.block(call.block).map_or(&[][..], |block| &block.ops);
    let mut elements = HashSet::new();
    for op in block {
        elements.extend(ops.get(&op.ty)?.reads(op));
    }
    let forward = program.block(call.block).and_then(|block| program.block(block.forward?));
    let left = |var: Var| {
        let written = |block: &Block| block.ops.iter().any(|op| op.writes().any(|v| v == var));
        forward.is_none_or(|block| block.vars.contains_key(&var) || written(block))
    };
    let names = program.outside(call.block).into_iter().filter(|v| !supplied.contains(v) && left(*v));
    Ok(names.map(|v| (v, elements.contains(&v))).collect())
}

impl Build<'_> {
    /// An operator that runs a sub-block.
    pub(super) fn call(
        &mut self,
        index: usize,
        desc: &OpDesc,
        info: &'static OpInfo,
        call: &Call,
    ) -> Result<()> {
        let leaves = call.scopes.filter(|v| !call.is_recorded() && self.left[v.index()]);
        let leave = leaves.map(|scopes| recorded(self.program, self.ops, scopes)).transpose()?;
        let planned = self.planned(call, leave)?;
        let Planned { mut called, inputs, metas, lasts, stacks, sums, record } = planned;

        let mut outputs = Wires::new();
        let node = self.graph.nodes.len();
        let mut out = |build: &mut Self, var: Var, meta: Meta| -> Result<ValueId> {
            let meta = meta.in_slot(desc.outputs.slot_of(var).map_or("", |slot| slot.as_str()));
            if build.desc(var).is_some_and(|desc| desc.parameter) {
                let text = format!(
                    "block {} writes the parameter `{}`",
                    call.block.index(),
                    build.program.name(var)
                );
                return Err(Error::new(ErrorKind::Program, text));
            }
            build.check_output(var, &meta)?;
            let id = build.define(var, meta, Source::Node(node));
            outputs.push(("", Some(id)));
            Ok(id)
        };
        let mut defined: Vec<(Var, ValueId)> = vec![];
        for (var, meta) in metas {
            defined.push((var, out(self, var, meta)?));
        }
        if let Some(var) = call.scopes.filter(|_| !call.is_recorded()) {
            let id = out(self, var, Meta::scopes())?;
            called.scopes = record.as_ref().map(|_| id);
            self.graph.values[id].record = record;
        }
        let value = |var: Var| defined.iter().find(|(v, _)| *v == var).map_or(0, |(_, id)| *id);
        called.carried.iter_mut().zip(lasts).for_each(|(handed, last)| handed.last = last.map(value));
        called.stacks = stacks.into_iter().map(|(inner, out)| (inner, value(out))).collect();
        called.sums = sums.into_iter().map(|(inner, out)| (inner, value(out))).collect();
        let called = Some(Box::new(called));
        let node = Node { index, desc: desc.clone(), info, inputs, outputs, part: None, called };
        self.graph.nodes.push(node);
        Ok(())
    }

    /// Plans a sub-block of which each step leaves these values, and whether their elements.
    fn planned(&mut self, call: &Call, leave: Option<Vec<(Var, bool)>>) -> Result<Planned> {
        let program = self.program;
        let read: HashSet<Var> = program.outside(call.block).into_iter().collect();
        let own = program.block(call.block).map_or(&[][..], |block| &block.ops);
        let written: HashSet<Var> = own.iter().flat_map(OpDesc::writes).collect();
        let mut enter = Enter { inputs: Wires::new(), given: vec![], outer: vec![] };

        let condition = call.condition().map(|var| self.value(var)).transpose()?;
        if let Some(id) = condition {
            self.is_boolean(id)?;
            enter.inputs.push(("", Some(id)));
        }
        if let StepCount::While(var) = call.steps
            && !call.carried.iter().any(|c| c.end == var && written.contains(&var))
        {
            let name = program.name(var);
            let text = format!("the body never changes the condition `{name}`: the loop would not end");
            return Err(Error::new(ErrorKind::Program, text));
        }
        for var in call.reads.iter().filter(|v| read.contains(v)) {
            let id = self.value(*var)?;
            enter.outer(*var, id, self.graph.values[id].meta.clone());
        }

        let mut carried: Vec<(Carried, Option<ValueId>, Option<Given>)> = vec![];
        for each in &call.carried {
            let (first, like) = match each.first {
                First::Value(var, like) => (self.present(var)?, like),
                First::ZerosLike(like) => (None, like),
            };
            let mut meta = self.meta_of(first, like, each.start)?;
            if meta.array {
                // A list is changed where it is.
                let id = first.map_or_else(|| self.value(each.start), Ok)?;
                enter.outer(each.start, id, meta);
                carried.push((*each, Some(id), None));
                continue;
            }
            meta.rows = None;
            enter.inputs.extend(first.map(|id| ("", Some(id))));
            let repeats = call.condition() == Some(each.start) && condition.is_some();
            let start = (read.contains(&each.start) || repeats).then(|| Given {
                var: each.start,
                meta,
                source: Source::Feed,
                record: None,
            });
            carried.push((*each, first, start));
        }
        let (mut count, mut slices) = (None, vec![]);
        for (var, inner, like) in &call.slices {
            let Some(id) = self.present(*var)? else {
                // Nobody has written it: zeros in every step.
                let of = self.value(*like)?;
                let meta = &self.graph.values[of].meta;
                let meta = Meta::new(meta.dtype, meta.dims.iter().skip(1).copied().collect::<Dims>());
                let given = Given { var: *inner, meta, source: Source::Feed, record: None };
                let zeros =
                    Carried { first: First::ZerosLike(*like), start: *inner, end: *inner, last: None };
                carried.push((zeros, None, Some(given)));
                continue;
            };
            let meta = self.graph.values[id].meta.clone();
            let (name, of) = (program.name(*var), &meta.dims);
            let Some((steps, dims)) = of.split_first() else {
                return Err(Error::new(ErrorKind::Shape, format!("`{name}` has no dimension to go through")));
            };
            if let Some((other, known)) = count.filter(|(_, known)| *known != *steps) {
                let text = format!("`{name}` has {steps} steps, but `{}` has {known}", program.name(other));
                return Err(Error::new(ErrorKind::Shape, text));
            }
            count = Some((*var, *steps));
            if read.contains(inner) {
                enter.inputs.push(("", Some(id)));
                let meta = Meta::new(meta.dtype, dims.iter().copied().collect::<Dims>());
                slices.push((id, Given { var: *inner, meta, source: Source::Feed, record: None }));
            }
        }

        // What an operator has left for this one.
        let recorded = unsupplied(program, self.ops, call)?;
        let (mut scopes, mut again) = (None, None);
        let (mut stored, mut nested) = (vec![], vec![]);
        if let Some(var) = call.scopes.filter(|_| call.is_recorded()) {
            let id = self.value(var)?;
            let left = self.graph.values[id].record.clone();
            let left = left.ok_or_else(|| Error::internal("step scopes that nobody has filled"))?;
            let mut record = left.clone();
            enter.inputs.push(("", Some(id)));
            scopes = Some(id);
            if let Some((call, every, count)) = &left.again {
                let planned = self.planned(call, Some(recorded.clone()))?;
                enter.inputs.extend(planned.inputs);
                let called = Called { every: *every, count: *count, ..planned.called };
                let (starts, _) = starts(&called);
                again = Some(Box::new(Again { block: call.block, called, starts }));
                record = planned.record.unwrap_or(record);
            }
            for (var, elements) in &recorded {
                let Some(entry) = record.entries.iter().find(|entry| entry.var == *var) else { continue };
                let given = Given { var: *var, meta: entry.meta.clone(), source: Source::Feed, record: None };
                stored.push((given, entry.at.filter(|_| *elements)));
            }
            nested.extend(record.nested.iter().cloned());
        } else if let Some((var, _)) = recorded.first() {
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
        let root = |every: usize| match count.and_then(|(_, steps)| steps.get()) {
            Some(steps) if steps <= every => steps.isqrt().max(1),
            _ => every,
        };
        let every = call.every.filter(|_| fills).map(root);
        let leave = leave.filter(|_| every.is_none()).unwrap_or_default();
        if every.is_some() && call.carried.iter().any(|c| self.is_list(c.start)) {
            let text = "its steps change a list of tensors: they cannot be run again";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let is_scopes =
            |v: Var| program.lookup(call.block, v).is_some_and(|desc| desc.kind == VarKind::StepScopes);
        let (inner_scopes, leave): (Vec<_>, Vec<_>) = leave.into_iter().partition(|(v, _)| is_scopes(*v));

        let Enter { mut inputs, mut given, outer } = enter;
        // Positions in what is given are the numbers of the values.
        let mut give = |each: Given| {
            given.push(each);
            given.len() - 1
        };
        let carried: Vec<_> =
            carried.into_iter().map(|(each, first, start)| (each, first, start.map(&mut give))).collect();
        let slices: Vec<_> = slices.into_iter().map(|(id, inner)| (id, give(inner))).collect();
        let stored: Vec<_> = stored.into_iter().filter_map(|(each, at)| Some((give(each), at?))).collect();
        for (var, record) in &nested {
            let record = record.clone();
            give(Given { var: *var, meta: Meta::scopes(), source: Source::Feed, record });
        }

        let supplied: HashSet<Var> = given.iter().map(|given| given.var).collect();
        let computed = |v: Var| written.contains(&v) || supplied.contains(&v);
        let mut ends: Vec<Var> = call.ends().filter(|v| computed(*v)).collect();
        let starts_at = |v: Var| given.iter().position(|given| given.var == v);
        ends.extend(leave.iter().map(|(v, _)| *v).filter(|v| starts_at(*v).is_none()));
        ends.extend(inner_scopes.iter().map(|(v, _)| *v));
        let request = Request {
            block: call.block,
            given: &given,
            ends: &ends,
            feeds: &[],
            kept: &|_| None,
            fetches: &[],
            apart: self.request.apart,
        };
        let plan = Plan::new(program, self.ops, &request)?;
        let end = |var: Var| Some(plan.graph.ends[ends.iter().position(|v| *v == var)?]);
        let inner = |id: ValueId| plan.graph.values[id].meta.clone();

        let mut metas: Vec<(Var, Meta)> = vec![];
        let (mut handed, mut lasts) = (vec![], vec![]);
        for (each, first, start) in carried {
            let end = end(each.end);
            let meta = match (end.or(start), first) {
                (Some(own), _) => inner(own),
                (None, Some(first)) => self.graph.values[first].meta.clone(),
                (None, None) => self.meta_of(None, like(&each), each.start)?,
            };
            if let Some(before) =
                start.map(inner).or_else(|| first.map(|id| self.graph.values[id].meta.clone()))
                && !before.array
                && (before.dtype != meta.dtype || before.dims != meta.dims)
            {
                let text = format!(
                    "a step finds `{}` as {before} and leaves it as {meta}; it must stay what it is",
                    program.name(each.start)
                );
                return Err(Error::new(ErrorKind::Shape, text));
            }
            if !meta.array {
                handed.push(Handed { first, start, end, last: None });
                lasts.push(each.last);
            }
            metas.extend(each.last.map(|last| (last, meta)));
        }
        let mut stacks = vec![];
        for (var, out) in &call.stacks {
            let (Some(end), Some((_, steps))) = (end(*var), count) else {
                let text = format!("block {} does not compute `{}`", call.block.index(), program.name(*var));
                return Err(Error::new(ErrorKind::Program, text));
            };
            let meta = inner(end);
            let dims: Dims = std::iter::once(steps).chain(meta.dims.iter().copied()).collect();
            metas.push((*out, Meta::new(meta.dtype, dims)));
            stacks.push((end, *out));
        }
        let mut sums = vec![];
        for (var, out, like) in &call.sums {
            metas.push((*out, self.meta_of(None, *like, *like)?));
            sums.push((end(*var), *out));
        }

        let mut left_bytes = 0;
        let mut left = vec![];
        let entry = |(var, elements): &(Var, bool)| {
            let id = starts_at(*var).or_else(|| end(*var)).unwrap_or(0);
            let at = elements.then_some(left_bytes);
            if let Some(at) = at {
                left.push((id, at));
                left_bytes += padded(inner(id).bytes().unwrap_or(0));
            }
            Entry { var: *var, meta: inner(id), at }
        };
        let entries = leave.iter().map(entry).collect();
        let of = |(v, _): &(Var, bool)| (*v, end(*v).and_then(|id| plan.graph.values[id].record.clone()));
        let mut record = Record { entries, nested: inner_scopes.iter().map(of).collect(), again: None };
        let moved = if call.is_recorded() { &nested } else { &record.nested };
        let nested: Vec<Var> = moved.iter().map(|(var, _)| *var).collect();
        let count = count.and_then(|(_, steps)| steps.get());
        inputs.sort();
        inputs.dedup();
        let mut called = Called {
            steps: call.steps,
            count,
            condition: condition.filter(|_| matches!(call.steps, StepCount::If(_))),
            repeat: match call.steps {
                StepCount::While(var) => starts_at(var),
                _ => None,
            },
            outer,
            carried: handed,
            slices,
            stacks: vec![],
            sums: vec![],
            scopes,
            left: if call.is_recorded() { stored } else { left },
            left_bytes,
            nested,
            every: every.unwrap_or(1),
            again,
            plan,
        };
        if let Some(every) = every {
            (called.left, called.left_bytes) = starts(&called);
            record.again = Some((call.again(), every, count));
        }
        let record = fills.then(|| Arc::new(record));
        Ok(Planned { called, inputs, metas, lasts, stacks, sums, record })
    }

    /// The value of a variable, if it has one.
    fn present(&mut self, var: Var) -> Result<Option<ValueId>> {
        let persistable = self.desc(var).is_some_and(|desc| desc.persistable);
        match self.current[var.index()] {
            None if persistable => self.value(var).map(Some),
            id => Ok(id),
        }
    }

    /// What a value is that is carried; where nobody has written one, what another variable is, or is declared as.
    fn meta_of(&self, value: Option<ValueId>, like: Var, start: Var) -> Result<Meta> {
        if let Some(id) = value.or(self.current[like.index()]) {
            return Ok(self.graph.values[id].meta.clone());
        }
        let declared = self.desc(start).or_else(|| self.desc(like)).map(|desc| desc.meta());
        declared.filter(|meta| meta.bytes().is_some()).ok_or_else(|| {
            let text = format!("`{}` has no value and no known shape", self.program.name(like));
            Error::new(ErrorKind::NoValue, text)
        })
    }

    fn is_list(&self, var: Var) -> bool {
        self.desc(var).is_some_and(|desc| desc.kind == VarKind::TensorArray)
    }

    fn is_boolean(&self, id: ValueId) -> Result<()> {
        let value = &self.graph.values[id];
        if value.meta.dtype == DType::Bool && value.meta.dims.numel() == Dim::from(1) && !value.meta.array {
            return Ok(());
        }
        let name = self.program.name(value.var);
        let text = format!("the condition `{name}` is {}, not one boolean", value.meta);
        Err(Error::new(ErrorKind::DType, text))
    }
}

fn like(carried: &Carried) -> Var {
    match carried.first {
        First::Value(_, like) | First::ZerosLike(like) => like,
    }
}

/// What goes into a sub-block.
struct Enter {
    inputs: Wires,
    given: Vec<Given>,
    outer: Vec<ValueId>,
}

impl Enter {
    /// Something that the block finds where it is.
    fn outer(&mut self, var: Var, id: ValueId, meta: Meta) {
        self.inputs.push(("", Some(id)));
        self.given.push(Given { var, meta, source: Source::Outer(self.outer.len()), record: None });
        self.outer.push(id);
    }
}
