//! Elementwise operators: arithmetic, activations, comparisons, casts.

use autobwd::{DType, Expr, New, Result, emit, program::Var};
use autobwd_ops::{
    Math,
    activation::{Celu, HardSigmoid, LeakyRelu, Selu, Softplus, Swish, ThresholdedRelu},
    bitwise::{BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor},
    shape::Cast,
    widest,
};

use super::{
    arith::{common_dims, expand_to, filled_like, scalar_like},
    node::{NodeContext, NodeOutput, Outputs, one, refuse},
    rules::{All, Integers, Native, NodeRules, Wrapping},
    value::ImportedValue,
};
use crate::{elements::ElementType, proto::tensor_proto::DataType};

pub(super) const RULES: NodeRules = &[
    ("Abs", Wrapping, |n| small(n, |x| x.abs(), |x| x.maximum(&negative(x)))),
    ("Neg", Wrapping, |n| small(n, negative, negative)),
    ("Sign", All, |n| small(n, |x| x.sign(), integer_sign)),
    ("Identity", All, identity),
    ("Exp", Native, |n| unary(n, |x| x.exp())),
    ("Log", Native, |n| unary(n, |x| x.log())),
    ("Sqrt", Native, |n| unary(n, |x| x.sqrt())),
    ("Reciprocal", Native, |n| unary(n, |x| x.reciprocal())),
    ("Floor", All, |n| unary(n, |x| x.floor())),
    ("Ceil", All, |n| unary(n, |x| x.ceil())),
    ("Round", All, |n| unary(n, round_to_even)),
    ("Erf", Native, |n| unary(n, |x| x.erf())),
    ("Sin", Native, |n| unary(n, |x| x.sin())),
    ("Cos", Native, |n| unary(n, |x| x.cos())),
    ("Tan", Native, |n| unary(n, |x| x.tan())),
    ("Asin", Native, |n| unary(n, |x| x.asin())),
    ("Acos", Native, |n| unary(n, |x| x.acos())),
    ("Atan", Native, |n| unary(n, |x| x.atan())),
    ("Sinh", Native, |n| unary(n, |x| x.sinh())),
    ("Cosh", Native, |n| unary(n, |x| x.cosh())),
    ("Tanh", Native, |n| unary(n, |x| x.tanh())),
    ("Asinh", Native, |n| unary(n, |x| x.asinh())),
    ("Acosh", Native, |n| unary(n, |x| x.acosh())),
    ("Atanh", Native, |n| unary(n, |x| x.atanh())),
    ("Sigmoid", Native, |n| unary(n, |x| x.sigmoid())),
    ("Relu", All, |n| small(n, |x| x.relu(), |x| x.maximum(&scalar_like(x, 0.0)))),
    ("Softsign", Native, |n| unary(n, |x| x.softsign())),
    ("Softplus", Native, |n| {
        unary(n, |x| emit(Softplus { x: x.into(), out: New, beta: 1.0, threshold: 20.0 }).out)
    }),
    ("Mish", Native, |n| unary(n, |x| x.mish())),
    ("HardSwish", Native, |n| unary(n, |x| x.hard_swish())),
    ("Gelu", Native, gelu),
    ("Elu", Native, elu),
    ("Selu", Native, selu),
    ("Celu", Native, celu),
    ("LeakyRelu", Native, leaky_relu),
    ("PRelu", Native, prelu),
    ("HardSigmoid", Native, hard_sigmoid),
    ("ThresholdedRelu", Native, thresholded_relu),
    ("Shrink", Native, shrink),
    ("Swish", Native, swish),
    ("Clip", All, clip),
    ("Add", Integers, |n| linear(n, |x, y| x + y, |x, y| x + y)),
    ("Sub", Integers, |n| linear(n, |x, y| x - y, |x, y| x - y)),
    ("Mul", Integers, |n| linear(n, |x, y| x * y, |x, y| x * y)),
    ("Div", Integers, |n| binary(n, |x, y| x / y)),
    ("Pow", Native, pow),
    ("Mod", Integers, modulo),
    ("Max", All, |n| variadic(n, |x, y| x.maximum(y))),
    ("Min", All, |n| variadic(n, |x, y| x.minimum(y))),
    ("Sum", Native, |n| variadic(n, |x, y| x + y)),
    ("Mean", Native, mean),
    ("Equal", All, |n| compare(n, |x, y| x.equal(y))),
    ("Less", All, |n| compare(n, |x, y| x.less_than(y))),
    ("LessOrEqual", All, |n| compare(n, |x, y| x.less_equal(y))),
    ("Greater", All, |n| compare(n, |x, y| x.greater_than(y))),
    ("GreaterOrEqual", All, |n| compare(n, |x, y| x.greater_equal(y))),
    ("And", Native, |n| logical(n, |x, y| x.logical_and(y))),
    ("Or", Native, |n| logical(n, |x, y| x.logical_or(y))),
    ("Xor", Native, |n| logical(n, |x, y| x.logical_xor(y))),
    ("Not", Native, |n| unary(n, |x| x.logical_not())),
    ("BitwiseAnd", All, |n| logical(n, |x, y| emit(BitwiseAnd { x: x.into(), y: y.into(), out: New }).out)),
    ("BitwiseOr", All, |n| logical(n, |x, y| emit(BitwiseOr { x: x.into(), y: y.into(), out: New }).out)),
    ("BitwiseXor", All, |n| logical(n, |x, y| emit(BitwiseXor { x: x.into(), y: y.into(), out: New }).out)),
    ("BitwiseNot", Integers, |n| unary(n, |x| emit(BitwiseNot { x: x.into(), out: New }).out)),
    ("BitShift", Integers, bit_shift),
    ("BitCast", All, bit_cast),
    ("IsNaN", All, |n| unary(n, |x| x.isnan())),
    ("IsInf", All, is_inf),
    ("Where", All, select),
    ("Cast", All, cast),
    ("CastLike", All, cast_like),
];

