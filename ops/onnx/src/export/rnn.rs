//! Recurrent layers: nodes `LSTM`, `GRU` and `RNN`, and their steps as `Scan` where a gradient reads these.

use std::rc::Rc;

use autobwd::{__private::internals::*, DType, Error, ErrorKind, Result, program::Var};
use autobwd_ops::rnn::{RnnAttrs, RnnGrad, RnnLayers};

use super::{
    ExportOp, ExportRule,
    cells::{RecurrentUnits, UnitGradient, UnitResults, UnitSteps},
    layer_node::{LayerNode, listed, stacked, weight_gradient},
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<RnnGrad>(), rule::<RnnLayers>()]
}

/// What the steps of recurrent layers have computed, for their gradient.
pub(super) struct RecurrentSteps {
    layers: Vec<LayerSteps>,
}

struct LayerSteps {
    x: OnnxValue,
    /// The units of each direction.
    units: Vec<(RecurrentUnits, UnitSteps)>,
}

/// The element of that number along the first axis.
fn part(graph: &mut OnnxGraph<'_>, x: OnnxValue, i: usize) -> Result<OnnxValue> {
    let i = graph.scalar(DType::I64, i as f64)?;
    Ok(graph.op("Gather", &[x, i], &[]))
}

/// The outputs of directions, one behind the other along the last axis.
fn side_by_side(graph: &mut OnnxGraph<'_>, parts: &[OnnxValue]) -> OnnxValue {
    match parts {
        [part] => *part,
        parts => graph.op("Concat", parts, &[("axis", NodeAttr::Int(2))]),
    }
}

/// The variables of recurrent layers.
struct RnnVars<'a> {
    rnn: &'a RnnAttrs,
    weights: &'a [Var],
    lengths: Option<Var>,
    input: Var,
}

