//! The workloads in candle: `THREADS=1 candle_peer mlp`.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use candle_core::{D, Device::Cpu, Result, Tensor, Var};
use candle_nn::{loss, ops};
use peer::{CHAIN_RATE, Outcome, RATE, Row, Step, integers, numbers, weights};

/// Parameters in order of creation.
#[derive(Default)]
struct Parameters(Vec<Var>);

impl Parameters {
    fn add(&mut self, elements: Vec<f32>, dims: &[usize]) -> Result<Tensor> {
        let var = Var::from_vec(elements, dims, &Cpu)?;
        self.0.push(var.clone());
        Ok(var.as_tensor().clone())
    }

    fn weights(&mut self, seed: u32, inputs: usize, outputs: usize) -> Result<Tensor> {
        self.add(weights(seed, inputs, outputs), &[inputs, outputs])
    }

    fn linear(&mut self, seed: u32, inputs: usize, outputs: usize) -> Result<Linear> {
        Ok(Linear(self.weights(seed, inputs, outputs)?, self.add(vec![0.0; outputs], &[outputs])?))
    }

    fn layers(&mut self, first: u32, sizes: &[usize]) -> Result<Vec<Linear>> {
        (first..).zip(sizes.windows(2)).map(|(seed, io)| self.linear(seed, io[0], io[1])).collect()
    }

    /// Filters of `inputs` channels, 5 by 5, and their bias.
    fn filters(&mut self, seed: u32, inputs: usize, outputs: usize) -> Result<Linear> {
        let filters = numbers(seed, outputs * inputs * 25, 1.0 / (inputs as f64 * 25.0).sqrt());
        let bias = self.add(vec![0.0; outputs], &[1, outputs, 1, 1])?;
        Ok(Linear(self.add(filters, &[outputs, inputs, 5, 5])?, bias))
    }

    fn norm(&mut self, width: usize) -> Result<Norm> {
        Ok(Norm(self.add(vec![1.0; width], &[width])?, self.add(vec![0.0; width], &[width])?))
    }

    /// Steps of gradient descent.
    fn descend(self, rate: f64, loss: impl Fn() -> Result<Tensor> + 'static) -> Step {
        Box::new(move || {
            let loss = loss()?;
            let gradients = loss.backward()?;
            for var in &self.0 {
                let gradient = gradients.get(var).ok_or("a parameter has no gradient")?;
                var.set(&(var.as_detached_tensor() - (gradient * rate)?)?)?;
            }
            Ok(loss.to_scalar::<f32>()?.into())
        })
    }
}

struct Linear(Tensor, Tensor);

impl Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.0)?.broadcast_add(&self.1)
    }

    /// Convolution and max pooling 2 × 2; `max_pool2d` has a wrong gradient.
    fn filter(&self, x: &Tensor) -> Result<Tensor> {
        let h = x.conv2d(&self.0, 0, 1, 1, 1)?.broadcast_add(&self.1)?;
        let (n, c, height, width) = h.dims4()?;
        h.reshape(vec![n, c, height / 2, 2, width / 2, 2])?.max(5)?.max(3)
    }
}

struct Norm(Tensor, Tensor);

impl Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm_slow(x, &self.0, &self.1, 1e-5)
    }
}

fn forward(layers: &[Linear], x: &Tensor, activation: fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let (last, hidden) = layers.split_last().expect("layers");
    let mut h = x.clone();
    for layer in hidden {
        h = activation(&layer.forward(&h)?)?;
    }
    last.forward(&h)
}

fn values(seed: u32, dims: &[usize], scale: f64) -> Result<Tensor> {
    Tensor::from_vec(numbers(seed, dims.iter().product(), scale), dims, &Cpu)
}

fn classes(seed: u32, n: usize, bound: u32) -> Result<Tensor> {
    Tensor::from_vec(integers(seed, n, bound), n, &Cpu)
}

fn chain(operators: usize, n: usize) -> Result<Step> {
    let mut p = Parameters::default();
    let (w, x) = (p.add(numbers(1, n, 0.1), &[n])?, values(100, &[n], 1.0)?);
    Ok(p.descend(CHAIN_RATE, move || {
        let mut h = x.clone();
        for i in 0..operators {
            h = match i % 3 {
                0 => h.tanh()?,
                1 => (h * 1.01)?,
                _ => (h + &w)?,
            };
        }
        h.sum_all()
    }))
}

