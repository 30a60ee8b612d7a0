//! Elementwise functions of one variable.

/// A function of one variable without attributes: its operator, its samples, and its gradient operator if the gradient
/// has a formula of its own.
///
/// The parentheses after a name hold arguments of `#[register_op]`. A sample is a value of `x`, with a note such as
/// `=> fails("…")` where it needs one. Slots have their names in programs in `slots(…)`, unless they are `X` and `Out`. The formula of the gradient operator names what it reads: `x` or `out`.
macro_rules! unary_formula {
    (
        $(#[doc = $doc:literal])*
        $op:ident($($option:tt)*), $(slots($input:literal, $output:literal),)? |$x:ident| $out:expr,
        samples [$($sample:expr $(=> $note:ident($why:literal))?),* $(,)?]
        $(
            , $(#[doc = $grad_doc:literal])*
            $grad:ident($($grad_option:tt)*), |$read:ident, $dout:ident| $dx:expr
        )?
    ) => {
        $(#[doc = $doc])*
        #[autobwd::register_op($($option)*, pointwise)]
        pub struct $op<V = autobwd::Var> {
            /// Any shape.
            #[input$(($input))?]
            pub x: V,
            /// Same shape as `x`.
            #[output($($output,)? inplace = x)]
            pub out: V,
        }
        impl<F: autobwd::Float> autobwd::Pointwise for $op<F> {
            #[inline(always)]
            fn eval(&mut self) {
                let $x = self.x;
                self.out = $out;
            }
        }
        autobwd::samples!($op, [$($op { x: $sample, out: autobwd::check::out() }$(.$note($why))?),*]);

        $(
            $(#[doc = $grad_doc])*
            #[autobwd::register_op(grad_of = $op, $($grad_option)*, pointwise)]
            pub struct $grad<V = autobwd::Var> {
                pub $read: V,
                pub dout: V,
                #[output(inplace = dout)]
                pub dx: V,
            }
            impl<F: autobwd::Float> autobwd::Pointwise for $grad<F> {
                #[inline(always)]
                fn eval(&mut self) {
                    let ($read, $dout) = (self.$read, self.dout);
                    self.dx = $dx;
                }
            }
        )?
    };
}
pub(crate) use unary_formula;
