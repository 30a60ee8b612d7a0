//! Fused kernels: elementwise operators over the same elements, run together block by block.
//!
//! Intermediate values live in block registers. Broadcast operands are loaded into a register before the block runs;
//! outputs with the shape of a broadcast operand are summed chunk by chunk.
//!
//! A fused kernel computes in one floating point type. Operands of another dtype are converted when they are loaded or
//! stored, bool to 1 and 0. A value of a 16-bit dtype is also rounded in its register, so that operators of the same
//! fused kernel read the bits that they would find in memory. Other converted outputs, except for bool, may not be read
//! inside the same fused kernel.
#![allow(unsafe_code)]

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::{
    LaneEntry,
    block_args::{BlockArg, BlockFn},
    block_function::LaneAttrs,
    broadcast_map::BroadcastMap,
    load_store::{LaneType, LoadedOperand, round, store},
};
use crate::{
    Arity, DType, Error, ErrorKind, OpDesc, Result,
    runtime::CHUNK,
    tensor::{LINE, Memory, Place, padded},
};

/// The size of all registers of a block in bytes: they should stay in the first-level cache.
const REGISTER_BYTES: usize = 24 << 10;
/// The limit of elements in a block.
const BLOCK: usize = 1024;
/// The number of elements that are summed together. Blocks hold whole units, so that sums depend neither on the block
/// size nor on the other operators of a fused kernel.
const UNIT: usize = 256;
/// Additional bytes between two block registers.
const SKEW: usize = 3 * LINE;

/// The location of a value of a fused kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum OperandLocation {
    /// In a block register: an intermediate value of this dtype.
    Register(DType),
    /// In memory, with the full shape.
    FullShape(Place),
    /// In memory, with fewer elements: broadcast when read, summed when written.
    Spread(Place, BroadcastMap),
    /// In memory, with another dtype than lanes: converted as by Rust's `as`. Formulas read bool as 1 and 0, and write
    /// true for a number other than 0.
    Converted(Place, BroadcastMap, DType),
}

/// One operator of a fused kernel.
#[derive(Debug)]
pub struct FusedOp<'a> {
    /// Its formula.
    pub entry: &'a LaneEntry,
    /// Its description.
    pub desc: &'a OpDesc,
    /// Values by input slot of the schema; `None` for an absent one.
    pub inputs: Vec<Option<usize>>,
    /// Values by output slot of the schema.
    pub outputs: Vec<Option<usize>>,
}

/// The specification of a fused kernel.
#[derive(Debug)]
pub struct FusedKernelSpec<'a> {
    /// The type of the computation.
    pub dtype: DType,
    /// The number of elements of the full shape.
    pub numel: usize,
    /// The operands.
    pub values: Vec<OperandLocation>,
    /// The operators, in order.
    pub steps: Vec<FusedOp<'a>>,
}

/// An action on one block; they run in order.
#[derive(Clone, Copy)]
enum BlockAction {
    /// Evaluate a formula on the arguments from index `args` on.
    Run { block: BlockFn, attrs: *const (), args: usize },
    /// Load a broadcast or converted operand into a register.
    Load { operand: usize, register: usize },
    /// Round a register to the numbers of a 16-bit dtype.
    Round { dtype: DType, register: usize },
    /// Store a register as another dtype.
    Store { place: Place, dtype: DType, register: usize },
    /// Add a register to a summed output.
    Add { sum: usize, register: usize },
}

/// The location of an argument of a block function.
#[derive(Clone, Copy)]
enum ArgLocation {
    Absent,
    Register(usize),
    /// In memory, with the full shape.
    Whole(Place),
}

/// A summed output: chunk 0 adds to the total, the others to partial sums.
struct SummedOutput {
    /// The output itself, or the first bytes of `own`.
    total: Place,
    spread: BroadcastMap,
    partial: Memory,
    /// Bytes between two partial sums; 0 if chunks add to the output sequentially.
    stride: usize,
    /// For an output of a 16-bit dtype, which is rounded at the end: the output, and memory for the total.
    rounded: Option<(Place, DType, Memory)>,
}

