//! Checkpoints: what they hold, which files are refused and why, and the fingerprints of programs.

use std::{fs, path::Path};

use autobwd::{
    Attr, Builder, DType, Dims, ErrorKind, Executor, Program, Result, Scope, Tensor, Var,
    exec::{ARITHMETIC_VERSION, Checkpoint},
    program::{OpDesc, Origin, ProgramSnapshot, VarKind},
};
use autobwd_ops::{
    Math,
    nn::{BatchNorm, Dropout, Linear},
    optim::{Adam, Momentum, Optimizer, Sgd},
};
use autobwd_tests::checksum::without_checksum;

/// A classifier with random masks, running statistics and an optimizer with state.
fn model(units: usize, optimizer: &dyn Fn(&autobwd::Expr) -> Result<()>) -> Result<Builder> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 4]);
    let hidden = Linear::builder(&net, 4, units).build().forward(&x).tanh();
    let hidden =
        Dropout::new(&net, 0.3, 1).forward(&BatchNorm::builder(&net, units).build().forward(&hidden));
    let loss = Linear::builder(&net, units, 1).build().forward(&hidden).square().mean();
    optimizer(&loss)?;
    Ok(net)
}

fn adam(loss: &autobwd::Expr) -> Result<()> {
    Adam::new(0.01).minimize(loss)?.complete().map(drop)
}

fn started(net: &Builder) -> Result<Scope> {
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(scope)
}

fn steps(
    program: &ProgramSnapshot,
    scope: &mut Scope,
    threads: usize,
    range: std::ops::Range<usize>,
) -> Result<()> {
    let mut executor = Executor::with_threads(threads);
    for step in range {
        let x: Vec<f32> = (0..300 * 4).map(|k| ((k * 7 + step) % 13) as f32 / 13.0).collect();
        executor.run(program, scope, &[("x", &Tensor::from_vec([300, 4], x)?)], &[])?;
    }
    Ok(())
}

fn bits(scope: &Scope) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> =
        scope.iter().map(|(name, value)| (name.to_string(), value.bytes().to_vec())).collect();
    all.sort();
    all
}

#[test]
fn resumed_run_is_bit_identical_on_any_threads() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.checkpoint");
    let (net, mut unbroken) = (model(40, &adam)?, Scope::new());
    let program = net.program()?;
    Executor::new().run(&net.startup().program()?, &mut unbroken, &[], &[])?;
    for (at, threads) in [(0, 1), (1, 2), (5, 3)] {
        let mut scope = started(&net)?;
        steps(&program, &mut scope, threads, 0..at)?;
        Checkpoint::new(at as u64).save(&path, &program, &scope)?;
        // Another process describes the model again.
        let again = model(40, &adam)?;
        let program = again.program()?;
        let mut resumed = Scope::new();
        assert_eq!(Checkpoint::load(&path, &program, &mut resumed)?.step(), at as u64);
        steps(&program, &mut resumed, 4 - threads, at..10)?;
        if at == 0 {
            steps(&program, &mut unbroken, 1, 0..10)?;
        }
        assert_eq!(bits(&resumed), bits(&unbroken), "after {at} steps");
        // A prepared session keeps its memory.
        Checkpoint::load(&path, &program, &mut resumed)?;
        steps(&program, &mut resumed, 1, at..10)?;
        assert_eq!(bits(&resumed), bits(&unbroken));
    }
    Ok(())
}

#[test]
fn equal_states_give_equal_files() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let net = model(8, &adam)?;
    let scope = started(&net)?;
    let notes =
        || Checkpoint::new(3).with_note("data", "{\"a\": 1}").with_note("b", "").with_note("c", "ü\n");
    notes().save(&a, &net.program()?, &scope)?;
    notes().with_note("b", "1").with_note("b", "").save(&b, &net.program()?, &scope)?;
    assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
    let loaded = Checkpoint::load(&a, &net.program()?, &mut Scope::new())?;
    assert_eq!(loaded, notes());
    assert_eq!(loaded.note("c")?, "ü\n");
    assert_eq!(loaded.note("d").unwrap_err().to_string(), "the checkpoint has no note `d`");
    // Its values are the values of a usual file.
    let mut values = Scope::new();
    values.load(&a)?;
    assert_eq!(bits(&values), bits(&scope));
    Ok(())
}

