//! The precision of operators: the default lists, and a user's lists.

use std::collections::HashMap;

use autobwd::{
    Error, ErrorKind, OpDesc, OpInfoMap, Result,
    op::{Op, OpInfo},
    program::Var,
};

use crate::{
    activation::*, attention::ScaledDotProductAttention, conv::*, dropout::DropoutOp, elementwise::*,
    embedding::*, image::*, index::*, matmul::*, min_max_pow::*, norm::BatchNormOp, pool::Pool2dOp,
    rounding::*,
};

/// How an operator computes in a mixed precision program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    /// In 16 bits: it is fast and tolerates their rounding.
    Half,
    /// In float32: it needs the digits or the range.
    Single,
    /// As its inputs are.
    Either,
}

/// The names of operators.
macro_rules! names {
    ($($op:ident),* $(,)?) => { [$(<$op as Op>::SCHEMA.name),*] };
}

/// Products, convolutions and attention.
const HALF: [&str; 12] = names![
    Addmm,
    Bmm,
    Conv2dOp,
    Conv2dTransposeOp,
    Conv3dOp,
    DepthwiseConv2d,
    Matmul,
    MatmulV2,
    Mul,
    Mv,
    QuantizedMatmul,
    ScaledDotProductAttention
];

/// Arithmetic, activations and selections. Operators that move data only are not listed: they take any dtype.
const EITHER: [&str; 34] = names![
    Abs,
    Brelu,
    Celu,
    Clip,
    DropoutOp,
    ElementwiseAdd,
    ElementwiseDiv,
    ElementwiseMax,
    ElementwiseMin,
    ElementwiseMul,
    ElementwiseSub,
    Elu,
    Gelu,
    HardShrink,
    HardSigmoid,
    HardSwish,
    IndexSelect,
    LeakyRelu,
    Minus,
    Mish,
    Pool2dOp,
    Prelu,
    Relu,
    Relu6,
    Scale,
    Selu,
    Sigmoid,
    Sign,
    Silu,
    Stanh,
    Swish,
    Tanh,
    ThresholdedRelu,
    Unfold
];

/// Operators that take any dtype, but whose results start a stream of values that are added up: a table of embeddings.
const SINGLE: [&str; 2] = names![LookupTable, LookupTableV2];

/// Whether an operator that computes in 16 bits reads this variable in 16 bits: batch normalization keeps its statistics in
/// float32, and quantised weights their scales.
pub(super) fn narrows(op: &OpDesc, var: Var) -> bool {
    !(op.is::<BatchNormOp>() || op.is::<QuantizedMatmul>()) || op.inputs.get("X").contains(&var)
}

/// Operators whose precision differs from the default, by name.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, nn::Linear, mixed_precision::{PrecisionLists, mixed_precision}};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 8]);
/// Linear::builder(&net, 8, 4).build().forward(&x).tanh().mean();
/// let lists = PrecisionLists { single: vec!["tanh".into()], ..PrecisionLists::default() };
/// let program = mixed_precision(&*net.program()?, DType::BF16, &lists)?;
/// assert!(program.to_string().contains("tanh_0 = tanh(X=elementwise_add_0)"));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrecisionLists {
    /// Operators that compute in 16 bits.
    pub half: Vec<String>,
    /// Operators that compute in float32.
    pub single: Vec<String>,
    /// Operators that compute in 16 bits if an input has 16 bits and no other operator computes an input in float32.
    pub either: Vec<String>,
    /// Variables of the root block that stay float32: operators that read or write them compute in float32.
    pub single_variables: Vec<String>,
}

/// The precision of each operator that is listed.
pub(super) struct Precisions {
    listed: HashMap<String, Precision>,
    default: HashMap<&'static str, Precision>,
}

impl Precisions {
    pub(super) fn new(ops: &OpInfoMap, lists: &PrecisionLists) -> Result<Precisions> {
        let mut listed = HashMap::new();
        for (names, precision) in [
            (&lists.half, Precision::Half),
            (&lists.single, Precision::Single),
            (&lists.either, Precision::Either),
        ] {
            for name in names {
                if ops.get(name)?.is_control() {
                    let text = format!("`{name}` runs a block: list the operators of its block instead");
                    return Err(Error::new(ErrorKind::Program, text));
                }
                if listed.insert(name.clone(), precision).is_some_and(|before| before != precision) {
                    let text = format!("operator `{name}` is in two lists of precisions");
                    return Err(Error::new(ErrorKind::Duplicate, text));
                }
            }
        }
        let default =
            |names: &'static [&'static str], precision| names.iter().map(move |name| (*name, precision));
        let default = default(&HALF, Precision::Half)
            .chain(default(&EITHER, Precision::Either))
            .chain(default(&SINGLE, Precision::Single));
        Ok(Precisions { listed, default: default.collect() })
    }

    /// The precision of an operator, and whether the user chose it.
    pub(super) fn of(&self, op: &OpDesc, info: &OpInfo) -> (Precision, bool) {
        if let Some(listed) = self.listed.get(op.ty.as_str()) {
            return (*listed, true);
        }
        let moves_data = if info.takes_any_dtype() { Precision::Either } else { Precision::Single };
        (self.default.get(op.ty.as_str()).copied().unwrap_or(moves_data), false)
    }
}
