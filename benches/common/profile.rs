//! Times of the operators of a program.

use std::{collections::BTreeMap, time::Instant};

use autobwd::{Result, Scope, Session};

use crate::{ms, quantile};

/// Prints for each operator type, or fused kernel: instructions, microseconds a step and their share. Instructions are
/// timed one by one, over all steps; `feed` comes before each.
///
/// # Errors
/// Those of a step.
pub fn print_profile(
    title: &str,
    seconds: f64,
    session: &mut Session,
    scope: &mut Scope,
    feed: impl Fn(&mut Session) -> Result<()>,
) -> Result<()> {
    let mut frames: Vec<(String, Vec<f64>)> = vec![];
    let start = Instant::now();
    while ms(start) < seconds * 1e3 {
        feed(session)?;
        let step = session.profile(scope)?;
        frames.resize_with(step.len(), Default::default);
        for ((label, times), (ty, time)) in frames.iter_mut().zip(step) {
            ty.clone_into(label);
            times.push(time.as_secs_f64() * 1e6);
        }
    }
    let mut types: BTreeMap<String, (usize, f64, f64)> = BTreeMap::new();
    for (label, mut times) in frames {
        let (count, least, middle) = types.entry(label).or_default();
        *count += 1;
        *least += quantile(&mut times, 0.0);
        *middle += quantile(&mut times, 0.5);
    }
    let total = |of: fn(&(usize, f64, f64)) -> f64| types.values().map(of).sum::<f64>();
    let (least, middle) = (total(|time| time.1), total(|time| time.2));
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    println!("frames  least µs  share  median µs  operators of {title}");
    for (label, (count, of_least, of_middle)) in types {
        println!("{count:6} {of_least:9.1} {:5.1}% {of_middle:10.1}  {label}", of_least / least * 100.0);
    }
    println!("       {least:9.1}        {middle:10.1}");
    Ok(())
}
