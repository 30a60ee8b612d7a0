//! Images whose channels and positions change places, and padding of volumes.

use autobwd::{Error, ErrorKind, Result, program::Var};
use autobwd_ops::{
    image::{
        ChannelShuffle, ChannelShuffleGrad, Pad3d, Pad3dGrad, PadMode, PixelShuffle, PixelShuffleGrad,
        PixelUnshuffle, PixelUnshuffleGrad, VolumeLayout,
    },
    norm::DataLayout,
};

use super::{
    Lower, LowerRule,
    conv::{image_shape, read_images, write_images},
    onnx_graph::{NodeAttr, OnnxGraph},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    vec![
        rule::<ChannelShuffle>(),
        rule::<ChannelShuffleGrad>(),
        rule::<Pad3d>(),
        rule::<Pad3dGrad>(),
        rule::<PixelShuffle>(),
        rule::<PixelShuffleGrad>(),
        rule::<PixelUnshuffle>(),
        rule::<PixelUnshuffleGrad>(),
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
    let (value, shape, factor) =
        (read_images(graph, x, format)?, image_shape(graph, x, format)?, factor.into());
    let [n, channels, height, width] = shape;
    if [channels, height, width].contains(&-1) {
        return Err(graph.unknown_shape(x));
    }
    let value = graph.reshape(value, &[n, channels, height / factor, factor, width / factor, factor])?;
    let value = graph.permute(value, &[0, 1, 3, 5, 2, 4]);
    let dims = [n, channels * factor * factor, height / factor, width / factor];
    let value = graph.reshape(value, &dims)?;
    write_images(graph, out, value, format);
    Ok(())
}

/// `out` = `x` with the channels of `groups` groups in turn.
fn interleave(graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2], groups: i64, format: DataLayout) -> Result<()> {
    let (value, shape) = (read_images(graph, x, format)?, image_shape(graph, x, format)?);
    let [n, channels, height, width] = shape;
    let value = graph.reshape(value, &[n, groups, channels / groups, height, width])?;
    let value = graph.permute(value, &[0, 2, 1, 3, 4]);
    let value = graph.reshape(value, &shape)?;
    write_images(graph, out, value, format);
    Ok(())
}

impl Lower for PixelShuffle {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        shuffle(graph, [self.x, self.out], self.upscale_factor, self.data_format)
    }
}
impl Lower for PixelShuffleGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        unshuffle(graph, [self.dout, self.dx], self.upscale_factor, self.data_format)
    }
}
impl Lower for PixelUnshuffle {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        unshuffle(graph, [self.x, self.out], self.downscale_factor, self.data_format)
    }
}
impl Lower for PixelUnshuffleGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        shuffle(graph, [self.dout, self.dx], self.downscale_factor, self.data_format)
    }
}
impl Lower for ChannelShuffle {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        interleave(graph, [self.x, self.out], self.groups.into(), self.data_format)
    }
}
impl Lower for ChannelShuffleGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axis = if self.data_format == DataLayout::Nhwc { 3 } else { 1 };
        let channels = graph.dim(self.dout, axis)?;
        interleave(graph, [self.dout, self.dx], channels / i64::from(self.groups), self.data_format)
    }
}

/// Padding of volumes: width, height and depth, each before and after.
struct VolumePads<'a> {
    tensor: Option<Var>,
    pads: &'a [i32],
    format: VolumeLayout,
}

impl VolumePads<'_> {
    /// Pads, or removes padding if `sign` is −1.
    fn pad(
        &self,
        graph: &mut OnnxGraph<'_>,
        [x, out]: [Var; 2],
        sign: i64,
        (mode, value): (&str, f32),
    ) -> Result<()> {
        let &[left, right, top, bottom, front, back] = self.pads else {
            return Err(Error::new(ErrorKind::Format, "padding of volumes needs six numbers"));
        };
        if self.tensor.is_some() {
            return Err(Error::new(ErrorKind::Format, "padding from a tensor has no form in ONNX"));
        }
        let pads = [front, top, left, back, bottom, right].map(|pad| sign * i64::from(pad));
        let axes = if self.format == VolumeLayout::Ndhwc { [1, 2, 3] } else { [2, 3, 4] };
        let operands = [
            Some(graph.read(x)?),
            Some(graph.ints(&pads)?),
            Some(graph.scalar(graph.dtype(x)?, f64::from(value))?),
            Some(graph.ints(&axes)?),
        ];
        let [value] = graph.nodes("Pad", &operands, &[("mode", NodeAttr::Text(mode))]);
        graph.write(out, value);
        Ok(())
    }
}

impl Lower for Pad3d {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let mode = match self.mode {
            PadMode::Constant => "constant",
            PadMode::Reflect => "reflect",
            PadMode::Replicate => "edge",
            PadMode::Circular => {
                return Err(Error::new(ErrorKind::Format, "circular padding has no form in ONNX"));
            }
        };
        let pads =
            VolumePads { tensor: self.paddings_tensor, pads: &self.paddings, format: self.data_format };
        pads.pad(graph, [self.x, self.out], 1, (mode, self.value))
    }
}
impl Lower for Pad3dGrad {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        if self.mode != PadMode::Constant {
            let text = "the gradient of padding by elements has no form in ONNX";
            return Err(Error::new(ErrorKind::Format, text));
        }
        let pads =
            VolumePads { tensor: self.paddings_tensor, pads: &self.paddings, format: self.data_format };
        // Negative padding removes elements.
        pads.pad(graph, [self.dout, self.dx], -1, ("constant", 0.0))
    }
}
