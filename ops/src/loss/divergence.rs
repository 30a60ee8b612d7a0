//! Kullback-Leibler divergence, negative log likelihood of classes, and label smoothing.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Dims, Error, Expr, Float, Infer, Kernel, Meta, New, Pointwise,
    Result, Var,
    check::*,
    emit,
    op::{SelfAdjoint, attr_enum, with_float},
    register_op,
    tensor::OptionalBuf,
};

use super::weights;
use crate::{
    Math,
    gather::are_numbers,
    kernel_helpers::{KernelFloat, PART, nth_part, wide},
    math::like,
    shape::{ShapeOp, at},
};

attr_enum! {
    /// How losses are reduced.
    pub enum DivergenceReduction {
        /// Not at all.
        None = "none",
        /// The sum divided by the size of the first dimension.
        BatchMean = "batchmean",
        /// The mean.
        Mean = "mean",
        /// The sum.
        Sum = "sum",
    }
}

impl DivergenceReduction {
    /// The number that the sum of losses is divided by.
    fn divisor(self, x: &Buf<'_>) -> f64 {
        match self {
            DivergenceReduction::None | DivergenceReduction::Sum => 1.0,
            DivergenceReduction::BatchMean => x.dims().first().copied().unwrap_or(1) as f64,
            DivergenceReduction::Mean => x.numel() as f64,
        }
    }
}

/// Kullback-Leibler divergence: `loss = target * (ln(target) - x)`, 0 where `target` is not positive.
#[register_op(grad = KldivLossGrad, infallible)]
pub struct KldivLoss<V = Var> {
    /// Logarithms of probabilities, any shape.
    #[input]
    pub x: V,
    /// Target probabilities, same shape as `x`.
    #[input]
    pub target: V,
    /// Same shape as `x` without reduction, else `[]`.
    #[output]
    pub loss: V,
    /// How losses are reduced.
    #[attr(default = DivergenceReduction::Mean)]
    pub reduction: DivergenceReduction,
}
impl Infer for KldivLoss<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.target.same_as(&self.x)?;
        match self.reduction {
            DivergenceReduction::None => self.loss.like(&self.x),
            _ => self.loss.set(self.x.dtype, []),
        }
        Ok(())
    }
}
impl Kernel for KldivLoss<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (reduction, divisor) = (self.reduction, self.reduction.divisor(&self.x));
        with_float!(self.x, T => {
            let (x, target, loss) = (self.x.slice::<T>()?, self.target.slice::<T>()?, self.loss.slice_mut::<T>()?);
            let one = |x: T, target: T| if target > 0.0 { target * (KernelFloat::ln(target) - x) } else { 0.0 };
            if reduction != DivergenceReduction::None {
                let sum = x.iter().zip(target).fold(0.0, |sum, (x, target)| sum + wide(one(*x, *target)));
                loss.fill(T::of(sum / divisor));
                return Ok(());
            }
            cx.chunks_mut(loss, PART, |part, loss| {
                let (x, target) = (nth_part(x, part, loss.len()), nth_part(target, part, loss.len()));
                loss.iter_mut().zip(x.iter().zip(target)).for_each(|(loss, (x, target))| *loss = one(*x, *target));
            });
            Ok(())
        })
    }
}
impl Composition for KldivLoss<Expr> {
    fn compose(&mut self) {
        let (x, target) = (&self.x, &self.target);
        let (zeros, ones) = (like(x, 0.0), like(x, 1.0));
        let counts = target.greater_than(&zeros);
        // The logarithm of other targets is undefined.
        let losses = target * (counts.where_cond(target, &ones).log() - x);
        let losses = counts.where_cond(&losses, &zeros);
        self.loss = match self.reduction {
            DivergenceReduction::None => losses,
            DivergenceReduction::Sum => losses.sum(&[]),
            DivergenceReduction::Mean => losses.mean(),
            DivergenceReduction::BatchMean => {
                let last: Vec<i32> = (1..x.dims().len() as i32).collect();
                if last.is_empty() { losses.mean() } else { losses.sum(&last).mean() }
            }
        };
    }
}
autobwd::samples!(
    KldivLoss,
    [
        kldiv_loss(uniform([2, 3]), positive([2, 3]), DivergenceReduction::None),
        kldiv_loss(uniform([2, 3]), positive([2, 3]), DivergenceReduction::BatchMean),
        kldiv_loss(uniform([2, 3, 4]), positive([2, 3, 4]), DivergenceReduction::Mean),
        kldiv_loss(uniform([4]), positive([4]), DivergenceReduction::Sum),
        kldiv_loss(uniform([4]), positive([4]), DivergenceReduction::BatchMean),
        kldiv_loss(uniform([]), positive([]), DivergenceReduction::BatchMean),
        kldiv_loss(uniform([3]), given([3], [-0.5, 0.25, -1.0]), DivergenceReduction::None),
        kldiv_loss(uniform([2]), given([2], [0.0, 0.5]), DivergenceReduction::Sum)
            .not_a_derivative("the loss is 0 for targets below 0"),
        kldiv_loss(uniform([0, 3]), positive([0, 3]), DivergenceReduction::Sum),
        kldiv_loss(uniform([2, 3]), positive([3]), DivergenceReduction::Sum).fails("`Target`: shape [3]"),
        kldiv_loss(integers_below(9, [2]), integers_below(9, [2]), DivergenceReduction::Sum)
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn kldiv_loss(x: Draw, target: Draw, reduction: DivergenceReduction) -> KldivLoss<Draw> {
    KldivLoss { x, target, loss: out(), reduction }
}

/// `dx = -dloss * target`, 0 where `target` is not positive, divided as the sum is.
#[register_op(grad_of = KldivLoss, grad = Composed, inferred, infallible)]
pub struct KldivLossGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub target: V,
    pub dloss: V,
    #[output]
    pub dx: V,
    pub reduction: DivergenceReduction,
}
impl Kernel for KldivLossGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (whole, divisor) = (self.reduction != DivergenceReduction::None, self.reduction.divisor(&self.x));
        with_float!(self.dloss, T => {
            let (target, dloss) = (self.target.slice::<T>()?, self.dloss.slice::<T>()?);
            let divisor = T::of(divisor);
            cx.chunks_mut(self.dx.slice_mut::<T>()?, PART, |part, dx| {
                let target = nth_part(target, part, dx.len());
                for ((i, dx), target) in (part * PART..).zip(dx).zip(target) {
                    let dloss = dloss[if whole { 0 } else { i }] / divisor;
                    *dx = if *target > 0.0 { -dloss * target } else { 0.0 };
                }
            });
            Ok(())
        })
    }
}