impl SummedOutput {
    /// Each chunk but the first has a partial sum, unless those would take more memory than the summed values.
    fn new(fold: FoldedOutput, numel: usize, size: usize) -> Result<SummedOutput> {
        let FoldedOutput { place, spread, half } = fold;
        let chunks = numel.div_ceil(CHUNK).max(1);
        let partials = spread.numel().saturating_mul(chunks) <= numel.max(1) || chunks == 1;
        let stride = if partials { padded(spread.numel() * size) } else { 0 };
        let partial = Memory::zeroed((chunks - 1) * stride)?;
        let (mut total, mut rounded) = (place, None);
        if let Some(dtype) = half {
            let bytes = spread.numel() * size;
            let own = Memory::zeroed(bytes)?;
            (total, rounded) = (own.place_inside(0, bytes)?, Some((place, dtype, own)));
        }
        Ok(SummedOutput { total, spread, partial, stride, rounded })
    }

    fn bytes(&self) -> usize {
        self.partial.len() + self.rounded.as_ref().map_or(0, |(_, _, own)| own.len())
    }
}

/// An output that is summed, and its dtype if that has 16 bits.
struct FoldedOutput {
    place: Place,
    spread: BroadcastMap,
    half: Option<DType>,
}

/// A fused kernel: elementwise operators that run block by block.
/// [`FusedKernels`](super::fused_kernels::FusedKernels) runs it.
pub struct FusedKernel {
    dtype: DType,
    numel: usize,
    /// `numel` rounded up to whole cache lines.
    whole: usize,
    block: usize,
    /// Bytes between two block registers.
    register_stride: usize,
    /// Whether all sums have partial sums, so that chunks can run in any order.
    parallel: bool,
    actions: Vec<BlockAction>,
    loads: Vec<LoadedOperand>,
    sums: Vec<SummedOutput>,
    /// One set of arguments and of registers per worker.
    workers: Vec<(Vec<BlockArg>, Memory)>,
    touched: Vec<TouchedMemory>,
    _attrs: Vec<LaneAttrs>,
}
// SAFETY: the pointers lead to attributes, which are `Send` and `Sync` and which the fused kernel keeps alive, to
// registers that it owns, and to places of plain bytes, which belong to no thread.
unsafe impl Send for FusedKernel {}
// SAFETY: as above; the method of `&FusedKernel` that uses them is unsafe to call (`run_part`).
unsafe impl Sync for FusedKernel {}

impl FusedKernel {
    /// Compiles it.
    ///
    /// # Errors
    /// Operands that exceed their memory, or partly overlap another.
    pub fn new(spec: FusedKernelSpec<'_>, workers: usize) -> Result<FusedKernel> {
        let FusedKernelSpec { dtype, numel, values, steps } = spec;
        let mut build = FusedKernelBuilder::new(&values, &steps, numel);
        for (index, step) in steps.iter().enumerate() {
            build.step(index, step, dtype)?;
        }
        let FusedKernelBuilder { actions, args, loads, folds, attrs, registers, .. } = build;
        let size = dtype.size();
        let line = LINE / size;
        let too_large = || Error::internal("more elements than can be addressed");
        let whole = numel.checked_next_multiple_of(line).ok_or_else(too_large)?;
        let whole_bytes = whole.checked_mul(size).ok_or_else(too_large)?;
        let touched = touched(&values, &steps, numel, whole_bytes, size)?;

        let chunks = numel.div_ceil(CHUNK).max(1);
        let sums = folds.into_iter().map(|fold| SummedOutput::new(fold, numel, size));
        let sums = sums.collect::<Result<Vec<_>>>()?;
        let parallel = chunks == 1 || sums.iter().all(|sum| sum.stride > 0);

        let block = match registers {
            0 => CHUNK,
            n => (REGISTER_BYTES / (n * size)).clamp(UNIT, BLOCK) / UNIT * UNIT,
        };
        let block = block.min(whole.max(line)).min(CHUNK);
        // Registers at multiples of a page would share a few sets of the first-level cache.
        let register_stride = padded(block * size) + SKEW;
        let worker = || -> Result<(Vec<BlockArg>, Memory)> {
            let memory = Memory::zeroed(registers * register_stride)?;
            let bind = |arg: &ArgLocation| {
                Ok(match arg {
                    ArgLocation::Absent => BlockArg::ABSENT,
                    ArgLocation::Whole(place) => BlockArg::whole(place.ptr()),
                    ArgLocation::Register(register) => {
                        let place = memory.place_inside(register * register_stride, block * size)?;
                        BlockArg::block(place.ptr())
                    }
                })
            };
            Ok((args.iter().map(bind).collect::<Result<_>>()?, memory))
        };
        let workers = (0..workers.min(chunks)).map(|_| worker()).collect::<Result<_>>()?;
        Ok(FusedKernel {
            dtype,
            numel,
            whole,
            block,
            register_stride,
            parallel,
            actions,
            loads,
            sums,
            workers,
            touched,
            _attrs: attrs,
        })
    }

