//! Quantised weights: products, gradients, files, and what is refused.

use autobwd::{Backward, Builder, DType, Executor, Program, Result, Scope, Tensor, append_backward, emit};
use autobwd_ops::{
    Init, Math, Model,
    matmul::MatmulV2,
    mixed_precision::{PrecisionLists, mixed_precision},
    optim::{Adam, Optimizer},
    quantization::{Quantization, Quantizer, quantize},
};

/// Two layers, the second with transposed weights, after a table of embeddings.
fn model() -> Result<Model> {
    let net = Builder::new();
    let parameter = |name: &str, dims: &[usize]| {
        net.parameter(name, DType::F32, dims, |w| Init::Uniform(-0.5, 0.5).emit(w, 7))
    };
    let table = parameter("table", &[10, 64]);
    let (w, bias, v) =
        (parameter("first.w", &[64, 32]), parameter("first.b", &[32]), parameter("second.w", &[24, 32]));
    let ids = net.input("ids", DType::I64, &[-1]);
    let hidden = (ids.embedding(&table).matmul(&w) + &bias).relu();
    let scores = emit(MatmulV2 {
        x: (&hidden).into(),
        y: (&v).into(),
        out: autobwd::New,
        trans_x: false,
        trans_y: true,
    })
    .out;
    net.set_signature(&[("ids", &ids)], &[("scores", &scores)])?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    Model::with_signature(net.program()?.clone(), scope)
}

fn scores(model: &mut Model) -> Result<Vec<f32>> {
    let ids = Tensor::from_vec([5], vec![3_i64, 1, 4, 1, 5])?;
    model.run(&mut Executor::new(), &[&ids])?.remove(0).into_vec()
}

fn largest_difference(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn products_are_near_and_others_stay_exact() -> Result<()> {
    let exact = scores(&mut model()?)?;
    // Half a step of a weight is at most 1/256 or 1/16 of the largest one; errors of 64 and 32 terms add up at random.
    for (text, most) in [
        ("int8", 0.02),
        ("int4", 0.35),
        ("int4:16:asymmetric", 0.25),
        ("nf4", 0.35),
        ("int8:8:asymmetric", 0.02),
    ] {
        let mut model = model()?;
        let report = quantize(&mut model, "*", text.parse()?)?;
        assert_eq!(report.weights, ["first.w", "second.w"], "{text}");
        let left: Vec<String> =
            report.left.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
        assert_eq!(
            left,
            [
                "table: `lookup_table_v2` reads it, which is no product",
                "first.b: `elementwise_add` reads it, which is no product"
            ]
        );
        assert_eq!(report.bytes_before, 4 * (64 * 32 + 24 * 32));
        let kept: usize = ["first.w", "second.w"]
            .iter()
            .flat_map(|w| ["", ".scale", ".zero_point"].map(|of| format!("{w}{of}")))
            .filter_map(|name| model.scope.find(&name).map(|value| value.bytes().len()))
            .sum();
        assert_eq!(report.bytes_after, kept);
        let difference = largest_difference(&scores(&mut model)?, &exact);
        assert!(difference > 0.0 && difference < most, "{text}: {difference}");
    }
    Ok(())
}

#[test]
fn saved_models_have_the_same_bits() -> Result<()> {
    let mut model = model()?;
    quantize(&mut model, "*.w", "int4:16:asymmetric".parse()?)?;
    let wanted = scores(&mut model)?;
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["weights.safetensors", "weights.npz"] {
        let (program, weights) = (folder.path().join("model.json"), folder.path().join(file));
        model.program.save(&program)?;
        model.scope.save(&weights)?;
        let mut scope = Scope::new();
        scope.load(&weights)?;
        let mut loaded = Model::with_signature(Program::load(&program)?, scope)?;
        assert_eq!(scores(&mut loaded)?, wanted, "{file}");
    }
    Ok(())
}

#[test]
fn weights_that_are_transposed_before_products_are_quantised() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[24, 64], |w| Init::Uniform(-0.5, 0.5).emit(w, 7));
    let x = net.input("x", DType::F32, &[-1, 64]);
    let y = x.matmul(&w.transpose(&[1, 0]));
    net.set_signature(&[("x", &x)], &[("y", &y)])?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut model = Model::with_signature(net.program()?.clone(), scope)?;
    let x = Tensor::from_vec([3, 64], (0..192).map(|i| (i % 11) as f32 - 5.0).collect())?;
    let exact: Vec<f32> = model.run(&mut executor, &[&x])?.remove(0).into_vec()?;
    assert_eq!(quantize(&mut model, "w", Quantization::INT8)?.weights, ["w"]);
    assert_eq!(model.program.root().ops.len(), 1, "{}", model.program);
    let near: Vec<f32> = model.run(&mut executor, &[&x])?.remove(0).into_vec()?;
    let difference = largest_difference(&near, &exact);
    assert!(difference > 0.0 && difference < 0.1, "{difference}");
    Ok(())
}

