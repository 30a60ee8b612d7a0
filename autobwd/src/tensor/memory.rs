//! Memory, and the views of it that kernels get.
//!
//! The invariant of a frame, checked by [`Binder::finish`] and trusted by nobody: the bytes of every writable [`Buf`]
//! are disjoint from the bytes of every other `Buf` of the frame, and an input that an output takes over owns no
//! bytes at all. Hence `&Buf -> &[T]` and `&mut Buf -> &mut [T]` are sound, and the borrow checker does the rest.
//! `Buf<'a>`'s lifetime ends when [`Kernel::run`](crate::Kernel::run) returns: a kernel that keeps one does not compile.
#![allow(unsafe_code)]

mod lines;

use std::{alloc, marker::PhantomData, ops::Range, ptr::NonNull, sync::Arc};

use ndarray::{ArrayView, ArrayViewMut, Dimension, IxDyn, ShapeBuilder};

use super::{Cell, DType, Dim, Element, Meta, Rows, Shape, TensorArray};
use crate::{Error, ErrorKind, Result};

/// Every buffer starts on a cache line and is padded to whole ones, so that block functions need no tails.
pub(crate) const LINE: usize = 64;

/// Bytes in whole lines, at least one.
pub(crate) fn padded(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(LINE)
}

/// Owned initialised memory at a fixed address.
pub(crate) struct Memory {
    ptr: NonNull<u8>,
    len: usize,
}
// SAFETY: owned bytes, reached through `&Memory` for reading and `&mut Memory` for writing; places are handed to one
// executor, which is itself `&mut` while it runs.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` only reads.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Errors
    /// There is no such amount of memory.
    pub(crate) fn zeroed(bytes: usize) -> Result<Memory> {
        let refuse = || Error::new(ErrorKind::Data, format!("cannot allocate {bytes} bytes"));
        if bytes > isize::MAX as usize - LINE {
            return Err(refuse());
        }
        let len = padded(bytes);
        let layout = alloc::Layout::from_size_align(len, LINE).map_err(|_| refuse())?;
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc::alloc_zeroed(layout) };
        NonNull::new(ptr).map(|ptr| Memory { ptr, len }).ok_or_else(refuse)
    }

    /// Memory with whatever it holds.
    ///
    /// # Errors
    /// There is no such amount of memory.
    #[inline]
    pub(crate) fn any(bytes: usize) -> Result<Memory> {
        match if bytes <= LINE { lines::take() } else { None } {
            Some(line) => Ok(line),
            None => Memory::zeroed(bytes),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where it starts, if there are so many bytes.
    #[inline]
    pub(crate) fn start(&self, bytes: usize) -> Result<Place> {
        if bytes <= self.len { Ok(Place { ptr: self.ptr.as_ptr() }) } else { Err(outside(0, bytes)) }
    }

    /// A place inside, if it is on a line and within bounds.
    #[inline]
    pub(crate) fn place(&self, at: usize, bytes: usize) -> Result<Place> {
        let end = at.checked_add(padded(bytes)).filter(|end| at.is_multiple_of(LINE) && *end <= self.len);
        if end.is_none() {
            return Err(outside(at, bytes));
        }
        // SAFETY: `at` is within the allocation, as just checked.
        Ok(Place { ptr: unsafe { self.ptr.add(at) }.as_ptr() })
    }

    /// The first `n` elements from byte `at` on.
    pub(crate) fn slice<T: Element>(&self, at: usize, n: usize) -> &[T] {
        self.assert_within::<T>(at, n);
        // SAFETY: within bounds and aligned (just asserted), initialised (zeroed), every pattern is a `T`.
        unsafe { std::slice::from_raw_parts(self.ptr.add(at).cast().as_ptr(), n) }
    }

    pub(crate) fn slice_mut<T: Element>(&mut self, at: usize, n: usize) -> &mut [T] {
        self.assert_within::<T>(at, n);
        // SAFETY: as in `slice`, and `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(at).cast().as_ptr(), n) }
    }

    /// The rows of a sparse value at byte `at`, of which every dimension is known.
    pub(crate) fn rows<T: Element>(&self, at: usize, meta: &Meta) -> Rows<'_, T> {
        let dims = meta.dims.known().unwrap_or_default();
        let n = meta.rows.and_then(Dim::get).unwrap_or(0);
        let values = at + padded(n * size_of::<i64>());
        Rows::new(&dims, self.slice(at, n), self.slice(values, n * row_len(&dims)))
    }

    fn assert_within<T>(&self, at: usize, n: usize) {
        let end = n.checked_mul(size_of::<T>()).and_then(|b| b.checked_add(at));
        assert!(
            end.is_some_and(|end| end <= self.len) && at.is_multiple_of(align_of::<T>()),
            "autobwd bug: memory"
        );
    }
}
impl Default for Memory {
    /// None.
    fn default() -> Memory {
        Memory { ptr: NonNull::dangling(), len: 0 }
    }
}
impl Drop for Memory {
    #[inline]
    fn drop(&mut self) {
        if !lines::keep(self) && self.len > 0 {
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe {
                alloc::dealloc(self.ptr.as_ptr(), alloc::Layout::from_size_align_unchecked(self.len, LINE))
            }
        }
    }
}

