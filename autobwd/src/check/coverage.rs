//! Whether samples are worth checking: what they leave out would not be found.

use super::sample::Sample;
use crate::{Arity, AttrType, OpInfo, SlotDef, Slots};

/// What an operator's samples leave out: an attribute that has the same value everywhere, an optional slot that is always
/// or never there, a shape in which two dimensions could be mixed up.
pub(super) fn gaps(info: &OpInfo, samples: &[&Sample]) -> Vec<String> {
    let schema = info.schema();
    let rows: Vec<_> = samples.iter().filter(|s| s.error.is_none()).collect();
    if rows.is_empty() {
        return vec!["it has no samples".into()];
    }
    let mut found = vec![];
    for attr in schema.attrs.iter().filter(|a| !matches!(a.ty, AttrType::Block | AttrType::Blocks)) {
        let first = samples[0].desc.attrs.get(attr.name);
        if samples.iter().all(|s| s.desc.attrs.get(attr.name) == first) {
            found.push(format!("attribute `{}` has one value in all samples", attr.name));
        }
    }
    let mut optional = |side: &str, slots: &[SlotDef], of: &dyn Fn(&Sample) -> &Slots| {
        for slot in slots.iter().filter(|s| s.arity == Arity::Optional) {
            let there = rows.iter().filter(|s| !of(s).get(slot.name).is_empty()).count();
            if there == 0 || there == rows.len() {
                let how = if there == 0 { "never" } else { "always" };
                found.push(format!("optional {side} `{}` is {how} there", slot.name));
            }
        }
    };
    optional("input", schema.inputs, &|s| &s.desc.inputs);
    optional("output", schema.outputs, &|s| &s.desc.outputs);
    let mixed_up = |dims: &[usize]| dims.iter().enumerate().any(|(i, n)| *n > 1 && dims[..i].contains(n));
    let clear = |s: &Sample| !s.draws.iter().any(|d| mixed_up(d.dims()));
    if !rows.iter().any(|s| clear(s)) {
        found.push("in every sample some shape has two equal dimensions".into());
    }
    found
}
