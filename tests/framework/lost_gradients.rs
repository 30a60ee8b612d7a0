//! Missing gradients are reported, and do not silently stop training.

use autobwd::{
    Attr, Backward, Builder, DType, ErrorKind, Expr, New, Program, Result, Tensor, VarDesc, append_backward,
    backward::{GradientOptions, Recompute},
    emit, gradients,
    tape::{GradOptions, grad, missing},
    verify,
};
use autobwd_ops::{
    Init, Math,
    activation::Scale,
    control::{static_rnn, while_loop},
    optim::{Adam, Optimizer, Sgd},
};

use crate::support::derivatives::{assert_derivative, parameter};

/// Parameters `w` and `b`; `b` has no gradient.
fn half_trained(net: &Builder) -> Expr {
    let w = net.parameter("w", DType::F32, &[3], |p| Init::Constant(1.0).emit(p, 0));
    let b = net.parameter("b", DType::F32, &[3], |p| Init::Constant(1.0).emit(p, 0));
    (w.square() + b.detach()).mean()
}

#[test]
fn training_nothing_is_refused() -> Result<()> {
    let ways: [fn(&Expr) -> Expr; 2] = [|w| w.argmax(0).cast(DType::F32).mean(), |w| w.detach().mean()];
    for net in [Builder::new(), autobwd::eager()] {
        let w = net.parameter("w", DType::F32, &[3], |p| Init::Constant(1.0).emit(p, 0));
        for way in ways {
            let loss = way(&w);
            let before = net.program()?.clone();
            let e = Adam::new(0.1).minimize(&loss).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NoGradient);
            assert!(e.to_string().contains("nothing is trained\n`w` has no gradient: "), "{e}");
            assert_eq!(*net.program()?, before);
        }
        let empty = if net.is_eager() { autobwd::eager() } else { Builder::new() };
        let x = empty.persistable("x", DType::F32, &[1], |x| Init::Constant(1.0).emit(x, 0));
        let e = Adam::new(0.1).minimize(&x.mean()).unwrap_err();
        assert!(e.message().ends_with("nothing is trained\nthere are no parameters"), "{e}");
    }
    Ok(())
}

#[test]
fn parameters_that_are_not_trained_are_named() -> Result<()> {
    for net in [Builder::new(), autobwd::eager()] {
        let loss = half_trained(&net);
        let updates = Sgd { rate: 0.1 }.minimize(&loss)?;
        let names: Vec<String> = updates.trained.iter().map(|(p, _)| p.name()).collect();
        assert_eq!(names, ["w"]);
        let reason = updates.untrained[0].reason();
        assert!(reason.starts_with("`b` has no gradient: "), "{reason}");
        assert_eq!((updates.untrained.len(), updates.untrained[0].parameter.name()), (1, "b".into()));
        let e = updates.complete().unwrap_err().to_string();
        assert!(e.contains("not all parameters are trained\n`b` has no gradient: "), "{e}");
    }
    Ok(())
}

/// Excluded parameters are not reported; names mean the same in programs and in eager mode.
#[test]
fn no_grad_excludes_parameters_and_refuses_unknown_names() -> Result<()> {
    for eager in [false, true] {
        let without = |no_grad: &[&str], parameters: Option<&[&str]>| {
            let net = if eager { autobwd::eager() } else { Builder::new() };
            let loss = half_trained(&net);
            let backward = Backward { no_grad, parameters, ..Backward::default() };
            Sgd { rate: 0.1 }.minimize_with(&loss, &backward)
        };
        let e = without(&["v"], None).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::UnknownVar);
        assert!(e.to_string().contains("the program has no variable `v`"), "{e}");
        assert_eq!(without(&["b"], None)?.complete()?.len(), 1);
        let e = without(&["w"], Some(&["w"])).unwrap_err();
        assert!(e.to_string().contains("`w` has no gradient: it is in the no-grad set"), "{e}");
        assert_eq!(without(&["w", "b"], None).unwrap_err().kind(), ErrorKind::NoGradient);
    }
    Ok(())
}

