//! Representative errors, complete, as a user sees them.

use std::{fs, slice::from_ref};

use autobwd::{
    Arg, Attr, Backward, BlockId, Builder, DType, Executor, Expr, Feed, Meta, New, OpDesc, OpInfoMap,
    Program, Result, Scope, Tensor, VarDesc, append_backward,
    backward::{GradientOptions, Recompute, explain},
    emit,
    exec::Checkpoint,
    gradients,
    net::{NetOp, Operator, RnnOp, backward},
    tape::{Function, GradOptions, apply, grad, missing, trace},
    verify,
};
use autobwd_data::{Loader, TensorDataset};
use autobwd_ops::{
    Init, Math,
    activation::Square,
    array::{ReadFromArray, WriteToArray},
    control::{cond, static_rnn, while_loop},
    nn::MultiHeadAttention,
    optim::{Optimizer, Sgd},
};

use crate::support::{
    compare,
    control_flow::number,
    derivatives::parameter,
    nets::{net as tree, tanh},
    operators::Opaque,
};

/// The text of the file.
#[derive(Default)]
struct Rendered(String);

impl Rendered {
    fn part(&mut self, title: &str) {
        self.0 += &format!("# {title}\n\n");
    }

    /// Adds the error of a case, without line numbers.
    #[track_caller]
    fn case<T>(&mut self, title: &str, outcome: Result<T>) {
        let Err(e) = outcome else { panic!("no error: {title}") };
        self.text(title, &e.to_string());
    }

    fn text(&mut self, title: &str, text: &str) {
        let mut pieces = text.split(".rs:");
        let mut lineless = pieces.next().unwrap_or_default().to_string();
        for piece in pieces {
            lineless += ".rs:_";
            lineless += piece.trim_start_matches(|c: char| c.is_ascii_digit());
        }
        let lineless = lineless.replace("tests/framework/messages/rendered.rs", "model.rs");
        self.0 += &format!("## {title}\n{lineless}\n\n");
    }
}

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(DType::F32, dims).unwrap()
}

/// Images, weights and their product, with values in the scope.
fn model() -> Result<(Builder, Expr, Expr, Expr, Scope)> {
    let net = Builder::new();
    let x = net.input("images", DType::F32, &[-1, 4]);
    let w = net.parameter("weights", DType::F32, &[4, 2], |w| Init::Constant(1.0).emit(w, 0));
    let out = x.matmul(&w);
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok((net, x, w, out, scope))
}

fn descriptions(all: &mut Rendered) -> Result<()> {
    all.part("Describing a model");
    let (net, x, w, ..) = model()?;
    let labels = net.input("labels", DType::I64, &[-1, 1]);
    all.case("shapes", w.matmul(&w).check());
    all.case("shapes that do not broadcast", (&x + net.input("bias", DType::F32, &[3])).check());
    all.case("dtypes of two inputs", (&x + &labels).check());
    all.case("a dtype that an operator does not accept", labels.relu().check());
    all.case("the quotient of an integer", (&labels / 2.0).check());
    all.case("an axis", x.softmax(5).check());
    all.case("an attribute out of bounds", x.top_k(0).1.check());
    all.case("an input that does not exist", emit(Square { x: New, out: New }).out.check());
    all.case("two programs", (&x + Builder::new().input("y", DType::F32, &[4])).check());
    all.case("an unknown variable", net.expr("imags").check());
    all.case("a name that is taken", net.input("images", DType::F32, &[1]).check());
    all.case("a name that is not allowed", net.input("w@GRAD", DType::F32, &[1]).check());
    let attention = MultiHeadAttention::builder(&net, 10, 4).build();
    all.case("a layer", attention.forward(&net.input("sequence", DType::F32, &[1, 3, 10])).check());
    Ok(())
}