impl RnnVars<'_> {
    fn directions(&self) -> usize {
        1 + usize::from(self.rnn.is_bidirec)
    }

    fn layers(&self) -> usize {
        self.rnn.num_layers as usize
    }

    fn units(&self) -> i64 {
        self.rnn.hidden_size.into()
    }

    /// The weights of inputs and states, and the biases of both, of a direction of a layer.
    fn parameters(&self, graph: &OnnxGraph<'_>, at: usize) -> Result<[OnnxValue; 4]> {
        let half = self.weights.len() / 2;
        let read = |i: usize| match self.weights.get(i) {
            Some(var) => graph.read(*var),
            None => Err(Error::internal("recurrent layers without some weight")),
        };
        Ok([read(2 * at)?, read(2 * at + 1)?, read(half + 2 * at)?, read(half + 2 * at + 1)?])
    }

    /// Outputs of directions, `[steps, directions, batch, units]`, as `[steps, batch, directions * units]`.
    fn merged(&self, graph: &mut OnnxGraph<'_>, y: OnnxValue) -> Result<OnnxValue> {
        let attrs = [("axis", NodeAttr::Int(1)), ("num_outputs", NodeAttr::Int(2))];
        let parts = if self.rnn.is_bidirec { graph.many("Split", &[Some(y)], &attrs, 2) } else { vec![y] };
        let parts = parts.iter().map(|part| graph.squeeze(*part, &[1])).collect::<Result<Vec<_>>>()?;
        Ok(side_by_side(graph, &parts))
    }

    /// All layers as nodes: the output and the last states.
    fn nodes(&self, graph: &mut OnnxGraph<'_>, states: &[Var]) -> Result<(OnnxValue, Vec<OnnxValue>)> {
        let mut lengths = None;
        if let Some(var) = self.lengths {
            let (given, steps) = (graph.read(var)?, graph.run_dims(self.input)?[0]);
            let (given, steps) = (graph.cast(given, DType::I32), graph.count(&[steps], DType::I32)?);
            let (given, zero) = (graph.op("Min", &[given, steps], &[]), graph.scalar(DType::I32, 0.0)?);
            lengths = Some(graph.op("Max", &[given, zero], &[]));
        }
        // ONNX Runtime returns 0 as the last states of sequences without a step.
        let mut is_empty = None;
        if let Some(lengths) = lengths {
            let zero = graph.scalar(DType::I32, 0.0)?;
            let none = graph.op("Equal", &[lengths, zero], &[]);
            is_empty = Some(graph.unsqueeze(none, &[0, 2])?);
        }
        let directions = self.directions();
        let (mut x, mut lasts) = (graph.read(self.input)?, vec![vec![]; states.len()]);
        for layer in 0..self.layers() {
            let (mut weights, mut biases, mut firsts) = (vec![], vec![], vec![]);
            for at in layer * directions..(layer + 1) * directions {
                let [of_input, of_state, bias, recurrent_bias] = self.parameters(graph, at)?;
                weights.push([of_input, of_state]);
                biases.push([bias, recurrent_bias]);
            }
            for state in states {
                let mut first = graph.read(*state)?;
                if self.layers() > 1 {
                    let ends = [layer, layer + 1].map(|end| (end * directions) as i64);
                    let ends = [graph.ints(&ends[..1])?, graph.ints(&ends[1..])?, graph.ints(&[0])?];
                    first = graph.op("Slice", &[first, ends[0], ends[1], ends[2]], &[]);
                }
                firsts.push(first);
            }
            let (mode, units, biases) = (self.rnn.mode, self.units(), Some(biases));
            let states = firsts.iter().copied().map(Some).collect();
            let node = LayerNode { mode, units, directions, x, weights, biases, lengths, states };
            let outputs = node.append(graph)?;
            x = self.merged(graph, outputs[0])?;
            for ((lasts, last), first) in lasts.iter_mut().zip(&outputs[1..]).zip(firsts) {
                lasts.push(match is_empty {
                    Some(is_empty) => graph.op("Where", &[is_empty, first, *last], &[]),
                    None => *last,
                });
            }
        }
        let lasts = lasts.iter().map(|lasts| stacked(graph, lasts)).collect();
        Ok((x, lasts))
    }

    /// For each step, 1 for sequences that have it, else 0: `[steps, batch, 1]`.
    fn mask(&self, graph: &mut OnnxGraph<'_>) -> Result<Option<OnnxValue>> {
        let Some(lengths) = self.lengths else { return Ok(None) };
        let (lengths, steps) = (graph.read(lengths)?, graph.run_dims(self.input)?[0]);
        let (lengths, steps) = (graph.cast(lengths, DType::I64), graph.range(steps)?);
        let (lengths, steps) = (graph.unsqueeze(lengths, &[0, 2])?, graph.unsqueeze(steps, &[1, 2])?);
        let runs = graph.op("Less", &[steps, lengths], &[]);
        Ok(Some(graph.cast(runs, graph.dtype(self.input)?)))
    }

    /// All layers step by step: the output, the last states, and what the steps have computed.
    fn steps(
        &self,
        graph: &mut OnnxGraph<'_>,
        states: &[Var],
    ) -> Result<(OnnxValue, Vec<OnnxValue>, RecurrentSteps)> {
        let (mask, directions) = (self.mask(graph)?, self.directions());
        let input = graph.desc(self.input)?;
        let (mut x, mut lasts, mut layers) = (graph.read(self.input)?, vec![vec![]; states.len()], vec![]);
        for layer in 0..self.layers() {
            let (mut outs, mut units) = (vec![], vec![]);
            for direction in 0..directions {
                let at = layer * directions + direction;
                let [of_input, of_state, bias, recurrent_bias] = self.parameters(graph, at)?;
                let of_input = graph.transposed(of_input, 2);
                let projected = graph.op("MatMul", &[x, of_input], &[]);
                let projected = graph.add(projected, bias);
                let own = RecurrentUnits {
                    mode: self.rnn.mode,
                    units: self.units(),
                    batch: input.dims[1],
                    dtype: input.dtype,
                    weight: graph.transposed(of_state, 2),
                    bias: Some(recurrent_bias),
                    mask,
                    reverse: direction == 1,
                };
                let mut firsts = vec![];
                for state in states {
                    let state = graph.read(*state)?;
                    firsts.push(part(graph, state, at)?);
                }
                let steps = own.forward(graph, projected, &firsts)?;
                outs.push(steps.out);
                lasts.iter_mut().zip(&steps.last).for_each(|(lasts, last)| lasts.push(*last));
                units.push((own, steps));
            }
            layers.push(LayerSteps { x, units });
            x = side_by_side(graph, &outs);
        }
        let lasts = lasts.iter().map(|lasts| listed(graph, lasts)).collect::<Result<_>>()?;
        Ok((x, lasts, RecurrentSteps { layers }))
    }
}

/// `Reserve` as a list of numbers.
fn reserve(graph: &mut OnnxGraph<'_>, steps: &RecurrentSteps) -> Result<OnnxValue> {
    let mut parts = vec![];
    for (i, layer) in steps.layers.iter().enumerate() {
        for (units, steps) in &layer.units {
            parts.push(steps.gates);
            for (before, last) in steps.before.iter().zip(&steps.last) {
                let last = graph.unsqueeze(*last, &[0])?;
                // By time: in the second direction, the last state is the first.
                let all = if units.reverse { [last, *before] } else { [*before, last] };
                parts.push(stacked(graph, &all));
            }
        }
        parts.extend(steps.layers.get(i + 1).map(|layer| layer.x));
    }
    let parts = parts.into_iter().map(|part| graph.reshape(part, &[-1])).collect::<Result<Vec<_>>>()?;
    Ok(stacked(graph, &parts))
}

