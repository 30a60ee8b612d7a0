//! Layer normalisation.

use autobwd::{
    Buf, Composed, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{LaneOf, VectorLoops, Vectorised, map_lanes, with_float},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::{
    check_parameter_dtype,
    decomposition::{NormRows, affine},
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, nth, wide},
    math::in_dtype,
    shape::{FlattenContiguousRange, FlattenContiguousRangeGrad},
    simd_loops,
};

/// Elements of a unit of shared work.
const PART: usize = 1 << 14;

/// Layer normalisation of every row: `y = scale * (x - mean) / √(variance + epsilon) + bias`.
///
/// Dimensions before `begin_norm_axis` index the rows, the others are those of a row.
#[register_op(grad = LayerNormGrad, infallible)]
pub struct LayerNormOp<V = Var> {
    /// At least one dimension. If it has 16 bits, scale and bias may be float32.
    #[input]
    pub x: V,
    /// Scale, one for each element of a row, in one dimension; 1 if absent.
    #[input]
    pub scale: Option<V>,
    /// Bias, one for each element of a row, in one dimension; 0 if absent.
    #[input]
    pub bias: Option<V>,
    /// Same shape as `x`.
    #[output(like = x)]
    pub y: V,
    /// Mean of each row: the dimensions of `x` before `begin_norm_axis`; dtype of the scale, else of the bias, else of
    /// `x`.
    #[output]
    pub mean: V,
    /// Variance of each row, the mean squared deviation, same shape and dtype as `mean`.
    #[output]
    pub variance: V,
    /// The first dimension of a row.
    #[attr(default = 1, min = 0)]
    pub begin_norm_axis: i32,
    /// Added to the variance, so that the divisor stays above 0.
    #[attr(default = 1e-5, min = 0.0)]
    pub epsilon: f32,
}
impl Infer for LayerNormOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        let rows = rows(&self.x, self.begin_norm_axis, &[&self.scale, &self.bias])?;
        let parameter = self.scale.as_ref().or(self.bias.as_ref());
        self.mean.set(parameter.unwrap_or(&self.x).dtype, rows);
        self.variance.like(&self.mean);
        Ok(())
    }
}
impl Kernel for LayerNormOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            let width = width(&self.x, self.begin_norm_axis);
            let (scale, bias) = (self.scale.slice()?, self.bias.slice()?);
            let (mean, variance) = (self.mean.slice_mut::<T>()?, self.variance.slice_mut::<T>()?);
            let (epsilon, rows) = (f64::from(self.epsilon), PART.div_ceil(width.max(1)));
            let outs = [(self.y.slice_mut::<T>()?, rows * width), (mean, rows), (variance, rows)];
            cx.try_zip_chunks_mut(outs, &mut [(); 0], |part, [y, mean, variance], _| {
                let x = &x[part * rows * width..][..y.len()];
                T::vectorised(LayerNormLoops { x, scale, bias, y, mean, variance, epsilon });
                Ok(())
            })
        })
    }
}
impl Composition for LayerNormOp<Expr> {
    fn compose(&mut self) {
        let (start_axis, stop_axis) = (self.begin_norm_axis, -1);
        let x = (&self.x).into();
        let rows = emit(FlattenContiguousRange { x, out: New, x_shape: New, start_axis, stop_axis });
        let dtype = self.scale.as_ref().or(self.bias.as_ref()).unwrap_or(&self.x).dtype();
        let NormRows { mean, variance, normal, .. } = NormRows::of(&in_dtype(&rows.out, dtype), self.epsilon);
        (self.mean, self.variance) = (mean.squeeze(&[-1]), variance.squeeze(&[-1]));
        let bias = self.bias.as_ref().map(|bias| in_dtype(bias, dtype));
        let y = in_dtype(&affine(normal, &self.scale, &bias, -1), self.x.dtype());
        let (x_shape, dout) = (rows.x_shape.into(), y.into());
        self.y = emit(FlattenContiguousRangeGrad { x_shape, dout, dx: New, start_axis, stop_axis }).dx;
    }
}
autobwd::samples!(
    LayerNormOp,
    [
        layer_norm(uniform([3, 4]), Some(positive([4])), Some(uniform([4])), 1, 1e-5),
        layer_norm(uniform([2, 3, 4]), Some(positive([4])), Some(uniform([4])), 2, 1e-3),
        layer_norm(uniform([2, 3, 4]), Some(away_from(0.0, [12])), None, 1, 0.25),
        layer_norm(uniform([2, 3, 4]), None, Some(uniform([24])), 0, 1e-5),
        layer_norm(uniform([70, 3]), None, None, 1, 1e-5),
        layer_norm(uniform([2, 70]), Some(positive([70])), Some(uniform([70])), 1, 1e-5),
        layer_norm(uniform([0, 3]), Some(positive([3])), Some(uniform([3])), 1, 1e-5),
        layer_norm(uniform([3, 0]), Some(positive([0])), Some(uniform([0])), 1, 1e-5),
        layer_norm(uniform([]), None, None, 0, 1e-5).fails("attribute `begin_norm_axis` = 0"),
        layer_norm(uniform([2, 3]), Some(uniform([2])), None, 1, 1e-5)
            .fails("`Scale`: [3] is needed, the elements of a row"),
        layer_norm(uniform([2, 3]), None, Some(uniform([3, 1])), 1, 1e-5)
            .fails("`Bias`: [3] is needed, the elements of a row"),
    ]
);

