//! Expressions carry their errors to the point where a result leaves the model, and no error is lost.

use std::panic::Location;

use autobwd::{
    Arg, Builder, DType, Error, ErrorKind, Executor, Expr, New, Result, Scope, Tensor, emit,
    tape::{GradOptions, apply, grad, missing, trace},
};
use autobwd_ops::{
    Init, Math,
    activation::Square,
    concat,
    nn::{Dropout, Gru, Linear, MultiHeadAttention},
    optim::{Adam, Optimizer, Sgd},
    shape::{Concat, Split},
};

/// Five calls, the second one wrong, and the line of that.
fn chain(x: &Expr, w: &Expr) -> (Expr, u32) {
    let h = x.tanh();
    let (h, line) = (h.matmul(&h), line!());
    let h = h + w;
    let h = (h * 2.0).relu();
    (h.mean(), line)
}

/// An error of `chain`: operator, slots, shapes and line.
#[track_caller]
fn assert_first<T>(outcome: Result<T>, line: u32) {
    let Err(e) = outcome else { panic!("no error, asked for at {}", Location::caller()) };
    assert_eq!(e.kind(), ErrorKind::Shape, "{e}");
    for part in ["operator `matmul_v2` (", &format!("tests/framework/expression_errors.rs:{line}"), "[3, 2]"]
    {
        assert!(e.to_string().contains(part), "{e}\nlacks\n{part}");
    }
}

fn model(net: &Builder) -> (Expr, Expr) {
    let x = net.parameter("x", DType::F32, &[3, 2], |x| Init::Constant(0.5).emit(x, 0));
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(0.5).emit(w, 0));
    (x, w)
}

#[test]
fn every_exit_of_a_program_reports_the_first_wrong_call() {
    let net = Builder::new();
    let (x, w) = model(&net);
    let (loss, line) = chain(&x, &w);
    let later = x.reshape(&[7]);
    assert_first(loss.check(), line);
    assert!(
        later.check().unwrap_err().to_string().contains("operator `reshape2`"),
        "it has an error of its own"
    );
    for _ in 0..2 {
        assert_first(net.check(), line);
        assert_first(net.program(), line);
        assert_first(net.startup().program(), line);
        assert_first(net.edit(|_| Ok(())), line);
        assert_first(Sgd { rate: 0.1 }.minimize(&loss), line);
        assert_first(Sgd { rate: 0.1 }.minimize(&(&x * &w).mean()), line);
        assert_first(net.sub_block(|| Ok(net.program()?.blocks().len())), line);
    }
    // A failed expression has a name, a dtype and dimensions that are otherwise impossible.
    assert_eq!((loss.name().as_str(), loss.dtype()), ("@FAILED@", DType::F32));
    assert!(loss.dims().iter().all(|dim| dim.get().is_none()) && loss.dims()[3].get().is_none());
    assert_eq!((loss.to_string(), format!("{loss:?}")), {
        let text = loss.check().unwrap_err().to_string();
        (text.clone(), text)
    });
    assert!(loss.is(&loss.clone()) && !loss.is(&later) && !loss.is(&x));
    assert!(net.expr(&loss.name()).check().is_err());
}

