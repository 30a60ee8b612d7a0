//! Checks in 16-bit dtypes: results are the results in float32 of the same numbers, rounded once; gradients have the
//! dtype of their inputs; fusion, threads and eager mode change no bit.

use std::sync::Arc;

use super::{
    derivatives::GradientFunction,
    function::{ProgramFunction, executor, failure, in_case},
    rewrites::check_fused,
    values::{check_eager, check_threads, same_numbers},
};
use autobwd_core::sample::Sample;
use autobwd_core::{Cx, DType, ErrorKind, GradKind, OpInfoMap, Result, Tensor};

/// Checks a sample with 16-bit inputs, if it has floating point inputs of any dtype.
pub(super) fn check_halves(ops: &OpInfoMap, sample: &Sample, many: &Arc<Cx>) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        check_half(ops, sample, dtype, many).map_err(in_case(&format!("in {dtype}, ")))?;
    }
    Ok(())
}

fn check_half(ops: &OpInfoMap, sample: &Sample, dtype: DType, many: &Arc<Cx>) -> Result<()> {
    let single = ProgramFunction::of(ops, sample, DType::F32, None)?;
    let half = ProgramFunction::of(ops, sample, dtype, None)?;
    if half.inputs.iter().all(|(_, tensor)| tensor.dtype() != dtype) {
        return Ok(());
    }
    let widened = |((name, half), (_, single)): (&(String, Tensor), &(String, Tensor))| {
        Ok((name.clone(), Tensor::from_f64s(single.dtype(), half.dims(), &half.to_f64s())?))
    };
    let inputs = half.inputs.iter().zip(&single.inputs).map(widened).collect::<Result<_>>()?;
    let (found, expected) = match (half.run(), single.with_inputs(ops, inputs).run()) {
        (Ok(found), Ok(expected)) => (found, expected),
        // Rounded numbers may be out of an operator's domain.
        (Err(_), Err(_)) => return Ok(()),
        (Err(e), Ok(_)) => return Err(e),
        (Ok(_), Err(e)) => return Err(failure(format!("the operator runs, but fails in float32: {e}"))),
    };
    // A composition rounds between its operators.
    let info = ops.get(sample.op())?;
    if !info.is_composed() && sample.program.is_none() {
        for ((name, _), (found, expected)) in half.outputs.iter().zip(found.iter().zip(&expected)) {
            let rounded = Tensor::from_f64s(found.dtype(), expected.dims(), &expected.to_f64s())?;
            if !same_numbers(found, &rounded) {
                return Err(failure(format!(
                    "output `{name}` is {found:?}, but in float32 {expected:?}, rounded {rounded:?}"
                )));
            }
        }
    }
    check_same(ops, &half, many)?;
    check_fused(ops, sample, &half, dtype)?;
    let built = match info.grad_kind() {
        GradKind::None(_) | GradKind::Zero => None,
        _ => Some(GradientFunction::of(ops, &half)?),
    };
    if let Some(GradientFunction { gradient, .. }) = &built {
        check_same(ops, gradient, many).map_err(in_case("gradients: "))?;
        for ((name, meta), value) in gradient.outputs.iter().zip(gradient.run()?) {
            if value.dtype() != meta.dtype {
                return Err(failure(format!("`{name}` is {}, not {}", value.dtype(), meta.dtype)));
            }
        }
    }
    // A loop sums the gradients of all steps before it rounds, a tape rounds after each two.
    let built = built.filter(|_| sample.program.is_none());
    match check_eager(ops, &half, built.as_ref()) {
        // Tensor arrays and hand-written blocks exist in programs only.
        Err(e) if sample.program.is_some() && e.kind() == ErrorKind::Program => Ok(()),
        outcome => outcome.map_err(in_case("eagerly, ")),
    }
}

/// Results are the same with several threads, and without fusion and memory in place.
fn check_same(ops: &OpInfoMap, function: &ProgramFunction, many: &Arc<Cx>) -> Result<()> {
    check_threads(ops, function, many)?;
    let plain = match function.run_by(&executor(ops).check_finite(true)) {
        Err(e) if e.kind() == ErrorKind::NotFinite => return Ok(()),
        outcome => outcome?,
    };
    for ((name, _), (fused, plain)) in function.outputs.iter().zip(function.run()?.iter().zip(&plain)) {
        if !same_numbers(fused, plain) {
            return Err(failure(format!("`{name}` is {fused:?}, but without fusion {plain:?}")));
        }
    }
    Ok(())
}
