//! The operators `channel_blocks` and `from_channel_blocks`.

use autobwd::{
    Buf, Composed, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::{CHANNEL_BLOCK, DividedMat, interleave_channels, separate_channels, with_float},
    register_op,
    tensor::Dim,
};

use super::{blocks, channels_first, check_blocks, in_blocks};
use crate::{
    Math,
    kernel_helpers::{PART, matrix},
    math::DimExpr,
    windows::dims,
};

/// Images with their channels in blocks of 16: `out[n, b, y, x, i] = x[n, 16 * b + i, y, x]`.
///
/// The last block is filled up with zeros.
#[register_op(grad = Composed, infallible)]
pub struct ChannelBlocks<V = Var> {
    /// Images, `[n, channels, height, width]`.
    #[input]
    pub x: V,
    /// The images, `[n, channels / 16 rounded up, height, width, 16]`.
    #[output]
    pub out: V,
}
impl Infer for ChannelBlocks<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [n, channels, height, width] = self.x.unpack()?;
        let count = (channels + (CHANNEL_BLOCK as i64 - 1)) / CHANNEL_BLOCK as i64;
        self.out.set(self.x.dtype, blocks([n, count, height, width]));
        Ok(())
    }
}
impl Kernel for ChannelBlocks<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [_, channels, height, width] = dims(&self.x)?;
        let (pixels, count) = (height * width, channels.div_ceil(CHANNEL_BLOCK));
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            let out = self.out.slice_mut::<T>()?;
            cx.try_chunks_mut(out, pixels * CHANNEL_BLOCK, &mut [(); 0], |block, out, _| {
                let (image, first) = (block / count, block % count * CHANNEL_BLOCK);
                let planes = &x[(image * channels + first) * pixels..];
                let planes = &planes[..pixels * CHANNEL_BLOCK.min(channels - first)];
                interleave_channels(matrix(planes, pixels).into(), out)
            })
        })
    }
}
impl Composition for ChannelBlocks<Expr> {
    fn compose(&mut self) {
        let (x, lanes) = (&self.x, CHANNEL_BLOCK as i64);
        let missing = (x.dim(1) + (lanes - 1)) / lanes * lanes - x.dim(1);
        let none = || [0, 0].map(DimExpr::from);
        self.out = in_blocks(&x.pad_to(&[none(), [0.into(), missing], none(), none()], 0.0));
    }
}
autobwd::samples!(
    ChannelBlocks,
    [
        ChannelBlocks { x: uniform([2, 3, 4, 5]), out: out() },
        ChannelBlocks { x: uniform([1, 18, 5, 4]), out: out() },
        ChannelBlocks { x: uniform([1, 32, 2, 3]), out: out() },
        ChannelBlocks { x: uniform([0, 3, 4, 5]), out: out() },
        ChannelBlocks { x: uniform([2, 0, 4, 5]), out: out() },
        ChannelBlocks { x: uniform([2, 3, 0, 5]), out: out() },
        ChannelBlocks { x: uniform([2, 3, 4]), out: out() }.fails("`X`: 4 dimensions are needed"),
        ChannelBlocks { x: integers_below(3, [2, 3, 4, 5]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// The inverse of `channel_blocks`: `out[n, 16 * b + i, y, x] = x[n, b, y, x, i]` for the first `channels` channels.
#[register_op(grad = Composed, infallible)]
pub struct FromChannelBlocks<V = Var> {
    /// Images in blocks, `[n, blocks, height, width, 16]`.
    #[input]
    pub x: V,
    /// The images, `[n, channels, height, width]`.
    #[output]
    pub out: V,
    /// Channels of the images.
    #[attr(min = 0)]
    pub channels: i32,
}
impl Infer for FromChannelBlocks<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [n, count, height, width] = check_blocks(&self.x)?;
        let needed = (self.channels as usize).div_ceil(CHANNEL_BLOCK);
        self.x.require(count.agrees(Dim::from(needed)), || {
            format!("{needed} blocks are needed for {} channels", self.channels)
        })?;
        let dims = [n, Dim::from(self.channels as usize), height, width];
        self.out.set(self.x.dtype, dims.into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Kernel for FromChannelBlocks<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [_, channels, height, width] = dims(&self.out)?;
        let (pixels, count) = (height * width, channels.div_ceil(CHANNEL_BLOCK));
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            let images = self.out.slice_mut::<T>()?.chunks_mut((channels * pixels).max(1));
            for (image, out) in images.enumerate() {
                let out = DividedMat { data: out, cols: pixels, part: [CHANNEL_BLOCK, PART / CHANNEL_BLOCK] };
                cx.try_zip_submatrices_mut([out], &mut [(); 0], |[block, number], [mut out], _| {
                    let first = (image * count + block) * pixels + number * (PART / CHANNEL_BLOCK);
                    let x = &x[first * CHANNEL_BLOCK..];
                    let n = (pixels - number * (PART / CHANNEL_BLOCK)).min(PART / CHANNEL_BLOCK);
                    separate_channels(&x[..n * CHANNEL_BLOCK], &mut out)
                })?;
            }
            Ok(())
        })
    }
}
impl Composition for FromChannelBlocks<Expr> {
    fn compose(&mut self) {
        let all = channels_first(&self.x);
        self.out = all.slice_to(1, &0.into(), &i64::from(self.channels).into());
    }
}
autobwd::samples!(
    FromChannelBlocks,
    [
        FromChannelBlocks { x: uniform([2, 1, 4, 5, 16]), out: out(), channels: 3 },
        FromChannelBlocks { x: uniform([1, 2, 5, 4, 16]), out: out(), channels: 18 },
        FromChannelBlocks { x: uniform([1, 2, 2, 3, 16]), out: out(), channels: 32 },
        FromChannelBlocks { x: uniform([0, 1, 4, 5, 16]), out: out(), channels: 3 },
        FromChannelBlocks { x: uniform([2, 0, 4, 5, 16]), out: out(), channels: 0 },
        FromChannelBlocks { x: uniform([2, 1, 0, 5, 16]), out: out(), channels: 3 },
        FromChannelBlocks { x: uniform([2, 1, 4, 5, 8]), out: out(), channels: 3 }
            .fails("`X`: blocks of 16 channels are needed as last dimension"),
        FromChannelBlocks { x: uniform([2, 3, 4, 5]), out: out(), channels: 3 }
            .fails("`X`: 5 dimensions are needed"),
        FromChannelBlocks { x: uniform([2, 1, 4, 5, 16]), out: out(), channels: 17 }
            .fails("`X`: 2 blocks are needed for 17 channels"),
        FromChannelBlocks { x: integers_below(3, [2, 1, 4, 5, 16]), out: out(), channels: 3 }
            .fails("`X`: floating point numbers are needed"),
    ]
);
