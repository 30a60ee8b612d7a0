//! An operator struct made by `macro_rules!`.
use autobwd::{Float, NoGrad, Pointwise, Var, op::Op, register_op};

macro_rules! operator {
    ($(#[$meta:meta])* $name:ident, $ty:ty, $default:expr, |$x:ident, $a:ident| $formula:expr) => {
        $(#[$meta])*
        #[register_op(grad = NoGrad, pointwise)]
        pub struct $name<V = Var> {
            #[input]
            pub x: V,
            #[output(inplace = x)]
            pub out: V,
            #[attr(default = $default, min = 0.0)]
            pub factor: $ty,
        }
        impl<F: Float> Pointwise for $name<F> {
            fn eval(&mut self) {
                let ($x, $a) = (self.x, F::from(self.factor));
                self.out = $formula;
            }
        }
    };
}
operator!(
    /// `out = a · x`
    Stretch, f64, 1.0, |x, a| a * x
);
operator!(Lift, f64, 0.0, |x, a| a + x);

#[test]
fn structs_from_macros_are_operators() {
    assert_eq!(Stretch::SCHEMA.doc.lines().next(), Some("`out = a · x`"));
    assert_eq!(Lift::SCHEMA.attrs[0].bounds_text(), "min = 0.0");
}
