//! Softmax cross entropy of logits.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, GradCx, GradRule, Infer, Kernel, Meta, New, Result, Var,
    check::*, emit, op::with_float, register_op, tensor::InOut,
};
use ndarray::ArrayView1;

use super::{
    LabelExprs, LossTarget, infer_loss, negative_log, of_probabilities, push_label_gradient, weighted,
    weights,
};
use crate::{
    Math,
    kernel_helpers::KernelFloat,
    math::{all_sizes, like},
    shape::Assign,
    softmax::{SoftmaxGrad, SoftmaxLanes, largest, softmax, sum, sum_along},
};

/// Softmax cross entropy with labels: `softmax = exp(logits) / Σ exp(logits)`, `loss = -ln softmax[label]`, or
/// `-Σ label * ln softmax` with soft labels. Without `use_softmax`, `softmax = logits`.
///
/// Stable for arbitrarily small probabilities.
#[register_op(grad = SoftmaxWithCrossEntropyRule)]
pub struct SoftmaxWithCrossEntropy<V = Var> {
    /// Any shape with a class dimension.
    #[input]
    pub logits: V,
    /// Class indices, `int64` or `int32`, in the shape of `loss` or without the class axis; soft labels in the shape of
    /// `logits`.
    #[input(checked)]
    pub label: V,
    /// Same shape as `logits`.
    #[output(like = logits)]
    pub softmax: V,
    /// The shape of `logits` with 1 in place of the classes.
    #[output]
    pub loss: V,
    /// Whether labels are class probabilities.
    #[attr(default = false)]
    pub soft_label: bool,
    /// Class index of ignored lanes: their loss is 0.
    #[attr(default = -100)]
    pub ignore_index: i32,
    /// Accepted for compatibility: the computation is always stable.
    #[attr(default = true)]
    pub numeric_stable_mode: bool,
    /// Whether `logits` are logits, not probabilities.
    #[attr(default = true)]
    pub use_softmax: bool,
    /// Class axis; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
}
impl Infer for SoftmaxWithCrossEntropy<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = infer_loss(&self.logits, &self.label, self.axis, self.soft_label)?;
        self.loss.set(self.logits.dtype, dims);
        Ok(())
    }
}
impl Kernel for SoftmaxWithCrossEntropy<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.logits, T => {
            let (lanes, logits) = (SoftmaxLanes::along(&self.logits, self.axis), self.logits.slice::<T>()?);
            let target = LossTarget::<T>::new(&self.label, self.soft_label, lanes.n, self.ignore_index)?;
            if self.use_softmax {
                lanes.each(cx, InOut::Apart(logits, self.softmax.slice_mut()?), |_, x| softmax(x));
            } else {
                self.softmax.slice_mut()?.copy_from_slice(logits);
            }
            let softmax = self.softmax.slice()?;
            lanes.fill(cx, self.loss.slice_mut()?, |i| {
                let (x, p) = (lanes.lane(logits, i), lanes.lane(softmax, i));
                match target {
                    LossTarget::Hard(labels) if self.use_softmax => {
                        labels.class(i).map_or(0.0, |class| hard_loss(x, p, class))
                    }
                    LossTarget::Soft(labels) if self.use_softmax => soft_loss(x, p, lanes.lane(labels, i)),
                    of_probabilities => of_probabilities.cross_entropy(&lanes, i, p),
                }
            });
            Ok(())
        })
    }
}
impl Composition for SoftmaxWithCrossEntropy<Expr> {
    fn compose(&mut self) {
        let (axis, soft, ignored) = (self.axis, self.soft_label, self.ignore_index);
        if self.use_softmax {
            let log = self.logits.log_softmax(axis);
            self.softmax = log.exp();
            self.loss = negative_log(&log, true, &self.label, axis, soft, ignored);
        } else {
            self.softmax = emit(Assign { x: (&self.logits).into(), out: New }).out;
            self.loss = negative_log(&self.softmax, false, &self.label, axis, soft, ignored);
        }
    }
}
autobwd::samples!(
    SoftmaxWithCrossEntropy,
    [
        hard(uniform([4, 3]), integers_below(3, [4, 1]), -100, -1),
        SoftmaxWithCrossEntropy {
            numeric_stable_mode: false,
            ..hard(uniform([4, 3]), integers_below(3, [4, 1]), -100, -1)
        },
        hard(uniform([2, 3, 4]), integers_below(3, [2, 1, 4]), -100, 1),
        hard(uniform([2, 3, 4]), integers_below(2, [3, 4]).of(DType::I32), -100, 0),
        hard(uniform([4, 3]), given([4, 1], [0.0, -1.0, 2.0, -1.0]).of(DType::I64), -1, 1),
        hard(uniform([4, 3]), given([4, 1], [0.0, 1.0, 2.0, -100.0]).of(DType::I64), -100, 1),
        hard(
            uniform([2, 3, 4]),
            given([2, 4], [0.0, 2.0, 5.0, 1.0, 5.0, 0.0, 1.0, 1.0]).of(DType::I64),
            5,
            1
        ),
        hard(between(-30.0, 30.0, [2, 19]), integers_below(19, [2, 1]), -100, -1),
        hard(uniform([0, 3]), integers_below(3, [0, 1]), -100, -1),
        soft(uniform([4, 3]), probabilities([4, 3]), -1),
        soft(uniform([2, 3, 4]), uniform([2, 3, 4]), 1),
        soft(uniform([0, 3]), uniform([0, 3]), -1),
        SoftmaxWithCrossEntropy {
            use_softmax: false,
            ..hard(
                probabilities([2, 3, 4]),
                given([2, 4], [0.0, 2.0, 5.0, 1.0, 5.0, 0.0, 1.0, 1.0]).of(DType::I64),
                5,
                1
            )
        },
        SoftmaxWithCrossEntropy {
            use_softmax: false,
            ..soft(between(0.2, 0.9, [2, 4, 3]), probabilities([2, 4, 3]), -1)
        },
        SoftmaxWithCrossEntropy {
            use_softmax: false,
            ..soft(given([2, 2], [0.0, 1.0, 0.25, 0.75]), given([2, 2], [0.0, 1.0, 0.5, 0.5]), -1)
        }
        .not_a_derivative("a probability without weight may be 0"),
        hard(uniform([2, 3]), given([2, 1], [0.0, 3.0]).of(DType::I64), -100, -1)
            .fails("`Label`: class index 3 is not within 0.."),
        hard(uniform([2, 3]), integers_below(3, [3, 1]), -100, -1).fails("`Label`"),
        hard(uniform([2, 3]), uniform([2, 1]), -100, -1).fails("int64 or int32"),
        soft(uniform([2, 3]), uniform([2, 1]), -1).fails("`Label`: shape [2, 1] does not match"),
        SoftmaxWithCrossEntropy {
            use_softmax: false,
            ..soft(probabilities([2, 3]), probabilities([3, 2]), -1)
        }
        .fails("`Label`: shape [3, 2] does not match"),
    ]
);

