//! Losses of published models.

use autobwd::{DType, Expr, New, Result, emit, op::Op as _};
use autobwd_ops::{
    Math,
    loss::{LinearCrossEntropy, LinearCrossEntropyAttrs},
    matmul::MatmulV2,
};

/// The label of tokens that are not counted.
pub(crate) const IGNORED: i64 = -100;

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

/// The sum of the cross entropies of `logits`, `[.., classes]`, at labels, int64 `[..]`, in float32; −100 is not counted.
/// Logits that are a product in float32 are not in memory together ([`LinearCrossEntropy`]), if nothing else reads them.
///
/// Divided by the number of counted labels of several batches, it is the loss of a step that accumulates their
/// gradients: the mean of the means of batches is another number.
#[track_caller]
pub(crate) fn summed_token_loss(logits: &Expr, labels: &Expr) -> Result<Expr> {
    let net = logits.check()?.builder();
    let factors = {
        let program = net.program()?;
        let product =
            program.root().ops.iter().find(|op| op.writes().any(|var| program.name(var) == logits.name()));
        product.filter(|op| op.is::<MatmulV2>()).map(MatmulV2::from_desc).transpose()?.map(|product| {
            let MatmulV2 { x, y, trans_x, trans_y, .. } = product;
            let [x, y] = [x, y].map(|var| program.name(var).to_string());
            (x, y, trans_x, trans_y)
        })
    };
    let of_product = |(x, weight, trans_x, trans_weight): (String, String, bool, bool)| {
        let [x, weight] = [x, weight].map(|name| net.expr(&name));
        let is_linear = !trans_x && weight.dims().len() == 2 && x.dtype() == DType::F32;
        let cross_entropy = LinearCrossEntropyAttrs {
            trans_weight,
            ignore_index: IGNORED as i32,
            label_smoothing: 0.0,
            z_loss: 0.0,
        };
        is_linear.then(|| {
            emit(LinearCrossEntropy {
                x: x.into(),
                weight: weight.into(),
                bias: None,
                label: labels.into(),
                class_weight: None,
                loss: New,
                log_sum: New,
                cross_entropy,
            })
            .loss
        })
    };
    let losses = factors.and_then(of_product);
    let losses = losses.unwrap_or_else(|| logits.cast(DType::F32).cross_entropy(&labels.unsqueeze(&[-1])));
    Ok(losses.sum(&[]))
}
