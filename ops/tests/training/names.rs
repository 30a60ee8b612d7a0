//! Names of layers, and values loaded by name.

use autobwd::{Builder, DType, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    nn::{
        BatchNorm, Conv2d, Conv2dTranspose, Dropout, Embedding, Gru, LayerNorm, Linear, Lstm,
        MultiHeadAttention,
    },
};

use crate::support::{elements, run, started};

/// The values that the scope keeps.
fn names(net: &Builder) -> Vec<String> {
    let program = net.program().unwrap();
    let kept = program.root().vars.iter().filter(|(_, desc)| desc.persistable);
    kept.map(|(var, _)| program.name(*var).to_string()).collect()
}

#[test]
fn every_layer_has_the_name_it_is_given() {
    for eager in [false, true] {
        let net = if eager { autobwd::eager() } else { Builder::new() };
        net.name_scope("a", || {
            Linear::builder(&net, 2, 2).name("linear").build();
            Embedding::builder(&net, 2, 2).name("embedding").build();
            Conv2d::builder(&net, 2, 2, 1).name("conv").build();
            Conv2dTranspose::builder(&net, 2, 2, 1).name("up").build();
            LayerNorm::builder(&net, 2).name("norm").build();
            BatchNorm::builder(&net, 2).name("batch").build();
            MultiHeadAttention::builder(&net, 2, 1).name("attention").build();
            Gru::builder(&net, 2, 2).name("gru").build();
            Lstm::builder(&net, 2, 2).name("lstm").bidirectional().build();
            Dropout::named(&net, "dropout", 0.5, 0);
        });
        let all = names(&net).join(" ");
        let expected = "a.linear.w a.linear.b a.embedding.w a.conv.w a.conv.b a.up.w a.up.b a.norm.scale \
                        a.norm.bias a.batch.scale a.batch.bias a.batch.mean a.batch.variance \
                        a.attention.query.w a.attention.query.b a.attention.key.w a.attention.key.b \
                        a.attention.value.w a.attention.value.b a.attention.output.w a.attention.output.b \
                        a.gru.wx a.gru.wh a.gru.b a.lstm.0.wx a.lstm.0.wh a.lstm.0.b a.lstm.1.wx a.lstm.1.wh \
                        a.lstm.1.b a.dropout.seed";
        assert_eq!(all, expected);
    }
}

#[test]
fn scopes_nest_and_count_their_own_layers() {
    let net = Builder::new();
    Linear::builder(&net, 1, 1).bias(None).build();
    net.name_scope("encoder", || {
        assert_eq!(net.scoped("w"), "encoder.w");
        for block in ["0", "1"] {
            net.name_scope(block, || Linear::builder(&net, 1, 1).bias(None).build());
        }
        Linear::builder(&net, 1, 1).bias(None).build();
    });
    Linear::builder(&net, 1, 1).bias(None).build();
    let expected =
        ["linear_0.w", "encoder.0.linear_0.w", "encoder.1.linear_0.w", "encoder.linear_0.w", "linear_1.w"];
    assert_eq!(names(&net), expected);
}

#[test]
fn scope_ends_with_its_closure_even_if_that_panics() {
    let net = Builder::new();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        net.name_scope("a", || net.eval_mode(|| panic!("in the model")));
    }));
    assert!(outcome.is_err());
    assert_eq!((net.scoped("w"), net.is_eval_mode()), ("w".into(), false));
}

#[test]
fn names_in_use_and_invalid_names_are_errors() {
    let net = Builder::new();
    Linear::builder(&net, 1, 1).name("a").build();
    Linear::builder(&net, 1, 1).name("a").build();
    let e = net.program().unwrap_err().to_string();
    let text =
        "the program has a variable `a.w` already; give its layer another name, or build it in a name scope";
    assert!(e.starts_with(text) && e.contains("names.rs"), "{e}");

    let tape = autobwd::eager();
    let layers = [(); 2].map(|()| Linear::builder(&tape, 1, 1).name("a").build());
    assert!(
        layers[1]
            .weight
            .check()
            .unwrap_err()
            .message()
            .starts_with("the program has a variable `a.w` already")
    );

    for name in ["", "a b", "a@b"] {
        let net = Builder::new();
        net.name_scope(name, || ());
        assert!(net.program().unwrap_err().message().contains("cannot be a variable name"));
    }
}

