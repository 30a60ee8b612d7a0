//! Images in other sizes, and at other positions.

use autobwd::{DType, Error, ErrorKind, Result, Tensor, program::Var};
use autobwd_ops::{
    image::{AffineGrid, AffineGridGrad, GridMode, GridPadding, GridSampler},
    interpolate::{
        BilinearInterpV2, BilinearInterpV2Grad, InterpAttrs, InterpMethod, NearestInterpV2,
        NearestInterpV2Grad,
    },
    norm::DataLayout,
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    fill::shape_from,
    linear::without_zeros,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<AffineGrid>(),
        rule::<AffineGridGrad>(),
        rule::<BilinearInterpV2>(),
        rule::<BilinearInterpV2Grad>(),
        rule::<GridSampler>(),
        rule::<NearestInterpV2>(),
        rule::<NearestInterpV2Grad>(),
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

    /// `Resize` of the axes that a target describes.
    fn resize(
        &self,
        graph: &mut OnnxGraph<'_>,
        x: OnnxValue,
        target: &ResizeTarget,
        axes: &[i64],
    ) -> OnnxValue {
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
            ("axes", NodeAttr::Ints(axes)),
        ];
        let inputs = match target {
            ResizeTarget::Factors(factors) => [Some(x), None, Some(*factors), None],
            ResizeTarget::Sizes(sizes) => [Some(x), None, None, Some(*sizes)],
        };
        let [value] = graph.nodes("Resize", &inputs, &attrs);
        value
    }

    /// `out` = `x` in another size.
    fn forward(&self, graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2]) -> Result<()> {
        let target = self.target(graph, [x, out])?;
        let x = graph.read(x)?;
        let value = self.resize(graph, x, &target, &[2, 3]);
        graph.write(out, value);
        Ok(())
    }

    /// The weights with which the elements along an axis of `x` contribute to those of `dout`: the resized unit
    /// vectors, `[elements of x, elements of dout]`.
    fn weights(
        &self,
        graph: &mut OnnxGraph<'_>,
        (x, dtype): (Var, DType),
        target: &ResizeTarget,
        axis: usize,
    ) -> Result<OnnxValue> {
        let of_x = graph.merged_dims(x, axis, axis + 1)?;
        let one = OnnxDim::Known(1);
        let zeros = graph.filled_to(dtype, 0.0, &[of_x, of_x])?;
        let vectors = graph.op("EyeLike", &[zeros], &[]);
        let vectors = graph.reshape_to(vectors, &[one, of_x, of_x, one])?;
        let at = [graph.ints(&[axis as i64 - 2])?, graph.ints(&[axis as i64 - 1])?];
        let part = |pair: OnnxValue| graph.op("Slice", &[pair, at[0], at[1]], &[]);
        let target = match target {
            ResizeTarget::Factors(factors) => ResizeTarget::Factors(part(*factors)),
            ResizeTarget::Sizes(sizes) => ResizeTarget::Sizes(part(*sizes)),
        };
        let resized = self.resize(graph, vectors, &target, &[2]);
        graph.squeeze(resized, &[0, 3])
    }

    /// `dx` = the sum of `dout`, each multiplied by the weight with which the element contributes to it.
    fn backward(&self, graph: &mut OnnxGraph<'_>, [x, dout, dx]: [Var; 3]) -> Result<()> {
        let (target, of) = (self.target(graph, [x, dout])?, (x, graph.dtype(dout)?));
        let [down, across] = [self.weights(graph, of, &target, 2)?, self.weights(graph, of, &target, 3)?];
        let (dout, across) = (graph.read(dout)?, graph.transposed(across, 2));
        let value = without_zeros(graph, dout, of.1, |graph, dout| {
            let rows = graph.op("MatMul", &[dout, across], &[]);
            Ok(graph.op("MatMul", &[down, rows], &[]))
        })?;
        graph.write(dx, value);
        Ok(())
    }
}

macro_rules! resizing {
    ($($forward:ident $grad:ident),*) => {$(
        impl ExportOp for $forward {
            fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
                let (interp, out_size, scale) = (&self.interp, self.out_size, self.scale);
                let resizing = ResizeForm { interp, out_size, size_tensor: &self.size_tensor, scale };
                resizing.forward(graph, [self.x, self.out])
            }
        }
        impl ExportOp for $grad {
            fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
                let (interp, out_size, scale) = (&self.interp, self.out_size, self.scale);
                let resizing = ResizeForm { interp, out_size, size_tensor: &self.size_tensor, scale };
                resizing.backward(graph, [self.x, self.dout, self.dx])
            }
        }
    )*};
}
resizing!(BilinearInterpV2 BilinearInterpV2Grad, NearestInterpV2 NearestInterpV2Grad);

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

/// The positions `x, y, 1` of all elements of an image, `[height * width, 3]`.
fn positions(graph: &mut OnnxGraph<'_>, grid: Var, align_corners: bool) -> Result<(OnnxValue, [i64; 2])> {
    let size = [graph.dim(grid, 1)?, graph.dim(grid, 2)?];
    let along = |i: i64, n: i64| {
        let edge = if align_corners { 1.0 } else { (n as f64 - 1.0) / n as f64 };
        let way = if n > 1 { 2.0 * edge * i as f64 / (n as f64 - 1.0) } else { 0.0 };
        way - edge
    };
    let [height, width] = size;
    let pairs = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
    let elements = pairs.flat_map(|(row, column)| [along(column, width), along(row, height), 1.0]);
    let tensor = Tensor::from_vec([(height * width) as usize, 3], elements.collect())?;
    let (value, dtype) = (graph.tensor(&tensor), graph.dtype(grid)?);
    Ok((graph.cast(value, dtype), size))
}

impl ExportOp for AffineGrid {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (positions, [height, width]) = positions(graph, self.output, self.align_corners)?;
        let theta = graph.read(self.theta)?;
        let theta = graph.transposed(theta, 3);
        let grid = graph.op("MatMul", &[positions, theta], &[]);
        let images = graph.merged_dims(self.theta, 0, 1)?;
        let dims = [images, OnnxDim::Known(height), OnnxDim::Known(width), OnnxDim::Known(2)];
        let grid = graph.reshape_to(grid, &dims)?;
        graph.write(self.output, grid);
        Ok(())
    }
}
impl ExportOp for AffineGridGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (positions, [height, width]) = positions(graph, self.doutput, self.align_corners)?;
        let images = graph.merged_dims(self.doutput, 0, 1)?;
        let dims = [images, OnnxDim::Known(height * width), OnnxDim::Known(2)];
        let doutput = graph.read(self.doutput)?;
        let doutput = graph.reshape_to(doutput, &dims)?;
        let doutput = graph.transposed(doutput, 3);
        let dtheta = graph.op("MatMul", &[doutput, positions], &[]);
        graph.write(self.dtheta, dtheta);
        Ok(())
    }
}
