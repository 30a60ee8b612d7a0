//! Losses, and the updates of optimizers.

use autobwd::{DType, Expr, New, Result, emit};
use autobwd_ops::{Math, scatter::TakeAlongAxis};

use super::{
    arith::{int_like, scalar},
    node::{NodeContext, Outputs, all, one, refuse},
    rules::{Native, NodeRules},
};

pub(super) const RULES: NodeRules = &[
    ("NegativeLogLikelihoodLoss", Native, negative_log_likelihood),
    ("SoftmaxCrossEntropyLoss", Native, softmax_cross_entropy),
    ("ai.onnx.preview.training:Adagrad", Native, adagrad),
    ("ai.onnx.preview.training:Momentum", Native, momentum),
    ("ai.onnx.preview.training:Adam", Native, adam),
];

fn negative_log_likelihood(n: &mut NodeContext<'_, '_>) -> Outputs {
    let x = n.input(0)?;
    one(likelihood(n, &x)?)
}

fn softmax_cross_entropy(n: &mut NodeContext<'_, '_>) -> Outputs {
    let logarithms = n.input(0)?.log_softmax(1);
    let loss = likelihood(n, &logarithms)?;
    if n.output_count() < 2 { one(loss) } else { all([loss, logarithms]) }
}

/// `-weight[label] · x[label]`, reduced; classes are along dimension 1.
fn likelihood(n: &mut NodeContext<'_, '_>, x: &Expr) -> Result<Expr> {
    let reduction = n.text_or("reduction", "mean")?;
    let ignored = n.int("ignore_index")?;
    let labels = n.input(1)?;
    let weights = n.optional(2)?;
    let kept = ignored.map(|ignored| labels.not_equal(&int_like(&labels, ignored)));
    // Ignored labels may be out of range: they look up class 0.
    let place = kept.as_ref().map_or(labels.clone(), |kept| &labels * &kept.cast(labels.dtype()));
    let index = place.unsqueeze(&[1]);
    let op = TakeAlongAxis { input: x.into(), index: (&index).into(), result: New, axis: 1 };
    let chosen = emit(op).result.squeeze(&[1]);
    let mask = kept.map(|kept| kept.cast(x.dtype()));
    let weight = match (weights, mask) {
        (Some(weights), mask) => {
            let flat = weights.index_select(&super::arith::reshape(&place, &[-1]), 0);
            let dims: Vec<i64> = place.dims().iter().map(|dim| dim.get().map_or(-1, |n| n as i64)).collect();
            let weight = super::arith::reshape(&flat, &dims);
            Some(mask.map_or(weight.clone(), |mask| &weight * &mask))
        }
        (None, mask) => mask,
    };
    let loss = weight.as_ref().map_or(&chosen * -1.0, |weight| &(&chosen * weight) * -1.0);
    Ok(match reduction {
        "none" => loss,
        "sum" => loss.sum(&[]),
        "mean" => match weight {
            Some(weight) => loss.sum(&[]) / weight.sum(&[]),
            None => loss.mean(),
        },
        other => {
            return Err(refuse(format!(
                "attribute `reduction` = `{other}` of operator `{}` is not supported",
                n.op()
            )));
        }
    })
}

/// The inputs of an update of several tensors: rate, step, and `kinds` values of each tensor.
fn updated(n: &mut NodeContext<'_, '_>, kinds: usize) -> Result<(Expr, Expr, Vec<Vec<Expr>>)> {
    let (rate, step) = (n.input(0)?, n.input(1)?);
    let count = n.input_count().saturating_sub(2) / kinds;
    let tensors = (0..count).map(|i| (0..kinds).map(|kind| n.input(2 + kind * count + i)).collect());
    Ok((rate, step, tensors.collect::<Result<_>>()?))
}

/// Outputs are grouped by kind.
fn grouped(updates: Vec<Vec<Expr>>) -> Outputs {
    let kinds = updates.first().map_or(0, Vec::len);
    all((0..kinds).flat_map(|kind| updates.iter().map(move |update| update[kind].clone())))
}

fn adagrad(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (decay, epsilon) =
        (f64::from(n.float_or("decay_factor", 0.0)?), f64::from(n.float_or("epsilon", 0.0)?));
    let norm = f64::from(n.float_or("norm_coefficient", 0.0)?);
    let (rate, step, tensors) = updated(n, 3)?;
    let rate = &rate / &(&step.cast(rate.dtype()) * decay + 1.0);
    let update = |x: Vec<Expr>| {
        let [x, gradient, squares] = &x[..] else { return vec![] };
        let gradient = &(x * norm) + gradient;
        let squares = squares + &gradient.square();
        let adaptive = &squares.sqrt() + epsilon;
        vec![x - &(&(&rate * &gradient) / &adaptive), squares]
    };
    grouped(tensors.into_iter().map(update).collect())
}

fn momentum(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (alpha, beta) = (f64::from(n.float_or("alpha", 0.0)?), f64::from(n.float_or("beta", 0.0)?));
    let norm = f64::from(n.float_or("norm_coefficient", 0.0)?);
    let nesterov = match n.text_or("mode", "standard")? {
        "standard" => false,
        "nesterov" => true,
        other => {
            return Err(refuse(format!(
                "attribute `mode` = `{other}` of operator `Momentum` is not supported"
            )));
        }
    };
    let (rate, step, tensors) = updated(n, 3)?;
    // The first step does not damp the gradient.
    let later = step.greater_than(&int_like(&step, 0)).cast(rate.dtype());
    let beta = &later * (beta - 1.0) + 1.0;
    let update = |x: Vec<Expr>| {
        let [x, gradient, velocity] = &x[..] else { return vec![] };
        let gradient = &(x * norm) + gradient;
        let velocity = &(velocity * alpha) + &(&gradient * &beta);
        let direction = if nesterov { &gradient + &(&velocity * alpha) } else { velocity.clone() };
        vec![x - &(&rate * &direction), velocity]
    };
    grouped(tensors.into_iter().map(update).collect())
}

fn adam(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (alpha, beta) = (f64::from(n.float_or("alpha", 0.9)?), f64::from(n.float_or("beta", 0.999)?));
    let epsilon = f64::from(n.float_or("epsilon", 0.0)?);
    let (norm, norm_post) = (
        f64::from(n.float_or("norm_coefficient", 0.0)?),
        f64::from(n.float_or("norm_coefficient_post", 0.0)?),
    );
    let (rate, step, tensors) = updated(n, 4)?;
    let dtype = rate.dtype();
    // The first step is not corrected.
    let (count, later) = (
        step.maximum(&int_like(&step, 1)).cast(DType::F64),
        step.greater_than(&int_like(&step, 0)).cast(DType::F64),
    );
    let rest = |base: f64| {
        let power = scalar(&count, DType::F64, base).pow(&count);
        &(&power * -1.0) + 1.0
    };
    let correction = &rest(beta).sqrt() / &rest(alpha);
    let correction = (&(&later * &correction) + &(&later * -1.0 + 1.0)).cast(dtype);
    let rate = &rate * &correction;
    let update = |x: Vec<Expr>| {
        let [x, gradient, first, second] = &x[..] else { return vec![] };
        let gradient = &(x * norm) + gradient;
        let first = &(first * alpha) + &(&gradient * (1.0 - alpha));
        let second = &(second * beta) + &(&gradient.square() * (1.0 - beta));
        let moved = x - &(&(&rate * &first) / &(&second.sqrt() + epsilon));
        vec![moved * (1.0 - norm_post), first, second]
    };
    grouped(tensors.into_iter().map(update).collect())
}
