//! Sequences of tensors whose lengths, and the positions in them, are known when a graph is imported: nothing is emitted
//! but slices and concatenations.

use std::rc::Rc;

use autobwd::{Expr, Result, Tensor};
use autobwd_ops::{DimExpr, Math, concat, stack};

use super::{
    node::{NodeContext, NodeOutput, Outputs, one, refuse},
    rules::{All, NodeRules},
    value::{ImportedValue, ValueContent},
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("SequenceEmpty", All, empty),
    ("SequenceConstruct", All, construct),
    ("SequenceInsert", All, insert),
    ("SequenceErase", All, erase),
    ("SequenceAt", All, at),
    ("SequenceLength", All, length),
    ("SplitToSequence", All, split),
    ("ConcatFromSequence", All, join),
];

/// A sequence has as many tensors as a graph may have nodes for them.
const MAX_LENGTH: usize = 1 << 12;

/// The tensors of the first input.
fn items(n: &NodeContext<'_, '_>) -> Result<Rc<[ImportedValue]>> {
    match &n.required(0)?.content {
        ValueContent::Sequence(items) => Ok(items.clone()),
        _ => Err(refuse(format!("operator `{}` needs a sequence", n.op()))),
    }
}

fn sequence(element: ElementType, items: Vec<ImportedValue>) -> Outputs {
    Ok(vec![NodeOutput::Value(ImportedValue::sequence(element, items))])
}

/// The position in input `i`, from the start; `default` if it is absent.
fn position(n: &NodeContext<'_, '_>, i: usize, length: usize, default: usize) -> Result<usize> {
    let Some(at) = n.constant_ints(i)?.and_then(|at| at.first().copied()) else { return Ok(default) };
    let from_start = if at < 0 { at + length as i64 } else { at };
    let at = usize::try_from(from_start).ok().filter(|at| *at <= length);
    at.ok_or_else(|| refuse(format!("operator `{}`: a position outside of {length} tensors", n.op())))
}

fn empty(n: &mut NodeContext<'_, '_>) -> Outputs {
    let code = n.int("dtype")?.and_then(|code| i32::try_from(code).ok());
    sequence(code.and_then(ElementType::from_code).unwrap_or(ElementType::F32), vec![])
}

fn construct(n: &mut NodeContext<'_, '_>) -> Outputs {
    let items: Vec<ImportedValue> =
        (0..n.input_count()).map(|i| n.required(i).cloned()).collect::<Result<_>>()?;
    sequence(n.element(0)?, items)
}

fn insert(n: &mut NodeContext<'_, '_>) -> Outputs {
    let mut items = items(n)?.to_vec();
    let at = position(n, 2, items.len(), items.len())?;
    items.insert(at, n.required(1)?.clone());
    if items.len() > MAX_LENGTH {
        return Err(refuse(format!("sequences of more than {MAX_LENGTH} tensors are not supported")));
    }
    sequence(n.element(1)?, items)
}

fn erase(n: &mut NodeContext<'_, '_>) -> Outputs {
    let mut items = items(n)?.to_vec();
    let at = position(n, 1, items.len(), items.len().saturating_sub(1))?;
    if at >= items.len() {
        return Err(refuse(format!(
            "operator `SequenceErase`: a position outside of {} tensors",
            items.len()
        )));
    }
    items.remove(at);
    sequence(n.element(0)?, items)
}

fn at(n: &mut NodeContext<'_, '_>) -> Outputs {
    let items = items(n)?;
    let at = position(n, 1, items.len(), items.len())?;
    let outside = || refuse(format!("operator `SequenceAt`: a position outside of {} tensors", items.len()));
    Ok(vec![NodeOutput::Value(items.get(at).ok_or_else(outside)?.clone())])
}

fn length(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(0, ElementType::I64);
    Ok(vec![NodeOutput::Known(Tensor::scalar(items(n)?.len() as i64)?)])
}

/// Parts of these sizes, or of one size, where the last part may have less; without sizes, single slices.
fn split(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int_or("axis", 0)?;
    let axis = n.axis(0, axis)?;
    let keeps_axis = n.flag("keepdims", true)? || n.has(1);
    let dim = n.dims(0)?[axis].get();
    let is_list = n.has(1) && n.rank(1)? == 1;
    let given = n.constant_ints(1)?;
    let sizes: Vec<i64> = match given {
        Some(sizes) if is_list => sizes,
        given => {
            let part = given.and_then(|part| part.first().copied()).unwrap_or(1);
            let dim = dim.ok_or_else(|| refuse("operator `SplitToSequence` needs a known dimension"))? as i64;
            if part < 1 || dim > part.saturating_mul(MAX_LENGTH as i64) {
                return Err(refuse(format!(
                    "operator `SplitToSequence`: parts of {part} elements are not supported"
                )));
            }
            (0..dim).step_by(part as usize).map(|start| part.min(dim - start)).collect()
        }
    };
    if sizes.iter().any(|size| *size < 0) || dim.is_some_and(|dim| sizes.iter().sum::<i64>() != dim as i64) {
        return Err(refuse(format!("operator `SplitToSequence`: sizes {sizes:?} do not fit {}", n.dims(0)?)));
    }
    let (x, element, sources) = (n.input(0)?, n.element(0)?, n.required(0)?.sources.clone());
    let mut start = 0;
    let mut part = |size: &i64| -> Result<ImportedValue> {
        let [first, end] = [start, start + size].map(DimExpr::from);
        start += size;
        let part = x.slice_to(axis as i32, &first, &end);
        let part = if keeps_axis { part } else { part.squeeze(&[axis as i32]) };
        let value = ImportedValue::computed("", element, part.check()?.clone());
        Ok(ImportedValue { sources: sources.clone(), ..value })
    };
    let items = sizes.iter().map(&mut part).collect::<Result<Vec<_>>>()?;
    sequence(element, items)
}

fn join(n: &mut NodeContext<'_, '_>) -> Outputs {
    let axis = n.int_or("axis", 0)? as i32;
    let stacks = n.flag("new_axis", false)?;
    let items = items(n)?;
    let exprs: Vec<Expr> = items.iter().map(|item| n.expr(item)).collect::<Result<_>>()?;
    let exprs: Vec<&Expr> = exprs.iter().collect();
    if exprs.is_empty() {
        return Err(refuse("operator `ConcatFromSequence` of no tensors is not supported"));
    }
    one(if stacks { stack(&exprs, axis) } else { concat(&exprs, axis) })
}
