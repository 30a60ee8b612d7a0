//! The operator `blocked_pool2d`.

use autobwd::{
    Attrs, Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{CHANNEL_BLOCK, DividedMat, LaneOf, VectorLoops, Vectorised, with_float},
    register_op,
};

use super::{
    blocks, channels_first, check_blocks, in_blocks,
    spans::{Span, spans},
};
use crate::{
    kernel_helpers::KernelFloat,
    pool::{
        Pool2dOp, PoolAttrs, PoolingType,
        axis_pooling::{AxisPooling, WindowRules},
    },
    windows::{PaddingAlgorithm, dims},
};

/// Bytes of results of a worker that stay in the nearest caches.
const BAND: usize = 1 << 14;

/// The attributes of pooling of images in blocks.
#[derive(Attrs, Clone, Debug)]
pub struct BlockedPoolAttrs {
    /// Height and width of a window.
    #[attr]
    pub ksize: Vec<i32>,
    /// Strides of the windows, vertical and horizontal.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// Padding: vertical and horizontal, or top, bottom, left and right.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// How a window is reduced.
    #[attr]
    pub pooling_type: PoolingType,
    /// Adds a partial window at the end, where the others do not reach it.
    #[attr(default = false)]
    pub ceil_mode: bool,
    /// One window, the whole image; `ksize` and `paddings` are ignored.
    #[attr(default = false)]
    pub global_pooling: bool,
}

impl BlockedPoolAttrs {
    fn axes(&self) -> Result<[AxisPooling; 2]> {
        let BlockedPoolAttrs { ceil_mode, global_pooling, .. } = *self;
        let rules = WindowRules { ceil_mode, exclusive: true, global_pooling, adaptive: false };
        AxisPooling::all(&self.ksize, &self.strides, (&self.paddings, PaddingAlgorithm::Explicit), rules)
    }

    /// The same attributes for images without blocks.
    fn plain(&self) -> PoolAttrs {
        let BlockedPoolAttrs { ksize, strides, paddings, pooling_type, ceil_mode, global_pooling } =
            self.clone();
        let pool = PoolAttrs::new(pooling_type, ksize).strides(strides).paddings(paddings);
        pool.ceil_mode(ceil_mode).global_pooling(global_pooling)
    }
}

/// Max or average pooling of every channel of images in blocks, as `pool2d` of images without blocks: padding is excluded, and NaN
/// counts as the largest number.
#[register_op(grad = Composed, infallible)]
pub struct BlockedPool2d<V = Var> {
    /// Images in blocks, `[n, blocks, height, width, 16]`.
    #[input]
    pub x: V,
    /// As many images and blocks, with one element for each window.
    #[output]
    pub out: V,
    /// Size and position of the windows.
    #[attrs]
    pub pool: BlockedPoolAttrs,
}
impl Infer for BlockedPool2d<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [n, count, height, width] = check_blocks(&self.x)?;
        let [down, across] = self.pool.axes()?;
        let size = [down.count(height, false, &self.x)?, across.count(width, false, &self.x)?];
        self.out.set(self.x.dtype, blocks([n, count, size[0], size[1]]));
        Ok(())
    }
}
impl Kernel for BlockedPool2d<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [_, _, height, width, lanes] = dims(&self.x)?;
        let [_, _, rows, columns, _] = dims(&self.out)?;
        let [down, across] = self.pool.axes()?;
        let (down, across) = (down.windows(height), across.windows(width));
        let (row, plane) = (columns * lanes, height * width * lanes);
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            let band = (BAND / (row * size_of::<T>()).max(1)).clamp(1, rows.max(1));
            let out = DividedMat { data: self.out.slice_mut::<T>()?, cols: rows * row, part: [1, band * row] };
            cx.try_zip_submatrices_mut([out], &mut [(); 0], |[block, number], [mut out], _| {
                let rows = number * band..rows.min((number + 1) * band);
                let x = &x[block * plane..][..plane];
                for vertical in spans(down, height, rows.clone()) {
                    for horizontal in spans(across, width, 0..columns) {
                        let at = (vertical.windows.start - rows.start) * row + horizontal.windows.start * lanes;
                        let spans = [&vertical, &horizontal];
                        let (strides, kind) = ([down.stride, across.stride], self.pool.pooling_type);
                        T::vectorised(Windows { x, width, spans, strides, kind, out: &mut out.row(0)[at..], row });
                    }
                }
                Ok(())
            })
        })
    }
}
impl Composition for BlockedPool2d<Expr> {
    fn compose(&mut self) {
        let x = channels_first(&self.x);
        let pooled = emit(Pool2dOp { x: (&x).into(), out: New, pool: self.pool.plain() }).out;
        self.out = in_blocks(&pooled);
    }
}
autobwd::samples!(
    BlockedPool2d,
    [
        pool(distinct([2, 1, 5, 4, 16]), PoolingType::Max, [2, 3]),
        pool(uniform([1, 2, 5, 4, 16]), PoolingType::Avg, [2, 3]),
        pooled(distinct([1, 1, 5, 7, 16]), PoolingType::Max, |pool| pool
            .strides([2, 1])
            .paddings([1, 0, 0, 1])),
        pooled(uniform([1, 1, 5, 7, 16]), PoolingType::Avg, |pool| pool.strides([1, 2]).paddings([1, 1])),
        pooled(uniform([1, 1, 4, 6, 16]), PoolingType::Avg, |pool| pool.strides([2, 2]).ceil_mode(true)),
        pooled(uniform([2, 1, 3, 7, 16]), PoolingType::Avg, |pool| pool.global_pooling(true)),
        pooled(distinct([1, 1, 3, 2, 16]), PoolingType::Max, |pool| pool.global_pooling(true)),
        pool(uniform([0, 1, 5, 4, 16]), PoolingType::Avg, [2, 3]),
        pool(uniform([2, 0, 5, 4, 16]), PoolingType::Avg, [2, 3]),
        pool(uniform([2, 1, 5, 4, 8]), PoolingType::Avg, [2, 3])
            .fails("`X`: blocks of 16 channels are needed as last dimension"),
        pool(uniform([2, 1, 5, 4, 16]), PoolingType::Avg, [6, 3])
            .fails("`X`: at least 6 rows and columns are needed for a window"),
    ]
);

