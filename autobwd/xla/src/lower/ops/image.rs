//! Images: permutations of elements, padding, positions, and windows as columns.

use autobwd_ops::{
    image::{
        AffineGrid, AffineGridGrad, ChannelShuffle, ChannelShuffleGrad, Fold, FoldGrad, Pad3d, Pad3dGrad,
        PadMode, PixelShuffle, PixelShuffleGrad, PixelUnshuffle, PixelUnshuffleGrad, TemporalShift,
        TemporalShiftGrad, Unfold, UnfoldGrad, VolumeLayout, WindowAttrs,
    },
    norm::DataLayout,
};

use super::prelude::*;

family!(
    AffineGrid,
    AffineGridGrad,
    ChannelShuffle,
    ChannelShuffleGrad,
    Fold,
    FoldGrad,
    Pad3d,
    Pad3dGrad,
    PixelShuffle,
    PixelShuffleGrad,
    PixelUnshuffle,
    PixelUnshuffleGrad,
    TemporalShift,
    TemporalShiftGrad,
    Unfold,
    UnfoldGrad
);

/// The axis of channels, and the first one of height and width.
fn image_axes(format: DataLayout) -> (usize, usize) {
    match format {
        DataLayout::Nchw => (1, 2),
        DataLayout::Nhwc => (3, 1),
    }
}

/// An axis as two axes, the first of them with `parts` elements.
fn split(x: &Hlo, axis: usize, parts: usize) -> Hlo {
    let mut dims = x.dims().to_vec();
    dims.splice(axis..=axis, [parts, x.dims()[axis].checked_div(parts).unwrap_or(0)]);
    x.reshape(&dims)
}

/// An axis and the one behind it as one axis.
fn merge(x: &Hlo, axis: usize) -> Hlo {
    let mut dims = x.dims().to_vec();
    let behind = dims.remove(axis + 1);
    dims[axis] *= behind;
    x.reshape(&dims)
}

/// Each `factor²` channels as squares of pixels.
fn pixels_from_channels(x: &Hlo, factor: i32, format: DataLayout) -> Hlo {
    let (factor, (channels, rows)) = (factor.max(1) as usize, image_axes(format));
    let parts = split(&split(x, channels, x.dims()[channels] / (factor * factor)), channels + 1, factor);
    // In memory: channels, rows in a square, columns in it, or all pixels before these.
    merge(&merge(&parts.transpose(&[0, 1, 4, 2, 5, 3]), rows), rows + 1)
}

/// Each square of pixels as `factor²` channels.
fn channels_from_pixels(x: &Hlo, factor: i32, format: DataLayout) -> Hlo {
    let (factor, (channels, rows)) = (factor.max(1) as usize, image_axes(format));
    let columns = split(x, rows + 1, x.dims()[rows + 1] / factor);
    let parts = split(&columns, rows, x.dims()[rows] / factor);
    let parts = parts.transpose(&[0, 1, 3, 5, 2, 4]);
    merge(&merge(&parts, channels), channels)
}

/// Channels in groups: those of equal positions in their groups become neighbours.
fn shuffle_channels(x: &Hlo, groups: usize, format: DataLayout) -> Hlo {
    let (channels, _) = image_axes(format);
    merge(&split(x, channels, groups).move_axis(channels, channels + 1), channels)
}

impl Lower for PixelShuffle<Hlo> {
    fn lower(&mut self) {
        self.out = pixels_from_channels(&self.x, self.upscale_factor, self.data_format);
    }
}
impl Lower for PixelShuffleGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = channels_from_pixels(&self.dout, self.upscale_factor, self.data_format);
    }
}
impl Lower for PixelUnshuffle<Hlo> {
    fn lower(&mut self) {
        self.out = channels_from_pixels(&self.x, self.downscale_factor, self.data_format);
    }
}
impl Lower for PixelUnshuffleGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = pixels_from_channels(&self.dout, self.downscale_factor, self.data_format);
    }
}
impl Lower for ChannelShuffle<Hlo> {
    fn lower(&mut self) {
        self.out = shuffle_channels(&self.x, self.groups.max(1) as usize, self.data_format);
    }
}
impl Lower for ChannelShuffleGrad<Hlo> {
    fn lower(&mut self) {
        let (channels, _) = image_axes(self.data_format);
        let groups = self.dout.dims()[channels] / self.groups.max(1) as usize;
        self.dx = shuffle_channels(&self.dout, groups, self.data_format);
    }
}

