//! Generation step by step with a cache of keys and values.

use autobwd::{Builder, DType, ErrorKind, Executor, Expr, Feed, Meta, OpInfoMap, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    attention::{AttentionAttrs, AttentionOptions},
    nn::{Embedding, KvCache, KvCacheStep, Linear, MultiHeadAttention, RmsNorm},
    optim::{Optimizer, Sgd},
};

use crate::support::{numbers, run, started};

const WORDS: usize = 11;
const CAPACITY: usize = 24;
const LAYERS: usize = 2;

/// A decoder whose heads of queries share heads of keys, with rotary embeddings; the logits of all rows.
fn decoder(net: &Builder, tokens: &Expr, positions: &Expr, cache: Option<&KvCacheStep<'_>>) -> Expr {
    let linear = |name: &str, from, to| Linear::builder(net, from, to).name(name).seed(3).build();
    let mut x = Embedding::builder(net, WORDS, 8).name("words").seed(1).build().forward(tokens);
    for layer in 0..LAYERS {
        net.name_scope(&format!("layers.{layer}"), || {
            let normal = RmsNorm::builder(net, 8).name("norm").build().forward(&x);
            let split = |name: &str, heads: i32| {
                linear(name, 8, heads as usize * 2).forward(&normal).reshape(&[0, 0, heads, 2])
            };
            let (q, k, v) = (split("q", 4), split("k", 2), split("v", 2));
            let [q, k] = [q, k].map(|x| x.rotary_embedding(positions, 10_000.0));
            let attrs = AttentionAttrs { window: 9, softcap: 2.0, causal: true, ..AttentionAttrs::default() };
            let options = AttentionOptions { attrs, ..AttentionOptions::default() };
            let out = match cache {
                Some(cache) => cache.attend(layer, &q, &k, &v, &options),
                None => q.attention_with(&k, &v, &options),
            };
            x = &x + linear("out", 8, 8).forward(&out.reshape(&[0, 0, 8]));
        });
    }
    linear("logits", 8, WORDS).forward(&x)
}

/// A program for one step, its logits, and its most likely words.
fn step(batch: usize) -> (Builder, Expr, Expr) {
    let net = Builder::new();
    let [tokens, positions] =
        ["tokens", "positions"].map(|name| net.input(name, DType::I64, &[batch as i64, -1]));
    let cache = KvCache::builder(&net, LAYERS, [batch, CAPACITY, 2, 2]).name("cache").build();
    let cache = cache.at(&positions);
    let logits = decoder(&net, &tokens, cache.positions(), Some(&cache));
    let words = logits.argmax(-1);
    (net, logits, words)
}

fn whole_numbers(dims: [usize; 2], numbers: Vec<i64>) -> Result<Tensor> {
    Tensor::from_vec(dims, numbers)
}

#[test]
fn steps_have_the_bits_of_whole_sequences() -> Result<()> {
    let (net, logits, _) = step(2);
    let mut scope = started(&net)?;
    let sequences =
        [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8].map(i64::from), [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]];
    let lengths = [7, 4];
    // Prompts end together, with padding before them.
    let (mut tokens, mut positions) = (vec![], vec![]);
    for (sequence, length) in sequences.iter().zip(lengths) {
        let padding = 7 - length;
        tokens.extend(std::iter::repeat_n(0, padding).chain(sequence[..length].iter().copied()));
        positions.extend(std::iter::repeat_n(-1, padding).chain(0..length as i64));
    }
    let mut executor = Executor::with_threads(2);
    let mut forward = |scope: &mut Scope, n, tokens, positions| {
        let (tokens, positions) = (whole_numbers([2, n], tokens)?, whole_numbers([2, n], positions)?);
        let feeds: [(&str, &dyn Feed); 2] = [("tokens", &tokens), ("positions", &positions)];
        let logits = executor.run(&net.program()?, scope, &feeds, &[&logits.name()])?.remove(0);
        Ok::<_, autobwd::Error>(logits.slice::<f32>()?.to_vec())
    };
    let prompts = forward(&mut scope, 7, tokens, positions)?;
    let mut found = [prompts[..7 * WORDS].to_vec(), prompts[(7 + 3) * WORDS..].to_vec()];
    for at in 0..5 {
        let tokens = sequences.iter().zip(lengths).map(|(sequence, length)| sequence[length + at]).collect();
        let positions = lengths.map(|length| (length + at) as i64).to_vec();
        let logits = forward(&mut scope, 1, tokens, positions)?;
        found.iter_mut().zip(logits.chunks(WORDS)).for_each(|(found, logits)| found.extend(logits));
    }
    for ((sequence, length), found) in sequences.iter().zip(lengths).zip(found) {
        let (net, n) = (Builder::new(), length + 5);
        let [tokens, positions] =
            ["tokens", "positions"].map(|name| net.input(name, DType::I64, &[1, n as i64]));
        let logits = decoder(&net, &tokens, &positions, None);
        let tokens = whole_numbers([1, n], sequence[..n].to_vec())?;
        let positions = whole_numbers([1, n], (0..n as i64).collect())?;
        let feeds = [("tokens", &tokens), ("positions", &positions)];
        let expected = run(&net, &mut scope, &feeds, &[&logits])?.remove(0);
        assert_eq!(found, expected.slice::<f32>()?);
    }
    Ok(())
}

