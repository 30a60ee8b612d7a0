//! `where_index` and `masked_select`: what a condition selects. Data decides how much it is.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var, ZeroGrad,
    check::*,
    emit,
    op::with_dtype,
    register_op,
    tensor::{Bool, Dim},
};

use crate::{
    Math, concat,
    math::{all_sizes, filled, product},
};

/// The positions of the elements that are not 0, in memory order: `out[k]` is the index of the k-th of them.
#[register_op(grad = ZeroGrad, any_dtype, primitive)]
pub struct WhereIndex<V = Var> {
    /// Any shape, any dtype. NaN is not 0.
    #[input]
    pub condition: V,
    /// Indices, int64, `[k, rank]`; `k` is at most the number of elements.
    #[output]
    pub out: V,
}
impl Infer for WhereIndex<Meta> {
    fn infer(&mut self) -> Result<()> {
        let rank = self.condition.rank();
        self.out.set(DType::I64, Dims::from_iter([Dim::at_most(self.condition.dims.numel()), rank.into()]));
        Ok(())
    }
}
impl Kernel for WhereIndex<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (condition, dims) = (&self.condition, self.condition.dims());
        with_dtype!(condition.dtype(), T => {
            let elements = condition.slice::<T>()?;
            let set = |x: &T| *x != T::default();
            let count = elements.iter().filter(|x| set(x)).count();
            let out = self.out.decide::<i64>(&[count, dims.len()])?;
            let places = elements.iter().enumerate().filter(|(_, x)| set(x)).map(|(place, _)| place);
            for (index, mut place) in out.chunks_exact_mut(dims.len().max(1)).zip(places) {
                for (at, n) in index.iter_mut().zip(dims).rev() {
                    *at = (place % n) as i64;
                    place /= n;
                }
            }
        });
        Ok(())
    }
}
autobwd::samples!(
    WhereIndex,
    [
        WhereIndex { condition: integers_below(2, [5]).of(DType::Bool), out: out() },
        WhereIndex { condition: integers_below(3, [2, 3, 2]), out: out() },
        WhereIndex { condition: given([2, 3], [0.0, f64::NAN, -0.0, 1.5, 0.0, f64::INFINITY]), out: out() },
        WhereIndex { condition: given([3], [0.0, 0.0, 0.0]).of(DType::I32), out: out() },
        WhereIndex { condition: given([], [1.0]).of(DType::Bool), out: out() },
        WhereIndex { condition: given([], [0.0]), out: out() },
        WhereIndex { condition: uniform([2, 0]), out: out() },
        WhereIndex { condition: uniform([2, 3]), out: out() },
    ]
);

/// The elements of a tensor where a mask is true, in memory order: `y[k]` is the k-th of them.
#[register_op(grad = MaskedSelectGrad, any_dtype)]
pub struct MaskedSelect<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// Booleans, same shape.
    #[input]
    pub mask: V,
    /// `[k]`; `k` is at most the number of elements.
    #[output]
    pub y: V,
}
impl Infer for MaskedSelect<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.mask.require(self.mask.dtype == DType::Bool, || "`bool` is needed".into())?;
        let (x, mask) = (&self.x.dims, &self.mask.dims);
        self.mask.require(mask.agrees(x), || format!("the shape of `X`, {x}, is needed"))?;
        let numel = x.numel().or(mask.numel());
        self.y.set(self.x.dtype, Dims::from_iter([Dim::at_most(numel)]));
        Ok(())
    }
}
impl Kernel for MaskedSelect<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let mask = self.mask.slice::<Bool>()?;
        let count = mask.iter().filter(|is| is.get()).count();
        with_dtype!(self.x.dtype(), T => {
            let selected = self.x.slice::<T>()?.iter().zip(mask).filter(|(_, is)| is.get());
            self.y.decide::<T>(&[count])?.iter_mut().zip(selected).for_each(|(y, (x, _))| *y = *x);
        });
        Ok(())
    }
}
impl Composition for MaskedSelect<Expr> {
    fn compose(&mut self) {
        let places = emit(WhereIndex { condition: (&self.mask.reshape(&[-1])).into(), out: New }).out;
        self.y = self.x.reshape(&[-1]).gather(&places.reshape(&[-1]), 0);
    }
}
autobwd::samples!(
    MaskedSelect,
    [
        masked_select(uniform([6]), integers_below(2, [6]).of(DType::Bool)),
        masked_select(uniform([2, 3, 2]), integers_below(2, [2, 3, 2]).of(DType::Bool)),
        masked_select(integers_below(9, [2, 3]), integers_below(2, [2, 3]).of(DType::Bool)),
        masked_select(uniform([3]), given([3], [0.0, 0.0, 0.0]).of(DType::Bool)),
        masked_select(uniform([]), given([], [1.0]).of(DType::Bool)),
        masked_select(uniform([0, 2]), integers_below(2, [0, 2]).of(DType::Bool)),
        masked_select(uniform([2]), uniform([2])).fails("`Mask`: `bool` is needed"),
        masked_select(uniform([2, 3]), integers_below(2, [3]).of(DType::Bool))
            .fails("`Mask`: the shape of `X`, [2, 3], is needed"),
    ]
);

fn masked_select(x: Draw, mask: Draw) -> MaskedSelect<Draw> {
    MaskedSelect { x, mask, y: out() }
}

/// `dx[i] = dy[number of true elements of the mask before i]` where the mask is true, and 0 elsewhere.
#[register_op(grad_of = MaskedSelect, grad = Multilinear, composed, inferred)]
pub struct MaskedSelectGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub mask: V,
    pub dy: V,
    #[output]
    pub dx: V,
}
impl Composition for MaskedSelectGrad<Expr> {
    fn compose(&mut self) {
        let (dy, mask) = (&self.dy, self.mask.reshape(&[-1]));
        // An element that is not selected reads the 0 after them.
        let zero = filled(dy.builder(), dy.dtype(), "0", &[1.into()]);
        let end = dy.dim(0).number(dy.builder());
        let numbers = mask.cast(DType::I64).cumsum(0) - 1.0;
        let places = mask.where_cond(&numbers, &end.expand_to(&[product(&all_sizes(&self.x))]));
        self.dx = concat(&[dy, &zero], 0).gather(&places, 0).reshape_to(&all_sizes(&self.x));
    }
}
