//! Mixed precision: programs with casts, loss scaling, and their composition with other passes.

use autobwd::{
    Backward, BlockId, Builder, DType, Error, ErrorKind, Executor, Expr, Feed, New, OpDesc, OpInfoMap,
    Program, Result, Scope, Tensor, append_backward, backward::Recompute, eager, emit, explain,
    operators::Cast, parallel::threads, program::VarDesc,
};
use autobwd_ops::{
    Init, Math,
    control::{cond, scan, while_loop},
    mixed_precision::{PrecisionLists, mixed_precision},
    model::lower,
    nn::{BatchNorm, Conv2d, Linear},
    norm::{InstanceNormOp, LayerNormOp},
    optim::{Adam, GradientClip, LossScaling, MixedPrecision, Optimizer, Sgd, compute_gradients},
};
use autobwd_tests::training_case::TrainingCase;

use crate::support::kept;

const HALVES: [DType; 2] = [DType::F16, DType::BF16];
const STEPS: usize = 20;

fn mixed(net: &Builder, dtype: DType) -> Result<Program> {
    mixed_precision(&*net.program()?, dtype, &PrecisionLists::default())
}

/// The operators of a type in all blocks.
fn count(program: &Program, ty: &str) -> usize {
    program.blocks().iter().flat_map(|block| &block.ops).filter(|op| op.ty == ty).count()
}

fn dtype(program: &Program, name: &str) -> DType {
    let var = program.find(name).unwrap_or_else(|| panic!("no `{name}` in {program}"));
    program.blocks().iter().find_map(|block| block.vars.get(&var)).map(|desc| desc.dtype).unwrap()
}

fn losses(case: &TrainingCase) -> Result<Vec<f64>> {
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&case.startup, &mut scope, &[], &[])?;
    (0..STEPS).map(|i| case.step(&mut executor, &mut scope, &case.program, &case.batch(i % 2, 1)?)).collect()
}

type BuildCase = fn(&dyn Optimizer) -> Result<TrainingCase>;

const MODELS: [(&str, BuildCase); 4] = [
    ("mlp", TrainingCase::mlp),
    ("digits", TrainingCase::digits),
    ("lstm", TrainingCase::lstm),
    ("gpt", |optimizer| TrainingCase::gpt(optimizer, true)),
];

#[test]
fn losses_are_near_those_of_float32() -> Result<()> {
    for (name, build) in MODELS {
        let single = losses(&build(&Adam::new(0.003))?)?;
        for dtype in HALVES {
            let case = build(&Adam::new(0.003).mixed_precision(dtype))?;
            let half = losses(&case)?;
            assert_ne!(single, half, "{name} in {dtype}");
            for (half, single) in half.iter().zip(&single) {
                assert!(
                    (half - single).abs() <= 0.02 * (single + 0.1),
                    "{name} in {dtype}: {half}, not {single}"
                );
            }
            assert!(half[STEPS - 1] < half[0], "{name} in {dtype}: {half:?}");
        }
    }
    Ok(())
}

#[test]
fn parameters_are_cast_once_and_their_gradients_are_float32() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[4, 4], |w| Init::Constant(0.25).emit(w, 0));
    let x = net.input("x", DType::F32, &[-1, 4]);
    let loss = x.matmul(&w).relu().matmul(&w).matmul(&w).mean();
    let mut program = mixed(&net, DType::BF16)?;
    let casts = |program: &Program| program.root().ops.iter().filter(|op| op.is::<Cast>()).count();
    // `x`, `w`, and the result.
    assert_eq!(casts(&program), 3, "{program}");
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    assert_eq!(casts(&program), 5, "{program}");
    assert_eq!(dtype(&program, "w@GRAD"), DType::F32);
    assert_eq!(dtype(&program, "w.cast_bf16@GRAD"), DType::BF16);
    let story = explain(&program, "w@GRAD")?;
    assert!(story.contains("w@GRAD = cast") && story.contains("`cast`"), "{story}");
    Ok(())
}

#[test]
fn second_pass_changes_nothing() -> Result<()> {
    for (name, build) in MODELS {
        let case = build(&Sgd { rate: 0.1 })?;
        let mut model = case.program.clone();
        model.root_mut().ops.retain(|op| op.origin == autobwd::program::Origin::Model && op.ty != "sgd");
        for dtype in HALVES {
            let once = mixed_precision(&model, dtype, &PrecisionLists::default())?;
            assert_ne!(once, model, "{name}");
            assert_eq!(mixed_precision(&once, dtype, &PrecisionLists::default())?, once, "{name} in {dtype}");
        }
    }
    Ok(())
}

