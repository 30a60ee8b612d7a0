//! Normalisation and rectifiers.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::{
    activation::{HardSwish, Relu},
    norm::{BatchNormOp, DataLayout, LayerNormOp},
};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<BatchNormOp>(), rule::<HardSwish>(), rule::<LayerNormOp>(), rule::<Relu>()]
}

impl ExportOp for Relu {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let x = graph.read(self.x)?;
        let out = graph.op("Relu", &[x], &[]);
        graph.write(self.out, out);
        Ok(())
    }
}

/// ONNX Runtime 1.32 takes 23 ms for a million elements by the choices of the formula, 0.25 ms by this node.
impl ExportOp for HardSwish {
    fn has_form(&self) -> bool {
        (self.threshold, self.scale, self.offset) == (6.0, 6.0, 3.0)
    }

    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let x = graph.read(self.x)?;
        let out = graph.op("HardSwish", &[x], &[]);
        graph.write(self.out, out);
        Ok(())
    }
}

impl ExportOp for BatchNormOp {
    fn has_form(&self) -> bool {
        self.is_test && !self.trainable_statistics && self.data_layout == DataLayout::Nchw
    }

    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, mean, variance) = (graph.read(self.x)?, graph.read(self.mean)?, graph.read(self.variance)?);
        let dims = graph.run_dims(self.mean)?;
        let mut number = |given: Option<Var>, number: f64| -> Result<OnnxValue> {
            if let Some(given) = given {
                return graph.read(given);
            }
            graph.filled_to(graph.dtype(self.x)?, number, &dims)
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

impl ExportOp for LayerNormOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, dtype) = (graph.read(self.x)?, graph.dtype(self.x)?);
        let (dims, start) = (graph.run_dims(self.x)?, graph.axis(self.x, self.begin_norm_axis)?);
        let axes: Vec<i64> = (start as i64..dims.len() as i64).collect();
        let mut parameters = [None; 2];
        for (to, from) in parameters.iter_mut().zip([self.scale, self.bias]) {
            let Some(from) = from else { continue };
            // One dimension, here.
            let value = graph.read(from)?;
            *to = Some(if axes.len() == 1 { value } else { graph.reshape_to(value, &dims[start..])? });
        }
        let single = dtype == DType::F32;
        if single {
            let scale = match parameters[0] {
                Some(scale) => scale,
                None => graph.filled_to(dtype, 1.0, &dims[start..])?,
            };
            let mut inputs = vec![Some(x), Some(scale)];
            inputs.extend(parameters[1].map(Some));
            let attrs = [("axis", NodeAttr::Int(start as i64)), ("epsilon", NodeAttr::Float(self.epsilon))];
            let [y] = graph.nodes("LayerNormalization", &inputs, &attrs);
            graph.write(self.y, y);
            if ![self.mean, self.variance].iter().any(|var| graph.needed.contains(var)) {
                return Ok(());
            }
        }
        let mean = graph.reduce("ReduceMean", x, &axes, true)?;
        let centred = graph.sub(x, mean);
        let square = graph.mul(centred, centred);
        let variance = graph.reduce("ReduceMean", square, &axes, true)?;
        for (var, value) in [(self.mean, mean), (self.variance, variance)] {
            let value = graph.squeeze(value, &axes)?;
            graph.write(var, value);
        }
        if !single {
            // `LayerNormalization` computes statistics in float32.
            let epsilon = graph.scalar(dtype, f64::from(self.epsilon))?;
            let sum = graph.add(variance, epsilon);
            let deviation = graph.op("Sqrt", &[sum], &[]);
            let mut y = graph.div(centred, deviation);
            if let Some(scale) = parameters[0] {
                y = graph.mul(y, scale);
            }
            if let Some(bias) = parameters[1] {
                y = graph.add(y, bias);
            }
            graph.write(self.y, y);
        }
        Ok(())
    }
}
