//! Building blocks of the compositions of normalisations.

use autobwd::{Expr, New, emit};

use crate::{
    Math,
    elementwise::{ElementwiseAdd, ElementwiseMul, ElementwiseSub},
    reduce::{ReduceAttrs, ReduceMean, ReduceSum},
    shape::{Reshape2, Reshape2Grad},
};

/// `x - y`, where the dimensions of `y` are those of `x` from `axis` on.
pub(super) fn sub(x: &Expr, y: &Expr, axis: i32) -> Expr {
    emit(ElementwiseSub { x: x.into(), y: y.into(), out: New, axis }).out
}

/// `x * y`, likewise.
pub(super) fn mul(x: &Expr, y: &Expr, axis: i32) -> Expr {
    emit(ElementwiseMul { x: x.into(), y: y.into(), out: New, axis }).out
}

/// `scale * x + bias`, likewise, without absent terms.
pub(super) fn affine(x: Expr, scale: &Option<Expr>, bias: &Option<Expr>, axis: i32) -> Expr {
    let x = scale.as_ref().map_or(x.clone(), |scale| mul(&x, scale, axis));
    let add = |y: &Expr| emit(ElementwiseAdd { x: (&x).into(), y: y.into(), out: New, axis }).out;
    bias.as_ref().map_or(x.clone(), add)
}

/// The mean along these axes, kept with size 1 if `keep_dim`; 0 for no elements.
pub(super) fn mean(x: &Expr, axes: &[i32], keep_dim: bool) -> Expr {
    let reduce = ReduceAttrs::over(axes).keep_dim(keep_dim);
    match x.dims().iter().any(|dim| *dim == 0) {
        true => emit(ReduceSum { x: x.into(), out: New, reduce }).out,
        false => emit(ReduceMean { x: x.into(), out: New, reduce }).out,
    }
}

/// Statistics of rows along the last axis.
pub(super) struct NormRows {
    /// Size 1 along the last axis.
    pub(super) mean: Expr,
    pub(super) variance: Expr,
    /// `1 / √(variance + epsilon)`.
    pub(super) factor: Expr,
    /// `(x - mean) * factor`.
    pub(super) normal: Expr,
}

impl NormRows {
    pub(super) fn of(x: &Expr, epsilon: f32) -> NormRows {
        let mean = mean(x, &[-1], true);
        let centred = x - &mean;
        let variance = self::mean(&centred.square(), &[-1], true);
        let factor = (&variance + f64::from(epsilon)).rsqrt();
        let normal = &centred * &factor;
        NormRows { mean, variance, factor, normal }
    }
}

/// A reshaped tensor, with its original shape.
pub(super) struct Reshaped {
    pub(super) x: Expr,
    x_shape: Expr,
    shape: Vec<i32>,
}

impl Reshaped {
    pub(super) fn new(x: &Expr, shape: Vec<i32>) -> Reshaped {
        let op = emit(Reshape2::of(x.into(), New, New, shape.clone()));
        Reshaped { x: op.out, x_shape: op.x_shape, shape }
    }

    /// Reshapes a tensor to the original shape.
    pub(super) fn restore(&self, x: &Expr) -> Expr {
        let (x_shape, shape) = ((&self.x_shape).into(), self.shape.clone());
        emit(Reshape2Grad {
            x_shape,
            shape_input: None,
            shape_tensor: vec![],
            dout: x.into(),
            dx: New,
            shape,
        })
        .dx
    }
}
