//! `temporal_shift`: channels of videos shifted by a frame.

use autobwd::{
    Buf, Composition, Cx, Expr, Infer, Kernel, Meta, Multilinear, Result, Var, check::*, op::with_dtype,
    register_op, tensor::Element,
};

use crate::{
    Math, concat,
    kernel_helpers::{PART, nth, pieces},
    math::sizes,
    norm::DataLayout,
    windows::dims,
};

/// Shifts the first part of the channels of a video to the next frame, and an equal part to the previous one; frames
/// without a neighbour get 0.
#[register_op(grad = TemporalShiftGrad, infallible, any_dtype)]
pub struct TemporalShift<V = Var> {
    /// Frames of videos, `seg_num` of each video one behind the other, in the order that `data_format` says; any dtype.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Number of frames of a video.
    #[attr(min = 1)]
    pub seg_num: i32,
    /// The part of the channels that is shifted in each direction, rounded down.
    #[attr(default = 0.25, min = 0.0, max = 0.5)]
    pub shift_ratio: f32,
    /// Order of the dimensions of frames (`NCHW`, `NHWC`).
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
impl Infer for TemporalShift<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_frames(&self.x, self.seg_num)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for TemporalShift<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let shift = FrameShift::new(&self.x, self.seg_num, self.shift_ratio, self.data_format)?;
        with_dtype!(self.x.dtype(), T => shift.copy::<T>(cx, self.x.slice()?, self.out.slice_mut()?, true));
        Ok(())
    }
}
impl Composition for TemporalShift<Expr> {
    fn compose(&mut self) {
        self.out = shifted(&self.x, self.seg_num, self.shift_ratio, self.data_format, true);
    }
}
autobwd::samples!(
    TemporalShift,
    [
        temporal_shift(uniform([6, 4, 2, 3]), 3, 0.25),
        temporal_shift(uniform([4, 5, 2, 3]), 2, 0.4),
        temporal_shift(uniform([3, 4, 2, 1]), 3, 0.5),
        temporal_shift(uniform([3, 4, 2, 1]), 1, 0.0),
        TemporalShift { data_format: DataLayout::Nhwc, ..temporal_shift(uniform([6, 2, 3, 4]), 3, 0.25) },
        temporal_shift(uniform([0, 4, 2, 3]), 3, 0.25),
        temporal_shift(integers_below(9, [4, 6, 1, 2]), 2, 0.25),
        temporal_shift(uniform([6, 4, 2, 3]), 4, 0.25)
            .fails("`X`: a number of images divisible by 4 is needed"),
        temporal_shift(uniform([6, 4, 2]), 3, 0.25).fails("`X`: 4 dimensions are needed"),
        temporal_shift(uniform([6, 4, 2, 3]), 0, 0.25).fails("attribute `seg_num`"),
        temporal_shift(uniform([6, 4, 2, 3]), 3, 0.75).fails("attribute `shift_ratio`"),
    ]
);

fn temporal_shift(x: Draw, seg_num: i32, shift_ratio: f32) -> TemporalShift<Draw> {
    TemporalShift { x, out: out(), seg_num, shift_ratio, data_format: DataLayout::Nchw }
}

fn check_frames(x: &Meta, count: i32) -> Result<()> {
    let [all, ..] = x.unpack::<4>()?;
    let even = all.get().is_none_or(|n| n.is_multiple_of(count as usize));
    x.require(even, || format!("a number of images divisible by {count} is needed"))
}

struct FrameShift {
    frames: usize,
    channels: usize,
    /// Channels before this one come from the frame before, and those up to the next one from the frame behind.
    ends: [usize; 2],
    /// Pixels before and behind a channel.
    before: usize,
    behind: usize,
}

