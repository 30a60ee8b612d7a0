//! Pooling as a composition, along one axis after the other: the windows become a dimension, which is reduced.

use autobwd::{Expr, New, Result, emit};

use super::{PoolAttrs, PoolingType, axis_pooling::AxisPooling};
use crate::{
    Math,
    logic::Where,
    math::{DimExpr, filled},
    norm::DataLayout,
    scatter::TakeAlongAxis,
    top_k::{ArgAttrs, ArgMax},
};

impl PoolAttrs {
    /// The reduced windows of images.
    pub(super) fn compose(&self, x: &Expr) -> Expr {
        let height = if self.data_format == DataLayout::Nchw { 2 } else { 1 };
        compose_pooling(x, height, self.pooling_type, self.axes())
    }
}

/// The reduced windows along consecutive axes.
pub(super) fn compose_pooling<const N: usize>(
    x: &Expr,
    first: i32,
    kind: PoolingType,
    axes: Result<[AxisPooling; N]>,
) -> Expr {
    match axes {
        // The first of equal elements in row-major order is the first of the first rows that have one.
        Ok(axes) => (first..)
            .zip(axes)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .fold(x.clone(), |x, (axis, pooling)| pooling.reduce(&x, axis, kind)),
        Err(error) => x.builder().failed(error),
    }
}

impl AxisPooling {
    fn reduce(&self, x: &Expr, axis: i32, kind: PoolingType) -> Expr {
        let (builder, n, rank) = (x.builder(), x.dim(axis), x.dims().len() as i32);
        let split = |count: &DimExpr, size: &DimExpr| -> Vec<DimExpr> {
            let parts = (0..rank)
                .map(|at| if at == axis { vec![count.clone(), size.clone()] } else { vec![x.dim(at)] });
            parts.flatten().collect()
        };
        // The numbers of windows, to broadcast over the axes after them.
        let with_axes_after = |x: &Expr| {
            let own = x.dims().len() as i32;
            (own..own + rank - 1 - axis).fold(x.clone(), |x, at| x.unsqueeze(&[at]))
        };
        let (windows, divisors) = match self.disjoint(&n) {
            Some([count, size]) => {
                let covered = &count * &size;
                let is_whole = covered.known() == n.known();
                let covered = if is_whole { x.clone() } else { x.slice_to(axis, &0.into(), &covered) };
                (covered.reshape_to(&split(&count, &size)), size.number(builder))
            }
            None => {
                let bounds = self.bounds(x, axis);
                let (dims, (index, is_inside)) = (split(&bounds.count, &bounds.size), bounds.elements(&n));
                let elements = x.gather(&index.flatten(0, 1), axis).reshape_to(&dims);
                let padding = if kind == PoolingType::Max { "-inf" } else { "0" };
                let condition = (&with_axes_after(&is_inside).expand_to(&dims)).into();
                let y = (&filled(builder, x.dtype(), padding, &dims)).into();
                let windows = emit(Where { condition, x: (&elements).into(), y, out: New }).out;
                let zero = DimExpr::from(0).number(builder);
                let divisors = bounds.divisors.unwrap_or_else(|| bounds.ends - bounds.starts.maximum(&zero));
                (windows, with_axes_after(&divisors.flatten(0, 1)))
            }
        };
        match kind {
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
