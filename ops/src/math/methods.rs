use autobwd::{DType, Expr, New, emit};

use super::{Math, refusals::unequal_shapes, select};
use crate::{
    activation::{
        Abs, Elu, Exp, Gelu, HardSwish, LeakyRelu, Log, Logsigmoid, Mish, Relu, Relu6, Selu, Sigmoid, Silu,
        Softplus, Softsign, Sqrt, Square, Tanh,
    },
    attention::{ScaledDotProductAttention, masked_attention, rotary_embedding},
    binary_cross_entropy::SigmoidCrossEntropyWithLogits,
    compare::{Equal, GreaterEqual, GreaterThan, LessEqual, LessThan, NotEqual},
    conv::{Conv2dOp, ConvAttrs},
    cumprod::Cumprod,
    cumsum::Cumsum,
    dropout::{DropoutImplementation, DropoutOp},
    embedding::LookupTableV2,
    fill::{FillAnyLike, FillConstant},
    float_class::{IsfiniteV2, IsinfV2, IsnanV2},
    floor_division::{ElementwiseFloordiv, ElementwiseMod},
    gather::{Gather, OneHotV2},
    image::PixelShuffle,
    index::IndexSelect,
    interpolate::{BilinearInterpV2, InterpAttrs, InterpMethod, NearestInterpV2},
    logarithm::{Log2, Log10},
    logic::{LogicalAnd, LogicalNot, LogicalOr, LogicalXor},
    loss::{HuberLoss, SoftmaxWithCrossEntropy},
    matmul::{Bmm, Dot, MatmulV2},
    min_max_pow::{ElementwiseMax, ElementwiseMin, ElementwisePow},
    norm::DataLayout,
    pool::{Pool2dOp, PoolAttrs, PoolingType},
    random::{NoiseDistribution, NoiseLike},
    reduce::{
        LogicalReduceAttrs, Logsumexp, Mean, PNorm, ReduceAll, ReduceAmax, ReduceAmin, ReduceAny,
        ReduceAttrs, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum,
    },
    rounding::{Ceil, Clip, Floor, Round, Sign, Trunc},
    shape::{
        Assign, Cast, ExpandV2, FlattenContiguousRange, Flip, Pad, Reshape2, Slice, Split, Squeeze2, Tile,
        Transpose2, Unsqueeze2,
    },
    softmax::{LogSoftmax, Softmax},
    sort::Argsort,
    special::{Erf, Expm1, Log1p, Reciprocal, Rsqrt},
    top_k::{Accuracy, ArgAttrs, ArgMax, ArgMin, TopKV2},
    trigonometry::{Acos, Acosh, Asin, Asinh, Atan, Atanh, Cos, Cosh, Sin, Sinh, Tan},
};

macro_rules! unary {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self) -> Expr {
            emit($op { x: self.into(), out: New }).out
        }
    )*};
}

macro_rules! binary {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self, other: &Expr) -> Expr {
            emit($op { x: self.into(), y: other.into(), out: New }).out
        }
    )*};
}

/// Implements methods of operators with the attribute `axis`.
macro_rules! broadcasting {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self, other: &Expr) -> Expr {
            emit($op { x: self.into(), y: other.into(), out: New, axis: -1 }).out
        }
    )*};
}

macro_rules! reductions {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self, axes: &[i32]) -> Expr {
            let reduce = ReduceAttrs::over(axes.to_vec()).reduce_all(axes.is_empty());
            emit($op { x: self.into(), out: New, reduce }).out
        }
    )*};
}

macro_rules! keeping_reductions {
    ($($f:ident $op:ident),*) => {$(
        fn $f(&self, axes: &[i32]) -> Expr {
            let reduce = ReduceAttrs::keeping(axes.to_vec()).reduce_all(axes.is_empty());
            emit($op { x: self.into(), out: New, reduce }).out
        }
    )*};
}

macro_rules! pooling {
    ($($f:ident $pooling_type:ident),*) => {$(
        fn $f(&self, size: i32, stride: i32) -> Expr {
            let op = Pool2dOp {
                x: self.into(),
                out: New,
                pool: PoolAttrs::new(PoolingType::$pooling_type, vec![size; 2]).strides(vec![stride; 2]),
            };
            emit(op).out
        }
    )*};
}

