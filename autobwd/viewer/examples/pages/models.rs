//! Training programs to look at.

use autobwd::{Builder, DType, Expr, Meta, Program, Result};
use autobwd_ops::{
    Init, Math,
    control::{cond, static_rnn, while_loop},
    nn::{Embedding, LayerNorm, Linear, LstmCell, MultiHeadAttention, RecurrentCell},
    optim::{Adam, Optimizer, Sgd},
};

/// A program with the shapes of its feeds.
pub(crate) struct Model {
    pub(crate) program: Program,
    pub(crate) feeds: Vec<(&'static str, Meta)>,
}

/// A classifier of 8 × 8 pixels with two hidden layers of that many units.
pub(crate) fn digits(hidden: [usize; 2], rate: f32) -> Result<Model> {
    let net = Builder::new();
    let linear = |inputs, outputs| Linear::builder(&net, inputs, outputs).build();
    let pixels = net.input("pixels", DType::F32, &[-1, 64]);
    let label = net.input("label", DType::I64, &[-1, 1]);
    let first = linear(64, hidden[0]).forward(&pixels).relu();
    let second = linear(hidden[0], hidden[1]).forward(&first).relu();
    let scores = linear(hidden[1], 10).forward(&second);
    Adam::new(rate).minimize(&scores.cross_entropy(&label).mean())?.complete()?;
    let feeds = vec![("pixels", Meta::new(DType::F32, [32, 64])), ("label", Meta::new(DType::I64, [32, 1]))];
    Ok(Model { program: net.program()?.clone(), feeds })
}

/// A transformer that predicts the next of 256 words.
pub(crate) fn gpt(layers: usize) -> Result<Model> {
    const WIDTH: usize = 64;
    const LENGTH: usize = 32;
    let net = Builder::new();
    let words = net.input("words", DType::I64, &[-1, LENGTH as i64]);
    let next = net.input("next", DType::I64, &[-1, LENGTH as i64, 1]);
    let position =
        net.parameter("position", DType::F32, &[LENGTH, WIDTH], |p| Init::Uniform(-0.1, 0.1).emit(p, 0));
    let mut h = Embedding::builder(&net, 256, WIDTH).build().forward(&words) + position;
    for _ in 0..layers {
        let normal = LayerNorm::builder(&net, WIDTH).build().forward(&h);
        h = &h + MultiHeadAttention::builder(&net, WIDTH, 4).causal().build().forward(&normal);
        let normal = LayerNorm::builder(&net, WIDTH).build().forward(&h);
        let hidden = Linear::builder(&net, WIDTH, 4 * WIDTH).build().forward(&normal).gelu(true);
        h = &h + Linear::builder(&net, 4 * WIDTH, WIDTH).build().forward(&hidden);
    }
    let last = LayerNorm::builder(&net, WIDTH).build().forward(&h);
    let scores = Linear::builder(&net, WIDTH, 256).build().forward(&last);
    Adam::new(0.001).minimize(&scores.cross_entropy(&next).mean())?.complete()?;
    let shape = [8, LENGTH];
    let feeds =
        vec![("words", Meta::new(DType::I64, shape)), ("next", Meta::new(DType::I64, [8, LENGTH, 1]))];
    Ok(Model { program: net.program()?.clone(), feeds })
}

/// An LSTM whose step is a block, with a branch and a loop on its last state.
pub(crate) fn lstm() -> Result<Model> {
    const UNITS: usize = 32;
    let net = Builder::new();
    let uniform = |w: &Expr| Init::Uniform(-0.1, 0.1).emit(w, 0);
    let x = net.input("x", DType::F32, &[-1, 16, 8]);
    let target = net.input("target", DType::F32, &[16, UNITS as i64]);
    let zeros = net.input("zeros", DType::F32, &[16, UNITS as i64]);
    let input_weight = net.parameter("wx", DType::F32, &[8, 4 * UNITS], uniform);
    let state_weight = net.parameter("wh", DType::F32, &[UNITS, 4 * UNITS], uniform);
    let states = static_rnn(&net, false, |rnn| {
        let x = rnn.step_input(&x);
        let (h, c) = (rnn.memory(&zeros), rnn.memory(&zeros));
        let next = LstmCell::step(&x.matmul(&input_weight), &[h.clone(), c.clone()], &state_weight);
        rnn.update_memory(&h, &next[0]);
        rnn.update_memory(&c, &next[1]);
        rnn.last_output(&h);
    });
    let last = &states[0];
    let small = last.square().mean().less_than(&net.input("limit", DType::F32, &[]));
    let scaled = cond(&small, || vec![last * 2.0], || vec![last.tanh()]);
    let grown = while_loop(
        &[scaled[0].clone()],
        |v| v[0].square().mean().less_than(&(v[0].square().mean() * 0.5)),
        |v| vec![&v[0] * 1.5],
    );
    Sgd { rate: 0.1 }.minimize(&grown[0].square_error(&target).mean())?.complete()?;
    let state = Meta::new(DType::F32, [16, UNITS]);
    let feeds = vec![
        ("x", Meta::new(DType::F32, [20, 16, 8])),
        ("target", state.clone()),
        ("zeros", state),
        ("limit", Meta::new(DType::F32, [0_usize; 0])),
    ];
    Ok(Model { program: net.program()?.clone(), feeds })
}

/// A chain of operators of different kinds, with its backward pass.
pub(crate) fn chain(operators: usize) -> Result<Model> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[16], |w| Init::Constant(0.1).emit(w, 0));
    let mut h = net.input("x", DType::F32, &[-1, 16]);
    for i in 0..operators {
        h = match i % 3 {
            0 => h.tanh(),
            1 => h * 1.01,
            _ => h + &w,
        };
    }
    Sgd { rate: 0.1 }.minimize(&h.mean())?.complete()?;
    Ok(Model { program: net.program()?.clone(), feeds: vec![("x", Meta::new(DType::F32, [4, 16]))] })
}
