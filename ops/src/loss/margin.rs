//! Losses of margins between scores: `modified_huber_loss` and `bpr_loss`.

use std::f64::consts::LN_2;

use autobwd::{
    Composed, Composition, DType, Expr, Float, Infer, Meta, New, Pointwise, Result, Var, check::*, emit,
    op::DerivedFromInputs, register_op,
};

use crate::{Math, gather::are_numbers, scatter::TakeAlongAxis};

/// Modified Huber loss of the margin `z = (2y - 1) * x` (Zhang, 2004): `out = max(0, 1 - z)²` where `z >= -1`, else `-4z`.
#[register_op(grad = DerivedFromInputs, pointwise)]
pub struct ModifiedHuberLoss<V = Var> {
    /// Scores, any shape.
    #[input]
    pub x: V,
    /// Labels, 0 or 1, same shape as `x`.
    #[input]
    pub y: V,
    /// The margin `z`, same shape as `x`.
    #[output]
    pub intermediate_val: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for ModifiedHuberLoss<F> {
    fn eval(&mut self) {
        let (zero, one) = (F::from(0.0), F::from(1.0));
        let z = (self.y * 2.0 - 1.0) * self.x;
        let missing = (one - z).max(zero);
        self.out = F::select((-one).gt(z), z * -4.0, missing * missing);
        self.intermediate_val = z;
    }
}
autobwd::samples!(
    ModifiedHuberLoss,
    [
        modified_huber(given([2, 3], [0.5, -0.25, 2.0, -3.0, 1.5, -0.75]), given([2, 3], LABELS)),
        modified_huber(given([6], [-2.5, 3.5, -0.625, 1.25, -1.5, 0.125]), given([6], LABELS)),
        modified_huber(given([3], [0.25, 0.5, -0.125]), given([3], [-0.75, 0.25, 2.0])),
        modified_huber(between(-0.5, 0.5, []), given([], [1.0])),
        modified_huber(uniform([0, 3]), uniform([0, 3])),
        modified_huber(uniform([2, 3]), uniform([3])).fails("`Y`: shape [3]"),
    ]
);

const LABELS: [f64; 6] = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0];

fn modified_huber(x: Draw, y: Draw) -> ModifiedHuberLoss<Draw> {
    ModifiedHuberLoss { x, y, intermediate_val: out(), out: out() }
}

/// Bayesian personalised ranking (Rendle et al., 2009): `y = -Σ ln(sigmoid(x[label] - x[j])) / (n - 1)`, the mean over
/// all other classes `j` of `n`.
#[register_op(grad = Composed, composed)]
pub struct BprLoss<V = Var> {
    /// Scores of at least two classes, `[.., n]`.
    #[input]
    pub x: V,
    /// Class indices, int64 or int32, `[.., 1]`.
    #[input]
    pub label: V,
    /// The losses, `[.., 1]`.
    #[output]
    pub y: V,
}
impl Infer for BprLoss<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        are_numbers(&self.label)?;
        let last = self.x.rank().checked_sub(1);
        let axis = last.ok_or_else(|| self.x.wrong("at least one dimension is needed"))?;
        let is_choice = self.x.dims[axis].get().is_none_or(|n| n > 1);
        self.x.require(is_choice, || "at least two classes are needed".into())?;
        self.y.like(&self.x);
        self.y.dims[axis] = 1.into();
        let dims = self.y.dims.clone();
        self.label.require(self.label.dims.agrees(&dims), || format!("dimensions {dims} are needed"))
    }
}
impl Composition for BprLoss<Expr> {
    fn compose(&mut self) {
        let (input, index) = ((&self.x).into(), (&self.label).into());
        let own = emit(TakeAlongAxis { input, index, result: New, axis: -1 }).result;
        // The class itself adds `ln(2)`, whatever its score is.
        let sum = (&self.x - &own).softplus().sum_keepdim(&[-1]) - LN_2;
        self.y = &sum / &(self.x.dim(-1) - 1);
    }
}
autobwd::samples!(
    BprLoss,
    [
        BprLoss { x: uniform([4, 3]), label: integers_below(3, [4, 1]), y: out() },
        BprLoss { x: uniform([2, 4, 3]), label: integers_below(3, [2, 4, 1]).of(DType::I32), y: out() },
        BprLoss { x: uniform([5]), label: integers(&[2]), y: out() },
        BprLoss { x: uniform([0, 3]), label: integers_below(3, [0, 1]), y: out() },
        BprLoss { x: uniform([2, 3]), label: given([2, 1], [0.0, 3.0]).of(DType::I64), y: out() }
            .fails("`Index`: 3 is not within 0..3"),
        BprLoss { x: uniform([2, 1]), label: integers_below(1, [2, 1]), y: out() }
            .fails("`X`: at least two classes are needed"),
        BprLoss { x: uniform([]), label: integers_below(1, []), y: out() }
            .fails("`X`: at least one dimension is needed"),
        BprLoss { x: uniform([2, 3]), label: integers_below(3, [2]), y: out() }
            .fails("`Label`: dimensions [2, 1] are needed"),
        BprLoss { x: uniform([2, 3]), label: uniform([2, 1]), y: out() }.fails("`Label`"),
        BprLoss { x: integers_below(9, [2, 3]), label: integers_below(3, [2, 1]), y: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);
