//! Tiling of a tensor for reductions over some of its dimensions.

use autobwd::{
    Buf, Cx, DType, Dims, Error, Meta, Result,
    op::with_float,
    tensor::{Dim, Shape},
};

use super::ReduceAttrs;
use crate::kernel_helpers::{ConvertElement, KernelFloat, PART, add_up, convert, pieces};

/// Maximum rank: one bit for each dimension.
const MAX_RANK: usize = 64;

impl ReduceAttrs {
    /// The shape rule: dimensions and dtype of the result.
    pub(super) fn infer(&self, x: &Meta, out: &mut Meta) -> Result<()> {
        self.infer_as(x, x.dtype, out)
    }

    /// The shape rule of an operator whose result has the dtype `default` unless `out_dtype` says another.
    pub(super) fn infer_as(&self, x: &Meta, default: DType, out: &mut Meta) -> Result<()> {
        let axes = self.dim.iter().map(|axis| (*axis).into());
        let dims = result_dims(x, axes, self.is_full(), self.keep_dim)?;
        out.set(self.result_dtype(x, default)?, dims);
        Ok(())
    }

    /// The dtype of the result, to which `x` is converted first.
    fn result_dtype(&self, x: &Meta, default: DType) -> Result<DType> {
        if let Some(dtype) = self.in_dtype.filter(|dtype| *dtype != x.dtype) {
            return Err(x.wrong(&format!("{dtype} is needed, as attribute `in_dtype` says")));
        }
        let dtype = self.out_dtype.unwrap_or(default);
        if dtype.is_float() || dtype.is_signed_integer() {
            return Ok(dtype);
        }
        let dtypes = [DType::F32, DType::F64, DType::I32, DType::I64].map(DType::name).join(", ");
        match self.out_dtype {
            Some(dtype) => Err(Error::attr("out_dtype", format!("{dtype} is not one of {dtypes}"))),
            None => Err(x.wrong(&format!("attribute `out_dtype` is needed, {dtypes}"))),
        }
    }

    /// Whether all dimensions are reduced.
    pub(super) fn is_full(&self) -> bool {
        self.reduce_all || self.dim.is_empty()
    }

    /// The reduction of `x` for a kernel.
    pub(super) fn cut<'a>(&self, x: &'a Buf<'_>) -> ReductionTiling<'a> {
        cut(x, self.dim.iter().map(|axis| (*axis).into()), self.is_full())
    }

    /// The full shape with 1 for reduced dimensions.
    pub(super) fn ones_where_reduced(&self, full: &[usize]) -> Shape {
        let rank = full.len() as i32;
        let is_reduced =
            |axis: i32| self.is_full() || self.dim.iter().any(|d| *d == axis || *d + rank == axis);
        (0..rank).zip(full).map(|(axis, n)| if is_reduced(axis) { 1 } else { *n }).collect()
    }
}

/// Dimensions of the result of a reduction of these dimensions of `x`, which attribute `dim` names, or of all.
pub(super) fn result_dims(x: &Meta, axes: impl Iterator<Item = i64>, all: bool, keep: bool) -> Result<Dims> {
    x.require(x.rank() <= MAX_RANK, || format!("at most {MAX_RANK} dimensions are possible"))?;
    let mut reduced = 0u64;
    for axis in axes {
        // As in NumPy, a scalar may be reduced along its first or last axis.
        if x.rank() == 0 && matches!(axis, -1 | 0) {
            continue;
        }
        let bit = 1 << x.axis("dim", axis)?;
        if reduced & bit != 0 {
            return Err(Error::attr("dim", format!("{axis} is given twice")));
        }
        reduced |= bit;
    }
    let reduced = if all { u64::MAX } else { reduced };
    let result = x.dims.iter().enumerate().filter_map(|(axis, n)| match reduced >> axis & 1 == 1 {
        true => keep.then_some(Dim::from(1)),
        false => Some(*n),
    });
    Ok(result.collect())
}

