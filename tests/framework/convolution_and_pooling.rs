//! Convolution and pooling cases that samples, being small and free of ties, do not cover.

use autobwd::{
    Builder, DType, Executor, Expr, New, Result, Scope, Tensor, backward::GradientOptions, emit, gradients,
};
use autobwd_ops::{
    conv::{Conv2dOp, ConvAttrs},
    norm::DataLayout,
    pool::{Pool2dGrad, Pool2dOp, PoolAttrs, PoolingType},
};

/// The output of a model and the existing gradients of its inputs, for a given gradient of the output.
fn run(inputs: &[Tensor], dout: &Tensor, model: impl Fn(&[Expr]) -> Expr) -> Result<Vec<Vec<f64>>> {
    let (net, mut scope) = (Builder::new(), Scope::new());
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let parameter = |(name, x): (&String, &Tensor)| net.parameter(name, DType::F64, x.dims(), Expr::clone);
    let exprs = names.iter().zip(inputs).map(parameter).collect::<Vec<_>>();
    names.iter().zip(inputs).for_each(|(name, x)| scope.set(name, x.clone()));
    let out = model(&exprs).name();
    net.parameter("dout", DType::F64, dout.dims(), Expr::clone);
    scope.set("dout", dout.clone());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut program = net.program()?.clone();
    let grads = gradients(
        &mut program,
        &[&out],
        &names,
        &GradientOptions { target_gradients: Some(&[Some("dout")]), ..Default::default() },
    )?;
    let mut fetches = vec![out];
    fetches.extend(grads.pairs.iter().map(|(_, grad)| program.name(*grad).to_string()));
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let fetched = Executor::new().run(&program, &mut scope, &[], &fetches)?;
    Ok(fetched.iter().map(Tensor::to_f64s).collect())
}

/// Numbers in [−1, 1].
fn numbers(dims: [usize; 4], seed: f64) -> Tensor {
    let n = dims.iter().product();
    Tensor::from_vec(dims, (0..n).map(|i: usize| ((i as f64 + seed) * 1.7).sin()).collect()).unwrap()
}

/// Offset of an element of images or filters.
fn at(format: DataLayout, [_, channels, height, width]: [usize; 4], [n, c, y, x]: [usize; 4]) -> usize {
    match format {
        DataLayout::Nchw => ((n * channels + c) * height + y) * width + x,
        DataLayout::Nhwc => ((n * height + y) * width + x) * channels + c,
    }
}

#[test]
fn convolutions_of_many_tiles_equal_their_definition() -> Result<()> {
    // Tiles are whole rows, or parts of them; a few images run in sequence. From 13 channels per group on, the rows of
    // a window are multiplied one after the other.
    for (format, images, [height, width], groups, share, dilation) in [
        (DataLayout::Nchw, 9, [40, 30], 1, 6, 1),
        (DataLayout::Nhwc, 5, [40, 30], 1, 6, 1),
        (DataLayout::Nchw, 5, [30, 40], 2, 3, 2),
        (DataLayout::Nhwc, 5, [30, 40], 2, 3, 1),
        (DataLayout::Nchw, 1, [40, 30], 1, 6, 1),
        (DataLayout::Nhwc, 2, [3, 900], 1, 6, 1),
        (DataLayout::Nchw, 9, [40, 30], 1, 14, 1),
        (DataLayout::Nhwc, 3, [30, 40], 2, 14, 2),
        (DataLayout::Nchw, 1, [40, 30], 2, 13, 2),
        (DataLayout::Nchw, 2, [5, 1200], 1, 14, 1),
    ] {
        let (channels, filters) = (groups * share, 2);
        let (x_dims, w_dims) = ([images, channels, height, width], [filters, share, 5, 5]);
        let y_dims = [images, filters, height + 2 - 4 * dilation, width - 2];
        let shape = |[n, c, h, w]: [usize; 4]| match format {
            DataLayout::Nchw => [n, c, h, w],
            DataLayout::Nhwc => [n, h, w, c],
        };
        let (x, w, dy) = (numbers(shape(x_dims), 0.0), numbers(w_dims, 1.0), numbers(shape(y_dims), 2.0));
        let built = run(&[x.clone(), w.clone()], &dy, |inputs| {
            let op = Conv2dOp {
                input: (&inputs[0]).into(),
                filter: (&inputs[1]).into(),
                output: New,
                conv: ConvAttrs::default()
                    .paddings([1, 1])
                    .dilations([dilation as i32, 1])
                    .groups(groups as i32)
                    .data_format(format),
            };
            emit(op).output
        })?;
        let (x, w, dy) = (x.slice::<f64>()?, w.slice::<f64>()?, dy.slice::<f64>()?);
        let mut expected = [vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]];
        let inside = |i: usize, tap: usize, end: usize| (i + tap).checked_sub(1).filter(|i| *i < end);
        for image in 0..images {
            for (filter, channel) in (0..filters).flat_map(|f| (0..share).map(move |c| (f, c))) {
                let of = filter / (filters / groups) * share + channel;
                for (row, col) in (0..y_dims[2]).flat_map(|y| (0..width - 2).map(move |x| (y, x))) {
                    let y_at = at(format, y_dims, [image, filter, row, col]);
                    for (i, j) in (0..5).flat_map(|i| (0..5).map(move |j| (i, j))) {
                        let (Some(down), Some(across)) =
                            (inside(row, i * dilation, height), inside(col, j, width))
                        else {
                            continue;
                        };
                        let x_at = at(format, x_dims, [image, of, down, across]);
                        let w_at = at(DataLayout::Nchw, w_dims, [filter, channel, i, j]);
                        expected[0][y_at] += x[x_at] * w[w_at];
                        expected[1][x_at] += dy[y_at] * w[w_at];
                        expected[2][w_at] += dy[y_at] * x[x_at];
                    }
                }
            }
        }
        assert_eq!(built.len(), 3);
        for (built, expected) in built.iter().zip(&expected) {
            let far = built.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(built.len() == expected.len() && far < 1e-9, "{format:?}, {images} images: {far} off");
        }
    }
    Ok(())
}

