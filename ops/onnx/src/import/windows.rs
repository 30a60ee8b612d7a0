//! Windows over images, and convolutions.

use autobwd::{DType, Expr, New, Result, emit};
use autobwd_ops::{
    Math,
    conv::{
        Conv2dOp, Conv2dTransposeOp, Conv3dAttrs, Conv3dOp, Conv3dTransposeOp, ConvAttrs, DeformableConv,
        DeformableConvAttrs, DeformableConvV1, DepthwiseConv2d,
    },
    image::{Fold, WindowAttrs},
};

use super::{
    arith::{dim_of, narrow, narrow_int, permute, reshape},
    node::{NodeContext, Outputs, one, refuse},
    pad::pad_constant,
    quantize::{centred, only_scale, requantised},
    rules::{All, Native, NodeRules},
    weights::with_dims,
};
use crate::elements::ElementType;

pub(super) const RULES: NodeRules = &[
    ("Conv", Native, conv),
    ("ConvInteger", All, conv_integer),
    ("QLinearConv", All, quantised_conv),
    ("ConvTranspose", Native, conv_transpose),
    ("Col2Im", Native, columns_to_image),
    ("DeformConv", Native, deformable_conv),
];

/// The windows of an operator, one number for each spatial dimension.
pub(super) struct WindowAttributes {
    pub(super) sizes: Vec<i64>,
    pub(super) strides: Vec<i64>,
    pub(super) dilations: Vec<i64>,
    /// Padding before and behind.
    pub(super) pads: Vec<(i64, i64)>,
}

impl WindowAttributes {
    /// The extent of a window.
    pub(super) fn extent(&self, d: usize) -> i64 {
        (self.sizes[d] - 1) * self.dilations[d] + 1
    }

    /// The padding in the order of two-dimensional operators, with one dimension added if there is only one.
    pub(super) fn image_pads(&self) -> Result<Vec<i32>> {
        let flat: Vec<i64> = self.pads.iter().flat_map(|(before, behind)| [*before, *behind]).collect();
        let lead: &[i64] = if self.pads.len() == 1 { &[0, 0] } else { &[] };
        lead.iter().chain(&flat).map(|pad| narrow_int(*pad)).collect()
    }

    pub(super) fn image<'a>(list: &'a [i64]) -> Vec<i32> {
        let lead: &'a [i64] = if list.len() == 1 { &[1] } else { &[] };
        lead.iter().chain(list).map(|x| narrow(&[*x])[0]).collect()
    }
}

