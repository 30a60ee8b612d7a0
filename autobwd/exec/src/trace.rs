//! Traces of runs, in the format of Chrome's trace viewer and Perfetto.

use std::{
    borrow::Cow,
    path::Path,
    time::{Duration, Instant},
};

use serde::Serialize;

use autobwd_core::{
    __private::{WorkerSpan, internals::*},
    Error, ErrorKind, Result,
    tensor::write_atomically,
};
use autobwd_plan::PlanReport;

/// The slices of instructions and threads of all steps that a trace holds, at most: a viewer takes seconds to open them.
const LIMIT: usize = 1 << 18;

/// The slices of threads in one step, at most; later ones are left out. Their memory is allocated before the step.
pub(crate) const STEP_SPANS: usize = 1 << 16;

/// The track of the instructions; the tracks of the threads follow.
const INSTRUCTIONS: usize = 1;

/// When each instruction of a session ran: operators, source lines, threads and memory over time, for trace viewers.
///
/// The text is JSON in the format of Chrome's trace viewer (`chrome://tracing`), which <https://ui.perfetto.dev> opens as
/// well. A step is a slice that contains the slices of its instructions. An instruction lists its operators, their source
/// lines and the variables that it writes. The counter `live bytes` is what the arena holds at the start of an
/// instruction.
///
/// Each thread has a track with the work that it shares with others: slices with the name of the instruction, which count
/// the parts of the work that the thread took. `thread 0` is the thread that runs the session. If one slice of an
/// instruction ends later than the others, the work is divided badly; where only the track `instructions` has a slice,
/// `thread 0` works alone. The first 65,536 slices of threads in a step are shown.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Meta, Scope, Tensor, exec::RunTrace};
/// use autobwd_ops::Math;
///
/// let net = Builder::new();
/// let mean = net.input("x", DType::F32, &[-1, 2]).tanh().mean();
/// let (program, fetches) = (net.program()?, [mean.name()]);
/// let (executor, mut scope) = (Executor::new(), Scope::new());
/// let (feeds, fetches) = ([("x", Meta::new(DType::F32, [3, 2]))], [&*fetches[0]]);
/// let mut session = executor.prepare(&program, &mut scope, &feeds, &fetches)?;
/// let mut trace = RunTrace::new(&executor.plan(&program, &scope, &feeds, &fetches)?);
/// for _ in 0..2 {
///     session.feed("x", &Tensor::zeros(DType::F32, &[3, 2])?)?;
///     session.trace(&mut scope, &mut trace)?;
/// }
/// assert_eq!(trace.steps(), 2);
/// assert!(trace.to_json()?.contains(r#""name":"tanh + mean","cat":"instruction","ph":"X""#));
/// // trace.save("trace.json")? writes a file.
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// The format: Google, "Trace Event Format", 2016.
#[derive(Clone, Debug)]
pub struct RunTrace {
    start: Instant,
    instructions: Vec<TracedInstruction>,
    /// By instruction of the session: its number in the plan, or `None` for a copy.
    numbers: Vec<Option<usize>>,
    /// Bytes of the arena after the last instruction.
    end_bytes: usize,
    steps: Vec<TracedStep>,
    /// The slices of instructions and threads in all steps.
    slices: usize,
    skipped: usize,
}

/// An instruction, the same in each step.
#[derive(Clone, Debug)]
struct TracedInstruction {
    name: String,
    operators: Vec<String>,
    sources: Vec<String>,
    writes: Vec<String>,
    live_bytes: usize,
}

/// Times since the start of the trace.
#[derive(Clone, Debug)]
struct TracedStep {
    start: Duration,
    end: Duration,
    /// Start and duration of each instruction.
    instructions: Vec<(Duration, Duration)>,
    shares: Vec<TracedShare>,
}

/// What a thread does of an instruction.
#[derive(Clone, Debug)]
struct TracedShare {
    thread: usize,
    parts: usize,
    /// The number of the instruction in the plan; operators of dynamic shape have none.
    instruction: Option<usize>,
    start: Duration,
    duration: Duration,
}

#[derive(Serialize)]
struct TraceFile<'a> {
    #[serde(rename = "traceEvents")]
    events: Vec<TraceEvent<'a>>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
}

