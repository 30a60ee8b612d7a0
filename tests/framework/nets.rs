//! Nets: trees of operators, their text, gradients, runs and programs. The nets of the design documents are those of
//! the example.

use autobwd::{
    BlockId, DType, ErrorKind, Executor, Feed, Meta, Result, Scope, Tensor,
    backward::GradientOptions,
    gradients,
    net::{NetOp, Operator, RnnOp, backward, build_grad_op},
    verify,
};
use autobwd_ops::{
    activation::Square,
    compare::Equal,
    elementwise::{ElementwiseAdd, Minus},
    fill::FillConstant,
    matmul::Mul,
    reduce::Mean,
    shape::{Split, Unstack},
    update::SgdOp,
};

use crate::support::{
    compare,
    derivatives::assert_near,
    nets::{bits, named, net, recurrent, refused, scope, tanh, times, value, vector},
};

/// The example's own text is compared.
#[path = "../../ops/examples/nets.rs"]
#[allow(dead_code, unreachable_pub)]
mod example;

#[test]
fn nets_of_the_documents_print() -> Result<()> {
    compare("framework/stories/nets.txt", &example::text()?);
    Ok(())
}

#[test]
fn net_finds_what_it_reads_and_writes() -> Result<()> {
    let inner = net("inner", [times("a", "w", "h"), tanh("h", "b")]);
    let outer = NetOp::new("outer", [inner, times("h", "b", "y"), tanh("b", "z")])?;
    assert_eq!(outer.inputs(), ["a", "w"]);
    // Variables that a nested net keeps are readable outside.
    assert_eq!(outer.outputs(), ["y", "z"]);
    assert_eq!(outer.intermediates(), ["b", "h"]);
    let narrow = outer.clone().returning(["z"])?;
    assert_eq!((narrow.outputs(), narrow.intermediates()), (vec!["z"], vec!["b", "h", "y"]));
    let wider = NetOp::new("wider", [narrow.into(), tanh("q", "r")])?;
    assert_eq!((wider.outputs(), wider.inputs()), (vec!["z", "r"], vec!["a", "w", "q"]));
    // A variable that is read first and overwritten later is input and output; one that is written last has not been
    // read.
    let overwritten = NetOp::new("overwritten", [tanh("a", "b"), tanh("b", "a"), tanh("c", "b")])?;
    assert_eq!((overwritten.inputs(), overwritten.outputs()), (vec!["a", "c"], vec!["a", "b"]));
    let empty = NetOp::new("empty", [])?;
    assert_eq!((empty.inputs().len(), empty.to_string().as_str()), (0, "net empty() ->\n"));
    refused(
        outer.clone().returning(["h"]),
        ErrorKind::UnknownVar,
        &["net `outer` cannot return `h`: an operator of the net reads it"],
    );
    refused(outer.returning(["Z"]), ErrorKind::UnknownVar, &["no operator writes it; did you mean"]);
    Ok(())
}

#[test]
fn gradient_operator_is_built_in_four_steps() -> Result<()> {
    // The registry knows the slots that gradients need: both factors of `mul`, the output of `tanh`.
    let mul = Operator::of(Mul { x: "x", y: "w", out: "y", x_num_col_dims: 2, y_num_col_dims: 1 });
    let expected = "X@GRAD=x@GRAD, Y@GRAD=w@GRAD = \
                    mul_grad(Out@GRAD=y@GRAD, X=x, Y=w, x_num_col_dims=2, y_num_col_dims=1)\n";
    assert_eq!(build_grad_op(named(&mul))?.to_string(), expected);
    let expected = "x@GRAD = tanh_grad(Out=y, Out@GRAD=y@GRAD)\n";
    assert_eq!(build_grad_op(named(&tanh("x", "y")))?.to_string(), expected);
    // Gradient operators have the source line of their forward operators.
    let tanh = tanh("x", "y");
    assert_eq!(named(&build_grad_op(named(&tanh))?).site, named(&tanh).site);
    // A rule makes a net.
    let minus = build_grad_op(named(&Operator::of(Minus { x: "x", y: "y", out: "z" })))?;
    let Operator::Net(net) = &minus else { panic!("{minus}") };
    assert_eq!((net.inputs(), net.outputs()), (vec!["z@GRAD"], vec!["x@GRAD", "y@GRAD"]));
    assert_eq!(net.ops().iter().map(|op| &*named(op).ty).collect::<Vec<_>>(), ["scale", "scale"]);
    // A comparison has no gradient; the rule of this operator of the tests is an error.
    let equal = Operator::of(Equal { x: "x", y: "y", out: "z", axis: -1 });
    assert!(matches!(build_grad_op(named(&equal))?, Operator::Nop));
    let sgd = Operator::of(SgdOp { param: "w", learning_rate: "rate", grad: "g", param_out: "v" });
    refused(
        build_grad_op(named(&sgd)),
        ErrorKind::NoGradient,
        &[
            "operator `sgd`",
            "nets.rs:",
            "Param = `w`",
            "the operator has no gradient, but the gradient of `v` passes",
        ],
    );
    Ok(())
}

