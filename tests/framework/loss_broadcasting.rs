//! Losses of predictions and targets of different shapes.

use autobwd::{Builder, DType, Executor, Expr, Feed, New, Result, Scope, Tensor, emit};
use autobwd_ops::{
    Math,
    loss::{BceLoss, DivergenceReduction, HingeLoss, KldivLoss, LogLoss, RankLoss},
};

type Loss = fn(&Expr, &Expr) -> Expr;

/// The error of a loss whose shapes are known only when it runs.
#[track_caller]
fn refused(loss: Loss, dims: [&[usize]; 2], declared: [&[i64]; 2]) -> String {
    let net = Builder::new();
    let [x, y] =
        [("x", declared[0]), ("y", declared[1])].map(|(name, dims)| net.input(name, DType::F32, dims));
    let loss = loss(&x, &y).mean().name();
    let [x, y] = dims.map(|dims| Tensor::zeros(DType::F32, dims).unwrap());
    let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("y", &y)];
    let run = Executor::new().run(&*net.program().unwrap(), &mut Scope::new(), &feeds, &[&loss]);
    run.unwrap_err().to_string()
}

#[test]
fn no_loss_broadcasts_dimensions_that_are_one_when_it_runs() -> Result<()> {
    let losses: [(&str, Loss); 8] = [
        ("square_error", |x, y| x.square_error(y)),
        ("huber_loss", |x, y| x.huber_loss(y, 1.0)),
        ("sigmoid_cross_entropy", |x, y| x.sigmoid_cross_entropy(y)),
        ("bce_loss", |x, y| emit(BceLoss { x: x.into(), label: y.into(), out: New }).out),
        ("log_loss", |x, y| {
            emit(LogLoss { predicted: x.into(), labels: y.into(), loss: New, epsilon: 1e-4 }).loss
        }),
        ("hinge_loss", |x, y| emit(HingeLoss { logits: x.into(), labels: y.into(), loss: New }).loss),
        ("rank_loss", |x, y| {
            emit(RankLoss { label: x.into(), left: y.into(), right: x.into(), out: New }).out
        }),
        ("kldiv_loss", |x, y| {
            let reduction = DivergenceReduction::None;
            emit(KldivLoss { x: x.into(), target: y.into(), loss: New, reduction }).loss
        }),
    ];
    for (name, loss) in losses {
        for targets in [&[3, 1][..], &[1, 2], &[1, 1]] {
            let e = refused(loss, [&[3, 2], targets], [&[-1, -1], &[-1, -1]]);
            let text = format!("shape [{}, {}] does not match [3, 2]", targets[0], targets[1]);
            assert!(e.contains(&text), "{name}: {e}");
            assert!(e.contains("loss_broadcasting.rs:"), "{name}: {e}");
        }
    }
    Ok(())
}

#[test]
fn error_says_what_to_reshape() {
    let square_error: Loss = |x, y| x.square_error(y);
    let e = refused(square_error, [&[4, 1], &[4, 4]], [&[-1, 1], &[-1, -1]]);
    assert!(e.contains("`Y`: shape [4, 4] does not match [4, 1] of `X`"), "{e}");
    let e = refused(square_error, [&[4, 1], &[1, 4]], [&[-1, -1], &[-1, -1]]);
    assert!(e.contains("`Y`: shape [1, 4] does not match [4, 1] of `X`; reshape it to [4, 1]"), "{e}");
}
