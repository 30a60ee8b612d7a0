//! Gradient accumulation: every contribution to a gradient gets its own name, in the order in which contributions are
//! written, and a `sum` in that order is inserted before the first reader.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::grad_names::GradNames;
use autobwd_core::{__private::internals::*, BlockId, OpDesc, Program, Slots, Var, operators};

/// A gradient with several contributions, during the walk.
struct Contributions {
    grad: Var,
    /// Names of the contributions so far; the gradient itself while there is one.
    parts: Vec<Var>,
    /// What their names start with; empty while there is one.
    prefix: String,
    /// Whether the first contribution is an input of the block and keeps its name.
    given: bool,
    /// Operators that mention the gradient since it was first written.
    mentions: Vec<Mention>,
}

/// An operator of the walk, or one of the inserted sums.
#[derive(Clone, Copy, PartialEq)]
enum Mention {
    Op(usize),
    Sum(usize),
}

/// Renames repeated gradients to `w@GRAD@RENAME@0`, `@1`, … in the order in which they are written, and sums them
/// before the first operator that reads the gradient, or at the end.
///
/// In the gradient of sub-block `b`, they are called `w@GRAD@RENAME@block<b>@0`, …; `given` are gradients that are
/// inputs of the block and count as contributions.
pub fn accumulate(
    program: &mut Program,
    names: &mut GradNames,
    block: BlockId,
    given: &FxHashSet<Var>,
    emitted: Vec<OpDesc>,
) -> Vec<OpDesc> {
    let (repeated, of) = repeated(program.name_count(), names, given, &emitted);
    if repeated.is_empty() {
        return emitted;
    }
    let label = if block == BlockId::ROOT { String::new() } else { format!("block{}@", block.index()) };
    let mut walk =
        GradientAccumulator { program, names, label, ops: emitted, sums: vec![], repeated, of, at: 0 };
    while walk.at < walk.ops.len() {
        walk.op();
        walk.at += 1;
    }
    (0..walk.repeated.len()).for_each(|i| walk.collapse(i));
    between(walk.ops, walk.sums)
}

/// The gradients with several writers, in the order in which their names are mentioned first; by variable, one more
/// than the position among these.
fn repeated(
    name_count: usize,
    names: &GradNames,
    given: &FxHashSet<Var>,
    emitted: &[OpDesc],
) -> (Vec<Contributions>, Vec<u32>) {
    const SEVERAL: u32 = 2;
    let mut of = vec![0; name_count];
    let written = emitted.iter().flat_map(OpDesc::writes).filter(|v| names.base(*v).is_some());
    let written = written.chain(given.iter().copied());
    written.for_each(|v| of[v.index()] = SEVERAL.min(of[v.index()] + 1));
    if !of.contains(&SEVERAL) {
        return (vec![], vec![]);
    }
    of.iter_mut().for_each(|n| *n = if *n == SEVERAL { u32::MAX } else { 0 });
    // In a sub-block, the gradients of a loop-carried variable before and after the step share a name.
    let mut mentioned = vec![false; name_count];
    let mut repeated = vec![];
    for grad in emitted.iter().flat_map(|op| op.reads().chain(op.writes())) {
        let Some(seen) = mentioned.get_mut(names.shown(grad).index()) else { continue };
        if std::mem::replace(seen, true) {
            continue;
        }
        for grad in names.sharing(grad) {
            let Some(place) = of.get_mut(grad.index()).filter(|place| **place == u32::MAX) else { continue };
            let given = given.contains(&grad);
            let parts = if given { vec![grad] } else { vec![] };
            repeated.push(Contributions { grad, parts, prefix: String::new(), given, mentions: vec![] });
            *place = repeated.len() as u32;
        }
    }
    (repeated, of)
}

struct GradientAccumulator<'a> {
    program: &'a mut Program,
    names: &'a mut GradNames,
    label: String,
    ops: Vec<OpDesc>,
    /// Sums, and the operators they are inserted before.
    sums: Vec<(usize, OpDesc)>,
    repeated: Vec<Contributions>,
    of: Vec<u32>,
    at: usize,
}

