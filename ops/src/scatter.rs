//! `gather_nd`, `take_along_axis` and `scatter`: reading and writing elements and rows by index.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Dims, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*,
    emit,
    op::{with_dtype, with_float},
    register_op,
    tensor::{Dim, Element, OptionalBuf},
};

use crate::{
    compare::Equal,
    cumsum::Cumsum,
    elementwise::ElementwiseAdd,
    fill::{FillAnyLike, FillZerosLike},
    gather::{Gather, are_numbers, gathered, place},
    index::ScatterNdAdd,
    kernel_helpers::{KernelFloat, PART, lanes_along, pieces},
    logic::Where,
    math::like,
};

/// Slices of a tensor by multi-dimensional indices: `out[i, ..] = x[index[i], ..]`.
#[register_op(grad = GatherNdGrad, any_dtype, primitive)]
pub struct GatherNd<V = Var> {
    /// At least one dimension, any dtype.
    #[input]
    pub x: V,
    /// Indices, int64 or int32; the size of the last dimension is the number of leading dimensions of `x` that they
    /// index.
    #[input(checked)]
    pub index: V,
    /// `index` with the unindexed dimensions of `x` in place of its last one.
    #[output]
    pub out: V,
}
impl Infer for GatherNd<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, found(&self.x, &self.index)?);
        Ok(())
    }
}
impl Kernel for GatherNd<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let places = Places::new(self.x.dims(), &self.index);
        places.check()?;
        with_dtype!(self.x.dtype(), T => {
            places.take(cx, self.x.slice::<T>()?, self.out.slice_mut()?);
            Ok(())
        })
    }
}
autobwd::samples!(
    GatherNd,
    [
        GatherNd { x: uniform([4, 3]), index: integers_below(4, [5, 1]), out: out() },
        GatherNd { x: uniform([4, 3]), index: integers_below(3, [2, 5, 2]), out: out() },
        GatherNd { x: uniform([2, 3, 4]), index: integers_below(2, [5, 2]).of(DType::I32), out: out() },
        GatherNd { x: uniform([2, 3]), index: given([2], [1.0, 2.0]).of(DType::I64), out: out() },
        GatherNd { x: uniform([2, 3]), index: integers_below(2, [0, 1]), out: out() },
        GatherNd { x: uniform([2, 0]), index: integers_below(2, [3, 1]), out: out() },
        GatherNd { x: integers_below(9, [5]), index: integers_below(5, [3, 1]), out: out() },
        GatherNd { x: uniform([2, 3]), index: given([1, 2], [1.0, 3.0]).of(DType::I64), out: out() }
            .fails("`Index`: 3 is not within 0..3"),
        GatherNd { x: uniform([2, 3]), index: integers_below(2, [4, 3]), out: out() }.fails(
            "`Index`: a last dimension of 1 to 2 is needed, as `X` has 2 dimensions, not int64 [4, 3]"
        ),
        GatherNd { x: uniform([2, 3]), index: integers_below(2, []), out: out() }
            .fails("`Index`: a last dimension of 1 to 2 is needed"),
        GatherNd { x: uniform([3]), index: integers_below(2, [4, 2]), out: out() }
            .fails("`Index`: a last dimension of 1 is needed, as `X` has 1 dimension, not int64 [4, 2]"),
        GatherNd { x: uniform([]), index: integers_below(2, [4, 1]), out: out() }
            .fails("`X`: at least one dimension is needed"),
    ]
);

/// The dimensions of the output.
pub(crate) fn found(x: &Meta, index: &Meta) -> Result<Dims> {
    are_numbers(index)?;
    let k = index.dims.last().and_then(|k| k.get()).filter(|k| (1..=x.rank()).contains(k));
    let k = k.ok_or_else(|| match x.rank() {
        0 => x.wrong("at least one dimension is needed"),
        1 => index.wrong("a last dimension of 1 is needed, as `X` has 1 dimension"),
        n => index.wrong(&format!("a last dimension of 1 to {n} is needed, as `X` has {n} dimensions")),
    })?;
    Ok(index.dims[..index.rank() - 1].iter().chain(&x.dims[k..]).copied().collect())
}

