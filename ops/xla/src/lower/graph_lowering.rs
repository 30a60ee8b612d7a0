//! The instructions of a value graph, one by one.

use std::collections::BTreeMap;

use autobwd::{
    Attr, BlockId, DType, Error, ErrorKind, Meta, OpDesc, OpInfoMap, Program, Result, Var, op::Role,
    program::Site,
};
use autobwd_core::__private::{Obstacles, internals::*};
use autobwd_ops::{
    conv::{Conv2dOp, Conv3dOp},
    matmul::MatmulV2,
};
use autobwd_plan::{Graph, Instruction, ValueId};

use super::{
    composition,
    control::LoweredSteps,
    formula,
    hlo::{Hlo, HloFunction, HloType},
    linked_rules,
};

/// Compositions within compositions: no operator needs more.
const DEPTH: usize = 8;

/// Lowers the instructions of a graph.
pub(super) struct GraphLowering<'a> {
    pub(super) program: &'a Program,
    pub(super) ops: &'a OpInfoMap,
    pub(super) f: &'a HloFunction,
    pub(super) graph: &'a Graph,
    pub(super) block: BlockId,
    /// By value of the graph.
    pub(super) values: Vec<Option<Hlo>>,
    /// Saved step state, by the values of step scopes.
    pub(super) saved: BTreeMap<ValueId, LoweredSteps>,
    /// The number of compositions around.
    pub(super) depth: usize,
}

