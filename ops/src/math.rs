//! What people call: methods on expressions, under the field's usual names.

use autobwd::{DType, Expr, New, Result, emit};

use crate::{
    activation::{Abs, Exp, Log, Relu, Sigmoid, Sqrt, Square, Tanh},
    loss::SoftmaxWithCrossEntropy,
    matmul::MatmulV2,
    reduce::{Mean, ReduceMean, ReduceSum},
    search::{Accuracy, ArgMax, TopKV2},
    shape::{Assign, Cast, Concat, Reshape2, Split, Transpose2},
    softmax::Softmax,
};

/// Mathematics on expressions; `+ - * /` come with the expressions themselves.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::Math;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 4])?;
/// let w = net.input("w", DType::F32, &[4, 2])?;
/// let h = (&x.matmul(&w)? + 1.0)?.relu()?;
/// assert_eq!(h.dims().to_string(), "[-1, 2]");
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Each method: shapes, dtypes or arguments that do not fit, with operator, variables and the line of the call.
pub trait Math: Sized {
    /// `max(x, 0)`
    #[track_caller]
    fn relu(&self) -> Result<Expr>;
    /// `tanh(x)`
    #[track_caller]
    fn tanh(&self) -> Result<Expr>;
    /// `1 / (1 + exp(-x))`
    #[track_caller]
    fn sigmoid(&self) -> Result<Expr>;
    /// `exp(x)`
    #[track_caller]
    fn exp(&self) -> Result<Expr>;
    /// `ln(x)`
    #[track_caller]
    fn log(&self) -> Result<Expr>;
    /// `|x|`
    #[track_caller]
    fn abs(&self) -> Result<Expr>;
    /// `x²`
    #[track_caller]
    fn square(&self) -> Result<Expr>;
    /// `√x`
    #[track_caller]
    fn sqrt(&self) -> Result<Expr>;
    /// Matrix product; more than two dimensions are batches, which broadcast.
    #[track_caller]
    fn matmul(&self, other: &Expr) -> Result<Expr>;
    /// Mean of all elements, rank 0.
    #[track_caller]
    fn mean(&self) -> Result<Expr>;
    /// Sum over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn sum(&self, axes: &[i32]) -> Result<Expr>;
    /// Mean over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn mean_over(&self, axes: &[i32]) -> Result<Expr>;
    /// `exp(x) / sum(exp(x))` along an axis.
    #[track_caller]
    fn softmax(&self, axis: i32) -> Result<Expr>;
    /// Cross entropy between `softmax(x)` along the last axis and class numbers of shape `[.., 1]`: one number a row.
    #[track_caller]
    fn cross_entropy(&self, labels: &Expr) -> Result<Expr>;
    /// `(x - y)²`, element by element.
    #[track_caller]
    fn square_error(&self, other: &Expr) -> Result<Expr>;
    /// The share of rows in which the largest element is at the label's position: shape `[1]`.
    #[track_caller]
    fn accuracy(&self, labels: &Expr) -> Result<Expr>;
    /// Position of the largest element along an axis, which is dropped.
    #[track_caller]
    fn argmax(&self, axis: i64) -> Result<Expr>;
    /// The `k` largest elements along the last axis, largest first, and their positions.
    #[track_caller]
    fn top_k(&self, k: i32) -> Result<(Expr, Expr)>;
    /// The same elements in another shape; −1 is inferred, 0 copied.
    #[track_caller]
    fn reshape(&self, shape: &[i32]) -> Result<Expr>;
    /// Axes in another order.
    #[track_caller]
    fn transpose(&self, axes: &[i32]) -> Result<Expr>;
    /// Pieces of these sizes along an axis.
    #[track_caller]
    fn split(&self, sizes: &[i32], axis: i32) -> Result<Vec<Expr>>;
    /// The elements in another dtype.
    #[track_caller]
    fn cast(&self, dtype: DType) -> Result<Expr>;
    /// A copy under a name of its own.
    #[track_caller]
    fn copy(&self) -> Result<Expr>;
    /// A copy that no gradient flows through.
    #[track_caller]
    fn detach(&self) -> Result<Expr>;
}

macro_rules! unary {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self) -> Result<Expr> {
            Ok(emit($op { x: self.into(), out: New })?.out)
        }
    )*};
}

