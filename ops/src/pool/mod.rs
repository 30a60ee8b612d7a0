//! Pooling of images and volumes: every window becomes one element.

pub(crate) mod axis_pooling;
mod composition;
mod max_pool_2x2;
mod max_pool_with_index;
mod pool3d;
mod pooling;
mod small_windows;
mod unpool;

pub use max_pool_with_index::{MaxPool2dWithIndex, MaxPool3dWithIndex};
pub use pool3d::{Pool3dAttrs, Pool3dOp};
pub use unpool::{Unpool, Unpool3d};

use autobwd::{
    Attrs, Buf, Composition, Cx, Expr, GradCx, GradRule, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::{Vectorised, with_float},
    register_op,
};

use crate::{kernel_helpers::nth, norm::DataLayout, windows::PaddingAlgorithm};
use pooling::largest;
use small_windows::SmallWindows;

autobwd::op::attr_enum! {
    /// How a window is reduced.
    pub enum PoolingType {
        /// Maximum of its elements.
        Max = "max",
        /// Mean of its elements.
        Avg = "avg",
    }
}

/// The attributes of pooling.
#[derive(Attrs, Clone, Debug)]
pub struct PoolAttrs {
    /// Height and width of a window; with `adaptive`, of the output.
    #[attr]
    pub ksize: Vec<i32>,
    /// Strides of the windows, vertical and horizontal.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// Padding: vertical and horizontal, or top, bottom, left and right.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// Whether padding is explicit, `SAME` or `VALID`.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// How a window is reduced.
    #[attr]
    pub pooling_type: PoolingType,
    /// Adds a partial window at the end, where the others do not reach it.
    #[attr(default = false)]
    pub ceil_mode: bool,
    /// Averages leave padding out. Otherwise padding counts as zeros, at the bottom and right no more than at the top
    /// and left.
    #[attr(default = true)]
    pub exclusive: bool,
    /// One window, the whole image; `ksize` and `paddings` are ignored.
    #[attr(default = false)]
    pub global_pooling: bool,
    /// Adaptive pooling: `ksize` windows that divide the image evenly; `strides` and `paddings` are ignored.
    #[attr(default = false)]
    pub adaptive: bool,
    /// Order of the dimensions of images (`NCHW`, `NHWC`).
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}

impl PoolAttrs {
    /// Windows of `ksize` elements with stride 1.
    pub fn new(pooling_type: PoolingType, ksize: Vec<i32>) -> PoolAttrs {
        PoolAttrs {
            ksize,
            strides: vec![1, 1],
            paddings: vec![0, 0],
            padding_algorithm: PaddingAlgorithm::Explicit,
            pooling_type,
            ceil_mode: false,
            exclusive: true,
            global_pooling: false,
            adaptive: false,
            data_format: DataLayout::Nchw,
        }
    }
}

