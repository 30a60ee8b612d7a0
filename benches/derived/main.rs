//! Time per element of derived and hand-written gradient operators, and of all pointwise operators.
//!
//! `cargo run --release -p autobwd-benches --bin derived` prints a JSON line for each of ten activations and for each
//! operator; `--bound` flags operators that are slower than `tanh` by this factor, whose formulas may not have been
//! vectorised.

mod activations;
mod timing;

use std::{collections::BTreeMap, process::ExitCode};

use activations::{ACTIVATIONS, FROM_OUTPUT};
use autobwd::{
    Executor, OpInfoMap,
    op::{GradKind, OpInfo},
};
use autobwd_benches::{BenchResult, finish, round};
use autobwd_ops as _;
use clap::Parser;
use serde_json::json;
use timing::Timed;

/// Times gradient operators made by `grad = Derived` and all pointwise operators, one JSON line each.
#[derive(Parser)]
struct Args {
    /// Number of repetitions, in turn with the others.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    /// Flags operators that are slower than `tanh` by this factor.
    #[arg(long, default_value_t = 3.0)]
    bound: f64,
}

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let executor = Executor::with_threads(1);
    let mut all: Vec<_> = pointwise()?.into_iter().filter_map(|info| timed(&executor, info)).collect();
    eprintln!("{} operators, {} rounds", all.len(), args.rounds);
    for _ in 0..args.rounds.max(1) {
        all.iter_mut().try_for_each(Timed::round)?;
    }
    let ns: BTreeMap<_, _> = all.iter().map(|timed| (timed.name(), timed.ns())).collect();
    gradients(&ns);
    operators(&ns, args.bound)?;
    Ok(ExitCode::SUCCESS)
}

/// All registered operators with a formula, and their derived gradients, but not the gradients of those.
fn pointwise() -> autobwd::Result<Vec<&'static OpInfo>> {
    let registered = OpInfoMap::linked()?.iter().filter(|info| info.crate_name() != "autobwd");
    let with_gradient = |info: &'static OpInfo| match info.grad_kind() {
        GradKind::Derived(gradient) => vec![info, gradient],
        _ => vec![info],
    };
    Ok(registered.filter(|info| info.schema().pointwise).flat_map(with_gradient).collect())
}

fn timed(executor: &Executor, info: &OpInfo) -> Option<Timed> {
    Timed::new(executor, info).inspect_err(|e| eprintln!("not timed: {e}")).ok()
}

fn gradients(ns: &BTreeMap<&str, f64>) {
    for name in ACTIVATIONS {
        let of = |operator: String| ns.get(operator.as_str()).copied().unwrap_or(f64::NAN);
        let (hand, derived) = (of(format!("hand_{name}_grad")), of(format!("derived_{name}_grad")));
        let from_output = FROM_OUTPUT.contains(&name).then(|| round(of(format!("hand_{name}_out_grad")), 4));
        let line = json!({
            "gradient": name,
            "hand_ns": round(hand, 4),
            "derived_ns": round(derived, 4),
            "ratio": round(derived / hand, 2),
            "from_output_ns": from_output,
        });
        println!("{line}");
    }
}

fn operators(ns: &BTreeMap<&str, f64>, bound: f64) -> BenchResult<()> {
    let tanh = *ns.get("tanh").ok_or("there is no `tanh`")?;
    for (name, ns) in ns.iter().filter(|(name, _)| !is_activation(name)) {
        let ratio = ns / tanh;
        let line = json!({
            "operator": name,
            "ns": round(*ns, 4),
            "ratio_to_tanh": round(ratio, 2),
            "slow": ratio > bound,
        });
        println!("{line}");
    }
    Ok(())
}

fn is_activation(name: &str) -> bool {
    name.starts_with("hand_") || name.starts_with("derived_")
}