fn operators(all: &mut Rendered) -> Result<()> {
    all.part("Programs that were edited or read");
    let (net, .., out, mut scope) = model()?;
    let mut edited = |title: &str, edit: &dyn Fn(&mut Program)| -> Result<()> {
        let mut program = (*net.program()?).clone();
        edit(&mut program);
        let feeds: [(&str, &dyn Feed); 1] = [("images", &zeros(&[3, 4]))];
        all.case(title, Executor::with_threads(1).run(&program, &mut scope, &feeds, &[&out.name()]));
        Ok(())
    };
    edited("an unknown operator", &|p| p.root_mut().ops[0].ty = "matmul_v3".into())?;
    edited("a missing input", &|p| p.root_mut().ops[0].inputs = Default::default())?;
    edited("an unknown slot", &|p| {
        let w = p.find("weights").unwrap();
        p.root_mut().ops[0].inputs.set("Z", [w]);
    })?;
    edited("an unknown attribute", &|p| p.root_mut().ops[0].attrs.set("trans_z", Attr::Bool(true)))?;
    edited("an attribute of another type", &|p| p.root_mut().ops[0].attrs.set("trans_x", Attr::F32(1.0)))?;
    edited("a variable that is not declared", &|p| {
        let w = p.find("weights").unwrap();
        p.root_mut().vars.remove(&w);
    })?;
    edited("a result that is declared otherwise", &|p| {
        let out = p.root().ops[0].writes().next().unwrap();
        p.root_mut().vars.insert(out, VarDesc::new(DType::I64, [1].into()));
    })?;
    edited("a block within itself", &|p| {
        let block = Attr::Block(BlockId::ROOT);
        p.root_mut().ops.push(OpDesc::new("while").attr("sub_block", block));
    })?;
    let none = Executor::with_threads(1).with_ops(OpInfoMap::default());
    all.case("no operators", none.plan(&*net.program()?, &scope, &[], &[]));

    let mut program = (*net.program()?).clone();
    let (w, a) = (program.find("weights").unwrap(), program.var("a"));
    let twice = OpDesc::new("tanhh").input("X", [w]).output("Out", [a]);
    program.root_mut().ops.extend([twice, OpDesc::new("tanh").input("X", [a])]);
    all.case("several faults", verify(&program));
    all.case("a part of a program", Program::from_json("{\"blocks\": ["));
    let json = net.program()?.to_json();
    all.case(
        "a parent that does not exist",
        Program::from_json(&json.replace("\"parent_idx\":-1", "\"parent_idx\":3")),
    );
    Ok(())
}

fn derivatives(all: &mut Rendered) -> Result<()> {
    all.part("Gradients");
    let with = |net: &Builder, loss: &Expr, backward: &Backward<'_>| {
        append_backward(&mut (*net.program()?).clone(), &loss.name(), backward)
    };
    let net = Builder::new();
    let (w, b) = (parameter(&net, "w", &[3]), parameter(&net, "b", &[3]));
    net.input("x", DType::F64, &[3]);
    let h = w.tanh();
    let (loss, none) = ((&h + b.detach()).mean(), Backward::default());
    all.case("nothing to train", Sgd { rate: 0.1 }.minimize(&w.argmax(0).cast(DType::F64).mean()));
    all.case("a parameter without gradient", Sgd { rate: 0.1 }.minimize(&loss)?.complete());
    let asked = |names| Backward { parameters: Some(names), ..Backward::default() };
    all.case("a gradient past `detach`", with(&net, &loss, &asked(&["b"])));
    all.case("a gradient of a variable that is not used", with(&net, &h.mean(), &asked(&["b"])));
    let no_grad = Backward { no_grad: &["w"], ..asked(&["w"]) };
    all.case("a gradient that is excluded", with(&net, &loss, &no_grad));
    all.case("an unknown name", with(&net, &loss, &Backward { no_grad: &["v"], ..Backward::default() }));
    all.case("a loss of several elements", with(&net, &h, &none));
    all.case("a loss that is not computed", with(&net, &net.input("y", DType::F64, &[1]), &none));
    let opaque = emit(Opaque { x: (&w).into(), out: New }).out;
    all.case("an operator without gradient", with(&net, &opaque.mean(), &none));
    let mut program = (*net.program()?).clone();
    let seed = GradientOptions { target_gradients: Some(&[Some("x")]), ..Default::default() };
    all.case("a target gradient of another shape", gradients(&mut program, &[&loss.name()], &["w"], &seed));
    all.case("the story of a gradient that does not exist", explain(&program, "v@GRAD"));

    let checkpoints = |recompute| Backward { recompute, ..Backward::default() };
    all.case("an unknown checkpoint", with(&net, &loss, &checkpoints(Recompute::Named(&["tanh_7"]))));
    all.case("a checkpoint that is an input", with(&net, &loss, &checkpoints(Recompute::Without(&["w"]))));
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[-1, 3]);
    let long = (0..4).fold(&x * parameter(&net, "w", &[3]), |x, _| x.tanh().exp()).mean();
    let feeds = [("x", Meta::new(DType::F64, [8, 3]))];
    all.case("a budget that is too small", with(&net, &long, &checkpoints(Recompute::auto(8, &feeds))));

    let net = Builder::new();
    let h = parameter(&net, "w", &[3]).tanh();
    let end = h.sum(&[]).abs() * 40.0;
    let vars = [h.square()];
    let last = while_loop(&vars, |v| v[0].sum(&[]).less_than(&end), |v| vec![&v[0] + h.square()]);
    emit(Square { x: (&h).into(), out: (&h).into() }).out.check()?;
    let loss = last[0].sum(&[]) + h.sum(&[]);
    all.case("a value that is overwritten", with(&net, &loss, &none));
    Ok(())
}

