//! Logs of runs that are resumed, and of eager mode.

use std::{fs, path::Path};

use autobwd::{
    Builder, DType, ErrorKind, Executor, Result, Scope,
    exec::{ARITHMETIC_VERSION, Monitor},
    program::ProgramSnapshot,
};
use autobwd_ops::{
    Init, Math,
    optim::{Optimizer, Sgd},
};
use serde_json::Value;

/// A model of one parameter, its program and its loss.
fn model() -> Result<(Builder, ProgramSnapshot, String)> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    let loss = w.square().mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let program = net.program()?;
    Ok((net, program, loss.name()))
}

/// Records these steps.
fn record(
    log: &mut Monitor<fs::File>,
    net: &Builder,
    program: &ProgramSnapshot,
    steps: &[u64],
) -> Result<()> {
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for step in steps {
        log.record_fetched(*step, &executor.run(program, &mut scope, &[], &log.fetches())?)?;
    }
    Ok(())
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn resumed_run_goes_on_with_its_log() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let (net, program, loss) = model()?;
    // Without a file, the log is new.
    let mut log = Monitor::resume(&path, &program, &[&loss], 0)?;
    assert_eq!(log.last_step(), None);
    record(&mut log, &net, &program, &[1, 2, 4, 5])?;
    let before = fs::read_to_string(&path).unwrap();
    // The run was killed within the record of step 6, and its last checkpoint is of step 4.
    fs::write(&path, before.clone() + "{\"step\":6,\"ti").unwrap();
    let mut log = Monitor::resume(&path, &program, &[&loss], 4)?;
    assert_eq!(log.last_step(), Some(4));
    assert_eq!(log.record_fetched(4, &[]).unwrap_err().kind(), ErrorKind::Fetch);
    record(&mut log, &net, &program, &[5, 6])?;
    let after = lines(&path);
    let steps: Vec<u64> = after[1..].iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 4, 5, 6]);
    assert!(fs::read_to_string(&path).unwrap().starts_with(&before[..before.find("{\"step\":5").unwrap()]));
    let times: Vec<f64> = after[1..].iter().map(|line| line["time_s"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    // All whole lines are kept.
    assert_eq!(Monitor::resume(&path, &program, &[&loss], u64::MAX)?.last_step(), Some(6));
    assert_eq!(lines(&path).len(), 6);
    Ok(())
}

#[test]
fn log_of_another_arithmetic_goes_on_with_a_warning() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let (net, program, loss) = model()?;
    record(&mut Monitor::create(&path, &program, &[&loss])?, &net, &program, &[1, 2])?;
    let written = fs::read_to_string(&path).unwrap();
    assert_eq!(Monitor::resume(&path, &program, &[&loss], 2)?.warning(), None);
    for (entry, said) in [(",\"arithmetic\":0", "version 0"), ("", "before arithmetic had versions")] {
        let other = written.replace(&format!(",\"arithmetic\":{ARITHMETIC_VERSION}"), entry);
        fs::write(&path, &other).unwrap();
        let mut log = Monitor::resume(&path, &program, &[&loss], 1)?;
        assert!(log.warning().unwrap().contains(said), "{:?}", log.warning());
        record(&mut log, &net, &program, &[2])?;
        let resumed = fs::read_to_string(&path).unwrap();
        assert_eq!(resumed.lines().count(), 3);
        assert_eq!(resumed.lines().next(), other.lines().next());
    }
    Ok(())
}

#[test]
fn log_of_other_variables_is_not_changed() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let (net, program, loss) = model()?;
    record(&mut Monitor::create(&path, &program, &[&loss])?, &net, &program, &[1, 2])?;
    let before = fs::read(&path).unwrap();
    let refused = |values: &[&str]| Monitor::resume(&path, &program, values, 1).unwrap_err();
    let e = refused(&[]);
    assert_eq!(e.kind(), ErrorKind::Format);
    assert!(e.to_string().contains("run.jsonl`: not a log of the same variables"), "{e}");
    assert_eq!(fs::read(&path).unwrap(), before);
    let damaged = String::from_utf8(before).unwrap().replace("\"step\":1", "\"stop\":1");
    fs::write(&path, &damaged).unwrap();
    let e = refused(&[&loss]);
    assert!(e.to_string().contains("line 2 is not the record of a step: missing field `step`"), "{e}");
    assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    let e = Monitor::resume("no such folder/run.jsonl", &program, &[&loss], 0).unwrap_err();
    assert!(e.to_string().starts_with("cannot go on with the log `no such folder/run.jsonl`: "), "{e}");
    let e = Monitor::resume("/dev/null", &program, &[&loss], 0).unwrap_err();
    assert!(e.to_string().ends_with("it is not a file"), "{e}");
    Ok(())
}

