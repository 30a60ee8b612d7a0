//! The split of examples into two parts by a seed.

use std::collections::BTreeMap;

use autobwd_core::{Error, ErrorKind, Result};

use crate::order::shuffled;

/// The positions of two parts, in ascending order. The first part has `fraction` of each class, rounded to examples.
///
/// # Errors
/// A fraction that is not between 0 and 1; a part without examples.
pub(crate) fn split<K: Ord>(classes: &[K], fraction: f64, seed: u64) -> Result<(Vec<usize>, Vec<usize>)> {
    let refuse = |text: String| Err(Error::new(ErrorKind::Data, text));
    if !(fraction > 0.0 && fraction < 1.0) {
        return refuse(format!("a split needs a fraction between 0 and 1, not {fraction}"));
    }
    let mut counts: BTreeMap<&K, usize> = BTreeMap::new();
    for class in classes {
        *counts.entry(class).or_default() += 1;
    }
    // From here on, the examples of each class that the first part still takes.
    for count in counts.values_mut() {
        *count = (*count as f64 * fraction).round() as usize;
    }
    let (mut first, mut second) = (vec![], vec![]);
    for example in shuffled(classes.len(), seed, 0) {
        match classes.get(example).and_then(|class| counts.get_mut(class)).filter(|count| **count > 0) {
            Some(count) => {
                *count -= 1;
                first.push(example);
            }
            None => second.push(example),
        }
    }
    if first.is_empty() || second.is_empty() {
        let n = classes.len();
        return refuse(format!("a split of {n} examples by {fraction} leaves a part without examples"));
    }
    first.sort_unstable();
    second.sort_unstable();
    Ok((first, second))
}