impl Math for Expr {
    unary!(
        relu Relu, silu Silu, softsign Softsign, tanh Tanh, sigmoid Sigmoid, erf Erf,
        exp Exp, expm1 Expm1, log Log, log1p Log1p, square Square, sqrt Sqrt, rsqrt Rsqrt, reciprocal Reciprocal,
        sin Sin, cos Cos, tan Tan, asin Asin, acos Acos, atan Atan, sinh Sinh, cosh Cosh, asinh Asinh, acosh Acosh,
        atanh Atanh, log2 Log2, log10 Log10, log_sigmoid Logsigmoid, abs Abs, sign Sign, floor Floor, ceil Ceil,
        trunc Trunc, round Round, logical_not LogicalNot, isfinite IsfiniteV2, isnan IsnanV2, isinf IsinfV2, mean Mean
    );
    binary!(logical_and LogicalAnd, logical_or LogicalOr, logical_xor LogicalXor, bmm Bmm, dot Dot);
    broadcasting!(
        maximum ElementwiseMax, minimum ElementwiseMin, pow ElementwisePow,
        floor_divide ElementwiseFloordiv, remainder ElementwiseMod,
        less_than LessThan, less_equal LessEqual, greater_than GreaterThan, greater_equal GreaterEqual,
        equal Equal, not_equal NotEqual
    );

    fn gelu(&self, approximate: bool) -> Expr {
        emit(Gelu { x: self.into(), out: New, approximate }).out
    }

    fn relu6(&self) -> Expr {
        emit(Relu6 { x: self.into(), out: New, threshold: 6.0 }).out
    }

    fn leaky_relu(&self, slope: f64) -> Expr {
        emit(LeakyRelu { x: self.into(), out: New, alpha: self.literal(slope) }).out
    }

    fn elu(&self, alpha: f64) -> Expr {
        emit(Elu { x: self.into(), out: New, alpha: self.literal(alpha) }).out
    }

    fn softplus(&self) -> Expr {
        emit(Softplus { x: self.into(), out: New, beta: 1.0, threshold: 20.0 }).out
    }

    fn mish(&self) -> Expr {
        emit(Mish { x: self.into(), out: New, threshold: 20.0 }).out
    }

    fn hard_swish(&self) -> Expr {
        emit(HardSwish { x: self.into(), out: New, threshold: 6.0, scale: 6.0, offset: 3.0 }).out
    }

    fn clip(&self, min: f64, max: f64) -> Expr {
        emit(Clip { x: self.into(), out: New, min: self.literal(min), max: self.literal(max) }).out
    }

    fn where_cond(&self, yes: &Expr, no: &Expr) -> Expr {
        select::where_cond(self, yes, no)
    }

    fn matmul(&self, other: &Expr) -> Expr {
        emit(MatmulV2 { x: self.into(), y: other.into(), out: New, trans_x: false, trans_y: false }).out
    }

    fn any(&self, axes: &[i64]) -> Expr {
        emit(ReduceAny { x: self.into(), out: New, reduce: LogicalReduceAttrs::over(axes) }).out
    }

    fn all(&self, axes: &[i64]) -> Expr {
        emit(ReduceAll { x: self.into(), out: New, reduce: LogicalReduceAttrs::over(axes) }).out
    }

    fn logsumexp(&self, axes: &[i32]) -> Expr {
        let axis = axes.to_vec();
        emit(Logsumexp { x: self.into(), out: New, axis, keepdim: false, reduce_all: false }).out
    }

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

    fn selu(&self) -> Expr {
        emit(Selu { x: self.into(), out: New, scale: 1.050_701, alpha: 1.673_263_2 }).out
    }

    fn huber_loss(&self, other: &Expr, delta: f32) -> Expr {
        if let Some(failed) = unequal_shapes("huber_loss", self, other) {
            return failed;
        }
        emit(HuberLoss { x: self.into(), y: other.into(), out: New, residual: New, delta }).out
    }

    fn conv2d(&self, filters: &Expr, stride: i32, padding: i32) -> Expr {
        let op = Conv2dOp {
            input: self.into(),
            filter: filters.into(),
            output: New,
            conv: ConvAttrs::default().strides(vec![stride; 2]).paddings(vec![padding; 2]),
        };
        emit(op).output
    }

    pooling!(max_pool2d Max, avg_pool2d Avg);

    fn upsample_nearest(&self, factor: i32) -> Expr {
        let interp = InterpAttrs::scaling(InterpMethod::Nearest, [factor as f32; 2]).align_corners(false);
        let (x, out_size, size_tensor, scale) = (self.into(), None, vec![], None);
        emit(NearestInterpV2 { x, out_size, size_tensor, scale, out: New, interp }).out
    }

    fn upsample_bilinear(&self, factor: i32, align_corners: bool) -> Expr {
        let interp = InterpAttrs::scaling(InterpMethod::Bilinear, [factor as f32; 2]);
        let interp = interp.align_corners(align_corners).align_mode(0);
        let (x, out_size, size_tensor, scale) = (self.into(), None, vec![], None);
        emit(BilinearInterpV2 { x, out_size, size_tensor, scale, out: New, interp }).out
    }

