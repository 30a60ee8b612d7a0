//! Images in other sizes, and at other positions.

use autobwd::{DType, Error, ErrorKind, Result, program::Var};
use autobwd_ops::{
    image::{GridMode, GridPadding, GridSampler, Pad3d, PadMode, PixelShuffle, VolumeLayout},
    interpolate::{BilinearInterpV2, InterpAttrs, InterpMethod, NearestInterpV2},
    norm::DataLayout,
};

use super::{
    ExportOp, ExportRule,
    conv::{read_images, write_images},
    dims::OnnxDim,
    dims::shape_from,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<BilinearInterpV2>(),
        rule::<GridSampler>(),
        rule::<NearestInterpV2>(),
        rule::<Pad3d>(),
        rule::<PixelShuffle>(),
    ]
}

/// The attributes of resizing, and the tensors that may replace them.
struct ResizeForm<'a> {
    interp: &'a InterpAttrs,
    out_size: Option<Var>,
    size_tensor: &'a [Var],
    scale: Option<Var>,
}

/// What decides about positions and sizes.
enum ResizeTarget {
    /// The factors of height and width.
    Factors(OnnxValue),
    /// Height and width of the result.
    Sizes(OnnxValue),
}

impl ResizeForm<'_> {
    /// The factors, or the size of images that are computed from `x`.
    fn target(&self, graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2]) -> Result<ResizeTarget> {
        if self.interp.data_layout == DataLayout::Nhwc {
            return Err(Error::new(ErrorKind::Format, "images with the channels last cannot be resized"));
        }
        let (from, to) = (graph.shape(x)?, graph.shape(out)?);
        let known = |dims: &[i64]| dims.iter().skip(2).all(|dim| *dim >= 0);
        // Factors decide about positions, too, except with aligned corners, and if the size stays.
        let sized = known(&to) && (self.interp.align_corners || (known(&from) && from[2..] == to[2..]));
        // Single dimensions come first.
        let whole = self.out_size.filter(|_| self.size_tensor.is_empty());
        let given = shape_from(graph, whole, self.size_tensor)?;
        if sized
            || (known(&to) && (given.is_some() || (self.scale.is_none() && self.interp.scale.is_empty())))
        {
            return Ok(ResizeTarget::Sizes(graph.ints(&to[2..])?));
        }
        if let Some(sizes) = given {
            return Ok(ResizeTarget::Sizes(sizes));
        }
        let factors = match (self.scale, &self.interp.scale[..]) {
            (Some(scale), _) => {
                let value = graph.read(scale)?;
                let value = graph.cast(value, DType::F32);
                let value = graph.reshape(value, &[-1])?;
                let two = graph.ints(&[2])?;
                graph.op("Expand", &[value, two], &[])
            }
            (None, [down, across]) => graph.floats(&[*down, *across])?,
            _ => return Ok(ResizeTarget::Sizes(self.given_size(graph)?)),
        };
        if !self.interp.align_corners {
            return Ok(ResizeTarget::Factors(factors));
        }
        let x = graph.read(x)?;
        let size = graph.shape_list(&[OnnxDim::Of(x, 2, 3), OnnxDim::Of(x, 3, 4)])?;
        let size = graph.cast(size, DType::F32);
        let size = graph.mul(size, factors);
        Ok(ResizeTarget::Sizes(graph.cast(size, DType::I64)))
    }

    fn given_size(&self, graph: &mut OnnxGraph<'_>) -> Result<OnnxValue> {
        graph.ints(&[self.interp.out_h.into(), self.interp.out_w.into()])
    }

    /// `out` = `x` in another size.
    fn export(&self, graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2]) -> Result<()> {
        let target = self.target(graph, [x, out])?;
        let nearest = self.interp.interp_method == InterpMethod::Nearest;
        let positions = match (self.interp.align_corners, nearest || self.interp.align_mode == 1) {
            (true, _) => "align_corners",
            (_, true) => "asymmetric",
            _ => "half_pixel",
        };
        // The nearest element: halves are rounded up with aligned corners; positions are rounded down without.
        let rounding = if self.interp.align_corners { "round_prefer_ceil" } else { "floor" };
        let attrs = [
            ("mode", NodeAttr::Text(if nearest { "nearest" } else { "linear" })),
            ("coordinate_transformation_mode", NodeAttr::Text(positions)),
            ("nearest_mode", NodeAttr::Text(rounding)),
            ("axes", NodeAttr::Ints(&[2, 3])),
        ];
        let x = Some(graph.read(x)?);
        let inputs = match target {
            ResizeTarget::Factors(factors) => [x, None, Some(factors), None],
            ResizeTarget::Sizes(sizes) => [x, None, None, Some(sizes)],
        };
        let [value] = graph.nodes("Resize", &inputs, &attrs);
        graph.write(out, value);
        Ok(())
    }
}

