//! Resizing: `nearest_interp_v2` and `bilinear_interp_v2`, and compositions for other methods.

mod composition;
mod resize;
mod separable;

pub use separable::{BicubicInterpV2, LinearInterpV2, TrilinearInterpV2};

use autobwd::{
    Attrs, Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
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
        /// Linear interpolation of the two nearest elements, of signals.
        Linear = "linear",
        /// Linear interpolation of the eight nearest elements, of volumes.
        Trilinear = "trilinear",
        /// Cubic interpolation of 16 elements.
        Bicubic = "bicubic",
    }
}

/// The attributes of resizing.
#[derive(Attrs, Clone, Debug)]
pub struct InterpAttrs {
    /// Depth of the result, without `scale`; images and signals have none.
    #[attr(default = 0)]
    pub out_d: i32,
    /// Height of the result, without `scale`; signals have none.
    #[attr(default = 0)]
    pub out_h: i32,
    /// Width of the result, without `scale`.
    #[attr(default = 0)]
    pub out_w: i32,
    /// Factors of the axes, of images height and width, each result rounded down; they replace `out_h` and the like.
    #[attr(default = [])]
    pub scale: Vec<f32>,
    /// How an element between others is computed, whatever the operator's name says.
    #[attr(default = InterpMethod::Bilinear)]
    pub interp_method: InterpMethod,
    /// The centres of the corner elements stay at the corners.
    #[attr(default = true)]
    pub align_corners: bool,
    /// Linear in each axis, without `align_corners`: the source position of element `i` is `(i + 0.5) * ratio - 0.5` for
    /// 0, `i * ratio` for 1.
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

    /// The shape rule, for images, signals or volumes with `N` axes, and these methods.
    fn infer<const N: usize>(
        &self,
        methods: &[InterpMethod],
        x: &Meta,
        sizes: &SizeTensors<'_, Meta>,
        out: &mut Meta,
    ) -> Result<()> {
        if !methods.contains(&self.interp_method) {
            let name = |method: &InterpMethod| format!("`{method:?}`").to_lowercase();
            let names: Vec<String> = methods.iter().map(name).collect();
            let text = format!("{} is needed, not {}", names.join(" or "), name(&self.interp_method));
            return Err(Error::attr("interp_method", text));
        }
        if self.interp_method != InterpMethod::Nearest {
            x.float()?;
        }
        if self.data_layout != DataLayout::Nchw {
            return Err(Error::attr("data_layout", "only `NCHW` is supported".to_string()));
        }
        x.require(x.rank() == N + 2, || format!("{} dimensions are needed", N + 2))?;
        let (front, size) = x.dims.split_at(2);
        let few = |n: &Dim| n.get().is_none_or(|n| (1..=i32::MAX as usize).contains(&n));
        x.require(size.iter().all(few), || "from 1 to 2³¹ - 1 elements are needed along each axis".into())?;
        let mut dims: Dims = front.iter().copied().collect();
        match self.factors::<N, _>(sizes)? {
            None => size.iter().for_each(|_| dims.push(Dim::UNKNOWN)),
            Some(Some(factors)) => {
                for (n, factor) in size.iter().zip(factors) {
                    dims.push(scaled(*n, factor)?);
                }
            }
            Some(None) => {
                let names = &["out_d", "out_h", "out_w"][3 - N..];
                let given = constant_ints(
                    sizes.size_tensor,
                    sizes.out_size,
                    self.sizes(N).into_iter().map(i64::from),
                )?;
                if given.len() != N {
                    return Err(Error::attr(names[0], format!("{N} sizes are needed, not {}", given.len())));
                }
                for (name, n) in names.iter().zip(given) {
                    dims.push(match n {
                        None => Dim::UNKNOWN,
                        Some(n) if (1..=i32::MAX.into()).contains(&n) => Dim::from(n as usize),
                        Some(n) => return Err(Error::attr(name, format!("{n} is not a size"))),
                    });
                }
            }
        }
        out.set(x.dtype, dims);
        Ok(())
    }

    /// The sizes of the last `axes` axes.
    fn sizes(&self, axes: usize) -> Vec<i32> {
        [self.out_d, self.out_h, self.out_w][3 - axes..].to_vec()
    }

    /// The factors of the axes: `None` while they are unknown, `Some(None)` if sizes are given instead.
    fn factors<const N: usize, C: ConstantInput>(
        &self,
        sizes: &SizeTensors<'_, C>,
    ) -> Result<Option<Option<[f32; N]>>> {
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
            if self.scale.is_empty() {
                return Ok(Some(None));
            }
            let factors = <[f32; N]>::try_from(&self.scale[..]).map_err(|_| {
                let text = format!("{N} positive numbers or none are needed, not {:?}", self.scale);
                Error::attr("scale", text)
            })?;
            return Ok(Some(Some(factors)));
        };
        if !scale.element_type().is_float() {
            return Err(scale.refuse("floating point numbers are needed"));
        }
        match scale.elements() {
            None => Ok(None),
            Some([factor]) => Ok(Some(Some([*factor as f32; N]))),
            Some(factors) => {
                let factors = <[f64; N]>::try_from(factors)
                    .map_err(|_| scale.refuse("one factor is needed, or one for each axis"))?;
                Ok(Some(Some(factors.map(|factor| factor as f32))))
            }
        }
    }

    fn resize(&self, sizes: &SizeTensors<'_, Buf<'_>>, x: &Buf<'_>, out: &Buf<'_>) -> Result<Resize> {
        let ([_, _, x @ ..], [_, _, out @ ..]) = (dims::<4>(x)?, dims::<4>(out)?);
        Ok(Resize::new(self, self.factors::<2, _>(sizes)?.flatten(), x, out))
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
            _ => with_float!(x, T => cx.scratch(resize.scratch(cx.threads()), |rows| {
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
                _ => resize.bilinear_grad(cx, dout, rows, dx),
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

use size_tensors;

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
                let methods = [InterpMethod::Nearest, InterpMethod::Bilinear];
                self.interp.infer::<2>(&methods, &self.x, &size_tensors!(self), &mut self.out)
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, cx: &Cx) -> Result<()> {
                self.interp.forward(cx, &size_tensors!(self), &self.x, &mut self.out)
            }

            fn scratch_bytes(&self, workers: usize) -> usize {
                match self.interp.interp_method {
                    InterpMethod::Nearest => 0,
                    _ => {
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
                        .fails("`X`: from 1 to 2³¹ - 1 elements are needed along each axis"),
                    row(uniform([1, 2, 3, 4]), InterpAttrs::to_size(InterpMethod::Bicubic, [2, 2]))
                        .fails("attribute `interp_method`: `nearest` or `bilinear` is needed, not `bicubic`"),
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
                        .fails("`Scale`: one factor is needed, or one for each axis"),
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
