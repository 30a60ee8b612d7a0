//! Steps of optimizers whose formulas the library does not declare as such.

use autobwd_ops::update::{AdamOp, AdamwOp, LambOp, LarsMomentumOp, RmspropOp};

use super::prelude::*;

family!(AdamOp, AdamwOp, LambOp, LarsMomentumOp, RmspropOp);

/// The numbers of a step of Adam, as scalars.
struct AdamScalars {
    beta: [Hlo; 2],
    /// Of the next step.
    powers: [Hlo; 2],
    rate: Hlo,
    epsilon: Hlo,
}

impl AdamScalars {
    fn of(rate: &Hlo, beta: [Hlo; 2], powers: [&Hlo; 2], epsilon: &Hlo) -> AdamScalars {
        let powers = powers.map(|power| power.reshape(&[]));
        let root = (-&powers[1] + 1.0).sqrt();
        let rate = rate.reshape(&[]) * &root / (-&powers[0] + 1.0);
        let powers = [&powers[0] * &beta[0], &powers[1] * &beta[1]];
        AdamScalars { beta, rate, epsilon: epsilon * root, powers }
    }

    /// The parameter, multiplied by `keep`, and both moments after the step.
    fn step(&self, [param, grad, m, v]: [&Hlo; 4], keep: &Hlo) -> [Hlo; 3] {
        let AdamScalars { beta: [beta1, beta2], rate, epsilon, .. } = self;
        let m = m * beta1 + grad * (-beta1 + 1.0);
        let v = v * beta2 + grad.square() * (-beta2 + 1.0);
        let change = &m / (v.sqrt() + epsilon) * rate;
        [param * keep - change, m, v]
    }
}

impl Lower for AdamOp<Hlo> {
    fn lower(&mut self) {
        let scalar = |x: f32| self.param.scalar(f64::from(x));
        let (beta, epsilon) = ([scalar(self.beta1), scalar(self.beta2)], scalar(self.epsilon));
        let rates = AdamScalars::of(&self.learning_rate, beta, [&self.beta1_pow, &self.beta2_pow], &epsilon);
        let state = [&self.param, &self.grad, &self.moment1, &self.moment2];
        [self.param_out, self.moment1_out, self.moment2_out] = rates.step(state, &scalar(1.0));
        [self.beta1_pow_out, self.beta2_pow_out] = rates.powers;
    }
}

impl Lower for AdamwOp<Hlo> {
    fn lower(&mut self) {
        let param = self.param.clone();
        let number = |tensor: &Option<Hlo>, attr: f32| match tensor {
            Some(tensor) => tensor.reshape(&[]).convert(param.dtype()),
            None => param.scalar(f64::from(attr)),
        };
        let beta = [number(&self.beta1_tensor, self.beta1), number(&self.beta2_tensor, self.beta2)];
        let epsilon = number(&self.epsilon_tensor, self.epsilon);
        let rates = AdamScalars::of(&self.learning_rate, beta, [&self.beta1_pow, &self.beta2_pow], &epsilon);
        let decay = self.learning_rate.reshape(&[]) * f64::from(self.lr_ratio) * f64::from(self.coeff);
        let keep = if self.with_decay { -decay + 1.0 } else { param.scalar(1.0) };
        let [param, m, v] = rates.step([&self.param, &self.grad, &self.moment1, &self.moment2], &keep);
        let [pow1, pow2] = rates.powers;
        let skip = self.skip_update.as_ref().map(|skip| skip.reduce_all(Reduction::Any));
        let unless_skipped = |after: Hlo, before: &Hlo| match &skip {
            Some(skip) => skip.select(before, &after.reshape(before.dims())),
            None => after,
        };
        self.param_out = unless_skipped(param, &self.param);
        self.moment1_out = unless_skipped(m, &self.moment1);
        self.moment2_out = unless_skipped(v, &self.moment2);
        self.beta1_pow_out = unless_skipped(pow1, &self.beta1_pow);
        self.beta2_pow_out = unless_skipped(pow2, &self.beta2_pow);
    }
}

