//! Searches for the first NaN of a run.

use std::path::Path;

use autobwd::{
    Builder, DType, Executor, Feed, Scope, Tensor,
    exec::record::{FedSample, NanReport, RecordOptions, RecordedRun, RunRecord},
};
use autobwd_ops::{
    Init, Math,
    optim::{Optimizer, Sgd},
};

use crate::support::{initial, network, record};

/// Records a run, and searches it.
fn search(
    dir: &Path,
    net: &Builder,
    steps: u64,
    feeds: impl Fn(u64) -> Vec<(&'static str, Tensor)>,
) -> NanReport {
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    let (startup, program) = (net.startup().program().unwrap().clone(), net.program().unwrap().clone());
    executor.run(&startup, &mut scope, &[], &[]).unwrap();
    let options = RecordOptions::new().every(5).checkpoint_every(5).startup(&startup);
    let mut record = RunRecord::create(dir, &program, &scope, options).unwrap();
    for step in 1..=steps {
        let feeds = feeds(step);
        let fed: Vec<(&str, &dyn Feed)> = feeds.iter().map(|(name, x)| (*name, x as &dyn Feed)).collect();
        executor.run(&program, &mut scope, &fed, &[]).unwrap();
        let fed: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, x)| (*name, x)).collect();
        record.step(&fed, &scope).unwrap();
    }
    record.finish(&scope).unwrap();
    RecordedRun::open(dir).unwrap().why_nan(&mut executor).unwrap()
}

#[test]
fn weights_that_explode_are_named_with_the_rate() {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0));
    let still = net.parameter("still", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0)).freeze();
    let x = net.input("x", DType::F32, &[-1, 2]);
    let loss = (&x * &w * &still).square().mean();
    Sgd { rate: 50.0 }.minimize(&loss).unwrap().complete().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let x = |_| vec![("x", Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap())];
    let report = search(folder.path(), &net, 40, x);
    let step = report.step.as_ref().unwrap();
    let operator = step.operator.as_ref().unwrap();
    assert_eq!(step.values, ["w"], "{report}");
    // The magnitude grows by a factor; the next step would exceed the largest number.
    let [history, ..] = &step.histories[..] else { panic!("{report}") };
    let steps: Vec<u64> = history.magnitudes.iter().map(|(step, _)| *step).collect();
    assert!(steps.len() == 8 || steps.last() == Some(&(step.step - 1)), "{report}");
    assert_eq!(history.name, "w", "{report}");
    assert!(history.magnitudes.is_sorted_by(|a, b| a.1 * 10.0 < b.1), "{report}");
    assert_eq!((step.rates.len(), step.rates[0].rate), (1, 50.0), "{report}");
    assert!(operator.inputs.iter().all(|input| !input.range.contains("infinite")), "{report}");
    let text = report.to_string();
    assert!(text.contains("the learning rate `learning_rate_0` is 50.0"), "{text}");
}

#[test]
fn sample_with_the_logarithm_of_zero_is_named() {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[1], |w| Init::Constant(1.0).emit(w, 0));
    let x = net.input("x", DType::F32, &[-1, 1]);
    let (logarithm, line) = (x.log(), line!());
    Sgd { rate: 0.1 }.minimize(&(&logarithm * &w).mean()).unwrap().complete().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Five samples; the last one is in the third row of step 8 for the first time.
    let feeds = |step: u64| {
        let last = if step == 8 { 0.0 } else { 4.0 };
        vec![("x", Tensor::from_vec([3, 1], vec![1.0_f32, step as f32, last]).unwrap())]
    };
    let report = search(folder.path(), &net, 20, feeds);
    let step = report.step.as_ref().unwrap();
    let operator = step.operator.as_ref().unwrap();
    assert_eq!((step.step, operator.ty.as_str()), (8, "log"), "{report}");
    assert!(operator.source_line.as_ref().unwrap().ends_with(&format!("nan_sources.rs:{line}")), "{report}");
    assert_eq!((&operator.element[..], operator.inputs[0].range.as_str()), (&[2, 0][..], "from 0.0 to 8.0"));
    assert_eq!(step.samples.len(), 1, "{report}");
    let FedSample { feed, row, sample } = &step.samples[0];
    assert_eq!((feed.as_str(), *row), ("x", 2), "{report}");
    assert!(*sample > 2, "{report}");
}

#[test]
fn finite_run_has_no_nan() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    let report = RecordedRun::open(folder.path()).unwrap().why_nan(&mut Executor::with_threads(1)).unwrap();
    assert!(report.step.is_none());
    assert_eq!(
        report.to_string(),
        "no NaN: the values of all checkpoints are finite, and step 12, the last one, computes no NaN"
    );
}

#[test]
fn values_that_start_with_nan_are_named() {
    let (network, folder) = (network(0.01), tempfile::tempdir().unwrap());
    let mut executor = Executor::with_threads(1);
    let mut scope = initial(&mut executor, &network);
    scope.slice_mut::<f32>("linear_0.w").unwrap()[3] = f32::NAN;
    let record = RunRecord::create(folder.path(), &network.program, &scope, RecordOptions::new()).unwrap();
    record.finish(&scope).unwrap();
    let report = RecordedRun::open(folder.path()).unwrap().why_nan(&mut executor).unwrap();
    assert_eq!(report.to_string(), "before the first step, `linear_0.w` is not finite");
}
