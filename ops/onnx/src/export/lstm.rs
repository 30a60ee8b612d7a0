//! LSTM over a sequence: a node `LSTM`, or its steps as a `Scan`.

use autobwd::{Result, Tensor, program::Var};
use autobwd_ops::{
    lstm::{LstmSequence, LstmSequenceGrad},
    rnn::RnnMode,
};

use super::{
    ExportOp, ExportRule,
    cells::{RecurrentUnits, UnitGradient, UnitResults},
    dims::OnnxDim,
    layer_node::{LayerNode, stacked, weight_gradient},
    onnx_graph::{OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<LstmSequence>(), rule::<LstmSequenceGrad>()]
}

/// A state before the first step; 0 if absent.
fn first_state(graph: &mut OnnxGraph<'_>, given: Option<Var>, gates: Var, units: i64) -> Result<OnnxValue> {
    if let Some(given) = given {
        return graph.read(given);
    }
    let batch = graph.run_dims(gates)?[1];
    graph.filled_to(graph.dtype(gates)?, 0.0, &[batch, OnnxDim::Known(units)])
}

/// The units of an LSTM whose gates have the dimensions of a variable.
fn lstm_units(graph: &OnnxGraph<'_>, gates: Var, weight: Var) -> Result<RecurrentUnits> {
    let desc = graph.desc(gates)?;
    Ok(RecurrentUnits {
        mode: RnnMode::Lstm,
        units: graph.dim(weight, 0)?,
        batch: desc.dims[1],
        dtype: desc.dtype,
        weight: graph.read(weight)?,
        bias: None,
        mask: None,
        reverse: false,
    })
}

/// The number of dimensions of a value that a variable has.
fn rank_of(graph: &OnnxGraph<'_>, value: OnnxValue) -> Option<usize> {
    let var = graph.values.iter().find(|(_, of_var)| **of_var == value)?;
    graph.rank(*var.0).ok()
}

/// The product and the bias that gates are computed from.
struct Projection {
    x: OnnxValue,
    weight: OnnxValue,
    bias: Option<OnnxValue>,
}

impl Projection {
    /// That of gates, `[steps, batch, 4 * units]`, if they are a product of a matrix, perhaps plus a bias.
    fn of(graph: &OnnxGraph<'_>, gates: OnnxValue) -> Option<Projection> {
        let (mut product, mut bias) = (gates, None);
        if let Some([sum, added]) = graph.operands("Add", gates) {
            if rank_of(graph, added) != Some(1) {
                return None;
            }
            (product, bias) = (sum, Some(added));
        }
        let [x, weight] = graph.operands("MatMul", product)?;
        let is_matrix = rank_of(graph, weight) == Some(2) && rank_of(graph, x) == Some(3);
        is_matrix.then_some(Projection { x, weight, bias })
    }
}

impl ExportOp for LstmSequence {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (gates, own) = (graph.read(self.gates)?, lstm_units(graph, self.gates, self.weight)?);
        let of_steps = [self.cell, self.activations].iter().any(|var| graph.needed.contains(var));
        if let Some(Projection { x, weight, bias }) = Projection::of(graph, gates).filter(|_| !of_steps) {
            let weights = vec![[graph.transposed(weight, 2), graph.transposed(own.weight, 2)]];
            let mut biases = None;
            if let Some(bias) = bias {
                let zeros = graph.tensor(&Tensor::zeros(own.dtype, &[4 * own.units as usize])?);
                biases = Some(vec![[bias, zeros]]);
            }
            let mut states = vec![];
            for state in [self.initial_hidden, self.initial_cell] {
                let state = state.map(|state| graph.read(state)).transpose()?;
                states.push(state.map(|state| graph.unsqueeze(state, &[0])).transpose()?);
            }
            let (mode, units, directions) = (RnnMode::Lstm, own.units, 1);
            let node = LayerNode { mode, units, directions, x, weights, biases, lengths: None, states };
            let hidden = node.append(graph)?[0];
            let hidden = graph.squeeze(hidden, &[1])?;
            graph.write(self.hidden, hidden);
            return Ok(());
        }
        let mut firsts = vec![];
        for state in [self.initial_hidden, self.initial_cell] {
            firsts.push(first_state(graph, state, self.gates, own.units)?);
        }
        let steps = own.forward(graph, gates, &firsts)?;
        graph.write(self.hidden, steps.after[0]);
        graph.write(self.cell, steps.after[1]);
        graph.write(self.activations, steps.gates);
        Ok(())
    }
}

impl ExportOp for LstmSequenceGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let own = lstm_units(graph, self.activations, self.weight)?;
        let (mut before, mut dlast) = (vec![], vec![]);
        for (initial, after) in [(self.initial_hidden, self.hidden), (self.initial_cell, self.cell)] {
            let first = first_state(graph, initial, self.activations, own.units)?;
            let first = graph.unsqueeze(first, &[0])?;
            let after = graph.read(after)?;
            let ends = [graph.ints(&[0])?, graph.ints(&[-1])?, graph.ints(&[0])?];
            let earlier = graph.op("Slice", &[after, ends[0], ends[1], ends[2]], &[]);
            before.push(stacked(graph, &[first, earlier]));
            dlast.push(first_state(graph, None, self.activations, own.units)?);
        }
        let read = |graph: &OnnxGraph<'_>, var: Option<Var>| var.map(|var| graph.read(var)).transpose();
        let results = UnitResults {
            dout: graph.read(self.dhidden)?,
            dcell: read(graph, self.dcell)?,
            dgates: read(graph, self.dactivations)?,
            dlast,
        };
        let activations = graph.read(self.activations)?;
        let UnitGradient { projected, first, .. } = own.backward(graph, (activations, &before), &results)?;
        graph.write(self.dgates, projected);
        if let Some(dweight) = self.dweight {
            let value = weight_gradient(graph, [before[0], projected], [own.units, 4 * own.units])?;
            graph.write(dweight, value);
        }
        graph.write(self.dinitial_hidden, first[0]);
        graph.write(self.dinitial_cell, first[1]);
        Ok(())
    }
}
