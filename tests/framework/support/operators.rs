//! Operators that several tests use.

use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, Result, Var, op::with_float, register_op};

/// Copies `x`; has no gradient.
#[register_op(grad = NoGrad)]
pub(crate) struct Opaque<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape.
    #[output]
    pub(crate) out: V,
}
impl Infer for Opaque<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Opaque<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}

/// The first two rows of a matrix; the gradient has the indices `numbers`.
#[register_op(grad = FirstRowsGrad)]
pub(crate) struct FirstRows<V = Var> {
    #[input]
    pub(crate) x: V,
    #[output]
    pub(crate) out: V,
    #[attr]
    pub(crate) numbers: Vec<i64>,
}
impl Infer for FirstRows<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [rows, width] = self.x.unpack()?;
        self.x.require(rows.get().is_none_or(|rows| rows >= 2), || "two rows are needed".into())?;
        self.out.set(self.x.dtype, autobwd::Dims::from_iter([2.into(), width]));
        Ok(())
    }
}
impl Kernel for FirstRows<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let out = self.out.slice_mut::<T>()?;
            out.copy_from_slice(&self.x.slice::<T>()?[..out.len()]);
        });
        Ok(())
    }
}

#[register_op(grad_of = FirstRows, grad = NoGrad, infallible)]
pub(crate) struct FirstRowsGrad<V = Var> {
    #[input(shape_only)]
    x: V,
    dout: V,
    #[output]
    dx: V,
    numbers: Vec<i64>,
}
impl Infer for FirstRowsGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dx.like(&self.x);
        self.dx.rows = Some(2.into());
        Ok(())
    }
}
impl Kernel for FirstRowsGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let (numbers, values) = self.dx.rows_mut::<T>()?;
            numbers.copy_from_slice(&self.numbers);
            values.copy_from_slice(self.dout.slice()?);
        });
        Ok(())
    }
}
