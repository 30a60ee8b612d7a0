//! Softmax regression, trained on all images but one.

use autobwd::{Builder, DType, Executor, Expr, Feed, Meta, Program, Result, Scope, Session, Tensor};
use autobwd_ops::{
    Init, Math,
    optim::{Momentum, Optimizer},
};

use crate::data::{INK, Image, PIXELS};

/// Pixels, and a one for the bias.
pub(crate) const FEATURES: usize = PIXELS + 1;
pub(crate) const CLASSES: usize = 10;
/// The factor of the squared weights in the loss, which makes its Hessian positive.
const DECAY: f64 = 1e-2;
const STEPS: usize = 300;

/// Images as tensors.
pub(crate) struct Digits {
    /// `[n, FEATURES]`, from 0 to 1.
    pub(crate) features: Tensor,
    /// `[n, 1]`.
    pub(crate) label: Tensor,
}

impl Digits {
    pub(crate) fn new(images: &[Image]) -> Result<Digits> {
        let row = |image: &Image| image.pixels.map(|pixel| f32::from(pixel) / f32::from(INK));
        let rows = images.iter().flat_map(|image| row(image).into_iter().chain([1.0])).collect();
        let labels = images.iter().map(|image| image.label).collect();
        Ok(Digits {
            features: Tensor::from_vec([images.len(), FEATURES], rows)?,
            label: Tensor::from_vec([images.len(), 1], labels)?,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.label.numel()
    }

    pub(crate) fn feeds(&self) -> [(&'static str, &Tensor); 2] {
        [("features", &self.features), ("label", &self.label)]
    }
}

/// The weights, and the loss of each image.
pub(crate) fn losses(net: &Builder) -> (Expr, Expr) {
    let features = net.input("features", DType::F32, &[-1, FEATURES as i64]);
    let label = net.input("label", DType::I64, &[-1, 1]);
    let weights = net.parameter("weights", DType::F32, &[FEATURES, CLASSES], |weights| {
        Init::Constant(0.0).emit(weights, 0)
    });
    let losses = features.matmul(&weights).cross_entropy(&label);
    (weights, losses)
}

/// The loss of `n` images. An image with `kept` 0 does not count.
pub(crate) fn total_loss(net: &Builder, n: usize) -> Expr {
    let (weights, losses) = losses(net);
    let kept = net.input("kept", DType::F32, &[-1, 1]);
    (losses * kept).sum(&[]) * (1.0 / n as f64) + weights.square().sum(&[]) * (DECAY / 2.0)
}

/// Trainings from the same initial weights, by one plan.
pub(crate) struct Training {
    initial: Scope,
    scope: Scope,
    session: Session,
    evaluation: Program,
    /// The losses of `evaluation`.
    losses: String,
}

impl Training {
    pub(crate) fn new(executor: &mut Executor, n: usize) -> Result<Training> {
        let net = Builder::new();
        let optimizer = Momentum { rate: 0.2, momentum: 0.9, nesterov: false, lazy: false };
        optimizer.minimize(&total_loss(&net, n))?.complete()?;
        let mut scope = Scope::new();
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let metas = [
            ("features", Meta::new(DType::F32, [n, FEATURES])),
            ("label", Meta::new(DType::I64, [n, 1])),
            ("kept", Meta::new(DType::F32, [n, 1])),
        ];
        let session = executor.prepare(&net.program()?, &mut scope, &metas, &[])?;
        let evaluated = Builder::new();
        let (_, losses) = losses(&evaluated);
        Ok(Training {
            initial: scope.clone(),
            scope,
            session,
            evaluation: evaluated.program()?.clone(),
            losses: losses.name(),
        })
    }

    /// The trained weights.
    pub(crate) fn scope(&mut self) -> &mut Scope {
        &mut self.scope
    }

    /// Trains without an image, and returns the loss of each test image.
    pub(crate) fn losses_without(
        &mut self,
        executor: &mut Executor,
        image: Option<usize>,
        digits: &Digits,
        tests: &Digits,
    ) -> Result<Vec<f64>> {
        let mut kept = vec![1.0_f32; digits.len()];
        if let Some(kept) = image.and_then(|image| kept.get_mut(image)) {
            *kept = 0.0;
        }
        let kept = Tensor::from_vec([digits.len(), 1], kept)?;
        for (name, value) in self.initial.iter() {
            self.scope.set(name, value.clone());
        }
        for _ in 0..STEPS {
            for (name, value) in digits.feeds().into_iter().chain([("kept", &kept)]) {
                self.session.feed(name, value)?;
            }
            self.session.run(&mut self.scope)?;
        }
        let feeds: [(&str, &dyn Feed); 2] = [("features", &tests.features), ("label", &tests.label)];
        let fetched = executor.run(&self.evaluation, &mut self.scope, &feeds, &[&self.losses])?;
        Ok(fetched[0].to_f64s())
    }
}