#[test]
fn operators_without_gradient_become_nop() -> Result<()> {
    let y = tanh("x", "y");
    for (op, no_grad) in [
        (&y, &["y"][..]),
        (&y, &["x"]),
        (&Operator::Nop, &[]),
        (&net("net", [y.clone(), times("y", "w", "z")]), &["z"]),
        (&net("net", [y.clone(), times("y", "w", "z")]), &["x", "w"]),
        (&net("net", [Operator::of(Equal { x: "x", y: "w", out: "z", axis: -1 })]), &[]),
    ] {
        let gradient = backward(op, no_grad)?;
        assert!(matches!(gradient, Operator::Nop), "{op}{no_grad:?}\n{gradient}");
        assert_eq!(gradient.to_string(), "nop\n");
        gradient.verify()?;
        gradient.run(&mut Executor::with_threads(1), &mut Scope::new())?;
    }
    Ok(())
}

#[test]
fn contributions_are_summed_in_the_net_that_contains_them_all() -> Result<()> {
    let inner = net("inner", [times("h", "w", "a"), times("a", "w", "b")]);
    let tree = net("outer", [times("w", "x", "h"), inner, times("b", "w", "c"), times("c", "h", "y")]);
    let gradient = backward(&tree, &["x"])?;
    let text = gradient.to_string();
    let expected = "\
net outer_grad(y@GRAD, c, h, b, w, a, x) -> w@GRAD
  X@GRAD=c@GRAD, Y@GRAD=h@GRAD@RENAME@0 = elementwise_mul_grad(Out@GRAD=y@GRAD, X=c, Y=h, axis=-1)
  X@GRAD=b@GRAD, Y@GRAD=w@GRAD@RENAME@0 = elementwise_mul_grad(Out@GRAD=c@GRAD, X=b, Y=w, axis=-1)
  net inner_grad(b@GRAD, a, w, h) -> w@GRAD@RENAME@1, h@GRAD@RENAME@1, w@GRAD@RENAME@2
    X@GRAD=a@GRAD, Y@GRAD=w@GRAD@RENAME@1 = elementwise_mul_grad(Out@GRAD=b@GRAD, X=a, Y=w, axis=-1)
    X@GRAD=h@GRAD@RENAME@1, Y@GRAD=w@GRAD@RENAME@2 = elementwise_mul_grad(Out@GRAD=a@GRAD, X=h, Y=w, axis=-1)
  h@GRAD = sum(X=[h@GRAD@RENAME@0, h@GRAD@RENAME@1])
  w@GRAD@RENAME@3 = elementwise_mul_grad(Out@GRAD=h@GRAD, X=w, Y=x, axis=-1)
  w@GRAD = sum(X=[w@GRAD@RENAME@0, w@GRAD@RENAME@1, w@GRAD@RENAME@2, w@GRAD@RENAME@3])
";
    assert_eq!(text, expected);
    gradient.verify()?;
    // y = w⁴ x², for which h = w x.
    let mut scope = scope(&[("w", &[1.5, -0.5]), ("x", &[2.0, 3.0]), ("y@GRAD", &[1.0, 10.0])]);
    let mut executor = Executor::with_threads(1);
    tree.run(&mut executor, &mut scope)?;
    gradient.run(&mut executor, &mut scope)?;
    let expected =
        [(1.5, 2.0, 1.0), (-0.5, 3.0, 10.0)].map(|(w, x, g): (f64, f64, f64)| g * 5.0 * w.powi(4) * x * x);
    assert_near(&value(&scope, "y"), &[1.5_f64.powi(5) * 4.0, (-0.5_f64).powi(5) * 9.0], 1e-12);
    assert_near(&value(&scope, "w@GRAD"), &expected, 1e-12);
    assert!(scope.get("x@GRAD").is_err());
    Ok(())
}

