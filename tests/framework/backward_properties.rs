//! Properties of backward passes over random programs: gradients equal those of a plain differentiator and central
//! differences, programs stay valid in any order of calls, and failing calls change nothing.

use std::collections::{HashMap, HashSet};

use autobwd::{
    Arg, Backward, Builder, ErrorKind, Executor, OpDesc, Program, Result, Var, append_backward,
    backward::{GradientOptions, hessian_vector_product},
    emit, gradients,
    program::Origin,
    verify,
};
use autobwd_ops::{
    Math,
    activation::{Square, Tanh},
};

use crate::support::{
    derivatives::{near, parameter},
    random_programs::{Drawn, GIVEN, PARAMETERS, Recipe, check, draw, recipes},
    reference_differentiator::{Matrix, Tape},
};

/// The arguments of `gradients`, as names.
struct Question<'a> {
    targets: Vec<&'a str>,
    given: Option<Vec<Option<&'a str>>>,
    inputs: Vec<&'a str>,
    no_grad: Vec<&'a str>,
}

/// Draws targets, some of them repeated, on each other's path or with given gradients; parameters and some values as
/// inputs; and some names for the no-grad set.
fn question<'a>(drawn: &'a Drawn, picks: &[usize]) -> Question<'a> {
    let values: Vec<&str> = drawn.values.iter().map(String::as_str).collect();
    let one_of = |i: usize, n: usize| picks[i] % n;
    let value = |i: usize| values[one_of(i, values.len())];
    let targets: Vec<&str> = (0..1 + one_of(0, 3)).map(|i| value(i + 1)).collect();
    let given = |i: usize| [None, Some(GIVEN[0]), Some(GIVEN[1])][one_of(i + 1, 3)];
    let given = (one_of(4, 2) == 0).then(|| (0..targets.len()).map(given).collect());
    let mut inputs: Vec<&str> = PARAMETERS.iter().map(|(name, _)| *name).collect();
    inputs.extend([value(5), value(6)]);
    let mut no_grad = vec![];
    if one_of(7, 2) == 0 {
        no_grad.push(value(8));
    }
    if one_of(9, 4) == 0 {
        no_grad.push("row");
    }
    Question { targets, given, inputs, no_grad }
}

impl Question<'_> {
    fn ask(&self, program: &mut Program) -> Result<Vec<Option<Var>>> {
        let target_gradients = self.given.as_deref();
        let options = GradientOptions { target_gradients, no_grad: &self.no_grad, ops: None };
        Ok(gradients(program, &self.targets, &self.inputs, &options)?.entries())
    }

    /// The answer of the plain differentiator.
    fn plain(&self, program: &Program, tape: &Tape<'_>) -> Vec<Vec<f64>> {
        let cut = cut(program, &self.no_grad);
        let weight = |i: usize, target: &str| match self.given.as_ref().and_then(|given| given[i]) {
            Some(name) => tape.value(name).clone(),
            None => Matrix::ones(tape.value(target)),
        };
        let targets: Vec<_> =
            self.targets.iter().enumerate().map(|(i, target)| (*target, weight(i, target))).collect();
        let zero = |name: &&str| cut.contains(&program.find(name).unwrap());
        let grads = tape.gradients(&targets, &self.inputs, &cut);
        let grads = self.inputs.iter().zip(grads);
        grads.map(|(name, grad)| if zero(name) { vec![0.0; grad.len()] } else { grad }).collect()
    }
}

/// Variables without gradient flow.
fn cut(program: &Program, no_grad: &[&str]) -> HashSet<Var> {
    let stopped = program.root().vars.iter().filter(|(_, desc)| desc.stop_gradient).map(|(var, _)| *var);
    stopped.chain(no_grad.iter().map(|name| program.find(name).unwrap())).collect()
}

/// Initial values of the parameters.
fn leaves(drawn: &Drawn) -> Result<HashMap<String, Matrix>> {
    let scope = drawn.scope()?;
    let all = PARAMETERS.iter().map(|(name, _)| *name).chain(GIVEN);
    all.map(|name| Ok((name.to_string(), Matrix::new(scope.get(name)?.dims(), scope.get(name)?.to_f64s()))))
        .collect()
}

/// Compares gradients (0 if absent) with expected values.
fn compare(
    drawn: &Drawn,
    program: &Program,
    asked: &[&str],
    found: &[Option<Var>],
    expected: &[Vec<f64>],
    tolerance: f64,
) -> Result<()> {
    let names: Vec<&str> = found.iter().flatten().map(|var| program.name(*var)).collect();
    let fetched = Executor::with_threads(1).run(program, &mut drawn.scope()?, &[], &names)?;
    let mut fetched = fetched.iter();
    for ((name, found), expected) in asked.iter().zip(found).zip(expected) {
        let built = match found {
            Some(_) => fetched.next().map(|t| t.to_f64s()).unwrap_or_default(),
            None => vec![0.0; expected.len()],
        };
        if !near(&built, expected, tolerance) {
            return Err(fault(format!("`{name}` has {built:?}, expected {expected:?}\n{program}")));
        }
    }
    Ok(())
}

