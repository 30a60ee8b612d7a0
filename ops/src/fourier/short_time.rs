//! Transforms of short slices of a signal.

use autobwd::{
    Composed, Composition, Dims, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op,
    tensor::Dim,
};

use super::{FftNormalization, FftR2c};
use crate::{Math, signal::Frame};

/// Short-time Fourier transform: `out[.., k, i] = c · Σ window[j] · x[.., i * hop_length + j] · exp(-2πi · j · k / n_fft)`.
/// Elements after the last complete slice are left out.
#[register_op(grad = Composed, composed)]
pub struct Stft<V = Var> {
    /// Signals along the last axis, with at least `n_fft` elements.
    #[input]
    pub x: V,
    /// `[n_fft]`
    #[input]
    pub window: V,
    /// Complex numbers, `[.., f, m, 2]`: `f` frequencies of `m` slices.
    #[output]
    pub out: V,
    /// Elements of a slice.
    #[attr(min = 1)]
    pub n_fft: i32,
    /// The distance of the starts of consecutive slices.
    #[attr(min = 1)]
    pub hop_length: i32,
    /// Whether the factor `c` is `1 / √n_fft` in place of 1.
    #[attr]
    pub normalized: bool,
    /// Whether there are `n_fft / 2 + 1` frequencies in place of `n_fft`; the others are conjugates.
    #[attr]
    pub onesided: bool,
}
impl Infer for Stft<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let (length, hop) = (self.n_fft as usize, self.hop_length as usize);
        self.window.same_dtype(&self.x)?;
        self.window.require(self.window.dims.agrees(&Dims::from([length])), || {
            format!("dimensions [{length}] are needed")
        })?;
        let Some((time, others)) = self.x.dims.split_last() else {
            return Err(self.x.wrong("at least one dimension is needed"));
        };
        self.x.require(time.get().is_none_or(|n| n >= length), || {
            format!("at least {length} elements are needed along the last axis")
        })?;
        let count = time.get().map_or(Dim::UNKNOWN, |n| ((n - length) / hop + 1).into());
        let frequencies = if self.onesided { length / 2 + 1 } else { length };
        let dims = others.iter().copied().chain([frequencies.into(), count, 2.into()]);
        self.out.set(self.x.dtype, dims.collect::<Dims>());
        Ok(())
    }
}
impl Composition for Stft<Expr> {
    fn compose(&mut self) {
        let (frame_length, hop_length) = (self.n_fft, self.hop_length);
        let slices = emit(Frame { x: (&self.x).into(), out: New, frame_length, hop_length, axis: -1 }).out;
        let x = (&(slices * self.window.unsqueeze(&[1]))).into();
        let normalization =
            if self.normalized { FftNormalization::Ortho } else { FftNormalization::Backward };
        let (axes, onesided) = (vec![self.x.dims().len() as i64 - 1], self.onesided);
        self.out = emit(FftR2c { x, out: New, axes, normalization, forward: true, onesided }).out;
    }
}
autobwd::samples!(
    Stft,
    [
        stft(uniform([2, 9]), uniform([4]), [4, 2], [false, true]),
        stft(uniform([8]), uniform([3]), [3, 1], [true, true]),
        stft(uniform([2, 3, 7]), uniform([5]), [5, 2], [true, false]),
        stft(uniform([0, 6]), uniform([4]), [4, 1], [false, false]),
        stft(uniform([2, 4]), uniform([4]), [4, 3], [false, true]),
        stft(uniform([2, 3]), uniform([4]), [4, 3], [false, true])
            .fails("`X`: at least 4 elements are needed along the last axis"),
        stft(uniform([2, 9]), uniform([3]), [4, 3], [false, true])
            .fails("`Window`: dimensions [4] are needed"),
        stft(uniform([]), uniform([4]), [4, 3], [false, true]).fails("`X`: at least one dimension is needed"),
        stft(uniform([9]), integers_below(9, [4]), [4, 3], [false, true])
            .fails("`Window`: dtype int64 does not match"),
        stft(integers_below(9, [9]), integers_below(9, [4]), [4, 3], [false, true])
            .fails("`X`: floating point numbers are needed"),
        stft(uniform([9]), uniform([4]), [0, 3], [false, true])
            .fails("attribute `n_fft`: must be at least 1"),
        stft(uniform([9]), uniform([4]), [4, 0], [false, true])
            .fails("attribute `hop_length`: must be at least 1"),
    ]
);

fn stft(
    x: Draw,
    window: Draw,
    [n_fft, hop_length]: [i32; 2],
    [normalized, onesided]: [bool; 2],
) -> Stft<Draw> {
    Stft { x, window, out: out(), n_fft, hop_length, normalized, onesided }
}
