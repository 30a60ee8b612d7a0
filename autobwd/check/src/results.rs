//! Results of samples, for comparisons with results on other machines.

use super::{
    function::ProgramFunction,
    precision::{enlarged, is_affordable},
    shapes::resized,
};
use autobwd_core::sample::Sample;
use autobwd_core::{DType, GradKind, OpInfoMap, Result, Tensor};
use autobwd_exec::Executor;

/// The outputs of a sample's program by name, as each executor computes them. If its operator has a gradient, the
/// gradients of its inputs for random cotangents follow, and gradients of these, up to some order and as far as they
/// exist. The inputs are the same in every call.
///
/// # Errors
/// The errors of the operator, and of its first gradient.
pub fn sample_results(
    sample: &Sample,
    float: DType,
    order: usize,
    executors: &[Executor],
) -> Result<Vec<Vec<(String, Tensor)>>> {
    let ops = OpInfoMap::linked()?;
    let mut functions = vec![ProgramFunction::of(ops, sample, float, None)?];
    let is_constant = matches!(ops.get(sample.op())?.grad_kind(), GradKind::None(_) | GradKind::Zero);
    for k in 0..if is_constant { 0 } else { order } {
        match functions[k].gradient(ops, &[]) {
            Ok((gradient, _)) => functions.push(gradient),
            Err(e) if k == 0 => return Err(e),
            Err(_) => break,
        }
    }
    let results = |executor: &Executor| {
        let mut all = vec![];
        for (k, function) in functions.iter().enumerate() {
            let names = function.outputs.iter().map(|(name, _)| format!("order {k} {name}"));
            all.extend(names.zip(function.run_by(executor)?));
        }
        Ok(all)
    };
    executors.iter().map(results).collect()
}

/// Copies of a sample with all dimensions of some length changed to 0 or 1, each with a description. Its operator may
/// refuse them.
pub fn resized_samples(sample: &Sample) -> Vec<(String, Sample)> {
    resized(sample)
}

/// The sample with the longest dimensions of its first floating point input lengthened, so that this input has about so
/// many elements; `None` if it has none or has as many, and if its operator refuses that size or takes long.
///
/// # Errors
/// No operator is linked, or the sample's is not.
pub fn enlarged_sample(sample: &Sample, elements: usize) -> Result<Option<Sample>> {
    let (ops, Some(large)) = (OpInfoMap::linked()?, enlarged(sample, elements)) else { return Ok(None) };
    let info = ops.get(sample.op())?;
    let function = ProgramFunction::of(ops, &large, DType::F32, None);
    Ok(function.is_ok_and(|function| is_affordable(info, &function, elements)).then_some(large))
}