/// Multi-dimensional indices of slices.
pub(crate) struct Places<'a> {
    /// The indexed dimensions.
    dims: &'a [usize],
    /// Elements of each slice.
    width: usize,
    index: &'a Buf<'a>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(x: &'a [usize], index: &'a Buf<'a>) -> Places<'a> {
        let (dims, rest) = x.split_at(index.dims().last().copied().unwrap_or(0));
        Places { dims, width: rest.iter().product(), index }
    }

    /// The number of the slice with index `i`, in units of `width` elements.
    fn row(&self, i: usize) -> Result<usize> {
        let k = self.dims.len();
        let numbers = self.dims.iter().enumerate();
        numbers.into_iter().try_fold(0, |row, (j, n)| Ok(row * n + place(self.index, i * k + j, *n)?))
    }

    pub(crate) fn check(&self) -> Result<()> {
        (0..self.index.numel() / self.dims.len()).try_for_each(|i| self.row(i).map(drop))
    }

    /// Copies the slices of `x`, whose indices have been checked.
    pub(crate) fn take<T: Element>(&self, cx: &Cx, x: &[T], out: &mut [T]) {
        cx.chunks_mut(out, PART, |part, out| {
            pieces(out, part * PART, self.width, usize::MAX, |i, column, out| {
                let row = self.row(i).unwrap_or(0);
                out.copy_from_slice(&x[row * self.width + column..][..out.len()]);
            });
        });
    }

    /// Adds each slice of `updates` to the slice of `x` with its index.
    pub(crate) fn add_up<T: KernelFloat>(&self, updates: &[T], x: &mut [T]) -> Result<()> {
        for (i, update) in updates.chunks_exact(self.width.max(1)).enumerate() {
            let x = x[self.row(i)? * self.width..].iter_mut();
            x.zip(update).for_each(|(x, update)| *x += *update);
        }
        Ok(())
    }
}

/// `dx[index[i], ..] += dout[i, ..]`.
#[register_op(grad_of = GatherNd, grad = Multilinear, inferred)]
pub struct GatherNdGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub index: V,
    pub dout: V,
    #[output]
    pub dx: V,
}
impl Kernel for GatherNdGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let places = Places::new(self.x.dims(), &self.index);
        places.check()?;
        with_float!(self.dout, T => {
            let dx = self.dx.slice_mut::<T>()?;
            dx.fill(0.0);
            places.add_up(self.dout.slice::<T>()?, dx)
        })
    }
}
impl Composition for GatherNdGrad<Expr> {
    fn compose(&mut self) {
        let (x, index, updates) = (like(&self.x, 0.0).into(), (&self.index).into(), (&self.dout).into());
        self.dx = emit(ScatterNdAdd { x, index, updates, out: New }).out;
    }
}

/// Elements by their positions along an axis: `result[.., i, ..] = input[.., index[.., i, ..], ..]`.
#[register_op(grad = TakeAlongAxisGrad, any_dtype, primitive)]
pub struct TakeAlongAxis<V = Var> {
    /// At least one dimension, any dtype.
    #[input]
    pub input: V,
    /// Positions, int64 or int32, in the shape of `input` except for the axis.
    #[input(checked)]
    pub index: V,
    /// Same shape as `index`.
    #[output]
    pub result: V,
    /// The dimension; negative counts from the end.
    #[attr("Axis", default = 0)]
    pub axis: i32,
}
impl Infer for TakeAlongAxis<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_positions(&self.input, &self.index, self.axis)?;
        self.result.set(self.input.dtype, self.index.dims.clone());
        Ok(())
    }
}
impl Kernel for TakeAlongAxis<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let along = Along::new(&self.input, &self.index, self.axis);
        with_dtype!(self.input.dtype(), T => {
            along.take::<T>(self.input.slice()?, self.result.slice_mut()?)
        })
    }
}
autobwd::samples!(
    TakeAlongAxis,
    [
        take_along_axis(uniform([2, 4]), integers_below(4, [2, 3]), 1),
        take_along_axis(uniform([2, 3, 4]), integers_below(3, [2, 5, 4]).of(DType::I32), -2),
        take_along_axis(uniform([3, 2]), integers_below(3, [0, 2]), 0),
        take_along_axis(uniform([]), given([], [0.0]).of(DType::I64), -1),
        take_along_axis(integers_below(9, [3]), integers_below(3, [2]), 0),
        take_along_axis(uniform([2, 3]), given([2, 1], [0.0, 3.0]).of(DType::I64), 1)
            .fails("`Index`: 3 is not within 0..3"),
        take_along_axis(uniform([2, 3]), integers_below(2, [3, 1]), 1)
            .fails("`Index`: dimensions [2, -1] are needed"),
    ]
);

