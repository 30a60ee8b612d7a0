//! Comparison of an operator's formula with its version for integers.

use super::{
    function::{ProgramFunction, failure},
    hostile::given_as,
    kernels::index,
};
use autobwd_core::__private::internals::*;
use autobwd_core::sample::{Sample, given};
use autobwd_core::{DType, OpInfoMap, Result, Tensor};

/// Small numbers, so that no result is rounded or overflows.
const NUMBERS: [f64; 7] = [3.0, 5.0, 2.0, 7.0, 4.0, 1.0, 6.0];

/// Where the formula gives an integer for integers, the version for integers gives the same.
pub(super) fn check_integers_agree(ops: &OpInfoMap, sample: &Sample) -> Result<()> {
    if !ops.get(sample.op())?.schema().integers || sample.program.is_some() {
        return Ok(());
    }
    let of = |dtype: DType| -> Result<(ProgramFunction, Vec<Tensor>)> {
        let (mut small, mut number) = (sample.clone(), NUMBERS.into_iter().cycle());
        for draw in small.draws.iter_mut().filter(|draw| !draw.is_output()) {
            let count = draw.dims().iter().product();
            let numbers = number.by_ref().take(count).collect();
            *draw = given_as(&given([0], []).of(dtype), draw.dims(), numbers);
        }
        let function = ProgramFunction::of(ops, &small, DType::F64, None)?;
        let values = function.run()?;
        Ok((function, values))
    };
    // Attributes may have no meaning for integers.
    let (Ok((function, integers)), Ok((_, floats))) = (of(DType::I64), of(DType::F64)) else { return Ok(()) };
    for ((name, _), (integer, float)) in function.outputs.iter().zip(integers.iter().zip(&floats)) {
        let shape = integer.dims();
        let pairs = integer.to_f64s().into_iter().zip(float.to_f64s()).enumerate();
        for (at, (integer, float)) in pairs.filter(|(_, (_, float))| float.fract() == 0.0) {
            if integer != float {
                let at = index(shape, at);
                return Err(failure(format!(
                    "output `{name}`{at:?} is {integer} for integers, but {float} by the formula for the same numbers"
                )));
            }
        }
    }
    Ok(())
}
