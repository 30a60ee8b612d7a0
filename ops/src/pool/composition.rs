//! Pooling as a composition, along one axis after the other: the windows become a dimension, which is reduced.

use autobwd::{Expr, New, emit};

use super::{PoolAttrs, PoolingType};
use crate::{
    Math,
    floor_division::ElementwiseFloordiv,
    logic::Where,
    math::{DimExpr, filled, positions},
    norm::DataLayout,
    scatter::TakeAlongAxis,
    top_k::{ArgAttrs, ArgMax},
    windows::axes,
};

/// The windows along an axis.
enum WindowsAlong {
    /// Windows side by side: their number and size.
    Disjoint([DimExpr; 2]),
    Others {
        count: DimExpr,
        /// The size of the largest window.
        size: DimExpr,
        /// Where windows start and end, `[count, 1]` each; elements outside of the axis are padding.
        starts: Expr,
        ends: Expr,
        /// The divisors of means, `[count, 1]`, if padding counts.
        divisors: Option<Expr>,
    },
}

impl PoolAttrs {
    /// The reduced windows of images.
    pub(super) fn compose(&self, x: &Expr) -> Expr {
        let height = if self.data_format == DataLayout::Nchw { 2 } else { 1 };
        // The first of equal elements in row-major order is the first of the first rows that have one.
        [1, 0].into_iter().fold(x.clone(), |x, i| match self.along(i, &x, height + i as i32) {
            Ok(windows) => self.reduce(&x, height + i as i32, windows),
            Err(error) => x.builder().failed(error),
        })
    }

    fn along(&self, i: usize, x: &Expr, axis: i32) -> autobwd::Result<WindowsAlong> {
        let (builder, n) = (x.builder(), x.dim(axis));
        if self.global_pooling && !self.adaptive {
            return Ok(WindowsAlong::Disjoint([1.into(), n]));
        }
        let floor_div = |x: Expr, y: &DimExpr| {
            let y = (&y.number(builder)).into();
            emit(ElementwiseFloordiv { x: (&x).into(), y, out: New, axis: -1 }).out
        };
        let numbers = |count: &DimExpr| positions(builder, count).unsqueeze(&[1]);
        if self.adaptive {
            let count = if self.global_pooling { n.clone() } else { i64::from(self.ksize[i]).into() };
            if let (Some(n), Some(of)) = (n.known(), count.known())
                && n % of == 0
            {
                return Ok(WindowsAlong::Disjoint([count, (n / of).into()]));
            }
            let (number, length) = (numbers(&count), n.number(builder));
            let starts = floor_div(&number * &length, &count);
            let reach = (number + 1.0) * &length + (&count - 1).number(builder);
            let ends = floor_div(reach, &count);
            let size = ((&n + &count - 1) / &count + 1).min(n.clone());
            return Ok(WindowsAlong::Others { count, size, starts, ends, divisors: None });
        }
        let windows = axes::<2>(&self.strides, &self.paddings, self.padding_algorithm, &[1, 1])?[i];
        let (size, stride) = (DimExpr::from(i64::from(self.ksize[i])), i64::from(self.strides[i]));
        let [before, after] = windows.padding_of(&size, &n);
        let way = &n + &before + after - &size;
        let count = if self.ceil_mode { way + (stride - 1) } else { way } / stride + 1;
        let is_unpadded = (&count * &size - &n).known().is_some_and(|more| more <= 0);
        if size.known() == Some(stride) && before.known() == Some(0) && is_unpadded {
            return Ok(WindowsAlong::Disjoint([count, size]));
        }
        let starts = numbers(&count) * stride as f64;
        let divisors = (!self.exclusive).then(|| {
            // As in the reference, which takes the padding after for the padding before.
            let rest = (&n + &before * 2).number(builder) - &starts;
            rest.minimum(&size.number(builder)).maximum(&DimExpr::from(1).number(builder))
        });
        let starts = starts - before.number(builder);
        let ends = &starts + size.number(builder);
        Ok(WindowsAlong::Others { count, size, starts, ends, divisors })
    }

    fn reduce(&self, x: &Expr, axis: i32, windows: WindowsAlong) -> Expr {
        let builder = x.builder();
        let split = |count: &DimExpr, size: &DimExpr| -> Vec<DimExpr> {
            let parts =
                (0..4).map(|at| if at == axis { vec![count.clone(), size.clone()] } else { vec![x.dim(at)] });
            parts.flatten().collect()
        };
        let (windows, divisors) = match windows {
            WindowsAlong::Disjoint([count, size]) => {
                let covered = &count * &size;
                let is_whole = covered.known() == x.dim(axis).known();
                let covered = if is_whole { x.clone() } else { x.slice_to(axis, &0.into(), &covered) };
                (covered.reshape_to(&split(&count, &size)), size.number(builder))
            }
            WindowsAlong::Others { count, size, starts, ends, divisors } => {
                let (n, dims) = (x.dim(axis), split(&count, &size));
                let [zero, last] = [0.into(), &n - 1].map(|n: DimExpr| n.number(builder));
                let ends = ends.minimum(&n.number(builder));
                let at = &starts + positions(builder, &size);
                let is_inside = at.greater_equal(&zero).logical_and(&at.less_than(&ends));
                let index = at.maximum(&zero).minimum(&last).flatten(0, 1);
                let elements = x.gather(&index, axis).reshape_to(&dims);
                let padding = if self.pooling_type == PoolingType::Max { "-inf" } else { "0" };
                let condition = (&with_axes_after(&is_inside, axis).expand_to(&dims)).into();
                let y = (&filled(builder, x.dtype(), padding, &dims)).into();
                let windows = emit(Where { condition, x: (&elements).into(), y, out: New }).out;
                let divisors = divisors.unwrap_or_else(|| ends - starts.maximum(&zero));
                (windows, with_axes_after(&divisors.flatten(0, 1), axis))
            }
        };
        match self.pooling_type {
            PoolingType::Avg => windows.sum(&[axis + 1]) / divisors.cast(x.dtype()),
            PoolingType::Max => {
                let arg = ArgAttrs { keepdims: true, ..ArgAttrs::along((axis + 1).into()) };
                let index = emit(ArgMax { x: (&windows).into(), out: New, arg }).out;
                let (input, index) = ((&windows).into(), (&index).into());
                let found = emit(TakeAlongAxis { input, index, result: New, axis: axis + 1 }).result;
                let found = found.squeeze(&[axis + 1]);
                // NaN has no gradient.
                let (condition, x) = ((&found.isnan()).into(), (&(&found * 0.0)).into());
                emit(Where { condition, x, y: (&found).into(), out: New }).out
            }
        }
    }
}

/// The numbers along an axis of images, to broadcast over the axes after it.
fn with_axes_after(x: &Expr, axis: i32) -> Expr {
    let rank = x.dims().len() as i32;
    (rank..rank + 3 - axis).fold(x.clone(), |x, at| x.unsqueeze(&[at]))
}
