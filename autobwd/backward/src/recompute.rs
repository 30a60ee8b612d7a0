//! Recomputation (rematerialisation): copies of forward operators, inserted before the gradients that read their
//! results.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::grad_names;
use autobwd_core::{
    Attr, AttrValue, DType, Dims, Error, ErrorKind, OpDesc, OpInfoMap, Origin, Program, Result, Slots, Var,
    VarDesc,
    operators::{Cast, Seed},
};

/// Forward operators recomputed at one position of the backward pass.
pub(super) struct RecomputeBatch {
    /// The position: before the gradients of the operators up to this one.
    before: usize,
    /// Indices, in program order.
    ops: Vec<usize>,
}

/// Operators with inserted copies.
#[derive(Default)]
pub(super) struct Recomputation {
    pub(super) ops: Vec<OpDesc>,
    /// The variables that the copies write.
    pub(super) vars: Vec<(Var, VarDesc)>,
    /// Forward variables that are recomputed.
    pub(super) again: Vec<Var>,
}

/// Inserts copies of forward operators before the gradients that read their results. A copy in batch `i` writes
/// `name.subprog_<i>`, which replaces the forward variable in later operators; variables in `held` keep their names.
pub(super) fn insert_recomputation(
    program: &mut Program,
    ops: Vec<OpDesc>,
    batches: &[RecomputeBatch],
    held: &[bool],
) -> Recomputation {
    if batches.is_empty() {
        return Recomputation { ops, ..Recomputation::default() };
    }
    let mut inserter =
        RecomputeInserter { program, held, alias: FxHashMap::default(), inserted: Recomputation::default() };
    let mut left = batches.iter().enumerate().peekable();
    for mut op in ops {
        if let Origin::Gradient { of } = op.origin {
            while let Some((i, batch)) = left.next_if(|(_, batch)| of <= batch.before) {
                inserter.copies(i, batch);
            }
        }
        inserter.substitute(&mut op.inputs);
        inserter.inserted.ops.push(op);
    }
    left.for_each(|(i, batch)| inserter.copies(i, batch));
    inserter.inserted
}

struct RecomputeInserter<'a> {
    program: &'a mut Program,
    /// By variable.
    held: &'a [bool],
    alias: FxHashMap<Var, Var>,
    inserted: Recomputation,
}

impl RecomputeInserter<'_> {
    fn substitute(&self, slots: &mut Slots) {
        slots.args_mut().for_each(|var| *var = self.alias.get(var).copied().unwrap_or(*var));
    }

    fn copies(&mut self, i: usize, batch: &RecomputeBatch) {
        for &of in &batch.ops {
            let mut copy = OpDesc { origin: Origin::Recompute { of }, ..self.program.root().ops[of].clone() };
            self.substitute(&mut copy.inputs);
            for var in copy.outputs.args_mut() {
                if *var != Var::EMPTY && !is(self.held, *var) {
                    *var = self.alias(*var, i);
                }
            }
            self.inserted.ops.push(copy);
        }
    }

    fn alias(&mut self, var: Var, i: usize) -> Var {
        if let Some(alias) = self.alias.get(&var) {
            return *alias;
        }
        let name = format!("{}.subprog_{i}", self.program.name(var));
        let alias = grad_names::undeclared(self.program, &name);
        self.alias.insert(var, alias);
        self.inserted.again.push(var);
        self.inserted.vars.extend(self.program.root().vars.get(&var).map(|desc| (alias, desc.clone())));
        alias
    }
}

fn is(set: &[bool], var: Var) -> bool {
    set.get(var.index()).copied().unwrap_or(false)
}

/// By operator: whether running it again, after the forward pass, gives the same values and has no side effects.
/// Operators with sub-blocks are not copied, so they are excluded.
pub(super) fn repeatable(program: &Program) -> Vec<bool> {
    let root = program.root();
    let mut writers = vec![(0, 0); program.name_count()];
    for (i, op) in root.ops.iter().enumerate() {
        op.writes().for_each(|v| writers[v.index()] = (writers[v.index()].0 + 1, i));
    }
    let kept = |v: Var| root.vars.get(&v).is_some_and(|desc| desc.persistable);
    let own = |v: Var| writers[v.index()].0 == 1 && !kept(v);
    let stays = |v: Var, i: usize| writers[v.index()].0 == 0 || writers[v.index()].1 < i;
    let again = |(i, op): (usize, &OpDesc)| {
        op.attrs.blocks().next().is_none() && op.writes().all(own) && op.reads().all(|v| stays(v, i))
    };
    root.ops.iter().enumerate().map(again).collect()
}

