//! Runs that check for NaN and infinities.

use autobwd::{
    Arg, Backward, Builder, DType, Error, ErrorKind, Executor, Expr, Program, Result, Scope, Tensor,
    append_backward, emit,
};
use autobwd_ops::{
    Math,
    activation::Log,
    nn::Embedding,
    optim::{Optimizer, Sgd},
};

use crate::support::derivatives::parameter;

fn tensor(elements: &[f64]) -> Tensor {
    Tensor::from_vec([elements.len()], elements.to_vec()).unwrap()
}

/// The error of a checking run of a program of `w`; without the check, it succeeds.
#[track_caller]
fn refused(program: &Program, w: &[f64], fetch: &str) -> Error {
    let mut scope = Scope::new();
    scope.set("w", tensor(w));
    Executor::with_threads(1).run(program, &mut scope.clone(), &[], &[fetch]).unwrap();
    let outcome = Executor::with_threads(1).check_finite(true).run(program, &mut scope, &[], &[fetch]);
    let e = outcome.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    e
}

#[track_caller]
fn assert_message(e: &Error, op: &str, message: &str) {
    assert!(e.op().is_some_and(|own| own.to_string().starts_with(op)), "{e}\nis not about\n{op}");
    assert_eq!(e.message(), message);
}

#[test]
fn first_operator_that_leaves_the_numbers_is_named() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[4]);
    // Fused, the intermediate value has no memory of its own.
    let (h, line) = ((&w * 2.0).exp(), line!());
    let out = (h.log() + &h).tanh();
    let e = refused(&*net.program()?, &[1.0, 500.0, 0.0, f64::NAN], &out.name());
    // Fed and kept variables may have any value.
    assert_message(
        &e,
        &format!(
            "operator `scale` (block 0, operator 0, added at {}:{line}; X = `w`, Out = `scale_0`)",
            file!()
        ),
        "`scale_0` is not finite\n  reads X = `w`: float64 [4], from 0.0 to 500.0, 1 NaN\n  writes Out = `scale_0`: \
         float64 [4], from 0.0 to 1000.0, 1 NaN",
    );
    let e = refused(&*net.program()?, &[1.0, 500.0, 0.0, -400.0], &out.name());
    assert_message(
        &e,
        "operator `exp` (block 0, operator 1",
        "`exp_0` is not finite\n  reads X = `scale_0`: float64 [4], from -800.0 to 1000.0\n  writes Out = `exp_0`: \
         float64 [4], from 0.0 to 7.38905609893065, 1 infinite",
    );
    Ok(())
}

#[test]
fn gradient_operators_are_named_with_their_forward_operator() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[2]);
    let (h, line) = (w.sqrt(), line!());
    let loss = h.sum(&[]);
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    let e = refused(&program, &[4.0, 0.0], "w@GRAD");
    assert_message(
        &e,
        "operator `sqrt_grad` (block 0, operator 4, ",
        &format!(
            "`w@GRAD` is not finite; it belongs to the gradient of operator `sqrt` (block 0, operator 0, added at \
             {}:{line}; X = `w`, Out = `sqrt_0`)\n  reads Out = `sqrt_0`: float64 [2], from 0.0 to 2.0\n  reads Out@GRAD \
             = `sqrt_0@GRAD`: float64 [2], from 1.0 to 1.0\n  writes X@GRAD = `w@GRAD`: float64 [2], from 0.25 to 0.25, \
             1 infinite",
            file!()
        ),
    );
    Ok(())
}

#[test]
fn overwritten_inputs_are_shown_with_their_old_values() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[2]);
    let h = &w * 1.0;
    emit(Log { x: Arg::from(&h), out: Arg::from(&h) }).out.check()?;
    let e = refused(&*net.program()?, &[1.0, -1.0], &h.name());
    assert_message(
        &e,
        "operator `log` (block 0, operator 1",
        "`scale_0` is not finite\n  reads X = `scale_0`: float64 [2], from -1.0 to 1.0\n  writes Out = `scale_0`: float64 \
         [2], from 0.0 to 0.0, 1 NaN",
    );
    Ok(())
}

#[test]
fn scope_keeps_what_it_had_before() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[2]);
    let loss = (&w * &w).sum(&[]);
    Sgd { rate: 1.0 }.minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(2).check_finite(true), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    scope.set("w", tensor(&[3.0, 1e150]));
    scope.set("learning_rate_0", tensor(&[1e200]));
    let run = |executor: &mut Executor, scope: &mut Scope| {
        executor.run(&net.program()?, scope, &[], &["w@GRAD"]).map(|fetched| fetched[0].to_f64s())
    };
    let e = run(&mut executor, &mut scope).unwrap_err();
    assert!(e.op().is_some_and(|op| op.to_string().starts_with("operator `sgd`")), "{e}");
    assert!(e.message().starts_with("`w` is not finite\n"), "{e}");
    assert_eq!(scope.get("w")?.to_f64s(), [3.0, 1e150]);
    // The session continues with better values.
    scope.slice_mut::<f64>("learning_rate_0")?[0] = 0.25;
    assert_eq!(run(&mut executor, &mut scope)?, [6.0, 2e150]);
    assert_eq!(scope.get("w")?.to_f64s(), [1.5, 5e149]);
    Ok(())
}

#[test]
fn sparse_gradients_are_looked_at() -> Result<()> {
    let net = Builder::new();
    let table = Embedding::builder(&net, 5, 2).dtype(DType::F64).seed(5).sparse().build();
    let loss = (table.forward(&net.input("words", DType::I64, &[-1])) * 4.0).sum(&[]);
    Sgd { rate: 1.0 }.minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::new().check_finite(true), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    scope.set("learning_rate_0", tensor(&[f64::INFINITY]));
    let words = Tensor::from_vec([2], vec![3_i64, 1])?;
    let e = executor.run(&net.program()?, &mut scope, &[("words", &words)], &[]).unwrap_err();
    assert!(e.op().is_some_and(|op| op.to_string().starts_with("operator `sgd`")), "{e}");
    assert!(
        e.message()
            .contains("\n  reads Grad = `embedding_0.w@GRAD`: rows of float64 [5, 2], from 4.0 to 4.0\n"),
        "{e}"
    );
    Ok(())
}

#[test]
fn finite_results_of_anything_pass() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1]);
    let index = x.argmax(0);
    let bounded = x.sigmoid();
    let mut executor = Executor::new().check_finite(true);
    let mut run = |x: &[f64], fetch: &Expr| {
        executor.run(&net.program()?, &mut Scope::new(), &[("x", &tensor(x))], &[&fetch.name()])
    };
    // Infinite inputs with finite outputs; integers; empty tensors.
    assert_eq!(run(&[f64::NEG_INFINITY, f64::INFINITY], &bounded)?[0].to_f64s(), [0.0, 1.0]);
    assert_eq!(run(&[1.0, f64::INFINITY], &index)?[0].to_f64s(), [1.0]);
    assert_eq!(run(&[], &bounded)?[0].to_f64s(), [0.0; 0]);
    assert!(run(&[f64::NAN], &bounded).is_err());
    Ok(())
}
