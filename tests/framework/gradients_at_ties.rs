//! Gradients at ties, and at the bounds of clipped ranges: what the documentation of each operator says.

use autobwd::{Builder, Expr, New, Result, emit};
use autobwd_ops::{
    Math,
    activation::{Brelu, HardShrink, Softshrink, ThresholdedRelu},
    extremes::{ElementwiseFmax, ElementwiseFmin},
    loss::HingeLoss,
    min_max_pow::{ElementwiseMax, ElementwiseMin},
    pool::{Pool2dOp, PoolAttrs, PoolingType},
};

use crate::support::derivatives::{derivative_at, gradients_at, parameter};

/// The gradients of the first and the second operand of the sum of `f(x, y)`.
fn both(x: &[f64], y: &[f64], f: impl Fn(&Expr, &Expr) -> Expr) -> Result<Vec<Vec<f64>>> {
    let net = Builder::new();
    let z = f(&parameter(&net, "x", &[x.len()]), &parameter(&net, "y", &[y.len()]));
    gradients_at(&net, &z, &[("x", x), ("y", y)])
}

#[test]
fn reductions_split_or_assign_the_gradient() -> Result<()> {
    let (low, high) = (&[1.0, 2.0, 2.0, 3.0][..], &[3.0, 2.0, 3.0, 3.0][..]);
    assert_eq!(derivative_at(high, |x| x.max_over(&[]))?, [1.0, 0.0, 1.0, 1.0]);
    assert_eq!(derivative_at(&[1.0, 2.0, 1.0], |x| x.min_over(&[]))?, [1.0, 0.0, 1.0]);
    let third = 1.0 / 3.0;
    assert_eq!(derivative_at(high, |x| x.amax(&[]))?, [third, 0.0, third, third]);
    assert_eq!(derivative_at(&[1.0, 2.0, 1.0], |x| x.amin(&[]))?, [0.5, 0.0, 0.5]);
    // Along each of two axes, and without ties.
    let square = |x: &Expr| x.reshape(&[2, 2]);
    assert_eq!(derivative_at(&[5.0, 5.0, 5.0, 1.0], |x| square(x).amax(&[0]))?, [0.5, 1.0, 0.5, 0.0]);
    assert_eq!(derivative_at(&[5.0, 5.0, 5.0, 1.0], |x| square(x).amax(&[1]))?, [0.5, 0.5, 1.0, 0.0]);
    assert_eq!(derivative_at(low, |x| x.amax(&[]))?, [0.0, 0.0, 0.0, 1.0]);
    // Of many rows, in tiles: every element of a row of 70 equal ones gets 1/70.
    let many = derivative_at(&vec![1.0; 70 * 130], |x| x.reshape(&[70, 130]).amax(&[0]))?;
    assert!(many.iter().all(|slope| (slope - 1.0 / 70.0).abs() < 1e-12));
    let many = derivative_at(&vec![1.0; 70 * 130], |x| x.reshape(&[70, 130]).amax(&[1]))?;
    assert!(many.iter().all(|slope| (slope - 1.0 / 130.0).abs() < 1e-12));
    Ok(())
}

#[test]
fn infinity_norms_assign_the_gradient_to_one_element() -> Result<()> {
    assert_eq!(derivative_at(&[3.0, -3.0, 1.0], |x| x.norm(f32::INFINITY, 0))?, [1.0, -1.0, 0.0]);
    assert_eq!(derivative_at(&[3.0, -1.0, 1.0], |x| x.norm(f32::NEG_INFINITY, 0))?, [0.0, -1.0, 1.0]);
    Ok(())
}

#[test]
fn pooling_takes_the_first() -> Result<()> {
    let first = [1.0, 0.0, 0.0, 0.0];
    let image = |x: &Expr| x.reshape(&[1, 1, 2, 2]);
    assert_eq!(derivative_at(&[4.0; 4], |x| image(x).max_pool2d(2, 2))?, first);
    let pool = PoolAttrs::new(PoolingType::Max, vec![1, 1]);
    for pool in [pool.clone().adaptive(true), pool.global_pooling(true)] {
        let pooled = |x: &Expr| emit(Pool2dOp { x: (&image(x)).into(), out: New, pool: pool.clone() }).out;
        assert_eq!(derivative_at(&[4.0; 4], pooled)?, first);
    }
    Ok(())
}