/// Turns the seed attribute of every random operator on the path (used if slot `Seed` is empty) into a seed variable,
/// which is kept: the operator's copy also reads it.
///
/// # Errors
/// Unknown operators.
pub(super) fn seed(ops: &OpInfoMap, program: &mut Program, path: &mut Vec<usize>) -> Result<()> {
    let (mut seeded, mut moved) = (vec![], vec![]);
    let mut on_path = std::mem::take(path).into_iter().peekable();
    for (i, mut op) in std::mem::take(&mut program.root_mut().ops).into_iter().enumerate() {
        let on_path = on_path.next_if_eq(&i).is_some();
        if on_path && let Some(value) = own_seed(ops, &op)? {
            let name = program.fresh("seed");
            let var = program.fresh(&format!("{}.tmp", program.name(name)));
            program.root_mut().vars.insert(var, VarDesc::new(DType::I32, Dims::from([1])));
            path.push(seeded.len());
            seeded.push(OpDesc { site: op.site, ..Seed { out: var, seed: value }.into() });
            op.inputs.set("Seed", [var]);
            op.attrs.remove("seed");
            op.attrs.remove("fix_seed");
        }
        if on_path {
            path.push(seeded.len());
        }
        moved.push(seeded.len());
        seeded.push(op);
    }
    for op in &mut seeded {
        if let Origin::Gradient { of } | Origin::Recompute { of } = &mut op.origin {
            *of = moved.get(*of).copied().unwrap_or(*of);
        }
    }
    program.root_mut().ops = seeded;
    Ok(())
}

/// The seed that an operator has as an attribute.
fn own_seed(ops: &OpInfoMap, op: &OpDesc) -> Result<Option<i32>> {
    let schema = ops.get(&op.ty)?.schema();
    let attr = schema.attr("seed").filter(|_| schema.input("Seed").is_some());
    let attr = attr.filter(|_| op.inputs.get("Seed").is_empty());
    let seed = attr.and_then(|attr| op.attrs.get(attr.name).cloned().or_else(|| attr.default.map(|d| d())));
    seed.map(|seed| i32::from_attr(&seed).map_err(|text| Error::attr("seed", text))).transpose()
}

/// The segments between named checkpoints.
#[derive(Default)]
pub(super) struct CheckpointSegments {
    /// The last segment first.
    pub(super) batches: Vec<RecomputeBatch>,
    /// By variable: whether it is kept in memory for the backward pass.
    pub(super) held: Vec<bool>,
    /// Operators with sub-blocks, which are not copied.
    blocks: Vec<usize>,
}

impl CheckpointSegments {
    /// Makes loops save no step state; their gradients rerun them as a whole.
    ///
    /// # Errors
    /// Unknown operators.
    pub(super) fn run_loops_again(&self, ops: &OpInfoMap, program: &mut Program) -> Result<()> {
        for i in &self.blocks {
            let op = &mut program.root_mut().ops[*i];
            if ops.get(&op.ty)?.schema().attr(EVERY).is_some()
                && matches!(op.attrs.get(EVERY), None | Some(Attr::I32(0)))
            {
                op.attrs.set(EVERY, Attr::I32(i32::MAX));
            }
        }
        Ok(())
    }
}

/// The attribute for the number of steps per saved step.
const EVERY: &str = "checkpoint_every";

/// First and last position on the path of the reads of a variable, and of its writes.
#[derive(Clone, Copy, Default)]
struct Uses {
    reads: Option<(usize, usize)>,
    writes: Option<(usize, usize)>,
}

/// Cuts the path at the checkpoints. Values that cross a segment boundary are kept in memory; operators with other
/// outputs are recomputed.
pub(super) fn segments(program: &Program, path: &[usize], checkpoints: &[Var]) -> CheckpointSegments {
    let root = program.root();
    let op = |position: usize| &root.ops[path[position]];
    let mut uses = vec![Uses::default(); program.name_count()];
    for position in 0..path.len() {
        let note = |at: &mut Option<(usize, usize)>| {
            *at = Some((at.map_or(position, |(first, _)| first), position));
        };
        op(position).reads().for_each(|v| note(&mut uses[v.index()].reads));
        op(position).writes().for_each(|v| note(&mut uses[v.index()].writes));
    }
    let ranges = ranges(program, path, &uses, checkpoints);

    let repeatable = repeatable(program);
    let mut held = vec![false; program.name_count()];
    checkpoints.iter().for_each(|v| held[v.index()] = true);
    let mut blocks = vec![];
    for range in &ranges {
        for position in range.clone() {
            let by_name = op(position).attrs.blocks().next().is_some();
            if by_name {
                blocks.push(path[position]);
            }
            let kept = !repeatable[path[position]] || op(position).is::<Seed>();
            let later = |v: &Var| kept || uses[v.index()].reads.is_some_and(|(_, last)| last >= range.end);
            // A sub-block reads a variable by name, which a copy does not have.
            let earlier =
                |v: &Var| by_name || uses[v.index()].writes.is_some_and(|(first, _)| first < range.start);
            op(position).writes().filter(later).for_each(|v| held[v.index()] = true);
            op(position).reads().filter(earlier).for_each(|v| held[v.index()] = true);
        }
    }
    let batch = |range: &Range<usize>| {
        let again = |i: &usize| root.ops[*i].writes().any(|v| !held[v.index()]);
        RecomputeBatch {
            before: path[range.end - 1],
            ops: path[range.clone()].iter().copied().filter(again).collect(),
        }
    };
    CheckpointSegments { batches: ranges.iter().rev().map(batch).collect(), held, blocks }
}

