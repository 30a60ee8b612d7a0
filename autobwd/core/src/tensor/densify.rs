//! Conversion of row-sparse tensors to dense ones. Values that are copied into or out of a block are dense.
//!
//! Within a block, rows stay rows. States and steps of sequences are dense; sums over steps add rows to a dense tensor.

use super::{Buf, DType, Element, Memory, Meta, Rows, Tensor, padded};
use crate::{Dim, Result, with_dtype};

impl<T: Element> Rows<'_, T> {
    /// Writes the dense tensor.
    fn write_dense(self, out: &mut [T]) {
        out.fill(T::default());
        for (row, values) in self.iter() {
            out[row * values.len()..][..values.len()].copy_from_slice(values);
        }
    }
}

/// Size of the dense tensor in bytes.
pub fn dense_bytes(meta: &Meta) -> usize {
    meta.clone().dense().bytes().unwrap_or(0)
}

/// The same rows with bytes as elements.
fn of_bytes(meta: &Meta) -> Meta {
    let height = meta.dims.first().and_then(|dim| dim.get()).unwrap_or(0);
    let row = dense_bytes(meta).checked_div(height).unwrap_or(0);
    let mut bytes = Meta::new(DType::U8, [height, row]);
    bytes.rows = meta.rows;
    bytes
}

impl Memory {
    /// Copies the value at byte `at`, as a dense tensor, into `out`.
    pub fn copy_whole(&self, at: usize, meta: &Meta, out: &mut [u8]) {
        match meta.rows {
            Some(_) => self.rows::<u8>(at, &of_bytes(meta)).write_dense(out),
            None => out.copy_from_slice(self.slice(at, out.len())),
        }
    }

    /// Copies the value at byte `from`, as a dense tensor, to byte `to`; they must not overlap.
    pub fn move_dense(&mut self, from: usize, meta: &Meta, to: usize) {
        let whole = dense_bytes(meta);
        let Some(room) = meta.rows.and_then(Dim::get) else {
            let bytes = self.slice_mut::<u8>(0, self.len());
            return bytes.copy_within(from..from + whole, to);
        };
        let rows = of_bytes(meta);
        let there = self.rows::<u8>(from, &rows).indices().len();
        let (values, width) = (from + padded(room * size_of::<i64>()), self.rows::<u8>(from, &rows).width());
        self.slice_mut::<u8>(to, whole).fill(0);
        for i in 0..there {
            let row = self.slice::<i64>(from, room)[i] as usize;
            let bytes = self.slice_mut::<u8>(0, self.len());
            bytes.copy_within(values + i * width..values + (i + 1) * width, to + row * width);
        }
    }
}

impl Buf<'_> {
    /// Copies it, as a dense tensor, to byte `at` of a memory.
    ///
    /// # Errors
    /// A slot that does not hold a tensor.
    pub(crate) fn copy_whole(&self, memory: &mut Memory, at: usize) -> Result<()> {
        let numel = self.numel();
        with_dtype!(self.dtype(), T => {
            let out = memory.slice_mut::<T>(at, numel);
            match self.is_sparse() {
                true => self.rows::<T>()?.write_dense(out),
                false => out.copy_from_slice(self.slice()?),
            }
        });
        Ok(())
    }

    /// Copies `x` as a dense tensor.
    ///
    /// # Errors
    /// A slot that does not hold a tensor; an input.
    pub(crate) fn write_whole(&mut self, x: &Buf<'_>) -> Result<()> {
        with_dtype!(x.dtype(), T => match x.is_sparse() {
            true => x.rows::<T>()?.write_dense(self.slice_mut()?),
            false => self.slice_mut::<T>()?.copy_from_slice(x.slice()?),
        });
        Ok(())
    }

    /// Copies the slice at an index of the first dimension to byte `at` of a memory.
    ///
    /// # Errors
    /// A slot that does not hold a tensor.
    pub(crate) fn copy_part(&self, index: usize, memory: &mut Memory, at: usize) -> Result<()> {
        let width = self.dims().iter().skip(1).product();
        with_dtype!(self.dtype(), T => {
            let out = memory.slice_mut::<T>(at, width);
            match self.is_sparse() {
                true => match self.rows::<T>()?.within(index..index + 1).iter().next() {
                    Some((_, values)) => out.copy_from_slice(values),
                    None => out.fill(T::default()),
                },
                false => out.copy_from_slice(&self.slice::<T>()?[index * width..][..width]),
            }
        });
        Ok(())
    }

    /// A dense copy.
    ///
    /// # Errors
    /// A slot that does not hold a tensor; memory runs out.
    pub(crate) fn to_tensor(&self) -> Result<Tensor> {
        if let Some(dims) = self.decided_dims() {
            let mut tensor = Tensor::zeros(self.dtype(), &dims)?;
            with_dtype!(self.dtype(), T => tensor.slice_mut::<T>()?.copy_from_slice(self.decided()?.1));
            return Ok(tensor);
        }
        let mut tensor = Tensor::zeros(self.dtype(), self.dims())?;
        with_dtype!(self.dtype(), T => match self.is_sparse() {
            true => self.rows::<T>()?.write_dense(tensor.slice_mut()?),
            false => tensor.slice_mut::<T>()?.copy_from_slice(self.slice()?),
        });
        Ok(tensor)
    }
}
