//! Resizing of images: `nearest_interp_v2` and `bilinear_interp_v2`.

mod composition;
mod resize;

use autobwd::{
    Attrs, Buf, Composition, Cx, DType, Error, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::{with_dtype, with_float},
    operators::{ConstantInput, constant_ints},
    register_op,
    tensor::Dim,
};

use crate::{norm::DataLayout, windows::dims};
use resize::Resize;

autobwd::op::attr_enum! {
    /// How an element between others is computed.
    pub enum InterpMethod {
        /// The nearest element.
        Nearest = "nearest",
        /// Linear interpolation of the four nearest elements.
        Bilinear = "bilinear",
    }
}

/// The attributes of resizing.
#[derive(Attrs, Clone, Debug)]
pub struct InterpAttrs {
    /// Accepted for compatibility: images have no depth.
    #[attr(default = 0)]
    pub out_d: i32,
    /// Height of the result, without `scale`.
    #[attr(default = 0)]
    pub out_h: i32,
    /// Width of the result, without `scale`.
    #[attr(default = 0)]
    pub out_w: i32,
    /// Factors of height and width, each result rounded down; they replace `out_h` and `out_w`.
    #[attr(default = [])]
    pub scale: Vec<f32>,
    /// How an element between others is computed, whatever the operator's name says.
    #[attr(default = InterpMethod::Bilinear)]
    pub interp_method: InterpMethod,
    /// The centres of the corner elements stay at the corners.
    #[attr(default = true)]
    pub align_corners: bool,
    /// Bilinear, without `align_corners`: the source position of element `i` is `(i + 0.5) * ratio - 0.5` for 0,
    /// `i * ratio` for 1.
    #[attr(default = 1, min = 0, max = 1)]
    pub align_mode: i32,
    /// Order of the dimensions of images; `NHWC` is not supported.
    #[attr(default = DataLayout::Nchw)]
    pub data_layout: DataLayout,
}

impl InterpAttrs {
    /// Resizing by these factors, height and width.
    pub fn scaling(interp_method: InterpMethod, scale: [f32; 2]) -> InterpAttrs {
        InterpAttrs { scale: scale.to_vec(), interp_method, ..InterpAttrs::default() }
    }

    /// Resizing to this height and width.
    pub fn to_size(interp_method: InterpMethod, [out_h, out_w]: [i32; 2]) -> InterpAttrs {
        InterpAttrs { out_h, out_w, interp_method, ..InterpAttrs::default() }
    }

    fn infer(&self, x: &Meta, sizes: &SizeTensors<'_, Meta>, out: &mut Meta) -> Result<()> {
        if self.interp_method == InterpMethod::Bilinear {
            x.float()?;
        }
        if self.data_layout != DataLayout::Nchw {
            return Err(Error::attr("data_layout", "only `NCHW` is supported".to_string()));
        }
        let [images, channels, height, width] = x.unpack()?;
        let few = |n: Dim| n.get().is_none_or(|n| (1..=i32::MAX as usize).contains(&n));
        x.require(few(height) && few(width), || "from 1 to 2³¹ - 1 rows and columns are needed".into())?;
        let [out_h, out_w] = match self.factors(sizes)? {
            None => [Ok(Dim::UNKNOWN), Ok(Dim::UNKNOWN)],
            Some(Some([down, across])) => {
                [(height, down), (width, across)].map(|(n, factor)| scaled(n, factor))
            }
            Some(None) => {
                let attrs = [self.out_h, self.out_w].map(i64::from);
                let given = constant_ints(sizes.size_tensor, sizes.out_size, attrs.into_iter())?;
                let [out_h, out_w] = *given else {
                    return Err(Error::attr("out_h", format!("2 sizes are needed, not {}", given.len())));
                };
                [("out_h", out_h), ("out_w", out_w)].map(|(name, n)| match n {
                    None => Ok(Dim::UNKNOWN),
                    Some(n) if (1..=i32::MAX.into()).contains(&n) => Ok(Dim::from(n as usize)),
                    Some(n) => Err(Error::attr(name, format!("{n} is not a size"))),
                })
            }
        };
        out.set(x.dtype, [images, channels, out_h?, out_w?].into_iter().collect::<autobwd::Dims>());
        Ok(())
    }