impl Lower for RmspropOp<Hlo> {
    fn lower(&mut self) {
        let decay = self.param.scalar(f64::from(self.decay));
        let mean = |mean: &Hlo, x: &Hlo| mean * &decay + x * (-&decay + 1.0);
        let square = mean(&self.mean_square, &self.grad.square());
        let mean_grad = self.mean_grad.clone().unwrap_or_else(|| self.param.full_like(0.0));
        let mean_grad = if self.centered { mean(&mean_grad, &self.grad) } else { mean_grad };
        let variance = if self.centered { &square - mean_grad.square() } else { square.clone() };
        let change =
            self.learning_rate.reshape(&[]) * &self.grad / (variance + f64::from(self.epsilon)).sqrt();
        let moment = &self.moment * f64::from(self.momentum) + change;
        self.param_out = &self.param - &moment;
        (self.moment_out, self.mean_square_out, self.mean_grad_out) = (moment, square, mean_grad);
    }
}

impl Lower for LambOp<Hlo> {
    fn lower(&mut self) {
        let scalar = |x: f32| self.param.scalar(f64::from(x));
        let (beta1, beta2) = (scalar(self.beta1), scalar(self.beta2));
        let (pow1, pow2) = (self.beta1_pow.reshape(&[]), self.beta2_pow.reshape(&[]));
        let m = &self.moment1 * &beta1 + &self.grad * (-&beta1 + 1.0);
        let v = &self.moment2 * &beta2 + self.grad.square() * (-&beta2 + 1.0);
        let root = (&v / (-&pow2 + 1.0)).sqrt() + f64::from(self.epsilon);
        let step = &m / (-&pow1 + 1.0) / root + &self.param * f64::from(self.weight_decay);
        let mut rate = self.learning_rate.reshape(&[]);
        if self.weight_decay > 0.0 || self.always_adapt {
            let [whole, change] = [&self.param, &step].map(|x| x.square().sum_all().sqrt());
            rate = rate * positive_ratio(&whole, &change, &[&whole, &change]);
        }
        let param = &self.param - &step * rate;
        let skip = self.skip_update.as_ref().map(|skip| skip.reduce_all(Reduction::Any));
        let unless_skipped = |after: Hlo, before: &Hlo| match &skip {
            Some(skip) => skip.select(before, &after.reshape(before.dims())),
            None => after,
        };
        self.param_out = unless_skipped(param, &self.param);
        self.moment1_out = unless_skipped(m, &self.moment1);
        self.moment2_out = unless_skipped(v, &self.moment2);
        self.beta1_pow_out = unless_skipped(pow1 * beta1, &self.beta1_pow);
        self.beta2_pow_out = unless_skipped(pow2 * beta2, &self.beta2_pow);
        self.step = step;
    }
}

/// `x / y` where all of `positive` are, else 1.
fn positive_ratio(x: &Hlo, y: &Hlo, positive: &[&Hlo]) -> Hlo {
    let one = x.full_like(1.0);
    let zero = x.full_like(0.0);
    positive.iter().fold(x / y, |ratio, norm| norm.greater(&zero).select(&ratio, &one))
}

impl Lower for LarsMomentumOp<Hlo> {
    fn lower(&mut self) {
        for i in 0..self.param.len() {
            let (param, grad, velocity) = (&self.param[i], &self.grad[i], &self.velocity[i]);
            let decay = self.lars_weight_decay.get(i).map_or(0.0, |decay| f64::from(*decay));
            let rescale = f64::from(self.rescale_grad);
            let mut rate = self.learning_rate[i].reshape(&[]);
            if decay > 0.0 {
                let whole = param.square().sum_all().sqrt();
                let change = grad.square().sum_all().sqrt() * rescale.abs();
                let divisor = &change + &whole * decay + f64::from(self.epsilon);
                let local = &whole * f64::from(self.lars_coeff);
                rate = rate * positive_ratio(&local, &divisor, &[&whole, &change]);
            }
            let velocity = velocity * f64::from(self.mu) + (grad * rescale + param * decay) * rate;
            self.param_out[i] = param - &velocity;
            self.velocity_out[i] = velocity;
        }
    }
}
