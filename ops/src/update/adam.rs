//! Adam and AdamW.

use autobwd::{
    Buf, Composition, Cx, DType, Expr, Infer, Kernel, Meta, NoGrad, Result, Var,
    check::*,
    op::{LaneOf, VectorLoops, map_lanes, with_float},
    operators::update_rows,
    register_op,
};

use super::{
    advance, is_skipped, moving_mean, next_power, number, one, same_as_param, scalars_of_param, skip_rule,
    unless,
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, nth_part, wide},
    math::{in_dtype, like},
};

/// Adam: `m = beta1 * m + (1 - beta1) * grad`, `v = beta2 * v + (1 - beta2) * grad²`,
/// `param_out = param - learning_rate / (1 - beta1_pow) * m / (√(v / (1 - beta2_pow)) + epsilon)`.
///
/// The powers are those of this step: `beta1` in the first step.
#[register_op(grad = NoGrad, infallible, elementwise_update)]
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
impl Kernel for AdamOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let m = self.moment1_out.inout::<T>(&self.moment1)?.copied();
            let v = self.moment2_out.inout(&self.moment2)?.copied();
            let param = self.param_out.inout(&self.param)?.copied();
            let (pow1, pow2) = (self.beta1_pow_out.inout(&self.beta1_pow)?, self.beta2_pow_out.inout(&self.beta2_pow)?);
            if is_skipped(&self.skip_update)? {
                pow1.copied();
                pow2.copied();
                return Ok(());
            }
            let beta = [self.beta1, self.beta2].map(|beta| T::of(beta.into()));
            let powers = [advance(pow1, beta[0]), advance(pow2, beta[1])];
            let rates = AdamRates::new(one(&self.learning_rate)?, beta, powers, self.epsilon.into());
            rates.step(cx, &self.grad, [param, m, v], self.lazy_mode)
        })
    }
}

/// The numbers of a step.
#[derive(Clone, Copy)]
struct AdamRates<T> {
    beta: [T; 2],
    /// Corrected for the bias of the moments.
    rate: T,
    epsilon: T,
    /// The factor of the parameter, less than 1 with weight decay.
    keep: T,
}
impl<T: KernelFloat> AdamRates<T> {
    fn new(rate: T, beta: [T; 2], [pow1, pow2]: [T; 2], epsilon: f64) -> AdamRates<T> {
        let one = T::of(1.0);
        let root = (one - pow2).sqrt();
        AdamRates { beta, rate: rate * root / (one - pow1), epsilon: T::of(epsilon) * root, keep: one }
    }

    /// Updates the parameter and both moments.
    fn step(self, cx: &Cx, grad: &Buf<'_>, [param, m, v]: [&mut [T]; 3], lazy: bool) -> Result<()> {
        let AdamRates { beta: [beta1, beta2], rate, epsilon, keep } = self;
        let one = T::of(1.0);
        if grad.is_sparse() {
            let grads = grad.rows()?;
            if keep != one {
                cx.chunks_mut(param, PART, |_, param| {
                    param.iter_mut().for_each(|param| *param = *param * keep)
                });
            }
            let new_param = |param: T, [m, v]: [T; 2], _| param - rate * (m / (v.sqrt() + epsilon));
            update_rows(cx, m, [], grads, lazy, |m, [], grad| beta1 * m + (one - beta1) * grad);
            update_rows(cx, v, [], grads, lazy, |v, [], grad| beta2 * v + (one - beta2) * grad * grad);
            update_rows(cx, param, [&*m, &*v], grads, lazy, new_param);
            return Ok(());
        }
        let grad = grad.slice()?;
        cx.try_zip_chunks_mut([param, m, v].map(|all| (all, PART)), &mut [(); 0], |part, moving, _| {
            let grad = nth_part(grad, part, moving[0].len());
            T::vectorised(AdamStep { grad, moving, rates: self });
            Ok(())
        })
    }
}

/// One fused step of the parameter and both moments.
struct AdamStep<'a, T> {
    grad: &'a [T],
    moving: [&'a mut [T]; 3],
    rates: AdamRates<T>,
}
impl<T: KernelFloat> VectorLoops<T> for AdamStep<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let (one, [beta1, beta2]) = (F::from(1.0), self.rates.beta.map(F::new));
        let [rate, epsilon, keep] = [self.rates.rate, self.rates.epsilon, self.rates.keep].map(F::new);
        map_lanes([self.grad], self.moving, |[grad]: [F; 1], [param, m, v]| {
            let m = beta1 * m + (one - beta1) * grad;
            let v = beta2 * v + (one - beta2) * grad * grad;
            [keep * param - rate * (m / (v.sqrt() + epsilon)), m, v]
        });
    }
}
impl Composition for AdamOp<Expr> {
    fn compose(&mut self) {
        let rate = number(&self.learning_rate, &self.param);
        let [beta1, beta2, epsilon] =
            [self.beta1, self.beta2, self.epsilon].map(|x| like(&rate, f64::from(x)));
        let powers = [&self.beta1_pow, &self.beta2_pow].map(|power| number(power, &self.param));
        let rates = AdamExprs { rate, beta: [&beta1, &beta2], powers, epsilon };
        let state = [&self.param, &self.moment1, &self.moment2];
        let after = rates.step(&self.grad, state);
        let skip = &self.skip_update;
        let [param, m, v] = after;
        [self.param_out, self.moment1_out, self.moment2_out] =
            [unless(skip, state[0], param), unless(skip, state[1], m), unless(skip, state[2], v)];
        // Last, since powers may be advanced in place.
        self.beta1_pow_out = unless(skip, &self.beta1_pow, next_power(&self.beta1_pow, &beta1));
        self.beta2_pow_out = unless(skip, &self.beta2_pow, next_power(&self.beta2_pow, &beta2));
    }
}

