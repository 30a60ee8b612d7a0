//! Selection of one tensor out of several by index.

use autobwd::{
    Buf, Composition, Cx, DType, Error, ErrorKind, Expr, GradCx, GradRule, Infer, Kernel, Meta, Result, Var,
    check::*, op::with_dtype, register_op, tensor::Dim,
};

use crate::{
    Math,
    kernel_helpers::{one_integer, whole_number},
    math::{all_sizes, filled, like},
};

/// The selected index, checked to be below `count`.
fn chosen(mask: &Buf<'_>, count: usize) -> Result<usize> {
    let mask = whole_number(mask)?;
    let known = usize::try_from(mask).ok().filter(|mask| *mask < count);
    known.ok_or_else(|| Error::data(format!("`Mask`: {mask} is not within 0..{count}")))
}

/// Whether `mask` is `i`, in the shape of `x`.
fn is_chosen(mask: &Expr, i: usize, x: &Expr) -> Expr {
    let number = filled(mask.builder(), mask.dtype(), &i.to_string(), &[]);
    mask.reshape(&[]).equal(&number).expand_to(&all_sizes(x))
}

/// Selects one of several tensors: `out = x[mask]`.
#[register_op(grad = SelectInputGrad, any_dtype)]
pub struct SelectInput<V = Var> {
    /// Tensors of one dtype and shape, but that one may be empty where others are not; an absent one stands for zeros.
    /// Gradients need one shape.
    #[input]
    pub x: Vec<Option<V>>,
    /// One integer.
    #[input]
    pub mask: V,
    /// The selected one; data decides its shape if one of them is empty.
    #[output]
    pub out: V,
}
impl Infer for SelectInput<Meta> {
    fn infer(&mut self) -> Result<()> {
        one_integer(&self.mask)?;
        let mut present = self.x.iter().flatten();
        let Some(first) = present.next() else {
            return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
        };
        let first = first.clone();
        self.out.like(&first);
        for other in present {
            other.same_dtype(&first)?;
            let rank = self.out.rank();
            other.require(other.rank() == rank, || format!("{rank} dimensions are needed"))?;
            for (dim, size) in self.out.dims.iter_mut().zip(&*other.dims) {
                *dim = match (dim.bound(), size.get()) {
                    // A branch is empty where there is nothing to do.
                    (Some(n), Some(m)) if dim.get().is_none() || (n.min(m) == 0 && n != m) => {
                        Dim::at_most(n.max(m).into())
                    }
                    (Some(0), None) | (None, Some(0)) => Dim::UNKNOWN,
                    _ if !dim.agrees(*size) => return other.same_as(&first),
                    _ if dim.is_named() && size.is_named() && dim != size => Dim::UNKNOWN,
                    _ => dim.or(*size),
                };
            }
        }
        Ok(())
    }
}
impl Kernel for SelectInput<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let largest = self.out.dims();
        let is_decided = self.x.iter().flatten().any(|x| x.dims() != largest);
        match &self.x[chosen(&self.mask, self.x.len())?] {
            Some(x) if is_decided => with_dtype!(x.dtype(), T => {
                self.out.decide(x.dims())?.copy_from_slice(x.slice::<T>()?);
                Ok(())
            }),
            Some(x) => self.out.copy_from(x),
            None => {
                self.out.bytes_mut()?.fill(0);
                Ok(())
            }
        }
    }
}
impl Composition for SelectInput<Expr> {
    fn compose(&mut self) {
        let zeros = self.x.iter().flatten().next().map(|x| like(x, 0.0));
        let each = self.x.iter().map(|x| x.clone().or(zeros.clone())).enumerate();
        let out = each.reduce(|(_, out), (i, x)| {
            (i, out.zip(x).map(|(out, x)| is_chosen(&self.mask, i, &x).where_cond(&x, &out)))
        });
        self.out = out.and_then(|(_, out)| out).unwrap_or(self.out.clone());
    }
}
autobwd::samples!(
    SelectInput,
    [
        select_input(vec![Some(uniform([2, 3])), Some(uniform([2, 3]))], given([1], [1.0]).of(DType::I32)),
        select_input(vec![Some(uniform([4])), None, Some(uniform([4]))], given([], [0.0]).of(DType::I64)),
        select_input(
            vec![Some(integers_below(9, [2, 3])), Some(integers_below(9, [2, 3]))],
            given([1], [0.0]).of(DType::I32)
        ),
        select_input(vec![Some(uniform([2, 3])), Some(uniform([3]))], given([1], [1.0]).of(DType::I32))
            .fails("`X`: 2 dimensions are needed"),
        select_input(vec![Some(uniform([2, 3])), Some(uniform([3, 2]))], given([1], [1.0]).of(DType::I32))
            .fails("does not match [2, 3]"),
        select_input(vec![], given([1], [1.0]).of(DType::I32)).fails("at least one"),
        select_input(vec![Some(uniform([2]))], uniform([1])).fails("one integer"),
        select_input(vec![Some(uniform([2]))], given([1], [1.0]).of(DType::I32))
            .fails("1 is not within 0..1"),
    ]
);