#[test]
fn results_and_values_read_in_float32_keep_their_dtype() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 4]);
    let hidden = Linear::builder(&net, 4, 4).build().forward(&x).relu();
    let scores = Linear::builder(&net, 4, 3).build().forward(&hidden);
    let probabilities = scores.softmax(-1);
    let flat = hidden.reshape(&[-1]);
    net.set_signature(&[("x", &x)], &[("hidden", &hidden)])?;
    let program = mixed(&net, DType::F16)?;
    for name in [&x, &hidden, &scores, &probabilities, &flat].map(Expr::name) {
        assert_eq!(dtype(&program, &name), DType::F32, "{name}");
    }
    assert_eq!(dtype(&program, "matmul_v2_0"), DType::F16);
    // The copies of the hidden values are read, not cast again.
    let from_half = |op: &&OpDesc| op.as_op::<Cast>().is_some_and(|cast| cast.in_dtype == DType::F16);
    assert_eq!(program.root().ops.iter().filter(from_half).count(), 3, "{program}");
    assert!(program.to_string().contains("(X=relu_0.cast_fp16, Y=linear_1.w.cast_fp16"), "{program}");
    Ok(())
}

#[test]
fn operators_between_both_precisions_follow_their_inputs() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 4]);
    let b = net.parameter("b", DType::F32, &[4], |b| Init::Constant(0.0).emit(b, 0));
    let product = x.matmul(&net.parameter("w", DType::F32, &[4, 4], |w| Init::Constant(0.5).emit(w, 0)));
    let biased = &product + &b; // 16 bits and a parameter
    let own = x.tanh(); // from outside alone
    let outer = &biased * &own;
    let single = &biased + &biased.softmax(-1); // 16 bits and float32
    let last = (&outer.relu() + 1.0).transpose(&[1, 0]).matmul(&single.relu());
    let program = mixed(&net, DType::BF16)?;
    let text = program.to_string();
    assert!(text.contains("(X=matmul_v2_0, Y=b.cast_bf16"), "{text}");
    assert_eq!(dtype(&program, &own.name()), DType::F32);
    assert_eq!(dtype(&program, &outer.name()), DType::BF16);
    assert_eq!(dtype(&program, &single.name()), DType::F32);
    assert_eq!(dtype(&program, &last.name()), DType::F32);
    Ok(())
}

#[test]
fn lists_change_the_precision_of_operators() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 4]);
    let y = x.matmul(&x.transpose(&[1, 0])).softmax(-1).tanh().sum(&[]);
    let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let lists =
        PrecisionLists { half: list(&["softmax"]), single: list(&["tanh"]), ..PrecisionLists::default() };
    let program = mixed_precision(&*net.program()?, DType::BF16, &lists)?;
    assert!(program.to_string().contains("softmax_0.cast_bf16 = softmax(X=matmul_v2_0"), "{program}");
    assert!(program.to_string().contains("tanh_0 = tanh(X=softmax_0)"), "{program}");
    let lists = PrecisionLists { single_variables: vec!["softmax_0".into()], ..PrecisionLists::default() };
    let program = mixed_precision(&*net.program()?, DType::BF16, &lists)?;
    assert!(program.to_string().contains("tanh_0 = tanh(X=softmax_0)"), "{program}");
    let lists = PrecisionLists { single: list(&["matmul_v2"]), ..PrecisionLists::default() };
    assert_eq!(mixed_precision(&*net.program()?, DType::BF16, &lists)?, *net.program()?);
    assert!(y.check().is_ok());
    Ok(())
}

