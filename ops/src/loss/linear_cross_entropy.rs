//! Softmax cross entropy of a linear layer, whose logits are never in memory together.

use autobwd::{
    Attrs, Buf, Composed, Composition, Cx, DType, Dims, Expr, GradCx, Infer, Kernel, Meta, Result, Var,
    check::*,
    op::{Factor, with_factor},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::{
    ClassLabels, LabelExprs, infer_loss,
    logit_tiles::{LinearLogits, Targets, scratch_len},
};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, finite},
    math::{in_dtype, like, sizes},
    matmul::product,
    softmax::sum_along,
};

/// The attributes of cross entropies of linear layers.
#[derive(Attrs, Clone, Debug)]
pub struct LinearCrossEntropyAttrs {
    /// Whether the weight is `[classes, d]`, as an embedding is, not `[d, classes]`.
    #[attr(default = false)]
    pub trans_weight: bool,
    /// Class index of ignored rows: their loss is 0.
    #[attr(default = -100)]
    pub ignore_index: i32,
    /// The share `ε` of the label that all classes get alike (Szegedy et al., 2016).
    #[attr(default = 0.0, min = 0.0, max = 1.0)]
    pub label_smoothing: f32,
    /// The factor of `log_sum²` in the loss, which keeps logits small (Chowdhery et al., 2022).
    #[attr(default = 0.0, min = 0.0)]
    pub z_loss: f32,
}

/// Softmax cross entropy of `logits = x · weight + bias`, for each row: with `log_sum = ln Σ exp(logits)`,
///
/// `loss = (1 - ε) * class_weight[label] * (log_sum - logits[label]) + ε / classes * Σ class_weight * (log_sum -
/// logits) + z_loss * log_sum²`.
///
/// A tile of logits exists at a time, also for the gradient, which computes the logits again (Wijmans et al., 2024).
/// The composition has all of them in memory, as have second derivatives. Of 16-bit inputs, logits and losses are
/// float32.
#[register_op(grad = gradient, factors)]
pub struct LinearCrossEntropy<V = Var> {
    /// `[.., d]`
    #[input]
    pub x: V,
    /// `[d, classes]`, or `[classes, d]` with `trans_weight`.
    #[input]
    pub weight: V,
    /// `[classes]`
    #[input]
    pub bias: Option<V>,
    /// Class indices, int64 or int32, `[..]` or `[.., 1]`.
    #[input(checked)]
    pub label: V,
    /// The weights of the classes, `[classes]`.
    #[input]
    pub class_weight: Option<V>,
    /// `[.., 1]`
    #[output]
    pub loss: V,
    /// `[.., 1]`
    #[output]
    pub log_sum: V,
    /// The gradient of each loss with respect to its row of `x`, `[.., d]`, without label smoothing. With it, the gradient
    /// of `x` computes no logits: what a frozen weight needs.
    #[output]
    pub x_gradient: Option<V>,
    /// What the loss consists of.
    #[attrs]
    pub cross_entropy: LinearCrossEntropyAttrs,
}
impl Infer for LinearCrossEntropy<Meta> {
    fn infer(&mut self) -> Result<()> {
        let LinearCrossEntropy { x, weight, bias, label, class_weight, cross_entropy, .. } = &*self;
        finite("z_loss", cross_entropy.z_loss)?;
        x.float()?;
        weight.same_dtype(x)?;
        let [first, second] = weight.unpack()?;
        let (depth, classes) = if cross_entropy.trans_weight { (second, first) } else { (first, second) };
        let Some((own, rows)) = x.dims.split_last() else {
            return Err(x.wrong("at least one dimension is needed"));
        };
        weight.require(classes != Dim::from(0), || "at least one class is needed".into())?;
        weight
            .require(own.agrees(depth), || format!("{own} rows are needed, the columns of `{}`", x.slot()))?;
        for numbers in [bias, class_weight].into_iter().flatten() {
            numbers.same_dtype(x)?;
            let fits = matches!(&numbers.dims[..], [own] if own.agrees(classes));
            numbers.require(fits, || format!("[{classes}] is needed, a number for each class"))?;
        }
        let logits = Meta::new(x.dtype, rows.iter().copied().chain([classes]).collect::<Dims>());
        let dims = infer_loss(&logits, label, -1, false)?;
        self.loss.set(self.x.dtype.arithmetic(), dims.clone());
        self.log_sum.set(self.x.dtype.arithmetic(), dims);
        if let Some(x_gradient) = &mut self.x_gradient {
            let has_none = self.cross_entropy.label_smoothing == 0.0;
            x_gradient.require(has_none, || "there is none with label smoothing".into())?;
            x_gradient.set(self.x.dtype.arithmetic(), self.x.dims.clone());
        }
        Ok(())
    }

