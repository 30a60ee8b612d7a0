//! Losses.
//!
//! In cross entropies, a lane is a one-dimensional slice along the axis, with one element for each class.

mod angular_margin;
mod cross_entropy;
mod ctc;
mod divergence;
mod elementwise;
mod hierarchical;
mod identity;
mod linear_cross_entropy;
mod logit_tiles;
mod margin;
mod softmax_cross_entropy;

pub use angular_margin::MarginCrossEntropy;
pub use cross_entropy::{CrossEntropy, CrossEntropyGrad, CrossEntropyRule};
pub use ctc::{CtcLoss, CtcLossGrad, Warpctc};
pub use divergence::{
    DivergenceReduction, KldivLoss, KldivLossGrad, LabelSmooth, LabelSmoothGrad, LossReduction, NllLoss,
    NllLossGrad,
};
pub use elementwise::{
    BceLoss, BceLossGrad, HingeLoss, HuberLoss, HuberLossGrad, LogLoss, RankLoss, RankLossGrad,
};
pub use hierarchical::HierarchicalSigmoid;
pub use identity::IdentityLoss;
pub use linear_cross_entropy::{LinearCrossEntropy, LinearCrossEntropyAttrs, LinearCrossEntropyGrad};
pub use margin::{BprLoss, ModifiedHuberLoss};
pub use softmax_cross_entropy::{
    SoftmaxWithCrossEntropy, SoftmaxWithCrossEntropyGrad, SoftmaxWithCrossEntropyRule,
};

use autobwd::{Buf, DType, Dims, Error, Expr, GradCx, Meta, New, Result, Var, emit, tensor::Dim};
use ndarray::ArrayView1;

use crate::{
    Math,
    activation::{Log, Scale},
    elementwise::ElementwiseMul,
    gather::OneHotV2,
    kernel_helpers::KernelFloat,
    math::{in_dtype, like, positions},
    scatter::TakeAlongAxis,
    softmax::{SoftmaxLanes, sum, sum_along},
};

/// `dlabel = -dloss * ln x`, if it is wanted; class indices have no gradient.
fn push_label_gradient(g: &mut GradCx<'_>, label: Var, x: Var, dloss: Var) {
    if let Some(out) = g.wanted(label) {
        let (log, product) = (g.fresh("log"), g.fresh("product"));
        g.push(Log { x, out: log });
        g.push(ElementwiseMul { x: log, y: dloss, out: product, axis: -1 });
        g.push(Scale { x: product, out, scale: -1.0, bias: 0.0, bias_after_scale: true });
    }
}

/// The gradient of `-Σ weights * ln x`: `-dloss * weights / x`, 0 where both are 0.
fn of_probabilities(x: &Expr, weights: &Expr, dloss: &Expr) -> Expr {
    // The quotient of a zero probability without weight is undefined, so such elements are divided by 1.
    let divisors = (weights.abs() + x.abs()).not_equal(&like(x, 0.0)).where_cond(x, &like(x, 1.0));
    -(weights / &divisors * dloss)
}

/// Class indices in a composition: one for each lane of `x`, with size 1 along the axis.
struct LabelExprs {
    index: Expr,
    is_ignored: Expr,
}

impl LabelExprs {
    fn of(label: &Expr, x: &Expr, axis: i32, ignored: i32) -> LabelExprs {
        let has_axis = label.dims().len() == x.dims().len();
        let index = if has_axis { label.clone() } else { label.unsqueeze(&[axis]) };
        LabelExprs { is_ignored: index.equal(&like(&index, ignored.into())), index }
    }

    /// The indices, with another number in ignored lanes.
    fn with_ignored(&self, number: f64) -> Expr {
        self.is_ignored.where_cond(&like(&self.index, number), &self.index)
    }

    /// 1 at the label of each lane of `x`, 0 elsewhere and in ignored lanes.
    fn one_hot(&self, x: &Expr, axis: i32) -> Expr {
        let (index, rank) = (self.with_ignored(-1.0), x.dims().len() as i32);
        let axis = axis.rem_euclid(rank);
        // Eager gradients must know shapes before they run, and the shape of positions follows from a value.
        if let Some(classes) = x.dim(axis).known() {
            let (dtype, depth) = (x.dtype(), classes as i32);
            let index = index.squeeze(&[axis]).into();
            let chosen = emit(OneHotV2 { x: index, out: New, depth, dtype, allow_out_of_range: true }).out;
            let order: Vec<i32> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
            return if axis == rank - 1 { chosen } else { chosen.transpose(&order) };
        }
        let mut dims = vec![1; rank as usize];
        dims[axis as usize] = -1;
        let classes = positions(x.builder(), &x.dim(axis)).reshape(&dims);
        in_dtype(&index, DType::I64).equal(&classes).cast(x.dtype())
    }
}

