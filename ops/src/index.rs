//! `index_select`, `index_sample` and `scatter_nd_add`: reading and writing elements by index.

use autobwd::{
    Buf, Composition, Cx, DType, Expr, GradCx, GradRule, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*, emit, op::with_float, register_op, tensor::OptionalBuf,
};

use crate::{
    Math,
    elementwise::grad_or_zeros,
    gather::{are_numbers, gathered},
    scatter::{GatherNd, Places, TakeAlongAxis, check_positions, found},
};

/// Slices of a tensor by their indices along a dimension: `out[.., i, ..] = x[.., index[i], ..]`.
#[register_op(grad = IndexSelectGrad, composed)]
pub struct IndexSelect<V = Var> {
    /// At least one dimension, any dtype.
    #[input]
    pub x: V,
    /// Indices, int64 or int32, `[n]`.
    #[input(checked)]
    pub index: V,
    /// `x` with `n` in place of dimension `dim`.
    #[output]
    pub out: V,
    /// The dimension; negative counts from the end.
    #[attr(default = 0)]
    pub dim: i32,
}
impl Infer for IndexSelect<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.index.require(self.index.rank() == 1, || "one dimension is needed".into())?;
        self.x.axis("dim", self.dim.into())?;
        self.out.set(self.x.dtype, gathered(&self.x, &self.index, self.dim)?);
        Ok(())
    }
}
impl Composition for IndexSelect<Expr> {
    fn compose(&mut self) {
        self.out = self.x.gather(&self.index, self.dim);
    }
}
autobwd::samples!(
    IndexSelect,
    [
        IndexSelect { x: uniform([4, 3]), index: integers_below(4, [5]), out: out(), dim: 0 },
        IndexSelect {
            x: uniform([2, 3, 4]),
            index: integers_below(3, [5]).of(DType::I32),
            out: out(),
            dim: -2
        },
        IndexSelect { x: uniform([2, 3]), index: integers_below(2, [0]), out: out(), dim: 0 },
        IndexSelect { x: integers_below(9, [5]), index: integers_below(5, [3]), out: out(), dim: 0 },
        IndexSelect { x: uniform([2, 3]), index: given([1], [2.0]).of(DType::I64), out: out(), dim: 0 }
            .fails("`Index`: 2 is not within 0..2"),
        IndexSelect { x: uniform([2, 3]), index: integers_below(2, [3, 1]), out: out(), dim: 0 }
            .fails("`Index`: one dimension is needed"),
        IndexSelect { x: uniform([2, 3]), index: uniform([3]), out: out(), dim: 0 }
            .fails("`Index`: int64 or int32 is needed"),
        IndexSelect { x: uniform([2, 3]), index: integers_below(2, [3]), out: out(), dim: 2 }
            .fails("attribute `dim` = 2"),
    ]
);

/// `dx[.., index[i], ..] += dout[.., i, ..]`.
#[register_op(grad_of = IndexSelect, grad = Multilinear, composed, inferred)]
pub struct IndexSelectGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub index: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub dim: i32,
}

