//! Names that are written several times: each gradient uses the value that its operator has read.

use autobwd::{
    Arg, Backward, BlockId, Builder, DType, Dims, ErrorKind, Expr, New, OpInfoMap, Program, Result, Var,
    VarDesc, append_backward, emit, gradients,
    program::{Origin, VarKind},
};
use autobwd_ops::{
    Math,
    activation::{Elu, LeakyRelu, Relu, Scale, Square, Tanh},
    concat,
    control::{ConditionalBlock, while_loop},
    elementwise::{ElementwiseAdd, Minus},
    fill::FillAnyLike,
    optim::{Optimizer, Sgd},
    shape::{Assign, Concat, Split},
};

use crate::support::{
    derivatives::{Point, assert_derivative, assert_near, parameter, run},
    operators::Opaque,
};

const AT: &Point<'_> = &[("w", &[0.7, -0.4, 1.2])];

/// The program with its backward pass; compares the gradient of `w` with central differences.
#[track_caller]
fn differentiated(net: &Builder, loss: &Expr) -> Program {
    let mut program = net.program().unwrap().clone();
    let found = append_backward(&mut program, &loss.name(), &Backward::default()).unwrap();
    autobwd::verify(&program).unwrap();
    let grad = program.name(found.pairs[0].1).to_string();
    assert_derivative(&program, AT, &loss.name(), "w", &grad);
    assert_origins(&program);
    program
}

/// Gradient operators refer to their forward operators, wherever copies have moved these.
#[track_caller]
fn assert_origins(program: &Program) {
    for op in &program.root().ops {
        if let (Origin::Gradient { of }, Some(ty)) = (op.origin, op.ty.strip_suffix("_grad")) {
            assert_eq!(program.root().ops[of].ty, *ty, "{program}");
        }
    }
}

/// The operators that write a copy, each with the operator after it.
fn copies(program: &Program) -> Vec<(String, String)> {
    let ops = &program.root().ops;
    let copies = ops.windows(2).filter(|pair| pair[0].origin == Origin::Kept);
    let name = |v: Var| program.name(v).to_string();
    copies.map(|pair| (pair[0].writes().map(name).collect(), pair[1].ty.to_string())).collect()
}

fn copy(name: &str, before: &str) -> (String, String) {
    (name.into(), before.into())
}

/// `out = x + x`, into a variable that exists.
fn double_into(x: &Expr, out: &Expr) -> Expr {
    emit(ElementwiseAdd { x: x.into(), y: x.into(), out: Arg::from(out), axis: -1 }).out
}

#[test]
fn gradients_of_a_name_written_twice_stay_separate() {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = &w * 3.0;
    let first = (&h + &h).sum(&[]);
    double_into(&w, &h);
    // The overwritten value is not needed: sums need the shape only.
    let program = differentiated(&net, &(&first + h.square().sum(&[])));
    assert_eq!(copies(&program), []);
}

#[test]
fn overwritten_value_is_kept_once() {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    // Three operators need it, one of them before a sum.
    let first = (&h * &h + h.exp()).sum(&[]);
    double_into(&w, &h);
    let program = differentiated(&net, &(&first + h.square().sum(&[])));
    assert_eq!(copies(&program), [copy("tanh_0@KEPT@0", "elementwise_add")]);
}

#[test]
fn operators_in_place_are_differentiated() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = &w * 2.0;
    let before = h.sum(&[]);
    // Twice the same operand, in place.
    double_into(&h, &h);
    emit(Relu { x: (&h).into(), out: (&h).into() }).out.check()?;
    let program = differentiated(&net, &(&before + h.square().sum(&[])));
    assert_eq!(copies(&program), []);
    // The gradient of `square` needs the overwritten value, that of the other one the result, too.
    let between = h.exp();
    emit(Square { x: (&h).into(), out: (&h).into() }).out.check()?;
    emit(Square { x: (&h).into(), out: (&h).into() }).out.check()?;
    let program = differentiated(&net, &(h.sum(&[]) + between.sum(&[])));
    assert_eq!(copies(&program), [copy("scale_0@KEPT@1", "square"), copy("scale_0@KEPT@0", "square")]);
    Ok(())
}

#[test]
fn unread_later_value_does_not_affect_gradients() {
    // `h` is read, then overwritten by a variable that is not read.
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    let first = h.square().sum(&[]);
    let (x, out) = (concat(&[&w, &w], 0), vec![Arg::from(&h), New]);
    let pieces = emit(Split {
        x: (&x).into(),
        out,
        axis: 0,
        num: 2,
        sections: vec![],
        axis_tensor: None,
        sections_tensor_list: vec![],
    })
    .out;
    differentiated(&net, &(&first + pieces[1].exp().sum(&[])));
}

