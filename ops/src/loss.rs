//! Cross entropy along an axis.
//!
//! A lane is what lies along that axis, one element for each class.

use autobwd::{
    Buf, Cx, DType, Dim, Dims, Error, GradCx, GradRule, InOut, Infer, Kernel, Meta, NoGrad, Result, Var,
    check::*, register_op, with_float,
};
use ndarray::ArrayView1;

use crate::{
    activation::{Log, Scale},
    common::Real,
    elementwise::ElementwiseMul,
    softmax::{Lanes, SoftmaxGrad, largest, softmax, sum},
};

/// Softmax, and its cross entropy with labels: `softmax = exp(logits) / Σ exp(logits)`,
/// `loss = -ln softmax[label]`, or `-Σ label * ln softmax` with soft labels.
///
/// Right however small a probability is.
#[register_op(grad = SoftmaxWithCrossEntropyRule)]
pub struct SoftmaxWithCrossEntropy<V = Var> {
    /// Any shape with a dimension for the classes.
    #[input]
    pub logits: V,
    /// The class numbers, `int64` or `int32`, in the shape of `loss` or without the axis; soft labels in the shape of
    /// `logits`.
    #[input]
    pub label: V,
    /// Same shape as `logits`.
    #[output]
    pub softmax: V,
    /// That of `logits`, with 1 in place of the classes.
    #[output]
    pub loss: V,
    /// Whether labels are weights of all classes.
    #[attr(default = false)]
    pub soft_label: bool,
    /// The class number of lanes that do not count: their loss is 0.
    #[attr(default = -100)]
    pub ignore_index: i32,
    /// Accepted for the sake of old programs: the computation is always stable.
    #[attr(default = true)]
    pub numeric_stable_mode: bool,
    /// Always true; for what is a probability already there is `cross_entropy`.
    #[attr(default = true)]
    pub use_softmax: bool,
    /// The axis of the classes, a negative one from behind.
    #[attr(default = -1)]
    pub axis: i32,
}
impl Infer for SoftmaxWithCrossEntropy<Meta> {
    fn infer(&mut self) -> Result<()> {
        refuse_probabilities(self.use_softmax)?;
        let dims = infer_loss(&self.logits, &self.label, self.axis, self.soft_label)?;
        self.softmax.like(&self.logits);
        self.loss.set(self.logits.dtype, dims);
        Ok(())
    }
}
impl Kernel for SoftmaxWithCrossEntropy<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.logits, T => {
            let (lanes, logits) = (Lanes::along(&self.logits, self.axis), self.logits.slice::<T>()?);
            let target = Target::<T>::new(&self.label, self.soft_label, lanes.n, self.ignore_index)?;
            lanes.each(cx, InOut::Apart(logits, self.softmax.slice_mut()?), |_, x| softmax(x));
            let softmax = self.softmax.slice()?;
            lanes.fill(cx, self.loss.slice_mut()?, |i| {
                let (x, p) = (lanes.lane(logits, i), lanes.lane(softmax, i));
                match target {
                    Target::Hard(labels) => labels.class(i).map_or(0.0, |class| hard_loss(x, p, class)),
                    Target::Soft(labels) => soft_loss(x, p, lanes.lane(labels, i)),
                }
            });
            Ok(())
        })
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
        hard(between(-30.0, 30.0, [2, 19]), integers_below(19, [2, 1]), -100, -1),
        hard(uniform([0, 3]), integers_below(3, [0, 1]), -100, -1),
        soft(uniform([4, 3]), probabilities([4, 3]), -1),
        soft(uniform([2, 3, 4]), uniform([2, 3, 4]), 1),
        Sample::fails(
            hard(uniform([2, 3]), given([2, 1], [0.0, 3.0]).of(DType::I64), -100, -1),
            "`Label`: 3 is none"
        ),
        Sample::fails(hard(uniform([2, 3]), integers_below(3, [3, 1]), -100, -1), "`Label`"),
        Sample::fails(hard(uniform([2, 3]), uniform([2, 1]), -100, -1), "int64 or int32"),
        Sample::fails(soft(uniform([2, 3]), uniform([2, 1]), -1), "`Label`: shape [2, 1] does not match"),
        Sample::fails(
            SoftmaxWithCrossEntropy {
                use_softmax: false,
                ..soft(probabilities([2, 3]), probabilities([2, 3]), -1)
            },
            "attribute `use_softmax`"
        ),
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

