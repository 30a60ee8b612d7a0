//! Losses of published models.

use autobwd::Expr;
use autobwd_ops::Math;

/// The loss of a causal language model: the mean cross entropy of `logits`, `[batch, length, vocabulary]`, at each token
/// against the label of the next one. Labels, int64 `[batch, length]`, are the tokens themselves; −100 is not counted.
///
/// ```
/// use autobwd::DType;
/// use autobwd_models::{Pretrained, next_token_loss};
/// use autobwd_ops::optim::{AdamW, Optimizer};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gpt2");
/// let model = Pretrained::open(folder).load()?;
/// let net = model.builder();
/// let labels = net.input("labels", DType::I64, &[-1, -1]);
/// let loss = next_token_loss(&net.expr(&model.fetches[0]), &labels);
/// AdamW::new(1e-3).minimize(&loss)?.complete()?;
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn next_token_loss(logits: &Expr, labels: &Expr) -> Expr {
    let before_last = logits.slice_to(1, &0.into(), &(labels.dim(1) - 1));
    let next = labels.slice(1, 1, i32::MAX);
    token_loss(&before_last, &next)
}

/// The mean cross entropy of `logits`, `[.., classes]`, against labels, int64 `[..]`, for each token or each row; −100 is
/// not counted. This is the loss of masked language models, of decoders that are fed their labels one token late, and of
/// classifiers.
#[track_caller]
pub fn token_loss(logits: &Expr, labels: &Expr) -> Expr {
    logits.mean_cross_entropy(&labels.unsqueeze(&[-1]))
}
