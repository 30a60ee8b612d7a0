//! `grid_sampler`: images sampled at given positions.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Dims, Expr, Infer, Kernel, Meta, Result, Var, check::*,
    op::with_float, register_op, tensor::OptionalBuf,
};

use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, nth, pieces, wide},
    math::{DimExpr, filled, positions, sizes},
    windows::dims,
};

autobwd::op::attr_enum! {
    /// How an element between others is computed.
    pub enum GridMode {
        /// Linear interpolation of the four nearest elements.
        Bilinear = "bilinear",
        /// The nearest element; a position halfway between two is rounded away from element 0.
        Nearest = "nearest",
    }
}

autobwd::op::attr_enum! {
    /// What positions outside the image mean.
    pub enum GridPadding {
        /// 0.
        Zeros = "zeros",
        /// The nearest position of the image.
        Border = "border",
        /// The position reflected at the border until it is inside.
        Reflection = "reflection",
    }
}

/// Samples images at the positions of a grid: -1 and 1 are the borders of the image.
///
/// With `n` elements along a dimension, position `g` is at element `(g + 1) / 2 * (n - 1)` with `align_corners`, else
/// at `((g + 1) * n - 1) / 2`.
#[register_op(grad = GridSamplerGrad, infallible)]
pub struct GridSampler<V = Var> {
    /// Images, `[images, channels, height, width]`.
    #[input]
    pub x: V,
    /// Horizontal and vertical positions for each image, `[images, out_height, out_width, 2]`.
    #[input]
    pub grid: V,
    /// `[images, channels, out_height, out_width]`
    #[output]
    pub output: V,
    /// -1 and 1 are the centres of the outermost elements, not their outer edges.
    #[attr(default = true)]
    pub align_corners: bool,
    /// How an element between others is computed.
    #[attr(default = GridMode::Bilinear)]
    pub mode: GridMode,
    /// What positions outside the image mean.
    #[attr(default = GridPadding::Zeros)]
    pub padding_mode: GridPadding,
}
impl Infer for GridSampler<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.grid.same_dtype(&self.x)?;
        let [images, channels, height, width] = self.x.unpack()?;
        self.x.require(height != 0 && width != 0, || "at least one row and column is needed".into())?;
        let [grids, out_height, out_width, two] = self.grid.unpack()?;
        let fits = grids.agrees(images) && two.agrees(2.into());
        self.grid
            .require(fits, || format!("[{images}, height, width, 2] is needed, positions for each image"))?;
        let dims = Dims::from_iter([images.or(grids), channels, out_height, out_width]);
        self.output.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for GridSampler<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let sampler = Sampler::new(&self.x, &self.grid, (self.align_corners, self.mode, self.padding_mode))?;
        with_float!(self.x, T => {
            let (x, grid, output) = (self.x.slice::<T>()?, self.grid.slice::<T>()?, self.output.slice_mut::<T>()?);
            sampler.each(cx, output, |plane, at, output| {
                let x = nth(x, plane, sampler.pixels());
                for (i, output) in output.iter_mut().enumerate() {
                    let [across, down] = sampler.source(grid, plane / sampler.channels, at + i);
                    let mut sum = 0.0;
                    sampler.corners(&across, &down, |pixel, weight, _| sum += x[pixel] * weight);
                    *output = sum;
                }
            });
            Ok(())
        })
    }
}
impl Composition for GridSampler<Expr> {
    fn compose(&mut self) {
        let [images, channels, height, width] = sizes(&self.x);
        let [_, out_height, out_width, _] = sizes(&self.grid);
        let builder = self.x.builder();
        let dims = [images.clone(), channels.clone(), out_height.clone(), out_width.clone()];
        if dims.iter().any(|n| n.known() == Some(0)) {
            self.output = filled(builder, self.x.dtype(), "0", &dims);
            return;
        }
        let pixels = self.x.transpose(&[0, 2, 3, 1]).flatten(0, 2);
        let [across, down] =
            [(0, &width), (1, &height)].map(|(i, size)| self.neighbours(&self.grid.slice(3, i, i + 1), size));
        let first_rows = positions(builder, &images).unsqueeze(&[1, 2, 3]) * height.number(builder);
        let corner = |(row, of_row): &(Expr, Expr), (column, of_column): &(Expr, Expr)| {
            let pixel = (&first_rows + row) * width.number(builder) + column;
            pixels.gather(&pixel.flatten(0, 3), 0) * (of_row * of_column).flatten(0, 2)
        };
        let corners = down.iter().flat_map(|row| across.iter().map(move |column| (row, column)));
        let corners = corners.map(|(row, column)| corner(row, column));
        let output = corners.reduce(|sum, corner| sum + corner).unwrap_or_else(|| pixels.clone());
        let output = output.reshape_to(&[images, out_height, out_width, channels]);
        self.output = output.transpose(&[0, 3, 1, 2]);
    }
}
impl GridSampler<Expr> {
    /// The elements around positions, and their weights.
    fn neighbours(&self, grid: &Expr, size: &DimExpr) -> Vec<(Expr, Expr)> {
        let (builder, float) = (grid.builder(), grid.dtype());
        let [size, max] = [size.clone(), size - 1].map(|n| n.number(builder).cast(float));
        let zero = filled(builder, float, "0", &[1.into()]);
        // On a tie, the second operand gets the gradient: the border is inside.
        let clipped = |at: &Expr| max.minimum(&zero.maximum(at));
        let reflected = |at: &Expr, range: Expr| {
            let extra = at - (at / range.clip(1.0, f64::INFINITY)).floor() * &range;
            extra.minimum(&(range - &extra))
        };
        let at = match self.align_corners {
            true => (grid + 1.0) * (&max / 2.0),
            false => (grid + 1.0) * (&size / 2.0) - 0.5,
        };
        let at = match (self.padding_mode, self.align_corners) {
            (GridPadding::Zeros, _) => at,
            (GridPadding::Border, _) => clipped(&at),
            (GridPadding::Reflection, true) => reflected(&at.abs(), &max * 2.0),
            (GridPadding::Reflection, false) => clipped(&(reflected(&(at + 0.5).abs(), size * 2.0) - 0.5)),
        };
        let neighbour = |element: Expr, weight: Expr| {
            let inside = clipped(&element);
            let weight = weight * inside.equal(&element).cast(float);
            (inside.cast(DType::I64), weight)
        };
        match self.mode {
            GridMode::Bilinear => {
                let first = at.floor();
                let weight = &at - &first;
                vec![neighbour(first.clone(), 1.0 - weight.clone()), neighbour(first + 1.0, weight)]
            }
            GridMode::Nearest => {
                let nearest = at.round();
                vec![neighbour(nearest.clone(), nearest * 0.0 + 1.0)]
            }
        }
    }
}
autobwd::samples!(
    GridSampler,
    [
        sampler([2, 3, 4, 5], [2, 3, 1, 2]),
        sampler([1, 3, 5, 4], [1, 6, 4, 2]),
        GridSampler { align_corners: false, ..sampler([1, 2, 4, 3], [1, 2, 3, 2]) },
        GridSampler { padding_mode: GridPadding::Border, ..sampler([2, 1, 3, 4], [2, 3, 2, 2]) },
        GridSampler {
            padding_mode: GridPadding::Border,
            align_corners: false,
            ..sampler([1, 2, 3, 4], [1, 3, 2, 2])
        },
        GridSampler { padding_mode: GridPadding::Reflection, ..sampler([1, 2, 3, 4], [1, 3, 2, 2]) },
        GridSampler {
            padding_mode: GridPadding::Reflection,
            align_corners: false,
            ..sampler([1, 2, 3, 4], [1, 3, 2, 2])
        },
        GridSampler { padding_mode: GridPadding::Reflection, ..sampler([1, 2, 3, 1], [1, 3, 2, 2]) },
        GridSampler { mode: GridMode::Nearest, ..sampler([2, 1, 3, 4], [2, 1, 3, 2]) },
        GridSampler {
            mode: GridMode::Nearest,
            padding_mode: GridPadding::Border,
            align_corners: false,
            ..sampler([1, 2, 3, 4], [1, 2, 3, 2])
        },
        GridSampler {
            mode: GridMode::Nearest,
            padding_mode: GridPadding::Reflection,
            ..sampler([1, 2, 3, 4], [1, 2, 3, 2])
        },
        sampler([0, 2, 3, 4], [0, 1, 2, 2]),
        sampler([1, 0, 3, 4], [1, 1, 2, 2]),
        sampler([1, 2, 3, 4], [1, 0, 2, 2]),
        sampler([1, 2, 3], [1, 1, 2, 2]).fails("`X`: 4 dimensions are needed"),
        sampler([1, 2, 0, 4], [1, 1, 2, 2]).fails("`X`: at least one row and column is needed"),
        sampler([2, 3, 4, 5], [2, 3, 1, 3]).fails("`Grid`: [2, height, width, 2] is needed"),
        sampler([2, 3, 4, 5], [1, 3, 1, 2]).fails("`Grid`: [2, height, width, 2] is needed"),
        GridSampler { x: integers_below(9, [2, 3, 4, 5]), ..sampler([2, 3, 4, 5], [2, 3, 1, 2]) }
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn sampler<const N: usize>(x: [usize; N], grid: [usize; 4]) -> GridSampler<Draw> {
    GridSampler {
        x: uniform(x),
        grid: between(-1.7, 1.7, grid),
        output: out(),
        align_corners: true,
        mode: GridMode::Bilinear,
        padding_mode: GridPadding::Zeros,
    }
}

/// `dx` = the sum of `doutput`, each multiplied by the weight with which the element contributes to it; `dgrid` = the
/// sum over channels of `doutput` times the derivative of the image at the position.
#[register_op(grad_of = GridSampler, grad = Composed, inferred, infallible)]
pub struct GridSamplerGrad<V = Var> {
    pub x: V,
    pub grid: V,
    pub doutput: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dgrid: Option<V>,
    pub align_corners: bool,
    pub mode: GridMode,
    pub padding_mode: GridPadding,
}
impl Kernel for GridSamplerGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let sampler = Sampler::new(&self.x, &self.grid, (self.align_corners, self.mode, self.padding_mode))?;
        with_float!(self.x, T => {
            let (x, grid, doutput) = (self.x.slice::<T>()?, self.grid.slice::<T>()?, self.doutput.slice::<T>()?);
            let (channels, pixels, positions) = (sampler.channels, sampler.pixels(), sampler.positions);
            if let Some(dx) = self.dx.slice_mut::<T>()? {
                let part = PART.div_ceil(pixels.max(positions)) * pixels;
                cx.chunks_mut(dx, part, |i, dx| {
                    dx.fill(0.0);
                    for (k, dx) in dx.chunks_exact_mut(pixels).enumerate() {
                        let plane = i * (part / pixels) + k;
                        for (at, doutput) in nth(doutput, plane, positions).iter().enumerate() {
                            let [across, down] = sampler.source(grid, plane / channels, at);
                            sampler.corners(&across, &down, |pixel, weight, _| dx[pixel] += weight * *doutput);
                        }
                    }
                });
            }
            if let Some(dgrid) = self.dgrid.slice_mut::<T>()? {
                let part = PART.div_ceil(channels.max(1));
                cx.chunks_mut(dgrid, 2 * part, |i, dgrid| {
                    for (k, dgrid) in dgrid.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                        let (image, at) = ((i * part + k) / positions, (i * part + k) % positions);
                        let [across, down] = sampler.source(grid, image, at);
                        *dgrid = [0.0; 2];
                        for plane in image * channels..(image + 1) * channels {
                            let (x, doutput) = (nth(x, plane, pixels), doutput[plane * positions + at]);
                            sampler.corners(&across, &down, |pixel, _, slopes: [T; 2]| {
                                dgrid[0] += x[pixel] * doutput * slopes[0];
                                dgrid[1] += x[pixel] * doutput * slopes[1];
                            });
                        }
                    }
                });
            }
            Ok(())
        })
    }
}

