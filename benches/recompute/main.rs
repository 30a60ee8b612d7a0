//! Costs of memory budgets: forward and backward pass of two networks with recomputation.
//!
//! `cargo run --release -p autobwd-benches --bin recompute` prints a JSON line for each budget, from that without
//! recomputation down to the last tenth of it that is feasible. The measured peak is the growth of resident memory from
//! planning to the end of a step.

mod models;

use std::{process::ExitCode, time::Instant};

use autobwd::{
    Backward, ErrorKind, Executor, Scope, Session, append_backward,
    backward::{Recompute, RecomputeReport},
};
use autobwd_benches::{
    BenchResult, finish, forget_peak, median, ms, peak_resident_bytes, resident_bytes, round,
};
use clap::Parser;
use models::RecomputeModel;
use serde_json::json;

/// Times a step of two networks for several memory budgets, one JSON line each.
#[derive(Parser)]
struct Args {
    /// Threads to run on.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Number of repetitions, in turn with the step without recomputation.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let executor = Executor::with_threads(args.threads);
    for model in [models::deep()?, models::transformer()?] {
        let mut kept = StepFigures::new(&executor, &model, Recompute::None)?;
        // Memory freed by one would hide that of the next.
        let mut steps = vec![];
        for tenths in (0..=10).rev() {
            let budget_bytes = kept.session.arena_bytes() * tenths / 10;
            match StepFigures::new(&executor, &model, Recompute::auto(budget_bytes, &[])) {
                Ok(mut step) => {
                    row(&model, budget_bytes, &mut step, &mut kept, args.rounds)?;
                    steps.push(step);
                }
                Err(e) if e.kind() == ErrorKind::Budget => {
                    eprintln!("{}: {e}", model.name);
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(
    model: &RecomputeModel,
    budget_bytes: usize,
    step: &mut StepFigures,
    kept: &mut StepFigures,
    rounds: usize,
) -> BenchResult<()> {
    let (mut step_ms, mut kept_ms) = (vec![], vec![]);
    for _ in 0..rounds.max(1) {
        step_ms.push(step.time()?);
        kept_ms.push(kept.time()?);
    }
    let (step_ms, kept_ms) = (median(step_ms), median(kept_ms));
    let share = |planned: autobwd::backward::RecomputeCost| {
        planned.again.picoseconds() as f64 / planned.forward.picoseconds() as f64
    };
    let line = json!({
        "model": model.name,
        "budget_bytes": budget_bytes,
        "planned_peak_bytes": step.session.peak_bytes(),
        "measured_peak_bytes": step.measured_bytes,
        "computed_again": step.recomputed.names.len(),
        "forward_again": step.recomputed.planned.map(|planned| round(share(planned), 3)),
        "search_ms": round(step.search_ms, 1),
        "step_ms": round(step_ms, 3),
        "extra_ms": round(step_ms - kept_ms, 3),
        "extra": round(step_ms / kept_ms - 1.0, 3),
    });
    println!("{line}");
    Ok(())
}

/// Forward and backward pass, ready to run.
struct StepFigures {
    session: Session,
    scope: Scope,
    recomputed: RecomputeReport,
    search_ms: f64,
    measured_bytes: Option<usize>,
}

impl StepFigures {
    fn new(
        executor: &Executor,
        model: &RecomputeModel,
        checkpoints: Recompute<'_>,
    ) -> autobwd::Result<StepFigures> {
        let (mut program, mut scope) = (model.net.program()?.clone(), model.scope.clone());
        let start = Instant::now();
        let backward = Backward { recompute: checkpoints, ..Backward::default() };
        let found = append_backward(&mut program, &model.loss, &backward)?;
        let search_ms = ms(start);
        let mut fetches = vec![model.loss.as_str()];
        fetches.extend(found.pairs.iter().map(|(_, grad)| program.name(*grad)));
        let before = forget_peak().then(resident_bytes);
        let session = executor.prepare(&program, &mut scope, &[], &fetches)?;
        let recomputed = found.recomputed;
        let mut step = StepFigures { session, scope, recomputed, search_ms, measured_bytes: None };
        step.time()?;
        step.measured_bytes = before.map(|before| peak_resident_bytes().saturating_sub(before));
        Ok(step)
    }

    /// Milliseconds of one step.
    fn time(&mut self) -> autobwd::Result<f64> {
        let start = Instant::now();
        self.session.run(&mut self.scope)?;
        Ok(ms(start))
    }
}
