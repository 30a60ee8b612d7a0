//! Two optimizers in one program, in two programs of one scope, and one after the other.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, New, Program, Result, Scope, Tensor, emit,
    operators::FillConstant,
};
use autobwd_ops::{
    Init, Math,
    optim::{Adam, Momentum, Optimizer, Schedule, Sgd},
    shape::Split,
};

use crate::support::{elements, parameter, started};

fn run(program: &Program, scope: &mut Scope) -> Result<()> {
    Executor::with_threads(1).run(program, scope, &[], &[]).map(drop)
}

fn start(net: &Builder, scope: &mut Scope) -> Result<()> {
    run(&*net.startup().program()?, scope)
}

fn step(net: &Builder, scope: &mut Scope) -> Result<()> {
    run(&*net.program()?, scope)
}

/// A program that trains one parameter, whose gradient is 1.
fn program(name: &str, optimizer: impl Optimizer) -> Result<Builder> {
    let net = Builder::new();
    optimizer.minimize(&parameter(&net, name, 1, 1.0).sum(&[]))?.complete()?;
    Ok(net)
}

#[test]
fn programs_of_one_scope_must_not_share_a_learning_rate() -> Result<()> {
    let (a, b) = (program("a", Sgd { rate: 0.5 })?, program("b", Sgd { rate: 0.25 })?);
    let mut scope = started(&a)?;
    let e = start(&b, &mut scope).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Program);
    let text = e.to_string();
    for part in ["`learning_rate_0` has been initialised by another program", "by `fill_constant` at "] {
        assert!(text.contains(part), "{text}\nlacks {part}");
    }
    // Nothing was changed.
    assert!(scope.get("b").is_err());
    step(&a, &mut scope)?;
    assert_eq!((elements(&scope, "a"), elements(&scope, "learning_rate_0")), (vec![0.5], vec![0.5]));
    // Also after a schedule.
    Schedule::constant(0.125).set(&mut scope, "learning_rate_0", 0)?;
    assert!(start(&b, &mut scope).is_err());
    // The same program may start again, and one that initialises it in the same way.
    start(&a, &mut scope)?;
    start(&program("b", Sgd { rate: 0.5 })?, &mut scope)?;
    Ok(())
}

#[test]
fn named_optimizers_of_two_programs_have_their_own_state() -> Result<()> {
    let momentum = |rate| Momentum { rate, momentum: 0.5, nesterov: false, lazy: false };
    let (a, b) = (program("w", momentum(0.5).name("a"))?, program("w", momentum(0.25).name("b"))?);
    let mut scope = started(&a)?;
    start(&b, &mut scope)?;
    step(&a, &mut scope)?;
    step(&b, &mut scope)?;
    step(&a, &mut scope)?;
    // By hand: velocities 1 and 1.5 of `a`, 1 of `b`.
    assert_eq!(elements(&scope, "w"), [1.0 - 0.5 - 0.25 - 0.75]);
    for (name, value) in [
        ("a.learning_rate_0", 0.5),
        ("b.learning_rate_0", 0.25),
        ("a.w.velocity", 1.5),
        ("b.w.velocity", 1.0),
    ] {
        assert_eq!(elements(&scope, name), [value], "{name}");
    }
    Ok(())
}

