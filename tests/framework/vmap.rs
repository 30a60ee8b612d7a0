//! `vmap`: a program for many samples computes what the program of one sample computes for each.

use std::collections::BTreeSet;

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, Feed, Meta, OpInfoMap, Program, Result, Scope,
    Tensor,
    backward::gradients,
    check::{Sample, sample_program, samples},
    program::VarKind,
};
use autobwd_ops::{
    Math,
    control::cond,
    model::{per_sample, vmap},
    nn::{Conv2d, Embedding, LayerNorm, Linear, MultiHeadAttention},
    optim::{Optimizer, Sgd, compute_gradients},
};

const SAMPLES: usize = 3;
/// The largest difference of a result, relative to the largest number of the result.
const TOLERANCE: f64 = 1e-9;

/// A program with the values of its inputs for each sample, and what to fetch.
struct Case {
    program: Program,
    values: Vec<(String, Vec<Tensor>)>,
    fetches: Vec<String>,
}

impl Case {
    fn of(sample: &Sample) -> Option<Case> {
        let (program, values) = sample_program(sample, DType::F64).ok()?;
        let written = program.root().ops.iter().flat_map(|op| op.outputs.iter());
        // Outputs that remember a shape have no elements.
        let written = written.filter(|(slot, _)| slot.as_str() != "XShape").flat_map(|(_, vars)| vars);
        let is_tensor = |var| program.root().vars.get(var).is_some_and(|desc| desc.kind == VarKind::Tensor);
        let fetches: BTreeSet<String> =
            written.filter(|var| is_tensor(var)).map(|var| program.name(*var).to_string()).collect();
        let values = values.into_iter().map(|(name, value)| {
            let of_sample = |i: usize| match value.dtype() {
                DType::F64 => {
                    let numbers = value.to_f64s().into_iter().map(|x| x * (1.0 + 1e-3 * i as f64));
                    Tensor::from_vec(value.dims(), numbers.collect())
                }
                _ => Ok(value.clone()),
            };
            Some((name, (0..SAMPLES).map(of_sample).collect::<Result<_>>().ok()?))
        });
        Some(Case { values: values.collect::<Option<_>>()?, fetches: fetches.into_iter().collect(), program })
    }

    fn backward(&self) -> Option<Case> {
        let mut program = self.program.clone();
        let inputs: Vec<&str> = self.values.iter().map(|(name, _)| name.as_str()).collect();
        let targets: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        let found = gradients(&mut program, &targets, &inputs, &Default::default()).ok()?;
        let fetches = found.pairs.iter().map(|(_, gradient)| program.name(*gradient).to_string());
        let fetches: Vec<String> = fetches.collect();
        (!fetches.is_empty()).then(|| Case { program, fetches, values: self.values.clone() })
    }

    /// The results of each sample; `None` if a kernel refuses a sample.
    fn expected(&self, is_sampled: &[bool]) -> Option<Vec<Vec<Tensor>>> {
        let run = |i: usize| {
            let of = |((name, values), sampled): (&(String, Vec<Tensor>), &bool)| {
                (name.clone(), values[if *sampled { i } else { 0 }].clone())
            };
            let feeds: Vec<(String, Tensor)> = self.values.iter().zip(is_sampled).map(of).collect();
            run(&self.program, &feeds, &self.fetches).ok()
        };
        (0..SAMPLES).map(run).collect()
    }

