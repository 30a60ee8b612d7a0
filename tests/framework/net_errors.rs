//! Errors of nets: each names operator, slot and variable, and none panics.

use autobwd::{
    Attr, BlockId, DType, ErrorKind, Executor, GradCx, GradRule, Meta, OpInfoMap, Pointwise, Result, Scope,
    Tensor, Var,
    net::{NamedOp, NetOp, Operator, RnnOp, backward, build_grad_op},
    register_op,
};
use autobwd_ops::{
    activation::Scale,
    elementwise::{ElementwiseAdd, ElementwiseMul},
};

use crate::support::nets::{named, net, recurrent, refused, scope, tanh, times};

#[test]
fn all_faults_name_operator_slot_and_variable() -> Result<()> {
    let misspelt = NamedOp::new("tanhh").input("X", ["x"]).output("Out", ["a"]);
    let slot = NamedOp::new("tanh").input("Y", ["x"]).output("Out", ["b"]);
    let attr = NamedOp::new("scale").input("X", ["x"]).output("Out", ["c"]).attr("scale", Attr::Bool(true));
    let twice = NamedOp::new("unstack").input("X", ["x"]).output("Y", ["d", "d"]).attr("num", Attr::I32(2));
    let block = NamedOp::new("tanh").input("X", ["x"]).output("Out", ["e"]);
    let block = block.attr("sub_block", Attr::Block(BlockId::ROOT));
    let empty = NamedOp::new("tanh");
    let hole = NamedOp::new("tanh").input("X", ["@EMPTY@"]).output("Out", ["f"]);
    let idle = RnnOp::new("idle", NetOp::new("step", [tanh("x", "h")])?)?;
    let wrong =
        RnnOp::new("idle", NetOp::new("step", [NamedOp::new("ttanh").into()])?)?.step_input("xs", "x")?;
    let ops = [misspelt, slot, attr, twice, block, empty, hole].map(Operator::from);
    let tree = net("net", ops.clone().into_iter().chain([idle.clone().into(), wrong.into()]));
    let e = tree.verify().unwrap_err();
    assert_eq!((e.kind(), e.to_string().lines().count()), (ErrorKind::Program, 10));
    for (line, parts) in [
        [
            "operator `tanhh` (in a net, added at ",
            "net_errors.rs:",
            "X = `x`, Out = `a`",
            "did you mean `tanh`",
        ],
        ["operator `tanh`", "Y = `x`", "there is no input `Y`; it has X", ""],
        ["operator `scale`", "Out = `c`", "attribute `scale`", ""],
        ["operator `unstack`", "Y = `d` `d`", "`d` is written to twice", ""],
        ["operator `tanh`", "Out = `e`", "nets have no blocks: use a program", ""],
        ["operator `tanh`", "input `X` takes exactly one variable, got 0", "", ""],
        ["operator `tanh`", "Out = `f`", "input `X` takes exactly one variable, got 0", ""],
        ["recurrent operator `idle`: a step input is missing", "", "", ""],
        ["recurrent operator `idle`: another recurrent operator of the same scope has this name", "", "", ""],
        ["operator `ttanh`", "did you mean `atanh` or `stanh` or `tanh`?", "", ""],
    ]
    .iter()
    .enumerate()
    {
        let text = e.to_string();
        let found = text.lines().nth(line).unwrap();
        parts.iter().for_each(|part| assert!(found.contains(part), "{found}\nlacks\n{part}"));
    }
    // Other functions reject them, too, without panic.
    let mut executor = Executor::with_threads(1);
    for op in &ops {
        let mut scope = scope(&[("x", &[1.0, 2.0])]);
        assert!(build_grad_op(named(op)).is_err() && backward(op, &[]).is_err(), "{op}");
        assert!(op.lower(&[("x", Meta::new(DType::F64, [2]))]).is_err(), "{op}");
        assert!(op.run(&mut executor, &mut scope).is_err(), "{op}");
        assert!(op.to_string().contains(&*named(op).ty));
    }
    let idle = Operator::from(idle);
    refused(
        idle.lower(&[("x", Meta::new(DType::F64, [2]))]),
        ErrorKind::Program,
        &["a step input is missing"],
    );
    Ok(())
}

