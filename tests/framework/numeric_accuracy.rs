//! Float32 results of long sums and of normalisations, against float64.

use autobwd::{DType, Expr, New, Result, Tensor, emit};
use autobwd_ops::{
    Math,
    norm::{BatchNormOp, DataLayout, GroupNormOp, InstanceNormOp, LayerNormOp},
};

/// Unordered numbers between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Multiples of 2^-20: float32 holds them, also next to 30.
        ((state >> 43) as f64 / (1 << 20) as f64) - 1.0
    };
    (0..count).map(next).collect()
}

fn tensor(dims: &[usize], values: &[f64], dtype: DType) -> Tensor {
    match dtype {
        DType::F32 => Tensor::from_vec(dims, values.iter().map(|x| *x as f32).collect()).unwrap(),
        _ => Tensor::from_vec(dims, values.to_vec()).unwrap(),
    }
}

/// `f(x)`, and the gradient of `x` of the sum of `f(x) * weights`.
fn run(f: &dyn Fn(&Expr) -> Expr, dims: &[usize], values: &[f64], dtype: DType) -> Result<[Vec<f64>; 2]> {
    let tape = autobwd::eager();
    let x = tape.leaf("x", tensor(dims, values, dtype));
    let y = f(&x);
    let shape: Vec<usize> = y.dims().known().unwrap().to_vec();
    let weights = tensor(&shape, &numbers(shape.iter().product(), 3), dtype);
    (&y * tape.constant(weights)).sum(&[]).backward()?;
    Ok([y.tensor()?.to_f64s(), x.gradient()?.tensor()?.to_f64s()])
}

/// The largest errors of result and gradient in float32, relative to the largest number.
fn errors(f: &dyn Fn(&Expr) -> Expr, dims: &[usize], values: &[f64]) -> Result<[f64; 2]> {
    let (single, double) = (run(f, dims, values, DType::F32)?, run(f, dims, values, DType::F64)?);
    let mut errors = [0.0; 2];
    for (error, (single, double)) in errors.iter_mut().zip(single.iter().zip(&double)) {
        let largest = double.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        let apart = single.iter().zip(double).map(|(x, y)| (x - y).abs());
        *error = apart.fold(0.0, f64::max) / largest;
    }
    Ok(errors)
}

#[test]
fn long_sums_of_softmax_and_cross_entropies_are_exact() -> Result<()> {
    const CLASSES: usize = 1 << 21;
    let values = numbers(CLASSES, 1);
    let labels = |x: &Expr, dims: &[usize]| {
        x.builder().constant(Tensor::from_vec(dims, vec![7_i64; dims.iter().product()]).unwrap())
    };
    type Case<'a> = (&'a str, &'a [usize], &'a dyn Fn(&Expr) -> Expr);
    let cases: [Case<'_>; 6] = [
        ("softmax", &[1, CLASSES], &|x| x.softmax(-1)),
        ("log_softmax", &[1, CLASSES], &|x| x.log_softmax(-1)),
        ("cross_entropy", &[1, CLASSES], &|x| x.cross_entropy(&labels(x, &[1, 1]))),
        ("softmax of columns", &[CLASSES / 2, 2], &|x| x.softmax(0)),
        ("log_softmax of columns", &[CLASSES / 2, 2], &|x| x.log_softmax(0)),
        ("logsumexp", &[1, CLASSES], &|x| x.logsumexp(&[1])),
    ];
    for (name, dims, f) in cases {
        let [result, gradient] = errors(f, dims, &values)?;
        assert!(result < 3e-7 && gradient < 3e-7, "{name}: {result:.1e} {gradient:.1e}");
    }
    Ok(())
}

fn zeros(x: &Expr, n: usize) -> Expr {
    x.builder().constant(Tensor::zeros(x.dtype(), &[n]).unwrap())
}

fn batch_norm(x: &Expr) -> Expr {
    let op = BatchNormOp {
        x: x.into(),
        scale: None,
        bias: None,
        mean: zeros(x, 6).into(),
        variance: zeros(x, 6).into(),
        y: New,
        mean_out: New,
        variance_out: New,
        saved_mean: New,
        saved_variance: New,
        reserve_space: None,
        momentum: 0.9,
        epsilon: 1e-5,
        data_layout: DataLayout::Nchw,
        is_test: false,
        use_global_stats: false,
        trainable_statistics: false,
    };
    emit(op).y
}

fn layer_norm(x: &Expr) -> Expr {
    let (scale, bias, begin_norm_axis, epsilon) = (None, None, 1, 1e-5);
    emit(LayerNormOp { x: x.into(), scale, bias, y: New, mean: New, variance: New, begin_norm_axis, epsilon })
        .y
}

fn group_norm(x: &Expr, data_layout: DataLayout) -> Expr {
    let (scale, bias, groups, epsilon) = (None, None, 2, 1e-5);
    emit(GroupNormOp {
        x: x.into(),
        scale,
        bias,
        y: New,
        mean: New,
        variance: New,
        epsilon,
        groups,
        data_layout,
    })
    .y
}

fn instance_norm(x: &Expr) -> Expr {
    let (scale, bias, epsilon) = (None, None, 1e-5);
    emit(InstanceNormOp { x: x.into(), scale, bias, y: New, saved_mean: New, saved_variance: New, epsilon }).y
}

/// Below this, an error is a rounding or two.
const ROUNDING: f64 = 2e-7;

/// The errors are at most those that `reference/statistics.py` measures of PaddlePaddle 2.6.2, on the same numbers.
#[test]
fn statistics_of_numbers_far_from_0_are_exact() -> Result<()> {
    type Normalisation = fn(&Expr) -> Expr;
    // Channels are even wherever they are.
    const CASES: [(f64, [usize; 4]); 4] =
        [(0.0, [4, 6, 16, 6]), (3.0, [4, 6, 16, 6]), (30.0, [4, 6, 16, 6]), (3.0, [2, 6, 2, 6])];
    const GROUP: [[f64; 2]; 4] = [[1.4e-7, 1.7e-7], [1.1e-6, 1.1e-6], [1.6e-4, 1.6e-4], [1.1e-6, 1.0e-6]];
    let kinds: [(&str, Normalisation, [[f64; 2]; 4]); 5] = [
        ("batch", batch_norm, [[7.3e-8, 1.6e-7], [2.9e-7, 2.1e-7], [2.2e-6, 3.3e-7], [1.7e-7, 1.3e-7]]),
        ("layer", layer_norm, [[1.1e-7, 1.5e-7], [1.4e-7, 1.5e-7], [2.5e-6, 3.8e-7], [8.1e-8, 9.4e-8]]),
        ("group", |x| group_norm(x, DataLayout::Nchw), GROUP),
        ("group, channels last", |x| group_norm(x, DataLayout::Nhwc), GROUP),
        ("instance", instance_norm, [[1.7e-7, 1.6e-7], [2.9e-7, 1.5e-7], [1.6e-6, 5.3e-7], [2.3e-7, 3.4e-7]]),
    ];
    for (name, f, bounds) in kinds {
        for ((mean, dims), bounds) in CASES.into_iter().zip(bounds) {
            let values = numbers(dims.iter().product(), 5);
            let values: Vec<f64> =
                values.iter().map(|x| x * 1.7 + mean).map(|x| f64::from(x as f32)).collect();
            let found = errors(&f, &dims, &values)?;
            let is_good = found.iter().zip(bounds).all(|(found, bound)| *found <= bound.max(ROUNDING));
            assert!(is_good, "{name}, mean {mean}, {dims:?}: {found:?}, not {bounds:?}");
        }
    }
    Ok(())
}