/// An event of the format; times are microseconds.
#[derive(Serialize)]
struct TraceEvent<'a> {
    name: &'a str,
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: usize,
    args: EventArguments<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EventArguments<'a> {
    Instruction { operators: &'a [String], sources: &'a [String], writes: &'a [String] },
    Step { step: usize },
    Memory { bytes: usize },
    Share { parts: usize },
    Name { name: Cow<'static, str> },
}

impl RunTrace {
    /// A trace without steps, of the session that has this plan: [`Executor::plan`](crate::Executor::plan) with the
    /// arguments of [`prepare`](crate::Executor::prepare). Times count from now.
    pub fn new(plan: &PlanReport) -> RunTrace {
        let mut live_bytes = plan.live_bytes_by_instruction();
        let end_bytes = live_bytes.pop().unwrap_or(0);
        let instructions = plan.instructions().iter().zip(live_bytes).filter(|(planned, _)| !planned.once);
        let traced = instructions.map(|(planned, live_bytes)| TracedInstruction {
            name: planned.summary(),
            operators: planned.operators.clone(),
            sources: planned.sources.clone(),
            writes: planned.writes.clone(),
            live_bytes,
        });
        let (instructions, numbers, steps) = (traced.collect(), vec![], vec![]);
        RunTrace { start: Instant::now(), instructions, numbers, end_bytes, steps, slices: 0, skipped: 0 }
    }

    /// The number of steps.
    pub fn steps(&self) -> usize {
        self.steps.len() + self.skipped
    }

    /// Steps that ran after the trace was full, at 262,144 slices of instructions and threads: they are not in the text.
    pub fn skipped_steps(&self) -> usize {
        self.skipped
    }

    /// Requires a session with these instructions, copies among them, and as many others as the plan has.
    pub(crate) fn expect(&mut self, is_planned: impl Iterator<Item = bool>) -> Result<()> {
        let mut planned = 0;
        let number = |is_planned: bool| {
            planned += usize::from(is_planned);
            is_planned.then(|| planned - 1)
        };
        let numbers: Vec<Option<usize>> = is_planned.map(number).collect();
        if planned != self.instructions.len() || !self.steps.is_empty() && numbers != self.numbers {
            let text = format!(
                "the trace has the plan of {} instructions, but the session runs {planned}: make it from the plan of the \
                 session's program, feeds and fetches",
                self.instructions.len()
            );
            return Err(Error::new(ErrorKind::Program, text));
        }
        self.numbers = numbers;
        Ok(())
    }

    /// The time of this trace.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Adds a step that has started then and ends now, with what its threads did.
    pub(crate) fn add(
        &mut self,
        start: Duration,
        instructions: Vec<(Duration, Duration)>,
        spans: &[WorkerSpan],
    ) {
        let slices = self.slices + instructions.len() + spans.len();
        if slices > LIMIT {
            self.skipped += 1;
            return;
        }
        let share = |span: &WorkerSpan| {
            let start = span.start.duration_since(self.start);
            let after = instructions.partition_point(|(first, _)| *first <= start);
            let running =
                instructions[..after].last().filter(|(first, duration)| start <= *first + *duration);
            TracedShare {
                thread: span.worker,
                parts: span.parts,
                instruction: running.and_then(|_| self.numbers[after - 1]),
                start,
                duration: span.end.duration_since(span.start),
            }
        };
        let shares = spans.iter().map(share).collect();
        self.slices = slices;
        self.steps.push(TracedStep { start, end: self.now(), instructions, shares });
    }

    /// The trace as JSON.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn to_json(&self) -> Result<String> {
        let name = |name: Cow<'static, str>, what, tid| TraceEvent {
            name: what,
            cat: "",
            ph: "M",
            ts: 0.0,
            dur: None,
            pid: 1,
            tid,
            args: EventArguments::Name { name },
        };
        let track = |thread| INSTRUCTIONS + 1 + thread;
        let mut events = vec![
            name("autobwd".into(), "process_name", INSTRUCTIONS),
            name("instructions".into(), "thread_name", INSTRUCTIONS),
        ];
        let threads = self.steps.iter().flat_map(|step| &step.shares).map(|share| share.thread + 1).max();
        for thread in 0..threads.unwrap_or(0) {
            events.push(name(format!("thread {thread}").into(), "thread_name", track(thread)));
        }
        for (number, step) in self.steps.iter().enumerate() {
            let slice = |(start, duration): (Duration, Duration), name, cat, tid, args| TraceEvent {
                name,
                cat,
                ph: "X",
                ts: microseconds(start),
                dur: Some(microseconds(duration)),
                pid: 1,
                tid,
                args,
            };
            let memory = |at: Duration, bytes| TraceEvent {
                name: "live bytes",
                cat: "memory",
                ph: "C",
                ts: microseconds(at),
                dur: None,
                pid: 1,
                tid: INSTRUCTIONS,
                args: EventArguments::Memory { bytes },
            };
            let times = (step.start, step.end.saturating_sub(step.start));
            let args = EventArguments::Step { step: number + 1 };
            events.push(slice(times, "step", "step", INSTRUCTIONS, args));
            for (number, times) in self.numbers.iter().zip(&step.instructions) {
                let Some(number) = number else {
                    let args = EventArguments::Instruction { operators: &[], sources: &[], writes: &[] };
                    events.push(slice(*times, "copy", "instruction", INSTRUCTIONS, args));
                    continue;
                };
                let TracedInstruction { name, operators, sources, writes, live_bytes } =
                    &self.instructions[*number];
                events.push(memory(times.0, *live_bytes));
                let args = EventArguments::Instruction { operators, sources, writes };
                events.push(slice(*times, name, "instruction", INSTRUCTIONS, args));
            }
            for TracedShare { thread, parts, instruction, start, duration } in &step.shares {
                let name = instruction.map_or("step", |number| &self.instructions[number].name);
                let args = EventArguments::Share { parts: *parts };
                events.push(slice((*start, *duration), name, "thread", track(*thread), args));
            }
            events.push(memory(step.end, self.end_bytes));
        }
        let file = TraceFile { events, unit: "ms" };
        serde_json::to_string(&file).map_err(|e| Error::internal(e.to_string()))
    }

    /// Writes the trace to a file, or leaves the file as it is.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        write_atomically(path.as_ref(), self.to_json()?.as_bytes())
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
