//! Checks of values: with some gradients absent, in place and not, eager and in a program, on one thread and on several.

use std::sync::Arc;

use super::{
    derivatives::{Distance, GradientFunction},
    function::{ProgramFunction, failure},
};
use autobwd_core::{Cx, ErrorKind, Expr, OpInfoMap, Result, Tensor};
use autobwd_eager::{GradOptions, grad, trace};
use autobwd_exec::Executor;

/// Bound for |a − b| / (1 + max |b|) between gradients with an output's gradient absent and zero.
const ABSENT: f64 = 1e-9;
/// Number of inputs up to which every subset is tried as a no-grad set; of more, each alone.
const SUBSETS: usize = 4;

/// With the gradients of some outputs absent, the gradients of inputs are the same as with zeros in their place.
pub(super) fn check_absent(
    ops: &OpInfoMap,
    function: &ProgramFunction,
    built: &GradientFunction,
) -> Result<()> {
    let outputs: Vec<&String> = function.float_outputs().map(|(name, _)| name).collect();
    let n = outputs.len();
    let alone = (0..n).map(|i| vec![i]);
    let all_but_one = (0..n).map(|i| (0..n).filter(|k| *k != i).collect());
    let cases = alone.chain(all_but_one.filter(|_| n > 2));
    for present in cases.take_while(|_| n > 1) {
        let outcome = function.gradient_from(ops, &|i| present.contains(&i), &[]);
        let (gradient, names) = match outcome {
            Err(e) if e.kind() == ErrorKind::NoGradient => continue,
            outcome => outcome?,
        };
        let partial = GradientFunction { gradient, names };
        let mut inputs = built.gradient.inputs.clone();
        for (i, (_, cotangent)) in inputs[function.inputs.len()..].iter_mut().enumerate() {
            if !present.contains(&i) {
                *cotangent = Tensor::zeros(cotangent.dtype(), cotangent.dims())?;
            }
        }
        let (found, expected) = (partial.gradient.run()?, built.gradient.with_inputs(ops, inputs).run()?);
        for (i, input) in function.float_inputs().iter().enumerate() {
            let zeros = vec![0.0; function.numel(input)];
            let of = |value: Option<&Tensor>| value.map_or(zeros.clone(), Tensor::to_f64s);
            let (found, expected) = (of(partial.value(&found, i)), of(built.value(&expected, i)));
            let distance = Distance::of(&found, &expected, ABSENT);
            if distance.worst > ABSENT {
                let absent = (0..n).filter(|i| !present.contains(i)).map(|i| format!("`{}`", outputs[i]));
                let absent = absent.collect::<Vec<_>>().join(", ");
                let what = format!("with the gradient of {absent} absent, the gradient of `{input}`");
                return Err(distance.error(&what, "with zeros", (&found, &expected), function.dims(input)));
            }
        }
    }
    Ok(())
}

