//! What a plan is asked for.

use std::{fmt, sync::Arc};

use autobwd_core::{BlockId, Meta, Var};

use super::Source;
use crate::graph::control::Record;

/// A planning request: shapes of feeds and of the scope, fetches, and options.
pub struct Request<'a> {
    pub block: BlockId,
    /// Operators before this one have run already.
    pub first: usize,
    /// Values available at the start, in a sub-block or after these operators.
    pub given: &'a [Given],
    /// Variables required at the end, and step scopes that must be filled.
    pub ends: &'a [Var],
    pub feeds: &'a [(&'a str, Meta)],
    pub kept: &'a dyn Fn(&str) -> Option<Meta>,
    pub fetches: &'a [&'a str],
    /// Disables fusion and in-place operators: every input and output can be inspected after an operator has run.
    pub apart: bool,
}
impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("block", &self.block)
            .field("feeds", &self.feeds)
            .finish_non_exhaustive()
    }
}

impl<'a> Request<'a> {
    /// A request for the root block.
    pub fn new(
        feeds: &'a [(&'a str, Meta)],
        kept: &'a dyn Fn(&str) -> Option<Meta>,
        fetches: &'a [&'a str],
        apart: bool,
    ) -> Request<'a> {
        Request { block: BlockId::ROOT, first: 0, given: &[], ends: &[], feeds, kept, fetches, apart }
    }
}

/// A value available at the start.
#[derive(Clone, Debug)]
pub struct Given {
    pub var: Var,
    pub meta: Meta,
    /// `Feed` or `Outer`.
    pub source: Source,
    /// The layout of step scopes.
    pub record: Option<Arc<Record>>,
}
