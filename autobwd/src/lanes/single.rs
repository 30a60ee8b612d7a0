//! One formula on memory of its own, without the preparations of a region: what a tape of small values runs.
#![allow(unsafe_code)]

use std::any::Any;

use super::{
    LaneEntry,
    block::{Arg, BlockFn, MAX_ARGS},
};
use crate::{
    Arity, DType, Error, ErrorKind, OpDesc, Result, Schema,
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
}

impl Formula {
    /// # Errors
    /// There is no formula for that dtype; attributes that do not fit.
    pub(crate) fn new(entry: &LaneEntry, desc: &OpDesc, dtype: DType, numel: usize) -> Result<Formula> {
        let schema = entry.schema();
        let block = entry.block(dtype).ok_or_else(|| {
            Error::new(ErrorKind::DType, format!("operator `{}` has no formula for {dtype}", schema.name))
        })?;
        let bytes = if numel == 0 { 0 } else { padded(numel * dtype.size()) };
        Ok(Formula { schema, block, attrs: entry.attrs(desc)?, bytes, numel: bytes / dtype.size() })
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
        let mut args: [Arg; MAX_ARGS] = [std::ptr::null_mut(); MAX_ARGS];
        let mut slots = self.schema.inputs.iter().chain(self.schema.outputs).zip(&mut args);
        let places = inputs.map(|m| m.map(|m| m.place(0, self.bytes)));
        let places = places.chain(outputs.map(|m| m.map(|m| m.place(0, self.bytes))));
        for place in places {
            let (slot, arg) = slots.next().ok_or_else(|| Error::internal("more memories than slots"))?;
            match place {
                Some(place) => *arg = place?.ptr(),
                None if slot.arity == Arity::Optional || slot.shape_only => {}
                None => return Err(Error::internal(format!("`{}` of a formula is not filled", slot.name))),
            }
        }
        if slots.next().is_some() {
            return Err(Error::internal("fewer memories than slots"));
        }
        // SAFETY: an argument for every slot, null for absent optional ones alone, each with `bytes` bytes behind it (just
        // seen); what is written is borrowed mutably, so it is apart from all else; the attributes are this entry's.
        unsafe { (self.block)(args.as_ptr(), &raw const *self.attrs as *const (), 0, self.numel) };
        Ok(())
    }
}
