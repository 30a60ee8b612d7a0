//! Malformed programs: rejected before planning, with the errors of `verify`.

use std::thread;

use autobwd::{
    Attr, Backward, BlockId, Builder, DType, Dims, Error, ErrorKind, Executor, Feed, OpDesc, Program, Result,
    Scope, Tensor, Var, VarDesc, append_backward, explain, gradients,
    program::{VarKind, diff},
    tape::trace,
    tensor::Bool,
    verify,
};
use autobwd_ops::{
    Init, Math,
    control::{cond, scan, while_loop},
};
use autobwd_tests::fuzz;

/// Every request about a program, on a stack of default thread size; errors other than those of `verify` are not its
/// fault.
fn ask(program: Program, feeds: Vec<(&'static str, Tensor)>, loss: &'static str) -> Vec<Result<()>> {
    let all = move || {
        let metas: Vec<_> = feeds.iter().map(|(name, tensor)| (*name, tensor.meta())).collect();
        let feeds: Vec<(&str, &dyn Feed)> =
            feeds.iter().map(|(name, tensor)| (*name, tensor as &dyn Feed)).collect();
        let (executor, scope) = (Executor::with_threads(1), &mut Scope::new());
        let (to_dot, to_mermaid) = (program.to_dot(), program.to_mermaid());
        let text = format!("{program}{to_dot}{to_mermaid}{}", diff(&program, &Program::new()));
        assert!(text.contains(loss));
        vec![
            verify(&program),
            Executor::with_threads(1).run(&program, scope, &feeds, &[loss]).map(drop),
            executor.plan(&program, scope, &metas, &[loss]).map(drop),
            executor.prepare(&program, scope, &metas, &[loss]).map(drop),
            append_backward(&mut program.clone(), loss, &Backward::default()).map(drop),
            gradients(&mut program.clone(), &[loss], &["x"], &Default::default()).map(drop),
            explain(&program, "x@GRAD").map(drop),
        ]
    };
    let thread = thread::Builder::new().stack_size(2 << 20).spawn(all);
    thread.unwrap().join().unwrap()
}

#[track_caller]
fn all_refuse(outcomes: &[Result<()>], message: &str) {
    let words: Vec<String> =
        outcomes.iter().map(|outcome| outcome.as_ref().unwrap_err().to_string()).collect();
    assert!(words[0].contains(message), "{}\nlacks\n{message}", words[0]);
    assert!(words.iter().all(|text| *text == words[0]), "{words:#?}");
}

fn scalar(value: f32) -> Tensor {
    Tensor::scalar(value).unwrap()
}

/// `cond` on a number; its blocks are 1 and 2.
fn branch() -> (Builder, &'static str) {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[]);
    let out = cond(&x.greater_than(&(&x - 1.0)), || vec![x.relu()], || vec![x.tanh()]);
    assert_eq!(out[0].name(), "select_input_0");
    (net, "select_input_0")
}

/// Redirects the operators of the root block that run the first block.
fn redirect(program: &mut Program, to: BlockId) {
    for op in &mut program.root_mut().ops {
        if op.attrs.blocks().any(|block| block.index() == 1) {
            op.attrs.set("sub_block", Attr::Block(to));
        }
    }
}

#[test]
fn blocks_that_contain_themselves_are_refused() -> Result<()> {
    let (net, out) = branch();
    let json = net.program()?.to_json();
    let e = Program::from_json(&json.replace(r#"{"block":1}"#, r#"{"block":0}"#)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Format);
    assert!(e.to_string().contains("block 0 is not nested in block 0"), "{e}");

    let mut program = net.program()?.clone();
    redirect(&mut program, BlockId::ROOT);
    all_refuse(&ask(program, vec![("x", scalar(1.0))], out), "block 0 is not nested in block 0");

    // Two operators of each block that run the next block would run 2^n blocks.
    let mut program = net.program()?.clone();
    let second = program.root().ops.iter().flat_map(|op| op.attrs.blocks()).find(|block| block.index() == 2);
    redirect(&mut program, second.unwrap());
    all_refuse(&ask(program, vec![("x", scalar(1.0))], out), "two operators run block 2");
    Ok(())
}

/// `y = relu(x)` within `depth` nested branches.
fn nested(depth: usize) -> Program {
    let mut program = Program::new();
    let [c, x, y, loss] = ["c", "x", "y", "loss"].map(|name| program.var(name));
    let pair = VarDesc::new(DType::F32, Dims::from([2]));
    program.root_mut().vars.insert(c, VarDesc::data(DType::Bool, Dims::from([1])));
    program.root_mut().vars.extend([(x, pair.clone()), (y, pair)]);
    program.root_mut().vars.insert(loss, VarDesc::new(DType::F32, Dims::default()));
    let mut block = BlockId::ROOT;
    for _ in 0..depth {
        let (inner, scopes) = (program.add_block(Some(block), None), program.fresh("scopes"));
        let outer = program.block_mut(block).unwrap();
        let scopes_desc = VarDesc { kind: VarKind::StepScopes, ..VarDesc::new(DType::F32, Dims::default()) };
        outer.vars.insert(scopes, scopes_desc);
        let op = OpDesc::new("conditional_block").input("Cond", [c]).input("Input", [x, c]);
        let op = op.output("Out", [y]).output("Scope", [scopes]).attr("sub_block", Attr::Block(inner));
        outer.ops.push(op.attr("is_scalar_condition", Attr::Bool(true)));
        block = inner;
    }
    program.block_mut(block).unwrap().ops.push(OpDesc::new("relu").input("X", [x]).output("Out", [y]));
    program.root_mut().ops.push(OpDesc::new("mean").input("X", [y]).output("Out", [loss]));
    program
}

#[test]
fn blocks_are_nested_at_most_32_deep() -> Result<()> {
    let feeds = || -> Result<_> {
        let x = Tensor::from_vec([2], vec![1_f32, 2.0])?;
        Ok(vec![("x", x), ("c", Tensor::from_vec([1], vec![Bool::from(true)])?)])
    };
    // The remaining requests include the gradient of a value that a branch may leave unchanged.
    for outcome in ask(nested(32), feeds()?, "loss").into_iter().take(4) {
        outcome?;
    }
    let message = "blocks are nested more than 32 deep";
    all_refuse(&ask(nested(33), feeds()?, "loss"), message);
    all_refuse(&ask(nested(1000), feeds()?, "loss"), message);
    let e = Program::from_json(&nested(1000).to_json()).unwrap_err();
    assert!(e.to_string().contains(message), "{e}");
    assert!(Program::from_json(&nested(32).to_json())?.blocks().len() == 33);
    Ok(())
}

#[test]
fn undeclared_variables_are_errors_of_the_program() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(1.0).emit(w, 0));
    let x = net.input("x", DType::F32, &[3]);
    let loss = (&w * (&x + 1.0)).mean().name();
    let mut program = net.program()?.clone();
    let var = program.expect_var("scale_0")?;
    program.root_mut().vars.remove(&var);
    let words = verify(&program).unwrap_err().to_string();
    assert_eq!(words.matches("`scale_0` is not declared").count(), 2, "{words}");
    let e = append_backward(&mut program, &loss, &Backward::default()).unwrap_err();
    assert_eq!((e.kind(), e.to_string()), (ErrorKind::Program, words.clone()));
    let e = gradients(&mut program, &[&loss], &["w"], &Default::default()).unwrap_err();
    assert_eq!(e.to_string(), words);
    Ok(())
}

#[test]
fn program_is_looked_at_again_when_it_has_changed() -> Result<()> {
    let (net, out) = branch();
    let mut program = net.program()?.clone();
    let (mut executor, mut scope, x) = (Executor::with_threads(1), Scope::new(), scalar(2.0));
    let mut run = |program: &Program| executor.run(program, &mut scope, &[("x", &x)], &[out]);
    assert_eq!(run(&program)?[0].item()?, 2.0);
    let fine = program.clone();
    // An operator that is not needed.
    let (var, ghost) = (program.expect_var("x")?, program.var("ghost"));
    program.root_mut().ops.push(OpDesc::new("relu").input("X", [var]).output("Out", [ghost]));
    assert!(run(&program).unwrap_err().to_string().contains("`ghost` is not declared"));
    assert_eq!(run(&fine)?[0].item()?, 2.0);
    Ok(())
}

#[test]
fn only_the_root_block_keeps_values() -> Result<()> {
    let net = Builder::new();
    let (x, zero) = (net.input("x", DType::F32, &[-1, 2]), net.input("z", DType::F32, &[2]));
    let sums = scan(&[x], &[zero], false, |x, sum| {
        let sum = &x[0] + &sum[0];
        (vec![sum.clone()], vec![sum])
    });
    let mut program = net.program()?.clone();
    let var = program.find("elementwise_add_0").unwrap();
    let inner = program.root().ops.iter().flat_map(|op| op.attrs.blocks()).next().unwrap();
    let desc = program.block_mut(inner).and_then(|block| block.vars.get_mut(&var)).unwrap();
    desc.persistable = true;
    let words = verify(&program).unwrap_err().to_string();
    assert!(
        words.starts_with(
            "variable \"elementwise_add_0\" of block 1: only the root block has persistable variables"
        ),
        "{words}"
    );
    let (x, z) = (Tensor::zeros(DType::F32, &[3, 2])?, Tensor::zeros(DType::F32, &[2])?);
    let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("z", &z)];
    let outcome = Executor::new().run(&program, &mut Scope::new(), &feeds, &[&sums[0].name()]);
    assert_eq!(outcome.unwrap_err().to_string(), words);
    Ok(())
}

