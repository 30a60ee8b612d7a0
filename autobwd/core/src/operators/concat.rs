//! Concatenation of tensors.

use crate::{
    Buf, Cx, Dim, Error, ErrorKind, Infer, Kernel, Meta, Multilinear, Result, Var, register_op, sample::*,
};

use super::{constant_int, known_int};

/// Concatenation of tensors along an axis: `out = x[0], x[1], …`.
#[register_op(grad = ConcatGrad, infallible, any_dtype, primitive)]
pub struct Concat<V = Var> {
    /// At least one, all of one dtype, any; shapes differ in dimension `axis` only.
    #[input]
    pub x: Vec<V>,
    /// The dimension, in place of attribute `axis`: int32 or int64, one element.
    #[input(constant)]
    pub axis_tensor: Option<V>,
    /// Dimension `axis` is the sum of this dimension over the inputs.
    #[output]
    pub out: V,
    /// The dimension; negative values count from the end.
    #[attr(default = 0)]
    pub axis: i32,
}
impl Infer for Concat<Meta> {
    fn infer(&mut self) -> Result<()> {
        let Some((first, others)) = self.x.split_first() else {
            return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
        };
        let out = &mut self.out;
        out.like(first);
        let Some(axis) = constant_int(self.axis_tensor.as_ref(), self.axis.into())? else {
            out.dims.iter_mut().for_each(|dim| *dim = Dim::UNKNOWN);
            return Ok(());
        };
        let axis = first.axis("axis", axis)?;
        let mut length = first.dims[axis];
        for other in others {
            other.same_dtype(first)?;
            out.dims[axis] = Dim::UNKNOWN;
            if !other.dims.agrees(&out.dims) {
                return Err(other.wrong(&format!("dimensions {} are needed", out.dims)));
            }
            out.dims.iter_mut().zip(&*other.dims).for_each(|(dim, other)| *dim = dim.or(*other));
            length = length + other.dims[axis];
        }
        out.dims[axis] = length;
        Ok(())
    }
}
impl Kernel for Concat<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let axis = self.out.axis(known_int(self.axis_tensor.as_ref(), self.axis.into())?);
        let (mut at, row) = (0, row_bytes(&self.out, axis));
        let out = self.out.bytes_mut()?;
        for x in &self.x {
            let width = row_bytes(x, axis);
            if width > 0 {
                let rows = out.chunks_exact_mut(row).zip(x.bytes()?.chunks_exact(width));
                rows.for_each(|(row, x)| row[at..][..width].copy_from_slice(x));
            }
            at += width;
        }
        Ok(())
    }
}
crate::samples!(
    Concat,
    [
        concat(vec![uniform([2, 3]), uniform([4, 3])], 0),
        concat(vec![uniform([2, 3]), uniform([2, 1]), uniform([2, 4])], 1),
        concat(vec![uniform([2, 3, 4]), uniform([2, 5, 4])], -2),
        concat(vec![uniform([2, 3]), uniform([2, 0])], -1),
        concat(vec![uniform([5])], 0),
        concat(vec![integers_below(9, [2]), integers_below(9, [3])], 0),
        Concat { axis_tensor: Some(integers(&[-1])), ..concat(vec![uniform([2, 3]), uniform([2, 4])], 0) },
        Concat { axis_tensor: Some(integers(&[2])), ..concat(vec![uniform([2, 3])], 0) }
            .fails("attribute `axis` = 2"),
        Concat { axis_tensor: Some(integers(&[0, 1])), ..concat(vec![uniform([2, 3])], 0) }
            .fails("`AxisTensor`: one element is needed"),
        concat(vec![], 0).fails("at least one"),
        concat(vec![uniform([2, 3]), uniform([4, 5])], 0).fails("`X`: dimensions [-1, 3] are needed, not"),
        concat(vec![uniform([2, 3])], 2).fails("attribute `axis` = 2"),
    ]
);

fn concat(x: Vec<Draw>, axis: i32) -> Concat<Draw> {
    Concat { x, axis_tensor: None, out: out(), axis }
}

/// Bytes in a slice at one index of the dimensions before `axis`.
pub fn row_bytes(x: &Buf<'_>, axis: usize) -> usize {
    x.dims()[axis..].iter().product::<usize>() * x.dtype().size()
}

/// Fills `piece` with `width` bytes of each row of `whole` from byte `at` on, and advances `at`.
///
/// # Errors
/// Memory that cannot be read or written.
pub fn slice_part(
    whole: &Buf<'_>,
    axis: usize,
    at: &mut usize,
    width: usize,
    piece: Option<&mut Buf<'_>>,
) -> Result<()> {
    if let Some(piece) = piece.filter(|_| width > 0) {
        let rows = whole.bytes()?.chunks_exact(row_bytes(whole, axis));
        let pieces = piece.bytes_mut()?.chunks_exact_mut(width);
        pieces.zip(rows).for_each(|(piece, row)| piece.copy_from_slice(&row[*at..][..width]));
    }
    *at += width;
    Ok(())
}

/// `dx[i]` = the part of `dout` that comes from `x[i]`.
#[register_op(grad_of = Concat, grad = Multilinear, inferred, infallible, any_dtype, primitive)]
pub struct ConcatGrad<V = Var> {
    #[input(shape_only)]
    pub x: Vec<V>,
    #[input(constant)]
    pub axis_tensor: Option<V>,
    pub dout: V,
    #[output]
    pub dx: Vec<Option<V>>,
    pub axis: i32,
}
impl Kernel for ConcatGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let axis = known_int(self.axis_tensor.as_ref(), self.axis.into())?;
        let (axis, mut at) = (self.dout.axis(axis), 0);
        for (x, dx) in self.x.iter().zip(&mut self.dx) {
            slice_part(&self.dout, axis, &mut at, row_bytes(x, axis), dx.as_mut())?;
        }
        Ok(())
    }
}
