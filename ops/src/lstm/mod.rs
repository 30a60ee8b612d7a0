//! LSTM over a sequence, all steps in one operator.
//!
//! The input projections are outside, as one product for all steps. Within a step, parts of the batch run in parallel,
//! since batch rows are independent.

mod composition;

use autobwd::{
    Buf, Composed, Cx, Dims, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::{LaneOf, Mat, VectorLoops, Vectorised, map_lanes, with_float},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use crate::kernel_helpers::{KernelFloat, matrix, nth};

/// Multiplications of a unit of shared work.
const PART: usize = 1 << 20;
/// Fewest rows for which a matrix product is fast.
const ROWS: usize = 8;

/// Long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000). In every step `t`, with `i, f, g, o`
/// the quarters of `gates[t] + hidden[t-1] · weight`: `cell[t] = sigmoid(f) * cell[t-1] + sigmoid(i) * tanh(g)` and
/// `hidden[t] = sigmoid(o) * tanh(cell[t])`.
#[register_op(grad = LstmSequenceGrad, infallible)]
pub struct LstmSequence<V = Var> {
    /// Input projections of the gates, `[steps, batch, 4 * units]`.
    #[input]
    pub gates: V,
    /// Recurrent weights, `[units, 4 * units]`.
    #[input]
    pub weight: V,
    /// Hidden state before the first step, `[batch, units]`; 0 if absent.
    #[input]
    pub initial_hidden: Option<V>,
    /// Cell state before the first step, `[batch, units]`; 0 if absent.
    #[input]
    pub initial_cell: Option<V>,
    /// Hidden states after each step, `[steps, batch, units]`.
    #[output]
    pub hidden: V,
    /// Cell states after each step, same shape as `hidden`.
    #[output]
    pub cell: V,
    /// `sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)`, same shape as `gates`.
    #[output(inplace = gates, like = gates)]
    pub activations: V,
}
impl Infer for LstmSequence<Meta> {
    fn infer(&mut self) -> Result<()> {
        let states = states([&self.gates, &self.weight], [&self.initial_hidden, &self.initial_cell])?;
        self.hidden.set(self.gates.dtype, states);
        self.cell.like(&self.hidden);
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.hidden.dims.numel() * self.weight.dims[1]
    }
}
impl Kernel for LstmSequence<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.gates, T => {
            let sizes = LstmSizes::of(&self.hidden);
            let LstmSizes { steps, units, state, part } = sizes;
            let weight = self.weight.mat::<T>()?;
            let (initial_hidden, initial_cell) =
                (self.initial_hidden.slice::<T>()?, self.initial_cell.slice::<T>()?);
            let activations = self.activations.inout::<T>(&self.gates)?.copied();
            let (hidden, cell) = (self.hidden.slice_mut::<T>()?, self.cell.slice_mut::<T>()?);
            cx.scratch(units, |zeros| {
                zeros.fill(T::of(0.0));
                for t in 0..steps {
                    let (earlier, hidden) = hidden.split_at_mut(t * state);
                    let hidden_before = sizes.before(earlier, initial_hidden);
                    let (earlier, cell) = cell.split_at_mut(t * state);
                    let cell_before = sizes.before(earlier, initial_cell);
                    let gates = &mut activations[4 * t * state..][..4 * state];
                    let outs = [(gates, 4 * part), (&mut hidden[..state], part), (&mut cell[..state], part)];
                    cx.try_zip_chunks_mut(outs, &mut [(); 0], |i, [gates, hidden, cell], _| {
                        if let Some(before) = hidden_before {
                            let before = matrix(&before[i * part..][..hidden.len()], units);
                            cx.product(gates, true, before, weight)?;
                        }
                        let before = cell_before.map(|cell| &cell[i * part..]);
                        T::vectorised(LstmLoops { units, gates, hidden, cell, before, zeros });
                        Ok(())
                    })?;
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        LstmSizes::of(&self.hidden).units * self.gates.dtype().size()
    }
}
autobwd::samples!(
    LstmSequence,
    [
        lstm([uniform([3, 2, 20]), uniform([5, 20])], [None, None]),
        lstm([uniform([3, 2, 20]), uniform([5, 20])], [Some(uniform([2, 5])), Some(uniform([2, 5]))]),
        lstm([uniform([2, 9, 4]), uniform([1, 4])], [Some(uniform([9, 1])), None]),
        lstm([uniform([1, 3, 8]), uniform([2, 8])], [None, Some(uniform([3, 2]))]),
        // Wider than one vector register, with a remainder.
        lstm([uniform([2, 1, 76]), uniform([19, 76])], [None, None]),
        lstm([uniform([0, 2, 4]), uniform([1, 4])], [Some(uniform([2, 1])), None]),
        lstm([uniform([2, 0, 4]), uniform([1, 4])], [None, None]),
        lstm([uniform([2, 3, 0]), uniform([0, 0])], [Some(uniform([3, 0])), None]),
        lstm([uniform([3, 2, 20]), uniform([4, 20])], [None, None])
            .fails("`Weight`: [5, 20] is needed, the weights of 5 units"),
        lstm([uniform([3, 2, 6]), uniform([2, 6])], [None, None])
            .fails("`Gates`: a last dimension divisible by 4 (four gates a unit) is needed"),
        lstm([uniform([3, 2, 4]), uniform([1, 4])], [None, Some(uniform([1, 2]))])
            .fails("`InitialCell`: [2, 1] is needed, a number for each unit"),
    ]
);

fn lstm([gates, weight]: [Draw; 2], [initial_hidden, initial_cell]: [Option<Draw>; 2]) -> LstmSequence<Draw> {
    let (hidden, cell, activations) = (out(), out(), out());
    LstmSequence { gates, weight, initial_hidden, initial_cell, hidden, cell, activations }
}

/// With `dh = dhidden[t] + dgates[t+1] · weightᵀ` and
/// `dc = dcell[t] + dh * o * (1 - tanh(cell[t])²) + dc[t+1] * f[t+1]`: `dgates[t]` is `(dc * g) * i * (1 - i)`,
/// `(dc * cell[t-1]) * f * (1 - f)`, `(dc * i) * (1 - g²)`, `(dh * tanh(cell[t])) * o * (1 - o)`, and
/// `dweight = Σ hidden[t-1]ᵀ · dgates[t]`.
#[register_op(grad_of = LstmSequence, grad = Composed, inferred, infallible)]
pub struct LstmSequenceGrad<V = Var> {
    pub weight: V,
    pub initial_hidden: Option<V>,
    pub initial_cell: Option<V>,
    pub hidden: V,
    pub cell: V,
    pub activations: V,
    pub dhidden: V,
    pub dcell: Option<V>,
    pub dactivations: Option<V>,
    #[output(inplace = activations)]
    pub dgates: Option<V>,
    #[output]
    pub dweight: Option<V>,
    #[output]
    pub dinitial_hidden: Option<V>,
    #[output]
    pub dinitial_cell: Option<V>,
    /// Transposed weights.
    #[scratch(like = weight)]
    pub transposed: V,
}
impl Kernel for LstmSequenceGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.weight, T => {
            let (sizes, scratch) = (LstmSizes::of(&self.hidden), self.scratch());
            let LstmSizes { steps, units, state, part } = sizes;
            let (weight, hidden, cell) = (self.weight.slice::<T>()?, self.hidden.slice::<T>()?, self.cell.slice::<T>()?);
            let (initial_hidden, initial_cell) =
                (self.initial_hidden.slice::<T>()?, self.initial_cell.slice::<T>()?);
            let dhidden = self.dhidden.slice::<T>()?;
            let (dcell, dactivations) = (self.dcell.slice()?, self.dactivations.slice()?);
            let transposed = self.transposed.slice_mut::<T>()?;
            // The products of all steps are faster with a contiguous transposed matrix.
            for (column, to) in transposed.chunks_exact_mut(units.max(1)).enumerate() {
                let from = weight[column..].iter().step_by(4 * units);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            let transposed = Mat { data: &*transposed, rows: 4 * units, cols: units, transposed: false };
            cx.scratch(scratch, |scratch| {
                let (zeros, scratch) = scratch.split_at_mut(units + 2 * state);
                zeros.fill(T::of(0.0));
                let (back, zeros) = zeros.split_at_mut(2 * state);
                let (back_hidden, back_cell) = back.split_at_mut(state);
                // Activations first, then gradients of the gates.
                let gates = match &mut self.dgates {
                    Some(dgates) => dgates.inout::<T>(&self.activations)?.copied(),
                    None => {
                        scratch.copy_from_slice(self.activations.slice()?);
                        scratch
                    }
                };
                for t in (0..steps).rev() {
                    let hidden_wanted = t > 0 || self.dinitial_hidden.is_some();
                    let cell_before = sizes.before(&cell[..t * state], initial_cell);
                    let outs = [
                        (&mut gates[4 * t * state..][..4 * state], 4 * part),
                        (&mut *back_hidden, part),
                        (&mut *back_cell, part),
                    ];
                    cx.try_zip_chunks_mut(outs, &mut [(); 0], |i, [gates, back_hidden, back_cell], _| {
                        let at = t * state + i * part;
                        T::vectorised(LstmGradLoops {
                            units,
                            gates: &mut *gates,
                            back_hidden: &*back_hidden,
                            back_cell,
                            cell: &cell[at..],
                            before: cell_before.map(|cell| &cell[i * part..]),
                            dhidden: Some(&dhidden[at..]),
                            dcell: dcell.map(|dcell| &dcell[at..]),
                            dactivations: dactivations.map(|dactivations| &dactivations[4 * at..]),
                            zeros,
                        });
                        match hidden_wanted {
                            true => cx.product(back_hidden, false, matrix(gates, 4 * units), transposed),
                            false => Ok(()),
                        }
                    })?;
                }
                if let Some(dweight) = self.dweight.slice_mut()? {
                    // `Σ hidden[t-1]ᵀ · dgates[t]`
                    let (first, later) = gates.split_at(gates.len().min(4 * state));
                    let before = matrix(&hidden[..later.len() / 4], units);
                    cx.product(dweight, false, before.t(), matrix(later, 4 * units))?;
                    if let Some(initial) = initial_hidden.filter(|_| !first.is_empty()) {
                        cx.product(dweight, true, matrix(initial, units).t(), matrix(first, 4 * units))?;
                    }
                }
                for (initial, back) in [(&mut self.dinitial_hidden, back_hidden), (&mut self.dinitial_cell, back_cell)] {
                    if let Some(initial) = initial.slice_mut()? {
                        initial.copy_from_slice(back);
                    }
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        self.scratch() * self.weight.dtype().size()
    }
}
impl LstmSequenceGrad<Buf<'_>> {
    /// Scratch elements: zeros, the gradients passed between steps, and the gradient of the gates if it is not an
    /// output.
    fn scratch(&self) -> usize {
        let LstmSizes { units, state, .. } = LstmSizes::of(&self.hidden);
        let gates = if self.dgates.is_some() { 0 } else { self.activations.numel() };
        units + 2 * state + gates
    }
}

/// Checks shapes; returns the dimensions of the states.
fn states([gates, weight]: [&Meta; 2], initial: [&Option<Meta>; 2]) -> Result<Dims> {
    gates.float()?;
    let [steps, batch, width] = gates.unpack()?;
    let units = width / 4;
    let whole = (Dim::from(4) * units).agrees(width);
    gates.require(whole, || "a last dimension divisible by 4 (four gates a unit) is needed".into())?;
    weight.same_dtype(gates)?;
    let fits = weight.dims.agrees(&[units, width]);
    weight.require(fits, || format!("[{units}, {width}] is needed, the weights of {units} units"))?;
    for initial in initial.into_iter().flatten() {
        initial.same_dtype(gates)?;
        let fits = initial.dims.agrees(&[batch, units]);
        initial.require(fits, || format!("[{batch}, {units}] is needed, a number for each unit"))?;
    }
    Ok([steps, batch, units].into_iter().collect())
}

#[derive(Clone, Copy, Default)]
struct LstmSizes {
    steps: usize,
    units: usize,
    /// State elements of one step.
    state: usize,
    /// State elements of the batch rows that run together.
    part: usize,
}

impl LstmSizes {
    fn of(hidden: &Buf<'_>) -> LstmSizes {
        let &[steps, batch, units] = hidden.dims() else { return LstmSizes::default() };
        let rows = PART.div_ceil((4 * units * units).max(1)).max(ROWS);
        LstmSizes { steps, units, state: batch * units, part: (rows * units).max(1) }
    }

    /// The states of the step before: the last of `earlier`, else `initial`.
    fn before<'a, T>(&self, earlier: &'a [T], initial: Option<&'a [T]>) -> Option<&'a [T]> {
        if earlier.is_empty() { initial } else { Some(&earlier[earlier.len() - self.state..]) }
    }
}

#[inline(always)]
fn quarters<T>(all: &mut [T]) -> [&mut [T]; 4] {
    let (left, right) = all.split_at_mut(all.len() / 2);
    let (left, right) = (left.split_at_mut(left.len() / 2), right.split_at_mut(right.len() / 2));
    [left.0, left.1, right.0, right.1]
}

/// One forward step of some batch rows.
pub(crate) struct LstmLoops<'a, T> {
    pub(crate) units: usize,
    /// Pre-activations of the gates, then the activations.
    pub(crate) gates: &'a mut [T],
    pub(crate) hidden: &'a mut [T],
    pub(crate) cell: &'a mut [T],
    /// The cell state before the step; 0 if absent.
    pub(crate) before: Option<&'a [T]>,
    /// A row of zeros, read if `before` is absent.
    pub(crate) zeros: &'a [T],
}
impl<T: KernelFloat> VectorLoops<T> for LstmLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let LstmLoops { units, gates, hidden, cell, before, zeros } = self;
        let states = hidden.chunks_exact_mut(units.max(1)).zip(cell.chunks_exact_mut(units.max(1)));
        for (row, (hidden, cell)) in states.enumerate() {
            let [i, f, g, o] = quarters(&mut gates[row * 4 * units..][..4 * units]);
            let before = before.map_or(zeros, |before| nth(before, row, units));
            map_lanes([before], [i, f, g, o, hidden, cell], |[before]: [F; 1], [i, f, g, o, ..]| {
                let (i, f, g, o) = (i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid());
                let cell = f * before + i * g;
                [i, f, g, o, o * cell.tanh(), cell]
            });
        }
    }
}

/// One backward step of some batch rows.
pub(crate) struct LstmGradLoops<'a, T> {
    pub(crate) units: usize,
    /// The activations, then the gradients of the pre-activations.
    pub(crate) gates: &'a mut [T],
    /// The gradient of the hidden state from the step after.
    pub(crate) back_hidden: &'a [T],
    /// The gradient of the cell state: from the step after, then for the step before.
    pub(crate) back_cell: &'a mut [T],
    pub(crate) cell: &'a [T],
    pub(crate) before: Option<&'a [T]>,
    pub(crate) dhidden: Option<&'a [T]>,
    pub(crate) dcell: Option<&'a [T]>,
    pub(crate) dactivations: Option<&'a [T]>,
    /// A row of zeros, read in place of what is absent.
    pub(crate) zeros: &'a [T],
}
impl<'a, T: KernelFloat> VectorLoops<T> for LstmGradLoops<'a, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let (units, zeros) = (self.units, self.zeros);
        let one = F::from(1.0);
        for (row, back_cell) in self.back_cell.chunks_exact_mut(units.max(1)).enumerate() {
            let [i, f, g, o] = quarters(&mut self.gates[row * 4 * units..][..4 * units]);
            let of_row = |all: Option<&'a [T]>| all.map_or(zeros, |all| nth(all, row, units));
            let gate = |k: usize| self.dactivations.map_or(zeros, |all| nth(all, 4 * row + k, units));
            let [cell, back] = [self.cell, self.back_hidden].map(|all| nth(all, row, units));
            let [before, dhidden, dcell] = [self.before, self.dhidden, self.dcell].map(of_row);
            let inputs = [cell, before, back, dhidden, dcell, gate(0), gate(1), gate(2), gate(3)];
            map_lanes(inputs, [i, f, g, o, back_cell], |inputs: [F; 9], [i, f, g, o, back_cell]| {
                let [cell, before, back, dhidden, dcell, di, df, dg, dout] = inputs;
                let (dh, tanh) = (dhidden + back, cell.tanh());
                let dc = back_cell + dcell + dh * o * (one - tanh * tanh);
                [
                    (dc * g + di) * i * (one - i),
                    (dc * before + df) * f * (one - f),
                    (dc * i + dg) * (one - g * g),
                    (dh * tanh + dout) * o * (one - o),
                    dc * f,
                ]
            });
        }
    }
}
