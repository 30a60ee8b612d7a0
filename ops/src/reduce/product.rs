//! Product over dimensions.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::{with_float, with_signed},
    register_op,
};

use super::{
    ReduceAttrs,
    tiling::{Reduce, with_result_dtype},
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, converted_bytes, elements, wide},
    math::{all_sizes, concat, in_dtype, like},
};

/// Product over dimensions: `out = Π x`.
#[register_op(grad = ReduceProdGrad, infallible, primitive)]
pub struct ReduceProd<V = Var> {
    /// Any shape; the empty product is 1.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keep_dim`.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
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

/// The product of the nonzero factors, and the number of zeros.
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

    /// The product without one factor.
    fn without(&self, x: f64) -> f64 {
        match (self.zeros, x == 0.0) {
            (0, _) => self.others / x,
            (1, true) => self.others,
            _ => 0.0,
        }
    }
}

/// `dx = dout * Π x` over the other factors.
#[register_op(grad_of = ReduceProd, grad = Composed, inferred, infallible)]
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
                        dx[at] = T::of(wide(*dout) * factors.without(wide(x[at])));
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
impl Composition for ReduceProdGrad<Expr> {
    fn compose(&mut self) {
        let x = in_dtype(&self.x, self.dout.dtype());
        let others = product_of_others(&x, &self.reduce.axes(&x));
        self.dx = in_dtype(&(others * self.reduce.kept(&self.dout, &x)), self.x.dtype());
    }
}

/// For each element, the product of all others along axes: of those before and those after it. Unlike a quotient of the
/// whole product, its gradients of any order are correct where factors are 0.
fn product_of_others(x: &Expr, axes: &[i32]) -> Expr {
    match *axes {
        [] => like(x, 1.0),
        [axis] => products_before(x, axis) * products_before(&x.flip(&[axis]), axis).flip(&[axis]),
        _ => {
            // The axes become one.
            let kept = (0..x.dims().len() as i32).filter(|axis| !axes.contains(axis));
            let order: Vec<i32> = kept.chain(axes.iter().copied()).collect();
            let last = x.transpose(&order);
            let (first, rank) = ((order.len() - axes.len()) as i32, order.len() as i32);
            let others = product_of_others(&last.flatten(first, -1), &[first]).reshape_to(&all_sizes(&last));
            let place = |axis: i32| order.iter().position(|of| *of == axis).map_or(0, |at| at as i32);
            others.transpose(&(0..rank).map(place).collect::<Vec<_>>())
        }
    }
}

/// For each element, the product of those before it along an axis.
fn products_before(x: &Expr, axis: i32) -> Expr {
    let first = like(&x.slice(axis, 0, 1), 1.0);
    concat(&[&first, &x.cumprod(axis).slice(axis, 0, -1)], axis)
}