#[test]
fn parameters_read_in_loops_are_cast_outside() -> Result<()> {
    let net = Builder::new();
    let parameter =
        |name: &str| net.parameter(name, DType::F32, &[3, 3], |w| Init::Uniform(-0.5, 0.5).emit(w, 4));
    let (u, v, w) = (parameter("u"), parameter("v"), parameter("w"));
    let steps = net.input("steps", DType::F32, &[]);
    let (zero, x) = (net.input("zero", DType::F32, &[]), net.input("x", DType::F32, &[3, 3]));
    let last = while_loop(
        &[zero.clone(), x.clone()],
        |v| v[0].less_than(&steps),
        |s| vec![&s[0] + 1.0, (s[1].matmul(&w).matmul(&w) + &s[1]).tanh()],
    );
    let stepped = scan(&[last[1].clone()], &[last[1].mean_over(&[0])], false, |x, s| {
        let next = (x[0].reshape(&[1, 3]).matmul(&u) + s[0].reshape(&[1, 3]).matmul(&u)).reshape(&[3]).tanh();
        (vec![next.clone()], vec![next])
    });
    let chosen = cond(&zero.less_than(&steps), || vec![stepped[0].matmul(&v)], || vec![&stepped[0] * 2.0]);
    let loss = chosen[0].square().mean();
    let run = |program: &Program| -> Result<Vec<Vec<f64>>> {
        let mut program = program.clone();
        append_backward(&mut program, &loss.name(), &Backward::default())?;
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let (zero, steps) = (Tensor::scalar(0.0_f32)?, Tensor::scalar(3.0_f32)?);
        let x = Tensor::from_vec([3, 3], (0..9).map(|i| (i as f32).sin()).collect::<Vec<f32>>())?;
        let feeds: [(&str, &dyn Feed); 3] = [("zero", &zero), ("steps", &steps), ("x", &x)];
        let fetches = [&loss.name(), "u@GRAD", "v@GRAD", "w@GRAD"];
        let found = executor.run(&program, &mut scope, &feeds, &fetches)?;
        Ok(found.iter().map(Tensor::to_f64s).collect())
    };
    let single = run(&*net.program()?)?;
    for dtype in HALVES {
        let program = mixed(&net, dtype)?;
        let parameter_casts = program.blocks().iter().map(|block| {
            let casts = block.ops.iter().filter_map(|op| op.as_op::<Cast>());
            casts.filter(|cast| ["u", "v", "w"].contains(&program.name(cast.x))).count()
        });
        assert_eq!(parameter_casts.collect::<Vec<_>>()[..2], [3, 0], "{program}");
        assert_eq!(mixed_precision(&program, dtype, &PrecisionLists::default())?, program);
        for (half, single) in run(&program)?.iter().zip(&single) {
            for (half, single) in half.iter().zip(single) {
                assert!((half - single).abs() < 0.03 * (single.abs() + 0.3), "{dtype}: {half}, not {single}");
            }
        }
    }
    Ok(())
}

#[test]
fn running_statistics_stay_float32() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 1, 4, 4]);
    let x = Conv2d::builder(&net, 1, 3, 3).padding(1).build().forward(&x);
    let x = BatchNorm::builder(&net, 3).build().forward(&x).relu();
    let loss = Conv2d::builder(&net, 3, 2, 3).build().forward(&x).square().mean();
    Sgd { rate: 0.1 }.mixed_precision(DType::BF16).minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::from_vec([2, 1, 4, 4], (0..32).map(|i| (i as f32).sin()).collect::<Vec<f32>>())?;
    let before = scope.get("batch_norm_0.mean")?.clone();
    executor.run(&net.program()?, &mut scope, &[("x", &x)], &[])?;
    assert!(scope.iter().all(|(_, value)| value.dtype() == DType::F32));
    assert_ne!(*scope.get("batch_norm_0.mean")?, before);
    // The operator itself computes in 16 bits, so no cast stands between the convolutions.
    let text = net.program()?.to_string();
    assert!(text.contains("relu_0 = relu(X=batch_norm_0)") && !text.contains("batch_norm_0.cast"), "{text}");
    Ok(())
}

