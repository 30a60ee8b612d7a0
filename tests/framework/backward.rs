//! Backward parts: structure, and errors.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, GradCx, GradRule, Infer, Kernel, Meta, Pointwise,
    Program, Result, Scope, Tensor, Var, append_backward, backward::GradientOptions, emit, gradients,
    register_op,
};
use autobwd_ops::Math;

use crate::support::{derivatives::parameter, operators::Opaque};

/// The backward pass, one operator per line, without attributes and source lines.
fn backward_part(net: &Builder, loss: &Expr, backward: &Backward<'_>) -> Result<Vec<String>> {
    let mut program = net.program()?.clone();
    let forward = program.root().ops.len();
    append_backward(&mut program, &loss.name(), backward)?;
    autobwd::verify(&program)?;
    let lines: Vec<String> = program.to_string().lines().map(String::from).collect();
    let ops = lines.len() - program.root().ops.len();
    Ok(lines[ops + forward..].iter().map(|l| short(l)).collect())
}

/// Drops `name=value` pairs that are attributes (slots are capitalised) and the source line.
fn short(line: &str) -> String {
    let line = line.split("  # ").next().unwrap_or(line).trim();
    let (head, args) = line.split_once('(').unwrap_or((line, ")"));
    let args = args.trim_end_matches(')').split(", ");
    // Lists of variables contain `, `: a piece without `=` continues the one before.
    let mut kept: Vec<String> = vec![];
    let mut keeps = false;
    for piece in args {
        if piece.contains('=') {
            keeps = piece.starts_with(char::is_uppercase);
        }
        if keeps {
            kept.push(piece.into());
        }
    }
    format!("{head}({})", kept.join(", "))
}

#[test]
fn contributions_are_renamed_and_summed_before_the_first_reader() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    let loss = (&h * &h + h.exp()).mean();
    let part = backward_part(&net, &loss, &Backward::default())?;
    assert_eq!(
        part,
        [
            "mean_0@GRAD = fill_constant()",
            "elementwise_add_0@GRAD = mean_grad(Out@GRAD=mean_0@GRAD, X=elementwise_add_0)",
            "X@GRAD=elementwise_mul_0@GRAD, Y@GRAD=exp_0@GRAD = \
             elementwise_add_grad(Out@GRAD=elementwise_add_0@GRAD, X=elementwise_mul_0, Y=exp_0)",
            "tanh_0@GRAD@RENAME@0 = exp_grad(Out=exp_0, Out@GRAD=exp_0@GRAD)",
            "X@GRAD=tanh_0@GRAD@RENAME@1, Y@GRAD=tanh_0@GRAD@RENAME@2 = \
             elementwise_mul_grad(Out@GRAD=elementwise_mul_0@GRAD, X=tanh_0, Y=tanh_0)",
            "tanh_0@GRAD = sum(X=[tanh_0@GRAD@RENAME@0, tanh_0@GRAD@RENAME@1, tanh_0@GRAD@RENAME@2])",
            "w@GRAD = tanh_grad(Out=tanh_0, Out@GRAD=tanh_0@GRAD)",
        ]
    );
    Ok(())
}

#[test]
fn unread_outputs_are_filled_with_zeros() -> Result<()> {
    let net = Builder::new();
    let pieces = parameter(&net, "w", &[4]).split(&[1, 3], 0);
    let part = backward_part(&net, &pieces[1].mean(), &Backward::default())?;
    assert_eq!(
        part[2..],
        ["split_0@GRAD = fill_zeros_like(X=split_0)", "w@GRAD = concat(X=[split_0@GRAD, split_1@GRAD])"]
    );
    Ok(())
}

#[test]
fn nothing_is_computed_for_what_has_no_gradient() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2, 3]);
    let (w, v) = (parameter(&net, "w", &[3]), parameter(&net, "v", &[3]));
    let loss = ((&x * &w).detach() + &x * &v).mean();
    let part = backward_part(&net, &loss, &Backward::default())?;
    assert_eq!(part.len(), 4);
    let sum = "elementwise_mul_1@GRAD = elementwise_add_grad(Out@GRAD=elementwise_add_0@GRAD, X=assign_0, \
               Y=elementwise_mul_1)";
    assert_eq!(part[2], sum);
    // As in the reference, the gradients of direct readers of `v` are still computed, but no further ones.
    let none = backward_part(&net, &loss, &Backward { no_grad: &["v"], ..Default::default() })?;
    assert_eq!(none.last().map(String::as_str), Some(sum));
    Ok(())
}

