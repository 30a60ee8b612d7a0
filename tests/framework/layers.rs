//! Layers: their values, compared with other operators, and their training.

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, Tensor, gradients};
use autobwd_ops::{
    Init, Math, concat,
    nn::{
        BatchNorm, Conv2d, Conv2dTranspose, DirectionWeights, Dropout, GroupNorm, InstanceNorm, LayerNorm,
        Linear, Lstm, LstmCell, MultiHeadAttention, Pool2d, RecurrentCell,
    },
    optim::{Adam, Optimizer, Sgd},
};

use crate::support::networks::Net;

#[track_caller]
fn assert_near(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() < 1e-12 * (1.0 + b.abs()), "element {i}: {a}, not {b}");
    }
}

/// Losses of training in float32.
fn train(build: impl FnOnce(&Builder) -> Expr, steps: usize) -> Result<Vec<f64>> {
    let net = Builder::new();
    let loss = build(&net);
    Adam::new(0.02).minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut session = executor.prepare(&net.program()?, &mut scope, &[], &[&loss.name()])?;
    let mut losses = vec![];
    for _ in 0..steps {
        session.run(&mut scope)?;
        losses.push(session.item(&loss.name())?);
    }
    Ok(losses)
}

/// Normally distributed numbers, the same in each run.
fn noise(net: &Builder, name: &str, dims: &[usize], seed: i32) -> Expr {
    net.persistable(name, DType::F32, dims, |x| Init::Normal(0.0, 1.0).emit(x, seed)).freeze()
}

#[test]
fn sequence_is_what_its_steps_are_one_by_one() -> Result<()> {
    let (steps, batch, inputs, units) = (4, 19, 5, 18);
    let mut values = vec![];
    for at_once in [true, false] {
        let mut net = Net::new();
        let x = net.data("x", &[steps, batch, inputs])?;
        let (mut h, mut c) = (net.data("h", &[batch, units])?, net.data("c", &[batch, units])?);
        let layer = Lstm::builder(&net.net, inputs, units).dtype(DType::F64).seed(3).build();
        let DirectionWeights { input_weight, state_weight, bias } = &layer.passes[0];
        let (hidden, cell) = if at_once {
            let gates = x.matmul(input_weight) + bias;
            let Some(states) = LstmCell::fused(&gates, Some(&[h, c]), state_weight) else { panic!() };
            let mut states = states.into_iter();
            (states.next().unwrap(), states.next().unwrap())
        } else {
            let (mut hidden, mut cell) = (vec![], vec![]);
            for x in x.split(&[1; 4], 0) {
                let of_state = h.matmul(state_weight) + bias;
                let gates = x.squeeze(&[0]).matmul(input_weight) + &of_state;
                let gates = gates.split(&[units as i32; 4], 1);
                let [i, f, o] = [0, 1, 3].map(|gate| gates[gate].sigmoid());
                c = &f * &c + &i * gates[2].tanh();
                h = &o * c.tanh();
                hidden.push(h.unsqueeze(&[0]));
                cell.push(c.unsqueeze(&[0]));
            }
            let joined = |all: &[Expr]| concat(&all.iter().collect::<Vec<_>>(), 0);
            (joined(&hidden), joined(&cell))
        };
        let loss = hidden.square().mean() + cell.exp().mean();
        let gradients = net.gradients(&loss)?;
        let fetches: Vec<_> = [&hidden, &cell].into_iter().chain(&gradients).collect();
        let alone = net.run(1, &fetches)?;
        for threads in [2, 3, 7] {
            assert_eq!(net.run(threads, &fetches)?, alone, "{threads} threads");
        }
        values.push(alone);
    }
    assert_eq!(values[0].len(), 8);
    for (at_once, one_by_one) in values[0].iter().zip(&values[1]) {
        assert_near(at_once, one_by_one);
    }
    Ok(())
}

