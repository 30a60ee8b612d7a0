//! Outputs whose shapes depend on data: the kernel writes the shape ahead of the elements.

use super::{Access, Buf};
use crate::{
    Error, ErrorKind, Result,
    tensor::{Element, Shape, padded},
};

impl Buf<'_> {
    /// The elements of an output with dimensions that data decides ([`Dim::at_most`](crate::Dim::at_most)), mutably,
    /// once the kernel has found its shape. The operator fails if its kernel decides no shape.
    ///
    /// # Errors
    /// A shape of another rank, beyond a bound, or with another size of a known dimension; another dtype, or another slot.
    pub fn decide<T: Element>(&mut self, dims: &[usize]) -> Result<&mut [T]> {
        if dims.len() != self.dims.len() {
            return Err(self.beyond(dims));
        }
        self.decide_each(|axis, _| dims[axis])
    }

    /// As [`decide`](Buf::decide), for an output that has one dimension for the data to decide.
    ///
    /// # Errors
    /// As there.
    pub fn decide_along<T: Element>(&mut self, axis: usize, n: usize) -> Result<&mut [T]> {
        self.decide_each(|at, bound| if at == axis { n } else { bound })
    }

    /// Decides on the dimensions that `dim` returns for an axis and a bound.
    fn decide_each<T: Element>(&mut self, dim: impl Fn(usize, usize) -> usize) -> Result<&mut [T]> {
        let Access::WriteDecided(axes) = self.access else {
            return Err(self.wrong("an output is needed with a dimension that data decides"));
        };
        if T::DTYPE != self.dtype || !self.lease.is_active() {
            return Err(self.refuse(T::DTYPE));
        }
        let mut numel = 1;
        for (axis, bound) in self.dims.iter().copied().enumerate() {
            let n = dim(axis, bound);
            if n > bound || (n < bound && !axes.has(axis)) {
                let dims: Shape = self.dims.iter().enumerate().map(|(axis, n)| dim(axis, *n)).collect();
                return Err(self.beyond(&dims));
            }
            numel *= n;
        }
        for axis in 0..self.dims.len() {
            let n = dim(axis, self.dims[axis]);
            self.header_mut()?[axis] = n as i64;
        }
        // SAFETY: as in `slice_mut`: `numel` elements fit, since no dimension is beyond its bound, for which `Binder::bind`
        // has checked the space after the header (`Meta::bytes`).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.add(self.header_bytes()).cast(), numel) })
    }

    #[cold]
    fn beyond(&self, dims: &[usize]) -> Error {
        let (slot, bounds) = (self.slot, &self.dims);
        let text = format!("`{slot}`: its kernel decides on the shape {dims:?}, beyond {bounds:?}");
        Error::new(ErrorKind::Shape, text)
    }

    /// Whether data decides the shape.
    fn is_decided(&self) -> bool {
        matches!(self.access, Access::ReadDecided | Access::WriteDecided(_))
    }

    fn header_bytes(&self) -> usize {
        padded(self.dims.len() * size_of::<i64>())
    }

    /// The dimensions ahead of the elements, if data decides them.
    fn header(&self) -> Result<&[i64]> {
        match self.access {
            Access::ReadDecided | Access::WriteDecided(_) if self.lease.is_active() => {
                // SAFETY: as in `slice`; the header has a number for each dimension (`Meta::bytes`).
                Ok(unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.dims.len()) })
            }
            _ => Err(self.refuse(self.dtype)),
        }
    }

    /// As [`header`](Buf::header), of an output.
    fn header_mut(&mut self) -> Result<&mut [i64]> {
        match self.access {
            Access::WriteDecided(_) if self.lease.is_active() => {
                // SAFETY: as in `header`; the bytes of a writable `Buf` overlap no other.
                Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.dims.len()) })
            }
            _ => Err(self.refuse(self.dtype)),
        }
    }

    /// Forgets the shape of an earlier run, if data decides it.
    pub(crate) fn undecide(&mut self) {
        if let Ok(header) = self.header_mut() {
            header.fill(-1);
        }
    }

    /// Checks that the kernel has decided the shape.
    ///
    /// # Errors
    /// It has not; names the slot.
    pub(crate) fn check_decided(&self) -> Result<()> {
        let slot = self.slot;
        let text = || format!("`{slot}`: its kernel has not decided the shape; it must call `decide`");
        let is_decided = self.header().is_ok_and(|header| header.iter().all(|n| *n >= 0));
        if is_decided { Ok(()) } else { Err(Error::new(ErrorKind::Shape, text())) }
    }

    /// The shape, if data decides it and the kernel has run.
    pub(crate) fn decided_dims(&self) -> Option<Shape> {
        if !self.is_decided() {
            return None;
        }
        decided_shape(self.header().ok()?, self.dims.iter().map(|bound| Some(*bound)))
    }

    /// The decided shape, and its elements.
    pub(crate) fn decided<T: Element>(&self) -> Result<(Shape, &[T])> {
        let dims = self.decided_dims().filter(|_| T::DTYPE == self.dtype);
        let dims = dims.ok_or_else(|| self.refuse(T::DTYPE))?;
        let numel = dims.iter().product();
        // SAFETY: as in `decide`; `decided_shape` has checked that no dimension is beyond its bound.
        let elements = unsafe { std::slice::from_raw_parts(self.ptr.add(self.header_bytes()).cast(), numel) };
        Ok((dims, elements))
    }
}

/// The shape ahead of the elements; `None` if the kernel has not decided it, or beyond these bounds.
pub(in crate::tensor::memory) fn decided_shape(
    header: &[i64],
    bounds: impl Iterator<Item = Option<usize>>,
) -> Option<Shape> {
    let within = |(n, bound): (&i64, Option<usize>)| usize::try_from(*n).ok().filter(|n| Some(*n) <= bound);
    header.iter().zip(bounds).map(within).collect()
}
