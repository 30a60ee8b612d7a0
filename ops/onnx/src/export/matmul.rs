//! Matrix products.

use autobwd::{__private::internals::*, Error, Result, program::Var};
use autobwd_ops::matmul::{
    Bmm, BmmGrad, Dot, DotGrad, Matmul, MatmulGrad, MatmulV2, MatmulV2Grad, MatmulV2GradSgd, Mul, MulGrad,
    Mv, MvGrad,
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    onnx_graph::{OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<Bmm>(),
        rule::<BmmGrad>(),
        rule::<Dot>(),
        rule::<DotGrad>(),
        rule::<Matmul>(),
        rule::<MatmulGrad>(),
        rule::<MatmulV2>(),
        rule::<MatmulV2Grad>(),
        rule::<MatmulV2GradSgd>(),
        rule::<Mul>(),
        rule::<MulGrad>(),
        rule::<Mv>(),
        rule::<MvGrad>(),
    ]
}

/// Factors of a product: matrices, perhaps stored as their transposes, or vectors.
struct MatrixFactor {
    value: OnnxValue,
    /// Dimensions of the matrices, not transposed; of vectors as matrices.
    dims: Vec<i64>,
    transposed: bool,
    vector: bool,
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
        Ok(MatrixFactor { value, dims, transposed, vector })
    }

    fn matrix(&self, graph: &mut OnnxGraph<'_>) -> OnnxValue {
        if self.transposed { graph.transposed(self.value, self.dims.len()) } else { self.value }
    }

    fn transpose(&self, graph: &mut OnnxGraph<'_>) -> OnnxValue {
        if self.transposed { self.value } else { graph.transposed(self.value, self.dims.len()) }
    }

    /// The gradient of the factor, from the gradient of the matrices, in the batches of the product.
    fn gradient(
        &self,
        graph: &mut OnnxGraph<'_>,
        gradient: OnnxValue,
        other: &MatrixFactor,
    ) -> Result<OnnxValue> {
        let (own, rank) = (self.dims.len(), self.dims.len().max(other.dims.len()));
        let of_other = |from_end: usize| other.dims.len().checked_sub(from_end).map(|i| other.dims[i]);
        let mut from = vec![-1; rank];
        let mut to = OnnxDim::all(self.value, &self.dims);
        for i in 0..own {
            match of_other(own - i) {
                // Rows and columns are never summed.
                _ if own - i <= 2 => to[i] = OnnxDim::Rest,
                None | Some(1) => from[rank - own + i] = self.dims[i],
                Some(_) => (),
            }
        }
        // An unknown dimension may be 1, unless the product has it from this factor.
        let may_be_one = |i: usize| own - i > 2 && !matches!(of_other(own - i), None | Some(1));
        let sum = graph.sum_to_dims(gradient, &from, &to, may_be_one)?;
        let stored = if self.transposed { graph.transposed(sum, own) } else { sum };
        if self.vector { graph.reshape(stored, &[-1]) } else { Ok(stored) }
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
    product = match (x.vector, y.vector) {
        (false, false) => product,
        (true, true) => graph.shaped_as(product, out)?,
        (true, false) => graph.squeeze(product, &[-2])?,
        (false, true) => graph.squeeze(product, &[-1])?,
    };
    graph.write(out, product);
    Ok(())
}

/// `dx = scale * dout · yᵀ`, `dy = scale * xᵀ · dout`
fn multiply_grad(
    graph: &mut OnnxGraph<'_>,
    operands: [Var; 3],
    results: [Option<Var>; 2],
    transposed: [bool; 2],
    scale: f32,
) -> Result<()> {
    let wanted = results.map(|result| result.is_some());
    let gradients = factor_gradients(graph, operands, wanted, transposed, scale)?;
    for (result, gradient) in results.into_iter().zip(gradients) {
        if let Some(gradient) = gradient {
            graph.write(result, gradient);
        }
    }
    Ok(())
}

/// The wanted gradients of [`multiply_grad`].
fn factor_gradients(
    graph: &mut OnnxGraph<'_>,
    [x, y, dout]: [Var; 3],
    [wants_x, wants_y]: [bool; 2],
    [trans_x, trans_y]: [bool; 2],
    scale: f32,
) -> Result<[Option<OnnxValue>; 2]> {
    let dtype = graph.dtype(dout)?;
    let (x, y) = (MatrixFactor::of(graph, x, trans_x, false)?, MatrixFactor::of(graph, y, trans_y, true)?);
    let mut dout = graph.read(dout)?;
    dout = match (x.vector, y.vector) {
        (false, false) => dout,
        (true, true) => graph.reshape(dout, &[1, 1])?,
        (true, false) => graph.unsqueeze(dout, &[-2])?,
        (false, true) => graph.unsqueeze(dout, &[-1])?,
    };
    if scale != 1.0 {
        let scale = graph.scalar(dtype, f64::from(scale))?;
        dout = graph.mul(dout, scale);
    }
    let mut gradients = [None; 2];
    if wants_x {
        let right = y.transpose(graph);
        let product = graph.op("MatMul", &[dout, right], &[]);
        gradients[0] = Some(x.gradient(graph, product, &y)?);
    }
    if wants_y {
        let left = x.transpose(graph);
        let product = graph.op("MatMul", &[left, dout], &[]);
        gradients[1] = Some(y.gradient(graph, product, &x)?);
    }
    Ok(gradients)
}