fn runs(all: &mut Rendered) -> Result<()> {
    all.part("Running");
    let (net, .., out, mut scope) = model()?;
    let (program, out) = (net.program()?, out.name());
    let x = zeros(&[3, 4]);
    let mut executor = Executor::with_threads(1);
    let mut run = |title: &str, feeds: &[(&str, &dyn Feed)], fetch: &str| {
        all.case(title, executor.run(&program, &mut scope, feeds, &[fetch]));
    };
    run("no feed", &[], &out);
    run("an unknown feed", &[("image", &x)], &out);
    run("a feed twice", &[("images", &x), ("images", &x)], &out);
    run("a feed of a parameter", &[("images", &x), ("weights", &x)], &out);
    run("a feed of another dtype", &[("images", &Tensor::zeros(DType::F64, &[3, 4])?)], &out);
    run("a feed of another shape", &[("images", &zeros(&[4, 3]))], &out);
    run("an unknown fetch", &[("images", &x)], "logits");
    let mut run = |title: &str, scope: &mut Scope| {
        all.case(title, executor.run(&program, scope, &[("images", &x)], &[&out]));
    };
    run("no values of parameters", &mut Scope::new());
    let mut other = Scope::new();
    other.set("weights", zeros(&[5, 2]));
    run("a parameter of another shape", &mut other);
    all.case("an unknown value", other.get("weight"));

    let mut session = executor.prepare(&program, &mut scope, &[("images", x.meta())], &[&out])?;
    all.case("a session without feeds", session.run(&mut scope));
    all.case("a session that has not run", session.fetch(&out));
    all.case("a session: a feed of another shape", session.feed("images", &zeros(&[2, 4])));
    all.case("a session: an unknown feed", session.feed("image", &x));
    session.feed("images", &x)?;
    all.case("a session with another scope", session.run(&mut scope.clone()));
    session.run(&mut scope)?;
    all.case("a session: an unknown fetch", session.fetch("images"));
    all.case("a session: another dtype", session.slice::<f64>(&out));

    let net = Builder::new();
    let w = parameter(&net, "w", &[2]);
    let out = (&w * 2.0).log().sum(&[]).name();
    scope.set("w", Tensor::from_vec([2], vec![1.0, -1.0])?);
    let mut checking = Executor::with_threads(1).check_finite(true);
    all.case("a NaN", checking.run(&*net.program()?, &mut scope, &[], &[&out]));
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 3]), net.input("y", DType::I64, &[-1, 1]));
    let out = x.cross_entropy(&y).name();
    let feeds: [(&str, &dyn Feed); 2] =
        [("x", &zeros(&[2, 3])), ("y", &Tensor::from_vec([2, 1], vec![0_i64, 3])?)];
    all.case("a label out of range", executor.run(&*net.program()?, &mut scope, &feeds, &[&out]));
    Ok(())
}

