//! The workloads: training steps whose speed is measured.

mod data;
mod models;
mod optimizers;

use clap::ValueEnum;

pub use data::{integers, numbers};
pub use models::{GptSizes, LSTM, LstmWorkloadSizes, WorkloadModel};
pub use optimizers::optimizer_steps;

/// The networks.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Workload {
    /// 784-512-512-10, relu, batch 128, softmax cross-entropy.
    Mlp,
    /// 4-8-8-1, tanh, batch 4, mean square error.
    TinyMlp,
    /// Convolution 5×5×20, max pooling 2×2, convolution 5×5×50, max pooling 2×2, 800-500-10, relu, batch 64.
    Lenet,
    /// 1,000 elementwise operators on 16 elements, sum.
    ChainSmall,
    /// 20 elementwise operators on 1,000,000 elements, sum.
    ChainBig,
    /// LSTM, 32 steps, batch 32, 64 inputs, 128 units, mean square error of the last state.
    Lstm,
    /// Two transformer blocks of width 128 with 4 heads, sequences of 64, batch 8, 256 words.
    Gpt,
}

impl Workload {
    /// The losses of the first and of the tenth step.
    pub fn expected(self) -> (f64, f64) {
        match self {
            Workload::Mlp => (2.302_063, 2.292_480),
            Workload::TinyMlp => (0.399_110, 0.244_571),
            Workload::Lenet => (2.298_285, 2.277_932),
            Workload::ChainSmall => (0.537_796, 0.495_141),
            Workload::ChainBig => (46.2337, -1522.78),
            Workload::Lstm => (0.090_833, 0.090_817),
            Workload::Gpt => (5.721_274, 5.518_815),
        }
    }

    /// Its name in commands and results.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Mlp => "mlp",
            Workload::TinyMlp => "tiny_mlp",
            Workload::Lenet => "lenet",
            Workload::ChainSmall => "chain_small",
            Workload::ChainBig => "chain_big",
            Workload::Lstm => "lstm",
            Workload::Gpt => "gpt",
        }
    }

    /// Whether the losses of the first and of the tenth step are close enough to the expected ones.
    pub fn expects(self, loss1: f64, loss10: f64) -> bool {
        // Every library rounds sums of a million numbers differently.
        let tolerance = if matches!(self, Workload::ChainBig) { 1e-4 } else { 1e-5 };
        let near = |a: f64, b: f64| (a - b).abs() <= tolerance * b.abs();
        near(loss1, self.expected().0) && near(loss10, self.expected().1)
    }
}
