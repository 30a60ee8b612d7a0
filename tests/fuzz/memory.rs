//! An allocator that gives no more than a process of the fuzzer may have.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

/// The most bytes that are held at a time. The library for products takes twice the size of the largest cache for each
/// thread, which may be a gigabyte.
const LIMIT: usize = 1 << 32;
/// Larger pieces may fill no more than half of it: who asks for them can be told that there is no memory.
const LARGE: usize = 1 << 16;

/// Bytes that are held.
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

// SAFETY: passes on to the system's allocator, or says that there is no memory.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        if take(layout.size()) { unsafe { System.alloc(layout) } } else { ptr::null_mut() }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        if take(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { ptr::null_mut() }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}
