//! `check`: gradient checks of the samples of linked operators.

use std::collections::BTreeMap;

use autobwd::{
    OpInfoMap,
    check::{Sample, check_sample, samples},
};
use autobwd_data::Progress;
use clap::Args;
use serde::Serialize;

use super::ReportForm;
use crate::terminal::{CommandFailure, CommandResult, Terminal};

/// Check operators by their samples
///
/// Compares values of kernels on all dtypes and numbers of threads, and gradients with central differences to second
/// order. A build has samples if it has debug assertions, or the feature `samples`.
#[derive(Debug, Args)]
pub(crate) struct CheckCommand {
    /// The operators to check, instead of all
    #[arg(value_name = "OP")]
    ops: Vec<String>,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ReportForm,
}

#[derive(Serialize)]
struct CheckJson {
    schema: &'static str,
    failed: usize,
    operators: Vec<Checked>,
}

#[derive(Default, Serialize)]
struct Checked {
    name: &'static str,
    samples: usize,
    /// Derivatives of first order that were compared, the largest deviation, and derivatives of second order.
    derivatives: usize,
    worst: f64,
    second_order: usize,
    warnings: Vec<String>,
    failures: Vec<String>,
}

impl CheckCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let samples = self.samples()?;
        let progress = Progress::new(samples.values().map(Vec::len).sum::<usize>() as u64);
        let mut operators = vec![];
        for (name, rows) in samples {
            progress.show(name);
            let checked = check(name, &rows, || progress.advance());
            if self.format == ReportForm::Text {
                progress.suspend(|| terminal.print(&checked.to_text()))?;
            }
            operators.push(checked);
        }
        drop(progress);
        let failed = operators.iter().filter(|checked| !checked.failures.is_empty()).count();
        if self.format == ReportForm::Json {
            terminal.print_json(&CheckJson { schema: "autobwd.check/1", failed, operators })?;
        }
        if failed == 0 { Ok(()) } else { Err(CommandFailure::Negative) }
    }

    /// The samples of the chosen operators.
    fn samples(&self) -> CommandResult<BTreeMap<&'static str, Vec<Sample>>> {
        let ops = OpInfoMap::linked()?;
        self.ops.iter().try_for_each(|name| ops.get(name).map(drop))?;
        let mut chosen: BTreeMap<&'static str, Vec<Sample>> = BTreeMap::new();
        let all = samples();
        if all.is_empty() {
            let text = "this build has no samples; build it with the feature `samples`";
            return Err(CommandFailure::Failed(text.into()));
        }
        for sample in
            all.into_iter().filter(|s| self.ops.is_empty() || self.ops.iter().any(|op| op == s.op()))
        {
            chosen.entry(sample.op()).or_default().push(sample);
        }
        match self.ops.iter().find(|op| !chosen.contains_key(op.as_str())) {
            Some(op) => Err(CommandFailure::Failed(format!(
                "operator `{op}` has no samples; a gradient operator is checked with its forward operator"
            ))),
            None => Ok(chosen),
        }
    }
}

fn check(name: &'static str, rows: &[Sample], mut each: impl FnMut()) -> Checked {
    let mut checked = Checked { name, samples: rows.len(), ..Checked::default() };
    for (row, sample) in rows.iter().enumerate() {
        match check_sample(sample) {
            Ok(found) => {
                checked.derivatives += found.elements;
                checked.worst = checked.worst.max(found.worst);
                checked.second_order += found.second_order;
                checked.warnings.extend(found.warnings.iter().map(|warning| format!("row {row}: {warning}")));
            }
            Err(e) => checked.failures.push(format!("row {row}: {e}")),
        }
        each();
    }
    checked
}

impl Checked {
    fn to_text(&self) -> String {
        let Checked { name, samples, derivatives, worst, second_order, .. } = self;
        let verdict = if self.failures.is_empty() { "ok" } else { "FAILED" };
        let mut text = format!(
            "{name}: {verdict}; samples: {samples}, derivatives: {derivatives} within {worst:.1e}, of second order: \
             {second_order}\n"
        );
        for line in self.warnings.iter().map(|w| format!("  warning: {w}")).chain(
            self.failures.iter().map(|failure| format!("  failure: {}", failure.replace('\n', "\n    "))),
        ) {
            text.extend([&line, "\n"]);
        }
        text
    }
}
