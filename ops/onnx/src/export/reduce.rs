//! Reductions and softmax.

use autobwd::op::Rule;
use autobwd_ops::{
    reduce::{ReduceAmax, ReduceAmin, ReduceAttrs, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum},
    softmax::{LogSoftmax, Softmax},
};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(LogSoftmax, ReduceAmax, ReduceAmin, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum, Softmax);

/// The reduced dimensions of a tensor.
fn axes(x: &Onnx, reduce: &ReduceAttrs) -> Vec<i64> {
    let rank = x.rank() as i64;
    if reduce.reduce_all || reduce.dim.is_empty() {
        return (0..rank).collect();
    }
    let from_start = |dim: &i32| i64::from(*dim) + if *dim < 0 { rank } else { 0 };
    // A scalar also accepts an axis.
    reduce.dim.iter().map(from_start).filter(|dim| (0..rank).contains(dim)).collect()
}

macro_rules! reductions {
    ($($op:ident $node:literal),*) => {$(
        impl Rule<Onnx> for $op<Onnx> {
            fn apply(&mut self) {
                let (axes, x) = (axes(&self.x, &self.reduce), self.x.cast(self.out.dtype()));
                let keep = ("keepdims", NodeAttr::Int(i64::from(self.reduce.keep_dim)));
                // To ONNX, no axes are all axes.
                self.out = if axes.is_empty() { x } else { x.node($node, &[&x.ints(&axes)], &[keep]) };
            }
        }
    )*};
}
// Native: a mean, which runtimes look for as one node.
reductions!(ReduceMean "ReduceMean");
reductions!(
    ReduceAmax "ReduceMax", ReduceAmin "ReduceMin", ReduceMax "ReduceMax", ReduceMin "ReduceMin",
    ReduceProd "ReduceProd", ReduceSum "ReduceSum"
);

// Native: ONNX Runtime 1.32 takes 2.2 times as long by the composition.
macro_rules! normalised {
    ($($op:ident),*) => {$(
        impl Rule<Onnx> for $op<Onnx> {
            fn apply(&mut self) {
                let is_scalar = self.x.rank() == 0;
                let x = if is_scalar { self.x.reshape(&[1]) } else { self.x.clone() };
                let axis = NodeAttr::Int(if is_scalar { 0 } else { i64::from(self.axis) });
                let out = x.node(stringify!($op), &[], &[("axis", axis)]);
                self.out = if is_scalar { out.reshape(&[]) } else { out };
            }
        }
    )*};
}
normalised!(LogSoftmax, Softmax);
