//! Running out of memory is an error, not the end of the process.

#[cfg(target_os = "linux")]
use std::process::Command;

use autobwd::{Builder, DType, ErrorKind, Executor, Feed, Result, Scope, Tensor};
use autobwd_ops::{
    Init, Math,
    control::while_loop,
    optim::{Optimizer, Sgd},
};

#[cfg(target_os = "linux")]
use crate::child;

/// The child process that has little memory; a step of its loop saves `width` elements.
pub(crate) fn loop_until_memory_runs_out(width: usize) -> Result<()> {
    let net = Builder::new();
    let x = net.parameter("x", DType::F32, &[width], |p| Init::Constant(0.5).emit(p, 0));
    let (k, end) = (net.input("k", DType::F64, &[]), net.input("end", DType::F64, &[]));
    let condition = |v: &[autobwd::Expr]| v[0].less_than(&end);
    let last = while_loop(&[k, x.copy()], condition, |v| vec![&v[0] + 1.0, v[1].tanh() * &x]);
    let loss = last[1].mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut run = |steps: f64| {
        let feeds: [(&str, &dyn Feed); 2] = [("k", &Tensor::scalar(0.0)?), ("end", &Tensor::scalar(steps)?)];
        executor.run(&net.program()?, &mut scope, &feeds, &[&loss.name()]).map(drop)
    };
    run(10.0)?;
    let e = run(1e12).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    println!("told: {e}");
    run(1000.0)
}

#[cfg(target_os = "linux")]
pub(crate) fn loop_that_exhausts_memory_is_an_error() -> Result<()> {
    // The failing allocation depends on the size of the saved step state: once the list of steps, once a step.
    for (width, kilobytes) in [(1, 300_000), (1, 500_000), (40, 400_000), (5000, 400_000)] {
        let mut limited = Command::new("sh");
        let script = format!("ulimit -v {kilobytes} && exec \"$0\" \"$@\"");
        let child = child("loop");
        limited.args(["-c", &script]).arg(child.get_program()).args(child.get_args());
        let output = limited.arg(width.to_string()).output().unwrap();
        let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(output.status.success(), "{width} elements: {text}{errors}");
        assert!(text.contains("out of memory: a step saves "), "{width} elements: {text}");
        assert!(text.contains("told: operator `while` (block 0, operator "), "{width} elements: {text}");
    }
    Ok(())
}
