//! The declarations of a block: a table indexed by variable number.

use super::{Var, VarDesc};

/// The variables that a block declares, in declaration order: a map from [`Var`] to [`VarDesc`] without hashing.
#[derive(Clone, Debug, Default)]
pub struct Vars {
    list: Vec<(Var, VarDesc)>,
    /// For the variable with number `first + i`: one more than its position in `list`, or 0 if it is not in there.
    places: Vec<u32>,
    first: usize,
}

impl Vars {
    #[inline]
    fn position(&self, var: Var) -> Option<usize> {
        let place = self.places.get(var.index().wrapping_sub(self.first))?;
        (*place as usize).checked_sub(1)
    }

    /// The declaration of a variable.
    #[inline]
    pub fn get(&self, var: &Var) -> Option<&VarDesc> {
        Some(&self.list[self.position(*var)?].1)
    }

    /// The declaration of a variable, mutably.
    pub fn get_mut(&mut self, var: &Var) -> Option<&mut VarDesc> {
        let position = self.position(*var)?;
        Some(&mut self.list[position].1)
    }

    /// Whether a variable is declared here.
    pub fn contains_key(&self, var: &Var) -> bool {
        self.position(*var).is_some()
    }

    /// Declares a variable or replaces its declaration; returns the previous one.
    pub fn insert(&mut self, var: Var, desc: VarDesc) -> Option<VarDesc> {
        if let Some(known) = self.get_mut(&var) {
            return Some(std::mem::replace(known, desc));
        }
        self.list.push((var, desc));
        self.note(self.list.len() - 1);
        None
    }

    /// Removes a declaration. Takes time linear in the number of variables.
    pub fn remove(&mut self, var: &Var) -> Option<VarDesc> {
        let removed = self.list.remove(self.position(*var)?);
        self.places.clear();
        (0..self.list.len()).for_each(|i| self.note(i));
        Some(removed.1)
    }

    /// Removes all declarations except the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        for (var, _) in self.list.drain(len.min(self.list.len())..) {
            self.places[var.index() - self.first] = 0;
        }
    }

    fn note(&mut self, position: usize) {
        let index = self.list[position].0.index();
        if self.places.is_empty() {
            self.first = index;
        }
        if index < self.first {
            let before = self.first - index;
            self.places.splice(0..0, std::iter::repeat_n(0, before));
            self.first = index;
        }
        let (at, place) = (index - self.first, position as u32 + 1);
        if at == self.places.len() {
            return self.places.push(place);
        }
        if at > self.places.len() {
            self.places.resize(at + 1, 0);
        }
        self.places[at] = place;
    }

    /// The number of declarations.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no declarations.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The variables with their declarations.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Var, &VarDesc)> {
        self.list.iter().map(|(var, desc)| (var, desc))
    }

    /// The variables.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Var> {
        self.list.iter().map(|(var, _)| var)
    }

    /// The declarations.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &VarDesc> {
        self.list.iter().map(|(_, desc)| desc)
    }
}
impl IntoIterator for Vars {
    type Item = (Var, VarDesc);
    type IntoIter = std::vec::IntoIter<(Var, VarDesc)>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}
impl Extend<(Var, VarDesc)> for Vars {
    fn extend<I: IntoIterator<Item = (Var, VarDesc)>>(&mut self, vars: I) {
        let vars = vars.into_iter();
        self.list.reserve(vars.size_hint().0);
        vars.for_each(|(var, desc)| _ = self.insert(var, desc));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Dims};

    #[test]
    fn numbers_come_in_any_order() {
        let desc = |n: usize| VarDesc::new(DType::F32, Dims::from([n]));
        let mut vars = Vars::default();
        for k in [7, 3, 9, 7, 4] {
            vars.insert(Var::stand_in(k), desc(k));
        }
        let keys = |vars: &Vars| vars.keys().map(|v| v.index()).collect::<Vec<_>>();
        assert_eq!(keys(&vars), [7, 3, 9, 4]);
        assert_eq!(vars.remove(&Var::stand_in(3)), Some(desc(3)));
        assert_eq!((vars.remove(&Var::stand_in(5)), vars.remove(&Var::stand_in(0))), (None, None));
        assert_eq!(vars.get(&Var::stand_in(4)), Some(&desc(4)));
        vars.truncate(5);
        vars.truncate(1);
        assert_eq!((vars.len(), vars.get(&Var::stand_in(4))), (1, None));
        assert_eq!(
            (vars.insert(Var::stand_in(4), desc(5)), vars.insert(Var::stand_in(4), desc(4))),
            (None, Some(desc(5)))
        );
    }
}
