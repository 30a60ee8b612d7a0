//! Records that are confirmed.

use std::fs;

use autobwd::{
    Executor, Tensor,
    exec::record::{RecordedRun, RunRecord, Segments},
};

use crate::support::{
    STEPS, confirmed, feeds, files, initial, lines, network, options, record, sha256, train, train_recorded,
    verify,
};

#[test]
fn number_of_threads_changes_no_byte() {
    let folder = tempfile::tempdir().unwrap();
    let of_threads = |threads: usize| {
        let dir = folder.path().join(threads.to_string());
        record(&dir, threads);
        files(&dir)
    };
    let one = of_threads(1);
    assert!(one == of_threads(2) && one == of_threads(4));
    for threads in [1, 2, 4] {
        let run = RecordedRun::open(folder.path().join("2")).unwrap();
        let verification = run.verify(&mut Executor::with_threads(threads), Segments::All).unwrap();
        assert!(verification.is_confirmed(), "{verification}");
        assert_eq!(confirmed(&verification), [4, 8, 12]);
        assert!(verification.is_finished && verification.warnings.is_empty());
    }
}

#[test]
fn random_segments_depend_on_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    let before = files(folder.path());
    let run = RecordedRun::open(folder.path()).unwrap();
    let mut executor = Executor::with_threads(1);
    let mut chosen = |seed| {
        let verification = run.verify(&mut executor, Segments::Random { count: 1, seed }).unwrap();
        assert!(verification.is_confirmed(), "{verification}");
        confirmed(&verification)
    };
    let of_seeds: Vec<_> = (0..20).map(&mut chosen).collect();
    assert!([4, 8, 12].iter().all(|last| of_seeds.contains(&vec![*last])));
    assert_eq!(chosen(7), of_seeds[7]);
    assert!(files(folder.path()) == before);
}

#[test]
fn sample_is_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    // Five rows of three numbers, and five of one.
    assert_eq!(fs::read(folder.path().join("data.bin")).unwrap().len(), 5 * (3 + 1) * 4);
}

#[test]
fn unfinished_record_is_verified_up_to_its_last_hash() {
    let folder = tempfile::tempdir().unwrap();
    let (network, mut executor) = (network(0.01), Executor::with_threads(1));
    let mut scope = initial(&mut executor, &network);
    let mut record = RunRecord::create(folder.path(), &network.program, &scope, options(&network)).unwrap();
    train_recorded(&mut executor, &network, &mut scope, &mut record, 7).unwrap();
    drop(record);
    let verification = verify(folder.path()).unwrap();
    assert!(verification.is_confirmed() && !verification.is_finished, "{verification}");
    assert_eq!(confirmed(&verification), [4, 6]);
    assert_eq!(
        verification.warnings,
        ["there is no hash of the state after step 7", "the record has no end: the run was not finished"]
    );
}

#[test]
fn rate_that_the_caller_changes_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let (network, mut executor) = (network(0.01), Executor::with_threads(1));
    let mut scope = initial(&mut executor, &network);
    let mut record = RunRecord::create(folder.path(), &network.program, &scope, options(&network)).unwrap();
    for last in 1..=STEPS {
        if last % 5 == 0 {
            let halved = scope.get("learning_rate_0").unwrap().to_f64s()[0] as f32 / 2.0;
            scope.set("learning_rate_0", Tensor::from_vec([1], vec![halved]).unwrap());
        }
        train_recorded(&mut executor, &network, &mut scope, &mut record, last).unwrap();
    }
    record.finish(&scope).unwrap();
    let verification = verify(folder.path()).unwrap();
    assert!(verification.is_confirmed(), "{verification}");
    let changes = lines(folder.path()).iter().filter(|line| line.get("set").is_some()).count();
    assert_eq!(changes, 2);
}

#[test]
fn data_from_elsewhere_must_have_the_recorded_hashes() {
    let folder = tempfile::tempdir().unwrap();
    let (network, mut executor) = (network(0.01), Executor::with_threads(1));
    let mut scope = initial(&mut executor, &network);
    let options = options(&network).data_elsewhere();
    let mut record = RunRecord::create(folder.path(), &network.program, &scope, options).unwrap();
    train_recorded(&mut executor, &network, &mut scope, &mut record, STEPS).unwrap();
    record.finish(&scope).unwrap();

    let run = RecordedRun::open(folder.path()).unwrap();
    assert!(run.needs_data() && fs::read(folder.path().join("data.bin")).unwrap().is_empty());
    let e = run.verify(&mut executor, Segments::All).unwrap_err();
    assert!(e.to_string().contains("`RecordedRun::verify_with`"), "{e}");
    let verification = run.verify_with(&mut executor, Segments::All, |step| Ok(feeds(step))).unwrap();
    assert!(verification.is_confirmed(), "{verification}");
    let others = |step: u64| Ok(feeds(if step == 6 { 7 } else { step }));
    let verification = run.verify_with(&mut executor, Segments::All, others).unwrap();
    assert_eq!(confirmed(&verification), [4, 12]);
    let text = verification.to_string();
    assert!(
        text.contains("steps 5 to 8: refused: between steps 5 and 6, row 0 of `x` has another hash"),
        "{text}"
    );
}

#[test]
fn nan_has_one_hash() {
    let folder = tempfile::tempdir().unwrap();
    let (network, mut executor) = (network(0.01), Executor::with_threads(1));
    let of_nan = |dir: &str, bits: u32, executor: &mut Executor| {
        let mut scope = initial(executor, &network);
        scope.slice_mut::<f32>("linear_0.w").unwrap()[1] = f32::from_bits(bits);
        let dir = folder.path().join(dir);
        let options = options(&network).every(1);
        drop(RunRecord::create(&dir, &network.program, &scope, options).unwrap());
        lines(&dir).into_iter().find(|line| line["kind"] == "state").unwrap()
    };
    let [a, b] = [("a", 0x7fc0_0000), ("b", 0xffc0_0001)].map(|(dir, bits)| of_nan(dir, bits, &mut executor));
    assert_eq!(a, b);
    assert_ne!(a, of_nan("c", 0, &mut executor));
}

#[test]
fn statement_names_files_with_their_hashes() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), 1);
    let read = |file: &str| fs::read(folder.path().join(file)).unwrap();
    let statement: serde_json::Value = serde_json::from_slice(&read("statement.json")).unwrap();
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicate"]["steps"], STEPS);
    assert_eq!(statement["predicate"]["notes"]["seed"], "5");
    let subjects = statement["subject"].as_array().unwrap();
    let names: Vec<&str> = subjects.iter().map(|subject| subject["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["record.jsonl", "program.json", "startup-0.json", "checkpoint-12.safetensors"]);
    for (subject, name) in subjects.iter().zip(names) {
        assert_eq!(subject["digest"]["sha256"], sha256(&read(name)), "{name}");
    }
    let last = String::from_utf8(read("record.jsonl")).unwrap();
    assert!(last.ends_with(&format!("{}}}\n", statement["predicate"]["chain"])));
}

#[test]
fn recording_changes_no_bit_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let (network, mut executor) = (network(0.01), Executor::with_threads(1));
    let (mut plain, mut recorded) = (initial(&mut executor, &network), initial(&mut executor, &network));
    let mut record =
        RunRecord::create(folder.path(), &network.program, &recorded, options(&network)).unwrap();
    (1..=STEPS).for_each(|step| train(&mut executor, &network, &mut plain, step).unwrap());
    train_recorded(&mut executor, &network, &mut recorded, &mut record, STEPS).unwrap();
    assert!(plain.iter().eq(recorded.iter()));
}
