//! Inputs, outputs and attributes that have no effect in any sample.

use super::{derivatives::GradientFunction, function::ProgramFunction, panics::catch_panic};
use autobwd_core::sample::Sample;
use autobwd_core::{Attr, AttrType, DType, OpInfo, OpInfoMap, Result, Tensor};

/// Rows that are tried for each operator.
const ROWS: usize = 12;

/// Values and gradients; `None` if the operator refuses its inputs.
fn results(ops: &OpInfoMap, function: &ProgramFunction) -> Option<Vec<Tensor>> {
    let outcome = catch_panic(|| {
        let mut values = function.run()?;
        if let Ok(built) = GradientFunction::of(ops, function) {
            values.extend(built.gradient.run()?);
        }
        Ok(values)
    });
    outcome.ok()
}

/// Dtype, shape and bytes of a tensor.
type Bits<'a> = (DType, &'a [usize], &'a [u8]);

fn bits(values: Option<&Vec<Tensor>>) -> Option<Vec<Bits<'_>>> {
    values.map(|values| values.iter().map(|value| (value.dtype(), value.dims(), value.bytes())).collect())
}

/// The tensor with every element changed.
fn moved(tensor: &Tensor) -> Result<Tensor> {
    let mut moved = tensor.clone();
    match tensor.dtype() {
        DType::F64 => moved.slice_mut::<f64>()?.iter_mut().for_each(|x| *x = *x * 0.875 + 0.01),
        DType::I64 => moved.slice_mut::<i64>()?.iter_mut().for_each(|n| *n = if *n == 0 { 1 } else { 0 }),
        DType::I32 => moved.slice_mut::<i32>()?.iter_mut().for_each(|n| *n = if *n == 0 { 1 } else { 0 }),
        _ => moved.bytes_mut().iter_mut().for_each(|byte| *byte ^= 1),
    }
    Ok(moved)
}

/// Inputs and attributes without effect on values and gradients, and outputs that no input changes.
pub(super) fn unused(ops: &OpInfoMap, info: &OpInfo, rows: &[&Sample]) -> Vec<String> {
    let schema = info.schema();
    let functions = rows.iter().filter_map(|row| {
        let function = ProgramFunction::of(ops, row, DType::F64, None).ok()?;
        let values = results(ops, &function)?;
        Some((*row, function, values))
    });
    let functions: Vec<(&Sample, ProgramFunction, Vec<Tensor>)> = functions.take(ROWS).collect();
    let mut found = vec![];
    let mut changed: Vec<&str> = vec![];
    for slot in schema.inputs.iter().filter(|slot| !slot.shape_only && !slot.constant) {
        let (mut tried, mut has_effect) = (false, false);
        for (row, function, values) in &functions {
            for var in row.desc.inputs.get(slot.name) {
                let name = format!("v{}", var.index().wrapping_sub(1));
                let Some((_, tensor)) = function.inputs.iter().find(|(n, _)| *n == name) else { continue };
                let Some(moved) = moved(tensor).ok().filter(|moved| moved.numel() > 0) else { continue };
                let other = results(ops, &function.with_input(ops, &name, moved));
                tried = true;
                has_effect |= bits(other.as_ref()) != bits(Some(values));
                for (k, slot) in schema.outputs.iter().enumerate() {
                    let of = |values: &Vec<Tensor>| {
                        let at = row.desc.outputs.get(slot.name).first()?.index() - 1;
                        let at = function.outputs.iter().position(|(n, _)| *n == format!("v{at}"))?;
                        Some(values[at].bytes().to_vec())
                    };
                    if other.as_ref().is_none_or(|other| of(other) != of(values)) {
                        changed.push(schema.outputs[k].name);
                    }
                }
            }
        }
        if tried && !has_effect {
            found.push(format!("input `{}` has no effect in any sample", slot.name));
        }
    }
    for slot in schema.outputs.iter().filter(|slot| !changed.contains(&slot.name) && !changed.is_empty()) {
        let has_elements = |(row, function, values): &(&Sample, ProgramFunction, Vec<Tensor>)| {
            let var = row
                .desc
                .outputs
                .get(slot.name)
                .first()
                .map(|var| format!("v{}", var.index().wrapping_sub(1)));
            let at = function.outputs.iter().position(|(name, _)| Some(name) == var.as_ref());
            at.is_some_and(|at| values[at].numel() > 0)
        };
        if functions.iter().any(has_elements) {
            found.push(format!("no input changes output `{}` in any sample", slot.name));
        }
    }
    for attr in schema.attrs.iter().filter(|a| !matches!(a.ty, AttrType::Block | AttrType::Blocks)) {
        let value = |row: &Sample| row.desc.attrs.get(attr.name).cloned();
        let mut others: Vec<Option<Attr>> = vec![];
        for row in rows {
            if !others.contains(&value(row)) {
                others.push(value(row));
            }
        }
        let has_effect = |(row, _, values): &(&Sample, ProgramFunction, Vec<Tensor>)| {
            others.iter().flatten().filter(|other| Some(*other) != value(row).as_ref()).any(|other| {
                let mut changed = (*row).clone();
                changed.desc.attrs.set(attr.name, other.clone());
                let function = ProgramFunction::of(ops, &changed, DType::F64, None).ok();
                let other = function.and_then(|function| results(ops, &function));
                bits(other.as_ref()) != bits(Some(values))
            })
        };
        if others.len() > 1 && !functions.is_empty() && !functions.iter().any(has_effect) {
            found.push(format!("attribute `{}` has no effect in any sample", attr.name));
        }
    }
    found
}
