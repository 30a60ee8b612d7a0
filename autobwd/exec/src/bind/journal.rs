//! Rollback of failed steps: a journal of overwritten values of the scope.

use crate::bind::copy::CopyKernel;
use autobwd_core::{
    __private::{Memory, Place},
    Cx, Kernel, Meta, Result,
    tensor::padded,
};

/// Copies of the values of the scope that a step overwrites ahead of an operator that may fail.
///
/// Each run copies them. In training programs these are few numbers, such as running statistics and counters:
/// parameters are updated after the operators that may fail.
#[derive(Default)]
pub(crate) struct Journal {
    saves: Vec<CopyKernel>,
    restores: Vec<CopyKernel>,
    memory: Memory,
}

impl Journal {
    /// A journal of the values at these places.
    pub(crate) fn new(values: &[(Place, Meta)]) -> Result<Journal> {
        if values.is_empty() {
            return Ok(Journal::default());
        }
        let sizes: Vec<usize> = values.iter().map(|(_, meta)| meta.bytes().unwrap_or(0)).collect();
        let memory = Memory::zeroed(sizes.iter().map(|bytes| padded(*bytes)).fold(0, usize::saturating_add))?;
        let (mut saves, mut restores, mut at) = (vec![], vec![], 0);
        for ((place, meta), bytes) in values.iter().zip(sizes) {
            // SAFETY: the journal owns the memory and drops the kernels that use it first. They run one at a time, since
            // `begin` and the rollback borrow the journal mutably.
            #[allow(unsafe_code)]
            let copy = unsafe { memory.place(at, bytes) }?;
            saves.push(CopyKernel::new(meta, *place, copy)?);
            restores.push(CopyKernel::new(meta, copy, *place)?);
            at += padded(bytes);
        }
        Ok(Journal { saves, restores, memory })
    }

    /// Bytes of tensor memory in use.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Saves the values at the start of a step.
    pub(crate) fn begin<'a>(&'a mut self, cx: &'a Cx) -> Result<Rollback<'a>> {
        self.saves.iter_mut().try_for_each(|copy| copy.run(cx))?;
        Ok(Rollback { journal: self, cx })
    }
}

/// Restores the saved values if it is dropped, by an error or a panic, before the step is committed.
pub(crate) struct Rollback<'a> {
    journal: &'a mut Journal,
    cx: &'a Cx,
}

impl Rollback<'_> {
    /// Ends the step and keeps its writes.
    pub(crate) fn commit(self) {
        std::mem::forget(self);
    }
}
impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        // Copies between places of equal size do not fail.
        let _ = self.journal.restores.iter_mut().try_for_each(|copy| copy.run(self.cx));
    }
}
