//! Steps scaled by past gradients: Adagrad, Adadelta, RMSProp and Adamax.

use autobwd::{
    Buf, Composition, Cx, Expr, Float, Infer, Kernel, Meta, NoGrad, Pointwise, Result, Var, check::*,
    op::with_float, operators::update_rows, register_op,
};

use super::{moving_mean, number, one, same_as_param, scalars_of_param};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, nth_part},
    math::like,
};

/// Adagrad (Duchi et al., 2011): `moment_out = moment + grad²`,
/// `param_out = param - learning_rate * grad / (√moment_out + epsilon)`.
#[register_op(grad = NoGrad, pointwise, broadcast, infallible, elementwise_update)]
pub struct AdagradOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// Same shape as `param`, whole or sparse.
    #[input(sparse)]
    pub grad: V,
    /// Sum of the squared gradients, same shape as `param`.
    #[input]
    pub moment: V,
    /// One element, of a rank no higher than that of `param`.
    #[input]
    pub learning_rate: V,
    /// Same shape as `param`.
    #[output(inplace = param)]
    pub param_out: V,
    /// Same shape as `param`.
    #[output(inplace = moment)]
    pub moment_out: V,
    /// Added to the denominator, so that the quotient stays finite.
    #[attr(default = 1e-6)]
    pub epsilon: f32,
}
impl<F: Float> Pointwise for AdagradOp<F> {
    fn eval(&mut self) {
        self.moment_out = self.moment + self.grad * self.grad;
        let root = self.moment_out.sqrt() + F::from(self.epsilon);
        self.param_out = self.param - self.learning_rate * self.grad / root;
    }
}
impl Kernel for AdagradOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let (rate, epsilon) = (one::<T>(&self.learning_rate)?, T::of(self.epsilon.into()));
            let grads = self.grad.rows::<T>()?;
            self.param_out.copy_from(&self.param)?;
            self.moment_out.copy_from(&self.moment)?;
            let (param, moment) = (self.param_out.slice_mut()?, self.moment_out.slice_mut()?);
            // A gradient of 0 changes nothing.
            update_rows(cx, moment, [], grads, true, |moment, [], grad| moment + grad * grad);
            update_rows(cx, param, [&*moment], grads, true, |param, [moment], grad| {
                param - rate * grad / (moment.sqrt() + epsilon)
            });
            Ok(())
        })
    }
}
autobwd::samples!(
    AdagradOp,
    [
        adagrad(1e-6),
        adagrad(0.5),
        AdagradOp { moment: uniform([2]), ..adagrad(0.5) }.fails("`Moment`: shape [2]"),
    ]
);

fn adagrad(epsilon: f32) -> AdagradOp<Draw> {
    AdagradOp {
        param: uniform([2, 3]),
        grad: uniform([2, 3]),
        moment: positive([2, 3]),
        learning_rate: positive([1]),
        param_out: out(),
        moment_out: out(),
        epsilon,
    }
}

/// Adagrad with decaying squares: `moment_out = decay * moment + (1 - decay) * grad²`,
/// `param_out = param - learning_rate * grad / (√moment_out + epsilon)`.
#[register_op(grad = NoGrad, pointwise, broadcast, elementwise_update)]
pub struct DecayedAdagradOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// Same shape as `param`.
    #[input]
    pub grad: V,
    /// Mean of the squared gradients, same shape as `param`.
    #[input]
    pub moment: V,
    /// One element, of a rank no higher than that of `param`.
    #[input]
    pub learning_rate: V,
    /// Same shape as `param`.
    #[output(inplace = param)]
    pub param_out: V,
    /// Same shape as `param`.
    #[output(inplace = moment)]
    pub moment_out: V,
    /// Decay of the mean.
    #[attr(default = 0.95)]
    pub decay: f32,
    /// Added to the denominator, so that the quotient stays finite.
    #[attr(default = 1e-6)]
    pub epsilon: f32,
}
impl<F: Float> Pointwise for DecayedAdagradOp<F> {
    fn eval(&mut self) {
        self.moment_out = mean(self.decay, self.moment, self.grad * self.grad);
        let root = self.moment_out.sqrt() + F::from(self.epsilon);
        self.param_out = self.param - self.learning_rate * self.grad / root;
    }
}
autobwd::samples!(
    DecayedAdagradOp,
    [
        decayed_adagrad(0.95, 1e-6),
        decayed_adagrad(0.5, 0.25),
        DecayedAdagradOp { moment: uniform([2]), ..decayed_adagrad(0.5, 0.25) }.fails("`Moment`: shape [2]"),
    ]
);