fn take_along_axis(input: Draw, index: Draw, axis: i32) -> TakeAlongAxis<Draw> {
    TakeAlongAxis { input, index, result: out(), axis }
}

pub(crate) fn check_positions(input: &Meta, index: &Meta, axis: i32) -> Result<()> {
    are_numbers(index)?;
    let mut dims = input.dims.clone();
    // A scalar has one axis with one element.
    if input.rank() > 0 || !matches!(axis, -1 | 0) {
        dims[input.axis("Axis", axis.into())?] = Dim::UNKNOWN;
    }
    index.require(index.dims.agrees(&dims), || format!("dimensions {dims} are needed"))
}

/// Positions of elements along an axis.
pub(crate) struct Along<'a> {
    index: &'a Buf<'a>,
    /// Positions of a lane, and elements of a lane of the input.
    k: usize,
    n: usize,
    inner: usize,
}

impl<'a> Along<'a> {
    pub(crate) fn new(input: &Buf<'_>, index: &'a Buf<'a>, axis: i32) -> Along<'a> {
        let (_, n, inner) = lanes_along(input, axis.into());
        let k = if input.dims().is_empty() { 1 } else { index.dims()[input.axis(axis.into())] };
        Along { index, k, n, inner }
    }

    /// Offset of the element at position `i`.
    fn at(&self, i: usize) -> Result<usize> {
        let (row, column) = (i / (self.k * self.inner), i % self.inner);
        Ok((row * self.n + place(self.index, i, self.n)?) * self.inner + column)
    }

    /// Reads the elements at all positions.
    pub(crate) fn take<T: Element>(&self, x: &[T], out: &mut [T]) -> Result<()> {
        for (i, out) in out.iter_mut().enumerate() {
            *out = x[self.at(i)?];
        }
        Ok(())
    }

    /// Adds each element of `dout` to the element of `dx` that it was read from.
    pub(crate) fn add_up<T: KernelFloat>(&self, dout: &[T], dx: &mut [T]) -> Result<()> {
        dx.fill(T::ZERO);
        for (i, dout) in dout.iter().enumerate() {
            let dx = &mut dx[self.at(i)?];
            *dx += *dout;
        }
        Ok(())
    }
}

/// `dinput[.., index[.., i, ..], ..] += dresult[.., i, ..]`.
#[register_op(grad_of = TakeAlongAxis, grad = Multilinear, inferred, primitive)]
pub struct TakeAlongAxisGrad<V = Var> {
    #[input(shape_only)]
    pub input: V,
    pub index: V,
    pub dresult: V,
    #[output]
    pub dinput: V,
    pub axis: i32,
}
impl Kernel for TakeAlongAxisGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let along = Along::new(&self.input, &self.index, self.axis);
        with_float!(self.dresult, T => along.add_up::<T>(self.dresult.slice()?, self.dinput.slice_mut()?))
    }
}

