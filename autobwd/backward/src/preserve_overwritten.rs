//! Preservation of overwritten values: forward values that the backward pass reads and a later operator overwrites are
//! copied, right before the operator that overwrites them.

use rustc_hash::FxHashMap;

use crate::accumulate::between;
use autobwd_core::{
    __private::internals::*, BlockId, Error, ErrorKind, Op, OpDesc, OpInfoMap, Origin, Program, Result, Var,
    VarDesc, VarKind, Vars, operators::Assign,
};

/// The versions of variables during a walk backwards through a program. A version that is overwritten later is
/// represented by a stand-in until its readers are known.
pub(super) struct ValueVersions {
    /// By variable: one more than the index of the next operator that writes it, or 0.
    overwritten: Vec<u32>,
    /// The stand-in for the current version of a variable.
    stand_ins: FxHashMap<Var, Var>,
    /// By stand-in: the variable, and the operator before which it has that value.
    olds: Vec<(Var, usize)>,
    /// By loop-carried variable of a sub-block: the first operator that overwrites it. The version before keeps the
    /// variable's own name.
    starts: FxHashMap<Var, usize>,
}

impl ValueVersions {
    /// The versions at the end of the program.
    pub(super) fn new(program: &Program) -> ValueVersions {
        let overwritten = vec![0; program.name_count()];
        let (stand_ins, starts) = Default::default();
        ValueVersions { overwritten, stand_ins, olds: vec![], starts }
    }

    /// The versions at the end of a sub-block of `len` operators. `found` is as for
    /// [`GradNames`](crate::grad_names::GradNames).
    pub(super) fn of_block(program: &Program, found: &[(Var, usize)], len: usize) -> ValueVersions {
        let mut values =
            ValueVersions { starts: found.iter().copied().collect(), ..ValueVersions::new(program) };
        found.iter().for_each(|(var, _)| values.record_write(*var, len));
        values
    }

    /// Steps back over an operator that writes a variable.
    pub(super) fn record_write(&mut self, var: Var, index: usize) {
        self.overwritten[var.index()] = index as u32 + 1;
        if !self.stand_ins.is_empty() {
            self.stand_ins.remove(&var);
        }
    }

    /// The variable, or the stand-in for its current version.
    pub(super) fn here(&mut self, var: Var) -> Var {
        let Some(before) = self.overwritten[var.index()].checked_sub(1) else { return var };
        if self.starts.get(&var) == Some(&(before as usize)) {
            return var;
        }
        *self.stand_ins.entry(var).or_insert_with(|| {
            self.olds.push((var, before as usize));
            Var::stand_in(u32::MAX as usize - (self.olds.len() - 1))
        })
    }

    fn old(&self, var: Var) -> Option<(Var, usize)> {
        self.olds.get(u32::MAX as usize - var.index()).copied()
    }

    /// The variable of a stand-in.
    pub(super) fn variable(&self, var: Var) -> Var {
        self.old(var).map_or(var, |(var, _)| var)
    }
}

/// Copies to insert into the program, each with the operator that it is inserted before.
#[derive(Clone, Default)]
pub(super) struct InsertedCopies(Vec<(usize, OpDesc)>);

/// Replaces stand-ins by copies `x@KEPT@0`, …, made right before `x` is overwritten. If no element is read and every
/// version has the same shape, `x` itself is used. Returns the copies and their variables.
///
/// # Errors
/// A value that cannot be copied.
pub(super) fn keep(
    ops: &OpInfoMap,
    program: &mut Program,
    block: BlockId,
    values: &ValueVersions,
    emitted: &mut [OpDesc],
) -> Result<(InsertedCopies, Vars)> {
    let (mut copies, mut vars) = (vec![], Vars::default());
    if values.olds.is_empty() {
        return Ok((InsertedCopies(copies), vars));
    }
    let mut copied: FxHashMap<Var, Var> = FxHashMap::default();
    for op in emitted.iter() {
        if op.inputs.args().all(|arg| values.old(arg).is_none()) {
            continue;
        }
        let info = ops.get(&op.ty)?;
        for (slot, args) in op.inputs.iter() {
            let is_read = info.reads_slot(op, &slot)?;
            for arg in args {
                let Some((var, before)) = values.old(*arg) else { continue };
                if !is_read && has_one_shape(program, block, var) {
                    continue;
                }
                let desc = copyable(ops, program, block, op, var)
                    .map_err(|why| refuse(program, block, op, var, before, why))?;
                if !copied.contains_key(arg) {
                    let copy = existing(ops_of(program, block), var, before).unwrap_or_else(|| {
                        let (copy, made) = copy(program, block, var, before);
                        copies.push((before, made));
                        vars.insert(copy, desc);
                        copy
                    });
                    copied.insert(*arg, copy);
                }
            }
        }
    }
    for arg in emitted.iter_mut().flat_map(|op| op.inputs.args_mut()) {
        *arg = copied.get(arg).copied().unwrap_or_else(|| values.variable(*arg));
    }
    copies.sort_by_key(|(before, _)| *before);
    Ok((InsertedCopies(copies), vars))
}

fn ops_of(program: &Program, block: BlockId) -> &[OpDesc] {
    program.block(block).map_or(&[], |block| &block.ops)
}

