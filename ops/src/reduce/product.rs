//! Product over dimensions.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Error, ErrorKind, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{with_float, with_signed},
    register_op,
};

use super::{
    ReduceAttrs, ReduceSum,
    tiling::{Reduce, with_result_dtype},
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, converted_bytes, elements, wide},
    math::concat,
};

/// Product over dimensions: `out = Π x`.
#[register_op(grad = ReduceProdGrad, infallible)]
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
impl Composition for ReduceProd<Expr> {
    fn compose(&mut self) {
        let (dtype, rank) = (self.reduce.out_dtype.unwrap_or(self.x.dtype()), self.x.dims().len() as i32);
        let axes: Vec<i32> = match self.reduce.is_full() || rank == 0 {
            true => (0..rank).collect(),
            false => self.reduce.dim.iter().map(|axis| axis.rem_euclid(rank)).collect(),
        };
        let product = axes.iter().fold(self.x.cast(dtype), |x, axis| product_along(x, *axis));
        let drops = !self.reduce.keep_dim && !axes.is_empty();
        self.out = if drops { product.squeeze(&axes) } else { product };
    }
}

/// The product along an axis, kept with size 1, by recursive halving. Unlike a quotient of the whole product, its
/// gradients of any order are correct where factors are 0.
fn product_along(mut x: Expr, axis: i32) -> Expr {
    let Some(mut len) = x.dims()[axis as usize].get().map(|len| len as i32) else {
        let text = "the number of factors must be known, because the gradient of a product is differentiated";
        return x.builder().failed(Error::new(ErrorKind::NoGradient, text));
    };
    if len == 0 {
        return emit(ReduceSum { x: (&x).into(), out: New, reduce: ReduceAttrs::keeping([axis]) }).out + 1.0;
    }
    while len > 1 {
        let half = len / 2;
        let products = x.slice(axis, 0, half) * x.slice(axis, half, 2 * half);
        x = if len % 2 == 0 { products } else { concat(&[&products, &x.slice(axis, len - 1, len)], axis) };
        len -= half;
    }
    x
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
