//! Recurrent units in terms of other operators: one direction of a layer, as a recurrence over its steps.

use autobwd::{Expr, New, emit};

use crate::{Math, control::scan_to_last, fill::FillAnyLike, math::concat, matmul::product, shape::Split};

autobwd::op::attr_enum! {
    /// The kind of recurrent units.
    pub enum RnnMode {
        /// Long short-term memory.
        Lstm = "LSTM",
        /// Gated recurrent units.
        Gru = "GRU",
        /// Simple recurrence with `tanh`.
        Tanh = "RNN_TANH",
        /// Simple recurrence with `max(x, 0)`.
        Relu = "RNN_RELU",
    }
}

impl RnnMode {
    /// Hidden and cell state, or hidden state only.
    pub(crate) fn states(self) -> usize {
        if self == RnnMode::Lstm { 2 } else { 1 }
    }

    /// Rows of a weight for each unit.
    pub(crate) fn gates(self) -> usize {
        match self {
            RnnMode::Lstm => 4,
            RnnMode::Gru => 3,
            RnnMode::Tanh | RnnMode::Relu => 1,
        }
    }

    /// Parts of a row of activated gates, of one element for each unit. With GRU, they are `m, r, z, n'`.
    pub(crate) fn row_parts(self) -> usize {
        match self {
            RnnMode::Lstm | RnnMode::Gru => 4,
            RnnMode::Tanh | RnnMode::Relu => 1,
        }
    }
}

/// One direction of a layer of recurrent units.
#[derive(Clone)]
pub(crate) struct Units {
    pub(crate) mode: RnnMode,
    /// Recurrent weights, `[units, gates * units]`, or its transpose if `transposed`.
    pub(crate) weight: Expr,
    pub(crate) transposed: bool,
    /// Whether a sequence has a step, `[steps, batch, units]`; all have all steps if absent.
    pub(crate) mask: Option<Expr>,
    /// From the last step to the first.
    pub(crate) reverse: bool,
}

/// What the steps compute.
pub(crate) struct UnitSteps {
    /// `[steps, batch, units]`.
    pub(crate) out: Expr,
    /// Activated gates: `i, f, g, o` with LSTM, `m, r, z, n'` with GRU, else the new states.
    pub(crate) gates: Expr,
    /// States after each step: hidden states, and cell states with LSTM.
    pub(crate) after: Vec<Expr>,
    /// States after the last step, `[batch, units]`.
    pub(crate) last: Vec<Expr>,
}

/// What the gradient of the steps reads.
pub(crate) struct UnitResults<'a> {
    pub(crate) gates: &'a Expr,
    /// States before each step.
    pub(crate) before: &'a [Expr],
    /// States after each step.
    pub(crate) after: &'a [Expr],
    /// Gradient of the outputs.
    pub(crate) dout: Expr,
    /// Gradient of the cell states after each step.
    pub(crate) dcell: Option<&'a Expr>,
    /// Gradient of activated gates.
    pub(crate) dgates: Option<&'a Expr>,
    /// Gradient of the states after the last step.
    pub(crate) dlast: Vec<Expr>,
}

/// Gradients of the pre-activations, `[steps, batch, gates * units]`, and of the states before the first step.
pub(crate) struct UnitGradients {
    /// With respect to the projections of the input.
    pub(crate) projected: Expr,
    /// With respect to the products with the recurrent weights.
    pub(crate) recurrent: Expr,
    pub(crate) first: Vec<Expr>,
}

/// Derivatives of each step.
struct UnitSlopes {
    /// Of the new states, by the gradient of each projection.
    projected: Expr,
    /// The same by the products with the recurrent weights, where that differs.
    recurrent: Option<Expr>,
    /// Of a state by the state before, other than by the recurrent weights: of the cell state with LSTM, of the hidden
    /// state with GRU.
    direct: Option<Expr>,
    /// Of the hidden state by the cell state.
    of_cell: Option<Expr>,
}

