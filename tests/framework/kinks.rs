//! Gradients where formulas have kinks: the reference's choices.

use autobwd::{Builder, DType, Executor, Expr, New, Result, Scope, Tensor, emit, gradients};
use autobwd_ops::{
    prelu::{Prelu, PreluMode},
    rectifier::{Elu, HardSigmoid, HardSwish, LeakyRelu, Relu6},
    smooth::{Softplus, Softsign},
};

/// The derivative of `f` at each of these points.
fn at(points: &[f64], f: impl Fn(&Expr) -> Result<Expr>) -> Result<Vec<f64>> {
    let net = Builder::new();
    let x = net.parameter("x", DType::F64, &[points.len()], |_| Ok(()))?;
    let y = f(&x)?;
    let mut program = net.program().clone();
    let grad = gradients(&mut program, &[&y.name()], &["x"], None, &[])?[0].unwrap();
    let grad = program.name(grad).to_string();
    let mut scope = Scope::new();
    scope.set("x", Tensor::from_vec([points.len()], points.to_vec())?);
    let fetched = Executor::new().run(&program, &mut scope, &[], &[&grad])?;
    Ok(fetched[0].to_f64s())
}

#[test]
fn kinks_have_the_slope_of_one_side() -> Result<()> {
    let leaky = |x: &Expr| Ok(emit(LeakyRelu { x: x.into(), out: New, alpha: 0.25 })?.out);
    assert_eq!(at(&[-1.0, 0.0, 1.0], leaky)?, [0.25, 0.25, 1.0]);
    let elu = |x: &Expr| Ok(emit(Elu { x: x.into(), out: New, alpha: 0.25 })?.out);
    assert_eq!(at(&[0.0, 1.0], elu)?, [0.25, 1.0]);
    let relu6 = |x: &Expr| Ok(emit(Relu6 { x: x.into(), out: New })?.out);
    assert_eq!(at(&[0.0, 3.0, 6.0, 7.0], relu6)?, [0.0, 1.0, 0.0, 0.0]);
    let sigmoid = |x: &Expr| Ok(emit(HardSigmoid { x: x.into(), out: New, slope: 0.25, offset: 0.5 })?.out);
    assert_eq!(at(&[-2.0, 0.0, 2.0], sigmoid)?, [0.0, 0.25, 0.0]);
    let swish = |x: &Expr| {
        Ok(emit(HardSwish { x: x.into(), out: New, threshold: 6.0, scale: 6.0, offset: 3.0 })?.out)
    };
    assert_eq!(at(&[-4.0, -3.0, 0.0, 3.0, 4.0], swish)?, [0.0, 0.0, 0.5, 1.0, 1.0]);
    let softplus = |x: &Expr| Ok(emit(Softplus { x: x.into(), out: New, beta: 1.0, threshold: 1.0 })?.out);
    let slopes = at(&[0.0, 1.0, 1.5], softplus)?;
    assert_eq!(slopes, [0.5, 1.0 / (1.0 + (-1.0_f64).exp()), 1.0]);
    let softsign = |x: &Expr| Ok(emit(Softsign { x: x.into(), out: New })?.out);
    assert_eq!(at(&[0.0, -1.0], softsign)?, [1.0, 0.25]);
    Ok(())
}

#[test]
fn a_learned_slope_counts_where_nothing_is_above_0() -> Result<()> {
    let net = Builder::new();
    let x = net.parameter("x", DType::F64, &[4], |_| Ok(()))?;
    let alpha = net.parameter("alpha", DType::F64, &[1], |_| Ok(()))?;
    let op = Prelu {
        x: (&x).into(),
        alpha: (&alpha).into(),
        out: New,
        mode: PreluMode::All,
        data_format: autobwd_ops::norm::DataLayout::Nchw,
    };
    let out = emit(op)?.out;
    let mut program = net.program().clone();
    let grads = gradients(&mut program, &[&out.name()], &["x", "alpha"], None, &[])?;
    let names: Vec<String> = grads.iter().flatten().map(|v| program.name(*v).to_string()).collect();
    let mut scope = Scope::new();
    scope.set("x", Tensor::from_vec([4], vec![-2.0, 0.0, -0.0, 3.0])?);
    scope.set("alpha", Tensor::from_vec([1], vec![0.25])?);
    let fetched = Executor::new().run(&program, &mut scope, &[], &[&names[0], &names[1]])?;
    assert_eq!(fetched[0].to_f64s(), [0.25, 0.25, 0.25, 1.0]);
    assert_eq!(fetched[1].to_f64s(), [-2.0]);
    Ok(())
}
