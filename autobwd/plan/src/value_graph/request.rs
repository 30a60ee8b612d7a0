//! What a plan is asked for.

use std::{fmt, sync::Arc};

use autobwd_core::{BlockId, Meta, Var};

use super::{ValueSource, step_state::StepStateLayout};

/// A planning request: shapes of feeds and of the scope, fetches, and options.
pub struct PlanRequest<'a> {
    pub block: BlockId,
    /// Operators before this one have run already.
    pub first: usize,
    /// Values available at the start, in a sub-block or after these operators.
    pub initial: &'a [InitialValue],
    /// Variables required at the end, and step scopes that must be filled.
    pub ends: &'a [Var],
    pub feeds: &'a [(&'a str, Meta)],
    pub scope: &'a dyn Fn(&str) -> Option<Meta>,
    pub fetches: &'a [&'a str],
    /// Disables fusion and in-place operators: every input and output can be inspected after an operator has run.
    pub unoptimized: bool,
    /// Leaves the operators as they are, in no groups and without memory: for compilers that do all of this themselves.
    pub graph_only: bool,
}
impl fmt::Debug for PlanRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("block", &self.block)
            .field("feeds", &self.feeds)
            .finish_non_exhaustive()
    }
}

impl<'a> PlanRequest<'a> {
    /// A request for the root block.
    pub fn new(
        feeds: &'a [(&'a str, Meta)],
        scope: &'a dyn Fn(&str) -> Option<Meta>,
        fetches: &'a [&'a str],
        unoptimized: bool,
    ) -> PlanRequest<'a> {
        PlanRequest {
            block: BlockId::ROOT,
            first: 0,
            initial: &[],
            ends: &[],
            feeds,
            scope,
            fetches,
            unoptimized,
            graph_only: false,
        }
    }

    /// A request for the root block's value graph alone.
    pub fn graph_only(
        feeds: &'a [(&'a str, Meta)],
        scope: &'a dyn Fn(&str) -> Option<Meta>,
        fetches: &'a [&'a str],
    ) -> PlanRequest<'a> {
        PlanRequest { graph_only: true, ..PlanRequest::new(feeds, scope, fetches, true) }
    }
}

/// A value available at the start.
#[derive(Clone, Debug)]
pub struct InitialValue {
    pub var: Var,
    pub meta: Meta,
    /// `Feed` or `Outer`.
    pub source: ValueSource,
    /// The layout of step scopes.
    pub layout: Option<Arc<StepStateLayout>>,
}
