//! `gather`, `one_hot_v2`, and kernels that read rows by index.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    ZeroGrad,
    check::*,
    emit,
    op::{with_dtype, with_float},
    operators::{PARTS, add_up_rows},
    register_op,
    tensor::Element,
};

use crate::{
    Math,
    index::ScatterNdAdd,
    kernel_helpers::{AnyNumber, ConvertElement, KernelFloat, PART, outer_axis_inner, pieces},
    math::{all_sizes, filled, positions},
};

/// One-hot encoding: `out[.., j] = 1` where `x = j`, else 0.
#[register_op(grad = ZeroGrad, any_dtype)]
pub struct OneHotV2<V = Var> {
    /// Indices from 0 to `depth`, exclusive, int64 or int32.
    #[input]
    pub x: V,
    /// `x` with `depth` as additional last dimension.
    #[output]
    pub out: V,
    /// Number of classes.
    #[attr(default = -1)]
    pub depth: i32,
    /// Element type of the output.
    #[attr(default = DType::F32)]
    pub dtype: DType,
    /// An index out of range gives a row of zeros instead of an error.
    #[attr(default = false)]
    pub allow_out_of_range: bool,
}
impl Infer for OneHotV2<Meta> {
    fn infer(&mut self) -> Result<()> {
        are_numbers(&self.x)?;
        let depth = usize::try_from(self.depth)
            .map_err(|_| Error::attr("depth", format!("{} is not a dimension", self.depth)))?;
        let mut dims = self.x.dims.clone();
        dims.push(depth);
        self.out.set(self.dtype, dims);
        Ok(())
    }
}
impl Kernel for OneHotV2<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let depth = self.depth as usize;
        self.out.bytes_mut()?.fill(0);
        for i in 0..self.x.numel() {
            // Creating an error would allocate.
            if self.allow_out_of_range && as_place(number(&self.x, i)?, depth).is_none() {
                continue;
            }
            let place = place(&self.x, i, depth)?;
            with_dtype!(self.dtype, T => {
                self.out.slice_mut()?[i * depth + place] = T::narrow(AnyNumber::Int(1));
            });
        }
        Ok(())
    }
}
impl Composition for OneHotV2<Expr> {
    fn compose(&mut self) {
        let classes = positions(self.x.builder(), &i64::from(self.depth).into());
        self.out = self.x.unsqueeze(&[-1]).equal(&classes.cast(self.x.dtype())).cast(self.dtype);
    }
}
autobwd::samples!(
    OneHotV2,
    [
        one_hot(integers_below(5, [2, 3]), 5, DType::F32, false),
        one_hot(integers_below(4, [6]).of(DType::I32), 4, DType::F64, false),
        one_hot(given([3], [-1.0, 1.0, 2.0]).of(DType::I64), 2, DType::I64, true),
        one_hot(integers_below(3, []), 3, DType::Bool, false),
        one_hot(integers_below(3, [0, 2]), 3, DType::F32, false),
        one_hot(given([2], [0.0, 3.0]).of(DType::I64), 3, DType::F32, false)
            .fails("`X`: 3 is not within 0..3"),
        one_hot(uniform([2]), 3, DType::F32, false).fails("`X`: int64 or int32 is needed"),
        one_hot(integers_below(3, [2]), -1, DType::F32, false)
            .fails("attribute `depth`: -1 is not a dimension"),
    ]
);

fn one_hot(x: Draw, depth: i32, dtype: DType, allow_out_of_range: bool) -> OneHotV2<Draw> {
    OneHotV2 { x, out: out(), depth, dtype, allow_out_of_range }
}

pub(crate) fn are_numbers(x: &Meta) -> Result<()> {
    if matches!(x.dtype, DType::I32 | DType::I64) { Ok(()) } else { Err(x.wrong("int64 or int32 is needed")) }
}

/// Checks that the index at `i` is below `n`.
pub(crate) fn place(numbers: &Buf<'_>, i: usize, n: usize) -> Result<usize> {
    let number = number(numbers, i)?;
    let outside = || Error::data(format!("`{}`: {number} is not within 0..{n}", numbers.slot()));
    as_place(number, n).ok_or_else(outside)
}

