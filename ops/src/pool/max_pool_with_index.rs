//! Max pooling with the positions of the maxima: `max_pool2d_with_index` and `max_pool3d_with_index`.

use autobwd::{
    Composed, Composition, DType, Dims, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op,
};

use super::axis_pooling::{AxisPooling, WindowRules};
use crate::{
    Math,
    logic::Where,
    math::{DimExpr, filled, product},
    scatter::TakeAlongAxis,
    top_k::{ArgAttrs, ArgMax},
    windows::PaddingAlgorithm,
};

/// Declares an operator on images or volumes with so many axes.
macro_rules! max_pool_with_index {
    (
        $(#[doc = $doc:literal])* $op:ident,
        $axes:literal, strides: $strides:expr, paddings: $paddings:expr,
        $(#[doc = $x_doc:literal])* x,
        [$($sample:expr),* $(,)?]
    ) => {
        $(#[doc = $doc])*
        #[register_op(grad = Composed, composed)]
        pub struct $op<V = Var> {
            $(#[doc = $x_doc])*
            #[input]
            pub x: V,
            /// As many channels, with one element for each window.
            #[output]
            pub out: V,
            /// The position of each maximum in its channel, in memory order, int32; same shape as `out`.
            #[output]
            pub mask: V,
            /// Size of a window; with `adaptive`, of the output.
            #[attr]
            pub ksize: Vec<i32>,
            /// Strides of the windows along the axes.
            #[attr(default = $strides)]
            pub strides: Vec<i32>,
            /// Padding at both ends of the axes.
            #[attr(default = $paddings)]
            pub paddings: Vec<i32>,
            /// One window for each channel; `ksize` and `paddings` are ignored.
            #[attr(default = false)]
            pub global_pooling: bool,
            /// Adaptive pooling: `ksize` windows that divide a channel evenly; `strides` and `paddings` are ignored.
            #[attr(default = false)]
            pub adaptive: bool,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                let dims = pooled(&self.x, axes::<$axes>(
                    [&self.ksize, &self.strides, &self.paddings],
                    [self.global_pooling, self.adaptive],
                )?)?;
                self.mask.set(DType::I32, dims.clone());
                self.out.set(self.x.dtype, dims);
                Ok(())
            }
        }
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                let axes = axes::<$axes>(
                    [&self.ksize, &self.strides, &self.paddings],
                    [self.global_pooling, self.adaptive],
                );
                match axes {
                    Ok(axes) => [self.out, self.mask] = compose(&self.x, &axes),
                    Err(error) => {
                        self.out = self.x.builder().failed(error);
                        self.mask = self.out.clone();
                    }
                }
            }
        }
        const _: () = {
            fn pool(x: Draw, ksize: [i32; $axes]) -> $op<Draw> {
                $op {
                    x,
                    out: out(),
                    mask: out(),
                    ksize: ksize.to_vec(),
                    strides: vec![1; $axes],
                    paddings: vec![0; $axes],
                    global_pooling: false,
                    adaptive: false,
                }
            }

            autobwd::samples!($op, [$($sample,)*]);
        };
    };
}

max_pool_with_index!(
    /// Max pooling of every channel of images, and where the maxima are: `out = x[mask]`.
    ///
    /// Padding is excluded. Of equal elements the first one is chosen; NaN counts as the largest number.
    MaxPool2dWithIndex,
    2, strides: [1, 1], paddings: [0, 0],
    /// Images, `[images, channels, height, width]`.
    x,
    [
        pool(distinct([1, 2, 5, 4]), [2, 3]),
        MaxPool2dWithIndex { strides: vec![3, 2], ..pool(distinct([1, 1, 7, 5]), [2, 3]) },
        MaxPool2dWithIndex { paddings: vec![1, 2], ..pool(distinct([1, 2, 5, 4]), [2, 3]) },
        MaxPool2dWithIndex { global_pooling: true, ..pool(distinct([2, 1, 3, 5]), [1, 2]) },
        MaxPool2dWithIndex { adaptive: true, ..pool(distinct([1, 1, 7, 5]), [3, 4]) },
        pool(distinct([0, 2, 3, 4]), [2, 1]),
        pool(given([1, 1, 2, 3], [1.0, 2.0, 2.0, 2.0, 0.0, 2.0]), [2, 2])
            .not_a_derivative("the first of equal elements gets the gradient"),
        pool(distinct([2, 5, 4]), [2, 3]).fails("`X`: 4 dimensions are needed"),
        pool(integers_below(9, [1, 1, 2, 3]), [1, 2]).fails("`X`: floating point numbers are needed"),
        pool(distinct([1, 1, 2, 3]), [3, 1])
            .fails("`X`: at least 3 rows and columns are needed for a window"),
        pool(distinct([1, 1, 2, 3]), [0, 1]).fails("attribute `ksize`: 2 numbers of at least 1 are needed"),
        MaxPool2dWithIndex { strides: vec![1], ..pool(distinct([1, 1, 2, 3]), [1, 1]) }
            .fails("attribute `strides`: 2 numbers of at least 1 are needed"),
        MaxPool2dWithIndex { paddings: vec![1, 0], ..pool(distinct([1, 1, 2, 3]), [1, 2]) }
            .fails("`X`: a window would contain padding only"),
    ]
);

max_pool_with_index!(
    /// Max pooling of every channel of volumes, and where the maxima are: `out = x[mask]`, as in
    /// `max_pool2d_with_index`.
    MaxPool3dWithIndex,
    3, strides: [1, 1, 1], paddings: [0, 0, 0],
    /// Volumes, `[volumes, channels, depth, height, width]`.
    x,
    [
        pool(distinct([1, 2, 2, 3, 4]), [2, 1, 3]),
        MaxPool3dWithIndex { strides: vec![1, 3, 2], ..pool(distinct([1, 1, 2, 5, 4]), [1, 2, 3]) },
        MaxPool3dWithIndex { paddings: vec![1, 0, 1], ..pool(distinct([1, 1, 2, 3, 4]), [2, 1, 3]) },
        MaxPool3dWithIndex { global_pooling: true, ..pool(distinct([2, 1, 1, 3, 4]), [1, 2, 1]) },
        MaxPool3dWithIndex { adaptive: true, ..pool(distinct([1, 1, 5, 2, 3]), [3, 1, 2]) },
        pool(distinct([0, 1, 2, 3, 4]), [2, 1, 3]),
        pool(distinct([2, 3, 5, 4]), [2, 3, 1]).fails("`X`: 5 dimensions are needed"),
        pool(distinct([1, 1, 2, 3, 4]), [3, 1, 1]).fails("`X`: at least 3 rows and columns are needed"),
        pool(distinct([1, 1, 2, 3, 4]), [1, 0, 1]).fails("attribute `ksize`: 3 numbers of at least 1"),
    ]
);

fn axes<const N: usize>(
    [ksize, strides, paddings]: [&[i32]; 3],
    [global_pooling, adaptive]: [bool; 2],
) -> Result<[AxisPooling; N]> {
    let rules = WindowRules { ceil_mode: false, exclusive: true, global_pooling, adaptive };
    AxisPooling::all(ksize, strides, (paddings, PaddingAlgorithm::Explicit), rules)
}

/// The dimensions of the outputs.
fn pooled<const N: usize>(x: &Meta, axes: [AxisPooling; N]) -> Result<Dims> {
    x.float()?;
    x.require(x.rank() == N + 2, || format!("{} dimensions are needed", N + 2))?;
    let mut dims = x.dims.clone();
    for (dim, axis) in dims[2..].iter_mut().zip(axes) {
        *dim = axis.count(*dim, false, x)?;
    }
    Ok(dims)
}

/// Maxima of windows, and their positions.
fn compose<const N: usize>(x: &Expr, axes: &[AxisPooling; N]) -> [Expr; 2] {
    let (builder, count) = (x.builder(), N as i32);
    let bounds = axes.iter().zip(2..).map(|(axis, at)| axis.bounds(x, at)).collect::<Vec<_>>();
    let number = |n: &DimExpr| n.number(builder);
    let size = |i: usize| x.dim(2 + i as i32);
    // Positions in a channel of all elements under windows, [windows.., elements of a window..].
    let mut places: Option<(Expr, Expr)> = None;
    for (i, bounds) in bounds.iter().enumerate() {
        let own = |axis: &i32| *axis == i as i32 || *axis == count + i as i32;
        let others: Vec<i32> = (0..2 * count).filter(|axis| !own(axis)).collect();
        let (place, is_inside) = bounds.elements(&size(i));
        let [place, is_inside] = [place, is_inside.cast(DType::I64)].map(|x| x.unsqueeze(&others));
        places = Some(match places {
            None => (place, is_inside),
            Some((rows, all)) => (rows * number(&size(i)) + place, all * is_inside),
        });
    }
    let Some((places, is_inside)) = places else { return [x.clone(), x.clone()] };
    let windows = product(&bounds.iter().map(|bounds| bounds.count.clone()).collect::<Vec<_>>());
    let each = product(&bounds.iter().map(|bounds| bounds.size.clone()).collect::<Vec<_>>());
    let dims = [x.dim(0), x.dim(1), windows, each];
    let elements = x.flatten(2, 1 + count).gather(&places.flatten(0, 2 * count - 1), 2).reshape_to(&dims);
    let is_inside = is_inside.flatten(count, 2 * count - 1).flatten(0, count - 1).cast(DType::Bool);
    let y = (&filled(builder, x.dtype(), "-inf", &dims)).into();
    let condition = (&is_inside.expand_to(&dims)).into();
    let elements = emit(Where { condition, x: (&elements).into(), y, out: New }).out;
    let arg = ArgAttrs { keepdims: true, ..ArgAttrs::along(3) };
    let index = emit(ArgMax { x: (&elements).into(), out: New, arg }).out;
    let (input, at) = ((&elements).into(), (&index).into());
    let maxima = emit(TakeAlongAxis { input, index: at, result: New, axis: 3 }).result;
    let counts = bounds.iter().map(|bounds| bounds.count.clone());
    let dims: Vec<DimExpr> = [x.dim(0), x.dim(1)].into_iter().chain(counts).collect();
    let (maxima, mut index) = (maxima.reshape_to(&dims), index.reshape_to(&dims));
    // The position in a window is a number whose digits are the positions along the axes.
    let mut mask: Option<Expr> = None;
    let mut stride = DimExpr::from(1);
    for (i, bounds) in bounds.iter().enumerate().rev() {
        let starts = (i + 1..N).fold(bounds.starts.flatten(0, 1), |starts, _| starts.unsqueeze(&[-1]));
        let within = index.remainder(&number(&bounds.size));
        index = index.floor_divide(&number(&bounds.size));
        // A window of negative infinities may have its first maximum in the padding.
        let place = (within + starts).maximum(&number(&0.into())) * number(&stride);
        mask = Some(mask.map_or(place.clone(), |mask| mask + &place));
        stride = stride * size(i);
    }
    [maxima, mask.unwrap_or(index).cast(DType::I32)]
}
