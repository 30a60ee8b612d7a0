//! Runs ONNX models, and compares results and times with ONNX Runtime's.
//!
//! `cargo run --release -p autobwd-benches --bin onnx` installs ONNX Runtime and packages with models in `target/onnx`
//! (Python 3 with `venv` and, for the first run, the network are needed), and prints one JSON line a model, then a table.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use autobwd::{DType, Executor, Scope, Session, Tensor};
use autobwd_benches::{
    BenchResult, InTurn, Peer, ROUNDS, feed, finish, forget_peak, json_line, median, ms, peak_resident_bytes,
    print_profile, python_with, relative, resident_bytes, round, step, step_ms,
    workload::{Workload, WorkloadModel, optimizer_steps},
};
use autobwd_onnx::{LoadOptions, load, load_with, read_tensor};
use autobwd_ops::Model;
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

/// Compares ONNX models here and in ONNX Runtime.
#[derive(Parser)]
struct Args {
    /// Only these models, instead of all.
    models: Vec<String>,
    /// The Python to use, with the packages installed, instead of one in `target/onnx`.
    #[arg(long)]
    python: Option<PathBuf>,
    /// The folder of the models; those that are there are not written again.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// A folder with the same networks for PaddlePaddle, `NAME.pdmodel` and `NAME.pdiparams`.
    #[arg(long)]
    twins: Option<PathBuf>,
    /// Keeps the bits of the operators as they are written, instead of freezing the models.
    #[arg(long)]
    exact: bool,
    /// Prints the time of each operator type on one thread, instead of comparing.
    #[arg(long)]
    profile: bool,
    /// Writes the training steps of the workloads instead, and compares the losses of ten steps.
    #[arg(long)]
    steps: bool,
    /// Trains a small network for 20 steps with every optimizer instead, and compares losses, parameters and states.
    #[arg(long)]
    optimizers: bool,
    /// Measures time and memory from a file to the first results instead, each model in a process of its own.
    #[arg(long)]
    start: bool,
    /// Seconds to measure for.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const MODELS: [&str; 39] = [
    "ocr_det",
    "ocr_rec",
    "ocr_cls",
    "silero_vad",
    "silero_vad_16k_op15",
    "silero_vad_half",
    "silero_vad_ifless",
    "silero_vad_sequence",
    "silero_vad_openvino",
    "magika",
    "ddddocr",
    "ddddocr_det",
    "resnet50",
    // Exported by the PyTorch of `--python`, with random weights.
    "torchvision.resnet18",
    "torchvision.resnet50",
    "torchvision.mobilenet_v2",
    "torchvision.mobilenet_v3_small",
    "torchvision.mobilenet_v3_large",
    "torchvision.efficientnet_b0",
    "torchvision.squeezenet1_1",
    "torchvision.shufflenet_v2_x1_0",
    "torchvision.densenet121",
    "torchvision.googlenet",
    "torchvision.mnasnet1_0",
    "torchvision.regnet_y_400mf",
    "torchvision.vgg11",
    "torchvision.alexnet",
    "torchvision.convnext_tiny",
    "torchvision.swin_t",
    "timm.ghostnet_100",
    "timm.rexnet_100",
    "timm.mobileone_s0",
    "timm.repvgg_a0",
    "timm.fbnetc_100",
    "timm.tf_efficientnetv2_b0",
    "timm.mixer_s32_224",
    "timm.deit_tiny_patch16_224",
    "timm.hrnet_w18_small",
    "ultralytics.yolov8n",
];
const RUNTIME: [&str; 2] = ["onnx==1.22.0", "onnxruntime"];
/// Packages with models; their code, which needs more packages, is not used.
const PACKAGES: [&str; 5] =
    ["--no-deps", "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3", "magika==1.0.3", "ddddocr==1.6.1"];

fn main() -> ExitCode {
    finish(run(&Args::parse()).map(|()| ExitCode::SUCCESS))
}

