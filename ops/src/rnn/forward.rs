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
        let RnnLayers {
            input, pre_state, weight_list, sequence_length, out, state, reserve: saved, rnn, ..
        } = self;
        let (units, layer_len) = (layout.directions * layout.unit(), layout.layer());
        let (weights, mut rest) = scratch.split_at_mut(layout.directions * layout.prepared());
        // In training, `Reserve` has the states of all layers, and their outputs.
        let (mut shared, mut outputs): (&mut [T], [&mut [T]; 2]) = (&mut [], [&mut [], &mut []]);
        let mut reserve: &mut [T] = &mut [];
        if rnn.is_test {
            shared = take(&mut rest, units);
            if layout.layers > 1 {
                outputs = [take(&mut rest, layer_len), take(&mut rest, layer_len)];
            }
        } else {
            reserve = saved.slice_mut()?;
        }
        let (input, out) = (input.slice::<T>()?, out.slice_mut::<T>()?);
        let lengths = Lengths::of(sequence_length)?;
        for layer in 0..layout.layers {
            let states = if rnn.is_test { &mut *shared } else { take(&mut reserve, units) };
            let is_last = layer + 1 == layout.layers;
            let [output, before] = &mut outputs;
            if !rnn.is_test && !is_last {
                *output = take(&mut reserve, layer_len);
            }
            let x = if layer == 0 { input } else { &**before };
            let output: &mut [T] = if is_last { &mut *out } else { output };
            let first = layer * layout.directions;
            let x = (x, layout.x_width(layer));
            let of = |number| Direction::of(layout, (first, number), lengths, x, pre_state, weight_list);
            let both = [of(0)?, of(layout.directions - 1)?];
            if layout.directions > 1 && layout.shares_directions(cx.threads()) {
                let parts = [(&mut *states, layout.unit()), (&mut *weights, layout.prepared())];
                cx.try_zip_chunks_mut(parts, &mut [(); 0], |number, [states, memory], _| {
                    both[number].run(cx, states, memory)
                })?;
            } else {
                for (direction, states) in both.iter().zip(states.chunks_exact_mut(layout.unit())) {
                    direction.run(cx, states, &mut *weights)?;
                }
            }
            layout.write_outputs(cx, lengths, states, output);
            for direction in 0..layout.directions {
                let last = layout.ends(direction).1 * layout.state();
                for (state, states) in state.iter_mut().zip(layout.states_of(states, direction)) {
                    let state = &mut state.slice_mut()?[(first + direction) * layout.state()..];
                    state[..layout.state()].copy_from_slice(&states[last..][..layout.state()]);
                }
            }
            if !is_last && rnn.drops() {
                drop_out(cx, rnn, layer, output);
            }
            outputs.swap(0, 1);
        }
        Ok(())
    }
}

