//! Gradients of convolutions as compositions: they are convolutions, too.

use autobwd::{Error, Expr, New, emit};

use super::{Conv2dOp, Conv2dTransposeOp, Conv3dAttrs, Conv3dOp, ConvAttrs};
use crate::{
    Math,
    math::{DimExpr, filled},
    norm::DataLayout,
    shape::StridedSliceGrad,
    windows::AxisWindows,
};

/// Images with the channels first.
pub(super) fn channels_first(x: &Expr, format: DataLayout) -> Expr {
    if format == DataLayout::Nhwc { x.transpose(&[0, 3, 1, 2]) } else { x.clone() }
}

/// Images with the channels first, in that layout.
pub(super) fn in_layout(x: &Expr, format: DataLayout) -> Expr {
    if format == DataLayout::Nhwc { x.transpose(&[0, 2, 3, 1]) } else { x.clone() }
}

/// Fails outputs that are wanted.
pub(super) fn fail(x: &Expr, error: Error, outputs: [&mut Option<Expr>; 2]) {
    let failed = x.builder().failed(error);
    outputs.into_iter().flatten().for_each(|output| *output = failed.clone());
}

/// A convolution of padded images, or volumes, with the channels first.
pub(super) struct PaddedConvolution {
    strides: Vec<i32>,
    dilations: Vec<i32>,
    /// Before and after each axis of the windows.
    padding: Vec<[DimExpr; 2]>,
    groups: i32,
    /// Dimensions of the images without padding, and of the filters.
    size: Vec<DimExpr>,
    kernel: Vec<DimExpr>,
}

impl PaddedConvolution {
    /// Padding algorithms refer to images of the size of `over`.
    pub(super) fn new(axes: &[AxisWindows], groups: i32, filter: &Expr, [x, over]: [&Expr; 2]) -> Self {
        let sizes = |x: &Expr| (0..axes.len()).map(|i| x.dim(2 + i as i32)).collect::<Vec<_>>();
        let (kernel, size, over) = (sizes(filter), sizes(x), sizes(over));
        let padding = axes.iter().zip(kernel.iter().zip(&over)).map(|(axis, (k, n))| axis.padding_of(k, n));
        let [strides, dilations] =
            [AxisWindows::stride, AxisWindows::dilation].map(|of| axes.iter().map(of).collect());
        PaddedConvolution { strides, dilations, padding: padding.collect(), groups, size, kernel }
    }

    fn pad(&self, x: &Expr) -> Expr {
        let none = [0, 0].map(DimExpr::from);
        x.pad_to(&[&[none.clone(), none][..], &self.padding].concat(), 0.0)
    }

    /// The convolution, with as many windows as the images `like` have elements.
    pub(super) fn forward(&self, x: &Expr, filter: &Expr, like: &Expr) -> Expr {
        if let Some(zeros) = zeros_of(like, &[x, filter]) {
            return zeros;
        }
        let all = convolve(&self.pad(x), filter, &self.strides, &self.dilations, self.groups);
        self.each_axis(all, |at, all| first(all, at, &0.into(), &like.dim(at)))
    }

    fn each_axis(&self, x: Expr, work: impl Fn(i32, &Expr) -> Expr) -> Expr {
        (0..self.size.len()).fold(x, |x, i| work(2 + i as i32, &x))
    }

    /// The gradient of the filters: images, as channels, convolved with `dy`, with strides and dilations exchanged.
    pub(super) fn filter_gradient(&self, x: &Expr, dy: &Expr, filter: &Expr) -> Expr {
        if let Some(zeros) = zeros_of(filter, &[x, dy]) {
            return zeros;
        }
        let axes: Vec<i32> = (2..2 + self.size.len() as i32).collect();
        let exchanged: Vec<i32> = [&[1, 0][..], &axes].concat();
        let x = self.pad(x);
        let x = if self.groups == 1 {
            x.transpose(&exchanged)
        } else {
            let (groups, each) = (DimExpr::from(i64::from(self.groups)), filter.dim(1));
            let size: Vec<DimExpr> = axes.iter().map(|at| x.dim(*at)).collect();
            let parts = [&[x.dim(0), groups, each.clone()][..], &size].concat();
            let order: Vec<i32> = [2, 1, 0].into_iter().chain(axes.iter().map(|at| at + 1)).collect();
            let images = x.dim(0) * i64::from(self.groups);
            x.reshape_to(&parts).transpose(&order).reshape_to(&[&[each, images][..], &size].concat())
        };
        let taps = convolve(&x, &dy.transpose(&exchanged), &self.dilations, &self.strides, self.groups);
        // Rows and columns that no window reaches give further taps.
        let taps = self.each_axis(taps, |at, taps| first(taps, at, &0.into(), &self.kernel[at as usize - 2]));
        taps.transpose(&exchanged)
    }