#[test]
fn every_exit_of_eager_mode_reports_the_first_wrong_call() -> Result<()> {
    let tape = autobwd::tape::eager_with_threads(1);
    let (x, w) = model(&tape);
    let (loss, line) = chain(&x, &w);
    assert_first(loss.check(), line);
    assert_first(loss.item(), line);
    assert_first(loss.tensor(), line);
    assert_first(loss.backward(), line);
    assert_first(autobwd::tape::backward_with(&loss, None, &mut |_| {}), line);
    assert_first(loss.gradient(), line);
    assert_first(loss.retain_grad(), line);
    assert_first(loss.hook(|d| d * 2.0), line);
    assert_first(loss.set(Tensor::scalar(1.0_f32)?), line);
    assert_first(autobwd::tape::history(&loss), line);
    assert_first(loss.clone().into_value(), line);
    assert_first(loss.clone().named("loss").detach().copy().item(), line);
    assert_first(loss.clone().freeze().item(), line);
    assert_first(grad(&[&loss], &[&x], &GradOptions::default()), line);
    assert_first(missing(&[&loss], &x), line);
    assert_first(trace(&tape, &[("loss", &loss)], || Ok(vec![])), line);
    assert_first(trace(&tape, &[], || Ok(vec![loss.clone()])), line);
    assert_first(Sgd { rate: 0.1 }.minimize(&loss), line);
    assert_first(Adam::new(0.1).minimize(&loss), line);
    assert!(loss.to_string().contains(&format!("expression_errors.rs:{line}")));
    assert!(!loss.requires_grad() && !loss.is_leaf());
    // The engine is not affected.
    tape.check()?;
    assert_eq!(tape.program()?.parameters().count(), 2);
    let loss = (&x * &w).mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    assert_eq!(loss.item()?, 0.25);
    // The result of a hook is checked, too.
    let y = x.square();
    y.hook(|d| d.reshape(&[7]))?;
    assert!(y.mean().backward().unwrap_err().to_string().contains("operator `reshape2`"));
    Ok(())
}

#[test]
fn unused_failed_expression_withholds_the_program() {
    let net = Builder::new();
    let (x, _) = model(&net);
    let line = line!() + 1;
    x.matmul(&x);
    x.exp();
    assert_first(net.program(), line);

    // Also for a program that is discarded.
    let net = Builder::new();
    let (x, _) = model(&net);
    let transaction = net.transaction();
    let line = line!() + 1;
    x.matmul(&x);
    drop(transaction);
    assert_first(net.program(), line);
    // Setting another program does not clear the failure.
    net.set_program(autobwd::Program::new());
    assert_first(net.program(), line);
}

#[test]
fn failures_propagate_between_builders() -> Result<()> {
    let (one, two) = (Builder::new(), Builder::new());
    let ((x, w), (y, _)) = (model(&one), model(&two));
    let (failed, line) = chain(&x, &w);
    two.program()?;
    assert_first((&y + &failed).check(), line);
    assert_first(two.program(), line);

    // An operator on two programs belongs to neither.
    let (one, two) = (Builder::new(), Builder::new());
    let sum = model(&one).0 + model(&two).0;
    for e in [sum.check().map(drop), one.check(), two.check()] {
        assert!(e.unwrap_err().to_string().contains("expressions of two programs"));
    }
    // Failed values do not poison the tape, but operators on them fail.
    let (net, tape) = (Builder::new(), autobwd::tape::eager_with_threads(1));
    let value = tape.constant(Tensor::scalar(1.0_f32)?);
    assert!((&value + net.input("x", DType::F32, &[1])).check().is_err());
    assert!(net.program().is_err() && (&value + &value).item()? == 2.0);
    Ok(())
}

#[test]
fn all_outputs_of_an_operator_fail() {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 4]);
    let out = vec![New, New, New];
    let op = emit(Split {
        x: (&x).into(),
        out,
        axis: 1,
        num: 0,
        sections: vec![1, 1, 1],
        axis_tensor: None,
        sections_tensor_list: vec![],
    });
    assert!(op.x.is(&x) && op.out.len() == 3);
    let e = op.out[0].check().unwrap_err().to_string();
    assert!(e.contains("operator `split` (") && e.contains("X = `x`"), "{e}");
    assert!(op.out.iter().all(|out| out.check().unwrap_err().to_string() == e));
    let op =
        emit(Concat { x: op.out.iter().map(Into::into).collect(), out: New, axis: 0, axis_tensor: None });
    assert_eq!(op.out.check().unwrap_err().to_string(), e);

    // The overwritten variable fails as a result, but keeps its value.
    let tape = autobwd::tape::eager_with_threads(1);
    let zeros = |length| tape.constant(Tensor::zeros(DType::F32, &[length]).unwrap());
    let kept = zeros(2);
    let op = emit(Square { x: Arg::from(&zeros(3)), out: (&kept).into() });
    let e = op.out.check().unwrap_err().to_string();
    assert!(e.contains("operator `square` (run at ") && e.contains("expression_errors.rs:"), "{e}");
    assert_eq!(kept.tensor().unwrap().to_f64s(), [0.0, 0.0]);

    // Without inputs, no program can report the failure.
    for failed in [emit(Square { x: New, out: New }).out, concat(&[], 0), apply(Nothing, &[])] {
        let e = failed.check().unwrap_err().to_string();
        assert!(failed.builder().program().is_err(), "{e}");
        let net = Builder::new();
        assert_eq!((failed + net.input("x", DType::F32, &[1])).check().unwrap_err().to_string(), e);
        assert_eq!(net.program().unwrap_err().to_string(), e);
    }
}

