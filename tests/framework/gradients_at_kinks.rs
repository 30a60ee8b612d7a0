//! Gradients at kinks of formulas: the reference's choices.

use autobwd::{Arg, Builder, Expr, New, Result, emit};
use autobwd_ops::{
    Math,
    activation::{Elu, HardSigmoid, HardSwish, LeakyRelu, Prelu, PreluMode, Relu6, Softplus, Softsign},
    loss::CrossEntropy,
    norm::DataLayout,
};

use crate::support::derivatives::{derivative_at, gradients_at, parameter};

#[test]
fn gradient_at_a_kink_is_of_one_side() -> Result<()> {
    let leaky = |x: &Expr| emit(LeakyRelu { x: x.into(), out: New, alpha: 0.25 }).out;
    assert_eq!(derivative_at(&[-1.0, 0.0, 1.0], leaky)?, [0.25, 0.25, 1.0]);
    let elu = |x: &Expr| emit(Elu { x: x.into(), out: New, alpha: 0.25 }).out;
    assert_eq!(derivative_at(&[0.0, 1.0], elu)?, [0.25, 1.0]);
    let relu6 = |x: &Expr| emit(Relu6 { x: x.into(), out: New, threshold: 6.0 }).out;
    assert_eq!(derivative_at(&[0.0, 3.0, 6.0, 7.0], relu6)?, [0.0, 1.0, 0.0, 0.0]);
    let sigmoid = |x: &Expr| emit(HardSigmoid { x: x.into(), out: New, slope: 0.25, offset: 0.5 }).out;
    assert_eq!(derivative_at(&[-2.0, 0.0, 2.0], sigmoid)?, [0.0, 0.25, 0.0]);
    let swish =
        |x: &Expr| emit(HardSwish { x: x.into(), out: New, threshold: 6.0, scale: 6.0, offset: 3.0 }).out;
    assert_eq!(derivative_at(&[-4.0, -3.0, 0.0, 3.0, 4.0], swish)?, [0.0, 0.0, 0.5, 1.0, 1.0]);
    let softplus = |x: &Expr| emit(Softplus { x: x.into(), out: New, beta: 1.0, threshold: 1.0 }).out;
    let slopes = derivative_at(&[0.0, 1.0, 1.5], softplus)?;
    assert_eq!(slopes, [0.5, 1.0 / (1.0 + (-1.0_f64).exp()), 1.0]);
    let softsign = |x: &Expr| emit(Softsign { x: x.into(), out: New }).out;
    assert_eq!(derivative_at(&[0.0, -1.0], softsign)?, [1.0, 0.25]);
    Ok(())
}

#[test]
fn zero_probability_without_weight_has_zero_gradient() -> Result<()> {
    let net = Builder::new();
    let (x, label) = (parameter(&net, "x", &[1, 3]), parameter(&net, "label", &[1, 3]));
    let (label, y, soft_label, ignore_index) = (Arg::from(label), New, true, -100);
    let loss = emit(CrossEntropy { x: (&x).into(), label, y, soft_label, ignore_index }).y;
    let found = gradients_at(&net, &loss, &[("x", &[0.5, 0.0, 0.25]), ("label", &[0.5, 0.0, 1.0])])?;
    assert_eq!(found[0], [-1.0, 0.0, -4.0]);
    Ok(())
}

#[test]
fn gelu_gradient_is_linear_far_from_zero() -> Result<()> {
    let far = [f64::NEG_INFINITY, -1e200, 1e200, f64::INFINITY];
    for approximate in [false, true] {
        assert_eq!(derivative_at(&far, |x| x.gelu(approximate))?, [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(derivative_at(&far, |x| x.gelu(approximate).gelu(approximate))?, [0.0, 0.0, 1.0, 1.0]);
        assert!(derivative_at(&[f64::NAN], |x| x.gelu(approximate))?[0].is_nan());
    }
    Ok(())
}

#[test]
fn prelu_slope_has_a_gradient_at_zero() -> Result<()> {
    let net = Builder::new();
    let (x, alpha) = (parameter(&net, "x", &[4]), parameter(&net, "alpha", &[1]));
    let (mode, data_format) = (PreluMode::All, DataLayout::Nchw);
    let y = emit(Prelu { x: (&x).into(), alpha: (&alpha).into(), out: New, mode, data_format }).out;
    let found = gradients_at(&net, &y, &[("x", &[-2.0, 0.0, -0.0, 3.0]), ("alpha", &[0.25])])?;
    assert_eq!(found, [vec![0.25, 0.25, 0.25, 1.0], vec![-2.0]]);
    Ok(())
}
