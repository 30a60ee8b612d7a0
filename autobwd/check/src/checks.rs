//! The checks of one sample.

use std::sync::Arc;

use super::{
    composition::check_composition,
    derivatives::{GradientFunction, change, check_derivatives},
    function::{ProgramFunction, failure, in_case},
    half_precision::check_halves,
    hostile::{check_attributes, check_integers, check_ranks, is_representative},
    integers::check_integers_agree,
    kernels::check_kernels,
    panics::{catch_panic, is_fault},
    precision::{check_large, check_single, check_single_gradients},
    rewrites::{check_fused, check_peepholes, check_update},
    shapes::{check_unknown, resized},
    sparse::check_rows,
    values::{check_absent, check_eager, check_in_place, check_subsets, check_threads},
};
use autobwd_core::__private::internals::*;
use autobwd_core::sample::Sample;
use autobwd_core::{Cx, DType, ErrorKind, GradKind, OpInfoMap, Result, Var};

/// Default bound for |built − numeric| / (1 + max |numeric|).
const TOLERANCE: f64 = 1e-7;
/// Number of threads whose results are compared with the results of one thread.
const THREADS: usize = 3;

/// The result of a successful check.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CheckedSample {
    /// The number of elements whose derivatives were compared, first order.
    pub elements: usize,
    /// Largest |built − numeric| / (1 + max |numeric|), first order.
    pub worst: f64,
    /// The number of elements whose derivatives were compared, second order; 0 if a gradient operator has no gradient.
    pub second_order: usize,
    /// Observations that are no faults: a missing second order, a kink where gradients were compared, an operator
    /// without gradient whose outputs change smoothly, scratch memory that is declared but not requested, a shape rule
    /// that rejects unknown dimensions.
    pub warnings: Vec<String>,
}

/// Checks a sample with the operators linked into this binary.
///
/// An error row must be rejected with its message. For any other row, with random cotangents of the outputs:
/// - values and gradients in `f32` match those in `f64`, also, for the first row of a kind, with a million elements;
///   values computed in place, or with three threads, are equal bit by bit;
/// - every kernel, also of gradients, writes all elements of its outputs, the same in two runs, whatever its outputs and
///   its scratch memory contained before, requests the scratch memory that it [declares](autobwd_core::Kernel::scratch_bytes), and
///   allocates nothing, if a [`CountingAllocator`](super::CountingAllocator) is installed;
/// - built gradients match central differences, to first order and, if gradient operators have gradients, to second
///   order; also with the same variable in two slots; for [`ZeroGrad`](autobwd_core::ZeroGrad), differences are 0;
/// - gradients are right with the gradients of some outputs absent;
/// - fused with its neighbours, in parts if it is [`decomposed`](autobwd_core::Decompose), replaced by a
///   peephole rule, or divided if it is an `elementwise_update`, the operator gives the same values;
/// - a formula and its version for integers agree;
/// - integers out of range and repeated ones, any data in kernels, and for the first row of a kind attributes at and
///   beyond their bounds, infinite or NaN, and inputs of ranks 0 to 6 are refused by an error, or values and gradients
///   are right;
/// - in 16-bit dtypes, values are those in `f32` of the same numbers, rounded once, and gradients have the dtype of
///   their inputs; fused or not, eager or in a program, with one thread or three, they are equal bit by bit;
/// - with some rows of an input declared `sparse`, results are those for the dense tensor;
/// - values and gradients match the operator's [composition](autobwd_core::Composition), if it has one, also where
///   dimensions are unknown;
/// - values and gradients in eager mode, and of the program traced from it, are equal bit by bit;
/// - with any inputs excluded, the other gradients stay equal bit by bit;
/// - shape rules, also of gradients, infer nothing wrong if some dimensions of inputs are unknown;
/// - if shape rules accept inputs with dimensions of 0 or 1, values and gradients exist and are correct;
/// - nothing panics.
///
/// Rows are of one kind if they fill the same slots with the same dtypes, and agree in flags and names.
///
/// # Errors
/// A violated check: with slot and index of the worst element, or the source line of a panic.
pub fn check_sample(sample: &Sample) -> Result<CheckedSample> {
    check_with(sample, |ops, sample| {
        let checked = check(ops, sample)?;
        if is_representative(sample) {
            check_variants(ops, sample)?;
        }
        Ok(checked)
    })
}

/// Checks a sample, as [`check_sample`] does, without its variants: other attributes, other ranks, a million elements. For
/// checks that are repeated, with another instruction set, say.
///
/// # Errors
/// The errors of [`check_sample`].
pub fn check_sample_alone(sample: &Sample) -> Result<CheckedSample> {
    check_with(sample, check)
}