/// Soft labels in the shape of `x`, from any labels: class indices become one-hot, ignored lanes 0.
fn weights(label: &Expr, x: &Expr, axis: i32, soft: bool, ignored: i32) -> Expr {
    if soft { label.clone() } else { LabelExprs::of(label, x, axis, ignored).one_hot(x, axis) }
}

/// `-ln x` at the label of each lane, 0 in ignored lanes; with soft labels `-Σ label * ln x`. `x` are probabilities, or their
/// logarithms. Those without weight, perhaps 0 or infinite, do not count.
fn negative_log(x: &Expr, are_logarithms: bool, label: &Expr, axis: i32, soft: bool, ignored: i32) -> Expr {
    // The logarithm of what does not count is 0.
    let without = |mask: &Expr, x: &Expr| {
        let x = mask.where_cond(&like(x, if are_logarithms { 0.0 } else { 1.0 }), x);
        if are_logarithms { x } else { x.log() }
    };
    if soft {
        return -sum_along(&(label * &without(&label.equal(&like(label, 0.0)), x)), axis);
    }
    let labels = LabelExprs::of(label, x, axis, ignored);
    let index = labels.with_ignored(0.0).into();
    let picked = emit(TakeAlongAxis { input: x.into(), index, result: New, axis }).result;
    -without(&labels.is_ignored, &picked)
}

/// Infers the shape of the loss.
fn infer_loss(x: &Meta, label: &Meta, axis: i32, soft: bool) -> Result<Dims> {
    x.float()?;
    let axis = x.axis("axis", axis.into())?;
    if x.dims[axis] == 0 {
        return Err(x.wrong("at least one class is needed"));
    }
    let mut dims = x.dims.clone();
    dims[axis] = Dim::from(1);
    if soft {
        label.same_as(x)?;
        return Ok(dims);
    }
    if !matches!(label.dtype, DType::I64 | DType::I32) {
        return Err(label.wrong("class indices (int64 or int32) are needed"));
    }
    let without_axis: Dims = [&x.dims[..axis], &x.dims[axis + 1..]].concat().into_iter().collect();
    if !label.dims.agrees(&dims) && !label.dims.agrees(&without_axis) {
        return Err(label.wrong(&format!("class indices of shape {dims} are needed")));
    }
    Ok(dims)
}

/// The targets of the classes.
#[derive(Clone, Copy)]
enum LossTarget<'a, T> {
    Hard(ClassLabels<'a>),
    Soft(&'a [T]),
}

impl<'a, T: KernelFloat> LossTarget<'a, T> {
    fn new(label: &'a Buf<'_>, soft: bool, classes: usize, ignored: i32) -> Result<LossTarget<'a, T>> {
        if soft {
            Ok(LossTarget::Soft(label.slice()?))
        } else {
            Ok(LossTarget::Hard(ClassLabels::new(label, classes, ignored)?))
        }
    }
}

impl<T: KernelFloat> LossTarget<'_, T> {
    /// The cross entropy of the probabilities `p` of a lane.
    fn cross_entropy(&self, lanes: &SoftmaxLanes, i: usize, p: ArrayView1<'_, T>) -> T {
        match self {
            LossTarget::Hard(labels) => labels.class(i).map_or(T::ZERO, |class| -p[class].ln()),
            LossTarget::Soft(labels) => {
                T::of(-sum(p, lanes.lane(labels, i), |p, label| weighted(label, libm::log(p))))
            }
        }
    }
}

/// Class indices; indices that are not ignored are within bounds.
#[derive(Clone, Copy)]
struct ClassLabels<'a> {
    numbers: LabelIndices<'a>,
    ignored: i64,
}

#[derive(Clone, Copy)]
enum LabelIndices<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl<'a> ClassLabels<'a> {
    fn new(label: &'a Buf<'_>, classes: usize, ignored: i32) -> Result<ClassLabels<'a>> {
        let numbers = match label.dtype() {
            DType::I32 => LabelIndices::I32(label.slice()?),
            _ => LabelIndices::I64(label.slice()?),
        };
        let labels = ClassLabels { numbers, ignored: ignored.into() };
        let is_bad = |class: &usize| *class >= classes;
        match (0..label.numel()).find(|i| labels.class(*i).as_ref().is_some_and(is_bad)) {
            Some(i) => {
                let (slot, number) = (label.slot(), labels.number(i));
                Err(Error::data(format!("`{slot}`: class index {number} is not within 0..{classes}")))
            }
            None => Ok(labels),
        }
    }

    fn number(&self, lane: usize) -> i64 {
        match self.numbers {
            LabelIndices::I32(all) => all[lane].into(),
            LabelIndices::I64(all) => all[lane],
        }
    }

    /// The class of a lane, `None` if the lane is ignored.
    fn class(&self, lane: usize) -> Option<usize> {
        let number = self.number(lane);
        // A negative index is out of any bounds.
        (number != self.ignored).then(|| usize::try_from(number).unwrap_or(usize::MAX))
    }
}

/// `weight * x`, where weight 0 gives 0 even for infinite `x`.
fn weighted(weight: f64, x: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { weight * x }
}
