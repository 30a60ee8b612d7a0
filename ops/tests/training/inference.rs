//! Signatures, models for inference, summaries, and gradients of every sample.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Program, Result, Scope, Tensor,
    program::{ProgramSignature, SignatureEntry},
};
use autobwd_ops::{
    Math, Model,
    model::{ParameterSummary, per_sample},
    nn::{BatchNorm, Dropout, Linear},
    optim::{Adam, Optimizer, compute_gradients, freeze},
};

use crate::support::{numbers, parameter, started};

/// A trained network with dropout and batch normalisation, and its signature.
fn trained() -> Result<(Builder, Scope)> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let labels = net.input("labels", DType::I64, &[-1, 1]);
    let hidden =
        BatchNorm::builder(&net, 4).build().forward(&Linear::builder(&net, 3, 4).build().forward(&x));
    let hidden = Dropout::new(&net, 0.5, 1).forward(&hidden.relu());
    let scores = Linear::builder(&net, 4, 2).build().forward(&hidden);
    let loss = scores.mean_cross_entropy(&labels);
    Adam::new(0.1).minimize(&loss)?.complete()?;
    net.set_signature(
        &[("label", &labels), ("features", &x)],
        &[("probabilities", &scores.softmax(-1)), ("loss", &loss)],
    )?;
    let mut scope = started(&net)?;
    let x = Tensor::from_vec([4, 3], (0..12).map(|i| (i as f32).sin()).collect())?;
    let labels = Tensor::from_vec([4, 1], vec![0_i64, 1, 1, 0])?;
    let mut executor = Executor::with_threads(1);
    for _ in 0..5 {
        executor.run(&net.program()?, &mut scope, &[("x", &x), ("labels", &labels)], &[])?;
    }
    Ok((net, scope))
}

#[test]
fn pattern_without_parameter_freezes_nothing() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let y = Linear::builder(&net, 3, 4).build().forward(&Dropout::new(&net, 0.5, 1).forward(&x));
    let mut model = Model::for_inference(&*net.program()?, &started(&net)?, &[&y.name()])?;
    let before = model.program.clone();
    assert_eq!(model.train(&["*.w", "typo"]).unwrap_err().message(), "no parameter matches `typo`");
    assert_eq!(model.program, before);
    assert_eq!(model.train(&["*.w"])?, ["linear_0.b"]);
    Ok(())
}

#[test]
fn inference_model_is_only_the_forward_pass() -> Result<()> {
    let (net, scope) = trained()?;
    let mut model = Model::for_inference(&*net.program()?, &scope, &["probabilities"])?;
    assert_eq!(model.feeds, ["x"]);
    let signature = model.program.signature();
    assert_eq!((signature.inputs.len(), signature.inputs[0].name.as_str()), (1, "features"));
    assert_eq!(signature.output("probabilities")?, model.fetches[0]);
    assert!(signature.output("loss").is_err());
    let mut names: Vec<&str> = model.scope.iter().map(|(name, _)| name).collect();
    names.sort();
    // No moments, learning rate and seed.
    let norm = ["bias", "mean", "scale", "variance"].map(|part| format!("batch_norm_0.{part}"));
    assert_eq!(names[..4], norm);
    assert_eq!(names[4..], ["linear_0.b", "linear_0.w", "linear_1.b", "linear_1.w"]);
    let text = model.program.to_string();
    assert!(!text.contains("increment") && !text.contains("_grad") && !text.contains("adam"), "{text}");

    // Runs change nothing: they give the same, and leave the scope as it is.
    let before: Vec<Vec<u8>> = model.scope.iter().map(|(_, value)| value.bytes().to_vec()).collect();
    let x = Tensor::from_vec([1, 3], vec![0.5_f32, -0.5, 0.25])?;
    let mut executor = Executor::with_threads(1);
    let first = model.run_named(&mut executor, &[("features", &x)])?;
    let second = model.run(&mut executor, &[&x])?;
    assert_eq!((first[0].0.as_str(), first[0].1.bytes()), ("probabilities", second[0].bytes()));
    let after: Vec<Vec<u8>> = model.scope.iter().map(|(_, value)| value.bytes().to_vec()).collect();
    assert_eq!(before, after);
    Ok(())
}

#[test]
fn without_fetches_all_outputs_of_the_signature_are_computed() -> Result<()> {
    let (net, scope) = trained()?;
    let model = Model::for_inference(&*net.program()?, &scope, &[])?;
    assert_eq!(model.feeds, ["labels", "x"]); // in the order of the signature
    assert_eq!(model.fetches.len(), 2);
    let plain = Builder::new();
    let e = Model::for_inference(&*plain.program()?, &scope, &[]).unwrap_err();
    assert!(e.message().starts_with("an inference model needs outputs"), "{e}");
    let e = Model::with_signature((*plain.program()?).clone(), scope).unwrap_err();
    assert!(e.message().starts_with("the program has no signature"), "{e}");
    Ok(())
}

#[test]
fn evaluation_mode_and_a_model_for_inference_compute_the_same() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let (norm, dropout) = (BatchNorm::builder(&net, 3).build(), Dropout::new(&net, 0.5, 1));
    let evaluated = net.eval_mode(|| dropout.forward(&norm.forward(&x)));
    let out = dropout.forward(&norm.forward(&x));
    let mut scope = started(&net)?;
    let mut model = Model::for_inference(&*net.program()?, &scope, &[&out.name()])?;
    let x = Tensor::from_vec([2, 3], vec![1.0_f32, 2.0, 3.0, -1.0, 0.0, 5.0])?;
    let mut executor = Executor::with_threads(1);
    let pruned = model.run(&mut executor, &[&x])?;
    let fetched = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&evaluated.name()])?;
    assert_eq!(pruned[0].bytes(), fetched[0].bytes());
    Ok(())
}

