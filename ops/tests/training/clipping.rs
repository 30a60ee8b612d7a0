//! Gradients between the backward pass and the update: clipping, weight decay, groups, frozen parameters.

use autobwd::{Backward, Builder, DType, Result, Tensor};
use autobwd_ops::{
    Init, Math,
    nn::{Embedding, Linear},
    optim::{
        Adagrad, Adam, AdamW, GradientClip, Lamb, Momentum, Optimizer, RmsProp, Sgd, compute_gradients,
        freeze, global_norm,
    },
};

use crate::support::{elements, parameter, run, started};

/// The parameters `w` and `v` after a step by an optimizer, with gradients (3, 0) and (0, 4).
fn after_step(optimizer: impl Optimizer) -> Result<[Vec<f32>; 2]> {
    let net = Builder::new();
    let (w, v) = (parameter(&net, "w", 2, 0.0), parameter(&net, "v", 2, 0.0));
    let (a, b) = (net.input("a", DType::F32, &[2]), net.input("b", DType::F32, &[2]));
    optimizer.minimize(&(w * a + v * b).sum(&[]))?.complete()?;
    let mut scope = started(&net)?;
    let a = Tensor::from_vec([2], vec![3.0_f32, 0.0])?;
    let b = Tensor::from_vec([2], vec![0.0_f32, 4.0])?;
    run(&net, &mut scope, &[("a", &a), ("b", &b)], &[])?;
    Ok(["w", "v"].map(|name| elements(&scope, name)))
}

#[test]
fn gradients_are_clipped() -> Result<()> {
    let sgd = Sgd { rate: 1.0 };
    assert_eq!(after_step(sgd.clip(GradientClip::Value(1.0)))?, [[-1.0, 0.0], [0.0, -1.0]]);
    assert_eq!(after_step(sgd.clip(GradientClip::Norm(2.0)))?, [[-2.0, 0.0], [0.0, -2.0]]);
    assert_eq!(after_step(sgd.clip(GradientClip::Norm(3.5)))?, [[-3.0, 0.0], [0.0, -3.5]]);
    assert_eq!(after_step(sgd.clip(GradientClip::GlobalNorm(2.5)))?, [[-1.5, 0.0], [0.0, -2.0]]);
    // Below the limit, bits stay the same.
    assert_eq!(after_step(sgd.clip(GradientClip::GlobalNorm(5.1)))?, after_step(sgd)?);
    let twice = sgd.clip(GradientClip::GlobalNorm(5.0)).clip(GradientClip::Value(3.0));
    assert_eq!(after_step(twice)?, [[-3.0, 0.0], [0.0, -3.0]]);
    Ok(())
}

#[test]
fn clipping_goes_with_every_optimizer() -> Result<()> {
    fn changes<O: Optimizer + Copy>(optimizer: O) -> Result<()> {
        let clipped = after_step(optimizer.clip(GradientClip::GlobalNorm(2.5)).weight_decay(0.1))?;
        assert!(clipped.iter().flatten().all(|x| x.is_finite()));
        Ok(())
    }
    changes(Sgd { rate: 0.1 })?;
    changes(Momentum { rate: 0.1, momentum: 0.9, nesterov: true, lazy: false })?;
    changes(Adam::new(0.1))?;
    changes(AdamW::new(0.1))?;
    changes(Lamb::new(0.1))?;
    changes(RmsProp::new(0.1))?;
    changes(Adagrad::new(0.1))
}

#[test]
fn eager_steps_equal_program_steps() -> Result<()> {
    let optimizer = Sgd { rate: 0.5 }.weight_decay(0.25).clip(GradientClip::GlobalNorm(1.0));
    let group = || optimizer.clone().group("v", Sgd { rate: 0.25 }.clip(GradientClip::Value(0.125)));
    let train = |net: &Builder| {
        let (w, v) = (parameter(net, "w", 2, 3.0), parameter(net, "v", 2, 2.0));
        let loss = (w.square() * v).mean();
        group().minimize(&loss)?.complete()
    };
    let net = Builder::new();
    train(&net)?;
    let mut scope = started(&net)?;
    run(&net, &mut scope, &[], &[])?;
    let tape = autobwd::eager();
    train(&tape)?;
    for name in ["w", "v"] {
        let value = tape.expr(name).tensor()?;
        assert_eq!(value.slice::<f32>()?, elements(&scope, name));
        assert_ne!(elements(&scope, name)[0], if name == "w" { 3.0 } else { 2.0 });
    }
    Ok(())
}

