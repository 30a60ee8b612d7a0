//! Slicing.

use crate::{
    Buf, Cx, DType, Dim, Dims, Error, Infer, Kernel, Meta, Multilinear, Result, Var, register_op, sample::*,
    with_dtype,
};

use super::{ConstantInts, StridedLayout, constant_ints_of_tensor, few_dims, outer_axis_inner};

/// The starts or ends of an operator.
macro_rules! given_bounds {
    ($op:ident, $attr:ident, $tensor:ident, $list:ident) => {
        constant_ints_of_tensor($op.$tensor.as_ref(), &$op.$list, $op.$attr.iter().map(|n| i64::from(*n)))?
    };
}

/// A slice of a tensor: `out = input[start..end]` along each axis.
///
/// As in NumPy: negative bounds count from the end, bounds out of range are clamped, and a slice that ends before its
/// start is empty.
#[register_op(grad = SliceGrad, infallible, any_dtype, primitive)]
pub struct Slice<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub input: V,
    /// The starts, in place of attribute `starts`: int32 or int64, of one dimension.
    #[input(constant)]
    pub starts_tensor: Option<V>,
    /// The ends, in place of attribute `ends`: int32 or int64, of one dimension.
    #[input(constant)]
    pub ends_tensor: Option<V>,
    /// The starts, in place of attribute `starts`: int32 or int64, one element each.
    #[input(constant)]
    pub starts_tensor_list: Vec<V>,
    /// The ends, in place of attribute `ends`: int32 or int64, one element each.
    #[input(constant)]
    pub ends_tensor_list: Vec<V>,
    /// The slice, without dimensions `decrease_axis`.
    #[output]
    pub out: V,
    /// The dimensions to slice; negative ones count from the end.
    #[attr]
    pub axes: Vec<i32>,
    /// The start, for each of `axes`.
    #[attr]
    pub starts: Vec<i32>,
    /// The end, exclusive, for each of `axes`.
    #[attr]
    pub ends: Vec<i32>,
    /// Dimensions to drop, each of length 1 in the slice.
    #[attr(default = [])]
    pub decrease_axis: Vec<i32>,
}
impl<V> Slice<V> {
    /// All of a tensor, for a struct with some fields given: `Slice { axes, starts, ends, ..Slice::of(input, New) }`.
    pub fn of(input: V, out: V) -> Slice<V> {
        Slice {
            input,
            starts_tensor: None,
            ends_tensor: None,
            starts_tensor_list: vec![],
            ends_tensor_list: vec![],
            out,
            axes: vec![],
            starts: vec![],
            ends: vec![],
            decrease_axis: vec![],
        }
    }
}
impl Infer for Slice<Meta> {
    fn infer(&mut self) -> Result<()> {
        let starts = given_bounds!(self, starts, starts_tensor, starts_tensor_list);
        let ends = given_bounds!(self, ends, ends_tensor, ends_tensor_list);
        let dims = cut(&self.input, &self.axes, [&starts, &ends], &self.decrease_axis)?;
        self.out.set(self.input.dtype, dims);
        Ok(())
    }
}
impl Kernel for Slice<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let starts = given_bounds!(self, starts, starts_tensor, starts_tensor_list);
        let ends = given_bounds!(self, ends, ends_tensor, ends_tensor_list);
        let part = part(&self.input, &self.axes, [&starts, &ends])?;
        with_dtype!(self.input.dtype(), T => {
            part.gather::<T>(cx, self.input.slice()?, self.out.slice_mut()?);
            Ok(())
        })
    }
}
crate::samples!(
    Slice,
    [
        slice(uniform([5]), &[(0, 1, 4)], &[]),
        slice(uniform([4, 5]), &[(0, 1, 3), (1, 0, 2)], &[]),
        slice(uniform([4, 5]), &[(-1, -3, -1)], &[]),
        slice(uniform([2, 4, 3]), &[(1, 2, 3)], &[1]),
        slice(uniform([2, 4, 3]), &[(2, -1, i32::MAX), (0, 0, 1)], &[0, -1]),
        slice(uniform([2, 4, 3]), &[(1, i32::MIN, 2)], &[]),
        slice(uniform([2, 3]), &[(0, 1, 2), (1, 2, 3)], &[0, 1]),
        slice(uniform([2, 3]), &[(1, 2, 1)], &[]),
        slice(uniform([0, 3]), &[(0, 0, 5)], &[]),
        slice(uniform([]), &[], &[]),
        slice(integers_below(9, [4, 3]).of(DType::U8), &[(0, 1, 3)], &[]),
        slice(uniform([2, 3]), &[(2, 0, 1)], &[]).fails("attribute `axes` = 2"),
        slice(uniform([2, 3]), &[(1, 0, 1), (-1, 0, 1)], &[]).fails("attribute `axes`: -1 is given twice"),
        slice(uniform([2, 3]), &[(1, 0, 2)], &[1])
            .fails("attribute `decrease_axis`: dimension 1 of the slice is 2, not 1"),
        Slice { starts_tensor: Some(ints(&[1, 2])), ..slice(uniform([4, 5]), &[(0, 0, 3), (1, 0, 4)], &[]) },
        Slice {
            starts_tensor_list: vec![int(-3)],
            ends_tensor_list: vec![int(-1)],
            ..slice(uniform([4, 5]), &[(1, 0, 0)], &[])
        },
        Slice {
            starts_tensor: Some(ints(&[1])),
            ends_tensor: Some(ints(&[2])),
            starts_tensor_list: vec![int(3)],
            ..slice(uniform([2, 4, 3]), &[(1, -1, -1)], &[1])
        },
        Slice { ends_tensor: Some(ints(&[i64::MAX])), ..slice(uniform([4, 3]), &[(0, 1, 0)], &[]) },
        Slice { ends_tensor: Some(ints(&[1, 2])), ..slice(uniform([4, 3]), &[(0, 1, 0)], &[]) }
            .fails("attribute `ends`: one element for each of `axes` is needed"),
        Slice { starts_tensor_list: vec![ints(&[1, 2])], ..slice(uniform([4, 3]), &[(0, 1, 0)], &[]) }
            .fails("`StartsTensorList`: one element is needed"),
        Slice { starts: vec![], ..slice(uniform([2, 3]), &[(0, 0, 1)], &[]) }
            .fails("attribute `starts`: one element for each of `axes` is needed"),
    ]
);

