//! Activation functions, and the elementary functions of one variable.

mod basic;
mod prelu;
mod rectifier;
mod rrelu;
mod scaled;
mod shrink;
mod smooth;

pub use basic::{
    Abs, AbsGrad, Exp, ExpGrad, ExpGradGrad, Log, LogGrad, LogGradGrad, Relu, ReluGrad, Scale, ScaleGrad,
    Sigmoid, SigmoidGrad, SigmoidGradGrad, Sqrt, SqrtGrad, SqrtGradGrad, Square, SquareGrad, SquareGradGrad,
    Tanh, TanhGrad,
};
pub use prelu::{Prelu, PreluGrad, PreluMode};
pub use rectifier::{Elu, HardSigmoid, HardSigmoidGrad, HardSwish, LeakyRelu, Relu6, Relu6Grad};
pub use rrelu::Rrelu;
pub use scaled::{Brelu, Celu, Logsigmoid, LogsigmoidGrad, Selu, SeluGrad, SoftRelu, SoftReluGrad, Stanh};
pub use shrink::{HardShrink, Softshrink, TanhShrink, ThresholdedRelu};
pub use smooth::{Gelu, Mish, Silu, Softplus, Softsign, Swish};
