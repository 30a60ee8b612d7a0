//! Layers: their values, and their gradients by central differences.

use autobwd::{Builder, DType, Expr, Result, Tensor};
use autobwd_ops::{
    Math,
    nn::{
        Conv1d, Conv3d, CrossEntropyLoss, Dropout, Embedding, GaussianNoise, LayerNorm, Linear,
        MultiHeadAttention, RmsNorm, StepSeed,
    },
    optim::{Optimizer, Sgd},
};

use crate::support::{assert_gradients, assert_near, elements, numbers, run, started};

#[test]
fn convolution_of_sequences_is_its_sum() -> Result<()> {
    let tape = autobwd::eager();
    let (n, length, size, padding, stride) = (2, 7, 3, 1, 2);
    let x = tape.constant(Tensor::from_vec([n, 2, length], numbers(n * 2 * length, 0.0))?);
    let layer = Conv1d::builder(&tape, 2, 3, size).padding(padding).stride(stride).dtype(DType::F64).seed(1);
    let layer = layer.name("conv").build();
    assert_eq!(layer.weight.dims().to_string(), "[3, 2, 3]");
    let out = layer.forward(&x);
    assert_eq!(out.dims().to_string(), "[2, 3, 4]");
    let (x, w) = (x.tensor()?.to_f64s(), layer.weight.tensor()?.to_f64s());
    let mut expected = vec![];
    for (sample, filter, at) in
        (0..n).flat_map(|s| (0..3).flat_map(move |f| (0..4).map(move |at| (s, f, at))))
    {
        let mut sum = 0.0;
        for (channel, k) in (0..2).flat_map(|c| (0..size).map(move |k| (c, k))) {
            let place = at * stride as usize + k;
            if (1..=length).contains(&place) {
                sum += x[(sample * 2 + channel) * length + place - 1] * w[(filter * 2 + channel) * size + k];
            }
        }
        expected.push(sum);
    }
    assert_near(&out, &expected);
    assert_gradients(&[&[1, 2, 4], &[3, 2, 3]], |net, x| {
        let mut layer = Conv1d::builder(net, 2, 3, 3).dtype(DType::F64).padding(1).dilation(1).build();
        layer.weight = x[1].clone();
        layer.forward(&x[0])
    });
    let e = Conv1d::builder(&tape, 3, 2, 1).groups(2).build().weight.check().unwrap_err();
    assert!(e.message().contains("3 channels are not divisible by 2 groups"), "{e}");
    Ok(())
}

#[test]
fn convolution_of_volumes_is_its_sum() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([2, 4, 5, 3, 4], numbers(480, 0.0))?);
    let layer = Conv3d::builder(&tape, 4, 6, 2).groups(2).padding(1).stride(2).dilation(2).dtype(DType::F64);
    let layer = layer.seed(1).build();
    assert_eq!(layer.weight.dims().to_string(), "[6, 2, 2, 2, 2]");
    let out = layer.forward(&x);
    assert_eq!(out.dims().to_string(), "[2, 6, 3, 2, 2]");
    let (x, w) = (x.tensor()?.to_f64s(), layer.weight.tensor()?.to_f64s());
    let index = |dims: &[usize], at: &[usize]| dims.iter().zip(at).fold(0, |sum, (dim, i)| sum * dim + i);
    let positions = |dims: &[usize]| -> Vec<Vec<usize>> {
        dims.iter().fold(vec![vec![]], |all, dim| {
            all.iter().flat_map(|at| (0..*dim).map(move |i| [&at[..], &[i]].concat())).collect()
        })
    };
    let mut expected = vec![];
    for at in positions(&[2, 6, 3, 2, 2]) {
        let mut sum = 0.0;
        for tap in positions(&[2, 2, 2, 2]) {
            let place = [0, 1, 2].map(|axis| (at[2 + axis] * 2 + tap[1 + axis] * 2).wrapping_sub(1));
            if place.iter().zip([5, 3, 4]).all(|(i, dim)| *i < dim) {
                let source = [at[0], at[1] / 3 * 2 + tap[0], place[0], place[1], place[2]];
                let filter = [&[at[1]], &tap[..]].concat();
                sum += x[index(&[2, 4, 5, 3, 4], &source)] * w[index(&[6, 2, 2, 2, 2], &filter)];
            }
        }
        expected.push(sum);
    }
    assert_near(&out, &expected);
    Ok(())
}

