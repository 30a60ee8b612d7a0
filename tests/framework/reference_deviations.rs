//! Deliberate differences from the reference, each with the true derivative. For overwritten values, see `overwritten_names`.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Expr, Float, New, NoGrad, Pointwise, Program, Result, Var,
    append_backward, backward::GradientOptions, emit, gradients, register_op, verify,
};
use autobwd_ops::{Math, concat, increment::Increment, sum::Sum};

use crate::support::derivatives::{Point, assert_derivative, assert_near, parameter, run};

const AT: &Point<'_> = &[("w", &[0.7, -0.4, 1.2]), ("v", &[0.5, 1.5, -0.8])];

fn net() -> (Builder, Expr, Expr) {
    let net = Builder::new();
    let (w, v) = (parameter(&net, "w", &[3]), parameter(&net, "v", &[3]));
    (net, w, v)
}

fn name(program: &Program, var: Option<Var>) -> String {
    program.name(var.expect("there is a gradient")).to_string()
}

/// Asserts that all parameters of the loss have the gradients of central differences.
#[track_caller]
fn assert_gradients(net: &Builder, loss: &Expr) {
    let mut program = net.program().unwrap().clone();
    let found = append_backward(&mut program, &loss.name(), &Backward::default()).unwrap();
    assert_eq!(found.missing, []);
    for (var, grad) in found.pairs {
        let (var, grad) = (program.name(var).to_string(), program.name(grad).to_string());
        assert_derivative(&program, AT, &loss.name(), &var, &grad);
    }
}

#[test]
fn branches_of_linear_operators_keep_their_gradients() -> Result<()> {
    let (net, w, v) = net();
    let linear = (&w * 3.0).copy();
    let other = v.square();
    let total = emit(Sum { x: vec![(&linear).into(), (&other).into()], out: New }).out;
    assert_gradients(&net, &(total.sum(&[]) * 2.0));
    Ok(())
}

#[test]
fn targets_on_each_others_path_add_up() -> Result<()> {
    let (net, w, v) = net();
    let h = w.tanh();
    let out = &h * &v;
    // Everything twice: with default seeds, and with given gradients.
    for given in [None, Some([Some("v"), None, Some("w")])] {
        let mut program = net.program()?.clone();
        let (h, out) = (h.name(), out.name());
        let targets = [h.as_str(), &out, &h];
        let given = given.as_ref().map(|given| &given[..]);
        let grads = gradients(
            &mut program,
            &targets,
            &["w", "v", &h],
            &GradientOptions { target_gradients: given, ..Default::default() },
        )?
        .entries();
        verify(&program)?;
        let names: Vec<String> = grads.iter().map(|g| name(&program, *g)).collect();
        let fetch: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = run(&program, AT, &fetch)?;
        let (w, v) = (AT[0].1, AT[1].1);
        for i in 0..3 {
            let tanh = w[i].tanh();
            // The gradients of `h`, without the contribution of `out`.
            let own = if given.is_some() { v[i] + w[i] } else { 2.0 };
            let expected = [(own + v[i]) * (1.0 - tanh * tanh), tanh, own + v[i]];
            assert_near(&[found[0][i], found[1][i], found[2][i]], &expected, 1e-12);
        }
    }
    Ok(())
}

#[test]
fn given_gradient_is_the_answer_for_its_target() -> Result<()> {
    let (net, w, _) = net();
    let h = w.exp().name();
    let program = &mut net.program()?.clone();
    let grads = gradients(
        program,
        &[&h],
        &[&h, "w"],
        &GradientOptions { target_gradients: Some(&[Some("v")]), ..Default::default() },
    )?
    .entries();
    let (own, w) = (name(program, grads[0]), name(program, grads[1]));
    let found = run(program, AT, &[&own, &w, &h])?;
    assert_eq!(found[0], AT[1].1);
    let expected: Vec<f64> = found[2].iter().zip(AT[1].1).map(|(h, v)| h * v).collect();
    assert_near(&found[1], &expected, 1e-12);
    // A target without gradient gets none, given or not.
    for given in [None, Some([Some("v")])] {
        let given = given.as_ref().map(|given| &given[..]);
        let options = GradientOptions { target_gradients: given, no_grad: &[&h], ops: None };
        let grads = gradients(&mut net.program()?.clone(), &[&h], &[&h, "w"], &options)?.entries();
        assert_eq!(grads, [None, None]);
    }
    Ok(())
}