#[test]
fn program_has_one_optimizer_of_a_name() -> Result<()> {
    let net = Builder::new();
    let (w, v) = (parameter(&net, "w", 1, 1.0), parameter(&net, "v", 1, 1.0));
    let only = |name: &'static str| Backward {
        parameters: Some(if name == "w" { &["w"] } else { &["v"] }),
        ..Backward::default()
    };
    let loss = (&w * &v).sum(&[]);
    Sgd { rate: 0.5 }.minimize_with(&loss, &only("w"))?.complete()?;
    let before = (net.program()?.clone(), net.startup().program()?.clone());
    let line = line!() + 1;
    let e = Sgd { rate: 0.25 }.minimize_with(&loss, &only("v")).unwrap_err().to_string();
    assert!(e.contains("has an optimizer with the learning rate `learning_rate_0` already"), "{e}");
    assert!(e.contains("each run of the program is a step"), "{e}");
    assert!(e.ends_with(&format!("two_optimizers.rs:{line}")), "{e}");
    assert_eq!((net.program()?.clone(), net.startup().program()?.clone()), before);
    Sgd { rate: 0.25 }.name("second").minimize_with(&loss, &only("v"))?.complete()?;
    assert!(Sgd { rate: 0.25 }.name("second").minimize_with(&loss, &only("v")).is_err());
    let mut scope = started(&net)?;
    Schedule::constant(0.125).set(&mut scope, "second.learning_rate_0", 0)?;
    step(&net, &mut scope)?;
    // The second update reads gradients with respect to the values before the first.
    assert_eq!((elements(&scope, "w"), elements(&scope, "v")), (vec![0.5], vec![0.875]));
    Ok(())
}

#[test]
fn one_learning_rate_reaches_parameters_of_all_dtypes() -> Result<()> {
    let net = Builder::new();
    let [a, b, c] = [("a", DType::F32, &[1][..]), ("b", DType::F64, &[1]), ("c", DType::F32, &[])]
        .map(|(name, dtype, dims)| net.parameter(name, dtype, dims, |w| Init::Constant(1.0).emit(w, 0)));
    let loss = a.sum(&[]) + b.sum(&[]).cast(DType::F32) + c;
    Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;
    let mut scope = started(&net)?;
    assert!(scope.get("learning_rate_1").is_err());
    for (rate, expected) in [(0.0, 1.0), (0.25, 0.75)] {
        Schedule::constant(rate).set(&mut scope, "learning_rate_0", 0)?;
        step(&net, &mut scope)?;
        for name in ["a", "b", "c"] {
            assert_eq!(scope.get(name)?.item()?, expected, "{name}");
        }
    }
    Ok(())
}

/// Gradient descent with a name of its own for the learning rate.
struct Descent;

impl Optimizer for Descent {
    fn learning_rate(&self) -> f32 {
        0.5
    }

    fn rate_name(&self) -> String {
        "descent.rate".into()
    }

    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        Sgd { rate: 0.5 }.update(parameter, gradient, learning_rate)
    }
}

#[test]
fn optimizers_may_name_their_learning_rate() -> Result<()> {
    let net = Builder::new();
    let loss = parameter(&net, "w", 1, 1.0).sum(&[]);
    Descent.minimize(&loss)?.complete()?;
    let mut scope = started(&net)?;
    step(&net, &mut scope)?;
    assert_eq!((elements(&scope, "descent.rate"), elements(&scope, "w")), (vec![0.5], vec![0.5]));
    assert!(scope.find("learning_rate_0").is_none());
    let e = Descent.minimize(&loss).unwrap_err().to_string();
    assert!(e.contains("has an optimizer with the learning rate `descent.rate` already"), "{e}");
    Ok(())
}

#[test]
fn second_stage_keeps_trained_weights() -> Result<()> {
    let model = |net: &Builder| (parameter(net, "w", 1, 1.0) * parameter(net, "v", 1, 2.0)).sum(&[]);
    let (first, second) = (Builder::new(), Builder::new());
    Sgd { rate: 0.5 }.minimize(&model(&first))?.complete()?;
    let loss = model(&second) * parameter(&second, "head", 1, 3.0);
    Adam::new(0.25).name("second").minimize(&loss.sum(&[]))?.complete()?;
    let mut scope = started(&first)?;
    step(&first, &mut scope)?;
    assert_eq!(elements(&scope, "w"), [0.0]);
    run(&scope.missing_only(&second.startup().program()?)?, &mut scope)?;
    assert_eq!((elements(&scope, "w"), elements(&scope, "v")), (vec![0.0], vec![1.5]));
    assert_eq!(
        (elements(&scope, "head"), elements(&scope, "second.learning_rate_0")),
        (vec![3.0], vec![0.25])
    );
    step(&second, &mut scope)?;
    assert_ne!(elements(&scope, "w"), [0.0]);
    // A scope that has everything stays as it is.
    let before = elements(&scope, "w");
    run(&scope.missing_only(&second.startup().program()?)?, &mut scope)?;
    assert_eq!(elements(&scope, "w"), before);
    Ok(())
}

