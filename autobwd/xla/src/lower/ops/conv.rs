//! Convolutions and their gradients, which are convolutions, too.

use autobwd_ops::{
    conv::{
        Conv2dGrad, Conv2dOp, Conv2dTransposeGrad, Conv2dTransposeOp, ConvAttrs, DepthwiseConv2d,
        DepthwiseConv2dGrad,
    },
    norm::DataLayout,
    windows::Windows,
};

use super::prelude::*;
use crate::lower::{Convolution, ConvolutionLayout};

family!(Conv2dGrad, Conv2dOp, Conv2dTransposeGrad, Conv2dTransposeOp, DepthwiseConv2d, DepthwiseConv2dGrad);

/// The axes of height and width.
pub(super) fn spatial(format: DataLayout) -> [usize; 2] {
    if format == DataLayout::Nhwc { [1, 2] } else { [2, 3] }
}

fn channels(format: DataLayout) -> usize {
    if format == DataLayout::Nhwc { 3 } else { 1 }
}

/// A convolution of images with filters `[out, in / groups, height, width]`.
struct Conv<'a> {
    conv: &'a ConvAttrs,
    /// Vertical and horizontal.
    windows: [Windows; 2],
    groups: usize,
    filter: [usize; 2],
    images: &'static str,
}

impl<'a> Conv<'a> {
    /// `over` are the images to which padding algorithms refer.
    fn of(conv: &'a ConvAttrs, filter: &Hlo, over: &Hlo) -> Option<Conv<'a>> {
        let size = spatial(conv.data_format).map(|axis| over.dims()[axis]);
        let kernel = [filter.dims()[2], filter.dims()[3]];
        let windows = match conv.windows(kernel, size) {
            Ok(windows) => windows,
            Err(e) => {
                filter.fail(e.message());
                return None;
            }
        };
        let images = if conv.data_format == DataLayout::Nhwc { "b, 0, 1, f" } else { "b, f, 0, 1" };
        Some(Conv { conv, windows, groups: conv.groups.max(1) as usize, filter: kernel, images })
    }

    fn each<T>(&self, of: impl Fn(usize, &Windows) -> T) -> Vec<T> {
        self.windows.iter().enumerate().map(|(i, windows)| of(i, windows)).collect()
    }

    /// The extent of a window.
    fn extent(&self, i: usize) -> usize {
        (self.filter[i] - 1) * self.windows[i].dilation + 1
    }

    fn forward(&self, x: &Hlo, filter: &Hlo, dims: &[usize]) -> Hlo {
        let axes = spatial(self.conv.data_format);
        let padding = self.each(|i, w| {
            // As many windows as the result has.
            let covered = (dims[axes[i]] as i64 - 1) * w.stride as i64 + self.extent(i) as i64;
            (w.before as i64, covered - x.dims()[axes[i]] as i64 - w.before as i64)
        });
        let layout = ConvolutionLayout { images: self.images, filters: "o, i, 0, 1", out: self.images };
        let by = Convolution {
            layout,
            strides: self.each(|_, w| w.stride),
            padding,
            image_dilations: vec![1; 2],
            filter_dilations: self.each(|_, w| w.dilation),
            groups: self.groups,
            batch_groups: 1,
        };
        x.convolve(filter, &by, dims)
    }

    /// The gradient of the images: `dy` with zeros between its elements, convolved with the mirrored filters.
    fn data_gradient(&self, dy: &Hlo, filter: &Hlo, dims: &[usize]) -> Hlo {
        let axes = spatial(self.conv.data_format);
        // [out, in / groups, h, w] → [in, out / groups, h, w]: filters of a group stay with it.
        let [outputs, share, height, width] = [0, 1, 2, 3].map(|axis| filter.dims()[axis]);
        let grouped = filter.reshape(&[self.groups, outputs / self.groups, share, height, width]);
        let swapped = grouped.transpose(&[0, 2, 1, 3, 4]);
        let mirrored =
            swapped.reshape(&[self.groups * share, outputs / self.groups, height, width]).reverse(&[2, 3]);
        let padding = self.each(|i, w| {
            let low = self.extent(i) as i64 - 1 - w.before as i64;
            let dilated = (dy.dims()[axes[i]] as i64 - 1) * w.stride as i64 + 1;
            (low, dims[axes[i]] as i64 - 1 + self.extent(i) as i64 - dilated - low)
        });
        let layout = ConvolutionLayout { images: self.images, filters: "o, i, 0, 1", out: self.images };
        let by = Convolution {
            layout,
            strides: vec![1; 2],
            padding,
            image_dilations: self.each(|_, w| w.stride),
            filter_dilations: self.each(|_, w| w.dilation),
            groups: self.groups,
            batch_groups: 1,
        };
        dy.convolve(&mirrored, &by, dims)
    }

    /// The gradient of the filters: images convolved with `dy`, with channels in place of images.
    fn filter_gradient(&self, x: &Hlo, dy: &Hlo, dims: &[usize]) -> Hlo {
        let axes = spatial(self.conv.data_format);
        let padding = self.each(|i, w| {
            let windows = (dy.dims()[axes[i]] as i64 - 1) * w.stride as i64 + 1;
            let covered = (self.filter[i] as i64 - 1) * w.dilation as i64 + windows;
            (w.before as i64, covered - x.dims()[axes[i]] as i64 - w.before as i64)
        });
        let nhwc = self.conv.data_format == DataLayout::Nhwc;
        let layout = ConvolutionLayout {
            images: if nhwc { "f, 0, 1, b" } else { "f, b, 0, 1" },
            filters: if nhwc { "i, 0, 1, o" } else { "i, o, 0, 1" },
            out: "f, b, 0, 1",
        };
        // Channels are the batch: each group of them meets the outputs of its group.
        let by = Convolution {
            layout,
            strides: self.each(|_, w| w.dilation),
            padding,
            image_dilations: vec![1; 2],
            filter_dilations: self.each(|_, w| w.stride),
            groups: 1,
            batch_groups: self.groups,
        };
        x.convolve(dy, &by, dims)
    }
}

/// `output` = the convolution of `input`.
fn forward(conv: &ConvAttrs, input: &Hlo, filter: &Hlo, output: &mut Hlo) {
    if let Some(by) = Conv::of(conv, filter, input) {
        *output = empty_or(output, &[input, filter], || by.forward(input, filter, output.dims()));
    }
}

fn gradients(conv: &ConvAttrs, [x, filter, dy]: [&Hlo; 3], [dx, dfilter]: [&mut Option<Hlo>; 2]) {
    let Some(by) = Conv::of(conv, filter, x) else { return };
    if let Some(dx) = dx {
        *dx = empty_or(dx, &[filter, dy], || by.data_gradient(dy, filter, dx.dims()));
    }
    if let Some(dfilter) = dfilter {
        *dfilter = empty_or(dfilter, &[x, dy], || by.filter_gradient(x, dy, dfilter.dims()));
    }
}

/// Zeros if a factor has no elements.
fn empty_or(out: &Hlo, factors: &[&Hlo], value: impl FnOnce() -> Hlo) -> Hlo {
    let is_empty = out.numel() == 0 || factors.iter().any(|factor| factor.numel() == 0);
    if is_empty { out.full_like(0.0) } else { value() }
}

impl Lower for Conv2dOp<Hlo> {
    fn lower(&mut self) {
        forward(&self.conv, &self.input, &self.filter, &mut self.output);
    }
}
impl Lower for Conv2dGrad<Hlo> {
    fn lower(&mut self) {
        let slots = [&self.input, &self.filter, &self.doutput];
        gradients(&self.conv, slots, [&mut self.dinput, &mut self.dfilter]);
    }
}
impl Lower for DepthwiseConv2d<Hlo> {
    fn lower(&mut self) {
        forward(&self.conv, &self.input, &self.filter, &mut self.output);
    }
}
impl Lower for DepthwiseConv2dGrad<Hlo> {
    fn lower(&mut self) {
        let slots = [&self.input, &self.filter, &self.doutput];
        gradients(&self.conv, slots, [&mut self.dinput, &mut self.dfilter]);
    }
}

impl Lower for Conv2dTransposeOp<Hlo> {
    fn lower(&mut self) {
        let Some(by) = Conv::of(&self.conv, &self.filter, &self.input) else { return };
        let (y, filter) = (&self.input, &self.filter);
        let out = empty_or(&self.output, &[y, filter], || by.data_gradient(y, filter, self.output.dims()));
        self.output = match &self.bias {
            None => out,
            Some(bias) => &out + bias.broadcast(out.dims(), &[channels(self.conv.data_format)]),
        };
    }
}
impl Lower for Conv2dTransposeGrad<Hlo> {
    fn lower(&mut self) {
        let Some(by) = Conv::of(&self.conv, &self.filter, &self.input) else { return };
        let (x, filter, y) = (&self.doutput, &self.filter, &self.input);
        if let Some(dinput) = &mut self.dinput {
            *dinput = empty_or(dinput, &[x, filter], || by.forward(x, filter, dinput.dims()));
        }
        if let Some(dfilter) = &mut self.dfilter {
            *dfilter = empty_or(dfilter, &[x, y], || by.filter_gradient(x, y, dfilter.dims()));
        }
    }
}