impl ExportOp for MatmulV2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        multiply(graph, [self.x, self.y, self.out], [self.trans_x, self.trans_y], 1.0)
    }
}
impl ExportOp for MatmulV2Grad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let transposed = [self.trans_x, self.trans_y];
        multiply_grad(graph, [self.x, self.y, self.dout], [self.dx, self.dy], transposed, 1.0)
    }
}

impl ExportOp for MatmulV2GradSgd {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (param, rate) = (graph.read(self.param)?, graph.read(self.learning_rate)?);
        let (operands, transposed) = ([self.x, self.param, self.dout], [self.trans_x, self.trans_y]);
        let [dx, dparam] = factor_gradients(graph, operands, [self.dx.is_some(), true], transposed, 1.0)?;
        if let Some(dx) = dx {
            graph.write(self.dx, dx);
        }
        let gradient = dparam.ok_or_else(|| Error::internal("a product without the gradient of a factor"))?;
        let rate = graph.reshape(rate, &[])?;
        let change = graph.mul(rate, gradient);
        let after = graph.sub(param, change);
        graph.write(self.param_out, after);
        Ok(())
    }
}

impl ExportOp for Matmul {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let transposed = [self.transpose_x, self.transpose_y];
        multiply(graph, [self.x, self.y, self.out], transposed, self.alpha)
    }
}
impl ExportOp for MatmulGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let transposed = [self.transpose_x, self.transpose_y];
        multiply_grad(graph, [self.x, self.y, self.dout], [self.dx, self.dy], transposed, self.alpha)
    }
}

impl ExportOp for Bmm {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        multiply(graph, [self.x, self.y, self.out], [false; 2], 1.0)
    }
}
impl ExportOp for BmmGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        multiply_grad(graph, [self.x, self.y, self.dout], [self.dx, self.dy], [false; 2], 1.0)
    }
}

/// A tensor as a matrix whose rows are the first `rows` dimensions.
fn flattened(graph: &mut OnnxGraph<'_>, var: Var, rows: i32) -> Result<(OnnxValue, [OnnxDim; 2])> {
    let (rows, rank) = (rows as usize, graph.rank(var)?);
    let dims = [graph.merged_dims(var, 0, rows)?, graph.merged_dims(var, rows, rank)?];
    let value = graph.read(var)?;
    Ok((graph.reshape_to(value, &dims)?, dims))
}

impl ExportOp for Mul {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, _) = flattened(graph, self.x, self.x_num_col_dims)?;
        let (y, _) = flattened(graph, self.y, self.y_num_col_dims)?;
        let product = graph.op("MatMul", &[x, y], &[]);
        let (rows, cols) = (graph.run_dims(self.x)?, graph.run_dims(self.y)?);
        let (rows, cols) = (&rows[..self.x_num_col_dims as usize], &cols[self.y_num_col_dims as usize..]);
        let out = graph.reshape_to(product, &[rows, cols].concat())?;
        graph.write(self.out, out);
        Ok(())
    }
}
impl ExportOp for MulGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, [rows, _]) = flattened(graph, self.x, self.x_num_col_dims)?;
        let (y, [_, cols]) = flattened(graph, self.y, self.y_num_col_dims)?;
        let dout = graph.read(self.dout)?;
        let dout = graph.reshape_to(dout, &[rows, cols])?;
        if let Some(dx) = self.dx {
            let (y, dims) = (graph.transposed(y, 2), graph.run_dims(self.x)?);
            let product = graph.op("MatMul", &[dout, y], &[]);
            let product = graph.reshape_to(product, &dims)?;
            graph.write(dx, product);
        }
        if let Some(dy) = self.dy {
            let (x, dims) = (graph.transposed(x, 2), graph.run_dims(self.y)?);
            let product = graph.op("MatMul", &[x, dout], &[]);
            let product = graph.reshape_to(product, &dims)?;
            graph.write(dy, product);
        }
        Ok(())
    }
}

impl ExportOp for Mv {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        multiply(graph, [self.x, self.vec, self.out], [false; 2], 1.0)
    }
}
impl ExportOp for MvGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        multiply_grad(graph, [self.x, self.vec, self.dout], [self.dx, self.dvec], [false; 2], 1.0)
    }
}

impl ExportOp for Dot {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, y) = (graph.read(self.x)?, graph.read(self.y)?);
        let (product, keep) = (graph.mul(x, y), graph.rank(self.out)? == graph.rank(self.x)?);
        let out = graph.reduce("ReduceSum", product, &[-1], keep)?;
        graph.write(self.out, out);
        Ok(())
    }
}
impl ExportOp for DotGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, y, mut dout) = (graph.read(self.x)?, graph.read(self.y)?, graph.read(self.dout)?);
        if graph.rank(self.dout)? < graph.rank(self.x)? {
            dout = graph.unsqueeze(dout, &[-1])?;
        }
        for (gradient, other) in [(self.dx, y), (self.dy, x)] {
            let product = graph.mul(dout, other);
            graph.write(gradient, product);
        }
        Ok(())
    }
}
