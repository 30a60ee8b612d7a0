//! The trait `Math`: operators as methods on expressions, under their usual names.

mod dim_expr;
mod elementwise;
mod layers;
mod reductions;
mod refusals;
mod select;
mod shapes;
mod transforms;

use autobwd::{DType, Expr, New, emit};

pub(crate) use dim_expr::given_integers;
pub use dim_expr::{DimExpr, all_sizes, filled, positions, product, sizes};
pub(crate) use refusals::failed;
use refusals::unequal_shapes;
pub use select::widest;

use self::{
    elementwise::elementwise, layers::layers, reductions::reductions, shapes::shapes, transforms::transforms,
};
use crate::{
    activation::{
        Abs, Elu, Exp, Gelu, HardSwish, LeakyRelu, Log, Logsigmoid, Mish, Relu, Relu6, Selu, Sigmoid, Silu,
        Softplus, Softsign, Sqrt, Square, Tanh,
    },
    attention::{
        AttentionAttrs, AttentionOptions, Rotary, RotaryScaling, ScaledDotProductAttention, rotary_embedding,
    },
    binary_cross_entropy::SigmoidCrossEntropyWithLogits,
    compare::{Equal, GreaterEqual, GreaterThan, LessEqual, LessThan, NotEqual},
    conv::{Conv2dOp, ConvAttrs},
    cumprod::Cumprod,
    cumsum::Cumsum,
    dropout::{DropoutImplementation, DropoutOp},
    elementwise::{ElementwiseAddGrad, Minus},
    embedding::LookupTableV2,
    fill::{FillAnyLike, FillConstant},
    float_class::{IsfiniteV2, IsinfV2, IsnanV2},
    floor_division::{ElementwiseFloordiv, ElementwiseMod},
    fourier::{FftC2c, FftC2r, FftNormalization, FftR2c, Stft},
    gather::{Gather, OneHotV2},
    image::PixelShuffle,
    index::IndexSelect,
    interpolate::{BilinearInterpV2, InterpAttrs, InterpMethod, NearestInterpV2},
    logarithm::{Log2, Log10},
    logic::{LogicalAnd, LogicalNot, LogicalOr, LogicalXor},
    loss::{HuberLoss, SoftmaxWithCrossEntropy, Warpctc},
    matmul::{Bmm, Dot, MatmulV2},
    min_max_pow::{ElementwiseMax, ElementwiseMin, ElementwisePow},
    nonzero::{MaskedSelect, WhereIndex},
    norm::DataLayout,
    pool::{Pool2dOp, PoolAttrs, PoolingType},
    random::{NoiseDistribution, NoiseLike},
    reduce::{
        LogicalReduceAttrs, Logsumexp, Mean, PNorm, ReduceAll, ReduceAmax, ReduceAmin, ReduceAny,
        ReduceAttrs, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum,
    },
    rounding::{Ceil, Clip, Floor, Round, Sign, Trunc},
    shape::{
        Assign, Cast, Concat, ExpandV2, FlattenContiguousRange, Flip, Pad, Reshape2, Slice, Split, Squeeze2,
        Stack, Tile, Transpose2, Unsqueeze2,
    },
    softmax::{LogSoftmax, Softmax},
    sort::Argsort,
    special::{Erf, Expm1, Log1p, Reciprocal, Rsqrt},
    top_k::{Accuracy, ArgAttrs, ArgMax, ArgMin, TopKV2},
    trigonometry::{Acos, Acosh, Asin, Asinh, Atan, Atanh, Cos, Cosh, Sin, Sinh, Tan},
    unique::Unique,
};

/// Declares methods that are written with their bodies.
macro_rules! declared {
    ($($(#[$doc:meta])* fn $method:ident(&$this:ident $(, $x:ident: $ty:ty)*) -> $result:ty $body:block)*) => {$(
        $(#[$doc])*
        #[track_caller]
        fn $method(&self $(, $x: $ty)*) -> $result;
    )*};
}

/// Defines methods that are written with their documentation.
macro_rules! defined {
    ($($(#[$doc:meta])* fn $method:ident(&$this:ident $(, $x:ident: $ty:ty)*) -> $result:ty $body:block)*) => {$(
        fn $method(&$this $(, $x: $ty)*) -> $result $body
    )*};
}

macro_rules! unary {
    ($op:ident, $x:expr) => {
        emit($op { x: $x.into(), out: New }).out
    };
}

macro_rules! binary {
    ($op:ident, $x:expr, $y:expr) => {
        emit($op { x: $x.into(), y: $y.into(), out: New }).out
    };
}

macro_rules! transform {
    ($op:ident, $x:expr, $axes:expr, $forward:literal $(, $attr:ident: $value:expr)?) => {{
        let (axes, normalization) = ($axes.iter().map(|axis| (*axis).into()).collect(), FftNormalization::Backward);
        emit($op { x: $x.into(), out: New, axes, normalization, forward: $forward $(, $attr: $value)? }).out
    }};
}

/// An operator with the attribute `axis`.
macro_rules! broadcasting {
    ($op:ident, $x:expr, $y:expr) => {
        emit($op { x: $x.into(), y: $y.into(), out: New, axis: -1 }).out
    };
}

macro_rules! reduction {
    ($op:ident, $x:expr, $kind:ident, $axes:expr) => {{
        let reduce = ReduceAttrs::$kind($axes.to_vec()).reduce_all($axes.is_empty());
        emit($op { x: $x.into(), out: New, reduce }).out
    }};
}

macro_rules! pooling {
    ($kind:ident, $x:expr, $size:expr, $stride:expr) => {{
        let pool = PoolAttrs::new(PoolingType::$kind, vec![$size; 2]).strides(vec![$stride; 2]);
        emit(Pool2dOp { x: $x.into(), out: New, pool }).out
    }};
}

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
    elementwise!(declared);
    layers!(declared);
    reductions!(declared);
    shapes!(declared);
    transforms!(declared);
}

impl Math for Expr {
    elementwise!(defined);
    layers!(defined);
    reductions!(defined);
    shapes!(defined);
    transforms!(defined);
}

/// Concatenates tensors along an axis. Fails without tensors, and if shapes differ in another axis.
#[track_caller]
pub fn concat(parts: &[&Expr], axis: i32) -> Expr {
    let x = parts.iter().map(|p| (*p).into()).collect();
    emit(Concat { x, out: New, axis, axis_tensor: None }).out
}

/// A tensor in that dtype: itself, or converted.
#[track_caller]
pub(crate) fn in_dtype(x: &Expr, dtype: DType) -> Expr {
    if x.dtype() == dtype { x.clone() } else { x.cast(dtype) }
}

/// A number everywhere in the shape and dtype of a tensor.
#[track_caller]
pub(crate) fn like(x: &Expr, value: f64) -> Expr {
    emit(FillAnyLike { x: x.into(), out: New, value, dtype: None }).out
}

/// A gradient, summed over the dimensions in which `x` was broadcast to its shape.
#[track_caller]
pub(crate) fn sum_to(gradient: &Expr, x: &Expr) -> Expr {
    let (dout, y) = (gradient.into(), gradient.into());
    let sum = emit(ElementwiseAddGrad { dout, x: x.into(), y, dx: Some(New), dy: None, axis: -1 }).dx;
    sum.unwrap_or_else(|| gradient.clone())
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
