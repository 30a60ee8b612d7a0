//! Gradient operators of the reference that have no registered operator because their forward operator is composed: in their
//! place are the operators of the composition's gradient.
//!
//! Such a gradient operator may lack inputs of its forward operator, so the forward operator is searched for in the file.

use std::collections::{HashMap, HashSet};

use autobwd::{
    BlockId, DType, Dims, OpDesc, OpInfoMap, Program, Result, VarDesc,
    op::{GradKind, OpInfo},
    operators::zeros,
    program::Var,
};
use autobwd_core::__private::{DeclaredVars, GradRequest, internals::OpInfoInternals};

use crate::{
    proto::{self, op_desc},
    reference::slot_there,
};

/// An operator whose gradient is composed.
pub(super) struct ComposedForward {
    /// Its name in the file, and its slots there.
    ty: String,
    slots: Vec<op_desc::Var>,
    desc: OpDesc,
}

impl ComposedForward {
    /// The operator as the file has it and as it is here; `None` if its gradient is not composed.
    pub(super) fn of(info: &OpInfo, op: &proto::OpDesc, desc: &OpDesc) -> Option<ComposedForward> {
        let slots = || op.inputs.iter().chain(&op.outputs).cloned().collect();
        matches!(info.grad_kind(), GradKind::Composed).then(|| ComposedForward {
            ty: op.r#type.clone(),
            slots: slots(),
            desc: desc.clone(),
        })
    }

    /// Whether `op` is the gradient of this operator: it reads the same variables.
    fn has_gradient(&self, op: &proto::OpDesc) -> bool {
        let same = |read: &op_desc::Var| {
            let own = self.slots.iter().find(|slot| slot.parameter == read.parameter);
            read.arguments.is_empty() || own.is_none_or(|own| own.arguments == read.arguments)
        };
        op.r#type.strip_suffix("_grad") == Some(&self.ty) && op.inputs.iter().all(same)
    }
}

/// The operators whose gradients are composed, which gradient operators find by what they read.
#[derive(Default)]
pub(super) struct ComposedForwards {
    all: Vec<ComposedForward>,
    /// By type, slot and arguments: positions in `all`.
    by_slot: HashMap<(String, String, Vec<String>), Vec<usize>>,
}

impl ComposedForwards {
    pub(super) fn add(&mut self, forward: ComposedForward) {
        for slot in &forward.slots {
            let key = (forward.ty.clone(), slot.parameter.clone(), slot.arguments.clone());
            self.by_slot.entry(key).or_default().push(self.all.len());
        }
        self.all.push(forward);
    }

    /// The last operator whose gradient `op` is.
    fn of_gradient(&self, op: &proto::OpDesc) -> Option<&ComposedForward> {
        let ty = op.r#type.strip_suffix("_grad")?;
        let read = op.inputs.iter().filter(|slot| !slot.arguments.is_empty());
        let positions = read.filter_map(|slot| {
            // The gradient of an output is named after it.
            let before = |name: &String| name.split("@GRAD").next().unwrap_or_default().to_string();
            let arguments = slot.arguments.iter().map(before).collect();
            self.by_slot.get(&(ty.to_string(), before(&slot.parameter), arguments))
        });
        let fewest = positions.min_by_key(|positions| positions.len())?;
        fewest.iter().rev().map(|at| &self.all[*at]).find(|forward| forward.has_gradient(op))
    }
}

/// A gradient operator of the file, for a position in a block.
pub(super) struct ComposedGradient {
    block: BlockId,
    at: usize,
    forward: OpDesc,
    /// The gradients of the forward operator's outputs.
    arriving: HashMap<Var, Var>,
    /// The gradients of its inputs, in their order; [`Var::EMPTY`] for one that is not wanted.
    wanted: Vec<Var>,
}

