//! Reading ONNX models: a subset of ONNX's node tests (`tests/onnx`), and bad files.

mod export;
mod in_place;
mod infinities;
mod optimizers;
mod rectifiers;
mod support;

use std::{path::Path, process::Command};

use autobwd::{ErrorKind, Executor, Tensor};
use autobwd_onnx::{LoadOptions, from_bytes, load, load_with};
use autobwd_tests::onnx::{NodeTestOutcome, TestOptions, run_all, tests};

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/onnx"))
}

#[test]
fn node_tests_pass_with_gradients() {
    let folders = tests(folder(), "").unwrap();
    assert!(folders.len() >= 30, "{} tests", folders.len());
    let outcomes = run_all(&folders, &TestOptions { gradients: true });
    for (folder, outcome) in folders.iter().zip(outcomes) {
        assert!(matches!(outcome, NodeTestOutcome::Passed(_)), "{}: {outcome}", folder.display());
    }
}

/// Any prefix of a file, and any file with another byte, is a model or an error.
#[test]
fn broken_files_are_errors() {
    let bytes = std::fs::read(folder().join("test_lstm_with_peepholes/model.onnx")).unwrap();
    for end in 0..bytes.len() {
        let _ = from_bytes(&bytes[..end], &LoadOptions::default());
    }
    for at in 0..bytes.len() {
        for bit in [1, 8, 128] {
            let mut other = bytes.clone();
            other[at] ^= bit;
            let _ = from_bytes(&other, &LoadOptions::default());
        }
    }
}

#[test]
fn values_of_inputs_that_decide_about_shapes_must_be_given() {
    let path = folder().join("test_top_k/model.onnx");
    let e = load(&path).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Format);
    assert!(e.to_string().contains("give the values of the inputs `k`"), "{e}");
    let mut options = LoadOptions::default();
    options.values.insert("k".into(), Tensor::from_vec([1], vec![2_i64]).unwrap());
    let mut model = load_with(&path, &options).unwrap();
    assert_eq!((model.feeds.as_slice(), model.fetches.len()), (&["x".to_string()][..], 2));
    let x = Tensor::from_vec([3, 4], (0..12).map(|x| x as f32).collect()).unwrap();
    let outputs = model.run(&mut Executor::new(), &[&x]).unwrap();
    assert_eq!(outputs[0].slice::<f32>().unwrap(), [3.0, 2.0, 7.0, 6.0, 11.0, 10.0]);
}

#[test]
fn runner_counts_and_fails() {
    let run = |filter: &str| {
        let binary = env!("CARGO_BIN_EXE_onnx-conformance");
        let output = Command::new(binary).arg(folder()).args(["--filter", filter]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (success, text) = run("test_top_k");
    assert!(success && text.ends_with("1 passed, 0 failed, 0 skipped\n"), "{text}");
}