fn unary(n: &mut NodeContext<'_, '_>, f: impl Fn(&Expr) -> Expr) -> Outputs {
    one(f(&n.input(0)?))
}

/// An operator with a formula of its own for integers.
fn small(
    n: &mut NodeContext<'_, '_>,
    float: impl Fn(&Expr) -> Expr,
    integer: impl Fn(&Expr) -> Expr,
) -> Outputs {
    let x = n.input(0)?;
    let f = |x: &Expr| if x.dtype().is_float() { float(x) } else { integer(x) };
    one(widened(&[&x], |all| f(&all[0])))
}

/// Integers that autobwd does not compute with in a wider dtype, and back.
fn widened(all: &[&Expr], f: impl Fn(&[Expr]) -> Expr) -> Expr {
    let dtype = all.first().map_or(DType::F32, |x| x.dtype());
    match dtype {
        DType::U8 | DType::Bool => {
            let wide: Vec<Expr> = all.iter().map(|x| x.cast(DType::I32)).collect();
            let out = f(&wide);
            if out.dtype() == DType::I32 { out.cast(dtype) } else { out }
        }
        _ => f(&all.iter().map(|x| (*x).clone()).collect::<Vec<_>>()),
    }
}

fn negative(x: &Expr) -> Expr {
    x * -1.0
}

fn integer_sign(x: &Expr) -> Expr {
    let zero = scalar_like(x, 0.0);
    let of = |is: Expr| is.cast(x.dtype());
    of(x.greater_than(&zero)) - of(x.less_than(&zero))
}

fn identity(n: &mut NodeContext<'_, '_>) -> Outputs {
    Ok(vec![NodeOutput::Value(n.required(0)?.clone())])
}

