//! Operators with a block whose shapes are not the same in all steps, and those behind them.

use std::sync::Arc;

use crate::bind::{
    Outer,
    body::{End, Span},
    control::endless,
    stretch::{Key, Planner, Ready, Stretch, shape},
};
use autobwd_core::{
    BlockId, Bool, Buf, Cx, Error, ErrorKind, Meta, Result, StepCount, Tensor, Var,
    tensor::{Cell, Memory, Step, Steps, add_up, padded},
};
use autobwd_plan::{Entered, Entering, Entry, Given, Late, Record, Source, ValueId, ends};

/// Something that was computed before.
pub(crate) struct Found {
    pub(crate) var: Var,
    pub(crate) meta: Meta,
    pub(crate) at: Outer,
    pub(crate) record: Option<Arc<Record>>,
}

/// An operator whose steps are planned one by one, and those behind it.
pub(crate) struct LateFrame {
    planner: Arc<Planner>,
    block: BlockId,
    late: Arc<Late>,
    inputs: Vec<(ValueId, Buf<'static>)>,
    /// What its steps find outside.
    outer: Vec<Outer>,
    /// What those behind it find.
    found: Vec<Found>,
    /// What its steps leave, or have left.
    scopes: Arc<Cell>,
    /// Sums that are lists, by sum.
    lists: Vec<Arc<Cell>>,
    steps: Stretch,
    behind: Stretch,
    /// What those behind it have run for.
    now: Key,
}

/// What a step hands to the next, and what all contribute.
struct State {
    /// What is carried; nothing where no step has computed it, and for lists.
    carried: Vec<Option<Tensor>>,
    /// What these are.
    lists: Vec<Option<Meta>>,
    /// Sequences of which there are rows only, made whole.
    sequences: Vec<Option<Tensor>>,
    stacks: Vec<Vec<(usize, Tensor)>>,
    sums: Vec<Option<Tensor>>,
}

/// What the operator writes.
enum Output {
    Tensor(Tensor),
    Cell(Meta, Arc<Cell>),
}

impl LateFrame {
    pub(crate) fn new(
        planner: Arc<Planner>,
        block: BlockId,
        late: Arc<Late>,
        inputs: Vec<(ValueId, Buf<'static>)>,
        outer: Vec<Outer>,
        found: Vec<Found>,
    ) -> Result<LateFrame> {
        let of = |id: ValueId| inputs.iter().find(|(v, _)| *v == id).map(|(_, buf)| buf);
        let scopes = match late.entering.scopes.and_then(of) {
            Some(buf) => buf.cell()?.clone(),
            None => Arc::new(Cell::Steps(Default::default())),
        };
        let list = |(_, var, _): &(Var, Var, Var)| {
            let known = found.iter().find(|found| found.var == *var);
            match known.map(|found| &found.at) {
                Some(Outer::Cell(cell)) => cell.clone(),
                _ => Arc::new(Cell::Array(Default::default())),
            }
        };
        let lists = late.call.sums.iter().map(list).collect();
        let (steps, behind) = (Stretch::new(late.call.block, 0), Stretch::new(block, late.index + 1));
        let now = Key::default();
        Ok(LateFrame { planner, block, late, inputs, outer, found, scopes, lists, steps, behind, now })
    }

    /// Bytes of tensor memory that it holds by now.
    pub(crate) fn bytes(&self) -> usize {
        self.steps.bytes() + self.behind.bytes()
    }

    /// What must be there at the end.
    pub(crate) fn end(&self, k: usize) -> Result<(&Memory, &End)> {
        let body = self.behind.body(&self.now);
        body.ok_or_else(|| Error::internal("the end of what has not run"))?.end(k)
    }

    pub(crate) fn run(&mut self, cx: &Cx) -> Result<()> {
        let outputs = self.call(cx).map_err(|e| {
            let (program, index) = (self.planner.program(), self.late.index);
            let op = program.block(self.block).and_then(|block| block.ops.get(index));
            match op {
                Some(op) => e.at_op(|| program.describe_op(self.block, index, op)),
                None => e,
            }
        })?;
        self.go_on(cx, outputs)
    }

    fn input(&self, id: ValueId) -> Result<&Buf<'static>> {
        let known = self.inputs.iter().find(|(v, _)| *v == id).map(|(_, buf)| buf);
        known.ok_or_else(|| Error::internal("an input that is not bound"))
    }

