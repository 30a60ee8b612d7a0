//! Random numbers, and dropout.

use autobwd::{DType, Dims, Expr, New, Result, emit};
use autobwd_ops::{
    Math,
    dropout::{DropoutImplementation, DropoutOp},
    random::{GaussianRandom, UniformRandom},
};

use super::{
    arith::filled_like,
    node::{NodeContext, NodeOutput, Outputs, one, refuse},
    rules::{All, Native, NodeRules},
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("Dropout", Native, dropout),
    ("Bernoulli", Native, bernoulli),
    ("RandomUniform", All, |n| numbers(n, false, false)),
    ("RandomUniformLike", All, |n| numbers(n, true, false)),
    ("RandomNormal", All, |n| numbers(n, false, true)),
    ("RandomNormalLike", All, |n| numbers(n, true, true)),
];

/// A seed from its bits in float32, 0 for another one in every run.
fn seed(n: &NodeContext<'_, '_>) -> Result<i32> {
    Ok(match n.has_attribute("seed") {
        true if n.op() == "Dropout" => n.int_or("seed", 0)? as i32 & i32::MAX,
        true => (n.float_or("seed", 0.0)?.to_bits() >> 1) as i32,
        false => 0,
    })
}

/// Without training, or with a ratio of 0, it is the identity.
fn dropout(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(1, ElementType::BOOL);
    let (ratio, training) = match n.version() {
        ..12 => (n.float_or("ratio", 0.5)?, false),
        _ => {
            let ratio = n.constant_floats(1)?.and_then(|ratio| ratio.first().copied()).unwrap_or(0.5);
            let training = n.constant_floats(2)?.and_then(|training| training.first().copied());
            (ratio as f32, training.is_some_and(|training| training != 0.0))
        }
    };
    let seed = seed(n)?;
    let x = n.input(0)?;
    if !training || ratio == 0.0 {
        let mut outputs = vec![NodeOutput::Value(n.required(0)?.clone())];
        if n.wants(1) {
            outputs.push(filled_like(&x, 1.0, DType::Bool).into());
        }
        return Ok(outputs);
    }
    let op = emit(DropoutOp {
        x: (&x).into(),
        seed_tensor: None,
        out: New,
        mask: New,
        dropout_prob: ratio,
        dropout_implementation: DropoutImplementation::UpscaleInTrain,
        is_test: false,
        fix_seed: seed != 0,
        seed,
    });
    Ok(vec![op.out.into(), op.mask.cast(DType::Bool).into()])
}

/// The type of the results.
fn element(n: &NodeContext<'_, '_>, like: bool) -> Result<ElementType> {
    match n.int("dtype")?.and_then(|code| i32::try_from(code).ok()) {
        Some(code) => ElementType::from_code(code)
            .ok_or_else(|| refuse(format!("attribute `dtype` = {code} is not supported"))),
        None if like => n.element(0),
        None => Ok(ElementType::F32),
    }
}

fn uniform(n: &NodeContext<'_, '_>, dims: &Dims, dtype: DType, (min, max): (f64, f64)) -> Result<Expr> {
    let shape = known(dims)?;
    let op = UniformRandom {
        shape_tensor: None,
        shape_tensor_list: vec![],
        out: New,
        shape,
        dtype,
        min,
        max,
        seed: seed(n)?,
    };
    Ok(n.net().emit(op).out)
}

fn known(dims: &Dims) -> Result<Vec<i64>> {
    let known: Option<Vec<i64>> = dims.iter().map(|dim| dim.get().map(|dim| dim as i64)).collect();
    known.ok_or_else(|| refuse(format!("random numbers need known dimensions, not {dims}")))
}

/// 1 with the probability that the input gives.
fn bernoulli(n: &mut NodeContext<'_, '_>) -> Outputs {
    let element = element(n, true)?;
    n.set_type(0, element);
    let (x, dtype) = (n.input(0)?, n.dtype(element)?);
    let numbers = uniform(n, &x.dims(), x.dtype(), (0.0, 1.0))?;
    one(numbers.less_than(&x).cast(dtype))
}

fn numbers(n: &mut NodeContext<'_, '_>, like: bool, normal: bool) -> Outputs {
    let element = element(n, like)?;
    n.set_type(0, element);
    let dims = match like {
        true => n.dims(0)?,
        false => Dims::from_wire(&n.ints("shape")?.unwrap_or_default())?,
    };
    let dtype = n.dtype(element)?;
    if !normal {
        let bounds = (n.float_or("low", 0.0)?.into(), n.float_or("high", 1.0)?.into());
        return one(uniform(n, &dims, dtype, bounds)?);
    }
    let (mean, std) = (n.float_or("mean", 0.0)?.into(), n.float_or("scale", 1.0)?.into());
    let (shape, seed) = (known(&dims)?, seed(n)?);
    let op = GaussianRandom {
        shape_tensor: None,
        shape_tensor_list: vec![],
        out: New,
        shape,
        dtype,
        mean,
        std,
        seed,
    };
    one(n.net().emit(op).out)
}