#[test]
fn names_that_programs_cannot_have_are_refused() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.leaf("", Tensor::from_vec([1], vec![1_f32])?);
    for name in ["", "a b", "w@GRAD", "@EMPTY@"] {
        let e = trace(&tape, &[(name, &x)], || Ok(vec![x.relu()])).map(drop).unwrap_err();
        assert!(e.to_string().starts_with(&format!("{name:?} cannot be a variable")), "{e}");
        // Gradients are fed under this kind of name.
        if name == "w@GRAD" {
            continue;
        }
        let mut program = Program::new();
        let var = program.var(name);
        program.root_mut().vars.insert(var, VarDesc::data(DType::F32, Dims::from([1])));
        let e = verify(&program).unwrap_err().to_string();
        assert!(e.starts_with(&format!("variable {name:?} of block 0: ")), "{e}");
        let loaded = Program::from_json(&program.to_json())?;
        assert_eq!(verify(&loaded).unwrap_err().to_string(), e);
    }
    // Names of leaves occur in messages only; programs rename such leaves.
    for name in ["", "a b", "w@GRAD", "@EMPTY@"] {
        let x = tape.leaf(name, Tensor::from_vec([1], vec![1_f32])?);
        let traced = trace(&tape, &[], || Ok(vec![x.relu()]))?;
        verify(&traced.program)?;
        assert!(traced.scope.get("constant_0").is_ok(), "{name:?}");
    }
    Ok(())
}

