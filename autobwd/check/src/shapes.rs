//! Checks of shape rules with unknown dimensions, and of operators with dimensions of 0 and 1.

use std::collections::HashMap;

use super::{
    function::{ProgramFunction, failure, unwritten_error},
    panics::{catch_panic, is_fault},
};
use autobwd_core::__private::internals::*;
use autobwd_core::sample::Sample;
use autobwd_core::{Dim, Error, Meta, OpDesc, OpInfo, OpInfoMap, Result, Var};

/// Number of dimensions up to which every subset is tried; of more, each alone, all but each, and all.
const SUBSETS: usize = 5;

/// Runs the shape rule of every operator of a function with some dimensions of its inputs unknown: it must not panic or
/// infer anything wrong. Rejections of shapes that are accepted when fully known go to `warnings`.
///
/// # Errors
/// A violated check, with the operator and the shapes.
pub(super) fn check_unknown(
    ops: &OpInfoMap,
    function: &ProgramFunction,
    sample: &Sample,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let mut known: HashMap<Var, Meta> = HashMap::new();
    for (name, meta) in function.feeds()? {
        known.insert(function.program.expect_var(name)?, meta);
    }
    for op in &function.program.root().ops {
        let info = ops.get(&op.ty)?;
        if info.is_control() {
            // The program determines the outputs of a sub-block.
            return Ok(());
        }
        let mut inputs: Vec<(Var, Meta)> = vec![];
        for var in op.reads().filter(|v| *v != Var::EMPTY) {
            if inputs.iter().all(|(v, _)| *v != var) {
                inputs.push((var, known.get(&var).cloned().ok_or_else(unwritten_error)?));
            }
        }
        let outputs = infer(info, op, &inputs)?;
        let (count, mut refused) = (inputs.iter().map(|(_, meta)| places(meta)).sum(), None);
        for subset in subsets(count) {
            let (mut some, mut at) = (inputs.clone(), 0);
            for (_, meta) in &mut some {
                if meta.constant().is_some() {
                    if subset(at) {
                        *meta = meta.clone().with_constant(None);
                    }
                    at += 1;
                    continue;
                }
                for dim in meta.dims.iter_mut() {
                    if subset(at) {
                        *dim = Dim::UNKNOWN;
                    }
                    at += 1;
                }
            }
            let at = |e: &Error| {
                let inputs: Vec<String> = some.iter().map(|(var, meta)| input(op, *var, meta)).collect();
                format!("the shape rule of `{}`, where {}: {e}", op.ty, inputs.join(", "))
            };
            match infer(info, op, &some) {
                Err(e) if is_fault(&e) => return Err(failure(at(&e))),
                Err(e) => refused = refused.or(Some(at(&e))),
                Ok(_) if sample.known_dims.is_some() => {}
                Ok(said) => compare(&said, &outputs).map_err(|e| failure(at(&e)))?,
            }
        }
        warnings.extend(refused.map(|text| format!("an error where dimensions are unknown: {text}")));
        known.extend(outputs);
    }
    Ok(())
}

/// The number of dimensions that may be unknown; for a constant, 1: its elements may be.
fn places(meta: &Meta) -> usize {
    if meta.constant().is_some() { 1 } else { meta.rank() }
}

/// `` `X` is float64 [-1, 3] ``
fn input(op: &OpDesc, var: Var, meta: &Meta) -> String {
    let slot = op.inputs.slot_of(var).map(|slot| slot.to_string());
    format!("`{}` is {meta}", slot.unwrap_or_default())
}

fn infer(info: &OpInfo, op: &OpDesc, inputs: &[(Var, Meta)]) -> Result<Vec<(Var, Meta)>> {
    let of = |var: Var| {
        let known = inputs.iter().find(|(v, _)| *v == var);
        known.map(|(_, meta)| meta.clone()).ok_or_else(unwritten_error)
    };
    let mut outputs = vec![];
    catch_panic(|| info.infer(op, &of, &mut |var, meta| outputs.push((var, meta))))?;
    Ok(outputs)
}

fn compare(said: &[(Var, Meta)], known: &[(Var, Meta)]) -> Result<()> {
    for ((_, said), (_, is)) in said.iter().zip(known) {
        if !said.agrees(is) {
            let slot = is.slot();
            return Err(failure(format!(
                "`{slot}` is {said} by the shape rule, but {is} with known dimensions"
            )));
        }
    }
    Ok(())
}

/// The unknown dimensions, case by case, out of `count`.
fn subsets(count: usize) -> Vec<Box<dyn Fn(usize) -> bool>> {
    if count <= SUBSETS {
        let of_bits = |bits: usize| Box::new(move |at: usize| bits & (1 << at) != 0) as _;
        return (1..1 << count).map(of_bits).collect();
    }
    let mut all: Vec<Box<dyn Fn(usize) -> bool>> = vec![Box::new(|_| true)];
    for k in 0..count {
        all.push(Box::new(move |at| at == k));
        all.push(Box::new(move |at| at != k));
    }
    all
}

/// Copies of a sample with all dimensions of some length changed to 0 or 1, each with a description.
pub(super) fn resized(sample: &Sample) -> Vec<(String, Sample)> {
    let mut lengths: Vec<usize> = sample.draws.iter().flat_map(|draw| draw.dims()).copied().collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut all = vec![];
    for from in lengths {
        for to in [0, 1].into_iter().filter(|to| *to != from) {
            let what = format!("dimensions of {from} made {to}, ");
            all.extend(sample.resized(from, to).map(|sample| (what, sample)));
        }
    }
    all
}
