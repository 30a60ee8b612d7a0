//! Losses of single elements (`huber_loss`, `bce_loss`, `log_loss`, `hinge_loss`, `rank_loss`), each defined by a
//! formula.

use autobwd::{
    Composition, Derived, Expr, Float, Pointwise, Var, check::*, op::DerivedFromInputs, register_op,
};

use crate::Math;

/// Huber loss of the residual `r = y - x`: `out = r² / 2` where `|r| <= delta`, else `delta * (|r| - delta / 2)`.
#[register_op(grad = HuberLossGrad, pointwise)]
pub struct HuberLoss<V = Var> {
    /// Predictions, any shape.
    #[input]
    pub x: V,
    /// Targets, same shape as `x`.
    #[input]
    pub y: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// The residual, same shape as `x`, for the gradient.
    #[output(inplace = y)]
    pub residual: V,
    /// Where the loss becomes linear; it is not negative.
    #[attr(min = 0.0)]
    pub delta: f32,
}
impl<F: Float> Pointwise for HuberLoss<F> {
    fn eval(&mut self) {
        let (residual, delta) = (self.y - self.x, F::from(self.delta));
        let size = residual.abs();
        let line = delta * (size - delta * 0.5);
        self.out = F::select(size.gt(delta), line, residual * residual * 0.5);
        self.residual = residual;
    }
}
impl Composition for HuberLoss<Expr> {
    fn compose(&mut self) {
        let (residual, delta) = (&self.y - &self.x, f64::from(self.delta));
        // Both branches in one product, which is finite where `delta` is infinite.
        let bounded = residual.clip(-delta, delta);
        self.out = &bounded * (&residual - &bounded * 0.5);
        self.residual = residual;
    }
}
autobwd::samples!(
    HuberLoss,
    [
        huber_loss(given([2, 3], [0.0, 0.25, -0.5, 2.0, -3.0, 0.75]), between(-0.1, 0.1, [2, 3]), 1.0),
        huber_loss(given([4], [-0.125, 0.5, 2.0, -3.0]), between(-0.1, 0.1, [4]), 0.25),
        huber_loss(uniform([]), uniform([]), 4.0),
        huber_loss(uniform([0, 3]), uniform([0, 3]), 1.0),
        huber_loss(uniform([2, 3]), uniform([3]), 1.0).fails("`Y`: shape [3]"),
    ]
);

fn huber_loss(x: Draw, y: Draw, delta: f32) -> HuberLoss<Draw> {
    HuberLoss { x, y, out: out(), residual: out(), delta }
}

/// `dx = -dout * r` where `|r| <= delta`, else `-dout * delta * sign(r)`; `dy = -dx`.
#[register_op(grad_of = HuberLoss, grad = Derived, pointwise)]
pub struct HuberLossGrad<V = Var> {
    pub residual: V,
    pub dout: V,
    #[output(inplace = dout, like = residual)]
    pub dx: Option<V>,
    #[output(like = residual)]
    pub dy: Option<V>,
    pub delta: f32,
}
impl<F: Float> Pointwise for HuberLossGrad<F> {
    fn eval(&mut self) {
        let (residual, delta) = (self.residual, F::from(self.delta));
        let low = F::select((-delta).gt(residual), -delta, residual);
        let slope = self.dout * F::select(low.gt(delta), delta, low);
        self.dx = self.dx.map(|_| -slope);
        self.dy = self.dy.map(|_| slope);
    }
}

/// `ln(x)`, at least -100.
#[inline(always)]
fn bounded<F: Float>(log: F) -> F {
    let least = F::from(-100.0);
    F::select(least.gt(log), least, log)
}

/// Binary cross entropy of probabilities: `out = -label * ln(x) - (1 - label) * ln(1 - x)`, with logarithms of at least
/// -100.
#[register_op(grad = BceLossGrad, pointwise)]
pub struct BceLoss<V = Var> {
    /// Probabilities, any shape.
    #[input]
    pub x: V,
    /// Target probabilities, same shape as `x`.
    #[input]
    pub label: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for BceLoss<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (yes, no) = (bounded(self.x.log()), bounded((-self.x).log1p()));
        self.out = (self.label - 1.0) * no - self.label * yes;
    }
}
autobwd::samples!(
    BceLoss,
    [
        BceLoss { x: between(0.1, 0.9, [2, 3]), label: uniform([2, 3]), out: out() },
        BceLoss { x: between(0.1, 0.9, [4]), label: given([4], [0.0, 1.0, 0.0, 1.0]), out: out() },
        BceLoss { x: given([2], [0.0, 1.0]), label: given([2], [1.0, 0.0]), out: out() }
            .not_a_derivative("the logarithm of 0 is bounded"),
        BceLoss { x: uniform([2, 3]), label: uniform([3]), out: out() }.fails("`Label`: shape [3]"),
    ]
);

/// `dx = dout * (x - label) / max(x * (1 - x), 1e-12)`, `dlabel = dout * (ln(1 - x) - ln(x))`, with logarithms of at
/// least -100.
#[register_op(grad_of = BceLoss, grad = Derived, pointwise)]
pub struct BceLossGrad<V = Var> {
    pub x: V,
    pub label: V,
    pub dout: V,
    #[output(inplace = dout, like = x)]
    pub dx: Option<V>,
    #[output(like = label)]
    pub dlabel: Option<V>,
}
impl<F: Float> Pointwise for BceLossGrad<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (x, least) = (self.x, F::from(1e-12));
        let product = (F::from(1.0) - x) * x;
        let divisor = F::select(least.gt(product), least, product);
        self.dx = self.dx.map(|_| self.dout * (x - self.label) / divisor);
        self.dlabel = self.dlabel.map(|_| self.dout * (bounded((-x).log1p()) - bounded(x.log())));
    }
}

