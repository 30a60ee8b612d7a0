//! Hessian-vector products and Jacobians.

use autobwd::{
    Arg, Builder, Derived, ErrorKind, Expr, Float, New, Pointwise, Program, Result, Var,
    backward::{GradientOptions, hessian_vector_product, jacobian},
    emit, gradients, register_op, verify,
};
use autobwd_ops::{
    Math,
    activation::Square,
    concat,
    nn::{LstmCell, RecurrentCell},
};

use crate::support::derivatives::{Point, assert_derivatives, assert_near, gradients_at, parameter, run};

const W: &[f64] = &[0.7, -0.4, 1.2];
const V: &[f64] = &[0.5, 1.5, -0.8];
const AT: &Point<'_> = &[("w", W), ("v", V), ("p", &[1.0, -2.0, 0.5]), ("q", &[0.3, 0.0, 2.0])];

/// Two variables `w` and `v`, and two vectors `p` and `q`.
fn net() -> (Builder, Expr, Expr) {
    let net = Builder::new();
    let [w, v] = ["w", "v"].map(|name| parameter(&net, name, &[3]));
    for name in ["p", "q"] {
        let _ = parameter(&net, name, &[3]).freeze();
    }
    (net, w, v)
}

fn name(program: &Program, var: Option<Var>) -> String {
    program.name(var.expect("there is a path")).to_string()
}

/// The products with `p` for `w` and `q` for `v`: computed, and by differences of gradients along these directions.
fn products(net: &Builder, loss: &Expr) -> Result<[Vec<Vec<f64>>; 2]> {
    let mut program = net.program()?.clone();
    let found =
        hessian_vector_product(&mut program, &loss.name(), &[("w", "p"), ("v", "q")], &Default::default())?;
    verify(&program)?;
    let names: Vec<String> = found.iter().map(|var| name(&program, *var)).collect();
    let found = run(&program, AT, &[&names[0], &names[1]])?;

    let mut first = net.program()?.clone();
    let grads = gradients(&mut first, &[&loss.name()], &["w", "v"], &Default::default())?.entries();
    let names: Vec<String> = grads.iter().map(|var| name(&first, *var)).collect();
    let at = |step: f64| {
        let moved = |of: usize, along: usize| -> Vec<f64> {
            AT[of].1.iter().zip(AT[along].1).map(|(x, d)| x + step * d).collect()
        };
        run(&first, &[("w", &moved(0, 2)), ("v", &moved(1, 3))], &[&names[0], &names[1]])
    };
    let (above, below) = (at(1e-5)?, at(-1e-5)?);
    let difference = |i: usize| above[i].iter().zip(&below[i]).map(|(a, b)| (a - b) / 2e-5).collect();
    Ok([found, vec![difference(0), difference(1)]])
}

type Function = fn(&Expr, &Expr) -> Expr;

/// Attention of three queries to three keys.
fn seen(w: &Expr, v: &Expr) -> Expr {
    let heads = |x: &Expr| x.reshape(&[1, 3, 1, 1]);
    heads(w).attention(&heads(v), &heads(&v.exp()), true)
}

#[test]
fn hessian_products_equal_central_differences() -> Result<()> {
    let functions: [Function; 6] = [
        |w, v| w.tanh() * v.square(),
        |w, v| (w * v).exp() + w / (v.square() + 1.0),
        |w, v| (w.softmax(0) * v).reshape(&[1, 3]).matmul(&w.reshape(&[3, 1])),
        // One name for several values.
        |w, v| {
            let h = w * v;
            let squared = emit(Square { x: (&h).into(), out: Arg::from(&h) }).out;
            squared.sin() * w
        },
        seen,
        // States only, starting from zeros.
        |w, v| {
            let weight = concat(&[v, &v.slice(0, 0, 1)], 0).reshape(&[1, 4]);
            let gates = w.reshape(&[3, 1]).matmul(&weight).reshape(&[3, 1, 4]);
            LstmCell::fused(&gates, None, &weight).expect("one operator")[0].exp()
        },
    ];
    for function in functions {
        let (net, w, v) = net();
        let loss = function(&w, &v).sum(&[]);
        let [found, numeric] = products(&net, &loss)?;
        assert_near(&found[0], &numeric[0], 1e-8);
        assert_near(&found[1], &numeric[1], 1e-8);
    }
    Ok(())
}

