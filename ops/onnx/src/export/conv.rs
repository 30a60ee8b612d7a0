//! Convolutions.

use autobwd::{__private::internals::*, Result, program::Var};
use autobwd_ops::{
    conv::{Conv2dOp, Conv2dTransposeOp, Conv3dOp, ConvAttrs},
    norm::DataLayout,
    windows::{PaddingAlgorithm, Windows},
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<Conv2dOp>(), rule::<Conv2dTransposeOp>(), rule::<Conv3dOp>()]
}

/// The attribute of nodes that pad images as `SAME`, whatever their size is.
pub(super) const SAME: (&str, NodeAttr<'_>) = ("auto_pad", NodeAttr::Text("SAME_UPPER"));

/// Images with the channels first, as ONNX has them.
pub(super) struct Images {
    pub(super) value: OnnxValue,
    /// Images, channels, height and width.
    pub(super) dims: [OnnxDim; 4],
}

impl Images {
    pub(super) fn read(graph: &mut OnnxGraph<'_>, var: Var, format: DataLayout) -> Result<Images> {
        let shape = image_shape(graph, var, format)?;
        let value = read_images(graph, var, format)?;
        let dims = [0, 1, 2, 3].map(|axis| match shape[axis] {
            -1 => OnnxDim::Of(value, axis, axis + 1),
            dim => OnnxDim::Known(dim),
        });
        Ok(Images { value, dims })
    }
}

/// What a variable holds, with the channels first.
pub(super) fn read_images(graph: &mut OnnxGraph<'_>, var: Var, format: DataLayout) -> Result<OnnxValue> {
    let value = graph.read(var)?;
    Ok(if format == DataLayout::Nhwc { graph.permute(value, &[0, 3, 1, 2]) } else { value })
}

/// Images, channels, height and width of a variable, −1 where unknown.
pub(super) fn image_shape(graph: &OnnxGraph<'_>, var: Var, format: DataLayout) -> Result<[i64; 4]> {
    let dims = graph.shape(var)?;
    let &[n, a, b, c] = &dims[..] else {
        return Err(autobwd::Error::internal("images without four dimensions"));
    };
    Ok(if format == DataLayout::Nhwc { [n, c, a, b] } else { [n, a, b, c] })
}

/// Writes images to a variable.
pub(super) fn write_images(graph: &mut OnnxGraph<'_>, var: Var, value: OnnxValue, format: DataLayout) {
    let value = if format == DataLayout::Nhwc { graph.permute(value, &[0, 2, 3, 1]) } else { value };
    graph.write(var, value);
}

/// The attributes of windows, as ONNX has them.
#[derive(Clone, Copy)]
pub(super) struct OnnxWindows {
    /// 0 where the size is unknown.
    pub(super) kernel: [i64; 2],
    pub(super) strides: [i64; 2],
    pub(super) dilations: [i64; 2],
    /// Above, left, below and right.
    pub(super) pads: [i64; 4],
}

impl OnnxWindows {
    pub(super) fn of([down, across]: [Windows; 2]) -> OnnxWindows {
        let pair = |of: fn(&Windows) -> usize| [of(&down) as i64, of(&across) as i64];
        let ([top, left], [bottom, right]) = (pair(|w| w.before), pair(|w| w.after));
        OnnxWindows {
            kernel: pair(|w| w.size),
            strides: pair(|w| w.stride),
            dilations: pair(|w| w.dilation),
            pads: [top, left, bottom, right],
        }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, NodeAttr<'_>)> {
        let mut attrs = vec![
            ("kernel_shape", NodeAttr::Ints(&self.kernel)),
            ("strides", NodeAttr::Ints(&self.strides)),
            ("dilations", NodeAttr::Ints(&self.dilations)),
            ("pads", NodeAttr::Ints(&self.pads)),
        ];
        // Otherwise the size is the size of the filters.
        attrs.retain(|(name, _)| *name != "kernel_shape" || !self.kernel.contains(&0));
        attrs
    }

    /// `ConvTranspose` to images of that size; `filter` is `[channels of x, channels of y, height, width]`.
    pub(super) fn transpose(
        &self,
        graph: &mut OnnxGraph<'_>,
        x: &Images,
        filter: OnnxValue,
        size: [OnnxDim; 2],
        group: i64,
    ) -> Result<OnnxValue> {
        // Rows and columns that no window reaches.
        let missing = [0, 1].map(|i| {
            let (OnnxDim::Known(size), OnnxDim::Known(windows), 1..) =
                (size[i], x.dims[2 + i], self.kernel[i])
            else {
                return None;
            };
            let extent = (self.kernel[i] - 1) * self.dilations[i] + 1;
            let reached = (windows - 1) * self.strides[i] + extent - self.pads[i] - self.pads[2 + i];
            Some(size - reached)
        });
        // No more than windows would reach with one more, which is cut off if unknown.
        let added = [0, 1].map(|i| missing[i].map_or(self.strides[i] - 1, |missing: i64| missing.max(0)));
        let value = self.transpose_with(graph, [x.value, filter], &added, group);
        let is_exact = |i: usize| missing[i].map_or(self.strides[i] == 1, |missing| missing == added[i]);
        // Partial windows at the end reach further.
        if is_exact(0) && is_exact(1) { Ok(value) } else { graph.first(value, &size, &[2, 3]) }
    }

    /// The same with rows and columns added at the end.
    pub(super) fn transpose_with(
        &self,
        graph: &mut OnnxGraph<'_>,
        operands: [OnnxValue; 2],
        added: &[i64],
        group: i64,
    ) -> OnnxValue {
        let mut attrs = self.attrs();
        attrs.push(("group", NodeAttr::Int(group)));
        attrs.push(("output_padding", NodeAttr::Ints(added)));
        graph.op("ConvTranspose", &operands, &attrs)
    }
}

/// A convolution from `x` to `y`, with the variables on either side.
struct ConvNodes {
    windows: OnnxWindows,
    format: DataLayout,
    group: i64,
    /// Whether padding depends on the size of images when the model runs; the windows have none.
    same: bool,
}

impl ConvNodes {
    fn of(graph: &OnnxGraph<'_>, conv: &ConvAttrs, filter: Var, x: Var) -> Result<ConvNodes> {
        let is_same = conv.padding_algorithm == PaddingAlgorithm::Same;
        let filter = if is_same { graph.dims(filter)? } else { graph.shape(filter)? };
        let format = conv.data_format;
        let size = |height: i64, width: i64| [height as usize, width as usize];
        let [.., height, width] = image_shape(graph, x, format)?;
        let has_same = is_same && [height, width].contains(&-1);
        let filter = match filter[..] {
            [_, _, height, width] => size(height.max(0), width.max(0)),
            _ => [1; 2],
        };
        // With stride 1, padding is the same for any size.
        let image = if has_same { [1; 2] } else { size(height.max(0), width.max(0)) };
        let mut windows = OnnxWindows::of(conv.windows(filter, image)?);
        let same = has_same && windows.strides != [1; 2];
        if same {
            windows.pads = [0; 4];
        }
        Ok(ConvNodes { windows, format, group: i64::from(conv.groups), same })
    }

    /// The images `y` from `x`.
    fn forward(&self, graph: &mut OnnxGraph<'_>, [x, filter]: [Var; 2]) -> Result<OnnxValue> {
        let (x, filter) = (read_images(graph, x, self.format)?, graph.read(filter)?);
        let mut attrs = self.windows.attrs();
        attrs.push(("group", NodeAttr::Int(self.group)));
        if self.same {
            attrs.retain(|(name, _)| *name != "pads");
            attrs.push(SAME);
        }
        Ok(graph.op("Conv", &[x, filter], &attrs))
    }
}

impl ExportOp for Conv2dOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let conv = ConvNodes::of(graph, &self.conv, self.filter, self.input)?;
        let value = conv.forward(graph, [self.input, self.filter])?;
        write_images(graph, self.output, value, conv.format);
        Ok(())
    }
}
impl ExportOp for Conv3dOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        // Only the padding of `SAME` depends on sizes.
        let is_same = self.conv.padding_algorithm == PaddingAlgorithm::Same;
        let dims = |of: Var| if is_same { graph.dims(of) } else { graph.shape(of) };
        let size = |dims: &[i64]| [2, 3, 4].map(|axis| dims[axis].max(0) as usize);
        let windows = self.conv.windows(size(&dims(self.filter)?), size(&dims(self.input)?))?;
        let each = |of: fn(&Windows) -> usize| windows.each_ref().map(|w| of(w) as i64);
        let kernel = each(|w| w.size);
        let attrs = [
            ("strides", NodeAttr::Ints(&each(|w| w.stride))),
            ("dilations", NodeAttr::Ints(&each(|w| w.dilation))),
            ("pads", NodeAttr::Ints(&[each(|w| w.before), each(|w| w.after)].concat())),
            ("group", NodeAttr::Int(self.conv.groups.into())),
            ("kernel_shape", NodeAttr::Ints(&kernel)),
        ];
        // Otherwise the size is the size of the filters.
        let attrs = if kernel.contains(&0) { &attrs[..4] } else { &attrs };
        let operands = [graph.read(self.input)?, graph.read(self.filter)?];
        let value = graph.op("Conv", &operands, attrs);
        graph.write(self.output, value);
        Ok(())
    }
}