impl Units {
    /// All steps, from the projections of the input, `[steps, batch, gates * units]`, and the states before the first
    /// step; `bias` is added to the products with the recurrent weights.
    pub(crate) fn forward(&self, projected: &Expr, bias: Option<&Expr>, firsts: &[Expr]) -> UnitSteps {
        let sequences: Vec<Expr> = std::iter::once(projected).chain(&self.mask).cloned().collect();
        let (mut after, last) = scan_to_last(&sequences, firsts, self.reverse, |x, before| {
            let product = self.product(&before[0]);
            let added = bias.map_or(product.clone(), |bias| &product + bias);
            let (gates, mut after) = self.mode.step(&x[0], &added, before);
            let gates = joined(&gates, -1);
            let mut outs = vec![];
            if let [_, mask] = x {
                outs = vec![masked(mask, &gates, self.mode.row_parts()), masked(mask, &after[0], 1)];
                let kept = after.iter().zip(before).map(|(after, before)| mask.where_cond(after, before));
                after = kept.collect();
            } else if !gates.is(&after[0]) {
                outs.push(gates);
            }
            (after.clone(), [after, outs].concat())
        });
        // What is a state already is not stacked again.
        let outs = after.split_off(after.len().min(firsts.len()));
        let part = |k: usize| outs.get(k).or(after.first()).unwrap_or(projected).clone();
        UnitSteps { out: part(1), gates: part(0), after, last }
    }

    /// The gradients of the steps.
    pub(crate) fn backward(&self, results: UnitResults<'_>) -> UnitGradients {
        let UnitSlopes { projected, recurrent, direct, of_cell } = self.mode.slopes(&results);
        let UnitResults { gates, dout, dcell, dgates, dlast, .. } = results;
        let given = dgates.map(|dgates| dgates * &self.mode.of_activations(gates));
        let optional = [&self.mask, &recurrent, &direct, &of_cell, &dcell.cloned(), &given];
        let is_given = optional.map(Option::is_some);
        let sequences = [Some(dout), Some(projected)].into_iter().chain(optional.map(Clone::clone));
        let sequences: Vec<Expr> = sequences.flatten().collect();
        let (outs, first) = scan_to_last(&sequences, &dlast, !self.reverse, |x, dafter| {
            let mut rest = x[2..].iter();
            let [mask, recurrent, direct, of_cell, dcell, given] =
                is_given.map(|is_given| if is_given { rest.next() } else { None });
            let dhidden = &dafter[0] + &x[0];
            let mut dnew = vec![dhidden.clone(); self.mode.gates()];
            if let (Some(of_cell), [_, dcell_after]) = (of_cell, dafter) {
                let dnext = dcell_after + &dhidden * of_cell;
                let dnext = dcell.map_or(dnext.clone(), |dcell| &dnext + dcell);
                dnew[..3].fill(dnext);
            }
            let of = |slopes: &Expr| {
                let dnew = joined(&dnew, -1) * slopes;
                let dnew = given.map_or(dnew.clone(), |given| &dnew + given);
                mask.map_or(dnew.clone(), |mask| masked(mask, &dnew, self.mode.gates()))
            };
            let dprojected = of(&x[1]);
            let drecurrent = recurrent.map_or(dprojected.clone(), of);
            let direct = direct.map(|direct| &dnew[0] * direct);
            let kept = |direct: Option<Expr>, dafter: &Expr| match (direct, mask) {
                (Some(direct), Some(mask)) => Some(mask.where_cond(&direct, dafter)),
                (None, Some(mask)) => Some(mask.where_cond(&zeros(dafter), dafter)),
                (direct, None) => direct,
            };
            let mut dbefore = vec![];
            let (of_hidden, of_cell) = if dafter.len() == 2 { (None, direct) } else { (direct, None) };
            let product = self.product_transposed(&drecurrent);
            dbefore.push(kept(of_hidden, &dafter[0]).map_or(product.clone(), |kept| &product + &kept));
            dbefore
                .extend(dafter.get(1).map(|dafter| kept(of_cell, dafter).unwrap_or_else(|| zeros(dafter))));
            let outs = if recurrent.is_some() { vec![dprojected, drecurrent] } else { vec![dprojected] };
            (dbefore, outs)
        });
        let part = |k: usize| outs.get(k).or(outs.first()).unwrap_or(gates).clone();
        UnitGradients { projected: part(0), recurrent: part(1), first }
    }

    fn product(&self, state: &Expr) -> Expr {
        product([state, &self.weight], [false, self.transposed])
    }

    fn product_transposed(&self, gradient: &Expr) -> Expr {
        product([gradient, &self.weight], [false, !self.transposed])
    }
}

