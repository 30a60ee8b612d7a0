//! Elementwise functions and their gradients at infinities, zeros, NaN and large numbers, against a table that PyTorch
//! wrote.

use std::{collections::BTreeSet, fs};

use autobwd::{
    Attr, DType, Dims, Executor, OpDesc, OpInfoMap, Program, Result, Scope, Tensor, VarDesc, gradients,
    op::AttrType, program::Name,
};
use autobwd_ops::Math;
use autobwd_tests::run_again;

/// What differs from PyTorch, and why.
struct Difference {
    op: &'static str,
    /// Whether results differ, not only gradients.
    results: bool,
    /// Whether it is so for these operands.
    at: fn(&[f64]) -> bool,
    /// Why it stays.
    #[expect(dead_code, reason = "for the reader")]
    why: &'static str,
}

const fn gradient(op: &'static str, at: fn(&[f64]) -> bool, why: &'static str) -> Difference {
    Difference { op, results: false, at, why }
}

const fn result(op: &'static str, at: fn(&[f64]) -> bool, why: &'static str) -> Difference {
    Difference { op, results: true, at, why }
}

fn is_nan(x: &[f64]) -> bool {
    x.iter().any(|x| x.is_nan())
}

fn is_tie_or_nan(x: &[f64]) -> bool {
    x[0] == x[1] || is_nan(x)
}

const NAN: &str = "the gradient at NaN is NaN: PyTorch takes the branch of large numbers";
const ZERO_AT_NAN: &str = "as in PaddlePaddle, where `out > 0` selects the gradient";
const TIE: &str = "as in PaddlePaddle, `y` gets the whole gradient of a tie; NaN counts as one";
const LIMIT: &str = "the limit: PyTorch multiplies 0 by infinity";
const ROOT: &str = "the power of IEEE 754: PyTorch replaces it by a square root";

const DIFFERENCES: &[Difference] = &[
    gradient("acosh", |x| x[0] == -1.0, "it is not defined there"),
    gradient("celu alpha=1.0", is_nan, NAN),
    gradient("elu alpha=1.0", is_nan, NAN),
    gradient("hard_swish", is_nan, "0: neither of the lines at the ends goes through NaN"),
    result("gelu approximate=false", |x| x[0].is_infinite(), LIMIT),
    result("gelu approximate=true", |x| x[0].abs() > 1e100, LIMIT),
    result("pow factor=-0.5", |x| x[0] <= 0.0, ROOT),
    result("pow factor=0.5", |x| x[0] <= 0.0, ROOT),
    gradient("pow factor=1.5", |x| x[0] < 0.0, ROOT),
    gradient("relu", is_nan, ZERO_AT_NAN),
    gradient("relu6", is_nan, ZERO_AT_NAN),
    result("round", |x| x[0].abs() == 2.5, "as in PaddlePaddle, halves are rounded away from 0"),
    result("selu", |_| true, "its attributes are float32: the constants have seven digits"),
    result("sign", is_nan, "NaN stays NaN"),
    result("softshrink lambda=0.5", is_nan, "NaN stays NaN"),
    gradient("elementwise_max", is_tie_or_nan, TIE),
    gradient("elementwise_min", is_tie_or_nan, TIE),
    gradient("elementwise_fmax", is_nan, TIE),
    gradient("elementwise_fmin", is_nan, TIE),
    gradient(
        "elementwise_pow",
        |x| x[0] < 0.0 && !is_nan(x),
        "0 with respect to the exponent of a negative number, as in TensorFlow: PyTorch gives NaN, also to a constant \
         exponent of 2",
    ),
];

/// The points of one operator.
struct Case<'a> {
    op: &'a str,
    /// Operands, result and gradients of each point.
    points: Vec<Point<'a>>,
}

/// One line of the table.
struct Point<'a> {
    text: &'a str,
    operands: Vec<f64>,
    expected: Vec<f64>,
}

fn numbers(text: &str) -> Vec<f64> {
    text.split(' ').map(|x| x.parse().unwrap()).collect()
}

fn cases(table: &str) -> Vec<Case<'_>> {
    let mut cases: Vec<Case<'_>> = vec![];
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let (op, point) = line.split_once(": ").unwrap();
        let (text, expected) = point.split_once(" -> ").unwrap();
        let point = Point { text, operands: numbers(text), expected: numbers(expected) };
        match cases.last_mut().filter(|case| case.op == op) {
            Some(case) => case.points.push(point),
            None => cases.push(Case { op, points: vec![point] }),
        }
    }
    cases
}

