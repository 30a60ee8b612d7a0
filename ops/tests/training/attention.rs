//! Options of attention.

use autobwd::{
    Builder, DType, Executor, Expr, Result, Tensor, backward::hessian_vector_product, tensor::Bool,
};
use autobwd_ops::{
    Math,
    attention::{AttentionAttrs, AttentionOptions, Rotary, RotaryScaling},
    nn::{Embedding, LayerNorm, Linear, MultiHeadAttention},
};

use crate::support::{assert_gradients, assert_near, constant, numbers, started};

/// Queries, keys and values of these shapes.
const MANY: [[usize; 4]; 3] = [[2, 70, 4, 3], [2, 300, 2, 3], [2, 300, 2, 5]];

fn options(set: impl FnOnce(&mut AttentionAttrs)) -> AttentionOptions {
    let mut options = AttentionOptions::default();
    set(&mut options.attrs);
    options
}

/// The outputs and the gradients of the sum of their squares, for unordered numbers.
fn outputs_and_gradients(
    dims: [[usize; 4]; 3],
    options: impl FnOnce(&Builder) -> AttentionOptions,
) -> Result<Vec<Tensor>> {
    let tape = autobwd::eager();
    let leaf = |(name, dims): (&str, [usize; 4])| {
        let elements = numbers(dims.iter().product(), 0.25);
        Ok(tape.leaf(name, Tensor::from_vec(dims, elements)?))
    };
    let leaves = ["q", "k", "v"].into_iter().zip(dims).map(leaf).collect::<Result<Vec<_>>>()?;
    let out = leaves[0].attention_with(&leaves[1], &leaves[2], &options(&tape));
    out.square().sum(&[]).backward()?;
    let gradients = leaves.iter().map(|leaf| leaf.gradient()?.tensor());
    [out.tensor()].into_iter().chain(gradients).collect()
}

#[test]
fn masked_attention_is_attention_to_some_keys() -> Result<()> {
    let tape = autobwd::eager();
    let (q, k, v) =
        (constant(&tape, &[2, 3, 2, 4]), constant(&tape, &[2, 3, 2, 4]), constant(&tape, &[2, 3, 2, 4]));
    let mask = |bits: &[bool], dims: &[usize]| {
        let bits = bits.iter().map(|bit| Bool::from(*bit)).collect();
        tape.constant(Tensor::from_vec(dims, bits).unwrap())
    };
    let all = mask(&[true], &[1, 1, 1, 1]);
    for causal in [false, true] {
        let expected = q.attention(&k, &v, causal).tensor()?.to_f64s();
        assert_near(&q.masked_attention(&k, &v, &all, causal), &expected);
    }
    // Without the last key.
    let two = mask(&[true, true, false], &[1, 1, 1, 3]);
    let short = |x: &Expr| x.slice(1, 0, 2);
    let expected = q.attention(&short(&k), &short(&v), false).tensor()?.to_f64s();
    assert_near(&q.masked_attention(&k, &v, &two, false), &expected);
    // Without any: 0.
    let none = mask(&[false], &[1, 1, 1, 1]);
    assert_near(&q.masked_attention(&k, &v, &none, false), &[0.0; 48]);
    assert_gradients(&[&[1, 3, 2, 2], &[1, 3, 2, 2], &[1, 3, 2, 2]], |net, x| {
        let bits = [true, false, true].map(Bool::from).to_vec();
        let mask = net.constant(Tensor::from_vec([1, 1, 1, 3], bits).unwrap());
        x[0].masked_attention(&x[1], &x[2], &mask, true)
    });
    let e = q.masked_attention(&k, &v, &q, false).check().unwrap_err().to_string();
    assert!(e.contains("`Mask`: a shape is needed that broadcasts") && e.contains("attention.rs"), "{e}");
    Ok(())
}

