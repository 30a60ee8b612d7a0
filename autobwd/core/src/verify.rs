//! Verification of programs.
//!
//! Must not change them. Every fault is reported, not just the first.
//!
//! `require_valid` verifies a program before it is differentiated or run, once for each state of the program; so
//! planning and the backward pass see valid programs only.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use crate::{
    Block, BlockId, DType, Error, ErrorKind, Meta, OpDesc, OpInfo, OpInfoMap, Program, Result, Var, VarDesc,
    VarKind,
    desc::GRAD,
    desc::is_name,
    op::{Lookup, ShapeCache},
};

/// Checks a program against the operators linked into this binary: blocks and variables that operators refer to exist,
/// blocks are nested at most 32 deep, operators are registered, slots are filled as declared, attributes have the right
/// types and are within bounds, variables are written before they are read, dtypes and shapes agree with the shape
/// rules.
///
/// Running or differentiating a program calls this automatically, once for each state of the program.
///
/// # Errors
/// All faults, one per line, each with operator, slots, variables and source line. If blocks do not form a tree, only
/// that fault.
///
/// ```standalone_crate
/// use autobwd::{OpDesc, Program, verify};
/// let mut p = Program::new();
/// let x = p.var("x");
/// p.root_mut().ops.push(OpDesc::new("no_such_op").input("X", [x]));
/// let e = verify(&p).unwrap_err().to_string();
/// assert!(e.contains("`x` is not declared"), "{e}");
/// assert!(e.contains("the library's operators come with `use autobwd_ops as _;`"), "{e}");
/// ```
pub fn verify(program: &Program) -> Result<()> {
    OpInfoMap::linked()?.verify(program)
}

impl OpInfoMap {
    /// As [`verify`](verify()), against these operators.
    ///
    /// # Errors
    /// As [`verify`](verify()).
    pub fn verify(&self, program: &Program) -> Result<()> {
        verify_against(self, program)
    }
}

fn verify_against(ops: &OpInfoMap, program: &Program) -> Result<()> {
    crate::__span!("verify", operators = program.root().ops.len());
    program.check_structure()?;
    let mut faults = declarations(program);
    let mut infos = Lookup::new(ops);
    // The inputs of steps, by block.
    let mut supplied: HashMap<BlockId, Vec<Var>> = HashMap::new();
    for op in program.blocks().iter().flat_map(|block| &block.ops) {
        let Some(info) = infos.get(op.ty).ok().filter(|info| info.is_control()) else { continue };
        if let Ok(Some(call)) = info.call(op, program) {
            supplied.entry(call.block).or_default().extend(call.supplied());
        }
    }
    let mut shapes = ShapeCache::default();
    let mut first_write = vec![NEVER; program.name_count()];
    for (index, block) in program.blocks().iter().enumerate() {
        let id = BlockId::new(index);
        let supplied = supplied.get(&id).map_or(&[][..], Vec::as_slice);
        BlockVerifier {
            infos: &mut infos,
            shapes: &mut shapes,
            ops,
            program,
            id,
            block,
            faults: &mut faults,
        }
        .run(&mut first_write, supplied);
        // Clearing the used entries keeps this linear; a new table for each block would not.
        block.ops.iter().flat_map(OpDesc::writes).for_each(|v| first_write[v.index()] = NEVER);
    }
    match &mut faults[..] {
        [] => Ok(()),
        [_] => Err(faults.remove(0)),
        _ => {
            let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
            Err(Error::new(ErrorKind::Program, lines.join("\n")))
        }
    }
}

/// Verifies a program, unless it was found valid and has not changed since.
///
/// # Errors
/// As [`verify`].
pub fn require_valid(ops: &OpInfoMap, program: &Program) -> Result<()> {
    if program.is_verified() && is_linked(ops) {
        return Ok(());
    }
    ops.verify(program)?;
    mark_valid(ops, program);
    Ok(())
}

/// Records that a program is valid.
pub fn mark_valid(ops: &OpInfoMap, program: &Program) {
    if is_linked(ops) {
        program.mark_verified();
    }
}

