//! Images and sliding windows, shared by convolution and pooling.

use std::ops::Range;

use autobwd::{Buf, Error, Meta, Result, tensor::Dim};

use crate::{math::DimExpr, norm::DataLayout};

autobwd::op::attr_enum! {
    /// Padding of images.
    pub enum PaddingAlgorithm {
        /// Given by `paddings`.
        Explicit = "EXPLICIT",
        /// Such that the number of windows is the image size divided by the stride, rounded up. As in the reference,
        /// dilations then count as 1.
        Same = "SAME",
        /// No padding.
        Valid = "VALID",
    }
}

impl DataLayout {
    /// Splits dimensions into images, channels, height and width.
    pub(crate) fn split<D>(self, [n, a, b, c]: [D; 4]) -> (D, D, [D; 2]) {
        match self {
            DataLayout::Nchw => (n, a, [b, c]),
            DataLayout::Nhwc => (n, c, [a, b]),
        }
    }

    /// The inverse of `split`.
    pub(crate) fn join<D>(self, images: D, channels: D, [height, width]: [D; 2]) -> [D; 4] {
        match self {
            DataLayout::Nchw => [images, channels, height, width],
            DataLayout::Nhwc => [images, height, width, channels],
        }
    }
}

/// The dimensions of a kernel's images, volumes or filters; the shape rule has checked that there are `N`.
pub(crate) fn dims<const N: usize>(x: &Buf<'_>) -> Result<[usize; N]> {
    x.dims().try_into().map_err(|_| x.wrong(&format!("{N} dimensions are needed")))
}

/// Attributes of the windows along one axis.
#[derive(Clone, Copy)]
pub(crate) struct AxisWindows {
    stride: usize,
    dilation: usize,
    /// Padding before the first element and after the last; `None` means `SAME`.
    padding: Option<(usize, usize)>,
}

/// Windows along an axis.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Elements of a window.
    pub size: usize,
    /// Distance between consecutive windows.
    pub stride: usize,
    /// Distance between consecutive elements of a window.
    pub dilation: usize,
    /// Padding before the first element.
    pub before: usize,
    /// Padding after the last element.
    pub after: usize,
}

/// Reads the window attributes of an operator, for each of `N` axes.
pub(crate) fn axes<const N: usize>(
    strides: &[i32],
    paddings: &[i32],
    algorithm: PaddingAlgorithm,
    dilations: &[i32],
) -> Result<[AxisWindows; N]> {
    let (strides, dilations): ([_; N], [_; N]) =
        (counts("strides", strides, 1)?, counts("dilations", dilations, 1)?);
    let each = match paddings.len() {
        n if n == N => 1,
        n if n == 2 * N => 2,
        _ => 0,
    };
    if each == 0 || paddings.iter().any(|padding| *padding < 0) {
        let text = format!("{N} or {} numbers of at least 0 are needed, not {paddings:?}", 2 * N);
        return Err(Error::attr("paddings", text));
    }
    Ok(std::array::from_fn(|i| AxisWindows {
        stride: strides[i],
        dilation: dilations[i],
        padding: match algorithm {
            PaddingAlgorithm::Explicit => {
                Some((paddings[i * each] as usize, paddings[i * each + each - 1] as usize))
            }
            PaddingAlgorithm::Same => None,
            PaddingAlgorithm::Valid => Some((0, 0)),
        },
    }))
}

/// An attribute of one number for each of `N` axes, each at least `least`.
pub(crate) fn counts<const N: usize>(name: &str, numbers: &[i32], least: i32) -> Result<[usize; N]> {
    let wrong = || Error::attr(name, format!("{N} numbers of at least {least} are needed, not {numbers:?}"));
    let numbers = <[i32; N]>::try_from(numbers).ok().filter(|numbers| numbers.iter().all(|n| *n >= least));
    Ok(numbers.ok_or_else(wrong)?.map(|n| n as usize))
}

/// As [`counts`], for an attribute that may be empty.
pub(crate) fn optional_counts<const N: usize>(
    name: &str,
    numbers: &[i32],
    least: i32,
) -> Result<Option<[usize; N]>> {
    if numbers.is_empty() { Ok(None) } else { counts(name, numbers, least).map(Some) }
}

impl AxisWindows {
    pub(crate) fn stride(&self) -> i32 {
        self.stride as i32
    }

