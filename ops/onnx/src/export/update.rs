//! Updates of parameters that are not formulas.

use autobwd::{DType, Error, Result, program::Var};
use autobwd_ops::update::{AdamOp, AdamwOp, LambOp, LarsMomentumOp, RmspropOp};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<AdamOp>(), rule::<AdamwOp>(), rule::<LambOp>(), rule::<LarsMomentumOp>(), rule::<RmspropOp>()]
}

/// The variables of Adam, before and after a step.
struct AdamVars {
    grad: Var,
    rate: Var,
    param: [Var; 2],
    moments: [[Var; 2]; 2],
    powers: [[Var; 2]; 2],
    /// Whether to leave everything as it is.
    skip: Option<Var>,
}

/// Moments, and 1 minus the powers of their decays.
struct AdamMoments {
    moments: [OnnxValue; 2],
    corrections: [OnnxValue; 2],
}

/// One element as a scalar.
fn element(graph: &mut OnnxGraph<'_>, var: Var) -> Result<OnnxValue> {
    let value = graph.read(var)?;
    if graph.rank(var)? == 0 { Ok(value) } else { graph.reshape(value, &[]) }
}

impl AdamVars {
    fn number(&self, graph: &mut OnnxGraph<'_>, x: f32) -> Result<OnnxValue> {
        graph.scalar(graph.dtype(self.param[0])?, f64::from(x))
    }

    /// Sets a variable, unless the step is skipped.
    fn write(&self, graph: &mut OnnxGraph<'_>, [before, after]: [Var; 2], value: OnnxValue) -> Result<()> {
        let Some(skip) = self.skip else {
            graph.write(after, value);
            return Ok(());
        };
        let (skip, before) = (element(graph, skip)?, graph.read(before)?);
        let skip = graph.cast(skip, DType::Bool);
        let value = graph.op("Where", &[skip, before, value], &[]);
        graph.write(after, value);
        Ok(())
    }

    /// `moment = beta * moment + (1 − beta) * grad`, and that of the squares.
    fn advance(&self, graph: &mut OnnxGraph<'_>, beta: [OnnxValue; 2]) -> Result<AdamMoments> {
        let (one, grad) = (self.number(graph, 1.0)?, graph.read(self.grad)?);
        let (mut moments, mut corrections) = ([grad; 2], [grad; 2]);
        for i in 0..2 {
            let (old, rest) = (graph.read(self.moments[i][0])?, graph.sub(one, beta[i]));
            let (old, mut added) = (graph.mul(beta[i], old), graph.mul(rest, grad));
            if i == 1 {
                added = graph.mul(added, grad);
            }
            moments[i] = graph.add(old, added);
            self.write(graph, self.moments[i], moments[i])?;
            let power = graph.read(self.powers[i][0])?;
            let next = graph.mul(power, beta[i]);
            self.write(graph, self.powers[i], next)?;
            let power = element(graph, self.powers[i][0])?;
            corrections[i] = graph.sub(one, power);
        }
        Ok(AdamMoments { moments, corrections })
    }

    /// A step, in the order of the kernel: `param = keep * param − rate * m / (√v + epsilon)`, where the powers of the
    /// decays correct `rate` and `epsilon`.
    fn step(
        &self,
        graph: &mut OnnxGraph<'_>,
        beta: [OnnxValue; 2],
        epsilon: OnnxValue,
        decay: Option<f32>,
    ) -> Result<()> {
        let (one, rate) = (self.number(graph, 1.0)?, element(graph, self.rate)?);
        let AdamMoments { moments, corrections } = self.advance(graph, beta)?;
        let root = graph.op("Sqrt", &[corrections[1]], &[]);
        let (scaled, epsilon) = (graph.mul(rate, root), graph.mul(epsilon, root));
        let scaled = graph.div(scaled, corrections[0]);
        let divisor = graph.op("Sqrt", &[moments[1]], &[]);
        let divisor = graph.add(divisor, epsilon);
        let change = graph.div(moments[0], divisor);
        let change = graph.mul(scaled, change);
        let mut param = graph.read(self.param[0])?;
        if let Some(decay) = decay {
            let decay = self.number(graph, decay)?;
            let decay = graph.mul(rate, decay);
            let keep = graph.sub(one, decay);
            param = graph.mul(keep, param);
        }
        let param = graph.sub(param, change);
        self.write(graph, self.param, param)
    }
}

