//! An infinite element reaches the results that depend on it, and no others, after writing and reading.

use autobwd::{Builder, DType, OpInfoMap, Program, Tensor, check, gradients};
use autobwd_ops::{Math, model::infer_shapes};

use crate::support::check_program;

/// The values with an infinite element amid the first.
fn with_infinity(mut values: Vec<(String, Tensor)>, number: f64) -> Vec<(String, Tensor)> {
    let (name, x) = &values[0];
    let mut elements = x.to_f64s();
    let middle = elements.len() / 2;
    elements[middle] = number;
    values[0] = (name.clone(), Tensor::from_vec(x.dims(), elements).unwrap());
    values
}

/// The gradient of `x` in a program for `w` times its result `out`, with inputs `w` and `x`.
fn weighted(program: &Program, x: &str, out: &str) -> (Program, String) {
    let net = Builder::new();
    net.set_program(program.clone());
    let result = net.expr(out);
    let dims: Vec<i64> = result.dims().iter().map(|dim| dim.get().unwrap() as i64).collect();
    let product = (net.input("w", DType::F64, &dims) * result).name();
    let mut program = net.program().unwrap().clone();
    // Data have no gradient by default.
    for var in [x, out, &product].map(|name| program.find(name).unwrap()) {
        program.root_mut().vars.get_mut(&var).unwrap().stop_gradient = false;
    }
    let found = gradients(&mut program, &[&product], &[x], &Default::default()).unwrap();
    let name = program.name(found.pairs[0].1).to_string();
    infer_shapes(&mut program, OpInfoMap::linked().unwrap());
    (program, name)
}

/// Checks results for infinite elements and gradients for infinite gradients; returns how many are written.
fn check_infinities(program: &Program, values: &[(String, Tensor)], out: &str) -> usize {
    let mut written = 0;
    for number in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        let inputs = with_infinity(values.to_vec(), number);
        let is_written = check_program(program.clone(), &inputs, &[out.to_string()]);
        written += usize::from(is_written.unwrap_or_else(|e| panic!("{e}\n{program}")));
        let (backward, gradient) = weighted(program, &values[0].0, out);
        let var = backward.find(out).unwrap();
        let dims = backward.root().vars.get(&var).unwrap().dims.known().unwrap();
        let w = Tensor::from_vec(&dims[..], vec![0.5; dims.iter().product()]).unwrap();
        let mut inputs = with_infinity(vec![("w".to_string(), w)], number);
        inputs.extend(values.to_vec());
        let is_written = check_program(backward.clone(), &inputs, &[gradient]);
        written += usize::from(is_written.unwrap_or_else(|e| panic!("gradient: {e}\n{backward}")));
    }
    written
}

#[test]
fn windows_keep_infinite_elements_where_they_are() {
    let mut written = 0;
    for sample in check::samples() {
        let Ok((program, values)) = check::sample_program(&sample, DType::F64) else { continue };
        let [op] = &program.root().ops[..] else { continue };
        let is_mean = op.ty == "pool2d"
            && op.attrs.get("pooling_type").is_some_and(|a| format!("{a:?}").contains("avg"));
        if !(is_mean || op.ty == "unfold" || op.ty == "fold") || values[0].1.numel() == 0 {
            continue;
        }
        let out = program.name(op.writes().next().unwrap()).to_string();
        written += check_infinities(&program, &values, &out);
    }
    assert!(written >= 90, "{written} programs are written");
}

#[test]
fn resizing_keeps_infinite_gradients_where_they_are() {
    let net = Builder::new();
    let out = net.input("x", DType::F64, &[1, 2, 3, 4]).upsample_bilinear(2, false).name();
    let x = Tensor::from_vec([1, 2, 3, 4], (0..24).map(f64::from).collect()).unwrap();
    let written = check_infinities(&net.program().unwrap(), &[("x".to_string(), x)], &out);
    assert_eq!(written, 6);
}
