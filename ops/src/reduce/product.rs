//! Product over dimensions.

use autobwd::{Buf, Cx, DType, Infer, Kernel, Meta, NoGrad, Result, Var, check::*, register_op, with_float};

use super::cut::{Reduction, infer_grad, reduced_dims, same_dtypes};
use crate::common::{PART, Real, wide};

/// Product over dimensions: `out = Π x`.
#[register_op(grad = ReduceProdGrad)]
pub struct ReduceProd<V = Var> {
    /// Any shape; the product of nothing is 1.
    #[input]
    pub x: V,
    /// `x` without the dimensions that are multiplied over; with `keep_dim` they are 1.
    #[output]
    pub out: V,
    /// The dimensions to multiply over, negative ones from behind; none means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Multiply over all dimensions, whatever `dim` says.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`, or −1, which means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As `in_dtype`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceProd<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        same_dtypes(&self.x, self.in_dtype, self.out_dtype)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for ReduceProd<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (cut, x) = (Reduction::new(&self.x, &self.dim, self.reduce_all), self.x.slice::<T>()?);
            let size = (PART / cut.terms.max(1)).max(1);
            cx.chunks_mut(self.out.slice_mut::<T>()?, size, |part, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = T::of(cut.terms_of(part * size + i).map(|at| wide(x[at])).product());
                }
            });
            Ok(())
        })
    }
}
autobwd::samples!(
    ReduceProd,
    [
        ReduceProd {
            in_dtype: Some(DType::F64),
            out_dtype: Some(DType::F64),
            ..reduce_prod(positive([2, 3]).of(DType::F64), &[0], false, false)
        },
        reduce_prod(positive([2, 3, 4]), &[0], false, false),
        reduce_prod(positive([2, 3, 4]), &[-1], true, false),
        reduce_prod(positive([2, 3, 4]), &[1], false, false),
        reduce_prod(positive([2, 3, 4, 5]), &[0, 2], false, false),
        reduce_prod(positive([2, 3]), &[0], false, true),
        reduce_prod(positive([2, 3]), &[], true, false),
        reduce_prod(given([3], [0.0, -2.0, 3.0]), &[0], false, false),
        reduce_prod(given([2, 4], [0.0, -2.0, 3.0, 0.0, 0.0, 0.0, 2.0, 0.0]), &[1], false, false),
        reduce_prod(positive([]), &[], false, false),
        reduce_prod(positive([0, 3]), &[0], false, false),
        reduce_prod(positive([0, 3]), &[1], false, false),
        Sample::fails(reduce_prod(uniform([2, 3]), &[2], false, false), "attribute `dim` = 2"),
    ]
);

fn reduce_prod(x: Draw, dim: &[i32], keep_dim: bool, reduce_all: bool) -> ReduceProd<Draw> {
    ReduceProd { x, out: out(), dim: dim.to_vec(), keep_dim, reduce_all, in_dtype: None, out_dtype: None }
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
#[register_op(grad = ReduceProdGradGrad)]
pub struct ReduceProdGrad<V = Var> {
    /// Input of the forward operator.
    #[input]
    pub x: V,
    /// Its output.
    #[input(shape_only)]
    pub out: V,
    #[input("Out@GRAD")]
    pub dout: V,
    #[output("X@GRAD")]
    pub dx: V,
    /// As in `reduce_prod`.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// As in `reduce_prod`.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// As in `reduce_prod`.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// As in `reduce_prod`.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As in `reduce_prod`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceProdGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        infer_grad(dims, &self.x, &self.dout, &mut self.dx)
    }
}
impl Kernel for ReduceProdGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (cut, x) = (Reduction::new(&self.x, &self.dim, self.reduce_all), self.x.slice::<T>()?);
            let dx = self.dx.slice_mut::<T>()?;
            for (i, dout) in self.dout.slice::<T>()?.iter().enumerate() {
                let factors = Factors::of(cut.terms_of(i).map(|at| wide(x[at])));
                for at in cut.terms_of(i) {
                    dx[at] = T::of(wide(*dout) * factors.without([wide(x[at])]));
                }
            }
            Ok(())
        })
    }
}

/// `ddout = Σ ddx[i] * Π x` over all factors but `x[i]`; for `x[i]` `dout * Σ ddx[j] * Π x` over all but these two.
#[register_op(grad = NoGrad)]
pub struct ReduceProdGradGrad<V = Var> {
    /// Input of the forward operator.
    #[input]
    pub x: V,
    /// Gradient of the product.
    #[input("Out@GRAD")]
    pub dout: V,
    #[input("X@GRAD@GRAD")]
    pub ddx: V,
    #[output("Out@GRAD@GRAD")]
    pub ddout: Option<V>,
    #[output("X@GRAD")]
    pub dx: Option<V>,
    /// As in `reduce_prod`.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// As in `reduce_prod`.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// As in `reduce_prod`.
    #[attr(default = false)]
    pub reduce_all: bool,
}
impl Infer for ReduceProdGradGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        let mut like_x = self.x.clone();
        infer_grad(dims, &self.x, &self.dout, &mut like_x)?;
        self.ddx.same_as(&self.x)?;
        self.ddout.iter_mut().for_each(|ddout| ddout.like(&self.dout));
        self.dx.iter_mut().for_each(|dx| dx.like(&self.x));
        Ok(())
    }
}
impl Kernel for ReduceProdGradGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (cut, x) = (Reduction::new(&self.x, &self.dim, self.reduce_all), self.x.slice::<T>()?);
            let ddx = self.ddx.slice::<T>()?;
            let mut ddout = self.ddout.as_mut().map(Buf::slice_mut::<T>).transpose()?;
            let mut dx = self.dx.as_mut().map(Buf::slice_mut::<T>).transpose()?;
            for (i, dout) in self.dout.slice::<T>()?.iter().enumerate() {
                let factors = Factors::of(cut.terms_of(i).map(|at| wide(x[at])));
                if let Some(ddout) = &mut ddout {
                    let terms = cut.terms_of(i).map(|at| wide(ddx[at]) * factors.without([wide(x[at])]));
                    ddout[i] = T::of(terms.sum());
                }
                let Some(dx) = &mut dx else { continue };
                // The sums over factors that are 0, and over the others, are all it takes.
                let of_zeros: f64 = cut.terms_of(i).filter(|at| wide(x[*at]) == 0.0).map(|at| wide(ddx[at])).sum();
                let of_others: f64 =
                    cut.terms_of(i).filter(|at| wide(x[*at]) != 0.0).map(|at| wide(ddx[at]) / wide(x[at])).sum();
                for at in cut.terms_of(i) {
                    let (x, ddx) = (wide(x[at]), wide(ddx[at]));
                    let (zeros, others) =
                        if x == 0.0 { (of_zeros - ddx, of_others) } else { (of_zeros, of_others - ddx / x) };
                    let with_other = factors.without([x]) * others;
                    dx[at] = T::of(wide(*dout) * (with_other + factors.without([0.0, x]) * zeros));
                }
            }
            Ok(())
        })
    }
}
