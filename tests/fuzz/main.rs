//! `fuzz [--seconds N] [--seed N] [--target json|safetensors|checkpoint|paddle|onnx|gguf|folder]`: fuzzes
//! programs, weights, checkpoints, models of PaddlePaddle, ONNX and GGUF, and folders of published models.
//!
//! The current input is in `target/fuzz/TARGET.current` and the options that reproduce it in `TARGET.options`, in case
//! the process dies. Failing inputs stay in the same folder. Results, one JSON line each, are on stdout; progress is on
//! stderr.

mod memory;

use std::{
    any::Any,
    collections::{BTreeMap, HashSet},
    fs,
    io::{self, Seek as _, Write as _},
    panic::{AssertUnwindSafe, catch_unwind, set_hook},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use autobwd::{OpInfoMap, Scope};
use autobwd_tests::{
    checksum::without_checksum,
    fuzz::{self, FuzzFinding, FuzzOutcome, FuzzSeed, Rng},
};
use clap::{Parser, ValueEnum};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: memory::Limited = memory::Limited;

/// Fuzzes programs, weights and checkpoints.
#[derive(Parser)]
struct Options {
    /// Duration in seconds, all targets together.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Fuzz one target only.
    #[arg(long)]
    target: Option<Target>,
    /// A folder of further models of ONNX to change, such as ONNX's node tests.
    #[arg(long)]
    models: Option<PathBuf>,
    /// Executes these inputs instead, program by program.
    inputs: Vec<PathBuf>,
    /// For these inputs, the number of the initial input whose values they use, as reported with a failure.
    #[arg(long, default_value_t = 0, requires = "inputs")]
    values: usize,
    /// For these inputs, the seed that selects differentiated variables, as reported with a failure.
    #[arg(long, default_value_t = 0, requires = "inputs")]
    draw: u64,
}

#[derive(Clone, Copy, ValueEnum, PartialEq)]
enum Target {
    /// Programs.
    Json,
    /// Weights.
    Safetensors,
    /// Checkpoints of training runs.
    Checkpoint,
    /// Models of PaddlePaddle.
    Paddle,
    /// Models of ONNX.
    Onnx,
    /// Models of GGUF.
    Gguf,
    /// Texts and sounds in folders of published models.
    Folder,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::Json => "json",
            Target::Safetensors => "safetensors",
            Target::Checkpoint => "checkpoint",
            Target::Paddle => "paddle",
            Target::Onnx => "onnx",
            Target::Gguf => "gguf",
            Target::Folder => "folder",
        }
    }
}

/// Maximum duration of one execution.
const DEADLINE: Duration = Duration::from_secs(30);
/// Maximum number and length of kept inputs that reached new outcomes.
const KEPT: usize = 20_000;
const KEPT_BYTES: usize = 40_000;
/// The bytes of a GGUF file that are changed: the headers of the initial inputs and some of their data.
const GGUF_START: usize = 12_000;
/// Number of inputs to draw; the shortest one is changed.
const DRAWN: usize = 3;

/// Start of the current execution, in milliseconds; 0 if there is none.
static STARTED: AtomicU64 = AtomicU64::new(0);
/// Message of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

