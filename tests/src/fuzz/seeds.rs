//! Initial inputs for mutations: programs of every operator, of models, and of the reference.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
};

use autobwd::{
    Backward, Builder, DType, Executor, Program, Result, Scope, Tensor, append_backward, check, gradients,
};
use autobwd_ops::{
    Init, Math, concat,
    control::{cond, scan, static_rnn, while_loop},
    nn::{BatchNorm, Conv2d, Dropout, Embedding, LayerNorm, Linear, Lstm, MultiHeadAttention},
    optim::{Adam, Momentum, Optimizer, Sgd},
};

use super::{
    mutate::{Rng, mutate_bytes},
    wire::mutate_message,
};
use crate::conformance::load_folder;

/// A program, and values of the variables that it reads.
#[derive(Clone, Default)]
pub struct FuzzSeed {
    /// The program.
    pub program: Program,
    /// Values of data and of kept variables.
    pub values: HashMap<String, Tensor>,
}

/// All initial inputs.
///
/// # Errors
/// A model that cannot be built; a corpus that cannot be read.
pub fn seeds() -> Result<Vec<FuzzSeed>, Box<dyn std::error::Error>> {
    let mut seeds = models()?;
    for sample in crate::linked_samples() {
        // Samples that must fail do so here.
        if let Ok((mut program, values)) = check::sample_program(&sample, DType::F32) {
            let written: Vec<String> =
                program.root().ops[0].writes().map(|v| program.name(v).to_string()).collect();
            let inputs: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
            let outputs: Vec<&str> = written.iter().map(String::as_str).collect();
            let _ = gradients(&mut program, &outputs, &inputs, &Default::default());
            seeds.push(FuzzSeed { program, values: values.into_iter().collect() });
        }
    }
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for case in load_folder(&corpus, "")?.into_iter().filter_map(|entry| entry.case.ok()) {
        let values = |kind| case.values(kind).map(|(name, value)| (name.to_string(), value.clone()));
        let values: HashMap<_, _> = values("feed").chain(values("param")).collect();
        for program in [Some(&case.first.forward), case.first.backward.as_ref()].into_iter().flatten() {
            let program = Program::from_json(&program.to_string())?;
            seeds.push(FuzzSeed { program, values: values.clone() });
        }
    }
    Ok(seeds)
}

/// The models of PaddlePaddle in the tests of `autobwd-paddle`: program, parameters, and what is said about them, each
/// after its length as `u32`.
///
/// # Errors
/// Those of the file system.
pub fn paddle_inputs() -> io::Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/paddle/tests/models");
    let mut inputs = vec![];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "pdmodel") {
            let program = fs::read(&path)?;
            let other = |ending| fs::read(path.with_extension(ending)).unwrap_or_default();
            inputs.push(join(&[program, other("pdiparams"), other("pdiparams.info")]));
        }
    }
    // The order of a folder is not fixed.
    inputs.sort();
    Ok(inputs)
}

/// Models in files of GGUF: those in the tests of `autobwd-models`: one of all types of tensors, and two tokenizers.
///
/// # Errors
/// Those of the file system.
pub fn gguf_inputs() -> io::Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/models/tests/fixtures");
    let paths = ["_gguf/blocks.gguf", "qwen2/model.f16.gguf", "gemma3/model.f32.gguf"];
    paths.iter().map(|path| fs::read(folder.join(path))).collect()
}

/// Models of ONNX: those in the tests of `autobwd-onnx`, the subset of ONNX's node tests, and all below `further`.
///
/// # Errors
/// Those of the file system.
pub fn onnx_inputs(further: Option<&Path>) -> io::Result<Vec<Vec<u8>>> {
    let own = ["../ops/onnx/tests/models", "onnx"];
    let mut folders: Vec<PathBuf> =
        own.iter().map(|own| Path::new(env!("CARGO_MANIFEST_DIR")).join(own)).collect();
    folders.extend(further.map(Path::to_path_buf));
    let mut inputs = vec![];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "onnx") {
                inputs.push(fs::read(&path)?);
            }
        }
    }
    // The order of a folder is not fixed.
    inputs.sort();
    Ok(inputs)
}

/// The operators in models of ONNX.
pub fn onnx_operators(inputs: &[Vec<u8>]) -> Vec<String> {
    let signatures = inputs.iter().filter_map(|input| autobwd_onnx::signature(input).ok());
    let operators: BTreeSet<String> = signatures.flat_map(|signature| signature.operators).collect();
    operators.into_iter().collect()
}

/// A changed model of ONNX; `words` are meaningful texts.
pub fn mutate_onnx(input: &[u8], words: &[&str], rng: &mut Rng) -> Vec<u8> {
    match rng.below(16) {
        0 => mutate_bytes(input, rng),
        _ => mutate_message(input, words, rng),
    }
}

/// One input from its parts.
fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    let part = |part: &Vec<u8>| [&(part.len() as u32).to_le_bytes(), &part[..]].concat();
    parts.iter().flat_map(part).collect()
}

/// Program, parameters, and what is said about them.
pub(super) fn parts(mut input: &[u8]) -> [Vec<u8>; 3] {
    [(); 3].map(|()| {
        let length = input
            .split_off(..4)
            .map_or(0, |length| length.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte)));
        input.split_off(..length.min(input.len())).unwrap_or_default().to_vec()
    })
}

