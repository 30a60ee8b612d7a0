//! The gradient of the gradient of long short-term memory.

use autobwd::{
    Buf, Cx, Dim, Dims, GradCx, GradRule, Infer, Kernel, LaneOf, Loops, Meta, NoGrad, Result, Var,
    Vectorised, map_lanes, register_op, with_float,
};

use super::{Backward, LstmSequenceGrad, Sizes, infer_backward, quarters, rows, sizes, weight_gradient};
use crate::{
    common::{Real, held, nth},
    elementwise::grad_if_any,
};

/// One operator, with the gradients that arrive.
pub struct LstmSequenceGradRule;
impl GradRule<LstmSequenceGrad> for LstmSequenceGradRule {
    fn emit(fwd: &LstmSequenceGrad, g: &mut GradCx<'_>) {
        let LstmSequenceGrad { weight, initial_hidden, initial_cell, hidden, cell, activations, .. } = *fwd;
        let LstmSequenceGrad { dhidden, dcell, dactivations, .. } = *fwd;
        let [ddgates, ddweight, ddinitial_hidden, ddinitial_cell] =
            [fwd.dgates, fwd.dweight, fwd.dinitial_hidden, fwd.dinitial_cell].map(|dx| grad_if_any(g, dx));
        // What the kernel needs to have a place for, whether or not anybody wants it.
        let place = |var: Option<Var>| {
            let grad = var.and_then(|var| g.wanted(var));
            grad.unwrap_or_else(|| g.fresh("unused"))
        };
        let [d_cell, d_activations, ddhidden, ddcell] =
            [Some(cell), Some(activations), Some(dhidden), dcell].map(place);
        // The states are read for the gradient of the weights alone.
        let of_hidden = |var: Option<Var>| var.filter(|_| ddweight.is_some()).and_then(|var| g.wanted(var));
        let [d_hidden, d_initial_hidden] = [Some(hidden), initial_hidden].map(of_hidden);
        let [d_weight, d_initial_cell, ddactivations] =
            [Some(weight), initial_cell, dactivations].map(|var| var.and_then(|var| g.wanted(var)));
        g.push(LstmSequenceGradGrad {
            weight,
            initial_hidden,
            initial_cell,
            hidden,
            cell,
            activations,
            dhidden,
            dcell,
            dactivations,
            ddgates,
            ddweight,
            ddinitial_hidden,
            ddinitial_cell,
            d_weight,
            d_initial_hidden,
            d_initial_cell,
            d_hidden,
            d_cell,
            d_activations,
            ddhidden,
            ddcell,
            ddactivations,
        });
    }
}

