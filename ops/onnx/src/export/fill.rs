//! Numbers everywhere, and shapes as tensors.

use autobwd::{DType, Error, Result, Tensor, program::Var, tensor::Bool};
use autobwd_ops::{
    fill::{AssignValue, Eye, FillAnyLike, FillConstant, FillConstantBatchSizeLike, FillZerosLike},
    shape::{ShapeOp, Size},
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<AssignValue>(),
        rule::<Eye>(),
        rule::<FillAnyLike>(),
        rule::<FillConstant>(),
        rule::<FillConstantBatchSizeLike>(),
        rule::<FillZerosLike>(),
        rule::<ShapeOp>(),
        rule::<Size>(),
    ]
}

/// A shape that tensors hold, whole or else dimension by dimension.
pub(super) fn shape_from(
    graph: &mut OnnxGraph<'_>,
    whole: Option<Var>,
    dims: &[Var],
) -> Result<Option<OnnxValue>> {
    let mut parts = vec![];
    for part in if whole.is_some() { whole.as_slice() } else { dims } {
        let part = graph.read(*part)?;
        let part = graph.cast(part, DType::I64);
        parts.push(graph.reshape(part, &[-1])?);
    }
    let concat = [("axis", NodeAttr::Int(0))];
    Ok((!parts.is_empty()).then(|| graph.op("Concat", &parts, &concat)))
}

/// Sets `out` to a number everywhere; `dims` gives the shape if it is unknown.
fn fill(
    graph: &mut OnnxGraph<'_>,
    out: Var,
    number: OnnxValue,
    dims: impl FnOnce(&mut OnnxGraph<'_>) -> Result<OnnxValue>,
) -> Result<()> {
    let dims = match graph.shape(out)? {
        shape if shape.contains(&-1) => dims(graph)?,
        shape => graph.ints(&shape)?,
    };
    let value = graph.op("Expand", &[number, dims], &[]);
    graph.write(out, value);
    Ok(())
}

/// The shape of a variable when the model runs.
fn shape_of(graph: &mut OnnxGraph<'_>, var: Var) -> Result<OnnxValue> {
    let value = graph.read(var)?;
    Ok(graph.op("Shape", &[value], &[]))
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
        fill(graph, self.out, number, |graph| {
            let dims = shape_from(graph, self.shape_tensor, &self.shape_tensor_list)?;
            dims.ok_or_else(|| graph.unknown_shape(self.out))
        })
    }
}
impl ExportOp for FillAnyLike {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let number = graph.scalar(graph.dtype(self.out)?, self.value)?;
        fill(graph, self.out, number, |graph| shape_of(graph, self.x))
    }
}
impl ExportOp for FillZerosLike {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let number = graph.scalar(graph.dtype(self.out)?, 0.0)?;
        fill(graph, self.out, number, |graph| shape_of(graph, self.x))
    }
}

impl ExportOp for ShapeOp {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (value, dtype) = (graph.read(self.input)?, graph.dtype(self.out)?);
        let shape = graph.op("Shape", &[value], &[]);
        let shape = graph.cast(shape, dtype);
        graph.write(self.out, shape);
        Ok(())
    }
}
impl ExportOp for Size {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = graph.read(self.input)?;
        let size = graph.op("Size", &[value], &[]);
        let size = graph.shaped_as(size, self.out)?;
        graph.write(self.out, size);
        Ok(())
    }
}

impl ExportOp for Eye {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let columns = if self.num_columns < 0 { self.num_rows } else { self.num_columns };
        let zeros = graph.filled(self.dtype, 0.0, &[self.num_rows, columns])?;
        let eye = graph.op("EyeLike", &[zeros], &[]);
        graph.write(self.out, eye);
        Ok(())
    }
}

impl ExportOp for FillConstantBatchSizeLike {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let number = match &*self.str_value {
            "" => f64::from(self.value),
            text => text.parse().map_err(|_| Error::attr("str_value", format!("{text} is not a number")))?,
        };
        let number = graph.scalar(graph.dtype(self.out)?, number)?;
        fill(graph, self.out, number, |graph| {
            let mut dims: Vec<OnnxDim> =
                self.shape.iter().map(|dim| OnnxDim::Known(i64::from(*dim))).collect();
            let batch = graph.run_dims(self.input)?;
            let from = batch.get(self.input_dim_idx as usize);
            if let (Some(to), Some(from)) = (dims.get_mut(self.output_dim_idx as usize), from) {
                *to = *from;
            }
            graph.shape_list(&dims)
        })
    }
}
