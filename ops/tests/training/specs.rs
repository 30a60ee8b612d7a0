//! Optimizers by text: mistakes, and what the optimizers do.

use autobwd::{Builder, DType, Executor, Expr, Result, Scope};
use autobwd_ops::{
    Init, Math,
    optim::{
        Adagrad, Adam, AdamW, GradientClip, Lamb, Momentum, Optimizer, OptimizerSpec, RmsProp, Schedule,
        ScheduledOptimizer, Sgd,
    },
};

#[test]
fn mistakes_suggest_existing_names() {
    let refused = |text: &str| text.parse::<OptimizerSpec>().unwrap_err().to_string();
    for (text, expected) in [
        (
            "adma:0.1",
            "there is no optimizer `adma`; known are sgd, momentum, adagrad, rmsprop, adam, adamw, lamb",
        ),
        ("", "there is no optimizer ``; known are "),
        ("sgd", "`sgd` needs a learning rate, such as `sgd:0.01`"),
        ("sgd:", "`` is not a finite number"),
        ("sgd:nan", "`nan` is not a finite number"),
        ("sgd:1e99", "`1e99` is not a finite number"),
        ("sgd:0.1:2", "`sgd:0.1:2` has more values than `sgd` has options"),
        (
            "adam:0.1,momentum=0.9",
            "`adam` has no option `momentum`; it has beta1, beta2, epsilon, lazy, weight_decay, clip, schedule",
        ),
        ("adam:0.1,beta1", "option `beta1` of `adam` needs a value: `beta1=…`"),
        ("adam:0.1,lazy=1", "option `lazy` of `adam` is a switch: it has no value"),
        ("momentum:0.1:0.9,momentum=0.9", "option `momentum` of `momentum` is given twice"),
        ("sgd:0.1,schedule=constant(1)", "the schedule gives the rate: write `sgd,schedule=…`"),
        ("adamw:schedule=constant(1)", "the schedule gives the rate: write `adamw,schedule=…`"),
        ("sgd,schedule=cosinus(1,0,3)", "`cosinus(1,0,3)` is not a schedule; known are constant(RATE), "),
        ("sgd,schedule=cosine(1,0)", "`cosine(1,0)` is not a schedule"),
        ("sgd,schedule=cosine(1,0,-3)", "`-3` is not a number of steps"),
        ("sgd,schedule=cosine(1,0,3", "the parentheses of `sgd,schedule=cosine(1,0,3` do not match"),
        ("sgd,schedule=0.1", "`0.1` has no arguments in parentheses"),
        ("sgd:0.1,clip=1", "`1` has no arguments in parentheses"),
        ("sgd:0.1,clip=max(1)", "there is no clipping `max`; known are value(X), norm(X), global_norm(X)"),
        ("sgd:0.1,clip=norm(1,2)", "`norm(1,2)` needs one number, such as `norm(1)`"),
    ] {
        assert!(refused(text).starts_with(expected), "{text}: {}", refused(text));
    }
    let deep = "warmup(1,".repeat(300) + "constant(1)" + &")".repeat(300);
    let e = deep.parse::<Schedule>().unwrap_err().to_string();
    assert_eq!(e, "schedules are nested more than 16 deep");
    assert!(format!("sgd,schedule={}", "(".repeat(10_000)).parse::<OptimizerSpec>().is_err());
}

#[test]
fn many_schedules_of_tiny_rates_are_written_and_read() {
    let tiny = || Schedule::cosine(1e-300, 1.5e300, u64::MAX);
    let schedule = (0..16).fold(tiny(), |all, _| tiny().then(u64::MAX, all));
    let text = schedule.to_string();
    assert!(text.starts_with("then(cosine(1e-300,1.5e300,18446744073709551615),"), "{text}");
    assert_eq!(text.parse::<Schedule>().unwrap(), schedule);
    let spec: OptimizerSpec = "adam:1e-30,epsilon=1e-8,beta1=0.0001,clip=norm(1e30)".parse().unwrap();
    assert_eq!(spec.to_string(), "adam:1e-30,beta1=0.0001,clip=norm(1e30)");
}

#[test]
fn documentation_lists_all_options() {
    let source = include_str!("../../src/optim/spec.rs");
    for name in OptimizerSpec::names() {
        let options: Vec<String> = OptimizerSpec::options(name)
            .map(|(option, default)| match default {
                None => format!("`{option}`"),
                Some(x) if x != 0.0 && x < 1e-5 => format!("`{option}={x:e}`"),
                Some(x) => format!("`{option}={x}`"),
            })
            .collect();
        let options = options.join(", ") + if options.is_empty() { "" } else { " " };
        assert!(source.contains(&format!("/// | `{name}` | {options}|\n")), "{name}: {options}");
    }
}