/// Elements of each row by their positions: `out[i, j] = x[i, index[i, j]]`.
#[register_op(grad = IndexSampleGrad, composed)]
pub struct IndexSample<V = Var> {
    /// A matrix, `[m, n]`, any dtype.
    #[input]
    pub x: V,
    /// Positions, int64 or int32, `[m, k]`.
    #[input(checked)]
    pub index: V,
    /// `[m, k]`.
    #[output]
    pub out: V,
}
impl Infer for IndexSample<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.require(self.x.rank() == 2, || "a matrix is needed".into())?;
        check_positions(&self.x, &self.index, 1)?;
        self.out.set(self.x.dtype, self.index.dims.clone());
        Ok(())
    }
}
impl Composition for IndexSample<Expr> {
    fn compose(&mut self) {
        let (input, index) = ((&self.x).into(), (&self.index).into());
        self.out = emit(TakeAlongAxis { input, index, result: New, axis: 1 }).result;
    }
}
autobwd::samples!(
    IndexSample,
    [
        IndexSample { x: uniform([2, 4]), index: integers_below(4, [2, 3]), out: out() },
        IndexSample { x: uniform([3, 2]), index: integers_below(2, [3, 5]).of(DType::I32), out: out() },
        IndexSample { x: uniform([2, 4]), index: integers_below(4, [2, 0]), out: out() },
        IndexSample { x: integers_below(9, [2, 4]), index: integers_below(4, [2, 3]), out: out() },
        IndexSample { x: uniform([2, 3]), index: given([2, 1], [0.0, 3.0]).of(DType::I64), out: out() }
            .fails("`Index`: 3 is not within 0..3"),
        IndexSample { x: uniform([2, 3]), index: integers_below(2, [3, 1]), out: out() }
            .fails("`Index`: dimensions [2, -1] are needed"),
        IndexSample { x: uniform([2, 3]), index: uniform([2, 1]), out: out() }
            .fails("`Index`: int64 or int32 is needed"),
        IndexSample { x: uniform([3]), index: integers_below(2, [3]), out: out() }
            .fails("`X`: a matrix is needed"),
    ]
);

/// `dx[i, index[i, j]] += dout[i, j]`.
#[register_op(grad_of = IndexSample, grad = Multilinear, composed, inferred)]
pub struct IndexSampleGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    pub index: V,
    pub dout: V,
    #[output]
    pub dx: V,
}

/// Sums slices into a tensor: `out = x`, and `out[index[i], ..] += updates[i, ..]` for every multi-dimensional index.
#[register_op(grad = ScatterNdAddGrad, primitive)]
pub struct ScatterNdAdd<V = Var> {
    /// At least one dimension.
    #[input]
    pub x: V,
    /// Indices, int64 or int32; the size of the last dimension is the number of leading dimensions of `x` that they
    /// index.
    #[input]
    pub index: V,
    /// `index` with the unindexed dimensions of `x` in place of its last one.
    #[input]
    pub updates: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
}
impl Infer for ScatterNdAdd<Meta> {
    fn infer(&mut self) -> Result<()> {
        are_slices(&self.x, &self.index, &self.updates)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for ScatterNdAdd<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let places = Places::new(self.x.dims(), &self.index);
        places.check()?;
        with_float!(self.x, T => {
            let out = self.out.inout::<T>(&self.x)?.copied();
            places.add_up(self.updates.slice::<T>()?, out)
        })
    }
}
autobwd::samples!(
    ScatterNdAdd,
    [
        scatter_nd_add(uniform([4, 3]), integers_below(4, [5, 1]), uniform([5, 3])),
        scatter_nd_add(uniform([4, 3]), integers_below(3, [2, 5, 2]), uniform([2, 5])),
        scatter_nd_add(uniform([2, 3, 4]), integers_below(2, [5, 2]).of(DType::I32), uniform([5, 4])),
        scatter_nd_add(uniform([2, 3]), integers_below(2, [0, 1]), uniform([0, 3])),
        scatter_nd_add(uniform([2, 3]), given([1, 2], [1.0, 3.0]).of(DType::I64), uniform([1]))
            .fails("`Index`: 3 is not within 0..3"),
        scatter_nd_add(uniform([2, 3]), integers_below(2, [4, 1]), uniform([4, 2]))
            .fails("`Updates`: the shape of these slices, [4, 3], is needed"),
        scatter_nd_add(integers_below(9, [2]), integers_below(2, [4, 1]), integers_below(9, [4]))
            .fails("`X`: floating point numbers are needed"),
        scatter_nd_add(uniform([2]), integers_below(2, [4, 1]), integers_below(9, [4]))
            .fails("`Updates`: dtype int64 does not match"),
        scatter_nd_add(uniform([2, 3]), integers_below(2, [4, 3]), uniform([4]))
            .fails("`Index`: a last dimension of 1 to 2 is needed"),
    ]
);

fn scatter_nd_add(x: Draw, index: Draw, updates: Draw) -> ScatterNdAdd<Draw> {
    ScatterNdAdd { x, index, updates, out: out() }
}