    /// Size of the partial sums and registers, in bytes.
    pub fn scratch_bytes(&self) -> usize {
        self.sums.iter().map(SummedOutput::bytes).chain(self.workers.iter().map(|(_, m)| m.len())).sum()
    }

    /// # Safety
    /// `T` is the fused kernel's dtype. Meanwhile, nothing else runs this chunk, or any chunk with this worker, or uses
    /// the fused kernel's places, except for other chunks of the fused kernel.
    ///
    /// Why it is sound: `touched` has checked the size of every place, and `check_apart` that a written place overlaps
    /// only itself, element for element. So chunks of one fused kernel write elements that no other chunk uses.
    unsafe fn run_chunk<T: LaneType>(&self, chunk: usize, worker: usize) {
        let (args, registers) = &self.workers[worker];
        let Ok(registers) = registers.place_inside(0, 0) else { return };
        let register_at = |i: usize| registers.ptr().wrapping_add(i * self.register_stride).cast::<T>();
        let end = ((chunk + 1) * CHUNK).min(self.whole);
        let mut first = chunk * CHUNK;
        while first < end {
            let n = self.block.min(end - first);
            // Padding is computed, but neither loaded nor summed.
            let real = n.min(self.numel - first);
            for action in &self.actions {
                match *action {
                    // SAFETY: `FusedKernelBuilder::step` has pushed an argument for every slot, absent only where
                    // the slot may be, and the attributes of the same `LaneEntry`; places hold `whole` elements, and
                    // `first..first + n` are whole cache lines of this chunk; registers hold a block, and are
                    // initialised (zeroed).
                    BlockAction::Run { block, attrs, args: at } => unsafe {
                        block(args.as_ptr().add(at), attrs, first, n)
                    },
                    BlockAction::Load { operand, register } => {
                        // SAFETY: the place holds the operand (`touched`). If it has the full shape, other chunks may
                        // write it, but not these elements; otherwise nothing writes it (`check_apart`). The register
                        // is this worker's own and holds a block; `real` is at least 0 and at most `n`.
                        unsafe {
                            let block: &mut [T] = std::slice::from_raw_parts_mut(register_at(register), real);
                            self.loads[operand].load(first, block);
                        }
                    }
                    // SAFETY: the register is this worker's own and holds a block.
                    BlockAction::Round { dtype, register } => unsafe {
                        round(std::slice::from_raw_parts_mut(register_at(register), real), dtype);
                    },
                    // SAFETY: as above; the place holds an element for each of `numel` (`FusedKernelBuilder::step`
                    // accepts no other), and these are of this chunk alone.
                    BlockAction::Store { place, dtype, register } => unsafe {
                        let block: &[T] = std::slice::from_raw_parts(register_at(register), real);
                        store(block, place, dtype, first);
                    },
                    BlockAction::Add { sum, register } => {
                        let sum = &self.sums[sum];
                        let target = match chunk {
                            0 => Ok(sum.total),
                            _ if sum.stride == 0 => Ok(sum.total),
                            c => sum.partial.place_inside((c - 1) * sum.stride, sum.stride),
                        };
                        let Ok(target) = target else { return };
                        // SAFETY: the target holds the operand (`touched`, or `SummedOutput::new`) and is disjoint from
                        // every other place of the fused kernel (`check_apart`). It is this chunk's own: chunk 0 has
                        // the place, others have partial sums; without these, chunks run sequentially (`parts`).
                        let (block, operand) = unsafe {
                            (
                                std::slice::from_raw_parts(register_at(register), real),
                                std::slice::from_raw_parts_mut(target.ptr().cast::<T>(), sum.spread.numel()),
                            )
                        };
                        for (i, unit) in block.chunks(UNIT).enumerate() {
                            sum.spread.add(unit, first + i * UNIT, operand);
                        }
                    }
                }
            }
            first += n;
        }
    }

