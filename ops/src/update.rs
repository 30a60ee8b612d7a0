//! Parameter updates by optimizers.
//!
//! All work in place if a parameter and its output are one variable. They are steps of a training loop, not part of a
//! function, so they have no gradient. A sparse gradient means zeros in all other rows; where the update changes a
//! parameter even for zero gradients, `lazy_mode` skips these rows.

use std::ops::{Add, Mul};

use autobwd::{
    Buf, Cx, Float, Infer, Kernel, Meta, NoGrad, Pointwise, Result, Var,
    check::*,
    op::{LaneOf, VectorLoops, Vectorised, attr_enum, map_lanes, with_float},
    operators::update_rows,
    register_op,
    tensor::InOut,
};

use crate::kernel_helpers::{KernelFloat, PART, nth_part};

/// SGD: `param_out = param - learning_rate * grad`.
#[register_op(grad = NoGrad, pointwise, broadcast)]
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
#[register_op(grad = NoGrad, pointwise, broadcast)]
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

/// Adam: `m = beta1 * m + (1 - beta1) * grad`, `v = beta2 * v + (1 - beta2) * grad²`,
/// `param_out = param - learning_rate / (1 - beta1_pow) * m / (√(v / (1 - beta2_pow)) + epsilon)`.
///
/// The powers are those of this step: `beta1` in the first step.
#[register_op(grad = NoGrad)]
pub struct AdamOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// Same shape as `param`, whole or sparse.
    #[input(sparse)]
    pub grad: V,
    /// One element.
    #[input]
    pub learning_rate: V,
    /// `m`, same shape as `param`.
    #[input]
    pub moment1: V,
    /// `v`, same shape as `param`.
    #[input]
    pub moment2: V,
    /// `beta1` to the power of the step number, one element.
    #[input]
    pub beta1_pow: V,
    /// `beta2` to the power of the step number, one element.
    #[input]
    pub beta2_pow: V,
    /// Same shape as `param`.
    #[output(inplace = param)]
    pub param_out: V,
    /// Same shape as `param`.
    #[output(inplace = moment1)]
    pub moment1_out: V,
    /// Same shape as `param`.
    #[output(inplace = moment2)]
    pub moment2_out: V,
    /// `beta1_pow` of the next step, same shape.
    #[output(inplace = beta1_pow)]
    pub beta1_pow_out: V,
    /// `beta2_pow` of the next step, same shape.
    #[output(inplace = beta2_pow)]
    pub beta2_pow_out: V,
    /// Decay of `m`.
    #[attr(default = 0.9, min = 0.0, below = 1.0)]
    pub beta1: f32,
    /// Decay of `v`.
    #[attr(default = 0.999, min = 0.0, below = 1.0)]
    pub beta2: f32,
    /// Added to the denominator, so that the quotient stays finite.
    #[attr(default = 1e-8)]
    pub epsilon: f32,
    /// With a sparse gradient, update only the rows that it holds.
    #[attr(default = false)]
    pub lazy_mode: bool,
}
impl Infer for AdamOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.param.float()?;
        for input in [&self.grad, &self.moment1, &self.moment2] {
            input.same_as(&self.param)?;
        }
        for input in [&self.learning_rate, &self.beta1_pow, &self.beta2_pow] {
            input.same_dtype(&self.param)?;
            input.one_element()?;
        }
        for out in [&mut self.param_out, &mut self.moment1_out, &mut self.moment2_out] {
            out.like(&self.param);
        }
        self.beta1_pow_out.like(&self.beta1_pow);
        self.beta2_pow_out.like(&self.beta2_pow);
        Ok(())
    }
}
impl Kernel for AdamOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let (beta1, beta2) = (T::of(self.beta1.into()), T::of(self.beta2.into()));
            let pow1 = advance(self.beta1_pow_out.inout(&self.beta1_pow)?, beta1);
            let pow2 = advance(self.beta2_pow_out.inout(&self.beta2_pow)?, beta2);
            let root = (1.0 - pow2).sqrt();
            let rate = one::<T>(&self.learning_rate)? * root / (1.0 - pow1);
            let epsilon = T::of(self.epsilon.into()) * root;
            let m = self.moment1_out.inout(&self.moment1)?.copied();
            let v = self.moment2_out.inout(&self.moment2)?.copied();
            let param = self.param_out.inout(&self.param)?.copied();
            if self.grad.is_sparse() {
                let (grads, lazy) = (self.grad.rows()?, self.lazy_mode);
                let new_param = |param: T, [m, v]: [T; 2], _| param - rate * (m / (v.sqrt() + epsilon));
                update_rows(cx, m, [], grads, lazy, |m, [], grad| beta1 * m + (1.0 - beta1) * grad);
                update_rows(cx, v, [], grads, lazy, |v, [], grad| beta2 * v + (1.0 - beta2) * grad * grad);
                update_rows(cx, param, [&*m, &*v], grads, lazy, new_param);
                return Ok(());
            }
            let grad = self.grad.slice()?;
            cx.try_zip_chunks_mut([param, m, v].map(|all| (all, PART)), &mut [(); 0], |part, moving, _| {
                let grad = nth_part(grad, part, moving[0].len());
                T::vectorised(AdamStep { grad, moving, beta: [beta1, beta2], rate, epsilon });
                Ok(())
            })
        })
    }
}

