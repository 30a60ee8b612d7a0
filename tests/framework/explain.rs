//! Explanations of gradients, compared with the texts in `stories/`.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Expr, Program, Result,
    backward::{GradientOptions, Recompute},
    emit, explain, gradients,
};
use autobwd_ops::{Math, activation::Square};

use crate::support::{
    compare,
    derivatives::parameter,
    programs::{differentiate, nested},
};

/// Compares a text with a file, ignoring the line numbers of sources.
#[track_caller]
fn told(story: &str, text: &str) {
    let mut pieces = text.split(".rs:");
    let mut lineless = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        lineless += ".rs";
        lineless += piece.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    compare(&format!("framework/stories/{story}.txt"), &(lineless + "\n"));
}

#[test]
fn gradients_through_blocks_are_explained_by_block() -> Result<()> {
    let (program, found) = nested()?;
    autobwd::verify(&program)?;
    told("nested_program", &program.to_string());
    told("nested", &explain(&program, "w@GRAD")?);
    told("nested_report", &found.report(&program).to_string());
    let within = program.blocks().iter().filter(|block| block.forward.is_some());
    let mut stories = String::new();
    for grad in within.flat_map(|block| block.vars.iter()).filter(|(_, desc)| desc.gradient_of.is_some()) {
        stories += &explain(&program, program.name(*grad.0))?;
        stories += "\n\n";
    }
    told("nested_within", stories.trim_end());
    Ok(())
}

#[test]
fn fan_out_is_explained_with_its_readers() -> Result<()> {
    let net = Builder::new();
    let h = parameter(&net, "w", &[3]).tanh();
    let loss = (&h * &h + h.exp()).mean();
    let (program, found) = differentiate(&net, &loss, &Backward::default())?;
    told("fan_out", &explain(&program, "w@GRAD")?);
    told("fan_out_report", &found.report(&program).to_string());
    told("contribution", &explain(&program, "tanh_0@GRAD@RENAME@1")?);
    // A saved file keeps all of it.
    let loaded = Program::from_json(&program.to_json())?;
    assert_eq!(explain(&loaded, "w@GRAD")?, explain(&program, "w@GRAD")?);
    Ok(())
}

#[test]
fn zero_fill_is_explained_with_its_reason() -> Result<()> {
    let net = Builder::new();
    let pieces = parameter(&net, "w", &[6]).split(&[1, 2, 3], 0);
    let chosen = pieces[1].argmax(0).cast(DType::F64);
    let loss = pieces[2].mean() + &chosen;
    let (program, _) = differentiate(&net, &loss, &Backward::default())?;
    told("zero_fill", &explain(&program, "w@GRAD")?);
    Ok(())
}

#[test]
fn recomputed_value_is_explained() -> Result<()> {
    let net = Builder::new();
    let h = parameter(&net, "w", &[3]).exp();
    let loss = h.tanh().square().mean();
    let asked = Backward { recompute: Recompute::Without(&["exp_0", "tanh_0"]), ..Default::default() };
    let (program, found) = differentiate(&net, &loss, &asked)?;
    told("recomputed", &explain(&program, "w@GRAD")?);
    told("recomputed_report", &found.report(&program).to_string());
    Ok(())
}

#[test]
fn missing_gradient_is_explained_by_the_end_of_its_path() -> Result<()> {
    let net = Builder::new();
    let names = ["used", "unused", "frozen", "cut", "picked", "refused", "shaped"];
    let all: Vec<Expr> = names.iter().map(|n| parameter(&net, n, &[3])).collect();
    all[1].exp();
    let frozen = all[2].clone().freeze();
    let sum = &all[0] + &frozen + all[3].square().detach();
    let sum = &sum + all[5].tanh();
    let ones = emit(autobwd_ops::fill::FillAnyLike {
        x: (&all[6]).into(),
        out: autobwd::New,
        value: 1.0,
        dtype: None,
    });
    let picked = all[4].argmax(0).cast(DType::F64);
    let loss = (&sum * &ones.out).mean() + &picked;
    let (program, found) =
        differentiate(&net, &loss, &Backward { no_grad: &["tanh_0"], ..Default::default() })?;
    told("cut_report", &found.report(&program).to_string());
    assert_eq!(found.missing.len(), 6);
    // The program alone has the same information, except the no-grad set.
    for missing in &found.missing {
        let alone = explain(&program, &format!("{}@GRAD", missing.name))?;
        match missing.name.as_str() {
            "refused" => told("refused", &alone),
            "shaped" => assert!(alone.starts_with(&missing.to_string()), "{alone}\n{missing}"),
            _ => assert_eq!(alone, missing.to_string()),
        }
    }
    Ok(())
}

