//! Steps scaled by the norm of the whole parameter: LAMB and LARS.

use autobwd::{
    Buf, Composition, Cx, DType, Error, ErrorKind, Expr, Infer, Kernel, Meta, NoGrad, Result, Var, check::*,
    op::with_float, register_op,
};

use super::{
    advance, if_positive, is_skipped, moving_mean, next_power, norm, number, one, same_as_param,
    scalars_of_param, skip_rule, unless,
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, nth_part},
    math::like,
    reduce::total,
};

/// LAMB (You et al., 2020): the moments of `adam`, `m` and `v`,
/// `step = m / (1 - beta1_pow) / (√(v / (1 - beta2_pow)) + epsilon) + weight_decay * param`,
/// `param_out = param - learning_rate * ‖param‖ / ‖step‖ * step`.
///
/// The quotient of the norms is 1 where one of them is 0, and without weight decay unless `always_adapt`.
#[register_op(grad = NoGrad, infallible)]
pub struct LambOp<V = Var> {
    /// Any shape.
    #[input]
    pub param: V,
    /// Same shape as `param`.
    #[input]
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
    /// One bool: whether to leave everything as it is; no if absent.
    #[input]
    pub skip_update: Option<V>,
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
    /// Coefficient of the weight decay.
    #[attr]
    pub weight_decay: f32,
    /// Decay of `m`.
    #[attr(default = 0.9, min = 0.0, below = 1.0)]
    pub beta1: f32,
    /// Decay of `v`.
    #[attr(default = 0.999, min = 0.0, below = 1.0)]
    pub beta2: f32,
    /// Added to the denominator, so that the quotient stays finite.
    #[attr(default = 1e-6)]
    pub epsilon: f32,
    /// Scale the step by the norms even without weight decay.
    #[attr(default = false)]
    pub always_adapt: bool,
    /// The step, before it is scaled.
    #[scratch(like = param)]
    pub step: V,
}
impl Infer for LambOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        same_as_param(&self.param, [&self.grad, &self.moment1, &self.moment2])?;
        scalars_of_param(&self.param, [&self.learning_rate, &self.beta1_pow, &self.beta2_pow])?;
        skip_rule(&self.skip_update)?;
        for out in [&mut self.param_out, &mut self.moment1_out, &mut self.moment2_out] {
            out.like(&self.param);
        }
        self.beta1_pow_out.like(&self.beta1_pow);
        self.beta2_pow_out.like(&self.beta2_pow);
        Ok(())
    }
}
impl Kernel for LambOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let param = self.param_out.inout::<T>(&self.param)?.copied();
            let m = self.moment1_out.inout::<T>(&self.moment1)?.copied();
            let v = self.moment2_out.inout::<T>(&self.moment2)?.copied();
            let (pow1, pow2) = (self.beta1_pow_out.inout(&self.beta1_pow)?, self.beta2_pow_out.inout(&self.beta2_pow)?);
            if is_skipped(&self.skip_update)? {
                pow1.copied();
                pow2.copied();
                return Ok(());
            }
            let (beta1, beta2) = (T::of(self.beta1.into()), T::of(self.beta2.into()));
            let (rest1, rest2) = (1.0 - advance(pow1, beta1), 1.0 - advance(pow2, beta2));
            let (epsilon, decay) = (T::of(self.epsilon.into()), T::of(self.weight_decay.into()));
            let (grad, step) = (self.grad.slice::<T>()?, self.step.slice_mut::<T>()?);
            let moving = [&mut *m, &mut *v, &mut *step].map(|all| (all, PART));
            cx.try_zip_chunks_mut(moving, &mut [(); 0], |part, [m, v, step], _| {
                let (grad, param) = (nth_part(grad, part, m.len()), nth_part(param, part, m.len()));
                for ((((m, v), step), grad), param) in m.iter_mut().zip(v).zip(step).zip(grad).zip(param) {
                    *m = beta1 * *m + (1.0 - beta1) * grad;
                    *v = beta2 * *v + (1.0 - beta2) * grad * grad;
                    *step = *m / rest1 / ((*v / rest2).sqrt() + epsilon) + decay * param;
                }
                Ok(())
            })?;
            let mut rate = one::<T>(&self.learning_rate)?;
            if self.weight_decay > 0.0 || self.always_adapt {
                let [whole, change] = [&*param, &*step].map(|x| total(cx, x, |x| x * x).sqrt());
                rate *= T::of(if whole > 0.0 && change > 0.0 { whole / change } else { 1.0 });
            }
            cx.chunks_mut(param, PART, |part, param| {
                let step = nth_part(step, part, param.len());
                param.iter_mut().zip(step).for_each(|(param, step)| *param -= rate * step);
            });
            Ok(())
        })
    }
}
impl Composition for LambOp<Expr> {
    fn compose(&mut self) {
        let mut rate = number(&self.learning_rate, &self.param);
        let [beta1, beta2] = [self.beta1, self.beta2].map(|beta| like(&rate, f64::from(beta)));
        let [rest1, rest2] = [&self.beta1_pow, &self.beta2_pow].map(|power| 1.0 - number(power, &self.param));
        let m = moving_mean(&self.moment1, &self.grad, &beta1);
        let v = moving_mean(&self.moment2, &self.grad.square(), &beta2);
        let step = &m / rest1 / ((&v / rest2).sqrt() + f64::from(self.epsilon))
            + &self.param * f64::from(self.weight_decay);
        if self.weight_decay > 0.0 || self.always_adapt {
            let (whole, change) = (norm(&self.param), norm(&step));
            rate = rate * if_positive([&whole, &change], &(&whole / &change));
        }
        let skip = &self.skip_update;
        self.param_out = unless(skip, &self.param, &self.param - step * rate);
        self.moment1_out = unless(skip, &self.moment1, m);
        self.moment2_out = unless(skip, &self.moment2, v);
        self.beta1_pow_out = unless(skip, &self.beta1_pow, next_power(&self.beta1_pow, &beta1));
        self.beta2_pow_out = unless(skip, &self.beta2_pow, next_power(&self.beta2_pow, &beta2));
    }
}
autobwd::samples!(
    LambOp,
    [
        lamb(0.01),
        LambOp { beta1: 0.5, beta2: 0.75, epsilon: 0.1, ..lamb(0.5) },
        LambOp { learning_rate: positive([]), ..lamb(0.0) },
        LambOp { always_adapt: true, ..lamb(0.0) },
        LambOp { param: given([2, 3], [0.0; 6]), ..lamb(0.5) },
        LambOp { skip_update: Some(given([1], [1.0]).of(DType::Bool)), ..lamb(0.5) },
        LambOp { skip_update: Some(given([1], [0.0]).of(DType::Bool)), ..lamb(0.5) },
        LambOp { grad: uniform([3, 2]), ..lamb(0.5) }.fails("`Grad`: shape [3, 2]"),
        LambOp { beta1_pow: uniform([2]), ..lamb(0.5) }.fails("`Beta1Pow`: one element"),
        LambOp { skip_update: Some(uniform([1])), ..lamb(0.5) }.fails("`SkipUpdate`: bool is needed"),
        LambOp { beta1: 1.0, ..lamb(0.5) }.fails("attribute `beta1`"),
    ]
);

