//! Explanation of a missing gradient, by the analysis of programs on the tree's operators as a flat program.

use rustc_hash::FxHashSet;

use super::{Operator, RnnOp};
use autobwd_backward as backward;
use autobwd_core::{
    __private::did_you_mean, BlockId, Error, ErrorKind, Name, OpDesc, OpInfoMap, Program, Result, Var,
    desc::GRAD,
};

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
    let ops = OpInfoMap::linked()?;
    let gradient = super::backward(op, no_grad_vars)?;
    let program = flat(op);
    let vars: Vec<Var> = program.root().ops.iter().flat_map(|op| op.reads().chain(op.writes())).collect();
    let Some(var) = program.find(name) else {
        let hint = did_you_mean(name, vars.iter().map(|v| program.name(*v)));
        return Err(Error::new(ErrorKind::UnknownVar, format!("the net has no variable `{name}`{hint}")));
    };
    let mut computed = FxHashSet::default();
    gradient.each(&mut |op| computed.extend(op.outputs()));
    let has_gradient = |v: &Var| computed.contains(&*format!("{}{GRAD}", program.name(*v)));
    let targets: Vec<Var> = op.outputs().into_iter().filter_map(|name| program.find(name)).collect();
    if has_gradient(&var) || targets.contains(&var) {
        return Ok(None);
    }
    let mut no_grad = vec![false; program.name_count()];
    vars.iter().for_each(|v| no_grad[v.index()] = no_grad_vars.contains(&program.name(*v)));
    let having = vars.iter().copied().filter(has_gradient);
    let found = backward::missing(&program, &targets, &no_grad, having, Some(ops), &[var]);
    Ok(found.first().map(ToString::to_string))
}

/// The operators of a tree in execution order, steps over time as one operator each.
fn flat(tree: &Operator) -> Program {
    let (mut program, mut ops) = (Program::new(), vec![]);
    tree.each(&mut |op| {
        let mut var = |name: &str| program.var(name);
        ops.extend(match op {
            Operator::Nop | Operator::Net(_) => None,
            Operator::Op(op) => Some(op.desc(&mut var)),
            Operator::Rnn(rnn) => Some(single(rnn, &mut var)),
            Operator::RnnGrad(grad) => {
                let desc = OpDesc::new(Name::new(&op.label()));
                let inputs: Vec<Var> = grad.inputs().into_iter().map(&mut var).collect();
                let outputs: Vec<Var> = grad.outputs().into_iter().map(&mut var).collect();
                Some(desc.input("input", inputs).output("output", outputs))
            }
        });
    });
    if let Some(block) = program.block_mut(BlockId::ROOT) {
        block.ops = ops;
    }
    program
}

fn single(rnn: &RnnOp, var: &mut dyn FnMut(&str) -> Var) -> OpDesc {
    let sequences: Vec<Var> = rnn.step_inputs().iter().map(|link| var(&link.outer)).collect();
    let boots: Vec<Var> = rnn.memories().iter().map(|memory| var(&memory.boot)).collect();
    let shared: Vec<Var> = rnn.shared().into_iter().map(&mut *var).collect();
    let outputs: Vec<Var> = rnn.outputs().into_iter().map(var).collect();
    let op = OpDesc::new(Name::new(rnn.name())).input("step input", sequences).input("memory", boots);
    op.input("shared", shared).output("step output", outputs)
}