#[cold]
fn outside(at: usize, bytes: usize) -> Error {
    Error::internal(format!("a buffer at {at} of {bytes} bytes outside of its memory"))
}

/// An address inside some [`Memory`]; only [`Memory::place`] makes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    ptr: *mut u8,
}
// SAFETY: an address alone; what a `Binder` makes of it is `&mut` while it runs, as its `Memory` is.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    #[inline]
    pub(crate) fn ptr(self) -> *mut u8 {
        self.ptr
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    /// An output has taken this input's memory over.
    TakenOver,
    /// The operator declared that it needs the shape alone.
    ShapeOnly,
    /// There is room for so many rows of a tensor, not for the whole.
    ReadRows(usize),
    WriteRows(usize),
    /// It is no tensor.
    Cell,
}

/// Elements of a row of a tensor.
fn row_len(dims: &[usize]) -> usize {
    dims.iter().skip(1).product()
}

/// What a slot holds while a kernel runs: dtype, shape and memory.
pub struct Buf<'a> {
    ptr: *mut u8,
    dtype: DType,
    dims: Shape,
    numel: usize,
    slot: &'static str,
    access: Access,
    /// What it holds if it is no tensor.
    cell: Option<Arc<Cell>>,
    life: PhantomData<&'a mut [u8]>,
}
// SAFETY: a `Buf` is a reference to bytes that its frame alone may write (see the top of this file).
unsafe impl Send for Buf<'_> {}
// SAFETY: as above; `&Buf` only reads.
unsafe impl Sync for Buf<'_> {}

/// Input and output of an operator that may run in place: one slice when they share memory, two when not.
pub enum InOut<'a, T> {
    /// Holds the input, and is to hold the output.
    Same(&'a mut [T]),
    /// Input and output.
    Apart(&'a [T], &'a mut [T]),
}

impl<'a, T: Copy> InOut<'a, T> {
    /// The output, holding a copy of the input already.
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

    /// Shape; of rows, that of the whole tensor.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements; of rows, that of the whole tensor.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Whether it holds some rows of a tensor instead of the whole: [`rows`](Buf::rows) reads them.
    pub fn is_sparse(&self) -> bool {
        matches!(self.access, Access::ReadRows(_) | Access::WriteRows(_))
    }

