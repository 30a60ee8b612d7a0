//! Options and results of recomputation (rematerialisation) of forward values.

use std::fmt;

use autobwd_core::{Cost, Meta};

/// The forward values that are kept for the backward pass; all others that it reads are recomputed, bit-identically.
///
/// Deep networks spend much memory on forward values kept for the backward pass. Recomputing some of them trades time
/// for memory; [`Auto`](Recompute::Auto) makes the choice for a budget:
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Meta, Scope};
/// use autobwd::{Backward, backward::Recompute, append_backward};
/// # use autobwd_ops::{Init, Math};
///
/// let net = Builder::new();
/// let mut h = net.input("x", DType::F32, &[-1, 64]);
/// for layer in 0..8 {
///     let w = net.parameter(&format!("w{layer}"), DType::F32, &[64, 64], |w| Init::XavierUniform.emit(w, layer));
///     h = h.matmul(&w).tanh();
/// }
/// let loss = h.square().mean().name();
///
/// let feeds = [("x", Meta::new(DType::F32, [1000, 64]))];
/// let backward = Backward { recompute: Recompute::auto(2_000_000, &feeds), ..Backward::default() };
/// let mut program = net.program()?.clone();
/// let found = append_backward(&mut program, &loss, &backward)?;
/// assert!(found.recomputed.names.contains(&"tanh_0".into()), "{}", found.recomputed);
///
/// let mut scope = Scope::new();
/// Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let session = Executor::new().prepare(&program, &mut scope, &feeds, &[&loss, "w0@GRAD"])?;
/// assert!(session.arena_bytes() <= 2_000_000);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Recompute<'a> {
    /// Keep all values that it reads.
    #[default]
    None,
    /// Keep these variables. They cut the program into segments, each recomputed as a whole before its gradients.
    Named(&'a [&'a str]),
    /// Keep all values but these variables, each recomputed right before the first gradient that reads it. A value that
    /// the gradient of a loop or branch reads is always kept.
    Without(&'a [&'a str]),
    /// Recompute the cheapest set of values for which a run fits into a budget. Results name the variables; passing
    /// these to [`Without`](Recompute::Without) saves the search the next time.
    Auto {
        /// Bytes of the arena of a run that fetches the loss and all gradients.
        budget_bytes: usize,
        /// Feeds of such a run, as for `Executor::prepare`.
        feeds: &'a [(&'a str, Meta)],
    },
}

impl<'a> Recompute<'a> {
    /// Recomputes the cheapest set of values for which a run on data of these shapes fits into the budget. A larger
    /// budget never costs more time.
    pub fn auto(budget_bytes: usize, feeds: &'a [(&'a str, Meta)]) -> Recompute<'a> {
        Recompute::Auto { budget_bytes, feeds }
    }
}

/// The forward values that a backward pass recomputes.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RecomputeReport {
    /// Names of the forward variables, in the order of recomputation.
    pub names: Vec<String>,
    /// The named checkpoints, if they cause no recomputation: no operators stand before or between them.
    pub without_effect: Vec<String>,
    /// Cost and savings, if planned by [`Recompute::Auto`].
    pub planned: Option<RecomputeCost>,
}

/// Cost and savings of recomputation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecomputeCost {
    /// Cost of the recomputed operators.
    pub again: Cost,
    /// Cost of all forward operators.
    pub forward: Cost,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Bytes of the arena without recomputation.
    pub kept_arena_bytes: usize,
}

/// Forward values that a training step may recompute, one of [`recompute_choices`](crate::recompute_choices).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecomputeChoice {
    /// Names of the forward variables, for [`Recompute::Without`].
    pub names: Vec<String>,
    /// Cost and savings; `arena_bytes` is the size of the smallest arena that it may lead to.
    pub cost: RecomputeCost,
}

/// Maximum number of listed names.
const LISTED: usize = 8;

impl fmt::Display for RecomputeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |names: &[String]| -> Vec<String> {
            names.iter().take(LISTED).map(|name| format!("`{name}`")).collect()
        };
        if !self.without_effect.is_empty() {
            let names = quoted(&self.without_effect).join(", ");
            let more = if self.without_effect.len() > LISTED { ", …" } else { "" };
            let why = "no operator before or between them can be recomputed";
            return write!(f, "nothing is recomputed for the checkpoints {names}{more}: {why}");
        }
        let names = quoted(&self.names);
        match (names.join(", "), self.names.len().saturating_sub(LISTED)) {
            (none, _) if none.is_empty() => write!(f, "nothing is recomputed")?,
            (names, 0) => write!(f, "recomputed: {names}")?,
            (names, more) => write!(f, "recomputed: {names} and {more} more")?,
        }
        let Some(RecomputeCost { again, forward, arena_bytes, kept_arena_bytes }) = self.planned else {
            return Ok(());
        };
        let share = again.picoseconds() as f64 / forward.picoseconds().max(1) as f64;
        write!(
            f,
            "; {:.1} % of the forward pass's work is repeated, {arena_bytes} bytes instead of {kept_arena_bytes}",
            100.0 * share
        )
    }
}
