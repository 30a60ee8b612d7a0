//! Boxes of tensors.

use autobwd::{
    Composed, Composition, DType, Dims, Error, Expr, Infer, Meta, Result, Var,
    check::*,
    operators::{constant_ints_of_tensor, few_dims},
    register_op,
    tensor::Dim,
};

use crate::{
    Math,
    math::{DimExpr, given_integers},
};

/// A box of a tensor: `out[i, j, ..] = x[offsets[0] + i, offsets[1] + j, ..]`.
#[register_op(grad = Composed, composed)]
pub struct CropTensor<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub x: V,
    /// The shape of the box, in place of attribute `shape`: int32 or int64, of one dimension.
    #[input("Shape", constant)]
    pub shape_input: Option<V>,
    /// The dimensions of the box, in place of attribute `shape`: int32 or int64, one element each.
    #[input(constant)]
    pub shape_tensor: Vec<V>,
    /// The first element of the box, in place of attribute `offsets`: int32 or int64, of one dimension.
    #[input("Offsets", constant)]
    pub offsets_input: Option<V>,
    /// The first element of the box, in place of attribute `offsets`: int32 or int64, one element each.
    #[input(constant)]
    pub offsets_tensor: Vec<V>,
    /// The box.
    #[output]
    pub out: V,
    /// The position of the box in each dimension; none means 0.
    #[attr(default = [])]
    pub offsets: Vec<i32>,
    /// The shape of the box; −1 takes all elements after the offset.
    #[attr(default = [])]
    pub shape: Vec<i32>,
}
impl Infer for CropTensor<Meta> {
    fn infer(&mut self) -> Result<()> {
        few_dims(&self.x)?;
        let CropTensor { shape_input, shape_tensor, offsets_input, offsets_tensor, .. } = &*self;
        let wide = |attr: &[i32]| attr.iter().map(|n| i64::from(*n)).collect::<Vec<_>>();
        let [shape, offsets] = [wide(&self.shape), wide(&self.offsets)];
        let shape = constant_ints_of_tensor(shape_input.as_ref(), shape_tensor, shape.into_iter())?;
        let offsets = constant_ints_of_tensor(offsets_input.as_ref(), offsets_tensor, offsets.into_iter())?;
        let rank = self.x.rank();
        for (name, given) in [("shape", shape.len()), ("offsets", offsets.len())] {
            if given != rank && (name == "shape" || given > 0) {
                return Err(Error::attr(name, format!("{rank} numbers are needed, not {given}")));
            }
        }
        let mut dims = Dims::default();
        for (axis, n) in self.x.dims.iter().enumerate() {
            let (length, offset) = (shape[axis], offsets.get(axis).copied().unwrap_or(Some(0)));
            if let Some(length) = length.filter(|length| *length < -1) {
                return Err(Error::attr("shape", format!("{length} is not a dimension")));
            }
            if let Some(offset) = offset.filter(|offset| *offset < 0) {
                return Err(Error::attr("offsets", format!("{offset} is not a position")));
            }
            let end = offset.zip(length).map(|(offset, length)| offset.saturating_add(length.max(0)));
            if let Some((n, end)) = n.get().zip(end).filter(|(n, end)| *end > *n as i64) {
                let text = format!("a box that ends at {end} does not fit into dimension {axis} of {n}");
                return Err(Error::attr("shape", text));
            }
            dims.push(match (length, offset, n.get()) {
                (Some(-1), Some(offset), Some(n)) => Dim::from(n - offset as usize),
                (Some(length @ 0..), ..) => Dim::from(length as usize),
                _ => Dim::UNKNOWN,
            });
        }
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for CropTensor<Expr> {
    fn compose(&mut self) {
        let wide = |attr: &[i32]| attr.iter().map(|n| i64::from(*n)).collect::<Vec<_>>();
        let [shape, offsets] = [wide(&self.shape), wide(&self.offsets)];
        let shape = given_integers(self.shape_input.as_ref(), &self.shape_tensor, shape.into_iter());
        let offsets = given_integers(self.offsets_input.as_ref(), &self.offsets_tensor, offsets.into_iter());
        self.out = self.x.copy();
        for (axis, length) in shape.into_iter().enumerate() {
            let (n, start) = (self.x.dim(axis as i32), offsets.get(axis).cloned().unwrap_or(0.into()));
            // −1 takes the rest.
            let is_rest = (DimExpr::from(0) - &length).max(0);
            let end = &start + length.max(0) + (n - &start) * is_rest;
            self.out = self.out.slice_to(axis as i32, &start, &end);
        }
    }
}
autobwd::samples!(
    CropTensor,
    [
        crop(uniform([4, 5]), &[1, 2], &[2, 3]),
        crop(uniform([4, 5]), &[1, 2], &[-1, 2]),
        crop(uniform([4, 2, 3]), &[], &[2, 2, -1]),
        crop(uniform([5]), &[5], &[-1]),
        crop(uniform([]), &[], &[]),
        crop(uniform([0, 3]), &[0, 1], &[0, 2]),
        crop(integers_below(9, [4, 3]), &[1, 0], &[2, 2]),
        CropTensor {
            shape_input: Some(integers(&[2, -1])),
            offsets_input: Some(integers(&[1, 2]).of(DType::I32)),
            ..crop(uniform([4, 5]), &[0, 0], &[1, 1])
        },
        CropTensor {
            shape_tensor: vec![integers(&[2]), integers(&[3])],
            offsets_tensor: vec![integers(&[1]), integers(&[2]).of(DType::I32)],
            ..crop(uniform([4, 5]), &[0, 0], &[1, 1])
        },
        crop(uniform([4, 5]), &[1, 2], &[2]).fails("attribute `shape`: 2 numbers are needed, not 1"),
        crop(uniform([4, 5]), &[1], &[2, 2]).fails("attribute `offsets`: 2 numbers are needed, not 1"),
        crop(uniform([4, 5]), &[1, -2], &[2, 2]).fails("attribute `offsets`: -2 is not a position"),
        crop(uniform([4, 5]), &[1, 2], &[2, -2]).fails("attribute `shape`: -2 is not a dimension"),
        crop(uniform([4, 5]), &[1, 2], &[4, 3])
            .fails("attribute `shape`: a box that ends at 5 does not fit into dimension 0 of 4"),
        crop(uniform([4, 5]), &[5, 2], &[-1, 3])
            .fails("attribute `shape`: a box that ends at 5 does not fit into dimension 0 of 4"),
    ]
);

fn crop(x: Draw, offsets: &[i32], shape: &[i32]) -> CropTensor<Draw> {
    let (offsets, shape) = (offsets.to_vec(), shape.to_vec());
    CropTensor {
        x,
        shape_input: None,
        shape_tensor: vec![],
        offsets_input: None,
        offsets_tensor: vec![],
        out: out(),
        offsets,
        shape,
    }
}
