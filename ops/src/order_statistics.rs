//! `kthvalue`, `mode` and `nanmedian`: elements by their rank or their number, composed of a sort.

use autobwd::{
    Composed, Composition, DType, Dims, Error, Expr, Infer, Meta, New, Result, Var, check::*, emit,
    register_op, tensor::Dim,
};

use crate::{
    Math, concat, fill::FillAnyLike, kernel_helpers::axis_if_any, math::positions, running_extremes::Cummax,
    scatter::TakeAlongAxis, sort::Argsort,
};

/// The `k`-th smallest element along an axis, and its position: `out = sort(x)[k - 1]`.
///
/// Equal elements are in the order of `x`; NaN counts as the largest number. The gradient goes to the position that was
/// chosen.
#[register_op(grad = Composed, composed)]
pub struct Kthvalue<V = Var> {
    /// Signed integers or floating-point numbers of any shape; a scalar has one axis.
    #[input]
    pub x: V,
    /// `x` without the dimension, or with 1 in its place if `keepdim`.
    #[output]
    pub out: V,
    /// Positions along the axis, int64; same shape as `out`.
    #[output]
    pub indices: V,
    /// The rank of the element, from 1 on.
    #[attr(default = 1, min = 1)]
    pub k: i32,
    /// The dimension; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keepdim: bool,
}
impl Infer for Kthvalue<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (n, dims) = lanes(&self.x, self.axis, self.keepdim)?;
        let k = self.k as usize;
        self.x
            .require(n.get().is_none_or(|n| n >= k), || format!("at least `k` = {k} elements are needed"))?;
        self.out.set(self.x.dtype, dims.clone());
        self.indices.set(DType::I64, dims);
        Ok(())
    }
}
impl Composition for Kthvalue<Expr> {
    fn compose(&mut self) {
        let lane = Lane::of(&self.x, self.axis, self.keepdim);
        let chosen = |x: &Expr| lane.reduced(&x.slice(lane.axis, self.k - 1, self.k));
        (self.out, self.indices) = (chosen(&lane.sorted), chosen(&lane.places));
    }
}
autobwd::samples!(
    Kthvalue,
    [
        kthvalue(distinct([2, 5]), 2, -1, false),
        kthvalue(distinct([4, 2, 3]), 4, 0, true),
        kthvalue(distinct([2, 3, 4]), 1, 1, false),
        kthvalue(distinct([]), 1, 0, true),
        kthvalue(distinct([0, 3]), 2, 1, false),
        kthvalue(given([5], [2.0, f64::NAN, 1.0, 2.0, -3.0]), 4, 0, false)
            .not_a_derivative("equal elements change places"),
        kthvalue(
            given([2, 3], [3.0, -9.0, 3.0, 2147483647.0, 5.0, -2147483648.0]).of(DType::I32),
            2,
            1,
            false
        ),
        kthvalue(distinct([2, 3]), 4, 1, false).fails("`X`: at least `k` = 4 elements are needed"),
        kthvalue(distinct([2, 3]), 0, 1, false).fails("attribute `k`"),
        kthvalue(distinct([2, 3]), 1, 2, false).fails("attribute `axis` = 2"),
        kthvalue(integers_below(2, [3]).of(DType::Bool), 1, 0, false)
            .fails("`X`: signed or floating point numbers are needed"),
    ]
);

fn kthvalue(x: Draw, k: i32, axis: i32, keepdim: bool) -> Kthvalue<Draw> {
    Kthvalue { x, out: out(), indices: out(), k, axis, keepdim }
}

