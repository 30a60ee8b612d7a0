//! The eager tape on random graphs: against programs, and against central differences.

use autobwd::{Backward, Builder, Error, ErrorKind, Executor, Result, Tensor, append_backward};
use proptest::strategy::Strategy;

use crate::{
    draw::{GIVEN, PARAMETERS, Recipe, check, draw, draw_on, recipes},
    numeric::{near, numeric},
};

/// Asserts that the tape finds the derivatives that the program has, to the bit; returns those.
fn derivatives_of_both(recipe: &Recipe) -> Result<Vec<(&'static str, Option<Tensor>)>> {
    let drawn = draw(recipe)?;
    let mut program = drawn.net.program().clone();
    let found = append_backward(&mut program, &drawn.loss, &Backward::default())?;
    let name = |var| program.name(var).to_string();
    let found: Vec<(String, String)> = found.pairs.iter().map(|(w, g)| (name(*w), name(*g))).collect();
    let fetches: Vec<&str> = found.iter().map(|(_, g)| g.as_str()).collect();
    let fetched = Executor::with_threads(1).run(&program, &mut drawn.scope()?, &[], &fetches)?;

    let tape = Builder::eager_with_threads(1);
    let (_, loss) = draw_on(&tape, recipe)?;
    if found.is_empty() {
        assert!(!loss.has_derivative());
    } else {
        loss.backward()?;
    }
    let mut derivatives = vec![];
    for (name, _) in PARAMETERS {
        let expected = found.iter().position(|(w, _)| w == name).map(|i| &fetched[i]);
        let own = tape.expr(name)?.gradient().ok().map(|d| d.tensor()).transpose()?;
        if own.as_ref() != expected {
            let text = format!("`{name}`: {own:?}, in the program {expected:?}\n{program}");
            return Err(Error::new(ErrorKind::Check, text));
        }
        derivatives.push((name, own));
    }
    Ok(derivatives)
}

#[test]
fn random_graphs_have_the_derivatives_of_their_programs() {
    // What is written to the same name again, or to a name that is cut, means something in programs alone.
    let recipes = recipes().prop_map(Recipe::with_new_names);
    check(300, recipes, |recipe: Recipe| derivatives_of_both(&recipe).map(drop));
}

#[test]
fn random_graphs_have_the_derivatives_of_central_differences() {
    // Differences see through what is detached.
    let recipes = recipes().prop_map(|recipe| recipe.with_new_names().without_detached());
    check(100, recipes, |recipe: Recipe| {
        let (drawn, derivatives) = (draw(&recipe)?, derivatives_of_both(&recipe)?);
        let (program, scope) = (drawn.net.program().clone(), drawn.scope()?);
        let names = derivatives.iter().map(|(name, _)| *name).chain(GIVEN);
        let at: Vec<(&str, Vec<f64>)> =
            names.filter_map(|name| Some((name, scope.get(name).ok()?.to_f64s()))).collect();
        let at: Vec<(&str, &[f64])> = at.iter().map(|(name, value)| (*name, &value[..])).collect();
        for (name, own) in &derivatives {
            let expected = numeric(&program, &at, &drawn.loss, name)?;
            let own = own.as_ref().map_or_else(|| vec![0.0; expected.len()], Tensor::to_f64s);
            if !near(&own, &expected, 1e-7) {
                let text = format!("`{name}`: {own:?}, by differences {expected:?}\n{program}");
                return Err(Error::new(ErrorKind::Check, text));
            }
        }
        Ok(())
    });
}