#[test]
fn origin_of_an_overwritten_value_does_not_matter() {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    // This operator has no gradient, but the value that it writes is gone when the name is read.
    let h = emit(Opaque { x: (&w).into(), out: New }).out;
    double_into(&w, &h);
    differentiated(&net, &h.square().sum(&[]));
}

#[test]
fn value_without_gradient_takes_nothing_over() -> Result<()> {
    // The constant in `h` has another gradient than the earlier `h`.
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    let first = h.square().sum(&[]);
    emit(FillAnyLike { x: (&w).into(), out: Arg::from(&h), value: 2.0, dtype: None }).out.check()?;
    let program = differentiated(&net, &(&first + (&h * &w).sum(&[])));
    assert_eq!(copies(&program), [copy("tanh_0@KEPT@0", "fill_any_like")]);
    Ok(())
}

/// Makes the length of a vector unknown.
fn of_any_length(vector: &Expr) {
    let open = autobwd::Dims::from_wire(&[-1]).expect("-1 is allowed");
    let mut program = vector.builder().program().unwrap().clone();
    program.root_mut().vars.insert(vector.var(), VarDesc::new(DType::F64, open));
    vector.builder().set_program(program);
}

#[test]
fn value_of_another_shape_is_kept_for_its_shape() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = &w * 3.0;
    of_any_length(&h);
    let mean = h.mean();
    let longer = Concat { x: vec![(&w).into(), (&w).into()], out: Arg::from(&h), axis: 0, axis_tensor: None };
    emit(longer).out.check()?;
    let program = differentiated(&net, &(&mean + h.square().sum(&[])));
    assert_eq!(copies(&program), [copy("scale_0@KEPT@0", "concat")]);

    // The first piece has no gradient: zeros in its shape, not in the later shape.
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let pieces = w.split(&[1, 2], 0);
    of_any_length(&pieces[0]);
    let second = pieces[1].square().sum(&[]);
    emit(Concat {
        x: vec![(&w).into(), (&w).into()],
        out: Arg::from(&pieces[0]),
        axis: 0,
        axis_tensor: None,
    })
    .out
    .check()?;
    differentiated(&net, &(&second + pieces[0].exp().sum(&[])));
    Ok(())
}

#[test]
fn gradient_is_asked_for_of_the_last_value_or_of_the_first() -> Result<()> {
    // `h` is computed, so its last value is meant. `w` exists before, so its first value is meant.
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    emit(Relu { x: (&h).into(), out: (&h).into() }).out.check()?;
    emit(Square { x: (&w).into(), out: (&w).into() }).out.check()?;
    let loss = (&h * &w + h.exp()).sum(&[]);
    let program = &mut net.program()?.clone();
    let grads = gradients(program, &[&loss.name()], &["w", &h.name()], &Default::default())?.entries();
    let names = grads.iter().map(|g| program.name(g.unwrap()).to_string()).collect::<Vec<_>>();
    assert_derivative(program, AT, &loss.name(), "w", &names[0]);
    let values = run(program, AT, &[&names[1], &h.name(), "w"])?;
    let expected: Vec<f64> = values[1].iter().zip(&values[2]).map(|(h, w)| w + h.exp()).collect();
    assert_near(&values[0], &expected, 1e-12);
    Ok(())
}

#[test]
fn second_loss_is_differentiated_where_it_was_computed() -> Result<()> {
    // Both losses come before the first update, and the second one needs the old weights.
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let one = w.square().sum(&[]);
    let two = (w.tanh() * &w).sum(&[]);
    Sgd { rate: 0.25 }.minimize(&one)?.complete()?;
    let first_part = net.program()?.clone();
    let pairs = Sgd { rate: 0.5 }.name("second").minimize(&two)?.complete()?;
    let program = net.program()?.clone();
    autobwd::verify(&program)?;
    assert_origins(&program);
    assert_eq!(copies(&program), [copy("w@KEPT@0", "sgd")]);
    let mut at = AT.to_vec();
    at.extend([("learning_rate_0", &[0.25][..]), ("second.learning_rate_0", &[0.5][..])]);
    assert_derivative(&program, &at, &two.name(), "w", &pairs[0].1.name());
    let (steps, start) = (run(&program, &at, &["w", "w@GRAD", &pairs[0].1.name()])?, AT[0].1);
    let expected = (0..3).map(|i| start[i] - 0.25 * steps[1][i] - 0.5 * steps[2][i]).collect::<Vec<_>>();
    assert_near(&steps[0], &expected, 1e-12);

    // Values computed from updated weights have no derivative with respect to them.
    let three = w.exp().sum(&[]).name();
    let e = append_backward(&mut net.program()?.clone(), &three, &Backward::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoGradient);
    assert!(e.to_string().contains("operator `sgd`"), "{e}");
    assert!(e.message().contains("the gradient of `w` passes through it"), "{e}");
    // The first part is the same without the second.
    let own = first_part.root().ops.iter().map(|op| op.ty);
    let kept: Vec<_> = program.root().ops.iter().filter(|op| op.origin != Origin::Kept).collect();
    assert!(own.eq(kept[..first_part.root().ops.len()].iter().map(|op| op.ty)));
    Ok(())
}