    /// The gradient of the images `x`.
    pub(super) fn data_gradient(&self, x: &Expr, dy: &Expr, filter: &Expr) -> Expr {
        if let Some(zeros) = zeros_of(x, &[dy, filter]) {
            return zeros;
        }
        let padded =
            if self.size.len() == 2 { self.transposed(dy, filter) } else { self.mirrored(dy, filter) };
        self.each_axis(padded, |at, padded| {
            let i = at as usize - 2;
            first(padded, at, &self.padding[i][0], &self.size[i])
        })
    }

    /// A transposed convolution, with room for a part of a further window.
    fn transposed(&self, dy: &Expr, filter: &Expr) -> Expr {
        let conv = ConvAttrs::default().strides(self.strides.clone()).dilations(self.dilations.clone());
        let op = Conv2dTransposeOp {
            input: dy.into(),
            filter: filter.into(),
            bias: None,
            output: New,
            conv: conv.groups(self.groups),
            output_padding: self.strides.iter().map(|stride| stride - 1).collect(),
            output_size: vec![],
        };
        emit(op).output
    }

    /// A convolution of `dy`, with zeros between its elements, with mirrored filters.
    fn mirrored(&self, dy: &Expr, filter: &Expr) -> Expr {
        let axes: Vec<i32> = (2..2 + self.size.len() as i32).collect();
        let (groups, share) = (i64::from(self.groups), filter.dim(1));
        let parts = [&[groups.into(), filter.dim(0) / groups, share.clone()][..], &self.kernel].concat();
        let order: Vec<i32> = [0, 2, 1].into_iter().chain(axes.iter().map(|at| at + 1)).collect();
        let dims = [&[share * groups, filter.dim(0) / groups][..], &self.kernel].concat();
        let mirrored = filter.reshape_to(&parts).transpose(&order).reshape_to(&dims).flip(&axes);
        let mut spread = vec![dy.dim(0), dy.dim(1)];
        let mut around = vec![[0, 0].map(DimExpr::from); 2];
        for (i, stride) in self.strides.iter().enumerate() {
            let last = (dy.dim(2 + i as i32) - 1) * i64::from(*stride);
            let reach = (&self.kernel[i] - 1) * i64::from(self.dilations[i]);
            let [before, after] = &self.padding[i];
            let rest = (&self.size[i] + before + after - &last - &reach - 1).max(0);
            spread.push(last + 1);
            around.push([reach.clone(), reach + rest]);
        }
        let step = StridedSliceGrad {
            input: (&filled(dy.builder(), dy.dtype(), "0", &spread)).into(),
            starts_tensor: None,
            ends_tensor: None,
            strides_tensor: None,
            starts_tensor_list: vec![],
            ends_tensor_list: vec![],
            strides_tensor_list: vec![],
            dout: dy.into(),
            dinput: New,
            starts: vec![0; axes.len()],
            ends: vec![i32::MAX; axes.len()],
            strides: self.strides.clone(),
            axes,
            decrease_axis: vec![],
        };
        let ones = vec![1; self.strides.len()];
        convolve(&emit(step).dinput.pad_to(&around, 0.0), &mirrored, &ones, &self.dilations, self.groups)
    }
}

/// A convolution without padding.
fn convolve(x: &Expr, filter: &Expr, strides: &[i32], dilations: &[i32], groups: i32) -> Expr {
    let (strides, dilations, input, filter) = (strides.to_vec(), dilations.to_vec(), x.into(), filter.into());
    if strides.len() == 2 {
        let conv = ConvAttrs::default().strides(strides).dilations(dilations).groups(groups);
        return emit(Conv2dOp { input, filter, output: New, conv }).output;
    }
    let conv = Conv3dAttrs::default().strides(strides).dilations(dilations).groups(groups);
    emit(Conv3dOp { input, filter, output: New, conv }).output
}

/// `count` elements along an axis.
pub(super) fn first(x: &Expr, axis: i32, start: &DimExpr, count: &DimExpr) -> Expr {
    let is_whole =
        start.known() == Some(0) && count.known().is_some() && count.known() == x.dim(axis).known();
    if is_whole { x.clone() } else { x.slice_to(axis, start, &(start + count)) }
}

/// Zeros like `x`, if a factor is known to have no elements.
fn zeros_of(x: &Expr, factors: &[&Expr]) -> Option<Expr> {
    let is_empty = [&[x], factors].concat().iter().any(|factor| factor.dims().iter().any(|dim| *dim == 0));
    is_empty.then(|| x * 0.0)
}
