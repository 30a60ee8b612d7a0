//! Gradients of what normalises each channel, put together from operators.

use autobwd::{GradCx, Var};

use super::{BatchNorm, BatchNormGrad, DataLayout};
use crate::{
    activation::Scale,
    elementwise::{ElementwiseAdd, ElementwiseDiv, ElementwiseMul, ElementwiseSub},
    fill::{FillAnyLike, FillZerosLike},
    rounding::Clip,
    sum::Sum,
};

/// Emits operators on a tensor and on vectors that have a number for each of its channels.
///
/// Everything is a function of the tensor: that statistics were saved is of no account to gradients.
pub(super) struct Channels<'g, 'a> {
    pub(super) g: &'g mut GradCx<'a>,
    /// Says which tensor is normalised, and how.
    of: BatchNormGrad,
    /// `n = (x - mean) / √(variance + epsilon)`.
    pub(super) normal: Var,
    /// `r = 1 / √(variance + epsilon)`.
    pub(super) inverse: Var,
}

impl<'g, 'a> Channels<'g, 'a> {
    /// `of` says which tensor is normalised, and how; its slots for gradients do not count.
    pub(super) fn new(g: &'g mut GradCx<'a>, of: BatchNormGrad) -> Channels<'g, 'a> {
        let [normal, saved_mean, inverse] = ["normal", "mean", "inverse"].map(|what| g.fresh(what));
        let [mean_out, variance_out] = ["mean", "variance"].map(|what| g.fresh(what));
        let BatchNormGrad { x, mean, variance, epsilon, data_layout, .. } = of;
        g.push(BatchNorm {
            x,
            scale: None,
            bias: None,
            // Where they are not given, any vectors will do: how they run on is not used.
            mean: mean.unwrap_or(of.saved_mean),
            variance: variance.unwrap_or(of.saved_variance),
            y: normal,
            mean_out,
            variance_out,
            saved_mean,
            saved_variance: inverse,
            reserve_space: None,
            momentum: 0.0,
            epsilon,
            data_layout,
            is_test: false,
            use_global_stats: mean.is_some(),
            trainable_statistics: false,
        });
        let of = BatchNormGrad { mean_out, variance_out, saved_mean, saved_variance: inverse, ..of };
        Channels { g, of, normal, inverse }
    }

    /// Each row of `x`, of shape `[1, rows, width]`, is a channel; `numbers` is any vector with one for each.
    pub(super) fn rows(g: &'g mut GradCx<'a>, x: Var, numbers: Var, epsilon: f32) -> Channels<'g, 'a> {
        let of = BatchNormGrad {
            x,
            scale: None,
            bias: None,
            mean: None,
            variance: None,
            mean_out: numbers,
            variance_out: numbers,
            saved_mean: numbers,
            saved_variance: numbers,
            reserve_space: None,
            dy: x,
            dx: None,
            dscale: None,
            dbias: None,
            epsilon,
            data_layout: DataLayout::Nchw,
            is_test: false,
            use_global_stats: false,
            trainable_statistics: false,
        };
        Channels::new(g, of)
    }

    /// `factor * r * (dy - mean(dy) - n * mean(dy * n))`, or `factor * r * dy` where statistics are given.
    pub(super) fn project(&mut self, factor: Option<Var>, dy: Var) -> Var {
        let dx = self.g.fresh("projected");
        self.g.push(BatchNormGrad { scale: factor, dy, dx: Some(dx), dscale: None, dbias: None, ..self.of });
        dx
    }

    /// `Σ dy` and `Σ dy * n` over each channel.
    pub(super) fn sums(&mut self, dy: Var) -> (Var, Var) {
        let (sum, products) = (self.g.fresh("sum"), self.g.fresh("products"));
        let (dscale, dbias) = (Some(products), Some(sum));
        self.g.push(BatchNormGrad { scale: None, dy, dx: None, dscale, dbias, ..self.of });
        (sum, products)
    }

    /// How many elements a channel has; 1 where it has none.
    fn count(&mut self) -> Var {
        let (ones, count) = (self.g.fresh("ones"), self.g.fresh("count"));
        self.g.push(FillAnyLike { x: self.of.x, out: ones, value: 1.0, dtype: None });
        let (n, _) = self.sums(ones);
        self.g.push(Clip { x: n, out: count, min: 1.0, max: f64::from(f32::MAX) });
        count
    }

    /// `x * y`, where `y` may be a vector of channels.
    pub(super) fn product(&mut self, x: Var, y: Var) -> Var {
        let (out, axis) = (self.g.fresh("product"), self.of.data_layout.axis());
        self.g.push(ElementwiseMul { x, y, out, axis });
        out
    }