fn layer_norm(
    x: Draw,
    scale: Option<Draw>,
    bias: Option<Draw>,
    begin_norm_axis: i32,
    epsilon: f32,
) -> LayerNormOp<Draw> {
    LayerNormOp { x, scale, bias, y: out(), mean: out(), variance: out(), begin_norm_axis, epsilon }
}

/// Returns the dimensions that index rows; checks that parameters have one element for each of a row.
fn rows(x: &Meta, begin: i32, parameters: &[&Option<Meta>]) -> Result<Dims> {
    x.float()?;
    let (rows, row) = x.dims.split_at(x.axis("begin_norm_axis", begin.into())?);
    let width = row.iter().fold(Dim::from(1), |n, dim| n * *dim);
    for parameter in parameters.iter().filter_map(|parameter| parameter.as_ref()) {
        check_parameter_dtype(parameter, x)?;
        let fits = parameter.dims.agrees(&[width]);
        parameter.require(fits, || format!("[{width}] is needed, the elements of a row"))?;
    }
    Ok(rows.iter().copied().collect())
}

/// Elements of a row.
fn width(x: &Buf<'_>, begin: i32) -> usize {
    x.dims()[x.axis(begin.into())..].iter().product()
}

/// The factor of deviations from the mean, `1 / √(variance + epsilon)`.
fn factor<T: KernelFloat>(variance: T, epsilon: f64) -> f64 {
    1.0 / (wide(variance) + epsilon).sqrt()
}

/// Forward pass over some rows.
struct LayerNormLoops<'a, T> {
    x: &'a [T],
    scale: Option<&'a [T]>,
    bias: Option<&'a [T]>,
    y: &'a mut [T],
    mean: &'a mut [T],
    variance: &'a mut [T],
    epsilon: f64,
}
impl<T: KernelFloat> VectorLoops<T> for LayerNormLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let width = self.x.len() / self.mean.len().max(1);
        // The mean of no elements is 0.
        let terms = width.max(1) as f64;
        for (row, (mean, variance)) in self.mean.iter_mut().zip(self.variance).enumerate() {
            let (x, y) = (nth(self.x, row, width), &mut self.y[row * width..][..width]);
            *mean = T::of(simd_loops::total([x], |[x]: [F; 1]| x) / terms);
            let middle = F::new(*mean);
            let square = |[x]: [F; 1]| (x - middle) * (x - middle);
            *variance = T::of(simd_loops::total([x], square) / terms);
            let factor = F::from(factor(*variance, self.epsilon));
            let normal = |x: F| (x - middle) * factor;
            match (self.scale, self.bias) {
                (Some(scale), Some(bias)) => {
                    map_lanes(
                        [x, scale, bias],
                        [y],
                        |[x, scale, bias]: [F; 3], _| [normal(x) * scale + bias],
                    );
                }
                (Some(scale), None) => {
                    map_lanes([x, scale], [y], |[x, scale]: [F; 2], _| [normal(x) * scale])
                }
                (None, Some(bias)) => map_lanes([x, bias], [y], |[x, bias]: [F; 2], _| [normal(x) + bias]),
                (None, None) => map_lanes([x], [y], |[x]: [F; 1], _| [normal(x)]),
            }
        }
    }
}

/// Backward pass over some rows.
struct LayerNormGradLoops<'a, T> {
    x: &'a [T],
    dy: &'a [T],
    scale: Option<&'a [T]>,
    mean: &'a [T],
    variance: &'a [T],
    dx: &'a mut [T],
    epsilon: f64,
}
impl<T: KernelFloat> VectorLoops<T> for LayerNormGradLoops<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let width = self.x.len() / self.mean.len().max(1);
        for (row, (mean, variance)) in self.mean.iter().zip(self.variance).enumerate() {
            let (x, dy) = (nth(self.x, row, width), nth(self.dy, row, width));
            let dx = &mut self.dx[row * width..][..width];
            match self.scale {
                Some(scale) => map_lanes([dy, scale], [&mut *dx], |[dy, scale]: [F; 2], _| [dy * scale]),
                None => dx.copy_from_slice(dy),
            }
            let (mean, factor) = (F::new(*mean), F::from(factor(*variance, self.epsilon)));
            let share = F::from(simd_loops::total([&*dx], |[g]: [F; 1]| g) / width as f64);
            let slope = simd_loops::total([x, &*dx], |[x, g]: [F; 2]| g * ((x - mean) * factor));
            let slope = F::from(slope / width as f64);
            map_lanes([x], [dx], |[x]: [F; 1], [g]| [(g - share - (x - mean) * factor * slope) * factor]);
        }
    }
}