fn has_one_shape(program: &Program, block: BlockId, var: Var) -> bool {
    program.lookup(block, var).is_some_and(|desc| desc.dims.known().is_some())
}

/// A copy that an earlier backward pass made.
fn existing(ops: &[OpDesc], var: Var, before: usize) -> Option<Var> {
    let copies = ops[..before].iter().rev().take_while(|op| op.origin == Origin::Kept);
    copies.filter(|op| op.reads().eq([var])).find_map(|op| op.writes().next())
}

/// The declaration of a variable's copy, or the reason why it cannot be copied.
fn copyable(
    ops: &OpInfoMap,
    program: &Program,
    block: BlockId,
    reader: &OpDesc,
    var: Var,
) -> std::result::Result<VarDesc, &'static str> {
    let by_name =
        |of: usize| ops_of(program, block).get(of).is_some_and(|fwd| fwd.attrs.blocks().next().is_some());
    match (reader.origin, program.lookup(block, var)) {
        (Origin::Gradient { of }, _) if by_name(of) => Err("a sub-block reads it by its name"),
        _ if ops.get(Assign::SCHEMA.name).is_err() => Err("no operator `assign` is linked"),
        (_, Some(desc)) if desc.kind == VarKind::Tensor => {
            Ok(VarDesc { persistable: false, parameter: false, ..desc.clone() })
        }
        _ => Err("it is not a tensor of this block"),
    }
}

fn copy(program: &mut Program, block: BlockId, var: Var, before: usize) -> (Var, OpDesc) {
    let prefix = format!("{}@KEPT@", program.name(var));
    let copy = program.fresh_var(&prefix);
    let site = ops_of(program, block).get(before).and_then(|op| op.site);
    (copy, OpDesc { site, origin: Origin::Kept, ..Assign { x: var, out: copy }.into() })
}

impl InsertedCopies {
    /// Operators, each with the operator that it is inserted before, in order.
    pub(super) fn of(ops: Vec<(usize, OpDesc)>) -> InsertedCopies {
        InsertedCopies(ops)
    }

    /// Inserts the copies into a sub-block, and updates operator indices in its other gradients.
    pub(super) fn insert_into(self, program: &mut Program, block: BlockId, appended: &mut [OpDesc]) {
        if self.0.is_empty() {
            return;
        }
        let gradients = program.blocks().iter().enumerate().filter(|(_, b)| b.forward == Some(block));
        let gradients: Vec<BlockId> = gradients.map(|(i, _)| BlockId::new(i)).collect();
        let mut others: Vec<OpDesc> = vec![];
        let mut counts = vec![];
        for id in &gradients {
            let ops = program.block_mut(*id).map_or(vec![], |block| std::mem::take(&mut block.ops));
            counts.push(ops.len());
            others.extend(ops);
        }
        let mut ops = program.block_mut(block).map_or(vec![], |block| std::mem::take(&mut block.ops));
        let own = others.len();
        others.extend_from_slice(appended);
        self.insert(&mut ops, &mut others);
        appended.clone_from_slice(&others.split_off(own));
        if let Some(block) = program.block_mut(block) {
            block.ops = ops;
        }
        let mut others = others.into_iter();
        for (id, count) in gradients.into_iter().zip(counts) {
            if let Some(block) = program.block_mut(id) {
                block.ops = others.by_ref().take(count).collect();
            }
        }
    }

    /// Inserts the copies, and updates operator indices, also those in `appended`.
    pub(super) fn insert(self, ops: &mut Vec<OpDesc>, appended: &mut [OpDesc]) {
        if self.0.is_empty() {
            return;
        }
        let mut before = self.0.iter().map(|(before, _)| *before).peekable();
        let mut shift = 0;
        let mut now_at = Vec::with_capacity(ops.len());
        for index in 0..ops.len() {
            while before.next_if_eq(&index).is_some() {
                shift += 1;
            }
            now_at.push(index + shift);
        }
        for op in ops.iter_mut().chain(appended) {
            if let Origin::Gradient { of } | Origin::Recompute { of } = &mut op.origin
                && let Some(now) = now_at.get(*of)
            {
                *of = *now;
            }
        }
        *ops = between(std::mem::take(ops), self.0);
    }
}

/// Names the version that is read, and all writers.
fn refuse(program: &Program, block: BlockId, reader: &OpDesc, var: Var, before: usize, why: &str) -> Error {
    let (name, ops) = (program.name(var), ops_of(program, block));
    let mut version = 0;
    let mut list = vec![];
    for (i, op) in ops.iter().enumerate().filter(|(_, op)| op.writes().any(|v| v == var)) {
        version += usize::from(i < before);
        let site = op.site.map(|s| format!(", added at {s}")).unwrap_or_default();
        list.push(format!("version {}: operator {i} `{}`{site}", list.len() + 1, op.ty));
    }
    let text = format!(
        "the gradient needs version {version} of `{name}`, which is overwritten before the backward pass runs ({}) \
         and cannot be copied: {why}; write to another variable",
        list.join("; ")
    );
    let error = Error::new(ErrorKind::NoGradient, text);
    match reader.origin {
        Origin::Gradient { of } if of < ops.len() => error.at_op(|| program.describe_op(block, of, &ops[of])),
        _ => error,
    }
}
