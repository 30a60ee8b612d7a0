//! Training steps whose allocations are counted.

use autobwd::{Builder, DType, Executor, Expr, New, Result, Scope, Session, Tensor};
use autobwd_benches::workload::Workload;
use autobwd_ops::{
    Init, Math,
    control::{static_rnn, while_loop},
    fill::FillConstant,
    nn::{Conv2d, Embedding, LayerNorm, Linear, Lstm, MultiHeadAttention},
    optim::{Adam, Momentum, Optimizer, Sgd},
};

pub(crate) mod counting;

pub(crate) const MLP: [usize; 4] = [784, 512, 512, 10];
pub(crate) const DIGITS: [usize; 4] = [64, 128, 64, 10];

pub(crate) fn sgd(loss: &Expr) -> Result<()> {
    Sgd { rate: 0.01 }.minimize(loss).map(drop)
}
pub(crate) fn momentum(loss: &Expr) -> Result<()> {
    Momentum { rate: 0.01, momentum: 0.9, nesterov: true, lazy: false }.minimize(loss).map(drop)
}
pub(crate) fn adam(loss: &Expr) -> Result<()> {
    Adam::new(0.001).minimize(loss).map(drop)
}

/// A training step with data and the names of its feeds.
pub(crate) struct Case {
    pub(crate) net: Builder,
    pub(crate) scope: Scope,
    feeds: Vec<(&'static str, Tensor)>,
    loss: String,
}

pub(crate) fn classifier(
    sizes: &[usize],
    batch: usize,
    optimizer: &dyn Fn(&Expr) -> Result<()>,
) -> Result<Case> {
    Case::new(batch, &[sizes[0]], sizes[sizes.len() - 1], optimizer, &|net, x| {
        let mut h = x.clone();
        for (l, io) in sizes.windows(2).enumerate() {
            let layer =
                Linear::builder(net, io[0], io[1]).init(Init::KaimingUniform).seed(l as i32 * 2).build();
            h = layer.forward(&h);
            h = if l + 2 < sizes.len() { h.relu() } else { h };
        }
        h
    })
}

/// An image classifier with single-channel, grouped, 1 × 1 and depthwise convolutions.
pub(crate) fn images(batch: usize, optimizer: &dyn Fn(&Expr) -> Result<()>) -> Result<Case> {
    Case::new(batch, &[1, 28, 28], 10, optimizer, &|net, x| {
        let h = Conv2d::builder(net, 1, 6, 5).padding(2).seed(0).build().forward(x).max_pool2d(2, 2);
        let h = Conv2d::builder(net, 6, 16, 5).groups(2).seed(2).build().forward(&h).max_pool2d(2, 2);
        let h = Conv2d::builder(net, 16, 24, 1).seed(4).build().forward(&h);
        let h = Conv2d::builder(net, 24, 24, 3).groups(24).seed(6).build().forward(&h).avg_pool2d(3, 1);
        Linear::builder(net, 24, 10).seed(8).build().forward(&h.reshape(&[-1, 24]))
    })
}

/// A sequence classifier with attention and a recurrence.
pub(crate) fn sequences(batch: usize, optimizer: &dyn Fn(&Expr) -> Result<()>) -> Result<Case> {
    Case::new(batch, &[70, 32], 10, optimizer, &|net, x| {
        let seen = MultiHeadAttention::builder(net, 32, 4).causal().seed(0).build().forward(x);
        let h = LayerNorm::builder(net, 32).build().forward(&(x + &seen));
        let h = Linear::builder(net, 32, 64).seed(8).build().forward(&h).gelu(true);
        let (hidden, _) = Lstm::builder(net, 64, 48).seed(10).build().forward(&h.transpose(&[1, 0, 2]));
        Linear::builder(net, 48, 10).seed(12).build().forward(&hidden.slice(0, -1, 70).squeeze(&[0]))
    })
}

impl Case {
    pub(crate) fn new(
        batch: usize,
        dims: &[usize],
        classes: usize,
        optimizer: &dyn Fn(&Expr) -> Result<()>,
        model: &dyn Fn(&Builder, &Expr) -> Expr,
    ) -> Result<Case> {
        let net = Builder::new();
        let shape: Vec<i64> = [-1].into_iter().chain(dims.iter().map(|d| *d as i64)).collect();
        let x = net.input("x", DType::F32, &shape);
        let y = net.input("y", DType::I64, &[-1, 1]);
        let loss = model(&net, &x).cross_entropy(&y).mean();
        optimizer(&loss)?;
        let mut scope = Scope::new();
        Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
        let dims: Vec<usize> = [batch].into_iter().chain(dims.iter().copied()).collect();
        let pixels = (0..dims.iter().product()).map(|i: usize| (i as f32 * 0.37).sin()).collect();
        let labels = (0..batch).map(|i| (i % classes) as i64).collect();
        let feeds = vec![
            ("x", Tensor::from_vec(dims.as_slice(), pixels)?),
            ("y", Tensor::from_vec([batch, 1], labels)?),
        ];
        Ok(Case { net, scope, feeds, loss: loss.name() })
    }