/// The most frequent element along an axis, and the last of its positions; the smallest one of several.
///
/// NaN are not equal to each other. The gradient goes to the position.
#[register_op(grad = Composed, composed)]
pub struct Mode<V = Var> {
    /// Signed integers or floating-point numbers, at least one along the axis; a scalar has one axis.
    #[input]
    pub x: V,
    /// `x` without the dimension, or with 1 in its place if `keepdim`.
    #[output]
    pub out: V,
    /// Positions along the axis, int64; same shape as `out`.
    #[output]
    pub indices: V,
    /// The dimension; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keepdim: bool,
}
impl Infer for Mode<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (n, dims) = lanes(&self.x, self.axis, self.keepdim)?;
        self.x.require(n != 0, || "at least one element along the axis is needed".into())?;
        self.out.set(self.x.dtype, dims.clone());
        self.indices.set(DType::I64, dims);
        Ok(())
    }
}
impl Composition for Mode<Expr> {
    fn compose(&mut self) {
        let lane = Lane::of(&self.x, self.axis, self.keepdim);
        let (sorted, axis) = (&lane.sorted, lane.axis);
        let builder = sorted.builder();
        let after: Vec<i32> = (1..sorted.dims().len() as i32 - axis).collect();
        let place = positions(builder, &sorted.dim(axis)).unsqueeze(&after);
        // Equal elements follow each other; the first one is where the element before is another.
        let before = concat(&[&sorted.slice(axis, 0, 1), &sorted.slice(axis, 0, -1)], axis);
        let starts = sorted.not_equal(&before).cast(DType::I64) * &place;
        let (x, dtype) = ((&starts).into(), DType::I64);
        let start = emit(Cummax { x, out: New, indices: New, axis, dtype }).out;
        // The first of the longest runs ends there.
        let end = (place - start).argmax(axis.into()).unsqueeze(&[axis]);
        let chosen = |x: &Expr| {
            let (input, index) = (x.into(), (&end).into());
            lane.reduced(&emit(TakeAlongAxis { input, index, result: New, axis }).result)
        };
        (self.out, self.indices) = (chosen(sorted), chosen(&lane.places));
    }
}
autobwd::samples!(
    Mode,
    [
        mode(given([7], [3.0, 2.0, 2.0, 3.0, 1.0, 2.0, 3.0]), 0, false).not_a_derivative(CHANGES),
        mode(given([2, 3], [1.5, 0.5, 1.5, -2.0, 0.25, 0.25]), 1, true).not_a_derivative(CHANGES),
        mode(given([3, 2], [1.5, 0.5, 1.5, -2.0, 0.25, 0.5]), 0, false).not_a_derivative(CHANGES),
        mode(distinct([2, 4, 3]), 1, false),
        mode(given([5], [f64::NAN, 1.0, f64::NAN, 0.5, 1.0]), -1, false).not_a_derivative(CHANGES),
        mode(distinct([]), 0, false),
        mode(distinct([0, 3]), 1, false),
        mode(integers_below(3, [4, 5]), 1, false),
        mode(integers_below(3, [5, 2]).of(DType::I32), 0, true),
        mode(distinct([2, 0]), 1, false).fails("`X`: at least one element along the axis is needed"),
        mode(distinct([2, 3]), 2, false).fails("attribute `axis` = 2"),
        mode(integers_below(2, [3]).of(DType::Bool), 0, false)
            .fails("`X`: signed or floating point numbers are needed"),
    ]
);

/// Why the gradient of a most frequent element is not a derivative.
const CHANGES: &str = "elements that are no longer equal change the choice";

fn mode(x: Draw, axis: i32, keepdim: bool) -> Mode<Draw> {
    Mode { x, out: out(), indices: out(), axis, keepdim }
}

/// The length of lanes along an axis, and the dimensions of one element for each.
fn lanes(x: &Meta, axis: i32, keepdim: bool) -> Result<(Dim, Dims)> {
    x.signed()?;
    let Some(axis) = axis_if_any(x, axis.into())? else { return Ok((1.into(), x.dims.clone())) };
    let kept = x.dims.iter().enumerate().filter(|(i, _)| keepdim || *i != axis);
    Ok((x.dims[axis], kept.map(|(i, n)| if i == axis { 1.into() } else { *n }).collect()))
}

/// Lanes along an axis, sorted.
struct Lane {
    sorted: Expr,
    places: Expr,
    axis: i32,
    /// Whether the axis stays; a scalar has none to keep.
    keep: bool,
}

impl Lane {
    fn of(x: &Expr, axis: i32, keepdim: bool) -> Lane {
        let rank = x.dims().len() as i32;
        let (x, axis) = if rank == 0 { (x.reshape(&[1]), 0) } else { (x.clone(), axis.rem_euclid(rank)) };
        let sorted = emit(Argsort { x: x.into(), out: New, indices: New, axis, descending: false });
        Lane { sorted: sorted.out, places: sorted.indices, axis, keep: keepdim && rank > 0 }
    }

    /// One element of each lane, with or without the axis.
    fn reduced(&self, x: &Expr) -> Expr {
        if self.keep { x.clone() } else { x.squeeze(&[self.axis]) }
    }
}

