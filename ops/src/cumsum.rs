//! Cumulative sums.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*,
    emit,
    op::{with_float, with_signed},
    register_op,
    tensor::Element,
};

use crate::{
    Math,
    kernel_helpers::{PART, axis_if_any, outer_axis_inner},
    math::all_sizes,
};

/// Cumulative sum along an axis: `out[i] = x[0] + … + x[i]`.
#[register_op(grad = CumsumGrad, infallible, primitive)]
pub struct Cumsum<V = Var> {
    /// Any shape; sums of integers wrap around.
    #[input]
    pub x: V,
    /// Same shape; one dimension with all elements if `flatten`.
    #[output]
    pub out: V,
    /// The dimension; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
    /// Sum over all elements in memory order; `axis` is ignored.
    #[attr(default = false)]
    pub flatten: bool,
    /// Leave `x[i]` out of its sum, which starts at 0.
    #[attr(default = false)]
    pub exclusive: bool,
    /// Sum from the end.
    #[attr(default = false)]
    pub reverse: bool,
}
impl Infer for Cumsum<Meta> {
    fn infer(&mut self) -> Result<()> {
        summed(&self.x, self.axis, self.flatten, &mut self.out)
    }
}
impl Kernel for Cumsum<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = lanes(&self.x, self.axis, self.flatten);
        with_signed!(self.x, T => {
            run::<T>(cx, cut, (self.exclusive, self.reverse), self.x.slice()?, self.out.slice_mut()?);
        });
        Ok(())
    }
}
autobwd::samples!(
    Cumsum,
    [
        cumsum(uniform([5]), 0, false, false, false),
        cumsum(uniform([2, 3]), -1, false, false, false),
        cumsum(uniform([2, 3, 4]), 1, false, false, true),
        cumsum(uniform([2, 3, 4]), 0, false, true, false),
        cumsum(uniform([2, 3, 4]), 2, false, true, true),
        cumsum(uniform([3, 70]), 0, false, false, false),
        cumsum(uniform([2, 3]), 0, true, false, true),
        cumsum(uniform([2, 3]), 5, true, true, false),
        cumsum(uniform([]), -1, false, false, false),
        cumsum(uniform([]), 0, true, true, false),
        cumsum(uniform([0, 3]), 0, false, false, false),
        cumsum(uniform([2, 3]), 2, false, false, false).fails("attribute `axis` = 2"),
        cumsum(
            given([2, 3], [1.0, -4.0, 2147483647.0, 8.0, 5.0, 9.0]).of(DType::I32),
            1,
            false,
            false,
            false
        ),
        cumsum(integers_below(99, [3, 4]), 0, false, true, true),
        cumsum(integers_below(2, [2]).of(DType::Bool), 0, false, false, false)
            .fails("`X`: signed or floating point numbers are needed"),
    ]
);

fn cumsum(x: Draw, axis: i32, flatten: bool, exclusive: bool, reverse: bool) -> Cumsum<Draw> {
    Cumsum { x, out: out(), axis, flatten, exclusive, reverse }
}

pub(crate) fn summed(x: &Meta, axis: i32, flatten: bool, out: &mut Meta) -> Result<()> {
    x.signed()?;
    if flatten {
        out.set(x.dtype, [x.dims.numel()].into_iter().collect::<Dims>());
        return Ok(());
    }
    out.like(x);
    axis_if_any(x, axis.into()).map(drop)
}

/// Extents along and after the axis.
pub(crate) fn lanes(x: &Buf<'_>, axis: i32, flatten: bool) -> (usize, usize) {
    if flatten || x.dims().is_empty() {
        return (x.numel(), 1);
    }
    let (_, n, inner) = outer_axis_inner(x.dims(), x.axis(axis.into()));
    (n, inner)
}

/// Elements that can be summed cumulatively.
trait RunningSum: Element {
    /// The type of the accumulator.
    type Sum: Copy + Default;
    fn added_to(self, sum: Self::Sum) -> Self::Sum;
    fn of(sum: Self::Sum) -> Self;
}
macro_rules! running {
    ($($t:ty, $sum:ty, $add:expr;)*) => {$(
        impl RunningSum for $t {
            type Sum = $sum;
            #[inline(always)]
            fn added_to(self, sum: $sum) -> $sum {
                let add: fn($sum, $t) -> $sum = $add;
                add(sum, self)
            }
            #[inline(always)]
            fn of(sum: $sum) -> $t {
                sum as $t
            }
        }
    )*};
}
running! {
    f32, f64, |sum, x| sum + f64::from(x);
    f64, f64, |sum, x| sum + x;
    i32, i32, i32::wrapping_add;
    i64, i64, i64::wrapping_add;
}

/// Lanes summed at a time.
const LANES: usize = 64;

fn run<T: RunningSum>(
    cx: &Cx,
    (n, inner): (usize, usize),
    (exclusive, reverse): (bool, bool),
    x: &[T],
    out: &mut [T],
) {
    let row = n * inner;
    let size = PART.div_ceil(row.max(1)) * row;
    cx.chunks_mut(out, size, |part, out| {
        for (out, x) in out.chunks_exact_mut(row).zip(x[part * size..].chunks_exact(row)) {
            for first in (0..inner).step_by(LANES) {
                let width = LANES.min(inner - first);
                let mut sums = [T::Sum::default(); LANES];
                for i in 0..n {
                    let at = if reverse { n - 1 - i } else { i } * inner + first;
                    let lanes = sums.iter_mut().zip(out[at..][..width].iter_mut().zip(&x[at..]));
                    for (sum, (out, x)) in lanes {
                        let before = *sum;
                        *sum = x.added_to(*sum);
                        *out = T::of(if exclusive { before } else { *sum });
                    }
                }
            }
        }
    });
}

/// `dx` = the cumulative sum of `dout` in the other direction.
#[register_op(grad_of = Cumsum, grad = Multilinear, inferred, infallible)]
pub struct CumsumGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub axis: i32,
    pub flatten: bool,
    pub exclusive: bool,
    pub reverse: bool,
}
impl Kernel for CumsumGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = lanes(&self.x, self.axis, self.flatten);
        with_float!(self.dout, T => {
            run::<T>(cx, cut, (self.exclusive, !self.reverse), self.dout.slice()?, self.dx.slice_mut()?);
        });
        Ok(())
    }
}
impl Composition for CumsumGrad<Expr> {
    fn compose(&mut self) {
        let CumsumGrad { axis, flatten, exclusive, reverse, .. } = *self;
        let x = (&self.dout).into();
        let sums = emit(Cumsum { x, out: New, axis, flatten, exclusive, reverse: !reverse }).out;
        self.dx = if flatten { sums.reshape_to(&all_sizes(&self.x)) } else { sums };
    }
}
