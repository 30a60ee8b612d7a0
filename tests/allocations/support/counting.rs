//! An allocator that counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

/// Counts allocations, separately for the matrix product library, which alone requests more than 64-byte alignment.
struct Counting;
pub(crate) static OWN: AtomicUsize = AtomicUsize::new(0);
pub(crate) static PRODUCTS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of tensor memory, which alone has 64-byte alignment, or 16-byte alignment, a line more, and at least 1 MB.
pub(crate) static TENSORS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of all live allocations.
pub(crate) static HELD: AtomicUsize = AtomicUsize::new(0);
/// The most that they were since it was set.
pub(crate) static PEAK: AtomicUsize = AtomicUsize::new(0);

pub(crate) const LINE: usize = 64;

fn hold(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: forwards everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let counter = if layout.align() > LINE { &PRODUCTS } else { &OWN };
        counter.fetch_add(1, Ordering::Relaxed);
        hold(layout.size());
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        OWN.fetch_add(1, Ordering::Relaxed);
        match layout.align() {
            LINE => _ = TENSORS.fetch_add(layout.size(), Ordering::Relaxed),
            16 if layout.size() > 1 << 20 => _ = TENSORS.fetch_add(layout.size() - LINE, Ordering::Relaxed),
            _ => {}
        }
        hold(layout.size());
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
