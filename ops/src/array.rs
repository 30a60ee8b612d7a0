//! Lists of tensors.

use autobwd::{
    Buf, Builder, Cx, DType, Error, ErrorKind, Expr, GradCx, GradRule, Infer, Kernel, Meta, New, Result, Var,
    ZeroGrad, check::*, emit, register_op,
};

use crate::{common::whole_number, fill::FillConstant};

fn is_index(i: &Meta) -> Result<()> {
    let whole = matches!(i.dtype, DType::I32 | DType::I64);
    i.require(whole && i.dims.numel().get().is_none_or(|n| n == 1), || "one whole number is needed".into())
}

fn is_array(x: &Meta) -> Result<()> {
    x.require(x.array, || "a list of tensors is needed".into())
}

fn index(i: &Buf<'_>) -> Result<usize> {
    let position = whole_number(i)?;
    usize::try_from(position).map_err(|_| Error::data(format!("`I`: there is no element {position}")))
}

/// Sets an element of a list: `out[i] = x`. The others stay as they are.
#[register_op(grad = WriteToArrayGrad)]
pub struct WriteToArray<V = Var> {
    /// A tensor of any shape.
    #[input]
    pub x: V,
    /// One whole number, at least 0.
    #[input]
    pub i: V,
    /// The list, which need not be there yet.
    #[output(array)]
    pub out: V,
}
impl Infer for WriteToArray<Meta> {
    fn infer(&mut self) -> Result<()> {
        is_index(&self.i)?;
        self.out.array_of(&self.x);
        Ok(())
    }
}
impl Kernel for WriteToArray<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.array()?.set(index(&self.i)?, &self.x)
    }
}

/// A whole number, for samples.
pub(crate) fn number(net: &Builder, value: f32) -> Expr {
    let (shape, dtype, str_value) = (vec![1], DType::I64, String::new());
    net.emit(FillConstant { out: New, shape, dtype, value, str_value }).out
}

/// A list of these two, `y` at 0 and `x` at 1.
fn list(net: &Builder, x: &[Expr]) -> Expr {
    let (zero, one) = (number(net, 0.0), number(net, 1.0));
    let list = emit(WriteToArray { x: (&x[0]).into(), i: one.into(), out: New }).out;
    emit(WriteToArray { x: (&x[1]).into(), i: zero.into(), out: list.into() }).out
}

/// An element of a list.
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

/// `dx = dout[i]`, zeros if nobody has read the element.
#[derive(Debug)]
pub struct WriteToArrayGrad;
impl GradRule<WriteToArray> for WriteToArrayGrad {
    fn emit(fwd: &WriteToArray, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            g.push(ReadFromArray { x: g.grad(fwd.out), i: fwd.i, x_w: Some(fwd.x), out: dx });
        }
    }
}

/// An element of a list: `out = x[i]`.
#[register_op(grad = ReadFromArrayGrad)]
pub struct ReadFromArray<V = Var> {
    /// The list.
    #[input(array)]
    pub x: V,
    /// One whole number, below the length of the list.
    #[input]
    pub i: V,
    /// In the gradient of a [`WriteToArray`]: what that has written. A missing element is then zeros of its shape; another
    /// is taken out of the list, since it is no earlier value's gradient.
    #[input("X_W", shape_only)]
    pub x_w: Option<V>,
    /// Shape of the element.
    #[output]
    pub out: V,
}
impl Infer for ReadFromArray<Meta> {
    fn infer(&mut self) -> Result<()> {
        is_array(&self.x)?;
        is_index(&self.i)?;
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
            n if i < n => format!("element {i} of the list has not been written"),
            n => format!("element {i} is read of a list of {n}"),
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
        // An element that is there is taken out.
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

/// How long a list is: one more than the last position written.
#[register_op(grad = ZeroGrad)]
pub struct LodArrayLength<V = Var> {
    /// The list.
    #[input(array)]
    pub x: V,
    /// One number.
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
