//! What makes a program valid.
//!
//! Must not change it. Every fault is reported, not just the first.

use std::collections::{HashMap, HashSet};

use crate::{
    Block, BlockId, DType, Error, ErrorKind, Meta, OpDesc, OpInfo, OpInfoMap, Program, Result, Var, VarDesc,
    VarKind,
};

/// Checks a program against the operators that this binary links: blocks and variables that operators refer to exist,
/// operators are registered, slots are filled as declared, attributes have the right types and are within bounds,
/// variables are written before they are read, dtypes and shapes are those that follow from the shape rules.
///
/// # Errors
/// All faults, one a line, each with operator, slots, variables and source line.
///
/// ```standalone_crate
/// use autobwd::{OpDesc, Program, verify};
/// let mut p = Program::new();
/// let x = p.var("x");
/// p.root_mut().ops.push(OpDesc::new("no_such_op").input("X", [x]));
/// let e = verify(&p).unwrap_err().to_string();
/// assert!(e.contains("`x` is declared nowhere"), "{e}");
/// assert!(e.contains("no operators are linked"), "{e}");
/// ```
pub fn verify(program: &Program) -> Result<()> {
    verify_in(OpInfoMap::linked()?, program)
}

/// As [`verify`], with these operators.
///
/// # Errors
/// As [`verify`].
pub fn verify_in(ops: &OpInfoMap, program: &Program) -> Result<()> {
    program.own_variables()?;
    let mut faults = vec![];
    // What a step finds under a block's own names.
    let mut supplied: HashMap<BlockId, Vec<Var>> = HashMap::new();
    for op in program.blocks().iter().flat_map(|block| &block.ops) {
        if let Some(Ok(Some(call))) = ops.get(&op.ty).ok().map(|info| info.call(op, program)) {
            supplied.entry(call.block).or_default().extend(call.supplied());
        }
    }
    for (index, block) in program.blocks().iter().enumerate() {
        let id = BlockId::new(index);
        if block.parent.is_some_and(|p| p.index() >= index) || (index > 0) != block.parent.is_some() {
            faults.push(format!("block {index}: its parent is not a block before it"));
        }
        let supplied = supplied.get(&id).map_or(&[][..], Vec::as_slice);
        Walk { ops, program, id, block, supplied, faults: &mut faults }.run();
    }
    if faults.is_empty() { Ok(()) } else { Err(Error::new(ErrorKind::Program, faults.join("\n"))) }
}

/// An operator with a sub-block takes a gradient that nobody has written for zero.
fn may_lack(op: &OpDesc) -> impl Iterator<Item = Var> + '_ {
    let control = op.attrs.blocks().next().is_some();
    let gradients = op.inputs.iter().filter(move |(slot, _)| control && slot.ends_with("@GRAD"));
    gradients.flat_map(|(_, args)| args).copied()
}

struct Walk<'a> {
    ops: &'a OpInfoMap,
    program: &'a Program,
    id: BlockId,
    block: &'a Block,
    supplied: &'a [Var],
    faults: &'a mut Vec<String>,
}

