//! Frozen models have the results of the models as they are written, but for rounding.

mod branches;
mod excitation;

use autobwd::{Builder, DType, Executor, Expr, New, Result, Tensor, emit};
use autobwd_ops::{
    Math, Model,
    activation::{HardSigmoid, Swish},
    concat,
    control::cond,
    conv::{Conv2dOp, ConvAttrs, DepthwiseConv2d},
    dropout::{DropoutImplementation, DropoutOp},
    nn::{BatchNorm, Conv2d, Pool2d},
    norm::DataLayout,
    optim::{Optimizer, Sgd},
    pool::{Pool2dOp, PoolAttrs, PoolingType},
    windows::PaddingAlgorithm,
};

/// Numbers between -1 and 1, other ones for each name.
fn numbers(name: &str, dims: &[usize]) -> Result<Tensor> {
    let seed = name.bytes().fold(7_u64, |seed, byte| (seed * 31 + u64::from(byte)) % 9973);
    let number = |i: usize| ((i as f64 + 1.0) * 1.37 + seed as f64).sin() as f32;
    Tensor::from_vec(dims, (0..dims.iter().product()).map(number).collect())
}

/// The model that computes some variables, with random parameters: those that divide, and variances, are positive, and
/// filters keep the size of numbers.
fn model(net: &Builder, fetches: &[&Expr]) -> Result<Model> {
    let names: Vec<String> = fetches.iter().map(|fetch| fetch.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut model = Model::for_inference(&*net.program()?, &autobwd::Scope::new(), &names)?;
    for (var, desc) in model.program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
        let name = model.program.name(*var);
        let dims: Vec<usize> = desc.dims.iter().map(|dim| dim.get().unwrap_or(1)).collect();
        let mut value = numbers(name, &dims)?;
        if ["variance", "scale", "positive"].iter().any(|part| name.contains(part)) {
            value.slice_mut::<f32>()?.iter_mut().for_each(|x| *x = 1.25 + x.abs());
        } else if let [_, terms @ ..] = &dims[..]
            && dims.len() == 4
        {
            let size = (terms.iter().product::<usize>() as f32).sqrt();
            value.slice_mut::<f32>()?.iter_mut().for_each(|x| *x *= 1.5 / size);
        }
        model.scope.set(name, value);
    }
    Ok(model)
}

/// Results that differ by rounding alone: by 1e-5 of the largest.
fn compare(expected: &[Tensor], found: &[Tensor], context: &str) {
    for (expected, found) in expected.iter().zip(found) {
        assert_eq!(expected.dims(), found.dims(), "{context}");
        let (expected, found) = (expected.to_f64s(), found.to_f64s());
        let largest = expected.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        for (i, (x, y)) in expected.iter().zip(&found).enumerate() {
            let is_near = (x - y).abs() <= 1e-5 * largest || x.is_nan() && y.is_nan();
            assert!(is_near, "element {i}: {y} for {x}, {context}");
        }
    }
}

/// Compares the results of a frozen model with those of the model as it is written, for images of several shapes and on
/// 1, 2 and 3 threads. Returns the operators of the frozen model.
fn frozen(net: &Builder, fetches: &[&Expr], shapes: &[&[usize]]) -> Result<Vec<String>> {
    let (mut written, mut frozen) = (model(net, fetches)?, model(net, fetches)?);
    frozen.freeze()?;
    let operators = frozen.program.root().ops.iter().map(|op| op.ty.to_string()).collect::<Vec<_>>();
    let mut executors = [1, 2, 3].map(Executor::with_threads);
    for dims in shapes {
        let inputs: Vec<Tensor> =
            written.feeds.iter().map(|name| numbers(name, dims)).collect::<Result<_>>()?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let expected = written.run(&mut executors[0], &inputs)?;
        let [one, others @ ..] = executors.each_mut().map(|executor| frozen.run(executor, &inputs));
        let one = one?;
        for other in others {
            assert!(one == other?, "{dims:?}: {operators:?}");
        }
        compare(&expected, &one, &format!("{dims:?}: {operators:?}"));
    }
    Ok(operators)
}

/// Images of any number, height and width.
fn images(net: &Builder, channels: usize) -> Expr {
    net.input("x", DType::F32, &[-1, channels as i64, -1, -1])
}

