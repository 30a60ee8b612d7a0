//! Checks of what a plan may run in place of an operator: parts that are fused, one operator for two, parts of a
//! parameter on several ranks.

use super::{
    composition::compare_values,
    function::{ProgramFunction, failure},
    hostile::{all_samples, cycled, given_as, with_numbers_of},
};
use autobwd_core::{
    __private::internals::*, DType, Meta, OpDesc, OpInfoMap, Result, Tensor, Var, VarDesc, operators::Scale,
    sample::Sample,
};

/// Runs an elementwise operator among other ones, with which it is fused: the values must stay the same.
pub(super) fn check_fused(
    ops: &OpInfoMap,
    sample: &Sample,
    function: &ProgramFunction,
    float: DType,
) -> Result<()> {
    let info = ops.get(sample.op())?;
    let is_dense = |meta: &Meta| meta.dtype == float && meta.rows.is_none() && !meta.array;
    if sample.program.is_some() || !(info.is_decomposed() || info.lanes().is_some()) {
        return Ok(());
    }
    let (mut program, mut inputs, differentiable) =
        (function.program.clone(), vec![], function.float_inputs());
    let mut before: Vec<OpDesc> = vec![];
    for (name, tensor) in &function.inputs {
        let var = program.expect_var(name)?;
        if !differentiable.contains(name) || tensor.dtype() != float {
            inputs.push((name.clone(), tensor.clone()));
            continue;
        }
        // Halves and doubles are exact, unless the number is very small or very large.
        let half = program.fresh("half");
        program.root_mut().vars.insert(half, VarDesc::of(tensor.meta()));
        let numbers: Vec<f64> = tensor.to_f64s().iter().map(|x| x / 2.0).collect();
        let halves = Tensor::from_f64s(float, tensor.dims(), &numbers)?;
        if halves.to_f64s().iter().zip(&numbers).any(|(half, x)| half != x && !x.is_nan()) {
            return Ok(());
        }
        inputs.push((program.name(half).to_string(), halves));
        before.push(twice(half, var));
    }
    let (mut after, mut doubled) = (vec![], vec![]);
    for (name, meta) in function.outputs.iter().filter(|(_, meta)| is_dense(meta)) {
        let (var, double) = (program.expect_var(name)?, program.fresh("double"));
        program.root_mut().vars.insert(double, VarDesc::of(meta.clone()));
        after.push(twice(var, double));
        doubled.push((program.name(double).to_string(), meta.clone()));
    }
    let root = program.root_mut();
    root.ops = before.into_iter().chain(std::mem::take(&mut root.ops)).chain(after).collect();
    let alone = function.run()?;
    let alone = function.outputs.iter().zip(alone).filter(|((_, meta), _)| is_dense(meta));
    let alone: Vec<(&str, Tensor)> = alone.map(|((name, _), value)| (name.as_str(), value)).collect();
    let fused = function.extended(ops, program, inputs, doubled).run()?;
    for ((name, alone), fused) in alone.iter().zip(fused) {
        let numbers: Vec<f64> = fused.to_f64s().iter().map(|x| x / 2.0).collect();
        if float.is_half() && numbers.iter().any(|x| x.is_infinite()) {
            continue;
        }
        let fused = Tensor::from_f64s(float, fused.dims(), &numbers)?;
        compare_values(&format!("output `{name}`, fused with other operators,"), &fused, alone)?;
    }
    Ok(())
}

fn twice(x: Var, out: Var) -> OpDesc {
    // The sign of zero is kept.
    Scale { x, out, scale: 2.0, bias: -0.0, bias_after_scale: true }.into()
}