/// The first channels moved to the next frame, those after them to the previous one, or back.
fn shift_frames(x: &Hlo, frames: i32, ratio: f32, format: DataLayout, forward: bool) -> Hlo {
    let (frames, (channels, _)) = (frames.max(1) as usize, image_axes(format));
    let videos = split(x, 0, x.dims()[0] / frames);
    let (axis, count) = (channels + 1, x.dims()[channels]);
    let end = |ratio: f32| ((count as f32 * ratio) as usize).min(count);
    let ends = [0, end(ratio), end(2.0 * ratio), count];
    let along_frames = |by: i64| vec![0, by, 0, 0, 0];
    let part = |i: usize| {
        let part = videos.slice_axis(axis, ends[i], ends[i + 1]);
        match (i, forward) {
            (2, _) => part,
            (0, true) | (1, false) => part.pad_zeros(&along_frames(1), &along_frames(-1)),
            _ => part.pad_zeros(&along_frames(-1), &along_frames(1)),
        }
    };
    let shifted = Hlo::concat(&[part(0), part(1), part(2)], axis).unwrap_or(videos);
    shifted.reshape(x.dims())
}

impl Lower for TemporalShift<Hlo> {
    fn lower(&mut self) {
        self.out = shift_frames(&self.x, self.seg_num, self.shift_ratio, self.data_format, true);
    }
}
impl Lower for TemporalShiftGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = shift_frames(&self.dout, self.seg_num, self.shift_ratio, self.data_format, false);
    }
}

/// Positions from -1 to 1 along an axis of `count` elements.
fn positions(of: &Hlo, count: usize, align_corners: bool) -> Hlo {
    let edge = if align_corners { 1.0 } else { (count as f64 - 1.0) / count as f64 };
    let along = |i: usize| if count > 1 { 2.0 * edge * i as f64 / (count as f64 - 1.0) } else { 0.0 };
    let numbers: Vec<f64> = (0..count).map(|i| along(i) - edge).collect();
    of.vector(of.dtype(), &numbers)
}

/// The numbers that the columns of a transformation are multiplied by, `[images, height, width, 2]` each.
fn factors(grid: &Hlo, align_corners: bool) -> [Hlo; 3] {
    let along =
        |axis: usize| positions(grid, grid.dims()[axis], align_corners).broadcast(grid.dims(), &[axis]);
    [along(2), along(1), grid.full_like(1.0)]
}

impl Lower for AffineGrid<Hlo> {
    fn lower(&mut self) {
        let images = self.theta.dims()[0];
        let column = |k: usize| self.theta.slice_axis(2, k, k + 1).reshape(&[images, 2]);
        let [x, y, one] = factors(&self.output, self.align_corners);
        let term = |k: usize, factor: Hlo| column(k).broadcast(self.output.dims(), &[0, 3]) * factor;
        self.output = term(0, x) + term(1, y) + term(2, one);
    }
}
impl Lower for AffineGridGrad<Hlo> {
    fn lower(&mut self) {
        let images = self.doutput.dims()[0];
        let columns = factors(&self.doutput, self.align_corners)
            .map(|factor| (&self.doutput * factor).sum(&[1, 2]).reshape(&[images, 2, 1]));
        if let Some(dtheta) = Hlo::concat(&columns, 2) {
            self.dtheta = dtheta;
        }
    }
}

/// Windows over images, two numbers each, for rows and columns.
struct ImageWindows {
    size: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    low: [i64; 2],
    high: [i64; 2],
    /// The number of windows.
    count: [usize; 2],
}

