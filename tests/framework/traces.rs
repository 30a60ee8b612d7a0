//! Traces of runs, and event files of monitors.

use std::fs;

use autobwd::{
    Builder, DType, Executor, Meta, Result, Scope, Tensor,
    exec::{Monitor, RunTrace},
};
use autobwd_ops::{
    Init, Math,
    nn::Linear,
    optim::{Optimizer, Sgd},
};
use serde_json::Value;

/// A step that trains a layer, with its loss.
fn training() -> Result<(Builder, String)> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let loss = Linear::builder(&net, 3, 2).build().forward(&x).tanh().square().mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    Ok((net, loss.name()))
}

/// The start and the end of a slice, in microseconds.
fn span(event: &Value) -> (f64, f64) {
    let start = event["ts"].as_f64().unwrap_or(f64::NAN);
    (start, start + event["dur"].as_f64().unwrap_or(f64::NAN))
}

/// The events of a trace of some steps.
fn events(steps: usize) -> Result<(Vec<Value>, usize)> {
    let (net, loss) = training()?;
    let (program, mut scope) = (net.program()?, Scope::new());
    let mut executor = Executor::with_threads(1);
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::zeros(DType::F32, &[4, 3])?;
    let feeds = [("x", x.meta())];
    // The learning rate is a value of the scope, which a fetch copies.
    let fetches = [loss.as_str(), "learning_rate_0"];
    let mut session = executor.prepare(&program, &mut scope, &feeds, &fetches)?;
    let mut trace = RunTrace::new(&executor.plan(&program, &scope, &feeds, &fetches)?);
    for _ in 0..steps {
        session.feed("x", &x)?;
        session.trace(&mut scope, &mut trace)?;
    }
    assert_eq!((trace.steps(), trace.skipped_steps()), (steps, 0));
    let document: Value = serde_json::from_str(&trace.to_json()?).unwrap_or_default();
    let operators = program.root().ops.len();
    Ok((document["traceEvents"].as_array().cloned().unwrap_or_default(), operators))
}

#[test]
fn instructions_are_within_their_step() -> Result<()> {
    let (events, operators) = events(3)?;
    let of = |cat: &str| events.iter().filter(|event| event["cat"] == cat).collect::<Vec<_>>();
    let (steps, instructions) = (of("step"), of("instruction"));
    assert_eq!(steps.len(), 3);
    let each = instructions.len() / 3;
    for (step, instructions) in steps.iter().zip(instructions.chunks(each)) {
        let mut at = span(step).0;
        for instruction in instructions {
            let (start, end) = span(instruction);
            assert!(at <= start && start <= end && end <= span(step).1, "{step} {instruction}");
            at = end;
        }
    }
    let listed: usize = instructions[..each]
        .iter()
        .filter_map(|event| event["args"]["operators"].as_array())
        .map(Vec::len)
        .sum();
    assert!(listed <= operators && listed > 4, "{listed} of {operators}");
    assert!(instructions.iter().any(|event| event["name"] == "copy"));
    let sources = instructions.iter().flat_map(|event| event["args"]["sources"].as_array()).flatten();
    assert!(sources.clone().any(|source| source.as_str().is_some_and(|at| at.contains("traces.rs:"))));
    let bytes = of("memory").into_iter().filter_map(|event| event["args"]["bytes"].as_u64());
    assert!(bytes.max() > Some(0));
    Ok(())
}

#[test]
fn every_event_has_the_keys_of_the_format() -> Result<()> {
    for event in events(1)?.0 {
        let phase = event["ph"].as_str().unwrap_or_default();
        assert!(["M", "X", "C"].contains(&phase), "{event}");
        for key in ["name", "ts", "pid", "tid", "args"] {
            assert!(!event[key].is_null(), "{key} of {event}");
        }
        assert_eq!(event["dur"].is_number(), phase == "X");
    }
    Ok(())
}

#[test]
fn threads_have_tracks_with_their_shares_of_instructions() -> Result<()> {
    let net = Builder::new();
    let mean = net.input("x", DType::F32, &[-1]).tanh().mean().name();
    let (program, x) = (net.program()?, Tensor::zeros(DType::F32, &[1 << 20])?);
    let (feeds, fetches) = ([("x", x.meta())], [mean.as_str()]);
    let mut scope = Scope::new();
    for (threads, expected) in [(1, &[][..]), (2, &["thread 0", "thread 1"][..])] {
        let executor = Executor::with_threads(threads);
        let mut session = executor.prepare(&program, &mut scope, &feeds, &fetches)?;
        let mut trace = RunTrace::new(&executor.plan(&program, &scope, &feeds, &fetches)?);
        let mut tracks = vec![];
        // A helper may wake up late, when all work of a step is done.
        for _ in 0..1000 {
            session.feed("x", &x)?;
            session.trace(&mut scope, &mut trace)?;
            tracks = thread_tracks(&trace)?;
            if tracks == expected {
                break;
            }
        }
        assert_eq!(tracks, expected);
    }
    Ok(())
}

