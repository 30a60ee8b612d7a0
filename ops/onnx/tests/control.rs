//! Programs with control flow are written, read again, and compute the same.

use autobwd::{
    Backward, Builder, DType, Executor, Expr, New, Program, Result, Scope, Tensor, append_backward, emit,
    gradients,
};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{
    Init, Math, Model,
    array::{ReadFromArray, WriteToArray},
    concat,
    control::{cond, dynamic_dims, static_rnn, while_loop},
    optim::{Optimizer, Sgd},
};

fn scalar(x: f64) -> Tensor {
    Tensor::scalar(x).unwrap()
}

fn numbers(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7 % 11) as f64 * 0.1 - 0.45).collect()).unwrap()
}

/// A parameter.
fn parameter(net: &Builder, name: &str, dims: &[usize]) -> Expr {
    net.parameter(name, DType::F64, dims, |w| Init::Constant(0.0).emit(w, 0))
}

/// A model whose parameters hold some numbers.
fn model(program: Program, feeds: &[&str], fetches: &[&str]) -> Model {
    let mut scope = Scope::new();
    for (var, desc) in program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
        scope.set(program.name(*var), numbers(&desc.dims.known().unwrap()));
    }
    let [feeds, fetches] = [feeds, fetches].map(|names| names.iter().map(|name| name.to_string()).collect());
    Model { program, feeds, fetches, scope }
}

/// The operators of all blocks.
fn operators(program: &Program) -> Vec<&str> {
    program.blocks().iter().flat_map(|block| &block.ops).map(|op| &*op.ty).collect()
}

/// Writes and reads a model and compares results for several inputs; returns the model that was read.
fn assert_same(mut model: Model, runs: &[Vec<Tensor>]) -> Result<Model> {
    let mut executor = Executor::with_threads(1);
    let mut read = from_bytes(&to_bytes(&model)?, &LoadOptions::default())?;
    for inputs in runs {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let [expected, results] = [model.run(&mut executor, &inputs)?, read.run(&mut executor, &inputs)?];
        assert_eq!(results.len(), expected.len());
        for (result, expected) in results.iter().zip(&expected) {
            assert_eq!((result.dtype(), result.dims()), (expected.dtype(), expected.dims()));
            for (x, y) in result.to_f64s().iter().zip(expected.to_f64s()) {
                assert!((x - y).abs() <= 1e-12 * y.abs().max(1.0), "{result:?} is not {expected:?}");
            }
        }
    }
    Ok(read)
}

/// `tanh(x · w)` where the sum of `x` is below a limit, else `x - w`; also a multiple of the sum.
fn branches(net: &Builder, x: &Expr) -> Vec<Expr> {
    let w = parameter(net, "w", &[3]);
    let limit = net.input("limit", DType::F64, &[]);
    let sum = x.sum(&[]);
    cond(&sum.less_than(&limit), || vec![(x * &w).tanh(), &sum * 2.0], || vec![x - &w, sum.clone()])
}

fn limits() -> Vec<Vec<Tensor>> {
    let runs = [(4, 5.0), (4, -5.0), (1, 5.0), (1, -5.0)];
    runs.iter().map(|(n, limit)| vec![numbers(&[*n, 3]), scalar(*limit)]).collect()
}

#[test]
fn branches_of_open_shapes() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 3]);
    let out = branches(&net, &x);
    let model = model(net.program()?.clone(), &["x", "limit"], &[&out[0].name(), &out[1].name()]);
    let read = assert_same(model, &limits())?;
    // The same branches again.
    let read = assert_same(read, &limits())?;
    assert_eq!(operators(&read.program).iter().filter(|ty| **ty == "conditional_block").count(), 2);
    Ok(())
}

#[test]
fn gradients_of_branches() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[4, 3]);
    let out = branches(&net, &x);
    let loss = (out[0].square().mean() + &out[1]).name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Backward::default())?;
    assert_same(model(program, &["x", "limit"], &[&loss, "w@GRAD"]), &limits()[..2])?;
    Ok(())
}

