//! Pooling along one axis: the windows, as numbers and as expressions.

use autobwd::{Expr, Meta, Result, tensor::Dim};

use crate::{
    Math,
    math::{DimExpr, positions},
    windows::{AxisWindows, PaddingAlgorithm, Windows, axes, counts},
};

/// What decides about windows on all axes.
#[derive(Clone, Copy)]
pub(crate) struct WindowRules {
    pub(crate) ceil_mode: bool,
    /// Averages leave padding out.
    pub(crate) exclusive: bool,
    pub(crate) global_pooling: bool,
    pub(crate) adaptive: bool,
}

/// The windows along one axis.
#[derive(Clone, Copy)]
pub(crate) struct AxisPooling {
    /// Elements of a window, or the number of windows if they are adaptive; `None` for one window over all elements.
    size: Option<usize>,
    axis: AxisWindows,
    rules: WindowRules,
}

/// Where windows along an axis start and end; elements outside of the axis are padding.
pub(crate) struct WindowBounds {
    pub(crate) count: DimExpr,
    /// The size of the largest window.
    pub(crate) size: DimExpr,
    /// `[count, 1]` each; ends are at most the length of the axis.
    pub(crate) starts: Expr,
    pub(crate) ends: Expr,
    /// The divisors of means, `[count, 1]`, if padding counts.
    pub(crate) divisors: Option<Expr>,
}

impl AxisPooling {
    /// The windows along each of `N` axes.
    pub(crate) fn all<const N: usize>(
        ksize: &[i32],
        strides: &[i32],
        (paddings, algorithm): (&[i32], PaddingAlgorithm),
        rules: WindowRules,
    ) -> Result<[AxisPooling; N]> {
        let axes = axes::<N>(strides, paddings, algorithm, &[1; N])?;
        let sizes = if rules.global_pooling { None } else { Some(counts::<N>("ksize", ksize, 1)?) };
        let axis = |i: usize| AxisPooling { size: sizes.map(|sizes| sizes[i]), axis: axes[i], rules };
        Ok(std::array::from_fn(axis))
    }

    /// The windows over `input` elements, unless pooling is adaptive.
    pub(crate) fn windows(&self, input: usize) -> Windows {
        let windows = self.axis.windows(self.size.unwrap_or(input.max(1)), input);
        let unpadded = self.size.is_none() || self.rules.adaptive;
        if unpadded { Windows { before: 0, after: 0, ..windows } } else { windows }
    }

    /// The number of windows over `input` elements; `zeros` says whether padding counts as zeros.
    pub(crate) fn count(&self, input: Dim, zeros: bool, x: &Meta) -> Result<Dim> {
        let windows = self.windows(input.get().unwrap_or(1));
        let Some(input) = input.get() else {
            return Ok(match (self.rules.adaptive, self.rules.global_pooling) {
                (true, false) => windows.size.into(),
                (false, true) => 1.into(),
                (false, false) if !self.rules.ceil_mode => self.axis.open_count(windows.size.into(), input),
                _ => Dim::UNKNOWN,
            });
        };
        if self.rules.adaptive && input > 0 {
            return Ok(windows.size.into());
        }
        let count = windows
            .count(input, self.rules.ceil_mode)
            .ok_or_else(|| windows.too_large(x, "rows and columns"))?;
        let last = (count - 1).saturating_mul(windows.stride);
        let filled = windows.before < windows.size && last < input.saturating_add(windows.before);
        x.require(filled || zeros, || "a window would contain padding only".into())?;
        Ok(count.into())
    }

    /// The number and the size of windows side by side, if they are known to be.
    pub(crate) fn disjoint(&self, n: &DimExpr) -> Option<[DimExpr; 2]> {
        let Some(size) = self.size.map(|size| DimExpr::from(size as i64)) else {
            return Some(if self.rules.adaptive { [n.clone(), 1.into()] } else { [1.into(), n.clone()] });
        };
        if self.rules.adaptive {
            let each = n.known()?.checked_rem(size.known()?)? == 0;
            return each.then(|| [size.clone(), n / &size]);
        }
        let [before, after] = self.axis.padding_of(&size, n);
        let count = self.count_of(&size, n, [&before, &after]);
        let is_unpadded = (&count * &size - n).known().is_some_and(|more| more <= 0);
        let is_disjoint = size.known() == Some(self.stride()) && before.known() == Some(0) && is_unpadded;
        is_disjoint.then_some([count, size])
    }

    fn stride(&self) -> i64 {
        self.axis.stride().into()
    }

    fn count_of(&self, size: &DimExpr, n: &DimExpr, [before, after]: [&DimExpr; 2]) -> DimExpr {
        let way = n + before + after - size;
        let stride = self.stride();
        if self.rules.ceil_mode { (way + (stride - 1)) / stride + 1 } else { way / stride + 1 }
    }

    /// The bounds of windows along an axis of `x`.
    pub(crate) fn bounds(&self, x: &Expr, axis: i32) -> WindowBounds {
        let (builder, n) = (x.builder(), x.dim(axis));
        let numbers = |count: &DimExpr| positions(builder, count).unsqueeze(&[1]);
        let number = |n: &DimExpr| n.number(builder);
        if self.rules.adaptive || self.size.is_none() {
            let count = match self.size {
                Some(size) => (size as i64).into(),
                None if self.rules.adaptive => n.clone(),
                None => 1.into(),
            };
            let (of, length) = (number(&count), number(&n));
            let starts = (numbers(&count) * &length).floor_divide(&of);
            let reach = (numbers(&count) + 1.0) * &length + number(&(&count - 1));
            let size = ((&n + &count - 1) / &count + 1).min(n);
            return WindowBounds { count, size, starts, ends: reach.floor_divide(&of), divisors: None };
        }
        let size = DimExpr::from(self.size.unwrap_or_default() as i64);
        let [before, after] = self.axis.padding_of(&size, &n);
        let count = self.count_of(&size, &n, [&before, &after]);
        let starts = numbers(&count) * self.stride() as f64;
        let divisors = (!self.rules.exclusive).then(|| {
            // As in the reference, which takes the padding after for the padding before.
            let rest = number(&(&n + &before * 2)) - &starts;
            rest.minimum(&number(&size)).maximum(&number(&1.into()))
        });
        let starts = starts - number(&before);
        let ends = (&starts + number(&size)).minimum(&number(&n));
        WindowBounds { count, size, starts, ends, divisors }
    }
}

impl WindowBounds {
    /// The elements under the windows of an axis of `n` elements, `[count, size]`, and whether they are no padding.
    pub(crate) fn elements(&self, n: &DimExpr) -> (Expr, Expr) {
        let builder = self.starts.builder();
        let [zero, last] = [0.into(), n - 1].map(|n: DimExpr| n.number(builder));
        let at = &self.starts + positions(builder, &self.size);
        let is_inside = at.greater_equal(&zero).logical_and(&at.less_than(&self.ends));
        (at.maximum(&zero).minimum(&last), is_inside)
    }
}
