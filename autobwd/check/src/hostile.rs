//! Inputs and attributes that an operator need not accept: it refuses them with an error, or is right.

use std::{
    collections::{BTreeSet, HashMap},
    sync::OnceLock,
};

use super::{
    composition::check_composition,
    derivatives::{GradientFunction, check_where_smooth},
    function::{ProgramFunction, STEP, in_case},
    panics::{catch_panic, is_fault},
};
use autobwd_core::__private::internals::*;
use autobwd_core::sample::{Draw, Sample, given, rng, samples};
use autobwd_core::{Attr, AttrDef, DType, GradKind, Meta, OpInfoMap, Result, Slots, Tensor, Var, with_dtype};

/// Largest number of elements whose derivatives are compared.
const ELEMENTS: usize = 64;
/// Largest number of bytes of outputs that are computed.
const BYTES: usize = 1 << 22;
/// Dimensions of inputs of any rank.
const DIMS: [usize; 6] = [2, 3, 1, 2, 1, 1];

/// All samples linked into this binary.
pub(super) fn all_samples() -> &'static [Sample] {
    static ALL: OnceLock<Vec<Sample>> = OnceLock::new();
    ALL.get_or_init(samples)
}

/// What distinguishes the rows of an operator for expensive checks: filled slots, dtypes, flags and names. Ranks and
/// numbers do not: the checks change these.
fn kind(sample: &Sample) -> String {
    let slots = [&sample.desc.inputs, &sample.desc.outputs].into_iter().flat_map(Slots::iter);
    let slots = slots.map(|(slot, vars)| format!("{slot} {}", vars.len().min(2)));
    let inputs = sample.draws.iter().filter(|draw| !draw.is_output()).map(|draw| draw.dtype(DType::F64));
    let flags = sample.desc.attrs.iter().filter(|(_, value)| matches!(value, Attr::Bool(_) | Attr::Str(_)));
    format!(
        "{} {:?} {:?} {:?}",
        sample.op(),
        slots.collect::<Vec<_>>(),
        inputs.collect::<BTreeSet<_>>(),
        flags.collect::<Vec<_>>()
    )
}

/// Whether a sample represents rows of its kind in expensive checks: it is the first one, or is not linked.
pub(super) fn is_representative(sample: &Sample) -> bool {
    static FIRST: OnceLock<HashMap<String, &'static Sample>> = OnceLock::new();
    let first = FIRST.get_or_init(|| {
        let rows = all_samples().iter().rev().filter(|s| s.error.is_none() && s.program.is_none());
        rows.map(|sample| (kind(sample), sample)).collect()
    });
    let dims = |sample: &Sample| sample.draws.iter().map(|draw| draw.dims().to_vec()).collect::<Vec<_>>();
    let same = |first: &&Sample| first.desc == sample.desc && dims(first) == dims(sample);
    sample.program.is_none() && first.get(&kind(sample)).is_none_or(same)
}

/// The function fails with an error about its inputs, or its values and gradients are right.
fn check_variant(ops: &OpInfoMap, sample: &Sample, function: &ProgramFunction, bound: f64) -> Result<()> {
    let largest =
        function.inputs.iter().flat_map(|(_, tensor)| tensor.to_f64s()).fold(0.0, |m: f64, x| m.max(x.abs()));
    // The sample's author has not seen how the function bends here.
    let change = STEP * largest;
    let bound = bound.max(change * change);
    let bytes = |(_, meta): &(String, Meta)| meta.bytes().unwrap_or(0);
    if function.outputs.iter().map(bytes).fold(0, usize::saturating_add) > BYTES {
        return Ok(());
    }
    let outcome = catch_panic(|| {
        function.run()?;
        if let GradKind::None(_) | GradKind::Zero = ops.get(sample.op())?.grad_kind() {
            return check_composition(ops, sample, function, None, &mut vec![]);
        }
        let built = GradientFunction::of(ops, function)?;
        built.gradient.run()?;
        check_composition(ops, sample, function, Some(&built), &mut vec![])?;
        let count: usize = function.float_inputs().iter().map(|name| function.numel(name)).sum();
        if sample.smooth.is_none() && count <= ELEMENTS {
            check_where_smooth(function, &built, bound)?;
        }
        Ok(())
    });
    outcome.or_else(|e| if is_fault(&e) { Err(e) } else { Ok(()) })
}