/// The reduction of these dimensions of `x`, or of all.
pub(super) fn cut<'a>(x: &'a Buf<'_>, axes: impl Iterator<Item = i64>, all: bool) -> ReductionTiling<'a> {
    let none = if all { u64::MAX } else { 0 };
    let axes = axes.filter(|_| !all && !x.dims().is_empty());
    ReductionTiling::of(x.dims(), axes.fold(none, |bits, axis| bits | 1 << x.axis(axis)))
}

/// Computes a gradient of `x` in the dtype of the result: `work` gets `x` and `dx` in that dtype.
pub(super) fn with_result_dtype<T: KernelFloat + ConvertElement>(
    cx: &Cx,
    x: &Buf<'_>,
    dx: &mut Buf<'_>,
    work: impl FnOnce(&[T], &mut [T]) -> Result<()>,
) -> Result<()> {
    let converted = if x.dtype() == T::DTYPE { 0 } else { 2 * x.numel() };
    cx.scratch(converted, |converted| in_result_dtype(cx, x, dx, converted, work))
}

/// [`with_result_dtype`] with memory for `x` and `dx` in that dtype, if it is another one.
pub(super) fn in_result_dtype<T: KernelFloat + ConvertElement>(
    cx: &Cx,
    x: &Buf<'_>,
    dx: &mut Buf<'_>,
    converted: &mut [T],
    work: impl FnOnce(&[T], &mut [T]) -> Result<()>,
) -> Result<()> {
    if x.dtype() == T::DTYPE {
        return work(x.slice()?, dx.slice_mut()?);
    }
    let (from, to) = converted.split_at_mut(x.numel());
    convert(cx, x, from)?;
    work(from, to)?;
    with_float!(dx, Y => {
        let pairs = dx.slice_mut::<Y>()?.iter_mut().zip(to);
        pairs.for_each(|(dx, to)| *dx = Y::narrow(to.widen()));
        Ok(())
    })
}

/// Element types of reductions.
pub(super) trait Reduce: ConvertElement + PartialOrd {
    /// Sums; integers wrap around.
    fn sum(cut: &ReductionTiling<'_>, cx: &Cx, x: &[Self], out: &mut [Self]);
    /// Products; integers wrap around.
    fn product(cut: &ReductionTiling<'_>, cx: &Cx, x: &[Self], out: &mut [Self]);
    /// Selects the `better` of the terms.
    fn pick(
        cut: &ReductionTiling<'_>,
        cx: &Cx,
        x: &[Self],
        out: &mut [Self],
        better: impl Fn(Self, Self) -> bool + Sync,
    );
}
macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Reduce for $t {
            fn sum(cut: &ReductionTiling<'_>, cx: &Cx, x: &[$t], out: &mut [$t]) {
                cut.reduce(cx, x, out, 1.0);
            }
            fn product(cut: &ReductionTiling<'_>, cx: &Cx, x: &[$t], out: &mut [$t]) {
                cut.fold(cx, out, |i| cut.terms_of(i).map(|at| f64::from(x[at])).product::<f64>() as $t);
            }
            fn pick(
                cut: &ReductionTiling<'_>,
                cx: &Cx,
                x: &[$t],
                out: &mut [$t],
                better: impl Fn($t, $t) -> bool + Sync,
            ) {
                cut.pick(cx, x, out, better);
            }
        }
    )*};
}
floats!(f32, f64);
macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Reduce for $t {
            fn sum(cut: &ReductionTiling<'_>, cx: &Cx, x: &[$t], out: &mut [$t]) {
                cut.fold(cx, out, |i| cut.terms_of(i).fold(0, |sum: $t, at| sum.wrapping_add(x[at])));
            }
            fn product(cut: &ReductionTiling<'_>, cx: &Cx, x: &[$t], out: &mut [$t]) {
                cut.fold(cx, out, |i| cut.terms_of(i).fold(1, |product: $t, at| product.wrapping_mul(x[at])));
            }
            fn pick(
                cut: &ReductionTiling<'_>,
                cx: &Cx,
                x: &[$t],
                out: &mut [$t],
                better: impl Fn($t, $t) -> bool + Sync,
            ) {
                let choose = |best, x| if better(x, best) { x } else { best };
                // The shape rule has rejected empty reductions.
                cut.fold(cx, out, |i| cut.terms_of(i).map(|at| x[at]).reduce(choose).unwrap_or_default());
            }
        }
    )*};
}
integers!(i32, i64);