attr_enum! {
    /// How losses are reduced.
    pub enum LossReduction {
        /// Not at all.
        None = "none",
        /// The mean.
        Mean = "mean",
        /// The sum.
        Sum = "sum",
    }
}

/// Negative log likelihood of classes: `out = -weight[label] * x[label]`, with classes along the second dimension.
///
/// The mean is the sum divided by the sum of weights.
#[register_op(grad = NllLossGrad)]
pub struct NllLoss<V = Var> {
    /// Logarithms of probabilities, `[n, classes]` or `[n, classes, ..]`.
    #[input]
    pub x: V,
    /// Class indices, int64 or int32, `[n]` or `[n, ..]`.
    #[input(checked)]
    pub label: V,
    /// Weights of classes, `[classes]`; 1 if absent.
    #[input]
    pub weight: Option<V>,
    /// Same shape as `label` without reduction, else `[]`.
    #[output]
    pub out: V,
    /// Sum of the weights of all labels, `[]`; 0 without reduction.
    #[output("Total_weight")]
    pub total_weight: V,
    /// Class index of ignored labels: their loss and weight are 0.
    #[attr(default = -100)]
    pub ignore_index: i64,
    /// How losses are reduced.
    #[attr(default = LossReduction::Mean)]
    pub reduction: LossReduction,
}
impl Infer for NllLoss<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (x, label) = (&self.x, &self.label);
        x.float()?;
        x.require(x.rank() >= 2, || "at least two dimensions are needed".into())?;
        are_numbers(label)?;
        let dims: Dims = x.dims[..1].iter().chain(&x.dims[2..]).copied().collect();
        label.require(label.dims.agrees(&dims), || format!("class indices of shape {dims} are needed"))?;
        if let Some(weight) = &self.weight {
            weight.same_dtype(x)?;
            let fits = weight.rank() == 1 && weight.dims[0].agrees(x.dims[1]);
            weight.require(fits, || format!("weights of {} classes are needed", x.dims[1]))?;
        }
        let dims = if self.reduction == LossReduction::None { dims } else { Dims::from([]) };
        self.out.set(x.dtype, dims);
        self.total_weight.set(x.dtype, []);
        Ok(())
    }
}
impl Kernel for NllLoss<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let labels = NllLabels { label: &self.label, ignored: self.ignore_index, dims: self.x.dims() };
        let (reduction, count) = (self.reduction, self.label.numel());
        with_float!(self.x, T => {
            let (x, weight, out) = (self.x.slice::<T>()?, self.weight.slice::<T>()?, self.out.slice_mut::<T>()?);
            let (mut sum, mut total) = (0.0, 0.0);
            for i in 0..count {
                let (mut loss, mut weighs) = (0.0, 0.0);
                if let Some((class, at)) = labels.at(i)? {
                    weighs = weight.map_or(1.0, |weight| wide(weight[class]));
                    loss = -weighs * wide(x[at]);
                }
                if let (LossReduction::None, Some(out)) = (reduction, out.get_mut(i)) {
                    *out = T::of(loss);
                }
                sum += loss;
                total += weighs;
            }
            match reduction {
                LossReduction::None => total = 0.0,
                LossReduction::Sum => out.fill(T::of(sum)),
                LossReduction::Mean => out.fill(T::of(if total == 0.0 { 0.0 } else { sum / total })),
            }
            self.total_weight.slice_mut()?.fill(T::of(total));
            Ok(())
        })
    }
}

