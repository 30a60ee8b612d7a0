//! Functions that are applied to the results of convolutions while these are in the cache.

use autobwd::{
    Attrs, Expr, New, Pointwise, emit,
    op::{LaneOf, VectorLoops, map_lanes},
};

use crate::{
    activation::{Gelu, HardSigmoid, HardSwish, LeakyRelu, Relu, Relu6, Sigmoid, Swish},
    kernel_helpers::{KernelFloat, unbounded},
};

autobwd::op::attr_enum! {
    /// A function that is applied to the result of a convolution.
    pub enum Activation {
        /// None.
        Identity = "",
        /// `relu`.
        Relu = "relu",
        /// `relu6`, up to `fuse_alpha`.
        Relu6 = "relu6",
        /// `leaky_relu`, with the factor `fuse_alpha` below 0.
        LeakyRelu = "leaky_relu",
        /// `hard_sigmoid`, of `fuse_alpha * x + fuse_beta`.
        HardSigmoid = "hard_sigmoid",
        /// `hard_swish` with its usual attributes.
        HardSwish = "hard_swish",
        /// `gelu`.
        Gelu = "gelu",
        /// `gelu` by a hyperbolic tangent.
        GeluTanh = "gelu_tanh",
        /// `sigmoid`.
        Sigmoid = "sigmoid",
        /// `swish`, with the factor `fuse_beta`.
        Swish = "swish",
    }
}

/// The attributes of a function that is applied to results.
#[derive(Attrs, Clone, Debug)]
pub struct ActivationAttrs {
    /// The function, or none.
    #[attr(default = Activation::Identity)]
    pub fuse_activation: Activation,
    /// A number of some functions.
    #[attr(default = 0.0)]
    pub fuse_alpha: f32,
    /// A further number of some functions.
    #[attr(default = 0.0)]
    pub fuse_beta: f32,
}

/// Calls with the operator that computes a function of `x`, and the method that runs it.
macro_rules! with_operator {
    ($attrs:expr, $x:expr, $out:expr, $run:ident) => {{
        let (attrs, x, out) = ($attrs, $x, $out);
        let (alpha, beta) = (attrs.fuse_alpha, attrs.fuse_beta);
        match attrs.fuse_activation {
            Activation::Identity => None,
            Activation::Relu => Some($run!(Relu { x, out })),
            Activation::Relu6 => Some($run!(Relu6 { x, out, threshold: alpha })),
            Activation::LeakyRelu => Some($run!(LeakyRelu { x, out, alpha: alpha.into() })),
            Activation::HardSigmoid => Some($run!(HardSigmoid { x, out, slope: alpha, offset: beta })),
            Activation::HardSwish => {
                Some($run!(HardSwish { x, out, threshold: 6.0, scale: 6.0, offset: 3.0 }))
            }
            Activation::Gelu => Some($run!(Gelu { x, out, approximate: false })),
            Activation::GeluTanh => Some($run!(Gelu { x, out, approximate: true })),
            Activation::Sigmoid => Some($run!(Sigmoid { x, out })),
            Activation::Swish => Some($run!(Swish { x, out, beta })),
        }
    }};
}

impl ActivationAttrs {
    /// The function of an expression.
    pub(crate) fn of(&self, x: &Expr) -> Expr {
        macro_rules! emitted {
            ($op:expr) => {
                emit($op).out
            };
        }
        with_operator!(self, x.into(), New, emitted).unwrap_or_else(|| x.clone())
    }

    /// The bounds of results that are the function, if it only bounds them and no residual is added before.
    fn own_bounds(&self, adds_residual: bool) -> Option<[f64; 2]> {
        match self.fuse_activation {
            Activation::Identity => Some([f64::NEG_INFINITY, f64::INFINITY]),
            Activation::Relu => Some([0.0, f64::INFINITY]),
            Activation::Relu6 => Some([0.0, self.fuse_alpha.into()]),
            _ => None,
        }
        .filter(|_| !adds_residual)
    }

    /// Bounds of the sums of a convolution: what [`finish`](ActivationAttrs::finish) then leaves out.
    pub(crate) fn bounds<T: KernelFloat>(&self, adds_residual: bool) -> [T; 2] {
        self.own_bounds(adds_residual).map_or_else(unbounded, |bounds| bounds.map(T::of))
    }

    /// Adds the residual, if there is one, to bounded sums, and applies the function.
    pub(crate) fn finish<T: KernelFloat>(&self, y: &mut [T], residual: Option<&[T]>) {
        if self.own_bounds(residual.is_some()).is_none() {
            T::vectorised(Finish { attrs: self, y, residual });
        }
    }
}

struct Finish<'a, T> {
    attrs: &'a ActivationAttrs,
    y: &'a mut [T],
    residual: Option<&'a [T]>,
}
impl<T: KernelFloat> VectorLoops<T> for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Finish { attrs, y, residual } = self;
        if let Some(residual) = residual {
            map_lanes([residual], [&mut *y], |[x]: [F; 1], [y]: [F; 1]| [y + x]);
        }
        macro_rules! mapped {
            ($op:expr) => {
                map_lanes([], [&mut *y], |[]: [F; 0], [x]: [F; 1]| {
                    let mut op = $op;
                    op.x = x;
                    op.eval();
                    [op.out]
                })
            };
        }
        if attrs.fuse_activation == Activation::HardSwish {
            // A division would take most of the time.
            let (zero, one) = (F::from(0.0), F::from(1.0));
            map_lanes([], [y], |[]: [F; 0], [x]: [F; 1]| {
                let line = x * F::from(1.0 / 6.0) + 0.5;
                let line = F::select(zero.gt(line), zero, line);
                [x * F::select(line.gt(one), one, line)]
            });
            return;
        }
        let zero = F::from(0.0);
        with_operator!(attrs, zero, zero, mapped);
    }
}