/// With `before[t] = ddhidden[t-1]`, or `ddinitial_hidden` in the first step, `a = ddgates[t] + hidden[t-1] · ddweight +
/// before[t] · weight`, and `ddactivations[t] = ddi, ddf, ddg, ddo` the quarters of `a` times `i * (1 - i), f * (1 - f), 1 -
/// g², o * (1 - o)`: `ddcell[t] = ddi * g + ddf * cell[t-1] + ddg * i + ddcell[t-1] * f` and `ddhidden[t] = ddo *
/// tanh(cell[t]) + ddcell[t] * o * (1 - tanh(cell[t])²)`. With `dgates`, `dh` and `dc` of the forward operator, the
/// gradient of `hidden[t]` is `dgates[t+1] · ddweightᵀ`, that of `weight` `Σ before[t]ᵀ · dgates[t]`; those of `cell` and
/// `activations` are by the product rule.
#[register_op(grad = NoGrad)]
pub struct LstmSequenceGradGrad<V = Var> {
    /// Weights of the states.
    #[input]
    pub weight: V,
    /// States before the first step.
    #[input]
    pub initial_hidden: Option<V>,
    /// Cells before the first step.
    #[input]
    pub initial_cell: Option<V>,
    /// States after each step.
    #[input]
    pub hidden: V,
    /// Cells after each step.
    #[input]
    pub cell: V,
    /// The gates after sigmoid or tanh.
    #[input]
    pub activations: V,
    /// Gradient of the states.
    #[input("Hidden@GRAD")]
    pub dhidden: V,
    /// Gradient of the cells.
    #[input("Cell@GRAD")]
    pub dcell: Option<V>,
    /// Gradient of the activations.
    #[input("Activations@GRAD")]
    pub dactivations: Option<V>,
    #[input("Gates@GRAD@GRAD")]
    pub ddgates: Option<V>,
    #[input("Weight@GRAD@GRAD")]
    pub ddweight: Option<V>,
    #[input("InitialHidden@GRAD@GRAD")]
    pub ddinitial_hidden: Option<V>,
    #[input("InitialCell@GRAD@GRAD")]
    pub ddinitial_cell: Option<V>,
    /// Same shape as `weight`.
    #[output]
    pub d_weight: Option<V>,
    /// `[batch, units]`.
    #[output]
    pub d_initial_hidden: Option<V>,
    /// `[batch, units]`.
    #[output]
    pub d_initial_cell: Option<V>,
    /// Same shape as `hidden`.
    #[output]
    pub d_hidden: Option<V>,
    /// Same shape as `cell`.
    #[output]
    pub d_cell: V,
    /// Same shape as `activations`.
    #[output]
    pub d_activations: V,
    /// Same shape as `hidden`.
    #[output("Hidden@GRAD@GRAD")]
    pub ddhidden: V,
    /// Same shape as `cell`.
    #[output("Cell@GRAD@GRAD")]
    pub ddcell: V,
    /// Same shape as `activations`.
    #[output("Activations@GRAD@GRAD")]
    pub ddactivations: Option<V>,
}
impl Infer for LstmSequenceGradGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let states = infer_backward(
            [&self.activations, &self.weight],
            [&self.initial_hidden, &self.initial_cell, &self.ddinitial_hidden, &self.ddinitial_cell],
            [Some(&self.hidden), Some(&self.cell), Some(&self.dhidden), self.dcell.as_ref()],
            [&self.dactivations, &self.ddgates],
        )?;
        self.ddweight.iter().try_for_each(|given| given.same_as(&self.weight))?;
        self.d_weight.iter_mut().for_each(|grad| grad.like(&self.weight));
        let (dtype, state) = (self.activations.dtype, Dims::from_iter(states[1..].iter().copied()));
        for grad in self.d_initial_hidden.iter_mut().chain(&mut self.d_initial_cell) {
            grad.set(dtype, state.clone());
        }
        for grad in self.d_hidden.iter_mut().chain([&mut self.d_cell, &mut self.ddhidden, &mut self.ddcell]) {
            grad.set(dtype, states.clone());
        }
        self.d_activations.like(&self.activations);
        self.ddactivations.iter_mut().for_each(|grad| grad.like(&self.activations));
        Ok(())
    }

    fn flops(&self) -> Dim {
        let of_weight = usize::from(self.ddweight.is_some()) + usize::from(self.d_hidden.is_some());
        let products = 2 + of_weight + usize::from(self.d_weight.is_some());
        Dim::from(2 * products) * self.hidden.dims.numel() * self.weight.dims[1]
    }
}
impl Kernel for LstmSequenceGradGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let len = self.scratch();
        with_float!(self.weight, T => {
            let (steps, sizes) = sizes(&self.hidden);
            let Sizes { units, state, .. } = sizes;
            let weight = self.weight.mat::<T>()?;
            let (hidden, cell) = (self.hidden.slice::<T>()?, self.cell.slice::<T>()?);
            let (activations, dhidden) = (self.activations.slice::<T>()?, self.dhidden.slice::<T>()?);
            let [initial_hidden, initial_cell, dcell, dactivations] =
                held([&self.initial_hidden, &self.initial_cell, &self.dcell, &self.dactivations])?;
            let [ddgates, ddinitial_hidden, ddinitial_cell] =
                held([&self.ddgates, &self.ddinitial_hidden, &self.ddinitial_cell])?;
            let ddweight = self.ddweight.as_ref().map(Buf::mat::<T>).transpose()?;
            let (d_cell, d_activations) = (self.d_cell.slice_mut::<T>()?, self.d_activations.slice_mut::<T>()?);
            let (ddhidden, ddcell) = (self.ddhidden.slice_mut::<T>()?, self.ddcell.slice_mut::<T>()?);
            let mut d_initial_cell = self.d_initial_cell.as_mut().map(Buf::slice_mut::<T>).transpose()?;
            let mut ddactivations = self.ddactivations.as_mut().map(Buf::slice_mut::<T>).transpose()?;
            cx.scratch(len, |scratch| {
                let zero = T::of(0.0);
                scratch.fill(zero);
                let (zeros, scratch) = scratch.split_at_mut(units);
                let (no_cell, scratch) = scratch.split_at_mut(state);
                let (no_gates, scratch) = scratch.split_at_mut(4 * state);
                let (dgates, scratch) = scratch.split_at_mut(activations.len());
                // What comes from the step after; cells have one step more, the one before the first.
                let (back_hidden, back_cell) = scratch.split_at_mut(hidden.len());
                dgates.copy_from_slice(activations);
                for t in (0..steps).rev() {
                    let at = t * state;
                    let (back, later) = back_cell[at..].split_at_mut(state);
                    back.copy_from_slice(&later[..state]);
                    let dgates = &mut dgates[4 * at..][..4 * state];
                    T::vectorised(Backward {
                        units,
                        gates: &mut *dgates,
                        back_hidden: &back_hidden[at..],
                        back_cell: back,
                        cell: &cell[at..],
                        before: sizes.before(&cell[..at], initial_cell),
                        dhidden: &dhidden[at..],
                        dcell: dcell.map(|dcell| &dcell[at..]),
                        dactivations: dactivations.map(|dactivations| &dactivations[4 * at..]),
                        zeros,
                    });
                    if t > 0 {
                        let back = &mut back_hidden[at - state..][..state];
                        cx.product(back, false, rows(dgates, 4 * units), weight.t())?;
                    }
                }
                let (first, later) = dgates.split_at(dgates.len().min(4 * state));
                // Those of the steps before the last one.
                let earlier = later.len() / 4;

                match ddgates {
                    Some(ddgates) => d_activations.copy_from_slice(ddgates),
                    None => d_activations.fill(zero),
                }
                if let Some(ddweight) = ddweight {
                    let (first, later) = d_activations.split_at_mut(first.len());
                    cx.product(later, true, rows(&hidden[..earlier], units), ddweight)?;
                    if let Some(initial) = initial_hidden.filter(|_| steps > 0) {
                        cx.product(first, true, rows(initial, units), ddweight)?;
                    }
                }
                d_cell.fill(zero);
                if let Some(d_initial_cell) = &mut d_initial_cell {
                    d_initial_cell.fill(zero);
                }
                for t in 0..steps {
                    let at = t * state;
                    let (ddhidden_earlier, ddhidden) = ddhidden.split_at_mut(at);
                    let (ddcell_earlier, ddcell) = ddcell.split_at_mut(at);
                    let (d_cell_earlier, d_cell) = d_cell.split_at_mut(at);
                    let d_activations = &mut d_activations[4 * at..][..4 * state];
                    if let Some(before) = sizes.before(ddhidden_earlier, ddinitial_hidden) {
                        cx.product(d_activations, true, rows(before, units), weight)?;
                    }
                    T::vectorised(Again {
                        units,
                        activations: &activations[4 * at..],
                        cell: &cell[at..],
                        before: sizes.before(&cell[..at], initial_cell),
                        dhidden: [&dhidden[at..], &back_hidden[at..]],
                        dcell: [dcell.map(|dcell| &dcell[at..]), Some(&back_cell[at + state..])],
                        dactivations: dactivations.map(|dactivations| &dactivations[4 * at..]),
                        ddbefore: sizes.before(ddcell_earlier, ddinitial_cell),
                        zeros,
                        d_activations,
                        ddactivations: match &mut ddactivations {
                            Some(ddactivations) => &mut ddactivations[4 * at..],
                            None => no_gates,
                        },
                        ddhidden: &mut ddhidden[..state],
                        ddcell,
                        d_cell,
                        d_before: match &mut d_initial_cell {
                            _ if t > 0 => &mut d_cell_earlier[at - state..],
                            Some(d_initial_cell) => d_initial_cell,
                            None => no_cell,
                        },
                    });
                }

                if let Some(d_hidden) = &mut self.d_hidden {
                    let d_hidden = d_hidden.slice_mut()?;
                    d_hidden.fill(zero);
                    if let Some(ddweight) = ddweight {
                        cx.product(&mut d_hidden[..earlier], false, rows(later, 4 * units), ddweight.t())?;
                    }
                }
                if let Some(d_initial_hidden) = &mut self.d_initial_hidden {
                    let d_initial_hidden = d_initial_hidden.slice_mut()?;
                    d_initial_hidden.fill(zero);
                    if let Some(ddweight) = ddweight.filter(|_| steps > 0) {
                        cx.product(d_initial_hidden, false, rows(first, 4 * units), ddweight.t())?;
                    }
                }
                if let Some(d_weight) = &mut self.d_weight {
                    weight_gradient(cx, d_weight.slice_mut()?, sizes, (ddhidden, ddinitial_hidden), dgates)?;
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        self.scratch() * self.weight.dtype().size()
    }
}
impl LstmSequenceGradGrad<Buf<'_>> {
    /// Zeros, places for what nobody wants, the gates' gradients, and what goes back from step to step.
    fn scratch(&self) -> usize {
        let (_, Sizes { units, state, .. }) = sizes(&self.hidden);
        units + 6 * state + self.activations.numel() + 2 * self.hidden.numel()
    }
}

/// One step, forwards again.
struct Again<'a, T> {
    units: usize,
    activations: &'a [T],
    cell: &'a [T],
    before: Option<&'a [T]>,
    /// Two terms each.
    dhidden: [&'a [T]; 2],
    dcell: [Option<&'a [T]>; 2],
    dactivations: Option<&'a [T]>,
    /// The gradient of the gradient of the cells of the step before.
    ddbefore: Option<&'a [T]>,
    zeros: &'a [T],
    /// Gradients of the gates' gradients, then of the activations.
    d_activations: &'a mut [T],
    ddactivations: &'a mut [T],
    ddhidden: &'a mut [T],
    ddcell: &'a mut [T],
    // Sums:
    d_cell: &'a mut [T],
    d_before: &'a mut [T],
}
impl<'a, T: Real> Loops<T> for Again<'a, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let (units, zeros) = (self.units, self.zeros);
        let (one, two) = (F::from(1.0), F::from(2.0));
        for (row, ddhidden) in self.ddhidden.chunks_exact_mut(units.max(1)).enumerate() {
            let of_row = |all: Option<&'a [T]>| all.map_or(zeros, |all| nth(all, row, units));
            let gate = |all: Option<&'a [T]>, k: usize| all.map_or(zeros, |all| nth(all, 4 * row + k, units));
            let [i, f, g, o] = [0, 1, 2, 3].map(|k| gate(Some(self.activations), k));
            let [di, df, dg, dout] = [0, 1, 2, 3].map(|k| gate(self.dactivations, k));
            let [cell, before, ddbefore] = [Some(self.cell), self.before, self.ddbefore].map(of_row);
            let [dh, back_dh] = self.dhidden.map(|all| nth(all, row, units));
            let [dc, back_dc] = self.dcell.map(of_row);
            let inputs = [i, f, g, o, di, df, dg, dout, cell, before, ddbefore, dh, back_dh, dc, back_dc];
            let gates = row * 4 * units..(row + 1) * 4 * units;
            let [ai, af, ag, ao] = quarters(&mut self.d_activations[gates.clone()]);
            let [ddi, ddf, ddg, ddo] = quarters(&mut self.ddactivations[gates]);
            let state = row * units..(row + 1) * units;
            let ddcell = &mut self.ddcell[state.clone()];
            let (d_cell, d_before) = (&mut self.d_cell[state.clone()], &mut self.d_before[state]);
            let outputs = [ai, af, ag, ao, ddi, ddf, ddg, ddo, ddhidden, ddcell, d_cell, d_before];
            map_lanes(inputs, outputs, |inputs: [F; 15], outputs| {
                let [i, f, g, o, di, df, dg, dout, cell, before, ddbefore, dh, back_dh, dc, back_dc] = inputs;
                let [ai, af, ag, ao, .., d_cell, d_before] = outputs;
                let tanh = cell.tanh();
                let slope = one - tanh * tanh;
                let dh = dh + back_dh;
                let dc = dc + back_dc + dh * o * slope;
                let (ddi, ddf) = (ai * i * (one - i), af * f * (one - f));
                let (ddg, ddo) = (ag * (one - g * g), ao * o * (one - o));
                let ddcell = ddi * g + ddf * before + ddg * i + ddbefore * f;
                [
                    ai * (dc * g + di) * (one - two * i) + ddg * dc,
                    af * (dc * before + df) * (one - two * f) + ddbefore * dc,
                    ddi * dc - two * ag * (dc * i + dg) * g,
                    ao * (dh * tanh + dout) * (one - two * o) + ddcell * dh * slope,
                    ddi,
                    ddf,
                    ddg,
                    ddo,
                    ddo * tanh + ddcell * o * slope,
                    ddcell,
                    d_cell + (ddo - two * ddcell * o * tanh) * dh * slope,
                    d_before + ddf * dc,
                ]
            });
        }
    }
}