/// Neighbours of a source position along one axis: elements with weights, and derivatives of these.
type Neighbours<T> = [Option<(usize, T, T)>; 2];

struct Sampler {
    channels: usize,
    /// Columns and rows of an image.
    size: [usize; 2],
    /// Positions for each image.
    positions: usize,
    align_corners: bool,
    mode: GridMode,
    padding: GridPadding,
}

impl Sampler {
    fn new(
        x: &Buf<'_>,
        grid: &Buf<'_>,
        (align_corners, mode, padding): (bool, GridMode, GridPadding),
    ) -> Result<Sampler> {
        let ([_, channels, height, width], [_, rows, cols, _]) = (dims(x)?, dims(grid)?);
        let positions = rows * cols;
        Ok(Sampler { channels, size: [width, height], positions, align_corners, mode, padding })
    }

    fn pixels(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// Calls `work(plane, first position, elements)` for parts of planes of the result.
    fn each<T: KernelFloat>(&self, cx: &Cx, output: &mut [T], work: impl Fn(usize, usize, &mut [T]) + Sync) {
        cx.chunks_mut(output, PART, |part, output| {
            pieces(output, part * PART, self.positions, usize::MAX, |plane, at, output| {
                work(plane, at, output)
            });
        });
    }

    /// The neighbours of a position, horizontally and vertically.
    fn source<T: KernelFloat>(&self, grid: &[T], image: usize, at: usize) -> [Neighbours<T>; 2] {
        let grid = nth(grid, image * self.positions + at, 2);
        [self.neighbours(grid[0], self.size[0]), self.neighbours(grid[1], self.size[1])]
    }

    /// Calls `f(pixel, weight, slopes)` for the neighbours within the image; derivatives are horizontal and vertical.
    #[inline(always)]
    fn corners<T: KernelFloat>(
        &self,
        across: &Neighbours<T>,
        down: &Neighbours<T>,
        mut f: impl FnMut(usize, T, [T; 2]),
    ) {
        for (row, of_row, row_slope) in down.iter().flatten().copied() {
            for (column, of_column, column_slope) in across.iter().flatten().copied() {
                let slopes = [of_row * column_slope, of_column * row_slope];
                f(row * self.size[0] + column, of_row * of_column, slopes);
            }
        }
    }

    /// The neighbours of position `g` along an axis of `size` elements.
    fn neighbours<T: KernelFloat>(&self, g: T, size: usize) -> Neighbours<T> {
        let (at, slope) = self.place(g, size);
        let max = T::of(size as f64 - 1.0);
        // NaN is outside.
        let inside = |element: T| (element >= T::ZERO && element <= max).then(|| wide(element) as usize);
        match self.mode {
            GridMode::Bilinear => {
                let first = at.floor();
                let weight = at - first;
                [
                    inside(first).map(|i| (i, T::ONE - weight, -slope)),
                    inside(first + T::ONE).map(|i| (i, weight, slope)),
                ]
            }
            GridMode::Nearest => [inside(at.round()).map(|i| (i, T::ONE, T::ZERO)), None],
        }
    }

    /// The source position, and its derivative.
    fn place<T: KernelFloat>(&self, g: T, size: usize) -> (T, T) {
        let (max, half) = (T::of(size as f64 - 1.0), T::of(0.5));
        let slope = if self.align_corners { max * half } else { T::of(size as f64) * half };
        let at = (g + T::ONE) * slope;
        let at = if self.align_corners { at } else { at - half };
        let clipped = |at: T, slope: T| {
            let inside = at.max(T::ZERO).min(max);
            (inside, if inside == at { slope } else { T::ZERO })
        };
        match (self.padding, self.align_corners) {
            (GridPadding::Zeros, _) => (at, slope),
            (GridPadding::Border, _) => clipped(at, slope),
            (GridPadding::Reflection, true) if size == 1 => (T::ZERO, T::ZERO),
            (GridPadding::Reflection, true) => reflected(at, slope, max + max),
            (GridPadding::Reflection, false) => {
                let (at, slope) = reflected(at + half, slope, T::of(2.0 * size as f64));
                clipped(at - half, slope)
            }
        }
    }
}

/// The position reflected at 0 and at half of the range, with its derivative.
fn reflected<T: KernelFloat>(at: T, slope: T, range: T) -> (T, T) {
    let slope = if at < T::ZERO { -slope } else { slope };
    let at = at.abs();
    let extra = at - (at / range).floor() * range;
    if extra > range - extra { (range - extra, -slope) } else { (extra, slope) }
}
