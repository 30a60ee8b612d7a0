//! User errors: each has an error of its own, and none panics.

use std::{error::Error as _, io};

use autobwd::{Builder, DType, Error, ErrorKind, Executor, Feed, New, Result, Scope, Tensor, VarDesc, emit};
use autobwd_ops::{Init, Math, activation::Scale, update};

fn net() -> (Builder, autobwd::Expr, autobwd::Expr) {
    let net = Builder::new();
    let x = net.input("images", DType::F32, &[-1, 4]);
    let w = net.parameter("weights", DType::F32, &[4, 2], |w| Init::Constant(1.0).emit(w, 0));
    (net, x, w)
}

#[track_caller]
fn expect<T>(outcome: Result<T>, kind: ErrorKind, messages: &[&str]) -> Error {
    let e = match outcome {
        Ok(_) => panic!("accepted; expected {messages:?}"),
        Err(e) => e,
    };
    assert_eq!(e.kind(), kind, "{e}");
    for message in messages {
        assert!(e.to_string().contains(message), "{e}\nlacks\n{message}");
    }
    e
}

#[test]
fn shape_mismatches_name_slots_variables_shapes_and_line() {
    let (net, x, w) = net();
    let (product, line) = (w.matmul(&w), line!());
    let e = expect(
        product.check(),
        ErrorKind::Shape,
        &["operator `matmul_v2`", "X = `weights`, Y = `weights`", "[4, 2]"],
    );
    assert!(e.op().is_some_and(|op| op.to_string().contains(&format!("user_errors.rs:{line}"))), "{e}");
    let labels = net.input("labels", DType::I64, &[-1, 1]);
    expect((&x + &labels).check(), ErrorKind::DType, &["`Y`: dtype int64 does not match float32 of `X`"]);
    expect(
        labels.relu().check(),
        ErrorKind::Shape,
        &["`X`: floating point numbers are needed, not int64 [-1, 1]"],
    );
    expect(x.softmax(5).check(), ErrorKind::Attr, &["attribute `axis` = 5", "has no such axis"]);
    expect(x.top_k(0).1.check(), ErrorKind::Attr, &["attribute `k`: must be at least 1, is 0"]);
    expect(x.reshape(&[-1, -1]).check(), ErrorKind::Attr, &["shape"]);
    expect(
        x.split(&[3, 3], 1)[1].check(),
        ErrorKind::Shape,
        &["`X`: a length of 6 is needed, not float32 [-1, 4]"],
    );
    expect(x.transpose(&[0, 0]).check(), ErrorKind::Attr, &["axis"]);
    let bad = emit(Scale { x: New, out: New, scale: 1.0, bias: 0.0, bias_after_scale: true });
    expect(
        bad.out.check(),
        ErrorKind::Slot,
        &["operator `scale`, input `X`: an input must be an existing variable, not `New`"],
    );
    // The program reports the first error, whatever follows it.
    assert_eq!(net.program().unwrap_err().to_string(), e.to_string());
}

#[test]
fn hyperparameters_are_checked_when_described() {
    let (net, x, _) = net();
    let one = net.persistable("one", DType::F32, &[1], |w| Init::Constant(1.0).emit(w, 0));
    let adam = update::AdamOp {
        param: (&x).into(),
        grad: (&x).into(),
        learning_rate: (&one).into(),
        moment1: (&x).into(),
        moment2: (&x).into(),
        beta1_pow: (&one).into(),
        beta2_pow: (&one).into(),
        skip_update: None,
        param_out: New,
        moment1_out: New,
        moment2_out: New,
        beta1_pow_out: New,
        beta2_pow_out: New,
        beta1: f32::NAN,
        beta2: 0.999,
        epsilon: 1e-8,
        lazy_mode: false,
    };
    expect(
        emit(adam).param_out.check(),
        ErrorKind::Attr,
        &["operator `adam`", "attribute `beta1`", "is NaN"],
    );
}

