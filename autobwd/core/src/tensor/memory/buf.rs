//! Buffers: what a kernel sees of its slots, and the check that written ones are disjoint from all others.
//!
//! The invariant of a bound kernel: every [`Buf`] has the bytes that its dtype and shape need. The bytes of a writable
//! one are disjoint from the bytes of every other. An input has none if it shares its memory with an output, or if only
//! its shape is read. [`Binder`](binder::Binder) checks each `Buf` against the length of its [`Place`](super::Place), and
//! all of them against each other before the kernel runs ([`finish`](binder::Binder::finish)). The caller of
//! [`Memory::place`](super::Memory::place) promises the rest.
//!
//! While a bound kernel runs, its memory has no other user: a session is borrowed mutably and so is the scope that it
//! is bound to, or the scope is shared and no session has a writable `Buf` of it; a tape borrows the inputs of an
//! operator and owns the outputs. Hence `&Buf -> &[T]` and `&mut Buf -> &mut [T]` are sound, and the borrow checker does
//! the rest.
//!
//! When it does not run, its `Buf`s are not used: their lifetime ends when [`Kernel::run`](crate::Kernel::run) returns,
//! so that a kernel that keeps one does not compile; and when it is dropped, its [`Lease`] has ended.

pub(super) mod binder;
pub(super) mod decided;

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ndarray::{ArrayView, ArrayViewMut, Dimension};

use super::padded;
use crate::{
    Error, ErrorKind, Result,
    tensor::{DType, Dim, Element, Rows, Shape, TensorArray, ValueCell, rows::check_row_indices},
    with_dtype,
};

/// The validity of a bound kernel's buffers. An operator's struct may hold types with a `Drop` of their own, which runs
/// when the bound kernel is dropped: the memory may be freed before that, or in use.
#[derive(Clone, Debug)]
pub struct Lease(Arc<AtomicBool>);

impl Default for Lease {
    fn default() -> Lease {
        Lease(Arc::new(AtomicBool::new(true)))
    }
}

impl Lease {
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    #[inline]
    fn is_active(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    /// An output shares this input's memory.
    TakenOver,
    /// The operator declared that it reads the shape only.
    ShapeOnly,
    /// Space for this many rows of a row-sparse tensor.
    ReadRows(usize),
    WriteRows(usize),
    /// The shape, and space for the elements of the largest one.
    ReadDecided,
    WriteDecided(DecidedAxes),
    /// Not a tensor.
    Cell,
}

/// The dimensions that data decides: a bit for each of the first 64, and all later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DecidedAxes(u64);

impl DecidedAxes {
    fn of(dims: &[Dim]) -> DecidedAxes {
        DecidedAxes(dims.iter().zip(0..64).map(|(dim, axis)| u64::from(dim.is_decided()) << axis).sum())
    }

    fn has(self, axis: usize) -> bool {
        axis >= 64 || self.0 >> axis & 1 == 1
    }
}

/// Number of elements in a row of a tensor.
pub(super) fn row_len(dims: &[usize]) -> usize {
    dims.iter().skip(1).product()
}

/// The value of a slot while a kernel runs: dtype, shape and memory.
#[derive(Debug)]
pub struct Buf<'a> {
    ptr: *mut u8,
    dtype: DType,
    dims: Shape,
    numel: usize,
    slot: &'static str,
    access: Access,
    /// Its value if it is not a tensor.
    cell: Option<Arc<ValueCell>>,
    constant: Option<Arc<[f64]>>,
    lease: Lease,
    life: PhantomData<&'a mut [u8]>,
}
// SAFETY: a `Buf` is a `&mut [u8]` if it may be written, and a `&[u8]` if not (see the top of this file).
unsafe impl Send for Buf<'_> {}
// SAFETY: as above; `&Buf` only reads.
unsafe impl Sync for Buf<'_> {}

/// Input and output of an operator that may run in place: one slice if they share memory, else two.
#[derive(Debug)]
pub enum InOut<'a, T> {
    /// The shared elements: the input, to be overwritten by the output.
    Same(&'a mut [T]),
    /// Input and output.
    Apart(&'a [T], &'a mut [T]),
}