fn run(args: &Args) -> BenchResult<()> {
    let home = Path::new(ROOT).join("target/onnx");
    let folder = args.folder.clone().unwrap_or_else(|| home.join("models"));
    fs::create_dir_all(&folder)?;
    let python = match &args.python {
        Some(python) => python.clone(),
        None => python_with(&home, &[&RUNTIME, &PACKAGES])?,
    };
    if args.steps {
        let workloads = Workload::value_variants().iter();
        return workloads.copied().try_for_each(|workload| training_step(&python, &folder, workload));
    }
    if args.optimizers {
        return optimizer_steps(DType::F32)?
            .into_iter()
            .try_for_each(|(name, step)| optimizer_step(&python, &folder, name, step));
    }
    let named: Vec<&str> = args.models.iter().map(String::as_str).collect();
    let mut rows = vec![];
    for name in if named.is_empty() { &MODELS[..] } else { &named } {
        if args.profile {
            let (_, sizes) = runtime(&python, &folder, name, (1, 0.0))?;
            let mut model = sizes[0].load(&folder.join(format!("{name}.onnx")), args.exact)?;
            sizes[0].session(&mut model, 1, |session, scope, feeds| {
                let title = format!("{name}, 1 thread");
                Ok(print_profile(&title, args.seconds, session, scope, |session| feed(session, feeds))?)
            })?;
            continue;
        }
        if args.start {
            match &named[..] {
                [name] => start(&python, &folder, name, args.exact)?,
                _ => start_alone(&python, &folder, name, args.exact)?,
            }
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
    if !args.profile && !args.start {
        println!("{}", table(&rows));
    }
    Ok(())
}

/// Prints time and memory from the file of a model to its first results, here and in ONNX Runtime.
fn start(python: &Path, folder: &Path, name: &str, exact: bool) -> BenchResult<()> {
    let (_, sizes) = runtime(python, folder, name, (1, 0.0))?;
    let mut command = Command::new(python);
    command.arg(Path::new(ROOT).join("benches/onnx/models.py")).arg(folder).arg(name);
    let theirs = json_line(command.args(["--start", "--threads", "1"]))?;
    let before = resident_bytes();
    forget_peak();
    let begin = Instant::now();
    let mut model = sizes[0].load(&folder.join(format!("{name}.onnx")), exact)?;
    let line = sizes[0].session(&mut model, 1, |_, _, _| {
        let mb = |bytes: usize| round(bytes.saturating_sub(before) as f64 / 1024.0 / 1024.0, 1);
        Ok(json!({
            "ms": round(ms(begin), 1),
            "resident_mb": mb(resident_bytes()),
            "peak_mb": mb(peak_resident_bytes()),
        }))
    })?;
    println!("{}", json!({"name": name, "start": line, "onnxruntime": theirs}));
    Ok(())
}

/// As [`start`], in a process of its own.
fn start_alone(python: &Path, folder: &Path, name: &str, exact: bool) -> BenchResult<()> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("--start").arg(name).arg("--python").arg(python).arg("--folder").arg(folder);
    println!("{}", json_line(command.args(exact.then_some("--exact")))?);
    Ok(())
}

/// Writes the training step of a workload, runs ten steps here and in ONNX Runtime, and prints the largest relative
/// difference of their losses.
fn training_step(python: &Path, folder: &Path, workload: Workload) -> BenchResult<()> {
    let (_, there, difference) = trained(python, folder, workload.name(), workload.model()?, 10)?;
    println!("{}", json!({"step": workload.name(), "nodes": there["nodes"], "loss_difference": difference}));
    Ok(())
}

/// Trains with an optimizer, here and in ONNX Runtime, and prints the largest relative differences of the losses and of
/// what is kept after them.
fn optimizer_step(python: &Path, folder: &Path, name: &str, step: WorkloadModel) -> BenchResult<()> {
    let (model, there, losses) = trained(python, folder, name, step, 20)?;
    let state = there["state"].as_object().ok_or("no state")?;
    let mut differences = vec![];
    for (name, value) in state {
        let value: Vec<f64> =
            value.as_array().ok_or("no list")?.iter().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect();
        let here = Tensor::from_vec([value.len()], model.scope.get(name)?.to_f64s())?;
        differences.push(relative(&here, &Tensor::from_vec([value.len()], value)?));
    }
    let row = json!({
        "optimizer": name,
        "values": state.len(),
        "loss_difference": losses,
        "state_difference": worst(&differences),
    });
    println!("{row}");
    Ok(())
}

/// Writes a training step, and runs some steps here and in ONNX Runtime. Returns the model after them, the findings of
/// `steps.py`, and the largest relative difference of losses.
fn trained(
    python: &Path,
    folder: &Path,
    name: &str,
    WorkloadModel { net, scope, loss }: WorkloadModel,
    steps: usize,
) -> BenchResult<(Model, Value, f64)> {
    let mut model = Model { program: net.program()?.clone(), feeds: vec![], fetches: vec![loss], scope };
    let path = folder.join(format!("step_{name}.onnx"));
    autobwd_onnx::save(&model, &path)?;
    let script = Path::new(ROOT).join("benches/onnx/steps.py");
    let there = json_line(Command::new(python).arg(script).arg(&path).arg(steps.to_string()))?;
    let mut executor = Executor::new();
    let mut differences = vec![];
    for there in there["losses"].as_array().ok_or("no losses")? {
        let (here, there) = (model.run(&mut executor, &[])?[0].item()?, there.as_f64().unwrap_or(f64::NAN));
        differences.push((here - there).abs() / here.abs());
    }
    Ok((model, there, worst(&differences)))
}

/// Runs `models.py`; returns ONNX Runtime with the model, and the sizes that it has written.
fn runtime(
    python: &Path,
    folder: &Path,
    name: &str,
    (threads, seconds): (usize, f64),
) -> BenchResult<(Peer, Vec<InputSize>)> {
    let mut command = Command::new(python);
    command.arg(Path::new(ROOT).join("benches/onnx/models.py")).arg(folder).arg(name);
    command.args(["--threads", &threads.to_string(), "--seconds", &seconds.to_string()]);
    let (peer, written) = Peer::start(&mut command)?;
    Ok((peer, InputSize::all(&folder.join(name), &written)?))
}

/// One row of the table.
fn model(python: &Path, folder: &Path, args: &Args, name: &str) -> BenchResult<Value> {
    let (seconds, exact, twins) = (args.seconds, args.exact, args.twins.as_deref());
    let path = folder.join(format!("{name}.onnx"));
    let (mut times, mut sizes) = (BTreeMap::new(), vec![]);
    for threads in [1, 2] {
        let seconds = seconds / ROUNDS as f64;
        let mut peer;
        (peer, sizes) = runtime(python, folder, name, (threads, seconds))?;
        let mut model = sizes[0].load(&path, exact)?;
        let time = sizes[0].session(&mut model, threads, |session, scope, feeds| {
            InTurn::measure(threads, || step_ms(seconds, || step(session, scope, feeds)), &mut peer)
        })?;
        times.insert(threads, time);
    }
    let differences = sizes.iter().map(|size| size.difference(&mut size.load(&path, exact)?, &size.outputs));
    let differences = differences.collect::<BenchResult<Vec<f64>>>()?;
    // Without sizes and values, which some operators need.
    let open = load(&path).map_err(Into::into).and_then(|mut model| {
        if !exact {
            model.freeze()?;
        }
        let differences = sizes.iter().map(|size| size.difference(&mut model, &size.outputs));
        differences.collect::<BenchResult<Vec<f64>>>()
    });
    // A resnet50 there has other weights.
    let twin = twins.filter(|_| name.starts_with("ocr_")).map(|twins| twins.join(name));
    let twin = twin.filter(|path| path.with_extension("pdmodel").exists());
    let twin = twin.map(|twin| {
        let mut twin = autobwd_paddle::load(twin)?;
        let differences = sizes.iter().map(|size| {
            let results = size.run(&mut size.load(&path, true)?)?;
            size.difference(&mut twin, &results)
        });
        differences.collect::<BenchResult<Vec<f64>>>()
    });
    let both = |threads: usize| {
        let InTurn { ours, theirs, ratio, own_cores } = times[&threads];
        json!({"ms": ours, "onnxruntime_ms": theirs, "ratio": ratio, "own_cores": own_cores})
    };
    Ok(json!({
        "name": name,
        "sizes": sizes.iter().map(InputSize::dims).collect::<Vec<_>>(),
        "difference": worst(&differences),
        "differences": differences,
        "without_sizes": match open {
            Ok(differences) => json!(worst(&differences)),
            Err(e) => json!(e.to_string()),
        },
        "twin": twin.transpose()?.map(|differences| worst(&differences)),
        "1": both(1),
        "2": both(2),
    }))
}

/// The largest; NaN if one is.
fn worst(differences: &[f64]) -> f64 {
    differences.iter().copied().fold(0.0, |m, x| if x <= m || m.is_nan() { m } else { x })
}

/// Inputs of one size, with the results of ONNX Runtime.
struct InputSize {
    /// Inputs and their names.
    inputs: Vec<(String, Tensor)>,
    /// The names of inputs whose values the model is loaded with.
    values: Vec<String>,
    outputs: Vec<Tensor>,
}

impl InputSize {
    /// The sizes that `models.py` has written.
    fn all(folder: &Path, written: &Value) -> BenchResult<Vec<InputSize>> {
        let texts = |key: &str| -> Vec<String> {
            let list = written[key].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_string).collect()
        };
        let tensors = |i: u64, kind: &str| -> BenchResult<Vec<Tensor>> {
            let paths = (0..).map(|j| folder.join(format!("{i}/{kind}_{j}.pb")));
            let read = |path: PathBuf| Ok(read_tensor(&fs::read(path)?)?.tensor);
            paths.take_while(|path| path.exists()).map(read).collect()
        };
        let size = |i: u64| {
            let inputs = texts("inputs").into_iter().zip(tensors(i, "input")?).collect();
            Ok(InputSize { inputs, values: texts("values"), outputs: tensors(i, "output")? })
        };
        (0..written["sizes"].as_u64().unwrap_or(0)).map(size).collect()
    }

    /// The model for this size, frozen unless it is `exact`.
    fn load(&self, path: &Path, exact: bool) -> BenchResult<Model> {
        let mut options = LoadOptions { inference: !exact, ..LoadOptions::default() };
        for (name, x) in &self.inputs {
            match self.values.contains(name) {
                true => drop(options.values.insert(name.clone(), x.clone())),
                false => drop(options.shapes.insert(name.clone(), x.dims().to_vec())),
            }
        }
        let mut model = load_with(path, &options)?;
        if !exact {
            model.freeze()?;
        }
        Ok(model)
    }

    /// The inputs in the order of the model; those of other formats have other names.
    fn feeds(&self, model: &Model) -> Vec<&Tensor> {
        let named = |name: &String| self.inputs.iter().find(|(own, _)| own == name).map(|(_, x)| x);
        let feeds: Option<Vec<_>> = model.feeds.iter().map(named).collect();
        feeds.unwrap_or_else(|| self.inputs.iter().map(|(_, x)| x).collect())
    }

    fn run(&self, model: &mut Model) -> BenchResult<Vec<Tensor>> {
        let feeds = self.feeds(model);
        Ok(model.run(&mut Executor::with_threads(2), &feeds)?)
    }

    /// The largest difference of a model's results from these.
    fn difference(&self, model: &mut Model, results: &[Tensor]) -> BenchResult<f64> {
        let own = self.run(model)?;
        let difference = worst(&own.iter().zip(results).map(|(x, y)| relative(x, y)).collect::<Vec<_>>());
        match own.len() == results.len() && difference.is_finite() {
            true => Ok(difference),
            false => Err("the results have other shapes, or are no numbers".into()),
        }
    }

    /// Does something with a session of the model, after one inference.
    fn session<T>(
        &self,
        model: &mut Model,
        threads: usize,
        measure: impl FnOnce(&mut Session, &mut Scope, &[(&str, &Tensor)]) -> BenchResult<T>,
    ) -> BenchResult<T> {
        let inputs = self.feeds(model);
        let feeds: Vec<(&str, &Tensor)> = model.feeds.iter().map(String::as_str).zip(inputs).collect();
        let metas: Vec<_> = feeds.iter().map(|(name, x)| (*name, x.meta())).collect();
        let fetches: Vec<&str> = model.fetches.iter().map(String::as_str).collect();
        let executor = Executor::with_threads(threads);
        let mut session = executor.prepare(&model.program, &mut model.scope, &metas, &fetches)?;
        step(&mut session, &mut model.scope, &feeds)?;
        measure(&mut session, &mut model.scope, &feeds)
    }

    fn dims(&self) -> Vec<Vec<usize>> {
        self.inputs.iter().map(|(_, x)| x.dims().to_vec()).collect()
    }
}