/// Infinite numbers in a mask are what a bool mask is, also for gradients and in several tiles.
#[test]
fn negative_infinity_in_a_mask_hides_keys() -> Result<()> {
    let hidden = |at: usize| at.is_multiple_of(3) || (1200..1700).contains(&at);
    let (bools, numbers): (Vec<Bool>, Vec<f64>) = (0..70 * 300)
        .map(|at| (Bool::from(!hidden(at)), if hidden(at) { f64::NEG_INFINITY } else { 0.0 }))
        .unzip();
    let masked = |mask: Tensor| {
        outputs_and_gradients(MANY, |tape| AttentionOptions {
            mask: Some(tape.constant(mask)),
            ..options(|limits| limits.causal = true)
        })
    };
    let by_bools = masked(Tensor::from_vec([70, 300], bools)?)?;
    for (x, y) in by_bools.iter().zip(masked(Tensor::from_vec([70, 300], numbers)?)?) {
        assert_eq!(x.to_f64s(), y.to_f64s());
    }
    Ok(())
}

/// A causal mask and a window are what masks of numbers say.
#[test]
fn windows_are_masks() -> Result<()> {
    for (causal, window) in [(true, -1), (true, 9), (false, 40), (true, 299)] {
        let seen = |query: i64, key: i64| {
            let distance = query + 230 - key;
            (!causal || distance >= 0) && (window < 0 || distance.abs() <= i64::from(window))
        };
        let mask = (0..70 * 300).map(|at| Bool::from(seen(at / 300, at % 300))).collect();
        let mask = Tensor::from_vec([70, 300], mask)?;
        let expected = outputs_and_gradients(MANY, |tape| AttentionOptions {
            mask: Some(tape.constant(mask)),
            ..AttentionOptions::default()
        })?;
        let limited = options(|limits| (limits.causal, limits.window) = (causal, window));
        for (x, y) in outputs_and_gradients(MANY, |_| limited)?.iter().zip(&expected) {
            assert_eq!(x.to_f64s(), y.to_f64s(), "{causal}, {window}");
        }
    }
    Ok(())
}

/// Documents that are packed into one row are attended to as in rows of their own.
#[test]
fn packed_documents_do_not_see_each_other() -> Result<()> {
    let (lengths, total) = ([40, 3, 257], 300);
    let tape = autobwd::eager();
    let [q, k, v] = [[1, total, 4, 3], [1, total, 2, 3], [1, total, 2, 5]].map(|dims| constant(&tape, &dims));
    let numbers = lengths.iter().enumerate().flat_map(|(at, length)| vec![at as i64; *length]);
    let documents = tape.constant(Tensor::from_vec([1, total], numbers.collect())?);
    let packed = AttentionOptions { documents: Some(documents), ..options(|limits| limits.causal = true) };
    let packed = q.attention_with(&k, &v, &packed);
    let mut start = 0;
    for length in lengths {
        let own = |x: &Expr| x.slice(1, start, start + length as i32);
        let alone = own(&q).attention_with(&own(&k), &own(&v), &options(|limits| limits.causal = true));
        assert_near(&own(&packed), &alone.tensor()?.to_f64s());
        start += length as i32;
    }
    Ok(())
}

/// The bits of a row depend neither on other queries nor on keys that it does not see.
#[test]
fn rows_do_not_depend_on_their_neighbours() -> Result<()> {
    let tape = autobwd::eager();
    let [q, k, v] =
        [[2, 600, 4, 7], [2, 600, 2, 7], [2, 600, 2, 9]].map(|dims| constant(&tape, &dims).cast(DType::F32));
    for window in [-1, 70] {
        let limited = options(|limits| (limits.causal, limits.window, limits.softcap) = (true, window, 2.0));
        let all = q.attention_with(&k, &v, &limited);
        for (start, end) in [(0, 1), (63, 66), (299, 300), (500, 600)] {
            let queries = q.slice(0, 1, 2).slice(1, start, end);
            let seen = |x: &Expr| x.slice(0, 1, 2).slice(1, 0, end);
            let alone = queries.attention_with(&seen(&k), &seen(&v), &limited);
            let expected = all.slice(0, 1, 2).slice(1, start, end);
            assert_eq!(alone.tensor()?.bytes(), expected.tensor()?.bytes(), "{window}, {start}..{end}");
        }
    }
    Ok(())
}

