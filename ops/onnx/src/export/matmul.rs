//! Matrix products.

use autobwd::{Result, program::Var};
use autobwd_ops::matmul::{Bmm, BmmGrad, Matmul, MatmulGrad, MatmulV2, MatmulV2Grad, Mul, MulGrad};

use super::{
    Lower, LowerRule,
    onnx_graph::{OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    vec![
        rule::<Bmm>(),
        rule::<BmmGrad>(),
        rule::<Matmul>(),
        rule::<MatmulGrad>(),
        rule::<MatmulV2>(),
        rule::<MatmulV2Grad>(),
        rule::<Mul>(),
        rule::<MulGrad>(),
    ]
}

/// Factors of a product: matrices, perhaps stored as their transposes, or vectors.
struct MatrixFactor {
    value: OnnxValue,
    /// Dimensions of the matrices, not transposed; of vectors as matrices.
    dims: Vec<i64>,
    transposed: bool,
}

impl MatrixFactor {
    /// The left factor, or the right one; a vector is a row or a column.
    fn of(graph: &mut OnnxGraph<'_>, var: Var, transposed: bool, right: bool) -> Result<MatrixFactor> {
        let (mut value, mut dims) = (graph.read(var)?, graph.shape(var)?);
        let vector = dims.len() == 1;
        if vector {
            dims.insert(usize::from(right), 1);
            value = graph.reshape(value, &dims)?;
        }
        let transposed = transposed && !vector;
        if transposed {
            let rank = dims.len();
            dims.swap(rank - 1, rank - 2);
        }
        Ok(MatrixFactor { value, dims, transposed })
    }

    fn matrix(&self, graph: &mut OnnxGraph<'_>) -> OnnxValue {
        if self.transposed { graph.transposed(self.value, self.dims.len()) } else { self.value }
    }

    fn transpose(&self, graph: &mut OnnxGraph<'_>) -> OnnxValue {
        if self.transposed { self.value } else { graph.transposed(self.value, self.dims.len()) }
    }

    /// Writes the gradient of the factor, from that of the matrices.
    fn write(&self, graph: &mut OnnxGraph<'_>, var: Var, gradient: OnnxValue, dims: &[i64]) -> Result<()> {
        let sum = graph.sum_to(gradient, dims, &self.dims)?;
        let stored = if self.transposed { graph.transposed(sum, self.dims.len()) } else { sum };
        let stored = graph.shaped_as(stored, var)?;
        graph.write(var, stored);
        Ok(())
    }
}

/// `out = scale * x · y`
fn multiply(
    graph: &mut OnnxGraph<'_>,
    [x, y, out]: [Var; 3],
    [trans_x, trans_y]: [bool; 2],
    scale: f32,
) -> Result<()> {
    let (x, y) = (MatrixFactor::of(graph, x, trans_x, false)?, MatrixFactor::of(graph, y, trans_y, true)?);
    let factors = [x.matrix(graph), y.matrix(graph)];
    let mut product = graph.op("MatMul", &factors, &[]);
    if scale != 1.0 {
        let scale = graph.scalar(graph.dtype(out)?, f64::from(scale))?;
        product = graph.mul(product, scale);
    }
    // Vectors have no dimension in the product.
    if x.dims.len().max(y.dims.len()) != graph.rank(out)? {
        product = graph.shaped_as(product, out)?;
    }
    graph.write(out, product);
    Ok(())
}

/// `dx = scale * dout · yᵀ`, `dy = scale * xᵀ · dout`
fn multiply_grad(
    graph: &mut OnnxGraph<'_>,
    [x, y, dout]: [Var; 3],
    [dx, dy]: [Option<Var>; 2],
    [trans_x, trans_y]: [bool; 2],
    scale: f32,
) -> Result<()> {
    if graph.rank(x)?.max(graph.rank(y)?) > 2 {
        // Whether they are broadcast decides about sums.
        [x, y].into_iter().try_for_each(|factor| graph.dims(factor).map(drop))?;
    }
    let dtype = graph.dtype(dout)?;
    let (x, y) = (MatrixFactor::of(graph, x, trans_x, false)?, MatrixFactor::of(graph, y, trans_y, true)?);
    let rank = x.dims.len().max(y.dims.len());
    let batch = |factor: &MatrixFactor, i: usize| {
        let missing = rank - factor.dims.len();
        if i < missing { 1 } else { factor.dims[i - missing] }
    };
    let batches: Vec<i64> = (0..rank - 2)
        .map(|i| match batch(&x, i) {
            1 => batch(&y, i),
            n => n,
        })
        .collect();
    let of = |rows: i64, cols: i64| [&batches[..], &[rows, cols]].concat();
    let (rows, inner, cols) = (x.dims[x.dims.len() - 2], x.dims[x.dims.len() - 1], y.dims[y.dims.len() - 1]);
    let mut dout = graph.read(dout)?;
    dout = graph.reshape(dout, &of(rows, cols))?;
    if scale != 1.0 {
        let scale = graph.scalar(dtype, f64::from(scale))?;
        dout = graph.mul(dout, scale);
    }
    if let Some(dx) = dx {
        let right = y.transpose(graph);
        let product = graph.op("MatMul", &[dout, right], &[]);
        x.write(graph, dx, product, &of(rows, inner))?;
    }
    if let Some(dy) = dy {
        let left = x.transpose(graph);
        let product = graph.op("MatMul", &[left, dout], &[]);
        y.write(graph, dy, product, &of(inner, cols))?;
    }
    Ok(())
}

impl Lower for MatmulV2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        multiply(graph, [self.x, self.y, self.out], [self.trans_x, self.trans_y], 1.0)
    }
}
impl Lower for MatmulV2Grad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let transposed = [self.trans_x, self.trans_y];
        multiply_grad(graph, [self.x, self.y, self.dout], [self.dx, self.dy], transposed, 1.0)
    }
}

