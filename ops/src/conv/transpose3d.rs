//! Transposed convolution of volumes.

use autobwd::{
    Composed, Composition, Dims, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op,
};

use super::{
    conv3d::{Conv3dAttrs, Conv3dGrad, plain, same},
    gradients::first,
    transpose::TransposedLengths,
};
use crate::{
    Math,
    image::VolumeLayout,
    math::{DimExpr, filled, sizes},
    windows::AxisWindows,
};

/// Transposed convolution of volumes, the gradient of `conv3d` with respect to its volumes:
/// `output[m, z * stride + k * dilation - padding, …] = Σ input[c, z, y, x] * filter[c, m, k, i, j]`, summed over the
/// channels `c` of a group and all contributions to the element.
#[register_op(grad = Composed, composed)]
pub struct Conv3dTransposeOp<V = Var> {
    /// Volumes, `[volumes, channels, depth, height, width]`.
    #[input]
    pub input: V,
    /// Filters, `[channels, channels of output / groups, depth, height, width]`; each of `groups` equal parts of the input
    /// channels makes one part of the output channels.
    #[input]
    pub filter: V,
    /// One volume for each input volume.
    #[output]
    pub output: V,
    /// Position of the windows; padding refers to the output.
    #[attrs]
    pub conv: Conv3dAttrs,
    /// Extra layers, rows and columns at the end of the output, fewer than stride or dilation; empty means 0.
    #[attr(default = [])]
    pub output_padding: Vec<i32>,
    /// Depth, height and width of the output, where strides leave a choice; empty means the smallest.
    #[attr(default = [])]
    pub output_size: Vec<i32>,
}
impl Infer for Conv3dTransposeOp<Meta> {
    fn infer(&mut self) -> Result<()> {
        let Conv3dTransposeOp { input, filter, conv, output_size, output_padding, .. } = &*self;
        let ([volumes, channels, size @ ..], [filters, share, kernel @ ..]) = conv.check(input, filter)?;
        filter.require(filters.agrees(channels), || format!("filters for {channels} channels are needed"))?;
        let lengths = TransposedLengths::new(conv.axes()?, output_size, output_padding)?;
        let mut dims: Dims = [volumes, share * i64::from(conv.groups)].into_iter().collect();
        for (i, (kernel, size)) in kernel.into_iter().zip(size).enumerate() {
            dims.push(lengths.of(i, input, kernel, size)?);
        }
        self.output.set(self.input.dtype, dims);
        Ok(())
    }
}
impl Composition for Conv3dTransposeOp<Expr> {
    fn compose(&mut self) {
        let Conv3dTransposeOp { input, filter, conv, output_size, output_padding, .. } = &*self;
        let axes = match conv.axes() {
            Ok(axes) => axes,
            Err(error) => return self.output = input.builder().failed(error),
        };
        let ([volumes, _, size @ ..], [_, share, kernel @ ..]) = (sizes::<5>(input), sizes::<5>(filter));
        let reach = |i: usize| (&size[i] - 1) * i64::from(axes[i].stride());
        let all: [DimExpr; 3] =
            std::array::from_fn(|i| reach(i) + (&kernel[i] - 1) * i64::from(axes[i].dilation()) + 1);
        // All contributions, also to the padding.
        let [strides, dilations] =
            [AxisWindows::stride, AxisWindows::dilation].map(|of| axes.iter().map(of).collect::<Vec<_>>());
        let dims = [&[volumes, share * i64::from(conv.groups)][..], &all].concat();
        let op = Conv3dGrad {
            input: (&filled(input.builder(), input.dtype(), "0", &dims)).into(),
            filter: filter.into(),
            doutput: input.into(),
            dinput: Some(New),
            dfilter: None,
            conv: Conv3dAttrs::default().strides(strides).dilations(dilations).groups(conv.groups),
        };
        let Some(mut output) = emit(op).dinput else { return };
        for (i, axis) in axes.iter().enumerate() {
            let [before, after] = axis.padding_of(&kernel[i], &size[i]);
            let more = i64::from(output_padding.get(i).copied().unwrap_or_default());
            let length = match output_size.get(i) {
                Some(length) => i64::from(*length).into(),
                None => &all[i] - &before - after + more,
            };
            let mut around = [const { [0; 2] }; 5].map(|pair| pair.map(DimExpr::from));
            around[2 + i][1] = (&before + &length - &all[i]).max(0);
            output = first(&output.pad_to(&around, 0.0), 2 + i as i32, &before, &length);
        }
        self.output = output;
    }
}
autobwd::samples!(
    Conv3dTransposeOp,
    [
        transpose3d([1, 2, 3, 1, 4], [2, 3, 1, 4, 1], plain()),
        transpose3d([1, 2, 3, 4, 2], [2, 1, 2, 3, 1], plain().strides([2, 1, 3]).paddings([1, 0, 0])),
        transpose3d([1, 2, 2, 3, 4], [2, 3, 2, 1, 3], plain().paddings([0, 1, 0, 0, 2, 1])),
        transpose3d([1, 2, 2, 3, 4], [2, 1, 3, 2, 1], plain().dilations([1, 2, 3])),
        transpose3d([1, 4, 2, 3, 1], [4, 3, 2, 1, 2], plain().groups(2)),
        Conv3dTransposeOp {
            output_size: vec![5, 4, 8],
            ..transpose3d([1, 2, 2, 3, 4], [2, 1, 2, 2, 1], plain().strides([3, 1, 2]))
        },
        Conv3dTransposeOp {
            output_padding: vec![1, 0, 2],
            ..transpose3d(
                [1, 2, 2, 4, 3],
                [2, 1, 2, 3, 2],
                plain().strides([2, 1, 1]).dilations([1, 1, 3]).paddings([1, 0, 1])
            )
        },
        transpose3d([1, 2, 4, 3, 5], [2, 1, 3, 2, 1], same().strides([2, 1, 3])),
        transpose3d(
            [1, 2, 2, 3, 4],
            [2, 1, 1, 2, 3],
            plain().padding_algorithm(crate::windows::PaddingAlgorithm::Valid).paddings([7, 7, 7])
        ),
        transpose3d([0, 2, 2, 3, 4], [2, 1, 1, 2, 3], plain()),
        transpose3d([1, 2, 2, 3, 4], [2, 0, 1, 2, 3], plain()),
        transpose3d([1, 2, 2, 3, 4], [3, 1, 1, 2, 3], plain())
            .fails("`Filter`: filters for 2 channels are needed"),
        transpose3d([1, 3, 2, 3, 4], [3, 1, 1, 2, 3], plain().groups(2))
            .fails("`Filter`: a number of filters divisible by 2 groups is needed"),
        transpose3d([1, 2, 2, 3, 4], [2, 1, 1, 2, 3], plain().paddings([1, 0, 0]))
            .fails("`Input`: more rows and columns than the paddings remove are needed"),
        Conv3dTransposeOp {
            output_size: vec![2, 4, 7],
            ..transpose3d([1, 2, 2, 3, 4], [2, 1, 1, 2, 3], plain())
        }
        .fails("attribute `output_size`: 7 is not within 6..7"),
        Conv3dTransposeOp {
            output_padding: vec![1, 0, 0],
            ..transpose3d([1, 2, 2, 3, 4], [2, 1, 1, 2, 3], plain())
        }
        .fails("attribute `output_padding`: 1 is not below stride or dilation, 1"),
        transpose3d([1, 2, 2, 3, 4], [2, 1, 1, 2, 3], plain().data_format(VolumeLayout::Ndhwc))
            .fails("attribute `data_format`: only `NCDHW` is supported"),
    ]
);

fn transpose3d(input: [usize; 5], filter: [usize; 5], conv: Conv3dAttrs) -> Conv3dTransposeOp<Draw> {
    let (input, filter, output) = (uniform(input), uniform(filter), out());
    Conv3dTransposeOp { input, filter, output, conv, output_padding: vec![], output_size: vec![] }
}
