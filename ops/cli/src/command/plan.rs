//! `plan`: what a run will do, and its memory.

use std::collections::BTreeMap;

use autobwd::{
    Scope,
    exec::{MemoryUse, PlanReport, PlannedRun},
};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{ModelPath, run::executor};
use crate::{
    bytes::parse_bytes,
    feeds::{feed_metas, fetches},
    terminal::{CommandFailure, CommandResult, Terminal},
};

/// Show what a run does, and its memory, before it runs
///
/// Lists the instructions with the operators that each runs, and the buffers of the arena with their lifetimes.
#[derive(Debug, Args)]
pub(crate) struct PlanCommand {
    #[command(flatten)]
    model: ModelPath,
    /// The variables to fetch, instead of all results
    #[arg(long, value_name = "VAR", value_delimiter = ',')]
    fetch: Vec<String>,
    /// The number of threads
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The memory that a run may take, such as `1.5GB`: fail if it takes more
    #[arg(long, value_name = "BYTES")]
    budget: Option<String>,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: PlanForm,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PlanForm {
    /// A table
    Text,
    /// One line of JSON
    Json,
    /// A drawing of the arena over time
    Svg,
}

#[derive(Serialize)]
struct PlanJson<'a> {
    schema: &'static str,
    fetches: &'a [&'a str],
    peak_bytes: Option<usize>,
    memory_bytes: Option<BTreeMap<&'static str, usize>>,
    arena_bytes: usize,
    live_bytes: usize,
    instructions: Vec<InstructionJson<'a>>,
    buffers: Vec<BufferJson<'a>>,
    planned_at_run_time: Option<&'a str>,
}

#[derive(Serialize)]
struct InstructionJson<'a> {
    operators: &'a [String],
    extents: &'a [String],
    once: bool,
}

#[derive(Serialize)]
struct BufferJson<'a> {
    variables: &'a [String],
    offset: usize,
    bytes: usize,
    first: usize,
    last: usize,
}

impl PlanCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let budget_bytes =
            self.budget.as_deref().map(parse_bytes).transpose().map_err(CommandFailure::unreadable)?;
        let program = self.model.read_program()?;
        let feeds = feed_metas(&program, &self.model.known.shapes)?;
        let fetches = fetches(&program, &self.fetch);
        let (executor, mut scope) = (executor(self.threads), Scope::new());
        scope.add_zeros(&program)?;
        let plan = executor.plan(&program, &scope, &feeds, &fetches)?;
        // A plan may be for a machine with more memory: without a session, only scratch memory is unknown.
        let run = PlannedRun { program: &program, feeds: &feeds, fetches: &fetches };
        let memory = MemoryUse::planned(&executor, &[run]);
        match self.format {
            PlanForm::Svg => terminal.print(&plan.to_svg())?,
            PlanForm::Json => terminal.print_json(&document(&plan, &fetches, memory.as_ref().ok()))?,
            PlanForm::Text => {
                let parts = memory.as_ref().map_or_else(|_| String::new(), MemoryUse::to_string);
                terminal.print(&format!("{plan}{parts}"))?;
            }
        }
        match budget_bytes {
            Some(budget_bytes) => Ok(memory?.require_within(budget_bytes)?),
            None => Ok(()),
        }
    }
}

fn document<'a>(plan: &'a PlanReport, fetches: &'a [&'a str], memory: Option<&MemoryUse>) -> PlanJson<'a> {
    let instructions = plan.instructions().iter().map(|instruction| InstructionJson {
        operators: &instruction.operators,
        extents: &instruction.spaces,
        once: instruction.once,
    });
    let buffers = plan.buffers().iter().map(|buffer| BufferJson {
        variables: &buffer.variables,
        offset: buffer.offset,
        bytes: buffer.bytes,
        first: buffer.first,
        last: buffer.last,
    });
    PlanJson {
        schema: "autobwd.plan/1",
        fetches,
        peak_bytes: memory.map(|memory| memory.arena + memory.scratch),
        memory_bytes: memory.map(|memory| {
            BTreeMap::from([
                ("parameters", memory.parameters),
                ("optimizer_state", memory.optimizer_state),
                ("other_kept", memory.other_kept),
                ("arena", memory.arena),
                ("scratch", memory.scratch),
                ("copies", memory.copies),
            ])
        }),
        arena_bytes: plan.arena_bytes(),
        live_bytes: plan.live_bytes(),
        instructions: instructions.collect(),
        buffers: buffers.collect(),
        planned_at_run_time: plan.tail(),
    }
}
