//! Numbers everywhere, and shapes as tensors.

use autobwd::{DType, Error, Result, Tensor, program::Var, tensor::Bool};
use autobwd_ops::{
    fill::{AssignValue, FillConstant},
    shape::ShapeOp,
};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<AssignValue>(), rule::<FillConstant>(), rule::<ShapeOp>()]
}

/// A shape that tensors hold, whole or else dimension by dimension.
pub(super) fn shape_from(
    graph: &mut OnnxGraph<'_>,
    whole: Option<Var>,
    dims: &[Var],
) -> Result<Option<OnnxValue>> {
    let mut parts = vec![];
    for part in if whole.is_some() { whole.as_slice() } else { dims } {
        let mut value = graph.read(*part)?;
        if graph.dtype(*part)? != DType::I64 {
            value = graph.cast(value, DType::I64);
        }
        if graph.rank(*part)? != 1 {
            value = graph.reshape(value, &[-1])?;
        }
        parts.push(value);
    }
    Ok(match parts[..] {
        [] => None,
        [part] => Some(part),
        _ => Some(graph.op("Concat", &parts, &[("axis", NodeAttr::Int(0))])),
    })
}

impl ExportOp for AssignValue {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let dims: Vec<usize> = self.shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
        let tensor = match self.dtype {
            DType::Bool => {
                Tensor::from_vec(dims, self.bool_values.iter().map(|x| Bool::from(*x != 0)).collect())
            }
            DType::F32 => Tensor::from_vec(dims, self.fp32_values.clone()),
            DType::F64 => Tensor::from_vec(dims, self.fp64_values.clone()),
            DType::I32 => Tensor::from_vec(dims, self.int32_values.clone()),
            DType::I64 => Tensor::from_vec(dims, self.int64_values.clone()),
            DType::U8 => Err(Error::attr("dtype", "there is no list of uint8 elements")),
        };
        let value = graph.tensor(&tensor?);
        graph.write(self.out, value);
        Ok(())
    }
}

impl ExportOp for FillConstant {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let number = match self.value_tensor {
            Some(value) => graph.read(value)?,
            None => {
                let number = match &*self.str_value {
                    "" => f64::from(self.value),
                    text => text
                        .parse()
                        .map_err(|_| Error::attr("str_value", format!("{text} is not a number")))?,
                };
                graph.scalar(graph.dtype(self.out)?, number)?
            }
        };
        let dims = match graph.dims(self.out) {
            Ok(dims) => graph.ints(&dims)?,
            Err(unknown) => shape_from(graph, self.shape_tensor, &self.shape_tensor_list)?.ok_or(unknown)?,
        };
        let value = graph.op("Expand", &[number, dims], &[]);
        graph.write(self.out, value);
        Ok(())
    }
}

impl ExportOp for ShapeOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let dtype = graph.dtype(self.out)?;
        let shape = match graph.remembered.get(&self.input).copied() {
            None => {
                let value = graph.read(self.input)?;
                graph.op("Shape", &[value], &[])
            }
            // `XShape` has a dimension of 0 before those of that value.
            Some(value) => {
                let (zero, shape) = (graph.ints(&[0])?, graph.op("Shape", &[value], &[]));
                graph.op("Concat", &[zero, shape], &[("axis", NodeAttr::Int(0))])
            }
        };
        let shape = graph.cast(shape, dtype);
        graph.write(self.out, shape);
        Ok(())
    }
}