fn control(all: &mut Rendered) -> Result<()> {
    all.part("Control flow");
    let net = || {
        let net = Builder::new();
        let x = net.input("x", DType::F32, &[2, 2]);
        (net, x)
    };
    let positive = |x: &Expr| x.mean().less_than(&(x.mean() + 1.0));
    let (_, x) = net();
    all.case(
        "branches of different shapes",
        cond(&positive(&x), || vec![x.tanh()], || vec![x.mean()])[0].check(),
    );
    let (_, x) = net();
    all.case("branches of different lengths", cond(&positive(&x), Vec::new, || vec![x.mean()])[0].check());
    let (_, x) = net();
    all.case("a condition", while_loop(from_ref(&x), |v| v[0].mean(), |v| vec![v[0].tanh()])[0].check());
    let (_, x) = net();
    let body = |v: &[Expr]| vec![v[0].mean()];
    all.case(
        "a variable that changes its shape",
        while_loop(from_ref(&x), |v| positive(&v[0]), body)[0].check(),
    );
    let (n, x) = net();
    let never = static_rnn(&n, false, |rnn| {
        let (x, _) = (rnn.step_input(&x), rnn.memory(&x));
        rnn.step_output(&x);
    });
    all.case("a memory that is never updated", never[0].check());
    let (n, _) = net();
    let no_steps = static_rnn(&n, false, |_| {});
    all.case(
        "a recurrence without sequence",
        no_steps.first().map_or_else(|| n.check(), |x| x.check().map(drop)),
    );

    let (n, x) = net();
    let last = while_loop(from_ref(&x), |v| positive(&v[0]), |v| vec![v[0].tanh()])[0].name();
    let mut executor = Executor::with_threads(1).loop_limit(100);
    let feeds: [(&str, &dyn Feed); 1] = [("x", &zeros(&[2, 2]))];
    all.case("a loop without end", executor.run(&*n.program()?, &mut Scope::new(), &feeds, &[&last]));
    let (n, x) = net();
    let (two, three) = (number(&n, 2), number(&n, 3));
    let array = emit(WriteToArray { x: (&x).into(), i: (&two).into(), out: New }).out;
    let read = emit(ReadFromArray { x: (&array).into(), i: (&three).into(), x_w: None, out: New }).out;
    let fetches = [&*read.name()];
    let mut scope = Scope::new();
    executor.run(&n.startup().program()?, &mut scope, &[], &[])?;
    all.case("an array out of range", executor.run(&*n.program()?, &mut scope, &feeds, &fetches));
    all.case("an array that is fetched", executor.run(&*n.program()?, &mut scope, &feeds, &[&array.name()]));
    Ok(())
}

/// `x²` as a function.
struct Own;
impl Function for Own {
    fn name(&self) -> &'static str {
        "own"
    }
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        Tensor::scalar(inputs[0].item()?.powi(2))
    }
    fn backward(&self, inputs: &[Tensor], _: &Tensor, gradient: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![Tensor::scalar(2.0 * inputs[0].item()? * gradient.item()?)?])
    }
}

fn eager(all: &mut Rendered) -> Result<()> {
    all.part("Eager mode");
    let tape = crate::support::tape::tape();
    let x = tape.leaf("x", Tensor::scalar(2.0)?);
    let constant = tape.constant(Tensor::from_vec([1, 2], vec![1.0, 2.0])?);
    all.case("shapes", constant.matmul(&tape.constant(Tensor::zeros(DType::F64, &[3, 3])?)).check());
    all.case("a variable that is fed later", tape.input("y", DType::F32, &[1]).check());
    all.case("a sub-block", tape.sub_block(|| Ok(())));
    all.case("a variable of a program", Builder::new().input("y", DType::F32, &[1]).item());
    all.case("a loss of several elements", (&constant * &x).backward());
    all.case("a backward pass without leaf", constant.sum(&[]).backward());
    all.case("a gradient before the backward pass", x.gradient());
    all.case("a hook of a constant", constant.hook(Expr::clone));
    let why = missing(&[&x.detach().exp()], &x)?.unwrap_or_default();
    all.text("the reason for a missing gradient", &why);
    all.case("gradients of no outputs", grad(&[], &[&x], &GradOptions::default()));
    let y = &x * &x;
    x.set(Tensor::scalar(3.0)?)?;
    all.case("a value that was overwritten", y.backward());
    all.case(
        "a leaf that an operator overwrites",
        emit(Square { x: Arg::from(&y), out: (&x).into() }).out.check(),
    );
    all.case("a result that is set", y.set(Tensor::scalar(1.0)?));
    let again = GradOptions { create_graph: true, ..GradOptions::default() };
    all.case("the second derivative of a function", grad(&[&apply(Own, &[&x])], &[&x], &again));
    all.case("a function in a trace", trace(&tape, &[("x", &x)], || Ok(vec![apply(Own, &[&x])])));
    let list = emit(WriteToArray { x: Arg::from(&x), i: Arg::from(&constant), out: New });
    all.case("a tensor array", list.out.check());
    all.case("the shape of a vector", Tensor::from_vec([2, 2], vec![1.0; 3]));
    all.case("the type of elements", Tensor::scalar(1.0_f32)?.slice::<f64>().map(drop));
    Ok(())
}

