//! `roi_pool`: maxima of boxes.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Dims, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_float, register_op,
};

use super::{
    roi_features::WITHOUT,
    rois::{Rois, infer_rois},
};
use crate::{
    Math,
    index::ScatterNdAdd,
    kernel_helpers::nth,
    math::{DimExpr, filled, like, positions, product},
    windows::dims,
};

/// Features of boxes (Fast R-CNN, Girshick 2015): each box is divided into bins, and each element is the maximum of the
/// elements of the image in its bin, or 0 for none.
///
/// Corners of boxes are rounded to elements, which the box contains. Bins may overlap by one row and column. NaN is no
/// maximum.
#[register_op(grad = RoiPoolGrad, primitive)]
pub struct RoiPool<V = Var> {
    /// Images, `[images, channels, height, width]`.
    #[input]
    pub x: V,
    /// Boxes, `[n, 4]`: the smaller coordinates of two opposite corners, and the larger ones.
    #[input("ROIs")]
    pub rois: V,
    /// How many of the boxes each image has, int32 or int64, `[images]`; absent for one image.
    #[input(checked)]
    pub rois_num: Option<V>,
    /// `[n, channels, pooled_height, pooled_width]`.
    #[output]
    pub out: V,
    /// The position of each maximum in its channel, in memory order, int64; −1 for none. Same shape as `out`.
    #[output]
    pub argmax: V,
    /// Rows of bins.
    #[attr(default = 1, min = 1)]
    pub pooled_height: i32,
    /// Columns of bins.
    #[attr(default = 1, min = 1)]
    pub pooled_width: i32,
    /// Elements of the image for a unit of the boxes.
    #[attr(default = 1.0)]
    pub spatial_scale: f32,
}
impl Infer for RoiPool<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (n, channels) = infer_rois(&self.x, &self.rois, &self.rois_num)?;
        let [rows, columns] = [self.pooled_height, self.pooled_width].map(|n| (n as usize).into());
        let dims = Dims::from_iter([n, channels, rows, columns]);
        self.argmax.set(DType::I64, dims.clone());
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl RoiPool<Buf<'_>> {
    /// The rows or columns of a bin: number `at` of `count` between two coordinates, of `size` elements.
    fn elements(&self, corners: [f64; 2], at: usize, count: usize, size: usize) -> std::ops::Range<usize> {
        // Larger coordinates are outside of every image.
        let [low, high] =
            corners.map(|x| (x * f64::from(self.spatial_scale)).round().clamp(-1e9, 1e9) as i64);
        let (length, at, count) = ((high - low + 1).max(1), at as i64, count as i64);
        let (start, end) = (at * length / count, ((at + 1) * length + count - 1) / count);
        let [start, end] = [start, end].map(|n| (low + n).clamp(0, size as i64) as usize);
        start..end
    }
}
impl Kernel for RoiPool<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let rois = Rois::new(&self.rois, self.rois_num.as_ref())?;
        let [_, channels, height, width] = dims(&self.x)?;
        let [_, _, rows, columns] = dims(&self.out)?;
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            for i in 0..rois.count() * channels * rows * columns {
                let (plane, bin) = (i / (rows * columns), i % (rows * columns));
                let (roi, channel) = (plane / channels, plane % channels);
                let [left, top, right, bottom] = rois.corners(roi);
                let down = self.elements([top, bottom], bin / columns, rows, height);
                let across = self.elements([left, right], bin % columns, columns, width);
                let x = nth(x, rois.image(roi) * channels + channel, height * width);
                let (mut found, mut largest) = (-1, T::NEG_INFINITY);
                for at in down.flat_map(|row| across.clone().map(move |column| row * width + column)) {
                    if x[at] > largest {
                        (found, largest) = (at as i64, x[at]);
                    }
                }
                self.out.slice_mut::<T>()?[i] = if found < 0 { 0.0 } else { largest };
                self.argmax.slice_mut::<i64>()?[i] = found;
            }
            Ok(())
        })
    }
}
autobwd::samples!(
    RoiPool,
    [
        roi_pool(distinct([2, 3, 5, 6]), Some(given([2], [2.0, 1.0]).of(DType::I32)), [2, 4])
            .not_a_derivative(WITHOUT),
        RoiPool {
            spatial_scale: 0.5,
            ..roi_pool(distinct([2, 1, 5, 6]), Some(given([2], [1.0, 2.0]).of(DType::I64)), [3, 1])
        }
        .not_a_derivative(WITHOUT),
        roi_pool(distinct([1, 2, 5, 6]), None, [2, 3]).not_a_derivative(WITHOUT),
        RoiPool { rois: uniform([0, 4]), ..roi_pool(distinct([1, 2, 5, 6]), None, [1, 2]) }
            .not_a_derivative(WITHOUT),
        roi_pool(distinct([1, 0, 5, 6]), None, [1, 2]).not_a_derivative(WITHOUT),
        roi_pool(distinct([2, 3, 5, 6]), None, [1, 2]).fails("`X`: one image is needed without `RoisNum`"),
        roi_pool(distinct([1, 3, 5, 6]), None, [0, 2]).fails("attribute `pooled_height`: must be at least 1"),
        roi_pool(distinct([1, 3, 5, 6]), None, [2, 0]).fails("attribute `pooled_width`: must be at least 1"),
    ]
);

