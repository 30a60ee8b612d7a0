//! One vector for a text.

use autobwd::Expr;
use autobwd_ops::{Math, positions};

use crate::token_loss;

/// Added to squares of norms, so that a vector of zeros has a direction.
const EPSILON: f64 = 1e-24;

/// The mean of the states of a text's tokens, `Σ mask · states / Σ mask`, `[batch, width]`, for `states` of `[batch,
/// length, width]` and a mask of `[batch, length]`, 0 for padding (Reimers and Gurevych, 2019).
///
/// ```
/// use autobwd::{Executor, Tensor};
/// use autobwd_models::{Pretrained, mean_pooling};
///
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bert");
/// let mut model = Pretrained::open(folder).input("attention_mask").load()?;
/// let net = model.builder();
/// // Of a model such as all-MiniLM-L6-v2: `last_hidden_state`.
/// let vectors = mean_pooling(&net.expr(&model.fetches[0]), &net.expr("attention_mask"));
/// let ids = Tensor::from_vec([2, 3], vec![2_i64, 40, 3, 2, 3, 0])?;
/// let mask = Tensor::from_vec([2, 3], vec![1_i64, 1, 1, 1, 1, 0])?;
/// let feeds: [(&str, &dyn autobwd::Feed); 2] = [("input_ids", &ids), ("attention_mask", &mask)];
/// let found = Executor::new().run(&net.program()?, &mut model.scope, &feeds, &[&vectors.name()])?;
/// assert_eq!(found[0].dims()[0], 2);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn mean_pooling(states: &Expr, mask: &Expr) -> Expr {
    let mask = mask.cast(states.dtype()).unsqueeze(&[-1]);
    (states * &mask).sum(&[1]) / mask.sum(&[1])
}

/// The loss by which vectors of texts, `[batch, width]`, come near to the vectors of the texts that belong to them, and
/// far from all others of the batch: the mean cross entropy of `scale · cos(first, second)` at the diagonal (Henderson et
/// al., 2017). The scale is 20 in sentence-transformers.
///
/// ```
/// use autobwd::Tensor;
/// use autobwd_models::contrastive_loss;
/// let tape = autobwd::eager();
/// let vectors = tape.constant(Tensor::from_vec([2, 2], vec![3.0_f64, 0.0, 0.0, 1.0])?);
/// let swapped = tape.constant(Tensor::from_vec([2, 2], vec![0.0_f64, 2.0, 2.0, 0.0])?);
/// let right = contrastive_loss(&vectors, &vectors, 20.0).item()?;
/// assert!((right - (1.0 + (-20.0_f64).exp()).ln()).abs() < 1e-12);
/// assert!(contrastive_loss(&vectors, &swapped, 20.0).item()? > 19.9);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn contrastive_loss(first: &Expr, second: &Expr, scale: f64) -> Expr {
    let direction = |x: &Expr| x / (x.square().sum_keepdim(&[-1]) + EPSILON).sqrt();
    let cosines = direction(first).matmul(&direction(second).transpose(&[1, 0]));
    token_loss(&(cosines * scale), &positions(first.builder(), &first.dim(0)))
}