fn hard(logits: Draw, label: Draw, ignore_index: i32, axis: i32) -> SoftmaxWithCrossEntropy<Draw> {
    SoftmaxWithCrossEntropy { soft_label: false, ignore_index, ..soft(logits, label, axis) }
}

fn soft(logits: Draw, label: Draw, axis: i32) -> SoftmaxWithCrossEntropy<Draw> {
    SoftmaxWithCrossEntropy {
        logits,
        label,
        softmax: out(),
        loss: out(),
        soft_label: true,
        ignore_index: -100,
        numeric_stable_mode: true,
        use_softmax: true,
        axis,
    }
}

/// `softmax_with_cross_entropy_grad` for the loss, `softmax_grad` if the softmax is read elsewhere, and
/// `dlabel = -dloss * ln softmax` for soft labels that have a gradient.
#[derive(Debug)]
pub struct SoftmaxWithCrossEntropyRule;
impl GradRule<SoftmaxWithCrossEntropy> for SoftmaxWithCrossEntropyRule {
    fn emit(fwd: &SoftmaxWithCrossEntropy, g: &mut GradCx<'_>) {
        let dloss = g.grad(fwd.loss);
        if let Some(dlogits) = g.wanted(fwd.logits) {
            if g.arrives(fwd.loss) {
                g.push_gradient::<_, SoftmaxWithCrossEntropyGrad>(fwd);
            }
            if g.arrives(fwd.softmax) {
                let dout = g.grad(fwd.softmax);
                match fwd.use_softmax {
                    true => g.push(SoftmaxGrad { out: fwd.softmax, dout, dx: dlogits, axis: fwd.axis }),
                    false => g.push(Assign { x: dout, out: dlogits }),
                }
            }
        }
        push_label_gradient(g, fwd.label, fwd.softmax, dloss);
    }
}