fn decayed_adagrad(decay: f32, epsilon: f32) -> DecayedAdagradOp<Draw> {
    DecayedAdagradOp {
        param: uniform([2, 3]),
        grad: uniform([2, 3]),
        moment: positive([2, 3]),
        learning_rate: positive([1]),
        param_out: out(),
        moment_out: out(),
        decay,
        epsilon,
    }
}

/// `decay * mean + (1 - decay) * x`
#[inline(always)]
fn mean<F: Float>(decay: f32, mean: F, x: F) -> F {
    F::from(decay) * mean + (F::from(1.0) - F::from(decay)) * x
}

/// Adadelta (Zeiler, 2012): `avg_squared_grad_out = rho * avg_squared_grad + (1 - rho) * grad²`,
/// `update = √((avg_squared_update + epsilon) / (avg_squared_grad_out + epsilon)) * grad`,
/// `avg_squared_update_out = rho * avg_squared_update + (1 - rho) * update²`,
/// `param_out = param - learning_rate * update`.
#[register_op(grad = NoGrad, pointwise, broadcast, elementwise_update)]
pub struct AdadeltaOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// Same shape as `param`.
    #[input]
    pub grad: V,
    /// Mean of the squared gradients, same shape as `param`.
    #[input]
    pub avg_squared_grad: V,
    /// Mean of the squared updates, same shape as `param`.
    #[input]
    pub avg_squared_update: V,
    /// One element, of a rank no higher than that of `param`.
    #[input]
    pub learning_rate: V,
    /// Same shape as `param`.
    #[output(inplace = param)]
    pub param_out: V,
    /// Same shape as `param`.
    #[output(inplace = avg_squared_grad)]
    pub avg_squared_grad_out: V,
    /// Same shape as `param`.
    #[output(inplace = avg_squared_update)]
    pub avg_squared_update_out: V,
    /// Decay of both means.
    #[attr(default = 0.95)]
    pub rho: f32,
    /// Added to both means in the quotient.
    #[attr(default = 1e-6)]
    pub epsilon: f32,
}
impl<F: Float> Pointwise for AdadeltaOp<F> {
    fn eval(&mut self) {
        let epsilon = F::from(self.epsilon);
        self.avg_squared_grad_out = mean(self.rho, self.avg_squared_grad, self.grad * self.grad);
        let quotient = (self.avg_squared_update + epsilon) / (self.avg_squared_grad_out + epsilon);
        let update = quotient.sqrt() * self.grad;
        self.avg_squared_update_out = mean(self.rho, self.avg_squared_update, update * update);
        self.param_out = self.param - self.learning_rate * update;
    }
}
autobwd::samples!(
    AdadeltaOp,
    [
        adadelta(0.95, 1e-6),
        adadelta(0.5, 0.25),
        AdadeltaOp { avg_squared_update: uniform([2]), ..adadelta(0.5, 0.25) }
            .fails("`AvgSquaredUpdate`: shape [2]"),
    ]
);

fn adadelta(rho: f32, epsilon: f32) -> AdadeltaOp<Draw> {
    AdadeltaOp {
        param: uniform([2, 3]),
        grad: uniform([2, 3]),
        avg_squared_grad: positive([2, 3]),
        avg_squared_update: positive([2, 3]),
        learning_rate: positive([1]),
        param_out: out(),
        avg_squared_grad_out: out(),
        avg_squared_update_out: out(),
        rho,
        epsilon,
    }
}

