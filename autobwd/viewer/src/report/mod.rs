//! Training runs as one HTML page: the curves of their logs, and their records.
//!
//! `log` reads the lines of a log into a `Run`, whose `Curve`s keep a bounded number of points. `record` has records as
//! plain data.

mod curve;
mod log;
mod record;

use std::io::BufRead;

use serde::Serialize;

use autobwd_core::{Error, ErrorKind, Result};

use crate::assembly::Template;
use log::Run;
use record::NamedRecord;
pub use record::{ReportedDifference, ReportedRecord, ReportedSegment, SegmentVerdict};

const TEMPLATE: Template = Template {
    html: include_str!("page/report.html"),
    style: concat!(include_str!("../shared/theme.css"), include_str!("page/report.css")),
    script: concat!(
        include_str!("../shared/elements.js"),
        include_str!("page/runs.js"),
        include_str!("page/chart.js"),
        include_str!("page/records.js"),
        include_str!("page/main.js"),
    ),
};

/// The numbers in the page of a report, roughly: some eight bytes each.
const NUMBERS: usize = 120_000;

/// Curves of more points may lose points to stay within [`NUMBERS`].
const FEWEST_POINTS: usize = 128;

/// Training runs as one self-contained HTML page: curves of losses, learning rates, gradient norms, time and memory,
/// from the logs that `autobwd::exec::Monitor` writes; and records of runs, with the steps that a verification confirms.
///
/// Curves of several runs share axes, by step or by time, with a cursor that reads all of them. The page smooths, draws
/// on logarithmic scales, and marks NaN and infinities. As a [`Page`](crate::Page), it loads nothing and sends nothing.
///
/// A long run is drawn as the mean of several steps in a band from their minimum to their maximum, so the page of any
/// number of steps has one or two megabytes at most; with thousands of parameters, it has more.
///
/// ```
/// use autobwd::viewer::RunReport;
///
/// let log = r#"{"schema":"autobwd.log/1","values":["loss"],"learning_rates":[],"parameters":[]}
/// {"step":1,"time_s":0.1,"values":{"loss":2.5}}
/// {"step":2,"time_s":0.2,"values":{"loss":"NaN"}}
/// "#;
/// let mut report = RunReport::new();
/// report.add_run("first", log.as_bytes())?;
/// assert!(report.to_html()?.starts_with("<!doctype html>"));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct RunReport {
    title: String,
    runs: Vec<Run>,
    records: Vec<NamedRecord>,
    differences: Vec<ReportedDifference>,
}

#[derive(Serialize)]
struct ReportData<'a> {
    title: &'a str,
    runs: &'a [Run],
    records: &'a [NamedRecord],
    differences: &'a [ReportedDifference],
}

impl Default for RunReport {
    fn default() -> RunReport {
        RunReport::new()
    }
}

impl RunReport {
    /// A report of no runs.
    pub fn new() -> RunReport {
        RunReport { title: "Training runs".into(), runs: vec![], records: vec![], differences: vec![] }
    }

    /// Sets the title.
    #[must_use]
    pub fn title(self, title: &str) -> RunReport {
        RunReport { title: title.into(), ..self }
    }

    /// Adds a run by its log, which is read line by line. A last line without its end, which a killed run may leave, is
    /// left out unless it is a whole record; the page says so.
    ///
    /// # Errors
    /// A log that cannot be read, or is malformed, with the number of the line. A name that another run has.
    pub fn add_run(&mut self, name: &str, log: impl BufRead) -> Result<()> {
        require_new("runs", name, self.runs.iter().map(Run::name))?;
        self.runs.push(Run::read(name, log)?);
        Ok(())
    }