fn check_with(
    sample: &Sample,
    check: impl FnOnce(&OpInfoMap, &Sample) -> Result<CheckedSample>,
) -> Result<CheckedSample> {
    let ops = OpInfoMap::linked()?;
    let mut checked = catch_panic(|| match sample.error {
        Some(expected) => check_refused(ops, sample, expected),
        None => check(ops, sample),
    })
    .map_err(|e| failure(format!("`{}`: {}", sample.op(), slots(sample, &e.to_string()))))?;
    checked.warnings.iter_mut().for_each(|warning| *warning = slots(sample, warning));
    Ok(checked)
}

/// Inputs are called `v0`, `v1`, …: adds their slots.
fn slots(sample: &Sample, text: &str) -> String {
    let mut text = text.to_string();
    for k in (0..sample.draws.len()).rev() {
        let slots = [&sample.desc.inputs, &sample.desc.outputs];
        if let Some(slot) = slots.iter().find_map(|slots| slots.slot_of(Var::stand_in(k + 1))) {
            text = text.replace(&format!("`v{k}`"), &format!("`{slot}`"));
            text = text.replace(&format!("`v{k}@GRAD`"), &format!("`{slot}@GRAD`"));
        }
    }
    text
}

fn check_refused(ops: &OpInfoMap, sample: &Sample, expected: &str) -> Result<CheckedSample> {
    match ProgramFunction::of(ops, sample, DType::F64, None).and_then(|f| f.run()) {
        Ok(_) => Err(failure(format!("the sample is accepted, but should fail with \"{expected}\""))),
        Err(e) if e.to_string().contains(expected) => Ok(CheckedSample::default()),
        Err(e) => Err(failure(format!("expected the error \"{expected}\", got \"{e}\""))),
    }
}

fn check(ops: &OpInfoMap, sample: &Sample) -> Result<CheckedSample> {
    let (function, single) = (
        ProgramFunction::of(ops, sample, DType::F64, None)?,
        ProgramFunction::of(ops, sample, DType::F32, None)?,
    );
    let (many, mut checked) = (Arc::new(Cx::new(THREADS)), CheckedSample::default());
    let (kind, bound) = (ops.get(sample.op())?.grad_kind(), bound(sample));
    if let GradKind::None(_) | GradKind::Zero = kind {
        check_kernels(ops, &function, &many, &mut checked.warnings)?;
        check_kernels(ops, &single, &many, &mut vec![])?;
        check_unknown(ops, &function, sample, &mut checked.warnings)?;
        check_values(ops, sample, (&function, &single), None)?;
        check_threads(ops, &function, &many)?;
        check_composition(ops, sample, &function, None, &mut checked.warnings)
            .map_err(in_case("composed, "))?;
        // An operator that refuses its gradient for a reason may have one.
        if !matches!(kind, GradKind::None(Some(_))) {
            check_constant(sample, &function, matches!(kind, GradKind::Zero), &mut checked.warnings)?;
        }
    } else {
        check_gradients(ops, sample, (&function, &single), &many, &mut checked)?;
    }
    for (case, small) in resized(sample) {
        check_resized(ops, &small, &many).map_err(in_case(&case))?;
    }
    check_fused(ops, sample, &function, DType::F64)?;
    check_peepholes(ops, &function)?;
    check_update(ops, sample, &function)?;
    check_integers_agree(ops, sample)?;
    check_integers(ops, sample, &function, bound)?;
    check_rows(ops, sample, &function, &many)?;
    check_halves(ops, sample, &many)?;
    Ok(checked)
}

/// Checks a sample with other attributes, other ranks, and a million elements.
fn check_variants(ops: &OpInfoMap, sample: &Sample) -> Result<()> {
    let (many, bound) = (Arc::new(Cx::new(THREADS)), bound(sample));
    check_attributes(ops, sample, bound)?;
    let kernels = |function: &ProgramFunction| check_kernels(ops, function, &many, &mut vec![]);
    check_ranks(ops, sample, bound, &kernels)?;
    check_large(ops, sample, bound).map_err(in_case("of a million elements, "))
}

fn bound(sample: &Sample) -> f64 {
    sample.tolerance.map_or(TOLERANCE, |(bound, _)| bound)
}

