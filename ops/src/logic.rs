//! Logical operators, and selection by bool masks.

pub use autobwd::operators::{LogicalAnd, LogicalNot, LogicalOr, LogicalXor};
use autobwd::{
    Buf, Cx, DType, Dims, Float, GradCx, GradRule, Infer, Kernel, Meta, Pointwise, Result, Var,
    check::*,
    op::{with_dtype, with_float},
    register_op,
    tensor::Bool,
};

use crate::{
    elementwise::grad_or_zeros,
    kernel_helpers::{PART, nth_part},
};

fn is_bool(x: &Meta) -> Result<()> {
    if x.dtype == DType::Bool { Ok(()) } else { Err(x.wrong("bool is needed")) }
}

fn booleans<const N: usize>(dims: [usize; N]) -> Draw {
    integers_below(2, dims).of(DType::Bool)
}

/// Selection by a mask: `out = x` where the condition holds, else `y`.
#[register_op(grad = WhereGrad, pointwise, kernel, infallible, any_dtype)]
pub struct Where<V = Var> {
    /// Bool, any shape.
    #[input]
    pub condition: V,
    /// Same shape as `condition`, any dtype.
    #[input]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[input]
    pub y: V,
    /// Same shape and dtype as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl Infer for Where<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, infer_where(&self.condition, &self.x, &self.y)?);
        Ok(())
    }
}
impl Kernel for Where<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let Where { condition, x, y, out } = self;
        with_dtype!(x.dtype(), T => {
            let (condition, y, out) = (condition.slice::<Bool>()?, y.slice()?, out.inout::<T>(x)?.copied());
            cx.chunks_mut(out, PART, |part, out| {
                let (holds, y) = (nth_part(condition, part, out.len()), nth_part(y, part, out.len()));
                for ((out, y), holds) in out.iter_mut().zip(y).zip(holds) {
                    *out = if holds.get() { *out } else { *y };
                }
            });
            Ok(())
        })
    }
}
impl<F: Float> Pointwise for Where<F> {
    fn eval(&mut self) {
        self.out = F::select(self.condition.equals(F::from(0.0)), self.y, self.x);
    }
}
autobwd::samples!(
    Where,
    [
        Where { condition: booleans([2, 3]), x: uniform([2, 3]), y: uniform([2, 3]), out: out() },
        Where { condition: booleans([4]), x: integers_below(9, [4]), y: integers_below(9, [4]), out: out() },
        Where { condition: booleans([]), x: uniform([]), y: uniform([]), out: out() },
        Where { condition: booleans([0, 2]), x: uniform([0, 2]), y: uniform([0, 2]), out: out() },
        Where { condition: booleans([3]), x: uniform([2]), y: uniform([2]), out: out() }
            .fails("`Condition`: the shape [2] of `X` is needed"),
        Where { condition: uniform([2]), x: uniform([2]), y: uniform([2]), out: out() }
            .fails("`Condition`: bool is needed"),
        Where { condition: booleans([2]), x: uniform([2]), y: integers_below(3, [2]), out: out() }
            .fails("`Y`: dtype int64 does not match"),
    ]
);

/// Checks the shape that condition and operands share.
fn infer_where(condition: &Meta, x: &Meta, y: &Meta) -> Result<Dims> {
    is_bool(condition)?;
    y.same_as(x)?;
    let mut dims = x.dims.clone();
    dims.iter_mut().zip(&*y.dims).for_each(|(dim, y)| *dim = dim.or(*y));
    if !condition.dims.agrees(&dims) {
        return Err(condition.wrong(&format!("the shape {dims} of `{}` is needed", x.slot())));
    }
    dims.iter_mut().zip(&*condition.dims).for_each(|(dim, c)| *dim = dim.or(*c));
    Ok(dims)
}

/// `dx = dout` where the condition holds, else 0; `dy = dout` where it does not, else 0.
#[register_op(grad_of = Where, grad = WhereGradGrad, pointwise, kernel, inferred)]
pub struct WhereGrad<V = Var> {
    pub condition: V,
    pub dout: V,
    #[input(shape_only)]
    pub x: V,
    #[input(shape_only)]
    pub y: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dy: Option<V>,
}
impl Kernel for WhereGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (condition, dout) = (self.condition.slice::<Bool>()?, &self.dout);
        with_float!(dout, T => {
            let dout = dout.slice::<T>()?;
            for (grad, where_it) in [(&mut self.dx, true), (&mut self.dy, false)] {
                let Some(grad) = grad else { continue };
                cx.chunks_mut(grad.slice_mut::<T>()?, PART, |part, grad| {
                    let (holds, dout) = (nth_part(condition, part, grad.len()), nth_part(dout, part, grad.len()));
                    for ((grad, dout), holds) in grad.iter_mut().zip(dout).zip(holds) {
                        *grad = if holds.get() == where_it { *dout } else { 0.0 };
                    }
                });
            }
            Ok(())
        })
    }
}
impl<F: Float> Pointwise for WhereGrad<F> {
    fn eval(&mut self) {
        let (zero, dout) = (F::from(0.0), self.dout);
        let no = self.condition.equals(zero);
        self.dx.iter_mut().for_each(|dx| *dx = F::select(no, zero, dout));
        self.dy.iter_mut().for_each(|dy| *dy = F::select(no, dout, zero));
    }
}

/// `ddout = ddx` where the condition holds, else `ddy`.
#[derive(Debug)]
pub struct WhereGradGrad;
impl GradRule<WhereGrad> for WhereGradGrad {
    fn emit(fwd: &WhereGrad, g: &mut GradCx<'_>) {
        if let Some(ddout) = g.wanted(fwd.dout) {
            let (x, y) = (grad_or_zeros(g, fwd.dx, fwd.x), grad_or_zeros(g, fwd.dy, fwd.y));
            g.push(Where { condition: fwd.condition, x, y, out: ddout });
        }
    }
}
