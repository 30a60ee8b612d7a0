//! Rules of operators, for an axis of samples in front.

use autobwd::{
    Attr, OpDesc, Program, Result,
    op::Op,
    operators::{Concat, ConcatGrad, Reshape2, Slice, SliceGrad, Unsqueeze2},
    program::Var,
};

use super::sample_axis::{SampleAxis, attr_of};
use crate::{
    conv::{Conv2dGrad, Conv2dOp},
    cumsum::Cumsum,
    gather::Gather,
    loss::{SoftmaxWithCrossEntropy, SoftmaxWithCrossEntropyGrad},
    matmul::MatmulV2,
    norm::DataLayout,
    pool::{Pool2dGrad, Pool2dOp},
    reduce::{ReduceAmax, ReduceAmin, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum},
    scatter::{TakeAlongAxis, TakeAlongAxisGrad},
    shape::{ExpandV2, Split, Squeeze2, Transpose2},
    softmax::{Softmax, SoftmaxGrad},
};

/// How an operator is written for all samples.
#[derive(Clone, Copy)]
pub(super) enum SampleRule {
    /// A matrix product, with the samples as batch dimension.
    Product,
    /// The elements in other dimensions.
    Reshaped,
    Permuted,
    Expanded,
    /// Dimensions are reduced.
    Reduced,
    /// Slices by an index.
    Gathered,
    /// This attribute has axes, which the axis of samples shifts.
    Shifted(&'static str),
    /// A slice, whose axes are in two attributes.
    Sliced,
    /// Rows of the first dimension are independent, so that samples are more of them.
    Merged,
    Convolved,
    ConvolutionGradient,
}

/// The rule of an operator, if it has one that supports its attributes and ranks.
///
/// # Errors
/// Invalid attributes.
pub(super) fn rule_of(program: &Program, op: &OpDesc) -> Result<Option<SampleRule>> {
    macro_rules! by_type {
        ($($($ty:ident)|+ => $rule:expr),* $(,)?) => {
            match () {
                $(() if $(op.is::<$ty>())||+ => $rule,)*
                () => return Ok(None),
            }
        };
    }
    let rule = by_type!(
        MatmulV2 => SampleRule::Product,
        Reshape2 | Squeeze2 | Unsqueeze2 => SampleRule::Reshaped,
        Transpose2 => SampleRule::Permuted,
        ExpandV2 => SampleRule::Expanded,
        ReduceAmax | ReduceAmin | ReduceMax | ReduceMean | ReduceMin | ReduceProd | ReduceSum => SampleRule::Reduced,
        Gather => SampleRule::Gathered,
        Softmax | SoftmaxGrad | SoftmaxWithCrossEntropy | SoftmaxWithCrossEntropyGrad => SampleRule::Shifted("axis"),
        Concat | ConcatGrad | Split | Cumsum => SampleRule::Shifted("axis"),
        TakeAlongAxis | TakeAlongAxisGrad => SampleRule::Shifted("Axis"),
        Slice | SliceGrad => SampleRule::Sliced,
        Pool2dOp | Pool2dGrad => SampleRule::Merged,
        Conv2dOp => SampleRule::Convolved,
        Conv2dGrad => SampleRule::ConvolutionGradient,
    );
    let rank = axis_rank(program, op);
    // Tensors in the place of attributes, and attributes that mean all elements.
    let by_tensors =
        op.inputs.iter().any(|(slot, vars)| slot.as_str().contains("Tensor") && !vars.is_empty());
    let is_flat = op.attrs.get("flatten") == Some(&Attr::Bool(true));
    let fits = match rule {
        SampleRule::Shifted(_) | SampleRule::Sliced => rank > 0 && !by_tensors && !is_flat,
        SampleRule::ConvolutionGradient => Conv2dGrad::from_desc(op)?.conv.data_format == DataLayout::Nchw,
        SampleRule::Convolved => Conv2dOp::from_desc(op)?.conv.data_format == DataLayout::Nchw,
        _ => true,
    };
    Ok(fits.then_some(rule))
}

/// The rank that axes in attributes refer to: the highest of the inputs, since labels may lack the axis of classes.
fn axis_rank(program: &Program, op: &OpDesc) -> usize {
    let ranks = op.inputs.args().filter_map(|var| program.root().vars.get(&var)).map(|desc| desc.dims.len());
    ranks.max().unwrap_or(0)
}

/// An axis of a value of one sample, negative ones from the end, as an axis of the value of all samples.
fn shifted(axis: i32, rank: usize) -> i32 {
    if axis < 0 { axis.saturating_add_unsigned(rank as u32 + 1) } else { axis.saturating_add(1) }
}

impl SampleRule {
    pub(super) fn apply(self, work: &mut SampleAxis<'_>, op: &OpDesc) -> Result<()> {
        match self {
            SampleRule::Product => product(work, &MatmulV2::from_desc(op)?),
            SampleRule::Reshaped => match (op.inputs.get("X"), op.outputs.get("Out")) {
                ([x], [out]) => work.set(*out, work.value(*x)),
                _ => Ok(()),
            },
            SampleRule::Permuted => {
                let Transpose2 { x, out, axis, .. } = Transpose2::from_desc(op)?;
                let rank = axis.len();
                let axes = axis.iter().map(|axis| shifted(*axis, rank) as usize);
                let axes: Vec<usize> = [0].into_iter().chain(axes).collect();
                let value = work.transpose(work.value(x), &axes)?;
                work.set(out, value)
            }
            SampleRule::Expanded => expand(work, &ExpandV2::from_desc(op)?),
            SampleRule::Reduced => reduce(work, op),
            SampleRule::Gathered => gather(work, op),
            SampleRule::Shifted(attr) => shift(work, op, &[attr]),
            SampleRule::Sliced => shift(work, op, &["axes", "decrease_axis"]),
            SampleRule::Merged => work.push_rewired(op, |work, var| work.merged(var)),
            SampleRule::Convolved => convolve(work, &Conv2dOp::from_desc(op)?),
            SampleRule::ConvolutionGradient => convolution_gradients(work, &Conv2dGrad::from_desc(op)?),
        }
    }
}

fn product(work: &mut SampleAxis<'_>, op: &MatmulV2) -> Result<()> {
    let MatmulV2 { x, y, out, trans_x, trans_y } = *op;
    let [x_dims, y_dims] = [work.dims(x)?, work.dims(y)?];
    // Vectors become a row and a column.
    let as_matrix = |dims: &[usize], row: bool| match dims {
        [k] if row => vec![1, *k],
        [k] => vec![*k, 1],
        dims => dims.to_vec(),
    };
    let [trans_x, trans_y] = [trans_x && x_dims.len() > 1, trans_y && y_dims.len() > 1];
    let dims = [as_matrix(&x_dims, true), as_matrix(&y_dims, false)];
    let rank = dims[0].len().max(dims[1].len());
    let mut factor = |var: Var, dims: &[usize]| match work.is_sampled(var) {
        true => work.reshaped(var, &[&vec![1; rank - dims.len()], dims].concat()),
        false => work.reshape(var, dims),
    };
    let (x, y) = (factor(x, &dims[0])?, factor(y, &dims[1])?);
    let product = work.fresh();
    work.push(MatmulV2 { x, y, out: product, trans_x, trans_y })?;
    work.set(out, product)
}

fn expand(work: &mut SampleAxis<'_>, op: &ExpandV2) -> Result<()> {
    let [own, dims] = [work.dims(op.x)?, work.dims(op.out)?];
    let x = work.reshaped(op.x, &[&vec![1; dims.len() - own.len()], &*own].concat())?;
    let value = work.expand(x, &[&[work.count], &*dims].concat())?;
    work.set(op.out, value)
}

fn reduce(work: &mut SampleAxis<'_>, op: &OpDesc) -> Result<()> {
    let rank = axis_rank(work.single, op);
    let dims = match (op.attrs.get("dim"), op.attrs.get("reduce_all")) {
        (Some(Attr::I32s(dims)), all) if all != Some(&Attr::Bool(true)) => dims.clone(),
        (None, all) if all != Some(&Attr::Bool(true)) => vec![0],
        _ => vec![],
    };
    let dims = match dims.is_empty() || rank == 0 {
        // A number becomes a vector of one element.
        true => attr_of(&(1..=rank.max(1)).collect::<Vec<_>>())?,
        false => dims.iter().map(|dim| shifted(*dim, rank)).collect(),
    };
    let mut op = op.clone();
    op.attrs.set("dim", Attr::I32s(dims));
    op.attrs.set("reduce_all", Attr::Bool(false));
    work.push_rewired(&op, |work, var| match rank {
        0 => work.sampled_as(var, &[1]),
        _ => work.sampled(var),
    })
}

fn gather(work: &mut SampleAxis<'_>, op: &OpDesc) -> Result<()> {
    let Gather { x, index, out, axis } = Gather::from_desc(op)?;
    let (x_dims, index_dims) = (work.dims(x)?, work.dims(index)?);
    let axis = if axis < 0 { axis + x_dims.len() as i32 } else { axis };
    let found = work.fresh();
    match (work.is_sampled(x), work.is_sampled(index)) {
        (true, true) => work.each_sample(op),
        (_, false) => {
            let x = work.value(x);
            work.push(Gather { x, index, out: found, axis: axis + 1 })?;
            work.set(out, found)
        }
        (false, true) => {
            let (before, after) = x_dims.split_at(axis as usize);
            let slices: usize = index_dims.iter().product();
            let index = work.reshape(work.value(index), &[work.count * slices])?;
            work.push(Gather { x, index, out: found, axis })?;
            let dims = [before, &[work.count, slices], &after[1..]].concat();
            let apart = work.reshape(found, &dims)?;
            let place = before.len();
            let axes: Vec<usize> =
                [place].into_iter().chain((0..dims.len()).filter(|i| *i != place)).collect();
            let value = work.transpose(apart, &axes)?;
            work.set(out, value)
        }
    }
}

/// Shifts the axes in attributes.
fn shift(work: &mut SampleAxis<'_>, op: &OpDesc, attrs: &[&'static str]) -> Result<()> {
    let rank = axis_rank(work.single, op);
    let schema = work.ops.get(&op.ty)?.schema();
    let mut op = op.clone();
    for name in attrs {
        let given = op.attrs.get(name).cloned();
        let default = || {
            schema
                .attrs
                .iter()
                .find(|attr| attr.name == *name)
                .and_then(|attr| attr.default)
                .map(|default| default())
        };
        let axes = match given.or_else(default) {
            Some(Attr::I32(axis)) => Attr::I32(shifted(axis, rank)),
            Some(Attr::I32s(axes)) => Attr::I32s(axes.iter().map(|axis| shifted(*axis, rank)).collect()),
            _ => continue,
        };
        op.attrs.set(*name, axes);
    }
    work.push_rewired(&op, |work, var| work.sampled(var))
}

