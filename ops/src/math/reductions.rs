//! Reductions over axes, orders and cumulative sums.

macro_rules! reductions {
    ($methods:ident) => {
        $methods! {
            /// Whether any element is true over these axes, which are dropped; over all axes if empty.
            fn any(&self, axes: &[i64]) -> Expr {
                emit(ReduceAny { x: self.into(), out: New, reduce: LogicalReduceAttrs::over(axes) }).out
            }

            /// Whether all elements are true over these axes, which are dropped; over all axes if empty.
            fn all(&self, axes: &[i64]) -> Expr {
                emit(ReduceAll { x: self.into(), out: New, reduce: LogicalReduceAttrs::over(axes) }).out
            }

            /// Mean of all elements, rank 0.
            fn mean(&self) -> Expr { unary!(Mean, self) }

            /// Sum over these axes, which are dropped; over all axes if empty. Sums of truth values and int32 are
            /// int64.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([3], vec![0.5_f32, 2.0, 3.0])?);
            /// let one = tape.constant(Tensor::scalar(1.0_f32)?);
            /// assert_eq!(x.greater_than(&one).sum(&[]).tensor()?.slice::<i64>()?, [2]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn sum(&self, axes: &[i32]) -> Expr { reduction!(ReduceSum, self, over, axes) }

            /// Mean over these axes, which are dropped; over all axes if empty.
            fn mean_over(&self, axes: &[i32]) -> Expr { reduction!(ReduceMean, self, over, axes) }

            /// Maximum over these axes, which are dropped; over all axes if empty. On a tie, each of `n` largest
            /// elements gets `1 / n` of the gradient.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.leaf("x", Tensor::from_vec([3], vec![2.0_f32, 1.0, 2.0])?);
            /// x.amax(&[]).backward()?;
            /// assert_eq!(x.gradient()?.tensor()?.slice::<f32>()?, [0.5, 0.0, 0.5]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn amax(&self, axes: &[i32]) -> Expr { reduction!(ReduceAmax, self, over, axes) }

            /// Minimum over these axes, which are dropped; over all axes if empty. On a tie, each of `n` smallest
            /// elements gets `1 / n` of the gradient.
            fn amin(&self, axes: &[i32]) -> Expr { reduction!(ReduceAmin, self, over, axes) }

            /// Maximum over these axes, which are dropped; over all axes if empty. On a tie, every largest element gets
            /// the whole gradient, as in the reference; [`amax`](Math::amax) shares it.
            fn max_over(&self, axes: &[i32]) -> Expr { reduction!(ReduceMax, self, over, axes) }

            /// Product over these axes; over all axes if empty.
            fn prod(&self, axes: &[i32]) -> Expr { reduction!(ReduceProd, self, over, axes) }

            /// Minimum over these axes, which are dropped; over all axes if empty. On a tie, every smallest element
            /// gets the whole gradient, as in the reference; [`amin`](Math::amin) shares it.
            fn min_over(&self, axes: &[i32]) -> Expr { reduction!(ReduceMin, self, over, axes) }

            /// `ln(Σ exp(x))` over these axes, which are dropped; over all axes if empty.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([2], vec![-3.0_f32, 4.0])?);
            /// assert_eq!(x.norm(2.0, 0).tensor()?.slice::<f32>()?, [5.0]);
            /// assert_eq!(x.norm(f32::INFINITY, 0).tensor()?.slice::<f32>()?, [4.0]);
            /// let same = tape.constant(Tensor::from_vec([2], vec![500.0_f32, 500.0])?);
            /// assert_eq!(same.logsumexp(&[]).tensor()?.slice::<f32>()?, [500.0 + 2.0_f32.ln()]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn logsumexp(&self, axes: &[i32]) -> Expr {
                let axis = axes.to_vec();
                emit(Logsumexp { x: self.into(), out: New, axis, keepdim: false, reduce_all: false }).out
            }

            /// p-norm along an axis, which is dropped; `p` may be infinite or 0.
            fn norm(&self, p: f32, axis: i32) -> Expr {
                let op = PNorm {
                    x: self.into(),
                    out: New,
                    porder: p,
                    axis,
                    epsilon: 1e-12,
                    keepdim: false,
                    asvector: false,
                };
                emit(op).out
            }

            /// As [`sum`](Math::sum); the axes keep size 1, so that the result broadcasts with `x`.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([2, 2], vec![1.0_f32, 3.0, 2.0, 2.0])?);
            /// let parts = &x / x.sum_keepdim(&[1]);
            /// assert_eq!(parts.tensor()?.slice::<f32>()?, [0.25, 0.75, 0.5, 0.5]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn sum_keepdim(&self, axes: &[i32]) -> Expr { reduction!(ReduceSum, self, keeping, axes) }

            /// As [`mean_over`](Math::mean_over); the axes keep size 1.
            fn mean_keepdim(&self, axes: &[i32]) -> Expr { reduction!(ReduceMean, self, keeping, axes) }

            /// As [`max_over`](Math::max_over); the axes keep size 1.
            fn max_keepdim(&self, axes: &[i32]) -> Expr { reduction!(ReduceMax, self, keeping, axes) }

            /// As [`min_over`](Math::min_over); the axes keep size 1.
            fn min_keepdim(&self, axes: &[i32]) -> Expr { reduction!(ReduceMin, self, keeping, axes) }

            /// As [`prod`](Math::prod); the axes keep size 1.
            fn prod_keepdim(&self, axes: &[i32]) -> Expr { reduction!(ReduceProd, self, keeping, axes) }

            /// As [`logsumexp`](Math::logsumexp); the axes keep size 1.
            fn logsumexp_keepdim(&self, axes: &[i32]) -> Expr {
                let axis = axes.to_vec();
                emit(Logsumexp { x: self.into(), out: New, axis, keepdim: true, reduce_all: false }).out
            }

            /// Variance over these axes, which are dropped; over all axes if empty: `Σ (x - mean)² / (n - correction)`.
            /// A correction of 1 gives the unbiased estimate, NaN for one element.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([2, 2], vec![1.0_f32, 3.0, 2.0, 6.0])?);
            /// assert_eq!(x.variance(&[1], 0).tensor()?.slice::<f32>()?, [1.0, 4.0]);
            /// assert_eq!(x.variance(&[1], 1).tensor()?.slice::<f32>()?, [2.0, 8.0]);
            /// assert_eq!(x.std(&[1], 0).tensor()?.slice::<f32>()?, [1.0, 2.0]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn variance(&self, axes: &[i32], correction: u32) -> Expr {
                let squares = (self - self.mean_keepdim(axes)).square();
                if correction == 0 {
                    return squares.mean_over(axes);
                }
                let ones = emit(FillAnyLike { x: self.into(), out: New, value: 1.0, dtype: None }).out;
                squares.sum(axes) / (ones.sum(axes) - f64::from(correction)).relu()
            }

            /// Standard deviation, the root of [`variance`](Math::variance); its gradient is infinite where it is 0.
            fn std(&self, axes: &[i32], correction: u32) -> Expr { self.variance(axes, correction).sqrt() }

            /// `exp(x) / sum(exp(x))` along an axis.
            fn softmax(&self, axis: i32) -> Expr { emit(Softmax { x: self.into(), out: New, axis }).out }

            /// The logarithm of [`softmax`](Math::softmax).
            fn log_softmax(&self, axis: i32) -> Expr {
                emit(LogSoftmax { x: self.into(), out: New, axis }).out
            }

            /// Position of the largest element along an axis, which is dropped.
            fn argmax(&self, axis: i64) -> Expr {
                emit(ArgMax { x: self.into(), out: New, arg: ArgAttrs::along(axis) }).out
            }

            /// Position of the smallest element along an axis, which is dropped.
            fn argmin(&self, axis: i64) -> Expr {
                emit(ArgMin { x: self.into(), out: New, arg: ArgAttrs::along(axis) }).out
            }

            /// The `k` largest elements along the last axis, largest first, and their positions.
            fn top_k(&self, k: i32) -> (Expr, Expr) {
                let op = emit(TopKV2 {
                    x: self.into(),
                    k_tensor: None,
                    out: New,
                    indices: New,
                    k,
                    axis: -1,
                    largest: true,
                    sorted: true,
                });
                (op.out, op.indices)
            }

            /// The elements sorted along an axis, and their positions. The order is stable; NaN counts as the largest
            /// number.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([3], vec![2.0_f32, 3.0, 1.0])?);
            /// let (sorted, positions) = x.sort(0, true);
            /// assert_eq!(sorted.tensor()?.slice::<f32>()?, [3.0, 2.0, 1.0]);
            /// assert_eq!(positions.tensor()?.slice::<i64>()?, [1, 0, 2]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn sort(&self, axis: i32, descending: bool) -> (Expr, Expr) {
                let op = emit(Argsort { x: self.into(), out: New, indices: New, axis, descending });
                (op.out, op.indices)
            }

            /// Cumulative sum along an axis.
            fn cumsum(&self, axis: i32) -> Expr {
                let x = self.into();
                emit(Cumsum { x, out: New, axis, flatten: false, exclusive: false, reverse: false }).out
            }

            /// Cumulative product along an axis.
            fn cumprod(&self, axis: i32) -> Expr { emit(Cumprod { x: self.into(), out: New, dim: axis }).out }
        }
    };
}
pub(super) use reductions;