fn refused(program: &mut Program, loss: &str, backward: &Backward<'_>, kind: ErrorKind, message: &str) {
    let before = program.clone();
    match append_backward(program, loss, backward) {
        Ok(found) => panic!("accepted: {found:?}"),
        Err(e) => {
            assert_eq!(e.kind(), kind, "{e}");
            assert!(e.to_string().contains(message), "{e}\nlacks\n{message}");
        }
    }
    assert_eq!(*program, before, "a failed call has changed the program");
}

#[test]
fn refusals_leave_the_program_as_it_was() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[2, 3]);
    let h = w.tanh();
    let (loss, label) = (h.mean(), net.input("label", DType::F64, &[]));
    let p = &mut net.program()?.clone();
    let none = Backward::default();
    refused(p, &h.name(), &none, ErrorKind::Shape, "`tanh_0` of shape [2, 3] is not a loss");
    refused(p, "los", &none, ErrorKind::UnknownVar, "no variable `los`");
    refused(p, &label.name(), &none, ErrorKind::NoGradient, "no operator computes the loss `label`");
    let no_grad = Backward { no_grad: &["v"], ..none };
    refused(p, &loss.name(), &no_grad, ErrorKind::UnknownVar, "no variable `v`; did you mean `w`?");
    let asked = Backward { parameters: Some(&["wv"]), ..none };
    refused(p, &loss.name(), &asked, ErrorKind::UnknownVar, "no variable `wv`; did you mean `w`?");
    let cut = Backward { parameters: Some(&["w"]), no_grad: &["tanh_0"], ..none };
    refused(
        p,
        &loss.name(),
        &cut,
        ErrorKind::NoGradient,
        "`w` has no gradient: its path to `mean_0` ends at `tanh_0`, which is in the no-grad set; operator 0 `tanh`",
    );
    Ok(())
}

#[test]
fn missing_gradient_is_explained() -> Result<()> {
    let net = Builder::new();
    let names = ["used", "unused", "frozen", "cut", "picked", "rounded"];
    let all: Vec<Expr> = names.iter().map(|n| parameter(&net, n, &[3])).collect();
    all[1].exp();
    let picked = all[4].argmax(0).cast(DType::F64);
    let rounded = all[5].cast(DType::I64).cast(DType::F64);
    let frozen = all[2].clone().freeze();
    let sum = &all[0] + &frozen + all[3].square().detach();
    let loss = (&sum + &rounded).mean() + &picked;
    let program = &mut net.program()?.clone();
    let found = append_backward(program, &loss.name(), &Backward::default())?;
    assert_eq!(found.pairs.len(), 1);
    let reasons: Vec<_> = found.missing.iter().map(ToString::to_string).collect();
    for (reason, expected) in reasons.iter().zip([
        "`unused` has no gradient: no path leads from it to `elementwise_add_3`",
        "`frozen` has no gradient: it is marked `stop_gradient`",
        "`cut` has no gradient: its path to `elementwise_add_3` ends at `assign_0`, which is marked `stop_gradient`; \
         operator 7 `assign` (",
        "`picked` has no gradient: its path to `elementwise_add_3` ends at `arg_max_0`, which holds int64, not floating \
         point numbers; operator 1 `arg_max` (",
        "`rounded` has no gradient: its path to `elementwise_add_3` ends at `cast_1`, which holds int64",
    ]) {
        assert!(reason.contains(expected), "{reason}\nlacks\n{expected}");
    }
    assert_eq!(reasons.len(), 5);
    Ok(())
}

#[test]
fn needed_gradient_of_nondifferentiable_operator_is_an_error() -> Result<()> {
    let net = Builder::new();
    let (w, x) = (parameter(&net, "w", &[3]), net.input("x", DType::F64, &[3]));
    let opaque = |x: &Expr| Ok(emit(Opaque { x: x.into(), out: autobwd::New }).out);
    // Not needed: no trained parameter is behind it.
    let fine = (&w + opaque(&x)?).mean();
    append_backward(&mut net.program()?.clone(), &fine.name(), &Backward::default())?;
    let bad = opaque(&w)?.mean();
    let message = "the operator has no gradient, but the gradient of `opaque_1` passes through it";
    refused(&mut net.program()?.clone(), &bad.name(), &Backward::default(), ErrorKind::NoGradient, message);
    Ok(())
}

