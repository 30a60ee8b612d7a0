//! `unfold` and `fold`: the elements under windows as columns.

use autobwd::{
    Attrs, Buf, Composition, Cx, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*, emit, op::with_float, register_op, tensor::Dim,
};

use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, nth, pieces},
    math::{DimExpr, filled, sizes},
    shape::StridedSlice,
    stack,
    windows::{Windows, counts, dims},
};

/// The attributes of windows.
#[derive(Attrs, Clone, Debug)]
pub struct WindowAttrs {
    /// Height and width of a window.
    #[attr]
    pub kernel_sizes: Vec<i32>,
    /// Strides of the windows, vertical and horizontal.
    #[attr]
    pub strides: Vec<i32>,
    /// Padding with zeros: top, left, bottom and right.
    #[attr]
    pub paddings: Vec<i32>,
    /// Dilation of the windows, vertical and horizontal.
    #[attr]
    pub dilations: Vec<i32>,
}

impl WindowAttrs {
    /// The windows, vertically and horizontally.
    fn windows(&self) -> Result<[Windows; 2]> {
        let (size, stride) =
            (counts::<2>("kernel_sizes", &self.kernel_sizes, 1)?, counts::<2>("strides", &self.strides, 1)?);
        let dilation = counts::<2>("dilations", &self.dilations, 1)?;
        let padding = match *self.paddings {
            [top, left, bottom, right] if self.paddings.iter().all(|n| *n >= 0) => {
                [[top, bottom], [left, right]].map(|pair| pair.map(|n| n as usize))
            }
            _ => {
                let text = format!("4 numbers of at least 0 are needed, not {:?}", self.paddings);
                return Err(Error::attr("paddings", text));
            }
        };
        let axis = |i: usize| Windows {
            size: size[i],
            stride: stride[i],
            dilation: dilation[i],
            before: padding[i][0],
            after: padding[i][1],
        };
        Ok([axis(0), axis(1)])
    }

    /// The number of windows over an image of that size.
    fn count(&self, image: &Meta, size: [Dim; 2]) -> Result<[Dim; 2]> {
        let windows = self.windows()?;
        let count = |i: usize| {
            let Some(n) = size[i].get() else { return Ok(Dim::UNKNOWN) };
            windows[i]
                .count(n, false)
                .map(Dim::from)
                .ok_or_else(|| windows[i].too_large(image, "rows and columns"))
        };
        Ok([count(0)?, count(1)?])
    }

    /// Elements of a window in one channel.
    fn taps(&self) -> Result<usize> {
        let [down, across] = self.windows()?;
        Ok(down.size * across.size)
    }

    fn columns(&self, image: [usize; 2]) -> Result<PlaneWindows> {
        let windows = self.windows()?;
        let count = [0, 1].map(|i| windows[i].count(image[i], false).unwrap_or_default());
        Ok(PlaneWindows { windows, image, count })
    }
}

/// Between planes of images and the columns of their windows.
pub(crate) struct PlaneWindows {
    /// Vertical and horizontal.
    pub(crate) windows: [Windows; 2],
    /// Height and width.
    pub(crate) image: [usize; 2],
    /// Rows and columns of windows.
    pub(crate) count: [usize; 2],
}

impl PlaneWindows {
    /// Elements of a plane of the image, and the number of windows.
    pub(crate) fn lens(&self) -> [usize; 2] {
        [self.image, self.count].map(|[rows, cols]| rows.saturating_mul(cols))
    }

    /// Elements of a window.
    pub(crate) fn taps(&self) -> usize {
        self.windows[0].size.saturating_mul(self.windows[1].size)
    }

