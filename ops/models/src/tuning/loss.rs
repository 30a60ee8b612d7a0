//! The loss of a fine-tuning.

use autobwd::{DType, Expr, New, Result, emit, op::Op as _, program::Var};
use autobwd_ops::{
    Math,
    loss::{LinearCrossEntropy, LinearCrossEntropyAttrs},
    matmul::MatmulV2,
};

/// The label of tokens that are not counted.
pub(super) const IGNORED: i64 = -100;

/// The sum of the cross entropies of `logits`, `[.., classes]`, at labels, int64 `[..]`, in float32; −100 is not counted.
/// Logits that are a product are not in memory together: that takes no longer, and less memory.
///
/// Divided by the number of counted labels of several batches, it is the loss of a step that accumulates their
/// gradients: the mean of the means of batches is another number. If it `is_learned` by what comes before a frozen product,
/// the gradient is computed along with the loss.
#[track_caller]
pub(super) fn summed_token_loss(logits: &Expr, labels: &Expr, is_learned: bool) -> Result<Expr> {
    logits.check()?;
    let tiled = tiled_losses(logits, labels, is_learned)?;
    let losses = tiled.unwrap_or_else(|| logits.cast(DType::F32).cross_entropy(&labels.unsqueeze(&[-1])));
    Ok(losses.sum(&[]))
}

/// The losses of logits that are a product, by [`LinearCrossEntropy`].
#[track_caller]
fn tiled_losses(logits: &Expr, labels: &Expr, is_learned: bool) -> Result<Option<Expr>> {
    let net = logits.builder();
    let name = logits.name();
    let factors = {
        let program = net.program()?;
        let product = program.root().ops.iter().find(|op| op.writes().any(|var| program.name(var) == name));
        let product = product.filter(|op| op.is::<MatmulV2>()).map(MatmulV2::from_desc).transpose()?;
        let named = |var: Var| program.name(var).to_string();
        product
            .filter(|product| !product.trans_x)
            .map(|MatmulV2 { x, y, trans_y, .. }| (named(x), named(y), trans_y))
    };
    let Some((x, weight, trans_weight)) = factors else { return Ok(None) };
    let (x, weight) = (net.expr(&x), net.expr(&weight));
    if weight.dims().len() != 2 {
        return Ok(None);
    }
    let is_frozen = {
        let program = net.program()?;
        let desc = program.find(&weight.name()).and_then(|var| program.root().vars.get(&var));
        desc.is_some_and(|desc| desc.stop_gradient)
    };
    let cross_entropy = LinearCrossEntropyAttrs {
        trans_weight,
        ignore_index: IGNORED as i32,
        label_smoothing: 0.0,
        z_loss: 0.0,
    };
    let op = LinearCrossEntropy {
        x: x.into(),
        weight: weight.into(),
        bias: None,
        label: labels.into(),
        class_weight: None,
        loss: New,
        log_sum: New,
        x_gradient: (is_learned && is_frozen).then_some(New),
        cross_entropy,
    };
    Ok(Some(emit(op).loss))
}