impl SampleAxis<'_> {
    /// A value whose first dimension contains the rows of all samples.
    fn merged(&mut self, var: Var) -> Result<Var> {
        let mut dims = self.dims(var)?;
        let all = self.sampled(var)?;
        dims[0] *= self.count;
        self.reshape(all, &dims)
    }

    /// Images whose channels are the channels of all samples: `[images, samples · channels, height, width]`.
    fn channels(&mut self, var: Var) -> Result<Var> {
        let dims = self.dims(var)?;
        let all = self.sampled(var)?;
        let images = if dims[0] == 1 { all } else { self.transpose(all, &[1, 0, 2, 3, 4])? };
        self.reshape(images, &[dims[0], self.count * dims[1], dims[2], dims[3]])
    }

    /// Sets the value of images from [`channels`](SampleAxis::channels).
    fn set_channels(&mut self, var: Var, value: Var) -> Result<()> {
        let dims = self.dims(var)?;
        let apart = self.reshape(value, &[dims[0], self.count, dims[1], dims[2], dims[3]])?;
        let all = if dims[0] == 1 { apart } else { self.transpose(apart, &[1, 0, 2, 3, 4])? };
        self.set(var, all)
    }
}

/// Images of all samples are images of one convolution. With filters of each sample, their channels are groups.
fn convolve(work: &mut SampleAxis<'_>, op: &Conv2dOp) -> Result<()> {
    let (found, mut conv) = (work.fresh(), op.conv.clone());
    if !work.is_sampled(op.filter) {
        let input = work.merged(op.input)?;
        work.push(Conv2dOp { input, filter: op.filter, output: found, conv })?;
        return work.set(op.output, found);
    }
    conv.groups = conv.groups.saturating_mul(attr_of(&[work.count])?[0]);
    let (input, filter) = (work.channels(op.input)?, work.merged(op.filter)?);
    work.push(Conv2dOp { input, filter, output: found, conv })?;
    work.set_channels(op.output, found)
}

