//! The operators of this crate in a program, in its gradient, and in the checker.

use autobwd::{Builder, DType, Executor, Scope, Tensor, append_backward, check};
use autobwd_downstream::swish;
use autobwd_ops::Math;

#[test]
fn samples_hold() {
    let own: Vec<_> = check::samples().into_iter().filter(|s| ["swish", "outer"].contains(&s.op())).collect();
    assert_eq!(own.len(), 6);
    for sample in own {
        check::check_sample(&sample).unwrap();
    }
}

#[test]
fn swish_trains() -> autobwd::Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[3])?;
    let w = net.parameter("w", DType::F32, &[3], |w| autobwd_ops::Init::Constant(0.5).emit(w, 0))?;
    let loss = swish(&(&x * &w)?, 2.0)?.mean()?;
    let (name, mut program) = (loss.name(), net.program().clone());
    append_backward(&mut program, &name, &Default::default())?;

    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program(), &mut scope, &[], &[])?;
    let x = Tensor::from_vec([3], vec![1.0_f32, -2.0, 0.0])?;
    let grad = executor.run(&program, &mut scope, &[("x", &x)], &["w@GRAD"])?;
    let expected = [1.0_f32, -2.0, 0.0].map(|x| {
        let (z, s) = (x * 0.5, 1.0 / (1.0 + (-x).exp()));
        x / 3.0 * (s + 2.0 * z * s * (1.0 - s))
    });
    for (grad, expected) in grad[0].slice::<f32>()?.iter().zip(expected) {
        assert!((grad - expected).abs() < 1e-6, "{grad} {expected}");
    }
    Ok(())
}
