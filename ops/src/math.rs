//! What people call: methods on expressions, under the field's usual names.

use autobwd::{DType, Expr, New, Result, emit};

use crate::{
    activation::{Abs, Exp, Log, Relu, Sigmoid, Sqrt, Square, Tanh},
    binary::SigmoidCrossEntropyWithLogits,
    compare::{Equal, GreaterEqual, GreaterThan, LessEqual, LessThan, NotEqual},
    conv::Conv2d,
    dropout::{Dropout, DropoutImplementation},
    extremum::{ElementwiseMax, ElementwiseMin, ElementwisePow},
    image::PaddingAlgorithm,
    logic::{LogicalAnd, LogicalNot, LogicalOr, LogicalXor, Where},
    lookup::LookupTableV2,
    loss::SoftmaxWithCrossEntropy,
    matmul::MatmulV2,
    norm::DataLayout,
    pick::{Gather, OneHotV2},
    pool::{Pool2d, PoolingType},
    reduce::{Mean, ReduceMax, ReduceMean, ReduceMin, ReduceSum},
    rounding::{Clip, Floor, Round, Sign},
    scan::Cumsum,
    search::{Accuracy, ArgMax, TopKV2},
    shape::{
        Assign, Cast, Concat, ExpandV2, FlattenContiguousRange, Flip, Reshape2, Slice, Split, Squeeze2, Tile,
        Transpose2, Unsqueeze2,
    },
    smooth::{Gelu, Silu},
    softmax::Softmax,
    trigonometry::{Cos, Sin},
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
    /// [`Gelu`]: exactly, or `approximate`ly by `tanh`.
    #[track_caller]
    fn gelu(&self, approximate: bool) -> Result<Expr>;
    /// `x / (1 + exp(-x))`
    #[track_caller]
    fn silu(&self) -> Result<Expr>;
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
    /// Sine of an angle in radians.
    #[track_caller]
    fn sin(&self) -> Result<Expr>;
    /// Cosine of an angle in radians.
    #[track_caller]
    fn cos(&self) -> Result<Expr>;
    /// The largest whole number that is not larger.
    #[track_caller]
    fn floor(&self) -> Result<Expr>;
    /// The nearest whole number, halves away from 0.
    #[track_caller]
    fn round(&self) -> Result<Expr>;
    /// 1, −1 or 0, as `x` is positive, negative or 0.
    #[track_caller]
    fn sign(&self) -> Result<Expr>;
    /// `min(max(x, min), max)`
    #[track_caller]
    fn clip(&self, min: f32, max: f32) -> Result<Expr>;
    /// The larger of two, element by element; operands of this and the following broadcast.
    #[track_caller]
    fn maximum(&self, other: &Expr) -> Result<Expr>;
    /// The smaller of two, element by element.
    #[track_caller]
    fn minimum(&self, other: &Expr) -> Result<Expr>;
    /// `x ^ y`, element by element.
    #[track_caller]
    fn pow(&self, exponent: &Expr) -> Result<Expr>;
    /// `x < y`
    #[track_caller]
    fn less_than(&self, other: &Expr) -> Result<Expr>;
    /// `x <= y`
    #[track_caller]
    fn less_equal(&self, other: &Expr) -> Result<Expr>;
    /// `x > y`
    #[track_caller]
    fn greater_than(&self, other: &Expr) -> Result<Expr>;
    /// `x >= y`
    #[track_caller]
    fn greater_equal(&self, other: &Expr) -> Result<Expr>;
    /// `x == y`
    #[track_caller]
    fn equal(&self, other: &Expr) -> Result<Expr>;
    /// `x != y`
    #[track_caller]
    fn not_equal(&self, other: &Expr) -> Result<Expr>;
    /// Whether both hold.
    #[track_caller]
    fn logical_and(&self, other: &Expr) -> Result<Expr>;
    /// Whether either holds.
    #[track_caller]
    fn logical_or(&self, other: &Expr) -> Result<Expr>;
    /// Whether exactly one holds.
    #[track_caller]
    fn logical_xor(&self, other: &Expr) -> Result<Expr>;
    /// Whether this does not hold.
    #[track_caller]
    fn logical_not(&self) -> Result<Expr>;
    /// Of booleans: `yes` where they hold, else `no`; all of one shape.
    #[track_caller]
    fn where_cond(&self, yes: &Expr, no: &Expr) -> Result<Expr>;
    /// Matrix product; more than two dimensions are batches, which broadcast.
    #[track_caller]
    fn matmul(&self, other: &Expr) -> Result<Expr>;
    /// Convolution of images `[n, channels, height, width]` with filters `[m, channels, height, width]`: windows are
    /// `stride` elements apart and reach `padding` elements over the edges, where zeros are.
    #[track_caller]
    fn conv2d(&self, filters: &Expr, stride: i32, padding: i32) -> Result<Expr>;
    /// The largest element of every window of `size` by `size` in images `[n, channels, height, width]`.
    #[track_caller]
    fn max_pool2d(&self, size: i32, stride: i32) -> Result<Expr>;
    /// The mean of every window of `size` by `size` in images `[n, channels, height, width]`.
    #[track_caller]
    fn avg_pool2d(&self, size: i32, stride: i32) -> Result<Expr>;
    /// Mean of all elements, rank 0.
    #[track_caller]
    fn mean(&self) -> Result<Expr>;
    /// Sum over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn sum(&self, axes: &[i32]) -> Result<Expr>;
    /// Mean over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn mean_over(&self, axes: &[i32]) -> Result<Expr>;
    /// The largest element over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn max_over(&self, axes: &[i32]) -> Result<Expr>;
    /// The smallest element over these axes, over all when there are none; they are dropped.
    #[track_caller]
    fn min_over(&self, axes: &[i32]) -> Result<Expr>;
    /// `exp(x) / sum(exp(x))` along an axis.
    #[track_caller]
    fn softmax(&self, axis: i32) -> Result<Expr>;
    /// Cross entropy between `softmax(x)` along the last axis and class numbers of shape `[.., 1]`: one number a row.
    #[track_caller]
    fn cross_entropy(&self, labels: &Expr) -> Result<Expr>;
    /// Cross entropy between `sigmoid(x)` and probabilities of yes, element by element; both of one shape.
    #[track_caller]
    fn sigmoid_cross_entropy(&self, labels: &Expr) -> Result<Expr>;
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
    /// Without those of these axes that are 1; without all that are, when there are none.
    #[track_caller]
    fn squeeze(&self, axes: &[i32]) -> Result<Expr>;
    /// With an axis of 1 more at each of these places.
    #[track_caller]
    fn unsqueeze(&self, axes: &[i32]) -> Result<Expr>;
    /// The axes from `first` to `last` merged to one.
    #[track_caller]
    fn flatten(&self, first: i32, last: i32) -> Result<Expr>;
    /// Repeated along axes of 1, and new ones in front, up to this shape; −1 keeps an axis.
    #[track_caller]
    fn expand(&self, shape: &[i32]) -> Result<Expr>;
    /// Repeated so many times along each axis.
    #[track_caller]
    fn tile(&self, times: &[i32]) -> Result<Expr>;
    /// The part from `start` to `end`, not included, along an axis; negative ones count from behind.
    #[track_caller]
    fn slice(&self, axis: i32, start: i32, end: i32) -> Result<Expr>;
    /// In reverse order along these axes.
    #[track_caller]
    fn flip(&self, axes: &[i32]) -> Result<Expr>;
    /// The parts with these numbers along an axis.
    #[track_caller]
    fn gather(&self, index: &Expr, axis: i32) -> Result<Expr>;
    /// The rows of a table that have the numbers `self`. Its gradient is a whole table;
    /// [`nn::Embedding`](crate::nn::Embedding) has sparse ones, too.
    #[track_caller]
    fn embedding(&self, table: &Expr) -> Result<Expr>;
    /// The numbers as rows of `depth` float32 numbers, 1 at the number and else 0.
    #[track_caller]
    fn one_hot(&self, depth: i32) -> Result<Expr>;
    /// Running sum along an axis.
    #[track_caller]
    fn cumsum(&self, axis: i32) -> Result<Expr>;
    /// Elements dropped with that probability, those that are kept scaled by `1 / (1 - p)`. Equal seeds, one int64 or int32
    /// number, give equal masks: feed another one at each run.
    #[track_caller]
    fn dropout(&self, probability: f32, seed: &Expr) -> Result<Expr>;
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

macro_rules! binary {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self, other: &Expr) -> Result<Expr> {
            Ok(emit($op { x: self.into(), y: other.into(), out: New })?.out)
        }
    )*};
}