/// A direction of a layer, before it has run.
struct Direction<'a, T> {
    layout: &'a RnnLayout,
    /// 0, or 1 for the direction from the last step on.
    number: usize,
    lengths: Lengths<'a>,
    /// Rows, and elements of a row.
    x: (&'a [T], usize),
    weight: &'a [T],
    recurrent: &'a [T],
    bias: &'a [T],
    recurrent_bias: &'a [T],
    /// States before the first step; empty if there are none of a kind.
    initial: [&'a [T]; 2],
}

impl<'a, T: KernelFloat> Direction<'a, T> {
    /// A direction of the layer whose first direction has that number among the directions of all layers.
    fn of(
        layout: &'a RnnLayout,
        (first, number): (usize, usize),
        lengths: Lengths<'a>,
        x: (&'a [T], usize),
        pre_state: &'a [Buf<'_>],
        weight_list: &'a [Buf<'_>],
    ) -> Result<Direction<'a, T>> {
        let (part, count) = (first + number, 2 * layout.layers * layout.directions);
        let mut initial: [&[T]; 2] = [&[]; 2];
        for (initial, states) in initial.iter_mut().zip(pre_state) {
            *initial = nth(states.slice()?, part, layout.state());
        }
        Ok(Direction {
            layout,
            number,
            lengths,
            x,
            weight: weight_list[2 * part].slice()?,
            recurrent: weight_list[2 * part + 1].slice()?,
            bias: weight_list[count + 2 * part].slice()?,
            recurrent_bias: weight_list[count + 2 * part + 1].slice()?,
            initial,
        })
    }

    /// Computes gates and states of all steps. `memory` is for prepared weights.
    fn run(&self, cx: &Cx, states: &mut [T], memory: &mut [T]) -> Result<()> {
        let Direction { layout, number: direction, lengths, .. } = *self;
        let (gates, states) = states.split_at_mut(layout.gates());
        let (hidden, cell) = states.split_at_mut(layout.states());
        let first = layout.ends(direction).0 * layout.state();
        for (states, initial) in [&mut *hidden, &mut *cell].into_iter().zip(self.initial) {
            if !states.is_empty() {
                states[first..][..layout.state()].copy_from_slice(initial);
            }
        }
        let (transposed, biases) = memory.split_at_mut(layout.recurrent().len() * layout.units);
        let biases = &mut biases[..layout.row()];
        layout.add_biases(self.bias, self.recurrent_bias, biases);
        layout.project(cx, self.x, self.weight, biases, gates)?;
        let weights = match layout.steps {
            ..TRANSPOSED => matrix(self.recurrent, layout.units).t(),
            _ => {
                transpose(self.recurrent, layout.units, transposed);
                matrix(&*transposed, layout.recurrent().len())
            }
        };
        Pass { layout, direction, lengths, weights, gates, hidden, cell }.run(cx)
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
    /// Whether directions run on threads of their own: a step has too few sequences to be shared, and two threads would wait
    /// for each other after each step.
    fn shares_directions(&self, threads: usize) -> bool {
        threads <= self.directions && self.batch <= self.part()
    }

    /// Hidden states and cells of a direction of a layer.
    fn states_of<'a, T>(&self, states: &'a [T], direction: usize) -> [&'a [T]; 2] {
        let states = &nth(states, direction, self.unit())[self.gates()..];
        [&states[..self.states()], &states[self.states()..]]
    }

    /// Writes the hidden states of all directions after each step, and zeros after the end of a sequence.
    fn write_outputs<T: KernelFloat>(&self, cx: &Cx, lengths: Lengths<'_>, states: &[T], output: &mut [T]) {
        let (width, units) = (self.width(), self.units);
        cx.chunks_mut(output, self.batch * width, |step, output| {
            for direction in 0..self.directions {
                let [hidden, _] = self.states_of(states, direction);
                let hidden = nth(hidden, self.before_behind(direction, step).1, self.state());
                lengths.runs(step, 0, self.batch, |run, within| {
                    let rows = output.chunks_exact_mut(width).zip(hidden.chunks_exact(units));
                    for (output, hidden) in rows.take(run.end).skip(run.start) {
                        let output = &mut output[direction * units..][..units];
                        match within {
                            true => output.copy_from_slice(hidden),
                            false => output.fill(T::ZERO),
                        }
                    }
                });
            }
        });
    }

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
    /// Runs all steps.
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let Pass { layout, direction, lengths, weights, .. } = *self;
        let (units, part, row, recurrent) = (layout.units, layout.part(), layout.row(), layout.recurrent());
        let size = layout.state();
        for step in layout.steps(direction) {
            let (before, hidden) = before_behind(layout, direction, step, self.hidden);
            let (cell_before, cell) = before_behind(layout, direction, step, self.cell);
            let outs = [
                (&mut self.gates[step * layout.batch * row..][..layout.batch * row], part * row),
                (hidden, part * units),
                (cell, part * units),
            ];
            debug_assert!(before.len() == size);
            cx.try_zip_chunks_mut(outs, &mut [(); 0], |i, [gates, hidden, cell], _| {
                let first = i * part;
                let before = &before[first * units..][..hidden.len()];
                let cell_before = &cell_before[(first * units).min(cell_before.len())..][..cell.len()];
                let x: Strided<'_, T> = matrix(before, units).into();
                cx.product_strided(&mut gates[recurrent.start..], row, true, x, weights.into())?;
                lengths.runs(step, first, hidden.len() / units, |run, within| {
                    let of = |len: usize| run.start * len..run.end * len;
                    let (states, cells) = (of(units), if cell.is_empty() { 0..0 } else { of(units) });
                    if within {
                        let step = CellStep {
                            units,
                            gates: &mut gates[of(row)],
                            before: [&before[states.clone()], &cell_before[cells.clone()]],
                            hidden: &mut hidden[states],
                            cell: &mut cell[cells],
                        };
                        step.run(layout.mode);
                    } else {
                        gates[of(row)].fill(T::ZERO);
                        hidden[states.clone()].copy_from_slice(&before[states]);
                        cell[cells.clone()].copy_from_slice(&cell_before[cells]);
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
