//! Formulas as data: values, dependencies, and their effect on plans.

use autobwd::{
    Attr, Backward, Builder, DType, Derived, Dims, Executor, Expr, Feed, Float, New, OpDesc, OpInfoMap,
    Pointwise, Program, Result, Scope, Tensor, Var, VarDesc, append_backward,
    backward::GradientOptions,
    emit, gradients,
    op::{AttrType, DerivedFromInputs, Formula, FormulaNode, OpInfo},
    program::Origin,
    register_op,
};
use autobwd_ops::{
    Math,
    activation::{Relu, Silu},
    optim::{Optimizer, Sgd},
};

use crate::support::derivatives::parameter;

/// `out = x + y²`: neither gradient depends on `x`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub(crate) struct PlusSquare<V = Var> {
    #[input]
    x: V,
    #[input]
    y: V,
    #[output]
    out: V,
}
impl<F: Float> Pointwise for PlusSquare<F> {
    fn eval(&mut self) {
        self.out = self.x * 0.5 + self.y * self.y;
    }
}

/// `out = x² + y²`.
#[register_op(grad = Derived, pointwise)]
pub(crate) struct SumOfSquares<V = Var> {
    #[input]
    x: V,
    #[input]
    y: V,
    #[output]
    out: V,
}
impl<F: Float> Pointwise for SumOfSquares<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x + self.y * self.y;
    }
}

/// The operator with a variable of three elements in every slot.
fn example(info: &OpInfo, program: &mut Program) -> OpDesc {
    let (schema, mut desc) = (info.schema(), OpDesc::new(info.schema().name));
    let var = |program: &mut Program, name: String| {
        let var = program.var(&name);
        program.root_mut().vars.insert(var, VarDesc::new(DType::F64, Dims::from([3])));
        var
    };
    for slot in schema.inputs {
        desc.inputs.set(slot.name, [var(program, format!("in_{}", slot.name))]);
    }
    for slot in schema.outputs {
        desc.outputs.set(slot.name, [var(program, format!("out_{}", slot.name))]);
    }
    for attr in schema.attrs {
        let required = match attr.ty {
            AttrType::F32 => Some(Attr::F32(2.0)),
            AttrType::F64 => Some(Attr::F64(2.0)),
            _ => None,
        };
        if let Some(value) = attr.default.map(|default| default()).or(required) {
            desc = desc.attr(attr.name, value);
        }
    }
    desc
}

/// Formulas of operators without a kernel, each with a program of the operator alone.
fn formulas() -> Result<Vec<(Program, OpDesc, Formula)>> {
    let mut found = vec![];
    for info in OpInfoMap::linked()?.iter().filter(|info| info.schema().pointwise && !info.has_kernel()) {
        let mut program = Program::new();
        let desc = example(info, &mut program);
        program.root_mut().ops.push(desc.clone());
        let is_of_tests = info.crate_name() == env!("CARGO_PKG_NAME") && info.schema().name != "plus_square";
        if let (false, Ok(Some(formula))) = (is_of_tests, info.formula(&desc)) {
            found.push((program, desc, formula));
        }
    }
    assert!(found.len() > 80, "{}", found.len());
    Ok(found)
}

/// Runs the operator on three elements in every input.
fn run(program: &Program, desc: &OpDesc, inputs: &[[f64; 3]]) -> Result<Vec<Vec<f64>>> {
    let schema = OpInfoMap::linked()?.get(&desc.ty)?.schema();
    let names: Vec<String> = schema.inputs.iter().map(|slot| format!("in_{}", slot.name)).collect();
    let tensors: Vec<Tensor> =
        inputs.iter().map(|x| Tensor::from_vec([3], x.to_vec())).collect::<Result<_>>()?;
    let feeds: Vec<(&str, &dyn Feed)> =
        names.iter().zip(&tensors).map(|(name, tensor)| (name.as_str(), tensor as _)).collect();
    let fetches: Vec<String> = schema.outputs.iter().map(|slot| format!("out_{}", slot.name)).collect();
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let found = Executor::with_threads(1).run(program, &mut Scope::new(), &feeds, &fetches)?;
    Ok(found.iter().map(Tensor::to_f64s).collect())
}

fn bits(x: f64) -> u64 {
    if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() }
}

/// Numbers of all kinds, determined by the seed.
fn numbers(seed: usize) -> [f64; 3] {
    const SPECIAL: [f64; 12] =
        [0.0, -0.0, 1.0, -1.0, 0.5, f64::INFINITY, -f64::INFINITY, f64::NAN, 1e300, -1e-310, 40.0, -750.0];
    [0, 1, 2].map(|i| match (seed * 7 + i * 5) % 19 {
        special if special < SPECIAL.len() => SPECIAL[special],
        other => ((seed * 37 + i * 11 + other) % 101) as f64 / 12.0 - 4.0,
    })
}

