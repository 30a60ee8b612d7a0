//! Reductions, sums and softmax.

use autobwd::{Result, program::Var};
use autobwd_ops::{
    reduce::{
        Mean, MeanGrad, ReduceAmax, ReduceAmaxGrad, ReduceAmin, ReduceAminGrad, ReduceAttrs, ReduceMax,
        ReduceMaxGrad, ReduceMean, ReduceMeanGrad, ReduceMin, ReduceMinGrad, ReduceProd, ReduceSum,
        ReduceSumGrad,
    },
    softmax::{LogSoftmax, Softmax},
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<LogSoftmax>(),
        rule::<Mean>(),
        rule::<MeanGrad>(),
        rule::<ReduceAmax>(),
        rule::<ReduceAmaxGrad>(),
        rule::<ReduceAmin>(),
        rule::<ReduceAminGrad>(),
        rule::<ReduceMax>(),
        rule::<ReduceMaxGrad>(),
        rule::<ReduceMean>(),
        rule::<ReduceMeanGrad>(),
        rule::<ReduceMin>(),
        rule::<ReduceMinGrad>(),
        rule::<ReduceProd>(),
        rule::<ReduceSum>(),
        rule::<ReduceSumGrad>(),
        rule::<Softmax>(),
    ]
}

/// The reduced dimensions of a tensor.
fn axes(graph: &OnnxGraph<'_>, x: Var, reduce: &ReduceAttrs) -> Result<Vec<i64>> {
    let rank = graph.rank(x)? as i64;
    if reduce.reduce_all || reduce.dim.is_empty() {
        return Ok((0..rank).collect());
    }
    let from_start = |dim: &i32| i64::from(*dim) + if *dim < 0 { rank } else { 0 };
    // A scalar accepts an axis, too.
    Ok(reduce.dim.iter().map(from_start).filter(|dim| (0..rank).contains(dim)).collect())
}

/// `out` = the reduction of `x` by that operator of ONNX.
fn reduce_by(graph: &mut OnnxGraph<'_>, op: &str, [x, out]: [Var; 2], reduce: &ReduceAttrs) -> Result<()> {
    let axes = axes(graph, x, reduce)?;
    let (mut value, dtype) = (graph.read(x)?, graph.dtype(out)?);
    if graph.dtype(x)? != dtype {
        value = graph.cast(value, dtype);
    }
    let value = graph.reduce(op, value, &axes, reduce.keep_dim)?;
    graph.write(out, value);
    Ok(())
}

/// `dx` = `dout` in all positions that were reduced; with `mean`, divided by their number.
fn spread(graph: &mut OnnxGraph<'_>, [x, dout, dx]: [Var; 3], axes: &[i64], mean: bool) -> Result<()> {
    let (dims, dtype) = (graph.run_dims(x)?, graph.dtype(dx)?);
    let mut kept = dims.clone();
    axes.iter().for_each(|axis| kept[*axis as usize] = OnnxDim::Known(1));
    let value = graph.read(dout)?;
    let mut value = graph.reshape_to(value, &kept)?;
    if graph.dtype(dout)? != dtype {
        value = graph.cast(value, dtype);
    }
    if mean {
        let along: Vec<OnnxDim> = axes.iter().map(|axis| dims[*axis as usize]).collect();
        let count = graph.count(&along, dtype)?;
        value = graph.div(value, count);
    }
    let value = graph.expand_to(value, &dims)?;
    graph.write(dx, value);
    Ok(())
}

macro_rules! reductions {
    ($($op:ident $onnx:literal),*) => {$(
        impl ExportOp for $op {
            fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
                reduce_by(graph, $onnx, [self.x, self.out], &self.reduce)
            }
        }
    )*};
}
reductions!(
    ReduceAmax "ReduceMax", ReduceAmin "ReduceMin", ReduceMax "ReduceMax", ReduceMean "ReduceMean", ReduceMin "ReduceMin", ReduceProd "ReduceProd",
    ReduceSum "ReduceSum"
);