/// Shapes of images with so many channels: several images, none, one pixel, one row.
fn shapes(channels: usize) -> Vec<[usize; 4]> {
    [[2, 7, 9], [1, 12, 11], [0, 5, 6], [3, 1, 1], [1, 1, 8]].map(|[n, h, w]| [n, channels, h, w]).to_vec()
}

/// [`frozen`] for all [`shapes`].
fn frozen_for_all(net: &Builder, fetches: &[&Expr], channels: usize) -> Result<Vec<String>> {
    let shapes = shapes(channels);
    frozen(net, fetches, &shapes.iter().map(|dims| &dims[..]).collect::<Vec<_>>())
}

/// A convolution that keeps the size of images.
fn conv(x: &Expr, filters: usize, size: usize) -> Expr {
    let channels = x.dims()[1].get().unwrap_or(1);
    Conv2d::builder(x.builder(), channels, filters, size).padding(size as i32 / 2).build().forward(x)
}

/// A convolution with such attributes and a filter of its own.
fn conv_with(x: &Expr, filter: &[usize], attrs: ConvAttrs) -> Expr {
    let filter = x.builder().parameter("filter", DType::F32, filter, Expr::clone);
    emit(Conv2dOp { input: x.into(), filter: (&filter).into(), output: New, conv: attrs }).output
}

fn normalised(x: &Expr) -> Expr {
    BatchNorm::builder(x.builder(), x.dims()[1].get().unwrap_or(1)).build().infer(x)
}

/// A number for each channel, in dimensions that broadcast.
fn constant(net: &Builder, name: &str, dims: &[usize]) -> Expr {
    net.parameter(name, DType::F32, dims, Expr::clone)
}

#[test]
fn normalisations_are_folded_into_convolutions() -> Result<()> {
    for channels in [1, 3, 16, 17, 33] {
        for (filters, size) in [(1, 3), (3, 1), (16, 3), (17, 5), (33, 3)] {
            let net = Builder::new();
            let y = normalised(&conv(&images(&net, channels), filters, size)).relu();
            let operators = frozen_for_all(&net, &[&y], channels)?;
            let is_conversion = |ty: &String| ty.ends_with("channel_blocks");
            assert_eq!(operators.iter().filter(|ty| !is_conversion(ty)).count(), 1, "{operators:?}");
            assert!(operators.len() <= 3, "{operators:?}");
        }
    }
    let net = Builder::new();
    let y = normalised(&conv(&images(&net, 3), 20, 3)).relu();
    assert_eq!(frozen_for_all(&net, &[&y], 3)?, ["blocked_conv2d", "from_channel_blocks"]);
    Ok(())
}

/// Products at the points of Winograd's algorithm are summed in blocks of 64 channels.
#[test]
fn convolutions_of_many_channels_are_frozen() -> Result<()> {
    let net = Builder::new();
    let y = conv(&images(&net, 80), 40, 3);
    let expected = ["channel_blocks", "blocked_winograd_conv2d", "from_channel_blocks"];
    assert_eq!(frozen_for_all(&net, &[&y], 80)?, expected);
    Ok(())
}

#[test]
fn depthwise_convolutions_are_frozen() -> Result<()> {
    for (channels, size, stride, dilation) in [
        (16, 3, 1, 1),
        (17, 3, 2, 1),
        (33, 5, 1, 1),
        (3, 5, 2, 1),
        (20, 3, 3, 1),
        (18, 3, 1, 2),
        (16, 7, 1, 1),
    ] {
        let net = Builder::new();
        let x = images(&net, channels);
        let filter = constant(&net, "filter", &[channels, 1, size, size]);
        let attrs = ConvAttrs::default()
            .strides([stride; 2])
            .paddings([size as i32 / 2 * dilation; 2])
            .dilations([dilation; 2])
            .groups(channels as i32);
        let op = DepthwiseConv2d { input: (&x).into(), filter: (&filter).into(), output: New, conv: attrs };
        let y = normalised(&emit(op).output).hard_swish();
        let expected = ["channel_blocks", "blocked_depthwise_conv2d", "from_channel_blocks"];
        assert_eq!(frozen_for_all(&net, &[&y], channels)?, expected);
    }
    // Two filters for each channel.
    let net = Builder::new();
    let x = images(&net, 16);
    let y = conv_with(&x, &[32, 1, 3, 3], ConvAttrs::default().paddings([1, 1]).groups(16)).relu();
    assert_eq!(frozen_for_all(&net, &[&conv(&y, 5, 1)], 16)?.last().unwrap(), "from_channel_blocks");
    Ok(())
}