    /// Compares the program of all samples with runs of each sample; what differs between samples is `is_sampled`.
    /// Returns whether there was anything to compare.
    fn compare(&self, is_sampled: &[bool]) -> Result<bool> {
        let Some(expected) = self.expected(is_sampled) else { return Ok(false) };
        let mut metas: Vec<(&str, Meta)> = vec![];
        let mut feeds: Vec<(String, Tensor)> = vec![];
        let mut program = self.program.clone();
        for ((name, values), sampled) in self.values.iter().zip(is_sampled) {
            if *sampled {
                metas.push((name, values[0].meta()));
                feeds.push((name.clone(), stacked(values)?));
            } else {
                let var = program.expect_var(name)?;
                if let Some(desc) = program.root_mut().vars.get_mut(&var) {
                    desc.dims = values[0].meta().dims;
                }
                feeds.push((name.clone(), values[0].clone()));
            }
        }
        let fetches: Vec<&str> = self.fetches.iter().map(String::as_str).collect();
        let all = vmap(&program, OpInfoMap::linked()?, SAMPLES, &metas, &fetches)?;
        feeds.retain(|(name, _)| {
            all.program.find(name).is_some_and(|var| all.program.root().vars.contains_key(&var))
        });
        let found = run(&all.program, &feeds, &all.fetches)?;
        for (i, (name, found)) in self.fetches.iter().zip(&found).enumerate() {
            let expected = stacked(&expected.iter().map(|results| results[i].clone()).collect::<Vec<_>>())?;
            assert_eq!(found.meta(), expected.meta(), "`{name}` of\n{}\n{}", self.program, all.program);
            let (found, expected) = (found.to_f64s(), expected.to_f64s());
            let largest =
                expected.iter().filter(|x| x.is_finite()).fold(1e-3_f64, |most, x| most.max(x.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let same = found == expected || found.is_nan() && expected.is_nan();
                assert!(
                    same || (found - expected).abs() <= TOLERANCE * largest,
                    "`{name}` has {found}, not {expected}, in\n{}\n{}",
                    self.program,
                    all.program
                );
            }
        }
        Ok(true)
    }
}

fn run(program: &Program, feeds: &[(String, Tensor)], fetches: &[String]) -> Result<Vec<Tensor>> {
    let feeds = feeds.iter().map(|(name, value)| (name.as_str(), value as &dyn Feed));
    let feeds: Vec<(&str, &dyn Feed)> = feeds.collect();
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    Executor::with_threads(1).loop_limit(10_000).run(program, &mut Scope::new(), &feeds, &fetches)
}

/// Tensors as the slices of one.
fn stacked(parts: &[Tensor]) -> Result<Tensor> {
    let dims: Vec<usize> = [parts.len()].iter().chain(parts[0].dims()).copied().collect();
    let mut all = Tensor::zeros(parts[0].dtype(), &dims)?;
    let bytes = parts[0].bytes().len();
    for (i, part) in parts.iter().enumerate() {
        all.bytes_mut()[i * bytes..][..bytes].copy_from_slice(part.bytes());
    }
    Ok(all)
}

/// Compares a share of the samples of the library, and their gradients.
fn compare_samples(share: usize) -> Result<()> {
    let (mut compared, mut refused) = (0, BTreeSet::new());
    let ops = OpInfoMap::linked()?;
    let of_library =
        |sample: &Sample| ops.get(sample.op()).is_ok_and(|info| info.crate_name() != "autobwd-tests");
    let library: Vec<Sample> = samples().into_iter().filter(of_library).collect();
    for (i, sample) in library.iter().enumerate().filter(|(i, _)| i % 4 == share) {
        let Some(forward) = Case::of(sample) else { continue };
        for case in [forward.backward(), Some(forward)].into_iter().flatten() {
            // All inputs, the first one, all but the first one.
            let is_sampled: Vec<bool> = (0..case.values.len())
                .map(|k| match i / 4 % 3 {
                    0 => true,
                    1 => k == 0,
                    _ => k > 0,
                })
                .collect();
            match case.compare(&is_sampled) {
                Ok(true) => compared += 1,
                Ok(false) => {}
                Err(e) => _ = refused.insert(format!("{}: {e}", sample.op())),
            }
        }
    }
    let expected = ["control flow that depends on a sample", "are unknown", "has no axis of samples"];
    let unexpected: Vec<&String> =
        refused.iter().filter(|why| !expected.iter().any(|reason| why.contains(reason))).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    assert!(compared > 700, "{compared}");
    Ok(())
}

#[test]
fn samples_of_the_library_are_computed_together_1() -> Result<()> {
    compare_samples(0)
}

#[test]
fn samples_of_the_library_are_computed_together_2() -> Result<()> {
    compare_samples(1)
}

#[test]
fn samples_of_the_library_are_computed_together_3() -> Result<()> {
    compare_samples(2)
}

#[test]
fn samples_of_the_library_are_computed_together_4() -> Result<()> {
    compare_samples(3)
}

/// Compares gradients of all parameters, sample by sample and together, and returns the operators of the program for all.
fn compare_gradients(net: &Builder, loss: &Expr, feeds: &[(&str, Tensor)]) -> Result<usize> {
    let gradients = compute_gradients(loss, &Backward::default())?.complete()?;
    let names: Vec<String> = gradients.iter().map(|(_, gradient)| gradient.name()).collect();
    let fetches: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let program = net.program()?;
    let all: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, value)| (*name, value)).collect();
    let found = per_sample(&mut executor, &program, &mut scope, &all, &fetches)?;
    let rows = feeds[0].1.dims()[0];
    for row in 0..rows {
        let of_row = |value: &Tensor| {
            let mut one = Tensor::zeros(value.dtype(), &[&[1], &value.dims()[1..]].concat())?;
            let bytes = one.bytes().len();
            one.bytes_mut().copy_from_slice(&value.bytes()[row * bytes..][..bytes]);
            Result::Ok(one)
        };
        let one = feeds.iter().map(|(name, value)| Ok((name.to_string(), of_row(value)?)));
        let one = one.collect::<Result<Vec<_>>>()?;
        let one: Vec<(&str, &dyn Feed)> =
            one.iter().map(|(name, value)| (name.as_str(), value as _)).collect();
        let expected = executor.run(&program, &mut scope, &one, &fetches)?;
        for ((name, found), expected) in names.iter().zip(&found).zip(&expected) {
            let expected = expected.to_f64s();
            let found = &found.to_f64s()[row * expected.len()..][..expected.len()];
            let largest = expected.iter().fold(1e-6_f64, |most, x| most.max(x.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() <= 1e-9 * largest,
                    "`{name}` of row {row}: {found}, {expected}"
                );
            }
        }
    }
    let metas: Vec<(&str, Meta)> = feeds
        .iter()
        .map(|(name, value)| (*name, Meta::new(value.dtype(), &*[&[1], &value.dims()[1..]].concat())))
        .collect();
    Ok(vmap(&program, OpInfoMap::linked()?, rows, &metas, &fetches)?.program.root().ops.len())
}