#[test]
fn one_of_two_operands_gets_the_gradient() -> Result<()> {
    let (x, y) = (&[1.0, 2.0, 3.0][..], &[2.0, 2.0, 2.0][..]);
    let (smaller, larger) = (vec![0.0, 0.0, 1.0], vec![1.0, 1.0, 0.0]);
    macro_rules! of {
        ($op:ident $(, $axis:ident)?) => {
            both(x, y, |x, y| emit($op { x: x.into(), y: y.into(), out: New $(, $axis: -1)? }).out)?
        };
    }
    // The second operand.
    assert_eq!(of!(ElementwiseMax, axis), [smaller.clone(), larger.clone()]);
    assert_eq!(of!(ElementwiseMin, axis), [vec![1.0, 0.0, 0.0], vec![0.0, 1.0, 1.0]]);
    // The first operand.
    assert_eq!(of!(ElementwiseFmax), [vec![0.0, 1.0, 1.0], vec![1.0, 0.0, 0.0]]);
    assert_eq!(of!(ElementwiseFmin), [vec![1.0, 1.0, 0.0], vec![0.0, 0.0, 1.0]]);
    Ok(())
}

#[test]
fn positions_of_equal_elements_keep_their_order() -> Result<()> {
    let weighted = |x: &Expr, weights: &[f64]| {
        let weights: Vec<Expr> = weights.iter().map(|w| x.slice(0, 0, 1) * 0.0 + *w).collect();
        x * &autobwd_ops::concat(&weights.iter().collect::<Vec<_>>(), 0)
    };
    let equal = [7.0, 7.0, 1.0, 7.0];
    assert_eq!(derivative_at(&equal, |x| weighted(&x.top_k(2).0, &[1.0, 10.0]))?, [1.0, 10.0, 0.0, 0.0]);
    let ascending = derivative_at(&equal, |x| weighted(&x.sort(0, false).0, &[1.0, 10.0, 100.0, 1000.0]))?;
    assert_eq!(ascending, [10.0, 100.0, 1.0, 1000.0]);
    let descending = derivative_at(&equal, |x| weighted(&x.sort(0, true).0, &[1.0, 10.0, 100.0, 1000.0]))?;
    assert_eq!(descending, [1.0, 10.0, 1000.0, 100.0]);
    Ok(())
}

#[test]
fn bounds_have_the_slope_that_the_documentation_states() -> Result<()> {
    assert_eq!(derivative_at(&[-1.0, 0.0, 1.0], |x| x.abs())?, [-1.0, 0.0, 1.0]);
    assert_eq!(derivative_at(&[-1.0, 0.0, 1.0], |x| x.relu())?, [0.0, 0.0, 1.0]);
    assert_eq!(
        derivative_at(&[-2.0, -1.0, 0.0, 1.0, 2.0], |x| x.clip(-1.0, 1.0))?,
        [0.0, 0.0, 1.0, 0.0, 0.0]
    );
    let brelu = |x: &Expr| emit(Brelu { x: x.into(), out: New, t_min: -1.0, t_max: 1.0 }).out;
    assert_eq!(derivative_at(&[-2.0, -1.0, 0.0, 1.0, 2.0], brelu)?, [0.0, 0.0, 1.0, 0.0, 0.0]);
    let hard = |x: &Expr| emit(HardShrink { x: x.into(), out: New, threshold: 0.5 }).out;
    assert_eq!(derivative_at(&[-1.0, -0.5, 0.0, 0.5, 1.0], hard)?, [1.0, 0.0, 0.0, 0.0, 1.0]);
    let soft = |x: &Expr| emit(Softshrink { x: x.into(), out: New, lambda: 0.5 }).out;
    assert_eq!(derivative_at(&[-1.0, -0.5, 0.0, 0.5, 1.0], soft)?, [1.0, 0.0, 0.0, 0.0, 1.0]);
    let thresholded = |x: &Expr| emit(ThresholdedRelu { x: x.into(), out: New, threshold: 0.5 }).out;
    assert_eq!(derivative_at(&[0.0, 0.5, 1.0], thresholded)?, [0.0, 0.0, 1.0]);
    let hinge = |x: &Expr| {
        let column = x.reshape(&[3, 1]);
        let labels = (&column * 0.0).detach() + 1.0;
        emit(HingeLoss { logits: (&column).into(), labels: (&labels).into(), loss: New }).loss
    };
    assert_eq!(derivative_at(&[0.0, 1.0, 2.0], hinge)?, [-1.0, 0.0, 0.0]);
    Ok(())
}
