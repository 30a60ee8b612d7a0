//! `linear_interp_v2`, `trilinear_interp_v2` and `bicubic_interp_v2`: compositions along one axis after the other.

use autobwd::{Composed, Composition, DType, Expr, Infer, Meta, Result, Var, check::*, register_op};

use super::{
    InterpAttrs,
    InterpMethod::{self, Bicubic, Bilinear, Linear, Nearest, Trilinear},
    SizeTensors, size_tensors,
};
use crate::norm::DataLayout;

/// Declares an operator with `axes` axes and these methods; `size` and `scale` are lists that samples start from.
macro_rules! resizing {
    (
        $(#[doc = $doc:literal])* $op:ident,
        $(#[doc = $x_doc:literal])* x, axes: $axes:literal, methods: $methods:expr,
        [$($sample:expr),* $(,)?]
    ) => {
        $(#[doc = $doc])*
        #[register_op(grad = Composed, composed)]
        pub struct $op<V = Var> {
            $(#[doc = $x_doc])*
            #[input]
            pub x: V,
            /// Sizes of the result along the axes, int32 or int64, `[axes]`; replace the attributes, without factors.
            #[input(constant)]
            pub out_size: Option<V>,
            /// The same sizes, as one tensor each; replace `out_size`.
            #[input(constant)]
            pub size_tensor: Vec<V>,
            /// One factor, or one for each axis; replaces the attribute.
            #[input(constant)]
            pub scale: Option<V>,
            /// `x`, resized.
            #[output]
            pub out: V,
            /// Size of the result, and position of its elements.
            #[attrs]
            pub interp: InterpAttrs,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.interp.infer::<$axes>(&$methods, &self.x, &size_tensors!(self), &mut self.out)
            }
        }
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                self.out = self.interp.compose(&size_tensors!(self), &self.x);
            }
        }
        const _: () = {
            fn row(x: Draw, interp: InterpAttrs) -> $op<Draw> {
                $op { x, out_size: None, size_tensor: vec![], scale: None, out: out(), interp }
            }

            autobwd::samples!($op, [$($sample,)*]);
        };
    };
}

/// Attributes of a method, with sizes of the last axes.
fn to_size(interp_method: InterpMethod, size: &[i32]) -> InterpAttrs {
    let size = |i: usize| (size.len() + i).checked_sub(3).map_or(0, |i| size[i]);
    InterpAttrs { out_d: size(0), out_h: size(1), out_w: size(2), interp_method, ..InterpAttrs::default() }
}

/// Attributes of a method, with factors.
fn scaling(interp_method: InterpMethod, scale: &[f32]) -> InterpAttrs {
    InterpAttrs { scale: scale.to_vec(), interp_method, ..InterpAttrs::default() }
}

resizing!(
    /// Resizes signals: every element of the result is interpolated linearly between the two elements around its source
    /// position, as in `bilinear_interp_v2`.
    LinearInterpV2,
    /// Signals, `[signals, channels, width]`.
    x, axes: 1, methods: [Linear],
    [
        row(uniform([2, 3, 4]), to_size(Linear, &[7])),
        row(uniform([1, 2, 5]), to_size(Linear, &[3]).align_corners(false)),
        row(uniform([1, 2, 3]), to_size(Linear, &[7]).align_corners(false).align_mode(0)),
        row(uniform([1, 2, 3]), scaling(Linear, &[2.5]).align_corners(false)),
        row(uniform([2, 1, 5]), scaling(Linear, &[0.5]).out_w(9).out_h(2).out_d(3)),
        row(uniform([2, 1, 3]), to_size(Linear, &[3])),
        row(uniform([2, 3, 4]), to_size(Linear, &[1])),
        row(uniform([0, 2, 3]), to_size(Linear, &[5])),
        LinearInterpV2 { out_size: Some(integers(&[5])), ..row(uniform([1, 2, 3]), to_size(Linear, &[2])) },
        LinearInterpV2 {
            size_tensor: vec![integers(&[5]).of(DType::I32)],
            ..row(uniform([1, 2, 3]), to_size(Linear, &[2]))
        },
        LinearInterpV2 { scale: Some(given([1], [1.5])), ..row(uniform([1, 2, 4]), to_size(Linear, &[2])) },
        row(uniform([1, 2, 3]), to_size(Bilinear, &[2]))
            .fails("attribute `interp_method`: `linear` is needed, not `bilinear`"),
        row(uniform([1, 2, 3, 4]), to_size(Linear, &[2])).fails("`X`: 3 dimensions are needed"),
        row(uniform([1, 2, 3]), to_size(Linear, &[0])).fails("attribute `out_w`: 0 is not a size"),
        row(uniform([1, 2, 0]), to_size(Linear, &[2])).fails("`X`: from 1 to 2³¹ - 1 elements"),
        row(uniform([1, 2, 3]), scaling(Linear, &[1.0, 2.0])).fails("attribute `scale`: 1 positive numbers"),
        row(uniform([1, 2, 3]), to_size(Linear, &[2]).data_layout(DataLayout::Nhwc))
            .fails("attribute `data_layout`: only `NCHW` is supported"),
        row(integers_below(9, [1, 2, 3]), to_size(Linear, &[2]))
            .fails("`X`: floating point numbers are needed"),
    ]
);

resizing!(
    /// Resizes volumes: every element of the result is interpolated linearly between the eight elements around its source
    /// position, as in `bilinear_interp_v2`; or it is the nearest one, as in `nearest_interp_v2`.
    TrilinearInterpV2,
    /// Volumes, `[volumes, channels, depth, height, width]`; any dtype if elements are the nearest ones.
    x, axes: 3, methods: [Trilinear, Nearest],
    [
        row(uniform([1, 2, 3, 5, 4]), to_size(Trilinear, &[4, 3, 7])),
        row(uniform([2, 1, 3, 4, 5]), to_size(Trilinear, &[5, 2, 3]).align_corners(false)),
        row(uniform([2, 1, 3, 2, 4]), to_size(Trilinear, &[4, 3, 6]).align_corners(false).align_mode(0)),
        row(uniform([1, 1, 2, 3, 4]), scaling(Trilinear, &[2.0, 1.5, 0.5]).out_d(9)),
        row(uniform([1, 1, 2, 3, 4]), scaling(Nearest, &[2.0, 1.0, 1.5]).align_corners(false)),
        row(uniform([1, 1, 2, 3, 5]), to_size(Nearest, &[3, 4, 2])),
        row(integers_below(9, [1, 1, 2, 3, 4]), to_size(Nearest, &[3, 4, 2])),
        row(uniform([1, 0, 2, 3, 4]), to_size(Trilinear, &[3, 1, 2])),
        TrilinearInterpV2 {
            out_size: Some(integers(&[3, 2, 5])),
            ..row(uniform([1, 1, 2, 3, 4]), to_size(Trilinear, &[2, 2, 2]))
        },
        TrilinearInterpV2 {
            size_tensor: vec![integers(&[3]), integers(&[2]), integers(&[5])],
            ..row(uniform([1, 1, 2, 3, 4]), to_size(Trilinear, &[2, 2, 2]))
        },
        TrilinearInterpV2 {
            scale: Some(given([3], [1.5, 2.0, 0.5])),
            ..row(uniform([1, 1, 2, 3, 4]), to_size(Trilinear, &[2, 2, 2]).align_corners(false))
        },
        row(uniform([1, 2, 3, 4]), to_size(Trilinear, &[2, 2, 2])).fails("`X`: 5 dimensions are needed"),
        row(uniform([1, 1, 2, 3, 4]), to_size(Trilinear, &[2, 2, 2]).data_layout(DataLayout::Nhwc))
            .fails("attribute `data_layout`: only `NCHW` is supported"),
        row(uniform([1, 1, 2, 3, 4]), to_size(Trilinear, &[0, 2, 2]))
            .fails("attribute `out_d`: 0 is not a size"),
        row(uniform([1, 1, 2, 3, 4]), to_size(Bilinear, &[2, 2, 2]))
            .fails("attribute `interp_method`: `trilinear` or `nearest` is needed, not `bilinear`"),
        TrilinearInterpV2 {
            scale: Some(given([2], [1.5, 2.0])),
            ..row(uniform([1, 1, 2, 3, 4]), to_size(Trilinear, &[2, 2, 2]))
        }
        .fails("`Scale`: one factor is needed, or one for each axis"),
    ]
);

resizing!(
    /// Resizes images: every element of the result is interpolated in both directions between the four elements around its
    /// source position, by cubic convolution with `a = -0.75` (Keys 1981).
    ///
    /// With `ratio` = size of the image / size of the result, or 1 / `scale`, the source position of element `i` is
    /// `(i + 0.5) * ratio - 0.5`; with `align_corners`, it is `i * ratio`, and both sizes are reduced by 1 in `ratio`.
    /// Elements beyond the border are the nearest ones. Other methods are as in `bilinear_interp_v2`.
    BicubicInterpV2,
    /// Images, `[images, channels, height, width]`.
    x, axes: 2, methods: [Bicubic, Bilinear],
    [
        row(uniform([1, 2, 3, 4]), to_size(Bicubic, &[5, 7])),
        row(uniform([2, 1, 5, 4]), to_size(Bicubic, &[3, 6]).align_corners(false)),
        row(uniform([1, 1, 3, 4]), scaling(Bicubic, &[2.0, 1.5]).align_corners(false).out_h(9)),
        row(uniform([1, 1, 5, 4]), scaling(Bicubic, &[0.5, 2.0]).out_w(9).out_d(2)),
        row(uniform([2, 1, 3, 4]), to_size(Bicubic, &[3, 4])),
        row(uniform([1, 2, 3, 1]), to_size(Bicubic, &[1, 4])),
        row(uniform([1, 2, 3, 4]), to_size(Bilinear, &[5, 7]).align_corners(false).align_mode(0)),
        row(uniform([1, 0, 3, 4]), to_size(Bicubic, &[5, 7])),
        BicubicInterpV2 {
            out_size: Some(integers(&[4, 5])),
            ..row(uniform([1, 1, 2, 3]), to_size(Bicubic, &[2, 2]))
        },
        BicubicInterpV2 {
            size_tensor: vec![integers(&[4]), integers(&[5])],
            ..row(uniform([1, 1, 2, 3]), to_size(Bicubic, &[2, 2]))
        },
        BicubicInterpV2 {
            scale: Some(given([2], [1.5, 2.0])),
            ..row(uniform([1, 1, 2, 3]), to_size(Bicubic, &[2, 2]).align_corners(false))
        },
        row(uniform([1, 3, 4]), to_size(Bicubic, &[2, 2])).fails("`X`: 4 dimensions are needed"),
        row(uniform([1, 1, 2, 3]), to_size(Bicubic, &[2, 2]).data_layout(DataLayout::Nhwc))
            .fails("attribute `data_layout`: only `NCHW` is supported"),
        row(uniform([1, 1, 2, 3]), to_size(Bicubic, &[0, 2])).fails("attribute `out_h`: 0 is not a size"),
        row(uniform([1, 1, 2, 3]), to_size(Linear, &[2, 2]))
            .fails("attribute `interp_method`: `bicubic` or `bilinear` is needed, not `linear`"),
        row(uniform([1, 1, 2, 3]), to_size(Bicubic, &[2, 2]).align_mode(2)).fails("attribute `align_mode`"),
        row(integers_below(9, [1, 1, 2, 3]), to_size(Bicubic, &[2, 2]))
            .fails("`X`: floating point numbers are needed"),
    ]
);
