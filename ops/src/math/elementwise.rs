//! Activations, functions of elements, comparisons and logic.

macro_rules! elementwise {
    ($methods:ident) => {
        $methods! {
            /// `max(x, 0)`
            fn relu(&self) -> Expr { unary!(Relu, self) }

            /// `tanh(x)`
            fn tanh(&self) -> Expr { unary!(Tanh, self) }

            /// `1 / (1 + exp(-x))`
            fn sigmoid(&self) -> Expr { unary!(Sigmoid, self) }

            /// `x * Φ(x)`, with `Φ` the standard normal distribution function; its `tanh` approximation if
            /// `approximate`.
            fn gelu(&self, approximate: bool) -> Expr {
                emit(Gelu { x: self.into(), out: New, approximate }).out
            }

            /// `x * sigmoid(x)`
            fn silu(&self) -> Expr { unary!(Silu, self) }

            /// `x` where it is positive, else `slope * x`.
            fn leaky_relu(&self, slope: f64) -> Expr {
                emit(LeakyRelu { x: self.into(), out: New, alpha: self.literal(slope) }).out
            }

            /// `x` where it is positive, else `alpha * (exp(x) - 1)`.
            fn elu(&self, alpha: f64) -> Expr {
                emit(Elu { x: self.into(), out: New, alpha: self.literal(alpha) }).out
            }

            /// `ln(1 + exp(x))`
            fn softplus(&self) -> Expr {
                emit(Softplus { x: self.into(), out: New, beta: 1.0, threshold: 20.0 }).out
            }

            /// `x * tanh(ln(1 + exp(x)))`
            fn mish(&self) -> Expr { emit(Mish { x: self.into(), out: New, threshold: 20.0 }).out }

            /// `x / (1 + |x|)`
            fn softsign(&self) -> Expr { unary!(Softsign, self) }

            /// `scale * x` where it is positive, else `scale * alpha * (exp(x) - 1)`, with the constants of Klambauer
            /// et al. (2017).
            fn selu(&self) -> Expr {
                emit(Selu { x: self.into(), out: New, scale: 1.050_701, alpha: 1.673_263_2 }).out
            }

            /// `-ln(1 + exp(-x))`
            fn log_sigmoid(&self) -> Expr { unary!(Logsigmoid, self) }

            /// `min(max(x, 0), 6)`
            fn relu6(&self) -> Expr { emit(Relu6 { x: self.into(), out: New, threshold: 6.0 }).out }

            /// `x * min(max(x + 3, 0), 6) / 6`
            fn hard_swish(&self) -> Expr {
                emit(HardSwish { x: self.into(), out: New, threshold: 6.0, scale: 6.0, offset: 3.0 }).out
            }

            /// Error function.
            fn erf(&self) -> Expr { unary!(Erf, self) }

            /// `exp(x) - 1`, accurate near 0.
            fn expm1(&self) -> Expr { unary!(Expm1, self) }

            /// `ln(1 + x)`, accurate near 0.
            fn log1p(&self) -> Expr { unary!(Log1p, self) }

            /// `1 / x`
            fn reciprocal(&self) -> Expr { unary!(Reciprocal, self) }

            /// `1 / √x`
            fn rsqrt(&self) -> Expr { unary!(Rsqrt, self) }

            /// `exp(x)`
            fn exp(&self) -> Expr { unary!(Exp, self) }

            /// `ln(x)`
            fn log(&self) -> Expr { unary!(Log, self) }

            /// Binary logarithm.
            fn log2(&self) -> Expr { unary!(Log2, self) }

            /// Decimal logarithm.
            fn log10(&self) -> Expr { unary!(Log10, self) }

            /// `|x|`
            fn abs(&self) -> Expr { unary!(Abs, self) }

            /// `x²`
            fn square(&self) -> Expr { unary!(Square, self) }

            /// `√x`
            fn sqrt(&self) -> Expr { unary!(Sqrt, self) }

            /// Sine of an angle in radians.
            fn sin(&self) -> Expr { unary!(Sin, self) }

            /// Cosine of an angle in radians.
            fn cos(&self) -> Expr { unary!(Cos, self) }

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
            fn tan(&self) -> Expr { unary!(Tan, self) }

            /// Inverse sine, in radians.
            fn asin(&self) -> Expr { unary!(Asin, self) }

            /// Inverse cosine, in radians.
            fn acos(&self) -> Expr { unary!(Acos, self) }

            /// Inverse tangent, in radians.
            fn atan(&self) -> Expr { unary!(Atan, self) }

            /// Hyperbolic sine.
            fn sinh(&self) -> Expr { unary!(Sinh, self) }

            /// Hyperbolic cosine.
            fn cosh(&self) -> Expr { unary!(Cosh, self) }

            /// Inverse hyperbolic sine.
            fn asinh(&self) -> Expr { unary!(Asinh, self) }

            /// Inverse hyperbolic cosine.
            fn acosh(&self) -> Expr { unary!(Acosh, self) }

            /// Inverse hyperbolic tangent.
            fn atanh(&self) -> Expr { unary!(Atanh, self) }

            /// `⌊x⌋`
            fn floor(&self) -> Expr { unary!(Floor, self) }

            /// `⌈x⌉`
            fn ceil(&self) -> Expr { unary!(Ceil, self) }

            /// Rounds towards 0.
            fn trunc(&self) -> Expr { unary!(Trunc, self) }

            /// The nearest integer, halves away from 0.
            fn round(&self) -> Expr { unary!(Round, self) }

            /// 1, −1 or 0 as `x` is positive, negative or 0.
            fn sign(&self) -> Expr { unary!(Sign, self) }

            /// `min(max(x, min), max)`
            fn clip(&self, min: f64, max: f64) -> Expr {
                emit(Clip { x: self.into(), out: New, min: self.literal(min), max: self.literal(max) }).out
            }

            /// Elementwise maximum; operands of this and the following methods broadcast.
            fn maximum(&self, other: &Expr) -> Expr { broadcasting!(ElementwiseMax, self, other) }

            /// Elementwise minimum.
            fn minimum(&self, other: &Expr) -> Expr { broadcasting!(ElementwiseMin, self, other) }

            /// Elementwise `x ^ y`.
            fn pow(&self, exponent: &Expr) -> Expr { broadcasting!(ElementwisePow, self, exponent) }

            /// Elementwise `⌊x / y⌋`.
            fn floor_divide(&self, other: &Expr) -> Expr { broadcasting!(ElementwiseFloordiv, self, other) }

            /// Elementwise remainder of [`floor_divide`](Math::floor_divide).
            fn remainder(&self, other: &Expr) -> Expr { broadcasting!(ElementwiseMod, self, other) }

            /// `x < y`
            fn less_than(&self, other: &Expr) -> Expr { broadcasting!(LessThan, self, other) }

            /// `x <= y`
            fn less_equal(&self, other: &Expr) -> Expr { broadcasting!(LessEqual, self, other) }

            /// `x > y`
            fn greater_than(&self, other: &Expr) -> Expr { broadcasting!(GreaterThan, self, other) }

            /// `x >= y`
            fn greater_equal(&self, other: &Expr) -> Expr { broadcasting!(GreaterEqual, self, other) }

            /// `x == y`
            fn equal(&self, other: &Expr) -> Expr { broadcasting!(Equal, self, other) }

            /// `x != y`
            fn not_equal(&self, other: &Expr) -> Expr { broadcasting!(NotEqual, self, other) }

            /// Logical and.
            fn logical_and(&self, other: &Expr) -> Expr { binary!(LogicalAnd, self, other) }

            /// Logical or.
            fn logical_or(&self, other: &Expr) -> Expr { binary!(LogicalOr, self, other) }

            /// Logical exclusive or.
            fn logical_xor(&self, other: &Expr) -> Expr { binary!(LogicalXor, self, other) }

            /// Logical not.
            fn logical_not(&self) -> Expr { unary!(LogicalNot, self) }

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
            fn isfinite(&self) -> Expr { unary!(IsfiniteV2, self) }

            /// Whether elements are NaN.
            fn isnan(&self) -> Expr { unary!(IsnanV2, self) }

            /// Whether elements are infinite.
            fn isinf(&self) -> Expr { unary!(IsinfV2, self) }

            /// For a bool mask: `yes` where it is true, else `no`. The three shapes broadcast, and gradients are summed
            /// back. Dimensions that are unknown while the program is built broadcast when it runs, except if the three
            /// shapes are the same while it is built: then they must be the same when it runs.
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
            fn where_cond(&self, yes: &Expr, no: &Expr) -> Expr { select::where_cond(self, yes, no) }
        }
    };
}
pub(super) use elementwise;
