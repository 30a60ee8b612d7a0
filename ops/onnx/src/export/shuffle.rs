//! Images whose channels, positions and frames change places.

use autobwd::{Result, program::Var};
use autobwd_ops::{
    image::{
        ChannelShuffle, ChannelShuffleGrad, PixelShuffle, PixelShuffleGrad, PixelUnshuffle,
        PixelUnshuffleGrad, TemporalShift, TemporalShiftGrad,
    },
    norm::DataLayout,
};

use super::{
    ExportOp, ExportRule,
    conv::{image_shape, read_images, write_images},
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<ChannelShuffle>(),
        rule::<ChannelShuffleGrad>(),
        rule::<PixelShuffle>(),
        rule::<PixelShuffleGrad>(),
        rule::<PixelUnshuffle>(),
        rule::<PixelUnshuffleGrad>(),
        rule::<TemporalShift>(),
        rule::<TemporalShiftGrad>(),
    ]
}

/// `out` = `x` with blocks of `factor²` channels as pixels.
fn shuffle(graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2], factor: i32, format: DataLayout) -> Result<()> {
    let value = read_images(graph, x, format)?;
    let attrs = [("blocksize", NodeAttr::Int(factor.into())), ("mode", NodeAttr::Text("CRD"))];
    let value = graph.op("DepthToSpace", &[value], &attrs);
    write_images(graph, out, value, format);
    Ok(())
}

/// `out` = `x` with blocks of `factor` by `factor` pixels as channels.
fn unshuffle(graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2], factor: i32, format: DataLayout) -> Result<()> {
    let (value, factor) = (read_images(graph, x, format)?, i64::from(factor));
    let [_, channels, ..] = image_shape(graph, x, format)?;
    if channels < 0 {
        return Err(graph.unknown_shape(x));
    }
    // Here, the pixels of a channel stay together.
    let value = graph.op("SpaceToDepth", &[value], &[("blocksize", NodeAttr::Int(factor))]);
    let value = transposed_channels(graph, value, 1, [factor * factor, channels])?;
    write_images(graph, out, value, format);
    Ok(())
}

/// Channels as a matrix of that many rows and columns, transposed.
fn transposed_channels(
    graph: &mut OnnxGraph<'_>,
    x: OnnxValue,
    axis: i64,
    [rows, columns]: [i64; 2],
) -> Result<OnnxValue> {
    let from = |to: i64| to % rows * columns + to / rows;
    let order = graph.ints(&(0..rows * columns).map(from).collect::<Vec<_>>())?;
    Ok(graph.op("Gather", &[x, order], &[("axis", NodeAttr::Int(axis))]))
}

/// The dimension of channels, and their number.
fn channels(graph: &OnnxGraph<'_>, x: Var, format: DataLayout) -> Result<(i64, i64)> {
    let axis = if format == DataLayout::Nhwc { 3 } else { 1 };
    Ok((axis, graph.dim(x, axis as usize)?))
}

/// `out` = `x` with the channels of `groups` groups in turn, or back.
fn interleave(
    graph: &mut OnnxGraph<'_>,
    [x, out]: [Var; 2],
    groups: i32,
    format: DataLayout,
    back: bool,
) -> Result<()> {
    let ((axis, count), groups) = (channels(graph, x, format)?, i64::from(groups));
    let each = count / groups;
    let value = graph.read(x)?;
    let matrix = if back { [each, groups] } else { [groups, each] };
    let value = transposed_channels(graph, value, axis, matrix)?;
    graph.write(out, value);
    Ok(())
}

/// `out` = frames `x`, the first channels of each moved to the next frame of its video and further ones to the frame
/// before, or back.
fn shift_frames(
    graph: &mut OnnxGraph<'_>,
    [x, out]: [Var; 2],
    (frames, ratio): (i32, f32),
    format: DataLayout,
    back: bool,
) -> Result<()> {
    let (axis, count) = channels(graph, x, format)?;
    let end = |ratio: f32| ((count as f32 * ratio) as i64).min(count);
    let dims = graph.run_dims(x)?;
    let mut videos = vec![OnnxDim::Rest, OnnxDim::Known(i64::from(frames))];
    videos.extend(&dims[1..]);
    if let OnnxDim::Known(all) = dims[0] {
        videos[0] = OnnxDim::Known(all / i64::from(frames));
    }
    let value = graph.read(x)?;
    let value = graph.reshape_to(value, &videos)?;
    let lengths = [end(ratio), end(2.0 * ratio) - end(ratio), count - end(2.0 * ratio)];
    let sections = graph.ints(&lengths)?;
    let axis = [("axis", NodeAttr::Int(axis + 1))];
    let mut parts = graph.many("Split", &[Some(value), Some(sections)], &axis, lengths.len());
    for (i, part) in parts.iter_mut().enumerate().take(2) {
        // A frame of zeros at one end, and none of the frame at the other one.
        let before = if (i == 0) == back { -1 } else { 1 };
        let (pads, frames) = (graph.ints(&[before, -before])?, graph.ints(&[1])?);
        [*part] = graph.nodes("Pad", &[Some(*part), Some(pads), None, Some(frames)], &[]);
    }
    let value = graph.op("Concat", &parts, &axis);
    let value = graph.reshape_to(value, &dims)?;
    graph.write(out, value);
    Ok(())
}

impl ExportOp for PixelShuffle {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        shuffle(graph, [self.x, self.out], self.upscale_factor, self.data_format)
    }
}
impl ExportOp for PixelShuffleGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        unshuffle(graph, [self.dout, self.dx], self.upscale_factor, self.data_format)
    }
}
impl ExportOp for PixelUnshuffle {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        unshuffle(graph, [self.x, self.out], self.downscale_factor, self.data_format)
    }
}
impl ExportOp for PixelUnshuffleGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        shuffle(graph, [self.dout, self.dx], self.downscale_factor, self.data_format)
    }
}
impl ExportOp for ChannelShuffle {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        interleave(graph, [self.x, self.out], self.groups, self.data_format, false)
    }
}
impl ExportOp for ChannelShuffleGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        interleave(graph, [self.dout, self.dx], self.groups, self.data_format, true)
    }
}
impl ExportOp for TemporalShift {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let shift = (self.seg_num, self.shift_ratio);
        shift_frames(graph, [self.x, self.out], shift, self.data_format, false)
    }
}
impl ExportOp for TemporalShiftGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let shift = (self.seg_num, self.shift_ratio);
        shift_frames(graph, [self.dout, self.dx], shift, self.data_format, true)
    }
}
