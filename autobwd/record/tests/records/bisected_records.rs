//! Bisections of two runs.

use std::{env, path::Path};

use autobwd::{
    Builder, Executor, Feed, Scope, Tensor,
    exec::record::{Bisection, DifferenceSubject, RecordOptions, RecordedRun, RunRecord},
};
use autobwd_ops::Math;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use serde_json::json;

use crate::{
    rounding::{STAGES, iterations, record_stages, stages, stages_of},
    support::{
        Network, STEPS, copy, feeds, files, initial, line_of, lines, network, options, record,
        train_recorded, write_lines,
    },
};

/// Bisects on one thread.
fn bisect(a: &Path, b: &Path) -> Bisection {
    let (a, b) = (RecordedRun::open(a).unwrap(), RecordedRun::open(b).unwrap());
    a.bisect(&b, &mut Executor::with_threads(1)).unwrap()
}

/// The record of a run whose feeds of a step may be changed.
fn record_changed(dir: &Path, network: &Network, change: impl Fn(u64, &mut Vec<(String, Tensor)>)) {
    let mut executor = Executor::with_threads(1);
    let mut scope: Scope = initial(&mut executor, network);
    let mut record = RunRecord::create(dir, &network.program, &scope, options(network)).unwrap();
    for step in 1..=STEPS {
        let mut feeds = feeds(step);
        change(step, &mut feeds);
        let fed: Vec<(&str, &dyn Feed)> =
            feeds.iter().map(|(name, x)| (name.as_str(), x as &dyn Feed)).collect();
        executor.run(&network.program, &mut scope, &fed, &[]).unwrap();
        let fed: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, x)| (name.as_str(), x)).collect();
        record.step(&fed, &scope).unwrap();
    }
    record.finish(&scope).unwrap();
}

/// `STEPS=10000 cargo test -p autobwd-record rounding` takes longer runs.
#[test]
fn rounding_is_found_at_any_step_and_operator() {
    let steps: u64 = env::var("STEPS").map_or(1000, |steps| steps.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Pcg64Mcg::seed_from_u64(40);
    let original = RecordOptions::new().checkpoint_every(steps / 5);
    let first = record_stages(&folder.path().join("first"), &stages(0, 0), steps, original);
    for case in 0..50 {
        let (stage, at) = (rng.random_range(0..STAGES), rng.random_range(1..=steps));
        let (every, checkpoint_every) = ([1, 10, 50][case % 3], [steps / 20, steps / 5, steps][case / 3 % 3]);
        let options = RecordOptions::new().every(every).checkpoint_every(checkpoint_every);
        let dir = folder.path().join(case.to_string());
        let second = record_stages(&dir, &stages(stage, at), steps, options);
        let bisection = first.bisect(&second, &mut Executor::with_threads(1)).unwrap();
        let step = bisection.step.as_ref().unwrap();
        let operator = step.operator.as_ref().unwrap();
        assert_eq!((step.step, operator.ty.as_str()), (at, "rounding_at"), "{bisection}");
        assert_eq!(operator.outputs[0].name, format!("rounding_at_{stage}"), "{bisection}");
        let element = operator.outputs[0].difference.as_ref().unwrap();
        assert_eq!((&element.element[..], element.ulps, element.different), (&[2][..], Some(1), 1));
        assert!(operator.inputs.iter().all(|input| input.equal), "{bisection}");
        // At most 2·log₂(steps).
        assert!(1_u64 << bisection.replays <= steps * steps, "{bisection}");
        assert!(bisection.unreproduced.iter().all(Option::is_none), "{bisection}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn iteration_of_a_loop_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let record = |dir: &str, at: i64| {
        record_stages(&folder.path().join(dir), &iterations(at), 3, RecordOptions::new().every(1));
        folder.path().join(dir)
    };
    let bisection = bisect(&record("a", 0), &record("b", 3));
    let step = bisection.step.as_ref().unwrap();
    let operator = step.operator.as_ref().unwrap();
    assert_eq!((step.step, operator.ty.as_str(), operator.repetition), (1, "rounding_at", 2), "{bisection}");
    assert!(operator.block > 0 && operator.inputs.iter().all(|input| input.equal), "{bisection}");
}

#[test]
fn equal_runs_agree_without_a_replay() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    record(&a, 1);
    record(&b, 2);
    let before = files(&a);
    let bisection = bisect(&a, &b);
    assert!(bisection.agrees() && bisection.differences.is_empty() && bisection.replays == 0);
    assert_eq!(bisection.to_string(), "the runs agree in all 7 states that both records have, up to step 12");
    assert!(files(&a) == before);
}

#[test]
fn runs_whose_first_values_all_differ_do_not_agree() {
    let folder = tempfile::tempdir().unwrap();
    let network = network(0.01);
    let record = |dir: &str, added: f32| {
        let mut executor = Executor::with_threads(1);
        let mut scope = initial(&mut executor, &network);
        let names: Vec<String> = scope.iter().map(|(name, _)| name.into()).collect();
        for name in names {
            scope.slice_mut::<f32>(&name).into_iter().flatten().for_each(|x| *x += added);
        }
        let dir = folder.path().join(dir);
        let mut record = RunRecord::create(&dir, &network.program, &scope, RecordOptions::new()).unwrap();
        train_recorded(&mut executor, &network, &mut scope, &mut record, STEPS).unwrap();
        record.finish(&scope).unwrap();
        dir
    };
    let bisection = bisect(&record("a", 0.0), &record("b", 0.5));
    assert!(!bisection.agrees(), "{bisection}");
    let text = bisection.to_string();
    assert!(text.contains("differ before the first step\nall other values agree in all 3 states"), "{text}");
}

#[test]
fn changed_sample_is_named_with_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    record(&a, 1);
    record_changed(&b, &network(0.01), |step, feeds| {
        if step == 7 {
            feeds[0].1.slice_mut::<f32>().unwrap()[4] += 0.5;
        }
    });
    let bisection = bisect(&a, &b);
    let [fed, state] = &bisection.differences[..] else { panic!("{bisection}") };
    assert_eq!((fed.subject, fed.step), (DifferenceSubject::Feeds, Some(7)));
    assert_eq!(fed.text, "step 7 is fed other data: row 1 of `x`");
    assert_eq!((state.subject, state.step), (DifferenceSubject::State, Some(8)));
    let step = bisection.step.as_ref().unwrap();
    let operator = step.operator.as_ref().unwrap();
    assert_eq!((step.step, operator.ty.as_str()), (7, "matmul_v2"), "{bisection}");
    let x = operator.inputs.iter().find(|input| input.name == "x").unwrap();
    let element = x.difference.as_ref().unwrap();
    assert_eq!((&element.element[..], element.different), (&[1, 1][..], 1), "{bisection}");
    let text = bisection.to_string();
    assert!(operator.gradient.is_some() && text.contains("is the gradient of `"), "{text}");
    assert!(operator.source_line.as_ref().is_some_and(|line| line.contains("support.rs:")), "{text}");
}

