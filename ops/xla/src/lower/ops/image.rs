//! Rearrangements of images: shuffles, shifts, columns of windows, padding.

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

/// The dimensions of a tensor split into parts, and the order of these in the result.
struct ChannelOrder {
    parts: [usize; 6],
    order: [usize; 6],
}

impl ChannelOrder {
    fn run(&self, x: &Hlo) -> Hlo {
        x.reshape(&self.parts).transpose(&self.order)
    }

    /// From the result back.
    fn back(&self, x: &Hlo) -> Hlo {
        let mut inverse = [0; 6];
        self.order.iter().enumerate().for_each(|(to, from)| inverse[*from] = to);
        x.reshape(&self.order.map(|part| self.parts[part])).transpose(&inverse)
    }

    /// From images with more pixels to images with more channels.
    fn unshuffling(shuffled: &Hlo, factor: i32, format: DataLayout) -> ChannelOrder {
        let (dims, factor) = (shuffled.dims(), factor.max(1) as usize);
        let parts = match format {
            DataLayout::Nchw => [dims[0], dims[1], dims[2] / factor, factor, dims[3] / factor, factor],
            DataLayout::Nhwc => [dims[0], dims[1] / factor, factor, dims[2] / factor, factor, dims[3]],
        };
        ChannelOrder { parts, order: [0, 1, 3, 5, 2, 4] }
    }

    /// From channels in groups to channels whose neighbours are of other groups.
    fn mixing(x: &Hlo, groups: i32, format: DataLayout) -> ChannelOrder {
        let (dims, groups) = (x.dims(), groups.max(1) as usize);
        let (before, channels, behind) = match format {
            DataLayout::Nchw => (dims[0], dims[1], dims[2] * dims[3]),
            DataLayout::Nhwc => (dims[0] * dims[1] * dims[2], dims[3], 1),
        };
        ChannelOrder { parts: [before, groups, channels / groups, behind, 1, 1], order: [0, 2, 1, 3, 4, 5] }
    }
}

impl Lower for PixelShuffle<Hlo> {
    fn lower(&mut self) {
        self.out = ChannelOrder::unshuffling(&self.out, self.upscale_factor, self.data_format).back(&self.x);
    }
}
impl Lower for PixelShuffleGrad<Hlo> {
    fn lower(&mut self) {
        self.dx =
            ChannelOrder::unshuffling(&self.dout, self.upscale_factor, self.data_format).run(&self.dout);
    }
}
impl Lower for PixelUnshuffle<Hlo> {
    fn lower(&mut self) {
        self.out = ChannelOrder::unshuffling(&self.x, self.downscale_factor, self.data_format).run(&self.x);
    }
}
impl Lower for PixelUnshuffleGrad<Hlo> {
    fn lower(&mut self) {
        self.dx =
            ChannelOrder::unshuffling(&self.dx, self.downscale_factor, self.data_format).back(&self.dout);
    }
}
impl Lower for ChannelShuffle<Hlo> {
    fn lower(&mut self) {
        self.out = ChannelOrder::mixing(&self.x, self.groups, self.data_format).run(&self.x);
    }
}
impl Lower for ChannelShuffleGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = ChannelOrder::mixing(&self.dx, self.groups, self.data_format).back(&self.dout);
    }
}

/// Frames whose first channels come from the frame before, or with `forward` unset behind, and the next ones from the
/// other side.
fn shifted(x: &Hlo, (frames, ratio): (i32, f32), format: DataLayout, forward: bool) -> Hlo {
    let axis = if format == DataLayout::Nchw { 1 } else { 3 };
    let (frames, channels) = (frames.max(1) as usize, x.dims()[axis]);
    if x.numel() == 0 {
        return x.clone();
    }
    let mut dims = vec![x.dims()[0] / frames, frames];
    dims.extend(&x.dims()[1..]);
    let (all, channel_axis) = (x.reshape(&dims), axis + 1);
    let end = |ratio: f32| ((channels as f32 * ratio) as usize).min(channels);
    let ends = [end(ratio), end(2.0 * ratio)];
    let moved = |part: Hlo, behind: bool| {
        let (mut low, mut high) = (vec![0; part.rank()], vec![0; part.rank()]);
        (low[1], high[1]) = if behind { (1, -1) } else { (-1, 1) };
        part.pad_zeros(&low, &high)
    };
    let parts = [
        moved(all.slice_axis(channel_axis, 0, ends[0]), forward),
        moved(all.slice_axis(channel_axis, ends[0], ends[1]), !forward),
        all.slice_axis(channel_axis, ends[1], channels),
    ];
    Hlo::concat(&parts, channel_axis).unwrap_or(all)
}

impl Lower for TemporalShift<Hlo> {
    fn lower(&mut self) {
        self.out = shifted(&self.x, (self.seg_num, self.shift_ratio), self.data_format, true);
    }
}
impl Lower for TemporalShiftGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = shifted(&self.dout, (self.seg_num, self.shift_ratio), self.data_format, false);
    }
}

