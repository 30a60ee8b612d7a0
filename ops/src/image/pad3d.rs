//! `pad3d`: padding of volumes.

use autobwd::{
    Buf, Composition, Cx, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::{with_dtype, with_float},
    operators::{ConstantInput, constant_ints},
    register_op,
    tensor::{Dim, Element},
};

use crate::{
    Math,
    kernel_helpers::{AnyNumber, ConvertElement, KernelFloat, PART, pieces},
    math::{DimExpr, positions},
};

autobwd::op::attr_enum! {
    /// What padding consists of.
    pub enum PadMode {
        /// One value.
        Constant = "constant",
        /// The elements next to the border, mirrored, without the one at the border.
        Reflect = "reflect",
        /// The element at the border.
        Replicate = "replicate",
        /// The elements at the opposite border, as if the volume was repeated.
        Circular = "circular",
    }
}

autobwd::op::attr_enum! {
    /// Order of the dimensions of volumes.
    pub enum VolumeLayout {
        /// Samples, channels, depth, height, width.
        Ncdhw = "NCDHW",
        /// Samples, depth, height, width, channels.
        Ndhwc = "NDHWC",
    }
}

/// Padding of volumes in depth, height and width.
#[register_op(grad = Pad3dGrad, infallible, any_dtype)]
pub struct Pad3d<V = Var> {
    /// Volumes, in the order that `data_format` says; any dtype.
    #[input]
    pub x: V,
    /// Lengths of the padding, int32 or int64, `[6]`; replaces the attribute.
    #[input("Paddings", constant)]
    pub paddings_tensor: Option<V>,
    /// `x`, extended by the padding.
    #[output]
    pub out: V,
    /// Number of elements added left, right, top, bottom, front and back: before and behind each column, row and layer.
    #[attr]
    pub paddings: Vec<i32>,
    /// What the padding consists of. With `reflect`, it is shorter than the dimension.
    #[attr(default = PadMode::Constant)]
    pub mode: PadMode,
    /// The value of `constant`.
    #[attr(default = 0.0)]
    pub value: f32,
    /// Order of the dimensions of volumes (`NCDHW`, `NDHWC`).
    #[attr(default = VolumeLayout::Ncdhw)]
    pub data_format: VolumeLayout,
}
impl Infer for Pad3d<Meta> {
    fn infer(&mut self) -> Result<()> {
        let paddings = lengths(self.paddings_tensor.as_ref(), &self.paddings)?;
        let [_, _, _, _, _] = self.x.unpack()?;
        let dims = padded(&self.x, self.mode, first_axis(self.data_format), &paddings)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for Pad3d<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let padding = Padding::new(
            [&self.x, &self.out],
            lengths(self.paddings_tensor.as_ref(), &self.paddings)?,
            self.mode,
            self.data_format,
        );
        with_dtype!(self.x.dtype(), T => {
            let value = T::narrow(AnyNumber::Float(self.value.into()));
            padding.pad::<T>(cx, self.x.slice()?, value, self.out.slice_mut()?);
            Ok(())
        })
    }
}
impl Composition for Pad3d<Expr> {
    fn compose(&mut self) {
        let length = |i: usize| match &self.paddings_tensor {
            Some(lengths) => DimExpr::element(lengths, i as i32),
            None => i64::from(self.paddings[i]).into(),
        };
        let mut paddings = [const { [0; 2] }; 5].map(|pair| pair.map(DimExpr::from));
        for (axis, first) in [4, 2, 0].into_iter().enumerate() {
            paddings[first_axis(self.data_format) + axis] = [length(first), length(first + 1)];
        }
        self.out = compose_padding(&self.x, self.mode, self.value, &paddings);
    }
}
autobwd::samples!(
    Pad3d,
    [
        Pad3d { value: 0.5, ..pad(uniform([2, 3, 1, 4, 5]), [1, 2, 0, 1, 2, 0], PadMode::Constant) },
        pad(uniform([2, 1, 3, 4, 5]), [4, 2, 3, 1, 0, 2], PadMode::Reflect),
        pad(uniform([1, 2, 3, 4, 5]), [1, 7, 3, 1, 0, 2], PadMode::Replicate),
        pad(uniform([1, 2, 3, 2, 4]), [9, 2, 3, 1, 0, 2], PadMode::Circular),
        channels_last(pad(uniform([1, 3, 2, 4, 2]), [1, 2, 1, 0, 2, 1], PadMode::Constant)),
        channels_last(pad(uniform([1, 3, 2, 4, 2]), [1, 3, 1, 0, 2, 1], PadMode::Reflect)),
        channels_last(pad(uniform([1, 3, 2, 4, 2]), [1, 2, 1, 0, 2, 1], PadMode::Replicate)),
        channels_last(pad(uniform([1, 3, 2, 4, 2]), [1, 2, 1, 0, 2, 1], PadMode::Circular)),
        pad(uniform([2, 3, 4, 5, 1]), [0; 6], PadMode::Reflect),
        pad(uniform([0, 2, 3, 1, 4]), [1; 6], PadMode::Replicate),
        pad(uniform([1, 2, 0, 3, 2]), [1; 6], PadMode::Constant),
        pad(integers_below(9, [1, 2, 3, 4, 5]), [1, 2, 0, 1, 2, 0], PadMode::Constant),
        pad(integers_below(9, [1, 2, 3, 4, 5]), [1, 2, 0, 1, 2, 0], PadMode::Reflect),
        pad(uniform([1, 2, 3, 4]), [0; 6], PadMode::Constant).fails("`X`: 5 dimensions are needed"),
        pad(uniform([1, 2, 3, 4, 5]), [0, 0, -1, 0, 0, 0], PadMode::Constant)
            .fails("attribute `paddings`: 6 numbers of at least 0 are needed"),
        Pad3d { paddings: vec![1, 1], ..pad(uniform([1, 2, 3, 4, 5]), [0; 6], PadMode::Constant) }
            .fails("attribute `paddings`: 6 numbers of at least 0 are needed, not [1, 1]"),
        pad(uniform([1, 2, 3, 4, 5]), [0, 5, 0, 0, 0, 0], PadMode::Reflect)
            .fails("`X`: a dimension longer than its padding of 5 elements is needed"),
        pad(uniform([1, 2, 0, 4, 5]), [0, 0, 0, 0, 0, 1], PadMode::Circular)
            .fails("`X`: at least one element is needed where padding is not constant"),
        Pad3d {
            paddings_tensor: Some(integers(&[1, 2, 0, 1, 2, 0])),
            ..pad(uniform([1, 2, 3, 4, 5]), [0; 6], PadMode::Reflect)
        },
        Pad3d {
            paddings_tensor: Some(integers(&[1, 2, 0, 1])),
            ..pad(uniform([1, 2, 3, 4, 5]), [0; 6], PadMode::Constant)
        }
        .fails("attribute `paddings`: 6 numbers of at least 0 are needed"),
    ]
);

