//! The kernel of `rnn`.

use std::mem;

use autobwd::{
    Buf, Cx, Result,
    op::{Mat, Strided},
};

use super::{Lengths, RnnAttrs, RnnLayers, RnnLayout, cells::CellStep};
use crate::{
    kernel_helpers::{KernelFloat, PART, matrix, nth},
    random::{rng, unit},
};

/// Fewest steps for which the recurrent weights are transposed first.
const TRANSPOSED: usize = 4;
/// Rows that are transposed together.
const TILE: usize = 16;

impl RnnLayers<Buf<'_>> {
    pub(super) fn forward<T: KernelFloat>(
        &mut self,
        cx: &Cx,
        layout: &RnnLayout,
        scratch: &mut [T],
    ) -> Result<()> {
        if layout.batch == 0 {
            return Ok(());
        }
        let (directions, unit, layer_len) = (layout.directions, layout.unit(), layout.layer());
        let (weights, mut rest) =
            scratch.split_at_mut(layout.recurrent().len() * layout.units + layout.row());
        // In training, `Reserve` has the states of all layers, and their outputs.
        let (mut shared, mut outputs): (&mut [T], [&mut [T]; 2]) = (&mut [], [&mut [], &mut []]);
        let mut reserve: &mut [T] = &mut [];
        if self.rnn.is_test {
            shared = take(&mut rest, unit);
            if layout.layers > 1 {
                outputs = [take(&mut rest, layer_len), take(&mut rest, layer_len)];
            }
        } else {
            reserve = self.reserve.slice_mut()?;
        }
        let (input, out) = (self.input.slice::<T>()?, self.out.slice_mut::<T>()?);
        let lengths = Lengths::of(&self.sequence_length)?;
        for layer in 0..layout.layers {
            let mut units = if self.rnn.is_test { &mut [] } else { take(&mut reserve, directions * unit) };
            let is_last = layer + 1 == layout.layers;
            let [output, before] = &mut outputs;
            if !self.rnn.is_test && !is_last {
                *output = take(&mut reserve, layer_len);
            }
            let x = if layer == 0 { input } else { &**before };
            let output: &mut [T] = if is_last { &mut *out } else { output };
            for direction in 0..directions {
                let part = layer * directions + direction;
                let states = if self.rnn.is_test { &mut *shared } else { take(&mut units, unit) };
                let (gates, states) = states.split_at_mut(layout.gates());
                let (hidden, cell) = states.split_at_mut(layout.states());
                let Sequence { first, last } = Sequence::of(layout, direction);
                for (states, initial) in [&mut *hidden, &mut *cell].into_iter().zip(&self.pre_state) {
                    let initial = nth(initial.slice()?, part, layout.state());
                    states[first..][..layout.state()].copy_from_slice(initial);
                }
                let count = 2 * layout.layers * directions;
                let [weight, recurrent, bias, recurrent_bias] =
                    [2 * part, 2 * part + 1, count + 2 * part, count + 2 * part + 1]
                        .map(|i| &self.weight_list[i]);
                let (transposed, biases) = weights.split_at_mut(layout.recurrent().len() * layout.units);
                layout.add_biases(bias.slice()?, recurrent_bias.slice()?, biases);
                layout.project(cx, (x, layout.x_width(layer)), weight.slice()?, biases, gates)?;
                let recurrent: &[T] = recurrent.slice()?;
                let weights = match layout.steps {
                    ..TRANSPOSED => matrix(recurrent, layout.units).t(),
                    _ => {
                        transpose(recurrent, layout.units, transposed);
                        matrix(&*transposed, layout.recurrent().len())
                    }
                };
                let mut pass = Pass { layout, direction, lengths, weights, gates, hidden, cell };
                pass.run(cx, output)?;
                for (state, states) in self.state.iter_mut().zip([&*hidden, &*cell]) {
                    let state = &mut state.slice_mut()?[part * layout.state()..][..layout.state()];
                    state.copy_from_slice(&states[last..][..layout.state()]);
                }
            }
            if !is_last && self.rnn.drops() {
                drop_out(cx, &self.rnn, layer, output);
            }
            outputs.swap(0, 1);
        }
        Ok(())
    }
}

/// The first state of a direction and the last one, as elements.
struct Sequence {
    first: usize,
    last: usize,
}

impl Sequence {
    fn of(layout: &RnnLayout, direction: usize) -> Sequence {
        let (first, last) = layout.ends(direction);
        Sequence { first: first * layout.state(), last: last * layout.state() }
    }
}

/// Takes the first elements of a slice.
fn take<'a, T>(from: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    let (first, rest) = mem::take(from).split_at_mut(len);
    *from = rest;
    first
}

/// `out = xᵀ`, with rows of `cols` elements.
fn transpose<T: KernelFloat>(x: &[T], cols: usize, out: &mut [T]) {
    let rows = x.len() / cols;
    // A cache line of each row of the result at a time.
    for (first, x) in x.chunks(TILE * cols).enumerate() {
        for (column, out) in out.chunks_exact_mut(rows).enumerate() {
            let out = &mut out[first * TILE..][..x.len() / cols];
            out.iter_mut().zip(x[column..].iter().step_by(cols)).for_each(|(out, x)| *out = *x);
        }
    }
}

