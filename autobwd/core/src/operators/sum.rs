//! The sum of several dense or row-sparse tensors, which is frequent in backward passes.

use std::{
    num::Wrapping,
    ops::{Add, AddAssign},
};

use crate::{
    Buf, Composition, Cx, DType, Decompose, Dim, Element, Error, ErrorKind, Expr, GradCx, GradRule, InOut,
    Infer, Kernel, Meta, Op, OpDesc, Parts, Result, Rows, TensorArray, Var, register_op, sample::*,
    with_float,
};

use super::{ElementwiseAdd, PART, Scale, add_up_rows, nth_part, update_rows};

/// Sum of tensors: `out = x[0] + x[1] + …`.
#[register_op(grad = SumGrad, decomposed, infallible)]
pub struct Sum<V = Var> {
    /// At least one, all of one shape and dtype, integers wrap around; or tensor arrays, in which a missing element
    /// counts as zero.
    #[input(sparse, array)]
    pub x: Vec<V>,
    /// Same shape; sparse if all of `x` are; an array if they are arrays.
    #[output(inplace = x)]
    pub out: V,
}
impl Sum {
    /// The description of a sum, built without a temporary list: backward passes have many.
    pub fn description(x: impl IntoIterator<Item = Var>, out: Var) -> OpDesc {
        let [terms, sum] = const { [Sum::SCHEMA.inputs[0].name, Sum::SCHEMA.outputs[0].name] };
        OpDesc::new(Sum::SCHEMA.name).input(terms, x).output(sum, [out])
    }
}
impl Infer for Sum<Meta> {
    fn infer(&mut self) -> Result<()> {
        let Some((first, others)) = self.x.split_first() else {
            return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
        };
        first.signed()?;
        self.out.like(first);
        for other in others {
            other.same_as(&self.out)?;
            for (dim, other) in self.out.dims.iter_mut().zip(&*other.dims) {
                *dim = dim.or(*other);
            }
        }
        if first.array {
            self.out.array = true;
            let tensor = self.x.iter().find(|x| !x.array);
            return tensor.map_or(Ok(()), |x| Err(x.wrong("a tensor array is needed")));
        }
        if let Some(rows) = self.x.iter().find(|x| x.rows.is_some()) {
            rows.float()?;
        }
        let rows: Option<Vec<Dim>> = self.x.iter().map(|x| x.rows).collect();
        self.out.rows = rows.map(|rows| rows.into_iter().fold(0.into(), Dim::add));
        Ok(())
    }
}
impl Decompose for Sum {
    fn decompose(&self, parts: &mut Parts<'_>) {
        for (i, pair) in self.x.windows(2).enumerate() {
            let x = if i == 0 { pair[0] } else { self.out };
            parts.push(ElementwiseAdd { x, y: pair[1], out: self.out, axis: -1 });
        }
    }
}
impl Kernel for Sum<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let Sum { x, out } = self;
        if out.is_array() {
            return add_up_arrays(x, out.array()?);
        }
        match out.dtype() {
            DType::I32 => return add_up_integers::<i32>(cx, x, out),
            DType::I64 => return add_up_integers::<i64>(cx, x, out),
            _ => {}
        }
        with_float!(out, T => {
            if out.is_sparse() {
                // All inputs are, as the shape rule has checked.
                return add_up_rows(cx, out, || x.iter().flat_map(Buf::rows::<T>).flat_map(Rows::iter));
            }
            let mut whole = x.iter().filter(|x| !x.is_sparse());
            let out = match (whole.next(), whole.next()) {
                (Some(first), Some(second)) => {
                    let second = second.slice::<T>()?;
                    match out.inout::<T>(first)? {
                        InOut::Same(out) => {
                            add_to(cx, out, second);
                            out
                        }
                        InOut::Apart(first, out) => {
                            cx.chunks_mut(out, PART, |part, out| {
                                let [x, y] = [first, second].map(|x| nth_part(x, part, out.len()));
                                out.iter_mut().zip(x.iter().zip(y)).for_each(|(out, (x, y))| *out = x + y);
                            });
                            out
                        }
                    }
                }
                (Some(x), None) => out.inout::<T>(x)?.copied(),
                (None, _) => out.slice_mut::<T>()?,
            };
            for x in whole {
                add_to(cx, out, x.slice()?);
            }
            for x in x.iter().filter(|x| x.is_sparse()) {
                update_rows(cx, out, [], x.rows()?, true, |out, [], x| out + x);
            }
            Ok(())
        })
    }
}
impl Composition for Sum<Expr> {
    fn compose(&mut self) {
        if let Some(sum) = self.x.iter().cloned().reduce(|sum, x| sum + x) {
            self.out = sum;
        }
    }
}

/// `sum += x`
fn add_to<T: Element + AddAssign>(cx: &Cx, sum: &mut [T], x: &[T]) {
    cx.chunks_mut(sum, PART, |part, sum| {
        let terms = nth_part(x, part, sum.len());
        sum.iter_mut().zip(terms).for_each(|(sum, x)| *sum += *x);
    });
}

/// Sums integers, which wrap around.
fn add_up_integers<T: Element>(cx: &Cx, x: &[Buf<'_>], out: &mut Buf<'_>) -> Result<()>
where
    Wrapping<T>: Add<Output = Wrapping<T>>,
{
    let Some((first, others)) = x.split_first() else { return Ok(()) };
    let out = out.inout::<T>(first)?.copied();
    for x in others {
        let x = x.slice::<T>()?;
        cx.chunks_mut(out, PART, |part, out| {
            let terms = nth_part(x, part, out.len());
            out.iter_mut().zip(terms).for_each(|(out, x)| *out = (Wrapping(*out) + Wrapping(*x)).0);
        });
    }
    Ok(())
}

/// Sums arrays; `out` may be one of them.
fn add_up_arrays(x: &[Buf<'_>], out: &TensorArray) -> Result<()> {
    let arrays = x.iter().map(Buf::array).collect::<Result<Vec<_>>>()?;
    let is_out = |array: &&TensorArray| std::ptr::eq(*array, out);
    if !arrays.iter().any(is_out) {
        out.clear();
    }
    arrays.into_iter().filter(|array| !is_out(array)).try_for_each(|array| out.add(array))
}
crate::samples!(
    Sum,
    [
        Sum { x: vec![uniform([2, 3])], out: out() },
        Sum { x: vec![uniform([2, 3]), uniform([2, 3])], out: out() },
        Sum { x: vec![uniform([4]), uniform([4]), uniform([4]), uniform([4])], out: out() },
        Sum { x: vec![uniform([]), uniform([])], out: out() },
        Sum { x: vec![uniform([0, 2]), uniform([0, 2]), uniform([0, 2])], out: out() },
        Sum {
            x: vec![
                given([2], [2147483647.0, -7.0]).of(DType::I32),
                given([2], [1.0, -9.0]).of(DType::I32),
                given([2], [5.0, 3.0]).of(DType::I32)
            ],
            out: out()
        },
        Sum { x: vec![integers_below(9, [2, 3])], out: out() },
        Sum { x: vec![], out: out() }.fails("at least one"),
        Sum { x: vec![integers_below(2, [2]).of(DType::Bool)], out: out() }
            .fails("`X`: signed or floating point numbers are needed"),
        Sum { x: vec![uniform([2, 3]), uniform([3, 2])], out: out() }.fails("does not match [2, 3]"),
    ]
);

/// `dx[i] = dout`, copied by `scale`.
#[derive(Debug)]
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