impl GradientAccumulator<'_> {
    fn find(&self, grad: Var) -> Option<usize> {
        (*self.of.get(grad.index())? as usize).checked_sub(1)
    }

    /// A new name for a contribution.
    fn part(&mut self, i: usize) -> Var {
        let Contributions { grad, prefix, .. } = &mut self.repeated[i];
        if prefix.is_empty() {
            *prefix = [self.program.name(self.names.shown(*grad)), "@RENAME@", &self.label].concat();
        }
        let part = self.program.fresh_var(prefix);
        self.names.record_part(part, *grad);
        part
    }

    fn mention(&mut self, i: usize) {
        let (mentions, here) = (&mut self.repeated[i].mentions, Mention::Op(self.at));
        if mentions.last() != Some(&here) {
            mentions.push(here);
        }
    }

    /// A `sum` of the contributions so far, if there are several.
    fn collapse(&mut self, i: usize) {
        let seen = &mut self.repeated[i];
        if seen.parts.len() < 2 {
            return;
        }
        let parts = std::mem::replace(&mut seen.parts, vec![seen.grad]);
        seen.mentions = vec![Mention::Sum(self.sums.len())];
        let site = self.at.checked_sub(1).and_then(|before| self.ops[before].site);
        self.sums.push((self.at, OpDesc { site, ..operators::sum(parts, seen.grad) }));
    }

    fn op(&mut self) {
        let op = &self.ops[self.at];
        if op.reads().chain(op.writes()).all(|v| self.find(v).is_none()) {
            return;
        }
        let writes: SmallVec<[Var; 8]> = op.outputs.args().collect();
        let read: SmallVec<[usize; 8]> = op.reads().filter_map(|v| self.find(v)).collect();
        read.iter().for_each(|i| self.collapse(*i));
        read.iter().for_each(|i| self.mention(*i));
        for (position, grad) in writes.into_iter().enumerate() {
            let Some(i) = self.find(grad).filter(|i| !read.contains(i)) else { continue };
            let first = match self.repeated[i].parts[..] {
                [] => {
                    self.mention(i);
                    self.repeated[i].parts.push(grad);
                    continue;
                }
                [_] if !self.repeated[i].given => Some(self.part(i)),
                [..] => None,
            };
            if let Some(first) = first {
                for mention in std::mem::take(&mut self.repeated[i].mentions) {
                    let earlier = match mention {
                        // This operator may also have written it, in an earlier position.
                        Mention::Op(at) if at == self.at => {
                            replace(&mut self.ops[at].outputs, grad, first, position);
                            continue;
                        }
                        Mention::Op(at) => &mut self.ops[at],
                        Mention::Sum(k) => &mut self.sums[k].1,
                    };
                    replace(&mut earlier.inputs, grad, first, usize::MAX);
                    replace(&mut earlier.outputs, grad, first, usize::MAX);
                }
                self.repeated[i].parts = vec![first];
            }
            let part = self.part(i);
            if let Some(arg) = self.ops[self.at].outputs.args_mut().nth(position) {
                *arg = part;
            }
            self.repeated[i].parts.push(part);
        }
    }
}

/// Replaces a variable in the first `before` positions.
fn replace(slots: &mut Slots, from: Var, to: Var, before: usize) {
    slots.args_mut().take(before).filter(|v| **v == from).for_each(|v| *v = to);
}

/// Inserts each of `more` before the operator of that index.
pub(super) fn between(mut ops: Vec<OpDesc>, more: Vec<(usize, OpDesc)>) -> Vec<OpDesc> {
    // They are in order; often all of them come after the last operator.
    if more.first().is_none_or(|(before, _)| *before >= ops.len()) {
        ops.extend(more.into_iter().map(|(_, op)| op));
        return ops;
    }
    let mut all = Vec::with_capacity(ops.len() + more.len());
    let mut more = more.into_iter().peekable();
    for (i, op) in ops.into_iter().enumerate() {
        while let Some((_, op)) = more.next_if(|(before, _)| *before <= i) {
            all.push(op);
        }
        all.push(op);
    }
    all.extend(more.map(|(_, op)| op));
    all
}
