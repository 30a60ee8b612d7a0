//! The eager tape: the same functions as in programs, backward passes, and errors.

use std::{cell::RefCell, fs, path::Path, sync::Arc};

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, Feed, New, Result, Scope, Tensor, append_backward,
    backward::{GradientOptions, hessian_vector_product},
    emit, gradients,
    tape::{GradOptions, grad, trace},
};
use autobwd_ops::{Init, Math, activation::Relu};

use crate::support::{
    compare,
    tape::{leaf, numbers, tape},
};

/// The example's own text is compared.
#[path = "../../ops/examples/scalars.rs"]
#[allow(dead_code, unreachable_pub)]
mod scalars;

#[test]
fn every_operator_is_visited_once_and_leaves_add_up() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 2.0);
    // Two paths lead from each value to the next.
    let mut y = x.clone();
    for _ in 0..10 {
        y = &y + &y;
    }
    let forward = tape.operators_run();
    assert_eq!(forward, 10);
    y.backward()?;
    assert_eq!(x.gradient()?.item()?, 1024.0);
    // A gradient and a sum for each operator.
    assert_eq!(tape.operators_run() - forward, 20);

    y.backward()?;
    assert_eq!(x.gradient()?.item()?, 2048.0);
    x.zero_grad();
    assert_eq!(
        x.gradient().unwrap_err().to_string(),
        "no gradient has reached `x`: `tape::missing` tells why"
    );
    y.backward()?;
    assert_eq!(x.gradient()?.item()?, 1024.0);
    assert!(!x.gradient()?.requires_grad());
    Ok(())
}

#[test]
fn contributions_are_summed_in_order() -> Result<()> {
    // Each contribution is much smaller than the last one: another order would give another sum.
    let number = |i: usize| 3.0_f32.powi(-(i as i32 % 40)) + 1e-3 * i as f32;
    let function = |w: &Expr| -> Result<Expr> {
        let mut out = w * 1.0;
        for i in 0..500 {
            out = &out + w * f64::from(number(i));
        }
        Ok(out.mean())
    };
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[], |w| Init::Constant(1.0).emit(w, 0));
    let loss = function(&w)?.name();
    net.edit(|p| append_backward(p, &loss, &Backward::default()).map(drop))?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let expected = executor.run(&net.program()?, &mut scope, &[], &["w@GRAD"])?;

    let tape = tape();
    let w = tape.leaf("w", Tensor::scalar(1.0_f32)?);
    function(&w)?.backward()?;
    assert_eq!(w.gradient()?.tensor()?, expected[0]);
    Ok(())
}

#[test]
fn reductions_equal_those_of_a_program() -> Result<()> {
    // Some are decomposed, some are not, some have more elements than one thread processes.
    for (dims, axes) in
        [([300, 400], vec![]), ([300, 400], vec![0]), ([70_000, 2], vec![1]), ([2, 70_000], vec![-1])]
    {
        let function = |x: &Expr| -> Result<Vec<Expr>> {
            let (sum, mean) = (x.square().sum(&axes), x.tanh().mean());
            let loss = sum.square().mean() + &mean;
            Ok(vec![sum, mean, loss])
        };
        let net = Builder::new();
        let x = net.parameter("x", DType::F32, &dims, |x| Init::Constant(0.0).emit(x, 0));
        let names: Vec<String> = function(&x)?.iter().map(Expr::name).collect();
        net.edit(|p| append_backward(p, &names[2], &Backward::default()).map(drop))?;
        let x = numbers(&dims, 3);
        let mut scope = Scope::new();
        scope.set("x", x.clone());
        let fetches: Vec<&str> = names.iter().map(String::as_str).chain(["x@GRAD"]).collect();
        let expected = Executor::new().run(&net.program()?, &mut scope, &[], &fetches)?;

        let tape = tape();
        let x = tape.leaf("x", x);
        let mut found = function(&x)?;
        found[2].backward()?;
        found.push(x.gradient()?);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(&found.tensor()?, expected, "{dims:?} over {axes:?}: {found}");
        }
    }
    Ok(())
}

