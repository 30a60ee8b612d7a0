//! Attention with a mask, and rotary position embeddings, composed of other operators.

use autobwd::{DType, Expr, New, emit};

use crate::{
    Math, concat,
    fill::constants,
    math::{failed, like},
    matmul::MatmulV2,
    shape::TrilTriu,
};

/// Subtracted from the scores of masked keys: their weights are then exactly 0.
const MASKED: f64 = 1e30;

/// [`Math::masked_attention`] of queries, keys and values.
#[track_caller]
pub(crate) fn masked_attention(inputs: [&Expr; 3], mask: &Expr, causal: bool) -> Expr {
    let dims = inputs[0].dims();
    let depth = match &*dims {
        [_, _, _, depth] => depth.get(),
        _ => None,
    };
    let (dtype, is_mask) = (inputs[0].dtype(), mask.dtype() == DType::Bool);
    let (Some(depth), true) = (depth, is_mask) else {
        let text = format!(
            "masked attention needs queries [batch, queries, heads, d] with a known `d` and a bool mask, not {} \
             and {mask}",
            inputs[0]
        );
        return failed(&[inputs[0], inputs[1], inputs[2], mask], text);
    };
    let [q, k, v] = inputs.map(|x| x.transpose(&[0, 2, 1, 3]));
    let product = MatmulV2 { x: q.into(), y: k.into(), out: New, trans_x: false, trans_y: true };
    let mut scores = emit(product).out * (1.0 / (depth as f64).sqrt());
    if causal {
        let ones = like(&scores, 1.0);
        let seen = emit(TrilTriu { x: ones.into(), out: New, diagonal: 0, lower: true }).out;
        scores = scores + (seen - 1.0) * MASKED;
    }
    let weights = (scores + (mask.cast(dtype) - 1.0) * MASKED).softmax(-1);
    weights.matmul(&v).transpose(&[0, 2, 1, 3])
}

/// [`Math::rotary_embedding`].
#[track_caller]
pub(crate) fn rotary_embedding(x: &Expr, positions: &Expr, base: f64) -> Expr {
    let dims = x.dims();
    let half =
        dims.last().and_then(|depth| depth.get()).filter(|depth| depth % 2 == 0).map(|depth| depth / 2);
    let fits = dims.len() == 4 && matches!(positions.dims().len(), 1 | 2) && base > 0.0;
    let (Some(half), true) = (half, fits) else {
        let text = format!(
            "rotary embeddings need a shape [batch, length, heads, d] with an even `d`, positions [length] or \
             [batch, length], and a positive base, not {x}, {positions} and {base}"
        );
        return failed(&[x, positions], text);
    };
    let frequencies: Vec<f64> = (0..half).map(|i| libm::pow(base, -(i as f64) / half as f64)).collect();
    let frequencies = constants(x, &frequencies);
    // [.., length, 1, d / 2], for all heads.
    let angles = (positions.cast(x.dtype()).unsqueeze(&[-1]) * frequencies).unsqueeze(&[-2]);
    let (cos, sin) = (angles.cos(), angles.sin());
    let parts = x.split(&[half as i32; 2], -1);
    let [first, second] = [0, 1].map(|part| parts[part].clone());
    concat(&[&(&first * &cos - &second * &sin), &(&second * &cos + &first * &sin)], -1)
}