/// Max pooling.
fn max(x: &Expr, ksize: [i32; 2], data_format: DataLayout) -> Expr {
    emit(Pool2dOp { x: x.into(), out: New, pool: windows(ksize, data_format) }).out
}

fn windows(ksize: [i32; 2], data_format: DataLayout) -> PoolAttrs {
    PoolAttrs::new(PoolingType::Max, ksize.to_vec()).data_format(data_format)
}

/// The gradient operator of max pooling: from `x`, the result and its gradient.
fn max_grad([x, out, dout]: [&Expr; 3], ksize: [i32; 2], data_format: DataLayout) -> Expr {
    let op = Pool2dGrad {
        x: x.into(),
        out: out.into(),
        dout: dout.into(),
        dx: New,
        pool: windows(ksize, data_format),
    };
    emit(op).dx
}

#[test]
fn first_of_equal_maxima_gets_the_gradient() -> Result<()> {
    let nan = f64::NAN;
    // Pixels of a row in brackets, then their gradients from windows of 2 × 2 with gradients 1 and 10.
    let cases = [
        ([1.0, 2.0, 2.0, 2.0, 0.0, 2.0], [0.0, 11.0, 0.0, 0.0, 0.0, 0.0]),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 10.0, 0.0, 0.0, 0.0, 0.0]),
        ([0.0, 1.0, 0.0, 3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 1.0, 10.0, 0.0]),
        ([0.0, -0.0, 0.0, -1.0, -1.0, -1.0], [1.0, 10.0, 0.0, 0.0, 0.0, 0.0]),
        ([nan, 1.0, 2.0, 3.0, 0.0, 0.0], [0.0, 0.0, 10.0, 0.0, 0.0, 0.0]),
    ];
    for (x, expected) in cases {
        for (format, dims, dout) in
            [(DataLayout::Nchw, [1, 1, 2, 3], [1, 1, 1, 2]), (DataLayout::Nhwc, [1, 2, 3, 1], [1, 1, 2, 1])]
        {
            let (x, dout) = (Tensor::from_vec(dims, x.to_vec())?, Tensor::from_vec(dout, vec![1.0, 10.0])?);
            let built = run(std::slice::from_ref(&x), &dout, |x| max(&x[0], [2, 2], format))?;
            assert_eq!(built[1], expected, "{x:?}");
        }
    }
    Ok(())
}

#[test]
fn adjacent_windows_equal_general_windows() -> Result<()> {
    // Many ties. Adaptive pooling has the same windows, but another code path. Four windows that make a row are
    // processed together.
    for cols in [5, 8] {
        let elements =
            (0..2 * 3 * 8 * 2 * cols).map(|i| if i % 31 == 30 { f64::NAN } else { f64::from(i * 7 % 5) });
        let x = Tensor::from_vec([2, 3, 8, 2 * cols as usize], elements.collect())?;
        let dout = numbers([2, 3, 4, cols as usize], 0.0);
        let built = run(std::slice::from_ref(&x), &dout, |x| {
            let pool = windows([2, 2], DataLayout::Nchw).strides([2, 2]);
            emit(Pool2dOp { x: (&x[0]).into(), out: New, pool }).out
        })?;
        let expected = run(std::slice::from_ref(&x), &dout, |x| {
            let pool = windows([4, cols], DataLayout::Nchw).adaptive(true);
            emit(Pool2dOp { x: (&x[0]).into(), out: New, pool }).out
        })?;
        let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&built[0]), bits(&expected[0]));
        assert_eq!(built[1], expected[1]);
        assert!(built[1].iter().filter(|dx| **dx != 0.0).count() > 90);
    }
    Ok(())
}

#[test]
fn second_gradient_of_a_maximum_selects_the_same_element() -> Result<()> {
    let row = |elements: &[f64]| Tensor::from_vec([1, 1, 1, elements.len()], elements.to_vec());
    let inputs = [row(&[1.0, 3.0, 3.0, 2.0])?, row(&[3.0, 3.0, 3.0])?, row(&[5.0, 6.0, 7.0])?];
    let built = run(&inputs, &row(&[1.0, 2.0, 4.0, 8.0])?, |inputs| {
        max_grad([&inputs[0], &inputs[1], &inputs[2]], [1, 2], DataLayout::Nchw)
    })?;
    assert_eq!(built, [vec![0.0, 11.0, 7.0, 0.0], vec![2.0, 2.0, 4.0]]);
    Ok(())
}