/// The numbers of a step in a composition, each a tensor of one element that broadcasts with the parameter.
struct AdamExprs<'a> {
    rate: Expr,
    beta: [&'a Expr; 2],
    powers: [Expr; 2],
    epsilon: Expr,
}
impl AdamExprs<'_> {
    /// The parameter and both moments after a step.
    fn step(&self, grad: &Expr, [param, m, v]: [&Expr; 3]) -> [Expr; 3] {
        let root = (1.0 - &self.powers[1]).sqrt();
        let rate = &self.rate * &root / (1.0 - &self.powers[0]);
        let m = moving_mean(m, grad, self.beta[0]);
        let v = moving_mean(v, &grad.square(), self.beta[1]);
        [param - &m / (v.sqrt() + &self.epsilon * root) * rate, m, v]
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
        AdamOp { skip_update: Some(given([1], [1.0]).of(DType::Bool)), ..adam(0.9, 0.999, 1e-8) },
        AdamOp { skip_update: Some(given([1], [0.0]).of(DType::Bool)), ..adam(0.9, 0.999, 1e-8) },
        AdamOp { skip_update: Some(uniform([1])), ..adam(0.9, 0.999, 1e-8) }
            .fails("`SkipUpdate`: bool is needed"),
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
        skip_update: None,
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

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019): the step of `adam` from
/// `(1 - learning_rate * lr_ratio * coeff) * param`, or from `param` without `with_decay`.
#[register_op(grad = NoGrad, infallible, elementwise_update)]
pub struct AdamwOp<V = Var> {
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
    /// One bool: whether to leave everything as it is; no if absent.
    #[input]
    pub skip_update: Option<V>,
    /// One element in place of the attribute `beta1`.
    #[input]
    pub beta1_tensor: Option<V>,
    /// One element in place of the attribute `beta2`.
    #[input]
    pub beta2_tensor: Option<V>,
    /// One element in place of the attribute `epsilon`.
    #[input]
    pub epsilon_tensor: Option<V>,
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
    /// With a sparse gradient, update only the moments and steps of the rows that it holds; all rows decay.
    #[attr(default = false)]
    pub lazy_mode: bool,
    /// Factor of the weight decay alone, as in the reference's kernel for CPUs.
    #[attr(default = 1.0)]
    pub lr_ratio: f32,
    /// Coefficient of the weight decay.
    #[attr(default = 0.01)]
    pub coeff: f32,
    /// Decay the parameter.
    #[attr(default = false)]
    pub with_decay: bool,
}
impl Infer for AdamwOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        same_as_param(&self.param, [&self.grad, &self.moment1, &self.moment2])?;
        scalars_of_param(&self.param, [&self.learning_rate, &self.beta1_pow, &self.beta2_pow])?;
        skip_rule(&self.skip_update)?;
        for number in [&self.beta1_tensor, &self.beta2_tensor, &self.epsilon_tensor].into_iter().flatten() {
            number.float()?;
            number.one_element()?;
        }
        for out in [&mut self.param_out, &mut self.moment1_out, &mut self.moment2_out] {
            out.like(&self.param);
        }
        self.beta1_pow_out.like(&self.beta1_pow);
        self.beta2_pow_out.like(&self.beta2_pow);
        Ok(())
    }
}
impl Kernel for AdamwOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let beta1 = number_or(&self.beta1_tensor, self.beta1)?;
        let beta2 = number_or(&self.beta2_tensor, self.beta2)?;
        let epsilon = number_or(&self.epsilon_tensor, self.epsilon)?;
        with_float!(self.param, T => {
            let m = self.moment1_out.inout::<T>(&self.moment1)?.copied();
            let v = self.moment2_out.inout(&self.moment2)?.copied();
            let param = self.param_out.inout(&self.param)?.copied();
            let (pow1, pow2) = (self.beta1_pow_out.inout(&self.beta1_pow)?, self.beta2_pow_out.inout(&self.beta2_pow)?);
            if is_skipped(&self.skip_update)? {
                pow1.copied();
                pow2.copied();
                return Ok(());
            }
            let beta = [beta1, beta2].map(T::of);
            let powers = [advance(pow1, beta[0]), advance(pow2, beta[1])];
            let rate = one::<T>(&self.learning_rate)?;
            let decay = rate * T::of(self.lr_ratio.into()) * T::of(self.coeff.into());
            let keep = if self.with_decay { 1.0 - decay } else { 1.0 };
            let rates = AdamRates { keep, ..AdamRates::new(rate, beta, powers, epsilon) };
            rates.step(cx, &self.grad, [param, m, v], self.lazy_mode)
        })
    }
}

