//! Records of two ranks of one run: equal states, and a verification of both together.

use std::{fs, path::Path, time::Duration};

use autobwd::{
    Builder, DType, ErrorKind, Executor, Program, Result, Scope, Tensor,
    exec::record::{
        DifferenceSubject, RecordOptions, RecordedRun, RunRecord, SegmentOutcome, Segments, Verification,
    },
    parallel::{accumulate, data_parallel, startup, threads},
};
use autobwd_ops::{
    Math,
    nn::{Dropout, Linear},
    optim::{Adam, Optimizer},
};

use crate::support::{confirmed, line_of, lines, write_lines};

const RANKS: usize = 2;
const STEPS: u64 = 12;

/// The startup program and the training step of one process.
fn network(dropout: bool) -> [Program; 2] {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let mut hidden = Linear::builder(&net, 3, 4).seed(5).build().forward(&x).tanh();
    if dropout {
        hidden = Dropout::new(&net, 0.5, 3).forward(&hidden);
    }
    let loss = Linear::builder(&net, 4, 1).seed(6).build().forward(&hidden).square().mean();
    Adam::new(0.01).minimize(&loss).unwrap().complete().unwrap();
    [net.startup().program().unwrap().clone(), net.program().unwrap().clone()]
}

/// The two samples of a rank in a step.
fn sample(step: u64, rank: usize) -> Result<Tensor> {
    let x = |i: u64| ((step * 7 + rank as u64 * 3 + i) % 11) as f32 / 10.0;
    Tensor::from_vec([2, 3], (0..6).map(x).collect())
}

/// Records a run of all ranks in the folders `0` and `1`.
fn record(folder: &Path, dropout: bool) {
    let [init, step] = network(dropout);
    let step = data_parallel(&step, RANKS, 1 << 20).unwrap();
    let train = |rank: usize, executor: &mut Executor| {
        let (mut scope, starts) = (Scope::new(), [init.clone(), startup(&step, rank)?]);
        for start in &starts {
            executor.run(start, &mut scope, &[], &[])?;
        }
        let options = RecordOptions::new().every(2).checkpoint_every(4);
        let options = starts.iter().fold(options, RecordOptions::startup);
        let mut record = RunRecord::create(folder.join(rank.to_string()), &step, &scope, options)?;
        for number in 1..=STEPS {
            let x = sample(number, rank)?;
            executor.run(&step, &mut scope, &[("x", &x)], &[])?;
            record.step(&[("x", &x)], &scope)?;
        }
        record.finish(&scope)
    };
    let ranks = threads::run(RANKS, |transport| {
        train(transport.rank(), &mut Executor::with_threads(1).with_transport(transport))
    });
    ranks.unwrap();
}

fn open(folder: &Path) -> [RecordedRun; RANKS] {
    ["0", "1"].map(|rank| RecordedRun::open(folder.join(rank)).unwrap())
}

fn executors() -> Vec<Executor> {
    let transports = threads::connect(RANKS, Duration::from_secs(60)).into_iter();
    transports.map(|transport| Executor::with_threads(1).with_transport(transport)).collect()
}

fn verify(folder: &Path) -> Vec<Verification> {
    RecordedRun::verify_ranks(&open(folder), &mut executors(), Segments::All).unwrap()
}

#[test]
fn records_of_ranks_are_confirmed_together() {
    for dropout in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        record(folder.path(), dropout);
        for verification in verify(folder.path()) {
            assert_eq!(confirmed(&verification), [4, 8, 12], "{verification}");
            assert!(verification.is_confirmed() && verification.is_finished);
        }
        let random = Segments::Random { count: 2, seed: 3 };
        let some = RecordedRun::verify_ranks(&open(folder.path()), &mut executors(), random).unwrap();
        assert_eq!(confirmed(&some[0]), confirmed(&some[1]));
        assert_eq!(some[0].segments.len(), 2);
        assert!(some.iter().all(Verification::is_confirmed));
    }
}

#[test]
fn ranks_have_the_states_of_each_other_and_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), false);
    let [first, second] = open(folder.path());
    let ranks = first.compare(&second);
    let subjects: Vec<DifferenceSubject> = ranks.differences.iter().map(|known| known.subject).collect();
    assert_eq!(subjects, [DifferenceSubject::Feeds]);
    assert_eq!((ranks.last_equal_state, ranks.first_different_state), (STEPS, None));
    assert!(first.states().eq(second.states()));

    let [init, step] = network(false);
    let step = accumulate(&step, RANKS).unwrap();
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    for start in [&init, &step.startup] {
        executor.run(start, &mut scope, &[], &[]).unwrap();
    }
    let (dir, options) = (folder.path().join("one"), RecordOptions::new().every(2));
    let mut record = RunRecord::create(&dir, &step.update, &scope, options).unwrap();
    for number in 1..=STEPS {
        for rank in 0..RANKS {
            let x = sample(number, rank).unwrap();
            executor.run(&step.gradients, &mut scope, &[("x", &x)], &[]).unwrap();
        }
        executor.run(&step.update, &mut scope, &[], &[]).unwrap();
        record.step(&[], &scope).unwrap();
    }
    record.finish(&scope).unwrap();
    let one = first.compare(&RecordedRun::open(&dir).unwrap());
    assert_eq!((one.last_equal_state, one.first_different_state, one.compared_states), (STEPS, None, 7));
}

#[test]
fn refused_rank_leaves_the_others_without_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), false);
    let data = folder.path().join("1/data.bin");
    let mut bytes = fs::read(&data).unwrap();
    bytes[0] ^= 1;
    fs::write(&data, bytes).unwrap();
    let [first, second] = <[Verification; RANKS]>::try_from(verify(folder.path())).unwrap();
    let unverified = SegmentOutcome::Unverifiable("rank 1 is refused at step 1".into());
    assert_eq!(first.segments[0].outcome, unverified);
    assert!(second.to_string().contains("steps 1 to 4: refused: at step 1, sample 0 of `x` in `data.bin`"));
    assert!(!first.is_confirmed() && !second.is_confirmed());
}

#[test]
fn other_order_of_samples_of_one_rank_is_refused_on_all() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), false);
    let dir = folder.path().join("1");
    let mut changed = lines(&dir);
    let feed = &mut line_of(&mut changed, "step", Some(6))["feeds"][0]["rows"];
    feed[0] = feed[1].clone();
    write_lines(&dir, &changed);
    for verification in verify(folder.path()) {
        assert_eq!(confirmed(&verification), [4, 12], "{verification}");
        assert!(verification.to_string().contains("steps 5 to 8: refused: between steps 5 and 6, `"));
    }
}

#[test]
fn missing_checkpoint_of_one_rank_joins_the_segments_of_all() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), false);
    fs::remove_file(folder.path().join("0/checkpoint-4.safetensors")).unwrap();
    for verification in verify(folder.path()) {
        assert_eq!(confirmed(&verification), [8, 12], "{verification}");
    }
}

#[test]
fn rank_cannot_be_verified_alone() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), false);
    let [first, _] = open(folder.path());
    let alone = first.verify(&mut Executor::with_threads(1), Segments::All).unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::Rank, "{alone}");
    let missing = RecordedRun::verify_ranks(&[first], &mut executors(), Segments::All).unwrap_err();
    assert_eq!(missing.to_string(), "1 records of ranks need as many executors, not 2");
}