    /// Name of the slot.
    pub fn slot(&self) -> &'static str {
        self.slot
    }

    /// The position that a possibly negative axis means; the shape rule has checked that it exists.
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
            | Access::Cell => false,
        };
        if T::DTYPE == self.dtype && allowed { Ok(self.ptr.cast()) } else { Err(self.refuse(T::DTYPE)) }
    }

    #[cold]
    fn refuse(&self, wanted: DType) -> Error {
        let slot = self.slot;
        Error::new(
            ErrorKind::Slot,
            match self.access {
                _ if wanted != self.dtype => {
                    format!("`{slot}` holds {}, the kernel asked for {wanted}", self.dtype)
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
                Access::Cell => format!("`{slot}` holds a list of tensors; the kernel must use `array`"),
                Access::Read | Access::Write => format!("`{slot}` is an input, kernels write outputs only"),
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
        // SAFETY: the frame's invariant; `numel` elements were placed; every bit pattern is a `T`.
        Ok(unsafe { std::slice::from_raw_parts(self.typed::<T>(false)?, self.numel) })
    }

    /// The elements of an output, to be written.
    ///
    /// # Errors
    /// Another dtype, or an input.
    #[inline]
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        // SAFETY: as in `slice`; the bytes of a writable `Buf` meet no other.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.typed::<T>(true)?, self.numel) })
    }

    /// The elements as an array of fixed rank (`Ix2`) or any rank (`IxDyn`, which costs some 60 ns more).
    ///
    /// # Errors
    /// As [`slice`](Buf::slice), and a shape of another rank.
    pub fn view<T: Element, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>> {
        let view = ArrayView::from_shape(IxDyn(&self.dims).f_or_c(), self.slice()?);
        view.and_then(|v| v.into_dimensionality()).map_err(|_| self.wrong("another rank is needed"))
    }

    /// The elements of an output as an array, to be written.
    ///
    /// # Errors
    /// As [`slice_mut`](Buf::slice_mut), and a shape of another rank.
    pub fn view_mut<T: Element, D: Dimension>(&mut self) -> Result<ArrayViewMut<'_, T, D>> {
        let (dims, rank) = (self.dims.clone(), self.wrong("another rank is needed"));
        let view = ArrayViewMut::from_shape(IxDyn(&dims), self.slice_mut()?);
        view.and_then(|v| v.into_dimensionality()).map_err(|_| rank)
    }

    /// For `#[output(inplace = x)]`: one slice when the executor let them share, two when it did not.
    ///
    /// # Errors
    /// As [`slice`](Buf::slice) and [`slice_mut`](Buf::slice_mut).
    pub fn inout<'s, T: Element>(&'s mut self, x: &'s Buf<'_>) -> Result<InOut<'s, T>> {
        match x.access {
            Access::TakenOver => Ok(InOut::Same(self.slice_mut()?)),
            _ => Ok(InOut::Apart(x.slice()?, self.slice_mut()?)),
        }
    }

    /// The rows of a slot that is declared `sparse` and holds some rows of a tensor.
    ///
    /// # Errors
    /// Another dtype, or a whole tensor.
    pub fn rows<T: Element>(&self) -> Result<Rows<'_, T>> {
        let (n, numbers, values) = self.row_parts::<T>(false)?;
        // SAFETY: the frame's invariant; `Meta::bytes` has room for `n` numbers and the values of `n` rows behind them.
        let (numbers, values) = unsafe {
            let values = std::slice::from_raw_parts(values, n * row_len(&self.dims));
            (std::slice::from_raw_parts(numbers, n), values)
        };
        Ok(Rows::new(&self.dims, numbers, values))
    }

    /// Numbers and values of an output's rows, to be written, as many as its shape rule has made room for. Numbers
    /// ascend; the first that does not (−1, say) ends them.
    ///
    /// # Errors
    /// Another dtype, an input, or a whole tensor.
    pub fn rows_mut<T: Element>(&mut self) -> Result<(&mut [i64], &mut [T])> {
        let (n, numbers, values) = self.row_parts::<T>(true)?;
        // SAFETY: as in `rows`; the two do not overlap, and the bytes of a writable `Buf` meet no other.
        Ok(unsafe {
            let values = std::slice::from_raw_parts_mut(values, n * row_len(&self.dims));
            (std::slice::from_raw_parts_mut(numbers, n), values)
        })
    }

    /// Whether it holds a list of tensors instead of one: [`array`](Buf::array) reads and writes it.
    pub fn is_array(&self) -> bool {
        matches!(self.access, Access::Cell)
    }

    /// The list of tensors of a slot that is declared `array`, input or output, and holds one.
    ///
    /// # Errors
    /// A tensor.
    pub fn array(&self) -> Result<&TensorArray> {
        match self.cell.as_deref() {
            Some(Cell::Array(array)) => Ok(array),
            _ => Err(self.wrong("a list of tensors is needed")),
        }
    }

    pub(crate) fn cell(&self) -> Result<&Arc<Cell>> {
        self.cell.as_ref().ok_or_else(|| Error::internal("a tensor in place of step scopes"))
    }

    /// How many rows there is room for, and where their numbers and values are.
    fn row_parts<T: Element>(&self, write: bool) -> Result<(usize, *mut i64, *mut T)> {
        let n = match self.access {
            _ if T::DTYPE != self.dtype => return Err(self.refuse(T::DTYPE)),
            Access::ReadRows(n) if !write => n,
            Access::WriteRows(n) => n,
            Access::ReadRows(_) => return Err(self.wrong("an output is needed")),
            _ => return Err(self.wrong("rows of a tensor are needed")),
        };
        // SAFETY: within the bytes of `Meta::bytes`, which were placed.
        let values = unsafe { self.ptr.add(padded(n * size_of::<i64>())) };
        Ok((n, self.ptr.cast(), values.cast()))
    }

    /// The bytes, whatever the dtype.
    ///
    /// # Errors
    /// As [`slice`](Buf::slice), dtype apart.
    pub fn bytes(&self) -> Result<&[u8]> {
        match self.access {
            Access::Read | Access::Write => {
                // SAFETY: as in `slice`.
                Ok(unsafe { std::slice::from_raw_parts(self.ptr, self.byte_len()) })
            }
            _ => Err(self.refuse(self.dtype)),
        }
    }

    /// The bytes of an output, to be written.
    ///
    /// # Errors
    /// An input.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        match self.access {
            // SAFETY: as in `slice_mut`; any bytes are elements.
            Access::Write => Ok(unsafe { std::slice::from_raw_parts_mut(self.ptr, self.byte_len()) }),
            _ => Err(self.refuse(self.dtype)),
        }
    }

    fn byte_len(&self) -> usize {
        self.numel * self.dtype.size()
    }

    /// Writes the elements of `x`, which has as many of the same dtype; nothing to do when they share memory.
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

