//! Programs, blocks, and variables with their declarations.

use std::{
    fmt::Display,
    hash::BuildHasherDefault,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use indexmap::IndexMap;
use rustc_hash::FxHasher;

use super::{BlockId, OpDesc, ProgramSignature, Site, Var, VarDesc, VarKind, Vars, name_table::NameTable};
use crate::{
    Error, ErrorKind, Meta, OpContext, Result,
    error::did_you_mean,
    tensor::{read_file, write_atomically},
};

type Hasher = BuildHasherDefault<FxHasher>;

/// The stamp of the state in which the program was found valid.
#[derive(Debug, Default)]
pub(super) struct Verified(pub(super) AtomicU64);

impl Clone for Verified {
    fn clone(&self) -> Verified {
        Verified(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

/// A list of operators, and the variables that they declare.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The enclosing block, where names not declared here are looked up.
    pub parent: Option<BlockId>,
    /// The forward block, if this is a gradient block.
    pub forward: Option<BlockId>,
    /// Variables in declaration order.
    pub vars: Vars,
    /// Operators in execution order.
    pub ops: Vec<OpDesc>,
}

/// Blocks, variables and operators: a model as data.
///
/// ```
/// use autobwd::{DType, Dims, OpDesc, Program, VarDesc};
/// let mut p = Program::new();
/// let (x, y) = (p.var("x"), p.var("y"));
/// let root = p.root_mut();
/// root.vars.insert(x, VarDesc::data(DType::F32, Dims::from([4])));
/// root.vars.insert(y, VarDesc::new(DType::F32, Dims::from([4])));
/// root.ops.push(OpDesc::new("tanh").input("X", [x]).output("Out", [y]));
/// assert_eq!(p.to_string().lines().last(), Some("  y = tanh(X=x)"));
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) names: NameTable,
    blocks: Vec<Block>,
    pub(super) counters: IndexMap<Box<str>, u32, Hasher>,
    pub(super) stamp: u64,
    pub(super) signature: ProgramSignature,
    pub(super) verified: Verified,
    /// Whether it was read from a file.
    pub(super) loaded: bool,
    /// Whether it initialises what another program keeps.
    pub(super) startup: bool,
}

impl Default for Program {
    fn default() -> Program {
        Program::new()
    }
}

impl AsRef<Program> for Program {
    fn as_ref(&self) -> &Program {
        self
    }
}

impl Program {
    /// A program with one empty block.
    pub fn new() -> Program {
        let mut names = NameTable::default();
        names.insert("@EMPTY@");
        let (blocks, counters) = (vec![Block::default()], IndexMap::default());
        Program {
            names,
            blocks,
            counters,
            stamp: next_stamp(),
            signature: ProgramSignature::default(),
            verified: Verified::default(),
            loaded: false,
            startup: false,
        }
    }

    /// All blocks, the root first.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The root block.
    pub fn root(&self) -> &Block {
        &self.blocks[0]
    }

    /// The root block, mutably.
    pub fn root_mut(&mut self) -> &mut Block {
        self.stamp = next_stamp();
        &mut self.blocks[0]
    }

    /// One block.
    pub fn block(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.index())
    }

    /// One block, mutably.
    pub fn block_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.stamp = next_stamp();
        self.blocks.get_mut(id.index())
    }

    /// Adds an empty block.
    pub fn add_block(&mut self, parent: Option<BlockId>, forward: Option<BlockId>) -> BlockId {
        self.stamp = next_stamp();
        self.blocks.push(Block { parent, forward, ..Block::default() });
        BlockId::new(self.blocks.len() - 1)
    }

    /// The declaration of a variable as seen from a block: the block's own, for a gradient block the declaration of its
    /// forward block, else the declaration of the nearest ancestor.
    #[inline]
    pub fn lookup(&self, block: BlockId, var: Var) -> Option<&VarDesc> {
        // Most variables belong to the block that mentions them.
        let own = self.block(block)?.vars.get(&var);
        own.or_else(|| self.lookup_around(block, var))
    }

    /// The same, outwards block by block.
    fn lookup_around(&self, block: BlockId, var: Var) -> Option<&VarDesc> {
        let (mut at, mut steps) = (Some(block), 0);
        while let Some(block) = at.and_then(|id| self.block(id)) {
            let forward = || self.block(block.forward?)?.vars.get(&var);
            if let Some(desc) = block.vars.get(&var).or_else(forward) {
                return Some(desc);
            }
            steps += 1;
            at = block.parent.filter(|_| steps <= self.blocks.len());
        }
        None
    }

    /// The variables that a block reads before it writes them: its own variables that other blocks write, and variables
    /// of enclosing blocks. Reads of sub-blocks are in the slots of their operators.
    pub fn captures(&self, block: BlockId) -> Vec<Var> {
        let (mut known, mut found) = (vec![false; self.name_count()], vec![]);
        for op in self.block(block).map_or(&[][..], |block| &block.ops) {
            for var in op.reads() {
                if !std::mem::replace(&mut known[var.index()], true) {
                    found.push(var);
                }
            }
            op.writes().for_each(|v| known[v.index()] = true);
        }
        found
    }

    /// The variables of enclosing blocks that a block writes. Writes of sub-blocks are in the slots of their operators.
    pub fn outer_writes(&self, block: BlockId) -> Vec<Var> {
        let mut found: Vec<Var> = self.writes_outside(block).map(|(_, var)| var).collect();
        let mut known = vec![false; self.name_count()];
        found.retain(|v| !std::mem::replace(&mut known[v.index()], true));
        found
    }

    /// The operators of a block that write variables of enclosing blocks, with those variables. Neither the block's own
    /// variables count nor, for a gradient block, the variables of its forward block.
    pub(crate) fn writes_outside(&self, block: BlockId) -> impl Iterator<Item = (usize, Var)> + '_ {
        let of = self.block(block);
        let forward = of.and_then(|block| self.block(block.forward?));
        let own = move |v: &Var| of.iter().chain(&forward).any(|block| block.vars.contains_key(v));
        let ops = of.map_or(&[][..], |block| &block.ops).iter().enumerate();
        ops.flat_map(|(i, op)| op.writes().map(move |v| (i, v))).filter(move |(_, v)| !own(v))
    }

    /// Errors for writes that would be lost when a block ends: to parameters, and to variables of enclosing blocks that
    /// are not in `outlast`.
    pub(crate) fn check_outer_writes(&self, block: BlockId, outlast: &[Var]) -> Vec<Error> {
        let fault = |(index, var): (usize, Var)| {
            let (name, number) = (self.name(var), block.index());
            let text = match self.lookup(block, var) {
                Some(desc) if desc.parameter => format!("block {number} writes the parameter `{name}`"),
                _ if outlast.contains(&var) => return None,
                _ => format!("block {number} writes `{name}`, which is not among the outputs"),
            };
            let op = &self.block(block)?.ops[index];
            let error = Error::new(ErrorKind::Program, text);
            Some(error.at_op(|| self.describe_op(block, index, op)))
        };
        self.writes_outside(block).filter_map(fault).collect()
    }

    /// The variables that an operator overwrites completely. A write to an array keeps its other elements, and a
    /// sub-block may not write a variable each time.
    pub fn full_overwrites<'a>(&'a self, block: BlockId, op: &'a OpDesc) -> impl Iterator<Item = Var> + 'a {
        let whole = op.attrs.blocks().next().is_none();
        let tensor = |desc: &VarDesc| matches!(desc.kind, VarKind::Tensor | VarKind::SelectedRows);
        op.writes().filter(move |v| whole && self.lookup(block, *v).is_none_or(tensor))
    }

    /// The variable named as the gradient of another, `w@GRAD`, if the program uses that name. Within gradient blocks
    /// it is computed or received by a step.
    pub fn gradient_name(&self, var: Var) -> Option<Var> {
        self.find(&format!("{}@GRAD", self.name(var)))
    }

    /// Removes all blocks except the first `count`. The others must be unused.
    pub(crate) fn truncate_blocks(&mut self, count: usize) {
        self.stamp = next_stamp();
        self.blocks.truncate(count);
    }

    /// The variable of this name declared in the root block.
    ///
    /// # Errors
    /// No such variable; the message suggests similar names.
    pub fn expect_var(&self, name: &str) -> Result<Var> {
        let declared = self.find(name).filter(|v| self.root().vars.contains_key(v));
        declared.ok_or_else(|| {
            let in_block = |var: Var| self.blocks.iter().position(|block| block.vars.contains_key(&var));
            if let Some(block) = self.find(name).and_then(in_block) {
                let text = format!(
                    "`{name}` is a variable of block {block}, which exists only while that block runs: use a \
                     variable of the root block"
                );
                return Error::new(ErrorKind::UnknownVar, text);
            }
            let known = self.root().vars.keys().map(|v| self.name(*v));
            let hint = did_you_mean(name, known);
            Error::new(ErrorKind::UnknownVar, format!("the program has no variable `{name}`{hint}"))
        })
    }

    /// Parameters in declaration order.
    pub fn parameters(&self) -> impl Iterator<Item = Var> + '_ {
        self.root().vars.iter().filter(|(_, d)| d.parameter).map(|(v, _)| *v)
    }

    /// Saves the program as JSON, with a checksum as its last entry, by which [`load`](Program::load) notices damage. A
    /// failure leaves no partial file.
    ///
    /// # Errors
    /// A text of more than [`FILE_LIMIT`](Program::FILE_LIMIT) bytes; failures of the file system, with the path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let (path, json) = (path.as_ref(), self.to_json_with_checksum());
        let (size, limit) = (json.len(), Program::FILE_LIMIT);
        if size as u64 > limit {
            let text = format!(
                "cannot save to `{}`: {size} bytes are more than the limit of {limit}; keep large constants in the \
                 scope",
                path.display()
            );
            return Err(Error::new(ErrorKind::Format, text));
        }
        write_atomically(path, json.as_bytes())
    }

    /// The largest file of a program that is written or read, in bytes.
    pub const FILE_LIMIT: u64 = 1 << 27;

    /// Reads a program that was [saved](Program::save).
    ///
    /// # Errors
    /// Failures of the file system; a file of more than [`FILE_LIMIT`](Program::FILE_LIMIT) bytes; the errors of
    /// [`from_json`](Program::from_json), with the path.
    pub fn load(path: impl AsRef<Path>) -> Result<Program> {
        let path = path.as_ref();
        crate::__span!("load_program", path = %path.display());
        let in_file = |kind, e: &dyn Display| Error::new(kind, format!("`{}`: {e}", path.display()));
        let bytes = read_file(path, Program::FILE_LIMIT)?;
        let json = str::from_utf8(&bytes).map_err(|e| in_file(ErrorKind::Format, &e).caused_by(e))?;
        Program::from_json(json).map_err(|e| in_file(e.kind(), &e).caused_by(e))
    }

    /// A number that changes whenever the program may change: equal stamps mean equal programs.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Records that it was read from a file.
    pub fn mark_loaded(&mut self) {
        self.loaded = true;
    }

    /// Records that it is a startup program: what its operators without inputs write are initial values, which another
    /// startup program of the same scope must not overwrite by others. The startup program of a builder is one.
    pub fn mark_startup(&mut self) {
        self.startup = true;
    }

    /// Whether it is a startup program ([`mark_startup`](Program::mark_startup)).
    pub fn is_startup(&self) -> bool {
        self.startup
    }

    /// Whether it was read from a file, and so may differ from the code of the caller.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// For messages: `` operator `mul` (block 0, operator 3, added at model.rs:12; X = `h`, Y = `w`) ``.
    pub fn describe_op(&self, block: BlockId, index: usize, op: &OpDesc) -> OpContext {
        let block = block.index();
        self.describe_at(&format!("block {block}, operator {index}"), op).at(block, index)
    }

    pub(crate) fn describe_at(&self, place: &str, op: &OpDesc) -> OpContext {
        let mut text = OpContext::new("operator", op.ty.as_str());
        text.push([" (", place]);
        if let Some(site) = op.site {
            text.push([", added at "]);
            match site {
                Site::Here(at) => text.push_source_line([at.file(), ":", &at.line().to_string()]),
                Site::Loaded(at) => text.push_source_line([at.as_str()]),
            }
        }
        let mut separator = "; ";
        for (slot, args) in op.inputs.iter().chain(op.outputs.iter()).filter(|(_, args)| !args.is_empty()) {
            text.push([separator, slot.as_str(), " ="]);
            args.iter().for_each(|v| text.push([" `", self.name(*v), "`"]));
            separator = ", ";
        }
        text.push([")"]);
        text
    }

    /// Checks the types that an operator of a block writes against the declarations of the variables.
    pub(crate) fn check_declared(&self, block: BlockId, written: &[(Var, Meta)]) -> Result<()> {
        for (var, meta) in written {
            if let Some(desc) = self.lookup(block, *var).filter(|desc| !desc.allows(meta)) {
                let (name, known) = (self.name(*var), desc.meta());
                let text = format!("`{}` is {meta}, but `{name}` is {known}", meta.slot());
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        Ok(())
    }

    /// Returns an error for variables of another program, so that passes can use tables.
    pub(crate) fn own_variables(&self) -> Result<()> {
        let known = |v: &Var| v.index() < self.names.len();
        for (b, block) in self.blocks.iter().enumerate() {
            let foreign = |i: usize| {
                let text = format!("block {b}, operator {i}: a variable of another program");
                Err(Error::new(ErrorKind::UnknownVar, text))
            };
            for (i, op) in block.ops.iter().enumerate() {
                if !op.inputs.args().chain(op.outputs.args()).all(|v| known(&v)) {
                    return foreign(i);
                }
            }
            if !block.vars.iter().all(|(var, desc)| known(var) && desc.gradient_of.as_ref().is_none_or(known))
            {
                return Err(Error::new(
                    ErrorKind::UnknownVar,
                    format!("block {b} declares a variable of another program"),
                ));
            }
        }
        Ok(())
    }
}

impl PartialEq for Program {
    /// Same signature and blocks, with the same variables and operators under the same names; source lines are not
    /// compared.
    fn eq(&self, other: &Program) -> bool {
        self.same_as(other)
    }
}

pub(super) fn next_stamp() -> u64 {
    // 0 is the stamp of no program.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
