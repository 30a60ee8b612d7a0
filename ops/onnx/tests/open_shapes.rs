//! Programs with unknown dimensions, written for any size and read again for some.

mod graphs;

use autobwd::{
    BlockId, Builder, DType, Executor, Expr, New, Result, Scope, Tensor, emit, gradients, tensor::Dim,
};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{
    Init, Math, Model, concat,
    conv::{Conv2dOp, ConvAttrs},
    image::{ChannelShuffle, PixelUnshuffle, TemporalShift},
    interpolate::{BilinearInterpV2, InterpAttrs, InterpMethod},
    nn::{BatchNorm, Conv2d, LayerNorm, Linear, MultiHeadAttention, Pool2d},
    norm::DataLayout,
    optim::{Optimizer, Sgd},
    pool::{Pool2dOp, PoolAttrs, PoolingType},
    shape::{Roll, ShapeOp},
    windows::PaddingAlgorithm,
};

/// The program with its parameters.
fn model(net: &Builder, feeds: &[&str], fetches: Vec<String>) -> Result<Model> {
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let program = net.program()?.clone();
    Ok(Model { program, feeds: feeds.iter().map(|name| (*name).into()).collect(), fetches, scope })
}

fn numbers(dims: &[usize]) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7 % 11) as f32 * 0.2 - 1.0).collect())
}

fn labels(dims: &[usize], classes: usize) -> Result<Tensor> {
    Tensor::from_vec(dims, (0..dims.iter().product()).map(|i: usize| (i * 5 % classes) as i64).collect())
}

/// Compares results with those of the written model, for inputs of each size.
fn assert_same(model: &mut Model, inputs: &[Vec<Tensor>]) -> Result<()> {
    let bytes = to_bytes(model)?;
    let mut executor = Executor::with_threads(1);
    for inputs in inputs {
        let shapes = model.feeds.iter().zip(inputs);
        let shapes = shapes.map(|(name, input)| (name.clone(), input.dims().to_vec())).collect();
        let mut read = from_bytes(&bytes, &LoadOptions { shapes, ..LoadOptions::default() })?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let (results, expected) = (read.run(&mut executor, &inputs)?, model.run(&mut executor, &inputs)?);
        for ((result, expected), name) in results.iter().zip(&expected).zip(&model.fetches) {
            assert_eq!(result.dims(), expected.dims(), "`{name}`");
            // Some gradients are 0 but for rounding.
            let largest = expected.to_f64s().iter().fold(1e-2, |m: f64, x| m.max(x.abs()));
            for (x, y) in result.to_f64s().iter().zip(expected.to_f64s()) {
                assert!((x - y).abs() <= 1e-5 * largest, "`{name}`: {x} is not {y}");
            }
        }
    }
    Ok(())
}

#[test]
fn names_of_dimensions_survive() -> Result<()> {
    let net = Builder::new();
    let sizes = vec![Dim::named("batch"), Dim::named("past length + 1"), 6.into()];
    let x = net.input_with_dims("x", DType::F32, sizes);
    let heads = x.reshape_to(&[x.dim(0), x.dim(1), 2.into(), 3.into()]).transpose(&[0, 2, 1, 3]);
    let out = heads.reshape_to(&[x.dim(0) * 2, x.dim(1), 3.into()]).softmax(-1);
    let read = from_bytes(&to_bytes(&model(&net, &["x"], vec![out.name()])?)?, &LoadOptions::default())?;
    let dims = |name: &str| {
        read.program.root().vars.get(&read.program.find(name).unwrap()).unwrap().dims.to_string()
    };
    assert_eq!(dims("x"), "[batch, `past length + 1`, 6]");
    assert_eq!(dims(&read.fetches[0]), "[batch*2, `past length + 1`, 3]");
    // The first reshape copies both dimensions; no size is computed for it.
    let kinds: Vec<&str> = read.program.root().ops.iter().map(|op| &*op.ty).collect();
    assert_eq!(kinds[..2], ["reshape2", "transpose2"]);
    Ok(())
}

