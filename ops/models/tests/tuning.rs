//! Fine-tuning of the fixtures, compared with what transformers computes, and with itself: packed, in micro-batches, within
//! a budget, on other threads, interrupted.

mod features;
mod heads;

use std::path::PathBuf;

use autobwd::{Result, Tensor, tensor::load_tensors};
use autobwd_models::{
    Adapter, Example, ExampleFormat, FineTuning, Lora, Pretrained, StepReport, Tokenizer, TuningRun,
    linear_targets, quantize_linear, read_examples,
};
use autobwd_ops::quantization::Quantization;
use serde_json::Value;

const DECODERS: [&str; 6] = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma3"];

fn folder(family: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family)
}

fn expected_losses(family: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(folder(family).join("expected.json")).expect("the fixture");
    let expected: Value = serde_json::from_str(&text).expect("JSON");
    expected["full"]["losses"].as_array().expect("losses").iter().filter_map(Value::as_f64).collect()
}

/// The batch of the training steps of a fixture.
fn batch(family: &str) -> Result<Vec<Example>> {
    let all = load_tensors(folder(family).join("expected.safetensors"))?;
    let find = |name: &str| all.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let rows = |value: &Tensor| -> Result<Vec<Vec<i64>>> {
        let width = value.dims()[1];
        Ok(value.slice::<i64>()?.chunks(width).map(<[i64]>::to_vec).collect())
    };
    let (ids, mask) = (find("train.input_ids").expect("ids"), find("train.attention_mask"));
    let labels = find("train.labels").expect("labels");
    let masks = match mask {
        Some(mask) => rows(mask)?,
        None => vec![vec![1; ids.dims()[1]]; ids.dims()[0]],
    };
    let of_class = labels.dims().len() == 1;
    let labels =
        if of_class { labels.slice::<i64>()?.iter().map(|l| vec![*l]).collect() } else { rows(labels)? };
    let example = |((tokens, mut labels), mask): ((Vec<i64>, Vec<i64>), Vec<i64>)| {
        let count = mask.iter().filter(|is_token| **is_token != 0).count();
        if !of_class {
            labels.truncate(count);
        }
        Example::text(tokens[..count].to_vec(), labels)
    };
    Ok(rows(ids)?.into_iter().zip(labels).zip(masks).map(example).collect())
}

/// Five steps over the whole batch of a fixture, as its losses were computed.
fn like_fixture() -> FineTuning {
    FineTuning {
        epochs: 5,
        batch: 2,
        learning_rate: 1e-3,
        warmup: 0.0,
        is_constant: true,
        weight_decay: 0.01,
        max_gradient_norm: 0.0,
        is_packing: false,
        ..FineTuning::default()
    }
}

fn finish(run: &mut TuningRun) -> Result<Vec<StepReport>> {
    let mut reports = vec![];
    while let Some(report) = run.step()? {
        reports.push(report);
    }
    Ok(reports)
}

fn losses(tuning: &FineTuning, family: &str, examples: &[Example]) -> Result<Vec<f64>> {
    let mut run = tuning.prepare(&Pretrained::open(folder(family)), examples.to_vec(), vec![])?;
    Ok(finish(&mut run)?.iter().map(|report| report.loss).collect())
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64], tolerance: f64, case: &str) {
    let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(is_near),
        "{case}: {found:?} for {expected:?}"
    );
}

#[test]
fn losses_are_those_of_transformers_also_packed_and_in_micro_batches() -> Result<()> {
    for family in DECODERS {
        let examples = batch(family)?;
        let whole = losses(&like_fixture(), family, &examples)?;
        // The steps of the fixtures also decay scales of normalisations and biases, by 1e-5 in each.
        assert_near(&whole, &expected_losses(family), 3e-4, family);
        assert_near(&whole[..2], &expected_losses(family)[..2], 1e-4, family);
        for (case, tuning) in [
            // Other numbers of labels in both parts: the mean of their means is another number.
            ("micro-batches", FineTuning { batch: 1, micro_batches: 2, ..like_fixture() }),
            // Both texts in one row.
            ("packed", FineTuning { batch: 1, is_packing: true, length: Some(40), ..like_fixture() }),
        ] {
            let found = losses(&tuning, family, &examples)?;
            assert_near(&found, &whole, 1e-5, &format!("{family}, {case}"));
        }
    }
    Ok(())
}

