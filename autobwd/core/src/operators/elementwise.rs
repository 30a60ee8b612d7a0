//! Elementwise sum, difference, product and quotient, each a formula with broadcast inputs.
//!
//! With `axis` at -1, shapes are aligned at their last dimensions, otherwise the operand of lower rank starts at
//! dimension `axis` of the other. Gradients of gradients are compositions, so they can be differentiated further.

use crate::{
    DType, Error, Float, GradCx, GradRule, Integer, Op, OpDesc, Pointwise, PointwiseInteger, Result, Var,
    register_op, sample::*,
};

use super::{FillZerosLike, Scale};

/// The sample rows that all broadcasting operators of two inputs share.
macro_rules! broadcast_samples {
    ($op:ident $(, $row:expr)*) => {
        crate::samples!(
            $op,
            [
                $op { x: uniform([2, 3]), y: away_from(0.0, [2, 3]), out: out(), axis: -1 },
                $op { x: uniform([2, 3, 4]), y: away_from(0.0, [3, 1]), out: out(), axis: -1 },
                $op { x: uniform([4]), y: away_from(0.0, [3, 4]), out: out(), axis: -1 },
                $op { x: uniform([2, 1, 4]), y: away_from(0.0, [1, 3, 1]), out: out(), axis: -1 },
                $op { x: uniform([2, 3, 4]), y: away_from(0.0, [3]), out: out(), axis: 1 },
                $op { x: uniform([2, 3]), y: away_from(0.0, [2, 3, 4]), out: out(), axis: 0 },
                $op { x: uniform([2, 3]), y: away_from(0.0, []), out: out(), axis: -1 },
                $op { x: uniform([0, 3]), y: away_from(0.0, [3]), out: out(), axis: -1 },
                $op { x: uniform([2, 3]), y: uniform([4]), out: out(), axis: -1 }.fails("does not broadcast"),
                $op { x: uniform([2, 3, 4]), y: uniform([3]), out: out(), axis: 2 }.fails("does not broadcast from axis 2"),
                $op { x: uniform([3]), y: uniform([2, 3]), out: out(), axis: 5 }.fails("`X`: shape [3] does not broadcast from axis 5 on with `Y` [2, 3]"),
                $op {
                    x: given([2, 3], [7.0, -7.0, 0.0, 2147483647.0, -2147483648.0, 5.0]).of(DType::I32),
                    y: given([3], [2.0, -3.0, -1.0]).of(DType::I32),
                    out: out(),
                    axis: -1
                },
                $op {
                    x: given([2, 1], [9007199254740992.0, -5.0]).of(DType::I64),
                    y: given([3], [3.0, 9007199254740992.0, 64.0]).of(DType::I64),
                    out: out(),
                    axis: -1
                },
                $op { x: integers_below(9, [0, 3]), y: integers_below(9, [3]), out: out(), axis: -1 },
                $op { x: integers_below(9, [3]), y: uniform([3]), out: out(), axis: -1 }.fails("does not match int64 of `X`"),
                $op {
                        x: integers_below(2, [3]).of(DType::Bool),
                        y: integers_below(2, [3]).of(DType::Bool),
                        out: out(),
                        axis: -1
                    }.fails("`X`: signed or floating point numbers are needed"),
                $($row,)*
            ]
        );
    };
}

/// `out = x + y`, broadcast.
#[register_op(grad = ElementwiseAddGrad, pointwise, broadcast, integers)]
pub struct ElementwiseAdd<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with the shape of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
    /// The dimension at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
impl ElementwiseAdd {
    /// The description of the sum of two tensors of one shape, without `axis`, which would allocate memory.
    pub fn of_equal_shapes(x: Var, y: Var, out: Var) -> OpDesc {
        let [left, right] =
            const { [ElementwiseAdd::SCHEMA.inputs[0].name, ElementwiseAdd::SCHEMA.inputs[1].name] };
        let sum = const { ElementwiseAdd::SCHEMA.outputs[0].name };
        OpDesc::new(ElementwiseAdd::SCHEMA.name).input(left, [x]).input(right, [y]).output(sum, [out])
    }
}
impl<F: Float> Pointwise for ElementwiseAdd<F> {
    fn eval(&mut self) {
        self.out = self.x + self.y;
    }
}
impl<I: Integer> PointwiseInteger for ElementwiseAdd<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x + self.y;
        Ok(())
    }
}
broadcast_samples!(ElementwiseAdd);

/// `dx = dout`, `dy = dout`, each summed over the broadcast dimensions of its operand.
#[register_op(grad_of = ElementwiseAdd, grad = ElementwiseAddGradGrad, pointwise, broadcast)]
pub struct ElementwiseAddGrad<V = Var> {
    pub dout: V,
    #[input(shape_only)]
    pub x: V,
    #[input(shape_only)]
    pub y: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseAddGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dx.map(|_| self.dout);
        self.dy = self.dy.map(|_| self.dout);
    }
}

