//! Models that `fixtures.py` has written, with results of ONNX Runtime, and files that are broken.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use autobwd::{
    DType, Error, ErrorKind, Executor, Feed, OpInfoMap, Result, Tensor, append_backward, tensor::load_tensors,
};
use autobwd_onnx::{LoadOptions, from_bytes, load, load_with, signature};
use autobwd_ops::{
    Math, Model, nn,
    optim::{Optimizer, Sgd},
};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name)
}

fn model(name: &str) -> Result<Model> {
    load(path(name).with_extension("onnx"))
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(path(name).with_extension("onnx")).unwrap()
}

fn data(name: &str) -> Result<BTreeMap<String, Tensor>> {
    Ok(load_tensors(path(name).with_extension("safetensors"))?.into_iter().collect())
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

fn numbers(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    Tensor::from_vec(dims, (0..count).map(|i| (i % 7) as f32 * 0.3 - 0.8).collect()).unwrap()
}

/// The lines of an error below its first one.
fn obstacles(e: &Error) -> Vec<String> {
    assert_eq!(e.kind(), ErrorKind::Format, "{e}");
    e.to_string().lines().skip(1).map(str::to_string).collect()
}

#[test]
fn results_are_those_of_onnx_runtime() -> Result<()> {
    for name in ["images", "classifier", "control", "detector", "encoder"] {
        let data = data(name)?;
        let mut model = model(name)?;
        let results = model.run(&mut Executor::new(), &list(&data, "in"))?;
        assert_eq!(results.len(), list(&data, "out").len(), "{name}");
        results.iter().zip(list(&data, "out")).for_each(|(x, y)| assert_close(x, y));
    }
    Ok(())
}

#[test]
fn loops_take_any_number_of_steps() -> Result<()> {
    let (mut model, mut executor) = (model("loops")?, Executor::new());
    for run in 0..4 {
        let data = data(&format!("loops_{run}"))?;
        let results = model.run(&mut executor, &list(&data, "in"))?;
        assert_eq!(results.len(), list(&data, "out").len());
        results.iter().zip(list(&data, "out")).for_each(|(x, y)| assert_close(x, y));
    }
    let types: Vec<&str> =
        model.program.blocks().iter().flat_map(|block| &block.ops).map(|op| &*op.ty).collect();
    assert_eq!(types.iter().filter(|ty| **ty == "while").count(), 2);
    assert_eq!(types.iter().filter(|ty| **ty == "recurrent").count(), 1);
    Ok(())
}

#[test]
fn loops_take_any_number_of_steps_in_training_mode() -> Result<()> {
    let (mut model, mut executor) = (model("loops")?, Executor::new());
    model.train(&[])?;
    OpInfoMap::linked()?.verify(&model.program)?;
    for run in 0..4 {
        let data = data(&format!("loops_{run}"))?;
        for (x, y) in model.run(&mut executor, &list(&data, "in"))?.iter().zip(list(&data, "out")) {
            assert_close(x, y);
        }
    }
    Ok(())
}

#[test]
fn open_dimensions_take_any_size() -> Result<()> {
    let (mut model, mut executor) = (model("images")?, Executor::new());
    for dims in [[1, 1, 8, 10], [3, 1, 7, 12], [2, 1, 16, 16]] {
        assert_eq!(model.run(&mut executor, &[&numbers(&dims)])?[0].dims(), [dims[0], 3]);
    }
    Ok(())
}

#[test]
fn variables_have_the_names_of_the_file() -> Result<()> {
    let model = model("images")?;
    assert_eq!((&model.feeds[..], &model.fetches[..]), (&["x".into()][..], &["scores".into()][..]));
    for name in ["first", "norm", "relu", "pool", "second", "mean", "features", "logits", "scores"] {
        model.program.expect_var(name)?;
    }
    for name in ["first.weight", "second.bias", "head.weight", "norm.variance"] {
        model.scope.get(name)?;
    }
    // The statistics are no parameters.
    let parameters: Vec<&str> = model.program.parameters().map(|var| model.program.name(var)).collect();
    assert_eq!(parameters.len(), 7, "{parameters:?}");
    let pool = model.program.root().ops.iter().find(|op| &*op.ty == "pool2d").unwrap();
    assert_eq!(pool.site.unwrap().to_string(), "node `pool`");
    Ok(())
}

#[test]
fn layers_that_are_written_out_read_as_if_written_by_hand() -> Result<()> {
    let encoder = model("encoder")?.program;
    let layer = [
        ("norm", "rms_norm"),
        ("attention", "matmul_v2"),
        ("attention", "reshape2"),
        ("attention", "matmul_v2"),
        ("attention", "reshape2"),
        ("attention", "matmul_v2"),
        ("attention", "reshape2"),
        ("attention", "scaled_dot_product_attention"),
        ("attention", "reshape2"),
        ("", "elementwise_add"),
        ("mlp", "matmul_v2"),
        ("mlp", "gelu"),
        ("mlp", "matmul_v2"),
        ("", "elementwise_add"),
    ];
    let module_path =
        |i: usize, module: &str| format!("encoder/layers.{i}/{module}").trim_end_matches('/').to_string();
    let expected = (0..2).flat_map(|i| layer.map(|(module, ty)| (module_path(i, module), ty.to_string())));
    let ops = encoder.root().ops.iter();
    let found = ops.map(|op| (op.module().unwrap_or_default().to_string(), op.ty.to_string()));
    assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let options = LoadOptions { as_written: true, ..LoadOptions::default() };
    let written = load_with(path("encoder.onnx"), &options)?;
    assert!(written.program.expect_var("erf_0").is_ok() && encoder.expect_var("erf_0").is_err());
    Ok(())
}

#[test]
fn operators_of_branches_and_loops_name_their_node() -> Result<()> {
    let program = model("control")?.program;
    assert!(program.blocks().len() > 1);
    let sites = program.blocks()[1..].iter().flat_map(|block| &block.ops).map(|op| op.site.unwrap());
    let sites: Vec<String> = sites.map(|site| site.to_string()).collect();
    assert!(!sites.is_empty() && sites.iter().all(|site| site == "node `chosen`"), "{sites:?}");
    Ok(())
}

#[test]
fn errors_at_run_time_name_the_node() -> Result<()> {
    let mut model = model("images")?;
    let e = model.run(&mut Executor::new(), &[&numbers(&[1, 1, 2, 2])]).unwrap_err().to_string();
    assert!(e.contains("node `second`"), "{e}");
    Ok(())
}

#[test]
fn models_for_inference_are_trained_further() -> Result<()> {
    // The bound of a condition is an initializer, but has no gradient.
    for (name, frozen) in [("images", &[][..]), ("control", &["zero"])] {
        let data = data(name)?;
        let mut model = model(name)?;
        let trained = model.train(frozen)?;
        assert!(!trained.is_empty(), "{name}");
        let net = model.builder();
        let loss = net.expr(&model.fetches[0]).square().mean();
        let updates = Sgd { rate: 0.05 }.minimize(&loss)?.complete()?;
        assert_eq!(updates.len(), trained.len(), "{name}");
        let losses = losses(&mut model, &net, &list(&data, "in"), &loss.name())?;
        assert!(losses[9] < losses[0], "{name}: {losses:?}");
        // The model for inference is the loaded one with other weights.
        let fetches: Vec<&str> = model.fetches.iter().map(String::as_str).collect();
        let tuned = Model::for_inference(&*net.program()?, &model.scope, &fetches)?;
        assert_eq!(tuned.feeds, model.feeds);
        let before = self::model(name)?.program;
        assert_eq!(tuned.program.root().ops.len(), before.root().ops.len(), "{name}");
    }
    Ok(())
}

/// The losses of ten steps.
fn losses(model: &mut Model, net: &autobwd::Builder, inputs: &[&Tensor], loss: &str) -> Result<Vec<f64>> {
    let mut executor = Executor::new();
    executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;
    let feeds: Vec<(&str, &dyn Feed)> =
        model.feeds.iter().zip(inputs).map(|(name, x)| (name.as_str(), *x as &dyn Feed)).collect();
    let step = |_| executor.run(&*net.program()?, &mut model.scope, &feeds, &[loss])?[0].item();
    (0..10).map(step).collect()
}

#[test]
fn loss_of_the_file_is_differentiated() -> Result<()> {
    let data = data("classifier")?;
    let mut model = model("classifier")?;
    model.train(&["hidden*"])?;
    let net = model.builder();
    let updates = Sgd { rate: 0.5 }.minimize(&net.expr("loss"))?.complete()?;
    assert_eq!(updates.len(), 2);
    let hidden = model.scope.get("hidden.weight")?.clone();
    let losses = losses(&mut model, &net, &list(&data, "in"), "loss")?;
    assert!(losses[9] < losses[0], "{losses:?}");
    assert_eq!(*model.scope.get("hidden.weight")?, hidden);
    // Parameters are differentiated without preparation, too.
    let mut program = self::model("classifier")?.program;
    assert_eq!(append_backward(&mut program, "loss", &Default::default())?.missing.len(), 0);
    Ok(())
}

#[test]
fn new_head_is_trained_on_a_frozen_body() -> Result<()> {
    let mut model = model("images")?;
    model.train(&["*"])?;
    let net = model.builder();
    let head = nn::Linear::builder(&net, 6, 4).build().forward(&net.expr("features"));
    let loss = head.mean_cross_entropy(&net.input("labels", DType::I64, &[-1, 1]));
    assert_eq!(Sgd { rate: 0.1 }.minimize(&loss)?.trained.len(), 2);
    let mut executor = Executor::new();
    executor.run(&net.startup().program()?, &mut model.scope, &[], &[])?;
    let (images, labels) = (numbers(&[2, 1, 8, 10]), Tensor::from_vec([2, 1], vec![1_i64, 3])?);
    let feeds: [(&str, &dyn Feed); 2] = [("x", &images), ("labels", &labels)];
    executor.run(&*net.program()?, &mut model.scope, &feeds, &[&loss.name()])?;
    let mut tuned = Model::for_inference(&*net.program()?, &model.scope, &[&head.name()])?;
    assert_eq!(tuned.run(&mut executor, &[&images])?[0].dims(), [2, 4]);
    Ok(())
}

#[test]
fn float64_takes_all_floats() -> Result<()> {
    let options = LoadOptions { float64: true, ..LoadOptions::default() };
    let mut model = load_with(path("images.onnx"), &options)?;
    let data = data("images")?;
    let x = Tensor::from_vec(data["in.0"].dims(), data["in.0"].to_f64s())?;
    let scores = model.run(&mut Executor::new(), &[&x])?.remove(0);
    assert_eq!(scores.dtype(), DType::F64);
    assert_close(&Tensor::from_vec(scores.dims(), scores.to_f64s())?, &{
        let expected = &data["out.0"];
        Tensor::from_vec(expected.dims(), expected.to_f64s())?
    });
    Ok(())
}

#[test]
fn external_data_is_read_from_the_folder() -> Result<()> {
    let x = Tensor::from_vec([1, 3], vec![1.0_f32, 1.0, 1.0])?;
    let y = model("external")?.run(&mut Executor::new(), &[&x])?.remove(0);
    assert_eq!(y.slice::<f32>()?, [9.0, 12.0]);

    let e = model("outside").unwrap_err();
    let outside = "  external data in `../weights.bin`, outside the model's folder (initializer `w`)";
    assert_eq!(obstacles(&e), [outside]);
    let e = model("lacking").unwrap_err();
    assert!(obstacles(&e)[0].contains("other.bin"), "{e}");
    let e = from_bytes(&bytes("external"), &LoadOptions::default()).unwrap_err();
    assert!(obstacles(&e)[0].contains("but the model is not a file"), "{e}");

    // A file that is too short, and links out of the folder.
    let folder = tempfile::tempdir().unwrap();
    let (copy, weights) = (folder.path().join("external.onnx"), folder.path().join("weights.bin"));
    fs::write(&copy, bytes("external")).unwrap();
    fs::write(&weights, [0; 31]).unwrap();
    let e = load(&copy).unwrap_err();
    assert!(obstacles(&e)[0].contains("`weights.bin` has 31 bytes, not 24 from byte 8 on"), "{e}");
    #[cfg(unix)]
    {
        fs::remove_file(&weights).unwrap();
        std::os::unix::fs::symlink(path("weights.bin"), &weights).unwrap();
        let e = load(&copy).unwrap_err();
        assert!(obstacles(&e)[0].contains("outside the model's folder"), "{e}");
    }
    Ok(())
}

#[test]
fn everything_in_the_way_is_one_list() {
    let e = model("unknown").unwrap_err();
    let expected = [
        "  dtype STRING is not supported (input `text`)",
        "  operator `Rellu` is not supported (2 times, first at node `a`)",
        "  operator `com.example:Gelu` is not supported (node `b`)",
        "  attribute `slope` of operator `Relu` is not supported (node `c`)",
        "  operator `Softmax`: [2, 3] has no axis 5 (node `f`)",
        "  no node computes `g` (output `g`)",
    ];
    assert_eq!(obstacles(&e), expected);
    let operators = signature(&bytes("unknown")).unwrap().operators;
    assert!(operators.contains("Rellu") && operators.contains("Softmax"), "{operators:?}");
}

#[test]
fn shapes_and_values_that_must_be_known_are_given() -> Result<()> {
    let text = |options: &LoadOptions| load_with(path("shuffle.onnx"), options).unwrap_err().to_string();
    let mut options = LoadOptions::default();
    assert!(text(&options).contains("give the shapes of the inputs `x`"), "{}", text(&options));
    options.shapes.insert("x".into(), vec![1, 4, 2, 3]);
    assert!(text(&options).contains("give the values of the inputs `k`"), "{}", text(&options));
    options.values.insert("k".into(), Tensor::from_vec([1], vec![2_i64])?);
    for named in [false, true] {
        if named {
            options.shapes.clear();
            options.dims = [("N", 1), ("H", 2), ("W", 3)].map(|(name, size)| (name.into(), size)).into();
        }
        let mut model = load_with(path("shuffle.onnx"), &options)?;
        let x = numbers(&[1, 4, 2, 3]);
        let best = model.run(&mut Executor::new(), &[&x])?.remove(0);
        let mut expected = x.to_f64s();
        expected.sort_by(|x, y| y.total_cmp(x));
        assert_eq!((best.dims(), best.to_f64s()), (&[1, 2][..], expected[..2].to_vec()));
    }
    Ok(())
}

#[test]
fn options_that_contradict_the_model_are_errors() -> Result<()> {
    let options = LoadOptions {
        shapes: [("x".into(), vec![1, 5, 2, 3]), ("y".into(), vec![])].into(),
        dims: [("M".into(), 7)].into(),
        values: [("k".into(), Tensor::scalar(2_f32)?)].into(),
        ..LoadOptions::default()
    };
    let e = load_with(path("shuffle.onnx"), &options).unwrap_err();
    let expected = [
        "  the model has no input `y`",
        "  no input of the model has a dimension `M`",
        "  `x` has shape [N, 4, H, W], not [1, 5, 2, 3] (input `x`)",
        "  its given value is float32 [], not int64 [1] (input `k`)",
    ];
    assert_eq!(obstacles(&e), expected);
    Ok(())
}

#[test]
fn broken_files_are_errors() {
    let load_bytes = |bytes: &[u8]| from_bytes(bytes, &LoadOptions::default());
    let whole = bytes("images");
    load_bytes(&whole).unwrap();
    for end in 0..whole.len() {
        load_bytes(&whole[..end]).unwrap_err();
    }
    // Other bytes are another model or an error.
    for name in ["images", "classifier", "control", "shuffle"] {
        let whole = bytes(name);
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 1 << (at % 8);
            let _ = load_bytes(&other);
        }
    }
    let foreign: [&[u8]; 6] =
        [b"", b"\0", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"PK\x03\x04", b"\x80\x02}.", b"{\"blocks\": []}"];
    for bytes in foreign {
        let e = load_bytes(bytes).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Format, "{e}");
    }
    assert_eq!(model("missing").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(load(path("")).unwrap_err().kind(), ErrorKind::Io);
}

