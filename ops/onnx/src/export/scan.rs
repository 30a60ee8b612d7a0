//! Recurrences that the rule of an operator writes, as nodes `Scan`.

use autobwd::{DType, Dims, Result};

use super::{
    nodes::TypedValue,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
};

/// A `Scan` under construction.
#[derive(Default)]
pub(super) struct ScanNode {
    firsts: Vec<OnnxValue>,
    states: Vec<TypedValue>,
    sequences: Vec<OnnxValue>,
    elements: Vec<TypedValue>,
}

/// What a `Scan` returns.
pub(super) struct ScanResults {
    /// The states after the last step.
    pub(super) last: Vec<OnnxValue>,
    /// Sequences of what the steps have computed.
    pub(super) stacked: Vec<OnnxValue>,
}

impl ScanNode {
    /// A state within a step; `first` is its value before the first step.
    pub(super) fn state(
        &mut self,
        graph: &mut OnnxGraph<'_>,
        first: OnnxValue,
        dtype: DType,
        dims: &Dims,
    ) -> OnnxValue {
        let value = graph.unnamed();
        self.firsts.push(first);
        self.states.push(TypedValue { value, dtype, dims: dims.clone() });
        value
    }

    /// The current element of a sequence within a step.
    pub(super) fn element(
        &mut self,
        graph: &mut OnnxGraph<'_>,
        sequence: OnnxValue,
        dtype: DType,
        dims: Dims,
    ) -> OnnxValue {
        let value = graph.unnamed();
        self.sequences.push(sequence);
        self.elements.push(TypedValue { value, dtype, dims });
        value
    }

    /// Appends the node. `step` writes a step and returns the next states, and what is stacked; `reverse` begins with
    /// the last elements.
    pub(super) fn finish(
        self,
        graph: &mut OnnxGraph<'_>,
        reverse: bool,
        step: impl FnOnce(&mut OnnxGraph<'_>) -> Result<(Vec<OnnxValue>, Vec<TypedValue>)>,
    ) -> Result<ScanResults> {
        let around = graph.enter();
        let (next, stacked, failed) = match step(graph) {
            Ok((next, stacked)) => (next, stacked, None),
            Err(e) => (vec![], vec![], Some(e)),
        };
        let stacks = stacked.len();
        let next =
            next.into_iter().zip(&self.states).map(|(value, state)| TypedValue { value, ..state.clone() });
        let outputs = next.chain(stacked).collect();
        let inputs = self.states.iter().chain(&self.elements).cloned().collect();
        let body = graph.leave(around, inputs, outputs);
        if let Some(e) = failed {
            return Err(e);
        }
        let count = self.sequences.len();
        let (input_directions, output_directions) = (vec![1; count], vec![1; stacks]);
        let attrs = [
            ("num_scan_inputs", NodeAttr::Int(count as i64)),
            ("scan_input_directions", NodeAttr::Ints(&input_directions)),
            ("scan_output_directions", NodeAttr::Ints(&output_directions)),
        ];
        let attrs = if reverse { &attrs[..] } else { &attrs[..1] };
        let states = self.firsts.len();
        let inputs = self.firsts.into_iter().chain(self.sequences).map(Some).collect();
        let mut last = graph.node("Scan", inputs, attrs, vec![("body", body)], states + stacks);
        let stacked = last.split_off(states);
        Ok(ScanResults { last, stacked })
    }
}
