//! A counting allocator, to check that kernels allocate no heap memory.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    hint::black_box,
};

use autobwd_core::tensor::LINE;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a count of allocations per thread. [`check_all!`](crate::check_all) installs it in its
/// test binary; under another allocator, allocations of kernels are not checked.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: autobwd::check::CountingAllocator = autobwd::check::CountingAllocator;
/// ```
#[derive(Debug)]
pub struct CountingAllocator;

impl CountingAllocator {
    fn note(layout: Layout) {
        // Only the matrix product library uses larger alignments, and it keeps its memory.
        if layout.align() <= LINE {
            // A thread that ends may have no counter any more.
            _ = COUNT.try_with(|count| count.set(count.get() + 1));
        }
    }
}

// SAFETY: forwards every call to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CountingAllocator::note(layout);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CountingAllocator::note(layout);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CountingAllocator::note(layout);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The number of allocations of this thread; always 0 unless a [`CountingAllocator`] is installed.
pub(super) fn count() -> u64 {
    COUNT.with(Cell::get)
}

/// Whether a [`CountingAllocator`] is installed.
pub(super) fn are_counted() -> bool {
    let before = count();
    drop(black_box(Box::new(0_u8)));
    count() > before
}
