//! Information of the registry on an operator: its gradient operators, and its reference.

use autobwd::{
    BlockId, Builder, DType, Dims, Error, ErrorKind, Expr, Meta, OpDesc, OpInfoMap, Program, Result, Var,
    VarDesc, backward::gradient_block, gradients,
};
use autobwd_ops::{
    Math,
    activation::Silu,
    compare::Equal,
    control::{cond, scan, while_loop},
    elementwise::{ElementwiseAdd, Minus},
    matmul::Mul,
    reduce::Mean,
    sum::Sum,
    update::SgdOp,
};

/// The gradient operators of one operator as text, and the variable of each gradient.
fn made(op: impl FnOnce(&mut Program) -> OpDesc, no_grad: &[&str]) -> Result<(Vec<String>, Vec<String>)> {
    let mut program = Program::new();
    let op = op(&mut program);
    let no_grad: Vec<_> = no_grad.iter().map(|name| program.var(name)).collect();
    let found = OpInfoMap::linked()?.gradient_ops(&mut program, &op, &no_grad)?;
    // The program is unchanged.
    assert!(program.root().ops.is_empty() && program.root().vars.is_empty());
    let ops = found.ops.iter().map(|op| program.op_text(op).to_string()).collect();
    let of = |(grad, of): &(_, _)| format!("{} of {}", program.name(*grad), program.name(*of));
    Ok((ops, found.gradient_of.iter().map(of).collect()))
}

fn mul(program: &mut Program) -> OpDesc {
    let [x, y, out] = ["x", "w", "h"].map(|name| program.var(name));
    Mul { x, y, out, x_num_col_dims: 1, y_num_col_dims: 1 }.into()
}

#[test]
fn operator_gives_its_gradient_operators() -> Result<()> {
    let (ops, of) = made(mul, &[])?;
    let text = "X@GRAD=x@GRAD, Y@GRAD=w@GRAD = \
                mul_grad(Out@GRAD=h@GRAD, X=x, Y=w, x_num_col_dims=1, y_num_col_dims=1)";
    assert_eq!(
        (ops, of),
        (vec![text.into()], ["h@GRAD of h", "x@GRAD of x", "w@GRAD of w"].map(Into::into).into())
    );
    // Variables in the no-grad set have no gradient; without any gradient, there are no operators.
    let (ops, of) = made(mul, &["x"])?;
    assert!(ops[0].starts_with("w@GRAD = mul_grad("), "{ops:?}");
    assert_eq!(of, ["h@GRAD of h", "w@GRAD of w"]);
    assert_eq!(made(mul, &["x", "w"])?.0.len(), 0);
    Ok(())
}

#[test]
fn rules_derived_gradients_and_zeros_match_programs() -> Result<()> {
    // By a rule: one operator for each input, all reading the same gradient.
    let sum = |program: &mut Program| -> OpDesc {
        let x = ["a", "b", "c"].map(|name| program.var(name)).to_vec();
        Sum { x, out: program.var("s") }.into()
    };
    let (ops, of) = made(sum, &["b"])?;
    assert_eq!(ops.len(), 2, "{ops:?}");
    assert!(ops[0].starts_with("a@GRAD = ") && ops[1].starts_with("c@GRAD = "), "{ops:?}");
    assert_eq!(of, ["s@GRAD of s", "a@GRAD of a", "c@GRAD of c"]);
    let minus = |program: &mut Program| -> OpDesc {
        let [x, y, out] = ["x", "y", "d"].map(|name| program.var(name));
        Minus { x, y, out }.into()
    };
    let scale = "scale(X=d@GRAD, bias=0.0, bias_after_scale=true, scale=";
    assert_eq!(made(minus, &[])?.0, [format!("x@GRAD = {scale}1.0)"), format!("y@GRAD = {scale}-1.0)")]);
    // From a formula.
    let silu = |program: &mut Program| -> OpDesc {
        let [x, out] = ["x", "y"].map(|name| program.var(name));
        Silu { x, out }.into()
    };
    let (ops, of) = made(silu, &[])?;
    assert_eq!(ops, ["x@GRAD = silu_grad(Out=y, Out@GRAD=y@GRAD, X=x)"]);
    assert_eq!(of, ["y@GRAD of y", "x@GRAD of x"]);
    // Zero: no operators, and no error.
    let equal = |program: &mut Program| -> OpDesc {
        let [x, y, out] = ["x", "y", "z"].map(|name| program.var(name));
        Equal { x, y, out, axis: -1 }.into()
    };
    assert_eq!(made(equal, &[])?, (vec![], vec![]));
    // An operator that reads a variable twice writes its gradient twice: programs do the accumulation.
    let twice = |program: &mut Program| -> OpDesc {
        let [x, out] = ["x", "y"].map(|name| program.var(name));
        ElementwiseAdd { x, y: x, out, axis: -1 }.into()
    };
    assert!(made(twice, &[])?.0[0].starts_with("X@GRAD=x@GRAD, Y@GRAD=x@GRAD = elementwise_add_grad("));
    Ok(())
}