    /// The factors of height and width: `None` while they are unknown, `Some(None)` if sizes are given instead.
    fn factors<C: ConstantInput>(&self, sizes: &SizeTensors<'_, C>) -> Result<Option<Option<[f32; 2]>>> {
        if !sizes.size_tensor.is_empty() {
            return Ok(Some(None));
        }
        if let Some(out_size) = sizes.out_size {
            // In the reference, the size is that of `OutSize`, but positions are those of the factors.
            return match sizes.scale.is_none() && self.scale.is_empty() {
                true => Ok(Some(None)),
                false => Err(out_size.refuse("a size or factors are needed, not both")),
            };
        }
        let Some(scale) = sizes.scale else {
            return match *self.scale {
                [] => Ok(Some(None)),
                [down, across] => Ok(Some(Some([down, across]))),
                _ => Err(Error::attr(
                    "scale",
                    format!("2 positive numbers or none are needed, not {:?}", self.scale),
                )),
            };
        };
        if !scale.element_type().is_float() {
            return Err(scale.refuse("floating point numbers are needed"));
        }
        match scale.elements() {
            None => Ok(None),
            Some([factor]) => Ok(Some(Some([*factor as f32; 2]))),
            Some([down, across]) => Ok(Some(Some([*down as f32, *across as f32]))),
            Some(_) => Err(scale.refuse("one or two elements are needed")),
        }
    }

    fn resize(&self, sizes: &SizeTensors<'_, Buf<'_>>, x: &Buf<'_>, out: &Buf<'_>) -> Result<Resize> {
        let ([_, _, x @ ..], [_, _, out @ ..]) = (dims::<4>(x)?, dims::<4>(out)?);
        Ok(Resize::new(self, self.factors(sizes)?.flatten(), x, out))
    }

    fn forward(
        &self,
        cx: &Cx,
        sizes: &SizeTensors<'_, Buf<'_>>,
        x: &Buf<'_>,
        out: &mut Buf<'_>,
    ) -> Result<()> {
        let resize = self.resize(sizes, x, out)?;
        match self.interp_method {
            _ if resize.is_copy() => out.copy_from(x),
            InterpMethod::Nearest => with_dtype!(x.dtype(), T => {
                resize.nearest::<T>(cx, x.slice()?, out.slice_mut()?);
                Ok(())
            }),
            InterpMethod::Bilinear => with_float!(x, T => cx.scratch(resize.scratch(cx.threads()), |rows| {
                resize.bilinear::<T>(cx, x.slice()?, rows, out.slice_mut()?)
            })),
        }
    }

    fn backward(
        &self,
        cx: &Cx,
        sizes: &SizeTensors<'_, Buf<'_>>,
        dout: &Buf<'_>,
        dx: &mut Buf<'_>,
    ) -> Result<()> {
        let resize = self.resize(sizes, dx, dout)?;
        if resize.is_copy() {
            return dx.copy_from(dout);
        }
        with_float!(dout, T => cx.scratch(resize.scratch(cx.threads()), |rows| {
            let (dout, dx) = (dout.slice::<T>()?, dx.slice_mut()?);
            match self.interp_method {
                InterpMethod::Nearest => resize.nearest_grad(cx, dout, rows, dx),
                InterpMethod::Bilinear => resize.bilinear_grad(cx, dout, rows, dx),
            }
        }))
    }

    fn scratch_bytes(
        &self,
        sizes: &SizeTensors<'_, Buf<'_>>,
        x: &Buf<'_>,
        out: &Buf<'_>,
        workers: usize,
    ) -> usize {
        self.resize(sizes, x, out).map_or(0, |resize| resize.scratch(workers) * out.dtype().size())
    }
}

/// Sizes that programs give as tensors.
struct SizeTensors<'a, C> {
    out_size: Option<&'a C>,
    size_tensor: &'a [C],
    scale: Option<&'a C>,
}

/// `n` elements times a factor, rounded down.
fn scaled(n: Dim, factor: f32) -> Result<Dim> {
    if !(factor > 0.0 && factor.is_finite()) {
        return Err(Error::attr("scale", format!("positive numbers are needed, not {factor}")));
    }
    let Some(n) = n.get() else { return Ok(Dim::UNKNOWN) };
    let product = n as f32 * factor;
    if !(1.0..i32::MAX as f32).contains(&product) {
        return Err(Error::attr("scale", format!("{factor} of {n} elements is not a size")));
    }
    Ok(Dim::from(product as usize))
}

/// The size tensors of an operator.
macro_rules! size_tensors {
    ($op:expr) => {
        SizeTensors {
            out_size: $op.out_size.as_ref(),
            size_tensor: &$op.size_tensor,
            scale: $op.scale.as_ref(),
        }
    };
}

