//! Records with one change: refused, with its place, while other segments are confirmed.

use std::{fs, path::Path};

use autobwd::{
    Scope,
    exec::{
        Checkpoint,
        record::{RecordedRun, SegmentOutcome, Verification},
    },
};
use proptest::{prelude::*, sample::Index, test_runner::TestRunner};
use serde_json::json;

use crate::support::{confirmed, copy, files, line_of, lines, network, record, sha256, verify, write_lines};

/// The segments of a record that do not need a file.
fn untouched(file: &str) -> &'static [u64] {
    match file {
        // The segments around it become one.
        "checkpoint-4.safetensors" => &[8, 12],
        "checkpoint-8.safetensors" => &[4, 12],
        // The run starts with its startup program, or has no further segment.
        "checkpoint-0.safetensors" | "checkpoint-12.safetensors" | "statement.json" => &[4, 8, 12],
        _ => &[],
    }
}

fn is_refused_with_place(name: &str, outcome: &autobwd::Result<Verification>) -> Result<(), String> {
    match outcome {
        Err(e) if e.to_string().contains(name) => Ok(()),
        Err(e) => Err(format!("no place: {e}")),
        Ok(verification) => {
            let untouched = untouched(name);
            let text = verification.to_string();
            if verification.is_confirmed() || !text.contains(name) {
                return Err(format!("not refused with its place: {text}"));
            }
            match untouched.iter().all(|last| confirmed(verification).contains(last)) {
                true => Ok(()),
                false => Err(format!("untouched segments are not confirmed: {text}")),
            }
        }
    }
}

/// 300 bits, each in a file that is chosen first, so that small files are also changed.
#[test]
fn one_bit_anywhere_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, changed) = (folder.path().join("run"), folder.path().join("changed"));
    record(&dir, 1);
    let files = files(&dir);
    copy(&dir, &changed);
    let change = (any::<Index>(), any::<Index>(), 0..8_u32);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&change, |(file, byte, bit)| {
        let (name, original) = file.get(&files);
        let mut bytes = original.clone();
        bytes[byte.index(original.len())] ^= 1 << bit;
        fs::write(changed.join(name), bytes).unwrap();
        let outcome = is_refused_with_place(name, &verify(&changed));
        fs::write(changed.join(name), original).unwrap();
        outcome.map_err(TestCaseError::fail)
    });
    outcome.unwrap();
    assert!(verify(&changed).unwrap().is_confirmed());
}

#[test]
fn damaged_line_leaves_the_steps_before_it() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    let path = folder.path().join("record.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(r#""step":10"#, r#""step":19"#)).unwrap();
    let verification = verify(folder.path()).unwrap();
    assert_eq!(confirmed(&verification), [4, 8]);
    assert_eq!(verification.steps, 9);
    assert!(
        verification.damages[0].contains("its chain does not follow from its text and the lines before it")
    );
}

/// The outcome of a record after a change that keeps its chain valid, which only a replay can notice.
fn replayed(dir: &Path) -> Verification {
    let verification = verify(dir).unwrap();
    assert_eq!(verification.damages, ["`statement.json` is missing"]);
    verification
}

/// The changed copy of a record.
fn with_change(change: impl FnOnce(&Path)) -> Verification {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    change(folder.path());
    replayed(folder.path())
}

/// Expects one refused segment, by its sentence, and the confirmed ones.
fn assert_refused(verification: &Verification, sentence: &str, others: &[u64]) {
    assert_eq!(confirmed(verification), others, "{verification}");
    let refusals =
        verification.segments.iter().filter(|segment| segment.outcome != SegmentOutcome::Confirmed);
    let texts: Vec<String> = refusals.map(ToString::to_string).collect();
    assert!(texts.len() == 1 && texts[0].contains(sentence), "{texts:?}");
}

#[test]
fn valid_chain_is_confirmed_by_replay() {
    let verification = with_change(|dir| write_lines(dir, &lines(dir)));
    assert_eq!(confirmed(&verification), [4, 8, 12]);
}

#[test]
fn other_order_of_samples_is_refused() {
    let verification = with_change(|dir| {
        let mut lines = lines(dir);
        line_of(&mut lines, "step", Some(6))["feeds"][0]["rows"].as_array_mut().unwrap().reverse();
        write_lines(dir, &lines);
    });
    assert_refused(&verification, "steps 5 to 8: refused: between steps 5 and 6, `", &[4, 12]);
}

#[test]
fn changed_sample_with_its_hash_is_refused() {
    let verification = with_change(|dir| {
        let mut data = fs::read(dir.join("data.bin")).unwrap();
        data[0] ^= 1;
        fs::write(dir.join("data.bin"), &data).unwrap();
        let mut lines = lines(dir);
        line_of(&mut lines, "samples", None)["sha256"][0] = sha256(&data[..12]).into();
        write_lines(dir, &lines);
    });
    assert!(confirmed(&verification).is_empty());
    assert!(verification.to_string().contains("steps 1 to 4: refused: between steps 1 and 2, `"));
}

