//! `grad`: appends the backward pass, and the updates of an optimizer.

use std::path::Path;

use autobwd::{Backward, Builder, DType, Executor, Program, append_backward, backward::Recompute};
use autobwd_ops::{
    mixed_precision::{PrecisionLists, mixed_precision},
    optim::{MemoryBudget, Optimizer, OptimizerSpec},
};
use clap::Args;

use super::ModelPath;
use crate::{
    bytes::parse_bytes,
    feeds::feed_metas,
    output::check_outputs,
    program_file::{Format, write_model},
    source_lines::forget_source_lines,
    terminal::{CommandFailure, CommandResult, Terminal, grouped},
};

/// Append the backward pass to a program
///
/// The gradient of `w` is the variable `w@GRAD`. Parameters without gradient are reported with the reason. An optimizer
/// also updates the parameters; the program that initialises its learning rate and its states goes to the file of
/// --startup. A file with values (.onnx, .pdmodel) has the initial ones in itself, and returns the loss; without an
/// optimizer also the gradients.
#[derive(Debug, Args)]
pub(crate) struct GradCommand {
    #[command(flatten)]
    model: ModelPath,
    /// The variable to differentiate, of one element
    #[arg(long, value_name = "VAR")]
    loss: String,
    /// The variables whose gradients are needed, instead of all parameters
    #[arg(long, value_name = "VAR", value_delimiter = ',')]
    parameters: Option<Vec<String>>,
    /// Set operators that behave differently in training (dropout, batch_norm) to do so, and list the parameters that are
    /// trained, frozen, or unreachable from the loss
    #[arg(long)]
    train: bool,
    /// Parameters that are not trained, as a pattern such as `conv1*`; may be repeated, and implies --train
    #[arg(long, value_name = "PATTERN")]
    freeze: Vec<String>,
    /// Variables without gradient
    #[arg(long, value_name = "VAR", value_delimiter = ',')]
    no_grad: Vec<String>,
    /// The forward values to keep, as names, or `auto:BYTES` for a budget with the shapes of --shape;
    /// the others are recomputed
    #[arg(long, value_name = "VAR", value_delimiter = ',')]
    checkpoints: Vec<String>,
    /// The memory that a training step may take, such as `1.5GB`, on data of the shapes of --shape: what is cheapest is
    /// recomputed until it fits, and the memory is listed
    #[arg(long, value_name = "BYTES", requires = "optimizer", conflicts_with = "checkpoints")]
    budget: Option<String>,
    /// The number of threads of the runs within --budget
    #[arg(long, value_name = "N", requires = "budget")]
    threads: Option<usize>,
    /// The optimizer with its learning rate and options, such as `sgd:0.1` or `adamw:0.001,decay=0.05`
    #[arg(long, value_name = "OPTIMIZER", long_help = optimizer_help())]
    optimizer: Option<OptimizerSpec>,
    /// Compute in 16 bits where that is fast: `bfloat16`, or `float16`, for which an optimizer scales the loss
    #[arg(long, value_name = "DTYPE", value_parser = half_dtype)]
    mixed_precision: Option<DType>,
    /// The file for the program that initialises the optimizer, for `run --startup`
    #[arg(long, value_name = "FILE", requires = "optimizer")]
    startup: Option<String>,
    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: String,
}

