//! Remainders, Kronecker products, and evenly spaced numbers.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::{
    floor_division::{ElementwiseFloordiv, ElementwiseMod},
    matmul::{Kron, KronGrad},
    ranges::{Linspace, Range},
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<ElementwiseFloordiv>(),
        rule::<ElementwiseMod>(),
        rule::<Kron>(),
        rule::<KronGrad>(),
        rule::<Linspace>(),
        rule::<Range>(),
    ]
}

/// Two operands, the one of lower rank from dimension `axis` of the other one on; −1 aligns the last dimensions.
fn operands(graph: &mut OnnxGraph<'_>, vars: [Var; 2], axis: i32) -> Result<[OnnxValue; 2]> {
    let ranks = [graph.rank(vars[0])?, graph.rank(vars[1])?];
    let mut values = [graph.read(vars[0])?, graph.read(vars[1])?];
    let lower = usize::from(ranks[1] <= ranks[0]);
    let behind = (ranks[1 - lower] - ranks[lower]) as i64 - i64::from(axis);
    if axis >= 0 && behind > 0 && ranks[lower] > 0 {
        // ONNX aligns the last dimensions.
        values[lower] = graph.unsqueeze(values[lower], &(-behind..0).collect::<Vec<_>>())?;
    }
    Ok(values)
}

/// The remainder of floor division, with the sign of `y`.
fn remainder(graph: &mut OnnxGraph<'_>, [x, y]: [OnnxValue; 2], dtype: DType) -> Result<OnnxValue> {
    if !dtype.is_float() {
        return Ok(graph.op("Mod", &[x, y], &[]));
    }
    let zero = graph.scalar(dtype, 0.0)?;
    let rest = graph.op("Mod", &[x, y], &[("fmod", NodeAttr::Int(1))]);
    let exact = graph.op("Equal", &[rest, zero], &[]);
    let below = [rest, y].map(|value| graph.op("Less", &[value, zero], &[]));
    let moved = graph.op("Xor", &below, &[]);
    let other = graph.add(rest, y);
    let value = graph.op("Where", &[moved, other, rest], &[]);
    Ok(graph.op("Where", &[exact, rest, value], &[]))
}

impl ExportOp for ElementwiseMod {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (values, dtype) = (operands(graph, [self.x, self.y], self.axis)?, graph.dtype(self.x)?);
        let out = remainder(graph, values, dtype)?;
        graph.write(self.out, out);
        Ok(())
    }
}
impl ExportOp for ElementwiseFloordiv {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let ([x, y], dtype) = (operands(graph, [self.x, self.y], self.axis)?, graph.dtype(self.x)?);
        let out = if dtype.is_float() {
            let quotient = graph.div(x, y);
            graph.op("Floor", &[quotient], &[])
        } else {
            // The division of integers is exact without the remainder.
            let rest = remainder(graph, [x, y], dtype)?;
            let whole = graph.sub(x, rest);
            graph.div(whole, y)
        };
        graph.write(self.out, out);
        Ok(())
    }
}

/// Factors of a Kronecker product: each dimension becomes two, one for either factor.
struct KronFactors {
    x: OnnxValue,
    y: OnnxValue,
    /// Dimensions of the product.
    rank: usize,
}

impl KronFactors {
    fn of(graph: &mut OnnxGraph<'_>, vars: [Var; 2]) -> Result<KronFactors> {
        let ranks = [graph.rank(vars[0])?, graph.rank(vars[1])?];
        let rank = ranks[0].max(ranks[1]);
        let mut values = [graph.read(vars[0])?, graph.read(vars[1])?];
        for (i, value) in values.iter_mut().enumerate() {
            let own = |axis: &i64| *axis as usize / 2 >= rank - ranks[i] && *axis as usize % 2 == i;
            let axes: Vec<i64> = (0..2 * rank as i64).filter(|axis| !own(axis)).collect();
            if !axes.is_empty() {
                *value = graph.unsqueeze(*value, &axes)?;
            }
        }
        Ok(KronFactors { x: values[0], y: values[1], rank })
    }
}

