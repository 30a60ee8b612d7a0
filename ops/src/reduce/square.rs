//! Sum of squares.

use autobwd::{
    Buf, Cx, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op, with_float,
};

use super::{ReduceAttrs, ReduceSum, cut::total};
use crate::{
    activation::Scale,
    common::{PART, Real, nth_part},
    elementwise::ElementwiseMul,
    shape::Reshape2,
};

/// Sum of the squares of all elements: `out = Σ x²`.
#[register_op(grad = SquaredL2NormGrad)]
pub struct SquaredL2Norm<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// The sum, `[1]`.
    #[output]
    pub out: V,
}
impl Infer for SquaredL2Norm<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.set(self.x.dtype, [1]);
        Ok(())
    }
}
impl Kernel for SquaredL2Norm<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let sum = total(cx, self.x.slice::<T>()?, |x| x * x);
            self.out.slice_mut()?.fill(T::of(sum));
            Ok(())
        })
    }
}
autobwd::samples!(
    SquaredL2Norm,
    [
        SquaredL2Norm { x: uniform([2, 3]), out: out() },
        SquaredL2Norm { x: uniform([]), out: out() },
        SquaredL2Norm { x: uniform([0, 3]), out: out() },
        Sample::fails(
            SquaredL2Norm { x: integers_below(9, [2]), out: out() },
            "`X`: floating point numbers are needed"
        ),
    ]
);

/// `dx = 2 * x * dout`.
#[register_op(grad_of = SquaredL2Norm, grad = SquaredL2NormGradGrad)]
pub struct SquaredL2NormGrad<V = Var> {
    pub x: V,
    pub dout: V,
    #[output]
    pub dx: V,
}
impl Infer for SquaredL2NormGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.dout.same_dtype(&self.x)?;
        self.dout.require(self.dout.dims.agrees(&[1.into()]), || "one number is needed".into())?;
        self.dx.like(&self.x);
        Ok(())
    }
}
impl Kernel for SquaredL2NormGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (x, factor) = (self.x.slice::<T>()?, 2.0 * self.dout.slice::<T>()?[0]);
            cx.chunks_mut(self.dx.slice_mut::<T>()?, PART, |part, dx| {
                let x = nth_part(x, part, dx.len());
                dx.iter_mut().zip(x).for_each(|(dx, x)| *dx = factor * *x);
            });
            Ok(())
        })
    }
}

/// `ddout = Σ 2 * x * ddx`, and for `x` `2 * ddx * dout`.
pub struct SquaredL2NormGradGrad;
impl GradRule<SquaredL2NormGrad> for SquaredL2NormGradGrad {
    fn emit(fwd: &SquaredL2NormGrad, g: &mut GradCx<'_>) {
        let (SquaredL2NormGrad { x, dout, .. }, ddx) = (fwd, g.grad(fwd.dx));
        if let Some(dx) = g.wanted(*x) {
            g.push(SquaredL2NormGrad { x: ddx, dout: *dout, dx });
        }
        if let Some(ddout) = g.wanted(*dout) {
            let [product, sum, vector, x_shape] =
                ["product", "sum", "sum", "x_shape"].map(|what| g.fresh(what));
            g.push(ElementwiseMul { x: *x, y: ddx, out: product, axis: -1 });
            let reduce = ReduceAttrs { reduce_all: true, ..ReduceAttrs::over([]) };
            g.push(ReduceSum { x: product, out: sum, reduce });
            g.push(Reshape2 { x: sum, out: vector, x_shape, shape: vec![1] });
            g.push(Scale { x: vector, out: ddout, scale: 2.0, bias: 0.0, bias_after_scale: true });
        }
    }
}
