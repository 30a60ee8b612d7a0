//! Random formulas: the recorded tree computes the same as the lanes.

use super::*;
use crate::numbers::FormulaFunction;

/// A formula of three numbers, with one operation per byte.
pub(in crate::lanes) fn formula<F: Float>(code: &[u8], x: [F; 3]) -> F {
    let mut stack = x.to_vec();
    for (i, byte) in code.iter().enumerate() {
        let n = stack.len();
        let (a, b) = (stack[(i * 7 + usize::from(*byte) / 32) % n], stack[n - 1 - (i * 3) % n.min(4)]);
        stack.push(match byte % 28 {
            0 => a + b,
            1 => a - b,
            2 => a * b,
            3 => a / b,
            4 => -a,
            5 => a.mul_add(b, x[0]),
            6 => a.pow(b),
            7 => F::select(a.gt(b), a, x[1]),
            8 => F::select(a.equals(b), a, b),
            9 => a.max(b),
            10 => a.min(b),
            11 => a * 0.5 - F::from(f32::from(*byte)),
            12 => a.exp(),
            13 => a.log(),
            14 => a.tanh(),
            15 => a.expm1(),
            16 => a.log1p(),
            17 => a.erf(),
            18 => a.normal_cdf(),
            19 => a.sigmoid(),
            20 => a.gelu(),
            21 => a.gelu_tanh(),
            22 => a.sqrt(),
            23 => a.abs(),
            24 => a.sin(),
            25 => a.cos(),
            26 => a.floor(),
            _ => a.round() / 3.0 + 1.0,
        });
    }
    stack.last().copied().unwrap_or(x[2])
}

pub(in crate::lanes) fn code(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..1 + seed % 24)
        .map(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8
        })
        .collect()
}

fn recorded(code: &[u8]) -> (Vec<FormulaNode>, usize) {
    let (nodes, symbol) = record(|| formula(code, [0, 1, 2].map(Symbol::input)));
    (nodes, symbol.node())
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

const POINTS: [[f64; 3]; 6] = [
    [0.5, -1.25, 2.0],
    [3.0, 0.75, -0.5],
    [-2.0, 1e-3, 7.0],
    [0.0, -0.0, 1.0],
    [f64::INFINITY, 1.0, -3.0],
    [1.5, f64::NAN, 0.25],
];

#[test]
fn recorded_formula_computes_what_its_lanes_do() {
    for seed in 0..2_000 {
        let code = code(seed);
        let (nodes, output) = recorded(&code);
        assert!(nodes.iter().enumerate().all(|(n, node)| node.operands().all(|operand| operand < n)));
        for x in POINTS {
            let lanes = x.map(Lane::<f64, true>);
            let found = replay(&nodes, |input| lanes[input])[output].number().0;
            let expected = formula(&code, lanes).0;
            assert!(same(found, expected), "{seed} {x:?}: {found:e}, not {expected:e}");
        }
    }
}

#[test]
fn so_do_its_derivatives_which_are_recorded_from_the_recorded_formula() {
    for seed in 0..1_000 {
        let (code, variable) = (code(seed), seed as usize % 3);
        let dual = |input: usize, x: [Lane<f64, true>; 3]| match input == variable {
            true => Dual::variable(x[input]),
            false => Dual::constant(x[input]),
        };
        let own = RecordedFormula::new(&|get, put| put(0, formula(&code, [get(0), get(1), get(2)])));
        let (nodes, symbol) = record(|| {
            let mut derivative = Symbol::from(0.0);
            let of = |input: usize| match input == variable {
                true => Dual::variable(Symbol::input(input)),
                false => Dual::constant(Symbol::input(input)),
            };
            own.differentiate(of, |_, out| derivative = out.derivative);
            derivative
        });
        for x in POINTS {
            let x = x.map(Lane);
            let found = replay(&nodes, |input| x[input])[symbol.node()].number().0;
            let expected = formula(&code, [0, 1, 2].map(|input| dual(input, x))).derivative.0;
            assert!(same(found, expected), "{seed}: {found:e}, not {expected:e}");
        }
    }
}

#[test]
fn panic_leaves_nothing_behind_and_recordings_nest() {
    let panicked = std::panic::catch_unwind(|| record(|| -> Symbol { panic!("in a formula, by intention") }));
    assert!(panicked.is_err());
    let (outer, (inner, x)) = record(|| {
        let x = Symbol::input(0) + 1.0;
        let (inner, _) = record(|| Symbol::input(5).exp());
        (inner, x + x)
    });
    assert_eq!(inner, [FormulaNode::Input(5), FormulaNode::Call(FormulaFunction::Exp, 0)]);
    assert_eq!((outer.len(), outer[x.node()]), (4, FormulaNode::Add(2, 2)));
    // A symbol is meaningless after its recording.
    let (nodes, symbol) = record(|| -x);
    assert_eq!(nodes.len(), 1);
    assert!(matches!(nodes[symbol.node()], FormulaNode::Constant(x) if x.is_nan()));
}
