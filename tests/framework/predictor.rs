//! Inference by several threads with shared weights.

use std::thread;

use autobwd::{Builder, DType, Executor, Expr, Feed, Program, Result, Scope, Tensor, exec::Predictor};
use autobwd_ops::{
    Init, Math, concat,
    control::{dynamic_dims, while_loop},
    nn,
    optim::{Optimizer, Sgd},
};

/// A network with the loss of each example.
fn network(net: &Builder) -> (Expr, Expr) {
    let (x, y) = (net.input("x", DType::F32, &[-1, 3]), net.input("y", DType::I64, &[-1, 1]));
    let h = nn::BatchNorm::builder(net, 3).build().forward(&x).tanh();
    let scores = nn::Linear::builder(net, 3, 4).seed(1).build().forward(&h);
    (scores.cross_entropy(&y), scores)
}

fn started(net: &Builder) -> Result<Scope> {
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    Ok(scope)
}

fn predictor() -> Result<Predictor> {
    let net = Builder::new();
    let (loss, scores) = net.eval_mode(|| network(&net));
    Predictor::new(&net.program()?, started(&net)?, &[&loss.name(), &scores.name()])
}

fn request(number: usize) -> Result<(Tensor, Tensor)> {
    let n = number % 8 + 1;
    let x = (0..n * 3).map(|i| ((i * 7 + number) % 11) as f32 / 5.0 - 1.0).collect();
    let y = (0..n).map(|i| ((i + number) % 4) as i64).collect();
    Ok((Tensor::from_vec([n, 3], x)?, Tensor::from_vec([n, 1], y)?))
}

fn answer(predictor: &mut Predictor, number: usize) -> Result<Vec<Tensor>> {
    let (x, y) = request(number)?;
    predictor.predict(&[("x", &x), ("y", &y)])
}

#[test]
fn threads_are_bit_identical_after_the_original_is_dropped() -> Result<()> {
    let mut one = predictor()?.cache_size(2);
    let expected: Vec<Vec<Tensor>> = (0..64).map(|k| answer(&mut one, k)).collect::<Result<_>>()?;
    let clones: Vec<Predictor> = (0..4).map(|_| one.clone()).collect();
    drop(one);
    let expected = &expected;
    thread::scope(|scope| {
        for (first, mut own) in clones.into_iter().enumerate() {
            scope.spawn(move || {
                for k in (0..64).map(|k| (k * 5 + first * 16) % 64) {
                    assert_eq!(answer(&mut own, k).unwrap(), expected[k]);
                }
            });
        }
    });
    Ok(())
}

#[test]
fn predictions_equal_those_of_an_executor() -> Result<()> {
    let net = Builder::new();
    let (loss, scores) = net.eval_mode(|| network(&net));
    let (mut scope, mut executor) = (started(&net)?, Executor::new());
    let mut predictor = predictor()?.threads(2);
    for number in 0..8 {
        let (x, y) = request(number)?;
        let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("y", &y)];
        let expected = executor.run(&net.program()?, &mut scope, &feeds, &[&loss.name(), &scores.name()])?;
        assert_eq!(predictor.predict(&feeds)?, expected);
        assert_eq!(predictor.run(&feeds)?.slice::<f32>(&scores.name())?, expected[1].slice::<f32>()?);
    }
    Ok(())
}

#[test]
fn clones_share_the_memory_of_the_weights() -> Result<()> {
    let addresses = |of: &Predictor| -> Vec<*const u8> {
        of.scope().iter().map(|(_, value)| value.bytes().as_ptr()).collect()
    };
    let mut one = predictor()?;
    let before = addresses(&one);
    let mut two = one.clone();
    for number in 0..20 {
        answer(&mut one, number)?;
        answer(&mut two, number)?;
    }
    assert_eq!(before.len(), 6);
    assert_eq!(addresses(&one), before);
    assert_eq!(addresses(&two), before);
    // Plans read the weights in place: the memory of a run has no room for them.
    let net = Builder::new();
    let out = nn::Linear::builder(&net, 1000, 1000).build().forward(&net.input("x", DType::F32, &[-1, 1000]));
    let mut large = Predictor::new(&net.program()?, started(&net)?, &[&out.name()])?;
    let x = Tensor::zeros(DType::F32, &[1, 1000])?;
    let session = large.run(&[("x", &x)])?;
    assert!(session.arena_bytes() < 20_000, "{session:?}");
    Ok(())
}

