//! Reshaping.

use crate::{
    Buf, Composition, Cx, DType, Dim, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    emit, register_op, sample::*,
};

use super::{ConstantInts, FillConstant, ShapeOp, Slice, constant_ints};

/// Reshape to another shape with the same elements: `out = x`.
#[register_op(grad = Reshape2Grad, infallible, any_dtype, primitive)]
pub struct Reshape2<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// The shape, in place of attribute `shape`: int32 or int64, of one dimension.
    #[input("Shape", constant)]
    pub shape_input: Option<V>,
    /// The dimensions, in place of `Shape` and attribute `shape`: int32 or int64, one element each.
    #[input(constant)]
    pub shape_tensor: Vec<V>,
    /// The given shape.
    #[output(inplace = x)]
    pub out: V,
    /// Stores the shape of `x`: `[0]` followed by its dimensions, so it has no elements.
    #[output]
    pub x_shape: V,
    /// Dimensions; 0 copies the dimension of `x` at this position, one −1 is inferred.
    #[attr]
    pub shape: Vec<i32>,
}
impl<V> Reshape2<V> {
    /// A reshape to attribute `shape`.
    pub fn of(x: V, out: V, x_shape: V, shape: Vec<i32>) -> Reshape2<V> {
        Reshape2 { x, shape_input: None, shape_tensor: vec![], out, x_shape, shape }
    }
}
impl Infer for Reshape2<Meta> {
    fn infer(&mut self) -> Result<()> {
        let shape = entries(&self.shape_tensor, self.shape_input.as_ref(), &self.shape)?;
        let dims = reshaped(&self.x, &shape)?;
        self.out.set(self.x.dtype, dims);
        set_x_shape(&self.x, &mut self.x_shape);
        Ok(())
    }
}
impl Kernel for Reshape2<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
crate::samples!(
    Reshape2,
    [
        reshape2(uniform([2, 3, 4]), vec![4, 6]),
        reshape2(uniform([2, 3, 4]), vec![0, -1]),
        reshape2(uniform([2, 3]), vec![0, 0, 1]),
        reshape2(uniform([1, 1]), vec![]),
        reshape2(uniform([]), vec![-1]),
        reshape2(uniform([0, 3]), vec![0, -1, 1]),
        reshape2(integers_below(9, [2, 3]), vec![3, -1]),
        one_by_one(uniform([2, 3, 4]), &[4, 6], vec![-1, -1]),
        one_by_one(uniform([2, 3, 4]), &[0, -1, 6], vec![]),
        Reshape2 { shape_input: Some(integers(&[3, -1])), ..reshape2(uniform([2, 3]), vec![]) },
        Reshape2 { shape_input: Some(integers(&[3, 3])), ..one_by_one(uniform([2, 3]), &[6, 1], vec![7]) },
        one_by_one(uniform([2, 3]), &[4, -1], vec![]).fails("`X`: as many elements as in [4, -1] are needed"),
        one_by_one(uniform([2, 3]), &[-2, 3], vec![]).fails("attribute `shape`: -2 is not a dimension"),
        Reshape2 { shape_input: Some(uniform([2])), ..reshape2(uniform([2, 3]), vec![]) }
            .fails("`Shape`: int32 or int64 is needed"),
        Reshape2 { shape_tensor: vec![integers(&[2, 3])], ..reshape2(uniform([2, 3]), vec![]) }
            .fails("`ShapeTensor`: one element is needed"),
        reshape2(uniform([2, 3]), vec![4, -1]).fails("`X`: as many elements as in [4, -1] are needed"),
        reshape2(uniform([2, 3]), vec![-1, -1]).fails("attribute `shape`: -1 is given twice"),
    ]
);

fn reshape2(x: Draw, shape: Vec<i32>) -> Reshape2<Draw> {
    Reshape2::of(x, out(), out(), shape)
}

fn one_by_one(x: Draw, dims: &[i64], shape: Vec<i32>) -> Reshape2<Draw> {
    let shape_tensor = dims.iter().map(|n| integers(&[*n]).of(DType::I32)).collect();
    Reshape2 { shape_tensor, ..reshape2(x, shape) }
}

/// The given shape; entries that are not known yet are taken from the attribute, or unknown.
fn entries(list: &[Meta], tensor: Option<&Meta>, shape: &[i32]) -> Result<ConstantInts> {
    let mut entries = constant_ints(list, tensor, shape.iter().map(|n| i64::from(*n)))?;
    if entries.len() == shape.len() {
        let unknown = entries.iter_mut().zip(shape).filter(|(n, attr)| n.is_none() && **attr >= 0);
        unknown.for_each(|(n, attr)| *n = Some((*attr).into()));
    }
    Ok(entries)
}

