//! PReLU: the rectifier with learned coefficients.

use autobwd::{
    Buf, Composed, Composition, Cx, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::with_float,
    register_op,
    tensor::{Dim, OptionalBuf},
};

use crate::{
    DimExpr, Math,
    elementwise::ElementwiseMul,
    fill::FillZerosLike,
    kernel_helpers::{KernelFloat, outer_axis_inner},
    norm::{DataLayout, NormTiling},
};

autobwd::op::attr_enum! {
    /// Which elements share a coefficient.
    pub enum PreluMode {
        /// All elements.
        All = "all",
        /// Elements of a channel.
        Channel = "channel",
        /// Elements at the same position of each sample.
        Element = "element",
    }
}

/// PReLU: `out = x` where `x > 0`, else `alpha * x`.
///
/// At 0, the gradient is `alpha`.
#[register_op(grad = PreluGrad, infallible)]
pub struct Prelu<V = Var> {
    /// At least one dimension, the first for samples; at least two in mode `channel`.
    #[input]
    pub x: V,
    /// Coefficients in any shape: one, one for each channel, or one for each element of a sample, according to `mode`.
    #[input]
    pub alpha: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Which elements share a coefficient.
    #[attr(default = PreluMode::All)]
    pub mode: PreluMode,
    /// Position of the channel dimension.
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
impl Composition for Prelu<Expr> {
    fn compose(&mut self) {
        let rank = self.x.dims().len() as i32;
        let slopes = match self.mode {
            PreluMode::Element => {
                let dims: Vec<DimExpr> = (1..rank).map(|axis| self.x.dim(axis)).collect();
                self.alpha.reshape_to(&dims)
            }
            PreluMode::All | PreluMode::Channel => self.alpha.reshape(&[-1]),
        };
        let axis = match (self.mode, self.data_format) {
            (PreluMode::Channel, DataLayout::Nchw) => 1,
            _ => -1,
        };
        let x = &self.x;
        let below = emit(ElementwiseMul { x: x.into(), y: slopes.into(), out: New, axis }).out;
        let zeros = emit(FillZerosLike { x: x.into(), out: New }).out;
        self.out = x.greater_than(&zeros).where_cond(x, &below);
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
        prelu(given([3], [0.0, f64::NAN, -0.0]), uniform([1]), PreluMode::All, DataLayout::Nchw)
            .not_a_derivative("it has a kink at 0"),
        prelu(uniform([2, 3]), uniform([2]), PreluMode::Channel, DataLayout::Nchw)
            .fails("`Alpha`: 3 elements are needed"),
        prelu(uniform([2, 3]), uniform([3]), PreluMode::All, DataLayout::Nchw)
            .fails("`Alpha`: 1 elements are needed"),
        prelu(uniform([3]), uniform([3]), PreluMode::Channel, DataLayout::Nchw)
            .fails("`X`: samples and channels are needed"),
        prelu(uniform([]), uniform([1]), PreluMode::All, DataLayout::Nchw).fails("`X`: samples are needed"),
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

/// Elements with one coefficient are a group.
fn slopes(x: &Buf<'_>, mode: PreluMode, layout: DataLayout) -> NormTiling {
    let (outer, groups, inner) = match mode {
        PreluMode::All => (1, 1, x.numel()),
        PreluMode::Channel => outer_axis_inner(x.dims(), layout.channels(x.dims().len())),
        PreluMode::Element => (x.dims()[0], x.dims()[1..].iter().product(), 1),
    };
    NormTiling { outer, groups, inner }
}

/// `dx = dout` where `x > 0`, else `alpha * dout`; `dalpha = Σ dout * x` over the elements with that coefficient where
/// not `x > 0`.
#[register_op(grad_of = Prelu, grad = Composed, inferred, infallible)]
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
impl Kernel for PreluGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = slopes(&self.x, self.mode, self.data_format);
        with_float!(self.x, T => {
            let (x, dout) = (self.x.slice::<T>()?, self.dout.slice::<T>()?);
            let alpha = self.alpha.slice::<T>()?;
            if let Some(dx) = self.dx.slice_mut::<T>()? {
                cut.write(cx, dx, (0, cut.groups), |slope, at, dx| {
                    for ((dx, x), dout) in dx.iter_mut().zip(&x[at..]).zip(&dout[at..]) {
                        *dx = if *x > 0.0 { *dout } else { alpha[slope] * *dout };
                    }
                });
            }
            if let Some(dalpha) = self.dalpha.slice_mut::<T>()? {
                let below = |_| |x, dout| [if x > 0.0 { 0.0 } else { dout * x }];
                cut.sums(cx, [x, dout], below, |first, sums| {
                    dalpha[first..].iter_mut().zip(sums).for_each(|(dalpha, [sum])| *dalpha = T::of(*sum));
                });
            }
            Ok(())
        })
    }
}