/// `softmax_with_cross_entropy_grad` for the loss, `softmax_grad` where the softmax is read elsewhere, too, and
/// `dlabel = -dloss * ln softmax` for soft labels that have a gradient.
pub struct SoftmaxWithCrossEntropyRule;
impl GradRule<SoftmaxWithCrossEntropy> for SoftmaxWithCrossEntropyRule {
    fn emit(fwd: &SoftmaxWithCrossEntropy, g: &mut GradCx<'_>) {
        let dloss = g.grad(fwd.loss);
        if let Some(dlogits) = g.wanted(fwd.logits) {
            if g.arrives(fwd.loss) {
                g.push(SoftmaxWithCrossEntropyGrad {
                    label: fwd.label,
                    softmax: fwd.softmax,
                    dloss,
                    dlogits,
                    soft_label: fwd.soft_label,
                    ignore_index: fwd.ignore_index,
                    numeric_stable_mode: fwd.numeric_stable_mode,
                    use_softmax: fwd.use_softmax,
                    axis: fwd.axis,
                });
            }
            if g.arrives(fwd.softmax) {
                let dout = g.grad(fwd.softmax);
                g.push(SoftmaxGrad { out: fwd.softmax, dout, dx: dlogits, axis: fwd.axis });
            }
        }
        push_label_gradient(g, fwd.label, fwd.softmax, dloss);
    }
}

/// `dlabel = -dloss * ln x`, if anybody wants it; class numbers have no gradient.
fn push_label_gradient(g: &mut GradCx<'_>, label: Var, x: Var, dloss: Var) {
    if let Some(out) = g.wanted(label) {
        let (log, product) = (g.fresh("log"), g.fresh("product"));
        g.push(Log { x, out: log });
        g.push(ElementwiseMul { x: log, y: dloss, out: product, axis: -1 });
        g.push(Scale { x: product, out, scale: -1.0, bias: 0.0, bias_after_scale: true });
    }
}

/// `dlogits = dloss * (softmax - [class = label])`, or `dloss * (softmax * Σ label - label)` with soft labels; 0 in
/// lanes that do not count.
#[register_op(grad = NoGrad)]
pub struct SoftmaxWithCrossEntropyGrad<V = Var> {
    /// As in the forward operator.
    #[input]
    pub label: V,
    /// Output of the forward operator.
    #[input]
    pub softmax: V,
    /// Gradient of the loss.
    #[input("Loss@GRAD")]
    pub dloss: V,
    /// Same shape as `softmax`.
    #[output("Logits@GRAD", inplace = softmax)]
    pub dlogits: V,
    /// As in `softmax_with_cross_entropy`.
    #[attr(default = false)]
    pub soft_label: bool,
    /// As in `softmax_with_cross_entropy`.
    #[attr(default = -100)]
    pub ignore_index: i32,
    /// As in `softmax_with_cross_entropy`.
    #[attr(default = true)]
    pub numeric_stable_mode: bool,
    /// As in `softmax_with_cross_entropy`.
    #[attr(default = true)]
    pub use_softmax: bool,
    /// As in `softmax_with_cross_entropy`.
    #[attr(default = -1)]
    pub axis: i32,
}
impl Infer for SoftmaxWithCrossEntropyGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        refuse_probabilities(self.use_softmax)?;
        let dims = infer_loss(&self.softmax, &self.label, self.axis, self.soft_label)?;
        infer_loss_grad(dims, &self.softmax, &self.dloss, &mut self.dlogits)
    }
}
impl Kernel for SoftmaxWithCrossEntropyGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dloss, T => {
            let (lanes, dloss) = (Lanes::along(&self.softmax, self.axis), self.dloss.slice::<T>()?);
            let target = Target::<T>::new(&self.label, self.soft_label, lanes.n, self.ignore_index)?;
            lanes.each(cx, self.dlogits.inout(&self.softmax)?, |i, mut dx| match target {
                Target::Hard(labels) => match labels.class(i) {
                    Some(class) => {
                        dx.mapv_inplace(|p| p * dloss[i]);
                        dx[class] -= dloss[i];
                    }
                    None => dx.fill(0.0),
                },
                Target::Soft(labels) => {
                    let labels = lanes.lane(labels, i);
                    let weight = T::of(sum(labels, labels, |label, _| label));
                    dx.zip_mut_with(&labels, |p, label| *p = (*p * weight - *label) * dloss[i]);
                }
            });
            Ok(())
        })
    }
}

