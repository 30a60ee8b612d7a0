//! Operators without kernels run by their compositions, wherever operators run, with gradient rules of their own.

use autobwd::{
    Builder, Composition, DType, ErrorKind, Executor, Expr, Feed, Meta, New, NoGrad, OpInfoMap, Program,
    Result, Scope, Tensor, Var, emit,
    exec::Predictor,
    gradients, register_op,
    tape::{GradOptions, grad},
};
use autobwd_downstream::{
    quantize, unit,
    unit::{Quantize, Unit},
};
use autobwd_ops::{
    Init, Math, Model,
    control::{cond, scan, while_loop},
    optim::{Optimizer, Sgd},
};
use autobwd_xla::lower::{LowerRequest, lower};

const ROWS: [f64; 4] = [3.0, 4.0, -5.0, 12.0];

fn rows() -> Result<Tensor> {
    Tensor::from_vec([2, 2], ROWS.to_vec())
}

fn is_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }
}

/// A parameter of two rows.
fn parameter(net: &Builder) -> Expr {
    net.parameter("x", DType::F64, &[2, 2], |x| x.clone())
}

/// Runs a program with this parameter.
fn run(program: &Program, fetches: &[&str]) -> Result<Vec<Tensor>> {
    let mut scope = Scope::new();
    scope.set("x", rows()?);
    Executor::new().run(program, &mut scope, &[], fetches)
}

/// A program with the gradient of a loss with respect to the parameter.
fn with_gradient(net: &Builder, loss: &str) -> Result<Program> {
    let mut program = net.program()?.clone();
    gradients(&mut program, &[loss], &["x"], &Default::default())?;
    Ok(program)
}

#[test]
fn program_runs_and_differentiates() -> Result<()> {
    let net = Builder::new();
    let out = unit(&parameter(&net), 0.0);
    let loss = (&out * net.input("scale", DType::F64, &[2])).sum(&[]).name();
    let program = with_gradient(&net, &loss)?;
    let types: Vec<_> = program.root().ops.iter().map(|op| op.ty.as_str()).collect();
    assert!(types.contains(&"unit") && types.contains(&"unit_grad") && !types.contains(&"sqrt"), "{types:?}");
    let (scale, mut scope) = (Tensor::from_vec([2], vec![1.0, 10.0])?, Scope::new());
    scope.set("x", rows()?);
    let found = Executor::new().run(&program, &mut scope, &[("scale", &scale)], &[&out.name(), "x@GRAD"])?;
    is_near(found[0].slice()?, &[0.6, 0.8, -5.0 / 13.0, 12.0 / 13.0]);
    // (scale - out · (scale · out)) / length
    let expected = ROWS.chunks(2).flat_map(|row| {
        let length = row[0].hypot(row[1]);
        let out = [row[0] / length, row[1] / length];
        let along = out[0] + 10.0 * out[1];
        [(1.0 - out[0] * along) / length, (10.0 - out[1] * along) / length]
    });
    is_near(found[1].slice()?, &expected.collect::<Vec<_>>());
    Ok(())
}