#[test]
fn grouped_convolutions_are_frozen() -> Result<()> {
    for (groups, share, filters) in [
        (2, 16, 32),
        (2, 16, 64),
        (8, 4, 32),
        (2, 4, 8),
        (3, 4, 12),
        (2, 8, 16),
        (5, 2, 10),
        (2, 5, 10),
        (2, 3, 32),
        (4, 16, 8),
    ] {
        for size in [1, 3] {
            let net = Builder::new();
            let x = images(&net, groups * share);
            let conv = Conv2d::builder(&net, groups * share, filters, size).groups(groups as i32);
            let y = normalised(&conv.padding(size as i32 / 2).stride(2).build().forward(&x)).relu6();
            frozen_for_all(&net, &[&y], groups * share)?;
            // Of images in blocks.
            let y = self::conv(&y, groups * share, 3).relu();
            let conv = Conv2d::builder(&net, groups * share, filters, size).groups(groups as i32);
            frozen_for_all(&net, &[&conv.padding(1).build().forward(&y)], groups * share)?;
        }
    }
    Ok(())
}

#[test]
fn residuals_are_added_by_convolutions() -> Result<()> {
    for channels in [16, 10, 32] {
        // Before and after the function.
        let net = Builder::new();
        let x = conv(&images(&net, 3), channels, 3).relu();
        let y = (normalised(&conv(&x, channels, 3)) + &x).relu();
        let z = &y + normalised(&conv(&y, channels, 1)).silu();
        let operators = frozen_for_all(&net, &[&conv(&z, 4, 1)], 3)?;
        assert!(operators.contains(&"elementwise_add".into()) && operators.len() == 6, "{operators:?}");

        // A branch with fewer pixels, of two convolutions.
        let net = Builder::new();
        let x = images(&net, channels);
        let halved = |size: usize| {
            let conv = Conv2d::builder(&net, channels, 24, size).stride(2).padding(size as i32 / 2);
            normalised(&conv.build().forward(&x))
        };
        let y = (halved(3) + halved(1)).relu();
        let operators = frozen_for_all(&net, &[&y], channels)?;
        assert!(!operators.contains(&"elementwise_add".into()), "{operators:?}");

        // The input itself, and what is added to itself.
        let net = Builder::new();
        let x = images(&net, channels);
        let y = &x + conv(&x, channels, 3);
        frozen_for_all(&net, &[&(&y + &y).tanh()], channels)?;
    }
    Ok(())
}

#[test]
fn residuals_of_other_shapes_are_broadcast() -> Result<()> {
    for size in [[-1, -1], [5, 6]] {
        let net = Builder::new();
        let [x, other] = ["x", "other"].map(|name| net.input(name, DType::F32, &[-1, 16, size[0], size[1]]));
        let y = (conv(&x, 16, 3) + &other).relu();
        let (mut written, mut frozen) = (model(&net, &[&y])?, model(&net, &[&y])?);
        frozen.freeze()?;
        for dims in [[1, 16, 1, 1], [1, 16, 5, 6], [3, 16, 5, 6], [3, 16, 1, 1]] {
            if size[0] > 0 && dims[2] == 1 {
                continue;
            }
            let of = |name: &String| numbers(name, if name == "x" { &[3, 16, 5, 6] } else { &dims });
            let inputs: Vec<Tensor> = frozen.feeds.iter().map(of).collect::<Result<_>>()?;
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let run = |model: &mut Model| model.run(&mut Executor::new(), &inputs);
            compare(&run(&mut written)?, &run(&mut frozen)?, &format!("{dims:?}"));
        }
    }
    Ok(())
}

#[test]
fn parts_of_channels_are_joined_and_split() -> Result<()> {
    for (first, second) in [(16, 16), (16, 10), (10, 16), (10, 10), (32, 1)] {
        let net = Builder::new();
        let x = images(&net, 3);
        let y = concat(&[&conv(&x, first, 3).relu(), &conv(&x, second, 1), &conv(&x, 5, 1)], 1);
        frozen_for_all(&net, &[&conv(&y, 8, 3)], 3)?;

        let net = Builder::new();
        let x = conv(&images(&net, 3), first + second, 3).relu();
        let parts = x.split(&[first as i32, second as i32], 1);
        let y = conv(&parts[0], 6, 3) + conv(&parts[1], 6, 1);
        frozen_for_all(&net, &[&y, &parts[1]], 3)?;
    }
    // Over another axis.
    let net = Builder::new();
    let x = conv(&images(&net, 3), 16, 3);
    frozen_for_all(&net, &[&conv(&concat(&[&x, &x], 2), 5, 3), &conv(&concat(&[&x, &x], -3), 5, 3)], 3)?;
    Ok(())
}