#[test]
fn groups_scale_the_scheduled_rate() -> Result<()> {
    let net = Builder::new();
    let [a, b] =
        ["a", "b"].map(|name| net.parameter(name, DType::F32, &[1], |w| Init::Constant(0.0).emit(w, 0)));
    let schedule = Schedule::step(0.5, 0.5, 1);
    let optimizer = ScheduledOptimizer { optimizer: Sgd { rate: 8.0 }, schedule };
    assert_eq!(optimizer.learning_rate(), 0.5);
    optimizer.group("b", Sgd { rate: 0.25 }).minimize(&(a + b).sum(&[]))?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for _ in 0..2 {
        executor.run(&net.program()?, &mut scope, &[], &[])?;
    }
    assert_eq!((scope.get("a")?.item()?, scope.get("b")?.item()?), (-0.75, -0.375));
    Ok(())
}

/// The parameters after some steps with an optimizer.
fn trained(optimizer: &dyn Optimizer) -> Result<Vec<f64>> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[5], |w| Init::Normal(0.0, 1.0).emit(w, 7));
    let v = net.parameter("v", DType::F64, &[5], |v| Init::Normal(0.0, 1.0).emit(v, 8));
    let loss = (w.square() + w.sin()).mean() + (v.square() * 3.0).mean().cast(DType::F32);
    optimizer.minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for _ in 0..7 {
        executor.run(&net.program()?, &mut scope, &[], &[])?;
    }
    Ok([scope.get("w")?.to_f64s(), scope.get("v")?.to_f64s()].concat())
}

#[test]
fn texts_are_the_optimizers_that_they_name() -> Result<()> {
    let same = |text: &str, expected: &dyn Optimizer| -> Result<()> {
        assert_eq!(trained(&text.parse::<OptimizerSpec>()?)?, trained(expected)?, "{text}");
        Ok(())
    };
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    let defaults: [(&str, Box<dyn Optimizer>); 7] = [
        ("sgd", Box::new(Sgd { rate: 0.1 })),
        ("momentum", Box::new(momentum)),
        ("adagrad", Box::new(Adagrad::new(0.1))),
        ("rmsprop", Box::new(RmsProp::new(0.1))),
        ("adam", Box::new(Adam::new(0.1))),
        ("adamw", Box::new(AdamW::new(0.1))),
        ("lamb", Box::new(Lamb::new(0.1))),
    ];
    assert_eq!(OptimizerSpec::names().collect::<Vec<_>>(), defaults.each_ref().map(|(name, _)| *name));
    for (name, optimizer) in &defaults {
        same(&format!("{name}:0.1"), optimizer)?;
    }
    same("adagrad:0.1,epsilon=0.5,initial=2", &Adagrad { epsilon: 0.5, initial: 2.0, ..Adagrad::new(0.1) })?;
    let lamb = Lamb { decay: 0.5, beta1: 0.25, beta2: 0.75, epsilon: 0.125, ..Lamb::new(0.1) };
    same("lamb:0.1:0.5:0.25:0.75:0.125", &lamb)?;
    let momentum = Momentum { rate: 0.1, momentum: 0.8, nesterov: true, lazy: false };
    same("momentum:0.1,momentum=0.8,nesterov", &momentum)?;
    same("momentum:0.1:0.8,nesterov", &momentum)?;
    same("adam:0.1,beta2=0.9", &Adam { beta2: 0.9, ..Adam::new(0.1) })?;
    same("adamw:0.1,decay=0.05", &AdamW { decay: 0.05, ..AdamW::new(0.1) })?;
    same("rmsprop:0.1,decay=0.5,centered", &RmsProp { decay: 0.5, centered: true, ..RmsProp::new(0.1) })?;
    let clip = GradientClip::GlobalNorm(0.5);
    same(
        "sgd:0.1,weight_decay=0.01,clip=global_norm(0.5)",
        &Sgd { rate: 0.1 }.weight_decay(0.01).clip(clip),
    )?;
    let schedule = Schedule::cosine(0.1, 0.0, 5).warmup(2);
    same(
        "adam,schedule=warmup(2,cosine(0.1,0,5))",
        &ScheduledOptimizer { optimizer: Adam::new(0.1), schedule },
    )
}

/// The rates that a program computes, of float64.
fn rates(schedule: &Schedule, steps: usize) -> Result<Vec<f64>> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[1], |w| Init::Constant(0.0).emit(w, 0));
    let optimizer = ScheduledOptimizer { optimizer: Sgd { rate: 7.0 }, schedule: schedule.clone() };
    optimizer.minimize(&w.sum(&[]))?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (mut rates, mut last) = (vec![], 0.0);
    for _ in 0..steps {
        executor.run(&net.program()?, &mut scope, &[], &[])?;
        let w = scope.get("w")?.item()?;
        rates.push(last - w);
        last = w;
    }
    Ok(rates)
}