#[test]
fn own_gradient_rule_is_used() -> Result<()> {
    let net = Builder::new();
    let out = quantize(&parameter(&net), 2.0);
    let loss = (&out * &out).sum(&[]).name();
    let found = run(&with_gradient(&net, &loss)?, &[&out.name(), "x@GRAD"])?;
    // The derivative of `round` is 0.
    let out: Vec<f64> = ROWS.iter().map(|x| (x / 2.0).round() * 2.0).collect();
    is_near(found[0].slice()?, &out);
    is_near(found[1].slice()?, &out.iter().map(|out| 2.0 * out).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn second_order_exists() -> Result<()> {
    let net = Builder::new();
    let out = unit(&parameter(&net), 0.0);
    let mut name = out.slice(1, 0, 1).sum(&[]).name();
    let mut program = net.program()?.clone();
    for _ in 0..2 {
        let entries = gradients(&mut program, &[&name], &["x"], &Default::default())?.entries();
        name = program.name(entries[0].expect("it depends on x")).to_string();
    }
    let found = run(&program, &[&name])?;
    // f = a / r: ∂²f/∂a² + ∂²f/∂a∂b = (-3 a b² + 2 a² b - b³) / r⁵, and for b (2 a b² - a³ + 2 a² b - b³) / r⁵.
    let expected = ROWS.chunks(2).flat_map(|row| {
        let (a, b, r) = (row[0], row[1], row[0].hypot(row[1]));
        let (aa, ab, bb) = (-3.0 * a * b * b, 2.0 * a * a * b - b.powi(3), 2.0 * a * b * b - a.powi(3));
        [(aa + ab) / r.powi(5), (ab + bb) / r.powi(5)]
    });
    is_near(found[0].slice()?, &expected.collect::<Vec<_>>());
    // The same on the tape.
    let tape = autobwd::eager();
    let x = tape.leaf("x", rows()?);
    let recorded = GradOptions { create_graph: true, ..GradOptions::default() };
    let first = grad(&[&unit(&x, 0.0).slice(1, 0, 1).sum(&[])], &[&x], &recorded)?.remove(0).expect("a path");
    let second = grad(&[&first], &[&x], &GradOptions::default())?.remove(0).expect("a path");
    assert_eq!(second.tensor()?.slice::<f64>()?, found[0].slice::<f64>()?);
    Ok(())
}

#[test]
fn tape_records_one_operator() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.leaf("x", rows()?);
    let before = tape.operators_run();
    let out = quantize(&unit(&x, 0.25), 0.5);
    assert_eq!(tape.operators_run() - before, 2);
    (&out * &out).sum(&[]).backward()?;
    let net = Builder::new();
    let same = quantize(&unit(&parameter(&net), 0.25), 0.5);
    let loss = (&same * &same).sum(&[]).name();
    let found = run(&with_gradient(&net, &loss)?, &[&same.name(), "x@GRAD"])?;
    assert_eq!(out.tensor()?.slice::<f64>()?, found[0].slice::<f64>()?);
    assert_eq!(x.gradient()?.tensor()?.slice::<f64>()?, found[1].slice::<f64>()?);
    Ok(())
}

/// The sum of a loop, a recurrence and a branch that contain an operator; its gradient.
fn in_blocks(unit: &dyn Fn(&Expr, f64) -> Expr) -> Result<Vec<Tensor>> {
    let net = Builder::new();
    let x = parameter(&net);
    let limit = x.sum(&[]) * 0.0 + 400.0;
    let below = |x: &Expr| x.square().sum(&[]).less_than(&limit);
    let grown = while_loop(std::slice::from_ref(&x), |v| below(&v[0]), |v| vec![&v[0] + unit(&v[0], 0.0)]);
    let steps = scan(std::slice::from_ref(&x), &[x.slice(0, 0, 1)], false, |row, h| {
        let next = unit(&(&h[0] + row[0].unsqueeze(&[0])), 0.5);
        (vec![next.clone()], vec![next])
    });
    let branch = cond(&below(&x), || vec![unit(&x, 1.0)], || vec![x.square()]);
    let loss = (grown[0].sum(&[]) + steps[0].sum(&[]) + branch[0].sum(&[])).name();
    run(&with_gradient(&net, &loss)?, &[&loss, "x@GRAD"])
}

#[test]
fn loops_and_branches_contain_it() -> Result<()> {
    let found = in_blocks(&unit)?;
    let written_out = in_blocks(&|x, epsilon| x / (x.square().sum(&[1]) + epsilon).sqrt().unsqueeze(&[1]))?;
    is_near(found[0].slice()?, written_out[0].slice()?);
    is_near(found[1].slice()?, written_out[1].slice()?);
    Ok(())
}

#[test]
fn model_trains_and_serves() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 2]);
    let w = net.parameter("w", DType::F64, &[2, 2], |w| Init::Uniform(-1.0, 1.0).emit(w, 1));
    let scores = unit(&x.matmul(&w), 1e-3);
    let loss = scores.square_error(&net.input("y", DType::F64, &[-1, 2])).mean();
    Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let y = Tensor::from_vec([2, 2], vec![0.0, 1.0, 1.0, 0.0])?;
    let mut last = f64::INFINITY;
    for _ in 0..300 {
        let feeds: [(&str, &dyn Feed); 2] = [("x", &rows()?), ("y", &y)];
        last = executor.run(&net.program()?, &mut scope, &feeds, &[&loss.name()])?[0].item()?;
    }
    assert!(last < 1e-2, "{last}");

    let model = Model::for_inference(&*net.program()?, &scope, &[&scores.name()])?;
    let fetch = [scores.name()];
    let mut predictor = Predictor::new(&model.program, model.scope.clone(), &[&fetch[0]])?;
    let served = predictor.run(&[("x", &rows()?)])?.fetch(&fetch[0])?;
    // ONNX has the operators of the composition.
    let bytes = autobwd_onnx::to_bytes(&model)?;
    let mut again = autobwd_onnx::from_bytes(&bytes, &Default::default())?;
    let found = again.run(&mut executor, &[&rows()?])?;
    is_near(found[0].slice()?, served.slice()?);
    assert!(!again.program.root().ops.iter().any(|op| op.is::<Unit>()), "{}", again.program);
    Ok(())
}