#[test]
fn nan_is_not_clipped_away() -> Result<()> {
    for clip in [GradientClip::Value(1.0), GradientClip::Norm(1.0), GradientClip::GlobalNorm(1.0)] {
        let net = Builder::new();
        let (w, x) = (parameter(&net, "w", 1, 0.0), net.input("x", DType::F32, &[1]));
        Sgd { rate: 1.0 }.clip(clip).minimize(&(w * x).sum(&[]))?.complete()?;
        let mut scope = started(&net)?;
        run(&net, &mut scope, &[("x", &Tensor::from_vec([1], vec![f32::NAN])?)], &[])?;
        assert!(elements(&scope, "w")[0].is_nan(), "{clip:?}");
    }
    Ok(())
}

#[test]
fn sparse_gradients_are_clipped_and_decay() -> Result<()> {
    let after = |sparse: bool| {
        let net = Builder::new();
        let ids = net.input("ids", DType::I64, &[-1]);
        let table = Embedding::builder(&net, 4, 2).init(Init::Constant(1.0)).name("words");
        let table = if sparse { table.sparse().build() } else { table.build() };
        let loss = (table.forward(&ids) * 3.0).sum(&[]);
        let optimizer = Sgd { rate: 1.0 }.weight_decay(0.5).clip(GradientClip::GlobalNorm(2.0));
        optimizer.minimize(&loss)?.complete()?;
        let mut scope = started(&net)?;
        run(&net, &mut scope, &[("ids", &Tensor::from_vec([3], vec![2_i64, 0, 2])?)], &[])?;
        Ok::<_, autobwd::Error>(elements(&scope, "words.w"))
    };
    assert_eq!(after(true)?, after(false)?);
    Ok(())
}

#[test]
fn clipped_sparse_gradients_stay_sparse() -> Result<()> {
    let ids = Tensor::from_vec([3], vec![2_i64, 0, 2])?;
    for clip in [GradientClip::Value(2.0), GradientClip::Norm(3.0), GradientClip::GlobalNorm(4.0)] {
        let after = |sparse: bool| {
            let net = Builder::new();
            let (words, scale) = (net.input("ids", DType::I64, &[-1]), parameter(&net, "scale", 2, 1.5));
            let table = Embedding::builder(&net, 4, 2).init(Init::Constant(1.0)).name("words");
            let table = if sparse { table.sparse().build() } else { table.build() };
            let loss = (table.forward(&words) * scale).sum(&[]);
            let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
            let clipped = clip.apply(&gradients)?;
            assert_eq!(clipped.iter().any(|(_, gradient)| gradient.meta().rows.is_some()), sparse);
            // Momentum that is not lazy moves all rows, in later steps too.
            Momentum { rate: 1.0, momentum: 0.5, nesterov: false, lazy: false }.apply_gradients(&clipped)?;
            let mut scope = started(&net)?;
            for _ in 0..2 {
                run(&net, &mut scope, &[("ids", &ids)], &[])?;
            }
            Ok::<_, autobwd::Error>([elements(&scope, "words.w"), elements(&scope, "scale")])
        };
        let (sparse, dense) = (after(true)?, after(false)?);
        assert_eq!(dense[0][2..4], [1.0, 1.0], "{clip:?}");
        for (x, y) in sparse.iter().flatten().zip(dense.iter().flatten()) {
            assert!((x - y).abs() < 1e-6, "{clip:?}: {sparse:?} {dense:?}");
        }
    }
    Ok(())
}