/// Partial sums of all elements of a tensor.
const PARTIAL_SUMS: usize = 256;
/// Columns that are summed at a time.
const COLUMNS: usize = 64;

/// A tensor as blocks of `inner` contiguous elements, either all reduced or all kept, below the outer dimensions.
pub(crate) struct ReductionTiling<'a> {
    outer: &'a [usize],
    inner: usize,
    inner_reduced: bool,
    /// One bit for each dimension.
    reduced: u64,
    /// Number of terms of each element of the result.
    pub(super) terms: usize,
}

impl<'a> ReductionTiling<'a> {
    /// Reduces the dimensions whose bits are set.
    pub(crate) fn of(dims: &'a [usize], reduced: u64) -> ReductionTiling<'a> {
        let is_reduced = |axis: usize| reduced >> axis & 1 == 1;
        // A dimension of size 1 counts as either.
        let mut sized = (0..dims.len()).rev().filter(|axis| dims[*axis] != 1);
        let inner_reduced = sized.next().is_none_or(is_reduced);
        let outer = sized.find(|axis| is_reduced(*axis) != inner_reduced).map_or(0, |axis| axis + 1);
        let terms = (0..dims.len()).filter(|axis| is_reduced(*axis)).map(|axis| dims[axis]).product();
        let (outer, inner) = dims.split_at(outer);
        ReductionTiling { outer, inner: inner.iter().product(), inner_reduced, reduced, terms }
    }

    /// Outer dimensions, the last first, and whether each is reduced.
    fn outer(&self) -> impl Iterator<Item = (usize, bool)> {
        self.outer.iter().enumerate().rev().map(|(axis, n)| (*n, self.reduced >> axis & 1 == 1))
    }

    /// Offset of the block with index `i` among the kept (or `reduced`) outer dimensions, and 0 in the others.
    fn block(&self, mut i: usize, reduced: bool) -> usize {
        let (mut at, mut stride) = (0, self.inner);
        for (n, is_reduced) in self.outer() {
            if is_reduced == reduced {
                // Divisions dominate the cost; the first dimension needs none.
                if i < n {
                    return at + i * stride;
                }
                at += i % n * stride;
                i /= n;
            }
            stride *= n;
        }
        at
    }

    /// Index of a block's position among the kept outer dimensions.
    fn kept(&self, mut block: usize) -> usize {
        let (mut at, mut stride) = (0, 1);
        for (n, is_reduced) in self.outer() {
            if !is_reduced {
                at += block % n * stride;
                stride *= n;
            }
            block /= n;
        }
        at
    }

    /// Offsets of the terms of element `i` of the result.
    pub(super) fn terms_of(&self, i: usize) -> impl Iterator<Item = usize> + Clone + '_ {
        let (run, start) = match self.inner_reduced {
            true => (self.inner, self.block(i, false)),
            false => (1, self.block(i / self.inner, false) + i % self.inner),
        };
        (0..self.terms).map(move |k| start + self.block(k / run, true) + k % run)
    }

    /// Computes each element of the result from its index.
    pub(super) fn fold<T: Send>(&self, cx: &Cx, out: &mut [T], f: impl Fn(usize) -> T + Sync) {
        let size = (PART / self.terms.max(1)).max(1);
        cx.chunks_mut(out, size, |part, out| {
            for (i, out) in out.iter_mut().enumerate() {
                *out = f(part * size + i);
            }
        });
    }