#[test]
fn changed_rate_is_named_with_the_operator_that_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    record(&a, 1);
    record_changed(&b, &network(0.02), |_, _| {});
    let bisection = bisect(&a, &b);
    let of = |subject| bisection.differences.iter().find(|difference| difference.subject == subject);
    assert!(of(DifferenceSubject::Program).is_none(), "{bisection}");
    assert!(of(DifferenceSubject::Startup).unwrap().text.contains("value: 0.01"), "{bisection}");
    let text = &of(DifferenceSubject::InitialState).unwrap().text;
    assert_eq!(text, "`learning_rate_0` differs before the first step");
    let step = bisection.step.as_ref().unwrap();
    let operator = step.operator.as_ref().unwrap();
    assert_eq!((step.step, operator.ty.as_str()), (1, "adam"), "{bisection}");
    let is_equal =
        |input: &autobwd::exec::record::ComparedValue| input.equal == (input.slot != "LearningRate");
    assert!(operator.inputs.iter().all(is_equal), "{bisection}");
}

#[test]
fn rate_that_the_caller_changes_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let network = network(0.01);
    let run = |dir: &str, rate: f32| {
        let mut executor = Executor::with_threads(1);
        let mut scope = initial(&mut executor, &network);
        let dir = folder.path().join(dir);
        let mut record = RunRecord::create(&dir, &network.program, &scope, options(&network)).unwrap();
        for step in 1..=STEPS {
            if step == 5 {
                scope.set("learning_rate_0", Tensor::from_vec([1], vec![rate]).unwrap());
            }
            train_recorded(&mut executor, &network, &mut scope, &mut record, step).unwrap();
        }
        record.finish(&scope).unwrap();
        dir
    };
    let bisection = bisect(&run("a", 0.005), &run("b", 0.006));
    let text = &bisection.differences[0].text;
    assert_eq!(text, "step 5 changes other values of the scope: `learning_rate_0`");
    assert_eq!(bisection.step.as_ref().unwrap().step, 5);
}

#[test]
fn inserted_operator_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let of = |dir: &str, net: &Builder| {
        let options = RecordOptions::new().every(3).checkpoint_every(7);
        record_stages(&folder.path().join(dir), net, 30, options);
        folder.path().join(dir)
    };
    let bisection = bisect(&of("a", &stages(0, 0)), &of("b", &stages_of(0, 0, Math::tanh)));
    let program = &bisection.differences[0];
    assert_eq!(program.subject, DifferenceSubject::Program);
    assert!(program.text.starts_with("the programs differ: + operator 0: tanh_0 = tanh(X=w)"), "{bisection}");
    let step = bisection.step.as_ref().unwrap();
    let operator = step.operator.as_ref().unwrap();
    assert_eq!((step.step, operator.ty.as_str()), (1, "scale"), "{bisection}");
    let other = operator.other_operator.as_ref().unwrap();
    assert!(other.contains("operator 1, ") && other.contains("X = `tanh_0`"), "{bisection}");
}

#[test]
fn record_that_is_not_reproduced_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let a = folder.path().join("a");
    record(&a, 1);
    let b = copy(&a, &folder.path().join("b"));
    let mut changed = lines(&b);
    let state = line_of(&mut changed, "state", Some(6));
    let name = state["values"].as_object().unwrap().keys().next().unwrap().clone();
    state["values"][&name] = json!("0123456789abcdef");
    write_lines(&b, &changed);
    let bisection = bisect(&a, &b);
    assert!(bisection.step.is_none() && bisection.unreproduced[0].is_none(), "{bisection}");
    let record = bisection.unreproduced[1].as_ref().unwrap();
    assert_eq!((record.after, record.step, &record.values), (4, 6, &vec![name]));
    let text = bisection.to_string();
    assert!(
        text.contains(
            "the record of the second run is not reproduced on this machine: between steps 5 and 6"
        ),
        "{text}"
    );
}

#[test]
fn record_without_data_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let network = network(0.01);
    let scope = initial(&mut Executor::with_threads(1), &network);
    let options = options(&network).data_elsewhere();
    RunRecord::create(folder.path(), &network.program, &scope, options).unwrap().finish(&scope).unwrap();
    let run = RecordedRun::open(folder.path()).unwrap();
    let e = run.bisect(&run, &mut Executor::with_threads(1)).unwrap_err();
    assert!(e.to_string().contains("record the run without `RecordOptions::data_elsewhere`"), "{e}");
}
