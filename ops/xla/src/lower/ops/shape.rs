//! Shapes: reshaping, permuting, broadcasting, padding.

use autobwd::operators::{Reshape2, ShapeOp, Unsqueeze2};
use autobwd_ops::shape::{ExpandV2, Pad, Squeeze2, Transpose2};

use super::prelude::*;

rules!(ExpandV2, Pad, Reshape2, ShapeOp, Squeeze2, Transpose2, Unsqueeze2);

impl Rule<Hlo> for Reshape2<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.clone();
    }
}
// These two have no composition: sizes of dimensions, or elements of a tensor, decide about the rank of the result.
impl Rule<Hlo> for Squeeze2<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.clone();
    }
}
impl Rule<Hlo> for Unsqueeze2<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.clone();
    }
}
impl Rule<Hlo> for ExpandV2<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.broadcast_to(self.out.dims());
    }
}
impl Rule<Hlo> for Transpose2<Hlo> {
    fn apply(&mut self) {
        let axes: Vec<usize> = self.axis.iter().map(|axis| self.x.axis(*axis)).collect();
        self.out = self.x.transpose(&axes);
    }
}
impl Rule<Hlo> for Pad<Hlo> {
    fn apply(&mut self) {
        let sides = self.paddings.chunks_exact(2).map(|pair| (i64::from(pair[0]), i64::from(pair[1])));
        let (low, high): (Vec<i64>, Vec<i64>) = sides.unzip();
        let value = self.x.scalar(f64::from(self.pad_value));
        self.out = self.x.pad(&value, &low, &high, &vec![0; self.x.rank()]);
    }
}
impl Rule<Hlo> for ShapeOp<Hlo> {
    fn apply(&mut self) {
        let dims: Vec<f64> = self.input.dims().iter().map(|dim| *dim as f64).collect();
        self.out = self.out.vector(self.out.dtype(), &dims);
    }
}