#[test]
fn attention_is_softmax_between_two_products() -> Result<()> {
    let (batch, length, heads, depth) = (2, 67, 3, 4);
    for causal in [false, true] {
        let mut values = vec![];
        for at_once in [true, false] {
            let mut net = Net::new();
            let x = net.data("x", &[batch, length, heads * depth])?;
            let layer = MultiHeadAttention::builder(&net.net, heads * depth, heads).dtype(DType::F64).seed(5);
            let layer = if causal { layer.causal() } else { layer }.build();
            let out = if at_once {
                layer.forward(&x)
            } else {
                let later = |i: usize| if causal && i % length > i / length { -1e9 } else { 0.0 };
                let mask = (0..length * length).map(later).collect::<Vec<f64>>();
                net.scope.set("mask", Tensor::from_vec([length, length], mask)?);
                let mask = net.net.persistable("mask", DType::F64, &[length, length], Expr::clone);
                let split = |layer: &Linear, axes: &[i32]| {
                    layer.forward(&x).reshape(&[0, 0, heads as i32, depth as i32]).transpose(axes)
                };
                let (q, v) = (split(&layer.query, &[0, 2, 1, 3]), split(&layer.value, &[0, 2, 1, 3]));
                let k = split(&layer.key, &[0, 2, 3, 1]);
                let scores = q.matmul(&k) * 0.5 + &mask;
                let found = scores.softmax(-1).matmul(&v).transpose(&[0, 2, 1, 3]);
                layer.output.forward(&found.reshape(&[0, 0, -1]))
            };
            let gradients = net.gradients(&out.square().mean())?;
            let fetches: Vec<_> = [&out].into_iter().chain(&gradients).collect();
            let alone = net.run(1, &fetches)?;
            for threads in [2, 3, 7] {
                assert_eq!(net.run(threads, &fetches)?, alone, "{threads} threads");
            }
            values.push(alone);
        }
        assert_eq!(values[0].len(), 17);
        for (at_once, composed) in values[0].iter().zip(&values[1]) {
            assert_near(at_once, composed);
        }
    }
    Ok(())
}

#[test]
fn composed_layers_have_third_derivatives() -> Result<()> {
    let net = Builder::new();
    let x = net.parameter("x", DType::F64, &[2, 1, 3], |w| Init::Constant(0.5).emit(w, 0));
    let mut last = Lstm::builder(&net, 3, 2).dtype(DType::F64).build().forward(&x).0.name();
    let (mut program, mut names) = (net.program()?.clone(), vec![]);
    for _ in 0..3 {
        let next = gradients(&mut program, &[&last], &["x"], &Default::default())?.entries()[0].unwrap();
        last = program.name(next).to_string();
        names.push(last.clone());
    }
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let third = executor.run(&program, &mut scope, &[], &[&names[2]])?[0].to_f64s();
    assert!(third.iter().all(|x| x.is_finite()) && third.iter().any(|x| *x != 0.0), "{third:?}");
    Ok(())
}

#[test]
fn products_have_third_derivatives_where_factors_are_zero() -> Result<()> {
    let net = Builder::new();
    let mut last = net.parameter("x", DType::F64, &[2, 5, 2], Expr::clone).prod(&[0, 2]).name();
    let mut program = net.program()?.clone();
    for _ in 0..3 {
        let next = gradients(&mut program, &[&last], &["x"], &Default::default())?.entries()[0].unwrap();
        last = program.name(next).to_string();
    }
    let factors: [[f64; 4]; 5] =
        [[2.0, 3.0, 5.0, 7.0], [2.0, 3.0, 0.0, 7.0], [0.0, 3.0, 5.0, 0.0], [0.0, 0.0, 5.0, 0.0], [0.0; 4]];
    let at = |i: usize| factors[i / 2 % 5][i / 10 * 2 + i % 2];
    let mut scope = Scope::new();
    scope.set("x", Tensor::from_vec([2, 5, 2], (0..20).map(at).collect())?);
    let third = Executor::new().run(&program, &mut scope, &[], &[&last])?[0].to_f64s();
    // Two of the other three factors cancel, in either order.
    let expected: Vec<f64> =
        (0..20).map(|i| 2.0 * (factors[i / 2 % 5].iter().sum::<f64>() - at(i))).collect();
    assert_eq!(third, expected);
    Ok(())
}

#[test]
fn keys_may_be_others_than_queries() {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 3, 8]);
    let seen = net.input("seen", DType::F32, &[2, 5, 8]);
    let layer = || MultiHeadAttention::builder(&net, 8, 2);
    for layer in [layer().build(), layer().causal().build()] {
        assert_eq!(layer.cross_attention(&x, &seen).dims().to_string(), "[2, 3, 8]");
    }
    let uneven = MultiHeadAttention::builder(&net, 8, 3).build();
    for failed in [&uneven.query.weight, &uneven.output.weight, &uneven.forward(&x)] {
        let error = failed.check().unwrap_err().to_string();
        assert!(error.starts_with("attribute `heads`: a width of 8 is not divisible by 3 heads\n  at "));
    }
}

