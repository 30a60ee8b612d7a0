//! Why a parameter has no gradient.

use std::{collections::VecDeque, fmt};

use crate::{GradKind, OpInfoMap, Program, Site, Var};

/// A parameter without gradient, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The parameter.
    pub var: Var,
    /// Its name.
    pub name: String,
    /// Where its path to the loss ends.
    pub cut: Cut,
}

/// Where the path from a parameter to the loss ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Cut {
    /// No chain of operators leads from it to the loss.
    NoPath,
    /// No gradient flows through a variable: it is marked `stop_gradient`, or in the no-grad set.
    NoGradVar {
        /// Its name.
        name: String,
    },
    /// The gradient of an operator is zero.
    Operator {
        /// Its type.
        ty: &'static str,
        /// The line that added it.
        site: Option<Site>,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.cut {
            Cut::NoPath => write!(f, "`{name}` has no gradient: the loss does not depend on it"),
            Cut::NoGradVar { name: cut } if cut == name => {
                write!(f, "`{name}` has no gradient: it is in the no-grad set or marked `stop_gradient`")
            }
            Cut::NoGradVar { name: cut } => write!(
                f,
                "`{name}` has no gradient: the path to the loss ends at `{cut}`, which is in the no-grad set, marked \
                 `stop_gradient` or not floating point"
            ),
            Cut::Operator { ty, site } => {
                write!(
                    f,
                    "`{name}` has no gradient: the path to the loss ends at operator `{ty}`, whose gradient is zero"
                )?;
                site.map_or(Ok(()), |site| write!(f, " (added at {site})"))
            }
        }
    }
}

/// Follows a variable towards the targets, and names the first place where its gradient ends.
pub(super) fn why(
    ops: &OpInfoMap,
    program: &Program,
    no_grad: &[bool],
    targets: &[Var],
    var: Var,
) -> Missing {
    let missing = |cut| Missing { var, name: program.name(var).to_string(), cut };
    let block = program.root();
    // What the targets depend on, cuts or not.
    let mut leads = vec![false; program.name_count()];
    targets.iter().for_each(|v| leads[v.index()] = true);
    for op in block.ops.iter().rev() {
        if op.writes().any(|v| leads[v.index()]) {
            op.reads().for_each(|v| leads[v.index()] = true);
        }
    }
    if !leads[var.index()] {
        return missing(Cut::NoPath);
    }
    let is_cut = |v: Var| {
        no_grad.get(v.index()).copied().unwrap_or(false)
            || block.vars.get(&v).is_some_and(|desc| !desc.dtype.is_float())
    };
    let mut seen = vec![false; program.name_count()];
    let mut queue = VecDeque::from([var]);
    while let Some(at) = queue.pop_front() {
        if is_cut(at) {
            return missing(Cut::NoGradVar { name: program.name(at).to_string() });
        }
        for op in block.ops.iter().filter(|op| op.reads().any(|v| v == at)) {
            let zero = ops.get(&op.ty).is_ok_and(|info| matches!(info.grad_kind(), GradKind::Zero));
            for out in op.writes().filter(|v| leads[v.index()]) {
                if zero {
                    return missing(Cut::Operator { ty: op.ty.as_str(), site: op.site });
                }
                if !std::mem::replace(&mut seen[out.index()], true) {
                    queue.push_back(out);
                }
            }
        }
    }
    // Every operator on the way passes gradients on, but none arrives: some rule leaves this input out.
    let reader =
        block.ops.iter().find(|op| op.reads().any(|v| v == var) && op.writes().any(|v| leads[v.index()]));
    missing(reader.map_or(Cut::NoPath, |op| Cut::Operator { ty: op.ty.as_str(), site: op.site }))
}
