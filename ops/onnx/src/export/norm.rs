//! Normalisation, rectifiers and dropout in inference.

use autobwd::{Error, ErrorKind, Result, program::Var};
use autobwd_ops::{
    activation::Relu,
    dropout::{DropoutImplementation, DropoutOp},
    norm::{BatchNormOp, DataLayout},
};

use super::{
    Lower, LowerRule,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, LowerRule)> {
    vec![rule::<BatchNormOp>(), rule::<DropoutOp>(), rule::<Relu>()]
}

impl Lower for Relu {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let x = graph.read(self.x)?;
        let out = graph.op("Relu", &[x], &[]);
        graph.write(self.out, out);
        Ok(())
    }
}

impl Lower for BatchNormOp {
    fn has_form(&self) -> bool {
        self.is_test && !self.trainable_statistics && self.data_layout == DataLayout::Nchw
    }

    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, mean, variance) = (graph.read(self.x)?, graph.read(self.mean)?, graph.read(self.variance)?);
        let dims = graph.shape(self.mean)?;
        let mut number = |given: Option<Var>, number: f64| -> Result<OnnxValue> {
            if let Some(given) = given {
                return graph.read(given);
            }
            graph.filled(graph.dtype(self.x)?, number, &dims)
        };
        let (scale, bias) = (number(self.scale, 1.0)?, number(self.bias, 0.0)?);
        let epsilon = [("epsilon", NodeAttr::Float(self.epsilon))];
        let y = graph.op("BatchNormalization", &[x, scale, bias, mean, variance], &epsilon);
        graph.write(self.y, y);
        // The statistics do not change.
        graph.write(self.mean_out, mean);
        graph.write(self.variance_out, variance);
        Ok(())
    }
}

impl Lower for DropoutOp {
    fn lower(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        if !self.is_test {
            return Err(Error::new(ErrorKind::Format, "random numbers have no form in ONNX"));
        }
        let mut value = graph.read(self.x)?;
        if self.dropout_implementation == DropoutImplementation::DowngradeInInfer {
            let keep = graph.scalar(graph.dtype(self.x)?, f64::from(1.0 - self.dropout_prob))?;
            value = graph.mul(value, keep);
        }
        graph.write(self.out, value);
        Ok(())
    }
}