    pub(super) fn quotient(&mut self, x: Var, y: Var) -> Var {
        let out = self.g.fresh("quotient");
        self.g.push(ElementwiseDiv { x, y, out, axis: -1 });
        out
    }

    pub(super) fn difference(&mut self, x: Var, y: Var) -> Var {
        let out = self.g.fresh("difference");
        self.g.push(ElementwiseSub { x, y, out, axis: -1 });
        out
    }

    pub(super) fn scaled(&mut self, x: Var, scale: f64) -> Var {
        let out = self.g.fresh("scaled");
        self.g.push(Scale { x, out, scale, bias: 0.0, bias_after_scale: true });
        out
    }

    /// `factor * x`, where there is a factor.
    pub(super) fn times(&mut self, x: Var, factor: Option<Var>) -> Var {
        factor.map_or(x, |factor| self.product(x, factor))
    }

    /// `n * slope + shift`, where what is absent is 0.
    pub(super) fn line(&mut self, slope: Option<Var>, shift: Option<Var>) -> Var {
        let zeros = |g: &mut GradCx<'_>, x: Var| {
            let out = g.fresh("zeros");
            g.push(FillZerosLike { x, out });
            out
        };
        let line = match slope {
            Some(slope) => self.product(self.normal, slope),
            None => zeros(self.g, self.normal),
        };
        let Some(y) = shift else { return line };
        let (out, axis) = (self.g.fresh("line"), self.of.data_layout.axis());
        self.g.push(ElementwiseAdd { x: line, y, out, axis });
        out
    }

    /// Writes the sum of the terms, if there are any and anybody wants it.
    pub(super) fn write(&mut self, terms: Vec<Var>, out: Option<Var>) {
        if let Some(out) = out.filter(|_| !terms.is_empty()) {
            self.g.push(Sum { x: terms, out });
        }
    }

    pub(super) fn total(&mut self, terms: Vec<Var>) -> Option<Var> {
        let out = (!terms.is_empty()).then(|| self.g.fresh("sum"));
        self.write(terms, out);
        out
    }

    /// The gradient of `x` where those of the mean, the variance and of `r` are these:
    /// `(dmean + n * (2 * dvariance / r - r² * dr)) / count`.
    pub(super) fn statistics(&mut self, dmean: Vec<Var>, dvariance: Option<Var>, dr: Option<Var>) -> Var {
        let (count, r) = (self.count(), self.inverse);
        let mut slopes = vec![];
        if let Some(dvariance) = dvariance {
            let deviations = self.quotient(dvariance, r);
            slopes.push(self.scaled(deviations, 2.0));
        }
        if let Some(dr) = dr {
            let square = self.product(r, r);
            let product = self.product(square, dr);
            slopes.push(self.scaled(product, -1.0));
        }
        let [slope, shift] =
            [slopes, dmean].map(|terms| self.total(terms).map(|total| self.quotient(total, count)));
        self.line(slope, shift)
    }

    /// Gradients of the mean, `-r * shift`, and the variance, `-r² / 2 * Σ slopes`, where they are given.
    pub(super) fn given(&mut self, shift: Option<Var>, slopes: Vec<Var>) -> (Option<Var>, Option<Var>) {
        let r = self.inverse;
        let of_mean = shift.map(|shift| {
            let product = self.product(shift, r);
            self.scaled(product, -1.0)
        });
        let of_variance = self.total(slopes).map(|slope| {
            let product = self.product(slope, r);
            let product = self.product(product, r);
            self.scaled(product, -0.5)
        });
        (of_mean, of_variance)
    }

    /// With `a` the gradient of `dx = scale * project(dy)`, and `projected = project(a)`: `Σ dy * projected`, which is that
    /// of `scale`, and the terms of that of `x`,
    /// `-r * scale / count * (projected * Σ dy * n + project(dy) * Σ a * n + n * Σ dy * projected)`.
    pub(super) fn twice(
        &mut self,
        scale: Option<Var>,
        dy: Var,
        (a, projected): (Var, Var),
    ) -> (Var, Vec<Var>) {
        let product = self.product(dy, projected);
        let (both, _) = self.sums(product);
        if self.of.mean.is_some() {
            return (both, vec![]);
        }
        let ((_, of_dy), (_, of_a), count) = (self.sums(dy), self.sums(a), self.count());
        let share = self.quotient(self.inverse, count);
        let factor = self.scaled(share, -1.0);
        let factor = self.times(factor, scale);
        let [of_dy, of_a, of_both] = [of_dy, of_a, both].map(|sum| self.product(sum, factor));
        let terms = vec![
            self.product(projected, of_dy),
            self.project(Some(of_a), dy),
            self.product(self.normal, of_both),
        ];
        (both, terms)
    }
}
