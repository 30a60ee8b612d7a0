//! Parameters of rank 0 and of no elements: every optimizer with every option.

use autobwd::{Backward, Builder, DType, Executor, Result, Scope};
use autobwd_ops::{
    Init, Math,
    optim::{
        Adagrad, Adam, AdamW, GradientClip, Lamb, Lbfgs, Momentum, Optimizer, RmsProp, Sgd,
        compute_gradients, global_norm,
    },
};

fn optimizers() -> Vec<(&'static str, Box<dyn Optimizer>)> {
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    vec![
        ("sgd", Box::new(Sgd { rate: 0.1 })),
        ("momentum", Box::new(momentum)),
        ("nesterov", Box::new(Momentum { nesterov: true, ..momentum })),
        ("lazy momentum", Box::new(Momentum { lazy: true, ..momentum })),
        ("adam", Box::new(Adam::new(0.1))),
        ("lazy adam", Box::new(Adam { lazy: true, ..Adam::new(0.1) })),
        ("adamw", Box::new(AdamW::new(0.1))),
        ("lazy adamw", Box::new(AdamW { lazy: true, ..AdamW::new(0.1) })),
        ("lamb", Box::new(Lamb::new(0.1))),
        ("adagrad", Box::new(Adagrad::new(0.1))),
        ("rmsprop", Box::new(RmsProp::new(0.1))),
        ("centered rmsprop", Box::new(RmsProp { momentum: 0.5, centered: true, ..RmsProp::new(0.1) })),
    ]
}

/// A boxed optimizer as one, so that options apply to it.
struct Boxed(Box<dyn Optimizer>);

impl Optimizer for Boxed {
    fn learning_rate(&self) -> f32 {
        self.0.learning_rate()
    }

    fn update(
        &self,
        parameter: &autobwd::Expr,
        gradient: &autobwd::Expr,
        learning_rate: &autobwd::Expr,
    ) -> Result<()> {
        self.0.update(parameter, gradient, learning_rate)
    }
}

/// Every optimizer without option and with each of them.
fn cases() -> Vec<(String, Box<dyn Optimizer>)> {
    type Option = fn(Boxed) -> Box<dyn Optimizer>;
    let options: [(&str, Option); 8] = [
        ("", |o| Box::new(o)),
        (", value", |o| Box::new(o.clip(GradientClip::Value(0.3)))),
        (", norm", |o| Box::new(o.clip(GradientClip::Norm(0.3)))),
        (", global norm", |o| Box::new(o.clip(GradientClip::GlobalNorm(0.3)))),
        (", decay", |o| Box::new(o.weight_decay(0.1))),
        (", group", |o| Box::new(o.group("w", Sgd { rate: 0.05 }))),
        (", name", |o| Box::new(o.name("one"))),
        (", all", |o| Box::new(o.clip(GradientClip::GlobalNorm(0.3)).weight_decay(0.1).name("one"))),
    ];
    let mut cases: Vec<(String, Box<dyn Optimizer>)> = vec![];
    for (option, with) in options {
        for (name, optimizer) in optimizers() {
            cases.push((format!("{name}{option}"), with(Boxed(optimizer))));
        }
    }
    cases
}

/// The values of `w` after some steps, next to a parameter `v`.
fn train(optimizer: &dyn Optimizer, dtype: DType, dims: &[usize], eager: bool) -> Result<Vec<f64>> {
    let net = if eager { autobwd::eager() } else { Builder::new() };
    let w = net.parameter("w", dtype, dims, |w| Init::Constant(0.7).emit(w, 0));
    let v = net.parameter("v", DType::F64, &[1], |v| Init::Constant(0.5).emit(v, 0));
    let step = || {
        let loss = w.square().sum(&[]).cast(DType::F64) + v.square().sum(&[]);
        optimizer.minimize(&loss)?.complete()
    };
    if eager {
        for _ in 0..3 {
            step()?;
        }
        return Ok(w.tensor()?.to_f64s());
    }
    step()?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for _ in 0..3 {
        executor.run(&net.program()?, &mut scope, &[], &[])?;
    }
    assert_eq!(scope.get("w")?.dims(), dims);
    Ok(scope.get("w")?.to_f64s())
}

#[test]
fn scalars_are_trained_like_vectors_of_one_element() -> Result<()> {
    for (name, optimizer) in cases() {
        for dtype in [DType::F32, DType::F64] {
            let expected = train(&*optimizer, dtype, &[1], false)?;
            assert!(expected[0] < 0.7, "{name}: {expected:?}");
            for eager in [false, true] {
                let found = train(&*optimizer, dtype, &[], eager)?;
                assert_eq!(found, expected, "{name}, {dtype}, eager: {eager}");
            }
        }
    }
    Ok(())
}

#[test]
fn empty_parameters_are_unchanged() -> Result<()> {
    for (name, optimizer) in cases() {
        for dims in [&[0][..], &[0, 3], &[2, 0]] {
            for eager in [false, true] {
                assert!(train(&*optimizer, DType::F32, dims, eager)?.is_empty(), "{name}");
            }
        }
    }
    Ok(())
}

#[test]
fn gradient_of_a_scalar_keeps_its_rank() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[], |w| Init::Constant(3.0).emit(w, 0));
    let gradients = compute_gradients(&w.square(), &Backward::default())?.complete()?;
    assert_eq!(global_norm(&gradients).dims().to_string(), "[1]");
    for clip in [GradientClip::Value(1.0), GradientClip::Norm(1.0), GradientClip::GlobalNorm(1.0)] {
        assert_eq!(clip.apply(&gradients)?[0].1.dims().to_string(), "[]");
    }
    Ok(())
}

#[test]
fn lbfgs_trains_scalars() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[], |w| Init::Constant(3.0).emit(w, 0));
    let loss = (&w - 1.0).square();
    let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
    let (mut executor, mut scope, mut optimizer) = (Executor::with_threads(1), Scope::new(), Lbfgs::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for _ in 0..3 {
        optimizer.step(&mut executor, &*net.program()?, &mut scope, &[], &loss, &gradients)?;
    }
    assert!((scope.get("w")?.item()? - 1.0).abs() < 1e-9);
    Ok(())
}