impl Walk<'_> {
    fn run(&mut self) {
        // What is overwritten by an operator that reads it must have been there before.
        let mut unwritten: HashSet<Var> = HashSet::new();
        for op in self.block.ops.iter().rev() {
            for var in op.writes() {
                let _ =
                    if op.reads().any(|v| v == var) { unwritten.remove(&var) } else { unwritten.insert(var) };
            }
        }
        self.supplied.iter().for_each(|v| {
            unwritten.remove(v);
        });
        for (index, op) in self.block.ops.iter().enumerate() {
            let mut found = self.references(op);
            let early = |v: &Var| {
                let kept = self.program.lookup(self.id, *v).is_some_and(|d| d.persistable);
                unwritten.contains(v)
                    && !kept
                    && self.block.vars.contains_key(v)
                    && !op.writes().any(|w| w == *v)
            };
            found.extend(
                op.reads().filter(early).map(|v| format!("`{}` is read before it is written", self.name(v))),
            );
            op.writes().for_each(|v| {
                unwritten.remove(&v);
            });
            match self.ops.get(&op.ty) {
                Err(e) => found.push(e.message().into()),
                Ok(info) => match info.check(op) {
                    Err(e) => found.push(e.message().into()),
                    Ok(()) if found.is_empty() && info.is_control() => found.extend(self.control(info, op)),
                    Ok(()) if found.is_empty() => found.extend(self.shapes(op)),
                    Ok(()) => {}
                },
            }
            let place = self.program.describe_op(self.id, index, op);
            self.faults.extend(found.into_iter().map(|fault| format!("{place}: {fault}")));
        }
    }

    fn name(&self, var: Var) -> &str {
        self.program.name(var)
    }

    /// Variables and blocks that do not exist.
    fn references(&self, op: &OpDesc) -> Vec<String> {
        let may_lack: HashSet<Var> = may_lack(op).collect();
        let known = |v: &Var| may_lack.contains(v) || self.program.lookup(self.id, *v).is_some();
        let mut unknown: Vec<Var> = op.reads().chain(op.writes()).filter(|v| !known(v)).collect();
        unknown.sort();
        unknown.dedup();
        let mut found: Vec<_> =
            unknown.into_iter().map(|v| format!("`{}` is declared nowhere", self.name(v))).collect();
        for block in op.attrs.blocks().filter(|b| self.program.block(*b).is_none()) {
            found.push(format!("there is no block {}", block.index()));
        }
        let mut written = HashSet::new();
        let twice = op.writes().filter(|v| !written.insert(*v));
        found.extend(twice.map(|v| format!("`{}` is written to twice", self.name(v))));
        found
    }

    /// What is wrong with a sub-block as its operator runs it.
    fn control(&self, info: &OpInfo, op: &OpDesc) -> Vec<String> {
        let call = match info.call(op, self.program) {
            Ok(call) => call,
            Err(e) => return vec![e.message().into()],
        };
        let Some(call) = call else { return vec![] };
        let (mut found, number) = (vec![], call.block.index());
        let Some(block) = self.program.block(call.block) else { return found };
        if block.parent != Some(self.id) {
            found.push(format!("block {number} is not within block {}", self.id.index()));
        }
        if let Some(var) = call.condition() {
            let meta = self.program.lookup(self.id, var).map(VarDesc::meta);
            let is_boolean = |m: &Meta| m.dtype == DType::Bool && m.dims.numel().get().is_none_or(|n| n == 1);
            if let Some(meta) = meta.filter(|meta| !is_boolean(meta)) {
                found.push(format!("the condition `{}` is {meta}, not one boolean", self.name(var)));
            }
        }
        let supplied: HashSet<Var> = call.supplied().collect();
        let left = |v: &Var| {
            // What the steps of another operator have left.
            let forward = block.forward.filter(|_| call.is_recorded()).and_then(|id| self.program.block(id));
            forward.is_some_and(|f| {
                f.vars.contains_key(v) || f.ops.iter().any(|op| op.writes().any(|w| w == *v))
            })
        };
        let array = |v: &Var| {
            self.program.lookup(call.block, *v).is_some_and(|desc| desc.kind == VarKind::TensorArray)
        };
        let zero: HashSet<Var> = block.ops.iter().flat_map(may_lack).collect();
        let missing = self.program.outside(call.block).into_iter().filter(|v| !supplied.contains(v));
        let there = |v: &Var| left(v) || zero.contains(v) || (array(v) && block.vars.contains_key(v));
        for var in missing.filter(|v| !there(v)) {
            let text =
                format!("`{}` is read in block {number}, but it is not among the inputs", self.name(var));
            found.push(text);
        }
        let ends: Vec<Var> = call.ends().collect();
        found.extend(self.program.lost_writes(call.block, &ends).iter().map(ToString::to_string));
        found
    }

    /// Dtypes and shapes other than those that follow.
    fn shapes(&self, op: &OpDesc) -> Vec<String> {
        let of = |var: Var| match self.program.lookup(self.id, var) {
            Some(desc) => Ok(desc.meta()),
            None => Err(Error::internal("an undeclared variable")),
        };
        let mut metas: Vec<(Var, Meta)> = vec![];
        let inferred = self
            .ops
            .get(&op.ty)
            .and_then(|info| info.infer(op, &of, &mut |var, meta| metas.push((var, meta))));
        if let Err(e) = inferred {
            return vec![e.message().into()];
        }
        let mut found = vec![];
        for (var, meta) in metas {
            if let Some(known) = self.program.lookup(self.id, var).map(VarDesc::meta)
                && !known.agrees(&meta)
            {
                let (name, slot) = (self.name(var), op.outputs.slot_of(var).map_or("", |s| s.as_str()));
                found.push(format!("`{slot}` is {meta}, but `{name}` is declared {known}"));
            }
        }
        found
    }
}
