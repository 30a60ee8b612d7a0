//! Recurrent units, step by step: a `Scan` over their steps, and one from the last step to the first for the gradient.

use autobwd::{DType, Dims, Result, tensor::Dim};
use autobwd_ops::rnn::RnnMode;

use super::{
    nodes::TypedValue,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    scan::{ScanNode, ScanResults},
};

/// One direction of a layer of recurrent units.
pub(super) struct RecurrentUnits {
    pub(super) mode: RnnMode,
    pub(super) units: i64,
    pub(super) batch: Dim,
    pub(super) dtype: DType,
    /// Recurrent weights, `[units, gates * units]`.
    pub(super) weight: OnnxValue,
    /// Added to the products with the recurrent weights, `[gates * units]`.
    pub(super) bias: Option<OnnxValue>,
    /// 1 where a sequence has a step, else 0: `[steps, batch, 1]`.
    pub(super) mask: Option<OnnxValue>,
    /// From the last step to the first.
    pub(super) reverse: bool,
}

/// What the steps have computed, each `[steps, batch, ..]`.
pub(super) struct UnitSteps {
    pub(super) out: OnnxValue,
    /// Activated gates: `i, f, g, o` with LSTM, `m, r, z, n'` with GRU, else the new states.
    pub(super) gates: OnnxValue,
    /// The states before each step: hidden states, and cell states with LSTM.
    pub(super) before: Vec<OnnxValue>,
    /// The states after each step.
    pub(super) after: Vec<OnnxValue>,
    /// The states after the last step, `[batch, units]`.
    pub(super) last: Vec<OnnxValue>,
}

/// What a gradient begins with: the gradients of results.
pub(super) struct UnitResults {
    pub(super) dout: OnnxValue,
    /// Of the cell states after each step.
    pub(super) dcell: Option<OnnxValue>,
    /// Of activated gates.
    pub(super) dgates: Option<OnnxValue>,
    /// Of the states after the last step.
    pub(super) dlast: Vec<OnnxValue>,
}

/// Gradients of the pre-activations, `[steps, batch, gates * units]`, and of the states before the first step.
pub(super) struct UnitGradient {
    /// With respect to the input projections.
    pub(super) projected: OnnxValue,
    /// With respect to the products with the recurrent weights.
    pub(super) recurrent: OnnxValue,
    pub(super) first: Vec<OnnxValue>,
}

/// Equal parts along the last axis.
fn parts(graph: &mut OnnxGraph<'_>, x: OnnxValue, count: usize) -> Vec<OnnxValue> {
    let attrs = [("axis", NodeAttr::Int(-1)), ("num_outputs", NodeAttr::Int(count as i64))];
    graph.many("Split", &[Some(x)], &attrs, count)
}

fn joined(graph: &mut OnnxGraph<'_>, parts: &[OnnxValue]) -> OnnxValue {
    graph.op("Concat", parts, &[("axis", NodeAttr::Int(-1))])
}

impl RecurrentUnits {
    fn dims(&self, width: i64) -> Result<Dims> {
        Ok([self.batch].into_iter().chain(Dims::from_wire(&[width])?.iter().copied()).collect())
    }

    fn typed(&self, value: OnnxValue, width: i64) -> Result<TypedValue> {
        Ok(TypedValue { value, dtype: self.dtype, dims: self.dims(width)? })
    }

    /// Parts of a row of gates, and of a row of pre-activations.
    fn widths(&self) -> [i64; 2] {
        let counts = match self.mode {
            RnnMode::Lstm => [4, 4],
            RnnMode::Gru => [4, 3],
            RnnMode::Tanh | RnnMode::Relu => [1, 1],
        };
        counts.map(|count| count * self.units)
    }

    fn element(
        &self,
        graph: &mut OnnxGraph<'_>,
        scan: &mut ScanNode,
        sequence: OnnxValue,
        width: i64,
    ) -> Result<OnnxValue> {
        Ok(scan.element(graph, sequence, self.dtype, self.dims(width)?))
    }

    fn states(
        &self,
        graph: &mut OnnxGraph<'_>,
        scan: &mut ScanNode,
        firsts: &[OnnxValue],
    ) -> Result<Vec<OnnxValue>> {
        let dims = self.dims(self.units)?;
        Ok(firsts.iter().map(|first| scan.state(graph, *first, self.dtype, &dims)).collect())
    }

    fn one(&self, graph: &mut OnnxGraph<'_>) -> Result<OnnxValue> {
        graph.scalar(self.dtype, 1.0)
    }

    /// `1 - x`
    fn rest(&self, graph: &mut OnnxGraph<'_>, x: OnnxValue) -> Result<OnnxValue> {
        let one = self.one(graph)?;
        Ok(graph.sub(one, x))
    }

    /// `1 - x²`, the derivative of `tanh` where it is `x`.
    fn of_tanh(&self, graph: &mut OnnxGraph<'_>, x: OnnxValue) -> Result<OnnxValue> {
        let square = graph.mul(x, x);
        self.rest(graph, square)
    }

