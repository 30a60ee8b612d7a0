//! Training runs as one HTML page: the curves of their logs.
//!
//! `log` reads the lines of a log into a `Run`, whose `Curve`s keep a bounded number of points.

mod curve;
mod log;

use std::io::BufRead;

use serde::Serialize;

use autobwd_core::{Error, ErrorKind, Result};

use crate::assembly::Template;
use log::Run;

const TEMPLATE: Template = Template {
    html: include_str!("page/report.html"),
    style: concat!(include_str!("../shared/theme.css"), include_str!("page/report.css")),
    script: concat!(
        include_str!("../shared/elements.js"),
        include_str!("page/runs.js"),
        include_str!("page/chart.js"),
        include_str!("page/main.js"),
    ),
};

/// The numbers in the page of a report, roughly: some eight bytes each.
const NUMBERS: usize = 120_000;

/// Curves of more points may lose points to stay within [`NUMBERS`].
const FEWEST_POINTS: usize = 128;

/// Training runs as one self-contained HTML page: curves of losses, learning rates, gradient norms, time and memory,
/// from the logs that `autobwd::exec::Monitor` writes.
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
}

#[derive(Serialize)]
struct ReportData<'a> {
    title: &'a str,
    runs: &'a [Run],
}

impl Default for RunReport {
    fn default() -> RunReport {
        RunReport::new()
    }
}

impl RunReport {
    /// A report of no runs.
    pub fn new() -> RunReport {
        RunReport { title: "Training runs".into(), runs: vec![] }
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
        if self.runs.iter().any(|run| run.name() == name) {
            let text = format!("two runs have the name `{name}`; give each a name of its own");
            return Err(Error::new(ErrorKind::Duplicate, text));
        }
        self.runs.push(Run::read(name, log)?);
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
        TEMPLATE.fill(&self.title, &ReportData { title: &self.title, runs: &runs })
    }
}