#[test]
fn a_session_generates_until_the_cache_is_full() -> Result<()> {
    let (net, _, words) = step(1);
    let mut scope = started(&net)?;
    let executor = Executor::with_threads(1);
    let program = net.program()?;
    let meta = Meta::new(DType::I64, [1, 1]);
    let feeds = ["tokens", "positions"].map(|name| (name, meta.clone()));
    let mut session = executor.prepare(&program, &mut scope, &feeds, &[&words.name()])?;
    let mut word = 0;
    for position in 0..CAPACITY as i64 {
        session.feed_mut::<i64>("tokens")?[0] = word;
        session.feed_mut::<i64>("positions")?[0] = position;
        session.run(&mut scope)?;
        word = session.slice::<i64>(&words.name())?[0];
    }
    let before = scope.get("cache.1.keys")?.clone();
    session.feed_mut::<i64>("tokens")?[0] = word;
    session.feed_mut::<i64>("positions")?[0] = CAPACITY as i64;
    let error = session.run(&mut scope).unwrap_err();
    assert!(error.to_string().contains("`X`: 24 is not within -1..24"), "{error}");
    assert!(error.to_string().contains("kv_cache.rs"), "{error}");
    assert_eq!(scope.get("cache.1.keys")?.slice::<f32>()?, before.slice::<f32>()?);
    Ok(())
}

/// Otherwise, each run would copy the caches, to restore them if it fails.
#[test]
fn after_the_first_update_no_operator_may_fail() -> Result<()> {
    let (net, _, _) = step(1);
    let (program, ops) = (net.program()?, OpInfoMap::linked()?);
    let after = program.root().ops.iter().skip_while(|op| op.ty != "cache_update");
    let after = after.map(|op| ops.get(&op.ty)).collect::<Result<Vec<_>>>()?;
    // Formulas never fail.
    let may_fail = after.into_iter().filter(|info| info.has_kernel() && info.may_fail());
    let may_fail: Vec<&str> = may_fail.map(|info| info.schema().name).collect();
    assert_eq!(may_fail, Vec::<&str>::new());
    Ok(())
}

#[test]
fn gradients_through_a_cache_are_refused() -> Result<()> {
    let (net, logits, _) = step(1);
    let loss = logits.square().mean();
    let error = Sgd { rate: 0.1 }.minimize(&loss).and_then(|step| step.complete()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoGradient);
    let text = error.to_string();
    assert!(text.contains("cache_update") && text.contains("a cache holds rows of earlier steps"), "{text}");
    drop(net);
    Ok(())
}

#[test]
fn caches_refuse_other_layers_and_shapes() {
    let net = Builder::new();
    let positions = net.input("positions", DType::I64, &[1, -1]);
    let x = net.input("x", DType::F32, &[1, -1, 2, 4]);
    let cache = KvCache::builder(&net, 1, [1, 5, 2, 4]).build();
    let attend = |layer, x: &Expr| cache.at(&positions).attend(layer, x, x, x, &AttentionOptions::default());
    assert!(attend(0, &x).check().is_ok());
    let error = attend(1, &x).check().unwrap_err().to_string();
    assert!(error.contains("a cache of 1 layers has no layer 1"), "{error}");
    let wide = net.input("wide", DType::F32, &[1, -1, 2, 3]);
    let error = attend(0, &wide).check().unwrap_err().to_string();
    assert!(error.contains("`Rows`: rows of this cache are needed, [1, 5, 2, 4]"), "{error}");
    let attention = MultiHeadAttention::builder(&net, 8, 2).build();
    let x = net.input("y", DType::F32, &[1, -1, 8]);
    let error = attention.cached(&x, 0, &cache.at(&positions)).check().unwrap_err().to_string();
    assert!(error.contains("only causal attention can be computed step by step"), "{error}");
}

#[test]
fn cached_attention_of_a_layer_is_its_attention() -> Result<()> {
    const LENGTH: usize = 5;
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1, -1, 8]);
    let positions = net.input("positions", DType::I64, &[1, -1]);
    let attention = MultiHeadAttention::builder(&net, 8, 2).causal().seed(2).build();
    let cache = KvCache::builder(&net, 1, [1, LENGTH, 2, 4]).build();
    let (whole, step) = (attention.forward(&x), attention.cached(&x, 0, &cache.at(&positions)));
    let mut scope = started(&net)?;
    let rows: Vec<f32> = numbers(LENGTH * 8, 0.25).into_iter().map(|x| x as f32).collect();
    let mut found = vec![];
    for (position, row) in rows.chunks(8).enumerate() {
        let x = Tensor::from_vec([1, 1, 8], row.to_vec())?;
        let at = whole_numbers([1, 1], vec![position as i64])?;
        let out = run(&net, &mut scope, &[("x", &x), ("positions", &at)], &[&step])?.remove(0);
        found.extend_from_slice(out.slice::<f32>()?);
    }
    let x = Tensor::from_vec([1, LENGTH, 8], rows)?;
    let at = whole_numbers([1, LENGTH], (0..LENGTH as i64).collect())?;
    let expected = run(&net, &mut scope, &[("x", &x), ("positions", &at)], &[&whole])?.remove(0);
    assert_eq!(found, expected.slice::<f32>()?);
    Ok(())
}
