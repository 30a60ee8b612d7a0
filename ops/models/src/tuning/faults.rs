//! Lists of what is wrong with data.

use autobwd::Result;
use autobwd_core::__private::Obstacles;

/// The number of faults in one error.
const LISTED: usize = 20;

/// # Errors
/// One list of the first faults, and how many more there are.
pub(super) fn require_none(faults: Vec<String>, failed: &str) -> Result<()> {
    let (mut obstacles, more) = (Obstacles::default(), faults.len().saturating_sub(LISTED));
    faults.into_iter().take(LISTED).for_each(|fault| obstacles.add("", fault));
    if more > 0 {
        obstacles.add("", format!("{more} more"));
    }
    obstacles.require_none(failed)
}
