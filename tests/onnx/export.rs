//! Models that are written for ONNX and read again compute the same: every sample of every operator, with gradients,
//! and training steps of whole models.

use std::collections::BTreeMap;

use autobwd::{
    BlockId, DType, Executor, OpInfoMap, Program, Tensor, check, gradients, program::VarKind, tensor::Dim,
};
use autobwd_benches::workload::Workload;
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{Model, model::infer_shapes};
use clap::ValueEnum;

use crate::support::{check_program, with_constants};

/// What became of the samples of an operator, and of those whose inputs have unknown dimensions.
#[derive(Clone, Copy, Default)]
struct Written {
    samples: usize,
    forward: usize,
    gradients: usize,
    open_forward: usize,
    open_gradients: usize,
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

#[test]
fn operators_round_trip_with_equal_values() {
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

/// Operators whose nodes differ from the kernel in 16 bits: a rounded quotient jumps at an integer, and an exponential of
/// a composition is infinite in float16.
const INEXACT: [&str; 2] = ["elementwise_floordiv", "sigmoid_cross_entropy_with_logits"];

/// Values of 16 bits, and nodes of them, keep their types.
#[test]
fn operators_of_16_bits_round_trip() {
    let (mut count, mut failures) = (0, vec![]);
    for sample in autobwd_tests::linked_samples() {
        for dtype in [DType::F16, DType::BF16] {
            let Ok((program, values)) = check::sample_program(&sample, dtype) else { continue };
            let [op] = &program.root().ops[..] else { continue };
            let is_half = values.iter().any(|(_, value)| value.dtype() == dtype);
            if !is_half || values.iter().any(|(_, value)| value.numel() == 0) {
                continue;
            }
            let written = op.outputs.iter().filter(|(slot, _)| slot.as_str() != "XShape");
            let outputs: Vec<_> = written.flat_map(|(_, vars)| vars.to_vec()).collect();
            let (ty, (program, values)) = (op.ty.to_string(), with_constants(program, values));
            if INEXACT.contains(&&*ty) {
                continue;
            }
            let is_tensor = |var: &autobwd::Var| {
                let known = program.root().vars.get(var).filter(|desc| desc.kind == VarKind::Tensor);
                known.is_some_and(|desc| desc.dims.iter().all(|dim| *dim != 0))
            };
            let outputs: Vec<String> =
                outputs.into_iter().filter(is_tensor).map(|var| program.name(var).to_string()).collect();
            match check_program(program.clone(), &values, &outputs) {
                Ok(is) => count += usize::from(is),
                Err(e) => failures.push(format!("{ty} in {dtype}: {e}\n{program}")),
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n\n"));
    assert!(count > 500, "{count}");
}

#[test]
fn training_steps_round_trip_with_equal_losses() {
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
