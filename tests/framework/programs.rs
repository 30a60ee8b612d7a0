//! Programs as data: text, JSON, `verify`.

use autobwd::{
    Attr, BlockId, Builder, DType, ErrorKind, OpDesc, Program, Result, VarDesc, append_backward,
    program::{Origin, diff},
    verify,
};
use autobwd_ops::{Init, Math, nn::Linear};

fn classifier() -> (Builder, String) {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 4]);
    let y = net.input("y", DType::I64, &[-1, 1]);
    let loss = Linear::builder(&net, 4, 3).seed(1).build().forward(&x).relu().cross_entropy(&y).mean();
    (net, loss.name())
}

/// Text without the source lines.
fn text(program: &Program) -> String {
    program.to_string().lines().map(|l| l.split("  # ").next().unwrap_or(l).to_string() + "\n").collect()
}

#[test]
fn program_prints_one_line_an_operator() -> Result<()> {
    let (net, loss) = classifier();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Default::default())?;
    let expected = "\
block 0
  data x: float32 [-1, 4]
  data y: int64 [-1, 1]
  parameter linear_0.w: float32 [4, 3]
  parameter linear_0.b: float32 [3]
  matmul_v2_0 = matmul_v2(X=x, Y=linear_0.w, trans_x=false, trans_y=false)
  elementwise_add_0 = elementwise_add(X=matmul_v2_0, Y=linear_0.b, axis=-1)
  relu_0 = relu(X=elementwise_add_0)
  Loss=softmax_with_cross_entropy_1, Softmax=softmax_with_cross_entropy_0 = softmax_with_cross_entropy(Label=y, \
Logits=relu_0, axis=-1, ignore_index=-100, numeric_stable_mode=true, soft_label=false, use_softmax=true)
  mean_0 = mean(X=softmax_with_cross_entropy_1)
  mean_0@GRAD = fill_constant(dtype=5, shape=[], value=1.0)
  softmax_with_cross_entropy_1@GRAD = mean_grad(Out@GRAD=mean_0@GRAD, X=softmax_with_cross_entropy_1)
  relu_0@GRAD = softmax_with_cross_entropy_grad(Label=y, Loss@GRAD=softmax_with_cross_entropy_1@GRAD, \
Softmax=softmax_with_cross_entropy_0, axis=-1, ignore_index=-100, numeric_stable_mode=true, soft_label=false, use_softmax=true)
  elementwise_add_0@GRAD = relu_grad(Out=relu_0, Out@GRAD=relu_0@GRAD)
  X@GRAD=matmul_v2_0@GRAD, Y@GRAD=linear_0.b@GRAD = elementwise_add_grad(Out@GRAD=elementwise_add_0@GRAD, \
X=matmul_v2_0, Y=linear_0.b, axis=-1)
  linear_0.w@GRAD = matmul_v2_grad(Out@GRAD=matmul_v2_0@GRAD, X=x, Y=linear_0.w, trans_x=false, trans_y=false)
";
    assert_eq!(text(&program), expected);
    Ok(())
}

#[test]
fn json_brings_a_program_back() -> Result<()> {
    let (net, loss) = classifier();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Default::default())?;
    let odd = [f32::INFINITY, f32::NEG_INFINITY, 1e-45];
    program.root_mut().ops[0].attrs.set("odd", Attr::F32s(odd.to_vec()));
    let back = Program::from_json(&program.to_json())?;
    assert_eq!(back, program);
    assert_eq!(back.to_string(), program.to_string());
    assert_eq!(back.to_json(), program.to_json());
    assert!(back.root().vars.get(&back.expect_var("x")?).unwrap().stop_gradient);
    Ok(())
}