/// Adamax (Kingma and Ba, 2015): `moment_out = beta1 * moment + (1 - beta1) * grad`,
/// `inf_norm_out = max(|grad|, beta2 * inf_norm + epsilon)`,
/// `param_out = param - learning_rate / (1 - beta1_pow) * moment_out / inf_norm_out`.
///
/// The power is that of this step: `beta1` in the first step. A `scale` operator advances it.
#[register_op(grad = NoGrad, pointwise, broadcast, elementwise_update)]
pub struct AdamaxOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// Same shape as `param`.
    #[input]
    pub grad: V,
    /// One element, of a rank no higher than that of `param`.
    #[input]
    pub learning_rate: V,
    /// Mean of the gradients, same shape as `param`.
    #[input]
    pub moment: V,
    /// Decaying maximum of the gradients' sizes, same shape as `param`.
    #[input]
    pub inf_norm: V,
    /// `beta1` to the power of the step number, one element, of a rank no higher than that of `param`.
    #[input]
    pub beta1_pow: V,
    /// Same shape as `param`.
    #[output(inplace = param)]
    pub param_out: V,
    /// Same shape as `param`.
    #[output(inplace = moment)]
    pub moment_out: V,
    /// Same shape as `param`.
    #[output(inplace = inf_norm)]
    pub inf_norm_out: V,
    /// Decay of the mean.
    #[attr(default = 0.9, min = 0.0, below = 1.0)]
    pub beta1: f32,
    /// Decay of the maximum.
    #[attr(default = 0.999, min = 0.0, below = 1.0)]
    pub beta2: f32,
    /// Added to the maximum, so that the quotient stays finite.
    #[attr(default = 1e-8)]
    pub epsilon: f32,
}
impl<F: Float> Pointwise for AdamaxOp<F> {
    fn eval(&mut self) {
        self.moment_out = mean(self.beta1, self.moment, self.grad);
        let decayed = F::from(self.beta2) * self.inf_norm + F::from(self.epsilon);
        self.inf_norm_out = self.grad.abs().max(decayed);
        let rate = self.learning_rate / (F::from(1.0) - self.beta1_pow);
        self.param_out = self.param - rate * (self.moment_out / self.inf_norm_out);
    }
}
autobwd::samples!(
    AdamaxOp,
    [
        adamax(0.9, 0.999, 1e-8),
        adamax(0.5, 0.75, 0.25),
        AdamaxOp { inf_norm: uniform([2]), ..adamax(0.5, 0.75, 0.25) }.fails("`InfNorm`: shape [2]"),
        adamax(0.5, 1.0, 0.25).fails("attribute `beta2`"),
    ]
);

fn adamax(beta1: f32, beta2: f32, epsilon: f32) -> AdamaxOp<Draw> {
    AdamaxOp {
        param: uniform([2, 3]),
        grad: uniform([2, 3]),
        learning_rate: positive([1]),
        moment: uniform([2, 3]),
        inf_norm: positive([2, 3]),
        beta1_pow: between(0.1, 0.9, [1]),
        param_out: out(),
        moment_out: out(),
        inf_norm_out: out(),
        beta1,
        beta2,
        epsilon,
    }
}