fn pad(x: Draw, paddings: [i32; 6], mode: PadMode) -> Pad3d<Draw> {
    let (paddings, data_format) = (paddings.to_vec(), VolumeLayout::Ncdhw);
    Pad3d { x, paddings_tensor: None, out: out(), paddings, mode, value: 0.0, data_format }
}

fn channels_last(pad: Pad3d<Draw>) -> Pad3d<Draw> {
    Pad3d { data_format: VolumeLayout::Ndhwc, ..pad }
}

/// Padding before and behind depth, height and width.
fn lengths<C: ConstantInput>(tensor: Option<&C>, paddings: &[i32]) -> Result<[[Option<usize>; 2]; 3]> {
    let mut pairs = pairs(tensor, paddings)?;
    pairs.reverse();
    Ok(pairs)
}

/// Padding before and behind each of `N` axes, in the order in which it is given.
pub(super) fn pairs<const N: usize, C: ConstantInput>(
    tensor: Option<&C>,
    paddings: &[i32],
) -> Result<[[Option<usize>; 2]; N]> {
    let given = constant_ints(&[], tensor, paddings.iter().map(|n| i64::from(*n)))?;
    if given.len() != 2 * N || given.iter().flatten().any(|n| *n < 0) {
        let given: Vec<_> = given.iter().flatten().collect();
        let text = format!("{} numbers of at least 0 are needed, not {given:?}", 2 * N);
        return Err(Error::attr("paddings", text));
    }
    Ok(std::array::from_fn(|axis| [0, 1].map(|side| given[2 * axis + side].map(|n| n as usize))))
}

