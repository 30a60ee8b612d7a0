//! Symbolic lanes: evaluating a formula on them records its expression tree.
//!
//! Nodes are interned (hash-consed) in a thread-local arena, so that equal subexpressions are one node and a lane is an
//! index. The arena lives as long as [`record`] runs, even if the formula panics.

use std::{cell::RefCell, mem, ops};

use rustc_hash::FxHashMap;

use super::{
    Float, SelectMask,
    float::refuse_comparisons,
    node::{FormulaFunction, FormulaNode},
};

thread_local! {
    /// The arenas of this thread's active recordings, innermost last.
    static ARENAS: RefCell<Vec<Arena>> = const { RefCell::new(vec![]) };
}

/// Distinct nodes in topological order, operands first.
#[derive(Default)]
pub(crate) struct Arena {
    nodes: Vec<FormulaNode>,
    known: FxHashMap<[u64; 4], usize>,
}

impl Arena {
    /// The index of the node; a select between equal numbers is that number.
    pub(crate) fn intern(&mut self, node: FormulaNode) -> usize {
        let node = match node {
            FormulaNode::Select(_, yes, no) if yes == no && yes < self.nodes.len() => return yes,
            // A symbol of another recording is invalid here.
            node if node.operands().any(|operand| operand >= self.nodes.len()) => {
                FormulaNode::Constant(f64::NAN)
            }
            node => node,
        };
        *self.known.entry(node.key()).or_insert_with(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        })
    }

    pub(crate) fn node(&self, number: usize) -> FormulaNode {
        self.nodes.get(number).copied().unwrap_or(FormulaNode::Constant(f64::NAN))
    }

    pub(crate) fn into_nodes(self) -> Vec<FormulaNode> {
        self.nodes
    }
}

/// Removes the arenas of a recording and of those nested in it, also after a panic.
struct Recording {
    depth: usize,
}
impl Drop for Recording {
    fn drop(&mut self) {
        let _ = ARENAS.try_with(|arenas| arenas.borrow_mut().truncate(self.depth));
    }
}

/// The nodes recorded while `f` runs, and its result.
pub(crate) fn record<T>(f: impl FnOnce() -> T) -> (Vec<FormulaNode>, T) {
    let depth = ARENAS.with_borrow_mut(|arenas| {
        arenas.push(Arena::default());
        arenas.len() - 1
    });
    let _recording = Recording { depth };
    let result = f();
    let arena = ARENAS.with_borrow_mut(|arenas| arenas.get_mut(depth).map(mem::take));
    (arena.unwrap_or_default().into_nodes(), result)
}

/// A lane, or a mask, that stands for a node of the active recording.
#[derive(Clone, Copy, Debug)]
pub struct Symbol(usize);

impl Symbol {
    // Not inlined to keep formulas small; recording need not be fast.
    #[inline(never)]
    fn new(node: FormulaNode) -> Symbol {
        let intern = |arenas: &RefCell<Vec<Arena>>| Some(arenas.borrow_mut().last_mut()?.intern(node));
        Symbol(ARENAS.try_with(intern).ok().flatten().unwrap_or(0))
    }

    pub(crate) fn input(slot: usize) -> Symbol {
        Symbol::new(FormulaNode::Input(slot))
    }

    /// The index of its node.
    pub(crate) fn node(self) -> usize {
        self.0
    }
}

impl From<f64> for Symbol {
    fn from(x: f64) -> Symbol {
        Symbol::new(FormulaNode::Constant(x))
    }
}
impl From<f32> for Symbol {
    fn from(x: f32) -> Symbol {
        Symbol::new(FormulaNode::Constant(x.into()))
    }
}
impl ops::Neg for Symbol {
    type Output = Symbol;
    fn neg(self) -> Symbol {
        Symbol::new(FormulaNode::Neg(self.0))
    }
}
refuse_comparisons!([] Symbol);

macro_rules! symbols {
    (operators: $($tr:ident $f:ident),*; functions: $($name:ident $function:ident),*;) => {
        $(impl ops::$tr for Symbol {
            type Output = Symbol;
            fn $f(self, other: Symbol) -> Symbol {
                Symbol::new(FormulaNode::$tr(self.0, other.0))
            }
        })*
        $(impl ops::$tr<f64> for Symbol {
            type Output = Symbol;
            fn $f(self, constant: f64) -> Symbol {
                ops::$tr::$f(self, Symbol::new(FormulaNode::Literal(constant)))
            }
        })*
        impl Float for Symbol {
            type Mask = Symbol;

            fn mul_add(self, b: Symbol, c: Symbol) -> Symbol {
                Symbol::new(FormulaNode::MulAdd(self.0, b.0, c.0))
            }
            fn gt(self, other: Symbol) -> SelectMask<Symbol> {
                SelectMask(Symbol::new(FormulaNode::Greater(self.0, other.0)))
            }
            fn equals(self, other: Symbol) -> SelectMask<Symbol> {
                SelectMask(Symbol::new(FormulaNode::Equal(self.0, other.0)))
            }
            fn select(SelectMask(mask): SelectMask<Symbol>, yes: Symbol, no: Symbol) -> Symbol {
                Symbol::new(FormulaNode::Select(mask.0, yes.0, no.0))
            }
            // A node of its own: the derivative of a select would lose the derivative of a factor which is 0.
            fn scaled_by(self, factor: Symbol) -> Symbol {
                Symbol::new(FormulaNode::Scaled(self.0, factor.0))
            }
            fn pow(self, exponent: Symbol) -> Symbol {
                Symbol::new(FormulaNode::Pow(self.0, exponent.0))
            }
            $(fn $name(self) -> Symbol {
                Symbol::new(FormulaNode::Call(FormulaFunction::$function, self.0))
            })*
        }
    };
}
symbols! {
    operators: Add add, Sub sub, Mul mul, Div div;
    functions: exp Exp, log Log, tanh Tanh, expm1 Expm1, log1p Log1p, erf Erf, normal_cdf NormalCdf, sigmoid Sigmoid,
        gelu Gelu, gelu_tanh GeluTanh, sqrt Sqrt, abs Abs, sin Sin, cos Cos, floor Floor, round Round;
}
