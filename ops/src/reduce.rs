//! Sums and means over dimensions of one tensor.

use autobwd::{
    Buf, Cx, DType, Dim, Dims, Error, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*,
    register_op, with_float,
};

use crate::common::{PART, Real, pieces};

/// Mean of all elements: `out = Σ x / n`.
#[register_op(grad = MeanGrad)]
pub struct Mean<V = Var> {
    /// Any shape; the mean of nothing is NaN.
    #[input]
    pub x: V,
    /// A scalar, `[]`.
    #[output]
    pub out: V,
}
impl Infer for Mean<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.out.set(self.x.dtype, []);
        Ok(())
    }
}
impl Kernel for Mean<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            self.out.slice_mut()?.fill(T::of(total(cx, x) / x.len() as f64));
            Ok(())
        })
    }
}
autobwd::samples!(
    Mean,
    [
        Mean { x: uniform([2, 3, 4]), out: out() },
        Mean { x: uniform([11]), out: out() },
        Mean { x: uniform([]), out: out() },
    ]
);

/// `dx = dout / n` everywhere.
#[register_op(grad = MeanGradGrad)]
pub struct MeanGrad<V = Var> {
    /// Input of the forward operator.
    #[input(shape_only)]
    pub x: V,
    /// Gradient of the mean, one element.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: V,
}
impl Infer for MeanGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dout.same_dtype(&self.x)?;
        if !self.dout.dims.numel().agrees(1.into()) {
            return Err(self.dout.wrong("one element is needed"));
        }
        self.dx.like(&self.x);
        Ok(())
    }
}
impl Kernel for MeanGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let dx = self.dx.slice_mut()?;
            let n = T::of(dx.len() as f64);
            self.dout.slice::<T>()?.iter().for_each(|dout| dx.fill(dout / n));
            Ok(())
        })
    }
}

/// `ddout = mean(ddx)`.
pub struct MeanGradGrad;
impl GradRule<MeanGrad> for MeanGradGrad {
    fn emit(fwd: &MeanGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            g.push(Mean { x: ddx, out: ddout });
        }
    }
}

/// Sum over dimensions: `out = Σ x`.
#[register_op(grad = ReduceSumGrad)]
pub struct ReduceSum<V = Var> {
    /// Any shape; the sum of nothing is 0.
    #[input]
    pub x: V,
    /// `x` without the dimensions that are summed over; with `keep_dim` they are 1.
    #[output]
    pub out: V,
    /// The dimensions to sum over, negative ones from behind; none means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Sum over all dimensions, whatever `dim` says.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`, or −1, which means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As `in_dtype`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceSum<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        same_dtypes(&self.x, self.in_dtype, self.out_dtype)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for ReduceSum<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
            cut.reduce::<T>(cx, self.x.slice()?, self.out.slice_mut()?, 1.0);
            Ok(())
        })
    }
}
autobwd::samples!(
    ReduceSum,
    [
        ReduceSum {
            in_dtype: Some(DType::F64),
            out_dtype: Some(DType::F64),
            ..reduce_sum(uniform([2, 3]).of(DType::F64), &[0], false, false)
        },
        reduce_sum(uniform([2, 3, 4]), &[0], false, false),
        reduce_sum(uniform([2, 3, 4]), &[-1], true, false),
        reduce_sum(uniform([2, 3, 4]), &[2, 0], false, false),
        reduce_sum(uniform([2, 3, 4]), &[1], true, false),
        reduce_sum(uniform([2, 3, 4]), &[1, -1], false, false),
        reduce_sum(uniform([2, 3, 4, 5]), &[0, 2], false, false),
        reduce_sum(uniform([2, 3, 4, 5]), &[1, 3], true, false),
        reduce_sum(uniform([2, 3, 1, 4]), &[0, 2], false, false),
        reduce_sum(uniform([3, 70]), &[0], false, false),
        reduce_sum(uniform([2, 3]), &[], false, false),
        reduce_sum(uniform([2, 3]), &[1], true, true),
        reduce_sum(uniform([]), &[], false, false),
        reduce_sum(uniform([0, 3]), &[0], false, false),
        reduce_sum(uniform([0, 3]), &[1], false, false),
        Sample::fails(reduce_sum(uniform([2, 3]), &[2], false, false), "attribute `dim` = 2"),
        Sample::fails(
            reduce_sum(uniform([2, 3]), &[1, -1], false, false),
            "attribute `dim`: -1 is given twice"
        ),
    ]
);

