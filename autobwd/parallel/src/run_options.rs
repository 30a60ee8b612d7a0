//! Options of a run on several ranks.

use std::time::Duration;

use autobwd_core::{Result, runtime::panics::catch_panic};

/// Options of a run on several ranks: threads, by [`threads::run_with`](crate::threads::run_with), or processes, by
/// `autobwd_mpi::run_with`.
///
/// ```
/// use std::time::Duration;
/// use autobwd::parallel::{RunOptions, threads};
///
/// // Rank 0 may evaluate the model for an hour while the others wait for it.
/// let options = RunOptions { deadline: Duration::from_secs(3600) };
/// let ranks = threads::run_with(2, &options, |transport| Ok(transport.rank()))?;
/// assert_eq!(ranks, [0, 1]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// How long a rank waits for another one before the run fails; a minute by default.
    pub deadline: Duration,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions { deadline: Duration::from_secs(60) }
    }
}

/// Runs the work of a rank; a panic is an error.
///
/// # Errors
/// The errors of the work; a panic.
#[doc(hidden)]
pub fn run_rank<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_panic(work).unwrap_or_else(|panic| Err(panic.error("the work of the rank")))
}

/// Why a rank that waits for one that has ended its work cannot go on.
#[doc(hidden)]
pub fn ended(rank: usize) -> String {
    format!("rank {rank} has ended, but this rank waits for it: all ranks must run the same number of steps")
}
