//! Tensors brought to mean 0 and variance 1.

use autobwd::{
    Buf, Cx, Dim, Dims, GradCx, GradRule, Infer, Kernel, Meta, NoGrad, Result, Var, check::*, register_op,
    with_float,
};

use crate::common::{PART, Real, pieces};

/// Every row brought to mean 0 and variance 1: `y = scale * (x - mean) / √(variance + epsilon) + bias`.
///
/// Dimensions before `begin_norm_axis` number the rows, the others are those of a row.
#[register_op(grad = LayerNormRule)]
pub struct LayerNorm<V = Var> {
    /// At least one dimension.
    #[input]
    pub x: V,
    /// Factors, as many as a row has elements, in one dimension; 1 where absent.
    #[input]
    pub scale: Option<V>,
    /// Summands, as many as a row has elements, in one dimension; 0 where absent.
    #[input]
    pub bias: Option<V>,
    /// Same shape as `x`.
    #[output]
    pub y: V,
    /// Mean of each row: the dimensions of `x` before `begin_norm_axis`.
    #[output]
    pub mean: V,
    /// Variance of each row, same shape as `mean`: the mean square of what differs from the mean.
    #[output]
    pub variance: V,
    /// The first dimension of a row.
    #[attr(default = 1, min = 0)]
    pub begin_norm_axis: i32,
    /// Keeps the divisor above 0.
    #[attr(default = 1e-5, min = 0.0)]
    pub epsilon: f32,
}
impl Infer for LayerNorm<Meta> {
    fn infer(&mut self) -> Result<()> {
        let rows = rows(&self.x, self.begin_norm_axis, &[&self.scale, &self.bias])?;
        self.y.like(&self.x);
        self.mean.set(self.x.dtype, rows);
        self.variance.like(&self.mean);
        Ok(())
    }
}
impl Kernel for LayerNorm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            let width = width(&self.x, self.begin_norm_axis);
            let scale = self.scale.as_ref().map(Buf::slice::<T>).transpose()?;
            let bias = self.bias.as_ref().map(Buf::slice::<T>).transpose()?;
            let row = |row: usize| &x[row * width..][..width];
            let size = PART.div_ceil(width.max(1));
            cx.chunks_mut(self.mean.slice_mut::<T>()?, size, |part, mean| {
                for (i, mean) in mean.iter_mut().enumerate() {
                    *mean = T::of(average(row(part * size + i), |x| x));
                }
            });
            let mean = self.mean.slice::<T>()?;
            cx.chunks_mut(self.variance.slice_mut::<T>()?, size, |part, variance| {
                for (i, variance) in variance.iter_mut().enumerate() {
                    let i = part * size + i;
                    let mean = wide(mean[i]);
                    *variance = T::of(average(row(i), |x| (x - mean) * (x - mean)));
                }
            });
            let (variance, epsilon) = (self.variance.slice::<T>()?, f64::from(self.epsilon));
            cx.chunks_mut(self.y.slice_mut::<T>()?, PART, |part, y| {
                pieces(y, part * PART, width, usize::MAX, |i, column, y| {
                    let (mean, factor) = (mean[i], T::of(factor(variance[i], epsilon)));
                    y.iter_mut().zip(&row(i)[column..]).for_each(|(y, x)| *y = (*x - mean) * factor);
                    if let Some(scale) = scale {
                        y.iter_mut().zip(&scale[column..]).for_each(|(y, scale)| *y *= *scale);
                    }
                    if let Some(bias) = bias {
                        y.iter_mut().zip(&bias[column..]).for_each(|(y, bias)| *y += *bias);
                    }
                });
            });
            Ok(())
        })
    }
}
autobwd::samples!(
    LayerNorm,
    [
        layer_norm(uniform([3, 4]), Some(positive([4])), Some(uniform([4])), 1, 1e-5),
        layer_norm(uniform([2, 3, 4]), Some(positive([4])), Some(uniform([4])), 2, 1e-3),
        layer_norm(uniform([2, 3, 4]), Some(positive([12])), None, 1, 0.25),
        layer_norm(uniform([2, 3, 4]), None, Some(uniform([24])), 0, 1e-5),
        layer_norm(uniform([70, 3]), None, None, 1, 1e-5),
        layer_norm(uniform([2, 70]), Some(positive([70])), Some(uniform([70])), 1, 1e-5),
        layer_norm(uniform([0, 3]), Some(positive([3])), Some(uniform([3])), 1, 1e-5),
        layer_norm(uniform([3, 0]), Some(positive([0])), Some(uniform([0])), 1, 1e-5),
        Sample::fails(layer_norm(uniform([]), None, None, 0, 1e-5), "attribute `begin_norm_axis` = 0"),
        Sample::fails(
            layer_norm(uniform([2, 3]), Some(uniform([2])), None, 1, 1e-5),
            "`Scale`: [3] is needed, the elements of a row",
        ),
        Sample::fails(
            layer_norm(uniform([2, 3]), None, Some(uniform([3, 1])), 1, 1e-5),
            "`Bias`: [3] is needed, the elements of a row",
        ),
    ]
);

