//! Slices of a tensor as tensors of their own.

use autobwd::{
    Buf, Composition, Cx, Expr, GradCx, GradRule, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    operators::{Stack, Unstack, row_bytes, same_count, slice_part},
    register_op,
};

/// Slices along a dimension: `out[i] = x[.., i, ..]`.
#[register_op(grad = UnbindGrad, infallible, any_dtype)]
pub struct Unbind<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// One tensor for each index, in the shape of `x` without the dimension.
    #[output]
    pub out: Vec<V>,
    /// The dimension; negative counts from the end.
    #[attr(default = 0)]
    pub axis: i32,
}
impl Infer for Unbind<Meta> {
    fn infer(&mut self) -> Result<()> {
        let axis = self.x.axis("axis", self.axis.into())?;
        if let Some(n) = self.x.dims[axis].get() {
            same_count("Out", self.out.len(), n)?;
        }
        for out in &mut self.out {
            let dims = self.x.dims.iter().enumerate().filter(|(i, _)| *i != axis);
            out.set(self.x.dtype, dims.map(|(_, n)| *n).collect::<autobwd::Dims>());
        }
        Ok(())
    }
}
impl Kernel for Unbind<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let axis = self.x.axis(self.axis.into());
        let (mut at, width) = (0, row_bytes(&self.x, axis + 1));
        for out in &mut self.out {
            slice_part(&self.x, axis, &mut at, width, Some(out))?;
        }
        Ok(())
    }
}
impl Composition for Unbind<Expr> {
    fn compose(&mut self) {
        let (y, num) = (self.out.iter().map(|_| New).collect(), self.out.len() as i32);
        self.out = emit(Unstack { x: (&self.x).into(), y, axis: self.axis, num }).y;
    }
}
autobwd::samples!(
    Unbind,
    [
        Unbind { x: uniform([2, 3]), out: vec![out(), out()], axis: 0 },
        Unbind { x: uniform([2, 3, 4]), out: vec![out(), out(), out()], axis: -2 },
        Unbind { x: uniform([4]), out: vec![out(), out(), out(), out()], axis: 0 },
        Unbind { x: integers_below(9, [3, 2]), out: vec![out(), out()], axis: 1 },
        Unbind { x: uniform([2, 3]), out: vec![out()], axis: 0 }
            .fails("`Out`: 2 variables are needed, not 1"),
        Unbind { x: uniform([2, 3]), out: vec![out()], axis: 2 }.fails("attribute `axis` = 2"),
    ]
);

/// `dx = stack(dout)`.
#[derive(Debug)]
pub struct UnbindGrad;
impl GradRule<Unbind> for UnbindGrad {
    fn emit(fwd: &Unbind, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            let dout = fwd.out.iter().map(|out| g.grad(*out)).collect();
            g.push(Stack { x: dout, y: dx, axis: fwd.axis });
        }
    }
}