fn fault(text: String) -> autobwd::Error {
    autobwd::Error::new(ErrorKind::Check, text)
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(fault(text())) }
}

#[test]
fn gradients_equal_the_reference_differentiator() {
    check(500, recipes(), |recipe: Recipe| {
        let drawn = draw(&recipe);
        let forward = drawn.net.program()?.clone();
        let at = leaves(&drawn)?;
        let tape = Tape::new(&forward, &at, None);
        // Two calls for one program; the first result is still valid after the second.
        let (one, two) = (question(&drawn, &recipe.picks), question(&drawn, &recipe.picks[10..]));
        let mut program = forward.clone();
        let first = one.ask(&mut program)?;
        let second = two.ask(&mut program)?;
        verify(&program)?;
        for (question, answer) in [(&one, &first), (&two, &second)] {
            compare(&drawn, &program, &question.inputs, answer, &question.plain(&forward, &tape), 1e-10)?;
        }
        Ok(())
    });
}

#[test]
fn loss_gradients_equal_the_reference_differentiator() {
    check(200, recipes(), |recipe: Recipe| {
        let drawn = draw(&recipe);
        let forward = drawn.net.program()?.clone();
        let mut program = forward.clone();
        let no_grad: Vec<&str> = question(&drawn, &recipe.picks).no_grad;
        let backward = Backward { no_grad: &no_grad, ..Default::default() };
        let found = append_backward(&mut program, &drawn.loss, &backward)?;
        let at = leaves(&drawn)?;
        let tape = Tape::new(&forward, &at, None);
        let loss = (drawn.loss.as_str(), Matrix::ones(tape.value(&drawn.loss)));
        let names: Vec<&str> = PARAMETERS.iter().map(|(name, _)| *name).collect();
        let asked: Vec<Var> = names.iter().map(|name| forward.find(name).unwrap()).collect();
        let grad = |var: &Var| found.pairs.iter().find(|(v, _)| v == var).map(|(_, grad)| *grad);
        let grads: Vec<Option<Var>> = asked.iter().map(grad).collect();
        let cut = cut(&forward, &no_grad);
        let mut expected = tape.gradients(&[loss], &names, &cut);
        for (var, grad) in asked.iter().zip(&mut expected).filter(|(var, _)| cut.contains(var)) {
            ensure(!found.pairs.iter().any(|(v, _)| v == var), || format!("{found:?}"))?;
            grad.fill(0.0);
        }
        compare(&drawn, &program, &names, &grads, &expected, 1e-10)
    });
}

#[test]
fn reference_differentiator_equals_central_differences() {
    check(100, recipes(), |recipe: Recipe| {
        let drawn = draw(&recipe);
        let forward = drawn.net.program()?.clone();
        let at = leaves(&drawn)?;
        let tape = Tape::new(&forward, &at, None);
        let question = question(&drawn, &recipe.picks);
        let cut = cut(&forward, &question.no_grad);
        let plain = question.plain(&forward, &tape);
        for (name, grad) in question.inputs.iter().zip(&plain).take(PARAMETERS.len()) {
            let var = forward.find(name).unwrap();
            if cut.contains(&var) || !tape.is_given(var) {
                continue;
            }
            for (k, own) in grad.iter().enumerate() {
                // Variables without gradient keep their values.
                let side = |step: f64| {
                    let mut at = at.clone();
                    at.get_mut(*name).unwrap().data[k] += step;
                    let moved = Tape::new(&forward, &at, Some((&tape, &cut)));
                    let dot = |i: usize| {
                        let target = question.targets[i];
                        let weight =
                            question.given.as_ref().and_then(|given| given[i]).map(|w| tape.value(w));
                        let value = moved.value(target);
                        let weighted = |(k, x): (usize, &f64)| weight.map_or(*x, |w| w.data[k] * x);
                        value.data.iter().enumerate().map(weighted).sum::<f64>()
                    };
                    let free = |i: &usize| !cut.contains(&forward.find(question.targets[*i]).unwrap());
                    (0..question.targets.len()).filter(free).map(dot).sum::<f64>()
                };
                let numeric = (side(1e-5) - side(-1e-5)) / 2e-5;
                ensure(near(&[*own], &[numeric], 1e-8), || {
                    format!("`{name}`, element {k}: {} and {numeric}\n{forward}", own)
                })?;
            }
        }
        Ok(())
    });
}