/// A field of a message that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [varint(u64::from(number) << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = vec![];
    while number > 127 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A model of opset 17 with the fields of a graph.
fn graph(fields: &[Vec<u8>]) -> Vec<u8> {
    [field(7, &fields.concat()), field(8, &[16, 17])].concat()
}

/// A float32 initializer without elements.
fn initializer(name: &[u8], dims: &[i64]) -> Vec<u8> {
    let dims = dims.iter().flat_map(|dim| [vec![8], varint(*dim as u64)].concat()).collect::<Vec<u8>>();
    field(5, &[&dims[..], &[16, 1], &field(8, name)].concat())
}

fn node(op: &str, inputs: &[&[u8]], output: &[u8]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| field(1, name)).collect();
    field(1, &[inputs, field(2, output), field(4, op.as_bytes())].concat())
}

fn output(name: &[u8]) -> Vec<u8> {
    field(12, &field(1, name))
}

#[test]
fn hostile_models_are_errors() {
    let error = |model: &[u8]| from_bytes(model, &LoadOptions::default()).unwrap_err().to_string();
    // Tensors that no memory holds, or that have no elements in the file.
    for dims in [&[i64::MAX][..], &[i64::MAX, i64::MAX], &[1 << 40, 1 << 40], &[i64::MIN, -2], &[1 << 40]] {
        let e = error(&graph(&[initializer(b"w", dims), node("Relu", &[b"w"], b"y"), output(b"y")]));
        assert!(e.contains("(initializer `w`)"), "{e}");
    }
    // Names of any text.
    for name in ["\n\x1b[31m\0", "`", "\u{202e}", "a b"] {
        let e = error(&graph(&[node(name, &[name.as_bytes()], b"y"), output(b"y")]));
        assert!(!e.contains(|c: char| c.is_control() && c != '\n'), "{e:?}");
    }
    // Values that are not there, not yet there, or themselves.
    for input in [&b"nothing"[..], b"later", b"y"] {
        let e = error(&graph(&[node("Relu", &[input], b"y"), node("Relu", &[b"y"], b"later"), output(b"y")]));
        assert!(e.contains("no node before it computes"), "{e}");
    }
    // Groups, and graphs within graphs.
    for group in [0x7b, 0x0b] {
        assert!(error(&vec![group; 1 << 20]).contains("is not a model of ONNX"));
    }
    let mut nested = vec![];
    for _ in 0..200 {
        let attribute = [field(1, b"body"), field(6, &nested)].concat();
        nested = field(1, &[field(4, b"Loop"), field(5, &attribute)].concat());
    }
    error(&graph(&[nested]));
}

