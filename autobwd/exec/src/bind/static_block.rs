//! Execution of a sub-block whose steps all have the same shapes: carried values are copied within the block's arena.

use crate::bind::{
    bound_block::{ArenaRange, BlockEnd, BoundBlock, SavedRange},
    bound_step::{BoundInputs, BoundStep, StateHandling, StepBlock},
};
use autobwd_core::{
    __private::{HalfFloat, Memory, ValueCell, dense_bytes, internals::*},
    Bool, Buf, Cx, DType, Error, Meta, Result,
    half::{bf16, f16},
};
use autobwd_plan::SubBlockPlan;

/// A sub-block whose steps all have the same shapes.
pub(crate) struct StaticBlock {
    pub(crate) step: BoundStep,
    inputs: BoundInputs,
    /// The position of the condition for another step among the ends.
    condition: Option<usize>,
    /// By carried value: the output for its final value.
    final_values: Vec<Option<Buf<'static>>>,
    stacks: Vec<Buf<'static>>,
    sums: Vec<Buf<'static>>,
    /// By sum: for 16-bit floating point numbers, the sum in `f32`, so that steps are not lost by rounding.
    totals: Vec<Memory>,
    /// The values that a step saves.
    saved: Vec<SavedRange>,
    saved_bytes: usize,
}