fn lstm() -> Result<Step> {
    let (steps, batch, inputs, units) = (32, 32, 64, 128);
    let x = values(100, &[steps, batch, inputs], 1.0)?;
    let y = values(101, &[batch, units], 0.5)?;
    let mut p = Parameters::default();
    let (wx, wh) = (p.weights(1, inputs, 4 * units)?, p.weights(2, units, 4 * units)?);
    let b = p.add(vec![0.0; 4 * units], &[4 * units])?;
    Ok(p.descend(RATE, move || {
        let zeros = Tensor::zeros((batch, units), x.dtype(), &Cpu)?;
        let (mut h, mut c) = (zeros.clone(), zeros);
        for t in 0..steps {
            // One input projection for all steps would be slower: its gradient is padded and added for every step.
            let gates = (x.get(t)?.matmul(&wx)? + h.matmul(&wh)?)?.broadcast_add(&b)?.chunk(4, 1)?;
            let [i, f, o] = [0, 1, 3].map(|gate| ops::sigmoid(&gates[gate].contiguous()?));
            c = ((f? * c)? + (i? * gates[2].contiguous()?.tanh()?)?)?;
            h = (o? * c.tanh()?)?;
        }
        loss::mse(&h, &y)
    }))
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
    fn new(p: &mut Parameters, seed: u32, width: usize) -> Result<Self> {
        Ok(Block {
            norm1: p.norm(width)?,
            qkv: p.linear(seed, width, 3 * width)?,
            out: p.linear(seed + 1, width, width)?,
            norm2: p.norm(width)?,
            up: p.linear(seed + 2, width, 4 * width)?,
            down: p.linear(seed + 3, 4 * width, width)?,
        })
    }

    /// For `batch` sequences; the mask is added to the scores.
    fn forward(&self, h: &Tensor, batch: usize, heads: usize, mask: &Tensor) -> Result<Tensor> {
        let (rows, width) = h.dims2()?;
        let (length, each) = (rows / batch, width / heads);
        let a = self.qkv.forward(&self.norm1.forward(h)?)?.reshape((batch, length, 3, heads, each))?;
        let a = a.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let scores = (a.get(0)?.matmul(&a.get(1)?.t()?)? / (each as f64).sqrt())?.broadcast_add(mask)?;
        let mixed = ops::softmax(&scores, D::Minus1)?.matmul(&a.get(2)?)?;
        let h = (h + self.out.forward(&mixed.transpose(1, 2)?.reshape((rows, width))?)?)?;
        let hidden = self.up.forward(&self.norm2.forward(&h)?)?.gelu()?;
        &h + self.down.forward(&hidden)?
    }
}

fn gpt() -> Result<Step> {
    let (batch, length, width, heads, words) = (8, 64, 128, 4, 256);
    let (x, y) = (classes(100, batch * length, words as u32)?, classes(101, batch * length, words as u32)?);
    let mask = (0..length * length).map(|i| if i % length > i / length { -1e9_f32 } else { 0.0 });
    let mask = Tensor::from_iter(mask, &Cpu)?.reshape((length, length))?;
    let mut p = Parameters::default();
    let table = p.add(numbers(1, words * width, 0.1), &[words, width])?;
    let places = p.add(numbers(2, length * width, 0.1), &[length, width])?;
    let blocks =
        [10, 20].map(|seed| Block::new(&mut p, seed, width)).into_iter().collect::<Result<Vec<_>>>()?;
    let (norm, head) = (p.norm(width)?, p.weights(3, width, words)?);
    Ok(p.descend(RATE, move || {
        let h = table.embedding(&x)?.reshape((batch, length, width))?.broadcast_add(&places)?;
        let mut h = h.reshape((batch * length, width))?;
        for block in &blocks {
            h = block.forward(&h, batch, heads, &mask)?;
        }
        loss::cross_entropy(&norm.forward(&h)?.matmul(&head)?, &y)
    }))
}

fn step(workload: &str) -> Outcome<Step> {
    let mut p = Parameters::default();
    Ok(match workload {
        "mlp" => {
            let (x, y) = (values(100, &[128, 784], 1.0)?, classes(101, 128, 10)?);
            let layers = p.layers(1, &[784, 512, 512, 10])?;
            p.descend(RATE, move || loss::cross_entropy(&forward(&layers, &x, Tensor::relu)?, &y))
        }
        "tiny_mlp" => {
            let (x, y) = (values(100, &[4, 4], 1.0)?, values(101, &[4, 1], 1.0)?);
            let layers = p.layers(1, &[4, 8, 8, 1])?;
            p.descend(RATE, move || loss::mse(&forward(&layers, &x, Tensor::tanh)?, &y))
        }
        "chain_small" => chain(1000, 16)?,
        "chain_big" => chain(20, 1_000_000)?,
        "lenet" => {
            let (x, y) = (values(100, &[64, 1, 28, 28], 1.0)?, classes(101, 64, 10)?);
            let filters = [p.filters(1, 1, 20)?, p.filters(2, 20, 50)?];
            let layers = p.layers(3, &[800, 500, 10])?;
            p.descend(RATE, move || {
                let h = filters[1].filter(&filters[0].filter(&x)?)?.reshape((64, 800))?;
                loss::cross_entropy(&forward(&layers, &h, Tensor::relu)?, &y)
            })
        }
        "lstm" => lstm()?,
        "gpt" => gpt()?,
        _ => return Err(format!("no {workload}").into()),
    })
}

fn row(length: usize, step: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Outcome<[Duration; 2]> {
    let (x, w) = (Var::new(0.5_f32, &Cpu)?, Var::new(1.01_f32, &Cpu)?);
    let start = Instant::now();
    let mut y = step(&x, &w)?;
    for _ in 1..length {
        y = step(&y, &w)?;
    }
    let recorded = Instant::now();
    drop(y.backward()?);
    drop(y);
    Ok([recorded - start, recorded.elapsed()])
}

const ROWS: [(&str, Row); 10] = [
    ("elementwise_add", |n| row(n, |y, w| y + w)),
    ("elementwise_sub", |n| row(n, |y, w| y - w)),
    ("elementwise_mul", |n| row(n, |y, w| y * w)),
    ("elementwise_div", |n| row(n, |y, w| y / w)),
    ("scale", |n| row(n, |y, _| y * 1.01)),
    ("tanh", |n| row(n, |y, _| y.tanh())),
    ("sigmoid", |n| row(n, |y, _| ops::sigmoid(y))),
    ("exp", |n| row(n, |y, _| y.exp())),
    ("sin", |n| row(n, |y, _| y.sin())),
    ("relu", |n| row(n, |y, _| y.relu())),
];

fn main() -> ExitCode {
    peer::run("candle", step, &ROWS)
}
