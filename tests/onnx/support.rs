//! Programs that are written for ONNX and read again.

use std::collections::{BTreeMap, BTreeSet};

use autobwd::{BlockId, DType, Executor, OpInfoMap, Program, Tensor};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{Model, fill::AssignValue};

/// Runs a model on these values, by name.
fn run(model: &mut Model, values: &[(String, Tensor)]) -> autobwd::Result<Vec<Tensor>> {
    let by_name: BTreeMap<&str, &Tensor> =
        values.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let feeds: Vec<&Tensor> =
        model.feeds.iter().filter_map(|name| by_name.get(name.as_str()).copied()).collect();
    model.run(&mut Executor::with_threads(1), &feeds)
}

/// The largest difference, relative to the largest element or 1.
fn difference(x: &Tensor, y: &Tensor) -> f64 {
    if (x.dims(), x.dtype()) != (y.dims(), y.dtype()) {
        return f64::INFINITY;
    }
    let (x, y) = (x.to_f64s(), y.to_f64s());
    let largest = y.iter().filter(|y| y.is_finite()).fold(1.0, |m: f64, y| m.max(y.abs()));
    let each =
        x.iter().zip(&y).map(|(x, y)| if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() });
    each.fold(0.0, |worst: f64, d| if d <= worst { worst } else { d }) / largest
}

/// Whether the type of an operator contains that text.
fn program_has(program: &Program, text: &str) -> bool {
    program.root().ops.iter().any(|op| op.ty.contains(text))
}

/// The program with assignments of the inputs that operators need when it is planned, and the other inputs.
pub(crate) fn with_constants(
    mut program: Program,
    values: Vec<(String, Tensor)>,
) -> (Program, Vec<(String, Tensor)>) {
    let ops = OpInfoMap::linked().expect("operators are linked");
    let mut constants = BTreeSet::new();
    for op in &program.root().ops {
        let inputs = ops.get(&op.ty).map_or(&[][..], |info| info.schema().inputs);
        for slot in inputs.iter().filter(|slot| slot.constant) {
            constants.extend(op.inputs.get(slot.name).iter().copied());
        }
    }
    let mut fed = vec![];
    for (name, value) in values {
        let Some(var) = program.find(&name).filter(|var| constants.contains(var)) else {
            fed.push((name, value));
            continue;
        };
        let numbers = value.to_f64s();
        let integers = || numbers.iter().map(|x| *x as i64);
        let mut op = AssignValue {
            out: var,
            shape: value.dims().iter().map(|dim| *dim as i32).collect(),
            dtype: value.dtype(),
            bool_values: vec![],
            fp32_values: vec![],
            fp64_values: vec![],
            int32_values: vec![],
            int64_values: vec![],
        };
        match value.dtype() {
            DType::F16 | DType::BF16 | DType::F32 => {
                op.fp32_values = numbers.iter().map(|x| *x as f32).collect()
            }
            DType::F64 => op.fp64_values = numbers.clone(),
            DType::I32 => op.int32_values = integers().map(|x| x as i32).collect(),
            _ => op.int64_values = integers().collect(),
        }
        program.block_mut(BlockId::ROOT).expect("the root block").ops.insert(0, op.into());
    }
    (program, fed)
}

/// Writes and reads a program; an error if results differ.
pub(crate) fn check_program(
    program: Program,
    values: &[(String, Tensor)],
    fetches: &[String],
) -> Result<bool, String> {
    let feeds = values.iter().map(|(name, _)| name.clone()).collect();
    let mut model = Model { program, feeds, fetches: fetches.to_vec(), scope: autobwd::Scope::new() };
    let Ok(expected) = run(&mut model, values) else { return Ok(false) };
    let Ok(bytes) = to_bytes(&model) else { return Ok(false) };
    let shapes = values.iter().map(|(name, value)| (name.clone(), value.dims().to_vec())).collect();
    let options = LoadOptions { shapes, ..LoadOptions::default() };
    let mut read = from_bytes(&bytes, &options).map_err(|e| format!("is not read: {e}"))?;
    let results = run(&mut read, values).map_err(|e| format!("does not run: {e}"))?;
    for ((name, result), expected) in fetches.iter().zip(&results).zip(&expected) {
        let difference = difference(result, expected);
        let tolerance = match expected.dtype() {
            // Nodes round where a kernel does not.
            DType::BF16 => 5e-2,
            DType::F16 => 1e-2,
            // Of 16-bit values, the kernel and the nodes add in different orders.
            DType::F32 => 1e-6,
            // Positions in images are computed in float32.
            _ if program_has(&model.program, "_interp_") => 1e-6,
            _ => 1e-9,
        };
        if difference > tolerance {
            return Err(format!("`{name}` differs by {difference:e}: {result:?}, not {expected:?}"));
        }
    }
    Ok(true)
}
