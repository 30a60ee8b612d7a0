//! Models that PaddlePaddle 2.6.2 has exported (`fixtures.py`), and files that are broken.

mod support;

use std::{collections::BTreeMap, fs};

use autobwd::{Attr, DType, Executor, Feed, Result, Scope, Tensor};
use autobwd_ops::Model;
use autobwd_ops::{
    Math, nn,
    optim::{Optimizer, Sgd},
};
use autobwd_paddle::load_program;

use support::{assert_close, data, models};

/// `KEY.0`, `KEY.1`, ….
fn list<'a>(data: &'a BTreeMap<String, Tensor>, key: &str) -> Vec<&'a Tensor> {
    (0..).map_while(|i| data.get(&format!("{key}.{i}"))).collect()
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
    // A loop and a branch, sums of integers, and tensors in the place of attributes, without parameters.
    for (name, expected) in
        NAMES.into_iter().chain([("control", "control"), ("sums", "sums"), ("arguments", "arguments")])
    {
        let data = data(expected)?;
        let mut model = autobwd_paddle::load(models().join(name))?;
        let results = model.run(&mut Executor::new(), &list(&data, "in"))?;
        assert_eq!(results.len(), list(&data, "out").len());
        results.iter().zip(list(&data, "out")).for_each(|(x, y)| assert_close(x, y));

        let folder = folder();
        autobwd_paddle::save(&model, folder.path().join(name))?;
        let mut again = autobwd_paddle::load(folder.path().join(format!("{name}.pdmodel")))?;
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
        let mut model = autobwd_paddle::load(models().join(name))?;
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
        let mut tuned = Model::for_inference(&*net.program()?, &model.scope, &fetches)?;
        assert_eq!(tuned.feeds, model.feeds);
        let before = load_program(models().join(name))?;
        assert_eq!(tuned.program.root().ops.len(), before.root().ops.len(), "{name}");
        let folder = folder();
        autobwd_paddle::save(&tuned, folder.path().join("tuned"))?;
        let mut again = autobwd_paddle::load(folder.path().join("tuned"))?;
        let inputs = list(&data, "in");
        let (x, y) = (tuned.run(&mut executor, &inputs)?, again.run(&mut executor, &inputs)?);
        assert_eq!(x[0].bytes(), y[0].bytes());
    }
    Ok(())
}

#[test]
fn training_programs_go_on_with_the_losses_of_paddle() -> Result<()> {
    for (name, loss) in [("training", "mean_0.tmp_0"), ("norms", "tmp_1"), ("orders", "tmp_3")] {
        let data = data(name)?;
        let inputs = data.iter().filter(|(name, _)| *name != "losses" && *name != "accuracies");
        let feeds: Vec<(&str, &dyn Feed)> = inputs.map(|(name, x)| (name.as_str(), x as &dyn Feed)).collect();
        let loaded = autobwd_paddle::load(models().join(name))?;
        // What is written is the same training program.
        let [program, parameters, infos] = autobwd_paddle::to_bytes(&loaded)?;
        let again = autobwd_paddle::from_bytes(&program, Some(&parameters), Some(&infos))?;
        for mut model in [loaded, again] {
            let mut executor = Executor::new();
            let mut losses = vec![];
            for _ in 0..data["losses"].numel() {
                losses
                    .push(executor.run(&model.program, &mut model.scope, &feeds, &[loss])?[0].item()? as f32);
            }
            assert_close(&Tensor::from_vec([losses.len()], losses)?, &data["losses"]);
        }
    }
    Ok(())
}

#[test]
fn gradients_of_composed_operators_are_those_of_paddle() -> Result<()> {
    let data = data("composed")?;
    let mut model = autobwd_paddle::load(models().join("composed"))?;
    let inputs = data.iter().filter(|(name, _)| *name != "losses");
    let feeds: Vec<(&str, &dyn Feed)> = inputs.map(|(name, x)| (name.as_str(), x as &dyn Feed)).collect();
    let (mut executor, mut losses) = (Executor::new(), vec![]);
    for _ in 0..data["losses"].numel() {
        let fetched = executor.run(&model.program, &mut model.scope, &feeds, &["tmp_18"])?;
        losses.push(fetched[0].item()? as f32);
    }
    assert_close(&Tensor::from_vec([losses.len()], losses)?, &data["losses"]);
    Ok(())
}

