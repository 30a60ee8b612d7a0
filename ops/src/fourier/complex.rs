//! Transforms of complex numbers.

use std::f64::consts::TAU;

use autobwd::{
    Buf, Composition, Cx, Error, Expr, GradCx, GradRule, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{attr_enum, with_float},
    register_op,
    tensor::Dim,
};

use super::transform::{Complex, Transform};
use crate::{
    Math,
    kernel_helpers::{KernelFloat, PART, outer_axis_inner, wide},
    math::{in_dtype, positions},
    stack,
};

attr_enum! {
    /// The factor of a Fourier transform.
    pub enum FftNormalization {
        /// `1 / n` for the backward transform.
        Backward = "backward",
        /// `1 / √n` for both directions.
        Ortho = "ortho",
        /// `1 / n` for the forward transform.
        Forward = "forward",
    }
}

impl FftNormalization {
    /// With the same factor for the other direction.
    fn flipped(self) -> FftNormalization {
        match self {
            FftNormalization::Backward => FftNormalization::Forward,
            FftNormalization::Ortho => FftNormalization::Ortho,
            FftNormalization::Forward => FftNormalization::Backward,
        }
    }

    /// Whether the factor is `1 / n` for that direction.
    fn divides(self, is_forward: bool) -> bool {
        self == if is_forward { FftNormalization::Forward } else { FftNormalization::Backward }
    }

    fn factor(self, is_forward: bool, n: usize) -> f64 {
        match self {
            FftNormalization::Ortho => 1.0 / (n as f64).sqrt(),
            _ if self.divides(is_forward) => 1.0 / n as f64,
            _ => 1.0,
        }
    }
}

/// Discrete Fourier transforms of complex numbers along axes: `out[k] = c · Σ x[j] · exp(∓2πi · j · k / n)`, with a minus sign
/// forward.
///
/// The transform of `n` elements takes `n log n` steps for every `n`. It is computed in double precision.
#[register_op(grad = FftC2cGrad, infallible)]
pub struct FftC2c<V = Var> {
    /// Complex numbers, `[.., 2]`, with at least one element along each axis.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Different axes, which count the dimensions without the last one of 2; negative ones count from their end.
    #[attr]
    pub axes: Vec<i64>,
    /// The factor `c` (`backward`, `ortho`, `forward`).
    #[attr]
    pub normalization: FftNormalization,
    /// The direction.
    #[attr]
    pub forward: bool,
}
impl Infer for FftC2c<Meta> {
    fn infer(&mut self) -> Result<()> {
        let rank = complex_rank(&self.x)?;
        different_axes(&self.x, rank, &self.axes)?;
        self.out.like(&self.x);
        Ok(())
    }

