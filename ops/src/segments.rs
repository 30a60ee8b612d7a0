//! Rows of a tensor, reduced by groups: `segment_pool`.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{attr_enum, with_float},
    register_op,
    tensor::Dim,
};

use crate::{
    DimExpr, Math,
    gather::{are_numbers, place},
    index::ScatterNdAdd,
    kernel_helpers::KernelFloat,
    math::{all_sizes, filled, in_dtype, like, positions, product},
    scatter::Scatter,
    sort::Argsort,
};

attr_enum! {
    /// What becomes of the rows of a group.
    pub enum GroupReduction {
        /// The sum.
        Sum = "SUM",
        /// The mean.
        Mean = "MEAN",
        /// The largest elements.
        Max = "MAX",
        /// The smallest elements.
        Min = "MIN",
    }
}

/// Rows, and the group of each.
pub(crate) struct GroupedRows<'a> {
    /// `[n, ..]`
    pub(crate) rows: &'a Expr,
    /// `[n]`
    pub(crate) groups: &'a Expr,
    /// The number of groups.
    pub(crate) count: DimExpr,
}

impl GroupedRows<'_> {
    /// A row for each group, 0 for groups without rows.
    pub(crate) fn reduced(&self, how: GroupReduction) -> Expr {
        match how {
            GroupReduction::Sum => self.sums(self.rows),
            GroupReduction::Mean => {
                let after: Vec<i32> = (1..self.rows.dims().len() as i32).collect();
                let sizes = self.sizes(self.rows.dtype());
                self.sums(self.rows) / sizes.maximum(&like(&sizes, 1.0)).unsqueeze(&after)
            }
            GroupReduction::Max | GroupReduction::Min => self.extremes(how == GroupReduction::Max),
        }
    }

    /// The number of rows of each group.
    pub(crate) fn sizes(&self, dtype: DType) -> Expr {
        self.sums(&like(&in_dtype(self.groups, dtype), 1.0))
    }

    fn sums(&self, rows: &Expr) -> Expr {
        let mut dims = all_sizes(rows);
        dims[0] = self.count.clone();
        let zeros = filled(rows.builder(), rows.dtype(), "0", &dims);
        let (x, index, updates) = ((&zeros).into(), (&self.groups.unsqueeze(&[1])).into(), rows.into());
        emit(ScatterNdAdd { x, index, updates, out: New }).out
    }

    /// The largest or smallest elements: each column is sorted, and the last element of a group that is written stays.
    fn extremes(&self, largest: bool) -> Expr {
        let mut dims = all_sizes(self.rows);
        dims[0] = self.count.clone();
        let builder = self.rows.builder();
        let matrix = match dims.len() {
            1 => self.rows.unsqueeze(&[1]),
            _ => self.rows.flatten(1, -1),
        };
        let (x, descending) = ((&matrix).into(), !largest);
        let sorted = emit(Argsort { x, out: New, indices: New, axis: 0, descending });
        let groups = in_dtype(self.groups, DType::I64).gather(&sorted.indices.flatten(0, 1), 0);
        let width = matrix.dim(1);
        let columns = (positions(builder, &width) + like(&sorted.indices, 0.0)).flatten(0, 1);
        let zeros = filled(builder, self.rows.dtype(), "0", &[product(&dims)]);
        let ids = groups * width.number(builder) + columns;
        let (x, ids, updates) = ((&zeros).into(), (&ids).into(), (&sorted.out.flatten(0, 1)).into());
        emit(Scatter { x, ids, updates, out: New, overwrite: true }).out.reshape_to(&dims)
    }
}

