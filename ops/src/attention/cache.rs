//! Caches of keys and values: memory of fixed capacity, whose used part is data.

use autobwd::{
    Buf, Composition, Cx, DType, Error, Expr, GradCx, Infer, Kernel, Meta, Result, Var, ZeroGrad,
    check::*,
    op::{GradKind, GradRule},
    register_op,
};

use crate::{
    Math, concat,
    gather::{are_numbers, number},
    math::{all_sizes, filled, in_dtype, like, positions, product, sizes},
};

/// Writes rows of each sequence into its cache: `out[b, positions[b, i]] = rows[b, i]`, and `out = cache` elsewhere.
///
/// A position that is negative or beyond the capacity writes nothing, so that padding has position −1;
/// [`AssertWithin`] rejects others. Of several rows for one position, the last one counts. With `cache` and `out` of
/// one name, time and memory depend on the written rows alone.
#[register_op(grad = CacheUpdateGrad, infallible, any_dtype)]
pub struct CacheUpdate<V = Var> {
    /// `[batch, capacity, ..]`, any dtype.
    #[input]
    pub cache: V,
    /// `[batch, n, ..]`, of the dtype of the cache.
    #[input]
    pub rows: V,
    /// int64 `[batch, n]`.
    #[input]
    pub positions: V,
    /// Shape of `cache`.
    #[output(inplace = cache)]
    pub out: V,
}
impl Infer for CacheUpdate<Meta> {
    fn infer(&mut self) -> Result<()> {
        let CacheUpdate { cache, rows, positions, .. } = &*self;
        cache.require(cache.rank() >= 2, || "two dimensions are needed, batch and capacity".into())?;
        rows.same_dtype(cache)?;
        let agree = |axis: usize| rows.dims[axis].agrees(cache.dims[axis]);
        let fits = rows.rank() == cache.rank() && (0..cache.rank()).all(|axis| axis == 1 || agree(axis));
        rows.require(fits, || format!("rows of this cache are needed, {}", cache.dims))?;
        let fits = positions.rank() == 2 && (0..2).all(|axis| positions.dims[axis].agrees(rows.dims[axis]));
        positions.require(positions.dtype == DType::I64 && fits, || {
            format!("int64 [{}, {}] is needed, the position of each row", rows.dims[0], rows.dims[1])
        })?;
        self.out.like(&self.cache);
        Ok(())
    }
}
impl Kernel for CacheUpdate<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.cache)?;
        let (capacity, n) = (self.out.dims()[1], self.rows.dims()[1]);
        let bytes = self.out.dims()[2..].iter().product::<usize>() * self.out.dtype().size();
        let (rows, out) = (self.rows.bytes()?, self.out.bytes_mut()?);
        for (i, position) in self.positions.slice::<i64>()?.iter().enumerate() {
            let place = usize::try_from(*position).ok().filter(|position| *position < capacity);
            if let Some(place) = place {
                let row = i / n * capacity + place;
                out[row * bytes..][..bytes].copy_from_slice(&rows[i * bytes..][..bytes]);
            }
        }
        Ok(())
    }
}
impl Composition for CacheUpdate<Expr> {
    fn compose(&mut self) {
        let CacheUpdate { cache, rows, positions: at, .. } = &*self;
        let (builder, dims) = (cache.builder(), all_sizes(cache));
        let ([batch, capacity], n) = ([&dims[0], &dims[1]], &sizes::<2>(at)[1]);
        // The number of the last row for each position, from 1; 0 for none.
        let is_place = at.unsqueeze(&[2]).equal(&positions(builder, capacity));
        let numbers = (positions(builder, n) + 1.0).unsqueeze(&[1]) * in_dtype(&is_place, DType::I64);
        let none = filled(builder, DType::I64, "0", &[batch.clone(), 1.into(), capacity.clone()]);
        let number = concat(&[&none, &numbers], 1).max_keepdim(&[1]).squeeze(&[1]);
        // Row 0 of each sequence stands for none.
        let padding = [&[batch.clone(), 1.into()], &dims[2..]].concat();
        let rows = concat(&[&filled(builder, cache.dtype(), "0", &padding), rows], 1);
        let rows = rows.reshape_to(&[&[batch * &(n + 1)], &dims[2..]].concat());
        let first = (positions(builder, batch) * (n + 1).number(builder)).unsqueeze(&[1]);
        let index = (&number + first).reshape_to(&[product(&dims[..2])]);
        let written = rows.gather(&index, 0).reshape_to(&dims);
        let mut is_written = number.greater_than(&like(&number, 0.0));
        for _ in 2..dims.len() {
            is_written = is_written.unsqueeze(&[-1]);
        }
        self.out = is_written.expand_to(&dims).where_cond(&written, cache);
    }
}
autobwd::samples!(
    CacheUpdate,
    [
        cache_update([2, 5, 2, 3], 2, [0.0, 1.0, 4.0, 2.0]),
        // Padding, positions that are none, and two rows for one.
        cache_update([2, 3, 2], 3, [-1.0, 2.0, 0.0, 1.0, 7.0, 1.0]),
        cache_update([1, 4], 1, [3.0]),
        CacheUpdate {
            cache: integers_below(9, [1, 3, 2]),
            rows: integers_below(9, [1, 1, 2]),
            ..cache_update([1, 3, 2], 1, [1.0])
        },
        cache_update([2, 3, 2], 0, []),
        cache_update([1, 0, 2], 1, [0.0]),
        CacheUpdate { positions: integers_below(3, [0, 1]), ..cache_update([0, 3, 2], 1, []) },
        cache_update([1, 3, 0], 1, [2.0]),
        CacheUpdate { cache: uniform([3]), ..cache_update([1, 3], 1, [0.0]) }
            .fails("`Cache`: two dimensions are needed, batch and capacity"),
        CacheUpdate { rows: uniform([1, 1, 4]), ..cache_update([1, 3, 2], 1, [0.0]) }
            .fails("`Rows`: rows of this cache are needed, [1, 3, 2]"),
        CacheUpdate { rows: uniform([1, 1, 2]).of(DType::F16), ..cache_update([1, 3, 2], 1, [0.0]) }
            .fails("`Rows`"),
        cache_update([1, 3, 2], 1, [0.0, 1.0]).fails("`Positions`: int64 [1, 1] is needed"),
    ]
);

