//! Slicing.

use crate::{
    Buf, Cx, DType, Dim, Dims, Error, Infer, Kernel, Meta, Multilinear, Result, Var, register_op, sample::*,
    with_dtype,
};

use super::{StridedLayout, few_dims, outer_axis_inner};

/// A slice of a tensor: `out = input[start..end]` along each axis.
///
/// As in NumPy: negative bounds count from the end, bounds out of range are clamped, and a slice that ends before its
/// start is empty.
#[register_op(grad = SliceGrad)]
pub struct Slice<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub input: V,
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
impl Infer for Slice<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = cut(&self.input, [&self.axes, &self.starts, &self.ends], &self.decrease_axis)?;
        self.out.set(self.input.dtype, dims);
        Ok(())
    }
}
impl Kernel for Slice<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_dtype!(self.input.dtype(), T => {
            let part = part(&self.input, [&self.axes, &self.starts, &self.ends]);
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
        Slice {
            input: uniform([2, 3]),
            out: out(),
            axes: vec![0],
            starts: vec![],
            ends: vec![1],
            decrease_axis: vec![]
        }
        .fails("attribute `starts`: one element for each of `axes` is needed"),
    ]
);

fn slice(input: Draw, cuts: &[(i32, i32, i32)], decrease_axis: &[i32]) -> Slice<Draw> {
    let axes = cuts.iter().map(|(axis, _, _)| *axis).collect();
    let starts = cuts.iter().map(|(_, start, _)| *start).collect();
    let ends = cuts.iter().map(|(_, _, end)| *end).collect();
    Slice { input, out: out(), axes, starts, ends, decrease_axis: decrease_axis.to_vec() }
}

/// Dimensions of the slice.
fn cut(input: &Meta, [axes, starts, ends]: [&[i32]; 3], decrease_axis: &[i32]) -> Result<Dims> {
    few_dims(input)?;
    for (attr, bounds) in [("starts", starts), ("ends", ends)] {
        if bounds.len() != axes.len() {
            return Err(Error::attr(attr, "one element for each of `axes` is needed"));
        }
    }
    let (mut dims, mut done) = (input.dims.clone(), 0u32);
    for (axis, (start, end)) in axes.iter().zip(starts.iter().zip(ends)) {
        let at = input.axis("axes", i64::from(*axis))?;
        if done >> at & 1 == 1 {
            return Err(Error::attr("axes", format!("{axis} is given twice")));
        }
        done |= 1 << at;
        dims[at] = dims[at].get().map_or(Dim::UNKNOWN, |n| bounds(n, *start, *end).1.into());
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

/// Start and length of a slice of a dimension of length `n`.
fn bounds(n: usize, start: i32, end: i32) -> (usize, usize) {
    let place = |bound: i32| {
        let from_front = i64::from(bound) + if bound < 0 { n as i64 } else { 0 };
        from_front.clamp(0, n as i64) as usize
    };
    let (start, end) = (place(start), place(end));
    (start, end.saturating_sub(start))
}

/// The memory layout of the slice.
fn part(whole: &Buf<'_>, [axes, starts, ends]: [&[i32]; 3]) -> StridedLayout {
    let mut loops = StridedLayout::default();
    for axis in 0..whole.dims().len() {
        let (_, n, stride) = outer_axis_inner(whole.dims(), axis);
        let cut = axes.iter().position(|cut| whole.axis(i64::from(*cut)) == axis);
        let (start, n) = cut.map_or((0, n), |cut| bounds(n, starts[cut], ends[cut]));
        loops.skip((start * stride) as isize);
        loops.push(n, stride as isize);
    }
    loops
}

/// `dinput = dout` in the slice, 0 elsewhere.
#[register_op(grad_of = Slice, grad = Multilinear, inferred)]
pub struct SliceGrad<V = Var> {
    #[input(shape_only)]
    pub input: V,
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
        let part = part(&self.input, [&self.axes, &self.starts, &self.ends]);
        self.dinput.bytes_mut()?.fill(0);
        with_dtype!(self.dout.dtype(), T => part.scatter::<T>(self.dout.slice()?, self.dinput.slice_mut()?));
        Ok(())
    }
}
