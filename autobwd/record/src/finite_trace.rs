//! An observer of a replayed step: where values cease to be finite, and the operator that makes the first such value.

use std::{mem, sync::Mutex};

use autobwd_core::Result;
use autobwd_exec::{ObservedOp, ObservedValue, Observer, ValueRange};

use crate::operator_trace::{CallCounts, CallPlace, lock};

/// What a value holds, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finiteness {
    Finite,
    Infinite,
    Nan,
}

impl Finiteness {
    pub(crate) fn of(range: &ValueRange) -> Finiteness {
        match (range.is_finite(), range.nan_count()) {
            (true, _) => Finiteness::Finite,
            (false, 0) => Finiteness::Infinite,
            (false, _) => Finiteness::Nan,
        }
    }
}

/// The values of a call of an operator, by name.
pub(crate) struct CheckedCall {
    pub(crate) place: CallPlace,
    inputs: Vec<(String, Finiteness)>,
    outputs: Vec<(String, Finiteness)>,
}

impl CheckedCall {
    /// Whether an output of one of these names is not finite.
    fn spoils(&self, names: &[&str]) -> bool {
        let is_it =
            |(name, holds): &(String, Finiteness)| *holds > Finiteness::Finite && names.contains(&&**name);
        self.outputs.iter().any(is_it)
    }

    fn makes_nan(&self) -> bool {
        self.outputs.iter().any(|(_, holds)| *holds == Finiteness::Nan)
    }
}

/// Collects what the inputs and outputs of all operators hold, in the order of their runs.
#[derive(Default)]
pub(crate) struct FiniteTrace(Mutex<Checked>);

#[derive(Default)]
struct Checked {
    calls: Vec<CheckedCall>,
    counts: CallCounts,
    /// The inputs of the operators that are running, the outermost one first.
    running: Vec<Vec<(String, Finiteness)>>,
}

impl FiniteTrace {
    pub(crate) fn calls(&self) -> Vec<CheckedCall> {
        mem::take(&mut lock(&self.0).calls)
    }
}

impl Observer for FiniteTrace {
    fn before(&self, op: &ObservedOp) -> Result<()> {
        let inputs = checked(op.inputs())?;
        lock(&self.0).running.push(inputs);
        Ok(())
    }

    fn after(&self, op: &ObservedOp) -> Result<()> {
        let outputs = checked(op.outputs())?;
        let mut checked = lock(&self.0);
        let Checked { calls, counts, running } = &mut *checked;
        let (place, inputs) = (counts.next(op), running.pop().unwrap_or_default());
        calls.push(CheckedCall { place, inputs, outputs });
        Ok(())
    }
}

fn checked(values: &[ObservedValue]) -> Result<Vec<(String, Finiteness)>> {
    values.iter().map(|value| Ok((value.name().into(), Finiteness::of(&value.range()?)))).collect()
}

/// The call that makes the first value which is not finite, of those that lead to a NaN or to one of these values.
///
/// Infinities alone do not count: a mask may hold them. So the search starts at the first NaN, or where one of the values
/// is written, and follows inputs that are not finite to an operator without such inputs.
pub(crate) fn origin(calls: &[CheckedCall], values: &[String]) -> Option<CallPlace> {
    let names: Vec<&str> = values.iter().map(String::as_str).collect();
    let first_nan = calls.iter().position(CheckedCall::makes_nan);
    let mut at = first_nan.or_else(|| calls.iter().rposition(|call| call.spoils(&names)))?;
    loop {
        let call = calls.get(at)?;
        let earlier = calls.get(..at).unwrap_or_default();
        let spoilt = call.inputs.iter().filter(|(_, holds)| *holds > Finiteness::Finite);
        let writers = spoilt.filter_map(|(name, holds)| {
            let writer = earlier.iter().rposition(|call| call.spoils(&[name.as_str()]))?;
            // A constant without inputs is a mask rather than a cause.
            let is_computed = earlier.get(writer).is_some_and(|call| !call.inputs.is_empty());
            Some((*holds, is_computed, writer))
        });
        match writers.max() {
            Some((.., writer)) => at = writer,
            None => return Some(call.place),
        }
    }
}
