//! Images in other sizes.

use autobwd::{Error, ErrorKind, Result, program::Var};
use autobwd_ops::{
    interpolate::{BilinearInterpV2, InterpAttrs, InterpMethod, NearestInterpV2},
    norm::DataLayout,
};

use super::{
    Lower, LowerRule,
    conv::image_dims,
    onnx_graph::{NodeAttr, OnnxGraph},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    vec![rule::<BilinearInterpV2>(), rule::<NearestInterpV2>()]
}

/// `out` = `x` in the size of `out`, or by constant factors.
fn resize(graph: &mut OnnxGraph<'_>, [x, out]: [Var; 2], interp: &InterpAttrs) -> Result<()> {
    if interp.data_layout == DataLayout::Nhwc {
        return Err(Error::new(ErrorKind::Format, "images with the channels last cannot be resized"));
    }
    let nearest = interp.interp_method == InterpMethod::Nearest;
    let positions = match (interp.align_corners, nearest || interp.align_mode == 1) {
        (true, _) => "align_corners",
        (_, true) => "asymmetric",
        _ => "half_pixel",
    };
    // The nearest element: halves are rounded up with aligned corners; positions are rounded down without.
    let rounding = if interp.align_corners { "round_prefer_ceil" } else { "floor" };
    let attrs = [
        ("mode", NodeAttr::Text(if nearest { "nearest" } else { "linear" })),
        ("coordinate_transformation_mode", NodeAttr::Text(positions)),
        ("nearest_mode", NodeAttr::Text(rounding)),
    ];
    let value = graph.read(x)?;
    // Factors decide about positions, too, except with aligned corners.
    let factors = if interp.align_corners { &[] } else { &interp.scale[..] };
    let inputs = match *factors {
        [down, across] => [Some(value), None, Some(graph.floats(&[1.0, 1.0, down, across])?), None],
        [both] => [Some(value), None, Some(graph.floats(&[1.0, 1.0, both, both])?), None],
        _ => {
            let dims = image_dims(graph, out, DataLayout::Nchw)?;
            [Some(value), None, None, Some(graph.ints(&dims)?)]
        }
    };
    let [value] = graph.nodes("Resize", &inputs, &attrs);
    graph.write(out, value);
    Ok(())
}

impl Lower for BilinearInterpV2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        resize(graph, [self.x, self.out], &self.interp)
    }
}
impl Lower for NearestInterpV2 {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        resize(graph, [self.x, self.out], &self.interp)
    }
}