fn reduce_sum(x: Draw, dim: &[i32], keep_dim: bool, reduce_all: bool) -> ReduceSum<Draw> {
    ReduceSum { x, out: out(), dim: dim.to_vec(), keep_dim, reduce_all, in_dtype: None, out_dtype: None }
}

/// `dx = dout`, repeated over the dimensions that were summed over.
#[register_op(grad = ReduceSumGradGrad)]
pub struct ReduceSumGrad<V = Var> {
    /// Input of the forward operator.
    #[input(shape_only)]
    pub x: V,
    /// Gradient of the sum.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: V,
    /// As in `reduce_sum`.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// As in `reduce_sum`.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// As in `reduce_sum`.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// As in `reduce_sum`.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As in `reduce_sum`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceSumGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        infer_grad(dims, &self.x, &self.dout, &mut self.dx)
    }
}
impl Kernel for ReduceSumGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
            cut.spread::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?, 1.0);
            Ok(())
        })
    }
}

/// `ddout = reduce_sum(ddx)`.
pub struct ReduceSumGradGrad;
impl GradRule<ReduceSumGrad> for ReduceSumGradGrad {
    fn emit(fwd: &ReduceSumGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            let ReduceSumGrad { keep_dim, reduce_all, in_dtype, out_dtype, .. } = *fwd;
            let dim = fwd.dim.clone();
            g.push(ReduceSum { x: ddx, out: ddout, dim, keep_dim, reduce_all, in_dtype, out_dtype });
        }
    }
}

/// Mean over dimensions: `out = Σ x / n`.
#[register_op(grad = ReduceMeanGrad)]
pub struct ReduceMean<V = Var> {
    /// Any shape; the mean of nothing is NaN.
    #[input]
    pub x: V,
    /// `x` without the dimensions that the mean is taken over; with `keep_dim` they are 1.
    #[output]
    pub out: V,
    /// The dimensions to take the mean over, negative ones from behind; none means all.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Take the mean over all dimensions, whatever `dim` says.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`, or −1, which means the same.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As `in_dtype`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceMean<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        same_dtypes(&self.x, self.in_dtype, self.out_dtype)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for ReduceMean<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
            cut.reduce::<T>(cx, self.x.slice()?, self.out.slice_mut()?, cut.terms as f64);
            Ok(())
        })
    }
}
autobwd::samples!(
    ReduceMean,
    [
        ReduceMean {
            in_dtype: Some(DType::F64),
            out_dtype: Some(DType::F64),
            ..reduce_mean(uniform([2, 3]).of(DType::F64), &[0], false, false)
        },
        reduce_mean(uniform([2, 3, 4]), &[0], false, false),
        reduce_mean(uniform([2, 3, 4]), &[-1], true, false),
        reduce_mean(uniform([2, 3, 4]), &[1], false, false),
        reduce_mean(uniform([2, 3, 4]), &[0, 2], true, false),
        reduce_mean(uniform([2, 3]), &[0], false, true),
        reduce_mean(uniform([2, 3]), &[], true, false),
        Sample::fails(reduce_mean(uniform([2, 3]), &[-3], false, false), "attribute `dim` = -3"),
    ]
);

