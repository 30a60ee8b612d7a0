//! `pixel_shuffle`, `pixel_unshuffle` and `channel_shuffle`: permutations of the elements of images.

use autobwd::{
    Buf, Composition, Cx, Dims, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var, check::*, emit,
    op::with_dtype, operators::StridedLayout, register_op, tensor::Dim,
};

use crate::{
    Math,
    math::{DimExpr, sizes},
    norm::DataLayout,
    windows::dims,
};

/// Splits the dimensions of `x`, and permutes the parts.
struct Permutation<D> {
    parts: [D; 6],
    /// For each part of the result, the part of `x`.
    order: [usize; 6],
}

impl<D: Clone> Permutation<D> {
    /// From images with more pixels to images with more channels, which have `size` rows and columns.
    fn unshuffling(format: DataLayout, images: D, channels: D, size: [D; 2], factor: D) -> Permutation<D> {
        let ([height, width], [r, c]) = (size, [factor.clone(), factor]);
        let parts = match format {
            DataLayout::Nchw => [images, channels, height, r, width, c],
            DataLayout::Nhwc => [images, height, r, width, c, channels],
        };
        Permutation { parts, order: [0, 1, 3, 5, 2, 4] }
    }

    /// The permutation that restores `x`.
    fn inverse(&self) -> Permutation<D> {
        let (parts, mut order) = (self.order.map(|from| self.parts[from].clone()), [0; 6]);
        self.order.iter().enumerate().for_each(|(to, from)| order[*from] = to);
        Permutation { parts, order }
    }
}

impl Permutation<usize> {
    fn copy(&self, cx: &Cx, x: &Buf<'_>, out: &mut Buf<'_>) -> Result<()> {
        let mut loops = StridedLayout::default();
        for part in self.order {
            let stride: usize = self.parts[part + 1..].iter().product();
            loops.push(self.parts[part], stride as isize);
        }
        with_dtype!(x.dtype(), T => loops.gather::<T>(cx, x.slice()?, out.slice_mut()?));
        Ok(())
    }
}

impl Permutation<DimExpr> {
    /// The elements of `x` in that order, in these dimensions.
    fn apply(&self, x: &Expr, dims: &[DimExpr; 4]) -> Expr {
        x.reshape_to(&self.parts).transpose(&self.order.map(|part| part as i32)).reshape_to(dims)
    }
}

/// Images with `factor`² times fewer channels, and more rows and columns.
fn shuffled(x: &Meta, factor: i32, format: DataLayout) -> Result<Dims> {
    let (factor, (images, channels, [height, width])) = (factor as usize, format.split(x.unpack()?));
    let square = factor.saturating_mul(factor);
    let even = channels.get().is_none_or(|n| n.is_multiple_of(square));
    x.require(even, || format!("a number of channels divisible by {square} is needed"))?;
    let channels = channels / Dim::from(square);
    let size = [height, width].map(|n| n * Dim::from(factor));
    Ok(Dims::from_iter(format.join(images, channels, size)))
}

/// Images with `factor`² times more channels, and fewer rows and columns.
fn unshuffled(x: &Meta, factor: i32, format: DataLayout) -> Result<Dims> {
    let (factor, (images, channels, size)) = (factor as usize, format.split(x.unpack()?));
    let even = size.iter().all(|n| n.get().is_none_or(|n| n.is_multiple_of(factor)));
    x.require(even, || format!("a height and width divisible by {factor} is needed"))?;
    let size = size.map(|n| n / Dim::from(factor));
    let channels = channels * Dim::from(factor.saturating_mul(factor));
    Ok(Dims::from_iter(format.join(images, channels, size)))
}

/// From the shuffled images to the unshuffled ones.
fn gathering(shuffled: &Buf<'_>, factor: i32, format: DataLayout) -> Result<Permutation<usize>> {
    let (factor, (images, channels, size)) = (factor as usize, format.split(dims(shuffled)?));
    Ok(Permutation::unshuffling(format, images, channels, size.map(|n| n / factor), factor))
}

