//! `unique` and `unique_consecutive`: distinct elements or slices. Data decides their number.

use std::cmp::Ordering;

use autobwd::{
    Buf, Cx, DType, Dims, Error, Infer, Kernel, Meta, NoGrad, Result, Var,
    check::*,
    op::with_dtype,
    register_op,
    tensor::{Bool, Dim, Element, bf16, f16},
};

use crate::kernel_helpers::{number_dtype, outer_axis_inner};

/// Why samples of distinct numbers are not differentiated.
const WITHOUT: &str = "distinct elements have no gradient, as in the reference";

/// Runs code with `N` as the type of positions, int64 or int32.
macro_rules! with_numbers {
    ($buf:expr, $n:ident => $body:expr) => {
        if $buf.dtype() == DType::I32 {
            type $n = i32;
            $body
        } else {
            type $n = i64;
            $body
        }
    };
}
/// Distinct elements, or distinct slices along an axis: `x[.., i, ..] = out[.., index[i], ..]`.
///
/// Zeros of both signs are equal, and NaN are equal to each other and larger than all numbers. Slices are compared
/// element by element.
#[register_op(grad = NoGrad, any_dtype, primitive)]
pub struct Unique<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// `[k]`, or `x` with `k` along the axis; `k` is at most the number of elements or slices.
    #[output]
    pub out: V,
    /// The position of the first occurrence of each, `[k]`.
    #[output]
    pub indices: Option<V>,
    /// By element or slice of `x`: its position in `out`.
    #[output]
    pub index: Option<V>,
    /// The number of occurrences of each, `[k]`.
    #[output]
    pub counts: Option<V>,
    /// The dimension of slices, one number; without it, elements of the flattened tensor.
    #[attr(default = vec![])]
    pub axis: Vec<i32>,
    /// In ascending order; otherwise, by first occurrence.
    #[attr(default = false)]
    pub is_sorted: bool,
    /// Dtype of positions and numbers, int64 or int32.
    #[attr(default = DType::I64)]
    pub dtype: DType,
}
impl Infer for Unique<Meta> {
    fn infer(&mut self) -> Result<()> {
        let of_each = [&mut self.indices, &mut self.counts];
        infer_distinct(&self.x, (&self.axis[..], self.dtype), &mut self.out, of_each, &mut self.index)
    }
}
impl Kernel for Unique<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let slices = Slices::of(&self.x, &self.axis);
        let Unique { x, out, indices, index, counts, is_sorted, .. } = self;
        with_dtype!(x.dtype(), T => cx.scratch(slices.scratch(), |scratch: &mut [i64]| {
            let x = x.slice::<T>()?;
            let (order, rest) = scratch.split_at_mut(slices.count);
            let (first, number) = rest.split_at_mut(slices.count);
            order.iter_mut().zip(0..).for_each(|(place, i)| *place = i);
            order.sort_unstable_by(|i, j| slices.compare(x, *i as usize, *j as usize).then(i.cmp(j)));
            let mut of_group = 0;
            for k in 0..order.len() {
                let i = order[k] as usize;
                if k == 0 || slices.compare(x, order[k - 1] as usize, i).is_ne() {
                    of_group = i;
                }
                first[i] = of_group as i64;
            }
            if !*is_sorted {
                order.iter_mut().zip(0..).for_each(|(place, i)| *place = i);
            }
            let distinct = Distinct { slices, order, first, number };
            distinct.write(x, out, [indices.as_mut(), index.as_mut(), counts.as_mut()])
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        Slices::of(&self.x, &self.axis).scratch().saturating_mul(size_of::<i64>())
    }
}
autobwd::samples!(
    Unique,
    [
        unique(integers_below(4, [9]), vec![], true),
        unique(integers_below(4, [3, 4]).of(DType::I32), vec![], false),
        unique(integers_below(2, [6, 2]), vec![0], true),
        unique(integers_below(2, [2, 6, 2]).of(DType::Bool), vec![-2], false),
        unique(given([7], [1.0, f64::NAN, -0.0, 0.0, f64::NAN, f64::NEG_INFINITY, 1.0]), vec![], true)
            .not_a_derivative(WITHOUT),
        unique(given([4], [3.0, 9007199254740993.0, 3.0, 9007199254740992.0]).of(DType::I64), vec![], true),
        Unique { indices: None, index: None, counts: None, ..unique(distinct([3]), vec![], true) }
            .not_a_derivative(WITHOUT),
        unique(uniform([0]), vec![], true),
        unique(uniform([3, 0]), vec![0], true),
        unique(uniform([]), vec![], true).not_a_derivative(WITHOUT),
        Unique { dtype: DType::I32, ..unique(uniform([2, 3]), vec![0], false) }.not_a_derivative(WITHOUT),
        unique(uniform([2]), vec![1], true).fails("attribute `axis` = 1"),
        unique(uniform([2, 2]), vec![0, 1], true).fails("attribute `axis`: at most one is needed, not 2"),
        Unique { dtype: DType::F32, ..unique(uniform([2]), vec![], true) }
            .fails("attribute `dtype`: int64 or int32 is needed"),
    ]
);

fn unique(x: Draw, axis: Vec<i32>, is_sorted: bool) -> Unique<Draw> {
    let [indices, index, counts] = [(); 3].map(|()| Some(out()));
    Unique { x, out: out(), indices, index, counts, axis, is_sorted, dtype: DType::I64 }
}

/// Elements, or slices along an axis, without repetitions of the previous one.
#[register_op(grad = NoGrad, any_dtype, primitive)]
pub struct UniqueConsecutive<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// `[k]`, or `x` with `k` along the axis; `k` is at most the number of elements or slices.
    #[output]
    pub out: V,
    /// By element or slice of `x`: its position in `out`.
    #[output]
    pub index: Option<V>,
    /// The length of each run of equal ones, `[k]`.
    #[output]
    pub counts: Option<V>,
    /// The dimension of slices, one number; without it, elements of the flattened tensor.
    #[attr(default = vec![])]
    pub axis: Vec<i32>,
    /// Dtype of positions and lengths, int64 or int32.
    #[attr(default = DType::I64)]
    pub dtype: DType,
}
impl Infer for UniqueConsecutive<Meta> {
    fn infer(&mut self) -> Result<()> {
        let attrs = (&self.axis[..], self.dtype);
        infer_distinct(&self.x, attrs, &mut self.out, [&mut self.counts, &mut None], &mut self.index)
    }
}
impl Kernel for UniqueConsecutive<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let slices = Slices::of(&self.x, &self.axis);
        let UniqueConsecutive { x, out, index, counts, .. } = self;
        with_dtype!(x.dtype(), T => cx.scratch(slices.scratch(), |scratch: &mut [i64]| {
            let x = x.slice::<T>()?;
            let (order, rest) = scratch.split_at_mut(slices.count);
            let (first, number) = rest.split_at_mut(slices.count);
            for i in 0..order.len() {
                let is_new = i == 0 || slices.compare(x, i - 1, i).is_ne();
                first[i] = if is_new { i as i64 } else { first[i - 1] };
                order[i] = i as i64;
            }
            let distinct = Distinct { slices, order, first, number };
            distinct.write(x, out, [None, index.as_mut(), counts.as_mut()])
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        Slices::of(&self.x, &self.axis).scratch().saturating_mul(size_of::<i64>())
    }
}
autobwd::samples!(
    UniqueConsecutive,
    [
        unique_consecutive(integers_below(2, [9]), vec![]),
        unique_consecutive(integers_below(2, [8, 1]).of(DType::I32), vec![0]),
        unique_consecutive(integers_below(2, [1, 8]), vec![1]),
        unique_consecutive(given([4], [f64::NAN, f64::NAN, 1.0, f64::NAN]), vec![]).not_a_derivative(WITHOUT),
        unique_consecutive(given([5], [1.0, 2.0, 2.0, 0.0, 1.0]).of(DType::I64), vec![]),
        UniqueConsecutive { dtype: DType::I32, ..unique_consecutive(integers_below(3, [7]), vec![]) },
        UniqueConsecutive { index: None, counts: None, ..unique_consecutive(integers_below(3, [7]), vec![]) },
        unique_consecutive(uniform([0, 2]), vec![]),
        unique_consecutive(uniform([]), vec![]).not_a_derivative(WITHOUT),
        unique_consecutive(uniform([2]), vec![-2]).fails("attribute `axis` = -2"),
    ]
);

fn unique_consecutive(x: Draw, axis: Vec<i32>) -> UniqueConsecutive<Draw> {
    UniqueConsecutive { x, out: out(), index: Some(out()), counts: Some(out()), axis, dtype: DType::I64 }
}

/// The axis of slices, if there is one.
fn axis_of(x: &Meta, axis: &[i32]) -> Result<Option<usize>> {
    match axis {
        [] => Ok(None),
        [axis] => x.axis("axis", (*axis).into()).map(Some),
        more => Err(Error::attr("axis", format!("at most one is needed, not {}", more.len()))),
    }
}

/// The shape rule: distinct elements or slices, numbers for each of them, and a number for each of all.
fn infer_distinct(
    x: &Meta,
    (axis, dtype): (&[i32], DType),
    out: &mut Meta,
    of_each: [&mut Option<Meta>; 2],
    of_all: &mut Option<Meta>,
) -> Result<()> {
    number_dtype(dtype)?;
    let (mut dims, axis) = match axis_of(x, axis)? {
        Some(axis) => (x.dims.clone(), axis),
        None => (Dims::from_iter([x.dims.numel()]), 0),
    };
    let count = dims[axis];
    dims[axis] = Dim::at_most(count);
    for numbers in of_each.into_iter().flatten() {
        numbers.set(dtype, Dims::from_iter([dims[axis]]));
    }
    of_all.iter_mut().for_each(|numbers| numbers.set(dtype, Dims::from_iter([count])));
    out.set(x.dtype, dims);
    Ok(())
}

/// The slices of a tensor along an axis; without it, its elements.
#[derive(Clone, Copy)]
struct Slices {
    outer: usize,
    count: usize,
    inner: usize,
    axis: Option<usize>,
}

impl Slices {
    fn of(x: &Buf<'_>, axis: &[i32]) -> Slices {
        let Some(axis) = axis.first().map(|axis| x.axis((*axis).into())) else {
            return Slices { outer: 1, count: x.numel(), inner: 1, axis: None };
        };
        let (outer, count, inner) = outer_axis_inner(x.dims(), axis);
        Slices { outer, count, inner, axis: Some(axis) }
    }

    /// The length of scratch memory: three numbers for each.
    fn scratch(&self) -> usize {
        self.count.saturating_mul(3)
    }

    /// The elements of the slice, by block of memory.
    fn blocks<'a, T>(&'a self, x: &'a [T], i: usize) -> impl Iterator<Item = &'a [T]> {
        (0..self.outer).map(move |outer| &x[(outer * self.count + i) * self.inner..][..self.inner])
    }

    fn compare<T: TotalOrder>(&self, x: &[T], i: usize, j: usize) -> Ordering {
        let pairs = self.blocks(x, i).flatten().zip(self.blocks(x, j).flatten());
        pairs.map(|(a, b)| a.order(b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

/// Distinct slices: `order` is the one in which they are numbered, `first` has the first slice that equals each.
struct Distinct<'a> {
    slices: Slices,
    order: &'a [i64],
    first: &'a [i64],
    /// By first slice: its position in the output.
    number: &'a mut [i64],
}

impl Distinct<'_> {
    /// Writes the distinct slices, and where they are asked for: first positions, positions in the output, counts.
    fn write<T: Element>(self, x: &[T], out: &mut Buf<'_>, others: [Option<&mut Buf<'_>>; 3]) -> Result<()> {
        let Distinct { slices, order, first, number } = self;
        let mut count = 0;
        for i in order.iter().map(|i| *i as usize).filter(|i| first[*i] == *i as i64) {
            number[i] = count as i64;
            count += 1;
        }
        let leaders = || (0..slices.count).filter(|i| first[*i] == *i as i64);
        let written = out.decide_along::<T>(slices.axis.unwrap_or(0), count)?;
        for i in leaders() {
            for (outer, block) in slices.blocks(x, i).enumerate() {
                let at = (outer * count + number[i] as usize) * slices.inner;
                written[at..][..slices.inner].copy_from_slice(block);
            }
        }
        let [indices, index, counts] = others;
        if let Some(indices) = indices {
            with_numbers!(indices, N => {
                let indices = indices.decide::<N>(&[count])?;
                leaders().for_each(|i| indices[number[i] as usize] = i as N);
            });
        }
        if let Some(index) = index {
            with_numbers!(index, N => {
                let numbers = first.iter().map(|first| number[*first as usize] as N);
                index.slice_mut::<N>()?.iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
            });
        }
        if let Some(counts) = counts {
            with_numbers!(counts, N => {
                let counts = counts.decide::<N>(&[count])?;
                counts.fill(0);
                first.iter().for_each(|first| counts[number[*first as usize] as usize] += 1);
            });
        }
        Ok(())
    }
}

/// Elements in an order in which all are comparable: NaN are equal to each other, and larger than all numbers.
trait TotalOrder: Element {
    fn order(&self, other: &Self) -> Ordering;
}

macro_rules! total_order {
    ($($ty:ty: |$a:ident, $b:ident| $order:expr;)*) => {$(
        impl TotalOrder for $ty {
            fn order(&self, other: &Self) -> Ordering {
                let ($a, $b) = (self, other);
                $order
            }
        }
    )*};
}
total_order! {
    Bool: |a, b| a.get().cmp(&b.get());
    u8: |a, b| a.cmp(b);
    i32: |a, b| a.cmp(b);
    i64: |a, b| a.cmp(b);
    f16: |a, b| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    bf16: |a, b| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    f32: |a, b| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    f64: |a, b| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
}