type Outcomes<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Outcomes<usize> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz");
    fs::create_dir_all(&folder)?;
    set_hook(Box::new(|info| *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = info.to_string()));
    let begin = Instant::now();
    watch(begin);
    let seeds = fuzz::seeds()?;
    let mut failures = 0;
    if !options.inputs.is_empty() {
        let saved = folder.join("input.saved");
        let checkpoints = fuzz::checkpoint_seeds(&seeds);
        for path in &options.inputs {
            let input = fs::read(path)?;
            if options.target == Some(Target::Checkpoint) {
                let model = checkpoints.get(options.values).ok_or("there is no seed of that number")?;
                let failure = guarded(begin, || fuzz::checkpoint(path, &saved, model)).err();
                println!("{}", json!({ "input": path, "failure": failure }));
                failures += usize::from(failure.is_some());
                continue;
            }
            let values = &seeds.get(options.values).ok_or("there is no seed of that number")?.values;
            let failure = guarded(begin, || match options.target {
                Some(Target::Paddle) => fuzz::paddle(&input, &mut Rng(options.draw)),
                Some(Target::Onnx) => fuzz::onnx(&input, &mut Rng(options.draw)),
                Some(Target::Gguf) => gguf(&saved.with_extension("gguf"), &input, options.draw),
                Some(Target::Folder) => {
                    fuzz::folder(&saved.with_extension("folder"), &input, &mut Rng(options.draw))
                }
                _ => fuzz::program(&String::from_utf8_lossy(&input), values, &mut Rng(options.draw)),
            });
            let failure = failure.err();
            println!("{}", json!({ "input": path, "failure": failure }));
            failures += usize::from(failure.is_some());
        }
        return Ok(failures);
    }
    for target in Target::value_variants().iter().copied() {
        if options.target.is_some_and(|only| only != target) {
            continue;
        }
        // Programs have the most outcomes.
        let share = match (options.target, target) {
            (Some(_), _) => options.seconds,
            (None, Target::Json) => options.seconds / 2,
            (None, _) => options.seconds / 12,
        };
        let end = Instant::now() + Duration::from_secs(share);
        let models = match target {
            Target::Json | Target::Safetensors | Target::Checkpoint => vec![],
            Target::Paddle => fuzz::paddle_inputs()?,
            Target::Onnx => fuzz::onnx_inputs(options.models.as_deref())?,
            Target::Gguf => fuzz::gguf_inputs()?,
            Target::Folder => fuzz::folder_inputs()?,
        };
        let seeds = match target {
            Target::Json => seeds.clone(),
            Target::Safetensors => vec![seeds[0].clone()],
            Target::Checkpoint => fuzz::checkpoint_seeds(&seeds),
            Target::Paddle | Target::Onnx | Target::Gguf | Target::Folder => {
                vec![FuzzSeed::default(); models.len()]
            }
        };
        failures += Campaign::new(target, &folder, seeds, models, options.seed)?.run(begin, end)?;
    }
    Ok(failures)
}

/// Ends the process when an execution exceeds the deadline.
fn watch(begin: Instant) {
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_millis(500));
            let started = STARTED.load(Ordering::Relaxed);
            if started > 0 && begin.elapsed().as_millis() as u64 > started + DEADLINE.as_millis() as u64 {
                eprintln!(
                    "an execution takes longer than {DEADLINE:?}; its input is in target/fuzz/*.current"
                );
                std::process::exit(3);
            }
        }
    });
}

/// Executes an input; a panic is a failure.
fn guarded(
    begin: Instant,
    execute: impl FnOnce() -> Result<FuzzFinding, String>,
) -> Result<FuzzFinding, String> {
    STARTED.store(begin.elapsed().as_millis().max(1) as u64, Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(execute));
    STARTED.store(0, Ordering::Relaxed);
    outcome.unwrap_or_else(|_: Box<dyn Any + Send>| {
        Err(std::mem::take(&mut *PANIC.lock().unwrap_or_else(PoisonError::into_inner)))
    })
}

/// Fuzzes one target for a given time.
struct Campaign<'a> {
    target: Target,
    folder: &'a Path,
    seeds: Vec<FuzzSeed>,
    /// Initial inputs first, by number: each with its changed part.
    inputs: Vec<(usize, Vec<u8>)>,
    /// The operators of these models, if they are of ONNX.
    operators: Vec<String>,
    known: HashSet<String>,
    rng: Rng,
    outcomes: BTreeMap<FuzzOutcome, u64>,
    failures: HashSet<String>,
}

