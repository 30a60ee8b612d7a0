//! The models: GPT-2 of 124 million parameters, an encoder of the shape of BERT's base model, two networks of images, and
//! two with control flow.

use autobwd::{
    Backward, Builder, DType, Expr, New, Result, Scope, Tensor,
    backward::{Recompute, RecomputeReport},
    emit,
    exec::MemoryUse,
};
use autobwd_benches::workload::{integers, numbers};
use autobwd_ops::{
    Math,
    control::{cond, scan},
    matmul::MatmulV2,
    nn::{Embedding, LayerNorm, Linear, MultiHeadAttention},
    optim::{AdamW, MemoryBudget, Momentum, Optimizer},
};
use clap::ValueEnum;

use crate::image_models;

/// A model with its data.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum PublishedModel {
    /// GPT-2: 12 layers of 768 units, 50,257 words, 4 rows of 64 words, AdamW.
    Gpt2,
    /// An encoder: 12 layers of 768 units, 30,522 words, 4 rows of 128 words, AdamW.
    Bert,
    /// ResNet-18: 8 images of 112 × 112, 1,000 classes, momentum.
    Resnet18,
    /// MobileNetV3, the large one: 8 images of 112 × 112, 1,000 classes, momentum.
    MobilenetV3,
    /// Two recurrences of 128 steps with layers between them: batch 64, 512 units, AdamW.
    Recurrence,
    /// 12 layers of 1,024 units, each with a branch that data decides: 2,048 rows, AdamW.
    Branches,
}

/// A training step whose data is in the scope.
pub(crate) struct TrainingStep {
    pub(crate) net: Builder,
    pub(crate) scope: Scope,
    pub(crate) loss: String,
    /// If it has a budget.
    pub(crate) budgeted: Option<BudgetedStep>,
}

/// A step within a budget.
pub(crate) struct BudgetedStep {
    pub(crate) memory: MemoryUse,
    pub(crate) recomputed: RecomputeReport,
}

impl BudgetedStep {
    /// The share of the forward pass's work that is repeated.
    pub(crate) fn forward_again(&self) -> f64 {
        self.recomputed.planned.map_or(0.0, |planned| {
            planned.again.picoseconds() as f64 / planned.forward.picoseconds().max(1) as f64
        })
    }
}

impl PublishedModel {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |model| model.get_name().into())
    }

    /// The number of words of a row.
    pub(crate) fn length(self, given: Option<usize>) -> usize {
        given.unwrap_or(if let PublishedModel::Gpt2 = self { 64 } else { 128 })
    }

    /// The step of rows of this length.
    pub(crate) fn step(
        self,
        dtype: DType,
        length: Option<usize>,
        memory: StepMemory<'_>,
    ) -> Result<TrainingStep> {
        let (net, mut scope) = (Builder::new(), Scope::new());
        let length = self.length(length);
        let loss = match self {
            PublishedModel::Gpt2 => {
                Transformer { words: 50_257, batch: 4, length, causal: true }.loss(&net, &mut scope)
            }
            PublishedModel::Bert => {
                Transformer { words: 30_522, batch: 4, length, causal: false }.loss(&net, &mut scope)
            }
            PublishedModel::Resnet18 => image_models::resnet18(&net, &mut scope),
            PublishedModel::MobilenetV3 => image_models::mobilenet_v3(&net, &mut scope),
            PublishedModel::Recurrence => recurrence(&net, &mut scope),
            PublishedModel::Branches => branches(&net, &mut scope),
        }?;
        let budgeted = match self {
            PublishedModel::Resnet18 | PublishedModel::MobilenetV3 => {
                let momentum = Momentum { rate: 0.01, momentum: 0.9, nesterov: false, lazy: false };
                minimize(momentum, &loss, dtype, memory)
            }
            _ => minimize(AdamW::new(1e-4), &loss, dtype, memory),
        }?;
        let loss = loss.name();
        Ok(TrainingStep { net, scope, loss, budgeted })
    }
}

fn minimize(
    optimizer: impl Optimizer,
    loss: &Expr,
    dtype: DType,
    memory: StepMemory<'_>,
) -> Result<Option<BudgetedStep>> {
    match dtype {
        DType::F32 => memory.minimize(&optimizer, loss),
        _ => memory.minimize(&optimizer.mixed_precision(dtype), loss),
    }
}

/// What a step may keep in memory.
#[derive(Clone, Copy)]
pub(crate) enum StepMemory<'a> {
    /// Everything that the backward pass reads.
    Everything,
    /// What fits into this number of bytes on this number of threads.
    Within(usize, usize),
    /// Everything but these variables.
    Without(&'a [&'a str]),
}