#[test]
fn only_leaves_keep_a_derivative_unless_it_is_retained() -> Result<()> {
    let tape = tape();
    let (x, c) = (leaf(&tape, "x", 3.0), tape.constant(Tensor::scalar(5.0)?));
    let y = x.square();
    let z = &y * &c;
    z.backward()?;
    assert!(y.gradient().is_err() && c.gradient().is_err() && z.gradient().is_err());
    y.retain_grad()?;
    z.backward()?;
    assert_eq!((y.gradient()?.item()?, x.gradient()?.item()?), (5.0, 60.0));
    assert_eq!(
        c.retain_grad().unwrap_err().to_string(),
        "a constant has no gradient: no history leads from it to a leaf"
    );
    assert!(x.is_leaf() && !y.is_leaf() && !c.is_leaf() && !c.requires_grad());
    Ok(())
}

#[test]
fn unrelated_operators_are_not_visited() -> Result<()> {
    let tape = tape();
    let (x, w) = (leaf(&tape, "x", 2.0), leaf(&tape, "w", 3.0));
    let mut side = w.clone();
    for _ in 0..10 {
        side = side.sin();
    }
    let inner = x.square();
    let out = inner.exp() * &side;
    let run = |inputs: &[&Expr]| -> Result<(Vec<Option<f64>>, u64)> {
        let before = tape.operators_run();
        let found = grad(&[&out], inputs, &GradOptions::default())?;
        let found = found.iter().map(|d| d.as_ref().map(|d| d.item()).transpose()).collect::<Result<_>>()?;
        Ok((found, tape.operators_run() - before))
    };
    let expected = side.item()? * 4.0_f64.exp();
    // Gradients of `*`, `exp` and `square`; the backward pass stops at the requested values.
    assert_eq!(run(&[&x])?, (vec![Some(expected * 4.0)], 3));
    assert_eq!(run(&[&inner])?, (vec![Some(expected)], 2));
    assert_eq!(run(&[&w])?.1, 11);
    assert_eq!(
        run(&[&inner, &x, &leaf(&tape, "unused", 1.0)])?.0,
        [Some(expected), Some(expected * 4.0), None]
    );
    assert!(x.gradient().is_err() && w.gradient().is_err());
    Ok(())
}

#[test]
fn several_outputs_and_seeds_equal_those_of_a_program() -> Result<()> {
    let function = |x: &Expr, w: &Expr| -> Result<Vec<Expr>> {
        let parts = x.matmul(w).split(&[2, 1], 1);
        Ok(vec![parts[0].softmax(-1), &parts[1] * x, x.sum(&[])])
    };
    let net = Builder::new();
    let (x, w) = (net.input("x", DType::F32, &[4, 2]), net.input("w", DType::F32, &[2, 3]));
    let (x, w) = (&x, &w);
    net.edit(|p| {
        let vars: Vec<_> = [x.var(), w.var()].into();
        vars.iter().for_each(|v| p.root_mut().vars.get_mut(v).expect("declared").stop_gradient = false);
        Ok(())
    })?;
    let outputs = function(x, w)?;
    let seeds = [numbers(&[4, 2], 1), numbers(&[4, 2], 2), numbers(&[], 3)];
    let names: Vec<String> = (0..3).map(|i| format!("seed{i}")).collect();
    for (name, seed) in names.iter().zip(&seeds) {
        let dims: Vec<i64> = seed.dims().iter().map(|n| *n as i64).collect();
        net.input(name, DType::F32, &dims);
    }
    let targets: Vec<String> = outputs.iter().map(Expr::name).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let given: Vec<Option<&str>> = names.iter().map(|n| Some(n.as_str())).collect();
    net.edit(|p| {
        gradients(
            p,
            &targets,
            &["x", "w"],
            &GradientOptions { target_gradients: Some(&given), ..Default::default() },
        )
        .map(drop)
    })?;
    let (x, w) = (numbers(&[4, 2], 5), numbers(&[2, 3], 6));
    let mut feeds: Vec<(&str, &dyn Feed)> = vec![("x", &x), ("w", &w)];
    feeds.extend(names.iter().zip(&seeds).map(|(name, seed)| (name.as_str(), seed as _)));
    let expected = Executor::new().run(&net.program()?, &mut Scope::new(), &feeds, &["x@GRAD", "w@GRAD"])?;

    let tape = tape();
    let (x, w) = (tape.leaf("x", x), tape.leaf("w", w));
    let outputs = function(&x, &w)?;
    let seeds: Vec<Expr> = seeds.iter().map(|t| tape.constant(t.clone())).collect();
    let seeds: Vec<&Expr> = seeds.iter().collect();
    let outputs: Vec<&Expr> = outputs.iter().collect();
    let found = grad(&outputs, &[&x, &w], &GradOptions { seeds: Some(&seeds), create_graph: false })?;
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(&found.as_ref().unwrap().tensor()?, expected);
    }

    // Seeds of one output, whose gradients the leaves accumulate.
    for (out, seed) in outputs.iter().zip(&seeds) {
        let how = GradOptions { seeds: Some(&[seed]), create_graph: false };
        let found = grad(&[out], &[&x, &w], &how)?;
        [&x, &w].iter().for_each(|leaf| leaf.zero_grad());
        autobwd::tape::backward_with(out, Some(seed), &mut |_| {})?;
        for (leaf, found) in [&x, &w].into_iter().zip(&found) {
            let tensor = |d: &Expr| d.tensor();
            assert_eq!(
                leaf.gradient().ok().as_ref().map(tensor).transpose()?,
                found.as_ref().map(tensor).transpose()?
            );
        }
    }
    Ok(())
}

