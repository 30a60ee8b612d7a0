//! The rectifier with a learned slope.

use std::ops::Range;

use autobwd::{
    Buf, Cx, Dim, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op, with_float,
};

use crate::{
    activation::Scale,
    common::{Real, around},
    compare::GreaterThan,
    elementwise::{ElementwiseMul, grad_if_any},
    fill::{FillAnyLike, FillZerosLike},
    logic::Where,
    norm::{Cut, DataLayout, sums},
    sum::Sum,
};

autobwd::attr_enum! {
    /// Which elements have a slope in common.
    pub enum PreluMode {
        /// All of them.
        All = "all",
        /// Those of a channel.
        Channel = "channel",
        /// Those at the same place of each sample.
        Element = "element",
    }
}

/// Rectifier with a slope: `out = x` where `x > 0`, else `alpha * x`.
#[register_op(grad = PreluGrad)]
pub struct Prelu<V = Var> {
    /// At least one dimension, of which the first counts samples; at least two in mode `channel`.
    #[input]
    pub x: V,
    /// Slopes, as many as `mode` says, in any shape: one, one a channel, or one an element of a sample.
    #[input]
    pub alpha: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Which elements have a slope in common.
    #[attr(default = PreluMode::All)]
    pub mode: PreluMode,
    /// Where the channels are.
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
impl Infer for Prelu<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_slopes(&self.x, &self.alpha, self.mode, self.data_format)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Prelu<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = slopes(&self.x, self.mode, self.data_format);
        with_float!(self.x, T => {
            let (x, alpha) = (self.x.slice::<T>()?, self.alpha.slice::<T>()?);
            cut.write(cx, self.out.slice_mut::<T>()?, (0, cut.groups), |slope, at, out| {
                let alpha = alpha[slope];
                out.iter_mut().zip(&x[at..]).for_each(|(out, x)| *out = if *x > 0.0 { *x } else { alpha * *x });
            });
            Ok(())
        })
    }
}
autobwd::samples!(
    Prelu,
    [
        prelu(away_from(0.0, [2, 3]), uniform([1]), PreluMode::All, DataLayout::Nchw),
        prelu(away_from(0.0, [4]), uniform([]), PreluMode::All, DataLayout::Nhwc),
        prelu(away_from(0.0, [2, 3, 4]), uniform([3]), PreluMode::Channel, DataLayout::Nchw),
        prelu(away_from(0.0, [2, 3, 1, 5]), uniform([1, 3, 1, 1]), PreluMode::Channel, DataLayout::Nchw),
        prelu(away_from(0.0, [2, 3, 4]), uniform([4]), PreluMode::Channel, DataLayout::Nhwc),
        prelu(away_from(0.0, [2, 3, 4]), uniform([1, 3, 4]), PreluMode::Element, DataLayout::Nchw),
        prelu(away_from(0.0, [3]), uniform([1]), PreluMode::Element, DataLayout::Nchw),
        prelu(away_from(0.0, [0, 3]), uniform([3]), PreluMode::Channel, DataLayout::Nchw),
        prelu(away_from(0.0, [2, 0]), uniform([0]), PreluMode::Element, DataLayout::Nchw),
        Sample::not_a_derivative(
            prelu(given([3], [0.0, f64::NAN, -0.0]), uniform([1]), PreluMode::All, DataLayout::Nchw),
            "it has a kink at 0"
        ),
        Sample::fails(
            prelu(uniform([2, 3]), uniform([2]), PreluMode::Channel, DataLayout::Nchw),
            "`Alpha`: 3 elements are needed",
        ),
        Sample::fails(
            prelu(uniform([2, 3]), uniform([3]), PreluMode::All, DataLayout::Nchw),
            "`Alpha`: 1 elements are needed",
        ),
        Sample::fails(
            prelu(uniform([3]), uniform([3]), PreluMode::Channel, DataLayout::Nchw),
            "`X`: samples and channels are needed",
        ),
        Sample::fails(
            prelu(uniform([]), uniform([1]), PreluMode::All, DataLayout::Nchw),
            "`X`: samples are needed"
        ),
    ]
);

fn prelu(x: Draw, alpha: Draw, mode: PreluMode, data_format: DataLayout) -> Prelu<Draw> {
    Prelu { x, alpha, out: out(), mode, data_format }
}

fn check_slopes(x: &Meta, alpha: &Meta, mode: PreluMode, layout: DataLayout) -> Result<()> {
    x.float()?;
    alpha.same_dtype(x)?;
    x.require(x.rank() > 0, || "samples are needed".into())?;
    let n = match mode {
        PreluMode::All => 1.into(),
        PreluMode::Channel => {
            x.require(x.rank() > 1, || "samples and channels are needed".into())?;
            x.dims[layout.channels(x.rank())]
        }
        PreluMode::Element => x.dims[1..].iter().fold(Dim::from(1), |n, dim| n * *dim),
    };
    alpha.require(alpha.dims.numel().agrees(n), || format!("{n} elements are needed"))
}