fn is_linked(ops: &OpInfoMap) -> bool {
    OpInfoMap::linked().is_ok_and(|linked| std::ptr::eq(linked, ops))
}

/// Declarations that are always invalid.
fn declarations(program: &Program) -> Vec<Error> {
    let mut faults = vec![];
    for (b, block) in program.blocks().iter().enumerate() {
        for (var, desc) in block.vars.iter() {
            let name = program.name(*var);
            let fault = if !is_name(name) {
                "a name is not empty, has no spaces and is not `@EMPTY@`"
            } else if b > 0 && desc.persistable {
                "only the root block has persistable variables"
            } else {
                continue;
            };
            faults
                .push(Error::new(ErrorKind::UnknownVar, format!("variable {name:?} of block {b}: {fault}")));
        }
    }
    faults
}

/// Gradients that an operator with a sub-block reads as zero if they are not written.
fn optional_reads(op: &OpDesc) -> impl Iterator<Item = Var> + '_ {
    let control = op.attrs.blocks().next().is_some();
    let gradients = op.inputs.iter().filter(move |(slot, _)| control && slot.ends_with("@GRAD"));
    gradients.flat_map(|(_, args)| args).copied()
}

/// In the table of first writes: no read of the variable is too early.
const NEVER: u32 = 0;

struct BlockVerifier<'a, 'm> {
    infos: &'a mut Lookup<'m>,
    shapes: &'a mut ShapeCache,
    ops: &'m OpInfoMap,
    program: &'a Program,
    id: BlockId,
    block: &'a Block,
    faults: &'a mut Vec<Error>,
}

fn fault(text: String) -> Error {
    Error::new(ErrorKind::Program, text)
}

/// Whether an operator writes a variable twice.
fn writes_twice(op: &OpDesc) -> bool {
    let mut writes = op.writes();
    match (writes.next(), writes.next(), writes.next()) {
        (Some(a), Some(b), None) => a == b,
        (.., None) => false,
        (.., Some(_)) => {
            let mut all: SmallVec<[Var; 8]> = op.writes().collect();
            all.sort_unstable();
            all.windows(2).any(|pair| pair[0] == pair[1])
        }
    }
}

impl BlockVerifier<'_, '_> {
    /// `first_write` is a table by variable, with [`NEVER`] everywhere; `supplied` variables have values at the start
    /// of the block.
    fn run(mut self, first_write: &mut [u32], supplied: &[Var]) {
        // The index of the first operator that writes a variable. If that operator also reads it, the variable has a
        // value before the block starts.
        for (index, op) in self.block.ops.iter().enumerate().rev() {
            op.writes().for_each(|v| first_write[v.index()] = index as u32);
            for var in op.reads() {
                let first = &mut first_write[var.index()];
                *first = if *first == index as u32 { NEVER } else { *first };
            }
        }
        supplied.iter().for_each(|v| first_write[v.index()] = NEVER);
        for (index, op) in self.block.ops.iter().enumerate() {
            let mut found = self.references(op);
            let early = |v: &Var| {
                first_write[v.index()] > index as u32
                    && !self.program.lookup(self.id, *v).is_some_and(|d| d.persistable)
                    && self.block.vars.contains_key(v)
                    // It counts as zero there; a later backward pass may compute it.
                    && !optional_reads(op).any(|lacking| lacking == *v)
            };
            found.extend(
                op.reads()
                    .filter(early)
                    .map(|v| fault(format!("`{}` is read before it is written", self.name(v)))),
            );
            match self.infos.get(op.ty) {
                Err(e) => found.push(e),
                Ok(info) if found.is_empty() => self.operator(info, op, &mut found),
                Ok(info) => found.extend(info.check(op).err()),
            }
            for e in found {
                self.faults.push(e.at_op(|| self.program.describe_op(self.id, index, op)));
            }
        }
    }

    fn name(&self, var: Var) -> &str {
        self.program.name(var)
    }