impl Campaign<'_> {
    fn new(
        target: Target,
        folder: &Path,
        seeds: Vec<FuzzSeed>,
        mut models: Vec<Vec<u8>>,
        seed: u64,
    ) -> Outcomes<Campaign<'_>> {
        let mut inputs = vec![];
        let operators = fuzz::onnx_operators(if target == Target::Onnx { &models } else { &[] });
        for (number, seed) in seeds.iter().enumerate() {
            inputs.push((
                number,
                match target {
                    Target::Json => seed.program.to_json().into_bytes(),
                    Target::Paddle | Target::Onnx | Target::Gguf | Target::Folder => {
                        std::mem::take(&mut models[number])
                    }
                    Target::Checkpoint => {
                        let path = folder.join("seed.checkpoint");
                        fuzz::save_checkpoint(&path, seed)?;
                        without_checksum(fs::read(path)?)
                    }
                    Target::Safetensors => {
                        let (path, mut scope) = (folder.join("seed.safetensors"), Scope::new());
                        let mut values: Vec<_> = seed.values.iter().collect();
                        values.sort_by_key(|(name, _)| *name);
                        values.into_iter().for_each(|(name, value)| scope.set(name, value.clone()));
                        scope.save(&path)?;
                        without_checksum(fs::read(path)?)
                    }
                },
            ));
        }
        let (known, outcomes, failures) = Default::default();
        Ok(Campaign { target, folder, seeds, inputs, operators, known, rng: Rng(seed), outcomes, failures })
    }

    fn run(mut self, begin: Instant, end: Instant) -> Outcomes<usize> {
        let operators = std::mem::take(&mut self.operators);
        let words: Vec<&str> = match self.target {
            Target::Onnx => operators.iter().map(String::as_str).collect(),
            _ => OpInfoMap::linked()?.iter().map(|info| info.schema().name).collect(),
        };
        let (current, start) = (self.folder.join(format!("{}.current", self.target.name())), Instant::now());
        let saved = current.with_extension("saved");
        let mut current_file = fs::File::create(&current)?;
        let mut options_file = fs::File::create(current.with_extension("options"))?;
        let (mut executions, mut told) = (0_u64, Instant::now());
        while Instant::now() < end {
            // At first, every other input is an initial one; later, every other one is a changed initial one.
            let replayed = usize::try_from(executions / 2)
                .ok()
                .filter(|at| executions % 2 == 0 && *at < self.seeds.len());
            let at = replayed.unwrap_or_else(|| self.pick());
            let (seed, before) = &self.inputs[at];
            let seed = *seed;
            let input = match (self.target, std::str::from_utf8(before)) {
                _ if replayed.is_some() => before.clone(),
                (Target::Json, Ok(text)) => fuzz::mutate(text, &words, &mut self.rng).into_bytes(),
                (Target::Safetensors, _) if self.rng.below(2) == 0 => {
                    header_changed(before, &words, fuzz::mutate, &mut self.rng)
                }
                (Target::Checkpoint, _) if self.rng.below(2) == 0 => {
                    header_changed(before, &words, fuzz::mutate_metadata, &mut self.rng)
                }
                (Target::Checkpoint, _) if self.rng.below(2) == 0 => {
                    header_changed(before, &words, fuzz::mutate, &mut self.rng)
                }
                (Target::Paddle, _) => fuzz::mutate_model(before, &words, &mut self.rng),
                (Target::Onnx, _) => fuzz::mutate_onnx(before, &words, &mut self.rng),
                (Target::Folder, _) => fuzz::mutate_folder(before, &words, &mut self.rng),
                (Target::Gguf, _) => {
                    let (start, data) = before.split_at(before.len().min(GGUF_START));
                    [fuzz::mutate_bytes(start, &mut self.rng).as_slice(), data].concat()
                }
                _ => fuzz::mutate_bytes(before, &mut self.rng),
            };
            let draw = self.rng.0;
            // Overwritten in place, which takes a third of the time of a new file.
            write_over(&mut current_file, &input)?;
            write_over(&mut options_file, format!("--values {seed} --draw {draw}").as_bytes())?;
            let model = &self.seeds[seed];
            let outcome = guarded(begin, || match self.target {
                Target::Json => {
                    fuzz::program(&String::from_utf8_lossy(&input), &model.values, &mut Rng(draw))
                }
                Target::Safetensors => fuzz::weights(&current, model),
                Target::Checkpoint => fuzz::checkpoint(&current, &saved, model),
                Target::Paddle => fuzz::paddle(&input, &mut Rng(draw)),
                Target::Onnx => fuzz::onnx(&input, &mut Rng(draw)),
                Target::Gguf => gguf(&current.with_extension("gguf"), &input, draw),
                Target::Folder => fuzz::folder(&current.with_extension("folder"), &input, &mut Rng(draw)),
            });
            executions += 1;
            match outcome {
                Ok(found) => {
                    *self.outcomes.entry(found.outcome).or_default() += 1;
                    let new = found.messages.into_iter().filter(|m| self.known.insert(m.clone())).count();
                    if new > 0 && self.inputs.len() < KEPT && input.len() < KEPT_BYTES {
                        self.inputs.push((seed, input));
                    }
                }
                Err(failure) => self.failed((executions, seed, draw), &failure, &input)?,
            }
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                let rate = executions as f64 / start.elapsed().as_secs_f64();
                let (name, inputs, failures) = (self.target.name(), self.inputs.len(), self.failures.len());
                eprintln!(
                    "{name}: {executions} executions, {rate:.0} a second, {inputs} inputs, {failures} failures"
                );
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{}",
            json!({
                "target": self.target.name(),
                "executions": executions,
                "per_second": (executions as f64 / seconds).round(),
                "outcomes": self.outcomes,
                "inputs": self.inputs.len(),
                "failures": self.failures.len(),
            })
        );
        Ok(self.failures.len())
    }

    /// An input to change: the shortest of some, since short inputs cover as much in less time.
    fn pick(&mut self) -> usize {
        let among = if self.rng.below(2) == 0 { self.seeds.len() } else { self.inputs.len() };
        let drawn = [(); DRAWN].map(|()| self.rng.below(among));
        drawn.into_iter().min_by_key(|at| self.inputs[*at].1.len()).unwrap_or_default()
    }

    /// Reports each kind of failure once.
    fn failed(
        &mut self,
        (execution, values, draw): (u64, usize, u64),
        failure: &str,
        input: &[u8],
    ) -> Outcomes<()> {
        *self.outcomes.entry("failed").or_default() += 1;
        let kind: String = failure.chars().filter(|c| !c.is_ascii_digit()).take(160).collect();
        if self.failures.insert(kind) {
            let (target, number) = (self.target.name(), self.failures.len());
            let path = self.folder.join(format!("{target}-{number}"));
            fs::write(&path, input)?;
            println!(
                "{}",
                json!({
                    "target": target,
                    "execution": execution,
                    "failure": failure,
                    "input": path,
                    "values": values,
                    "draw": draw,
                })
            );
        }
        Ok(())
    }
}

/// Executes a model of GGUF, whose file has the extension that its reader requires.
fn gguf(path: &Path, input: &[u8], draw: u64) -> Result<FuzzFinding, String> {
    fs::write(path, input).map_err(|e| e.to_string())?;
    fuzz::gguf(path, &mut Rng(draw))
}

/// Replaces the contents of a file.
fn write_over(file: &mut fs::File, contents: &[u8]) -> io::Result<()> {
    file.rewind()?;
    file.write_all(contents)?;
    file.set_len(contents.len() as u64)
}

/// A safetensors file with a changed header.
fn header_changed(
    file: &[u8],
    words: &[&str],
    mutate: impl Fn(&str, &[&str], &mut Rng) -> String,
    rng: &mut Rng,
) -> Vec<u8> {
    let length = file.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let (Some(header), Some(data)) = (file.get(8..8 + length), file.get(8 + length..)) else {
        return fuzz::mutate_bytes(file, rng);
    };
    let header = mutate(&String::from_utf8_lossy(header), words, rng);
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}