/// A rule that emits an unregistered operator.
pub(crate) struct WildRule;
impl GradRule<Wild> for WildRule {
    fn emit(fwd: &Wild, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(autobwd::OpDesc::new("wild_grad").input("X", [fwd.x]).output("X@GRAD", [dx]));
        }
    }
}
/// Copies `x`.
#[register_op(grad = WildRule)]
pub(crate) struct Wild<V = Var> {
    /// Any shape.
    #[input]
    x: V,
    /// Same shape.
    #[output]
    out: V,
}
impl Infer for Wild<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Wild<autobwd::Buf<'_>> {
    fn run(&mut self, _: &autobwd::Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}

/// A rule that restores the value that an in-place operator has overwritten.
pub(crate) struct UndoRule;
impl GradRule<Undone> for UndoRule {
    fn emit(fwd: &Undone, g: &mut GradCx<'_>) {
        g.push(Undone { x: fwd.out, out: fwd.x });
    }
}
/// `out = -x`
#[register_op(grad = UndoRule, pointwise)]
pub(crate) struct Undone<V = Var> {
    /// Any shape.
    #[input]
    x: V,
    /// Same shape.
    #[output(inplace = x)]
    out: V,
}
impl<F: autobwd::Float> Pointwise for Undone<F> {
    fn eval(&mut self) {
        self.out = -self.x;
    }
}

#[test]
fn backward_part_writes_no_variable_of_the_model() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]) * 2.0;
    emit(Undone { x: (&w).into(), out: (&w).into() }).out.check()?;
    let message = "the gradient rule of `undone` emits `undone`: a gradient rule may not write `scale_0`, a \
                   variable of the model";
    let loss = w.mean().name();
    refused(&mut net.program()?.clone(), &loss, &Backward::default(), ErrorKind::NoGradient, message);
    Ok(())
}

#[test]
fn rule_that_emits_nonsense_is_named() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let loss = emit(Wild { x: (&w).into(), out: autobwd::New }).out.mean();
    let message = "the gradient rule of `wild` emits `wild_grad`: operator `wild_grad` is not among";
    refused(&mut net.program()?.clone(), &loss.name(), &Backward::default(), ErrorKind::UnknownOp, message);
    Ok(())
}

#[test]
fn targets_on_each_others_path_keep_their_seeds() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[2]);
    let h = w.square();
    let out = h.square();
    let mut program = net.program()?.clone();
    let (h_name, out_name) = (h.name(), out.name());
    let found = gradients(&mut program, &[&h_name, &out_name], &["w", &h_name], &Default::default())?;
    let names: Vec<_> = found.pairs.iter().map(|(_, g)| program.name(*g).to_string()).collect();
    let mut scope = Scope::new();
    scope.set("w", Tensor::from_vec([2], vec![3.0_f64, -1.0])?);
    let fetches: Vec<_> = names.iter().map(String::as_str).collect();
    let fetched = Executor::new().run(&program, &mut scope, &[], &fetches)?;
    // h = w², out = h²: d(h + out)/dh = 1 + 2h, d/dw = (1 + 2h) · 2w.
    assert_eq!(fetched[1].to_f64s(), [19.0, 3.0]);
    assert_eq!(fetched[0].to_f64s(), [114.0, -6.0]);
    Ok(())
}

#[test]
fn gradients_answer_for_every_input() -> Result<()> {
    let net = Builder::new();
    let (a, b) = (parameter(&net, "a", &[2]), parameter(&net, "b", &[2]));
    b.exp();
    let out = a.exp();
    let program = &mut net.program()?.clone();
    let name = out.name();
    let found = gradients(program, &[&name], &["a", "b"], &Default::default())?;
    assert!(found.of(a.var()).is_some() && found.of(b.var()).is_none());
    assert_eq!(found.missing[0].to_string(), "`b` has no gradient: no path leads from it to `exp_1`");
    // Every name is checked.
    for (targets, inputs, given, no_grad, unknown) in [
        (["exp_2"], ["a"], None, &[][..], "exp_2"),
        ([&*name], ["q"], None, &[], "q"),
        ([&*name], ["a"], Some("d"), &[], "d"),
        ([&*name], ["a"], None, &["b", "e"], "e"),
    ] {
        let e = {
            let options = GradientOptions { target_gradients: Some(&[given]), no_grad, ..Default::default() };
            gradients(program, &targets, &inputs, &options)
        }
        .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::UnknownVar);
        let text = format!("the program has no variable `{unknown}`; did you mean `");
        assert!(e.to_string().starts_with(&text), "{e}");
    }
    let e = gradients(
        program,
        &[&name],
        &["a"],
        &GradientOptions { target_gradients: Some(&[]), ..Default::default() },
    )
    .unwrap_err();
    assert_eq!(e.to_string(), "0 target gradients are given for 1 targets");
    let wrong = parameter(&net, "wrong", &[3]);
    let program = &mut net.program()?.clone();
    let e = gradients(
        program,
        &[&name],
        &["a"],
        &GradientOptions { target_gradients: Some(&[Some(&wrong.name())]), ..Default::default() },
    )
    .unwrap_err();
    let expected =
        format!("the target gradient `wrong` is float64 [3], but its target `{name}` is float64 [2]");
    assert!(e.to_string().starts_with(&expected), "{e}");
    Ok(())
}

