//! Product over dimensions.

use autobwd::{
    Buf, Cx, DType, Infer, Kernel, Meta, NoGrad, Result, Var,
    check::*,
    op::{with_float, with_signed},
    register_op,
};

use super::{
    ReduceAttrs,
    cut::{Reduce, Reduction, with_result_dtype},
};
use crate::common::{Real, add_up, converted_bytes, elements, elements_of_both, wide};

/// Product over dimensions: `out = Π x`.
#[register_op(grad = ReduceProdGrad)]
pub struct ReduceProd<V = Var> {
    /// Any shape; the product of nothing is 1.
    #[input]
    pub x: V,
    /// `x` without the dimensions that are multiplied over; with `keep_dim` they are 1.
    #[output]
    pub out: V,
    /// What is reduced.
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for ReduceProd<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer(&self.x, &mut self.out)
    }
}
impl Kernel for ReduceProd<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_signed!(self.out, T => elements::<T, _>(cx, &self.x, |x| {
            T::product(&cut, cx, x, self.out.slice_mut()?);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.out.dtype(), 1)
    }
}
autobwd::samples!(
    ReduceProd,
    [
        reduce_prod(
            positive([2, 3]).of(DType::F64),
            ReduceAttrs::over([0]).converting(DType::F64, DType::F64)
        ),
        reduce_prod(positive([2, 3, 4]), ReduceAttrs::over([0])),
        reduce_prod(positive([2, 3, 4]), ReduceAttrs::keeping([-1])),
        reduce_prod(positive([2, 3, 4]), ReduceAttrs::over([1])),
        reduce_prod(positive([2, 3, 4, 5]), ReduceAttrs::over([0, 2])),
        reduce_prod(positive([2, 3]), ReduceAttrs::over([0]).reduce_all(true)),
        reduce_prod(positive([2, 3]), ReduceAttrs::keeping([])),
        reduce_prod(given([3], [0.0, -2.0, 3.0]), ReduceAttrs::over([0])),
        reduce_prod(given([2, 4], [0.0, -2.0, 3.0, 0.0, 0.0, 0.0, 2.0, 0.0]), ReduceAttrs::over([1])),
        reduce_prod(positive([]), ReduceAttrs::over([])),
        reduce_prod(positive([0, 3]), ReduceAttrs::over([0])),
        reduce_prod(positive([0, 3]), ReduceAttrs::over([1])),
        reduce_prod(
            given([2, 3], [3.0, -9.0, 65536.0, 4.0, 0.0, 65536.0]).of(DType::I32),
            ReduceAttrs::over([0])
        ),
        reduce_prod(integers_below(9, [2, 3, 4]), ReduceAttrs::over([1])),
        reduce_prod(integers_below(9, [2, 3]).of(DType::U8), ReduceAttrs::over([1]).out_dtype(DType::I64)),
        reduce_prod(
            positive([2, 3]).of(DType::F64),
            ReduceAttrs::over([1]).converting(DType::F64, DType::F32)
        )
        .not_a_derivative("rounded to float32, a small step vanishes"),
        reduce_prod(uniform([2, 3]), ReduceAttrs::over([2])).fails("attribute `dim` = 2"),
    ]
);

fn reduce_prod(x: Draw, reduce: ReduceAttrs) -> ReduceProd<Draw> {
    ReduceProd { x, out: out(), reduce }
}

/// Factors of one product: that of those which are not 0, and how many are.
struct Factors {
    others: f64,
    zeros: usize,
}

impl Factors {
    fn of(x: impl Iterator<Item = f64>) -> Factors {
        x.fold(Factors { others: 1.0, zeros: 0 }, |all, x| match x == 0.0 {
            true => Factors { zeros: all.zeros + 1, ..all },
            false => Factors { others: all.others * x, ..all },
        })
    }

    /// The product without these factors; 0 where they are none of them.
    fn without<const N: usize>(&self, x: [f64; N]) -> f64 {
        if self.zeros != x.iter().filter(|x| **x == 0.0).count() {
            return 0.0;
        }
        x.iter().filter(|x| **x != 0.0).fold(self.others, |product, x| product / x)
    }
}

