//! The workloads in burn on its fastest CPU backend, flex: `THREADS=1 burn_peer mlp`.

use std::{
    cell::RefCell,
    process::ExitCode,
    rc::Rc,
    time::{Duration, Instant},
};

use burn_tensor::{
    Device, Gradients, Int, Tensor, TensorData, activation, module,
    ops::{AttentionModuleOptions, ConvOptions, MaxPoolOptions},
};
use peer::{CHAIN_RATE, Outcome, RATE, Row, Step, integers, numbers, weights};

fn device() -> Device {
    Device::flex().autodiff()
}

fn values<const D: usize>(elements: Vec<f32>, dims: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(elements, dims), &device())
}

fn classes<const D: usize>(seed: u32, dims: [usize; D], bound: u32) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(integers(seed, dims.iter().product(), bound), dims), &device())
}

/// A tensor that steps update.
#[derive(Clone)]
struct Parameter<const D: usize>(Rc<RefCell<Option<Tensor<D>>>>);

impl<const D: usize> Parameter<D> {
    fn get(&self) -> Tensor<D> {
        self.0.borrow().clone().expect("a value")
    }

    fn descend(&self, gradients: &mut Gradients, rate: f64) {
        // Taken out, so that it has no other owner and is updated in place.
        let value = self.0.take().expect("a value");
        let gradient = value.grad_remove(gradients).expect("a gradient");
        let value = value.inner() - gradient.mul_scalar(rate);
        self.0.replace(Some(Tensor::from_inner(value).require_grad()));
    }
}

/// The updates of all parameters.
#[derive(Default)]
struct Parameters(Vec<Box<dyn Fn(&mut Gradients, f64)>>);

impl Parameters {
    fn add<const D: usize>(&mut self, elements: Vec<f32>, dims: [usize; D]) -> Parameter<D> {
        let parameter = Parameter(Rc::new(RefCell::new(Some(values(elements, dims).require_grad()))));
        let changed = parameter.clone();
        self.0.push(Box::new(move |gradients, rate| changed.descend(gradients, rate)));
        parameter
    }

    fn weights(&mut self, seed: u32, inputs: usize, outputs: usize) -> Parameter<2> {
        self.add(weights(seed, inputs, outputs), [inputs, outputs])
    }

    fn linear(&mut self, seed: u32, inputs: usize, outputs: usize) -> Linear {
        Linear(self.weights(seed, inputs, outputs), self.add(vec![0.0; outputs], [outputs]))
    }

    fn layers(&mut self, first: u32, sizes: &[usize]) -> Vec<Linear> {
        (first..).zip(sizes.windows(2)).map(|(seed, io)| self.linear(seed, io[0], io[1])).collect()
    }

    /// Filters of `inputs` channels, 5 by 5, and their bias.
    fn filters(&mut self, seed: u32, inputs: usize, outputs: usize) -> Filters {
        let filters = numbers(seed, outputs * inputs * 25, 1.0 / (inputs as f64 * 25.0).sqrt());
        Filters(self.add(filters, [outputs, inputs, 5, 5]), self.add(vec![0.0; outputs], [outputs]))
    }

    fn norm(&mut self, width: usize) -> Norm {
        Norm(self.add(vec![1.0; width], [width]), self.add(vec![0.0; width], [width]))
    }

    /// Steps of gradient descent.
    fn descend(self, rate: f64, loss: impl Fn() -> Tensor<1> + 'static) -> Step {
        Box::new(move || {
            let loss = loss();
            let mut gradients = loss.backward();
            for change in &self.0 {
                change(&mut gradients, rate);
            }
            Ok(loss.into_scalar::<f32>().into())
        })
    }
}

struct Linear(Parameter<2>, Parameter<1>);

impl Linear {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.0.get()) + self.1.get().unsqueeze()
    }
}

struct Filters(Parameter<4>, Parameter<1>);

