//! Mixed precision: programs with casts, loss scaling, and their composition with other passes.

use autobwd::{
    Backward, BlockId, Builder, DType, Error, ErrorKind, Executor, Expr, Feed, OpDesc, Program, Result,
    Scope, Tensor, append_backward, backward::Recompute, eager, explain, operators::Cast, parallel::threads,
    program::VarDesc,
};
use autobwd_ops::{
    Init, Math,
    control::{cond, scan, while_loop},
    mixed_precision::{PrecisionLists, lower_master_weights, mixed_precision},
    nn::{BatchNorm, Conv2d, Linear},
    optim::{
        Adagrad, Adam, AdamW, GradientClip, Lamb, LossScaling, MixedPrecision, Momentum, Optimizer, RmsProp,
        Schedule, ScheduledOptimizer, Sgd, compute_gradients,
    },
};
use autobwd_tests::training_case::TrainingCase;

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
    Ok(())
}

/// A model whose gradient overflows in float16 if the scale is too large.
fn overflowing(optimizer: &dyn Optimizer) -> Result<Builder> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2, 2], |w| Init::Constant(0.5).emit(w, 0));
    let b = net.parameter("b", DType::F32, &[], |b| Init::Constant(0.5).emit(b, 0));
    let x = net.input("x", DType::F32, &[3, 2]);
    let loss = (x.matmul(&w) * &b.reshape(&[1, 1])).sum(&[]);
    optimizer.minimize(&loss)?.complete()?;
    Ok(net)
}

fn kept(scope: &Scope) -> Vec<(String, Vec<f64>)> {
    let mut values: Vec<_> = scope.iter().map(|(name, value)| (name.to_string(), value.to_f64s())).collect();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    values
}

/// Runs a step and returns what changed.
fn changes(net: &Builder, executor: &mut Executor, scope: &mut Scope, size: f32) -> Result<Vec<String>> {
    let before = kept(scope);
    let x = Tensor::from_vec([3, 2], vec![size; 6])?;
    executor.run(&net.program()?, scope, &[("x", &x)], &[])?;
    let changed = before.iter().zip(kept(scope)).filter(|(before, after)| before.1 != after.1);
    Ok(changed.map(|(before, _)| before.0.clone()).collect())
}

#[test]
fn step_with_infinities_changes_the_scale_alone() -> Result<()> {
    let scaling = LossScaling { incr_every_n_steps: 2, ..LossScaling::default() };
    let precision = MixedPrecision { scaling: Some(scaling), ..DType::F16.into() };
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    let optimizers: Vec<Box<dyn Optimizer>> = vec![
        Box::new(Sgd { rate: 0.1 }),
        Box::new(momentum),
        Box::new(Adam::new(0.1)),
        Box::new(AdamW::new(0.1)),
        Box::new(Lamb::new(0.1)),
        Box::new(Adagrad { rate: 0.1, epsilon: 1e-6, initial: 0.1 }),
        Box::new(RmsProp::new(0.1)),
        Box::new(momentum.clip(GradientClip::GlobalNorm(1.0)).weight_decay(0.01)),
        Box::new(ScheduledOptimizer { optimizer: momentum, schedule: Schedule::linear(0.5, 0.0, 4) }),
    ];
    for (i, optimizer) in optimizers.into_iter().enumerate() {
        let optimizer = optimizer.name("o").mixed_precision(precision.clone());
        let net = overflowing(&optimizer)?;
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let scale = |scope: &Scope| scope.get("o.loss_scaling_0")?.item();
        // The gradient of the product is 65,536 / 2, of `w` times 3 · 1.5; float16 ends at 65,504.
        for expected in [32768.0, 16384.0, 8192.0] {
            let changed = changes(&net, &mut executor, &mut scope, 1.5)?;
            if changed != ["o.loss_scaling_0"] {
                assert!(changed.contains(&"w".to_string()), "optimizer {i}: {changed:?}");
                break;
            }
            assert_eq!(scale(&scope)?, expected, "optimizer {i}");
        }
        let before = scale(&scope)?;
        assert!(before < 65536.0, "optimizer {i}");
        let changed = changes(&net, &mut executor, &mut scope, 0.5)?;
        assert!(changed.contains(&"w".into()) && changed.contains(&"b".into()), "optimizer {i}: {changed:?}");
        assert!(kept(&scope).iter().flat_map(|(_, values)| values).all(|x| x.is_finite()), "optimizer {i}");
        changes(&net, &mut executor, &mut scope, 0.25)?;
        assert_eq!(scale(&scope)?, 2.0 * before, "optimizer {i}");
        // Infinite data.
        let changed = changes(&net, &mut executor, &mut scope, f32::INFINITY)?;
        assert!(
            changed.iter().all(|name| name.starts_with("o.loss") || name.contains("_steps_0")),
            "{changed:?}"
        );
    }
    Ok(())
}

