//! Features of boxes, as linear functions of images: `roi_align` and `psroi_pool`.

use autobwd::{Buf, Cx, DType, Dims, Infer, Kernel, Meta, Multilinear, Result, Var, check::*, register_op};

use super::{
    roi_bins::{AlignedBins, Bins, MeanBins},
    rois::infer_rois,
};

/// Why samples are not differentiated.
pub(super) const WITHOUT: &str = "boxes have no gradient, as in the reference";

/// Features of boxes (Mask R-CNN, He et al. 2017): each box is divided into bins, and each element is the mean of the image
/// at points on a grid in its bin, interpolated linearly between four elements.
///
/// Points more than one element outside of the image count as 0.
#[register_op(grad = RoiAlignGrad, primitive)]
pub struct RoiAlign<V = Var> {
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
    /// Rows of bins.
    #[attr(default = 1, min = 1)]
    pub pooled_height: i32,
    /// Columns of bins.
    #[attr(default = 1, min = 1)]
    pub pooled_width: i32,
    /// Elements of the image for a unit of the boxes.
    #[attr(default = 1.0)]
    pub spatial_scale: f32,
    /// Rows and columns of points in a bin; −1 for the size of a bin, rounded up.
    #[attr(default = -1)]
    pub sampling_ratio: i32,
    /// Coordinate 0 is the edge of the first element, instead of its centre, and boxes may be smaller than one element.
    #[attr(default = false)]
    pub aligned: bool,
}
impl Infer for RoiAlign<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (n, channels) = infer_rois(&self.x, &self.rois, &self.rois_num)?;
        let [rows, columns] = [self.pooled_height, self.pooled_width].map(|n| (n as usize).into());
        self.out.set(self.x.dtype, Dims::from_iter([n, channels, rows, columns]));
        Ok(())
    }
}
impl Kernel for RoiAlign<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let rule = AlignedBins {
            scale: self.spatial_scale.into(),
            ratio: self.sampling_ratio,
            aligned: self.aligned,
        };
        let bins = Bins::new(&self.x, (&self.rois, self.rois_num.as_ref()), &self.out)?;
        bins.forward(cx, &self.x, &mut self.out, &rule)
    }
}
autobwd::samples!(
    RoiAlign,
    [
        roi_align(uniform([2, 3, 5, 6]), Some(given([2], [2.0, 1.0]).of(DType::I32)), [2, 4])
            .not_a_derivative(WITHOUT),
        RoiAlign {
            aligned: true,
            spatial_scale: 0.5,
            ..roi_align(uniform([2, 1, 5, 6]), Some(given([2], [1.0, 2.0]).of(DType::I64)), [3, 1])
        }
        .not_a_derivative(WITHOUT),
        RoiAlign { sampling_ratio: 2, ..roi_align(uniform([1, 2, 5, 6]), None, [2, 4]) }
            .not_a_derivative(WITHOUT),
        RoiAlign { sampling_ratio: 3, aligned: true, ..roi_align(uniform([1, 2, 4, 3]), None, [1, 2]) }
            .not_a_derivative(WITHOUT),
        RoiAlign {
            rois: uniform([0, 4]),
            ..roi_align(uniform([2, 3, 5, 6]), Some(given([2], [0.0, 0.0]).of(DType::I32)), [2, 4])
        }
        .not_a_derivative(WITHOUT),
        roi_align(uniform([1, 0, 5, 6]), None, [2, 4]).not_a_derivative(WITHOUT),
        roi_align(uniform([3, 5, 6]), None, [2, 4]).fails("`X`: 4 dimensions are needed"),
        roi_align(uniform([1, 2, 0, 6]), None, [2, 4]).fails("`X`: at least one row and column is needed"),
        roi_align(uniform([2, 3, 5, 6]), None, [2, 4]).fails("`X`: one image is needed without `RoisNum`"),
        roi_align(uniform([2, 3, 5, 6]), Some(given([2], [2.0, 2.0]).of(DType::I32)), [2, 4])
            .fails("`RoisNum`: numbers of at least 0 with sum 3 are needed"),
        roi_align(uniform([2, 3, 5, 6]), Some(given([2], [4.0, -1.0]).of(DType::I32)), [2, 4])
            .fails("`RoisNum`: numbers of at least 0 with sum 3 are needed"),
        roi_align(uniform([2, 3, 5, 6]), Some(integers_below(2, [3])), [2, 4])
            .fails("`RoisNum`: [2] is needed, a number for each image"),
        roi_align(uniform([2, 3, 5, 6]), Some(uniform([2])), [2, 4])
            .fails("`RoisNum`: int64 or int32 is needed"),
        RoiAlign { rois: uniform([3, 5]), ..roi_align(uniform([1, 3, 5, 6]), None, [2, 4]) }
            .fails("`ROIs`: boxes, [n, 4], are needed"),
        roi_align(uniform([1, 3, 5, 6]), None, [0, 4]).fails("attribute `pooled_height`: must be at least 1"),
        roi_align(uniform([1, 3, 5, 6]), None, [2, 0]).fails("attribute `pooled_width`: must be at least 1"),
    ]
);

/// Boxes: within the image, partly outside of it, and smaller than one element.
const ROIS: [f64; 12] = [0.7, 1.2, 4.3, 3.9, -2.6, 0.4, 9.1, 7.7, 2.2, 2.1, 2.6, 2.8];

