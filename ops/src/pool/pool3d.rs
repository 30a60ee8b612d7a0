//! `pool3d`: pooling of volumes.

use autobwd::{Attrs, Composed, Composition, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op};

use super::{
    PoolingType,
    axis_pooling::{AxisPooling, WindowRules},
    composition::compose_pooling,
};
use crate::{image::VolumeLayout, windows::PaddingAlgorithm};

/// The attributes of pooling of volumes.
#[derive(Attrs, Clone, Debug)]
pub struct Pool3dAttrs {
    /// How a window is reduced.
    #[attr]
    pub pooling_type: PoolingType,
    /// Depth, height and width of a window; with `adaptive`, of the output.
    #[attr]
    pub ksize: Vec<i32>,
    /// Strides of the windows in depth, height and width.
    #[attr(default = [1, 1, 1])]
    pub strides: Vec<i32>,
    /// Padding: in depth, height and width; or front, back, top, bottom, left and right.
    #[attr(default = [0, 0, 0])]
    pub paddings: Vec<i32>,
    /// Whether padding is explicit, `SAME` or `VALID`.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// Adds a partial window at the end, where the others do not reach it.
    #[attr(default = false)]
    pub ceil_mode: bool,
    /// Averages leave padding out. Otherwise padding counts as zeros, at the end no more than at the front.
    #[attr(default = true)]
    pub exclusive: bool,
    /// One window that contains the volume; `ksize` and `paddings` are ignored.
    #[attr(default = false)]
    pub global_pooling: bool,
    /// Adaptive pooling: `ksize` windows that divide the volume evenly; `strides` and `paddings` are ignored.
    #[attr(default = false)]
    pub adaptive: bool,
    /// Order of the dimensions of volumes (`NCDHW`, `NDHWC`).
    #[attr(default = VolumeLayout::Ncdhw)]
    pub data_format: VolumeLayout,
}

impl Pool3dAttrs {
    /// Windows of `ksize` elements with stride 1.
    pub fn new(pooling_type: PoolingType, ksize: Vec<i32>) -> Pool3dAttrs {
        Pool3dAttrs {
            ksize,
            strides: vec![1; 3],
            paddings: vec![0; 3],
            padding_algorithm: PaddingAlgorithm::Explicit,
            pooling_type,
            ceil_mode: false,
            exclusive: true,
            global_pooling: false,
            adaptive: false,
            data_format: VolumeLayout::Ncdhw,
        }
    }

    fn axes(&self) -> Result<[AxisPooling; 3]> {
        let rules = WindowRules {
            ceil_mode: self.ceil_mode,
            exclusive: self.exclusive,
            global_pooling: self.global_pooling,
            adaptive: self.adaptive,
        };
        AxisPooling::all(&self.ksize, &self.strides, (&self.paddings, self.padding_algorithm), rules)
    }

    /// The dimension of the depth.
    fn first_axis(&self) -> usize {
        if self.data_format == VolumeLayout::Ncdhw { 2 } else { 1 }
    }
}