    /// Variables that do not exist, or are written twice.
    fn references(&self, op: &OpDesc) -> Vec<Error> {
        let known = |v: &Var| self.program.lookup(self.id, *v).is_some();
        if op.reads().chain(op.writes()).all(|v| known(&v)) && !writes_twice(op) {
            return vec![];
        }
        let mut unknown: Vec<Var> = op.reads().chain(op.writes()).filter(|v| !known(v)).collect();
        unknown.retain(|v| op.writes().any(|w| w == *v) || !optional_reads(op).any(|lacking| lacking == *v));
        unknown.sort_unstable();
        unknown.dedup();
        let undeclared =
            |v: Var| Error::new(ErrorKind::UnknownVar, format!("`{}` is not declared", self.name(v)));
        let mut found: Vec<_> = unknown.into_iter().map(undeclared).collect();
        let mut written: SmallVec<[Var; 4]> = op.writes().collect();
        written.sort_unstable();
        for (_, again) in written.iter().zip(written.iter().skip(1)).filter(|(a, b)| a == b) {
            found.push(Error::new(ErrorKind::Slot, format!("`{}` is written to twice", self.name(*again))));
        }
        found
    }

    /// Faults of a sub-block as its operator runs it.
    fn control(&self, info: &OpInfo, op: &OpDesc) -> Vec<Error> {
        let call = match info.call(op, self.program) {
            Ok(call) => call,
            Err(e) => return vec![e],
        };
        let Some(call) = call else { return vec![] };
        let (mut found, number) = (vec![], call.block.index());
        let Some(block) = self.program.block(call.block) else { return found };
        if block.parent != Some(self.id) {
            found.push(fault(format!("block {number} is not nested in block {}", self.id.index())));
        }
        if let Some(var) = call.condition() {
            let meta = self.program.lookup(self.id, var).map(VarDesc::meta);
            let is_boolean = |m: &Meta| m.dtype == DType::Bool && m.dims.numel().get().is_none_or(|n| n == 1);
            if let Some(meta) = meta.filter(|meta| !is_boolean(meta)) {
                let text = format!("the condition `{}` is {meta}, not a bool of one element", self.name(var));
                found.push(Error::new(ErrorKind::DType, text));
            }
        }
        let scopes = call.scopes.and_then(|var| Some((var, self.program.lookup(self.id, var)?)));
        if let Some((var, desc)) = scopes.filter(|(_, desc)| desc.kind != VarKind::StepScopes) {
            let text = format!("`{}` is {}, not saved step state", self.name(var), desc.meta());
            found.push(Error::new(ErrorKind::DType, text));
        }
        let supplied: HashSet<Var> = call.supplied().collect();
        let left = |v: &Var| {
            // Saved step state of the forward operator.
            let forward = block.forward.filter(|_| call.is_recorded()).and_then(|id| self.program.block(id));
            forward.is_some_and(|f| {
                f.vars.contains_key(v) || f.ops.iter().any(|op| op.writes().any(|w| w == *v))
            })
        };
        let array = |v: &Var| {
            self.program.lookup(call.block, *v).is_some_and(|desc| desc.kind == VarKind::TensorArray)
        };
        let zero: HashSet<Var> = block.ops.iter().flat_map(optional_reads).collect();
        let missing = self.program.captures(call.block).into_iter().filter(|v| !supplied.contains(v));
        let there = |v: &Var| left(v) || zero.contains(v) || (array(v) && block.vars.contains_key(v));
        for var in missing.filter(|v| !there(v)) {
            let text =
                format!("`{}` is read in block {number}, but it is not among the inputs", self.name(var));
            found.push(fault(text));
        }
        found.extend(call.faults(op, self.program));
        found
    }

    fn meta(&self, var: Var) -> Result<Meta> {
        let desc = self.program.lookup(self.id, var);
        desc.map(VarDesc::meta).ok_or_else(|| Error::internal("an undeclared variable"))
    }