#[test]
fn missing_only_refuses_what_is_not_the_same() -> Result<()> {
    let first = program("w", Sgd { rate: 0.5 })?;
    let scope = started(&first)?;
    let missing = |net: &Builder| scope.missing_only(&net.startup().program().unwrap()).map(drop);
    let e = missing(&program("w", Sgd { rate: 0.25 })?).unwrap_err();
    assert!(e.message().starts_with("two programs would share `learning_rate_0`, which another one "), "{e}");
    assert!(!e.message().contains("missing_only") && e.message().contains(".name("), "{e}");
    let other = Builder::new();
    parameter(&other, "w", 2, 1.0);
    let e = missing(&other).unwrap_err();
    assert_eq!(e.message(), "`w` is float32 [1] in the scope, and float32 [2] in the startup program");
    // Values from a file have no initialiser, but a shape.
    let mut loaded = Scope::new();
    loaded.set("w", scope.get("w")?.clone());
    let e = loaded.missing_only(&other.startup().program()?).unwrap_err();
    assert_eq!(e.message(), "`w` is float32 [1] in the scope, and float32 [2] in the startup program");
    loaded.missing_only(&first.startup().program()?)?;
    Ok(())
}

#[test]
fn missing_only_keeps_parameters_that_start_elsewhere() -> Result<()> {
    let first = program("w", Sgd { rate: 0.5 })?;
    let mut scope = started(&first)?;
    let second = Builder::new();
    let loss = (parameter(&second, "w", 1, 2.0) * parameter(&second, "v", 1, 3.0)).sum(&[]);
    Sgd { rate: 0.25 }.name("second").minimize(&loss)?.complete()?;
    run(&scope.missing_only(&second.startup().program()?)?, &mut scope)?;
    assert_eq!((elements(&scope, "w"), elements(&scope, "v")), (vec![1.0], vec![3.0]));
    Ok(())
}

#[test]
fn missing_only_keeps_values_next_to_missing_ones() -> Result<()> {
    let net = Builder::new();
    for name in ["q", "k"] {
        net.persistable(name, DType::F32, &[1], Expr::clone).check()?;
    }
    let startup = net.startup();
    let both = FillConstant { shape: vec![2], value: 3.0, ..FillConstant::of(New) };
    let both = startup.emit(both).out;
    let out = ["q", "k"].map(|name| startup.expr(name).into()).into();
    let (axis, num, sections) = (0, 2, vec![]);
    let (axis_tensor, sections_tensor_list) = (None, vec![]);
    let pieces =
        emit(Split { x: (&both).into(), out, axis, num, sections, axis_tensor, sections_tensor_list });
    pieces.out.iter().try_for_each(|piece| piece.check().map(drop))?;
    let mut scope = Scope::new();
    scope.set("q", Tensor::from_vec([1], vec![7.0_f32])?);
    run(&scope.missing_only(&startup.program()?)?, &mut scope)?;
    assert_eq!((elements(&scope, "q"), elements(&scope, "k"), scope.len()), (vec![7.0], vec![3.0], 2));
    Ok(())
}

#[test]
fn program_that_is_no_startup_program_may_set_what_is_kept() -> Result<()> {
    let set = |name: &str, value: f32| -> Result<Builder> {
        let net = Builder::new();
        let out = net.persistable(name, DType::F32, &[1], Expr::clone).into();
        emit(FillConstant { shape: vec![1], value, ..FillConstant::of(out) }).out.check()?;
        Ok(net)
    };
    let mut scope = started(&program("w", Sgd { rate: 0.5 })?)?;
    for name in ["learning_rate_0", "phase"] {
        for value in [0.25, 0.125] {
            step(&set(name, value)?, &mut scope)?;
            assert_eq!(elements(&scope, name), [value]);
        }
    }
    Ok(())
}