impl GradCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let (output, startup) = (Path::new(&self.output), self.startup.as_ref().map(Path::new));
        check_outputs([("--output", Some(output)), ("--startup", startup)])?;
        if self.model.known.inference {
            let text = "`--inference` makes constants of parameters, which have no gradients: leave it out";
            return Err(CommandFailure::Unreadable(text.into()));
        }
        let mut read = self.model.read_model()?;
        if self.train || !self.freeze.is_empty() {
            read.train(&as_strs(&self.freeze))?;
            let frozen = read.frozen();
            if !frozen.is_empty() {
                terminal.warn(&parameter_list("frozen", &read.program, &frozen));
            }
        }
        let model = std::mem::take(&mut read.program);
        let budget = self.budget(&model)?;
        let arena = self.checkpoints.iter().find_map(|name| name.strip_prefix("auto:"));
        let arena = arena.map(parse_bytes).transpose().map_err(CommandFailure::unreadable)?;
        let feeds = if arena.is_some() { feed_metas(&model, &self.model.known.shapes)? } else { vec![] };
        let (no_grad, kept) = (as_strs(&self.no_grad), as_strs(&self.checkpoints));
        let parameters = self.parameters.as_deref().map(as_strs);
        let backward = Backward {
            parameters: parameters.as_deref(),
            no_grad: &no_grad,
            recompute: match arena {
                Some(bytes) => Recompute::auto(bytes, &feeds),
                None if kept.is_empty() => Recompute::None,
                None => Recompute::Named(&kept),
            },
            ..Backward::default()
        };
        let has_values = Format::of(&self.output).map_err(CommandFailure::unreadable)?.has_values();
        let mut results = vec![self.loss.clone()];
        let (mut program, startup) = match &self.optimizer {
            None => {
                let (program, gradients) = self.differentiated(terminal, &model, &backward)?;
                results.extend(gradients);
                (program, None)
            }
            Some(optimizer) => {
                let (program, startup) =
                    self.trained(terminal, &model, (&backward, budget.as_ref()), optimizer)?;
                if has_values {
                    Executor::new().run(&startup, &mut read.scope, &[], &[])?;
                } else if self.startup.is_none() {
                    terminal
                        .warn("the learning rate and the states of the optimizer need values: see --startup");
                }
                (program, Some(startup))
            }
        };
        forget_source_lines(&mut program);
        if let (Some(path), Some(mut startup)) = (&self.startup, startup) {
            forget_source_lines(&mut startup);
            startup.save(path)?;
        }
        if has_values {
            results.retain(|name| !read.fetches.contains(name));
            read.fetches.extend(results);
        }
        read.program = program;
        write_model(terminal, &self.output, None, &read)
    }

    /// The memory budget of a step on data of the given shapes.
    fn budget(&self, model: &Program) -> CommandResult<Option<MemoryBudget>> {
        let Some(bytes) = &self.budget else { return Ok(None) };
        let feeds = feed_metas(model, &self.model.known.shapes)?;
        let budget =
            MemoryBudget::bytes(parse_bytes(bytes).map_err(CommandFailure::unreadable)?).feeds(&feeds);
        Ok(Some(self.threads.map_or(budget.clone(), |threads| budget.threads(threads))))
    }

    /// Lists the parameters with a gradient, if the command prepares the program for training.
    fn note_trained(&self, terminal: Terminal, program: &Program, names: impl Iterator<Item = String>) {
        if self.train || !self.freeze.is_empty() {
            terminal.warn(&parameter_list("trained", program, &names.collect::<Vec<_>>()));
        }
    }

    /// The program with the backward pass, and the names of the gradients.
    fn differentiated(
        &self,
        terminal: Terminal,
        model: &Program,
        backward: &Backward<'_>,
    ) -> CommandResult<(Program, Vec<String>)> {
        let mut program = match self.mixed_precision {
            Some(dtype) => {
                let lists =
                    PrecisionLists { single_variables: vec![self.loss.clone()], ..Default::default() };
                mixed_precision(model, dtype, &lists)?
            }
            None => model.clone(),
        };
        let found = append_backward(&mut program, &self.loss, backward)?;
        let trained = found.pairs.iter().map(|(var, _)| program.name(*var).to_string());
        self.note_trained(terminal, &program, trained);
        found.missing.iter().for_each(|missing| terminal.warn(&missing.to_string()));
        found.partial.iter().for_each(|cut| terminal.warn(&cut.to_string()));
        if !self.checkpoints.is_empty() {
            terminal.warn(&found.recomputed.to_string());
        }
        let gradients = found.pairs.iter().map(|(_, gradient)| program.name(*gradient).to_string()).collect();
        Ok((program, gradients))
    }

    /// The training program, and the start-up program of the optimizer.
    fn trained(
        &self,
        terminal: Terminal,
        model: &Program,
        (backward, budget): (&Backward<'_>, Option<&MemoryBudget>),
        optimizer: &OptimizerSpec,
    ) -> CommandResult<(Program, Program)> {
        let net = Builder::new();
        net.set_program(model.clone());
        let loss = net.expr(&self.loss);
        let in_half = self.mixed_precision.map(|dtype| optimizer.clone().mixed_precision(dtype));
        let optimizer: &dyn Optimizer = in_half.as_ref().map_or(optimizer, |in_half| in_half);
        let updates = match budget {
            Some(budget) => {
                let (updates, memory) = optimizer.minimize_within(&loss, backward, budget)?;
                terminal.warn(memory.to_string().trim_end());
                updates
            }
            None => optimizer.minimize_with(&loss, backward)?,
        };
        self.note_trained(terminal, model, updates.trained.iter().map(|(parameter, _)| parameter.name()));
        updates.untrained.iter().for_each(|untrained| terminal.warn(&untrained.reason()));
        if budget.is_some() || !self.checkpoints.is_empty() {
            terminal.warn(&updates.recomputed.to_string());
        }
        Ok((net.program()?.clone(), net.startup().program()?.clone()))
    }
}

