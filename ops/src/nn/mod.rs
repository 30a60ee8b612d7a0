//! Layers: parameters with the operators that use them.

mod attention;
mod conv;
mod dropout;
mod embedding;
mod linear;
mod norm;
mod pool;
mod recurrent;

pub use attention::{MultiHeadAttention, MultiHeadAttentionBuilder};
pub use conv::{Conv2d, Conv2dBuilder, Conv2dTranspose};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingBuilder};
pub use linear::{Linear, LinearBuilder};
pub use norm::{Affine, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, NormBuilder};
pub use pool::Pool2d;
pub use recurrent::{
    DirectionWeights, Gru, GruCell, Lstm, LstmCell, Recurrence, RecurrenceBuilder, RecurrentCell, Rnn,
    RnnCell,
};

use autobwd::{Builder, DType, Expr};

use crate::Init;

/// Declares a parameter with that name.
#[track_caller]
fn parameter(net: &Builder, name: &str, dtype: DType, dims: &[usize], init: Init, seed: i32) -> Expr {
    net.parameter(name, dtype, dims, |parameter| init.emit(parameter, seed))
}

/// Declares the bias of a layer, if it has one.
#[track_caller]
fn bias(
    net: &Builder,
    layer: &str,
    dtype: DType,
    outputs: usize,
    init: Option<Init>,
    seed: i32,
) -> Option<Expr> {
    init.map(|init| parameter(net, &format!("{layer}.b"), dtype, &[outputs], init, seed))
}