impl ExportOp for Conv2dTransposeOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let conv = ConvNodes::of(graph, &self.conv, self.filter, self.input)?;
        if conv.same {
            return Err(graph.unknown_shape(self.input));
        }
        let [.., height, width] = image_shape(graph, self.output, conv.format)?;
        let [.., rows, cols] = image_shape(graph, self.input, conv.format)?;
        let mut value = if [height, width, rows, cols].iter().all(|dim| *dim >= 0) {
            let x = Images::read(graph, self.input, conv.format)?;
            let filter = graph.read(self.filter)?;
            conv.windows.transpose(graph, &x, filter, [height, width].map(OnnxDim::Known), conv.group)?
        } else if self.output_size.is_empty() {
            let x = read_images(graph, self.input, conv.format)?;
            let (filter, mut added) = (graph.read(self.filter)?, [0; 2]);
            added.iter_mut().zip(&self.output_padding).for_each(|(to, from)| *to = i64::from(*from));
            conv.windows.transpose_with(graph, [x, filter], &added, conv.group)
        } else {
            return Err(graph.unknown_shape(self.output));
        };
        if let Some(bias) = self.bias {
            let bias = graph.read(bias)?;
            let bias = graph.reshape(bias, &[-1, 1, 1])?;
            value = graph.add(value, bias);
        }
        write_images(graph, self.output, value, conv.format);
        Ok(())
    }
}