#[test]
fn gradients_of_gradients_that_are_composed_go_on() -> Result<()> {
    let functions: [Function; 2] = [seen, |w, v| w.sigmoid_cross_entropy(v)];
    for function in functions {
        let (net, w, v) = net();
        let loss = function(&w, &v).sum(&[]).name();
        assert_derivatives(net.program()?.clone(), AT, loss, "w", 3);
    }
    Ok(())
}

#[test]
fn hessian_of_a_quadratic_form_is_its_matrix() -> Result<()> {
    // w · A · w with A = [[0, 2, 0], [0, 0, 0], [0, 0, 3]]: the product is (A + Aᵀ) · p.
    let (net, w, _) = net();
    let part = |i: i32| w.slice(0, i, i + 1);
    let form = part(0) * part(1) * 2.0;
    let loss = &form + part(2).square() * 3.0;
    let mut program = net.program()?.clone();
    let found =
        hessian_vector_product(&mut program, &loss.name(), &[("w", "p"), ("v", "q")], &Default::default())?;
    assert_eq!(found[1], None);
    let p = AT[2].1;
    let found = run(&program, AT, &[&name(&program, found[0])])?;
    assert_near(&found[0], &[2.0 * p[1], 2.0 * p[0], 6.0 * p[2]], 1e-12);
    // Linear functions have no Hessian.
    let linear = (&w * 2.0).sum(&[]).name();
    assert_eq!(
        hessian_vector_product(&mut net.program()?.clone(), &linear, &[("w", "p")], &Default::default())?,
        [None]
    );
    Ok(())
}

#[test]
fn jacobians_are_derivatives_of_single_elements() -> Result<()> {
    let (net, w, v) = net();
    let y = concat(&[&(&w * &v), &w.softmax(0).slice(0, 0, 1)], 0).reshape(&[2, 2]).name();
    let mut program = net.program()?.clone();
    let found = jacobian(&mut program, &y, &["w", "v", "p"], &Default::default())?;
    verify(&program)?;
    assert_eq!(found[2], None);
    let names = [name(&program, found[0]), name(&program, found[1])];
    let shape = |name: &str| program.root().vars.get(&program.find(name).unwrap()).unwrap().dims.to_string();
    assert_eq!([shape(&names[0]), shape(&names[1])], ["[2, 2, 3]", "[2, 2, 3]"]);
    let found = run(&program, AT, &[&names[0], &names[1]])?;
    let sum: f64 = W.iter().map(|w| w.exp()).sum();
    let soft: Vec<f64> = W.iter().map(|w| w.exp() / sum).collect();
    let product = |with: &[f64]| [[with[0], 0.0, 0.0], [0.0, with[1], 0.0], [0.0, 0.0, with[2]]].concat();
    let softmax = [soft[0] * (1.0 - soft[0]), -soft[0] * soft[1], -soft[0] * soft[2]];
    assert_near(&found[0], &[product(V), softmax.to_vec()].concat(), 1e-12);
    assert_near(&found[1], &[product(W), vec![0.0; 3]].concat(), 1e-12);
    Ok(())
}

#[test]
fn jacobian_of_a_gradient_is_a_hessian() -> Result<()> {
    let (net, w, _) = net();
    let loss = w.exp().sum(&[]).tanh().name();
    let mut program = net.program()?.clone();
    let grad = gradients(&mut program, &[&loss], &["w"], &Default::default())?.entries()[0];
    let grad = name(&program, grad);
    let hessian = jacobian(&mut program, &grad, &["w"], &Default::default())?[0];
    let products = hessian_vector_product(&mut program, &loss, &[("w", "p")], &Default::default())?;
    verify(&program)?;
    let found = run(&program, AT, &[&name(&program, hessian), &name(&program, products[0])])?;
    let rows = found[0].chunks(3).map(|row| row.iter().zip(AT[2].1).map(|(h, p)| h * p).sum());
    assert_near(&found[1], &rows.collect::<Vec<f64>>(), 1e-12);
    // One element by one element: scalar shapes.
    let single = w.slice(0, 0, 1).reshape(&[]);
    let (x, y) = (single.name(), single.exp().name());
    let mut program = net.program()?.clone();
    let one = jacobian(&mut program, &y, &[&x], &Default::default())?[0];
    let found = run(&program, AT, &[&name(&program, one), &y])?;
    assert_eq!(found[0], found[1]);
    Ok(())
}