#[test]
fn sum_precedes_the_reader_in_a_nested_net() -> Result<()> {
    // Both nets read `h`, and the gradient of its writer is in the inner one.
    let inner = net("inner", [tanh("x", "h"), tanh("h", "a")]);
    let tree = net("outer", [inner, times("a", "h", "y")]);
    let gradient = backward(&tree, &[])?;
    let expected = "\
net outer_grad(y@GRAD, a, h) -> x@GRAD
  X@GRAD=a@GRAD, Y@GRAD=h@GRAD@RENAME@0 = elementwise_mul_grad(Out@GRAD=y@GRAD, X=a, Y=h, axis=-1)
  net inner_grad(a, a@GRAD, h@GRAD@RENAME@0, h) -> x@GRAD
    h@GRAD@RENAME@1 = tanh_grad(Out=a, Out@GRAD=a@GRAD)
    h@GRAD = sum(X=[h@GRAD@RENAME@0, h@GRAD@RENAME@1])
    x@GRAD = tanh_grad(Out=h, Out@GRAD=h@GRAD)
";
    assert_eq!(gradient.to_string(), expected);
    gradient.verify()
}

#[test]
fn uncomputed_gradients_are_filled_with_zeros() -> Result<()> {
    let split = |out: [&'static str; 3]| {
        Operator::of(Split {
            x: "x",
            out: out.to_vec(),
            axis: 0,
            num: 0,
            sections: vec![1, 2, 1],
            axis_tensor: None,
            sections_tensor_list: vec![],
        })
    };
    let tree = NetOp::new("net", [split(["a", "b", "c"]), tanh("b", "y")])?;
    // Either the others are not needed outside, or they are in the no-grad set.
    let narrow = Operator::from(tree.clone().returning(["y"])?);
    let gradients = [backward(&narrow, &[])?, backward(&tree.clone().into(), &["a", "c"])?];
    for gradient in &gradients {
        let text = gradient.to_string();
        for piece in ["a", "c"] {
            assert!(text.contains(&format!("{piece}@GRAD = fill_zeros_like(X={piece})")), "{text}");
        }
        let mut scope = scope(&[("x", &[0.1, 0.2, 0.3, 0.4]), ("y@GRAD", &[1.0, 2.0])]);
        let mut executor = Executor::with_threads(1);
        narrow.run(&mut executor, &mut scope)?;
        gradient.run(&mut executor, &mut scope)?;
        let slope = |x: f64| 1.0 - x.tanh() * x.tanh();
        assert_near(&value(&scope, "x@GRAD"), &[0.0, slope(0.2), 2.0 * slope(0.3), 0.0], 1e-12);
    }
    // Otherwise their gradients come from outside.
    let gradient = backward(&tree.into(), &[])?;
    assert!(gradient.inputs().contains(&"a@GRAD") && gradient.inputs().contains(&"c@GRAD"));
    // A gradient without contributions is absent.
    let equal = Operator::of(Equal { x: "b", y: "a", out: "same", axis: -1 });
    let tree = NetOp::new("net", [tanh("x", "a"), tanh("x", "b"), equal, tanh("a", "y")])?;
    let gradient = backward(&tree.returning(["y"])?.into(), &[])?;
    assert!(!gradient.to_string().contains("b@GRAD"), "{gradient}");
    Ok(())
}

#[test]
fn step_net_runs_over_time_and_its_gradient_in_reverse() -> Result<()> {
    let rnn = recurrent("boot")?;
    assert_eq!((rnn.inputs(), rnn.outputs()), (vec!["xs", "boot", "w"], vec!["hs"]));
    assert_eq!(rnn.shared(), ["w"]);
    let tree = Operator::from(rnn);
    let gradient = backward(&tree, &[])?;
    tree.verify()?;
    gradient.verify()?;
    let run = |x: [f64; 3], boot: f64, w: f64| {
        x.into_iter().scan(boot, move |h, x| {
            *h = (x * w + *h * w).tanh();
            Some(*h)
        })
    };
    let (x, boot, w, weights) = ([0.3, -0.7, 1.1], 0.4, 0.8, [1.0, -2.0, 0.5]);
    let loss = |x, boot, w| -> f64 {
        let hs: Vec<f64> = run(x, boot, w).collect();
        hs.iter().zip(weights).map(|(h, weight)| h * weight).sum()
    };
    let mut scope = scope(&[("boot", &[boot]), ("w", &[w])]);
    let column = |values: [f64; 3]| Tensor::from_vec([3, 1], values.to_vec());
    scope.set("xs", column(x)?);
    scope.set("hs@GRAD", column(weights)?);
    let mut executor = Executor::with_threads(1);
    tree.run(&mut executor, &mut scope)?;
    gradient.run(&mut executor, &mut scope)?;
    let hs: Vec<f64> = run(x, boot, w).collect();
    assert_near(&value(&scope, "hs"), &hs, 1e-12);
    assert_near(&value(&scope, "rnn@1/h"), &hs[1..2], 1e-12);
    let slope = |side: &dyn Fn(f64) -> f64| (side(1e-5) - side(-1e-5)) / 2e-5;
    assert_near(&value(&scope, "w@GRAD"), &[slope(&|d| loss(x, boot, w + d))], 1e-8);
    assert_near(&value(&scope, "boot@GRAD"), &[slope(&|d| loss(x, boot + d, w))], 1e-8);
    for (t, found) in value(&scope, "xs@GRAD").into_iter().enumerate() {
        let moved = |d| {
            let mut x = x;
            x[t] += d;
            loss(x, boot, w)
        };
        assert_near(&[found], &[slope(&moved)], 1e-8);
    }
    Ok(())
}