/// From channels in groups to channels whose neighbours are of other groups.
fn mixing(x: &Buf<'_>, groups: i32, format: DataLayout) -> Result<Permutation<usize>> {
    let (groups, (images, channels, [height, width])) = (groups as usize, format.split(dims(x)?));
    let (before, behind) = match format {
        DataLayout::Nchw => (images, height * width),
        DataLayout::Nhwc => (images * height * width, 1),
    };
    Ok(Permutation { parts: [before, groups, channels / groups, behind, 1, 1], order: [0, 2, 1, 3, 4, 5] })
}

/// Moves groups of channels to pixels: with `r = upscale_factor`,
/// `out[c, h * r + i, w * r + j] = x[(c * r + i) * r + j, h, w]`.
#[register_op(grad = PixelShuffleGrad, infallible, any_dtype)]
pub struct PixelShuffle<V = Var> {
    /// Images, in the order that `data_format` says; any dtype.
    #[input]
    pub x: V,
    /// `r²` times fewer channels, `r` times more rows and columns.
    #[output]
    pub out: V,
    /// `r`
    #[attr(default = 1, min = 1)]
    pub upscale_factor: i32,
    /// Order of the dimensions of images (`NCHW`, `NHWC`).
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
impl Infer for PixelShuffle<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, shuffled(&self.x, self.upscale_factor, self.data_format)?);
        Ok(())
    }
}
impl Kernel for PixelShuffle<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let gathering = gathering(&self.out, self.upscale_factor, self.data_format)?;
        gathering.inverse().copy(cx, &self.x, &mut self.out)
    }
}
impl Composition for PixelShuffle<Expr> {
    fn compose(&mut self) {
        let (format, factor) = (self.data_format, DimExpr::from(i64::from(self.upscale_factor)));
        let (images, channels, size) = format.split(sizes(&self.x));
        let channels = channels / (&factor * &factor);
        let dims = format.join(images.clone(), channels.clone(), size.clone().map(|n| n * &factor));
        let order = Permutation::unshuffling(format, images, channels, size, factor);
        self.out = order.inverse().apply(&self.x, &dims);
    }
}
autobwd::samples!(
    PixelShuffle,
    [
        pixel_shuffle(uniform([2, 8, 3, 4]), 2),
        pixel_shuffle(uniform([1, 9, 2, 4]), 3),
        PixelShuffle { data_format: DataLayout::Nhwc, ..pixel_shuffle(uniform([2, 3, 4, 8]), 2) },
        pixel_shuffle(uniform([2, 5, 3, 4]), 1),
        pixel_shuffle(uniform([0, 4, 3, 2]), 2),
        pixel_shuffle(integers_below(9, [1, 4, 3, 2]), 2),
        pixel_shuffle(uniform([2, 6, 3, 4]), 2).fails("`X`: a number of channels divisible by 4 is needed"),
        pixel_shuffle(uniform([2, 6, 3, 4]), i32::MAX).fails("`X`: a number of channels divisible by"),
        pixel_shuffle(uniform([8, 3, 4]), 2).fails("`X`: 4 dimensions are needed"),
        pixel_shuffle(uniform([2, 8, 3, 4]), 0).fails("attribute `upscale_factor`"),
    ]
);

fn pixel_shuffle(x: Draw, upscale_factor: i32) -> PixelShuffle<Draw> {
    PixelShuffle { x, out: out(), upscale_factor, data_format: DataLayout::Nchw }
}

/// `dx` = `dout`, moved back.
#[register_op(grad_of = PixelShuffle, grad = Multilinear, infallible, any_dtype)]
pub struct PixelShuffleGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: V,
    pub upscale_factor: i32,
    pub data_format: DataLayout,
}
impl Infer for PixelShuffleGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dx.set(self.dout.dtype, unshuffled(&self.dout, self.upscale_factor, self.data_format)?);
        Ok(())
    }
}
impl Kernel for PixelShuffleGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        gathering(&self.dout, self.upscale_factor, self.data_format)?.copy(cx, &self.dout, &mut self.dx)
    }
}
impl Composition for PixelShuffleGrad<Expr> {
    fn compose(&mut self) {
        let (x, downscale_factor) = ((&self.dout).into(), self.upscale_factor);
        self.dx = emit(PixelUnshuffle { x, out: New, downscale_factor, data_format: self.data_format }).out;
    }
}

