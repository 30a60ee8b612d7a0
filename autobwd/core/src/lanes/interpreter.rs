//! An interpreter of formulas: one block function for all formulas that are not worth compiling, such as derivatives of
//! gradient operators.
//!
//! The expression tree becomes instructions on registers of a few cache lines, so that each instruction is dispatched
//! once for some dozen elements. Registers are allocated by linear scan. Results are bit-identical to a compiled
//! formula, which computes the same expressions.
#![allow(unsafe_code)]

use smallvec::{SmallVec, smallvec};

use super::{
    block_args::{BlockArg, BlockBody},
    formula::Formula,
};
use crate::numbers::{Float, FormulaNode};

/// The size of a register in cache lines.
const LINES: usize = 4;
/// The number of registers on the stack; larger formulas allocate.
const ON_STACK: usize = 32;

type Register<F, const VL: usize> = [[F; VL]; LINES];

/// A formula as instructions; the attributes of its block function.
pub(super) struct Instructions {
    /// Instructions, each with the register of its result. Operands are also registers.
    instructions: Vec<(FormulaNode, usize)>,
    /// Registers that hold constants.
    constants: Vec<(usize, f64)>,
    /// Output arguments, each with the register of its value.
    stores: Vec<(usize, usize)>,
    registers: usize,
}

impl Instructions {
    pub(super) fn new(formula: &Formula) -> Instructions {
        let nodes = formula.nodes();
        let mut last_use: Vec<usize> = (0..nodes.len()).collect();
        for (number, node) in nodes.iter().enumerate() {
            node.operands().for_each(|operand| last_use[operand] = number);
        }
        formula.outputs.iter().for_each(|(_, node)| last_use[*node] = nodes.len());

        let (mut constants, mut instructions) = (vec![], vec![]);
        let (mut free, mut registers, mut register_of) = (vec![], 0, Vec::with_capacity(nodes.len()));
        let take = |free: &mut Vec<usize>, registers: &mut usize| {
            free.pop().unwrap_or_else(|| {
                *registers += 1;
                *registers - 1
            })
        };
        for (number, node) in nodes.iter().enumerate() {
            if let FormulaNode::Constant(x) | FormulaNode::Literal(x) = *node {
                // Constants keep their register, which is never reused.
                registers += 1;
                register_of.push(registers - 1);
                constants.push((registers - 1, x));
                continue;
            }
            let to = take(&mut free, &mut registers);
            instructions.push((node.of(|operand| register_of[operand]), to));
            register_of.push(to);
            let mut ended: SmallVec<[usize; 4]> =
                node.operands().chain([number]).filter(|n| last_use[*n] == number).collect();
            ended.sort_unstable();
            ended.dedup();
            let is_constant =
                |n: &usize| matches!(nodes[*n], FormulaNode::Constant(_) | FormulaNode::Literal(_));
            free.extend(ended.into_iter().filter(|n| !is_constant(n)).map(|n| register_of[n]));
        }
        let inputs = formula.schema.inputs.len();
        let stores = formula.outputs.iter().map(|(slot, node)| (inputs + slot, register_of[*node])).collect();
        Instructions { instructions, constants, stores, registers }
    }
}

/// The block function of all interpreted formulas; its attributes are [`Instructions`].
pub(super) struct Interpreted;

impl BlockBody for Interpreted {
    /// # Safety
    /// As [`BlockFn`](super::block_args::BlockFn), with the `F` of the dtype; the attributes are [`Instructions`]
    /// made from a formula of the operator's schema.
    #[inline(always)]
    unsafe fn run<F: Float, const VL: usize>(
        args: *const BlockArg,
        attrs: *const (),
        first: usize,
        n: usize,
    ) {
        // SAFETY: the caller's promise.
        let code: &Instructions = unsafe { &*attrs.cast() };
        let mut registers: SmallVec<[Register<F, VL>; ON_STACK]> =
            smallvec![[[F::from(0.0); VL]; LINES]; code.registers];
        for (register, x) in &code.constants {
            registers[*register] = [[F::from(*x); VL]; LINES];
        }
        let mut done = 0;
        while done < n {
            let count = (n - done).min(LINES * VL);
            // The elements of an argument; null for an absent one.
            let at = |arg: usize| {
                // SAFETY: instructions use only slots of the schema, and there is an argument for each.
                let arg = unsafe { *args.add(arg) };
                match arg.is_absent() {
                    true => std::ptr::null_mut::<F>(),
                    false => arg.elements::<F>(first).wrapping_add(done),
                }
            };
            for (node, to) in &code.instructions {
                registers[*to] = match *node {
                    // SAFETY: the argument has `count` more elements of the block.
                    FormulaNode::Input(input) => unsafe { load(at(input), count) },
                    node => compute(node, &registers),
                };
            }
            // All inputs have been read: an output may share the memory of one.
            for (arg, register) in &code.stores {
                // SAFETY: as above.
                unsafe { store(at(*arg), &registers[*register], count) }
            }
            done += count;
        }
    }
}

/// # Safety
/// `from` points to `count` initialised elements, which nothing writes meanwhile, or is null.
#[inline(always)]
unsafe fn load<F: Float, const VL: usize>(from: *const F, count: usize) -> Register<F, VL> {
    let mut register = [[F::from(0.0); VL]; LINES];
    if !from.is_null() {
        // SAFETY: the caller's promise; `min` keeps within the register.
        unsafe { std::ptr::copy_nonoverlapping(from, register.as_mut_ptr().cast(), count.min(LINES * VL)) }
    }
    register
}

