//! Dynamic shapes: a plan ends before an operator whose output shapes depend on data.

use std::sync::Arc;

use crate::value_graph::{
    GraphBuilder, ValueId, ValueSource,
    captures::{BlockInputs, unsupplied},
    control::StepStateLayout,
};
use autobwd_core::{BlockCall, Error, ErrorKind, Meta, OpDesc, Result, Var};

/// An operator with a block that is planned step by step at run time, and the operators after it.
#[derive(Debug)]
pub struct DynamicTail {
    /// Position of the operator in its block.
    pub index: usize,
    pub call: BlockCall,
    /// Whether a later operator consumes the same step scopes.
    pub shared: bool,
    pub entering: BlockInputs,
    /// The layout of another operator's saved step state, if known, and the values read from it.
    pub record: Option<Arc<StepStateLayout>>,
    pub reads: Vec<(Var, bool)>,
    /// The values that its own steps save, if any, and whether with elements.
    pub leave: Option<Vec<(Var, bool)>>,
    /// Dtypes and shapes of sums.
    pub sums: Vec<Meta>,
    /// Values before it that the later operators read, apart from the scope.
    pub captured: Vec<ValueId>,
    /// Variables of the scope that the later operators read or write, with their dtype and shape if accessed before.
    pub in_scope: Vec<(Var, Option<Meta>)>,
    /// Variables required at the end.
    pub ends: Vec<Var>,
}

impl GraphBuilder<'_> {
    pub(crate) fn dynamic_tail(
        &mut self,
        index: usize,
        call: &BlockCall,
        entering: BlockInputs,
        leave: Option<Vec<(Var, bool)>>,
    ) -> Result<DynamicTail> {
        let reads = unsupplied(self.program, self.ops, call)?;
        let like = |(_, _, like): &(Var, Var, Var)| Ok(self.meta_of(None, *like, *like)?.dense());
        Ok(DynamicTail {
            index,
            record: entering.scopes.and_then(|id| self.graph.values[id].record.clone()),
            reads,
            leave,
            sums: call.sums.iter().map(like).collect::<Result<_>>()?,
            shared: self.shares_steps(index, call),
            call: call.clone(),
            entering,
            captured: vec![],
            in_scope: vec![],
            ends: vec![],
        })
    }

    /// Ends the plan before that operator; the inputs of it and of the later operators stay in memory.
    pub(crate) fn end_early<'b>(
        &mut self,
        mut tail: DynamicTail,
        behind: impl Iterator<Item = &'b OpDesc>,
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
        let behind = behind.flat_map(|op| op.reads().chain(op.writes()));
        for var in tail.ends.iter().copied().chain(behind) {
            if std::mem::replace(&mut seen[var.index()], true) {
                continue;
            }
            let now = self.current[var.index()];
            match self.is_in_scope(var) {
                true => tail.in_scope.push((var, now.map(|id| self.graph.values[id].meta.clone()))),
                false => tail.captured.extend(now),
            }
        }
        let stays = |id: &ValueId| {
            let value = &self.graph.values[*id];
            !value.meta.array && !matches!(value.source, ValueSource::Outer(_) | ValueSource::Scope)
        };
        let entering = tail.entering.inputs().into_iter().filter_map(|(_, id)| id);
        let all = (0..self.request.initial.len()).chain(tail.captured.iter().copied()).chain(entering);
        let mut stay: Vec<ValueId> = all.filter(stays).collect();
        stay.sort_unstable();
        stay.dedup();
        self.graph.fetches = stay;
        self.graph.tail = Some(Arc::new(tail));
        Ok(())
    }
}