    /// Calls `f(window, pixel, count, stride)` for runs of windows and the pixels at their element `tap`.
    fn runs(&self, tap: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let [down, across] = &self.windows;
        let taps = [tap / across.size, tap % across.size];
        let [rows, cols] = [0, 1].map(|i| self.windows[i].hits(taps[i], self.image[i], self.count[i]));
        if cols.is_empty() {
            return;
        }
        let column = cols.start * across.stride + taps[1] * across.dilation - across.before;
        for row in rows {
            let from = row * down.stride + taps[0] * down.dilation - down.before;
            f(row * self.count[1] + cols.start, from * self.image[1] + column, cols.len(), across.stride);
        }
    }

    /// Element `tap` of each window over `plane`; 0 in the padding.
    pub(crate) fn take<T: KernelFloat>(&self, tap: usize, plane: &[T], elements: &mut [T]) {
        elements.fill(T::ZERO);
        self.runs(tap, |window, pixel, count, stride| {
            let from = plane[pixel..].iter().step_by(stride);
            elements[window..][..count].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        });
    }

    /// Adds elements to where [`take`](PlaneWindows::take) would take them from.
    pub(crate) fn add<T: KernelFloat>(&self, tap: usize, elements: &[T], plane: &mut [T]) {
        self.runs(tap, |window, pixel, count, stride| {
            let to = plane[pixel..].iter_mut().step_by(stride);
            to.zip(&elements[window..][..count]).for_each(|(to, from)| *to += *from);
        });
    }

    fn unfold<T: KernelFloat>(&self, cx: &Cx, images: &[T], columns: &mut [T]) {
        let ([pixels, count], taps) = (self.lens(), self.taps());
        let part = PART.div_ceil(count) * count;
        cx.chunks_mut(columns, part, |i, columns| {
            pieces(columns, i * part, count, usize::MAX, |row, _, columns| {
                self.take(row % taps, nth(images, row / taps, pixels), columns);
            });
        });
    }

    fn fold<T: KernelFloat>(&self, cx: &Cx, columns: &[T], images: &mut [T]) {
        let ([pixels, count], taps) = (self.lens(), self.taps());
        let part = PART.div_ceil((taps * count).max(pixels).max(1)) * pixels;
        cx.chunks_mut(images, part, |i, images| {
            images.fill(T::ZERO);
            pieces(images, i * part, pixels, usize::MAX, |plane, _, image| {
                (0..taps).for_each(|tap| self.add(tap, nth(columns, plane * taps + tap, count), image));
            });
        });
    }
}

