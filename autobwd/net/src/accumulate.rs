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
/// inserts their sum after the last writer: in the innermost net that contains all writers, or else the gradient's
/// reader. No operator reads the gradient earlier: its reader is the gradient of the variable's writer, which runs after
/// them. Upstream gradients count as first contributions; contributions to gradients left `open` are not summed.
pub(super) fn accumulate(
    names: &mut Program,
    is_gradient: impl Fn(Var) -> bool,
    op: Operator,
    arrivals: &[Var],
    open: &[Var],
) -> AccumulatedNet {
    let mut grads: FxHashMap<Var, NetContributions> = FxHashMap::default();
    arrivals.iter().for_each(|grad| grads.entry(*grad).or_default().left += 1);
    let mut at = 0;
    op.each(&mut |op| {
        for name in op.inputs() {
            grads.entry(names.var(name)).or_default().reader = Some(at);
        }
        for name in op.outputs() {
            grads.entry(names.var(name)).or_default().left += 1;
        }
        at += 1;
    });
    grads.retain(|grad, _| is_gradient(*grad));
    let open_set = open.iter().copied().collect();
    let mut walk = NetAccumulator { names, grads, open: open_set, sums: vec![], at: 0 };
    let mut renamed = vec![];
    for grad in arrivals {
        let mut name = walk.names.name(*grad).to_string();
        walk.written(&mut name, None);
        renamed.push(name);
    }
    let (label, is_net) = (op.label(), matches!(op, Operator::Net(_)));
    let mut list: Vec<Operator> = walk.sums.drain(..).map(|sum| sum.op).collect();
    list.append(&mut walk.list(if let Operator::Net(net) = op { net.ops } else { vec![op] }));
    let op = match list.len() {
        0 => Operator::Nop,
        1 if !is_net => list.swap_remove(0),
        _ => NetOp::draft(label, list).completed().into(),
    };
    let parts = |grad| walk.grads.get(grad).into_iter().flat_map(|known| &known.parts);
    let parts = open.iter().map(|grad| parts(grad).map(|v| walk.names.name(*v).to_string()).collect());
    AccumulatedNet { op, arrivals: renamed, parts: parts.collect() }
}

/// The contributions to a gradient. Operators are counted in execution order.
#[derive(Default)]
struct NetContributions {
    /// The number of remaining contributions.
    left: usize,
    /// The contributions so far.
    parts: Vec<Var>,
    /// The operator that writes the first of them.
    first: usize,
    /// The operator that reads the gradient.
    reader: Option<usize>,
}

/// A sum that is not in a net yet.
struct PendingSum {
    op: Operator,
    first: usize,
    reader: Option<usize>,
}

struct NetAccumulator<'a> {
    names: &'a mut Program,
    grads: FxHashMap<Var, NetContributions>,
    open: FxHashSet<Var>,
    sums: Vec<PendingSum>,
    /// The number of operators so far.
    at: usize,
}

impl NetAccumulator<'_> {
    /// The operators of a net with the sums that belong to it.
    fn list(&mut self, ops: Vec<Operator>) -> Vec<Operator> {
        let (start, mut end, mut list) = (self.at, self.at, vec![]);
        ops.iter().for_each(|op| op.each(&mut |_| end += 1));
        for op in ops {
            let op = self.operator(op);
            list.push(op);
            let within = |sum: &mut PendingSum| sum.first >= start || sum.reader.is_some_and(|at| at < end);
            list.extend(self.sums.extract_if(.., within).map(|sum| sum.op));
        }
        list
    }

    fn operator(&mut self, op: Operator) -> Operator {
        let op = match op {
            Operator::Net(net) => {
                let name = net.name().to_string();
                return NetOp::draft(name, self.list(net.ops)).completed().into();
            }
            Operator::Op(mut op) => {
                let site = op.site;
                op.writes_mut().for_each(|name| self.written(name, site));
                op.into()
            }
            Operator::RnnGrad(mut grad) => {
                grad.writes_mut().for_each(|name| self.written(name, None));
                Operator::RnnGrad(grad)
            }
            other @ (Operator::Nop | Operator::Rnn(_)) => other,
        };
        self.at += 1;
        op
    }

    /// Renames an output if it is one of several contributions; adds the sum after the last one.
    fn written(&mut self, name: &mut String, site: Option<Site>) {
        let grad = self.names.var(name);
        let Some(known) = self.grads.get_mut(&grad) else { return };
        known.left -= 1;
        if known.parts.is_empty() {
            known.first = self.at;
        }
        let only = known.left == 0 && known.parts.is_empty();
        let part = if only { grad } else { __private::part(self.names, grad, "") };
        known.parts.push(part);
        *name = self.names.name(part).into();
        if known.left == 0 && !only && !self.open.contains(&grad) {
            let sum = OpDesc { site, ..operators::sum(known.parts.iter().copied(), grad) };
            let op = NamedOp::from_desc(&sum, self.names).into();
            self.sums.push(PendingSum { op, first: known.first, reader: known.reader });
        }
    }
}