#[test]
fn changed_hash_of_a_state_is_refused() {
    let verification = with_change(|dir| {
        let mut lines = lines(dir);
        line_of(&mut lines, "state", Some(10))["state"] = sha256(b"another").into();
        write_lines(dir, &lines);
    });
    let sentence =
        "steps 9 to 12: refused: between steps 9 and 10, the hash of the state after the step is another";
    assert_refused(&verification, sentence, &[4, 8]);
}

#[test]
fn changed_hash_of_a_value_names_the_value() {
    let verification = with_change(|dir| {
        let mut lines = lines(dir);
        line_of(&mut lines, "state", Some(2))["values"]["linear_1.w"] = "0123456789abcdef".into();
        write_lines(dir, &lines);
    });
    let sentence = "between steps 1 and 2, `linear_1.w` after the step has another hash";
    assert_refused(&verification, sentence, &[8, 12]);
}

#[test]
fn changed_rate_of_the_program_is_refused() {
    let verification = with_change(|dir| {
        let other = network(0.02);
        let mut lines = lines(dir);
        for (file, program) in [("startup-0.json", &other.startup), ("program.json", &other.program)] {
            program.save(dir.join(file)).unwrap();
            let digest = sha256(&fs::read(dir.join(file)).unwrap());
            let fingerprint = format!("{:016x}", program.fingerprint());
            let known = json!({ "file": file, "fingerprint": fingerprint, "sha256": digest });
            match file {
                "program.json" => lines[0]["program"] = known,
                _ => lines[0]["startup"][0] = known,
            }
        }
        write_lines(dir, &lines);
    });
    assert_eq!(confirmed(&verification), [8, 12]);
    let sentence = "refused: at step 0, `learning_rate_0` after the startup programs has another hash";
    assert!(verification.to_string().contains(sentence), "{verification}");
}

#[test]
fn changed_weight_of_a_checkpoint_is_refused() {
    let change = |dir: &Path, with_state: bool| {
        let (mut scope, program) = (Scope::new(), network(0.01).program);
        let file = "checkpoint-8.safetensors";
        let path = dir.join(file);
        Checkpoint::load(&path, &program, &mut scope).unwrap();
        scope.slice_mut::<f32>("linear_0.w").unwrap()[3] += 0.5;
        Checkpoint::new(8).save(&path, &program, &scope).unwrap();
        let mut lines = lines(dir);
        line_of(&mut lines, "checkpoint", Some(8))["sha256"] = sha256(&fs::read(&path).unwrap()).into();
        if with_state {
            line_of(&mut lines, "state", Some(8))["values"]["linear_0.w"] = "0123456789abcdef".into();
        }
        write_lines(dir, &lines);
    };
    for with_state in [false, true] {
        let verification = with_change(|dir| change(dir, with_state));
        assert_eq!(confirmed(&verification), [4], "{verification}");
        let text = verification.to_string();
        assert!(text.contains("`linear_0.w` in `checkpoint-8.safetensors` has another hash"), "{text}");
    }
}

#[test]
fn missing_checkpoint_is_covered_by_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    fs::remove_file(folder.path().join("checkpoint-8.safetensors")).unwrap();
    let verification = verify(folder.path()).unwrap();
    assert!(verification.is_confirmed());
    assert_eq!(confirmed(&verification), [4, 12]);
    assert_eq!(
        verification.warnings,
        ["`checkpoint-8.safetensors` is missing: no segment starts after step 8"]
    );
}

#[test]
fn missing_first_checkpoint_leaves_later_segments_without_a_startup_program() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    fs::remove_file(folder.path().join("checkpoint-0.safetensors")).unwrap();
    assert_eq!(confirmed(&verify(folder.path()).unwrap()), [4, 8, 12]);
    let mut lines = lines(folder.path());
    lines[0]["startup"] = json!([]);
    write_lines(folder.path(), &lines);
    let verification = replayed(folder.path());
    assert_refused(&verification, "steps 1 to 4: not verified: there is no checkpoint of step 0", &[8, 12]);
}

#[test]
fn removed_end_is_noticed_by_the_statement() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    let path = folder.path().join("record.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let without_end: Vec<&str> = text.lines().filter(|line| !line.contains(r#""kind":"end""#)).collect();
    fs::write(&path, without_end.join("\n") + "\n").unwrap();
    let verification = RecordedRun::open(folder.path()).unwrap();
    assert!(!verification.is_finished());
    let verification = verify(folder.path()).unwrap();
    assert_eq!(verification.damages, ["`statement.json` is not the statement of this record"]);
}