#[test]
fn foreign_json_is_refused() {
    for (json, message) in [
        ("", "not a program in JSON: EOF"),
        ("[1, 2]", "not a program in JSON"),
        (r#"{"blocks": []}"#, "a program has at least one block"),
        (
            r#"{"blocks": [{"idx": 0, "parent_idx": 0, "vars": [], "ops": []}]}"#,
            "block 0: parent block 0 does not exist",
        ),
        (r#"{"blocks": [{"idx": 1, "parent_idx": -1, "vars": [], "ops": []}]}"#, "block 1 is at position 0"),
        (
            r#"{"blocks": [{"idx": 0, "parent_idx": -1, "ops": [], "vars": [{"name": "x", "type": "lod_tensor",
               "dtype": "float8", "shape": [], "persistable": false, "stop_gradient": true, "is_parameter": false}]}]}"#,
            "variable `x`: unknown dtype `float8`",
        ),
        (
            r#"{"blocks": [{"idx": 0, "parent_idx": -1, "vars": [], "ops": [{"type": "while", "inputs": {},
               "outputs": {}, "attrs": {"sub_block": {"block": 3}}}]}]}"#,
            "an attribute refers to block 3, but there are 1 blocks",
        ),
    ] {
        let e = Program::from_json(json).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Format);
        assert!(e.to_string().contains(message), "{e}");
    }
}

#[test]
fn truncated_or_mangled_json_never_panics() -> Result<()> {
    let (net, loss) = classifier();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Default::default())?;
    let json = program.to_json();
    for end in (0..json.len()).step_by(37) {
        assert!(Program::from_json(&json[..end]).is_err());
    }
    // One byte changed: an error, or a program that `verify` can check.
    for at in (0..json.len()).step_by(11) {
        let mut bytes = json.clone().into_bytes();
        bytes[at] = b"0\"{-z"[at % 5];
        if let Ok(program) = Program::from_json(&String::from_utf8_lossy(&bytes)) {
            let _ = verify(&program);
        }
    }
    Ok(())
}

#[test]
fn verify_reports_every_fault() -> Result<()> {
    let (net, _) = classifier();
    let mut program = net.program()?.clone();
    verify(&program)?;
    let (x, ghost) = (program.expect_var("x")?, program.var("ghost"));
    let late = program.var("late");
    let root = program.root_mut();
    root.vars.insert(late, VarDesc::new(DType::F64, [2].into()));
    root.ops.push(OpDesc::new("relu").input("X", [late]).output("Out", [ghost]));
    root.ops.push(OpDesc::new("relu").input("Y", [x]).output("Out", [late]));
    root.ops.push(OpDesc::new("relu").input("X", [x]).output("Out", [late]));
    root.ops.push(OpDesc::new("rleu").input("X", [x]).output("Out", [late]));
    root.ops.push(OpDesc::new("scale").input("X", [x]).output("Out", [late]).attr("scale", Attr::I32(1)));
    let e = verify(&program).unwrap_err().to_string();
    let faults: Vec<_> = e.lines().collect();
    for (fault, message) in faults.iter().zip([
        "operator `relu` (block 0, operator 5; X = `late`, Out = `ghost`): `ghost` is not declared",
        "`late` is read before it is written",
        "there is no input `Y`; it has X",
        "`Out` is float32 [-1, 4], but `late` is declared float64 [2]",
        "operator `rleu` is not among the",
        "attribute `scale`: expected f64, found i32 (1)",
    ]) {
        assert!(fault.contains(message), "{fault}\nlacks\n{message}");
    }
    assert_eq!(faults.len(), 6, "{e}");
    assert!(faults[4].contains("did you mean `relu`"), "{e}");
    Ok(())
}

#[test]
fn equality_of_programs_ignores_source_locations() -> Result<()> {
    let (a, b) = (classifier().0, classifier().0);
    assert_eq!(*a.program()?, *b.program()?);
    b.parameter("more", DType::F32, &[1], |w| Init::Constant(0.0).emit(w, 0));
    assert_ne!(*a.program()?, *b.program()?);
    Ok(())
}