fn cache_update<const R: usize, const N: usize>(
    cache: [usize; R],
    n: usize,
    at: [f64; N],
) -> CacheUpdate<Draw> {
    let mut rows = cache;
    rows[1] = n;
    let at_dims = [cache[0], N / cache[0].max(1)];
    CacheUpdate {
        cache: uniform(cache),
        rows: uniform(rows),
        positions: given(at_dims, at).of(DType::I64),
        out: out(),
    }
}

/// Refuses.
#[derive(Debug)]
pub struct CacheUpdateGrad;
impl GradRule<CacheUpdate> for CacheUpdateGrad {
    const KIND: GradKind = GradKind::None(Some(
        "a cache holds rows of earlier steps, whose gradients no step has: train with `attention` over whole sequences",
    ));
    fn emit(_: &CacheUpdate, _: &mut GradCx<'_>) {}
}

/// Integers that are all within bounds, `low ≤ x < high`; others are an error.
#[register_op(grad = ZeroGrad, any_dtype)]
pub struct AssertWithin<V = Var> {
    /// int64 or int32, any shape.
    #[input]
    pub x: V,
    /// `x`.
    #[output]
    pub out: V,
    /// The least number.
    #[attr(default = 0)]
    pub low: i64,
    /// The number after the largest one.
    #[attr]
    pub high: i64,
}
impl Infer for AssertWithin<Meta> {
    fn infer(&mut self) -> Result<()> {
        are_numbers(&self.x)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for AssertWithin<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let AssertWithin { x, low, high, .. } = &*self;
        for i in 0..x.numel() {
            let number = number(x, i)?;
            if !(*low..*high).contains(&number) {
                return Err(Error::data(format!("`{}`: {number} is not within {low}..{high}", x.slot())));
            }
        }
        self.out.copy_from(&self.x)
    }
}
impl Composition for AssertWithin<Expr> {
    fn compose(&mut self) {
        self.out = self.x.clone();
    }
}
autobwd::samples!(
    AssertWithin,
    [
        assert_within([2, 2], [0.0, 3.0, 1.0, -1.0], -1, 4),
        AssertWithin { x: given([1], [2.0]).of(DType::I32), ..assert_within([1], [2.0], 2, 3) },
        assert_within([0], [], 0, 0),
        assert_within([3], [0.0, 3.0, 1.0], 0, 3).fails("`X`: 3 is not within 0..3"),
        AssertWithin { x: uniform([2]), ..assert_within([2], [0.0, 0.0], 0, 1) }
            .fails("`X`: int64 or int32 is needed"),
    ]
);

fn assert_within<const R: usize, const N: usize>(
    dims: [usize; R],
    numbers: [f64; N],
    low: i64,
    high: i64,
) -> AssertWithin<Draw> {
    AssertWithin { x: given(dims, numbers).of(DType::I64), out: out(), low, high }
}