fn roi_align(x: Draw, rois_num: Option<Draw>, [pooled_height, pooled_width]: [i32; 2]) -> RoiAlign<Draw> {
    RoiAlign {
        x,
        rois: given([3, 4], ROIS),
        rois_num,
        out: out(),
        pooled_height,
        pooled_width,
        spatial_scale: 1.0,
        sampling_ratio: -1,
        aligned: false,
    }
}

/// `dx` = the sum of `dout`, each multiplied by the weight with which the element contributes to it.
#[register_op(grad_of = RoiAlign, grad = Multilinear, inferred, primitive)]
pub struct RoiAlignGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub rois: V,
    pub rois_num: Option<V>,
    pub dout: V,
    #[output]
    pub dx: V,
    pub pooled_height: i32,
    pub pooled_width: i32,
    pub spatial_scale: f32,
    pub sampling_ratio: i32,
    pub aligned: bool,
}
impl Kernel for RoiAlignGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let rule = AlignedBins {
            scale: self.spatial_scale.into(),
            ratio: self.sampling_ratio,
            aligned: self.aligned,
        };
        let bins = Bins::new(&self.x, (&self.rois, self.rois_num.as_ref()), &self.dout)?;
        bins.backward(cx, &self.dout, &mut self.dx, &rule)
    }
}

/// Position-sensitive features of boxes (R-FCN, Dai et al. 2016): each box is divided into bins, and each element is the mean
/// of the elements of the image in its bin. Each bin has channels of its own: bin `i`, `j` of output channel `c` reads channel
/// `(c * pooled_height + i) * pooled_width + j`.
#[register_op(grad = PsroiPoolGrad, primitive)]
pub struct PsroiPool<V = Var> {
    /// Images, `[images, output_channels * pooled_height * pooled_width, height, width]`.
    #[input]
    pub x: V,
    /// Boxes, `[n, 4]`: the smaller coordinates of two opposite corners, and the larger ones.
    #[input("ROIs")]
    pub rois: V,
    /// How many of the boxes each image has, int32 or int64, `[images]`; absent for one image.
    #[input(checked)]
    pub rois_num: Option<V>,
    /// `[n, output_channels, pooled_height, pooled_width]`.
    #[output]
    pub out: V,
    /// Channels of the result.
    #[attr(min = 1)]
    pub output_channels: i32,
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
impl Infer for PsroiPool<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (n, channels) = infer_rois(&self.x, &self.rois, &self.rois_num)?;
        let sizes = [self.output_channels, self.pooled_height, self.pooled_width].map(|n| n as usize);
        let needed = sizes.iter().fold(1_usize, |product, n| product.saturating_mul(*n));
        self.x.require(channels.agrees(needed.into()), || format!("{needed} channels are needed"))?;
        let [channels, rows, columns] = sizes.map(Into::into);
        self.out.set(self.x.dtype, Dims::from_iter([n, channels, rows, columns]));
        Ok(())
    }
}
impl Kernel for PsroiPool<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let rule = MeanBins { scale: self.spatial_scale.into() };
        let bins = Bins::new(&self.x, (&self.rois, self.rois_num.as_ref()), &self.out)?;
        bins.forward(cx, &self.x, &mut self.out, &rule)
    }
}
autobwd::samples!(
    PsroiPool,
    [
        psroi_pool(uniform([2, 24, 5, 6]), Some(given([2], [2.0, 1.0]).of(DType::I32)), [3, 2, 4])
            .not_a_derivative(WITHOUT),
        PsroiPool {
            spatial_scale: 0.5,
            ..psroi_pool(uniform([2, 6, 5, 4]), Some(given([2], [1.0, 2.0]).of(DType::I64)), [2, 3, 1])
        }
        .not_a_derivative(WITHOUT),
        psroi_pool(uniform([1, 2, 5, 6]), None, [2, 1, 1]).not_a_derivative(WITHOUT),
        PsroiPool { rois: uniform([0, 4]), ..psroi_pool(uniform([1, 2, 5, 6]), None, [1, 2, 1]) }
            .not_a_derivative(WITHOUT),
        psroi_pool(uniform([1, 5, 3, 6]), None, [2, 1, 1]).fails("`X`: 2 channels are needed"),
        psroi_pool(uniform([2, 3, 5, 6]), None, [3, 1, 1])
            .fails("`X`: one image is needed without `RoisNum`"),
        psroi_pool(uniform([1, 3, 5, 6]), None, [0, 2, 2])
            .fails("attribute `output_channels`: must be at least 1"),
    ]
);

fn psroi_pool(x: Draw, rois_num: Option<Draw>, sizes: [i32; 3]) -> PsroiPool<Draw> {
    let [output_channels, pooled_height, pooled_width] = sizes;
    let rois = given([3, 4], ROIS);
    PsroiPool {
        x,
        rois,
        rois_num,
        out: out(),
        output_channels,
        pooled_height,
        pooled_width,
        spatial_scale: 1.0,
    }
}

/// `dx` = the sum of `dout / n` over the bins that contain the element, with `n` elements each.
#[register_op(grad_of = PsroiPool, grad = Multilinear, inferred, primitive)]
pub struct PsroiPoolGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub rois: V,
    pub rois_num: Option<V>,
    pub dout: V,
    #[output]
    pub dx: V,
    pub output_channels: i32,
    pub pooled_height: i32,
    pub pooled_width: i32,
    pub spatial_scale: f32,
}
impl Kernel for PsroiPoolGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let rule = MeanBins { scale: self.spatial_scale.into() };
        let bins = Bins::new(&self.x, (&self.rois, self.rois_num.as_ref()), &self.dout)?;
        bins.backward(cx, &self.dout, &mut self.dx, &rule)
    }
}