macro_rules! adam_vars {
    ($op:expr, $skip:expr) => {
        AdamVars {
            grad: $op.grad,
            rate: $op.learning_rate,
            param: [$op.param, $op.param_out],
            moments: [[$op.moment1, $op.moment1_out], [$op.moment2, $op.moment2_out]],
            powers: [[$op.beta1_pow, $op.beta1_pow_out], [$op.beta2_pow, $op.beta2_pow_out]],
            skip: $skip,
        }
    };
}

impl ExportOp for AdamOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let vars = adam_vars!(self, None);
        let beta = [vars.number(graph, self.beta1)?, vars.number(graph, self.beta2)?];
        let epsilon = vars.number(graph, self.epsilon)?;
        vars.step(graph, beta, epsilon, None)
    }
}
impl ExportOp for AdamwOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (vars, dtype) = (adam_vars!(self, self.skip_update), graph.dtype(self.param)?);
        // Tensors replace attributes.
        let mut number = |tensor: Option<Var>, attribute: f32| match tensor {
            None => vars.number(graph, attribute),
            Some(tensor) => {
                let value = element(graph, tensor)?;
                Ok(graph.cast(value, dtype))
            }
        };
        let beta = [number(self.beta1_tensor, self.beta1)?, number(self.beta2_tensor, self.beta2)?];
        let epsilon = number(self.epsilon_tensor, self.epsilon)?;
        let decay = self.with_decay.then_some(self.lr_ratio * self.coeff);
        vars.step(graph, beta, epsilon, decay)
    }
}

/// The root of the sum of squares of all elements.
fn norm(graph: &mut OnnxGraph<'_>, x: OnnxValue) -> Result<OnnxValue> {
    let square = graph.mul(x, x);
    let sum = graph.op("ReduceSum", &[square], &[("keepdims", NodeAttr::Int(0))]);
    Ok(graph.op("Sqrt", &[sum], &[]))
}

/// `factor` where both norms are above 0, else 1.
fn unless_zero(
    graph: &mut OnnxGraph<'_>,
    norms: [OnnxValue; 2],
    factor: OnnxValue,
    dtype: DType,
) -> Result<OnnxValue> {
    let [zero, one] = [graph.scalar(dtype, 0.0)?, graph.scalar(dtype, 1.0)?];
    let above = norms.map(|norm| graph.op("Greater", &[norm, zero], &[]));
    let both = graph.op("And", &above, &[]);
    Ok(graph.op("Where", &[both, factor, one], &[]))
}

impl ExportOp for LambOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (vars, dtype) = (adam_vars!(self, self.skip_update), graph.dtype(self.param)?);
        let beta = [vars.number(graph, self.beta1)?, vars.number(graph, self.beta2)?];
        let AdamMoments { moments, corrections } = vars.advance(graph, beta)?;
        let corrected = [0, 1].map(|i| graph.div(moments[i], corrections[i]));
        let (root, epsilon) = (graph.op("Sqrt", &[corrected[1]], &[]), vars.number(graph, self.epsilon)?);
        let divisor = graph.add(root, epsilon);
        let (change, decay) = (graph.div(corrected[0], divisor), vars.number(graph, self.weight_decay)?);
        let param = graph.read(self.param)?;
        let decayed = graph.mul(decay, param);
        let change = graph.add(change, decayed);
        let mut rate = element(graph, self.learning_rate)?;
        if self.weight_decay > 0.0 || self.always_adapt {
            let norms = [norm(graph, param)?, norm(graph, change)?];
            let ratio = graph.div(norms[0], norms[1]);
            let ratio = unless_zero(graph, norms, ratio, dtype)?;
            rate = graph.mul(rate, ratio);
        }
        let change = graph.mul(rate, change);
        let after = graph.sub(param, change);
        vars.write(graph, vars.param, after)
    }
}