/// The names of the tracks of threads, whose slices are checked.
fn thread_tracks(trace: &RunTrace) -> Result<Vec<String>> {
    let document: Value = serde_json::from_str(&trace.to_json()?).unwrap_or_default();
    let events = document["traceEvents"].as_array().cloned().unwrap_or_default();
    let of = |cat: &str| events.iter().filter(|event| event["cat"] == cat).collect::<Vec<_>>();
    let (instructions, shares) = (of("instruction"), of("thread"));
    for share in &shares {
        let (start, end) = span(share);
        let is_around = |event: &&&Value| span(event).0 <= start && end <= span(event).1;
        let around = instructions.iter().find(is_around).expect("an instruction is around each share");
        assert!(share["name"] == around["name"] && share["tid"] != around["tid"], "{share} {around}");
        assert!(share["args"]["parts"].as_u64() >= Some(1), "{share}");
    }
    let named = events.iter().filter(|event| event["name"] == "thread_name");
    let tracks = named.filter(|event| shares.iter().any(|share| share["tid"] == event["tid"]));
    Ok(tracks.filter_map(|event| event["args"]["name"].as_str()).map(str::to_string).collect())
}

#[test]
fn trace_of_another_plan_is_refused() -> Result<()> {
    let (net, loss) = training()?;
    let (program, mut scope) = (net.program()?, Scope::new());
    let mut executor = Executor::with_threads(1);
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::zeros(DType::F32, &[4, 3])?;
    let mut session = executor.prepare(&program, &mut scope, &[("x", x.meta())], &[&loss])?;
    let startup = net.startup().program()?;
    let mut trace = RunTrace::new(&executor.plan(&startup, &Scope::new(), &[], &[])?);
    session.feed("x", &x)?;
    let e = session.trace(&mut scope, &mut trace).unwrap_err();
    assert!(e.message().starts_with("the trace has the plan of"), "{e}");
    assert_eq!(trace.steps(), 0);
    Ok(())
}

#[test]
fn program_without_operators_is_traced() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]).name();
    let (executor, mut scope) = (Executor::new(), Scope::new());
    let feeds = [("x", Meta::new(DType::F32, [2]))];
    let program = net.program()?;
    let mut session = executor.prepare(&program, &mut scope, &feeds, &[&x])?;
    let mut trace = RunTrace::new(&executor.plan(&program, &scope, &feeds, &[&x])?);
    session.feed("x", &Tensor::zeros(DType::F32, &[2])?)?;
    session.trace(&mut scope, &mut trace)?;
    assert_eq!(trace.steps(), 1);
    Ok(())
}

/// The data of the records of an event file; panics at a wrong length.
fn records(mut file: &[u8]) -> Vec<&[u8]> {
    let mut found = vec![];
    while let Some((length, rest)) = file.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        found.push(&rest[4..4 + length]);
        file = &rest[8 + length..];
    }
    assert!(file.is_empty());
    found
}

#[test]
fn event_files_have_a_record_for_each_step() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    let loss = w.square().mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let folder = tempfile::tempdir().expect("a folder");
    let program = net.program()?;
    let monitor = Monitor::new(vec![], &program, &[&loss.name()])?;
    let mut monitor = monitor.with_events(folder.path().join("run"))?;
    for step in 1..=3 {
        let fetched = executor.run(&program, &mut scope, &[], &monitor.fetches())?;
        monitor.record_fetched(step, &fetched)?;
    }
    let files: Vec<_> = fs::read_dir(folder.path().join("run")).expect("it is made").flatten().collect();
    assert_eq!(files.len(), 1);
    let file = fs::read(files[0].path()).expect("it is written");
    let records = records(&file);
    assert_eq!(records.len(), 4);
    let contains = |record: &[u8], text: &[u8]| record.windows(text.len()).any(|part| part == text);
    assert!(contains(records[0], b"brain.Event:2"));
    // 3² = 9, and its square root times √2 · 2: a tag, the key of the number, the number.
    let value = [b"values/mean_0\x15".as_slice(), &9.0_f32.to_le_bytes()].concat();
    assert!(contains(records[1], &value) && !contains(records[2], &value));
    assert!(contains(records[3], b"gradient_norms/w\x15"));
    assert!(contains(records[3], b"learning_rates/"));
    // A folder cannot be made within a file.
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").expect("it is written");
    let e = Monitor::new(vec![], &program, &[])?.with_events(&blocked).unwrap_err();
    assert!(e.message().starts_with("cannot write the events `"), "{e}");
    Ok(())
}