/// Follows operators of a function by those with which a peephole rule would replace them: the values must equal those
/// of the pair.
pub(super) fn check_peepholes(ops: &OpInfoMap, function: &ProgramFunction) -> Result<()> {
    for first in &function.program.root().ops {
        for ((_, second), merge) in ops.peepholes().iter().filter(|((ty, _), _)| *ty == &*first.ty) {
            let rows = all_samples().iter().filter(|s| s.op() == *second);
            for row in rows.filter(|s| s.error.is_none() && s.program.is_none()) {
                for pair in pairs(ops, function, first, row)? {
                    if merge(first, &pair.second)?.is_none() {
                        continue;
                    }
                    let fetches: Vec<&str> =
                        pair.function.outputs.iter().map(|(name, _)| name.as_str()).collect();
                    let joined = pair.function.fetch(&fetches)?;
                    // A fetched value is computed, so the pair stays.
                    let both = [&fetches[..], &[pair.between.as_str()]].concat();
                    let apart = pair.function.fetch(&both)?;
                    for (joined, apart) in joined.iter().zip(&apart) {
                        let what =
                            format!("an output of the operator that replaces `{}` and `{second}`", first.ty);
                        compare_values(&what, joined, apart)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// A function that ends with an operator that reads the output of another one.
struct Pair {
    function: ProgramFunction,
    second: OpDesc,
    /// The variable between the two.
    between: String,
}

/// The function followed by the operator of a sample, with each output of `first` in each input that takes it.
fn pairs(ops: &OpInfoMap, function: &ProgramFunction, first: &OpDesc, row: &Sample) -> Result<Vec<Pair>> {
    let Ok(then) = ProgramFunction::of(ops, row, DType::F64, None) else { return Ok(vec![]) };
    let mut found = vec![];
    for between in first.writes() {
        let meta = function.program.root().vars.get(&between).map(VarDesc::meta);
        let Some((meta, dims)) = meta.and_then(|meta| Some((meta.clone(), meta.dims.known()?))) else {
            continue;
        };
        for (slot, (_, replaced)) in then.inputs.iter().enumerate() {
            if replaced.dtype() != meta.dtype {
                continue;
            }
            let (mut program, mut inputs) = (function.program.clone(), function.inputs.clone());
            let mut metas: Vec<(Var, Var, Meta)> = vec![];
            for (k, (name, tensor)) in then.inputs.iter().enumerate() {
                let own = then.program.expect_var(name)?;
                if k == slot {
                    metas.push((own, between, meta.clone()));
                    continue;
                }
                let alike = tensor.dims() == replaced.dims() && tensor.numel() > 0;
                let tensor = if alike { cycled(tensor, &dims)? } else { tensor.clone() };
                let var = program.fresh("then");
                program.root_mut().vars.insert(var, VarDesc::of(tensor.meta()));
                metas.push((own, var, tensor.meta()));
                inputs.push((program.name(var).to_string(), tensor));
            }
            let Some(mut second) = then.program.root().ops.first().cloned() else { continue };
            for arg in second.inputs.args_mut() {
                if let Some((_, var, _)) = metas.iter().find(|(own, ..)| own == arg) {
                    *arg = *var;
                }
            }
            for arg in second.outputs.args_mut().filter(|arg| **arg != Var::EMPTY) {
                *arg = program.fresh("end");
            }
            let of = |var: Var| {
                let known = metas.iter().find(|(_, own, _)| *own == var).map(|(.., meta)| meta.clone());
                known.ok_or_else(|| failure("an input of another operator"))
            };
            let mut ends = vec![];
            if ops.get(&second.ty)?.infer(&second, &of, &mut |var, meta| ends.push((var, meta))).is_err() {
                continue;
            }
            program.root_mut().vars.extend(ends.iter().map(|(var, meta)| (*var, VarDesc::of(meta.clone()))));
            program.root_mut().ops.push(second.clone());
            let ends: Vec<(String, Meta)> =
                ends.into_iter().map(|(var, meta)| (program.name(var).to_string(), meta)).collect();
            let between = program.name(between).to_string();
            found.push(Pair { function: function.extended(ops, program, inputs, ends), second, between });
        }
    }
    Ok(found)
}

/// An update that is declared elementwise computes parts of its result from parts of parameter, gradient and state.
pub(super) fn check_update(ops: &OpInfoMap, sample: &Sample, function: &ProgramFunction) -> Result<()> {
    if !ops.get(sample.op())?.is_elementwise_update() {
        return Ok(());
    }
    let whole = function.run()?;
    let Some(dims) = whole.first().map(|tensor| tensor.dims().to_vec()) else { return Ok(()) };
    let count: usize = dims.iter().product();
    if count < 2 {
        return Ok(());
    }
    let mut halves = vec![];
    for range in [0..count / 2, count / 2..count] {
        let mut part = with_numbers_of(sample, function);
        for (k, draw) in part.draws.iter_mut().enumerate().filter(|(_, draw)| draw.dims() == dims) {
            if let Some((_, tensor)) = function.inputs.iter().find(|(name, _)| *name == format!("v{k}")) {
                *draw = given_as(draw, &[range.len()], tensor.to_f64s()[range.clone()].to_vec());
            }
        }
        let part = ProgramFunction::of(ops, &part, DType::F64, None).and_then(|part| part.run());
        halves
            .push(part.map_err(|e| failure(format!("an update declared elementwise refuses a part: {e}")))?);
    }
    let [first, second] = &halves[..] else { return Ok(()) };
    for (((name, _), whole), (first, second)) in
        function.outputs.iter().zip(&whole).zip(first.iter().zip(second))
    {
        let joined = if whole.dims() == dims {
            Tensor::from_vec(whole.dims(), [first.to_f64s(), second.to_f64s()].concat())?
        } else {
            second.clone()
        };
        let whole = Tensor::from_vec(whole.dims(), whole.to_f64s())?;
        let what = format!("output `{name}` of an update declared elementwise, computed in parts,");
        let joined = Tensor::from_vec(joined.dims(), joined.to_f64s())?;
        compare_values(&what, &joined, &whole)?;
    }
    Ok(())
}
