//! Compares training steps on a device of XLA, lowered by autobwd, with those of JAX.
//!
//! `AUTOBWD_PJRT_PLUGIN=… cargo run --release -p autobwd-benches --bin xla` prints a JSON line for each workload, after it
//! has compared the losses, and one for an addition of single numbers, which is all overhead. Both sides keep parameters
//! and batches on the device, donate the parameters and fetch the loss. JAX runs on the same plugin and on the XLA of its
//! own package. It is installed in `target/xla`, or `--python` names an interpreter that has it. With the plugin of a GPU,
//! `--own` compares with JAX on its own device only; `--gpt float32`, `--gpt bfloat16` and `--wide` choose transformers.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use autobwd::{Builder, DType, Meta, OpInfoMap, Result, Tensor};
use autobwd_benches::{
    BenchResult, StepTimes, finish, json_line, median, ms, python_with, round,
    workload::{GptSizes, Workload, WorkloadModel},
};
use autobwd_xla::{
    DeviceExecutor, DeviceScope,
    lower::{LowerRequest, lower},
    pjrt::Device,
};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const JAX: &str = "jax[cpu]==0.10.2";

/// Times training steps on XLA's CPU, here and in JAX.
#[derive(Parser)]
struct Args {
    /// Only these workloads.
    workloads: Vec<Workload>,
    /// Number of runs of each; the median counts.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Seconds to measure for in each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// An interpreter that has JAX.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Compare with JAX on the device of its own package only.
    #[arg(long)]
    own: bool,
    /// The workload `gpt` alone, with products in this dtype, by losses of JAX instead of the expected ones.
    #[arg(long, value_name = "DTYPE", conflicts_with = "workloads", value_parser = dtype)]
    gpt: Option<DType>,
    /// A transformer that is wide enough for an accelerator.
    #[arg(long, requires = "gpt")]
    wide: bool,
    /// Time the only workload here alone, once.
    #[arg(long, conflicts_with_all = ["repeat", "python"])]
    alone: bool,
    /// Time the addition here alone, once.
    #[arg(long, conflicts_with_all = ["repeat", "python", "workloads"])]
    tiny: bool,
}

fn main() -> ExitCode {
    finish(run(&Args::parse()).map(|()| ExitCode::SUCCESS))
}

fn run(args: &Args) -> BenchResult<()> {
    let plugin = env::var_os("AUTOBWD_PJRT_PLUGIN").ok_or("AUTOBWD_PJRT_PLUGIN names no plugin")?;
    if args.tiny {
        println!("{}", tiny(&Device::load(plugin)?)?);
        return Ok(());
    }
    if args.alone {
        let sizes = if args.wide { GptSizes::WIDE } else { GptSizes::WORKLOAD };
        let (name, model) = match (args.gpt, &args.workloads[..]) {
            (Some(dtype), _) => ("gpt", WorkloadModel::gpt(&sizes, dtype)?),
            (None, [workload]) => (workload.name(), workload.model()?),
            _ => return Err("`--alone` needs one workload".into()),
        };
        println!("{}", alone(&Device::load(plugin)?, name, model, args.seconds)?);
        return Ok(());
    }
    let python = match &args.python {
        Some(python) => python.clone(),
        None => python_with(&Path::new(ROOT).join("target/xla"), &[&[JAX]])?,
    };
    let own = env::current_exe()?;
    if let Some(dtype) = args.gpt {
        println!("{}", gpt(args, dtype, &own, &python)?);
        return Ok(());
    }
    let workloads = if args.workloads.is_empty() { Workload::value_variants() } else { &args.workloads };
    for workload in workloads.iter().copied() {
        let mut runs = vec![];
        for _ in 0..args.repeat.max(1) {
            let seconds = args.seconds.to_string();
            let mut here = Command::new(&own);
            here.args(["--alone", workload.name(), "--seconds", &seconds]);
            let jax = || {
                let mut there = Command::new(&python);
                there.arg(Path::new(ROOT).join("benches/peers/jax_peer.py")).arg(workload.name());
                there.env("SECONDS", &seconds);
                there
            };
            let on_own = json_line(&mut jax())?;
            let on_plugin =
                if args.own { on_own.clone() } else { json_line(jax().env("PJRT_PLUGIN", &plugin))? };
            runs.push([json_line(&mut here)?, on_plugin, on_own]);
        }
        println!("{}", compared(workload, &runs)?);
    }
    let mut here = Command::new(&own);
    let here = json_line(here.arg("--tiny"))?;
    let there = json_line(Command::new(&python).arg(Path::new(ROOT).join("benches/xla/tiny.py")))?;
    let rounded = |of: &Value, key: &str| round(number(of, key), 2);
    println!(
        "{}",
        json!({
            "workload": "addition",
            "run_us": rounded(&here, "run_us"),
            "jax_run_us": rounded(&there, "run_us"),
            "fetch_us": rounded(&here, "fetch_us"),
            "jax_fetch_us": rounded(&there, "fetch_us"),
        })
    );
    Ok(())
}

fn number(of: &Value, key: &str) -> f64 {
    of[key].as_f64().unwrap_or(f64::NAN)
}

