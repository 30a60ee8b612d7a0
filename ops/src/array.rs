//! Tensor arrays: reading, writing and their length.

use autobwd::{
    Buf, Builder, Cx, DType, Error, ErrorKind, Expr, GradCx, GradRule, Infer, Kernel, Meta, New, Result, Var,
    ZeroGrad, check::*, emit, register_op,
};

use crate::{
    fill::FillConstant,
    kernel_helpers::{one_integer, whole_number},
};

fn is_array(x: &Meta) -> Result<()> {
    x.require(x.array, || "a tensor array is needed".into())
}

fn index(i: &Buf<'_>) -> Result<usize> {
    let position = whole_number(i)?;
    usize::try_from(position).map_err(|_| Error::data(format!("`I`: there is no element {position}")))
}

/// Sets an element of a tensor array: `out[i] = x`. The other elements are unchanged.
#[register_op(grad = WriteToArrayGrad, any_dtype)]
pub struct WriteToArray<V = Var> {
    /// A tensor of any shape.
    #[input]
    pub x: V,
    /// One integer, at least 0.
    #[input]
    pub i: V,
    /// The tensor array; it may be unwritten so far.
    #[output(array)]
    pub out: V,
}
impl Infer for WriteToArray<Meta> {
    fn infer(&mut self) -> Result<()> {
        one_integer(&self.i)?;
        self.out.array_of(&self.x);
        Ok(())
    }
}
impl Kernel for WriteToArray<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.array()?.set(index(&self.i)?, &self.x)
    }
}

/// An integer, for samples.
pub(crate) fn number(net: &Builder, value: f32) -> Expr {
    let (shape, dtype, str_value) = (vec![1], DType::I64, String::new());
    net.emit(FillConstant { shape, dtype, value, str_value, ..FillConstant::of(New) }).out
}

/// A tensor array with `y` at 0 and `x` at 1.
fn list(net: &Builder, x: &[Expr]) -> Expr {
    let (zero, one) = (number(net, 0.0), number(net, 1.0));
    let list = emit(WriteToArray { x: (&x[0]).into(), i: one.into(), out: New }).out;
    emit(WriteToArray { x: (&x[1]).into(), i: zero.into(), out: list.into() }).out
}

/// Reads an element of a tensor array.
fn element(net: &Builder, list: &Expr, i: f32, x_w: Option<&Expr>) -> Vec<Expr> {
    let (i, x_w) = (number(net, i).into(), x_w.map(Into::into));
    vec![emit(ReadFromArray { x: list.into(), i, x_w, out: New }).out]
}
autobwd::samples!(
    WriteToArray,
    [
        Sample::of_program::<WriteToArray>([uniform([2, 3]), uniform([2, 3])], |net, x| {
            Ok(element(net, &list(net, x), 0.0, None))
        }),
        Sample::of_program::<WriteToArray>([uniform([2, 3]), uniform([2, 3])], |net, x| {
            Ok(element(net, &list(net, x), 1.0, None))
        }),
    ]
);

/// `dx = dout[i]`, or zeros if the element is never read.
#[derive(Debug)]
pub struct WriteToArrayGrad;
impl GradRule<WriteToArray> for WriteToArrayGrad {
    fn emit(fwd: &WriteToArray, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(ReadFromArray { x: g.grad(fwd.out), i: fwd.i, x_w: Some(fwd.x), out: dx });
        }
    }
}

/// Reads an element of a tensor array: `out = x[i]`.
#[register_op(grad = ReadFromArrayGrad, any_dtype)]
pub struct ReadFromArray<V = Var> {
    /// The tensor array.
    #[input(array)]
    pub x: V,
    /// One integer, below the length of the array.
    #[input]
    pub i: V,
    /// In the gradient of a [`WriteToArray`]: the tensor that it wrote. A missing element then reads as zeros of that
    /// shape. An element that exists is removed from the array, since it is not the gradient of an earlier value.
    #[input("X_W", shape_only)]
    pub x_w: Option<V>,
    /// Shape of the element.
    #[output]
    pub out: V,
}
impl Infer for ReadFromArray<Meta> {
    fn infer(&mut self) -> Result<()> {
        is_array(&self.x)?;
        one_integer(&self.i)?;
        match &self.x_w {
            Some(x) => self.out.like(x),
            None => self.out.like(&self.x),
        }
        Ok(())
    }
}
impl Kernel for ReadFromArray<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (array, i) = (self.x.array()?, index(&self.i)?);
        if self.x_w.is_some() {
            if !array.take(i, &mut self.out)? {
                self.out.bytes_mut()?.fill(0);
            }
            return Ok(());
        }
        if array.get(i, &mut self.out)? {
            return Ok(());
        }
        let text = match array.len() {
            n if i < n => format!("element {i} of the tensor array has not been written"),
            n => format!("element {i} is out of range: the tensor array has {n} elements"),
        };
        Err(Error::new(ErrorKind::Data, text))
    }
}

autobwd::samples!(
    ReadFromArray,
    [
        Sample::of_program::<ReadFromArray>([uniform([2, 3]), uniform([2, 3])], |net, x| {
            Ok(element(net, &list(net, x), 1.0, None))
        }),
        // The element that is read is removed.
        Sample::of_program::<ReadFromArray>([uniform([2, 3]), uniform([2, 3])], |net, x| {
            Ok(element(net, &list(net, x), 0.0, Some(&x[0])))
        }),
    ]
);

/// `dx[i] = dout`.
#[derive(Debug)]
pub struct ReadFromArrayGrad;
impl GradRule<ReadFromArray> for ReadFromArrayGrad {
    fn emit(fwd: &ReadFromArray, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(WriteToArray { x: g.grad(fwd.out), i: fwd.i, out: dx });
        }
    }
}

/// Length of a tensor array: the last position written plus one.
#[register_op(grad = ZeroGrad, any_dtype)]
pub struct LodArrayLength<V = Var> {
    /// The tensor array.
    #[input(array)]
    pub x: V,
    /// One integer.
    #[output]
    pub out: V,
}
impl Infer for LodArrayLength<Meta> {
    fn infer(&mut self) -> Result<()> {
        is_array(&self.x)?;
        self.out.set(DType::I64, [1]);
        Ok(())
    }
}
impl Kernel for LodArrayLength<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.slice_mut::<i64>()?[0] = self.x.array()?.len() as i64;
        Ok(())
    }
}
autobwd::samples!(
    LodArrayLength,
    [Sample::of_program::<LodArrayLength>([uniform([2, 3]), uniform([2, 3])], |net, x| {
        Ok(vec![emit(LodArrayLength { x: (&list(net, x)).into(), out: New }).out])
    })]
);