/// The message, without the folder.
fn refused(path: &Path, program: &Program) -> (ErrorKind, String) {
    let mut scope = Scope::new();
    let e = Checkpoint::load(path, &program, &mut scope).unwrap_err();
    assert!(scope.is_empty(), "a refused checkpoint sets no value");
    (e.kind(), e.to_string().replace(&format!("{}/", path.parent().unwrap().display()), ""))
}

#[test]
fn truncated_files_are_refused() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let net = model(8, &adam)?;
    Checkpoint::new(1).save(&path, &net.program()?, &started(&net)?)?;
    let bytes = fs::read(&path).unwrap();
    for twentieth in 0..20 {
        fs::write(&path, &bytes[..bytes.len() * twentieth / 20]).unwrap();
        let (kind, text) = refused(&path, &*net.program()?);
        assert!(
            kind == ErrorKind::Format && text.starts_with("`run`: not a complete safetensors file: "),
            "{text}"
        );
    }
    fs::write(&path, &bytes).unwrap();
    assert_eq!(Checkpoint::load(&path, &net.program()?, &mut Scope::new())?.step(), 1);
    fs::remove_file(&path).unwrap();
    let (kind, text) = refused(&path, &*net.program()?);
    assert!(kind == ErrorKind::Io && text.starts_with("cannot read `run`: "), "{text}");
    Ok(())
}

#[test]
fn files_without_a_checkpoint_are_refused() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let net = model(8, &adam)?;
    let scope = started(&net)?;
    scope.save(&path)?;
    let expected = "`run`: not a checkpoint: the file has values alone, which `Scope::load` reads";
    assert_eq!(refused(&path, &*net.program()?), (ErrorKind::Format, expected.into()));
    Checkpoint::new(1).save(&path, &net.program()?, &scope)?;
    let bytes = without_checksum(fs::read(&path).unwrap());
    let replaced = |from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        fs::write(&path, [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()).unwrap();
        refused(&path, &net.program().unwrap()).1
    };
    assert_eq!(
        replaced("\\\"version\\\":1", "\\\"version\\\":2"),
        "`run`: version 2 of the format; this autobwd reads version 1"
    );
    assert!(
        replaced("\\\"step\\\":1", "\\\"stop\\\":1")
            .starts_with("`run`: not a checkpoint: missing field `step`")
    );
    Ok(())
}

#[test]
fn checkpoint_of_another_arithmetic_loads_with_a_warning() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let net = model(8, &adam)?;
    let scope = started(&net)?;
    Checkpoint::new(1).save(&path, &net.program()?, &scope)?;
    let current = Checkpoint::load(&path, &net.program()?, &mut Scope::new())?;
    assert_eq!((current.arithmetic(), current.warning()), (Some(ARITHMETIC_VERSION), None));
    let bytes = without_checksum(fs::read(&path).unwrap());
    let written = format!("\\\"arithmetic\\\":{ARITHMETIC_VERSION}");
    let at = bytes.windows(written.len()).position(|window| window == written.as_bytes()).unwrap();
    // The same length, so that the offsets in the file stay right.
    let digit = |digit: &str| written.replace(&ARITHMETIC_VERSION.to_string(), digit);
    for (entry, version, said) in [
        (digit("0"), Some(0), "written with version 0 of the arithmetic, and this autobwd has version 2: "),
        (
            written.replace("arithmetic", "unknown___"),
            None,
            "written before arithmetic had versions, and this ",
        ),
    ] {
        fs::write(&path, [&bytes[..at], entry.as_bytes(), &bytes[at + entry.len()..]].concat()).unwrap();
        let mut loaded = Scope::new();
        let checkpoint = Checkpoint::load(&path, &net.program()?, &mut loaded)?;
        assert_eq!(checkpoint.arithmetic(), version);
        assert!(checkpoint.warning().unwrap().contains(said), "{:?}", checkpoint.warning());
        assert_eq!(bits(&loaded), bits(&scope));
        // Values that nothing has computed since then are still the values of the other version.
        checkpoint.save(&path, &net.program()?, &loaded)?;
        assert_eq!(Checkpoint::load(&path, &net.program()?, &mut Scope::new())?, checkpoint);
    }
    Ok(())
}