fn half_dtype(text: &str) -> Result<DType, String> {
    let known = DType::from_name(text).filter(|dtype| dtype.is_half());
    known.ok_or_else(|| "known are float16 and bfloat16".into())
}

/// The grammar of optimizers.
fn optimizer_help() -> String {
    let with_options = |name: &str| {
        let options: Vec<String> = OptimizerSpec::options(name).map(|(key, _)| format!("`{key}`")).collect();
        if options.is_empty() { format!("`{name}`") } else { format!("`{name}` ({})", options.join(", ")) }
    };
    let optimizers: Vec<String> = OptimizerSpec::names().map(with_options).collect();
    format!(
        "The optimizer with its learning rate and options, such as `sgd:0.1` or `adamw:0.001,decay=0.05`\n\n\
         Optimizers, with their options: {}.\n\n\
         All have `weight_decay=X`, `clip=value(X)`, `clip=norm(X)`, `clip=global_norm(X)`, and, in place of the rate, \
         `schedule=S`, where S is `constant(RATE)`, `step(RATE,GAMMA,EVERY)`, `linear(FROM,TO,STEPS)`, \
         `cosine(FROM,TO,STEPS)`, `warmup(STEPS,S)` or `then(S,STEPS,S)`: the program computes the rate of each step",
        optimizers.join(", ")
    )
}

fn as_strs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

/// `trained: 2 parameters of 12 elements: w [3, 3], b [3]`.
fn parameter_list(state: &str, program: &Program, names: &[String]) -> String {
    let meta = |name: &String| {
        let var = program.find(name)?;
        program.root().vars.get(&var).map(|desc| (desc.dims.numel().get().unwrap_or(0), &desc.dims))
    };
    let found: Vec<_> = names.iter().filter_map(|name| Some((name, meta(name)?))).collect();
    let elements = found.iter().fold(0_usize, |sum, (_, (elements, _))| sum.saturating_add(*elements));
    let list: Vec<String> = found.iter().map(|(name, (_, dims))| format!("{name} {dims}")).collect();
    let counted =
        |n: usize, what: &str| format!("{} {what}{}", grouped(n as u64), if n == 1 { "" } else { "s" });
    let (parameters, elements) = (counted(found.len(), "parameter"), counted(elements, "element"));
    match &list[..] {
        [] => format!("{state}: no parameter"),
        list => format!("{state}: {parameters} of {elements}: {}", list.join(", ")),
    }
}
