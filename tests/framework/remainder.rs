//! The remainder of division has a gradient; floor division has none.

use autobwd::{Arg, Builder, DType, Expr, New, Result, append_backward, emit, gradients};
use autobwd_ops::{
    Math,
    floor_division::{ElementwiseFloordiv, ElementwiseMod},
};

use crate::support::derivatives::{assert_derivative, parameter, run};

fn modulo(x: &Expr, y: &Expr) -> Expr {
    emit(ElementwiseMod { x: Arg::from(x), y: y.into(), out: New, axis: -1 }).out
}

#[test]
fn remainder_has_gradients_of_both_operands() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (parameter(&net, "x", &[2, 3]), parameter(&net, "y", &[3]));
    let loss = modulo(&x, &y).sum(&[]).name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Default::default())?;
    let at = [("x", &[5.5, -5.5, 0.5, 7.25, 1.0, -3.5][..]), ("y", &[2.0, -2.25, 4.0][..])];
    assert_eq!(run(&program, &at, &["x@GRAD", "y@GRAD"])?, [vec![1.0; 6], vec![-5.0, -1.0, 1.0]]);
    assert_derivative(&program, &at, &loss, "x", "x@GRAD");
    assert_derivative(&program, &at, &loss, "y", "y@GRAD");
    Ok(())
}

#[test]
fn floor_division_has_no_gradient() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (parameter(&net, "x", &[3]), parameter(&net, "y", &[3]));
    let whole = |x: &Expr| x.cast(DType::I64);
    let rest = modulo(&whole(&x), &whole(&y)).cast(DType::F64);
    let quotient = emit(ElementwiseFloordiv { x: (&x).into(), y: (&y).into(), out: New, axis: -1 }).out;
    let loss = (&rest + &quotient).sum(&[]).name();
    let mut program = net.program()?.clone();
    let found = gradients(&mut program, &[&loss], &["x", "y"], &Default::default())?;
    assert_eq!(found.pairs, []);
    let reasons: Vec<String> = found.missing.iter().map(ToString::to_string).collect();
    for reason in &reasons {
        assert!(reason.contains("which holds int64, not floating point numbers"), "{reasons:#?}");
    }
    assert_eq!(reasons.len(), 2);
    Ok(())
}