/// Cross entropy of probabilities with labels along the last axis: `y = -ln x[label]`, or `-Σ label * ln x` with soft
/// labels.
#[register_op(grad = CrossEntropyRule)]
pub struct CrossEntropy<V = Var> {
    /// Probabilities, `[.., classes]`.
    #[input]
    pub x: V,
    /// The class numbers, `int64` or `int32`, `[.., 1]` or `[..]`; soft labels in the shape of `x`.
    #[input]
    pub label: V,
    /// `[.., 1]`.
    #[output]
    pub y: V,
    /// Whether labels are weights of all classes.
    #[attr(default = false)]
    pub soft_label: bool,
    /// The class number of lanes that do not count: their loss is 0.
    #[attr(default = -100)]
    pub ignore_index: i32,
}
impl Infer for CrossEntropy<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = infer_loss(&self.x, &self.label, -1, self.soft_label)?;
        self.y.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for CrossEntropy<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (lanes, x) = (Lanes::along(&self.x, -1), self.x.slice::<T>()?);
            let target = Target::<T>::new(&self.label, self.soft_label, lanes.n, self.ignore_index)?;
            lanes.fill(cx, self.y.slice_mut()?, |i| {
                let x = lanes.lane(x, i);
                match target {
                    Target::Hard(labels) => labels.class(i).map_or(0.0, |class| -x[class].ln()),
                    Target::Soft(labels) => {
                        T::of(-sum(x, lanes.lane(labels, i), |x, label| weighted(label, x.ln())))
                    }
                }
            });
            Ok(())
        })
    }
}
autobwd::samples!(
    CrossEntropy,
    [
        cross_entropy(probabilities([4, 3]), integers_below(3, [4, 1]), false, -100),
        cross_entropy(probabilities([2, 4, 3]), integers_below(3, [2, 4]).of(DType::I32), false, -100),
        cross_entropy(probabilities([4, 3]), given([4, 1], [0.0, 7.0, 2.0, 7.0]).of(DType::I64), false, 7),
        cross_entropy(probabilities([4, 3]), probabilities([4, 3]), true, -100),
        cross_entropy(probabilities([0, 3]), integers_below(3, [0, 1]), false, -100),
        Sample::fails(
            cross_entropy(probabilities([2, 3]), given([2, 1], [0.0, -2.0]).of(DType::I64), false, -100),
            "`Label`: -2 is none of the 3 classes"
        ),
    ]
);

fn cross_entropy(x: Draw, label: Draw, soft_label: bool, ignore_index: i32) -> CrossEntropy<Draw> {
    CrossEntropy { x, label, y: out(), soft_label, ignore_index }
}

/// `cross_entropy_grad`, and `dlabel = -dy * ln x` for soft labels that have a gradient.
pub struct CrossEntropyRule;
impl GradRule<CrossEntropy> for CrossEntropyRule {
    fn emit(fwd: &CrossEntropy, g: &mut GradCx<'_>) {
        let dy = g.grad(fwd.y);
        if let Some(dx) = g.wanted(fwd.x) {
            let (soft_label, ignore_index) = (fwd.soft_label, fwd.ignore_index);
            g.push(CrossEntropyGrad { x: fwd.x, label: fwd.label, dy, dx, soft_label, ignore_index });
        }
        push_label_gradient(g, fwd.label, fwd.x, dy);
    }
}

/// `dx = -dy / x` at the label, else 0; `dx = -dy * label / x` with soft labels.
#[register_op(grad = NoGrad)]
pub struct CrossEntropyGrad<V = Var> {
    /// Input of the forward operator.
    #[input]
    pub x: V,
    /// As in the forward operator.
    #[input]
    pub label: V,
    /// Gradient of the loss.
    #[input("Y@GRAD")]
    pub dy: V,
    /// Same shape as `x`.
    #[output("X@GRAD", inplace = x)]
    pub dx: V,
    /// As in `cross_entropy`.
    #[attr(default = false)]
    pub soft_label: bool,
    /// As in `cross_entropy`.
    #[attr(default = -100)]
    pub ignore_index: i32,
}
impl Infer for CrossEntropyGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = infer_loss(&self.x, &self.label, -1, self.soft_label)?;
        infer_loss_grad(dims, &self.x, &self.dy, &mut self.dx)
    }
}
impl Kernel for CrossEntropyGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dy, T => {
            let (lanes, dy) = (Lanes::along(&self.x, -1), self.dy.slice::<T>()?);
            let target = Target::<T>::new(&self.label, self.soft_label, lanes.n, self.ignore_index)?;
            lanes.each(cx, self.dx.inout(&self.x)?, |i, mut dx| match target {
                Target::Hard(labels) => {
                    let at_label = labels.class(i).map(|class| (class, -dy[i] / dx[class]));
                    dx.fill(0.0);
                    if let Some((class, value)) = at_label {
                        dx[class] = value;
                    }
                }
                Target::Soft(labels) => {
                    dx.zip_mut_with(&lanes.lane(labels, i), |x, label| *x = -dy[i] * *label / *x);
                }
            });
            Ok(())
        })
    }
}