    /// Adds the record of a run. A run and its record may have one name.
    ///
    /// ```
    /// # use autobwd::{Builder, DType, Executor, Scope};
    /// # use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
    /// use autobwd::exec::record::{RecordOptions, RecordedRun, RunRecord};
    /// use autobwd::viewer::{ReportedRecord, RunReport};
    /// # let net = Builder::new();
    /// # let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// # Sgd { rate: 0.5 }.minimize(&w.square().mean())?.complete()?;
    /// # let (mut executor, mut scope) = (Executor::new(), Scope::new());
    /// # executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    /// # let (program, folder) = (net.program()?.clone(), tempfile::tempdir()?);
    /// # let dir = folder.path().join("run");
    /// let mut record = RunRecord::create(&dir, &program, &scope, RecordOptions::new())?;
    /// executor.run(&program, &mut scope, &[], &[])?;
    /// record.step(&[], &scope)?;
    /// record.finish(&scope)?;
    ///
    /// let run = RecordedRun::open(&dir)?;
    /// let record = ReportedRecord {
    ///     facts: vec![("autobwd".into(), run.library_version().into())],
    ///     steps: run.steps(),
    ///     is_finished: run.is_finished(),
    ///     states: run.states().collect(),
    ///     checkpoints: run.checkpoints().collect(),
    ///     ..ReportedRecord::default()
    /// };
    /// let mut report = RunReport::new();
    /// report.add_record("run", record)?;
    /// assert!(report.to_html()?.contains("is_finished"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A name that another record has.
    pub fn add_record(&mut self, name: &str, record: ReportedRecord) -> Result<()> {
        require_new("records", name, self.records.iter().map(NamedRecord::name))?;
        self.records.push(NamedRecord::new(name, record));
        Ok(())
    }

    /// Adds what a comparison of two records has found.
    ///
    /// ```
    /// use autobwd::viewer::{ReportedDifference, ReportedRecord, RunReport};
    ///
    /// let mut report = RunReport::new();
    /// for name in ["first", "second"] {
    ///     report.add_record(name, ReportedRecord { steps: 60, ..ReportedRecord::default() })?;
    /// }
    /// report.add_difference(ReportedDifference {
    ///     records: ["first".into(), "second".into()],
    ///     compared_states: 7,
    ///     last_equal_state: 40,
    ///     first_different_state: Some(50),
    ///     sentences: vec!["step 42 is fed other data: row 1 of `x`".into()],
    ///     ..ReportedDifference::default()
    /// })?;
    /// # report.to_html()?;
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name that no record has.
    pub fn add_difference(&mut self, difference: ReportedDifference) -> Result<()> {
        let is_known = |name: &String| self.records.iter().any(|record| record.name() == name);
        if let Some(name) = difference.records.iter().find(|name| !is_known(name)) {
            let text = format!("the report has no record `{name}`; add it before its differences");
            return Err(Error::new(ErrorKind::NoValue, text));
        }
        self.differences.push(difference);
        Ok(())
    }

    /// The page.
    ///
    /// # Errors
    /// None for any log; the writer of JSON may fail.
    pub fn to_html(&self) -> Result<String> {
        let mut runs = self.runs.clone();
        let is_long = |runs: &[Run]| runs.iter().map(Run::numbers).sum::<usize>() > NUMBERS;
        while is_long(&runs) {
            let longest = runs.iter_mut().max_by_key(|run| run.coarse_points());
            let Some(run) = longest.filter(|run| run.coarse_points() > FEWEST_POINTS) else { break };
            run.halve_parameters();
        }
        while is_long(&runs) {
            let longest = runs.iter_mut().max_by_key(|run| run.points());
            let Some(run) = longest.filter(|run| run.points() > FEWEST_POINTS) else { break };
            run.halve();
        }
        let RunReport { title, records, differences, .. } = self;
        TEMPLATE.fill(title, &ReportData { title, runs: &runs, records, differences })
    }
}

/// Requires a name that none of the others has.
fn require_new<'a>(kind: &str, name: &str, mut others: impl Iterator<Item = &'a str>) -> Result<()> {
    if others.any(|other| other == name) {
        let text = format!("two {kind} have the name `{name}`; give each a name of its own");
        return Err(Error::new(ErrorKind::Duplicate, text));
    }
    Ok(())
}