#[test]
fn stopped_gradient_cuts_nothing_but_itself() -> Result<()> {
    let (net, w, _) = net();
    let y = (w.square() * &w).sum(&[]);
    let y = y.name();
    let first = net.edit(|p| gradients(p, &[&y], &["w"], &Default::default()))?.entries()[0];
    let grad = name(&*net.program()?, first);
    let grad = net.expr(&grad).freeze();
    // w · (3 w²), where only the first factor has a gradient.
    let loss = (&w * &grad).sum(&[]);
    let program = &mut net.program()?.clone();
    let second = gradients(program, &[&loss.name()], &["w", &grad.name()], &Default::default())?.entries();
    assert_eq!(second[1], None);
    let (second, grad) = (name(program, second[0]), grad.name());
    let found = run(program, AT, &[&second, &grad, &loss.name()])?;
    assert_near(&found[0], &found[1], 1e-12);
    let expected: Vec<f64> = AT[0].1.iter().map(|w| 3.0 * w * w).collect();
    assert_near(&found[1], &expected, 1e-12);
    assert_near(&found[2], &[expected.iter().zip(AT[0].1).map(|(g, w)| g * w).sum()], 1e-12);
    Ok(())
}

#[test]
fn loss_has_one_element_and_any_rank() -> Result<()> {
    let (net, w, v) = net();
    for loss in
        [(&w * &v).sum(&[]), (&w * &v).sum(&[]).reshape(&[1]), w.reshape(&[1, 3]).matmul(&v.reshape(&[3, 1]))]
    {
        assert_gradients(&net, &loss);
    }
    let loss = (&w * &v).name();
    let program = &mut net.program()?.clone();
    let e = append_backward(program, &loss, &Backward::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert!(e.to_string().contains(&format!("`{loss}` of shape [3] is not a loss: ")), "{e}");
    Ok(())
}

#[test]
fn failed_call_leaves_no_trace() -> Result<()> {
    let (net, w, v) = net();
    let h = w.exp();
    let loss = (&h * &v).sum(&[]).name();
    let (x, dout, ddx) = ((&w).into(), (&h).into(), (&v).into());
    let third = emit(CubedGradGrad { x, dout, ddx, dx: None, ddout: Some(New) }).ddout;
    let hard = third.expect("it is written").sum(&[]).name();
    type Call<'a> = &'a dyn Fn(&mut Program) -> Result<()>;
    let default = Backward::default();
    let missing = Backward { parameters: Some(&["w"]), no_grad: &[&h.name()], ..default };
    let calls: [Call<'_>; 7] = [
        &|p| append_backward(p, "no_such_loss", &default).map(drop),
        &|p| append_backward(p, &h.name(), &default).map(drop),
        &|p| append_backward(p, "v", &default).map(drop),
        &|p| append_backward(p, &hard, &default).map(drop),
        &|p| append_backward(p, &loss, &missing).map(drop),
        &|p| gradients(p, &[&loss, &hard], &["w"], &Default::default()).map(drop),
        &|p| {
            gradients(
                p,
                &[&loss],
                &["w"],
                &GradientOptions { target_gradients: Some(&[Some("w")]), ..Default::default() },
            )
            .map(drop)
        },
    ];
    let mut program = net.program()?.clone();
    for (i, call) in calls.iter().enumerate() {
        assert!(call(&mut program).is_err(), "call {i}");
        assert_eq!(program.to_string(), net.program()?.to_string(), "call {i}");
    }
    // Later results are as without the failed call.
    let mut fresh = net.program()?.clone();
    for program in [&mut program, &mut fresh] {
        for _ in 0..2 {
            append_backward(program, &loss, &default)?;
        }
    }
    assert_eq!(program.to_string(), fresh.to_string());
    Ok(())
}

/// `out = x³`
#[register_op(grad = CubedGrad, pointwise)]
pub(crate) struct Cubed<V = Var> {
    /// Any shape.
    #[input]
    x: V,
    /// Same shape.
    #[output]
    out: V,
}
impl<F: Float> Pointwise for Cubed<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x * self.x;
    }
}
/// `dx = dout * 3 * x²`
#[register_op(grad = CubedGradGrad, pointwise)]
pub(crate) struct CubedGrad<V = Var> {
    /// Input of the forward operator.
    #[input]
    x: V,
    /// Gradient of its output.
    #[input("Out@GRAD")]
    dout: V,
    /// Gradient of its input.
    #[output("X@GRAD")]
    dx: V,
}
impl<F: Float> Pointwise for CubedGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * 3.0 * self.x * self.x;
    }
}
/// `dx = ddx * dout * 6 * x`, `ddout = ddx * 3 * x²`
#[register_op(grad = NoGrad, pointwise)]
pub(crate) struct CubedGradGrad<V = Var> {
    /// Input of the forward operator.
    #[input]
    x: V,
    /// Gradient of its output.
    #[input("Out@GRAD")]
    dout: V,
    /// Gradient of the gradient of its input.
    #[input("X@GRAD@GRAD")]
    ddx: V,
    /// Gradient of its input.
    #[output("X@GRAD")]
    dx: Option<V>,
    /// Gradient of the gradient of its output.
    #[output("Out@GRAD@GRAD")]
    ddout: Option<V>,
}
impl<F: Float> Pointwise for CubedGradGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dx.map(|_| self.ddx * self.dout * 6.0 * self.x);
        self.ddout = self.ddout.map(|_| self.ddx * 3.0 * self.x * self.x);
    }
}