/// The dimensions of `x` with padding of consecutive axes.
pub(super) fn padded(x: &Meta, mode: PadMode, first: usize, paddings: &[[Option<usize>; 2]]) -> Result<Dims> {
    let mut dims = x.dims.clone();
    for (dim, pair) in dims[first..].iter_mut().zip(paddings) {
        if let (Some(n), [Some(before), Some(behind)]) = (dim.get(), *pair) {
            check_mode(x, mode, n, [before, behind])?;
        }
        let [before, behind] = pair.map(|n| n.map_or(Dim::UNKNOWN, Dim::from));
        *dim = *dim + before + behind;
    }
    Ok(dims)
}

/// `x` with padding of all axes.
pub(super) fn compose_padding(x: &Expr, mode: PadMode, value: f32, paddings: &[[DimExpr; 2]]) -> Expr {
    if mode == PadMode::Constant {
        return x.pad_to(paddings, value);
    }
    paddings.iter().zip(0..).fold(x.clone(), |x, (pair, axis)| {
        let is_padded = pair.iter().any(|length| length.known() != Some(0));
        if is_padded { x.gather(&sources(mode, &x.dim(axis), pair, &x), axis) } else { x }
    })
}

/// The dimension of the depth.
fn first_axis(format: VolumeLayout) -> usize {
    if format == VolumeLayout::Ncdhw { 2 } else { 1 }
}

fn check_mode(x: &Meta, mode: PadMode, n: usize, [before, behind]: [usize; 2]) -> Result<()> {
    let longest = before.max(behind);
    let reflected = mode != PadMode::Reflect || longest == 0 || n > longest;
    x.require(reflected, || format!("a dimension longer than its padding of {longest} elements is needed"))?;
    let there = mode == PadMode::Constant || longest == 0 || n > 0;
    x.require(there, || "at least one element is needed where padding is not constant".into())
}

/// Padding along one axis.
#[derive(Clone, Copy)]
struct PaddedAxis {
    mode: PadMode,
    before: usize,
    x: usize,
    out: usize,
}

impl PaddedAxis {
    /// The element of `x` that is at this position, if any.
    fn source(&self, at: usize) -> Option<usize> {
        let PaddedAxis { mode, before, x, .. } = *self;
        match mode {
            _ if (before..before + x).contains(&at) => Some(at - before),
            PadMode::Constant => None,
            PadMode::Reflect if at < before => Some(before - at),
            PadMode::Reflect => Some(2 * (x - 1) - (at - before)),
            PadMode::Replicate => Some(at.saturating_sub(before).min(x - 1)),
            PadMode::Circular => Some((at + x - before % x) % x),
        }
    }
}

/// The elements at all positions along an axis of `n` elements, as [`PaddedAxis::source`].
fn sources(mode: PadMode, n: &DimExpr, [before, after]: &[DimExpr; 2], x: &Expr) -> Expr {
    let [before, length, last] = [before.clone(), n + before + after, n - 1];
    let at = positions(x.builder(), &length) - before.number(x.builder());
    let [zero, last] = [0.into(), last].map(|n: DimExpr| n.number(x.builder()));
    match mode {
        PadMode::Reflect => &last - (&last - at.abs()).abs(),
        PadMode::Replicate | PadMode::Constant => at.maximum(&zero).minimum(&last),
        PadMode::Circular => at.remainder(&n.number(x.builder())),
    }
}

/// Padding of all volumes, each with `inner` consecutive elements at a position.
struct Padding {
    axes: [PaddedAxis; 3],
    inner: usize,
}