// Native: gathers and weighted sums take 12 times as long in ONNX Runtime.
macro_rules! resizing {
    ($($op:ident),*) => {$(
        impl ExportOp for $op {
            fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
                let (interp, out_size, scale) = (&self.interp, self.out_size, self.scale);
                let resizing = ResizeForm { interp, out_size, size_tensor: &self.size_tensor, scale };
                resizing.export(graph, [self.x, self.out])
            }
        }
    )*};
}
resizing!(BilinearInterpV2, NearestInterpV2);

impl ExportOp for GridSampler {
    fn has_form(&self) -> bool {
        // ONNX rounds positions halfway between two elements to the even one.
        self.mode == GridMode::Bilinear
    }

    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let padding = match self.padding_mode {
            GridPadding::Zeros => "zeros",
            GridPadding::Border => "border",
            GridPadding::Reflection => "reflection",
        };
        let attrs = [
            ("mode", NodeAttr::Text("bilinear")),
            ("padding_mode", NodeAttr::Text(padding)),
            ("align_corners", NodeAttr::Int(i64::from(self.align_corners))),
        ];
        let operands = [graph.read(self.x)?, graph.read(self.grid)?];
        let value = graph.op("GridSample", &operands, &attrs);
        graph.write(self.output, value);
        Ok(())
    }
}

// Native: a reshape between two others takes twice as long in ONNX Runtime.
impl ExportOp for PixelShuffle {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = read_images(graph, self.x, self.data_format)?;
        let size = NodeAttr::Int(self.upscale_factor.into());
        let attrs = [("blocksize", size), ("mode", NodeAttr::Text("CRD"))];
        let value = graph.op("DepthToSpace", &[value], &attrs);
        write_images(graph, self.out, value, self.data_format);
        Ok(())
    }
}

// Native: one node in place of three gathers with computed indices. The composition has a node `Pad` for constants;
// circular padding came with version 19 of the operators.
impl ExportOp for Pad3d {
    fn has_form(&self) -> bool {
        self.paddings_tensor.is_none() && matches!(self.mode, PadMode::Reflect | PadMode::Replicate)
    }

    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let &[left, right, top, bottom, front, back] = &self.paddings[..] else {
            return Err(Error::new(ErrorKind::Format, "padding of volumes needs six numbers"));
        };
        let first = if self.data_format == VolumeLayout::Ndhwc { 1 } else { 2 };
        let pads = graph.ints(&[front, top, left, back, bottom, right].map(i64::from))?;
        let axes = graph.ints(&[first, first + 1, first + 2])?;
        let mode = if self.mode == PadMode::Reflect { "reflect" } else { "edge" };
        let operands = [Some(graph.read(self.x)?), Some(pads), None, Some(axes)];
        let [value] = graph.nodes("Pad", &operands, &[("mode", NodeAttr::Text(mode))]);
        graph.write(self.out, value);
        Ok(())
    }
}
