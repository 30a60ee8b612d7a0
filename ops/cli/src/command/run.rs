//! `run`: executes a program and times it.

mod recording;
mod stepper;

use std::{collections::BTreeMap, fs::File, path::PathBuf, time::Instant};

use autobwd::{
    Error, Executor, Program, Result, Scope, Tensor,
    exec::{Monitor, record::RunRecord},
    op::isa,
    verify,
};
use autobwd_data::{Progress, save_npz};
use autobwd_onnx::LoadOptions;
use autobwd_ops::Model;
use autobwd_xla::Backend;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::{ModelPath, read_npz};
use crate::{
    feeds::{fetches, inputs},
    output::{CommandOutcome, check_outputs},
    program_file::read_program,
    terminal::{CommandFailure, CommandResult, Terminal},
};
use recording::RecordArguments;
use stepper::Stepper;

/// Run a program
///
/// Prints one line of JSON with the time of a step and the peak of tensor memory, after one line for each step with
/// --steps. The programs of --startup run first, and the values of --weights replace theirs.
///
/// A program that changes no value is frozen before the first step: constants are folded and convolutions are packed,
/// which changes the last bits of results once. It runs as it is written with --exact, and also with --device,
/// --check-finite, --log, --record and --save.
///
/// Files are checked before the first step, and written even if standard output or the log cannot be written meanwhile;
/// the values of --save first. If a step fails, --save gets the values after the last complete step.
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
    /// The PJRT plugin, a shared library, on whose first device to run, instead of the host
    #[arg(long, value_name = "PLUGIN", conflicts_with_all = ["threads", "check_finite"])]
    device: Option<PathBuf>,
    /// Fail at the first operator that writes a NaN or an infinity
    #[arg(long)]
    check_finite: bool,
    /// Keep the bits of the operators as they are written: a program that changes no value is otherwise frozen, which
    /// folds its constants
    #[arg(long)]
    exact: bool,
    /// The file for the fetched values of the last step, in npz format
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The file for a log of the steps, in JSON lines, which `report` draws: the fetched scalars, learning rates, norms
    /// of gradients, time and memory
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The folder for the scalars of the log as event files, which TensorBoard reads
    #[arg(long, value_name = "DIR", requires = "log")]
    events: Option<PathBuf>,
    /// Go on with the log of --log, and with its numbers of steps, instead of replacing it
    #[arg(long, requires = "log")]
    append: bool,
    /// The file for the values that the program keeps, in safetensors format
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The file for the times of all instructions of all steps, in the format of Chrome's trace viewer and Perfetto
    #[arg(long, value_name = "FILE", conflicts_with = "device")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    recording: RecordArguments,
}