#[test]
fn tape_tells_why_a_gradient_is_missing() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.leaf("x", Tensor::from_vec([2], vec![1.0, 2.0])?);
    let y = tape.leaf("y", Tensor::from_vec([2], vec![3.0, 4.0])?);
    let constant = tape.constant(Tensor::from_vec([2], vec![3.0, 4.0])?);
    let numbers = tape.leaf("numbers", Tensor::from_vec([2], vec![3_i64, 4])?);
    let loss = (x.square() + y.detach().exp()).sum(&[]);
    let why = |of: &Expr, input: &Expr| Ok::<_, autobwd::Error>(missing(&[of], input)?.unwrap_or_default());

    assert_eq!(missing(&[&loss], &x)?, None);
    assert!(
        why(&loss, &y)?
            .starts_with("`y` has no gradient: no path leads from it to the result of `reduce_sum` at ")
    );
    assert!(why(&loss, &y)?.contains(", whose history ends at the result of `exp` at "));
    assert!(why(&loss, &constant)?.ends_with("it is a constant"));
    assert!(why(&loss, &numbers)?.ends_with("only floating point numbers have gradients"));
    assert!(why(&y.detach().sum(&[]), &y)?.ends_with("was computed from constants only"));
    assert!(why(&loss, &tape.no_grad(|| x.exp()))?.contains("it has no history"));
    // Exactly the missing ones are reported.
    for input in [&x, &y, &constant, &numbers] {
        let found = grad(&[&loss], &[input], &GradOptions::default())?;
        assert_eq!(found[0].is_none(), missing(&[&loss], input)?.is_some());
    }
    loss.backward()?;
    assert!(y.gradient().unwrap_err().to_string().ends_with("`tape::missing` tells why"));
    Ok(())
}

const AT: [(&str, &[f64]); 2] = [("w", &[0.6, 0.9]), ("x", &[0.7, 1.1])];

/// `h ← tanh(h · w)` twice, starting from `first` of data `x` and of `w`, and a loss of `h` and `w`. The carried
/// variable is marked with `stop_gradient`.
fn marked_loop(first: impl Fn(&Expr, &Expr) -> Expr) -> Result<(Program, String, String)> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[2]);
    let x = net.persistable("x", DType::F64, &[2], |x| Init::Constant(1.0).emit(x, 0));
    let steps = x.detach().sum(&[]) * 0.0;
    let first = first(&x, &w);
    let last = while_loop(
        &[steps, first],
        |v| v[0].less_than(&(x.sum(&[]) * 0.0 + 1.5)),
        |v| vec![&v[0] + 1.0, (&v[1] * &w).tanh()],
    );
    let h = mark(last[1].clone());
    let loss = (&h * w.square()).sum(&[]).name();
    let h = h.name();
    Ok((net.program()?.clone(), loss, h))
}

/// The reference marks copies of data; the mark does not apply to values that a loop overwrites them with.
#[test]
fn mark_that_follows_from_data_cuts_no_loop() -> Result<()> {
    for first in
        [|x: &Expr, _: &Expr| x.detach(), |x: &Expr, _: &Expr| x.detach().exp().stop_gradient().square()]
    {
        let (mut program, loss, _) = marked_loop(|x, w| mark(first(x, w)))?;
        let found = append_backward(&mut program, &loss, &Backward::default())?;
        assert!(found.partial.is_empty(), "{}", found.report(&program));
        assert_derivative(&program, &AT, &loss, "w", "w@GRAD");
    }
    Ok(())
}

/// Marks the variable of an expression itself.
fn mark(x: Expr) -> Expr {
    let marked = x.builder().edit(|program| {
        if let Some(desc) = program.root().vars.get(&x.var()).cloned() {
            program.root_mut().vars.insert(x.var(), VarDesc { stop_gradient: true, ..desc });
        }
        Ok(())
    });
    marked.map_or_else(|e| x.builder().failed(e), |()| x.clone())
}

#[test]
fn mark_that_cuts_part_of_a_gradient_is_reported() -> Result<()> {
    // The initial value depends on `w`: the user asked for the mark.
    let (mut program, loss, h) = marked_loop(|x, w| x * w)?;
    let found = append_backward(&mut program, &loss, &Backward::default())?;
    assert_eq!(found.partial.len(), 1);
    let report = found.report(&program).to_string();
    let line = report.lines().last().unwrap_or_default();
    assert!(line.starts_with(&format!(
        "no gradient flows through `{h}`, which is marked `stop_gradient`; operator "
    )));
    assert!(line.contains(" `while` (") && line.ends_with(" writes it"), "{line}");
    Ok(())
}