/// A recogniser of lines of text: images `[batch, 1, 8, width]` to classes for each column.
fn recogniser(net: &Builder) -> Expr {
    let x = net.input("x", DType::F32, &[-1, 1, 8, -1]);
    let conv = Conv2d::builder(net, 1, 6, 3).padding(1).bias(None).seed(1).build().forward(&x);
    let conv = BatchNorm::builder(net, 6).build().forward(&conv).relu().max_pool2d(2, 2);
    let conv = Conv2d::builder(net, 6, 4, 3).padding(1).stride(2).seed(2).build().forward(&conv).relu();
    let columns = conv.reshape(&[0, 8, -1]).transpose(&[0, 2, 1]);
    let norm = LayerNorm::builder(net, 8).build();
    let attention = MultiHeadAttention::builder(net, 8, 2).seed(3).build();
    let columns = &columns + attention.forward(&norm.forward(&columns));
    let columns = LayerNorm::builder(net, 8).build().forward(&columns);
    Linear::builder(net, 8, 5).seed(4).build().forward(&columns)
}

#[test]
fn text_recogniser_takes_images_of_any_number_and_width() -> Result<()> {
    let net = Builder::new();
    let classes = recogniser(&net).softmax(-1);
    let mut model = model(&net, &["x"], vec![classes.name()])?;
    assert_same(&mut model, &[vec![numbers(&[1, 1, 8, 16])?], vec![numbers(&[3, 1, 8, 29])?]])
}

#[test]
fn gradients_of_a_text_recogniser_are_written_for_any_size() -> Result<()> {
    let net = Builder::new();
    let loss = recogniser(&net).square().mean();
    let mut program = net.program()?.clone();
    let parameters: Vec<String> = program.parameters().map(|var| program.name(var).to_string()).collect();
    let wanted: Vec<&str> = parameters.iter().map(String::as_str).collect();
    let found = gradients(&mut program, &[&loss.name()], &wanted, &Default::default())?;
    assert_eq!(found.pairs.len(), wanted.len());
    let fetches = found.pairs.iter().map(|(_, gradient)| program.name(*gradient).to_string()).collect();
    let scope = model(&net, &[], vec![])?.scope;
    let mut model = Model { program, feeds: vec!["x".into()], fetches, scope };
    assert_same(&mut model, &[vec![numbers(&[1, 1, 8, 16])?], vec![numbers(&[3, 1, 8, 30])?]])
}

#[test]
fn gather_takes_indices_of_any_dimensions() -> Result<()> {
    // An embedding, as PyTorch exports it; 7 is the code of int64.
    let table: Vec<f32> = (0..21).map(|i| i as f32).collect();
    let nodes = vec![graphs::node("Gather", &["table", "ids"], &["out"])];
    let ids = graphs::typed_value("ids", 7, &[-1, -1]);
    let bytes =
        graphs::model(graphs::graph(&[ids], &["out"], nodes, vec![graphs::floats("table", &[7, 3], &table)]));
    let mut read = from_bytes(&bytes, &LoadOptions::default())?;
    for dims in [[2, 3], [4, 1]] {
        let ids = labels(&dims, 7)?;
        let out = read.run(&mut Executor::with_threads(1), &[&ids])?.remove(0);
        let rows = ids.slice::<i64>()?.iter().flat_map(|id| &table[3 * *id as usize..][..3]);
        assert_eq!(out, Tensor::from_vec([dims[0], dims[1], 3], rows.copied().collect())?);
    }
    Ok(())
}

#[test]
fn training_step_of_a_perceptron_takes_any_batch() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 4]), net.input("y", DType::I64, &[-1, 1]));
    let hidden = Linear::builder(&net, 4, 6).seed(1).build().forward(&x).tanh();
    let loss = Linear::builder(&net, 6, 3).seed(2).build().forward(&hidden).mean_cross_entropy(&y);
    let mut fetches: Vec<String> = vec![loss.name()];
    fetches.extend(step(&loss)?);
    let inputs = |n: usize| Ok::<_, autobwd::Error>(vec![numbers(&[n, 4])?, labels(&[n, 1], 3)?]);
    let mut model = model(&net, &["x", "y"], fetches)?;
    assert_same(&mut model, &[inputs(2)?])?;
    assert_same(&mut model, &[inputs(7)?])
}

