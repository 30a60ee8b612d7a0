//! Row-sparse inputs: an operator that declares them computes the same as for the dense tensor with these rows.

use std::rc::Rc;

use super::{
    derivatives::Distance,
    function::{ProgramFunction, failure, in_case, stand_ins},
    kernels::{SingleKernel, dense_memory},
    panics::{catch_panic, is_fault},
};
use autobwd_core::{
    __private::Memory,
    Cx, Dim, Meta, OpInfoMap, Result, Role, Tensor,
    sample::Sample,
    tensor::{ToF64, padded},
    with_dtype,
};
use autobwd_eager::prepare;

/// Bound for |a − b| / (1 + max |b|) between results for sparse and dense inputs.
const SPARSE: f64 = 1e-12;

/// Runs the operator of a sample with some rows of each input declared `sparse`, and with the dense tensor in which the
/// other rows are 0. Rows that are absent may also stay as they are in an input, as lazy updates leave them.
pub(super) fn check_rows(
    ops: &OpInfoMap,
    sample: &Sample,
    function: &ProgramFunction,
    many: &Cx,
) -> Result<()> {
    let (info, Some(op)) = (ops.get(sample.op())?, function.program.root().ops.first()) else {
        return Ok(());
    };
    if sample.program.is_some() || info.needs_program() {
        return Ok(());
    }
    for slot in info.schema().inputs.iter().filter(|slot| slot.sparse) {
        for var in op.inputs.get(slot.name) {
            let name = function.program.name(*var);
            let Some((_, tensor)) = function.inputs.iter().find(|(input, _)| input == name) else { continue };
            let Some(height) = tensor.dims().first().copied().filter(|_| tensor.dtype().is_float()) else {
                continue;
            };
            let choices = [(0..height).collect(), (1..height).step_by(2).collect(), vec![]];
            for rows in choices {
                let case = format!("where `{name}` has the rows {rows:?}, ");
                compare(ops, function, (name, tensor), &rows, many).map_err(in_case(&case))?;
            }
        }
    }
    Ok(())
}

fn compare(
    ops: &OpInfoMap,
    function: &ProgramFunction,
    (name, tensor): (&str, &Tensor),
    rows: &[usize],
    many: &Cx,
) -> Result<()> {
    let dims = tensor.dims();
    let width: usize = dims[1..].iter().product();
    let mut numbers = tensor.to_f64s();
    for (row, values) in numbers.chunks_mut(width.max(1)).enumerate() {
        if !rows.contains(&row) {
            values.fill(0.0);
        }
    }
    let dense = function.with_input(ops, name, Tensor::from_vec(dims, numbers)?);
    let expected = catch_panic(|| dense.run());
    let sparse = catch_panic(|| sparse_outputs(ops, &dense, name, rows, many));
    let (expected, sparse) = match (expected, sparse) {
        (Err(e), _) | (_, Err(e)) if is_fault(&e) => return Err(e),
        // The shape rule may refuse sparse inputs here.
        (Err(_), _) | (_, Err(_)) => return Ok(()),
        (Ok(expected), Ok(sparse)) => (expected, sparse),
    };
    for ((output, _), expected) in function.outputs.iter().zip(&expected) {
        let Some((_, mut found)) = sparse.iter().find(|(name, _)| name == output).cloned() else { continue };
        let values = expected.to_f64s();
        let inputs = dense.inputs.iter().filter(|(_, input)| input.dims() == expected.dims());
        let inputs: Vec<Vec<f64>> = inputs.map(|(_, input)| input.to_f64s()).collect();
        for (row, found) in found.chunks_mut(width.max(1)).enumerate() {
            let range = row * width..row * width + found.len();
            let stays = |input: &Vec<f64>| input.get(range.clone()) == Some(&*found);
            let is_of_rows = expected.dims().first() == dims.first();
            if is_of_rows && !rows.contains(&row) && inputs.iter().any(stays) {
                found.copy_from_slice(&values[range]);
            }
        }
        let distance = Distance::of(&found, &values, SPARSE);
        if distance.worst > SPARSE || found.len() != values.len() {
            let what = format!("output `{output}`");
            return Err(distance.error(&what, "for a dense tensor", (&found, &values), expected.dims()));
        }
    }
    Ok(())
}

