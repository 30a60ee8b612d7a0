//! Lines that a thread has freed and will want again: a tape of small values is made of nothing else.

use std::{
    cell::Cell,
    ptr::{self, NonNull},
};

use super::{LINE, Memory};

/// Each begins with the address of the next.
struct FreeLines {
    first: Cell<*mut u8>,
    count: Cell<usize>,
}

/// How many a thread keeps.
const MOST: usize = 1 << 12;

thread_local! {
    static FREE: FreeLines = const { FreeLines { first: Cell::new(ptr::null_mut()), count: Cell::new(0) } };
}

/// A free line, with whatever it holds.
#[inline]
pub(super) fn take() -> Option<Memory> {
    FREE.try_with(FreeLines::take).ok().flatten()
}

/// Keeps a line that is not used any more, if there is room.
#[inline]
pub(super) fn keep(line: &mut Memory) -> bool {
    line.len == LINE && FREE.try_with(|free| free.keep(line)).unwrap_or(false)
}

impl FreeLines {
    #[inline]
    fn take(&self) -> Option<Memory> {
        let line = NonNull::new(self.first.get())?;
        // SAFETY: `keep` has written the address, and nobody else has the line. The address does not stay behind: as a
        // number it may be one that is slow to compute with.
        self.first.set(unsafe { line.cast::<*mut u8>().replace(ptr::null_mut()) });
        self.count.set(self.count.get() - 1);
        Some(Memory { ptr: line, len: LINE })
    }

    #[inline]
    fn keep(&self, line: &mut Memory) -> bool {
        let room = self.count.get() < MOST;
        if room {
            // SAFETY: a line has room for an address, and is aligned for one; its owner is done with it.
            unsafe { line.ptr.cast::<*mut u8>().write(self.first.get()) };
            self.first.set(line.ptr.as_ptr());
            self.count.set(self.count.get() + 1);
        }
        room
    }
}
impl Drop for FreeLines {
    fn drop(&mut self) {
        // They do not come back: nobody reaches this list any more.
        while self.take().is_some() {}
    }
}
