//! Slices, padding and their gradients.

use autobwd::op::Rule;
use autobwd_ops::shape::{Pad, Slice, SliceGrad, StridedSlice, StridedSliceGrad};

use super::Onnx;
use crate::rules;

rules!(Pad, Slice, SliceGrad, StridedSlice, StridedSliceGrad);

/// Integers that tensors hold, or else an attribute.
fn bounds(x: &Onnx, tensor: &Option<Onnx>, list: &[Onnx], attr: impl Iterator<Item = i64>) -> Onnx {
    Onnx::given(tensor, list).unwrap_or_else(|| x.ints(&attr.collect::<Vec<_>>()))
}

fn wide(attr: &[i32]) -> impl Iterator<Item = i64> + '_ {
    attr.iter().map(|n| i64::from(*n))
}

/// Without the dimensions that a slice drops.
fn decreased(part: Onnx, input: &Onnx, decrease_axis: &[i32]) -> Onnx {
    if decrease_axis.is_empty() { part } else { part.squeeze(&input.axes(decrease_axis)) }
}

/// The starts of a slice.
macro_rules! starts {
    ($op:ident) => {
        bounds(&$op.input, &$op.starts_tensor, &$op.starts_tensor_list, wide(&$op.starts))
    };
}

impl Rule<Onnx> for Slice<Onnx> {
    fn apply(&mut self) {
        let mut part = self.input.clone();
        if !self.axes.is_empty() {
            let ends = bounds(&part, &self.ends_tensor, &self.ends_tensor_list, wide(&self.ends));
            part =
                part.node("Slice", &[&starts!(self), &ends, &part.ints(&self.input.axes(&self.axes))], &[]);
        }
        self.out = decreased(part, &self.input, &self.decrease_axis);
    }
}

impl Rule<Onnx> for SliceGrad<Onnx> {
    fn apply(&mut self) {
        let mut part = self.dout.clone();
        if !self.decrease_axis.is_empty() {
            let mut axes = self.input.axes(&self.decrease_axis);
            axes.sort_unstable();
            part = part.unsqueeze(&axes);
        }
        if !self.axes.is_empty() {
            let is_attribute = self.starts_tensor.is_none() && self.starts_tensor_list.is_empty();
            let from_end = !is_attribute || self.starts.iter().any(|start| *start < 0);
            part = padded_back(&part, &self.input, &self.input.axes(&self.axes), starts!(self), from_end);
        }
        self.dinput = part;
    }
}

/// A slice that began at `starts`, which may count from the end, with zeros around it in the shape of `input`.
fn padded_back(part: &Onnx, input: &Onnx, axes: &[i64], starts: Onnx, from_end: bool) -> Onnx {
    let of_axes = |shape: Onnx| shape.node("Gather", &[&shape.ints(axes)], &[]);
    let (lengths, parts) = (of_axes(input.shape()), of_axes(part.shape_of_value()));
    let mut before = starts;
    if from_end {
        let zero = before.number(0.0);
        let is_below = zero.greater(&before);
        before = is_below.select(&(&before + &lengths), &before).node("Max", &[&zero], &[]);
    }
    before = before.node("Min", &[&lengths], &[]);
    let after = &lengths - &before - parts;
    let pads = before.concat(&[&after], 0);
    let padded = part.many("Pad", &[Some(&pads), None, Some(&part.ints(axes))], &[], 1).pop();
    padded.unwrap_or_else(|| part.clone())
}

impl Rule<Onnx> for Pad<Onnx> {
    fn apply(&mut self) {
        // ONNX Runtime pads no scalars.
        if self.paddings.is_empty() {
            self.out = self.x.clone();
            return;
        }
        // Paddings before all dimensions, then after them.
        let of = |at: usize| self.paddings.iter().skip(at).step_by(2).map(|padding| i64::from(*padding));
        let pads = self.x.ints(&of(0).chain(of(1)).collect::<Vec<_>>());
        self.out = self.x.node("Pad", &[&pads, &self.x.number(f64::from(self.pad_value))], &[]);
    }
}

/// The elements of `$x` that a slice with steps takes.
macro_rules! strided {
    ($op:ident, $x:expr) => {{
        let of_tensor = $op.ends_tensor.is_some() || !$op.ends_tensor_list.is_empty();
        $op.input.refuse_tensors($op.strides_tensor.iter().chain(&$op.strides_tensor_list));
        if of_tensor && $op.strides.iter().any(|step| *step < 0) {
            $op.input.fail("ends of steps back from tensors cannot be written to ONNX");
        }
        // With a negative step, −1 is the place before the first element.
        let end = |(end, step): (&i32, &i32)| match (*end, *step) {
            (-1, ..0) => i64::MIN,
            (end, _) => i64::from(end),
        };
        let ends = $op.ends.iter().zip(&$op.strides).map(end);
        let ends = bounds(&$op.input, &$op.ends_tensor, &$op.ends_tensor_list, ends);
        let steps = $op.input.ints(&wide(&$op.strides).collect::<Vec<_>>());
        let axes = $op.input.ints(&$op.input.axes(&$op.axes));
        $x.node("Slice", &[&starts!($op), &ends, &axes, &steps], &[])
    }};
}

impl Rule<Onnx> for StridedSlice<Onnx> {
    fn apply(&mut self) {
        self.out = decreased(strided!(self, self.input), &self.input, &self.decrease_axis);
    }
}

impl Rule<Onnx> for StridedSliceGrad<Onnx> {
    fn apply(&mut self) {
        // The positions of the slice's elements among all.
        let shape = self.input.shape();
        let count = shape.node("ReduceProd", &[&shape.ints(&[0])], &[]);
        let scalar = count.reshape(&[]);
        let positions = scalar.number(0.0).node("Range", &[&scalar, &scalar.number(1.0)], &[]);
        let positions = positions.node("Reshape", &[&shape], &[("allowzero", super::NodeAttr::Int(1))]);
        let positions = strided!(self, positions).reshape(&[-1]);
        let zeros = self.dout.filled(0.0, &count);
        let sums = zeros.node("ScatterElements", &[&positions, &self.dout.reshape(&[-1])], &[]);
        self.dinput = sums.node("Reshape", &[&shape], &[("allowzero", super::NodeAttr::Int(1))]);
    }
}