    /// `x * (1 - x)`, the derivative of `sigmoid` where it is `x`.
    fn of_sigmoid(&self, graph: &mut OnnxGraph<'_>, x: OnnxValue) -> Result<OnnxValue> {
        let rest = self.rest(graph, x)?;
        Ok(graph.mul(x, rest))
    }

    /// All steps, from the input projections, `[steps, batch, gates * units]`, and the states before the first step.
    pub(super) fn forward(
        &self,
        graph: &mut OnnxGraph<'_>,
        projected: OnnxValue,
        firsts: &[OnnxValue],
    ) -> Result<UnitSteps> {
        let ([row, width], mut scan) = (self.widths(), ScanNode::default());
        let before = self.states(graph, &mut scan, firsts)?;
        let x = self.element(graph, &mut scan, projected, width)?;
        let mask = self.mask.map(|mask| self.element(graph, &mut scan, mask, 1)).transpose()?;
        let count = before.len();
        let ScanResults { last, stacked } = scan.finish(graph, self.reverse, |graph| {
            let mut added = graph.op("MatMul", &[before[0], self.weight], &[]);
            if let Some(bias) = self.bias {
                added = graph.add(added, bias);
            }
            let (mut gates, mut next) = self.step(graph, x, added, &before);
            let mut out = next[0];
            if let Some(mask) = mask {
                let rest = self.rest(graph, mask)?;
                [gates, out] = [gates, out].map(|value| graph.mul(value, mask));
                for (next, before) in next.iter_mut().zip(&before) {
                    let [new, old] = [(*next, mask), (*before, rest)].map(|(x, y)| graph.mul(x, y));
                    *next = graph.add(new, old);
                }
            }
            let mut stacked = vec![self.typed(out, self.units)?, self.typed(gates, row)?];
            for state in before.iter().chain(&next) {
                stacked.push(self.typed(*state, self.units)?);
            }
            Ok((next, stacked))
        })?;
        let (before, after) = stacked[2..].split_at(count);
        Ok(UnitSteps {
            out: stacked[0],
            gates: stacked[1],
            before: before.to_vec(),
            after: after.to_vec(),
            last,
        })
    }

    /// The row of activated gates, and the next states.
    fn step(
        &self,
        graph: &mut OnnxGraph<'_>,
        x: OnnxValue,
        added: OnnxValue,
        before: &[OnnxValue],
    ) -> (OnnxValue, Vec<OnnxValue>) {
        let sigmoid = |graph: &mut OnnxGraph<'_>, x: OnnxValue| graph.op("Sigmoid", &[x], &[]);
        let tanh = |graph: &mut OnnxGraph<'_>, x: OnnxValue| graph.op("Tanh", &[x], &[]);
        match (self.mode, before) {
            (RnnMode::Lstm, [_, cell]) => {
                let sum = graph.add(x, added);
                let sums = parts(graph, sum, 4);
                let [i, f, o] = [0, 1, 3].map(|k| sigmoid(graph, sums[k]));
                let g = tanh(graph, sums[2]);
                let [kept, new] = [(f, *cell), (i, g)].map(|(x, y)| graph.mul(x, y));
                let cell = graph.add(kept, new);
                let shown = tanh(graph, cell);
                (joined(graph, &[i, f, g, o]), vec![graph.mul(o, shown), cell])
            }
            (RnnMode::Gru, _) => {
                let (x, added) = (parts(graph, x, 3), parts(graph, added, 3));
                let [r, z] = [0, 1].map(|k| {
                    let sum = graph.add(x[k], added[k]);
                    sigmoid(graph, sum)
                });
                let reset = graph.mul(r, added[2]);
                let sum = graph.add(x[2], reset);
                let m = tanh(graph, sum);
                let difference = graph.sub(before[0], m);
                let kept = graph.mul(difference, z);
                (joined(graph, &[m, r, z, added[2]]), vec![graph.add(kept, m)])
            }
            (mode, _) => {
                let sum = graph.add(x, added);
                let next = graph.op(if mode == RnnMode::Relu { "Relu" } else { "Tanh" }, &[sum], &[]);
                (next, vec![next])
            }
        }
    }