/// Row update: `out = x`, but `out[ids[i]] = updates[i]`, or, unless `overwrite`, the sum of all updates of that row.
#[register_op(grad = ScatterGrad, primitive)]
pub struct Scatter<V = Var> {
    /// At least one dimension; any dtype, floating point where updates are summed.
    #[input]
    pub x: V,
    /// Row indices, int64 or int32, `[n]` or `[n, 1]`.
    #[input]
    pub ids: V,
    /// `n` rows like those of `x`.
    #[input]
    pub updates: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Whether the last update of a row wins; otherwise updates are summed.
    #[attr(default = true)]
    pub overwrite: bool,
}
impl Infer for Scatter<Meta> {
    fn infer(&mut self) -> Result<()> {
        are_rows(&self.x, &self.ids, &self.updates)?;
        if !self.overwrite {
            self.x.float()?;
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Scatter<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (rows, n) = (self.x.dims()[0], self.ids.numel());
        let width = self.x.dims()[1..].iter().product::<usize>();
        self.out.copy_from(&self.x)?;
        if self.overwrite {
            let bytes = width * self.x.dtype().size();
            let (out, updates) = (self.out.bytes_mut()?, self.updates.bytes()?);
            for i in 0..n {
                let at = place(&self.ids, i, rows)? * bytes;
                out[at..][..bytes].copy_from_slice(&updates[i * bytes..][..bytes]);
            }
            return Ok(());
        }
        with_float!(self.x, T => {
            let (out, updates) = (self.out.slice_mut::<T>()?, self.updates.slice::<T>()?);
            for i in 0..n {
                out[place(&self.ids, i, rows)? * width..][..width].fill(0.0);
            }
            for i in 0..n {
                let out = out[place(&self.ids, i, rows)? * width..].iter_mut();
                out.zip(&updates[i * width..][..width]).for_each(|(out, update)| *out += update);
            }
            Ok(())
        })
    }
}
autobwd::samples!(
    Scatter,
    [
        scatter(uniform([5, 3]), given([2], [3.0, 0.0]).of(DType::I64), uniform([2, 3]), true),
        scatter(uniform([5, 3]), given([4], [3.0, 0.0, 3.0, 3.0]).of(DType::I64), uniform([4, 3]), true),
        scatter(uniform([5, 3]), given([4], [3.0, 0.0, 3.0, 3.0]).of(DType::I64), uniform([4, 3]), false),
        scatter(uniform([3, 2, 4]), integers_below(3, [5, 1]).of(DType::I32), uniform([5, 2, 4]), true),
        scatter(uniform([3, 2, 4]), integers_below(3, [5, 1]), uniform([5, 2, 4]), false),
        scatter(uniform([5]), integers_below(5, [7]), uniform([7]), true),
        scatter(uniform([4, 3]), integers_below(4, [0]), uniform([0, 3]), false),
        scatter(uniform([4, 0]), integers_below(4, [2]), uniform([2, 0]), true),
        scatter(integers_below(9, [4, 3]), integers_below(4, [2]), integers_below(9, [2, 3]), true),
        scatter(uniform([2, 3]), given([1], [2.0]).of(DType::I64), uniform([1, 3]), true)
            .fails("`Ids`: 2 is not within 0..2"),
        scatter(uniform([2, 3]), integers_below(2, [4]), uniform([3, 3]), true)
            .fails("`Updates`: the shape of these rows, [4, 3], is needed"),
        scatter(integers_below(9, [2]), integers_below(2, [1]), integers_below(9, [1]), false)
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// Checks that `updates` are rows of `x`, one for each index.
fn are_rows(x: &Meta, ids: &Meta, updates: &Meta) -> Result<()> {
    ids.require(ids.rank() > 0, || "one dimension is needed".into())?;
    let dims = gathered(x, ids, 0)?;
    updates.same_dtype(x)?;
    updates.require(updates.dims.agrees(&dims), || format!("the shape of these rows, {dims}, is needed"))
}

fn scatter(x: Draw, ids: Draw, updates: Draw, overwrite: bool) -> Scatter<Draw> {
    Scatter { x, ids, updates, out: out(), overwrite }
}

/// `dx = dout`, but 0 in updated rows; `dupdates[i] = dout[ids[i]]`, or 0 if a later update has overwritten it.
#[register_op(grad_of = Scatter, grad = Composed)]
pub struct ScatterGrad<V = Var> {
    pub ids: V,
    #[input(shape_only)]
    pub updates: V,
    pub dout: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dupdates: Option<V>,
    pub overwrite: bool,
}
impl Infer for ScatterGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dout.float()?;
        are_rows(&self.dout, &self.ids, &self.updates)?;
        self.dx.iter_mut().for_each(|dx| dx.like(&self.dout));
        self.dupdates.iter_mut().for_each(|dupdates| dupdates.like(&self.updates));
        Ok(())
    }
}
impl Kernel for ScatterGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (rows, n) = (self.dout.dims()[0], self.ids.numel());
        let width = self.dout.dims()[1..].iter().product::<usize>();
        let (ids, overwrite) = (&self.ids, self.overwrite);
        with_float!(self.dout, T => {
            let dout = self.dout.slice::<T>()?;
            if let Some(dx) = self.dx.slice_mut::<T>()? {
                dx.copy_from_slice(dout);
                for i in 0..n {
                    dx[place(ids, i, rows)? * width..][..width].fill(0.0);
                }
            }
            let Some(dupdates) = self.dupdates.slice_mut::<T>()? else { return Ok(()) };
            cx.scratch(if overwrite { rows } else { 0 }, |last: &mut [i64]| {
                if overwrite {
                    for i in 0..n {
                        last[place(ids, i, rows)?] = i as i64;
                    }
                }
                for i in 0..n {
                    let (row, out) = (place(ids, i, rows)?, &mut dupdates[i * width..][..width]);
                    if overwrite && last[row] != i as i64 {
                        out.fill(0.0);
                    } else {
                        out.copy_from_slice(&dout[row * width..][..width]);
                    }
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        match self.overwrite && self.dupdates.is_some() {
            true => self.dout.dims().first().map_or(0, |rows| rows.saturating_mul(size_of::<i64>())),
            false => 0,
        }
    }
}
impl Composition for ScatterGrad<Expr> {
    fn compose(&mut self) {
        let (ids, dout, overwrite) = (&self.ids, &self.dout, true);
        let zeros = emit(FillZerosLike { x: (&self.updates).into(), out: New }).out;
        let (x, updates) = (dout.into(), (&zeros).into());
        self.dx = Some(emit(Scatter { x, ids: ids.into(), updates, out: New, overwrite }).out);
        let rows = emit(Gather { x: dout.into(), index: ids.into(), out: New, axis: 0 }).out;
        self.dupdates = Some(match self.overwrite {
            true => {
                let condition = last_of_their_rows(dout, ids, &self.updates).into();
                emit(Where { condition, x: rows.into(), y: zeros.into(), out: New }).out
            }
            false => rows,
        });
    }
}

/// Whether each update is the last of its row: scattering the updates' numbers and gathering them again returns the
/// last one.
fn last_of_their_rows(x: &Expr, ids: &Expr, updates: &Expr) -> Expr {
    let filled = |x: &Expr, value: f64| {
        emit(FillAnyLike { x: x.into(), out: New, value, dtype: Some(DType::F64) }).out
    };
    let (flatten, exclusive, reverse) = (true, false, false);
    let ones = filled(ids, 1.0).into();
    let numbers = emit(Cumsum { x: ones, out: New, axis: 0, flatten, exclusive, reverse }).out;
    let zeros = filled(updates, 0.0).into();
    let each = emit(ElementwiseAdd { x: zeros, y: numbers.into(), out: New, axis: 0 }).out;
    let (x, updates) = (filled(x, 0.0).into(), (&each).into());
    let written = emit(Scatter { x, ids: ids.into(), updates, out: New, overwrite: true }).out;
    let found = emit(Gather { x: written.into(), index: ids.into(), out: New, axis: 0 }).out;
    emit(Equal { x: found.into(), y: each.into(), out: New, axis: -1 }).out
}