fn convolution_gradients(work: &mut SampleAxis<'_>, op: &Conv2dGrad) -> Result<()> {
    let mut dinput = op.dinput;
    if let Some(wanted) = dinput
        && !work.is_sampled(op.filter)
    {
        let (input, doutput, found) = (work.merged(op.input)?, work.merged(op.doutput)?, work.fresh());
        let (filter, conv) = (op.filter, op.conv.clone());
        work.push(Conv2dGrad { input, filter, doutput, dinput: Some(found), dfilter: None, conv })?;
        work.set(wanted, found)?;
    }
    dinput = dinput.filter(|_| work.is_sampled(op.filter));
    if dinput.is_none() && op.dfilter.is_none() {
        return Ok(());
    }
    let mut conv = op.conv.clone();
    conv.groups = conv.groups.saturating_mul(attr_of(&[work.count])?[0]);
    let (input, doutput) = (work.channels(op.input)?, work.channels(op.doutput)?);
    let filter = work.merged(op.filter)?;
    let own = [dinput, op.dfilter].map(|wanted| wanted.map(|_| work.fresh()));
    work.push(Conv2dGrad { input, filter, doutput, dinput: own[0], dfilter: own[1], conv })?;
    if let (Some(wanted), Some(found)) = (dinput, own[0]) {
        work.set_channels(wanted, found)?;
    }
    if let (Some(wanted), Some(found)) = (op.dfilter, own[1]) {
        work.set(wanted, found)?;
    }
    Ok(())
}
