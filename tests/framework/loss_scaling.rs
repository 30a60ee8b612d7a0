//! Loss scaling of float16, and master weights of 16-bit parameters.

use autobwd::{
    Builder, DType, ErrorKind, Executor, Expr, OpDesc, Program, Result, Scope, Tensor, eager,
    program::VarDesc,
};
use autobwd_ops::{
    Init, Math,
    mixed_precision::lower_master_weights,
    optim::{
        Adagrad, Adam, AdamW, GradientClip, Lamb, LossScaling, MixedPrecision, Momentum, Optimizer, RmsProp,
        Schedule, ScheduledOptimizer, Sgd,
    },
};

use crate::support::kept;

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
    let e = lower_master_weights(&program).unwrap_err();
    assert!(e.kind() == ErrorKind::Slot, "{e}");
    assert!(e.to_string().contains("1 of `MasterParam` and 0 of `MasterParamOut`"), "{e}");
    Ok(())
}

/// The reference has a float32 learning rate for parameters of 16 bits without master weights.
#[test]
fn updates_of_16_bits_with_a_float32_rate_are_lowered() -> Result<()> {
    let mut program = Program::new();
    let [w, rate, gradient] = ["w", "rate", "gradient"].map(|name| program.var(name));
    for (var, dtype) in [(w, DType::BF16), (rate, DType::F32), (gradient, DType::BF16)] {
        program.root_mut().vars.insert(var, VarDesc::parameter(dtype, [2].into()));
    }
    program.root_mut().vars.insert(rate, VarDesc::parameter(DType::F32, [1].into()));
    let sgd = OpDesc::new("sgd").input("Param", [w]).input("Grad", [gradient]).input("LearningRate", [rate]);
    program.root_mut().ops.push(sgd.output("ParamOut", [w]));
    assert!(autobwd::verify(&program).is_err());
    let lowered = lower_master_weights(&program)?;
    autobwd::verify(&lowered)?;
    let mut scope = Scope::new();
    let values = [("w", DType::BF16, vec![1.0, 2.0]), ("gradient", DType::BF16, vec![0.5, -0.25])];
    for (name, dtype, values) in values {
        scope.set(name, Tensor::from_f64s(dtype, [2], &values)?);
    }
    // In 16 bits, the rate would be 0.10009765625.
    scope.set("rate", Tensor::from_vec([1], vec![0.1_f32])?);
    Executor::with_threads(1).run(&lowered, &mut scope, &[], &[])?;
    assert_eq!(*scope.get("w")?, Tensor::from_f64s(DType::BF16, [2], &[0.95, 2.025])?);
    // An update in 16 bits alone stays.
    let rate = program.root_mut().vars.get_mut(&rate).unwrap();
    rate.dtype = DType::BF16;
    assert_eq!(lower_master_weights(&program)?, program);
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