#[test]
fn derivatives_have_derivatives_to_any_order() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 0.7);
    let mut y = x.sin();
    let again = GradOptions { create_graph: true, ..GradOptions::default() };
    for order in 1..=6 {
        y = grad(&[&y], &[&x], &again)?[0].clone().unwrap();
        let expected = (0.7 + std::f64::consts::FRAC_PI_2 * f64::from(order)).sin();
        assert!((y.item()? - expected).abs() < 1e-14, "{order}: {y:?}");
    }
    // Without recording, it has no gradient.
    let once = grad(&[&x.sin()], &[&x], &GradOptions::default())?[0].clone().unwrap();
    assert!(!once.requires_grad());

    // The Hessian-vector product, as in a program.
    let model = |x: &Expr| (x.tanh().softmax(-1) * x).square().mean();
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2, 3], |w| Init::Constant(0.0).emit(w, 0));
    let v = net.input("v", DType::F32, &[2, 3]);
    let loss = model(&w);
    let (loss, v) = (loss.name(), v.name());
    let products = net.edit(|p| hessian_vector_product(p, &loss, &[("w", &v)], &Default::default()))?;
    let program = net.program()?;
    let name = program.name(products[0].unwrap());
    let (w, v) = (numbers(&[2, 3], 1), numbers(&[2, 3], 2));
    let mut scope = Scope::new();
    scope.set("w", w.clone());
    let expected = Executor::new().run(&program, &mut scope, &[("v", &v)], &[name])?;
    let (w, v) = (tape.leaf("w", w), tape.constant(v));
    let first = grad(&[&model(&w)], &[&w], &again)?[0].clone().unwrap();
    let product = grad(&[&first], &[&w], &GradOptions { seeds: Some(&[&v]), create_graph: false })?;
    let (found, expected) = (product[0].as_ref().unwrap().tensor()?.to_f64s(), expected[0].to_f64s());
    found.iter().zip(&expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{found:?} {expected:?}"));
    Ok(())
}

#[test]
fn hooks_see_and_change_summed_gradients() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 2.0);
    let y = x.square();
    let out = y.exp() + y.sin();
    let whole = 4.0_f64.exp() + 4.0_f64.cos();
    let seen = Arc::new(std::sync::Mutex::new(vec![]));
    let (own, on_leaf) = (seen.clone(), seen.clone());
    let doubled = y.hook(move |d| {
        own.lock().unwrap().push(d.item().unwrap());
        d * 2.0
    })?;
    x.hook(move |d| {
        on_leaf.lock().unwrap().push(d.item().unwrap());
        d.clone()
    })?;
    out.backward()?;
    assert_eq!(x.gradient()?.item()?, 2.0 * whole * 4.0);
    assert_eq!(*seen.lock().unwrap(), [whole, 2.0 * whole * 4.0]);
    y.remove_hook(doubled);
    x.zero_grad();
    out.backward()?;
    assert_eq!(x.gradient()?.item()?, whole * 4.0);
    let other = tape.constant(Tensor::zeros(DType::F64, &[3])?).into_value()?;
    y.hook(move |d| d.builder().hold(other.clone()))?;
    let e = out.backward().unwrap_err().to_string();
    assert_eq!(e, "`derivative`: shape [3] does not match [] of `hook`");
    Ok(())
}