/// `dlogits = dloss * (softmax - [class = label])`, or `dloss * (softmax * Σ label - label)` with soft labels; 0 in
/// ignored lanes. Without `use_softmax`, `-dloss / softmax` at the label, else 0, or `-dloss * label / softmax`.
#[register_op(grad_of = SoftmaxWithCrossEntropy, grad = Composed, inferred)]
pub struct SoftmaxWithCrossEntropyGrad<V = Var> {
    pub label: V,
    pub softmax: V,
    pub dloss: V,
    #[output(inplace = softmax)]
    pub dlogits: V,
    pub soft_label: bool,
    pub ignore_index: i32,
    pub numeric_stable_mode: bool,
    pub use_softmax: bool,
    pub axis: i32,
}
impl Kernel for SoftmaxWithCrossEntropyGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dloss, T => {
            let (lanes, dloss) = (SoftmaxLanes::along(&self.softmax, self.axis), self.dloss.slice::<T>()?);
            let target = LossTarget::<T>::new(&self.label, self.soft_label, lanes.n, self.ignore_index)?;
            let use_softmax = self.use_softmax;
            lanes.each(cx, self.dlogits.inout(&self.softmax)?, |i, mut dx| match target {
                LossTarget::Hard(labels) if !use_softmax => {
                    let class = labels.class(i);
                    let quotient = class.map(|class| -dloss[i] / dx[class]);
                    dx.fill(0.0);
                    class.zip(quotient).into_iter().for_each(|(class, quotient)| dx[class] = quotient);
                }
                LossTarget::Soft(labels) if !use_softmax => {
                    let quotient = |p: T, label: T| if label == 0.0 { 0.0 } else { -dloss[i] * label / p };
                    dx.zip_mut_with(&lanes.lane(labels, i), |p, label| *p = quotient(*p, *label));
                }
                LossTarget::Hard(labels) => match labels.class(i) {
                    Some(class) => {
                        dx.mapv_inplace(|p| p * dloss[i]);
                        dx[class] -= dloss[i];
                    }
                    None => dx.fill(0.0),
                },
                LossTarget::Soft(labels) => {
                    let labels = lanes.lane(labels, i);
                    let weight = T::of(sum(labels, labels, |label, _| label));
                    dx.zip_mut_with(&labels, |p, label| *p = (*p * weight - *label) * dloss[i]);
                }
            });
            Ok(())
        })
    }
}
impl Composition for SoftmaxWithCrossEntropyGrad<Expr> {
    fn compose(&mut self) {
        let (label, softmax, axis, soft) = (&self.label, &self.softmax, self.axis, self.soft_label);
        self.dlogits = if !self.use_softmax {
            let weights = weights(label, softmax, axis, soft, self.ignore_index);
            of_probabilities(softmax, &weights, &self.dloss)
        } else if soft {
            (softmax * sum_along(label, axis) - label) * &self.dloss
        } else {
            let labels = LabelExprs::of(label, softmax, axis, self.ignore_index);
            let dlogits = (softmax - labels.one_hot(softmax, axis)) * &self.dloss;
            let is_ignored = labels.is_ignored.expand_to(&all_sizes(softmax));
            is_ignored.where_cond(&like(softmax, 0.0), &dlogits)
        };
    }
}

fn hard_loss<T: KernelFloat>(x: ArrayView1<'_, T>, p: ArrayView1<'_, T>, class: usize) -> T {
    // A probability below the smallest normal number is too inexact for its logarithm.
    if p[class] >= T::min_positive_value() { -p[class].ln() } else { log_sum_exp(x, p) - x[class] }
}

fn soft_loss<T: KernelFloat>(x: ArrayView1<'_, T>, p: ArrayView1<'_, T>, labels: ArrayView1<'_, T>) -> T {
    let log_sum_exp: f64 = log_sum_exp(x, p).into();
    T::of(sum(x, labels, |x, label| weighted(label, log_sum_exp - x)))
}

/// `ln Σ exp(x)` from logits and their softmax. The softmax of the largest logit is at least 1 / n.
fn log_sum_exp<T: KernelFloat>(x: ArrayView1<'_, T>, p: ArrayView1<'_, T>) -> T {
    largest(x) - largest(p).ln()
}
