//! Normalisations.

use autobwd::{Expr, New, Result, emit};
use autobwd_ops::{
    Math,
    norm::{BatchNormOp, DataLayout, GroupNormOp, InstanceNormOp, LayerNormOp},
};

use super::{
    arith::{narrow_int, reshape},
    node::{NodeContext, NodeOutput, Outputs, all, one, refuse},
    rules::{Native, NodeRules},
    value::ValueContent,
};

pub(super) const RULES: NodeRules = &[
    ("BatchNormalization", Native, batch_norm),
    ("InstanceNormalization", Native, instance_norm),
    ("LayerNormalization", Native, layer_norm),
    ("RMSNormalization", Native, rms_norm),
    ("GroupNormalization", Native, group_norm),
    ("LRN", Native, local_response_norm),
    ("MeanVarianceNormalization", Native, mean_variance_norm),
];

/// A vector of channels, to be broadcast against `[n, channels, ..]`.
fn of_channels(x: &Expr, rank: usize) -> Expr {
    let dims: Vec<i64> = [1, -1].into_iter().chain((2..rank).map(|_| 1)).collect();
    reshape(x, &dims[..rank.max(2)])
}

fn batch_norm(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (epsilon, momentum) = (n.float_or("epsilon", 1e-5)?, n.float_or("momentum", 0.9)?);
    let training = n.flag("training_mode", false)?;
    if n.int_or("spatial", 1)? != 1 || (n.version() < 14 && n.wants(1)) {
        return Err(refuse("operator `BatchNormalization` in an old form is not supported"));
    }
    let rank = n.rank(0)?;
    // Values that the program keeps are updated in place when it is trained.
    let kept =
        (1..5).all(|i| n.value(i).is_some_and(|value| matches!(value.content, ValueContent::Known(_))));
    if kept && !training && rank >= 2 && n.scratch.is_none() {
        return kept_batch_norm(n, epsilon, momentum);
    }
    let (x, scale, bias) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (mean, variance) = (statistic(n, 3)?, statistic(n, 4)?);
    let axes: Vec<i32> = (0..rank as i32).filter(|axis| *axis != 1).collect();
    let (m, v) = match training {
        false => (mean.clone(), variance.clone()),
        true => {
            let m = x.mean_over(&axes);
            let v = (&x - &of_channels(&m, rank)).square().mean_over(&axes);
            (m, v)
        }
    };
    let factor = &scale / &(&v + f64::from(epsilon)).sqrt();
    let y = &(&(&x - &of_channels(&m, rank)) * &of_channels(&factor, rank)) + &of_channels(&bias, rank);
    if !training {
        return one(y);
    }
    let momentum = f64::from(momentum);
    let running = |old: &Expr, new: &Expr| old * momentum + new * (1.0 - momentum);
    all([y, running(&mean, &m), running(&variance, &v)])
}

fn kept_batch_norm(n: &mut NodeContext<'_, '_>, epsilon: f32, momentum: f32) -> Outputs {
    let (x, scale, bias) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (mean, variance) = (statistic(n, 3)?, statistic(n, 4)?);
    let op = emit(BatchNormOp {
        x: (&x).into(),
        scale: Some((&scale).into()),
        bias: Some((&bias).into()),
        mean: (&mean).into(),
        variance: (&variance).into(),
        y: New,
        mean_out: (&mean).into(),
        variance_out: (&variance).into(),
        saved_mean: New,
        saved_variance: New,
        reserve_space: None,
        momentum,
        epsilon,
        data_layout: DataLayout::Nchw,
        is_test: true,
        use_global_stats: false,
        trainable_statistics: false,
    });
    one(op.y)
}

/// A value that the program keeps and does not train.
fn statistic(n: &mut NodeContext<'_, '_>, i: usize) -> Result<Expr> {
    let value = n.required(i)?.clone();
    match value.content {
        ValueContent::Known(known) if n.scratch.is_none() => {
            n.importer.materialize_statistic(&value.name, &known)
        }
        _ => n.input(i),
    }
}

fn instance_norm(n: &mut NodeContext<'_, '_>) -> Outputs {
    let epsilon = n.float_or("epsilon", 1e-5)?;
    let (x, scale, bias) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (scale, bias) = (Some((&scale).into()), Some((&bias).into()));
    let op =
        InstanceNormOp { x: (&x).into(), scale, bias, y: New, saved_mean: New, saved_variance: New, epsilon };
    one(emit(op).y)
}