impl Composition for AdamwOp<Expr> {
    fn compose(&mut self) {
        let rate = number(&self.learning_rate, &self.param);
        let number_or = |slot: &Option<Expr>, attr: f32| match slot {
            Some(slot) => in_dtype(&number(slot, &self.param), rate.dtype()),
            None => like(&rate, attr.into()),
        };
        let beta1 = number_or(&self.beta1_tensor, self.beta1);
        let beta2 = number_or(&self.beta2_tensor, self.beta2);
        let epsilon = number_or(&self.epsilon_tensor, self.epsilon);
        let decay = &rate * (f64::from(self.lr_ratio) * f64::from(self.coeff));
        let param = if self.with_decay { &self.param * (1.0 - decay) } else { self.param.clone() };
        let powers = [&self.beta1_pow, &self.beta2_pow].map(|power| number(power, &self.param));
        let rates = AdamExprs { rate, beta: [&beta1, &beta2], powers, epsilon };
        let [param, m, v] = rates.step(&self.grad, [&param, &self.moment1, &self.moment2]);
        let skip = &self.skip_update;
        self.param_out = unless(skip, &self.param, param);
        self.moment1_out = unless(skip, &self.moment1, m);
        self.moment2_out = unless(skip, &self.moment2, v);
        self.beta1_pow_out = unless(skip, &self.beta1_pow, next_power(&self.beta1_pow, &beta1));
        self.beta2_pow_out = unless(skip, &self.beta2_pow, next_power(&self.beta2_pow, &beta2));
    }
}

/// The element of a slot, or the attribute if it is absent.
fn number_or(slot: &Option<Buf<'_>>, attr: f32) -> Result<f64> {
    match slot {
        Some(slot) => with_float!(slot, T => one::<T>(slot).map(wide)),
        None => Ok(attr.into()),
    }
}
autobwd::samples!(
    AdamwOp,
    [
        adamw(true),
        AdamwOp { coeff: 0.5, lr_ratio: 0.25, beta1: 0.5, beta2: 0.75, epsilon: 0.1, ..adamw(true) },
        AdamwOp { lazy_mode: true, learning_rate: positive([]), ..adamw(false) },
        AdamwOp { skip_update: Some(given([1], [1.0]).of(DType::Bool)), ..adamw(true) },
        AdamwOp { skip_update: Some(given([1], [0.0]).of(DType::Bool)), ..adamw(true) },
        AdamwOp {
            beta1_tensor: Some(given([1], [0.25])),
            beta2_tensor: Some(given([1], [0.5]).of(DType::F32)),
            epsilon_tensor: Some(given([], [0.125])),
            ..adamw(true)
        },
        AdamwOp { moment1: uniform([3]), ..adamw(true) }.fails("`Moment1`: shape [3]"),
        AdamwOp { beta2_pow: uniform([2]), ..adamw(true) }.fails("`Beta2Pow`: one element"),
        AdamwOp { skip_update: Some(uniform([1])), ..adamw(true) }.fails("`SkipUpdate`: bool is needed"),
        AdamwOp { skip_update: Some(integers_below(2, [2]).of(DType::Bool)), ..adamw(true) }
            .fails("`SkipUpdate`: one element"),
        AdamwOp { beta1_tensor: Some(integers_below(2, [1])), ..adamw(true) }
            .fails("`Beta1Tensor`: floating point numbers are needed"),
        AdamwOp { epsilon_tensor: Some(uniform([2])), ..adamw(true) }.fails("`EpsilonTensor`: one element"),
        AdamwOp { beta2: 1.0, ..adamw(true) }.fails("attribute `beta2`"),
    ]
);

fn adamw(with_decay: bool) -> AdamwOp<Draw> {
    AdamwOp {
        param: uniform([2, 3]),
        grad: uniform([2, 3]),
        learning_rate: positive([1]),
        moment1: uniform([2, 3]),
        moment2: positive([2, 3]),
        beta1_pow: between(0.1, 0.9, [1]),
        beta2_pow: between(0.1, 0.9, [1]),
        skip_update: None,
        beta1_tensor: None,
        beta2_tensor: None,
        epsilon_tensor: None,
        param_out: out(),
        moment1_out: out(),
        moment2_out: out(),
        beta1_pow_out: out(),
        beta2_pow_out: out(),
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        lazy_mode: false,
        lr_ratio: 1.0,
        coeff: 0.01,
        with_decay,
    }
}