/// Non-empty segments as positions on the path.
fn ranges(program: &Program, path: &[usize], uses: &[Uses], checkpoints: &[Var]) -> Vec<Range<usize>> {
    let written = |v: &Var| uses[v.index()].writes.map(|(_, last)| last);
    let mut cuts: Vec<Var> = checkpoints.to_vec();
    cuts.retain(|v| uses[v.index()].reads.is_some() || written(v).is_some());
    cuts.sort_by_key(|v| (written(v), *v));
    cuts.dedup();
    let mut ranges = vec![];
    if let [only] = cuts.as_slice() {
        ranges.extend(written(only).filter(|last| *last > 0).map(|last| 0..last + 1));
    }
    for pair in cuts.windows(2) {
        let first = uses[pair[0].index()].reads.map(|(first, _)| first);
        if let (Some(mut first), Some(last)) = (first, written(&pair[1]))
            && first < last
        {
            // Casts of parameters are not kept either.
            while first > 0 && casts_parameter(program, path[first - 1]) {
                first -= 1;
            }
            ranges.push(first..last + 1);
        }
    }
    match ranges.first().map(|range| range.start) {
        Some(start) if start > 0 => ranges.insert(0, 0..start),
        _ => {}
    }
    ranges
}

fn casts_parameter(program: &Program, index: usize) -> bool {
    let root = program.root();
    let kept = |v: Var| root.vars.get(&v).is_some_and(|desc| desc.persistable);
    root.ops[index].is::<Cast>() && root.ops[index].reads().all(kept)
}

/// The readers of the elements of forward values.
pub(super) struct ForwardReads {
    /// By variable: the operator that can recompute it.
    pub(super) writer: Vec<Option<usize>>,
    /// By operator of the program: its inputs.
    pub(super) reads: Vec<Vec<Var>>,
    /// In the order of the backward pass: operators, and the inputs of their gradients.
    pub(super) rules: Vec<(usize, Vec<Var>)>,
}

impl ForwardReads {
    /// Counts the operators of the backward pass that compute these gradients.
    pub(super) fn of(
        ops: &OpInfoMap,
        program: &Program,
        backward: &[OpDesc],
        grads: impl Iterator<Item = Var>,
    ) -> Result<ForwardReads> {
        let root = program.root();
        let mut needs =
            ForwardReads { writer: vec![None; program.name_count()], reads: vec![], rules: vec![] };
        for ((i, op), repeatable) in root.ops.iter().enumerate().zip(repeatable(program)) {
            if repeatable {
                op.writes().for_each(|v| needs.writer[v.index()] = Some(i));
            }
            needs.reads.push(ops.get(&op.ty)?.reads(op).collect());
        }
        let mut wanted: FxHashSet<Var> = grads.collect();
        for op in backward.iter().rev() {
            if !op.writes().any(|v| wanted.contains(&v)) {
                continue;
            }
            wanted.extend(op.reads());
            // A sub-block reads a variable by name, which a copy does not have.
            if op.attrs.blocks().next().is_some() {
                op.reads().for_each(|v| needs.writer[v.index()] = None);
            }
            let Origin::Gradient { of } = op.origin else { continue };
            let reads = ops.get(&op.ty)?.reads(op);
            match needs.rules.last_mut() {
                Some((last, vars)) if *last == of => vars.extend(reads),
                _ => needs.rules.push((of, reads.collect())),
            }
        }
        needs.rules.reverse();
        Ok(needs)
    }

    /// The operators that can recompute these variables.
    pub(super) fn writers<'a>(&'a self, vars: &'a [Var]) -> impl Iterator<Item = usize> + 'a {
        vars.iter().filter_map(|v| self.writer[v.index()])
    }

    /// By operator: whether it computes one of these variables.
    ///
    /// # Errors
    /// Unknown names; a variable that cannot be recomputed.
    pub(super) fn writers_of(&self, program: &Program, names: &[&str]) -> Result<Vec<bool>> {
        let mut again = vec![false; self.reads.len()];
        for name in names {
            let writer = self.writer[program.expect_var(name)?.index()].ok_or_else(|| {
                let text = format!(
                    "`{name}` cannot be recomputed: no operator computes it, its operator writes a variable of the \
                     scope, the gradient of a loop or branch reads it, or an operator overwrites it or one of its \
                     inputs"
                );
                Error::new(ErrorKind::Program, text)
            })?;
            again[writer] = true;
        }
        Ok(again)
    }

    /// Places each of the operators `again` right before the first gradient that reads its results.
    pub(super) fn batches(&self, again: &[bool]) -> Vec<RecomputeBatch> {
        let mut left = again.to_vec();
        let mut batches = vec![];
        for (before, vars) in &self.rules {
            let (mut ops, mut next) = (vec![], self.writers(vars).collect::<Vec<_>>());
            while let Some(op) = next.pop() {
                if std::mem::take(&mut left[op]) {
                    ops.push(op);
                    next.extend(self.writers(&self.reads[op]));
                }
            }
            if !ops.is_empty() {
                ops.sort_unstable();
                batches.push(RecomputeBatch { before: *before, ops });
            }
        }
        batches
    }
}