fn reduce_mean(x: Draw, dim: &[i32], keep_dim: bool, reduce_all: bool) -> ReduceMean<Draw> {
    ReduceMean { x, out: out(), dim: dim.to_vec(), keep_dim, reduce_all, in_dtype: None, out_dtype: None }
}

/// `dx = dout / n`, repeated over the dimensions that the mean was taken over.
#[register_op(grad = ReduceMeanGradGrad)]
pub struct ReduceMeanGrad<V = Var> {
    /// Input of the forward operator.
    #[input(shape_only)]
    pub x: V,
    /// Gradient of the mean.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: V,
    /// As in `reduce_mean`.
    #[attr(default = [0])]
    pub dim: Vec<i32>,
    /// As in `reduce_mean`.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// As in `reduce_mean`.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// As in `reduce_mean`.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// As in `reduce_mean`.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}
impl Infer for ReduceMeanGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reduced_dims(&self.x, &self.dim, self.reduce_all, self.keep_dim)?;
        infer_grad(dims, &self.x, &self.dout, &mut self.dx)
    }
}
impl Kernel for ReduceMeanGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let cut = Reduction::new(&self.x, &self.dim, self.reduce_all);
            cut.spread::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?, cut.terms as f64);
            Ok(())
        })
    }
}

/// `ddout = reduce_mean(ddx)`.
pub struct ReduceMeanGradGrad;
impl GradRule<ReduceMeanGrad> for ReduceMeanGradGrad {
    fn emit(fwd: &ReduceMeanGrad, g: &mut GradCx<'_>) {
        let ddx = g.grad(fwd.dx);
        if let Some(ddout) = g.wanted(fwd.dout) {
            let ReduceMeanGrad { keep_dim, reduce_all, in_dtype, out_dtype, .. } = *fwd;
            let dim = fwd.dim.clone();
            g.push(ReduceMean { x: ddx, out: ddout, dim, keep_dim, reduce_all, in_dtype, out_dtype });
        }
    }
}

/// Most dimensions that can be reduced: one bit each.
const MAX_RANK: usize = 64;

/// Dimensions of the result.
fn reduced_dims(x: &Meta, dim: &[i32], all: bool, keep: bool) -> Result<Dims> {
    x.float()?;
    if x.rank() > MAX_RANK {
        return Err(x.wrong(&format!("at most {MAX_RANK} dimensions are possible")));
    }
    let mut reduced = 0u64;
    for axis in dim {
        // As in NumPy, a scalar may be reduced along its first or last axis.
        if x.rank() == 0 && matches!(axis, -1 | 0) {
            continue;
        }
        let bit = 1 << x.axis("dim", i64::from(*axis))?;
        if reduced & bit != 0 {
            return Err(Error::attr("dim", format!("{axis} is given twice")));
        }
        reduced |= bit;
    }
    let all = all || dim.is_empty();
    let result = x.dims.iter().enumerate().filter_map(|(axis, n)| match all || reduced >> axis & 1 == 1 {
        true => keep.then_some(Dim::from(1)),
        false => Some(*n),
    });
    Ok(result.collect())
}

fn same_dtypes(x: &Meta, in_dtype: Option<DType>, out_dtype: Option<DType>) -> Result<()> {
    match in_dtype.into_iter().chain(out_dtype).find(|dtype| *dtype != x.dtype) {
        Some(dtype) => {
            Err(x.wrong(&format!("{dtype} is needed, as the attributes `in_dtype` and `out_dtype` say")))
        }
        None => Ok(()),
    }
}

fn infer_grad(dims: Dims, x: &Meta, dout: &Meta, dx: &mut Meta) -> Result<()> {
    dout.same_dtype(x)?;
    if !dout.dims.agrees(&dims) {
        return Err(dout.wrong(&format!("the shape of the forward result, {dims}, is needed")));
    }
    dx.like(x);
    Ok(())
}

/// Partial sums of a whole tensor.
const PARTIAL_SUMS: usize = 256;
/// Columns that are summed at a time.
const COLUMNS: usize = 64;

