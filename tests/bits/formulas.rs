//! Formulas of all operators on numbers of all sizes, on special values, and at the ends of vectors.

use autobwd::{
    DType, Executor, OpInfoMap, Result,
    check::{Draw, Sample, given, sample_program, sample_results},
    op::Meaning,
};
use autobwd_benches::workload::{integers, numbers};

use crate::{hashes::by_threads, operators::accepted, parts::BitResult};

/// More than a block of 1,024, and no multiple of a vector.
const ELEMENTS: usize = 1031;

const SPECIAL: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    f64::MAX,
    f64::MIN_POSITIVE,
    f64::EPSILON,
    f32::MAX as f64,
    // Smallest normal and a subnormal number of float32.
    1.175_494_350_822_287_5e-38,
    -1e-40,
];

/// The first sample of each formula whose inputs have one shape, with many numbers in them.
pub(crate) fn formulas(executors: &[Executor]) -> Result<Vec<BitResult>> {
    let (mut results, mut last) = (vec![], "");
    for (_, sample) in accepted() {
        let is_formula = OpInfoMap::linked()?.get(sample.op())?.meaning() == Meaning::ByFormula;
        if !is_formula || sample.op() == last || sample.program.is_some() {
            continue;
        }
        let Some(long) = with_numbers(&sample)? else { continue };
        last = sample.op();
        for dtype in [DType::F32, DType::F64] {
            let found = sample_results(&long, dtype, 2, executors)?;
            results.extend(by_threads(&format!("{} {dtype} ", sample.op()), executors, &found)?);
        }
    }
    Ok(results)
}

/// The sample with one dimension of many elements in each input; `None` if its inputs have different shapes.
fn with_numbers(sample: &Sample) -> Result<Option<Sample>> {
    let [(_, inputs), (_, single)] =
        [sample_program(sample, DType::F64)?, sample_program(sample, DType::F32)?];
    let mut long = sample.clone();
    let dims = inputs.first().map(|(_, tensor)| tensor.dims().to_vec());
    for ((name, tensor), (_, single)) in inputs.iter().zip(&single) {
        // Inputs are called `v0`, `v1`, … after their draws.
        let at = name.trim_start_matches('v').parse::<usize>().ok();
        let Some(draw) = at.and_then(|at| long.draws.get_mut(at)) else { return Ok(None) };
        if Some(tensor.dims()) != dims.as_deref() || tensor.numel() == 0 {
            return Ok(None);
        }
        *draw = match tensor.dtype() {
            DType::F64 if single.dtype() == DType::F32 => varied(at.unwrap_or(0) as u32),
            dtype @ (DType::F32 | DType::F64) => varied(at.unwrap_or(0) as u32).of(dtype),
            dtype => {
                let elements = tensor.to_f64s();
                given([ELEMENTS], elements.into_iter().cycle().take(ELEMENTS)).of(dtype)
            }
        };
    }
    Ok(Some(long))
}

/// Small numbers, numbers of all sizes, and special ones, each in its own order for each input.
fn varied(seed: u32) -> Draw {
    let (small, sizes) = (numbers(seed + 1, ELEMENTS, 4.0), integers(seed + 7, ELEMENTS, 60));
    let choices = integers(seed + 13, ELEMENTS, 4 * SPECIAL.len() as u32);
    let number = |i: usize| {
        let x = f64::from(small[i]);
        match choices[i] as usize {
            special if special < SPECIAL.len() => SPECIAL[special],
            choice if choice % 3 == 0 => x * (1_u64 << sizes[i]) as f64 / (1_u64 << 30) as f64,
            _ => x,
        }
    };
    given([ELEMENTS], (0..ELEMENTS).map(number))
}
