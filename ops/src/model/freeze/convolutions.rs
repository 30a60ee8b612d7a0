//! Convolutions with what follows them: normalisation, scales, biases, a residual and a function.

use autobwd::{DType, OpDesc, operators::Scale, program::Var, tensor::Dim};

use super::{super::recognise::Uses, Frozen, filters::BlockGroups};
use crate::{
    activation::{Gelu, HardSigmoid, HardSwish, LeakyRelu, Relu, Relu6, Sigmoid, Silu, Swish},
    channel_blocks::{Activation, ActivationAttrs},
    conv::{Conv2dOp, ConvAttrs, DepthwiseConv2d},
    elementwise::{ElementwiseAdd, ElementwiseDiv, ElementwiseMul, ElementwiseSub},
    norm::{BatchNormOp, DataLayout},
    rounding::Clip,
    windows::{PaddingAlgorithm, Windows},
};

/// The least number of channels and of filters with which Winograd's algorithm pays.
const LEAST_FOR_WINOGRAD: usize = 32;
/// The most channels times filters for which the values of filters at points are not too large.
const MOST_FOR_WINOGRAD: usize = 1 << 17;

/// The maps `scale * x + bias` of channels.
pub(super) struct ChannelMap {
    pub(super) scale: Vec<f64>,
    pub(super) bias: Vec<f64>,
}

/// What is done with the results of a convolution.
pub(super) struct Tail {
    pub(super) map: ChannelMap,
    pub(super) residual: Option<Var>,
    pub(super) activation: ActivationAttrs,
    /// The final result.
    pub(super) output: Var,
    /// The operators, in ascending order.
    pub(super) ops: Vec<usize>,
}

/// How a convolution is computed.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Depthwise,
    Winograd,
    /// Of channels of their own, or in blocks.
    Direct(BlockGroups),
}

/// A convolution of images `[n, channels, height, width]` with constant filters, which can be computed for images in blocks.
pub(super) struct ConstantConvolution {
    pub(super) input: Var,
    /// Images of one pixel that multiply `input` first, as squeeze and excitation does.
    pub(super) scales: Option<Var>,
    pub(super) filter: Var,
    pub(super) output: Var,
    /// Filters, channels of a group, height and width.
    pub(super) dims: [usize; 4],
    pub(super) windows: [Windows; 2],
    pub(super) kind: Kind,
}

impl ConstantConvolution {
    pub(super) fn of(frozen: &Frozen<'_>, op: &OpDesc) -> Option<ConstantConvolution> {
        let (input, filter, output, conv) = if let Some(op) = op.as_op::<Conv2dOp>() {
            (op.input, op.filter, op.output, op.conv)
        } else {
            let op = op.as_op::<DepthwiseConv2d>()?;
            (op.input, op.filter, op.output, op.conv)
        };
        let value = frozen.value(filter).filter(|value| value.dtype() == DType::F32)?;
        let dims: [usize; 4] = value.dims().try_into().ok()?;
        let groups = conv.groups as usize;
        let size = size(frozen, input);
        let windows = windows(&conv, size, dims)?;
        let fits = conv.data_format == DataLayout::Nchw && channels(frozen, input)? == dims[1] * groups;
        if !fits || dims.contains(&0) {
            return None;
        }
        let kind = kind(&windows, size, dims, groups)?;
        Some(ConstantConvolution { input, scales: None, filter, output, dims, windows, kind })
    }

    /// The convolution at `at`, with a product of its input and of images of one pixel that only it reads; and the place of
    /// this product, if there is one.
    pub(super) fn with_excitation(
        self,
        frozen: &Frozen<'_>,
        uses: &Uses,
        at: usize,
    ) -> (ConstantConvolution, Option<usize>) {
        let product = || {
            let product = uses.written_at(self.input).filter(|_| matches!(self.kind, Kind::Direct(_)))?;
            let op = frozen.program.root().ops[product].as_op::<ElementwiseMul>()?;
            let is_pixel = |var: &Var| size(frozen, *var) == [Some(1), Some(1)];
            let [input, scales] = if is_pixel(&op.x) { [op.y, op.x] } else { [op.x, op.y] };
            let same_channels = channels(frozen, input)? == channels(frozen, scales)?;
            let is_plain = op.axis == -1 && is_pixel(&scales) && !is_pixel(&input);
            let is_fixed = [input, scales].iter().all(|var| uses.is_fixed(*var));
            let is_alone = uses.only_reader(self.input) == Some(at)
                && is_before(uses, &frozen.program.root().ops[product], product);
            (same_channels && is_plain && is_fixed && is_alone && have_same_batches(frozen, input, scales))
                .then_some((product, input, scales))
        };
        match product() {
            Some((product, input, scales)) => {
                (ConstantConvolution { input, scales: Some(scales), ..self }, Some(product))
            }
            None => (self, None),
        }
    }
}