fn as_place(number: i64, n: usize) -> Option<usize> {
    usize::try_from(number).ok().filter(|place| *place < n)
}

/// The index at `i`.
pub(crate) fn number(numbers: &Buf<'_>, i: usize) -> Result<i64> {
    match numbers.dtype() {
        DType::I32 => Ok(numbers.slice::<i32>()?[i].into()),
        _ => Ok(numbers.slice::<i64>()?[i]),
    }
}

/// Row indices into each of several blocks of rows.
pub(crate) struct Pick<'a> {
    pub(crate) numbers: &'a Buf<'a>,
    /// The padding index, which selects no row.
    pub(crate) padding: Option<i64>,
    /// Rows of a block.
    pub(crate) n: usize,
    /// Elements of a row.
    pub(crate) width: usize,
}

impl<'a> Pick<'a> {
    /// Slices of a tensor along an axis.
    pub(crate) fn along(x: &Buf<'_>, numbers: &'a Buf<'a>, axis: i32) -> Pick<'a> {
        let (_, n, width) = outer_axis_inner(x.dims(), x.axis(axis.into()));
        Pick { numbers, padding: None, n, width }
    }

    /// The row at `i`; `None` for the padding index.
    fn row(&self, i: usize) -> Result<Option<usize>> {
        if self.padding.is_some() && self.padding == Some(number(self.numbers, i)?) {
            return Ok(None);
        }
        place(self.numbers, i, self.n).map(Some)
    }

    fn check(&self) -> Result<()> {
        (0..self.numbers.numel()).try_for_each(|i| self.row(i).map(drop))
    }

    /// `out` = the rows of `x`, with zeros for the padding index.
    pub(crate) fn rows<T: Element>(&self, cx: &Cx, x: &[T], out: &mut [T]) -> Result<()> {
        self.check()?;
        let picked = self.numbers.numel();
        cx.chunks_mut(out, PART, |part, out| {
            pieces(out, part * PART, self.width, usize::MAX, |row, column, out| {
                match self.row(row % picked) {
                    Ok(Some(place)) => {
                        let at = (row / picked * self.n + place) * self.width + column;
                        out.copy_from_slice(&x[at..][..out.len()]);
                    }
                    // The check above leaves the padding index only.
                    _ => out.fill(T::default()),
                }
            });
        });
        Ok(())
    }

    /// Adds each row of `dout` to the row of `dx` with its index.
    pub(crate) fn add_up<T: KernelFloat>(&self, cx: &Cx, dout: &[T], dx: &mut [T]) -> Result<()> {
        self.check()?;
        let (width, picked) = (self.width.max(1), self.numbers.numel());
        let rows = PART.max(dx.len() / PARTS).div_ceil(width);
        cx.chunks_mut(dx, rows * width, |part, dx| {
            dx.fill(T::ZERO);
            let (first, end) = (part * rows, part * rows + dx.len() / width);
            for block in first / self.n..=(end - 1) / self.n {
                for i in 0..picked {
                    let row = self.row(i).ok().flatten().map(|place| block * self.n + place);
                    if let Some(row) = row.filter(|row| (first..end).contains(row)) {
                        let dx = dx[(row - first) * width..][..width].iter_mut();
                        dx.zip(&dout[(block * picked + i) * width..]).for_each(|(dx, dout)| *dx += *dout);
                    }
                }
            }
        });
        Ok(())
    }

    /// As `add_up`, of one block, into a sparse gradient.
    pub(crate) fn add_up_rows<T: KernelFloat>(&self, cx: &Cx, dout: &[T], dx: &mut Buf<'_>) -> Result<()> {
        self.check()?;
        add_up_rows(cx, dx, || {
            let term = |i: usize| Some((self.row(i).ok().flatten()?, &dout[i * self.width..][..self.width]));
            (0..self.numbers.numel()).filter_map(term)
        })
    }
}

/// Slices of a tensor by their indices along an axis: `out[.., i, ..] = x[.., index[i], ..]`.
#[register_op(grad = GatherGrad, any_dtype, primitive)]
pub struct Gather<V = Var> {
    /// At least one dimension, any dtype.
    #[input]
    pub x: V,
    /// Indices, int64 or int32, `[n]` or `[n, 1]`; or a single one, `[]`.
    #[input(checked)]
    pub index: V,
    /// `x` with `n` in place of dimension `axis`, which a single index drops.
    #[output]
    pub out: V,
    /// The dimension; negative counts from the end.
    #[attr(default = 0)]
    pub axis: i32,
}
impl Infer for Gather<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, gathered(&self.x, &self.index, self.axis)?);
        Ok(())
    }
}
impl Kernel for Gather<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_dtype!(self.x.dtype(), T => {
            let pick = Pick::along(&self.x, &self.index, self.axis);
            pick.rows::<T>(cx, self.x.slice()?, self.out.slice_mut()?)
        })
    }
}
autobwd::samples!(
    Gather,
    [
        Gather { x: uniform([4, 3]), index: integers_below(4, [5]), out: out(), axis: 0 },
        Gather { x: uniform([2, 3, 4]), index: integers_below(3, [5, 1]), out: out(), axis: 1 },
        Gather { x: uniform([2, 3, 4]), index: integers_below(4, [6]).of(DType::I32), out: out(), axis: -1 },
        Gather { x: uniform([2, 3]), index: integers_below(3, []), out: out(), axis: 1 },
        Gather { x: uniform([2, 3]), index: integers_below(2, [0]), out: out(), axis: 0 },
        Gather { x: uniform([0, 3]), index: integers_below(3, [2]), out: out(), axis: 1 },
        Gather { x: integers_below(9, [5]), index: integers_below(5, [3]), out: out(), axis: 0 },
        Gather { x: uniform([2, 3]), index: given([1], [2.0]).of(DType::I64), out: out(), axis: 0 }
            .fails("`Index`: 2 is not within 0..2"),
        Gather { x: uniform([2, 3]), index: integers_below(2, [3, 2]), out: out(), axis: 0 }
            .fails("`Index`: one dimension is needed"),
        Gather { x: uniform([]), index: integers_below(2, [3]), out: out(), axis: 0 }
            .fails("attribute `axis` = 0"),
    ]
);