/// The table in Markdown, with the median of each ratio.
fn table(rows: &[Value]) -> String {
    let mut text = String::from(
        "| | difference | without sizes | Paddle | 1 thread | 2 threads |\n|---|---|---|---|---|---|\n",
    );
    let mut ratios: [Vec<f64>; 2] = [vec![], vec![]];
    for row in rows {
        let mut cells = vec![];
        for (threads, ratios) in ["1", "2"].iter().zip(&mut ratios) {
            let number = |key: &str| row[*threads][key].as_f64().unwrap_or(f64::NAN);
            let (ours, theirs, ratio) = (number("ms"), number("onnxruntime_ms"), number("ratio"));
            ratios.push(ratio);
            cells.push(format!("{ours:.3} / {theirs:.3} = {ratio:.2}"));
        }
        let number = |key: &str| match &row[key] {
            Value::Null => "".to_string(),
            Value::String(_) => "no".to_string(),
            number => format!("{:.0e}", number.as_f64().unwrap_or(f64::NAN)),
        };
        text += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            row["name"].as_str().unwrap_or_default(),
            number("difference"),
            number("without_sizes"),
            number("twin"),
            cells.join(" | ")
        );
    }
    let medians = ratios.map(|ratios| if ratios.is_empty() { f64::NAN } else { median(ratios) });
    text + &format!("| median | | | | {:.2} | {:.2} |", medians[0], medians[1])
}