/// The nearest integer, of two equally near ones the even one.
pub(super) fn round_to_even(x: &Expr) -> Expr {
    let down = x.floor();
    let rest = x - &down;
    let odd = &down - &(&(&down * 0.5).floor() * 2.0);
    let half = scalar_like(x, 0.5);
    let up = rest.greater_than(&half).cast(x.dtype());
    let even = &rest.equal(&half).cast(x.dtype()) * &odd;
    // Infinities stay: their rest is no number.
    let rounded = &(&down + &up) + &even;
    let finite = x.isfinite();
    finite.where_cond(&rounded, x)
}

fn gelu(n: &mut NodeContext<'_, '_>) -> Outputs {
    let approximate = match n.text_or("approximate", "none")? {
        "none" => false,
        "tanh" => true,
        other => {
            return Err(refuse(format!(
                "attribute `approximate` = `{other}` of operator `Gelu` is not supported"
            )));
        }
    };
    unary(n, |x| x.gelu(approximate))
}

fn elu(n: &mut NodeContext<'_, '_>) -> Outputs {
    let alpha = n.float_or("alpha", 1.0)?;
    unary(n, |x| x.elu(alpha.into()))
}

fn selu(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (alpha, scale) = (n.float_or("alpha", 1.673_263_2)?, n.float_or("gamma", 1.050_701)?);
    unary(n, |x| emit(Selu { x: x.into(), out: New, scale, alpha }).out)
}

fn celu(n: &mut NodeContext<'_, '_>) -> Outputs {
    let alpha = n.float_or("alpha", 1.0)?;
    unary(n, |x| emit(Celu { x: x.into(), out: New, alpha }).out)
}

fn leaky_relu(n: &mut NodeContext<'_, '_>) -> Outputs {
    let alpha = n.float_or("alpha", 0.01)?.into();
    unary(n, |x| emit(LeakyRelu { x: x.into(), out: New, alpha }).out)
}

/// `max(x, 0) + alpha · min(x, 0)`: the alpha broadcasts.
fn prelu(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (x, slope) = (n.input(0)?, n.input(1)?);
    let negative = &x - &x.relu();
    one(&x.relu() + &(&slope * &negative))
}

fn hard_sigmoid(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (slope, offset) = (n.float_or("alpha", 0.2)?, n.float_or("beta", 0.5)?);
    unary(n, |x| emit(HardSigmoid { x: x.into(), out: New, slope, offset }).out)
}

fn thresholded_relu(n: &mut NodeContext<'_, '_>) -> Outputs {
    let threshold = n.float_or("alpha", 1.0)?;
    unary(n, |x| emit(ThresholdedRelu { x: x.into(), out: New, threshold }).out)
}

/// `x + bias` where `x < -lambd`, `x - bias` where `x > lambd`, else 0.
fn shrink(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (lambda, bias) = (f64::from(n.float_or("lambd", 0.5)?), f64::from(n.float_or("bias", 0.0)?));
    let x = n.input(0)?;
    let below = x.less_than(&scalar_like(&x, -lambda)).cast(x.dtype());
    let above = x.greater_than(&scalar_like(&x, lambda)).cast(x.dtype());
    one(&(&below * &(&x + bias)) + &(&above * &(&x - bias)))
}

fn swish(n: &mut NodeContext<'_, '_>) -> Outputs {
    let beta = n.float_or("alpha", 1.0)?;
    unary(n, |x| emit(Swish { x: x.into(), out: New, beta }).out)
}

fn clip(n: &mut NodeContext<'_, '_>) -> Outputs {
    if n.version() >= 11
        && let (Some(min), Some(max)) = (number(n, 1)?, number(n, 2)?)
    {
        return unary(n, |x| x.clip(min, max));
    }
    let mut x = n.input(0)?;
    let (min, max) = match n.version() {
        ..11 => {
            let of = |bound: Option<f32>| bound.map(|bound| scalar_like(&x, bound.into()));
            (of(n.float("min")?), of(n.float("max")?))
        }
        _ => (n.optional(1)?, n.optional(2)?),
    };
    if let Some(min) = min {
        x = widened(&[&x, &min], |all| all[0].maximum(&all[1]));
    }
    if let Some(max) = max {
        x = widened(&[&x, &max], |all| all[0].minimum(&all[1]));
    }
    one(x)
}