#[test]
fn hints_of_paddle_3_are_dropped() -> Result<()> {
    let vars = [var(b"x", &[2]), var(b"y", &[2])].concat();
    let flag = field(4, &[&field(1, b"use_onednn")[..], &[16, 6, 80, 0]].concat());
    let text = field(4, &[&field(1, b"onednn_data_type")[..], &[16, 2], &field(5, b"")].concat());
    let program = block(0, 0, &[vars, op("relu", b"x", b"y", &[flag, text])]);
    let model = autobwd_paddle::from_bytes(&program, None, None)?;
    assert_eq!(model.program.root().ops.len(), 1);
    Ok(())
}

#[test]
fn numbers_of_an_accuracy_are_integers_whatever_is_declared() -> Result<()> {
    let data = data("norms")?;
    let mut model = autobwd_paddle::load(models().join("norms"))?;
    let feeds: [(&str, &dyn Feed); 2] = [("x", &data["x"]), ("y", &data["y"])];
    let names = ["accuracy_0.tmp_2", "accuracy_0.tmp_3", "accuracy_0.tmp_4"];
    let found = Executor::new().run(&model.program, &mut model.scope, &feeds, &names)?;
    assert_eq!(found[0].slice::<f32>()?[0], data["accuracies"].slice::<f32>()?[0]);
    assert_eq!((found[1].dtype(), found[2].slice::<i32>()?), (DType::I32, &[6][..]));
    Ok(())
}

#[test]
fn new_head_is_trained_on_a_frozen_body() -> Result<()> {
    let data = data("images")?;
    let mut model = autobwd_paddle::load(models().join("images"))?;
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
    let tuned = Model::for_inference(&*net.program()?, &model.scope, &[&head.name()])?;
    autobwd_paddle::save(&tuned, folder.path().join("tuned"))?;
    let mut again = autobwd_paddle::load(folder.path().join("tuned"))?;
    assert_eq!(again.run(&mut executor, &[&data["in.0"]])?[0].dims(), [2, 4]);
    Ok(())
}

#[test]
fn obstacles_are_one_list() {
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
        "  operator `hard_swosh` is unknown, also to PaddlePaddle 2.6 (block 0, operator 3)",
        "  operator `elu6` is unknown, also to PaddlePaddle 2.6 (block 0, operator 9)",
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
    let error = || autobwd_paddle::load(&path).unwrap_err().to_string();
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
    autobwd_paddle::load(&path)?;
    write(".pdiparams.info", b"\x80\x02}q");
    assert!(error().contains("not a dictionary of parameters"), "{}", error());
    write(".pdmodel", b"{\"blocks\": []}");
    assert!(error().contains("is not a program of PaddlePaddle"), "{}", error());
    write(".pdiparams.info", &read(".pdiparams.info"));
    write(".pdmodel", &program);
    autobwd_paddle::load(&path)?;
    let safetensors = fs::read(models().join("images.safetensors")).unwrap();
    let foreign: [&[u8]; 7] = [
        b"",
        b"\0",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"PK\x03\x04",
        b"\x80\x02}.",
        &safetensors,
        &parameters,
    ];
    for bytes in foreign {
        write(".pdmodel", bytes);
        assert!(autobwd_paddle::load(&path).is_err());
    }
    Ok(())
}