#[test]
fn training_step_of_a_convolutional_net_takes_any_batch() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 2, 9, 9]), net.input("y", DType::I64, &[-1, 1]));
    let conv = Conv2d::builder(&net, 2, 4, 3).padding(1).stride(2).bias(None).seed(1).build().forward(&x);
    let conv = BatchNorm::builder(&net, 4).build().forward(&conv).relu().max_pool2d(2, 2);
    let conv = Conv2d::builder(&net, 4, 4, 3).padding(1).groups(2).seed(2).build().forward(&conv);
    let conv = Pool2d::average(3).stride(1).padding(1).forward(&conv);
    let scores = Linear::builder(&net, 16, 3).seed(3).build().forward(&conv.flatten(1, -1));
    let loss = scores.mean_cross_entropy(&y);
    let mut fetches: Vec<String> = vec![loss.name()];
    fetches.extend(step(&loss)?);
    let inputs = |n: usize| Ok::<_, autobwd::Error>(vec![numbers(&[n, 2, 9, 9])?, labels(&[n, 1], 3)?]);
    let mut model = model(&net, &["x", "y"], fetches)?;
    assert_same(&mut model, &[inputs(2)?])?;
    assert_same(&mut model, &[inputs(5)?])
}

/// Appends a step of gradient descent; the names of the gradients.
fn step(loss: &Expr) -> Result<Vec<String>> {
    let updates = Sgd { rate: 0.1 }.minimize(loss)?.complete()?;
    Ok(updates.iter().map(|(_, gradient)| gradient.name()).collect())
}

/// Compares results and gradients of images `[batch, 2, height, width]` for two sizes.
fn assert_images(name: &str, f: impl Fn(&Builder, &Expr) -> Expr) -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2, -1, -1]);
    let out = f(&net, &x);
    let loss = out.square().sum(&[]).name();
    let mut program = net.program()?.clone();
    let var = program.expect_var("x")?;
    program.block_mut(BlockId::ROOT).unwrap().vars.get_mut(&var).unwrap().stop_gradient = false;
    let parameters: Vec<String> = program.parameters().map(|var| program.name(var).to_string()).collect();
    let wanted: Vec<&str> = parameters.iter().map(String::as_str).chain(["x"]).collect();
    let found = gradients(&mut program, &[&loss], &wanted, &Default::default())?;
    assert_eq!(found.pairs.len(), wanted.len(), "{name}");
    let mut fetches: Vec<String> =
        found.pairs.iter().map(|(_, gradient)| program.name(*gradient).to_string()).collect();
    fetches.push(out.name());
    let scope = model(&net, &[], vec![])?.scope;
    let mut model = Model { program, feeds: vec!["x".into()], fetches, scope };
    assert_same(&mut model, &[vec![numbers(&[1, 2, 8, 12])?], vec![numbers(&[3, 2, 7, 9])?]])
        .map_err(|e| e.within(|| name.to_string()))
}

fn pooled(x: &Expr, pool: PoolAttrs) -> Expr {
    emit(Pool2dOp { x: x.into(), out: New, pool }).out
}