/// Negative log likelihood of binary labels:
/// `loss = -labels * ln(predicted + epsilon) - (1 - labels) * ln(1 - predicted + epsilon)`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct LogLoss<V = Var> {
    /// Probabilities, any shape.
    #[input]
    pub predicted: V,
    /// 0 or 1, same shape as `predicted`.
    #[input]
    pub labels: V,
    /// Same shape as `predicted`.
    #[output(inplace = predicted)]
    pub loss: V,
    /// Added to the arguments of logarithms.
    #[attr]
    pub epsilon: f32,
}
impl<F: Float> Pointwise for LogLoss<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let (x, label, epsilon) = (self.predicted, self.labels, F::from(self.epsilon));
        let one = F::from(1.0);
        self.loss = -(label * (x + epsilon).log()) - (one - label) * (one - x + epsilon).log();
    }
}
autobwd::samples!(
    LogLoss,
    [
        log_loss(between(0.1, 0.9, [2, 3]), uniform([2, 3]), 1e-4),
        log_loss(between(0.0, 1.0, [4]), given([4], [0.0, 1.0, 0.0, 1.0]), 0.25),
        log_loss(uniform([2, 3]), uniform([3]), 1e-4).fails("`Labels`: shape [3]"),
    ]
);

fn log_loss(predicted: Draw, labels: Draw, epsilon: f32) -> LogLoss<Draw> {
    LogLoss { predicted, labels, loss: out(), epsilon }
}

/// Hinge loss: `loss = max(0, 1 - logits * (2 * labels - 1))`.
///
/// Where the margin is 0, the gradient is 0.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct HingeLoss<V = Var> {
    /// Predictions, any shape.
    #[input]
    pub logits: V,
    /// 0 or 1, same shape as `logits`.
    #[input]
    pub labels: V,
    /// Same shape as `logits`.
    #[output(inplace = logits)]
    pub loss: V,
}
impl<F: Float> Pointwise for HingeLoss<F> {
    fn eval(&mut self) {
        let margin = F::from(1.0) - self.logits * (self.labels * 2.0 - 1.0);
        // NaN stays NaN.
        let none = F::select(margin.equals(margin), F::from(0.0), margin);
        self.loss = F::select(margin.gt(F::from(0.0)), margin, none);
    }
}
autobwd::samples!(
    HingeLoss,
    [
        HingeLoss {
            logits: given([6], [-2.0, -0.25, 0.25, 0.5, 1.5, 3.0]),
            labels: given([6], [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]),
            loss: out()
        },
        HingeLoss { logits: between(-0.3, 0.3, [2, 3]), labels: uniform([2, 3]), loss: out() },
        HingeLoss { logits: given([1], [1.0]), labels: given([1], [1.0]), loss: out() }
            .not_a_derivative("it has a kink where the margin is 0"),
        HingeLoss { logits: uniform([2, 3]), labels: uniform([3]), loss: out() }.fails("`Labels`: shape [3]"),
    ]
);

/// Ranking loss (RankNet; Burges et al., 2005): `out = ln(1 + exp(left - right)) - label * (left - right)`.
#[register_op(grad = RankLossGrad, pointwise)]
pub struct RankLoss<V = Var> {
    /// 1 where the left one ranks higher, 0 where the right one does, any shape.
    #[input]
    pub label: V,
    /// Scores, same shape as `label`.
    #[input]
    pub left: V,
    /// Scores, same shape as `label`.
    #[input]
    pub right: V,
    /// Same shape as `label`.
    #[output(inplace = left)]
    pub out: V,
}
impl<F: Float> Pointwise for RankLoss<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let x = self.left - self.right;
        let above = F::select(F::from(0.0).gt(x), F::from(0.0), x);
        self.out = above + (-x.abs()).exp().log1p() - self.label * x;
    }
}
autobwd::samples!(
    RankLoss,
    [
        RankLoss { label: uniform([2, 3]), left: uniform([2, 3]), right: uniform([2, 3]), out: out() },
        RankLoss {
            label: given([2], [0.0, 1.0]),
            left: given([2], [40.0, -40.0]),
            right: given([2], [0.0, 0.5]),
            out: out()
        },
        RankLoss { label: uniform([2]), left: uniform([3]), right: uniform([2]), out: out() }
            .fails("`Left`: shape [3]"),
        RankLoss { label: uniform([2]), left: uniform([2]), right: uniform([3]), out: out() }
            .fails("`Right`: shape [3]"),
    ]
);

/// `dleft = dout * (sigmoid(left - right) - label)`, `dright = -dleft`, `dlabel = -dout * (left - right)`.
#[register_op(grad_of = RankLoss, grad = Derived, pointwise)]
pub struct RankLossGrad<V = Var> {
    pub label: V,
    pub left: V,
    pub right: V,
    pub dout: V,
    #[output(like = label)]
    pub dlabel: Option<V>,
    #[output(inplace = dout, like = left)]
    pub dleft: Option<V>,
    #[output(like = right)]
    pub dright: Option<V>,
}
impl<F: Float> Pointwise for RankLossGrad<F> {
    #[inline(always)]
    fn eval(&mut self) {
        let x = self.left - self.right;
        let slope = self.dout * (x.sigmoid() - self.label);
        self.dlabel = self.dlabel.map(|_| -(self.dout * x));
        self.dleft = self.dleft.map(|_| slope);
        self.dright = self.dright.map(|_| -slope);
    }
}
