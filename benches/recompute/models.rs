//! The networks, their data in the scope.

use autobwd::{Builder, DType, Executor, Expr, New, Result, Scope, Tensor, emit, tensor::Element};
use autobwd_ops::{Init, Math, nn::Linear, norm::LayerNormOp};

/// A network with its loss.
pub(crate) struct RecomputeModel {
    pub(crate) name: &'static str,
    pub(crate) net: Builder,
    pub(crate) scope: Scope,
    pub(crate) loss: String,
}

impl RecomputeModel {
    fn new(
        name: &'static str,
        describe: impl FnOnce(&Builder, &mut Scope) -> Result<Expr>,
    ) -> Result<RecomputeModel> {
        let (net, mut scope) = (Builder::new(), Scope::new());
        let loss = describe(&net, &mut scope)?.name();
        Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
        Ok(RecomputeModel { name, net, scope, loss })
    }
}

fn data<T: Element>(
    net: &Builder,
    scope: &mut Scope,
    name: &str,
    dims: &[usize],
    element: impl Fn(usize) -> T,
) -> Result<Expr> {
    scope.set(name, Tensor::from_vec(dims, (0..dims.iter().product()).map(element).collect())?);
    Ok(net.persistable(name, T::DTYPE, dims, Expr::clone))
}

/// 50 layers of 128 with relu, batch 1,024.
pub(crate) fn deep() -> Result<RecomputeModel> {
    RecomputeModel::new("deep", |net, scope| {
        let mut h = data(net, scope, "x", &[1024, 128], |i| (i as f32 * 0.37).sin())?;
        let labels = data(net, scope, "labels", &[1024, 1], |i| i as i64 % 10)?;
        for seed in 0..50 {
            h = Linear::builder(net, 128, 128)
                .init(Init::KaimingUniform)
                .seed(2 * seed)
                .build()
                .forward(&h)
                .relu();
        }
        Ok(Linear::builder(net, 128, 10).build().forward(&h).cross_entropy(&labels).mean())
    })
}

/// Batch size, sequence length, width, and heads.
const BATCH: usize = 8;
const LENGTH: usize = 64;
const WIDTH: usize = 128;
const HEADS: usize = 4;
const VOCABULARY: usize = 256;

/// Two transformer blocks with causal attention.
pub(crate) fn transformer() -> Result<RecomputeModel> {
    RecomputeModel::new("transformer", |net, scope| {
        let ids = data(net, scope, "ids", &[BATCH, LENGTH], |i| (i * 7 % VOCABULARY) as i64)?;
        let labels = data(net, scope, "labels", &[BATCH * LENGTH, 1], |i| (i * 7 + 7) as i64 % 256)?;
        let hidden = |i: usize| if i % LENGTH > i / LENGTH { -1e9 } else { 0.0_f32 };
        let mask = data(net, scope, "mask", &[LENGTH, LENGTH], hidden)?;
        let weight = |name: &str, dims: &[usize]| {
            net.parameter(name, DType::F32, dims, |w| Init::Uniform(-0.05, 0.05).emit(w, 3))
        };
        let positions = weight("positions", &[LENGTH, WIDTH]);
        let mut h = ids.embedding(&weight("words", &[VOCABULARY, WIDTH])) + positions;
        h = h.reshape(&[-1, WIDTH as i32]);
        for _ in 0..2 {
            h = &h + attention(net, &norm(net, &h), &mask);
            let wide = gelu(&dense(net, &norm(net, &h), WIDTH, 4 * WIDTH));
            h = &h + dense(net, &wide, 4 * WIDTH, WIDTH);
        }
        Ok(dense(net, &norm(net, &h), WIDTH, VOCABULARY).cross_entropy(&labels).mean())
    })
}

fn dense(net: &Builder, x: &Expr, inputs: usize, outputs: usize) -> Expr {
    Linear::builder(net, inputs, outputs).seed(5).build().forward(x)
}

fn norm(net: &Builder, x: &Expr) -> Expr {
    let name = net.layer_name("norm");
    let parameter = |what: &str, value: f32| {
        net.parameter(&format!("{name}.{what}"), DType::F32, &[WIDTH], |p| {
            Init::Constant(value.into()).emit(p, 0)
        })
    };
    let op = LayerNormOp {
        x: x.into(),
        scale: Some((&parameter("scale", 1.0)).into()),
        bias: Some((&parameter("bias", 0.0)).into()),
        y: New,
        mean: New,
        variance: New,
        begin_norm_axis: 1,
        epsilon: 1e-5,
    };
    emit(op).y
}

fn attention(net: &Builder, x: &Expr, mask: &Expr) -> Expr {
    let (batch, length, heads) = (BATCH as i32, LENGTH as i32, HEADS as i32);
    let size = (WIDTH / HEADS) as i32;
    let all =
        dense(net, x, WIDTH, 3 * WIDTH).reshape(&[batch, length, 3, heads, size]).transpose(&[2, 0, 3, 1, 4]);
    let part = |i: i32| all.slice(0, i, i + 1).reshape(&[batch, heads, length, size]);
    let (q, k, v) = (part(0), part(1), part(2));
    let scores = q.matmul(&k.transpose(&[0, 1, 3, 2])) * (1.0 / f64::from(size).sqrt());
    let mixed = (scores + mask).softmax(-1).matmul(&v);
    dense(net, &mixed.transpose(&[0, 2, 1, 3]).reshape(&[-1, WIDTH as i32]), WIDTH, WIDTH)
}

/// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))` (Hendrycks and Gimpel, 2016).
fn gelu(x: &Expr) -> Expr {
    let cubic = x + x.square() * x * 0.044_715;
    let gate = (cubic * (2.0 / std::f64::consts::PI).sqrt()).tanh() + 1.0;
    x * 0.5 * gate
}
