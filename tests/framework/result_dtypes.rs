//! Dtypes of results of reductions and elementwise operators, against a table that the reference wrote.

use std::{collections::BTreeSet, fs};

use autobwd::{
    Attr, Builder, DType, Dims, Executor, Expr, Meta, New, OpDesc, OpInfoMap, Program, Result, Scope, Tensor,
    emit,
    op::{Arity, AttrType, SlotDef},
    program::{Name, Var},
};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{
    Math, Model,
    reduce::{ReduceAttrs, ReduceSum},
};

/// What the reference takes and autobwd refuses, and why.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "float32 is too coarse for large integers, and no dtype is right for all: the user casts",
        &[
            "exp int32",
            "exp int64",
            "expm1 int32",
            "expm1 int64",
            "log int32",
            "log int64",
            "log10 int32",
            "log10 int64",
            "log1p int32",
            "log1p int64",
            "log2 int32",
            "log2 int64",
            "atan2 int32",
            "atan2 int64",
        ],
    ),
    (
        "the reference's mean is rounded towards 0, and is a truth value for truth values",
        &["reduce_mean bool", "reduce_mean int32", "reduce_mean int64"],
    ),
    (
        "arithmetic of uint8 wraps around at 256 in silence",
        &["elementwise_div uint8", "elementwise_floordiv uint8", "reduce_sum uint8", "scale uint8"],
    ),
    (
        "arithmetic of truth values is `logical_and` or nothing",
        &["elementwise_div bool", "elementwise_mul bool", "scale bool"],
    ),
    (
        "the values are the operand's own, or `cast` and a comparison give them",
        &[
            "elementwise_heaviside int32",
            "elementwise_heaviside int64",
            "sign int32",
            "sign int64",
            "sign uint8",
            "trunc int32",
            "trunc int64",
        ],
    ),
    (
        "kernels are there for wider integers or floating point numbers alone: the user casts",
        &["arg_max uint8", "arg_min uint8", "dot int32", "dot int64"],
    ),
];

fn attr(ty: AttrType, text: &str) -> Attr {
    let list = || text.trim_matches(['[', ']']).split(',').map(|axis| axis.parse::<i64>().unwrap());
    match ty {
        AttrType::Bool => Attr::Bool(text.parse().unwrap()),
        AttrType::I32 => Attr::I32(text.parse().unwrap()),
        AttrType::I64 => Attr::I64(text.parse().unwrap()),
        AttrType::F64 => Attr::F64(text.parse().unwrap()),
        AttrType::I32s => Attr::I32s(list().map(|axis| axis as i32).collect()),
        AttrType::I64s => Attr::I64s(list().collect()),
        other => panic!("attributes of type {other} are not read"),
    }
}

/// The dtypes of an operator's outputs for inputs of one dtype; the operator is written as in the table.
fn result_dtypes(case: &str, dtype: DType) -> Result<String> {
    let mut words = case.split(' ');
    let info = OpInfoMap::linked()?.get(words.next().unwrap_or_default())?;
    let (schema, mut program) = (info.schema(), Program::new());
    let mut op = OpDesc::new(schema.name);
    for slot in schema.inputs.iter().filter(|slot| slot.arity != Arity::Optional) {
        op.inputs.set(slot.name, [program.var(slot.name)]);
    }
    for slot in schema.outputs {
        op.outputs.set(slot.name, [program.var(slot.name)]);
    }
    for (name, value) in words.filter_map(|word| word.split_once('=')) {
        op.attrs.set(Name::new(name), attr(schema.attr(name).unwrap().ty, value));
    }
    let dims: Dims = if schema.name == "increment" { [1].into() } else { [2, 3].into() };
    let mut found: Vec<(Var, DType)> = vec![];
    info.check(&op)?;
    info.infer(&op, &|_| Ok(Meta::new(dtype, dims.clone())), &mut |var, meta| found.push((var, meta.dtype)))?;
    let name = |slot: &SlotDef| {
        let var = op.outputs.get(slot.name)[0];
        found.iter().find(|(of, _)| *of == var).map(|(_, dtype)| dtype.name()).unwrap()
    };
    Ok(schema.outputs.iter().map(name).collect::<Vec<_>>().join(" "))
}

#[test]
fn results_have_the_dtypes_of_the_reference() -> Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/framework/reference/result_dtypes.txt");
    let table = fs::read_to_string(path).unwrap();
    let mut refused: BTreeSet<String> = BTreeSet::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let (case, pairs) = line.split_once(": ").unwrap();
        for (dtype, expected) in pairs.split(", ").map(|pair| pair.split_once(" -> ").unwrap()) {
            match result_dtypes(case, DType::from_name(dtype).unwrap()) {
                Ok(found) => assert_eq!(found, expected, "{case} of {dtype}"),
                Err(_) => drop(refused.insert(format!("{} {dtype}", case.split(' ').next().unwrap()))),
            }
        }
    }
    let explained = REFUSED.iter().flat_map(|(_, cases)| cases.iter().map(|case| case.to_string()));
    assert_eq!(refused, explained.collect());
    Ok(())
}

#[test]
fn sums_of_int32_and_truth_values_are_int64() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([3], vec![i32::MAX, 1, i32::MAX])?);
    let zero = tape.constant(Tensor::scalar(2_i32)?);
    assert_eq!(x.sum(&[]).tensor()?.slice::<i64>()?, [2 * i64::from(i32::MAX) + 1]);
    assert_eq!(x.greater_than(&zero).sum_keepdim(&[0]).tensor()?.slice::<i64>()?, [2]);
    Ok(())
}

/// ONNX's `ReduceSum` has the dtype of its input, so a sum in int32 is read as one in int32.
#[test]
fn sums_keep_their_dtype_in_onnx() -> Result<()> {
    let numbers = Tensor::from_vec([2, 2], vec![i32::MAX, 1, 3, -9])?;
    let net = Builder::new();
    let x = net.input("x", DType::I32, &[2, 2]);
    let sum = |out_dtype: Option<DType>| -> Expr {
        emit(ReduceSum { x: (&x).into(), out: New, reduce: ReduceAttrs::over([1]).out_dtype(out_dtype) }).out
    };
    let fetches = vec![sum(None).name(), sum(Some(DType::I32)).name()];
    let program = net.program()?.clone();
    let mut model = Model { program, feeds: vec!["x".into()], fetches, scope: Scope::new() };
    let mut read = from_bytes(&to_bytes(&model)?, &LoadOptions::default())?;
    for model in [&mut model, &mut read] {
        let sums = model.run(&mut Executor::with_threads(1), &[&numbers])?;
        assert_eq!(sums[0].slice::<i64>()?, [i64::from(i32::MAX) + 1, -6]);
        assert_eq!(sums[1].slice::<i32>()?, [i32::MIN, -6]);
    }
    Ok(())
}