/// A tensor as blocks of `inner` contiguous elements, either all summed or all kept, below the outer dimensions.
struct Reduction<'a> {
    outer: &'a [usize],
    inner: usize,
    inner_reduced: bool,
    /// One bit a dimension.
    reduced: u64,
    /// Elements that go into one of the result.
    terms: usize,
}

impl<'a> Reduction<'a> {
    fn new(x: &'a Buf<'_>, dim: &[i32], all: bool) -> Reduction<'a> {
        let none = if all || dim.is_empty() { u64::MAX } else { 0 };
        let dim = if x.dims().is_empty() { &[][..] } else { dim };
        let reduced = dim.iter().fold(none, |bits, axis| bits | 1 << x.axis(i64::from(*axis)));
        let is_reduced = |axis: usize| reduced >> axis & 1 == 1;
        let dims = x.dims();
        // A dimension of 1 can pass for both.
        let mut sized = (0..dims.len()).rev().filter(|axis| dims[*axis] != 1);
        let inner_reduced = sized.next().is_none_or(is_reduced);
        let outer = sized.find(|axis| is_reduced(*axis) != inner_reduced).map_or(0, |axis| axis + 1);
        let terms = (0..dims.len()).filter(|axis| is_reduced(*axis)).map(|axis| dims[axis]).product();
        let (outer, inner) = dims.split_at(outer);
        Reduction { outer, inner: inner.iter().product(), inner_reduced, reduced, terms }
    }

    /// Outer dimensions, the last first, and whether they are reduced.
    fn outer(&self) -> impl Iterator<Item = (usize, bool)> {
        self.outer.iter().enumerate().rev().map(|(axis, n)| (*n, self.reduced >> axis & 1 == 1))
    }

    /// Where in the tensor the block is that has index `i` among the kept outer dimensions, or among the reduced ones,
    /// and 0 in the others.
    fn block(&self, mut i: usize, reduced: bool) -> usize {
        let (mut at, mut stride) = (0, self.inner);
        for (n, is_reduced) in self.outer() {
            if is_reduced == reduced {
                // Divisions cost more than all else; there is none for the first dimension.
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

    /// Index of a block among the kept outer dimensions.
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

    /// `out = Σ x / divisor`.
    fn reduce<T: Real>(&self, cx: &Cx, x: &[T], out: &mut [T], divisor: f64) {
        if let [out] = out {
            *out = T::of(total(cx, x) / divisor);
        } else if x.is_empty() {
            out.fill(T::of(0.0 / divisor));
        } else if self.inner_reduced {
            let size = (PART / self.terms).max(1);
            cx.chunks_mut(out, size, |part, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    let x = &x[self.block(part * size + i, false)..];
                    let blocks =
                        (0..self.terms / self.inner).map(|i| sum(&x[self.block(i, true)..][..self.inner]));
                    *out = T::of(blocks.sum::<f64>() / divisor);
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

    /// `dx = dout / divisor`, repeated over what was reduced.
    fn spread<T: Real>(&self, cx: &Cx, dout: &[T], dx: &mut [T], divisor: f64) {
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
}

/// The sum of all elements, shared between workers.
fn total<T: Real>(cx: &Cx, x: &[T]) -> f64 {
    let size = x.len().div_ceil(PARTIAL_SUMS).max(PART);
    let mut sums = [0.0; PARTIAL_SUMS];
    let sums = &mut sums[..x.len().div_ceil(size)];
    cx.chunks_mut(sums, 1, |part, out| out.fill(sum(&x[part * size..][..size.min(x.len() - part * size)])));
    sums.iter().sum()
}

/// Several sums at once are faster than one, and more exact.
fn sum<T: Real>(x: &[T]) -> f64 {
    let (blocks, rest) = x.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += (*x).into());
    }
    sums.iter().sum::<f64>() + rest.iter().map(|x| (*x).into()).sum::<f64>()
}
