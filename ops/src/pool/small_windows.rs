//! Pooling of planes with windows of two or three columns, several windows at a time.

use autobwd::op::{LaneOf, VectorLoops};

use super::{PoolingType, pooling::Pooling};
use crate::{kernel_helpers::KernelFloat, tap_rows::TapRows};

impl Pooling {
    /// The windows of max pooling, if their gradient is this special case: places in a window are exact numbers.
    pub(super) fn small_maxima(&self, kind: PoolingType) -> Option<TapRows> {
        self.small().filter(|rows| kind == PoolingType::Max && rows.taps() < 1 << 24)
    }

    /// The windows, if this special case applies.
    pub(super) fn small(&self) -> Option<TapRows> {
        let plain = self.lanes == 1 && !self.adaptive;
        plain.then(|| TapRows::new(self.x, self.out, self.windows, &[2, 3])).flatten()
    }
}

/// Sets `out` to the maxima or the sums of the windows over a plane.
pub(super) struct SmallWindows<'a, T> {
    pub(super) rows: TapRows,
    pub(super) kind: PoolingType,
    pub(super) x: &'a [T],
    pub(super) out: &'a mut [T],
    pub(super) scratch: &'a mut [T],
}

impl<T: KernelFloat> VectorLoops<T> for SmallWindows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        if self.rows.width() == 2 { self.reduce::<F, 2>() } else { self.reduce::<F, 3>() }
    }
}

impl<T: KernelFloat> SmallWindows<'_, T> {
    #[inline(always)]
    fn reduce<F: LaneOf<T>, const W: usize>(self) {
        let SmallWindows { rows, kind, x, out, scratch } = self;
        match kind {
            PoolingType::Max => {
                // NaN counts as the largest number; of equal elements, the first is taken.
                let larger = |a: F, b: F| F::select(b.gt(a), b, F::select(b.equals(b), a, b));
                let fold = |_| move |most, under: [F; W]| under.into_iter().fold(most, larger);
                rows.fold((x, T::of(f64::NEG_INFINITY)), (out, F::from(f64::NEG_INFINITY)), scratch, fold);
            }
            PoolingType::Avg => {
                // -0 is the neutral element of sums: 0 would make 0 of -0.
                let fold = |_| {
                    move |sum: F, under: [F; W]| sum + under.into_iter().fold(F::from(-0.0), |a, b| a + b)
                };
                rows.fold((x, T::of(-0.0)), (out, F::from(0.0)), scratch, fold);
            }
        }
    }
}

impl Pooling {
    /// Adds the gradient of each window to the first maximum of the window. A NaN maximum equals no element, so its
    /// gradient is dropped. `places` has an element for each window.
    pub(super) fn add_to_first_maxima<T: KernelFloat>(
        &self,
        rows: TapRows,
        [x, out, dout]: [&[T]; 3],
        dx: &mut [T],
        (places, scratch): (&mut [T], &mut [T]),
    ) {
        T::vectorised(FirstMaxima { rows, x, out, places: &mut *places, scratch });
        let [down, across] = self.windows;
        let (width, columns) = (self.x[1], self.out[1]);
        let of_rows = places.chunks_exact(columns).zip(dout.chunks_exact(columns));
        for (row, (places, dout)) in of_rows.enumerate() {
            for (column, (place, dout)) in places.iter().zip(dout).enumerate() {
                let place: f64 = (*place).into();
                if place > 0.0 {
                    let tap = rows.taps() - place as usize;
                    let y = row * down.stride + tap / across.size - down.before;
                    dx[y * width + column * across.stride + tap % across.size - across.before] += *dout;
                }
            }
        }
    }
}

/// Sets `places` to the places of the first maxima of the windows over a plane: the number of taps from the maximum on, or
/// 0 if no element equals the maximum.
struct FirstMaxima<'a, T> {
    rows: TapRows,
    x: &'a [T],
    out: &'a [T],
    places: &'a mut [T],
    scratch: &'a mut [T],
}

impl<T: KernelFloat> VectorLoops<T> for FirstMaxima<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        if self.rows.width() == 2 { self.find::<F, 2>() } else { self.find::<F, 3>() }
    }
}

impl<T: KernelFloat> FirstMaxima<'_, T> {
    #[inline(always)]
    fn find<F: LaneOf<T>, const W: usize>(self) {
        let FirstMaxima { rows, x, out, places, scratch } = self;
        let taps = rows.taps();
        // NaN at the sides is no maximum. Earlier taps have larger numbers.
        rows.fold_taps::<_, F, W>((x, T::of(f64::NAN)), out, places, scratch, |tap, first, most, x| {
            let place = F::select(x.equals(most), F::from((taps - tap) as f64), F::from(0.0));
            F::select(place.gt(first), place, first)
        });
    }
}
