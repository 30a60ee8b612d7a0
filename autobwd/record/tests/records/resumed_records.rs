//! Records of runs that are killed and resumed.

use std::{fs, path::Path};

use autobwd::{
    Executor, Scope,
    exec::{Checkpoint, record::RunRecord},
};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::support::{STEPS, copy, files, initial, network, options, record, train, train_recorded, verify};

/// The last checkpoint whose line is complete.
fn last_checkpoint(dir: &Path) -> u64 {
    let text = fs::read_to_string(dir.join("record.jsonl")).unwrap();
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let steps = (0..=STEPS).rev();
    let of_step = |step: u64| format!("checkpoint-{step}.safetensors");
    steps.into_iter().find(|step| complete.contains(&of_step(*step))).unwrap()
}

#[test]
fn killed_and_resumed_runs_have_the_record_of_an_unbroken_one() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, killed) = (folder.path().join("run"), folder.path().join("killed"));
    record(&dir, 1);
    let unbroken = files(&dir);
    let lines = fs::read(dir.join("record.jsonl")).unwrap();
    // The run is killed after the line of its first checkpoint.
    let text = String::from_utf8_lossy(&lines);
    let first = text.find("checkpoint-0").unwrap()
        + text[text.find("checkpoint-0").unwrap()..].find('\n').unwrap()
        + 1;
    // The last line says that the run is finished.
    let last = text.trim_end().rfind('\n').unwrap() + 1;
    let network = network(0.01);
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() });
    let outcome = runner.run(&(first..last, 0..40_usize), |(bytes, more)| {
        copy(&dir, &killed);
        fs::remove_file(killed.join("statement.json")).unwrap();
        fs::write(killed.join("record.jsonl"), &lines[..bytes]).unwrap();
        // Samples are written before their lines.
        let mut data = fs::read(dir.join("data.bin")).unwrap();
        data.extend(vec![7; more]);
        fs::write(killed.join("data.bin"), data).unwrap();

        prop_assert!(verify(&killed).unwrap().is_confirmed());
        let (step, mut scope) = (last_checkpoint(&killed), Scope::new());
        let checkpoint = killed.join(format!("checkpoint-{step}.safetensors"));
        Checkpoint::load(checkpoint, &network.program, &mut scope).unwrap();
        let mut record = RunRecord::resume(&killed, &network.program, &scope, step).unwrap();
        let mut executor = Executor::with_threads(1);
        train_recorded(&mut executor, &network, &mut scope, &mut record, STEPS).unwrap();
        record.finish(&scope).unwrap();
        prop_assert!(files(&killed) == unbroken);
        Ok(())
    });
    outcome.unwrap();
    assert!(verify(&killed).unwrap().is_confirmed());
}

#[test]
fn run_is_resumed_after_any_step() {
    let folder = tempfile::tempdir().unwrap();
    let (network, mut executor) = (network(0.01), Executor::with_threads(1));
    let dir = folder.path().join("run");
    record(&dir, 1);
    for step in 0..=STEPS {
        let killed = folder.path().join(step.to_string());
        let mut scope = initial(&mut executor, &network);
        let mut record = RunRecord::create(&killed, &network.program, &scope, options(&network)).unwrap();
        train_recorded(&mut executor, &network, &mut scope, &mut record, STEPS).unwrap();
        drop(record);
        let mut scope = initial(&mut executor, &network);
        (1..=step).for_each(|step| train(&mut executor, &network, &mut scope, step).unwrap());
        let mut record = RunRecord::resume(&killed, &network.program, &scope, step).unwrap();
        assert_eq!(record.last_step(), step);
        train_recorded(&mut executor, &network, &mut scope, &mut record, STEPS).unwrap();
        record.finish(&scope).unwrap();
        assert!(files(&killed) == files(&dir), "step {step}");
    }
}

#[test]
fn record_of_another_run_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (network, mut executor) = (network(0.01), Executor::with_threads(1));
    let mut scope = initial(&mut executor, &network);
    let mut record = RunRecord::create(folder.path(), &network.program, &scope, options(&network)).unwrap();
    train_recorded(&mut executor, &network, &mut scope, &mut record, 5).unwrap();
    drop(record);
    let before = files(folder.path());
    let resume = |program, scope: &Scope, step| {
        RunRecord::resume(folder.path(), program, scope, step).unwrap_err().to_string()
    };
    let text = resume(&network.program, &scope, 4);
    assert!(text.contains("has another value in the scope than after step 4"), "{text}");
    let text = resume(&network.program, &scope, 6);
    assert!(text.ends_with("it has 5 steps, not 6"), "{text}");
    let text = resume(&network.startup, &scope, 5);
    assert!(text.ends_with("it is the record of another program"), "{text}");
    assert!(files(folder.path()) == before);
}
