//! Cache of analysed formulas, shared by operators that differ in their variables only.

use rustc_hash::FxHashMap;

use autobwd_core::{__private::internals::*, OpDesc, OpInfo, Result, Slots, Var, lanes::Formula};

/// Formulas by operator type.
#[derive(Default)]
pub(super) struct Formulas(FxHashMap<&'static str, Vec<(OpDesc, Formula)>>);

impl Formulas {
    /// The formula of an operator, if it has one.
    pub(super) fn of(&mut self, info: &OpInfo, desc: &OpDesc) -> Result<Option<&Formula>> {
        let Some(entry) = info.lanes() else { return Ok(None) };
        let known = self.0.entry(info.schema().name).or_default();
        let is_alike = |other: &OpDesc| {
            other.attrs == desc.attrs
                && is_same_slots(&other.inputs, &desc.inputs)
                && is_same_slots(&other.outputs, &desc.outputs)
        };
        let at = match known.iter().position(|(other, _)| is_alike(other)) {
            Some(at) => at,
            None => {
                known.push((desc.clone(), entry.formula(desc)?));
                known.len() - 1
            }
        };
        Ok(known.get(at).map(|(_, formula)| formula))
    }
}

fn is_same_slots(a: &Slots, b: &Slots) -> bool {
    let present = |args: &[Var]| args.first().is_some_and(|var| *var != Var::EMPTY);
    let [a, b] = [a, b].map(|slots| slots.iter().filter(|(_, args)| present(args)).map(|(slot, _)| slot));
    a.eq(b)
}