#[test]
fn sub_block_variables_are_distinguished_from_unknown_ones() -> Result<()> {
    let (program, loss, _) = marked_loop(|x, _| x.detach())?;
    let (var, _) = program.blocks()[1].vars.iter().next().expect("the body computes something");
    let inner = program.name(*var).to_string();
    let expected = format!("`{inner}` is a variable of block 1, which exists only while that block runs");
    let as_loss = append_backward(&mut program.clone(), &inner, &Backward::default());
    let no_grad = [inner.as_str()];
    let cut =
        append_backward(&mut program.clone(), &loss, &Backward { no_grad: &no_grad, ..Backward::default() });
    for outcome in [as_loss, cut] {
        let e = outcome.unwrap_err().to_string();
        assert!(e.starts_with(&expected), "{e}");
    }
    Ok(())
}

#[test]
fn target_gradients_that_do_not_fit_are_named() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1, 3]);
    net.input("g", DType::F32, &[2, 0]);
    let y = x.square().name();
    let mut program = net.program()?.clone();
    let e = gradients(
        &mut program,
        &[&y],
        &["x"],
        &GradientOptions { target_gradients: Some(&[Some("g")]), ..Default::default() },
    )
    .unwrap_err()
    .to_string();
    let expected =
        format!("the target gradient `g` is float32 [2, 0], but its target `{y}` is float32 [1, 3]");
    assert!(e.starts_with(&expected), "{e}");
    Ok(())
}

/// The reference writes the same to its log.
#[test]
fn checkpoints_without_effect_are_reported() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[4]);
    let halves = w.tanh().exp().split(&[2, 2], 0);
    let loss = (&halves[0] * halves[1].square()).sum(&[]).name();
    let names: Vec<String> = halves.iter().map(Expr::name).collect();
    let found = |names: &[&str]| {
        let mut program = net.program()?.clone();
        let backward = Backward { recompute: Recompute::Named(names), ..Backward::default() };
        let found = append_backward(&mut program, &loss, &backward)?;
        Ok::<_, autobwd::Error>((found.recomputed.clone(), found.report(&program).to_string()))
    };
    let (recomputed, report) = found(&[&names[0], &names[1]])?;
    assert_eq!((recomputed.names.len(), &recomputed.without_effect), (0, &names));
    let expected = format!("nothing is recomputed for the checkpoints `{}`, `{}`: ", names[0], names[1]);
    assert!(report.lines().last().is_some_and(|line| line.starts_with(&expected)), "{report}");
    let (recomputed, report) = found(&[&names[1]])?;
    assert!(!recomputed.names.is_empty() && recomputed.without_effect.is_empty(), "{report}");
    Ok(())
}

/// A program with a NaN attribute would not equal itself.
#[test]
fn attributes_are_no_nan() -> Result<()> {
    for net in [Builder::new(), autobwd::eager()] {
        let x = net.parameter("x", DType::F32, &[2], |x| Init::Constant(1.0).emit(x, 0));
        let scale = Scale { x: (&x).into(), out: New, scale: f64::NAN, bias: 0.0, bias_after_scale: true };
        let e = autobwd::emit(scale).out.check().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Attr);
        assert!(e.to_string().contains("attribute `scale` is NaN"), "{e}");
    }
    let net = Builder::new();
    let x = net.parameter("x", DType::F32, &[2], |x| Init::Constant(1.0).emit(x, 0));
    (&x * 2.5).check()?;
    let mut program = net.program()?.clone();
    let text = program.to_json().replace("2.5", "\"NaN\"");
    assert!(Program::from_json(&text).unwrap_err().to_string().contains("an attribute is NaN"));
    program.root_mut().ops[0].attrs.set("scale", Attr::F32(f32::NAN));
    assert!(verify(&program).unwrap_err().to_string().contains("attribute `scale` is NaN"));
    Ok(())
}