impl Composition for NllLoss<Expr> {
    fn compose(&mut self) {
        let x = &self.x;
        // Other numbers are no labels.
        let ignored = i32::try_from(self.ignore_index).unwrap_or(-1);
        let mut chosen = weights(&self.label, x, 1, false, ignored);
        if let Some(weight) = &self.weight {
            let mut dims = vec![1; x.dims().len()];
            dims[1] = -1;
            chosen = chosen * weight.reshape(&dims);
        }
        // The logarithms of other classes, perhaps infinite, do not count.
        let none = like(x, 0.0);
        let products = chosen.equal(&none).where_cond(&none, &(&chosen * x));
        let (losses, total) = (-products.sum(&[1]), chosen.sum(&[]));
        let zeros = like(&total, 0.0);
        (self.out, self.total_weight) = match self.reduction {
            LossReduction::None => (losses, zeros),
            LossReduction::Sum => (losses.sum(&[]), total),
            LossReduction::Mean => {
                let divisor = &total + total.equal(&zeros).cast(x.dtype());
                (losses.sum(&[]) / divisor, total)
            }
        };
    }
}

/// Class indices, and the dimensions of the logarithms.
struct NllLabels<'a> {
    label: &'a Buf<'a>,
    ignored: i64,
    dims: &'a [usize],
}

