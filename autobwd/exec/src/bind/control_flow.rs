//! Execution of statically planned sub-blocks: loop-carried values are copied within the block's arena.

use std::sync::Arc;

use crate::bind::{
    bound_block::{ArenaRange, BlockEnd, BoundBlock},
    bound_step::{BoundInputs, BoundStep},
    step_loop::{BoundReplay, StateHandling, StepBlock, StepLoop},
};
use autobwd_core::{
    __private::{Memory, ValueCell, dense_bytes, internals::*},
    Bool, Buf, Cx, DType, Error, Kernel, Meta, Result,
};
use autobwd_plan::{ReplayPlan, StepPlan, SubBlockPlan, ValueId};

/// An operator that runs a sub-block.
pub(crate) struct BlockCallKernel {
    pub(crate) steps: StepLoop,
    pub(crate) block: BoundSubBlock,
}

/// A sub-block whose steps all have the same shapes.
pub(crate) struct BoundSubBlock {
    pub(crate) step: BoundStep,
    inputs: BoundInputs,
    /// The index of the condition for another step among the ends.
    repeat: Option<usize>,
    lasts: Vec<Option<Buf<'static>>>,
    stacks: Vec<Buf<'static>>,
    sums: Vec<Buf<'static>>,
    /// The saved values: location in the arena, and offset in saved step state.
    left: Vec<(ArenaRange, usize)>,
    left_bytes: usize,
}

impl BlockCallKernel {
    pub(crate) fn new(
        called: &SubBlockPlan,
        step: BoundStep,
        inputs: BoundInputs,
        outputs: Vec<Buf<'static>>,
        limit: u64,
    ) -> Result<BlockCallKernel> {
        let mut outputs = outputs.into_iter();
        let mut output = || outputs.next().ok_or_else(|| Error::internal("an output that is not bound"));
        let mut lasts = vec![];
        for each in &called.entering.carried {
            let last = each.carried.last.map(|_| output()).transpose()?;
            lasts.push(last.filter(|_| !each.is_list()));
        }
        let stacks = step.ends.stacks.iter().map(|_| output()).collect::<Result<_>>()?;
        let sums = step.ends.sums.iter().map(|_| output()).collect::<Result<_>>()?;
        let filled = outputs.next().filter(|_| called.fills).map(|buf| buf.cell().cloned()).transpose()?;
        let span = |id: ValueId| step.body.span(&called.step.plan, id);
        let steps = StepLoop {
            steps: called.steps,
            count: called.count.unwrap_or(0),
            limit,
            scopes: inputs.scopes()?.or(filled),
            shared: called.shared,
            every: called.every,
            replay: None,
        };
        let block = BoundSubBlock {
            repeat: called.entering.repeat.and_then(|k| step.ends.carried[k]),
            lasts,
            stacks,
            sums,
            left: called.left.iter().map(|(id, at)| Ok((span(*id)?, *at))).collect::<Result<_>>()?,
            left_bytes: called.left_bytes,
            inputs,
            step,
        };
        Ok(BlockCallKernel { steps, block })
    }

    /// Sets it up to rerun the steps of another operator, which saved these inner values of every n-th step.
    pub(crate) fn set_replay(&mut self, mut instruction: BlockCallKernel, again: &ReplayPlan) -> Result<()> {
        let SubBlockPlan { step: StepPlan { plan, .. }, every, .. } = &again.sub_block;
        let span = |(id, at): &(ValueId, usize)| Ok((instruction.block.step.body.span(plan, *id)?, *at));
        let starts = again.starts.iter().map(span).collect::<Result<_>>()?;
        // Each rerun step saves its state.
        let cell = Arc::new(ValueCell::Steps(Default::default()));
        instruction.steps.scopes = Some(cell.clone());
        self.steps.replay =
            Some(BoundReplay { kernel: Box::new(instruction), cell, starts, every: *every, before: 0 });
        Ok(())
    }
}

