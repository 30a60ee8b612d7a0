//! The kernel of an operator that observers watch.

use autobwd_core::{Cx, Kernel, Result};

use crate::observer::{ObservedOp, Observers};

/// A kernel, with calls of observers before and after it.
pub(crate) struct ObservedKernel {
    pub(crate) kernel: Box<dyn Kernel + Send>,
    pub(crate) op: ObservedOp,
    pub(crate) observers: Observers,
}

impl Kernel for ObservedKernel {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.observers.iter().try_for_each(|observer| observer.before(&self.op))?;
        self.kernel.run(cx)?;
        self.observers.iter().try_for_each(|observer| observer.after(&self.op))
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        self.kernel.scratch_bytes(workers)
    }
}
