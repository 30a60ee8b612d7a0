//! Random single changes with valid hashes: only a replay can notice them.
//!
//! `CHANGES=1000 cargo test -p autobwd-record --test records random_changes -- --nocapture` makes more changes than the
//! tests do, and prints the figures.

use std::{env, fs, path::Path};

use autobwd::{Scope, exec::Checkpoint};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use serde_json::Value;

use crate::support::{confirmed, copy, line_of, lines, network, record, sha256, verify, write_lines};

const CHANGES: &str = "CHANGES";
/// The last steps of the segments of the run.
const SEGMENTS: [u64; 3] = [4, 8, 12];

/// Changes a copy of a record; returns the last steps of the segments that read what has changed.
type Change = fn(&Path, &mut [Value], &mut Pcg64Mcg) -> Vec<u64>;

/// The segments that end or start at a step, or contain it.
fn around(step: u64) -> Vec<u64> {
    SEGMENTS.into_iter().filter(|last| last - 4 <= step && step <= *last).collect()
}

/// A bit of a weight in a checkpoint.
fn weight(dir: &Path, lines: &mut [Value], rng: &mut Pcg64Mcg) -> Vec<u64> {
    let step = [4, 8][rng.random_range(0..2)];
    let (mut scope, program) = (Scope::new(), network(0.01).program);
    let path = dir.join(format!("checkpoint-{step}.safetensors"));
    Checkpoint::load(&path, &program, &mut scope).unwrap();
    let weights = scope.slice_mut::<f32>(["linear_0.w", "linear_1.w"][rng.random_range(0..2)]).unwrap();
    let weight = rng.random_range(0..weights.len());
    weights[weight] = f32::from_bits(weights[weight].to_bits() ^ 1 << rng.random_range(0..32));
    Checkpoint::new(step).save(&path, &program, &scope).unwrap();
    line_of(lines, "checkpoint", Some(step))["sha256"] = sha256(&fs::read(&path).unwrap()).into();
    around(step)
}

/// A label in the data, with its hash. All segments read it.
fn sample(dir: &Path, lines: &mut [Value], rng: &mut Pcg64Mcg) -> Vec<u64> {
    let path = dir.join("data.bin");
    let mut data = fs::read(&path).unwrap();
    let label = line_of(lines, "table", None).clone();
    assert_eq!(label["name"], "x");
    // The first two samples of `x` precede the first two labels.
    let at = 2 * 12 + 4 * rng.random_range(0..2);
    let old = sha256(&data[at..at + 4]);
    let bytes = data[at..at + 4].try_into().unwrap();
    let changed = f32::from_le_bytes(bytes) + rng.random_range(0.25..1.0_f32);
    data[at..at + 4].copy_from_slice(&changed.to_le_bytes());
    fs::write(&path, &data).unwrap();
    let samples = lines.iter_mut().filter(|line| line["kind"] == "samples");
    let mut hashes = samples.flat_map(|line| line["sha256"].as_array_mut().unwrap());
    *hashes.find(|hash| **hash == old).unwrap() = sha256(&data[at..at + 4]).into();
    SEGMENTS.into()
}

/// The hash of a state, or of a value in it.
fn hash(_: &Path, lines: &mut [Value], rng: &mut Pcg64Mcg) -> Vec<u64> {
    let step = 2 * rng.random_range(1..=6);
    let state = line_of(lines, "state", Some(step));
    let other = sha256(&rng.random::<u64>().to_le_bytes());
    let names: Vec<String> = state["values"].as_object().unwrap().keys().cloned().collect();
    match names.get(rng.random_range(0..=names.len())) {
        Some(name) => state["values"][name] = other[..16].into(),
        None => state["state"] = other.into(),
    }
    around(step)
}

/// The label that a step is fed: another one.
fn schedule(_: &Path, lines: &mut [Value], rng: &mut Pcg64Mcg) -> Vec<u64> {
    let step = rng.random_range(5..=12);
    let row = &mut line_of(lines, "step", Some(step))["feeds"][1]["rows"][rng.random_range(0..2)];
    *row = ((row.as_u64().unwrap() + rng.random_range(1..5)) % 5).into();
    SEGMENTS.into_iter().filter(|last| last - 4 < step && step <= *last).collect()
}

#[test]
fn every_change_is_refused_and_every_other_segment_is_confirmed() {
    let changes: usize = env::var(CHANGES).map_or(40, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (dir, changed) = (folder.path().join("run"), folder.path().join("changed"));
    record(&dir, 1);
    let kinds: [(&str, Change); 4] =
        [("weights", weight), ("data", sample), ("hashes", hash), ("schedule", schedule)];
    let (mut rng, mut untouched) = (Pcg64Mcg::seed_from_u64(40), 0);
    for number in 0..changes {
        let (name, change) = kinds[number % kinds.len()];
        copy(&dir, &changed);
        let mut changed_lines = lines(&changed);
        let touched = change(&changed, &mut changed_lines, &mut rng);
        write_lines(&changed, &changed_lines);
        let verification = verify(&changed).unwrap();
        let expected: Vec<u64> = SEGMENTS.into_iter().filter(|last| !touched.contains(last)).collect();
        let confirmed = confirmed(&verification);
        untouched += expected.len();
        assert_eq!(confirmed, expected, "change {number}, of {name}: {verification}");
    }
    println!("{changes} changes are refused; {untouched} segments without a change are confirmed");
}
