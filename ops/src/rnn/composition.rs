//! The compositions of recurrent layers and of their gradient.

use autobwd::{Composition, DType, Expr, New, emit};

use super::{RnnAttrs, RnnGrad, RnnLayers};
use crate::{
    DimExpr, Math,
    dropout::{DropoutImplementation, DropoutOp},
    math::{self, concat, filled, positions, stack},
    matmul::product,
    units::{UnitResults, UnitSteps, Units, joined, summed_product},
};

/// The inputs that the layers and their gradient share.
struct Layers<'a> {
    rnn: &'a RnnAttrs,
    weights: &'a [Expr],
    mask: Option<Expr>,
}

impl<'a> Layers<'a> {
    fn of(rnn: &'a RnnAttrs, weights: &'a [Expr], input: &Expr, lengths: &Option<Expr>) -> Layers<'a> {
        let mask = lengths.as_ref().map(|lengths| {
            let steps = positions(input.builder(), &input.dim(0)).unsqueeze(&[1, 2]);
            let runs = lengths.cast(DType::I64).unsqueeze(&[0, 2]).greater_than(&steps);
            runs.expand_to(&[input.dim(0), input.dim(1), i64::from(rnn.hidden_size).into()])
        });
        Layers { rnn, weights, mask }
    }

    /// The number of a direction of a layer among all.
    fn number(&self, layer: usize, direction: usize) -> usize {
        layer * self.rnn.directions() + direction
    }

    /// The weights and the bias of the projections of a direction's input.
    fn projection(&self, number: usize) -> [&Expr; 2] {
        [2 * number, self.weights.len() / 2 + 2 * number].map(|i| &self.weights[i])
    }

    /// The recurrent units of a direction, and their bias.
    fn units(&self, number: usize) -> (Units, &Expr) {
        let weight = self.weights[2 * number + 1].clone();
        let reverse = number % self.rnn.directions() == 1;
        let units = Units { mode: self.rnn.mode, weight, transposed: true, mask: self.mask.clone(), reverse };
        (units, &self.weights[self.weights.len() / 2 + 2 * number + 1])
    }

    /// The output of a layer without dropped elements, and the mask of the others.
    fn dropped(&self, x: &Expr, layer: usize) -> (Expr, Expr) {
        let op = emit(DropoutOp {
            x: x.into(),
            seed_tensor: None,
            out: New,
            mask: New,
            dropout_prob: self.rnn.dropout_prob,
            dropout_implementation: DropoutImplementation::UpscaleInTrain,
            is_test: false,
            fix_seed: false,
            seed: self.rnn.seed_behind(layer),
        });
        (op.out, op.mask)
    }
}

impl Composition for RnnLayers<Expr> {
    fn compose(&mut self) {
        let all = Layers::of(&self.rnn, &self.weight_list, &self.input, &self.sequence_length);
        let (layers, directions) = (self.rnn.num_layers as usize, self.rnn.directions());
        let (mut reserve, mut dropped, mut lasts) = (vec![], vec![], vec![vec![]; self.pre_state.len()]);
        let mut x = self.input.clone();
        for layer in 0..layers {
            let mut outs = vec![];
            for number in all.number(layer, 0)..all.number(layer, directions) {
                let ([weight, bias], (units, recurrent_bias)) = (all.projection(number), all.units(number));
                let firsts: Vec<Expr> = self.pre_state.iter().map(|state| element(state, number)).collect();
                let projected = product([&x, weight], [false, true]) + bias.clone();
                let UnitSteps { out, gates, after, last } =
                    units.forward(&projected, Some(recurrent_bias), &firsts);
                reserve.push(gates);
                for (after, first) in after.iter().zip(firsts) {
                    let first = first.unsqueeze(&[0]);
                    let states = if units.reverse { [after, &first] } else { [&first, after] };
                    reserve.push(concat(&states, 0));
                }
                outs.push(out);
                lasts.iter_mut().zip(last).for_each(|(lasts, last)| lasts.push(last));
            }
            x = joined(&outs, -1);
            if layer + 1 < layers {
                if self.rnn.drops() {
                    let (kept, mask) = all.dropped(&x, layer);
                    x = kept;
                    dropped.push(mask);
                }
                reserve.push(x.clone());
            }
        }
        self.out = x;
        self.state = lasts.iter().map(|lasts| stacked(lasts)).collect();
        let nothing = filled(self.input.builder(), DType::U8, "0", &[]);
        self.dropout_state = Some(if dropped.is_empty() { nothing.clone() } else { stacked(&dropped) });
        let reserve: Vec<Expr> = reserve.iter().map(|part| part.reshape(&[-1])).collect();
        self.reserve = if self.rnn.is_test { nothing } else { joined(&reserve, 0) };
    }
}

