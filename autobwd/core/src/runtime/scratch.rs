//! Scratch memory, which a kernel uses while it runs.
//!
//! This memory is for scratch whose size a kernel computes. Scratch that an operator declares (`#[scratch(like = x)]`)
//! is a value of the plan without readers, in the arena while the operator runs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Result, tensor::Memory};

/// One buffer, lent to one kernel at a time.
#[derive(Default)]
pub(super) struct Scratch(Mutex<ScratchState>);

#[derive(Default)]
struct ScratchState {
    held: Option<Memory>,
    watched: Option<ScratchUse>,
}

/// The use of scratch memory by a kernel, for the check of operators.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScratchUse {
    /// The initial value of every lent byte.
    fill: u8,
    lent: usize,
    /// The most bytes that were lent at a time.
    pub most: usize,
    /// Whether a kernel requested more than was available.
    pub exceeded: bool,
}

impl Scratch {
    /// Limits the memory to `held`, initialised with `fill` whenever it is lent, and watches requests.
    pub(super) fn watch(&self, held: Option<Memory>, fill: u8) {
        *self.state() = ScratchState { held, watched: Some(ScratchUse { fill, ..ScratchUse::default() }) };
    }

    /// The watched requests, if any.
    pub(super) fn watched(&self) -> ScratchUse {
        self.state().watched.unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, ScratchState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the memory, or allocates some if it is too small or lent already.
    pub(super) fn take(&self, bytes: usize) -> Result<Memory> {
        let mut state = self.state();
        let held = state.held.take().filter(|memory| memory.len() >= bytes);
        if let Some(watched) = &mut state.watched {
            watched.lent = watched.lent.saturating_add(bytes);
            watched.most = watched.most.max(watched.lent);
            watched.exceeded |= held.is_none();
            let mut memory = held.map_or_else(|| Memory::zeroed(bytes), Ok)?;
            let len = memory.len();
            memory.slice_mut(0, len).fill(watched.fill);
            return Ok(memory);
        }
        drop(state);
        held.map_or_else(|| Memory::zeroed(bytes), Ok)
    }

    pub(super) fn return_memory(&self, memory: Memory, bytes: usize) {
        let mut state = self.state();
        if let Some(watched) = &mut state.watched {
            watched.lent = watched.lent.saturating_sub(bytes);
        }
        if state.held.as_ref().is_none_or(|held| held.len() < memory.len()) {
            state.held = Some(memory);
        }
    }
}