#[test]
fn formula_computes_what_the_operator_does_to_the_bit() -> Result<()> {
    for (program, desc, formula) in formulas()? {
        for seed in 0..12 {
            let inputs: Vec<[f64; 3]> =
                (0..desc.inputs.iter().count()).map(|k| numbers(seed * 5 + k * 3)).collect();
            let found = run(&program, &desc, &inputs)?;
            for i in 0..3 {
                let x: Vec<f64> = inputs.iter().map(|x| x[i]).collect();
                let expected: Vec<u64> = formula.evaluate(&x)?.into_iter().map(bits).collect();
                let found: Vec<u64> = found.iter().map(|out| bits(out[i])).collect();
                assert_eq!(found, expected, "{} of {x:?}\n{formula}", desc.ty);
            }
        }
        let missing = formula.evaluate(&[]);
        assert!(desc.inputs.iter().count() == 0 || missing.is_err());
    }
    Ok(())
}

#[test]
fn unread_formula_inputs_change_no_bit() -> Result<()> {
    let (mut unread, mut idle) = (0, vec![]);
    for (_, desc, formula) in formulas()? {
        let slots: Vec<&str> =
            OpInfoMap::linked()?.get(&desc.ty)?.schema().inputs.iter().map(|s| s.name).collect();
        let outputs: Vec<&str> = formula.outputs().map(|(slot, _)| slot).collect();
        for (o, output) in outputs.iter().enumerate() {
            let reads = formula.reads_of(output);
            for (k, slot) in slots.iter().enumerate() {
                let mut changes = false;
                for seed in 0..200 {
                    // Finite numbers, so that a NaN does not hide the changed one.
                    let ordinary = |k: usize| ((seed * 37 + k * 29) % 101) as f64 / 12.0 - 4.0;
                    let mut x: Vec<f64> = (0..slots.len()).map(ordinary).collect();
                    let before = bits(formula.evaluate(&x)?[o]);
                    x[k] = numbers(seed * 11 + 1)[1];
                    changes |= bits(formula.evaluate(&x)?[o]) != before;
                }
                assert!(!changes || reads.contains(slot), "{} `{output}` of `{slot}`\n{formula}", desc.ty);
                if !reads.contains(slot) {
                    unread += 1;
                } else if !changes
                    && !desc.ty.ends_with("_grad_grad")
                    && !matches!(&*desc.ty, "clip_grad" | "pow_grad")
                {
                    idle.push(format!("{} `{output}` of `{slot}`", desc.ty));
                }
            }
        }
    }
    assert!(unread > 50, "{unread}");
    // At higher order, some products have a computed factor of 0; the bounds of `clip` leave no room here, and the
    // first power has one derivative.
    assert!(idle.is_empty(), "{idle:#?}");
    Ok(())
}

#[test]
fn equations_are_as_people_write_them() -> Result<()> {
    let ops = OpInfoMap::linked()?;
    for (op, expected) in [
        ("relu", "out = max(0, x)"),
        ("silu", "out = x * sigmoid(x)"),
        ("silu_grad", "dx = dout * (sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x)))"),
        ("swish", "out = x * sigmoid(x)"),
        ("tanh_grad", "dx = dout * (1 - out * out)"),
        ("elementwise_div_grad", "dx = dout / y\ndy = -(dout / y) * out"),
        ("elementwise_max_grad", "dx = select(x > y, dout, 0)\ndy = select(x > y, 0, dout)"),
        ("plus_square_grad", "dx = 0.5 * dout\ndy = dout * (y + y)"),
        // A variable named like an input has a prime.
        ("expm1_grad_grad", "dout' = ddx * dout\nddout = ddx * (out + 1)"),
    ] {
        let info = ops.get(op)?;
        let formula = info.formula(&example(info, &mut Program::new()))?.unwrap();
        assert_eq!(formula.to_string(), expected, "{op}");
    }
    let swish = ops.get("swish")?;
    let desc = example(swish, &mut Program::new()).attr("beta", Attr::F32(0.1));
    let formula = swish.formula(&desc)?.unwrap();
    assert_eq!(formula.to_string(), "out = x * sigmoid(0.1 * x)");
    // As computed, and simplified for reading; operands come first.
    assert!(formula.nodes().contains(&FormulaNode::Constant(f64::from(0.1_f32))));
    for (number, node) in formula.nodes().iter().enumerate() {
        assert!(node.operands().all(|operand| operand < number));
    }
    assert!(ops.get("matmul_v2")?.formula(&OpDesc::new("matmul_v2")).is_err());
    let matmul = ops.get("matmul_v2")?;
    assert!(matmul.formula(&example(matmul, &mut Program::new()))?.is_none());
    let text = ops.get("silu_grad")?.to_string();
    assert!(text.contains("\n  formula: dx = dout * ("), "{text}");
    assert!(
        ops.get("scale")?
            .to_string()
            .contains("\n  formula for bias = 0.0, bias_after_scale = true, scale = 1.0: out = x\n")
    );
    Ok(())
}

