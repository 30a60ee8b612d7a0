//! A single operator, ready to run on data in the scope.

use autobwd::{
    Attr, DType, Dims, Executor, OpDesc, Program, Result, Scope, Session, Tensor, Var, VarDesc, op::OpInfo,
};

/// Prepares an operator: every slot has `elements` elements of `dtype`, inputs are in [0, 1]; attributes have their
/// default values, or 1.
///
/// # Errors
/// The operator does not accept these.
pub fn alone(executor: &Executor, info: &OpInfo, dtype: DType, elements: usize) -> Result<(Scope, Session)> {
    let schema = info.schema();
    let (mut program, mut scope, mut op) = (Program::new(), Scope::new(), OpDesc::new(schema.name));
    let declare = |program: &mut Program, name: &str, persistable: bool| -> Var {
        let var = program.var(name);
        let desc = VarDesc { persistable, ..VarDesc::new(dtype, Dims::from([elements])) };
        program.root_mut().vars.insert(var, desc);
        var
    };
    for (k, slot) in schema.inputs.iter().enumerate() {
        let name = format!("input {}", slot.name);
        op.inputs.set(slot.name, [declare(&mut program, &name, true)]);
        let numbers = numbers(k, elements);
        let tensor = match dtype {
            DType::F64 => Tensor::from_vec([elements], numbers)?,
            _ => Tensor::from_vec([elements], numbers.iter().map(|x| *x as f32).collect::<Vec<_>>())?,
        };
        scope.set(&name, tensor);
    }
    for slot in schema.outputs {
        op.outputs.set(slot.name, [declare(&mut program, slot.name, false)]);
    }
    for attr in schema.attrs.iter().filter(|attr| attr.default.is_none()) {
        op.attrs.set(attr.name, Attr::F32(1.0));
    }
    program.root_mut().ops.push(op);
    let fetches: Vec<_> = schema.outputs.iter().map(|slot| slot.name).collect();
    let session = executor.prepare(&program, &mut scope, &[], &fetches)?;
    Ok((scope, session))
}

/// Numbers in [0, 1], different for every slot.
fn numbers(slot: usize, n: usize) -> Vec<f64> {
    (1..=n).map(|i| (i as f64 * 0.618_034 + slot as f64 * 0.3).fract().max(0.01)).collect()
}
