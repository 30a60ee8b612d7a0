//! The compositions of the LSTM and of its gradient.

use autobwd::{Composition, Expr};

use super::{LstmSequence, LstmSequenceGrad};
use crate::{
    Math,
    math::{concat, filled},
    units::{RnnMode, UnitGradients, UnitResults, Units, summed_product},
};

/// The recurrent units of the LSTM.
fn units(weight: &Expr) -> Units {
    Units { mode: RnnMode::Lstm, weight: weight.clone(), transposed: false, mask: None, reverse: false }
}

/// A state that is 0: `[batch, units]`.
fn zero_state(gates: &Expr, weight: &Expr) -> Expr {
    filled(gates.builder(), gates.dtype(), "0", &[gates.dim(1), weight.dim(0)])
}

impl Composition for LstmSequence<Expr> {
    fn compose(&mut self) {
        if self.gates.dim(0).known() == Some(0) {
            let dims = [0.into(), self.gates.dim(1), self.weight.dim(0)];
            self.hidden = filled(self.gates.builder(), self.gates.dtype(), "0", &dims);
            (self.cell, self.activations) = (self.hidden.clone(), self.gates.clone());
            return;
        }
        let zeros = zero_state(&self.gates, &self.weight);
        let firsts =
            [&self.initial_hidden, &self.initial_cell].map(|first| first.as_ref().unwrap_or(&zeros).clone());
        let steps = units(&self.weight).forward(&self.gates, None, &firsts);
        if let [hidden, cell] = &steps.after[..] {
            (self.hidden, self.cell, self.activations) = (hidden.clone(), cell.clone(), steps.gates);
        }
    }
}

impl Composition for LstmSequenceGrad<Expr> {
    fn compose(&mut self) {
        let zeros = zero_state(&self.activations, &self.weight);
        let firsts = [&self.initial_hidden, &self.initial_cell];
        let before = |after: &Expr, first: &Option<Expr>| {
            let first = first.as_ref().unwrap_or(&zeros).unsqueeze(&[0]);
            concat(&[&first, after], 0).slice(0, 0, -1)
        };
        let before = [before(&self.hidden, firsts[0]), before(&self.cell, firsts[1])];
        let mut gradients = UnitGradients {
            projected: self.activations.clone(),
            recurrent: self.activations.clone(),
            first: vec![zeros.clone(), zeros.clone()],
        };
        if self.activations.dim(0).known() != Some(0) {
            gradients = units(&self.weight).backward(UnitResults {
                gates: &self.activations,
                before: &before,
                after: &[self.hidden.clone(), self.cell.clone()],
                dout: self.dhidden.clone(),
                dcell: self.dcell.as_ref(),
                dgates: self.dactivations.as_ref(),
                dlast: gradients.first,
            });
        }
        self.dweight = Some(summed_product(&before[0], &gradients.recurrent));
        self.dgates = Some(gradients.projected);
        let mut first = gradients.first.into_iter();
        (self.dinitial_hidden, self.dinitial_cell) = (first.next(), first.next());
    }
}
