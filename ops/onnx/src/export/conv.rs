//! Convolutions.

use autobwd::{Error, Result, op::Rule, tensor::Dim};
use autobwd_ops::{
    conv::{Conv2dOp, Conv2dTransposeOp, Conv3dOp, ConvAttrs},
    norm::DataLayout,
    windows::{PaddingAlgorithm, Windows},
};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(Conv2dOp, Conv2dTransposeOp, Conv3dOp);

/// The attribute of nodes that pad images as `SAME`, whatever their size is.
pub(super) const SAME: (&str, NodeAttr<'_>) = ("auto_pad", NodeAttr::Text("SAME_UPPER"));

/// Images with the channels first, as ONNX has them.
pub(super) fn channels_first(x: &Onnx, format: DataLayout) -> Onnx {
    if format == DataLayout::Nhwc { x.permute(&[0, 3, 1, 2]) } else { x.clone() }
}

/// Images with the channels first, in that layout.
pub(super) fn in_layout(x: Onnx, format: DataLayout) -> Onnx {
    if format == DataLayout::Nhwc { x.permute(&[0, 2, 3, 1]) } else { x }
}

/// Height and width of images.
fn image_size(x: &Onnx, format: DataLayout) -> [Dim; 2] {
    let first = if format == DataLayout::Nhwc { 1 } else { 2 };
    [first, first + 1].map(|axis| x.dims().get(axis).copied().unwrap_or(Dim::UNKNOWN))
}

/// The attributes of windows, as ONNX has them.
#[derive(Clone)]
pub(super) struct OnnxWindows {
    /// Contains 0 where the size is unknown.
    kernel: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// Before all axes, then after them.
    pads: Vec<i64>,
}

impl OnnxWindows {
    pub(super) fn of(windows: &[Windows]) -> OnnxWindows {
        let each = |of: fn(&Windows) -> usize| windows.iter().map(|w| of(w) as i64).collect::<Vec<_>>();
        OnnxWindows {
            kernel: each(|w| w.size),
            strides: each(|w| w.stride),
            dilations: each(|w| w.dilation),
            pads: [each(|w| w.before), each(|w| w.after)].concat(),
        }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, NodeAttr<'_>)> {
        let mut attrs = vec![
            ("strides", NodeAttr::Ints(&self.strides)),
            ("dilations", NodeAttr::Ints(&self.dilations)),
            ("pads", NodeAttr::Ints(&self.pads)),
        ];
        // Otherwise the size is the size of the filters.
        if !self.kernel.contains(&0) {
            attrs.push(("kernel_shape", NodeAttr::Ints(&self.kernel)));
        }
        attrs
    }
}

/// A size for the rule of windows: 0 where it is unknown, on which only the padding of `SAME` depends.
fn size(dims: &[Dim]) -> Vec<usize> {
    dims.iter().map(|dim| dim.get().unwrap_or(0)).collect()
}

fn pair(dims: &[Dim]) -> [usize; 2] {
    let size = size(dims);
    [0, 1].map(|i| size.get(i).copied().unwrap_or(1))
}

/// Fails the operator.
fn or_fail<T>(x: &Onnx, outcome: Result<T>) -> Option<T> {
    outcome.map_err(|e| x.fail(e.message())).ok()
}

/// The windows of images, and whether their padding depends on a size that is known only when the model runs.
fn image_windows(conv: &ConvAttrs, x: &Onnx, filter: &Onnx) -> Result<(OnnxWindows, bool)> {
    let (size, kernel) = (image_size(x, conv.data_format), &filter.dims()[2..]);
    let is_same = conv.padding_algorithm == PaddingAlgorithm::Same;
    if is_same && kernel.iter().any(|dim| dim.is_open()) {
        return Err(Error::attr("padding_algorithm", "`SAME` needs filters of known size"));
    }
    // With stride 1, padding is the same for any size.
    let has_open_padding = is_same && size.iter().any(|dim| dim.is_open());
    let image = if has_open_padding { [1; 2] } else { pair(&size) };
    let mut windows = OnnxWindows::of(&conv.windows(pair(kernel), image)?);
    let is_open = has_open_padding && windows.strides != [1; 2];
    if is_open {
        windows.pads.fill(0);
    }
    Ok((windows, is_open))
}

impl Rule<Onnx> for Conv2dOp<Onnx> {
    fn apply(&mut self) {
        let windows = image_windows(&self.conv, &self.input, &self.filter);
        let Some((windows, is_open)) = or_fail(&self.input, windows) else { return };
        let mut attrs = windows.attrs();
        attrs.push(("group", NodeAttr::Int(self.conv.groups.into())));
        if is_open {
            attrs.retain(|(name, _)| *name != "pads");
            attrs.push(SAME);
        }
        let images = channels_first(&self.input, self.conv.data_format);
        self.output = in_layout(images.node("Conv", &[&self.filter], &attrs), self.conv.data_format);
    }
}

impl Rule<Onnx> for Conv3dOp<Onnx> {
    fn fits(&self) -> bool {
        let is_same = self.conv.padding_algorithm == PaddingAlgorithm::Same;
        !is_same || (self.input.known_dims().is_some() && self.filter.known_dims().is_some())
    }

    fn apply(&mut self) {
        let volume = |x: &Onnx| {
            let size = size(&x.dims()[2..]);
            [0, 1, 2].map(|i| size.get(i).copied().unwrap_or(1))
        };
        let windows = self.conv.windows(volume(&self.filter), volume(&self.input));
        let Some(windows) = or_fail(&self.input, windows) else { return };
        let windows = OnnxWindows::of(&windows);
        let mut attrs = windows.attrs();
        attrs.push(("group", NodeAttr::Int(self.conv.groups.into())));
        self.output = self.input.node("Conv", &[&self.filter], &attrs);
    }
}

impl Rule<Onnx> for Conv2dTransposeOp<Onnx> {
    fn apply(&mut self) {
        let format = self.conv.data_format;
        let windows = image_windows(&self.conv, &self.input, &self.filter);
        let Some((windows, is_open)) = or_fail(&self.input, windows) else { return };
        let known = |x: &Onnx| {
            let [height, width] = image_size(x, format).map(|dim| dim.get().map(|dim| dim as i64));
            Some([height?, width?])
        };
        let sizes = known(&self.output).zip(known(&self.input)).filter(|_| !windows.kernel.contains(&0));
        if is_open || (sizes.is_none() && !self.output_size.is_empty()) {
            self.input.fail(format!("the shape {} of the images must be known", self.input.dims()));
            return;
        }
        // Rows and columns that no window reaches.
        let missing = sizes.map(|(size, count)| {
            [0, 1].map(|i| {
                let extent = (windows.kernel[i] - 1) * windows.dilations[i] + 1;
                size[i] - (count[i] - 1) * windows.strides[i] - extent + windows.pads[i] + windows.pads[2 + i]
            })
        });
        let mut added = [0; 2];
        match missing {
            Some(missing) => added = missing.map(|missing| missing.max(0)),
            None => added.iter_mut().zip(&self.output_padding).for_each(|(to, from)| *to = i64::from(*from)),
        }
        let mut attrs = windows.attrs();
        attrs.push(("group", NodeAttr::Int(self.conv.groups.into())));
        attrs.push(("output_padding", NodeAttr::Ints(&added)));
        let mut value = channels_first(&self.input, format).node("ConvTranspose", &[&self.filter], &attrs);
        // Partial windows at the end reach further.
        if let Some((size, _)) = sizes.filter(|_| missing.is_some_and(|missing| missing != added)) {
            let [start, end, axes] = [[0, 0], size, [2, 3]].map(|ints| value.ints(&ints));
            value = value.node("Slice", &[&start, &end, &axes], &[]);
        }
        if let Some(bias) = &self.bias {
            value = value + bias.reshape(&[-1, 1, 1]);
        }
        self.output = in_layout(value, format);
    }
}
