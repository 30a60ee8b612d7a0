//! Reductions.

use super::{Hlo, HloDType, HloType, Window};

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Σ x
    Sum,
    /// Π x
    Product,
    /// The largest element.
    Max,
    /// The smallest element.
    Min,
    /// Whether all bools are true.
    All,
    /// Whether one bool is true.
    Any,
}

impl Reduction {
    fn operation(self) -> &'static str {
        match self {
            Reduction::Sum => "add",
            Reduction::Product => "multiply",
            Reduction::Max => "maximum",
            Reduction::Min => "minimum",
            Reduction::All => "and",
            Reduction::Any => "or",
        }
    }

    /// The result without elements.
    pub(super) fn first(self, dtype: HloDType) -> f64 {
        match self {
            Reduction::Sum | Reduction::Any => 0.0,
            Reduction::Product | Reduction::All => 1.0,
            Reduction::Max => dtype.lowest(),
            Reduction::Min => dtype.highest(),
        }
    }

    pub(super) fn combine(self, x: &Hlo, y: &Hlo) -> Hlo {
        match self {
            Reduction::Sum => x + y,
            Reduction::Product => x * y,
            Reduction::Max => x.max(y),
            Reduction::Min => x.min(y),
            Reduction::All => x.and(y),
            Reduction::Any => x.or(y),
        }
    }
}

impl Hlo {
    /// A reduction over axes, which the result lacks.
    #[must_use]
    pub fn reduce(&self, by: Reduction, axes: &[usize]) -> Hlo {
        if axes.is_empty() {
            return self.clone();
        }
        let others = (0..self.rank()).filter(|axis| !axes.contains(axis));
        let ty = self.in_dims(&others.map(|axis| self.dims()[axis]).collect::<Vec<_>>());
        let (first, op) = (self.scalar(by.first(self.dtype())), by.operation());
        let text = format!(
            "stablehlo.reduce({self} init: {first}) applies stablehlo.{op} across dimensions = {axes:?} : ({}, {}) -> {ty}",
            self.ty, first.ty
        );
        self.emit(ty, text)
    }

    /// A reduction over axes, which are 1 in the result.
    #[must_use]
    pub fn reduce_kept(&self, by: Reduction, axes: &[usize]) -> Hlo {
        let mut kept = self.dims().to_vec();
        kept.iter_mut().enumerate().filter(|(axis, _)| axes.contains(axis)).for_each(|(_, dim)| *dim = 1);
        self.reduce(by, axes).reshape(&kept)
    }

    /// The sum over axes.
    #[must_use]
    pub fn sum(&self, axes: &[usize]) -> Hlo {
        self.reduce(Reduction::Sum, axes)
    }

    /// A reduction over all axes.
    #[must_use]
    pub fn reduce_all(&self, by: Reduction) -> Hlo {
        self.reduce(by, &(0..self.rank()).collect::<Vec<_>>())
    }

    /// The sum of all elements.
    #[must_use]
    pub fn sum_all(&self) -> Hlo {
        self.reduce_all(Reduction::Sum)
    }

    /// A reduction over axes, in all positions of the value.
    #[must_use]
    pub fn reduce_spread(&self, by: Reduction, axes: &[usize]) -> Hlo {
        self.reduce(by, axes).spread(self.dims(), axes)
    }

    /// The reduction of each window; padding counts as the result without elements.
    #[must_use]
    pub fn reduce_window(&self, by: Reduction, window: &Window) -> Hlo {
        let first = self.scalar(by.first(self.dtype()));
        let ty = self.in_dims(&window.output_dims(self.dims()));
        let body = self.combiner(self.dtype(), |x, y| by.combine(x, y));
        let text = format!(
            "\"stablehlo.reduce_window\"({self}, {first}) <{{{}, base_dilations = {}, window_dilations = {}}}> \
             ({body}) : ({}, {}) -> {ty}",
            window.attributes(),
            Window::array(&window.base_dilations),
            Window::array(&window.dilations),
            self.ty,
            first.ty
        );
        self.emit(ty, text)
    }

    /// Adds each element of `source` at the position of the largest element of its window, the first one if there are
    /// several.
    #[must_use]
    pub fn scatter_to_largest(&self, source: &Hlo, window: &Window) -> Hlo {
        let zero = self.scalar(0.0);
        let select = self.region(&[HloType::scalar(self.dtype()), HloType::scalar(self.dtype())], |args| {
            vec![args[0].greater_equal(&args[1])]
        });
        let scatter = self.combiner(self.dtype(), |x, y| x + y);
        let text = format!(
            "\"stablehlo.select_and_scatter\"({self}, {source}, {zero}) <{{{}}}> ({select}, {scatter}) : ({}, {}, {}) -> {}",
            window.attributes(),
            self.ty,
            source.ty,
            zero.ty,
            self.ty
        );
        self.emit(self.ty.clone(), text)
    }
}