impl Filters {
    /// Convolution and max pooling 2 × 2.
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
        module::max_pool2d(
            module::conv2d(x, self.0.get(), Some(self.1.get()), options),
            MaxPoolOptions::new([2, 2]),
        )
    }
}

struct Norm(Parameter<1>, Parameter<1>);

impl Norm {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        module::layer_norm(x, self.0.get(), Some(self.1.get()), 1e-5)
    }
}

fn forward(layers: &[Linear], x: Tensor<2>, activation: fn(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    let (last, hidden) = layers.split_last().expect("layers");
    last.forward(hidden.iter().fold(x, |h, layer| activation(layer.forward(h))))
}

fn cross_entropy(logits: Tensor<2>, y: Tensor<2, Int>) -> Tensor<1> {
    activation::log_softmax(logits, 1).gather(1, y).mean().neg()
}

fn square_error(x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
    (x - y).square().mean()
}

fn chain(operators: usize, n: usize) -> Step {
    let mut p = Parameters::default();
    let (w, x) = (p.add(numbers(1, n, 0.1), [n]), values(numbers(100, n, 1.0), [n]));
    p.descend(CHAIN_RATE, move || {
        let (w, mut h) = (w.get(), x.clone());
        for i in 0..operators {
            h = match i % 3 {
                0 => h.tanh(),
                1 => h * 1.01,
                _ => h + w.clone(),
            };
        }
        h.sum()
    })
}

fn lstm() -> Step {
    let (steps, batch, inputs, units) = (32, 32, 64, 128);
    let x = values(numbers(100, steps * batch * inputs, 1.0), [steps * batch, inputs]);
    let y = values(numbers(101, batch * units, 0.5), [batch, units]);
    let mut p = Parameters::default();
    let (wx, wh) = (p.weights(1, inputs, 4 * units), p.weights(2, units, 4 * units));
    let b = p.add(vec![0.0; 4 * units], [4 * units]);
    p.descend(RATE, move || {
        // One input projection for all steps.
        let inputs = (x.clone().matmul(wx.get()) + b.get().unsqueeze()).split(batch, 0);
        let wh = wh.get();
        let mut h = Tensor::zeros([batch, units], &device());
        let mut c = h.clone();
        for input in inputs {
            let mut gates = (input + h.matmul(wh.clone())).chunk(4, 1).into_iter();
            let mut gate = || gates.next().expect("four gates");
            let (i, f, g, o) = (gate(), gate(), gate(), gate());
            c = activation::sigmoid(f) * c + activation::sigmoid(i) * g.tanh();
            h = activation::sigmoid(o) * c.clone().tanh();
        }
        square_error(h, y.clone())
    })
}

/// A transformer block.
struct Block {
    norm1: Norm,
    qkv: Linear,
    out: Linear,
    norm2: Norm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(p: &mut Parameters, seed: u32, width: usize) -> Self {
        Block {
            norm1: p.norm(width),
            qkv: p.linear(seed, width, 3 * width),
            out: p.linear(seed + 1, width, width),
            norm2: p.norm(width),
            up: p.linear(seed + 2, width, 4 * width),
            down: p.linear(seed + 3, 4 * width, width),
        }
    }

    /// For `batch` sequences.
    fn forward(&self, h: Tensor<2>, batch: usize, heads: usize) -> Tensor<2> {
        let [rows, width] = h.dims();
        let mut parts = self
            .qkv
            .forward(self.norm1.forward(h.clone()))
            .chunk(3, 1)
            .into_iter()
            .map(|part| part.reshape([batch, rows / batch, heads, width / heads]).swap_dims(1, 2));
        let mut part = || parts.next().expect("three parts");
        let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let mixed = module::attention(part(), part(), part(), None, None, causal);
        let h = h + self.out.forward(mixed.swap_dims(1, 2).reshape([rows, width]));
        let hidden = activation::gelu_approximate(self.up.forward(self.norm2.forward(h.clone())));
        h + self.down.forward(hidden)
    }
}

fn gpt() -> Step {
    let (batch, length, width, heads, words) = (8, 64, 128, 4, 256);
    let x = classes(100, [batch, length], words as u32);
    let y = classes(101, [batch * length, 1], words as u32);
    let mut p = Parameters::default();
    let table = p.add(numbers(1, words * width, 0.1), [words, width]);
    let places = p.add(numbers(2, length * width, 0.1), [length, width]);
    let blocks = [10, 20].map(|seed| Block::new(&mut p, seed, width));
    let (norm, head) = (p.norm(width), p.weights(3, width, words));
    p.descend(RATE, move || {
        let h = module::embedding(table.get(), x.clone()) + places.get().unsqueeze();
        let h = h.reshape([batch * length, width]);
        let h = blocks.iter().fold(h, |h, block| block.forward(h, batch, heads));
        cross_entropy(norm.forward(h).matmul(head.get()), y.clone())
    })
}

fn step(workload: &str) -> Outcome<Step> {
    let mut p = Parameters::default();
    Ok(match workload {
        "mlp" => {
            let (x, y) = (values(numbers(100, 128 * 784, 1.0), [128, 784]), classes(101, [128, 1], 10));
            let layers = p.layers(1, &[784, 512, 512, 10]);
            p.descend(RATE, move || cross_entropy(forward(&layers, x.clone(), activation::relu), y.clone()))
        }
        "tiny_mlp" => {
            let (x, y) = (values(numbers(100, 16, 1.0), [4, 4]), values(numbers(101, 4, 1.0), [4, 1]));
            let layers = p.layers(1, &[4, 8, 8, 1]);
            p.descend(RATE, move || square_error(forward(&layers, x.clone(), Tensor::tanh), y.clone()))
        }
        "chain_small" => chain(1000, 16),
        "chain_big" => chain(20, 1_000_000),
        "lenet" => {
            let x = values(numbers(100, 64 * 784, 1.0), [64, 1, 28, 28]);
            let y = classes(101, [64, 1], 10);
            let filters = [p.filters(1, 1, 20), p.filters(2, 20, 50)];
            let layers = p.layers(3, &[800, 500, 10]);
            p.descend(RATE, move || {
                let h = filters.iter().fold(x.clone(), |h, filters| filters.forward(h)).reshape([64, 800]);
                cross_entropy(forward(&layers, h, activation::relu), y.clone())
            })
        }
        "lstm" => lstm(),
        "gpt" => gpt(),
        _ => return Err(format!("no {workload}").into()),
    })
}

fn row(length: usize, step: fn(Tensor<1>, &Tensor<1>) -> Tensor<1>) -> Outcome<[Duration; 2]> {
    let [x, w] = [0.5, 1.01].map(|number| values(vec![number], [1]).require_grad());
    let start = Instant::now();
    let mut y = x;
    for _ in 0..length {
        y = step(y, &w);
    }
    let recorded = Instant::now();
    drop(y.backward());
    drop(y);
    Ok([recorded - start, recorded.elapsed()])
}

const ROWS: [(&str, Row); 10] = [
    ("elementwise_add", |n| row(n, |y, w| y + w.clone())),
    ("elementwise_sub", |n| row(n, |y, w| y - w.clone())),
    ("elementwise_mul", |n| row(n, |y, w| y * w.clone())),
    ("elementwise_div", |n| row(n, |y, w| y / w.clone())),
    ("scale", |n| row(n, |y, _| y * 1.01)),
    ("tanh", |n| row(n, |y, _| y.tanh())),
    ("sigmoid", |n| row(n, |y, _| activation::sigmoid(y))),
    ("exp", |n| row(n, |y, _| y.exp())),
    ("sin", |n| row(n, |y, _| y.sin())),
    ("relu", |n| row(n, |y, _| activation::relu(y))),
];

fn main() -> ExitCode {
    peer::run("burn", step, &ROWS)
}
