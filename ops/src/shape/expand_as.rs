//! Broadcasting to the shape of another tensor.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Expr, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*,
    operators::few_dims, register_op,
};

use super::expand::{broadcast, expanded, sum_like, sum_to};
use crate::{
    Math,
    math::{DimExpr, all_sizes},
};

/// Broadcasts to a shape: repeats dimensions of size 1 and adds dimensions in front.
#[register_op(grad = ExpandAsV2Grad, infallible, any_dtype)]
pub struct ExpandAsV2<V = Var> {
    /// Any shape that broadcasts to the result's, any dtype.
    #[input]
    pub x: V,
    /// The shape for entries −1 of `target_shape`, and of as many dimensions, any dtype.
    #[input(shape_only)]
    pub y: Option<V>,
    /// The shape given by `target_shape` and `y`, of at most 9 dimensions.
    #[output]
    pub out: V,
    /// Dimensions; −1 takes that of `y`. Empty means the shape of `y`.
    #[attr(default = [])]
    pub target_shape: Vec<i32>,
}
impl Infer for ExpandAsV2<Meta> {
    fn infer(&mut self) -> Result<()> {
        let mut shape: Vec<Option<i64>> = self.target_shape.iter().map(|n| Some(i64::from(*n))).collect();
        if let Some(y) = &self.y {
            if shape.is_empty() {
                shape = vec![Some(-1); y.rank()];
            }
            let ranks = || format!("{} dimensions are needed, as in `target_shape`", shape.len());
            y.require(y.rank() == shape.len(), ranks)?;
            for (n, dim) in shape.iter_mut().zip(&*y.dims).filter(|(n, _)| **n == Some(-1)) {
                *n = dim.get().map(|n| n as i64);
            }
        }
        let mut dims = expanded(&self.x, &shape)?;
        if let Some(y) = &self.y {
            let open = dims.iter_mut().zip(&*y.dims).zip(&shape).filter(|(_, n)| n.is_none());
            open.for_each(|((dim, of_y), _)| *dim = *of_y);
        }
        self.out.set(self.x.dtype, dims);
        few_dims(&self.out)
    }
}
impl Kernel for ExpandAsV2<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        broadcast(cx, &self.x, &mut self.out)
    }
}
impl Composition for ExpandAsV2<Expr> {
    fn compose(&mut self) {
        let of_y = self.y.as_ref().map_or(vec![], all_sizes);
        let dim = |(axis, n): (usize, &i32)| match of_y.get(axis).filter(|_| *n == -1) {
            Some(dim) => dim.clone(),
            None => i64::from(*n).into(),
        };
        let target: Vec<DimExpr> = self.target_shape.iter().enumerate().map(dim).collect();
        self.out = self.x.expand_to(if target.is_empty() { &of_y } else { &target });
    }
}
autobwd::samples!(
    ExpandAsV2,
    [
        expand_as(uniform([1, 4]), None, vec![2, 3, 4]),
        expand_as(uniform([3, 1]), Some(uniform([2, 3, 4])), vec![]),
        expand_as(uniform([1, 4]), Some(integers_below(5, [3, 4])), vec![-1, 4]),
        expand_as(uniform([4]), Some(uniform([3, 5])), vec![2, 4]),
        expand_as(uniform([]), Some(uniform([])), vec![]),
        expand_as(integers_below(9, [3]).of(DType::I32), None, vec![2, 3]),
        expand_as(uniform([2, 3]), None, vec![4, 3])
            .fails("`X`: a shape that broadcasts to [4, 3] is needed"),
        expand_as(uniform([3]), Some(uniform([2, 3, 4])), vec![2, 3])
            .fails("`Y`: 2 dimensions are needed, as in `target_shape`"),
        expand_as(uniform([3]), None, vec![]).fails("`X`: a shape that broadcasts to [] is needed"),
    ]
);

fn expand_as(x: Draw, y: Option<Draw>, target_shape: Vec<i32>) -> ExpandAsV2<Draw> {
    ExpandAsV2 { x, y, out: out(), target_shape }
}

/// `dx = dout`, summed over the broadcast dimensions.
#[register_op(grad_of = ExpandAsV2, grad = ExpandAsV2GradGrad, infallible)]
pub struct ExpandAsV2Grad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    #[input(shape_only)]
    pub y: Option<V>,
    pub dout: V,
    #[output]
    pub dx: V,
    pub target_shape: Vec<i32>,
}
impl Infer for ExpandAsV2Grad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.dout.same_dtype(&self.x)?;
        few_dims(&self.dout)?;
        let shape: Vec<Option<i64>> = self.dout.dims.iter().map(|n| n.get().map(|n| n as i64)).collect();
        let dims: Dims = expanded(&self.x, &shape)?;
        self.dx.like(&self.x);
        self.dout.require(self.dout.dims.agrees(&dims), || format!("shape {dims} is needed"))
    }
}
impl Kernel for ExpandAsV2Grad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        sum_to(cx, self.x.dims(), &self.dout, &mut self.dx)
    }
}
impl Composition for ExpandAsV2Grad<Expr> {
    fn compose(&mut self) {
        self.dx = sum_like(&self.dout, &self.x);
    }
}

/// `ddout` = `ddx` in the shape of `dout`.
#[derive(Debug)]
pub struct ExpandAsV2GradGrad;
impl GradRule<ExpandAsV2Grad> for ExpandAsV2GradGrad {
    fn emit(fwd: &ExpandAsV2Grad, g: &mut GradCx<'_>) {
        if let Some(out) = g.wanted(fwd.dout) {
            let x = g.grad(fwd.dx);
            g.push(ExpandAsV2 { x, y: Some(fwd.dout), out, target_shape: vec![] });
        }
    }
}
