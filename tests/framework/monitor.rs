//! The monitor: what a log has, and what it refuses.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicUsize, Ordering},
};

use autobwd::{Builder, DType, ErrorKind, Executor, Meta, Result, Scope, Tensor, exec::Monitor};
use autobwd_ops::{
    Init, Math,
    nn::Embedding,
    optim::{Optimizer, Sgd},
};

/// A model with a table whose gradient is sparse, and its loss.
fn model() -> Result<(Builder, String)> {
    let net = Builder::new();
    let ids = net.input("ids", DType::I64, &[-1, 1]);
    let table = Embedding::builder(&net, 50, 3).sparse().seed(1).build();
    let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(2.0).emit(w, 0));
    net.parameter("unused", DType::F32, &[2], |w| Init::Constant(0.0).emit(w, 0));
    let loss = (table.forward(&ids) * &w).square().mean();
    assert_eq!(Sgd { rate: 0.5 }.minimize(&loss)?.untrained.len(), 1);
    Ok((net, loss.name()))
}

fn started(net: &Builder) -> Result<(Executor, Scope)> {
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok((executor, scope))
}

/// Lines without their times and memory.
fn lines(log: &[u8]) -> Vec<serde_json::Value> {
    let text = str::from_utf8(log).unwrap();
    assert!(text.ends_with('\n'));
    let line = |line| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().retain(|key, _| key != "time_s" && key != "peak_bytes");
        line
    };
    text.lines().map(line).collect()
}

#[test]
fn learning_rates_are_logged_before_they_are_converted() -> Result<()> {
    let net = Builder::new();
    let [a, b, c] = [("a", DType::F32, &[][..]), ("b", DType::F64, &[]), ("c", DType::F32, &[2])]
        .map(|(name, dtype, dims)| net.parameter(name, dtype, dims, |w| Init::Constant(1.0).emit(w, 0)));
    let loss = a * (b.cast(DType::F32) + c.sum(&[]));
    Sgd { rate: 0.5 }.group("c", Sgd { rate: 0.25 }).minimize(&loss)?.complete()?;
    let mut log = vec![];
    Monitor::new(&mut log, &net.program()?, &[&loss.name()])?;
    let rates = &lines(&log)[0]["learning_rates"];
    // The rate of a group is computed.
    assert_eq!((&rates[0], rates.as_array().unwrap().len()), (&"learning_rate_0".into(), 2), "{rates}");
    Ok(())
}

#[test]
fn sessions_and_runs_have_equal_logs() -> Result<()> {
    let (net, loss) = model()?;
    let ids = Tensor::from_vec([3, 1], vec![4_i64, 7, 4])?;
    let (mut by_session, mut by_run) = (vec![], vec![]);

    let (executor, mut scope) = started(&net)?;
    let mut monitor = Monitor::new(&mut by_session, &net.program()?, &[&loss, &loss])?;
    let feeds = [("ids", ids.meta())];
    let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &monitor.fetches())?;
    for step in [1, 2, 10] {
        session.feed("ids", &ids)?;
        session.run(&mut scope)?;
        monitor.record(step, &session)?;
    }

    let (mut executor, mut scope) = started(&net)?;
    let mut monitor = Monitor::new(&mut by_run, &net.program()?, &[&loss])?;
    let mut fetches = monitor.fetches().into_iter().map(String::from).collect::<Vec<_>>();
    fetches.push("w".into());
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let mut norm = 0.0;
    for step in [1, 2, 10] {
        let fetched = executor.run(&net.program()?, &mut scope, &[("ids", &ids)], &fetches)?;
        monitor.record_fetched(step, &fetched)?;
        let gradient = &fetched[monitor.fetches().iter().position(|name| *name == "w@GRAD").unwrap()];
        norm = gradient.slice::<f32>()?.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    }

    let (by_session, by_run) = (lines(&by_session), lines(&by_run));
    assert_eq!(by_session, by_run);
    let parameters = by_run[0]["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|one| one["name"] == "unused" && one["gradient"].is_null()));
    assert_eq!(by_run[3]["step"], 10);
    assert_eq!(by_run[3]["learning_rates"]["learning_rate_0"], 0.5);
    let recorded = by_run[3]["gradient_norms"]["w"].as_f64().unwrap();
    assert!((recorded - norm).abs() <= norm * 1e-6, "{recorded} instead of {norm}");
    Ok(())
}