impl FrameShift {
    fn new(x: &Buf<'_>, frames: i32, ratio: f32, format: DataLayout) -> Result<FrameShift> {
        let (_, channels, [height, width]) = format.split(dims(x)?);
        let end = |ratio: f32| ((channels as f32 * ratio) as usize).min(channels);
        let (before, behind) = match format {
            DataLayout::Nchw => (1, height * width),
            DataLayout::Nhwc => (height * width, 1),
        };
        Ok(FrameShift {
            frames: frames as usize,
            channels,
            ends: [end(ratio), end(2.0 * ratio)],
            before,
            behind,
        })
    }

    /// Shifts the channels, or shifts them back.
    fn copy<T: Element>(&self, cx: &Cx, x: &[T], out: &mut [T], forward: bool) {
        let [to_next, to_previous] = self.ends;
        // Equally shifted elements that are one behind the other.
        let runs = [(0, to_next), (to_next, to_previous), (to_previous, self.channels)];
        let row = self.channels * self.behind;
        let frame = self.before * row;
        let part = PART.div_ceil(row.max(1)) * row;
        cx.chunks_mut(out, part, |i, out| {
            pieces(out, i * part, row, usize::MAX, |at, _, out| {
                let (number, position) = (at / self.before, at % self.before);
                for (kind, (first, end)) in runs.into_iter().enumerate() {
                    let out = &mut out[first * self.behind..end * self.behind];
                    let within = number % self.frames;
                    let from = match (kind, forward) {
                        (0, true) | (1, false) if within == 0 => None,
                        (0, true) | (1, false) => Some(number - 1),
                        (0, false) | (1, true) if within + 1 == self.frames => None,
                        (0, false) | (1, true) => Some(number + 1),
                        _ => Some(number),
                    };
                    match from {
                        Some(from) => {
                            let x = nth(&x[from * frame..], position, row);
                            out.copy_from_slice(&x[first * self.behind..end * self.behind]);
                        }
                        None => out.fill(T::default()),
                    }
                }
            });
        });
    }
}

/// `dx` = `dout`, shifted back.
#[register_op(grad_of = TemporalShift, grad = Multilinear, infallible, any_dtype)]
pub struct TemporalShiftGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: V,
    pub seg_num: i32,
    pub shift_ratio: f32,
    pub data_format: DataLayout,
}
impl Infer for TemporalShiftGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_frames(&self.dout, self.seg_num)?;
        self.dx.like(&self.dout);
        Ok(())
    }
}
impl Kernel for TemporalShiftGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let shift = FrameShift::new(&self.dout, self.seg_num, self.shift_ratio, self.data_format)?;
        with_dtype!(self.dout.dtype(), T => shift.copy::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?, false));
        Ok(())
    }
}
impl Composition for TemporalShiftGrad<Expr> {
    fn compose(&mut self) {
        self.dx = shifted(&self.dout, self.seg_num, self.shift_ratio, self.data_format, false);
    }
}

/// The channels shifted, or shifted back.
fn shifted(x: &Expr, frames: i32, ratio: f32, format: DataLayout, forward: bool) -> Expr {
    let dims = sizes::<4>(x);
    let [images, rest @ ..] = &dims;
    let videos = [images / &i64::from(frames).into(), i64::from(frames).into()];
    let videos = x.reshape_to(&[&videos[..], rest].concat());
    let (axis, channels) = if format == DataLayout::Nchw { (2, &dims[1]) } else { (4, &dims[3]) };
    let ends = [0.into(), channels.scaled(ratio), channels.scaled(2.0 * ratio), channels.clone()];
    let part = |i: usize| videos.slice_to(axis, &ends[i], &ends[i + 1]);
    // A frame of zeros at one end, and none of the frame at the other end.
    let moved = |part: Expr, is_later: bool| {
        let (zeros, first) = if is_later { ([1, 0], 0) } else { ([0, 1], 1) };
        part.pad(&[[0, 0], zeros, [0, 0], [0, 0], [0, 0]], 0.0).slice(1, first, first + frames)
    };
    concat(&[&moved(part(0), forward), &moved(part(1), !forward), &part(2)], axis).reshape_to(&dims)
}
