//! Running sub-blocks, step by step.

use std::sync::Arc;

use crate::bind::body::{Body, Span};
use autobwd_core::{
    Bool, Buf, Cx, DType, Error, ErrorKind, Kernel, Meta, Result, StepCount, Var,
    tensor::{Cell, Memory, Step, whole_bytes},
};
use autobwd_plan::{Again, Called, ValueId};

/// A loop that has reached its limit.
pub(crate) fn endless(steps: u64) -> Error {
    let text =
        format!("the loop has not ended after {steps} steps, its limit; `Executor::loop_limit` sets another");
    Error::new(ErrorKind::Endless, text)
}

/// A tensor that a step hands to the next: as [`Handed`](crate::plan), bound.
struct Handed {
    first: Option<usize>,
    start: Option<Span>,
    end: Option<Ended>,
    last: Option<Buf<'static>>,
}

/// What a step ends with: where it stands, and what it is. Rows of a tensor leave the block as the whole.
struct Ended {
    at: usize,
    meta: Meta,
}

/// What a step adds to a sum.
enum Term {
    Tensor(usize, Meta),
    List(Arc<Cell>),
    Nothing,
}

/// An operator that runs a sub-block.
pub(crate) struct CallFrame {
    body: Body,
    steps: StepCount,
    count: usize,
    condition: Option<usize>,
    repeat: Option<usize>,
    inputs: Vec<Buf<'static>>,
    carried: Vec<Handed>,
    slices: Vec<(usize, Span)>,
    stacks: Vec<(Ended, Buf<'static>)>,
    sums: Vec<(Term, Buf<'static>)>,
    scopes: Option<Arc<Cell>>,
    shared: bool,
    /// Where in the arena, and where in what a step leaves.
    left: Vec<(Span, usize)>,
    left_bytes: usize,
    nested: Vec<Arc<Cell>>,
    /// One step in how many leaves something.
    every: usize,
    again: Option<Replay>,
    /// How often a loop may run.
    limit: u64,
}

/// Steps of another operator that are run again, for what they leave.
pub(crate) struct Replay {
    frame: Box<CallFrame>,
    cell: Arc<Cell>,
    /// What one step in so many has found: where in the arena, and where in what it has left.
    starts: Vec<(Span, usize)>,
    /// How many steps there were before those that have been run again.
    before: usize,
}

impl CallFrame {
    pub(crate) fn new(
        called: &Called,
        body: Body,
        inputs: Vec<(ValueId, Buf<'static>)>,
        outputs: Vec<(ValueId, Buf<'static>)>,
        limit: Option<u64>,
    ) -> Result<CallFrame> {
        let (ids, inputs): (Vec<_>, Vec<_>) = inputs.into_iter().unzip();
        let input = |id: ValueId| {
            ids.iter().position(|v| *v == id).ok_or_else(|| Error::internal("an input that is not bound"))
        };
        let mut outputs: Vec<_> = outputs.into_iter().map(|(id, buf)| (id, Some(buf))).collect();
        let mut output = |id: ValueId| {
            let buf = outputs.iter_mut().find(|(v, _)| *v == id).and_then(|(_, buf)| buf.take());
            buf.ok_or_else(|| Error::internal("an output that is not bound"))
        };
        let plan = &called.plan;
        let span = |id: ValueId| body.span(plan, id);
        let ended = |id: ValueId| -> Result<Ended> {
            Ok(Ended { at: body.span(plan, id)?.at, meta: plan.graph.values[id].meta.clone() })
        };
        let mut carried = vec![];
        for each in &called.carried {
            carried.push(Handed {
                first: each.first.map(input).transpose()?,
                start: each.start.map(span).transpose()?,
                end: each.end.map(ended).transpose()?,
                last: each.last.map(&mut output).transpose()?,
            });
        }
        let mut slices = vec![];
        for (var, inner) in &called.slices {
            slices.push((input(*var)?, span(*inner)?));
        }
        let mut stacks = vec![];
        for (inner, out) in &called.stacks {
            stacks.push((ended(*inner)?, output(*out)?));
        }
        let mut sums = vec![];
        for (inner, out) in &called.sums {
            let term = match inner {
                None => Term::Nothing,
                Some(inner) => {
                    let value = &plan.graph.values[*inner];
                    match body.cell(value.var).filter(|_| value.meta.array) {
                        Some(list) => Term::List(list.clone()),
                        None => Term::Tensor(span(*inner)?.at, value.meta.clone()),
                    }
                }
            };
            sums.push((term, output(*out)?));
        }
        let scopes = match called.scopes {
            None => None,
            Some(id) => Some(match input(id) {
                Ok(k) => inputs[k].cell()?.clone(),
                Err(_) => output(id)?.cell()?.clone(),
            }),
        };
        let mut left = vec![];
        for (inner, at) in &called.left {
            left.push((span(*inner)?, *at));
        }
        let unused = || Arc::new(Cell::Steps(Default::default()));
        let nested = |var: &Var| body.cell(*var).cloned().unwrap_or_else(unused);
        Ok(CallFrame {
            nested: called.nested.iter().map(nested).collect(),
            steps: called.steps,
            count: called.count.unwrap_or(0),
            condition: called.condition.map(input).transpose()?,
            repeat: called.repeat.map(|id| span(id).map(|span| span.at)).transpose()?,
            body,
            inputs,
            carried,
            slices,
            stacks,
            sums,
            scopes,
            shared: called.shared,
            left,
            left_bytes: called.left_bytes,
            every: called.every,
            again: None,
            limit: limit.unwrap_or(u64::MAX),
        })
    }

    /// Has it run the steps of another operator again, of which one in so many has left these inner values.
    pub(crate) fn run_again(&mut self, mut frame: CallFrame, again: &Again) -> Result<()> {
        let cell = Arc::new(Cell::Steps(Default::default()));
        let mut starts = vec![];
        for (start, at) in &again.starts {
            starts.push((frame.body.span(&again.called.plan, *start)?, *at));
        }
        // Each of them leaves something.
        (self.every, frame.every) = (again.called.every, 1);
        frame.scopes = Some(cell.clone());
        self.again = Some(Replay { frame: Box::new(frame), cell, starts, before: 0 });
        Ok(())
    }

    /// Before the first step.
    fn enter(&mut self) -> Result<()> {
        for each in &self.carried {
            let Some(Span { at, bytes }) = each.start else { continue };
            match each.first {
                Some(first) => self.inputs[first].copy_whole(&mut self.body.arena, at)?,
                None => self.body.arena.slice_mut::<u8>(at, bytes).fill(0),
            }
        }
        Ok(())
    }

    /// After a step, before the next.
    fn hand_on(&mut self) {
        for each in &self.carried {
            let Some(Span { at, bytes }) = each.start else { continue };
            match &each.end {
                Some(end) => self.body.arena.move_whole(end.at, &end.meta, at),
                None => self.body.arena.slice_mut::<u8>(at, bytes).fill(0),
            }
        }
    }

    /// After the last step, if there was one.
    fn leave(&mut self, ran: bool) -> Result<()> {
        for each in &mut self.carried {
            let Some(last) = &mut each.last else { continue };
            match (ran, &each.end, each.first) {
                (true, Some(end), _) => self.body.arena.copy_whole(end.at, &end.meta, last.bytes_mut()?),
                (false, _, Some(first)) => last.write_whole(&self.inputs[first])?,
                (true, None, _) | (false, _, None) => last.bytes_mut()?.fill(0),
            }
        }
        if !ran {
            for (_, sum) in &mut self.sums {
                match sum.is_array() {
                    true => sum.array()?.clear(),
                    false => sum.bytes_mut()?.fill(0),
                }
            }
        }
        Ok(())
    }

    /// Runs the block for the step of that number, and keeps what a backward part reads.
    fn step(&mut self, cx: &Cx, number: usize) -> Result<()> {
        let leaves = number.is_multiple_of(self.every);
        let Some(scopes) = self.scopes.as_ref().filter(|_| leaves) else { return self.body.run(cx) };
        let mut step = scopes.steps()?.step(self.left_bytes, self.nested.len())?;
        self.exchange(&mut step)?;
        let outcome = self.body.run(cx);
        self.exchange(&mut step)?;
        for (Span { at, bytes }, left) in &self.left {
            let kept = step.memory.slice_mut::<u8>(*left, *bytes);
            kept.copy_from_slice(self.body.arena.slice(*at, *bytes));
        }
        if let Some(scopes) = &self.scopes {
            scopes.steps()?.push(step)?;
        }
        outcome
    }

    /// What the operators within have left goes where they find it, and back.
    fn exchange(&self, step: &mut Step) -> Result<()> {
        for (cell, steps) in self.nested.iter().zip(&mut step.nested) {
            std::mem::swap(&mut *cell.steps()?, steps);
        }
        Ok(())
    }

    /// Runs the block on what a step has left, which is consumed.
    fn step_back(&mut self, cx: &Cx, step: &mut Step) -> Result<()> {
        for (Span { at, bytes }, left) in &self.left {
            let start = self.body.arena.slice_mut::<u8>(*at, *bytes);
            start.copy_from_slice(step.memory.slice(*left, *bytes));
        }
        self.exchange(step)?;
        let outcome = self.body.run(cx);
        self.exchange(step)?;
        outcome
    }

    /// What a step reads of the slices.
    fn slice(&mut self, index: usize) -> Result<()> {
        for (input, Span { at, .. }) in &self.slices {
            self.inputs[*input].copy_part(index, &mut self.body.arena, *at)?;
        }
        Ok(())
    }

    /// What a step contributes to stacks and sums.
    fn gather(&mut self, cx: &Cx, index: usize, first: bool) -> Result<()> {
        for (Ended { at, meta }, out) in &mut self.stacks {
            let bytes = whole_bytes(meta);
            self.body.arena.copy_whole(*at, meta, &mut out.bytes_mut()?[index * bytes..][..bytes]);
        }
        for (term, sum) in &mut self.sums {
            match term {
                Term::Tensor(at, meta) => add(cx, sum, &self.body.arena, *at, meta, first)?,
                Term::List(cell) => {
                    if first {
                        sum.array()?.clear();
                    }
                    if let Cell::Array(list) = &**cell {
                        sum.array()?.add(list)?;
                    }
                }
                Term::Nothing if first && sum.is_array() => sum.array()?.clear(),
                Term::Nothing if first => sum.bytes_mut()?.fill(0),
                Term::Nothing => {}
            }
        }
        Ok(())
    }

    fn repeat(&mut self, cx: &Cx, repeat: usize) -> Result<u64> {
        let mut steps = 0;
        while self.body.arena.slice::<Bool>(repeat, 1)[0].get() {
            if steps >= self.limit {
                return Err(endless(steps));
            }
            self.step(cx, steps as usize)?;
            self.hand_on();
            steps += 1;
        }
        Ok(steps)
    }

    fn each(&mut self, cx: &Cx, reverse: bool) -> Result<()> {
        for i in 0..self.count {
            let index = if reverse { self.count - 1 - i } else { i };
            self.slice(index)?;
            self.step(cx, i)?;
            self.gather(cx, index, i == 0)?;
            self.hand_on();
        }
        Ok(())
    }

    /// What the last step has left that is not consumed, and how many steps there were before.
    fn last_step(&mut self, cx: &Cx) -> Result<Option<(Step, usize)>> {
        let Some(scopes) = &self.scopes else {
            return Err(Error::internal("a backward part without what the steps have left"));
        };
        let Some(again) = &mut self.again else { return Ok(scopes.steps()?.pop()) };
        if let Some((step, before)) = again.cell.steps()?.pop() {
            return Ok(Some((step, again.before + before)));
        }
        let Some((start, before)) = scopes.steps()?.pop() else { return Ok(None) };
        again.before = before * self.every;
        let end = std::mem::replace(&mut scopes.steps()?.count, again.before);
        let outcome = again.run(cx, &start, end);
        scopes.steps()?.recycle(start);
        outcome?;
        Ok(again.cell.steps()?.pop().map(|(step, before)| (step, again.before + before)))
    }

    /// Goes back through the steps. What they have left is consumed, unless another operator needs it, too.
    fn backward(&mut self, cx: &Cx, reverse: bool) -> Result<u64> {
        let Some(scopes) = self.scopes.clone().filter(|_| self.shared) else {
            return self.consume(cx, reverse);
        };
        let kept = scopes.steps()?.try_clone()?;
        let steps = self.consume(cx, reverse)?;
        *scopes.steps()? = kept;
        Ok(steps)
    }

    fn consume(&mut self, cx: &Cx, reverse: bool) -> Result<u64> {
        // A run that has failed may have left some.
        self.again.iter().for_each(|again| again.cell.clear());
        let mut steps = 0;
        while let Some((mut step, before)) = self.last_step(cx)? {
            let index = if reverse { self.count.saturating_sub(before + 1) } else { before };
            self.slice(index)?;
            let outcome = self.step_back(cx, &mut step);
            if let Some(cell) = self.again.as_ref().map(|again| &again.cell).or(self.scopes.as_ref()) {
                cell.steps()?.recycle(step);
            }
            outcome?;
            self.gather(cx, index, steps == 0)?;
            self.hand_on();
            steps += 1;
        }
        Ok(steps)
    }
}

impl Replay {
    /// Runs the steps up to that number, from what the first of them has found.
    fn run(&mut self, cx: &Cx, start: &Step, end: usize) -> Result<()> {
        let frame = &mut *self.frame;
        for (Span { at, bytes }, left) in &self.starts {
            let found = frame.body.arena.slice_mut::<u8>(*at, *bytes);
            found.copy_from_slice(start.memory.slice(*left, *bytes));
        }
        for number in self.before..end {
            let reverse = matches!(frame.steps, StepCount::Each { reverse: true });
            frame.slice(if reverse { frame.count.saturating_sub(number + 1) } else { number })?;
            frame.step(cx, number)?;
            frame.hand_on();
        }
        Ok(())
    }
}

impl Kernel for CallFrame {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let runs = match self.condition {
            Some(condition) => self.inputs[condition].slice::<Bool>()?[0].get(),
            None => true,
        };
        if !runs {
            return self.leave(false);
        }
        self.enter()?;
        let steps = match (self.steps, self.repeat) {
            (StepCount::While(_), Some(repeat)) => self.repeat(cx, repeat)?,
            (StepCount::While(_), None) => return Err(Error::internal("a loop without condition")),
            (StepCount::If(_), _) => self.step(cx, 0).map(|()| 1)?,
            (StepCount::Each { reverse }, _) => self.each(cx, reverse).map(|()| self.count as u64)?,
            (StepCount::Recorded { reverse }, _) => self.backward(cx, reverse)?,
        };
        if let Some(scopes) =
            self.scopes.as_ref().filter(|_| !matches!(self.steps, StepCount::Recorded { .. }))
        {
            scopes.steps()?.count = steps as usize;
        }
        self.leave(steps > 0)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        self.body.lent_bytes
    }
}

/// Elements that are added at a time.
const PART: usize = 1 << 14;

/// Adds what stands in an arena to a sum; the first is copied.
fn add(cx: &Cx, sum: &mut Buf<'_>, arena: &Memory, at: usize, meta: &Meta, first: bool) -> Result<()> {
    macro_rules! add {
        ($t:ty) => {{
            let sum = sum.slice_mut::<$t>()?;
            if meta.rows.is_some() {
                if first {
                    sum.fill(0.0);
                }
                for (row, values) in arena.rows::<$t>(at, meta).iter() {
                    let sum = &mut sum[row * values.len()..][..values.len()];
                    sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += *x);
                }
                return Ok(());
            }
            let term = arena.slice::<$t>(at, sum.len());
            if first {
                sum.copy_from_slice(term);
                return Ok(());
            }
            cx.chunks_mut(sum, PART, |part, sum| {
                let term = &term[part * PART..][..sum.len()];
                sum.iter_mut().zip(term).for_each(|(sum, x)| *sum += *x);
            });
            Ok(())
        }};
    }
    match meta.dtype {
        DType::F32 => add!(f32),
        DType::F64 => add!(f64),
        _ => Err(sum.wrong("floating point numbers are needed")),
    }
}