/// `dx = (g - mean(g) - n * mean(g * n)) / √(variance + epsilon)` in each row, `dscale = Σ dy * n` and `dbias = Σ dy`
/// over the rows, where `n = (x - mean) / √(variance + epsilon)` and `g = dy * scale`.
///
/// Mean and variance are treated as functions of `x`.
#[register_op(grad_of = LayerNormOp, grad = Composed, inferred, infallible)]
pub struct LayerNormGrad<V = Var> {
    pub x: V,
    pub scale: Option<V>,
    #[input(shape_only)]
    pub bias: Option<V>,
    pub mean: V,
    pub variance: V,
    pub dy: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dscale: Option<V>,
    #[output]
    pub dbias: Option<V>,
    pub begin_norm_axis: i32,
    pub epsilon: f32,
}
impl Kernel for LayerNormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (x, dy) = (self.x.slice::<T>()?, self.dy.slice::<T>()?);
            let (mean, variance) = (self.mean.slice::<T>()?, self.variance.slice::<T>()?);
            let scale = self.scale.slice()?;
            let epsilon = f64::from(self.epsilon);
            let width = width(&self.x, self.begin_norm_axis);
            if let Some(dx) = self.dx.slice_mut::<T>()? {
                let rows = PART.div_ceil(width.max(1));
                cx.chunks_mut(dx, rows * width, |part, dx| {
                    let at = part * rows * width;
                    let (x, dy) = (&x[at..][..dx.len()], &dy[at..][..dx.len()]);
                    let of_rows = part * rows..part * rows + dx.len() / width;
                    let (mean, variance) = (&mean[of_rows.clone()], &variance[of_rows]);
                    T::vectorised(LayerNormGradLoops { x, dy, scale, mean, variance, dx, epsilon });
                });
            }
            if let Some(dscale) = self.dscale.slice_mut::<T>()? {
                cx.chunks_mut(dscale, COLUMNS, |part, out| {
                    let normal = Some(Normal { x, mean, variance, epsilon });
                    T::vectorised(ColumnSums { first: part * COLUMNS, width, dy, normal, out });
                });
            }
            if let Some(dbias) = self.dbias.slice_mut::<T>()? {
                cx.chunks_mut(dbias, COLUMNS, |part, out| {
                    T::vectorised(ColumnSums { first: part * COLUMNS, width, dy, normal: None, out });
                });
            }
            Ok(())
        })
    }
}

/// Columns that are summed at a time.
const COLUMNS: usize = 64;
/// Rows whose sums are accumulated in the tensor's dtype.
const RUN: usize = 256;

/// The normalised elements, factors of gradients before summation.
struct Normal<'a, T> {
    x: &'a [T],
    mean: &'a [T],
    variance: &'a [T],
    epsilon: f64,
}

/// Sums over the rows, for the columns from `first` on, as many as `out` has.
struct ColumnSums<'a, T> {
    first: usize,
    width: usize,
    dy: &'a [T],
    normal: Option<Normal<'a, T>>,
    out: &'a mut [T],
}
impl<'a, T: KernelFloat> VectorLoops<T> for ColumnSums<'a, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let (mut totals, columns) = ([0.0; COLUMNS], self.out.len());
        let rows = self.dy.len() / self.width;
        for start in (0..rows).step_by(RUN) {
            let sums = &mut [T::of(0.0); COLUMNS][..columns];
            for row in start..rows.min(start + RUN) {
                let of_row = |all: &'a [T]| &all[row * self.width + self.first..][..columns];
                let dy = of_row(self.dy);
                match &self.normal {
                    Some(normal) => {
                        let mean = F::new(normal.mean[row]);
                        let factor = F::from(factor(normal.variance[row], normal.epsilon));
                        map_lanes([of_row(normal.x), dy], [&mut *sums], |[x, dy]: [F; 2], [sum]| {
                            [sum + dy * ((x - mean) * factor)]
                        });
                    }
                    None => map_lanes([dy], [&mut *sums], |[dy]: [F; 1], [sum]| [sum + dy]),
                }
            }
            totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += wide(*sum));
        }
        self.out.iter_mut().zip(totals).for_each(|(out, total)| *out = T::of(total));
    }
}
