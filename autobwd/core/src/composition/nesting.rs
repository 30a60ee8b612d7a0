//! Compositions within compositions: none contains an operator of its own type, so that each has an end.

use std::cell::RefCell;

use rustc_hash::FxHashSet;

use crate::{
    BlockId, Error, ErrorKind, Name, OpDesc, OpInfo, OpInfoMap, Result, VarDesc,
    op::{LoopForm, OpSequence},
};

thread_local! {
    /// The operators whose compositions are being expanded on this thread, outermost first.
    static EXPANDING: RefCell<Vec<Name>> = const { RefCell::new(vec![]) };
}

/// Removes the innermost operator, also when a panic unwinds.
struct Expansion;
impl Drop for Expansion {
    fn drop(&mut self) {
        EXPANDING.with_borrow_mut(Vec::pop);
    }
}

/// Runs work on the composition of an operator that may expand the compositions of the operators in it.
///
/// # Errors
/// The work is part of an expansion of the same operator: the composition contains it, itself or by other compositions.
pub fn within<T>(op: &OpDesc, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let cycle = EXPANDING.with_borrow_mut(|expanding| {
        let first = expanding.iter().position(|ty| *ty == op.ty);
        expanding.push(op.ty);
        first.map(|first| expanding[first..].iter().map(|ty| format!("`{ty}`")).collect::<Vec<_>>())
    });
    let _expansion = Expansion;
    match cycle {
        None => work(),
        Some(cycle) => {
            let (ty, cycle) = (op.ty, cycle.join(" → "));
            let text = format!(
                "the composition of `{ty}` contains `{ty}` itself ({cycle}): compose it of operators of other types, \
                 whatever its attributes"
            );
            Err(Error::new(ErrorKind::Operator, text))
        }
    }
}

impl OpSequence {
    /// Checks that the composition of `op`, which this is, does not contain the operator itself. Compositions within
    /// are expanded once for each type of operator.
    ///
    /// # Errors
    /// It does.
    pub(super) fn check_nesting(&self, ops: &OpInfoMap, op: &OpDesc) -> Result<()> {
        self.check_nested(ops, op, &mut FxHashSet::default())
    }

    fn check_nested(&self, ops: &OpInfoMap, op: &OpDesc, seen: &mut FxHashSet<Name>) -> Result<()> {
        within(op, || {
            let blocks = self.program.blocks().iter().enumerate();
            for (block, part) in blocks.flat_map(|(k, block)| block.ops.iter().map(move |op| (k, op))) {
                let composing = ops.get(&part.ty).ok().and_then(OpInfo::own_composition);
                let Some(composing) = composing else { continue };
                within(part, || Ok(()))?;
                let meta = |var| self.program.lookup(BlockId::new(block), var).map(VarDesc::meta);
                // Other errors of that composition are for those who expand it.
                if seen.insert(part.ty)
                    && let Ok(line) = OpSequence::of(ops, composing, part, &meta, LoopForm::Block)
                {
                    line.check_nested(ops, part, seen)?;
                }
            }
            Ok(())
        })
    }
}
