//! The scalar path: one formula on separate buffers, without the setup of a fused kernel, for tapes of small values.
#![allow(unsafe_code)]

use super::{
    LaneEntry,
    block_args::{BlockArg, BlockFn},
    block_function::LaneAttrs,
};
use crate::{
    Arity, DType, Error, ErrorKind, OpDesc, Result,
    tensor::{Memory, padded},
};

/// A call of a block function: a formula with its attributes, for operands of one shape.
pub struct FormulaCall {
    block: BlockFn,
    attrs: LaneAttrs,
    bytes: usize,
    /// The number of elements rounded up to whole cache lines.
    numel: usize,
    /// By input: the slot that reads it, and its index.
    reads: Vec<(usize, usize)>,
    /// By output: the slot that writes it.
    writes: Vec<usize>,
}

impl FormulaCall {
    /// The limit of slots of an operator.
    pub const MOST_SLOTS: usize = 8;

    /// `read` and `written` are indices of inputs and outputs by slot of the schema, `None` for absent ones.
    ///
    /// # Errors
    /// No formula for this dtype; too many slots, or an empty one; invalid attributes.
    pub fn new(
        entry: &LaneEntry,
        desc: &OpDesc,
        dtype: DType,
        numel: usize,
        read: &[Option<usize>],
        written: &[Option<usize>],
    ) -> Result<FormulaCall> {
        let schema = entry.schema();
        let block = entry.block(dtype).ok_or_else(|| {
            Error::new(ErrorKind::DType, format!("operator `{}` has no formula for {dtype}", schema.name))
        })?;
        let slots = || schema.inputs.iter().chain(schema.outputs);
        let counts = [read.len(), written.len()];
        if counts != [schema.inputs.len(), schema.outputs.len()] || slots().count() > FormulaCall::MOST_SLOTS
        {
            return Err(Error::internal(format!("the slots of operator `{}`", schema.name)));
        }
        for (slot, at) in slots().zip(read.iter().chain(written)) {
            if at.is_none() && slot.arity != Arity::Optional && !slot.shape_only {
                return Err(Error::internal(format!("`{}` of a formula is not filled", slot.name)));
            }
        }
        let reads = read.iter().enumerate().filter(|(slot, _)| !schema.inputs[*slot].shape_only);
        let reads = reads.filter_map(|(slot, at)| Some((slot, (*at)?))).collect();
        let number = |i: usize| written.iter().position(|at| *at == Some(i)).map(|slot| read.len() + slot);
        let writes: Vec<usize> = (0..written.len()).map_while(number).collect();
        if writes.len() != written.iter().flatten().count() {
            return Err(Error::internal(format!("the outputs of operator `{}`", schema.name)));
        }
        let bytes = if numel == 0 { 0 } else { padded(numel * dtype.size()) };
        let attrs = entry.attrs(desc)?;
        Ok(FormulaCall { block, attrs, bytes, numel: bytes / dtype.size(), reads, writes })
    }

    /// Computes the outputs.
    ///
    /// # Errors
    /// Too few outputs; memory that is too small; the errors of `input`.
    #[inline]
    pub fn run<'a>(
        &self,
        input: impl Fn(usize) -> Result<&'a Memory>,
        outputs: impl Iterator<Item = &'a mut Memory>,
    ) -> Result<()> {
        let mut args = [BlockArg::ABSENT; FormulaCall::MOST_SLOTS];
        for (slot, i) in &self.reads {
            args[*slot] = BlockArg::block(input(*i)?.start(self.bytes)?.ptr());
        }
        let mut written = 0;
        for (slot, memory) in self.writes.iter().zip(outputs) {
            args[*slot] = BlockArg::block(memory.start(self.bytes)?.ptr());
            written += 1;
        }
        if written < self.writes.len() {
            return Err(Error::internal("fewer buffers than outputs"));
        }
        // SAFETY: an argument for every slot, absent only for optional and `shape_only` ones (checked in `new`), each
        // with `bytes` bytes (just checked); outputs are borrowed mutably, so they are disjoint from all else; the
        // attributes are this entry's.
        unsafe { (self.block)(args.as_ptr(), self.attrs.ptr(), 0, self.numel) };
        Ok(())
    }

    /// As [`run`](FormulaCall::run) with two inputs and one output, which overwrites the first input.
    ///
    /// # Errors
    /// Other numbers of inputs and outputs; memory that is too small.
    pub fn run_over(&self, first: &mut Memory, second: &Memory) -> Result<()> {
        let ([(x, 0), (y, 1)], [out]) = (&self.reads[..], &self.writes[..]) else {
            return Err(Error::internal("a formula without two inputs and one output"));
        };
        let mut args = [BlockArg::ABSENT; FormulaCall::MOST_SLOTS];
        let place = BlockArg::block(first.start(self.bytes)?.ptr());
        args[*x] = place;
        args[*y] = BlockArg::block(second.start(self.bytes)?.ptr());
        args[*out] = place;
        // SAFETY: as in `run`; the output is identical to the first input, and disjoint from the second, since it is
        // borrowed mutably.
        unsafe { (self.block)(args.as_ptr(), self.attrs.ptr(), 0, self.numel) };
        Ok(())
    }
}
