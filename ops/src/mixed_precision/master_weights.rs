//! Updates of the reference that keep master weights, in terms of updates and casts.

use std::collections::HashMap;

use autobwd::{
    BlockId, DType, Error, ErrorKind, OpDesc, Program, Result, VarDesc,
    operators::Cast,
    program::{Slots, Var},
};

use super::rewrite::new_var;

/// The program with updates of master weights, and casts to the parameters, in place of updates with the slots
/// `MasterParam` and `MasterParamOut` of the reference (`multi_precision`), for every optimizer: the update writes the
/// float32 master weights from float32 gradients, and the parameters are rounded from them. An update of
/// 16-bit parameters with a float32 learning rate or state, but without master weights, is one of float32 copies.
///
/// ```
/// use autobwd::{DType, OpDesc, Program, VarDesc};
/// use autobwd_ops::mixed_precision::lower_master_weights;
/// let mut program = Program::new();
/// let [w, master] = ["w", "w.master"].map(|name| program.var(name));
/// let [rate, gradient] = ["rate", "gradient"].map(|name| program.var(name));
/// for (var, dtype) in [(w, DType::F16), (master, DType::F32), (rate, DType::F32), (gradient, DType::F16)] {
///     program.root_mut().vars.insert(var, VarDesc::parameter(dtype, [1].into()));
/// }
/// let sgd = OpDesc::new("sgd").input("Param", [w]).input("MasterParam", [master]);
/// let sgd = sgd.input("Grad", [gradient]).input("LearningRate", [rate]);
/// program.root_mut().ops.push(sgd.output("ParamOut", [w]).output("MasterParamOut", [master]));
/// let program = lower_master_weights(&program)?;
/// let lines: Vec<String> = program.to_string().lines().map(|line| line.trim().to_string()).collect();
/// assert_eq!(lines[5], "gradient.cast_fp32 = cast(X=gradient, in_dtype=4, out_dtype=5)");
/// assert_eq!(lines[6], "w.master = sgd(Grad=gradient.cast_fp32, LearningRate=rate, Param=w.master)");
/// assert_eq!(lines[7], "w = cast(X=w.master, in_dtype=5, out_dtype=4)");
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Numbers of master weights and parameters that differ; variables that are not declared.
pub fn lower_master_weights(program: &Program) -> Result<Program> {
    let mut lowered = program.clone();
    for (index, block) in program.blocks().iter().enumerate() {
        let id = BlockId::new(index);
        let mut ops = vec![];
        for op in &block.ops {
            match is_mixed(program, id, op)? {
                true => ops.extend(lower(&mut lowered, id, op)?),
                false => ops.push(op.clone()),
            }
        }
        if let Some(block) = lowered.block_mut(id) {
            block.ops = ops;
        }
    }
    Ok(lowered)
}

const MASTER: &str = "MasterParam";
const MASTER_OUT: &str = "MasterParamOut";

/// Whether an operator is an update in 16 bits and in float32.
fn is_mixed(program: &Program, block: BlockId, op: &OpDesc) -> Result<bool> {
    if op.outputs.get("ParamOut").is_empty() {
        return Ok(false);
    }
    let mut dtypes = vec![];
    for var in op.reads() {
        dtypes.push(declared(program, block, var)?.dtype);
    }
    let is_mixed = dtypes.iter().any(|dtype| dtype.is_half()) && dtypes.contains(&DType::F32);
    Ok(is_mixed || !op.inputs.get(MASTER).is_empty())
}

/// The operators in place of an update, which `block` holds: the update in float32 between casts.
fn lower(program: &mut Program, block: BlockId, op: &OpDesc) -> Result<Vec<OpDesc>> {
    let mut update = op.clone();
    update.attrs.remove("multi_precision");
    let mut rounded = with_master_weights(&mut update)?;
    let mut ops = vec![];
    let mut copies: HashMap<Var, Var> = HashMap::new();
    for var in update.inputs.args_mut() {
        let in_dtype = declared(program, block, *var)?.dtype;
        if !in_dtype.is_half() {
            continue;
        }
        let x = *var;
        *var = match copies.get(&x) {
            Some(copy) => *copy,
            None => single(program, block, x)?,
        };
        if copies.insert(x, *var).is_none() {
            ops.push(Cast { x, out: *var, in_dtype, out_dtype: DType::F32 }.into());
        }
    }
    for var in update.outputs.args_mut() {
        if declared(program, block, *var)?.dtype.is_half() {
            let out = *var;
            *var = match copies.get(&out) {
                Some(copy) => *copy,
                None => single(program, block, out)?,
            };
            rounded.push((*var, out));
        }
    }
    ops.push(update);
    for (x, out) in rounded {
        let [in_dtype, out_dtype] = [x, out].map(|var| declared(program, block, var).map(|desc| desc.dtype));
        ops.push(Cast { x, out, in_dtype: in_dtype?, out_dtype: out_dtype? }.into());
    }
    ops.iter_mut().for_each(|lowered| lowered.site = op.site);
    Ok(ops)
}

/// Puts the master weights of an update in the place of its parameters. Returns the pairs of both.
fn with_master_weights(update: &mut OpDesc) -> Result<Vec<(Var, Var)>> {
    let masters = update.inputs.get(MASTER).to_vec();
    let written = update.outputs.get(MASTER_OUT).to_vec();
    let parameters = update.outputs.get("ParamOut").to_vec();
    if masters.is_empty() {
        return Ok(vec![]);
    }
    if masters.len() != parameters.len() || masters.len() != written.len() {
        let text = format!(
            "`{}` has {} of `{MASTER}` and {} of `{MASTER_OUT}`, but {} of `ParamOut`",
            update.ty,
            masters.len(),
            written.len(),
            parameters.len()
        );
        return Err(Error::new(ErrorKind::Slot, text));
    }
    let without = |slots: &Slots, slot: &str| {
        let mut kept = Slots::default();
        let others = slots.iter().filter(|(name, _)| *name != slot);
        others.for_each(|(name, vars)| kept.set(name, vars.iter().copied()));
        kept
    };
    update.inputs = without(&update.inputs, MASTER);
    update.outputs = without(&update.outputs, MASTER_OUT);
    update.inputs.set("Param", masters);
    update.outputs.set("ParamOut", written.iter().copied());
    Ok(written.into_iter().zip(parameters).collect())
}

/// A new float32 variable for the numbers of a 16-bit one.
fn single(program: &mut Program, block: BlockId, half: Var) -> Result<Var> {
    let desc = declared(program, block, half)?.clone();
    let name = format!("{}.cast_fp32", program.name(half));
    let out = new_var(program, &name);
    let (dtype, persistable, parameter, gradient_of) = (DType::F32, false, false, None);
    if let Some(block) = program.block_mut(block) {
        block.vars.insert(out, VarDesc { dtype, persistable, parameter, gradient_of, ..desc });
    }
    Ok(out)
}

fn declared(program: &Program, block: BlockId, var: Var) -> Result<&VarDesc> {
    let undeclared = || Error::new(ErrorKind::UnknownVar, format!("`{}` is not declared", program.name(var)));
    program.lookup(block, var).ok_or_else(undeclared)
}