fn binary(n: &mut NodeContext<'_, '_>, f: impl Fn(&Expr, &Expr) -> Expr) -> Outputs {
    let (x, y) = (n.input(0)?, n.input(1)?);
    one(widened(&[&x, &y], |all| f(&all[0], &all[1])))
}

/// A formula of two tensors; `scalar` for a constant that is no parameter, which is an attribute then.
fn linear(
    n: &mut NodeContext<'_, '_>,
    f: impl Fn(&Expr, &Expr) -> Expr,
    scalar: impl Fn(&Expr, f64) -> Expr,
) -> Outputs {
    match number(n, 1)? {
        Some(y) => unary(n, |x| scalar(x, y)),
        None => binary(n, f),
    }
}

/// The floating point number that input `i` is, if it is known, no parameter, and has no more dimensions than the first
/// input.
fn number(n: &NodeContext<'_, '_>, i: usize) -> Result<Option<f64>> {
    let rank = n.rank(0)?;
    let known = n.value(i).filter(|_| n.scratch.is_none()).and_then(ImportedValue::constant);
    let single = known.filter(|x| x.dtype().is_float() && x.numel() == 1 && x.dims().len() <= rank);
    Ok(single.and_then(|x| x.to_f64s().first().copied()).filter(|x| x.is_finite()))
}

fn variadic(n: &mut NodeContext<'_, '_>, f: impl Fn(&Expr, &Expr) -> Expr) -> Outputs {
    let inputs = n.all_inputs()?;
    let all: Vec<&Expr> = inputs.iter().collect();
    if all.is_empty() {
        return Err(refuse(format!("operator `{}` needs an input", n.op())));
    }
    one(widened(&all, |all| all[1..].iter().fold(all[0].clone(), |sum, x| f(&sum, x))))
}

fn mean(n: &mut NodeContext<'_, '_>) -> Outputs {
    let all = n.all_inputs()?;
    let Some((first, rest)) = all.split_first() else { return Err(refuse("operator `Mean` needs an input")) };
    one(rest.iter().fold(first.clone(), |sum, x| &sum + x) * (1.0 / all.len() as f64))
}

/// Dtypes of base and exponent may differ; the result has that of the base.
fn pow(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (x, y) = (n.input(0)?, n.input(1)?);
    let exponent = n.value(1).and_then(ImportedValue::constant);
    let two = exponent.is_some_and(|y| y.dims().is_empty() && y.to_f64s() == [2.0]);
    if two && x.dtype().is_float() {
        // The same number, many times as fast.
        return one(x.square());
    }
    let (from, wide) = (x.dtype(), x.dtype() != y.dtype() && !x.dtype().is_float() && y.dtype().is_float());
    if wide {
        return one(x.cast(DType::F64).pow(&y.cast(DType::F64)).cast(from));
    }
    one(x.pow(&y.cast(from)))
}

fn modulo(n: &mut NodeContext<'_, '_>) -> Outputs {
    let truncating = n.flag("fmod", false)?;
    let (x, y) = (n.input(0)?, n.input(1)?);
    if !truncating {
        return one(widened(&[&x, &y], |all| all[0].remainder(&all[1])));
    }
    let remainder = |x: &Expr, y: &Expr| match x.dtype().is_float() {
        // The quotient is rounded, the remainder is exact.
        true => x.sign() * x.abs().remainder(&y.abs()),
        false => x - &(&(x / y) * y),
    };
    one(widened(&[&x, &y], |all| remainder(&all[0], &all[1])))
}