/// A function that is never called.
struct Nothing;
impl autobwd::tape::Function for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }
    fn forward(&self, _: &[Tensor]) -> Result<Tensor> {
        Tensor::scalar(0.0)
    }
    fn backward(&self, _: &[Tensor], _: &Tensor, _: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![])
    }
}

#[test]
fn layers_propagate_the_error_of_their_input() {
    for net in [Builder::new(), autobwd::tape::eager_with_threads(1)] {
        let (x, w) = model(&net);
        let (failed, line) = chain(&x, &w);
        assert_first(Linear::builder(&net, 2, 3).build().forward(&failed).check(), line);
        assert_first(Dropout::new(&net, 0.5, 7).forward(&failed).check(), line);
        assert_first(MultiHeadAttention::builder(&net, 4, 2).build().forward(&failed).check(), line);
        let (out, last) = Gru::builder(&net, 2, 3).build().forward(&failed);
        assert_first(out.check(), line);
        assert_first(last[0].check(), line);
        assert_first(failed.cross_entropy(&w).check(), line);
        assert_first(failed.split(&[1, 1], 0)[1].check(), line);
        assert_first(failed.top_k(1).1.check(), line);
        assert_first((1.0 / &failed).check(), line);
        assert_first((-(&failed / 3.0) - 1.0).check(), line);
        assert_first(failed.stop_gradient().check(), line);
    }
    // A layer whose parameters have failed.
    let net = Builder::new();
    net.input("linear_0.w", DType::F32, &[1]);
    let layer = Linear::builder(&net, 2, 3).build();
    let out = layer.forward(&net.input("x", DType::F32, &[1, 2]));
    for expr in [&layer.weight, &out] {
        let e = expr.check().unwrap_err().to_string();
        assert!(e.starts_with("the program has a variable `linear_0.w` already; give its layer another name, or build it in a name scope\n  at "), "{e}");
        assert!(e.contains("expression_errors.rs:"), "{e}");
    }
}

#[test]
fn mistakes_of_a_user_s_own_layer_are_failures_like_others() -> Result<()> {
    let net = Builder::new();
    let mine = || Error::new(ErrorKind::Shape, "mine");
    let (failed, line) = (net.failed(mine()), line!());
    let text = format!("mine\n  at tests/framework/expression_errors.rs:{line}");
    assert_eq!(failed.tanh().check().unwrap_err().to_string(), text);
    assert_eq!(net.program().unwrap_err().to_string(), text);
    let tape = autobwd::tape::eager_with_threads(1);
    assert_eq!(tape.failed(mine()).exp().item().unwrap_err().message(), "mine");
    tape.check()?;

    // Errors of a body name the block, in programs, too.
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[3, 2]);
    let e = net.sub_block(|| Ok(x.matmul(&x))).unwrap_err().to_string();
    assert!(e.contains("\n  within block 1 in block 0, at tests/framework/expression_errors.rs:"), "{e}");
    assert_eq!(net.program().unwrap_err().to_string(), e);
    Ok(())
}

#[test]
fn program_without_failures_is_yielded_as_before() -> Result<()> {
    let net = Builder::new();
    let (x, w) = model(&net);
    let loss = (&x * &w).mean();
    loss.check()?.check()?;
    net.check()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    assert_eq!(executor.run(&net.program()?, &mut scope, &[], &[&loss.name()])?[0].item()?, 0.25);
    Ok(())
}