/// A table of tokens that is also the matrix of the logits, directly or as an explicit transpose.
fn tied_model(is_transposed: bool) -> Result<Model> {
    let net = Builder::new();
    let table = net.parameter("table", DType::F32, &[10, 64], |w| Init::Uniform(-0.5, 0.5).emit(w, 7));
    let ids = net.input("ids", DType::I64, &[-1]);
    let hidden = ids.embedding(&table).tanh();
    let scores = match is_transposed {
        true => hidden.matmul(&table.transpose(&[1, 0])),
        false => {
            let (x, y) = ((&hidden).into(), (&table).into());
            emit(MatmulV2 { x, y, out: autobwd::New, trans_x: false, trans_y: true }).out
        }
    };
    net.set_signature(&[("ids", &ids)], &[("scores", &scores)])?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    Model::with_signature(net.program()?.clone(), scope)
}

#[test]
fn tables_that_are_named_are_kept_next_to_their_codes() -> Result<()> {
    for is_transposed in [false, true] {
        let mut model = tied_model(is_transposed)?;
        let (exact, table) = (scores(&mut model)?, model.scope.get("table")?.clone());
        let error = quantize(&mut model, "tab*", Quantization::INT8).unwrap_err().to_string();
        assert!(error.contains("`table`: `lookup_table_v2` reads it, which is no product"), "{error}");
        let report = quantize(&mut model, "table", Quantization::INT8)?;
        assert_eq!((report.weights, report.kept), (vec!["table".to_string()], vec!["table".to_string()]));
        let codes: usize = ["table.codes", "table.scale"]
            .iter()
            .map(|name| model.scope.get(name).map(|value| value.bytes().len()))
            .sum::<Result<_>>()?;
        assert_eq!((report.bytes_before, report.bytes_after), (2560, 2560 + codes));
        assert_eq!(model.scope.get("table")?, &table);
        let text = model.program.to_string();
        assert!(text.contains("Codes=table.codes") && text.contains("W=table"), "{text}");
        // A transpose is part of the product.
        assert_eq!(model.program.root().ops.len(), 3, "{text}");
        let difference = largest_difference(&scores(&mut model)?, &exact);
        assert!(difference > 0.0 && difference < 0.05, "{difference}");
        // It is frozen: there is nothing left to train.
        assert!(model.train(&[])?.is_empty());
    }
    // Gradients of the table are those of its values.
    let mut model = tied_model(false)?;
    let net = model.builder();
    let loss = net.expr(&model.fetches[0]).mean();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    model.program = program;
    let error = quantize(&mut model, "table", Quantization::INT8).unwrap_err().to_string();
    assert!(error.contains("_grad` reads it"), "{error}");
    Ok(())
}

#[test]
fn weights_are_quantised_one_by_one() -> Result<()> {
    let mut whole = model()?;
    quantize(&mut whole, "first.w", Quantization::INT8)?;
    quantize(&mut whole, "second.w", Quantization::NF4)?;
    let mut model = model()?;
    let values = std::mem::take(&mut model.scope);
    let mut quantizer = Quantizer::new(&model);
    quantizer.plan("*.w", Quantization::NF4)?;
    // The last plan counts.
    quantizer.plan("first.w", Quantization::INT8)?;
    for (name, value) in values.iter() {
        let is_replaced = quantizer.add(name, value)?;
        assert_eq!(is_replaced, name.ends_with(".w"), "{name}");
        if !is_replaced {
            model.scope.set(name, value.clone());
        }
    }
    let report = quantizer.finish(&mut model)?;
    assert_eq!(report.weights, ["first.w", "second.w"]);
    assert!(report.kept.is_empty() && model.program == whole.program);
    for (name, value) in whole.scope.iter() {
        assert_eq!(model.scope.get(name)?, value, "{name}");
    }

    // Another program; a weight that was named and has no value.
    let error = Quantizer::new(&tied_model(false)?).finish(&mut model).unwrap_err().to_string();
    assert!(error.contains("the program is not the one"), "{error}");
    let mut model = tied_model(false)?;
    let mut quantizer = Quantizer::new(&model);
    quantizer.plan("table", Quantization::INT8)?;
    let error = quantizer.finish(&mut model).unwrap_err().to_string();
    assert!(error.contains("`table`: it has no value in the scope"), "{error}");
    Ok(())
}