#[test]
fn rms_norm_scales_vectors_to_length_one() {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([2, 3], numbers(6, 0.0)).unwrap());
    let layer = RmsNorm::builder(&tape, 3).dtype(DType::F64).epsilon(0.5).build();
    let rows = x.tensor().unwrap().to_f64s();
    let root = |row: &[f64]| (row.iter().map(|x| x * x).sum::<f64>() / 3.0 + 0.5).sqrt();
    let expected: Vec<f64> = rows.chunks(3).flat_map(|row| row.iter().map(|x| x / root(row))).collect();
    assert_near(&layer.forward(&x), &expected);
    assert_gradients(&[&[2, 3], &[3]], |_, x| {
        RmsNorm { scale: x[1].clone(), epsilon: 0.5, is_shifted: false }.forward(&x[0])
    });
    let narrow = tape.constant(Tensor::from_vec([2, 2], vec![0.0_f64; 4]).unwrap());
    assert!(layer.forward(&narrow).check().is_err());
}

#[test]
fn shifted_rms_norm_multiplies_by_one_plus_its_scale() {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([2, 3], numbers(6, 0.0)).unwrap());
    let plain = RmsNorm::builder(&tape, 3).dtype(DType::F64).build().forward(&x).tensor().unwrap().to_f64s();
    let mut layer = RmsNorm::builder(&tape, 3).dtype(DType::F64).shifted().build();
    assert_near(&layer.forward(&x), &plain);
    layer.scale = tape.constant(Tensor::from_vec([3], vec![1.0_f64; 3]).unwrap());
    assert_near(&layer.forward(&x), &plain.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
}

#[test]
fn layers_of_pytorch_have_its_names_and_shapes() -> Result<()> {
    let net = Builder::new();
    Linear::builder(&net, 3, 2).torch().name("linear").build();
    Embedding::builder(&net, 5, 2).torch().name("embedding").build();
    LayerNorm::builder(&net, 2).torch().name("norm").build();
    RmsNorm::builder(&net, 2).torch().name("rms").build();
    Conv1d::builder(&net, 4, 6, 3).torch().name("conv").build();
    let program = net.program()?;
    let parameters = program.parameters().map(|var| {
        let dims = program.root().vars.get(&var).map(|desc| desc.dims.to_string());
        format!("{} {}", program.name(var), dims.unwrap_or_default())
    });
    let expected = [
        "linear.weight [2, 3]",
        "linear.bias [2]",
        "embedding.weight [5, 2]",
        "norm.weight [2]",
        "norm.bias [2]",
        "rms.weight [2]",
        "conv.weight [6, 4, 3]",
        "conv.bias [6]",
    ];
    assert_eq!(parameters.collect::<Vec<_>>(), expected);

    // The same function as a layer with the transposed weights, also within a loss.
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([2, 3], numbers(6, 0.0))?);
    let labels = tape.constant(Tensor::from_vec([2, 1], vec![1_i64, 0])?);
    let own = Linear::builder(&tape, 3, 2).dtype(DType::F64).name("own").build();
    let mut torch = Linear::builder(&tape, 3, 2).dtype(DType::F64).torch().name("torch").build();
    torch.weight = own.weight.transpose(&[1, 0]);
    assert_near(&torch.forward(&x), &own.forward(&x).tensor()?.to_f64s());
    let [expected, found] = [&own, &torch].map(|layer| CrossEntropyLoss::new().of_linear(&x, layer, &labels));
    assert_near(&found, &expected.tensor()?.to_f64s());
    Ok(())
}

/// Logits `[4, 3]`, labels with an ignored one, and weights of the classes.
fn classified(net: &Builder) -> [Expr; 3] {
    let labels = Tensor::from_vec([4, 1], vec![2_i64, 0, -100, 1]).unwrap();
    let weights = Tensor::from_vec([3], vec![0.5_f64, 2.0, 1.5]).unwrap();
    let logits = Tensor::from_vec([4, 3], numbers(12, 0.0)).unwrap();
    [logits, labels, weights].map(|x| net.constant(x))
}

