//! Reshaping.

use crate::{
    Buf, Cx, Dim, Dims, Error, Infer, Kernel, Meta, Multilinear, Result, Var, register_op, sample::*,
};

/// Reshape to another shape with the same elements: `out = x`.
#[register_op(grad = Reshape2Grad)]
pub struct Reshape2<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// The shape of attribute `shape`.
    #[output(inplace = x)]
    pub out: V,
    /// Stores the shape of `x`: `[0]` followed by its dimensions, so it has no elements.
    #[output]
    pub x_shape: V,
    /// Dimensions; 0 copies that of `x` at this position, one −1 is inferred.
    #[attr]
    pub shape: Vec<i32>,
}
impl Infer for Reshape2<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = reshaped(&self.x, &self.shape)?;
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
        Reshape2 { x: uniform([2, 3, 4]), out: out(), x_shape: out(), shape: vec![4, 6] },
        Reshape2 { x: uniform([2, 3, 4]), out: out(), x_shape: out(), shape: vec![0, -1] },
        Reshape2 { x: uniform([2, 3]), out: out(), x_shape: out(), shape: vec![0, 0, 1] },
        Reshape2 { x: uniform([1, 1]), out: out(), x_shape: out(), shape: vec![] },
        Reshape2 { x: uniform([]), out: out(), x_shape: out(), shape: vec![-1] },
        Reshape2 { x: uniform([0, 3]), out: out(), x_shape: out(), shape: vec![0, -1, 1] },
        Reshape2 { x: integers_below(9, [2, 3]), out: out(), x_shape: out(), shape: vec![3, -1] },
        Reshape2 { x: uniform([2, 3]), out: out(), x_shape: out(), shape: vec![4, -1] }
            .fails("`X`: as many elements as in [4, -1] are needed"),
        Reshape2 { x: uniform([2, 3]), out: out(), x_shape: out(), shape: vec![-1, -1] }
            .fails("attribute `shape`: -1 is given twice"),
    ]
);

/// The output shape for attribute `shape`.
fn reshaped(x: &Meta, shape: &[i32]) -> Result<Dims> {
    // Copied dimensions cancel out, so that the others are known even if these are not.
    let copied = |axis: usize| shape.get(axis) == Some(&0);
    let given = |axis: usize| (!copied(axis)).then_some(x.dims[axis]);
    let left = (0..x.rank()).filter_map(given).fold(Dim::from(1), |n, dim| n * dim);
    let (mut dims, mut rest, mut placed) = (Dims::default(), None, 1usize);
    for (axis, n) in shape.iter().enumerate() {
        match (*n, x.dims.get(axis)) {
            (0, Some(dim)) => dims.push(*dim),
            (0, None) => {
                return Err(x.wrong(&format!("dimension {axis}, which attribute `shape` copies, is needed")));
            }
            (-1, _) if rest.replace(axis).is_some() => return Err(Error::attr("shape", "-1 is given twice")),
            (-1, _) => dims.push(Dim::UNKNOWN),
            (n, _) => {
                let n = usize::try_from(n)
                    .map_err(|_| Error::attr("shape", format!("{n} is not a dimension")))?;
                placed = placed.saturating_mul(n);
                dims.push(n);
            }
        }
    }
    let fits = match (left.get(), rest) {
        (None, _) => true,
        (Some(left), Some(rest)) => {
            dims[rest] = (left / placed).into();
            left % placed == 0
        }
        (Some(left), None) => left == placed,
    };
    if fits { Ok(dims) } else { Err(x.wrong(&format!("as many elements as in {shape:?} are needed"))) }
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
#[register_op(grad_of = Reshape2, grad = Multilinear)]
pub struct Reshape2Grad<V = Var> {
    #[input(shape_only)]
    pub x_shape: V,
    pub dout: V,
    #[output(inplace = dout)]
    pub dx: V,
    pub shape: Vec<i32>,
}
impl Infer for Reshape2Grad<Meta> {
    fn infer(&mut self) -> Result<()> {
        infer_from_x_shape(&self.x_shape, &self.dout, &mut self.dx, |x| reshaped(x, &self.shape))
    }
}
impl Kernel for Reshape2Grad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.dx.copy_from(&self.dout)
    }
}
