//! Report: a line for each case with the reason of failure, and totals.

use std::{
    fmt,
    io::{self, Write},
};

use autobwd::OpInfoMap;

use super::{Compared, CorpusEntry, Outcome};

/// Totals of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Cases in which everything agrees.
    pub passed: usize,
    /// Cases with a difference.
    pub failed: usize,
    /// Cases that cannot be compared yet.
    pub skipped: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![];
        if self.refused {
            parts.push("refused".to_string());
        }
        if self.structure {
            parts.push("structure".to_string());
        }
        for (count, what) in [(self.recorded, "values"), (self.differences, "central differences")] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        f.write_str(&parts.join(", "))
    }
}

/// Compares all cases and writes a line for each; skipped ones, with their reason, come after the others, the summary
/// last.
///
/// # Errors
/// Those of writing.
pub fn run(entries: &[CorpusEntry], ops: &OpInfoMap, out: &mut dyn Write) -> io::Result<Summary> {
    let (mut summary, mut skipped) = (Summary::default(), vec![]);
    for entry in entries {
        let name = &entry.name;
        match entry.check(ops) {
            Outcome::Passed(compared) => {
                summary.passed += 1;
                writeln!(out, "passed   {name}: {compared}")?;
            }
            Outcome::Failed(why) => {
                summary.failed += 1;
                writeln!(out, "FAILED   {name}: {}", why.replace('\n', "\n         "))?;
            }
            Outcome::Skipped(reason) => {
                summary.skipped += 1;
                skipped.push((name, reason));
            }
        }
    }
    for (name, reason) in skipped {
        writeln!(out, "skipped  {name}: {reason}")?;
    }
    writeln!(out, "{summary}")?;
    Ok(summary)
}
