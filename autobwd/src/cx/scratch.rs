//! Memory that a kernel uses while it runs and that nobody sees afterwards.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Cx;
use crate::{
    Element, Result,
    tensor::{Memory, padded},
};

/// One piece of memory, lent to one kernel at a time.
#[derive(Default)]
pub(super) struct Scratch(Mutex<Option<Memory>>);

impl Scratch {
    fn held(&self) -> MutexGuard<'_, Option<Memory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the memory, or allocates some where it is too small or lent already.
    fn take(&self, bytes: usize) -> Result<Memory> {
        let held = self.held().take();
        match held {
            Some(memory) if memory.len() >= bytes => Ok(memory),
            _ => Memory::zeroed(bytes),
        }
    }

    fn give_back(&self, memory: Memory) {
        let mut held = self.held();
        if held.as_ref().is_none_or(|held| held.len() < memory.len()) {
            *held = Some(memory);
        }
    }
}

impl Cx {
    /// Lends memory for `len` elements, whatever they are at first, while `work` runs. A kernel that asks for some says
    /// how much in [`Kernel::scratch_bytes`](crate::Kernel::scratch_bytes), so that it is there before the first run.
    ///
    /// # Errors
    /// Those of `work`; no memory, where more is asked for than was said.
    pub fn scratch<T: Element, R>(&self, len: usize, work: impl FnOnce(&mut [T]) -> Result<R>) -> Result<R> {
        if len == 0 {
            return work(&mut []);
        }
        let mut memory = self.scratch.take(len.saturating_mul(size_of::<T>()))?;
        let result = work(memory.slice_mut(0, len));
        self.scratch.give_back(memory);
        result
    }

    /// Makes sure that there is so much to be lent, and says how many bytes that takes.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        self.scratch.give_back(self.scratch.take(bytes)?);
        Ok(padded(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_lent_again_unless_it_is_too_small_or_lent() -> Result<()> {
        let cx = Cx::new(1);
        let place = |len: usize| cx.scratch::<f32, _>(len, |all| Ok((all.as_ptr().addr(), all.len())));
        cx.reserve(400)?;
        let first = place(100)?;
        assert_eq!((first.1, place(50)?), (100, (first.0, 50)));
        cx.scratch::<f32, _>(10, |outer| {
            let inner = place(10)?.0;
            assert!(!outer.as_ptr_range().contains(&(inner as *const f32)));
            Ok(())
        })?;
        assert_eq!(place(100)?, first);
        assert_eq!(place(1000)?.1, 1000);
        assert!(place(usize::MAX / 8).is_err());
        Ok(())
    }
}
