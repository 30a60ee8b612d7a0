//! The samples of all operators: outputs and gradients.

use autobwd::{
    DType, Executor, Result,
    check::{Sample, enlarged_sample, resized_samples, sample_results},
};
use autobwd_tests::linked_samples;

use crate::{hashes::by_threads, parts::BitResult};

/// Elements of the first input of a large sample: several parts of work for several threads.
const LARGE: usize = 1 << 17;

/// The samples that are accepted, each with its operator and row.
pub(crate) fn accepted() -> Vec<(String, Sample)> {
    let (mut row, mut last) = (0, "");
    let named = |sample: Sample| {
        row = if sample.op() == last { row + 1 } else { 0 };
        last = sample.op();
        (format!("{}::{row}", sample.op()), sample)
    };
    let all = linked_samples().into_iter().map(named);
    all.filter(|(_, sample)| sample.error.is_none()).collect()
}

/// Every sample in float32 and float64, with gradients up to second order, and in 16 bits, with gradients of first
/// order; and with dimensions made 0 and 1.
pub(crate) fn samples(executors: &[Executor]) -> Result<Vec<BitResult>> {
    let mut results = vec![];
    for (name, sample) in accepted() {
        for (dtype, order) in [(DType::F32, 2), (DType::F64, 2), (DType::F16, 1), (DType::BF16, 1)] {
            let found = sample_results(&sample, dtype, order, executors)?;
            results.extend(by_threads(&format!("{name} {dtype} "), executors, &found)?);
        }
        for (case, small) in resized_samples(&sample) {
            // The operator may refuse it, in all configurations.
            if let Ok(found) = sample_results(&small, DType::F32, 1, executors) {
                results.extend(by_threads(&format!("{name} {case}"), executors, &found)?);
            }
        }
    }
    Ok(results)
}

/// The first sample of each operator that can be enlarged, in float32.
pub(crate) fn large(executors: &[Executor]) -> Result<Vec<BitResult>> {
    let (mut results, mut last) = (vec![], "");
    for (_, sample) in accepted() {
        if sample.op() == last {
            continue;
        }
        let Some(large) = enlarged_sample(&sample, LARGE)? else { continue };
        if let Ok(found) = sample_results(&large, DType::F32, 1, executors) {
            results.extend(by_threads(&format!("{} {} ", sample.op(), DType::F32), executors, &found)?);
            last = sample.op();
        }
    }
    Ok(results)
}