/// Moves groups of pixels to channels: with `r = downscale_factor`,
/// `out[(c * r + i) * r + j, h, w] = x[c, h * r + i, w * r + j]`.
#[register_op(grad = PixelUnshuffleGrad, infallible, any_dtype)]
pub struct PixelUnshuffle<V = Var> {
    /// Images, in the order that `data_format` says; any dtype.
    #[input]
    pub x: V,
    /// `r²` times more channels, `r` times fewer rows and columns.
    #[output]
    pub out: V,
    /// `r`
    #[attr(default = 1, min = 1)]
    pub downscale_factor: i32,
    /// Order of the dimensions of images (`NCHW`, `NHWC`).
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
impl Infer for PixelUnshuffle<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, unshuffled(&self.x, self.downscale_factor, self.data_format)?);
        Ok(())
    }
}
impl Kernel for PixelUnshuffle<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        gathering(&self.x, self.downscale_factor, self.data_format)?.copy(cx, &self.x, &mut self.out)
    }
}
impl Composition for PixelUnshuffle<Expr> {
    fn compose(&mut self) {
        let (format, factor) = (self.data_format, DimExpr::from(i64::from(self.downscale_factor)));
        let (images, channels, size) = format.split(sizes(&self.x));
        let size = size.map(|n| n / &factor);
        let dims = format.join(images.clone(), &channels * &factor * &factor, size.clone());
        let order = Permutation::unshuffling(format, images, channels, size, factor);
        self.out = order.apply(&self.x, &dims);
    }
}
autobwd::samples!(
    PixelUnshuffle,
    [
        pixel_unshuffle(uniform([2, 3, 4, 6]), 2),
        pixel_unshuffle(uniform([1, 2, 9, 3]), 3),
        PixelUnshuffle { data_format: DataLayout::Nhwc, ..pixel_unshuffle(uniform([2, 4, 6, 3]), 2) },
        pixel_unshuffle(uniform([2, 5, 3, 4]), 1),
        pixel_unshuffle(uniform([2, 0, 4, 6]), 2),
        pixel_unshuffle(integers_below(9, [1, 3, 4, 2]), 2),
        pixel_unshuffle(uniform([2, 3, 4, 5]), 2).fails("`X`: a height and width divisible by 2 is needed"),
        pixel_unshuffle(uniform([8, 4, 4]), 2).fails("`X`: 4 dimensions are needed"),
        pixel_unshuffle(uniform([2, 8, 4, 4]), 0).fails("attribute `downscale_factor`"),
    ]
);

fn pixel_unshuffle(x: Draw, downscale_factor: i32) -> PixelUnshuffle<Draw> {
    PixelUnshuffle { x, out: out(), downscale_factor, data_format: DataLayout::Nchw }
}

/// `dx` = `dout`, moved back.
#[register_op(grad_of = PixelUnshuffle, grad = Multilinear, infallible, any_dtype)]
pub struct PixelUnshuffleGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: V,
    pub downscale_factor: i32,
    pub data_format: DataLayout,
}
impl Infer for PixelUnshuffleGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dx.set(self.dout.dtype, shuffled(&self.dout, self.downscale_factor, self.data_format)?);
        Ok(())
    }
}
impl Kernel for PixelUnshuffleGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let gathering = gathering(&self.dx, self.downscale_factor, self.data_format)?;
        gathering.inverse().copy(cx, &self.dout, &mut self.dx)
    }
}
impl Composition for PixelUnshuffleGrad<Expr> {
    fn compose(&mut self) {
        let (x, upscale_factor) = ((&self.dout).into(), self.downscale_factor);
        self.dx = emit(PixelShuffle { x, out: New, upscale_factor, data_format: self.data_format }).out;
    }
}

