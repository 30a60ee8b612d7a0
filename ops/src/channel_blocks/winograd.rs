//! The operator `blocked_winograd_conv2d`.

use std::marker::PhantomData;

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{CHANNEL_BLOCK, DividedMat, SubmatrixMut, Vectorised, WindowAxis, WindowProducts, with_float},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::{
    Activation, ActivationAttrs, BlockedConvAttrs, blocks, channels_first, check_bias, check_blocks,
    conv::{PAIR, finished},
    in_blocks,
};
use crate::{
    Math,
    conv::{Conv2dOp, Conv2dTransposeOp, ConvAttrs},
    fill::constants,
    kernel_helpers::{KernelFloat, nth, unbounded},
    math::DimExpr,
    windows::{PaddingAlgorithm, axes, dims},
    winograd::{
        AtPoints, Evaluate, EvaluateFilters, FromPoints, Interpolate, POINTS, POINTS_2D, SUMMED, TILE,
        Tiling, WINDOW, WINDOW_2D, factors,
    },
};

/// Elements of the values at all points of some rows of tiles, such that they stay in the cache.
const BAND: usize = 3 << 17;

/// Convolution of images in blocks of channels with windows of 3 × 3 elements, one apart, by Winograd's algorithm:
/// `output = f(conv2d(input, filter) + bias + residual)`, where `filter` is a square of 6 × 6 values at points for each filter.
///
/// The values of a filter `g` are `G g Gᵀ`, with rows of `G` for the points 0, ±√½, ±√2 and ∞: `[1, 0, 0]`, `[-2/3, ∓√2/3, -1/3]`,
/// `[1/6, ±√2/6, 1/3]`, `[0, 0, 1]`.
#[register_op(grad = Composed, infallible)]
pub struct BlockedWinogradConv2d<V = Var> {
    /// Images in blocks, `[n, blocks, height, width, 16]`.
    #[input]
    pub input: V,
    /// Values of filters at points, `[36, blocks of filters, channels of all blocks, 16]`: filters of a block side by side.
    #[input]
    pub filter: V,
    /// Bias of each filter, one dimension.
    #[input]
    pub bias: V,
    /// Images that are added, with the shape of `output`.
    #[input]
    pub residual: Option<V>,
    /// Images in blocks.
    #[output]
    pub output: V,
    /// Padding: vertical and horizontal, or top, bottom, left and right.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// The function of the results.
    #[attrs]
    pub activation: ActivationAttrs,
}
impl Infer for BlockedWinogradConv2d<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.filter.same_dtype(&self.input)?;
        let [n, count, rows, columns] = check_blocks(&self.input)?;
        let [points, filters, channels, lanes]: [Dim; 4] = self.filter.unpack()?;
        let [lane_count, point_count] = [CHANNEL_BLOCK, POINTS_2D].map(Dim::from);
        let fits = points.agrees(point_count)
            && channels.agrees(count * CHANNEL_BLOCK as i64)
            && lanes.agrees(lane_count);
        self.filter.require(fits, || {
            format!("values of blocks of 16 filters at 36 points for {count} blocks of channels are needed")
        })?;
        check_bias(&self.bias, &self.input, filters)?;
        let conv = BlockedConvAttrs::default().paddings(self.paddings.clone());
        let window = [Dim::from(WINDOW); 2];
        let [rows, columns] = conv.convolved(&self.input, [rows, columns], window)?;
        self.output.set(self.input.dtype, blocks([n, filters, rows, columns]));
        self.residual.as_ref().map_or(Ok(()), |residual| residual.same_as(&self.output))
    }

    fn flops(&self) -> Dim {
        let dims = &self.filter.dims;
        let per_pixel = dims[2] * (2 * POINTS_2D / (TILE * TILE) + 1) as i64;
        self.output.dims.numel() * per_pixel
    }
}

/// Sizes of a convolution.
struct Sizes {
    /// Blocks of channels and of filters.
    blocks: [usize; 2],
    tiling: Tiling,
}

impl Sizes {
    fn of(op: &BlockedWinogradConv2d<Buf<'_>>) -> Result<Sizes> {
        let [_, filters, _, _] = dims(&op.filter)?;
        let ([_, channels, height, width, _], [_, _, rows, columns, _]) =
            (dims(&op.input)?, dims(&op.output)?);
        let [down, across] = axes(&[1, 1], &op.paddings, PaddingAlgorithm::Explicit, &[1, 1])?;
        let before = [down.windows(WINDOW, height).before, across.windows(WINDOW, width).before];
        let tiling = Tiling { x: [height, width], y: [rows, columns], before };
        Ok(Sizes { blocks: [channels, filters], tiling })
    }