#[test]
fn encoders_learn_classes_and_masked_tokens() -> Result<()> {
    for family in ["distilbert", "roberta", "modernbert"] {
        let found = losses(&like_fixture(), family, &batch(family)?)?;
        assert_near(&found, &expected_losses(family), 1e-4, family);
    }
    // A budget with room to spare, also where operators read shapes alone.
    for family in ["bert", "distilbert", "roberta", "modernbert"] {
        let within = FineTuning { memory: Some(1 << 30), ..like_fixture() };
        let found = losses(&within, family, &batch(family)?)?;
        assert_eq!(found, losses(&like_fixture(), family, &batch(family)?)?, "{family}");
    }
    // BERT has two heads; its table of words is the one of the first.
    let targets = linear_targets(&Pretrained::open(folder("bert")).load()?);
    assert!(targets.contains(&"query".into()) && !targets.contains(&"word_embeddings".into()), "{targets:?}");
    let mut model = Pretrained::open(folder("bert")).load()?;
    quantize_linear(&mut model, Quantization::INT8)?;
    assert!(model.scope.find("bert.encoder.layer.0.attention.self.query.weight.scale").is_some());
    Ok(())
}

/// Twelve texts of different lengths.
fn texts() -> Vec<Example> {
    let text = |i: i64| {
        let tokens: Vec<i64> = (0..5 + i * 2).map(|at| (at * 7 + i * 13) % 280).collect();
        Example::text(tokens.clone(), tokens)
    };
    (0..12).map(text).collect()
}

fn adapters() -> FineTuning {
    FineTuning {
        lora: Some(Lora::new(4, &["all-linear"])),
        learning_rate: 1e-2,
        batch: 2,
        epochs: 4,
        ..FineTuning::default()
    }
}

fn with_dropout() -> FineTuning {
    let lora = adapters().lora.map(|lora| Lora { dropout: 0.2, ..lora });
    FineTuning { lora, ..adapters() }
}

/// The bytes of all values that a run keeps, by name.
fn values(run: &TuningRun) -> Vec<(String, Vec<u8>)> {
    let mut values: Vec<_> =
        run.model().scope.iter().map(|(name, value)| (name.to_string(), value.bytes().to_vec())).collect();
    values.sort();
    values
}

#[test]
fn a_run_that_is_resumed_has_the_same_bits_on_any_number_of_threads() -> Result<()> {
    let open = || Pretrained::open(folder("llama"));
    let checkpoint_folder = tempfile::tempdir().expect("a folder");
    let path = checkpoint_folder.path().join("checkpoint.safetensors");
    for (pretrained, tuning) in [
        (open(), adapters()),
        (open(), FineTuning { micro_batches: 2, ..adapters() }),
        (open(), FineTuning { micro_batches: 2, ..with_dropout() }),
        (open().quantize(Quantization::NF4), FineTuning { weight_decay: 0.1, ..adapters() }),
        (open(), FineTuning { lora: None, learning_rate: 1e-3, weight_decay: 0.1, ..adapters() }),
    ] {
        let prepare = |threads| {
            let tuning = FineTuning { threads: Some(threads), ..tuning.clone() };
            tuning.prepare(&pretrained, texts(), texts())
        };
        let mut whole = prepare(1)?;
        let reports = finish(&mut whole)?;
        let steps = reports.len();
        assert!(steps > 4 && reports[steps - 1].loss < reports[0].loss, "{reports:?}");
        for interrupted in [1, steps / 2, steps - 1] {
            let mut first = prepare(2)?;
            for _ in 0..interrupted {
                first.step()?;
            }
            first.save_checkpoint(&path, &[("note", "kept".into())])?;
            let mut second = prepare(1)?;
            assert_eq!(second.resume(&path)?.note("note")?, "kept");
            assert_eq!(finish(&mut second)?, reports[interrupted..]);
            assert_eq!(values(&second), values(&whole));
            assert_eq!(second.evaluate()?, whole.evaluate()?);
        }
        // Frozen weights are not in the file.
        let saved = load_tensors(&path)?;
        assert_eq!(saved.iter().any(|(name, _)| name == "model.norm.weight"), tuning.lora.is_none());
        // Other evaluation data, another model, or other options.
        let fewer = texts().split_off(6);
        assert!(tuning.prepare(&pretrained, texts(), fewer)?.resume(&path).is_err());
        if tuning.lora.is_some() {
            let half = pretrained.clone().dtype(autobwd::DType::BF16);
            assert!(tuning.prepare(&half, texts(), texts())?.resume(&path).is_err());
        }
        let other = FineTuning { batch: 1, ..tuning.clone() };
        assert!(other.prepare(&pretrained, texts(), vec![])?.resume(&path).is_err());
    }
    Ok(())
}