    /// The number of elements of the full shape.
    pub(super) fn numel(&self) -> usize {
        self.numel
    }

    /// The memory that it reads and writes.
    pub(super) fn touched(&self) -> &[TouchedMemory] {
        &self.touched
    }

    /// The number of parts that can run in any order.
    pub(super) fn parts(&self) -> usize {
        let chunks = self.numel.div_ceil(CHUNK);
        if self.parallel { chunks } else { 1 }
    }

    /// # Safety
    /// Meanwhile, nothing else runs this part, or any part with this worker, or uses the fused kernel's places, except
    /// for other parts of the fused kernel.
    pub(super) unsafe fn run_part(&self, part: usize, worker: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::F64 => self.run_chunks::<f64>(part, worker),
                _ => self.run_chunks::<f32>(part, worker),
            }
        }
    }

    /// # Safety
    /// As [`run_part`](FusedKernel::run_part).
    unsafe fn run_chunks<T: LaneType>(&self, part: usize, worker: usize) {
        // With a set of registers for every chunk, a worker's number may exceed the number of sets.
        let set = if self.workers.len() < self.parts() { worker } else { part };
        let chunks = if self.parallel { part..part + 1 } else { 0..self.numel.div_ceil(CHUNK) };
        for chunk in chunks {
            // SAFETY: a part's chunks are its own, and so is the set of registers: it belongs to the part, or to the
            // worker, which runs one part at a time, or there is only one part. `run_part` has chosen `T`.
            unsafe { self.run_chunk::<T>(chunk, set) }
        }
    }

    /// Called before the first part.
    pub(super) fn begin(&mut self) {
        match self.dtype {
            DType::F64 => self.clear_sums::<f64>(),
            _ => self.clear_sums::<f32>(),
        }
    }

    /// Called after the last part.
    pub(super) fn finish(&mut self) {
        match self.dtype {
            DType::F64 => self.add_partial_sums::<f64>(),
            _ => self.add_partial_sums::<f32>(),
        }
    }

    fn clear_sums<T: LaneType>(&mut self) {
        for sum in &mut self.sums {
            // SAFETY: the place holds that many elements (`touched`, or `SummedOutput::new`), and no part runs: the fused
            // kernel is borrowed mutably.
            unsafe { std::slice::from_raw_parts_mut(sum.total.ptr().cast::<T>(), sum.spread.numel()) }
                .fill(T::default());
            let n = sum.partial.len() / size_of::<T>();
            sum.partial.slice_mut::<T>(0, n).fill(T::default());
        }
    }

    fn add_partial_sums<T: LaneType>(&mut self) {
        let chunks = self.numel.div_ceil(CHUNK);
        for sum in &self.sums {
            let n = sum.spread.numel();
            // SAFETY: as in `clear_sums`; the partial sums are separate memory.
            let total = unsafe { std::slice::from_raw_parts_mut(sum.total.ptr().cast::<T>(), n) };
            for partial in 0..if sum.stride > 0 { chunks.saturating_sub(1) } else { 0 } {
                let partial = sum.partial.slice::<T>(partial * sum.stride, n);
                total.iter_mut().zip(partial).for_each(|(o, x)| *o = *o + *x);
            }
            if let Some((place, dtype, _)) = &sum.rounded {
                // SAFETY: the place holds that many elements (`touched`), and no part runs.
                unsafe { store(total, *place, *dtype, 0) };
            }
        }
    }
}