#[test]
fn non_finite_values_are_found_at_their_operator() -> Result<()> {
    let tape = tape();
    tape.check_finite(true);
    let x = leaf(&tape, "x", 0.0);
    let e = x.log().check().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite);
    assert!(
        e.to_string().starts_with("operator `log` (run at ")
            && e.to_string().ends_with("`Out` is not finite")
    );
    let (root, line) = (x.sqrt(), line!());
    let e = (&root * 2.0).backward().unwrap_err().to_string();
    // The gradient operator, with the source line of its forward operator.
    assert!(e.starts_with("operator `sqrt_grad` (run at ") && e.contains(&format!("tape.rs:{line};")), "{e}");
    tape.check_finite(false);
    root.backward()?;
    assert_eq!(x.gradient()?.item()?, f64::INFINITY);
    Ok(())
}

#[test]
fn constants_remember_nothing() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 3.0);
    let (y, z) = tape.no_grad(|| -> Result<_> { Ok((x.square(), tape.no_grad(|| x.exp()))) })?;
    assert!(!y.requires_grad() && !z.requires_grad());
    let y = x.square();
    let parts = [y.detach(), y.clone().stop_gradient(), y.greater_than(&x).cast(DType::F64)];
    assert!(parts.iter().all(|part| !part.requires_grad()));
    let out = parts.iter().fold(y.clone(), |out, part| out * part);
    out.backward()?;
    assert_eq!(x.gradient()?.item()?, 6.0 * 81.0);
    let e = y.detach().backward().unwrap_err().to_string();
    assert!(
        e.starts_with("the result of `assign` at ") && e.contains("has no history that leads to a leaf"),
        "{e}"
    );
    Ok(())
}

#[test]
fn numbers_read_like_formulas() -> Result<()> {
    let tape = tape();
    let (x, y) = (leaf(&tape, "x", 0.5), leaf(&tape, "y", 3.0));
    let z = (&x * &y).sigmoid() / (&y - 1.0).relu() + 2.0 * (-y.log()).exp() - &x * 0.1;
    let f = |x: f64, y: f64| 1.0 / (1.0 + (-x * y).exp()) / (y - 1.0).max(0.0) + 2.0 / y - x * 0.1;
    assert!((z.item()? - f(0.5, 3.0)).abs() < 1e-15);
    z.backward()?;
    let h = 1e-6;
    let expected =
        [(f(0.5 + h, 3.0) - f(0.5 - h, 3.0)) / (2.0 * h), (f(0.5, 3.0 + h) - f(0.5, 3.0 - h)) / (2.0 * h)];
    let found = [x.gradient()?.item()?, y.gradient()?.item()?];
    assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9));
    assert!(x.item()? < y.item()? && y.item()? > 2.5 && x.item()? == leaf(&tape, "x", 0.5).item()?);
    // A NaN is reported where it arises, whatever is computed from it.
    tape.check_finite(true);
    let none = tape.constant(Tensor::scalar(-1.0)?).log();
    assert_eq!(none.item().unwrap_err().kind(), ErrorKind::NotFinite);
    assert_eq!((none + 1.0).item().unwrap_err().kind(), ErrorKind::NotFinite);
    let four = tape.constant(Tensor::scalar(4.0)?);
    assert_eq!(four.backward().unwrap_err().kind(), ErrorKind::NoGradient);
    Ok(())
}

#[test]
fn worked_example_prints_its_queue() -> Result<()> {
    compare("framework/stories/scalars.txt", &scalars::text()?);
    Ok(())
}

