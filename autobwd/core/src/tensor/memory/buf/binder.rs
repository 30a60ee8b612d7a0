//! Creation of the buffers of one kernel, and the check that written ones are disjoint from all others.

use std::{marker::PhantomData, ops::Range, sync::Arc};

use super::{Access, Buf, DecidedAxes, Lease};
use crate::{
    Error, Result,
    tensor::{Dim, Meta, Shape, ValueCell, memory::Place},
};

/// Creates the [`Buf`]s of one bound kernel, checks that each has enough memory, and proves the kernel's invariant.
#[derive(Debug, Default)]
pub struct Binder {
    /// Addresses, and whether they may be written.
    taken: Vec<(Range<usize>, bool)>,
    lease: Lease,
}

/// The access mode of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// Its bytes are read.
    Read,
    /// An output shares its bytes.
    TakenOver,
}

impl Binder {
    /// The buffer of an input.
    ///
    /// # Errors
    /// It exceeds its memory, or overlaps an output.
    pub fn input<'a>(&mut self, meta: &Meta, at: Place, reach: AccessMode) -> Result<Buf<'a>> {
        let access = match reach {
            AccessMode::Read => Access::Read,
            AccessMode::TakenOver => Access::TakenOver,
        };
        self.bind(meta, at, access)
    }

    /// An input without memory, whose elements are not readable.
    pub fn shape_only<'a>(&mut self, meta: &Meta) -> Result<Buf<'a>> {
        self.bind(meta, Place { ptr: std::ptr::null_mut(), len: 0 }, Access::ShapeOnly)
    }

    /// A value that is not a tensor, which is shared and has its own lock.
    pub fn cell<'a>(&self, meta: &Meta, cell: Arc<ValueCell>) -> Buf<'a> {
        Buf {
            ptr: std::ptr::null_mut(),
            dtype: meta.dtype,
            dims: Shape::default(),
            numel: 0,
            slot: meta.slot(),
            access: Access::Cell,
            cell: Some(cell),
            constant: None,
            lease: self.lease.clone(),
            life: PhantomData,
        }
    }

    /// The buffer of an output.
    ///
    /// # Errors
    /// It exceeds its memory, or overlaps another buffer.
    pub fn output<'a>(&mut self, meta: &Meta, at: Place) -> Result<Buf<'a>> {
        self.bind(meta, at, Access::Write)
    }

    fn bind<'a>(&mut self, meta: &Meta, at: Place, access: Access) -> Result<Buf<'a>> {
        // `Meta::bytes` limits the size, so that products of dimensions do not overflow.
        let known = meta.dims.bounds().zip(meta.bytes()).filter(|_| !meta.array);
        let Some((dims, bytes)) = known else {
            let text = format!("`{}`, {meta}, was bound as a tensor of known shape", meta.slot());
            return Err(Error::internal(text));
        };
        let numel = dims.iter().product();
        let access = match (access, meta.rows.and_then(Dim::get)) {
            (Access::Read, Some(n)) => Access::ReadRows(n),
            (Access::Write, Some(n)) => Access::WriteRows(n),
            (Access::Read, None) if meta.is_decided() => Access::ReadDecided,
            (Access::Write, None) if meta.is_decided() => Access::WriteDecided(DecidedAxes::of(&meta.dims)),
            (access, _) => access,
        };
        let written = matches!(access, Access::Write | Access::WriteRows(_) | Access::WriteDecided(_));
        if written || matches!(access, Access::Read | Access::ReadRows(_) | Access::ReadDecided) {
            self.taken.push((at.range(bytes)?, written));
        }
        let (dtype, slot, lease) = (meta.dtype, meta.slot(), self.lease.clone());
        let (cell, life) = (None, PhantomData);
        let constant = if access == Access::ShapeOnly { meta.shared_constant() } else { None };
        Ok(Buf { ptr: at.ptr, dtype, dims, numel, slot, access, cell, constant, lease, life })
    }

    /// The lease, which ends when the bound kernel is dropped.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Checks that writable buffers are disjoint from all others. Must be called before the kernel runs.
    pub fn finish(mut self) -> Result<()> {
        // In order of start, a buffer that overlaps any earlier one overlaps the one with the largest end.
        self.taken.retain(|(bytes, _)| !bytes.is_empty());
        self.taken.sort_unstable_by_key(|(bytes, _)| bytes.start);
        let (mut end, mut written_end) = (0, 0);
        for (bytes, written) in &self.taken {
            if bytes.start < if *written { end } else { written_end } {
                return Err(Error::internal("a written buffer overlaps another one of its operator"));
            }
            end = end.max(bytes.end);
            if *written {
                written_end = written_end.max(bytes.end);
            }
        }
        Ok(())
    }
}