#[test]
fn missing_hessians_and_jacobians_are_refused() -> Result<()> {
    let (net, w, v) = net();
    let (vector, loss) = ((&w * &v).name(), (&w * &v).mean().name());
    let empty = w.slice(0, 1, 1).name();
    let label = (net.input("x", autobwd::DType::F64, &[-1, 3]), w.reshape(&[1, 3]));
    let open = (&label.0 * &label.1).name();
    let given = GradientOptions { target_gradients: Some(&[]), ..Default::default() };
    let product = |inputs: &[(&str, &str)], loss: &str| {
        let mut program = net.program().unwrap().clone();
        let e = hessian_vector_product(&mut program, loss, inputs, &Default::default()).unwrap_err();
        assert_eq!(program, *net.program().unwrap());
        e
    };
    assert_eq!(product(&[("w", "p")], &vector).kind(), ErrorKind::Shape);
    assert!(product(&[("w", &loss)], &loss).to_string().contains("target gradient"));
    assert_eq!(product(&[("w", "pq")], &loss).kind(), ErrorKind::UnknownVar);
    let program = &mut net.program()?.clone();
    let e = hessian_vector_product(program, &loss, &[("w", "p")], &given).unwrap_err();
    assert!(e.to_string().contains("`hessian_vector_product` takes no target gradients"), "{e}");
    let e = jacobian(program, &vector, &["w"], &given).unwrap_err();
    assert!(e.to_string().contains("`jacobian` takes no target gradients"), "{e}");
    for (target, input, text) in [
        (&empty, "w", "of shape [0] cannot be part of a Jacobian: it has no elements"),
        (&vector, empty.as_str(), "of shape [0] cannot be part of a Jacobian: it has no elements"),
        (&open, "w", "of shape [-1, 3] cannot be part of a Jacobian: its shape must be known"),
        (&loss, "ww", "no variable `ww`"),
    ] {
        let mut program = net.program()?.clone();
        let e = jacobian(&mut program, target, &[input], &Default::default()).unwrap_err();
        assert!(e.to_string().contains(text), "{e}");
        assert_eq!(program, *net.program()?);
    }
    Ok(())
}

/// `out = (1 + x²)²`
#[register_op(grad = Derived, pointwise, name = "squared_plus_square")]
pub(crate) struct SquaredPlusSquare<V = Var> {
    #[input]
    x: V,
    #[output]
    out: V,
}
impl<F: Float> Pointwise for SquaredPlusSquare<F> {
    fn eval(&mut self) {
        self.out = (self.x * self.x + 1.0).pow(F::from(2.0));
    }
}

#[test]
fn powers_have_second_derivatives_where_the_first_is_0() -> Result<()> {
    let net = Builder::new();
    let x = parameter(&net, "x", &[3]);
    let y = emit(SquaredPlusSquare { x: (&x).into(), out: New }).out.sum(&[]);
    net.edit(|program| gradients(program, &[&y.name()], &["x"], &Default::default()).map(drop))?;
    let found = gradients_at(&net, &net.expr("x@GRAD").sum(&[]), &[("x", &[0.0, 1.0, -2.0])])?;
    assert_near(&found[0], &[4.0, 16.0, 52.0], 1e-12);
    Ok(())
}

#[test]
fn power_of_exponent_0_has_mixed_derivatives() -> Result<()> {
    let at: &Point<'_> = &[("x", &[2.0, 4.0, 2.0]), ("y", &[0.0, 0.0, 1.0])];
    for (first, second) in [("x", "y"), ("y", "x")] {
        let net = Builder::new();
        let z = parameter(&net, "x", &[3]).pow(&parameter(&net, "y", &[3])).sum(&[]);
        net.edit(|program| gradients(program, &[&z.name()], &[first], &Default::default()).map(drop))?;
        let slope = net.expr(&format!("{first}@GRAD")).sum(&[]);
        let found = gradients_at(&net, &slope, at)?;
        // d²(x^y) / dx dy = x^(y - 1) (1 + y ln x)
        let mixed = &found[usize::from(second == "y")];
        assert_near(mixed, &[0.5, 0.25, 1.0 + 2.0_f64.ln()], 1e-12);
    }
    Ok(())
}