/// The outputs of the operator by name, dense, with these rows of the input and room for as many as it has.
fn sparse_outputs(
    ops: &OpInfoMap,
    function: &ProgramFunction,
    name: &str,
    rows: &[usize],
    many: &Cx,
) -> Result<Vec<(String, Vec<f64>)>> {
    let (desc, args) = stand_ins(function.program.root().ops.first().ok_or_else(|| failure("no operator"))?);
    let mut reads: Vec<(Meta, Rc<Memory>)> = vec![];
    for (_, var) in args.iter().filter(|(role, _)| *role == Role::Input) {
        let input = function
            .inputs
            .iter()
            .zip(function.feeds()?)
            .find(|((input, _), _)| input == function.program.name(*var));
        let ((input, tensor), (_, meta)) = input.ok_or_else(|| failure("an operator lacks an input"))?;
        reads.push(if input == name { of_rows(tensor, rows)? } else { dense_memory(tensor, meta)? });
    }
    let metas: Vec<Meta> = reads.iter().map(|(meta, _)| meta.clone()).collect();
    let ready = prepare(ops, &desc, &metas)?;
    let alone = SingleKernel { ready: &ready, reads: &reads };
    let outputs = alone.check((&Cx::new(1), many), ops.may_fail(&desc.ty), &mut vec![]);
    let outputs = outputs.map_err(in_case(&format!("the kernel of `{}`: ", desc.ty)))?;
    let names = args.iter().filter(|(role, _)| *role == Role::Output);
    let names = names.map(|(_, var)| function.program.name(*var).to_string());
    let values = ready.outputs.iter().zip(&outputs).map(|(meta, memory)| densified(meta, memory));
    Ok(names.zip(values).collect())
}

/// Some rows of a tensor in memory.
fn of_rows(tensor: &Tensor, rows: &[usize]) -> Result<(Meta, Rc<Memory>)> {
    let (mut meta, height) = (tensor.meta(), tensor.dims()[0]);
    meta.rows = Some(height.into());
    let width: usize = tensor.dims()[1..].iter().product();
    let mut memory = Memory::zeroed(meta.bytes().unwrap_or(0))?;
    // -1 ends the rows.
    memory.slice_mut::<i64>(0, height).fill(-1);
    for (at, row) in rows.iter().enumerate() {
        memory.slice_mut::<i64>(0, height)[at] = *row as i64;
    }
    let first = padded(height * size_of::<i64>());
    with_dtype!(tensor.dtype(), T => {
        let elements = tensor.slice::<T>()?;
        let values = memory.slice_mut::<T>(first, height * width);
        for (at, row) in rows.iter().enumerate() {
            values[at * width..][..width].copy_from_slice(&elements[row * width..][..width]);
        }
    });
    Ok((meta, Rc::new(memory)))
}

/// All elements; 0 in absent rows.
fn densified(meta: &Meta, memory: &Memory) -> Vec<f64> {
    let dims = meta.dims.known().unwrap_or_default();
    let count: usize = dims.iter().product();
    with_dtype!(meta.dtype, T => match meta.rows.and_then(Dim::get) {
        None => memory.slice::<T>(0, count).iter().map(|x| x.to_f64()).collect(),
        Some(_) => {
            let (mut all, rows) = (vec![0.0; count], memory.rows::<T>(0, meta));
            for (row, values) in rows.iter() {
                let own = &mut all[row * rows.width()..][..rows.width()];
                own.iter_mut().zip(values).for_each(|(own, x)| *own = x.to_f64());
            }
            all
        }
    })
}
