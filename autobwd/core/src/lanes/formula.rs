//! Formulas as data: the expression trees of an operator's outputs, recorded by symbolic evaluation.
//!
//! The graph is not simplified when it is evaluated, except for a select between equal operands; only the printed
//! equation is. The graph of a derivative is recorded by evaluating the formula's graph on dual numbers of symbols, so
//! nothing is compiled for it.

use crate::{
    Error, ErrorKind, OpDesc, Result, Schema, SlotDef, Var,
    numbers::{Dual, Float, FormulaNode, Lane, SelectMask, Symbol, record},
    runtime::{FUSED, Isa, isa},
};

/// The expression trees of an operator's outputs, for given attributes: its formula, evaluated on symbols. Equal
/// subexpressions are one node. Created by [`OpInfo::formula`](crate::OpInfo::formula).
///
/// Its evaluation, node by node, is bit-identical to the result of the operator. `Display` writes it as equations
/// in [simplified](Formula::simplified) form.
///
/// ```
/// use autobwd::{Attr, OpDesc, OpInfoMap, op::FormulaNode};
/// # use autobwd_ops as _;
/// let swish = OpInfoMap::linked()?.get("swish")?;
/// # let mut program = autobwd::Program::new();
/// # let (x, out) = (program.var("x"), program.var("out"));
/// let desc = OpDesc::new("swish").input("X", [x]).output("Out", [out]).attr("beta", Attr::F32(0.5));
/// let Some(formula) = swish.formula(&desc)? else { panic!("swish has a formula") };
/// assert_eq!(formula.to_string(), "out = x * sigmoid(0.5 * x)");
/// assert_eq!(formula.reads(), ["X"]);
/// assert_eq!(formula.nodes()[0], FormulaNode::Input(0));
/// assert_eq!(formula.evaluate(&[2.0])?, [2.0 / (1.0 + (-1.0_f64).exp())]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Formula {
    pub(super) schema: &'static Schema,
    pub(super) nodes: Vec<FormulaNode>,
    /// Index of the slot in the schema, and of the node.
    pub(super) outputs: Vec<(usize, usize)>,
}

/// Evaluates a formula on symbols.
type RunOnSymbols<'a> = &'a dyn Fn(&mut dyn FnMut(usize) -> Symbol, &mut dyn FnMut(usize, Symbol));

impl Formula {
    /// Records the formula of a described operator. Absent and `shape_only` inputs read as 0, as in block functions.
    pub(super) fn record(schema: &'static Schema, desc: &OpDesc, run: RunOnSymbols<'_>) -> Formula {
        let is_read = |slot: &SlotDef| !slot.shape_only && is_present(desc.inputs.get(slot.name));
        let (nodes, outputs) = record(|| {
            let mut outputs: Vec<Symbol> = schema.outputs.iter().map(|_| Symbol::from(0.0)).collect();
            run(
                &mut |input| match schema.inputs.get(input).is_some_and(is_read) {
                    true => Symbol::input(input),
                    false => Symbol::from(0.0),
                },
                &mut |output, symbol| {
                    if let Some(place) = outputs.get_mut(output) {
                        *place = symbol;
                    }
                },
            );
            outputs
        });
        let outputs = outputs.into_iter().map(Symbol::node).enumerate();
        let is_written = |slot: usize| is_present(desc.outputs.get(schema.outputs[slot].name));
        let outputs = outputs.filter(|(slot, node)| *node < nodes.len() && is_written(*slot)).collect();
        Formula { schema, nodes, outputs }.pruned()
    }

    /// Removes nodes on which no output depends.
    pub(super) fn pruned(self) -> Formula {
        let mut used = vec![false; self.nodes.len()];
        self.outputs.iter().for_each(|(_, node)| used[*node] = true);
        for (number, node) in self.nodes.iter().enumerate().rev() {
            if used[number] {
                node.operands().for_each(|operand| used[operand] = true);
            }
        }
        let (mut number, mut nodes) = (vec![0; self.nodes.len()], vec![]);
        for (old, node) in self.nodes.iter().enumerate().filter(|(old, _)| used[*old]) {
            number[old] = nodes.len();
            nodes.push(node.of(|operand| number[operand]));
        }
        let outputs = self.outputs.iter().map(|(slot, node)| (*slot, number[*node])).collect();
        Formula { nodes, outputs, ..self }
    }

    /// All nodes in topological order, operands first.
    pub fn nodes(&self) -> &[FormulaNode] {
        &self.nodes
    }

    /// The output slots, each with its node.
    pub fn outputs(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.outputs.iter().map(|(slot, node)| (self.schema.outputs[*slot].name, *node))
    }

