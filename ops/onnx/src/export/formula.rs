//! Operators with formulas as nodes.

use autobwd::{
    DType, Error, ErrorKind, Meta, OpDesc, Result,
    op::{FormulaFunction, FormulaNode, OpInfo},
    program::Var,
};
use autobwd_core::__private::{FormulaSpace, internals::*};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::{
    dims::OnnxDim,
    onnx_graph::{OnnxGraph, OnnxValue},
};

/// Writes an operator by its formula; `false` if it has none.
///
/// # Errors
/// Unknown dimensions; formulas that do not exist for integers.
pub(super) fn lower(graph: &mut OnnxGraph<'_>, info: &'static OpInfo, op: &OpDesc) -> Result<bool> {
    let Some(formula) = info.formula(op)? else { return Ok(false) };
    let schema = info.schema();
    let one = |slots: &autobwd::program::Slots, name: &str| slots.get(name).first().copied();
    let reads: Vec<&str> = formula.reads();
    let inputs: Vec<Option<Var>> = schema
        .inputs
        .iter()
        .map(|slot| one(&op.inputs, slot.name).filter(|_| reads.contains(&slot.name)))
        .collect();
    let outputs: Vec<(&str, Var, usize)> =
        formula.outputs().filter_map(|(slot, node)| Some((slot, one(&op.outputs, slot)?, node))).collect();
    let all = || inputs.iter().flatten().copied().chain(outputs.iter().map(|(_, var, _)| *var));
    let types: Vec<Meta> = all().map(|var| Ok(graph.desc(var)?.meta())).collect::<Result<_>>()?;
    let broadcast = FormulaSpace::of(schema, op, &types)?;
    let (dtype, rank) = (broadcast.dtype, broadcast.dims.len());
    let space: Vec<i64> = broadcast.dims.iter().map(|dim| dim.wire()).collect();
    let aligned = |dims: &[i64]| broadcast.align(dims, 1);
    let mut work = FormulaLanes { graph, dtype, nodes: formula.nodes(), values: vec![] };
    for node in formula.nodes() {
        let value = match node {
            FormulaNode::Input(slot) => match inputs[*slot] {
                None => work.number(0.0)?,
                Some(var) => {
                    let mut value = work.graph.read(var)?;
                    if work.graph.dtype(var)? != dtype {
                        value = work.graph.cast(value, dtype);
                    }
                    let dims = work.graph.shape(var)?;
                    let wanted = aligned(&dims)?;
                    // ONNX aligns the last dimensions.
                    let padded = wanted.len() >= dims.len() && wanted.ends_with(&dims);
                    if padded {
                        value
                    } else {
                        let dims = broadcast.align(&work.graph.run_dims(var)?, OnnxDim::Known(1))?;
                        work.graph.reshape_to(value, &dims)?
                    }
                }
            },
            node => work.node(*node)?,
        };
        work.values.push(value);
    }
    let values = work.values;
    for (slot, var, node) in outputs {
        let mut value = values[node];
        let is_whole = |slot: usize| {
            let shape = inputs[slot].and_then(|var| graph.shape(var).ok());
            shape.is_some_and(|dims| aligned(&dims).is_ok_and(|dims| dims == space))
        };
        if !spans(formula.nodes(), node, &is_whole) {
            // Constants and broadcast operands alone do not have the shape of the output.
            if space.contains(&-1) {
                for input in op.reads() {
                    let dims = graph.run_dims(input)?;
                    if let Ok(dims) = broadcast.align(&dims, OnnxDim::Known(1)) {
                        value = graph.expand_to(value, &dims)?;
                    }
                }
            } else {
                let dims = graph.ints(&space)?;
                value = graph.op("Expand", &[value, dims], &[]);
            }
        }
        let like = schema.outputs.iter().find(|output| output.name == slot).and_then(|output| output.like);
        if let Some((slot, of)) = like.and_then(|slot| Some((slot, one(&op.inputs, slot)?))) {
            let own = graph.run_dims(of)?;
            let others: Vec<Vec<i64>> =
                operands(op, slot).map(|var| aligned(&graph.shape(var)?)).collect::<Result<_>>()?;
            let may_be_one = |i: usize| schema.broadcast && others.iter().any(|dims| dims[i] != 1);
            let dims = broadcast.align(&own, OnnxDim::Known(1))?;
            value = graph.sum_to_dims(value, &space, &dims, may_be_one)?;
            if own.len() != rank {
                value = graph.reshape_to(value, &own)?;
            }
        }
        if graph.dtype(var)? != dtype {
            value = graph.cast(value, graph.dtype(var)?);
        }
        graph.write(var, value);
    }
    Ok(true)
}

/// The operands that are broadcast with the one in that slot: other inputs, but for gradients and the results that these
/// belong to.
fn operands<'o>(op: &'o OpDesc, slot: &'o str) -> impl Iterator<Item = Var> + 'o {
    let is_operand = move |name: &str| {
        name != slot && !name.ends_with("@GRAD") && op.inputs.find(&format!("{name}@GRAD")).is_none()
    };
    op.inputs.iter().filter(move |(name, _)| is_operand(name)).flat_map(|(_, vars)| vars.iter().copied())
}