/// The rows and columns of images, if they are known.
fn size(frozen: &Frozen<'_>, var: Var) -> [Option<usize>; 2] {
    let dims = frozen.program.root().vars.get(&var).map(|desc| &desc.dims);
    [2, 3].map(|i| dims.and_then(|dims| dims.get(i)?.get()))
}

/// The windows of a convolution, if they do not depend on open dimensions.
fn windows(
    conv: &ConvAttrs,
    size: [Option<usize>; 2],
    [_, _, height, width]: [usize; 4],
) -> Option<[Windows; 2]> {
    let image = match size {
        [Some(height), Some(width)] => [height, width],
        _ if conv.padding_algorithm == PaddingAlgorithm::Same => return None,
        _ => [1, 1],
    };
    (height > 0 && width > 0).then(|| conv.windows([height, width], image).ok()).flatten()
}

/// How filters of such windows are computed, if they can be.
fn kind(
    windows: &[Windows; 2],
    size: [Option<usize>; 2],
    [filters, share, _, _]: [usize; 4],
    groups: usize,
) -> Option<Kind> {
    if share == 1 && groups == filters && groups > 1 {
        return Some(Kind::Depthwise);
    }
    let is_small = windows.iter().all(|w| (w.size, w.stride, w.dilation) == (3, 1, 1));
    let pixels = size.iter().try_fold(1, |all, n| Some(all * (*n)?));
    let pays = share.min(filters) >= LEAST_FOR_WINOGRAD && pixels.is_none_or(|pixels| pixels >= 100);
    let fits = share * filters <= MOST_FOR_WINOGRAD || pixels.is_some_and(|pixels| pixels >= 500);
    if is_small && groups == 1 && pays && fits {
        return Some(Kind::Winograd);
    }
    BlockGroups::of(groups, [filters, share]).map(Kind::Direct)
}

/// The channels of images in float32, if they are known.
pub(super) fn channels(frozen: &Frozen<'_>, var: Var) -> Option<usize> {
    let desc = frozen.program.root().vars.get(&var)?;
    let is_image = desc.dtype == DType::F32 && desc.dims.len() == 4 && !desc.persistable;
    desc.dims.get(1).filter(|_| is_image)?.get()
}

/// A number for each channel: a constant that is broadcast to images `[n, channels, height, width]`.
fn of_channels(frozen: &Frozen<'_>, var: Var, axis: i32, channels: usize) -> Option<Vec<f64>> {
    let value = frozen.value(var).filter(|value| value.dtype() == DType::F32)?;
    let dims = value.dims();
    let first = if axis < 0 { 4_usize.checked_sub(dims.len())? } else { axis as usize };
    let at_channels = |i: usize| first + i == 1;
    let fits = dims.iter().enumerate().all(|(i, n)| *n == 1 || at_channels(i) && *n == channels);
    let numbers = value.to_f64s();
    match numbers.len() {
        1 if first + dims.len() <= 4 => Some(vec![numbers[0]; channels]),
        n if n == channels && fits => Some(numbers),
        _ => None,
    }
}

impl ChannelMap {
    pub(super) fn identity(channels: usize) -> ChannelMap {
        ChannelMap { scale: vec![1.0; channels], bias: vec![0.0; channels] }
    }

    /// Applies a further map.
    pub(super) fn then(&mut self, scale: &[f64], bias: &[f64]) {
        for (i, (own, bias_of_own)) in self.scale.iter_mut().zip(&mut self.bias).enumerate() {
            *own *= scale[i];
            *bias_of_own = *bias_of_own * scale[i] + bias[i];
        }
    }

