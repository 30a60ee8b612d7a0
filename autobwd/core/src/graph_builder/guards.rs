//! Guards that restore a setting of a builder, also on a panic.

use std::panic::Location;

use super::Builder;
use crate::BlockId;

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
    /// The builder and the builder of its startup program, with their lines before.
    before: Vec<(Builder, Option<&'static Location<'static>>)>,
}

impl SiteGuard {
    pub(super) fn new(builder: &Builder, line: &'static Location<'static>) -> SiteGuard {
        let builders = [Some(builder), builder.own_startup()].into_iter().flatten();
        let set = |builder: &Builder| {
            let before = builder.set_site(Some(line));
            if before.is_some() {
                builder.set_site(before);
            }
            (builder.clone(), before)
        };
        SiteGuard { before: builders.map(set).collect() }
    }
}

impl Drop for SiteGuard {
    fn drop(&mut self) {
        self.before.iter().for_each(|(builder, before)| _ = builder.set_site(*before));
    }
}

/// Replaces the name scope during its lifetime; made by [`Builder::set_name_scope`].
#[derive(Debug)]
#[must_use = "dropped at the end of the statement, it has no effect"]
pub struct NameScopeGuard {
    builder: Builder,
    before: String,
}

impl NameScopeGuard {
    pub(super) fn new(builder: &Builder, prefix: String) -> NameScopeGuard {
        NameScopeGuard { builder: builder.clone(), before: builder.replace_name_scope(prefix) }
    }
}

impl Drop for NameScopeGuard {
    fn drop(&mut self) {
        self.builder.replace_name_scope(std::mem::take(&mut self.before));
    }
}
