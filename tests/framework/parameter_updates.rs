//! Parameter updates: fused with the gradient's product, and horizontally fused.

use autobwd::{Arg, Builder, DType, Executor, Expr, Result, Scope, Tensor, emit};
use autobwd_ops::{
    Math,
    optim::{Momentum, Optimizer, Sgd},
    update,
};

use crate::support::programs::float_parameter as parameter;

#[test]
fn weight_takes_its_step_within_the_product_of_its_gradient() -> Result<()> {
    let net = Builder::new();
    let x = parameter(&net, "x", &[20, 8]);
    let w = parameter(&net, "w", &[8, 5]);
    let loss = x.tanh().matmul(&w).tanh().mean();
    Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let executor = Executor::with_threads(1);
    let operators = |fetches: &[&str]| -> Result<Vec<String>> {
        let plan = executor.plan(&net.program()?, &scope, &[], fetches)?;
        Ok(plan.instructions().iter().flat_map(|frame| frame.operators.clone()).collect())
    };
    let joined = |operators: Vec<String>| operators.iter().any(|op| op == "matmul_v2_grad_sgd");
    assert!(joined(operators(&[&loss.name()])?));
    assert!(!joined(operators(&["w@GRAD"])?), "the gradient is wanted itself");

    let step = |fetches: &[&str]| -> Result<Vec<Tensor>> {
        let mut scope = Scope::new();
        let mut executor = Executor::with_threads(1);
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        executor.run(&net.program()?, &mut scope, &[], fetches)?;
        Ok(vec![scope.get("w")?.clone(), scope.get("x")?.clone()])
    };
    for (together, apart) in step(&[])?.iter().zip(step(&["w@GRAD"])?) {
        for (a, b) in together.slice::<f32>()?.iter().zip(apart.slice::<f32>()?) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    }
    Ok(())
}

#[test]
fn updates_run_side_by_side_unless_one_needs_the_other() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[20, 300]);
    let names = ["a", "b", "c", "d"];
    let sizes: [&[usize]; 4] = [&[300, 500], &[500], &[500, 7], &[7]];
    let w: Vec<Expr> = names.iter().zip(sizes).map(|(n, dims)| parameter(&net, n, dims)).collect();
    let h = (x.matmul(&w[0]) + &w[1]).tanh();
    let loss = (h.matmul(&w[2]) + &w[3]).square().mean();
    Momentum { rate: 0.1, momentum: 0.9, nesterov: true, lazy: false }.minimize(&loss)?.complete()?;
    let x = Tensor::from_vec([20, 300], (0..6000).map(|i| (i as f32).sin()).collect())?;
    let step = |mut executor: Executor| -> Result<Vec<Tensor>> {
        let mut scope = Scope::new();
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let plan = executor.plan(&net.program()?, &scope, &[("x", x.meta())], &[])?;
        let updates = plan.instructions().iter().filter(|f| f.operators.iter().any(|op| op == "momentum"));
        assert_eq!(updates.count(), 1, "{plan}");
        for _ in 0..3 {
            executor.run(&net.program()?, &mut scope, &[("x", &x)], &[])?;
        }
        names.iter().map(|name| scope.get(name).cloned()).collect()
    };
    let apart = {
        let mut scope = Scope::new();
        let mut executor = Executor::with_threads(1).check_finite(true);
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        for _ in 0..3 {
            executor.run(&net.program()?, &mut scope, &[("x", &x)], &[])?;
        }
        names.iter().map(|name| scope.get(name).cloned()).collect::<Result<Vec<_>>>()?
    };
    for threads in [1, 2, 3, 7] {
        assert_eq!(step(Executor::with_threads(threads))?, apart, "{threads} threads");
    }

    // The second reads a variable that the first writes.
    let net = Builder::new();
    let (w, v, rate) =
        (parameter(&net, "w", &[8, 4]), parameter(&net, "v", &[4]), parameter(&net, "rate", &[1]));
    let descend = |param: &Expr, grad: &Expr| {
        emit(update::SgdOp {
            param: param.into(),
            grad: grad.into(),
            learning_rate: Arg::from(&rate),
            param_out: param.into(),
        })
        .param_out
    };
    descend(&v, &v);
    descend(&w, &(&w * &v));
    let mut scope = Scope::new();
    let mut executor = Executor::with_threads(1);
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let plan = executor.plan(&net.program()?, &scope, &[], &[])?;
    assert_eq!(plan.instructions().len(), 2, "{plan}");
    Ok(())
}
