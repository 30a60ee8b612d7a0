//! The models, and their data in the scope: nothing is fed, so that a step is nothing but the step.

use autobwd::{Builder, DType, Expr, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    optim::{Optimizer, Sgd},
};

use crate::{
    Workload,
    data::{integers, numbers},
};

/// A training step, ready to be planned.
pub(crate) struct Model {
    pub(crate) net: Builder,
    pub(crate) scope: Scope,
    pub(crate) loss: String,
}

/// Declares a value that stands in the scope.
struct Values {
    net: Builder,
    scope: Scope,
}

impl Values {
    fn parameter(&mut self, name: &str, dims: &[usize], elements: Vec<f32>) -> Result<Expr> {
        self.scope.set(name, Tensor::from_vec(dims, elements)?);
        self.net.parameter(name, DType::F32, dims, |_| Ok(()))
    }

    fn data<T: autobwd::Element>(&mut self, name: &str, dims: &[usize], elements: Vec<T>) -> Result<Expr> {
        self.scope.set(name, Tensor::from_vec(dims, elements)?);
        self.net.persistable(name, T::DTYPE, dims, |_| Ok(()))
    }

    /// Weights from seed `l + 1` for outputs that depend on `fan_in` elements, and a bias of 0.
    fn weights(&mut self, l: usize, fan_in: usize, dims: &[usize], bias: &[usize]) -> Result<(Expr, Expr)> {
        let (n, scale) = (dims.iter().product(), 1.0 / (fan_in as f64).sqrt());
        let w = self.parameter(&format!("w{l}"), dims, numbers(l as u32 + 1, n, scale))?;
        let b = self.parameter(&format!("b{l}"), bias, vec![0.0; bias[0]])?;
        Ok((w, b))
    }

    /// Layers with activations between them, the first of which has number `first`.
    fn layers(
        &mut self,
        x: &Expr,
        first: usize,
        sizes: &[usize],
        activation: impl Fn(&Expr) -> Result<Expr>,
    ) -> Result<Expr> {
        let (mut h, last) = (x.clone(), sizes.len() - 2);
        for (l, io) in sizes.windows(2).enumerate() {
            let (w, b) = self.weights(first + l, io[0], io, &io[1..])?;
            let z = (&h.matmul(&w)? + &b)?;
            h = if l == last { z } else { activation(&z)? };
        }
        Ok(h)
    }

    /// Convolution with `size` by `size` elements and a maximum of 2 by 2.
    fn filters(&mut self, x: &Expr, l: usize, outputs: usize, inputs: usize, size: usize) -> Result<Expr> {
        let dims = [outputs, inputs, size, size];
        let (w, b) = self.weights(l, inputs * size * size, &dims, &[outputs, 1, 1])?;
        (&x.conv2d(&w, 1, 0)? + &b)?.max_pool2d(2, 2)
    }

    /// tanh, · 1.01 and + parameter in turn, then the sum.
    fn chain(&mut self, operators: usize, n: usize) -> Result<Expr> {
        let w = self.parameter("w", &[n], numbers(1, n, 0.1))?;
        let mut h = self.data("x", &[n], numbers(100, n, 1.0))?;
        for i in 0..operators {
            h = match i % 3 {
                0 => h.tanh()?,
                1 => (&h * 1.01)?,
                _ => (&h + &w)?,
            };
        }
        h.sum(&[])
    }
}

impl Workload {
    /// The losses of the first and of the tenth step.
    pub(crate) fn expected(self) -> (f64, f64) {
        match self {
            Workload::Mlp => (2.302_063, 2.292_480),
            Workload::TinyMlp => (0.399_110, 0.244_571),
            Workload::Lenet => (2.298_285, 2.277_932),
            Workload::ChainSmall => (0.537_796, 0.495_141),
            Workload::ChainBig => (46.2337, -1522.78),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Mlp => "mlp",
            Workload::TinyMlp => "tiny_mlp",
            Workload::Lenet => "lenet",
            Workload::ChainSmall => "chain_small",
            Workload::ChainBig => "chain_big",
        }
    }

    /// How far, relatively, losses may be from the expected ones.
    pub(crate) fn tolerance(self) -> f64 {
        // Summing a million numbers rounds differently in every library.
        if matches!(self, Workload::ChainBig) { 1e-4 } else { 1e-5 }
    }

    pub(crate) fn model(self) -> Result<Model> {
        let net = Builder::new();
        let mut values = Values { net: net.clone(), scope: Scope::new() };
        let (loss, rate) = match self {
            Workload::Mlp => {
                let x = values.data("x", &[128, 784], numbers(100, 128 * 784, 1.0))?;
                let y = values.data("y", &[128, 1], integers(101, 128, 10))?;
                (values.layers(&x, 0, &[784, 512, 512, 10], Math::relu)?.cross_entropy(&y)?.mean()?, 0.01)
            }
            Workload::TinyMlp => {
                let x = values.data("x", &[4, 4], numbers(100, 16, 1.0))?;
                let y = values.data("y", &[4, 1], numbers(101, 4, 1.0))?;
                (values.layers(&x, 0, &[4, 8, 8, 1], Math::tanh)?.square_error(&y)?.mean()?, 0.01)
            }
            Workload::Lenet => {
                let x = values.data("x", &[64, 1, 28, 28], numbers(100, 64 * 784, 1.0))?;
                let y = values.data("y", &[64, 1], integers(101, 64, 10))?;
                let h = values.filters(&x, 0, 20, 1, 5)?;
                let h = values.filters(&h, 1, 50, 20, 5)?.reshape(&[64, 800])?;
                (values.layers(&h, 2, &[800, 500, 10], Math::relu)?.cross_entropy(&y)?.mean()?, 0.01)
            }
            Workload::ChainSmall => (values.chain(1000, 16)?, 1e-5),
            Workload::ChainBig => (values.chain(20, 1_000_000)?, 1e-5),
        };
        Sgd { rate }.minimize(&loss)?;
        values.scope.set("learning_rate_0", Tensor::from_vec([1], vec![rate])?);
        Ok(Model { net, scope: values.scope, loss: loss.name() })
    }
}