/// The median over dimensions of the elements that are not NaN; the mean of the two in the middle of an even number.
///
/// It is NaN if all elements are. The gradient goes to the elements in the middle, half of it to each of two.
#[register_op(grad = Composed, composed)]
pub struct Nanmedian<V = Var> {
    /// At least one element for each element of the result.
    #[input]
    pub x: V,
    /// `x` without the reduced dimensions, or with 1 in their place if `keepdim`.
    #[output]
    pub out: V,
    /// Positions of the lower and upper element in the middle among the reduced elements, in memory order; −1 if all are
    /// NaN. int64, `out` with another dimension of 2.
    #[output]
    pub median_index: V,
    /// The dimensions to reduce; negative counts from the end, empty means all.
    #[attr(default = [])]
    pub axis: Vec<i32>,
    /// Keep the number of dimensions.
    #[attr(default = true)]
    pub keepdim: bool,
}
impl Infer for Nanmedian<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let mut reduced = vec![self.axis.is_empty(); self.x.rank()];
        for axis in &self.axis {
            let at = self.x.axis("axis", (*axis).into())?;
            if std::mem::replace(&mut reduced[at], true) {
                return Err(Error::attr("axis", format!("{axis} is given twice")));
            }
        }
        let any = self.x.dims.iter().zip(&reduced).any(|(n, is_reduced)| *is_reduced && *n == 0);
        self.x.require(!any, || "at least one element for each median is needed".into())?;
        let of_each =
            self.x.dims.iter().zip(&reduced).filter(|(_, is_reduced)| self.keepdim || !**is_reduced);
        let dims: Dims = of_each.map(|(n, is_reduced)| if *is_reduced { 1.into() } else { *n }).collect();
        self.median_index.set(DType::I64, dims.iter().copied().chain([2.into()]).collect::<Dims>());
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for Nanmedian<Expr> {
    fn compose(&mut self) {
        let rank = self.x.dims().len() as i32;
        let mut reduced: Vec<i32> = self.axis.iter().map(|axis| axis.rem_euclid(rank)).collect();
        if reduced.is_empty() {
            reduced = (0..rank).collect();
        }
        reduced.sort_unstable();
        let kept = (0..rank).filter(|axis| !reduced.contains(axis));
        let order: Vec<i32> = kept.chain(reduced.iter().copied()).collect();
        let first = rank - reduced.len() as i32;
        // A scalar has one element.
        let x = if rank == 0 { self.x.reshape(&[1]) } else { self.x.transpose(&order).flatten(first, -1) };
        let sorted = emit(Argsort { x: (&x).into(), out: New, indices: New, axis: -1, descending: false });
        // NaN comes after all numbers.
        let count = x.isnan().logical_not().cast(DType::I64).sum_keepdim(&[-1]);
        let filled = |value: f64| emit(FillAnyLike { x: (&count).into(), out: New, value, dtype: None }).out;
        let two = filled(2.0);
        let lower = (&count - 1.0).maximum(&filled(0.0)).floor_divide(&two);
        let middle = concat(&[&lower, &count.floor_divide(&two)], -1);
        let chosen = |x: &Expr| {
            emit(TakeAlongAxis { input: x.into(), index: (&middle).into(), result: New, axis: -1 }).result
        };
        let spread = |x: &Expr| if self.keepdim && rank > 0 { x.unsqueeze(&reduced) } else { x.clone() };
        self.out = spread(&chosen(&sorted.out).mean_over(&[-1]));
        let index = chosen(&sorted.indices);
        let none = emit(FillAnyLike { x: (&index).into(), out: New, value: -1.0, dtype: None }).out;
        let any = count.greater_than(&filled(0.0));
        self.median_index = spread(&any.where_cond(&index, &none));
    }
}
autobwd::samples!(
    Nanmedian,
    [
        nanmedian(distinct([2, 5]), vec![1], true),
        nanmedian(distinct([4, 2, 3]), vec![0], false),
        nanmedian(distinct([2, 3, 4]), vec![-1, 0], false),
        nanmedian(distinct([2, 3, 4]), vec![2, 0], true),
        nanmedian(distinct([3, 2]), vec![], true),
        nanmedian(distinct([3, 3]), vec![], false),
        nanmedian(distinct([]), vec![], true),
        nanmedian(distinct([0, 3]), vec![1], true),
        nanmedian(given([2, 4], [f64::NAN, 3.0, 1.0, 2.0, 5.0, f64::NAN, f64::NAN, 6.0]), vec![1], false)
            .not_a_derivative("NaN has none"),
        nanmedian(given([2, 2], [f64::NAN, f64::NAN, 2.0, 1.0]), vec![1], true)
            .not_a_derivative("NaN has none"),
        nanmedian(distinct([2, 0]), vec![1], true)
            .fails("`X`: at least one element for each median is needed"),
        nanmedian(distinct([2, 3]), vec![2], true).fails("attribute `axis` = 2"),
        nanmedian(distinct([2, 3]), vec![1, -1], true).fails("attribute `axis`: -1 is given twice"),
        nanmedian(integers_below(9, [2]), vec![0], true).fails("`X`: floating point numbers are needed"),
    ]
);

fn nanmedian(x: Draw, axis: Vec<i32>, keepdim: bool) -> Nanmedian<Draw> {
    Nanmedian { x, out: out(), median_index: out(), axis, keepdim }
}
