//! Formulas as readable equations: algebraic simplification, and printing with named common subexpressions.

use std::fmt;

use super::formula::Formula;
use crate::{
    SlotDef,
    numbers::{Arena, FormulaNode},
};

/// Shared subexpressions of fewer nodes are repeated instead of named.
const SHARED_NODES: usize = 4;
/// Deeper expressions are also named, which limits nesting.
const DEPTH: usize = 32;

impl Formula {
    /// The formula for reading, without the residue of dual numbers. Constants are folded; `0 + x`, `x - 0`, `1 * x`
    /// and `x / 1` become `x`; `0 * x` and `0 / x` become 0; `-1 * x` and `0 - x` become `-x`; `a + -b` becomes
    /// `a - b`; fused multiply-adds become products and sums.
    ///
    /// For finite numbers, that changes a result by rounding at most. Infinities, NaN and negative zeros may differ
    /// from what the operator computes, so the simplified formula is never run.
    #[must_use]
    pub fn simplified(&self) -> Formula {
        let mut simplify = Simplifier::default();
        let mut number = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let simplified = simplify.node(node.of(|operand| number[operand]));
            number.push(simplified);
        }
        let outputs = self.outputs.iter().map(|(slot, node)| (*slot, number[*node])).collect();
        Formula { schema: self.schema, nodes: simplify.arena.into_nodes(), outputs }.pruned()
    }
}

#[derive(Default)]
struct Simplifier {
    arena: Arena,
}

impl Simplifier {
    fn constant(&self, node: usize) -> Option<f64> {
        match self.arena.node(node) {
            FormulaNode::Constant(x) | FormulaNode::Literal(x) => Some(x),
            _ => None,
        }
    }

    fn negated(&self, node: usize) -> Option<usize> {
        match self.arena.node(node) {
            FormulaNode::Neg(a) => Some(a),
            _ => None,
        }
    }

    /// Interns a node with simplified operands.
    fn node(&mut self, node: FormulaNode) -> usize {
        match node {
            FormulaNode::Neg(a) => self.neg(a),
            FormulaNode::Add(a, b) => self.add(a, b),
            FormulaNode::Sub(a, b) => self.sub(a, b),
            FormulaNode::Mul(a, b) => self.mul(a, b),
            FormulaNode::Div(a, b) => self.div(a, b),
            FormulaNode::Scaled(a, b) => {
                let (zero, product) = (self.number(0.0), self.mul(a, b));
                if self.constant(b).is_some() {
                    return product;
                }
                let mask = self.arena.intern(FormulaNode::Equal(b, zero));
                self.arena.intern(FormulaNode::Select(mask, zero, product))
            }
            FormulaNode::MulAdd(a, b, c) => {
                let product = self.mul(a, b);
                self.add(product, c)
            }
            FormulaNode::Pow(a, b) if self.constant(b) == Some(1.0) => a,
            FormulaNode::Literal(x) => self.number(x),
            other => self.arena.intern(other),
        }
    }

    fn number(&mut self, x: f64) -> usize {
        self.arena.intern(FormulaNode::Constant(x))
    }

    fn neg(&mut self, a: usize) -> usize {
        match (self.constant(a), self.arena.node(a)) {
            (Some(x), _) => self.number(-x),
            (_, FormulaNode::Neg(a)) => a,
            (_, FormulaNode::Sub(a, b)) => self.sub(b, a),
            _ => self.arena.intern(FormulaNode::Neg(a)),
        }
    }

    fn add(&mut self, a: usize, b: usize) -> usize {
        match (self.constant(a), self.constant(b), self.negated(a), self.negated(b)) {
            (Some(x), Some(y), ..) => self.number(x + y),
            (Some(0.0), ..) => b,
            (_, Some(0.0), ..) => a,
            (.., Some(b)) => self.sub(a, b),
            (_, _, Some(a), _) => self.sub(b, a),
            _ => self.arena.intern(FormulaNode::Add(a, b)),
        }
    }

    fn sub(&mut self, a: usize, b: usize) -> usize {
        match (self.constant(a), self.constant(b), self.negated(b)) {
            (Some(x), Some(y), _) => self.number(x - y),
            (_, Some(0.0), _) => a,
            (Some(0.0), ..) => self.neg(b),
            (.., Some(b)) => self.add(a, b),
            (_, Some(y), _) => match self.arena.node(a) {
                FormulaNode::Sub(a, x) if let Some(x) = self.constant(x) => {
                    let both = self.number(x + y);
                    self.sub(a, both)
                }
                _ => self.arena.intern(FormulaNode::Sub(a, b)),
            },
            _ => self.arena.intern(FormulaNode::Sub(a, b)),
        }
    }