    /// `out = Σ x / divisor`.
    pub(crate) fn reduce<T: KernelFloat>(&self, cx: &Cx, x: &[T], out: &mut [T], divisor: f64) {
        if let [out] = out {
            *out = T::of(total(cx, x, |x| x) / divisor);
        } else if x.is_empty() {
            out.fill(T::of(0.0 / divisor));
        } else if self.inner_reduced {
            let size = (PART / self.terms).max(1);
            cx.chunks_mut(out, size, |part, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    let x = &x[self.block(part * size + i, false)..];
                    let blocks = (0..self.terms / self.inner)
                        .map(|i| sum(&x[self.block(i, true)..][..self.inner], |x| x));
                    *out = T::of(add_up(blocks) / divisor);
                }
            });
        } else {
            let size = (PART / self.terms).next_multiple_of(COLUMNS).max(COLUMNS);
            cx.chunks_mut(out, size, |part, out| {
                pieces(out, part * size, self.inner, COLUMNS, |row, column, out| {
                    let x = &x[self.block(row, false) + column..];
                    let mut sums = [0.0; COLUMNS];
                    for i in 0..self.terms {
                        let x = &x[self.block(i, true)..][..out.len()];
                        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += (*x).into());
                    }
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::of(sum / divisor));
                });
            });
        }
    }

    /// `dx = dout / divisor`, broadcast over the reduced dimensions.
    pub(super) fn spread<T: KernelFloat>(&self, cx: &Cx, dout: &[T], dx: &mut [T], divisor: f64) {
        let divisor = T::of(divisor);
        cx.chunks_mut(dx, PART, |part, dx| {
            pieces(dx, part * PART, self.inner, PART, |block, column, dx| {
                let kept = self.kept(block);
                if self.inner_reduced {
                    dx.fill(dout[kept] / divisor);
                } else {
                    let dout = &dout[kept * self.inner + column..];
                    dx.iter_mut().zip(dout).for_each(|(dx, dout)| *dx = *dout / divisor);
                }
            });
        });
    }

    /// Selects the `better` of the terms; NaN wins.
    pub(super) fn pick<T: KernelFloat>(
        &self,
        cx: &Cx,
        x: &[T],
        out: &mut [T],
        better: impl Fn(T, T) -> bool + Sync,
    ) {
        let choose = |best: T, x: T| if better(x, best) || x.is_nan() { x } else { best };
        if self.inner_reduced {
            let size = (PART / self.terms.max(1)).max(1);
            cx.chunks_mut(out, size, |part, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    let x = &x[self.block(part * size + i, false)..];
                    let blocks = (0..self.terms / self.inner)
                        .map(|i| best(&x[self.block(i, true)..][..self.inner], choose));
                    *out = blocks.fold(x[0], choose);
                }
            });
        } else {
            let size = (PART / self.terms.max(1)).next_multiple_of(COLUMNS).max(COLUMNS);
            cx.chunks_mut(out, size, |part, out| {
                pieces(out, part * size, self.inner, COLUMNS, |row, column, out| {
                    let x = &x[self.block(row, false) + column..];
                    out.copy_from_slice(&x[..out.len()]);
                    for i in 1..self.terms {
                        out.iter_mut()
                            .zip(&x[self.block(i, true)..])
                            .for_each(|(out, x)| *out = choose(*out, *x));
                    }
                });
            });
        }
    }

    /// `dx = dout` where `x` is the selected term, else 0.
    pub(super) fn put_back<T: KernelFloat>(&self, cx: &Cx, x: &[T], results: (&[T], &[T]), dx: &mut [T]) {
        self.zip_back(cx, x, results, dx, |x, out, dout| if x == out { dout } else { T::ZERO });
    }

    /// `share = dout / n` for the `n` terms that equal the result.
    pub(super) fn share<T: KernelFloat>(
        &self,
        cx: &Cx,
        x: &[T],
        (out, dout): (&[T], &[T]),
        shares: &mut [T],
    ) {
        if let ([share], [out], [dout]) = (&mut *shares, out, dout) {
            let out: f64 = (*out).into();
            *share = *dout / T::of(total(cx, x, |x| f64::from(x == out)));
        } else if self.inner_reduced {
            self.fold(cx, shares, |i| {
                let x = &x[self.block(i, false)..];
                let equal = |block: usize| {
                    let block = &x[self.block(block, true)..][..self.inner];
                    block.iter().filter(|x| **x == out[i]).count()
                };
                let count: usize = (0..self.terms / self.inner.max(1)).map(equal).sum();
                dout[i] / T::of(count as f64)
            });
        } else {
            let size = (PART / self.terms.max(1)).next_multiple_of(COLUMNS).max(COLUMNS);
            cx.chunks_mut(shares, size, |part, shares| {
                pieces(shares, part * size, self.inner, COLUMNS, |row, column, shares| {
                    let x = &x[self.block(row, false) + column..];
                    let at = row * self.inner + column;
                    let mut counts = [0_u32; COLUMNS];
                    for i in 0..self.terms {
                        let terms = x[self.block(i, true)..].iter().zip(&out[at..][..shares.len()]);
                        counts.iter_mut().zip(terms).for_each(|(n, (x, out))| *n += u32::from(x == out));
                    }
                    let counted = dout[at..].iter().zip(counts);
                    shares
                        .iter_mut()
                        .zip(counted)
                        .for_each(|(share, (dout, n))| *share = *dout / T::of(n.into()));
                });
            });
        }
    }

    /// `dx = f(x, out, dout)`, with the results broadcast over the reduced dimensions.
    pub(super) fn zip_back<T: KernelFloat>(
        &self,
        cx: &Cx,
        x: &[T],
        (out, dout): (&[T], &[T]),
        dx: &mut [T],
        f: impl Fn(T, T, T) -> T + Sync,
    ) {
        cx.chunks_mut(dx, PART, |part, dx| {
            pieces(dx, part * PART, self.inner, PART, |block, column, dx| {
                let kept = self.kept(block);
                let x = &x[block * self.inner + column..];
                if self.inner_reduced {
                    dx.iter_mut().zip(x).for_each(|(dx, x)| *dx = f(*x, out[kept], dout[kept]));
                } else {
                    let at = kept * self.inner + column;
                    let results = out[at..].iter().zip(&dout[at..]);
                    dx.iter_mut()
                        .zip(x)
                        .zip(results)
                        .for_each(|((dx, x), (out, dout))| *dx = f(*x, *out, *dout));
                }
            });
        });
    }
}

