//! A small run, its record, and changes of records that keep their chain valid.

use std::{
    fs,
    path::{Path, PathBuf},
};

use autobwd::{
    Builder, DType, Executor, Feed, Program, Result, Scope, Tensor,
    exec::record::{RecordOptions, RecordedRun, RunRecord, SegmentOutcome, Segments, Verification},
};
use autobwd_ops::{
    Math,
    nn::{Dropout, Linear},
    optim::{Adam, Optimizer},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The steps of a run.
pub(crate) const STEPS: u64 = 12;
/// The rows of its data.
const ROWS: u64 = 5;

/// A program with its startup program.
pub(crate) struct Network {
    pub(crate) startup: Program,
    pub(crate) program: Program,
}

/// Dropout draws random numbers; Adam has moments and powers.
pub(crate) fn network(rate: f32) -> Network {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 3]), net.input("y", DType::F32, &[-1, 1]));
    let hidden = Linear::builder(&net, 3, 4).seed(5).build().forward(&x).tanh();
    let hidden = Dropout::new(&net, 0.5, 3).forward(&hidden);
    let loss = Linear::builder(&net, 4, 1).seed(6).build().forward(&hidden).square_error(&y).mean();
    Adam::new(rate).minimize(&loss).unwrap().complete().unwrap();
    let startup = net.startup().program().unwrap().clone();
    let program = net.program().unwrap().clone();
    Network { startup, program }
}

/// The feeds of a step, two of five rows.
pub(crate) fn feeds(step: u64) -> Vec<(String, Tensor)> {
    let rows = [step * 2 % ROWS, (step * 3 + 1) % ROWS];
    let x = rows.iter().flat_map(|row| [0.1, 0.3, -0.2].map(|x| (*row as f32 + 1.0) * x)).collect();
    let y = rows.iter().map(|row| *row as f32 - 2.0).collect();
    vec![
        ("x".into(), Tensor::from_vec([2, 3], x).unwrap()),
        ("y".into(), Tensor::from_vec([2, 1], y).unwrap()),
    ]
}

/// Runs a step.
pub(crate) fn train(executor: &mut Executor, network: &Network, scope: &mut Scope, step: u64) -> Result<()> {
    let feeds = feeds(step);
    let feeds: Vec<(&str, &dyn Feed)> =
        feeds.iter().map(|(name, x)| (name.as_str(), x as &dyn Feed)).collect();
    executor.run(&network.program, scope, &feeds, &[]).map(drop)
}

/// Runs and records steps up to the last one.
pub(crate) fn train_recorded(
    executor: &mut Executor,
    network: &Network,
    scope: &mut Scope,
    record: &mut RunRecord,
    last: u64,
) -> Result<()> {
    for step in record.last_step() + 1..=last {
        train(executor, network, scope, step)?;
        let feeds = feeds(step);
        let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, x)| (name.as_str(), x)).collect();
        record.step(&feeds, scope)?;
    }
    Ok(())
}

/// The values before the first step.
pub(crate) fn initial(executor: &mut Executor, network: &Network) -> Scope {
    let mut scope = Scope::new();
    executor.run(&network.startup, &mut scope, &[], &[]).unwrap();
    scope
}

pub(crate) fn options(network: &Network) -> RecordOptions {
    RecordOptions::new().every(2).checkpoint_every(4).startup(&network.startup).note("seed", "5")
}

/// The record of a finished run.
pub(crate) fn record(dir: &Path, threads: usize) {
    let (network, mut executor) = (network(0.01), Executor::with_threads(threads));
    let mut scope = initial(&mut executor, &network);
    let mut record = RunRecord::create(dir, &network.program, &scope, options(&network)).unwrap();
    train_recorded(&mut executor, &network, &mut scope, &mut record, STEPS).unwrap();
    record.finish(&scope).unwrap();
}

/// The names of files with their bytes.
pub(crate) fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

/// A copy of a record.
pub(crate) fn copy(dir: &Path, to: &Path) -> PathBuf {
    _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    files(dir).into_iter().for_each(|(name, bytes)| fs::write(to.join(name), bytes).unwrap());
    to.into()
}

pub(crate) fn verify(dir: &Path) -> Result<Verification> {
    RecordedRun::open(dir)?.verify(&mut Executor::with_threads(1), Segments::All)
}

/// The last steps of the segments that are confirmed.
pub(crate) fn confirmed(verification: &Verification) -> Vec<u64> {
    let segments = verification.segments.iter();
    segments
        .filter(|segment| segment.outcome == SegmentOutcome::Confirmed)
        .map(|segment| segment.last)
        .collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The lines of a record, without their chain.
pub(crate) fn lines(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("record.jsonl")).unwrap();
    let object = |line: &str| {
        let mut object: Value = serde_json::from_str(line).unwrap();
        object.as_object_mut().unwrap().remove("chain");
        object
    };
    text.lines().map(object).collect()
}

/// Writes lines with a valid chain, and removes the statement.
pub(crate) fn write_lines(dir: &Path, lines: &[Value]) {
    let (mut text, mut chain) = (String::new(), String::new());
    for line in lines {
        let object = line.to_string();
        chain = sha256(format!("{chain}{object}").as_bytes());
        text += &format!("{},\"chain\":\"{chain}\"}}\n", object.strip_suffix('}').unwrap());
    }
    fs::write(dir.join("record.jsonl"), text).unwrap();
    _ = fs::remove_file(dir.join("statement.json"));
}

/// The first line of a kind, at a step if it has one.
pub(crate) fn line_of<'a>(lines: &'a mut [Value], kind: &str, step: Option<u64>) -> &'a mut Value {
    let is_it = |line: &&mut Value| line["kind"] == kind && step.is_none_or(|step| line["step"] == step);
    lines.iter_mut().find(is_it).unwrap()
}