/// Whether a node depends on an input for which `is_whole` holds.
fn spans(nodes: &[FormulaNode], node: usize, is_whole: &impl Fn(usize) -> bool) -> bool {
    let mut depends = vec![false; node + 1];
    for (at, node) in nodes.iter().enumerate().take(node + 1) {
        depends[at] = match node {
            FormulaNode::Input(slot) => is_whole(*slot),
            node => node.operands().any(|operand| depends[operand]),
        };
    }
    depends[node]
}

/// The number of a constant node.
fn constant(node: FormulaNode) -> Option<f64> {
    match node {
        FormulaNode::Constant(x) | FormulaNode::Literal(x) => Some(x),
        _ => None,
    }
}

/// The node that computes the larger or the smaller one of `a` and `b`, if that is what `mask ? a : b` is. ONNX Runtime 1.32
/// takes 22 ms for a million elements of `leaky_relu` by `Where`, 0.3 ms by `Max`.
///
/// `Max` and `Min` are NaN where an operand is. So is the choice, where it takes the operand that may be NaN: `b` next to a
/// constant `a`, or a multiple of `a`.
fn extremum(nodes: &[FormulaNode], mask: usize, a: usize, b: usize) -> Option<&'static str> {
    let FormulaNode::Greater(larger, smaller) = nodes[mask] else { return None };
    if constant(nodes[a]).is_some_and(|a| !a.is_nan()) {
        return match (larger, smaller) {
            operands if operands == (a, b) => Some("Max"),
            operands if operands == (b, a) => Some("Min"),
            _ => None,
        };
    }
    let FormulaNode::Mul(x, factor) = nodes[b] else { return None };
    // 0 is no factor: its product with infinity is NaN.
    let factor = constant(nodes[factor]).filter(|factor| x == a && factor.is_finite() && *factor > 0.0)?;
    let of_positive = larger == a && constant(nodes[smaller]) == Some(0.0);
    of_positive.then_some(if factor <= 1.0 { "Max" } else { "Min" })
}

struct FormulaLanes<'g, 'p> {
    graph: &'g mut OnnxGraph<'p>,
    dtype: DType,
    nodes: &'g [FormulaNode],
    /// The value of each node so far.
    values: Vec<OnnxValue>,
}

impl FormulaLanes<'_, '_> {
    fn number(&mut self, x: f64) -> Result<OnnxValue> {
        if !self.dtype.is_float() && x.fract() != 0.0 {
            let text = format!("a formula with {x} does not exist for {}", self.dtype);
            return Err(Error::new(ErrorKind::DType, text));
        }
        self.graph.scalar(self.dtype, x)
    }

    fn node(&mut self, node: FormulaNode) -> Result<OnnxValue> {
        let of = |at: usize| self.values[at];
        let (op, operands) = match node {
            FormulaNode::Input(_) => return Err(Error::internal("an input within a formula")),
            FormulaNode::Constant(x) | FormulaNode::Literal(x) => return self.number(x),
            FormulaNode::Neg(a) => ("Neg", vec![of(a)]),
            FormulaNode::Add(a, b) => ("Add", vec![of(a), of(b)]),
            FormulaNode::Sub(a, b) => ("Sub", vec![of(a), of(b)]),
            FormulaNode::Mul(a, b) => ("Mul", vec![of(a), of(b)]),
            FormulaNode::Div(a, b) => ("Div", vec![of(a), of(b)]),
            FormulaNode::Pow(a, b) => ("Pow", vec![of(a), of(b)]),
            FormulaNode::Greater(a, b) => ("Greater", vec![of(a), of(b)]),
            FormulaNode::Equal(a, b) => ("Equal", vec![of(a), of(b)]),
            FormulaNode::Select(mask, a, b) => match (extremum(self.nodes, mask, a, b), self.nodes[b]) {
                (Some("Min"), FormulaNode::Select(inner, low, x))
                    if extremum(self.nodes, inner, low, x) == Some("Max")
                        && constant(self.nodes[low]).is_some() =>
                {
                    ("Clip", vec![of(x), of(low), of(a)])
                }
                (Some(op), _) => (op, vec![of(b), of(a)]),
                (None, _) => ("Where", vec![of(mask), of(a), of(b)]),
            },
            FormulaNode::Scaled(a, b) => {
                let (a, b) = (of(a), of(b));
                let (zero, product) = (self.number(0.0)?, self.graph.mul(a, b));
                let mask = self.graph.op("Equal", &[b, zero], &[]);
                ("Where", vec![mask, zero, product])
            }
            FormulaNode::MulAdd(a, b, c) => {
                let product = self.graph.mul(of(a), of(b));
                ("Add", vec![product, self.values[c]])
            }
            FormulaNode::Call(function, a) => return self.call(function, self.values[a]),
            // A further node needs a line above.
            _ => return Err(Error::internal("an unknown node of a formula")),
        };
        Ok(self.graph.op(op, &operands, &[]))
    }