/// `ddout = ddx + ddy`, broadcast to the shape of `dout`.
#[derive(Debug)]
pub struct ElementwiseAddGradGrad;
impl GradRule<ElementwiseAddGrad> for ElementwiseAddGradGrad {
    fn emit(fwd: &ElementwiseAddGrad, g: &mut GradCx<'_>) {
        if let Some(ddout) = g.wanted(fwd.dout) {
            // A gradient that is not computed counts as 0, but its operand may be the one of full shape.
            let ddx = grad_or_zeros(g, fwd.dx, fwd.x);
            let ddy = grad_or_zeros(g, fwd.dy, fwd.y);
            g.push(ElementwiseAdd { x: ddx, y: ddy, out: ddout, axis: fwd.axis });
        }
    }
}

/// The gradient of `dx`, if `dx` is computed and read.
pub fn grad_if_any(g: &GradCx<'_>, dx: Option<Var>) -> Option<Var> {
    dx.filter(|dx| g.arrives(*dx)).map(|dx| g.grad(dx))
}

/// The gradient of `dx`, or zeros in the shape of `x` if there is none.
pub fn grad_or_zeros(g: &mut GradCx<'_>, dx: Option<Var>, x: Var) -> Var {
    if let Some(ddx) = grad_if_any(g, dx) {
        return ddx;
    }
    let out = g.fresh("zeros");
    g.push(FillZerosLike { x, out });
    out
}

/// `out = x - y`, broadcast.
#[register_op(grad = ElementwiseSubGrad, pointwise, broadcast, integers)]
pub struct ElementwiseSub<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with the shape of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
    /// The dimension at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseSub<F> {
    fn eval(&mut self) {
        self.out = self.x - self.y;
    }
}
impl<I: Integer> PointwiseInteger for ElementwiseSub<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x - self.y;
        Ok(())
    }
}
broadcast_samples!(ElementwiseSub);

/// `dx = dout`, `dy = -dout`, each summed over the broadcast dimensions of its operand.
#[register_op(grad_of = ElementwiseSub, grad = ElementwiseSubGradGrad, pointwise, broadcast)]
pub struct ElementwiseSubGrad<V = Var> {
    pub dout: V,
    #[input(shape_only)]
    pub x: V,
    #[input(shape_only)]
    pub y: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseSubGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dx.map(|_| self.dout);
        self.dy = self.dy.map(|_| -self.dout);
    }
}

/// `ddout = ddx - ddy`, broadcast to the shape of `dout`.
#[derive(Debug)]
pub struct ElementwiseSubGradGrad;
impl GradRule<ElementwiseSubGrad> for ElementwiseSubGradGrad {
    fn emit(fwd: &ElementwiseSubGrad, g: &mut GradCx<'_>) {
        if let Some(ddout) = g.wanted(fwd.dout) {
            let ddx = grad_or_zeros(g, fwd.dx, fwd.x);
            let ddy = grad_or_zeros(g, fwd.dy, fwd.y);
            g.push(ElementwiseSub { x: ddx, y: ddy, out: ddout, axis: fwd.axis });
        }
    }
}

/// `out = x * y`, broadcast.
#[register_op(grad = ElementwiseMulGrad, pointwise, broadcast, integers)]
pub struct ElementwiseMul<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with the shape of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
    /// The dimension at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseMul<F> {
    fn eval(&mut self) {
        self.out = self.x * self.y;
    }
}
impl<I: Integer> PointwiseInteger for ElementwiseMul<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x * self.y;
        Ok(())
    }
}
broadcast_samples!(ElementwiseMul);

/// `dx = dout * y`, `dy = dout * x`, each summed over the broadcast dimensions of its operand.
#[register_op(grad_of = ElementwiseMul, grad = ElementwiseMulGradGrad, pointwise, broadcast)]
pub struct ElementwiseMulGrad<V = Var> {
    pub dout: V,
    pub x: V,
    pub y: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseMulGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dx.map(|_| self.dout * self.y);
        self.dy = self.dy.map(|_| self.dout * self.x);
    }
}

/// `ddout = ddx * y + x * ddy`, for `x` `dout * ddy`, for `y` `dout * ddx`.
#[derive(Debug)]
pub struct ElementwiseMulGradGrad;
impl GradRule<ElementwiseMulGrad> for ElementwiseMulGradGrad {
    fn emit(fwd: &ElementwiseMulGrad, g: &mut GradCx<'_>) {
        let ElementwiseMulGrad { dout, x, y, axis, .. } = *fwd;
        let (ddx, ddy) = (grad_if_any(g, fwd.dx), grad_if_any(g, fwd.dy));
        if let Some(ddout) = g.wanted(dout) {
            match (ddx, ddy) {
                (Some(ddx), Some(ddy)) => {
                    let (left, right) = (g.fresh("product"), g.fresh("product"));
                    g.push(ElementwiseMul { x: ddx, y, out: left, axis });
                    g.push(ElementwiseMul { x, y: ddy, out: right, axis });
                    g.push(ElementwiseAdd { x: left, y: right, out: ddout, axis: -1 });
                }
                (Some(ddx), None) => g.push(ElementwiseMul { x: ddx, y, out: ddout, axis }),
                (None, Some(ddy)) => g.push(ElementwiseMul { x, y: ddy, out: ddout, axis }),
                (None, None) => {}
            }
        }
        // The gradients of `x * ddy` and `ddx * y` sum over broadcast dimensions.
        if let (Some(dx), Some(ddy)) = (g.wanted(x), ddy) {
            g.push(ElementwiseMulGrad { dout, x, y: ddy, dx: Some(dx), dy: None, axis });
        }
        if let (Some(dy), Some(ddx)) = (g.wanted(y), ddx) {
            g.push(ElementwiseMulGrad { dout, x: ddx, y, dx: None, dy: Some(dy), axis });
        }
    }
}

