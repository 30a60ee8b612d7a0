//! The kernel of `rnn_grad`.

use autobwd::{
    Buf, Cx, Result,
    op::{Mat, Strided},
    tensor::OptionalBuf,
};

use super::{Lengths, RnnGrad, RnnLayout, cells::CellGradStep, forward::drop_out};
use crate::kernel_helpers::{KernelFloat, matrix, nth};

impl RnnGrad<Buf<'_>> {
    pub(super) fn backward<T: KernelFloat>(
        &mut self,
        cx: &Cx,
        layout: &RnnLayout,
        scratch: &mut [T],
    ) -> Result<()> {
        if layout.batch == 0 {
            let gradients =
                self.dweight_list.iter_mut().chain(&mut self.dpre_state).chain([&mut self.dinput]);
            return gradients.flatten().try_for_each(|gradient| {
                gradient.slice_mut::<T>()?.fill(T::ZERO);
                Ok(())
            });
        }
        let (directions, size, rows, row) = (layout.directions, layout.state(), layout.rows(), layout.row());
        let (dgates, scratch) = scratch.split_at_mut(layout.gates());
        let (back, scratch) = scratch.split_at_mut(size);
        let (back_cell, scratch) = scratch.split_at_mut(size);
        let (zeros, outputs) = scratch.split_at_mut(layout.units);
        zeros.fill(T::ZERO);
        let (dabove, dbelow) = outputs.split_at_mut(if layout.layers > 2 { layout.layer() } else { 0 });
        let mut between = [dabove, dbelow];
        let (input, reserve, dout) =
            (self.input.slice::<T>()?, self.reserve.slice::<T>()?, self.dout.slice::<T>()?);
        let lengths = Lengths::of(&self.sequence_length)?;
        let count = 2 * layout.layers * directions;
        for layer in (0..layout.layers).rev() {
            let x_width = layout.x_width(layer);
            let x = match layer {
                0 => input,
                _ => &reserve[layout.place(layer - 1, directions)..][..layout.layer()],
            };
            let [dabove, dbelow] = &mut between;
            let dout = if layer + 1 == layout.layers { dout } else { &**dabove };
            let mut dx = if layer == 0 { self.dinput.slice_mut::<T>()? } else { Some(&mut **dbelow) };
            for direction in 0..directions {
                let part = layer * directions + direction;
                let unit = &reserve[layout.place(layer, direction)..][..layout.unit()];
                let (gates, states) = unit.split_at(layout.gates());
                let (hidden, cell) = states.split_at(layout.states());
                dgates.copy_from_slice(gates);
                back_cell.fill(T::ZERO);
                for (back, dstate) in [&mut *back, &mut *back_cell].into_iter().zip(&self.dstate) {
                    back.copy_from_slice(nth(dstate.slice()?, part, size));
                }
                let recurrent = matrix(self.weight_list[2 * part + 1].slice()?, layout.units);
                let pass = GradPass { layout, direction, lengths, recurrent, hidden, cell, dout, zeros };
                pass.run(cx, dgates, back, back_cell)?;
                for (back, dstate) in [&*back, &*back_cell].into_iter().zip(&mut self.dpre_state) {
                    if let Some(dstate) = dstate.slice_mut()? {
                        dstate[part * size..][..size].copy_from_slice(back);
                    }
                }
                let columns = |range: std::ops::Range<usize>| -> Strided<'_, T> {
                    let mat =
                        Mat { data: &dgates[range.start..], rows, cols: range.len(), transposed: false };
                    Strided { mat, stride: row }
                };
                let weight = self.weight_list[2 * part].slice::<T>()?;
                if let Some(dweight) = self.dweight_list[2 * part].slice_mut::<T>()? {
                    for (range, first) in layout.projected() {
                        let dweight = &mut dweight[first * x_width..][..range.len() * x_width];
                        cx.product_strided(
                            dweight,
                            x_width,
                            false,
                            columns(range).t(),
                            matrix(x, x_width).into(),
                        )?;
                    }
                }
                if let Some(dweight) = self.dweight_list[2 * part + 1].slice_mut::<T>()? {
                    let before = matrix(layout.all_before(direction, hidden), layout.units);
                    let gates = columns(layout.recurrent());
                    cx.product_strided(dweight, layout.units, false, gates.t(), before.into())?;
                }
                if let Some(dbias) = self.dweight_list[count + 2 * part].slice_mut::<T>()? {
                    for (range, first) in layout.projected() {
                        let dbias = &mut dbias[first..][..range.len()];
                        add_up(dgates.chunks_exact(row).map(|row| &row[range.clone()]), dbias);
                    }
                }
                if let Some(dbias) = self.dweight_list[count + 2 * part + 1].slice_mut::<T>()? {
                    add_up(dgates.chunks_exact(row).map(|row| &row[layout.recurrent()]), dbias);
                }
                if let Some(dx) = &mut dx {
                    for (i, (range, first)) in layout.projected().into_iter().enumerate() {
                        let weight = matrix(&weight[first * x_width..][..range.len() * x_width], x_width);
                        let add = direction > 0 || i > 0;
                        cx.product_strided(dx, x_width, add, columns(range), weight.into())?;
                    }
                }
            }
            if let (Some(dx), true) = (dx, layer > 0 && self.rnn.drops()) {
                drop_out(cx, &self.rnn, layer - 1, dx);
            }
            between.swap(0, 1);
        }
        Ok(())
    }
}

