//! Matrices in two dimensions of a tensor, and their diagonals.

use autobwd::{Builder, DType, Dims, Error, Expr, Meta, Result, tensor::Dim};

use crate::{
    Math,
    math::{DimExpr, filled, positions},
};

/// The dimensions of rows and columns, which attributes name.
pub(super) fn matrix_axes(x: &Meta, [first, second]: [(&str, i32); 2]) -> Result<[usize; 2]> {
    x.require(x.rank() > 1, || "at least two dimensions are needed".into())?;
    let axes = [x.axis(first.0, first.1.into())?, x.axis(second.0, second.1.into())?];
    if axes[0] == axes[1] {
        return Err(Error::attr(second.0, format!("another dimension than `{}` is needed", first.0)));
    }
    Ok(axes)
}

/// All other dimensions, and the length of the diagonal.
pub(super) fn diagonal_dims(dims: &Dims, [rows, columns]: [usize; 2], offset: i64) -> Dims {
    let length = |n: usize, m: usize| {
        let left = |n: usize, skipped: i64| (n as i64).saturating_sub(skipped.max(0)).max(0);
        left(n, offset.saturating_neg()).min(left(m, offset)) as usize
    };
    let length = dims[rows].get().zip(dims[columns].get()).map(|(n, m)| length(n, m));
    let others = dims.iter().enumerate().filter(|(axis, _)| ![rows, columns].contains(axis));
    others.map(|(_, n)| *n).chain([length.map_or(Dim::UNKNOWN, Dim::from)]).collect()
}

/// The order in which the dimensions of rows and columns are the last two.
fn order(rank: usize, axes: [i32; 2]) -> Vec<i32> {
    let axes = axes.map(|axis| axis.rem_euclid(rank as i32));
    (0..rank as i32).filter(|axis| !axes.contains(axis)).chain(axes).collect()
}

/// `x` with the dimensions of rows and columns as the last two.
pub(super) fn to_the_end(x: &Expr, axes: [i32; 2]) -> Expr {
    x.transpose(&order(x.dims().len(), axes))
}

/// `x`, whose last two dimensions become these.
pub(super) fn from_the_end(x: &Expr, axes: [i32; 2]) -> Expr {
    let order = order(x.dims().len(), axes);
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(from, to)| back[*to as usize] = from as i32);
    x.transpose(&back)
}

/// The diagonal as last dimension.
pub(super) fn diagonal_of(x: &Expr, axes: [i32; 2], offset: i64) -> Expr {
    let x = to_the_end(x, axes);
    let (builder, [rows, columns]) = (x.builder(), [-2, -1].map(|axis| x.dim(axis)));
    let [above, before] = [offset.saturating_neg(), offset].map(|n| DimExpr::from(n.max(0)));
    let length = (rows - &above).min(&columns - &before).max(0);
    let first = (above * &columns + before).number(builder);
    let places = positions(builder, &length) * &(columns + 1).number(builder) + first;
    x.flatten(-2, -1).gather(&places, x.dims().len() as i32 - 2)
}

/// Whether elements of a matrix are on its diagonal.
pub(super) fn on_diagonal(builder: &Builder, sides: [&DimExpr; 2], offset: i64) -> Expr {
    let [row, column] = sides.map(|n| positions(builder, n));
    let to_the_right = column - row.unsqueeze(&[1]);
    to_the_right.equal(&filled(builder, DType::I64, &offset.to_string(), &[1.into()]))
}
