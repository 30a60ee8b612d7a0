//! Memory in whole cache lines, and places in it.
#![allow(unsafe_code)]

mod buf;
mod freed;
mod huge_pages;
mod lines;
mod vector;

use std::{
    alloc,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut, Range},
    ptr::NonNull,
};

pub use self::buf::{
    Buf, InOut, Lease,
    binder::{AccessMode, Binder},
    dimension,
};
use self::buf::{decided::decided_shape, row_len};
pub use self::freed::return_freed_memory;
pub(super) use self::huge_pages::prefer_huge_pages;
pub(super) use self::vector::Vector;
use super::{Dim, Element, Meta, Rows, Shape};
use crate::{Error, ErrorKind, Result};

/// The size of a cache line in bytes. Every buffer is aligned and padded to it, so that block functions need no tails.
pub const LINE: usize = 64;

/// Rounds bytes up to whole cache lines, at least one.
pub fn padded(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(LINE)
}

/// The bytes of elements.
pub fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are numbers without padding, and the bytes are borrowed like them.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of elements, mutably: every pattern is an element.
pub fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; every pattern is a `T` (the promise of `Element`).
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// Owned initialised memory at a fixed address, aligned to a cache line.
#[derive(Debug)]
pub struct Memory {
    ptr: NonNull<u8>,
    len: usize,
}
// SAFETY: owned plain bytes, which belong to no thread.
unsafe impl Send for Memory {}
// SAFETY: the methods of `&Memory` read. Bound kernels write through places while the owner of the memory is borrowed
// mutably (see the top of this file).
unsafe impl Sync for Memory {}

impl Memory {
    /// # Errors
    /// Memory runs out.
    pub fn zeroed(bytes: usize) -> Result<Memory> {
        let refuse = || Error::new(ErrorKind::OutOfMemory, format!("cannot allocate {bytes} bytes"));
        Memory::try_zeroed(bytes).ok_or_else(refuse)
    }

    /// As [`zeroed`](Memory::zeroed), without an error, which would allocate.
    pub(crate) fn try_zeroed(bytes: usize) -> Option<Memory> {
        if bytes > isize::MAX as usize - LINE {
            return None;
        }
        let len = padded(bytes);
        let layout = layout(len)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        if layout.align() == LINE {
            return Some(Memory { ptr: start, len });
        }
        let front = LINE - start.addr().get() % LINE;
        // SAFETY: there is a line more than `len` bytes, and `front` is at most a line and at least the alignment, which
        // has room for a number.
        let ptr = unsafe {
            let ptr = start.add(front);
            ptr.cast::<usize>().sub(1).write(front);
            ptr
        };
        Some(Memory { ptr, len })
    }

