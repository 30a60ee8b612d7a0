//! The options of a lowering.
//!
//! Replicas are devices that run one program on different data; they are the ranks of collective operators. Values at
//! the start come from the host, where ranks are threads.

use std::fmt;

use autobwd::Meta;

use crate::Sharding;

/// What a program is lowered for: feeds, values of the scope, fetches, devices.
#[derive(Clone, Copy)]
pub struct LowerRequest<'a> {
    pub(super) feeds: &'a [(&'a str, Meta)],
    pub(super) scope: &'a dyn Fn(&str) -> Option<Meta>,
    pub(super) fetches: &'a [&'a str],
    pub(super) replicas: usize,
    pub(super) sharding: Option<(&'a Sharding, usize)>,
}

impl<'a> LowerRequest<'a> {
    /// A request for feeds of these dtypes and shapes, and one device. `scope` gives dtypes and shapes of values of the
    /// scope by name.
    pub fn new(
        feeds: &'a [(&'a str, Meta)],
        scope: &'a dyn Fn(&str) -> Option<Meta>,
        fetches: &'a [&'a str],
    ) -> LowerRequest<'a> {
        LowerRequest { feeds, scope, fetches, replicas: 1, sharding: None }
    }

    /// Lowers for that many devices. Each runs the program on data of its own, as a rank of its
    /// [collective operators](autobwd::parallel).
    #[must_use]
    pub fn replicas(self, replicas: usize) -> LowerRequest<'a> {
        LowerRequest { replicas, ..self }
    }

    /// Lowers for that many devices, among which tensors are divided. Feeds and values of the scope are given as wholes.
    #[must_use]
    pub fn sharding(self, sharding: &'a Sharding, devices: usize) -> LowerRequest<'a> {
        LowerRequest { sharding: Some((sharding, devices)), ..self }
    }
}

impl fmt::Debug for LowerRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LowerRequest")
            .field("feeds", &self.feeds)
            .field("fetches", &self.fetches)
            .field("replicas", &self.replicas)
            .field("sharding", &self.sharding)
            .finish_non_exhaustive()
    }
}