#[test]
fn eager_steps_have_the_log_of_a_program() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let (net, program, loss) = model()?;
    record(&mut Monitor::create(&path, &program, &[&loss])?, &net, &program, &[1, 2, 3])?;
    let expected = lines(&path);

    let net = autobwd::eager();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    let unused = net.parameter("unused", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    let mut log = vec![];
    let mut monitor = Monitor::eager(&mut log);
    for step in 1..=3 {
        let loss = w.square().mean();
        let gradients = Sgd { rate: 0.1 }.minimize(&loss)?.trained;
        monitor.record_eager(
            step,
            &[("mean_0", &loss)],
            &[("learning_rate_0", 0.1_f32.into())],
            &gradients,
        )?;
    }
    let loss = w.square().mean();
    let e = monitor.record_eager(4, &[("loss", &loss)], &[], &[]).unwrap_err();
    assert_eq!(e.to_string(), "step 4 has other values, learning rates or parameters than the first one");
    let e = monitor.record_eager(3, &[("mean_0", &loss)], &[("learning_rate_0", 0.1)], &[]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    drop(unused);

    let text = String::from_utf8(log).unwrap();
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    assert_eq!(found[0]["parameters"][0], expected[0]["parameters"][0]);
    assert!(found[0]["parameters"][1]["name"] == "unused" && found[0]["parameters"][1]["gradient"].is_null());
    for (found, expected) in found[1..].iter().zip(&expected[1..]) {
        for key in ["step", "values", "learning_rates", "gradient_norms"] {
            assert_eq!(found[key], expected[key], "{key}");
        }
    }
    Ok(())
}

#[test]
fn run_killed_in_its_first_line_restarts_its_log() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let (net, program, loss) = model()?;
    drop(Monitor::create(&path, &program, &[&loss])?);
    let header = fs::read(&path).unwrap();
    for len in [1, header.len() / 2, header.len() - 1] {
        fs::write(&path, &header[..len]).unwrap();
        let mut log = Monitor::resume(&path, &program, &[&loss], 4)?;
        record(&mut log, &net, &program, &[1])?;
        assert!(fs::read(&path).unwrap().starts_with(&header), "{len}");
        assert_eq!(lines(&path).len(), 2);
    }
    Ok(())
}

#[test]
fn overlong_line_is_not_an_unfinished_line() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let (_, program, loss) = model()?;
    drop(Monitor::create(&path, &program, &[&loss])?);
    let mut text = fs::read(&path).unwrap();
    text.resize(text.len() + (1 << 26), b' ');
    text.extend(b"{\"step\":1,\"time_s\":0}\n");
    fs::write(&path, &text).unwrap();
    let e = Monitor::resume(&path, &program, &[&loss], 4).unwrap_err();
    assert!(
        e.message().ends_with("line 2 has more than 67108864 bytes, and is not the record of a step"),
        "{e}"
    );
    assert_eq!(fs::metadata(&path).unwrap().len(), text.len() as u64);
    Ok(())
}

#[test]
fn eager_step_that_fails_leaves_no_header() -> Result<()> {
    let net = autobwd::eager();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    let (mut log, mean) = (vec![], w.mean());
    let mut monitor = Monitor::eager(&mut log);
    assert_eq!(monitor.record_eager(1, &[("w", &w)], &[], &[]).unwrap_err().kind(), ErrorKind::Shape);
    monitor.record_eager(1, &[("mean", &mean)], &[], &[])?;
    let log = String::from_utf8(log).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains(r#""values":["mean"]"#), "{log}");
    assert!(lines[1].starts_with(r#"{"step":1,"#), "{log}");
    Ok(())
}
