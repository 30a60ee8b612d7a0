//! Running statistics updated in place, and gradients with them.

use autobwd::{
    Arg, Backward, Builder, DType, Executor, Expr, New, Program, Result, Scope, Tensor, append_backward,
    emit, gradients,
};
use autobwd_ops::{
    Init, Math,
    norm::{BatchNormOp, DataLayout},
};

/// A parameter of 2 samples with 2 channels, and running statistics.
struct Net {
    net: Builder,
    x: Expr,
    mean: Expr,
    variance: Expr,
}

impl Net {
    fn new() -> Net {
        let net = Builder::new();
        let constant = |x: f64| move |v: &Expr| Init::Constant(x).emit(v, 0);
        let x = net.parameter("x", DType::F64, &[2, 2], constant(0.0));
        let mean = net.persistable("mean", DType::F64, &[2], constant(1.0)).freeze();
        let variance = net.persistable("variance", DType::F64, &[2], constant(3.0)).freeze();
        Net { net, x, mean, variance }
    }

    /// Updates statistics in place; saved values have no gradient.
    fn batch_norm(&self, x: &Expr, is_test: bool) -> Expr {
        let op = emit(BatchNormOp {
            x: x.into(),
            scale: None,
            bias: None,
            mean: Arg::from(&self.mean),
            variance: (&self.variance).into(),
            y: New,
            mean_out: (&self.mean).into(),
            variance_out: (&self.variance).into(),
            saved_mean: New,
            saved_variance: New,
            reserve_space: None,
            momentum: 0.5,
            epsilon: 1.0,
            data_layout: DataLayout::Nchw,
            is_test,
            use_global_stats: false,
            trainable_statistics: false,
        });
        drop([op.saved_mean.freeze(), op.saved_variance.freeze()]);
        op.y
    }

    fn scope(&self) -> Result<Scope> {
        let mut scope = Scope::new();
        Executor::new().run(&self.net.startup().program()?, &mut scope, &[], &[])?;
        Ok(scope)
    }
}

/// Values of `names`.
fn run(program: &Program, scope: &mut Scope, x: [f64; 4], names: &[&str]) -> Result<Vec<Vec<f64>>> {
    scope.set("x", Tensor::from_vec([2, 2], x.to_vec())?);
    let fetched = Executor::new().run(program, scope, &[], names)?;
    Ok(fetched.iter().map(Tensor::to_f64s).collect())
}

/// Running mean and variance.
fn running(scope: &Scope) -> [Vec<f64>; 2] {
    let kept = |name: &str| scope.iter().find(|(n, _)| *n == name).map(|(_, t)| t.to_f64s());
    ["mean", "variance"].map(|name| kept(name).unwrap_or_default())
}

/// Compares a gradient with central differences.
fn assert_derivative(net: &Net, program: &Program, of: &str, gradient: &str) -> Result<()> {
    let x = [0.25, -1.0, 1.5, 2.0];
    let built = run(program, &mut net.scope()?, x, &[gradient])?.remove(0);
    for i in 0..x.len() {
        let side = |step: f64| -> Result<f64> {
            let mut x = x;
            x[i] += step;
            Ok(run(program, &mut net.scope()?, x, &[of])?[0].iter().sum())
        };
        let numeric = (side(1e-5)? - side(-1e-5)?) / 2e-5;
        assert!((built[i] - numeric).abs() < 1e-8, "{built:?}, element {i}: {numeric}");
    }
    Ok(())
}

#[test]
fn statistics_are_updated_once_per_use() -> Result<()> {
    let net = Net::new();
    let y = net.batch_norm(&net.x, false);
    let twice = net.batch_norm(&(&y * 2.0), false);
    let loss = twice.exp().mean();
    let mut program = net.net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    autobwd::verify(&program)?;
    let mut scope = net.scope()?;
    run(&program, &mut scope, [1.0, 3.0, 5.0, 3.0], &[])?;
    let [mean, variance] = running(&scope);
    // Batch means 3 and 3, variances 4 and 0; then means 0, and variances 4 · 4 / 5 and 0.
    assert_eq!(mean, [(1.0 + 3.0) / 4.0, (1.0 + 3.0) / 4.0]);
    assert!((variance[0] - ((3.0 + 4.0) / 4.0 + 1.6)).abs() < 1e-12, "{variance:?}");
    assert_eq!(variance[1], 3.0 / 4.0);
    assert_derivative(&net, &program, &loss.name(), "x@GRAD")
}

#[test]
fn given_statistics_stay_and_gradients_may_read_them() -> Result<()> {
    let net = Net::new();
    let loss = net.batch_norm(&net.x, true).square().mean();
    let mut program = net.net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    let mut scope = net.scope()?;
    let values = run(&program, &mut scope, [1.0, 3.0, 5.0, 3.0], &[&loss.name(), "x@GRAD"])?;
    assert_eq!(running(&scope), [vec![1.0; 2], vec![3.0; 2]]);
    assert_eq!(values, [vec![(0.0 + 1.0 + 4.0 + 1.0) / 4.0], vec![0.0, 0.25, 0.5, 0.25]]);
    Ok(())
}

#[test]
fn given_statistics_updated_later_are_saved() -> Result<()> {
    let net = Net::new();
    let y = net.batch_norm(&net.x, true);
    let loss = net.batch_norm(&y, false).exp().mean();
    let mut program = net.net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    assert!(program.to_string().contains("mean@KEPT@0 = assign(X=mean)"), "{program}");
    assert_derivative(&net, &program, &loss.name(), "x@GRAD")
}

#[test]
fn second_derivatives_skip_saved_statistics() -> Result<()> {
    let net = Net::new();
    let y = net.batch_norm(&net.x, false).exp();
    let mut program = net.net.program()?.clone();
    let first = gradients(&mut program, &[&y.name()], &["x"], &Default::default())?.entries()[0].unwrap();
    let first = program.name(first).to_string();
    assert_derivative(&net, &program, &y.name(), &first)?;
    let second = gradients(&mut program, &[&first], &["x"], &Default::default())?.entries()[0].unwrap();
    let second = program.name(second).to_string();
    assert_derivative(&net, &program, &first, &second)?;
    let third = gradients(&mut program, &[&second], &["x"], &Default::default())?.entries()[0].unwrap();
    let third = program.name(third).to_string();
    assert_derivative(&net, &program, &second, &third)
}

/// A batch may be empty: the last one of a filtered data set.
#[test]
fn empty_batch_leaves_the_running_statistics() -> Result<()> {
    let tape = autobwd::eager();
    let vector = |x: [f64; 2]| tape.constant(Tensor::from_vec([2], x.to_vec()).unwrap());
    let x = tape.leaf("x", Tensor::zeros(DType::F64, &[0, 2, 3])?);
    let op = emit(BatchNormOp {
        x: (&x).into(),
        scale: None,
        bias: None,
        mean: vector([0.5, -3.0]).into(),
        variance: vector([2.0, 4.0]).into(),
        y: New,
        mean_out: New,
        variance_out: New,
        saved_mean: New,
        saved_variance: New,
        reserve_space: None,
        momentum: 0.5,
        epsilon: 1.0,
        data_layout: DataLayout::Nchw,
        is_test: false,
        use_global_stats: false,
        trainable_statistics: false,
    });
    assert_eq!(op.mean_out.tensor()?.to_f64s(), [0.5, -3.0]);
    assert_eq!(op.variance_out.tensor()?.to_f64s(), [2.0, 4.0]);
    Ok(())
}