#[test]
fn adapters_learn_under_quantised_weights_and_heads() -> Result<()> {
    for family in ["llama", "qwen2", "gpt2"] {
        let exact = Pretrained::open(folder(family));
        let quantized = exact.clone().quantize(Quantization::INT8).quantize_head(Quantization::INT8);
        let mut losses = vec![];
        for pretrained in [exact, quantized] {
            let mut run = adapters().prepare(&pretrained, texts(), vec![])?;
            let parameters = run.summary().parameters;
            losses.push((parameters, finish(&mut run)?));
        }
        // Codes are parameters of the model, too.
        assert_eq!(losses[0].0, losses[1].0, "{family}");
        for (found, exact) in losses[1].1.iter().zip(&losses[0].1) {
            let difference = (found.loss - exact.loss).abs();
            assert!(difference > 0.0 && difference < 0.05, "{family}: {found:?} for {exact:?}");
        }
    }
    Ok(())
}

#[test]
fn budgets_are_held_with_the_same_bits() -> Result<()> {
    let pretrained = Pretrained::open(folder("gpt2"));
    let tuning = FineTuning { threads: Some(1), length: Some(32), ..adapters() };
    let mut free = tuning.prepare(&pretrained, texts(), vec![])?;
    let most = free.summary().memory.total();
    let bytes = most * 9 / 10;
    let mut bound =
        FineTuning { memory: Some(bytes), ..tuning.clone() }.prepare(&pretrained, texts(), vec![])?;
    assert!(bound.summary().memory.total() <= bytes);
    assert!(bound.summary().recomputed.starts_with("recomputed: "), "{}", bound.summary());
    assert_eq!(finish(&mut bound)?, finish(&mut free)?);
    let error =
        FineTuning { memory: Some(1000), ..tuning }.prepare(&pretrained, texts(), vec![]).unwrap_err();
    assert!(error.to_string().contains("the budget of 1000 bytes is exceeded by "), "{error}");
    Ok(())
}

/// Inputs of branches are dropped in steps alone, by other masks at each step and in each module; within budgets, masks are
/// the same.
#[test]
fn dropout_of_adapters_is_for_steps() -> Result<()> {
    let pretrained = Pretrained::open(folder("llama"));
    let prepare = |tuning: FineTuning| tuning.prepare(&pretrained, texts(), texts());
    // `B` is 0 at first: nothing is lost.
    let [mut plain, mut dropped] = [prepare(adapters())?, prepare(with_dropout())?];
    assert_eq!(dropped.evaluate()?, plain.evaluate()?);
    assert_eq!(dropped.step()?, plain.step()?);
    assert_ne!(dropped.step()?, plain.step()?);
    assert_eq!(dropped.evaluate()?, dropped.evaluate()?);

    let seeds = |run: &TuningRun| {
        let seeds = run.model().scope.iter().filter(|(name, _)| name.ends_with(".lora_dropout.seed"));
        seeds.map(|(_, seed)| Ok(seed.slice::<i64>()?[0])).collect::<Result<Vec<i64>>>()
    };
    let before = seeds(&dropped)?;
    assert_eq!(before.len(), 14);
    dropped.step()?;
    let after = seeds(&dropped)?;
    assert!(before.iter().zip(&after).all(|(before, after)| before != after));
    assert!((1..14).all(|k| !after[..k].contains(&after[k])));

    let small = dropped.summary().memory.total() * 9 / 10;
    let mut bound = prepare(FineTuning { memory: Some(small), ..with_dropout() })?;
    assert_eq!(finish(&mut bound)?, finish(&mut prepare(with_dropout())?)?);
    let lora = Lora { dropout: 1.0, ..Lora::new(4, &["q_proj"]) };
    let error = prepare(FineTuning { lora: Some(lora), ..adapters() }).unwrap_err();
    assert_eq!(error.message(), "the dropout of adapters is 1, not a number from 0 and below 1");
    Ok(())
}

/// `all-linear` without excluded modules, in one layer.
#[test]
fn all_products_are_targets_but_excluded_ones() -> Result<()> {
    let lora = Lora { excluded: vec!["down_proj".into()], layers: vec![1], ..Lora::new(2, &["all-linear"]) };
    let run = FineTuning { lora: Some(lora), ..adapters() }.prepare(
        &Pretrained::open(folder("llama")),
        texts(),
        vec![],
    )?;
    let branches = run.model().scope.iter().filter(|(name, _)| name.ends_with(".lora_A.weight"));
    let branches: Vec<&str> = branches.map(|(name, _)| name).collect();
    let is_expected = |name: &&str| name.contains("layers.1.") && !name.contains("down_proj");
    assert!(branches.len() == 6 && branches.iter().all(is_expected), "{branches:?}");
    Ok(())
}