fn compare(n: &mut NodeContext<'_, '_>, f: impl Fn(&Expr, &Expr) -> Expr) -> Outputs {
    n.set_type(0, ElementType::BOOL);
    let (x, y) = (n.input(0)?, n.input(1)?);
    one(f(&x, &y))
}

/// An operator whose operands must have equal shapes here.
fn logical(n: &mut NodeContext<'_, '_>, f: impl Fn(&Expr, &Expr) -> Expr) -> Outputs {
    let (x, y) = (n.input(0)?, n.input(1)?);
    one(f(&x, &y))
}

fn is_inf(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(0, ElementType::BOOL);
    let (negative, positive) = (n.flag("detect_negative", true)?, n.flag("detect_positive", true)?);
    let x = n.input(0)?;
    let infinite = x.isinf();
    let zero = scalar_like(&x, 0.0);
    one(match (negative, positive) {
        (true, true) => infinite,
        (true, false) => infinite.logical_and(&x.less_than(&zero)),
        (false, true) => infinite.logical_and(&x.greater_than(&zero)),
        (false, false) => infinite.logical_and(&infinite.logical_not()),
    })
}

/// Operands are broadcast first.
fn select(n: &mut NodeContext<'_, '_>) -> Outputs {
    let element = n.element(1)?;
    n.set_type(0, element);
    let (condition, x, y) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (condition, x, y) = match common_dims(&condition.dims(), &x.dims()) {
        Some(dims) => {
            let dims = autobwd::Dims::from(&dims[..]);
            match common_dims(&dims, &y.dims()) {
                Some(full) => (expand_to(&condition, &full), expand_to(&x, &full), expand_to(&y, &full)),
                None => (condition, x, y),
            }
        }
        None if widest(&[&condition, &x, &y]).is_some() => (condition, x, y),
        None => broadcast_unknown(&condition, &x, &y)?,
    };
    one(widened_select(&condition, &x, &y))
}

fn widened_select(condition: &Expr, x: &Expr, y: &Expr) -> Expr {
    condition.where_cond(x, y)
}

/// Broadcasts shapes that are not known by sums with zeros, unless they are shapes of one operand and of numbers.
fn broadcast_unknown(condition: &Expr, x: &Expr, y: &Expr) -> Result<(Expr, Expr, Expr)> {
    use autobwd_ops::shape::ExpandAsV2;
    let operands = [condition, x, y];
    let rank = operands.iter().map(|x| x.dims().len()).max();
    let is_wide = |x: &&Expr| x.dims().numel().get() != Some(1) || Some(x.dims().len()) == rank;
    let mut wide: Vec<Expr> = operands.into_iter().filter(is_wide).cloned().collect();
    let first = wide.first().and_then(shape_source);
    let is_first = |x: &Expr| first.is_some() && shape_source(x) == first;
    let zeros = |x: &Expr| filled_like(x, 0.0, DType::I32);
    let shape = match wide.iter().all(is_first) {
        true => wide.remove(0),
        false => wide.iter().map(zeros).reduce(|sum, term| sum + term).ok_or_else(|| refuse("no operand"))?,
    };
    let expand = |x: &Expr| match is_first(x) && is_first(&shape) {
        true => x.clone(),
        false => {
            emit(ExpandAsV2 { x: x.into(), y: Some((&shape).into()), out: New, target_shape: vec![] }).out
        }
    };
    Ok((expand(condition), expand(x), expand(y)))
}

/// The variable with whose shape a value is made, element by element; else the value's own.
fn shape_source(x: &Expr) -> Option<Var> {
    const ELEMENTWISE: [&str; 5] = ["cast", "isfinite_v2", "isinf_v2", "isnan_v2", "logical_not"];
    let program = x.builder().program().ok()?;
    let mut var = program.find(&x.name())?;
    let ops = program.blocks().iter().rev().flat_map(|block| block.ops.iter().rev());
    for op in ops.filter(|op| ELEMENTWISE.contains(&&*op.ty)) {
        if op.writes().next() == Some(var) {
            var = op.reads().next()?;
        }
    }
    Some(var)
}

