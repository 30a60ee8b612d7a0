//! Types of slots, and the numbers of variables that they take.

use crate::{Result, Var, error::ErrorKind};

/// The number of variables that a slot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly one: `V`.
    One,
    /// One or none: `Option<V>`.
    Optional,
    /// Any number: `Vec<V>`.
    Many,
    /// Any number, each possibly absent: `Vec<Option<V>>`.
    Holes,
}

impl Arity {
    /// The type of such a slot's field.
    pub(crate) const fn written(self) -> &'static str {
        match self {
            Arity::One => "`V`",
            Arity::Optional => "`Option<V>`",
            Arity::Many => "`Vec<V>`",
            Arity::Holes => "`Vec<Option<V>>`",
        }
    }

    /// Whether it takes more than one variable.
    pub(crate) const fn is_list(self) -> bool {
        matches!(self, Arity::Many | Arity::Holes)
    }
}

/// The slot types. A bound kernel stores each [`Buf`](crate::Buf) in one of these types, which run no user code when
/// dropped.
mod sealed {
    pub trait Slot<V> {}
    impl<V> Slot<V> for V {}
    impl<V> Slot<V> for Option<V> {}
    impl<V> Slot<V> for Vec<V> {}
    impl<V> Slot<V> for Vec<Option<V>> {}
}

/// The type of a slot field: `V`, `Option<V>`, `Vec<V>` or `Vec<Option<V>>`, and no other: the trait is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a slot",
    label = "a slot is `V`, `Option<V>`, `Vec<V>` or `Vec<Option<V>>`"
)]
pub trait Slot<V>: sealed::Slot<V> + Sized {
    /// The number of variables it takes.
    const ARITY: Arity;
    /// The same slot with other values.
    type Of<W>;

    /// Fills the slot from its variables.
    ///
    /// # Errors
    /// A wrong number of variables; an error of `fill`.
    fn fill(vars: &[Var], fill: impl FnMut(Var) -> Result<V>) -> Result<Self>;

    /// Yields its values; `None` stands for a hole.
    fn take(self, put: impl FnMut(Option<V>));

    /// The same slot with its values mapped by `f`.
    fn map<W>(&self, f: impl FnMut(&V) -> W) -> Self::Of<W>;

    /// The same slot with values from `fill`: compiled once for all operators.
    fn filled<W>(&self, fill: &mut dyn FnMut() -> W) -> Self::Of<W> {
        self.map(|_| fill())
    }

    /// Visits its values.
    fn each(&self, f: impl FnMut(&V));

    /// The value at a position.
    fn at(&self, position: usize) -> Option<&V>;
}

#[cold]
fn count<T>(takes: &str, got: usize) -> Result<T> {
    Err(crate::Error::new(ErrorKind::Slot, format!("takes {takes} variable, got {got}")))
}

impl<V> Slot<V> for V {
    const ARITY: Arity = Arity::One;
    type Of<W> = W;

    fn fill(vars: &[Var], mut fill: impl FnMut(Var) -> Result<V>) -> Result<V> {
        match vars {
            [var] if *var != Var::EMPTY => fill(*var),
            [_] => count("exactly one", 0),
            vars => count("exactly one", vars.len()),
        }
    }
    #[inline(always)]
    fn take(self, mut put: impl FnMut(Option<V>)) {
        put(Some(self))
    }
    #[inline(always)]
    fn map<W>(&self, mut f: impl FnMut(&V) -> W) -> W {
        f(self)
    }
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(&V)) {
        f(self)
    }
    fn at(&self, position: usize) -> Option<&V> {
        (position == 0).then_some(self)
    }
}

impl<V> Slot<V> for Option<V> {
    const ARITY: Arity = Arity::Optional;
    type Of<W> = Option<W>;

    fn fill(vars: &[Var], mut fill: impl FnMut(Var) -> Result<V>) -> Result<Self> {
        match vars {
            [] | [Var::EMPTY] => Ok(None),
            [var] => fill(*var).map(Some),
            vars => count("at most one", vars.len()),
        }
    }
    #[inline(always)]
    fn take(self, mut put: impl FnMut(Option<V>)) {
        if self.is_some() {
            put(self)
        }
    }
    #[inline(always)]
    fn map<W>(&self, f: impl FnMut(&V) -> W) -> Option<W> {
        self.as_ref().map(f)
    }
    #[inline(always)]
    fn each(&self, f: impl FnMut(&V)) {
        self.iter().for_each(f)
    }
    fn at(&self, position: usize) -> Option<&V> {
        self.as_ref().filter(|_| position == 0)
    }
}

impl<V> Slot<V> for Vec<V> {
    const ARITY: Arity = Arity::Many;
    type Of<W> = Vec<W>;

    fn fill(vars: &[Var], mut fill: impl FnMut(Var) -> Result<V>) -> Result<Self> {
        let one = |v: &Var| if *v == Var::EMPTY { count("in every position a", 0) } else { fill(*v) };
        vars.iter().map(one).collect()
    }
    fn take(self, put: impl FnMut(Option<V>)) {
        self.into_iter().map(Some).for_each(put)
    }
    fn map<W>(&self, f: impl FnMut(&V) -> W) -> Vec<W> {
        self.iter().map(f).collect()
    }
    fn each(&self, f: impl FnMut(&V)) {
        self.iter().for_each(f)
    }
    fn at(&self, position: usize) -> Option<&V> {
        self.get(position)
    }
}

impl<V> Slot<V> for Vec<Option<V>> {
    const ARITY: Arity = Arity::Holes;
    type Of<W> = Vec<Option<W>>;

    fn fill(vars: &[Var], mut fill: impl FnMut(Var) -> Result<V>) -> Result<Self> {
        vars.iter().map(|v| if *v == Var::EMPTY { Ok(None) } else { fill(*v).map(Some) }).collect()
    }
    fn take(self, put: impl FnMut(Option<V>)) {
        self.into_iter().for_each(put)
    }
    fn map<W>(&self, mut f: impl FnMut(&V) -> W) -> Vec<Option<W>> {
        self.iter().map(|v| v.as_ref().map(&mut f)).collect()
    }
    fn each(&self, f: impl FnMut(&V)) {
        self.iter().flatten().for_each(f)
    }
    fn at(&self, position: usize) -> Option<&V> {
        self.get(position)?.as_ref()
    }
}
