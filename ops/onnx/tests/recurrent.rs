//! Recurrent layers are written for any number of steps and sequences, read again, and compute the same.

use autobwd::{
    BlockId, Builder, DType, Executor, Expr, New, Program, Result, Scope, Tensor, emit, gradients,
};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{
    Init, Math, Model,
    nn::Lstm,
    rnn::{RnnAttrs, RnnLayers, RnnMode},
};

const SIZES: [[usize; 2]; 2] = [[3, 2], [5, 4]];
const INPUTS: usize = 3;
const UNITS: usize = 2;

fn numbers(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7 % 11) as f64 * 0.2 - 1.0).collect()).unwrap()
}

/// A model whose parameters hold some numbers.
fn model(program: Program, feeds: &[&str], fetches: Vec<String>) -> Model {
    let mut scope = Scope::new();
    for (var, desc) in program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
        scope.set(program.name(*var), numbers(&desc.dims.known().unwrap()));
    }
    Model { program, feeds: feeds.iter().map(|name| name.to_string()).collect(), fetches, scope }
}

/// Compares results with those of the written model, for inputs of each size; returns the model that was read.
fn assert_same(mut model: Model, inputs: impl Fn([usize; 2]) -> Vec<Tensor>) -> Result<Model> {
    let mut executor = Executor::with_threads(1);
    let mut read = from_bytes(&to_bytes(&model)?, &LoadOptions::default())?;
    for size in SIZES {
        let inputs = inputs(size);
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let [expected, results] = [model.run(&mut executor, &inputs)?, read.run(&mut executor, &inputs)?];
        for ((result, expected), name) in results.iter().zip(&expected).zip(&model.fetches) {
            assert_eq!((result.dtype(), result.dims()), (expected.dtype(), expected.dims()), "`{name}`");
            for (x, y) in result.to_f64s().iter().zip(expected.to_f64s()) {
                assert!((x - y).abs() <= 1e-6 * y.abs().max(1.0), "`{name}`: {x} is not {y}");
            }
        }
    }
    Ok(read)
}

/// How often each operator occurs, for those in the list.
fn counts(program: &Program, wanted: &[&str]) -> Vec<usize> {
    let ops = || program.blocks().iter().flat_map(|block| &block.ops);
    wanted.iter().map(|wanted| ops().filter(|op| &*op.ty == *wanted).count()).collect()
}

/// The gradients of a sum of squares with respect to all parameters and to these inputs.
fn gradients_of(net: &Builder, results: &[Expr], inputs: &[&str]) -> Result<(Program, Vec<String>)> {
    let terms: Vec<Expr> = results.iter().map(|x| x.square().sum(&[])).collect();
    let loss = terms.iter().skip(1).fold(terms[0].clone(), |sum, term| sum + term).name();
    let mut program = net.program()?.clone();
    let mut wanted: Vec<String> = program.parameters().map(|var| program.name(var).to_string()).collect();
    for input in inputs {
        let var = program.expect_var(input)?;
        program.block_mut(BlockId::ROOT).unwrap().vars.get_mut(&var).unwrap().stop_gradient = false;
        wanted.push(input.to_string());
    }
    let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let found = gradients(&mut program, &[&loss], &names, &Default::default())?;
    assert_eq!(found.pairs.len(), wanted.len());
    let names = found.pairs.iter().map(|(_, gradient)| program.name(*gradient).to_string()).collect();
    Ok((program, names))
}

/// Output and last states of layers, with lengths of sequences if wanted.
fn layers(net: &Builder, rnn: &RnnAttrs, lengths: bool) -> Vec<Expr> {
    let directions = 1 + usize::from(rnn.is_bidirec);
    let (count, states) =
        (rnn.num_layers as usize * directions, if rnn.mode == RnnMode::Lstm { 2 } else { 1 });
    let rows = UNITS
        * match rnn.mode {
            RnnMode::Lstm => 4,
            RnnMode::Gru => 3,
            _ => 1,
        };
    let parameter = |name: String, dims: &[usize]| {
        net.parameter(&name, DType::F64, dims, |w| Init::Constant(0.0).emit(w, 0))
    };
    let mut weights = vec![];
    for i in 0..count {
        let width = if i < directions { INPUTS } else { directions * UNITS };
        weights.push(parameter(format!("w{i}"), &[rows, width]));
        weights.push(parameter(format!("r{i}"), &[rows, UNITS]));
    }
    for i in 0..2 * count {
        weights.push(parameter(format!("b{i}"), &[rows]));
    }
    let x = net.input("x", DType::F64, &[-1, -1, INPUTS as i64]);
    let dims = [count as i64, -1, UNITS as i64];
    let first: Vec<Expr> = (0..states).map(|i| net.input(&format!("first{i}"), DType::F64, &dims)).collect();
    let lengths = lengths.then(|| net.input("lengths", DType::I64, &[-1]));
    let op = emit(RnnLayers {
        input: (&x).into(),
        pre_state: first.iter().map(Into::into).collect(),
        weight_list: weights.iter().map(Into::into).collect(),
        sequence_length: lengths.as_ref().map(Into::into),
        out: New,
        dropout_state: Some(New),
        state: first.iter().map(|_| New).collect(),
        reserve: New,
        rnn: rnn.clone(),
    });
    [op.out].into_iter().chain(op.state).collect()
}

