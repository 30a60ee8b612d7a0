//! A row of a product has the same bits whatever the number of rows that are computed with it.

use autobwd::{DType, Executor, New, Result, Tensor, emit};
use autobwd_benches::workload::numbers;
use autobwd_ops::{Math, matmul::MatmulV2};

use crate::{
    collection::{Collection, tensor},
    hashes::hash,
    parts::BitResult,
};

/// Products are computed with so many rows at a time.
const ROWS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 64];
/// Rows that are compared.
const COMPARED: usize = 9;
/// Products in a batch.
const BATCH: usize = 3;

pub(crate) fn rows(executors: &[Executor]) -> Result<Vec<BitResult>> {
    let mut results = vec![];
    for dtype in [DType::F32, DType::F64] {
        for (k, n) in [(1, 5), (7, 40), (64, 3), (513, 17), (1100, 1)] {
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                results.extend(rows_of(&executors[0], dtype, [k, n], transposed)?);
            }
        }
    }
    Ok(results)
}

/// The rows of one product, each with its hashes by the number of rows that it was computed with.
fn rows_of(
    executor: &Executor,
    dtype: DType,
    [k, n]: [usize; 2],
    [trans_x, trans_y]: [bool; 2],
) -> Result<Vec<BitResult>> {
    let mut all = Collection::new();
    let y = all.input(matrix(dtype, [k, n], 1, trans_y)?);
    let product = |x: &autobwd::Expr, y: &autobwd::Expr| {
        emit(MatmulV2 { x: x.into(), y: y.into(), out: New, trans_x, trans_y }).out
    };
    for rows in ROWS {
        let x = all.input(matrix(dtype, [rows, k], 2, trans_x)?);
        all.add(format!("{rows} rows"), &product(&x, &y));
        // The same product, several times.
        let batch = |x: &autobwd::Expr| x.unsqueeze(&[0]).expand(&[BATCH as i32, -1, -1]);
        all.add(format!("{BATCH} x {rows} rows"), &product(&batch(&x), &batch(&y)));
    }
    let name = |row| format!("row_of_{k}x{n} {row} {dtype} {trans_x} {trans_y}");
    let mut results: Vec<BitResult> =
        (0..COMPARED).map(|row| BitResult { name: name(row), hashes: vec![] }).collect();
    for (way, product) in all.run(executor)? {
        let (elements, rows) = (product.to_f64s(), product.dims()[product.dims().len() - 2]);
        for (at, row) in elements.chunks(n).enumerate() {
            if let Some(result) = results.get_mut(at % rows) {
                result.hashes.push((way.clone(), hash(&Tensor::from_vec([n], row.to_vec())?)?));
            }
        }
    }
    Ok(results)
}

/// A matrix whose first rows are the same for any number of rows.
fn matrix(dtype: DType, [rows, columns]: [usize; 2], seed: u32, transposed: bool) -> Result<Tensor> {
    let elements = numbers(seed, rows * columns, 1.0);
    if !transposed {
        return tensor(dtype, &[rows, columns], elements);
    }
    let columns_first = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c));
    tensor(dtype, &[columns, rows], columns_first.map(|at| elements[at]).collect())
}