#[test]
fn images_in_blocks_are_pooled() -> Result<()> {
    let pools = [
        Pool2d::max(3).stride(2).padding(1),
        Pool2d::max(1).stride(2),
        Pool2d::average(3).stride(1).padding(1),
        Pool2d::average(3).stride(2).padding(1).counting_padding(),
        Pool2d::average(1),
        Pool2d::max(1).adaptive(),
        Pool2d::average(1).adaptive(),
        Pool2d::average(2).adaptive(),
        Pool2d::max(3).stride(2).ceil(),
        Pool2d::average(3).stride(2).padding(1).ceil(),
    ];
    for pool in pools {
        for channels in [16, 10] {
            let net = Builder::new();
            let x = conv(&images(&net, 3), channels, 3);
            let shapes = [&[2_usize, 3, 7, 9][..], &[1, 3, 12, 11], &[0, 3, 5, 6], &[2, 3, 3, 4]];
            frozen(&net, &[&conv(&pool.forward(&x).relu(), 4, 1)], &shapes)?;
        }
    }
    for kind in [PoolingType::Max, PoolingType::Avg] {
        let net = Builder::new();
        let x = conv(&images(&net, 3), 20, 3);
        let pooled = |pool: PoolAttrs| emit(Pool2dOp { x: (&x).into(), out: New, pool }).out;
        let global = pooled(PoolAttrs::new(kind, vec![2, 2]).global_pooling(true).paddings([1, 1]));
        let same = pooled(PoolAttrs::new(kind, vec![3, 2]).padding_algorithm(PaddingAlgorithm::Same));
        let uneven = pooled(PoolAttrs::new(kind, vec![3, 2]).strides([1, 2]).paddings([1, 2, 0, 1]));
        frozen_for_all(&net, &[&global, &same, &uneven], 3)?;
    }
    Ok(())
}

#[test]
fn values_that_others_read_are_kept() -> Result<()> {
    let net = Builder::new();
    let x = images(&net, 3);
    let convolved = conv(&x, 20, 3);
    let y = normalised(&convolved).relu();
    frozen_for_all(&net, &[&y, &convolved], 3)?;
    // A branch reads the result of a convolution.
    let mean = convolved.mean();
    let chosen = cond(&mean.less_than(&(&mean * 0.0)), || vec![convolved.tanh()], || vec![&convolved * 2.0]);
    frozen(&net, &[&y, &conv(&chosen[0], 4, 3)], &[&[2, 3, 7, 9], &[1, 3, 1, 1], &[1, 3, 4, 4]])?;
    // Statistics are fetched.
    let net = Builder::new();
    let y = normalised(&conv(&images(&net, 3), 20, 3));
    let program = net.program()?;
    let norm = program.root().ops.iter().find(|op| op.ty == "batch_norm").unwrap();
    let saved: Vec<Expr> =
        ["SavedMean", "SavedVariance"].map(|slot| net.existing(norm.outputs.get(slot)[0])).to_vec();
    frozen_for_all(&net, &[&y.relu(), &saved[0], &saved[1]], 3)?;
    // A mask is fetched.
    let net = Builder::new();
    let x = conv(&images(&net, 3), 20, 3);
    let dropped = |x: &Expr| {
        emit(DropoutOp {
            x: x.into(),
            seed_tensor: None,
            out: New,
            mask: New,
            dropout_prob: 0.5,
            dropout_implementation: DropoutImplementation::UpscaleInTrain,
            is_test: true,
            fix_seed: false,
            seed: 0,
        })
    };
    let (first, second) = (dropped(&x), dropped(&x.relu()));
    frozen_for_all(&net, &[&conv(&first.out, 4, 1), &conv(&second.out, 4, 3), &first.mask], 3)?;
    Ok(())
}