    fn flops(&self) -> Dim {
        let classes = self.weight.dims[usize::from(!self.cross_entropy.trans_weight)];
        let products = if self.x_gradient.is_some() { 2 } else { 1 };
        Dim::from(2 * products) * self.x.dims.numel() * classes
    }
}
impl Kernel for LinearCrossEntropy<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_factor!(self.x, X => {
            let layer = layer::<X>(&self.x, &self.weight, self.bias.as_ref(), &self.cross_entropy)?;
            let targets = targets(&self.label, self.class_weight.as_ref(), layer.classes, &self.cross_entropy)?;
            let x_gradient = self.x_gradient.slice_mut()?.unwrap_or_default();
            layer.losses(cx, &targets, [self.loss.slice_mut()?, self.log_sum.slice_mut()?, x_gradient])
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let [rows, _, classes] = sizes_of(&self.x, &self.weight, &self.cross_entropy);
        scratch_len(rows, classes) * self.x.dtype().arithmetic().size()
    }
}

/// How many rows, columns and classes there are.
fn sizes_of(x: &Buf<'_>, weight: &Buf<'_>, attrs: &LinearCrossEntropyAttrs) -> [usize; 3] {
    let (rows, weight) = (x.dims()[..x.dims().len() - 1].iter().product(), weight.dims());
    if attrs.trans_weight { [rows, weight[1], weight[0]] } else { [rows, weight[0], weight[1]] }
}

fn layer<'a, X: Factor>(
    x: &'a Buf<'_>,
    weight: &'a Buf<'_>,
    bias: Option<&'a Buf<'_>>,
    attrs: &LinearCrossEntropyAttrs,
) -> Result<LinearLogits<'a, X>> {
    let ([rows, depth, classes], is_by_class) = (sizes_of(x, weight, attrs), attrs.trans_weight);
    let bias = bias.map(Buf::slice).transpose()?;
    Ok(LinearLogits { rows, depth, classes, x: x.slice()?, weight: weight.slice()?, bias, is_by_class })
}

fn targets<'a, X: Factor>(
    label: &'a Buf<'_>,
    class_weight: Option<&'a Buf<'_>>,
    classes: usize,
    attrs: &LinearCrossEntropyAttrs,
) -> Result<Targets<'a, X>> {
    Ok(Targets {
        labels: ClassLabels::new(label, classes, attrs.ignore_index)?,
        class_weight: class_weight.map(Buf::slice).transpose()?,
        smoothing: attrs.label_smoothing.into(),
        z_loss: attrs.z_loss.into(),
    })
}