    fn pixel_shuffle(&self, factor: i32) -> Expr {
        let data_format = DataLayout::Nchw;
        emit(PixelShuffle { x: self.into(), out: New, upscale_factor: factor, data_format }).out
    }

    fn pad(&self, paddings: &[[i32; 2]], value: f32) -> Expr {
        emit(Pad { x: self.into(), out: New, paddings: paddings.concat(), pad_value: value }).out
    }

    reductions!(
        sum ReduceSum, mean_over ReduceMean, max_over ReduceMax, min_over ReduceMin, prod ReduceProd,
        amax ReduceAmax, amin ReduceAmin
    );

    keeping_reductions!(
        sum_keepdim ReduceSum, mean_keepdim ReduceMean, max_keepdim ReduceMax, min_keepdim ReduceMin,
        prod_keepdim ReduceProd
    );

    fn logsumexp_keepdim(&self, axes: &[i32]) -> Expr {
        let axis = axes.to_vec();
        emit(Logsumexp { x: self.into(), out: New, axis, keepdim: true, reduce_all: false }).out
    }

    fn variance(&self, axes: &[i32], correction: u32) -> Expr {
        let squares = (self - self.mean_keepdim(axes)).square();
        if correction == 0 {
            return squares.mean_over(axes);
        }
        let ones = emit(FillAnyLike { x: self.into(), out: New, value: 1.0, dtype: None }).out;
        squares.sum(axes) / (ones.sum(axes) - f64::from(correction)).relu()
    }

    fn std(&self, axes: &[i32], correction: u32) -> Expr {
        self.variance(axes, correction).sqrt()
    }

    fn softmax(&self, axis: i32) -> Expr {
        emit(Softmax { x: self.into(), out: New, axis }).out
    }

    fn log_softmax(&self, axis: i32) -> Expr {
        emit(LogSoftmax { x: self.into(), out: New, axis }).out
    }

    fn attention(&self, keys: &Expr, values: &Expr, causal: bool) -> Expr {
        let (q, k, v) = (self.into(), keys.into(), values.into());
        emit(ScaledDotProductAttention { q, k, v, out: New, log_sum: New, causal }).out
    }

    fn masked_attention(&self, keys: &Expr, values: &Expr, mask: &Expr, causal: bool) -> Expr {
        masked_attention([self, keys, values], mask, causal)
    }

    fn rotary_embedding(&self, positions: &Expr, base: f64) -> Expr {
        rotary_embedding(self, positions, base)
    }

    fn cross_entropy(&self, labels: &Expr) -> Expr {
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
        emit(op).loss
    }

    fn mean_cross_entropy(&self, labels: &Expr) -> Expr {
        let losses = self.cross_entropy(labels);
        let (shape, dtype, value) = (vec![1], labels.dtype(), -100.0);
        let ignored = FillConstant { shape, dtype, value, ..FillConstant::of(New) };
        let ignored = self.builder().emit(ignored).out;
        let counted = labels.not_equal(&ignored).cast(losses.dtype());
        losses.sum(&[]) / counted.sum(&[])
    }

    fn sigmoid_cross_entropy(&self, labels: &Expr) -> Expr {
        if let Some(failed) = unequal_shapes("sigmoid_cross_entropy", self, labels) {
            return failed;
        }
        let op = SigmoidCrossEntropyWithLogits {
            x: self.into(),
            label: labels.into(),
            out: New,
            normalize: false,
            ignore_index: -100,
        };
        emit(op).out
    }

    fn square_error(&self, other: &Expr) -> Expr {
        if let Some(failed) = unequal_shapes("square_error", self, other) {
            return failed;
        }
        (self - other).square()
    }

    fn accuracy(&self, labels: &Expr) -> Expr {
        let (values, positions) = self.top_k(1);
        let op = Accuracy {
            out: values.into(),
            indices: positions.into(),
            label: labels.into(),
            accuracy: New,
            correct: New,
            total: New,
        };
        emit(op).accuracy
    }

    fn argmax(&self, axis: i64) -> Expr {
        emit(ArgMax { x: self.into(), out: New, arg: ArgAttrs::along(axis) }).out
    }

    fn argmin(&self, axis: i64) -> Expr {
        emit(ArgMin { x: self.into(), out: New, arg: ArgAttrs::along(axis) }).out
    }

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

    fn sort(&self, axis: i32, descending: bool) -> (Expr, Expr) {
        let op = emit(Argsort { x: self.into(), out: New, indices: New, axis, descending });
        (op.out, op.indices)
    }

