//! Short overlapping slices of signals: `frame` and `overlap_add`.

use autobwd::{
    Composed, Composition, Dims, Error, Expr, Infer, Meta, New, Result, Var, check::*, emit, register_op,
    tensor::Dim,
};

use crate::{
    Math,
    gather::GatherGrad,
    index::ScatterNdAdd,
    math::{DimExpr, all_sizes, filled, positions},
};

/// Overlapping slices of signals: `out[.., i, k] = x[.., k * hop_length + i]`, or `out[k, i, ..] = x[k * hop_length + i, ..]`
/// if the axis is the first one. Elements after the last complete slice are left out.
#[register_op(grad = Composed, composed)]
pub struct Frame<V = Var> {
    /// Signals along the first or the last axis, any dtype.
    #[input]
    pub x: V,
    /// `[.., frame_length, n]`, or `[n, frame_length, ..]` if the axis is the first one.
    #[output]
    pub out: V,
    /// Elements of a slice.
    #[attr(min = 1)]
    pub frame_length: i32,
    /// The distance of the starts of consecutive slices.
    #[attr(min = 1)]
    pub hop_length: i32,
    /// The axis of time, 0 or −1.
    #[attr(default = -1)]
    pub axis: i32,
}
impl Infer for Frame<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (is_first, length) = (is_first("axis", self.axis)?, self.frame_length as usize);
        let time = self.x.axis("axis", self.axis.into())?;
        let count = match self.x.dims[time].get() {
            None => Dim::UNKNOWN,
            Some(n) => {
                self.x.require(n >= length, || {
                    format!("at least {length} elements are needed along the axis")
                })?;
                ((n - length) / self.hop_length as usize + 1).into()
            }
        };
        let mut slices = [count, length.into()];
        if !is_first {
            slices.reverse();
        }
        let dims = self.x.dims.iter();
        let dims = match is_first {
            true => slices.into_iter().chain(dims.skip(1).copied()).collect::<Dims>(),
            false => dims.take(time).copied().chain(slices).collect(),
        };
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for Frame<Expr> {
    fn compose(&mut self) {
        let count = (self.x.dim(self.axis) - i64::from(self.frame_length)) / i64::from(self.hop_length) + 1;
        let slices = Slices { length: i64::from(self.frame_length).into(), count, hop: self.hop_length };
        let (is_first, index) = (self.axis == 0, slices.index(&self.x, false));
        let last = self.x.dims().len() as i32 - 1;
        let to_back: Vec<i32> = (1..=last).chain([0]).collect();
        let x = if is_first && last > 0 { self.x.transpose(&to_back) } else { self.x.clone() };
        let mut dims = all_sizes(&x);
        dims.pop();
        dims.extend([slices.length, slices.count]);
        let out = x.gather(&index.flatten(0, 1), -1).reshape_to(&dims);
        let to_front: Vec<i32> = [last + 1, last].into_iter().chain(0..last).collect();
        self.out = if is_first { out.transpose(&to_front) } else { out };
    }
}
autobwd::samples!(
    Frame,
    [
        frame(uniform([7]), [3, 2], -1),
        frame(uniform([8]), [3, 2], 0),
        frame(uniform([2, 3, 9]), [4, 1], -1),
        frame(uniform([9, 2, 3]), [2, 5], 0),
        frame(uniform([2, 0, 5]), [2, 3], -1),
        frame(uniform([5, 0]), [2, 3], 0),
        frame(uniform([2, 5]), [5, 3], -1),
        frame(integers_below(9, [2, 5]), [2, 1], -1),
        frame(uniform([2, 5]), [6, 1], -1).fails("`X`: at least 6 elements are needed along the axis"),
        frame(uniform([2, 5]), [3, 1], 1).fails("attribute `axis`: 0 or -1 is needed, not 1"),
        frame(uniform([]), [1, 1], 0).fails("attribute `axis` = 0"),
        frame(uniform([2, 5]), [0, 1], -1).fails("attribute `frame_length`: must be at least 1"),
        frame(uniform([2, 5]), [1, 0], -1).fails("attribute `hop_length`: must be at least 1"),
    ]
);

fn frame(x: Draw, [frame_length, hop_length]: [i32; 2], axis: i32) -> Frame<Draw> {
    Frame { x, out: out(), frame_length, hop_length, axis }
}