    /// As in the reference, 1 for padding `SAME`.
    pub(crate) fn dilation(&self) -> i32 {
        if self.padding.is_some() { self.dilation as i32 } else { 1 }
    }

    /// The padding before and after `input` elements, for windows of `size` elements, as in
    /// [`windows`](AxisWindows::windows).
    pub(crate) fn padding_of(&self, size: &DimExpr, input: &DimExpr) -> [DimExpr; 2] {
        if let Some((before, after)) = self.padding {
            return [before, after].map(|n| DimExpr::from(n as i64));
        }
        let stride = self.stride as i64;
        let last = ((input + &(stride - 1).into()) / stride).max(1) * stride - stride;
        let sum = (last + size - input).max(0);
        let before = &sum / 2;
        [before.clone(), sum - before]
    }

    /// The number of windows of `size` elements over `input` elements, if one of both is open: a polynomial of its name.
    pub(crate) fn open_count(&self, size: Dim, input: Dim) -> Dim {
        let stride = self.stride() as i64;
        let Some((before, after)) = self.padding else { return (input + (stride - 1)) / stride };
        let extent = (size - 1) * self.dilation as i64 + 1;
        (input + (before + after) as i64 - extent) / stride + 1
    }

    /// Windows of `size` elements over `input` elements.
    pub(crate) fn windows(self, size: usize, input: usize) -> Windows {
        let AxisWindows { stride, dilation, padding } = self;
        match padding {
            Some((before, after)) => Windows { size, stride, dilation, before, after },
            None => {
                let last = (input.div_ceil(stride).max(1) - 1).saturating_mul(stride);
                let sum = last.saturating_add(size).saturating_sub(input);
                Windows { size, stride, dilation: 1, before: sum / 2, after: sum - sum / 2 }
            }
        }
    }
}

/// The numbers of windows over the rows and columns of `input`, which has that size; `kernel` is the size of a window.
pub(crate) fn window_counts(
    axes: &[AxisWindows; 2],
    input: &Meta,
    size: [Dim; 2],
    kernel: [Dim; 2],
) -> Result<[Dim; 2]> {
    let count = |i: usize| {
        let (Some(kernel), Some(size)) = (kernel[i].get(), size[i].get()) else {
            return Ok(axes[i].open_count(kernel[i], size[i]));
        };
        let windows = axes[i].windows(kernel, size);
        let count = windows.count(size, false).map(Dim::from);
        count.ok_or_else(|| windows.too_large(input, "rows and columns"))
    };
    Ok([count(0)?, count(1)?])
}

impl Windows {
    /// Elements from the first to the last of a window, including both.
    pub(crate) fn extent(&self) -> usize {
        self.dilation.saturating_mul(self.size - 1).saturating_add(1)
    }

    /// The number of windows over `input` elements; `ceil` adds a partial one at the end. `None` if no window fits.
    pub(crate) fn count(&self, input: usize, ceil: bool) -> Option<usize> {
        let way = input.saturating_add(self.before + self.after).checked_sub(self.extent())?;
        Some(1 + if ceil { way.div_ceil(self.stride) } else { way / self.stride })
    }

    /// The error for windows that do not fit; `what` they would need more of.
    pub(crate) fn too_large(&self, x: &Meta, what: &str) -> Error {
        let least = self.extent().saturating_sub(self.before + self.after);
        x.wrong(&format!("at least {least} {what} are needed for a window"))
    }

    /// The end of the padded elements that are element `tap` of a window; negative ends count from the end.
    pub(crate) fn end(&self, tap: usize) -> i32 {
        let rest = (self.extent() - 1).saturating_sub(tap * self.dilation);
        if rest == 0 { i32::MAX } else { i32::try_from(rest).map_or(i32::MIN, |rest| -rest) }
    }

    /// The number of elements that `count` windows cover; `None` if they lie in the padding only.
    pub(crate) fn covered(&self, count: usize) -> Option<usize> {
        let last = count.checked_sub(1)?.saturating_mul(self.stride);
        let reach = last.saturating_add(self.extent());
        reach.checked_sub(self.before + self.after).filter(|covered| *covered > 0)
    }

    /// Those of `count` windows whose element `tap` is one of the `input` elements.
    pub(crate) fn hits(&self, tap: usize, input: usize, count: usize) -> Range<usize> {
        let shift = tap * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride);
        let end = (input + self.before).saturating_sub(shift).div_ceil(self.stride);
        first.min(count)..end.clamp(first.min(count), count)
    }
}