#[test]
fn cross_entropy_has_smooth_labels_and_weighted_classes() -> Result<()> {
    let tape = autobwd::eager();
    let [logits, labels, weights] = classified(&tape);
    let logs = logits.log_softmax(-1).tensor()?.to_f64s();
    let (given, all) = ([(0, 2), (1, 0), (3, 1)], [0.5, 2.0, 1.5]);
    for (smoothing, weighted) in [(0.0, false), (0.25, false), (0.0, true), (0.25, true)] {
        let weight = |class: usize| if weighted { all[class] } else { 1.0 };
        let (mut sum, mut total) = (0.0, 0.0);
        for (row, label) in given {
            let spread: f64 = (0..3).map(|class| weight(class) * logs[row * 3 + class]).sum();
            sum -= (1.0 - smoothing) * weight(label) * logs[row * 3 + label] + smoothing / 3.0 * spread;
            total += weight(label);
        }
        let loss = |weights: &Expr| {
            let loss = CrossEntropyLoss::new().label_smoothing(smoothing);
            if weighted { loss.class_weights(weights) } else { loss }
        };
        let found = loss(&weights).forward(&logits, &labels);
        assert_eq!(found.dims().to_string(), "[]");
        assert_near(&found, &[sum / total]);
        assert_gradients(&[&[4, 3]], |net, x| {
            let [_, labels, weights] = classified(net);
            loss(&weights).forward(&x[0], &labels)
        });
    }
    let plain = CrossEntropyLoss::new().forward(&logits, &labels);
    assert_near(&plain, &logits.mean_cross_entropy(&labels).tensor()?.to_f64s());
    assert!(CrossEntropyLoss::new().class_weights(&logits).forward(&logits, &labels).check().is_err());
    Ok(())
}

#[test]
fn every_step_has_other_noise() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1]);
    let noisy = GaussianNoise::new(&net, 2.0, 1).forward(&x);
    let seed = net.name_scope("a", || StepSeed::new(&net, "noise", 1));
    let uniform = x.rand_like(&seed.next());
    assert_eq!(seed.counter.name(), "a.noise.seed");
    let dropout = net.name_scope("a", || Dropout::named(&net, "mask", 0.5, 1));
    assert_eq!(dropout.seed.name(), "a.mask.seed");
    let mut scope = started(&net)?;
    let x = Tensor::from_vec([1000], vec![1.0_f32; 1000])?;
    let mut all = vec![];
    for _ in 0..2 {
        let fetched = run(&net, &mut scope, &[("x", &x)], &[&noisy, &uniform])?;
        let noise = fetched[0].slice::<f32>()?;
        let mean = noise.iter().sum::<f32>() / 1000.0;
        let square = noise.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 1000.0;
        assert!((mean - 1.0).abs() < 0.3 && (square - 4.0).abs() < 0.6, "{mean} {square}");
        all.push(fetched);
    }
    assert_ne!(all[0][0].bytes(), all[1][0].bytes());
    assert_ne!(all[0][1].bytes(), all[1][1].bytes());
    Ok(())
}

#[test]
fn layers_with_masks_and_noise_train() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 4, 8]);
    let is_word = net.input("is_word", DType::Bool, &[-1, 4]);
    let attention = MultiHeadAttention::builder(&net, 8, 2).causal().name("attention").seed(1).build();
    let h = attention.masked_attention(&x, &x, &is_word.unsqueeze(&[1, 2]));
    let h = GaussianNoise::new(&net, 0.1, 2).forward(&RmsNorm::builder(&net, 8).build().forward(&h));
    let out = Linear::builder(&net, 8, 2).name("head").build().forward(&h);
    let labels = net.input("labels", DType::I64, &[-1, 4, 1]);
    let loss = CrossEntropyLoss::new().label_smoothing(0.1).forward(&out, &labels);
    assert_eq!(Sgd { rate: 0.1 }.minimize(&loss)?.complete()?.len(), 11);
    let mut scope = started(&net)?;
    let before = elements(&scope, "attention.query.w");
    let x = Tensor::from_vec([2, 4, 8], numbers(64, 0.0).iter().map(|x| *x as f32).collect())?;
    let words: Vec<_> =
        [true, true, true, false].repeat(2).into_iter().map(autobwd::tensor::Bool::from).collect();
    let words = Tensor::from_vec([2, 4], words)?;
    let labels = Tensor::from_vec([2, 4, 1], vec![0_i64, 1, 0, -100, 1, 1, 0, -100])?;
    let feeds = [("x", &x), ("is_word", &words), ("labels", &labels)];
    let mut losses = vec![];
    for _ in 0..20 {
        losses.push(run(&net, &mut scope, &feeds, &[&loss])?[0].item()?);
    }
    assert!(losses[19] < losses[0] && elements(&scope, "attention.query.w") != before, "{losses:?}");
    Ok(())
}