/// The elements under each window as a column: `y[c * taps + i, k]` = element `i` of window `k` in channel `c`, where
/// windows have `taps` elements. Padding counts as 0.
#[register_op(grad = UnfoldGrad, infallible)]
pub struct Unfold<V = Var> {
    /// Images, `[images, channels, height, width]`.
    #[input]
    pub x: V,
    /// `[images, channels * taps, windows]`
    #[output]
    pub y: V,
    /// Size and position of the windows.
    #[attrs]
    pub window: WindowAttrs,
}
impl Infer for Unfold<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [images, channels, height, width] = self.x.unpack()?;
        let [rows, cols] = self.window.count(&self.x, [height, width])?;
        let taps = Dim::from(self.window.taps()?);
        self.y.set(self.x.dtype, Dims::from_iter([images, channels * taps, rows * cols]));
        Ok(())
    }
}
impl Kernel for Unfold<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [.., height, width] = dims::<4>(&self.x)?;
        let columns = self.window.columns([height, width])?;
        with_float!(self.x, T => {
            columns.unfold::<T>(cx, self.x.slice()?, self.y.slice_mut()?);
            Ok(())
        })
    }
}
impl Composition for Unfold<Expr> {
    fn compose(&mut self) {
        let [down, across] = match self.window.windows() {
            Ok(windows) => windows,
            Err(error) => return self.y = self.x.builder().failed(error),
        };
        let padding = [&down, &across].map(|windows| [windows.before as i32, windows.after as i32]);
        let padded = self.x.pad(&[[0, 0], [0, 0], padding[0], padding[1]], 0.0);
        let taps = (0..down.size).flat_map(|i| (0..across.size).map(move |j| [i, j]));
        // The same element of all windows of a channel.
        let rows = taps.map(|[i, j]| {
            let ends = vec![down.end(i), across.end(j)];
            let starts = vec![(i * down.dilation) as i32, (j * across.dilation) as i32];
            let strides = vec![down.stride as i32, across.stride as i32];
            let slice = StridedSlice {
                input: (&padded).into(),
                starts_tensor: None,
                ends_tensor: None,
                strides_tensor: None,
                starts_tensor_list: vec![],
                ends_tensor_list: vec![],
                strides_tensor_list: vec![],
                out: New,
                axes: vec![2, 3],
                starts,
                ends,
                strides,
                decrease_axis: vec![],
            };
            emit(slice).out.flatten(2, 3)
        });
        let rows: Vec<Expr> = rows.collect();
        self.y = stack(&rows.iter().collect::<Vec<_>>(), 2).flatten(1, 2);
    }
}
autobwd::samples!(
    Unfold,
    [
        unfold([2, 3, 5, 4], windows([2, 3])),
        unfold([1, 2, 7, 5], windows([3, 2]).strides([2, 1]).paddings([1, 0, 2, 3]).dilations([1, 2])),
        unfold([1, 2, 3, 4], windows([1, 1]).paddings([2, 1, 0, 0]).strides([1, 2])),
        unfold([0, 2, 3, 4], windows([2, 3])),
        unfold([1, 0, 3, 4], windows([2, 3])),
        unfold([1, 2, 0, 3], windows([1, 2]).paddings([1, 0, 0, 0])),
        unfold([2, 3, 5], windows([2, 3])).fails("`X`: 4 dimensions are needed"),
        unfold([1, 2, 3, 4], windows([4, 1])).fails("`X`: at least 4 rows and columns are needed"),
        unfold([1, 2, 3, 4], windows([0, 1])).fails("attribute `kernel_sizes`: 2 numbers of at least 1"),
        unfold([1, 2, 3, 4], windows([1, 1]).strides([0, 1])).fails("attribute `strides`: 2 numbers"),
        unfold([1, 2, 3, 4], windows([1, 1]).dilations([1])).fails("attribute `dilations`: 2 numbers"),
        unfold([1, 2, 3, 4], windows([1, 1]).paddings([1, 1]))
            .fails("attribute `paddings`: 4 numbers of at least 0 are needed, not [1, 1]"),
        Unfold { x: integers_below(9, [1, 2, 3, 4]), ..unfold([1, 2, 3, 4], windows([1, 1])) }
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn unfold<const N: usize>(x: [usize; N], window: WindowAttrs) -> Unfold<Draw> {
    Unfold { x: uniform(x), y: out(), window }
}

fn windows(size: [i32; 2]) -> WindowAttrs {
    let (kernel_sizes, one) = (size.to_vec(), vec![1, 1]);
    WindowAttrs { kernel_sizes, strides: one.clone(), paddings: vec![0; 4], dilations: one }
}

/// `dx` = for each element, the sum of `dy` where it is.
#[register_op(grad_of = Unfold, grad = Multilinear, inferred, infallible)]
pub struct UnfoldGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub dy: V,
    #[output]
    pub dx: V,
    #[attrs]
    pub window: WindowAttrs,
}
impl Kernel for UnfoldGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [.., height, width] = dims::<4>(&self.x)?;
        let columns = self.window.columns([height, width])?;
        with_float!(self.dy, T => {
            columns.fold::<T>(cx, self.dy.slice()?, self.dx.slice_mut()?);
            Ok(())
        })
    }
}