impl Lower for Matmul {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let transposed = [self.transpose_x, self.transpose_y];
        multiply(graph, [self.x, self.y, self.out], transposed, self.alpha)
    }
}
impl Lower for MatmulGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let transposed = [self.transpose_x, self.transpose_y];
        multiply_grad(graph, [self.x, self.y, self.dout], [self.dx, self.dy], transposed, self.alpha)
    }
}

impl Lower for Bmm {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        multiply(graph, [self.x, self.y, self.out], [false; 2], 1.0)
    }
}
impl Lower for BmmGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        multiply_grad(graph, [self.x, self.y, self.dout], [self.dx, self.dy], [false; 2], 1.0)
    }
}

/// A tensor as a matrix whose rows are the first `rows` dimensions.
fn flattened(graph: &mut OnnxGraph<'_>, var: Var, rows: i32) -> Result<(OnnxValue, [i64; 2])> {
    let dims = graph.dims(var)?;
    let (first, last) = dims.split_at(rows as usize);
    let dims = [first.iter().product(), last.iter().product()];
    let value = graph.read(var)?;
    Ok((graph.reshape(value, &dims)?, dims))
}

impl Lower for Mul {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, _) = flattened(graph, self.x, self.x_num_col_dims)?;
        let (y, _) = flattened(graph, self.y, self.y_num_col_dims)?;
        let product = graph.op("MatMul", &[x, y], &[]);
        let out = graph.shaped_as(product, self.out)?;
        graph.write(self.out, out);
        Ok(())
    }
}
impl Lower for MulGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, [rows, _]) = flattened(graph, self.x, self.x_num_col_dims)?;
        let (y, [_, cols]) = flattened(graph, self.y, self.y_num_col_dims)?;
        let dout = graph.read(self.dout)?;
        let dout = graph.reshape(dout, &[rows, cols])?;
        if let Some(dx) = self.dx {
            let y = graph.transposed(y, 2);
            let product = graph.op("MatMul", &[dout, y], &[]);
            let product = graph.shaped_as(product, dx)?;
            graph.write(dx, product);
        }
        if let Some(dy) = self.dy {
            let x = graph.transposed(x, 2);
            let product = graph.op("MatMul", &[x, dout], &[]);
            let product = graph.shaped_as(product, dy)?;
            graph.write(dy, product);
        }
        Ok(())
    }
}