impl StepMemory<'_> {
    fn minimize(self, optimizer: &impl Optimizer, loss: &Expr) -> Result<Option<BudgetedStep>> {
        let recompute = match self {
            StepMemory::Everything => Recompute::None,
            StepMemory::Without(names) => Recompute::Without(names),
            StepMemory::Within(bytes, threads) => {
                let budget = MemoryBudget::bytes(bytes).threads(threads);
                let (updates, memory) = optimizer.minimize_within(loss, &Backward::default(), &budget)?;
                let recomputed = updates.recomputed.clone();
                updates.complete()?;
                return Ok(Some(BudgetedStep { memory, recomputed }));
            }
        };
        optimizer.minimize_with(loss, &Backward { recompute, ..Backward::default() })?.complete()?;
        Ok(None)
    }
}

const WIDTH: usize = 768;
const HEADS: usize = 12;
const LAYERS: i32 = 12;

/// Layers of attention and of two linear layers, normalised before each, with words as input and output.
struct Transformer {
    words: usize,
    batch: usize,
    length: usize,
    causal: bool,
}

impl Transformer {
    fn loss(&self, net: &Builder, scope: &mut Scope) -> Result<Expr> {
        let n = self.batch * self.length;
        let ids = |name: &str, seed: u32, dims: &[usize], bound: usize, scope: &mut Scope| {
            scope.set(name, Tensor::from_vec(dims, integers(seed, dims.iter().product(), bound as u32))?);
            Result::Ok(net.persistable(name, DType::I64, dims, Expr::clone))
        };
        let words = ids("words", 1, &[self.batch, self.length], self.words, scope)?;
        let next = ids("next", 2, &[n, 1], self.words, scope)?;
        let positions: Vec<i64> = (0..self.length as i64).collect();
        scope.set("positions", Tensor::from_vec([self.length], positions)?);
        let positions = net.persistable("positions", DType::I64, &[self.length], Expr::clone);
        let table = Embedding::builder(net, self.words, WIDTH).seed(1).build();
        let mut x =
            table.forward(&words) + Embedding::builder(net, 1024, WIDTH).seed(2).build().forward(&positions);
        for layer in 0..LAYERS {
            let attention = MultiHeadAttention::builder(net, WIDTH, HEADS).seed(10 * layer + 3);
            let attention = if self.causal { attention.causal() } else { attention }.build();
            x = &x + attention.forward(&LayerNorm::builder(net, WIDTH).build().forward(&x));
            let hidden = LayerNorm::builder(net, WIDTH).build().forward(&x);
            let wide = Linear::builder(net, WIDTH, 4 * WIDTH).seed(10 * layer + 4).build();
            let narrow = Linear::builder(net, 4 * WIDTH, WIDTH).seed(10 * layer + 5).build();
            x = &x + narrow.forward(&wide.forward(&hidden).gelu(true));
        }
        let x = LayerNorm::builder(net, WIDTH).build().forward(&x).reshape(&[n as i32, WIDTH as i32]);
        let (x, y) = ((&x).into(), (&table.weight).into());
        let scores = emit(MatmulV2 { x, y, out: New, trans_x: false, trans_y: true }).out;
        Ok(scores.cross_entropy(&next).mean())
    }
}

/// Rows of random numbers, as a value that the program keeps.
fn data(net: &Builder, scope: &mut Scope, dims: &[usize]) -> Result<Expr> {
    scope.set("x", Tensor::from_vec(dims, numbers(1, dims.iter().product(), 1.0))?);
    Ok(net.persistable("x", DType::F32, dims, Expr::clone))
}

fn recurrence(net: &Builder, scope: &mut Scope) -> Result<Expr> {
    let (steps, batch, units) = (128, 64, 512);
    let mut h = data(net, scope, &[steps, batch, units])?;
    for layer in 0..2 {
        for seed in 0..4 {
            h = Linear::builder(net, units, units).seed(10 * layer + seed).build().forward(&h).tanh();
        }
        let again = Linear::builder(net, units, units).seed(10 * layer + 5).build();
        let first = h.mean_over(&[0]);
        let step = |x: &[Expr], h: &[Expr]| {
            let next = (again.forward(&h[0]) + &x[0]).tanh();
            (vec![next.clone()], vec![next])
        };
        h = scan(&[h], &[first], false, step).swap_remove(0);
    }
    Ok(h.square().mean())
}

fn branches(net: &Builder, scope: &mut Scope) -> Result<Expr> {
    let (rows, units) = (2048, 1024);
    let mut h = data(net, scope, &[rows, units])?;
    for layer in 0..12 {
        h = Linear::builder(net, units, units).seed(layer).build().forward(&h);
        let sum = h.sum(&[]);
        let is_small = sum.less_than(&(&sum * 0.0));
        h = cond(&is_small, || vec![h.sigmoid()], || vec![h.tanh()]).swap_remove(0);
        h = Linear::builder(net, units, units).seed(layer + 100).build().forward(&h).tanh();
    }
    Ok(h.square().mean())
}
