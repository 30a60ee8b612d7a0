//! Pooling of planes with windows of two or three columns, several windows at a time.

use autobwd::op::{LaneOf, VectorLoops};

use super::{PoolingType, pooling::Pooling};
use crate::{kernel_helpers::KernelFloat, tap_rows::TapRows};

impl Pooling {
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