#[test]
fn truncated_files_are_errors() {
    let read = |ending: &str| fs::read(models().join(format!("images{ending}"))).unwrap();
    let (program, parameters, infos) = (read(".pdmodel"), read(".pdiparams"), read(".pdiparams.info"));
    let load = |program: &[u8], parameters: &[u8], infos: &[u8]| {
        autobwd_paddle::from_bytes(program, Some(parameters), Some(infos)).map_err(|e| e.to_string())
    };
    load(&program, &parameters, &infos).unwrap();
    for end in (0..program.len()).step_by(7) {
        load(&program[..end], &parameters, &infos).unwrap_err();
    }
    for end in 0..parameters.len() {
        let e = load(&program, &parameters[..end], &infos).unwrap_err();
        assert!(e.contains("but the file ends after"), "{e}");
    }
    for end in 0..infos.len() {
        let e = load(&program, &parameters, &infos[..end]).unwrap_err();
        assert!(e.contains("not a dictionary of parameters: it ends too early"), "{e}");
    }
    // A program, a tensor and another pickle instead.
    for foreign in [&program[..], &parameters, b"\x80\x02]q\0.", b""] {
        assert!(load(&program, &parameters, foreign).unwrap_err().contains("not a dictionary of parameters"));
    }
    for foreign in [&program[..], &infos, b"{}", &[0; 64]] {
        assert!(load(&program, foreign, &infos).unwrap_err().contains("the parameters does not fit"));
    }
    assert!(
        autobwd_paddle::from_bytes(&program, None, None).unwrap_err().to_string().contains("ends after 0")
    );
}

/// A field of a message that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 127 {
        field.push(length as u8 | 128);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend(bytes);
    field
}

/// A block with its number, its parent, its variables and its operators.
fn block(index: u8, parent: u8, inner: &[Vec<u8>]) -> Vec<u8> {
    field(1, &[&[8, index, 16, parent][..], &inner.concat()].concat())
}

/// A float32 variable of a block.
fn var(name: &[u8], dims: &[i64]) -> Vec<u8> {
    let mut desc = vec![8, 5];
    for dim in dims {
        desc.push(16);
        let mut dim = *dim as u64;
        while dim > 127 {
            desc.push(dim as u8 | 128);
            dim >>= 7;
        }
        desc.push(dim as u8);
    }
    let ty = [&[8, 7][..], &field(3, &field(1, &desc))].concat();
    field(3, &[field(1, name), field(2, &ty)].concat())
}

/// An operator of a block with `X`, `Out` and attributes.
fn op(ty: &str, x: &[u8], out: &[u8], attrs: &[Vec<u8>]) -> Vec<u8> {
    let slot = |number, slot: &[u8], name| field(number, &[field(1, slot), field(2, name)].concat());
    field(4, &[slot(1, b"X", x), slot(2, b"Out", out), field(3, ty.as_bytes()), attrs.concat()].concat())
}