/// Elements with one slope are a group.
fn slopes(x: &Buf<'_>, mode: PreluMode, layout: DataLayout) -> Cut {
    let (outer, groups, inner) = match mode {
        PreluMode::All => (1, 1, x.numel()),
        PreluMode::Channel => around(x.dims(), layout.channels(x.dims().len())),
        PreluMode::Element => (x.dims()[0], x.dims()[1..].iter().product(), 1),
    };
    Cut { outer, groups, inner }
}

/// `dx = dout` where `x > 0`, else `alpha * dout`; `dalpha = Σ dout * x` over the elements with that slope where not
/// `x > 0`.
#[register_op(grad_of = Prelu, grad = PreluGradGrad)]
pub struct PreluGrad<V = Var> {
    pub x: V,
    pub alpha: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dalpha: Option<V>,
    pub mode: PreluMode,
    pub data_format: DataLayout,
}
impl Infer for PreluGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_slopes(&self.x, &self.alpha, self.mode, self.data_format)?;
        self.dout.same_as(&self.x)?;
        self.dx.iter_mut().for_each(|dx| dx.like(&self.x));
        self.dalpha.iter_mut().for_each(|dalpha| dalpha.like(&self.alpha));
        Ok(())
    }
}
impl Kernel for PreluGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = slopes(&self.x, self.mode, self.data_format);
        with_float!(self.x, T => {
            let (x, dout) = (self.x.slice::<T>()?, self.dout.slice::<T>()?);
            let alpha = self.alpha.slice::<T>()?;
            if let Some(dx) = &mut self.dx {
                cut.write(cx, dx.slice_mut::<T>()?, (0, cut.groups), |slope, at, dx| {
                    for ((dx, x), dout) in dx.iter_mut().zip(&x[at..]).zip(&dout[at..]) {
                        *dx = if *x > 0.0 { *dout } else { alpha[slope] * *dout };
                    }
                });
            }
            if let Some(dalpha) = &mut self.dalpha {
                let dalpha = dalpha.slice_mut::<T>()?;
                let below = |_: usize, range: Range<usize>| {
                    sums(&x[range.clone()], &dout[range], |x, dout| [if x > 0.0 { 0.0 } else { dout * x }])
                };
                cut.sums(cx, below, |first, sums| {
                    dalpha[first..].iter_mut().zip(sums).for_each(|(dalpha, [sum])| *dalpha = T::of(*sum));
                });
            }
            Ok(())
        })
    }
}

/// With `a` and `b` the gradients of `dx` and `dalpha`: `ddout = a` where `x > 0`, else `alpha * a + b * x`; where not
/// `x > 0`, for `x` `b * dout`, and for `alpha` `Σ a * dout`.
pub struct PreluGradGrad;
impl GradRule<PreluGrad> for PreluGradGrad {
    fn emit(fwd: &PreluGrad, g: &mut GradCx<'_>) {
        let PreluGrad { x, alpha, dout, mode, data_format, .. } = *fwd;
        let (ddout, dx, dalpha) = (g.wanted(dout), g.wanted(x), g.wanted(alpha));
        let (zeros, above, below) = (g.fresh("zeros"), g.fresh("above"), g.fresh("below"));
        g.push(FillZerosLike { x, out: zeros });
        g.push(GreaterThan { x, y: zeros, out: above, axis: -1 });
        g.push(FillAnyLike { x, out: below, value: -1.0, dtype: None });
        let where_not_above = |g: &mut GradCx<'_>, y: Var| {
            let out = g.fresh("below");
            g.push(Where { condition: above, x: zeros, y, out });
            out
        };
        let mut terms = vec![];
        if let Some(a) = grad_if_any(g, fwd.dx) {
            terms.push(g.fresh("factored"));
            g.push(PreluGrad { x, alpha, dout: a, dx: Some(terms[0]), dalpha: None, mode, data_format });
            if dalpha.is_some() {
                let (product, negated) = (g.fresh("product"), g.fresh("negated"));
                g.push(ElementwiseMul { x: a, y: dout, out: product, axis: -1 });
                let product = where_not_above(g, product);
                g.push(Scale { x: product, out: negated, scale: -1.0, bias: 0.0, bias_after_scale: true });
                // The sum of products with −1.
                g.push(PreluGrad { x: below, alpha, dout: negated, dx: None, dalpha, mode, data_format });
            }
        }
        if let Some(b) = grad_if_any(g, fwd.dalpha) {
            let (low, out) = (where_not_above(g, x), g.fresh("factored"));
            g.push(Prelu { x: low, alpha: b, out, mode, data_format });
            terms.push(out);
            if dx.is_some() {
                let dout = where_not_above(g, dout);
                g.push(PreluGrad { x: below, alpha: b, dout, dx, dalpha: None, mode, data_format });
            }
        }
        if let Some(out) = ddout.filter(|_| !terms.is_empty()) {
            g.push(Sum { x: terms, out });
        }
    }
}
