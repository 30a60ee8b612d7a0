//! Layers: parameters with the operators that use them.
//!
//! The parameters of a layer are called `name.part`. Without a `name` from its builder, a layer is counted: the second
//! `Linear` of a program is `linear_1`. [`Builder::name_scope`](autobwd::Builder::name_scope) groups layers.
//!
//! ```
//! use autobwd::Builder;
//! use autobwd_ops::nn::{LayerNorm, Linear};
//! let net = Builder::new();
//! for block in 0..2 {
//!     net.name_scope(&format!("encoder.{block}"), || {
//!         LayerNorm::builder(&net, 8).name("norm").build();
//!         Linear::builder(&net, 8, 8).name("output").build();
//!     });
//! }
//! let program = net.program()?;
//! let names: Vec<&str> = program.parameters().map(|var| program.name(var)).collect();
//! assert_eq!(names[..3], ["encoder.0.norm.scale", "encoder.0.norm.bias", "encoder.0.output.w"]);
//! // Two layers of one name are an error.
//! Linear::builder(&net, 8, 8).name("encoder.0.output").build();
//! assert!(net.program().unwrap_err().message().starts_with("the program has a variable `encoder.0.output.w` already"));
//! # Ok::<(), autobwd::Error>(())
//! ```

/// The setters that builders of layers share.
macro_rules! layer_setters {
    (name) => {
        /// Names the layer, within the current [name scope](autobwd::Builder::name_scope): the weights of a layer called
        /// `stem` are `stem.w`.
        #[must_use]
        pub fn name(mut self, name: impl Into<String>) -> Self {
            self.name = Some(name.into());
            self
        }
    };
    (dtype) => {
        /// Sets the dtype of the parameters.
        #[must_use]
        pub fn dtype(mut self, dtype: autobwd::DType) -> Self {
            self.dtype = dtype;
            self
        }
    };
    (init) => {
        /// Sets the initialiser of the weights.
        #[must_use]
        pub fn init(mut self, weight: crate::Init) -> Self {
            self.weight = weight;
            self
        }
    };
    (bias) => {
        /// Sets the initialiser of the bias; `None` for no bias.
        #[must_use]
        pub fn bias(mut self, bias: Option<crate::Init>) -> Self {
            self.bias = bias;
            self
        }
    };
    (seed) => {
        /// Sets the seed; random values follow from `seed` and the parameters' names.
        #[must_use]
        pub fn seed(mut self, seed: i32) -> Self {
            self.seed = seed;
            self
        }
    };
    (torch) => {
        /// Declares the parameters as PyTorch does, for the values of its models: `stem.weight` and `stem.bias`, and
        /// the weights of a [`Linear`](crate::nn::Linear) layer as `[outputs, inputs]`.
        #[must_use]
        pub fn torch(self) -> Self {
            Self { is_torch: true, ..self }
        }
    };
    ($($setter:ident),+) => { $($crate::nn::layer_setters!($setter);)+ };
}
use layer_setters;

mod attention;
mod conv;
mod dropout;
mod embedding;
mod kv_cache;
mod linear;
mod loss;
mod noise;
mod norm;
mod pool;
mod recurrent;
mod rms_norm;

pub use attention::{MultiHeadAttention, MultiHeadAttentionBuilder};
pub use conv::{Conv1d, Conv2d, Conv2dTranspose, Conv3d, ConvBuilder};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingBuilder};
pub use kv_cache::{KvCache, KvCacheBuilder, KvCacheStep};
pub use linear::{Linear, LinearBuilder};
pub use loss::CrossEntropyLoss;
pub use noise::{GaussianNoise, StepSeed};
pub use norm::{Affine, BatchNorm, GroupNorm, InstanceNorm, LayerNorm, NormBuilder};
pub use pool::Pool2d;
pub use recurrent::{
    DirectionWeights, Gru, GruCell, Lstm, LstmCell, Recurrence, RecurrenceBuilder, RecurrentCell, Rnn,
    RnnCell,
};
pub use rms_norm::{RmsNorm, RmsNormBuilder};

use autobwd::{Builder, DType, Expr};

use crate::Init;

/// The name of a layer: its own within the current name scope, or a counted one.
fn layer_name(net: &Builder, kind: &str, name: Option<&str>) -> String {
    match name {
        Some(name) => net.scoped(name),
        None => net.layer_name(kind),
    }
}

/// Declares a parameter with that name.
#[track_caller]
fn parameter(net: &Builder, name: &str, dtype: DType, dims: &[usize], init: Init, seed: i32) -> Expr {
    net.parameter(name, dtype, dims, |parameter| init.emit(parameter, seed))
}

/// The name of a layer's weights: PyTorch's, or our own.
fn weight_name(layer: &str, own: &str, is_torch: bool) -> String {
    format!("{layer}.{}", if is_torch { "weight" } else { own })
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
    is_torch: bool,
) -> Option<Expr> {
    let part = if is_torch { "bias" } else { "b" };
    init.map(|init| parameter(net, &format!("{layer}.{part}"), dtype, &[outputs], init, seed))
}
