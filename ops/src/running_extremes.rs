//! `cummax` and `cummin`: the largest or smallest of the elements up to each.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, Infer, Kernel, Meta, New, Result, Var, check::*, emit,
    op::with_signed, register_op, tensor::Element,
};

use crate::{
    Math,
    kernel_helpers::{AnyNumber, ConvertElement, axis_if_any, lanes_along, number_dtype},
    math::{in_dtype, like, positions},
    scatter::{TakeAlongAxis, TakeAlongAxisGrad},
    sort::Argsort,
};

/// Extents of lanes, as of [`lanes_along`].
type Extents = (usize, usize, usize);

/// Writes the running extreme of each lane, and its position: `replaces(x, best)` says whether `x` takes the place of the
/// best element so far.
fn run<T: Element, N: ConvertElement>(
    (_, n, inner): Extents,
    x: &[T],
    (out, indices): (&mut [T], &mut [N]),
    replaces: impl Fn(T, T) -> bool,
) {
    for lane in 0..x.len() / n.max(1) {
        let first = lane / inner * n * inner + lane % inner;
        let mut best = (x[first], 0);
        for (i, at) in (first..).step_by(inner).take(n).enumerate() {
            if replaces(x[at], best.0) {
                best = (x[at], i);
            }
            (out[at], indices[at]) = (best.0, N::narrow(AnyNumber::Int(best.1 as i64)));
        }
    }
}

/// Positions of running extremes along an axis, in a composition: a later of equal elements replaces an earlier one, and
/// so does NaN.
fn positions_of(x: &Expr, axis: i32, largest: bool) -> Expr {
    // The smallest is the largest of the numbers in opposite order, with NaN as the largest still.
    let ordered = if largest { x.clone() } else { -x };
    let ranked =
        |x: &Expr| emit(Argsort { x: x.into(), out: New, indices: New, axis, descending: false }).indices;
    // The place of each rank, and the rank of each place.
    let places = ranked(&ordered);
    let ranks = ranked(&places).unsqueeze(&[axis]);
    let place = positions(x.builder(), &x.dim(axis));
    let after: Vec<i32> = (2..=(x.dims().len() as i32 - axis)).collect();
    let is_before = place.less_equal(&place.unsqueeze(&[1])).unsqueeze(&after);
    let index = is_before.where_cond(&ranks, &like(&ranks, -1.0)).max_over(&[axis + 1]);
    emit(TakeAlongAxis { input: places.into(), index: (&index).into(), result: New, axis }).result
}

/// Adds up gradients of a running extreme at its positions.
fn put_back([x, indices, dout]: [&Expr; 3], axis: i32) -> Expr {
    let op =
        TakeAlongAxisGrad { input: x.into(), index: indices.into(), dresult: dout.into(), dinput: New, axis };
    emit(op).dinput
}