impl ExportOp for ReduceSumGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axes = axes(graph, self.dx, &self.reduce)?;
        spread(graph, [self.x, self.dout, self.dx], &axes, false)
    }
}
impl ExportOp for ReduceMeanGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axes = axes(graph, self.dx, &self.reduce)?;
        spread(graph, [self.x, self.dout, self.dx], &axes, true)
    }
}

impl ExportOp for Mean {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axes: Vec<i64> = (0..graph.rank(self.x)? as i64).collect();
        let x = graph.read(self.x)?;
        let mean = graph.reduce("ReduceMean", x, &axes, false)?;
        let mean = graph.shaped_as(mean, self.out)?;
        graph.write(self.out, mean);
        Ok(())
    }
}
impl ExportOp for MeanGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axes: Vec<i64> = (0..graph.rank(self.dx)? as i64).collect();
        spread(graph, [self.x, self.dout, self.dx], &axes, true)
    }
}

impl ExportOp for Softmax {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        normalise(graph, "Softmax", [self.x, self.out], i64::from(self.axis))
    }
}
impl ExportOp for LogSoftmax {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        normalise(graph, "LogSoftmax", [self.x, self.out], i64::from(self.axis))
    }
}

fn normalise(graph: &mut OnnxGraph<'_>, op: &str, [x, out]: [Var; 2], axis: i64) -> Result<()> {
    let (mut value, scalar) = (graph.read(x)?, graph.rank(x)? == 0);
    if scalar {
        value = graph.reshape(value, &[1])?;
    }
    let axis = if scalar { 0 } else { axis };
    let mut result = graph.op(op, &[value], &[("axis", NodeAttr::Int(axis))]);
    if scalar {
        result = graph.reshape(result, &[])?;
    }
    graph.write(out, result);
    Ok(())
}

/// `dx` = `dout` where `x` is the extreme, and 0 elsewhere; `shared` by several such elements, or whole for each.
fn extreme_grad(
    graph: &mut OnnxGraph<'_>,
    [x, out, dout, dx]: [Var; 4],
    reduce: &ReduceAttrs,
    shared: bool,
) -> Result<()> {
    let mut kept = graph.run_dims(x)?;
    let axes = axes(graph, x, reduce)?;
    axes.iter().for_each(|axis| kept[*axis as usize] = OnnxDim::Known(1));
    let (mut value, extreme, mut gradient) = (graph.read(x)?, graph.read(out)?, graph.read(dout)?);
    if graph.dtype(out)? != graph.dtype(x)? {
        value = graph.cast(value, graph.dtype(out)?);
        gradient = graph.cast(gradient, graph.dtype(dx)?);
    }
    let (out, mut dout) = (graph.reshape_to(extreme, &kept)?, graph.reshape_to(gradient, &kept)?);
    let zero = graph.scalar(graph.dtype(dx)?, 0.0)?;
    let is_extreme = graph.op("Equal", &[value, out], &[]);
    if shared {
        let counted = graph.cast(is_extreme, graph.dtype(dx)?);
        let count = graph.reduce("ReduceSum", counted, &axes, true)?;
        dout = graph.div(dout, count);
    }
    let value = graph.op("Where", &[is_extreme, dout, zero], &[]);
    graph.write(dx, value);
    Ok(())
}

impl ExportOp for ReduceMaxGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        extreme_grad(graph, [self.x, self.out, self.dout, self.dx], &self.reduce, false)
    }
}
impl ExportOp for ReduceMinGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        extreme_grad(graph, [self.x, self.out, self.dout, self.dx], &self.reduce, false)
    }
}
impl ExportOp for ReduceAmaxGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        extreme_grad(graph, [self.x, self.out, self.dout, self.dx], &self.reduce, true)
    }
}
impl ExportOp for ReduceAminGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        extreme_grad(graph, [self.x, self.out, self.dout, self.dx], &self.reduce, true)
    }
}
