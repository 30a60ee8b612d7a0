//! Gradient check against central differences.

use super::{
    function::{FiniteDifference, ProgramFunction, failure},
    kernels::index,
};
use autobwd_core::{Error, OpInfoMap, Result, Tensor};

/// A larger jump of the derivative, relative to its size, is a kink; a smaller one may be curvature.
const KINK: f64 = 1e-2;

/// A function's gradient, from inputs and cotangents to gradients, and for each floating point input the name of its
/// gradient.
pub(super) struct GradientFunction {
    pub(super) gradient: ProgramFunction,
    pub(super) names: Vec<Option<String>>,
}

impl GradientFunction {
    pub(super) fn of(ops: &OpInfoMap, function: &ProgramFunction) -> Result<GradientFunction> {
        let (gradient, names) = function.gradient(ops, &[])?;
        Ok(GradientFunction { gradient, names })
    }

    /// The gradient of floating point input `i` among the values of all outputs.
    pub(super) fn value<'v>(&self, values: &'v [Tensor], i: usize) -> Option<&'v Tensor> {
        let name = self.names.get(i)?.as_ref()?;
        values.get(self.gradient.outputs.iter().position(|(n, _)| n == name)?)
    }
}

/// The comparison of two lists of numbers.
#[derive(Clone, Copy)]
pub(super) struct Distance {
    /// The index of the largest distance.
    at: usize,
    /// a − b| / (1 + max |b|) there; two NaN count as equal.
    pub(super) worst: f64,
    /// The number of elements that exceed the bound.
    exceeding: usize,
}

impl Distance {
    pub(super) fn of(a: &[f64], b: &[f64], bound: f64) -> Distance {
        let scale = 1.0 + b.iter().filter(|x| x.is_finite()).fold(0.0_f64, |m, x| m.max(x.abs()));
        let mut found = Distance { at: 0, worst: 0.0, exceeding: 0 };
        for (at, (a, b)) in a.iter().zip(b).enumerate() {
            let same = a == b || (a.is_nan() && b.is_nan());
            let apart = if same { 0.0 } else { (a - b).abs() / scale };
            let apart = if apart.is_nan() { f64::INFINITY } else { apart };
            found.exceeding += usize::from(apart > bound);
            if apart > found.worst {
                (found.at, found.worst) = (at, apart);
            }
        }
        found
    }

    /// `` `Out`[0, 2] is 1.0, in float64 2.0: 5.0e-1 off, as are 3 of 6 elements ``
    pub(super) fn error(&self, what: &str, other: &str, tensors: (&[f64], &[f64]), dims: &[usize]) -> Error {
        let ((a, b), at, Distance { worst, exceeding, .. }) = (tensors, self.at, *self);
        let index = index(dims, at);
        let (a, b, n) = (a.get(at), b.get(at), b.len());
        let [a, b] = [a, b].map(|x| x.copied().unwrap_or(f64::NAN));
        failure(format!(
            "{what} is {a:?} at {index:?}, {other} {b:?}: {worst:.1e} off; {exceeding} of {n} elements are off"
        ))
    }
}

/// Compares the built gradients with central differences. Returns the number of elements and the largest distance, and
/// adds kinks to `warnings`.
pub(super) fn check_derivatives(
    function: &ProgramFunction,
    built: &GradientFunction,
    bound: f64,
    warnings: &mut Vec<String>,
) -> Result<(usize, f64)> {
    compare_derivatives(function, built, bound, Some(warnings))
}

/// The same for inputs at which the function may have kinks and poles, where nothing is compared.
pub(super) fn check_where_smooth(
    function: &ProgramFunction,
    built: &GradientFunction,
    bound: f64,
) -> Result<()> {
    compare_derivatives(function, built, bound, None).map(drop)
}

fn compare_derivatives(
    function: &ProgramFunction,
    built: &GradientFunction,
    bound: f64,
    mut warnings: Option<&mut Vec<String>>,
) -> Result<(usize, f64)> {
    let gradient = &built.gradient;
    let cotangents: Vec<&Tensor> = gradient.inputs[function.inputs.len()..].iter().map(|(_, t)| t).collect();
    let values = gradient.run()?;
    let (mut elements, mut worst) = (0, 0.0_f64);
    for (i, input) in function.float_inputs().iter().enumerate() {
        let slopes = function.numeric(input, &cotangents)?;
        let numeric: Vec<f64> = slopes.iter().map(|slope| slope.central).collect();
        let found = built.value(&values, i);
        let mut found_values = found.map_or(vec![0.0; numeric.len()], Tensor::to_f64s);
        if warnings.is_none() {
            for ((found, numeric), slope) in found_values.iter_mut().zip(&numeric).zip(&slopes) {
                if !found.is_finite() || !numeric.is_finite() || kink(slope).is_some() {
                    *found = *numeric;
                }
            }
        }
        let distance = Distance::of(&found_values, &numeric, bound);
        let dims = function.dims(input);
        if distance.worst > bound {
            let missing = if found.is_none() { " (none was built)" } else { "" };
            let what = format!("the gradient of `{input}`{missing}");
            let e = distance.error(&what, "by differences", (&found_values, &numeric), dims);
            let text = match kink(&slopes[distance.at]) {
                Some(kink) => format!(
                    "{e}; {kink}: mark the row `not_a_derivative`, or draw numbers elsewhere with `away_from`"
                ),
                None => e.to_string(),
            };
            return Err(failure(text));
        }
        let kink = slopes.iter().enumerate().find_map(|(at, slope)| Some((at, kink(slope)?)));
        if let (Some((at, kink)), Some(warnings)) = (kink, &mut warnings) {
            warnings.push(format!(
                "`{input}`{:?} is at a kink, where the comparison of gradients means little: {kink}",
                index(dims, at)
            ));
        }
        elements += numeric.len();
        worst = worst.max(distance.worst);
    }
    Ok((elements, worst))
}

/// The one-sided derivatives, if they differ.
fn kink(slope: &FiniteDifference) -> Option<String> {
    let FiniteDifference { left, right, .. } = *slope;
    let jump = (right - left).abs() / (1.0 + left.abs().max(right.abs()));
    (jump > KINK).then(|| format!("the derivative is {left:.3} on its left, {right:.3} on its right"))
}

/// The first output that changes smoothly with an input: its derivative by differences is not 0.
///
/// # Errors
/// The errors of running the function.
pub(super) fn change(function: &ProgramFunction, bound: f64) -> Result<Option<String>> {
    let cotangents = function.cotangents()?;
    let weights: Vec<&Tensor> = cotangents.iter().collect();
    if weights.is_empty() {
        return Ok(None);
    }
    for input in function.float_inputs() {
        let slopes = function.numeric(&input, &weights)?;
        let numeric: Vec<f64> = slopes.iter().map(|slope| slope.central).collect();
        let distance = Distance::of(&vec![0.0; numeric.len()], &numeric, bound);
        if distance.worst > bound {
            let (at, is) = (index(function.dims(&input), distance.at), numeric[distance.at]);
            let what = "the outputs change with";
            return Ok(Some(format!("{what} `{input}`{at:?}: by differences, the derivative is {is:.3}")));
        }
    }
    Ok(None)
}
