//! Operators that move and repeat elements.

use autobwd::{DType, op::Rule};
use autobwd_ops::shape::{
    Assign, Cast, Concat, ConcatGrad, DecidedSizes, ExpandV2, Reshape2, ShapeOp, Split, Squeeze2, Tile,
    Transpose2, TrilTriu, Unsqueeze2,
};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(
    Assign,
    Cast,
    Concat,
    ConcatGrad,
    DecidedSizes,
    ExpandV2,
    Reshape2,
    ShapeOp,
    Split,
    Squeeze2,
    Tile,
    Transpose2,
    TrilTriu,
    Unsqueeze2
);

/// Integers of an attribute as a list of int64.
fn ints(x: &Onnx, attr: &[i32]) -> Onnx {
    x.ints(&attr.iter().map(|n| i64::from(*n)).collect::<Vec<_>>())
}

fn axis_of(x: &Onnx, axis: i32) -> (&'static str, NodeAttr<'static>) {
    ("axis", NodeAttr::Int(x.axis(axis)))
}

/// Whether at most one dimension is unknown, and follows from the others.
fn is_inferred(out: &Onnx) -> bool {
    match out.dims().iter().filter(|dim| dim.get().is_none()).count() {
        0 => true,
        1 => !out.dims().iter().any(|dim| *dim == 0),
        _ => false,
    }
}

/// `x` in the shape of `out`, in which one dimension may be unknown.
pub(super) fn shaped_as(x: &Onnx, out: &Onnx) -> Option<Onnx> {
    let dims: Vec<i64> = out.dims().iter().map(|dim| dim.wire()).collect();
    is_inferred(out).then(|| x.reshape(&dims))
}

impl Rule<Onnx> for Assign<Onnx> {
    fn apply(&mut self) {
        self.out = self.x.clone();
    }
}

impl Rule<Onnx> for Cast<Onnx> {
    fn apply(&mut self) {
        self.out = self.x.cast(self.out.dtype());
    }
}

impl Rule<Onnx> for ShapeOp<Onnx> {
    fn apply(&mut self) {
        self.out = self.input.shape().cast(self.out.dtype());
    }
}

impl Rule<Onnx> for DecidedSizes<Onnx> {
    fn apply(&mut self) {
        let sizes = parts(&self.x, &self.x.ints(&vec![1; self.out.len()]), self.out.len(), 0);
        let zero = self.x.ints(&[0]);
        let empty = |size: Onnx| self.x.filled(0.0, &zero.concat(&[&size], 0)).cast(DType::I32);
        self.out = sizes.into_iter().map(empty).collect();
    }
}

impl Rule<Onnx> for Reshape2<Onnx> {
    fn apply(&mut self) {
        self.out = match self.out.known_dims() {
            Some(dims) => self.x.reshape(&dims),
            None => {
                // Single dimensions come first.
                let whole = self.shape_input.take().filter(|_| self.shape_tensor.is_empty());
                let shape = Onnx::given(&whole, &self.shape_tensor);
                let shape = shape.unwrap_or_else(|| ints(&self.x, &self.shape));
                // 0 keeps a dimension, here as there.
                self.x.node("Reshape", &[&shape], &[])
            }
        };
    }
}

// Native: a reshape with several unknown dimensions has to compute them.
macro_rules! axes_of_one {
    ($($op:ident $node:literal),*) => {$(
        impl Rule<Onnx> for $op<Onnx> {
            fn fits(&self) -> bool {
                !self.axes.is_empty() || is_inferred(&self.out)
            }

            fn apply(&mut self) {
                self.out = shaped_as(&self.x, &self.out)
                    .unwrap_or_else(|| self.x.node($node, &[&ints(&self.x, &self.axes)], &[]));
            }
        }
    )*};
}
axes_of_one!(Squeeze2 "Squeeze", Unsqueeze2 "Unsqueeze");

impl Rule<Onnx> for Transpose2<Onnx> {
    fn apply(&mut self) {
        self.out = self.x.permute(&self.x.axes(&self.axis));
    }
}

