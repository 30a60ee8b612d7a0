//! Hyperparameters out of bounds are refused where they are given and where they are set.

use autobwd::{Builder, DType, Result, Scope, Tensor};
use autobwd_ops::{
    Init, Math,
    nn::CrossEntropyLoss,
    optim::{
        Adagrad, Adam, AdamW, GradientClip, Lamb, Momentum, Optimizer, Plateau, RmsProp, Schedule,
        ScheduledOptimizer, Sgd, set_rate,
    },
};

use crate::support::parameter;

const WRONG: [f32; 3] = [-0.5, f32::NAN, f32::INFINITY];

#[test]
fn optimizers_check_their_hyperparameters() -> Result<()> {
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    let sgd = Sgd { rate: 0.1 };
    let mut wrong: Vec<(&str, Box<dyn Optimizer>)> = vec![];
    for x in WRONG {
        wrong.extend([
            ("rate", Box::new(Sgd { rate: x }) as Box<dyn Optimizer>),
            ("rate", Box::new(Momentum { rate: x, ..momentum })),
            ("rate", Box::new(Adam::new(x))),
            ("rate", Box::new(AdamW::new(x))),
            ("rate", Box::new(Lamb::new(x))),
            ("rate", Box::new(Adagrad::new(x))),
            ("rate", Box::new(RmsProp::new(x))),
            ("momentum", Box::new(Momentum { momentum: x, ..momentum })),
            ("beta1", Box::new(Adam { beta1: x, ..Adam::new(0.1) })),
            ("beta2", Box::new(AdamW { beta2: x, ..AdamW::new(0.1) })),
            ("epsilon", Box::new(Adam { epsilon: x, ..Adam::new(0.1) })),
            ("decay", Box::new(AdamW { decay: x, ..AdamW::new(0.1) })),
            ("decay", Box::new(Lamb { decay: x, ..Lamb::new(0.1) })),
            ("initial", Box::new(Adagrad { initial: x, ..Adagrad::new(0.1) })),
            ("epsilon", Box::new(Adagrad { epsilon: x, ..Adagrad::new(0.1) })),
            ("decay", Box::new(RmsProp { decay: x, ..RmsProp::new(0.1) })),
            ("momentum", Box::new(RmsProp { momentum: x, ..RmsProp::new(0.1) })),
            ("clip", Box::new(sgd.clip(GradientClip::Value(x)))),
            ("clip", Box::new(sgd.clip(GradientClip::Norm(x)))),
            ("clip", Box::new(sgd.clip(GradientClip::GlobalNorm(x)).name("one"))),
            ("decay", Box::new(sgd.weight_decay(x))),
            ("decay", Box::new(sgd.group("w", sgd.weight_decay(x)))),
            ("rate", Box::new(sgd.group("w", Sgd { rate: x }))),
            ("rate", Box::new(sgd.group("w", sgd).group("v", Adam::new(x).clip(GradientClip::Norm(1.0))))),
        ]);
    }
    wrong.push(("beta1", Box::new(Adam { beta1: 1.0, ..Adam::new(0.1) })));
    wrong.push(("decay", Box::new(RmsProp { decay: 1.0, ..RmsProp::new(0.1) })));
    wrong.push(("clip", Box::new(sgd.clip(GradientClip::Norm(0.0)))));
    wrong.push(("rate", Box::new(Sgd { rate: 0.0 }.group("w", sgd))));
    let scheduled = |schedule: Schedule| ScheduledOptimizer { optimizer: sgd, schedule };
    let first = Schedule::constant(0.1);
    wrong.push(("rate", Box::new(scheduled(Schedule::linear(0.1, -0.1, 10)))));
    wrong.push(("rate", Box::new(scheduled(Schedule::cosine(0.1, -0.1, 10).warmup(2)))));
    wrong.push(("gamma", Box::new(scheduled(first.clone().then(2, Schedule::step(0.5, -0.5, 2))))));
    wrong.push(("rate", Box::new(scheduled(Schedule::constant(f64::NAN).then(2, first)))));
    wrong.push(("rate", Box::new(scheduled(Schedule::linear(0.0, 0.1, 10)).group("w", sgd))));
    for eager in [false, true] {
        for (name, optimizer) in &wrong {
            let net = if eager { autobwd::eager() } else { Builder::new() };
            let (w, v) = (parameter(&net, "w", 1, 1.0), parameter(&net, "v", 1, 1.0));
            let e = optimizer.minimize(&(w * v).sum(&[])).unwrap_err();
            assert!(e.message().starts_with(&format!("attribute `{name}`: ")), "{e}");
            net.program()?;
        }
    }
    Ok(())
}

#[test]
fn rates_that_are_set_are_checked() -> Result<()> {
    let mut scope = Scope::new();
    scope.set("rate", Tensor::from_vec([1], vec![0.5_f32])?);
    let wrong = [-0.5, f64::NAN, f64::INFINITY, 1e300];
    for x in wrong {
        let e = [
            set_rate(&mut scope, "rate", x),
            Schedule::constant(x).set(&mut scope, "rate", 0),
            Schedule::linear(x, x, 3).warmup(2).set(&mut scope, "rate", 5),
            Plateau::new(x).set(&mut scope, "rate"),
        ];
        for e in e {
            let e = e.unwrap_err();
            assert!(e.message().starts_with("attribute `rate`: "), "{e}");
        }
        assert_eq!(scope.get("rate")?.item()?, 0.5);
    }
    set_rate(&mut scope, "rate", 0.0)?;
    Ok(())
}

#[test]
fn label_smoothing_is_checked() -> Result<()> {
    for x in [-0.1, 1.5, f64::NAN] {
        let tape = autobwd::eager();
        let logits = tape.constant(Tensor::from_vec([1, 2], vec![0.0_f32; 2])?);
        let labels = tape.constant(Tensor::from_vec([1, 1], vec![0_i64])?);
        let line = line!() + 1;
        let loss = CrossEntropyLoss::new().label_smoothing(x).forward(&logits, &labels);
        let e = loss.check().unwrap_err().to_string();
        assert!(e.starts_with("attribute `label_smoothing`: "), "{e}");
        assert!(e.ends_with(&format!("hyperparameters.rs:{line}")), "{e}");
    }
    Ok(())
}

#[test]
fn errors_name_the_line_of_the_call() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0));
    let loss = w.square().mean();
    let line = line!() + 1;
    let e = Sgd { rate: -1.0 }.minimize(&loss).unwrap_err().to_string();
    assert!(e.ends_with(&format!("hyperparameters.rs:{line}")), "{e}");
    let optimizer: &dyn Optimizer = &Sgd { rate: -1.0 };
    let line = line!() + 1;
    let e = optimizer.minimize(&loss).unwrap_err().to_string();
    assert!(e.ends_with(&format!("hyperparameters.rs:{line}")), "{e}");
    Ok(())
}