#[test]
fn local_response_normalization_of_a_vector_is_an_error() {
    let tensor = field(1, &[&[8, 1][..], &field(2, &field(1, &[8, 5]))].concat());
    let input = field(11, &[field(1, b"x"), field(2, &tensor)].concat());
    let size = field(5, &[field(1, b"size"), vec![24, 3, 0xa0, 1, 2]].concat());
    let node = field(1, &[field(1, b"x"), field(2, b"y"), field(4, b"LRN"), size].concat());
    let e = from_bytes(&graph(&[input, node, output(b"y")]), &LoadOptions::default()).unwrap_err();
    assert_eq!(obstacles(&e), ["  operator `LRN` needs at least two dimensions (node `y`)"]);
}

/// A function that calls itself, and functions that call each other twice, would never end.
#[test]
fn recursive_functions_are_errors() {
    let call =
        |name: &str| [field(1, b"x"), field(2, b"y"), field(4, name.as_bytes()), field(7, b"local")].concat();
    let function = |name: &str, calls: &[&str]| {
        let calls: Vec<u8> = calls.iter().flat_map(|name| field(7, &call(name))).collect();
        let head = [field(1, name.as_bytes()), field(4, b"x"), field(5, b"y"), field(10, b"local")];
        let opset = field(9, &[field(1, b"local"), vec![16, 1]].concat());
        field(25, &[head.concat(), calls, opset].concat())
    };
    let start = |name: &str| {
        let value = [field(1, b"x"), field(2, &field(1, &[8, 1, 18, 0]))].concat();
        let graph = [field(11, &value), field(1, &call(name)), output(b"y")].concat();
        [field(7, &graph), field(8, &[16, 17]), field(8, &[field(1, b"local"), vec![16, 1]].concat())]
            .concat()
    };
    let own = [start("f"), function("f", &["f"])].concat();
    let e = from_bytes(&own, &LoadOptions::default()).unwrap_err().to_string();
    assert!(e.contains("nested more than 64 deep"), "{e}");
    // 2⁴⁰ calls.
    let names: Vec<String> = (0..=40).map(|i| format!("f{i}")).collect();
    let mut many = start("f0");
    for pair in names.windows(2) {
        many.extend(function(&pair[0], &[&pair[1], &pair[1]]));
    }
    many.extend(function("f40", &[]));
    let _ = from_bytes(&many, &LoadOptions::default());
}