/// Row-major is the only layout there is; the name keeps `view` readable.
trait RowMajor: Sized {
    fn f_or_c(self) -> ndarray::StrideShape<IxDyn>;
}
impl RowMajor for IxDyn {
    fn f_or_c(self) -> ndarray::StrideShape<IxDyn> {
        self.set_f(false).into()
    }
}

/// Hands out the [`Buf`]s of one frame and proves the frame's invariant.
#[derive(Default)]
pub(crate) struct Binder {
    taken: Vec<(Range<usize>, bool)>,
}

/// How a frame reaches an input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Read,
    TakenOver,
}

impl Binder {
    pub(crate) fn input<'a>(&mut self, meta: &Meta, at: Place, reach: Reach) -> Result<Buf<'a>> {
        let access = match reach {
            Reach::Read => Access::Read,
            Reach::TakenOver => Access::TakenOver,
        };
        self.bind(meta, at, access)
    }

    /// An input that has no memory: nobody may look at it.
    pub(crate) fn shape_only<'a>(&mut self, meta: &Meta) -> Result<Buf<'a>> {
        self.bind(meta, Place { ptr: std::ptr::null_mut() }, Access::ShapeOnly)
    }

    /// What is no tensor is shared, and locks itself.
    pub(crate) fn cell<'a>(meta: &Meta, cell: Arc<Cell>) -> Buf<'a> {
        Buf {
            ptr: std::ptr::null_mut(),
            dtype: meta.dtype,
            dims: Shape::default(),
            numel: 0,
            slot: meta.slot(),
            access: Access::Cell,
            cell: Some(cell),
            life: PhantomData,
        }
    }

    pub(crate) fn output<'a>(&mut self, meta: &Meta, at: Place) -> Result<Buf<'a>> {
        self.bind(meta, at, Access::Write)
    }

    fn bind<'a>(&mut self, meta: &Meta, at: Place, access: Access) -> Result<Buf<'a>> {
        let (Some(dims), Some(bytes)) = (meta.dims.known(), meta.bytes()) else {
            return Err(Error::internal(format!(
                "`{}` of unknown shape {} was bound",
                meta.slot(),
                meta.dims
            )));
        };
        let access = match (access, meta.rows.and_then(Dim::get)) {
            (Access::Read, Some(n)) => Access::ReadRows(n),
            (Access::Write, Some(n)) => Access::WriteRows(n),
            (access, _) => access,
        };
        let written = matches!(access, Access::Write | Access::WriteRows(_));
        if written || matches!(access, Access::Read | Access::ReadRows(_)) {
            let start = at.ptr as usize;
            self.taken.push((start..start + bytes, written));
        }
        let numel = dims.iter().product();
        let (dtype, slot) = (meta.dtype, meta.slot());
        Ok(Buf { ptr: at.ptr, dtype, dims, numel, slot, access, cell: None, life: PhantomData })
    }

    /// Must be called before the frame runs.
    pub(crate) fn finish(self) -> Result<()> {
        for (i, (a, a_written)) in self.taken.iter().enumerate() {
            for (b, b_written) in &self.taken[..i] {
                if (*a_written || *b_written) && a.start < b.end && b.start < a.end {
                    return Err(Error::internal("a written buffer overlaps another one of its operator"));
                }
            }
        }
        Ok(())
    }
}
