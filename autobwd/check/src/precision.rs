//! Checks in float32, at a small and at a large size.

use super::{
    derivatives::{Distance, GradientFunction},
    function::{ProgramFunction, failure},
};
use autobwd_core::__private::internals::*;
use autobwd_core::sample::Sample;
use autobwd_core::{Cost, DType, GradKind, OpInfo, OpInfoMap, Result, Tensor, VarDesc};

/// Bound for |a − b| / (1 + max |b|) between outputs in `f32` and `f64`.
const SINGLE: f64 = 1e-5;
/// The same for gradients.
const GRADIENT: f64 = 1e-4;
/// Number of elements of the first input at the large size.
const LARGE: usize = 1 << 20;
/// From so many values on, some neighbours in the order are equal in `f32`.
const MANY: usize = 1 << 16;
/// The most elements of another input, for each element of the first.
const OTHERS: usize = 1 << 6;
/// Bounds of the work at the large size, for each element.
const FLOPS: u64 = 1 << 8;
const BYTES: u64 = 1 << 7;

/// The `f64` function with the numbers of the `f32` function, which are rounded.
fn rounded(ops: &OpInfoMap, single: &ProgramFunction, double: &ProgramFunction) -> Result<ProgramFunction> {
    let widened = |(s, d): (&(String, Tensor), &(String, Tensor))| match (s.1.dtype(), d.1.dtype()) {
        (DType::F32, DType::F64) => Ok((d.0.clone(), Tensor::from_vec(s.1.dims(), s.1.to_f64s())?)),
        _ => Ok(d.clone()),
    };
    let inputs = single.inputs.iter().zip(&double.inputs).map(widened).collect::<Result<Vec<_>>>()?;
    Ok(double.with_inputs(ops, inputs))
}

/// Values in `f32` match those in `f64`.
pub(super) fn check_single(
    ops: &OpInfoMap,
    single: &ProgramFunction,
    double: &ProgramFunction,
    bound: f64,
) -> Result<()> {
    compare(single, &rounded(ops, single, double)?, SINGLE.max(bound), "output")
}

/// The change of the values if the last bit of each `f32` input changes, relative to the largest value.
fn condition(ops: &OpInfoMap, function: &ProgramFunction) -> Result<f64> {
    let moved = |(name, tensor): &(String, Tensor)| match tensor.dtype() {
        DType::F64 => {
            let numbers = tensor.to_f64s().iter().map(|x| x * (1.0 + f64::from(f32::EPSILON))).collect();
            Ok((name.clone(), Tensor::from_vec(tensor.dims(), numbers)?))
        }
        _ => Ok((name.clone(), tensor.clone())),
    };
    let inputs = function.inputs.iter().map(moved).collect::<Result<Vec<_>>>()?;
    let (here, there) = (function.run()?, function.with_inputs(ops, inputs).run()?);
    let change = |(a, b): (&Tensor, &Tensor)| Distance::of(&a.to_f64s(), &b.to_f64s(), 0.0).worst;
    Ok(here.iter().zip(&there).map(change).fold(0.0, f64::max))
}

/// Gradients in `f32` match those in `f64`.
pub(super) fn check_single_gradients(
    ops: &OpInfoMap,
    single: &ProgramFunction,
    double: &ProgramFunction,
    bound: f64,
) -> Result<()> {
    let double = rounded(ops, single, double)?;
    let (a, b) = (GradientFunction::of(ops, single)?, GradientFunction::of(ops, &double)?);
    compare(&a.gradient, &rounded(ops, &a.gradient, &b.gradient)?, GRADIENT.max(bound), "gradient")
}

fn compare(single: &ProgramFunction, double: &ProgramFunction, bound: f64, what: &str) -> Result<()> {
    let is_float = |tensor: &Tensor| tensor.dtype().is_float();
    for ((name, _), (a, b)) in double.outputs.iter().zip(single.run()?.iter().zip(double.run()?)) {
        let exact = !is_float(a) && double.inputs.iter().all(|(_, input)| !is_float(input));
        if !is_float(a) && !exact && a.numel() > MANY {
            // One rounded number may move many indices.
            continue;
        }
        let (dims, a, b) = (b.dims(), a.to_f64s(), b.to_f64s());
        let distance = Distance::of(&a, &b, bound);
        if distance.worst > bound {
            return Err(distance.error(&format!("{what} `{name}` in float32"), "in float64", (&a, &b), dims));
        }
    }
    Ok(())
}

/// Compares `f32` with `f64` for inputs of about a million elements, where errors that grow with the size show.
pub(super) fn check_large(ops: &OpInfoMap, sample: &Sample, bound: f64) -> Result<()> {
    let continuous = Some(sample).filter(|sample| sample.discontinuous.is_none());
    let Some(large) = continuous.and_then(|sample| enlarged(sample, LARGE)) else { return Ok(()) };
    let of = |dtype| ProgramFunction::of(ops, &large, dtype, None);
    let (Ok(double), Ok(single)) = (of(DType::F64), of(DType::F32)) else { return Ok(()) };
    let info = ops.get(sample.op())?;
    if !is_affordable(info, &double, LARGE) {
        return Ok(());
    }
    if double.run().is_err() {
        return Ok(());
    }
    // The problem may be ill-conditioned, whatever the kernel does.
    let bound = bound.max(4.0 * condition(ops, &double)?);
    check_single(ops, &single, &double, bound)?;
    match info.grad_kind() {
        GradKind::None(_) | GradKind::Zero => Ok(()),
        _ if sample.smooth.is_some() => Ok(()),
        _ => check_single_gradients(ops, &single, &double, bound),
    }
}

/// Whether the operators of a function, all of one type, are cheap for so many elements.
pub(super) fn is_affordable(info: &OpInfo, function: &ProgramFunction, elements: usize) -> bool {
    let root = function.program.root();
    let meta = |var| root.vars.get(&var).map(VarDesc::meta).ok_or_else(|| failure("no shape"));
    let most = |each: u64| each * elements as u64;
    let is_cheap = |cost: Cost| cost.flops <= most(FLOPS) && cost.bytes <= most(BYTES);
    root.ops.iter().all(|op| info.cost(op, &meta).is_ok_and(is_cheap))
}

/// The sample with the longest dimensions of its first floating point input changed, so that it has about so many
/// elements.
pub(super) fn enlarged(sample: &Sample, elements: usize) -> Option<Sample> {
    let dims = sample.draws.iter().find(|draw| draw.is_of_float() && !draw.dims().is_empty())?.dims();
    let from = *dims.iter().max()?;
    let count = dims.iter().filter(|n| **n == from).count();
    let others: usize = dims.iter().filter(|n| **n != from).product();
    let to = root(elements / others.max(1), count as u32);
    let large = if from < 2 || to <= from { None } else { sample.resized(from, to) };
    // A dimension that other inputs have twice makes them too large.
    let numel = |dims: &[usize]| dims.iter().try_fold(1_usize, |all, n| all.checked_mul(*n));
    large.filter(|large| {
        large.draws.iter().all(|draw| numel(draw.dims()).is_some_and(|all| all / OTHERS <= elements))
    })
}

/// The largest integer whose power is at most `n`.
fn root(n: usize, power: u32) -> usize {
    let fits = |x: &usize| x.checked_pow(power).is_some_and(|y| y <= n);
    if power == 1 { n } else { (1..).take_while(fits).last().unwrap_or(0) }
}
