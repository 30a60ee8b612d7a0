//! Parts of tensors: concatenation, splitting, slices.

use autobwd::operators::{Concat, ConcatGrad, Slice, SliceGrad};
use autobwd_ops::shape::{Split, StridedSlice, StridedSliceGrad};

use super::prelude::*;

rules!(Concat, ConcatGrad, Slice, SliceGrad, Split, StridedSlice, StridedSliceGrad);

/// The axis: an attribute, or a known number in its place.
fn axis_of(x: &Hlo, tensor: &Option<Hlo>, axis: i32) -> usize {
    let given = tensor.as_ref().and_then(Hlo::known).and_then(<[f64]>::first);
    x.axis(given.map_or(i64::from(axis), |axis| *axis as i64))
}

/// Parts along an axis, with the lengths of these.
fn parts<'h>(x: &Hlo, axis: usize, like: impl Iterator<Item = &'h Hlo>) -> Vec<Hlo> {
    let mut start = 0;
    let mut part = |length: usize| {
        start += length;
        x.slice_axis(axis, start - length, start)
    };
    like.map(|like| part(like.dims().get(axis).copied().unwrap_or(0))).collect()
}

impl Rule<Hlo> for Concat<Hlo> {
    fn apply(&mut self) {
        let axis = axis_of(&self.out, &self.axis_tensor, self.axis);
        if let Some(out) = Hlo::concat(&self.x, axis) {
            self.out = out;
        }
    }
}
impl Rule<Hlo> for ConcatGrad<Hlo> {
    fn apply(&mut self) {
        let axis = axis_of(&self.dout, &self.axis_tensor, self.axis);
        for (dx, part) in self.dx.iter_mut().zip(parts(&self.dout, axis, self.x.iter())) {
            dx.iter_mut().for_each(|dx| *dx = part.clone());
        }
    }
}

impl Rule<Hlo> for Split<Hlo> {
    fn apply(&mut self) {
        let axis = axis_of(&self.x, &self.axis_tensor, self.axis);
        self.out = parts(&self.x, axis, self.out.iter());
    }
}

/// A range of positions along an axis: the lowest, one past the highest, the distance, and whether the highest is first.
#[derive(Clone, Copy)]
struct AxisRange {
    start: usize,
    end: usize,
    step: usize,
    reversed: bool,
}

impl AxisRange {
    fn count(self) -> usize {
        (self.end - self.start).div_ceil(self.step)
    }
}

/// The ranges of a slice, by axis.
struct Ranges(Vec<AxisRange>);

/// The numbers of an attribute, or known ones in their place.
fn numbers(tensor: &Option<Hlo>, list: &[Hlo], attr: &[i32]) -> Vec<i64> {
    let first = |value: &Hlo| value.known().and_then(<[f64]>::first).map_or(0, |x| *x as i64);
    match (tensor.as_ref().and_then(Hlo::known), list) {
        (Some(known), _) => known.iter().map(|x| *x as i64).collect(),
        (None, []) => attr.iter().map(|x| i64::from(*x)).collect(),
        (None, list) => list.iter().map(first).collect(),
    }
}

impl Ranges {
    /// Bounds are clamped, as in the reference; a backward range may end at −1, before the first element.
    fn of(x: &Hlo, axes: &[i32], [starts, ends, steps]: [Vec<i64>; 3]) -> Ranges {
        let whole = |n: &usize| AxisRange { start: 0, end: *n, step: 1, reversed: false };
        let mut ranges: Vec<AxisRange> = x.dims().iter().map(whole).collect();
        for (i, axis) in axes.iter().enumerate() {
            let at = x.axis(*axis);
            let n = x.dims()[at] as i64;
            let from_front = |bound: i64| if bound < 0 { bound.saturating_add(n).max(0) } else { bound };
            let (start, end, step) = (starts[i], ends[i], steps.get(i).copied().unwrap_or(1));
            let distance = step.unsigned_abs().max(1) as usize;
            ranges[at] = if step > 0 {
                let (start, end) = (from_front(start).min(n), from_front(end).min(n));
                AxisRange {
                    start: start as usize,
                    end: end.max(start) as usize,
                    step: distance,
                    reversed: false,
                }
            } else {
                let last = if end == -1 { -1 } else { from_front(end) };
                let first = from_front(start).min(n - 1);
                let count =
                    (first - last.min(n - 1)).max(0).unsigned_abs().div_ceil(distance as u64) as usize;
                match count.checked_sub(1) {
                    None => AxisRange { start: 0, end: 0, step: 1, reversed: false },
                    Some(others) => {
                        let start = first as usize - others * distance;
                        AxisRange { start, end: first as usize + 1, step: distance, reversed: true }
                    }
                }
            };
        }
        Ranges(ranges)
    }

    fn reversed(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|axis| self.0[*axis].reversed).collect()
    }

    fn slice(&self, x: &Hlo) -> Hlo {
        let list = |of: fn(&AxisRange) -> usize| self.0.iter().map(of).collect::<Vec<_>>();
        x.slice(&list(|r| r.start), &list(|r| r.end), &list(|r| r.step)).reverse(&self.reversed())
    }

    /// `part` in the slice of zeros in these dimensions.
    fn pad(&self, part: &Hlo, dims: &[usize]) -> Hlo {
        let counts: Vec<usize> = self.0.iter().map(|range| range.count()).collect();
        let part = part.reshape(&counts).reverse(&self.reversed());
        let taken = |range: &AxisRange| match range.count() {
            0 => 0,
            count => (count - 1) * range.step + 1,
        };
        let low: Vec<i64> = self.0.iter().map(|range| range.start as i64).collect();
        let high = self.0.iter().zip(dims).map(|(range, n)| (n - range.start - taken(range)) as i64);
        let interior: Vec<usize> = self.0.iter().map(|range| range.step - 1).collect();
        part.pad(&part.scalar(0.0), &low, &high.collect::<Vec<_>>(), &interior)
    }
}

macro_rules! ranges {
    ($op:expr, $x:expr, [$($steps:expr)?]) => {{
        let starts = numbers(&$op.starts_tensor, &$op.starts_tensor_list, &$op.starts);
        let ends = numbers(&$op.ends_tensor, &$op.ends_tensor_list, &$op.ends);
        let steps: Vec<i64> = vec![];
        $(let _ = steps; let steps = $steps;)?
        Ranges::of($x, &$op.axes, [starts, ends, steps])
    }};
}

impl Rule<Hlo> for Slice<Hlo> {
    fn apply(&mut self) {
        self.out = ranges!(self, &self.input, []).slice(&self.input);
    }
}
impl Rule<Hlo> for SliceGrad<Hlo> {
    fn apply(&mut self) {
        self.dinput = ranges!(self, &self.dinput, []).pad(&self.dout, self.dinput.dims());
    }
}
impl Rule<Hlo> for StridedSlice<Hlo> {
    fn apply(&mut self) {
        let steps = numbers(&self.strides_tensor, &self.strides_tensor_list, &self.strides);
        self.out = ranges!(self, &self.input, [steps]).slice(&self.input);
    }
}
impl Rule<Hlo> for StridedSliceGrad<Hlo> {
    fn apply(&mut self) {
        let steps = numbers(&self.strides_tensor, &self.strides_tensor_list, &self.strides);
        self.dinput = ranges!(self, &self.dinput, [steps]).pad(&self.dout, self.dinput.dims());
    }
}
