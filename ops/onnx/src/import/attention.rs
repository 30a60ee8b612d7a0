//! Attention, and what belongs to it: linear attention, rotary embeddings, causal convolutions.

use autobwd::{DType, Dims, Expr, Result, Tensor};
use autobwd_ops::{Math, concat};

use super::{
    arith::{check_table, dim_of, in_dtype, permute, reshape},
    matmul::product,
    node::{NodeContext, Outputs, all, one, refuse},
    rules::{Native, NodeRules},
    slice::slice_axis,
    value::ImportedValue,
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("Attention", Native, attention),
    ("LinearAttention", Native, linear_attention),
    ("RotaryEmbedding", Native, rotary_embedding),
    ("CausalConvWithState", Native, causal_conv),
];

pub(super) const GRAPH_RULES: NodeRules = &[("ai.onnx.preview:FlexAttention", Native, flex_attention)];

/// `[batch, steps, heads · size]` as `[batch, heads, steps, size]`.
fn split_heads(x: &Expr, heads: i64) -> Expr {
    permute(&reshape(x, &[0, 0, heads, -1]), &[0, 2, 1, 3])
}

/// `[batch, heads, steps, size]` as `[batch, steps, heads · size]`.
fn join_heads(x: &Expr) -> Expr {
    reshape(&permute(x, &[0, 2, 1, 3]), &[0, 0, -1])
}

/// Each head several times in a row.
fn repeat_heads(x: &Expr, times: i64) -> Expr {
    match times {
        1 => x.clone(),
        _ => x.unsqueeze(&[2]).tile(&[1, 1, times as i32, 1, 1]).flatten(1, 2),
    }
}

fn known(dims: &Dims, axis: usize, op: &str) -> Result<i64> {
    let dim = dims.get(axis).and_then(|dim| dim.get());
    dim.map(|dim| dim as i64)
        .ok_or_else(|| refuse(format!("operator `{op}` needs a known dimension {axis} of {dims}")))
}

/// How often each head of keys and values is used.
fn repeats(queries: &Expr, keys: &Expr, op: &str) -> Result<i64> {
    let (own, shared) = (known(&queries.dims(), 1, op)?, known(&keys.dims(), 1, op)?);
    match shared {
        1.. if own % shared == 0 => Ok(own / shared),
        _ => Err(refuse(format!("operator `{op}`: {own} heads of queries do not fit {shared} of keys"))),
    }
}

/// 0 where query `i` may attend to key `j ≤ i + past`, else −∞.
fn causal_mask(n: &NodeContext<'_, '_>, queries: i64, keys: i64, past: i64, dtype: DType) -> Result<Expr> {
    check_table([queries, keys].map(|dim| dim as usize))?;
    let rows =
        (0..queries).flat_map(|i| (0..keys).map(move |j| if j - past > i { f32::NEG_INFINITY } else { 0.0 }));
    let mask = Tensor::from_vec([queries as usize, keys as usize], rows.collect())?;
    let mask = ImportedValue::known("causal_mask", ElementType::F32, mask, false);
    n.importer_constant(&mask).map(|mask| mask.cast(dtype))
}

/// The scores of attention and what is made of them.
struct Scores {
    /// After the cap.
    capped: Expr,
    /// With the mask.
    biased: Expr,
    probabilities: Expr,
}

fn attention(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (mut q, mut k, mut v) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let flat = q.dims().len() == 3;
    let (own, shared) = (n.int("q_num_heads")?, n.int("kv_num_heads")?);
    if flat {
        let (Some(own @ 1..), Some(shared @ 1..)) = (own, shared) else {
            return Err(refuse("operator `Attention` needs its numbers of heads"));
        };
        (q, k, v) = (split_heads(&q, own), split_heads(&k, shared), split_heads(&v, shared));
    }
    let size = known(&q.dims(), 3, "Attention")?;
    let scale = n.float("scale")?.map_or(1.0 / (size as f64).sqrt(), f64::from);
    let past = match (n.optional(4)?, n.optional(5)?) {
        (Some(past_key), Some(past_value)) => {
            let past = known(&past_key.dims(), 2, "Attention")?;
            (k, v) = (concat(&[&past_key, &k], 2), concat(&[&past_value, &v], 2));
            past
        }
        (None, None) => 0,
        _ => return Err(refuse("operator `Attention` needs both past keys and values")),
    };
    let (present_key, present_value) = (k.clone(), v.clone());
    let times = repeats(&q, &k, "Attention")?;
    let (k, v) = (repeat_heads(&k, times), repeat_heads(&v, times));
    let scores = attend(n, &q, &k, scale, past)?;
    let mut y = scores.probabilities.matmul(&v);
    if flat {
        y = join_heads(&y);
    }
    let mode = n.int_or("qk_matmul_output_mode", 0)?;
    if mode == 0 && n.wants(3) && n.float_or("softcap", 0.0)? > 0.0 {
        return Err(refuse(
            "attribute `qk_matmul_output_mode` = 0 with `softcap` of operator `Attention` is not supported",
        ));
    }
    let scores = match mode {
        2 => scores.biased,
        3 => scores.probabilities,
        _ => scores.capped,
    };
    all([y, present_key, present_value, scores].into_iter().take(n.output_count().max(1)))
}