#[test]
fn windows_over_images_of_any_size() -> Result<()> {
    let kinds = [PoolingType::Max, PoolingType::Avg];
    for kind in kinds {
        let pool = |size: [i32; 2], strides: [i32; 2]| PoolAttrs {
            strides: strides.to_vec(),
            ..PoolAttrs::new(kind, size.to_vec())
        };
        let same = |pool: PoolAttrs| PoolAttrs { padding_algorithm: PaddingAlgorithm::Same, ..pool };
        assert_images("same", |_, x| pooled(x, same(pool([3, 2], [2, 3]))))?;
        assert_images("same, stride 1", |_, x| pooled(x, same(pool([3, 2], [1, 1]))))?;
        let ceil = PoolAttrs { ceil_mode: true, paddings: vec![1, 0], ..pool([3, 2], [2, 2]) };
        assert_images("rounded up", |_, x| pooled(x, ceil.clone()))?;
        assert_images("global", |_, x| {
            pooled(x, PoolAttrs { global_pooling: true, ..pool([1, 1], [1, 1]) })
        })?;
    }
    let adaptive = PoolAttrs { adaptive: true, ..PoolAttrs::new(PoolingType::Avg, vec![3, 5]) };
    assert_images("adaptive", |_, x| pooled(x, adaptive.clone()))?;
    let same =
        ConvAttrs { strides: vec![2, 3], padding_algorithm: PaddingAlgorithm::Same, ..ConvAttrs::default() };
    assert_images("convolution", |net, x| {
        let filter = net.parameter("w", DType::F32, &[4, 2, 3, 2], |w| Init::Constant(0.3).emit(w, 0));
        let op = Conv2dOp { input: x.into(), filter: (&filter).into(), output: New, conv: same.clone() };
        emit(op).output
    })
}

#[test]
fn adaptive_maxima_of_images_of_any_size() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2, -1, -1]);
    let pool = PoolAttrs { adaptive: true, ..PoolAttrs::new(PoolingType::Max, vec![3, 5]) };
    let out = pooled(&x, pool);
    let mut model = model(&net, &["x"], vec![out.name()])?;
    assert_same(&mut model, &[vec![numbers(&[1, 2, 8, 12])?], vec![numbers(&[3, 2, 7, 9])?]])
}

#[test]
fn images_of_any_size_are_resized() -> Result<()> {
    for method in [InterpMethod::Nearest, InterpMethod::Bilinear] {
        for align_corners in [false, true] {
            let interp = |interp: InterpAttrs| InterpAttrs { align_corners, ..interp };
            let resized = |x: &Expr, interp: InterpAttrs| {
                let (out_size, size_tensor, scale) = (None, vec![], None);
                emit(BilinearInterpV2 { x: x.into(), out_size, size_tensor, scale, out: New, interp }).out
            };
            let to_size = interp(InterpAttrs::to_size(method, [5, 16]));
            assert_images("to a size", |_, x| resized(x, to_size.clone()))?;
            let scaling = interp(InterpAttrs::scaling(method, [2.0, 1.5]));
            assert_images("by factors", |_, x| resized(x, scaling.clone()))?;
        }
    }
    // The size of another image.
    assert_images("as an image", |_, x| {
        let doubled = concat(&[x, x], 2);
        let size = emit(ShapeOp { input: (&doubled).into(), out: New }).out.slice(0, 2, 4);
        let (size_tensor, scale) = (vec![], None);
        let interp = InterpAttrs::to_size(InterpMethod::Bilinear, [0, 0]);
        let out_size = Some((&size).into());
        emit(BilinearInterpV2 { x: x.into(), out_size, size_tensor, scale, out: New, interp }).out
    })
}

#[test]
fn channels_and_frames_of_images_of_any_size() -> Result<()> {
    assert_images("channels", |_, x| {
        let groups = emit(ChannelShuffle { x: x.into(), out: New, groups: 2, data_format: DataLayout::Nchw });
        let (shifts, axis) = (vec![1, -10], vec![1, 3]);
        emit(Roll { x: (&groups.out).into(), shifts_tensor: None, out: New, shifts, axis }).out
    })?;
    assert_images("frames", |_, x| {
        let doubled = concat(&[x, &(x * 2.0)], 0);
        let data_format = DataLayout::Nchw;
        emit(TemporalShift { x: (&doubled).into(), out: New, seg_num: 2, shift_ratio: 0.5, data_format }).out
    })?;
    assert_images("pixels", |_, x| {
        let doubled = concat(&[&concat(&[x, x], 2), &concat(&[x, x], 2)], 3);
        let (downscale_factor, data_format) = (2, DataLayout::Nchw);
        emit(PixelUnshuffle { x: (&doubled).into(), out: New, downscale_factor, data_format }).out
    })
}
