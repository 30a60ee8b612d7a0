//! Embedding look-up. The gradient of the table is dense, or sparse with the rows that were looked up.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*,
    emit,
    op::{with_dtype, with_float},
    register_op,
    tensor::Dim,
};

use crate::{
    Math,
    gather::{Pick, are_numbers},
    kernel_helpers::{infer_grad, outer_axis_inner},
    math::{all_sizes, filled, like},
    scatter::GatherNd,
};

/// Embedding look-up: `out = w[ids]`, for indices with a last dimension of 1.
#[register_op(grad = LookupTableGrad, any_dtype)]
pub struct LookupTable<V = Var> {
    /// The table, `[rows, width]`, any dtype.
    #[input]
    pub w: V,
    /// Row indices, int64 or int32, `[.., 1]`.
    #[input(checked)]
    pub ids: V,
    /// `[.., width]`.
    #[output]
    pub out: V,
    /// Index whose row reads as 0 and has no gradient; −1 for none.
    #[attr(default = -1)]
    pub padding_idx: i64,
    /// Whether the gradient of the table is sparse: it then holds the looked-up rows only.
    #[attr(default = false)]
    pub is_sparse: bool,
}
impl Infer for LookupTable<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.w.dtype, looked_up(&self.ids, column(&self.ids)?, &self.w)?);
        Ok(())
    }
}
impl Kernel for LookupTable<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        look_up(cx, &table(&self.ids, &self.w, self.padding_idx), &self.w, &mut self.out)
    }
}
impl Composition for LookupTable<Expr> {
    fn compose(&mut self) {
        let mut shape = vec![0; self.ids.dims().len()];
        shape.splice(shape.len() - 1.., [1]);
        self.out = rows_at(&self.w, &self.ids.reshape(&shape), self.padding_idx);
    }
}

/// Rows of a table at indices `[.., 1]`.
fn rows_at(w: &Expr, ids: &Expr, padding_idx: i64) -> Expr {
    let rows = |ids: &Expr| emit(GatherNd { x: w.into(), index: ids.into(), out: New }).out;
    if padding_idx == -1 {
        return rows(ids);
    }
    let is_padding = ids.equal(&filled(ids.builder(), ids.dtype(), &padding_idx.to_string(), &[1.into()]));
    // The table need not have the row.
    let rows = rows(&is_padding.where_cond(&like(ids, 0.0), ids));
    is_padding.expand_to(&all_sizes(&rows)).where_cond(&like(&rows, 0.0), &rows)
}
autobwd::samples!(
    LookupTable,
    [
        column_lookup(integers_below(4, [5, 1]), uniform([4, 3]), -1),
        column_lookup(integers_below(3, [2, 5, 1]).of(DType::I32), uniform([3, 4]), -1),
        column_lookup(given([4, 1], [2.0, 1.0, 2.0, 0.0]).of(DType::I64), uniform([5, 2]), 2),
        LookupTable { is_sparse: true, ..column_lookup(integers_below(3, [2, 4, 1]), uniform([3, 5]), 1) },
        column_lookup(integers_below(4, [5, 1]), integers_below(9, [4, 3]), 1),
        column_lookup(integers_below(3, [4, 2]), uniform([3, 2]), -1)
            .fails("`Ids`: a last dimension of 1 is needed"),
        column_lookup(integers_below(3, []), uniform([3, 2]), -1).fails("`Ids`: a last dimension"),
        column_lookup(integers_below(3, [2, 1]), uniform([3]), -1).fails("`W`: 2 dimensions are needed"),
    ]
);

fn column_lookup(ids: Draw, w: Draw, padding_idx: i64) -> LookupTable<Draw> {
    LookupTable { w, ids, out: out(), padding_idx, is_sparse: false }
}

/// The dimensions without the last one, which is 1.
fn column(ids: &Meta) -> Result<&[Dim]> {
    match &*ids.dims {
        [dims @ .., one] if one.agrees(1.into()) => Ok(dims),
        _ => Err(ids.wrong("a last dimension of 1 is needed")),
    }
}

/// The output shape for indices of shape `numbers`.
fn looked_up(ids: &Meta, numbers: &[Dim], w: &Meta) -> Result<Dims> {
    are_numbers(ids)?;
    let [_, width] = w.unpack()?;
    Ok(numbers.iter().copied().chain([width]).collect())
}

fn table<'a>(ids: &'a Buf<'a>, w: &Buf<'_>, padding_idx: i64) -> Pick<'a> {
    let (_, n, width) = outer_axis_inner(w.dims(), 0);
    Pick { numbers: ids, padding: (padding_idx != -1).then_some(padding_idx), n, width }
}

fn look_up(cx: &Cx, pick: &Pick<'_>, w: &Buf<'_>, out: &mut Buf<'_>) -> Result<()> {
    with_dtype!(w.dtype(), T => pick.rows::<T>(cx, w.slice()?, out.slice_mut()?))
}

/// `dw[ids] += dout`, except for the padding index.
#[register_op(grad_of = LookupTable, grad = Multilinear)]
pub struct LookupTableGrad<V = Var> {
    #[input(shape_only)]
    pub w: V,
    pub ids: V,
    pub dout: V,
    #[output]
    pub dw: V,
    pub padding_idx: i64,
    pub is_sparse: bool,
}
impl Infer for LookupTableGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = looked_up(&self.ids, column(&self.ids)?, &self.w)?;
        infer_table(&self.w, &self.ids, &self.dout, &dims, self.is_sparse, &mut self.dw)
    }
}
impl Kernel for LookupTableGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        add_up(cx, &table(&self.ids, &self.w, self.padding_idx), &self.dout, &mut self.dw)
    }
}