    fn flops(&self) -> Dim {
        // Five for each complex number and each halving of an axis, as is the custom.
        let halvings = |axis: &i64| {
            let n = self.x.dims[at(*axis, self.x.rank() - 1)].get()?;
            Some(Dim::from(n.max(1).ilog2() as usize))
        };
        let halvings = self.axes.iter().map(|axis| halvings(axis).unwrap_or(Dim::UNKNOWN));
        halvings.fold(Dim::from(0), |sum, n| sum + n) * 5 * (self.x.dims.numel() / 2)
    }
}
impl Kernel for FftC2c<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let FftC2c { x, out, axes, normalization, forward } = self;
        let [tables, buffer] = memory(x, axes);
        with_float!(x, T => cx.scratch::<f64, _>(2 * (tables + 2 * buffer * cx.threads()), |scratch| {
            let (tables, buffers) = scratch.as_chunks_mut::<2>().0.split_at_mut(tables);
            let out = out.inout::<T>(x)?.copied().as_chunks_mut::<2>().0;
            lanes(x, axes).try_for_each(|(_, n, inner)| {
                let factor = normalization.factor(*forward, n);
                let transform = Transform::new(n, *forward, tables);
                let block = (n * inner).max(1);
                cx.try_chunks_mut(out, PART.div_ceil(block) * block, buffers, |_, out, buffers| {
                    let (lane, other) = buffers.split_at_mut(buffers.len() / 2);
                    let (lane, other) = (&mut lane[..Transform::buffer(n)], &mut other[..Transform::buffer(n)]);
                    for block in out.chunks_exact_mut(block) {
                        for i in 0..inner {
                            let x = block[i..].iter().step_by(inner);
                            lane.iter_mut().zip(x).for_each(|(to, x)| *to = x.map(wide));
                            let y = transform.run(lane, other);
                            let out = block[i..].iter_mut().step_by(inner);
                            out.zip(y).for_each(|(out, y)| *out = y.map(|y| T::of(factor * y)));
                        }
                    }
                    Ok(())
                })
            })
        }))
    }

    fn scratch_bytes(&self, threads: usize) -> usize {
        let [tables, buffer] = memory(&self.x, &self.axes);
        let buffers = buffer.saturating_mul(2).saturating_mul(threads);
        tables.saturating_add(buffers).saturating_mul(size_of::<Complex>())
    }
}
impl Composition for FftC2c<Expr> {
    fn compose(&mut self) {
        let rank = self.x.dims().len() as i32 - 1;
        let part = |i: i32| self.x.slice(rank, i, i + 1).squeeze(&[rank]);
        let (mut re, mut im) = (part(0), part(1));
        for axis in &self.axes {
            let axis = at(*axis, rank as usize) as i32;
            let n = re.dim(axis);
            let places = positions(re.builder(), &n);
            let turns = (places.unsqueeze(&[1]) * &places).remainder(&n.number(re.builder()));
            let angles = &(in_dtype(&turns, re.dtype()) * TAU) / &n;
            let factor = match self.normalization {
                FftNormalization::Ortho => Some(in_dtype(&n.number(re.builder()), re.dtype()).rsqrt()),
                by if by.divides(self.forward) => {
                    Some(in_dtype(&n.number(re.builder()), re.dtype()).reciprocal())
                }
                _ => None,
            };
            let scaled = |x: Expr| factor.as_ref().map_or(x.clone(), |factor| &x * factor);
            let (cos, sin) = (scaled(angles.cos()), scaled(angles.sin()));
            let sin = if self.forward { sin } else { sin * -1.0 };
            // The axis becomes the last one, and back.
            let to: Vec<i32> = (0..rank).filter(|other| *other != axis).chain([axis]).collect();
            let back: Vec<i32> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
            let last = |x: &Expr| x.transpose(&to);
            let (x, y) = (last(&re), last(&im));
            re = (x.matmul(&cos) + y.matmul(&sin)).transpose(&back);
            im = (y.matmul(&cos) - x.matmul(&sin)).transpose(&back);
        }
        self.out = stack(&[&re, &im], rank);
    }
}
autobwd::samples!(
    FftC2c,
    [
        fft_c2c(uniform([4, 2]), [0], FftNormalization::Backward, true),
        fft_c2c(uniform([3, 5, 2]), [1], FftNormalization::Backward, false),
        fft_c2c(uniform([3, 4, 2]), [0], FftNormalization::Ortho, true),
        fft_c2c(uniform([2, 3, 4, 2]), [-1, 0], FftNormalization::Ortho, false),
        fft_c2c(uniform([2, 6, 2]), [0, 1], FftNormalization::Forward, true),
        fft_c2c(uniform([17, 2]), [0], FftNormalization::Forward, false),
        fft_c2c(uniform([2, 1, 2]), [1], FftNormalization::Forward, true),
        fft_c2c(uniform([0, 3, 2]), [1], FftNormalization::Ortho, true),
        fft_c2c(uniform([3, 0, 2]), [0], FftNormalization::Backward, true),
        FftC2c { axes: vec![], ..fft_c2c(uniform([3, 2]), [0], FftNormalization::Ortho, true) },
        FftC2c { axes: vec![], ..fft_c2c(uniform([2]), [0], FftNormalization::Ortho, true) },
        fft_c2c(uniform([4, 3]), [0], FftNormalization::Backward, true)
            .fails("`X`: a last dimension of 2, real and imaginary parts, is needed"),
        fft_c2c(uniform([]), [0], FftNormalization::Backward, true)
            .fails("`X`: a last dimension of 2, real and imaginary parts, is needed"),
        fft_c2c(integers_below(9, [4, 2]), [0], FftNormalization::Backward, true)
            .fails("`X`: floating point numbers are needed"),
        fft_c2c(uniform([4, 2]), [1], FftNormalization::Backward, true)
            .fails("attribute `axes`: 1 is no axis of 1 dimension"),
        fft_c2c(uniform([4, 2, 2]), [1, -1], FftNormalization::Backward, true)
            .fails("attribute `axes`: -1 is given twice"),
        fft_c2c(uniform([0, 2]), [0], FftNormalization::Backward, true)
            .fails("`X`: at least one element is needed along axis 0"),
    ]
);