/// `y ← tanh(w · y) + x` as often as `count` says, and the number of steps.
fn repeated(net: &Builder, x: &Expr) -> Vec<Expr> {
    let w = parameter(net, "w", &[3]);
    let count = net.input("count", DType::F64, &[]);
    while_loop(
        &[x.clone(), &count * 0.0],
        |v| v[1].less_than(&count),
        |v| vec![(&v[0] * &w).tanh() + x, &v[1] + 1.0],
    )
}

fn counts() -> Vec<Vec<Tensor>> {
    [0.0, 1.0, 2.0, 7.0, 3.0].iter().map(|count| vec![numbers(&[2, 3]), scalar(*count)]).collect()
}

#[test]
fn loops_of_any_length() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 3]);
    let out = repeated(&net, &x);
    let model = model(net.program()?.clone(), &["x", "count"], &[&out[0].name(), &out[1].name()]);
    let read = assert_same(model, &counts())?;
    assert!(operators(&read.program).contains(&"while"));
    Ok(())
}

#[test]
fn gradients_of_loops_of_any_length() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2, 3]);
    let out = repeated(&net, &x);
    let loss = out[0].square().mean().name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Backward::default())?;
    assert_same(model(program, &["x", "count"], &[&loss, "w@GRAD"]), &counts())?;
    Ok(())
}

#[test]
fn states_that_grow() -> Result<()> {
    let net = Builder::new();
    let (x, limit) = (net.input("x", DType::F64, &[2, 3]), net.input("limit", DType::F64, &[]));
    let rows = while_loop(
        &[dynamic_dims(&x, &[0])],
        |v| v[0].square().sum(&[]).less_than(&limit),
        |v| vec![concat(&[&v[0], &(&x * 2.0)], 0)],
    );
    let runs: Vec<Vec<Tensor>> =
        [0.0, 1.0, 9.0].iter().map(|limit| vec![numbers(&[2, 3]), scalar(*limit)]).collect();
    assert_same(model(net.program()?.clone(), &["x", "limit"], &[&rows[0].name()]), &runs)?;
    Ok(())
}

/// `h ← tanh(h · w + x)`: twice each state, and the last state.
fn recurrence(net: &Builder, x: &Expr, reverse: bool) -> Vec<Expr> {
    let w = parameter(net, "w", &[2, 2]);
    let first = net.input("first", DType::F64, &[1, 2]);
    static_rnn(net, reverse, |rnn| {
        let (x, h) = (rnn.step_input(x), rnn.memory(&first));
        let next = (h.matmul(&w) + x).tanh();
        rnn.update_memory(&h, &next);
        rnn.last_output(&h);
        rnn.step_output(&(&next * 2.0));
    })
}

fn lengths() -> Vec<Vec<Tensor>> {
    [1, 2, 5, 3].iter().map(|steps| vec![numbers(&[*steps, 1, 2]), numbers(&[1, 2])]).collect()
}

#[test]
fn recurrences_of_any_length() -> Result<()> {
    for reverse in [false, true] {
        let net = Builder::new();
        let x = net.input("x", DType::F64, &[-1, 1, 2]);
        let out = recurrence(&net, &x, reverse);
        let model = model(net.program()?.clone(), &["x", "first"], &[&out[0].name(), &out[1].name()]);
        let read = assert_same(model, &lengths())?;
        assert!(operators(&read.program).contains(&"recurrent"));
    }
    Ok(())
}

/// Appends the gradients of a sum of squares; returns the names of those.
fn append_gradients(program: &mut Program, loss: &str, inputs: &[&str]) -> Result<Vec<String>> {
    let found = gradients(program, &[loss], inputs, &Default::default())?;
    assert_eq!(found.pairs.len(), inputs.len());
    Ok(found.pairs.iter().map(|(_, var)| program.name(*var).to_string()).collect())
}

#[test]
fn gradients_of_recurrences() -> Result<()> {
    for (steps, reverse) in [(1, false), (4, false), (5, true)] {
        let net = Builder::new();
        let x = net.input("x", DType::F64, &[steps, 1, 2]);
        let out = recurrence(&net, &x, reverse);
        let loss = (out[0].square().sum(&[]) + out[1].sum(&[])).name();
        let mut program = net.program()?.clone();
        let found = append_gradients(&mut program, &loss, &["w"])?;
        let inputs = vec![numbers(&[steps as usize, 1, 2]), numbers(&[1, 2])];
        assert_same(model(program, &["x", "first"], &[&loss, &found[0]]), &[inputs])?;
    }
    Ok(())
}

