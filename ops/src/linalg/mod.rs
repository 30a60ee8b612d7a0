//! Linear algebra: inverses, systems of equations, determinants, powers and factorisations of matrices.
//!
//! Matrices have the last two dimensions; the others count them. Kernels compute in double precision.

mod cholesky;
mod determinant;
mod eigh;
mod eigvalsh;
mod elimination;
mod inverse;
mod lu;
mod power;
mod qr;
mod solve;
mod svd;
mod triangular;

pub use cholesky::{Cholesky, CholeskyGrad, CholeskySolve};
pub use determinant::{Determinant, DeterminantGrad, Slogdeterminant, SlogdeterminantGrad};
pub use eigh::{Eigh, EighGrad, Triangle};
pub use eigvalsh::Eigvalsh;
pub use inverse::{Inverse, InverseGrad};
pub use lu::{Lu, LuGrad, LuUnpack, LuUnpackGrad};
pub use power::MatrixPower;
pub use qr::{Qr, QrGrad, QrMode};
pub use solve::{Solve, SolveGrad};
pub use svd::{Svd, SvdGrad};
pub use triangular::{TriangularSolve, TriangularSolveGrad};

use autobwd::{Buf, Error, ErrorKind, Expr, Meta, New, Result, emit, tensor::Dim};

use crate::{Math, shape::TrilTriu};

/// Requires square matrices of floating-point numbers, and returns their size.
fn square(x: &Meta) -> Result<Dim> {
    x.float()?;
    let size = x.rank().checked_sub(2).map(|rows| (x.dims[rows], x.dims[rows + 1]));
    match size {
        Some((rows, columns)) if rows.agrees(columns) => Ok(rows.or(columns)),
        _ => Err(x.wrong("square matrices are needed")),
    }
}

/// The shape rule of solutions, which are like the right-hand sides.
fn solution(matrices: &Meta, y: &Meta, out: &mut Meta) -> Result<()> {
    square(matrices)?;
    right_sides(matrices, y)?;
    out.like(y);
    Ok(())
}

/// Requires right-hand sides `[.., n, m]` of as many equations as these matrices have.
fn right_sides(matrices: &Meta, y: &Meta) -> Result<()> {
    y.same_dtype(matrices)?;
    let batch = matrices.rank() - 1;
    let fits = y.rank() == matrices.rank()
        && y.dims.iter().zip(&*matrices.dims).take(batch).all(|(m, n)| m.agrees(*n));
    y.require(fits, || {
        format!("matrices with the dimensions of {}, except for the last one, are needed", matrices.dims)
    })
}

/// Operations on square matrices: twice their elements for each row.
fn cubic(x: &Meta) -> Dim {
    Dim::from(2) * x.dims.numel() * x.dims.last().copied().unwrap_or(1.into())
}

/// The size of square matrices.
fn size(x: &Buf<'_>) -> usize {
    x.dims().last().copied().unwrap_or(1)
}

/// The error about a matrix, by its number.
fn refused(x: &Buf<'_>, number: usize, what: &str) -> Error {
    Error::new(ErrorKind::Data, format!("`{}`: matrix {number} is {what}", x.slot()))
}

/// Transposed matrices.
fn transposed(x: &Expr) -> Expr {
    let rank = x.dims().len() as i32;
    let axes: Vec<i32> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    x.transpose(&axes)
}

/// The lower or upper triangle of matrices, up to a diagonal.
fn triangle(x: &Expr, lower: bool, diagonal: i32) -> Expr {
    emit(TrilTriu { x: x.into(), out: New, diagonal, lower }).out
}
