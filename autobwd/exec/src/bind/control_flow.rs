//! The kernel of an operator that runs a sub-block of static shapes.

use std::sync::Arc;

use crate::bind::{
    bound_block::SavedRange,
    bound_step::{BoundInputs, BoundStep},
    static_block::StaticBlock,
    step_loop::{Replay, StepLoop},
};
use autobwd_core::{
    __private::{ValueCell, internals::*},
    Buf, Cx, Kernel, Result,
};
use autobwd_plan::{ReplayPlan, SubBlockPlan};

/// An operator that runs a sub-block.
pub(crate) struct BlockCallKernel {
    steps: StepLoop,
    block: StaticBlock,
}

impl BlockCallKernel {
    pub(crate) fn new(
        plan: &SubBlockPlan,
        step: BoundStep,
        inputs: BoundInputs,
        outputs: Vec<Buf<'static>>,
        limit: u64,
    ) -> Result<BlockCallKernel> {
        let mut outputs = outputs.into_iter();
        let own_scopes = inputs.scopes()?;
        let block = StaticBlock::new(plan, step, inputs, &mut outputs)?;
        let written = outputs.next().filter(|_| plan.saves_steps);
        let written_scopes = written.map(|buf| buf.cell().cloned()).transpose()?;
        let steps = StepLoop {
            steps: plan.steps,
            count: plan.count.unwrap_or(0),
            limit,
            scopes: own_scopes.or(written_scopes),
            shares_steps: plan.shares_steps,
            save_interval: plan.save_interval,
            replay: None,
        };
        Ok(BlockCallKernel { steps, block })
    }

    /// Bytes of memory of its own.
    pub(crate) fn total_bytes(&self) -> usize {
        self.block.total_bytes()
    }

    /// Sets it up to rerun the steps of another operator, which saved the inputs of every n-th step.
    pub(crate) fn set_replay(&mut self, kernel: BlockCallKernel, plan: &ReplayPlan) -> Result<()> {
        self.steps.replay = Some(Replay {
            steps: kernel.steps.steps,
            count: kernel.steps.count,
            carried: SavedRange::of(&plan.sub_block.step.plan, &plan.carried)?,
            block: Box::new(kernel.block),
            cell: Arc::new(ValueCell::Steps(Default::default())),
            save_interval: plan.sub_block.save_interval,
            steps_before: 0,
        });
        Ok(())
    }
}

impl Kernel for BlockCallKernel {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.block.step.block.begin_call(cx)?;
        if let Some(replay) = &mut self.steps.replay {
            replay.block.step.block.begin_call(cx)?;
        }
        let ran = self.steps.run(cx, &mut self.block)?;
        self.block.write_final_values(ran > 0)
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        self.block.step.block.lent_bytes
    }
}