#[test]
fn program_can_be_differentiated_again() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let (one, two) = ((w.square()).sum(&[]), w.exp().sum(&[]));
    let program = &mut net.program()?.clone();
    let first = append_backward(program, &one.name(), &Backward::default())?.pairs[0].1;
    let second = append_backward(program, &two.name(), &Backward::default())?.pairs[0].1;
    autobwd::verify(program)?;
    let names = [program.name(first).to_string(), program.name(second).to_string()];
    assert_ne!(names[0], names[1]);
    let mut scope = Scope::new();
    scope.set("w", Tensor::from_vec([3], vec![1.0_f64, 2.0, 0.0])?);
    let fetched = Executor::new().run(program, &mut scope, &[], &[&names[0], &names[1]])?;
    assert_eq!(fetched[0].to_f64s(), [2.0, 4.0, 0.0]);
    for (got, w) in fetched[1].to_f64s().into_iter().zip([1.0_f64, 2.0, 0.0]) {
        assert!((got / w.exp() - 1.0).abs() < 4.0 * f64::EPSILON, "{got}");
    }
    Ok(())
}

#[test]
fn given_gradient_counts_as_one() -> Result<()> {
    // Only one of two pieces is a target, with a given gradient: the gradient of the other one is zero.
    let net = Builder::new();
    let x = parameter(&net, "x", &[4]);
    let pieces = x.split(&[1, 3], 0);
    let given = net.input("given", DType::F64, &[3]);
    let mut program = net.program()?.clone();
    let (target, given_name) = (pieces[1].name(), given.name());
    let found = gradients(
        &mut program,
        &[&target],
        &["x"],
        &GradientOptions { target_gradients: Some(&[Some(&given_name)]), ..Default::default() },
    )?;
    let grad = program.name(found.pairs[0].1).to_string();
    let mut scope = Scope::new();
    scope.set("x", Tensor::from_vec([4], vec![0.0_f64; 4])?);
    let given = Tensor::from_vec([3], vec![1.0_f64, 2.0, 3.0])?;
    let fetched = Executor::new().run(&program, &mut scope, &[("given", &given)], &[&grad])?;
    assert_eq!(fetched[0].to_f64s(), [0.0, 1.0, 2.0, 3.0]);
    Ok(())
}

#[test]
fn several_softmax_outputs_share_one_rule() -> Result<()> {
    // Both outputs are read, one of them twice: a sum is inserted between the operators of one rule.
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let x = w.reshape(&[1, 3]);
    let label = net.persistable("label", DType::I64, &[1, 1], Expr::clone);
    let op = emit(autobwd_ops::loss::SoftmaxWithCrossEntropy {
        logits: (&x).into(),
        label: (&label).into(),
        softmax: autobwd::New,
        loss: autobwd::New,
        soft_label: false,
        ignore_index: -100,
        numeric_stable_mode: true,
        use_softmax: true,
        axis: -1,
    });
    let both = op.softmax.square().sum(&[]) + op.softmax.exp().sum(&[]);
    let loss = &both + op.loss.sum(&[]);
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    scope.set("label", Tensor::from_vec([1, 1], vec![1_i64])?);
    let mut at = |w: &[f64], fetch: &str| -> Result<Vec<f64>> {
        scope.set("w", Tensor::from_vec([3], w.to_vec())?);
        Ok(executor.run(&program, &mut scope, &[], &[fetch])?[0].to_f64s())
    };
    let built = at(&[0.3, -0.2, 0.9], "w@GRAD")?;
    for i in 0..3 {
        let side = |step: f64| {
            [0.3, -0.2, 0.9]
                .iter()
                .enumerate()
                .map(|(k, x)| x + if k == i { step } else { 0.0 })
                .collect::<Vec<_>>()
        };
        let numeric = (at(&side(1e-5), &loss.name())?[0] - at(&side(-1e-5), &loss.name())?[0]) / 2e-5;
        assert!((built[i] - numeric).abs() < 1e-8, "{built:?} {numeric}");
    }
    Ok(())
}