fn nets(all: &mut Rendered) -> Result<()> {
    all.part("Nets");
    let unknown = tree("net", [tanh("x", "h"), Operator::from(autobwd::net::NamedOp::new("tanhh"))]);
    all.case("an unknown operator", unknown.verify());
    all.case("a value that is overwritten", backward(&tree("net", [tanh("x", "y"), tanh("y", "x")]), &[]));
    all.case("an unknown variable", backward(&tanh("x", "y"), &["X"]));
    all.case("a result that no operator writes", NetOp::new("net", [tanh("x", "y")])?.returning(["z"]));
    let step = || NetOp::new("step", [tanh("x", "h")]);
    all.case("a recurrence without sequence", Operator::from(RnnOp::new("rnn", step()?)?).verify());
    all.case("a memory that is not written", RnnOp::new("rnn", step()?)?.memory("boot", "before", "H"));
    let rnn = Operator::from(RnnOp::new("rnn", step()?)?.step_input("xs", "x")?.step_output("h", "hs")?);
    all.case("a sequence that is a scalar", rnn.lower(&[("xs", Meta::new(DType::F32, []))]));
    all.case("an input without value", rnn.lower(&[]));
    Ok(())
}

fn saved_files(all: &mut Rendered) -> Result<()> {
    all.part("Files");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let mut scope = Scope::new();
    scope.set("w", zeros(&[100]));
    scope.save(&path)?;
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let mut failed = Rendered::default();
    failed.case("half of a file", scope.load(&path));
    failed.case("a file that does not exist", scope.load(folder.path().join("weights")));
    failed.case("a folder that does not exist", scope.save(folder.path().join("no/weights")));
    let program = |n: usize| {
        let net = Builder::new();
        net.parameter("w", DType::F32, &[n], |w| Init::Constant(0.0).emit(w, 0));
        Ok::<_, autobwd::Error>(net.program()?.clone())
    };
    let path = folder.path().join("run.checkpoint");
    failed.case("a checkpoint without values", Checkpoint::new(1).save(&path, &program(100)?, &Scope::new()));
    Checkpoint::new(1).save(&path, &program(100)?, &scope)?;
    let other = Checkpoint::load(&path, &program(50)?, &mut Scope::new());
    failed.case("a checkpoint of another program", other);
    let data = || TensorDataset::new([("x", zeros(&[100])), ("y", zeros(&[100, 1]))]);
    let state = Loader::builder(data()?).batch(8).build()?.state();
    let half = TensorDataset::new([("x", zeros(&[50]))])?;
    failed.case("a position in other data", Loader::builder(half).batch(8).build()?.resume(&state));
    failed.case("a position of another loader", Loader::builder(data()?).build()?.resume(&state));
    let place = folder.path().to_str().unwrap_or_default();
    all.0 += &failed.0.replace(place, "folder").replace(std::path::MAIN_SEPARATOR, "/");
    Ok(())
}

#[test]
fn errors_read_as_in_the_list() -> Result<()> {
    let mut all = Rendered::default();
    for part in [descriptions, operators, derivatives, runs, control, eager, nets, saved_files] {
        part(&mut all)?;
    }
    // The number of operators changes with each new one.
    let linked = format!("the {} linked operators", OpInfoMap::linked()?.len());
    compare("framework/messages/rendered.txt", &all.0.replace(&linked, "the _ linked operators"));
    Ok(())
}
