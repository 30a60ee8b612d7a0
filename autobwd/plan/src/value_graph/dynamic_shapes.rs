//! Dynamic shapes: a plan ends before a loop whose shapes change from step to step, and after an operator whose kernel
//! decides the shapes of its outputs.

use std::sync::Arc;

use super::{
    ValueId, ValueSource,
    block_inputs::BlockInputs,
    builder::GraphBuilder,
    captures::state_reads,
    step_state::StateVar,
    sub_block::{DynamicOp, DynamicSteps, DynamicTail},
};
use autobwd_core::{BlockCall, Error, ErrorKind, OpDesc, Result, Var};

impl GraphBuilder<'_> {
    /// The end of the plan after an operator whose kernel decides the shapes of these outputs.
    ///
    /// # Errors
    /// The operator is part of a composition; an output is a value of the scope.
    pub(crate) fn decided_tail(&self, index: usize, decided: Vec<ValueId>) -> Result<DynamicTail> {
        let block = self.program.block(self.request.block);
        let written = block.and_then(|block| block.ops.get(index));
        for id in &decided {
            let value = &self.graph.values[*id];
            if written.is_none_or(|op| op.writes().all(|var| var != value.var)) {
                let text = "data decides a shape within the composition of the operator; let the composition be its \
                            meaning, and write a kernel";
                return Err(Error::new(ErrorKind::Operator, text));
            }
            if value.in_scope {
                let name = value.name(self.program);
                let text = format!(
                    "`{}`: data decides its shape, but `{name}` is kept in the scope, where shapes do not change",
                    value.meta.slot()
                );
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        Ok(DynamicTail {
            index,
            op: DynamicOp::Kernel(decided),
            captured: vec![],
            in_scope: vec![],
            ends: vec![],
        })
    }

    pub(crate) fn dynamic_tail(
        &mut self,
        index: usize,
        call: &BlockCall,
        inputs: BlockInputs,
        saved: Option<Vec<StateVar>>,
    ) -> Result<DynamicTail> {
        let reads = state_reads(self.program, self.ops, call)?;
        let like = |(_, _, like): &(Var, Var, Var)| Ok(self.meta_of(None, *like, *like)?.dense());
        let steps = DynamicSteps {
            layout: inputs.scopes.and_then(|id| self.graph.values[id].layout.clone()),
            reads,
            saved,
            sums: call.sums.iter().map(like).collect::<Result<_>>()?,
            shares_steps: self.shares_steps(index, call),
            call: call.clone(),
            inputs,
        };
        let op = DynamicOp::Steps(Arc::new(steps));
        Ok(DynamicTail { index, op, captured: vec![], in_scope: vec![], ends: vec![] })
    }

    /// Ends the plan there; what the operators that are not part of it read stays in memory.
    pub(crate) fn end_early<'b>(
        &mut self,
        mut tail: DynamicTail,
        later_ops: impl Iterator<Item = &'b OpDesc>,
    ) -> Result<()> {
        for name in self.request.fetches {
            let refuse = |e: String| Error::new(ErrorKind::Fetch, e);
            let var = self.program.expect_var(name).map_err(|e| refuse(format!("cannot fetch: {e}")))?;
            if self.is_list(var) {
                let text = format!("`{name}` is fetched, but it is a tensor array; fetch an element of it");
                return Err(refuse(text));
            }
            tail.ends.push(var);
        }
        tail.ends.extend(self.request.ends);
        let mut seen = vec![false; self.program.name_count()];
        let accessed = later_ops.flat_map(|op| op.reads().chain(op.writes()));
        for var in tail.ends.iter().copied().chain(accessed) {
            if std::mem::replace(&mut seen[var.index()], true) {
                continue;
            }
            let value = self.current[var.index()];
            match self.is_in_scope(var) {
                true => tail.in_scope.push((var, value.map(|id| self.graph.values[id].meta.clone()))),
                false => tail.captured.extend(value),
            }
        }
        for id in &tail.captured {
            // Shape rules of the later operators may read its elements.
            self.find_constant(*id);
        }
        let is_in_arena = |id: &ValueId| {
            let value = &self.graph.values[*id];
            !value.meta.array && !matches!(value.source, ValueSource::Outer(_) | ValueSource::Scope)
        };
        let inputs = match &tail.op {
            DynamicOp::Steps(steps) => steps.inputs.values(),
            DynamicOp::Kernel(decided) => decided.iter().map(|id| (None, Some(*id))).collect(),
        };
        let inputs = inputs.into_iter().filter_map(|(_, id)| id);
        let read = (0..self.request.initial.len()).chain(tail.captured.iter().copied()).chain(inputs);
        let mut fetches: Vec<ValueId> = read.filter(is_in_arena).collect();
        fetches.sort_unstable();
        fetches.dedup();
        self.graph.fetches = fetches;
        self.graph.tail = Some(Arc::new(tail));
        Ok(())
    }
}
