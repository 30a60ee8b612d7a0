//! Ten activations, each twice: with the gradient that people write, and with `grad = Derived`.

use autobwd::{Derived, Float, NoGrad, Pointwise, Var, register_op};

/// The activations' names: `hand_relu_grad` and `derived_relu_grad` compute the same.
pub(crate) const ACTIVATIONS: [&str; 10] =
    ["relu", "tanh", "sigmoid", "swish", "softplus", "elu", "leaky_relu", "gelu", "exp", "square"];

/// An activation as two operators: its formula, and the gradient written by hand from its input or its output.
macro_rules! activation {
    ($hand:ident, $grad:ident, $derived:ident: |$x:ident| $formula:expr, |$from:ident, $dout:ident| $gradient:expr) => {
        activation!(@forward $hand, $grad, $x, $formula);
        activation!(@forward $derived, Derived, $x, $formula);

        #[doc = concat!("The gradient written by hand of `", stringify!($hand), "`.")]
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
    (@forward $name:ident, $gradient:ident, $x:ident, $formula:expr) => {
        #[doc = concat!("The activation with the gradient `", stringify!($gradient), "`.")]
        #[register_op(grad = $gradient, pointwise)]
        pub(crate) struct $name<V = Var> {
            /// Any shape.
            #[input]
            pub(crate) x: V,
            /// Same shape as `x`.
            #[output(inplace = x)]
            pub(crate) out: V,
        }
        impl<F: Float> Pointwise for $name<F> {
            fn eval(&mut self) {
                let $x = self.x;
                self.out = $formula;
            }
        }
    };
}

#[inline(always)]
fn one<F: Float>() -> F {
    F::of(1.0)
}

/// `sqrt(2 / π) · (x + 0.044715 · x³)`.
#[inline(always)]
fn gelu_angle<F: Float>(x: F) -> F {
    F::of(0.797_884_560_802_865_4) * (x + F::of(0.044_715) * x * x * x)
}

/// Its derivative.
#[inline(always)]
fn gelu_slope<F: Float>(x: F) -> F {
    F::of(0.797_884_560_802_865_4) * (one::<F>() + F::of(0.134_145) * x * x)
}

#[inline(always)]
fn gelu_grad<F: Float>(x: F) -> F {
    let t = gelu_angle(x).tanh();
    F::of(0.5) * (one::<F>() + t + x * (one::<F>() - t * t) * gelu_slope(x))
}

#[inline(always)]
fn swish_grad<F: Float>(x: F) -> F {
    let s = x.sigmoid();
    s * (one::<F>() + x * (one::<F>() - s))
}

#[inline(always)]
fn positive<F: Float>(x: F, yes: F, no: F) -> F {
    F::select(x.gt(F::of(0.0)), yes, no)
}

activation!(HandRelu, HandReluGrad, DerivedRelu: |x| positive(x, x, F::of(0.0)),
    |out, dout| positive(out, dout, F::of(0.0)));
activation!(HandTanh, HandTanhGrad, DerivedTanh: |x| x.tanh(), |out, dout| dout * (one::<F>() - out * out));
activation!(HandSigmoid, HandSigmoidGrad, DerivedSigmoid: |x| x.sigmoid(),
    |out, dout| dout * out * (one::<F>() - out));
activation!(HandSwish, HandSwishGrad, DerivedSwish: |x| x * x.sigmoid(), |x, dout| dout * swish_grad(x));
activation!(HandSoftplus, HandSoftplusGrad, DerivedSoftplus: |x| (one::<F>() + x.exp()).log(),
    |x, dout| dout * x.sigmoid());
activation!(HandElu, HandEluGrad, DerivedElu: |x| positive(x, x, x.exp() - one::<F>()),
    |out, dout| positive(out, dout, dout * (out + one::<F>())));
activation!(HandLeakyRelu, HandLeakyReluGrad, DerivedLeakyRelu: |x| positive(x, x, F::of(0.01) * x),
    |out, dout| positive(out, dout, F::of(0.01) * dout));
activation!(HandGelu, HandGeluGrad, DerivedGelu: |x| F::of(0.5) * x * (one::<F>() + gelu_angle(x).tanh()),
    |x, dout| dout * gelu_grad(x));
activation!(HandExp, HandExpGrad, DerivedExp: |x| x.exp(), |out, dout| dout * out);
activation!(HandSquare, HandSquareGrad, DerivedSquare: |x| x * x, |x, dout| F::of(2.0) * dout * x);
