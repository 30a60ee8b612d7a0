//! The operator `conv3d`.

use autobwd::{
    Attrs, Buf, Composition, Cx, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, Result, Var, check::*,
    op::with_float, register_op, tensor::Dim,
};

use super::{
    gradients::{PaddedConvolution, fail},
    volume::VolumeConvolution,
};
use crate::{
    image::VolumeLayout,
    windows::{AxisWindows, PaddingAlgorithm, Windows, axes},
};

/// The attributes of convolutions of volumes.
#[derive(Attrs, Clone, Debug)]
pub struct Conv3dAttrs {
    /// Strides of the windows in depth, height and width.
    #[attr(default = [1, 1, 1])]
    pub strides: Vec<i32>,
    /// Padding: in depth, height and width; or front, back, top, bottom, left and right.
    #[attr(default = [0, 0, 0])]
    pub paddings: Vec<i32>,
    /// Whether padding is explicit, `SAME` or `VALID`.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// Dilation of the windows in depth, height and width.
    #[attr(default = [1, 1, 1])]
    pub dilations: Vec<i32>,
    /// Number of groups of channels, each with filters of its own.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// Order of the dimensions of volumes; `NDHWC` is not supported.
    #[attr(default = VolumeLayout::Ncdhw)]
    pub data_format: VolumeLayout,
}

impl Conv3dAttrs {
    pub(super) fn axes(&self) -> Result<[AxisWindows; 3]> {
        axes(&self.strides, &self.paddings, self.padding_algorithm, &self.dilations)
    }

    /// The windows of filters of that size over volumes of that size, in depth, height and width.
    ///
    /// # Errors
    /// Invalid attributes.
    pub fn windows(&self, filter: [usize; 3], volume: [usize; 3]) -> Result<[Windows; 3]> {
        let axes = self.axes()?;
        Ok([0, 1, 2].map(|i| axes[i].windows(filter[i], volume[i])))
    }

    /// Checks both shapes; returns the dimensions of `input` and of `filter`.
    pub(super) fn check(&self, input: &Meta, filter: &Meta) -> Result<([Dim; 5], [Dim; 5])> {
        input.float()?;
        filter.same_dtype(input)?;
        if self.data_format != VolumeLayout::Ncdhw {
            return Err(Error::attr("data_format", "only `NCDHW` is supported".to_string()));
        }
        let (volumes, filters): ([_; 5], [_; 5]) = (input.unpack()?, filter.unpack()?);
        let groups = self.groups as usize;
        let even = filters[0].get().is_none_or(|n| n.is_multiple_of(groups));
        filter.require(even, || format!("a number of filters divisible by {groups} groups is needed"))?;
        let empty = filters[2..].contains(&Dim::from(0));
        filter.require(!empty, || "windows of at least one element are needed".into())?;
        Ok((volumes, filters))
    }

    /// The output shape of the convolution of `input` with `filter`.
    fn convolved(&self, input: &Meta, filter: &Meta) -> Result<Dims> {
        let ([volumes, channels, size @ ..], [filters, share, kernel @ ..]) = self.check(input, filter)?;
        let groups = self.groups as usize;
        filter.require((share * Dim::from(groups)).agrees(channels), || {
            format!("filters of {channels} channels in {groups} groups are needed")
        })?;
        let axes = self.axes()?;
        let mut dims: Dims = [volumes, filters].into_iter().collect();
        for ((axis, name), (kernel, size)) in
            axes.into_iter().zip(["layers", "rows", "columns"]).zip(kernel.into_iter().zip(size))
        {
            dims.push(match (kernel.get(), size.get()) {
                (Some(kernel), Some(size)) => {
                    let windows = axis.windows(kernel, size);
                    windows.count(size, false).ok_or_else(|| windows.too_large(input, name))?.into()
                }
                _ => axis.open_count(kernel, size),
            });
        }
        Ok(dims)
    }
}