/// Gradients of products with parameters, each added to the square of the value before.
fn chain(join: impl Fn(&Expr, &Expr) -> Expr) -> Result<(Builder, Expr)> {
    let net = Builder::new();
    let c = net.input("c", DType::F64, &[64, 64]);
    let mut h = parameter(&net, "start", &[64, 64]);
    for i in 0..6 {
        h = join(&c.matmul(&parameter(&net, &format!("w{i}"), &[64, 64])), &h);
    }
    let loss = h.mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    Ok((net, loss))
}

#[test]
fn inputs_that_a_derivative_does_not_read_are_not_kept_for_it() -> Result<()> {
    let live = |join: fn(&Expr, &Expr) -> Expr| -> Result<(usize, usize)> {
        let (net, loss) = chain(join)?;
        let mut scope = Scope::new();
        let mut executor = Executor::with_threads(1);
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let c = Tensor::from_vec([64, 64], vec![0.1; 64 * 64])?;
        let plan = executor.plan(&net.program()?, &scope, &[("c", c.meta())], &[&loss.name()])?;
        let operators: Vec<&String> = plan.instructions().iter().flat_map(|frame| &frame.operators).collect();
        Ok((plan.live_bytes(), operators.len()))
    };
    let (less, _) = live(|x, y| emit(PlusSquare { x: x.into(), y: y.into(), out: New }).out)?;
    let (more, _) = live(|x, y| emit(SumOfSquares { x: x.into(), y: y.into(), out: New }).out)?;
    // The values of five of the six products are freed immediately.
    assert!(less + 4 * 64 * 64 * 8 <= more, "{less} {more}");
    Ok(())
}

#[test]
fn values_read_only_by_unused_derivatives_are_not_computed() -> Result<()> {
    let net = Builder::new();
    let (w, v) = (parameter(&net, "w", &[8]), parameter(&net, "v", &[8]));
    let x = w.exp().softmax(0);
    net.input("dout", DType::F64, &[8]);
    let out = emit(PlusSquare { x: (&x).into(), y: (&v).into(), out: New }).out;
    let mut program = net.program()?.clone();
    gradients(
        &mut program,
        &[&out.name()],
        &["v"],
        &GradientOptions { target_gradients: Some(&[Some("dout")]), ..Default::default() },
    )?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let dout = Tensor::from_vec([8], vec![3.0; 8])?;
    let plan = executor.plan(&program, &scope, &[("dout", dout.meta())], &["v@GRAD"])?;
    let operators: Vec<&String> = plan.instructions().iter().flat_map(|frame| &frame.operators).collect();
    assert!(!operators.iter().any(|op| *op == "softmax" || *op == "exp"), "{operators:?}");
    let v: Vec<f64> = scope.get("v")?.to_f64s();
    let found = executor.run(&program, &mut scope, &[("dout", &dout)], &["v@GRAD"])?.remove(0).to_f64s();
    assert!(found.iter().zip(v).all(|(dv, v)| (dv - v * 6.0).abs() < 1e-6), "{found:?}");
    Ok(())
}

#[test]
fn inputs_unread_by_the_derivative_may_be_overwritten() -> Result<()> {
    let kept = |formula: &str| -> Result<usize> {
        let net = Builder::new();
        let (w, v) = (parameter(&net, "w", &[8]), parameter(&net, "v", &[8]));
        let x = w.sin();
        let (to, y) = (|| (&x).into(), || (&v).into());
        let out = match formula {
            "plus_square" => emit(PlusSquare { x: to(), y: y(), out: New }).out,
            _ => emit(SumOfSquares { x: to(), y: y(), out: New }).out,
        };
        let over = emit(Relu { x: (&v).into(), out: (&x).into() }).out;
        let loss = (out + over).mean();
        let mut program = net.program()?.clone();
        append_backward(&mut program, &loss.name(), &Backward::default())?;
        Ok(program.root().ops.iter().filter(|op| op.origin == Origin::Kept).count())
    };
    assert_eq!((kept("plus_square")?, kept("sum_of_squares")?), (0, 1));
    Ok(())
}

#[test]
fn fourth_derivative_of_a_formula_is_refused_by_name() -> Result<()> {
    let net = Builder::new();
    let (w, v) = (parameter(&net, "w", &[3]), parameter(&net, "v", &[3]));
    let y = emit(SumOfSquares { x: (&w).into(), y: (&v).into(), out: New }).out;
    let y = emit(Silu { x: (&y).into(), out: New }).out;
    let (mut program, mut target) = (net.program()?.clone(), y.name());
    for _ in 0..3 {
        let found = gradients(&mut program, &[&target], &["w"], &Default::default())?.entries();
        target = found[0].map(|grad| program.name(grad).to_string()).unwrap_or_default();
    }
    let e = gradients(&mut program, &[&target], &["w"], &Default::default()).unwrap_err();
    let expected = "the operator has no gradient, which would be of 4th order";
    assert!(e.message().contains(expected), "{e}");
    assert!(e.message().contains("at most three times: declare the gradient of `"), "{e}");
    Ok(())
}