impl NllLabels<'_> {
    /// The class of a label and the place of its logarithm; `None` if it is ignored.
    fn at(&self, i: usize) -> Result<Option<(usize, usize)>> {
        let number = match self.label.dtype() {
            DType::I32 => i64::from(self.label.slice::<i32>()?[i]),
            _ => self.label.slice::<i64>()?[i],
        };
        if number == self.ignored {
            return Ok(None);
        }
        let (classes, inner) = (self.dims[1], self.dims[2..].iter().product::<usize>());
        let known = usize::try_from(number).ok().filter(|class| *class < classes);
        let class = known.ok_or_else(|| {
            Error::data(format!("`{}`: class index {number} is not within 0..{classes}", self.label.slot()))
        })?;
        Ok(Some((class, (i / inner * classes + class) * inner + i % inner)))
    }
}
autobwd::samples!(
    NllLoss,
    [
        nll_loss(uniform([4, 3]), integers_below(3, [4]), LossReduction::Mean),
        NllLoss {
            weight: Some(positive([3])),
            ..nll_loss(uniform([4, 3]), integers_below(3, [4]).of(DType::I32), LossReduction::Mean)
        },
        NllLoss {
            weight: Some(uniform([3])),
            ..nll_loss(uniform([2, 3, 4, 5]), integers_below(3, [2, 4, 5]), LossReduction::None)
        },
        nll_loss(uniform([2, 3, 4]), integers_below(3, [2, 4]), LossReduction::Sum),
        NllLoss {
            ignore_index: 7,
            ..nll_loss(uniform([4, 3]), given([4], [0.0, 7.0, 2.0, 7.0]).of(DType::I64), LossReduction::Mean)
        },
        nll_loss(uniform([2, 3]), given([2], [-100.0; 2]).of(DType::I64), LossReduction::Mean),
        // Only the logarithm of the label is read.
        nll_loss(
            given([2, 2], [-0.5, f64::NEG_INFINITY, -1.0, -0.25]),
            given([2], [0.0, 1.0]).of(DType::I64),
            LossReduction::Mean
        ),
        nll_loss(uniform([0, 3]), integers_below(3, [0]), LossReduction::None),
        nll_loss(uniform([2, 3]), given([2], [0.0, 3.0]).of(DType::I64), LossReduction::Sum)
            .fails("`Label`: class index 3 is not within 0..3"),
        nll_loss(uniform([2, 3]), integers_below(3, [3]), LossReduction::Sum)
            .fails("`Label`: class indices of shape [2] are needed"),
        nll_loss(uniform([2, 3]), uniform([2]), LossReduction::Sum)
            .fails("`Label`: int64 or int32 is needed"),
        nll_loss(uniform([3]), integers_below(3, [3]), LossReduction::Sum)
            .fails("`X`: at least two dimensions are needed"),
        nll_loss(integers_below(9, [2, 3]), integers_below(3, [2]), LossReduction::Sum)
            .fails("`X`: floating point numbers are needed"),
        NllLoss {
            weight: Some(uniform([2])),
            ..nll_loss(uniform([2, 3]), integers_below(3, [2]), LossReduction::Sum)
        }
        .fails("`Weight`: weights of 3 classes are needed"),
        NllLoss {
            weight: Some(integers_below(9, [3])),
            ..nll_loss(uniform([2, 3]), integers_below(3, [2]), LossReduction::Sum)
        }
        .fails("`Weight`: dtype int64 does not match"),
    ]
);

fn nll_loss(x: Draw, label: Draw, reduction: LossReduction) -> NllLoss<Draw> {
    NllLoss { x, label, weight: None, out: out(), total_weight: out(), ignore_index: -100, reduction }
}

/// `dx[label] = -dout * weight[label]`, divided by `total_weight` if the loss is a mean; 0 elsewhere.
#[register_op(grad_of = NllLoss, grad = Composed, inferred)]
pub struct NllLossGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub label: V,
    pub weight: Option<V>,
    pub total_weight: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub ignore_index: i64,
    pub reduction: LossReduction,
}
impl Kernel for NllLossGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let labels = NllLabels { label: &self.label, ignored: self.ignore_index, dims: self.x.dims() };
        let (reduction, count) = (self.reduction, self.label.numel());
        with_float!(self.dout, T => {
            let (weight, dout, dx) = (self.weight.slice::<T>()?, self.dout.slice::<T>()?, self.dx.slice_mut::<T>()?);
            let total = if reduction == LossReduction::Mean { self.total_weight.slice::<T>()?[0] } else { 1.0 };
            dx.fill(0.0);
            for i in 0..count {
                if let Some((class, at)) = labels.at(i)? {
                    let dout = dout[if reduction == LossReduction::None { i } else { 0 }];
                    let weight = weight.map_or(1.0, |weight| weight[class]);
                    dx[at] = if total == 0.0 { 0.0 } else { -dout * weight / total };
                }
            }
            Ok(())
        })
    }
}