impl ExportOp for Kron {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let KronFactors { x, y, rank } = KronFactors::of(graph, [self.x, self.y])?;
        let product = graph.mul(x, y);
        let dims: Vec<OnnxDim> = match graph.dims(self.out) {
            Ok(dims) => dims.into_iter().map(OnnxDim::Known).collect(),
            Err(_) => (0..rank).map(|i| OnnxDim::Of(product, 2 * i, 2 * i + 2)).collect(),
        };
        let out = graph.reshape_to(product, &dims)?;
        graph.write(self.out, out);
        Ok(())
    }
}
impl ExportOp for KronGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let KronFactors { x, y, rank } = KronFactors::of(graph, [self.x, self.y])?;
        let vars = [self.x, self.y];
        let dims = [graph.run_dims(vars[0])?, graph.run_dims(vars[1])?];
        let apart = |i: usize| {
            let own = &dims[i % 2];
            (i / 2 + own.len()).checked_sub(rank).map_or(OnnxDim::Known(1), |i| own[i])
        };
        let dout = graph.read(self.dout)?;
        let dout = graph.reshape_to(dout, &(0..2 * rank).map(apart).collect::<Vec<_>>())?;
        for (i, (gradient, other)) in [(self.dx, y), (self.dy, x)].into_iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let product = graph.mul(dout, other);
            let axes: Vec<i64> = (0..rank as i64).map(|axis| 2 * axis + 1 - i as i64).collect();
            let sum = graph.reduce("ReduceSum", product, &axes, false)?;
            let sum = graph.reshape_to(sum, &dims[i])?;
            graph.write(gradient, sum);
        }
        Ok(())
    }
}

/// One element as a scalar of that dtype.
fn number(graph: &mut OnnxGraph<'_>, var: Var, dtype: DType) -> Result<OnnxValue> {
    let value = graph.read(var)?;
    let value = if graph.dtype(var)? == dtype { value } else { graph.cast(value, dtype) };
    graph.reshape(value, &[])
}

impl ExportOp for Range {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let dtype = graph.dtype(self.out)?;
        let [start, end, step] = [self.start, self.end, self.step].map(|var| number(graph, var, dtype));
        let out = graph.op("Range", &[start?, end?, step?], &[]);
        graph.write(self.out, out);
        Ok(())
    }
}
impl ExportOp for Linspace {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (dtype, wide) = (graph.dtype(self.out)?, DType::F64);
        // First in the dtype of the result, as in the reference.
        let mut ends = [self.start, self.stop];
        let mut values = vec![];
        for end in &mut ends {
            let value = number(graph, *end, dtype)?;
            values.push(graph.cast(value, wide));
        }
        let count = number(graph, self.num, DType::I64)?;
        let [zero, one] = [graph.scalar(DType::I64, 0.0)?, graph.scalar(DType::I64, 1.0)?];
        let index = graph.op("Range", &[zero, count, one], &[]);
        let (last, difference) = (graph.sub(count, one), graph.sub(values[1], values[0]));
        let divisor = graph.op("Max", &[last, one], &[]);
        let divisor = graph.cast(divisor, wide);
        let step = graph.div(difference, divisor);
        // The second half from the end, so that the last number is exact.
        let [before, behind] = [index, graph.sub(last, index)].map(|steps| {
            let steps = graph.cast(steps, wide);
            graph.mul(steps, step)
        });
        let (from_start, from_end) = (graph.add(values[0], before), graph.sub(values[1], behind));
        let two = graph.scalar(DType::I64, 2.0)?;
        let half = graph.div(count, two);
        let half = graph.op("Max", &[half, one], &[]);
        let is_first = graph.op("Less", &[index, half], &[]);
        let value = graph.op("Where", &[is_first, from_start, from_end], &[]);
        let value = graph.cast(value, dtype);
        graph.write(self.out, value);
        Ok(())
    }
}