/// A program with the gradients of `y` with respect to `w` of every order up to `orders`.
fn gradients_of_gradients(net: &Builder, y: &Expr, orders: usize) -> Result<(Program, Vec<String>)> {
    let mut program = net.program()?.clone();
    let mut names = vec![y.name()];
    for order in 1..=orders {
        let grads = gradients(&mut program, &[&names[order - 1]], &["w"], &Default::default())?.entries();
        names.push(name(&program, grads[0]));
    }
    verify(&program)?;
    Ok((program, names))
}

#[test]
fn derivatives_have_derivatives() -> Result<()> {
    type Function = fn(&Expr, &Expr) -> Expr;
    let functions: [(&str, Function); 16] = [
        ("exp", |w, _| w.exp()),
        ("tanh", |w, _| w.tanh()),
        ("sigmoid", |w, _| w.sigmoid()),
        ("log", |w, _| (w.square() + 1.0).log()),
        ("sqrt", |w, _| (w.square() + 1.0).sqrt()),
        ("sin", |w, _| w.sin()),
        ("cos", |w, _| w.cos()),
        ("mean", |w, v| w.mean().exp() * v),
        ("softmax", |w, v| w.softmax(0) * v),
        ("product", |w, v| w * v * w.square()),
        ("quotient", |w, v| v / (w.square() + 1.0)),
        ("power", |w, v| (w.square() + 1.0).pow(v)),
        ("matmul", |w, v| w.reshape(&[3, 1]).matmul(&(w * v).reshape(&[1, 3])).exp()),
        ("pieces", |w, v| concat(&[w, v], 0).slice(0, 1, 4).exp() * w),
        ("running sum", |w, _| w.cumsum(0).exp()),
        ("largest", |w, v| w.maximum(v).exp() * v),
    ];
    for (what, function) in functions {
        let (net, w, v) = net();
        let (program, names) = gradients_of_gradients(&net, &function(&w, &v), 3)?;
        for order in 1..=3 {
            println!("{what}, order {order}");
            assert_derivative(&program, AT, &names[order - 1], "w", &names[order]);
        }
    }
    Ok(())
}

#[test]
fn unavailable_gradient_order_is_refused_with_operator() -> Result<()> {
    let (net, w, _) = net();
    let y = emit(Cubed { x: (&w).into(), out: New }).out;
    let (program, names) = gradients_of_gradients(&net, &y, 2)?;
    for order in 1..=2 {
        assert_derivative(&program, AT, &names[order - 1], "w", &names[order]);
    }
    let mut again = program.clone();
    let e = gradients(&mut again, &[&names[2]], &["w"], &Default::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoGradient);
    assert!(
        e.op().is_some_and(|op| op.to_string().starts_with("operator `cubed_grad_grad` (block 0")),
        "{e}"
    );
    let text = format!(
        "the operator has no gradient, which would be of third order, but the gradient of `{}` passes through it",
        names[2]
    );
    assert_eq!(e.message(), text);
    assert_eq!(again, program);
    Ok(())
}