#[test]
fn gradients_that_cannot_be_are_refused() {
    let named_so = net("net", [tanh("x", "h"), times("h", "x@GRAD", "y")]);
    refused(
        backward(&named_so, &[]),
        ErrorKind::NoGradient,
        &["operator `tanh`", "the gradient of `x` would be `x@GRAD`, which is a variable of the net"],
    );
    refused(
        backward(&named_so, &["X"]),
        ErrorKind::UnknownVar,
        &["the net has no variable `X`; did you mean"],
    );
    for (ops, message) in [
        (vec![tanh("x", "y"), tanh("x", "y")], "writes"),
        (vec![tanh("x", "y"), tanh("z", "x")], "reads"),
        (vec![tanh("x", "x")], "which it reads"),
        (vec![tanh("x", "y"), net("inner", [tanh("z", "y")])], "writes"),
    ] {
        let tree = net("net", ops);
        refused(
            backward(&tree, &[]),
            ErrorKind::NoGradient,
            &["the operator overwrites `", message, "Out = `"],
        );
    }
    let step = NetOp::new("step", [tanh("x", "h"), tanh("h", "x")]).unwrap();
    refused(
        RnnOp::new("rnn", step.clone()).and_then(|rnn| rnn.memory("boot", "before", "H")),
        ErrorKind::Program,
        &[
            "recurrent operator `rnn`: `H` cannot be a memory: the step net does not write it; did you mean `h` or `x`?",
        ],
    );
    refused(
        RnnOp::new("rnn", step.clone()).and_then(|rnn| rnn.step_input("xs", "x")),
        ErrorKind::Program,
        &["recurrent operator `rnn`: `x` cannot be a step input: it is written by the step net"],
    );
    let rnn = RnnOp::new("rnn", step).and_then(|rnn| rnn.step_input("ys", "y")).unwrap();
    refused(
        rnn.clone().step_input("zs", "y"),
        ErrorKind::Program,
        &["`y` cannot be a step input: it is a step input or pre-memory already"],
    );
    refused(
        rnn.clone().step_output("h", "hs").and_then(|rnn| rnn.step_output("x", "hs")),
        ErrorKind::Program,
        &["`hs` is a step output already"],
    );
    refused(
        rnn.clone().step_output("hh", "hs"),
        ErrorKind::Program,
        &["`hh` cannot be a step output: the step net does not write it; did you mean `h` or `x`?"],
    );
    refused(backward(&rnn.into(), &[]), ErrorKind::NoGradient, &["operator `tanh`", "overwrites `x`"]);
    // A gradient over time has no gradient.
    let tree = Operator::from(recurrent("boot").unwrap());
    let first = backward(&tree, &[]).unwrap();
    let second = net("net", [tanh("gs", "hs@GRAD"), first]);
    refused(
        backward(&second, &["xs", "boot", "w"]),
        ErrorKind::NoGradient,
        &["the gradient of recurrent operator `rnn`: the operator has no gradient"],
    );
}

#[test]
fn sequences_that_do_not_fit_are_refused() -> Result<()> {
    let add = Operator::of(ElementwiseAdd { x: "x", y: "z", out: "y", axis: -1 });
    let rnn = RnnOp::new("rnn", NetOp::new("step", [add])?)?.step_input("xs", "x")?.step_input("zs", "z")?;
    let tree = Operator::from(rnn.step_output("y", "ys")?);
    let lower = |x: Meta, z: Meta| tree.lower(&[("xs", x), ("zs", z)]);
    let of = |dims: &[usize]| Meta::new(DType::F64, dims);
    assert!(lower(of(&[2, 3]), of(&[2, 3])).is_ok());
    for (x, z, message) in [
        (of(&[2, 3]), of(&[4, 3]), "`zs` has 4 steps, but `xs` has 2"),
        (of(&[0, 3]), of(&[4, 3]), "`zs` has 4 steps, but `xs` has 0"),
        (of(&[]), of(&[]), "`xs` of shape [] is not a sequence of steps"),
        (of(&[1 << 40, 1]), of(&[1 << 40, 1]), "`zs` has 1099511627776 steps; a net unrolls at most 100000"),
    ] {
        refused(lower(x, z), ErrorKind::Shape, &["recurrent operator `rnn`", message]);
    }
    refused(
        lower(of(&[2, 3]), of(&[2, 4])),
        ErrorKind::Shape,
        &["operator `elementwise_add`", "X = `rnn@0/x`"],
    );
    refused(tree.lower(&[("xs", of(&[2, 3]))]), ErrorKind::NoValue, &["`zs` is read, but neither given nor"]);
    refused(
        net("net", [tree.clone(), tree.clone()]).lower(&[("xs", of(&[2, 3])), ("zs", of(&[2, 3]))]),
        ErrorKind::Program,
        &["recurrent operator `rnn`: another recurrent operator of the same scope has this name"],
    );
    // Its gradient needs the saved step state.
    let gradient = backward(&tree, &[])?;
    let alone = gradient.lower(&[("xs", of(&[2, 3])), ("zs", of(&[2, 3])), ("ys@GRAD", of(&[2, 3]))]);
    refused(
        alone,
        ErrorKind::NoValue,
        &["operator `elementwise_add_grad`", "`rnn@1/x` is read, but neither"],
    );
    Ok(())
}

