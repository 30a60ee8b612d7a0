//! Running sub-blocks that are planned ahead: what goes from step to step is copied within the block's arena.

use std::sync::Arc;

use crate::bind::{
    body::Span,
    bound_step::BoundStep,
    step_loop::{Position, Replay, StepBlock, StepLoop, StepState},
};
use autobwd_core::{
    Bool, Buf, Cx, DType, Error, Kernel, Meta, Result,
    tensor::{Cell, Memory, whole_bytes},
};
use autobwd_plan::{Again, Called, ValueId};

/// What a step hands to the next: as [`Handed`](autobwd_plan), bound.
struct Handed {
    first: Option<usize>,
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
    pub(crate) steps: StepLoop,
    pub(crate) block: CalledBlock,
}

/// A sub-block whose steps all have the same shapes.
pub(crate) struct CalledBlock {
    pub(crate) step: BoundStep,
    inputs: Vec<Buf<'static>>,
    /// An input, and where a step leaves it.
    condition: Option<usize>,
    repeat: Option<usize>,
    carried: Vec<Handed>,
    sequences: Vec<usize>,
    stacks: Vec<(Ended, Buf<'static>)>,
    sums: Vec<(Term, Buf<'static>)>,
    /// Where in the arena, and where in what a step leaves.
    left: Vec<(Span, usize)>,
    left_bytes: usize,
}

impl CallFrame {
    pub(crate) fn new(
        called: &Called,
        step: BoundStep,
        inputs: Vec<(ValueId, Buf<'static>)>,
        outputs: Vec<(ValueId, Buf<'static>)>,
        limit: u64,
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
        let (plan, body) = (&called.plan, &step.body);
        let span = |id: ValueId| body.span(plan, id);
        let ended = |id: ValueId| -> Result<Ended> {
            Ok(Ended { at: span(id)?.at, meta: plan.graph.values[id].meta.clone() })
        };
        let mut carried = vec![];
        for each in &called.carried {
            carried.push(Handed {
                first: each.first.map(input).transpose()?,
                end: each.end.map(ended).transpose()?,
                last: each.last.map(&mut output).transpose()?,
            });
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
        let steps = StepLoop {
            steps: called.steps,
            count: called.count.unwrap_or(0),
            limit,
            scopes,
            shared: called.shared,
            every: called.every,
            replay: None,
        };
        let block = CalledBlock {
            condition: called.condition.map(input).transpose()?,
            repeat: called.repeat.map(|id| span(id).map(|span| span.at)).transpose()?,
            carried,
            sequences: called.sequences.iter().map(|id| input(*id)).collect::<Result<_>>()?,
            stacks,
            sums,
            left: called.left.iter().map(|(id, at)| Ok((span(*id)?, *at))).collect::<Result<_>>()?,
            left_bytes: called.left_bytes,
            inputs,
            step,
        };
        Ok(CallFrame { steps, block })
    }

    /// Has it run the steps of another operator again, of which one in so many has left these inner values.
    pub(crate) fn run_again(&mut self, mut frame: CallFrame, again: &Again) -> Result<()> {
        let Called { plan, every, .. } = &again.called;
        let span = |(id, at): &(ValueId, usize)| Ok((frame.block.step.body.span(plan, *id)?, *at));
        let starts = again.starts.iter().map(span).collect::<Result<_>>()?;
        // Each of them leaves something.
        let cell = Arc::new(Cell::Steps(Default::default()));
        frame.steps.scopes = Some(cell.clone());
        self.steps.replay = Some(Replay { frame: Box::new(frame), cell, starts, every: *every, before: 0 });
        Ok(())
    }
}

impl CalledBlock {
    /// Before the first step.
    fn enter(&mut self) -> Result<()> {
        let BoundStep { body, starts, .. } = &mut self.step;
        for (start, each) in starts.iter().zip(&self.carried) {
            let Some(Span { at, bytes }) = *start else { continue };
            match each.first {
                Some(first) => self.inputs[first].copy_whole(&mut body.arena, at)?,
                None => body.arena.slice_mut::<u8>(at, bytes).fill(0),
            }
        }
        Ok(())
    }

    /// Before any other step.
    pub(crate) fn hand_on(&mut self) {
        let BoundStep { body, starts, .. } = &mut self.step;
        for (start, each) in starts.iter().zip(&self.carried) {
            let Some(Span { at, bytes }) = *start else { continue };
            match &each.end {
                Some(end) => body.arena.move_whole(end.at, &end.meta, at),
                None => body.arena.slice_mut::<u8>(at, bytes).fill(0),
            }
        }
    }

    /// After the last step, if there was one.
    fn leave(&mut self, ran: bool) -> Result<()> {
        for each in &mut self.carried {
            let Some(last) = &mut each.last else { continue };
            match (ran, &each.end, each.first) {
                (true, Some(end), _) => {
                    self.step.body.arena.copy_whole(end.at, &end.meta, last.bytes_mut()?);
                }
                (false, _, Some(first)) => last.write_whole(&self.inputs[first])?,
                (true, None, _) | (false, _, None) => last.bytes_mut()?.fill(0),
            }
        }
        if !ran {
            for (_, sum) in &mut self.sums {
                empty(sum)?;
            }
        }
        Ok(())
    }

    /// Runs the block on what it finds in its arena.
    pub(crate) fn run_step(&mut self, cx: &Cx, at: Position, state: StepState<'_>) -> Result<()> {
        let CalledBlock { step, inputs, sequences, left, left_bytes, .. } = self;
        step.slice(at.index, sequences.iter().map(|k| &inputs[*k]))?;
        match state {
            StepState::Discard => step.body.run(cx),
            StepState::Load(saved) => step.run_on(cx, saved),
            StepState::Save(scopes) => {
                let mut saved = scopes.steps()?.step(*left_bytes, step.nested.len())?;
                step.run_with(cx, &mut saved)?;
                for (Span { at, bytes }, offset) in &*left {
                    let kept = saved.memory.slice_mut::<u8>(*offset, *bytes);
                    kept.copy_from_slice(step.body.arena.slice(*at, *bytes));
                }
                scopes.steps()?.push(saved)
            }
        }
    }

    /// What a step contributes to stacks and sums.
    fn gather(&mut self, cx: &Cx, Position { ran, index }: Position) -> Result<()> {
        let (arena, first) = (&self.step.body.arena, ran == 0);
        for (Ended { at, meta }, out) in &mut self.stacks {
            let bytes = whole_bytes(meta);
            arena.copy_whole(*at, meta, &mut out.bytes_mut()?[index * bytes..][..bytes]);
        }
        for (term, sum) in &mut self.sums {
            match term {
                Term::Tensor(at, meta) => add(cx, sum, arena, *at, meta, first)?,
                Term::List(cell) => {
                    if first {
                        empty(sum)?;
                    }
                    if let Cell::Array(list) = &**cell {
                        sum.array()?.add(list)?;
                    }
                }
                Term::Nothing if first => empty(sum)?,
                Term::Nothing => {}
            }
        }
        Ok(())
    }
}

impl StepBlock for CalledBlock {
    fn condition(&self, ran: usize) -> Result<bool> {
        let holds = match (ran, self.condition, self.repeat) {
            (0, Some(input), _) => self.inputs[input].slice::<Bool>()?[0],
            (_, _, Some(at)) => self.step.body.arena.slice::<Bool>(at, 1)[0],
            _ => return Err(Error::internal("a loop without condition")),
        };
        Ok(holds.get())
    }

    fn step(&mut self, cx: &Cx, at: Position, state: StepState<'_>) -> Result<()> {
        match at.ran {
            0 => self.enter()?,
            _ => self.hand_on(),
        }
        self.run_step(cx, at, state)?;
        self.gather(cx, at)
    }
}

impl Kernel for CallFrame {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let ran = self.steps.run(cx, &mut self.block)?;
        self.block.leave(ran > 0)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        self.block.step.body.lent_bytes
    }
}

/// Makes a sum zero, or an empty list.
fn empty(sum: &mut Buf<'_>) -> Result<()> {
    match sum.is_array() {
        true => sum.array()?.clear(),
        false => sum.bytes_mut()?.fill(0),
    }
    Ok(())
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
