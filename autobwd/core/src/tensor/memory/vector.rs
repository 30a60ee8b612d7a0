//! Owned vectors of a dynamic element type.

use std::{mem::ManuallyDrop, ptr::NonNull};

use super::super::{DType, Element};
use crate::with_dtype;

/// A `Vec<T>` with its `T` as a [`DType`]. Its memory is aligned for its elements only, so kernels cannot use it.
pub(in crate::tensor) struct Vector {
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
    dtype: DType,
}
// SAFETY: it owns a vector of plain numbers, which `&Vector` reads and `&mut Vector` writes.
unsafe impl Send for Vector {}
// SAFETY: as above; `&Vector` only reads.
unsafe impl Sync for Vector {}

impl Vector {
    /// The vector itself, if its elements are of this type.
    pub(in crate::tensor) fn into_vec<T: Element>(self) -> Result<Vec<T>, Vector> {
        if T::DTYPE != self.dtype {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: pointer, length and capacity come from a `Vec` of elements of this dtype, which have one size and
        // alignment. `this` is not dropped, so the vector has one owner.
        Ok(unsafe { Vec::from_raw_parts(this.ptr.cast().as_ptr(), this.len, this.capacity) })
    }

    /// The elements; empty for another type.
    pub(in crate::tensor) fn slice<T: Element>(&self) -> &[T] {
        if T::DTYPE != self.dtype {
            return &[];
        }
        // SAFETY: the vector has `len` initialised elements of this type, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.cast().as_ptr(), self.len) }
    }

    pub(in crate::tensor) fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        if T::DTYPE != self.dtype {
            return &mut [];
        }
        // SAFETY: as in `slice`, and `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast().as_ptr(), self.len) }
    }

    pub(in crate::tensor) fn bytes(&self) -> &[u8] {
        // SAFETY: elements have no padding, so all their bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len * self.dtype.size()) }
    }

    pub(in crate::tensor) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self`; any bytes are elements.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len * self.dtype.size()) }
    }
}
impl<T: Element> From<Vec<T>> for Vector {
    fn from(vec: Vec<T>) -> Vector {
        let mut vec = ManuallyDrop::new(vec);
        // SAFETY: the pointer of a vector is never null.
        let ptr = unsafe { NonNull::new_unchecked(vec.as_mut_ptr()) }.cast();
        Vector { ptr, len: vec.len(), capacity: vec.capacity(), dtype: T::DTYPE }
    }
}
impl Drop for Vector {
    fn drop(&mut self) {
        with_dtype!(self.dtype, T => {
            // SAFETY: as in `into_vec`; `self` is not used again.
            drop(unsafe { Vec::<T>::from_raw_parts(self.ptr.cast().as_ptr(), self.len, self.capacity) });
        });
    }
}
