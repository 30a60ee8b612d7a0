//! What several families need: numbers of any dtype, and cutting tensors.

use std::ops::AddAssign;

use autobwd::{Bool, Buf, Cx, DType, Dim, Dims, Element, Meta, Product, Result, Vectorised, with_dtype};

/// Elements of a unit of shared work.
pub(crate) const PART: usize = 1 << 16;

/// `f32` or `f64`, for kernels that calculate.
pub(crate) trait Real: Product + Vectorised + num_traits::Float + AddAssign + Into<f64> {
    /// The nearest number.
    fn of(x: f64) -> Self;
    /// The number itself if `is` holds, else 0, for certain without a branch.
    fn or_zero(self, is: bool) -> Self;
}
impl Real for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn or_zero(self, is: bool) -> f32 {
        f32::from_bits(self.to_bits() & u32::from(is).wrapping_neg())
    }
}
impl Real for f64 {
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn or_zero(self, is: bool) -> f64 {
        f64::from_bits(self.to_bits() & u64::from(is).wrapping_neg())
    }
}

pub(crate) fn wide<T: Real>(x: T) -> f64 {
    x.into()
}

/// The sum of all numbers; of none, 0. (`Iterator::sum` starts with -0.)
pub(crate) fn add_up(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |sum, x| sum + x)
}

/// A number between two dtypes: every element of every dtype fits in without loss.
#[derive(Clone, Copy)]
pub(crate) enum Wide {
    Int(i64),
    Float(f64),
}

impl std::fmt::Display for Wide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wide::Int(x) => x.fmt(f),
            Wide::Float(x) => x.fmt(f),
        }
    }
}

/// An element as a number.
pub(crate) trait Number: Element {
    fn widen(self) -> Wide;
    /// Integers wrap around; fractions are cut off, and what is out of range becomes the nearest integer there is.
    fn narrow(wide: Wide) -> Self;
}
macro_rules! numbers {
    ($($t:ty => $kind:ident),*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn widen(self) -> Wide {
                Wide::$kind(self.into())
            }
            #[inline(always)]
            fn narrow(wide: Wide) -> $t {
                match wide {
                    Wide::Int(x) => x as $t,
                    Wide::Float(x) => x as $t,
                }
            }
        }
    )*};
}
numbers!(u8 => Int, i32 => Int, i64 => Int, f32 => Float, f64 => Float);
impl Number for Bool {
    #[inline(always)]
    fn widen(self) -> Wide {
        Wide::Int(self.get().into())
    }
    #[inline(always)]
    fn narrow(wide: Wide) -> Bool {
        match wide {
            Wide::Int(x) => (x != 0).into(),
            Wide::Float(x) => (x != 0.0).into(),
        }
    }
}

/// `out = x`, of another dtype or the same.
pub(crate) fn convert<Y: Number>(cx: &Cx, x: &Buf<'_>, out: &mut [Y]) -> Result<()> {
    with_dtype!(x.dtype(), X => {
        let x = x.slice::<X>()?;
        cx.chunks_mut(out, PART, |part, out| {
            out.iter_mut().zip(&x[part * PART..]).for_each(|(out, x)| *out = Y::narrow(x.widen()));
        });
    });
    Ok(())
}

/// The elements of `x` as `T`: as they are, or converted into memory that is lent.
pub(crate) fn elements<T: Number, R>(
    cx: &Cx,
    x: &Buf<'_>,
    work: impl FnOnce(&[T]) -> Result<R>,
) -> Result<R> {
    if x.dtype() == T::DTYPE {
        return work(x.slice()?);
    }
    cx.scratch(x.numel(), |converted| {
        convert(cx, x, converted)?;
        work(converted)
    })
}

/// The elements of two buffers of one dtype and length, as those of one in [`elements`].
pub(crate) fn elements_of_both<T: Number, R>(
    cx: &Cx,
    [x, y]: [&Buf<'_>; 2],
    work: impl FnOnce(&[T], &[T]) -> Result<R>,
) -> Result<R> {
    if x.dtype() == T::DTYPE {
        return work(x.slice()?, y.slice()?);
    }
    cx.scratch(x.numel() + y.numel(), |both: &mut [T]| {
        let (of_x, of_y) = both.split_at_mut(x.numel());
        convert(cx, x, of_x)?;
        convert(cx, y, of_y)?;
        work(of_x, of_y)
    })
}

/// How much memory is lent for `copies` of `x` as that dtype, if it is of another.
pub(crate) fn converted_bytes(x: &Buf<'_>, dtype: DType, copies: usize) -> usize {
    if x.dtype() == dtype { 0 } else { x.numel().saturating_mul(copies * dtype.size()) }
}

/// The axis that an attribute says, `None` of a scalar, which has one to -1 and 0.
pub(crate) fn axis_if_any(x: &Meta, axis: i64) -> Result<Option<usize>> {
    if x.rank() == 0 && matches!(axis, -1 | 0) { Ok(None) } else { x.axis("axis", axis).map(Some) }
}

/// Lanes along an axis, as in [`around`]; a scalar is one.
pub(crate) fn lanes_along(x: &Buf<'_>, axis: i64) -> (usize, usize, usize) {
    if x.dims().is_empty() { (1, 1, 1) } else { around(x.dims(), x.axis(axis)) }
}

/// Positions before, on and after an axis.
pub(crate) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}