/// RMSProp (Hinton, 2012): `mean_square_out = decay * mean_square + (1 - decay) * grad²`,
/// `moment_out = momentum * moment + learning_rate * grad / √(mean_square_out + epsilon)`,
/// `param_out = param - moment_out`.
///
/// If `centered`, `mean_grad_out = decay * mean_grad + (1 - decay) * grad`, and its square is subtracted from
/// `mean_square_out` in the root.
#[register_op(grad = NoGrad, infallible, elementwise_update)]
pub struct RmspropOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// Mean of the squared gradients, same shape as `param`.
    #[input]
    pub mean_square: V,
    /// Same shape as `param`, whole or sparse.
    #[input(sparse)]
    pub grad: V,
    /// Same shape as `param`.
    #[input]
    pub moment: V,
    /// One element.
    #[input]
    pub learning_rate: V,
    /// Mean of the gradients, same shape as `param`; needed if `centered`.
    #[input]
    pub mean_grad: Option<V>,
    /// Same shape as `param`.
    #[output(inplace = param)]
    pub param_out: V,
    /// Same shape as `param`.
    #[output(inplace = moment)]
    pub moment_out: V,
    /// Same shape as `param`.
    #[output(inplace = mean_square)]
    pub mean_square_out: V,
    /// Same shape as `param`; unless `centered`, equal to `mean_grad`, or 0 if that is absent.
    #[output(inplace = mean_grad)]
    pub mean_grad_out: V,
    /// Added to the number below the root, so that the quotient stays finite.
    #[attr(default = 1e-10)]
    pub epsilon: f32,
    /// Decay of the means.
    #[attr(default = 0.9)]
    pub decay: f32,
    /// Decay of the moment.
    #[attr(default = 0.0)]
    pub momentum: f32,
    /// Divide by an estimate of the standard deviation, not of the root mean square.
    #[attr(default = false)]
    pub centered: bool,
}
impl Infer for RmspropOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        same_as_param(&self.param, [&self.mean_square, &self.grad, &self.moment])?;
        scalars_of_param(&self.param, [&self.learning_rate])?;
        match &self.mean_grad {
            Some(mean_grad) => mean_grad.same_as(&self.param)?,
            None => self
                .param
                .require(!self.centered, || "slot `MeanGrad` is needed, as `centered` is set,".into())?,
        }
        let outs =
            [&mut self.param_out, &mut self.moment_out, &mut self.mean_square_out, &mut self.mean_grad_out];
        outs.into_iter().for_each(|out| out.like(&self.param));
        Ok(())
    }
}
impl Kernel for RmspropOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let mean_grad = match &self.mean_grad {
                Some(mean_grad) => self.mean_grad_out.inout(mean_grad)?.copied(),
                None => {
                    let mean_grad = self.mean_grad_out.slice_mut()?;
                    mean_grad.fill(0.0);
                    mean_grad
                }
            };
            let moving = [
                self.param_out.inout(&self.param)?.copied(),
                self.moment_out.inout(&self.moment)?.copied(),
                self.mean_square_out.inout(&self.mean_square)?.copied(),
                mean_grad,
            ];
            let step = RmspropStep {
                rate: one::<T>(&self.learning_rate)?,
                decay: T::of(self.decay.into()),
                momentum: T::of(self.momentum.into()),
                epsilon: T::of(self.epsilon.into()),
                centered: self.centered,
            };
            step.run(cx, &self.grad, moving)
        })
    }
}

/// The numbers of a step.
#[derive(Clone, Copy)]
struct RmspropStep<T> {
    rate: T,
    decay: T,
    momentum: T,
    epsilon: T,
    centered: bool,
}
impl<T: KernelFloat> RmspropStep<T> {
    fn mean(&self, mean: T, x: T) -> T {
        self.decay * mean + (T::of(1.0) - self.decay) * x
    }

    fn new_mean_grad(&self, mean_grad: T, grad: T) -> T {
        if self.centered { self.mean(mean_grad, grad) } else { mean_grad }
    }

    fn new_moment(&self, moment: T, [square, mean_grad]: [T; 2], grad: T) -> T {
        let variance = if self.centered { square - mean_grad * mean_grad } else { square };
        self.momentum * moment + self.rate * grad / (variance + self.epsilon).sqrt()
    }