impl<'a, T: Copy> InOut<'a, T> {
    /// The output, initialised with a copy of the input.
    pub fn copied(self) -> &'a mut [T] {
        match self {
            InOut::Same(out) => out,
            InOut::Apart(x, out) => {
                out.copy_from_slice(x);
                out
            }
        }
    }
}

impl Buf<'_> {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape; for a row-sparse tensor, the shape of the dense tensor; with dimensions that data decides, the largest shape.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements; for a row-sparse tensor, of the dense tensor.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Whether it is row-sparse: [`rows`](Buf::rows) reads it.
    pub fn is_sparse(&self) -> bool {
        matches!(self.access, Access::ReadRows(_) | Access::WriteRows(_))
    }

    /// Whether it is an input that shares its memory with an output.
    pub(crate) fn is_taken_over(&self) -> bool {
        self.access == Access::TakenOver
    }

    /// Name of the slot.
    pub fn slot(&self) -> &'static str {
        self.slot
    }

    /// The elements of an input whose slot is declared `constant`, as [`Meta::constant`](crate::Meta::constant).
    pub fn constant(&self) -> Option<&[f64]> {
        self.constant.as_deref()
    }

    /// The index of a possibly negative axis; the shape rule has checked that it exists.
    pub fn axis(&self, axis: i64) -> usize {
        (if axis < 0 { axis + self.dims.len() as i64 } else { axis }) as usize
    }

    /// An error about this slot that quotes its dtype and shape.
    pub fn wrong(&self, needed: &str) -> Error {
        let (slot, dtype, dims) = (self.slot, self.dtype, &self.dims);
        let rows = if self.is_sparse() { "rows of " } else { "" };
        Error::new(ErrorKind::DType, format!("`{slot}`: {needed}, not {rows}{dtype} {dims:?}"))
    }

    #[inline]
    fn typed<T: Element>(&self, write: bool) -> Result<*mut T> {
        let allowed = match self.access {
            Access::Read => !write,
            Access::Write => true,
            Access::TakenOver
            | Access::ShapeOnly
            | Access::ReadRows(_)
            | Access::WriteRows(_)
            | Access::ReadDecided
            | Access::WriteDecided(_)
            | Access::Cell => false,
        };
        let allowed = allowed && self.lease.is_active();
        if T::DTYPE == self.dtype && allowed { Ok(self.ptr.cast()) } else { Err(self.refuse(T::DTYPE)) }
    }

    #[cold]
    fn refuse(&self, wanted: DType) -> Error {
        let slot = self.slot;
        Error::new(
            ErrorKind::Slot,
            match self.access {
                _ if !self.lease.is_active() => format!("`{slot}` is used after its kernel has finished"),
                _ if wanted != self.dtype => {
                    format!("`{slot}` holds {}, but the kernel asks for {wanted}", self.dtype)
                }
                Access::TakenOver => {
                    format!("`{slot}` shares its memory with an output; the kernel must use `inout`")
                }
                Access::ShapeOnly => {
                    format!("`{slot}` is declared `shape_only`, but the kernel reads its elements")
                }
                Access::ReadRows(_) | Access::WriteRows(_) => {
                    format!("`{slot}` holds rows of a tensor; the kernel must use `rows` or `rows_mut`")
                }
                Access::ReadDecided | Access::WriteDecided(_) => {
                    format!("data decides the shape of `{slot}`; the kernel must use `decide`")
                }
                Access::Cell => format!("`{slot}` holds a tensor array; the kernel must use `array`"),
                Access::Read | Access::Write => {
                    format!("`{slot}` is an input, and kernels write outputs only")
                }
            },
        )
    }

    /// The elements.
    ///
    /// # Errors
    /// Another dtype; an input that shares its memory with an output (see [`inout`](Buf::inout)); an input declared
    /// `shape_only`.
    #[inline]
    pub fn slice<T: Element>(&self) -> Result<&[T]> {
        // SAFETY: the invariant of bound kernels; `Binder::bind` has checked that there is space for `numel` elements
        // of this dtype, on a cache line, in initialised memory; every bit pattern is a `T`.
        Ok(unsafe { std::slice::from_raw_parts(self.typed::<T>(false)?, self.numel) })
    }

    /// The elements of an output, mutably.
    ///
    /// # Errors
    /// Another dtype, or an input.
    #[inline]
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        // SAFETY: as in `slice`; the bytes of a writable `Buf` overlap no other.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.typed::<T>(true)?, self.numel) })
    }

    /// The elements as an array of fixed rank (`Ix2`), or of any rank (`IxDyn`, which costs some 60 ns more). Up to
    /// rank 4, it does not allocate.
    ///
    /// # Errors
    /// As [`slice`](Buf::slice), and a shape of another rank.
    pub fn view<T: Element, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>> {
        let dims = dimension::<D>(&self.dims).ok_or_else(|| self.other_rank::<D>())?;
        ArrayView::from_shape(dims, self.slice()?).map_err(Error::internal)
    }

    /// The elements of an output as an array, mutably: otherwise as [`view`](Buf::view).
    ///
    /// # Errors
    /// As [`slice_mut`](Buf::slice_mut), and a shape of another rank.
    pub fn view_mut<T: Element, D: Dimension>(&mut self) -> Result<ArrayViewMut<'_, T, D>> {
        let dims = dimension::<D>(&self.dims).ok_or_else(|| self.other_rank::<D>())?;
        ArrayViewMut::from_shape(dims, self.slice_mut()?).map_err(Error::internal)
    }

    #[cold]
    fn other_rank<D: Dimension>(&self) -> Error {
        self.wrong(&format!("{} dimensions are needed", D::NDIM.unwrap_or_default()))
    }

    /// For `#[output(inplace = x)]`: one slice if the executor lets them share memory, else two.
    ///
    /// # Errors
    /// As [`slice`](Buf::slice) and [`slice_mut`](Buf::slice_mut).
    pub fn inout<'s, T: Element>(&'s mut self, x: &'s Buf<'_>) -> Result<InOut<'s, T>> {
        match x.access {
            Access::TakenOver => Ok(InOut::Same(self.slice_mut()?)),
            _ => Ok(InOut::Apart(x.slice()?, self.slice_mut()?)),
        }
    }

    /// The rows of a slot that is declared `sparse` and holds a row-sparse tensor.
    ///
    /// # Errors
    /// Another dtype, or a dense tensor.
    pub fn rows<T: Element>(&self) -> Result<Rows<'_, T>> {
        let (numbers, values) = self.row_slices()?;
        Ok(Rows::new(&self.dims, numbers, values))
    }

    /// Checks the row indices of a row-sparse tensor that a kernel has written.
    ///
    /// # Errors
    /// Indices that do not ascend, or are out of range; names both, and the slot.
    pub(crate) fn check_rows(&self) -> Result<()> {
        let numbers = with_dtype!(self.dtype, T => self.row_slices::<T>()?.0);
        check_row_indices(self.dims[0], numbers).map_err(|text| {
            let slot = self.slot;
            Error::new(
                ErrorKind::Data,
                format!("`{slot}`: its kernel wrote {text}; rows ascend, each once, and -1 ends them"),
            )
        })
    }

    /// Row indices, up to the capacity, and the values of as many rows.
    fn row_slices<T: Element>(&self) -> Result<(&[i64], &[T])> {
        let (n, numbers, values) = self.row_parts::<T>(false)?;
        // SAFETY: the invariant of bound kernels; `Binder::bind` has checked that there is space for `n` row indices
        // and, from the next cache line on, for the values of `n` rows of this dtype (`Meta::bytes`).
        Ok(unsafe {
            let values = std::slice::from_raw_parts(values, n * row_len(&self.dims));
            (std::slice::from_raw_parts(numbers, n), values)
        })
    }

    /// Row indices and values of a row-sparse output, mutably, with the number of rows set by its shape rule. Row
    /// indices must ascend; −1 ends the list, if there are fewer. The operator fails if they do not.
    ///
    /// # Errors
    /// Another dtype, an input, or a dense tensor.
    pub fn rows_mut<T: Element>(&mut self) -> Result<(&mut [i64], &mut [T])> {
        let (n, numbers, values) = self.row_parts::<T>(true)?;
        // SAFETY: as in `rows`; the two do not overlap, and the bytes of a writable `Buf` overlap no other.
        Ok(unsafe {
            let values = std::slice::from_raw_parts_mut(values, n * row_len(&self.dims));
            (std::slice::from_raw_parts_mut(numbers, n), values)
        })
    }

    /// Whether it holds a tensor array: [`array`](Buf::array) reads and writes it.
    pub fn is_array(&self) -> bool {
        matches!(self.access, Access::Cell)
    }

    /// The tensor array of a slot that is declared `array`, input or output, and holds one.
    ///
    /// # Errors
    /// A tensor.
    pub fn array(&self) -> Result<&TensorArray> {
        match self.cell.as_deref() {
            Some(ValueCell::Array(array)) => Ok(array),
            _ => Err(self.wrong("a tensor array is needed")),
        }
    }

    pub(crate) fn cell(&self) -> Result<&Arc<ValueCell>> {
        self.cell.as_ref().ok_or_else(|| Error::internal("a tensor in place of step scopes"))
    }

    /// The capacity in rows, and the addresses of row indices and values.
    fn row_parts<T: Element>(&self, write: bool) -> Result<(usize, *mut i64, *mut T)> {
        let n = match self.access {
            _ if T::DTYPE != self.dtype || !self.lease.is_active() => return Err(self.refuse(T::DTYPE)),
            Access::ReadRows(n) if !write => n,
            Access::WriteRows(n) => n,
            Access::ReadRows(_) => return Err(self.wrong("an output is needed")),
            _ => return Err(self.wrong("rows of a tensor are needed")),
        };
        // SAFETY: within the bytes of `Meta::bytes`, for which `Binder::bind` has checked the space.
        let values = unsafe { self.ptr.add(padded(n * size_of::<i64>())) };
        Ok((n, self.ptr.cast(), values.cast()))
    }

    /// The bytes, for any dtype.
    ///
    /// # Errors
    /// As [`slice`](Buf::slice), except for the dtype.
    pub fn bytes(&self) -> Result<&[u8]> {
        match self.access {
            Access::Read | Access::Write if self.lease.is_active() => {
                // SAFETY: as in `slice`.
                Ok(unsafe { std::slice::from_raw_parts(self.ptr, self.byte_len()) })
            }
            _ => Err(self.refuse(self.dtype)),
        }
    }

    /// The bytes of an output, mutably.
    ///
    /// # Errors
    /// An input.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        match self.access {
            Access::Write if self.lease.is_active() => {
                // SAFETY: as in `slice_mut`; any bytes are elements.
                Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr, self.byte_len()) })
            }
            _ => Err(self.refuse(self.dtype)),
        }
    }

    fn byte_len(&self) -> usize {
        self.numel * self.dtype.size()
    }

    /// Copies the elements of `x`, which has the same dtype and number of elements; does nothing if they share memory.
    ///
    /// # Errors
    /// Another dtype or number of elements.
    pub fn copy_from(&mut self, x: &Buf<'_>) -> Result<()> {
        if x.access == Access::TakenOver {
            return Ok(());
        }
        if x.dtype != self.dtype || x.numel != self.numel {
            return Err(x.wrong(&format!("{} elements of {} are needed", self.numel, self.dtype)));
        }
        self.bytes_mut()?.copy_from_slice(x.bytes()?);
        Ok(())
    }
}

/// Dimensions as an ndarray type, if that has this rank.
pub fn dimension<D: Dimension>(dims: &[usize]) -> Option<D> {
    if D::NDIM.is_some_and(|rank| rank != dims.len()) {
        return None;
    }
    let mut dimension = D::zeros(dims.len());
    dimension.slice_mut().copy_from_slice(dims);
    Some(dimension)
}
