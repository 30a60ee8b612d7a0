//! The models, with data in the scope: nothing is fed, so that only the step is timed.

use autobwd::{Builder, DType, Expr, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    nn::{Affine, DirectionWeights, LayerNorm, Lstm},
    optim::{Optimizer, Sgd},
};

use super::{
    Workload,
    data::{integers, numbers},
};

/// A training step, ready to be planned.
pub struct WorkloadModel {
    /// The network, its backward pass and its updates.
    pub net: Builder,
    /// Data and initial values.
    pub scope: Scope,
    /// Name of the loss.
    pub loss: String,
}

/// Declares variables with values in the scope.
struct Values {
    net: Builder,
    scope: Scope,
}

impl Values {
    fn parameter(&mut self, name: &str, dims: &[usize], elements: Vec<f32>) -> Result<Expr> {
        self.scope.set(name, Tensor::from_vec(dims, elements)?);
        Ok(self.net.parameter(name, DType::F32, dims, Expr::clone))
    }

    fn data<T: autobwd::tensor::Element>(
        &mut self,
        name: &str,
        dims: &[usize],
        elements: Vec<T>,
    ) -> Result<Expr> {
        self.scope.set(name, Tensor::from_vec(dims, elements)?);
        Ok(self.net.persistable(name, T::DTYPE, dims, Expr::clone))
    }

    /// Appends the backward pass and the updates, with products in `dtype`.
    fn minimize(mut self, loss: &Expr, rate: f32, dtype: DType) -> Result<WorkloadModel> {
        match dtype {
            DType::F32 => Sgd { rate }.minimize(loss)?.complete()?,
            _ => Sgd { rate }.mixed_precision(dtype).minimize(loss)?.complete()?,
        };
        self.scope.set("learning_rate_0", Tensor::from_vec([1], vec![rate])?);
        Ok(WorkloadModel { net: self.net, scope: self.scope, loss: loss.name() })
    }

    /// Weights from seed `l + 1` for outputs that depend on `fan_in` elements, and a bias of 0.
    fn weights(&mut self, l: usize, fan_in: usize, dims: &[usize], bias: &[usize]) -> Result<(Expr, Expr)> {
        let (n, scale) = (dims.iter().product(), 1.0 / (fan_in as f64).sqrt());
        let w = self.parameter(&format!("w{l}"), dims, numbers(l as u32 + 1, n, scale))?;
        let b = self.parameter(&format!("b{l}"), bias, vec![0.0; bias[0]])?;
        Ok((w, b))
    }

    /// Layers with activations between them; the first has number `first`.
    fn layers(
        &mut self,
        x: &Expr,
        first: usize,
        sizes: &[usize],
        activation: impl Fn(&Expr) -> Expr,
    ) -> Result<Expr> {
        let (mut h, last) = (x.clone(), sizes.len() - 2);
        for (l, io) in sizes.windows(2).enumerate() {
            let (w, b) = self.weights(first + l, io[0], io, &io[1..])?;
            let z = h.matmul(&w) + b;
            h = if l == last { z } else { activation(&z) };
        }
        Ok(h)
    }

    /// Convolution with `size` by `size` elements and max pooling 2 × 2.
    fn filters(&mut self, x: &Expr, l: usize, outputs: usize, inputs: usize, size: usize) -> Result<Expr> {
        let dims = [outputs, inputs, size, size];
        let (w, b) = self.weights(l, inputs * size * size, &dims, &[outputs, 1, 1])?;
        Ok((x.conv2d(&w, 1, 0) + b).max_pool2d(2, 2))
    }

    /// tanh, · 1.01 and + parameter in turn, then the sum.
    fn chain(&mut self, operators: usize, n: usize) -> Result<Expr> {
        let w = self.parameter("w", &[n], numbers(1, n, 0.1))?;
        let mut h = self.data("x", &[n], numbers(100, n, 1.0))?;
        for i in 0..operators {
            h = match i % 3 {
                0 => h.tanh(),
                1 => h * 1.01,
                _ => h + &w,
            };
        }
        Ok(h.sum(&[]))
    }