#[test]
fn unknown_names_are_compared_with_those_there_are() -> Result<()> {
    let (net, w, v) = net();
    let loss = (&w * &v).mean().name();
    let mut program = net.program()?.clone();
    let mut unknown = |call: &dyn Fn(&mut Program) -> Result<()>, text: &str| {
        let e = call(&mut program).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::UnknownVar);
        assert_eq!(e.to_string(), format!("the program has no variable {text}"));
        assert_eq!(program, *net.program().unwrap());
    };
    let hint = "`mean_1`; did you mean `mean_0`?";
    unknown(&|p| append_backward(p, "mean_1", &Backward::default()).map(drop), hint);
    let asked = Backward { parameters: Some(&["w", "vv"]), ..Default::default() };
    unknown(&|p| append_backward(p, &loss, &asked).map(drop), "`vv`; did you mean `v` or `w`?");
    let no_grad = Backward { no_grad: &["far_away"], ..Default::default() };
    unknown(&|p| append_backward(p, &loss, &no_grad).map(drop), "`far_away`");
    unknown(&|p| gradients(p, &["mean_1"], &["w"], &Default::default()).map(drop), hint);
    unknown(&|p| gradients(p, &[&loss], &["mean_1"], &Default::default()).map(drop), hint);
    unknown(
        &|p| {
            gradients(
                p,
                &[&loss],
                &["w"],
                &GradientOptions { target_gradients: Some(&[Some("mean_1")]), ..Default::default() },
            )
            .map(drop)
        },
        hint,
    );
    unknown(
        &|p| {
            gradients(p, &[&loss], &["w"], &GradientOptions { no_grad: &["mean_1"], ..Default::default() })
                .map(drop)
        },
        hint,
    );
    Ok(())
}

#[test]
fn every_input_has_an_answer() -> Result<()> {
    let (net, w, v) = net();
    let x = net.input("x", DType::F64, &[3]);
    let (y, apart) = ((w.exp() * &x).name(), v.exp().name());
    let program = &mut net.program()?.clone();
    assert_eq!(gradients(program, &[&y], &["v"], &Default::default())?.entries(), [None]);
    let grads = gradients(program, &[&y], &["v", "w", &apart, "x", "w"], &Default::default())?.entries();
    assert!(grads[1].is_some() && grads[1] == grads[4], "{grads:?}");
    assert_eq!([grads[0], grads[2], grads[3]], [None; 3]);
    Ok(())
}

#[test]
fn missing_gradient_that_was_asked_for_is_an_error() -> Result<()> {
    let (net, w, v) = net();
    let frozen = parameter(&net, "frozen", &[3]).freeze();
    let cut = parameter(&net, "cut", &[3]);
    let loss = (&w * &frozen + cut.argmax(0).cast(DType::F64)).sum(&[]).name();
    drop(v);
    let mut program = net.program()?.clone();
    let asked = Backward { parameters: Some(&["w", "v", "frozen", "cut"]), ..Default::default() };
    let e = append_backward(&mut program, &loss, &asked).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoGradient);
    let lines: Vec<&str> = e.message().lines().collect();
    assert_eq!(lines.len(), 3, "{e}");
    assert_eq!(lines[0], "`v` has no gradient: no path leads from it to `reduce_sum_0`");
    assert_eq!(lines[1], "`frozen` has no gradient: it is marked `stop_gradient`");
    assert!(lines[2].contains("ends at `arg_max_0`, which holds int64, not floating point numbers"), "{e}");
    assert_eq!(program, *net.program()?);
    let allowed = Backward { allow_missing: true, ..asked };
    let found = append_backward(&mut program, &loss, &allowed)?;
    assert_eq!((found.pairs.len(), found.missing.len()), (1, 3));
    Ok(())
}

#[test]
fn backward_pass_changes_no_forward_value() -> Result<()> {
    let (net, w, _) = net();
    let h = w.square();
    emit(Increment { x: (&h).into(), out: (&h).into(), step: 2.0 }).out.check()?;
    let loss = (&h * &w).sum(&[]);
    let before = run(&*net.program()?, AT, &[&h.name()])?;
    let mut program = net.program()?.clone();
    let asked = Backward { parameters: Some(&["w"]), ..Default::default() };
    let grads = append_backward(&mut program, &loss.name(), &asked)?.pairs;
    let grad = name(&program, Some(grads[0].1));
    assert_derivative(&program, AT, &loss.name(), "w", &grad);
    assert_eq!(run(&program, AT, &[&h.name(), &grad])?[0], before[0]);
    Ok(())
}

#[test]
fn cast_to_integers_ends_the_path() -> Result<()> {
    let (net, w, v) = net();
    let whole = (&w * 9.3).cast(DType::I64).cast(DType::F64);
    let loss = (&whole * &v + &w * &v).sum(&[]);
    assert_gradients(&net, &loss);
    let program = &mut net.program()?.clone();
    let grads = gradients(program, &[&whole.name()], &["w"], &Default::default())?.entries();
    assert_eq!(grads, [None]);
    Ok(())
}
