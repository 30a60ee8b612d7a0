//! Kernels for row-sparse tensors, such as sparse gradients.

use std::ops::AddAssign;

use super::PART;
use crate::{Buf, Cx, GemmElement, Result, Rows};

/// The number of parts of a tensor: each part has to find its rows.
pub const PARTS: usize = 64;

/// `x = new(x, others, grad)`, element by element: in the rows of `grad` and, unless `lazy`, with a gradient of 0 in
/// all others. The tensors `others` have the shape of `x`.
pub fn update_rows<T: GemmElement + AddAssign, const N: usize>(
    cx: &Cx,
    x: &mut [T],
    others: [&[T]; N],
    grad: Rows<'_, T>,
    lazy: bool,
    new: impl Fn(T, [T; N], T) -> T + Sync,
) {
    let piece = |at: usize, x: &mut [T], grad: Option<&[T]>| {
        let others = others.map(|other| &other[at..][..x.len()]);
        for (i, x) in x.iter_mut().enumerate() {
            *x = new(*x, others.map(|other| other[i]), grad.map_or(T::ZERO, |grad| grad[i]));
        }
    };
    let width = grad.width();
    let height = PART.max(x.len() / PARTS).div_ceil(width.max(1));
    cx.chunks_mut(x, height * width, |part, x| {
        let (first, end) = (part * height, part * height + x.len() / width);
        let (mut at, mut rest) = (first * width, x);
        for (row, grad) in grad.within(first..end).iter() {
            let (before, tail) = rest.split_at_mut(row * width - at);
            let (own, tail) = tail.split_at_mut(width);
            if !lazy {
                piece(at, before, None);
            }
            piece(row * width, own, Some(grad));
            (at, rest) = ((row + 1) * width, tail);
        }
        if !lazy {
            piece(at, rest, None);
        }
    });
}

/// Writes the sum of rows to a row-sparse output: each row once, however often it occurs among the `terms`, whose
/// number must not exceed the capacity of `out`.
pub fn add_up_rows<'a, T: GemmElement + AddAssign, I: Iterator<Item = (usize, &'a [T])>>(
    cx: &Cx,
    out: &mut Buf<'_>,
    terms: impl Fn() -> I + Sync,
) -> Result<()> {
    let width: usize = out.dims()[1..].iter().product();
    let (numbers, values) = out.rows_mut::<T>()?;
    let mut rows = 0;
    for (number, (row, _)) in numbers.iter_mut().zip(terms()) {
        *number = row as i64;
        rows += 1;
    }
    numbers[..rows].sort_unstable();
    let mut distinct = 0;
    for i in 0..rows {
        if distinct == 0 || numbers[distinct - 1] != numbers[i] {
            numbers[distinct] = numbers[i];
            distinct += 1;
        }
    }
    numbers[distinct..].fill(-1);
    let (numbers, values) = (&numbers[..distinct], &mut values[..distinct * width]);
    let height = PART.max(values.len() / PARTS).div_ceil(width.max(1));
    cx.chunks_mut(values, height * width, |part, values| {
        values.fill(T::ZERO);
        let own = &numbers[part * height..][..values.len() / width];
        let (first, last) = (own[0], own[own.len() - 1]);
        for (row, term) in terms().filter(|(row, _)| (first..=last).contains(&(*row as i64))) {
            if let Ok(place) = own.binary_search(&(row as i64)) {
                let sum = values[place * width..][..width].iter_mut();
                sum.zip(term).for_each(|(sum, term)| *sum += *term);
            }
        }
    });
    Ok(())
}
