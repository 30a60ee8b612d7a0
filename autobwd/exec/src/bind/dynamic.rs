//! Execution of operators of dynamic shape, and of the operators after them, which are planned for their shapes.

use std::sync::Arc;

use crate::bind::{
    bound_block::{BlockEnd, CapturedValue, TailKernel},
    dynamic_loop::{DynamicLoop, DynamicValue},
    segment::{Segment, SegmentKey, SegmentPlanner},
};
use autobwd_core::{
    __private::{Memory, internals::*},
    BlockId, Buf, Cx, Error, Result, Var,
};
use autobwd_plan::{DynamicTail, InitialValue, StepEnds, StepInputs, ValueSource};

/// An operator whose output shapes are known when it has run, and the operators after it.
pub(crate) struct DynamicKernel {
    block: BlockId,
    planner: Arc<SegmentPlanner>,
    tail: Arc<DynamicTail>,
    op: BoundDynamicOp,
    /// Earlier values that the later operators read, with their locations.
    captured: Vec<(InitialValue, CapturedValue)>,
    later_ops: Segment,
    /// The shapes that the later operators last ran with.
    last_key: SegmentKey,
}

/// The operator, with its inputs or outputs.
pub(crate) enum BoundDynamicOp {
    /// It is planned step by step.
    Steps(Box<DynamicLoop>),
    /// It is the last instruction of the block; these outputs have their shapes when it has run.
    Kernel(Vec<(Var, Buf<'static>)>),
}

impl DynamicKernel {
    pub(crate) fn new(
        planner: Arc<SegmentPlanner>,
        block: BlockId,
        tail: Arc<DynamicTail>,
        op: BoundDynamicOp,
        captured: Vec<(InitialValue, CapturedValue)>,
    ) -> DynamicKernel {
        let later_ops = Segment::new(block, tail.index + 1);
        DynamicKernel { block, planner, tail, op, captured, later_ops, last_key: SegmentKey::default() }
    }

    /// Runs the operator, if it is not an instruction that has run; returns its outputs.
    fn call(&mut self, cx: &Cx) -> Result<Vec<(Var, DynamicValue)>> {
        match &mut self.op {
            BoundDynamicOp::Steps(steps) => steps.run(cx),
            BoundDynamicOp::Kernel(outputs) => {
                let output = |(var, buf): &(Var, Buf<'_>)| Ok((*var, DynamicValue::Tensor(buf.to_tensor()?)));
                outputs.iter().map(output).collect()
            }
        }
    }
    /// Runs the later operators.
    fn run_later_ops(&mut self, cx: &Cx, outputs: Vec<(Var, DynamicValue)>) -> Result<()> {
        let (planner, tail) = (&self.planner, &self.tail);
        let mut initial: Vec<InitialValue> = vec![];
        let mut inputs = StepInputs::default();
        let mut outer: Vec<CapturedValue> = vec![];
        let mut shapes = vec![];
        let mut feeds = vec![];
        let is_in_scope = |var: Var| tail.in_scope.iter().any(|(v, _)| *v == var);
        let is_current = |value: &InitialValue| outputs.iter().all(|(var, _)| *var != value.var);
        for (value, location) in self.captured.iter().filter(|(value, _)| is_current(value)) {
            initial.push(InitialValue { source: ValueSource::Outer(outer.len()), ..value.clone() });
            outer.push(location.clone());
        }
        for (var, output) in outputs {
            if let DynamicValue::Tensor(tensor) = &output
                && is_in_scope(var)
            {
                planner.write_to_scope(var, tensor)?;
                continue;
            }
            shapes.push(output.shape());
            let meta = output.meta();
            let source = match output {
                DynamicValue::Tensor(tensor) => {
                    inputs.carried.push(Some(initial.len()));
                    feeds.push(tensor);
                    ValueSource::Feed
                }
                DynamicValue::Cell(_, cell) => {
                    outer.push(CapturedValue::Cell(cell));
                    ValueSource::Outer(outer.len() - 1)
                }
            };
            initial.push(InitialValue { var, meta, source, layout: None });
        }
        self.last_key = (shapes, None);
        let ends = StepEnds { vars: tail.ends.clone(), ..StepEnds::default() };
        let describe = || (initial, inputs, ends);
        let segment = self.later_ops.prepare(cx, planner, &self.last_key, &outer, describe)?;
        segment.step.feed(feeds.iter().map(|tensor| Some(tensor.bytes())));
        segment.step.block.run(cx)
    }
}

impl TailKernel for DynamicKernel {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let outputs = self.call(cx).map_err(|e| {
            let (program, index) = (self.planner.program(), self.tail.index);
            let op = program.block(self.block).and_then(|block| block.ops.get(index));
            match op {
                Some(op) => e.at_op(|| program.describe_op(self.block, index, op)),
                None => e,
            }
        })?;
        self.run_later_ops(cx, outputs)
    }

    fn bytes(&self) -> usize {
        let steps = match &self.op {
            BoundDynamicOp::Steps(steps) => steps.bytes(),
            BoundDynamicOp::Kernel(_) => 0,
        };
        steps + self.later_ops.bytes()
    }

    fn end(&self, position: usize) -> Result<(&Memory, &BlockEnd)> {
        let block = self.later_ops.bound_block(&self.last_key);
        block.ok_or_else(|| Error::internal("the end of a segment that has not run"))?.end(position)
    }
}
