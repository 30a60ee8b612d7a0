//! Operators with formulas.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use autobwd::{
    Dims, Error, ErrorKind, Meta, Result,
    op::{FormulaFunction, FormulaNode},
};
use autobwd_core::__private::{FormulaSpace, internals::*};
use autobwd_plan::{Instruction, ValueId};

use super::{
    graph_lowering::GraphLowering,
    hlo::{Hlo, HloDType},
};

/// Lowers an operator by its formula; `false` if it has none.
///
/// # Errors
/// Constants that an integer dtype cannot hold.
pub(super) fn lower(work: &mut GraphLowering<'_>, node: &Instruction) -> Result<bool> {
    let Some(formula) = node.info.formula(&node.desc)? else { return Ok(false) };
    let schema = node.info.schema();
    let meta = |id: ValueId| &work.graph.values[id].meta;
    let read = |slot: usize| node.input(slot).filter(|_| formula.is_read(slot));
    let outputs: Vec<(usize, ValueId, usize)> = formula
        .outputs()
        .filter_map(|(name, value)| {
            let slot = schema.outputs.iter().position(|slot| slot.name == name)?;
            Some((slot, node.output(slot)?, value))
        })
        .collect();
    let ids = (0..schema.inputs.len()).filter_map(read).chain(outputs.iter().map(|(_, id, _)| *id));
    let types: Vec<Meta> = ids.map(|id| meta(id).clone()).collect();
    let space = FormulaSpace::of(schema, &node.desc, &types)?;
    let unset = Hlo::unset(work.f, &Meta::new(space.dtype, []));
    let dims = known(&space.dims);
    let mut lanes =
        HloLanes { nodes: formula.nodes(), dtype: unset.dtype(), of: unset, space: dims, values: vec![] };
    for node in formula.nodes() {
        let value = match node {
            FormulaNode::Input(slot) => match read(*slot) {
                None => lanes.number(0.0)?,
                Some(id) => {
                    let value = work.read(id);
                    let aligned = value.reshape(&space.align(value.dims(), 1)?);
                    let axes: Vec<usize> = (0..lanes.space.len()).collect();
                    aligned.broadcast(&lanes.space, &axes).convert(lanes.dtype)
                }
            },
            node => lanes.node(*node)?,
        };
        lanes.values.push(value);
    }
    let HloLanes { values, space: full, .. } = lanes;
    for (slot, id, result) in outputs {
        let (dtype, own, mut value) = (meta(id).dtype, known(&meta(id).dims), values[result].clone());
        if schema.outputs[slot].like.is_some_and(|like| schema.input_number(like).is_some()) {
            let kept = space.align(&own, 1)?;
            let axes: Vec<usize> = (0..full.len()).filter(|i| kept[*i] == 1 && full[*i] != 1).collect();
            value = value.sum(&axes);
        }
        value = value.convert(dtype);
        if value.numel() != own.iter().product::<usize>() {
            // The kernel has another shape rule than the formula.
            return Ok(false);
        }
        work.write(id, value)?;
    }
    Ok(true)
}

/// Dimensions of a planned value, which are known.
fn known(dims: &Dims) -> Vec<usize> {
    dims.iter().map(|dim| dim.get().unwrap_or(0)).collect()
}

struct HloLanes<'f> {
    nodes: &'f [FormulaNode],
    of: Hlo,
    dtype: HloDType,
    space: Vec<usize>,
    /// Of the nodes of the formula.
    values: Vec<Hlo>,
}