/// `out = x / y`, broadcast; for integers truncated, and an error where `y` is 0.
#[register_op(grad = ElementwiseDivGrad, pointwise, broadcast, integers)]
pub struct ElementwiseDiv<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts with the shape of `x`.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output(inplace = x)]
    pub out: V,
    /// The dimension at which the operand of lower rank starts; -1 aligns the last dimensions.
    #[attr(default = -1, min = -1)]
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseDiv<F> {
    fn eval(&mut self) {
        self.out = self.x / self.y;
    }
}
impl<I: Integer> PointwiseInteger for ElementwiseDiv<I> {
    fn eval(&mut self) -> Result<()> {
        self.out = self.x.checked_div(self.y).ok_or_else(divided_by_zero)?;
        Ok(())
    }
}
broadcast_samples!(
    ElementwiseDiv,
    ElementwiseDiv {
        x: integers_below(9, [2]),
        y: given([2], [1.0, 0.0]).of(DType::I64),
        out: out(),
        axis: -1
    }
    .fails("`Y`: division of an integer by 0")
);

/// The error of an integer division by 0.
fn divided_by_zero() -> Error {
    Error::data("`Y`: division of an integer by 0")
}

/// `dx = dout / y`, `dy = -dout * out / y`, each summed over the broadcast dimensions of its operand.
#[register_op(grad_of = ElementwiseDiv, grad = ElementwiseDivGradGrad, pointwise, broadcast)]
pub struct ElementwiseDivGrad<V = Var> {
    pub out: V,
    pub dout: V,
    #[input(shape_only)]
    pub x: V,
    pub y: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = y)]
    pub dy: Option<V>,
    pub axis: i32,
}
impl<F: Float> Pointwise for ElementwiseDivGrad<F> {
    fn eval(&mut self) {
        let quotient = self.dout / self.y;
        self.dx = self.dx.map(|_| quotient);
        self.dy = self.dy.map(|_| -quotient * self.out);
    }
}

/// `ddout = (ddx - out * ddy) / y`, for `out` `-dout / y * ddy`, for `y` `-dout * ddout / y`.
#[derive(Debug)]
pub struct ElementwiseDivGradGrad;
impl GradRule<ElementwiseDivGrad> for ElementwiseDivGradGrad {
    fn emit(fwd: &ElementwiseDivGrad, g: &mut GradCx<'_>) {
        let ElementwiseDivGrad { out, dout, x, y, axis, .. } = *fwd;
        let (ddout, dy, d_out) = (g.wanted(dout), g.wanted(y), g.wanted(out));
        let ddy = grad_if_any(g, fwd.dy);
        if ddout.is_some() || dy.is_some() {
            let ddx = grad_or_zeros(g, fwd.dx, x);
            let dividend = match ddy {
                Some(ddy) => {
                    let (scaled, difference) = (g.fresh("product"), g.fresh("difference"));
                    g.push(ElementwiseMul { x: out, y: ddy, out: scaled, axis });
                    g.push(ElementwiseSub { x: ddx, y: scaled, out: difference, axis });
                    difference
                }
                None => ddx,
            };
            if let Some(ddout) = ddout {
                g.push(ElementwiseDiv { x: dividend, y, out: ddout, axis });
            }
            if dy.is_some() {
                // Not read from `ddout`, which may have other contributions. The gradient sums over broadcast
                // dimensions.
                let quotient = g.fresh("quotient");
                g.push(ElementwiseDiv { x: dividend, y, out: quotient, axis });
                g.push(ElementwiseDivGrad { out: quotient, dout, x: dividend, y, dx: None, dy, axis });
            }
        }
        if let (Some(d_out), Some(ddy)) = (d_out, ddy) {
            let (quotient, product) = (g.fresh("quotient"), g.fresh("product"));
            g.push(ElementwiseDiv { x: dout, y, out: quotient, axis });
            g.push(ElementwiseMul { x: quotient, y: ddy, out: product, axis });
            g.push(Scale { x: product, out: d_out, scale: -1.0, bias: 0.0, bias_after_scale: true });
        }
    }
}
