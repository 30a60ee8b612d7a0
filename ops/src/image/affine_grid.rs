//! `affine_grid`: positions for `grid_sampler`.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, Result, Var, check::*,
    op::with_float, operators::constant_ints, register_op, tensor::Dim,
};

use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, wide},
    math::{DimExpr, positions},
    windows::dims,
};

/// Positions of an affinely transformed image, for `grid_sampler`:
/// `output[n, h, w] = theta[n] · (x, y, 1)`, where `x` and `y` are the positions of column `w` and row `h`.
///
/// The borders of an image are -1 and 1. With `align_corners`, the centres of the outermost elements are there, else
/// their outer edges; the only row or column is at -1 and 0.
#[register_op(grad = AffineGridGrad, infallible)]
pub struct AffineGrid<V = Var> {
    /// Transformations, `[images, 2, 3]`.
    #[input]
    pub theta: V,
    /// Shape of the images, int32 or int64, `[4]`; replaces the attribute.
    #[input("OutputShape", constant)]
    pub shape_tensor: Option<V>,
    /// `[images, height, width, 2]`
    #[output]
    pub output: V,
    /// Shape of the images: images, channels, height, width.
    #[attr(default = [])]
    pub output_shape: Vec<i32>,
    /// -1 and 1 are the centres of the outermost elements, not their outer edges.
    #[attr(default = true)]
    pub align_corners: bool,
}
impl Infer for AffineGrid<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [images, _, height, width] = size(self.shape_tensor.as_ref(), &self.output_shape)?;
        self.theta.float()?;
        let fits = self.theta.dims.agrees(&[images, 2.into(), 3.into()]);
        self.theta
            .require(fits, || format!("[{images}, 2, 3] is needed, a transformation for each image"))?;
        self.output.set(self.theta.dtype, [images, height, width, 2.into()].into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Kernel for AffineGrid<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [_, height, width, _] = dims(&self.output)?;
        let size = [height, width];
        with_float!(self.theta, T => {
            let theta = self.theta.slice::<T>()?;
            cx.chunks_mut(self.output.slice_mut::<T>()?, 2 * PART, |part, output| {
                for (i, output) in output.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let (image, [x, y]) = position::<T>(part * PART + i, size, self.align_corners);
                    let theta = &theta[image * 6..][..6];
                    *output = [0, 3].map(|row| theta[row] * x + theta[row + 1] * y + theta[row + 2]);
                }
            });
            Ok(())
        })
    }
}
impl Composition for AffineGrid<Expr> {
    fn compose(&mut self) {
        let size = |i: usize| match &self.shape_tensor {
            Some(shape) => DimExpr::element(shape, i as i32),
            None => i64::from(self.output_shape[i]).into(),
        };
        let [y, x] = [2, 3].map(|i| self.along(&size(i)));
        // [images, 1, 1, 2]
        let column = |i: i32| self.theta.slice(2, i, i + 1).transpose(&[0, 2, 1]).unsqueeze(&[1]);
        let offset = column(1) * y.unsqueeze(&[0, 2, 3]) + column(2);
        self.output = column(0) * x.unsqueeze(&[0, 1, 3]) + offset;
    }
}
impl AffineGrid<Expr> {
    /// The positions of elements along an axis.
    fn along(&self, count: &DimExpr) -> Expr {
        let builder = self.theta.builder();
        let [n, last] = [count.clone(), count - 1].map(|n| n.number(builder).cast(DType::F64));
        let way = positions(builder, count).cast(DType::F64) * 2.0 / last.clip(1.0, f64::INFINITY);
        let position = if self.align_corners { way - 1.0 } else { (way - 1.0) * (last / n) };
        position.cast(self.theta.dtype())
    }
}
autobwd::samples!(
    AffineGrid,
    [
        affine_grid(uniform([2, 2, 3]), vec![2, 1, 4, 3], true),
        affine_grid(uniform([1, 2, 3]), vec![1, 5, 3, 4], false),
        affine_grid(uniform([1, 2, 3]), vec![1, 1, 1, 4], true),
        affine_grid(uniform([0, 2, 3]), vec![0, 1, 2, 4], true),
        affine_grid(uniform([2, 2, 3]), vec![1, 1, 4, 3], true)
            .fails("`Theta`: [1, 2, 3] is needed, a transformation for each image"),
        affine_grid(integers_below(2, [2, 2, 3]), vec![2, 1, 4, 3], true)
            .fails("`Theta`: floating point numbers are needed"),
        affine_grid(uniform([2, 2, 3]), vec![2, 1, 4], true)
            .fails("attribute `output_shape`: 4 numbers of at least 0 are needed, not [2, 1, 4]"),
        AffineGrid {
            shape_tensor: Some(integers(&[2, 3, 2, 5])),
            ..affine_grid(uniform([2, 2, 3]), vec![2, 1, 4, 3], true)
        },
        AffineGrid {
            shape_tensor: Some(integers(&[2, 1, -4, 3])),
            ..affine_grid(uniform([2, 2, 3]), vec![2, 1, 4, 3], true)
        }
        .fails("attribute `output_shape`: 4 numbers of at least 0 are needed, not [2, 1, -4, 3]"),
    ]
);

