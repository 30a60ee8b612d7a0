//! Operators that overwrite their inputs compute the same after writing and reading.

use std::collections::BTreeSet;

use autobwd::{
    DType, Meta, OpDesc, OpInfoMap, Program, Tensor, Var, VarDesc, check, op::Schema, operators::Assign,
    program::VarKind,
};

use crate::support::{check_program, with_constants};

/// The input that each output may overwrite: the one whose memory it may share, or another one of the same dtype and
/// shape. An input is overwritten once.
fn overwritten(program: &Program, op: &OpDesc, schema: &Schema) -> Vec<(Var, Var)> {
    let desc = |var: Var| program.root().vars.get(&var).filter(|desc| desc.kind == VarKind::Tensor);
    let meta = |var: Var| desc(var).map(VarDesc::meta);
    let is_same = |a: Option<Meta>, b: Option<Meta>| a.is_some() && a == b;
    let mut pairs: Vec<(Var, Var)> = vec![];
    for slot in schema.outputs {
        for (i, out) in op.outputs.get(slot.name).iter().enumerate() {
            let shared = slot.inplace.and_then(|name| op.inputs.get(name).get(i).copied());
            let fits = |x: &Var| {
                *x != Var::EMPTY
                    && is_same(meta(*x), meta(*out))
                    && !pairs.iter().any(|(known, _)| known == x)
            };
            pairs.extend(shared.into_iter().chain(op.reads()).find(fits).map(|x| (x, *out)));
        }
    }
    pairs
}

/// The program of one operator, on copies of its inputs, with the names of its outputs. It overwrites some of the copies.
fn in_place(program: &Program, schema: &Schema) -> Option<(Program, Vec<String>)> {
    let [op] = &program.root().ops[..] else { return None };
    let pairs = overwritten(program, op, schema);
    if pairs.is_empty() {
        return None;
    }
    let mut program = program.clone();
    let mut op = program.root_mut().ops.pop()?;
    for (x, out) in &pairs {
        op.inputs.args_mut().filter(|arg| *arg == x).for_each(|arg| *arg = *out);
        program.root_mut().ops.push(Assign { x: *x, out: *out }.into());
    }
    let outputs: BTreeSet<Var> = op.writes().collect();
    let has_elements = |var: &Var| {
        let desc = program.root().vars.get(var);
        desc.is_some_and(|desc| desc.kind == VarKind::Tensor && desc.dims.iter().all(|dim| *dim != 0))
    };
    let names = outputs.into_iter().filter(has_elements).map(|var| program.name(var).to_string()).collect();
    program.root_mut().ops.push(op);
    Some((program, names))
}

#[test]
fn in_place_operators_round_trip_with_equal_values() {
    let (ops, mut failures) = (OpInfoMap::linked().unwrap(), vec![]);
    let (mut written, mut types) = (0, BTreeSet::new());
    for sample in autobwd_tests::linked_samples() {
        let Ok((program, values)) = check::sample_program(&sample, DType::F64) else { continue };
        if values.iter().any(|(_, value): &(String, Tensor)| value.numel() == 0) {
            continue;
        }
        let [op] = &program.root().ops[..] else { continue };
        let ty = op.ty.to_string();
        let Some((program, outputs)) = in_place(&program, ops.get(&ty).unwrap().schema()) else { continue };
        let (program, values) = with_constants(program, values);
        match check_program(program.clone(), &values, &outputs) {
            Ok(is_written) => {
                written += usize::from(is_written);
                types.extend(is_written.then_some(ty));
            }
            Err(e) => failures.push(format!("{ty}: {e}\n{program}")),
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n\n"));
    assert!(written >= 570 && types.len() >= 170, "{written} samples of {} operators", types.len());
}
