//! Requests that cannot be met, each with one sentence.

use std::fs;

use autobwd::{
    Executor, Result, Scope,
    exec::record::{RecordedRun, RunRecord},
};
use serde_json::{Value, json};

use crate::support::{files, initial, lines, network, options, record, verify, write_lines};

fn refusal<T>(outcome: Result<T>) -> String {
    outcome.map(drop).unwrap_err().to_string()
}

#[test]
fn record_is_never_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    let before = files(folder.path());
    let (network, mut executor) = (network(0.01), Executor::with_threads(1));
    let scope = initial(&mut executor, &network);
    let text = refusal(RunRecord::create(folder.path(), &network.program, &scope, options(&network)));
    assert!(text.contains("has a record, which is never rewritten"), "{text}");
    let text = refusal(RunRecord::resume(folder.path(), &network.program, &scope, 4));
    assert!(text.ends_with("the run is finished"), "{text}");
    verify(folder.path()).unwrap();
    assert!(files(folder.path()) == before);
}

#[test]
fn startup_program_must_have_run() {
    let (folder, network) = (tempfile::tempdir().unwrap(), network(0.01));
    let dir = folder.path().join("run");
    let text = refusal(RunRecord::create(&dir, &network.program, &Scope::new(), options(&network)));
    assert_eq!(text, "the scope has no `linear_0.w`");
    assert!(!dir.exists());
}

#[test]
fn record_ends_when_it_cannot_be_written() {
    let (folder, network) = (tempfile::tempdir().unwrap(), network(0.01));
    let dir = folder.path().join("run");
    let scope = initial(&mut Executor::with_threads(1), &network);
    let mut record = RunRecord::create(&dir, &network.program, &scope, options(&network)).unwrap();
    // The checkpoint of step 0 is there, and no further one can be.
    while !fs::read_to_string(dir.join("record.jsonl")).unwrap().contains("checkpoint-0") {}
    fs::remove_dir_all(&dir).unwrap();
    let outcome = (0..100).try_for_each(|_| record.step(&[], &scope));
    assert!(refusal(outcome).contains("checkpoint-4.safetensors"));
    assert!(refusal(record.step(&[], &scope)).contains("the record ended when it could not be written"));
    assert!(refusal(record.finish(&scope)).contains("the record ended when it could not be written"));
}

#[test]
fn header_of_another_kind_is_refused() {
    let refused = |change: fn(&mut Value)| {
        let folder = tempfile::tempdir().unwrap();
        record(folder.path(), 1);
        let mut lines = lines(folder.path());
        change(&mut lines[0]);
        write_lines(folder.path(), &lines);
        refusal(RecordedRun::open(folder.path()))
    };
    let text = refused(|header| header["arithmetic"] = json!(999));
    assert!(text.contains("was computed with version 999 of the arithmetic"), "{text}");
    let text = refused(|header| header["schema"] = json!("autobwd.record/2"));
    assert!(
        text.ends_with("a record of schema `autobwd.record/2`; this autobwd reads `autobwd.record/1`"),
        "{text}"
    );
    let text = refused(|header| header["program"]["file"] = json!("../program.json"));
    assert!(text.ends_with("line 1 names programs outside the record"), "{text}");
    let text = refused(|header| header["program"]["fingerprint"] = json!("0"));
    assert!(text.contains("program.json` is another program than the recorded one"), "{text}");
}

#[test]
fn other_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = refusal(RecordedRun::open(folder.path()));
    assert!(text.ends_with("has no record: there is no `record.jsonl` in it"), "{text}");
    fs::write(folder.path().join("record.jsonl"), "{\"schema\":").unwrap();
    let text = refusal(RecordedRun::open(folder.path()));
    assert!(text.ends_with("its first line is incomplete: the run was not recorded"), "{text}");
    fs::write(folder.path().join("record.jsonl"), "{}\n").unwrap();
    let text = refusal(RecordedRun::open(folder.path()));
    assert!(text.contains("line 1 is damaged: it does not end with the key `chain`"), "{text}");
}