    /// Updates parameter, moment, mean square and mean gradient.
    fn run(self, cx: &Cx, grad: &Buf<'_>, [param, moment, square, mean_grad]: [&mut [T]; 4]) -> Result<()> {
        if grad.is_sparse() {
            let grads = grad.rows()?;
            update_rows(cx, square, [], grads, false, |square, [], grad| self.mean(square, grad * grad));
            update_rows(cx, mean_grad, [], grads, false, |mean, [], grad| self.new_mean_grad(mean, grad));
            update_rows(cx, moment, [&*square, &*mean_grad], grads, false, |moment, means, grad| {
                self.new_moment(moment, means, grad)
            });
            update_rows(cx, param, [&*moment], grads, false, |param, [moment], _| param - moment);
            return Ok(());
        }
        let grad = grad.slice::<T>()?;
        let moving = [param, moment, square, mean_grad].map(|all| (all, PART));
        cx.try_zip_chunks_mut(moving, &mut [(); 0], |part, [param, moment, square, mean_grad], _| {
            let grad = nth_part(grad, part, param.len());
            let means = square.iter_mut().zip(mean_grad);
            for (((param, moment), (square, mean_grad)), grad) in
                param.iter_mut().zip(moment).zip(means).zip(grad)
            {
                *square = self.mean(*square, *grad * *grad);
                *mean_grad = self.new_mean_grad(*mean_grad, *grad);
                *moment = self.new_moment(*moment, [*square, *mean_grad], *grad);
                *param = *param - *moment;
            }
            Ok(())
        })
    }
}
impl Composition for RmspropOp<Expr> {
    fn compose(&mut self) {
        let rate = number(&self.learning_rate, &self.param);
        let decay = like(&rate, self.decay.into());
        let square = moving_mean(&self.mean_square, &self.grad.square(), &decay);
        let mean_grad = self.mean_grad.clone().unwrap_or_else(|| like(&self.param, 0.0));
        let (mean_grad, variance) = if self.centered {
            let mean_grad = moving_mean(&mean_grad, &self.grad, &decay);
            let variance = &square - mean_grad.square();
            (mean_grad, variance)
        } else {
            (mean_grad, square.clone())
        };
        let change = &self.grad * rate / (variance + f64::from(self.epsilon)).sqrt();
        let moment = &self.moment * f64::from(self.momentum) + change;
        self.param_out = &self.param - &moment;
        (self.moment_out, self.mean_square_out, self.mean_grad_out) = (moment, square, mean_grad);
    }
}
autobwd::samples!(
    RmspropOp,
    [
        rmsprop(false),
        RmspropOp { mean_grad: Some(between(-0.1, 0.1, [2, 3])), ..rmsprop(false) },
        RmspropOp {
            decay: 0.5,
            momentum: 0.25,
            epsilon: 0.125,
            learning_rate: positive([]),
            ..rmsprop(false)
        },
        RmspropOp { mean_grad: Some(between(-0.1, 0.1, [2, 3])), momentum: 0.5, ..rmsprop(true) },
        rmsprop(true).fails("slot `MeanGrad` is needed"),
        RmspropOp { mean_grad: Some(uniform([2])), ..rmsprop(false) }.fails("`MeanGrad`: shape [2]"),
        RmspropOp { moment: uniform([3]), ..rmsprop(false) }.fails("`Moment`: shape [3]"),
        RmspropOp { learning_rate: uniform([2]), ..rmsprop(false) }.fails("`LearningRate`: one element"),
    ]
);

fn rmsprop(centered: bool) -> RmspropOp<Draw> {
    RmspropOp {
        param: uniform([2, 3]),
        mean_square: between(1.0, 2.0, [2, 3]),
        grad: uniform([2, 3]),
        moment: uniform([2, 3]),
        learning_rate: positive([1]),
        mean_grad: None,
        param_out: out(),
        moment_out: out(),
        mean_square_out: out(),
        mean_grad_out: out(),
        epsilon: 1e-10,
        decay: 0.9,
        momentum: 0.0,
        centered,
    }
}
