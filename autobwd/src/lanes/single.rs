//! One formula on memory of its own, without the preparations of a region: what a tape of small values runs.
#![allow(unsafe_code)]

use std::any::Any;

use super::{
    LaneEntry,
    block::{Arg, BlockFn},
};
use crate::{
    Arity, DType, Error, ErrorKind, OpDesc, Result, Schema, SlotDef,
    tensor::{Memory, padded},
};

/// A formula with its attributes, for operands of one shape.
pub(crate) struct Formula {
    schema: &'static Schema,
    block: BlockFn,
    attrs: Box<dyn Any + Send + Sync>,
    bytes: usize,
    /// Elements in whole lines.
    numel: usize,
    slots: usize,
}

impl Formula {
    /// How many slots an operator may have.
    pub(crate) const MOST_SLOTS: usize = 8;

    /// # Errors
    /// There is no formula for that dtype; too many slots; attributes that do not fit.
    pub(crate) fn new(entry: &LaneEntry, desc: &OpDesc, dtype: DType, numel: usize) -> Result<Formula> {
        let schema = entry.schema();
        let block = entry.block(dtype).ok_or_else(|| {
            Error::new(ErrorKind::DType, format!("operator `{}` has no formula for {dtype}", schema.name))
        })?;
        let slots = schema.inputs.len() + schema.outputs.len();
        if slots > Formula::MOST_SLOTS {
            return Err(Error::internal(format!("operator `{}` has {slots} slots", schema.name)));
        }
        let bytes = if numel == 0 { 0 } else { padded(numel * dtype.size()) };
        Ok(Formula { schema, block, attrs: entry.attrs(desc)?, bytes, numel: bytes / dtype.size(), slots })
    }

    /// Computes the outputs; memories by slot of the schema, `None` for an absent one.
    ///
    /// # Errors
    /// A slot without memory, or with too little.
    pub(crate) fn run<'a>(
        &self,
        inputs: impl Iterator<Item = Option<&'a Memory>>,
        outputs: impl Iterator<Item = Option<&'a mut Memory>>,
    ) -> Result<()> {
        let mut args = [std::ptr::null_mut(); Formula::MOST_SLOTS];
        let (of_inputs, of_outputs) = args.split_at_mut(self.schema.inputs.len());
        let mut given = 0;
        for ((arg, slot), memory) in of_inputs.iter_mut().zip(self.schema.inputs).zip(inputs) {
            *arg = self.arg(slot, memory)?;
            given += 1;
        }
        for ((arg, slot), memory) in of_outputs.iter_mut().zip(self.schema.outputs).zip(outputs) {
            *arg = self.arg(slot, memory.map(|m| &*m))?;
            given += 1;
        }
        if given < self.slots {
            return Err(Error::internal("fewer memories than slots"));
        }
        // SAFETY: an argument for every slot, null for absent optional ones alone, each with `bytes` bytes behind it (just
        // seen); what is written is borrowed mutably, so it is apart from all else; the attributes are this entry's.
        unsafe { (self.block)(args.as_ptr(), &raw const *self.attrs as *const (), 0, self.numel) };
        Ok(())
    }

    #[inline]
    fn arg(&self, slot: &SlotDef, memory: Option<&Memory>) -> Result<Arg> {
        match memory {
            Some(memory) => Ok(memory.place(0, self.bytes)?.ptr()),
            None if slot.arity == Arity::Optional || slot.shape_only => Ok(std::ptr::null_mut()),
            None => Err(Error::internal(format!("`{}` of a formula is not filled", slot.name))),
        }
    }
}
