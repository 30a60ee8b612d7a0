//! The LSTM over a sequence as a loop, whose size does not depend on the number of steps.

use autobwd_ops::lstm::{LstmSequence, LstmSequenceGrad};

use super::prelude::*;

rules!(LstmSequence, LstmSequenceGrad);

/// Equal parts of the last dimension: those of the gates `i`, `f`, `g`, `o`.
fn quarters(x: &Hlo) -> [Hlo; 4] {
    let (axis, units) = (x.rank() - 1, x.dims()[x.rank() - 1] / 4);
    [0, 1, 2, 3].map(|k| x.slice_axis(axis, k * units, (k + 1) * units))
}

/// The parts side by side.
fn joined(parts: [&Hlo; 4]) -> Hlo {
    Hlo::concat(&parts.map(Clone::clone), parts[0].rank() - 1).unwrap_or_else(|| parts[0].clone())
}

/// The state before the first step, 0 if absent.
fn first(initial: Option<&Hlo>, states: &Hlo) -> Hlo {
    initial.cloned().unwrap_or_else(|| states.full(states.dtype(), &states.dims()[1..], 0.0))
}

/// The states before each step.
fn before(initial: Option<&Hlo>, states: &Hlo) -> Hlo {
    let (steps, first) = (states.dims()[0], first(initial, states));
    let first = first.reshape(&[&[1], first.dims()].concat());
    let all_but_last = states.slice_axis(0, 0, steps - 1);
    Hlo::concat(&[first, all_but_last], 0).unwrap_or_else(|| states.clone())
}

/// Runs `body` for each step; its first state counts them from 0.
fn each_step(steps: usize, states: Vec<Hlo>, body: impl FnOnce(&Hlo, &[Hlo]) -> Vec<Hlo>) -> Vec<Hlo> {
    let Some(of) = states.first() else { return vec![] };
    let count = of.full(HloDType::I32, &[], 0.0);
    let end = count.full_like(steps as f64);
    let all = [vec![count], states].concat();
    let next = |all: &[Hlo]| [vec![&all[0] + 1.0], body(&all[0], &all[1..])].concat();
    Hlo::while_loop(&all, |all| all[0].less(&end), next).split_off(1)
}

impl Rule<Hlo> for LstmSequence<Hlo> {
    fn apply(&mut self) {
        let LstmSequence { gates, weight, hidden, cell, activations, .. } = self;
        let zeros = [&*hidden, cell, activations].map(|out| out.full_like(0.0));
        if hidden.numel() == 0 {
            [*hidden, *cell, *activations] = zeros;
            return;
        }
        let initial = [&self.initial_hidden, &self.initial_cell].map(|state| first(state.as_ref(), hidden));
        let states = each_step(hidden.dims()[0], [initial.to_vec(), zeros.to_vec()].concat(), |t, states| {
            let [before, cell, hiddens, cells, activations] = [0, 1, 2, 3, 4].map(|k| &states[k]);
            let [i, f, g, o] = quarters(&(gates.at(t) + before.matmul(weight)));
            let [i, f, g, o] = [i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()];
            let cell = &f * cell + &i * &g;
            let hidden = &o * &cell.tanh();
            let all = activations.set_at(t, &joined([&i, &f, &g, &o]));
            vec![hidden.clone(), cell.clone(), hiddens.set_at(t, &hidden), cells.set_at(t, &cell), all]
        });
        if let [_, _, hiddens, cells, all] = &states[..] {
            (*hidden, *cell, *activations) = (hiddens.clone(), cells.clone(), all.clone());
        }
    }
}

impl Rule<Hlo> for LstmSequenceGrad<Hlo> {
    fn apply(&mut self) {
        if self.hidden.numel() == 0 {
            let outs =
                [&mut self.dgates, &mut self.dweight, &mut self.dinitial_hidden, &mut self.dinitial_cell];
            outs.into_iter().flatten().for_each(|out| *out = out.full_like(0.0));
            return;
        }
        let (steps, hidden, cell, weight) = (self.hidden.dims()[0], &self.hidden, &self.cell, &self.weight);
        // What does not depend on later steps, for all steps together.
        let ([i, f, g, o], tanh) = (quarters(&self.activations), cell.tanh());
        let factors = joined([&g, &before(self.initial_cell.as_ref(), cell), &i, &tanh]);
        let slope = |gate: &Hlo| gate - &gate.square();
        let slopes = joined([&slope(&i), &slope(&f), &(-g.square() + 1.0), &slope(&o)]);
        let of_cell = &o * (-tanh.square() + 1.0);
        let state = first(None, hidden);
        let start = vec![state.clone(), state, self.activations.full_like(0.0)];
        let states = each_step(steps, start, |count, states| {
            let [back_hidden, back_cell, dgates] = [0, 1, 2].map(|k| &states[k]);
            let t = &(-count + (steps as f64 - 1.0));
            let dhidden = self.dhidden.at(t) + back_hidden;
            let mut dcell = &dhidden * of_cell.at(t) + back_cell;
            if let Some(given) = &self.dcell {
                dcell = dcell + given.at(t);
            }
            let mut of_gates = joined([&dcell, &dcell, &dcell, &dhidden]) * factors.at(t);
            if let Some(given) = &self.dactivations {
                of_gates = of_gates + given.at(t);
            }
            let of_gates = of_gates * slopes.at(t);
            vec![of_gates.matmul(&weight.transposed()), dcell * f.at(t), dgates.set_at(t, &of_gates)]
        });
        let [back_hidden, back_cell, dgates] = &states[..] else { return };
        if let Some(out) = &mut self.dweight {
            let before = before(self.initial_hidden.as_ref(), hidden);
            *out = before.dot(dgates, &[(0, 0), (1, 1)], &[]);
        }
        let outs = [&mut self.dgates, &mut self.dinitial_hidden, &mut self.dinitial_cell];
        for (out, value) in outs.into_iter().zip([dgates, back_hidden, back_cell]) {
            if let Some(out) = out {
                *out = value.clone();
            }
        }
    }
}