impl Padding {
    /// All lengths are known when a kernel runs.
    fn new(
        [x, out]: [&Buf<'_>; 2],
        lengths: [[Option<usize>; 2]; 3],
        mode: PadMode,
        format: VolumeLayout,
    ) -> Padding {
        let first = first_axis(format);
        let axis = |axis: usize| {
            let [x, out] = [x, out].map(|volumes| volumes.dims()[first + axis]);
            PaddedAxis { mode, before: lengths[axis][0].unwrap_or_default(), x, out }
        };
        let inner = if format == VolumeLayout::Ncdhw { 1 } else { x.dims()[4] };
        Padding { axes: [axis(0), axis(1), axis(2)], inner }
    }

    /// Elements of a row of the result.
    fn row(&self) -> usize {
        self.axes[2].out * self.inner
    }

    /// The row of `x` that a row of the result consists of, if any.
    fn source_row(&self, row: usize) -> Option<usize> {
        let [deep, high, _] = self.axes;
        let (volume, row) = (row / (deep.out * high.out), row % (deep.out * high.out));
        let layer = volume * deep.x + deep.source(row / high.out)?;
        Some(layer * high.x + high.source(row % high.out)?)
    }

    fn pad<T: Element>(&self, cx: &Cx, x: &[T], value: T, out: &mut [T]) {
        let (row, inner, axis) = (self.row(), self.inner, self.axes[2]);
        let part = PART.div_ceil(row.max(1)) * row;
        cx.chunks_mut(out, part, |i, out| {
            pieces(out, i * part, row, usize::MAX, |at, _, out| {
                let Some(from) = self.source_row(at) else { return out.fill(value) };
                let x = &x[from * axis.x * inner..][..axis.x * inner];
                let (left, rest) = out.split_at_mut(axis.before * inner);
                let (middle, right) = rest.split_at_mut(x.len());
                middle.copy_from_slice(x);
                for (out, first) in [(left, 0), (right, axis.before + axis.x)] {
                    for (i, out) in out.chunks_exact_mut(inner).enumerate() {
                        match axis.source(first + i) {
                            Some(from) => out.copy_from_slice(&x[from * inner..][..inner]),
                            None => out.fill(value),
                        }
                    }
                }
            });
        });
    }

    fn add_up<T: KernelFloat>(&self, cx: &Cx, dout: &[T], dx: &mut [T]) {
        let (row, inner, [deep, high, wide]) = (self.row(), self.inner, self.axes);
        let volume = deep.x * high.x * wide.x * inner;
        let padded = deep.out * high.out;
        let part = PART.div_ceil(volume.max(1)) * volume;
        cx.chunks_mut(dx, part, |i, dx| {
            dx.fill(T::ZERO);
            let first = i * part / volume * padded;
            let last = first + dx.len() / volume * padded;
            for at in first..last {
                let Some(to) = self.source_row(at) else { continue };
                let dx = &mut dx[to * wide.x * inner - i * part..][..wide.x * inner];
                for (i, dout) in dout[at * row..][..row].chunks_exact(inner).enumerate() {
                    if let Some(to) = wide.source(i) {
                        dx[to * inner..].iter_mut().zip(dout).for_each(|(dx, dout)| *dx += *dout);
                    }
                }
            }
        });
    }
}

/// `dx` = for each element, the sum of `dout` where the element is.
#[register_op(grad_of = Pad3d, grad = Multilinear, infallible)]
pub struct Pad3dGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    #[input(constant)]
    pub paddings_tensor: Option<V>,
    pub dout: V,
    #[output]
    pub dx: V,
    pub paddings: Vec<i32>,
    pub mode: PadMode,
    pub data_format: VolumeLayout,
}
impl Infer for Pad3dGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (x, paddings_tensor, out) = (self.x.clone(), self.paddings_tensor.clone(), self.dout.clone());
        let (paddings, mode, data_format) = (self.paddings.clone(), self.mode, self.data_format);
        let mut forward = Pad3d { x, paddings_tensor, out, paddings, mode, value: 0.0, data_format };
        forward.infer()?;
        self.x.float()?;
        self.dout.same_dtype(&self.x)?;
        let dims = &forward.out.dims;
        self.dout.require(self.dout.dims.agrees(dims), || format!("{dims} is needed"))?;
        self.dx.like(&self.x);
        Ok(())
    }
}
impl Kernel for Pad3dGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let padding = Padding::new(
            [&self.x, &self.dout],
            lengths(self.paddings_tensor.as_ref(), &self.paddings)?,
            self.mode,
            self.data_format,
        );
        with_float!(self.dout, T => {
            padding.add_up::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?);
            Ok(())
        })
    }
}