#[test]
fn global_norm_covers_all_gradients() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", 2, 1.5);
    let v = net.parameter("v", DType::F64, &[1], |v| Init::Constant(2.0).emit(v, 0));
    let loss = w.square().sum(&[]) + v.square().sum(&[]).cast(DType::F32);
    let gradients = compute_gradients(&loss, &Backward::default())?.complete()?;
    let norm = global_norm(&gradients);
    let clipped = GradientClip::GlobalNorm(1.0).apply(&gradients)?;
    Sgd { rate: 1.0 }.apply_gradients(&clipped)?;
    let mut scope = started(&net)?;
    let fetched = run(&net, &mut scope, &[], &[&norm])?;
    assert!((fetched[0].item()? - 34.0_f64.sqrt()).abs() < 1e-6);
    assert!((scope.get("v")?.item()? - (2.0 - 4.0 / 34.0_f64.sqrt())).abs() < 1e-6);
    Ok(())
}

#[test]
fn limits_are_positive_numbers() {
    for limit in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        for clip in [GradientClip::Value(limit), GradientClip::Norm(limit), GradientClip::GlobalNorm(limit)] {
            let e = after_step(Sgd { rate: 1.0 }.clip(clip)).unwrap_err().to_string();
            assert!(e.contains("is not a positive number"), "{e}");
        }
    }
}

#[test]
fn groups_have_their_own_rate_and_decay() -> Result<()> {
    let net = Builder::new();
    let (w, b, e) =
        (parameter(&net, "w", 1, 1.0), parameter(&net, "b", 1, 1.0), parameter(&net, "e", 1, 1.0));
    let sgd = Sgd { rate: 0.5 };
    let loss = (&w + &b + &e).sum(&[]);
    let optimizer = sgd.weight_decay(1.0).group("b", sgd).group("*e*", Sgd { rate: 0.125 });
    optimizer.minimize(&loss)?.complete()?;
    let mut scope = started(&net)?;
    run(&net, &mut scope, &[], &[])?;
    let all = ["w", "b", "e"].map(|name| elements(&scope, name)[0]);
    assert_eq!(all, [0.0, 0.5, 0.875]);
    // One learning rate scales all groups.
    scope.slice_mut::<f32>("learning_rate_0")?[0] = 0.25;
    assert!(scope.get("learning_rate_1").is_err());
    run(&net, &mut scope, &[], &[])?;
    let all = ["w", "b", "e"].map(|name| elements(&scope, name)[0]);
    assert_eq!(all, [-0.25, 0.25, 0.8125]);
    Ok(())
}

#[test]
fn empty_groups_and_unmatched_patterns_are_errors() -> Result<()> {
    let e = after_step(Sgd { rate: 1.0 }.group("x*", Sgd { rate: 0.5 })).unwrap_err();
    assert_eq!(e.message(), "no parameter that is trained is in the group `x*`");
    let e = after_step(Sgd { rate: 0.0 }.group("w", Sgd { rate: 0.5 })).unwrap_err();
    assert!(e.message().contains("the rate of group `w` is 0.5"), "{e}");
    let net = Builder::new();
    parameter(&net, "w", 1, 1.0);
    let before = net.program()?.clone();
    assert_eq!(freeze(&net, &["*", "v*"]).unwrap_err().message(), "no parameter matches `v*`");
    assert_eq!(*net.program()?, before);
    Ok(())
}

#[test]
fn frozen_parameters_stay() -> Result<()> {
    for eager in [false, true] {
        let net = if eager { autobwd::eager() } else { Builder::new() };
        let layers = ["body", "head"].map(|name| Linear::builder(&net, 1, 1).name(name).build());
        assert_eq!(freeze(&net, &["body.*"])?, ["body.w", "body.b"]);
        let (body, head) = (net.expr("body.w"), net.expr("head.w"));
        let loss = match eager {
            true => (body * head + &layers[1].bias.clone().unwrap()).sum(&[]),
            false => layers[1].forward(&layers[0].forward(&net.input("x", DType::F32, &[-1, 1]))).mean(),
        };
        let trained = Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
        let names: Vec<String> = trained.iter().map(|(parameter, _)| parameter.name()).collect();
        assert_eq!(names, ["head.w", "head.b"]);
    }
    Ok(())
}
