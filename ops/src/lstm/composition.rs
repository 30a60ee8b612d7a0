//! Long short-term memory step by step.

use std::array;

use autobwd::{Composition, Error, ErrorKind, Expr, New, emit};

use super::{LstmSequence, LstmSequenceGrad};
use crate::{
    Math,
    math::concat,
    matmul::MatmulV2,
    shape::{Concat, Split},
};

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
        // Without steps, all of them have no elements.
        let states = self.gates.slice(-1, 0, self.weight.dims()[0].get().unwrap_or(0) as i32);
        self.hidden = joined(&hiddens, &states);
        self.cell = joined(&cells, &states);
        self.activations = joined(&activations, &self.gates);
    }
}

impl Composition for LstmSequenceGrad<Expr> {
    fn compose(&mut self) {
        let [cells, dhiddens, activations] = [&self.cell, &self.dhidden, &self.activations].map(steps);
        let [dcells, dactivations] = [&self.dcell, &self.dactivations].map(|x| x.as_ref().map(steps));
        let (mut back_hidden, mut back_cell, mut dgates) = (None, None, vec![]);
        for t in (0..cells.len()).rev() {
            let ([i, f, g, o], tanh) = (quarters(&activations[t]), cells[t].tanh());
            let dhidden = added(dhiddens[t].clone(), back_hidden);
            let dcell =
                added(&dhidden * &o * (1.0 - tanh.square()), dcells.as_ref().map(|all| all[t].clone()));
            let dcell = added(dcell, back_cell);
            let before = if t > 0 { Some(cells[t - 1].clone()) } else { first(&self.initial_cell) };
            let df = before.map_or_else(|| &dcell * 0.0, |before| &dcell * &before);
            let arriving = dactivations.as_ref().map(|all| quarters(&all[t]));
            let of_gates = [&dcell * &g, df, &dcell * &i, &dhidden * &tanh];
            let slopes = [&i - &i.square(), &f - &f.square(), 1.0 - g.square(), &o - &o.square()];
            let of_gates: [Expr; 4] = array::from_fn(|k| {
                let arriving = arriving.as_ref().map(|arriving| arriving[k].clone());
                added(of_gates[k].clone(), arriving) * &slopes[k]
            });
            let of_step = concat(&of_gates.each_ref(), -1);
            back_hidden = Some(product(&of_step, &self.weight, [false, true]));
            back_cell = Some(&dcell * &f);
            dgates.insert(0, of_step);
        }
        let count = dgates.len() as i32;
        let dgates = joined(&dgates, &self.activations);
        self.dweight = Some(self.of_weight(&dgates, count));
        for (initial, into, back) in [
            (&self.initial_hidden, &mut self.dinitial_hidden, back_hidden),
            (&self.initial_cell, &mut self.dinitial_cell, back_cell),
        ] {
            let of = |initial: &Expr| back.map_or_else(|| initial * 0.0, |back| back.squeeze(&[0]));
            *into = initial.as_ref().map(of);
        }
        self.dgates = Some(dgates);
    }
}
impl LstmSequenceGrad<Expr> {
    /// `Σ hidden[t-1]ᵀ · dgates[t]`
    fn of_weight(&self, dgates: &Expr, steps: i32) -> Expr {
        if steps == 0 {
            return &self.weight * 0.0;
        }
        let earlier = self.hidden.slice(0, 0, steps - 1);
        let (before, dgates) = match first(&self.initial_hidden) {
            Some(first) => (concat(&[&first, &earlier], 0), dgates.clone()),
            None => (earlier, dgates.slice(0, 1, steps)),
        };
        product(&before.flatten(0, 1), &dgates.flatten(0, 1), [true, false])
    }
}

/// Each step as a sequence of one step.
fn steps(x: &Expr) -> Vec<Expr> {
    let Some(steps) = x.dims()[0].get() else {
        let text = "how many steps there are must be known where a sequence is differentiated step by step";
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
    let mut parts =
        emit(Split { x: x.into(), out: vec![New, New, New, New], axis: -1, num: 4, sections: vec![] }).out;
    let mut next = || parts.pop().unwrap_or_else(|| x.clone());
    let [o, g, f, i] = [next(), next(), next(), next()];
    [i, f, g, o]
}

/// The steps as one sequence, or `none` without steps.
fn joined(steps: &[Expr], none: &Expr) -> Expr {
    match steps {
        [] => none.clone(),
        steps => emit(Concat { x: steps.iter().map(Into::into).collect(), out: New, axis: 0 }).out,
    }
}

fn product(x: &Expr, y: &Expr, [trans_x, trans_y]: [bool; 2]) -> Expr {
    emit(MatmulV2 { x: x.into(), y: y.into(), out: New, trans_x, trans_y }).out
}
