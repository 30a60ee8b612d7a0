//! `run`: executes a program and times it.

use std::{collections::BTreeMap, fs::File, path::PathBuf, time::Instant};

use autobwd::{Executor, Program, Result, Scope, Session, Tensor, exec::Monitor};
use autobwd_data::save_npz;
use autobwd_onnx::LoadOptions;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::ModelPath;
use crate::{
    feeds::{fetches, read_npz},
    program_file::read_program,
    terminal::{CommandFailure, CommandResult, Terminal},
};

/// Run a program
///
/// Prints one line of JSON with the time of a step and the peak of tensor memory, after one line for each step with
/// --steps. The programs of --startup run first, and the values of --weights replace theirs.
#[derive(Debug, Args)]
pub(crate) struct RunCommand {
    #[command(flatten)]
    model: ModelPath,
    /// Values that the program keeps, in safetensors format
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// A program to run first, once; may be repeated
    #[arg(long, value_name = "FILE")]
    startup: Vec<String>,
    /// The inputs, by name, in npz format
    #[arg(long, value_name = "FILE")]
    feeds: Option<PathBuf>,
    /// The variables to fetch, instead of all results
    #[arg(long, value_name = "VAR", value_delimiter = ',')]
    fetch: Vec<String>,
    /// The number of steps, all with the same inputs; prints the fetched scalars of each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// The number of threads, instead of one a core; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Fail at the first operator that writes a NaN or an infinity
    #[arg(long)]
    check_finite: bool,
    /// The file for the fetched values of the last step, in npz format
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The file for a log of the steps, in JSON lines, which `report` draws: the fetched scalars, learning rates, norms
    /// of gradients, time and memory
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The file for the values that the program keeps, in safetensors format
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

#[derive(Serialize)]
struct StepJson {
    schema: &'static str,
    step: u64,
    seconds: f64,
    scalars: BTreeMap<String, Value>,
}

#[derive(Serialize)]
struct RunJson<'a> {
    schema: &'static str,
    steps: usize,
    threads: usize,
    /// The median.
    seconds_per_step: f64,
    first_step_seconds: f64,
    peak_bytes: usize,
    fetched: BTreeMap<&'a str, FetchedJson>,
}

#[derive(Serialize)]
struct FetchedJson {
    dtype: String,
    shape: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

/// An executor with so many threads, or one a core.
pub(super) fn executor(threads: Option<usize>) -> Executor {
    threads.map_or_else(Executor::new, Executor::with_threads)
}

impl RunCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let model = self.model.read_model()?;
        let program = model.program;
        let mut executor = executor(self.threads).check_finite(self.check_finite);
        let mut scope = self.scope(&mut executor, model.scope)?;
        let feeds = self.feeds.as_deref().map_or(Ok(vec![]), read_npz)?;
        let metas: Vec<_> = feeds.iter().map(|(name, tensor)| (name.as_str(), tensor.meta())).collect();
        let fetches = fetches(&program, if self.fetch.is_empty() { &model.fetches } else { &self.fetch });
        let mut monitor = self.monitor(&program, &fetches)?;
        let mut watched = fetches.clone();
        for name in monitor.iter().flat_map(Monitor::fetches) {
            if !watched.contains(&name) {
                watched.push(name);
            }
        }
        let mut session = executor.prepare(&program, &mut scope, &metas, &watched)?;
        drop(watched);
        let seconds = self.steps(terminal, &mut session, &mut scope, &feeds, &fetches, &mut monitor)?;
        let fetched = fetches.iter().map(|name| Ok((*name, session.fetch(name)?)));
        let fetched: Vec<(&str, Tensor)> = fetched.collect::<Result<_>>()?;
        if let Some(path) = &self.out {
            save_npz(path, fetched.iter().map(|(name, tensor)| (*name, tensor)))?;
        }
        if let Some(path) = &self.save {
            scope.save(path)?;
        }
        terminal.print_json(&RunJson {
            schema: "autobwd.run/1",
            steps: seconds.len(),
            threads: executor.threads(),
            seconds_per_step: median(&seconds),
            first_step_seconds: seconds[0],
            peak_bytes: session.peak_bytes(),
            fetched: fetched.iter().map(|(name, tensor)| (*name, FetchedJson::of(tensor))).collect(),
        })
    }

    /// The scope before the first step, from that of the model.
    fn scope(&self, executor: &mut Executor, mut scope: Scope) -> CommandResult<Scope> {
        for path in &self.startup {
            executor.run(&read_program(path, &LoadOptions::default())?, &mut scope, &[], &[])?;
        }
        if let Some(path) = &self.weights {
            scope.load(path).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
        }
        Ok(scope)
    }

    /// The monitor of the fetches that have one element by their declaration.
    fn monitor(&self, program: &Program, fetches: &[&str]) -> CommandResult<Option<Monitor<File>>> {
        let Some(path) = &self.log else { return Ok(None) };
        let is_scalar = |name: &&&str| {
            let desc = program.find(name).and_then(|var| program.root().vars.get(&var));
            desc.is_some_and(|desc| desc.dims.numel() == 1)
        };
        let scalars: Vec<&str> = fetches.iter().filter(is_scalar).copied().collect();
        Ok(Some(Monitor::create(path, program, &scalars)?))
    }

    /// Runs the steps; returns the seconds of each.
    fn steps(
        &self,
        terminal: Terminal,
        session: &mut Session,
        scope: &mut Scope,
        feeds: &[(String, Tensor)],
        fetches: &[&str],
        monitor: &mut Option<Monitor<File>>,
    ) -> CommandResult<Vec<f64>> {
        let steps = self.steps.unwrap_or(1);
        let (progress, mut times) = (terminal.progress(steps), vec![]);
        for step in 1..=steps {
            feeds.iter().try_for_each(|(name, tensor)| session.feed(name, tensor))?;
            let start = Instant::now();
            session.run(scope)?;
            let seconds = start.elapsed().as_secs_f64();
            times.push(seconds);
            if let Some(monitor) = monitor {
                monitor.record(step, session)?;
            }
            if self.steps.is_some() {
                let scalar = |name: &&str| Some((name.to_string(), number(session.item(name).ok()?)));
                let scalars = fetches.iter().filter_map(scalar).collect();
                let document = StepJson { schema: "autobwd.step/1", step, seconds, scalars };
                progress.suspend(|| terminal.print_json(&document))?;
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(times)
    }
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

impl FetchedJson {
    fn of(tensor: &Tensor) -> FetchedJson {
        let (dtype, shape) = (tensor.dtype().to_string(), tensor.dims().to_vec());
        FetchedJson { dtype, shape, value: tensor.item().ok().map(number) }
    }
}

/// A number; JSON has no NaN and no infinities, so they are strings.
fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}
