//! Products of matrices, convolutions, and windows.

use super::{Hlo, HloDType, HloType};

/// Windows over a tensor, with one entry for each of its dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The size of a window.
    pub sizes: Vec<usize>,
    /// The distance between windows.
    pub strides: Vec<usize>,
    /// Elements before and behind; negative numbers remove some.
    pub padding: Vec<(i64, i64)>,
    /// The distance of neighbours in a window.
    pub dilations: Vec<usize>,
    /// The distance of neighbours in the tensor.
    pub base_dilations: Vec<usize>,
}

impl Window {
    /// Windows of one element in this number of dimensions.
    pub fn single(rank: usize) -> Window {
        let ones = vec![1; rank];
        Window {
            sizes: ones.clone(),
            strides: ones.clone(),
            padding: vec![(0, 0); rank],
            dilations: ones.clone(),
            base_dilations: ones,
        }
    }

    /// The number of windows in each dimension.
    pub(super) fn output_dims(&self, dims: &[usize]) -> Vec<usize> {
        let at = |list: &[usize], i: usize| list.get(i).copied().unwrap_or(1) as i64;
        let dim = |(i, dim): (usize, &usize)| {
            let (low, high) = self.padding.get(i).copied().unwrap_or_default();
            let dilated = |n: i64, by: i64| if n == 0 { 0 } else { (n - 1) * by + 1 };
            let base = dilated(*dim as i64, at(&self.base_dilations, i)) + low + high;
            let window = dilated(at(&self.sizes, i), at(&self.dilations, i));
            if base < window { 0 } else { ((base - window) / at(&self.strides, i) + 1) as usize }
        };
        dims.iter().enumerate().map(dim).collect()
    }

    pub(super) fn array(numbers: &[usize]) -> String {
        if numbers.is_empty() {
            return "array<i64>".into();
        }
        let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
        format!("array<i64: {}>", numbers.join(", "))
    }

    pub(super) fn attributes(&self) -> String {
        let pairs: Vec<String> = self.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        format!(
            "window_dimensions = {}, window_strides = {}, padding = dense<[{}]> : tensor<{}x2xi64>",
            Window::array(&self.sizes),
            Window::array(&self.strides),
            pairs.join(", "),
            pairs.len()
        )
    }
}

/// The positions of dimensions in the operands and the result of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionLayout<'a> {
    /// Of the images, such as `b, f, 0, 1`.
    pub images: &'a str,
    /// Of the filters, such as `o, i, 0, 1`.
    pub filters: &'a str,
    /// Of the result.
    pub out: &'a str,
}

/// The attributes of a convolution; lists have one entry for each spatial dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HloConvolution<'a> {
    /// The order of dimensions.
    pub layout: ConvolutionLayout<'a>,
    /// The distance of windows.
    pub strides: Vec<usize>,
    /// Zeros before and behind; negative numbers remove elements.
    pub padding: Vec<(i64, i64)>,
    /// The distance of neighbours in the images: zeros lie between them.
    pub image_dilations: Vec<usize>,
    /// The distance of neighbours in the filters.
    pub filter_dilations: Vec<usize>,
    /// Groups of channels.
    pub groups: usize,
    /// Groups of the batch.
    pub batch_groups: usize,
}

impl Hlo {
    /// A product of `self` and `other`: over pairs of contracted dimensions, for each element of pairs of batch dimensions.
    /// The result has the batch dimensions, then the others of both.
    #[must_use]
    pub fn dot(&self, other: &Hlo, contracted: &[(usize, usize)], batch: &[(usize, usize)]) -> Hlo {
        let pairs = || contracted.iter().chain(batch);
        let fits = |(x, y): &(usize, usize)| {
            let dims = (self.dims().get(*x), other.dims().get(*y));
            dims.0.is_some() && dims.0 == dims.1
        };
        if !pairs().all(fits) || self.dtype() != other.dtype() {
            self.fail(format!("a product of {} and {} over {contracted:?}", self.ty, other.ty));
            return self.clone();
        }
        let mut dims: Vec<usize> = batch.iter().map(|(x, _)| self.dims()[*x]).collect();
        let free = |of: &[usize], is_used: &dyn Fn(usize) -> bool| -> Vec<usize> {
            of.iter().enumerate().filter(|(axis, _)| !is_used(*axis)).map(|(_, dim)| *dim).collect()
        };
        dims.extend(free(self.dims(), &|axis| pairs().any(|(x, _)| *x == axis)));
        dims.extend(free(other.dims(), &|axis| pairs().any(|(_, y)| *y == axis)));
        let sides = |pairs: &[(usize, usize)]| {
            let (x, y): (Vec<usize>, Vec<usize>) = pairs.iter().copied().unzip();
            format!("{x:?} x {y:?}")
        };
        let batching =
            if batch.is_empty() { String::new() } else { format!(", batching_dims = {}", sides(batch)) };
        let ty = self.in_dims(&dims);
        // Devices multiply numbers of 16 bits faster. Their products are exact in the dtype of the result.
        let (x, y) = match (self.narrow.as_deref(), other.narrow.as_deref()) {
            (Some(x), Some(y)) if x.dtype() == y.dtype() && self.dtype() == HloDType::F32 => (x, y),
            _ => (self, other),
        };
        let text = format!(
            "stablehlo.dot_general {x}, {y}{batching}, contracting_dims = {} : ({}, {}) -> {ty}",
            sides(contracted),
            x.ty,
            y.ty
        );
        self.emit(ty, text)
    }

    /// Products of the last two dimensions, for equal dimensions before them.
    #[must_use]
    pub fn matmul(&self, other: &Hlo) -> Hlo {
        let (Some(x), Some(y)) = (self.rank().checked_sub(2), other.rank().checked_sub(2)) else {
            self.fail(format!("a product of {} and {}", self.ty, other.ty));
            return self.clone();
        };
        if x != y {
            self.fail(format!("a product of {} and {}", self.ty, other.ty));
        }
        self.dot(other, &[(x + 1, y)], &(0..x.min(y)).map(|axis| (axis, axis)).collect::<Vec<_>>())
    }

    /// A convolution with a result of these dimensions.
    #[must_use]
    pub fn convolve(&self, filters: &Hlo, by: &HloConvolution<'_>, dims: &[usize]) -> Hlo {
        let ty: HloType = self.in_dims(dims);
        let pairs: Vec<String> = by.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        let ConvolutionLayout { images, filters: kernel, out } = by.layout;
        let text = format!(
            "stablehlo.convolution({self}, {filters}) dim_numbers = [{images}]x[{kernel}]->[{out}], \
             window = {{stride = {:?}, pad = [{}], lhs_dilate = {:?}, rhs_dilate = {:?}}} \
             {{batch_group_count = {} : i64, feature_group_count = {} : i64}} : ({}, {}) -> {ty}",
            by.strides,
            pairs.join(", "),
            by.image_dilations,
            by.filter_dilations,
            by.batch_groups,
            by.groups,
            self.ty,
            filters.ty
        );
        self.emit(ty, text)
    }
}
