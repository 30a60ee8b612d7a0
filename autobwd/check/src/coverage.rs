//! Coverage of samples: attributes, slots, shapes and dtypes that no sample tests.

use super::{function::ProgramFunction, unused::unused};
use autobwd_core::__private::internals::*;
use autobwd_core::sample::Sample;
use autobwd_core::{
    Arity, AttrType, DType, GradKind, Meta, OpDesc, OpInfo, OpInfoMap, SlotDef, Slots, Tensor, Var,
    desc::GRAD,
};

/// The operator's descriptions in the samples; a sample that is a program may have several.
fn descs(ops: &OpInfoMap, info: &OpInfo, samples: &[&Sample]) -> Vec<OpDesc> {
    let mut all = vec![];
    for sample in samples {
        match sample.program {
            None => all.push(sample.desc.clone()),
            Some(_) => {
                let function = ProgramFunction::of(ops, sample, DType::F64, None);
                all.extend(function.iter().flat_map(|f| f.operators(info.schema().name)).cloned());
            }
        }
    }
    all
}

/// Gaps in an operator's samples: an attribute that has the same value everywhere, an optional slot that is always or
/// never filled, a shape in which two dimensions could be mixed up.
pub(super) fn gaps(ops: &OpInfoMap, info: &OpInfo, samples: &[&Sample]) -> Vec<String> {
    let schema = info.schema();
    let rows: Vec<&Sample> = samples.iter().filter(|s| s.error.is_none()).copied().collect();
    if rows.is_empty() {
        return vec!["the operator has no samples".into()];
    }
    let (all, rows_descs) = (descs(ops, info, samples), descs(ops, info, &rows));
    let mut found = vec![];
    for attr in schema.attrs.iter().filter(|a| !matches!(a.ty, AttrType::Block | AttrType::Blocks)) {
        let default = attr.default.map(|default| default());
        let value = |desc: &OpDesc| desc.attrs.get(attr.name).cloned().or(default.clone());
        if all.windows(2).all(|two| value(&two[0]) == value(&two[1])) {
            found.push(format!("attribute `{}` has one value in all samples", attr.name));
        }
    }
    let mut optional = |side: &str, slots: &[SlotDef], of: &dyn Fn(&OpDesc) -> &Slots| {
        for slot in slots.iter().filter(|s| s.arity == Arity::Optional) {
            let there = rows_descs.iter().filter(|desc| !of(desc).get(slot.name).is_empty()).count();
            if there == 0 || there == rows_descs.len() {
                let how = if there == 0 { "never" } else { "always" };
                found.push(format!("optional {side} `{}` is {how} there", slot.name));
            }
        }
    };
    optional("input", schema.inputs, &|desc| &desc.inputs);
    optional("output", schema.outputs, &|desc| &desc.outputs);
    let mixed_up = |dims: &[usize]| dims.iter().enumerate().any(|(i, n)| *n > 1 && dims[..i].contains(n));
    let clear = |s: &Sample| !s.draws.iter().any(|d| mixed_up(d.dims()));
    if !rows.iter().any(|s| clear(s)) {
        found.push("in every sample some shape has two equal dimensions".into());
    }
    found.extend(unrequested_gradients(info, &rows));
    found
}

/// Gradients that the gradient operator writes, but for which no sample has floating point inputs.
fn unrequested_gradients(info: &OpInfo, rows: &[&Sample]) -> Vec<String> {
    let GradKind::Operator(gradient) = info.grad_kind() else { return vec![] };
    let holds_floats = |slot: &str| {
        let vars = rows.iter().flat_map(|s| s.desc.inputs.get(slot).iter().map(move |v| (s, *v)));
        let mut vars = vars.filter(|(_, v)| *v != Var::EMPTY).peekable();
        vars.peek().is_none() || vars.any(|(s, v)| s.draws[draw(v)].dtype(DType::F64).is_float())
    };
    let written =
        |slot: &&SlotDef| gradient.outputs.iter().any(|out| out.name.strip_suffix(GRAD) == Some(slot.name));
    let dead = info.schema().inputs.iter().filter(written).filter(|slot| !holds_floats(slot.name));
    let told = |slot: &SlotDef| {
        let (name, of) = (slot.name, gradient.name);
        format!("`{of}` writes the gradient of `{name}`, which holds no floating point numbers in any sample")
    };
    dead.map(told).collect()
}

