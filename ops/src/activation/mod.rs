//! Activation functions, and the elementary functions of one variable.

mod basic;
mod prelu;
mod rectifier;
mod smooth;

pub use basic::{
    Abs, AbsGrad, Exp, ExpGrad, ExpGradGrad, Log, LogGrad, LogGradGrad, Relu, ReluGrad, Scale, ScaleGrad,
    Sigmoid, SigmoidGrad, SigmoidGradGrad, Sqrt, SqrtGrad, SqrtGradGrad, Square, SquareGrad, SquareGradGrad,
    Tanh, TanhGrad,
};
pub use prelu::{Prelu, PreluGrad, PreluMode};
pub use rectifier::{Elu, HardSigmoid, HardSigmoidGrad, HardSwish, LeakyRelu, Relu6, Relu6Grad};
pub use smooth::{Gelu, Mish, Silu, Softplus, Softsign, Swish};