/// Declares the operator of a method, with its gradient operator and samples in which `METHOD` is the method.
macro_rules! interpolation {
    (
        $method:ident,
        $(#[doc = $doc:literal])* $op:ident,
        $(#[doc = $grad_doc:literal])* $grad:ident,
        [$($sample:expr),* $(,)?]
    ) => {
        $(#[doc = $doc])*
        #[register_op(grad = $grad, infallible)]
        pub struct $op<V = Var> {
            /// Images, `[images, channels, height, width]`; any dtype if elements are the nearest ones.
            #[input]
            pub x: V,
            /// Height and width of the result, int32 or int64, `[2]`; replaces `out_h` and `out_w`, without factors.
            #[input(constant)]
            pub out_size: Option<V>,
            /// Height and width of the result, as one tensor each; replaces `out_size`.
            #[input(constant)]
            pub size_tensor: Vec<V>,
            /// One factor, or those of height and width; replaces the attribute.
            #[input(constant)]
            pub scale: Option<V>,
            /// The resized images, same dtype as `x`.
            #[output]
            pub out: V,
            /// Size of the result, and position of its elements.
            #[attrs]
            pub interp: InterpAttrs,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.interp.infer(&self.x, &size_tensors!(self), &mut self.out)
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                self.interp.forward(cx, &size_tensors!(self), &self.x, &mut self.out)
            }

            fn scratch_bytes(&self, workers: usize) -> usize {
                match self.interp.interp_method {
                    InterpMethod::Nearest => 0,
                    InterpMethod::Bilinear => {
                        self.interp.scratch_bytes(&size_tensors!(self), &self.x, &self.out, workers)
                    }
                }
            }
        }
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                self.out = self.interp.compose(&size_tensors!(self), &self.x);
            }
        }

        $(#[doc = $grad_doc])*
        #[register_op(grad_of = $op, grad = Multilinear, inferred, infallible)]
        pub struct $grad<V = Var> {
            #[input(shape_only)]
            pub x: V,
            #[input(constant)]
            pub out_size: Option<V>,
            #[input(constant)]
            pub size_tensor: Vec<V>,
            #[input(constant)]
            pub scale: Option<V>,
            pub dout: V,
            #[output]
            pub dx: V,
            #[attrs]
            pub interp: InterpAttrs,
        }
        impl Kernel for $grad<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                self.interp.backward(cx, &size_tensors!(self), &self.dout, &mut self.dx)
            }

            fn scratch_bytes(&self, workers: usize) -> usize {
                self.interp.scratch_bytes(&size_tensors!(self), &self.dx, &self.dout, workers)
            }
        }
        const _: () = {
            const METHOD: InterpMethod = InterpMethod::$method;

            fn row(x: Draw, interp: InterpAttrs) -> $op<Draw> {
                $op { x, out_size: None, size_tensor: vec![], scale: None, out: out(), interp }
            }

            fn scaling(scale: [f32; 2]) -> InterpAttrs {
                InterpAttrs::scaling(METHOD, scale)
            }

            fn to_size(size: [i32; 2]) -> InterpAttrs {
                InterpAttrs::to_size(METHOD, size)
            }

            autobwd::samples!(
                $op,
                [
                    $($sample,)*
                    row(uniform([1, 2, 0, 4]), to_size([2, 2]))
                        .fails("`X`: from 1 to 2³¹ - 1 rows and columns are needed"),
                    row(uniform([1, 2, 3, 4]), to_size([0, 2])).fails("attribute `out_h`: 0 is not a size"),
                    row(uniform([1, 2, 3, 4]), to_size([2, -1])).fails("attribute `out_w`: -1 is not a size"),
                    row(uniform([1, 2, 3, 4]), scaling([0.25, 1.0]))
                        .fails("attribute `scale`: 0.25 of 3 elements is not a size"),
                    row(uniform([1, 2, 3, 4]), scaling([1.0, 1e9]))
                        .fails("attribute `scale`: 1000000000 of 4 elements is not a size"),
                    row(uniform([1, 2, 3, 4]), scaling([1.0, 0.0]))
                        .fails("attribute `scale`: positive numbers are needed, not 0"),
                    row(uniform([1, 2, 3, 4]), scaling([1.0, 0.0]).scale(vec![2.0]))
                        .fails("attribute `scale`: 2 positive numbers or none are needed, not [2.0]"),
                    row(uniform([1, 2, 3, 4]), to_size([2, 2]).align_mode(2)).fails("attribute `align_mode`"),
                    row(uniform([1, 2, 3, 4]), to_size([2, 2]).data_layout(DataLayout::Nhwc))
                        .fails("attribute `data_layout`: only `NCHW` is supported"),
                    $op {
                        out_size: Some(integers(&[5, 7]).of(DType::I32)),
                        ..row(uniform([1, 2, 3, 4]), to_size([2, 2]))
                    },
                    $op { out_size: Some(integers(&[5, 7])), ..row(uniform([1, 2, 3, 4]), scaling([2.0, 3.0])) }
                        .fails("`OutSize`: a size or factors are needed, not both"),
                    $op {
                        size_tensor: vec![integers(&[5]), integers(&[3]).of(DType::I32)],
                        out_size: Some(integers(&[1, 1])),
                        ..row(uniform([1, 2, 3, 4]), to_size([2, 2]))
                    },
                    $op { scale: Some(given([1], [1.5])), ..row(uniform([1, 2, 3, 4]), to_size([2, 2])) },
                    $op {
                        scale: Some(given([2], [2.5, 2.0])),
                        ..row(uniform([1, 2, 3, 4]), to_size([2, 2]).align_corners(false))
                    },
                    $op { out_size: Some(integers(&[5])), ..row(uniform([1, 2, 3, 4]), to_size([2, 2])) }
                        .fails("attribute `out_h`: 2 sizes are needed, not 1"),
                    $op { out_size: Some(integers(&[5, 0])), ..row(uniform([1, 2, 3, 4]), to_size([2, 2])) }
                        .fails("attribute `out_w`: 0 is not a size"),
                    $op { scale: Some(given([3], [1.0; 3])), ..row(uniform([1, 2, 3, 4]), to_size([2, 2])) }
                        .fails("`Scale`: one or two elements are needed"),
                    $op { scale: Some(integers(&[2])), ..row(uniform([1, 2, 3, 4]), to_size([2, 2])) }
                        .fails("`Scale`: floating point numbers are needed"),
                ]
            );
        };
    };
}

