//! Models that PaddlePaddle 2.6.2 has exported (`fixtures.py`), and files that are broken.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use autobwd::{Attr, DType, Executor, Feed, Result, Tensor, tensor::load_tensors};
use autobwd_ops::{
    Math, nn,
    optim::{Optimizer, Sgd},
};
use autobwd_paddle::{Model, load_program};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn data(name: &str) -> Result<BTreeMap<String, Tensor>> {
    Ok(load_tensors(models().join(name).with_extension("safetensors"))?.into_iter().collect())
}

/// `KEY.0`, `KEY.1`, ….
fn list<'a>(data: &'a BTreeMap<String, Tensor>, key: &str) -> Vec<&'a Tensor> {
    (0..).map_while(|i| data.get(&format!("{key}.{i}"))).collect()
}

/// Float32 results of other summation orders.
const TOLERANCE: f64 = 1e-5;

fn assert_close(x: &Tensor, y: &Tensor) {
    assert_eq!((x.dtype(), x.dims()), (y.dtype(), y.dims()));
    let largest = y.to_f64s().iter().fold(0.0, |m: f64, y| m.max(y.abs()));
    for (x, y) in x.to_f64s().iter().zip(y.to_f64s()) {
        assert!((x - y).abs() <= TOLERANCE * largest, "{x} is not {y}");
    }
}

/// A new folder for what a test writes.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

const NAMES: [(&str, &str); 5] = [
    ("images", "images"),
    ("attention", "attention"),
    ("recurrent", "recurrent"),
    ("shapes", "shapes"),
    ("separate", "shapes"),
];

#[test]
fn results_are_those_of_paddle_and_the_same_after_saving() -> Result<()> {
    // A loop and a branch, without parameters.
    for (name, expected) in NAMES.into_iter().chain([("control", "control")]) {
        let data = data(expected)?;
        let mut model = Model::load(models().join(name))?;
        let results = model.run(&mut Executor::new(), &list(&data, "in"))?;
        assert_eq!(results.len(), list(&data, "out").len());
        results.iter().zip(list(&data, "out")).for_each(|(x, y)| assert_close(x, y));

        let folder = folder();
        model.save(folder.path().join(name))?;
        let mut again = Model::load(folder.path().join(format!("{name}.pdmodel")))?;
        assert_eq!((&again.feeds, &again.fetches), (&model.feeds, &model.fetches));
        let repeated = again.run(&mut Executor::new(), &list(&data, "in"))?;
        for (x, y) in results.iter().zip(&repeated) {
            assert_eq!(x.bytes(), y.bytes(), "{name}");
        }
    }
    Ok(())
}

#[test]
fn models_for_inference_are_trained_further() -> Result<()> {
    for (name, expected) in NAMES {
        let data = data(expected)?;
        let mut model = Model::load(models().join(name))?;
        let trained = model.train(&[])?;
        assert!(!trained.is_empty(), "{name}");
        let net = model.builder();
        let loss = net.expr(&model.fetches[0]).square().mean();
        let updates = Sgd { rate: 0.05 }.minimize(&loss)?.complete()?;
        assert_eq!(updates.len(), trained.len(), "{name}");
        let mut executor = Executor::new();
        executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;
        let feeds =
            model.feeds.iter().zip(list(&data, "in")).map(|(name, x)| (name.as_str(), x as &dyn Feed));
        let feeds: Vec<_> = feeds.collect();
        let mut losses = vec![];
        for _ in 0..10 {
            let fetched = executor.run(&*net.program()?, &mut model.scope, &feeds, &[&loss.name()])?;
            losses.push(fetched[0].item()?);
        }
        assert!(losses[9] < losses[0], "{name}: {losses:?}");

        // The model for inference is the loaded one with other weights.
        let fetches: Vec<&str> = model.fetches.iter().map(String::as_str).collect();
        let mut tuned = Model::for_test(&*net.program()?, &model.scope, &fetches)?;
        assert_eq!(tuned.feeds, model.feeds);
        let before = load_program(models().join(name))?;
        assert_eq!(tuned.program.root().ops.len(), before.root().ops.len(), "{name}");
        let folder = folder();
        tuned.save(folder.path().join("tuned"))?;
        let mut again = Model::load(folder.path().join("tuned"))?;
        let inputs = list(&data, "in");
        let (x, y) = (tuned.run(&mut executor, &inputs)?, again.run(&mut executor, &inputs)?);
        assert_eq!(x[0].bytes(), y[0].bytes());
    }
    Ok(())
}

#[test]
fn training_programs_go_on_with_the_losses_of_paddle() -> Result<()> {
    let data = data("training")?;
    let mut model = Model::load(models().join("training"))?;
    let feeds: [(&str, &dyn Feed); 2] = [("x", &data["x"]), ("y", &data["y"])];
    let mut executor = Executor::new();
    let mut losses = vec![];
    for _ in 0..data["losses"].numel() {
        losses.push(executor.run(&model.program, &mut model.scope, &feeds, &["mean_0.tmp_0"])?[0].item()?);
    }
    assert_close(
        &Tensor::from_vec([losses.len()], losses.iter().map(|x| *x as f32).collect())?,
        &data["losses"],
    );
    Ok(())
}

