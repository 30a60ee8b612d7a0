//! `index_add` and `index_put`: slices written by index, composed of other operators.

use autobwd::{
    Composed, Composition, DType, Dims, Error, ErrorKind, Expr, Infer, Meta, New, Result, Var, check::*,
    emit, register_op,
};

use crate::{
    Math,
    gather::are_numbers,
    index::ScatterNdAdd,
    kernel_helpers::broadcast,
    math::{all_sizes, like, positions, product},
    put::from_the_start,
    scatter::Scatter,
};

/// Slices added to those with these indices along a dimension: `out = x`, and
/// `out[.., index[i], ..] += add_value[.., i, ..]`.
#[register_op(grad = Composed, composed)]
pub struct IndexAdd<V = Var> {
    /// At least one dimension.
    #[input]
    pub x: V,
    /// Indices, int64 or int32, `[n]`; negative ones count from the end.
    #[input]
    pub index: V,
    /// `x` with `n` in place of dimension `axis`; same dtype.
    #[input]
    pub add_value: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The dimension; negative counts from the end.
    #[attr(default = 0)]
    pub axis: i32,
}
impl Infer for IndexAdd<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let axis = self.x.axis("axis", self.axis.into())?;
        are_numbers(&self.index)?;
        self.index.require(self.index.rank() == 1, || "one dimension is needed".into())?;
        self.add_value.same_dtype(&self.x)?;
        let mut dims = self.x.dims.clone();
        dims[axis] = self.index.dims[0];
        let fits = self.add_value.dims.agrees(&dims);
        self.add_value.require(fits, || format!("the shape of these slices, {dims}, is needed"))?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for IndexAdd<Expr> {
    fn compose(&mut self) {
        let rank = self.x.dims().len() as i32;
        let axis = self.axis.rem_euclid(rank);
        let index = from_the_start(&self.index, &self.x.dim(axis)).unsqueeze(&[1]).into();
        // With the dimension in front, and back.
        let order: Vec<i32> = [axis].into_iter().chain((0..rank).filter(|other| *other != axis)).collect();
        let back: Vec<i32> = (1..=axis).chain([0]).chain(axis + 1..rank).collect();
        let front = |x: &Expr| if axis == 0 { x.clone() } else { x.transpose(&order) };
        let (x, updates) = (front(&self.x).into(), front(&self.add_value).into());
        let sum = emit(ScatterNdAdd { x, index, updates, out: New }).out;
        self.out = if axis == 0 { sum } else { sum.transpose(&back) };
    }
}
autobwd::samples!(
    IndexAdd,
    [
        index_add(uniform([4, 3]), integers_below(4, [5]), uniform([5, 3]), 0),
        index_add(uniform([2, 3, 4]), integers_below(3, [5]).of(DType::I32), uniform([2, 5, 4]), -2),
        index_add(uniform([2, 4]), given([3], [-1.0, 0.0, -4.0]).of(DType::I64), uniform([2, 3]), 1),
        index_add(uniform([2, 3]), integers_below(2, [0]), uniform([0, 3]), 0),
        index_add(uniform([2, 0]), integers_below(2, [3]), uniform([3, 0]), 0),
        index_add(uniform([2, 3]), given([1], [2.0]).of(DType::I64), uniform([1, 3]), 0)
            .fails("2 is not within 0..2"),
        index_add(uniform([2, 3]), integers_below(2, [3, 1]), uniform([3, 3]), 0)
            .fails("`Index`: one dimension is needed"),
        index_add(uniform([2, 3]), uniform([3]), uniform([3, 3]), 0)
            .fails("`Index`: int64 or int32 is needed"),
        index_add(uniform([2, 3]), integers_below(2, [4]), uniform([3, 3]), 0)
            .fails("`AddValue`: the shape of these slices, [4, 3], is needed"),
        index_add(uniform([2]), integers_below(2, [4]), integers_below(9, [4]), 0)
            .fails("`AddValue`: dtype int64 does not match"),
        index_add(integers_below(9, [2]), integers_below(2, [4]), integers_below(9, [4]), 0)
            .fails("`X`: floating point numbers are needed"),
        index_add(uniform([2, 3]), integers_below(2, [4]), uniform([4, 3]), 2).fails("attribute `axis` = 2"),
    ]
);

fn index_add(x: Draw, index: Draw, add_value: Draw, axis: i32) -> IndexAdd<Draw> {
    IndexAdd { x, index, add_value, out: out(), axis }
}

