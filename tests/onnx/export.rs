//! Models that are written for ONNX and read again compute the same: every sample of every operator, with gradients,
//! and training steps of whole models.

use std::collections::{BTreeMap, BTreeSet};

use autobwd::{
    BlockId, DType, Executor, OpInfoMap, Program, Tensor, check, gradients, program::VarKind, tensor::Dim,
};
use autobwd_benches::workload::Workload;
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{Model, fill::AssignValue, model::infer_shapes};
use clap::ValueEnum;

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

/// What became of the samples of an operator, and of those whose inputs have unknown dimensions.
#[derive(Clone, Copy, Default)]
struct Written {
    samples: usize,
    forward: usize,
    gradients: usize,
    open_forward: usize,
    open_gradients: usize,
}

/// Whether the type of an operator contains that text.
fn program_has(program: &Program, text: &str) -> bool {
    program.root().ops.iter().any(|op| op.ty.contains(text))
}

/// The program with unknown dimensions of these inputs.
fn opened(program: &Program, inputs: &[(String, Tensor)]) -> Option<Program> {
    let mut program = program.clone();
    let fed = inputs.iter().filter_map(|(name, _)| program.find(name));
    let computed = program.root().ops.iter().flat_map(|op| op.writes());
    for var in fed.chain(computed).collect::<Vec<_>>() {
        let desc = program.block_mut(BlockId::ROOT)?.vars.get_mut(&var)?;
        desc.dims.iter_mut().for_each(|dim| *dim = Dim::UNKNOWN);
    }
    infer_shapes(&mut program, OpInfoMap::linked().ok()?);
    Some(program)
}

/// The program with its gradients with respect to the inputs, and their names.
fn backward(
    program: &Program,
    values: &[(String, Tensor)],
    outputs: &[String],
) -> Option<(Program, Vec<String>)> {
    let mut program = program.clone();
    let inputs: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
    let targets: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let found = gradients(&mut program, &targets, &inputs, &Default::default()).ok()?;
    let found: Vec<String> =
        found.pairs.iter().map(|(_, gradient)| program.name(*gradient).to_string()).collect();
    (!found.is_empty()).then_some((program, found))
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
            DType::F32 => op.fp32_values = numbers.iter().map(|x| *x as f32).collect(),
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
        // Positions in images are computed in float32.
        let tolerance = if program_has(&model.program, "_interp_") { 1e-6 } else { 1e-9 };
        if difference > tolerance {
            return Err(format!("`{name}` differs by {difference:e}: {result:?}, not {expected:?}"));
        }
    }
    Ok(true)
}

#[test]
fn operators_compute_the_same_after_writing_and_reading() {
    let (mut table, mut failures) = (BTreeMap::<String, Written>::new(), vec![]);
    for sample in autobwd_tests::linked_samples() {
        let Ok((program, values)) = check::sample_program(&sample, DType::F64) else { continue };
        // The importer refuses some operators of empty tensors.
        if values.iter().any(|(_, value)| value.numel() == 0) {
            continue;
        }
        let [op] = &program.root().ops[..] else { continue };
        let (ty, outputs) = (op.ty.to_string(), op.writes().collect::<Vec<_>>());
        let (program, values) = with_constants(program, values);
        let is_tensor = |var: &autobwd::Var| {
            // Outputs that remember a shape, without elements, exist for gradients alone.
            program
                .root()
                .vars
                .get(var)
                .is_some_and(|desc| desc.kind == VarKind::Tensor && desc.dims.iter().all(|dim| *dim != 0))
        };
        let outputs: Vec<String> =
            outputs.into_iter().filter(is_tensor).map(|var| program.name(var).to_string()).collect();
        if outputs.is_empty() {
            continue;
        }
        let written = table.entry(ty.clone()).or_default();
        written.samples += 1;
        match check_program(program.clone(), &values, &outputs) {
            Ok(is) => written.forward += usize::from(is),
            Err(e) => failures.push(format!("{ty}: {e}\n{program}")),
        }
        // Which element of a window gets the gradient of NaN is not defined.
        if values.iter().any(|(_, value)| value.to_f64s().iter().any(|x| x.is_nan())) {
            continue;
        }
        if let Some((backward, found)) = backward(&program, &values, &outputs) {
            match check_program(backward.clone(), &values, &found) {
                Ok(is) => written.gradients += usize::from(is),
                Err(e) => failures.push(format!("gradient of {ty}: {e}\n{backward}")),
            }
        }
        // Filters and the like need known dimensions: then only the first input has unknown ones.
        for backward_too in [false, true] {
            for count in [values.len(), 1] {
                let Some(open) = values.get(..count).and_then(|inputs| opened(&program, inputs)) else {
                    continue;
                };
                let checked = match backward_too {
                    false => check_program(open, &values, &outputs),
                    true => backward(&open, &values, &outputs)
                        .map_or(Ok(false), |(open, found)| check_program(open, &values, &found)),
                };
                match checked {
                    Ok(true) if backward_too => written.open_gradients += 1,
                    Ok(true) => written.open_forward += 1,
                    Ok(false) => continue,
                    Err(e) => failures.push(format!("{ty} with unknown dimensions: {e}\n{program}")),
                }
                break;
            }
        }
    }
    let mut text = String::from(
        "operator: number of samples; those that ONNX has; gradients that ONNX has; both with unknown dimensions\n",
    );
    for (ty, Written { samples, forward, gradients, open_forward, open_gradients }) in &table {
        text += &format!("{ty}: {samples}, {forward}, {gradients}; {open_forward}, {open_gradients}\n");
    }
    autobwd_tests::compare("onnx/operators.txt", &text);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn training_steps_have_the_same_losses_after_writing_and_reading() {
    for workload in Workload::value_variants().iter().copied() {
        let step = workload.model().expect("workloads are built");
        let program = step.net.program().expect("workloads are built").clone();
        let mut model = Model { program, feeds: vec![], fetches: vec![step.loss.clone()], scope: step.scope };
        let bytes = to_bytes(&model).unwrap_or_else(|e| panic!("{}: {e}", workload.name()));
        let mut read = from_bytes(&bytes, &LoadOptions::default())
            .unwrap_or_else(|e| panic!("{}: {e}", workload.name()));
        let mut executor = Executor::with_threads(1);
        for step in 0..3 {
            let [expected, loss] = [&mut model, &mut read].map(|model| {
                let losses =
                    model.run(&mut executor, &[]).unwrap_or_else(|e| panic!("{}: {e}", workload.name()));
                losses[0].item().expect("a number")
            });
            let near = (loss - expected).abs() <= 1e-6 * expected.abs();
            assert!(near, "{}, step {step}: {loss}, not {expected}", workload.name());
        }
    }
}