/// Label smoothing (Szegedy et al., 2016): `out = (1 - epsilon) * x + epsilon * prior_dist`.
#[register_op(grad = LabelSmoothGrad, infallible)]
pub struct LabelSmooth<V = Var> {
    /// Labels as probabilities, `[.., classes]`.
    #[input]
    pub x: V,
    /// Probabilities of the classes, as many elements; equal ones if absent.
    #[input]
    pub prior_dist: Option<V>,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Weight of the prior.
    #[attr(default = 0.0)]
    pub epsilon: f32,
}
impl Infer for LabelSmooth<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let Some(classes) = self.x.dims.last() else {
            return Err(self.x.wrong("at least one dimension is needed"));
        };
        if let Some(prior) = &self.prior_dist {
            prior.same_dtype(&self.x)?;
            let fits = prior.dims.numel().agrees(*classes);
            prior.require(fits, || format!("probabilities of {classes} classes are needed"))?;
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for LabelSmooth<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let classes = self.x.dims().last().copied().unwrap_or(1);
        with_float!(self.x, T => {
            let (x, prior) = (self.x.slice::<T>()?, self.prior_dist.slice::<T>()?);
            let epsilon = T::of(self.epsilon.into());
            let equal = epsilon / T::of(classes as f64);
            cx.chunks_mut(self.out.slice_mut::<T>()?, PART, |part, out| {
                let x = nth_part(x, part, out.len());
                for ((i, out), x) in (part * PART..).zip(out).zip(x) {
                    let prior = prior.map_or(equal, |prior| epsilon * prior[i % classes]);
                    *out = (1.0 - epsilon) * x + prior;
                }
            });
            Ok(())
        })
    }
}
impl Composition for LabelSmooth<Expr> {
    fn compose(&mut self) {
        let epsilon = f64::from(self.epsilon);
        let kept = &self.x * (1.0 - epsilon);
        self.out = match &self.prior_dist {
            Some(prior) => kept + prior.reshape(&[-1]) * epsilon,
            None => match self.x.dims().last().and_then(|n| n.get()) {
                Some(classes) => kept + epsilon / classes as f64,
                None => kept + epsilon / classes(&self.x),
            },
        };
    }
}

/// The number of classes when the program runs.
fn classes(x: &Expr) -> Expr {
    let shape = emit(ShapeOp { input: x.into(), out: New }).out;
    at(&shape, -1).cast(x.dtype())
}
autobwd::samples!(
    LabelSmooth,
    [
        LabelSmooth { x: uniform([2, 3]), prior_dist: None, out: out(), epsilon: 0.1 },
        LabelSmooth { x: uniform([2, 3]), prior_dist: Some(positive([1, 3])), out: out(), epsilon: 0.25 },
        LabelSmooth { x: uniform([4, 2, 3]), prior_dist: Some(uniform([3])), out: out(), epsilon: 0.5 },
        LabelSmooth { x: uniform([0, 3]), prior_dist: None, out: out(), epsilon: 0.1 },
        LabelSmooth { x: uniform([2, 3]), prior_dist: Some(positive([2])), out: out(), epsilon: 0.1 }
            .fails("`PriorDist`: probabilities of 3 classes are needed"),
        LabelSmooth { x: uniform([2]), prior_dist: Some(integers_below(9, [2])), out: out(), epsilon: 0.1 }
            .fails("`PriorDist`: dtype int64 does not match"),
        LabelSmooth { x: uniform([]), prior_dist: None, out: out(), epsilon: 0.1 }
            .fails("`X`: at least one dimension is needed"),
        LabelSmooth { x: integers_below(9, [2]), prior_dist: None, out: out(), epsilon: 0.1 }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// `dx = (1 - epsilon) * dout`.
#[register_op(grad_of = LabelSmooth, grad = SelfAdjoint, pointwise)]
pub struct LabelSmoothGrad<V = Var> {
    pub dout: V,
    #[output(inplace = dout, like = dout)]
    pub dx: V,
    pub epsilon: f32,
}
impl<F: Float> Pointwise for LabelSmoothGrad<F> {
    fn eval(&mut self) {
        self.dx = (F::from(1.0) - F::from(self.epsilon)) * self.dout;
    }
}