/// Gives integer inputs numbers that are no indices, and equal ones.
pub(super) fn check_integers(
    ops: &OpInfoMap,
    sample: &Sample,
    function: &ProgramFunction,
    bound: f64,
) -> Result<()> {
    for name in function.integer_inputs() {
        let Some((_, tensor)) = function.inputs.iter().find(|(n, _)| *n == name) else { continue };
        let Some(first) = tensor.to_f64s().first().copied() else { continue };
        let [low, high] = match tensor.dtype() {
            DType::U8 => [0.0, 255.0],
            DType::I32 => [f64::from(i32::MIN), f64::from(i32::MAX)],
            _ => [i64::MIN as f64, i64::MAX as f64],
        };
        // An index that equals the length of an axis is the smallest one out of range.
        let mut lengths: Vec<usize> =
            function.inputs.iter().flat_map(|(_, tensor)| tensor.dims()).copied().collect();
        lengths.sort_unstable();
        lengths.dedup();
        let lengths = lengths.into_iter().map(|n| n as f64);
        for number in [first, -1.0, 1e4, low, high].into_iter().chain(lengths) {
            let hostile = function.with_input(ops, &name, filled(tensor, number)?);
            let case = format!("every element of `{name}` made {number}, ");
            check_variant(ops, sample, &hostile, bound).map_err(in_case(&case))?;
        }
    }
    Ok(())
}

fn filled(like: &Tensor, number: f64) -> Result<Tensor> {
    let mut tensor = like.clone();
    match like.dtype() {
        DType::U8 => tensor.slice_mut::<u8>()?.fill(number as u8),
        DType::I32 => tensor.slice_mut::<i32>()?.fill(number as i32),
        DType::I64 => tensor.slice_mut::<i64>()?.fill(number as i64),
        _ => {}
    }
    Ok(tensor)
}

/// Sets each attribute to values at and beyond its bounds.
pub(super) fn check_attributes(ops: &OpInfoMap, sample: &Sample, bound: f64) -> Result<()> {
    // Gradients of the operator may be no derivatives for some values.
    let smooth = all_samples().iter().filter(|s| s.op() == sample.op()).find_map(|s| s.smooth);
    for attr in ops.get(sample.op())?.schema().attrs {
        let given = sample.desc.attrs.get(attr.name).cloned();
        let Some(value) = given.or_else(|| attr.default.map(|default| default())) else { continue };
        for (value, is_extreme) in edges(attr, &value) {
            let case = format!("attribute `{}` made {value}, ", attr.name);
            let mut changed = Sample { smooth: sample.smooth.or(smooth), ..sample.clone() };
            changed.desc.attrs.set(attr.name, value);
            let outcome = match catch_panic(|| ProgramFunction::of(ops, &changed, DType::F64, None)) {
                Err(e) if is_fault(&e) => Err(e),
                Ok(function) if !is_extreme => check_variant(ops, &changed, &function, bound),
                _ => Ok(()),
            };
            outcome.map_err(in_case(&case))?;
        }
    }
    Ok(())
}

/// Values at and beyond the bounds of an attribute, and whether they are extreme, so that only the shape rule is tried.
fn edges(attr: &AttrDef, value: &Attr) -> Vec<(Attr, bool)> {
    let limits = attr.bounds.iter().map(|bound| (bound.limit)());
    let whole: Vec<i64> = limits
        .clone()
        .filter_map(|limit| match limit {
            Attr::I32(n) => Some(i64::from(n)),
            Attr::I64(n) => Some(n),
            _ => None,
        })
        .flat_map(|n| [n.saturating_sub(1), n, n.saturating_add(1)])
        .chain([-1, 0, 1, 7])
        .collect();
    let real: Vec<f64> = limits
        .filter_map(|limit| match limit {
            Attr::F32(x) => Some(f64::from(x)),
            Attr::F64(x) => Some(x),
            _ => None,
        })
        .chain([-1.0, 0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN])
        .collect();
    let mild = |attr: Attr| (attr, false);
    let extreme = [i64::MIN, i64::MAX];
    match value {
        Attr::Bool(value) => vec![mild(Attr::Bool(!value))],
        Attr::I32(_) => {
            let of = |n: i64| Attr::I32(n.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32);
            whole.into_iter().map(|n| mild(of(n))).chain(extreme.map(|n| (of(n), true))).collect()
        }
        Attr::I64(_) => {
            let mild = whole.into_iter().map(|n| mild(Attr::I64(n)));
            mild.chain(extreme.map(|n| (Attr::I64(n), true))).collect()
        }
        Attr::F32(_) => real.into_iter().map(|x| mild(Attr::F32(x as f32))).collect(),
        Attr::F64(_) => real.into_iter().map(|x| mild(Attr::F64(x))).collect(),
        Attr::I32s(all) => lists(all, [-1, 0, 7, i32::MAX]).map(|all| mild(Attr::I32s(all))).collect(),
        Attr::I64s(all) => {
            lists(all, [-1, 0, 7, i64::from(i32::MAX)]).map(|all| mild(Attr::I64s(all))).collect()
        }
        Attr::F32s(all) => {
            lists(all, [-1.0, 0.0, f32::INFINITY, f32::NAN]).map(|all| mild(Attr::F32s(all))).collect()
        }
        Attr::F64s(all) => {
            lists(all, [-1.0, 0.0, f64::INFINITY, f64::NAN]).map(|all| mild(Attr::F64s(all))).collect()
        }
        _ => vec![],
    }
}