#[test]
fn parts_are_fused_with_neighbours() -> Result<()> {
    let net = Builder::new();
    let out = (quantize(&(net.input("x", DType::F64, &[-1, 2]) * 3.0), 0.5) + 1.0).name();
    let mut scope = Scope::new();
    let feeds = [("x", Meta::new(DType::F64, [2, 2]))];
    let session = Executor::new().prepare(&net.program()?, &mut scope, &feeds, &[&out])?;
    assert_eq!(session.instruction_count(), 1);
    Ok(())
}

#[test]
fn devices_run_its_parts() -> Result<()> {
    let net = Builder::new();
    let out = unit(&net.input("x", DType::F64, &[-1, 2]), 0.5).name();
    let x = Meta::new(DType::F64, [3, 2]);
    let (program, ops) = (net.program()?, OpInfoMap::linked()?);
    let lowered = lower(&program, ops, &LowerRequest::new(&[("x", x)], &|_| None, &[&out]))?;
    assert!(lowered.text.contains("stablehlo.sqrt"), "{}", lowered.text);
    Ok(())
}

#[test]
fn registry_tells_how_it_runs() -> Result<()> {
    for ty in ["unit", "unit_grad", "quantize"] {
        let info = OpInfoMap::linked()?.get(ty)?;
        assert!(info.is_composed() && !info.has_kernel());
        assert!(info.to_string().contains("\n  runs: its composition\n"), "{info}");
    }
    Ok(())
}

type UnaryFunction = fn(&Expr) -> Expr;

fn applied(function: UnaryFunction, x: &Expr) -> Expr {
    function(x)
}

macro_rules! composed_like {
    ($($op:ident $name:literal $compose:expr;)*) => {$(
        /// Any shape to the same shape.
        #[register_op(grad = NoGrad, composed, name = $name)]
        pub struct $op<V = Var> {
            /// Any shape.
            #[input]
            pub x: V,
            /// Same shape as `x`.
            #[output(like = x)]
            pub out: V,
        }
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                self.out = applied($compose, &self.x);
            }
        }
    )*};
}
composed_like! {
    Itself "composed_itself" |x| emit(Itself { x: x.into(), out: New }).out;
    One "composed_one" |x| emit(Other { x: x.into(), out: New }).out;
    Other "composed_other" |x| emit(One { x: x.into(), out: New }).out;
    Shorter "composed_shorter" |x| x.sum(&[0]);
    Single "composed_single" |x| x.cast(DType::F32);
    Panicking "composed_panicking" |_| panic!("by intention");
    Unset "composed_unset" |x| Expr::clone(&x.builder().existing(Var::EMPTY));
    Outside "composed_outside" |x| {
        let last = x.cast(DType::I64);
        x.gather(&last.sum(&[1]), 0)
    };
    Nested "composed_nested" |x| quantize(&unit(x, 0.0), 0.5);
}