/// The pictures of the book are made of these graphs by `dot -Tsvg`.
#[test]
fn worked_example_draws_its_queue() -> Result<()> {
    let pictures = scalars::pictures()?;
    assert_eq!(pictures.len(), 7);
    // Tooltips have lines of the source.
    let lines = pictures.iter().flat_map(|dot| dot.lines());
    let lines = lines.map(|line| line.split(", tooltip=").next().unwrap_or_default().to_string() + "\n");
    compare("framework/stories/queue.dot", &lines.collect::<String>());
    for (step, dot) in pictures.iter().enumerate() {
        let svg =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../autobwd/book/src/queue/step_{step}.svg"));
        let svg = fs::read_to_string(svg).unwrap();
        let labels = dot.split("label=\"").skip(1).filter_map(|rest| rest.split('"').next());
        for line in labels.flat_map(|label| label.split("\\n")) {
            assert!(svg.contains(&format!(">{line}</text>")), "step {step}: `{line}` is not in the picture");
        }
    }
    // A gradient grows while its value is in the queue; the color says where the value is.
    let shows = |step: usize, text: &str, color: &str| {
        let line = pictures[step].lines().find(|line| line.contains(text));
        assert!(line.is_some_and(|line| line.contains(color)), "step {step}: {text}\n{}", pictures[step]);
    };
    shows(0, r#"label="h\n"#, "#f4a261");
    shows(2, r"= 6\ngradient 403.4288", "#fde3cc");
    shows(3, r"= 6\ngradient 403.59546", "#f4a261");
    shows(4, r#"label="z\n"#, "#d8ecd2");
    shows(6, r"= 2\ngradient 1210.7864", "#d8ecd2");
    Ok(())
}

#[test]
fn numbers_stand_on_either_side_of_expressions() -> Result<()> {
    let tape = tape();
    let x = || leaf(&tape, "x", 4.0);
    let by_value =
        [2.0 + x(), 2.0 - x(), 2.0 * x(), 2.0 / x(), x() + 2.0, x() - 2.0, x() * 2.0, x() / 2.0, -x()];
    let by_reference = [
        2.0 + &x(),
        2.0 - &x(),
        2.0 * &x(),
        2.0 / &x(),
        &x() + 2.0,
        &x() - 2.0,
        &x() * 2.0,
        &x() / 2.0,
        -&x(),
    ];
    let expected = [6.0, -2.0, 8.0, 0.5, 6.0, 2.0, 8.0, 2.0, -4.0];
    for ((by_value, by_reference), expected) in by_value.into_iter().zip(by_reference).zip(expected) {
        assert_eq!((by_value.item()?, by_reference.item()?), (expected, expected));
    }
    Ok(())
}

#[test]
fn invalid_calls_are_refused() -> Result<()> {
    let (tape, net) = (tape(), Builder::new());
    let (x, variable) = (tape.leaf("x", numbers(&[3], 0)), net.input("v", DType::F32, &[3]));
    let refused = |outcome: Result<Expr>, expected: &str| {
        let text = outcome.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(text.contains(expected), "{text:?} lacks {expected:?}");
    };
    refused((&x + &variable).check().cloned(), "expressions of two programs");
    refused((&variable + &x).check().cloned(), "expressions of two programs");
    refused(tape.input("x", DType::F32, &[3]).check().cloned(), "`x` cannot be fed later");
    refused(x.backward().map(|()| x.clone()), "`x` of shape [3] is not a loss");
    refused(variable.backward().map(|()| x.clone()), "`v` is a variable of a program");
    refused(x.matmul(&tape.constant(numbers(&[2, 2], 0))).check().cloned(), "operator `matmul_v2` (run at ");
    refused(tape.expr("nothing").check().cloned(), "nothing");
    refused(
        emit(Relu { x: New, out: New }).out.check().cloned(),
        "an input must be an existing variable, not `New`",
    );
    let seed = tape.constant(numbers(&[2], 0));
    let sum = x.square();
    refused(
        autobwd::tape::backward_with(&sum, Some(&seed), &mut |_| {}).map(|()| x.clone()),
        "`seed`: shape [2] does not match [3] of `output`",
    );
    refused(
        grad(&[], &[&x], &GradOptions::default()).map(|_| x.clone()),
        "no outputs to differentiate are given",
    );
    refused(
        grad(&[&sum], &[&x], &GradOptions { seeds: Some(&[]), create_graph: false }).map(|_| x.clone()),
        "0 seeds are given for 1 outputs",
    );
    // A needed gradient of an operator without one.
    let hard = x.mean().less_than(&x.mean());
    refused(hard.backward().map(|()| x.clone()), "no history");
    let integers = tape.leaf("labels", Tensor::from_vec([1], vec![1_i64])?);
    assert!(!integers.requires_grad());
    refused(trace(&net, &[], || Ok(vec![])).map(|_| x.clone()), "only an eager builder");
    let inner = RefCell::new(None);
    trace(&tape, &[], || {
        *inner.borrow_mut() = trace(&tape, &[], || Ok(vec![])).err();
        Ok(vec![])
    })?;
    assert_eq!(inner.take().unwrap().to_string(), "the builder is being traced already");
    refused(
        trace(&tape, &[("a", &x), ("a", &sum)], || Ok(vec![])).map(|_| x.clone()),
        "two inputs have the name `a`",
    );
    Ok(())
}
