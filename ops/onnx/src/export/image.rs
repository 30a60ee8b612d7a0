//! Native forms for images in other sizes, and at other positions.

use autobwd::{DType, op::Rule};
use autobwd_ops::{
    image::{GridMode, GridPadding, GridSampler, Pad3d, PadMode, PixelShuffle, VolumeLayout},
    interpolate::{BilinearInterpV2, InterpAttrs, InterpMethod, NearestInterpV2},
    norm::DataLayout,
};

use super::{
    NodeAttr, Onnx,
    conv::{channels_first, in_layout},
};
use crate::rules;

rules!(BilinearInterpV2, GridSampler, NearestInterpV2, Pad3d, PixelShuffle);

/// The factors or else the size of images that are resized from `x` to `out`.
fn factors_or_size(
    interp: &InterpAttrs,
    [x, out]: [&Onnx; 2],
    given: Option<Onnx>,
    scale: &Option<Onnx>,
) -> [Option<Onnx>; 2] {
    let size =
        |x: &Onnx| x.dims().iter().skip(2).map(|dim| Some(dim.get()? as i64)).collect::<Option<Vec<_>>>();
    let (from, to) = (size(x), size(out));
    // Factors also decide about positions, except with aligned corners, and if the size stays.
    let is_sized = interp.align_corners || (from.is_some() && from == to);
    let has_no_factors = scale.is_none() && interp.scale.is_empty();
    if let Some(to) = to.filter(|_| is_sized || given.is_some() || has_no_factors) {
        return [None, Some(x.ints(&to))];
    }
    if given.is_some() {
        return [None, given];
    }
    let factors = match (scale, &interp.scale[..]) {
        (Some(scale), _) => scale.cast(DType::F32).reshape(&[-1]).node("Expand", &[&x.ints(&[2])], &[]),
        (None, factors) if !factors.is_empty() => x.floats(factors),
        _ => return [None, Some(x.ints(&[interp.out_h.into(), interp.out_w.into()]))],
    };
    if !interp.align_corners {
        return [Some(factors), None];
    }
    let size = x.shape().node("Slice", &[&x.ints(&[2]), &x.ints(&[4])], &[]).cast(DType::F32);
    [None, Some((size * factors).cast(DType::I64))]
}

/// Images in another size.
fn resized(interp: &InterpAttrs, x: &Onnx, target: &[Option<Onnx>; 2]) -> Option<Onnx> {
    let is_nearest = interp.interp_method == InterpMethod::Nearest;
    let positions = match (interp.align_corners, is_nearest || interp.align_mode == 1) {
        (true, _) => "align_corners",
        (_, true) => "asymmetric",
        _ => "half_pixel",
    };
    // The nearest element: halves are rounded up with aligned corners; positions are rounded down without.
    let rounding = if interp.align_corners { "round_prefer_ceil" } else { "floor" };
    let attrs = [
        ("mode", NodeAttr::Text(if is_nearest { "nearest" } else { "linear" })),
        ("coordinate_transformation_mode", NodeAttr::Text(positions)),
        ("nearest_mode", NodeAttr::Text(rounding)),
        ("axes", NodeAttr::Ints(&[2, 3])),
    ];
    let [factors, size] = target;
    x.many("Resize", &[None, factors.as_ref(), size.as_ref()], &attrs, 1).pop()
}

// Native: gathers and weighted sums take 12 times as long in ONNX Runtime.
macro_rules! resizing {
    ($($op:ident),*) => {$(
        impl Rule<Onnx> for $op<Onnx> {
            fn fits(&self) -> bool {
                self.interp.data_layout != DataLayout::Nhwc
            }

            fn apply(&mut self) {
                // Single dimensions come first.
                let whole = self.out_size.take().filter(|_| self.size_tensor.is_empty());
                let given = Onnx::given(&whole, &self.size_tensor);
                let target = factors_or_size(&self.interp, [&self.x, &self.out], given, &self.scale);
                if let Some(out) = resized(&self.interp, &self.x, &target) {
                    self.out = out;
                }
            }
        }
    )*};
}
resizing!(BilinearInterpV2, NearestInterpV2);

impl Rule<Onnx> for GridSampler<Onnx> {
    fn fits(&self) -> bool {
        // ONNX rounds positions halfway between two elements to the even one.
        self.mode == GridMode::Bilinear
    }

    fn apply(&mut self) {
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
        self.output = self.x.node("GridSample", &[&self.grid], &attrs);
    }
}

// Native: a reshape between two others takes twice as long in ONNX Runtime.
impl Rule<Onnx> for PixelShuffle<Onnx> {
    fn apply(&mut self) {
        let size = NodeAttr::Int(self.upscale_factor.into());
        let attrs = [("blocksize", size), ("mode", NodeAttr::Text("CRD"))];
        let images = channels_first(&self.x, self.data_format).node("DepthToSpace", &[], &attrs);
        self.out = in_layout(images, self.data_format);
    }
}

// Native: one node in place of three gathers with computed indices. The composition has a node `Pad` for constants;
// circular padding came with version 19 of the operators.
impl Rule<Onnx> for Pad3d<Onnx> {
    fn fits(&self) -> bool {
        self.paddings_tensor.is_none() && matches!(self.mode, PadMode::Reflect | PadMode::Replicate)
    }

    fn apply(&mut self) {
        let &[left, right, top, bottom, front, back] = &self.paddings[..] else {
            return self.x.fail("padding of volumes needs six numbers");
        };
        let first = if self.data_format == VolumeLayout::Ndhwc { 1 } else { 2 };
        let pads = self.x.ints(&[front, top, left, back, bottom, right].map(i64::from));
        let axes = self.x.ints(&[first, first + 1, first + 2]);
        let mode = if self.mode == PadMode::Reflect { "reflect" } else { "edge" };
        let inputs = [Some(&pads), None, Some(&axes)];
        if let Some(out) = self.x.many("Pad", &inputs, &[("mode", NodeAttr::Text(mode))], 1).pop() {
            self.out = out;
        }
    }
}
