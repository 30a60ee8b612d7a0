//! Detached copies of variables, and frozen parameters: the same in programs and in eager mode.

use autobwd::{Backward, Builder, DType, Executor, Expr, Meta, Result, Scope, Tensor, append_backward};
use autobwd_ops::{Init, Math};

/// `x² · constant(x²)`, and a later use of `x²`.
fn loss(x: &Expr) -> Expr {
    let h = x.square();
    let target = h.clone().stop_gradient();
    let product = &h * &target;
    (product + h).sum(&[])
}

#[test]
fn stopped_gradient_stops_in_one_place_in_both_modes() -> Result<()> {
    let at = || Tensor::from_vec([2], vec![3.0_f64, -2.0]);
    // The derivative of x² · c + x² at c = x².
    let expected = [2.0 * 3.0 * (9.0 + 1.0), -2.0 * 2.0 * (4.0 + 1.0)];
    let tape = autobwd::eager();
    let x = tape.leaf("x", at()?);
    loss(&x).backward()?;
    assert_eq!(x.gradient()?.tensor()?.to_f64s(), expected);

    let net = Builder::new();
    let x = net.parameter("x", DType::F64, &[2], |x| Init::Constant(3.0).emit(x, 0));
    let loss = loss(&x).name();
    let program = &mut net.program()?.clone();
    let found = append_backward(program, &loss, &Backward::default())?.entries();
    let gradient = program.name(found[0].expect("x has a gradient")).to_string();
    let mut scope = Scope::new();
    scope.set("x", at()?);
    let run = Executor::new().run(program, &mut scope, &[], &[&gradient, &loss])?;
    assert_eq!(run[0].to_f64s(), expected);
    assert_eq!(run[1].item()?, 81.0 + 9.0 + 16.0 + 4.0);
    Ok(())
}

#[test]
fn plans_leave_the_copy_out() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[100]);
    let h = x.cumsum(0);
    let y = h.stop_gradient().cumsum(0).name();
    let feeds = [("x", Meta::new(DType::F32, [100]))];
    let plan = Executor::new().plan(&net.program()?, &Scope::new(), &feeds, &[&y])?;
    assert!(plan.instructions().iter().all(|frame| frame.operators == ["cumsum"]), "{plan}");
    Ok(())
}

#[test]
fn frozen_parameters_have_no_gradient_in_any_use() -> Result<()> {
    let net = Builder::new();
    let parameter =
        |net: &Builder, name: &str| net.parameter(name, DType::F32, &[2], |x| Init::Constant(3.0).emit(x, 0));
    let (x, w) = (parameter(&net, "x"), parameter(&net, "w"));
    let early = x.square();
    let x = x.freeze();
    let loss = (&x * &early * &w).sum(&[]).name();
    let program = &mut net.program()?.clone();
    let found = append_backward(program, &loss, &Backward::default())?;
    let names: Vec<_> = found.entries().into_iter().flatten().map(|var| program.name(var)).collect();
    assert_eq!(names, ["w@GRAD"]);

    let tape = autobwd::eager();
    let (x, w) = (parameter(&tape, "x"), parameter(&tape, "w"));
    let x = x.freeze();
    (&x * &w).sum(&[]).backward()?;
    assert_eq!(w.gradient()?.tensor()?.to_f64s(), [3.0; 2]);
    assert!(x.gradient().is_err() && tape.expr("x").gradient().is_err());
    Ok(())
}