#[test]
fn names_are_checked() {
    let (net, x, _) = net();
    expect(
        net.input("images", DType::F32, &[1]).check(),
        ErrorKind::UnknownVar,
        &["has a variable `images` already"],
    );
    expect(
        net.input("a b", DType::F32, &[1]).check(),
        ErrorKind::UnknownVar,
        &["\"a b\" cannot be a variable"],
    );
    expect(net.input("w@GRAD", DType::F32, &[1]).check(), ErrorKind::UnknownVar, &["cannot be a variable"]);
    expect(
        net.input("n", DType::F32, &[-2]).check(),
        ErrorKind::Shape,
        &["a dimension is 0 or more, or -1 for unknown; -2"],
    );
    expect(
        net.expr("imags").check(),
        ErrorKind::UnknownVar,
        &["no variable `imags`; did you mean `images`?"],
    );
    let other = Builder::new();
    let y = other.input("y", DType::F32, &[4]);
    expect((&x + &y).check(), ErrorKind::UnknownVar, &["expressions of two programs"]);
}

fn prepared() -> (Builder, Scope, String) {
    let (net, x, w) = net();
    let out = x.matmul(&w).name();
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program().unwrap(), &mut scope, &[], &[]).unwrap();
    (net, scope, out)
}

#[test]
fn feeds_and_fetches_are_checked() {
    let (net, mut scope, out) = prepared();
    let program = net.program().unwrap();
    let mut executor = Executor::new();
    let x = Tensor::zeros(DType::F32, &[3, 4]).unwrap();
    let mut run =
        |feeds: &[(&str, &dyn Feed)], fetch: &str| executor.run(&program, &mut scope, feeds, &[fetch]);
    assert!(run(&[("images", &x)], &out).is_ok());
    expect(
        run(&[], &out),
        ErrorKind::Feed,
        &["`images` is read, but neither fed nor written before; feed it", "operator `matmul_v2`"],
    );
    expect(run(&[("image", &x)], &out), ErrorKind::Feed, &["no variable `image`; did you mean `images`?"]);
    expect(run(&[("images", &x), ("images", &x)], &out), ErrorKind::Feed, &["it is fed twice"]);
    expect(
        run(&[("images", &x), ("weights", &x)], &out),
        ErrorKind::Feed,
        &["`weights` cannot be fed: it is persistable"],
    );
    let wrong = Tensor::zeros(DType::F64, &[3, 4]).unwrap();
    let message = "`images` cannot be fed: the program declares float32, but the tensor is float64";
    expect(run(&[("images", &wrong)], &out), ErrorKind::Feed, &[message]);
    let wrong = Tensor::zeros(DType::F32, &[4, 3]).unwrap();
    let message =
        "`images` cannot be fed: the program declares shape [-1, 4], but the tensor has shape [4, 3]";
    expect(run(&[("images", &wrong)], &out), ErrorKind::Feed, &[message]);
    expect(
        run(&[("images", &x)], "logits"),
        ErrorKind::Fetch,
        &["cannot fetch: the program has no variable `logits`"],
    );
}

#[test]
fn scope_is_checked() {
    let (net, mut scope, out) = prepared();
    let program = net.program().unwrap();
    let x = Tensor::zeros(DType::F32, &[3, 4]).unwrap();
    let mut executor = Executor::new();
    let run = |scope: &mut Scope, executor: &mut Executor| {
        executor.run(&program, scope, &[("images", &x)], &[&out])
    };
    let e = run(&mut Scope::new(), &mut executor);
    expect(e, ErrorKind::NoValue, &["`weights` has no value in the scope; run the start-up program"]);
    let mut session = executor.prepare(&program, &mut scope, &[("images", x.meta())], &[&out]).unwrap();
    expect(
        session.run(&mut scope),
        ErrorKind::Feed,
        &["`images` has not been fed since the last run; feed it before every run"],
    );
    session.feed("images", &x).unwrap();
    expect(session.run(&mut scope.clone()), ErrorKind::NoValue, &["prepared for another scope"]);
    expect(session.fetch(&out), ErrorKind::Fetch, &["has not run yet"]);
    scope.set("weights", Tensor::zeros(DType::F32, &[5, 2]).unwrap());
    expect(session.run(&mut scope), ErrorKind::NoValue, &["has changed its shape"]);
    expect(
        run(&mut scope, &mut executor),
        ErrorKind::Shape,
        &["`weights` is float32 [4, 2], but the scope holds"],
    );
    expect(scope.get("weight"), ErrorKind::NoValue, &["the scope has no `weight`; did you mean `weights`?"]);
}

