//! Step state: the values that every step of a sub-block saves for the backward pass, and their layout in memory.

use std::sync::Arc;

use autobwd_core::{BlockCall, Meta, Var};

use super::ValueId;

/// A variable of saved step state.
#[derive(Clone, Copy, Debug)]
pub struct StateVar {
    pub var: Var,
    /// Whether its elements are needed, not only its shape.
    pub elements: bool,
}

/// A value of a step's plan with its offset in saved step state.
#[derive(Clone, Copy, Debug)]
pub struct SavedValue {
    pub value: ValueId,
    pub offset: usize,
}

/// The layout of the step state saved for the backward pass.
#[derive(Debug, Default)]
pub struct StepStateLayout {
    pub entries: Vec<StepStateField>,
    /// Step scopes of inner operators; their layout may be known only at run time.
    pub nested: Vec<(Var, Option<Arc<StepStateLayout>>)>,
    /// The steps to rerun, if only every n-th step is saved; the state is then the inputs of the saved steps.
    pub(super) rerun: Option<RerunSteps>,
}

/// The steps of a sub-block, if every n-th step is saved.
#[derive(Debug)]
pub(super) struct RerunSteps {
    pub(super) call: BlockCall,
    /// Number of steps per saved step.
    pub(super) save_interval: usize,
    /// The number of steps, if known.
    pub(super) count: Option<usize>,
}

/// A value in saved step state.
#[derive(Debug, PartialEq)]
pub struct StepStateField {
    pub var: Var,
    pub meta: Meta,
    /// `None` if only its shape is needed.
    pub offset: Option<usize>,
}

impl StepStateLayout {
    /// The entries of these variables, with offsets of those whose elements are read.
    pub fn entries_of(&self, reads: &[StateVar]) -> impl Iterator<Item = (&StepStateField, Option<usize>)> {
        let find = |read: &StateVar| {
            let entry = self.entries.iter().find(|entry| entry.var == read.var)?;
            Some((entry, entry.offset.filter(|_| read.elements)))
        };
        reads.iter().filter_map(find)
    }

    /// Whether both have the same layout.
    pub fn is(&self, other: &StepStateLayout) -> bool {
        let nested = |layout: &StepStateLayout| {
            let id = |(var, layout): &(Var, Option<Arc<StepStateLayout>>)| {
                (*var, layout.as_ref().map(Arc::as_ptr))
            };
            layout.nested.iter().map(id).collect::<Vec<_>>()
        };
        let constants = |layout: &StepStateLayout| {
            let bits = |entry: &StepStateField| {
                Some(entry.meta.constant()?.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
            };
            layout.entries.iter().map(bits).collect::<Vec<_>>()
        };
        self.entries == other.entries && nested(self) == nested(other) && constants(self) == constants(other)
    }
}
