//! The eager tape on random graphs: tape, program and net have the same gradients, which equal central differences.

use autobwd::{
    Backward, Error, ErrorKind, Executor, OpDesc, Program, Result, Tensor, Var, append_backward,
    net::{NamedOp, NetOp, Operator},
};
use proptest::strategy::Strategy;

use crate::support::{
    derivatives::{near, numeric},
    nets::{bits, by_net},
    random_programs::{Drawn, GIVEN, PARAMETERS, Recipe, check, draw, draw_on, recipes},
};

type Derivatives = Vec<Option<Tensor>>;

fn by_program(drawn: &Drawn) -> Result<Derivatives> {
    let mut program = drawn.net.program()?.clone();
    let found = append_backward(&mut program, &drawn.loss, &Backward::default())?;
    let fetches: Vec<&str> = found.pairs.iter().map(|(_, grad)| program.name(*grad)).collect();
    let fetched = Executor::with_threads(1).run(&program, &mut drawn.scope()?, &[], &fetches)?;
    let own = |name: &str| found.pairs.iter().position(|(var, _)| program.name(*var) == name);
    Ok(PARAMETERS.map(|(name, _)| own(name).map(|i| fetched[i].clone())).into())
}

fn by_tape(recipe: &Recipe) -> Result<Derivatives> {
    let tape = autobwd::tape::eager_with_threads(1);
    let (_, loss) = draw_on(&tape, recipe);
    if loss.requires_grad() {
        loss.backward()?;
    }
    let own = |name| tape.expr(name).gradient().ok().map(|d| d.tensor()).transpose();
    PARAMETERS.into_iter().map(|(name, _)| own(name)).collect()
}

/// The same operator with names.
fn named(program: &Program, op: &OpDesc) -> Operator {
    let names = |vars: &[Var]| vars.iter().map(|var| program.name(*var).to_string()).collect();
    let mut named = NamedOp::new(op.ty);
    named.inputs = op.inputs.iter().map(|(slot, vars)| (slot, names(vars))).collect();
    named.outputs = op.outputs.iter().map(|(slot, vars)| (slot, names(vars))).collect();
    named.attrs = op.attrs.clone();
    named.into()
}

/// The same operators as a tree, with some sequences as nested nets.
fn tree(drawn: &Drawn, picks: &[usize]) -> Result<Operator> {
    let program = drawn.net.program()?;
    let mut ops: Vec<Operator> = program.root().ops.iter().map(|op| named(&program, op)).collect();
    for (i, pick) in picks.iter().enumerate() {
        let from = pick % ops.len();
        let to = from + 1 + pick / ops.len() % (ops.len() - from);
        let inner: Vec<Operator> = ops.drain(from..to).collect();
        ops.insert(from, NetOp::new(format!("net{i}"), inner)?.into());
    }
    Ok(NetOp::new("net", ops)?.returning([drawn.loss.as_str()])?.into())
}

fn of_net(drawn: &Drawn, picks: &[usize]) -> Result<Derivatives> {
    let (program, mut scope) = (drawn.net.program()?, drawn.scope()?);
    let loss = Executor::with_threads(1).run(&program, &mut scope.clone(), &[], &[&drawn.loss])?.remove(0);
    scope.set(&format!("{}@GRAD", drawn.loss), Tensor::from_vec(loss.dims(), vec![1.0])?);
    let stopped = program.root().vars.iter().filter(|(_, desc)| desc.stop_gradient);
    let used =
        |var: &Var| program.root().ops.iter().any(|op| op.reads().chain(op.writes()).any(|v| v == *var));
    let no_grad: Vec<String> =
        stopped.filter(|(var, _)| used(var)).map(|(var, _)| program.name(*var).to_string()).collect();
    by_net(&tree(drawn, picks)?, &no_grad, scope, &PARAMETERS.map(|(name, _)| name), false)
}

/// The gradients by parameter from tape, program and net, which are the same to the bit.
fn derivatives(recipe: &Recipe) -> Result<Derivatives> {
    let drawn = draw(recipe);
    let (program, tape) = (by_program(&drawn)?, by_tape(recipe)?);
    let net = of_net(&drawn, &recipe.picks[1..5])?;
    for (found, by) in [(&tape, "the tape"), (&net, "a net")] {
        let known = |all: &Derivatives| -> Vec<_> { all.iter().map(|d| d.as_ref().map(bits)).collect() };
        if known(found) != known(&program) {
            let text = format!("by {by} {found:?}, by the program {program:?}\n{}", drawn.net.program()?);
            return Err(Error::new(ErrorKind::Check, text));
        }
    }
    Ok(program)
}

#[test]
fn tape_program_and_net_have_equal_gradients() {
    // Repeated writes, and writes to names that are cut, exist in programs only.
    let recipes = recipes().prop_map(Recipe::with_new_names);
    check(300, recipes, |recipe: Recipe| derivatives(&recipe).map(drop));
}

#[test]
fn tape_program_and_net_equal_central_differences() {
    // Differences do not stop at detached values.
    let recipes = recipes().prop_map(|recipe| recipe.with_new_names().without_detached());
    check(100, recipes, |recipe: Recipe| {
        let (drawn, derivatives) = (draw(&recipe), derivatives(&recipe)?);
        let (program, scope) = (drawn.net.program()?.clone(), drawn.scope()?);
        let names = PARAMETERS.map(|(name, _)| name);
        let at: Vec<(&str, Vec<f64>)> = names
            .into_iter()
            .chain(GIVEN)
            .filter_map(|name| Some((name, scope.get(name).ok()?.to_f64s())))
            .collect();
        let at: Vec<(&str, &[f64])> = at.iter().map(|(name, value)| (*name, &value[..])).collect();
        for (name, own) in names.iter().zip(&derivatives) {
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