/// The windows of `unfold` over images of that size, vertical and horizontal.
struct Taps {
    size: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    before: [usize; 2],
    after: [usize; 2],
    image: [usize; 2],
    count: [usize; 2],
}

impl Taps {
    fn of(window: &WindowAttrs, images: &Hlo) -> Taps {
        let pair = |list: &[i32]| [0, 1].map(|i| list.get(i).map_or(1, |n| (*n).max(0) as usize));
        let padding = |i: usize| window.paddings.get(i).map_or(0, |n| (*n).max(0) as usize);
        let (size, stride, dilation) =
            (pair(&window.kernel_sizes), pair(&window.strides), pair(&window.dilations));
        let (before, after) = ([padding(0), padding(1)], [padding(2), padding(3)]);
        let image = [images.dims()[2], images.dims()[3]];
        let count = [0, 1].map(|i| {
            let (whole, extent) = (image[i] + before[i] + after[i], (size[i] - 1) * dilation[i] + 1);
            (whole + stride[i]).saturating_sub(extent) / stride[i]
        });
        Taps { size, stride, dilation, before, after, image, count }
    }

    fn each(&self) -> impl Iterator<Item = [usize; 2]> {
        let [_, across] = self.size;
        (0..self.size[0] * across).map(move |tap| [tap / across, tap % across])
    }

    /// The range of padded positions of an element of all windows along an axis: its start and its end.
    fn range(&self, i: usize, tap: usize) -> (usize, usize) {
        let start = tap * self.dilation[i];
        (start, start + (self.count[i] - 1) * self.stride[i] + 1)
    }

    fn unfold(&self, images: &Hlo, columns: &[usize]) -> Hlo {
        let (n, channels) = (images.dims()[0], images.dims()[1]);
        let pads = |sides: [usize; 2]| [0, 0, sides[0] as i64, sides[1] as i64];
        let padded = images.pad_zeros(&pads(self.before), &pads(self.after));
        let taps = self.each().map(|[i, j]| {
            let ((top, bottom), (left, right)) = (self.range(0, i), self.range(1, j));
            let steps = [1, 1, self.stride[0], self.stride[1]];
            let part = padded.slice(&[0, 0, top, left], &[n, channels, bottom, right], &steps);
            part.reshape(&[n, channels, 1, self.count[0] * self.count[1]])
        });
        Hlo::concat(&taps.collect::<Vec<_>>(), 2).map_or(padded, |columns_of| columns_of.reshape(columns))
    }

    fn fold(&self, columns: &Hlo, images: &[usize]) -> Hlo {
        let (n, channels) = (images[0], images[1]);
        let all = columns.reshape(&[n, channels, self.size[0] * self.size[1], self.count[0] * self.count[1]]);
        let mut sum: Option<Hlo> = None;
        for (tap, [i, j]) in self.each().enumerate() {
            let part = all.slice_axis(2, tap, tap + 1).reshape(&[n, channels, self.count[0], self.count[1]]);
            let sides = |axis: usize, tap: usize| {
                let (start, end) = self.range(axis, tap);
                let before = self.before[axis] as i64;
                (start as i64 - before, self.image[axis] as i64 - (end as i64 - before))
            };
            let ((top, bottom), (left, right)) = (sides(0, i), sides(1, j));
            let interior = [0, 0, self.stride[0] - 1, self.stride[1] - 1];
            let part = part.pad(&part.scalar(0.0), &[0, 0, top, left], &[0, 0, bottom, right], &interior);
            sum = Some(sum.map_or(part.clone(), |sum| sum + part));
        }
        sum.unwrap_or(all)
    }
}

impl Lower for Unfold<Hlo> {
    fn lower(&mut self) {
        self.y = Taps::of(&self.window, &self.x).unfold(&self.x, self.y.dims());
    }
}
impl Lower for UnfoldGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = Taps::of(&self.window, &self.dx).fold(&self.dy, self.dx.dims());
    }
}
impl Lower for Fold<Hlo> {
    fn lower(&mut self) {
        self.y = Taps::of(&self.window, &self.y).fold(&self.x, self.y.dims());
    }
}
impl Lower for FoldGrad<Hlo> {
    fn lower(&mut self) {
        self.dx = Taps::of(&self.window, &self.dy).unfold(&self.dy, self.dx.dims());
    }
}

/// Padding along the three axes of a volume.
struct VolumePadding {
    mode: PadMode,
    /// The axis, and the lengths before and behind.
    axes: [(usize, usize, usize); 3],
}

