//! What people call: methods on expressions, under the field's usual names.

mod methods;

use autobwd::{DType, Expr, New, emit};

use crate::shape::Concat;

/// Mathematics on expressions; `+ - * /` come with the expressions themselves.
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
/// A method whose shapes, dtypes or arguments do not fit gives a failed [expression](Expr), with operator, variables and
/// the line of the call.
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
    /// `x` times the share of normally distributed numbers below it: exactly, or by `tanh` if `approximate`.
    #[track_caller]
    fn gelu(&self, approximate: bool) -> Expr;
    /// `x * sigmoid(x)`
    #[track_caller]
    fn silu(&self) -> Expr;
    /// `x` where it is above 0, else `slope * x`.
    #[track_caller]
    fn leaky_relu(&self, slope: f64) -> Expr;
    /// `x` where it is above 0, else `alpha * (exp(x) - 1)`.
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
    /// `min(max(x, 0), 6)`
    #[track_caller]
    fn relu6(&self) -> Expr;
    /// `x * min(max(x + 3, 0), 6) / 6`
    #[track_caller]
    fn hard_swish(&self) -> Expr;
    /// Error function.
    #[track_caller]
    fn erf(&self) -> Expr;
    /// `exp(x) - 1`, as exact near 0.
    #[track_caller]
    fn expm1(&self) -> Expr;
    /// `ln(1 + x)`, as exact near 0.
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
    /// The largest whole number that is not larger.
    #[track_caller]
    fn floor(&self) -> Expr;
    /// The nearest whole number, halves away from 0.
    #[track_caller]
    fn round(&self) -> Expr;
    /// 1, −1 or 0, as `x` is positive, negative or 0.
    #[track_caller]
    fn sign(&self) -> Expr;
    /// `min(max(x, min), max)`
    #[track_caller]
    fn clip(&self, min: f64, max: f64) -> Expr;
    /// The larger of two, element by element; operands of this and the following broadcast.
    #[track_caller]
    fn maximum(&self, other: &Expr) -> Expr;
    /// The smaller of two, element by element.
    #[track_caller]
    fn minimum(&self, other: &Expr) -> Expr;
    /// `x ^ y`, element by element.
    #[track_caller]
    fn pow(&self, exponent: &Expr) -> Expr;
    /// `⌊x / y⌋`, element by element.
    #[track_caller]
    fn floor_divide(&self, other: &Expr) -> Expr;
    /// What remains of `x` after [`floor_divide`](Math::floor_divide), element by element.
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
    /// Whether both hold.
    #[track_caller]
    fn logical_and(&self, other: &Expr) -> Expr;
    /// Whether either holds.
    #[track_caller]
    fn logical_or(&self, other: &Expr) -> Expr;
    /// Whether exactly one holds.
    #[track_caller]
    fn logical_xor(&self, other: &Expr) -> Expr;
    /// Whether this does not hold.
    #[track_caller]
    fn logical_not(&self) -> Expr;
    /// Of booleans: `yes` where they hold, else `no`; all of one shape.
    #[track_caller]
    fn where_cond(&self, yes: &Expr, no: &Expr) -> Expr;
    /// Matrix product; more than two dimensions are batches, which broadcast.
    #[track_caller]
    fn matmul(&self, other: &Expr) -> Expr;
    /// Convolution of images `[n, channels, height, width]` with filters `[m, channels, height, width]`: windows are
    /// `stride` elements apart and reach `padding` elements over the edges, where zeros are.
    #[track_caller]
    fn conv2d(&self, filters: &Expr, stride: i32, padding: i32) -> Expr;
    /// The largest element of every window of `size` by `size` in images `[n, channels, height, width]`.
    #[track_caller]
    fn max_pool2d(&self, size: i32, stride: i32) -> Expr;
    /// The mean of every window of `size` by `size` in images `[n, channels, height, width]`.
    #[track_caller]
    fn avg_pool2d(&self, size: i32, stride: i32) -> Expr;
    /// Mean of all elements, rank 0.
    #[track_caller]
    fn mean(&self) -> Expr;
    /// Sum over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn sum(&self, axes: &[i32]) -> Expr;
    /// Mean over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn mean_over(&self, axes: &[i32]) -> Expr;
    /// The largest element over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn max_over(&self, axes: &[i32]) -> Expr;
    /// Product over these axes; over all of them when there are none.
    #[track_caller]
    fn prod(&self, axes: &[i32]) -> Expr;
    /// The smallest element over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn min_over(&self, axes: &[i32]) -> Expr;
    /// `exp(x) / sum(exp(x))` along an axis.
    #[track_caller]
    fn softmax(&self, axis: i32) -> Expr;
    /// The logarithm of [`softmax`](Math::softmax).
    #[track_caller]
    fn log_softmax(&self, axis: i32) -> Expr;
    /// `softmax(q · kᵀ / √d) · v` of every head, where `self` are the queries `q`, `[batch, queries, heads, d]`, and keys and
    /// values `[batch, keys, heads, d]`. If `causal`, query `i` sees the keys up to `i` alone.
    #[track_caller]
    fn attention(&self, keys: &Expr, values: &Expr, causal: bool) -> Expr;
    /// Cross entropy between `softmax(x)` along the last axis and class numbers of shape `[.., 1]`: one number a row.
    ///
    /// Label −100 means that a row does not count: its loss is 0, and so is its gradient. [`mean`](Math::mean) divides by
    /// all rows, those among them; [`mean_cross_entropy`](Math::mean_cross_entropy) by the rows that count.
    #[track_caller]
    fn cross_entropy(&self, labels: &Expr) -> Expr;
    /// The mean of [`cross_entropy`](Math::cross_entropy) over the rows that count, those with another label than −100;
    /// rank 0. Where no row counts it is NaN, as PyTorch's.
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
    /// Cross entropy between `sigmoid(x)` and probabilities of yes, element by element; both of one shape.
    #[track_caller]
    fn sigmoid_cross_entropy(&self, labels: &Expr) -> Expr;
    /// `(x - y)²`, element by element.
    #[track_caller]
    fn square_error(&self, other: &Expr) -> Expr;
    /// The share of rows in which the largest element is at the label's position: shape `[1]`.
    #[track_caller]
    fn accuracy(&self, labels: &Expr) -> Expr;
    /// Position of the largest element along an axis, which is dropped.
    #[track_caller]
    fn argmax(&self, axis: i64) -> Expr;
    /// The `k` largest elements along the last axis, largest first, and their positions.
    #[track_caller]
    fn top_k(&self, k: i32) -> (Expr, Expr);
    /// The same elements in another shape; −1 is inferred, 0 copied.
    #[track_caller]
    fn reshape(&self, shape: &[i32]) -> Expr;
    /// Axes in another order.
    #[track_caller]
    fn transpose(&self, axes: &[i32]) -> Expr;
    /// Without those of these axes that are 1; without all that are, when there are none.
    #[track_caller]
    fn squeeze(&self, axes: &[i32]) -> Expr;
    /// With an axis of 1 more at each of these places.
    #[track_caller]
    fn unsqueeze(&self, axes: &[i32]) -> Expr;
    /// The axes from `first` to `last` merged to one.
    #[track_caller]
    fn flatten(&self, first: i32, last: i32) -> Expr;
    /// Repeated along axes of 1, and new ones in front, up to this shape; −1 keeps an axis.
    #[track_caller]
    fn expand(&self, shape: &[i32]) -> Expr;
    /// Repeated so many times along each axis.
    #[track_caller]
    fn tile(&self, times: &[i32]) -> Expr;
    /// The part from `start` to `end`, not included, along an axis; negative ones count from behind.
    #[track_caller]
    fn slice(&self, axis: i32, start: i32, end: i32) -> Expr;
    /// In reverse order along these axes.
    #[track_caller]
    fn flip(&self, axes: &[i32]) -> Expr;
    /// The parts with these numbers along an axis.
    #[track_caller]
    fn gather(&self, index: &Expr, axis: i32) -> Expr;
    /// The rows of a table that have the numbers `self`. Its gradient is a whole table;
    /// [`nn::Embedding`](crate::nn::Embedding) has sparse ones, too.
    #[track_caller]
    fn embedding(&self, table: &Expr) -> Expr;
    /// The numbers as rows of `depth` float32 numbers, 1 at the number and else 0.
    #[track_caller]
    fn one_hot(&self, depth: i32) -> Expr;
    /// Running sum along an axis.
    #[track_caller]
    fn cumsum(&self, axis: i32) -> Expr;
    /// Elements dropped with that probability, those that are kept scaled by `1 / (1 - p)`. Equal seeds, one int64 or int32
    /// number, give equal masks: feed another one at each run.
    #[track_caller]
    fn dropout(&self, probability: f32, seed: &Expr) -> Expr;
    /// Pieces of these sizes along an axis.
    #[track_caller]
    fn split(&self, sizes: &[i32], axis: i32) -> Vec<Expr>;
    /// The elements in another dtype.
    #[track_caller]
    fn cast(&self, dtype: DType) -> Expr;
    /// A copy under a name of its own.
    #[track_caller]
    fn copy(&self) -> Expr;
    /// As [`stop_gradient`](Expr::stop_gradient): the same elements, through which no gradient flows.
    #[track_caller]
    fn detach(&self) -> Expr;
}

/// Tensors one behind the other along an axis. Fails if there are none, and for shapes that differ in another axis.
#[track_caller]
pub fn concat(parts: &[&Expr], axis: i32) -> Expr {
    let x = parts.iter().map(|p| (*p).into()).collect();
    emit(Concat { x, out: New, axis }).out
}