    /// Rows of tiles whose values are in the cache.
    fn band(&self) -> usize {
        let [down, across] = self.tiling.tiles();
        let row = POINTS_2D * CHANNEL_BLOCK * across * (self.blocks[0] + self.blocks[1]);
        let bands = down.div_ceil((BAND / row.max(1)).max(1)).max(1);
        down.div_ceil(bands).max(1)
    }

    /// Elements of the values of a band of images and of results.
    fn values(&self) -> [usize; 2] {
        let tiles = self.band() * self.tiling.tiles()[1];
        self.blocks.map(|blocks| blocks.saturating_mul(POINTS_2D * CHANNEL_BLOCK).saturating_mul(tiles))
    }
}

impl Kernel for BlockedWinogradConv2d<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let sizes = Sizes::of(self)?;
        let ([channels, filters], tiling) = (sizes.blocks, sizes.tiling);
        let ([rows, columns], [down, across]) = (tiling.y, tiling.tiles());
        let pixels = tiling.x[0] * tiling.x[1] * CHANNEL_BLOCK;
        let (band, row) = (sizes.band(), columns * CHANNEL_BLOCK);
        let [of_x, of_y] = sizes.values();
        with_float!(self.input, T => {
            let (x, filter, bias) = (self.input.slice::<T>()?, self.filter.slice::<T>()?, self.bias.slice::<T>()?);
            let residual = self.residual.slice::<T>()?;
            let bounds = self.activation.bounds::<T>(residual.is_some());
            let image_len = [channels * pixels, filters * rows * row];
            let output = self.output.slice_mut::<T>()?;
            cx.scratch(of_x + of_y, |scratch| {
                let (v, m) = scratch.split_at_mut(of_x);
                for (image, y) in output.chunks_mut(image_len[1].max(1)).enumerate() {
                    let x = nth(x, image, image_len[0]);
                    for first in (0..down).step_by(band) {
                        let tile_rows = first..down.min(first + band);
                        let tiles = tile_rows.len() * across;
                        let share = POINTS_2D * tiles * CHANNEL_BLOCK;
                        let (v, m) = (&mut v[..channels * share], &mut m[..filters * share]);
                        cx.try_chunks_mut(v, share, &mut [(); 0], |block, v, _| {
                            let size = [POINTS_2D * tiles, CHANNEL_BLOCK];
                            T::vectorised(Evaluate::<_, _, POINTS, POINTS_2D> {
                                transform: PhantomData::<AtPoints>,
                                tiling,
                                rows: tile_rows.clone(),
                                pixels: nth(x, block, pixels),
                                first_row: 0,
                                values: &mut SubmatrixMut::of(v, size, CHANNEL_BLOCK)?,
                                tiles,
                                at: 0,
                            });
                            Ok(())
                        })?;
                        let products = DividedMat { data: &mut *m, cols: share, part: [PAIR, tiles * CHANNEL_BLOCK] };
                        let v = &*v;
                        cx.try_zip_submatrices_mut([products], &mut [(); 0], |[pair, point], [mut out], _| {
                            let block = channels * CHANNEL_BLOCK * CHANNEL_BLOCK;
                            let of_filters = (point * filters + pair * PAIR) * block;
                            for first in (0..channels.max(1)).step_by(SUMMED / CHANNEL_BLOCK) {
                                let at = first * share + point * tiles * CHANNEL_BLOCK;
                                let products = WindowProducts {
                                    x: &v[at.min(v.len())..],
                                    filters: &filter[of_filters + first * CHANNEL_BLOCK * CHANNEL_BLOCK..],
                                    block,
                                    bias: &[],
                                    add: first > 0,
                                    bounds: unbounded(),
                                    elements: [
                                        WindowAxis {
                                            count: (channels - first).min(SUMMED / CHANNEL_BLOCK),
                                            x: share,
                                            other: CHANNEL_BLOCK * CHANNEL_BLOCK,
                                        },
                                        WindowAxis { count: 1, x: 0, other: 0 },
                                        WindowAxis { count: 1, x: 0, other: 0 },
                                    ],
                                    channels: CHANNEL_BLOCK,
                                    last_channels: CHANNEL_BLOCK,
                                    windows: [
                                        WindowAxis { count: 1, x: 0, other: 0 },
                                        WindowAxis { count: tiles, x: CHANNEL_BLOCK, other: CHANNEL_BLOCK },
                                    ],
                                };
                                products.write(&mut out, 0..PAIR.min(filters - pair * PAIR), 0)?;
                            }
                            Ok(())
                        })?;
                        let (m, part) = (&*m, [1, band * TILE * row]);
                        let y = DividedMat { data: &mut *y, cols: rows * row, part };
                        cx.try_zip_submatrices_mut([y], &mut [(); 0], |[block, number], [mut y], _| {
                            if number * band != first {
                                return Ok(());
                            }
                            let y = y.row(0);
                            let Some(bias) = bias[block * CHANNEL_BLOCK..].first_chunk() else { return Ok(()) };
                            T::vectorised(Interpolate {
                                tiling,
                                rows: tile_rows.clone(),
                                products: nth(m, block, share),
                                size: [tiles, CHANNEL_BLOCK],
                                at: 0,
                                bias,
                                bounds,
                                pixels: &mut *y,
                            });
                            let at = image * image_len[1] + (block * rows + first * TILE) * row;
                            self.activation.finish(y, residual.map(|residual| &residual[at..][..y.len()]));
                            Ok(())
                        })?;
                    }
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let [of_x, of_y] = Sizes::of(self).map_or([0, 0], |sizes| sizes.values());
        of_x.saturating_add(of_y).saturating_mul(self.input.dtype().size())
    }
}
impl Composition for BlockedWinogradConv2d<Expr> {
    fn compose(&mut self) {
        let (x, values) = (channels_first(&self.input), &self.filter);
        let padding = match axes::<2>(&[1, 1], &self.paddings, PaddingAlgorithm::Explicit, &[1, 1]) {
            Ok(axes) => [0, 1].map(|i| axes[i].padding_of(&(WINDOW as i64).into(), &x.dim(2 + i as i32))),
            Err(error) => return self.output = x.builder().failed(error),
        };
        let (tile, points) = (TILE as i64, POINTS_2D as i64);
        let size =
            [0, 1].map(|i| x.dim(2 + i as i32) + &padding[i][0] + &padding[i][1] - (WINDOW as i64 - 1));
        let tiles = [0, 1].map(|i| (&size[i] + (tile - 1)) / tile);
        let around = [0, 1].map(|i| {
            let rest = &tiles[i] * tile + (WINDOW as i64 - 1) - x.dim(2 + i as i32) - &padding[i][0];
            [padding[i][0].clone(), rest]
        });
        let (n, channels, filters) = (x.dim(0), x.dim(1), values.dim(1) * CHANNEL_BLOCK as i64);
        let [down, across] = &tiles;
        let number = |n: i64| DimExpr::from(n);
        // Tiles are windows, and evaluation and interpolation are convolutions of single channels.
        let planes = x.reshape_to(&[&n * &channels, number(1), x.dim(2), x.dim(3)]);
        let none = || [0, 0].map(DimExpr::from);
        let planes = planes.pad_to(&[none(), none(), around[0].clone(), around[1].clone()], 0.0);
        let conv = ConvAttrs::default().strides(vec![TILE as i32; 2]);
        let filter = factors::<AtPoints, POINTS, POINTS, POINTS_2D>();
        let square = |n: usize| [points, 1, n as i64, n as i64].map(DimExpr::from);
        let filter = constants(values, filter.as_flattened()).reshape_to(&square(POINTS));
        let op =
            Conv2dOp { input: (&planes).into(), filter: (&filter).into(), output: New, conv: conv.clone() };
        let v = emit(op).output.reshape_to(&[
            n.clone(),
            channels.clone(),
            number(points),
            down.clone(),
            across.clone(),
        ]);
        let v =
            v.transpose(&[2, 0, 3, 4, 1]).reshape_to(&[number(points), &n * down * across, channels.clone()]);
        let u = values.transpose(&[0, 2, 1, 3]).reshape_to(&[number(points), channels, filters.clone()]);
        let m = v.matmul(&u).reshape_to(&[
            number(points),
            n.clone(),
            down.clone(),
            across.clone(),
            filters.clone(),
        ]);
        let m = m.transpose(&[1, 4, 0, 2, 3]).reshape_to(&[
            &n * &filters,
            number(points),
            down.clone(),
            across.clone(),
        ]);
        let filter = factors::<FromPoints, POINTS, TILE, POINTS_2D>();
        let filter: Vec<f64> =
            (0..POINTS_2D).flat_map(|point| filter.iter().map(move |pixel| pixel[point])).collect();
        let op = Conv2dTransposeOp {
            input: (&m).into(),
            filter: (&constants(values, &filter).reshape_to(&square(TILE))).into(),
            bias: None,
            output: New,
            conv,
            output_padding: vec![],
            output_size: vec![],
        };
        let y = emit(op).output.slice_to(2, &0.into(), &size[0]).slice_to(3, &0.into(), &size[1]);
        let y = y.reshape_to(&[n, filters, size[0].clone(), size[1].clone()]) + self.bias.unsqueeze(&[1, 2]);
        self.output = finished(&self.activation, in_blocks(&y), self.residual.as_ref());
    }
}

/// The values of filters `[filters, channels, 3, 3]` at points, `[36, blocks of filters, channels of all blocks, 16]`, with
/// zeros for missing filters and channels.
pub(crate) fn filters_at_points<T: KernelFloat>(filter: &[T], [filters, channels]: [usize; 2]) -> Vec<T> {
    let [filter_blocks, channel_blocks] = [filters, channels].map(|n| n.div_ceil(CHANNEL_BLOCK));
    let of_block = channel_blocks * CHANNEL_BLOCK * CHANNEL_BLOCK;
    let mut values = vec![T::ZERO; POINTS_2D * filter_blocks * of_block];
    for block in 0..filter_blocks {
        for first in (0..channels).step_by(CHANNEL_BLOCK) {
            let mut elements = [T::ZERO; CHANNEL_BLOCK * WINDOW_2D * CHANNEL_BLOCK];
            for l in 0..CHANNEL_BLOCK.min(filters - block * CHANNEL_BLOCK) {
                let from = &filter[((block * CHANNEL_BLOCK + l) * channels + first) * WINDOW_2D..];
                let from = &from[..CHANNEL_BLOCK.min(channels - first) * WINDOW_2D];
                elements[l..].iter_mut().step_by(CHANNEL_BLOCK).zip(from).for_each(|(to, x)| *to = *x);
            }
            T::vectorised(EvaluateFilters {
                filters: &elements,
                steps: [WINDOW_2D * CHANNEL_BLOCK, CHANNEL_BLOCK],
                channels: CHANNEL_BLOCK.min(channels - first),
                mirrored: false,
                values: &mut values[block * of_block + first * CHANNEL_BLOCK..],
                share: filter_blocks * of_block,
                width: CHANNEL_BLOCK,
            });
        }
    }
    values
}

autobwd::samples!(
    BlockedWinogradConv2d,
    [
        winograd([2, 1, 3, 7, 16], 1),
        BlockedWinogradConv2d {
            activation: ActivationAttrs::default()
                .fuse_activation(Activation::HardSigmoid)
                .fuse_alpha(1e-3)
                .fuse_beta(0.5_f32),
            ..winograd([1, 2, 3, 4, 16], 1)
        },
        BlockedWinogradConv2d {
            paddings: vec![0, 2, 1, 0],
            residual: Some(uniform([1, 1, 4, 3, 16])),
            activation: ActivationAttrs::default().fuse_activation(Activation::Swish).fuse_beta(1.5_f32),
            ..winograd([1, 1, 4, 4, 16], 1)
        },
        winograd([0, 1, 4, 5, 16], 1),
        winograd([1, 0, 4, 5, 16], 1),
        winograd([1, 1, 2, 5, 16], 1).fails("`Input`: at least 3 rows and columns are needed for a window"),
        BlockedWinogradConv2d { filter: uniform([36, 1, 32, 16]), ..winograd([1, 1, 4, 5, 16], 1) }.fails(
            "`Filter`: values of blocks of 16 filters at 36 points for 1 blocks of channels are needed"
        ),
        BlockedWinogradConv2d { bias: uniform([3]), ..winograd([1, 1, 4, 5, 16], 1) }
            .fails("`Bias`: a number for each of 16 channels is needed"),
    ]
);

fn winograd(input: [usize; 5], filters: usize) -> BlockedWinogradConv2d<Draw> {
    BlockedWinogradConv2d {
        input: uniform(input),
        filter: uniform([POINTS_2D, filters, input[1] * CHANNEL_BLOCK, CHANNEL_BLOCK]),
        bias: uniform([filters * CHANNEL_BLOCK]),
        residual: None,
        output: out(),
        paddings: vec![0, 0],
        activation: ActivationAttrs::default(),
    }
}
