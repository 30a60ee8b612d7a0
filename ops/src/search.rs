//! `searchsorted` and `histogram`: where numbers are among others.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, New, Result, Var, ZeroGrad,
    check::*, emit, op::with_signed, register_op, tensor::Dim,
};

use crate::{
    Math, concat,
    fill::FillAnyLike,
    index::ScatterNdAdd,
    kernel_helpers::{AnyNumber, ConvertElement},
    math::{all_sizes, filled, in_dtype, like},
    scatter::{GatherNd, TakeAlongAxis},
};

/// Where numbers belong in a sorted sequence: `out` is the number of its elements below each value.
///
/// Values that are not finite belong after all elements, as in the reference. The result for a sequence that is not
/// sorted is not specified.
#[register_op(grad = ZeroGrad, infallible)]
pub struct Searchsorted<V = Var> {
    /// Sequences of signed integers or floating-point numbers in ascending order, `[.., n]`.
    #[input]
    pub sorted_sequence: V,
    /// Values of the same dtype: any shape for one sequence `[n]`, else `[.., m]` with as many for each sequence.
    #[input]
    pub values: V,
    /// Positions from 0 to `n`, in the shape of `values`.
    #[output]
    pub out: V,
    /// Compute int32, not int64.
    #[attr("out_int32", default = false)]
    pub out_int32: bool,
    /// Count the elements that equal a value, too.
    #[attr(default = false)]
    pub right: bool,
}
impl Infer for Searchsorted<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (sequence, values) = (&self.sorted_sequence, &self.values);
        sequence.signed()?;
        values.same_dtype(sequence)?;
        sequence.require(sequence.rank() > 0, || "at least one dimension is needed".into())?;
        let mut dims = sequence.dims.clone();
        let last = dims.len() - 1;
        dims[last] = Dim::UNKNOWN;
        let fits = sequence.rank() == 1 || values.dims.agrees(&dims);
        values.require(fits, || format!("dimensions {dims} are needed"))?;
        self.out.set(if self.out_int32 { DType::I32 } else { DType::I64 }, values.dims.clone());
        Ok(())
    }
}
impl Kernel for Searchsorted<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        if self.out_int32 { self.search::<i32>() } else { self.search::<i64>() }
    }
}
impl Searchsorted<Buf<'_>> {
    fn search<N: ConvertElement>(&mut self) -> Result<()> {
        let (n, right) = (self.sorted_sequence.dims().last().copied().unwrap_or(0), self.right);
        let each = match self.sorted_sequence.dims() {
            [_] => self.values.numel(),
            _ => self.values.dims().last().copied().unwrap_or(0),
        };
        let out = self.out.slice_mut::<N>()?;
        with_signed!(self.values, T => {
            let (sequences, values) = (self.sorted_sequence.slice::<T>()?, self.values.slice::<T>()?);
            let zero = T::default();
            for (i, (out, value)) in out.iter_mut().zip(values).enumerate() {
                let sequence = &sequences[i / each * n..][..n];
                let mut place = 0;
                for step in (0..steps(n)).rev().map(|power| 1 << power) {
                    let last = sequence.get(place + step - 1);
                    place += step * usize::from(last.is_some_and(|x| x < value || (right && x == value)));
                }
                // The product of 0 and a number that is not finite is NaN.
                place = if *value * zero == zero { place } else { n };
                *out = N::narrow(AnyNumber::Int(place as i64));
            }
            Ok(())
        })
    }
}
impl Composition for Searchsorted<Expr> {
    fn compose(&mut self) {
        let (sequence, values) = (&self.sorted_sequence, &self.values);
        let zero = emit(FillAnyLike { x: values.into(), out: New, value: 0.0, dtype: Some(DType::I64) }).out;
        let n = sequence.dim(-1).number(values.builder());
        let end = &zero + if values.dims().is_empty() { n.reshape(&[]) } else { n };
        // An element after the last one, which is read in its place.
        let mut one = all_sizes(sequence);
        one.splice(one.len() - 1.., [1.into()]);
        let after = filled(values.builder(), sequence.dtype(), "0", &one);
        let elements = concat(&[sequence, &after], -1);
        let read = |index: &Expr| match sequence.dims().len() {
            1 => emit(GatherNd { x: (&elements).into(), index: index.unsqueeze(&[-1]).into(), out: New }).out,
            _ => {
                let (input, index) = ((&elements).into(), index.into());
                emit(TakeAlongAxis { input, index, result: New, axis: -1 }).result
            }
        };
        let known = sequence.dim(-1).known().and_then(|n| usize::try_from(n).ok());
        let mut place = zero;
        for step in (0..known.map_or(DIM_BITS, steps)).rev().map(|power| (1_i64 << power) as f64) {
            let next = &place + step;
            let last = read(&(&next - 1.0).minimum(&end));
            let is_before = if self.right { last.less_equal(values) } else { last.less_than(values) };
            let is_passed = is_before.logical_and(&next.less_equal(&end));
            place = is_passed.where_cond(&next, &place);
        }
        if values.dtype().is_float() {
            place = values.isfinite().where_cond(&place, &end);
        }
        self.out = in_dtype(&place, if self.out_int32 { DType::I32 } else { DType::I64 });
    }
}

