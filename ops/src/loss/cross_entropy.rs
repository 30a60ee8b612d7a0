//! Cross entropy of probabilities.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, GradCx, GradRule, Infer, Kernel, Meta, Result, Var,
    check::*, op::with_float, register_op,
};

use super::{LossTarget, infer_loss, negative_log, of_probabilities, push_label_gradient, weights};
use crate::{kernel_helpers::KernelFloat, softmax::SoftmaxLanes};

/// Cross entropy of probabilities with labels along the last axis: `y = -ln x[label]`, or `-Σ label * ln x` with soft
/// labels.
#[register_op(grad = CrossEntropyRule)]
pub struct CrossEntropy<V = Var> {
    /// Probabilities, `[.., classes]`.
    #[input]
    pub x: V,
    /// Class indices, `int64` or `int32`, `[.., 1]` or `[..]`; soft labels in the shape of `x`.
    #[input(checked)]
    pub label: V,
    /// `[.., 1]`.
    #[output]
    pub y: V,
    /// Whether labels are class probabilities.
    #[attr(default = false)]
    pub soft_label: bool,
    /// Class index of ignored lanes: their loss is 0.
    #[attr(default = -100)]
    pub ignore_index: i32,
}
impl Infer for CrossEntropy<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.y.set(self.x.dtype, infer_loss(&self.x, &self.label, -1, self.soft_label)?);
        Ok(())
    }
}
impl Kernel for CrossEntropy<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (lanes, x) = (SoftmaxLanes::along(&self.x, -1), self.x.slice::<T>()?);
            let target = LossTarget::<T>::new(&self.label, self.soft_label, lanes.n, self.ignore_index)?;
            lanes.fill(cx, self.y.slice_mut()?, |i| target.cross_entropy(&lanes, i, lanes.lane(x, i)));
            Ok(())
        })
    }
}
impl Composition for CrossEntropy<Expr> {
    fn compose(&mut self) {
        self.y = negative_log(&self.x, false, &self.label, -1, self.soft_label, self.ignore_index);
    }
}
autobwd::samples!(
    CrossEntropy,
    [
        cross_entropy(probabilities([4, 3]), integers_below(3, [4, 1]), false, -100),
        cross_entropy(probabilities([2, 4, 3]), integers_below(3, [2, 4]).of(DType::I32), false, -100),
        cross_entropy(probabilities([4, 3]), given([4, 1], [0.0, 7.0, 2.0, 7.0]).of(DType::I64), false, 7),
        // Only the probability of the label is read.
        cross_entropy(
            given([2, 3], [0.0, 0.25, 0.75, 1.0, 0.0, 0.0]),
            given([2, 1], [1.0, 0.0]).of(DType::I64),
            false,
            -100
        ),
        cross_entropy(probabilities([4, 3]), probabilities([4, 3]), true, -100),
        cross_entropy(probabilities([2, 4, 3]), uniform([2, 4, 3]), true, -100),
        cross_entropy(probabilities([0, 3]), integers_below(3, [0, 1]), false, -100),
        cross_entropy(probabilities([2, 3]), given([2, 1], [0.0, -2.0]).of(DType::I64), false, -100)
            .fails("`Label`: class index -2 is not within 0..3"),
    ]
);

fn cross_entropy(x: Draw, label: Draw, soft_label: bool, ignore_index: i32) -> CrossEntropy<Draw> {
    CrossEntropy { x, label, y: out(), soft_label, ignore_index }
}

/// `cross_entropy_grad`, and `dlabel = -dy * ln x` for soft labels that have a gradient.
#[derive(Debug)]
pub struct CrossEntropyRule;
impl GradRule<CrossEntropy> for CrossEntropyRule {
    fn emit(fwd: &CrossEntropy, g: &mut GradCx<'_>) {
        let dy = g.grad(fwd.y);
        g.push_gradient::<_, CrossEntropyGrad>(fwd);
        push_label_gradient(g, fwd.label, fwd.x, dy);
    }
}

/// `dx = -dy / x` at the label, else 0; `dx = -dy * label / x` with soft labels, 0 where the label is 0.
#[register_op(grad_of = CrossEntropy, grad = Composed, inferred)]
pub struct CrossEntropyGrad<V = Var> {
    pub x: V,
    pub label: V,
    pub dy: V,
    #[output(inplace = x)]
    pub dx: V,
    pub soft_label: bool,
    pub ignore_index: i32,
}
impl Kernel for CrossEntropyGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dy, T => {
            let (lanes, dy) = (SoftmaxLanes::along(&self.x, -1), self.dy.slice::<T>()?);
            let target = LossTarget::<T>::new(&self.label, self.soft_label, lanes.n, self.ignore_index)?;
            lanes.each(cx, self.dx.inout(&self.x)?, |i, mut dx| match target {
                LossTarget::Hard(labels) => {
                    let at_label = labels.class(i).map(|class| (class, -dy[i] / dx[class]));
                    dx.fill(0.0);
                    if let Some((class, value)) = at_label {
                        dx[class] = value;
                    }
                }
                LossTarget::Soft(labels) => {
                    let zero = T::of(0.0);
                    dx.zip_mut_with(&lanes.lane(labels, i), |x, label| {
                        *x = if *label == zero { zero } else { -dy[i] * *label / *x };
                    });
                }
            });
            Ok(())
        })
    }
}
impl Composition for CrossEntropyGrad<Expr> {
    fn compose(&mut self) {
        let weights = weights(&self.label, &self.x, -1, self.soft_label, self.ignore_index);
        self.dx = of_probabilities(&self.x, &weights, &self.dy);
    }
}