#[test]
fn signature_is_kept_in_json() -> Result<()> {
    let (net, _) = trained()?;
    let program = net.program()?.clone();
    let loaded = Program::from_json(&program.to_json())?;
    assert_eq!(loaded.signature(), program.signature());
    assert_eq!(loaded, program);
    assert!(
        program.describe_signature().starts_with("(label: int64 [-1, 1], features: float32 [-1, 3]) -> (")
    );
    // Programs without one have the JSON that they had before.
    assert!(!Builder::new().program()?.to_json().contains("signature"));
    let hostile = program.to_json().replace("\"variable\":\"x\"", "\"variable\":\"y\"");
    let e = Program::from_json(&hostile).unwrap_err();
    assert!(
        e.message().contains("input `features` of the signature: the program has no variable `y`"),
        "{e}"
    );
    Ok(())
}

#[test]
fn signatures_and_their_inputs_are_checked() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let w = parameter(&net, "w", 2, 1.0);
    let out = &x * &w;
    for (inputs, outputs, text) in [
        (&[("", &x)][..], &[][..], "input `` of the signature: names are not empty, and differ"),
        (&[("a", &x), ("a", &x)], &[], "input `a` of the signature: names are not empty, and differ"),
        (&[("w", &w)], &[], "input `w` of the signature: `w` is not fed, the scope keeps it"),
        (&[], &[("o", &out), ("o", &x)], "output `o` of the signature: names are not empty, and differ"),
    ] {
        assert_eq!(net.set_signature(inputs, outputs).unwrap_err().message(), text);
    }
    net.set_signature(&[("a", &x)], &[("o", &out)])?;
    let mut model = Model::with_signature((*net.program()?).clone(), started(&net)?)?;
    let (mut executor, x) = (Executor::with_threads(1), Tensor::from_vec([2], vec![1.0_f32; 2])?);
    let e = model.run_named(&mut executor, &[("b", &x)]).unwrap_err();
    assert_eq!(e.message(), "the signature has no input `b`, only `a`");
    let e = model.run_named(&mut executor, &[]).unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::Feed, "the input `a` of the signature is not given"));
    let mut program = Program::new();
    let entry = SignatureEntry { name: "a".into(), variable: "missing".into() };
    assert!(program.set_signature(ProgramSignature { inputs: vec![entry], outputs: vec![] }).is_err());
    Ok(())
}

#[test]
fn per_sample_gradients_sum_to_the_batch_gradient() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 3]);
    let layer = Linear::builder(&net, 3, 2).dtype(DType::F64).seed(2).build();
    let loss = layer.forward(&x).tanh().square().sum(&[1]).mean();
    let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
    let (program, mut scope) = (net.program()?, started(&net)?);
    let names: Vec<String> = gradients.iter().map(|(_, gradient)| gradient.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let x = Tensor::from_vec([4, 3], numbers(12, 0.0))?;
    let mut executor = Executor::with_threads(1);
    let samples = per_sample(&mut executor, &program, &mut scope, &[("x", &x)], &names)?;
    let batch = executor.run(&program, &mut scope, &[("x", &x)], &names)?;
    for (samples, batch) in samples.iter().zip(&batch) {
        assert_eq!((samples.dims()[0], &samples.dims()[1..]), (4, batch.dims()));
        let all = samples.slice::<f64>()?;
        for (i, expected) in batch.slice::<f64>()?.iter().enumerate() {
            let mean = all.iter().skip(i).step_by(batch.slice::<f64>()?.len()).sum::<f64>() / 4.0;
            assert!((mean - expected).abs() < 1e-12);
        }
        assert_ne!(all[0], all[batch.slice::<f64>()?.len()]);
    }
    let y = Tensor::from_vec([3, 1], vec![0.0_f64; 3])?;
    let e = per_sample(&mut executor, &program, &mut scope, &[("x", &x), ("y", &y)], &names).unwrap_err();
    assert_eq!(e.message(), "`y` is float64 [3, 1], but 4 rows are needed");
    assert!(per_sample(&mut executor, &program, &mut scope, &[], &names).is_err());
    Ok(())
}

#[test]
fn summary_counts_parameters() -> Result<()> {
    let net = Builder::new();
    net.parameter("loose", DType::F64, &[2, 3], autobwd::Expr::clone);
    net.name_scope("a", || Linear::builder(&net, 10, 3).name("b").build());
    BatchNorm::builder(&net, 3).build(); // its running statistics are no parameters
    freeze(&net, &["loose"])?;
    let summary = ParameterSummary::of(&*net.program()?);
    assert_eq!((summary.count(), summary.trained(), summary.bytes()), (45, 39, 48 + 39 * 4));
    let expected = "\
layer         parameter  value            count  bytes
              loose      float64 [2, 3]       6     48  frozen
a.b           w          float32 [10, 3]     30    120
              b          float32 [3]          3     12
batch_norm_0  scale      float32 [3]          3     12
              bias       float32 [3]          3     12
45 parameters, 204 bytes: 39 trained, 6 frozen
";
    assert_eq!(summary.to_string(), expected);
    Ok(())
}
