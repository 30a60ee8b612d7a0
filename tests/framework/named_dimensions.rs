//! Dimensions with names: in programs, their gradients and their files; what feeds and control flow make of them.

use autobwd::{
    Builder, DType, Executor, Expr, Feed, Program, Result, Scope, Tensor, append_backward, tensor::Dim,
    verify,
};
use autobwd_ops::{
    Init, Math, concat,
    control::{cond, while_loop},
    nn::{Conv2d, Embedding},
    stack,
};

fn named(net: &Builder, name: &str, dtype: DType, dims: &[&str]) -> Expr {
    net.input_with_dims(name, dtype, dims.iter().map(|dim| dim.parse().unwrap()).collect::<Vec<Dim>>())
}

fn dims(x: &Expr) -> String {
    x.check().unwrap();
    x.dims().to_string()
}

/// A language model with a batch `B` of sequences of length `T`.
fn model(net: &Builder) -> Expr {
    let tokens = named(net, "tokens", DType::I64, &["B", "T"]);
    let width = |w: &Expr| Init::Constant(0.5).emit(w, 0);
    let states = Embedding::builder(net, 9, 8).build().forward(&tokens);
    let heads =
        states.reshape_to(&[states.dim(0), states.dim(1), 2.into(), 4.into()]).transpose(&[0, 2, 1, 3]);
    assert_eq!(dims(&heads), "[B, 2, T, 4]");
    let scores = heads.matmul(&heads.transpose(&[0, 1, 3, 2])).softmax(-1);
    assert_eq!(dims(&scores), "[B, 2, T, T]");
    let merged = scores.matmul(&heads).transpose(&[0, 2, 1, 3]);
    let merged = merged.reshape_to(&[tokens.dim(0) * tokens.dim(1), 8.into()]);
    assert_eq!(dims(&merged), "[B*T, 8]");
    merged.matmul(&net.parameter("w", DType::F32, &[8, 3], width)).square().mean()
}

#[test]
fn shape_rules_compute_with_names() {
    let net = Builder::new();
    let x = named(&net, "x", DType::F32, &["B", "3", "H", "W"]);
    let convolved = Conv2d::builder(&net, 3, 8, 3).stride(2).padding(1).build().forward(&x);
    assert_eq!(dims(&convolved), "[B, 8, (H + 1)/2, (W + 1)/2]");
    assert_eq!(dims(&convolved.flatten(2, 3)), "[B, 8, ((H + 1)/2)*((W + 1)/2)]");
    let row = named(&net, "row", DType::F32, &["T"]);
    assert_eq!(dims(&concat(&[&row, &row, &row.slice(0, 0, 1)], 0)), "[-1]");
    assert_eq!(dims(&concat(&[&row, &row], 0)), "[T*2]");
    assert_eq!(dims(&stack(&[&row, &row], 0).reshape(&[-1])), "[T*2]");
    // Either of two lengths may be 1 and broadcast.
    let other = named(&net, "other", DType::F32, &["S"]);
    assert_eq!(dims(&(&row + &other)), "[-1]");
    assert_eq!(dims(&(&row + row.square())), "[T]");
    assert_eq!(dims(&(&row + row.sum(&[]))), "[T]");
}

#[test]
fn computed_sizes_keep_names() {
    let net = Builder::new();
    let x = named(&net, "x", DType::F32, &["B", "T", "4"]);
    let (batch, length) = (x.dim(0), x.dim(1));
    let y = x.reshape_to(&[&length * &batch, 4.into()]);
    assert_eq!(dims(&y), "[B*T, 4]");
    assert_eq!(dims(&y.reshape_to(&[&y.dim(0) / &length, length.clone(), 4.into()])), "[B, T, 4]");
    assert_eq!((y.dim(0) * 4 / (&batch * &length)).known(), Some(4));
    assert!((y.dim(0) / &length).is_same(&batch) && !batch.is_same(&length));
    assert_eq!(dims(&x.slice(2, 0, 1).expand_to(&[batch.clone(), length, 6.into()])), "[B, T, 6]");
    assert_eq!(dims(&autobwd_ops::positions(&net, &(batch * 2))), "[B*2]");
}

