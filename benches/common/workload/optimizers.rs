//! Training steps of a small network with every optimizer of the library, once for each of its options.

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    optim::{Adagrad, Adam, AdamW, GradientClip, Lamb, Momentum, Optimizer, RmsProp, Sgd},
};

use super::{WorkloadModel, numbers};

/// The optimizers with names.
fn optimizers() -> Vec<(&'static str, Box<dyn Optimizer>)> {
    let momentum = Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false };
    let (sgd, adam, adamw, lamb) = (Sgd { rate: 0.1 }, Adam::new(0.05), AdamW::new(0.05), Lamb::new(0.05));
    let rms_prop = RmsProp::new(0.05);
    let grouped = adamw.group("b*", AdamW { rate: 0.01, decay: 0.0, ..adamw });
    vec![
        ("sgd", Box::new(sgd)),
        ("sgd_clip_value", Box::new(sgd.clip(GradientClip::Value(0.05)))),
        ("sgd_clip_norm", Box::new(sgd.clip(GradientClip::Norm(0.1)))),
        ("sgd_clip_global_norm", Box::new(sgd.clip(GradientClip::GlobalNorm(0.1)))),
        ("sgd_weight_decay", Box::new(sgd.weight_decay(0.1))),
        ("momentum", Box::new(momentum)),
        ("momentum_nesterov", Box::new(Momentum { nesterov: true, ..momentum })),
        ("momentum_weight_decay", Box::new(momentum.weight_decay(0.1))),
        ("adagrad", Box::new(Adagrad::new(0.1))),
        ("adagrad_initial", Box::new(Adagrad { epsilon: 0.1, initial: 0.5, ..Adagrad::new(0.1) })),
        ("rms_prop", Box::new(rms_prop)),
        ("rms_prop_centered", Box::new(RmsProp { centered: true, epsilon: 0.1, ..rms_prop })),
        ("rms_prop_momentum", Box::new(RmsProp { momentum: 0.5, decay: 0.8, ..rms_prop })),
        ("adam", Box::new(adam)),
        ("adam_betas", Box::new(Adam { beta1: 0.5, beta2: 0.9, epsilon: 0.01, ..adam })),
        ("adam_weight_decay", Box::new(adam.weight_decay(0.1))),
        ("adamw", Box::new(adamw)),
        ("adamw_decay", Box::new(AdamW { decay: 0.5, beta1: 0.5, beta2: 0.9, ..adamw })),
        ("adamw_groups", Box::new(grouped)),
        ("lamb", Box::new(lamb)),
        ("lamb_without_decay", Box::new(Lamb { decay: 0.0, ..lamb })),
        ("lamb_clip", Box::new(Lamb { decay: 0.1, ..lamb }.clip(GradientClip::GlobalNorm(0.1)))),
    ]
}

/// A training step for each optimizer: a network 4-8-2 with tanh and a mean square error, on 16 rows in the scope.
///
/// # Errors
/// Those of building and of the start-up program.
pub fn optimizer_steps(dtype: DType) -> Result<Vec<(&'static str, WorkloadModel)>> {
    let mut steps = vec![];
    for (name, optimizer) in optimizers() {
        let (net, mut scope) = (Builder::new(), Scope::new());
        let mut value = |name: &str, seed: u32, dims: &[usize], scale: f64| -> Result<()> {
            let elements = numbers(seed, dims.iter().product(), scale);
            let tensor = match dtype {
                DType::F64 => Tensor::from_vec(dims, elements.into_iter().map(f64::from).collect())?,
                _ => Tensor::from_vec(dims, elements)?,
            };
            scope.set(name, tensor);
            Ok(())
        };
        for (seed, (name, dims)) in [
            ("x", &[16, 4][..]),
            ("y", &[16, 2]),
            ("w0", &[4, 8]),
            ("b0", &[8]),
            ("w1", &[8, 2]),
            ("b1", &[2]),
        ]
        .into_iter()
        .enumerate()
        {
            value(name, seed as u32 + 1, dims, 0.7)?;
        }
        let [x, y] =
            [("x", 4), ("y", 2)].map(|(name, size)| net.persistable(name, dtype, &[16, size], Expr::clone));
        let parameter = |name: &str, dims: &[usize]| net.parameter(name, dtype, dims, Expr::clone);
        let hidden = (x.matmul(&parameter("w0", &[4, 8])) + parameter("b0", &[8])).tanh();
        let found = hidden.matmul(&parameter("w1", &[8, 2])) + parameter("b1", &[2]);
        let loss = found.square_error(&y).mean();
        optimizer.minimize(&loss)?.complete()?;
        Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
        steps.push((name, WorkloadModel { net, scope, loss: loss.name() }));
    }
    Ok(steps)
}