    /// Checks slots, attributes, dtypes and shapes.
    fn operator(&mut self, info: &'static OpInfo, op: &OpDesc, found: &mut Vec<Error>) {
        let of = |var: Var| self.program.lookup(self.id, var);
        let mut metas: SmallVec<[(Var, Meta); 2]> = SmallVec::new();
        if let Some(inferred) = self.shapes.find(info, op, of) {
            let declared = |position: usize| op.outputs.args().nth(position).and_then(of);
            let allowed = |(at, meta): &(usize, Meta)| declared(*at).is_none_or(|desc| desc.allows(meta));
            if inferred.iter().all(allowed) {
                return self.gradient_shapes(op, found);
            }
        }
        if let Err(e) = info.check(op) {
            return found.push(e);
        }
        if info.is_control() {
            return found.extend(self.control(info, op));
        }
        if let Err(e) =
            info.infer_checked(op, &|var| self.meta(var), &mut |var, meta| metas.push((var, meta)))
        {
            return found.push(e);
        }
        self.shapes.insert(info, op, of, &metas);
        self.check_declared(op, &metas, found);
        if found.is_empty() {
            self.gradient_shapes(op, found);
        }
    }

    /// Reports outputs whose declared dtypes or shapes differ from the inferred ones.
    fn check_declared(&self, op: &OpDesc, metas: &[(Var, Meta)], found: &mut Vec<Error>) {
        for (var, meta) in metas {
            let var = *var;
            if let Some(desc) = self.program.lookup(self.id, var).filter(|desc| !desc.allows(meta)) {
                let known = desc.meta();
                let (name, slot) = (self.name(var), op.outputs.slot_of(var).map_or("", |s| s.as_str()));
                let text = format!("`{slot}` is {meta}, but `{name}` is declared {known}");
                found.push(Error::new(ErrorKind::Shape, text));
            }
        }
    }

    /// Checks that gradients which a gradient operator reads have the shapes of their values, as inferred by the
    /// forward operator's shape rule.
    fn gradient_shapes(&self, op: &OpDesc, found: &mut Vec<Error>) {
        let Some(forward) = self.ops.forward_of(&op.ty) else { return };
        let schema = forward.schema();
        let mut fwd = OpDesc::new(schema.name);
        for (slot, args) in op.inputs.iter() {
            if schema.input(&slot).is_some() {
                fwd.inputs.set(slot, args.iter().copied());
            } else if let Some(output) = slot.strip_suffix(GRAD).and_then(|slot| schema.output(slot)) {
                fwd.outputs.set(output.name, args.iter().copied());
            }
        }
        for (name, value) in op.attrs.iter().filter(|(name, _)| schema.attr(name).is_some()) {
            fwd.attrs.set(name, value.clone());
        }
        let mut metas: SmallVec<[(Var, Meta); 2]> = SmallVec::new();
        // Errors are ignored: a gradient operator need not read all that its forward operator reads.
        let _ = forward.infer(&fwd, &|var| self.meta(var), &mut |var, meta| metas.push((var, meta)));
        for (slot, args) in op.inputs.iter() {
            let values = slot.strip_suffix(GRAD).map_or(&[][..], |output| op.inputs.get(output));
            metas.extend(
                args.iter().zip(values).filter_map(|(grad, value)| Some((*grad, self.meta(*value).ok()?))),
            );
        }
        for (grad, value) in metas {
            let Ok(meta) = self.meta(grad) else { continue };
            let single = meta.dims.numel() == 1 && value.dims.numel() == 1;
            if !single && !meta.dims.agrees(&value.dims) {
                let slot = op.inputs.slot_of(grad).map_or("", |s| s.as_str());
                let output = slot.strip_suffix(GRAD).unwrap_or(slot);
                let text = format!(
                    "`{slot}` = `{}` has shape {}, but `{output}`, whose gradient it is, has {}",
                    self.name(grad),
                    meta.dims,
                    value.dims
                );
                return found.push(Error::new(ErrorKind::Shape, text));
            }
        }
    }
}
