//! Slicing with strides.

use autobwd::{
    Buf, Cx, Dims, Error, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::with_dtype,
    operators::{
        ConstantInts, StridedLayout, constant_ints_of_tensor, one_for_each_axis, sliced_dims, sliced_layout,
    },
    register_op,
};

/// The starts, ends or strides of an operator.
macro_rules! given_bounds {
    ($op:ident, $attr:ident, $tensor:ident, $list:ident) => {
        constant_ints_of_tensor($op.$tensor.as_ref(), &$op.$list, $op.$attr.iter().map(|n| i64::from(*n)))?
    };
}

/// Starts, ends and strides of an operator.
macro_rules! given_ranges {
    ($op:ident) => {
        [
            given_bounds!($op, starts, starts_tensor, starts_tensor_list),
            given_bounds!($op, ends, ends_tensor, ends_tensor_list),
            given_bounds!($op, strides, strides_tensor, strides_tensor_list),
        ]
    };
}

/// A slice of a tensor with strides: `out[i] = input[start + i * stride]` up to the end, exclusive, along each axis.
///
/// Negative bounds count from the end, and bounds out of range are clamped. With a negative stride, the end −1 means
/// below the first element, as `None` does in Python. A range beyond the tensor is empty; the reference reads
/// outside of the tensor there.
#[register_op(grad = StridedSliceGrad, infallible, any_dtype, primitive)]
pub struct StridedSlice<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub input: V,
    /// The starts, in place of attribute `starts`: int32 or int64, of one dimension.
    #[input(constant)]
    pub starts_tensor: Option<V>,
    /// The ends, in place of attribute `ends`: int32 or int64, of one dimension.
    #[input(constant)]
    pub ends_tensor: Option<V>,
    /// The strides, in place of attribute `strides`: int32 or int64, of one dimension.
    #[input(constant)]
    pub strides_tensor: Option<V>,
    /// The starts, in place of attribute `starts`: int32 or int64, one element each.
    #[input(constant)]
    pub starts_tensor_list: Vec<V>,
    /// The ends, in place of attribute `ends`: int32 or int64, one element each.
    #[input(constant)]
    pub ends_tensor_list: Vec<V>,
    /// The strides, in place of attribute `strides`: int32 or int64, one element each.
    #[input(constant)]
    pub strides_tensor_list: Vec<V>,
    /// The slice, without dimensions `decrease_axis`.
    #[output]
    pub out: V,
    /// The dimensions to slice; negative ones count from the end.
    #[attr]
    pub axes: Vec<i32>,
    /// The start, for each of `axes`.
    #[attr(default = [])]
    pub starts: Vec<i32>,
    /// The end, exclusive, for each of `axes`.
    #[attr(default = [])]
    pub ends: Vec<i32>,
    /// The stride, not 0, for each of `axes`.
    #[attr(default = [])]
    pub strides: Vec<i32>,
    /// Dimensions to drop, each of length 1 in the slice.
    #[attr(default = [])]
    pub decrease_axis: Vec<i32>,
}
impl<V> StridedSlice<V> {
    /// All of a tensor, for a struct with some fields given, as [`Slice::of`](super::Slice::of).
    pub fn of(input: V, out: V) -> StridedSlice<V> {
        StridedSlice {
            input,
            starts_tensor: None,
            ends_tensor: None,
            strides_tensor: None,
            starts_tensor_list: vec![],
            ends_tensor_list: vec![],
            strides_tensor_list: vec![],
            out,
            axes: vec![],
            starts: vec![],
            ends: vec![],
            strides: vec![],
            decrease_axis: vec![],
        }
    }
}
impl Infer for StridedSlice<Meta> {
    fn infer(&mut self) -> Result<()> {
        let ranges = given_ranges!(self);
        let dims = cut(&self.input, &self.axes, &ranges, &self.decrease_axis)?;
        self.out.set(self.input.dtype, dims);
        Ok(())
    }
}
impl Kernel for StridedSlice<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let part = layout(&self.input, &self.axes, &given_ranges!(self))?;
        with_dtype!(self.input.dtype(), T => {
            part.gather::<T>(cx, self.input.slice()?, self.out.slice_mut()?);
            Ok(())
        })
    }
}
autobwd::samples!(
    StridedSlice,
    [
        strided(uniform([7]), &[(0, 1, 6, 2)]),
        strided(uniform([4, 5]), &[(0, 3, 0, -2), (1, 0, 5, 3)]),
        strided(uniform([4, 5]), &[(-1, -1, -1, -1)]),
        strided(uniform([3, 6]), &[(1, -2, -6, -3)]),
        strided(uniform([3, 6]), &[(1, 100, -100, -4)]),
        strided(uniform([2, 6]), &[(1, -100, 100, 5)]),
        strided(uniform([2, 6]), &[(1, 2, 2, 1)]),
        strided(uniform([0, 6]), &[(1, 0, 6, 2)]),
        strided(integers_below(9, [4, 3]), &[(0, 3, -1, -1)]),
        StridedSlice { decrease_axis: vec![1], ..strided(uniform([2, 4, 3]), &[(1, 2, 3, 2)]) },
        StridedSlice {
            starts_tensor: Some(integers(&[3])),
            ends_tensor: Some(integers(&[-1])),
            strides_tensor: Some(integers(&[-2]).of(autobwd::DType::I32)),
            ..strided(uniform([4, 2]), &[(0, 0, 1, 1)])
        },
        StridedSlice {
            starts_tensor_list: vec![integers(&[1])],
            ends_tensor_list: vec![integers(&[4]).of(autobwd::DType::I32)],
            strides_tensor_list: vec![integers(&[2])],
            ..strided(uniform([5, 2]), &[(0, 0, 1, 1)])
        },
        strided(uniform([4]), &[(0, 0, 4, 0)]).fails("attribute `strides`: 0 is not a stride"),
        strided(uniform([4]), &[(0, 3, 1, 1)])
            .fails("attribute `ends`: from 3 to 1 of 4 elements with stride 1 is no range"),
        strided(uniform([4]), &[(0, 1, 3, -1)])
            .fails("attribute `ends`: from 1 to 3 of 4 elements with stride -1 is no range"),
        strided(uniform([2, 3]), &[(2, 0, 1, 1)]).fails("attribute `axes` = 2"),
        strided(uniform([2, 3]), &[(1, 0, 1, 1), (-1, 0, 1, 1)]).fails("attribute `axes`: -1 is given twice"),
        StridedSlice { decrease_axis: vec![1], ..strided(uniform([2, 3]), &[(1, 0, 3, 2)]) }
            .fails("attribute `decrease_axis`: dimension 1 of the slice is 2, not 1"),
        StridedSlice { ends: vec![], ..strided(uniform([2, 3]), &[(1, 0, 3, 2)]) }
            .fails("attribute `ends`: one element for each of `axes` is needed"),
    ]
);