/// `softmax(cap(scale · q · kᵀ) + mask)`.
fn attend(n: &mut NodeContext<'_, '_>, q: &Expr, k: &Expr, scale: f64, past: i64) -> Result<Scores> {
    let cap = f64::from(n.float_or("softcap", 0.0)?);
    let precision = n.int("softmax_precision")?;
    let mut capped = product(&(q * scale), k, false, true);
    if cap > 0.0 {
        capped = (capped * (1.0 / cap)).tanh() * cap;
    }
    let (dtype, mut biased) = (q.dtype(), capped.clone());
    if let Some(mask) = n.optional(3)? {
        biased = &biased + &mask_bias(&mask, k, dtype)?;
    }
    if n.flag("is_causal", false)? {
        let (queries, keys) = (known(&q.dims(), 2, "Attention")?, known(&k.dims(), 2, "Attention")?);
        biased = &biased + &causal_mask(n, queries, keys, past, dtype)?;
    }
    if let Some(lengths) = n.optional(6)? {
        let keys = known(&k.dims(), 2, "Attention")?;
        check_table([keys as usize])?;
        let places = n.ints_expr(&(0..keys).collect::<Vec<_>>())?;
        let valid = places.less_than(&reshape(&lengths.cast(DType::I64), &[-1, 1, 1, 1]));
        biased = &biased + &valid.cast(dtype).log();
    }
    let wide = match precision {
        None | Some(1) => biased.clone(),
        Some(11) => biased.cast(DType::F64),
        Some(other) => {
            return Err(refuse(format!(
                "attribute `softmax_precision` = {other} of operator `Attention` is not supported"
            )));
        }
    };
    let probabilities = wide.softmax(-1).cast(dtype);
    Ok(Scores { capped, biased, probabilities })
}

/// What is added to scores: 0 or −∞ for a mask of bools. Keys beyond the mask are not seen.
fn mask_bias(mask: &Expr, k: &Expr, dtype: DType) -> Result<Expr> {
    let bias = if mask.dtype() == DType::Bool { mask.cast(dtype).log() } else { mask.clone() };
    let last = mask
        .dims()
        .len()
        .checked_sub(1)
        .ok_or_else(|| refuse("operator `Attention`: a mask of rank 0 is not supported"))?;
    match (dim_of(k, 2), dim_of(mask, last)) {
        (Some(keys), Some(own)) if own < keys && own != 1 => {
            super::pad::pad_constant(&bias, &[(last, 0, keys - own)], f64::NEG_INFINITY)
        }
        _ => Ok(bias),
    }
}

/// Attention whose scores and probabilities are changed by graphs.
fn flex_attention(n: &mut NodeContext<'_, '_>) -> Outputs {
    let (q, k, v) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let op = "FlexAttention";
    let size = known(&q.dims(), 3, op)?;
    let scale = n.float("scale")?.map_or(1.0 / (size as f64).sqrt(), f64::from);
    let times = repeats(&q, &k, op)?;
    let (k, v) = (repeat_heads(&k, times), repeat_heads(&v, times));
    let dtype = match n.int("softmax_precision")? {
        None => q.dtype(),
        Some(1) => n.dtype(ElementType::F32)?,
        Some(11) => DType::F64,
        Some(other) => {
            return Err(refuse(format!(
                "attribute `softmax_precision` = {other} of operator `{op}` is not supported"
            )));
        }
    };
    let scores = product(&(&q * scale), &k, false, true).cast(dtype);
    let scores = changed(n, "score_mod", scores)?;
    let probabilities = changed(n, "prob_mod", scores.softmax(-1))?;
    one(probabilities.matmul(&v.cast(dtype)).cast(q.dtype()))
}