#[test]
fn names_survive_files_and_gradients() -> Result<()> {
    let net = Builder::new();
    let loss = model(&net).name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Default::default())?;
    let written = program.to_json();
    let again = Program::from_json(&written)?;
    assert_eq!(again.to_json(), written);
    let tokens = again.expect_var("tokens")?;
    assert_eq!(again.root().vars.get(&tokens).unwrap().dims.to_string(), "[B, T]");
    let gradients = again.root().vars.values().filter(|desc| desc.gradient_of.is_some());
    let shapes: Vec<String> = gradients.map(|desc| desc.dims.to_string()).collect();
    assert!(
        shapes.contains(&"[B, 2, T, T]".into()) && !shapes.iter().any(|dims| dims.contains("-1")),
        "{shapes:?}"
    );
    verify(&again)?;
    let variable = r#"{"name":"x","type":"lod_tensor","dtype":"float32","shape":["T+"],"persistable":false,"stop_gradient":true,"is_parameter":false}"#;
    let damaged = format!(
        r#"{{"blocks":[{{"idx":0,"parent_idx":-1,"forward_block_idx":-1,"vars":[{variable}],"ops":[]}}]}}"#
    );
    let e = Program::from_json(&damaged).unwrap_err();
    assert!(e.message().contains("`T+` is not a dimension"), "{e}");
    Ok(())
}

#[test]
fn feeds_agree_about_a_name() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (named(&net, "x", DType::F32, &["B", "2"]), named(&net, "y", DType::F32, &["B"]));
    let out = (x.sum(&[1]) + &y).sum(&[]).name();
    let program = net.program()?;
    let x = Tensor::from_vec([3, 2], vec![1.0_f32; 6])?;
    let run = |count: usize| {
        let y = Tensor::from_vec([count], vec![1.0_f32; count])?;
        let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("y", &y)];
        Executor::new().run(&program, &mut Scope::new(), &feeds, &[&out])?[0].item()
    };
    assert_eq!(run(3)?, 9.0);
    // Without the name, one element would broadcast.
    let e = run(1).unwrap_err();
    let text = "`y` cannot be fed: its dimension 0 is `B`, which is 1 here, but 3 in dimension 0 of `x`";
    assert!(e.message().contains(text), "{e}");
    Ok(())
}

#[test]
fn names_do_not_outlive_the_steps_of_a_loop() -> Result<()> {
    let net = Builder::new();
    let rows = named(&net, "rows", DType::F32, &["N"]);
    let small = |x: &[Expr]| x[0].sum(&[]).less_than(&(x[0].sum(&[]) * 0.0 + 9.0));
    let grown =
        while_loop(std::slice::from_ref(&rows), small, |x| vec![concat(&[&x[0], &x[0]], 0)]).remove(0);
    assert_eq!(dims(&grown), "[-1]");
    let out = grown.name();
    let two = Tensor::from_vec([2], vec![1.0_f32; 2])?;
    let found = Executor::new().run(&net.program()?, &mut Scope::new(), &[("rows", &two)], &[&out])?;
    assert_eq!(found[0].dims(), [16]);
    let both = cond(
        &rows.sum(&[]).less_than(&rows.mean()),
        || vec![rows.square()],
        || vec![concat(&[&rows, &rows], 0)],
    );
    assert_eq!(dims(&both[0]), "[-1]");
    Ok(())
}

#[test]
fn selection_by_named_shapes_needs_no_sum() -> Result<()> {
    let net = Builder::new();
    let (x, mask) =
        (named(&net, "x", DType::F32, &["B", "T"]), named(&net, "mask", DType::Bool, &["B", "1"]));
    let out = mask.where_cond(&x, &(x.sum(&[]) * 0.0));
    assert_eq!(dims(&out), "[B, T]");
    let program = net.program()?;
    let kinds: Vec<&str> = program.root().ops.iter().map(|op| &*op.ty).collect();
    assert_eq!(kinds, ["reduce_sum", "scale", "expand_as_v2", "expand_as_v2", "where"]);
    Ok(())
}