/// # Safety
/// `to` points to space for `count` elements, which nothing else uses meanwhile, or is null.
#[inline(always)]
unsafe fn store<F: Float, const VL: usize>(to: *mut F, register: &Register<F, VL>, count: usize) {
    if !to.is_null() {
        // SAFETY: the caller's promise; `min` keeps within the register.
        unsafe { std::ptr::copy_nonoverlapping(register.as_ptr().cast(), to, count.min(LINES * VL)) }
    }
}

/// The value of a node with registers as operands; a mask is 1 where it is true, else 0.
///
/// Plain loops: code that is not inlined would be compiled without the block function's instruction set.
#[inline(always)]
fn compute<F: Float, const VL: usize>(node: FormulaNode, registers: &[Register<F, VL>]) -> Register<F, VL> {
    let of = |register: usize| registers[register].as_flattened();
    let mut result = [[F::from(0.0); VL]; LINES];
    let out = result.as_flattened_mut();
    match node {
        FormulaNode::Input(_) => {}
        FormulaNode::Constant(x) | FormulaNode::Literal(x) => out.fill(F::from(x)),
        FormulaNode::Neg(a) => {
            let a = of(a);
            for i in 0..out.len() {
                out[i] = -a[i];
            }
        }
        FormulaNode::Add(a, b) => {
            let (a, b) = (of(a), of(b));
            for i in 0..out.len() {
                out[i] = a[i] + b[i];
            }
        }
        FormulaNode::Sub(a, b) => {
            let (a, b) = (of(a), of(b));
            for i in 0..out.len() {
                out[i] = a[i] - b[i];
            }
        }
        FormulaNode::Mul(a, b) => {
            let (a, b) = (of(a), of(b));
            for i in 0..out.len() {
                out[i] = a[i] * b[i];
            }
        }
        FormulaNode::Div(a, b) => {
            let (a, b) = (of(a), of(b));
            for i in 0..out.len() {
                out[i] = a[i] / b[i];
            }
        }
        FormulaNode::Scaled(a, b) => {
            let (a, b) = (of(a), of(b));
            for i in 0..out.len() {
                out[i] = a[i].scaled_by(b[i]);
            }
        }
        FormulaNode::MulAdd(a, b, c) => {
            let (a, b, c) = (of(a), of(b), of(c));
            for i in 0..out.len() {
                out[i] = a[i].mul_add(b[i], c[i]);
            }
        }
        FormulaNode::Pow(a, b) => {
            let (a, b) = (of(a), of(b));
            for i in 0..out.len() {
                out[i] = a[i].pow(b[i]);
            }
        }
        FormulaNode::Greater(a, b) => {
            let (a, b) = (of(a), of(b));
            for i in 0..out.len() {
                out[i] = F::select(a[i].gt(b[i]), F::from(1.0), F::from(0.0));
            }
        }
        FormulaNode::Equal(a, b) => {
            let (a, b) = (of(a), of(b));
            for i in 0..out.len() {
                out[i] = F::select(a[i].equals(b[i]), F::from(1.0), F::from(0.0));
            }
        }
        FormulaNode::Select(mask, yes, no) => {
            let (mask, yes, no) = (of(mask), of(yes), of(no));
            for i in 0..out.len() {
                out[i] = F::select(mask[i].gt(F::from(0.0)), yes[i], no[i]);
            }
        }
        FormulaNode::Call(function, a) => {
            out.copy_from_slice(of(a));
            function.apply_to_all(out);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Arity, Schema, SlotDef,
        lanes::formula::tests::{code, formula},
        numbers::{Lane, Symbol, record},
    };

    const SLOT: SlotDef = SlotDef::new("", Arity::One, "", 0);
    static SCHEMA: Schema = Schema {
        name: "",
        inputs: &[SLOT; 3],
        outputs: &[SLOT],
        scratch: &[],
        attrs: &[],
        pointwise: true,
        broadcast: false,
        integers: false,
        doc: "",
        file: "",
        line: 0,
    };
    /// More than one register holds, and not a multiple of it.
    const COUNT: usize = 80;

    #[test]
    fn interpreted_formula_has_the_bits_of_its_lanes() {
        for seed in 0..1_000 {
            let code = code(seed);
            let (nodes, symbol) = record(|| formula(&code, [0, 1, 2].map(Symbol::input)));
            let tree = Formula { schema: &SCHEMA, nodes, outputs: vec![(0, symbol.node())] }.pruned();
            let instructions = Instructions::new(&tree);
            let x = |input: usize| -> Vec<f64> {
                (0..COUNT).map(|i| ((i * 7 + input * 13 + seed as usize) % 41) as f64 / 8.0 - 2.0).collect()
            };
            let inputs = [0, 1, 2].map(x);
            // The output shares the memory of the first input.
            let mut out = inputs[0].clone();
            let whole = |start: *const f64| BlockArg::whole(start.cast_mut().cast());
            let place = whole(out.as_mut_ptr());
            let args = [place, whole(inputs[1].as_ptr()), whole(inputs[2].as_ptr()), place];
            let attrs = (&raw const instructions).cast();
            // SAFETY: an argument for every slot, with `COUNT` elements each.
            unsafe { Interpreted::run::<Lane<f64, true>, 8>(args.as_ptr(), attrs, 0, COUNT) };
            for (i, found) in out.iter().enumerate() {
                let expected = formula(&code, [0, 1, 2].map(|input| Lane::<f64, true>(inputs[input][i]))).0;
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "{seed} {i}: {found:e}, not {expected:e}");
            }
        }
    }

    #[test]
    fn registers_are_used_again() {
        let (nodes, symbol) = record(|| (0..100).fold(Symbol::input(0), |x, _| (x * x + 1.0).sin()));
        let tree = Formula { schema: &SCHEMA, nodes, outputs: vec![(0, symbol.node())] };
        assert!(Instructions::new(&tree).registers <= 4);
    }
}
