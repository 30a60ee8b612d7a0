//! `gather_nd`, `take_along_axis` and `scatter`: reading and writing elements and rows by index.

use autobwd::{
    Buf, Cx, DType, Dims, GradCx, GradRule, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::{with_dtype, with_float},
    register_op,
    tensor::{Dim, Element},
};

use crate::{
    compare::Equal,
    cumsum::Cumsum,
    elementwise::ElementwiseAdd,
    fill::{FillAnyLike, FillZerosLike},
    gather::{Gather, are_numbers, gathered, place},
    kernel_helpers::{KernelFloat, PART, lanes_along, pieces},
    logic::Where,
};

/// Slices of a tensor by multi-dimensional indices: `out[i, ..] = x[index[i], ..]`.
#[register_op(grad = GatherNdGrad)]
pub struct GatherNd<V = Var> {
    /// At least one dimension, any dtype.
    #[input]
    pub x: V,
    /// Indices, int64 or int32; the size of the last dimension is the number of leading dimensions of `x` that they
    /// index.
    #[input]
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

/// Elements by their positions along an axis: `result[.., i, ..] = input[.., index[.., i, ..], ..]`.
#[register_op(grad = TakeAlongAxisGrad)]
pub struct TakeAlongAxis<V = Var> {
    /// At least one dimension, any dtype.
    #[input]
    pub input: V,
    /// Positions, int64 or int32, in the shape of `input` except for the axis.
    #[input]
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
#[register_op(grad_of = TakeAlongAxis, grad = Multilinear, inferred)]
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
#[register_op(grad = ScatterGrad)]
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
        let (x, ids, updates) = (&self.x, &self.ids, &self.updates);
        ids.require(ids.rank() > 0, || "one dimension is needed".into())?;
        let dims = gathered(x, ids, 0)?;
        updates.same_dtype(x)?;
        updates
            .require(updates.dims.agrees(&dims), || format!("the shape of these rows, {dims}, is needed"))?;
        if !self.overwrite {
            x.float()?;
        }
        self.out.like(x);
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

fn scatter(x: Draw, ids: Draw, updates: Draw, overwrite: bool) -> Scatter<Draw> {
    Scatter { x, ids, updates, out: out(), overwrite }
}

/// `dx = dout`, but 0 in updated rows; `dupdates[i] = dout[ids[i]]`, or 0 if a later update has overwritten it.
#[derive(Debug)]
pub struct ScatterGrad;
impl GradRule<Scatter> for ScatterGrad {
    fn emit(fwd: &Scatter, g: &mut GradCx<'_>) {
        let Scatter { x, ids, updates, overwrite, .. } = *fwd;
        let (dout, zeros) = (g.grad(fwd.out), g.fresh("zeros"));
        g.push(FillZerosLike { x: updates, out: zeros });
        if let Some(dx) = g.wanted(x) {
            g.push(Scatter { x: dout, ids, updates: zeros, out: dx, overwrite: true });
        }
        match g.wanted(updates) {
            Some(dupdates) if !overwrite => g.push(Gather { x: dout, index: ids, out: dupdates, axis: 0 }),
            Some(dupdates) => {
                let (condition, rows) = (last_of_their_rows(g, x, ids, updates), g.fresh("rows"));
                g.push(Gather { x: dout, index: ids, out: rows, axis: 0 });
                g.push(Where { condition, x: rows, y: zeros, out: dupdates });
            }
            None => {}
        }
    }
}

/// Whether each update is the last of its row: scattering the updates' numbers and gathering them again returns the
/// last one.
fn last_of_their_rows(g: &mut GradCx<'_>, x: Var, ids: Var, updates: Var) -> Var {
    let mut filled = |x: Var, value: f64| {
        let out = g.fresh("filled");
        g.push(FillAnyLike { x, out, value, dtype: Some(DType::F64) });
        out
    };
    let (ones, nowhere, zeros) = (filled(ids, 1.0), filled(x, 0.0), filled(updates, 0.0));
    let [numbers, each, written, found, last] =
        ["numbers", "numbers", "written", "found", "last"].map(|what| g.fresh(what));
    g.push(Cumsum { x: ones, out: numbers, axis: 0, flatten: true, exclusive: false, reverse: false });
    g.push(ElementwiseAdd { x: zeros, y: numbers, out: each, axis: 0 });
    g.push(Scatter { x: nowhere, ids, updates: each, out: written, overwrite: true });
    g.push(Gather { x: written, index: ids, out: found, axis: 0 });
    g.push(Equal { x: found, y: each, out: last, axis: -1 });
    last
}
