//! Steps along the gradient: SGD, with and without momentum.

use std::ops::{Add, Mul};

use autobwd::{
    Buf, Cx, Float, Kernel, NoGrad, Pointwise, Result, Var,
    check::*,
    op::{attr_enum, with_float},
    operators::update_rows,
    register_op,
};

use super::one;
use crate::kernel_helpers::KernelFloat;

/// SGD: `param_out = param - learning_rate * grad`.
#[register_op(grad = NoGrad, pointwise, broadcast, infallible, elementwise_update)]
pub struct SgdOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// One element, of a rank no higher than that of `param`.
    #[input]
    pub learning_rate: V,
    /// Same shape as `param`, whole or sparse.
    #[input(sparse)]
    pub grad: V,
    /// Same shape as `param`.
    #[output(inplace = param)]
    pub param_out: V,
}
impl<F: Float> Pointwise for SgdOp<F> {
    fn eval(&mut self) {
        self.param_out = self.param - self.learning_rate * self.grad;
    }
}
impl Kernel for SgdOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let rate = one::<T>(&self.learning_rate)?;
            self.param_out.copy_from(&self.param)?;
            let param = self.param_out.slice_mut::<T>()?;
            update_rows(cx, param, [], self.grad.rows()?, true, |param, [], grad| param - rate * grad);
            Ok(())
        })
    }
}
autobwd::samples!(
    SgdOp,
    [
        SgdOp {
            param: uniform([2, 3]),
            learning_rate: positive([1]),
            grad: uniform([2, 3]),
            param_out: out()
        },
        SgdOp { param: uniform([]), learning_rate: positive([]), grad: uniform([]), param_out: out() },
        SgdOp {
            param: uniform([2, 3]),
            learning_rate: positive([1]),
            grad: uniform([2, 4]),
            param_out: out()
        }
        .fails("`Grad`: shape [2, 4] does not broadcast"),
    ]
);

attr_enum! {
    /// Regularization term of the gradient.
    pub enum Regularization {
        /// None.
        None = "",
        /// L2: the parameter times the coefficient.
        L2Decay = "l2_decay",
    }
}

/// SGD with momentum: `velocity_out = mu * velocity + g`, `param_out = param - learning_rate * velocity_out`, or
/// `param - learning_rate * (g + mu * velocity_out)` with Nesterov momentum.
///
/// `g = rescale_grad * grad`, plus `regularization_coeff * param` with `l2_decay`. `lazy_mode` is not in the reference.
#[register_op(grad = NoGrad, pointwise, broadcast, infallible, elementwise_update)]
pub struct MomentumOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// Same shape as `param`, whole or sparse.
    #[input(sparse)]
    pub grad: V,
    /// Same shape as `param`.
    #[input]
    pub velocity: V,
    /// One element, of a rank no higher than that of `param`.
    #[input]
    pub learning_rate: V,
    /// Same shape as `param`.
    #[output(inplace = param)]
    pub param_out: V,
    /// Same shape as `param`.
    #[output(inplace = velocity)]
    pub velocity_out: V,
    /// Decay of the velocity.
    #[attr]
    pub mu: f32,
    /// Use Nesterov momentum.
    #[attr(default = false)]
    pub use_nesterov: bool,
    /// Regularization term of the gradient.
    #[attr(default = Regularization::None)]
    pub regularization_method: Regularization,
    /// Coefficient of the regularization term.
    #[attr(default = 0.0)]
    pub regularization_coeff: f32,
    /// Factor of the gradient.
    #[attr(default = 1.0)]
    pub rescale_grad: f32,
    /// With a sparse gradient, update only the rows that it holds.
    #[attr(default = false)]
    pub lazy_mode: bool,
}
impl<F: Float> Pointwise for MomentumOp<F> {
    fn eval(&mut self) {
        let factors = [self.rescale_grad, self.regularization_coeff].map(F::from);
        let grad = regularized(self.regularization_method, factors, self.grad, self.param);
        let mu = F::from(self.mu);
        self.velocity_out = mu * self.velocity + grad;
        let step = if self.use_nesterov { grad + mu * self.velocity_out } else { self.velocity_out };
        self.param_out = self.param - self.learning_rate * step;
    }
}
impl Kernel for MomentumOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let (rate, mu) = (one::<T>(&self.learning_rate)?, T::of(self.mu.into()));
            let (lazy, nesterov, method) = (self.lazy_mode, self.use_nesterov, self.regularization_method);
            let factors = [self.rescale_grad, self.regularization_coeff].map(|x| T::of(x.into()));
            let grads = self.grad.rows::<T>()?;
            self.param_out.copy_from(&self.param)?;
            self.velocity_out.copy_from(&self.velocity)?;
            let (velocity, param) = (self.velocity_out.slice_mut()?, self.param_out.slice()?);
            update_rows(cx, velocity, [param], grads, lazy, |velocity, [param], grad| {
                mu * velocity + regularized(method, factors, grad, param)
            });
            let (param, velocity) = (self.param_out.slice_mut()?, self.velocity_out.slice()?);
            update_rows(cx, param, [velocity], grads, lazy, |param, [velocity], grad| {
                let ahead = || regularized(method, factors, grad, param) + mu * velocity;
                param - rate * if nesterov { ahead() } else { velocity }
            });
            Ok(())
        })
    }
}

/// The gradient with its regularization term.
#[inline(always)]
fn regularized<F: Copy + Add<Output = F> + Mul<Output = F>>(
    method: Regularization,
    [rescale, coeff]: [F; 2],
    grad: F,
    param: F,
) -> F {
    match method {
        Regularization::None => rescale * grad,
        Regularization::L2Decay => rescale * grad + coeff * param,
    }
}
autobwd::samples!(
    MomentumOp,
    [
        momentum(0.9, false),
        momentum(0.5, true),
        MomentumOp {
            regularization_method: Regularization::L2Decay,
            regularization_coeff: 0.1,
            rescale_grad: 0.5,
            ..momentum(0.9, false)
        },
        MomentumOp { regularization_coeff: 0.1, lazy_mode: true, ..momentum(0.9, true) },
        MomentumOp { velocity: uniform([2]), ..momentum(0.9, false) }.fails("`Velocity`: shape [2]"),
    ]
);

fn momentum(mu: f32, use_nesterov: bool) -> MomentumOp<Draw> {
    MomentumOp {
        param: uniform([2, 3]),
        grad: uniform([2, 3]),
        velocity: uniform([2, 3]),
        learning_rate: positive([1]),
        param_out: out(),
        velocity_out: out(),
        mu,
        use_nesterov,
        regularization_method: Regularization::None,
        regularization_coeff: 0.0,
        rescale_grad: 1.0,
        lazy_mode: false,
    }
}