#[test]
fn checkpoints_of_other_programs_are_refused() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let net = model(8, &adam)?;
    Checkpoint::new(1).save(&path, &net.program()?, &started(&net)?)?;
    let refused = |net: Builder| {
        let (kind, text) = refused(&path, &net.program().unwrap());
        assert_eq!(kind, ErrorKind::Checkpoint);
        text.strip_prefix("`run`: a checkpoint of another program: ").unwrap().to_string()
    };
    assert_eq!(
        refused(model(9, &adam)?),
        "its parameter `linear_0.w` is float32 [4, 8], but float32 [4, 9] in this program"
    );
    let deeper = model(8, &|loss| {
        let scale = loss
            .builder()
            .parameter("scale", DType::F32, &[1], |w| autobwd_ops::Init::Constant(1.0).emit(w, 0));
        adam(&(loss * scale).mean())
    })?;
    assert_eq!(refused(deeper), "it has no parameter `scale`, float32 [1] in this program");
    let momentum = Momentum { rate: 0.01, momentum: 0.9, nesterov: false, lazy: false };
    let text = refused(model(8, &|loss| momentum.minimize(loss)?.complete().map(drop))?);
    assert!(text.starts_with("it has no variable `") && text.contains("velocity"), "{text}");
    let text = refused(model(8, &|loss| Sgd { rate: 0.01 }.minimize(loss)?.complete().map(drop))?);
    assert!(text.starts_with("it has `") && text.ends_with("`, which this program does not know"), "{text}");
    let text = refused(model(8, &|loss| adam(&(loss * 2.0)))?);
    assert_eq!(text, "it has the variables of this program, but other operators or attributes");
    Ok(())
}

#[test]
fn scope_without_parameters_is_not_saved() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let text =
        Checkpoint::new(0).save(&path, &model(8, &adam)?.program()?, &Scope::new()).unwrap_err().to_string();
    assert_eq!(
        text,
        "cannot save a checkpoint: the scope has no parameter `linear_0.w`; run the start-up program"
    );
    assert!(!path.exists());
    Ok(())
}

#[test]
fn unwritten_and_foreign_values_are_no_error() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let last = net.persistable("last", DType::F32, &[2], |x| autobwd_ops::Init::Constant(0.0).emit(x, 0));
    autobwd::emit(autobwd::operators::Assign { x: (&x).into(), out: (&last).into() }).out.check()?;
    let mut scope = Scope::new();
    scope.set("counter", Tensor::scalar(3_i64)?);
    Checkpoint::new(0).save(&path, &net.program()?, &scope)?;
    let mut resumed = Scope::new();
    Checkpoint::load(&path, &net.program()?, &mut resumed)?;
    assert_eq!(resumed.get("counter")?.item()?, 3.0);
    Ok(())
}