/// The sum of overlapping slices, each at its time: `out[.., k * hop_length + i] += x[.., i, k]`, or
/// `out[k * hop_length + i, ..] += x[k, i, ..]` if the axis is the first one.
#[register_op(grad = Composed, composed)]
pub struct OverlapAdd<V = Var> {
    /// Slices, `[.., length, n]`, or `[n, length, ..]` if the axis is the first one.
    #[input]
    pub x: V,
    /// Signals with `(n - 1) * hop_length + length` elements along the axis.
    #[output]
    pub out: V,
    /// The distance of the starts of consecutive slices.
    #[attr(min = 1)]
    pub hop_length: i32,
    /// The axis of time, 0 or −1.
    #[attr(default = -1)]
    pub axis: i32,
}
impl Infer for OverlapAdd<Meta> {
    fn infer(&mut self) -> Result<()> {
        let is_first = is_first("axis", self.axis)?;
        self.x.float()?;
        let rank = self.x.rank();
        self.x.require(rank >= 2, || "at least two dimensions are needed".into())?;
        let (slices, others) = match is_first {
            true => ([self.x.dims[1], self.x.dims[0]], &self.x.dims[2..]),
            false => ([self.x.dims[rank - 2], self.x.dims[rank - 1]], &self.x.dims[..rank - 2]),
        };
        self.x.require(!slices.contains(&0.into()), || {
            "at least one slice of at least one element is needed".into()
        })?;
        let [length, count] = slices.map(Dim::get);
        let time = length.zip(count).map_or(Dim::UNKNOWN, |(length, count)| {
            (count - 1).saturating_mul(self.hop_length as usize).saturating_add(length).into()
        });
        let dims = match is_first {
            true => std::iter::once(time).chain(others.iter().copied()).collect::<Dims>(),
            false => others.iter().copied().chain([time]).collect(),
        };
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for OverlapAdd<Expr> {
    fn compose(&mut self) {
        let (is_first, mut dims) = (self.axis == 0, all_sizes(&self.x));
        let at = if is_first { 0 } else { dims.len() - 2 };
        let (mut length, mut count) = (dims.remove(at), dims.remove(at));
        if is_first {
            std::mem::swap(&mut length, &mut count);
        }
        dims.insert(at, (&count - 1) * i64::from(self.hop_length) + &length);
        let slices = Slices { length, count, hop: self.hop_length };
        let index = slices.index(&self.x, is_first);
        let zeros = filled(self.x.builder(), self.x.dtype(), "0", &dims);
        let x = (&zeros).into();
        self.out = if is_first {
            let (index, updates) = ((&index.unsqueeze(&[-1])).into(), (&self.x).into());
            emit(ScatterNdAdd { x, index, updates, out: New }).out
        } else {
            let (index, dout) = ((&index.flatten(0, 1)).into(), (&self.x.flatten(-2, -1)).into());
            emit(GatherGrad { x, index, dout, dx: New, axis: -1 }).dx
        };
    }
}
autobwd::samples!(
    OverlapAdd,
    [
        overlap_add(uniform([3, 4]), 2, -1),
        overlap_add(uniform([4, 3]), 2, 0),
        overlap_add(uniform([2, 5, 3]), 1, -1),
        overlap_add(uniform([4, 2, 3, 5]), 3, 0),
        overlap_add(uniform([0, 3, 2]), 2, -1),
        overlap_add(uniform([4, 2, 0]), 2, 0),
        overlap_add(uniform([5]), 1, -1).fails("`X`: at least two dimensions are needed"),
        overlap_add(uniform([2, 3, 0]), 1, -1)
            .fails("`X`: at least one slice of at least one element is needed"),
        overlap_add(uniform([2, 3]), 1, 1).fails("attribute `axis`: 0 or -1 is needed, not 1"),
        overlap_add(uniform([2, 3]), 0, 0).fails("attribute `hop_length`: must be at least 1"),
        overlap_add(integers_below(9, [2, 3]), 1, 0).fails("`X`: floating point numbers are needed"),
    ]
);

fn overlap_add(x: Draw, hop_length: i32, axis: i32) -> OverlapAdd<Draw> {
    OverlapAdd { x, out: out(), hop_length, axis }
}

/// Whether time is the first axis, else the last.
fn is_first(name: &str, axis: i32) -> Result<bool> {
    match axis {
        0 => Ok(true),
        -1 => Ok(false),
        _ => Err(Error::attr(name, format!("0 or -1 is needed, not {axis}"))),
    }
}

/// Slices of equal length at equal distances.
struct Slices {
    length: DimExpr,
    count: DimExpr,
    hop: i32,
}

impl Slices {
    /// The positions of the elements of all slices, `[count, length]`, or `[length, count]`.
    fn index(&self, like: &Expr, is_first: bool) -> Expr {
        let numbers = |n: &DimExpr| positions(like.builder(), n);
        let (starts, steps) = (numbers(&self.count) * f64::from(self.hop), numbers(&self.length));
        if is_first { starts.unsqueeze(&[1]) + steps } else { steps.unsqueeze(&[1]) + starts }
    }
}