/// Drops elements behind a layer: they become 0, and the others are scaled. Gradients are treated alike.
pub(super) fn drop_out<T: KernelFloat>(cx: &Cx, rnn: &RnnAttrs, layer: usize, output: &mut [T]) {
    let probability = f64::from(rnn.dropout_prob);
    let scale = T::of(1.0 / (1.0 - probability));
    cx.chunks_mut(output, PART, |part, output| {
        let mut rng = rng(rnn.seed_behind(layer));
        rng.advance((part * PART) as u128);
        for x in output {
            *x = if unit(&mut rng) >= probability { *x * scale } else { T::ZERO };
        }
    });
}

impl RnnLayout {
    /// The row of biases that all steps have in common.
    fn add_biases<T: KernelFloat>(&self, bias: &[T], recurrent_bias: &[T], row: &mut [T]) {
        row.fill(T::ZERO);
        for (columns, first) in self.projected() {
            row[columns].iter_mut().zip(&bias[first..]).for_each(|(row, bias)| *row += *bias);
        }
        row[self.recurrent()].iter_mut().zip(recurrent_bias).for_each(|(row, bias)| *row += *bias);
    }

    /// Projects the inputs of all steps, with these biases.
    fn project<T: KernelFloat>(
        &self,
        cx: &Cx,
        (x, width): (&[T], usize),
        weight: &[T],
        biases: &[T],
        gates: &mut [T],
    ) -> Result<()> {
        cx.chunks_mut(gates, self.filled(), |_, gates| {
            gates.chunks_exact_mut(biases.len()).for_each(|row| row.copy_from_slice(biases));
        });
        for (columns, first) in self.projected() {
            let weight = matrix(&weight[first * width..][..columns.len() * width], width);
            let x = matrix(x, width);
            cx.product_strided(&mut gates[columns.start..], self.row(), true, x.into(), weight.t().into())?;
        }
        Ok(())
    }
}

/// One direction of a layer.
struct Pass<'a, T> {
    layout: &'a RnnLayout,
    direction: usize,
    lengths: Lengths<'a>,
    /// Recurrent weights, one row for each unit.
    weights: Mat<'a, T>,
    gates: &'a mut [T],
    hidden: &'a mut [T],
    cell: &'a mut [T],
}

impl<T: KernelFloat> Pass<'_, T> {
    /// Runs all steps; `output` gets the columns of this direction.
    fn run(&mut self, cx: &Cx, output: &mut [T]) -> Result<()> {
        let Pass { layout, direction, lengths, weights, .. } = *self;
        let (units, width, part, row, recurrent) =
            (layout.units, layout.width(), layout.part(), layout.row(), layout.recurrent());
        let (size, column) = (layout.state(), direction * units);
        for step in layout.steps(direction) {
            let (before, hidden) = before_behind(layout, direction, step, self.hidden);
            let (cell_before, cell) = before_behind(layout, direction, step, self.cell);
            let outs = [
                (&mut self.gates[step * layout.batch * row..][..layout.batch * row], part * row),
                (hidden, part * units),
                (cell, part * units),
                (&mut output[step * layout.batch * width..][..layout.batch * width], part * width),
            ];
            debug_assert!(before.len() == size);
            cx.try_zip_chunks_mut(outs, &mut [(); 0], |i, [gates, hidden, cell, output], _| {
                let first = i * part;
                let before = &before[first * units..][..hidden.len()];
                let cell_before = &cell_before[(first * units).min(cell_before.len())..][..cell.len()];
                let x: Strided<'_, T> = matrix(before, units).into();
                cx.product_strided(&mut gates[recurrent.start..], row, true, x, weights.into())?;
                lengths.runs(step, first, hidden.len() / units, |run, within| {
                    let of = |len: usize| run.start * len..run.end * len;
                    let (states, cells) = (of(units), if cell.is_empty() { 0..0 } else { of(units) });
                    let outputs =
                        output[of(width)].chunks_exact_mut(width).map(|row| &mut row[column..][..units]);
                    if within {
                        let step = CellStep {
                            units,
                            gates: &mut gates[of(row)],
                            before: [&before[states.clone()], &cell_before[cells.clone()]],
                            hidden: &mut hidden[states.clone()],
                            cell: &mut cell[cells],
                        };
                        step.run(layout.mode);
                        outputs
                            .zip(hidden[states].chunks_exact(units))
                            .for_each(|(to, from)| to.copy_from_slice(from));
                    } else {
                        gates[of(row)].fill(T::ZERO);
                        hidden[states.clone()].copy_from_slice(&before[states]);
                        cell[cells.clone()].copy_from_slice(&cell_before[cells]);
                        outputs.for_each(|to| to.fill(T::ZERO));
                    }
                });
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The state before a step, and that behind it; both empty without states.
fn before_behind<'a, T>(
    layout: &RnnLayout,
    direction: usize,
    step: usize,
    states: &'a mut [T],
) -> (&'a [T], &'a mut [T]) {
    if states.is_empty() {
        return (&[], states);
    }
    let size = layout.state();
    let (before, behind) = layout.before_behind(direction, step);
    let (left, right) = states.split_at_mut(before.max(behind) * size);
    let (left, right) = (&mut left[before.min(behind) * size..], &mut right[..size]);
    if before < behind { (left, right) } else { (right, left) }
}