#[test]
fn failed_request_does_not_disturb_others() -> Result<()> {
    let mut one = predictor()?;
    let mut two = one.clone();
    let expected = answer(&mut one, 3)?;
    let (x, _) = request(3)?;
    let y = Tensor::from_vec([4, 1], vec![0_i64, 1, 9, 0])?;
    let wide = Tensor::zeros(DType::F32, &[4, 5])?;
    for _ in 0..3 {
        let e = one.predict(&[("x", &x), ("y", &y)]).unwrap_err().to_string();
        assert!(e.ends_with("class index 9 is not within 0..4"), "{e}");
        let e = one.predict(&[("x", &wide), ("y", &y)]).unwrap_err().to_string();
        assert!(e.contains("`x` cannot be fed") && e.contains("[4, 5]"), "{e}");
        let e = one.predict(&[("x", &x)]).unwrap_err().to_string();
        assert!(e.contains("`y`") && e.contains("feed it"), "{e}");
        assert_eq!(answer(&mut one, 3)?, expected);
        assert_eq!(answer(&mut two, 3)?, expected);
    }
    Ok(())
}

#[test]
fn programs_that_write_the_scope_are_refused() -> Result<()> {
    let net = Builder::new();
    let loss = network(&net).0.mean();
    let refused = |program: &Program, scope: Scope| -> String {
        Predictor::new(program, scope, &[&loss.name()]).unwrap_err().to_string()
    };
    let e = refused(&*net.program()?, started(&net)?);
    assert!(e.starts_with("operator `batch_norm` (block 0, operator 0, added at "), "{e}");
    let text = "a predictor shares `batch_norm_0.mean` between threads, but this operator writes it";
    assert!(e.ends_with(text), "{e}");

    let net = Builder::new();
    let loss = net.eval_mode(|| network(&net)).0.mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let e = Predictor::new(&net.program()?, started(&net)?, &[&loss.name()]).unwrap_err().to_string();
    assert!(e.starts_with("operator `sgd`") && e.contains("but this operator writes it"), "{e}");
    let e = Predictor::new(&net.program()?, started(&net)?, &["los"]).unwrap_err().to_string();
    assert!(e.starts_with("cannot fetch: ") && e.contains("`los`"), "{e}");
    Ok(())
}

/// A loop of dynamic shapes reads a weight of the shared scope in its steps and after it.
#[test]
fn operators_of_dynamic_shape_read_shared_weights() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[1], |w| Init::Constant(2.0).emit(w, 0));
    let x = dynamic_dims(&net.input("x", DType::F32, &[-1]), &[0]);
    let limit = &w * 50.0;
    let last = while_loop(
        &[x],
        |v| v[0].sum(&[]).less_than(&limit.sum(&[])),
        |v| vec![concat(&[&v[0], &(&v[0] * &w)], 0)],
    );
    let out = (&last[0] * &w).name();
    let program = net.program()?;
    let (mut scope, mut executor) = (started(&net)?, Executor::new());
    let mut one = Predictor::new(&program, started(&net)?, &[&out])?;
    let mut two = one.clone();
    for n in [1, 3, 1, 2] {
        let x = Tensor::from_vec([n], vec![1.0_f32; n])?;
        let expected = executor.run(&program, &mut scope, &[("x", &x)], &[&out])?;
        assert_eq!(one.predict(&[("x", &x)])?, expected);
        assert_eq!(two.predict(&[("x", &x)])?, expected);
    }
    Ok(())
}

/// Plans are made again only for shapes that have left the cache.
#[test]
fn cache_size_of_executors_is_settable() -> Result<()> {
    let net = Builder::new();
    let y = net.input("x", DType::F32, &[-1]).tanh().name();
    let (program, mut scope) = (net.program()?, Scope::new());
    for (size, kept) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
        let mut executor = Executor::new().cache_size(size);
        for n in 1..6 {
            let x = Tensor::zeros(DType::F32, &[n])?;
            executor.run(&program, &mut scope, &[("x", &x)], &[&y])?;
        }
        assert!(format!("{executor:?}").contains(&format!("sessions: {kept},")), "{executor:?}");
        let executor = executor.cache_size(1);
        assert!(format!("{executor:?}").contains("sessions: 1,"), "{executor:?}");
    }
    Ok(())
}
