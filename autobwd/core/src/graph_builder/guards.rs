//! Guards that restore a setting of a builder, also on a panic.

use std::{cell::RefCell, panic::Location};

use super::Builder;
use crate::BlockId;

/// A setting that several guards give a value. They may be dropped in any order.
#[derive(Debug)]
pub(super) struct Setting<T>(RefCell<Vec<Option<T>>>);

impl<T> Default for Setting<T> {
    fn default() -> Setting<T> {
        Setting(RefCell::default())
    }
}

impl<T: Clone> Setting<T> {
    /// Adds the value of a guard; returns its place.
    fn add(&self, value: T) -> usize {
        let mut values = self.0.borrow_mut();
        values.push(Some(value));
        values.len() - 1
    }

    fn remove(&self, place: usize) {
        let mut values = self.0.borrow_mut();
        values[place] = None;
        while values.pop_if(|last| last.is_none()).is_some() {}
    }

    /// The value of the oldest guard.
    #[inline]
    pub(super) fn outermost(&self) -> Option<T> {
        self.0.borrow().iter().flatten().next().cloned()
    }

    /// The value of the newest guard.
    pub(super) fn innermost(&self) -> Option<T> {
        self.0.borrow().iter().rev().flatten().next().cloned()
    }
}

/// Appends operators to another block during its lifetime.
pub(super) struct BlockGuard<'a> {
    builder: &'a Builder,
    before: BlockId,
}

impl BlockGuard<'_> {
    pub(super) fn new(builder: &Builder, block: BlockId) -> BlockGuard<'_> {
        BlockGuard { builder, before: builder.set_block(block) }
    }
}

impl Drop for BlockGuard<'_> {
    fn drop(&mut self) {
        self.builder.set_block(self.before);
    }
}

/// Gives operators and failures a source line during its lifetime; made by [`Builder::called_at`].
#[derive(Debug)]
#[must_use = "dropped at the end of the statement, it has no effect"]
pub struct SiteGuard {
    /// The builder and the builder of its startup program, with the places of the line in their settings.
    places: Vec<(Builder, usize)>,
}

impl SiteGuard {
    pub(super) fn new(builder: &Builder, line: &'static Location<'static>) -> SiteGuard {
        let builders = [Some(builder), builder.own_startup()].into_iter().flatten();
        SiteGuard { places: builders.map(|builder| (builder.clone(), builder.sites().add(line))).collect() }
    }
}

impl Drop for SiteGuard {
    fn drop(&mut self) {
        self.places.iter().for_each(|(builder, place)| builder.sites().remove(*place));
    }
}

/// Replaces the name scope during its lifetime; made by [`Builder::set_name_scope`].
#[derive(Debug)]
#[must_use = "dropped at the end of the statement, it has no effect"]
pub struct NameScopeGuard {
    builder: Builder,
    place: usize,
}

impl NameScopeGuard {
    pub(super) fn new(builder: &Builder, prefix: String) -> NameScopeGuard {
        NameScopeGuard { builder: builder.clone(), place: builder.name_scopes().add(prefix) }
    }
}

impl Drop for NameScopeGuard {
    fn drop(&mut self) {
        self.builder.name_scopes().remove(self.place);
    }
}
