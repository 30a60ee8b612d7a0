//! The memory of a run by what takes it.

use std::fmt;

use rustc_hash::FxHashMap;

use autobwd_core::{Error, ErrorKind, Meta, Program, Result};

use crate::{Executor, Scope, Session, optimizer_state::optimizer_state};

/// A run whose memory is [planned](MemoryUse::planned).
#[derive(Clone, Copy, Debug)]
pub struct PlannedRun<'a> {
    /// The program.
    pub program: &'a Program,
    /// The dtypes and shapes of its feeds.
    pub feeds: &'a [(&'a str, Meta)],
    /// The variables that it fetches.
    pub fetches: &'a [&'a str],
}

/// The part of memory to which a kept value belongs; one that several programs keep, to the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeptPart {
    Parameter,
    OptimizerState,
    Other,
}

/// The memory of a run by what takes it, in bytes, known before it runs: the values that its program keeps in the scope,
/// and the memory of a session.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Meta, Scope, exec::MemoryUse};
/// use autobwd_ops::{Math, nn::Linear, optim::{Adam, Optimizer}};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 100]);
/// let loss = Linear::builder(&net, 100, 10).build().forward(&x).square().mean();
/// Adam::new(0.1).minimize(&loss)?.complete()?;
/// let mut scope = Scope::new();
/// Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
///
/// let feeds = [("x", Meta::new(DType::F32, [32, 100]))];
/// let (program, loss) = (net.program()?, loss.name());
/// let session = Executor::new().prepare(&program, &mut scope, &feeds, &[&loss])?;
/// let memory = MemoryUse::of(&session, &program, &scope);
/// assert_eq!(memory.parameters, 4 * 1010);
/// // Two moments for each element, two powers for each parameter, and the learning rate.
/// assert_eq!(memory.optimizer_state, 4 * (2 * 1010 + 2 * 2 + 1));
/// assert_eq!(memory.arena, session.arena_bytes());
/// println!("{memory}");
///
/// let error = memory.require_within(10_000).unwrap_err();
/// assert!(error.message().starts_with("the budget of 10000 bytes is exceeded by "), "{error}");
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// It excludes what [`peak_bytes`](Session::peak_bytes) excludes besides the scope: tensor arrays, the saved steps of a
/// loop with an unknown number of steps, and packed parts of factors of products, 5 MB at most for each thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Parameters, trained or frozen.
    pub parameters: usize,
    /// What optimizers keep: moments, learning rates.
    pub optimizer_state: usize,
    /// Other values that the program keeps: statistics, caches, constants.
    pub other_kept: usize,
    /// The arena: intermediate values, feeds and fetches.
    pub arena: usize,
    /// Fused kernels, saved steps of loops, and scratch memory of kernels.
    pub scratch: usize,
    /// Copies of kept values, which a failed run restores.
    pub copies: usize,
}

impl MemoryUse {
    /// The memory of a session of this program on this scope. Values of the scope that the program does not name are not
    /// counted.
    pub fn of(session: &Session, program: &impl AsRef<Program>, scope: &Scope) -> MemoryUse {
        MemoryUse::of_sessions(&[(session, program.as_ref())], scope)
    }

    /// The memory of runs on data of these shapes, before there is a scope: values that the programs keep have their
    /// declared shapes. Several runs share a scope, and each has a session, as the two of an accumulation of gradients.
    ///
    /// # Errors
    /// As [`Executor::prepare`].
    pub fn planned(executor: &Executor, runs: &[PlannedRun<'_>]) -> Result<MemoryUse> {
        let mut scope = Scope::new();
        for run in runs {
            scope.add_zeros(run.program)?;
        }
        let session =
            |run: &PlannedRun<'_>| executor.prepare(run.program, &mut scope, run.feeds, run.fetches);
        let sessions: Vec<Session> = runs.iter().map(session).collect::<Result<_>>()?;
        let programs = runs.iter().map(|run| run.program);
        Ok(MemoryUse::of_sessions(&sessions.iter().zip(programs).collect::<Vec<_>>(), &scope))
    }

    fn of_sessions(sessions: &[(&Session, &Program)], scope: &Scope) -> MemoryUse {
        let mut memory = MemoryUse::default();
        let mut kept: FxHashMap<&str, KeptPart> = FxHashMap::default();
        for (session, program) in sessions {
            memory.arena = memory.arena.saturating_add(session.arena_bytes());
            memory.scratch = memory.scratch.saturating_add(session.scratch_bytes());
            memory.copies = memory.copies.saturating_add(session.copied_bytes());
            let state = optimizer_state(program);
            for (var, desc) in program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
                let part = match (desc.parameter, state.contains(var)) {
                    (true, _) => KeptPart::Parameter,
                    (false, true) => KeptPart::OptimizerState,
                    (false, false) => KeptPart::Other,
                };
                let known = kept.entry(program.name(*var)).or_insert(part);
                *known = part.min(*known);
            }
        }
        for (name, part) in kept {
            let bytes = scope.find(name).map_or(0, |value| value.bytes().len());
            let part = match part {
                KeptPart::Parameter => &mut memory.parameters,
                KeptPart::OptimizerState => &mut memory.optimizer_state,
                KeptPart::Other => &mut memory.other_kept,
            };
            *part = part.saturating_add(bytes);
        }
        memory
    }

    /// The parts by name, in the order of the fields.
    pub fn parts(&self) -> [(&'static str, usize); 6] {
        [
            ("parameters", self.parameters),
            ("state of the optimizer", self.optimizer_state),
            ("other kept values", self.other_kept),
            ("arena", self.arena),
            ("scratch", self.scratch),
            ("copies for failed runs", self.copies),
        ]
    }

    /// The sum of the parts.
    pub fn total(&self) -> usize {
        self.parts().iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Checks that a run fits into a budget.
    ///
    /// # Errors
    /// It does not: by how many bytes, and what takes most.
    pub fn require_within(&self, budget_bytes: usize) -> Result<()> {
        let total = self.total();
        let Some(over) = total.checked_sub(budget_bytes).filter(|over| *over > 0) else { return Ok(()) };
        let mut parts = self.parts();
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let largest = parts[..3].iter().filter(|(_, bytes)| *bytes > 0);
        let largest: Vec<String> = largest.map(|(part, bytes)| format!("{part} {bytes}")).collect();
        let text = format!(
            "the budget of {budget_bytes} bytes is exceeded by {over}: a run takes {total}, most of it {}",
            largest.join(", ")
        );
        Err(Error::new(ErrorKind::Budget, text))
    }
}

impl fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (part, bytes) in self.parts().into_iter().chain([("total", self.total())]) {
            writeln!(f, "{part:<22}  {bytes:>15} bytes")?;
        }
        Ok(())
    }
}
