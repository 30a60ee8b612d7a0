//! The operator `packed_matmul`.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::{CHANNEL_BLOCK, DividedMat, WindowAxis, WindowProducts, with_float},
    register_op,
    tensor::Dim,
};

use crate::{
    Math,
    channel_blocks::{Activation, ActivationAttrs},
    kernel_helpers::{nth, unbounded},
    windows::dims,
};

/// Terms of a sum that are multiplied in one run, as in other products.
const TERMS: usize = 512;
/// Elements from one copied row to the next: rows do not share lines of the cache.
const ROW: usize = TERMS + 16;
/// Rows and columns of the result that a worker computes at a time.
const ROWS: usize = 112;
const COLUMNS: usize = 256;

/// Products of rows with a constant matrix, whose columns are packed in blocks: `out = f(x · y + bias)`, for inference.
#[register_op(grad = Composed, infallible)]
pub struct PackedMatmul<V = Var> {
    /// Rows, `[.., k]`.
    #[input]
    pub x: V,
    /// The matrix in blocks of 16 columns, `[blocks, k, 16]`.
    #[input]
    pub y: V,
    /// What is added to each column, those of all blocks.
    #[input]
    pub bias: V,
    /// `[.., columns]`
    #[output]
    pub out: V,
    /// Columns of the matrix.
    #[attr(min = 1)]
    pub columns: i32,
    /// The function of the results.
    #[attrs]
    pub activation: ActivationAttrs,
}
impl Infer for PackedMatmul<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.y.same_dtype(&self.x)?;
        self.bias.same_dtype(&self.x)?;
        let ([blocks, terms, lanes], columns) = (self.y.unpack()?, self.columns as usize);
        let last = self.x.dims.last().copied();
        self.x.require(last.is_some_and(|last| last.agrees(terms)), || {
            format!("rows of {terms} numbers are needed")
        })?;
        let needed = columns.div_ceil(CHANNEL_BLOCK);
        let fits = blocks.agrees(Dim::from(needed)) && lanes.agrees(Dim::from(CHANNEL_BLOCK));
        self.y.require(fits, || format!("{needed} blocks of 16 columns are needed"))?;
        let [numbers] = self.bias.unpack()?;
        let all = Dim::from(needed * CHANNEL_BLOCK);
        self.bias.require(numbers.agrees(all), || format!("a number for each of {all} columns is needed"))?;
        self.out.like(&self.x);
        self.out.dims.iter_mut().rev().take(1).for_each(|dim| *dim = Dim::from(columns));
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * self.y.dims[1]
    }
}
impl Kernel for PackedMatmul<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let ([_, terms, _], columns) = (dims(&self.y)?, self.columns as usize);
        with_float!(self.x, T => {
            let (x, y, bias) = (self.x.slice::<T>()?, self.y.slice::<T>()?, self.bias.slice::<T>()?);
            let bounds = self.activation.bounds::<T>(false);
            let out = DividedMat { data: self.out.slice_mut::<T>()?, cols: columns, part: [ROWS, COLUMNS] };
            let rows = self.x.numel().checked_div(terms).unwrap_or(0);
            let copied = ROW * ROWS.min(rows);
            cx.scratch(copied * cx.threads(), |scratch| {
                cx.try_zip_submatrices_mut([out], scratch, |[band, range], [mut out], copy| {
                    let first = band * ROWS;
                    let n = ROWS.min(out.rows());
                    for start in (0..terms.max(1)).step_by(TERMS) {
                        let count = TERMS.min(terms - start);
                        for (row, copy) in copy.chunks_mut(ROW).take(n).enumerate() {
                            copy[..count].copy_from_slice(&nth(x, first + row, terms)[start..][..count]);
                        }
                        let column = range * COLUMNS;
                        let single = WindowAxis { count: 1, x: 0, other: 0 };
                        let products = WindowProducts {
                            x: copy,
                            filters: &y[column * terms + start * CHANNEL_BLOCK..],
                            block: terms * CHANNEL_BLOCK,
                            bias: &bias[column..],
                            add: start > 0,
                            bounds: if start + count == terms { bounds } else { unbounded() },
                            elements: [single; 3],
                            channels: count,
                            last_channels: count,
                            windows: [single, WindowAxis { count: n, x: ROW, other: 0 }],
                        };
                        products.write_rows(&mut out)?;
                    }
                    for row in 0..n {
                        self.activation.finish(out.row(row), None);
                    }
                    Ok(())
                })
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let rows = self.x.numel().checked_div(self.y.dims()[1]).unwrap_or(0);
        ROW * ROWS.min(rows) * workers * self.x.dtype().size()
    }
}
impl Composition for PackedMatmul<Expr> {
    fn compose(&mut self) {
        let (y, lanes) = (&self.y, CHANNEL_BLOCK as i64);
        let columns = i64::from(self.columns).into();
        let matrix = y.transpose(&[1, 0, 2]).reshape_to(&[y.dim(1), y.dim(0) * lanes]);
        let product = self.x.matmul(&matrix.slice_to(1, &0.into(), &columns));
        self.out = self.activation.of(&(product + self.bias.slice_to(0, &0.into(), &columns)));
    }
}
autobwd::samples!(
    PackedMatmul,
    [
        packed([3, 5], 18),
        packed([2, 3, 4], 32),
        // More than one band of rows.
        packed([115, 2], 16),
        PackedMatmul { activation: activation(Activation::Gelu), ..packed([3, 4], 17) },
        PackedMatmul { activation: activation(Activation::GeluTanh), ..packed([2, 5], 7) },
        PackedMatmul { activation: activation(Activation::Relu6).fuse_alpha(0.5_f32), ..packed([3, 5], 18) },
        PackedMatmul { activation: activation(Activation::Swish).fuse_beta(1.5_f32), ..packed([3, 5], 18) },
        packed([0, 5], 18),
        packed([3, 0], 18),
        packed([4], 18),
        PackedMatmul { y: uniform([2, 4, 16]), ..packed([3, 5], 18) }
            .fails("`X`: rows of 4 numbers are needed"),
        PackedMatmul { y: uniform([3, 5, 16]), ..packed([3, 5], 18) }
            .fails("`Y`: 2 blocks of 16 columns are needed"),
        PackedMatmul { bias: uniform([18]), ..packed([3, 5], 18) }
            .fails("`Bias`: a number for each of 32 columns is needed"),
        PackedMatmul { x: integers_below(3, [3, 5]), ..packed([3, 5], 18) }
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn packed<const N: usize>(x: [usize; N], columns: usize) -> PackedMatmul<Draw> {
    let blocks = columns.div_ceil(CHANNEL_BLOCK);
    PackedMatmul {
        x: uniform(x),
        y: uniform([blocks, x[N - 1], CHANNEL_BLOCK]),
        bias: uniform([blocks * CHANNEL_BLOCK]),
        out: out(),
        columns: columns as i32,
        activation: ActivationAttrs::default(),
    }
}

fn activation(function: Activation) -> ActivationAttrs {
    ActivationAttrs::default().fuse_activation(function)
}