/// The element of an input is dropped with the probability, and scaled otherwise.
#[test]
fn dropout_is_that_of_peft() -> Result<()> {
    let lora = Lora { dropout: 0.25, ..Lora::new(4, &["q_proj"]) };
    let mut model = Pretrained::open(folder("llama")).load()?;
    lora.attach(&mut model)?;
    let plain = model.program.root().ops.len();
    lora.add_dropout(&mut model)?;
    // A counter and a mask for each of two layers.
    assert_eq!(model.program.root().ops.len(), plain + 4);
    let (input, dropped) = {
        let program = &model.program;
        let op = program.root().ops.iter().find(|op| op.ty.as_str() == "dropout").expect("a dropout");
        let name = |vars: &[autobwd::program::Var]| program.name(vars[0]).to_string();
        (name(op.inputs.get("X")), name(op.outputs.get("Out")))
    };
    let ids = Tensor::from_vec([8, 16], (0..128).collect::<Vec<i64>>())?;
    let feeds: [(&str, &dyn autobwd::Feed); 1] = [("input_ids", &ids)];
    let mut executor = autobwd::Executor::new();
    let values = executor.run(&model.program, &mut model.scope, &feeds, &[&input, &dropped])?;
    let (input, dropped) = (values[0].slice::<f32>()?, values[1].slice::<f32>()?);
    let scaled = |(x, y): (&f32, &f32)| *y == 0.0 || (y - x / 0.75).abs() <= 1e-6 * x.abs();
    assert!(input.iter().zip(dropped).all(scaled));
    let share = dropped.iter().filter(|y| **y == 0.0).count() as f64 / dropped.len() as f64;
    assert!((share - 0.25).abs() < 0.02, "{share}");
    assert!(lora.add_dropout(&mut model).is_err());
    Ok(())
}

#[test]
fn the_memory_of_the_process_is_bounded() -> Result<()> {
    let pretrained = Pretrained::open(folder("llama"));
    let prepare = |bytes| {
        FineTuning { process_memory: Some(bytes), ..adapters() }.prepare(&pretrained, texts(), texts())
    };
    let run = prepare(4 << 30)?;
    let summary = run.summary();
    assert!(summary.process_bytes > 0 || !cfg!(target_os = "linux"));
    assert!(summary.evaluation_bytes > 0);
    assert_eq!(
        summary.total_bytes(),
        summary.memory.total() + summary.evaluation_bytes + summary.process_bytes
    );
    let error = prepare(1000).unwrap_err().to_string();
    assert!(
        error.contains("the process may take 1000 bytes, and takes ") && error.contains("exceeded by"),
        "{error}"
    );
    Ok(())
}

#[test]
fn rows_hold_the_longest_evaluation_example() -> Result<()> {
    let longest = texts().pop().expect("a text");
    let pretrained = Pretrained::open(folder("llama"));
    let mut run = adapters().prepare(&pretrained, texts()[..3].to_vec(), vec![longest.clone()])?;
    assert_eq!(run.summary().length, longest.tokens.len());
    assert!(run.evaluate()?.is_some());
    Ok(())
}

#[test]
fn results_are_read_again() -> Result<()> {
    let pretrained = Pretrained::open(folder("qwen2"));
    let result = tempfile::tempdir().expect("a folder");
    // Sums of gradients are no part of the result.
    let mut run = FineTuning { micro_batches: 2, ..adapters() }.prepare(&pretrained, texts(), texts())?;
    finish(&mut run)?;
    let loss = run.evaluate()?;
    run.save(result.path())?;
    let adapter = Adapter::read(result.path())?;
    // Trained further, it starts where it ended.
    let further = FineTuning { lora: None, adapter: Some(adapter.clone()), ..adapters() };
    assert_eq!(further.prepare(&pretrained, texts(), texts())?.evaluate()?, loss);
    assert!(adapter.lora.targets.contains(&"down_proj".to_string()));
    let mut model = pretrained.load()?;
    adapter.merge(&mut model)?;
    pretrained.save(&model, result.path())?;
    // The merged model has the loss of the adapter.
    let merged = Pretrained::open(result.path());
    let merged_loss = FineTuning::default().prepare(&merged, texts(), texts())?.evaluate()?;
    assert_near(&[merged_loss.unwrap_or(0.0)], &[loss.unwrap_or(1.0)], 1e-5, "merged");
    assert!(result.path().join("tokenizer.json").exists());
    Ok(())
}

