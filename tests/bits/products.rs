//! Products of awkward shapes, by the operators that compute products.

use autobwd::{DType, Executor, Expr, New, Result, emit};
use autobwd_benches::workload::numbers;
use autobwd_ops::{
    Math,
    matmul::{Addmm, Matmul, MatmulV2, Mv},
};

use crate::{
    collection::{Collection, tensor},
    parts::BitResult,
};

const ROWS: [usize; 8] = [1, 2, 3, 5, 8, 17, 64, 100];
/// Terms of a sum; one chain of multiply-adds has 512.
const TERMS: [usize; 7] = [1, 7, 64, 511, 512, 513, 1100];
const COLUMNS: [usize; 3] = [1, 5, 40];

pub(crate) fn products(executors: &[Executor]) -> Result<Vec<BitResult>> {
    let mut results = vec![];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for part in [matrices, subnormal, batches, attention, convolutions] {
            results.extend(part(dtype)?.compare(executors)?);
        }
    }
    Ok(results)
}

/// `matmul_v2` of matrices, stored as they are and transposed; `mv`; and products with factors.
fn matrices(dtype: DType) -> Result<Collection> {
    let mut all = Collection::new();
    for m in ROWS {
        for k in TERMS {
            for n in COLUMNS {
                let size = format!("{m}x{k}x{n} {dtype}");
                let mut factors = [vec![], vec![]];
                for transposed in [false, true] {
                    factors[0].push(all.numbers(dtype, &if transposed { [k, m] } else { [m, k] })?);
                    factors[1].push(all.numbers(dtype, &if transposed { [n, k] } else { [k, n] })?);
                }
                for (trans_x, trans_y) in [(false, false), (true, false), (false, true), (true, true)] {
                    let [x, y] = [&factors[0][usize::from(trans_x)], &factors[1][usize::from(trans_y)]];
                    let op = MatmulV2 { x: x.into(), y: y.into(), out: New, trans_x, trans_y };
                    all.add(format!("matmul_v2/{size} {trans_x} {trans_y}"), &emit(op).out);
                }
                let (x, y) = ((&factors[0][0]).into(), (&factors[1][0]).into());
                let op = Matmul { x, y, out: New, transpose_x: false, transpose_y: false, alpha: 0.37 };
                let product = emit(op).out;
                all.add(format!("matmul/{size}"), &product);
                let (x, y) = ((&factors[0][0]).into(), (&factors[1][0]).into());
                let op = Addmm { input: (&product).into(), x, y, out: New, alpha: 0.37, beta: 1.5 };
                all.add(format!("addmm/{size}"), &emit(op).out);
            }
            let (x, vec) = (all.numbers(dtype, &[m, k])?, all.numbers(dtype, &[k])?);
            let product = emit(Mv { x: (&x).into(), vec: (&vec).into(), out: New }).out;
            all.differentiate(format!("mv/{m}x{k} {dtype}"), &product, &[&x, &vec]);
        }
    }
    Ok(all)
}

/// Products whose terms and sums are near the smallest normal number of float32 and of 16 bits.
fn subnormal(dtype: DType) -> Result<Collection> {
    let mut all = Collection::new();
    let small = |all: &mut Collection, dims: [usize; 2], scale: f32| -> Result<Expr> {
        let elements = numbers(dims[0] as u32, dims[0] * dims[1], 1.0);
        let elements = elements.iter().enumerate().map(|(i, x)| x * scale / [1.0, 200.0][i % 2]).collect();
        Ok(all.input(tensor(dtype, &dims, elements)?))
    };
    let scale = if dtype == DType::F16 { 1e-4 } else { 1e-19 };
    for (m, k, n) in [(1, 40, 17), (7, 65, 33), (20, 600, 70)] {
        let (x, y) = (small(&mut all, [m, k], scale)?, small(&mut all, [k, n], scale)?);
        all.add(format!("matmul_v2/subnormal {m}x{k}x{n} {dtype}"), &x.matmul(&y));
    }
    Ok(all)
}

/// `bmm`, and `matmul_v2` of a batch and a matrix.
fn batches(dtype: DType) -> Result<Collection> {
    let mut all = Collection::new();
    for m in [1, 3, 17] {
        for k in [1, 64, 513] {
            let (x, y) = (all.numbers(dtype, &[3, m, k])?, all.numbers(dtype, &[3, k, 5])?);
            all.differentiate(format!("bmm/{m}x{k} {dtype}"), &x.bmm(&y), &[&x, &y]);
            let (x, y) = (all.numbers(dtype, &[3, m, k])?, all.numbers(dtype, &[k, 5])?);
            all.differentiate(format!("matmul_v2/batch_of_{m}x{k} {dtype}"), &x.matmul(&y), &[&x, &y]);
        }
    }
    Ok(all)
}

/// Attention of few and many queries to few and many keys.
fn attention(dtype: DType) -> Result<Collection> {
    let mut all = Collection::new();
    for (queries, keys, width, causal) in
        [(1, 1, 8, false), (5, 5, 40, true), (64, 64, 8, true), (3, 600, 8, false), (1, 7, 520, false)]
    {
        let query = all.numbers(dtype, &[2, queries, 2, width])?;
        let (key, value) =
            (all.numbers(dtype, &[2, keys, 2, width])?, all.numbers(dtype, &[2, keys, 2, width])?);
        let mixed = query.attention(&key, &value, causal);
        let name = format!("attention/{queries}x{keys}x{width} {dtype}");
        all.differentiate(name, &mixed, &[&query, &key, &value]);
    }
    Ok(all)
}

/// Convolutions of images `[n, channels, size, size]` with filters `[m, channels, window, window]`.
fn convolutions(dtype: DType) -> Result<Collection> {
    let mut all = Collection::new();
    for ([n, channels, size], [m, window], stride, padding) in [
        ([2, 3, 9], [5, 3], 1, 1),
        ([2, 1, 28], [20, 5], 1, 0),
        ([1, 20, 12], [50, 5], 1, 0),
        // More than 512 terms.
        ([1, 64, 8], [64, 3], 1, 1),
        // By Winograd's algorithm where that is chosen, in several parts of filters.
        ([8, 48, 4], [40, 3], 1, 1),
        ([3, 130, 6], [7, 2], 2, 0),
        ([4, 16, 7], [8, 1], 1, 0),
    ] {
        let x = all.numbers(dtype, &[n, channels, size, size])?;
        let filters = all.numbers(dtype, &[m, channels, window, window])?;
        let name = format!("conv2d/{n}x{channels}x{size}x{size}_{m}x{window} {dtype}");
        all.differentiate(name, &x.conv2d(&filters, stride, padding), &[&x, &filters]);
    }
    Ok(all)
}