fn infer_table(w: &Meta, ids: &Meta, dout: &Meta, dims: &Dims, sparse: bool, dw: &mut Meta) -> Result<()> {
    infer_grad(w, dout, dims, dw)?;
    // One row for each index is an upper bound.
    dw.rows = sparse.then_some(ids.dims.numel());
    Ok(())
}

fn add_up(cx: &Cx, pick: &Pick<'_>, dout: &Buf<'_>, dw: &mut Buf<'_>) -> Result<()> {
    with_float!(dout, T => {
        let dout = dout.slice::<T>()?;
        if dw.is_sparse() { pick.add_up_rows(cx, dout, dw) } else { pick.add_up(cx, dout, dw.slice_mut()?) }
    })
}

/// Embedding look-up: `out = w[ids]`.
#[register_op(grad = LookupTableV2Grad, any_dtype)]
pub struct LookupTableV2<V = Var> {
    /// Row indices, int64 or int32, any shape.
    #[input(checked)]
    pub ids: V,
    /// The table, `[rows, width]`, any dtype.
    #[input]
    pub w: V,
    /// `ids` with `width` as additional last dimension.
    #[output]
    pub out: V,
    /// Index whose row reads as 0 and has no gradient; −1 for none.
    #[attr(default = -1)]
    pub padding_idx: i64,
    /// Whether the gradient of the table is sparse: it then holds the looked-up rows only.
    #[attr(default = false)]
    pub is_sparse: bool,
}
impl Infer for LookupTableV2<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.w.dtype, looked_up(&self.ids, &self.ids.dims, &self.w)?);
        Ok(())
    }
}
impl Kernel for LookupTableV2<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        look_up(cx, &table(&self.ids, &self.w, self.padding_idx), &self.w, &mut self.out)
    }
}
impl Composition for LookupTableV2<Expr> {
    fn compose(&mut self) {
        self.out = rows_at(&self.w, &self.ids.unsqueeze(&[-1]), self.padding_idx);
    }
}
autobwd::samples!(
    LookupTableV2,
    [
        lookup(integers_below(4, [5]), uniform([4, 3]), -1),
        lookup(integers_below(3, [2, 5]).of(DType::I32), uniform([3, 4]), -1),
        lookup(given([4], [2.0, 1.0, 2.0, 0.0]).of(DType::I64), uniform([5, 2]), 2),
        lookup(given([2], [7.0, 1.0]).of(DType::I64), uniform([5, 2]), 7),
        lookup(integers_below(3, []), uniform([3, 2]), -1),
        lookup(integers_below(3, [0, 2]), uniform([3, 4]), -1),
        lookup(integers_below(3, [2]), uniform([3, 0]), -1),
        lookup(integers_below(3, [2]), integers_below(9, [3, 4]).of(DType::U8), -1),
        sparse(integers_below(9, [4]), uniform([9, 3]), -1),
        sparse(given([2, 3], [4.0, 1.0, 4.0, 4.0, 0.0, 1.0]).of(DType::I64), uniform([5, 4]), 1),
        sparse(given([3], [2.0, 2.0, 2.0]).of(DType::I32), uniform([5, 2]), -1),
        sparse(given([2], [3.0, 3.0]).of(DType::I64), uniform([5, 4]), 3),
        sparse(given([2], [7.0, 1.0]).of(DType::I64), uniform([5, 3]), 7),
        sparse(integers_below(3, []), uniform([3, 2]), -1),
        sparse(integers_below(3, [0, 2]), uniform([3, 4]), -1),
        sparse(integers_below(3, [2]), uniform([3, 0]), -1),
        lookup(given([2], [1.0, -1.0]).of(DType::I64), uniform([3, 2]), -1)
            .fails("`Ids`: -1 is not within 0..3"),
        lookup(integers_below(3, [2]), uniform([3]), -1).fails("`W`: 2 dimensions are needed"),
        lookup(uniform([2]), uniform([3, 2]), -1).fails("`Ids`: int64 or int32 is needed"),
    ]
);

fn lookup(ids: Draw, w: Draw, padding_idx: i64) -> LookupTableV2<Draw> {
    LookupTableV2 { ids, w, out: out(), padding_idx, is_sparse: false }
}

fn sparse(ids: Draw, w: Draw, padding_idx: i64) -> LookupTableV2<Draw> {
    LookupTableV2 { is_sparse: true, ..lookup(ids, w, padding_idx) }
}

/// `dw[ids] += dout`, except for the padding index.
#[register_op(grad_of = LookupTableV2, grad = Multilinear)]
pub struct LookupTableV2Grad<V = Var> {
    pub ids: V,
    #[input(shape_only)]
    pub w: V,
    pub dout: V,
    #[output]
    pub dw: V,
    pub padding_idx: i64,
    pub is_sparse: bool,
}
impl Infer for LookupTableV2Grad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = looked_up(&self.ids, &self.ids.dims, &self.w)?;
        infer_table(&self.w, &self.ids, &self.dout, &dims, self.is_sparse, &mut self.dw)
    }
}
impl Kernel for LookupTableV2Grad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        add_up(cx, &table(&self.ids, &self.w, self.padding_idx), &self.dout, &mut self.dw)
    }
}