#[test]
fn depth_is_limited_and_length_is_not() -> Result<()> {
    let mut tree = tanh("x", "y");
    for _ in 0..64 {
        tree = net("net", [tree]);
    }
    backward(&tree, &[])?.verify()?;
    refused(NetOp::new("net", [tree]), ErrorKind::Program, &["nets are nested more than 64 deep"]);
    let name = |i: usize| format!("h{i}");
    let long = (0..20_000)
        .map(|i| Operator::of(ElementwiseMul { x: name(i), y: "w".into(), out: name(i + 1), axis: -1 }));
    let Operator::Net(gradient) = backward(&net("long", long), &[])? else { panic!() };
    let Some(Operator::Op(sum)) = gradient.ops().last() else { panic!() };
    assert_eq!((gradient.ops().len(), sum.reads().count(), &*sum.ty), (20_001, 20_000, "sum"));
    Ok(())
}

/// `out = x²`, with a wrong composition of its gradient.
#[register_op(grad = WrongGrad, pointwise)]
struct Wrong<V = Var> {
    /// Any shape.
    #[input]
    x: V,
    /// Same shape.
    #[output]
    out: V,
    /// The kind of wrong gradient.
    #[attr(default = 0)]
    how: i32,
}
impl<F: autobwd::Float> Pointwise for Wrong<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x;
    }
}
struct WrongGrad;
impl GradRule<Wrong> for WrongGrad {
    fn emit(fwd: &Wrong, g: &mut GradCx<'_>) {
        let (dout, Some(dx)) = (g.grad(fwd.out), g.wanted(fwd.x)) else { return };
        let scale = |x, out| Scale { x, out, scale: 2.0, bias: 0.0, bias_after_scale: true };
        match fwd.how {
            0 => g.push(scale(dout, fwd.x)),
            1 => {
                let between = g.fresh("between");
                g.push(scale(dout, dx));
                g.push(scale(dx, between));
            }
            2 => g.push(autobwd::OpDesc::new("scale").input("Y", [dout]).output("Out", [dx])),
            _ => g.push(autobwd::OpDesc::new("scaled").input("X", [dout]).output("Out", [dx])),
        }
    }
}

#[test]
fn rules_that_are_wrong_are_refused() {
    for (how, message) in [
        "emits `scale`: a gradient rule may not write `x`, a variable of the model",
        "reads `x@GRAD` after writing it",
        "emits `scale`: there is no input `Y`",
        "emits `scaled`: operator `scaled` is not among",
    ]
    .iter()
    .enumerate()
    {
        let op = Operator::of(Wrong { x: "x", out: "y", how: how as i32 });
        for outcome in [backward(&op, &[]), build_grad_op(named(&op))] {
            let e = outcome.unwrap_err();
            let text = e.to_string();
            assert!(text.contains("operator `wrong`") && text.contains(message), "{text}");
        }
    }
    let none = OpInfoMap::default();
    let mut scope = Scope::new();
    scope.set("x", Tensor::zeros(DType::F64, &[1]).unwrap());
    let e = tanh("x", "y").run(&mut Executor::new().with_ops(none), &mut scope).unwrap_err();
    assert!(e.to_string().contains("operator `tanh` is unknown: no operators are linked"), "{e}");
}