/// The best of at least one element; several accumulators are faster than one.
fn best<T: KernelFloat>(x: &[T], choose: impl Fn(T, T) -> T) -> T {
    let (blocks, rest) = x.as_chunks::<8>();
    let mut best = [x[0]; 8];
    for block in blocks {
        best.iter_mut().zip(block).for_each(|(best, x)| *best = choose(*best, *x));
    }
    best.iter().chain(rest).fold(x[0], |best, x| choose(best, *x))
}

/// The sum of `f(x)` over all elements, shared between threads.
pub(crate) fn total<T: KernelFloat>(cx: &Cx, x: &[T], f: impl Fn(f64) -> f64 + Copy + Sync) -> f64 {
    let size = x.len().div_ceil(PARTIAL_SUMS).max(PART);
    let mut sums = [0.0; PARTIAL_SUMS];
    let sums = &mut sums[..x.len().div_ceil(size)];
    let part_of = |part: usize| &x[part * size..][..size.min(x.len() - part * size)];
    cx.chunks_mut(sums, 1, |part, out| out.fill(sum(part_of(part), f)));
    add_up(sums.iter().copied())
}

/// Several accumulators are faster than one, and more exact.
fn sum<T: KernelFloat>(x: &[T], f: impl Fn(f64) -> f64) -> f64 {
    let (blocks, rest) = x.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += f((*x).into()));
    }
    sums.iter().sum::<f64>() + rest.iter().map(|x| f((*x).into())).sum::<f64>()
}
