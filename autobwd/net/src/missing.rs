//! Explanation of a missing gradient, by the analysis of programs on the tree's operators as a flat program.

use rustc_hash::FxHashSet;

use super::{Operator, flat::FlatScope, reachability::unknown};
use autobwd_backward as backward;
use autobwd_core::{OpInfoMap, Result, Var, desc::GRAD};

/// The reason why [`backward`](super::backward()) with the same arguments computes no gradient of `name`: a sentence,
/// or `None` if it computes one. Steps over time count as one operator.
///
/// ```
/// use autobwd::net::{NetOp, Operator, missing};
/// use autobwd_ops::{activation::Tanh, elementwise::ElementwiseMul};
///
/// let net = Operator::from(NetOp::new("net", [
///     Operator::of(Tanh { x: "x", out: "h" }),
///     Operator::of(ElementwiseMul { x: "h", y: "w", out: "y", axis: -1 }),
/// ])?);
/// assert_eq!(missing(&net, &["h"], "w")?, None);
/// let why = missing(&net, &["h"], "x")?.expect("no gradient passes `h`");
/// assert!(why.starts_with("`x` has no gradient: its path to `y` ends at `h`, which is in the no-grad set"));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Those of [`backward`](super::backward()); a variable that does not occur in the tree outside of its steps.
pub fn missing(op: &Operator, no_grad_vars: &[&str], name: &str) -> Result<Option<String>> {
    let gradient = super::backward(op, no_grad_vars)?;
    let program = FlatScope::new(std::slice::from_ref(op)).program;
    let vars: Vec<Var> = program.root().ops.iter().flat_map(|op| op.reads().chain(op.writes())).collect();
    let var = program.find(name).ok_or_else(|| unknown(name, vars.iter().map(|v| program.name(*v))))?;
    let mut computed = FxHashSet::default();
    gradient.each(&mut |op| computed.extend(op.outputs()));
    let has_gradient = |v: &Var| computed.contains(&*format!("{}{GRAD}", program.name(*v)));
    let targets: Vec<Var> = op.outputs().into_iter().filter_map(|name| program.find(name)).collect();
    if has_gradient(&var) || targets.contains(&var) {
        return Ok(None);
    }
    let mut no_grad = vec![false; program.name_count()];
    no_grad_vars.iter().filter_map(|name| program.find(name)).for_each(|v| no_grad[v.index()] = true);
    let having = vars.iter().copied().filter(has_gradient);
    let found = backward::missing(&program, &targets, &no_grad, having, Some(OpInfoMap::linked()?), &[var]);
    Ok(found.first().map(ToString::to_string))
}