#[test]
fn normalisation_is_by_row_group_or_channel() -> Result<()> {
    let mut net = Net::new();
    let x = net.data("x", &[2, 6, 3, 5])?;
    let rows = LayerNorm::builder(&net.net, 90).dtype(DType::F64).build().forward(&x.reshape(&[2, 90]));
    let one_group = GroupNorm::builder(&net.net, 1, 6).dtype(DType::F64).build().forward(&x);
    let groups = GroupNorm::builder(&net.net, 6, 6).dtype(DType::F64).build().forward(&x);
    let channels = InstanceNorm::builder(&net.net, 6).dtype(DType::F64).build().forward(&x);
    // Channels as one sample.
    let as_channels = x.reshape(&[1, 12, 15]);
    let batch = BatchNorm::builder(&net.net, 12).dtype(DType::F64).build().forward(&as_channels);
    let values = net.run(1, &[&rows, &one_group, &groups, &channels, &batch])?;
    assert_near(&values[0], &values[1]);
    assert_near(&values[2], &values[3]);
    assert_near(&values[3], &values[4]);
    let mean: f64 = values[0][..90].iter().sum::<f64>() / 90.0;
    let square: f64 = values[0][..90].iter().map(|x| x * x).sum::<f64>() / 90.0;
    assert!(mean.abs() < 1e-12 && (square - 1.0).abs() < 1e-4, "{mean} {square}");
    Ok(())
}

#[test]
fn batch_norm_learns_the_statistics_that_it_uses_later() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2]);
    let norm = BatchNorm { momentum: 0.5, ..BatchNorm::builder(&net, 2).build() };
    let trained = norm.forward(&x);
    let used = {
        let net = Builder::new();
        let x = net.input("x", DType::F32, &[-1, 2]);
        let y = BatchNorm::builder(&net, 2).build().infer(&x).name();
        (net, y)
    };
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::from_vec([4, 2], vec![1.0_f32, 10.0, 3.0, 30.0, 5.0, 10.0, 7.0, 30.0])?;
    for _ in 0..40 {
        executor.run(&net.program()?, &mut scope, &[("x", &x)], &[])?;
    }
    let trained = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&trained.name()])?;
    let before = scope.get(&norm.mean.name())?.to_f64s();
    let used = executor.run(&used.0.program()?, &mut scope, &[("x", &x)], &[&used.1])?;
    for (trained, used) in trained[0].to_f64s().iter().zip(used[0].to_f64s()) {
        assert!((trained - used).abs() < 1e-5, "{trained} {used}");
    }
    assert_eq!(scope.get(&norm.mean.name())?.to_f64s(), before);
    Ok(())
}

