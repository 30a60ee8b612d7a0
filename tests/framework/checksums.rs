//! Checksums of checkpoints, weights and programs: no damaged byte is read.

use std::{fs, path::Path};

use autobwd::{
    Attr, Builder, DType, ErrorKind, Executor, Program, Result, Scope, Tensor,
    exec::Checkpoint,
    tensor::{TensorReader, load_tensors, save_tensors},
};
use autobwd_ops::{
    Math,
    nn::Linear,
    optim::{Adam, Optimizer},
};
use autobwd_tests::checksum::without_checksum;

fn model() -> Result<Builder> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 2]);
    let loss = Linear::builder(&net, 2, 3).build().forward(&x).square().mean();
    Adam::new(0.01).minimize(&loss)?.complete()?;
    Ok(net)
}

fn started(net: &Builder) -> Result<Scope> {
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(scope)
}

/// Changes every byte of a file in three ways, one at a time: `load` must refuse each.
fn every_damaged_byte_is_refused<T>(path: &Path, load: impl Fn(&Path) -> Result<T>) {
    let bytes = fs::read(path).unwrap();
    assert!(load(path).is_ok());
    for at in 0..bytes.len() {
        for bit in [1, 0x20, 0x80] {
            let mut damaged = bytes.clone();
            damaged[at] ^= bit;
            fs::write(path, &damaged).unwrap();
            let Err(e) = load(path) else {
                panic!("byte {at} of {} with bit {bit:x} is read", String::from_utf8_lossy(&bytes));
            };
            assert!(e.to_string().contains(&path.display().to_string()), "{e}");
        }
    }
    fs::write(path, &bytes).unwrap();
    assert!(load(path).is_ok());
}

#[test]
fn no_damaged_byte_of_a_checkpoint_is_read() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.checkpoint");
    let net = model()?;
    let program = net.program()?;
    Checkpoint::new(3).with_note("data", "{\"a\": 1}").save(&path, &program, &started(&net)?)?;
    every_damaged_byte_is_refused(&path, |path| {
        let mut scope = Scope::new();
        let loaded = Checkpoint::load(path, &program, &mut scope);
        assert!(loaded.is_ok() || scope.is_empty());
        loaded
    });
    every_damaged_byte_is_refused(&path, |path| Scope::new().load(path));
    Ok(())
}

#[test]
fn tensors_are_read_one_by_one_and_damage_is_the_last_item() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let names = ["c", "b", "a"];
    let tensors = [
        Tensor::from_vec([2], vec![1_i64, 2])?,
        Tensor::from_vec([2, 1], vec![0.5_f32, 0.25])?,
        Tensor::zeros(DType::BF16, &[0, 3])?,
    ];
    save_tensors(&path, names.into_iter().zip(&tensors))?;
    let mut reader = TensorReader::open(&path)?;
    let metas: Vec<String> =
        reader.metas().map(|(name, meta)| format!("{name} {} {}", meta.dtype, meta.dims)).collect();
    assert_eq!(metas, ["c int64 [2]", "b float32 [2, 1]", "a bfloat16 [0, 3]"]);
    for (name, tensor) in names.into_iter().zip(&tensors) {
        assert_eq!(reader.next().unwrap()?, (name.to_string(), tensor.clone()));
    }
    assert!(reader.next().is_none() && reader.next().is_none());

    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let mut reader = TensorReader::open(&path)?;
    assert_eq!(reader.by_ref().take(3).filter(|item| item.is_ok()).count(), 3);
    let error = reader.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("not the file that was saved: its checksum is `xxh3:"), "{error}");
    assert!(reader.next().is_none());
    Ok(())
}

#[test]
fn no_damaged_byte_of_a_program_is_read() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program.json");
    let net = Builder::new();
    (net.input("x", DType::F32, &[-1, 2]) * 1e-7 + 0.1).tanh();
    net.program()?.save(&path)?;
    every_damaged_byte_is_refused(&path, |path| Program::load(path));
    let json = fs::read_to_string(&path).unwrap();
    let e = Program::load({
        fs::write(&path, json.replace("tanh_0", "tanh_1")).unwrap();
        &path
    });
    let e = e.unwrap_err().to_string();
    assert!(e.contains("not the program that was saved: its checksum is `xxh3:"), "{e}");
    assert!(e.ends_with("if it was edited on purpose, remove the entry `checksum`"), "{e}");
    Ok(())
}

#[test]
fn other_white_space_and_other_checksums_are_no_damage() -> Result<()> {
    let net = Builder::new();
    net.input("x", DType::F32, &[-1, 2]).tanh();
    let mut program = net.program()?.clone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program.json");
    // White space within text counts; text that looks like a checksum is none.
    program.root_mut().ops[0].attrs.set("note", Attr::Str("a b\\\" c".into()));
    program.root_mut().ops[0].attrs.set("zebra", Attr::Str("xxh3:0123456789abcdef".into()));
    program.save(&path)?;
    let saved = fs::read_to_string(&path).unwrap();
    let spaced = saved.replace("},{", "},\n\t {").replace(",\"checksum\":", " ,\r\n \"checksum\" : ");
    assert_ne!(spaced, saved);
    assert_eq!(Program::from_json(&format!(" {spaced}\n"))?.to_json(), program.to_json());
    let e = Program::from_json(&saved.replace("a b", "ab")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Format);
    assert_eq!(Program::from_json(&program.to_json())?.to_json(), program.to_json());
    Ok(())
}

#[test]
fn files_without_a_checksum_are_read() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.checkpoint");
    let net = model()?;
    let scope = started(&net)?;
    Checkpoint::new(3).save(&path, &net.program()?, &scope)?;
    fs::write(&path, without_checksum(fs::read(&path).unwrap())).unwrap();
    assert_eq!(Checkpoint::load(&path, &net.program()?, &mut Scope::new())?.step(), 3);
    assert_eq!(load_tensors(&path)?.len(), scope.len());
    Ok(())
}

#[test]
fn other_programs_read_files_with_a_checksum() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let (w, k) = (Tensor::from_vec([3], vec![1.0_f32, 2.0, 3.0])?, Tensor::from_vec([1], vec![7_i64])?);
    save_tensors(&path, [("w", &w), ("k", &k)])?;
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort();
    assert_eq!(names, ["k", "w"]);
    assert_eq!(file.tensor("w").unwrap().data(), w.bytes());
    assert_eq!(file.tensor("k").unwrap().shape(), [1]);
    Ok(())
}
