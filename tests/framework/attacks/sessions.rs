//! Sessions whose scope is swapped, cloned, dropped or replaced, and executors that are dropped.

use autobwd::{Builder, DType, ErrorKind, Executor, Meta, Result, Scope, Tensor};
use autobwd_ops::{Init, Math};

#[test]
fn session_runs_on_the_memory_it_was_prepared_for() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[1000], |w| Init::Constant(0.5).emit(w, 0));
    let x = net.input("x", DType::F32, &[1000]);
    let sum = (&x * &w).sum(&[]).name();
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let feeds = [("x", Meta::new(DType::F32, [1000]))];
    let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&sum, "w"])?;
    drop(executor);
    let fed = Tensor::from_vec([1000], vec![1.0_f32; 1000])?;
    let mut run = |scope: &mut Scope| -> Result<f64> {
        session.feed("x", &fed)?;
        session.run(scope)?;
        session.item(&sum)
    };
    assert_eq!(run(&mut scope)?, 500.0);

    // A scope may move; a clone of it is a different scope.
    let mut copy = scope.clone();
    assert!(run(&mut copy).is_err());
    std::mem::swap(&mut scope, &mut copy);
    assert_eq!(run(&mut copy)?, 500.0);
    let mut moved = *Box::new(std::mem::take(&mut copy));
    assert!(run(&mut copy).is_err());
    moved.set("w", Tensor::from_vec([1000], vec![2.0_f32; 1000])?);
    assert_eq!(run(&mut moved)?, 2000.0);

    // The session only knows its own memory, even if other memory has the same bytes.
    for other in [Tensor::zeros(DType::F32, &[1001])?, Tensor::zeros(DType::I32, &[1000])?] {
        let mut other_scope = Scope::new();
        other_scope.set("w", Tensor::zeros(DType::F32, &[1000])?);
        other_scope.set("w", other);
        assert!(run(&mut other_scope).is_err());
    }
    moved.set("w", Tensor::zeros(DType::F32, &[1001])?);
    assert!(run(&mut moved).is_err());
    drop(moved);
    // Fetched values are in the session's own memory.
    assert_eq!(session.slice::<f32>("w")?.len(), 1000);
    let e = session.slice::<f32>("v").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Fetch);
    Ok(())
}

#[test]
fn sessions_of_one_executor_run_on_several_threads() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[300, 300]);
    let sum = x.matmul(&x).tanh().matmul(&x).softmax(-1).square().sum(&[]).name();
    let executor = Executor::with_threads(2);
    let fed = Tensor::from_vec([300, 300], (0..90_000).map(|i| (i % 17) as f32 / 1000.0).collect())?;
    let feeds = [("x", Meta::new(DType::F32, [300, 300]))];
    let mut sessions = vec![];
    for _ in 0..3 {
        let mut scope = Scope::new();
        sessions.push((executor.prepare(&net.program()?, &mut scope, &feeds, &[&sum])?, scope));
    }
    let sums: Vec<Result<f64>> = std::thread::scope(|threads| {
        let run = |(mut session, mut scope): (autobwd::Session, Scope)| {
            let mut last = 0.0;
            for _ in 0..3 {
                session.feed("x", &fed)?;
                session.run(&mut scope)?;
                last = session.item(&sum)?;
            }
            Ok(last)
        };
        let running: Vec<_> = sessions.drain(..).map(|session| threads.spawn(move || run(session))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sums = sums.into_iter().collect::<Result<Vec<_>>>()?;
    assert!(sums[0] > 0.0 && sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    Ok(())
}
