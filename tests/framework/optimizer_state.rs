//! The state of optimizers in files of weights: left out, or recognised.

use autobwd::{Backward, Builder, DType, Executor, Expr, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    nn::{BatchNorm, Dropout, Linear},
    optim::{
        Adagrad, Adam, AdamW, Lamb, Momentum, Optimizer, RmsProp, Schedule, ScheduledOptimizer, Sgd,
        compute_gradients,
    },
};

/// A network with running statistics and random masks, and its output.
fn network() -> (Builder, Expr) {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 4]);
    let hidden = Linear::builder(&net, 4, 3).name("hidden").build().forward(&x).tanh();
    let hidden = BatchNorm::builder(&net, 3).name("norm").build().forward(&hidden);
    let hidden = Dropout::new(&net, 0.3, 1).forward(&hidden);
    let y = Linear::builder(&net, 3, 1).name("head").build().forward(&hidden);
    (net, y)
}

fn started(net: &Builder) -> Result<Scope> {
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(scope)
}

fn names(scope: &Scope) -> Vec<String> {
    let mut names: Vec<String> = scope.iter().map(|(name, _)| name.into()).collect();
    names.sort();
    names
}

#[test]
fn state_of_every_optimizer_is_left_out_and_recognised() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let (net, _) = network();
    let inference = started(&net)?;
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    let schedule = Schedule::linear(0.1, 0.0, 3);
    let optimizers: [Box<dyn Optimizer>; 10] = [
        Box::new(Adam::new(0.1).name("critic")),
        Box::new(ScheduledOptimizer { optimizer: Sgd { rate: 0.1 }, schedule }.name("a.b")),
        Box::new(Sgd { rate: 0.1 }),
        Box::new(momentum),
        Box::new(Adagrad::new(0.1)),
        Box::new(RmsProp::new(0.1)),
        Box::new(Adam::new(0.1)),
        Box::new(AdamW::new(0.1)),
        Box::new(Lamb::new(0.1)),
        // Its second rate is computed of the first.
        Box::new(Adam::new(0.1).group("head.*", momentum)),
    ];
    for optimizer in optimizers {
        let (net, y) = network();
        optimizer.minimize(&y.square().mean())?.complete()?;
        let trained = started(&net)?;
        trained.save_without_optimizer(&path, &net.program()?)?;
        let mut found = Scope::new();
        found.load(&path)?;
        assert_eq!(names(&found), names(&inference));

        trained.save(&path)?;
        let mut scope = started(&network().0)?;
        let report = scope.load_matching(&path, "")?.complete()?;
        assert_eq!(report.loaded.len(), inference.len());
        assert_eq!(report.optimizer_state.len(), trained.len() - inference.len());
        let text = report.to_string();
        let expected = format!(
            "{} loaded\n{} not needed: the state of an optimizer, such as `",
            inference.len(),
            report.optimizer_state.len()
        );
        assert!(text.starts_with(&expected), "{text}");
    }
    Ok(())
}

#[test]
fn other_unexpected_values_stay_unexpected() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let mut file = Scope::new();
    for name in ["w", "w.moment1", "learning_rate_0", "learning_rate_of_mine", "encoder.w", "w2"] {
        file.set(name, Tensor::scalar(1.0_f32)?);
    }
    file.save(&path)?;
    let mut scope = Scope::new();
    scope.set("w", Tensor::scalar(0.0_f32)?);
    let report = scope.load_matching(&path, "")?;
    assert_eq!(report.unexpected, ["encoder.w", "learning_rate_of_mine", "w2"]);
    assert_eq!(report.optimizer_state, ["learning_rate_0", "w.moment1"]);
    assert!(report.complete().is_err());
    // A scope for training has the state.
    let report = file.load_matching(&path, "")?.complete()?;
    assert!(report.loaded.len() == 6 && report.optimizer_state.is_empty());
    Ok(())
}

#[test]
fn inputs_of_a_loss_dependent_rate_are_not_state() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let (net, y) = network();
    let loss = y.square().mean();
    let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
    let step = net.persistable("step", DType::F32, &[1], |s| autobwd_ops::Init::Constant(1.0).emit(s, 0));
    let rate = net.no_grad(|| &step * 0.5 * loss.reshape(&[1]));
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    gradients.iter().try_for_each(|(w, gradient)| momentum.update(w, gradient, &rate))?;
    let trained = started(&net)?;
    trained.save_without_optimizer(&path, &net.program()?)?;
    let mut found = Scope::new();
    found.load(&path)?;
    assert_eq!(names(&found), names(&started(&network().0)?));
    Ok(())
}

#[test]
fn schedule_counter_is_state_if_all_rates_are_converted() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[], |w| autobwd_ops::Init::Constant(1.0).emit(w, 0));
    let schedule = Schedule::linear(0.1, 0.0, 3);
    ScheduledOptimizer { optimizer: Sgd { rate: 0.1 }, schedule }.minimize(&w.square())?.complete()?;
    started(&net)?.save_without_optimizer(&path, &net.program()?)?;
    let mut found = Scope::new();
    found.load(&path)?;
    assert_eq!(names(&found), ["w"]);
    Ok(())
}

#[test]
fn parameter_named_after_another_one_is_no_state() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let mut file = Scope::new();
    for name in ["emb", "emb.w", "emb.w.velocity", "learning_rate_0"] {
        file.set(name, Tensor::scalar(1.0_f32)?);
    }
    file.save(&path)?;
    let mut scope = Scope::new();
    scope.set("emb", Tensor::scalar(0.0_f32)?);
    let report = scope.load_matching(&path, "")?;
    assert_eq!(report.unexpected, ["emb.w"]);
    assert_eq!(report.optimizer_state, ["emb.w.velocity", "learning_rate_0"]);
    assert!(report.complete().is_err());
    Ok(())
}