#[test]
fn gradients_that_miss_late_steps_are_not_computed_there() -> Result<()> {
    // The input `x` of a step reaches the output two steps later: the last steps have other gradients.
    let step = NetOp::new("step", [tanh("x", "a"), tanh("a@pre", "b"), times("b@pre", "w", "y")])?;
    let rnn = RnnOp::new("delay", step)?.step_input("xs", "x")?.memory("a0", "a@pre", "a")?;
    let tree = Operator::from(rnn.memory("b0", "b@pre", "b")?.step_output("y", "ys")?);
    let gradient = backward(&tree, &[])?;
    let Operator::RnnGrad(grad) = &gradient else { panic!("{gradient}") };
    assert_eq!(grad.steps().count(), 3);
    for steps in 1..5_usize {
        let xs: Vec<f64> = (0..steps).map(|t| 0.3 + 0.2 * t as f64).collect();
        let mut scope = scope(&[("a0", &[0.7]), ("b0", &[-0.4]), ("w", &[1.5])]);
        scope.set("xs", Tensor::from_vec([steps, 1], xs.clone())?);
        scope.set("ys@GRAD", Tensor::from_vec([steps, 1], vec![1.0; steps])?);
        let mut executor = Executor::with_threads(1);
        tree.run(&mut executor, &mut scope)?;
        gradient.run(&mut executor, &mut scope)?;
        let slope = |x: f64| 1.0 - x.tanh() * x.tanh();
        // y[0] = b0 w, y[1] = tanh(a0) w, y[t] = tanh(tanh(x[t - 2])) w.
        let a0 = if steps > 1 { 1.5 * slope(0.7) } else { 0.0 };
        let x = |t: usize| if t + 2 < steps { 1.5 * slope(xs[t].tanh()) * slope(xs[t]) } else { 0.0 };
        assert_near(&value(&scope, "b0@GRAD"), &[1.5], 1e-12);
        assert_near(&value(&scope, "a0@GRAD"), &[a0], 1e-12);
        assert_near(&value(&scope, "xs@GRAD"), &(0..steps).map(x).collect::<Vec<_>>(), 1e-12);
    }
    Ok(())
}

#[test]
fn steps_may_have_steps() -> Result<()> {
    let last = Operator::of(Unstack { x: "hs", y: vec!["first", "last"], axis: 0, num: 2 });
    let step = NetOp::new("sweep", [recurrent("boot")?.into(), last])?;
    let sweeps = RnnOp::new("sweeps", step)?.step_input("xss", "xs")?.memory("start", "boot", "last")?;
    let tree = Operator::from(sweeps.step_output("first", "firsts")?);
    let gradient = backward(&tree, &[])?;
    gradient.verify()?;
    let mut executor = Executor::with_threads(1);
    let mut scope = scope(&[("start", &[0.3]), ("w", &[0.9])]);
    scope.set("xss", Tensor::from_vec([3, 2, 1], vec![0.1, 0.4, -0.8, 0.6, 0.2, -0.5])?);
    scope.set("firsts@GRAD", Tensor::from_vec([3, 1], vec![1.0, -0.5, 2.0])?);
    tree.run(&mut executor, &mut scope)?;
    gradient.run(&mut executor, &mut scope)?;
    assert_eq!(value(&scope, "firsts")[1..2], value(&scope, "sweeps@1/rnn@0/h"));
    for name in ["start", "w", "xss"] {
        let at = scope.get(name)?.clone();
        let mut expected = vec![];
        for k in 0..at.to_f64s().len() {
            let mut side = |step: f64| -> Result<f64> {
                let mut moved = scope.clone();
                moved.slice_mut::<f64>(name)?[k] += step;
                tree.run(&mut executor, &mut moved)?;
                let [a, b, c] = value(&moved, "firsts")[..] else { panic!() };
                Ok(a - 0.5 * b + 2.0 * c)
            };
            expected.push((side(1e-5)? - side(-1e-5)?) / 2e-5);
        }
        assert_near(&value(&scope, &format!("{name}@GRAD")), &expected, 1e-8);
    }
    Ok(())
}