    fn call(&mut self, cx: &Cx) -> Result<Vec<(Var, Output)>> {
        let late = self.late.clone();
        let Late { call, entering, .. } = &*late;
        if !call.is_recorded() {
            *self.scopes.steps()? = Default::default();
        }
        for (list, meta) in self.lists.iter().zip(&late.sums) {
            if let Cell::Array(list) = &**list
                && meta.array
            {
                list.clear();
            }
        }
        let mut state = self.start(entering)?;
        let holds = |buf: &Buf<'_>| -> Result<bool> { Ok(buf.slice::<Bool>()?[0].get()) };
        let count = entering.count.and_then(|(_, steps)| steps.get()).unwrap_or(0);
        match call.steps {
            StepCount::If(_) => {
                let condition = entering.condition.map(|id| self.input(id)).transpose()?;
                if condition.map_or(Ok(true), holds)? {
                    self.step(cx, &mut state, 0, None)?;
                }
            }
            StepCount::While(condition) => {
                let at = call.carried.iter().position(|c| c.start == condition);
                let again = |state: &State| -> Result<bool> {
                    let value = at.and_then(|at| state.carried[at].as_ref());
                    let value = value.ok_or_else(|| Error::internal("a loop without condition"))?;
                    Ok(value.slice::<Bool>()?.first().is_some_and(|b| b.get()))
                };
                let limit = self.planner.loop_limit();
                let mut steps = 0;
                while again(&state)? {
                    if steps >= limit {
                        return Err(endless(steps));
                    }
                    self.step(cx, &mut state, 0, None)?;
                    steps += 1;
                }
            }
            StepCount::Each { reverse } => {
                for i in 0..count {
                    let index = if reverse { count - 1 - i } else { i };
                    self.step(cx, &mut state, index, None)?;
                }
            }
            StepCount::Recorded { reverse } => {
                let kept = late.shared.then(|| self.scopes.steps()?.try_clone()).transpose()?;
                while let Some((mut step, before)) = self.pop_step()? {
                    let index = if reverse { count.saturating_sub(before + 1) } else { before };
                    self.step(cx, &mut state, index, Some(&mut step))?;
                    if step.record.is_none() {
                        self.scopes.steps()?.recycle(step);
                    }
                }
                if let Some(kept) = kept {
                    *self.scopes.steps()? = kept;
                }
            }
        }
        self.finish(count, state)
    }

    fn pop_step(&self) -> Result<Option<(Step, usize)>> {
        Ok(self.scopes.steps()?.pop())
    }

    /// What the first step finds.
    fn start(&self, entering: &Entering) -> Result<State> {
        let (mut carried, mut lists) = (vec![], vec![]);
        for each in &entering.carried {
            lists.push(each.meta.clone().filter(|meta| meta.array));
            carried.push(match (each.first, &each.meta) {
                _ if each.is_list() => None,
                (Some(first), _) => Some(self.input(first)?.to_tensor()?),
                (None, Some(meta)) => Some(zeros(meta)?),
                (None, None) => None,
            });
        }
        let call = &self.late.call;
        let stacks = call.stacks.iter().map(|_| vec![]).collect();
        let whole = |(id, ..): &(ValueId, Var, Meta)| {
            let buf = self.input(*id)?;
            buf.is_sparse().then(|| buf.to_tensor()).transpose()
        };
        let sequences = entering.slices.iter().map(whole).collect::<Result<_>>()?;
        Ok(State { carried, lists, sequences, stacks, sums: call.sums.iter().map(|_| None).collect() })
    }