/// Programs of PaddlePaddle keep scale and bias of 16-bit norms in float32.
#[test]
fn norms_of_16_bits_take_float32_parameters() -> Result<()> {
    for dtype in HALVES {
        let net = Builder::new();
        let init = |w: &Expr| Init::Uniform(0.5, 1.5).emit(w, 7);
        let parameter = |name: &str, n: usize| net.parameter(name, DType::F32, &[n], init);
        let (x, scale, bias) =
            (net.input("x", dtype, &[2, 3, 4]), parameter("scale", 12), parameter("bias", 12));
        let layer = emit(LayerNormOp {
            x: (&x).into(),
            scale: Some((&scale).into()),
            bias: Some((&bias).into()),
            y: New,
            mean: New,
            variance: New,
            begin_norm_axis: 1,
            epsilon: 1e-5,
        });
        let (scale, bias) = (parameter("channel_scale", 3), parameter("channel_bias", 3));
        let instance = emit(InstanceNormOp {
            x: (&x).into(),
            scale: Some((&scale).into()),
            bias: Some((&bias).into()),
            y: New,
            saved_mean: New,
            saved_variance: New,
            epsilon: 1e-5,
        });
        let dtypes = [&layer.y, &layer.mean, &instance.y, &instance.saved_variance].map(|x| x.dtype());
        assert_eq!(dtypes, [dtype, DType::F32, dtype, DType::F32]);
        let loss =
            ((&layer.y * &instance.y).cast(DType::F32) * layer.mean.reshape(&[2, 1, 1])).square().mean();
        let mut program = net.program()?.clone();
        append_backward(&mut program, &loss.name(), &Backward::default())?;
        let is_known = |_: &Program, _: BlockId, op: &OpDesc| Ok(!op.ty.contains("_norm"));
        let composed = lower(&program, OpInfoMap::linked()?, is_known)?;
        assert_eq!((count(&program, "layer_norm_grad"), count(&composed, "layer_norm_grad")), (1, 0));
        let x: Vec<f64> = (0..24).map(|i| f64::from(i * i % 7) - 2.5).collect();
        let x = Tensor::from_f64s(dtype, [2, 3, 4], &x)?;
        let names = ["scale@GRAD", "bias@GRAD", "channel_scale@GRAD", "channel_bias@GRAD"];
        let run = |program: &Program| {
            let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
            executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
            executor.run(program, &mut scope, &[("x", &x)], &names)
        };
        for (kernel, composition) in run(&program)?.iter().zip(run(&composed)?) {
            assert_eq!((kernel.dtype(), composition.dtype()), (DType::F32, DType::F32));
            let largest = composition.to_f64s().iter().fold(0.0, |m: f64, x| m.max(x.abs()));
            // One rounding to 16 bits may differ where sums have another order.
            for (x, y) in kernel.to_f64s().iter().zip(composition.to_f64s()) {
                assert!((x - y).abs() <= 0.01 * largest, "{dtype}: {x}, not {y}");
            }
        }
    }
    Ok(())
}

#[test]
fn recomputation_changes_no_bit() -> Result<()> {
    for dtype in HALVES {
        let mut found = vec![];
        for recompute in [Recompute::None, Recompute::Named(&["tanh_1"])] {
            let net = Builder::new();
            let x = net.input("x", DType::F32, &[4, 6]);
            let mut hidden = x;
            for _ in 0..4 {
                hidden = Linear::builder(&net, 6, 6).build().forward(&hidden).tanh();
            }
            let loss = hidden.square().mean();
            let backward = Backward { recompute, ..Backward::default() };
            let updates = Adam::new(0.01).mixed_precision(dtype).minimize_with(&loss, &backward)?;
            let is_recomputed = !updates.recomputed.names.is_empty();
            assert_eq!(is_recomputed, matches!(recompute, Recompute::Named(_)), "{:?}", updates.recomputed);
            updates.complete()?;
            let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
            executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
            let x = Tensor::from_vec([4, 6], (0..24).map(|i| (i as f32).cos()).collect::<Vec<f32>>())?;
            for _ in 0..3 {
                executor.run(&net.program()?, &mut scope, &[("x", &x)], &[])?;
            }
            found.push(kept(&scope));
        }
        assert_eq!(found[0], found[1], "{dtype}");
    }
    Ok(())
}

#[test]
fn ranks_are_bit_identical_to_merged_batches() -> Result<()> {
    for dtype in HALVES {
        for (name, build) in MODELS {
            let case = build(&Adam::new(0.01).mixed_precision(dtype))?;
            let merged = case.merged(2)?;
            for found in threads::run(2, |transport| case.train(transport, 1000))? {
                assert_eq!(found, merged, "{name} in {dtype}");
            }
        }
    }
    Ok(())
}

#[test]
fn state_in_parts_gives_the_same_bits_without_scaling() -> Result<()> {
    let case = TrainingCase::mlp(&Adam::new(0.01).mixed_precision(DType::BF16))?;
    let (whole, parts) = (
        threads::run(2, |transport| case.train(transport, 1000))?,
        threads::run(2, |transport| case.train_sharded(transport))?,
    );
    let weight = |values: &[(String, Vec<u8>)]| values.iter().find(|(name, _)| name == "linear_0.w").cloned();
    assert_eq!(weight(&whole[0]), weight(&parts[0]));
    let case = TrainingCase::mlp(&Adam::new(0.01).mixed_precision(DType::F16))?;
    let e = threads::run(2, |transport| case.train_sharded(transport)).unwrap_err().to_string();
    assert!(e.contains("check_finite_and_unscale"), "{e}");
    Ok(())
}

fn expect<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, text: &str) {
    let e: Error = result.unwrap_err();
    assert!(e.kind() == kind && e.to_string().contains(text), "{e}");
}