/// Max or average pooling of every channel.
///
/// Padding is excluded. NaN counts as the largest number. The first of equal elements of a window gets the whole gradient
/// of a maximum.
#[register_op(grad = Pool2dGrad, infallible)]
pub struct Pool2dOp<V = Var> {
    /// Images, in the order that `data_format` says.
    #[input]
    pub x: V,
    /// As many images and channels, with one element for each window.
    #[output]
    pub out: V,
    /// Size and position of the windows.
    #[attrs]
    pub pool: PoolAttrs,
}
impl Infer for Pool2dOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, self.pool.pooled(&self.x)?);
        Ok(())
    }
}
impl Kernel for Pool2dOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let pooling = self.pool.pooling(&self.x, &self.out)?;
        let ([x_len, out_len], kind) = (pooling.lens(), self.pool.pooling_type);
        let small = pooling.small();
        let copied = small.map_or(0, |rows| rows.scratch());
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            pooling.each_plane(cx, (self.out.slice_mut::<T>()?, out_len), copied, |plane, out, scratch| {
                let x = nth(x, plane, x_len);
                match kind {
                    PoolingType::Max if pooling.halves() => pooling.maxima(x, out),
                    _ if let Some(rows) = small => {
                        T::vectorised(SmallWindows { rows, kind, x, out: &mut *out, scratch });
                        if kind == PoolingType::Avg {
                            pooling.divide(out);
                        }
                    }
                    PoolingType::Max => {
                        out.fill(T::NEG_INFINITY);
                        pooling.strips(|strip| strip.gather(x, out, |x, out| *out = largest(x, *out)));
                    }
                    PoolingType::Avg => {
                        out.fill(0.0);
                        pooling.strips(|strip| strip.gather(x, out, |x, out| *out += x.iter().sum::<T>()));
                        pooling.divide(out);
                    }
                }
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let small = self.pool.pooling(&self.x, &self.out).ok().and_then(|pooling| pooling.small());
        small.map_or(0, |rows| rows.scratch() * workers * self.x.dtype().size())
    }
}
impl Composition for Pool2dOp<Expr> {
    fn compose(&mut self) {
        self.out = self.pool.compose(&self.x);
    }
}
autobwd::samples!(
    Pool2dOp,
    [
        pool(distinct([2, 3, 5, 4]), max([2, 3])),
        pool(uniform([2, 3, 5, 4]), mean([2, 3])),
        pool(distinct([2, 5, 4, 3]), nhwc(max([2, 3]))),
        pool(uniform([2, 5, 4, 3]), nhwc(mean([2, 3]))),
        pool(distinct([2, 3, 6, 4]), max([2, 2]).strides([2, 2])),
        pool(distinct([2, 3, 6, 16]), max([2, 2]).strides([2, 2])),
        pool(distinct([1, 2, 7, 5]), max([2, 3]).strides([3, 2])),
        // Rows of more than one loop step.
        pool(distinct([1, 2, 3, 19]), max([3, 3]).paddings([1, 1])),
        pool(uniform([1, 2, 3, 18]), mean([3, 3]).paddings([1, 1])),
        pool(distinct([1, 1, 3, 37]), max([3, 3]).strides([2, 2]).paddings([1, 1])),
        pool(uniform([1, 1, 3, 36]), mean([3, 2]).strides([2, 2]).paddings([1, 0]).ceil_mode(true)),
        pool(uniform([1, 7, 5, 2]), nhwc(mean([2, 3])).strides([3, 2])),
        pool(distinct([1, 2, 5, 4]), max([2, 3]).paddings([1, 2])),
        pool(distinct([1, 2, 3, 4]), max([2, 5]).paddings([1, 0, 2, 3])),
        pool(uniform([1, 2, 5, 4]), mean([2, 3]).paddings([1, 2])),
        pool(uniform([1, 2, 5, 4]), mean([2, 3]).paddings([1, 2]).exclusive(false)),
        pool(uniform([1, 5, 4, 2]), nhwc(mean([3, 4])).paddings([0, 2, 2, 1]).exclusive(false)),
        pool(distinct([1, 2, 6, 8]), max([3, 4]).ceil_mode(true).strides([2, 3])),
        pool(
            uniform([1, 2, 6, 8]),
            mean([3, 4]).ceil_mode(true).strides([2, 3]).paddings([1, 0]).exclusive(false)
        ),
        pool(
            uniform([1, 2, 5, 4]),
            mean([3, 2]).padding_algorithm(PaddingAlgorithm::Same).strides([2, 1]).paddings([7, 7])
        ),
        pool(distinct([1, 2, 5, 4]), max([3, 2]).padding_algorithm(PaddingAlgorithm::Valid).paddings([7, 7])),
        pool(distinct([2, 3, 5, 4]), max([-1, -1]).global_pooling(true).paddings([7, 7])),
        pool(uniform([2, 5, 4, 3]), nhwc(mean([1, 1])).global_pooling(true)),
        pool(distinct([1, 2, 7, 5]), max([3, 4]).adaptive(true).paddings([7, 7])),
        pool(uniform([1, 2, 7, 5]), mean([3, 6]).adaptive(true).exclusive(false)),
        pool(uniform([1, 7, 5, 2]), nhwc(mean([3, 4])).adaptive(true)),
        pool(distinct([1, 2, 3, 4]), max([1, 1]).adaptive(true).global_pooling(true)),
        // Windows that lie entirely in the padding.
        pool(uniform([1, 2, 5, 4]), mean([2, 1]).paddings([2, 0, 0, 3]).exclusive(false)),
        pool(distinct([0, 3, 5, 4]), max([2, 3])),
        pool(uniform([2, 5, 4, 0]), nhwc(mean([2, 3]))),
        pool(given([1, 1, 2, 3], [1.0, 2.0, 2.0, 2.0, 0.0, 2.0]), max([2, 2]))
            .not_a_derivative("the first of equal elements gets the whole gradient"),
        pool(given([1, 1, 2, 3], [f64::NAN, 2.0, 1.0, 0.0, 3.0, 4.0]), max([2, 2]))
            .not_a_derivative("NaN has none"),
        pool(given([1, 1, 2, 1], [f64::NEG_INFINITY, f64::NEG_INFINITY]), max([2, 1]))
            .not_a_derivative("infinity does not change"),
        pool(distinct([2, 3, 5]), max([2, 3])).fails("`X`: 4 dimensions are needed"),
        pool(integers_below(9, [2, 3, 5, 4]), max([2, 3])).fails("`X`: floating point numbers are needed"),
        pool(distinct([2, 3, 5, 4]), max([6, 3]))
            .fails("`X`: at least 6 rows and columns are needed for a window"),
        pool(distinct([2, 3, 0, 4]), max([2, 3]))
            .fails("`X`: at least 2 rows and columns are needed for a window"),
        pool(distinct([2, 3, 0, 4]), mean([2, 3]).global_pooling(true))
            .fails("`X`: at least 1 rows and columns are needed for a window"),
        pool(distinct([2, 3, 5, 4]), max([2, 3]).paddings([0, 3]))
            .fails("`X`: a window would contain padding only"),
        pool(uniform([1, 2, 4, 3]), mean([2, 1]).ceil_mode(true).strides([1, 3]))
            .fails("`X`: a window would contain padding only"),
        pool(distinct([2, 3, 5, 4]), max([0, 3]))
            .fails("attribute `ksize`: 2 numbers of at least 1 are needed, not [0, 3]"),
        pool(distinct([2, 3, 5, 4]), max([2, 3]).strides([0, 1]))
            .fails("attribute `strides`: 2 numbers of at least 1 are needed, not [0, 1]"),
        pool(distinct([2, 3, 5, 4]), max([2, 3]).paddings([1]))
            .fails("attribute `paddings`: 2 or 4 numbers of at least 0 are needed, not [1]"),
    ]
);

