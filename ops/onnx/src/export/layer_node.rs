//! Nodes `LSTM`, `GRU` and `RNN`.
//!
//! A recurrent layer becomes one node. If its gradient needs the per-step values, it becomes a `Scan` (`cells`), and
//! the gradient finds them through `Reserve`.

use autobwd::Result;
use autobwd_ops::rnn::RnnMode;

use super::onnx_graph::{NodeAttr, OnnxGraph, OnnxValue};

/// The gates in the order of ONNX, by their positions in that of the library.
fn onnx_gates(mode: RnnMode) -> &'static [i64] {
    match mode {
        RnnMode::Lstm => &[0, 3, 1, 2],
        RnnMode::Gru => &[1, 0, 2],
        RnnMode::Tanh | RnnMode::Relu => &[0],
    }
}

/// Rows of weights, those of each gate one behind the other, in the order of ONNX.
fn reordered(graph: &mut OnnxGraph<'_>, x: OnnxValue, mode: RnnMode, units: i64) -> Result<OnnxValue> {
    let gates = onnx_gates(mode);
    if gates.len() == 1 {
        return Ok(x);
    }
    let mut rows = vec![];
    for gate in gates {
        let ends = [graph.ints(&[gate * units])?, graph.ints(&[(gate + 1) * units])?, graph.ints(&[0])?];
        rows.push(graph.op("Slice", &[x, ends[0], ends[1], ends[2]], &[]));
    }
    Ok(graph.op("Concat", &rows, &[("axis", NodeAttr::Int(0))]))
}

/// Values one behind the other along the first axis.
pub(super) fn stacked(graph: &mut OnnxGraph<'_>, values: &[OnnxValue]) -> OnnxValue {
    match values {
        [value] => *value,
        values => graph.op("Concat", values, &[("axis", NodeAttr::Int(0))]),
    }
}

/// Values along a new first axis.
pub(super) fn listed(graph: &mut OnnxGraph<'_>, values: &[OnnxValue]) -> Result<OnnxValue> {
    let values = values.iter().map(|value| graph.unsqueeze(*value, &[0])).collect::<Result<Vec<_>>>()?;
    Ok(stacked(graph, &values))
}

/// `xᵀ · y`, summed over all steps and sequences.
pub(super) fn weight_gradient(
    graph: &mut OnnxGraph<'_>,
    [x, y]: [OnnxValue; 2],
    widths: [i64; 2],
) -> Result<OnnxValue> {
    let (x, y) = (graph.reshape(x, &[-1, widths[0]])?, graph.reshape(y, &[-1, widths[1]])?);
    let x = graph.transposed(x, 2);
    Ok(graph.op("MatMul", &[x, y], &[]))
}

/// A node of one layer.
pub(super) struct LayerNode {
    pub(super) mode: RnnMode,
    pub(super) units: i64,
    pub(super) directions: usize,
    pub(super) x: OnnxValue,
    /// For each direction, the weights of inputs and states, `[gates * units, ..]`.
    pub(super) weights: Vec<[OnnxValue; 2]>,
    /// For each direction, what is added to both products, `[gates * units]`.
    pub(super) biases: Option<Vec<[OnnxValue; 2]>>,
    /// int32, from 0 to the number of steps.
    pub(super) lengths: Option<OnnxValue>,
    /// States before the first step, `[directions, batch, units]`.
    pub(super) states: Vec<Option<OnnxValue>>,
}

impl LayerNode {
    /// The outputs of all steps, `[steps, directions, batch, units]`, and the last states.
    pub(super) fn append(&self, graph: &mut OnnxGraph<'_>) -> Result<Vec<OnnxValue>> {
        let mut weights = vec![];
        for i in 0..2 {
            let mut parts = vec![];
            for weights in &self.weights {
                parts.push(reordered(graph, weights[i], self.mode, self.units)?);
            }
            weights.push(listed(graph, &parts)?);
        }
        let mut bias = None;
        if let Some(biases) = &self.biases {
            let mut parts = vec![];
            for pair in biases {
                let pair = [
                    reordered(graph, pair[0], self.mode, self.units)?,
                    reordered(graph, pair[1], self.mode, self.units)?,
                ];
                parts.push(stacked(graph, &pair));
            }
            bias = Some(listed(graph, &parts)?);
        }
        let op = match self.mode {
            RnnMode::Lstm => "LSTM",
            RnnMode::Gru => "GRU",
            RnnMode::Tanh | RnnMode::Relu => "RNN",
        };
        let direction = if self.directions == 2 { "bidirectional" } else { "forward" };
        let relu = vec!["Relu"; self.directions];
        let mut attrs =
            vec![("hidden_size", NodeAttr::Int(self.units)), ("direction", NodeAttr::Text(direction))];
        match self.mode {
            RnnMode::Gru => attrs.push(("linear_before_reset", NodeAttr::Int(1))),
            RnnMode::Relu => attrs.push(("activations", NodeAttr::Texts(&relu))),
            RnnMode::Lstm | RnnMode::Tanh => (),
        }
        let mut inputs = vec![Some(self.x), Some(weights[0]), Some(weights[1]), bias, self.lengths];
        inputs.extend(&self.states);
        while inputs.last() == Some(&None) {
            inputs.pop();
        }
        Ok(graph.many(op, &inputs, &attrs, 1 + self.states.len()))
    }
}