/// What is written step by step.
struct Logs {
    monitor: Option<Monitor<File>>,
    record: Option<RunRecord>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// Of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    compile_seconds: Option<f64>,
    /// The median.
    seconds_per_step: f64,
    first_step_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bytes: Option<usize>,
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
        let (save, out, log) = (self.save.as_deref(), self.out.as_deref(), self.log.as_deref());
        check_outputs([
            ("--save", save),
            ("--out", out),
            ("--log", log),
            ("--trace", self.trace.as_deref()),
        ])?;
        let Model { program, scope, fetches: results, .. } = self.model.read_model()?;
        let startup = self.startup.iter().map(|path| read_program(path, &LoadOptions::default()));
        let startup: Vec<Program> = startup.collect::<Result<_>>().map_err(CommandFailure::unreadable)?;
        // Only then the startup programs make all values.
        let is_empty = scope.is_empty() && self.weights.is_none();
        let backend = self.backend(terminal, &program, scope, &startup)?;
        let feeds = self.feeds.as_deref().map_or(Ok(vec![]), read_npz)?;
        let names = fetches(&program, if self.fetch.is_empty() { &results } else { &self.fetch });
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let (program, backend) = self.frozen(program, backend, &feeds, &names)?;
        let fetches: Vec<&str> = names.iter().map(String::as_str).collect();
        let monitor = self.monitor(&program, &fetches)?;
        if let Some(warning) = monitor.as_ref().and_then(Monitor::warning) {
            terminal.warn(&warning);
        }
        if let Some(warning) = isa().warning().filter(|_| self.device.is_none()) {
            terminal.warn(warning);
        }
        let mut watched = fetches.clone();
        for name in monitor.iter().flat_map(Monitor::fetches) {
            if !watched.contains(&name) {
                watched.push(name);
            }
        }
        let (threads, device) = match &backend {
            Backend::Host(executor, _) => (Some(executor.threads()), None),
            Backend::Device(_, scope) => (None, Some(scope.device().description().to_string())),
        };
        let record = match &backend {
            Backend::Host(_, scope) => {
                self.recording.create(&program, scope, if is_empty { &startup } else { &[] })?
            }
            Backend::Device(..) => None,
        };
        let start = Instant::now();
        let mut stepper = Stepper::new(backend, &program, &feeds, &watched, self.trace.is_some())?;
        let compile_seconds = device.as_ref().map(|_| start.elapsed().as_secs_f64());
        drop(watched);
        let mut outcome = CommandOutcome::default();
        let logs = Logs { monitor, record };
        let (seconds, failure) = self.steps(terminal, &mut stepper, &fetches, logs, &mut outcome);
        if let Some(path) = &self.trace {
            outcome.add(stepper.save_trace(path).map_err(Into::into));
        }
        if let Some((step, e)) = failure {
            return Err(self.failed_step(step, &e, seconds.len(), stepper));
        }
        let peak_bytes = stepper.peak_bytes();
        let fetched = fetches.iter().map(|name| Ok((*name, stepper.fetch(name)?)));
        let fetched = fetched.collect::<Result<Vec<(&str, Tensor)>>>();
        if let Some(path) = save {
            outcome.add(stepper.values().and_then(|values| values.save(path)).map_err(Into::into));
        }
        let Ok(fetched) = fetched.map_err(|e| outcome.add(Err(e.into()))) else { return outcome.finish() };
        if let Some(path) = out {
            let saved = save_npz(path, fetched.iter().map(|(name, tensor)| (*name, tensor)));
            outcome.add(saved.map_err(Into::into));
        }
        outcome.add(terminal.print_json(&RunJson {
            schema: "autobwd.run/1",
            steps: seconds.len(),
            threads,
            device,
            compile_seconds,
            seconds_per_step: median(&seconds),
            first_step_seconds: seconds[0],
            peak_bytes,
            fetched: fetched.iter().map(|(name, tensor)| (*name, FetchedJson::of(tensor))).collect(),
        }));
        outcome.finish()
    }

    /// Host or device, with the values before the first step.
    fn backend(
        &self,
        terminal: Terminal,
        program: &Program,
        values: Scope,
        startup: &[Program],
    ) -> CommandResult<Backend> {
        let mut backend = match &self.device {
            None => Backend::Host(executor(self.threads).check_finite(self.check_finite), values),
            Some(plugin) => {
                let opened = Backend::open(Some(plugin));
                let mut backend = opened.map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
                backend.set_values(&values)?;
                backend
            }
        };
        startup.iter().try_for_each(|program| backend.run(program, &[], &[]).map(drop))?;
        if let Some(path) = &self.weights {
            let mut weights = Scope::new();
            weights.load(path).map_err(|e| CommandFailure::Unreadable(e.to_string()))?;
            terminal.warn_converted(&weights.convert_to(program)?);
            backend.set_values(&weights)?;
        }
        Ok(backend)
    }

    /// The program with its constants folded, and their values, if its results are all that is asked for. A program that
    /// cannot run is kept, so that its errors name its own operators and variables.
    fn frozen(
        &self,
        program: Program,
        backend: Backend,
        feeds: &[(String, Tensor)],
        fetches: &[String],
    ) -> CommandResult<(Program, Backend)> {
        let keeps_all = self.exact || self.check_finite || self.log.is_some() || self.save.is_some();
        let keeps_all = keeps_all || self.recording.is_given();
        let Backend::Host(executor, scope) = backend else { return Ok((program, backend)) };
        let inputs: Vec<String> = inputs(&program).iter().map(ToString::to_string).collect();
        // A feed may also replace a value that is computed or kept.
        let is_input = |(name, value): &(String, Tensor)| {
            let desc = program.find(name).and_then(|var| program.root().vars.get(&var));
            inputs.contains(name) && desc.is_some_and(|desc| desc.meta().agrees(&value.meta()))
        };
        let fits = feeds.iter().all(is_input)
            && fetches.iter().all(|name| program.find(name).is_some())
            && verify(&program).is_ok();
        let mut model = Model { program, feeds: inputs, fetches: fetches.to_vec(), scope };
        if fits && !keeps_all && !model.changes_values() {
            model.freeze()?;
        }
        Ok((model.program, Backend::Host(executor, model.scope)))
    }

    /// The monitor of the fetches that have one element by their declaration.
    fn monitor(&self, program: &Program, fetches: &[&str]) -> CommandResult<Option<Monitor<File>>> {
        let Some(path) = &self.log else { return Ok(None) };
        let is_scalar = |name: &&&str| {
            let desc = program.find(name).and_then(|var| program.root().vars.get(&var));
            desc.is_some_and(|desc| desc.dims.numel() == 1)
        };
        let scalars: Vec<&str> = fetches.iter().filter(is_scalar).copied().collect();
        let monitor = match self.append {
            true => Monitor::resume(path, program, &scalars, u64::MAX)?,
            false => Monitor::create(path, program, &scalars)?,
        };
        Ok(Some(match &self.events {
            Some(folder) => monitor.with_events(folder)?,
            None => monitor,
        }))
    }

    /// Runs the steps; returns the seconds of each that is complete, and the step that fails. As long as there is
    /// something to save, a log or a standard output that cannot be written does not end the run.
    fn steps(
        &self,
        terminal: Terminal,
        stepper: &mut Stepper,
        fetches: &[&str],
        Logs { mut monitor, mut record }: Logs,
        outcome: &mut CommandOutcome,
    ) -> (Vec<f64>, Option<(u64, Error)>) {
        let steps = self.steps.unwrap_or(1);
        let before = monitor.as_ref().and_then(Monitor::last_step).unwrap_or(0);
        let has_files = self.save.is_some() || self.out.is_some();
        let (progress, mut times) = (Progress::new(steps), vec![]);
        let (mut is_printed, mut failure) = (self.steps.is_some(), None);
        for step in (1..=steps).map(|step| before.saturating_add(step)) {
            let seconds = match stepper.step() {
                Ok(seconds) => seconds,
                Err(e) => {
                    failure = Some((step, e));
                    break;
                }
            };
            times.push(seconds);
            if let Some(log) = &mut monitor
                && let Err(e) = stepper.record(log, step)
            {
                monitor = None;
                outcome.add(Err(e.into()));
            }
            if let Some(recorded) = &mut record
                && let Err(e) = stepper.record_inputs(recorded)
            {
                record = None;
                outcome.add(Err(e.into()));
            }
            if is_printed {
                let scalar = |name: &&str| Some((name.to_string(), number(stepper.item(name).ok()?)));
                let scalars = fetches.iter().filter_map(scalar).collect();
                let document = StepJson { schema: "autobwd.step/1", step, seconds, scalars };
                let printed = progress.suspend(|| terminal.print_json(&document));
                is_printed = printed.is_ok();
                outcome.add(printed);
            }
            if !outcome.is_success() && !has_files && monitor.is_none() && record.is_none() {
                break;
            }
            progress.advance();
        }
        drop(progress);
        if let Some(record) = record.filter(|_| failure.is_none()) {
            outcome.add(stepper.finish_record(record).map_err(Into::into));
        }
        (times, failure)
    }

    /// The failure of a step, after the values of the last complete step are saved: a failed step changes none.
    fn failed_step(&self, step: u64, e: &Error, complete: usize, stepper: Stepper) -> CommandFailure {
        let mut text = e.to_string();
        if self.steps.is_some() {
            text += &format!("\nstep {step} has failed");
        }
        if let Some(path) = &self.save {
            let path_text = path.display();
            text += &match complete {
                0 => format!("\n`{path_text}` is not written: no step is complete"),
                _ => match stepper.values().and_then(|values| values.save(path)) {
                    Ok(()) => format!("\n`{path_text}` has the values after step {}", step - 1),
                    Err(e) => format!("\nthe values after step {} are lost: {e}", step - 1),
                },
            };
        }
        if let Some(path) = &self.out {
            text += &format!("\n`{}` is not written: it is for the last step", path.display());
        }
        CommandFailure::Failed(text)
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