#[test]
fn backward_pass_consists_of_gradient_operators() -> Result<()> {
    let mut program = Program::new();
    let var = |program: &mut Program, name: &str| {
        let var = program.var(name);
        let desc = VarDesc::new(DType::F32, Meta::new(DType::F32, [2, 2]).dims);
        program.root_mut().vars.insert(var, desc);
        var
    };
    for name in ["x", "w", "h", "loss"] {
        var(&mut program, name);
    }
    let first = mul(&mut program);
    let [x, out] = ["h", "loss"].map(|name| program.var(name));
    let second = OpDesc::from(Mean { x, out });
    let loss = program.root_mut().vars.get_mut(&out).unwrap();
    loss.dims = Dims::default();
    program.root_mut().ops.extend([first.clone(), second.clone()]);
    let mut alone = vec![];
    for op in [&second, &first] {
        let found = OpInfoMap::linked()?.gradient_ops(&mut program, op, &[])?;
        alone.extend(found.ops.iter().map(|op| program.op_text(op).to_string()));
    }
    gradients(&mut program, &["loss"], &["x", "w"], &Default::default())?;
    let built: Vec<_> = program.root().ops[3..].iter().map(|op| program.op_text(op).to_string()).collect();
    assert_eq!(built, alone);
    Ok(())
}

#[test]
fn operators_with_blocks_or_no_gradient_are_refused() -> Result<()> {
    let refused = |op: &dyn Fn(&mut Program) -> OpDesc| -> Error { made(op, &[]).unwrap_err() };
    let e = refused(&|program| {
        let [param, learning_rate, grad, param_out] = ["w", "rate", "g", "v"].map(|name| program.var(name));
        SgdOp { param, learning_rate, grad, param_out }.into()
    });
    assert_eq!((e.kind(), e.message()), (ErrorKind::NoGradient, "the operator has no gradient"));
    assert!(e.to_string().starts_with("operator `sgd` (by itself; Grad = `g`, LearningRate = `rate`"), "{e}");
    let e = refused(&|_| OpDesc::new("fourier"));
    assert_eq!(e.kind(), ErrorKind::UnknownOp);
    let e = refused(&|program| OpDesc::new("mul").input("X", [program.var("x")]));
    assert_eq!(e.kind(), ErrorKind::Slot);

    // A loop.
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[]);
    let last = while_loop(&[x], |v| v[0].less_than(&(&v[0] + 1.0)), |v| vec![v[0].tanh()]);
    assert_eq!(last.len(), 1);
    let op = net.program()?.root().ops.iter().find(|op| &*op.ty == "while").unwrap().clone();
    let e = OpInfoMap::linked()?.gradient_ops(&mut net.program()?.clone(), &op, &[]).unwrap_err();
    assert!(e.message().starts_with("the gradient needs the gradient of the block: build it with"), "{e}");
    Ok(())
}

#[test]
fn gradient_operators_of_a_block_match_the_program() -> Result<()> {
    type Build = fn(&Expr, &Expr) -> Expr;
    let cases: [(&str, Build); 3] = [
        ("while", |x, w| {
            let vars = [x.sum(&[]), x.sum(&[])];
            let last = while_loop(
                &vars,
                |v| v[0].less_than(&(&v[0] * 0.0 + 3.0)),
                |v| vec![&v[0] + 1.0, (&v[1] * w).tanh()],
            );
            &last[0] + &last[1]
        }),
        ("conditional_block", |x, w| {
            let never = x.sum(&[]).less_than(&(x.sum(&[]) * 0.0));
            cond(&never, || vec![x.tanh() * w], || vec![x * w])[0].clone()
        }),
        ("recurrent", |x, w| {
            let zero = x.sum(&[]) * 0.0;
            scan(std::slice::from_ref(x), &[zero], false, |x, h| {
                let h = (&x[0] * w + &h[0]).tanh();
                (vec![h.clone()], vec![h])
            })[0]
                .clone()
        }),
    ];
    for (ty, build) in cases {
        let net = Builder::new();
        let [x, w] = [("x", &[3][..]), ("w", &[])]
            .map(|(name, dims)| net.parameter(name, DType::F64, dims, Expr::clone));
        let loss = build(&x, &w).sum(&[]).name();
        let program = net.program()?.clone();
        let mut whole = program.clone();
        gradients(&mut whole, &[&loss], &["x", "w"], &Default::default())?;
        for op in program.root().ops.iter().filter(|op| op.ty == ty) {
            let mut alone = program.clone();
            let Some(block) = gradient_block(&mut alone, BlockId::ROOT, op, &[], None)? else {
                panic!("no gradient passes through `{ty}`");
            };
            let found = OpInfoMap::linked()?.gradient_ops_with_block(&mut alone, op, &[], &block)?;
            let own = &found.ops[found.ops.len() - 1];
            let forward = |program: &Program, op: &OpDesc| program.block(op.attrs.blocks().next()?)?.forward;
            let same = |other: &&OpDesc| other.ty == own.ty && forward(&whole, other) == forward(&alone, own);
            let expected = whole.root().ops.iter().find(same).expect(ty);
            let inner = |program: &Program, op: &OpDesc| -> Vec<String> {
                let block = program.block(op.attrs.blocks().next().unwrap()).unwrap();
                block.ops.iter().map(|op| program.op_text(op).to_string()).collect()
            };
            assert_eq!(inner(&alone, own), inner(&whole, expected), "{ty}");
            let block = alone.block(block.block).unwrap();
            assert!(block.ops.iter().flat_map(OpDesc::writes).all(|var| block.vars.contains_key(&var)));
        }
    }
    let mut program = Program::new();
    let mul = mul(&mut program);
    let e = gradient_block(&mut program, BlockId::ROOT, &mul, &[], None).unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::NoGradient, "the operator runs no block"));
    Ok(())
}