/// The inputs of [`layers`]: some lengths are not within the sequences.
fn inputs(rnn: &RnnAttrs, lengths: bool) -> (Vec<&'static str>, impl Fn([usize; 2]) -> Vec<Tensor>) {
    let count = rnn.num_layers as usize * (1 + usize::from(rnn.is_bidirec));
    let states = if rnn.mode == RnnMode::Lstm { 2 } else { 1 };
    let names = ["x"].into_iter().chain(["first0", "first1"].into_iter().take(states));
    let values = move |[steps, batch]: [usize; 2]| {
        let mut all = vec![numbers(&[steps, batch, INPUTS])];
        all.extend((0..states).map(|_| numbers(&[count, batch, UNITS])));
        let given = [2_i64, 9, 0, 1].into_iter().take(batch).collect();
        all.extend(lengths.then(|| Tensor::from_vec([batch], given).unwrap()));
        all
    };
    (names.chain(lengths.then_some("lengths")).collect(), values)
}

fn forms() -> Vec<(RnnAttrs, bool)> {
    let attrs =
        |mode: RnnMode| RnnAttrs::default().mode(mode).input_size(INPUTS as i32).hidden_size(UNITS as i32);
    let mut forms = vec![];
    for mode in [RnnMode::Lstm, RnnMode::Gru, RnnMode::Tanh, RnnMode::Relu] {
        forms.push((attrs(mode), false));
        forms.push((attrs(mode).is_bidirec(true).num_layers(2), true));
    }
    forms
}

#[test]
fn layers_are_nodes() -> Result<()> {
    for (rnn, lengths) in forms() {
        let net = Builder::new();
        let fetches = layers(&net, &rnn, lengths).iter().map(Expr::name).collect();
        let (feeds, inputs) = inputs(&rnn, lengths);
        let read = assert_same(model(net.program()?.clone(), &feeds, fetches), inputs)?;
        // Not step by step; weights are parameters in the order of the library again.
        let counts = counts(&read.program, &["rnn", "recurrent"]);
        assert_eq!(counts, [rnn.num_layers as usize, 0], "{rnn:?}");
    }
    Ok(())
}

#[test]
fn gradients_of_layers() -> Result<()> {
    for (rnn, lengths) in forms() {
        let net = Builder::new();
        let found = layers(&net, &rnn, lengths);
        let (feeds, inputs) = inputs(&rnn, lengths);
        let wanted: Vec<&str> = feeds.iter().copied().filter(|name| *name != "lengths").collect();
        let (program, fetches) = gradients_of(&net, &found, &wanted)?;
        assert_same(model(program, &feeds, fetches), inputs)?;
    }
    Ok(())
}

/// Hidden states of an LSTM, all and last.
fn lstm(net: &Builder) -> Vec<Expr> {
    let x = net.input("x", DType::F64, &[-1, -1, INPUTS as i64]);
    let lstm = Lstm::builder(net, INPUTS, UNITS).dtype(DType::F64).seed(1).build();
    let (out, last) = lstm.forward_with(&x, None, None);
    [out].into_iter().chain(last).collect()
}

#[test]
fn lstm_is_a_node() -> Result<()> {
    let net = Builder::new();
    let fetches = lstm(&net)[..2].iter().map(Expr::name).collect();
    let inputs = |[steps, batch]: [usize; 2]| vec![numbers(&[steps, batch, INPUTS])];
    let read = assert_same(model(net.program()?.clone(), &["x"], fetches), inputs)?;
    assert_eq!(counts(&read.program, &["rnn", "recurrent"]), [1, 0]);
    Ok(())
}

#[test]
fn lstm_of_two_layers_is_two_nodes() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, -1, INPUTS as i64]);
    let lstm = Lstm::builder(&net, INPUTS, UNITS).layers(2).dtype(DType::F64).seed(1).build();
    // Operators follow the layers.
    let out = (lstm.forward_with(&x, None, None).0 * 2.0).tanh().sum(&[0]) + 1.0;
    let inputs = |[steps, batch]: [usize; 2]| vec![numbers(&[steps, batch, INPUTS])];
    let read = assert_same(model(net.program()?.clone(), &["x"], vec![out.name()]), inputs)?;
    assert_eq!(counts(&read.program, &["rnn", "recurrent"]), [2, 0]);
    Ok(())
}

#[test]
fn gradients_of_an_lstm() -> Result<()> {
    let net = Builder::new();
    let (program, fetches) = gradients_of(&net, &lstm(&net)[..1], &["x"])?;
    let inputs = |[steps, batch]: [usize; 2]| vec![numbers(&[steps, batch, INPUTS])];
    assert_same(model(program, &["x"], fetches), inputs)?;
    Ok(())
}