/// The parts of `Reserve`, one after another.
struct ReserveParts {
    reserve: Expr,
    at: DimExpr,
}

impl ReserveParts {
    fn next(&mut self, dims: &[DimExpr]) -> Expr {
        let end = &self.at + math::product(dims);
        let part = self.reserve.slice_to(0, &self.at, &end);
        self.at = end;
        part.reshape_to(dims)
    }
}

impl Composition for RnnGrad<Expr> {
    fn compose(&mut self) {
        let all = Layers::of(&self.rnn, &self.weight_list, &self.input, &self.sequence_length);
        let (layers, directions) = (self.rnn.num_layers as usize, self.rnn.directions());
        let units = i64::from(self.rnn.hidden_size);
        let of_steps = |steps: DimExpr, width: i64| [steps, self.input.dim(1), width.into()];
        let mut parts = ReserveParts { reserve: self.reserve.clone(), at: 0.into() };
        let (mut inputs, mut steps) = (vec![self.input.clone()], vec![]);
        for layer in 0..layers {
            for _ in 0..directions {
                let row = self.rnn.mode.row_parts() as i64 * units;
                let gates = parts.next(&of_steps(self.input.dim(0), row));
                let states = self.pre_state.iter().map(|_| of_steps(self.input.dim(0) + 1, units));
                steps.push((gates, states.map(|dims| parts.next(&dims)).collect::<Vec<_>>()));
            }
            if layer + 1 < layers {
                inputs.push(parts.next(&of_steps(self.input.dim(0), directions as i64 * units)));
            }
        }
        let half = self.weight_list.len() / 2;
        let mut dweights = vec![None; self.weight_list.len()];
        let mut dfirsts = vec![vec![None; layers * directions]; self.pre_state.len()];
        let mut dout = self.dout.clone();
        for layer in (0..layers).rev() {
            let mut dinputs = vec![];
            for number in all.number(layer, 0)..all.number(layer, directions) {
                let ([weight, _], (own, _), (gates, states)) =
                    (all.projection(number), all.units(number), &steps[number]);
                let but_last: Vec<Expr> = states.iter().map(|states| states.slice(0, 0, -1)).collect();
                let but_first: Vec<Expr> = states.iter().map(|states| states.slice(0, 1, i32::MAX)).collect();
                let (before, after) = if own.reverse { (but_first, but_last) } else { (but_last, but_first) };
                let column = (number % directions) as i32 * self.rnn.hidden_size;
                let gradients = own.backward(UnitResults {
                    gates,
                    before: &before,
                    after: &after,
                    dout: dout.slice(-1, column, column + self.rnn.hidden_size),
                    dcell: None,
                    dgates: None,
                    dlast: self.dstate.iter().map(|state| element(state, number)).collect(),
                });
                let [projected, recurrent] = [&gradients.projected, &gradients.recurrent];
                dweights[2 * number] = Some(summed_product(projected, &inputs[layer]));
                dweights[2 * number + 1] = Some(summed_product(recurrent, &before[0]));
                dweights[half + 2 * number] = Some(projected.sum(&[0, 1]));
                dweights[half + 2 * number + 1] = Some(recurrent.sum(&[0, 1]));
                dinputs.push(product([projected, weight], [false, false]));
                for (dfirsts, first) in dfirsts.iter_mut().zip(gradients.first) {
                    dfirsts[number] = Some(first);
                }
            }
            dout = dinputs.into_iter().reduce(|sum, term| sum + term).unwrap_or(dout);
            if layer > 0 && self.rnn.drops() {
                // Equal seeds give equal masks.
                dout = all.dropped(&dout, layer - 1).0;
            }
        }
        self.dinput = Some(dout);
        self.dweight_list = dweights;
        let dfirsts = dfirsts.into_iter().map(|firsts| firsts.into_iter().flatten().collect::<Vec<_>>());
        self.dpre_state = dfirsts.map(|firsts| Some(stacked(&firsts))).collect();
    }
}

/// The element of that number along the first axis.
fn element(x: &Expr, number: usize) -> Expr {
    x.slice(0, number as i32, number as i32 + 1).squeeze(&[0])
}

/// Values along a new first axis.
fn stacked(parts: &[Expr]) -> Expr {
    stack(&parts.iter().collect::<Vec<_>>(), 0)
}