/// Checks that `updates` are slices of `x` with these indices.
fn are_slices(x: &Meta, index: &Meta, updates: &Meta) -> Result<()> {
    x.float()?;
    updates.same_dtype(x)?;
    are_numbers(index)?;
    if index.dims.last().is_some_and(|k| k.get().is_none()) {
        return Ok(());
    }
    let dims = found(x, index)?;
    updates.require(updates.dims.agrees(&dims), || format!("the shape of these slices, {dims}, is needed"))
}

/// `dx = dout`, `dupdates[i, ..] = dout[index[i], ..]`.
#[register_op(grad_of = ScatterNdAdd, grad = ScatterNdAddGradGrad)]
pub struct ScatterNdAddGrad<V = Var> {
    pub index: V,
    pub dout: V,
    #[input(shape_only)]
    pub updates: V,
    #[output]
    pub dx: Option<V>,
    #[output]
    pub dupdates: Option<V>,
}
impl Infer for ScatterNdAddGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        are_slices(&self.dout, &self.index, &self.updates)?;
        self.dx.iter_mut().for_each(|dx| dx.like(&self.dout));
        self.dupdates.iter_mut().for_each(|dupdates| dupdates.like(&self.updates));
        Ok(())
    }
}
impl Kernel for ScatterNdAddGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let places = Places::new(self.dout.dims(), &self.index);
        places.check()?;
        with_float!(self.dout, T => {
            let dout = self.dout.slice::<T>()?;
            if let Some(dx) = self.dx.slice_mut()? {
                dx.copy_from_slice(dout);
            }
            if let Some(dupdates) = self.dupdates.slice_mut()? {
                places.take(cx, dout, dupdates);
            }
            Ok(())
        })
    }
}
impl Composition for ScatterNdAddGrad<Expr> {
    fn compose(&mut self) {
        // Ranks say how many dimensions are indexed, even where the sizes of `index` are unknown.
        let [rank, of_index, of_updates] =
            [&self.dout, &self.index, &self.updates].map(|x| x.dims().len() as i32);
        let mut shape = vec![0; of_index as usize - 1];
        shape.push(rank + of_index - 1 - of_updates);
        let (x, index) = ((&self.dout).into(), self.index.reshape(&shape).into());
        self.dx = Some(self.dout.clone());
        self.dupdates = Some(emit(GatherNd { x, index, out: New }).out);
    }
}

autobwd::samples!(
    ScatterNdAddGrad,
    [
        scatter_nd_add_grad(integers_below(2, [5, 2]), uniform([2, 3, 4]), uniform([5, 4])),
        scatter_nd_add_grad(uniform([5, 4]), uniform([2, 3, 4]), uniform([5, 4])).fails("`Index`: "),
        scatter_nd_add_grad(integers_below(2, [5, 4]), uniform([2, 3, 4]), uniform([5]))
            .fails("`Index`: a last dimension of 1 to 3 is needed"),
        scatter_nd_add_grad(integers_below(2, [5, 1]), uniform([2, 3, 4]), uniform([5, 4]))
            .fails("the shape of these slices, [5, 3, 4], is needed"),
    ]
);

fn scatter_nd_add_grad(index: Draw, dout: Draw, updates: Draw) -> ScatterNdAddGrad<Draw> {
    ScatterNdAddGrad { index, dout, updates, dx: Some(out()), dupdates: Some(out()) }
}

/// `ddout = ddx`, and `ddout[index[i], ..] += ddupdates[i, ..]`.
#[derive(Debug)]
pub struct ScatterNdAddGradGrad;
impl GradRule<ScatterNdAddGrad> for ScatterNdAddGradGrad {
    fn emit(fwd: &ScatterNdAddGrad, g: &mut GradCx<'_>) {
        if let Some(out) = g.wanted(fwd.dout) {
            let x = grad_or_zeros(g, fwd.dx, fwd.dout);
            let updates = grad_or_zeros(g, fwd.dupdates, fwd.updates);
            g.push(ScatterNdAdd { x, index: fwd.index, updates, out });
        }
    }
}
