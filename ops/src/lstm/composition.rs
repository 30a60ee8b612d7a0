//! Long short-term memory step by step.

use autobwd::{Composition, Error, ErrorKind, Expr, New, Result, emit};

use super::{LstmSequence, LstmSequenceGrad};
use crate::{
    Math,
    math::concat,
    matmul::MatmulV2,
    shape::{Concat, Split},
};

impl Composition for LstmSequence<Expr> {
    fn compose(&mut self) -> Result<()> {
        let (mut hidden, mut cell) = (first(&self.initial_hidden)?, first(&self.initial_cell)?);
        let (mut hiddens, mut cells, mut activations) = (vec![], vec![], vec![]);
        for t in 0..steps(&self.gates)? {
            let gates = step(&self.gates, t)?;
            let states = hidden.as_ref().map(|hidden| hidden.matmul(&self.weight)).transpose()?;
            let [i, f, g, o] = quarters(&added(gates, states)?)?;
            let [i, f, g, o] = [i.sigmoid()?, f.sigmoid()?, g.tanh()?, o.sigmoid()?];
            let kept = cell.as_ref().map(|cell| &f * cell).transpose()?;
            let next = added((&i * &g)?, kept)?;
            hiddens.push((&o * &next.tanh()?)?);
            cells.push(next);
            activations.push(concat(&[&i, &f, &g, &o], -1)?);
            (hidden, cell) = (hiddens.last().cloned(), cells.last().cloned());
        }
        // Without steps, all of them have no elements.
        let units = self.weight.dims()[0].get().unwrap_or(0) as i32;
        let none = || self.gates.slice(-1, 0, units);
        self.hidden = joined(hiddens, none)?;
        self.cell = joined(cells, none)?;
        self.activations = joined(activations, || Ok(self.gates.clone()))?;
        Ok(())
    }
}

impl Composition for LstmSequenceGrad<Expr> {
    fn compose(&mut self) -> Result<()> {
        let (steps, mut back_hidden, mut back_cell) = (steps(&self.hidden)?, None, None);
        let mut dgates = vec![];
        for t in (0..steps).rev() {
            let [i, f, g, o] = quarters(&step(&self.activations, t)?)?;
            let tanh = step(&self.cell, t)?.tanh()?;
            let before = if t > 0 { Some(step(&self.cell, t - 1)?) } else { first(&self.initial_cell)? };
            let dhidden = added(step(&self.dhidden, t)?, back_hidden)?;
            let mut dcell = (&(&dhidden * &o)? * &(1.0 - &tanh.square()?)?)?;
            if let Some(arriving) = &self.dcell {
                dcell = (dcell + &step(arriving, t)?)?;
            }
            dcell = added(dcell, back_cell)?;
            let df = before.map_or_else(|| &dcell * 0.0, |before| &dcell * &before)?;
            let mut of_gates = [(&dcell * &g)?, df, (&dcell * &i)?, (&dhidden * &tanh)?];
            if let Some(arriving) = &self.dactivations {
                for (own, arriving) in of_gates.iter_mut().zip(quarters(&step(arriving, t)?)?) {
                    *own = (&*own + &arriving)?;
                }
            }
            let slopes =
                [(&i - &i.square()?)?, (&f - &f.square()?)?, (1.0 - &g.square()?)?, (&o - &o.square()?)?];
            let of_gates =
                of_gates.iter().zip(&slopes).map(|(d, slope)| d * slope).collect::<Result<Vec<_>>>()?;
            let of_step = concat(&of_gates.iter().collect::<Vec<_>>(), -1)?;
            back_hidden = Some(product(&of_step, &self.weight, [false, true])?);
            back_cell = Some((&dcell * &f)?);
            dgates.insert(0, of_step);
        }
        let dgates = joined(dgates, || Ok(self.activations.clone()))?;
        self.dweight = Some(self.of_weight(&dgates, steps)?);
        for (initial, into, back) in [
            (&self.initial_hidden, &mut self.dinitial_hidden, back_hidden),
            (&self.initial_cell, &mut self.dinitial_cell, back_cell),
        ] {
            let Some(initial) = initial else { continue };
            *into = Some(back.map_or_else(|| initial * 0.0, |back| back.squeeze(&[0]))?);
        }
        self.dgates = Some(dgates);
        Ok(())
    }
}
impl LstmSequenceGrad<Expr> {
    /// `Σ hidden[t-1]ᵀ · dgates[t]`
    fn of_weight(&self, dgates: &Expr, steps: i32) -> Result<Expr> {
        if steps == 0 {
            return &self.weight * 0.0;
        }
        let earlier = self.hidden.slice(0, 0, steps - 1)?;
        let (before, dgates) = match first(&self.initial_hidden)? {
            Some(first) => (concat(&[&first, &earlier], 0)?, dgates.clone()),
            None => (earlier, dgates.slice(0, 1, steps)?),
        };
        product(&before.flatten(0, 1)?, &dgates.flatten(0, 1)?, [true, false])
    }
}

fn steps(x: &Expr) -> Result<i32> {
    let steps = x.dims()[0].get().and_then(|steps| steps.try_into().ok());
    steps.ok_or_else(|| {
        let text = "how many steps there are must be known where a sequence is differentiated step by step";
        Error::new(ErrorKind::NoGradient, text)
    })
}

/// Step `t` as a sequence of one step.
fn step(x: &Expr, t: i32) -> Result<Expr> {
    x.slice(0, t, t + 1)
}

/// The state before the first step as a sequence of one step.
fn first(state: &Option<Expr>) -> Result<Option<Expr>> {
    state.as_ref().map(|state| state.unsqueeze(&[0])).transpose()
}

fn added(x: Expr, y: Option<Expr>) -> Result<Expr> {
    y.map_or(Ok(x.clone()), |y| x + y)
}

fn quarters(x: &Expr) -> Result<[Expr; 4]> {
    let out = (0..4).map(|_| New).collect();
    let parts = emit(Split { x: x.into(), out, axis: -1, num: 4, sections: vec![] })?.out;
    parts.try_into().map_err(|_| Error::new(ErrorKind::Slot, "four parts of a split are needed"))
}

/// The steps as one sequence, or `none` without steps.
fn joined(steps: Vec<Expr>, none: impl FnOnce() -> Result<Expr>) -> Result<Expr> {
    if steps.is_empty() {
        return none();
    }
    Ok(emit(Concat { x: steps.iter().map(Into::into).collect(), out: New, axis: 0 })?.out)
}

fn product(x: &Expr, y: &Expr, [trans_x, trans_y]: [bool; 2]) -> Result<Expr> {
    Ok(emit(MatmulV2 { x: x.into(), y: y.into(), out: New, trans_x, trans_y })?.out)
}