/// Defines a running extreme and its gradient.
macro_rules! running {
    (
        $(#[doc = $doc:literal])* $op:ident, $largest:literal, |$x:ident, $best:ident| $replaces:expr,
        $(#[doc = $grad_doc:literal])* $grad:ident
    ) => {
        $(#[doc = $doc])*
        ///
        /// Of equal elements, the last one counts. After the first NaN, all results are NaN.
        #[register_op(grad = $grad, infallible)]
        pub struct $op<V = Var> {
            /// Signed integers or floating-point numbers of any shape; a scalar has one axis.
            #[input("x")]
            pub x: V,
            /// Same shape as `x`.
            #[output("out")]
            pub out: V,
            /// Positions along the axis, in the shape of `x`.
            #[output("indices")]
            pub indices: V,
            /// The dimension; negative counts from the end.
            #[attr(default = -1)]
            pub axis: i32,
            /// Dtype of positions, int64 or int32.
            #[attr(default = DType::I64)]
            pub dtype: DType,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.x.signed()?;
                axis_if_any(&self.x, self.axis.into())?;
                number_dtype(self.dtype)?;
                self.out.like(&self.x);
                self.indices.set(self.dtype, self.x.dims.clone());
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, _: &Cx) -> Result<()> {
                let extents = lanes_along(&self.x, self.axis.into());
                with_signed!(self.x, T => {
                    let (x, out) = (self.x.slice::<T>()?, self.out.slice_mut::<T>()?);
                    // A number that does not equal itself is NaN.
                    #[allow(clippy::eq_op, reason = "NaN does not equal itself")]
                    let replaces = |$x: T, $best: T| $replaces || $x != $x;
                    match self.dtype {
                        DType::I32 => run::<T, i32>(extents, x, (out, self.indices.slice_mut()?), replaces),
                        _ => run::<T, i64>(extents, x, (out, self.indices.slice_mut()?), replaces),
                    }
                    Ok(())
                })
            }
        }
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                let rank = self.x.dims().len() as i32;
                if rank == 0 {
                    self.out = self.x.copy();
                    self.indices = in_dtype(&like(&self.x, 0.0), self.dtype);
                    return;
                }
                let axis = self.axis.rem_euclid(rank);
                let indices = positions_of(&self.x, axis, $largest);
                let (input, index) = ((&self.x).into(), (&indices).into());
                self.out = emit(TakeAlongAxis { input, index, result: New, axis }).result;
                self.indices = in_dtype(&indices, self.dtype);
            }
        }
        const _: () = {
            fn row(x: Draw, axis: i32) -> $op<Draw> {
                $op { x, out: out(), indices: out(), axis, dtype: DType::I64 }
            }
            autobwd::samples!(
                $op,
                [
                    row(distinct([6]), 0),
                    row(distinct([2, 5]), -1),
                    $op { dtype: DType::I32, ..row(distinct([4, 2, 3]), 0) },
                    row(distinct([2, 4, 3]), 1),
                    row(distinct([]), -1),
                    row(distinct([0, 3]), 0),
                    row(distinct([3, 0]), 0),
                    row(given([7], [1.0, 2.0, 2.0, 0.0, 2.0, 0.0, 3.0]), 0)
                        .not_a_derivative("the last of equal elements gets the gradient"),
                    row(given([2, 4], [1.0, f64::NAN, 0.5, f64::NAN, 2.0, -1.0, f64::NAN, 3.0]), 1)
                        .not_a_derivative("NaN has none"),
                    row(integers_below(4, [3, 5]), 1),
                    row(given([4], [3.0, 2147483647.0, -2147483647.0, 3.0]).of(DType::I32), 0),
                    row(distinct([2, 3]), 2).fails("attribute `axis` = 2"),
                    $op { dtype: DType::F32, ..row(distinct([2, 3]), 1) }
                        .fails("attribute `dtype`: int64 or int32 is needed"),
                    row(integers_below(2, [3]).of(DType::Bool), 0)
                        .fails("`x`: signed or floating point numbers are needed"),
                ]
            );
        };

        $(#[doc = $grad_doc])*
        #[register_op(grad_of = $op, grad = Composed, composed, inferred)]
        pub struct $grad<V = Var> {
            #[input(shape_only)]
            pub x: V,
            pub indices: V,
            pub dout: V,
            #[output]
            pub dx: V,
            pub axis: i32,
            pub dtype: DType,
        }
        impl Composition for $grad<Expr> {
            fn compose(&mut self) {
                self.dx = put_back([&self.x, &self.indices, &self.dout], self.axis);
            }
        }
    };
}

running!(
    /// The largest of the elements up to each along an axis, and its position: `out[i] = max(x[0], …, x[i])`.
    Cummax, true, |x, best| x >= best,
    /// `dx[indices[i]] += dout[i]`.
    CummaxGrad
);

running!(
    /// The smallest of the elements up to each along an axis, and its position: `out[i] = min(x[0], …, x[i])`.
    Cummin, false, |x, best| x <= best,
    /// `dx[indices[i]] += dout[i]`.
    CumminGrad
);