pub(crate) fn gathered(x: &Meta, index: &Meta, axis: i32) -> Result<Dims> {
    are_numbers(index)?;
    let axis = x.axis("axis", axis.into())?;
    let n = match &*index.dims {
        [] => &[][..],
        [n] => std::slice::from_ref(n),
        [n, one] if one.agrees(1.into()) => std::slice::from_ref(n),
        _ => return Err(index.wrong("one dimension is needed")),
    };
    Ok(x.dims[..axis].iter().chain(n).chain(&x.dims[axis + 1..]).copied().collect())
}

/// `dx[.., index[i], ..] += dout[.., i, ..]`.
#[register_op(grad_of = Gather, grad = Multilinear, inferred)]
pub struct GatherGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub index: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub axis: i32,
}
impl Kernel for GatherGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let pick = Pick::along(&self.x, &self.index, self.axis);
            pick.add_up::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?)
        })
    }
}
impl Composition for GatherGrad<Expr> {
    fn compose(&mut self) {
        let (mut dims, builder) = (all_sizes(&self.x), self.x.builder());
        let rank = dims.len() as i32;
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
        let dout = match self.index.dims().len() {
            0 => self.dout.unsqueeze(&[axis]),
            _ => self.dout.clone(),
        };
        // Rows are along the first axis.
        let others = || (0..rank).filter(|other| *other != axis);
        let to_front: Vec<i32> = [axis].into_iter().chain(others()).collect();
        let back: Vec<i32> = (1..=axis).chain([0]).chain(axis + 1..rank).collect();
        dims[..=axis as usize].rotate_right(1);
        let x = filled(builder, dout.dtype(), "0", &dims).into();
        let (index, updates) = (self.index.reshape(&[-1, 1]).into(), dout.transpose(&to_front).into());
        self.dx = emit(ScatterNdAdd { x, index, updates, out: New }).out.transpose(&back);
    }
}