/// A program with attributes of all types, and two blocks.
fn varied() -> Program {
    let mut program = Program::new();
    let (x, y) = (program.var("x"), program.var("y"));
    let block = program.add_block(Some(autobwd::BlockId::ROOT), None);
    let root = program.root_mut();
    root.vars.insert(x, autobwd::VarDesc::data(DType::F32, Dims::from([2, 3])));
    root.vars.insert(y, autobwd::VarDesc::new(DType::F32, Dims::from([2, 3])));
    let attrs = [
        Attr::Bool(true),
        Attr::I32(1),
        Attr::I64(1),
        Attr::F32(1.0),
        Attr::F64(1.0),
        Attr::Str("a".into()),
        Attr::Bools(vec![true]),
        Attr::I32s(vec![1]),
        Attr::I64s(vec![1]),
        Attr::F32s(vec![1.0]),
        Attr::F64s(vec![1.0]),
        Attr::Strs(vec!["a".into(), "b".into()]),
        Attr::Block(block),
        Attr::Blocks(vec![block]),
    ];
    let mut op = OpDesc::new("f").input("X", [x]).output("Out", [y]);
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
    for (name, attr) in names.into_iter().zip(attrs) {
        op = op.attr(name, attr);
    }
    root.ops.push(op);
    program
}

#[test]
fn fingerprint_covers_all_that_a_program_computes() -> Result<()> {
    let find = |program: &mut Program, name: &str| program.var(name);
    let changes: [&dyn Fn(&mut Program); 17] = [
        &|p| p.root_mut().ops[0].ty = "g".into(),
        &|p| _ = p.root_mut().ops.pop(),
        &|p| {
            let op = p.root().ops[0].clone();
            p.root_mut().ops.push(op);
        },
        &|p| {
            let x = find(p, "x");
            p.root_mut().ops[0].inputs.set("X", [x, x]);
        },
        &|p| {
            let y = find(p, "y");
            p.root_mut().ops[0].inputs.set("X", [y]);
        },
        &|p| p.root_mut().ops[0].inputs.set("X", [Var::EMPTY]),
        &|p| {
            let x = find(p, "x");
            p.root_mut().ops[0].inputs = OpDesc::new("f").input("Y", [x]).inputs;
        },
        &|p| {
            let y = find(p, "y");
            p.root_mut().ops[0].outputs.set("Other", [y]);
        },
        &|p| p.root_mut().ops[0].attrs.remove("d"),
        &|p| {
            let y = find(p, "y");
            p.root_mut().vars.get_mut(&y).unwrap().dtype = DType::F64;
        },
        &|p| {
            let y = find(p, "y");
            p.root_mut().vars.get_mut(&y).unwrap().dims = Dims::from([3, 2]);
        },
        &|p| {
            let y = find(p, "y");
            p.root_mut().vars.get_mut(&y).unwrap().persistable = true;
        },
        &|p| {
            let y = find(p, "y");
            p.root_mut().vars.get_mut(&y).unwrap().stop_gradient = true;
        },
        &|p| {
            let y = find(p, "y");
            p.root_mut().vars.get_mut(&y).unwrap().parameter = true;
        },
        &|p| {
            let y = find(p, "y");
            p.root_mut().vars.get_mut(&y).unwrap().kind = VarKind::TensorArray;
        },
        &|p| {
            let z = find(p, "z");
            p.root_mut().vars.insert(z, autobwd::VarDesc::new(DType::F32, Dims::from([2, 3])));
        },
        &|p| _ = p.add_block(Some(autobwd::BlockId::ROOT), None),
    ];
    let mut seen = std::collections::BTreeSet::from([varied().fingerprint()]);
    for (k, change) in changes.iter().enumerate() {
        let mut program = varied();
        change(&mut program);
        assert!(seen.insert(program.fingerprint()), "change {k}");
    }
    let attrs = varied().root().ops[0].attrs.clone();
    for (name, _) in attrs.iter() {
        for (other, attr) in attrs.iter().filter(|(other, _)| *other != name) {
            let mut program = varied();
            program.root_mut().ops[0].attrs.set(name, attr.clone());
            assert!(seen.insert(program.fingerprint()), "attribute {name} like {other}");
        }
    }
    // Where an operator comes from does not count, and the value is the same on every machine.
    let mut program = varied();
    program.root_mut().ops[0].origin = Origin::Seed;
    assert_eq!(program.fingerprint(), varied().fingerprint());
    assert_eq!(varied().fingerprint(), 18_041_134_619_570_978_870);
    Ok(())
}
