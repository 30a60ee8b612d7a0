//! A prepared operator, and its time.

use std::time::Instant;

use autobwd::{DType, Executor, Result, Scope, Session, op::OpInfo};
use autobwd_benches::{alone, median, ms};

/// Elements of every slot, such that inputs and outputs stay in the core's caches.
const ELEMENTS: usize = 4096;
/// Runs between two readings of the clock.
const RUNS: usize = 10;
/// Minimum duration of a round, in milliseconds.
const ROUND_MS: f64 = 1.5;

/// A timed operator.
pub(crate) struct Timed {
    name: &'static str,
    scope: Scope,
    session: Session,
    /// Nanoseconds per element of every round.
    rounds: Vec<f64>,
}

impl Timed {
    /// Prepared by [`alone`].
    pub(crate) fn new(executor: &Executor, info: &OpInfo) -> Result<Timed> {
        let (scope, session) = alone(executor, info, DType::F32, ELEMENTS)?;
        Ok(Timed { name: info.schema().name, scope, session, rounds: vec![] })
    }

    /// The operator's type.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Times one round of runs.
    pub(crate) fn round(&mut self) -> Result<()> {
        let (start, mut runs) = (Instant::now(), 0);
        while ms(start) < ROUND_MS {
            for _ in 0..RUNS {
                self.session.run(&mut self.scope)?;
            }
            runs += RUNS;
        }
        self.rounds.push(ms(start) * 1e6 / (runs * ELEMENTS) as f64);
        Ok(())
    }

    /// Median of the rounds: nanoseconds per element.
    pub(crate) fn ns(&self) -> f64 {
        median(self.rounds.clone())
    }
}