#[test]
fn examples_are_read_from_lines_and_bad_ones_are_listed() -> Result<()> {
    let tokenizer = Tokenizer::open(folder("qwen2"))?;
    let chat = r#"{"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat on"}]}"#;
    let example = ExampleFormat::of_line(chat)?.example(chat, &tokenizer)?;
    let answer: Vec<i64> = example.labels.iter().copied().filter(|label| *label != -100).collect();
    assert_eq!(tokenizer.decode(&answer)?.trim_end(), "sat on");
    assert!(example.tokens.len() > answer.len());

    let completion = r#"{"prompt": "the cat", "completion": " sat"}"#;
    let example = ExampleFormat::of_line(completion)?.example(completion, &tokenizer)?;
    assert_eq!(example.labels[..2], [-100, -100]);
    assert_eq!(example.labels.last().copied(), tokenizer.eos_token_id());

    let lines = tempfile::tempdir().expect("a folder");
    let path = lines.path().join("data.jsonl");
    std::fs::write(&path, "{\"text\": \"the cat\"}\n\n{\"text\": 3}\n[]\n{\"txt\": \"a\"}\n{")
        .expect("a file");
    let error = read_examples(&path, &tokenizer, None).unwrap_err().to_string();
    for part in [
        "line 3: its `text` is no text",
        "line 4: it is no object",
        "line 5: it has no field `text`",
        "line 6: it is no JSON",
    ] {
        assert!(error.contains(part), "{error}");
    }
    std::fs::write(&path, "\n").expect("a file");
    assert!(read_examples(&path, &tokenizer, None).unwrap_err().to_string().ends_with("it has no examples"));
    Ok(())
}

#[test]
fn bad_examples_and_options_are_refused() {
    let prepare = |tuning: FineTuning, examples: Vec<Example>| {
        tuning.prepare(&Pretrained::open(folder("gpt2")), examples, vec![]).unwrap_err().to_string()
    };
    let example = |tokens: Vec<i64>| Example::text(tokens.clone(), tokens);
    let two = || vec![example(vec![1; 9]), example(vec![5000, 2])];
    for (error, parts) in [
        (prepare(adapters(), vec![]), vec!["there are no examples"]),
        (
            prepare(FineTuning { length: Some(8), ..adapters() }, two()),
            vec![
                "example 1: 9 tokens are more than the 8 of a row",
                "example 2: the model has 288 tokens, and no token 5000",
            ],
        ),
        (prepare(FineTuning { length: Some(100_000), ..adapters() }, two()), vec!["positions of the model"]),
        (prepare(FineTuning { batch: 0, ..adapters() }, two()), vec!["`batch` is 0"]),
        (prepare(FineTuning { learning_rate: -1.0, ..adapters() }, two()), vec!["`learning_rate` is -1"]),
        (
            prepare(FineTuning { batch: usize::MAX, micro_batches: 4, ..adapters() }, two()),
            vec!["`batch` times"],
        ),
        (prepare(FineTuning { epochs: u64::MAX, ..adapters() }, texts()), vec!["`epochs` is too large"]),
        (
            prepare(FineTuning { max_gradient_norm: f32::NAN, ..adapters() }, texts()),
            vec!["`max_gradient_norm` is NaN"],
        ),
        (
            prepare(FineTuning { length: Some(2), is_truncating: true, ..adapters() }, {
                vec![Example::text(vec![1, 2, 3], vec![-100, -100, 3])]
            }),
            vec!["example 1: none of its tokens in the row is learned"],
        ),
        (
            prepare(FineTuning { lora: Some(Lora::new(4, &["q_proj"])), ..adapters() }, texts()),
            vec!["no product has weights of a module `q_proj`"],
        ),
    ] {
        parts.iter().for_each(|part| assert!(error.contains(part), "{error:?} without {part:?}"));
    }
    let quantized = Pretrained::open(folder("gpt2")).quantize_head(Quantization::INT8);
    let whole = FineTuning { lora: None, ..adapters() };
    let error = whole.prepare(&quantized, texts(), vec![]).unwrap_err().to_string();
    assert!(error.contains("quantised weights are not trained"), "{error}");
    let error =
        adapters().prepare(&Pretrained::open(folder("bert")), texts(), vec![]).unwrap_err().to_string();
    assert!(error.contains("no token is hidden"), "{error}");
}