/// Turns steps into actions and allocates registers: one is free again after its last reader, and already for that
/// reader's own output.
struct FusedKernelBuilder {
    /// The number of elements of the full shape.
    numel: usize,
    values: Vec<OperandLocation>,
    last_use: Vec<usize>,
    register_of: FxHashMap<usize, usize>,
    free: Vec<usize>,
    registers: usize,
    actions: Vec<BlockAction>,
    args: Vec<ArgLocation>,
    loads: Vec<LoadedOperand>,
    folds: Vec<FoldedOutput>,
    attrs: Vec<LaneAttrs>,
}

impl FusedKernelBuilder {
    fn new(values: &[OperandLocation], steps: &[FusedOp<'_>], numel: usize) -> FusedKernelBuilder {
        let mut last_use = vec![0; values.len()];
        for (i, step) in steps.iter().enumerate() {
            step.inputs.iter().chain(&step.outputs).flatten().for_each(|v| last_use[*v] = i);
        }
        FusedKernelBuilder {
            numel,
            values: values.to_vec(),
            last_use,
            register_of: FxHashMap::default(),
            free: vec![],
            registers: 0,
            actions: vec![],
            args: vec![],
            loads: vec![],
            folds: vec![],
            attrs: vec![],
        }
    }

    fn take_register(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.registers += 1;
            self.registers - 1
        })
    }

    fn step(&mut self, index: usize, step: &FusedOp<'_>, dtype: DType) -> Result<()> {
        let schema = step.entry.schema();
        let missing =
            || Error::internal(format!("a slot of `{}` in a fused kernel is not filled", schema.name));
        if step.inputs.len() != schema.inputs.len() || step.outputs.len() != schema.outputs.len() {
            return Err(missing());
        }
        let mut args = vec![];
        for (slot, value) in schema.inputs.iter().zip(&step.inputs) {
            args.push(match value {
                None if slot.arity == Arity::Optional || slot.shape_only => ArgLocation::Absent,
                None => return Err(missing()),
                Some(v) => self.read(*v, dtype)?,
            });
        }
        for value in step.inputs.iter().flatten() {
            if self.last_use[*value] == index {
                self.free.extend(self.register_of.remove(value));
            }
        }
        let (mut folds, mut stores) = (vec![], vec![]);
        for (slot, value) in schema.outputs.iter().zip(&step.outputs) {
            args.push(match value {
                None if slot.arity == Arity::Optional => ArgLocation::Absent,
                None => return Err(missing()),
                Some(v) => match self.values[*v].clone() {
                    OperandLocation::FullShape(place) => ArgLocation::Whole(place),
                    OperandLocation::Register(dtype) => {
                        let register = self.take_register();
                        self.register_of.insert(*v, register);
                        if dtype.is_half() {
                            stores.push(BlockAction::Round { dtype, register });
                        }
                        ArgLocation::Register(register)
                    }
                    OperandLocation::Spread(place, spread) => {
                        let register = self.take_register();
                        folds.push(register);
                        self.folds.push(FoldedOutput { place, spread, half: None });
                        ArgLocation::Register(register)
                    }
                    OperandLocation::Converted(place, spread, dtype) if spread.numel() != self.numel => {
                        if !dtype.is_half() {
                            return Err(Error::internal("a converted output is not summed"));
                        }
                        let register = self.take_register();
                        folds.push(register);
                        self.folds.push(FoldedOutput { place, spread, half: Some(dtype) });
                        ArgLocation::Register(register)
                    }
                    OperandLocation::Converted(place, _, dtype) => {
                        let register = self.take_register();
                        self.register_of.insert(*v, register);
                        if dtype.is_half() && self.last_use[*v] > index {
                            stores.push(BlockAction::Round { dtype, register });
                        }
                        stores.push(BlockAction::Store { place, dtype, register });
                        ArgLocation::Register(register)
                    }
                },
            });
        }
        let block = step.entry.block(dtype).ok_or_else(|| {
            Error::new(ErrorKind::DType, format!("operator `{}` has no formula for {dtype}", schema.name))
        })?;
        let attrs = step.entry.attrs(step.desc)?;
        let at = self.args.len();
        self.args.append(&mut args);
        self.actions.push(BlockAction::Run { block, attrs: attrs.ptr(), args: at });
        self.attrs.push(attrs);
        self.actions.append(&mut stores);
        let first_sum = self.folds.len() - folds.len();
        for (i, register) in folds.into_iter().enumerate() {
            self.actions.push(BlockAction::Add { sum: first_sum + i, register });
            self.free.push(register);
        }
        // An unread output frees its register immediately.
        for value in step.outputs.iter().flatten() {
            if self.last_use[*value] == index {
                self.free.extend(self.register_of.remove(value));
            }
        }
        Ok(())
    }

    fn read(&mut self, value: usize, dtype: DType) -> Result<ArgLocation> {
        Ok(match self.values[value].clone() {
            OperandLocation::FullShape(place) => ArgLocation::Whole(place),
            OperandLocation::Register(_) => match self.register_of.get(&value) {
                Some(r) => ArgLocation::Register(*r),
                None => return Err(Error::internal("a fused kernel reads a register before it is written")),
            },
            OperandLocation::Spread(place, spread) => self.load(value, place, spread, dtype),
            OperandLocation::Converted(place, spread, dtype) => self.load(value, place, spread, dtype),
        })
    }

    /// A register with the loaded operand.
    fn load(&mut self, value: usize, place: Place, spread: BroadcastMap, dtype: DType) -> ArgLocation {
        if let Some(register) = self.register_of.get(&value) {
            return ArgLocation::Register(*register);
        }
        let register = self.take_register();
        self.register_of.insert(value, register);
        self.actions.push(BlockAction::Load { operand: self.loads.len(), register });
        let whole = spread.numel() == self.numel;
        self.loads.push(LoadedOperand { place, map: spread, dtype, whole });
        ArgLocation::Register(register)
    }
}