#[test]
fn second_derivative_is_explained_by_both_forward_operators() -> Result<()> {
    let net = Builder::new();
    let out = parameter(&net, "x", &[3]).tanh();
    let mut program = net.program()?.clone();
    gradients(&mut program, &[&out.name()], &["x"], &Default::default())?;
    let found = gradients(&mut program, &["x@GRAD"], &["x"], &Default::default())?;
    let second = program.name(found.pairs[0].1).to_string();
    told("second_derivative", &explain(&program, &second)?);
    told("second_derivative_report", &found.report(&program).to_string());
    Ok(())
}

#[test]
fn rules_of_several_operators_and_seeds_are_explained() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (parameter(&net, "x", &[3]), parameter(&net, "y", &[3]));
    let h = x.sin();
    let out = &h - &y;
    net.input("given", DType::F64, &[3]);
    let mut program = net.program()?.clone();
    let (out, h) = (out.name(), h.name());
    let first = gradients(
        &mut program,
        &[&out],
        &["x", "y"],
        &GradientOptions { target_gradients: Some(&[Some("given")]), ..Default::default() },
    )?;
    told("given", &explain(&program, "x@GRAD")?);
    told("given_report", &first.report(&program).to_string());
    // A target on another one's path: the given gradient is added.
    let mut program = net.program()?.clone();
    gradients(
        &mut program,
        &[&h, &out],
        &["x"],
        &GradientOptions { target_gradients: Some(&[Some("given"), None]), ..Default::default() },
    )?;
    told("given_on_the_path", &explain(&program, "x@GRAD")?);
    Ok(())
}

#[test]
fn copy_of_overwritten_value_is_explained() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let h = w.tanh();
    let first = h.sum(&[]);
    emit(Square { x: (&w).into(), out: (&h).into() }).out.check()?;
    let loss = &first + h.sum(&[]);
    let (program, found) = differentiate(&net, &loss, &Backward::default())?;
    told("overwritten", &explain(&program, "w@GRAD")?);
    told("overwritten_report", &found.report(&program).to_string());
    Ok(())
}

#[test]
fn long_explanations_are_shortened() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let mut h = w.clone();
    for _ in 0..200 {
        h = &h * &w;
    }
    let loss = h.mean();
    let (program, found) = differentiate(&net, &loss, &Backward::default())?;
    told("long", &explain(&program, "w@GRAD")?);
    told("long_report", &found.report(&program).to_string());
    Ok(())
}

#[test]
fn names_that_are_no_gradients_are_refused() -> Result<()> {
    let net = Builder::new();
    let loss = parameter(&net, "weights", &[3]).exp().mean();
    let e = explain(&*net.program()?, "weights@GRAD").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoGradient);
    assert_eq!(e.to_string(), "the program has no backward pass that computes `weights@GRAD`");
    let (program, _) = differentiate(&net, &loss, &Backward::default())?;
    for (name, hint) in [
        ("weight@GRAD", "; did you mean `weights@GRAD`?"),
        ("weights", "; did you mean `weights@GRAD`?"),
        ("x", ""),
    ] {
        let e = explain(&program, name).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::UnknownVar);
        assert_eq!(e.to_string(), format!("the program has no gradient `{name}`{hint}"));
    }
    Ok(())
}

#[test]
fn mangled_programs_are_explained_without_panic() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[3]);
    let loss = (w.tanh() * &w).mean();
    let (program, found) = differentiate(&net, &loss, &Backward::default())?;
    let json = program.to_json();
    for (from, to) in [
        (r#""gradient_of":1"#, r#""gradient_of":77"#),
        (r#""gradient_of":0"#, r#""gradient_of":5"#),
        (r#""origin":"accumulate""#, r#""origin":"zero_fill""#),
        (r#""origin":"seed""#, r#""origin":"accumulate""#),
        (r#""gradient_of":"w""#, r#""gradient_of":"nobody""#),
    ] {
        assert!(json.contains(from), "{json}");
        let mangled = Program::from_json(&json.replace(from, to))?;
        let _ = explain(&mangled, "w@GRAD").map(|story| assert!(story.contains("w@GRAD")));
        let _ = found.report(&mangled).to_string();
    }
    let _ = found.report(&Program::new()).to_string();
    Ok(())
}