    /// The gradient, from what the steps have computed; of those, `gates` and `before` are read.
    pub(super) fn backward(
        &self,
        graph: &mut OnnxGraph<'_>,
        (gates, before): (OnnxValue, &[OnnxValue]),
        results: &UnitResults,
    ) -> Result<UnitGradient> {
        let ([row, width], mut scan) = (self.widths(), ScanNode::default());
        let weight = graph.transposed(self.weight, 2);
        let back = self.states(graph, &mut scan, &results.dlast)?;
        let gates = self.element(graph, &mut scan, gates, row)?;
        let mut states = vec![];
        for before in before {
            states.push(self.element(graph, &mut scan, *before, self.units)?);
        }
        let dout = self.element(graph, &mut scan, results.dout, self.units)?;
        let mut optional = |sequence: Option<OnnxValue>, width: i64| {
            sequence.map(|sequence| self.element(graph, &mut scan, sequence, width)).transpose()
        };
        let (mask, dcell) = (optional(self.mask, 1)?, optional(results.dcell, self.units)?);
        let dgates = optional(results.dgates, row)?;
        let ScanResults { last, stacked } = scan.finish(graph, !self.reverse, |graph| {
            let mut dnext = back.clone();
            dnext[0] = graph.add(back[0], dout);
            if let (Some(dcell), Some(dnext)) = (dcell, dnext.get_mut(1)) {
                *dnext = graph.add(*dnext, dcell);
            }
            if let Some(mask) = mask {
                dnext.iter_mut().for_each(|dnext| *dnext = graph.mul(*dnext, mask));
            }
            let [projected, recurrent, direct @ ..] =
                &self.step_gradient(graph, gates, dgates, &states, &dnext)?[..]
            else {
                return Ok((vec![], vec![]));
            };
            let mut dbefore = vec![graph.op("MatMul", &[*recurrent, weight], &[])];
            if let RnnMode::Lstm = self.mode {
                dbefore.extend(direct);
            } else if let [direct] = direct {
                dbefore[0] = graph.add(dbefore[0], *direct);
            }
            if let Some(mask) = mask {
                let rest = self.rest(graph, mask)?;
                for (dbefore, back) in dbefore.iter_mut().zip(&back) {
                    let kept = graph.mul(*back, rest);
                    *dbefore = graph.add(*dbefore, kept);
                }
            }
            Ok((dbefore, vec![self.typed(*projected, width)?, self.typed(*recurrent, width)?]))
        })?;
        Ok(UnitGradient { projected: stacked[0], recurrent: stacked[1], first: last })
    }

    /// Gradients of the pre-activations, by their two terms, and of a state before the step other than by the
    /// recurrent weights: of the cell state with LSTM, of the hidden state with GRU.
    fn step_gradient(
        &self,
        graph: &mut OnnxGraph<'_>,
        gates: OnnxValue,
        dgates: Option<OnnxValue>,
        before: &[OnnxValue],
        dnext: &[OnnxValue],
    ) -> Result<Vec<OnnxValue>> {
        let products = |graph: &mut OnnxGraph<'_>, pairs: &[(OnnxValue, OnnxValue)]| {
            pairs.iter().map(|(x, y)| graph.mul(*x, *y)).collect::<Vec<_>>()
        };
        match (self.mode, before, dnext) {
            (RnnMode::Lstm, [_, cell], [dhidden, dcell]) => {
                let gate = parts(graph, gates, 4);
                let &[i, f, g, o] = &gate[..] else { return Ok(vec![]) };
                let kept = products(graph, &[(f, *cell), (i, g)]);
                let next = graph.add(kept[0], kept[1]);
                let shown = graph.op("Tanh", &[next], &[]);
                let slope = self.of_tanh(graph, shown)?;
                let slope = graph.mul(o, slope);
                let through = graph.mul(*dhidden, slope);
                let dcell = graph.add(*dcell, through);
                let of_gates = [(dcell, g), (dcell, *cell), (dcell, i), (*dhidden, shown)];
                let of_gates = products(graph, &of_gates);
                let mut of_gates = joined(graph, &of_gates);
                if let Some(dgates) = dgates {
                    of_gates = graph.add(of_gates, dgates);
                }
                let mut slopes = vec![];
                for (k, gate) in gate.iter().enumerate() {
                    let slope =
                        if k == 2 { self.of_tanh(graph, *gate) } else { self.of_sigmoid(graph, *gate) };
                    slopes.push(slope?);
                }
                let slopes = joined(graph, &slopes);
                let sums = graph.mul(of_gates, slopes);
                Ok(vec![sums, sums, graph.mul(dcell, f)])
            }
            (RnnMode::Gru, [hidden, ..], [dhidden, ..]) => {
                let gate = parts(graph, gates, 4);
                let &[m, r, z, n] = &gate[..] else { return Ok(vec![]) };
                let (rest, difference) = (self.rest(graph, z)?, graph.sub(*hidden, m));
                let slopes =
                    [self.of_tanh(graph, m)?, self.of_sigmoid(graph, r)?, self.of_sigmoid(graph, z)?];
                let of_gates = products(graph, &[(*dhidden, rest), (*dhidden, difference), (*dhidden, z)]);
                let new = graph.mul(of_gates[0], slopes[0]);
                let reset = graph.mul(new, n);
                let d = products(graph, &[(reset, slopes[1]), (of_gates[1], slopes[2]), (new, r)]);
                let projected = joined(graph, &[d[0], d[1], new]);
                Ok(vec![projected, joined(graph, &d), of_gates[2]])
            }
            (mode, _, dnext) => {
                let slope = match mode {
                    RnnMode::Relu => {
                        let zero = graph.scalar(self.dtype, 0.0)?;
                        let is_above = graph.op("Greater", &[gates, zero], &[]);
                        graph.cast(is_above, self.dtype)
                    }
                    _ => self.of_tanh(graph, gates)?,
                };
                let sum = graph.mul(dnext[0], slope);
                Ok(vec![sum; 2])
            }
        }
    }
}