fn select_input(x: Vec<Option<Draw>>, mask: Draw) -> SelectInput<Draw> {
    SelectInput { x, mask, out: out() }
}

/// `dx[mask] = dout`, zeros in the others.
#[derive(Debug)]
pub struct SelectInputGrad;
impl GradRule<SelectInput> for SelectInputGrad {
    fn emit(fwd: &SelectInput, g: &mut GradCx<'_>) {
        let out: Vec<_> = fwd.x.iter().map(|x| x.and_then(|x| g.wanted(x))).collect();
        if out.iter().any(Option::is_some) {
            g.push(SelectOutput { x: g.grad(fwd.out), mask: fwd.mask, out });
        }
    }
}

/// Writes a tensor to one of several outputs: `out[mask] = x`, zeros in the others.
#[register_op(grad = SelectOutputGrad, any_dtype)]
pub struct SelectOutput<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// One integer.
    #[input]
    pub mask: V,
    /// Same dtype and shape.
    #[output]
    pub out: Vec<Option<V>>,
}
impl Infer for SelectOutput<Meta> {
    fn infer(&mut self) -> Result<()> {
        one_integer(&self.mask)?;
        self.out.iter_mut().flatten().for_each(|out| out.like(&self.x));
        Ok(())
    }
}
impl Kernel for SelectOutput<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let chosen = chosen(&self.mask, self.out.len())?;
        for (i, out) in self.out.iter_mut().enumerate() {
            let Some(out) = out else { continue };
            if i == chosen {
                out.copy_from(&self.x)?;
            } else {
                out.bytes_mut()?.fill(0);
            }
        }
        Ok(())
    }
}
impl Composition for SelectOutput<Expr> {
    fn compose(&mut self) {
        let (x, zeros) = (&self.x, like(&self.x, 0.0));
        for (i, out) in self.out.iter_mut().enumerate() {
            *out = Some(is_chosen(&self.mask, i, x).where_cond(x, &zeros));
        }
    }
}
autobwd::samples!(
    SelectOutput,
    [
        select_output(uniform([2, 3]), given([1], [1.0]).of(DType::I32), vec![Some(out()), Some(out())]),
        select_output(uniform([4]), given([], [0.0]).of(DType::I64), vec![Some(out()), None, Some(out())]),
        select_output(
            integers_below(9, [2, 3]),
            given([1], [1.0]).of(DType::I32),
            vec![Some(out()), Some(out())]
        ),
        select_output(uniform([2]), uniform([1]), vec![Some(out())]).fails("one integer"),
        select_output(uniform([2]), given([1], [-1.0]).of(DType::I32), vec![Some(out())])
            .fails("-1 is not within 0..1"),
    ]
);

fn select_output(x: Draw, mask: Draw, out: Vec<Option<Draw>>) -> SelectOutput<Draw> {
    SelectOutput { x, mask, out }
}

/// `dx = dout[mask]`.
#[derive(Debug)]
pub struct SelectOutputGrad;
impl GradRule<SelectOutput> for SelectOutputGrad {
    fn emit(fwd: &SelectOutput, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            let x = fwd.out.iter().map(|out| out.as_ref().map(|out| g.grad(*out))).collect();
            g.push(SelectInput { x, mask: fwd.mask, out: dx });
        }
    }
}