impl HloLanes<'_> {
    fn number(&self, x: f64) -> Result<Hlo> {
        if !self.dtype.is_float() && x.is_finite() && x.fract() != 0.0 {
            let text = format!("a formula with {x} does not exist for integers");
            return Err(Error::new(ErrorKind::DType, text));
        }
        Ok(self.of.full(self.dtype, &self.space, x))
    }

    /// An infinity, which integers do not reach.
    fn infinity(&self, node: usize) -> Option<f64> {
        let of = |node: &FormulaNode| match node {
            FormulaNode::Constant(x) | FormulaNode::Literal(x) => (x.is_infinite()).then_some(*x),
            _ => None,
        };
        self.nodes.get(node).and_then(of).filter(|_| !self.dtype.is_float())
    }

    /// A mask that is the same everywhere.
    fn all(&self, holds: bool) -> Hlo {
        self.of.full(HloDType::Bool, &self.space, f64::from(u8::from(holds)))
    }

    /// A value as a number: 1 and 0 for a mask.
    fn value(&self, at: usize) -> Hlo {
        self.values[at].convert(self.dtype)
    }

    /// A value as a mask, which is true for positive numbers.
    fn mask(&self, at: usize) -> Hlo {
        let value = &self.values[at];
        if value.dtype() == HloDType::Bool && self.dtype != HloDType::Bool {
            return value.clone();
        }
        value.greater(&value.full_like(0.0))
    }

    fn node(&mut self, node: FormulaNode) -> Result<Hlo> {
        let of = |at: usize| self.value(at);
        Ok(match node {
            FormulaNode::Input(_) => return Err(Error::internal("an input within a formula")),
            FormulaNode::Constant(x) | FormulaNode::Literal(x) => return self.number(x),
            FormulaNode::Neg(a) => -of(a),
            FormulaNode::Add(a, b) => of(a) + of(b),
            FormulaNode::Sub(a, b) => of(a) - of(b),
            FormulaNode::Mul(a, b) => of(a) * of(b),
            FormulaNode::Div(a, b) => of(a) / of(b),
            FormulaNode::Pow(a, b) => of(a).pow(&of(b)),
            FormulaNode::Greater(a, b) => match (self.infinity(a), self.infinity(b)) {
                (None, None) => of(a).greater(&of(b)),
                (Some(a), _) => self.all(a > 0.0),
                (None, Some(b)) => self.all(b < 0.0),
            },
            FormulaNode::Equal(a, b) => match self.infinity(a).or(self.infinity(b)) {
                None => of(a).equal(&of(b)),
                Some(_) => self.all(false),
            },
            FormulaNode::Select(mask, a, b) => self.mask(mask).select(&of(a), &of(b)),
            FormulaNode::Scaled(a, b) => {
                let zero = self.number(0.0)?;
                of(b).equal(&zero).select(&zero, &(of(a) * of(b)))
            }
            FormulaNode::MulAdd(a, b, c) => of(a) * of(b) + of(c),
            FormulaNode::Call(function, a) => call(function, &of(a))?,
            // A further node needs a line above.
            _ => return Err(Error::internal("an unknown node of a formula")),
        })
    }
}

fn call(function: FormulaFunction, x: &Hlo) -> Result<Hlo> {
    Ok(match function {
        FormulaFunction::Exp => x.exp(),
        FormulaFunction::Log => x.log(),
        FormulaFunction::Tanh => x.tanh(),
        FormulaFunction::Expm1 => x.expm1(),
        FormulaFunction::Log1p => x.log1p(),
        FormulaFunction::Erf => x.chlo("erf"),
        FormulaFunction::NormalCdf => normal_cdf(x),
        FormulaFunction::Sigmoid => x.sigmoid(),
        FormulaFunction::Gelu => x * normal_cdf(x),
        FormulaFunction::GeluTanh => {
            let inner = x * (x.square() * 0.044_715 + 1.0) * (2.0 / PI).sqrt();
            x * 0.5 * (inner.tanh() + 1.0)
        }
        FormulaFunction::Sqrt => x.sqrt(),
        FormulaFunction::Abs => x.abs(),
        FormulaFunction::Sin => x.sin(),
        FormulaFunction::Cos => x.cos(),
        FormulaFunction::Floor => x.floor(),
        FormulaFunction::Round => x.round(),
        // A further function needs a line above.
        _ => return Err(Error::internal(format!("function {} of a formula", function.name()))),
    })
}

/// `½ * erfc(−x / √2)`, which is exact for large negative numbers, too.
fn normal_cdf(x: &Hlo) -> Hlo {
    (x * -FRAC_1_SQRT_2).chlo("erfc") * 0.5
}