#[test]
fn fixed_scale_stays() -> Result<()> {
    let precision = MixedPrecision { scaling: Some(LossScaling::fixed(128.0)), ..DType::F16.into() };
    let net = overflowing(&Sgd { rate: 0.25 }.mixed_precision(precision))?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    assert_eq!(changes(&net, &mut executor, &mut scope, 0.5)?, ["b", "w"]);
    // All numbers of this step are exact.
    assert_eq!(scope.get("w")?.to_f64s(), [0.5 - 0.25 * 0.75; 4]);
    assert!(changes(&net, &mut executor, &mut scope, f32::INFINITY)?.is_empty());
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

#[test]
fn gradients_of_users_are_those_of_the_loss() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2, 2], |w| Init::Constant(0.5).emit(w, 0));
    let loss = net.input("x", DType::F32, &[1, 2]).matmul(&w).sum(&[]);
    let trained = Sgd { rate: 0.1 }.mixed_precision(DType::F16).minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    scope.set("loss_scaling_0", Tensor::from_vec([1], vec![1024.0_f32])?);
    let x = Tensor::from_vec([1, 2], vec![0.5_f32, 0.25])?;
    let fetches = [&trained[0].1.name(), "w@GRAD", &loss.name()];
    let found = executor.run(&net.program()?, &mut scope, &[("x", &x)], &fetches)?;
    assert_eq!(found[0].to_f64s(), [0.5, 0.5, 0.25, 0.25]);
    assert_eq!(found[1].to_f64s(), [512.0, 512.0, 256.0, 256.0]);
    assert_eq!((found[2].dtype(), found[2].item()?), (DType::F32, 0.75));
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

/// An update of the reference with master weights is the update of these, rounded.
#[test]
fn updates_with_master_weights_are_lowered() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[3], |w| Init::Uniform(-1.0, 1.0).emit(w, 5));
    let loss = (&w * &net.input("x", DType::F32, &[3])).square().mean();
    Adam::new(0.1).minimize(&loss)?.complete()?;
    // As in a file: the parameter is float16, and the update has the master weights.
    let mut program = net.program()?.clone();
    let half = program.var("w.half");
    let desc = VarDesc { persistable: true, ..VarDesc::data(DType::F16, [3].into()) };
    program.root_mut().vars.insert(half, desc);
    for op in program.root_mut().ops.iter_mut().filter(|op| op.ty == "adam") {
        let master = op.inputs.get("Param").to_vec();
        op.inputs.set("MasterParam", master.clone());
        op.outputs.set("MasterParamOut", master);
        op.inputs.set("Param", [half]);
        op.outputs.set("ParamOut", [half]);
        op.attrs.set("multi_precision", autobwd::Attr::Bool(true));
    }
    assert!(autobwd::verify(&program).is_err());
    let lowered = lower_master_weights(&program)?;
    autobwd::verify(&lowered)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    scope.set("w.half", Tensor::zeros(DType::F16, &[3])?);
    let x = Tensor::from_vec([3], vec![1.0_f32, 2.0, 3.0])?;
    executor.run(&lowered, &mut scope, &[("x", &x)], &[])?;
    let mut plain = Scope::new();
    executor.run(&net.startup().program()?, &mut plain, &[], &[])?;
    executor.run(&net.program()?, &mut plain, &[("x", &x)], &[])?;
    assert_eq!(scope.get("w")?, plain.get("w")?);
    let rounded = Tensor::from_f64s(DType::F16, [3], &plain.get("w")?.to_f64s())?;
    assert_eq!(*scope.get("w.half")?, rounded);
    for op in program.root_mut().ops.iter_mut() {
        op.outputs.set("MasterParamOut", []);
    }
    expect(lower_master_weights(&program), ErrorKind::Slot, "1 of `MasterParam` and 0 of `MasterParamOut`");
    Ok(())
}

