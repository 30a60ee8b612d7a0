//! Operators that drop, add or merge dimensions without moving elements.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*,
    emit,
    operators::{Reshape2, in_stored_shape, infer_from_x_shape, set_x_shape},
    register_op,
    tensor::Dim,
};

use super::transpose::copies;
use crate::{
    Math,
    math::{all_sizes, product},
};

/// Drops dimensions of size 1: `out = x`.
#[register_op(grad = Squeeze2Grad, infallible, any_dtype, primitive)]
pub struct Squeeze2<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// `x` without those of the dimensions `axes` that have size 1.
    #[output(inplace = x)]
    pub out: V,
    /// Records the shape of `x`: `[0]` and its dimensions, so it has no elements.
    #[output]
    pub x_shape: V,
    /// The dimensions; negative counts from the end, empty means all of size 1.
    #[attr(default = [])]
    pub axes: Vec<i32>,
}
/// The shape of `squeeze2`'s result.
fn squeezed(x: &Meta, axes: &[i32]) -> Result<Dims> {
    let mut dropped = vec![axes.is_empty(); x.rank()];
    if axes.is_empty() && x.dims.iter().any(|dim| dim.is_open()) {
        let text =
            format!("shape {} has unknown dimensions, so those of length 1 are not known; list them", x.dims);
        return Err(Error::attr("axes", text));
    }
    for axis in axes {
        // As in the reference, a scalar may be squeezed along its first or last axis.
        if !(x.rank() == 0 && matches!(axis, -1 | 0)) {
            dropped[x.axis("axes", i64::from(*axis))?] = true;
        }
    }
    let kept = x.dims.iter().zip(dropped).filter(|(n, dropped)| !(*dropped && n.agrees(1.into())));
    Ok(kept.map(|(n, _)| *n).collect())
}
impl Infer for Squeeze2<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, squeezed(&self.x, &self.axes)?);
        set_x_shape(&self.x, &mut self.x_shape);
        Ok(())
    }
}
copies!(Squeeze2, out from x);
autobwd::samples!(
    Squeeze2,
    [
        Squeeze2 { x: uniform([2, 1, 3]), out: out(), x_shape: out(), axes: vec![1] },
        Squeeze2 { x: uniform([1, 2, 1, 3]), out: out(), x_shape: out(), axes: vec![-2, 0] },
        Squeeze2 { x: uniform([1, 2, 1, 3]), out: out(), x_shape: out(), axes: vec![] },
        Squeeze2 { x: uniform([1, 2, 3]), out: out(), x_shape: out(), axes: vec![0, 1] }.known_dims(
            "as in the reference, an unknown dimension that is named counts as 1, and stays if it is not"
        ),
        Squeeze2 { x: uniform([1]), out: out(), x_shape: out(), axes: vec![0] },
        Squeeze2 { x: uniform([]), out: out(), x_shape: out(), axes: vec![0] },
        Squeeze2 { x: uniform([0, 1]), out: out(), x_shape: out(), axes: vec![1] },
        Squeeze2 { x: integers_below(9, [2, 1]).of(DType::I32), out: out(), x_shape: out(), axes: vec![1] },
        Squeeze2 { x: uniform([2, 1]), out: out(), x_shape: out(), axes: vec![2] }
            .fails("attribute `axes` = 2"),
    ]
);

/// `dx = dout` in the shape of `x`.
#[register_op(grad_of = Squeeze2, grad = Multilinear, infallible, any_dtype)]
pub struct Squeeze2Grad<V = Var> {
    #[input(shape_only)]
    pub x_shape: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub axes: Vec<i32>,
}
impl Infer for Squeeze2Grad<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer_from_x_shape(&self.x_shape, &self.dout, &mut self.dx, |x| squeezed(x, &self.axes))
    }
}
copies!(Squeeze2Grad, dx from dout);
impl Composition for Squeeze2Grad<Expr> {
    fn compose(&mut self) {
        self.dx = in_stored_shape(&self.dout, &self.x_shape);
    }
}