/// Lists with one number in the first place, none, and one more.
fn lists<T: Copy, const N: usize>(all: &[T], numbers: [T; N]) -> impl Iterator<Item = Vec<T>> {
    let first = numbers.map(|n| [n].into_iter().chain(all.iter().copied().skip(1)).collect::<Vec<_>>());
    let longer = [all, &all[..all.len().min(1)]].concat();
    first.into_iter().chain([vec![], longer])
}

/// Gives inputs every rank from 0 to 6: all of them, and each alone.
pub(super) fn check_ranks(
    ops: &OpInfoMap,
    sample: &Sample,
    bound: f64,
    check_kernels: &dyn Fn(&ProgramFunction) -> Result<()>,
) -> Result<()> {
    let inputs: Vec<usize> = (0..sample.draws.len()).filter(|k| !sample.draws[*k].is_output()).collect();
    let each = inputs.iter().map(|k| vec![*k]).filter(|_| inputs.len() > 1);
    for changed in [inputs.clone()].into_iter().chain(each) {
        for rank in 0..=DIMS.len() {
            let Some(ranked) = with_rank(sample, &changed, &DIMS[..rank])? else { continue };
            let names: Vec<String> = changed.iter().map(|k| format!("`v{k}`")).collect();
            let case = format!("{} of {rank} dimensions, ", names.join(", "));
            check_rule(ops, &ranked, &changed).map_err(in_case(&case))?;
            let outcome = match catch_panic(|| ProgramFunction::of(ops, &ranked, DType::F64, None)) {
                Err(e) if is_fault(&e) => Err(e),
                Err(_) => Ok(()),
                Ok(function) => {
                    let kernels = catch_panic(|| check_kernels(&function));
                    let kernels = kernels.or_else(|e| if is_fault(&e) { Err(e) } else { Ok(()) });
                    kernels.and_then(|()| check_variant(ops, &ranked, &function, bound))
                }
            };
            outcome.map_err(in_case(&case))?;
        }
    }
    Ok(())
}

/// Runs the shape rule with some inputs of unknown, and of no length: it must not panic.
fn check_rule(ops: &OpInfoMap, sample: &Sample, changed: &[usize]) -> Result<()> {
    for length in [-1, 0] {
        let of = |var: Var| {
            let draw = &sample.draws[var.index() - 1];
            let dims: Vec<i64> = draw.dims().iter().map(|n| *n as i64).collect();
            let dims = if changed.contains(&(var.index() - 1)) { vec![length; dims.len()] } else { dims };
            let dims =
                dims.iter().map(|n| usize::try_from(*n).map_or(autobwd_core::Dim::UNKNOWN, Into::into));
            Ok(Meta::new(draw.dtype(DType::F64), dims.collect::<autobwd_core::Dims>()))
        };
        let info = ops.get(sample.op())?;
        match catch_panic(|| info.infer(&sample.desc, &of, &mut |_, _| {})) {
            Err(e) if is_fault(&e) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// The sample with other dimensions of some inputs; `None` if there are no elements for them.
fn with_rank(sample: &Sample, changed: &[usize], dims: &[usize]) -> Result<Option<Sample>> {
    let (mut ranked, mut rng) = (sample.clone(), rng(1));
    for k in changed {
        let draw = &sample.draws[*k];
        let elements = draw.tensor(DType::F64, &mut rng)?.to_f64s();
        if elements.is_empty() {
            return Ok(None);
        }
        let shift = if draw.dtype(DType::F64).is_float() { 0.0137 } else { 0.0 };
        let element = |i: usize| elements[i % elements.len()] + shift * (i / elements.len()) as f64;
        ranked.draws[*k] = given_as(draw, dims, (0..dims.iter().product()).map(element).collect());
    }
    Ok(Some(ranked))
}

/// These numbers, with the dtype of another draw.
pub(super) fn given_as(like: &Draw, dims: &[usize], elements: Vec<f64>) -> Draw {
    macro_rules! of_rank {
        ($($rank:literal)*) => {
            match dims.len() {
                $($rank => given(std::array::from_fn::<usize, $rank, _>(|i| dims[i]), elements),)*
                _ => given([elements.len()], elements),
            }
        };
    }
    let draw = of_rank!(0 1 2 3 4 5 6);
    if like.is_of_float() { draw } else { draw.of(like.dtype(DType::F64)) }
}

/// The sample with the numbers of a function's inputs.
pub(super) fn with_numbers_of(sample: &Sample, function: &ProgramFunction) -> Sample {
    let mut fixed = sample.clone();
    for (k, draw) in fixed.draws.iter_mut().enumerate() {
        if let Some((_, tensor)) = function.inputs.iter().find(|(name, _)| *name == format!("v{k}")) {
            *draw = given_as(draw, tensor.dims(), tensor.to_f64s());
        }
    }
    fixed
}

/// The elements of a tensor, repeated as often as needed, with other dimensions.
pub(super) fn cycled(tensor: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let count = dims.iter().product();
    with_dtype!(tensor.dtype(), T => {
        let elements = tensor.slice::<T>()?.iter().copied().cycle().take(count).collect::<Vec<T>>();
        Tensor::from_vec(dims, elements)
    })
}