#[test]
fn gradient_blocks_are_of_one_program() -> Result<()> {
    let built = |before: usize| -> Result<(Program, OpDesc)> {
        let net = Builder::new();
        let x = net.parameter("x", DType::F64, &[], Expr::clone);
        (0..before).for_each(|_| drop(x.sin()));
        while_loop(&[x], |v| v[0].less_than(&v[0].square()), |v| vec![v[0].tanh()]);
        let program = net.program()?.clone();
        let op = program.root().ops.iter().find(|op| op.ty == "while").cloned().expect("a loop");
        Ok((program, op))
    };
    let ((mut program, op), (mut larger, foreign)) = (built(0)?, built(100)?);
    let last = larger.fresh("last");
    let own = program.clone();
    let mut refused = |parent: BlockId, op: &OpDesc, no_grad: &[Var]| {
        let e = gradient_block(&mut program, parent, op, no_grad, None).unwrap_err();
        assert_eq!(program, own);
        e.message().to_string()
    };
    assert_eq!(refused(BlockId::ROOT, &op, &[last]), "a variable of another program");
    assert_eq!(refused(BlockId::ROOT, &foreign, &[]), "a variable of another program");
    let inner = op.attrs.blocks().next().unwrap();
    assert_eq!(refused(inner, &op, &[]), "block 1 is not nested in block 1");
    let outer = larger.add_block(Some(BlockId::ROOT), None);
    let e = gradient_block(&mut built(0)?.0, larger.add_block(Some(outer), None), &op, &[], None);
    assert_eq!(e.unwrap_err().message(), "there is no block 3");
    Ok(())
}

#[test]
fn operator_prints_its_reference() -> Result<()> {
    let ops = OpInfoMap::linked()?;
    let text = ops.get("elementwise_add")?.to_string();
    let place = text
        .find("  registered by autobwd-core 0.1.0 (autobwd/core/src/operators/elementwise.rs:")
        .expect(&text);
    let expected = "  input `X`: one variable\n";
    assert!(text[..place].contains(expected), "{text}");
    assert!(
        text.contains("  attribute `axis`: i32, default -1, min = -1\n    The dimension at which"),
        "{text}"
    );
    assert!(text.contains("  gradient: operator `elementwise_add_grad`\n"), "{text}");
    for (op, line) in [
        ("silu", "  gradient: operator `silu_grad`, derived from the formula"),
        ("sum", "  input `X`: any number of variables, may be sparse, may be an array"),
        ("sum", "  gradient: operators that a rule emits"),
        ("sgd", "  gradient: none, and needing one is an error"),
        ("equal", "  gradient: zero"),
        ("tanh", "  output `Out`: one variable, may share the memory of `X`"),
        ("tanh", "  runs: a formula"),
        ("while", "  runs: its block"),
    ] {
        let text = ops.get(op)?.to_string();
        assert!(text.lines().any(|known| known == line), "{text}lacks {line}");
    }
    // All operators: every slot, attribute and bound, with its documentation.
    for info in ops.iter() {
        let (text, schema) = (info.to_string(), info.schema());
        let lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(lines("  input `"), schema.inputs.len(), "{text}");
        assert_eq!(lines("  output `"), schema.outputs.len(), "{text}");
        assert_eq!(lines("  attribute `"), schema.attrs.len(), "{text}");
        assert!(
            schema.attrs.iter().all(|attr| text.contains(&attr.bounds_text()) && text.contains(attr.doc)),
            "{text}"
        );
    }
    Ok(())
}
