//! An allocator with a limit on the memory of a fuzzer process.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Maximum of live bytes. The matrix product library allocates twice the size of the largest cache for each thread,
/// which may be a gigabyte.
const LIMIT: usize = 1 << 32;
/// Large allocations may fill half of it only: their callers can handle failure.
const LARGE: usize = 1 << 16;

/// Live bytes.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, up to a limit.
pub(crate) struct Limited;

fn take(bytes: usize) -> bool {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed);
    let fits =
        held.checked_add(bytes).is_some_and(|held| held <= if bytes > LARGE { LIMIT / 2 } else { LIMIT });
    if !fits {
        HELD.fetch_sub(bytes, Ordering::Relaxed);
    }
    fits
}

// SAFETY: forwards to the system's allocator, or reports that memory is exhausted.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        if take(layout.size()) { unsafe { System.alloc(layout) } } else { ptr::null_mut() }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        if take(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { ptr::null_mut() }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}