#[test]
fn hostile_programs_are_errors() {
    let load = |program: &[u8]| autobwd_paddle::from_bytes(program, None, None).map_err(|e| e.to_string());
    let vars = |dims: &[i64]| [var(b"x", dims), var(b"y", dims)].concat();
    load(&block(0, 0, &[vars(&[2, 3]), op("relu", b"x", b"y", &[])])).unwrap();

    // Groups within groups: of unknown fields, and of known ones.
    for group in [0x7b, 0x0b] {
        let e = load(&vec![group; 1 << 20]).unwrap_err();
        assert!(e.contains("is not a program of PaddlePaddle"), "{e}");
    }
    // Tensors that no memory holds.
    for dims in [&[i64::MAX][..], &[i64::MAX, i64::MAX], &[1 << 40, 1 << 40], &[i64::MIN, -2], &[0, i64::MAX]]
    {
        let _ = load(&block(0, 0, &[vars(dims), op("relu", b"x", b"y", &[])]));
    }
    let deep = vec![2_i64; 1 << 16];
    let _ = load(&block(0, 0, &[vars(&deep), op("relu", b"x", b"y", &[])]));
    // Blocks that are each other's parents, are not there, or run themselves.
    assert!(load(&[block(0, 1, &[]), block(1, 1, &[])].concat()).unwrap_err().contains("its parent is not"));
    assert!(load(&[block(0, 0, &[]), block(2, 0, &[])].concat()).unwrap_err().contains("is at position 1"));
    let sub_block = |index: &[u8]| field(4, &[&field(1, b"sub_block")[..], &[16, 8, 96][..], index].concat());
    let minus_one = [&[0xff; 9][..], &[1]].concat();
    for index in [&[0][..], &[1], &[0xff, 0xff, 0xff, 0xff, 7], &minus_one] {
        for ty in ["while", "conditional_block", "relu"] {
            load(&block(0, 0, &[vars(&[1]), op(ty, b"x", b"y", &[sub_block(index)])])).unwrap_err();
        }
    }
    // The same slot and the same attribute twice.
    let twice =
        [op("relu", b"x", b"y", &[])[2..].to_vec(), op("relu", b"x", b"y", &[])[2..].to_vec()].concat();
    let _ = load(&block(0, 0, &[vars(&[2]), field(4, &twice)]));
    // Names of any text.
    for name in ["\n\x1b[31m\0", "", "`", "\u{202e}", "a b"] {
        let names = [var(name.as_bytes(), &[2]), var(b"y", &[2])].concat();
        let attr = field(4, &[&field(1, name.as_bytes())[..], &[16, 2], &field(5, name.as_bytes())].concat());
        let _ = load(&block(0, 0, &[names.clone(), op("relu", name.as_bytes(), b"y", &[])]));
        for op in [op(name, b"x", b"y", &[]), op("relu", name.as_bytes(), b"y", &[attr])] {
            let e = load(&block(0, 0, &[names.clone(), op])).unwrap_err();
            assert!(!e.contains(|c: char| c.is_control() && c != '\n'), "{e:?}");
        }
    }
    assert!(load(&block(0, 0, &[var(b"\xff", &[2])])).unwrap_err().contains("is not a program"));
}

/// A program of one operator, of `x` with these dimensions.
fn loaded(ty: &str, dims: &[usize], attrs: &[Vec<u8>]) -> Result<Model> {
    let wire: Vec<i64> = dims.iter().map(|n| *n as i64).collect();
    let vars = [var(b"x", &wire), var(b"y", &[])].concat();
    autobwd_paddle::from_bytes(&block(0, 0, &[vars, op(ty, b"x", b"y", attrs)]), None, None)
}

/// Runs an operator on 3, 1, 2, 6, 5, 4 or the first of these, and compares its output.
#[track_caller]
fn assert_result(ty: &str, dims: &[usize], attrs: &[Vec<u8>], (out, elements): (&[usize], &[f64])) {
    let model = loaded(ty, dims, attrs).unwrap();
    let numbers = [3.0_f32, 1.0, 2.0, 6.0, 5.0, 4.0];
    let x = Tensor::from_vec(dims, numbers[..dims.iter().product()].to_vec()).unwrap();
    let feeds: [(&str, &dyn Feed); 1] = [("x", &x)];
    let y = Executor::new().run(&model.program, &mut Scope::new(), &feeds, &["y"]).unwrap().remove(0);
    assert_eq!((y.dims(), &y.to_f64s()[..]), (out, elements), "{ty}");
}