#[test]
fn copy_serves_later_calls_too() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    let (one, two) = (h.square().sum(&[]), h.exp().sum(&[]));
    double_into(&w, &h);
    let program = &mut net.program()?.clone();
    for loss in [one, two] {
        let found = append_backward(program, &loss.name(), &Backward::default())?;
        let grad = program.name(found.pairs[0].1).to_string();
        assert_derivative(program, AT, &loss.name(), "w", &grad);
        assert_eq!(copies(program), [copy("tanh_0@KEPT@0", "elementwise_add")]);
        assert_origins(program);
    }
    Ok(())
}

#[test]
fn kept_values_have_second_derivatives() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    emit(Square { x: (&h).into(), out: (&h).into() }).out.check()?;
    let loss = (&h * &w).sum(&[]).name();
    let program = &mut net.program()?.clone();
    let first = gradients(program, &[&loss], &["w"], &Default::default())?.entries()[0].unwrap();
    let first = program.name(first).to_string();
    let second = gradients(program, &[&first], &["w"], &Default::default())?.entries()[0].unwrap();
    let second = program.name(second).to_string();
    autobwd::verify(program)?;
    assert_derivative(program, AT, &loss, "w", &first);
    assert_derivative(program, AT, &first, "w", &second);
    Ok(())
}

#[test]
fn values_overwritten_by_a_block_are_saved() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    let holds = w.mean().less_than(&w.square().sum(&[]));
    let (sub_block, ()) = net.sub_block(|| double_into(&h, &h).check().map(drop))?;
    let scopes = VarDesc { kind: VarKind::StepScopes, ..VarDesc::new(DType::F32, Dims::from([])) };
    emit(ConditionalBlock {
        cond: (&holds).into(),
        input: vec![(&h).into()],
        out: vec![(&h).into()],
        scope: net.variable(BlockId::ROOT, "scopes", scopes).into(),
        is_scalar_condition: true,
        sub_block,
    })
    .scope
    .check()?;
    // The gradient of the branch finds its values in the step scope, that of `tanh` does not.
    let program = differentiated(&net, &h.square().sum(&[]));
    assert_eq!(copies(&program), [copy("tanh_0@KEPT@0", "conditional_block")]);
    Ok(())
}

#[test]
fn values_read_by_name_in_a_block_cannot_be_saved() -> Result<()> {
    let net = Builder::new();
    let h = parameter(&net, "w", &[3]).tanh();
    let end = h.sum(&[]).abs() * 40.0;
    let vars = [h.square()];
    let last = while_loop(&vars, |v| v[0].sum(&[]).less_than(&end), |v| vec![&v[0] + h.square()]);
    let sum = last[0].sum(&[]);
    assert_eq!(copies(&differentiated(&net, &sum)), []);
    emit(Square { x: (&h).into(), out: (&h).into() }).out.check()?;
    let loss = (&sum + h.sum(&[])).name();
    let e = append_backward(&mut net.program()?.clone(), &loss, &Backward::default()).unwrap_err();
    assert!(
        e.op().is_some_and(|op| op.to_string().starts_with("operator `while` (block 0, operator")),
        "{e}"
    );
    assert!(e.message().starts_with("the gradient needs version 1 of `tanh_0`, which is overwritten"), "{e}");
    assert!(e.message().contains("and cannot be copied: a sub-block reads it by its name"), "{e}");
    Ok(())
}

#[test]
fn non_tensor_declarations_are_refused() -> Result<()> {
    let net = Builder::new();
    let h = parameter(&net, "w", &[3]).tanh();
    emit(Square { x: (&h).into(), out: (&h).into() }).out.check()?;
    let loss = h.sum(&[]).name();
    net.edit(|p| {
        p.root_mut().vars.get_mut(&h.var()).expect("it is declared").kind = VarKind::TensorArray;
        Ok(())
    })?;
    let e = append_backward(&mut net.program()?.clone(), &loss, &Backward::default()).unwrap_err();
    assert!(
        e.message().contains("`Out` is float64 [3], but `tanh_0` is declared array of float64 [3]"),
        "{e}"
    );
    Ok(())
}