impl Composition for LinearCrossEntropy<Expr> {
    fn compose(&mut self) {
        let LinearCrossEntropy { x, weight, bias, label, class_weight, cross_entropy, .. } = &*self;
        let wide = |x: &Expr| in_dtype(x, x.dtype().arithmetic());
        let mut logits = product([&wide(x), &wide(weight)], [false, cross_entropy.trans_weight]);
        if let Some(bias) = bias {
            logits = logits + wide(bias);
        }
        let log_sum = logits.logsumexp_keepdim(&[-1]);
        let labels = LabelExprs::of(label, &logits, -1, cross_entropy.ignore_index);
        let is_label = labels.one_hot(&logits, -1);
        let smoothing = f64::from(cross_entropy.label_smoothing);
        // The weight of each logit in the loss.
        let weighted = |share: &Expr| match class_weight {
            Some(weights) => share * wide(weights),
            None => share.clone(),
        };
        let mut shares = weighted(&is_label) * (1.0 - smoothing);
        if smoothing > 0.0 {
            let [.., classes] = sizes::<2>(&logits.flatten(0, -2));
            let classes = in_dtype(&classes.number(x.builder()), logits.dtype());
            shares = shares + weighted(&like(&logits, smoothing)) / classes;
        }
        let mut loss = sum_along(&(shares * (&log_sum - &logits)), -1);
        if cross_entropy.z_loss > 0.0 {
            loss = loss + log_sum.square() * f64::from(cross_entropy.z_loss);
        }
        // The gradient of logits: without label smoothing, only the label has a weight.
        let own = weighted(&is_label);
        let mut share = sum_along(&own, -1);
        if cross_entropy.z_loss > 0.0 {
            share = share + &log_sum * (2.0 * f64::from(cross_entropy.z_loss));
        }
        let share = labels.is_ignored.where_cond(&like(&share, 0.0), &share);
        let dlogits = (&logits - &log_sum).exp() * share - own;
        self.x_gradient = Some(product([&dlogits, &wide(weight)], [false, !cross_entropy.trans_weight]));
        self.loss = labels.is_ignored.where_cond(&like(&loss, 0.0), &loss);
        self.log_sum = log_sum;
    }
}
autobwd::samples!(
    LinearCrossEntropy,
    [
        cross_entropy([3, 5], 4, given([3], [1.0, 3.0, 0.0])),
        by_class([3, 5], 4, given([3, 1], [1.0, 3.0, 0.0])),
        LinearCrossEntropy {
            bias: Some(uniform([4])),
            ..cross_entropy([2, 3, 5], 4, integers_below(4, [2, 3]))
        },
        LinearCrossEntropy { bias: Some(uniform([4])), ..by_class([5], 4, integers_below(4, [1])) },
        LinearCrossEntropy {
            label: given([4], [1.0, -100.0, 2.0, -100.0]).of(DType::I32),
            ..cross_entropy([4, 5], 3, out())
        },
        cross_entropy([3, 5], 4, given([3], [1.0, 2.0, 0.0]))
            .with(|attrs| (attrs.ignore_index, attrs.label_smoothing) = (2, 0.3)),
        cross_entropy([3, 5], 4, integers_below(4, [3])).with(|attrs| attrs.z_loss = 0.1),
        LinearCrossEntropy {
            class_weight: Some(uniform([4])),
            ..cross_entropy([3, 5], 4, integers_below(4, [3]))
        },
        LinearCrossEntropy {
            bias: Some(uniform([4])),
            class_weight: Some(positive([4])),
            ..by_class([3, 5], 4, given([3], [1.0, -100.0, 0.0]))
                .with(|attrs| (attrs.label_smoothing, attrs.z_loss) = (0.2, 0.05))
        },
        LinearCrossEntropy {
            x: between(-30.0, 30.0, [2, 7]),
            ..cross_entropy([2, 7], 19, integers_below(19, [2]))
        },
        // Several tiles, the last ones partial.
        by_class([258, 1], 3, integers_below(3, [258])),
        cross_entropy([2, 1], 2050, given([2], [2049.0, 5.0])),
        cross_entropy([0, 5], 4, integers_below(4, [0])),
        cross_entropy([2, 0], 4, integers_below(4, [2])),
        cross_entropy([3, 5], 4, given([3], [1.0, -100.0, 0.0])).with_x_gradient(),
        LinearCrossEntropy {
            bias: Some(uniform([4])),
            class_weight: Some(positive([4])),
            ..by_class([2, 3, 5], 4, integers_below(4, [2, 3]))
                .with(|attrs| attrs.z_loss = 0.1)
                .with_x_gradient()
        },
        by_class([5], 4, integers_below(4, [1])).with_x_gradient(),
        by_class([258, 1], 3, integers_below(3, [258])).with_x_gradient(),
        cross_entropy([2, 1], 2050, given([2], [2049.0, 5.0])).with_x_gradient(),
        cross_entropy([0, 5], 4, integers_below(4, [0])).with_x_gradient(),
        cross_entropy([2, 0], 4, integers_below(4, [2])).with_x_gradient(),
        cross_entropy([2, 5], 4, integers_below(4, [2]))
            .with(|attrs| attrs.label_smoothing = 0.1)
            .with_x_gradient()
            .fails("`XGradient`: there is none with label smoothing"),
        cross_entropy([2, 5], 0, integers_below(4, [2])).fails("`Weight`: at least one class is needed"),
        LinearCrossEntropy { weight: uniform([4, 5]), ..by_class([2, 3], 4, integers_below(4, [2])) }
            .fails("`Weight`: 3 rows are needed, the columns of `X`"),
        LinearCrossEntropy { bias: Some(uniform([3])), ..cross_entropy([2, 5], 4, integers_below(4, [2])) }
            .fails("`Bias`: [4] is needed, a number for each class"),
        cross_entropy([2, 5], 4, integers_below(4, [3]))
            .fails("`Label`: class indices of shape [2, 1] are needed"),
        LinearCrossEntropy { label: uniform([2]), ..cross_entropy([2, 5], 4, out()) }
            .fails("`Label`: class indices (int64 or int32) are needed"),
        cross_entropy([2, 5], 4, given([2], [0.0, 4.0])).fails("`Label`: class index 4 is not within 0..4"),
        cross_entropy([2, 5], 4, integers_below(4, [2]))
            .with(|attrs| attrs.z_loss = f32::INFINITY)
            .fails("attribute `z_loss`: inf is no finite number"),
    ]
);

fn cross_entropy<const N: usize>(x: [usize; N], classes: usize, label: Draw) -> LinearCrossEntropy<Draw> {
    LinearCrossEntropy {
        x: uniform(x),
        weight: uniform([x[N - 1], classes]),
        bias: None,
        label: label.of(DType::I64),
        class_weight: None,
        loss: out(),
        log_sum: out(),
        x_gradient: None,
        cross_entropy: LinearCrossEntropyAttrs::default(),
    }
}