/// Weights are dropped with the given probability, by their own seed.
#[test]
fn dropout_keeps_sums_in_the_mean() -> Result<()> {
    let tape = autobwd::eager();
    let ones = |dims: [usize; 4]| {
        tape.constant(Tensor::from_vec(dims, vec![1.0_f64; dims.iter().product()]).unwrap())
    };
    let [q, k, v] = MANY.map(ones);
    let dropped = |seed| {
        let limited = options(|limits| (limits.dropout_prob, limits.seed) = (0.25, seed));
        q.attention_with(&k, &v, &limited).tensor()
    };
    let (first, second) = (dropped(1)?, dropped(2)?);
    let elements = first.to_f64s();
    let mean = elements.iter().sum::<f64>() / elements.len() as f64;
    assert!((mean - 1.0).abs() < 0.01, "{mean}");
    assert!(first.bytes() != second.bytes() && first.bytes() == dropped(1)?.bytes());
    Ok(())
}

/// The peak of memory of the product of a vector and the Hessian of a transformer's loss, with respect to its weights.
fn peak_bytes_of_hessian_product(length: usize) -> Result<usize> {
    const WIDTH: usize = 16;
    let net = Builder::new();
    let words = net.input("words", DType::I64, &[1, length as i64]);
    let next = net.input("next", DType::I64, &[length as i64, 1]);
    let mut x = Embedding::builder(&net, 5, WIDTH).seed(1).build().forward(&words);
    for layer in 0..2 {
        let attention = MultiHeadAttention::builder(&net, WIDTH, 2).causal().seed(layer).build();
        x = &x + attention.forward(&LayerNorm::builder(&net, WIDTH).build().forward(&x));
        let hidden = Linear::builder(&net, WIDTH, WIDTH).seed(layer + 5).build();
        x = &x + hidden.forward(&LayerNorm::builder(&net, WIDTH).build().forward(&x)).gelu(true);
    }
    let scores = Linear::builder(&net, WIDTH, 5).seed(9).build().forward(&x.reshape(&[-1, WIDTH as i32]));
    let loss = scores.cross_entropy(&next).mean().name();
    let weights: Vec<(String, Vec<usize>)> = net
        .parameters()
        .iter()
        .map(|weight| (weight.name(), weight.dims().known().unwrap_or_default().to_vec()))
        .collect();
    let mut scope = started(&net)?;
    let mut vectors = vec![];
    for (weight, dims) in &weights {
        let vector = format!("vector_of_{weight}");
        net.persistable(&vector, DType::F32, dims, Expr::clone);
        scope.set(&vector, Tensor::from_vec(&dims[..], vec![1.0_f32; dims.iter().product()])?);
        vectors.push(vector);
    }
    let pairs: Vec<(&str, &str)> =
        weights.iter().map(|(weight, _)| weight.as_str()).zip(vectors.iter().map(String::as_str)).collect();
    let mut program = net.program()?.clone();
    let products = hessian_vector_product(&mut program, &loss, &pairs, &Default::default())?;
    let fetches: Vec<&str> = products.iter().flatten().map(|product| program.name(*product)).collect();
    let ids = Tensor::from_vec([1, length], (0..length as i64).map(|at| at % 5).collect())?;
    let labels = Tensor::from_vec([length, 1], (0..length as i64).map(|at| at % 4).collect())?;
    let feeds = [("words", ids.meta()), ("next", labels.meta())];
    let mut session = Executor::with_threads(2).prepare(&program, &mut scope, &feeds, &fetches)?;
    if length <= 1024 {
        session.feed("words", &ids)?;
        session.feed("next", &labels)?;
        session.run(&mut scope)?;
        for product in &fetches {
            assert!(session.fetch(product)?.to_f64s().iter().all(|x| x.is_finite()), "{product}");
        }
    }
    Ok(session.peak_bytes())
}

#[test]
fn hessian_products_take_memory_that_is_linear_in_the_length() -> Result<()> {
    let (short, long) = (peak_bytes_of_hessian_product(1024)?, peak_bytes_of_hessian_product(8192)?);
    assert!(long <= 8 * short, "{short}, {long}");
    // All scores of one head, in one of the two layers, would take more.
    assert!(long < 8192 * 8192 * size_of::<f32>(), "{long}");
    Ok(())
}

