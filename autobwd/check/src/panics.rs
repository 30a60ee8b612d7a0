//! Conversion of panics into errors with their source lines.

use super::function::failure;
use autobwd_core::{Error, ErrorKind, Result, runtime::panics::catch_panic_silently};

/// Converts a panic of this thread into an error with its message and source line; suppresses the report on stderr.
pub(super) fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_panic_silently(work).unwrap_or_else(|panic| Err(failure(format!("it {panic}"))))
}

/// Whether an error is a fault of the operator, not one of the data that it was given.
pub(super) fn is_fault(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Check | ErrorKind::Panic | ErrorKind::Operator | ErrorKind::Internal)
}
