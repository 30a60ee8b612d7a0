//! Gradient operators, a flat list, as a tree: the gradients of a net's operators are a net.

use rustc_hash::FxHashMap;

use super::{NamedOp, NetOp, Operator, RnnGradOp};
use autobwd_core::{OpDesc, Origin, Program, Var};

/// Gradient operators of a scope. Its nodes, the operators that are not nets, are numbered in forward order; gradients
/// run from the last to the first.
pub(super) struct GradientTree {
    /// By node: its gradient operators.
    of_node: Vec<Vec<Operator>>,
    /// By node: the sums whose last part it writes; after the last node, the sums of upstream gradients alone.
    sums: Vec<Vec<GradientSum>>,
    /// Sums that are not in a net yet.
    pending: Vec<GradientSum>,
    /// The nodes before this one remain.
    next: usize,
}

/// A sum of contributions to a gradient.
struct GradientSum {
    ops: Vec<Operator>,
    /// The node that writes the first contribution.
    first: usize,
    /// The node that reads the gradient.
    reader: Option<usize>,
}

impl GradientTree {
    pub(super) fn new(
        emitted: Vec<OpDesc>,
        nodes: usize,
        mut rnns: FxHashMap<usize, RnnGradOp>,
        names: &Program,
    ) -> GradientTree {
        let (mut writer, mut reader): (FxHashMap<Var, usize>, FxHashMap<Var, usize>) = Default::default();
        for op in &emitted {
            match op.origin {
                Origin::Gradient { of } => {
                    op.writes().for_each(|var| _ = writer.insert(var, of));
                    op.reads().for_each(|var| _ = reader.entry(var).or_insert(of));
                }
                Origin::Seed => op.writes().for_each(|var| _ = writer.insert(var, nodes)),
                _ => {}
            }
        }
        let mut of_node: Vec<Vec<Operator>> = vec![vec![]; nodes];
        let mut sums: Vec<Vec<GradientSum>> = (0..=nodes).map(|_| vec![]).collect();
        // Zeros precede the operator that reads them.
        let mut zeros = vec![];
        for op in emitted {
            let named = || Operator::from(NamedOp::from_desc(&op, names));
            match op.origin {
                Origin::Seed => {}
                Origin::Gradient { of } => {
                    of_node[of].append(&mut zeros);
                    of_node[of].push(match rnns.remove(&of) {
                        None => named(),
                        Some(mut grad) => {
                            for (result, var) in grad.results.iter_mut().rev().zip(op.writes()) {
                                result.grad = names.name(var).into();
                            }
                            Operator::RnnGrad(grad.into())
                        }
                    });
                }
                Origin::Accumulate => {
                    let writers = || op.reads().filter_map(|part| writer.get(&part)).copied();
                    let (first, last) = (writers().max().unwrap_or(nodes), writers().min().unwrap_or(nodes));
                    let reader = op.writes().find_map(|grad| reader.get(&grad)).copied();
                    zeros.push(named());
                    sums[last].push(GradientSum { ops: std::mem::take(&mut zeros), first, reader });
                }
                _ => zeros.push(named()),
            }
        }
        GradientTree { of_node, sums, pending: vec![], next: nodes }
    }

    /// The gradients of a scope's operators in a list.
    pub(super) fn list_of(mut self, tree: &[Operator]) -> Vec<Operator> {
        let upstream = self.sums.pop().into_iter().flatten();
        let mut list: Vec<Operator> = upstream.flat_map(|sum| sum.ops).collect();
        list.append(&mut self.net(tree));
        list.extend(self.pending.into_iter().flat_map(|sum| sum.ops));
        list
    }

    /// The gradients of a net's operators in reverse. A sum follows its last part in the innermost net that contains
    /// all parts, or the part and the reader.
    fn net(&mut self, tree: &[Operator]) -> Vec<Operator> {
        let (end, mut start, mut list) = (self.next, self.next, vec![]);
        tree.iter().for_each(|op| op.each(&mut |_| start -= 1));
        for op in tree.iter().rev() {
            let is_net = matches!(op, Operator::Net(_));
            let mut own = if let Operator::Net(net) = op { self.net(net.ops()) } else { self.node() };
            match own.len() {
                0 | 1 if own.is_empty() || !is_net => list.append(&mut own),
                _ => list.push(NetOp::gradient(&op.label(), own).into()),
            }
            self.settle(start, end, &mut list);
        }
        list
    }

    /// The gradient operators of the next node, with sums of parts that are all from several of them.
    fn node(&mut self) -> Vec<Operator> {
        self.next -= 1;
        let mut own = std::mem::take(&mut self.of_node[self.next]);
        self.pending.append(&mut self.sums[self.next]);
        if own.len() > 1 {
            self.settle(self.next, self.next + 1, &mut own);
        }
        own
    }

    /// Appends the sums that belong to a net of these nodes.
    fn settle(&mut self, start: usize, end: usize, list: &mut Vec<Operator>) {
        let belongs = |sum: &mut GradientSum| sum.first < end || sum.reader.is_some_and(|node| node >= start);
        list.extend(self.pending.extract_if(.., belongs).flat_map(|sum| sum.ops));
    }
}
