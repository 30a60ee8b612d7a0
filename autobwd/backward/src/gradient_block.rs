//! The gradient of a sub-block for a single operator.

use autobwd_core::{
    __private::internals::*, BlockId, Error, ErrorKind, GradBlock, OpDesc, OpInfoMap, Program, Result, Var,
    VarDesc, VarKind,
};

use crate::{atomically, declare, gradient_ops::block, ops_or_linked};

/// Adds the gradient of the block that an operator runs (`while`, `conditional_block`, `recurrent`) to the program, as a
/// block within `parent`, which declares the operator's variables. `None` if no gradient passes through the block.
/// Variables in `no_grad` have no gradient; the operators are `ops`, or those linked into this binary.
///
/// [`OpInfoMap::gradient_ops_with_block`] makes the operator's gradient operators with it. [`append_backward`] does both
/// for a whole program; this is for tools that differentiate operators one by one, as the reference does in Python.
///
/// ```
/// use autobwd::{Builder, DType, OpInfoMap, backward::gradient_block, program::BlockId};
/// use autobwd_ops::{Math, control::while_loop};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[]);
/// while_loop(&[x], |v| v[0].less_than(&v[0].square()), |v| vec![v[0].tanh()]);
/// let mut program = net.program()?.clone();
/// let op = program.root().ops.iter().find(|op| op.ty == "while").cloned().expect("a loop");
/// let block = gradient_block(&mut program, BlockId::ROOT, &op, &[], None)?.expect("a gradient");
/// let found = OpInfoMap::linked()?.gradient_ops_with_block(&mut program, &op, &[], &block)?;
/// assert_eq!(found.ops[0].ty, "while_grad");
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// [`append_backward`]: crate::append_backward
///
/// # Errors
/// A program of inconsistent structure, an unknown operator, invalid slots or attributes, variables or blocks of another
/// program, an operator that runs no block; an operator of the block has no gradient. The program is then unchanged.
pub fn gradient_block(
    program: &mut Program,
    parent: BlockId,
    op: &OpDesc,
    no_grad: &[Var],
    ops: Option<&OpInfoMap>,
) -> Result<Option<GradBlock>> {
    let ops = ops_or_linked(ops)?;
    atomically(program, |program| build(ops, program, parent, op, no_grad))
        .map_err(|e| e.at_op(|| program.describe_at("by itself", op)))
}

/// Requires that the variables and blocks belong to the program, whose tables they index.
fn require_own(program: &Program, parent: BlockId, op: &OpDesc, no_grad: &[Var]) -> Result<()> {
    let is_foreign = |var: Var| var.index() >= program.name_count();
    if op.reads().chain(op.writes()).chain(no_grad.iter().copied()).any(is_foreign) {
        return Err(Error::new(ErrorKind::UnknownVar, "a variable of another program"));
    }
    let blocks = program.blocks().len();
    if parent.index() >= blocks {
        return Err(Error::new(ErrorKind::Program, format!("there is no block {}", parent.index())));
    }
    let nested = parent.index() + 1..blocks;
    match op.attrs.blocks().map(BlockId::index).find(|block| !nested.contains(block)) {
        None => Ok(()),
        Some(block) => {
            let text = format!("block {block} is not nested in block {}", parent.index());
            Err(Error::new(ErrorKind::Program, text))
        }
    }
}

fn build(
    ops: &OpInfoMap,
    program: &mut Program,
    parent: BlockId,
    op: &OpDesc,
    no_grad: &[Var],
) -> Result<Option<GradBlock>> {
    program.check_structure()?;
    require_own(program, parent, op, no_grad)?;
    let info = ops.get(&op.ty)?;
    info.check(op)?;
    let Some(call) = info.call(op, program)? else {
        return Err(Error::new(ErrorKind::NoGradient, "the operator runs no block"));
    };
    let mut cut = vec![false; program.name_count()];
    let stopped = |var: &Var| program.lookup(parent, *var).is_some_and(|desc| desc.stop_gradient);
    for var in no_grad.iter().copied().chain(op.reads().chain(op.writes()).filter(stopped)) {
        cut[var.index()] = true;
    }
    let differentiable = |desc: &VarDesc| desc.dtype.is_float() && desc.kind != VarKind::StepScopes;
    let arriving = op
        .writes()
        .filter(|var| !cut[var.index()] && program.lookup(parent, *var).is_none_or(differentiable));
    let (arriving, mut inners) = (arriving.collect::<Vec<Var>>(), vec![]);
    let built = block::build(ops, program, (op, &call), parent, &cut, &arriving, &mut inners)?;
    let Some(built) = built else { return Ok(None) };
    for (id, vars) in declare::declare_block(ops, program, &inners)? {
        if let Some(block) = program.block_mut(id) {
            block.vars.extend(vars);
        }
    }
    Ok(Some(built.block))
}
