//! What must hold for every sample.

use super::{
    coverage::gaps,
    function::{Function, failure},
    sample::{Sample, samples_of},
};
use crate::{
    Builder, DType, ErrorKind, Executor, Expr, GradKind, OpInfo, OpInfoMap, Result, Tensor,
    tape::{Grad, grad, trace},
};

/// Bound for |built − numeric| / (1 + max |numeric|), unless a sample has its own.
const TOLERANCE: f64 = 1e-7;
/// Bound for the same between `f32` and `f64`.
const SINGLE: f64 = 1e-5;
/// Inputs of which every subset is tried as a no-grad set; of more, each alone.
const SUBSETS: usize = 4;

/// What a check has found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Checked {
    /// How many elements' derivatives were compared, first order.
    pub elements: usize,
    /// Largest |built − numeric| / (1 + max |numeric|), first order.
    pub worst: f64,
    /// How many elements' derivatives were compared, second order; 0 where a gradient operator has no gradient.
    pub second_order: usize,
}

/// Checks a sample with the operators that this binary links.
///
/// An error row must be refused with its message. Of any other row, with random output cotangents:
/// - values in `f32` are those in `f64`; values computed in place are those that are not, to the last bit;
/// - built gradients are those of central differences, to first order and, where gradient operators have gradients, to
///   second order; also with the same variable in two slots;
/// - computed eagerly, and as the program that is traced meanwhile, values and gradients are the same, to the last bit;
/// - with any inputs excluded, the other gradients stay the same, to the last bit.
///
/// # Errors
/// What does not hold.
pub fn check_sample(sample: &Sample) -> Result<Checked> {
    check_sample_in(OpInfoMap::linked()?, sample)
}

/// As [`check_sample`], with these operators.
///
/// # Errors
/// As [`check_sample`].
pub fn check_sample_in(ops: &OpInfoMap, sample: &Sample) -> Result<Checked> {
    if let Some(expected) = sample.error {
        return check_refused(ops, sample, expected);
    }
    let function = Function::of(ops, sample, DType::F64, None)?;
    check_single(&Function::of(ops, sample, DType::F32, None)?, &function)?;
    check_in_place(&function)?;
    check_eager(ops, &function).map_err(|e| named(sample, &e, "eagerly, "))?;
    let kind = ops.get(sample.op())?.grad_kind();
    if matches!(kind, GradKind::None | GradKind::Zero) || sample.smooth.is_some() {
        return Ok(Checked::default());
    }
    let bound = sample.tolerance.map_or(TOLERANCE, |(bound, _)| bound);
    let (elements, worst) = check_derivative(ops, &function, bound).map_err(|e| named(sample, &e, ""))?;
    let second_order =
        check_second_order(ops, &function, bound).map_err(|e| named(sample, &e, "second order, "))?;
    check_subsets(ops, &function).map_err(|e| named(sample, &e, ""))?;
    for same in repeatable(sample, &function) {
        // Not every operator takes one variable twice: a shape or domain may not allow it.
        if let Ok(function) = Function::of(ops, sample, DType::F64, Some(same)) {
            check_derivative(ops, &function, bound)
                .map_err(|e| named(sample, &e, "the same variable twice, "))?;
        }
    }
    Ok(Checked { elements, worst, second_order })
}

/// Checks all samples that a package has declared for its operators, and that they leave nothing out: every operator has
/// samples, over which every attribute takes two values and every optional slot is there and not; those apart that
/// [only make sense in a program](OpInfo::needs_program). For
/// [`check_all!`](crate::check_all).
///
/// # Errors
/// Everything that does not hold, one a line.
pub fn check_crate(krate: &str) -> Result<usize> {
    let (ops, samples) = (OpInfoMap::linked()?, samples_of(krate));
    let mut failures = vec![];
    // What only makes sense in a program cannot be sampled by itself.
    let sampled = |info: &&OpInfo| !info.is_gradient() && !info.needs_program();
    for info in ops.iter().filter(|info| info.crate_name() == krate).filter(sampled) {
        let name = info.schema().name;
        let own: Vec<&Sample> = samples.iter().filter(|s| s.op() == name).collect();
        failures.extend(gaps(info, &own).into_iter().map(|gap| format!("operator `{name}`: {gap}")));
    }
    let (mut row, mut last) = (0, "");
    for sample in &samples {
        row = if sample.op() == last { row + 1 } else { 0 };
        last = sample.op();
        if let Err(e) = check_sample_in(ops, sample) {
            failures.push(format!("{last}, row {row}: {e}"));
        }
    }
    if samples.is_empty() {
        failures.push(format!("package `{krate}` has declared no samples"));
    }
    if failures.is_empty() { Ok(samples.len()) } else { Err(failure(failures.join("\n"))) }
}

