//! Insertion of dimensions of size 1.

use crate::{
    Buf, Composition, Cx, DType, Dim, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
    register_op, sample::*,
};

use super::{constant_ints_of_tensor, in_stored_shape, infer_from_x_shape, set_x_shape};

/// Inserts dimensions of size 1: `out = x`.
#[register_op(grad = Unsqueeze2Grad, infallible, any_dtype, primitive)]
pub struct Unsqueeze2<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// The positions, in place of attribute `axes`: int32 or int64, of one dimension.
    #[input(constant)]
    pub axes_tensor: Option<V>,
    /// The positions, in place of attribute `axes`: int32 or int64, one element each.
    #[input(constant)]
    pub axes_tensor_list: Vec<V>,
    /// `x` with one more dimension for each of `axes`.
    #[output(inplace = x)]
    pub out: V,
    /// Records the shape of `x`: `[0]` and its dimensions, so it has no elements.
    #[output]
    pub x_shape: V,
    /// Positions of the dimensions, inserted one after the other; −1 appends one.
    #[attr]
    pub axes: Vec<i32>,
}
impl<V> Unsqueeze2<V> {
    /// Inserts dimensions at the positions of attribute `axes`.
    pub fn of(x: V, out: V, x_shape: V, axes: Vec<i32>) -> Unsqueeze2<V> {
        Unsqueeze2 { x, axes_tensor: None, axes_tensor_list: vec![], out, x_shape, axes }
    }
}
/// The shape of `unsqueeze2`'s result.
fn unsqueezed(x: &Meta, tensor: Option<&Meta>, list: &[Meta], axes: &[i32]) -> Result<Dims> {
    let mut dims = x.dims.to_vec();
    let axes = constant_ints_of_tensor(tensor, list, axes.iter().map(|axis| i64::from(*axis)))?;
    if axes.contains(&None) {
        return Ok(vec![Dim::UNKNOWN; dims.len() + axes.len()].into_iter().collect());
    }
    for axis in axes.iter().flatten() {
        let places = dims.len() as i64 + 1;
        let at = usize::try_from(axis.saturating_add(if *axis < 0 { places } else { 0 }));
        let at = at.ok().filter(|at| *at <= dims.len());
        let refuse =
            || Error::attr("axes", format!("{axis} is not a position among {} dimensions", dims.len()));
        dims.insert(at.ok_or_else(refuse)?, 1.into());
    }
    Ok(dims.into_iter().collect())
}
impl Infer for Unsqueeze2<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(
            self.x.dtype,
            unsqueezed(&self.x, self.axes_tensor.as_ref(), &self.axes_tensor_list, &self.axes)?,
        );
        set_x_shape(&self.x, &mut self.x_shape);
        Ok(())
    }
}
impl Kernel for Unsqueeze2<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
crate::samples!(
    Unsqueeze2,
    [
        unsqueeze2(uniform([2, 3]), vec![1]),
        unsqueeze2(uniform([2, 3]), vec![0, 3]),
        unsqueeze2(uniform([2, 3]), vec![-1, -3]),
        unsqueeze2(uniform([]), vec![0]),
        unsqueeze2(uniform([0]), vec![1]),
        unsqueeze2(integers_below(9, [3]), vec![]),
        Unsqueeze2 { axes_tensor: Some(integers(&[0, -1])), ..unsqueeze2(uniform([2, 3]), vec![]) },
        Unsqueeze2 {
            axes_tensor_list: vec![integers(&[1]), integers(&[0]).of(DType::I32)],
            ..unsqueeze2(uniform([2, 3]), vec![])
        },
        Unsqueeze2 { axes_tensor: Some(integers(&[3])), ..unsqueeze2(uniform([2, 3]), vec![]) }
            .fails("attribute `axes`: 3 is not a position among 2 dimensions"),
        unsqueeze2(uniform([2, 3]), vec![3])
            .fails("attribute `axes`: 3 is not a position among 2 dimensions"),
        unsqueeze2(uniform([2, 3]), vec![-4])
            .fails("attribute `axes`: -4 is not a position among 2 dimensions"),
    ]
);

fn unsqueeze2(x: Draw, axes: Vec<i32>) -> Unsqueeze2<Draw> {
    Unsqueeze2::of(x, out(), out(), axes)
}

/// `dx = dout` in the shape of `x`.
#[register_op(grad_of = Unsqueeze2, grad = Multilinear, infallible, any_dtype)]
pub struct Unsqueeze2Grad<V = Var> {
    #[input(shape_only)]
    pub x_shape: V,
    #[input(constant)]
    pub axes_tensor: Option<V>,
    #[input(constant)]
    pub axes_tensor_list: Vec<V>,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub axes: Vec<i32>,
}
impl Infer for Unsqueeze2Grad<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer_from_x_shape(&self.x_shape, &self.dout, &mut self.dx, |x| {
            let forward = unsqueezed(x, self.axes_tensor.as_ref(), &self.axes_tensor_list, &self.axes);
            // The reference's gradient operator does not read the tensors of the positions.
            let as_dout = (x.dims.numel() == self.dout.dims.numel()).then(|| self.dout.dims.clone());
            forward
                .ok()
                .filter(|dims| self.dout.dims.agrees(dims))
                .or(as_dout)
                .ok_or_else(|| self.dout.wrong("the shape of the forward result is needed"))
        })
    }
}
impl Kernel for Unsqueeze2Grad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.dx.copy_from(&self.dout)
    }
}
impl Composition for Unsqueeze2Grad<Expr> {
    fn compose(&mut self) {
        self.dx = in_stored_shape(&self.dout, &self.x_shape);
    }
}