impl RnnMode {
    /// The activated gates and the next states, from the projection of the input, what is added to it, and the states
    /// before the step.
    pub(crate) fn step(self, x: &Expr, added: &Expr, before: &[Expr]) -> (Vec<Expr>, Vec<Expr>) {
        match (self, before) {
            (RnnMode::Lstm, [_, cell]) => {
                let [i, f, g, o] = parts(&(x + added));
                let [i, f, g, o] = [i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()];
                let next = &f * cell + &i * &g;
                let hidden = &o * &next.tanh();
                (vec![i, f, g, o], vec![hidden, next])
            }
            (RnnMode::Gru, [before, ..]) => {
                let ([r, z, n], [dr, dz, dn]) = (parts(x), parts(added));
                let (r, z) = ((r + dr).sigmoid(), (z + dz).sigmoid());
                let m = (n + &r * &dn).tanh();
                let next = (before - &m) * &z + &m;
                (vec![m, r, z, dn], vec![next])
            }
            (mode, _) => {
                let sum = x + added;
                let next = if mode == RnnMode::Relu { sum.relu() } else { sum.tanh() };
                (vec![next.clone()], vec![next])
            }
        }
    }

    fn slopes(self, results: &UnitResults<'_>) -> UnitSlopes {
        let UnitResults { gates, before, after, .. } = results;
        match (self, *before, *after) {
            (RnnMode::Lstm, [_, before], [_, after]) => {
                let ([i, f, g, o], shown) = (parts(gates), after.tanh());
                UnitSlopes {
                    projected: concat(&[&g, before, &i, &shown], -1) * self.of_activations(gates),
                    recurrent: None,
                    direct: Some(f),
                    of_cell: Some(o * of_tanh(&shown)),
                }
            }
            (RnnMode::Gru, [before, ..], _) => {
                let [m, r, z, n] = parts(gates);
                let dm = (1.0 - z.clone()) * of_tanh(&m);
                let (dr, dz) = (&dm * &n * of_sigmoid(&r), (before - &m) * of_sigmoid(&z));
                UnitSlopes {
                    projected: concat(&[&dr, &dz, &dm], -1),
                    recurrent: Some(concat(&[&dr, &dz, &(&dm * &r)], -1)),
                    direct: Some(z),
                    of_cell: None,
                }
            }
            _ => {
                let projected = self.of_activations(gates);
                UnitSlopes { projected, recurrent: None, direct: None, of_cell: None }
            }
        }
    }

    /// Derivatives of the activations of LSTM and of simple units.
    fn of_activations(self, gates: &Expr) -> Expr {
        match self {
            RnnMode::Relu => gates.greater_than(&zeros(gates)).cast(gates.dtype()),
            RnnMode::Lstm => {
                let [i, f, g, o] = parts(gates);
                concat(&[&of_sigmoid(&i), &of_sigmoid(&f), &of_tanh(&g), &of_sigmoid(&o)], -1)
            }
            RnnMode::Tanh | RnnMode::Gru => of_tanh(gates),
        }
    }
}

/// The derivative of `tanh` where it is `y`: `1 - y²`.
fn of_tanh(y: &Expr) -> Expr {
    1.0 - y.square()
}

/// The derivative of `sigmoid` where it is `y`: `y * (1 - y)`.
fn of_sigmoid(y: &Expr) -> Expr {
    y - &y.square()
}

/// `x`, with that many elements for each unit, but 0 where a sequence lacks the step.
fn masked(mask: &Expr, x: &Expr, parts: usize) -> Expr {
    let wide = if parts == 1 { mask.clone() } else { concat(&vec![mask; parts], -1) };
    wide.where_cond(x, &zeros(x))
}

fn zeros(like: &Expr) -> Expr {
    emit(FillAnyLike { x: like.into(), out: New, value: 0.0, dtype: None }).out
}

/// Equal parts along the last axis.
fn parts<const N: usize>(x: &Expr) -> [Expr; N] {
    let (out, num) = ((0..N).map(|_| New).collect(), N as i32);
    let (sections, sections_tensor_list) = (vec![], vec![]);
    let split = Split { x: x.into(), out, axis: -1, num, sections, axis_tensor: None, sections_tensor_list };
    let parts = emit(split).out;
    std::array::from_fn(|k| parts.get(k).unwrap_or(x).clone())
}

/// Values along an axis, one after another.
pub(crate) fn joined(parts: &[Expr], axis: i32) -> Expr {
    match parts {
        [part] => part.clone(),
        parts => concat(&parts.iter().collect::<Vec<_>>(), axis),
    }
}

/// `xᵀ · y`, summed over all steps and sequences.
pub(crate) fn summed_product(x: &Expr, y: &Expr) -> Expr {
    product([&x.flatten(0, 1), &y.flatten(0, 1)], [true, false])
}