/// Fetching the inputs as well prevents in-place operators.
pub(super) fn check_in_place(function: &ProgramFunction) -> Result<()> {
    let outputs: Vec<&str> = function.outputs.iter().map(|(n, _)| n.as_str()).collect();
    let inputs = function.inputs.iter().map(|(n, _)| n.as_str());
    let all: Vec<&str> = outputs.iter().copied().chain(inputs).collect();
    let (free, kept) = (function.fetch(&outputs)?, function.fetch(&all)?);
    if !free.iter().zip(&kept).all(|(a, b)| same_bits(a, b)) {
        return Err(failure("results differ between separate memory and in-place memory"));
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

/// Results do not depend on the number of threads, bit by bit.
pub(super) fn check_threads(ops: &OpInfoMap, function: &ProgramFunction, many: &Arc<Cx>) -> Result<()> {
    let others = function.run_by(&Executor::of_cx(many.clone()).with_ops(ops.clone()))?;
    for ((name, _), (a, b)) in function.outputs.iter().zip(function.run()?.iter().zip(&others)) {
        if !same_bits(a, b) {
            return Err(failure(format!("output `{name}` differs with {} threads", many.threads())));
        }
    }
    Ok(())
}

/// Eager results, and the results of the program traced meanwhile, equal the results of the program.
pub(super) fn check_eager(
    ops: &OpInfoMap,
    function: &ProgramFunction,
    built: Option<&GradientFunction>,
) -> Result<()> {
    let tape = autobwd_eager::eager_with_ops(ops.clone(), 1);
    let leaves = function.leaves(&tape);
    let named: Vec<(&str, &Expr)> = function.inputs.iter().map(|(n, _)| n.as_str()).zip(&leaves).collect();
    let mut expected = function.run()?;
    let mut traced = trace(&tape, &named, || {
        let mut values = function.eager(&tape, &leaves)?;
        if values.iter().any(Expr::requires_grad)
            && let Some(GradientFunction { gradient, names }) = built
        {
            let seeds = &gradient.inputs[function.inputs.len()..];
            let seeds: Vec<Expr> = seeds.iter().map(|(_, t)| tape.constant(t.clone())).collect();
            let seeds: Vec<&Expr> = seeds.iter().collect();
            let roots: Vec<&Expr> = values.iter().filter(|out| out.dtype().is_float()).collect();
            let differentiable = function.float_inputs();
            let of = named
                .iter()
                .filter(|(name, leaf)| leaf.requires_grad() && differentiable.iter().any(|n| n == name));
            let inputs: Vec<&Expr> = of.map(|(_, leaf)| *leaf).collect();
            let found = grad(&roots, &inputs, &GradOptions { seeds: Some(&seeds), create_graph: false })?;
            if found.iter().map(Option::is_some).ne(names.iter().map(Option::is_some)) {
                return Err(failure("other inputs have a gradient than in the program"));
            }
            expected.extend(gradient.run()?);
            values.extend(found.into_iter().flatten());
        }
        Ok(values)
    })?;
    let executor = Executor::with_threads(1).with_ops(ops.clone());
    let fetches: Vec<&str> = traced.outputs.iter().map(String::as_str).collect();
    let mut session = executor.prepare(&traced.program, &mut traced.scope, &function.feeds()?, &fetches)?;
    function.inputs.iter().try_for_each(|(name, tensor)| session.feed(name, tensor))?;
    session.run(&mut traced.scope)?;
    let again = fetches.iter().map(|name| session.fetch(name)).collect::<Result<Vec<_>>>()?;
    for ((value, again), expected) in traced.values.iter().zip(&again).zip(&expected) {
        let tensor = value.tensor()?;
        if !same_bits(&tensor, expected) || !same_bits(again, expected) {
            let text = format!("{value} is {tensor:?}, traced {again:?}, in the program {expected:?}");
            return Err(failure(text));
        }
    }
    Ok(())
}

/// Whether two tensors have the same bits; the bits of NaN do not count.
pub(super) fn same_numbers(a: &Tensor, b: &Tensor) -> bool {
    let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    a.meta() == b.meta() && a.to_f64s().iter().zip(&b.to_f64s()).all(same)
}

/// Whether the bits are the same; all NaN are.
fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    a.dims() == b.dims() && (a.bytes() == b.bytes() || a.dtype().is_float() && same_numbers(a, b))
}

/// With any inputs excluded, the gradients of the others stay equal bit by bit.
pub(super) fn check_subsets(
    ops: &OpInfoMap,
    function: &ProgramFunction,
    built: &GradientFunction,
) -> Result<()> {
    let inputs = function.float_inputs();
    let n = inputs.len();
    let subsets: Vec<usize> =
        if n <= SUBSETS { (1..1 << n).collect() } else { (0..n).map(|i| 1 << i).collect() };
    let values = built.gradient.run()?;
    for subset in subsets {
        let is_excluded = |i: usize| subset & (1 << i) != 0;
        let excluded: Vec<&str> = (0..n).filter(|i| is_excluded(*i)).map(|i| inputs[i].as_str()).collect();
        let (gradient, names) = function.gradient(ops, &excluded)?;
        let rest = GradientFunction { gradient, names };
        let rest_values = rest.gradient.run()?;
        for (i, input) in inputs.iter().enumerate() {
            let holds = match (rest.value(&rest_values, i), built.value(&values, i)) {
                (Some(_), _) if is_excluded(i) => false,
                (Some(some), Some(all)) => same_bits(some, all),
                (None, Some(_)) => is_excluded(i),
                (some, None) => some.is_none(),
            };
            if !holds {
                return Err(failure(format!(
                    "without the gradients of {excluded:?}, the gradient of `{input}` differs"
                )));
            }
        }
    }
    Ok(())
}