    /// One step, at that index of sequences; `back` is what one of another operator has left.
    fn step(&mut self, cx: &Cx, state: &mut State, index: usize, back: Option<&mut Step>) -> Result<()> {
        let late = self.late.clone();
        let Late { call, entering, reads, leave, .. } = &*late;
        let number = back.as_ref().and_then(|step| step.record);
        let record = match number {
            Some(number) => self.planner.record(number),
            None => late.record.clone(),
        };
        let lists = state.lists.iter().flatten().map(|meta| (meta.dtype, meta.dims.clone()));
        let read =
            |(each, value): (&Entered, &Option<Tensor>)| value.as_ref().filter(|_| each.read).map(shape);
        let read = entering.carried.iter().zip(&state.carried).filter_map(read);
        let key = (read.chain(lists).collect(), number);
        let program = self.planner.program();
        let found = || {
            let mut entering = entering.clone();
            for ((each, value), list) in entering.carried.iter_mut().zip(&state.carried).zip(&state.lists) {
                each.meta = value.as_ref().map(Tensor::meta).or_else(|| list.clone());
            }
            let given = entering.finds(record.as_deref(), reads).given;
            let ends = ends(program, call, &given, leave.as_deref().unwrap_or_default());
            (given, ends)
        };
        let mut ready = self.steps.ready(cx, &self.planner, &key, &self.outer, found)?;

        // What goes in.
        let mut slices = vec![];
        for ((id, ..), whole) in entering.slices.iter().zip(&state.sequences) {
            let buf = self.inputs.iter().find(|(v, _)| v == id).map(|(_, buf)| buf);
            let buf = buf.ok_or_else(|| Error::internal("a sequence that is not bound"))?;
            let bytes = whole.as_ref().map_or_else(|| buf.bytes(), |whole| Ok(whole.bytes()))?;
            let steps = buf.dims().first().copied().unwrap_or(0);
            let bytes_each = bytes.len().checked_div(steps).unwrap_or(0);
            slices.push(&bytes[index * bytes_each..][..bytes_each]);
        }
        let carried = entering.carried.iter().zip(&state.carried).filter(|(each, _)| each.read);
        let carried = carried.filter_map(|(_, value)| Some(Some(value.as_ref()?.bytes())));
        let step = back.as_deref();
        let bytes =
            |(entry, at): (&Entry, Option<usize>)| Some(step?.memory.slice::<u8>(at?, entry.meta.bytes()?));
        let stored = record.iter().flat_map(|record| record.read(reads));
        let stored = stored.filter(|(entry, _)| !entry.meta.array).map(bytes);
        ready.feed(carried.chain(slices.into_iter().map(Some)).chain(stored));
        let nested = || record.iter().flat_map(|record| &record.nested);
        if let Some(step) = back {
            for ((var, _), steps) in nested().zip(&mut step.nested) {
                if let Some(cell) = ready.body.cell(*var) {
                    std::mem::swap(&mut *cell.steps()?, steps);
                }
            }
        }
        ready.body.run(cx)?;

        // What comes out.
        for ((each, value), list) in entering.carried.iter().zip(&mut state.carried).zip(&mut state.lists) {
            let end = ready.end(each.carried.end)?;
            if let Some(meta) = list {
                if let Some((_, end)) = end
                    && end.meta.dims != meta.dims
                {
                    *meta = end.meta.clone();
                }
                continue;
            }
            let Some((memory, end)) = end else {
                if let Some(value) = value {
                    value.bytes_mut().fill(0);
                }
                continue;
            };
            let next = Tensor::copy_of(memory, end.at.at, &end.meta)?;
            if let Some(before) = value
                && (before.dtype() != next.dtype() || before.dims().len() != next.dims().len())
            {
                let (name, before, next) = (program.name(each.carried.start), before.meta(), next.meta());
                let text = format!(
                    "a step finds `{name}` as {before} and leaves it as {next}; dtype and rank must stay"
                );
                return Err(Error::new(ErrorKind::Shape, text));
            }
            *value = Some(next);
        }
        for ((var, _), parts) in call.stacks.iter().zip(&mut state.stacks) {
            if let Some((memory, end)) = ready.end(*var)? {
                parts.push((index, Tensor::copy_of(memory, end.at.at, &end.meta)?));
            }
        }
        for (((var, ..), sum), list) in call.sums.iter().zip(&mut state.sums).zip(&self.lists) {
            let Some((memory, end)) = ready.end(*var)? else { continue };
            if let Some(cell) = &end.cell {
                if let (Cell::Array(list), Cell::Array(term)) = (&**list, &**cell) {
                    list.add(term)?;
                }
                continue;
            }
            let term = Tensor::copy_of(memory, end.at.at, &end.meta)?;
            match sum {
                Some(sum) => add_up(sum, &term)?,
                None => *sum = Some(term),
            }
        }
        if let Some(leave) = leave {
            let mut steps = self.scopes.steps()?;
            let step = leaves(&ready, leave, &self.planner, &mut steps)?;
            steps.push(step)?;
        }
        Ok(())
    }

    /// What all steps have made.
    fn finish(&self, count: usize, state: State) -> Result<Vec<(Var, Output)>> {
        let Late { call, entering, sums, .. } = &*self.late;
        let name = |var: Var| self.planner.program().name(var);
        let mut outputs = vec![];
        for ((each, value), list) in entering.carried.iter().zip(state.carried).zip(state.lists) {
            let Some(last) = each.carried.last else { continue };
            let output = match (value, list, each.first) {
                (Some(value), ..) => Output::Tensor(value),
                (None, Some(meta), Some(first)) => Output::Cell(meta, self.input(first)?.cell()?.clone()),
                _ => {
                    let text =
                        format!("`{}` has no value and no known shape: no step has computed it", name(last));
                    return Err(Error::new(ErrorKind::NoValue, text));
                }
            };
            outputs.push((last, output));
        }
        for ((_, out), parts) in call.stacks.iter().zip(state.stacks) {
            outputs.push((*out, Output::Tensor(stack(count, parts, name(*out))?)));
        }
        for (((_, out, _), sum), (meta, list)) in
            call.sums.iter().zip(state.sums).zip(sums.iter().zip(&self.lists))
        {
            outputs.push((
                *out,
                match sum {
                    _ if meta.array => Output::Cell(meta.clone(), list.clone()),
                    Some(sum) => Output::Tensor(sum),
                    None => Output::Tensor(zeros(meta)?),
                },
            ));
        }
        if let Some(scopes) = call.scopes.filter(|_| !call.is_recorded()) {
            outputs.push((scopes, Output::Cell(Meta::scopes(), self.scopes.clone())));
        }
        Ok(outputs)
    }

