//! The trait `Math`: operators as methods on expressions, under their usual names.

mod methods;
mod refusals;
mod select;

use autobwd::{DType, Expr, New, emit};

pub(crate) use refusals::failed;

use crate::shape::{Concat, Stack};

/// Mathematical operators on expressions; `+ - * /` are operators of `Expr` itself.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::Math;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 4]);
/// let w = net.input("w", DType::F32, &[4, 2]);
/// let h = (x.matmul(&w) + 1.0).relu();
/// assert_eq!(h.dims().to_string(), "[-1, 2]");
/// ```
///
/// A method whose shapes, dtypes or arguments do not fit returns a failed [expression](Expr), whose error names
/// operator, variables and the line of the call.
pub trait Math: Sized {
    /// `max(x, 0)`
    #[track_caller]
    fn relu(&self) -> Expr;
    /// `tanh(x)`
    #[track_caller]
    fn tanh(&self) -> Expr;
    /// `1 / (1 + exp(-x))`
    #[track_caller]
    fn sigmoid(&self) -> Expr;
    /// `x * Φ(x)`, with `Φ` the standard normal distribution function; its `tanh` approximation if `approximate`.
    #[track_caller]
    fn gelu(&self, approximate: bool) -> Expr;
    /// `x * sigmoid(x)`
    #[track_caller]
    fn silu(&self) -> Expr;
    /// `x` where it is positive, else `slope * x`.
    #[track_caller]
    fn leaky_relu(&self, slope: f64) -> Expr;
    /// `x` where it is positive, else `alpha * (exp(x) - 1)`.
    #[track_caller]
    fn elu(&self, alpha: f64) -> Expr;
    /// `ln(1 + exp(x))`
    #[track_caller]
    fn softplus(&self) -> Expr;
    /// `x * tanh(ln(1 + exp(x)))`
    #[track_caller]
    fn mish(&self) -> Expr;
    /// `x / (1 + |x|)`
    #[track_caller]
    fn softsign(&self) -> Expr;
    /// `scale * x` where it is positive, else `scale * alpha * (exp(x) - 1)`, with the constants of Klambauer et al.
    /// (2017).
    #[track_caller]
    fn selu(&self) -> Expr;
    /// `-ln(1 + exp(-x))`
    #[track_caller]
    fn log_sigmoid(&self) -> Expr;
    /// `min(max(x, 0), 6)`
    #[track_caller]
    fn relu6(&self) -> Expr;
    /// `x * min(max(x + 3, 0), 6) / 6`
    #[track_caller]
    fn hard_swish(&self) -> Expr;
    /// Error function.
    #[track_caller]
    fn erf(&self) -> Expr;
    /// `exp(x) - 1`, accurate near 0.
    #[track_caller]
    fn expm1(&self) -> Expr;
    /// `ln(1 + x)`, accurate near 0.
    #[track_caller]
    fn log1p(&self) -> Expr;
    /// `1 / x`
    #[track_caller]
    fn reciprocal(&self) -> Expr;
    /// `1 / √x`
    #[track_caller]
    fn rsqrt(&self) -> Expr;
    /// `exp(x)`
    #[track_caller]
    fn exp(&self) -> Expr;
    /// `ln(x)`
    #[track_caller]
    fn log(&self) -> Expr;
    /// Binary logarithm.
    #[track_caller]
    fn log2(&self) -> Expr;
    /// Decimal logarithm.
    #[track_caller]
    fn log10(&self) -> Expr;
    /// `|x|`
    #[track_caller]
    fn abs(&self) -> Expr;
    /// `x²`
    #[track_caller]
    fn square(&self) -> Expr;
    /// `√x`
    #[track_caller]
    fn sqrt(&self) -> Expr;
    /// Sine of an angle in radians.
    #[track_caller]
    fn sin(&self) -> Expr;
    /// Cosine of an angle in radians.
    #[track_caller]
    fn cos(&self) -> Expr;
    /// Tangent of an angle in radians.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([2], vec![0.5_f64, -0.25])?);
    /// let round_trip = x.tan().atan().sinh().asinh();
    /// let differences = (round_trip - &x).abs().tensor()?;
    /// assert!(differences.slice::<f64>()?.iter().all(|difference| *difference < 1e-15));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn tan(&self) -> Expr;
    /// Inverse sine, in radians.
    #[track_caller]
    fn asin(&self) -> Expr;
    /// Inverse cosine, in radians.
    #[track_caller]
    fn acos(&self) -> Expr;
    /// Inverse tangent, in radians.
    #[track_caller]
    fn atan(&self) -> Expr;
    /// Hyperbolic sine.
    #[track_caller]
    fn sinh(&self) -> Expr;
    /// Hyperbolic cosine.
    #[track_caller]
    fn cosh(&self) -> Expr;
    /// Inverse hyperbolic sine.
    #[track_caller]
    fn asinh(&self) -> Expr;
    /// Inverse hyperbolic cosine.
    #[track_caller]
    fn acosh(&self) -> Expr;
    /// Inverse hyperbolic tangent.
    #[track_caller]
    fn atanh(&self) -> Expr;
    /// `⌊x⌋`
    #[track_caller]
    fn floor(&self) -> Expr;
    /// `⌈x⌉`
    #[track_caller]
    fn ceil(&self) -> Expr;
    /// Rounds towards 0.
    #[track_caller]
    fn trunc(&self) -> Expr;
    /// The nearest integer, halves away from 0.
    #[track_caller]
    fn round(&self) -> Expr;
    /// 1, −1 or 0 as `x` is positive, negative or 0.
    #[track_caller]
    fn sign(&self) -> Expr;
    /// `min(max(x, min), max)`
    #[track_caller]
    fn clip(&self, min: f64, max: f64) -> Expr;
    /// Elementwise maximum; operands of this and the following methods broadcast.
    #[track_caller]
    fn maximum(&self, other: &Expr) -> Expr;
    /// Elementwise minimum.
    #[track_caller]
    fn minimum(&self, other: &Expr) -> Expr;
    /// Elementwise `x ^ y`.
    #[track_caller]
    fn pow(&self, exponent: &Expr) -> Expr;
    /// Elementwise `⌊x / y⌋`.
    #[track_caller]
    fn floor_divide(&self, other: &Expr) -> Expr;
    /// Elementwise remainder of [`floor_divide`](Math::floor_divide).
    #[track_caller]
    fn remainder(&self, other: &Expr) -> Expr;
    /// `x < y`
    #[track_caller]
    fn less_than(&self, other: &Expr) -> Expr;
    /// `x <= y`
    #[track_caller]
    fn less_equal(&self, other: &Expr) -> Expr;
    /// `x > y`
    #[track_caller]
    fn greater_than(&self, other: &Expr) -> Expr;
    /// `x >= y`
    #[track_caller]
    fn greater_equal(&self, other: &Expr) -> Expr;
    /// `x == y`
    #[track_caller]
    fn equal(&self, other: &Expr) -> Expr;
    /// `x != y`
    #[track_caller]
    fn not_equal(&self, other: &Expr) -> Expr;
    /// Logical and.
    #[track_caller]
    fn logical_and(&self, other: &Expr) -> Expr;
    /// Logical or.
    #[track_caller]
    fn logical_or(&self, other: &Expr) -> Expr;
    /// Logical exclusive or.
    #[track_caller]
    fn logical_xor(&self, other: &Expr) -> Expr;
    /// Logical not.
    #[track_caller]
    fn logical_not(&self) -> Expr;
    /// Whether elements are finite.
    ///
    /// ```
    /// # use autobwd::{Tensor, tensor::Bool};
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([3], vec![1.0_f32, f32::NAN, f32::INFINITY])?);
    /// assert!(x.isnan().any(&[]).tensor()?.slice::<Bool>()?[0].get());
    /// assert!(!x.isfinite().all(&[]).tensor()?.slice::<Bool>()?[0].get());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn isfinite(&self) -> Expr;
    /// Whether elements are NaN.
    #[track_caller]
    fn isnan(&self) -> Expr;
    /// Whether elements are infinite.
    #[track_caller]
    fn isinf(&self) -> Expr;
    /// Whether any element is true over these axes, which are dropped; over all axes if empty.
    #[track_caller]
    fn any(&self, axes: &[i64]) -> Expr;
    /// Whether all elements are true over these axes, which are dropped; over all axes if empty.
    #[track_caller]
    fn all(&self, axes: &[i64]) -> Expr;
    /// For a bool mask: `yes` where it is true, else `no`. The three shapes broadcast, and gradients are summed back.
    /// Dimensions that are unknown while the program is built must be equal when it runs, if all three have as many.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.leaf("x", Tensor::from_vec([2], vec![1.0_f32, -1.0])?);
    /// let zero = tape.constant(Tensor::scalar(0.0_f32)?);
    /// let positive = x.greater_than(&zero).where_cond(&x, &zero);
    /// assert_eq!(positive.tensor()?.slice::<f32>()?, [1.0, 0.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn where_cond(&self, yes: &Expr, no: &Expr) -> Expr;
    /// Matrix product; dimensions before the last two are batch dimensions, which broadcast.
    #[track_caller]
    fn matmul(&self, other: &Expr) -> Expr;
    /// Products of two batches of matrices, `[batch, m, k]` and `[batch, k, n]`.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([2, 1, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?);
    /// let y = tape.constant(Tensor::from_vec([2, 2, 1], vec![1.0_f32, 1.0, 2.0, 0.0])?);
    /// assert_eq!(x.bmm(&y).tensor()?.slice::<f32>()?, [3.0, 6.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn bmm(&self, other: &Expr) -> Expr;
    /// Dot product of vectors, or of each pair of rows of two matrices.
    #[track_caller]
    fn dot(&self, other: &Expr) -> Expr;
    /// Convolution of images `[n, channels, height, width]` with filters `[m, channels, height, width]`, with equal
    /// `stride` and zero `padding` in both directions.
    #[track_caller]
    fn conv2d(&self, filters: &Expr, stride: i32, padding: i32) -> Expr;
    /// Max pooling of images `[n, channels, height, width]` with windows of `size` by `size`.
    #[track_caller]
    fn max_pool2d(&self, size: i32, stride: i32) -> Expr;
    /// Average pooling of images `[n, channels, height, width]` with windows of `size` by `size`.
    #[track_caller]
    fn avg_pool2d(&self, size: i32, stride: i32) -> Expr;
    /// Repeats every element of images `[n, channels, height, width]` `factor` times in both directions.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([1, 1, 1, 2], vec![3.0_f32, 4.0])?);
    /// let y = x.upsample_nearest(2);
    /// assert_eq!(y.tensor()?.slice::<f32>()?, [3.0, 3.0, 4.0, 4.0, 3.0, 3.0, 4.0, 4.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn upsample_nearest(&self, factor: i32) -> Expr;
    /// Enlarges images `[n, channels, height, width]` by `factor` in both directions, with linear interpolation. The
    /// images are as large as their outer edges, or with `align_corners` as the centres of their corner elements.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([1, 1, 1, 2], vec![0.0_f32, 4.0])?);
    /// let y = x.upsample_bilinear(2, false);
    /// assert_eq!(y.tensor()?.slice::<f32>()?, [0.0, 1.0, 3.0, 4.0, 0.0, 1.0, 3.0, 4.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn upsample_bilinear(&self, factor: i32, align_corners: bool) -> Expr;
    /// Moves groups of `factor²` channels of images `[n, channels, height, width]` to squares of pixels.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([1, 4, 1, 1], vec![1.0_f32, 2.0, 3.0, 4.0])?);
    /// let y = x.pixel_shuffle(2);
    /// assert_eq!(y.dims().to_string(), "[1, 1, 2, 2]");
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn pixel_shuffle(&self, factor: i32) -> Expr;
    /// Adds elements of that value before and behind each dimension, `[before, behind]` for each.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([2], vec![1.0_f32, 2.0])?);
    /// assert_eq!(x.pad(&[[1, 2]], 9.0).tensor()?.slice::<f32>()?, [9.0, 1.0, 2.0, 9.0, 9.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn pad(&self, paddings: &[[i32; 2]], value: f32) -> Expr;
    /// Mean of all elements, rank 0.
    #[track_caller]
    fn mean(&self) -> Expr;
    /// Sum over these axes, which are dropped; over all axes if empty. Sums of truth values and int32 are int64.
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
    #[track_caller]
    fn sum(&self, axes: &[i32]) -> Expr;
    /// Mean over these axes, which are dropped; over all axes if empty.
    #[track_caller]
    fn mean_over(&self, axes: &[i32]) -> Expr;
    /// Maximum over these axes, which are dropped; over all axes if empty. On a tie, each of `n` largest elements gets
    /// `1 / n` of the gradient.
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
    #[track_caller]
    fn amax(&self, axes: &[i32]) -> Expr;
    /// Minimum over these axes, which are dropped; over all axes if empty. On a tie, each of `n` smallest elements gets
    /// `1 / n` of the gradient.
    #[track_caller]
    fn amin(&self, axes: &[i32]) -> Expr;
    /// Maximum over these axes, which are dropped; over all axes if empty. On a tie, every largest element gets the whole
    /// gradient, as in the reference; [`amax`](Math::amax) shares it.
    #[track_caller]
    fn max_over(&self, axes: &[i32]) -> Expr;
    /// Product over these axes; over all axes if empty.
    #[track_caller]
    fn prod(&self, axes: &[i32]) -> Expr;
    /// Minimum over these axes, which are dropped; over all axes if empty. On a tie, every smallest element gets the whole
    /// gradient, as in the reference; [`amin`](Math::amin) shares it.
    #[track_caller]
    fn min_over(&self, axes: &[i32]) -> Expr;
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
    #[track_caller]
    fn logsumexp(&self, axes: &[i32]) -> Expr;
    /// p-norm along an axis, which is dropped; `p` may be infinite or 0.
    #[track_caller]
    fn norm(&self, p: f32, axis: i32) -> Expr;
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
    #[track_caller]
    fn sum_keepdim(&self, axes: &[i32]) -> Expr;
    /// As [`mean_over`](Math::mean_over); the axes keep size 1.
    #[track_caller]
    fn mean_keepdim(&self, axes: &[i32]) -> Expr;
    /// As [`max_over`](Math::max_over); the axes keep size 1.
    #[track_caller]
    fn max_keepdim(&self, axes: &[i32]) -> Expr;
    /// As [`min_over`](Math::min_over); the axes keep size 1.
    #[track_caller]
    fn min_keepdim(&self, axes: &[i32]) -> Expr;
    /// As [`prod`](Math::prod); the axes keep size 1.
    #[track_caller]
    fn prod_keepdim(&self, axes: &[i32]) -> Expr;
    /// As [`logsumexp`](Math::logsumexp); the axes keep size 1.
    #[track_caller]
    fn logsumexp_keepdim(&self, axes: &[i32]) -> Expr;
    /// Variance over these axes, which are dropped; over all axes if empty: `Σ (x - mean)² / (n - correction)`. A
    /// correction of 1 gives the unbiased estimate, NaN for one element.
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
    #[track_caller]
    fn variance(&self, axes: &[i32], correction: u32) -> Expr;
    /// Standard deviation, the root of [`variance`](Math::variance); its gradient is infinite where it is 0.
    #[track_caller]
    fn std(&self, axes: &[i32], correction: u32) -> Expr;
    /// `exp(x) / sum(exp(x))` along an axis.
    #[track_caller]
    fn softmax(&self, axis: i32) -> Expr;
    /// The logarithm of [`softmax`](Math::softmax).
    #[track_caller]
    fn log_softmax(&self, axis: i32) -> Expr;
    /// Scaled dot-product attention of every head, `softmax(q · kᵀ / √d) · v`: `self` are the queries `q`,
    /// `[batch, queries, heads, d]`, keys and values are `[batch, keys, heads, d]`. If `causal`, query `i` attends to
    /// keys `0..=i`.
    #[track_caller]
    fn attention(&self, keys: &Expr, values: &Expr, causal: bool) -> Expr;
    /// As [`attention`](Math::attention), with a mask: bool, of a shape that broadcasts to `[batch, heads, queries, keys]`.
    /// A query attends to the keys where the mask is true; if there are none, to all keys alike.
    ///
    /// All scores exist in memory, unlike with [`attention`](Math::attention).
    ///
    /// ```
    /// # use autobwd::{Tensor, tensor::Bool};
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([1, 2, 1, 1], vec![1.0_f32, 5.0])?);
    /// let only_first = tape.constant(Tensor::from_vec([1, 1, 1, 2], vec![Bool::from(true), Bool::from(false)])?);
    /// let out = x.masked_attention(&x, &x, &only_first, false);
    /// assert_eq!(out.tensor()?.slice::<f32>()?, [1.0, 1.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn masked_attention(&self, keys: &Expr, values: &Expr, mask: &Expr, causal: bool) -> Expr;
    /// Rotary position embedding (Su et al., 2021) of queries or keys, `[batch, length, heads, d]`: the elements `i` and
    /// `i + d/2` of each head are rotated by the angle `position · base^(-2i/d)`. Positions are numbers of shape
    /// `[length]` or `[batch, length]`; `base` is 10,000 in the paper. Fails for an odd or unknown `d`.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([1, 2, 1, 2], vec![1.0_f32, 0.0, 1.0, 0.0])?);
    /// let positions = tape.constant(Tensor::from_vec([2], vec![0_i64, 1])?);
    /// let rotated = x.rotary_embedding(&positions, 10_000.0).tensor()?;
    /// let expected = [1.0, 0.0, 1.0_f32.cos(), 1.0_f32.sin()];
    /// assert!(rotated.slice::<f32>()?.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-6));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn rotary_embedding(&self, positions: &Expr, base: f64) -> Expr;
    /// Cross entropy between `softmax(x)` along the last axis and class indices of shape `[.., 1]` or `[..]`: one loss a
    /// row, of shape `[.., 1]`.
    ///
    /// Rows with label −100 are ignored: their loss and gradient are 0. [`mean`](Math::mean) divides by all rows,
    /// including ignored ones; [`mean_cross_entropy`](Math::mean_cross_entropy) by the rows that are not ignored.
    #[track_caller]
    fn cross_entropy(&self, labels: &Expr) -> Expr;
    /// The mean of [`cross_entropy`](Math::cross_entropy) over the rows that are not ignored, rank 0. NaN if all rows
    /// are ignored, as in PyTorch.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([3, 2], vec![1.0_f32, 1.0, 2.0, 2.0, 3.0, 4.0])?);
    /// let labels = tape.constant(Tensor::from_vec([3, 1], vec![0_i64, 1, -100])?);
    /// let loss = x.mean_cross_entropy(&labels);
    /// assert_eq!(loss.tensor()?.slice::<f32>()?, [2.0_f32.ln()]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn mean_cross_entropy(&self, labels: &Expr) -> Expr;
    /// Elementwise binary cross entropy between `sigmoid(x)` and target probabilities of the same shape.
    #[track_caller]
    fn sigmoid_cross_entropy(&self, labels: &Expr) -> Expr;
    /// Elementwise Huber loss of targets `other`, of the same shape: quadratic up to a residual of `delta`, linear beyond.
    #[track_caller]
    fn huber_loss(&self, other: &Expr, delta: f32) -> Expr;
    /// Elementwise `(x - y)²` for targets of the same shape. Another shape fails: a loss does not broadcast.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([2, 1], vec![1.0_f32, 2.0])?);
    /// let y = tape.constant(Tensor::from_vec([2], vec![1.0_f32, 4.0])?);
    /// assert!(x.square_error(&y).tensor().unwrap_err().to_string().contains("`.reshape(&[2, 1])`"));
    /// assert_eq!(x.square_error(&y.reshape(&[2, 1])).tensor()?.slice::<f32>()?, [0.0, 4.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn square_error(&self, other: &Expr) -> Expr;
    /// The fraction of rows whose largest element is at the label's position: shape `[1]`.
    #[track_caller]
    fn accuracy(&self, labels: &Expr) -> Expr;
    /// Position of the largest element along an axis, which is dropped.
    #[track_caller]
    fn argmax(&self, axis: i64) -> Expr;
    /// Position of the smallest element along an axis, which is dropped.
    #[track_caller]
    fn argmin(&self, axis: i64) -> Expr;
    /// The `k` largest elements along the last axis, largest first, and their positions.
    #[track_caller]
    fn top_k(&self, k: i32) -> (Expr, Expr);
    /// The elements sorted along an axis, and their positions. The order is stable; NaN counts as the largest number.
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
    #[track_caller]
    fn sort(&self, axis: i32, descending: bool) -> (Expr, Expr);
    /// Reshapes to these dimensions; −1 is inferred, 0 copies the dimension.
    #[track_caller]
    fn reshape(&self, shape: &[i32]) -> Expr;
    /// Permutes the axes.
    #[track_caller]
    fn transpose(&self, axes: &[i32]) -> Expr;
    /// Drops those of these axes that have size 1; all such axes if empty.
    #[track_caller]
    fn squeeze(&self, axes: &[i32]) -> Expr;
    /// Inserts axes of size 1 at these positions.
    #[track_caller]
    fn unsqueeze(&self, axes: &[i32]) -> Expr;
    /// Merges the axes from `first` to `last` into one.
    #[track_caller]
    fn flatten(&self, first: i32, last: i32) -> Expr;
    /// Broadcasts to this shape: repeats axes of size 1 and adds axes in front; −1 keeps an axis.
    #[track_caller]
    fn expand(&self, shape: &[i32]) -> Expr;
    /// Repeats the tensor `times` along each axis.
    #[track_caller]
    fn tile(&self, times: &[i32]) -> Expr;
    /// The slice from `start` to `end`, exclusive, along an axis; negative positions count from the end.
    #[track_caller]
    fn slice(&self, axis: i32, start: i32, end: i32) -> Expr;
    /// Reverses the order along these axes.
    #[track_caller]
    fn flip(&self, axes: &[i32]) -> Expr;
    /// The slices with these indices along an axis.
    #[track_caller]
    fn gather(&self, index: &Expr, axis: i32) -> Expr;
    /// The slices with these indices, `[n]`, along an axis.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([3], vec![1.0_f32, 2.0, 3.0])?);
    /// let index = tape.constant(Tensor::from_vec([2], vec![2_i64, 0])?);
    /// assert_eq!(x.index_select(&index, 0).tensor()?.slice::<f32>()?, [3.0, 1.0]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn index_select(&self, index: &Expr, axis: i32) -> Expr;
    /// The rows of a table with indices `self`. The gradient of the table is dense;
    /// [`nn::Embedding`](crate::nn::Embedding) has sparse ones, too.
    #[track_caller]
    fn embedding(&self, table: &Expr) -> Expr;
    /// One-hot encoding of the indices, with `depth` float32 classes.
    #[track_caller]
    fn one_hot(&self, depth: i32) -> Expr;
    /// Cumulative sum along an axis.
    #[track_caller]
    fn cumsum(&self, axis: i32) -> Expr;
    /// Cumulative product along an axis.
    #[track_caller]
    fn cumprod(&self, axis: i32) -> Expr;
    /// Dropout with that probability; kept elements are scaled by `1 / (1 - p)`. Equal seeds, one int64 or int32
    /// number, give equal masks: feed a new seed at each run. In [evaluation mode](autobwd::Builder::eval_mode), `self`.
    ///
    /// [`nn::Dropout`](crate::nn::Dropout) counts its seed by itself.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([4], vec![1.0_f32; 4])?);
    /// let seed = tape.constant(Tensor::from_vec([1], vec![7_i64])?);
    /// let trained = x.dropout(0.5, &seed);
    /// assert!(trained.tensor()?.slice::<f32>()?.iter().all(|x| [0.0, 2.0].contains(x)));
    /// assert!(tape.eval_mode(|| x.dropout(0.5, &seed)).is(&x));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn dropout(&self, probability: f32, seed: &Expr) -> Expr;
    /// Standard normal numbers in the shape of `x`. Equal seeds, one int64 or int32 number, give equal numbers:
    /// [`nn::StepSeed`](crate::nn::StepSeed) is another seed at each run.
    ///
    /// ```
    /// # use autobwd::Tensor;
    /// # use autobwd_ops::Math;
    /// let tape = autobwd::eager();
    /// let x = tape.constant(Tensor::from_vec([3], vec![0.0_f32; 3])?);
    /// let seeds = [1_i64, 1, 2].map(|seed| tape.constant(Tensor::from_vec([1], vec![seed]).unwrap()));
    /// let noise = seeds.map(|seed| x.randn_like(&seed).tensor().unwrap());
    /// assert_eq!(noise[0].bytes(), noise[1].bytes());
    /// assert_ne!(noise[0].bytes(), noise[2].bytes());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    #[track_caller]
    fn randn_like(&self, seed: &Expr) -> Expr;
    /// As [`randn_like`](Math::randn_like), uniform in [0, 1).
    #[track_caller]
    fn rand_like(&self, seed: &Expr) -> Expr;
    /// Splits into pieces of these sizes along an axis.
    #[track_caller]
    fn split(&self, sizes: &[i32], axis: i32) -> Vec<Expr>;
    /// Converts to another dtype.
    #[track_caller]
    fn cast(&self, dtype: DType) -> Expr;
    /// A copy with a name of its own.
    #[track_caller]
    fn copy(&self) -> Expr;
    /// The same elements without gradient flow, as [`stop_gradient`](Expr::stop_gradient).
    #[track_caller]
    fn detach(&self) -> Expr;
}

/// Concatenates tensors along an axis. Fails without tensors, and if shapes differ in another axis.
#[track_caller]
pub fn concat(parts: &[&Expr], axis: i32) -> Expr {
    let x = parts.iter().map(|p| (*p).into()).collect();
    emit(Concat { x, out: New, axis, axis_tensor: None }).out
}

/// Stacks tensors along a new axis. Fails without tensors, and if their shapes differ.
///
/// ```
/// # use autobwd::Tensor;
/// use autobwd_ops::stack;
/// let tape = autobwd::eager();
/// let x = tape.constant(Tensor::from_vec([2], vec![1.0_f32, 2.0])?);
/// let y = tape.constant(Tensor::from_vec([2], vec![3.0_f32, 4.0])?);
/// assert_eq!(stack(&[&x, &y], 1).tensor()?.slice::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn stack(parts: &[&Expr], axis: i32) -> Expr {
    let x = parts.iter().map(|p| (*p).into()).collect();
    emit(Stack { x, y: New, axis }).y
}