/// Calls `each(row, column, piece)` for every piece of `part`, of which the first element is number `at` of rows of
/// `width` elements. A piece lies in one row and has at most `longest` elements.
pub(crate) fn pieces<T>(
    part: &mut [T],
    at: usize,
    width: usize,
    longest: usize,
    mut each: impl FnMut(usize, usize, &mut [T]),
) {
    if part.is_empty() {
        return;
    }
    // Divisions cost more than all else where rows are short.
    let (mut row, mut column) = (at / width, at % width);
    let mut rest = part;
    while !rest.is_empty() {
        let len = (width - column).min(longest).min(rest.len());
        let (piece, tail) = rest.split_at_mut(len);
        each(row, column, piece);
        column += len;
        if column == width {
            (row, column) = (row + 1, 0);
        }
        rest = tail;
    }
}

/// The shape rule of a gradient: `dout` has the dtype of `x`, floating point numbers, and the result's dimensions.
pub(crate) fn infer_grad(x: &Meta, dout: &Meta, dims: &Dims, dx: &mut Meta) -> Result<()> {
    x.float()?;
    check_grad(x, dout, dims)?;
    dx.like(x);
    Ok(())
}

/// That `dout` has the dtype of `x` and the result's dimensions.
pub(crate) fn check_grad(x: &Meta, dout: &Meta, dims: &Dims) -> Result<()> {
    dout.same_dtype(x)?;
    dout.require(dout.dims.agrees(dims), || format!("the shape of the forward result, {dims}, is needed"))
}

/// From which dimension of the full shape on an operand of `own` dimensions is placed.
fn start(own: usize, rank: usize, axis: i32) -> usize {
    usize::try_from(axis).ok().filter(|_| own < rank).unwrap_or(rank - own)
}

/// The shape that two operands of a kernel broadcast to, the same as in formulas.
pub(crate) fn broadcast(x: &Meta, y: &Meta, axis: i32) -> Result<Dims> {
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

/// Where the elements of both operands for `row` of the full shape start, and how far apart those of neighbouring
/// columns are.
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
pub(crate) fn zip_broadcast<T: Element, R: Element>(
    cx: &Cx,
    (x, y): (&Buf<'_>, &Buf<'_>),
    out: &mut Buf<'_>,
    axis: i32,
    f: impl Fn(T, T) -> R + Sync,
) -> Result<()> {
    let (dims, equal) = ([x.dims(), y.dims()], x.dims() == y.dims());
    // Equal shapes are one row.
    let width = if equal { out.numel() } else { out.dims().last().copied().unwrap_or(1) };
    let (x, y) = (x.slice::<T>()?, y.slice::<T>()?);
    cx.chunks_mut(out.slice_mut::<R>()?, PART, |part, out| {
        pieces(out, part * PART, width, usize::MAX, |row, column, piece| {
            let places = if equal { [(0, 1); 2] } else { operands_of_row(dims, axis, row) };
            let [(x_at, x_step), (y_at, y_step)] = places;
            let (x, y) = (&x[x_at + column * x_step..], &y[y_at + column * y_step..]);
            piece.iter_mut().enumerate().for_each(|(i, out)| *out = f(x[i * x_step], y[i * y_step]));
        });
    });
    Ok(())
}

/// What optional slots hold.
pub(crate) fn held<'a, T: Element, const N: usize>(
    slots: [&'a Option<Buf<'_>>; N],
) -> Result<[Option<&'a [T]>; N]> {
    let mut slices = [None; N];
    for (slice, slot) in slices.iter_mut().zip(slots) {
        *slice = slot.as_ref().map(Buf::slice).transpose()?;
    }
    Ok(slices)
}

/// The `i`-th piece of `len` elements.
pub(crate) fn nth<T>(all: &[T], i: usize, len: usize) -> &[T] {
    &all[i * len..][..len]
}

/// The elements beside part number `part` of a shared output, which has `len`.
pub(crate) fn nth_part<T>(all: &[T], part: usize, len: usize) -> &[T] {
    &all[part * PART..][..len]
}

/// The only element of a slot of whole numbers.
pub(crate) fn whole_number(x: &Buf<'_>) -> Result<i64> {
    match x.dtype() {
        DType::I32 => Ok(i64::from(x.slice::<i32>()?[0])),
        DType::I64 => Ok(x.slice::<i64>()?[0]),
        _ => Err(x.wrong("one whole number is needed")),
    }
}