/// Products with powers of 2, or quotients; the dtype must hold every product exactly or wrap around.
fn bit_shift(n: &mut NodeContext<'_, '_>) -> Outputs {
    let left = match n.text_or("direction", "")? {
        "LEFT" => true,
        "RIGHT" => false,
        other => {
            return Err(refuse(format!(
                "attribute `direction` = `{other}` of operator `BitShift` is not supported"
            )));
        }
    };
    if !matches!(n.element(0)?.data_type(), DataType::Uint8 | DataType::Uint16 | DataType::Uint32) {
        return Err(refuse(format!(
            "dtype {} is not supported by operator `BitShift`",
            n.element(0)?.name()
        )));
    }
    let (x, count) = (n.input(0)?, n.input(1)?);
    let power = scalar_like(&x.cast(DType::I64), 2.0).pow(&count.cast(DType::I64).minimum(&bound(&count)));
    let wide = x.cast(DType::I64);
    let shifted = if left { &wide * &power } else { &wide / &power };
    one(shifted.remainder(&scalar_like(&shifted, 4_294_967_296.0)).cast(x.dtype()))
}

/// The largest shift that changes anything.
fn bound(count: &Expr) -> Expr {
    scalar_like(&count.cast(DType::I64), 32.0)
}

/// Bits of integers as those of other integers.
fn bit_cast(n: &mut NodeContext<'_, '_>) -> Outputs {
    let code = n.int("to")?.and_then(|code| i32::try_from(code).ok()).and_then(ElementType::from_code);
    let to = code.ok_or_else(|| refuse("operator `BitCast` lacks a type"))?;
    let from = n.element(0)?;
    let bits = |element: ElementType| match element.data_type() {
        DataType::Bool | DataType::Uint8 | DataType::Int8 => Some(8),
        DataType::Uint16 | DataType::Int16 => Some(16),
        DataType::Uint32 | DataType::Int32 => Some(32),
        _ => None,
    };
    if to == ElementType::BOOL || bits(from).is_none() || bits(from) != bits(to) {
        let text = format!("operator `BitCast` from {} to {} is not supported", from.name(), to.name());
        return Err(refuse(text));
    }
    n.set_type(0, to);
    let dtype = n.dtype(to)?;
    // Casts between integers wrap around.
    let x = n.input(0)?;
    one(super::rules::wrap(&if x.dtype() == dtype { x } else { cast_to(&x, dtype) }, to))
}

fn cast(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.ignore(&["saturate", "round_mode"]);
    let code = n.int("to")?.and_then(|code| i32::try_from(code).ok()).and_then(ElementType::from_code);
    let to = code.ok_or_else(|| refuse("operator `Cast` lacks a type"))?;
    convert(n, to)
}

fn cast_like(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.ignore(&["saturate", "round_mode"]);
    let to = n.element(1)?;
    convert(n, to)
}

/// Conversion; integers wrap around, and floating point numbers are truncated.
fn convert(n: &mut NodeContext<'_, '_>, to: ElementType) -> Outputs {
    let from = n.element(0)?;
    n.set_type(0, to);
    let dtype = n.dtype(to)?;
    if from == to {
        return identity(n);
    }
    if to.minifloat().is_some() {
        return Err(refuse(format!("operator `{}` to {} is not supported", n.op(), to.name())));
    }
    let x = n.input(0)?;
    let out = if x.dtype() == dtype { x } else { cast_to(&x, dtype) };
    one(super::rules::wrap(&out, to))
}

fn cast_to(x: &Expr, dtype: DType) -> Expr {
    emit(Cast { x: x.into(), out: New, in_dtype: x.dtype(), out_dtype: dtype }).out
}