fn numbers(dims: &[usize]) -> Result<Tensor> {
    let count = dims.iter().product();
    Tensor::from_vec(dims, (0..count).map(|i: usize| (i as f64 * 0.7).sin()).collect())
}

#[test]
fn gradients_of_convolutions_are_computed_together() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 3, 8, 7]);
    let labels = net.input("labels", DType::I64, &[-1, 1]);
    let conv = Conv2d::builder(&net, 3, 4, 3).padding(1).dtype(DType::F64).build().forward(&x);
    let pooled = conv.relu().max_pool2d(2, 2);
    let conv = Conv2d::builder(&net, 4, 6, 3).stride(2).dtype(DType::F64).build().forward(&pooled);
    let scores =
        Linear::builder(&net, 6, 5).dtype(DType::F64).build().forward(&conv.tanh().mean_over(&[2, 3]));
    let loss = scores.mean_cross_entropy(&labels);
    let labels = Tensor::from_vec([4, 1], vec![0_i64, 3, 1, 4])?;
    let feeds = [("x", numbers(&[4, 3, 8, 7])?), ("labels", labels)];
    let operators = compare_gradients(&net, &loss, &feeds)?;
    assert!(operators < 120, "{operators} operators do not grow with the samples");
    Ok(())
}

#[test]
fn gradients_of_attention_are_computed_together() -> Result<()> {
    let net = Builder::new();
    let words = net.input("words", DType::I64, &[-1, 5]);
    let embedded = Embedding::builder(&net, 9, 8).dtype(DType::F64).build().forward(&words);
    let attention = MultiHeadAttention::builder(&net, 8, 2).dtype(DType::F64).build();
    let mixed = &embedded + &attention.forward(&embedded);
    let normal = LayerNorm::builder(&net, 8).dtype(DType::F64).build().forward(&mixed);
    let loss = normal.tanh().square().mean();
    let words = Tensor::from_vec([3, 5], (0..15).map(|i| i * 7 % 9).collect::<Vec<i64>>())?;
    compare_gradients(&net, &loss, &[("words", words)])?;
    Ok(())
}

#[test]
fn updates_and_control_flow_are_refused() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1, 2]);
    let loss = Linear::builder(&net, 2, 1).build().forward(&x).square().mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let (program, ops) = (net.program()?, OpInfoMap::linked()?);
    let parameter =
        program.root().vars.iter().find(|(_, desc)| desc.persistable).map(|(var, _)| program.name(*var));
    let parameter = parameter.map_or(String::new(), |name| name.to_string());
    let e = vmap(&program, ops, 2, &[("x", x.meta())], &[&parameter]).unwrap_err();
    assert!(e.message().ends_with("take the program without updates"), "{e}");

    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1]);
    let y = cond(&x.mean().less_than(&x.sum(&[])), || vec![&x * 2.0], || vec![&x * 3.0]);
    let y = y[0].name();
    let e = vmap(&*net.program()?, ops, 2, &[("x", x.meta())], &[&y]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(
        e.message().ends_with("control flow that depends on a sample cannot be written for all samples"),
        "{e}"
    );
    let e = vmap(&*net.program()?, ops, 0, &[("x", x.meta())], &[&y]).unwrap_err();
    assert_eq!(e.message(), "at least one sample is needed");
    Ok(())
}

#[test]
fn a_name_may_be_written_again() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2]);
    let shared = net.input("shared", DType::F64, &[2]);
    let y = x.exp();
    let sum = &y + &shared;
    let product = &(&shared * 2.0) + &shared;
    let mut program = net.program()?.clone();
    // The second operator of the product overwrites `y`, which differs between samples, by values that do not.
    let (product_var, y_var) = (program.expect_var(&product.name())?, program.expect_var(&y.name())?);
    for op in &mut program.root_mut().ops {
        op.outputs.args_mut().filter(|var| **var == product_var).for_each(|var| *var = y_var);
    }
    let all = vmap(&program, OpInfoMap::linked()?, 2, &[("x", x.meta())], &[&sum.name(), &y.name()])?;
    let x = Tensor::from_vec([2, 2], vec![0.0, 1.0, 2.0, 3.0])?;
    let shared = Tensor::from_vec([2], vec![1.0, 2.0])?;
    let found = run(&all.program, &[("x".into(), x), ("shared".into(), shared)], &all.fetches)?;
    assert!((found[0].to_f64s()[1] - (std::f64::consts::E + 2.0)).abs() < 1e-12);
    assert_eq!(found[1], Tensor::from_vec([2, 2], vec![3.0, 6.0, 3.0, 6.0])?);
    Ok(())
}
