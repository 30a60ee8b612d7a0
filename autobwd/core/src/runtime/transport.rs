//! Messages between the ranks of a run.

use crate::Result;

/// The connection of a rank to the others of a run: processes, or threads of one process.
///
/// Collective operators are built on its one operation. Between two ranks, messages arrive in the order in which they
/// were sent.
pub trait Transport: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// Sends messages to other ranks, and receives one of known length from each of those in `receive`; returns when
    /// all are done. Ranks differ within each list.
    ///
    /// # Errors
    /// A rank that has ended, or that does not take part within the time that the transport allows; it is named.
    fn transfer(&self, send: &[(usize, &[u8])], receive: &mut [(usize, &mut [u8])]) -> Result<()>;
}