fn affine_grid(theta: Draw, output_shape: Vec<i32>, align_corners: bool) -> AffineGrid<Draw> {
    AffineGrid { theta, shape_tensor: None, output: out(), output_shape, align_corners }
}

/// Images, channels, height and width.
fn size(tensor: Option<&Meta>, shape: &[i32]) -> Result<[Dim; 4]> {
    let given = constant_ints(&[], tensor, shape.iter().map(|n| i64::from(*n)))?;
    let dim = |n: Option<i64>| n.map_or(Some(Dim::UNKNOWN), |n| usize::try_from(n).ok().map(Dim::from));
    let dims: Option<Dims> = given.iter().map(|n| dim(*n)).collect();
    dims.and_then(|dims| <[Dim; 4]>::try_from(&*dims).ok()).ok_or_else(|| {
        let given: Vec<_> = given.iter().flatten().collect();
        Error::attr("output_shape", format!("4 numbers of at least 0 are needed, not {given:?}"))
    })
}

/// The image of an element, and its horizontal and vertical position.
fn position<T: KernelFloat>(i: usize, [height, width]: [usize; 2], align_corners: bool) -> (usize, [T; 2]) {
    let along = |i: usize, n: usize| {
        let edge = if align_corners { 1.0 } else { (n as f64 - 1.0) / n as f64 };
        let way = if n > 1 { 2.0 * edge * i as f64 / (n as f64 - 1.0) } else { 0.0 };
        T::of(way - edge)
    };
    let (row, column) = (i / width, i % width);
    (row / height, [along(column, width), along(row % height, height)])
}

/// `dtheta[n] = Σ doutput[n, h, w] · (x, y, 1)ᵀ`, summed over all positions.
#[register_op(grad_of = AffineGrid, grad = Multilinear, inferred, infallible)]
pub struct AffineGridGrad<V = Var> {
    #[input(shape_only)]
    pub theta: V,
    #[input(constant)]
    pub shape_tensor: Option<V>,
    pub doutput: V,
    #[output]
    pub dtheta: V,
    pub output_shape: Vec<i32>,
    pub align_corners: bool,
}
impl Kernel for AffineGridGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let [_, height, width, _] = dims(&self.doutput)?;
        let size = [height, width];
        with_float!(self.doutput, T => {
            let (doutput, positions) = (self.doutput.slice::<T>()?, size[0] * size[1]);
            for (image, dtheta) in self.dtheta.slice_mut::<T>()?.chunks_exact_mut(6).enumerate() {
                let mut sums = [0.0; 6];
                let doutput = &doutput[image * positions * 2..][..positions * 2];
                for (i, doutput) in doutput.as_chunks::<2>().0.iter().enumerate() {
                    let (_, [x, y]) = position::<T>(i, size, self.align_corners);
                    let factors = [wide(x), wide(y), 1.0];
                    let terms = sums.iter_mut().enumerate();
                    terms.for_each(|(k, sum)| *sum += wide(doutput[k / 3]) * factors[k % 3]);
                }
                dtheta.iter_mut().zip(sums).for_each(|(dtheta, sum)| *dtheta = T::of(sum));
            }
            Ok(())
        })
    }
}