/// Checks an operator that has no gradient, or a zero gradient.
fn check_constant(
    sample: &Sample,
    function: &ProgramFunction,
    is_zero: bool,
    warnings: &mut Vec<String>,
) -> Result<()> {
    if sample.smooth.is_some() {
        return Ok(());
    }
    match (change(function, bound(sample))?, is_zero) {
        (Some(change), true) => Err(failure(format!("the gradient is declared `ZeroGrad`, but {change}"))),
        (Some(change), false) => {
            warnings.push(format!("the operator declares `NoGrad`, though {change}"));
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

fn check_values(
    ops: &OpInfoMap,
    sample: &Sample,
    (function, single): (&ProgramFunction, &ProgramFunction),
    built: Option<&GradientFunction>,
) -> Result<()> {
    if sample.discontinuous.is_none() {
        check_single(ops, single, function, bound(sample))?;
    }
    check_in_place(function)?;
    match check_eager(ops, function, built) {
        // Tensor arrays and hand-written blocks exist in programs only.
        Err(e) if sample.program.is_some() && e.kind() == ErrorKind::Program => Ok(()),
        outcome => outcome.map_err(in_case("eagerly, ")),
    }
}

fn check_gradients(
    ops: &OpInfoMap,
    sample: &Sample,
    (function, single): (&ProgramFunction, &ProgramFunction),
    many: &Arc<Cx>,
    checked: &mut CheckedSample,
) -> Result<()> {
    let (bound, warnings) = (bound(sample), &mut checked.warnings);
    let built = GradientFunction::of(ops, function)?;
    let second = match GradientFunction::of(ops, &built.gradient) {
        Err(e) if e.kind() == ErrorKind::NoGradient => {
            warnings.push(format!("the gradient operators have no gradient: {}", e.message()));
            None
        }
        outcome => Some(outcome.map_err(in_case("second order, "))?),
    };
    let whole = second.as_ref().map_or(&built.gradient, |second| &second.gradient);
    check_kernels(ops, whole, many, warnings)?;
    check_kernels(ops, &GradientFunction::of(ops, single)?.gradient, many, &mut vec![])?;
    if sample.discontinuous.is_none() {
        check_single_gradients(ops, single, function, bound)?;
    }
    check_absent(ops, function, &built)?;
    check_peepholes(ops, &built.gradient)?;
    check_unknown(ops, whole, sample, warnings)?;
    check_values(ops, sample, (function, single), Some(&built))?;
    check_threads(ops, whole, many)?;
    check_composition(ops, sample, function, Some(&built), warnings).map_err(in_case("composed, "))?;
    if sample.smooth.is_some() {
        return Ok(());
    }
    let before = warnings.len();
    (checked.elements, checked.worst) = check_derivatives(function, &built, bound, warnings)?;
    if let Some(second) = &second {
        let outcome = check_derivatives(&built.gradient, second, bound, &mut vec![]);
        // The second order jumps at a kink of the first.
        let kinks = warnings[before..].join("; ");
        let case =
            if kinks.is_empty() { "second order, ".into() } else { format!("second order, where {kinks}: ") };
        checked.second_order = outcome.map_err(in_case(&case))?.0;
    }
    check_subsets(ops, function, &built)?;
    for same in repeatable(sample, function) {
        // A shape or domain may not allow the same variable twice.
        if let Ok(function) = ProgramFunction::of(ops, sample, DType::F64, Some(same)) {
            let built = GradientFunction::of(ops, &function)?;
            let outcome = check_derivatives(&function, &built, bound, &mut vec![]);
            outcome.map_err(in_case("the same variable twice, "))?;
        }
    }
    Ok(())
}

/// Whenever the shape rule accepts the resized sample, so must the kernels; errors about data are accepted, because
/// indices may be out of bounds of the smaller shape.
fn check_resized(ops: &OpInfoMap, sample: &Sample, many: &Cx) -> Result<()> {
    let function = match catch_panic(|| ProgramFunction::of(ops, sample, DType::F64, None)) {
        Err(e) if is_fault(&e) => return Err(e),
        Err(_) => return Ok(()),
        Ok(function) => function,
    };
    let outcome = catch_panic(|| {
        function.run()?;
        if let GradKind::None(_) | GradKind::Zero = ops.get(sample.op())?.grad_kind() {
            return check_kernels(ops, &function, many, &mut vec![]);
        }
        let built = GradientFunction::of(ops, &function)?;
        check_kernels(ops, &built.gradient, many, &mut vec![])?;
        if sample.smooth.is_none() {
            check_derivatives(&function, &built, bound(sample), &mut vec![])?;
        }
        Ok(())
    });
    match outcome {
        Err(e) if !matches!(e.kind(), ErrorKind::Data | ErrorKind::Endless | ErrorKind::OutOfMemory) => {
            Err(e)
        }
        _ => Ok(()),
    }
}

/// Pairs of inputs that could be one variable: drawn alike, in slots that do not depend on each other's shape.
fn repeatable(sample: &Sample, function: &ProgramFunction) -> Vec<(usize, usize)> {
    if sample.program.is_some() {
        return vec![];
    }
    let index = |name: &str| name.trim_start_matches('v').parse::<usize>().ok();
    let inputs: Vec<_> = function.inputs.iter().filter_map(|(n, t)| Some((index(n)?, t))).collect();
    let mut pairs = vec![];
    for (k, (first, a)) in inputs.iter().enumerate() {
        for (second, b) in &inputs[k + 1..] {
            let alike = a.dtype().is_float() && a.dtype() == b.dtype() && a.dims() == b.dims();
            if alike && sample.draws[*first].same_domain(&sample.draws[*second]) {
                pairs.push((*first, *second));
            }
        }
    }
    pairs
}