    /// The mean square error of the last state, computed by `last`.
    fn lstm(
        &mut self,
        sizes: &LstmWorkloadSizes,
        last: impl FnOnce(&Expr, DirectionWeights) -> Expr,
    ) -> Result<Expr> {
        let LstmWorkloadSizes { steps, batch, inputs, units } = *sizes;
        let x = self.data("x", &[steps, batch, inputs], numbers(100, steps * batch * inputs, 1.0))?;
        let input_weight = self.weight("wx", 1, [inputs, 4 * units])?;
        let state_weight = self.weight("wh", 2, [units, 4 * units])?;
        let bias = self.parameter("b", &[4 * units], vec![0.0; 4 * units])?;
        let last = last(&x, DirectionWeights { input_weight, state_weight, bias });
        let dims = last.dims().known().unwrap_or_default();
        let y = self.data("y", &dims, numbers(101, batch * units, 0.5))?;
        Ok(last.square_error(&y).mean())
    }

    /// The mean cross-entropy of the next word.
    fn gpt(&mut self, sizes: &GptSizes) -> Result<Expr> {
        let GptSizes { batch, length, width, heads, words, blocks } = *sizes;
        let (rows, each) = (batch * length, width / heads);
        let x = self.data("x", &[batch, length], integers(100, rows, words as u32))?;
        let y = self.data("y", &[rows, 1], integers(101, rows, words as u32))?;
        let table = self.parameter("words", &[words, width], numbers(1, words * width, 0.1))?;
        let places = self.parameter("places", &[length, width], numbers(2, length * width, 0.1))?;
        let mut h = (x.embedding(&table) + places).reshape(&[rows as i32, width as i32]);
        for block in 0..blocks {
            let seed = 10 * (block as u32 + 1);
            let qkv = self.norm_linear(&h, seed, [width, 3 * width])?.split(&[width as i32; 3], 1);
            let part = |i: usize| qkv[i].reshape(&[batch as i32, length as i32, heads as i32, each as i32]);
            let mixed = part(0).attention(&part(1), &part(2), true);
            let mixed = mixed.reshape(&[rows as i32, width as i32]);
            h = &h + self.linear(&mixed, seed + 1, [width, width])?;
            let hidden = self.norm_linear(&h, seed + 2, [width, 4 * width])?.gelu(true);
            h = &h + self.linear(&hidden, seed + 3, [4 * width, width])?;
        }
        let out = self.weight("head", 3, [width, words])?;
        Ok(self.norm(&h, "last", width)?.matmul(&out).cross_entropy(&y).mean())
    }

    fn weight(&mut self, name: &str, seed: u32, dims: [usize; 2]) -> Result<Expr> {
        self.parameter(name, &dims, numbers(seed, dims[0] * dims[1], 1.0 / (dims[0] as f64).sqrt()))
    }

    fn linear(&mut self, x: &Expr, seed: u32, dims: [usize; 2]) -> Result<Expr> {
        let w = self.weight(&format!("w{seed}"), seed, dims)?;
        Ok(x.matmul(&w) + self.parameter(&format!("b{seed}"), &dims[1..], vec![0.0; dims[1]])?)
    }

    fn norm(&mut self, x: &Expr, name: &str, width: usize) -> Result<Expr> {
        let scale = self.parameter(&format!("{name}.scale"), &[width], vec![1.0; width])?;
        let bias = self.parameter(&format!("{name}.bias"), &[width], vec![0.0; width])?;
        Ok(LayerNorm { affine: Affine { scale, bias, epsilon: 1e-5 } }.forward(x))
    }

    fn norm_linear(&mut self, x: &Expr, seed: u32, dims: [usize; 2]) -> Result<Expr> {
        let x = self.norm(x, &format!("norm{seed}"), dims[0])?;
        self.linear(&x, seed, dims)
    }
}

/// The last state, from one operator for all steps.
fn fused(x: &Expr, pass: DirectionWeights) -> Expr {
    let (hidden, _) = Lstm::of(vec![pass]).forward(x);
    hidden.slice(0, -1, i32::MAX)
}

/// Sizes of a transformer.
pub struct GptSizes {
    batch: usize,
    length: usize,
    width: usize,
    heads: usize,
    words: usize,
    blocks: usize,
}