/// Corners that an operator's samples do not reach, as far as can be determined: lists of one length, operands that
/// never broadcast, dtypes that its shape rule accepts, inputs of only one sign where the other sign is also valid.
pub(super) fn corners(ops: &OpInfoMap, info: &OpInfo, samples: &[&Sample]) -> Vec<String> {
    let schema = info.schema();
    let rows: Vec<&Sample> =
        samples.iter().filter(|s| s.error.is_none() && s.program.is_none()).copied().collect();
    let mut found = vec![];
    for slot in schema.inputs.iter().filter(|s| matches!(s.arity, Arity::Many | Arity::Holes)) {
        let mut lengths: Vec<usize> = rows.iter().map(|s| s.desc.inputs.get(slot.name).len()).collect();
        lengths.dedup();
        if let [length] = lengths[..] {
            found.push(format!("input `{}` has {length} variables in all samples", slot.name));
        }
    }
    let inputs = |s: &Sample| s.draws.iter().filter(|d| !d.is_output()).cloned().collect::<Vec<_>>();
    let alike = |s: &&Sample| inputs(s).windows(2).all(|two| two[0].dims() == two[1].dims());
    if schema.broadcast && !rows.is_empty() && rows.iter().all(alike) {
        found.push("in no sample operands are broadcast".into());
    }
    found.extend(dtypes(info, &rows));
    found.extend(unused(ops, info, &rows));
    if !matches!(info.grad_kind(), GradKind::None(_)) {
        found.extend(signs(ops, info, &rows));
    }
    found
}

/// Variable k + 1 stands for draw number k.
fn draw(var: Var) -> usize {
    var.index() - 1
}

/// Dtypes that the shape rule accepts, but for which samples have floating point numbers only.
fn dtypes(info: &OpInfo, rows: &[&Sample]) -> Vec<String> {
    let accepts = |sample: &Sample, other: DType| {
        let of = |var: Var| {
            let draw = &sample.draws[draw(var)];
            Ok(Meta::new(draw.dtype(other), draw.dims()))
        };
        let any = sample.desc.reads().any(|var| sample.draws[draw(var)].is_of_float());
        any && info.infer(&sample.desc, &of, &mut |_, _| {}).is_ok()
    };
    let others = [DType::Bool, DType::U8, DType::I32, DType::I64];
    let accepted: Vec<DType> =
        others.into_iter().filter(|other| rows.iter().any(|sample| accepts(sample, *other))).collect();
    // Slots with floating point numbers in one sample, and other dtypes in another.
    let slots = |is_float: bool| {
        let reads = rows.iter().flat_map(|s| s.desc.reads().map(move |v| (*s, v)));
        let reads = reads.filter(move |(s, v)| s.draws[draw(*v)].is_of_float() == is_float);
        reads.filter_map(|(s, v)| s.desc.inputs.slot_of(v)).collect::<Vec<_>>()
    };
    let floats = slots(true);
    if accepted.is_empty() || slots(false).iter().any(|slot| floats.contains(slot)) {
        return vec![];
    }
    let accepted: Vec<String> = accepted.iter().map(DType::to_string).collect();
    vec![format!(
        "the shape rule accepts {}, but all samples have floating point numbers",
        accepted.join(", ")
    )]
}

/// Inputs without negative, or without positive numbers in any sample, although the operator accepts them.
fn signs(ops: &OpInfoMap, info: &OpInfo, rows: &[&Sample]) -> Vec<String> {
    let functions: Vec<_> =
        rows.iter().filter_map(|s| Some((*s, ProgramFunction::of(ops, s, DType::F64, None).ok()?))).collect();
    let mut found = vec![];
    for slot in info.schema().inputs {
        let mut probe = None;
        let (mut negative, mut positive) = (false, false);
        for (sample, function) in &functions {
            for var in sample.desc.inputs.get(slot.name).iter().filter(|v| **v != Var::EMPTY) {
                let name = format!("v{}", draw(*var));
                let input = function.inputs.iter().find(|(n, t)| *n == name && t.dtype() == DType::F64);
                let Some((_, tensor)) = input.filter(|_| sample.draws[draw(*var)].is_of_any_sign()) else {
                    continue;
                };
                let numbers = tensor.to_f64s();
                negative |= numbers.iter().any(|x| *x < 0.0);
                positive |= numbers.iter().any(|x| *x > 0.0);
                probe = probe.or((!numbers.is_empty()).then_some((function, name, tensor, numbers)));
            }
        }
        let (Some((function, name, tensor, numbers)), true) = (probe, negative != positive) else { continue };
        let turned = Tensor::from_vec(tensor.dims(), numbers.iter().map(|x| -x).collect());
        let values = turned.and_then(|turned| function.at(&name, turned));
        if values.is_ok_and(|values| values.iter().flat_map(Tensor::to_f64s).all(f64::is_finite)) {
            let (slot, sign) = (slot.name, if negative { "positive" } else { "negative" });
            found.push(format!("input `{slot}` has no {sign} numbers in any sample"));
        }
    }
    found
}