#[test]
fn wrong_calls_are_refused() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2, 2], |w| Init::Constant(0.5).emit(w, 0));
    let loss = w.matmul(&w).tanh().mean();
    let program = net.program()?.clone();
    let with = |lists: PrecisionLists| mixed_precision(&program, DType::BF16, &lists);
    let none = PrecisionLists::default;
    let list = |name: &str| vec![name.to_string()];
    expect(
        mixed_precision(&program, DType::F32, &none()),
        ErrorKind::DType,
        "mixed precision is in float16 or bfloat16, not in float32",
    );
    expect(
        with(PrecisionLists { half: list("matmul_v3"), ..none() }),
        ErrorKind::UnknownOp,
        "did you mean `matmul_v2`",
    );
    expect(
        with(PrecisionLists { half: list("while"), ..none() }),
        ErrorKind::Program,
        "`while` runs a block",
    );
    let twice = PrecisionLists { half: list("tanh"), single: list("tanh"), ..none() };
    expect(with(twice), ErrorKind::Duplicate, "operator `tanh` is in two lists");
    let unknown = PrecisionLists { single_variables: list("tanh_7"), ..none() };
    expect(with(unknown), ErrorKind::UnknownVar, "no variable `tanh_7`; did you mean `tanh_0`?");

    let mut trained = program.clone();
    append_backward(&mut trained, &loss.name(), &Backward::default())?;
    expect(
        mixed_precision(&trained, DType::BF16, &none()),
        ErrorKind::Program,
        "has a backward pass already",
    );

    let adam = || Adam::new(0.1).mixed_precision(DType::BF16);
    let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
    expect(
        adam().apply_gradients(&gradients),
        ErrorKind::Program,
        "call `minimize` instead of `apply_gradients`",
    );
    let scaling = LossScaling { decr_ratio: 2.0, ..LossScaling::default() };
    let precision = MixedPrecision { scaling: Some(scaling), ..DType::F16.into() };
    expect(Adam::new(0.1).mixed_precision(precision).minimize(&loss), ErrorKind::Attr, "`decr_ratio`");
    expect(Adam::new(0.1).mixed_precision(DType::I32).minimize(&loss), ErrorKind::DType, "not in int32");
    expect(
        Adam::new(0.1).group("w", adam()).minimize(&loss),
        ErrorKind::Attr,
        "group `w` has a precision of its own",
    );
    let tape = eager();
    let w = tape.parameter("w", DType::F32, &[2], |w| Init::Constant(0.5).emit(w, 0));
    expect(adam().minimize(&w.square().mean()), ErrorKind::Program, "in eager mode, cast the operands");
    Ok(())
}

/// A listed operator that needs float32 is named with its place.
#[test]
fn listed_operators_that_need_float32_are_named() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 3]);
    let y = net.input("y", DType::F64, &[2, 3]);
    _ = x.cast(DType::F64) + y;
    _ = x.cast(DType::F32);
    let mut program = net.program()?.clone();
    // A reduction whose attribute says the dtype of its input.
    let (x, out) = (program.expect_var("x")?, program.var("total"));
    let code = DType::F32.code();
    program.root_mut().vars.insert(out, VarDesc::new(DType::F32, autobwd::Dims::from([])));
    let op = OpDesc::new("reduce_sum").input("X", [x]).output("Out", [out]);
    let op = op.attr("in_dtype", autobwd::Attr::I32(code)).attr("reduce_all", autobwd::Attr::Bool(true));
    program.root_mut().ops.push(op);
    let lists = PrecisionLists { half: vec!["reduce_sum".into()], ..PrecisionLists::default() };
    let e = mixed_precision(&program, DType::BF16, &lists).unwrap_err().to_string();
    assert!(e.starts_with("operator `reduce_sum` (block 0, operator"), "{e}");
    assert!(e.contains("is listed to compute in bfloat16, but cannot: `X`: float32 is needed"), "{e}");
    assert!(mixed_precision(&program, DType::BF16, &PrecisionLists::default()).is_ok());
    assert!(program.block(BlockId::ROOT).is_some());
    Ok(())
}

#[test]
fn casts_are_in_files() -> Result<()> {
    let case = TrainingCase::digits(&Adam::new(0.01).mixed_precision(DType::F16))?;
    assert_eq!(Program::from_json(&case.program.to_json())?, case.program);
    assert_eq!(count(&case.program, "update_loss_scaling"), 1);
    Ok(())
}

#[test]
fn sparse_gradients_of_merged_batches_are_clipped() -> Result<()> {
    let case = TrainingCase::gpt(&Sgd { rate: 0.1 }.clip(GradientClip::GlobalNorm(0.5)), true)?;
    assert!(case.merged(2).is_ok());
    Ok(())
}