/// A loop whose body detaches part of its result, or all of it.
fn detached_in_loop(net: &Builder, all: bool) -> Expr {
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(0.5).emit(w, 0));
    let x = net.persistable("x", DType::F32, &[2], |x| Init::Constant(1.0).emit(x, 0));
    let steps = x.sum(&[]) * 0.0;
    let last = while_loop(
        &[steps, x.clone()],
        |v| v[0].less_than(&(x.sum(&[]) * 0.0 + 1.5)),
        |v| {
            let next = (&v[1] * &w).tanh();
            vec![&v[0] + 1.0, if all { next.detach() } else { next.detach() + &w }]
        },
    );
    last[1].mean()
}

#[test]
fn cut_inside_a_loop_is_named() -> Result<()> {
    let net = Builder::new();
    let updates = Sgd { rate: 0.1 }.minimize(&detached_in_loop(&net, false))?;
    assert_eq!(updates.partial.len(), 1);
    let text = updates.partial[0].to_string();
    for part in [
        "in operator ",
        " `while` (",
        ", no gradient flows through `assign_",
        "which is marked `stop_gradient`; operator ",
    ] {
        assert!(text.contains(part), "{text}\nlacks {part}");
    }
    updates.complete()?;

    let net = Builder::new();
    let loss = detached_in_loop(&net, true);
    let e = Sgd { rate: 0.1 }.minimize(&loss).unwrap_err().to_string();
    let mut program = net.program()?.clone();
    let found = append_backward(&mut program, &loss.name(), &Backward::default())?;
    let explained = autobwd::backward::explain(&program, "w@GRAD").map_err(|e| e.to_string());
    let explained = explained.unwrap_or_else(|e| e);
    for text in [e, found.report(&program).to_string(), explained] {
        for part in [
            "`w` has no gradient: its path to `",
            " ends in operator ",
            ", where no gradient flows through `assign_",
        ] {
            assert!(text.contains(part), "{text}\nlacks {part}");
        }
        assert!(!text.contains("passes no gradient on"), "{text}");
    }
    Ok(())
}

#[test]
fn values_computed_from_data_have_gradients() -> Result<()> {
    let net = Builder::new();
    let [real, fake] = ["real", "fake"].map(|name| net.input(name, DType::F64, &[2, 2]));
    let w = net.parameter("w", DType::F64, &[2, 1], |w| Init::Constant(0.5).emit(w, 0));
    let mix = &real * 0.5 + &fake * 0.5;
    let score = mix.matmul(&w).tanh().sum(&[]);
    let mut program = net.program()?.clone();
    let found = gradients(&mut program, &[&score.name()], &[&mix.name(), "real"], &Default::default())?;
    assert!(found.entries()[0].is_some(), "{}", found.report(&program));
    let data = found.missing.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(data, ["`real` has no gradient: it is marked `stop_gradient`"]);
    Ok(())
}

#[test]
fn cut_in_a_later_step_is_named() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(0.5).emit(w, 0));
    let x = net.persistable("x", DType::F32, &[3, 2], |x| Init::Constant(1.0).emit(x, 0));
    let boot = net.persistable("boot", DType::F32, &[2], |x| Init::Constant(1.0).emit(x, 0));
    let steps = static_rnn(&net, false, |rnn| {
        let (x, h) = (rnn.step_input(&x), rnn.memory(&boot));
        rnn.update_memory(&h, &(&x * &w));
        rnn.step_output(&h.detach());
    });
    let loss = steps[0].mean().name();
    let mut program = net.program()?.clone();
    let found = append_backward(&mut program, &loss, &Backward::default());
    let found = found.map_or_else(|e| e.to_string(), |found| found.report(&program).to_string());
    for part in
        ["`w` has no gradient: its path to `", " ends in operator ", "no gradient flows through `assign_"]
    {
        assert!(found.contains(part), "{found}\nlacks {part}");
    }
    Ok(())
}

#[test]
fn cut_is_named_with_the_operator_whose_value_is_used() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(0.5).emit(w, 0));
    let cut = w.square().detach();
    let loss = (&cut + &w).mean();
    let (scale, bias, bias_after_scale) = (2.0, 0.0, true);
    emit(Scale { x: (&w).into(), out: (&cut).into(), scale, bias, bias_after_scale }).out.check()?;
    let mut program = net.program()?.clone();
    let found = append_backward(&mut program, &loss.name(), &Backward::default())?;
    let text = found.partial[0].to_string();
    assert!(text.contains("; operator 1 `assign`"), "{text}");
    Ok(())
}
