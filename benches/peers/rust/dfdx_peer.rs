//! The workloads in dfdx, whose convolutions need a nightly compiler: `THREADS=1 dfdx_peer mlp`.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use dfdx::{
    nn::{ZeroGrads, tensor_collection::TensorCollection},
    optim::{Optimizer, Sgd, SgdConfig},
    prelude::*,
};
use peer::{CHAIN_RATE, Outcome, RATE, Row, Step, integers, numbers, one_hot, weights};

type Tape = OwnedTape<f32, Cpu>;
type Values<S> = Tensor<S, f32, Cpu>;
type Traced<S> = Tensor<S, f32, Cpu, Tape>;

/// Weights and biases.
type Linear<const I: usize, const O: usize> = (Values<Rank2<I, O>>, Values<Rank1<O>>);
/// Three layers: `A` inputs, twice `B` units, `C` outputs.
type Layers<const A: usize, const B: usize, const C: usize> = (Linear<A, B>, Linear<B, B>, Linear<B, C>);

fn values<S: ConstShape>(elements: Vec<f32>) -> Values<S> {
    Cpu::default().tensor_from_vec(elements, S::default())
}

fn layer<const I: usize, const O: usize>(seed: u32) -> Linear<I, O> {
    (values(weights(seed, I, O)), Cpu::default().zeros())
}

fn linear<const N: usize, const I: usize, const O: usize>(
    x: Traced<Rank2<N, I>>,
    (w, b): &Linear<I, O>,
) -> Traced<Rank2<N, O>> {
    x.matmul(w.clone()) + b.retaped::<Tape>().broadcast()
}

fn forward<const N: usize, const A: usize, const B: usize, const C: usize>(
    x: Traced<Rank2<N, A>>,
    p: &Layers<A, B, C>,
    activation: fn(Traced<Rank2<N, B>>) -> Traced<Rank2<N, B>>,
) -> Traced<Rank2<N, C>> {
    linear(activation(linear(activation(linear(x, &p.0)), &p.1)), &p.2)
}

/// Steps of gradient descent on `parameters`; the loss starts from traced data.
fn descend<P, S>(
    mut parameters: P,
    x: Values<S>,
    lr: f64,
    loss: impl Fn(Traced<S>, &P) -> Traced<Rank0> + 'static,
) -> Step
where
    P: TensorCollection<f32, Cpu> + 'static,
    S: ConstShape,
{
    let mut sgd = Sgd::new(&parameters, SgdConfig { lr, momentum: None, weight_decay: None });
    let mut kept = Some(parameters.alloc_grads());
    Box::new(move || {
        let loss = loss(x.trace(kept.take().ok_or("a step failed")?), &parameters);
        let value = loss.array();
        let mut gradients = loss.backward();
        sgd.update(&mut parameters, &gradients).map_err(|e| format!("{e:?}"))?;
        parameters.zero_grads(&mut gradients);
        kept = Some(gradients);
        Ok(value.into())
    })
}

