//! Costs of loops and recurrences.
//!
//! `cargo run --release -p autobwd-benches --bin loops` prints three JSON lines: a training step of an LSTM as a
//! recurrence, compared with the unrolled one; an iteration of a loop that only counts; and a recurrence of 10,000
//! steps with a checkpoint every hundred steps, compared with one that saves all steps. The measured peak is the growth
//! of resident memory from planning to the end of a step.

use std::{process::ExitCode, time::Instant};

use autobwd::{Builder, DType, Executor, Expr, New, Result, Scope, Session};
use autobwd_benches::{
    BenchResult, finish, forget_peak, median, ms, peak_resident_bytes, resident_bytes, round,
    workload::{LSTM, LstmWorkloadSizes, WorkloadModel},
};
use autobwd_ops::{
    Math,
    control::{static_rnn, while_loop},
    fill::FillConstant,
    nn::{DirectionWeights, LstmCell, RecurrentCell},
};
use clap::Parser;
use serde_json::{Value, json};

/// Times loops and recurrences, one JSON line each.
#[derive(Parser)]
struct Args {
    /// Threads to run on.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Number of repetitions, in turn; a tenth of it for the long recurrence.
    #[arg(long, default_value_t = 101)]
    rounds: usize,
    /// Iterations of the loop.
    #[arg(long, default_value_t = 10_000)]
    iterations: u32,
}

/// The long recurrence.
const LONG: LstmWorkloadSizes = LstmWorkloadSizes { steps: 10_000, batch: 16, inputs: 4, units: 64 };

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let executor = Executor::with_threads(args.threads);
    // All are prepared first: memory freed by one would hide that of the next.
    let lstm = [
        ("recurrent", LoopFigures::new(&executor, &LSTM, |x, pass| recurrent(&gates(x, &pass), &pass))?),
        ("unrolled", LoopFigures::new(&executor, &LSTM, |x, pass| unrolled(&gates(x, &pass), &pass))?),
    ];
    let long = [
        ("checkpoints", LoopFigures::new(&executor, &LONG, |x, pass| long(x, &pass, 100))?),
        ("everything", LoopFigures::new(&executor, &LONG, |x, pass| long(x, &pass, 0))?),
    ];
    println!("{}", compare("lstm", args.threads, args.rounds, lstm)?);
    println!("{}", count(&executor, args)?);
    println!("{}", compare("long", args.threads, args.rounds.div_ceil(10), long)?);
    Ok(ExitCode::SUCCESS)
}

/// Input projections of the gates.
fn gates(x: &Expr, pass: &DirectionWeights) -> Expr {
    x.matmul(&pass.input_weight) + &pass.bias
}

/// The initial states.
fn zeros(x: &Expr, pass: &DirectionWeights) -> Expr {
    let dims = [&x.dims()[1], &pass.state_weight.dims()[0]].map(|dim| dim.get().unwrap_or(0) as i64);
    let (shape, value, str_value) = (dims.to_vec(), 0.0, String::new());
    x.builder().emit(FillConstant { shape, dtype: DType::F32, value, str_value, ..FillConstant::of(New) }).out
}

/// The last output, by a recurrence.
fn recurrent(gates: &Expr, pass: &DirectionWeights) -> Expr {
    over_steps(gates, pass, 0, Expr::clone)
}

/// The same with little memory for all steps together.
fn long(x: &Expr, pass: &DirectionWeights, every: usize) -> Expr {
    over_steps(x, pass, every, |x| gates(x, pass))
}

fn over_steps(x: &Expr, pass: &DirectionWeights, every: usize, gates: impl Fn(&Expr) -> Expr) -> Expr {
    let zeros = zeros(x, pass);
    let mut last = static_rnn(x.builder(), false, |rnn| {
        rnn.checkpoint_every(every);
        let x = rnn.step_input(x);
        let before = [rnn.memory(&zeros), rnn.memory(&zeros)];
        let after = LstmCell::step(&gates(&x), &before, &pass.state_weight);
        before.iter().zip(&after).for_each(|(before, after)| rnn.update_memory(before, after));
        rnn.last_output(&before[0]);
    });
    last.swap_remove(0)
}

