//! Training steps within a memory budget.

use std::panic::Location;

use autobwd::{
    Backward, Builder, Error, ErrorKind, Executor, Expr, Meta, Result,
    backward::{Recompute, RecomputeChoice, recompute_choices},
    exec::{MemoryUse, PlannedRun},
    parallel::{Accumulation, accumulate},
};

use super::{MinimizeResult, Optimizer, mixed_precision};

/// A bound for the memory of a training step, for [`Optimizer::minimize_within`]: parameters, state of the optimizer,
/// intermediate values, feeds, fetches and scratch memory, as [`MemoryUse`] counts them.
///
/// ```
/// use autobwd::{Backward, Builder, DType, Executor, Meta, Scope, exec::MemoryUse};
/// use autobwd_ops::{Math, nn::Linear, optim::{Adam, MemoryBudget, Optimizer}};
///
/// let net = Builder::new();
/// let mut h = net.input("x", DType::F32, &[-1, 64]);
/// for layer in 0..8 {
///     h = Linear::builder(&net, 64, 64).seed(layer).build().forward(&h).tanh();
/// }
/// let loss = h.square().mean();
///
/// let feeds = [("x", Meta::new(DType::F32, [1000, 64]))];
/// let budget = MemoryBudget::bytes(2_500_000).feeds(&feeds).threads(1);
/// let (updates, memory) = Adam::new(0.01).minimize_within(&loss, &Backward::default(), &budget)?;
/// println!("{}\n{memory}", updates.recomputed);
/// assert!(memory.total() <= 2_500_000 && !updates.recomputed.names.is_empty());
/// updates.complete()?;
///
/// let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&loss.name()])?;
/// assert_eq!(MemoryUse::of(&session, &net.program()?, &scope), memory);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    bytes: usize,
    feeds: Vec<(String, Meta)>,
    fetches: Vec<String>,
    threads: Option<usize>,
    micro_batches: usize,
}

impl MemoryBudget {
    /// A budget of that many bytes, for a step without feeds that fetches the loss, on the threads of
    /// [`Executor::new`].
    pub fn bytes(bytes: usize) -> MemoryBudget {
        MemoryBudget { bytes, feeds: vec![], fetches: vec![], threads: None, micro_batches: 1 }
    }

    /// The dtypes and shapes of feeds, as for [`Executor::prepare`].
    pub fn feeds(self, feeds: &[(&str, Meta)]) -> MemoryBudget {
        let feeds = feeds.iter().map(|(name, meta)| (name.to_string(), meta.clone()));
        MemoryBudget { feeds: feeds.collect(), ..self }
    }

    /// Variables that the step fetches besides the loss.
    pub fn fetches(self, fetches: &[&str]) -> MemoryBudget {
        MemoryBudget { fetches: fetches.iter().map(ToString::to_string).collect(), ..self }
    }

    /// The number of threads of the executor, on which scratch memory depends.
    pub fn threads(self, threads: usize) -> MemoryBudget {
        MemoryBudget { threads: Some(threads), ..self }
    }

    /// The step is divided by [`accumulate`] into this number of micro-batches, whose feeds have the shapes of the budget.
    /// Their number decides the order of sums, so it is not the budget that chooses it.
    pub fn micro_batches(self, micro_batches: usize) -> MemoryBudget {
        MemoryBudget { micro_batches, ..self }
    }

    fn feed_metas(&self) -> Vec<(&str, Meta)> {
        self.feeds.iter().map(|(name, meta)| (name.as_str(), meta.clone())).collect()
    }
}

/// The choice for [`Optimizer::minimize_within`], with the memory of the step: of those that fit, the one that repeats
/// the least work.
///
/// # Errors
/// As [`Optimizer::minimize_within`].
pub(super) fn choose(
    optimizer: &(impl Optimizer + ?Sized),
    loss: &Expr,
    (backward, budget): (&Backward<'_>, &MemoryBudget),
) -> Result<(RecomputeChoice, MemoryUse)> {
    let net = loss.check()?.builder();
    if !matches!(backward.recompute, Recompute::None) {
        let text = "a memory budget chooses what is recomputed: leave the checkpoints out";
        return Err(Error::new(ErrorKind::Budget, text));
    }
    if net.is_eager() {
        let text = "a memory budget is for programs: in eager mode, nothing is planned";
        return Err(Error::new(ErrorKind::Program, text));
    }
    let executor = budget.threads.map_or_else(Executor::new, Executor::with_threads);
    let name = loss.name();
    let others = budget.fetches.iter().map(String::as_str).filter(|fetch| *fetch != name);
    let fetches: Vec<&str> = [name.as_str()].into_iter().chain(others).collect();
    let feeds = budget.feed_metas();
    let memory_of = |choice: &RecomputeChoice| {
        let draft = copy_of(net)?;
        let _ = minimize(optimizer, &draft.expr(&name), backward, choice)?;
        let step = draft.program()?;
        let run = |program| PlannedRun { program, feeds: &feeds, fetches: &fetches };
        if budget.micro_batches == 1 {
            return MemoryUse::planned(&executor, &[run(&step)]);
        }
        let Accumulation { gradients, update, .. } = accumulate(&*step, budget.micro_batches)?;
        MemoryUse::planned(
            &executor,
            &[run(&gradients), PlannedRun { program: &update, feeds: &[], fetches: &[] }],
        )
    };
    let mut tried: Vec<(RecomputeChoice, MemoryUse)> = vec![];
    for choice in choices(optimizer, loss, (backward, budget))? {
        let memory = memory_of(&choice)?;
        tried.push((choice, memory));
        if memory.total() <= budget.bytes {
            break;
        }
    }
    let smallest = tried.into_iter().min_by_key(|(_, memory)| memory.total());
    let (choice, memory) = smallest.ok_or_else(|| Error::new(ErrorKind::Budget, "there is no step"))?;
    memory.require_within(budget.bytes)?;
    Ok((choice, memory))
}

/// What the step may recompute.
fn choices(
    optimizer: &(impl Optimizer + ?Sized),
    loss: &Expr,
    (backward, budget): (&Backward<'_>, &MemoryBudget),
) -> Result<Vec<RecomputeChoice>> {
    let draft = copy_of(loss.builder())?;
    let scaled = mixed_precision::start(optimizer, &draft.expr(&loss.name()), Location::caller())?;
    recompute_choices(&*draft.program()?, &scaled.name(), backward, &budget.feed_metas())
}

/// Appends the step that recomputes these values.
#[track_caller]
pub(super) fn minimize(
    optimizer: &(impl Optimizer + ?Sized),
    loss: &Expr,
    backward: &Backward<'_>,
    choice: &RecomputeChoice,
) -> Result<MinimizeResult> {
    let names: Vec<&str> = choice.names.iter().map(String::as_str).collect();
    optimizer.minimize_with(loss, &Backward { recompute: Recompute::Without(&names), ..*backward })
}

/// A builder of the same programs.
fn copy_of(net: &Builder) -> Result<Builder> {
    let copy = Builder::with_ops(net.ops()?.clone());
    copy.set_program(net.program()?.clone());
    copy.startup().set_program(net.startup().program()?.clone());
    Ok(copy)
}