impl Math for Expr {
    unary!(relu Relu, tanh Tanh, sigmoid Sigmoid, exp Exp, log Log, abs Abs, square Square, sqrt Sqrt, mean Mean);

    fn matmul(&self, other: &Expr) -> Result<Expr> {
        Ok(emit(MatmulV2 { x: self.into(), y: other.into(), out: New, trans_x: false, trans_y: false })?.out)
    }

    fn sum(&self, axes: &[i32]) -> Result<Expr> {
        let (dim, reduce_all) = (axes.to_vec(), axes.is_empty());
        let op = ReduceSum {
            x: self.into(),
            out: New,
            dim,
            keep_dim: false,
            reduce_all,
            in_dtype: None,
            out_dtype: None,
        };
        Ok(emit(op)?.out)
    }

    fn mean_over(&self, axes: &[i32]) -> Result<Expr> {
        let (dim, reduce_all) = (axes.to_vec(), axes.is_empty());
        let op = ReduceMean {
            x: self.into(),
            out: New,
            dim,
            keep_dim: false,
            reduce_all,
            in_dtype: None,
            out_dtype: None,
        };
        Ok(emit(op)?.out)
    }

    fn softmax(&self, axis: i32) -> Result<Expr> {
        Ok(emit(Softmax { x: self.into(), out: New, axis })?.out)
    }

    fn cross_entropy(&self, labels: &Expr) -> Result<Expr> {
        let op = SoftmaxWithCrossEntropy {
            logits: self.into(),
            label: labels.into(),
            softmax: New,
            loss: New,
            soft_label: false,
            ignore_index: -100,
            numeric_stable_mode: true,
            use_softmax: true,
            axis: -1,
        };
        Ok(emit(op)?.loss)
    }

    fn square_error(&self, other: &Expr) -> Result<Expr> {
        (self - other)?.square()
    }

    fn accuracy(&self, labels: &Expr) -> Result<Expr> {
        let (values, positions) = self.top_k(1)?;
        let op = Accuracy {
            out: values.into(),
            indices: positions.into(),
            label: labels.into(),
            accuracy: New,
            correct: New,
            total: New,
        };
        Ok(emit(op)?.accuracy)
    }

    fn argmax(&self, axis: i64) -> Result<Expr> {
        let op =
            ArgMax { x: self.into(), out: New, axis, keepdims: false, flatten: false, dtype: DType::I64 };
        Ok(emit(op)?.out)
    }

    fn top_k(&self, k: i32) -> Result<(Expr, Expr)> {
        let op = emit(TopKV2 {
            x: self.into(),
            out: New,
            indices: New,
            k,
            axis: -1,
            largest: true,
            sorted: true,
        })?;
        Ok((op.out, op.indices))
    }

    fn reshape(&self, shape: &[i32]) -> Result<Expr> {
        Ok(emit(Reshape2 { x: self.into(), out: New, x_shape: New, shape: shape.to_vec() })?.out)
    }

    fn transpose(&self, axes: &[i32]) -> Result<Expr> {
        Ok(emit(Transpose2 { x: self.into(), out: New, x_shape: New, axis: axes.to_vec() })?.out)
    }

    fn split(&self, sizes: &[i32], axis: i32) -> Result<Vec<Expr>> {
        let out = sizes.iter().map(|_| New).collect();
        Ok(emit(Split { x: self.into(), out, axis, num: 0, sections: sizes.to_vec() })?.out)
    }

    fn cast(&self, dtype: DType) -> Result<Expr> {
        Ok(emit(Cast { x: self.into(), out: New, in_dtype: self.dtype(), out_dtype: dtype })?.out)
    }

    fn copy(&self) -> Result<Expr> {
        Ok(emit(Assign { x: self.into(), out: New })?.out)
    }

    fn detach(&self) -> Result<Expr> {
        Ok(self.copy()?.stop_gradient())
    }
}

/// Tensors one behind the other along an axis.
///
/// # Errors
/// None at all; shapes that differ in another axis.
#[track_caller]
pub fn concat(parts: &[&Expr], axis: i32) -> Result<Expr> {
    let x = parts.iter().map(|p| (*p).into()).collect();
    Ok(emit(Concat { x, out: New, axis })?.out)
}
