//! Updates of parameters that are not formulas.

use autobwd::{Error, ErrorKind, Result, program::Var};
use autobwd_ops::update::{AdamOp, AdamwOp, RmspropOp};

use super::{
    Lower, LowerRule,
    onnx_graph::{OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    vec![rule::<AdamOp>(), rule::<AdamwOp>(), rule::<RmspropOp>()]
}

/// The variables of Adam, before and after a step.
struct AdamVars {
    grad: Var,
    rate: Var,
    param: [Var; 2],
    moments: [[Var; 2]; 2],
    powers: [[Var; 2]; 2],
}

impl AdamVars {
    /// A step, in the order of the kernel: `param = keep * param − rate * m / (√v + epsilon)`, where the powers of the
    /// decays correct `rate` and `epsilon`.
    fn step(
        &self,
        graph: &mut OnnxGraph<'_>,
        beta: [f32; 2],
        epsilon: f32,
        decay: Option<f32>,
    ) -> Result<()> {
        let dtype = graph.dtype(self.param[0])?;
        let number = |graph: &mut OnnxGraph<'_>, x: f32| graph.scalar(dtype, f64::from(x));
        let (one, grad, rate) = (number(graph, 1.0)?, graph.read(self.grad)?, graph.read(self.rate)?);
        let mut moments = [grad; 2];
        let mut corrections = [grad; 2];
        for i in 0..2 {
            let beta = number(graph, beta[i])?;
            let ([old, new], [before, after]) = (self.moments[i], self.powers[i]);
            let (old, rest) = (graph.read(old)?, graph.sub(one, beta));
            let (old, mut added) = (graph.mul(beta, old), graph.mul(rest, grad));
            if i == 1 {
                added = graph.mul(added, grad);
            }
            moments[i] = graph.add(old, added);
            graph.write(new, moments[i]);
            let power = graph.read(before)?;
            corrections[i] = graph.sub(one, power);
            let next = graph.mul(power, beta);
            graph.write(after, next);
        }
        let root = graph.op("Sqrt", &[corrections[1]], &[]);
        let (scaled, epsilon) = (graph.mul(rate, root), number(graph, epsilon)?);
        let (scaled, epsilon) = (graph.div(scaled, corrections[0]), graph.mul(epsilon, root));
        let divisor = graph.op("Sqrt", &[moments[1]], &[]);
        let divisor = graph.add(divisor, epsilon);
        let change = graph.div(moments[0], divisor);
        let change = graph.mul(scaled, change);
        let mut param = graph.read(self.param[0])?;
        if let Some(decay) = decay {
            let decay = number(graph, decay)?;
            let decay = graph.mul(rate, decay);
            let keep = graph.sub(one, decay);
            param = graph.mul(keep, param);
        }
        let param: OnnxValue = graph.sub(param, change);
        graph.write(self.param[1], param);
        Ok(())
    }
}

macro_rules! adam_vars {
    ($op:expr) => {
        AdamVars {
            grad: $op.grad,
            rate: $op.learning_rate,
            param: [$op.param, $op.param_out],
            moments: [[$op.moment1, $op.moment1_out], [$op.moment2, $op.moment2_out]],
            powers: [[$op.beta1_pow, $op.beta1_pow_out], [$op.beta2_pow, $op.beta2_pow_out]],
        }
    };
}

impl Lower for AdamOp {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        adam_vars!(self).step(graph, [self.beta1, self.beta2], self.epsilon, None)
    }
}
impl Lower for AdamwOp {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let given = [self.skip_update, self.beta1_tensor, self.beta2_tensor, self.epsilon_tensor];
        if given.iter().any(Option::is_some) {
            return Err(Error::new(
                ErrorKind::Format,
                "numbers from tensors, not attributes, have no form in ONNX",
            ));
        }
        let decay = self.with_decay.then_some(self.lr_ratio * self.coeff);
        adam_vars!(self).step(graph, [self.beta1, self.beta2], self.epsilon, decay)
    }
}

impl Lower for RmspropOp {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let dtype = graph.dtype(self.param)?;
        let number = |graph: &mut OnnxGraph<'_>, x: f32| graph.scalar(dtype, f64::from(x));
        let (grad, rate, param) =
            (graph.read(self.grad)?, graph.read(self.learning_rate)?, graph.read(self.param)?);
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