impl<'a> GraphLowering<'a> {
    pub(super) fn new(
        program: &'a Program,
        ops: &'a OpInfoMap,
        f: &'a HloFunction,
        graph: &'a Graph,
    ) -> GraphLowering<'a> {
        let values = vec![None; graph.values.len()];
        GraphLowering {
            program,
            ops,
            f,
            graph,
            block: BlockId::ROOT,
            values,
            saved: BTreeMap::new(),
            depth: 0,
        }
    }

    /// Lowers all instructions. Operators without a form become obstacles, and their outputs placeholders.
    pub(super) fn lower_all(&mut self, obstacles: &mut Obstacles) {
        let mut has_placeholders = false;
        for node in &self.graph.instructions {
            if let Err(e) = self.instruction(node) {
                // An operator that reads a placeholder breaks invariants; the reason is an obstacle already.
                if e.kind() != ErrorKind::Internal || !has_placeholders {
                    let e = e.at_op(|| {
                        self.program.describe_op(
                            self.block,
                            node.index,
                            node.described(self.program, self.block),
                        )
                    });
                    obstacles.add("", e.to_string());
                }
                has_placeholders = true;
                for id in node.writes() {
                    self.values[id] = Some(Hlo::unset(self.f, &self.graph.values[id].meta));
                }
            }
        }
        if let Some(tail) = self.graph.tail.as_ref().map(|_| "shapes that only the data of a run determines")
        {
            obstacles.add("", tail);
        }
    }

    /// Lowers all instructions up to the first that has no form.
    pub(super) fn lower_or_fail(&mut self) -> Result<()> {
        for node in &self.graph.instructions {
            self.instruction(node).map_err(|e| {
                let text = format!("operator `{}`: {}", node.desc.ty, e.message());
                Error::new(e.kind(), text)
            })?;
        }
        match self.graph.tail {
            Some(_) => {
                Err(Error::new(ErrorKind::Unsupported, "shapes that only the data of a run determines"))
            }
            None => Ok(()),
        }
    }

    /// The value of the function for a value of the graph.
    ///
    /// Rules read the shapes of values that have none, such as `XShape`, and elements of constants.
    pub(super) fn read(&self, id: ValueId) -> Hlo {
        let meta = &self.graph.values[id].meta;
        match self.values[id].clone() {
            Some(value) => value.with_known(meta.constant()),
            None => Hlo::unset(self.f, meta),
        }
    }

    /// The same for a result of the function.
    pub(super) fn result(&self, id: ValueId) -> Result<Hlo> {
        let value = self.read(id);
        let name = self.graph.values[id].name(self.program);
        match value.is_set() {
            true => Ok(value),
            false => Err(Error::new(ErrorKind::Fetch, format!("`{name}` has no value in StableHLO"))),
        }
    }

    /// Sets the value of the function for a value of the graph.
    pub(super) fn write(&mut self, id: ValueId, value: Hlo) -> Result<()> {
        let ty = HloType::of(&self.graph.values[id].meta);
        let name = self.graph.values[id].name(self.program);
        let fits = value.dtype() == ty.dtype && value.numel() == ty.dims.iter().product::<usize>();
        if !fits {
            let text = format!("`{name}` is {ty}, but its value is lowered as {}", value.ty());
            return Err(Error::internal(text));
        }
        let value = value.reshape(&ty.dims);
        self.f.name(&value, name);
        self.values[id] = Some(value);
        Ok(())
    }

    fn instruction(&mut self, node: &'a Instruction) -> Result<()> {
        self.comment(node);
        let outcome = self.lowered(node);
        match (self.f.take_failure(), outcome) {
            (_, Err(e)) | (Some(e), Ok(())) => Err(e),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Operator and source line.
    fn comment(&self, node: &Instruction) {
        let site = match node.desc.site {
            None => String::new(),
            Some(Site::Here(at)) => format!(", {}:{}", at.file(), at.line()),
            Some(Site::Loaded(at)) => format!(", {at}"),
        };
        let of = if self.depth > 0 { "  of it: " } else { "" };
        self.f.comment(&format!("{of}{}{}", node.desc.ty, if self.depth > 0 { String::new() } else { site }));
    }

    fn lowered(&mut self, node: &'a Instruction) -> Result<()> {
        if let Some(call) = &node.sub_block {
            return self.control(node, call);
        }
        let is_lazy = node.desc.attrs.get("lazy_mode") == Some(&Attr::Bool(true));
        for id in node.inputs.iter().chain(&node.outputs).filter_map(|(_, id)| *id) {
            let value = &self.graph.values[id];
            // Row-sparse tensors are lowered as dense ones: the other rows are 0.
            let why = match (value.meta.array, value.meta.rows) {
                (true, _) => "is a tensor array, which has no form in StableHLO",
                (false, Some(_)) if is_lazy => {
                    "is row-sparse, and `lazy_mode` leaves the other rows as they are"
                }
                (false, _) => continue,
            };
            let text = format!("`{}` {why}", value.name(self.program));
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if self.by_rule(node)? || formula::lower(self, node)? {
            return Ok(());
        }
        if self.depth < DEPTH && composition::lower(self, node)? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            "it has no form in StableHLO: neither a formula, nor a composition, nor a rule; write `impl Composition` for it, or \
             `impl Rule<Hlo>` with `autobwd_xla::rules!`",
        ))
    }

    fn by_rule(&mut self, node: &Instruction) -> Result<bool> {
        let Some(rule) = linked_rules().get(&*node.desc.ty) else { return Ok(false) };
        let schema = node.info.schema();
        // 16 bits are for storage, as on the host; products of 16 bits are sums of 32 bits on devices.
        let is_native = node.info.takes_any_dtype() || is_product(&node.desc);
        let widened = |id: ValueId| {
            let mut meta = self.graph.values[id].meta.clone();
            if !is_native {
                meta.dtype = meta.dtype.arithmetic();
            }
            meta
        };
        let mut filled = vec![];
        let mut fill = |role: Role, slot: &'static str, _: Var| {
            let (slots, wires) = match role {
                Role::Input => (schema.inputs, &node.inputs),
                Role::Output => (schema.outputs, &node.outputs),
            };
            let number = slots.iter().position(|s| s.name == slot);
            let mut wired = wires.iter().filter(|(n, _)| *n == number).filter_map(|(_, id)| *id);
            let seen = filled.iter().filter(|filled| **filled == (role, slot)).count();
            filled.push((role, slot));
            match wired.nth(seen) {
                Some(id) if role == Role::Input && self.values[id].is_some() => {
                    let meta = widened(id);
                    Ok(self.read(id).convert(meta.dtype).with_known(meta.constant()))
                }
                Some(id) => Ok(Hlo::unset(self.f, &widened(id))),
                // Scratch memory.
                None => Ok(Hlo::unset(self.f, &Meta::new(DType::F32, []))),
            }
        };
        let mut outputs = vec![];
        if !rule.apply(&node.desc, &mut fill, &mut |slot, value| outputs.push((slot, value)))? {
            return Ok(false);
        }
        if let Some(e) = self.f.take_failure() {
            return Err(e);
        }
        for slot in 0..schema.outputs.len() {
            let ids = node.outputs.iter().filter(|(n, _)| *n == Some(slot)).filter_map(|(_, id)| *id);
            let values = outputs.iter().filter(|(n, _)| *n == slot).map(|(_, value)| value);
            for (id, value) in ids.collect::<Vec<_>>().into_iter().zip(values) {
                if value.is_set() {
                    let dtype = self.graph.values[id].meta.dtype;
                    let value = if dtype.is_half() { value.convert(dtype) } else { value.clone() };
                    self.write(id, value)?;
                }
            }
        }
        Ok(true)
    }
}

/// Whether an operator is a product or a convolution.
fn is_product(desc: &OpDesc) -> bool {
    desc.is::<MatmulV2>() || desc.is::<Conv2dOp>() || desc.is::<Conv3dOp>()
}
