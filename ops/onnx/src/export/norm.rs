//! Native forms of normalisations and rectifiers.

use autobwd::{DType, op::Rule};
use autobwd_ops::{
    activation::{HardSwish, Relu},
    norm::{BatchNormOp, DataLayout, LayerNormOp},
};

use super::{NodeAttr, Onnx};
use crate::rules;

rules!(BatchNormOp, HardSwish, LayerNormOp, Relu);

/// ONNX Runtime 1.32 takes 36 times as long by the choice of the formula.
impl Rule<Onnx> for Relu<Onnx> {
    fn apply(&mut self) {
        self.out = self.x.node("Relu", &[], &[]);
    }
}

/// ONNX Runtime 1.32 takes 23 ms for a million elements by the choices of the formula, 0.25 ms by this node.
impl Rule<Onnx> for HardSwish<Onnx> {
    fn fits(&self) -> bool {
        (self.threshold, self.scale, self.offset) == (6.0, 6.0, 3.0)
    }

    fn apply(&mut self) {
        self.out = self.x.node("HardSwish", &[], &[]);
    }
}

/// ONNX Runtime 1.32 takes 6.5 times as long by the composition.
impl Rule<Onnx> for BatchNormOp<Onnx> {
    fn fits(&self) -> bool {
        self.is_test && !self.trainable_statistics && self.data_layout == DataLayout::Nchw
    }

    fn apply(&mut self) {
        let number = |given: &Option<Onnx>, number: f64| {
            given.clone().unwrap_or_else(|| self.x.filled(number, &self.mean.shape()))
        };
        let (scale, bias) = (number(&self.scale, 1.0), number(&self.bias, 0.0));
        let epsilon = [("epsilon", NodeAttr::Float(self.epsilon))];
        self.y = self.x.node("BatchNormalization", &[&scale, &bias, &self.mean, &self.variance], &epsilon);
        // The statistics do not change.
        (self.mean_out, self.variance_out) = (self.mean.clone(), self.variance.clone());
    }
}

/// ONNX Runtime 1.32 takes twice as long by the composition. The node computes statistics in float32 and does not give
/// them as results.
impl Rule<Onnx> for LayerNormOp<Onnx> {
    fn fits(&self) -> bool {
        self.x.dtype() == DType::F32 && !self.mean.is_read() && !self.variance.is_read()
    }

    fn apply(&mut self) {
        let (start, rank) = (self.x.axis(self.begin_norm_axis), self.x.rank() as i64);
        let dims = self.x.shape().node("Slice", &[&self.x.ints(&[start]), &self.x.ints(&[rank])], &[]);
        // One dimension, here.
        let parameter = |x: &Onnx| match start + 1 == rank {
            true => x.clone(),
            false => x.node("Reshape", &[&dims], &[("allowzero", NodeAttr::Int(1))]),
        };
        let scale = self.scale.as_ref().map(parameter);
        let scale = scale.unwrap_or_else(|| self.x.filled(1.0, &dims));
        let bias = self.bias.as_ref().map(parameter);
        let attrs = [("axis", NodeAttr::Int(start)), ("epsilon", NodeAttr::Float(self.epsilon))];
        let inputs: Vec<&Onnx> = [&scale].into_iter().chain(&bias).collect();
        self.y = self.x.node("LayerNormalization", &inputs, &attrs);
    }
}