    /// Applies the map of an operator that reads `x`, if it is one; returns its result.
    pub(super) fn follow(&mut self, frozen: &Frozen<'_>, uses: &Uses, op: &OpDesc, x: Var) -> Option<Var> {
        let n = self.scale.len();
        let (ones, zeros) = (vec![1.0; n], vec![0.0; n]);
        if let Some(norm) = op.as_op::<BatchNormOp>() {
            // Its other results are no map of channels.
            let is_alone = op.writes().all(|var| var == norm.y || uses.is_read_by(var, |_| false));
            let op = norm;
            let is_constant = (op.is_test && !op.trainable_statistics) || op.use_global_stats;
            if !is_alone || !is_constant || op.x != x || op.data_layout != DataLayout::Nchw {
                return None;
            }
            let numbers = |var: Var| Some(frozen.value(var)?.to_f64s()).filter(|numbers| numbers.len() == n);
            let (mean, variance) = (numbers(op.mean)?, numbers(op.variance)?);
            let scale = op.scale.map_or(Some(ones), numbers)?;
            let bias = op.bias.map_or(Some(zeros), numbers)?;
            let epsilon = f64::from(op.epsilon);
            let scale: Vec<f64> = scale
                .iter()
                .zip(variance)
                .map(|(scale, variance)| scale / (variance + epsilon).sqrt())
                .collect();
            let bias: Vec<f64> =
                bias.iter().zip(&scale).zip(mean).map(|((bias, scale), mean)| bias - scale * mean).collect();
            self.then(&scale, &bias);
            return Some(op.y);
        }
        if let Some(op) = op.as_op::<Scale>().filter(|op| op.x == x) {
            let bias = if op.bias_after_scale { op.bias } else { op.scale * op.bias };
            self.then(&vec![op.scale; n], &vec![bias; n]);
            return Some(op.out);
        }
        macro_rules! with_constant {
            ($op:ident) => {
                op.as_op::<$op>().and_then(|op| match op.x == x {
                    true => Some((of_channels(frozen, op.y, op.axis, n)?, true, op.out)),
                    false => {
                        let leads = frozen.value(op.x).is_some_and(|value| value.dims().len() == 4);
                        let numbers = of_channels(frozen, op.x, -1, n).filter(|_| leads || op.axis == -1)?;
                        Some((numbers, false, op.out))
                    }
                })
            };
        }
        if let Some((bias, _, out)) = with_constant!(ElementwiseAdd) {
            self.then(&ones, &bias);
            return Some(out);
        }
        if let Some((scale, _, out)) = with_constant!(ElementwiseMul) {
            self.then(&scale, &zeros);
            return Some(out);
        }
        if let Some((numbers, is_first, out)) = with_constant!(ElementwiseSub) {
            match is_first {
                true => self.then(&ones, &numbers.iter().map(|x| -x).collect::<Vec<_>>()),
                false => self.then(&vec![-1.0; n], &numbers),
            }
            return Some(out);
        }
        if let Some((numbers, true, out)) = with_constant!(ElementwiseDiv) {
            self.then(&numbers.iter().map(|x| 1.0 / x).collect::<Vec<_>>(), &zeros);
            return Some(out);
        }
        None
    }
}

/// The function of an operator that reads `x`, and its result.
pub(super) fn function(op: &OpDesc, x: Var) -> Option<(ActivationAttrs, Var)> {
    let attrs = |function, alpha: f32, beta: f32| ActivationAttrs {
        fuse_activation: function,
        fuse_alpha: alpha,
        fuse_beta: beta,
    };
    if !op.reads().eq([x]) {
        return None;
    }
    if let Some(op) = op.as_op::<Relu>() {
        return Some((attrs(Activation::Relu, 0.0, 0.0), op.out));
    }
    if let Some(op) = op.as_op::<Relu6>() {
        return Some((attrs(Activation::Relu6, op.threshold, 0.0), op.out));
    }
    if let Some(op) = op.as_op::<LeakyRelu>() {
        // The factor has 64 bits there.
        let alpha = op.alpha as f32;
        return (f64::from(alpha) == op.alpha).then_some((attrs(Activation::LeakyRelu, alpha, 0.0), op.out));
    }
    if let Some(op) = op.as_op::<HardSigmoid>() {
        return Some((attrs(Activation::HardSigmoid, op.slope, op.offset), op.out));
    }
    if let Some(op) = op.as_op::<HardSwish>() {
        let is_usual = (op.threshold, op.scale, op.offset) == (6.0, 6.0, 3.0);
        return is_usual.then_some((attrs(Activation::HardSwish, 0.0, 0.0), op.out));
    }
    if let Some(op) = op.as_op::<Sigmoid>() {
        return Some((attrs(Activation::Sigmoid, 0.0, 0.0), op.out));
    }
    if let Some(op) = op.as_op::<Silu>() {
        return Some((attrs(Activation::Swish, 0.0, 1.0), op.out));
    }
    if let Some(op) = op.as_op::<Clip>() {
        // `relu6` keeps NaN, and so does `clip`.
        let most = op.max as f32;
        let fits = op.min == 0.0 && op.max >= 0.0 && f64::from(most) == op.max;
        return fits.then_some((attrs(Activation::Relu6, most, 0.0), op.out));
    }
    if let Some(op) = op.as_op::<Gelu>() {
        let function = if op.approximate { Activation::GeluTanh } else { Activation::Gelu };
        return Some((attrs(function, 0.0, 0.0), op.out));
    }
    let op = op.as_op::<Swish>()?;
    Some((attrs(Activation::Swish, 0.0, op.beta), op.out))
}

