//! Sorting.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_signed, register_op,
};

use crate::{
    kernel_helpers::{axis_if_any, lanes_along},
    scatter::TakeAlongAxisGrad,
    top_k::TopK,
};

/// Sorts the elements along an axis, and returns their positions: `out = x[indices]`.
///
/// The sort is stable, also for gradients: equal elements keep their order. NaN counts as the largest number.
#[register_op(grad = ArgsortGrad, infallible, primitive)]
pub struct Argsort<V = Var> {
    /// Signed integers or floating-point numbers of any shape; a scalar has one axis.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(like = x)]
    pub out: V,
    /// Positions along the axis, int64; same shape as `x`.
    #[output]
    pub indices: V,
    /// The dimension; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
    /// Sort in descending order.
    #[attr(default = false)]
    pub descending: bool,
}
impl Infer for Argsort<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.signed()?;
        axis_if_any(&self.x, self.axis.into())?;
        self.indices.set(DType::I64, self.x.dims.clone());
        Ok(())
    }
}
impl Kernel for Argsort<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_signed!(self.x, T => {
            let (_, n, inner) = lanes_along(&self.x, self.axis.into());
            let (x, largest) = (self.x.slice::<T>()?, self.descending);
            let (values, indices) = (self.out.slice_mut()?, self.indices.slice_mut()?);
            for lane in 0..x.len() / n.max(1) {
                let at = lane / inner * n * inner + lane % inner;
                let best = TopK { values: &mut values[at..], indices: &mut indices[at..], step: inner, largest };
                best.select(n, x[at..].iter().step_by(inner).take(n));
            }
            Ok(())
        })
    }
}
autobwd::samples!(
    Argsort,
    [
        argsort(distinct([2, 5]), -1, false),
        argsort(distinct([4, 2, 3]), 0, true),
        argsort(distinct([2, 70]), 1, true),
        argsort(distinct([1]), 0, false),
        argsort(distinct([2, 0]), 1, false),
        argsort(distinct([0, 2]), 1, false),
        argsort(distinct([]), -1, true),
        argsort(
            given([2, 4], [3.0, -9.0, 3.0, 2147483647.0, 0.0, 5.0, -2147483648.0, 5.0]).of(DType::I32),
            1,
            true
        ),
        argsort(integers_below(9, [5, 2]), 0, false),
        argsort(distinct([]), 1, false).fails("attribute `axis` = 1"),
        argsort(given([5], [1.0, 2.0, f64::NAN, 1.0, -3.0]), 0, false)
            .not_a_derivative("equal elements change places"),
        argsort(distinct([2, 3]), 2, false).fails("attribute `axis` = 2"),
    ]
);

fn argsort(x: Draw, axis: i32, descending: bool) -> Argsort<Draw> {
    Argsort { x, out: out(), indices: out(), axis, descending }
}

/// `dx[indices] = dout`.
#[register_op(grad_of = Argsort, grad = Composed, composed, inferred)]
pub struct ArgsortGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub indices: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub axis: i32,
}
impl Composition for ArgsortGrad<Expr> {
    fn compose(&mut self) {
        let (input, index) = ((&self.x).into(), (&self.indices).into());
        let dresult = (&self.dout).into();
        self.dx = emit(TakeAlongAxisGrad { input, index, dresult, dinput: New, axis: self.axis }).dinput;
    }
}