fn slice(input: Draw, cuts: &[(i32, i32, i32)], decrease_axis: &[i32]) -> Slice<Draw> {
    let axes = cuts.iter().map(|(axis, _, _)| *axis).collect();
    let starts = cuts.iter().map(|(_, start, _)| *start).collect();
    let ends = cuts.iter().map(|(_, _, end)| *end).collect();
    let decrease_axis = decrease_axis.to_vec();
    Slice { axes, starts, ends, decrease_axis, ..Slice::of(input, out()) }
}

fn int(n: i64) -> Draw {
    given([1], [n as f64]).of(DType::I32)
}

fn ints(n: &[i64]) -> Draw {
    integers(n)
}

/// Dimensions of the slice.
fn cut(
    input: &Meta,
    axes: &[i32],
    [starts, ends]: [&ConstantInts; 2],
    decrease_axis: &[i32],
) -> Result<Dims> {
    one_for_each_axis(axes, [("starts", starts), ("ends", ends)])?;
    sliced_dims(input, axes, decrease_axis, |i, n| {
        Ok(starts[i].zip(ends[i]).map(|(start, end)| bounds(n, start, end).1))
    })
}

/// Checks that there is one bound for each axis.
///
/// # Errors
/// There are more or fewer; names the attribute.
pub fn one_for_each_axis<'a>(
    axes: &[i32],
    given: impl IntoIterator<Item = (&'a str, &'a ConstantInts)>,
) -> Result<()> {
    match given.into_iter().find(|(_, given)| given.len() != axes.len()) {
        Some((attr, _)) => Err(Error::attr(attr, "one element for each of `axes` is needed")),
        None => Ok(()),
    }
}

