//! Kernels of one or several fused kernels (horizontal fusion), with their chunks distributed over the workers.
#![allow(unsafe_code)]

use super::fused_kernel::{FusedKernel, TouchedMemory};
use crate::{Cx, Error, Kernel, Result, runtime::CHUNK};

/// Fused kernels with disjoint memory, as one kernel.
#[derive(Debug)]
pub struct FusedKernels {
    kernels: Vec<FusedKernel>,
    /// By fused kernel: the end of its range of parts.
    ends: Vec<usize>,
    /// The number of workers above which the work per worker is too small.
    workers: usize,
}

impl FusedKernels {
    /// One instruction of these kernels.
    ///
    /// # Errors
    /// None of the kernels has elements.
    pub fn new(kernels: Vec<FusedKernel>) -> Result<FusedKernels> {
        check_apart(&kernels)?;
        let ends = kernels.iter().scan(0, |end, kernel| {
            *end += kernel.parts();
            Some(*end)
        });
        let ends = ends.collect();
        let workers = kernels.iter().map(FusedKernel::numel).sum::<usize>().div_ceil(CHUNK);
        Ok(FusedKernels { kernels, ends, workers })
    }
}

impl Kernel for FusedKernels {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.kernels.iter_mut().for_each(FusedKernel::begin);
        let FusedKernels { kernels, ends, workers } = &*self;
        let parts = ends.last().copied().unwrap_or(0);
        cx.parts(parts, (*workers).min(cx.threads()), &|part, worker| {
            let at = if kernels.len() == 1 { 0 } else { ends.partition_point(|end| *end <= part) };
            let first = at.checked_sub(1).map_or(0, |before| ends[before]);
            // SAFETY: `Cx::parts` runs each part once, and a worker runs one part at a time; fused kernels are disjoint
            // (`check_apart`).
            unsafe { kernels[at].run_part(part - first, worker) }
        });
        self.kernels.iter_mut().for_each(FusedKernel::finish);
        Ok(())
    }
}

/// Checks the invariant of block functions: written memory is identical, element for element, to other memory of its
/// fused kernel, or disjoint from it.
fn check_apart(kernels: &[FusedKernel]) -> Result<()> {
    let touched = |(i, kernel): (usize, &'_ FusedKernel)| {
        kernel.touched().iter().map(move |t| (i, t.clone())).collect()
    };
    let mut all: Vec<(usize, TouchedMemory)> =
        kernels.iter().enumerate().flat_map::<Vec<_>, _>(touched).collect();
    all.sort_by_key(|(_, touched)| touched.bytes.start);
    // Sorted by start, so memory that overlaps any earlier memory overlaps one that reaches past its start.
    let mut open: Vec<&(usize, TouchedMemory)> = vec![];
    for next in &all {
        open.retain(|(_, other)| other.bytes.end > next.1.bytes.start);
        for other in &open {
            let same = other.0 == next.0 && other.1.bytes == next.1.bytes && other.1.whole && next.1.whole;
            if (other.1.written || next.1.written) && !same {
                return Err(Error::internal("two buffers of a fused kernel partly overlap"));
            }
        }
        open.push(next);
    }
    Ok(())
}