/// One fused step of the parameter and both moments.
struct AdamStep<'a, T> {
    grad: &'a [T],
    moving: [&'a mut [T]; 3],
    beta: [T; 2],
    rate: T,
    epsilon: T,
}
impl<T: KernelFloat> VectorLoops<T> for AdamStep<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let (one, [beta1, beta2]) = (F::from(1.0), self.beta.map(F::new));
        let (rate, epsilon) = (F::new(self.rate), F::new(self.epsilon));
        map_lanes([self.grad], self.moving, |[grad]: [F; 1], [param, m, v]| {
            let m = beta1 * m + (one - beta1) * grad;
            let v = beta2 * v + (one - beta2) * grad * grad;
            [param - rate * (m / (v.sqrt() + epsilon)), m, v]
        });
    }
}
autobwd::samples!(
    AdamOp,
    [
        adam(0.9, 0.999, 1e-8),
        adam(0.5, 0.75, 0.1),
        AdamOp { learning_rate: positive([]), lazy_mode: true, ..adam(0.9, 0.999, 1e-8) },
        AdamOp { moment2: uniform([3, 2]), ..adam(0.9, 0.999, 1e-8) }.fails("`Moment2`: shape [3, 2]"),
        AdamOp { beta1_pow: uniform([2]), ..adam(0.9, 0.999, 1e-8) }.fails("`Beta1Pow`: one element"),
        adam(1.0, 0.999, 1e-8).fails("attribute `beta1`"),
    ]
);

fn adam(beta1: f32, beta2: f32, epsilon: f32) -> AdamOp<Draw> {
    AdamOp {
        param: uniform([2, 3]),
        grad: uniform([2, 3]),
        learning_rate: positive([1]),
        moment1: uniform([2, 3]),
        moment2: positive([2, 3]),
        beta1_pow: between(0.1, 0.9, [1]),
        beta2_pow: between(0.1, 0.9, [1]),
        param_out: out(),
        moment1_out: out(),
        moment2_out: out(),
        beta1_pow_out: out(),
        beta2_pow_out: out(),
        beta1,
        beta2,
        epsilon,
        lazy_mode: false,
    }
}

/// The only element of a slot.
pub(crate) fn one<T: KernelFloat>(x: &Buf<'_>) -> Result<T> {
    match x.slice()? {
        [x] => Ok(*x),
        _ => Err(x.wrong("one element is needed")),
    }
}

/// Multiplies a power by its base; returns the old power.
fn advance<T: KernelFloat>(pow: InOut<'_, T>, base: T) -> T {
    let pow = pow.copied();
    let before = pow[0];
    pow[0] = before * base;
    before
}