#[test]
fn every_optimizer_keeps_master_weights() -> Result<()> {
    let momentum = Momentum { rate: 0.001, momentum: 0.5, nesterov: false, lazy: false };
    let groups = Sgd { rate: 0.001 }.master_weights().group("*.b", momentum.master_weights());
    let optimizers: Vec<Box<dyn Optimizer>> = vec![
        Box::new(Sgd { rate: 0.001 }.master_weights()),
        Box::new(momentum.weight_decay(0.1).master_weights()),
        Box::new(Adam::new(0.001).clip(GradientClip::GlobalNorm(1.0)).master_weights()),
        Box::new(AdamW::new(0.001).master_weights().clip(GradientClip::Value(1.0))),
        Box::new(Lamb::new(0.001).master_weights().name("o")),
        Box::new(Adagrad { rate: 0.001, epsilon: 1e-6, initial: 0.1 }.master_weights()),
        Box::new(RmsProp::new(0.001).master_weights()),
        Box::new(groups),
    ];
    for (i, optimizer) in optimizers.into_iter().enumerate() {
        let net = Builder::new();
        let init = |w: &Expr| Init::Constant(1.0).emit(w, 0);
        let (w, b) =
            (net.parameter("x.w", DType::BF16, &[2], init), net.parameter("x.b", DType::BF16, &[], init));
        let loss = (&w * &w).sum(&[]) * 0.25 + &b * 0.5;
        optimizer.minimize(&loss)?.complete()?;
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let prefix = optimizer.state_prefix();
        for _ in 0..3 {
            executor.run(&net.program()?, &mut scope, &[], &[])?;
            for (name, value) in scope.iter() {
                let is_parameter = ["x.w", "x.b"].contains(&name);
                assert_eq!(value.dtype(), if is_parameter { DType::BF16 } else { DType::F32 }, "{i}: {name}");
            }
        }
        for name in ["x.w", "x.b"] {
            let master = scope.get(&format!("{prefix}{name}.master"))?;
            assert!(master.to_f64s().iter().all(|x| *x < 1.0), "{i}: {master:?}");
            let rounded = Tensor::from_f64s(DType::BF16, master.dims(), &master.to_f64s())?;
            assert_eq!(*scope.get(name)?, rounded, "{i}: {name}");
        }
    }
    Ok(())
}

#[test]
fn eager_steps_keep_master_weights() -> Result<()> {
    let tape = eager();
    let w = tape.parameter("w", DType::BF16, &[1], |w| Init::Constant(1.0).emit(w, 0));
    for _ in 0..8 {
        Sgd { rate: 0.001 }.master_weights().minimize(&w.sum(&[]))?.complete()?;
    }
    assert_eq!(w.tensor()?.to_f64s(), [0.9921875]);
    Ok(())
}

#[test]
fn sparse_gradients_of_merged_batches_are_clipped() -> Result<()> {
    let case = TrainingCase::gpt(&Sgd { rate: 0.1 }.clip(GradientClip::GlobalNorm(0.5)), true)?;
    assert!(case.merged(2).is_ok());
    Ok(())
}