fn chain<const N: usize>(operators: usize) -> Step {
    let (w, x) = (values::<Rank1<N>>(numbers(1, N, 0.1)), values::<Rank1<N>>(numbers(100, N, 1.0)));
    descend(w, x, CHAIN_RATE, move |mut h, w| {
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
    const BATCH: usize = 32;
    const UNITS: usize = 128;
    /// A quarter of the gates.
    fn gate(gates: Traced<Rank2<BATCH, 512>>, k: usize) -> Traced<Rank2<BATCH, UNITS>> {
        gates.slice((.., k * UNITS..(k + 1) * UNITS)).realize()
    }
    let steps = 32;
    let x = values::<Rank2<1024, 64>>(numbers(100, steps * BATCH * 64, 1.0));
    let y = values::<Rank2<BATCH, UNITS>>(numbers(101, BATCH * UNITS, 0.5));
    let p = (layer::<64, 512>(1), values::<Rank2<UNITS, 512>>(weights(2, UNITS, 512)));
    descend(p, x, RATE, move |x, (input, wh)| {
        // One input projection for all steps.
        let (inputs, tape) = linear(x, input).split_tape();
        let zeros: Values<Rank2<BATCH, UNITS>> = Cpu::default().zeros();
        let (mut h, mut c) = (zeros.clone().put_tape(tape), zeros.retaped::<Tape>());
        for t in 0..steps {
            let input = inputs.retaped::<Tape>().slice((t * BATCH..(t + 1) * BATCH, ..)).realize();
            let gates = h.matmul(wh.clone()) + input;
            let [i, f, g] = [0, 1, 2].map(|k| gate(gates.with_empty_tape(), k));
            let carried = f.sigmoid() * c + i.sigmoid() * g.tanh();
            c = carried.with_empty_tape();
            h = gate(gates, 3).sigmoid() * carried.tanh();
        }
        mse_loss(h, y.clone())
    })
}

const WIDTH: usize = 128;
const TOKENS: usize = 512;
type Hidden = Rank2<TOKENS, WIDTH>;
type Norm = (Values<Rank1<WIDTH>>, Values<Rank1<WIDTH>>);
/// A transformer block: norm, queries with keys and values, output, norm, up and down.
type Block = (Norm, Linear<WIDTH, 384>, Linear<WIDTH, WIDTH>, Norm, Linear<WIDTH, 512>, Linear<512, WIDTH>);

fn norm(x: Traced<Hidden>, (scale, bias): &Norm) -> Traced<Hidden> {
    let x = x.normalize::<Axis<1>>(1e-5) * scale.retaped::<Tape>().broadcast();
    x + bias.retaped::<Tape>().broadcast()
}

/// The heads of queries, keys or values.
fn heads(a: Traced<Rank2<TOKENS, 384>>, k: usize) -> Traced<Rank4<8, 4, 64, 32>> {
    let a = a.slice((.., k * WIDTH..(k + 1) * WIDTH)).realize::<Hidden>();
    a.reshape::<Rank4<8, 64, 4, 32>>().permute()
}

fn block(h: Traced<Hidden>, p: &Block, mask: &Values<Rank2<64, 64>>) -> Traced<Hidden> {
    let a = linear(norm(h.with_empty_tape(), &p.0), &p.1);
    let [q, k] = [0, 1].map(|part| heads(a.with_empty_tape(), part));
    let scores = q.matmul(k.permute::<Rank4<8, 4, 32, 64>, Axes4<0, 1, 3, 2>>()) / 32_f32.sqrt();
    let shares = (scores + mask.retaped::<Tape>().broadcast()).softmax::<Axis<3>>();
    let mixed = shares.matmul(heads(a, 2)).permute::<Rank4<8, 64, 4, 32>, Axes4<0, 2, 1, 3>>();
    let h = h + linear(mixed.reshape::<Hidden>(), &p.2);
    let hidden = linear(norm(h.with_empty_tape(), &p.3), &p.4).fast_gelu();
    h + linear(hidden, &p.5)
}

fn gpt() -> Step {
    let ones = || (Cpu::default().ones(), Cpu::default().zeros());
    let new =
        |seed| -> Block { (ones(), layer(seed), layer(seed + 1), ones(), layer(seed + 2), layer(seed + 3)) };
    let tables = (
        values::<Rank2<256, WIDTH>>(numbers(1, 256 * WIDTH, 0.1)),
        values::<Rank2<64, WIDTH>>(numbers(2, 64 * WIDTH, 0.1)),
    );
    let head = values::<Rank2<WIDTH, 256>>(weights(3, WIDTH, 256));
    let p = (tables, new(10), new(20), ones(), head);
    let words = integers(100, TOKENS, 256).into_iter().map(|word| word as usize).collect();
    let words = Cpu::default().tensor_from_vec(words, (Const::<TOKENS>,));
    let y = values::<Rank2<TOKENS, 256>>(one_hot(&integers(101, TOKENS, 256), 256));
    let mask = (0..64 * 64).map(|i| if i % 64 > i / 64 { -1e9 } else { 0.0 }).collect();
    let mask = values::<Rank2<64, 64>>(mask);
    descend(p, values::<Rank0>(vec![0.0]), RATE, move |x, p| {
        let table = p.0.0.clone().put_tape(x.split_tape().1);
        let h = table.gather(words.clone()).reshape::<Rank3<8, 64, WIDTH>>();
        let h = (h + p.0.1.retaped::<Tape>().broadcast()).reshape::<Hidden>();
        let h = block(block(h, &p.1, &mask), &p.2, &mask);
        cross_entropy_with_logits_loss(norm(h, &p.3).matmul(p.4.clone()), y.clone())
    })
}

fn step(workload: &str) -> Outcome<Step> {
    Ok(match workload {
        "mlp" => {
            let x = values::<Rank2<128, 784>>(numbers(100, 128 * 784, 1.0));
            let y = values::<Rank2<128, 10>>(one_hot(&integers(101, 128, 10), 10));
            let p = (layer::<784, 512>(1), layer::<512, 512>(2), layer::<512, 10>(3));
            descend(p, x, RATE, move |x, p| {
                cross_entropy_with_logits_loss(forward(x, p, Tensor::relu), y.clone())
            })
        }
        "tiny_mlp" => {
            let x = values::<Rank2<4, 4>>(numbers(100, 16, 1.0));
            let y = values::<Rank2<4, 1>>(numbers(101, 4, 1.0));
            let p = (layer::<4, 8>(1), layer::<8, 8>(2), layer::<8, 1>(3));
            descend(p, x, RATE, move |x, p| mse_loss(forward(x, p, Tensor::tanh), y.clone()))
        }
        "chain_small" => chain::<16>(1000),
        "chain_big" => chain::<1_000_000>(20),
        "lstm" => lstm(),
        "gpt" => gpt(),
        "lenet" => return Err("its convolutions need a nightly compiler".into()),
        _ => return Err(format!("no {workload}").into()),
    })
}

fn row(length: usize, step: fn(Traced<Rank0>, &Values<Rank0>) -> Traced<Rank0>) -> Outcome<[Duration; 2]> {
    let leaves = (values::<Rank0>(vec![0.5]), values::<Rank0>(vec![1.01]));
    let mut y = leaves.0.trace(leaves.alloc_grads());
    let start = Instant::now();
    for _ in 0..length {
        y = step(y, &leaves.1);
    }
    let recorded = Instant::now();
    drop(y.backward());
    Ok([recorded - start, recorded.elapsed()])
}

const ROWS: [(&str, Row); 10] = [
    ("elementwise_add", |n| row(n, |y, w| y + w.clone())),
    ("elementwise_sub", |n| row(n, |y, w| y - w.clone())),
    ("elementwise_mul", |n| row(n, |y, w| y * w.clone())),
    ("elementwise_div", |n| row(n, |y, w| y / w.clone())),
    ("scale", |n| row(n, |y, _| y * 1.01)),
    ("tanh", |n| row(n, |y, _| y.tanh())),
    ("sigmoid", |n| row(n, |y, _| y.sigmoid())),
    ("exp", |n| row(n, |y, _| y.exp())),
    ("sin", |n| row(n, |y, _| y.sin())),
    ("relu", |n| row(n, |y, _| y.relu())),
];

fn main() -> ExitCode {
    peer::run("dfdx", step, &ROWS)
}