/// The last output, unrolled.
fn unrolled(gates: &Expr, pass: &DirectionWeights) -> Expr {
    let zeros = zeros(gates, pass);
    let mut states = vec![zeros.clone(), zeros];
    for gates in gates.split(&[1; LSTM.steps], 0) {
        states = LstmCell::step(&gates.squeeze(&[0]), &states, &pass.state_weight);
    }
    states.swap_remove(0)
}

/// A training step, ready to run.
struct LoopFigures {
    model: WorkloadModel,
    session: Session,
    measured_bytes: Option<usize>,
    times: Vec<f64>,
}

impl LoopFigures {
    fn new(
        executor: &Executor,
        sizes: &LstmWorkloadSizes,
        last: impl FnOnce(&Expr, DirectionWeights) -> Expr,
    ) -> Result<LoopFigures> {
        let mut model = WorkloadModel::lstm(sizes, last)?;
        let before = forget_peak().then(resident_bytes);
        let session = executor.prepare(&model.net.program()?, &mut model.scope, &[], &[&model.loss])?;
        let mut step = LoopFigures { model, session, measured_bytes: None, times: vec![] };
        step.session.run(&mut step.model.scope)?;
        step.measured_bytes = before.map(|before| peak_resident_bytes().saturating_sub(before));
        Ok(step)
    }

    fn time(&mut self) -> Result<()> {
        let start = Instant::now();
        self.session.run(&mut self.model.scope)?;
        self.times.push(ms(start));
        Ok(())
    }

    fn to_json(&self) -> Value {
        json!({
            "ms": round(median(self.times.clone()), 4),
            "planned_peak_bytes": self.session.peak_bytes(),
            "measured_peak_bytes": self.measured_bytes,
        })
    }
}

/// Two forms of a training step, in turn.
fn compare(
    workload: &str,
    threads: usize,
    rounds: usize,
    mut forms: [(&str, LoopFigures); 2],
) -> BenchResult<Value> {
    for _ in 0..rounds.max(1) {
        forms.iter_mut().try_for_each(|(_, step)| step.time())?;
    }
    let [(a, one), (b, other)] = &forms;
    let losses = [one.session.item(&one.model.loss)?, other.session.item(&other.model.loss)?];
    if (losses[0] - losses[1]).abs() > 1e-4 * losses[1].abs() {
        return Err(format!("the losses are {losses:?}").into());
    }
    let [time, other_time] = [one, other].map(|step| median(step.times.clone()));
    let bytes = |step: &LoopFigures| step.session.peak_bytes() as f64;
    Ok(json!({
        "lib": "autobwd",
        "workload": workload,
        "threads": threads,
        *a: one.to_json(),
        *b: other.to_json(),
        "time": round(time / other_time, 3),
        "memory": round(bytes(one) / bytes(other), 3),
    }))
}

/// A loop that only counts.
fn count(executor: &Executor, args: &Args) -> BenchResult<Value> {
    let net = Builder::new();
    let number = |value: u32| {
        let (shape, value, str_value) = (vec![1], value as f32, String::new());
        net.emit(FillConstant { shape, dtype: DType::I64, value, str_value, ..FillConstant::of(New) }).out
    };
    let end = number(args.iterations);
    let last = while_loop(&[number(0)], |v| v[0].less_than(&end), |v| vec![&v[0] + 1.0]);
    let mut scope = Scope::new();
    let mut session = executor.prepare(&net.program()?, &mut scope, &[], &[&last[0].name()])?;
    let mut times = vec![];
    for _ in 0..args.rounds.max(1) {
        let start = Instant::now();
        session.run(&mut scope)?;
        times.push(ms(start));
    }
    let iterations = session.item(&last[0].name())?;
    Ok(json!({
        "lib": "autobwd",
        "workload": "while",
        "threads": args.threads,
        "iterations": iterations,
        "iteration_ns": round(median(times) * 1e6 / iterations, 1),
    }))
}