impl ExportOp for LarsMomentumOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        for (i, param_out) in self.param_out.iter().enumerate() {
            let (dtype, decay) = (graph.dtype(self.param[i])?, self.lars_weight_decay[i]);
            let number = |graph: &mut OnnxGraph<'_>, x: f32| graph.scalar(dtype, f64::from(x));
            let (param, velocity) = (graph.read(self.param[i])?, graph.read(self.velocity[i])?);
            let (grad, rescale) = (graph.read(self.grad[i])?, number(graph, self.rescale_grad)?);
            let grad = graph.mul(rescale, grad);
            let (mut rate, of_decay) = (element(graph, self.learning_rate[i])?, number(graph, decay)?);
            if decay > 0.0 {
                let norms = [norm(graph, param)?, norm(graph, grad)?];
                let decayed = graph.mul(of_decay, norms[0]);
                let (sum, epsilon) = (graph.add(norms[1], decayed), number(graph, self.epsilon)?);
                let (divisor, factor) = (graph.add(sum, epsilon), number(graph, self.lars_coeff)?);
                let scaled = graph.mul(factor, norms[0]);
                let ratio = graph.div(scaled, divisor);
                let ratio = unless_zero(graph, norms, ratio, dtype)?;
                rate = graph.mul(rate, ratio);
            }
            let decayed = graph.mul(of_decay, param);
            let (sum, decay) = (graph.add(grad, decayed), number(graph, self.mu)?);
            let (kept, change) = (graph.mul(decay, velocity), graph.mul(rate, sum));
            let velocity = graph.add(kept, change);
            let after = graph.sub(param, velocity);
            graph.write(self.velocity_out[i], velocity);
            graph.write(*param_out, after);
        }
        Ok(())
    }
}

impl ExportOp for RmspropOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let dtype = graph.dtype(self.param)?;
        let number = |graph: &mut OnnxGraph<'_>, x: f32| graph.scalar(dtype, f64::from(x));
        let (grad, rate, param) =
            (graph.read(self.grad)?, element(graph, self.learning_rate)?, graph.read(self.param)?);
        let (decay, one) = (number(graph, self.decay)?, number(graph, 1.0)?);
        let rest = graph.sub(one, decay);
        let mean = |graph: &mut OnnxGraph<'_>, old: Var, x: OnnxValue| {
            let old = graph.read(old)?;
            let (old, added) = (graph.mul(decay, old), graph.mul(rest, x));
            Ok::<_, Error>(graph.add(old, added))
        };
        let square = graph.mul(grad, grad);
        let mean_square = mean(graph, self.mean_square, square)?;
        let mut spread = mean_square;
        if let Some(mean_grad) = self.mean_grad {
            let mut value = graph.read(mean_grad)?;
            if self.centered {
                value = mean(graph, mean_grad, grad)?;
                let square = graph.mul(value, value);
                spread = graph.sub(spread, square);
            }
            graph.write(self.mean_grad_out, value);
        } else {
            let dims = graph.run_dims(self.param)?;
            let zeros = graph.filled_to(dtype, 0.0, &dims)?;
            graph.write(self.mean_grad_out, zeros);
        }
        let epsilon = number(graph, self.epsilon)?;
        let spread = graph.add(spread, epsilon);
        let (root, scaled) = (graph.op("Sqrt", &[spread], &[]), graph.mul(rate, grad));
        let change = graph.div(scaled, root);
        let (momentum, moment) = (number(graph, self.momentum)?, graph.read(self.moment)?);
        let kept = graph.mul(momentum, moment);
        let moment = graph.add(kept, change);
        let param = graph.sub(param, moment);
        graph.write(self.mean_square_out, mean_square);
        graph.write(self.moment_out, moment);
        graph.write(self.param_out, param);
        Ok(())
    }
}