#[test]
fn evaluation_mode_switches_dropout_and_batch_norm() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2]);
    let (norm, dropout) = (BatchNorm::builder(&net, 2).epsilon(0.0).build(), Dropout::new(&net, 0.5, 1));
    let model = |x| dropout.forward(&norm.forward(x));
    let (evaluated, trained) = (net.eval_mode(|| model(&x)), model(&x));
    let x = Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 5.0, 4.0])?;
    let mut scope = started(&net)?;
    // Running statistics of 0 and 1.
    let fetched = {
        let evaluation = Builder::new();
        let x = evaluation.input("x", DType::F32, &[-1, 2]);
        let norm = BatchNorm::builder(&evaluation, 2).epsilon(0.0).build();
        let out = evaluation.eval_mode(|| norm.forward(&x));
        let x = Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 5.0, 4.0])?;
        run(&evaluation, &mut scope, &[("x", &x)], &[&out])?
    };
    assert_eq!(fetched[0].slice::<f32>()?, [1.0, 2.0, 5.0, 4.0]);
    assert_eq!(elements(&scope, "batch_norm_0.mean"), [0.0, 0.0]);
    let fetched = run(&net, &mut scope, &[("x", &x)], &[&evaluated, &trained])?;
    assert_eq!(fetched[0].slice::<f32>()?, [1.0, 2.0, 5.0, 4.0]);
    assert!(fetched[1].slice::<f32>()?.iter().all(|x| [0.0, 2.0, -2.0].contains(x)));
    assert_ne!(elements(&scope, "batch_norm_0.mean"), [0.0, 0.0]);
    Ok(())
}

#[test]
fn dropout_method_follows_evaluation_mode() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2]);
    let seed = net.input("seed", DType::I64, &[1]);
    assert!(net.eval_mode(|| x.dropout(0.5, &seed)).is(&x));
    let trained = x.dropout(0.5, &seed);
    assert!(!trained.is(&x) && net.program()?.root().ops.len() == 1);
    Ok(())
}

#[test]
fn values_that_fit_are_loaded_and_the_others_listed() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let vector = |n: usize, x: f32| Tensor::from_vec([n], vec![x; n]);
    let mut file = Scope::new();
    for (name, n) in [("bert.a", 2), ("bert.b", 3), ("bert.extra", 1), ("head.w", 4)] {
        file.set(name, vector(n, 7.0)?);
    }
    file.save(&path)?;

    let mut scope = Scope::new();
    for (name, n) in [("encoder.a", 2), ("encoder.b", 2), ("encoder.c", 1), ("head.w", 4)] {
        scope.set(name, vector(n, 0.0)?);
    }
    let report = scope.load_renamed(&path, "bert.", "encoder.")?;
    assert_eq!(report.loaded, ["encoder.a"]);
    assert_eq!(report.missing, ["encoder.c"]);
    assert_eq!(report.unexpected, ["encoder.extra"]);
    assert_eq!(report.mismatched.len(), 1);
    let e = report.complete().unwrap_err().to_string();
    let expected = "not all values fit\n1 loaded\n1 missing: `encoder.c`\n1 unexpected: `encoder.extra`\n\
                    1 mismatched: `encoder.b` is float32 [2], float32 [3] in the file";
    assert_eq!(e, expected);
    assert_eq!((elements(&scope, "encoder.a"), elements(&scope, "encoder.b")), (vec![7.0; 2], vec![0.0; 2]));
    assert_eq!(elements(&scope, "head.w"), [0.0; 4]);

    let report = scope.load_matching(&path, "head.")?.complete()?;
    assert_eq!(report.loaded, ["head.w"]);
    assert_eq!(elements(&scope, "head.w"), [7.0; 4]);
    assert!(scope.load_matching(folder.path().join("none"), "").is_err());
    Ok(())
}

#[test]
fn floating_point_numbers_of_other_sizes_are_converted_unless_they_overflow() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let mut file = Scope::new();
    file.set("a", Tensor::from_f64s(DType::BF16, [2], &[0.1, -2.0])?);
    file.set("b", Tensor::from_f64s(DType::F32, [2], &[0.1, f64::INFINITY])?);
    file.set("large", Tensor::from_f64s(DType::F32, [1], &[1e6])?);
    file.set("double", Tensor::from_f64s(DType::F64, [1], &[0.1])?);
    file.save(&path)?;
    let mut scope = Scope::new();
    for (name, dtype, n) in
        [("a", DType::F32, 2), ("b", DType::F16, 2), ("large", DType::F16, 1), ("double", DType::F32, 1)]
    {
        scope.set(name, Tensor::from_f64s(dtype, [n], &vec![0.0; n])?);
    }
    let report = scope.load_matching(&path, "")?;
    let expected = "2 loaded\n\
                    2 converted: `a` is float32 [2], bfloat16 [2] in the file, `b` is float16 [2], float32 [2] in the file\n\
                    2 mismatched: `double` is float32 [1], float64 [1] in the file, `large` is float16 [1], float32 [1] in the file";
    assert_eq!(report.to_string(), expected);
    assert_eq!(elements(&scope, "a"), [0.100_097_656, -2.0]);
    assert_eq!(scope.get("b")?.to_f64s(), [0.099_975_585_937_5, f64::INFINITY]);
    Ok(())
}

#[test]
fn name_decides_the_initial_values_not_the_order() -> Result<()> {
    let first = |others: usize| {
        let net = Builder::new();
        (0..others).for_each(|_| drop(Linear::builder(&net, 2, 2).build()));
        let layer = Linear::builder(&net, 2, 2).name("head").seed(3).build();
        started(&net).map(|scope| elements(&scope, &layer.weight.name()))
    };
    assert_eq!(first(0)?, first(3)?);
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2]);
    assert!(Linear::builder(&net, 2, 2).name("head").build().forward(&x).relu().check().is_ok());
    Ok(())
}