fn refuse_probabilities(use_softmax: bool) -> Result<()> {
    if use_softmax {
        return Ok(());
    }
    Err(Error::attr("use_softmax", "must be true; probabilities have `cross_entropy`"))
}

/// The shape of the loss.
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
        return Err(label.wrong("class numbers (int64 or int32) are needed"));
    }
    let without_axis: Dims = [&x.dims[..axis], &x.dims[axis + 1..]].concat().into_iter().collect();
    if !label.dims.agrees(&dims) && !label.dims.agrees(&without_axis) {
        return Err(label.wrong(&format!("class numbers of shape {dims} are needed")));
    }
    Ok(dims)
}

fn infer_loss_grad(dims: Dims, x: &Meta, dloss: &Meta, dx: &mut Meta) -> Result<()> {
    dloss.same_dtype(x)?;
    if !dloss.dims.agrees(&dims) {
        return Err(dloss.wrong(&format!("the shape of the loss, {dims}, is needed")));
    }
    dx.like(x);
    Ok(())
}

/// What the classes are compared with.
#[derive(Clone, Copy)]
enum Target<'a, T> {
    Hard(Labels<'a>),
    Soft(&'a [T]),
}

impl<'a, T: Real> Target<'a, T> {
    fn new(label: &'a Buf<'_>, soft: bool, classes: usize, ignored: i32) -> Result<Target<'a, T>> {
        if soft {
            Ok(Target::Soft(label.slice()?))
        } else {
            Ok(Target::Hard(Labels::new(label, classes, ignored)?))
        }
    }
}

/// Class numbers, of which those that count are within bounds.
#[derive(Clone, Copy)]
struct Labels<'a> {
    numbers: Numbers<'a>,
    ignored: i64,
}

#[derive(Clone, Copy)]
enum Numbers<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl<'a> Labels<'a> {
    fn new(label: &'a Buf<'_>, classes: usize, ignored: i32) -> Result<Labels<'a>> {
        let numbers = match label.dtype() {
            DType::I32 => Numbers::I32(label.slice()?),
            _ => Numbers::I64(label.slice()?),
        };
        let labels = Labels { numbers, ignored: ignored.into() };
        let is_bad = |class: &usize| *class >= classes;
        match (0..label.numel()).find(|i| labels.class(*i).as_ref().is_some_and(is_bad)) {
            Some(i) => {
                let (slot, number) = (label.slot(), labels.number(i));
                Err(Error::data(format!("`{slot}`: {number} is none of the {classes} classes")))
            }
            None => Ok(labels),
        }
    }

    fn number(&self, lane: usize) -> i64 {
        match self.numbers {
            Numbers::I32(all) => all[lane].into(),
            Numbers::I64(all) => all[lane],
        }
    }

    /// The class of a lane that counts.
    fn class(&self, lane: usize) -> Option<usize> {
        let number = self.number(lane);
        // A negative number is past any bound.
        (number != self.ignored).then(|| usize::try_from(number).unwrap_or(usize::MAX))
    }
}

fn hard_loss<T: Real>(x: ArrayView1<'_, T>, p: ArrayView1<'_, T>, class: usize) -> T {
    // A probability too small for its dtype says nothing any more.
    if p[class] >= T::min_positive_value() { -p[class].ln() } else { log_sum_exp(x, p) - x[class] }
}

fn soft_loss<T: Real>(x: ArrayView1<'_, T>, p: ArrayView1<'_, T>, labels: ArrayView1<'_, T>) -> T {
    let log_sum_exp: f64 = log_sum_exp(x, p).into();
    T::of(sum(x, labels, |x, label| weighted(label, log_sum_exp - x)))
}

/// From logits and their softmax. That of the largest logit is at least 1 / n.
fn log_sum_exp<T: Real>(x: ArrayView1<'_, T>, p: ArrayView1<'_, T>) -> T {
    largest(x) - largest(p).ln()
}

/// `weight * x`, where no weight is 0 even of something infinite.
fn weighted(weight: f64, x: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { weight * x }
}