/// Reduces rows to one.
fn pool<T: KernelFloat>(rows: &[T], out: &mut [T], how: GroupReduction) {
    let width = out.len().max(1);
    out.copy_from_slice(&rows[..out.len()]);
    for row in rows.chunks_exact(width).skip(1) {
        let pairs = out.iter_mut().zip(row);
        match how {
            GroupReduction::Sum | GroupReduction::Mean => pairs.for_each(|(out, x)| *out += *x),
            // NaN is the largest, as in a sort.
            GroupReduction::Max => {
                pairs.for_each(|(out, x)| *out = if *x > *out || x.is_nan() { *x } else { *out });
            }
            GroupReduction::Min => {
                pairs.for_each(|(out, x)| *out = if *x < *out || out.is_nan() { *x } else { *out });
            }
        }
    }
    if how == GroupReduction::Mean {
        let count = T::of((rows.len() / width) as f64);
        out.iter_mut().for_each(|out| *out = *out / count);
    }
}

/// Rows reduced by segments of consecutive rows: `out[s, ..]` is the reduction of all `x[i, ..]` with `segment_ids[i] = s`, 0
/// for segments without rows.
///
/// There are as many segments as the last one says. All of several largest or smallest elements have the gradient.
#[register_op(grad = SegmentPoolGrad)]
pub struct SegmentPool<V = Var> {
    /// `[n, ..]`
    #[input]
    pub x: V,
    /// The segment of each row, below `n` and in ascending order: int64 or int32, `[n]`.
    #[input]
    pub segment_ids: V,
    /// `[k, ..]`; `k` is at most `n`.
    #[output]
    pub out: V,
    /// The number of rows of each segment in the dtype of `x`, `[k, 1]`.
    #[output]
    pub summed_ids: Option<V>,
    /// The reduction (`SUM`, `MEAN`, `MAX`, `MIN`).
    #[attr(default = GroupReduction::Sum)]
    pub pooltype: GroupReduction,
}
impl Infer for SegmentPool<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        are_numbers(&self.segment_ids)?;
        let mut dims = self.x.dims.clone();
        self.x.require(!dims.is_empty(), || "at least one dimension is needed".into())?;
        let of_each = Dims::from_iter([dims[0]]);
        self.segment_ids
            .require(self.segment_ids.dims.agrees(&of_each), || format!("dimensions {of_each} are needed"))?;
        dims[0] = Dim::at_most(dims[0]);
        self.summed_ids
            .iter_mut()
            .for_each(|sizes| sizes.set(self.x.dtype, [dims[0], 1.into()].into_iter().collect::<Dims>()));
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for SegmentPool<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let SegmentPool { x, segment_ids, out, summed_ids, pooltype } = self;
        let n = segment_ids.numel();
        let mut last = 0;
        for i in 0..n {
            let segment = place(segment_ids, i, n)?;
            if segment < last {
                let text =
                    format!("`{}`: {segment} follows {last}; ascending order is needed", segment_ids.slot());
                return Err(Error::data(text));
            }
            last = segment;
        }
        let count = if n > 0 { last + 1 } else { 0 };
        let width = x.dims()[1..].iter().product::<usize>();
        with_float!(x, T => {
            let (x, out) = (x.slice::<T>()?, out.decide_along::<T>(0, count)?);
            let mut sizes = match summed_ids {
                Some(sizes) => Some(sizes.decide_along::<T>(0, count)?),
                None => None,
            };
            out.fill(0.0);
            sizes.iter_mut().for_each(|sizes| sizes.fill(0.0));
            let mut first = 0;
            while first < n {
                let segment = place(segment_ids, first, n)?;
                let mut end = first;
                while end < n && place(segment_ids, end, n)? == segment {
                    end += 1;
                }
                let own = &mut out[segment * width..][..width];
                pool(&x[first * width..end * width], own, *pooltype);
                sizes.iter_mut().for_each(|sizes| sizes[segment] = (end - first) as T);
                first = end;
            }
        });
        Ok(())
    }
}
impl Composition for SegmentPool<Expr> {
    fn compose(&mut self) {
        let (x, groups) = (&self.x, in_dtype(&self.segment_ids, DType::I64));
        let grouped = GroupedRows { rows: x, groups: &groups, count: x.dim(0) };
        let is_used = positions(x.builder(), &x.dim(0)).less_equal(&groups.slice(0, -1, i32::MAX));
        let used = is_used.nonzero().squeeze(&[1]);
        self.out = grouped.reduced(self.pooltype).gather(&used, 0);
        self.summed_ids = Some(grouped.sizes(x.dtype()).gather(&used, 0).unsqueeze(&[1]));
    }
}
autobwd::samples!(
    SegmentPool,
    [
        segment_pool(uniform([5, 2]), vec![0, 0, 1, 1, 1], GroupReduction::Sum),
        segment_pool(uniform([4, 3, 2]), vec![0, 2, 2, 2], GroupReduction::Mean),
        segment_pool(distinct([5, 2]), vec![0, 0, 1, 3, 3], GroupReduction::Max),
        segment_pool(distinct([4, 3, 2]), vec![1, 1, 1, 2], GroupReduction::Min),
        segment_pool(distinct([6]), vec![0, 0, 2, 2, 4, 4], GroupReduction::Max),
        segment_pool(uniform([0, 2]), vec![], GroupReduction::Mean),
        segment_pool(uniform([3, 0]), vec![0, 1, 1], GroupReduction::Min),
        SegmentPool {
            segment_ids: integers(&[0, 1, 1]).of(DType::I32),
            summed_ids: None,
            ..segment_pool(uniform([3]), vec![], GroupReduction::Sum)
        },
        segment_pool(uniform([2, 3]), vec![0, 2], GroupReduction::Sum)
            .fails("`SegmentIds`: 2 is not within 0..2"),
        segment_pool(uniform([3]), vec![0, 1, 0], GroupReduction::Sum)
            .fails("`SegmentIds`: 0 follows 1; ascending order is needed"),
        segment_pool(uniform([2, 3]), vec![0, 1, 1], GroupReduction::Sum)
            .fails("`SegmentIds`: dimensions [2] are needed"),
        segment_pool(uniform([]), vec![0], GroupReduction::Sum)
            .fails("`X`: at least one dimension is needed"),
        segment_pool(integers_below(9, [2]), vec![0, 1], GroupReduction::Sum)
            .fails("`X`: floating point numbers are needed"),
        SegmentPool { segment_ids: uniform([2]), ..segment_pool(uniform([2]), vec![], GroupReduction::Sum) }
            .fails("`SegmentIds`: int64 or int32 is needed"),
    ]
);

