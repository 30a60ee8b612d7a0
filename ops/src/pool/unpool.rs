//! The inverse of max pooling: `unpool` and `unpool3d`.

use autobwd::{
    Composed, Composition, DType, Dims, Error, Expr, Infer, Meta, New, Result, Var, check::*, emit,
    register_op, tensor::Dim,
};

use crate::{
    Math,
    gather::are_numbers,
    image::VolumeLayout,
    math::{DimExpr, filled, positions, product},
    norm::DataLayout,
    scatter::{Scatter, TakeAlongAxis},
    windows::counts,
};

/// Declares an operator on images or volumes with so many axes.
macro_rules! unpooling {
    (
        $(#[doc = $doc:literal])* $op:ident,
        $axes:literal, $layout:ident :: $first:ident, ones: $ones:expr, zeros: $zeros:expr,
        $(#[doc = $x_doc:literal])* x,
        { $($kind:ident)? },
        [$($sample:expr),* $(,)?]
    ) => {
        $(#[doc = $doc])*
        #[register_op(grad = Composed, composed)]
        pub struct $op<V = Var> {
            $(#[doc = $x_doc])*
            #[input]
            pub x: V,
            /// The position of each element in its channel of `out`, in memory order, int32 or int64; same shape as `x`.
            #[input(checked)]
            pub indices: V,
            /// As many channels, of another size.
            #[output]
            pub out: V,
            $(
                /// What is inverted; only `max` is supported.
                #[attr(default = "max")]
                pub $kind: String,
            )?
            /// Size of the windows of the pooling.
            #[attr]
            pub ksize: Vec<i32>,
            /// Strides of the windows.
            #[attr(default = $ones)]
            pub strides: Vec<i32>,
            /// Padding of the pooling.
            #[attr(default = $zeros)]
            pub paddings: Vec<i32>,
            /// Size of the result; zeros mean the size that follows from the windows.
            #[attr(default = $zeros)]
            pub output_size: Vec<i32>,
            /// Order of the dimensions; channels last is not supported.
            #[attr(default = $layout::$first)]
            pub data_format: $layout,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                $(
                    if self.$kind != "max" {
                        return Err(Error::attr("unpooling_type", format!("`max` is needed, not `{}`", self.$kind)));
                    }
                )?
                if self.data_format != $layout::$first {
                    return Err(Error::attr("data_format", "channels last is not supported".to_string()));
                }
                let attrs = [&self.ksize[..], &self.strides, &self.paddings, &self.output_size];
                let sizes = Unpooling::<$axes>::new(attrs)?;
                self.out.set(self.x.dtype, sizes.dims(&self.x, &self.indices)?);
                Ok(())
            }
        }
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                let attrs = [&self.ksize[..], &self.strides, &self.paddings, &self.output_size];
                self.out = match Unpooling::<$axes>::new(attrs) {
                    Ok(sizes) => sizes.compose(&self.x, &self.indices),
                    Err(error) => self.x.builder().failed(error),
                };
            }
        }
        const _: () = {
            fn unpool(x: Draw, indices: Draw, ksize: [i32; $axes]) -> $op<Draw> {
                $op {
                    x,
                    indices,
                    out: out(),
                    $($kind: "max".into(),)?
                    ksize: ksize.to_vec(),
                    strides: ksize.to_vec(),
                    paddings: vec![0; $axes],
                    output_size: vec![0; $axes],
                    data_format: $layout::$first,
                }
            }

            autobwd::samples!($op, [$($sample,)*]);
        };
    };
}

unpooling!(
    /// Puts elements where max pooling of images has found them, among zeros: `out[indices[i]] = x[i]` in each channel, the
    /// last one if several have one position.
    Unpool,
    2, DataLayout::Nchw, ones: [1, 1], zeros: [0, 0],
    /// Images, `[images, channels, height, width]`.
    x,
    { unpooling_type },
    [
        unpool(uniform([2, 1, 2, 3]), given([2, 1, 2, 3], PLACES).of(DType::I32), [2, 1]),
        Unpool {
            output_size: vec![3, 5],
            ..unpool(uniform([1, 2, 2, 3]), given([1, 2, 2, 3], PLACES).of(DType::I64), [2, 1])
        },
        Unpool {
            strides: vec![3, 2],
            paddings: vec![1, 0],
            ..unpool(uniform([2, 1, 3, 2]), integers_below(9, [2, 1, 3, 2]), [2, 3])
        },
        unpool(uniform([0, 1, 2, 3]), integers_below(9, [0, 1, 2, 3]), [2, 1]),
        unpool(integers_below(9, [1, 2, 2, 3]), integers_below(9, [1, 2, 2, 3]), [2, 1]),
        unpool(uniform([2, 2, 3]), integers_below(9, [2, 2, 3]), [2, 1])
            .fails("`X`: 4 dimensions are needed"),
        unpool(uniform([1, 1, 2, 3]), integers_below(9, [1, 1, 3, 2]), [2, 1])
            .fails("`Indices`: the shape of `X`, [1, 1, 2, 3], is needed"),
        unpool(uniform([1, 1, 2, 3]), uniform([1, 1, 2, 3]), [2, 1])
            .fails("`Indices`: int64 or int32 is needed"),
        unpool(uniform([2, 1, 1, 1]), given([2, 1, 1, 1], [2.0, 0.0]).of(DType::I64), [2, 1])
            .fails("2 is not within 0..2"),
        Unpool { unpooling_type: "avg".into(), ..unpool(uniform([1, 1, 1, 1]), integers_below(1, [1, 1, 1, 1]), [1, 1]) }
            .fails("attribute `unpooling_type`: `max` is needed, not `avg`"),
        Unpool {
            data_format: DataLayout::Nhwc,
            ..unpool(uniform([1, 1, 1, 1]), integers_below(1, [1, 1, 1, 1]), [1, 1])
        }
        .fails("attribute `data_format`: channels last is not supported"),
        Unpool { paddings: vec![1, 0], ..unpool(uniform([1, 1, 1, 1]), integers_below(1, [1, 1, 1, 1]), [2, 1]) }
            .fails("`X`: more elements than the paddings remove are needed"),
        unpool(uniform([1, 1, 1, 1]), integers_below(1, [1, 1, 1, 1]), [0, 1])
            .fails("attribute `ksize`: 2 numbers of at least 1 are needed, not [0, 1]"),
    ]
);

unpooling!(
    /// Puts elements where max pooling of volumes has found them, as `unpool` for images.
    Unpool3d,
    3, VolumeLayout::Ncdhw, ones: [1, 1, 1], zeros: [0, 0, 0],
    /// Volumes, `[volumes, channels, depth, height, width]`.
    x,
    { },
    [
        unpool(uniform([2, 1, 1, 2, 3]), given([2, 1, 1, 2, 3], PLACES).of(DType::I32), [1, 2, 1]),
        Unpool3d {
            output_size: vec![3, 5, 1],
            ..unpool(uniform([1, 2, 1, 2, 3]), given([1, 2, 1, 2, 3], PLACES).of(DType::I64), [2, 1, 1])
        },
        Unpool3d {
            strides: vec![3, 2, 1],
            paddings: vec![0, 1, 0],
            ..unpool(uniform([1, 2, 1, 3, 2]), integers_below(9, [1, 2, 1, 3, 2]), [2, 3, 1])
        },
        unpool(uniform([0, 1, 2, 3, 4]), integers_below(9, [0, 1, 2, 3, 4]), [2, 1, 3]),
        unpool(integers_below(9, [1, 2, 1, 2, 3]), integers_below(9, [1, 2, 1, 2, 3]), [1, 2, 1]),
        unpool(uniform([1, 1, 2, 3]), integers_below(9, [1, 1, 2, 3]), [2, 1, 1])
            .fails("`X`: 5 dimensions are needed"),
        Unpool3d {
            data_format: VolumeLayout::Ndhwc,
            ..unpool(uniform([1, 1, 1, 1, 1]), integers_below(1, [1, 1, 1, 1, 1]), [1, 1, 1])
        }
        .fails("attribute `data_format`: channels last is not supported"),
    ]
);

/// Positions of six maxima in each of two channels of at least 12 elements.
const PLACES: [f64; 12] = [6.0, 1.0, 2.0, 9.0, 4.0, 11.0, 0.0, 7.0, 8.0, 3.0, 10.0, 5.0];

/// The sizes of the result along `N` axes.
struct Unpooling<const N: usize> {
    ksize: [usize; N],
    strides: [usize; N],
    paddings: [usize; N],
    /// Zeros for sizes that follow from the windows.
    given: [usize; N],
}

impl<const N: usize> Unpooling<N> {
    fn new([ksize, strides, paddings, given]: [&[i32]; 4]) -> Result<Self> {
        Ok(Unpooling {
            ksize: counts("ksize", ksize, 1)?,
            strides: counts("strides", strides, 1)?,
            paddings: counts("paddings", paddings, 0)?,
            given: counts("output_size", given, 0)?,
        })
    }

    /// The dimensions of the output.
    fn dims(&self, x: &Meta, indices: &Meta) -> Result<Dims> {
        x.require(x.rank() == N + 2, || format!("{} dimensions are needed", N + 2))?;
        are_numbers(indices)?;
        let fits = indices.dims.agrees(&x.dims);
        indices.require(fits, || format!("the shape of `X`, {}, is needed", x.dims))?;
        let mut dims = x.dims.clone();
        for (i, dim) in dims[2..].iter_mut().enumerate() {
            *dim = match (self.given[i], dim.or(indices.dims[2 + i]).get()) {
                (0, None) => Dim::UNKNOWN,
                (0, Some(n)) => {
                    let last = n.checked_sub(1).map(|last| last.saturating_mul(self.strides[i]));
                    let reach = last.map_or(0, |last| last.saturating_add(self.ksize[i]));
                    let size = reach.checked_sub(2 * self.paddings[i]).filter(|size| *size > 0);
                    size.ok_or_else(|| x.wrong("more elements than the paddings remove are needed"))?.into()
                }
                (given, _) => given.into(),
            };
        }
        Ok(dims)
    }

    fn compose(&self, x: &Expr, indices: &Expr) -> Expr {
        let (builder, last) = (x.builder(), N as i32 + 1);
        let [images, channels] = [x.dim(0), x.dim(1)];
        let size = (0..N).map(|i| match self.given[i] {
            0 => {
                let way = (x.dim(2 + i as i32) - 1) * self.strides[i] as i64;
                way + (self.ksize[i] as i64 - 2 * self.paddings[i] as i64)
            }
            given => (given as i64).into(),
        });
        let size: Vec<DimExpr> = size.collect();
        let [planes, length] = [&images * &channels, product(&size)];
        let zeros = filled(builder, x.dtype(), "0", &[planes.clone(), length.clone()]);
        let rows = |x: &Expr| x.flatten(2, last).flatten(0, 1);
        let (x, index) = (rows(x), rows(indices).cast(DType::I64));
        // Reading fails for positions outside of a channel, which would be positions in another one.
        let (input, at) = ((&zeros).into(), (&index).into());
        let updates = x + emit(TakeAlongAxis { input, index: at, result: New, axis: 1 }).result;
        let starts = positions(builder, &planes).unsqueeze(&[1]) * length.number(builder);
        let (ids, updates) = ((index + starts).flatten(0, 1), updates.flatten(0, 1));
        let x = (&zeros.flatten(0, 1)).into();
        let (ids, updates) = ((&ids).into(), (&updates).into());
        let out = emit(Scatter { x, ids, updates, out: New, overwrite: true }).out;
        out.reshape_to(&[&[images, channels][..], &size].concat())
    }
}