/// The line of a workload, if the losses of all runs, here and in JAX, are the expected ones.
fn compared(workload: Workload, runs: &[[Value; 3]]) -> BenchResult<Value> {
    for line in runs.iter().flatten() {
        let losses = (number(line, "loss1"), number(line, "loss10"));
        if !workload.expects(losses.0, losses.1) {
            let (lib, expected) = (&line["lib"], workload.expected());
            return Err(
                format!("{}: {lib} has the losses {losses:?}, not {expected:?}", workload.name()).into()
            );
        }
    }
    let of = |side: usize, key: &str| median(runs.iter().map(|run| number(&run[side], key)).collect());
    let [here, there, own] = [0, 1, 2].map(|side| of(side, "median_ms"));
    Ok(json!({
        "workload": workload.name(),
        "ms": round(here, 4),
        "jax_ms": round(there, 4),
        "jax_own_ms": round(own, 4),
        "ratio": round(here / there, 3),
        "own_ratio": round(here / own, 3),
        "lower_ms": round(of(0, "lower_ms"), 1),
        "compile_ms": round(of(0, "compile_ms"), 1),
        "jax_build_ms": round(of(1, "build_ms"), 1),
    }))
}

/// The line of a transformer on the device of JAX's own package. Losses may differ by the digits of the dtype.
fn gpt(args: &Args, dtype: DType, own: &Path, python: &Path) -> BenchResult<Value> {
    let (seconds, mut runs) = (args.seconds.to_string(), vec![]);
    for _ in 0..args.repeat.max(1) {
        let mut here = Command::new(own);
        here.args(["--alone", "--gpt", dtype.name(), "--seconds", &seconds])
            .args(args.wide.then_some("--wide"));
        let mut there = Command::new(python);
        there.arg(Path::new(ROOT).join("benches/peers/jax_peer.py")).arg("gpt");
        there
            .env("SECONDS", &seconds)
            .env("DTYPE", dtype.name())
            .env("WIDE", u8::from(args.wide).to_string());
        runs.push([json_line(&mut here)?, json_line(&mut there)?]);
    }
    let of = |side: usize, key: &str| median(runs.iter().map(|run| number(&run[side], key)).collect());
    let losses = [0, 1].map(|side| [of(side, "loss1"), of(side, "loss10")]);
    let tolerance = if dtype == DType::F32 { 1e-3 } else { 1e-2 };
    let is_near = |(own, jax): (&f64, &f64)| (own - jax).abs() <= tolerance * jax.abs();
    if !losses[0].iter().zip(&losses[1]).all(is_near) {
        return Err(format!("the losses are {:?}, those of JAX {:?}", losses[0], losses[1]).into());
    }
    let [here, there] = [0, 1].map(|side| of(side, "median_ms"));
    Ok(json!({
        "workload": if args.wide { "wide gpt" } else { "gpt" },
        "dtype": dtype.name(),
        "ms": round(here, 4),
        "jax_ms": round(there, 4),
        "ratio": round(here / there, 3),
        "losses": losses[0],
        "jax_losses": losses[1],
        "lower_ms": round(of(0, "lower_ms"), 1),
        "compile_ms": round(of(0, "compile_ms"), 1),
        "jax_build_ms": round(of(1, "build_ms"), 1),
    }))
}

fn dtype(name: &str) -> std::result::Result<DType, String> {
    let known = DType::from_name(name).filter(|dtype| *dtype == DType::F32 || dtype.is_half());
    known.ok_or_else(|| "float32, float16 and bfloat16 are possible".into())
}

/// Trains a model on a device.
fn alone(device: &Device, name: &str, model: WorkloadModel, seconds: f64) -> Result<Value> {
    let WorkloadModel { net, scope: start, loss } = model;
    let program = net.program()?;
    let known = |name: &str| -> Option<Meta> { start.get(name).ok().map(|value| value.meta()) };
    let begin = Instant::now();
    let lowered = lower(&program, OpInfoMap::linked()?, &LowerRequest::new(&[], &known, &[&loss]))?;
    let lower_ms = ms(begin);
    let begin = Instant::now();
    let compiled = lowered.compile(device)?;
    let compile_ms = ms(begin);
    let mut scope = DeviceScope::new(device);
    scope.upload(&start)?;
    let steps = StepTimes::measure(seconds, || compiled.run(&mut scope, &[], &[&loss])?[0].item())?;
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let mut line = steps.to_json("autobwd", name, threads, lower_ms + compile_ms);
    line["lower_ms"] = lower_ms.into();
    line["compile_ms"] = compile_ms.into();
    Ok(line)
}

/// Times an addition of single numbers, with and without a copy of the result to the host.
fn tiny(device: &Device) -> Result<Value> {
    let net = Builder::new();
    let sum = (net.input("x", DType::F32, &[1]) + net.input("y", DType::F32, &[1])).name();
    let meta = Meta::new(DType::F32, [1]);
    let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(device));
    let feeds = [("x", meta.clone()), ("y", meta)];
    let program = executor.prepare(&net.program()?, &scope, &feeds, &[&sum])?;
    let x = device.upload(&Tensor::zeros(DType::F32, &[1])?)?;
    let y = device.upload(&Tensor::from_vec([1], vec![1.0_f32])?)?;
    let mut run = || -> Result<_> {
        Ok(program.run_on_device(&mut scope, &[("x", &x), ("y", &y)], &[&sum])?.swap_remove(0))
    };
    let run_us = median_us(|| run()?.wait())?;
    Ok(json!({"run_us": run_us, "fetch_us": median_us(|| run()?.download()?.item())?}))
}

fn median_us<T>(mut call: impl FnMut() -> Result<T>) -> Result<f64> {
    let mut times = vec![];
    for _ in 0..20_000 {
        let begin = Instant::now();
        call()?;
        times.push(ms(begin) * 1e3);
    }
    Ok(median(times))
}
