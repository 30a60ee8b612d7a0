//! The composition of the LSTM, step by step.

use std::array;

use autobwd::{Composition, Error, ErrorKind, Expr, New, emit};

use super::{LstmSequence, LstmSequenceGrad};
use crate::{Math, math::concat, matmul::MatmulV2, shape::Split};

impl Composition for LstmSequence<Expr> {
    fn compose(&mut self) {
        let (mut hidden, mut cell) = (first(&self.initial_hidden), first(&self.initial_cell));
        let (mut hiddens, mut cells, mut activations) = (vec![], vec![], vec![]);
        for gates in steps(&self.gates) {
            let [i, f, g, o] = quarters(&added(gates, hidden.map(|hidden| hidden.matmul(&self.weight))));
            let [i, f, g, o] = [i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()];
            let next = added(&i * &g, cell.map(|cell| &f * &cell));
            hiddens.push(&o * &next.tanh());
            cells.push(next);
            activations.push(concat(&[&i, &f, &g, &o], -1));
            (hidden, cell) = (hiddens.last().cloned(), cells.last().cloned());
        }
        // Without steps, all states are empty.
        let states = self.gates.slice(-1, 0, self.weight.dims()[0].get().unwrap_or(0) as i32);
        self.hidden = joined(&hiddens, &states);
        self.cell = joined(&cells, &states);
        self.activations = joined(&activations, &self.gates);
    }
}

impl Composition for LstmSequenceGrad<Expr> {
    fn compose(&mut self) {
        let ([i, f, g, o], tanh) = (quarters(&self.activations), self.cell.tanh());
        let factors = concat(&[&g, &before(&self.cell, &self.initial_cell), &i, &tanh], -1);
        let [of_i, of_f, of_o] = [&i, &f, &o].map(|gate| gate - &gate.square());
        let slopes = concat(&[&of_i, &of_f, &(1.0 - g.square()), &of_o], -1);
        let of_cell = &o * (1.0 - tanh.square());
        let [dhidden, of_cell, f, factors, slopes] =
            [&self.dhidden, &of_cell, &f, &factors, &slopes].map(steps);
        let [dcell, dactivations] = [&self.dcell, &self.dactivations].map(|x| x.as_ref().map(steps));
        let (mut back_hidden, mut back_cell, mut dgates) = (None, None, vec![]);
        for t in (0..dhidden.len()).rev() {
            let of_step = |all: &Option<Vec<Expr>>| all.as_ref().map(|all| all[t].clone());
            let dhidden = added(dhidden[t].clone(), back_hidden);
            let dcell = added(added(&dhidden * &of_cell[t], of_step(&dcell)), back_cell);
            let of_gates = concat(&[&dcell, &dcell, &dcell, &dhidden], -1) * &factors[t];
            dgates.insert(0, added(of_gates, of_step(&dactivations)) * &slopes[t]);
            back_hidden = Some(product(&dgates[0], &self.weight, [false, true]));
            back_cell = Some(dcell * &f[t]);
        }
        let dgates = joined(&dgates, &self.activations);
        // `Σ hidden[t-1]ᵀ · dgates[t]`
        let before = before(&self.hidden, &self.initial_hidden);
        self.dweight = Some(product(&before.flatten(0, 1), &dgates.flatten(0, 1), [true, false]));
        self.dgates = Some(dgates);
        let of_initial = |initial: &Option<Expr>, back: Option<Expr>| {
            let of = |initial: &Expr| back.map_or_else(|| initial * 0.0, |back| back.squeeze(&[0]));
            initial.as_ref().map(of)
        };
        self.dinitial_hidden = of_initial(&self.initial_hidden, back_hidden);
        self.dinitial_cell = of_initial(&self.initial_cell, back_cell);
    }
}

/// The states before each step: the initial state, 0 if absent, then all but the last.
fn before(states: &Expr, initial: &Option<Expr>) -> Expr {
    let first = first(initial).unwrap_or_else(|| states.slice(0, 0, 1) * 0.0);
    concat(&[&first, states], 0).slice(0, 0, -1)
}

/// Each step as a sequence of one step.
fn steps(x: &Expr) -> Vec<Expr> {
    let Some(steps) = x.dims()[0].get() else {
        let text = "the number of steps must be known, because this gradient is computed step by step";
        return vec![x.builder().failed(Error::new(ErrorKind::NoGradient, text))];
    };
    (0..steps as i32).map(|t| x.slice(0, t, t + 1)).collect()
}

/// The state before the first step as a sequence of one step.
fn first(state: &Option<Expr>) -> Option<Expr> {
    state.as_ref().map(|state| state.unsqueeze(&[0]))
}

fn added(x: Expr, y: Option<Expr>) -> Expr {
    y.map_or(x.clone(), |y| x + y)
}

fn quarters(x: &Expr) -> [Expr; 4] {
    let out = vec![New, New, New, New];
    let parts = emit(Split {
        x: x.into(),
        out,
        axis: -1,
        num: 4,
        sections: vec![],
        axis_tensor: None,
        sections_tensor_list: vec![],
    })
    .out;
    array::from_fn(|k| parts.get(k).unwrap_or(x).clone())
}

/// The concatenated steps, or `none` without steps.
fn joined(steps: &[Expr], none: &Expr) -> Expr {
    match steps {
        [] => none.clone(),
        steps => concat(&steps.iter().collect::<Vec<_>>(), 0),
    }
}

fn product(x: &Expr, y: &Expr, [trans_x, trans_y]: [bool; 2]) -> Expr {
    emit(MatmulV2 { x: x.into(), y: y.into(), out: New, trans_x, trans_y }).out
}