#[test]
fn unsavable_value_is_refused_with_all_its_writers() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    let first = h.sum(&[]);
    double_into(&w, &h);
    let loss = (&first + h.square().sum(&[])).name();
    let own = OpInfoMap::linked()?.iter().filter(|info| crate::support::is_of_library(info));
    let without = OpInfoMap::from_infos(own.filter(|info| info.schema().name != "assign"))?;
    let mut program = net.program()?.clone();
    let before = program.to_string();
    let e = append_backward(&mut program, &loss, &Backward { ops: Some(&without), ..Default::default() })
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoGradient);
    assert!(
        e.op().is_some_and(|op| op.to_string().starts_with("operator `tanh` (block 0, operator 0")),
        "{e}"
    );
    for part in [
        "the gradient needs version 1 of `tanh_0`, which is overwritten before the backward pass runs (version 1: \
         operator 0 `tanh`, added at ",
        "; version 2: operator 2 `elementwise_add`, added at ",
        ") and cannot be copied: no operator `assign` is linked; write to another variable",
    ] {
        assert!(e.message().contains(part), "{e}");
    }
    assert_eq!(program.to_string(), before);
    // The names that the failed call generated are free again.
    let mut fresh = net.program()?.clone();
    for program in [&mut program, &mut fresh] {
        append_backward(program, &loss, &Backward::default())?;
    }
    assert_eq!(program.to_string(), fresh.to_string());
    Ok(())
}

/// As the reference writes them: each gradient operator of a chain in place overwrites the gradient that it reads.
#[test]
fn gradients_of_a_chain_in_place_have_one_name() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = &w * 3.0;
    let into = || Arg::from(&h);
    emit(Tanh { x: (&h).into(), out: into() }).out.check()?;
    emit(LeakyRelu { x: (&h).into(), out: into(), alpha: 0.5 }).out.check()?;
    emit(Elu { x: (&h).into(), out: into(), alpha: 1.5 }).out.check()?;
    emit(Relu { x: (&h).into(), out: into() }).out.check()?;
    let program = differentiated(&net, &h.square().sum(&[]));
    let name = format!("{}@GRAD", h.name());
    for ty in ["relu_grad", "elu_grad", "leaky_relu_grad", "tanh_grad"] {
        let op = program.root().ops.iter().find(|op| *op.ty == *ty).unwrap();
        let written: Vec<&str> = op.writes().map(|var| program.name(var)).collect();
        assert_eq!(written, [&name], "{program}");
    }
    assert!(!program.to_string().contains("@OLDER"), "{program}");
    Ok(())
}

/// As above for operators whose rules emit one operator, as the reference does for `scale` and `assign`.
#[test]
fn gradients_by_rules_of_a_chain_in_place_have_one_name() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = &w * 3.0;
    let into = || Arg::from(&h);
    let scale = |scale| Scale { x: (&h).into(), out: into(), scale, bias: 1.0, bias_after_scale: true };
    let first = h.sum(&[]);
    emit(scale(2.0)).out.check()?;
    emit(Assign { x: (&h).into(), out: into() }).out.check()?;
    emit(Relu { x: (&h).into(), out: into() }).out.check()?;
    emit(scale(0.5)).out.check()?;
    let loss = first + h.square().sum(&[]);
    let program = differentiated(&net, &loss);
    assert!(!program.to_string().contains("@OLDER"), "{program}");
    let name = format!("{}@GRAD@RENAME@0", h.name());
    let gradients = program
        .root()
        .ops
        .iter()
        .filter(|op| op.reads().chain(op.writes()).filter(|var| program.name(*var) == name).count() == 2);
    let types: Vec<&str> = gradients.map(|op| &*op.ty).collect();
    assert_eq!(types, ["scale", "relu_grad", "assign", "scale"], "{program}");
    Ok(())
}

/// A rule that reads the gradient of the output again after it has written the gradient of the input.
#[test]
fn gradients_that_a_rule_reads_again_are_not_overwritten() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let (h, y) = (&w * 3.0, &w * 5.0);
    emit(Minus { x: (&h).into(), y: (&y).into(), out: Arg::from(&h) }).out.check()?;
    let program = differentiated(&net, &h.square().sum(&[]));
    assert!(program.to_string().contains("@OLDER"), "{program}");
    Ok(())
}