/// Bits of the longest possible dimension.
const DIM_BITS: u32 = 31;

/// The number of steps of a search among `n` elements, each half as long as the one before.
fn steps(n: usize) -> u32 {
    usize::BITS - n.leading_zeros()
}

autobwd::samples!(
    Searchsorted,
    [
        searchsorted(given([4], [-0.5, 0.0, 0.25, 1.0]), uniform([2, 3]), false),
        searchsorted(given([4], [-1.0, 2.0, 2.0, 5.0]), given([5], [2.0, 9.0, -3.0, 5.0, -1.0]), false),
        searchsorted(given([4], [-1.0, 2.0, 2.0, 5.0]), given([5], [2.0, 9.0, -3.0, 5.0, -1.0]), true),
        searchsorted(given([2, 3], [0.0, 1.0, 2.0, -2.0, -1.5, 0.5]), uniform([2, 4]), true),
        searchsorted(
            given([3], [0.0, 1.0, f64::INFINITY]),
            given([3], [f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
            false
        ),
        searchsorted(
            given([3], [1.0, 4.0, 4.0]).of(DType::I32),
            integers_below(6, [3, 2]).of(DType::I32),
            false
        ),
        Searchsorted {
            out_int32: true,
            ..searchsorted(given([3], [1.0, 4.0, 4.0]).of(DType::I64), integers_below(6, [5]), true)
        },
        searchsorted(given([2], [-0.25, 0.5]), uniform([]), false),
        searchsorted(uniform([0]), uniform([3]), false),
        searchsorted(uniform([3]), uniform([0, 2]), false),
        searchsorted(uniform([2, 0]), uniform([2, 3]), false),
        searchsorted(uniform([]), uniform([3]), false)
            .fails("`SortedSequence`: at least one dimension is needed"),
        searchsorted(uniform([2, 3]), uniform([3, 4]), false)
            .fails("`Values`: dimensions [2, -1] are needed"),
        searchsorted(uniform([2]), integers_below(3, [2]), false)
            .fails("`Values`: dtype int64 does not match"),
        searchsorted(integers_below(2, [2]).of(DType::Bool), integers_below(2, [2]).of(DType::Bool), false)
            .fails("`SortedSequence`: signed or floating point numbers are needed"),
    ]
);

fn searchsorted(sorted_sequence: Draw, values: Draw, right: bool) -> Searchsorted<Draw> {
    Searchsorted { sorted_sequence, values, out: out(), out_int32: false, right }
}

/// How many numbers are in each of several intervals of one length from `min` to `max`; the last one includes its end.
///
/// With `min = max`, the intervals go from the smallest to the largest element, or from one below to one above if these
/// are equal. Elements outside of the intervals, and NaN, do not count.
#[register_op(grad = ZeroGrad, composed)]
pub struct Histogram<V = Var> {
    /// Signed integers or floating-point numbers of any shape.
    #[input]
    pub x: V,
    /// `[bins]`, int64.
    #[output]
    pub out: V,
    /// The number of intervals.
    #[attr(default = 100, min = 1)]
    pub bins: i64,
    /// The start of the first interval.
    #[attr(default = 0)]
    pub min: i32,
    /// The end of the last interval.
    #[attr(default = 0)]
    pub max: i32,
}
impl Infer for Histogram<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.signed()?;
        if self.max < self.min {
            let text = format!("at least `min` = {} is needed, not {}", self.min, self.max);
            return Err(Error::attr("max", text));
        }
        self.out.set(DType::I64, [Dim::from(self.bins as usize)].into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Composition for Histogram<Expr> {
    fn compose(&mut self) {
        let (builder, bins) = (self.x.builder(), self.bins);
        let x = self.x.flatten(0, -1);
        if x.dims()[0] == 0 {
            self.out = filled(builder, DType::I64, "0", &[bins.into()]);
            return;
        }
        let x = if x.dtype().is_float() { x } else { x.cast(DType::F64) };
        let number = |n: f64| filled(builder, x.dtype(), &n.to_string(), &[1.into()]);
        let (low, high) = if self.min == self.max {
            let (low, high) = (x.min_keepdim(&[0]), x.max_keepdim(&[0]));
            let apart = low.equal(&high).cast(x.dtype());
            (&low - &apart, high + apart)
        } else {
            (number(self.min.into()), number(self.max.into()))
        };
        let is_inside = x.greater_equal(&low).logical_and(&x.less_equal(&high));
        let bin = (&x - &low) * bins as f64 / (&high - &low);
        // All others count in an interval after the last one.
        let bin =
            is_inside.where_cond(&bin.minimum(&like(&bin, (bins - 1) as f64)), &like(&bin, bins as f64));
        let counts = filled(builder, DType::F64, "0", &[(bins + 1).into()]).into();
        let (index, updates) =
            (bin.cast(DType::I64).unsqueeze(&[1]).into(), like(&x, 1.0).cast(DType::F64).into());
        let counts = emit(ScatterNdAdd { x: counts, index, updates, out: New }).out;
        self.out = counts.slice(0, 0, -1).cast(DType::I64);
    }
}
autobwd::samples!(
    Histogram,
    [
        histogram(given([6], [0.25, 1.25, 2.5, 4.0, -0.5, 0.75]), 4, 0, 4),
        histogram(given([2, 3], [0.125, 1.25, f64::NAN, f64::INFINITY, 3.0, 0.75]), 2, 0, 2),
        histogram(given([2, 3], [-0.125, 1.25, 7.5, 1.5, 3.0, 0.75]), 3, 0, 0),
        histogram(given([4], [2.0; 4]), 5, 3, 3),
        histogram(integers_below(9, [4, 3]), 3, -1, 7),
        histogram(integers_below(9, [7]).of(DType::I32), 4, 0, 0),
        histogram(uniform([0, 2]), 3, 0, 0),
        histogram(given([], [0.25]), 3, 0, 1),
        histogram(uniform([3]), 3, 2, 1).fails("attribute `max`: at least `min` = 2 is needed, not 1"),
        histogram(uniform([3]), 0, 0, 1).fails("attribute `bins`"),
        histogram(integers_below(2, [2]).of(DType::Bool), 3, 0, 1)
            .fails("`X`: signed or floating point numbers are needed"),
    ]
);

fn histogram(x: Draw, bins: i64, min: i32, max: i32) -> Histogram<Draw> {
    Histogram { x, out: out(), bins, min, max }
}