impl BoundSubBlock {
    /// Copies the inputs of the first step.
    fn enter(&mut self) -> Result<()> {
        let BoundStep { body, starts, .. } = &mut self.step;
        for (start, first) in starts.iter().zip(self.inputs.initial_values()) {
            match (*start, first) {
                (Some(start), Some(first)) => first.copy_whole(&mut body.arena, start.at)?,
                (Some(ArenaRange { at, bytes }), None) => body.arena.slice_mut::<u8>(at, bytes).fill(0),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Copies carried values to the inputs of the next step.
    pub(crate) fn carry_over(&mut self) {
        let BoundStep { body: BoundBlock { arena, ends: values, .. }, starts, ends, .. } = &mut self.step;
        for (start, end) in starts.iter().zip(&ends.carried) {
            match (*start, end.map(|k| &values[k])) {
                (Some(start), Some(end)) => arena.move_dense(end.at.at, &end.meta, start.at),
                (Some(ArenaRange { at, bytes }), None) => arena.slice_mut::<u8>(at, bytes).fill(0),
                (None, _) => {}
            }
        }
    }

    /// Copies the final carried values to the outputs; without any step, the initial ones.
    fn leave(&mut self, ran: bool) -> Result<()> {
        let BoundBlock { arena, ends, .. } = &self.step.body;
        let values = self.step.ends.carried.iter().zip(self.inputs.initial_values());
        for (last, (end, first)) in self.lasts.iter_mut().zip(values) {
            let Some(last) = last else { continue };
            match (ran, end.map(|k| &ends[k]), first) {
                (true, Some(end), _) => arena.copy_whole(end.at.at, &end.meta, last.bytes_mut()?),
                (false, _, Some(first)) => last.write_whole(first)?,
                (true, None, _) | (false, _, None) => last.bytes_mut()?.fill(0),
            }
        }
        match ran {
            true => Ok(()),
            false => self.sums.iter_mut().try_for_each(empty),
        }
    }

    /// Runs the block on the inputs in its arena.
    pub(crate) fn run_step(&mut self, cx: &Cx, index: usize, state: StateHandling<'_>) -> Result<()> {
        let BoundSubBlock { step, inputs, left, left_bytes, .. } = self;
        step.slice(index, inputs)?;
        match state {
            StateHandling::Discard => step.body.run(cx),
            StateHandling::Load(saved) => step.run_on(cx, saved),
            StateHandling::Save(scopes) => {
                let mut saved = scopes.steps()?.step(*left_bytes, step.nested.len())?;
                step.run_with(cx, &mut saved)?;
                for (ArenaRange { at, bytes }, offset) in &*left {
                    let kept = saved.memory.slice_mut::<u8>(*offset, *bytes);
                    kept.copy_from_slice(step.body.arena.slice(*at, *bytes));
                }
                scopes.steps()?.push(saved)
            }
        }
    }

    /// Adds a step's contribution to stacks and sums.
    fn gather(&mut self, cx: &Cx, ran: usize, index: usize) -> Result<()> {
        let BoundStep { body: BoundBlock { arena, ends: values, .. }, ends, .. } = &self.step;
        for (end, out) in ends.stacks.iter().zip(&mut self.stacks) {
            let Some(BlockEnd { at, meta, .. }) = end.map(|k| &values[k]) else { continue };
            let bytes = dense_bytes(meta);
            arena.copy_whole(at.at, meta, &mut out.bytes_mut()?[index * bytes..][..bytes]);
        }
        for (end, sum) in ends.sums.iter().zip(&mut self.sums) {
            let end = end.map(|k| &values[k]);
            if ran == 0 && end.is_none_or(|end| end.cell.is_some()) {
                empty(sum)?;
            }
            match end {
                Some(BlockEnd { cell: Some(cell), .. }) => {
                    if let ValueCell::Array(list) = &**cell {
                        sum.array()?.add(list)?;
                    }
                }
                Some(BlockEnd { at, meta, .. }) => add(cx, sum, arena, at.at, meta, ran == 0)?,
                None => {}
            }
        }
        Ok(())
    }
}

impl StepBlock for BoundSubBlock {
    fn condition(&self, ran: usize) -> Result<bool> {
        match self.repeat.map(|k| &self.step.body.ends[k]) {
            Some(end) if ran > 0 => Ok(self.step.body.arena.slice::<Bool>(end.at.at, 1)[0].get()),
            _ => self.inputs.condition(),
        }
    }

    fn step(&mut self, cx: &Cx, ran: usize, index: usize, state: StateHandling<'_>) -> Result<()> {
        match ran {
            0 => self.enter()?,
            _ => self.carry_over(),
        }
        self.run_step(cx, index, state)?;
        self.gather(cx, ran, index)
    }
}

impl Kernel for BlockCallKernel {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let ran = self.steps.run(cx, &mut self.block)?;
        self.block.leave(ran > 0)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        self.block.step.body.lent_bytes
    }
}

/// Sets a sum to zero, or to an empty list.
fn empty(sum: &mut Buf<'_>) -> Result<()> {
    match sum.is_array() {
        true => sum.array()?.clear(),
        false => sum.bytes_mut()?.fill(0),
    }
    Ok(())
}

/// Number of elements added at a time.
const PART: usize = 1 << 14;

/// Adds a value in an arena to a sum; the first one is copied.
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