fn lamb(weight_decay: f32) -> LambOp<Draw> {
    LambOp {
        param: uniform([2, 3]),
        grad: uniform([2, 3]),
        learning_rate: positive([1]),
        moment1: uniform([2, 3]),
        moment2: positive([2, 3]),
        beta1_pow: between(0.1, 0.9, [1]),
        beta2_pow: between(0.1, 0.9, [1]),
        skip_update: None,
        param_out: out(),
        moment1_out: out(),
        moment2_out: out(),
        beta1_pow_out: out(),
        beta2_pow_out: out(),
        weight_decay,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-6,
        always_adapt: false,
        step: out(),
    }
}

/// LARS (You et al., 2017), for several parameters: `g = rescale_grad * grad`,
/// `rate = learning_rate * lars_coeff * ‖param‖ / (‖g‖ + lars_weight_decay * ‖param‖ + epsilon)`,
/// `velocity_out = mu * velocity + rate * (g + lars_weight_decay * param)`, `param_out = param - velocity_out`.
///
/// Without weight decay, or where a norm is 0, `rate = learning_rate`.
#[register_op(grad = NoGrad, infallible)]
pub struct LarsMomentumOp<V = Var> {
    /// Parameters of any shapes.
    #[input]
    pub param: Vec<V>,
    /// For each parameter, its gradient, of its shape.
    #[input]
    pub grad: Vec<V>,
    /// For each parameter, a velocity of its shape.
    #[input]
    pub velocity: Vec<V>,
    /// For each parameter, one element.
    #[input]
    pub learning_rate: Vec<V>,
    /// For each parameter, one of its shape.
    #[output]
    pub param_out: Vec<V>,
    /// For each parameter, one of its shape.
    #[output]
    pub velocity_out: Vec<V>,
    /// Decay of the velocity.
    #[attr]
    pub mu: f32,
    /// Coefficient of the rate.
    #[attr(default = 0.001)]
    pub lars_coeff: f32,
    /// Coefficients of the weight decay, one for each parameter.
    #[attr(default = [0.0005])]
    pub lars_weight_decay: Vec<f32>,
    /// Added to the denominator of the rate.
    #[attr(default = 0.0)]
    pub epsilon: f32,
    /// Factor of the gradient.
    #[attr(default = 1.0)]
    pub rescale_grad: f32,
}
impl Infer for LarsMomentumOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        let n = self.param.len();
        let slots = [
            ("Grad", self.grad.len()),
            ("Velocity", self.velocity.len()),
            ("LearningRate", self.learning_rate.len()),
            ("ParamOut", self.param_out.len()),
            ("VelocityOut", self.velocity_out.len()),
        ];
        if let Some((slot, len)) = slots.into_iter().find(|(_, len)| *len != n) {
            let text = format!("`{slot}`: one variable for each of the {n} of `Param` is needed, not {len}");
            return Err(Error::new(ErrorKind::Slot, text));
        }
        if self.lars_weight_decay.len() != n {
            let text = format!("{n} numbers are needed, one for each parameter");
            return Err(Error::attr("lars_weight_decay", text));
        }
        for i in 0..n {
            let param = &self.param[i];
            same_as_param(param, [&self.grad[i], &self.velocity[i]])?;
            scalars_of_param(param, [&self.learning_rate[i]])?;
            self.param_out[i].like(param);
            self.velocity_out[i].like(param);
        }
        Ok(())
    }
}
impl Kernel for LarsMomentumOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        for (i, param_out) in self.param_out.iter_mut().enumerate() {
            let (param, grad, velocity) = (&self.param[i], &self.grad[i], &self.velocity[i]);
            let (velocity_out, rate, decay) =
                (&mut self.velocity_out[i], &self.learning_rate[i], self.lars_weight_decay[i]);
            with_float!(param, T => {
                let (param, grad, velocity) = (param.slice::<T>()?, grad.slice::<T>()?, velocity.slice::<T>()?);
                let rescale = T::of(self.rescale_grad.into());
                let mut rate = one::<T>(rate)?;
                let whole = total(cx, param, |x| x * x).sqrt();
                let change = total(cx, grad, |x| x * x).sqrt() * f64::from(self.rescale_grad).abs();
                if decay > 0.0 && whole > 0.0 && change > 0.0 {
                    let divisor = change + f64::from(decay) * whole + f64::from(self.epsilon);
                    rate *= T::of(f64::from(self.lars_coeff) * whole / divisor);
                }
                let (mu, decay) = (T::of(self.mu.into()), T::of(decay.into()));
                let outs = [velocity_out.slice_mut::<T>()?, param_out.slice_mut()?].map(|all| (all, PART));
                cx.try_zip_chunks_mut(outs, &mut [(); 0], |part, [velocity_out, param_out], _| {
                    let [param, grad, velocity] =
                        [param, grad, velocity].map(|all| nth_part(all, part, param_out.len()));
                    let ins = param.iter().zip(grad).zip(velocity);
                    for ((v, p), ((param, grad), velocity)) in velocity_out.iter_mut().zip(param_out).zip(ins) {
                        *v = mu * velocity + rate * (rescale * grad + decay * param);
                        *p = param - *v;
                    }
                    Ok(())
                })?;
                Ok::<(), Error>(())
            })?;
        }
        Ok(())
    }
}
impl Composition for LarsMomentumOp<Expr> {
    fn compose(&mut self) {
        let rescale = f64::from(self.rescale_grad);
        for i in 0..self.param.len() {
            let (param, decay) = (&self.param[i], f64::from(self.lars_weight_decay[i]));
            let (grad, mut rate) = (&self.grad[i] * rescale, number(&self.learning_rate[i], param));
            if decay > 0.0 {
                let (whole, change) = (norm(param), norm(&grad));
                let divisor = &change + &whole * decay + f64::from(self.epsilon);
                let local = &whole * f64::from(self.lars_coeff) / divisor;
                rate = rate * if_positive([&whole, &change], &local);
            }
            let velocity = &self.velocity[i] * f64::from(self.mu) + (grad + param * decay) * rate;
            self.param_out[i] = param - &velocity;
            self.velocity_out[i] = velocity;
        }
    }
}
autobwd::samples!(
    LarsMomentumOp,
    [
        lars_momentum(&[0.0005]),
        lars_momentum(&[0.5, 0.0]),
        LarsMomentumOp {
            epsilon: 0.25,
            rescale_grad: 0.5,
            lars_coeff: 0.125,
            mu: 0.5,
            ..lars_momentum(&[0.5])
        },
        LarsMomentumOp { grad: vec![given([2, 3], [0.0; 6])], ..lars_momentum(&[0.5]) },
        LarsMomentumOp { learning_rate: vec![positive([])], ..lars_momentum(&[0.5]) },
        LarsMomentumOp { grad: vec![], ..lars_momentum(&[0.5]) }
            .fails("`Grad`: one variable for each of the 1 of `Param` is needed, not 0"),
        LarsMomentumOp { lars_weight_decay: vec![], ..lars_momentum(&[0.5]) }
            .fails("attribute `lars_weight_decay`: 1 numbers are needed"),
        LarsMomentumOp { velocity: vec![uniform([3])], ..lars_momentum(&[0.5]) }
            .fails("`Velocity`: shape [3]"),
        LarsMomentumOp { learning_rate: vec![uniform([2])], ..lars_momentum(&[0.5]) }
            .fails("`LearningRate`: one element"),
    ]
);

fn lars_momentum(decay: &[f32]) -> LarsMomentumOp<Draw> {
    let each = |draw: fn() -> Draw| decay.iter().map(|_| draw()).collect::<Vec<_>>();
    LarsMomentumOp {
        param: each(|| uniform([2, 3])),
        grad: each(|| uniform([2, 3])),
        velocity: each(|| uniform([2, 3])),
        learning_rate: each(|| positive([1])),
        param_out: each(out),
        velocity_out: each(out),
        mu: 0.9,
        lars_coeff: 0.001,
        lars_weight_decay: decay.to_vec(),
        epsilon: 0.0,
        rescale_grad: 1.0,
    }
}
