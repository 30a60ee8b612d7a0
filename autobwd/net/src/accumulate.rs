//! Accumulation of several contributions to one gradient, in a tree of gradient operators.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{NamedOp, NetOp, Operator};
use autobwd_core::{__private, OpDesc, Program, Site, Var, operators};

/// A tree of gradient operators after accumulation.
pub(super) struct AccumulatedNet {
    pub(super) op: Operator,
    /// Names of the upstream gradients.
    pub(super) arrivals: Vec<String>,
    /// By gradient left open: its contributions.
    pub(super) parts: Vec<Vec<String>>,
}

/// Renames gradients with several writers, in any nested net, to `w@GRAD@RENAME@0`, `@1`, … in execution order, and
/// inserts a sum right after the last writer. No operator reads the gradient earlier: its reader is the gradient of the
/// variable's writer, which runs after them. Upstream gradients count as first contributions; contributions to
/// gradients left `open` are not summed.
pub(super) fn accumulate(
    names: &mut Program,
    is_gradient: impl Fn(Var) -> bool,
    op: Operator,
    arrivals: &[Var],
    open: &[Var],
) -> AccumulatedNet {
    let mut writers: FxHashMap<Var, usize> = FxHashMap::default();
    arrivals.iter().for_each(|grad| *writers.entry(*grad).or_default() += 1);
    let mut count = |op: &Operator| {
        for name in op.outputs() {
            *writers.entry(names.var(name)).or_default() += 1;
        }
    };
    op.each(&mut count);
    writers.retain(|grad, _| is_gradient(*grad));
    let open_set = open.iter().copied().collect();
    let mut walk = NetAccumulator { names, writers, parts: FxHashMap::default(), open: open_set };
    let (mut list, mut renamed) = (vec![], vec![]);
    for grad in arrivals {
        let mut name = walk.names.name(*grad).to_string();
        list.extend(walk.written(&mut name, None));
        renamed.push(name);
    }
    let (label, is_net) = (op.label(), matches!(op, Operator::Net(_)));
    let ops = if let Operator::Net(net) = op { net.ops } else { vec![op] };
    ops.into_iter().for_each(|op| walk.operator(op, &mut list));
    let op = match list.len() {
        0 => Operator::Nop,
        1 if !is_net => list.swap_remove(0),
        _ => NetOp::draft(label, list).completed().into(),
    };
    let parts = |grad| walk.parts.get(grad).into_iter().flatten();
    let parts = open.iter().map(|grad| parts(grad).map(|v| walk.names.name(*v).to_string()).collect());
    AccumulatedNet { op, arrivals: renamed, parts: parts.collect() }
}

struct NetAccumulator<'a> {
    names: &'a mut Program,
    /// By gradient: the number of remaining contributions.
    writers: FxHashMap<Var, usize>,
    /// By gradient: the contributions so far.
    parts: FxHashMap<Var, Vec<Var>>,
    open: FxHashSet<Var>,
}

impl NetAccumulator<'_> {
    /// Rebuilds an operator at the end of the list, followed by the sums that it completes.
    fn operator(&mut self, op: Operator, list: &mut Vec<Operator>) {
        let mut sums = vec![];
        let op = match op {
            Operator::Nop => return,
            Operator::Net(net) => {
                let (name, mut inner) = (net.name().to_string(), vec![]);
                net.ops.into_iter().for_each(|op| self.operator(op, &mut inner));
                NetOp::draft(name, inner).completed().into()
            }
            Operator::Op(mut op) => {
                let site = op.site;
                op.writes_mut().for_each(|name| sums.extend(self.written(name, site)));
                op.into()
            }
            Operator::RnnGrad(mut grad) => {
                grad.writes_mut().for_each(|name| sums.extend(self.written(name, None)));
                Operator::RnnGrad(grad)
            }
            rnn @ Operator::Rnn(_) => rnn,
        };
        list.push(op);
        list.append(&mut sums);
    }

    /// Renames an output if it is one of several contributions; returns the sum after the last one.
    fn written(&mut self, name: &mut String, site: Option<Site>) -> Option<Operator> {
        let grad = self.names.var(name);
        let left = self.writers.get_mut(&grad)?;
        *left -= 1;
        let (last, parts) = (*left == 0, self.parts.entry(grad).or_default());
        let part = if last && parts.is_empty() { grad } else { __private::part(self.names, grad, "") };
        parts.push(part);
        *name = self.names.name(part).into();
        if !last || parts.len() == 1 || self.open.contains(&grad) {
            return None;
        }
        let sum = OpDesc { site, ..operators::sum(parts.iter().copied(), grad) };
        Some(NamedOp::from_desc(&sum, self.names).into())
    }
}