/// The dimensions of a slice, without dimensions `decrease_axis`: `length(i, n)` elements of dimension `axes[i]` of
/// length `n`, `None` while the number is unknown.
///
/// # Errors
/// More than 9 dimensions; an axis that does not exist, or is given twice; a dimension to drop whose length is not 1;
/// the errors of `length`.
pub fn sliced_dims(
    input: &Meta,
    axes: &[i32],
    decrease_axis: &[i32],
    length: impl Fn(usize, usize) -> Result<Option<usize>>,
) -> Result<Dims> {
    few_dims(input)?;
    let (mut dims, mut done) = (input.dims.clone(), 0u32);
    for (i, axis) in axes.iter().enumerate() {
        let at = input.axis("axes", i64::from(*axis))?;
        if done >> at & 1 == 1 {
            return Err(Error::attr("axes", format!("{axis} is given twice")));
        }
        done |= 1 << at;
        let length = dims[at].get().map_or(Ok(None), |n| length(i, n))?;
        dims[at] = length.map_or(Dim::UNKNOWN, Dim::from);
    }
    let mut dropped = 0u32;
    for axis in decrease_axis {
        let at = input.axis("decrease_axis", i64::from(*axis))?;
        if !dims[at].agrees(1.into()) {
            let text = format!("dimension {axis} of the slice is {}, not 1", dims[at]);
            return Err(Error::attr("decrease_axis", text));
        }
        dropped |= 1 << at;
    }
    Ok(dims.iter().enumerate().filter(|(axis, _)| dropped >> axis & 1 == 0).map(|(_, n)| *n).collect())
}

/// The memory layout of a slice: `range(i, n)` is the start, the length and the stride in dimension `axes[i]` of length
/// `n`.
///
/// # Errors
/// The errors of `range`.
pub fn sliced_layout(
    whole: &Buf<'_>,
    axes: &[i32],
    range: impl Fn(usize, usize) -> Result<(usize, usize, isize)>,
) -> Result<StridedLayout> {
    let mut loops = StridedLayout::default();
    for axis in 0..whole.dims().len() {
        let (_, n, inner) = outer_axis_inner(whole.dims(), axis);
        let cut = axes.iter().position(|cut| whole.axis(i64::from(*cut)) == axis);
        let (start, n, stride) = cut.map_or(Ok((0, n, 1)), |cut| range(cut, n))?;
        loops.skip((start * inner) as isize);
        loops.push(n, stride.saturating_mul(inner as isize));
    }
    Ok(loops)
}

/// Start and length of a slice of a dimension of length `n`.
fn bounds(n: usize, start: i64, end: i64) -> (usize, usize) {
    let place = |bound: i64| {
        let from_front = bound + if bound < 0 { n as i64 } else { 0 };
        from_front.clamp(0, n as i64) as usize
    };
    let (start, end) = (place(start), place(end));
    (start, end.saturating_sub(start))
}

/// The memory layout of the slice. Bounds are known when a kernel runs.
fn part(whole: &Buf<'_>, axes: &[i32], [starts, ends]: [&ConstantInts; 2]) -> Result<StridedLayout> {
    sliced_layout(whole, axes, |i, n| {
        let (start, n) = bounds(n, starts[i].unwrap_or(0), ends[i].unwrap_or(0));
        Ok((start, n, 1))
    })
}

/// `dinput = dout` in the slice, 0 elsewhere.
#[register_op(grad_of = Slice, grad = Multilinear, inferred, infallible, any_dtype, primitive)]
pub struct SliceGrad<V = Var> {
    #[input(shape_only)]
    pub input: V,
    #[input(constant)]
    pub starts_tensor: Option<V>,
    #[input(constant)]
    pub ends_tensor: Option<V>,
    #[input(constant)]
    pub starts_tensor_list: Vec<V>,
    #[input(constant)]
    pub ends_tensor_list: Vec<V>,
    pub dout: V,
    #[output]
    pub dinput: V,
    pub axes: Vec<i32>,
    pub starts: Vec<i32>,
    pub ends: Vec<i32>,
    pub decrease_axis: Vec<i32>,
}
impl Kernel for SliceGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let starts = given_bounds!(self, starts, starts_tensor, starts_tensor_list);
        let ends = given_bounds!(self, ends, ends_tensor, ends_tensor_list);
        let part = part(&self.input, &self.axes, [&starts, &ends])?;
        self.dinput.bytes_mut()?.fill(0);
        with_dtype!(self.dout.dtype(), T => part.scatter::<T>(self.dout.slice()?, self.dinput.slice_mut()?));
        Ok(())
    }
}