/// A loop as often as the sequence says, and a branch, within each step of a recurrence.
fn nested(net: &Builder, x: &Expr) -> Vec<Expr> {
    let (w, first) = (parameter(net, "w", &[2]), net.input("first", DType::F64, &[2]));
    static_rnn(net, false, |rnn| {
        let (x, h) = (rnn.step_input(x), rnn.memory(&first));
        let zero = x.sum(&[]) * 0.0;
        let count = x.sum(&[]) * 5.0;
        let turned = while_loop(
            &[h.clone(), zero.clone()],
            |v| v[1].less_than(&count),
            |v| vec![(&v[0] * &w + &x).tanh(), &v[1] + 1.0],
        );
        let sum = turned[0].sum(&[]);
        let next = cond(&zero.less_than(&sum), || vec![&turned[0] * &w], || vec![turned[0].exp() - &w]);
        rnn.update_memory(&h, &next[0]);
        rnn.step_output(&next[0]);
    })
}

#[test]
fn gradients_of_loops_and_branches_in_recurrences() -> Result<()> {
    for steps in [1, 2, 5, 9] {
        let net = Builder::new();
        let x = net.input("x", DType::F64, &[steps, 2]);
        let out = nested(&net, &x);
        let loss = out[0].square().sum(&[]).name();
        let mut program = net.program()?.clone();
        let found = append_gradients(&mut program, &loss, &["w"])?;
        let inputs = vec![numbers(&[steps as usize, 2]), numbers(&[2])];
        assert_same(model(program, &["x", "first"], &[&loss, &out[0].name(), &found[0]]), &[inputs])?;
    }
    Ok(())
}

#[test]
fn operators_without_form_are_named() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2]);
    let i = net.input("i", DType::I64, &[1]);
    let list = emit(WriteToArray { x: (&x).into(), i: (&i).into(), out: New }).out;
    let zero = x.sum(&[]) * 0.0;
    while_loop(
        std::slice::from_ref(&zero),
        |v| v[0].less_than(&(&zero + 3.0)),
        |v| {
            emit(WriteToArray { x: (&x).into(), i: (&i).into(), out: (&list).into() }).out.check().unwrap();
            vec![&v[0] + 1.0]
        },
    );
    let last = emit(ReadFromArray { x: (&list).into(), i: (&i).into(), x_w: None, out: New }).out;
    let model = model(net.program()?.clone(), &["x", "i"], &[&last.name()]);
    let e = to_bytes(&model).unwrap_err().to_string();
    for op in ["write_to_array", "read_from_array"] {
        assert!(e.contains(&format!("operator `{op}` has no form in ONNX")), "{e}");
    }
    assert!(e.contains("carried from step to step, but is not a tensor (operator"), "{e}");
    Ok(())
}

#[test]
fn operators_on_which_nothing_depends_are_left_out() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2]);
    let i = net.input("i", DType::I64, &[1]);
    let out = x.exp();
    // It has no form in ONNX.
    emit(WriteToArray { x: (&out).into(), i: (&i).into(), out: New }).out.check()?;
    let model = model(net.program()?.clone(), &["x"], &[&out.name()]);
    let read = assert_same(model, &[vec![numbers(&[2])]])?;
    assert_eq!(operators(&read.program), ["exp"]);
    Ok(())
}

#[test]
fn training_steps() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[3, 1, 2]);
    let out = recurrence(&net, &x, false);
    let loss = (&out[0] - 0.3).square().mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    // The second step has other weights.
    let inputs = vec![numbers(&[3, 1, 2]), numbers(&[1, 2])];
    let runs = [inputs.clone(), inputs];
    assert_same(model(net.program()?.clone(), &["x", "first"], &[&loss.name()]), &runs)?;
    Ok(())
}