#[test]
fn diff_lists_differences() -> Result<()> {
    let (net, loss) = classifier();
    let mut old = net.program()?.clone();
    append_backward(&mut old, &loss, &Default::default())?;
    let b = old.add_block(Some(BlockId::ROOT), None);
    old.block_mut(b).unwrap().ops.push(OpDesc::new("print"));
    assert!(diff(&old, &old.clone()).is_empty());
    type Edit = dyn Fn(&mut Program);
    let edits: [(&Edit, &str); 15] = [
        (
            &|p| p.root_mut().ops[2].ty = "tanh".into(),
            "  ~ operator 2, which writes relu_0: type: relu -> tanh",
        ),
        (
            &|p| p.root_mut().ops[0].attrs.set("trans_x", Attr::Bool(true)),
            "  ~ operator 0, which writes matmul_v2_0: trans_x: false -> true",
        ),
        (
            &|p| p.root_mut().ops[1].attrs.set("axis", Attr::I64(-1)),
            "  ~ operator 1, which writes elementwise_add_0: axis: Some(I32(-1)) -> Some(I64(-1))",
        ),
        (
            &|p| {
                let x = p.find("x").unwrap();
                p.root_mut().ops[1].inputs.set("X", [x, x]);
                p.root_mut().ops[1].inputs.set("Z", []);
            },
            "  ~ operator 1, which writes elementwise_add_0: X: matmul_v2_0 -> [x, x], Z: none -> []",
        ),
        (
            &|p| {
                p.root_mut().ops.remove(5);
            },
            "  - operator 5: mean_0@GRAD = fill_constant(dtype=5, shape=[], value=1.0)",
        ),
        (
            // Gradient operators refer to operators that have moved.
            &|p| {
                p.root_mut().ops.insert(2, OpDesc::new("print"));
                for op in &mut p.root_mut().ops {
                    if let Origin::Gradient { of } = &mut op.origin {
                        *of += usize::from(*of >= 2);
                    }
                }
            },
            "  + operator 2: print()",
        ),
        (
            &|p| p.root_mut().ops[6].origin = Origin::Gradient { of: 3 },
            "  ~ operator 6, which writes softmax_with_cross_entropy_1@GRAD: origin: gradient of operator 4 `mean` -> \
gradient of operator 3 `softmax_with_cross_entropy`",
        ),
        (
            &|p| p.root_mut().ops.swap(6, 7),
            "  > operator 7: softmax_with_cross_entropy_1@GRAD = mean_grad(Out@GRAD=\
mean_0@GRAD, X=softmax_with_cross_entropy_1), was operator 6",
        ),
        (
            &|p| p.root_mut().ops[5].origin = Origin::Model,
            "  ~ operator 5, which writes mean_0@GRAD: origin: Seed -> Model",
        ),
        (
            &|p| {
                let w = p.find("linear_0.w").unwrap();
                let desc = p.root_mut().vars.get_mut(&w).unwrap();
                (desc.dims, desc.stop_gradient) = ([4, 4].into(), true);
            },
            "  ~ linear_0.w: float32 [4, 3] -> float32 [4, 4], stop_gradient: false -> true",
        ),
        (
            &|p| {
                let grad = p.find("relu_0@GRAD").unwrap();
                p.root_mut().vars.get_mut(&grad).unwrap().gradient_of = None;
            },
            "  ~ relu_0@GRAD: gradient of: relu_0 -> none",
        ),
        (
            &|p| {
                let (y, z) = (p.find("y").unwrap(), p.var("z"));
                let desc = p.root_mut().vars.remove(&y).unwrap();
                p.root_mut().vars.insert(z, desc);
            },
            "  - y: int64 [-1, 1]\n  + z: int64 [-1, 1]",
        ),
        (
            &|p| {
                let x = p.find("x").unwrap();
                let desc = p.root_mut().vars.remove(&x).unwrap();
                p.root_mut().vars.insert(x, desc);
            },
            "  > variables stand in another order",
        ),
        (
            &|p| p.block_mut(BlockId::ROOT).unwrap().forward = Some(BlockId::ROOT),
            "  ~ gradient of block: none -> 0",
        ),
        (&|_| {}, ""),
    ];
    for (edit, expected) in edits {
        let mut new = old.clone();
        edit(&mut new);
        let found = diff(&old, &new);
        assert_eq!(found.is_empty(), old == new);
        let header = if expected.is_empty() { "" } else { "block 0\n" };
        assert_eq!(found.to_string(), format!("{header}{expected}"));
        assert_eq!(diff(&new, &old).is_empty(), old == new);
    }
    let mut new = old.clone();
    new.add_block(Some(BlockId::ROOT), None);
    assert_eq!(diff(&old, &new).to_string(), "+ block 2\n  ~ parent: none -> 0");
    assert_eq!(diff(&new, &old).to_string(), "- block 2\n  ~ parent: 0 -> none");
    let all = diff(&Program::new(), &old).to_string();
    assert_eq!(all.lines().filter(|line| line.starts_with("  + operator")).count(), old.root().ops.len() + 1);
    Ok(())
}
