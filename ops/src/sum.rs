//! The sum of several tensors, of which backward parts are full.

use autobwd::{
    Buf, Cx, Error, ErrorKind, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op,
    with_float,
};

use crate::{
    activation::Scale,
    common::{PART, nth_part},
};

/// Sum of tensors: `out = x[0] + x[1] + …`.
#[register_op(grad = SumGrad)]
pub struct Sum<V = Var> {
    /// At least one, all of one shape.
    #[input]
    pub x: Vec<V>,
    /// Same shape.
    #[output]
    pub out: V,
}
impl Infer for Sum<Meta> {
    fn infer(&mut self) -> Result<()> {
        let Some((first, others)) = self.x.split_first() else {
            return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
        };
        first.float()?;
        self.out.like(first);
        for other in others {
            other.same_as(&self.out)?;
            for (dim, other) in self.out.dims.iter_mut().zip(&*other.dims) {
                *dim = dim.or(*other);
            }
        }
        Ok(())
    }
}
impl Kernel for Sum<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let Sum { x, out } = self;
        with_float!(out, T => {
            let out = out.slice_mut::<T>()?;
            match x.as_slice() {
                [] => {}
                [x] => out.copy_from_slice(x.slice()?),
                [x, y, others @ ..] => {
                    let (x, y) = (x.slice::<T>()?, y.slice::<T>()?);
                    cx.chunks_mut(out, PART, |part, out| {
                        let terms = nth_part(x, part, out.len()).iter().zip(nth_part(y, part, out.len()));
                        out.iter_mut().zip(terms).for_each(|(out, (x, y))| *out = x + y);
                    });
                    for x in others {
                        let x = x.slice::<T>()?;
                        cx.chunks_mut(out, PART, |part, out| {
                            let terms = nth_part(x, part, out.len());
                            out.iter_mut().zip(terms).for_each(|(out, x)| *out += x);
                        });
                    }
                }
            }
            Ok(())
        })
    }
}
autobwd::samples!(
    Sum,
    [
        Sum { x: vec![uniform([2, 3])], out: out() },
        Sum { x: vec![uniform([2, 3]), uniform([2, 3])], out: out() },
        Sum { x: vec![uniform([4]), uniform([4]), uniform([4]), uniform([4])], out: out() },
        Sum { x: vec![uniform([]), uniform([])], out: out() },
        Sum { x: vec![uniform([0, 2]), uniform([0, 2]), uniform([0, 2])], out: out() },
        Sample::fails(Sum { x: vec![], out: out() }, "at least one"),
        Sample::fails(Sum { x: vec![uniform([2, 3]), uniform([3, 2])], out: out() }, "does not match [2, 3]"),
    ]
);

/// `dx[i] = dout`, copied by `scale`.
pub struct SumGrad;
impl GradRule<Sum> for SumGrad {
    fn emit(fwd: &Sum, g: &mut GradCx<'_>) {
        let dout = g.grad(fwd.out);
        for x in &fwd.x {
            if let Some(dx) = g.wanted(*x) {
                g.push(Scale { x: dout, out: dx, scale: 1.0, bias: 0.0, bias_after_scale: true });
            }
        }
    }
}