impl ImageWindows {
    fn of(attrs: &WindowAttrs, image: &[usize]) -> ImageWindows {
        let number = |list: &[i32], i: usize| list.get(i).copied().unwrap_or_default().max(0) as usize;
        let pair = |list: &[i32]| [0, 1].map(|i| number(list, i));
        let (size, stride, dilation) =
            (pair(&attrs.kernel_sizes), pair(&attrs.strides), pair(&attrs.dilations));
        let padding = [0, 1].map(|i| [number(&attrs.paddings, i), number(&attrs.paddings, i + 2)]);
        let count = [0, 1].map(|i| {
            let padded = image[2 + i] + padding[i][0] + padding[i][1];
            let window = (size[i] - 1) * dilation[i] + 1;
            padded.checked_sub(window).map_or(0, |rest| rest / stride[i] + 1)
        });
        let side = |k: usize| padding.map(|pair| pair[k] as i64);
        ImageWindows { size, stride, dilation, low: side(0), high: side(1), count }
    }

    /// The position of each element of a window.
    fn taps(&self) -> impl Iterator<Item = [usize; 2]> {
        let [down, across] = self.dilation;
        let columns = self.size[1];
        (0..self.size[0] * columns).map(move |tap| [tap / columns * down, tap % columns * across])
    }

    /// The elements that all windows have at a position: the first one, and behind the last one.
    fn range(&self, at: [usize; 2]) -> [[usize; 2]; 2] {
        let end = |i: usize| at[i] + (self.count[i].max(1) - 1) * self.stride[i] + 1;
        [at, [end(0), end(1)]]
    }

    /// Columns with the elements of each window, `[images, channels * taps, windows]`.
    fn unfold(&self, x: &Hlo, _: &[usize]) -> Hlo {
        let [images, channels, ..] = *x.dims() else { return x.clone() };
        let sides = |of: [i64; 2]| [0, 0, of[0], of[1]];
        let padded = x.pad_zeros(&sides(self.low), &sides(self.high));
        let [rows, columns] = self.count;
        let column = |at: [usize; 2]| {
            let [start, end] = self.range(at);
            let (start, end) = ([0, 0, start[0], start[1]], [images, channels, end[0], end[1]]);
            let part = padded.slice(&start, &end, &[1, 1, self.stride[0], self.stride[1]]);
            part.reshape(&[images, channels, 1, rows * columns])
        };
        let columns: Vec<Hlo> = self.taps().map(column).collect();
        Hlo::concat(&columns, 2).unwrap_or(padded)
    }

    /// Images with the sums of the elements that columns have for them.
    fn fold(&self, columns: &Hlo, image: &[usize]) -> Hlo {
        let [images, channels, height, width] = *image else { return columns.clone() };
        let taps = self.size[0] * self.size[1];
        let [rows, across] = self.count;
        let columns = columns.reshape(&[images, channels, taps, rows, across]);
        let padded = [0, 1].map(|i| [height, width][i] as i64 + self.low[i] + self.high[i]);
        let interior = [0, 0, self.stride[0] - 1, self.stride[1] - 1];
        let placed = self.taps().enumerate().map(|(tap, at)| {
            let part = columns.slice_axis(2, tap, tap + 1).reshape(&[images, channels, rows, across]);
            let [start, end] = self.range(at);
            let low = [0, 1].map(|i| start[i] as i64 - self.low[i]);
            let high = [0, 1].map(|i| padded[i] - end[i] as i64 - self.high[i]);
            part.pad(&part.scalar(0.0), &[0, 0, low[0], low[1]], &[0, 0, high[0], high[1]], &interior)
        });
        placed.reduce(|sum, part| sum + part).unwrap_or(columns)
    }
}