#[test]
fn net_and_its_program_have_the_same_gradients() -> Result<()> {
    // The operator contributes twice to the gradient of `w`: another order of the sum changes bits.
    let square = Operator::of(Square { x: "w", out: "square" });
    let add = Operator::of(ElementwiseAdd { x: "hs", y: "square", out: "loss", axis: -1 });
    let tree = net("net", [times("v", "v", "w"), recurrent("w")?.into(), square, add]);
    let whole = net("both", [tree.clone(), backward(&tree, &[])?]);
    whole.verify()?;
    let meta = |dims: &[usize]| Meta::new(DType::F64, dims);
    let metas = [("v", meta(&[40])), ("xs", meta(&[4, 40])), ("loss@GRAD", meta(&[4, 40]))];
    let by_net = whole.lower(&metas)?;
    let mut by_program = tree.lower(&metas)?;
    verify(&by_net)?;
    verify(&by_program)?;
    let asked = ["v", "xs"];
    let given = by_program.var("loss@GRAD");
    let desc = by_net.lookup(BlockId::ROOT, by_net.expect_var("loss@GRAD")?).unwrap().clone();
    by_program.root_mut().vars.insert(given, desc);
    let found = gradients(
        &mut by_program,
        &["loss"],
        &asked,
        &GradientOptions { target_gradients: Some(&[Some("loss@GRAD")]), ..Default::default() },
    )?
    .entries();
    let found: Vec<&str> = found.iter().map(|var| by_program.name(var.unwrap())).collect();
    let numbers = |n: usize| (0..n).map(|i| (i as f64 * 0.7).sin()).collect();
    let tensors = [("v", vec![40]), ("xs", vec![4, 40]), ("loss@GRAD", vec![4, 40])];
    let tensors = tensors
        .map(|(name, dims)| (name, Tensor::from_vec(&dims[..], numbers(dims.iter().product())).unwrap()));
    let feeds: Vec<(&str, &dyn Feed)> = tensors.iter().map(|(name, tensor)| (*name, tensor as _)).collect();
    let mut executor = Executor::with_threads(1);
    let program = executor.run(&by_program, &mut Scope::new(), &feeds, &found)?;
    let net = executor.run(&by_net, &mut Scope::new(), &feeds, &["v@GRAD", "xs@GRAD"])?;
    for (a, b) in program.iter().zip(&net) {
        assert_eq!(bits(a), bits(b));
    }
    Ok(())
}

#[test]
fn nets_train() -> Result<()> {
    let mul = Operator::of(Mul { x: "x", y: "w", out: "product", x_num_col_dims: 1, y_num_col_dims: 1 });
    let minus = Operator::of(Minus { x: "product", y: "target", out: "off" });
    let square = Operator::of(Square { x: "off", out: "square" });
    let model = net("model", [mul, minus, square, Operator::of(Mean { x: "square", out: "loss" })]);
    let one = FillConstant { dtype: DType::F64, value: 1.0, ..FillConstant::of("loss@GRAD") };
    let update = Operator::of(SgdOp { param: "w", learning_rate: "rate", grad: "w@GRAD", param_out: "w" });
    let step = net("step", [model.clone(), Operator::of(one), backward(&model, &["x", "target"])?, update]);
    assert_eq!(step.inputs(), ["x", "w", "target", "rate"]);
    step.verify()?;
    let mut scope = scope(&[("rate", &[0.3])]);
    scope.set("x", Tensor::from_vec([4, 2], vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0, -1.0, 2.0])?);
    scope.set("w", Tensor::from_vec([2, 1], vec![0.0, 0.0])?);
    scope.set("target", Tensor::from_vec([4, 1], vec![2.0, -1.0, 1.0, -4.0])?);
    let mut executor = Executor::with_threads(1);
    for _ in 0..100 {
        step.run(&mut executor, &mut scope)?;
    }
    assert_near(&value(&scope, "w"), &[2.0, -1.0], 1e-6);
    Ok(())
}

#[test]
fn values_may_have_other_shapes_in_the_next_run() -> Result<()> {
    let tree = net("net", [tanh("x", "h"), tanh("h", "y")]);
    let (mut scope, mut executor) = (Scope::new(), Executor::with_threads(1));
    for n in [2, 5, 0] {
        scope.set("x", vector(&vec![0.5; n]));
        tree.run(&mut executor, &mut scope)?;
        assert_eq!(value(&scope, "y"), vec![0.5_f64.tanh().tanh(); n]);
    }
    Ok(())
}