/// The frequencies of the forms that published models have. `rotary.json` is what transformers 5.24.0 computes, in
/// single precision, from their configurations.
#[test]
fn rotary_frequencies_are_those_of_transformers() -> Result<()> {
    let forms: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(include_str!("rotary.json")).expect("the file is JSON");
    assert_eq!(forms.len(), 10);
    for (name, form) in &forms {
        let parameters = &form["parameters"];
        let number = |key: &str| parameters[key].as_f64();
        let trained_length = parameters["original_max_position_embeddings"]
            .as_u64()
            .or(form["max_position_embeddings"].as_u64())
            .unwrap() as usize;
        let factor = number("factor").unwrap_or(1.0);
        let scaling = match parameters["rope_type"].as_str().unwrap() {
            "default" => RotaryScaling::Unscaled,
            "linear" => RotaryScaling::Linear { factor },
            "dynamic" => {
                let length = form["length"].as_u64().unwrap() as usize;
                RotaryScaling::Dynamic { factor, trained_length, length }
            }
            "llama3" => RotaryScaling::Llama3 {
                factor,
                low_turns: number("low_freq_factor").unwrap(),
                high_turns: number("high_freq_factor").unwrap(),
                trained_length,
            },
            "yarn" => RotaryScaling::Yarn {
                factor,
                low_turns: number("beta_slow").unwrap_or(1.0),
                high_turns: number("beta_fast").unwrap_or(32.0),
                trained_length,
                truncated: parameters["truncate"].as_bool().unwrap_or(true),
                magnitude: form["magnitude"].as_f64().unwrap(),
            },
            other => panic!("{other}"),
        };
        let rotary = Rotary { base: number("rope_theta").unwrap(), scaling };
        let (frequencies, magnitude) = rotary.frequencies(form["depth"].as_u64().unwrap() as usize)?;
        assert_eq!(magnitude, form["magnitude"].as_f64().unwrap(), "{name}");
        let expected = form["frequencies"].as_array().unwrap();
        assert_eq!(frequencies.len(), expected.len(), "{name}");
        for (frequency, expected) in frequencies.iter().zip(expected) {
            let expected = expected.as_f64().unwrap();
            assert!((frequency - expected).abs() <= 2e-6 * expected, "{name}: {frequency}, not {expected}");
        }
    }
    Ok(())
}

#[test]
fn rotary_embeddings_refuse_what_makes_no_frequencies() {
    let scaling = |scaling| Rotary { base: 1e4, scaling };
    let long = |factors: Vec<f64>| scaling(RotaryScaling::LongRope { factors, magnitude: 1.0 });
    assert_eq!(long(vec![1.0, 2.0]).frequencies(4).unwrap().0, [1.0, 0.005]);
    for (rotary, depth) in [
        (Rotary { base: 0.0, scaling: RotaryScaling::Unscaled }, 4),
        (scaling(RotaryScaling::Unscaled), 5),
        (scaling(RotaryScaling::Linear { factor: f64::NAN }), 4),
        (scaling(RotaryScaling::Dynamic { factor: 2.0, trained_length: 0, length: 9 }), 4),
        (
            scaling(RotaryScaling::Llama3 {
                factor: 2.0,
                low_turns: 4.0,
                high_turns: 1.0,
                trained_length: 9,
            }),
            4,
        ),
        (long(vec![1.0]), 4),
    ] {
        let e = rotary.frequencies(depth).unwrap_err().to_string();
        assert!(e.contains("makes no frequencies"), "{e}");
    }
}

/// 16 bits cannot tell position 4,097 from 4,096, angles can.
#[test]
fn rotary_angles_have_single_precision() -> Result<()> {
    let tape = autobwd::eager();
    let x = constant(&tape, &[1, 2, 1, 4]).cast(DType::F32);
    let positions = tape.constant(Tensor::from_vec([2], vec![4096_i64, 4097])?);
    let expected = x.rotary_embedding(&positions, 1e4).tensor()?.to_f64s();
    let found = x.cast(DType::BF16).rotary_embedding(&positions, 1e4).tensor()?.to_f64s();
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 0.02, "{found}, not {expected}");
    }
    Ok(())
}
