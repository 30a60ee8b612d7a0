//! Discrete Fourier transforms.

macro_rules! transforms {
    ($methods:ident) => {
        $methods! {
            /// Discrete Fourier transforms of complex numbers along axes: `Σ x[j] · exp(-2πi · j · k / n)`. Complex numbers are pairs
            /// in a last dimension of 2, which axes do not count.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([2, 2], vec![3.0, 1.0, 1.0, -2.0])?);
            /// assert_eq!(x.fft(&[0]).tensor()?.slice::<f64>()?, [4.0, -1.0, 2.0, 3.0]);
            /// assert_eq!(x.fft(&[0]).ifft(&[0]).tensor()?, x.tensor()?);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn fft(&self, axes: &[i32]) -> Expr { transform!(FftC2c, self, axes, true) }

            /// The inverse of [`fft`](Math::fft).
            fn ifft(&self, axes: &[i32]) -> Expr { transform!(FftC2c, self, axes, false) }

            /// Discrete Fourier transforms of real numbers: as [`fft`](Math::fft), but only `n / 2 + 1` of `n` frequencies along
            /// the last of the axes. The others are conjugates.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([4], vec![3.0, 1.0, -1.0, 2.0])?);
            /// let y = x.rfft(&[0]);
            /// assert_eq!(y.tensor()?, Tensor::from_vec([3, 2], vec![5.0, 0.0, 4.0, 1.0, -1.0, 0.0])?);
            /// assert_eq!(y.irfft(&[0], 4).tensor()?, x.tensor()?);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn rfft(&self, axes: &[i32]) -> Expr { transform!(FftR2c, self, axes, true, onesided: true) }

            /// The inverse of [`rfft`](Math::rfft); `n` is the length of the last of the axes, 0 for the even one.
            fn irfft(&self, axes: &[i32], n: i64) -> Expr {
                transform!(FftC2r, self, axes, false, last_dim_size: n)
            }

            /// Short-time Fourier transform along the last axis: the frequencies of slices, [`rfft`](Math::rfft) of their products with
            /// a window. Slices have the length of the window, and start at multiples of `hop`.
            fn stft(&self, window: &Expr, hop: i32) -> Expr {
                let (hop_length, normalized, onesided) = (hop, false, true);
                let n_fft = window.dims().numel().get().map_or(0, |n| n.try_into().unwrap_or(i32::MAX));
                emit(Stft {
                    x: self.into(),
                    window: window.into(),
                    out: New,
                    n_fft,
                    hop_length,
                    normalized,
                    onesided,
                })
                .out
            }
        }
    };
}
pub(super) use transforms;