    fn reshape(&self, shape: &[i32]) -> Expr {
        emit(Reshape2::of(self.into(), New, New, shape.to_vec())).out
    }

    fn transpose(&self, axes: &[i32]) -> Expr {
        emit(Transpose2 { x: self.into(), out: New, x_shape: New, axis: axes.to_vec() }).out
    }

    fn squeeze(&self, axes: &[i32]) -> Expr {
        emit(Squeeze2 { x: self.into(), out: New, x_shape: New, axes: axes.to_vec() }).out
    }

    fn unsqueeze(&self, axes: &[i32]) -> Expr {
        emit(Unsqueeze2 {
            x: self.into(),
            axes_tensor: None,
            axes_tensor_list: vec![],
            out: New,
            x_shape: New,
            axes: axes.to_vec(),
        })
        .out
    }

    fn flatten(&self, first: i32, last: i32) -> Expr {
        let (start_axis, stop_axis) = (first, last);
        let op = FlattenContiguousRange { x: self.into(), out: New, x_shape: New, start_axis, stop_axis };
        emit(op).out
    }

    fn expand(&self, shape: &[i32]) -> Expr {
        emit(ExpandV2 {
            x: self.into(),
            shape_input: None,
            expand_shapes_tensor: vec![],
            out: New,
            shape: shape.to_vec(),
        })
        .out
    }

    fn tile(&self, times: &[i32]) -> Expr {
        emit(Tile {
            x: self.into(),
            repeat_times_input: None,
            repeat_times_tensor: vec![],
            out: New,
            repeat_times: times.to_vec(),
        })
        .out
    }

    fn slice(&self, axis: i32, start: i32, end: i32) -> Expr {
        let (axes, starts, ends) = (vec![axis], vec![start], vec![end]);
        emit(Slice { axes, starts, ends, ..Slice::of(self.into(), New) }).out
    }

    fn flip(&self, axes: &[i32]) -> Expr {
        emit(Flip { x: self.into(), out: New, axis: axes.to_vec() }).out
    }

    fn gather(&self, index: &Expr, axis: i32) -> Expr {
        emit(Gather { x: self.into(), index: index.into(), out: New, axis }).out
    }

    fn index_select(&self, index: &Expr, axis: i32) -> Expr {
        emit(IndexSelect { x: self.into(), index: index.into(), out: New, dim: axis }).out
    }

    fn embedding(&self, table: &Expr) -> Expr {
        let (ids, w) = (self.into(), table.into());
        emit(LookupTableV2 { ids, w, out: New, padding_idx: -1, is_sparse: false }).out
    }

    fn one_hot(&self, depth: i32) -> Expr {
        let (x, dtype) = (self.into(), DType::F32);
        emit(OneHotV2 { x, out: New, depth, dtype, allow_out_of_range: false }).out
    }

    fn cumsum(&self, axis: i32) -> Expr {
        let x = self.into();
        emit(Cumsum { x, out: New, axis, flatten: false, exclusive: false, reverse: false }).out
    }

    fn cumprod(&self, axis: i32) -> Expr {
        emit(Cumprod { x: self.into(), out: New, dim: axis }).out
    }

    fn dropout(&self, probability: f32, seed: &Expr) -> Expr {
        if self.builder().is_eval_mode() {
            return self.clone();
        }
        let op = DropoutOp {
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
        emit(op).out
    }

    fn randn_like(&self, seed: &Expr) -> Expr {
        let distribution = NoiseDistribution::Normal;
        emit(NoiseLike { x: self.into(), seed: seed.into(), out: New, distribution }).out
    }

    fn rand_like(&self, seed: &Expr) -> Expr {
        let distribution = NoiseDistribution::Uniform;
        emit(NoiseLike { x: self.into(), seed: seed.into(), out: New, distribution }).out
    }

    fn split(&self, sizes: &[i32], axis: i32) -> Vec<Expr> {
        let out = sizes.iter().map(|_| New).collect();
        emit(Split {
            x: self.into(),
            out,
            axis,
            num: 0,
            sections: sizes.to_vec(),
            axis_tensor: None,
            sections_tensor_list: vec![],
        })
        .out
    }

    fn cast(&self, dtype: DType) -> Expr {
        emit(Cast { x: self.into(), out: New, in_dtype: self.dtype(), out_dtype: dtype }).out
    }

    fn copy(&self) -> Expr {
        emit(Assign { x: self.into(), out: New }).out
    }

    fn detach(&self) -> Expr {
        self.clone().stop_gradient()
    }
}
