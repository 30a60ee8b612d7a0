//! The composition of recurrent layers, step by step.

use autobwd::{Composition, DType, Error, ErrorKind, Expr, New, emit};

use super::{RnnLayers, RnnMode};
use crate::{
    Math,
    dropout::{DropoutImplementation, DropoutOp},
    fill::FillConstant,
    math::concat,
    matmul::MatmulV2,
};

impl Composition for RnnLayers<Expr> {
    fn compose(&mut self) {
        let Some(steps) = self.input.dims()[0].get() else {
            let text = "the number of steps must be known, because this gradient is computed step by step";
            self.out = self.input.builder().failed(Error::new(ErrorKind::NoGradient, text));
            return;
        };
        let masks = self.masks(steps);
        let (layers, directions) = (self.rnn.num_layers as usize, self.rnn.directions());
        let (mut reserve, mut dropped, mut lasts) = (vec![], vec![], vec![vec![]; self.pre_state.len()]);
        let mut x = self.input.clone();
        for layer in 0..layers {
            let mut outs = vec![];
            for direction in 0..directions {
                let unit = self.unit(&x, layer * directions + direction, direction == 1, &masks);
                outs.push(unit.out);
                reserve.push(unit.gates);
                for (lasts, (all, last)) in lasts.iter_mut().zip(unit.states) {
                    reserve.push(all);
                    lasts.push(last);
                }
            }
            x = joined(&outs, -1);
            if layer + 1 < layers {
                if self.rnn.drops() {
                    let (kept, mask) = self.dropped(&x, layer);
                    x = kept;
                    dropped.push(mask.unsqueeze(&[0]));
                }
                reserve.push(x.clone());
            }
        }
        self.out = x;
        self.state = lasts.iter().map(|lasts| joined(lasts, 0)).collect();
        let nothing = self.constant(vec![], DType::U8, 0.0);
        self.dropout_state = Some(if dropped.is_empty() { nothing.clone() } else { joined(&dropped, 0) });
        let reserve: Vec<Expr> = reserve.iter().map(|part| part.reshape(&[-1])).collect();
        self.reserve = if self.rnn.is_test { nothing } else { joined(&reserve, 0) };
    }
}

/// One direction of a layer.
struct Unit {
    out: Expr,
    gates: Expr,
    /// All states of each kind, and the last.
    states: Vec<(Expr, Expr)>,
}

impl RnnLayers<Expr> {
    /// For each step, 1 for sequences that have it, else 0: `[1, batch, 1]`.
    fn masks(&self, steps: usize) -> Option<Vec<Expr>> {
        let lengths = self.sequence_length.as_ref()?.unsqueeze(&[0, 2]);
        let mask = |step: usize| {
            let step = self.constant(vec![1], lengths.dtype(), step as f32);
            lengths.greater_than(&step).cast(self.input.dtype())
        };
        Some((0..steps).map(mask).collect())
    }

    fn constant(&self, shape: Vec<i64>, dtype: DType, value: f32) -> Expr {
        let fill = FillConstant { shape, dtype, value, ..FillConstant::of(New) };
        self.input.builder().emit(fill).out
    }

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

    fn unit(&self, x: &Expr, part: usize, reverse: bool, masks: &Option<Vec<Expr>>) -> Unit {
        let count = self.weight_list.len() / 2;
        let [weight, recurrent, bias, recurrent_bias] =
            [2 * part, 2 * part + 1, count + 2 * part, count + 2 * part + 1].map(|i| &self.weight_list[i]);
        let steps = x.dims()[0].get().unwrap_or_default();
        let projected = product(x, weight) + bias.clone();
        let slice = |x: &Expr, i: usize| x.slice(0, i as i32, i as i32 + 1);
        let mut states: Vec<Vec<Expr>> =
            self.pre_state.iter().map(|state| vec![slice(state, part)]).collect();
        let (mut outs, mut gates) = (vec![], vec![]);
        for i in 0..steps {
            let step = if reverse { steps - 1 - i } else { i };
            let before: Vec<&Expr> = states.iter().map(|states| &states[i]).collect();
            let added = product(before[0], recurrent) + recurrent_bias.clone();
            let (mut row, mut next) = self.step(&slice(&projected, step), &added, &before);
            let mut out = next[0].clone();
            if let Some(masks) = masks {
                let (mask, rest) = (&masks[step], 1.0 - masks[step].clone());
                (row, out) = (&row * mask, &out * mask);
                next = next.iter().zip(&before).map(|(next, before)| next * mask + *before * &rest).collect();
            }
            outs.push(out);
            gates.push(row);
            states.iter_mut().zip(next).for_each(|(states, next)| states.push(next));
        }
        let last = |states: &[Expr]| states.last().cloned().unwrap_or_else(|| x.clone());
        let lasts: Vec<Expr> = states.iter().map(|states| last(states)).collect();
        if reverse {
            [&mut outs, &mut gates].into_iter().chain(&mut states).for_each(|all| all.reverse());
        }
        let states = states.iter().map(|states| joined(states, 0)).zip(lasts).collect();
        Unit { out: joined(&outs, 0), gates: joined(&gates, 0), states }
    }

    /// The row of activated gates, and the next states.
    fn step(&self, x: &Expr, added: &Expr, before: &[&Expr]) -> (Expr, Vec<Expr>) {
        let units = self.rnn.hidden_size;
        let parts = |x: &Expr, count: usize| x.split(&vec![units; count], -1);
        match (self.rnn.mode, before) {
            (RnnMode::Lstm, [_, cell]) => {
                let parts = parts(&(x + added), 4);
                let (i, f) = (parts[0].sigmoid(), parts[1].sigmoid());
                let (g, o) = (parts[2].tanh(), parts[3].sigmoid());
                let next = &f * *cell + &i * &g;
                (concat(&[&i, &f, &g, &o], -1), vec![&o * &next.tanh(), next])
            }
            (RnnMode::Gru, [before, ..]) => {
                let (x, added) = (parts(x, 3), parts(added, 3));
                let (r, z) = ((&x[0] + &added[0]).sigmoid(), (&x[1] + &added[1]).sigmoid());
                let m = (&x[2] + &r * &added[2]).tanh();
                (concat(&[&m, &r, &z, &added[2]], -1), vec![(*before - &m) * &z + &m])
            }
            (mode, _) => {
                let sum = x + added;
                let next = if mode == RnnMode::Relu { sum.relu() } else { sum.tanh() };
                (next.clone(), vec![next])
            }
        }
    }
}

fn joined(parts: &[Expr], axis: i32) -> Expr {
    concat(&parts.iter().collect::<Vec<_>>(), axis)
}

fn product(x: &Expr, weight: &Expr) -> Expr {
    emit(MatmulV2 { x: x.into(), y: weight.into(), out: New, trans_x: false, trans_y: true }).out
}