#[test]
fn operators_of_earlier_versions_are_those_that_replaced_them() {
    let attr = |name: &[u8], value: &[u8]| field(4, &[&field(1, name)[..], value].concat());
    let ints = |name: &[u8], ints: &[u8]| {
        let ints: Vec<u8> = ints.iter().flat_map(|int| [6 << 3, *int]).collect();
        attr(name, &[&[16, 3][..], &ints].concat())
    };
    let int = |name: &[u8], int: u8| attr(name, &[16, 0, 3 << 3, int]);
    let numbers = [3.0, 1.0, 2.0, 6.0, 5.0, 4.0];
    assert_result("reshape", &[1, 2, 3], &[ints(b"shape", &[3, 2])], (&[3, 2], &numbers));
    let turned = [3.0, 6.0, 1.0, 5.0, 2.0, 4.0];
    assert_result("transpose", &[1, 2, 3], &[ints(b"axis", &[2, 1, 0])], (&[3, 2, 1], &turned));
    assert_result("expand", &[1, 1, 1], &[ints(b"expand_times", &[1, 2, 1])], (&[1, 2, 1], &[3.0; 2]));
    assert_result("flatten2", &[1, 2, 3], &[int(b"axis", 1)], (&[1, 6], &numbers));
    assert_result("fill_zeros_like2", &[1, 2], &[int(b"dtype", 5)], (&[1, 2], &[0.0; 2]));
    let doubled = [
        attr(b"scale", &[&[16, 1, 4 << 3 | 5][..], &2.0_f32.to_le_bytes()].concat()),
        attr(b"align_corners", &[16, 6, 10 << 3, 0]),
        attr(b"interp_method", &[&[16, 2][..], &field(5, b"nearest")].concat()),
    ];
    let rows = [3.0, 3.0, 1.0, 1.0, 2.0, 2.0].repeat(2);
    assert_result("nearest_interp", &[1, 1, 1, 3], &doubled, (&[1, 1, 2, 6], &rows));
    assert_result("top_k", &[1, 6], &[int(b"k", 2)], (&[1, 2], &[6.0, 5.0]));
    let middle = [
        attr(b"out_h", &[16, 0, 3 << 3, 1]),
        attr(b"out_w", &[16, 0, 3 << 3, 5]),
        attr(b"align_corners", &[16, 6, 10 << 3, 1]),
        attr(b"interp_method", &[&[16, 2][..], &field(5, b"bilinear")].concat()),
    ];
    let between = [3.0, 2.0, 1.0, 1.5, 2.0];
    assert_result("bilinear_interp", &[1, 1, 1, 3], &middle, (&[1, 1, 1, 5], &between));
    let e = loaded("flatten2", &[1, 2, 3], &[int(b"axis", 2)]).unwrap_err().to_string();
    assert!(e.contains("`axis`"), "{e}");
}

#[test]
fn parameters_that_no_memory_holds_are_errors() {
    let kept = |dims: &[i64]| {
        let mut var = var(b"w", dims)[2..].to_vec();
        var.extend([24, 1]);
        block(0, 0, &[field(3, &var)])
    };
    let tensor = |length: i32, desc: &[u8]| [&[0; 16][..], &length.to_le_bytes(), desc].concat();
    // Float32 elements: 2^50 of them, more than can be counted, and of negative dimensions.
    let petabytes = [&[8, 5, 16][..], &[0x80; 7], &[2]].concat();
    let uncounted = [&[8, 5][..], &petabytes[2..].repeat(4)].concat();
    let negative = [&[8, 5, 16][..], &[0xff; 9], &[1]].concat();
    for (parameters, message) in [
        (tensor(petabytes.len() as i32, &petabytes), "but the file ends after 0"),
        (tensor(uncounted.len() as i32, &uncounted), "is too large"),
        (tensor(negative.len() as i32, &negative), "is not a shape"),
        (tensor(i32::MAX, &petabytes), "but the file ends after"),
        (tensor(-1, &petabytes), "a message of -1 bytes"),
        ([&[0; 4][..], &[0xff; 8]].concat(), "LoD levels"),
    ] {
        let e = autobwd_paddle::from_bytes(&kept(&[-1]), Some(&parameters), None).unwrap_err().to_string();
        assert!(e.contains(message), "{e}");
    }
}

#[test]
fn parameters_of_a_training_program_are_still_trained_after_saving() -> Result<()> {
    let model = autobwd_paddle::load(models().join("training"))?;
    let [program, parameters, infos] = autobwd_paddle::to_bytes(&model)?;
    let again = autobwd_paddle::from_bytes(&program, Some(&parameters), Some(&infos))?;
    let frozen = |model: &Model| {
        let parameters = model.program.root().vars.iter().filter(|(_, desc)| desc.parameter);
        parameters.map(|(_, desc)| desc.stop_gradient).collect::<Vec<_>>()
    };
    assert_eq!(frozen(&again), frozen(&model));
    assert!(frozen(&model).contains(&false));
    Ok(())
}