/// The inverse of `unfold` where windows do not overlap: each element is the sum of those that `unfold` would take
/// from it.
#[register_op(grad = FoldGrad, infallible)]
pub struct Fold<V = Var> {
    /// Columns, `[images, channels * taps, windows]`, where windows have `taps` elements.
    #[input]
    pub x: V,
    /// Images, `[images, channels, height, width]`.
    #[output]
    pub y: V,
    /// Height and width of the images.
    #[attr]
    pub output_sizes: Vec<i32>,
    /// Size and position of the windows.
    #[attrs]
    pub window: WindowAttrs,
}
impl Infer for Fold<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [images, width, columns] = self.x.unpack()?;
        let (taps, size) =
            (self.window.taps()?, counts::<2>("output_sizes", &self.output_sizes, 1)?.map(Dim::from));
        let even = width.get().is_none_or(|n| n.is_multiple_of(taps));
        self.x.require(even, || {
            format!("a second dimension divisible by {taps}, the elements of a window, is needed")
        })?;
        let [rows, cols] = self.window.count(&self.x, size)?;
        let fits = columns.agrees(rows * cols);
        self.x.require(fits, || format!("{rows} by {cols} windows are needed"))?;
        let channels = width / Dim::from(taps);
        self.y.set(self.x.dtype, Dims::from_iter([images, channels, size[0], size[1]]));
        Ok(())
    }
}
impl Kernel for Fold<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [.., height, width] = dims::<4>(&self.y)?;
        let columns = self.window.columns([height, width])?;
        with_float!(self.x, T => {
            columns.fold::<T>(cx, self.x.slice()?, self.y.slice_mut()?);
            Ok(())
        })
    }
}
impl Composition for Fold<Expr> {
    fn compose(&mut self) {
        let [images, width, _] = sizes(&self.x);
        let taps: i64 = self.window.kernel_sizes.iter().map(|n| i64::from(*n)).product();
        let size = self.output_sizes.iter().map(|n| i64::from(*n).into());
        let dims: Vec<DimExpr> = [images, width / taps].into_iter().chain(size).collect();
        // `unfold` is linear, so that the images do not matter.
        let x = (&filled(self.x.builder(), self.x.dtype(), "0", &dims)).into();
        self.y = emit(UnfoldGrad { x, dy: (&self.x).into(), dx: New, window: self.window.clone() }).dx;
    }
}
autobwd::samples!(
    Fold,
    [
        fold([2, 18, 8], [5, 4], windows([2, 3])),
        fold([1, 12, 24], [7, 5], windows([3, 2]).strides([2, 1]).paddings([1, 0, 2, 3]).dilations([1, 2])),
        fold([0, 6, 4], [3, 4], windows([2, 3])),
        fold([2, 6, 3], [3, 4], windows([2, 3])).fails("`X`: 2 by 2 windows are needed"),
        fold([2, 5, 4], [3, 4], windows([2, 3])).fails("`X`: a second dimension divisible by 6"),
        fold([2, 6, 4], [1, 4], windows([2, 3])).fails("`X`: at least 2 rows and columns are needed"),
        fold([2, 6, 4], [0, 4], windows([2, 3])).fails("attribute `output_sizes`: 2 numbers of at least 1"),
        fold([2, 6], [3, 4], windows([2, 3])).fails("`X`: 3 dimensions are needed"),
        fold([2, 6, 4], [3, 4], windows([2, 3]).paddings([-1, 0, 0, 0]))
            .fails("attribute `paddings`: 4 numbers"),
    ]
);

fn fold<const N: usize>(x: [usize; N], output_sizes: [i32; 2], window: WindowAttrs) -> Fold<Draw> {
    Fold { x: uniform(x), y: out(), output_sizes: output_sizes.to_vec(), window }
}

/// `dx` = the windows of `dy` as columns.
#[register_op(grad_of = Fold, grad = Multilinear, inferred, infallible)]
pub struct FoldGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub dy: V,
    #[output]
    pub dx: V,
    pub output_sizes: Vec<i32>,
    #[attrs]
    pub window: WindowAttrs,
}
impl Kernel for FoldGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let [.., height, width] = dims::<4>(&self.dy)?;
        let columns = self.window.columns([height, width])?;
        with_float!(self.dy, T => {
            columns.unfold::<T>(cx, self.dy.slice()?, self.dx.slice_mut()?);
            Ok(())
        })
    }
}
