//! The results as a Markdown table, and its place in `README.md`.

use std::{collections::BTreeSet, fmt::Write as _};

use autobwd_benches::{Outcome, median};

use crate::{LIBRARIES, Results, Times, WORKLOADS};

const START: &str = "<!-- peers -->";
const END: &str = "<!-- /peers -->";

/// For every number of threads: medians of the runs and how far these are apart, our share of the best peer's, and memory.
pub(crate) fn of(results: &Results) -> Outcome<String> {
    let mut text = String::new();
    let threads: BTreeSet<_> = results.keys().map(|key| key.0).collect();
    for threads in threads {
        let plural = if threads == 1 { "" } else { "s" };
        writeln!(text, "| {threads} thread{plural} | {} | ratio |", LIBRARIES.join(" | "))?;
        writeln!(text, "|---|{}", "---|".repeat(LIBRARIES.len() + 1))?;
        for workload in WORKLOADS {
            let of = |library| results.get(&(threads, workload, library));
            if LIBRARIES.into_iter().all(|library| of(library).is_none()) {
                continue;
            }
            write!(text, "| {workload} |")?;
            for library in LIBRARIES {
                write!(text, " {} |", of(library).map_or("–".into(), cell))?;
            }
            writeln!(
                text,
                " {} |",
                ratio(results, threads, workload).map_or("–".into(), |r| format!("{r:.2}"))
            )?;
        }
        writeln!(text)?;
    }
    writeln!(
        text,
        "Milliseconds a step: the median of the runs (the least and the most of them), and the resident"
    )?;
    writeln!(text, "memory in MB. The last column is our median to that of the best peer.")?;
    Ok(text)
}

fn cell(times: &Times) -> String {
    let mut all = times.median_ms.clone();
    all.sort_by(f64::total_cmp);
    let (least, most) = (all[0], all[all.len() - 1]);
    format!("{} ({}–{}) {:.0} MB", short(median(all)), short(least), short(most), times.peak_mb)
}

/// Three digits.
fn short(ms: f64) -> String {
    let digits = (2.0 - ms.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{ms:.digits$}")
}

/// Our median to that of the best peer.
pub(crate) fn ratio(results: &Results, threads: usize, workload: &'static str) -> Option<f64> {
    let of =
        |library| results.get(&(threads, workload, library)).map(|times| median(times.median_ms.clone()));
    let best = LIBRARIES[1..].iter().filter_map(|library| of(library)).min_by(f64::total_cmp)?;
    Some(of(LIBRARIES[0])? / best)
}

/// The text with the table in its place.
pub(crate) fn replaced(text: &str, table: &str) -> Outcome<String> {
    let place = text.split_once(START).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = place.ok_or_else(|| format!("there is no place for the table: {START} {END}"))?;
    Ok(format!("{before}{START}\n{table}{END}{after}"))
}