/// Memory that a fused kernel reads or writes.
#[derive(Clone, Debug)]
pub(super) struct TouchedMemory {
    /// Addresses.
    pub(super) bytes: Range<usize>,
    /// Whether it has the full shape: then it may be both read and written.
    pub(super) whole: bool,
    pub(super) written: bool,
}

/// The memory that is read and written, checked against the size of its place.
fn touched(
    values: &[OperandLocation],
    steps: &[FusedOp<'_>],
    numel: usize,
    whole_bytes: usize,
    size: usize,
) -> Result<Vec<TouchedMemory>> {
    let mut written = vec![false; values.len()];
    steps.iter().flat_map(|s| s.outputs.iter().flatten()).for_each(|v| written[*v] = true);
    let touched = values.iter().zip(written).filter_map(|(value, written)| {
        let (place, bytes, whole) = match value {
            OperandLocation::Register(_) => return None,
            OperandLocation::FullShape(place) => (place, whole_bytes, true),
            OperandLocation::Spread(place, spread) => (place, spread.numel().saturating_mul(size), false),
            OperandLocation::Converted(place, spread, dtype) => {
                (place, spread.numel().saturating_mul(dtype.size()), spread.numel() == numel)
            }
        };
        Some(place.range(bytes).map(|bytes| TouchedMemory { bytes, whole, written }))
    });
    touched.collect()
}