#[test]
fn gradients_have_the_shapes_of_their_variables() -> Result<()> {
    let program = |ty: &str, inputs: &[(&'static str, &[usize])]| {
        let mut program = Program::new();
        let mut op = OpDesc::new(autobwd::program::Name::new(ty));
        let mut declare = |program: &mut Program, slot: &'static str, dims: &[usize]| -> Var {
            let var = program.fresh("v");
            program.root_mut().vars.insert(var, VarDesc::new(DType::F32, Dims::from(dims)));
            op.inputs.set(slot, [var]);
            var
        };
        for (slot, dims) in inputs {
            declare(&mut program, slot, dims);
        }
        let out = program.var("dx");
        program.root_mut().vars.insert(out, VarDesc::new(DType::F32, Dims::from(inputs[0].1)));
        program.root_mut().ops.push(op.output("X@GRAD", [out]));
        program
    };
    // From the forward operator's shape rule, and from the output if the gradient operator reads it.
    let add = |dout: &[usize]| {
        program("elementwise_add_grad", &[("X", &[4, 4]), ("Y", &[4, 4]), ("Out@GRAD", dout)])
    };
    let softmax = |dout: &[usize]| program("softmax_grad", &[("Out", &[4, 4]), ("Out@GRAD", dout)]);
    verify(&add(&[4, 4]))?;
    verify(&softmax(&[4, 4]))?;
    let message = "`Out@GRAD` = `v_2` has shape [4, 1], but `Out`, whose gradient it is, has [4, 4]";
    let mut wrong = add(&[4, 1]);
    let words = verify(&wrong).unwrap_err().to_string();
    assert!(words.contains(message), "{words}");
    assert_eq!(gradients(&mut wrong, &["dx"], &["v_2"], &Default::default()).unwrap_err().to_string(), words);
    let e = verify(&softmax(&[4, 1])).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape, "{e}");
    Ok(())
}