    fn mul(&mut self, a: usize, b: usize) -> usize {
        match (self.constant(a), self.constant(b)) {
            (Some(x), Some(y)) => self.number(x * y),
            (Some(0.0), _) | (_, Some(0.0)) => self.number(0.0),
            (Some(1.0), _) => b,
            (_, Some(1.0)) => a,
            (Some(-1.0), _) => self.neg(b),
            (_, Some(-1.0)) => self.neg(a),
            // Constant factors come first.
            (None, Some(_)) => self.arena.intern(FormulaNode::Mul(b, a)),
            _ => self.arena.intern(FormulaNode::Mul(a, b)),
        }
    }

    fn div(&mut self, a: usize, b: usize) -> usize {
        match (self.constant(a), self.constant(b)) {
            (Some(x), Some(y)) => self.number(x / y),
            (Some(0.0), _) => self.number(0.0),
            (_, Some(1.0)) => a,
            _ => self.arena.intern(FormulaNode::Div(a, b)),
        }
    }
}

impl fmt::Display for Formula {
    /// One equation per line, with slots in lower case and gradients as `dx`; equations of shared subexpressions come
    /// first. Attributes are shown by their values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let formula = self.simplified();
        let writer = EquationWriter::new(&formula);
        let mut first = true;
        let mut start =
            |f: &mut fmt::Formatter<'_>| if std::mem::take(&mut first) { Ok(()) } else { writeln!(f) };
        for (node, name) in writer.names.iter().enumerate() {
            if let Some(name) = name {
                start(f)?;
                write!(f, "{name} = {}", writer.definition(node).text)?;
            }
        }
        for (slot, node) in &formula.outputs {
            start(f)?;
            write!(f, "{} = {}", writer.outputs[*slot], writer.text(*node).text)?;
        }
        Ok(())
    }
}

/// A slot's name in an equation: `x` for `X`, `dx` for `X@GRAD`, `d2_x` for `D2_X@GRAD`, the gradient of `dx`.
fn symbol_of(slot: &str) -> String {
    match slot.strip_suffix("@GRAD") {
        Some(of) if of.starts_with("D2_") || of.starts_with("D3_") => symbol_of(of),
        Some(of) => format!("d{}", symbol_of(of)),
        None => slot.to_lowercase(),
    }
}

/// Names of slots in equations: unchanged where the shorter name would be ambiguous.
fn symbols(slots: &[SlotDef]) -> Vec<String> {
    let short: Vec<String> = slots.iter().map(|slot| symbol_of(slot.name)).collect();
    let is_one = |symbol: &String| short.iter().filter(|other| *other == symbol).count() == 1;
    let name =
        |(slot, short): (&SlotDef, &String)| if is_one(short) { short.clone() } else { slot.name.into() };
    slots.iter().zip(&short).map(name).collect()
}

/// Operator precedence, from the weakest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    Comparison,
    Sum,
    Product,
    Sign,
    Whole,
}

struct TermText {
    text: String,
    level: Precedence,
}

impl TermText {
    fn atom(text: impl Into<String>) -> TermText {
        TermText { text: text.into(), level: Precedence::Whole }
    }

    /// The text, in parentheses if its precedence is lower than `level`.
    fn at_least(self, level: Precedence) -> String {
        if self.level < level { format!("({})", self.text) } else { self.text }
    }
}

struct EquationWriter<'a> {
    formula: &'a Formula,
    /// Names of input slots.
    inputs: Vec<String>,
    /// Names of output slots; one that is also the name of an input has a prime.
    outputs: Vec<String>,
    /// By node: the name of a shared subexpression.
    names: Vec<Option<String>>,
}