#[test]
fn dropout_masks_differ_by_step_and_repeat_by_seed() -> Result<()> {
    let run = |seed: i32| -> Result<Vec<Vec<f64>>> {
        let net = Builder::new();
        let x = net.parameter("x", DType::F32, &[1000], |x| Init::Constant(3.0).emit(x, 0));
        let y = Dropout::new(&net, 0.25, seed).forward(&x);
        let gradient = Sgd { rate: 0.0 }.minimize(&y.sum(&[]))?.complete()?[0].1.name();
        let (mut executor, mut scope) = (Executor::new(), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let mut all = vec![];
        for _ in 0..2 {
            let fetched = executor.run(&net.program()?, &mut scope, &[], &[&y.name(), &gradient])?;
            let (y, gradient) = (fetched[0].to_f64s(), fetched[1].to_f64s());
            assert!(y.iter().zip(gradient).all(|(y, gradient)| (y - 3.0 * gradient).abs() < 1e-6));
            let kept = y.iter().filter(|y| **y != 0.0).count();
            assert!((700..800).contains(&kept), "{kept}");
            assert!(y.iter().all(|y| *y == 0.0 || (y - 4.0).abs() < 1e-6));
            all.push(y);
        }
        Ok(all)
    };
    let (first, again, other) = (run(7)?, run(7)?, run(70)?);
    assert_eq!(first, again);
    assert_ne!(first[0], first[1]);
    assert_ne!(first[0], other[0]);
    Ok(())
}

#[test]
fn windows_are_pooled_as_they_are_described() -> Result<()> {
    let mut net = Net::new();
    let x = net.net.persistable("x", DType::F64, &[1, 1, 3, 3], Expr::clone);
    net.scope.set("x", Tensor::from_vec([1, 1, 3, 3], (1..10).map(f64::from).collect())?);
    let pools = [
        Pool2d::max(2),
        Pool2d::max(2).ceil(),
        Pool2d::max(2).stride(1),
        Pool2d::average(2).stride(1).size(1, 3),
        Pool2d::average(3).stride(2).padding(1),
        Pool2d::average(3).stride(2).padding(1).counting_padding(),
        Pool2d::average(2).adaptive(),
    ];
    let pooled = pools.iter().map(|pool| pool.forward(&x)).collect::<Vec<_>>();
    let values = net.run(1, &pooled.iter().collect::<Vec<_>>())?;
    let expected: [&[f64]; 7] = [
        &[5.0],
        &[5.0, 6.0, 8.0, 9.0],
        &[5.0, 6.0, 8.0, 9.0],
        &[2.0, 5.0, 8.0],
        &[3.0, 4.0, 6.0, 7.0],
        &[12.0 / 9.0, 16.0 / 9.0, 24.0 / 9.0, 28.0 / 9.0],
        &[3.0, 4.0, 6.0, 7.0],
    ];
    for (values, expected) in values.iter().zip(expected) {
        assert_near(values, expected);
    }
    Ok(())
}

#[test]
fn transposed_convolution_is_the_gradient_of_one() -> Result<()> {
    let mut net = Net::new();
    let (image, x) = (net.data("image", &[2, 6, 9, 9])?, net.data("x", &[2, 4, 4, 4])?);
    let options = Conv2d::builder(&net.net, 6, 4, 3).stride(2).dilation(2).padding(1).groups(2);
    let conv = options.dtype(DType::F64).bias(None).seed(3).build();
    let options = Conv2dTranspose::builder(&net.net, 4, 6, 3).stride(2).dilation(2).padding(1).groups(2);
    let mut transpose = options.dtype(DType::F64).bias(Some(Init::Constant(0.5))).build();
    // With the same filters, `Σ conv(image) * x = Σ image * transpose(x)`.
    transpose.weight = conv.weight.clone();
    let out = transpose.forward(&x);
    let inner = |a: &Expr, b: &Expr| (a * b).sum(&[]);
    let one = inner(&conv.forward(&image), &x);
    let other = inner(&image, &(&out - 0.5));
    let values = net.run(2, &[&one, &other, &out])?;
    assert_near(&values[0], &values[1]);
    assert_eq!(values[2].len(), 2 * 6 * 9 * 9);
    let uneven = Conv2dTranspose::builder(&net.net, 4, 3, 1).groups(2).build();
    let refused = uneven.forward(&x).check().unwrap_err().to_string();
    assert!(refused.contains("3 channels are not divisible by 2 groups"), "{refused}");
    Ok(())
}

#[test]
fn layers_train() -> Result<()> {
    // The sum of the first elements of a sequence, from its last state.
    let sequences = train(
        |net| {
            let x = noise(net, "x", &[6, 32, 3], 1);
            let (hidden, _) = Lstm::builder(net, 3, 16).seed(2).build().forward(&x);
            let last = hidden.slice(0, -1, 6).squeeze(&[0]);
            let out = Linear::builder(net, 16, 1).seed(3).build().forward(&last);
            let sums = x.sum(&[0]).slice(1, 0, 1);
            out.square_error(&sums).mean()
        },
        200,
    )?;
    // The element of a sequence that is farthest from 0.
    let attention = train(
        |net| {
            let x = noise(net, "x", &[32, 5, 8], 4);
            let seen = MultiHeadAttention::builder(net, 8, 2).seed(5).build().forward(&x);
            let h = LayerNorm::builder(net, 8).build().forward(&(&x + &seen));
            let out = Linear::builder(net, 8, 1).seed(6).build().forward(&h);
            out.max_over(&[1]).square_error(&x.max_over(&[1, 2]).unsqueeze(&[1])).mean()
        },
        200,
    )?;
    let images = train(
        |net| {
            let x = noise(net, "x", &[16, 1, 8, 8], 7);
            let h = Conv2d::builder(net, 1, 4, 3).padding(1).seed(8).build().forward(&x);
            let h = BatchNorm::builder(net, 4).build().forward(&h).gelu(true);
            let h = Pool2d::average(2).forward(&h).reshape(&[0, -1]);
            let h = Dropout::new(net, 0.1, 9).forward(&h);
            let out = Linear::builder(net, 64, 1).seed(10).build().forward(&h);
            out.square_error(&x.mean_over(&[1, 2, 3]).unsqueeze(&[1])).mean()
        },
        200,
    )?;
    for losses in [sequences, attention, images] {
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let (first, last) = (mean(&losses[..10]), mean(&losses[190..]));
        assert!(last < 0.3 * first, "{first} {last}");
    }
    Ok(())
}