fn fft_c2c<const N: usize>(
    x: Draw,
    axes: [i64; N],
    normalization: FftNormalization,
    forward: bool,
) -> FftC2c<Draw> {
    FftC2c { x, out: out(), axes: axes.to_vec(), normalization, forward }
}

/// The extents before, along and after each axis, in complex numbers.
fn lanes(x: &Buf<'_>, axes: &[i64]) -> impl Iterator<Item = (usize, usize, usize)> {
    let dims = x.dims().split_last().map_or(&[][..], |(_, dims)| dims);
    axes.iter().map(|axis| outer_axis_inner(dims, at(*axis, dims.len())))
}

/// The complex numbers of the longest tables, and of the longest buffer.
fn memory(x: &Buf<'_>, axes: &[i64]) -> [usize; 2] {
    let most = |length: fn(usize) -> usize| lanes(x, axes).map(|(_, n, _)| length(n)).max().unwrap_or(0);
    [most(Transform::tables), most(Transform::buffer)]
}

/// Transforms along axes, in that dtype and shape.
#[track_caller]
pub(super) fn transformed(
    x: &Expr,
    axes: &[i64],
    (normalization, forward): (FftNormalization, bool),
) -> Expr {
    emit(FftC2c { x: x.into(), out: New, axes: axes.to_vec(), normalization, forward }).out
}

/// The number of dimensions of a tensor of complex numbers.
pub(super) fn complex_rank(x: &Meta) -> Result<usize> {
    x.float()?;
    let is_complex = x.dims.last().is_some_and(|pair| pair.agrees(2.into()));
    x.require(is_complex, || "a last dimension of 2, real and imaginary parts, is needed".into())?;
    Ok(x.rank() - 1)
}

/// The axis, which may count from the end.
pub(super) fn at(axis: i64, rank: usize) -> usize {
    if axis < 0 { (axis + rank as i64) as usize } else { axis as usize }
}

/// Checks that axes are different ones of the first dimensions, and not empty.
pub(super) fn different_axes(x: &Meta, rank: usize, axes: &[i64]) -> Result<()> {
    let mut found = vec![];
    for axis in axes {
        if !(-(rank as i64)..rank as i64).contains(axis) {
            let dimensions = if rank == 1 { "dimension" } else { "dimensions" };
            return Err(Error::attr("axes", format!("{axis} is no axis of {rank} {dimensions}")));
        }
        let at = at(*axis, rank);
        if found.contains(&at) {
            return Err(Error::attr("axes", format!("{axis} is given twice")));
        }
        x.require(x.dims[at].get() != Some(0), || {
            format!("at least one element is needed along axis {axis}")
        })?;
        found.push(at);
    }
    Ok(())
}

/// `dx` is the transform of `dout` in the other direction, with the same factor.
#[derive(Debug)]
pub struct FftC2cGrad;
impl GradRule<FftC2c> for FftC2cGrad {
    fn emit(fwd: &FftC2c, g: &mut GradCx<'_>) {
        if let Some(out) = g.wanted(fwd.x) {
            let (axes, normalization) = (fwd.axes.clone(), fwd.normalization.flipped());
            g.push(FftC2c { x: g.grad(fwd.out), out, axes, normalization, forward: !fwd.forward });
        }
    }
}