#[test]
fn faults_of_authors_are_errors_that_name_the_operator() -> Result<()> {
    let faults: [(UnaryFunction, ErrorKind, &str, &str); 7] = [
        (
            |x| emit(Itself { x: x.into(), out: New }).out,
            ErrorKind::Operator,
            "composed_itself",
            "the composition of `composed_itself` contains `composed_itself` itself",
        ),
        (
            |x| emit(One { x: x.into(), out: New }).out,
            ErrorKind::Operator,
            "composed_one",
            "(`composed_one` → `composed_other` → `composed_one`): compose it of operators of other types",
        ),
        (
            |x| emit(Shorter { x: x.into(), out: New }).out,
            ErrorKind::Operator,
            "composed_shorter",
            "the composition of `composed_shorter` computes float64 [2] for `Out`, but the shape rule says float64 [2, 2]",
        ),
        (
            |x| emit(Single { x: x.into(), out: New }).out,
            ErrorKind::Operator,
            "composed_single",
            "computes float32 [2, 2] for `Out`, but the shape rule says float64 [2, 2]",
        ),
        (
            |x| emit(Panicking { x: x.into(), out: New }).out,
            ErrorKind::Panic,
            "composed_panicking",
            "the composition of `composed_panicking` panicked at tests/downstream/tests/composed.rs:",
        ),
        (
            |x| emit(Unset { x: x.into(), out: New }).out,
            ErrorKind::Slot,
            "composed_unset",
            "the composition does not set output `Out`",
        ),
        (
            |x| emit(Outside { x: x.into(), out: New }).out,
            ErrorKind::Data,
            "composed_outside",
            "`Index`: 7 is not within 0..2",
        ),
    ];
    for (emit, kind, name, message) in faults {
        let net = Builder::new();
        let out = emit(&parameter(&net));
        let in_program = net.program().and_then(|program| run(&program, &[&out.name()])).unwrap_err();
        let tape = autobwd::eager();
        let eager = emit(&tape.constant(rows()?)).tensor().unwrap_err();
        for e in [in_program, eager] {
            assert!(e.message().contains(message), "{e}");
            assert_eq!(e.kind(), kind, "{e}");
            let op = e.op().expect("an operator is wrong");
            assert_eq!(op.ty(), name, "{e}");
            assert!(op.source_line().is_some_and(|at| at.contains("composed.rs:")), "{e}");
        }
    }
    Ok(())
}

#[test]
fn compositions_nest() -> Result<()> {
    let net = Builder::new();
    let out = emit(Nested { x: (&parameter(&net)).into(), out: New }).out;
    let found = run(&*net.program()?, &[&out.name()])?;
    is_near(found[0].slice()?, &[0.5, 1.0, -0.5, 1.0]);
    let tape = autobwd::eager();
    let eager = emit(Nested { x: (&tape.constant(rows()?)).into(), out: New }).out;
    assert_eq!(eager.tensor()?.slice::<f64>()?, found[0].slice::<f64>()?);
    Ok(())
}

#[test]
fn not_finite_values_are_found_inside() -> Result<()> {
    let net = Builder::new();
    let out = unit(&(net.input("x", DType::F64, &[-1, 2]) * 0.0), 0.0).name();
    let mut executor = Executor::new().check_finite(true);
    let e = executor.run(&net.program()?, &mut Scope::new(), &[("x", &rows()?)], &[&out]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite);
    assert_eq!(e.op().expect("an operator").ty(), "unit", "{e}");
    Ok(())
}

#[test]
fn nets_contain_it() -> Result<()> {
    use autobwd::net::{NetOp, Operator, backward};
    let net = Operator::from(NetOp::new(
        "net",
        [
            Operator::of(Unit { x: "x", out: "unit", epsilon: 0.0 }),
            Operator::of(Quantize { x: "unit", out: "y", step: 0.5 }),
        ],
    )?);
    let gradient = backward(&net, &[])?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    scope.set("x", rows()?);
    net.run(&mut executor, &mut scope)?;
    let expected = [0.5, 1.0, -0.5, 1.0];
    is_near(scope.get("y")?.slice()?, &expected);
    scope.set("y@GRAD", Tensor::from_vec([2, 2], vec![1.0; 4])?);
    gradient.run(&mut executor, &mut scope)?;
    assert_eq!(scope.get("x@GRAD")?.dims(), [2, 2]);
    Ok(())
}
