//! Updates of the reference that keep master weights, in terms of updates and casts.

use autobwd::{
    DType, Error, ErrorKind, OpDesc, Program, Result, VarDesc,
    operators::Cast,
    program::{Slots, Var},
};

use super::rewrite::new_var;

/// The program with updates of master weights, and casts to the parameters, in place of updates with the slots
/// `MasterParam` and `MasterParamOut` of the reference (`multi_precision`), for every optimizer: the update writes the
/// float32 master weights from float32 gradients, and the parameters are rounded from them.
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
    let ops = std::mem::take(&mut lowered.root_mut().ops);
    for op in ops {
        if op.inputs.get(MASTER).is_empty() {
            lowered.root_mut().ops.push(op);
        } else {
            lower(&mut lowered, op)?;
        }
    }
    Ok(lowered)
}

const MASTER: &str = "MasterParam";
const MASTER_OUT: &str = "MasterParamOut";

fn lower(program: &mut Program, op: OpDesc) -> Result<()> {
    let masters = op.inputs.get(MASTER).to_vec();
    let written = op.outputs.get(MASTER_OUT).to_vec();
    let parameters = op.outputs.get("ParamOut").to_vec();
    if masters.len() != parameters.len() || masters.len() != written.len() {
        let text = format!(
            "`{}` has {} of `{MASTER}` and {} of `{MASTER_OUT}`, but {} of `ParamOut`",
            op.ty,
            masters.len(),
            written.len(),
            parameters.len()
        );
        return Err(Error::new(ErrorKind::Slot, text));
    }
    let mut gradients = vec![];
    for gradient in op.inputs.get("Grad").to_vec() {
        gradients.push(single(program, gradient, &op)?);
    }
    let mut casts = vec![];
    for (master, parameter) in written.iter().zip(&parameters) {
        let [in_dtype, out_dtype] = [dtype(program, *master)?, dtype(program, *parameter)?];
        casts.push(OpDesc {
            site: op.site,
            ..Cast { x: *master, out: *parameter, in_dtype, out_dtype }.into()
        });
    }
    let without = |slots: &Slots, slot: &str| {
        let mut kept = Slots::default();
        let others = slots.iter().filter(|(name, _)| *name != slot);
        others.for_each(|(name, vars)| kept.set(name, vars.iter().copied()));
        kept
    };
    let (mut inputs, mut outputs) = (without(&op.inputs, MASTER), without(&op.outputs, MASTER_OUT));
    inputs.set("Param", masters);
    inputs.set("Grad", gradients);
    outputs.set("ParamOut", written);
    let mut update = OpDesc { inputs, outputs, ..op };
    update.attrs.remove("multi_precision");
    let ops = &mut program.root_mut().ops;
    ops.push(update);
    ops.extend(casts);
    Ok(())
}

/// A gradient in float32.
fn single(program: &mut Program, gradient: Var, op: &OpDesc) -> Result<Var> {
    let in_dtype = dtype(program, gradient)?;
    if !in_dtype.is_half() {
        return Ok(gradient);
    }
    let name = format!("{}.cast_fp32", program.name(gradient));
    let out = new_var(program, &name);
    let known = program.root().vars.get(&gradient).cloned();
    let root = program.root_mut();
    if let Some(desc) = known {
        let desc =
            VarDesc { dtype: DType::F32, persistable: false, parameter: false, gradient_of: None, ..desc };
        root.vars.insert(out, desc);
    }
    let cast = Cast { x: gradient, out, in_dtype, out_dtype: DType::F32 };
    root.ops.push(OpDesc { site: op.site, ..cast.into() });
    Ok(out)
}

fn dtype(program: &Program, var: Var) -> Result<DType> {
    let desc = program.root().vars.get(&var);
    desc.map(|desc| desc.dtype)
        .ok_or_else(|| Error::new(ErrorKind::UnknownVar, format!("`{}` is not declared", program.name(var))))
}