fn layer_norm(
    x: Draw,
    scale: Option<Draw>,
    bias: Option<Draw>,
    begin_norm_axis: i32,
    epsilon: f32,
) -> LayerNorm<Draw> {
    LayerNorm { x, scale, bias, y: out(), mean: out(), variance: out(), begin_norm_axis, epsilon }
}

/// The dimensions that number the rows; what goes with each element of a row must fit.
fn rows(x: &Meta, begin: i32, parameters: &[&Option<Meta>]) -> Result<Dims> {
    x.float()?;
    let (rows, row) = x.dims.split_at(x.axis("begin_norm_axis", begin.into())?);
    let width = row.iter().fold(Dim::from(1), |n, dim| n * *dim);
    for parameter in parameters.iter().filter_map(|parameter| parameter.as_ref()) {
        parameter.same_dtype(x)?;
        if !parameter.dims.agrees(&[width]) {
            return Err(parameter.wrong(&format!("[{width}] is needed, the elements of a row")));
        }
    }
    Ok(rows.iter().copied().collect())
}

/// Elements of a row.
fn width(x: &Buf<'_>, begin: i32) -> usize {
    x.dims()[x.axis(begin.into())..].iter().product()
}

/// What differs from the mean is multiplied by this.
fn factor<T: Real>(variance: T, epsilon: f64) -> f64 {
    1.0 / (wide(variance) + epsilon).sqrt()
}

fn wide<T: Real>(x: T) -> f64 {
    x.into()
}

/// The mean of `f(x)`.
fn average<T: Real>(x: &[T], f: impl Fn(f64) -> f64) -> f64 {
    let (blocks, rest) = x.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += f(wide(*x)));
    }
    (sums.iter().sum::<f64>() + rest.iter().map(|x| f(wide(*x))).sum::<f64>()) / x.len() as f64
}

/// One gradient operator, which reads the gradients of mean and variance where there are any.
pub struct LayerNormRule;
impl GradRule<LayerNorm> for LayerNormRule {
    fn emit(fwd: &LayerNorm, g: &mut GradCx<'_>) {
        let LayerNorm { x, scale, bias, y, mean, variance, begin_norm_axis, epsilon } = *fwd;
        let arriving = |out: Var| g.arrives(out).then(|| g.grad(out));
        let (dmean, dvariance) = (arriving(mean), arriving(variance));
        let (dx, dscale) = (g.wanted(x), scale.and_then(|scale| g.wanted(scale)));
        let dbias = bias.and_then(|bias| g.wanted(bias));
        let dy = g.grad(y);
        g.push(LayerNormGrad {
            x,
            scale,
            bias,
            mean,
            variance,
            dy,
            dmean,
            dvariance,
            dx,
            dscale,
            dbias,
            begin_norm_axis,
            epsilon,
        });
    }
}