#[test]
fn loops_of_programs_from_files_end() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[]);
    let last = while_loop(&[x], |v| v[0].less_than(&(&v[0] + 1.0)), |v| vec![v[0].tanh()])[0].name();
    let loaded = Program::from_json(&net.program()?.to_json())?;
    let x = scalar(1.0);
    let run = |mut executor: Executor| -> Error {
        executor.run(&loaded, &mut Scope::new(), &[("x", &x)], &[&last]).unwrap_err()
    };
    let e = run(Executor::with_threads(1));
    assert_eq!(e.kind(), ErrorKind::Endless);
    let e = e.to_string();
    let limit = "the loop has not ended after 1000000 steps, its limit; change its condition, or raise the limit \
                 with `Executor::loop_limit`";
    assert!(e.ends_with(limit), "{e}");
    assert!(run(Executor::with_threads(1).loop_limit(7)).to_string().contains("after 7 steps"));
    Ok(())
}

#[test]
fn memory_that_cannot_be_had_is_an_error() -> Result<()> {
    for (rows, columns) in [(1_i64 << 58, 1_i64), (1 << 40, 1 << 18), (i64::MAX, 2), (1 << 62, 1 << 20)] {
        let json = |shape: &str| {
            format!(
                r#"{{"blocks":[{{"idx":0,"parent_idx":-1,"vars":[
                {{"name":"y","type":"lod_tensor","dtype":"float32","shape":{shape},"persistable":false,
                "stop_gradient":true,"is_parameter":false}},
                {{"name":"z","type":"lod_tensor","dtype":"float32","shape":{shape},"persistable":false,
                "stop_gradient":true,"is_parameter":false}}],"ops":[
                {{"type":"fill_constant","inputs":{{}},"outputs":{{"Out":["y"]}},"attrs":{{
                "shape":{{"longs":[{rows},{columns}]}},"dtype":{{"int":5}},"value":{{"float":1.0}}}}}},
                {{"type":"cumsum","inputs":{{"X":["y"]}},"outputs":{{"Out":["z"]}},"attrs":{{"axis":{{"int":0}}}}}}]}}]}}"#
            )
        };
        let program = Program::from_json(&json(&format!("[{rows},{columns}]")))?;
        for fetches in [&["y"][..], &["z"]] {
            let e = Executor::new().run(&program, &mut Scope::new(), &[], fetches).unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::OutOfMemory | ErrorKind::Shape), "{e}");
        }
    }
    Ok(())
}

#[test]
fn missing_fetch_is_reported_once() -> Result<()> {
    let net = Builder::new();
    net.input("x", DType::F32, &[2]);
    let e = Executor::new().run(&net.program()?, &mut Scope::new(), &[], &["x"]).unwrap_err();
    assert_eq!(e.to_string(), "`x` is fetched, but neither fed nor written before; feed it");
    Ok(())
}

/// The gradient of a branch treats an uncomputed gradient as zero; a later backward pass computes it for itself.
#[test]
fn gradient_that_counts_as_zero_may_be_computed_later() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(0.5).emit(w, 0));
    let u = net.parameter("u", DType::F32, &[2], |u| Init::Constant(0.25).emit(u, 0));
    let low = w.mean().less_than(&(w.mean() + 1.0));
    let out = cond(&low, || vec![w.square(), u.exp()], || vec![w.tanh(), u.tanh()]);
    let (loss, second) = (out[0].mean().name(), out[1].sum(&[]).name());
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Backward { allow_missing: true, ..Backward::default() })?;
    let found = gradients(&mut program, &[&second], &["u"], &Default::default())?;
    let loaded = Program::from_json(&program.to_json())?;
    verify(&loaded)?;
    assert_eq!(found.pairs.len(), 1);
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let fetched = Executor::with_threads(1).run(&loaded, &mut scope, &[], &["w@GRAD"])?;
    assert_eq!(fetched[0].to_f64s(), [0.5, 0.5]);
    Ok(())
}

/// Inputs of the fuzzer that have triggered bugs.
#[test]
fn inputs_that_failed_in_the_fuzzer() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/inputs");
    let mut paths: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    paths.sort_by_key(|entry| entry.path());
    assert!(!paths.is_empty());
    for path in paths.iter().map(|entry| entry.path()) {
        let text = std::fs::read_to_string(&path)?;
        for seed in 0..24 {
            let found = fuzz::program(&text, &Default::default(), &mut fuzz::Rng(seed));
            found.map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}

#[test]
fn gradient_reads_what_steps_have_left() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/inputs/scopes_are_a_tensor.json");
    let e = verify(&Program::from_json(&std::fs::read_to_string(path)?)?).unwrap_err().to_string();
    assert!(e.contains("`logical_not_0.tmp_0` is bool [], not saved step state"), "{e}");
    Ok(())
}
