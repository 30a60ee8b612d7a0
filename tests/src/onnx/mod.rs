//! ONNX's node tests: folders with a model, inputs and outputs.

mod gradients;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use autobwd::{Error, Executor, Feed, Result, Tensor};
use autobwd_onnx::{LoadOptions, OnnxTensor, Signature};
use autobwd_ops::Model;

/// Operators with random results: only shapes and dtypes are compared.
const RANDOM: [&str; 6] =
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

/// Relative and absolute tolerance of floating point results, as in ONNX's own runner.
const TOLERANCE: (f64, f64) = (1e-3, 1e-7);

/// Tests whose expected results are further from 0 than the tolerance where the exact ones are 0: rounding errors of
/// the float32 transform that computed them, as large as the last digit of the inputs.
const ROUNDED: [&str; 2] = ["test_dft_inverse", "test_dft_inverse_opset19"];

/// Absolute tolerance of their results.
const ROUNDING: f64 = 1e-6;

/// What became of a test.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeTestOutcome {
    /// All outputs are as expected, and the gradients of so many inputs.
    Passed(usize),
    /// Why it failed.
    Failed(String),
    /// What stands in the way of its model.
    Skipped(String),
}

impl fmt::Display for NodeTestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeTestOutcome::Passed(0) => f.write_str("ok"),
            NodeTestOutcome::Passed(gradients) => write!(f, "ok, {gradients} gradients"),
            NodeTestOutcome::Failed(why) => write!(f, "FAILED {}", why.replace('\n', " / ")),
            NodeTestOutcome::Skipped(why) => write!(f, "skipped {}", why.replace('\n', " / ")),
        }
    }
}

/// The folders of tests whose names contain `filter`, in order.
///
/// # Errors
/// Those of the file system.
pub fn tests(folder: &Path, filter: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("test_") && name.contains(filter) && path.join("model.onnx").exists() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Runs tests on all cores; results are in the order of the folders.
pub fn run_all(folders: &[PathBuf], options: &TestOptions) -> Vec<NodeTestOutcome> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut outcomes = vec![];
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(folder) = folders.get(at) else { return outcomes };
            outcomes.push((at, run(folder, options)));
        }
    };
    let mut outcomes: Vec<(usize, NodeTestOutcome)> = thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        handles.into_iter().flat_map(|handle| handle.join().unwrap_or_default()).collect()
    });
    outcomes.sort_by_key(|(at, _)| *at);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// What is checked.
#[derive(Clone, Debug, Default)]
pub struct TestOptions {
    /// Whether gradients are compared with central differences, too.
    pub gradients: bool,
}

/// Runs one test.
pub fn run(folder: &Path, options: &TestOptions) -> NodeTestOutcome {
    let run = || test(folder, options);
    match std::panic::catch_unwind(run) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(e)) => NodeTestOutcome::Failed(e.to_string()),
        Err(_) => NodeTestOutcome::Failed("it panics".to_string()),
    }
}

fn test(folder: &Path, options: &TestOptions) -> Result<NodeTestOutcome> {
    let bytes = read(&folder.join("model.onnx"))?;
    let signature = autobwd_onnx::signature(&bytes)?;
    let (mut executor, mut gradients) = (Executor::with_threads(1), 0);
    for set in 0.. {
        let data = folder.join(format!("test_data_set_{set}"));
        if !data.exists() {
            break;
        }
        let inputs = inputs(&data, &signature);
        let path = folder.join("model.onnx");
        let model = match load(&path, &signature, &inputs, false) {
            Ok(model) => model,
            Err(why) => return Ok(NodeTestOutcome::Skipped(why)),
        };
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let absolute = if ROUNDED.contains(&name) { ROUNDING } else { TOLERANCE.1 };
        if let Some(why) = difference(model, &mut executor, &data, &signature, &inputs, absolute)? {
            return Ok(NodeTestOutcome::Failed(why));
        }
        if options.gradients && !is_random(&signature) {
            let checked = match load(&path, &signature, &inputs, true) {
                Ok(model) => gradients::check(model, &inputs)?,
                Err(why) => Err(why),
            };
            match checked {
                Ok(count) => gradients += count,
                Err(why) => return Ok(NodeTestOutcome::Failed(why)),
            }
        }
    }
    Ok(NodeTestOutcome::Passed(gradients))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::new(autobwd::ErrorKind::Io, format!("{}: {e}", path.display()));
    fs::read(path).map_err(failed)
}