#[test]
fn filters_are_shared_and_computed() -> Result<()> {
    let net = Builder::new();
    let x = images(&net, 16);
    let filter = constant(&net, "filter", &[16, 16, 3, 3]);
    let convolved = |x: &Expr| normalised(&x.conv2d(&filter, 1, 1)).relu();
    let y = convolved(&convolved(&x));
    // One that is computed from parameters.
    let (v, scale) = (constant(&net, "v", &[3, 3, 16, 5]), constant(&net, "scale", &[5, 1, 1, 1]));
    let z = y.conv2d(&((v.transpose(&[3, 2, 0, 1]) * 0.5) / (&scale + 1.0)), 2, 1);
    let operators = frozen_for_all(&net, &[&z], 16)?;
    assert_eq!(operators.len(), 5, "{operators:?}");
    // One that is an input.
    let net = Builder::new();
    let x = images(&net, 3);
    let y = x.conv2d(&x.slice(0, 0, 1).mean_keepdim(&[2, 3]), 1, 1);
    frozen(&net, &[&conv(&y, 20, 3)], &[&[2, 3, 7, 9], &[1, 3, 4, 4]])?;
    Ok(())
}

#[test]
fn layouts_paddings_and_dilations_are_kept() -> Result<()> {
    let attrs = ConvAttrs::default;
    for attrs in [
        attrs().padding_algorithm(PaddingAlgorithm::Same).strides([2, 1]),
        attrs().padding_algorithm(PaddingAlgorithm::Valid),
        attrs().dilations([2, 1]).paddings([2, 1]),
        attrs().paddings([0, 2, 1, 3]).strides([1, 3]),
        attrs().data_format(DataLayout::Nhwc).paddings([1, 1]),
    ] {
        for open in [true, false] {
            let net = Builder::new();
            let (height, width) = if open { (-1, -1) } else { (9, 17) };
            let x = net.input("x", DType::F32, &[-1, 17, height, width]);
            let filter = if attrs.data_format == DataLayout::Nhwc { [17, 17, 3, 3] } else { [18, 17, 3, 3] };
            let y = conv_with(&x, &filter, attrs.clone()).relu();
            frozen(&net, &[&y], &[&[2, 17, 9, 17], &[0, 17, 9, 17]])?;
        }
    }
    Ok(())
}

#[test]
fn functions_follow_convolutions() -> Result<()> {
    let functions: [fn(&Expr) -> Expr; 16] = [
        |x| x.relu(),
        |x| x.relu6(),
        |x| x.leaky_relu(0.25),
        |x| x.leaky_relu(0.1),
        |x| x.sigmoid(),
        |x| x.silu(),
        |x| emit(Swish { x: x.into(), out: New, beta: 1.5 }).out,
        |x| x.hard_swish(),
        |x| emit(HardSigmoid { x: x.into(), out: New, slope: 0.3, offset: 0.4 }).out,
        |x| x.clip(0.0, 6.0),
        |x| x.clip(-0.5, 0.5),
        |x| x.gelu(false),
        |x| x.gelu(true),
        |x| (x - 1.0).abs().sqrt(),
        |x| x.softplus().mish().elu(0.5),
        |x| x.sin(),
    ];
    for (i, function) in functions.iter().enumerate() {
        for channels in [16, 10] {
            let net = Builder::new();
            let x = conv(&images(&net, 3), channels, 3);
            let y = function(&conv(&function(&x), channels, 1)) + &x;
            let z = function(&(conv(&y, channels, 1) + &y));
            frozen_for_all(&net, &[&conv(&z, 3, 1)], 3).inspect_err(|_| eprintln!("function {i}"))?;
        }
    }
    Ok(())
}

/// Lanes without a channel hold what the operators make of zeros, and zeros of filters do not hide NaN.
#[test]
fn lanes_without_a_channel_stay_finite() -> Result<()> {
    let net = Builder::new();
    let x = conv(&images(&net, 3), 10, 3).tanh() + constant(&net, "positive", &[10, 1, 1]) * 4.0;
    let x = conv_with(&x, &[10, 1, 1, 1], ConvAttrs::default().groups(10)).abs() + &x;
    let y = (&x - 1.0).sqrt();
    let z = (x.sigmoid() - 0.5).sqrt() * (&x - x.hard_swish() + 1.0).abs();
    frozen_for_all(&net, &[&conv(&y, 3, 1), &conv(&z, 3, 1)], 3)?;
    Ok(())
}

