//! Lending of scratch memory to kernels.

use super::{Cx, scratch::ScratchUse};
use crate::{
    Element, Result,
    tensor::{Memory, padded},
};

impl Cx {
    /// Lends memory for `len` elements of arbitrary value while `work` runs. A kernel declares its scratch memory in
    /// [`Kernel::scratch_bytes`](crate::Kernel::scratch_bytes), so that it is allocated before the first run.
    ///
    /// # Errors
    /// Those of `work`; memory runs out, if a kernel requests more than it declared.
    pub fn scratch<T: Element, R>(&self, len: usize, work: impl FnOnce(&mut [T]) -> Result<R>) -> Result<R> {
        if len == 0 {
            return work(&mut []);
        }
        let bytes = len.saturating_mul(size_of::<T>());
        let mut memory = self.scratch.take(bytes)?;
        let result = work(memory.slice_mut(0, len));
        self.scratch.return_memory(memory, bytes);
        result
    }

    /// As [`scratch`](Cx::scratch), for elements of two types; [`scratch_pair_bytes`](Cx::scratch_pair_bytes) says
    /// how many bytes they take.
    ///
    /// # Errors
    /// As [`scratch`](Cx::scratch).
    pub fn scratch_pair<T: Element, U: Element, R>(
        &self,
        (n, m): (usize, usize),
        work: impl FnOnce(&mut [T], &mut [U]) -> Result<R>,
    ) -> Result<R> {
        let bytes = Cx::scratch_pair_bytes::<T, U>(n, m);
        if bytes == 0 {
            return work(&mut [], &mut []);
        }
        let mut memory = self.scratch.take(bytes)?;
        let (first, second) = memory.split_mut(n, whole_lines::<T>(n), m);
        let result = work(first, second);
        self.scratch.return_memory(memory, bytes);
        result
    }

    /// The bytes of `n` elements of one type and `m` of another in [`scratch_pair`](Cx::scratch_pair).
    pub fn scratch_pair_bytes<T, U>(n: usize, m: usize) -> usize {
        whole_lines::<T>(n).saturating_add(m.saturating_mul(size_of::<U>()))
    }

    /// Allocates enough memory to lend this many bytes, and returns the number of allocated bytes.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        self.scratch.return_memory(self.scratch.take(bytes)?, bytes);
        Ok(padded(bytes))
    }

    /// Limits the memory to this many bytes, initialised with `fill` whenever they are lent, and watches requests.
    pub(crate) fn watch_scratch(&self, bytes: usize, fill: u8) -> Result<()> {
        let held = if bytes == 0 { None } else { Some(Memory::zeroed(bytes)?) };
        self.scratch.watch(held, fill);
        Ok(())
    }

    /// The watched requests, if any.
    pub(crate) fn watched_scratch(&self) -> ScratchUse {
        self.scratch.watched()
    }
}

/// The bytes of the cache lines that `n` elements fill.
fn whole_lines<T>(n: usize) -> usize {
    let bytes = n.saturating_mul(size_of::<T>());
    if bytes == 0 { 0 } else { bytes.checked_next_multiple_of(padded(1)).unwrap_or(usize::MAX) }
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

    #[test]
    fn requested_memory_is_watched() -> Result<()> {
        let cx = Cx::new(1);
        cx.scratch::<f32, _>(1000, |_| Ok(()))?;
        for (len, inner, most, exceeded) in
            [(10, 0, 40, false), (16, 0, 64, false), (17, 0, 68, true), (8, 8, 64, true)]
        {
            cx.watch_scratch(64, 0xff)?;
            cx.scratch::<f32, _>(len, |outer| {
                assert!(outer.iter().all(|x| x.is_nan()));
                outer.fill(0.0);
                cx.scratch::<f32, _>(inner, |inner| {
                    assert!(inner.iter().all(|x| x.is_nan()));
                    Ok(())
                })
            })?;
            let watched = cx.watched_scratch();
            assert_eq!((watched.most, watched.exceeded), (most, exceeded), "{len} and {inner}");
        }
        Ok(())
    }
}
