//! `cross`: products of vectors in three dimensions, composed of other operators.

use autobwd::{Composed, Composition, Dims, Error, Expr, Infer, Meta, Result, Var, check::*, register_op};

use crate::{Math, concat};

/// Cross products along a dimension of size 3: `out[i] = x[i + 1] * y[i + 2] - x[i + 2] * y[i + 1]`, with positions modulo
/// 3.
#[register_op(grad = Composed, composed)]
pub struct Cross<V = Var> {
    /// Signed integers or floating-point numbers, with a dimension of size 3.
    #[input]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[input]
    pub y: V,
    /// Same shape and dtype as `x`.
    #[output]
    pub out: V,
    /// The dimension of size 3; negative counts from the end, and 9 means the first one of that size.
    #[attr(default = FIRST)]
    pub dim: i32,
}

/// Stands for the first dimension of size 3.
const FIRST: i32 = 9;

impl Infer for Cross<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.signed()?;
        self.y.same_as(&self.x)?;
        let axis = match self.dim {
            FIRST => first(&self.x.dims).ok_or_else(|| self.x.wrong("a dimension of size 3 is needed"))?,
            dim => self.x.axis("dim", dim.into())?,
        };
        let n = self.x.dims[axis];
        if !n.agrees(3.into()) {
            return Err(Error::attr("dim", format!("a dimension of size 3 is needed, not of {n}")));
        }
        self.out.like(&self.x);
        Ok(())
    }
}

/// The first dimension of size 3, or else the first one of unknown size.
fn first(dims: &Dims) -> Option<usize> {
    let known = dims.iter().position(|n| *n == 3);
    known.or_else(|| dims.iter().position(|n| n.get().is_none()))
}

impl Composition for Cross<Expr> {
    fn compose(&mut self) {
        let dims = self.x.dims();
        let axis = match self.dim {
            FIRST => {
                let Some(axis) = dims.iter().position(|n| n.get().is_none_or(|n| n == 3)) else { return };
                if dims[axis].get().is_none() {
                    let text = "attribute `dim` is needed where dimensions are unknown";
                    self.out = self.x.builder().failed(Error::attr("dim", text));
                    return;
                }
                axis as i32
            }
            dim => dim.rem_euclid(dims.len() as i32),
        };
        let turned = |x: &Expr, by: i32| concat(&[&x.slice(axis, by, 3), &x.slice(axis, 0, by)], axis);
        let (x, y) = (&self.x, &self.y);
        self.out = turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1);
    }
}
autobwd::samples!(
    Cross,
    [
        cross(uniform([2, 3]), uniform([2, 3]), 1),
        cross(uniform([3, 2, 4]), uniform([3, 2, 4]), -3),
        cross(uniform([2, 3, 3]), uniform([2, 3, 3]), FIRST)
            .known_dims("the dimension is the first of size 3"),
        cross(uniform([3, 0]), uniform([3, 0]), 0),
        cross(integers_below(9, [3]), integers_below(9, [3]), 0),
        cross(uniform([2, 3]), uniform([2, 3]), 0).fails("attribute `dim`: a dimension of size 3 is needed"),
        cross(uniform([2, 4]), uniform([2, 4]), FIRST).fails("`X`: a dimension of size 3 is needed"),
        cross(uniform([2, 3]), uniform([3]), 1).fails("`Y`: shape [3] does not match"),
        cross(uniform([2, 3]), uniform([2, 3]), 2).fails("attribute `dim` = 2"),
        cross(
            integers_below(2, [3]).of(autobwd::DType::Bool),
            integers_below(2, [3]).of(autobwd::DType::Bool),
            0
        )
        .fails("`X`: signed or floating point numbers are needed"),
    ]
);

fn cross(x: Draw, y: Draw, dim: i32) -> Cross<Draw> {
    Cross { x, y, out: out(), dim }
}