/// The rule of an operator that moves the elements of windows to columns, or back.
macro_rules! windows {
    ($($op:ident: $out:ident = $method:ident $x:ident, image $image:ident);* $(;)?) => {$(
        impl Lower for $op<Hlo> {
            fn lower(&mut self) {
                let image = self.$image.dims().to_vec();
                let windows = ImageWindows::of(&self.window, &image);
                self.$out = windows.$method(&self.$x, &image);
            }
        }
    )*};
}
windows!(
    Unfold: y = unfold x, image x;
    UnfoldGrad: dx = fold dy, image dx;
    Fold: y = fold x, image y;
    FoldGrad: dx = unfold dy, image dy;
);

/// Padding along one axis.
struct PaddedAxis {
    axis: usize,
    before: usize,
    /// Elements before padding.
    count: usize,
    padded: usize,
}

impl PaddedAxis {
    /// The element that each element of the result is.
    fn sources(&self, of: &Hlo, mode: PadMode) -> Hlo {
        let (before, count) = (self.before as i64, self.count.max(1) as i64);
        let source = |at: i64| match mode {
            PadMode::Reflect => (count - 1) - ((count - 1) - at.abs()).abs(),
            PadMode::Replicate => at.clamp(0, count - 1),
            PadMode::Circular | PadMode::Constant => at.rem_euclid(count),
        };
        let sources: Vec<f64> = (0..self.padded as i64).map(|at| source(at - before) as f64).collect();
        of.vector(HloDType::I32, &sources)
    }
}

/// The padded axes of volumes.
fn padded_axes(paddings: &[f64], format: VolumeLayout, x: &Hlo, out: &Hlo) -> Vec<PaddedAxis> {
    let first = if format == VolumeLayout::Ncdhw { 2 } else { 1 };
    let axis = |i: usize| PaddedAxis {
        axis: first + i,
        // Those of the last axis come first.
        before: paddings.get(4 - 2 * i).copied().unwrap_or_default() as usize,
        count: x.dims()[first + i],
        padded: out.dims()[first + i],
    };
    (0..3).map(axis).collect()
}

fn paddings(tensor: &Option<Hlo>, attr: &[i32]) -> Vec<f64> {
    let known = tensor.as_ref().and_then(|tensor| tensor.known().map(<[f64]>::to_vec));
    known.unwrap_or_else(|| attr.iter().map(|n| f64::from(*n)).collect())
}

/// Elements before and behind, in all axes.
fn sides(axes: &[PaddedAxis]) -> ([i64; 5], [i64; 5]) {
    let (mut low, mut high) = ([0; 5], [0; 5]);
    for PaddedAxis { axis, before, count, padded } in axes {
        (low[*axis], high[*axis]) = (*before as i64, *padded as i64 - *count as i64 - *before as i64);
    }
    (low, high)
}

impl Lower for Pad3d<Hlo> {
    fn lower(&mut self) {
        let given = paddings(&self.paddings_tensor, &self.paddings);
        let axes = padded_axes(&given, self.data_format, &self.x, &self.out);
        self.out = match self.mode {
            PadMode::Constant => {
                let (low, high) = sides(&axes);
                self.x.pad(&self.x.scalar(f64::from(self.value)), &low, &high, &[0; 5])
            }
            mode => axes
                .iter()
                .filter(|axis| axis.padded != axis.count)
                .fold(self.x.clone(), |x, axis| x.rows(axis.axis, &axis.sources(&x, mode))),
        };
    }
}
impl Lower for Pad3dGrad<Hlo> {
    fn lower(&mut self) {
        let given = paddings(&self.paddings_tensor, &self.paddings);
        let axes = padded_axes(&given, self.data_format, &self.dx, &self.dout);
        self.dx = match self.mode {
            PadMode::Constant => {
                let (low, high) = sides(&axes);
                self.dout.pad_zeros(&low.map(|n| -n), &high.map(|n| -n))
            }
            mode => {
                axes.iter().filter(|axis| axis.padded != axis.count).fold(self.dout.clone(), |dout, axis| {
                    let mut dims = dout.dims().to_vec();
                    dims[axis.axis] = axis.count;
                    let zeros = dout.full(dout.dtype(), &dims, 0.0);
                    zeros.add_rows(axis.axis, &axis.sources(&dout, mode), &dout)
                })
            }
        };
    }
}