/// Mixes groups of channels: with `n` channels in a group, `out[i * groups + g] = x[g * n + i]`.
#[register_op(grad = ChannelShuffleGrad, infallible, any_dtype)]
pub struct ChannelShuffle<V = Var> {
    /// Images, in the order that `data_format` says; any dtype.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Number of groups; it divides the number of channels.
    #[attr(min = 1)]
    pub groups: i32,
    /// Order of the dimensions of images (`NCHW`, `NHWC`).
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
impl Infer for ChannelShuffle<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_groups(&self.x, self.groups, self.data_format)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for ChannelShuffle<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        mixing(&self.x, self.groups, self.data_format)?.copy(cx, &self.x, &mut self.out)
    }
}
impl Composition for ChannelShuffle<Expr> {
    fn compose(&mut self) {
        self.out = mixed(&self.x, self.groups, self.data_format, |groups, each| [groups, each]);
    }
}
autobwd::samples!(
    ChannelShuffle,
    [
        channel_shuffle(uniform([2, 6, 3, 4]), 3),
        channel_shuffle(uniform([1, 6, 5, 4]), 2),
        ChannelShuffle { data_format: DataLayout::Nhwc, ..channel_shuffle(uniform([2, 3, 4, 6]), 3) },
        channel_shuffle(uniform([2, 6, 0, 4]), 3),
        channel_shuffle(integers_below(9, [1, 6, 3, 2]), 2),
        channel_shuffle(uniform([2, 6, 3, 4]), 4)
            .fails("`X`: a number of channels divisible by 4 groups is needed"),
        channel_shuffle(uniform([2, 6, 3]), 3).fails("`X`: 4 dimensions are needed"),
        channel_shuffle(uniform([2, 6, 3, 4]), 0).fails("attribute `groups`"),
    ]
);

fn channel_shuffle(x: Draw, groups: i32) -> ChannelShuffle<Draw> {
    ChannelShuffle { x, out: out(), groups, data_format: DataLayout::Nchw }
}

fn check_groups(x: &Meta, groups: i32, format: DataLayout) -> Result<()> {
    let (_, channels, _) = format.split(x.unpack()?);
    let even = channels.get().is_none_or(|n| n.is_multiple_of(groups as usize));
    x.require(even, || format!("a number of channels divisible by {groups} groups is needed"))
}

/// `dx` = `dout`, moved back.
#[register_op(grad_of = ChannelShuffle, grad = Multilinear, infallible, any_dtype)]
pub struct ChannelShuffleGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: V,
    pub groups: i32,
    pub data_format: DataLayout,
}
impl Infer for ChannelShuffleGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        check_groups(&self.dout, self.groups, self.data_format)?;
        self.dx.like(&self.dout);
        Ok(())
    }
}
impl Kernel for ChannelShuffleGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        mixing(&self.dx, self.groups, self.data_format)?.inverse().copy(cx, &self.dout, &mut self.dx)
    }
}
impl Composition for ChannelShuffleGrad<Expr> {
    fn compose(&mut self) {
        self.dx = mixed(&self.dout, self.groups, self.data_format, |groups, each| [each, groups]);
    }
}

/// The channels as a matrix, transposed.
fn mixed(
    x: &Expr,
    groups: i32,
    format: DataLayout,
    matrix: impl FnOnce(DimExpr, DimExpr) -> [DimExpr; 2],
) -> Expr {
    let (dims, groups) = (sizes::<4>(x), DimExpr::from(i64::from(groups)));
    let (images, channels, [height, width]) = format.split(dims.clone());
    let [rows, columns] = matrix(groups.clone(), channels / &groups);
    let (parts, order) = match format {
        DataLayout::Nchw => ([images, rows, columns, height, width], [0, 2, 1, 3, 4]),
        DataLayout::Nhwc => ([images, height, width, rows, columns], [0, 1, 2, 4, 3]),
    };
    x.reshape_to(&parts).transpose(&order).reshape_to(&dims)
}
