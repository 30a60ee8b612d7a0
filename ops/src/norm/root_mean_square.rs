//! Root mean square normalisation.

use autobwd::{
    Composed, Composition, DType, Error, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim,
};

use crate::{
    DimExpr, Math,
    math::{all_sizes, in_dtype},
};

/// Root mean square normalisation of every row (Zhang and Sennrich, 2019):
/// `out = sum / √(mean(sum²) + epsilon) * norm_weight + norm_bias` with `sum = x + bias + residual`.
///
/// Dimensions before `begin_norm_axis` index the rows, the others are the dimensions of a row. Numbers of 16 bits are
/// normalised in float32.
#[register_op(grad = Composed, composed)]
pub struct RmsNormOp<V = Var> {
    /// At least one dimension.
    #[input("x")]
    pub x: V,
    /// Added to each row: one for each element of a row, in one dimension; 0 if absent.
    #[input("bias")]
    pub bias: Option<V>,
    /// Added to `x`, same shape; 0 if absent.
    #[input("residual")]
    pub residual: Option<V>,
    /// Scale, one for each element of a row, in one dimension.
    #[input("norm_weight")]
    pub norm_weight: V,
    /// Added to the result: one for each element of a row, in one dimension; 0 if absent.
    #[input("norm_bias")]
    pub norm_bias: Option<V>,
    /// Same shape as `x`.
    #[output("out")]
    pub out: V,
    /// The sum that is normalised, same shape as `x`.
    #[output("residual_out")]
    pub residual_out: Option<V>,
    /// Added to the mean of the squares, so that the divisor stays above 0.
    #[attr(min = 0.0)]
    pub epsilon: f32,
    /// The first dimension of a row.
    #[attr(min = 0)]
    pub begin_norm_axis: i32,
    /// Accepted for compatibility: results are not quantized, so that it must not be positive.
    #[attr(default = -1.0)]
    pub quant_scale: f32,
    /// Accepted for compatibility: it has no effect.
    #[attr(default = 0)]
    pub quant_round_type: i32,
    /// Accepted for compatibility: it has no effect.
    #[attr(default = 0.0)]
    pub quant_max_bound: f32,
    /// Accepted for compatibility: it has no effect.
    #[attr(default = 0.0)]
    pub quant_min_bound: f32,
}
impl Infer for RmsNormOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let first = self.x.axis("begin_norm_axis", self.begin_norm_axis.into())?;
        if self.quant_scale > 0.0 {
            return Err(Error::attr(
                "quant_scale",
                "results cannot be quantized, so that it must not be positive",
            ));
        }
        let width = self.x.dims[first..].iter().fold(Dim::from(1), |width, dim| width * *dim);
        let parameters = [self.bias.as_ref(), Some(&self.norm_weight), self.norm_bias.as_ref()];
        for parameter in parameters.into_iter().flatten() {
            parameter.same_dtype(&self.x)?;
            let fits = parameter.rank() == 1 && parameter.dims[0].agrees(width);
            parameter.require(fits, || format!("[{width}] is needed, the elements of a row"))?;
        }
        if let Some(residual) = &self.residual {
            residual.same_as(&self.x)?;
        }
        self.out.like(&self.x);
        if let Some(sum) = &mut self.residual_out {
            sum.like(&self.x);
        }
        Ok(())
    }
}
impl Composition for RmsNormOp<Expr> {
    fn compose(&mut self) {
        let (dtype, rank) = (self.x.dtype(), self.x.dims().len() as i32);
        let widened = |x: &Expr| if dtype.is_half() { x.cast(DType::F32) } else { x.clone() };
        let dims: Vec<DimExpr> = all_sizes(&self.x).split_off(self.begin_norm_axis as usize);
        let row = |parameter: &Expr| widened(parameter).reshape_to(&dims);
        let mut sum = widened(&self.x);
        for term in [self.bias.as_ref().map(row), self.residual.as_ref().map(widened)].into_iter().flatten() {
            sum = sum + term;
        }
        let axes: Vec<i32> = (self.begin_norm_axis..rank).collect();
        let square = sum.square().mean_keepdim(&axes);
        let normal = &sum * (square + f64::from(self.epsilon)).rsqrt() * row(&self.norm_weight);
        let result = match &self.norm_bias {
            Some(bias) => normal + row(bias),
            None => normal,
        };
        self.out = in_dtype(&result, dtype);
        self.residual_out = self.residual_out.as_ref().map(|_| in_dtype(&sum, dtype));
    }
}
autobwd::samples!(
    RmsNormOp,
    [
        rms_norm(uniform([3, 4]), away_from(0.0, [4]), 1),
        RmsNormOp {
            bias: Some(uniform([12])),
            residual: Some(uniform([2, 3, 4])),
            norm_bias: Some(uniform([12])),
            residual_out: Some(out()),
            ..rms_norm(uniform([2, 3, 4]), positive([12]), 1)
        },
        RmsNormOp { epsilon: 0.5, residual_out: Some(out()), ..rms_norm(uniform([2, 3]), positive([6]), 0) },
        RmsNormOp {
            quant_round_type: 1,
            quant_max_bound: 127.0,
            quant_min_bound: -127.0,
            ..rms_norm(uniform([2, 3]), positive([3]), 1)
        },
        rms_norm(uniform([0, 3]), positive([3]), 1),
        rms_norm(uniform([3, 0]), positive([0]), 1),
        rms_norm(uniform([2, 3]), positive([2]), 1)
            .fails("`norm_weight`: [3] is needed, the elements of a row"),
        RmsNormOp { bias: Some(uniform([2, 3])), ..rms_norm(uniform([2, 3]), positive([3]), 1) }
            .fails("`bias`: [3] is needed, the elements of a row"),
        RmsNormOp { norm_bias: Some(uniform([1])), ..rms_norm(uniform([2, 3]), positive([3]), 1) }
            .fails("`norm_bias`: [3] is needed, the elements of a row"),
        RmsNormOp { residual: Some(uniform([3])), ..rms_norm(uniform([2, 3]), positive([3]), 1) }
            .fails("`residual`: shape [3]"),
        RmsNormOp { quant_scale: 0.5, ..rms_norm(uniform([2, 3]), positive([3]), 1) }
            .fails("attribute `quant_scale`: results cannot be quantized"),
        RmsNormOp { epsilon: -1.0, ..rms_norm(uniform([2, 3]), positive([3]), 1) }
            .fails("attribute `epsilon`"),
        rms_norm(uniform([2, 3]), positive([3]), 2).fails("attribute `begin_norm_axis` = 2"),
        rms_norm(uniform([2, 3]), integers_below(9, [3]), 1).fails("`norm_weight`: dtype int64"),
        rms_norm(integers_below(9, [2]), positive([2]), 0).fails("`x`: floating point numbers are needed"),
    ]
);

fn rms_norm(x: Draw, norm_weight: Draw, begin_norm_axis: i32) -> RmsNormOp<Draw> {
    RmsNormOp {
        x,
        bias: None,
        residual: None,
        norm_weight,
        norm_bias: None,
        out: out(),
        residual_out: None,
        epsilon: 1e-6,
        begin_norm_axis,
        quant_scale: -1.0,
        quant_round_type: 0,
        quant_max_bound: 0.0,
        quant_min_bound: 0.0,
    }
}
