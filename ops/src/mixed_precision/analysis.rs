//! Decides which operators compute in 16 bits, and which variables become 16-bit ones.

use std::collections::HashSet;

use autobwd::{
    BlockId, DType, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Program, Result, VarDesc,
    op::OpInfo,
    operators::{Cast, Recurrent},
    program::{Var, VarKind},
};

use super::lists::{Precision, PrecisionLists, Precisions, narrows};

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// From outside, or computed from such values by operators that take either precision.
    Outside,
    /// From an operator that computes in 16 bits.
    Half,
    /// From an operator that computes in float32.
    Single,
}

/// How operators use a variable.
#[derive(Clone, Copy, Default)]
struct Uses {
    /// The number of operators that write it.
    writes: usize,
    /// Whether an operator reads it, or only the gradient of its operator is going to.
    read: bool,
    /// Whether an operator reads it in float32.
    read_in_single: bool,
    /// Whether an operator writes it after one has read it, or writes it from another block.
    carried: bool,
}

/// The outcome of the analysis.
pub(super) struct Decisions {
    /// By block and operator: the outputs that have 16 bits, if the operator computes in 16 bits.
    pub(super) half_outputs: Vec<Vec<Option<Vec<Var>>>>,
    /// By variable: whether it becomes a 16-bit one.
    pub(super) retyped: Vec<bool>,
}

/// Analyses all blocks.
pub(super) fn decide(
    ops: &OpInfoMap,
    program: &Program,
    dtype: DType,
    lists: &PrecisionLists,
) -> Result<Decisions> {
    let names = lists.single_variables.iter();
    let single: HashSet<Var> = names.map(|name| program.expect_var(name)).collect::<Result<_>>()?;
    let count = program.name_count();
    let mut analysis = Analysis {
        ops,
        program,
        dtype,
        precisions: Precisions::new(ops, lists)?,
        single,
        sources: vec![Source::Outside; count],
        uses: vec![Uses::default(); count],
        half_outputs: program.blocks().iter().map(|block| vec![None; block.ops.len()]).collect(),
    };
    analysis.block(BlockId::ROOT)?;
    Ok(analysis.decisions())
}

struct Analysis<'a> {
    ops: &'a OpInfoMap,
    program: &'a Program,
    dtype: DType,
    precisions: Precisions,
    /// Variables that stay float32.
    single: HashSet<Var>,
    sources: Vec<Source>,
    uses: Vec<Uses>,
    half_outputs: Vec<Vec<Option<Vec<Var>>>>,
}

