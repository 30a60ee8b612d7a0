//! A thread-local pool of free buffers of one cache line, for the many small values of a tape.

use std::{
    cell::Cell,
    ptr::{self, NonNull},
};

use super::{LINE, Memory};

/// A linked list: each free line begins with the address of the next.
struct FreeLines {
    first: Cell<*mut u8>,
    count: Cell<usize>,
}

/// The limit of free lines per thread.
const MOST: usize = 1 << 12;

thread_local! {
    static FREE: FreeLines = const { FreeLines { first: Cell::new(ptr::null_mut()), count: Cell::new(0) } };
}

/// A free line, with arbitrary content.
#[inline]
pub(super) fn take() -> Option<Memory> {
    FREE.try_with(FreeLines::take).ok().flatten()
}

/// Adds an unused line to the pool, unless it is full.
#[inline]
pub(super) fn keep(line: &mut Memory) -> bool {
    line.len == LINE && FREE.try_with(|free| free.keep(line)).unwrap_or(false)
}

impl FreeLines {
    #[inline]
    fn take(&self) -> Option<Memory> {
        let line = NonNull::new(self.first.get())?;
        // SAFETY: `keep` has written the address, and the pool owns the line. The address is overwritten: read as a
        // floating point number it may be subnormal, which is slow.
        self.first.set(unsafe { line.cast::<*mut u8>().replace(ptr::null_mut()) });
        self.count.set(self.count.get() - 1);
        Some(Memory { ptr: line, len: LINE })
    }

    #[inline]
    fn keep(&self, line: &mut Memory) -> bool {
        let room = self.count.get() < MOST;
        if room {
            // SAFETY: a line has space for an address, and is aligned for one; its owner no longer uses it.
            unsafe { line.ptr.cast::<*mut u8>().write(self.first.get()) };
            self.first.set(line.ptr.as_ptr());
            self.count.set(self.count.get() + 1);
        }
        room
    }
}
impl Drop for FreeLines {
    fn drop(&mut self) {
        // Dropped lines do not return to this list, which is no longer reachable.
        while self.take().is_some() {}
    }
}