    /// The input slots that the outputs depend on; no other slot affects any bit.
    pub fn reads(&self) -> Vec<&'static str> {
        let slots = self.schema.inputs.iter().enumerate();
        slots.filter(|(slot, _)| self.is_read(*slot)).map(|(_, slot)| slot.name).collect()
    }

    /// As [`reads`](Formula::reads), for one output.
    pub fn reads_of(&self, output: &str) -> Vec<&'static str> {
        let is_output = |slot: usize| self.schema.outputs[slot].name == output;
        let outputs = self.outputs.iter().filter(|(slot, _)| is_output(*slot)).copied().collect();
        Formula { schema: self.schema, nodes: self.nodes.clone(), outputs }.pruned().reads()
    }

    /// Whether the outputs depend on this input.
    pub fn is_read(&self, input: usize) -> bool {
        self.nodes.contains(&FormulaNode::Input(input))
    }

    /// Outputs that are unchanged inputs: indices of output and input in the schema.
    pub fn copies(&self) -> impl Iterator<Item = (usize, usize)> {
        self.outputs.iter().filter_map(|(slot, node)| match self.nodes[*node] {
            FormulaNode::Input(input) => Some((*slot, input)),
            _ => None,
        })
    }

    /// The outputs in double precision, as the operator computes them on this machine; inputs are indexed as in the
    /// schema.
    ///
    /// # Errors
    /// Fewer inputs than the schema has.
    pub fn evaluate(&self, inputs: &[f64]) -> Result<Vec<f64>> {
        if inputs.len() < self.schema.inputs.len() {
            let text = format!("{} inputs, not {}, are needed", self.schema.inputs.len(), inputs.len());
            return Err(Error::new(ErrorKind::Slot, text));
        }
        Ok(match isa() {
            Isa::Baseline => self.evaluate_on(inputs, Lane::<f64, FUSED>, |lane| lane.0),
            Isa::Avx2 | Isa::Avx512 => self.evaluate_on(inputs, Lane::<f64, true>, |lane| lane.0),
        })
    }

    fn evaluate_on<F: Float>(&self, inputs: &[f64], to: fn(f64) -> F, from: fn(F) -> f64) -> Vec<f64> {
        let values = replay(&self.nodes, |input| inputs.get(input).copied().map_or(F::from(0.0), to));
        self.outputs.iter().map(|(_, node)| from(values[*node].number())).collect()
    }
}

fn is_present(args: &[Var]) -> bool {
    args.first().is_some_and(|var| *var != Var::EMPTY)
}

/// The value of a node.
enum EvaluatedNode<F: Float> {
    Number(F),
    Mask(SelectMask<F>),
}

impl<F: Float> EvaluatedNode<F> {
    fn number(&self) -> F {
        match self {
            EvaluatedNode::Number(number) => *number,
            EvaluatedNode::Mask(mask) => F::select(*mask, F::from(1.0), F::from(0.0)),
        }
    }

    fn mask(&self) -> SelectMask<F> {
        match self {
            EvaluatedNode::Number(number) => (*number).gt(F::from(0.0)),
            EvaluatedNode::Mask(mask) => *mask,
        }
    }
}

/// Evaluates a tree on any lanes, node by node.
fn replay<F: Float>(nodes: &[FormulaNode], mut get: impl FnMut(usize) -> F) -> Vec<EvaluatedNode<F>> {
    let mut values: Vec<EvaluatedNode<F>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let number = |operand: usize| values[operand].number();
        let literal = |operand: usize| match nodes[operand] {
            FormulaNode::Literal(constant) => Some(constant),
            _ => None,
        };
        let value = match *node {
            FormulaNode::Input(input) => get(input),
            FormulaNode::Constant(x) | FormulaNode::Literal(x) => F::from(x),
            FormulaNode::Neg(a) => -number(a),
            FormulaNode::Add(a, b) => literal(b).map_or_else(|| number(a) + number(b), |c| number(a) + c),
            FormulaNode::Sub(a, b) => literal(b).map_or_else(|| number(a) - number(b), |c| number(a) - c),
            FormulaNode::Mul(a, b) => literal(b).map_or_else(|| number(a) * number(b), |c| number(a) * c),
            FormulaNode::Div(a, b) => literal(b).map_or_else(|| number(a) / number(b), |c| number(a) / c),
            FormulaNode::Scaled(a, b) => number(a).scaled_by(number(b)),
            FormulaNode::MulAdd(a, b, c) => number(a).mul_add(number(b), number(c)),
            FormulaNode::Pow(a, b) => number(a).pow(number(b)),
            FormulaNode::Call(function, a) => function.apply(number(a)),
            FormulaNode::Select(mask, yes, no) => F::select(values[mask].mask(), number(yes), number(no)),
            FormulaNode::Greater(a, b) => {
                let mask = number(a).gt(number(b));
                values.push(EvaluatedNode::Mask(mask));
                continue;
            }
            FormulaNode::Equal(a, b) => {
                let mask = number(a).equals(number(b));
                values.push(EvaluatedNode::Mask(mask));
                continue;
            }
        };
        values.push(EvaluatedNode::Number(value));
    }
    values
}

/// A formula recorded on symbols, which can be evaluated on dual numbers of symbols: so derivatives need no compilation
/// per operator.
pub(crate) struct RecordedFormula {
    nodes: Vec<FormulaNode>,
    outputs: Vec<(usize, usize)>,
}

impl RecordedFormula {
    pub(crate) fn new(run: RunOnSymbols<'_>) -> RecordedFormula {
        let (nodes, outputs): (_, Vec<_>) = record(|| {
            let mut outputs = vec![];
            run(&mut Symbol::input, &mut |output, symbol| outputs.push((output, symbol.node())));
            outputs
        });
        let outputs = outputs.into_iter().filter(|(_, node)| *node < nodes.len()).collect();
        RecordedFormula { nodes, outputs }
    }

    pub(crate) fn differentiate(
        &self,
        get: impl FnMut(usize) -> Dual<Symbol>,
        mut put: impl FnMut(usize, Dual<Symbol>),
    ) {
        let values = replay(&self.nodes, get);
        self.outputs.iter().for_each(|(output, node)| put(*output, values[*node].number()));
    }
}

#[cfg(test)]
pub(super) mod tests;
