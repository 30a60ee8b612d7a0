//! Powers of matrices.

use autobwd::{
    Composed, Composition, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op, tensor::Dim,
};

use super::{Inverse, cubic, inverse::MATRICES, square};
use crate::{
    Math,
    math::{all_sizes, positions},
    matmul::product,
};

/// Powers of matrices with an integer exponent: `out = xⁿ`, by repeated squaring. For a negative exponent, a singular
/// matrix is an error.
#[register_op(grad = Composed, composed)]
pub struct MatrixPower<V = Var> {
    /// Square matrices, `[.., m, m]`.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The exponent.
    #[attr]
    pub n: i32,
}
impl Infer for MatrixPower<Meta> {
    fn infer(&mut self) -> Result<()> {
        square(&self.x)?;
        self.out.like(&self.x);
        Ok(())
    }

    fn flops(&self) -> Dim {
        cubic(&self.x)
    }
}
impl Composition for MatrixPower<Expr> {
    fn compose(&mut self) {
        let (x, mut exponent) = (&self.x, self.n.unsigned_abs());
        if exponent == 0 {
            let places = positions(x.builder(), &x.dim(-1));
            let identity = places.unsqueeze(&[1]).equal(&places.unsqueeze(&[0])).cast(x.dtype());
            self.out = identity.expand_to(&all_sizes(x));
            return;
        }
        let mut square = match self.n > 0 {
            true => x.clone(),
            false => emit(Inverse { input: x.into(), output: New }).output,
        };
        let mut power: Option<Expr> = None;
        while exponent > 0 {
            if exponent % 2 == 1 {
                power = Some(
                    power.map_or_else(|| square.clone(), |power| product([&power, &square], [false; 2])),
                );
            }
            exponent /= 2;
            if exponent > 0 {
                square = product([&square, &square], [false; 2]);
            }
        }
        self.out = power.map_or_else(|| square.clone(), |power| power.copy());
    }
}
autobwd::samples!(
    MatrixPower,
    [
        MatrixPower { x: uniform([2, 3, 3]), out: out(), n: 3 },
        MatrixPower { x: uniform([2, 2]), out: out(), n: 6 },
        MatrixPower { x: uniform([2, 2]), out: out(), n: 1 },
        MatrixPower { x: uniform([3, 2, 2]), out: out(), n: 0 },
        MatrixPower { x: given([2, 3, 3], MATRICES), out: out(), n: -2 },
        MatrixPower { x: uniform([2, 1, 1]), out: out(), n: 2 },
        MatrixPower { x: uniform([0, 2, 2]), out: out(), n: 2 },
        MatrixPower { x: given([2, 2], [1.0, 2.0, 2.0, 4.0]), out: out(), n: -1 }
            .fails("matrix 0 is singular, and has no inverse"),
        MatrixPower { x: uniform([2, 3]), out: out(), n: 2 }.fails("`X`: square matrices are needed"),
        MatrixPower { x: integers_below(9, [2, 2]), out: out(), n: 2 }
            .fails("`X`: floating point numbers are needed"),
    ]
);