/// `dx = (g - mean(g) - n * mean(g * n)) / √(variance + epsilon)` in each row, `dscale = Σ dy * n` and `dbias = Σ dy`
/// over the rows, where `n = (x - mean) / √(variance + epsilon)` and `g = dy * scale`.
///
/// Where there are gradients of mean and variance, `(dmean + 2 * dvariance * (x - mean)) / width` is added to `dx`.
#[register_op(grad = NoGrad)]
pub struct LayerNormGrad<V = Var> {
    /// Input of the forward operator.
    #[input]
    pub x: V,
    /// Factors.
    #[input]
    pub scale: Option<V>,
    /// Summands.
    #[input(shape_only)]
    pub bias: Option<V>,
    /// Mean of each row.
    #[input]
    pub mean: V,
    /// Variance of each row.
    #[input]
    pub variance: V,
    /// Gradient of the output.
    #[input("Y@GRAD")]
    pub dy: V,
    /// Gradient of the means.
    #[input("Mean@GRAD")]
    pub dmean: Option<V>,
    /// Gradient of the variances.
    #[input("Variance@GRAD")]
    pub dvariance: Option<V>,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: Option<V>,
    /// Same shape as `scale`.
    #[output("Scale@GRAD")]
    pub dscale: Option<V>,
    /// Same shape as `bias`.
    #[output("Bias@GRAD")]
    pub dbias: Option<V>,
    /// As in `layer_norm`.
    #[attr(default = 1, min = 0)]
    pub begin_norm_axis: i32,
    /// As in `layer_norm`.
    #[attr(default = 1e-5, min = 0.0)]
    pub epsilon: f32,
}
impl Infer for LayerNormGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let rows = rows(&self.x, self.begin_norm_axis, &[&self.scale, &self.bias])?;
        self.dy.same_as(&self.x)?;
        let of_rows = [Some(&self.mean), Some(&self.variance), self.dmean.as_ref(), self.dvariance.as_ref()];
        for each in of_rows.into_iter().flatten() {
            each.same_dtype(&self.x)?;
            if !each.dims.agrees(&rows) {
                return Err(each.wrong(&format!("{rows} is needed, a number for each row")));
            }
        }
        if let Some(dx) = &mut self.dx {
            dx.like(&self.x);
        }
        for (parameter, grad) in [(&self.scale, &mut self.dscale), (&self.bias, &mut self.dbias)] {
            match (parameter, grad) {
                (Some(parameter), Some(grad)) => grad.like(parameter),
                (None, Some(grad)) => return Err(grad.wrong("this gradient is of something absent")),
                (_, None) => {}
            }
        }
        Ok(())
    }
}
impl Kernel for LayerNormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (x, dy) = (self.x.slice::<T>()?, self.dy.slice::<T>()?);
            let (mean, variance) = (self.mean.slice::<T>()?, self.variance.slice::<T>()?);
            let scale = self.scale.as_ref().map(Buf::slice::<T>).transpose()?;
            let dmean = self.dmean.as_ref().map(Buf::slice::<T>).transpose()?;
            let dvariance = self.dvariance.as_ref().map(Buf::slice::<T>).transpose()?;
            let epsilon = f64::from(self.epsilon);
            let width = width(&self.x, self.begin_norm_axis);
            let factor = |row: usize| factor(variance[row], epsilon);
            if let Some(dx) = &mut self.dx {
                let size = PART.div_ceil(width.max(1)) * width;
                cx.chunks_mut(dx.slice_mut::<T>()?, size, |part, dx| {
                    pieces(dx, part * size, width, usize::MAX, |row, _, dx| {
                        let (x, dy) = (&x[row * width..], &dy[row * width..]);
                        let (mean, factor) = (wide(mean[row]), factor(row));
                        let normal = |i: usize| (wide(x[i]) - mean) * factor;
                        let g = |i: usize| wide(dy[i]) * scale.map_or(1.0, |scale| wide(scale[i]));
                        let (mut sum, mut products) = (0.0, 0.0);
                        for i in 0..width {
                            sum += g(i);
                            products += g(i) * normal(i);
                        }
                        // Each goes into the mean and, times its distance from it, into the variance.
                        let same = dmean.map_or(0.0, |dmean| wide(dmean[row])) - sum * factor;
                        let twice = dvariance.map_or(0.0, |dvariance| 2.0 * wide(dvariance[row]));
                        let slope = twice / factor - products * factor;
                        let n = width as f64;
                        for (i, dx) in dx.iter_mut().enumerate() {
                            *dx = T::of(g(i) * factor + (same + normal(i) * slope) / n);
                        }
                    });
                });
            }
            if let Some(dscale) = &mut self.dscale {
                sum_rows(cx, dy, dscale.slice_mut::<T>()?, |row, at, dy| {
                    dy * (wide(x[at]) - wide(mean[row])) * factor(row)
                });
            }
            if let Some(dbias) = &mut self.dbias {
                sum_rows(cx, dy, dbias.slice_mut::<T>()?, |_, _, dy| dy);
            }
            Ok(())
        })
    }
}

/// Columns that are summed at a time.
const COLUMNS: usize = 64;

/// `out` = the sum of `f(row, at, dy)` over the rows, with the element's place and value.
fn sum_rows<T: Real>(cx: &Cx, dy: &[T], out: &mut [T], f: impl Fn(usize, usize, f64) -> f64 + Sync) {
    let width = out.len();
    cx.chunks_mut(out, COLUMNS, |part, out| {
        let mut sums = [0.0; COLUMNS];
        for row in 0..dy.len() / width {
            let first = row * width + part * COLUMNS;
            for (i, (sum, dy)) in sums[..out.len()].iter_mut().zip(&dy[first..]).enumerate() {
                *sum += f(row, first + i, wide(*dy));
            }
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::of(sum));
    });
}
