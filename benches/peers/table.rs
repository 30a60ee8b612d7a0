//! The results as a Markdown table, which replaces the one in a file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use autobwd_benches::{BenchResult, median, workload::Workload};

use crate::{LIBRARIES, Results, Times, WORKLOADS, median_of};

/// For every number of threads: medians of the runs with their range, memory, and the ratio to the best peer; then the
/// omitted libraries.
pub(crate) fn of(results: &Results) -> BenchResult<String> {
    let mut text = String::new();
    let threads: BTreeSet<_> = results.keys().map(|key| key.0).collect();
    for threads in threads {
        let plural = if threads == 1 { "" } else { "s" };
        writeln!(text, "| {threads} thread{plural} | {} | ratio |", LIBRARIES.join(" | "))?;
        writeln!(text, "|---|{}", "---|".repeat(LIBRARIES.len() + 1))?;
        for workload in WORKLOADS {
            let of = |library| results.get(&(threads, workload.name(), library));
            if LIBRARIES.into_iter().all(|library| of(library).is_none()) {
                continue;
            }
            write!(text, "| {} |", workload.name())?;
            for library in LIBRARIES {
                write!(
                    text,
                    " {} |",
                    of(library).and_then(|found| found.as_ref().ok()).map_or("–".into(), cell)
                )?;
            }
            let ratio = ratio(results, threads, workload).map_or("–".into(), |ratio| format!("{ratio:.2}"));
            writeln!(text, " {ratio} |")?;
        }
        writeln!(text)?;
    }
    writeln!(
        text,
        "Milliseconds a step: the median of the runs (the least and the most of them), and the resident"
    )?;
    writeln!(text, "memory in MB. The last column is our median divided by the best peer's median.")?;
    let mut reasons: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for ((_, workload, library), found) in results {
        let Err(reason) = found else { continue };
        reasons.entry((library, reason)).or_default().insert(*workload);
    }
    for ((library, reason), workloads) in reasons {
        let workloads: Vec<_> = workloads.into_iter().collect();
        writeln!(text, "\nNot in {library}: {} ({reason}).", workloads.join(", "))?;
    }
    Ok(text)
}

fn cell(times: &Times) -> String {
    let mut all = times.median_ms.clone();
    all.sort_by(f64::total_cmp);
    let (least, most) = (all[0], all[all.len() - 1]);
    format!("{}<br>({}–{})<br>{:.0} MB", short(median(all)), short(least), short(most), times.peak_mb)
}

/// Three digits.
fn short(ms: f64) -> String {
    let digits = (2.0 - ms.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{ms:.digits$}")
}

/// The ratio of autobwd's median to the median of the best peer.
fn ratio(results: &Results, threads: usize, workload: Workload) -> Option<f64> {
    let of = |library| median_of(results, threads, workload, library);
    let best = LIBRARIES[1..].iter().filter_map(|library| of(library)).min_by(f64::total_cmp)?;
    Some(of(LIBRARIES[0])? / best)
}

/// The text with the table in its place, between comments with that name.
pub(crate) fn replaced(text: &str, name: &str, table: &str) -> BenchResult<String> {
    let (start, end) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let place = text.split_once(&start).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) = place.ok_or_else(|| format!("there is no place for the table: {start} {end}"))?;
    Ok(format!("{before}{start}\n{table}{end}{after}"))
}