#[test]
fn numbers_that_json_has_not_are_strings() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[3]);
    let values: Vec<String> = (0..3).map(|k| x.slice(0, k, k + 1).name()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let x = Tensor::from_vec([3], vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY])?;
    let mut log = vec![];
    let mut monitor = Monitor::new(&mut log, &net.program()?, &values)?;
    let fetched =
        Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &x)], &monitor.fetches())?;
    monitor.record_fetched(0, &fetched)?;
    let lines = lines(&log);
    let texts: Vec<_> = values.iter().map(|name| lines[1]["values"][*name].as_str().unwrap()).collect();
    assert_eq!(texts, ["NaN", "Infinity", "-Infinity"]);
    Ok(())
}

#[test]
fn unrecordable_values_are_errors() -> Result<()> {
    let (net, loss) = model()?;
    let (program, ids) = (net.program()?, Meta::new(DType::I64, [3, 1]));
    let kind_of = |values: &[&str]| Monitor::new(io::sink(), &program, values).unwrap_err().kind();
    assert_eq!(kind_of(&["no such variable"]), ErrorKind::UnknownVar);
    assert_eq!(kind_of(&["w"]), ErrorKind::Shape);
    let missing = Monitor::create("no such folder/run.jsonl", &program, &[&loss]).unwrap_err();
    assert!(
        missing.to_string().starts_with("cannot write the log `no such folder/run.jsonl`: "),
        "{missing}"
    );

    let (executor, mut scope) = started(&net)?;
    let mut monitor = Monitor::new(io::sink(), &program, &[&loss])?;
    let mut session = executor.prepare(&program, &mut scope, &[("ids", ids)], &monitor.fetches())?;
    assert_eq!(monitor.record(1, &session).unwrap_err().kind(), ErrorKind::Fetch);
    session.feed("ids", &Tensor::from_vec([3, 1], vec![0_i64, 1, 2])?)?;
    session.run(&mut scope)?;
    monitor.record(5, &session)?;
    let e = monitor.record(5, &session).unwrap_err();
    assert_eq!(e.to_string(), "step 5 cannot be recorded after step 5: steps ascend");
    let e = monitor.record_fetched(6, &[]).unwrap_err();
    let fetches = monitor.fetches().len();
    let expected =
        format!("0 values are given to a monitor of {fetches}: run the program with `Monitor::fetches`");
    assert_eq!(e.to_string(), expected);
    let wrong = vec![Tensor::zeros(DType::F32, &[2])?; fetches];
    assert_eq!(monitor.record_fetched(6, &wrong).unwrap_err().kind(), ErrorKind::Shape);
    Ok(())
}

/// A log that takes so many writes.
struct Full(AtomicUsize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Ok(bytes.len()),
            _ => Err(io::Error::other("the disk is full")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_ends_with_its_first_failure() -> Result<()> {
    let net = Builder::new();
    let mean = net.input("x", DType::F32, &[3]).mean();
    let mut monitor = Monitor::new(Full(AtomicUsize::new(0)), &net.program()?, &[&mean.name()])?;
    let fetched = [Tensor::scalar(1.0_f32)?];
    monitor.record_fetched(1, &fetched)?;
    let e = monitor.record_fetched(2, &fetched).unwrap_err();
    assert_eq!(
        (e.kind(), e.to_string().as_str()),
        (ErrorKind::Io, "cannot write the log of the run: the disk is full")
    );
    let e = monitor.record_fetched(2, &fetched).unwrap_err();
    assert_eq!(e.to_string(), "the log ended when it could not be written; make another monitor");
    Ok(())
}