    fn call(&mut self, function: FormulaFunction, x: OnnxValue) -> Result<OnnxValue> {
        let op = match function {
            FormulaFunction::Exp => "Exp",
            FormulaFunction::Log => "Log",
            FormulaFunction::Tanh => "Tanh",
            FormulaFunction::Erf => "Erf",
            FormulaFunction::Sigmoid => "Sigmoid",
            FormulaFunction::Sqrt => "Sqrt",
            FormulaFunction::Abs => "Abs",
            FormulaFunction::Sin => "Sin",
            FormulaFunction::Cos => "Cos",
            FormulaFunction::Floor => "Floor",
            FormulaFunction::Round => return self.round(x),
            FormulaFunction::Expm1 => return self.expm1(x),
            FormulaFunction::Log1p => return self.log1p(x),
            FormulaFunction::NormalCdf => return self.normal_cdf(x),
            FormulaFunction::Gelu => {
                let cdf = self.normal_cdf(x)?;
                return Ok(self.graph.mul(x, cdf));
            }
            FormulaFunction::GeluTanh => return self.gelu_tanh(x),
            // A further function needs a line above.
            _ => return Err(Error::internal(format!("function {} of a formula", function.name()))),
        };
        Ok(self.graph.op(op, &[x], &[]))
    }

    /// Half away from zero; ONNX rounds halves to even numbers.
    fn round(&mut self, x: OnnxValue) -> Result<OnnxValue> {
        let half = self.number(0.5)?;
        let sign = self.graph.op("Sign", &[x], &[]);
        let size = self.graph.op("Abs", &[x], &[]);
        let size = self.graph.add(size, half);
        let size = self.graph.op("Floor", &[size], &[]);
        Ok(self.graph.mul(sign, size))
    }

    /// `(u − 1) * x / log(u)` with `u = eˣ`, which is exact near 0 (W. Kahan).
    fn expm1(&mut self, x: OnnxValue) -> Result<OnnxValue> {
        let one = self.number(1.0)?;
        let u = self.graph.op("Exp", &[x], &[]);
        let difference = self.graph.sub(u, one);
        let log = self.graph.op("Log", &[u], &[]);
        let ratio = self.graph.div(x, log);
        let exact = self.graph.mul(difference, ratio);
        let (size, equal) = (self.graph.op("Abs", &[x], &[]), self.graph.op("Equal", &[u, one], &[]));
        let large = self.graph.op("Greater", &[size, one], &[]);
        let near = self.graph.op("Where", &[equal, x, exact], &[]);
        Ok(self.graph.op("Where", &[large, difference, near], &[]))
    }

    /// `log(u) * x / (u − 1)` with `u = 1 + x`, which is exact near 0 (W. Kahan).
    fn log1p(&mut self, x: OnnxValue) -> Result<OnnxValue> {
        let one = self.number(1.0)?;
        let u = self.graph.add(x, one);
        let difference = self.graph.sub(u, one);
        let log = self.graph.op("Log", &[u], &[]);
        let ratio = self.graph.div(x, difference);
        let exact = self.graph.mul(log, ratio);
        let (size, equal) = (self.graph.op("Abs", &[x], &[]), self.graph.op("Equal", &[u, one], &[]));
        let large = self.graph.op("Greater", &[size, one], &[]);
        let near = self.graph.op("Where", &[equal, x, exact], &[]);
        Ok(self.graph.op("Where", &[large, log, near], &[]))
    }

    /// `½ * (1 + erf(x / √2))`
    fn normal_cdf(&mut self, x: OnnxValue) -> Result<OnnxValue> {
        let [scale, one, half] = [self.number(FRAC_1_SQRT_2)?, self.number(1.0)?, self.number(0.5)?];
        let scaled = self.graph.mul(x, scale);
        let erf = self.graph.op("Erf", &[scaled], &[]);
        let sum = self.graph.add(erf, one);
        Ok(self.graph.mul(sum, half))
    }

    /// `½ * x * (1 + tanh(√(2 / π) * (x + 0.044715 * x³)))`
    fn gelu_tanh(&mut self, x: OnnxValue) -> Result<OnnxValue> {
        let [scale, cubic] = [self.number((2.0 / PI).sqrt())?, self.number(0.044_715)?];
        let [one, half] = [self.number(1.0)?, self.number(0.5)?];
        let square = self.graph.mul(x, x);
        let factor = self.graph.mul(square, cubic);
        let factor = self.graph.add(factor, one);
        let inner = self.graph.mul(x, factor);
        let inner = self.graph.mul(inner, scale);
        let tanh = self.graph.op("Tanh", &[inner], &[]);
        let sum = self.graph.add(tanh, one);
        let half = self.graph.mul(x, half);
        Ok(self.graph.mul(half, sum))
    }
}