/// Convolution of volumes: `output[m, z, y, x] = Σ input[c, z * stride + k * dilation - padding, …] *
/// filter[m, c, k, i, j]`, summed over the channels `c` of a group and the elements `k`, `i`, `j` of a filter.
///
/// Padding counts as 0.
#[register_op(grad = Conv3dGrad, infallible, primitive)]
pub struct Conv3dOp<V = Var> {
    /// Volumes, `[volumes, channels, depth, height, width]`.
    #[input]
    pub input: V,
    /// Filters, `[filters, channels / groups, depth, height, width]`; the first of `groups` equal parts of the filters
    /// convolves the first part of the channels, and so on.
    #[input]
    pub filter: V,
    /// One volume for each input volume, with one channel for each filter.
    #[output]
    pub output: V,
    /// Position of the windows.
    #[attrs]
    pub conv: Conv3dAttrs,
}
impl Infer for Conv3dOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.output.set(self.input.dtype, self.conv.convolved(&self.input, &self.filter)?);
        Ok(())
    }
}
impl Kernel for Conv3dOp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let kernel = VolumeConvolution::new(&self.conv, &self.input, &self.filter, &self.output)?;
        with_float!(self.input, T => {
            kernel.forward::<T>(cx, self.input.slice()?, self.filter.slice()?, self.output.slice_mut()?)
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        VolumeConvolution::new(&self.conv, &self.input, &self.filter, &self.output)
            .map_or(0, |kernel| kernel.scratch(workers).saturating_mul(self.input.dtype().size()))
    }
}
autobwd::samples!(
    Conv3dOp,
    [
        conv3d([2, 3, 4, 6, 8], [7, 3, 1, 2, 6], plain()),
        conv3d([2, 3, 4, 5, 3], [4, 3, 2, 3, 1], plain()),
        conv3d([1, 2, 5, 4, 6], [3, 2, 2, 1, 3], plain().strides([2, 3, 1]).paddings([1, 0, 2])),
        conv3d([1, 2, 3, 4, 2], [2, 2, 2, 2, 3], plain().paddings([0, 1, 2, 0, 1, 3])),
        conv3d([1, 1, 5, 6, 7], [2, 1, 3, 2, 3], plain().dilations([2, 3, 1])),
        conv3d([2, 4, 3, 2, 3], [6, 2, 2, 2, 1], plain().groups(2)),
        conv3d([2, 3, 2, 3, 2], [3, 1, 1, 1, 1], plain().groups(3)),
        // Enough groups that each has a thread of its own.
        conv3d([2, 4, 2, 3, 2], [4, 1, 2, 2, 2], plain().groups(4)),
        // Some windows lie entirely in the padding.
        conv3d([1, 2, 2, 1, 2], [2, 2, 1, 1, 2], plain().paddings([3, 2, 3])),
        conv3d([1, 2, 4, 5, 3], [2, 2, 3, 2, 2], same().strides([2, 1, 2])),
        conv3d(
            [1, 1, 4, 3, 3],
            [2, 1, 2, 2, 2],
            plain().padding_algorithm(PaddingAlgorithm::Valid).paddings([7, 7, 7])
        ),
        conv3d([0, 2, 3, 3, 3], [2, 2, 2, 2, 2], plain()),
        conv3d([2, 0, 3, 3, 3], [2, 0, 2, 2, 2], plain()),
        conv3d([2, 2, 3, 3, 3], [0, 2, 2, 2, 2], plain()),
        conv3d([1, 2, 0, 3, 3], [2, 2, 2, 2, 2], plain().paddings([1, 0, 0])),
        Conv3dOp { input: uniform([2, 3, 5]), ..conv3d([2, 3, 4, 5, 3], [4, 3, 2, 3, 1], plain()) }
            .fails("`Input`: 5 dimensions are needed"),
        Conv3dOp {
            filter: integers_below(3, [2, 2, 1, 1, 1]),
            ..conv3d([1, 2, 3, 3, 3], [2, 2, 1, 1, 1], plain())
        }
        .fails("`Filter`: dtype int64 does not match"),
        conv3d([1, 3, 3, 3, 3], [2, 2, 1, 1, 1], plain())
            .fails("`Filter`: filters of 3 channels in 1 groups are needed"),
        conv3d([1, 4, 3, 3, 3], [3, 2, 1, 1, 1], plain().groups(2))
            .fails("`Filter`: a number of filters divisible by 2 groups is needed"),
        conv3d([1, 2, 3, 3, 3], [2, 2, 0, 1, 1], plain())
            .fails("`Filter`: windows of at least one element are needed"),
        conv3d([1, 2, 3, 3, 3], [2, 2, 6, 1, 1], plain().paddings([1, 0, 0]))
            .fails("`Input`: at least 4 layers are needed for a window"),
        conv3d([1, 2, 3, 3, 3], [2, 2, 1, 1, 1], plain().strides([1, 1]))
            .fails("attribute `strides`: 3 numbers of at least 1 are needed, not [1, 1]"),
        conv3d([1, 2, 3, 3, 3], [2, 2, 1, 1, 1], plain().paddings([0, 0, 0, 1]))
            .fails("attribute `paddings`: 3 or 6 numbers of at least 0 are needed, not [0, 0, 0, 1]"),
        conv3d([1, 2, 3, 3, 3], [2, 2, 1, 1, 1], plain().data_format(VolumeLayout::Ndhwc))
            .fails("attribute `data_format`: only `NCDHW` is supported"),
    ]
);