/// A table and a bias are trained under frozen weights, as an adapter would be.
#[test]
fn other_parameters_are_trained() -> Result<()> {
    let mut model = model()?;
    quantize(&mut model, "*.w", Quantization::NF4)?;
    assert_eq!(model.train(&[])?, ["table", "first.b"]);
    let codes = model.scope.get("first.w")?.clone();
    let net = model.builder();
    let loss = net.expr(&model.fetches[0]).square().mean();
    Adam::new(0.01).minimize(&loss)?.complete()?;
    let (mut executor, mut losses) = (Executor::new(), vec![]);
    executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;
    let ids = Tensor::from_vec([5], vec![3_i64, 1, 4, 1, 5])?;
    let program = net.program()?.clone();
    for _ in 0..20 {
        let found = executor.run(&program, &mut model.scope, &[("ids", &ids)], &[&loss.name()])?;
        losses.push(found[0].item()?);
    }
    assert!(losses[19] < 0.5 * losses[0], "{losses:?}");
    assert_eq!(model.scope.get("first.w")?.bytes(), codes.bytes());
    Ok(())
}

#[test]
fn mixed_precision_keeps_scales() -> Result<()> {
    let mut model = model()?;
    quantize(&mut model, "*.w", Quantization::INT8)?;
    let exact = scores(&mut model)?;
    model.program = mixed_precision(&model.program, DType::BF16, &PrecisionLists::default())?;
    let text = model.program.to_string();
    assert!(text.contains("Scale=first.w.scale, X=lookup_table_v2_0.cast_bf16"), "{text}");
    let difference = largest_difference(&scores(&mut model)?, &exact);
    assert!(difference > 0.0 && difference < 0.03, "{difference}");
    Ok(())
}

#[test]
fn what_cannot_be_quantised_is_refused_with_its_reason() -> Result<()> {
    let refused = |model: &mut Model, pattern: &str, quantization| {
        let before = model.program.clone();
        let error = quantize(model, pattern, quantization).expect_err("a refusal").to_string();
        assert!(model.program == before, "{error}");
        error
    };
    let odd = Quantization { group_size: 12, ..Quantization::INT4 };
    for (pattern, quantization, text) in [
        ("third.*", Quantization::INT8, "no parameter matches `third.*`"),
        ("table", Quantization::INT8, "no parameter can be quantised: `table`: `lookup_table_v2` reads it"),
        ("*", odd, "`int4:12`: the group size must be a multiple of 8, not 12"),
        ("*", Quantization { zero_points: true, ..Quantization::NF4 }, "nf4 has no zero points"),
    ] {
        let error = refused(&mut model()?, pattern, quantization);
        assert!(error.contains(text), "{error}");
    }
    for text in
        ["int5", "int4:", "int4:x", "int4:32:sym", "nf4:64:asymmetric", "int8:32:asymmetric:1", "int8:0"]
    {
        assert!(text.parse::<Quantization>().is_err(), "{text}");
    }

    let mut infinite = model()?;
    infinite.scope.slice_mut::<f32>("first.w")?[3] = f32::INFINITY;
    let error = refused(&mut infinite, "first.w", Quantization::INT8);
    assert!(error.contains("it has elements that are not finite"), "{error}");

    let mut trained = model()?;
    let net = trained.builder();
    Adam::new(0.01).minimize(&net.expr(&trained.fetches[0]).mean())?.complete()?;
    trained.program = net.program()?.clone();
    let error = refused(&mut trained, "first.w", Quantization::INT8);
    assert!(error.contains("`adam` writes it: trained parameters cannot be quantised"), "{error}");

    // A gradient of codes.
    let mut model = model()?;
    quantize(&mut model, "*.w", Quantization::INT8)?;
    let net = model.builder();
    let loss = net.expr(&model.fetches[0]).mean();
    let mut program = net.program()?.clone();
    let backward = Backward { parameters: Some(&["first.w"]), ..Backward::default() };
    let error = append_backward(&mut program, &loss.name(), &backward).expect_err("codes").to_string();
    assert!(
        error.contains("it holds uint8, not floating point numbers; quantised weights are frozen"),
        "{error}"
    );
    Ok(())
}