#[test]
fn data_that_an_operator_cannot_take_is_named() {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 3]);
    let y = net.input("y", DType::I64, &[-1, 1]);
    let loss = x.cross_entropy(&y).name();
    let x = Tensor::zeros(DType::F32, &[2, 3]).unwrap();
    let y = Tensor::from_vec([2, 1], vec![0_i64, 3]).unwrap();
    let outcome =
        Executor::new().run(&net.program().unwrap(), &mut Scope::new(), &[("x", &x), ("y", &y)], &[&loss]);
    expect(
        outcome,
        ErrorKind::Data,
        &["`softmax_with_cross_entropy`", "Label = `y`", "`Label`: class index 3 is not within 0..3"],
    );
}

#[test]
fn programs_edited_into_nonsense_are_refused_when_planned() {
    let (net, mut scope, out) = prepared();
    let x = Tensor::zeros(DType::F32, &[3, 4]).unwrap();
    let mut refused = |edit: &dyn Fn(&mut autobwd::Program), kind: ErrorKind, message: &str| {
        let mut program = net.program().unwrap().clone();
        edit(&mut program);
        let outcome = Executor::new().run(&program, &mut scope, &[("images", &x)], &[&out]);
        expect(outcome, kind, &[message]);
    };
    refused(
        &|p| p.root_mut().ops[0].ty = "no_such_op".into(),
        ErrorKind::UnknownOp,
        "operator `no_such_op` is not among",
    );
    refused(
        &|p| p.root_mut().ops[0].inputs = Default::default(),
        ErrorKind::Slot,
        "input `X` takes exactly one variable, got 0",
    );
    let undeclare = |p: &mut autobwd::Program| {
        let w = p.find("weights").unwrap();
        p.root_mut().vars.remove(&w);
    };
    refused(&undeclare, ErrorKind::UnknownVar, "`weights` is not declared");
    let retype = |p: &mut autobwd::Program| {
        let out = p.root().ops[0].writes().next().unwrap();
        p.root_mut().vars.insert(out, VarDesc::new(DType::I64, [1].into()));
    };
    refused(&retype, ErrorKind::Shape, "`Out` is float32 [-1, 2], but `matmul_v2_0` is declared int64 [1]");
    let foreign = |p: &mut autobwd::Program| {
        let mut other = autobwd::Program::new();
        let var = (0..100).map(|i| other.var(&format!("v{i}"))).last().unwrap();
        p.root_mut().ops[0].inputs.set("X", [var]);
    };
    refused(&foreign, ErrorKind::UnknownVar, "block 0, operator 0: a variable of another program");
    let huge = |p: &mut autobwd::Program| {
        let x = p.fresh("huge");
        p.root_mut().vars.insert(x, autobwd::VarDesc::new(DType::F32, [i64::MAX as usize, 4].into()));
        p.root_mut().ops[0].inputs.set("X", [x]);
        let fill = autobwd::OpDesc::new("fill_constant").output("Out", [x]);
        let shape = autobwd::Attr::I64s(vec![i64::MAX, 4]);
        p.root_mut().ops.insert(0, fill.attr("shape", shape).attr("dtype", autobwd::Attr::I32(5)));
    };
    refused(&huge, ErrorKind::Shape, "is unknown or too large");
}

#[test]
fn files_that_are_not_what_they_should_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let mut scope = Scope::new();
    scope.set("w", Tensor::zeros(DType::F32, &[100]).unwrap());
    scope.save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for cut in [0, 3, 8, 40, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let mut loaded = Scope::new();
        expect(
            loaded.load(&path),
            ErrorKind::Format,
            &["weights.safetensors", "not a complete safetensors file"],
        );
        assert!(loaded.is_empty());
    }
    let missing = scope.load(folder.path().join("none"));
    let source = missing.as_ref().unwrap_err().source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::NotFound));
    expect(missing, ErrorKind::Io, &["cannot read", "none"]);
    let nowhere = folder.path().join("no/such/folder/w.safetensors");
    expect(scope.save(&nowhere), ErrorKind::Io, &["cannot write", "no/such/folder"]);
}