impl EquationWriter<'_> {
    fn new(formula: &Formula) -> EquationWriter<'_> {
        let count = formula.nodes.len();
        let written = |node: usize| match larger_or_smaller(formula, node) {
            Some((_, a, b)) => [Some(a), Some(b), None],
            None => formula.nodes[node].parts().1,
        };
        let mut uses = vec![0_usize; count];
        formula.outputs.iter().for_each(|(_, node)| uses[*node] += 1);
        for node in (0..count).rev() {
            if uses[node] > 0 {
                written(node).into_iter().flatten().for_each(|operand| uses[operand] += 1);
            }
        }
        // Size in nodes and depth of the text written for a node.
        let (mut size, mut depth): (Vec<usize>, Vec<usize>) = (vec![], vec![]);
        let mut shared = vec![];
        for (number, uses) in uses.iter().enumerate() {
            let operands = || written(number).into_iter().flatten();
            let nodes = operands().map(|operand| size[operand]).fold(1, usize::saturating_add);
            let deep = operands().map(|operand| depth[operand] + 1).max().unwrap_or(0);
            let is_named = *uses > 1 && nodes >= SHARED_NODES || *uses > 0 && deep >= DEPTH;
            if is_named {
                shared.push(number);
            }
            size.push(if is_named { 1 } else { nodes });
            depth.push(if is_named { 0 } else { deep });
        }
        let inputs = symbols(formula.schema.inputs);
        let mut outputs = symbols(formula.schema.outputs);
        outputs.iter_mut().filter(|output| inputs.contains(output)).for_each(|output| output.push('\''));
        let taken = |letter: &&str| inputs.iter().chain(&outputs).any(|symbol| symbol.starts_with(letter));
        let letter = ["t", "u", "v", "w", "s"].iter().find(|letter| !taken(letter)).unwrap_or(&"shared");
        let mut names = vec![None; count];
        for (i, node) in shared.iter().enumerate() {
            names[*node] =
                Some(if shared.len() == 1 { (*letter).into() } else { format!("{letter}{}", i + 1) });
        }
        EquationWriter { formula, inputs, outputs, names }
    }

    fn text(&self, node: usize) -> TermText {
        match &self.names[node] {
            Some(name) => TermText::atom(name.as_str()),
            None => self.definition(node),
        }
    }

    fn definition(&self, node: usize) -> TermText {
        let infix = |sign: &str, a: usize, b: usize, [own, right]: [Precedence; 2]| {
            let (a, b) = (self.text(a).at_least(own), self.text(b).at_least(right));
            TermText { text: format!("{a} {sign} {b}"), level: own }
        };
        let call = |name: &str, args: &[usize]| {
            let args: Vec<String> = args.iter().map(|arg| self.text(*arg).text).collect();
            TermText::atom(format!("{name}({})", args.join(", ")))
        };
        match self.formula.nodes[node] {
            FormulaNode::Input(slot) => TermText::atom(self.inputs[slot].as_str()),
            FormulaNode::Constant(x) | FormulaNode::Literal(x) => {
                let level = if x.is_sign_negative() { Precedence::Sign } else { Precedence::Whole };
                TermText { text: number(x), level }
            }
            FormulaNode::Neg(a) => TermText {
                text: format!("-{}", self.text(a).at_least(Precedence::Whole)),
                level: Precedence::Sign,
            },
            FormulaNode::Add(a, b) => infix("+", a, b, [Precedence::Sum, Precedence::Sum]),
            FormulaNode::Sub(a, b) => infix("-", a, b, [Precedence::Sum, Precedence::Product]),
            FormulaNode::Mul(a, b) => {
                let is_quotient = matches!(self.formula.nodes[b], FormulaNode::Div(..));
                infix(
                    "*",
                    a,
                    b,
                    [Precedence::Product, if is_quotient { Precedence::Sign } else { Precedence::Product }],
                )
            }
            FormulaNode::Div(a, b) => infix("/", a, b, [Precedence::Product, Precedence::Sign]),
            FormulaNode::Scaled(a, b) => call("scaled", &[a, b]),
            FormulaNode::MulAdd(a, b, c) => call("mul_add", &[a, b, c]),
            FormulaNode::Pow(a, b) => call("pow", &[a, b]),
            FormulaNode::Call(function, a) => call(function.name(), &[a]),
            FormulaNode::Greater(a, b) => infix(">", a, b, [Precedence::Comparison, Precedence::Sum]),
            FormulaNode::Equal(a, b) => infix("==", a, b, [Precedence::Comparison, Precedence::Sum]),
            FormulaNode::Select(mask, yes, no) => match larger_or_smaller(self.formula, node) {
                Some((name, a, b)) => call(name, &[a, b]),
                None => call("select", &[mask, yes, no]),
            },
        }
    }
}

/// A select that is a maximum or minimum, except for NaN.
fn larger_or_smaller(formula: &Formula, node: usize) -> Option<(&'static str, usize, usize)> {
    let FormulaNode::Select(mask, yes, no) = formula.nodes[node] else { return None };
    match formula.nodes[mask] {
        FormulaNode::Greater(a, b) if (a, b) == (yes, no) => Some(("max", a, b)),
        FormulaNode::Greater(a, b) if (a, b) == (no, yes) => Some(("min", b, a)),
        _ => None,
    }
}

/// Prints numbers that `f32` represents in single precision.
fn number(x: f64) -> String {
    let exponent = x != 0.0 && x.is_finite() && !(1e-4..1e7).contains(&x.abs());
    let single = x as f32;
    match f64::from(single) == x {
        true if exponent => format!("{single:e}"),
        true => format!("{single}"),
        false if exponent => format!("{x:e}"),
        false => format!("{x}"),
    }
}