    /// Runs the operators behind.
    fn go_on(&mut self, cx: &Cx, outputs: Vec<(Var, Output)>) -> Result<()> {
        let mut given: Vec<Given> = vec![];
        let mut outer: Vec<Outer> = vec![];
        let (mut key, mut fed) = (vec![], vec![]);
        let kept = |var: Var| self.late.kept.iter().any(|(v, _)| *v == var);
        for found in self.found.iter().filter(|found| outputs.iter().all(|(var, _)| *var != found.var)) {
            let Found { var, meta, at, record } = found;
            let source = Source::Outer(outer.len());
            given.push(Given { var: *var, meta: meta.clone(), source, record: record.clone() });
            outer.push(at.clone());
        }
        for (var, output) in outputs {
            match output {
                Output::Tensor(tensor) if kept(var) => self.planner.keep(var, &tensor)?,
                Output::Tensor(tensor) => {
                    key.push(shape(&tensor));
                    given.push(Given { var, meta: tensor.meta(), source: Source::Feed, record: None });
                    fed.push(tensor);
                }
                Output::Cell(meta, cell) => {
                    key.push((meta.dtype, meta.dims.clone()));
                    given.push(Given { var, meta, source: Source::Outer(outer.len()), record: None });
                    outer.push(Outer::Cell(cell));
                }
            }
        }
        self.now = (key, None);
        let ends = || (given, self.late.ends.clone());
        let mut ready = self.behind.ready(cx, &self.planner, &self.now, &outer, ends)?;
        ready.feed(fed.iter().map(|tensor| Some(tensor.bytes())));
        ready.body.run(cx)
    }
}

/// What a step that has run leaves: what it has found of that, or has computed.
fn leaves(ready: &Ready<'_>, leave: &[(Var, bool)], planner: &Planner, steps: &mut Steps) -> Result<Step> {
    let (mut record, mut nested, mut parts, mut bytes) = (Record::default(), vec![], vec![], 0);
    for (var, elements) in leave {
        let found = ready.fed.iter().find(|(v, ..)| v == var);
        let (memory, at, meta) = match (found, ready.end(*var)?) {
            (Some((_, meta, at)), _) => (&ready.body.arena, *at, *meta),
            (None, Some((_, End { cell: Some(cell), record: known, .. }))) => {
                if let Cell::Steps(_) = &**cell {
                    record.nested.push((*var, known.clone()));
                    nested.push(std::mem::take(&mut *cell.steps()?));
                }
                continue;
            }
            (None, Some((memory, end))) => (memory, end.at, &end.meta),
            (None, None) => continue,
        };
        let offset = elements.then_some(bytes);
        if *elements {
            parts.push((memory, at));
            bytes += padded(at.bytes);
        }
        record.entries.push(Entry { var: *var, meta: meta.clone(), at: offset });
    }
    let mut memory = steps.memory(bytes)?;
    let mut offset = 0;
    for (from, Span { at, bytes }) in parts {
        memory.slice_mut::<u8>(offset, bytes).copy_from_slice(from.slice(at, bytes));
        offset += padded(bytes);
    }
    Ok(Step { memory, nested, record: Some(planner.number(record)) })
}

fn zeros(meta: &Meta) -> Result<Tensor> {
    Tensor::zeros(meta.dtype, &meta.dims.known().unwrap_or_default())
}

/// The parts of so many steps, one after another.
fn stack(count: usize, parts: Vec<(usize, Tensor)>, name: &str) -> Result<Tensor> {
    let Some((_, first)) = parts.first() else {
        let text = format!("`{name}` has no value and no known shape: no step has computed it");
        return Err(Error::new(ErrorKind::NoValue, text));
    };
    let dims: Vec<usize> = std::iter::once(count).chain(first.dims().iter().copied()).collect();
    let mut all = Tensor::zeros(first.dtype(), &dims)?;
    let bytes = first.bytes().len();
    for (index, part) in &parts {
        if part.meta() != first.meta() {
            let text = format!("a step has `{name}` as {}, another as {}", part.meta(), first.meta());
            return Err(Error::new(ErrorKind::Shape, text));
        }
        all.bytes_mut()[index * bytes..][..bytes].copy_from_slice(part.bytes());
    }
    Ok(all)
}