impl VolumePadding {
    fn of(tensor: &Option<Hlo>, paddings: &[i32], mode: PadMode, format: VolumeLayout) -> VolumePadding {
        let given: Vec<usize> = match tensor.as_ref().and_then(Hlo::known) {
            Some(known) => known.iter().map(|n| *n as usize).collect(),
            None => paddings.iter().map(|n| (*n).max(0) as usize).collect(),
        };
        let length = |i: usize| given.get(i).copied().unwrap_or(0);
        let first = if format == VolumeLayout::Ncdhw { 2 } else { 1 };
        // Width comes first.
        let axes = [2, 1, 0].map(|i| (first + i, length(2 * (2 - i)), length(2 * (2 - i) + 1)));
        VolumePadding { mode, axes }
    }

    /// For each position along an axis, the element of `n` that it holds.
    fn sources(&self, n: usize, before: usize, behind: usize) -> Vec<f64> {
        let source = |at: usize| match self.mode {
            _ if (before..before + n).contains(&at) => at - before,
            PadMode::Reflect if at < before => before - at,
            PadMode::Reflect => (2 * (n - 1)).saturating_sub(at - before),
            PadMode::Circular => (at + n - before % n) % n,
            PadMode::Replicate | PadMode::Constant => at.saturating_sub(before).min(n - 1),
        };
        (0..before + n + behind).map(|at| source(at) as f64).collect()
    }

    fn sides(&self, rank: usize, sign: i64) -> (Vec<i64>, Vec<i64>) {
        let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
        for (axis, before, behind) in self.axes {
            (low[axis], high[axis]) = (sign * before as i64, sign * behind as i64);
        }
        (low, high)
    }

    fn pad(&self, x: &Hlo, value: f64) -> Hlo {
        if self.mode == PadMode::Constant {
            let (low, high) = self.sides(x.rank(), 1);
            return x.pad(&x.scalar(value), &low, &high, &vec![0; x.rank()]);
        }
        self.axes.iter().fold(x.clone(), |x, (axis, before, behind)| match before + behind {
            0 => x,
            _ => {
                let sources = self.sources(x.dims()[*axis], *before, *behind);
                x.rows(*axis, &x.vector(HloDType::I64, &sources))
            }
        })
    }

    fn gradient(&self, dout: &Hlo, dims: &[usize]) -> Hlo {
        if self.mode == PadMode::Constant {
            let (low, high) = self.sides(dout.rank(), -1);
            return dout.pad_zeros(&low, &high);
        }
        self.axes.iter().fold(dout.clone(), |dout, (axis, before, behind)| match before + behind {
            0 => dout,
            _ => {
                let mut of = dout.dims().to_vec();
                of[*axis] = dims[*axis];
                let sources = dout.vector(HloDType::I64, &self.sources(dims[*axis], *before, *behind));
                dout.full(dout.dtype(), &of, 0.0).add_rows(*axis, &sources, &dout)
            }
        })
    }
}

impl Lower for Pad3d<Hlo> {
    fn lower(&mut self) {
        let padding = VolumePadding::of(&self.paddings_tensor, &self.paddings, self.mode, self.data_format);
        self.out = padding.pad(&self.x, f64::from(self.value));
    }
}
impl Lower for Pad3dGrad<Hlo> {
    fn lower(&mut self) {
        let padding = VolumePadding::of(&self.paddings_tensor, &self.paddings, self.mode, self.data_format);
        self.dx = padding.gradient(&self.dout, self.dx.dims());
    }
}

/// `[height · width, 3]`: the horizontal and the vertical position of each element, and 1.
fn positions(of: &Hlo, [height, width]: [usize; 2], align_corners: bool) -> Hlo {
    let along = |axis: usize, n: usize| {
        let edge = if align_corners { 1.0 } else { (n as f64 - 1.0) / n as f64 };
        let step = if n > 1 { 2.0 * edge / (n as f64 - 1.0) } else { 0.0 };
        let position = of.iota(HloDType::F64, &[height, width], axis) * step - edge;
        position.convert(of.dtype()).reshape(&[height * width, 1])
    };
    let (x, y) = (along(1, width), along(0, height));
    let one = x.full_like(1.0);
    Hlo::concat(&[x.clone(), y, one], 1).unwrap_or(x)
}

impl Lower for AffineGrid<Hlo> {
    fn lower(&mut self) {
        let size = [self.output.dims()[1], self.output.dims()[2]];
        let positions = positions(&self.output, size, self.align_corners);
        // [images, 2, 3] · [positions, 3]ᵀ
        self.output = self.theta.dot(&positions, &[(2, 1)], &[]).transposed();
    }
}
impl Lower for AffineGridGrad<Hlo> {
    fn lower(&mut self) {
        let dims = self.doutput.dims();
        let positions = positions(&self.doutput, [dims[1], dims[2]], self.align_corners);
        let doutput = self.doutput.reshape(&[dims[0], dims[1] * dims[2], 2]);
        self.dtheta = doutput.dot(&positions, &[(1, 0)], &[]);
    }
}