/// Makes a test of all samples of an operator crate: `autobwd::check_all!(my_operators);` as the only line of a file in
/// `tests/`.
#[macro_export]
macro_rules! check_all {
    ($krate:ident) => {
        // Named, so that it is linked.
        use $krate as _;

        #[test]
        fn every_sample_holds() {
            if let Err(failures) = $crate::check::check_crate(::core::env!("CARGO_PKG_NAME")) {
                ::core::panic!("{failures}");
            }
        }
    };
}

fn named(sample: &Sample, e: &crate::Error, what: &str) -> crate::Error {
    let mut text = e.to_string();
    // Inputs are called `v0`, `v1`, …: say which slots these are.
    for k in (0..sample.draws.len()).rev() {
        if let Some(slot) = sample.desc.inputs.slot_of(crate::Var::stand_in(k + 1)) {
            text = text.replace(&format!("`v{k}`"), &format!("`{slot}`"));
        }
    }
    failure(format!("`{}`: {what}{text}", sample.op()))
}

fn check_refused(ops: &OpInfoMap, sample: &Sample, expected: &str) -> Result<Checked> {
    match Function::of(ops, sample, DType::F64, None).and_then(|f| f.run()) {
        Ok(_) => Err(failure(format!("`{}` was accepted; expected the error \"{expected}\"", sample.op()))),
        Err(e) if e.to_string().contains(expected) => Ok(Checked::default()),
        Err(e) => Err(failure(format!("expected the error \"{expected}\", got \"{e}\""))),
    }
}

/// |a − b| / (1 + max |b|), largest; NaN beside NaN counts as equal.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let scale = 1.0 + b.iter().filter(|x| x.is_finite()).fold(0.0_f64, |m, x| m.max(x.abs()));
    let apart =
        |(a, b): (&f64, &f64)| if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / scale };
    a.iter().zip(b).map(apart).fold(0.0, |m, x| if x.is_nan() { f64::INFINITY } else { m.max(x) })
}

fn check_single(single: &Function, double: &Function) -> Result<()> {
    for ((name, _), (a, b)) in double.outputs.iter().zip(single.run()?.iter().zip(double.run()?)) {
        let apart = distance(&a.to_f64s(), &b.to_f64s());
        if apart > SINGLE {
            return Err(failure(format!("output `{name}` in float32 is {apart:.1e} off that in float64")));
        }
    }
    Ok(())
}

/// Fetching the inputs, too, keeps their memory: nothing can be done in place.
fn check_in_place(function: &Function) -> Result<()> {
    let outputs: Vec<&str> = function.outputs.iter().map(|(n, _)| n.as_str()).collect();
    let inputs = function.inputs.iter().map(|(n, _)| n.as_str());
    let all: Vec<&str> = outputs.iter().copied().chain(inputs).collect();
    let (free, kept) = (function.fetch(&outputs)?, function.fetch(&all)?);
    if !free.iter().zip(&kept).all(|(a, b)| same_bits(a, b)) {
        return Err(failure("results differ between memory of its own and in place"));
    }
    let changed = function
        .inputs
        .iter()
        .zip(&kept[outputs.len()..])
        .find(|((_, before), after)| !same_bits(before, after));
    match changed {
        Some(((name, _), _)) => Err(failure(format!("input `{name}` is changed"))),
        None => Ok(()),
    }
}

/// What a tape computes, and the program that is written down meanwhile, is what the program computes.
fn check_eager(ops: &OpInfoMap, function: &Function) -> Result<()> {
    let tape = Builder::eager_with_ops(ops.clone(), 1);
    let leaves = function.leaves(&tape);
    let named: Vec<(&str, &Expr)> = function.inputs.iter().map(|(n, _)| n.as_str()).zip(&leaves).collect();
    let mut expected = function.run()?;
    let mut traced = trace(&tape, &named, || {
        let mut values = function.eager(&tape, &leaves)?;
        if values.iter().any(Expr::has_derivative)
            && let Ok((gradient, names)) = function.gradient(ops, &[])
        {
            let seeds = &gradient.inputs[function.inputs.len()..];
            let seeds: Vec<Expr> = seeds.iter().map(|(_, t)| tape.constant(t.clone())).collect();
            let seeds: Vec<&Expr> = seeds.iter().collect();
            let roots: Vec<&Expr> = values.iter().filter(|out| out.dtype().is_float()).collect();
            let inputs: Vec<&Expr> = leaves.iter().filter(|leaf| leaf.has_derivative()).collect();
            let found = grad(&roots, &inputs, &Grad { seeds: Some(&seeds), create_graph: false })?;
            if found.iter().map(Option::is_some).ne(names.iter().map(Option::is_some)) {
                return Err(failure("other inputs have a gradient than in the program"));
            }
            expected.extend(gradient.run()?);
            values.extend(found.into_iter().flatten());
        }
        Ok(values)
    })?;
    let mut executor = Executor::with_threads(1).with_ops(ops.clone());
    let feeds: Vec<(&str, &Tensor)> = function.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let fetches: Vec<&str> = traced.outputs.iter().map(String::as_str).collect();
    let again = executor.run(&traced.program, &mut traced.scope, &feeds, &fetches)?;
    for ((value, again), expected) in traced.values.iter().zip(&again).zip(&expected) {
        let tensor = value.tensor()?;
        if !same_bits(&tensor, expected) || !same_bits(again, expected) {
            let text = format!("{value} is {tensor:?}, traced {again:?}, in the program {expected:?}");
            return Err(failure(text));
        }
    }
    Ok(())
}

fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    a.dims() == b.dims() && a.bytes() == b.bytes()
}

/// Compares the built gradients with central differences: how many elements, and the largest distance.
fn check_derivative(ops: &OpInfoMap, function: &Function, bound: f64) -> Result<(usize, f64)> {
    let (gradient, names) = function.gradient(ops, &[])?;
    let cotangents: Vec<&Tensor> = gradient.inputs[function.inputs.len()..].iter().map(|(_, t)| t).collect();
    let values = gradient.run()?;
    let (mut elements, mut worst) = (0, 0.0_f64);
    for (input, grad) in function.float_inputs().iter().zip(&names) {
        let numeric = function.numeric(input, &cotangents)?;
        let at = grad.as_ref().and_then(|g| gradient.outputs.iter().position(|(n, _)| n == g));
        let built = at.map_or(vec![0.0; numeric.len()], |i| values[i].to_f64s());
        let apart = distance(&built, &numeric);
        if apart > bound {
            let missing = if grad.is_none() { " (none was built)" } else { "" };
            let text = format!(
                "the gradient of `{input}`{missing} is {apart:.1e} off: {built:?}, numeric {numeric:?}"
            );
            return Err(failure(text));
        }
        elements += numeric.len();
        worst = worst.max(apart);
    }
    Ok((elements, worst))
}

/// The gradient is itself a function whose gradient can be checked.
fn check_second_order(ops: &OpInfoMap, function: &Function, bound: f64) -> Result<usize> {
    let (gradient, _) = function.gradient(ops, &[])?;
    match check_derivative(ops, &gradient, bound) {
        Ok((elements, _)) => Ok(elements),
        Err(e) if e.kind() == ErrorKind::NoGradient => Ok(0),
        Err(e) => Err(e),
    }
}

fn check_subsets(ops: &OpInfoMap, function: &Function) -> Result<()> {
    let inputs = function.float_inputs();
    let n = inputs.len();
    let subsets: Vec<usize> =
        if n <= SUBSETS { (1..1 << n).collect() } else { (0..n).map(|i| 1 << i).collect() };
    let (gradient, names) = function.gradient(ops, &[])?;
    let values = gradient.run()?;
    let value = |names: &[Option<String>], gradient: &Function, values: &[Tensor], i: usize| {
        let name = names.get(i)?.as_ref()?;
        let at = gradient.outputs.iter().position(|(n, _)| n == name)?;
        values.get(at).cloned()
    };
    for subset in subsets {
        let is_excluded = |i: usize| subset & (1 << i) != 0;
        let excluded: Vec<&str> = (0..n).filter(|i| is_excluded(*i)).map(|i| inputs[i].as_str()).collect();
        let (rest, rest_names) = function.gradient(ops, &excluded)?;
        let rest_values = rest.run()?;
        for (i, input) in inputs.iter().enumerate() {
            let built = value(&rest_names, &rest, &rest_values, i);
            let full = value(&names, &gradient, &values, i);
            let holds = match (&built, &full) {
                (Some(_), _) if is_excluded(i) => false,
                (Some(built), Some(full)) => same_bits(built, full),
                (None, Some(_)) => is_excluded(i),
                (built, None) => built.is_none(),
            };
            if !holds {
                return Err(failure(format!(
                    "without the gradients of {excluded:?}, that of `{input}` is another"
                )));
            }
        }
    }
    Ok(())
}

/// Pairs of inputs that could be one variable: drawn alike, in slots that do not depend on each other's shape.
fn repeatable(sample: &Sample, function: &Function) -> Vec<(usize, usize)> {
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