impl Rule<Onnx> for ExpandV2<Onnx> {
    fn apply(&mut self) {
        let given = Onnx::given(&self.shape_input, &self.expand_shapes_tensor);
        let shape = match (self.out.known_dims(), given) {
            (Some(dims), _) => self.x.ints(&dims),
            // −1 keeps a dimension, which 1 does in ONNX.
            (None, Some(shape)) => shape.abs(),
            (None, None) => ints(&self.x, &self.shape.iter().map(|n| n.abs()).collect::<Vec<_>>()),
        };
        self.out = self.x.node("Expand", &[&shape], &[]);
    }
}

// Native: a reshape, an expansion and a reshape back, otherwise.
impl Rule<Onnx> for Tile<Onnx> {
    fn apply(&mut self) {
        let (x_rank, rank) = (self.x.rank(), self.out.rank());
        let mut x = self.x.clone();
        if x_rank < rank {
            x = x.unsqueeze(&(0..(rank - x_rank) as i64).collect::<Vec<_>>());
        }
        let count = match (&self.repeat_times_input, &self.repeat_times_tensor[..]) {
            (Some(list), _) => list.known_dims().and_then(|dims| dims.first().copied()),
            (None, []) => Some(self.repeat_times.len() as i64),
            (None, list) => Some(list.len() as i64),
        };
        let Some(count) = count else {
            self.x.fail("the number of repeated dimensions must be known");
            return;
        };
        let given = Onnx::given(&self.repeat_times_input, &self.repeat_times_tensor);
        let mut times = given.unwrap_or_else(|| ints(&x, &self.repeat_times));
        if count < rank as i64 {
            times = x.ints(&vec![1; rank - count as usize]).concat(&[&times], 0);
        }
        self.out = x.node("Tile", &[&times], &[]);
    }
}

impl Rule<Onnx> for Concat<Onnx> {
    fn apply(&mut self) {
        self.out.refuse_tensors(&self.axis_tensor);
        let Some((first, others)) = self.x.split_first() else { return };
        self.out = first.node("Concat", &others.iter().collect::<Vec<_>>(), &[axis_of(first, self.axis)]);
    }
}

/// Parts of lengths along an axis.
fn parts(x: &Onnx, lengths: &Onnx, count: usize, axis: i32) -> Vec<Onnx> {
    x.many("Split", &[Some(lengths)], &[axis_of(x, axis)], count)
}

impl Rule<Onnx> for ConcatGrad<Onnx> {
    fn apply(&mut self) {
        self.dout.refuse_tensors(&self.axis_tensor);
        let axis = self.dout.axis(self.axis) as usize;
        let length = |x: &Onnx| match x.dims()[axis].get() {
            Some(length) => x.ints(&[length as i64]),
            None => x.shape().node("Gather", &[&x.ints(&[axis as i64])], &[]),
        };
        let lengths: Vec<Onnx> = self.x.iter().map(length).collect();
        let Some(lengths) = Onnx::given(&None, &lengths) else { return };
        let parts = parts(&self.dout, &lengths, self.x.len(), self.axis);
        // Those that are not wanted keep their places.
        for (dx, part) in self.dx.iter_mut().zip(parts) {
            dx.iter_mut().for_each(|dx| *dx = part.clone());
        }
    }
}

impl Rule<Onnx> for Split<Onnx> {
    fn apply(&mut self) {
        self.x.refuse_tensors(&self.axis_tensor);
        let axis = self.x.axis(self.axis) as usize;
        let length = |out: &Onnx| out.dims().get(axis).and_then(|dim| dim.get()).map(|dim| dim as i64);
        let lengths: Option<Vec<i64>> = self.out.iter().map(length).collect();
        self.out = match lengths {
            Some(lengths) => parts(&self.x, &self.x.ints(&lengths), self.out.len(), self.axis),
            None if self.num > 0 && self.sections_tensor_list.is_empty() => {
                let count = ("num_outputs", NodeAttr::Int(i64::from(self.num)));
                self.x.many("Split", &[], &[axis_of(&self.x, self.axis), count], self.out.len())
            }
            None => {
                self.x.fail("the lengths of the parts must be known");
                return;
            }
        };
    }
}

// Native: a product with a mask takes 5 times as long in ONNX Runtime.
impl Rule<Onnx> for TrilTriu<Onnx> {
    fn apply(&mut self) {
        let diagonal = self.x.clone().typed(DType::I64).number(f64::from(self.diagonal));
        let upper = [("upper", NodeAttr::Int(i64::from(!self.lower)))];
        self.out = self.x.node("Trilu", &[&diagonal], &upper);
    }
}
