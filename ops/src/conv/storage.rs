//! Elements as they are stored: numbers of 16 bits are summed in `f32`, and rounded once.

use autobwd::{
    Cx, Result,
    op::{Factor, LaneOf, VectorLoops, Vectorised},
    tensor::{bf16, f16},
};

use crate::kernel_helpers::{KernelFloat, PART};

/// Elements of images and filters.
pub(super) trait ConvElement: Factor<Sum: KernelFloat> {
    /// Whether they have the type of sums.
    const IN_PLACE: bool;

    /// Whether fewer multiplications in the type of sums take less time than all multiplications of the elements.
    const PREFERS_WINOGRAD: bool;

    /// Calls `work` with memory for the sums that become `out`: `out` itself, or the first of `sums`, which are rounded.
    fn summed(
        cx: &Cx,
        out: &mut [Self],
        sums: &mut [Self::Sum],
        work: impl FnOnce(&mut [Self::Sum]) -> Result<()>,
    ) -> Result<()>;

    /// The elements, if they have the type of sums.
    fn as_sums(elements: &[Self]) -> Option<&[Self::Sum]>;

    /// The elements of `sums` for as many of `out`.
    fn sums(out: usize) -> usize {
        if Self::IN_PLACE { 0 } else { out }
    }
}

macro_rules! stored {
    (in place: $($t:ident, $prefers_winograd:literal;)*) => {$(
        impl ConvElement for $t {
            const IN_PLACE: bool = true;
            const PREFERS_WINOGRAD: bool = $prefers_winograd;

            fn summed(
                _: &Cx,
                out: &mut [$t],
                _: &mut [$t],
                work: impl FnOnce(&mut [$t]) -> Result<()>,
            ) -> Result<()> {
                work(out)
            }

            fn as_sums(elements: &[$t]) -> Option<&[$t]> {
                Some(elements)
            }
        }
    )*};
    (rounded: $($t:ident, $prefers_winograd:literal;)*) => {$(
        impl ConvElement for $t {
            const IN_PLACE: bool = false;
            const PREFERS_WINOGRAD: bool = $prefers_winograd;

            fn summed(
                cx: &Cx,
                out: &mut [$t],
                sums: &mut [f32],
                work: impl FnOnce(&mut [f32]) -> Result<()>,
            ) -> Result<()> {
                let sums = &mut sums[..out.len()];
                work(sums)?;
                cx.chunks_mut(out, PART, |part, out| f32::vectorised(Rounding(&sums[part * PART..], out)));
                Ok(())
            }

            fn as_sums(_: &[$t]) -> Option<&[f32]> {
                None
            }
        }
    )*};
}
// Rounding errors of double precision stay those of sums of products.
stored!(in place: f32, true; f64, false;);
// Processors have instructions for products of `bf16`, and are twice as fast with them.
stored!(rounded: bf16, false; f16, true;);

struct Rounding<'a, T: Factor>(&'a [T::Sum], &'a mut [T]);
impl<T: ConvElement> VectorLoops<T::Sum> for Rounding<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T::Sum>>(self) {
        self.1.iter_mut().zip(self.0).for_each(|(out, sum)| *out = T::rounded(*sum));
    }
}