#[test]
fn programs_compute_the_rates_of_schedules() -> Result<()> {
    let schedules = [
        Schedule::constant(0.3),
        Schedule::step(0.5, 0.1, 3),
        Schedule::step(0.5, 0.0, 2),
        Schedule::linear(0.5, 0.1, 4),
        Schedule::linear(0.5, 0.1, 0),
        Schedule::cosine(0.5, 0.1, 6),
        Schedule::cosine(0.5, 0.1, 6).warmup(3),
        Schedule::constant(0.2).warmup(0),
        Schedule::linear(0.1, 0.5, 3).then(2, Schedule::step(0.4, 0.5, 2).warmup(2)),
        Schedule::constant(1.0).then(0, Schedule::constant(0.25)),
    ];
    for schedule in schedules {
        for (step, rate) in rates(&schedule, 12)?.into_iter().enumerate() {
            let expected = schedule.rate(step as u64);
            assert!((rate - expected).abs() < 1e-14, "{schedule}, step {step}: {rate}, not {expected}");
        }
    }
    Ok(())
}

#[test]
fn rates_of_groups_and_of_all_dtypes_follow_the_schedule() -> Result<()> {
    let net = Builder::new();
    let parameter = |name: &str, dtype: DType| -> Expr {
        net.parameter(name, dtype, &[1], |w| Init::Constant(0.0).emit(w, 0))
    };
    let (a, b, c) = (parameter("a", DType::F32), parameter("b", DType::F32), parameter("c", DType::F64));
    let loss = a.sum(&[]) + b.sum(&[]) + c.sum(&[]).cast(DType::F32);
    let optimizer = Sgd { rate: 1.0 }.group("b", Sgd { rate: 0.5 });
    let schedule = Schedule::linear(1.0, 0.0, 4);
    ScheduledOptimizer { optimizer, schedule }.minimize(&loss)?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for _ in 0..3 {
        executor.run(&net.program()?, &mut scope, &[], &[])?;
    }
    // 1 + 0.75 + 0.5, in float64 for all.
    let values = ["a", "b", "c"].map(|name| scope.get(name).and_then(|value| value.item()).unwrap());
    assert_eq!(values, [-2.25, -1.125, -2.25]);

    let eager = autobwd::eager();
    let w = eager.parameter("w", DType::F32, &[1], |w| Init::Constant(1.0).emit(w, 0));
    let optimizer = ScheduledOptimizer { optimizer: Sgd { rate: 1.0 }, schedule: Schedule::constant(1.0) };
    let e = optimizer.minimize(&w.square().mean()).unwrap_err().to_string();
    assert!(e.contains("give it the rate `schedule.rate(step)`"), "{e}");
    Ok(())
}

#[test]
fn wrappers_of_a_scheduled_optimizer_keep_the_schedule() -> Result<()> {
    let schedule = Schedule::linear(1.0, 0.0, 4);
    let scheduled = || ScheduledOptimizer { optimizer: Sgd { rate: 0.0 }, schedule: schedule.clone() };
    let wrapped: [Box<dyn Optimizer>; 5] = [
        Box::new(scheduled().name("critic")),
        Box::new(scheduled().weight_decay(0.0)),
        Box::new(scheduled().clip(GradientClip::Value(10.0))),
        Box::new(scheduled().group("b", Sgd { rate: 1.0 })),
        Box::new("sgd,schedule=linear(1,0,4)".parse::<OptimizerSpec>()?.name("a")),
    ];
    for optimizer in wrapped {
        let net = Builder::new();
        let [a, b] =
            ["a", "b"].map(|name| net.parameter(name, DType::F32, &[1], |w| Init::Constant(0.0).emit(w, 0)));
        optimizer.minimize(&(a + b).sum(&[]))?.complete()?;
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        for _ in 0..3 {
            executor.run(&net.program()?, &mut scope, &[], &[])?;
        }
        assert_eq!((scope.get("a")?.item()?, scope.get("b")?.item()?), (-2.25, -2.25));
    }
    let net = Builder::new();
    let b = net.parameter("b", DType::F32, &[1], |w| Init::Constant(0.0).emit(w, 0));
    let e = Sgd { rate: 0.1 }.group("b", scheduled()).minimize(&b.sum(&[])).unwrap_err().to_string();
    assert!(e.contains("group `b` has a schedule of its own"), "{e}");
    Ok(())
}