/// Max or average pooling of every channel of volumes, as `pool2d` of images.
#[register_op(grad = Composed, composed)]
pub struct Pool3dOp<V = Var> {
    /// Volumes, in the order that `data_format` says.
    #[input]
    pub x: V,
    /// As many volumes and channels, with one element for each window.
    #[output]
    pub out: V,
    /// Size and position of the windows.
    #[attrs]
    pub pool: Pool3dAttrs,
}
impl Infer for Pool3dOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let mut dims: Dims = self.x.unpack::<5>()?.into_iter().collect();
        let zeros = self.pool.pooling_type == PoolingType::Avg && !self.pool.exclusive;
        for (dim, axis) in dims[self.pool.first_axis()..].iter_mut().zip(self.pool.axes()?) {
            *dim = axis.count(*dim, zeros, &self.x)?;
        }
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for Pool3dOp<Expr> {
    fn compose(&mut self) {
        let (first, kind) = (self.pool.first_axis() as i32, self.pool.pooling_type);
        self.out = compose_pooling(&self.x, first, kind, self.pool.axes());
    }
}
autobwd::samples!(
    Pool3dOp,
    [
        pool3d(distinct([1, 2, 2, 3, 4]), max([2, 1, 3])),
        pool3d(uniform([1, 2, 3, 1, 4]), mean([2, 1, 3])),
        pool3d(distinct([1, 3, 4, 1, 2]), ndhwc(max([2, 3, 1]))),
        pool3d(uniform([2, 3, 4, 1, 1]), ndhwc(mean([2, 3, 1])).strides([1, 2, 1])),
        pool3d(distinct([1, 1, 4, 6, 1]), max([2, 3, 1]).strides([2, 3, 1])),
        pool3d(distinct([1, 1, 2, 3, 5]), max([1, 2, 3]).strides([1, 2, 2]).paddings([0, 1, 1])),
        pool3d(uniform([1, 1, 3, 4, 2]), mean([2, 2, 3]).paddings([1, 0, 0, 1, 2, 1])),
        pool3d(uniform([1, 1, 3, 4, 2]), mean([2, 2, 3]).paddings([1, 0, 1]).exclusive(false)),
        pool3d(uniform([1, 1, 4, 2, 3]), mean([3, 1, 2]).ceil_mode(true).strides([2, 1, 1])),
        pool3d(
            uniform([1, 1, 4, 2, 3]),
            mean([3, 1, 2]).padding_algorithm(PaddingAlgorithm::Same).strides([2, 1, 1])
        ),
        pool3d(
            distinct([1, 1, 4, 2, 3]),
            max([3, 2, 2]).padding_algorithm(PaddingAlgorithm::Valid).paddings([7, 7, 7])
        ),
        pool3d(distinct([2, 1, 4, 3, 1]), max([-1, -1, -1]).global_pooling(true).paddings([7, 7, 7])),
        pool3d(uniform([1, 4, 3, 2, 1]), ndhwc(mean([1, 1, 1])).global_pooling(true)),
        pool3d(distinct([1, 1, 5, 2, 3]), max([3, 2, 1]).adaptive(true).paddings([7, 7, 7])),
        pool3d(uniform([1, 1, 5, 2, 3]), mean([2, 3, 1]).adaptive(true).exclusive(false)),
        pool3d(distinct([0, 2, 3, 5, 4]), max([2, 3, 1])),
        pool3d(distinct([2, 3, 5, 4]), max([2, 3, 1])).fails("`X`: 5 dimensions are needed"),
        pool3d(integers_below(9, [1, 1, 2, 3, 4]), max([1, 2, 1]))
            .fails("`X`: floating point numbers are needed"),
        pool3d(distinct([1, 1, 2, 3, 4]), max([3, 1, 1]))
            .fails("`X`: at least 3 rows and columns are needed for a window"),
        pool3d(distinct([1, 1, 2, 3, 4]), max([1, 1, 2]).paddings([0, 0, 2]))
            .fails("`X`: a window would contain padding only"),
        pool3d(distinct([1, 1, 2, 3, 4]), max([1, 0, 1]))
            .fails("attribute `ksize`: 3 numbers of at least 1 are needed, not [1, 0, 1]"),
        pool3d(distinct([1, 1, 2, 3, 4]), max([1, 1, 1]).strides([1, 1]))
            .fails("attribute `strides`: 3 numbers of at least 1 are needed, not [1, 1]"),
    ]
);

fn pool3d(x: Draw, pool: Pool3dAttrs) -> Pool3dOp<Draw> {
    Pool3dOp { x, out: out(), pool }
}

fn max(ksize: [i32; 3]) -> Pool3dAttrs {
    Pool3dAttrs::new(PoolingType::Max, ksize.to_vec())
}

fn mean(ksize: [i32; 3]) -> Pool3dAttrs {
    Pool3dAttrs::new(PoolingType::Avg, ksize.to_vec())
}

fn ndhwc(pool: Pool3dAttrs) -> Pool3dAttrs {
    pool.data_format(VolumeLayout::Ndhwc)
}
