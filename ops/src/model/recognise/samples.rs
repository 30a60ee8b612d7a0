//! Numbers that tell functions apart, and what programs make of them.

use autobwd::{DType, Executor, Feed, Program, Scope, Tensor};

/// The length of the last dimension.
const WIDTH: usize = 16;

/// The magnitudes of the rows: the last is near the root of what is added to variances.
const MAGNITUDES: [f64; 3] = [4.0, 40.0, 0.004];

/// The most dimensions of a sample.
const RANK: usize = 8;

/// The name of the output of a subgraph.
pub(super) const OUTPUT: &str = "y";

/// The name of an input.
pub(super) fn input(i: usize) -> String {
    format!("x{i}")
}

/// Numbers of either sign.
fn numbers(count: usize, seed: usize) -> impl Iterator<Item = f64> {
    (0..count).map(move |i| ((i + 11 * seed + 1) * 37 % 101) as f64 / 50.5 - 1.0)
}

/// A tensor of 1 to 8 dimensions, with rows of several magnitudes. No dimension is 1, so that reductions over it show.
pub(super) fn tensor(dtype: DType, rank: usize) -> Option<Tensor> {
    let mut dims = match rank {
        1 => vec![],
        2..=RANK => vec![2; rank - 2],
        _ => return None,
    };
    dims.extend([MAGNITUDES.len(), WIDTH]);
    let count = dims.iter().product();
    if rank == 1 {
        dims = vec![count];
    }
    let magnitude = |i: usize| MAGNITUDES[i / WIDTH % MAGNITUDES.len()];
    let values: Vec<f64> = numbers(count, 0).enumerate().map(|(i, x)| x * magnitude(i)).collect();
    Tensor::from_f64s(dtype, &dims, &values).ok()
}

/// A row of factors or terms.
pub(super) fn row(dtype: DType, i: usize) -> Option<Tensor> {
    Tensor::from_f64s(dtype, [WIDTH], &numbers(WIDTH, i).collect::<Vec<_>>()).ok()
}

/// An output of a program for samples of its inputs; none if it fails.
pub(super) fn outputs(program: &Program, inputs: &[Tensor], output: &str) -> Option<Vec<f64>> {
    let names: Vec<String> = (0..inputs.len()).map(input).collect();
    let feeds: Vec<(&str, &dyn Feed)> =
        names.iter().zip(inputs).map(|(name, input)| (name.as_str(), input as &dyn Feed)).collect();
    let found = Executor::with_threads(1).run(program, &mut Scope::new(), &feeds, &[output]).ok()?;
    Some(found.first()?.to_f64s())
}

/// Whether values are equal but for the rounding of a few operations in float32.
pub(super) fn are_equal(found: &[f64], expected: &[f64]) -> bool {
    let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 + 5e-6 * b.abs();
    found.len() == expected.len() && found.iter().zip(expected).all(is_near)
}