/// The inputs by name; those of types that autobwd does not have are left out.
fn inputs(data: &Path, signature: &Signature) -> Vec<(String, Tensor)> {
    let mut inputs = vec![];
    for (i, name) in signature.inputs.iter().enumerate() {
        let tensor =
            read(&data.join(format!("input_{i}.pb"))).and_then(|bytes| autobwd_onnx::read_tensor(&bytes));
        if let Ok(OnnxTensor { tensor, .. }) = tensor {
            inputs.push((name.clone(), tensor));
        }
    }
    inputs
}

/// The model, with the values of those inputs that it needs, and with shapes if it needs them; else the first obstacle.
fn load(
    path: &Path,
    signature: &Signature,
    inputs: &[(String, Tensor)],
    float64: bool,
) -> Result<Model, String> {
    let mut options = LoadOptions { float64, ..LoadOptions::default() };
    loop {
        let text = match autobwd_onnx::load_with(path, &options) {
            Ok(model) => return Ok(model),
            Err(e) => e.to_string(),
        };
        let known = options.values.len();
        for (name, value) in inputs {
            let needed = text.lines().any(|line| {
                let give = line.split_once("; give the values of the inputs ");
                give.is_some_and(|(_, names)| names.contains(&format!("`{name}`")))
            });
            if needed && signature.inputs.contains(name) {
                options.values.insert(name.clone(), value.clone());
            }
        }
        if options.values.len() == known && options.shapes.is_empty() && !inputs.is_empty() {
            let shapes = inputs.iter().map(|(name, value)| (name.clone(), value.dims().to_vec()));
            options.shapes = shapes.collect();
        } else if options.values.len() == known {
            let first = text.lines().find_map(|line| line.strip_prefix("  ")).unwrap_or(&text);
            return Err(first.rsplit_once(" (").map_or(first, |(reason, _)| reason).to_string());
        }
    }
}

/// Runs the model and compares its outputs with those of the test; the first difference.
fn difference(
    mut model: Model,
    executor: &mut Executor,
    data: &Path,
    signature: &Signature,
    inputs: &[(String, Tensor)],
    absolute: f64,
) -> Result<Option<String>> {
    let value = |feed: &String| inputs.iter().find(|(name, _)| name == feed).map(|(_, value)| value);
    let feeds: Vec<(&str, &dyn Feed)> =
        model.feeds.iter().filter_map(|feed| Some((feed.as_str(), value(feed)? as &dyn Feed))).collect();
    let fetches: Vec<&str> = model.fetches.iter().map(String::as_str).collect();
    let outputs = executor.run(&model.program, &mut model.scope, &feeds, &fetches)?;
    let random = is_random(signature);
    for (i, (output, name)) in outputs.iter().zip(&signature.outputs).enumerate() {
        let expected = autobwd_onnx::read_tensor(&read(&data.join(format!("output_{i}.pb")))?)?;
        if let Some(why) = unlike(output, &expected.tensor, random, absolute) {
            return Ok(Some(format!("output `{name}`: {why}")));
        }
    }
    Ok(None)
}

/// Whether results are random; dropout is in training, which its third input says.
fn is_random(signature: &Signature) -> bool {
    let drops = signature.operators.contains("Dropout") && signature.inputs.len() > 2;
    drops || signature.operators.iter().any(|op| RANDOM.contains(&op.as_str()))
}

/// How a result differs from the expected one.
fn unlike(result: &Tensor, expected: &Tensor, random: bool, absolute: f64) -> Option<String> {
    let (found, needed) = (result.meta(), expected.meta());
    if found != needed {
        return Some(format!("{found} instead of {needed}"));
    }
    if random {
        return None;
    }
    let relative = TOLERANCE.0;
    if !found.dtype.is_float() {
        let at = result.bytes().iter().zip(expected.bytes()).position(|(a, b)| a != b)?;
        let at = at / found.dtype.size();
        return Some(format!(
            "element {at} is {:?} instead of {:?}",
            result.to_f64s()[at],
            expected.to_f64s()[at]
        ));
    }
    let near = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= absolute + relative * b.abs()
    };
    let pairs = result.to_f64s().into_iter().zip(expected.to_f64s()).enumerate();
    let far = pairs.filter(|(_, (a, b))| !near(*a, *b)).collect::<Vec<_>>();
    let (at, (a, b)) = far.first()?;
    Some(format!("{} of {} elements differ; element {at} is {a} instead of {b}", far.len(), result.numel()))
}