/// The result and the gradients of its sum, for each point.
fn found(case: &Case<'_>, dtype: DType) -> Result<Vec<Vec<f64>>> {
    let mut words = case.op.split(' ');
    let schema = OpInfoMap::linked()?.get(words.next().unwrap_or_default())?.schema();
    let (mut program, mut scope, n) = (Program::new(), Scope::new(), case.points.len());
    let mut op = OpDesc::new(schema.name);
    let mut names = vec![];
    for (i, slot) in schema.inputs.iter().enumerate() {
        let var = program.var(slot.name);
        program.root_mut().vars.insert(var, VarDesc::parameter(dtype, Dims::from([n])));
        let values: Vec<f64> = case.points.iter().map(|point| point.operands[i]).collect();
        scope.set(
            slot.name,
            match dtype {
                DType::F32 => Tensor::from_vec([n], values.iter().map(|x| *x as f32).collect())?,
                _ => Tensor::from_vec([n], values)?,
            },
        );
        op.inputs.set(slot.name, [var]);
        names.push(slot.name);
    }
    let out = program.var("out");
    program.root_mut().vars.insert(out, VarDesc::new(dtype, Dims::from([n])));
    op.outputs.set("Out", [out]);
    for (name, value) in words.filter_map(|word| word.split_once('=')) {
        let value = match schema.attr(name).unwrap().ty {
            AttrType::F32 => Attr::F32(value.parse().unwrap()),
            AttrType::F64 => Attr::F64(value.parse().unwrap()),
            _ => Attr::Bool(value.parse().unwrap()),
        };
        op.attrs.set(Name::new(name), value);
    }
    program.root_mut().ops.push(op);
    let built = gradients(&mut program, &["out"], &names, &Default::default())?.entries();
    let mut fetches = vec!["out".to_string()];
    fetches.extend(built.iter().flatten().map(|var| program.name(*var).to_string()));
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let fetched = Executor::with_threads(1).run(&program, &mut scope, &[], &fetches)?;
    let columns: Vec<Vec<f64>> = fetched.iter().map(Tensor::to_f64s).collect();
    // Functions without a gradient have the gradient 0 in PyTorch.
    let at = |i: usize, column: usize| columns.get(column).map_or(0.0, |column| column[i]);
    Ok((0..n).map(|i| (0..=names.len()).map(|column| at(i, column)).collect()).collect())
}

fn is_near(found: f64, expected: f64, tolerance: f64) -> bool {
    found == expected
        || found.is_nan() && expected.is_nan()
        || (found - expected).abs() <= tolerance * expected.abs().min(f64::MAX)
        // Below the smallest normal number, digits are few.
        || (found - expected).abs() < 1e-300
}

#[test]
fn special_values_and_gradients_equal_pytorch() -> Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/framework/reference/special_values.txt");
    let table = fs::read_to_string(path).unwrap();
    let (mut odd, mut met) = (vec![], BTreeSet::new());
    for case in cases(&table) {
        for (point, found) in case.points.iter().zip(found(&case, DType::F64)?) {
            let is_same = |i: usize| is_near(found[i], point.expected[i], 1e-13);
            let first = (0..found.len()).find(|i| !is_same(*i));
            let explains = |known: &&Difference| {
                known.op == case.op && (known.at)(&point.operands) && (known.results || first != Some(0))
            };
            match (first, DIFFERENCES.iter().find(explains)) {
                (Some(_), Some(known)) => drop(met.insert(known.op)),
                (Some(_), None) => {
                    odd.push(format!("{}: {} -> {found:?}, not {:?}", case.op, point.text, point.expected));
                }
                (None, _) => {}
            }
        }
    }
    assert!(odd.is_empty(), "{} differences:\n{}", odd.len(), odd.join("\n"));
    assert_eq!(met, DIFFERENCES.iter().map(|known| known.op).collect(), "differences that are gone");
    Ok(())
}

/// Every instruction set propagates NaN from either side, at any place of a vector.
#[test]
fn extremes_of_nan_are_nan() -> Result<()> {
    for n in [1, 7, 64, 1003] {
        let tape = autobwd::eager();
        let x: Vec<f32> = (0..n).map(|i| if i % 3 == 0 { f32::NAN } else { i as f32 }).collect();
        let y: Vec<f32> = (0..n).map(|i| if i % 3 == 1 { f32::NAN } else { 5.0 }).collect();
        let (x, y) = (tape.constant(Tensor::from_vec([n], x)?), tape.constant(Tensor::from_vec([n], y)?));
        for out in [x.maximum(&y), x.minimum(&y)] {
            let out = out.tensor()?;
            assert!(out.slice::<f32>()?.iter().enumerate().all(|(i, out)| out.is_nan() == (i % 3 != 2)));
        }
    }
    Ok(())
}

#[test]
fn every_instruction_set_has_the_same_special_values() {
    if std::env::var_os("AUTOBWD_ISA").is_none() {
        for isa in ["baseline", "avx2"] {
            run_again(isa, "special_values").unwrap();
        }
    }
}