fn segment_pool(x: Draw, segment_ids: Vec<i64>, pooltype: GroupReduction) -> SegmentPool<Draw> {
    SegmentPool { x, segment_ids: integers(&segment_ids), out: out(), summed_ids: Some(out()), pooltype }
}

/// `dx[i, ..] = dout[segment_ids[i], ..]`, divided by the number of rows for a mean, or 0 for elements that are not the largest or
/// smallest.
#[register_op(grad_of = SegmentPool, grad = Composed, composed, inferred)]
pub struct SegmentPoolGrad<V = Var> {
    pub x: V,
    pub segment_ids: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub pooltype: GroupReduction,
}
impl Composition for SegmentPoolGrad<Expr> {
    fn compose(&mut self) {
        let (x, groups) = (&self.x, &self.segment_ids);
        let received = self.dout.gather(groups, 0);
        let grouped = GroupedRows { rows: x, groups, count: x.dim(0) };
        self.dx = match self.pooltype {
            GroupReduction::Sum => received,
            GroupReduction::Mean => {
                let after: Vec<i32> = (1..x.dims().len() as i32).collect();
                received / grouped.sizes(x.dtype()).gather(groups, 0).unsqueeze(&after)
            }
            GroupReduction::Max | GroupReduction::Min => {
                let extremes = grouped.reduced(self.pooltype).gather(groups, 0);
                x.equal(&extremes).where_cond(&received, &like(x, 0.0))
            }
        };
    }
}