fn conv3d(input: [usize; 5], filter: [usize; 5], conv: Conv3dAttrs) -> Conv3dOp<Draw> {
    Conv3dOp { input: uniform(input), filter: uniform(filter), output: out(), conv }
}

pub(super) fn plain() -> Conv3dAttrs {
    Conv3dAttrs::default()
}

pub(super) fn same() -> Conv3dAttrs {
    plain().padding_algorithm(PaddingAlgorithm::Same)
}

/// `dinput[c, z * stride + k * dilation - padding, …] = Σ doutput[m, z, y, x] * filter[m, c, k, i, j]`,
/// `dfilter[m, c, k, i, j] = Σ doutput[m, z, y, x] * input[c, z * stride + k * dilation - padding, …]`, also summed
/// over volumes.
#[register_op(grad_of = Conv3dOp, grad = Multilinear, inferred, infallible)]
pub struct Conv3dGrad<V = Var> {
    pub input: V,
    pub filter: V,
    pub doutput: V,
    #[output]
    pub dinput: Option<V>,
    #[output]
    pub dfilter: Option<V>,
    #[attrs]
    pub conv: Conv3dAttrs,
}
impl Kernel for Conv3dGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let kernel = VolumeConvolution::new(&self.conv, &self.input, &self.filter, &self.doutput)?;
        with_float!(self.doutput, T => {
            let (input, filter, doutput) = (self.input.slice::<T>()?, self.filter.slice()?, self.doutput.slice()?);
            if let Some(dinput) = &mut self.dinput {
                kernel.data_grad(cx, filter, doutput, dinput.slice_mut()?)?;
            }
            match &mut self.dfilter {
                Some(dfilter) => kernel.filter_grad(cx, input, doutput, dfilter.slice_mut()?),
                None => Ok(()),
            }
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        VolumeConvolution::new(&self.conv, &self.input, &self.filter, &self.doutput)
            .map_or(0, |kernel| kernel.scratch(workers).saturating_mul(self.input.dtype().size()))
    }
}
impl Composition for Conv3dGrad<Expr> {
    fn compose(&mut self) {
        let (x, dy, filter) = (&self.input, &self.doutput, &self.filter);
        let axes = match self.conv.axes() {
            Ok(axes) => axes,
            Err(error) => return fail(filter, error, [&mut self.dinput, &mut self.dfilter]),
        };
        let conv = PaddedConvolution::new(&axes, self.conv.groups, filter, [x, x]);
        if let Some(dinput) = &mut self.dinput {
            *dinput = conv.data_gradient(x, dy, filter);
        }
        if let Some(dfilter) = &mut self.dfilter {
            *dfilter = conv.filter_gradient(x, dy, filter);
        }
    }
}
