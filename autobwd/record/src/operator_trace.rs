//! Observers of a replayed step: the digests of all outputs, and the values of one operator.

use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use autobwd_core::{Result, Tensor};
use autobwd_exec::{ObservedOp, ObservedValue, Observer};

use crate::digest::Digest;

/// The place of a call of an operator in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallPlace {
    pub(crate) block: usize,
    pub(crate) index: usize,
    /// The calls of the operator before this one in the step: iterations of loops, and parts of a composition.
    pub(crate) repetition: usize,
}

/// The calls of each operator so far.
#[derive(Default)]
pub(crate) struct CallCounts(HashMap<(usize, usize), usize>);

impl CallCounts {
    /// The place of the next call of an operator.
    pub(crate) fn next(&mut self, op: &ObservedOp) -> CallPlace {
        let (block, index) = (op.block().index(), op.index());
        let count = self.0.entry((block, index)).or_default();
        *count += 1;
        CallPlace { block, index, repetition: *count - 1 }
    }
}

/// A call of an operator with the digests of its outputs.
pub(crate) struct TracedCall {
    pub(crate) place: CallPlace,
    pub(crate) outputs: Vec<Digest>,
}

/// Collects the digests of the outputs of all operators, in the order of their runs.
#[derive(Default)]
pub(crate) struct OutputTrace(Mutex<(Vec<TracedCall>, CallCounts)>);

impl OutputTrace {
    pub(crate) fn calls(&self) -> Vec<TracedCall> {
        mem::take(&mut lock(&self.0).0)
    }
}

impl Observer for OutputTrace {
    fn after(&self, op: &ObservedOp) -> Result<()> {
        let digest = |output: &ObservedValue| Digest::of_value(&output.tensor()?);
        let outputs = op.outputs().iter().map(digest).collect::<Result<_>>()?;
        let (calls, counts) = &mut *lock(&self.0);
        calls.push(TracedCall { place: counts.next(op), outputs });
        Ok(())
    }
}

/// A value in a slot of an operator.
#[derive(Clone, Debug)]
pub(crate) struct SlotValue {
    pub(crate) slot: &'static str,
    pub(crate) name: String,
    pub(crate) value: Tensor,
}

/// The values of a call of an operator: inputs before it, and outputs after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallValues {
    /// The type of the operator that ran.
    pub(crate) ty: String,
    pub(crate) inputs: Vec<SlotValue>,
    pub(crate) outputs: Vec<SlotValue>,
}

/// Copies the values of one call.
pub(crate) struct CallCapture {
    place: CallPlace,
    captured: Mutex<Captured>,
}

#[derive(Default)]
struct Captured {
    /// The calls of the operator so far.
    count: usize,
    values: CallValues,
}

impl CallCapture {
    pub(crate) fn new(place: CallPlace) -> CallCapture {
        CallCapture { place, captured: Mutex::default() }
    }

    pub(crate) fn values(&self) -> CallValues {
        mem::take(&mut lock(&self.captured).values)
    }

    fn is_operator(&self, op: &ObservedOp) -> bool {
        (op.block().index(), op.index()) == (self.place.block, self.place.index)
    }
}

impl Observer for CallCapture {
    fn before(&self, op: &ObservedOp) -> Result<()> {
        let mut captured = lock(&self.captured);
        if self.is_operator(op) && captured.count == self.place.repetition {
            captured.values.ty = op.ty().into();
            captured.values.inputs = copies(op.inputs())?;
        }
        Ok(())
    }

    fn after(&self, op: &ObservedOp) -> Result<()> {
        let mut captured = lock(&self.captured);
        if self.is_operator(op) {
            if captured.count == self.place.repetition {
                captured.values.outputs = copies(op.outputs())?;
            }
            captured.count += 1;
        }
        Ok(())
    }
}

fn copies(values: &[ObservedValue]) -> Result<Vec<SlotValue>> {
    let copy = |value: &ObservedValue| {
        Ok(SlotValue { slot: value.slot(), name: value.name().into(), value: value.tensor()? })
    };
    values.iter().map(copy).collect()
}

/// The content of a mutex: a panic of another observer leaves it valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
