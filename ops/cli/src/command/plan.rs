//! `plan`: what a run will do, and its memory.

use autobwd::{Executor, Meta, Program, Scope, exec::PlanReport};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{ModelPath, run::executor};
use crate::{
    feeds::{feeds, fetches, fill_scope},
    terminal::{CommandResult, Terminal, grouped},
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
        let program = self.model.read_program()?;
        let feeds = feeds(&program, &self.model.known.shapes)?;
        let fetches = fetches(&program, &self.fetch);
        let (executor, mut scope) = (executor(self.threads), Scope::new());
        fill_scope(&program, &mut scope)?;
        let plan = executor.plan(&program, &scope, &feeds, &fetches)?;
        // A plan may be for a machine with more memory: without a session, only the peak is unknown.
        let mut peak = || peak_bytes(&executor, &program, &mut scope, &feeds, &fetches);
        match self.format {
            PlanForm::Svg => terminal.print(&plan.to_svg()),
            PlanForm::Json => terminal.print_json(&document(&plan, &fetches, peak())),
            PlanForm::Text => {
                let peak = peak().map(|peak| format!("peak of {} bytes\n", grouped(peak as u64)));
                terminal.print(&format!("{plan}{}", peak.unwrap_or_default()))
            }
        }
    }
}

/// The peak, which is known when kernels are bound to memory.
fn peak_bytes(
    executor: &Executor,
    program: &Program,
    scope: &mut Scope,
    feeds: &[(&str, Meta)],
    fetches: &[&str],
) -> Option<usize> {
    Some(executor.prepare(program, scope, feeds, fetches).ok()?.peak_bytes())
}

fn document<'a>(plan: &'a PlanReport, fetches: &'a [&'a str], peak_bytes: Option<usize>) -> PlanJson<'a> {
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
        peak_bytes,
        arena_bytes: plan.arena_bytes(),
        live_bytes: plan.live_bytes(),
        instructions: instructions.collect(),
        buffers: buffers.collect(),
        planned_at_run_time: plan.tail(),
    }
}