interpolation!(
    Nearest,
    /// Resizes images: every element of the result is the nearest one of the image.
    ///
    /// With `ratio` = size of the image / size of the result, or 1 / `scale`, element `i` is the one at `⌊i * ratio⌋`; with
    /// `align_corners`, `ratio` is that of both sizes minus 1, and the position is rounded.
    NearestInterpV2,
    /// `dx` = for each element, the sum of `dout` where it is the nearest.
    NearestInterpV2Grad,
    [
        row(uniform([2, 3, 5, 4]), scaling([2.0, 4.0]).align_corners(false)),
        row(uniform([1, 2, 3, 4]), scaling([2.5, 1.0])),
        row(uniform([1, 2, 5, 4]), scaling([0.5, 0.75]).align_corners(false).out_h(7).out_w(9)),
        row(uniform([2, 1, 3, 4]), to_size([6, 5]).align_corners(false).out_d(-1)),
        row(uniform([1, 2, 5, 3]), to_size([2, 4]).align_mode(0)),
        row(uniform([2, 1, 3, 4]), to_size([3, 4])),
        row(uniform([2, 3, 4, 5]), to_size([1, 1])),
        row(uniform([1, 2, 1, 3]), to_size([4, 7])),
        row(uniform([1, 2, 3, 4]), InterpAttrs::to_size(InterpMethod::Bilinear, [5, 6])),
        row(uniform([0, 2, 3, 4]), to_size([6, 5])),
        row(integers_below(9, [1, 2, 3, 4]), scaling([2.0, 3.0]).align_corners(false)),
        row(uniform([2, 3, 4]), to_size([2, 2])).fails("`X`: 4 dimensions are needed"),
    ]
);

interpolation!(
    Bilinear,
    /// Resizes images: every element of the result is interpolated linearly between the four elements around its source
    /// position.
    ///
    /// With `ratio` = size of the image / size of the result, or 1 / `scale`, the source position of element `i` is
    /// `i * ratio` or `(i + 0.5) * ratio - 0.5`, as `align_mode` says; with `align_corners`, it is `i * ratio`, where
    /// `ratio` is that of both sizes minus 1. Positions are computed in float32, as in the reference.
    BilinearInterpV2,
    /// `dx` = the sum of `dout`, each multiplied by the weight with which the element contributes to it.
    BilinearInterpV2Grad,
    [
        row(uniform([2, 3, 5, 4]), scaling([2.0, 4.0]).align_corners(false).align_mode(0)),
        row(uniform([2, 3, 5, 4]), scaling([2.0, 3.0]).align_corners(false)),
        row(uniform([1, 2, 3, 4]), scaling([2.5, 1.0])),
        row(uniform([1, 2, 5, 4]), scaling([0.5, 0.75]).align_corners(false).out_h(7).out_w(9)),
        row(uniform([2, 1, 3, 4]), to_size([6, 5]).align_corners(false).align_mode(0).out_d(-1)),
        row(uniform([1, 2, 5, 7]), to_size([2, 3]).align_corners(false).align_mode(0)),
        row(uniform([1, 2, 5, 3]), to_size([2, 4])),
        row(uniform([2, 1, 3, 4]), to_size([3, 4])),
        row(uniform([2, 3, 4, 5]), to_size([1, 1])),
        row(uniform([1, 2, 1, 3]), to_size([4, 7])),
        row(uniform([1, 2, 3, 4]), InterpAttrs::to_size(InterpMethod::Nearest, [5, 6])),
        row(integers_below(9, [1, 2, 3, 4]), InterpAttrs::to_size(InterpMethod::Nearest, [5, 6])),
        row(uniform([0, 2, 3, 4]), to_size([6, 5])),
        row(integers_below(9, [1, 2, 3, 4]), to_size([6, 5]))
            .fails("`X`: floating point numbers are needed"),
    ]
);