fn changed(n: &mut NodeContext<'_, '_>, graph: &str, x: Expr) -> Result<Expr> {
    if !n.has_attribute(graph) {
        return Ok(x);
    }
    let graph = n.graph(graph)?;
    let value = ImportedValue::computed("", n.element(0)?, x.check()?.clone());
    let results = n.importer.graph(graph, vec![Some(value)])?;
    match &results[..] {
        [result] => n.importer.value_expr(result),
        _ => Err(refuse("a graph of operator `FlexAttention` needs one result")),
    }
}

/// A state of keys times values that decays, step by step.
fn linear_attention(n: &mut NodeContext<'_, '_>) -> Outputs {
    let op = "LinearAttention";
    n.ignore(&["chunk_size"]);
    let (Some(own @ 1..), Some(shared @ 1..)) = (n.int("q_num_heads")?, n.int("kv_num_heads")?) else {
        return Err(refuse("operator `LinearAttention` needs its numbers of heads"));
    };
    let rule = n.text_or("update_rule", "gated_delta")?;
    if !["linear", "gated", "delta", "gated_delta"].contains(&rule) || own % shared != 0 {
        return Err(refuse(format!(
            "attribute `update_rule` = `{rule}` of operator `{op}` is not supported"
        )));
    }
    let (q, k, v) = (wide(n, 0)?, wide(n, 1)?, wide(n, 2)?);
    let (q, k, v) = (split_heads(&q, own), split_heads(&k, shared), split_heads(&v, shared));
    let (steps, size, width) = (known(&q.dims(), 2, op)?, known(&k.dims(), 3, op)?, known(&v.dims(), 3, op)?);
    if steps > 1024 {
        return Err(refuse(format!("operator `{op}` of {steps} steps is not supported")));
    }
    let scale = n.float("scale")?.filter(|scale| *scale != 0.0).map_or(1.0 / (size as f64).sqrt(), f64::from);
    let decay = match wide_if_any(n, 4)? {
        Some(decay) if rule.starts_with("gated") => Some(split_heads(&decay, shared)),
        None if !rule.starts_with("gated") => None,
        _ => {
            return Err(refuse(format!(
                "operator `{op}`: a decay belongs to a gated `update_rule`, which is `{rule}`"
            )));
        }
    };
    let beta = match wide_if_any(n, 5)? {
        Some(beta) if rule.ends_with("delta") => Some(permute(&beta.unsqueeze(&[3]), &[0, 2, 1, 3])),
        None if !rule.ends_with("delta") => None,
        _ => {
            return Err(refuse(format!(
                "operator `{op}`: beta belongs to an `update_rule` with delta, which is `{rule}`"
            )));
        }
    };
    let mut state = match wide_if_any(n, 3)? {
        Some(state) => state,
        None => {
            let batch = known(&q.dims(), 0, op)?;
            check_table([batch, shared, size, width].map(|dim| dim as usize))?;
            let zeros = Tensor::zeros(q.dtype(), &[batch, shared, size, width].map(|dim| dim as usize))?;
            n.importer_constant(&ImportedValue::known("state", n.element(0)?, zeros, false))?
        }
    };
    let mut outputs = vec![];
    for step in 0..steps {
        let at = |x: &Expr| slice_axis(x, 2, step, step + 1);
        let (q, k, mut v) = (at(&q), at(&k), at(&v));
        if let Some(decay) = &decay {
            state = &state * &permute(&at(decay).exp(), &[0, 1, 3, 2]);
        }
        if let Some(beta) = &beta {
            v = &at(beta) * &(&v - &k.matmul(&state));
        }
        state = &state + &product(&k, &v, true, false);
        outputs.push(q.matmul(&repeat_heads(&state, own / shared)) * scale);
    }
    let parts: Vec<&Expr> = outputs.iter().collect();
    let dtype = n.input(0)?.dtype();
    all([join_heads(&concat(&parts, 2)), state].map(|out| in_dtype(&out, dtype)))
}

