//! Elements and rows at indices.

use autobwd::{DType, op::Rule};
use autobwd_ops::{
    gather::Gather,
    index::ScatterNdAdd,
    nonzero::WhereIndex,
    scatter::{GatherNd, Scatter, TakeAlongAxis, TakeAlongAxisGrad},
    unique::Unique,
};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(Gather, GatherNd, Scatter, ScatterNdAdd, TakeAlongAxis, TakeAlongAxisGrad, Unique, WhereIndex);

const ADD: (&str, NodeAttr<'_>) = ("reduction", NodeAttr::Text("add"));

impl Rule<Onnx> for Gather<Onnx> {
    fn apply(&mut self) {
        // A column of indices is a list, here.
        let index = if self.index.rank() > 1 { self.index.reshape(&[-1]) } else { self.index.clone() };
        self.out = self.x.node("Gather", &[&index], &[("axis", NodeAttr::Int(i64::from(self.axis)))]);
    }
}

impl Rule<Onnx> for GatherNd<Onnx> {
    fn apply(&mut self) {
        self.out = self.x.node("GatherND", &[&self.index.cast(DType::I64)], &[]);
    }
}

impl Rule<Onnx> for TakeAlongAxis<Onnx> {
    fn apply(&mut self) {
        let axis = ("axis", NodeAttr::Int(self.input.axis(self.axis)));
        self.result = self.input.node("GatherElements", &[&self.index], &[axis]);
    }
}

/// Adds to zeros in the shape of the input.
impl Rule<Onnx> for TakeAlongAxisGrad<Onnx> {
    fn apply(&mut self) {
        let attrs = [("axis", NodeAttr::Int(self.input.axis(self.axis))), ADD];
        let zeros = self.dresult.filled(0.0, &self.input.shape());
        self.dinput = zeros.node("ScatterElements", &[&self.index.cast(DType::I64), &self.dresult], &attrs);
    }
}

impl Rule<Onnx> for ScatterNdAdd<Onnx> {
    fn apply(&mut self) {
        self.out = self.x.node("ScatterND", &[&self.index.cast(DType::I64), &self.updates], &[ADD]);
    }
}

impl Rule<Onnx> for Scatter<Onnx> {
    fn apply(&mut self) {
        let ids = self.ids.cast(DType::I64).reshape(&[-1, 1]);
        self.out = if self.overwrite {
            self.x.node("ScatterND", &[&ids, &self.updates], &[])
        } else {
            // Rows with an index begin at 0.
            let zeros = self.updates.filled(0.0, &self.updates.shape());
            let cleared = self.x.node("ScatterND", &[&ids, &zeros], &[]);
            cleared.node("ScatterND", &[&ids, &self.updates], &[ADD])
        };
    }
}

impl Rule<Onnx> for WhereIndex<Onnx> {
    fn fits(&self) -> bool {
        self.condition.rank() > 0
    }

    fn apply(&mut self) {
        let perm = ("perm", NodeAttr::Ints(&[1, 0]));
        self.out = self.condition.node("NonZero", &[], &[]).node("Transpose", &[], &[perm]);
    }
}

impl Rule<Onnx> for Unique<Onnx> {
    fn apply(&mut self) {
        let sorted = ("sorted", NodeAttr::Int(i64::from(self.is_sorted)));
        let axis = self.axis.first().map(|axis| ("axis", NodeAttr::Int(self.x.axis(*axis))));
        let attrs: Vec<_> = axis.into_iter().chain([sorted]).collect();
        let [out, indices, index, counts] = self.x.nodes("Unique", &[], &attrs);
        self.out = out;
        for (slot, numbers) in
            [(&mut self.indices, indices), (&mut self.index, index), (&mut self.counts, counts)]
        {
            *slot = slot.as_ref().map(|_| numbers.cast(self.dtype));
        }
    }
}
