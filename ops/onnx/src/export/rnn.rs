//! Recurrent layers as nodes `LSTM`, `GRU` and `RNN`, which are a native form: runtimes have fused kernels for them, and
//! run the steps of a `Scan` one node at a time. Layers whose gradient reads what the steps compute are compositions.

use autobwd::{DType, op::Rule};
use autobwd_ops::rnn::{RnnAttrs, RnnLayers, RnnMode};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(RnnLayers);

/// The gates in the order of ONNX, by their positions in the order of the library.
fn onnx_gates(mode: RnnMode) -> &'static [i64] {
    match mode {
        RnnMode::Lstm => &[0, 3, 1, 2],
        RnnMode::Gru => &[1, 0, 2],
        RnnMode::Tanh | RnnMode::Relu => &[0],
    }
}

/// Rows from `start` up to `end`.
fn rows(x: &Onnx, start: i64, end: i64) -> Onnx {
    x.node("Slice", &[&x.ints(&[start]), &x.ints(&[end]), &x.ints(&[0])], &[])
}

/// Values one after another along the first axis.
fn stacked(values: &[Onnx]) -> Option<Onnx> {
    let (first, others) = values.split_first()?;
    Some(first.concat(&others.iter().collect::<Vec<_>>(), 0))
}

/// Weights or biases with the rows of each gate in the order of ONNX.
fn reordered(x: &Onnx, rnn: &RnnAttrs) -> Onnx {
    let (gates, units) = (onnx_gates(rnn.mode), i64::from(rnn.hidden_size));
    let parts: Vec<Onnx> = gates.iter().map(|gate| rows(x, gate * units, (gate + 1) * units)).collect();
    if gates.len() == 1 { x.clone() } else { stacked(&parts).unwrap_or_else(|| x.clone()) }
}

impl Rule<Onnx> for RnnLayers<Onnx> {
    fn fits(&self) -> bool {
        !self.rnn.drops() && (self.rnn.is_test || !self.reserve.is_read())
    }

    fn apply(&mut self) {
        let (rnn, weights) = (&self.rnn, &self.weight_list);
        let (directions, half) = (1 + usize::from(rnn.is_bidirec), weights.len() / 2);
        // The operator takes lengths out of bounds as the nearest one.
        let lengths = self.sequence_length.as_ref().map(|given| {
            let steps = rows(&self.input.shape(), 0, 1).cast(DType::I32);
            let given = given.cast(DType::I32).node("Min", &[&steps], &[]);
            given.node("Max", &[&given.number(0.0)], &[])
        });
        // ONNX Runtime returns 0 as the last states of sequences without a step.
        let is_empty = lengths.as_ref().map(|lengths| lengths.equal(&lengths.number(0.0)).unsqueeze(&[0, 2]));
        let (mut x, mut lasts) = (self.input.clone(), vec![vec![]; self.pre_state.len()]);
        for layer in 0..rnn.num_layers as usize {
            let numbers = layer * directions..(layer + 1) * directions;
            let weight = |i: usize| {
                let of = |number: usize| reordered(&weights[2 * number + i], rnn).unsqueeze(&[0]);
                stacked(&numbers.clone().map(of).collect::<Vec<_>>())
            };
            let bias = |number: usize| {
                let [bias, recurrent] = [0, 1].map(|i| reordered(&weights[half + 2 * number + i], rnn));
                bias.concat(&[&recurrent], 0).unsqueeze(&[0])
            };
            let biases = stacked(&numbers.clone().map(bias).collect::<Vec<_>>());
            let [start, end] = [numbers.start as i64, numbers.end as i64];
            let one_layer = rnn.num_layers == 1;
            let first = |state: &Onnx| if one_layer { state.clone() } else { rows(state, start, end) };
            let firsts: Vec<Onnx> = self.pre_state.iter().map(first).collect();
            let (of_input, of_state) = (weight(0), weight(1));
            let mut inputs = vec![of_input.as_ref(), of_state.as_ref(), biases.as_ref(), lengths.as_ref()];
            inputs.extend(firsts.iter().map(Some));
            let results = node(&x, &inputs, rnn, 1 + firsts.len());
            let Some((y, ends)) = results.split_first() else { return };
            x = match directions {
                1 => y.squeeze(&[1]),
                // `[steps, directions, batch, units]`
                _ => {
                    let attrs = [("axis", NodeAttr::Int(1)), ("num_outputs", NodeAttr::Int(2))];
                    let [one, other] = y.nodes("Split", &[], &attrs).map(|part: Onnx| part.squeeze(&[1]));
                    one.concat(&[&other], 2)
                }
            };
            for ((lasts, last), first) in lasts.iter_mut().zip(ends).zip(&firsts) {
                lasts.push(is_empty.as_ref().map_or(last.clone(), |none| none.select(first, last)));
            }
        }
        self.out = x;
        for (state, lasts) in self.state.iter_mut().zip(lasts) {
            *state = stacked(&lasts).unwrap_or_else(|| state.clone());
        }
        self.dropout_state = self.dropout_state.as_ref().map(|masks| masks.number(0.0));
        self.reserve = self.reserve.number(0.0);
    }
}

/// The node of one layer.
fn node(x: &Onnx, inputs: &[Option<&Onnx>], rnn: &RnnAttrs, results: usize) -> Vec<Onnx> {
    let (direction, relu) = match rnn.is_bidirec {
        true => ("bidirectional", &["Relu"; 2][..]),
        false => ("forward", &["Relu"][..]),
    };
    let mut attrs = vec![
        ("hidden_size", NodeAttr::Int(rnn.hidden_size.into())),
        ("direction", NodeAttr::Text(direction)),
    ];
    let op = match rnn.mode {
        RnnMode::Lstm => "LSTM",
        RnnMode::Gru => {
            attrs.push(("linear_before_reset", NodeAttr::Int(1)));
            "GRU"
        }
        RnnMode::Tanh => "RNN",
        RnnMode::Relu => {
            attrs.push(("activations", NodeAttr::Texts(relu)));
            "RNN"
        }
    };
    x.many(op, inputs, &attrs, results)
}