impl ComposedGradient {
    /// The gradient operator `op`; `None` if its forward operator is not among `forwards`.
    pub(super) fn of(
        forwards: &ComposedForwards,
        (block, at): (BlockId, usize),
        op: &proto::OpDesc,
        program: &mut Program,
    ) -> Option<ComposedGradient> {
        let forward = forwards.of_gradient(op)?.desc.clone();
        let mut gradients = |slots: &[op_desc::Var], slot: &str, count: usize| -> Vec<Var> {
            let name = format!("{}@GRAD", slot_there(&forward.ty, slot));
            let args = slots.iter().find(|args| args.parameter == name).map(|args| &args.arguments);
            let mut vars: Vec<Var> = args.into_iter().flatten().map(|name| program.var(name)).collect();
            vars.resize(count, Var::EMPTY);
            vars
        };
        let mut arriving = HashMap::new();
        for (slot, args) in forward.outputs.iter() {
            arriving.extend(args.iter().copied().zip(gradients(&op.inputs, &slot, args.len())));
        }
        arriving.retain(|_, gradient| *gradient != Var::EMPTY);
        let mut wanted = vec![];
        for (slot, args) in forward.inputs.iter() {
            wanted.extend(gradients(&op.outputs, &slot, args.len()));
        }
        Some(ComposedGradient { block, at, forward, arriving, wanted })
    }

    /// The operators in its place; new variables get a declaration that their shape rules replace.
    fn lower(&self, program: &mut Program, ops: &OpInfoMap) -> Result<Vec<OpDesc>> {
        let mut forward = self.forward.clone();
        let mut originals: HashMap<Var, Var> = HashMap::new();
        let mut gradients: Vec<(Var, Var)> = vec![];
        let inputs: Vec<Var> = forward.inputs.args().collect();
        for (i, arg) in forward.inputs.args_mut().enumerate() {
            // Every argument has a gradient of its own, also of a variable that is an argument twice.
            if *arg != Var::EMPTY && inputs[..i].contains(arg) {
                let copy = program.fresh("x");
                originals.insert(copy, *arg);
                *arg = copy;
            }
            if let Some(gradient) = self.wanted.get(i).filter(|gradient| **gradient != Var::EMPTY) {
                gradients.push((*arg, *gradient));
            }
        }
        let original = |var: Var| originals.get(&var).copied().unwrap_or(var);
        let (info, mut emitted) = (ops.get(&forward.ty)?, vec![]);
        info.check(&forward)?;
        info.emit_grad(GradRequest {
            ops,
            fwd: &forward,
            names: program,
            declared: DeclaredVars { block: self.block, original: &original },
            of_output: &|var| self.arriving.get(&var).copied().unwrap_or(Var::EMPTY),
            wanted: &|var| gradients.iter().find(|(arg, _)| *arg == var).map(|(_, gradient)| *gradient),
            arrives: &|var| self.arriving.contains_key(&var),
            block: None,
            emitted: &mut emitted,
        })?;
        for (arg, gradient) in &gradients {
            if !emitted.iter().any(|op| op.writes().any(|var| var == *gradient)) {
                emitted.push(zeros(*arg, *gradient));
            }
        }
        for op in &mut emitted {
            op.inputs.args_mut().for_each(|arg| *arg = original(*arg));
            op.site = self.forward.site;
        }
        let new: Vec<Var> = emitted.iter().flat_map(OpDesc::writes).collect();
        if let Some(block) = program.block_mut(self.block) {
            for var in new {
                if block.vars.get(&var).is_none() {
                    block.vars.insert(var, VarDesc::new(DType::F32, Dims::default()));
                }
            }
        }
        Ok(emitted)
    }
}

/// Replaces gradient operators by the operators of their compositions. The forward operators' variables have their inferred shapes.
pub(super) fn lower_composed_gradients(
    program: &mut Program,
    gradients: &[ComposedGradient],
    ops: &OpInfoMap,
) -> Result<()> {
    let mut lowered: HashMap<(BlockId, usize), Vec<OpDesc>> = HashMap::new();
    for gradient in gradients {
        lowered.insert((gradient.block, gradient.at), gradient.lower(program, ops)?);
    }
    let blocks: HashSet<BlockId> = gradients.iter().map(|gradient| gradient.block).collect();
    for id in blocks {
        let Some(block) = program.block_mut(id) else { continue };
        let ops = std::mem::take(&mut block.ops).into_iter().enumerate();
        block.ops = ops.flat_map(|(at, op)| lowered.remove(&(id, at)).unwrap_or_else(|| vec![op])).collect();
    }
    Ok(())
}