impl Analysis<'_> {
    fn block(&mut self, id: BlockId) -> Result<()> {
        let program = self.program;
        for (i, op) in program.block(id).map_or(&[][..], |block| &block.ops).iter().enumerate() {
            let info = self.ops.get(&op.ty)?;
            if info.is_control() {
                self.control(id, op)?;
                continue;
            }
            let half = self.half_outputs(id, op, info).map_err(|e| {
                let (op, dtype) = (program.describe_op(id, i, op), self.dtype);
                Error::new(e.kind(), format!("{op} is listed to compute in {dtype}, but cannot: {e}"))
            })?;
            let source = self.source(id, op, info);
            op.reads().for_each(|var| self.note_read(var, half.is_none() || !narrows(op, var)));
            for var in op.writes() {
                self.note_write(id, var);
                let is_result = op.outputs.get(info.schema().outputs[0].name).contains(&var);
                self.uses[var.index()].read |= !is_result;
                let is_half = half.as_ref().is_some_and(|half| half.contains(&var));
                let declared = program.lookup(id, var).is_some_and(|desc| desc.dtype.is_half());
                self.sources[var.index()] = if is_half || declared { Source::Half } else { source };
            }
            self.half_outputs[id.index()][i] = half;
        }
        Ok(())
    }

    /// An operator that runs blocks: values that go in or out are float32.
    fn control(&mut self, id: BlockId, op: &OpDesc) -> Result<()> {
        let [before, after] = op.as_op::<Recurrent>().map(|op| [op.ex_states, op.states]).unwrap_or_default();
        let named = |names: &[String]| names.iter().filter_map(|name| self.program.find(name)).collect();
        let [before, after]: [Vec<Var>; 2] = [named(&before), named(&after)];
        op.reads().chain(after).for_each(|var| self.note_read(var, true));
        for var in op.writes().chain(before) {
            self.sources[var.index()] = Source::Single;
        }
        for block in op.attrs.blocks() {
            self.block(block)?;
        }
        for var in op.writes() {
            self.note_write(id, var);
            self.sources[var.index()] = Source::Single;
        }
        Ok(())
    }

    fn note_read(&mut self, var: Var, in_single: bool) {
        let uses = &mut self.uses[var.index()];
        uses.read = true;
        uses.read_in_single |= in_single;
    }

    fn note_write(&mut self, id: BlockId, var: Var) {
        let own = self.program.block(id).is_some_and(|block| block.vars.contains_key(&var));
        let uses = &mut self.uses[var.index()];
        uses.writes += 1;
        uses.carried |= uses.read || !own;
    }

    /// The outputs that have 16 bits if the operator computes in 16 bits; `None` if it does not.
    fn half_outputs(&self, id: BlockId, op: &OpDesc, info: &OpInfo) -> Result<Option<Vec<Var>>> {
        let desc = |var: Var| self.program.lookup(id, var);
        let stays = |var: Var| {
            self.single.contains(&var) || desc(var).is_some_and(|desc| desc.kind != VarKind::Tensor)
        };
        let narrowed = || op.reads().filter(|var| narrows(op, *var));
        if op.is::<Cast>() || !narrowed().any(|var| is_single(desc(var))) {
            return Ok(None);
        }
        if op.reads().chain(op.writes()).any(stays) {
            return Ok(None);
        }
        let (precision, is_listed) = self.precisions.of(op, info);
        let is_from =
            |source| narrowed().any(|var| self.sources[var.index()] == source && is_float(desc(var)));
        let is_half = match precision {
            Precision::Half => true,
            Precision::Single => false,
            Precision::Either => is_from(Source::Half) && !is_from(Source::Single),
        };
        if !is_half {
            return Ok(None);
        }
        let of = |var: Var| match desc(var) {
            Some(desc) if is_single(Some(desc)) && narrows(op, var) => {
                Ok(Meta::new(self.dtype, desc.dims.clone()))
            }
            Some(desc) => Ok(desc.meta()),
            None => Err(Error::new(ErrorKind::UnknownVar, "not declared")),
        };
        let mut halves = vec![];
        let put = &mut |var: Var, meta: Meta| {
            if meta.dtype == self.dtype && is_single(desc(var)) {
                halves.push(var);
            }
        };
        match info.infer(op, &of, put) {
            Ok(()) => Ok(Some(halves)),
            Err(e) if is_listed => Err(e),
            // Its rule needs float32.
            Err(_) => Ok(None),
        }
    }

    /// The source of float32 results.
    fn source(&self, id: BlockId, op: &OpDesc, info: &OpInfo) -> Source {
        let mut floats = op.reads().filter(|var| is_float(self.program.lookup(id, *var))).peekable();
        let is_either = self.precisions.of(op, info).0 == Precision::Either;
        let is_fill = floats.peek().is_none();
        match floats.all(|var| self.sources[var.index()] == Source::Outside) {
            true if is_fill || is_either => Source::Outside,
            _ => Source::Single,
        }
    }

    fn decisions(self) -> Decisions {
        let program = self.program;
        let signature = program.signature();
        let named = signature.inputs.iter().chain(&signature.outputs);
        let named: HashSet<Var> = named.filter_map(|entry| program.find(&entry.variable)).collect();
        let mut retyped = vec![false; program.name_count()];
        for (block, ops) in program.blocks().iter().zip(&self.half_outputs) {
            for var in ops.iter().flatten().flatten() {
                let uses = self.uses[var.index()];
                let is_kept = block.vars.get(var).is_none_or(|desc| desc.persistable) || named.contains(var);
                retyped[var.index()] =
                    !is_kept && uses.read && !uses.read_in_single && !uses.carried && uses.writes == 1;
            }
        }
        Decisions { half_outputs: self.half_outputs, retyped }
    }
}

/// Whether it is a dense float32 tensor.
pub(super) fn is_single(desc: Option<&VarDesc>) -> bool {
    desc.is_some_and(|desc| desc.dtype == DType::F32 && desc.kind == VarKind::Tensor)
}

fn is_float(desc: Option<&VarDesc>) -> bool {
    desc.is_some_and(|desc| desc.dtype.is_float())
}