fn pool(x: Draw, pooling_type: PoolingType, ksize: [i32; 2]) -> BlockedPool2d<Draw> {
    let (strides, paddings, ksize) = (vec![1, 1], vec![0, 0], ksize.to_vec());
    let pool =
        BlockedPoolAttrs { ksize, strides, paddings, pooling_type, ceil_mode: false, global_pooling: false };
    BlockedPool2d { x, out: out(), pool }
}

fn pooled(
    x: Draw,
    kind: PoolingType,
    change: impl FnOnce(BlockedPoolAttrs) -> BlockedPoolAttrs,
) -> BlockedPool2d<Draw> {
    let pool = pool(x, kind, [2, 3]);
    BlockedPool2d { pool: change(pool.pool.clone()), ..pool }
}

/// Some windows over a plane of blocks.
struct Windows<'a, T> {
    x: &'a [T],
    width: usize,
    spans: [&'a Span; 2],
    strides: [usize; 2],
    kind: PoolingType,
    out: &'a mut [T],
    /// Elements of a row of `out`.
    row: usize,
}
impl<T: KernelFloat> VectorLoops<T> for Windows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        match self.kind {
            // NaN counts as the largest number.
            PoolingType::Max => self.reduce::<F>(
                F::from(f64::NEG_INFINITY),
                |a: F, b: F| F::select(b.gt(a), b, F::select(b.equals(b), a, b)),
                F::from(1.0),
            ),
            PoolingType::Avg => {
                let [down, across] = self.spans.map(|span| span.taps.len() as f64);
                self.reduce::<F>(F::from(0.0), |a, b| a + b, F::from(down * across));
            }
        }
    }
}

/// Elements of a row of a window that are reduced independently of each other.
const CHAINS: usize = 4;

impl<T: KernelFloat> Windows<'_, T> {
    /// Sets `out` to the elements of each window, reduced and divided.
    #[inline(always)]
    fn reduce<F: LaneOf<T>>(self, start: F, join: impl Fn(F, F) -> F, divisor: F) {
        let [down, across] = self.spans;
        for i in 0..down.windows.len() {
            let out = &mut self.out[i * self.row..];
            for (j, out) in
                out.as_chunks_mut::<CHANNEL_BLOCK>().0.iter_mut().take(across.windows.len()).enumerate()
            {
                let mut reduced = [start; CHANNEL_BLOCK];
                for tap in 0..down.taps.len() {
                    let first =
                        (down.x + i * self.strides[0] + tap) * self.width + across.x + j * self.strides[1];
                    let (pixels, _) = self.x[first * CHANNEL_BLOCK..].as_chunks::<CHANNEL_BLOCK>();
                    let (groups, rest) = pixels[..across.taps.len()].as_chunks::<CHAINS>();
                    if !groups.is_empty() {
                        let mut chains = [[start; CHANNEL_BLOCK]; CHAINS];
                        for group in groups {
                            for chain in 0..CHAINS {
                                for l in 0..CHANNEL_BLOCK {
                                    chains[chain][l] = join(chains[chain][l], F::new(group[chain][l]));
                                }
                            }
                        }
                        for l in 0..CHANNEL_BLOCK {
                            let halves = [join(chains[0][l], chains[1][l]), join(chains[2][l], chains[3][l])];
                            reduced[l] = join(reduced[l], join(halves[0], halves[1]));
                        }
                    }
                    for pixel in rest {
                        for l in 0..CHANNEL_BLOCK {
                            reduced[l] = join(reduced[l], F::new(pixel[l]));
                        }
                    }
                }
                for l in 0..CHANNEL_BLOCK {
                    out[l] = (reduced[l] / divisor).get();
                }
            }
        }
    }
}