#[test]
fn constants_of_channels_are_folded() -> Result<()> {
    for channels in [16, 10, 1] {
        let net = Builder::new();
        let c = |name: &str, dims: &[usize]| constant(&net, name, dims);
        let (a, b) = (c("a", &[channels, 1, 1]), c("b", &[1, channels, 1, 1]));
        let (positive, one) = (c("positive", &[channels, 1, 1]), c("one", &[1]));
        let x = images(&net, channels);
        let before = (&b - &x * &b + &a) / &positive;
        let y = conv(&before, channels, 3);
        let after = &a - ((&y + &a) * &b - &one) / &positive;
        let again = conv(&(after.relu() * &a + 0.5), channels, 1) * 2.0;
        let operators = frozen_for_all(&net, &[&(&again + &b).tanh()], channels)?;
        assert!(operators.len() <= 13, "{operators:?}");
        // Constants of pixels, and of other channels.
        let net = Builder::new();
        let pixels = constant(&net, "pixels", &[9, 17]);
        let row = constant(&net, "row", &[17]);
        let x = net.input("x", DType::F32, &[-1, channels as i64, 9, 17]);
        let y = (conv(&x, channels, 3) * &pixels + &row).relu();
        let wide = conv(&x, 1, 3) + constant(&net, "wide", &[6, 1, 1]);
        frozen(&net, &[&y, &conv(&wide, 3, 1)], &[&[2, channels, 9, 17]])?;
    }
    Ok(())
}

#[test]
fn programs_that_write_values_are_refused() -> Result<()> {
    let net = Builder::new();
    let y = net.input("y", DType::F32, &[-1, 4]);
    let loss = conv(&images(&net, 3), 4, 3).mean_over(&[2, 3]).square_error(&y).mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let mut scope = autobwd::Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (feeds, fetches) = (vec!["x".into(), "y".into()], vec![loss.name()]);
    let mut model = Model { program: (*net.program()?).clone(), feeds, fetches, scope };
    let before = (model.program.to_json(), model.scope.len());
    assert!(model.changes_values());
    let error = model.freeze().unwrap_err().to_string();
    assert!(error.contains("`sgd`, writes `conv2d_0."), "{error}");
    assert_eq!((model.program.to_json(), model.scope.len()), before);
    let loss = loss.name();
    let model = Model::for_inference(&model.program, &model.scope, &[&loss])?;
    assert!(!model.changes_values());
    assert!(model.predictor().is_ok());
    Ok(())
}

#[test]
fn frozen_models_are_frozen_again_saved_and_loaded() -> Result<()> {
    let net = Builder::new();
    let x = images(&net, 3);
    let unused = net.input("unused", DType::F32, &[-1]);
    let y = normalised(&conv(&x, 40, 3)).relu().max_pool2d(2, 2);
    let z = (normalised(&conv(&y, 40, 3)) + &y).relu().mean_over(&[2, 3]);
    net.set_signature(&[("image", &x)], &[("scores", &z)])?;
    let mut model = model(&net, &[&z])?;
    model.freeze()?;
    let (mut executor, x) = (Executor::new(), numbers("x", &[2, 3, 9, 10])?);
    let expected = model.run(&mut executor, &[&x])?;
    let folder = tempfile::tempdir().unwrap();
    let (program, weights) = (folder.path().join("model.json"), folder.path().join("model.safetensors"));
    model.program.save(&program)?;
    model.scope.save(&weights)?;
    let mut scope = autobwd::Scope::new();
    scope.load(&weights)?;
    let mut loaded = Model::with_signature(autobwd::Program::load(&program)?, scope)?;
    assert_eq!(loaded.run_named(&mut executor, &[("image", &x)])?[0].1, expected[0]);
    for model in [&mut model, &mut loaded] {
        let before = model.program.root().ops.len();
        model.freeze()?;
        assert_eq!(model.program.root().ops.len(), before);
        assert_eq!(model.run(&mut executor, &[&x])?, expected);
    }
    let mut predictor = loaded.predictor()?;
    assert_eq!(predictor.predict(&[("x", &x)])?, expected);
    // An input that nothing reads can still be fed.
    let mut model = self::model(&net, &[&z])?;
    model.program = (*net.program()?).clone();
    model.feeds.push(unused.name());
    model.freeze()?;
    assert_eq!(model.run(&mut executor, &[&x, &numbers("unused", &[2])?])?, expected);
    Ok(())
}