    pub(crate) fn of(workload: Workload) -> Result<Case> {
        let model = workload.model()?;
        Ok(Case { net: model.net, scope: model.scope, feeds: vec![], loss: model.loss })
    }

    pub(crate) fn session(&mut self, threads: usize) -> Result<Session> {
        let feeds: Vec<_> = self.feeds.iter().map(|(n, t)| (*n, t.meta())).collect();
        let program = self.net.program()?;
        Executor::with_threads(threads).prepare(&program, &mut self.scope, &feeds, &[&self.loss])
    }

    pub(crate) fn step(&mut self, session: &mut Session) -> Result<f64> {
        for (name, tensor) in &self.feeds {
            session.feed(name, tensor)?;
        }
        session.run(&mut self.scope)?;
        session.item(&self.loss)
    }
}

/// A step with an embedding, some of whose rows are looked up twice.
pub(crate) fn words(optimizer: &dyn Fn(&Expr) -> Result<()>) -> Result<Case> {
    let net = Builder::new();
    let ids = net.input("ids", DType::I64, &[-1]);
    let table = Embedding::builder(&net, 3_000, 32).sparse().build();
    let both = table.forward(&ids).tanh() * table.forward(&ids);
    let loss = both.mean();
    optimizer(&loss)?;
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let numbers = (0..4_000_i64).map(|i| i * 7 % 2_999).collect();
    Ok(Case { net, scope, feeds: vec![("ids", Tensor::from_vec([4_000], numbers)?)], loss: loss.name() })
}

pub(crate) const SIDE: usize = 48;

/// `h ← tanh(h · w + x)`, `count` times, in a loop or as a recurrence, with its loss and its updates.
pub(crate) fn steps(count: usize, is_loop: bool) -> Result<Case> {
    let net = Builder::new();
    let dims = [SIDE, SIDE];
    let w = net.parameter("w", DType::F32, &dims, |w| Init::Uniform(-0.2, 0.2).emit(w, 1));
    let first = net.parameter("first", DType::F32, &dims, |h| Init::Uniform(-1.0, 1.0).emit(h, 2));
    let x = net.input("x", DType::F32, &[-1, 1]);
    let step = |h: &Expr, x: &Expr| (h.matmul(&w) + x.mean()).tanh();
    let last = if is_loop {
        let numbers = [0.0, count as f32].map(|value| {
            let (shape, dtype, str_value) = (vec![1], DType::I64, String::new());
            net.emit(FillConstant { shape, dtype, value, str_value, ..FillConstant::of(New) })
        });
        let [zero, end] = numbers;
        let (zero, end) = (zero.out, end.out);
        let x = x.mean();
        let body = |v: &[Expr]| vec![&v[0] + 1.0, step(&v[1], &x)];
        while_loop(&[zero, first], |v| v[0].less_than(&end), body).swap_remove(1)
    } else {
        static_rnn(&net, false, |rnn| {
            let (x, h) = (rnn.step_input(&x), rnn.memory(&first));
            rnn.update_memory(&h, &step(&h, &x));
            rnn.last_output(&h)
        })
        .swap_remove(0)
    };
    let loss = last.square().mean();
    sgd(&loss)?;
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::zeros(DType::F32, &[if is_loop { 1 } else { count }, 1])?;
    Ok(Case { net, scope, feeds: vec![("x", x)], loss: loss.name() })
}