/// Mean and reciprocal deviation have size 1 from the axis on.
fn layer_norm(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (axis, epsilon) = (n.int_or("axis", -1)?, n.float_or("epsilon", 1e-5)?);
    n.ignore(&["stash_type"]);
    let axis = n.axis(0, axis)?;
    let x = n.input(0)?;
    let rank = x.dims().len();
    let row = x.dims()[axis..].iter().fold(autobwd::tensor::Dim::from(1), |all, dim| all * *dim);
    // A scale that broadcasts within a row is applied afterwards.
    let fits = |x: &Expr| x.dims().numel().get().is_some_and(|n| row.get() == Some(n));
    let (scale, bias) = (n.optional(1)?, n.optional(2)?);
    let whole = axis > 0 && scale.iter().chain(&bias).all(fits);
    let flat = |x: &Option<Expr>| {
        let x = x.as_ref().filter(|_| whole)?;
        Some(if x.dims().len() == 1 { x.clone() } else { reshape(x, &[-1]) })
    };
    let (flat_scale, flat_bias) = (flat(&scale), flat(&bias));
    let rows = if axis == 0 { x.unsqueeze(&[0]) } else { x.clone() };
    let op = emit(LayerNormOp {
        x: (&rows).into(),
        scale: flat_scale.as_ref().map(Into::into),
        bias: flat_bias.as_ref().map(Into::into),
        y: New,
        mean: New,
        variance: New,
        begin_norm_axis: axis.max(1) as i32,
        epsilon,
    });
    let mut y = if axis == 0 { op.y.squeeze(&[0]) } else { op.y };
    if !whole {
        y = scale.map_or(y.clone(), |scale| &y * &scale);
        y = bias.map_or(y.clone(), |bias| &y + &bias);
    }
    let mut outputs: Vec<NodeOutput> = vec![y.into()];
    if n.wants(1) || n.wants(2) {
        let wide = |x: &Expr| {
            let axes: Vec<i32> = (axis as i32..rank as i32).collect();
            let x = if axis == 0 { x.squeeze(&[0]) } else { x.clone() };
            x.unsqueeze(&axes)
        };
        outputs.push(wide(&op.mean).into());
        outputs.push((&wide(&op.variance) + f64::from(epsilon)).rsqrt().into());
    }
    Ok(outputs)
}

fn rms_norm(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (axis, epsilon) = (n.int_or("axis", -1)?, f64::from(n.float_or("epsilon", 1e-5)?));
    n.ignore(&["stash_type"]);
    let axis = n.axis(0, axis)?;
    let (x, scale) = (n.input(0)?, n.input(1)?);
    let axes: Vec<i32> = (axis as i32..x.dims().len() as i32).collect();
    let mean = x.square().mean_over(&axes).unsqueeze(&axes);
    one(&(&x * &(&mean + epsilon).rsqrt()) * &scale)
}

/// Before version 21, scale and bias are those of groups.
fn group_norm(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (epsilon, groups) = (n.float_or("epsilon", 1e-5)?, n.int_or("num_groups", 1)?);
    n.ignore(&["stash_type"]);
    let (x, scale, bias) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let channels = x.dims().get(1).and_then(|dim| dim.get()).map(|dim| dim as i64);
    let channels = channels.ok_or_else(|| refuse("operator `GroupNormalization` needs known channels"))?;
    if groups < 1 || channels % groups != 0 {
        return Err(refuse(format!(
            "attribute `num_groups` = {groups} of operator `GroupNormalization` is not supported"
        )));
    }
    let each = narrow_int(channels / groups)?;
    let per_channel = |x: &Expr| match n.version() {
        ..21 => reshape(&x.unsqueeze(&[1]).tile(&[1, each]), &[-1]),
        _ => x.clone(),
    };
    let (scale, bias) = (per_channel(&scale), per_channel(&bias));
    let op = GroupNormOp {
        x: (&x).into(),
        scale: Some((&scale).into()),
        bias: Some((&bias).into()),
        y: New,
        mean: New,
        variance: New,
        epsilon,
        groups: narrow_int(groups)?,
        data_layout: DataLayout::Nchw,
    };
    one(emit(op).y)
}

/// `x / (bias + alpha / size · Σ x²)^beta`, summed over neighbouring channels.
fn local_response_norm(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (alpha, beta) = (f64::from(n.float_or("alpha", 1e-4)?), f64::from(n.float_or("beta", 0.75)?));
    let (bias, size) = (f64::from(n.float_or("bias", 1.0)?), n.int_or("size", 0)?);
    if !(1..1 << 10).contains(&size) {
        return Err(refuse(format!("attribute `size` = {size} of operator `LRN` is not supported")));
    }
    let x = n.input(0)?;
    if x.dims().len() < 2 {
        return Err(refuse("operator `LRN` needs at least two dimensions"));
    }
    let before = (size - 1) / 2;
    let padded = super::pad::pad_constant(&x.square(), &[(1, before, size - 1 - before)], 0.0)?;
    let channels = x.dims().get(1).and_then(|dim| dim.get()).map(|dim| dim as i64);
    let channels = channels.ok_or_else(|| refuse("operator `LRN` needs known channels"))?;
    let terms = (0..size).map(|i| super::slice::slice_axis(&padded, 1, i, i + channels));
    let sum =
        terms.reduce(|sum, term| &sum + &term).ok_or_else(|| refuse("operator `LRN` without a size"))?;
    let base = &sum * (alpha / size as f64) + bias;
    one(&x / &base.pow(&super::arith::scalar_like(&base, beta)))
}

fn mean_variance_norm(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axes = n.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes = axes.iter().map(|axis| Ok(n.axis(0, *axis)? as i32)).collect::<Result<Vec<_>>>()?;
    let x = n.input(0)?;
    let mean = |x: &Expr| x.mean_over(&axes).unsqueeze(&axes);
    let centred = &x - &mean(&x);
    let deviation = mean(&centred.square()).sqrt();
    one(&centred / &(&deviation + 1e-9))
}
