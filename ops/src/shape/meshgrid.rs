//! Grids of coordinates.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, ErrorKind, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::{with_dtype, with_float},
    operators::{MAX_RANK, StridedLayout, same_count},
    register_op,
    tensor::Dim,
};

use crate::{
    Math,
    math::{all_sizes, product},
    reduce::ReductionTiling,
};

/// The coordinates of a grid: `out[k][i₀, i₁, …] = x[k][iₖ]`.
#[register_op(grad = MeshgridGrad, infallible, any_dtype)]
pub struct Meshgrid<V = Var> {
    /// At most 9 vectors or scalars of one dtype, any; a scalar counts as a vector of one element.
    #[input]
    pub x: Vec<V>,
    /// One for each vector, in the shape of all their lengths.
    #[output]
    pub out: Vec<V>,
}
impl Infer for Meshgrid<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = grid(&self.x)?;
        same_count("Out", self.out.len(), self.x.len())?;
        for (x, out) in self.x.iter().zip(&mut self.out) {
            out.set(x.dtype, dims.clone());
        }
        Ok(())
    }
}

/// The shape of the grid.
fn grid(x: &[Meta]) -> Result<Dims> {
    if x.is_empty() || x.len() > MAX_RANK {
        let text = format!("`X`: from 1 to {MAX_RANK} variables are possible, not {}", x.len());
        return Err(Error::new(ErrorKind::Slot, text));
    }
    let mut dims = Dims::default();
    for each in x {
        each.same_dtype(&x[0])?;
        each.require(each.rank() < 2, || "a vector or a scalar is needed".into())?;
        dims.push(each.dims.first().copied().unwrap_or(Dim::from(1)));
    }
    Ok(dims)
}
impl Kernel for Meshgrid<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        for (k, (x, out)) in self.x.iter().zip(&mut self.out).enumerate() {
            let mut loops = StridedLayout::default();
            out.dims().iter().enumerate().for_each(|(axis, n)| loops.push(*n, isize::from(axis == k)));
            with_dtype!(x.dtype(), T => loops.gather::<T>(cx, x.slice()?, out.slice_mut()?));
        }
        Ok(())
    }
}
impl Composition for Meshgrid<Expr> {
    fn compose(&mut self) {
        let lengths: Vec<_> = self.x.iter().map(|x| product(&all_sizes(x))).collect();
        for (k, (x, out)) in self.x.iter().zip(&mut self.out).enumerate() {
            let mut along = vec![1; lengths.len()];
            along[k] = -1;
            *out = x.reshape(&along).expand_to(&lengths);
        }
    }
}
autobwd::samples!(
    Meshgrid,
    [
        Meshgrid { x: vec![uniform([2]), uniform([3])], out: vec![out(), out()] },
        Meshgrid { x: vec![uniform([2]), uniform([3]), uniform([4])], out: vec![out(), out(), out()] },
        Meshgrid { x: vec![uniform([]), uniform([3])], out: vec![out(), out()] },
        Meshgrid { x: vec![uniform([5])], out: vec![out()] },
        Meshgrid { x: vec![integers_below(9, [2]), integers_below(9, [3])], out: vec![out(), out()] },
        Meshgrid { x: vec![uniform([2, 3])], out: vec![out()] }.fails("`X`: a vector or a scalar is needed"),
        Meshgrid { x: vec![], out: vec![] }.fails("`X`: from 1 to 9 variables are possible, not 0"),
        Meshgrid { x: vec![uniform([2])], out: vec![out(), out()] }
            .fails("`Out`: 1 variables are needed, not 2"),
        Meshgrid { x: vec![uniform([2]), integers_below(9, [3]).of(DType::I32)], out: vec![out(), out()] }
            .fails("`X`: dtype int32 does not match"),
    ]
);

/// `dx[k] = Σ dout[k]` over all dimensions but `k`.
#[register_op(grad_of = Meshgrid, grad = Multilinear, inferred, infallible)]
pub struct MeshgridGrad<V = Var> {
    #[input(shape_only)]
    pub x: Vec<V>,
    pub dout: Vec<V>,
    #[output]
    pub dx: Vec<Option<V>>,
}
impl Kernel for MeshgridGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        for (k, (dout, dx)) in self.dout.iter().zip(&mut self.dx).enumerate() {
            let Some(dx) = dx else { continue };
            with_float!(dout, T => {
                let repeated = !(1 << k) & ((1 << dout.dims().len()) - 1);
                let cut = ReductionTiling::of(dout.dims(), repeated);
                cut.reduce::<T>(cx, dout.slice()?, dx.slice_mut()?, 1.0);
                Ok::<(), Error>(())
            })?;
        }
        Ok(())
    }
}