fn roi_pool(x: Draw, rois_num: Option<Draw>, [pooled_height, pooled_width]: [i32; 2]) -> RoiPool<Draw> {
    RoiPool {
        x,
        rois: given([3, 4], [0.7, 1.2, 4.3, 3.9, -2.6, 0.4, 9.1, 7.7, 2.2, 2.1, 2.6, 2.8]),
        rois_num,
        out: out(),
        argmax: out(),
        pooled_height,
        pooled_width,
        spatial_scale: 1.0,
    }
}

/// `dx[argmax] += dout` in each channel, for the bins that have a maximum.
#[register_op(grad_of = RoiPool, grad = Composed, composed)]
pub struct RoiPoolGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    #[input(shape_only)]
    pub rois: V,
    pub rois_num: Option<V>,
    pub argmax: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub pooled_height: i32,
    pub pooled_width: i32,
    pub spatial_scale: f32,
}
impl Infer for RoiPoolGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer_rois(&self.x, &self.rois, &self.rois_num)?;
        self.dout.same_dtype(&self.x)?;
        let fits = self.dout.dims.agrees(&self.argmax.dims);
        self.dout.require(fits, || format!("the shape of `Argmax`, {}, is needed", self.argmax.dims))?;
        self.dx.like(&self.x);
        Ok(())
    }
}
impl Composition for RoiPoolGrad<Expr> {
    fn compose(&mut self) {
        let (x, dout, builder) = (&self.x, &self.dout, self.x.builder());
        let [images, channels, height, width] = [0, 1, 2, 3].map(|axis| x.dim(axis));
        let numbers = |n: &DimExpr| positions(builder, n);
        // [n, 1]: how many images end before the box.
        let boxes = numbers(&dout.dim(0)).unsqueeze(&[1]);
        let image = match &self.rois_num {
            Some(counts) => {
                let ends = counts.cast(DType::I64).cumsum(0);
                boxes.greater_equal(&ends).cast(DType::I64).sum_keepdim(&[1])
            }
            None => boxes * 0.0,
        };
        let planes = image * channels.number(builder) + numbers(&channels);
        let pixels = product(&[height.clone(), width.clone()]);
        let first = (planes * pixels.number(builder)).unsqueeze(&[2, 3]);
        let is_there = self.argmax.greater_equal(&like(&self.argmax, 0.0));
        let index = is_there.where_cond(&self.argmax, &like(&self.argmax, 0.0)) + first;
        let updates = is_there.where_cond(dout, &like(dout, 0.0)).flatten(0, 3);
        let zeros =
            filled(builder, dout.dtype(), "0", &[product(&[images.clone(), channels.clone()]) * &pixels]);
        let (index, updates) = ((&index.flatten(0, 3).unsqueeze(&[1])).into(), (&updates).into());
        let sum = emit(ScatterNdAdd { x: (&zeros).into(), index, updates, out: New }).out;
        self.dx = sum.reshape_to(&[images, channels, height, width]);
    }
}