    /// Memory with arbitrary content.
    ///
    /// # Errors
    /// Memory runs out.
    #[inline]
    pub fn any(bytes: usize) -> Result<Memory> {
        match if bytes <= LINE { lines::take() } else { None } {
            Some(line) => Ok(line),
            None => Memory::zeroed(bytes),
        }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its start, if it has this many bytes.
    #[inline]
    pub(crate) fn start(&self, bytes: usize) -> Result<Place> {
        if bytes > self.len {
            return Err(outside(0, bytes));
        }
        Ok(Place { ptr: self.ptr.as_ptr(), len: bytes })
    }

    /// A place inside, of this many bytes rounded up to cache lines.
    ///
    /// # Errors
    /// It is not aligned to a cache line, or out of bounds.
    ///
    /// # Safety
    /// A place can be bound to kernels without a lifetime. Each buffer and kernel bound to it is used only while this
    /// memory is alive, and while nothing else writes the bytes or, if it writes them, uses them. Only buffers of one
    /// [`Binder`], which checks them against each other, and operators of one fused kernel may be used together.
    #[inline]
    pub unsafe fn place(&self, at: usize, bytes: usize) -> Result<Place> {
        self.place_inside(at, bytes)
    }

    #[inline]
    pub(crate) fn place_inside(&self, at: usize, bytes: usize) -> Result<Place> {
        let len = bytes.max(1).checked_next_multiple_of(LINE);
        let end = len.and_then(|len| at.checked_add(len));
        match (len, end) {
            (Some(len), Some(end)) if at.is_multiple_of(LINE) && end <= self.len => {
                // SAFETY: `at` is within the allocation, as just checked.
                Ok(Place { ptr: unsafe { self.ptr.add(at) }.as_ptr(), len })
            }
            _ => Err(outside(at, bytes)),
        }
    }

    /// A part of it as memory of its own, which is not freed: the arena of a sub-block inside the arena of its caller.
    ///
    /// # Errors
    /// As [`place`](Memory::place).
    ///
    /// # Safety
    /// As [`place`](Memory::place): the part is used only while this memory is alive, and while nothing else uses its
    /// bytes.
    pub unsafe fn lend(&self, at: usize, bytes: usize) -> Result<Arena> {
        let Place { ptr, len } = self.place_inside(at, bytes)?;
        let ptr = NonNull::new(ptr).ok_or_else(|| outside(at, bytes))?;
        Ok(Arena::Lent(ManuallyDrop::new(Memory { ptr, len })))
    }

    /// The first `n` elements from byte `at` on.
    pub fn slice<T: Element>(&self, at: usize, n: usize) -> &[T] {
        self.assert_within::<T>(at, n);
        // SAFETY: within bounds and aligned (just asserted, and memory starts on a cache line), initialised since
        // `zeroed`, every pattern is a `T`; a concurrent write would have to borrow the owner mutably.
        unsafe { std::slice::from_raw_parts(self.ptr.add(at).cast().as_ptr(), n) }
    }

    /// The `n` elements at an offset in bytes, to be written.
    pub fn slice_mut<T: Element>(&mut self, at: usize, n: usize) -> &mut [T] {
        self.assert_within::<T>(at, n);
        // SAFETY: as in `slice`, and `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(at).cast().as_ptr(), n) }
    }

    /// The first `n` elements of one type, and the first `m` of another type from byte `at` on, which is behind them.
    pub fn split_mut<T: Element, U: Element>(
        &mut self,
        n: usize,
        at: usize,
        m: usize,
    ) -> (&mut [T], &mut [U]) {
        self.assert_within::<T>(0, n);
        self.assert_within::<U>(at, m);
        assert!(n * size_of::<T>() <= at, "autobwd bug: memory");
        // SAFETY: as in `slice_mut`; the parts do not overlap.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.ptr.cast().as_ptr(), n),
                std::slice::from_raw_parts_mut(self.ptr.add(at).cast().as_ptr(), m),
            )
        }
    }

    /// The rows of a row-sparse value at byte `at`, with every dimension known.
    pub fn rows<T: Element>(&self, at: usize, meta: &Meta) -> Rows<'_, T> {
        let dims = meta.dims.known().unwrap_or_default();
        let n = meta.rows.and_then(Dim::get).unwrap_or(0);
        let values = at + padded(n * size_of::<i64>());
        Rows::new(&dims, self.slice(at, n), self.slice(values, n * row_len(&dims)))
    }

    /// The shape that data has decided, of a tensor at an offset.
    pub(super) fn decided_dims(&self, at: usize, meta: &Meta) -> Result<Shape> {
        let header = self.slice(at, meta.rank());
        decided_shape(header, meta.dims.iter().map(|dim| dim.bound()))
            .ok_or_else(|| meta.wrong("a shape that its kernel has decided is needed"))
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
    /// Empty memory.
    fn default() -> Memory {
        #[repr(align(64))]
        struct Line;
        const { assert!(align_of::<Line>() == LINE) }
        Memory { ptr: NonNull::<Line>::dangling().cast(), len: 0 }
    }
}
impl Drop for Memory {
    #[inline]
    fn drop(&mut self) {
        if !lines::keep(self) && self.len > 0 {
            let Some(layout) = layout(self.len) else { return };
            // SAFETY: allocated in `try_zeroed` with this layout, since the length is not 0; if it is aligned to less than
            // a line, the number of bytes in front is in the word before.
            unsafe {
                let front = if layout.align() == LINE { 0 } else { self.ptr.cast::<usize>().sub(1).read() };
                alloc::dealloc(self.ptr.sub(front).as_ptr(), layout);
            }
        }
    }
}

/// The memory of a bound block.
#[derive(Debug)]
pub enum Arena {
    /// Its own.
    Own(Memory),
    /// A part of the arena of another block, which runs this one.
    Lent(ManuallyDrop<Memory>),
}
impl Deref for Arena {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        match self {
            Arena::Own(memory) => memory,
            Arena::Lent(memory) => memory,
        }
    }
}
impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut Memory {
        match self {
            Arena::Own(memory) => memory,
            Arena::Lent(memory) => memory,
        }
    }
}

/// From this size on, the system gives pages of zeros when they are first used, if it is not asked for more than its own
/// alignment: a plan may be for more memory than it takes.
const LAZY: usize = 1 << 20;

/// The allocation of memory of this length, which is padded. A large one is aligned to a word pair, with a line more.
fn layout(len: usize) -> Option<alloc::Layout> {
    match len < LAZY {
        true => alloc::Layout::from_size_align(len, LINE).ok(),
        false => alloc::Layout::from_size_align(len.checked_add(LINE)?, 2 * size_of::<usize>()).ok(),
    }
}

#[cold]
fn outside(at: usize, bytes: usize) -> Error {
    Error::internal(format!("a buffer at {at} of {bytes} bytes outside of its memory"))
}

/// Some bytes of a [`Memory`], from a cache line on. Only [`Memory::place`] creates one, whose caller promises that they
/// are used soundly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    ptr: *mut u8,
    len: usize,
}
// SAFETY: an address and a number; using the bytes takes unsafe code, which has its own justification.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    #[inline]
    pub(crate) fn ptr(self) -> *mut u8 {
        self.ptr
    }

    /// The addresses of the first bytes.
    ///
    /// # Errors
    /// There are not enough.
    pub(crate) fn range(self, bytes: usize) -> Result<Range<usize>> {
        if bytes > self.len {
            let text = format!("{bytes} bytes are needed in a place of {}", self.len);
            return Err(Error::internal(text));
        }
        Ok(self.ptr.addr()..self.ptr.addr() + bytes)
    }
}
