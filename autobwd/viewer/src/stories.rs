//! What `explain` says about every gradient. Stories share most of their lines, which are kept once.

use autobwd_backward::explain;
use autobwd_core::{Origin, Program, Var};

use crate::{layout::gradients, texts::Texts};

/// The number of operators that all stories together may visit. An explanation visits all operators of the program, so
/// pages of more than some 2,000 operators have the stories of parameters' gradients, and of as many others as
/// possible.
const VISITS: usize = 2_000_000;

/// By variable: the lines of its story. Parameters without gradient also have one, if the program has a backward
/// pass.
pub(crate) fn stories(program: &Program, texts: &mut Texts) -> Vec<(Var, Vec<usize>)> {
    let root = program.root();
    let mut of_parameter = vec![false; program.name_count()];
    program
        .parameters()
        .filter_map(|v| program.gradient_name(v))
        .for_each(|v| of_parameter[v.index()] = true);
    let mut asked: Vec<(Var, String)> =
        gradients(program).into_iter().map(|v| (v, program.name(v).to_string())).collect();
    asked.sort_by_key(|(v, _)| !of_parameter[v.index()]);
    if root.ops.iter().any(|op| op.origin == Origin::Seed) {
        let mut written = vec![false; program.name_count()];
        asked.iter().for_each(|(v, _)| written[v.index()] = true);
        let has_gradient =
            |v: &Var| program.gradient_name(*v).is_some_and(|gradient| written[gradient.index()]);
        let without = program.parameters().filter(|v| !has_gradient(v));
        let without: Vec<_> = without.map(|v| (v, format!("{}@GRAD", program.name(v)))).collect();
        asked.splice(0..0, without);
    }
    let visits: usize = program.blocks().iter().map(|block| block.ops.len()).sum();
    asked.truncate(VISITS / visits.max(1));
    // A variable without a story is one that `explain` has an error for.
    let story = |(var, name): &(Var, String)| Some((*var, explain(program, name).ok()?));
    let lines = |(var, story): (Var, String)| (var, story.split('\n').map(|line| texts.id(line)).collect());
    asked.iter().filter_map(story).map(lines).collect()
}