/// With the attribute `axis`.
macro_rules! broadcasting {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self, other: &Expr) -> Result<Expr> {
            Ok(emit($op { x: self.into(), y: other.into(), out: New, axis: -1 })?.out)
        }
    )*};
}

macro_rules! reductions {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self, axes: &[i32]) -> Result<Expr> {
            let (dim, reduce_all) = (axes.to_vec(), axes.is_empty());
            let (in_dtype, out_dtype) = (None, None);
            Ok(emit($op { x: self.into(), out: New, dim, keep_dim: false, reduce_all, in_dtype, out_dtype })?.out)
        }
    )*};
}

macro_rules! pooling {
    ($($f:ident $pooling_type:ident),*) => {$(
        fn $f(&self, size: i32, stride: i32) -> Result<Expr> {
            let op = Pool2d {
                x: self.into(),
                out: New,
                ksize: vec![size; 2],
                strides: vec![stride; 2],
                paddings: vec![0; 2],
                padding_algorithm: PaddingAlgorithm::Explicit,
                pooling_type: PoolingType::$pooling_type,
                ceil_mode: false,
                exclusive: true,
                global_pooling: false,
                adaptive: false,
                data_format: DataLayout::Nchw,
            };
            Ok(emit(op)?.out)
        }
    )*};
}