impl StaticBlock {
    /// The block with its next outputs: carried values, stacks, and sums.
    pub(crate) fn new(
        plan: &SubBlockPlan,
        step: BoundStep,
        inputs: BoundInputs,
        outputs: &mut impl Iterator<Item = Buf<'static>>,
    ) -> Result<StaticBlock> {
        let mut output = || outputs.next().ok_or_else(|| Error::internal("an output that is not bound"));
        let mut final_values = vec![];
        for input in &plan.inputs.carried {
            let last = input.carried.last.map(|_| output()).transpose()?;
            final_values.push(last.filter(|_| !input.is_list()));
        }
        let stacks = step.ends.stacks.iter().map(|_| output()).collect::<Result<_>>()?;
        let sums: Vec<Buf<'static>> = step.ends.sums.iter().map(|_| output()).collect::<Result<_>>()?;
        let total = |sum: &Buf<'_>| match sum.dtype().is_half() {
            true => Memory::zeroed(sum.numel() * size_of::<f32>()),
            false => Ok(Memory::default()),
        };
        Ok(StaticBlock {
            totals: sums.iter().map(total).collect::<Result<_>>()?,
            condition: plan.inputs.repeat.and_then(|k| step.ends.carried[k]),
            final_values,
            stacks,
            sums,
            saved: SavedRange::of(&plan.step.plan, &plan.saved)?,
            saved_bytes: plan.saved_bytes,
            inputs,
            step,
        })
    }

    /// Bytes of the sums in `f32`.
    pub(crate) fn total_bytes(&self) -> usize {
        self.totals.iter().map(Memory::len).sum()
    }

    /// Copies the initial carried values to the inputs of the first step.
    fn copy_initial_values(&mut self) -> Result<()> {
        let BoundStep { block: BoundBlock { arena, .. }, carried, .. } = &mut self.step;
        for (input, initial) in carried.iter().zip(self.inputs.initial_values()) {
            match (*input, initial) {
                (Some(input), Some(initial)) => initial.copy_whole(arena, input.at)?,
                (Some(ArenaRange { at, bytes }), None) => arena.slice_mut::<u8>(at, bytes).fill(0),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Copies carried values to the inputs of the next step.
    pub(crate) fn carry_over(&mut self) {
        let BoundStep { block: BoundBlock { arena, ends: values, .. }, carried, ends, .. } = &mut self.step;
        for (input, end) in carried.iter().zip(&ends.carried) {
            match (*input, end.map(|k| &values[k])) {
                (Some(input), Some(end)) => arena.move_dense(end.range.at, &end.meta, input.at),
                (Some(ArenaRange { at, bytes }), None) => arena.slice_mut::<u8>(at, bytes).fill(0),
                (None, _) => {}
            }
        }
    }

    /// Copies the final carried values to the outputs; without any step, the initial ones.
    pub(crate) fn write_final_values(&mut self, ran: bool) -> Result<()> {
        let BoundBlock { arena, ends, .. } = &self.step.block;
        let values = self.step.ends.carried.iter().zip(self.inputs.initial_values());
        for (output, (end, initial)) in self.final_values.iter_mut().zip(values) {
            let Some(output) = output else { continue };
            match (ran, end.map(|k| &ends[k]), initial) {
                (true, Some(end), _) => arena.copy_whole(end.range.at, &end.meta, output.bytes_mut()?),
                (false, _, Some(initial)) => output.write_whole(initial)?,
                (true, None, _) | (false, _, None) => output.bytes_mut()?.fill(0),
            }
        }
        match ran {
            true => Ok(()),
            false => self.sums.iter_mut().try_for_each(clear),
        }
    }

    /// Runs the block on the inputs in its arena.
    pub(crate) fn run_step(&mut self, cx: &Cx, index: usize, state: StateHandling<'_>) -> Result<()> {
        let StaticBlock { step, inputs, saved, saved_bytes, .. } = self;
        step.feed_elements(index, inputs)?;
        match state {
            StateHandling::Discard => step.block.run(cx),
            StateHandling::Load(state) => step.run_on(cx, state),
            StateHandling::Save(scopes) => {
                let mut state = scopes.steps()?.step(*saved_bytes, step.nested.len())?;
                step.run_with(cx, &mut state)?;
                step.block.save(saved, &mut state);
                scopes.steps()?.push(state)
            }
        }
    }

    /// Adds a step's contribution to stacks and sums.
    fn accumulate_outputs(&mut self, cx: &Cx, ran: usize, index: usize) -> Result<()> {
        let BoundStep { block: BoundBlock { arena, ends: values, .. }, ends, .. } = &self.step;
        for (end, stack) in ends.stacks.iter().zip(&mut self.stacks) {
            let Some(BlockEnd { range, meta, .. }) = end.map(|k| &values[k]) else { continue };
            let bytes = dense_bytes(meta);
            arena.copy_whole(range.at, meta, &mut stack.bytes_mut()?[index * bytes..][..bytes]);
        }
        for ((end, sum), total) in ends.sums.iter().zip(&mut self.sums).zip(&mut self.totals) {
            let end = end.map(|k| &values[k]);
            if ran == 0 && end.is_none_or(|end| end.cell.is_some()) {
                clear(sum)?;
            }
            match end {
                Some(BlockEnd { cell: Some(cell), .. }) => {
                    if let ValueCell::Array(list) = &**cell {
                        sum.array()?.add(list)?;
                    }
                }
                Some(BlockEnd { range, meta, .. }) => add(cx, (sum, total), arena, range.at, meta, ran == 0)?,
                None => {}
            }
        }
        Ok(())
    }
}

impl StepBlock for StaticBlock {
    fn condition(&self, ran: usize) -> Result<bool> {
        match self.condition.map(|k| &self.step.block.ends[k]) {
            Some(end) if ran > 0 => Ok(self.step.block.arena.slice::<Bool>(end.range.at, 1)[0].get()),
            _ => self.inputs.condition(),
        }
    }

    fn step(&mut self, cx: &Cx, ran: usize, index: usize, state: StateHandling<'_>) -> Result<()> {
        match ran {
            0 => self.copy_initial_values()?,
            _ => self.carry_over(),
        }
        self.run_step(cx, index, state)?;
        self.accumulate_outputs(cx, ran, index)
    }
}

/// Sets a sum to zero, or to an empty list.
fn clear(sum: &mut Buf<'_>) -> Result<()> {
    match sum.is_array() {
        true => sum.array()?.clear(),
        false => sum.bytes_mut()?.fill(0),
    }
    Ok(())
}

/// Number of elements added at a time.
const PART: usize = 1 << 14;

/// Adds a value in an arena to a sum; the first one is copied. `total` is the sum of 16-bit numbers in `f32`.
fn add(
    cx: &Cx,
    (sum, total): (&mut Buf<'_>, &mut Memory),
    arena: &Memory,
    at: usize,
    meta: &Meta,
    first: bool,
) -> Result<()> {
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
        DType::F16 => add_rounding::<f16>((sum, total), arena, at, meta, first),
        DType::BF16 => add_rounding::<bf16>((sum, total), arena, at, meta, first),
        _ => Err(sum.wrong("floating point numbers are needed")),
    }
}

/// Adds 16-bit numbers to the total, and rounds that to the sum.
fn add_rounding<T: HalfFloat>(
    (sum, total): (&mut Buf<'_>, &mut Memory),
    arena: &Memory,
    at: usize,
    meta: &Meta,
    first: bool,
) -> Result<()> {
    let sum = sum.slice_mut::<T>()?;
    let total = total.slice_mut::<f32>(0, sum.len());
    if first {
        total.fill(0.0);
    }
    let add = |total: &mut [f32], term: &[T]| {
        total.iter_mut().zip(term).for_each(|(total, x)| *total += x.single());
    };
    match meta.rows {
        Some(_) => {
            for (row, values) in arena.rows::<T>(at, meta).iter() {
                add(&mut total[row * values.len()..][..values.len()], values);
            }
        }
        None => add(total, arena.slice::<T>(at, sum.len())),
    }
    sum.iter_mut().zip(total).for_each(|(sum, total)| *sum = T::round(*total));
    Ok(())
}