/// A model of PaddlePaddle with a changed file; `words` are meaningful texts.
pub fn mutate_model(input: &[u8], words: &[&str], rng: &mut Rng) -> Vec<u8> {
    let mut parts = parts(input);
    match rng.below(12) {
        0 => parts[0] = mutate_bytes(&parts[0], rng),
        1 => parts[1] = mutate_bytes(&parts[1], rng),
        2 => parts[2] = mutate_bytes(&parts[2], rng),
        _ => parts[0] = mutate_message(&parts[0], words, rng),
    }
    join(&parts)
}

fn seed(net: &Builder, feeds: Vec<(&str, Tensor)>) -> Result<FuzzSeed> {
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let kept = scope.iter().map(|(name, value)| (name.to_string(), value.clone()));
    let values = feeds.into_iter().map(|(name, value)| (name.to_string(), value)).chain(kept).collect();
    Ok(FuzzSeed { program: net.program()?.clone(), values })
}

fn numbers(dims: &[usize]) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    Tensor::from_vec(dims, (0..count).map(|i| (i % 7) as f32 * 0.3 - 0.8).collect())
}

fn models() -> Result<Vec<FuzzSeed>> {
    let mut seeds = vec![];
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 2]), net.input("y", DType::F32, &[-1, 1]));
    let hidden = Linear::builder(&net, 2, 3).seed(1).build().forward(&x).tanh();
    let hidden = Dropout::new(&net, 0.5, 7).forward(&hidden);
    let loss = Linear::builder(&net, 3, 1).seed(2).build().forward(&hidden).square_error(&y).mean();
    Adam::new(0.1).minimize(&loss).map(drop)?;
    seeds.push(seed(&net, vec![("x", numbers(&[4, 2])?), ("y", numbers(&[4, 1])?)])?);

    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 1, 6, 6]);
    let h = Conv2d::builder(&net, 1, 2, 3).padding(1).seed(1).build().forward(&x);
    let h = BatchNorm::builder(&net, 2).build().forward(&h).relu().max_pool2d(2, 2);
    let loss = h.reshape(&[-1, 18]).log_softmax(1).mean();
    Momentum { rate: 0.1, momentum: 0.9, nesterov: true, lazy: false }.minimize(&loss).map(drop)?;
    seeds.push(seed(&net, vec![("x", numbers(&[2, 1, 6, 6])?)])?);

    let net = Builder::new();
    let (ids, labels) = (net.input("ids", DType::I64, &[-1]), net.input("labels", DType::I64, &[-1, 1]));
    let h = Embedding::builder(&net, 9, 4).sparse().seed(1).build().forward(&ids);
    let loss = LayerNorm::builder(&net, 4).build().forward(&h).cross_entropy(&labels).mean();
    Sgd { rate: 0.1 }.minimize(&loss).map(drop)?;
    let ids = Tensor::from_vec([3], vec![1_i64, 8, 1])?;
    seeds.push(seed(&net, vec![("ids", ids), ("labels", Tensor::from_vec([3, 1], vec![0_i64, 3, 1])?)])?);

    let net = Builder::new();
    let x = net.input("x", DType::F32, &[3, 2, 4]);
    let h = MultiHeadAttention::builder(&net, 4, 2).causal().seed(1).build().forward(&x);
    let (h, _) = Lstm::builder(&net, 4, 3).seed(2).build().forward(&h);
    Sgd { rate: 0.1 }.minimize(&h.square().mean()).map(drop)?;
    seeds.push(seed(&net, vec![("x", numbers(&[3, 2, 4])?)])?);

    let net = Builder::new();
    let (x, zero) = (net.input("x", DType::F32, &[-1, 2]), net.input("zero", DType::F32, &[2]));
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(0.5).emit(w, 0));
    let sums = scan(&[x], std::slice::from_ref(&zero), false, |x, sum| {
        let sum = &x[0] * &w + &sum[0];
        (vec![sum.clone()], vec![sum])
    });
    let end = zero.mean() + 9.0;
    let start = sums[0].square().sum(&[]);
    let large = while_loop(&[start], |v| v[0].less_than(&end), |v| vec![&v[0] * (w.square().sum(&[]) + 1.0)]);
    let low = large[0].less_than(&(&end * 1.2));
    let loss = cond(&low, || vec![large[0].log()], || vec![large[0].sqrt()]).remove(0);
    let forward = seed(&net, vec![("x", numbers(&[3, 2])?), ("zero", Tensor::zeros(DType::F32, &[2])?)])?;
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    seeds.push(FuzzSeed { program, ..forward.clone() });
    seeds.push(forward);

    // Shapes that differ from step to step, and steps that read earlier ones.
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2]);
    let end = net.input("end", DType::F32, &[]);
    let grown = while_loop(
        &[x],
        |v| v[0].square().sum(&[]).less_than(&end),
        |v| vec![concat(&[&v[0], &(&v[0] * 1.5)], 0)],
    );
    let zero = net.input("zero", DType::F32, &[2]);
    let h = static_rnn(&net, false, |rnn| {
        rnn.checkpoint_every(2);
        let (x, h) = (rnn.step_input(&grown[0]), rnn.memory(&zero));
        let next = x.tanh() + &h;
        rnn.update_memory(&h, &next);
        rnn.step_output(&next);
    });
    let loss = h[0].mean().name();
    net.edit(|program| gradients(program, &[&loss], &["x"], &Default::default()).map(drop))?;
    let end = Tensor::scalar(20_f32)?;
    let feeds = vec![("x", numbers(&[1, 2])?), ("end", end), ("zero", Tensor::zeros(DType::F32, &[2])?)];
    seeds.push(seed(&net, feeds)?);
    Ok(seeds)
}