/// Slices written, or added, at indices of the leading dimensions: `out = x`, and `out[indices[0][i], indices[1][i], ..]`
/// `= value[i, ..]`.
///
/// Where several slices have one place, the last one is written.
#[register_op(grad = Composed, composed)]
pub struct IndexPut<V = Var> {
    /// At least one dimension; any dtype, floating point to `accumulate`.
    #[input("x")]
    pub x: V,
    /// For each leading dimension, its indices: int64 or int32, of shapes that broadcast; negative ones count from the
    /// end. Masks of bools, which the reference accepts, are refused.
    #[input("indices")]
    pub indices: Vec<V>,
    /// A shape that broadcasts to the shape of all indices, followed by the other dimensions of `x`; same dtype as `x`.
    #[input("value")]
    pub value: V,
    /// Same shape as `x`.
    #[output("out")]
    pub out: V,
    /// Add the slices, do not replace what is there.
    #[attr(default = false)]
    pub accumulate: bool,
}
impl Infer for IndexPut<Meta> {
    fn infer(&mut self) -> Result<()> {
        if self.accumulate {
            self.x.float()?;
        }
        let Some(first) = self.indices.first() else {
            return Err(Error::new(ErrorKind::Slot, "`indices`: at least one variable is needed"));
        };
        let (mut all, count) = (first.clone(), self.indices.len());
        for index in &self.indices {
            are_numbers(index)?;
            all.dims = broadcast(&all, index, -1)?;
        }
        let most = self.x.rank();
        first.require(count <= most, || format!("at most {most} of them are possible, not {count}"))?;
        let dims: Dims = all.dims.iter().chain(&self.x.dims[count..]).copied().collect();
        self.value.same_dtype(&self.x)?;
        let skipped = dims.len().checked_sub(self.value.rank());
        let aligned = skipped.map(|skipped| dims[skipped..].iter().zip(self.value.dims.iter()));
        let fits =
            aligned.is_some_and(|mut pairs| pairs.all(|(n, own)| own.agrees(1.into()) || own.agrees(*n)));
        self.value.require(fits, || format!("a shape that broadcasts to {dims} is needed"))?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for IndexPut<Expr> {
    fn compose(&mut self) {
        let (x, sizes) = (&self.x, all_sizes(&self.x));
        let (leading, rest) = sizes.split_at(self.indices.len());
        let indices: Vec<Expr> =
            self.indices.iter().zip(leading).map(|(index, n)| from_the_start(index, n)).collect();
        // The sum of zeros has the shape of all of them.
        let zeros = indices.iter().map(|index| like(index, 0.0)).reduce(|sum, zeros| sum + zeros);
        let Some(zeros) = zeros else { return };
        let rows = indices.iter().zip(leading).enumerate().map(|(axis, (index, n))| {
            // A read of all positions checks that an index is one of them.
            let index = positions(x.builder(), n).gather(&(index + &zeros).flatten(0, -1), 0);
            index * &product(&leading[axis + 1..]).number(x.builder())
        });
        let Some(ids) = rows.reduce(|sum, rows| sum + rows) else { return };
        let (count, last) = (leading.len() as i32, zeros.dims().len() as i32);
        let value = self.value.expand_to(&[&all_sizes(&zeros)[..], rest].concat());
        let flat = |x: &Expr, axes: i32| if axes == 0 { x.unsqueeze(&[0]) } else { x.flatten(0, axes - 1) };
        let (to, updates) = (flat(x, count).into(), flat(&value, last).into());
        let put = match self.accumulate {
            true => emit(ScatterNdAdd { x: to, index: ids.unsqueeze(&[1]).into(), updates, out: New }).out,
            false => emit(Scatter { x: to, ids: ids.into(), updates, out: New, overwrite: true }).out,
        };
        self.out = put.reshape_to(&sizes);
    }
}
autobwd::samples!(
    IndexPut,
    [
        index_put(uniform([4, 3]), vec![integers_below(4, [5])], uniform([5, 3]), false),
        index_put(uniform([4, 3]), vec![integers_below(4, [5])], uniform([3]), true),
        index_put(
            uniform([4, 3, 2]),
            vec![integers_below(4, [5, 1]), integers_below(3, [2]).of(DType::I32)],
            uniform([5, 2, 2]),
            true
        ),
        index_put(uniform([4, 3]), vec![integers_below(4, [5]), integers_below(3, [])], uniform([5]), false),
        index_put(uniform([4]), vec![given([3], [-1.0, 0.0, -4.0]).of(DType::I64)], uniform([1]), false),
        index_put(uniform([4, 2]), vec![given([], [2.0]).of(DType::I64)], uniform([2]), false),
        index_put(uniform([2, 3]), vec![integers_below(2, [0])], uniform([0, 3]), false),
        index_put(uniform([2, 0]), vec![integers_below(2, [3])], uniform([3, 0]), false),
        index_put(integers_below(9, [4]), vec![integers_below(4, [2])], integers_below(9, [2]), false),
        index_put(
            uniform([2, 3]),
            vec![given([1], [1.0]).of(DType::I64), given([1], [3.0]).of(DType::I64)],
            uniform([1]),
            false
        )
        .fails("3 is not within 0..3"),
        index_put(uniform([2]), vec![], uniform([1]), false)
            .fails("`indices`: at least one variable is needed"),
        index_put(uniform([2]), vec![integers_below(2, [2]), integers_below(2, [2])], uniform([1]), false)
            .fails("`indices`: at most 1 of them are possible, not 2"),
        index_put(uniform([2, 3]), vec![integers_below(2, [2]), integers_below(2, [3])], uniform([1]), false)
            .fails("`indices`: a shape that broadcasts with [2] of `indices` is needed"),
        index_put(uniform([2, 3]), vec![uniform([2])], uniform([1]), false)
            .fails("`indices`: int64 or int32 is needed"),
        index_put(uniform([2]), vec![integers_below(2, [2]).of(DType::Bool)], uniform([1]), false)
            .fails("`indices`: int64 or int32 is needed"),
        index_put(uniform([2, 3]), vec![integers_below(2, [4])], uniform([2]), false)
            .fails("`value`: a shape that broadcasts to [4, 3] is needed"),
        index_put(uniform([2]), vec![integers_below(2, [4])], integers_below(9, [4]), false)
            .fails("`value`: dtype int64 does not match"),
        index_put(integers_below(9, [2]), vec![integers_below(2, [4])], integers_below(9, [4]), true)
            .fails("`x`: floating point numbers are needed"),
    ]
);

fn index_put(x: Draw, indices: Vec<Draw>, value: Draw, accumulate: bool) -> IndexPut<Draw> {
    IndexPut { x, indices, value, out: out(), accumulate }
}