fn by_class<const N: usize>(x: [usize; N], classes: usize, label: Draw) -> LinearCrossEntropy<Draw> {
    let sample = cross_entropy(x, classes, label).with(|attrs| attrs.trans_weight = true);
    LinearCrossEntropy { weight: uniform([classes, x[N - 1]]), ..sample }
}

impl LinearCrossEntropy<Draw> {
    fn with_x_gradient(self) -> Self {
        LinearCrossEntropy { x_gradient: Some(out()), ..self }
    }

    fn with(mut self, set: impl FnOnce(&mut LinearCrossEntropyAttrs)) -> Self {
        set(&mut self.cross_entropy);
        self
    }
}

/// The gradient from the losses and logarithms of sums, and the composition's for weights of classes and from gradients.
fn gradient(fwd: &LinearCrossEntropy, g: &mut GradCx<'_>) {
    g.push_gradient::<_, LinearCrossEntropyGrad>(fwd);
    g.compose(&["Loss"], &["ClassWeight"]);
    if fwd.x_gradient.is_some() {
        g.compose(&["XGradient"], &["X", "Weight", "Bias", "ClassWeight"]);
    }
}

/// With `p = exp(logits - log_sum)`, the gradient of logits is `dlogits = s * p - dloss * ε / classes *
/// class_weight`, less `t = dloss * (1 - ε) * class_weight[label]` for the label, where `s = t + dloss * (ε / classes
/// * Σ class_weight + 2 * z_loss * log_sum) + dlog_sum`. Then `dx = dlogits · weightᵀ`, `dweight = xᵀ · dlogits`, and
/// `dbias` is the sum of all rows. With `x_gradient` and without `dlog_sum`, `dx = dloss * x_gradient`.
#[register_op(grad_of = LinearCrossEntropy, grad = Composed, inferred, factors)]
pub struct LinearCrossEntropyGrad<V = Var> {
    pub x: V,
    pub weight: V,
    pub bias: Option<V>,
    pub label: V,
    pub class_weight: Option<V>,
    pub log_sum: V,
    pub x_gradient: Option<V>,
    pub dloss: V,
    pub dlog_sum: Option<V>,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dweight: Option<V>,
    #[output]
    pub dbias: Option<V>,
    #[attrs]
    pub cross_entropy: LinearCrossEntropyAttrs,
}
impl Kernel for LinearCrossEntropyGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_factor!(self.x, X => {
            let layer = layer::<X>(&self.x, &self.weight, self.bias.as_ref(), &self.cross_entropy)?;
            let targets = targets(&self.label, self.class_weight.as_ref(), layer.classes, &self.cross_entropy)?;
            let needs_logits = self.needs_logits();
            let gradients = [self.dx.slice_mut()?, self.dweight.slice_mut()?, self.dbias.slice_mut()?];
            let arriving = (self.dloss.slice()?, self.dlog_sum.slice()?);
            let mut gradients = gradients.map(Option::unwrap_or_default);
            if let (Some(x_gradient), (dloss, None)) = (self.x_gradient.slice()?, arriving) {
                scale_rows(std::mem::take(&mut gradients[0]), x_gradient, dloss);
            }
            if !needs_logits {
                return Ok(());
            }
            layer.gradients(cx, &targets, self.log_sum.slice()?, arriving, gradients)
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        if !self.needs_logits() {
            return 0;
        }
        let [rows, _, classes] = sizes_of(&self.x, &self.weight, &self.cross_entropy);
        scratch_len(rows, classes) * self.x.dtype().arithmetic().size()
    }
}

impl LinearCrossEntropyGrad<Buf<'_>> {
    /// Whether the logits are computed: for the gradients of weight and bias, and for `dx` unless it is scaled.
    fn needs_logits(&self) -> bool {
        let is_scaled = self.x_gradient.is_some() && self.dlog_sum.is_none();
        (self.dx.is_some() && !is_scaled) || self.dweight.is_some() || self.dbias.is_some()
    }
}

/// `dx = dloss * x_gradient`; an empty `dx` is not wanted.
fn scale_rows<T: KernelFloat>(dx: &mut [T], x_gradient: &[T], dloss: &[T]) {
    let depth = (dx.len() / dloss.len().max(1)).max(1);
    let rows = dx.chunks_exact_mut(depth).zip(x_gradient.chunks_exact(depth));
    for ((dx, x_gradient), dloss) in rows.zip(dloss) {
        dx.iter_mut().zip(x_gradient).for_each(|(to, x)| *to = *dloss * *x);
    }
}