#[test]
fn a_new_head_is_trained_on_a_frozen_body() -> Result<()> {
    let data = data("images")?;
    let mut model = Model::load(models().join("images"))?;
    let trained = model.train(&["conv2d_0*", "batch_norm*", "conv2d_1*", "linear*"])?;
    assert!(trained.is_empty(), "{trained:?}");
    let is_test = |op: &autobwd::OpDesc| op.attrs.get("is_test") == Some(&Attr::Bool(true));
    assert!(model.program.root().ops.iter().filter(|op| &*op.ty == "batch_norm").all(is_test));

    let net = model.builder();
    let features = net.expr("flatten_0.tmp_0");
    let head = nn::Linear::builder(&net, 6, 4).build().forward(&features);
    let label = net.input("label", DType::I64, &[-1, 1]);
    let loss = head.mean_cross_entropy(&label);
    let updates = Sgd { rate: 0.1 }.minimize(&loss)?;
    assert_eq!(updates.trained.len(), 2);
    let mut executor = Executor::new();
    executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;
    let label = Tensor::from_vec([2, 1], vec![1_i64, 3])?;
    let feeds: [(&str, &dyn Feed); 2] = [(&model.feeds[0], &data["in.0"]), ("label", &label)];
    executor.run(&*net.program()?, &mut model.scope, &feeds, &[&loss.name()])?;

    let folder = folder();
    let tuned = Model::for_test(&*net.program()?, &model.scope, &[&head.name()])?;
    tuned.save(folder.path().join("tuned"))?;
    let mut again = Model::load(folder.path().join("tuned"))?;
    assert_eq!(again.run(&mut executor, &[&data["in.0"]])?[0].dims(), [2, 4]);
    Ok(())
}

#[test]
fn what_stands_in_the_way_is_one_list() {
    let mut program = fs::read(models().join("images.pdmodel")).unwrap();
    // Names of the same length keep the file valid.
    for (from, to) in [("hard_swish", "hard_swosh"), ("with_quant_attr", "with_quant_atta"), ("relu", "elu6")]
    {
        for at in 0..program.len() - from.len() {
            if program[at..].starts_with(from.as_bytes()) {
                program[at..at + to.len()].copy_from_slice(to.as_bytes());
            }
        }
    }
    let folder = folder();
    fs::write(folder.path().join("model.pdmodel"), program).unwrap();
    let e = load_program(folder.path().join("model")).unwrap_err().to_string();
    let lines: Vec<&str> = e.lines().skip(1).collect();
    let expected = [
        "  operator `hard_swosh` is unknown to PaddlePaddle 2.6, too (block 0, operator 3)",
        "  operator `elu6` is unknown to PaddlePaddle 2.6, too (block 0, operator 9)",
        "  attribute `with_quant_atta` of operator `flatten_contiguous_range` = false is not supported (block 0, operator 11)",
    ];
    assert_eq!(lines, expected, "{e}");
}

#[test]
fn errors_name_the_line_of_python() -> Result<()> {
    let program = load_program(models().join("training"))?;
    let tanh = program.root().ops.iter().find(|op| &*op.ty == "tanh").unwrap();
    assert!(tanh.site.unwrap().to_string().starts_with("model.py:"));
    Ok(())
}

#[test]
fn broken_files_are_errors() -> Result<()> {
    let folder = folder();
    let path = folder.path().join("model");
    let read = |ending: &str| fs::read(models().join(format!("images{ending}"))).unwrap();
    let write = |ending: &str, bytes: &[u8]| {
        fs::write(folder.path().join(format!("model{ending}")), bytes).unwrap();
    };
    let error = || Model::load(&path).unwrap_err().to_string();
    let (program, parameters) = (read(".pdmodel"), read(".pdiparams"));
    assert!(error().contains("cannot read"), "{}", error());
    write(".pdmodel", &program);
    assert!(error().contains("model.pdiparams"), "{}", error());
    write(".pdiparams", &parameters[..parameters.len() - 1]);
    assert!(error().contains("the file ends after"), "{}", error());
    write(".pdiparams", &[&parameters[..], &[0]].concat());
    assert!(error().contains("it holds more than"), "{}", error());
    let mut wrong = parameters.clone();
    wrong[0] = 1;
    write(".pdiparams", &wrong);
    assert!(error().contains("version 1 of the tensor format is not known"), "{}", error());
    write(".pdiparams", &parameters);
    Model::load(&path)?;
    write(".pdiparams.info", b"\x80\x02}q");
    assert!(error().contains("not a dictionary of parameters"), "{}", error());
    write(".pdmodel", b"{\"blocks\": []}");
    assert!(error().contains("is not a program of PaddlePaddle"), "{}", error());
    for end in (0..program.len()).step_by(7) {
        write(".pdmodel", &program[..end]);
        assert!(Model::load(&path).is_err());
    }
    Ok(())
}
