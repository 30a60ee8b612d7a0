//! What is asked for, and told, about forward values that are computed again.

use std::fmt;

use autobwd_core::{Cost, Meta};

/// Which forward values the backward part finds in memory; what else it needs it computes again, with the same bits.
///
/// Deep networks take much of their memory for values that wait for the backward part. Computing some of them again
/// costs time and saves that memory; [`Auto`](Checkpoints::Auto) makes the choice for a budget:
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Meta, Scope};
/// use autobwd::{Backward, backward::Checkpoints, append_backward};
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
/// let backward = Backward { checkpoints: Checkpoints::auto(2_000_000, &feeds), ..Backward::default() };
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
pub enum Checkpoints<'a> {
    /// All that it needs.
    #[default]
    None,
    /// These variables. They cut the program into segments; each is computed again, as a whole, before its gradients.
    Named(&'a [&'a str]),
    /// All but these variables, each of which is computed again right before the first gradient that needs it.
    Without(&'a [&'a str]),
    /// All but what is cheapest to compute again so that a run fits into a budget. Results name the variables: given to
    /// [`Without`](Checkpoints::Without), they save the search the next time.
    Auto {
        /// Bytes of the arena of a run that fetches the loss and all gradients.
        budget_bytes: usize,
        /// What such a run is fed, as for `Executor::prepare`.
        feeds: &'a [(&'a str, Meta)],
    },
}

impl<'a> Checkpoints<'a> {
    /// All but what is cheapest to compute again so that a run on data of these shapes fits into so many bytes. A larger
    /// budget never costs more time.
    pub fn auto(budget_bytes: usize, feeds: &'a [(&'a str, Meta)]) -> Checkpoints<'a> {
        Checkpoints::Auto { budget_bytes, feeds }
    }
}

/// What a backward part computes again.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Recomputed {
    /// Names of the forward variables, in the order in which they are computed again.
    pub names: Vec<String>,
    /// The named checkpoints, if nothing is computed again for them: no operators stand before or between them.
    pub without_effect: Vec<String>,
    /// What it costs and saves, where [`Checkpoints::Auto`] has planned it.
    pub planned: Option<Planned>,
}

/// What computing again costs and saves.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Planned {
    /// Cost of the operators that are computed again.
    pub again: Cost,
    /// Cost of all operators of the forward part.
    pub forward: Cost,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Bytes of the arena if everything were kept.
    pub kept_arena_bytes: usize,
}

/// How many names a text lists.
const LISTED: usize = 8;

impl fmt::Display for Recomputed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |names: &[String]| -> Vec<String> {
            names.iter().take(LISTED).map(|name| format!("`{name}`")).collect()
        };
        if !self.without_effect.is_empty() {
            let names = quoted(&self.without_effect).join(", ");
            let more = if self.without_effect.len() > LISTED { ", …" } else { "" };
            let why = "no operators stand before or between them that could be";
            return write!(f, "nothing is computed again for the checkpoints {names}{more}: {why}");
        }
        let names = quoted(&self.names);
        match (names.join(", "), self.names.len().saturating_sub(LISTED)) {
            (none, _) if none.is_empty() => write!(f, "nothing is computed again")?,
            (names, 0) => write!(f, "computed again: {names}")?,
            (names, more) => write!(f, "computed again: {names} and {more} more")?,
        }
        let Some(Planned { again, forward, arena_bytes, kept_arena_bytes }) = self.planned else {
            return Ok(());
        };
        let share = again.picoseconds() as f64 / forward.picoseconds().max(1) as f64;
        write!(
            f,
            "; {:.1} % of the forward part's work once more, {arena_bytes} bytes instead of {kept_arena_bytes}",
            100.0 * share
        )
    }
}