impl GptSizes {
    /// The sizes of the workload.
    pub const WORKLOAD: GptSizes =
        GptSizes { batch: 8, length: 64, width: 128, heads: 4, words: 256, blocks: 2 };
    /// Sizes that keep an accelerator busy.
    pub const WIDE: GptSizes =
        GptSizes { batch: 16, length: 512, width: 1024, heads: 16, words: 32_768, blocks: 8 };
}

/// Sizes of an LSTM.
pub struct LstmWorkloadSizes {
    /// Steps of the sequences.
    pub steps: usize,
    /// Batch size.
    pub batch: usize,
    /// Input features.
    pub inputs: usize,
    /// Units.
    pub units: usize,
}

/// The sizes of the workload.
pub const LSTM: LstmWorkloadSizes = LstmWorkloadSizes { steps: 32, batch: 32, inputs: 64, units: 128 };

impl WorkloadModel {
    /// The workload `lstm` with other sizes; `last` computes the last state from the inputs.
    ///
    /// # Errors
    /// Those of `last`.
    pub fn lstm(
        sizes: &LstmWorkloadSizes,
        last: impl FnOnce(&Expr, DirectionWeights) -> Expr,
    ) -> Result<WorkloadModel> {
        let mut values = Values { net: Builder::new(), scope: Scope::new() };
        let loss = values.lstm(sizes, last)?;
        values.minimize(&loss, 0.01, DType::F32)
    }

    /// The workload `gpt` with other sizes, and with products in another dtype.
    ///
    /// # Errors
    /// A dtype that is neither float32 nor one of 16 bits.
    pub fn gpt(sizes: &GptSizes, dtype: DType) -> Result<WorkloadModel> {
        let mut values = Values { net: Builder::new(), scope: Scope::new() };
        let loss = values.gpt(sizes)?;
        values.minimize(&loss, 0.01, dtype)
    }
}

impl Workload {
    /// Its training step.
    ///
    /// # Errors
    /// None, unless the operator library is broken.
    pub fn model(self) -> Result<WorkloadModel> {
        self.model_of_rank(1)
    }

    /// The training step of one of several ranks, with its share of the batch; for `mlp` and `gpt`, whose batches divide.
    ///
    /// # Errors
    /// As [`model`](Workload::model).
    pub fn model_of_rank(self, ranks: usize) -> Result<WorkloadModel> {
        let mut values = Values { net: Builder::new(), scope: Scope::new() };
        let (loss, rate) = match self {
            Workload::Mlp => {
                let batch = 128 / ranks;
                let x = values.data("x", &[batch, 784], numbers(100, batch * 784, 1.0))?;
                let y = values.data("y", &[batch, 1], integers(101, batch, 10))?;
                (values.layers(&x, 0, &[784, 512, 512, 10], Math::relu)?.cross_entropy(&y).mean(), 0.01)
            }
            Workload::TinyMlp => {
                let x = values.data("x", &[4, 4], numbers(100, 16, 1.0))?;
                let y = values.data("y", &[4, 1], numbers(101, 4, 1.0))?;
                (values.layers(&x, 0, &[4, 8, 8, 1], Math::tanh)?.square_error(&y).mean(), 0.01)
            }
            Workload::Lenet => {
                let x = values.data("x", &[64, 1, 28, 28], numbers(100, 64 * 784, 1.0))?;
                let y = values.data("y", &[64, 1], integers(101, 64, 10))?;
                let h = values.filters(&x, 0, 20, 1, 5)?;
                let h = values.filters(&h, 1, 50, 20, 5)?.reshape(&[64, 800]);
                (values.layers(&h, 2, &[800, 500, 10], Math::relu)?.cross_entropy(&y).mean(), 0.01)
            }
            Workload::ChainSmall => (values.chain(1000, 16)?, 1e-5),
            Workload::ChainBig => (values.chain(20, 1_000_000)?, 1e-5),
            Workload::Lstm => (values.lstm(&LSTM, fused)?, 0.01),
            Workload::Gpt => {
                let sizes = GptSizes::WORKLOAD;
                (values.gpt(&GptSizes { batch: sizes.batch / ranks, ..sizes })?, 0.01)
            }
        };
        values.minimize(&loss, rate, DType::F32)
    }
}