fn pool(x: Draw, pool: PoolAttrs) -> Pool2dOp<Draw> {
    Pool2dOp { x, out: out(), pool }
}

fn max(ksize: [i32; 2]) -> PoolAttrs {
    PoolAttrs::new(PoolingType::Max, ksize.to_vec())
}

fn mean(ksize: [i32; 2]) -> PoolAttrs {
    PoolAttrs::new(PoolingType::Avg, ksize.to_vec())
}

fn nhwc(pool: PoolAttrs) -> PoolAttrs {
    pool.data_format(DataLayout::Nhwc)
}

/// Max pooling: `dx = dout` for the first maximum of a window in row-major order; average pooling: `dx = dout / n` for
/// all `n` elements. Overlapping windows add up.
#[register_op(grad_of = Pool2dOp, grad = Pool2dGradRule, inferred, infallible)]
pub struct Pool2dGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub pool: PoolAttrs,
}
impl Kernel for Pool2dGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let pooling = self.pool.pooling(&self.x, &self.out)?;
        let ([x_len, out_len], kind) = (pooling.lens(), self.pool.pooling_type);
        let small = pooling.small_maxima(kind);
        let scratch = out_len + small.map_or(0, |rows| rows.scratch());
        with_float!(self.dout, T => {
            let (x, out, dout) = (self.x.slice::<T>()?, self.out.slice::<T>()?, self.dout.slice::<T>()?);
            pooling.each_plane(cx, (self.dx.slice_mut::<T>()?, x_len), scratch, |plane, dx, scratch| {
                let (left, copied) = scratch.split_at_mut(out_len);
                let (x, out, dout) =
                    (nth(x, plane, x_len), nth(out, plane, out_len), nth(dout, plane, out_len));
                if kind == PoolingType::Max && pooling.halves() {
                    return pooling.to_maxima(dx, x, out, dout);
                }
                dx.fill(0.0);
                if let Some(rows) = small {
                    return pooling.add_to_first_maxima(rows, [x, out, dout], dx, (left, copied));
                }
                left.copy_from_slice(dout);
                match kind {
                    PoolingType::Max => pooling.strips(|strip| {
                        strip.scatter((dx, x), (out, left), |dx, x, out, left| {
                            for (dx, x) in dx.iter_mut().zip(x) {
                                let first = *x == out;
                                *dx += if first { *left } else { 0.0 };
                                *left = if first { 0.0 } else { *left };
                            }
                        });
                    }),
                    PoolingType::Avg => {
                        pooling.divide(left);
                        pooling.strips(|strip| {
                            strip.scatter((dx, x), (out, left), |dx, _, _, left| {
                                dx.iter_mut().for_each(|dx| *dx += *left);
                            });
                        });
                    }
                }
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        self.pool.gradient_bytes(&self.x, &self.out, workers)
    }
}

/// `ddout` = `pool2d` of `ddx`; for max pooling, the elements of `ddx` at the first maxima.
#[derive(Debug)]
pub struct Pool2dGradRule;
impl GradRule<Pool2dGrad> for Pool2dGradRule {
    fn emit(fwd: &Pool2dGrad, g: &mut GradCx<'_>) {
        let Pool2dGrad { x, out, dout, dx, .. } = *fwd;
        let (ddx, pool) = (g.grad(dx), fwd.pool.clone());
        let Some(ddout) = g.wanted(dout) else { return };
        match fwd.pool.pooling_type {
            PoolingType::Max => g.push(Pool2dGradGrad { x, out, ddx, ddout, pool }),
            PoolingType::Avg => g.push(Pool2dOp { x: ddx, out: ddout, pool }),
        }
    }
}

/// `ddout` = the elements of `ddx` at the first maximum of each window; 0 for NaN.
#[register_op(grad_of = Pool2dGrad, grad = Pool2dGradGradRule)]
pub struct Pool2dGradGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub ddx: V,
    #[output]
    pub ddout: V,
    #[attrs]
    pub pool: PoolAttrs,
}
impl Infer for Pool2dGradGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.pool.check(&self.x, &self.out)?;
        self.ddx.same_as(&self.x)?;
        self.ddout.like(&self.out);
        Ok(())
    }
}
impl Kernel for Pool2dGradGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let pooling = self.pool.pooling(&self.x, &self.out)?;
        let [x_len, out_len] = pooling.lens();
        with_float!(self.x, T => {
            let (x, out, ddx) = (self.x.slice::<T>()?, self.out.slice::<T>()?, self.ddx.slice::<T>()?);
            pooling.each_plane(cx, (self.ddout.slice_mut::<T>()?, out_len), out_len, |plane, ddout, left| {
                let (x, out, ddx) = (nth(x, plane, x_len), nth(out, plane, out_len), nth(ddx, plane, x_len));
                ddout.fill(0.0);
                left.fill(1.0);
                pooling.strips(|strip| {
                    for (k, at) in strip.out().enumerate() {
                        for (x, ddx) in x[strip.under(k)].iter().zip(&ddx[strip.under(k)]) {
                            if *x == out[at] && left[at] > 0.0 {
                                (ddout[at], left[at]) = (*ddx, 0.0);
                            }
                        }
                    }
                });
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        self.pool.plane_bytes(&self.x, &self.out, workers)
    }
}

/// `dddx = pool2d_grad` of the gradient of `ddout`.
#[derive(Debug)]
pub struct Pool2dGradGradRule;
impl GradRule<Pool2dGradGrad> for Pool2dGradGradRule {
    fn emit(fwd: &Pool2dGradGrad, g: &mut GradCx<'_>) {
        let Pool2dGradGrad { x, out, ddx, ddout, .. } = *fwd;
        let dout = g.grad(ddout);
        if let Some(dx) = g.wanted(ddx) {
            g.push(Pool2dGrad { x, out, dout, dx, pool: fwd.pool.clone() });
        }
    }
}
