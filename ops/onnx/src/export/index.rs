//! Elements and rows at indices.

use autobwd::{DType, op::Rule};
use autobwd_ops::{
    gather::Gather,
    index::ScatterNdAdd,
    scatter::{GatherNd, Scatter, TakeAlongAxis, TakeAlongAxisGrad},
};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(Gather, GatherNd, Scatter, ScatterNdAdd, TakeAlongAxis, TakeAlongAxisGrad);

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