/// The output shape for the given one.
fn reshaped(x: &Meta, shape: &[Option<i64>]) -> Result<Dims> {
    // Copied dimensions cancel out, so that the others are known even if these are not.
    let copied = |axis: usize| shape.get(axis) == Some(&Some(0));
    let left = (0..x.rank()).filter(|axis| !copied(*axis)).fold(Dim::from(1), |n, axis| n * x.dims[axis]);
    let (mut dims, mut rest, mut placed, mut unknown) = (Dims::default(), None, 1usize, false);
    for (axis, n) in shape.iter().enumerate() {
        match (*n, x.dims.get(axis)) {
            (None, _) => {
                unknown = true;
                dims.push(Dim::UNKNOWN);
            }
            (Some(0), Some(dim)) => dims.push(*dim),
            (Some(0), None) => {
                return Err(x.wrong(&format!("dimension {axis}, which attribute `shape` copies, is needed")));
            }
            (Some(-1), _) if rest.replace(axis).is_some() => {
                return Err(Error::attr("shape", "-1 is given twice"));
            }
            (Some(-1), _) => dims.push(Dim::UNKNOWN),
            (Some(n), _) => {
                let n = usize::try_from(n)
                    .map_err(|_| Error::attr("shape", format!("{n} is not a dimension")))?;
                placed = placed.saturating_mul(n);
                dims.push(n);
            }
        }
    }
    let fits = match (left.get().filter(|_| !unknown), rest) {
        (None, Some(rest)) if !unknown => {
            dims[rest] = left / Dim::from(placed);
            true
        }
        (None, _) => true,
        (Some(left), Some(rest)) => {
            dims[rest] = (left / placed).into();
            left % placed == 0
        }
        (Some(left), None) => left == placed,
    };
    if fits {
        return Ok(dims);
    }
    let shape: Vec<i64> = shape.iter().map(|n| n.unwrap_or(-1)).collect();
    Err(x.wrong(&format!("as many elements as in {shape:?} are needed")))
}

/// Stores the shape of `x` in an output without elements: `[0]` followed by its dimensions.
pub fn set_x_shape(x: &Meta, x_shape: &mut Meta) {
    x_shape.set(x.dtype, [Dim::from(0)].into_iter().chain(x.dims.iter().copied()).collect::<Dims>());
}

/// The dimensions stored by [`set_x_shape`].
///
/// # Errors
/// A value that does not store a shape.
pub fn remembered(x_shape: &Meta) -> Result<&[Dim]> {
    x_shape
        .dims
        .split_first()
        .map(|(_, dims)| dims)
        .ok_or_else(|| x_shape.wrong("the shape saved by the forward operator is needed"))
}

/// The elements of a tensor in the shape stored by [`set_x_shape`].
#[track_caller]
pub fn in_stored_shape(x: &Expr, x_shape: &Expr) -> Expr {
    let shape: Vec<i64> = x_shape.dims().iter().skip(1).map(|dim| dim.wire()).collect();
    let (is_empty, unknown) = (shape.contains(&0), shape.iter().filter(|n| **n == -1).count());
    let computed = || {
        let stored = emit(ShapeOp { input: x_shape.into(), out: New }).out;
        let (axes, starts, ends) = (vec![0], vec![1], vec![i32::MAX]);
        emit(Slice { axes, starts, ends, ..Slice::of(stored.into(), New) }).out.into()
    };
    // One dimension follows from the others, if these have elements.
    let tensor = (unknown > usize::from(!is_empty)).then(computed);
    if is_empty {
        // To `reshape2`, 0 means a dimension to copy.
        let op = FillConstant { shape, dtype: x.dtype(), shape_tensor: tensor, ..FillConstant::of(New) };
        return x.builder().emit(op).out;
    }
    // No dimension is longer.
    let shape = shape.into_iter().map(|n| i32::try_from(n).unwrap_or(i32::MAX)).collect();
    emit(Reshape2 { shape_input: tensor, ..Reshape2::of(x.into(), New, New, shape) }).out
}

/// Gives `dx` the stored shape of `x`; `dout` must have the shape that `forward` computes from it.
pub fn infer_from_x_shape(
    x_shape: &Meta,
    dout: &Meta,
    dx: &mut Meta,
    forward: impl FnOnce(&Meta) -> Result<Dims>,
) -> Result<()> {
    dx.set(dout.dtype, remembered(x_shape)?.iter().copied().collect::<Dims>());
    let expected = forward(dx)?;
    if !dout.dims.agrees(&expected) {
        return Err(dout.wrong(&format!("shape {expected} is needed")));
    }
    Ok(())
}

/// `dx = dout` in the shape of `x`.
#[register_op(grad_of = Reshape2, grad = Multilinear, infallible, any_dtype)]
pub struct Reshape2Grad<V = Var> {
    #[input(shape_only)]
    pub x_shape: V,
    #[input(constant)]
    pub shape_input: Option<V>,
    #[input(constant)]
    pub shape_tensor: Vec<V>,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub shape: Vec<i32>,
}
impl Infer for Reshape2Grad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let shape = entries(&self.shape_tensor, self.shape_input.as_ref(), &self.shape)?;
        // The reference's gradient operator does not read the tensors of the shape.
        let as_dout = |x: &Meta| (x.dims.numel() == self.dout.dims.numel()).then(|| self.dout.dims.clone());
        let forward = |x: &Meta| reshaped(x, &shape).or_else(|e| as_dout(x).ok_or(e));
        infer_from_x_shape(&self.x_shape, &self.dout, &mut self.dx, forward)
    }
}
impl Kernel for Reshape2Grad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.dx.copy_from(&self.dout)
    }
}
impl Composition for Reshape2Grad<Expr> {
    fn compose(&mut self) {
        self.dx = in_stored_shape(&self.dout, &self.x_shape);
    }
}