/// Merges adjacent dimensions: `out = x`.
#[register_op(grad = FlattenContiguousRangeGrad, infallible, any_dtype)]
pub struct FlattenContiguousRange<V = Var> {
    /// Any shape, any dtype; a scalar counts as one dimension of size 1.
    #[input]
    pub x: V,
    /// `x` with one dimension in place of those from `start_axis` to `stop_axis`.
    #[output(inplace = x)]
    pub out: V,
    /// Records the shape of `x`: `[0]` and its dimensions, so it has no elements.
    #[output]
    pub x_shape: V,
    /// The first of the dimensions; negative counts from the end.
    #[attr(default = 1)]
    pub start_axis: i32,
    /// The last of the dimensions; negative counts from the end.
    #[attr(default = 1)]
    pub stop_axis: i32,
}
/// The shape of `flatten_contiguous_range`'s result.
fn flattened(x: &Meta, start_axis: i32, stop_axis: i32) -> Result<Dims> {
    let mut x = x.clone();
    if x.rank() == 0 {
        x.dims.push(1);
    }
    let (start, stop) = (x.axis("start_axis", start_axis.into())?, x.axis("stop_axis", stop_axis.into())?);
    if stop < start {
        let text = format!("a dimension not before `start_axis` = {start_axis} is needed, not {stop}");
        return Err(Error::attr("stop_axis", text));
    }
    let merged = x.dims[start..=stop].iter().fold(Dim::from(1), |n, dim| n * *dim);
    Ok(x.dims[..start].iter().chain([&merged]).chain(&x.dims[stop + 1..]).copied().collect())
}
impl Infer for FlattenContiguousRange<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(self.x.dtype, flattened(&self.x, self.start_axis, self.stop_axis)?);
        set_x_shape(&self.x, &mut self.x_shape);
        Ok(())
    }
}
copies!(FlattenContiguousRange, out from x);
impl Composition for FlattenContiguousRange<Expr> {
    fn compose(&mut self) {
        let mut dims = all_sizes(&self.x);
        if dims.is_empty() {
            dims.push(1.into());
        }
        let at = |axis: i32| (if axis < 0 { axis + dims.len() as i32 } else { axis }) as usize;
        let merged = at(self.start_axis)..=at(self.stop_axis);
        let length = product(&dims[merged.clone()]);
        dims.splice(merged, [length]);
        self.out = self.x.reshape_to(&dims);
        // A reshape to the same shape stores it, whatever form the other has.
        let same = vec![0; self.x.dims().len()];
        self.x_shape = emit(Reshape2::of((&self.x).into(), New, New, same)).x_shape;
    }
}
autobwd::samples!(
    FlattenContiguousRange,
    [
        flatten(uniform([2, 3, 4]), 1, 2),
        flatten(uniform([2, 3, 4, 5]), 0, -2),
        flatten(uniform([2, 3]), -1, 1),
        flatten(uniform([]), 0, -1),
        flatten(uniform([2, 0, 3]), 1, 2),
        flatten(integers_below(9, [2, 3]), 0, 1),
        flatten(uniform([2, 3]), 1, 2).fails("attribute `stop_axis` = 2"),
        flatten(uniform([2, 3]), 1, 0).fails("attribute `stop_axis`: a dimension not before"),
    ]
);

fn flatten(x: Draw, start_axis: i32, stop_axis: i32) -> FlattenContiguousRange<Draw> {
    FlattenContiguousRange { x, out: out(), x_shape: out(), start_axis, stop_axis }
}

/// `dx = dout` in the shape of `x`.
#[register_op(grad_of = FlattenContiguousRange, grad = Multilinear, infallible, any_dtype)]
pub struct FlattenContiguousRangeGrad<V = Var> {
    #[input(shape_only)]
    pub x_shape: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub start_axis: i32,
    pub stop_axis: i32,
}
impl Infer for FlattenContiguousRangeGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let forward = |x: &Meta| flattened(x, self.start_axis, self.stop_axis);
        infer_from_x_shape(&self.x_shape, &self.dout, &mut self.dx, forward)
    }
}
copies!(FlattenContiguousRangeGrad, dx from dout);
impl Composition for FlattenContiguousRangeGrad<Expr> {
    fn compose(&mut self) {
        self.dx = in_stored_shape(&self.dout, &self.x_shape);
    }
}
