//! Operators with formulas.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use autobwd::{
    Error, ErrorKind, Result,
    op::{FormulaFunction, FormulaNode},
};
use autobwd_core::__private;
use autobwd_core::__private::internals::*;
use autobwd_plan::Instruction;

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
    let mut inputs = vec![];
    for slot in 0..schema.inputs.len() {
        let id = node.input(slot).filter(|_| formula.is_read(slot));
        inputs.push(id.map(|id| work.read(id)));
    }
    let types = |slot: usize| node.output(slot).map(|id| &work.graph.values[id].meta);
    let outputs: Vec<(usize, usize)> = formula
        .outputs()
        .filter_map(|(name, node)| Some((schema.outputs.iter().position(|slot| slot.name == name)?, node)))
        .filter(|(slot, _)| types(*slot).is_some())
        .collect();
    let written = outputs.iter().filter_map(|(slot, _)| types(*slot)).map(|meta| HloDType::from(meta.dtype));
    let dtypes: Vec<HloDType> = inputs.iter().flatten().map(Hlo::dtype).chain(written).collect();
    let float = dtypes.iter().copied().find(|dtype| dtype.is_float());
    let dtype =
        float.or(dtypes.iter().copied().find(|dtype| *dtype != HloDType::Bool)).unwrap_or(HloDType::F32);

    // Inputs that the formula does not read count, too.
    let metas = node.inputs.iter().chain(&node.outputs).filter_map(|(_, id)| *id);
    let shapes: Vec<Vec<usize>> = metas
        .map(|id| work.graph.values[id].meta.dims.iter().map(|dim| dim.get().unwrap_or(0)).collect())
        .collect();
    let (rank, axis) =
        (shapes.iter().map(Vec::len).max().unwrap_or(0), __private::broadcast_axis(schema, &node.desc));
    let align = |dims: &[usize]| {
        let aligned = __private::aligned(dims, rank, axis, 1);
        aligned.map(|dims| dims.to_vec()).ok_or_else(|| Error::internal("an operand that does not broadcast"))
    };
    let mut space = vec![1; rank];
    for dims in &shapes {
        space.iter_mut().zip(align(dims)?).filter(|(_, dim)| *dim != 1).for_each(|(all, dim)| *all = dim);
    }
    let unset = Hlo::unset(work.f, &autobwd::Meta::new(autobwd::DType::F32, []));
    let mut lanes =
        HloLanes { nodes: formula.nodes(), of: unset, dtype, space: space.clone(), values: vec![] };
    for node in formula.nodes() {
        let value = match node {
            FormulaNode::Input(slot) => match &inputs[*slot] {
                None => lanes.number(0.0)?,
                Some(value) => {
                    let aligned = value.reshape(&align(value.dims())?);
                    let axes: Vec<usize> = (0..rank).collect();
                    aligned.broadcast(&space, &axes).convert(dtype)
                }
            },
            node => lanes.node(*node)?,
        };
        lanes.values.push(value);
    }
    let values = lanes.values;
    for (slot, result) in outputs {
        let Some(id) = node.output(slot) else { continue };
        let (meta, mut value) = (&work.graph.values[id].meta, values[result].clone());
        let own: Vec<usize> = meta.dims.iter().map(|dim| dim.get().unwrap_or(0)).collect();
        let like = schema.outputs[slot].like.and_then(|like| schema.input_number(like));
        if like.is_some() {
            let kept = align(&own)?;
            let axes: Vec<usize> = (0..rank).filter(|i| kept[*i] == 1 && space[*i] != 1).collect();
            value = value.sum(&axes);
        }
        value = value.convert(meta.dtype);
        if value.numel() != own.iter().product::<usize>() {
            // The kernel has another shape rule than the formula.
            return Ok(false);
        }
        work.write(id, value)?;
    }
    Ok(true)
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