/// The attributes of windows of these sizes.
pub(super) fn windows(n: &NodeContext<'_, '_>, sizes: Vec<i64>) -> Result<WindowAttributes> {
    let rank = sizes.len();
    let op = n.op();
    let list = |name: &str| -> Result<Vec<i64>> {
        let list = n.ints(name)?.unwrap_or_else(|| vec![1; rank]);
        match list.len() == rank && list.iter().all(|x| (1..1 << 24).contains(x)) {
            true => Ok(list),
            false => {
                Err(refuse(format!("attribute `{name}` = {list:?} of operator `{op}` is not supported")))
            }
        }
    };
    let (strides, dilations) = (list("strides")?, list("dilations")?);
    if sizes.iter().any(|size| !(1..1 << 24).contains(size)) {
        return Err(refuse(format!("windows of size {sizes:?} of operator `{op}` are not supported")));
    }
    let given = n.ints("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
    if given.len() != 2 * rank || given.iter().any(|pad| !(0..1 << 24).contains(pad)) {
        return Err(refuse(format!("attribute `pads` = {given:?} of operator `{op}` is not supported")));
    }
    let mut windows = WindowAttributes {
        sizes,
        strides,
        dilations,
        pads: (0..rank).map(|d| (given[d], given[d + rank])).collect(),
    };
    let upper = match n.text_or("auto_pad", "NOTSET")? {
        "NOTSET" | "" => return Ok(windows),
        "VALID" => {
            windows.pads = vec![(0, 0); rank];
            return Ok(windows);
        }
        "SAME_UPPER" => true,
        "SAME_LOWER" => false,
        other => {
            return Err(refuse(format!(
                "attribute `auto_pad` = `{other}` of operator `{op}` is not supported"
            )));
        }
    };
    if op == "ConvTranspose" {
        return Ok(windows);
    }
    let dims = n.spatial_dims()?;
    for (d, dim) in dims.into_iter().enumerate().take(rank) {
        let (dim, stride) = (dim as i64, windows.strides[d]);
        let total = (((dim + stride - 1) / stride - 1) * stride + windows.extent(d) - dim).max(0);
        windows.pads[d] = if upper { (total / 2, total - total / 2) } else { (total - total / 2, total / 2) };
    }
    Ok(windows)
}

/// The number of spatial dimensions of the first input.
pub(super) fn spatial(n: &NodeContext<'_, '_>) -> Result<usize> {
    n.rank(0)?
        .checked_sub(2)
        .filter(|rank| *rank > 0)
        .ok_or_else(|| refuse(format!("operator `{}` needs at least three dimensions", n.op())))
}

/// The sizes of filters, which are input `i`.
fn filter_sizes(n: &NodeContext<'_, '_>, i: usize) -> Result<Vec<i64>> {
    let sizes: Vec<i64> = n.known_dims(i)?.iter().skip(2).map(|dim| *dim as i64).collect();
    let rank = spatial(n)?;
    if sizes.len() != rank || n.ints("kernel_shape")?.is_some_and(|given| given != sizes) {
        return Err(refuse(format!(
            "attribute `kernel_shape` of operator `{}` is not the shape of the filters",
            n.op()
        )));
    }
    Ok(sizes)
}

fn conv(n: &mut NodeContext<'_, '_>) -> Outputs {
    let windows = windows(n, filter_sizes(n, 1)?)?;
    let groups = n.int_or("group", 1)?;
    let x = n.input(0)?;
    let out = match windows.sizes.len() {
        1 => conv1d(&x, &wide_filter(n)?, &windows, groups)?,
        2 => conv2d(&x, &n.input(1)?, &windows, groups)?,
        3 => conv3d(&x, &n.input(1)?, &windows, groups)?,
        other => return Err(refuse(format!("operator `Conv` of {other} dimensions is not supported"))),
    };
    with_bias(n, out, 2)
}

/// A convolution of integers without their zero points, exact in float64; `x` and `filter` are numbers of inputs, each with
/// the number of the zero point.
fn exact_conv(n: &mut NodeContext<'_, '_>, x: [usize; 2], filter: [usize; 2]) -> Result<Expr> {
    let windows = windows(n, filter_sizes(n, filter[0])?)?;
    let groups = n.int_or("group", 1)?;
    if windows.sizes.len() != 2 {
        let (op, dims) = (n.op(), windows.sizes.len());
        return Err(refuse(format!("operator `{op}` of {dims} dimensions is not supported")));
    }
    let x = centred(n, x[0], x[1], false)?;
    let zero = n.optional(filter[1])?;
    let filter = n.input(filter[0])?.cast(DType::F64);
    match zero {
        Some(zero) => {
            conv2d(&x, &(&filter - &reshape(&zero.cast(DType::F64), &[-1, 1, 1, 1])), &windows, groups)
        }
        None => conv2d(&x, &filter, &windows, groups),
    }
}

fn conv_integer(n: &mut NodeContext<'_, '_>) -> Outputs {
    n.set_type(0, ElementType::of(DType::I32));
    one(exact_conv(n, [0, 2], [1, 3])?.cast(DType::I32))
}

/// Products and a bias are summed without rounding, scaled and rounded once.
fn quantised_conv(n: &mut NodeContext<'_, '_>) -> Outputs {
    let element = n.element(7)?;
    n.set_type(0, element);
    let sum = exact_conv(n, [0, 2], [3, 5])?;
    // Of each filter, or of all.
    let filters = reshape(&n.input(4)?.cast(DType::F64), &[-1, 1, 1]);
    let sum = match n.optional(8)? {
        Some(bias) => &sum + &reshape(&bias.cast(DType::F64), &[-1, 1, 1]),
        None => sum,
    };
    let factor = &(&only_scale(n, 1)? * &filters) / &only_scale(n, 6)?;
    requantised(n, &(&sum * &factor), 7, element)
}

/// The sum of columns at the places of their windows.
fn columns_to_image(n: &mut NodeContext<'_, '_>) -> Outputs {
    let sizes = |n: &NodeContext<'_, '_>, i: usize| -> Result<Vec<i64>> {
        match n.constant_ints(i)? {
            Some(sizes) if sizes.len() == 2 => Ok(sizes),
            sizes => {
                let dims = sizes.map_or(0, |sizes| sizes.len());
                Err(refuse(format!("operator `Col2Im` of {dims} dimensions is not supported")))
            }
        }
    };
    let image = sizes(n, 1)?.into_iter().map(narrow_int).collect::<Result<Vec<i32>>>()?;
    let windows = windows(n, sizes(n, 2)?)?;
    let [[top, bottom], [left, right]] = [0, 1].map(|d| [windows.pads[d].0, windows.pads[d].1]);
    let window = WindowAttrs {
        kernel_sizes: narrow(&windows.sizes),
        strides: narrow(&windows.strides),
        paddings: narrow(&[top, left, bottom, right]),
        dilations: narrow(&windows.dilations),
    };
    let x = n.input(0)?;
    one(emit(Fold { x: (&x).into(), y: New, output_sizes: image, window }).y)
}

/// The longest sequences of a batch that are convolved as the rows of one image.
const SHORT: i64 = 64;

/// A convolution of sequences, with filters of images. Products of short sequences are too narrow to be fast: such
/// sequences become rows of one image.
fn conv1d(x: &Expr, filter: &Expr, windows: &WindowAttributes, groups: i64) -> Result<Expr> {
    let short = dim_of(x, 0).is_some_and(|n| n > 1) && dim_of(x, 2).is_some_and(|length| length <= SHORT);
    if !short {
        return Ok(conv2d(&x.unsqueeze(&[2]), filter, windows, groups)?.squeeze(&[2]));
    }
    let rows = permute(x, &[1, 0, 2]).unsqueeze(&[0]);
    Ok(permute(&conv2d(&rows, filter, windows, groups)?.squeeze(&[0]), &[1, 0, 2]))
}

/// Filters of sequences as those of images.
fn wide_filter(n: &mut NodeContext<'_, '_>) -> Result<Expr> {
    if let Some(weight) = n.private_weight(1)
        && let [filters, channels, size] = *weight.dims()
        && let Some(moved) = with_dims(&weight, &[filters, channels, 1, size])?
    {
        return n.moved_weight(1, moved);
    }
    Ok(n.input(1)?.unsqueeze(&[2]))
}

/// Adds a bias of channels, which is input `i`.
fn with_bias(n: &mut NodeContext<'_, '_>, out: Expr, i: usize) -> Outputs {
    let Some(bias) = n.optional(i)? else { return one(out) };
    let dims: Vec<i64> = [-1].into_iter().chain((2..out.dims().len()).map(|_| 1)).collect();
    one(&out + &reshape(&bias, &dims))
}

/// The attributes of a convolution, of images or of volumes.
macro_rules! conv_attrs {
    ($attrs:ty, $windows:expr, $groups:expr) => {
        <$attrs>::default()
            .strides(WindowAttributes::image(&$windows.strides))
            .dilations(WindowAttributes::image(&$windows.dilations))
            .paddings($windows.image_pads()?)
            .groups(narrow_int($groups)?)
    };
}

fn conv2d(x: &Expr, filter: &Expr, windows: &WindowAttributes, groups: i64) -> Result<Expr> {
    let conv = conv_attrs!(ConvAttrs, windows, groups);
    let (input, filters) = (x.into(), filter.into());
    let depthwise = groups > 1 && dim_of(x, 1) == Some(groups);
    Ok(match depthwise {
        true => emit(DepthwiseConv2d { input, filter: filters, output: New, conv }).output,
        false => emit(Conv2dOp { input, filter: filters, output: New, conv }).output,
    })
}

/// A convolution of volumes.
fn conv3d(x: &Expr, filter: &Expr, windows: &WindowAttributes, groups: i64) -> Result<Expr> {
    let conv = conv_attrs!(Conv3dAttrs, windows, groups);
    Ok(emit(Conv3dOp { input: x.into(), filter: filter.into(), output: New, conv }).output)
}

/// A convolution of images at places that are moved by offsets.
fn deformable_conv(n: &mut NodeContext<'_, '_>) -> Outputs {
    let windows = windows(n, filter_sizes(n, 1)?)?;
    let [(top, bottom), (left, right)] = windows.pads[..] else {
        let dims = windows.pads.len();
        return Err(refuse(format!("operator `DeformConv` of {dims} dimensions is not supported")));
    };
    if (top, left) != (bottom, right) {
        return Err(refuse("other padding before than behind of operator `DeformConv` is not supported"));
    }
    let conv = DeformableConvAttrs {
        strides: narrow(&windows.strides),
        paddings: narrow(&[top, left]),
        dilations: narrow(&windows.dilations),
        groups: narrow_int(n.int_or("group", 1)?)?,
        deformable_groups: narrow_int(n.int_or("offset_group", 1)?)?,
        im2col_step: 1,
    };
    let (x, filters, offsets, mask) = (n.input(0)?, n.input(1)?, n.input(2)?, n.optional(4)?);
    let (input, filter, offset) = ((&x).into(), (&filters).into(), (&offsets).into());
    let out = match &mask {
        Some(mask) => {
            emit(DeformableConv { input, filter, offset, mask: mask.into(), output: New, conv }).output
        }
        None => emit(DeformableConvV1 { input, filter, offset, output: New, conv }).output,
    };
    with_bias(n, out, 3)
}

/// The transposed convolution without padding, which is cut afterwards.
fn conv_transpose(n: &mut NodeContext<'_, '_>) -> Outputs {
    let mut windows = windows(n, filter_sizes(n, 1)?)?;
    let rank = windows.sizes.len();
    if rank > 3 {
        return Err(refuse(format!("operator `ConvTranspose` of {rank} dimensions is not supported")));
    }
    let groups = n.int_or("group", 1)?;
    let added = n.ints("output_padding")?.unwrap_or_else(|| vec![0; rank]);
    let auto_pad = n.text_or("auto_pad", "NOTSET")?;
    let sized = n.has_attribute("output_shape") || auto_pad.starts_with("SAME");
    let dims = if sized { n.known_dims(0)? } else { vec![] };
    if added.len() != rank || added.iter().any(|added| !(0..1 << 24).contains(added)) {
        return Err(refuse("attribute `output_padding` of operator `ConvTranspose` does not fit"));
    }
    let whole = |d: usize| (dims[d + 2] as i64 - 1) * windows.strides[d] + windows.extent(d);
    let sizes = match n.ints("output_shape")? {
        Some(sizes) if sizes.len() >= rank => Some(sizes[sizes.len() - rank..].to_vec()),
        Some(_) => return Err(refuse("attribute `output_shape` of operator `ConvTranspose` does not fit")),
        None if auto_pad.starts_with("SAME") => {
            Some((0..rank).map(|d| dims[d + 2] as i64 * windows.strides[d]).collect())
        }
        None => None,
    };
    let cut: Vec<(usize, i64, i64)> = (0..rank)
        .map(|d| {
            let (before, behind) = match &sizes {
                Some(sizes) => {
                    // Padding that is too long is an extension.
                    let total = whole(d) + added[d] - sizes[d];
                    let half = total / 2;
                    if total < 0 {
                        return (d + 2, 0, added[d] - total);
                    }
                    if auto_pad == "SAME_UPPER" { (half, total - half) } else { (total - half, half) }
                }
                None => windows.pads[d],
            };
            (d + 2, -before, added[d] - behind)
        })
        .collect();
    windows.pads = vec![(0, 0); rank];
    let (mut x, mut filter) = (n.input(0)?, n.input(1)?);
    if rank == 1 {
        (x, filter) = (x.unsqueeze(&[2]), filter.unsqueeze(&[2]));
    }
    let (input, filter, output_padding, output_size) = ((&x).into(), (&filter).into(), vec![], vec![]);
    let full = if rank == 3 {
        let conv = conv_attrs!(Conv3dAttrs, windows, groups);
        emit(Conv3dTransposeOp { input, filter, output: New, conv, output_padding, output_size }).output
    } else {
        let (bias, conv) = (None, conv_attrs!(ConvAttrs, windows, groups));
        emit(Conv2dTransposeOp { input, filter, bias, output: New, conv, output_padding, output_size }).output
    };
    let full = if rank == 1 { full.squeeze(&[2]) } else { full };
    let out = pad_constant(full.check()?, &cut, 0.0)?;
    with_bias(n, out, 2)
}
