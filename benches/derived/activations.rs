//! Ten activations with `grad = Derived`, and hand-written gradients of them.

use autobwd::{Derived, Float, NoGrad, Pointwise, Var, register_op};

/// The activations' names: `hand_relu_grad` and `derived_relu_grad` compute the same.
pub(crate) const ACTIVATIONS: [&str; 10] =
    ["relu", "tanh", "sigmoid", "swish", "softplus", "elu", "leaky_relu", "gelu", "exp", "square"];

/// The activations with a cheaper gradient in terms of the output: `hand_relu_out_grad`. `Derived` always starts from
/// the input.
pub(crate) const FROM_OUTPUT: [&str; 6] = ["relu", "tanh", "sigmoid", "elu", "leaky_relu", "exp"];

/// An activation with `grad = Derived`, and its hand-written gradient.
macro_rules! activation {
    ($derived:ident: |$x:ident| $formula:expr, $grad:ident: |$from:ident, $dout:ident| $gradient:expr) => {
        #[doc = concat!("The activation of `", stringify!($derived), "`.")]
        #[register_op(grad = Derived, pointwise)]
        pub(crate) struct $derived<V = Var> {
            /// Any shape.
            #[input]
            pub(crate) x: V,
            /// Same shape as `x`.
            #[output(inplace = x)]
            pub(crate) out: V,
        }
        impl<F: Float> Pointwise for $derived<F> {
            fn eval(&mut self) {
                let $x = self.x;
                self.out = $formula;
            }
        }
        gradient!($grad: |$from, $dout| $gradient);
    };
}

/// A hand-written gradient, from the input `x` or the output `out`.
macro_rules! gradient {
    ($grad:ident: |$from:ident, $dout:ident| $gradient:expr) => {
        #[doc = concat!("`", stringify!($grad), "`, written by hand.")]
        #[register_op(grad = NoGrad, pointwise)]
        pub(crate) struct $grad<V = Var> {
            /// Input or output of the forward operator.
            #[input]
            pub(crate) $from: V,
            /// Gradient of its output.
            #[input("Out@GRAD")]
            pub(crate) dout: V,
            /// Gradient of its input.
            #[output("X@GRAD", inplace = dout)]
            pub(crate) dx: V,
        }
        impl<F: Float> Pointwise for $grad<F> {
            fn eval(&mut self) {
                let ($from, $dout) = (self.$from, self.dout);
                self.dx = $gradient;
            }
        }
    };
}

#[inline(always)]
fn one<F: Float>() -> F {
    F::from(1.0)
}

/// `sqrt(2 / π) · (x + 0.044715 · x³)`.
#[inline(always)]
fn gelu_angle<F: Float>(x: F) -> F {
    (x + x * 0.044_715 * x * x) * 0.797_884_560_802_865_4
}

/// Its derivative.
#[inline(always)]
fn gelu_slope<F: Float>(x: F) -> F {
    (x * 0.134_145 * x + 1.0) * 0.797_884_560_802_865_4
}

#[inline(always)]
fn gelu_grad<F: Float>(x: F) -> F {
    let t = gelu_angle(x).tanh();
    (t + 1.0 + x * (one::<F>() - t * t) * gelu_slope(x)) * 0.5
}

#[inline(always)]
fn swish_grad<F: Float>(x: F) -> F {
    let s = x.sigmoid();
    s * (one::<F>() + x * (one::<F>() - s))
}

#[inline(always)]
fn positive<F: Float>(x: F, yes: F, no: F) -> F {
    F::select(x.gt(F::from(0.0)), yes, no)
}

#[inline(always)]
fn tanh_grad<F: Float>(x: F) -> F {
    let t = x.tanh();
    one::<F>() - t * t
}

#[inline(always)]
fn sigmoid_grad<F: Float>(x: F) -> F {
    let s = x.sigmoid();
    s * (one::<F>() - s)
}

activation!(DerivedRelu: |x| positive(x, x, F::from(0.0)), HandReluGrad: |x, dout| positive(x, dout, F::from(0.0)));
activation!(DerivedTanh: |x| x.tanh(), HandTanhGrad: |x, dout| dout * tanh_grad(x));
activation!(DerivedSigmoid: |x| x.sigmoid(), HandSigmoidGrad: |x, dout| dout * sigmoid_grad(x));
activation!(DerivedSwish: |x| x * x.sigmoid(), HandSwishGrad: |x, dout| dout * swish_grad(x));
activation!(DerivedSoftplus: |x| (one::<F>() + x.exp()).log(), HandSoftplusGrad: |x, dout| dout * x.sigmoid());
activation!(DerivedElu: |x| positive(x, x, x.exp() - one::<F>()),
    HandEluGrad: |x, dout| positive(x, dout, dout * x.exp()));
activation!(DerivedLeakyRelu: |x| positive(x, x, x * 0.01),
    HandLeakyReluGrad: |x, dout| positive(x, dout, dout * 0.01));
activation!(DerivedGelu: |x| x * 0.5 * (gelu_angle(x).tanh() + 1.0),
    HandGeluGrad: |x, dout| dout * gelu_grad(x));
activation!(DerivedExp: |x| x.exp(), HandExpGrad: |x, dout| dout * x.exp());
activation!(DerivedSquare: |x| x * x, HandSquareGrad: |x, dout| dout * 2.0 * x);

gradient!(HandReluOutGrad: |out, dout| positive(out, dout, F::from(0.0)));
gradient!(HandTanhOutGrad: |out, dout| dout * (one::<F>() - out * out));
gradient!(HandSigmoidOutGrad: |out, dout| dout * out * (one::<F>() - out));
gradient!(HandEluOutGrad: |out, dout| positive(out, dout, dout * (out + one::<F>())));
gradient!(HandLeakyReluOutGrad: |out, dout| positive(out, dout, dout * 0.01));
gradient!(HandExpOutGrad: |out, dout| dout * out);