/// Pairs of elements are rotated by the angles of their position.
fn rotary_embedding(n: &mut NodeContext<'_, '_>) -> Outputs {
    let op = "RotaryEmbedding";
    let (x, mut cos, mut sin) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let interleaved = n.flag("interleaved", false)?;
    let (rotated, heads) = (n.int_or("rotary_embedding_dim", 0)?, n.int_or("num_heads", 0)?);
    let flat = x.dims().len() == 3;
    if flat && heads < 1 {
        return Err(refuse("operator `RotaryEmbedding` needs its number of heads"));
    }
    // Heads behind steps.
    let input = if flat { reshape(&x, &[0, 0, heads, -1]) } else { permute(&x, &[0, 2, 1, 3]) };
    let size = known(&input.dims(), 3, op)?;
    let rotated = if rotated == 0 { size } else { rotated };
    if rotated < 2 || rotated > size || rotated % 2 != 0 {
        return Err(refuse(format!(
            "attribute `rotary_embedding_dim` = {rotated} of operator `{op}` is not supported"
        )));
    }
    if let Some(places) = n.optional(3)? {
        let steps = known(&places.dims(), 1, op)?;
        let look_up = |table: &Expr| {
            reshape(&table.index_select(&reshape(&places, &[-1]), 0), &[-1, steps, rotated / 2])
        };
        (cos, sin) = (look_up(&cos), look_up(&sin));
    }
    let (cos, sin) = (cos.unsqueeze(&[2]), sin.unsqueeze(&[2]));
    let turned = slice_axis(&input, 3, 0, rotated);
    let (first, second) = match interleaved {
        true => {
            let pairs = reshape(&turned, &[0, 0, 0, -1, 2]);
            let part = |i| slice_axis(&pairs, 4, i, i + 1).squeeze(&[4]);
            (part(0), part(1))
        }
        false => (slice_axis(&turned, 3, 0, rotated / 2), slice_axis(&turned, 3, rotated / 2, rotated)),
    };
    let real = &(&cos * &first) - &(&sin * &second);
    let imaginary = &(&sin * &first) + &(&cos * &second);
    let turned = match interleaved {
        true => concat(&[&real.unsqueeze(&[4]), &imaginary.unsqueeze(&[4])], 4).flatten(3, 4),
        false => concat(&[&real, &imaginary], 3),
    };
    let out =
        if rotated == size { turned } else { concat(&[&turned, &slice_axis(&input, 3, rotated, size)], 3) };
    one(if flat { reshape(&out, &[0, 0, -1]) } else { permute(&out, &[0, 2, 1, 3]) })
}

/// A depthwise convolution over the past: the state is the end of the sequence.
fn causal_conv(n: &mut NodeContext<'_, '_>) -> Outputs {
    let op = "CausalConvWithState";
    let (x, weight, bias) = (wide(n, 0)?, wide(n, 1)?, wide_if_any(n, 2)?);
    let (length, taps) = (known(&x.dims(), 2, op)?, known(&weight.dims(), 2, op)?);
    let padded = match wide_if_any(n, 3)? {
        Some(past) if taps > 1 => concat(&[&past, &x], 2),
        Some(_) => x.clone(),
        None => super::pad::pad_constant(&x, &[(2, taps - 1, 0)], 0.0)?,
    };
    if taps > 1 << 10 {
        return Err(refuse(format!("operator `{op}` with {taps} taps is not supported")));
    }
    let factors = weight.squeeze(&[1]);
    let term = |tap: i64| &slice_axis(&padded, 2, tap, tap + length) * &slice_axis(&factors, 1, tap, tap + 1);
    let sum = (0..taps).map(term).reduce(|sum, term| &sum + &term);
    let mut y = sum.ok_or_else(|| refuse(format!("operator `{op}` without taps")))?;
    if let Some(bias) = bias {
        y = &y + &reshape(&bias, &[-1, 1]);
    }
    y = match n.text_or("activation", "none")? {
        "none" => y,
        "silu" | "swish" => y.silu(),
        other => {
            return Err(refuse(format!(
                "attribute `activation` = `{other}` of operator `{op}` is not supported"
            )));
        }
    };
    let state = n.wants(1).then(|| slice_axis(&padded, 2, length, length + taps - 1));
    let dtype = n.input(0)?.dtype();
    all([Some(y), state].into_iter().flatten().map(|out| in_dtype(&out, dtype)))
}

/// An input of an operator that is several operators here: 16-bit numbers are rounded after the last of them only.
fn wide(n: &mut NodeContext<'_, '_>, i: usize) -> Result<Expr> {
    let x = n.input(i)?;
    Ok(in_dtype(&x, x.dtype().arithmetic()))
}

/// As [`wide`], of an input that may be absent.
fn wide_if_any(n: &mut NodeContext<'_, '_>, i: usize) -> Result<Option<Expr>> {
    if n.has(i) { wide(n, i).map(Some) } else { Ok(None) }
}