/// What follows the result `output` of an operator with so many channels; `adds` whether a residual can be added.
pub(super) fn tail(
    frozen: &Frozen<'_>,
    uses: &Uses,
    taken: &dyn Fn(usize) -> bool,
    (first, output, channels): (usize, Var, usize),
    adds: bool,
) -> Tail {
    let mut tail = Tail {
        map: ChannelMap::identity(channels),
        residual: None,
        activation: ActivationAttrs::default(),
        output,
        ops: vec![first],
    };
    let ops = &frozen.program.root().ops;
    while let Some(reader) = uses.only_reader(tail.output).filter(|reader| !taken(*reader)) {
        let (op, x) = (&ops[reader], tail.output);
        let mapped = match tail.residual {
            None => tail.map.follow(frozen, uses, op, x),
            Some(_) => None,
        };
        if let Some(output) = mapped {
            tail.output = output;
            tail.ops.push(reader);
            continue;
        }
        if let Some((residual, output)) =
            residual(frozen, op, x).filter(|_| adds && tail.residual.is_none() && is_before(uses, op, reader))
        {
            (tail.residual, tail.output) = (Some(residual), output);
            tail.ops.push(reader);
            continue;
        }
        if let Some((activation, output)) = function(op, x) {
            (tail.activation, tail.output) = (activation, output);
            tail.ops.push(reader);
        }
        break;
    }
    tail
}

/// Whether the inputs of an operator are written before it.
fn is_before(uses: &Uses, op: &OpDesc, at: usize) -> bool {
    op.reads().all(|var| uses.is_fixed(var) && uses.written_at(var).is_none_or(|writer| writer < at))
}

/// What an addition of images of equal shapes adds to `x`, and its result.
fn residual(frozen: &Frozen<'_>, op: &OpDesc, x: Var) -> Option<(Var, Var)> {
    let op = op.as_op::<ElementwiseAdd>()?;
    let other = if op.x == x { op.y } else { op.x };
    let fits = other != x && have_same_shape(frozen, x, other) && channels(frozen, other).is_some();
    fits.then_some((other, op.out))
}

/// Whether variables have the same shape, as far as it is known.
pub(super) fn have_same_shape(frozen: &Frozen<'_>, own: Var, others: Var) -> bool {
    let dims = |var: Var| frozen.program.root().vars.get(&var).map(|desc| &desc.dims);
    let (Some(first), Some(second)) = (dims(own), dims(others)) else { return false };
    first.len() == second.len()
        && have_same_batches(frozen, own, others)
        && first.iter().zip(second.iter()).skip(1).all(is_equal)
}

fn is_equal((a, b): (&Dim, &Dim)) -> bool {
    a == b && (a.get().is_some() || a.is_named())
}

/// Whether images are as many as others, as far as it is known. Batches of different names may be broadcast.
fn have_same_batches(frozen: &Frozen<'_>, images: Var, others: Var) -> bool {
    let batch = |var: Var| frozen.program.root().vars.get(&var)?.dims.first();
    let (Some(own), Some(others)) = (batch(images), batch(others)) else { return false };
    let are_open = own.get().is_none() && others.get().is_none();
    is_equal((own, others)) || are_open && !(own.is_named() && others.is_named())
}