impl Math for Expr {
    unary!(relu Relu, silu Silu, tanh Tanh, sigmoid Sigmoid, exp Exp, log Log, abs Abs, square Square, sqrt Sqrt, mean Mean,
        sin Sin, cos Cos, floor Floor, round Round, sign Sign, logical_not LogicalNot);
    binary!(logical_and LogicalAnd, logical_or LogicalOr, logical_xor LogicalXor);
    broadcasting!(
        maximum ElementwiseMax, minimum ElementwiseMin, pow ElementwisePow,
        less_than LessThan, less_equal LessEqual, greater_than GreaterThan, greater_equal GreaterEqual,
        equal Equal, not_equal NotEqual
    );

    fn gelu(&self, approximate: bool) -> Result<Expr> {
        Ok(emit(Gelu { x: self.into(), out: New, approximate })?.out)
    }

    fn clip(&self, min: f32, max: f32) -> Result<Expr> {
        Ok(emit(Clip { x: self.into(), out: New, min, max })?.out)
    }

    fn where_cond(&self, yes: &Expr, no: &Expr) -> Result<Expr> {
        Ok(emit(Where { condition: self.into(), x: yes.into(), y: no.into(), out: New })?.out)
    }

    fn matmul(&self, other: &Expr) -> Result<Expr> {
        Ok(emit(MatmulV2 { x: self.into(), y: other.into(), out: New, trans_x: false, trans_y: false })?.out)
    }

    fn conv2d(&self, filters: &Expr, stride: i32, padding: i32) -> Result<Expr> {
        let op = Conv2d {
            input: self.into(),
            filter: filters.into(),
            output: New,
            strides: vec![stride; 2],
            paddings: vec![padding; 2],
            padding_algorithm: PaddingAlgorithm::Explicit,
            dilations: vec![1; 2],
            groups: 1,
            data_format: DataLayout::Nchw,
        };
        Ok(emit(op)?.output)
    }

    pooling!(max_pool2d Max, avg_pool2d Avg);
    reductions!(sum ReduceSum, mean_over ReduceMean, max_over ReduceMax, min_over ReduceMin);

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

    fn sigmoid_cross_entropy(&self, labels: &Expr) -> Result<Expr> {
        let op = SigmoidCrossEntropyWithLogits {
            x: self.into(),
            label: labels.into(),
            out: New,
            normalize: false,
            ignore_index: -100,
        };
        Ok(emit(op)?.out)
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

    fn squeeze(&self, axes: &[i32]) -> Result<Expr> {
        Ok(emit(Squeeze2 { x: self.into(), out: New, x_shape: New, axes: axes.to_vec() })?.out)
    }

    fn unsqueeze(&self, axes: &[i32]) -> Result<Expr> {
        Ok(emit(Unsqueeze2 { x: self.into(), out: New, x_shape: New, axes: axes.to_vec() })?.out)
    }

    fn flatten(&self, first: i32, last: i32) -> Result<Expr> {
        let (start_axis, stop_axis) = (first, last);
        let op = FlattenContiguousRange { x: self.into(), out: New, x_shape: New, start_axis, stop_axis };
        Ok(emit(op)?.out)
    }

    fn expand(&self, shape: &[i32]) -> Result<Expr> {
        Ok(emit(ExpandV2 { x: self.into(), out: New, shape: shape.to_vec() })?.out)
    }

    fn tile(&self, times: &[i32]) -> Result<Expr> {
        Ok(emit(Tile { x: self.into(), out: New, repeat_times: times.to_vec() })?.out)
    }

    fn slice(&self, axis: i32, start: i32, end: i32) -> Result<Expr> {
        let (axes, starts, ends) = (vec![axis], vec![start], vec![end]);
        Ok(emit(Slice { input: self.into(), out: New, axes, starts, ends, decrease_axis: vec![] })?.out)
    }

    fn flip(&self, axes: &[i32]) -> Result<Expr> {
        Ok(emit(Flip { x: self.into(), out: New, axis: axes.to_vec() })?.out)
    }

    fn gather(&self, index: &Expr, axis: i32) -> Result<Expr> {
        Ok(emit(Gather { x: self.into(), index: index.into(), out: New, axis })?.out)
    }

    fn embedding(&self, table: &Expr) -> Result<Expr> {
        let (ids, w) = (self.into(), table.into());
        Ok(emit(LookupTableV2 { ids, w, out: New, padding_idx: -1, is_sparse: false })?.out)
    }

    fn one_hot(&self, depth: i32) -> Result<Expr> {
        let (x, dtype) = (self.into(), DType::F32);
        Ok(emit(OneHotV2 { x, out: New, depth, dtype, allow_out_of_range: false })?.out)
    }

    fn cumsum(&self, axis: i32) -> Result<Expr> {
        let x = self.into();
        Ok(emit(Cumsum { x, out: New, axis, flatten: false, exclusive: false, reverse: false })?.out)
    }

    fn dropout(&self, probability: f32, seed: &Expr) -> Result<Expr> {
        let op = Dropout {
            x: self.into(),
            seed_tensor: Some(seed.into()),
            out: New,
            mask: New,
            dropout_prob: probability,
            dropout_implementation: DropoutImplementation::UpscaleInTrain,
            is_test: false,
            fix_seed: true,
            seed: 0,
        };
        Ok(emit(op)?.out)
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