#[test]
fn backward_part_adds_and_changes_nothing() {
    check(200, recipes(), |recipe: Recipe| {
        let drawn = draw(&recipe);
        let mut program = drawn.net.program()?.clone();
        for picks in [&recipe.picks[..], &recipe.picks[10..]] {
            let before = program.clone();
            question(&drawn, picks).ask(&mut program)?;
            // Existing operators are kept in order; only copies are inserted between them.
            let mut old = before.root().ops.iter().peekable();
            let mut written = HashSet::new();
            for op in &program.root().ops {
                let same = |o: &&OpDesc| o.ty == op.ty && o.inputs == op.inputs && o.outputs == op.outputs;
                if old.next_if(same).is_some() {
                    continue;
                }
                let behind = old.peek().is_none();
                ensure(behind || op.origin == Origin::Kept, || format!("{op:?} is between\n{program}"))?;
                for var in op.writes() {
                    let new = !before.root().vars.contains_key(&var);
                    let in_place = op.reads().any(|v| v == var);
                    ensure(new && (written.insert(var) || in_place), || {
                        format!("`{}` is written to\n{program}", program.name(var))
                    })?;
                }
            }
            let (added, there) =
                (program.root().ops.len() - before.root().ops.len(), before.root().ops.len());
            ensure(added <= 4 * there + 3, || format!("{added} operators for {there}\n{program}"))?;
        }
        // The same calls give the same results.
        let again = draw(&recipe);
        let mut same = again.net.program()?.clone();
        for picks in [&recipe.picks[..], &recipe.picks[10..]] {
            question(&again, picks).ask(&mut same)?;
        }
        ensure(same.to_json() == program.to_json(), || format!("{program}\nand\n{same}"))
    });
}

#[test]
fn call_that_fails_leaves_no_trace() {
    check(100, recipes(), |recipe: Recipe| {
        let drawn = draw(&recipe);
        let mut program = drawn.net.program()?.clone();
        let before = program.to_json();
        let question = question(&drawn, &recipe.picks);
        let inputs = [&question.inputs[..], &["unknown"]].concat();
        let wrong = vec![Some("row"); question.targets.len()];
        let missing = Backward { parameters: Some(&["g"]), ..Default::default() };
        for failed in [
            gradients(&mut program, &question.targets, &inputs, &Default::default()).map(drop),
            gradients(
                &mut program,
                &question.targets,
                &["w"],
                &GradientOptions { target_gradients: Some(&wrong), ..Default::default() },
            )
            .map(drop),
            append_backward(&mut program, &drawn.values[0], &Backward::default()).map(drop),
            append_backward(&mut program, &drawn.loss, &missing).map(drop),
        ] {
            ensure(failed.is_err() && program.to_json() == before, || format!("{failed:?}\n{program}"))?;
        }
        let mut fresh = drawn.net.program()?.clone();
        for program in [&mut program, &mut fresh] {
            question.ask(program)?;
        }
        ensure(program.to_json() == fresh.to_json(), || format!("{program}\nand\n{fresh}"))
    });
}

#[test]
fn products_with_hessians_are_differences_of_plain_gradients() {
    check(100, recipes(), |recipe: Recipe| {
        let drawn = draw(&recipe);
        let forward = drawn.net.program()?.clone();
        let (at, names) = (leaves(&drawn)?, ["v", "w"]);
        let tape = Tape::new(&forward, &at, None);
        let cut = cut(&forward, &[]);
        let gradient = |step: f64| {
            let mut at = at.clone();
            for (name, along) in names.iter().zip(GIVEN) {
                let along = at[along].data.clone();
                let moved = at.get_mut(*name).unwrap().data.iter_mut().zip(along);
                moved.for_each(|(x, d)| *x += step * d);
            }
            let moved = Tape::new(&forward, &at, Some((&tape, &cut)));
            let loss = (drawn.loss.as_str(), Matrix::ones(tape.value(&drawn.loss)));
            moved.gradients(&[loss], &names, &cut)
        };
        if names.iter().any(|name| !tape.is_given(forward.find(name).unwrap())) {
            return Ok(());
        }
        let (above, below) = (gradient(1e-5), gradient(-1e-5));
        let difference = |i: usize| above[i].iter().zip(&below[i]).map(|(a, b)| (a - b) / 2e-5).collect();
        let expected: Vec<Vec<f64>> = (0..names.len()).map(difference).collect();
        let mut program = forward.clone();
        let inputs: Vec<_> = names.iter().copied().zip(GIVEN).collect();
        let found = hessian_vector_product(&mut program, &drawn.loss, &inputs, &Default::default())?;
        verify(&program)?;
        compare(&drawn, &program, &names, &found, &expected, 1e-8)
    });
}

/// The number of operators that two calls add to a program with `times` repetitions of a pattern with sums, zero fills,
/// overwritten values and in-place operators.
fn added(times: usize) -> Result<usize> {
    let net = Builder::new();
    let h = parameter(&net, "w", &[4]).tanh();
    for _ in 0..times {
        let pieces = (&h + h.sin()).split(&[1, 3], 0);
        emit(Square { x: (&h).into(), out: Arg::from(&h) }).out.check()?;
        let new = &h * pieces[1].sum(&[]);
        emit(Tanh { x: (&new).into(), out: Arg::from(&h) }).out.check()?;
    }
    let loss = h.mean().name();
    let mut program = net.program()?.clone();
    for _ in 0..2 {
        append_backward(&mut program, &loss, &Backward::default())?;
    }
    Ok(program.root().ops.len() - net.program()?.root().ops.len())
}

#[test]
fn backward_parts_grow_with_their_programs() -> Result<()> {
    let [one, two, three] = [added(50)?, added(100)?, added(150)?];
    assert_eq!(two - one, three - two);
    Ok(())
}