impl ExportOp for RnnLayers {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let rnn = &self.rnn;
        if !rnn.is_test && rnn.dropout_prob > 0.0 && rnn.num_layers > 1 {
            return Err(Error::new(ErrorKind::Format, "random numbers have no form in ONNX"));
        }
        let vars =
            RnnVars { rnn, weights: &self.weight_list, lengths: self.sequence_length, input: self.input };
        let nothing = graph.scalar(DType::U8, 0.0)?;
        graph.write(self.dropout_state, nothing);
        let (out, lasts) = if !rnn.is_test && graph.needed.contains(&self.reserve) {
            let (out, lasts, steps) = vars.steps(graph, &self.pre_state)?;
            let value = reserve(graph, &steps)?;
            graph.write(self.reserve, value);
            graph.recurrent.insert(self.reserve, Rc::new(steps));
            (out, lasts)
        } else {
            graph.write(self.reserve, nothing);
            vars.nodes(graph, &self.pre_state)?
        };
        graph.write(self.out, out);
        self.state.iter().zip(lasts).for_each(|(state, last)| graph.write(*state, last));
        Ok(())
    }
}

impl ExportOp for RnnGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let steps = graph.recurrent.get(&self.reserve).cloned().ok_or_else(|| {
            let text = format!("`{}` is read before it has a value", graph.name(self.reserve));
            Error::new(ErrorKind::Program, text)
        })?;
        let vars = RnnVars {
            rnn: &self.rnn,
            weights: &self.weight_list,
            lengths: self.sequence_length,
            input: self.input,
        };
        let (directions, units, half) = (vars.directions(), vars.units(), self.weight_list.len() / 2);
        let mut dout = graph.read(self.dout)?;
        let mut dfirsts = vec![vec![]; self.dpre_state.len()];
        for (number, layer) in steps.layers.iter().enumerate().rev() {
            let douts = match directions {
                1 => vec![dout],
                _ => {
                    let attrs = [("axis", NodeAttr::Int(-1)), ("num_outputs", NodeAttr::Int(2))];
                    graph.many("Split", &[Some(dout)], &attrs, 2)
                }
            };
            let (mut dx, mut of_layer) = (None, vec![]);
            for (direction, (own, steps)) in layer.units.iter().enumerate() {
                let at = number * directions + direction;
                let mut dlast = vec![];
                for state in &self.dstate {
                    let state = graph.read(*state)?;
                    dlast.push(part(graph, state, at)?);
                }
                let results = UnitResults { dout: douts[direction], dcell: None, dgates: None, dlast };
                let UnitGradient { projected, recurrent, first } =
                    own.backward(graph, (steps.gates, &steps.before), &results)?;
                of_layer.push(first);
                let [of_input, ..] = vars.parameters(graph, at)?;
                let term = graph.op("MatMul", &[projected, of_input], &[]);
                dx = Some(dx.map_or(term, |dx| graph.add(dx, term)));
                let width = graph.dim(self.weight_list[2 * at], 0)?;
                let x_width = graph.dim(self.weight_list[2 * at], 1)?;
                let wanted = |i: usize| self.dweight_list.get(i).copied().flatten();
                if let Some(dweight) = wanted(2 * at) {
                    let value = weight_gradient(graph, [projected, layer.x], [width, x_width])?;
                    graph.write(dweight, value);
                }
                if let Some(dweight) = wanted(2 * at + 1) {
                    let value = weight_gradient(graph, [recurrent, steps.before[0]], [width, units])?;
                    graph.write(dweight, value);
                }
                for (i, value) in [projected, recurrent].into_iter().enumerate() {
                    if let Some(dbias) = wanted(half + 2 * at + i) {
                        let sum = graph.reduce("ReduceSum", value, &[0, 1], false)?;
                        graph.write(dbias, sum);
                    }
                }
            }
            // From the last layer to the first.
            for (k, dfirsts) in dfirsts.iter_mut().enumerate() {
                dfirsts.splice(..0, of_layer.iter().map(|first| first[k]));
            }
            dout = dx.unwrap_or(dout);
        }
        graph.write(self.dinput, dout);
        for (var, values) in self.dpre_state.iter().zip(&dfirsts) {
            if let Some(var) = var {
                let value = listed(graph, values)?;
                graph.write(*var, value);
            }
        }
        Ok(())
    }
}
