//! Discrete Fourier transforms.
//!
//! There is no complex dtype: complex numbers are pairs of real numbers, real part first, in a last dimension of 2. Axes count
//! the dimensions without it.

mod complex;
mod real;
mod short_time;
mod transform;

pub use complex::{FftC2c, FftC2cGrad, FftNormalization};
pub use real::{FftC2r, FftR2c};
pub use short_time::Stft;