/// `dx = dout * Π x` over the other factors.
#[register_op(grad_of = ReduceProd, grad = ReduceProdGradGrad, inferred)]
pub struct ReduceProdGrad<V = Var> {
    pub x: V,
    #[input(shape_only)]
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Kernel for ReduceProdGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_float!(self.dout, T => {
            let dout = self.dout.slice::<T>()?;
            with_result_dtype::<T>(cx, &self.x, &mut self.dx, |x, dx| {
                for (i, dout) in dout.iter().enumerate() {
                    let factors = Factors::of(cut.terms_of(i).map(|at| wide(x[at])));
                    for at in cut.terms_of(i) {
                        dx[at] = T::of(wide(*dout) * factors.without([wide(x[at])]));
                    }
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.dout.dtype(), 2)
    }
}

/// `ddout = Σ ddx[i] * Π x` over all factors but `x[i]`; for `x[i]` `dout * Σ ddx[j] * Π x` over all but these two.
#[register_op(grad_of = ReduceProdGrad, grad = NoGrad)]
pub struct ReduceProdGradGrad<V = Var> {
    pub x: V,
    pub dout: V,
    pub ddx: V,
    #[output]
    pub ddout: Option<V>,
    #[output]
    pub d_x: Option<V>,
    #[attrs]
    pub reduce: ReduceAttrs,
}
impl Infer for ReduceProdGradGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer_grad(&self.x, &self.dout, &mut self.x.clone())?;
        self.ddx.same_as(&self.x)?;
        self.ddout.iter_mut().for_each(|ddout| ddout.like(&self.dout));
        self.d_x.iter_mut().for_each(|dx| dx.like(&self.x));
        Ok(())
    }
}
impl Kernel for ReduceProdGradGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let cut = self.reduce.cut(&self.x);
        with_float!(self.dout, T => elements_of_both::<T, _>(cx, [&self.x, &self.ddx], |x, ddx| {
            let dout = self.dout.slice::<T>()?;
            if let Some(ddout) = &mut self.ddout {
                for (i, ddout) in ddout.slice_mut::<T>()?.iter_mut().enumerate() {
                    *ddout = T::of(ddout_of(&cut, i, x, ddx));
                }
            }
            let Some(dx) = &mut self.d_x else { return Ok(()) };
            with_float!(dx, X => {
                let dx = dx.slice_mut::<X>()?;
                for (i, dout) in dout.iter().enumerate() {
                    d_x(&cut, i, x, ddx, |at, slope| dx[at] = X::of(wide(*dout) * slope));
                }
                Ok(())
            })
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        converted_bytes(&self.x, self.dout.dtype(), 2)
    }
}

/// `Σ ddx[i] * Π x` over all factors but `x[i]`.
fn ddout_of<T: Real>(cut: &Reduction<'_>, i: usize, x: &[T], ddx: &[T]) -> f64 {
    let factors = Factors::of(cut.terms_of(i).map(|at| wide(x[at])));
    add_up(cut.terms_of(i).map(|at| wide(ddx[at]) * factors.without([wide(x[at])])))
}

/// For each factor `Σ ddx[j] * Π x` over all but it and `x[j]`.
fn d_x<T: Real>(cut: &Reduction<'_>, i: usize, x: &[T], ddx: &[T], mut put: impl FnMut(usize, f64)) {
    let factors = Factors::of(cut.terms_of(i).map(|at| wide(x[at])));
    let terms = cut.terms_of(i).map(|at| (at, wide(x[at]), wide(ddx[at])));
    // The sums over factors that are 0, and over the others, are all it takes.
    let of_zeros = add_up(terms.clone().filter(|(_, x, _)| *x == 0.0).map(|(.., ddx)| ddx));
    let of_others = add_up(terms.clone().filter(|(_, x, _)| *x != 0.0).map(|(_, x, ddx)| ddx / x));
    for (at, x, ddx) in terms {
        let (zeros, others) =
            if x == 0.0 { (of_zeros - ddx, of_others) } else { (of_zeros, of_others - ddx / x) };
        put(at, factors.without([x]) * others + factors.without([0.0, x]) * zeros);
    }
}
