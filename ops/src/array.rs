//! Lists of tensors.

use autobwd::{
    Buf, Cx, DType, Error, ErrorKind, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, ZeroGrad,
    register_op,
};

use crate::common::whole_number;

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

/// `dx = dout[i]`, zeros if nobody has read the element.
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

/// `dx[i] = dout`.
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