#[test]
fn values_from_a_file_have_no_initialiser() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let mut scope = started(&program("w", Sgd { rate: 0.5 })?)?;
    scope.save(&path)?;
    let other = program("v", Sgd { rate: 0.25 })?;
    assert!(start(&other, &mut scope).is_err());
    scope.load(&path)?;
    scope.missing_only(&other.startup().program()?)?;
    start(&other, &mut scope)?;
    assert_eq!(elements(&scope, "learning_rate_0"), [0.25]);
    Ok(())
}

#[test]
fn startup_programs_are_known_in_files_and_in_profiles() -> Result<()> {
    let (a, b) = (program("a", Sgd { rate: 0.5 })?, program("b", Sgd { rate: 0.25 })?);
    let mut scope = started(&a)?;
    let startup = b.startup().program()?.clone();
    let loaded = Program::from_json(&startup.to_json())?;
    assert_eq!(run(&loaded, &mut scope).unwrap_err().kind(), ErrorKind::Program);
    let mut session = Executor::with_threads(1).prepare(&startup, &mut scope, &[], &[])?;
    assert_eq!(session.profile(&mut scope).unwrap_err().kind(), ErrorKind::Program);
    assert_eq!(elements(&scope, "learning_rate_0"), [0.5]);
    let startup = a.startup().program()?.clone();
    let mut fresh = Scope::new();
    Executor::with_threads(1).prepare(&startup, &mut fresh, &[], &[])?.profile(&mut fresh)?;
    assert!(start(&b, &mut fresh).is_err());
    Ok(())
}

#[test]
fn groups_share_the_name_of_their_optimizer() -> Result<()> {
    let net = Builder::new();
    let loss = (parameter(&net, "w", 1, 1.0) * parameter(&net, "v", 1, 1.0)).sum(&[]);
    let adam = Adam::new(0.5);
    let e = adam.group("w", adam.name("own")).minimize(&loss).unwrap_err().to_string();
    assert!(e.contains("group `w` has a name of its own"), "{e}");
    adam.group("w", Adam { rate: 0.25, ..adam }).name("both").minimize(&loss)?.complete()?;
    let scope = started(&net)?;
    for name in ["both.learning_rate_0", "both.w.moment1", "both.v.moment1"] {
        scope.get(name)?;
    }
    Ok(())
}

#[test]
fn names_of_optimizers_are_names_of_variables() -> Result<()> {
    for (name, text) in [("", "the name of an optimizer is empty"), ("a@GRAD\n", "")] {
        let net = Builder::new();
        let loss = parameter(&net, "w", 1, 1.0).sum(&[]);
        let before = net.program()?.clone();
        let e = Sgd { rate: 0.5 }.name(name).minimize(&loss).unwrap_err().to_string();
        assert!(e.contains(text), "{e}");
        assert_eq!(net.program()?.clone(), before, "{name:?}");
    }
    Ok(())
}

#[test]
fn optimizers_of_a_tape_have_their_own_state() -> Result<()> {
    let net = autobwd::eager();
    let w = parameter(&net, "w", 1, 1.0);
    let momentum = |rate| Momentum { rate, momentum: 0.5, nesterov: false, lazy: false };
    for name in ["a", "b", "a"] {
        let loss: Expr = w.sum(&[]);
        momentum(if name == "a" { 0.5 } else { 0.25 }).name(name).minimize(&loss)?.complete()?;
    }
    assert_eq!(w.tensor()?.to_f64s(), [1.0 - 0.5 - 0.25 - 0.75]);
    assert_eq!(net.expr("a.w.velocity").item()?, 1.5);
    Ok(())
}
