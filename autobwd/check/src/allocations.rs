//! Counting heap allocations: a kernel makes none.
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

/// The system's allocator, which counts what each thread allocates. [`check_all!`](crate::check_all) makes it that of its
/// test binary; where another one is at work, allocations of kernels are not checked.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: autobwd::check::CountingAllocator = autobwd::check::CountingAllocator;
/// ```
#[derive(Debug)]
pub struct CountingAllocator;

impl CountingAllocator {
    fn note(layout: Layout) {
        // Larger alignment is that of the matrix product library, which keeps its memory.
        if layout.align() <= LINE {
            // A thread that ends may have no counter any more.
            _ = COUNT.try_with(|count| count.set(count.get() + 1));
        }
    }
}

// SAFETY: passes everything on to the system's allocator; counting allocates nothing.
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

/// How often this thread has allocated; always 0 unless a [`CountingAllocator`] is at work.
pub(super) fn count() -> u64 {
    COUNT.with(Cell::get)
}

/// Whether a [`CountingAllocator`] is at work.
pub(super) fn are_counted() -> bool {
    let before = count();
    drop(black_box(Box::new(0_u8)));
    count() > before
}
