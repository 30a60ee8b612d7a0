//! Measures messages between ranks, and training on two ranks.
//!
//! ```text
//! cargo run --release -p autobwd-mpi --example speed -- [--seconds S] [--python PYTHON]
//! ```
//!
//! Runs itself by `mpirun` on two ranks, and prints a JSON object a line: the sum of 1 kB and of 4 MB over the ranks, and
//! a training step of the workloads `mlp` and `gpt`, with half of the batch on each rank of one thread, and in one
//! process of two threads. With a Python that has PyTorch, also those of its DistributedDataParallel with Gloo
//! (`ddp.py`).

use std::{
    env,
    error::Error,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::Instant,
};

use autobwd::{
    Builder, DType, Executor, Result, Scope, Session, Tensor,
    parallel::{Transport, all_reduce_sum, data_parallel, startup},
};
use autobwd_benches::{median, ms, workload::Workload};
use clap::Parser;
use serde_json::json;

/// Bytes of a bucket of gradients.
const BUCKET: usize = 256 << 10;

/// Measures messages between ranks, and training on two ranks.
#[derive(Parser)]
struct Options {
    /// Seconds to measure each for
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// A Python with PyTorch, to be measured as well
    #[arg(long)]
    python: Option<String>,
    /// What the ranks of the run of `mpirun` do
    #[arg(long, hide = true)]
    rank: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.rank {
        return autobwd_mpi::run(|transport| on_ranks(&options, &transport));
    }
    match all(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn all(options: &Options) -> std::result::Result<(), Box<dyn Error>> {
    let seconds = options.seconds.to_string();
    let mut ranks = Command::new("mpirun");
    ranks.args(["-n", "2"]).arg(env::current_exe()?).args(["--rank", "--seconds", &seconds]);
    succeed(&mut ranks)?;
    for workload in [Workload::Mlp, Workload::Gpt] {
        let mut model = workload.model()?;
        let executor = Executor::with_threads(2);
        let mut session = executor.prepare(&model.net.program()?, &mut model.scope, &[], &[&model.loss])?;
        let time = step_time(options.seconds, || run(&mut session, &mut model.scope))?;
        println!("{}", json!({ "name": workload.name(), "processes": 1, "threads": 2, "ms": time }));
    }
    if let Some(python) = &options.python {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/ddp.py");
        succeed(Command::new(python).arg(script).arg(&seconds))?;
    }
    Ok(())
}

fn succeed(command: &mut Command) -> std::result::Result<(), Box<dyn Error>> {
    match command.status()? {
        status if status.success() => Ok(()),
        status => Err(format!("{command:?}: {status}").into()),
    }
}

fn on_ranks(options: &Options, transport: &Arc<dyn Transport>) -> Result<()> {
    let executor = Executor::with_threads(1).with_transport(transport.clone());
    let print = |name: &str, time: f64| {
        if transport.rank() == 0 {
            println!("{}", json!({ "name": name, "processes": transport.ranks(), "threads": 1, "ms": time }));
        }
    };
    for (name, bytes) in [("allreduce_1kB", 1 << 10), ("allreduce_4MB", 4 << 20)] {
        let net = Builder::new();
        let x = net.persistable("x", DType::F32, &[bytes / 4], autobwd::Expr::clone);
        let sum = all_reduce_sum(&x);
        let mut scope = Scope::new();
        scope.set("x", Tensor::zeros(DType::F32, &[bytes / 4])?);
        let mut session = executor.prepare(&net.program()?, &mut scope, &[], &[&sum.name()])?;
        print(name, together(options, transport, || run(&mut session, &mut scope))?);
    }
    for workload in [Workload::Mlp, Workload::Gpt] {
        let mut model = workload.model_of_rank(transport.ranks())?;
        let step = data_parallel(&model.net.program()?, transport.ranks(), BUCKET)?;
        let mut executor = Executor::with_threads(1).with_transport(transport.clone());
        executor.run(&startup(&step, transport.rank())?, &mut model.scope, &[], &[])?;
        let mut session = executor.prepare(&step, &mut model.scope, &[], &[&model.loss])?;
        print(workload.name(), together(options, transport, || run(&mut session, &mut model.scope))?);
    }
    Ok(())
}

fn run(session: &mut Session, scope: &mut Scope) -> Result<()> {
    session.run(scope)
}

/// The median time of a call, in milliseconds.
fn step_time(seconds: f64, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let (mut times, start) = (vec![], Instant::now());
    while times.len() < 10 || start.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        call()?;
        times.push(ms(start));
    }
    Ok(median(times))
}

/// As [`step_time`], for calls in which all ranks take part: as many on each.
fn together(
    options: &Options,
    transport: &Arc<dyn Transport>,
    mut call: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let start = Instant::now();
    (0..3).try_for_each(|_| call())?;
    // Rank 0 says how many calls there are.
    let mut calls =
        ((options.seconds / start.elapsed().as_secs_f64() * 3.0) as u64).clamp(10, 100_000).to_ne_bytes();
    if transport.rank() == 0 {
        let others: Vec<_> = (1..transport.ranks()).map(|rank| (rank, &calls[..])).collect();
        transport.transfer(&others, &mut [])?;
    } else {
        transport.transfer(&[], &mut [(0, &mut calls)])?;
    }
    let times = (0..u64::from_ne_bytes(calls)).map(|_| {
        let start = Instant::now();
        call()?;
        Ok(ms(start))
    });
    Ok(median(times.collect::<Result<_>>()?))
}
