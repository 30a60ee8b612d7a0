//! Kernels for two operands that broadcast against each other by the rules of formulas.

use super::{PART, pieces};
use crate::{Buf, Cx, Dim, Dims, Element, Meta, Result};

/// The dimension of the full shape at which an operand of `own` dimensions starts.
fn start(own: usize, rank: usize, axis: i32) -> usize {
    usize::try_from(axis).ok().filter(|_| own < rank).unwrap_or(rank - own)
}

/// The broadcast shape of two operands of a kernel, by the rules of formulas.
pub fn broadcast(x: &Meta, y: &Meta, axis: i32) -> Result<Dims> {
    let (one, rank) = (Dim::from(1), x.rank().max(y.rank()));
    let mut full: Dims = std::iter::repeat_n(one, rank).collect();
    for own in [x, y] {
        let start = start(own.rank(), rank, axis);
        for (i, dim) in own.dims.iter().enumerate() {
            match full.get_mut(start + i) {
                Some(full) if *full == one => *full = *dim,
                Some(full) if *dim != one && full.agrees(*dim) => *full = full.or(*dim),
                _ if *dim == one => {}
                _ => {
                    let (dims, slot) = (&x.dims, x.slot());
                    return Err(
                        y.wrong(&format!("a shape that broadcasts with {dims} of `{slot}` is needed"))
                    );
                }
            }
        }
    }
    Ok(full)
}

/// For each operand, the start of its elements for `row` of the full shape, and the stride between columns.
fn operands_of_row([x, y]: [&[usize]; 2], axis: i32, mut row: usize) -> [(usize, usize); 2] {
    let rank = x.len().max(y.len());
    let dim = |own: &[usize], d: usize| {
        let i = d.checked_sub(start(own.len(), rank, axis));
        i.and_then(|i| own.get(i)).copied().unwrap_or(1)
    };
    let (mut places, mut strides) = ([(0, 0); 2], [1; 2]);
    for d in (0..rank).rev() {
        let own = [dim(x, d), dim(y, d)];
        let n = if own[0] == 1 { own[1] } else { own[0] };
        for ((own, place), stride) in own.into_iter().zip(&mut places).zip(&mut strides) {
            if own == n && d + 1 == rank {
                place.1 = 1;
            } else if own == n {
                place.0 += row % n * *stride;
            }
            *stride *= own;
        }
        if d + 1 < rank {
            row /= n;
        }
    }
    places
}

/// `out = f(x, y)`, element by element; the shape rule has set the shape of `out` by [`broadcast`].
pub fn zip_broadcast<T: Element, R: Element>(
    cx: &Cx,
    (x, y): (&Buf<'_>, &Buf<'_>),
    out: &mut Buf<'_>,
    axis: i32,
    f: impl Fn(T, T) -> R + Sync,
) -> Result<()> {
    let (dims, equal) = ([x.dims(), y.dims()], x.dims() == y.dims());
    // Operands of one shape form one row.
    let width = if equal { out.numel() } else { out.dims().last().copied().unwrap_or(1) };
    let (x, y) = (x.slice::<T>()?, y.slice::<T>()?);
    cx.chunks_mut(out.slice_mut::<R>()?, PART, |part, out| {
        pieces(out, part * PART, width, usize::MAX, |row, column, piece| {
            let places = if equal { [(0, 1); 2] } else { operands_of_row(dims, axis, row) };
            let [(x_at, x_step), (y_at, y_step)] = places;
            let (x, y) = (&x[x_at + column * x_step..], &y[y_at + column * y_step..]);
            // Constant steps let the compiler vectorise.
            match (x_step, y_step) {
                (1, 1) => piece.iter_mut().zip(x.iter().zip(y)).for_each(|(out, (x, y))| *out = f(*x, *y)),
                (1, 0) => piece.iter_mut().zip(x).for_each(|(out, x)| *out = f(*x, y[0])),
                (0, 1) => piece.iter_mut().zip(y).for_each(|(out, y)| *out = f(x[0], *y)),
                _ => piece.iter_mut().enumerate().for_each(|(i, out)| *out = f(x[i * x_step], y[i * y_step])),
            }
        });
    });
    Ok(())
}
