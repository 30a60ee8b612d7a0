//! Floor division and remainder, with the broadcasting of `elementwise_add`.

use autobwd::{
    Buf, Composition, Cx, DType, Derived, Error, Expr, Float, Infer, Kernel, Meta, New, Pointwise, Result,
    Var, ZeroGrad, check::*, emit, register_op, tensor::Element,
};

use crate::{
    Math,
    compare::NotEqual,
    elementwise::{ElementwiseDiv, ElementwiseMul},
    kernel_helpers::{broadcast, zip_broadcast},
};

/// Element types with division.
trait Divide: Element {
    /// Whether division by it is an error.
    fn is_no_divisor(self) -> bool;
    /// The quotient rounded down.
    fn floor_div(self, by: Self) -> Self;
    /// The remainder, with the sign of the divisor.
    fn modulo(self, by: Self) -> Self;
}
macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Divide for $t {
            fn is_no_divisor(self) -> bool {
                self == 0
            }
            fn floor_div(self, by: $t) -> $t {
                let down = self.wrapping_rem(by) != 0 && (self < 0) != (by < 0);
                self.wrapping_div(by) - <$t>::from(down)
            }
            fn modulo(self, by: $t) -> $t {
                let rest = self.wrapping_rem(by);
                if rest != 0 && (rest < 0) != (by < 0) { rest + by } else { rest }
            }
        }
    )*};
}
integers!(i32, i64);
macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Divide for $t {
            fn is_no_divisor(self) -> bool {
                false
            }
            fn floor_div(self, by: $t) -> $t {
                (self / by).floor()
            }
            fn modulo(self, by: $t) -> $t {
                let rest = self % by;
                if rest != 0.0 && (rest < 0.0) != (by < 0.0) { rest + by } else { rest }
            }
        }
    )*};
}
floats!(f32, f64);

/// Implements shape rule, kernel and samples.
macro_rules! division {
    ($op:ident, $f:ident) => {
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                let signed = self.x.dtype.is_float() || matches!(self.x.dtype, DType::I32 | DType::I64);
                self.x.require(signed, || "signed or floating point numbers are needed".into())?;
                self.y.same_dtype(&self.x)?;
                self.out.set(self.x.dtype, broadcast(&self.x, &self.y, self.axis)?);
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                let $op { x, y, out, axis } = self;
                match x.dtype() {
                    DType::I32 => divide(cx, (x, y), out, *axis, i32::$f),
                    DType::I64 => divide(cx, (x, y), out, *axis, i64::$f),
                    DType::F32 => divide(cx, (x, y), out, *axis, f32::$f),
                    DType::F64 => divide(cx, (x, y), out, *axis, f64::$f),
                    _ => Err(x.wrong("signed or floating point numbers are needed")),
                }
            }
        }
        const _: () = {
            fn row(x: Draw, y: Draw) -> $op<Draw> {
                $op { x, y, out: out(), axis: -1 }
            }
            autobwd::samples!(
                $op,
                [
                    row(
                        given([2, 3], [7.0, -7.0, 7.0, -7.0, 6.0, -6.0]).of(DType::I64),
                        given([2, 3], [2.0, 2.0, -2.0, -2.0, 3.0, -3.0]).of(DType::I64)
                    ),
                    $op { axis: 1, ..row(uniform([2, 3, 4]), positive([3])) },
                    row(uniform([4]), away_from(0.0, [3, 4])),
                    // The remainder of the numbers as they are stored is not 0, the rounded quotient is 10.
                    row(given([2], [1.0, -1.0]), given([2], [0.1, 0.1]))
                        .discontinuous("the quotient is rounded down next to an integer"),
                    row(uniform([0, 4]), uniform([4])),
                    row(given([1], [-2147483648.0]).of(DType::I32), given([1], [-1.0]).of(DType::I32)),
                    row(integers_below(9, [2]), given([2], [1.0, 0.0]).of(DType::I64))
                        .fails("`Y`: division of an integer by 0"),
                    row(uniform([2]), integers_below(9, [2])).fails("`Y`: dtype int64 does not match"),
                    row(integers_below(9, [2]).of(DType::U8), integers_below(9, [2]).of(DType::U8))
                        .fails("`X`: signed or floating point numbers are needed"),
                ]
            );
        };
    };
}

fn divide<T: Divide>(
    cx: &Cx,
    (x, y): (&Buf<'_>, &Buf<'_>),
    out: &mut Buf<'_>,
    axis: i32,
    f: fn(T, T) -> T,
) -> Result<()> {
    if out.numel() > 0 && y.slice::<T>()?.iter().any(|y| y.is_no_divisor()) {
        return Err(Error::data(format!("`{}`: division of an integer by 0", y.slot())));
    }
    zip_broadcast(cx, (x, y), out, axis, f)
}

/// Floor division with broadcasting: `out = ⌊x / y⌋`.
#[register_op(grad = ZeroGrad)]
pub struct ElementwiseFloordiv<V = Var> {
    /// Signed integers or floating-point numbers of any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with that of `x`; no integer may be 0.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output]
    pub out: V,
    /// Dimension of the other operand at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
division!(ElementwiseFloordiv, floor_div);
impl Composition for ElementwiseFloordiv<Expr> {
    fn compose(&mut self) {
        let ((x, y), axis) = ((&self.x, &self.y), self.axis);
        let quotient = emit(ElementwiseDiv { x: x.into(), y: y.into(), out: New, axis }).out;
        if x.dtype().is_float() {
            self.out = quotient.floor();
            return;
        }
        // A quotient of integers is rounded towards 0. With the remainder of floor division, it gives `x` unless it is
        // one too large; both wrap around.
        let rest = emit(ElementwiseMod { x: x.into(), y: y.into(), out: New, axis }).out;
        let product = emit(ElementwiseMul { x: (&quotient).into(), y: y.into(), out: New, axis }).out;
        let is_larger = emit(NotEqual { x: x.into(), y: (product + rest).into(), out: New, axis }).out;
        self.out = &quotient - is_larger.cast(x.dtype());
    }
}

/// Remainder of floor division with broadcasting: `out = x - ⌊x / y⌋ * y`, with the sign of `y`.
#[register_op(grad = ElementwiseModGrad, primitive)]
pub struct ElementwiseMod<V = Var> {
    /// Signed integers or floating-point numbers of any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with that of `x`; no integer may be 0.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output]
    pub out: V,
    /// Dimension of the other operand at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
division!(ElementwiseMod, modulo);

/// `dx = dout`, `dy = -dout * ⌊x / y⌋`, each summed over the broadcast dimensions of its operand.
#[register_op(grad_of = ElementwiseMod, grad = Derived, pointwise, broadcast)]
pub struct ElementwiseModGrad<V = Var> {
    pub dout: V,
    pub x: V,
    pub y: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseModGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dx.map(|_| self.dout);
        self.dy = self.dy.map(|_| -(self.dout * (self.x / self.y).floor()));
    }
}