fn strided(input: Draw, cuts: &[(i32, i32, i32, i32)]) -> StridedSlice<Draw> {
    StridedSlice {
        axes: cuts.iter().map(|cut| cut.0).collect(),
        starts: cuts.iter().map(|cut| cut.1).collect(),
        ends: cuts.iter().map(|cut| cut.2).collect(),
        strides: cuts.iter().map(|cut| cut.3).collect(),
        ..StridedSlice::of(input, out())
    }
}

/// Dimensions of the slice.
fn cut(input: &Meta, axes: &[i32], ranges: &[ConstantInts; 3], decrease_axis: &[i32]) -> Result<Dims> {
    one_for_each_axis(axes, ["starts", "ends", "strides"].into_iter().zip(ranges))?;
    let [starts, ends, strides] = ranges;
    sliced_dims(input, axes, decrease_axis, |i, n| match (starts[i], ends[i], strides[i]) {
        (Some(start), Some(end), Some(stride)) => Ok(Some(range(n, start, end, stride)?.1)),
        _ => Ok(None),
    })
}

/// The first element and the number of elements in a dimension of length `n`.
fn range(n: usize, start: i64, end: i64, stride: i64) -> Result<(usize, usize)> {
    if stride == 0 {
        return Err(Error::attr("strides", "0 is not a stride"));
    }
    let length = n as i64;
    let from_front = |bound: i64| if bound < 0 { bound.saturating_add(length).max(0) } else { bound };
    let first = from_front(start);
    let last = if stride < 0 && end == -1 { -1 } else { from_front(end) };
    if (stride > 0 && first > last) || (stride < 0 && first < last) {
        let text = format!("from {start} to {end} of {n} elements with stride {stride} is no range");
        return Err(Error::attr("ends", text));
    }
    let (first, span) = match stride > 0 {
        true => (first.min(length), last.min(length) - first.min(length)),
        false => (first.min(length - 1), first.min(length - 1) - last.min(length - 1)),
    };
    let count = span.unsigned_abs().div_ceil(stride.unsigned_abs()) as usize;
    Ok((if count == 0 { 0 } else { first as usize }, count))
}

/// The memory layout of the slice. Bounds are known when a kernel runs.
fn layout(
    whole: &Buf<'_>,
    axes: &[i32],
    [starts, ends, strides]: &[ConstantInts; 3],
) -> Result<StridedLayout> {
    sliced_layout(whole, axes, |i, n| {
        let stride = strides[i].unwrap_or(1);
        let (start, n) = range(n, starts[i].unwrap_or(0), ends[i].unwrap_or(0), stride)?;
        Ok((start, n, stride as isize))
    })
}

/// `dinput = dout` in the slice, 0 elsewhere.
#[register_op(grad_of = StridedSlice, grad = Multilinear, inferred, infallible, any_dtype, primitive)]
pub struct StridedSliceGrad<V = Var> {
    #[input(shape_only)]
    pub input: V,
    #[input(constant)]
    pub starts_tensor: Option<V>,
    #[input(constant)]
    pub ends_tensor: Option<V>,
    #[input(constant)]
    pub strides_tensor: Option<V>,
    #[input(constant)]
    pub starts_tensor_list: Vec<V>,
    #[input(constant)]
    pub ends_tensor_list: Vec<V>,
    #[input(constant)]
    pub strides_tensor_list: Vec<V>,
    pub dout: V,
    #[output]
    pub dinput: V,
    pub axes: Vec<i32>,
    pub starts: Vec<i32>,
    pub ends: Vec<i32>,
    pub strides: Vec<i32>,
    pub decrease_axis: Vec<i32>,
}
impl Kernel for StridedSliceGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let part = layout(&self.input, &self.axes, &given_ranges!(self))?;
        self.dinput.bytes_mut()?.fill(0);
        with_dtype!(self.dout.dtype(), T => part.scatter::<T>(self.dout.slice()?, self.dinput.slice_mut()?));
        Ok(())
    }
}
