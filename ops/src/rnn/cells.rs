//! Steps of the cells, over some batch rows.

use autobwd::op::{LaneOf, VectorLoops, map_lanes};

use super::RnnMode;
use crate::{
    kernel_helpers::{KernelFloat, nth},
    lstm::{LstmGradLoops, LstmLoops},
};

/// One forward step.
pub(super) struct CellStep<'a, T> {
    pub(super) units: usize,
    /// Pre-activations of the gates, then the activations.
    pub(super) gates: &'a mut [T],
    /// Hidden states before the step, and cell states with LSTM.
    pub(super) before: [&'a [T]; 2],
    pub(super) hidden: &'a mut [T],
    pub(super) cell: &'a mut [T],
}

impl<T: KernelFloat> CellStep<'_, T> {
    pub(super) fn run(self, mode: RnnMode) {
        let CellStep { units, gates, before: [before, cell_before], hidden, cell } = self;
        match mode {
            RnnMode::Lstm => {
                T::vectorised(LstmLoops {
                    units,
                    gates,
                    hidden,
                    cell,
                    before: Some(cell_before),
                    zeros: &[],
                });
            }
            RnnMode::Gru => T::vectorised(GruLoops { units, gates, before, hidden }),
            RnnMode::Tanh => T::vectorised(SimpleLoops { relu: false, gates, hidden }),
            RnnMode::Relu => T::vectorised(SimpleLoops { relu: true, gates, hidden }),
        }
    }
}

/// One backward step.
pub(super) struct CellGradStep<'a, T> {
    pub(super) units: usize,
    /// The activations, then the gradients of the pre-activations.
    pub(super) gates: &'a mut [T],
    /// Hidden states before the step.
    pub(super) before: &'a [T],
    /// Cell states before and behind the step.
    pub(super) cells: [&'a [T]; 2],
    /// Gradient of the hidden states: behind the step, then before it, without the part through the recurrent weights.
    pub(super) back: &'a mut [T],
    /// Gradient of the cell states: behind the step, then before it.
    pub(super) back_cell: &'a mut [T],
    pub(super) zeros: &'a [T],
}

impl<T: KernelFloat> CellGradStep<'_, T> {
    pub(super) fn run(self, mode: RnnMode) {
        let CellGradStep { units, gates, before, cells: [cell_before, cell], back, back_cell, zeros } = self;
        match mode {
            RnnMode::Lstm => {
                T::vectorised(LstmGradLoops {
                    units,
                    gates,
                    back_hidden: &*back,
                    back_cell,
                    cell,
                    before: Some(cell_before),
                    dhidden: None,
                    dcell: None,
                    dactivations: None,
                    zeros,
                });
                back.fill(T::ZERO);
            }
            RnnMode::Gru => T::vectorised(GruGradLoops { units, gates, before, back }),
            RnnMode::Tanh => T::vectorised(SimpleGradLoops { relu: false, gates, back }),
            RnnMode::Relu => T::vectorised(SimpleGradLoops { relu: true, gates, back }),
        }
    }
}

/// The parts `m, r, z, n'` of a row.
#[inline(always)]
fn parts<T>(row: &mut [T], units: usize) -> [&mut [T]; 4] {
    let (left, right) = row.split_at_mut(2 * units);
    let (left, right) = (left.split_at_mut(units), right.split_at_mut(units));
    [left.0, left.1, right.0, right.1]
}

struct GruLoops<'a, T> {
    units: usize,
    gates: &'a mut [T],
    before: &'a [T],
    hidden: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for GruLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let GruLoops { units, gates, before, hidden } = self;
        for (row, hidden) in hidden.chunks_exact_mut(units).enumerate() {
            let [m, r, z, n] = parts(&mut gates[row * 4 * units..][..4 * units], units);
            let before = nth(before, row, units);
            map_lanes([before], [m, r, z, n, hidden], |[before]: [F; 1], [m, r, z, n, _]| {
                let (r, z) = (r.sigmoid(), z.sigmoid());
                let m = (m + r * n).tanh();
                [m, r, z, n, (before - m) * z + m]
            });
        }
    }
}

struct GruGradLoops<'a, T> {
    units: usize,
    gates: &'a mut [T],
    before: &'a [T],
    back: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for GruGradLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let GruGradLoops { units, gates, before, back } = self;
        let one = F::from(1.0);
        for (row, back) in back.chunks_exact_mut(units).enumerate() {
            let [m, r, z, n] = parts(&mut gates[row * 4 * units..][..4 * units], units);
            let before = nth(before, row, units);
            map_lanes([before], [m, r, z, n, back], |[before]: [F; 1], [m, r, z, n, back]| {
                let dm = back * (one - z) * (one - m * m);
                let dr = dm * n * r * (one - r);
                let dz = back * (before - m) * z * (one - z);
                [dm, dr, dz, dm * r, back * z]
            });
        }
    }
}

struct SimpleLoops<'a, T> {
    relu: bool,
    gates: &'a mut [T],
    hidden: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for SimpleLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let SimpleLoops { relu, gates, hidden } = self;
        let zero = F::from(0.0);
        if relu {
            map_lanes([], [gates, hidden], |[]: [F; 0], [x, _]| [F::select(x.gt(zero), x, zero); 2]);
        } else {
            map_lanes([], [gates, hidden], |[]: [F; 0], [x, _]| [x.tanh(); 2]);
        }
    }
}

struct SimpleGradLoops<'a, T> {
    relu: bool,
    gates: &'a mut [T],
    back: &'a mut [T],
}
impl<T: KernelFloat> VectorLoops<T> for SimpleGradLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let SimpleGradLoops { relu, gates, back } = self;
        let (zero, one) = (F::from(0.0), F::from(1.0));
        if relu {
            map_lanes([], [gates, back], |[]: [F; 0], [h, back]| [F::select(h.gt(zero), back, zero), zero]);
        } else {
            map_lanes([], [gates, back], |[]: [F; 0], [h, back]| [back * (one - h * h), zero]);
        }
    }
}