/// `out` = the sum of rows.
fn add_up<'a, T: KernelFloat>(rows: impl Iterator<Item = &'a [T]>, out: &mut [T]) {
    out.fill(T::ZERO);
    for row in rows {
        out.iter_mut().zip(row).for_each(|(out, x)| *out += *x);
    }
}

/// One direction of a layer.
struct GradPass<'a, T> {
    layout: &'a RnnLayout,
    direction: usize,
    lengths: Lengths<'a>,
    recurrent: Mat<'a, T>,
    hidden: &'a [T],
    cell: &'a [T],
    /// Gradient of the layer's output.
    dout: &'a [T],
    zeros: &'a [T],
}

impl<T: KernelFloat> GradPass<'_, T> {
    /// Runs all steps: `dgates` are the activations, then the gradients of the pre-activations; `back` are gradients of
    /// the last states, then of the first.
    fn run(&self, cx: &Cx, dgates: &mut [T], back: &mut [T], back_cell: &mut [T]) -> Result<()> {
        let (layout, direction) = (self.layout, self.direction);
        let (units, width, part, row) = (layout.units, layout.width(), layout.part(), layout.row());
        let (size, column, recurrent) = (layout.state(), direction * units, layout.recurrent());
        for step in layout.steps(direction).rev() {
            let (before, behind) = layout.before_behind(direction, step);
            let hidden_before = nth(self.hidden, before, size);
            let cells =
                [before, behind].map(|at| if self.cell.is_empty() { &[] } else { nth(self.cell, at, size) });
            let dout = nth(self.dout, step, layout.batch * width);
            let outs = [
                (&mut dgates[step * layout.batch * row..][..layout.batch * row], part * row),
                (&mut *back, part * units),
                (&mut *back_cell, part * units),
            ];
            cx.try_zip_chunks_mut(outs, &mut [(); 0], |i, [gates, back, back_cell], _| {
                let first = i * part;
                self.lengths.runs(step, first, back.len() / units, |run, within| {
                    let of = |len: usize| run.start * len..run.end * len;
                    if !within {
                        return gates[of(row)].fill(T::ZERO);
                    }
                    let at = (first + run.start) * units;
                    let dout = dout[(first + run.start) * width..].chunks_exact(width);
                    for (back, dout) in back[of(units)].chunks_exact_mut(units).zip(dout) {
                        back.iter_mut().zip(&dout[column..]).for_each(|(back, dout)| *back += *dout);
                    }
                    let step = CellGradStep {
                        units,
                        gates: &mut gates[of(row)],
                        before: &hidden_before[at..],
                        cells: cells.map(|cell| &cell[at.min(cell.len())..]),
                        back: &mut back[of(units)],
                        back_cell: &mut back_cell[of(units)],
                        zeros: self.zeros,
                    };
                    step.run(layout.mode);
                });
                let rows = back.len() / units;
                let mat =
                    Mat { data: &gates[recurrent.start..], rows, cols: recurrent.len(), transposed: false };
                cx.product_strided(back, units, true, Strided { mat, stride: row }, self.recurrent.into())
            })?;
        }
        Ok(())
    }
}
