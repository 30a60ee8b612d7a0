//! Stacking and unstacking along a new dimension.

use crate::{
    Buf, Composition, Cx, Dims, Error, ErrorKind, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    emit, register_op, sample::*,
};

use super::{Concat, Slice, Unsqueeze2, same_count};

/// Stack of tensors along a new dimension: `y[.., i, ..] = x[i]`.
#[register_op(grad = StackGrad, infallible, any_dtype)]
pub struct Stack<V = Var> {
    /// At least one, of one shape and dtype, any.
    #[input]
    pub x: Vec<V>,
    /// The shape of `x[0]` with one more dimension, which is the number of tensors.
    #[output]
    pub y: V,
    /// The position of the new dimension; negative values count from the end.
    #[attr(default = 0)]
    pub axis: i32,
}
impl Infer for Stack<Meta> {
    fn infer(&mut self) -> Result<()> {
        stacked(&self.x, self.axis, &mut self.y)
    }
}
impl Kernel for Stack<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        side_by_side(&self.x, &mut self.y, self.axis)
    }
}
impl Composition for Stack<Expr> {
    fn compose(&mut self) {
        let with_axis = |x: &Expr| emit(Unsqueeze2::of(x.into(), New, New, vec![self.axis])).out.into();
        let x = self.x.iter().map(with_axis).collect();
        self.y = emit(Concat { x, axis_tensor: None, out: New, axis: self.axis }).out;
    }
}
crate::samples!(
    Stack,
    [
        Stack { x: vec![uniform([2, 3]), uniform([2, 3])], y: out(), axis: 0 },
        Stack {
            x: vec![uniform([2, 3]), uniform([2, 3]), uniform([2, 3]), uniform([2, 3])],
            y: out(),
            axis: 1
        },
        Stack { x: vec![uniform([2, 3]), uniform([2, 3])], y: out(), axis: -1 },
        Stack { x: vec![uniform([]), uniform([]), uniform([])], y: out(), axis: -1 },
        Stack { x: vec![uniform([5])], y: out(), axis: 1 },
        Stack { x: vec![uniform([2, 0]), uniform([2, 0])], y: out(), axis: 1 },
        Stack { x: vec![integers_below(9, [2]), integers_below(9, [2])], y: out(), axis: 0 },
        Stack { x: vec![], y: out(), axis: 0 }.fails("at least one"),
        Stack { x: vec![uniform([2, 3]), uniform([3, 2])], y: out(), axis: 0 }
            .fails("`X`: shape [3, 2] does not match [2, 3]"),
        Stack { x: vec![uniform([2, 3])], y: out(), axis: 3 }.fails("attribute `axis`: 3 is not a position"),
    ]
);

/// Dtype and dimensions of stacked tensors.
fn stacked(x: &[Meta], axis: i32, y: &mut Meta) -> Result<()> {
    let Some((first, others)) = x.split_first() else {
        return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
    };
    let mut dims = first.dims.to_vec();
    for other in others {
        other.same_as(first)?;
        dims.iter_mut().zip(&*other.dims).for_each(|(dim, other)| *dim = dim.or(*other));
    }
    let place = i64::from(axis) + if axis < 0 { dims.len() as i64 + 1 } else { 0 };
    let place = usize::try_from(place).ok().filter(|place| *place <= dims.len());
    let rank = dims.len();
    let refuse = || Error::attr("axis", format!("{axis} is not a position among {rank} dimensions"));
    dims.insert(place.ok_or_else(refuse)?, x.len().into());
    y.set(first.dtype, dims.into_iter().collect::<Dims>());
    Ok(())
}

/// Bytes of one tensor at one index of the dimensions before `axis`.
fn width(y: &Buf<'_>, axis: i32) -> usize {
    y.dims()[y.axis(axis.into()) + 1..].iter().product::<usize>() * y.dtype().size()
}

fn side_by_side(x: &[Buf<'_>], y: &mut Buf<'_>, axis: i32) -> Result<()> {
    let width = width(y, axis);
    for (i, piece) in x.iter().enumerate().filter(|_| width > 0) {
        let slots = y.bytes_mut()?.chunks_exact_mut(width).skip(i).step_by(x.len());
        slots.zip(piece.bytes()?.chunks_exact(width)).for_each(|(slot, piece)| slot.copy_from_slice(piece));
    }
    Ok(())
}

/// Fills `piece` with every `n`-th group of `width` bytes, from group `i` on.
fn take_out(whole: &Buf<'_>, width: usize, (i, n): (usize, usize), piece: &mut Buf<'_>) -> Result<()> {
    if width > 0 {
        let slots = whole.bytes()?.chunks_exact(width).skip(i).step_by(n);
        let pieces = piece.bytes_mut()?.chunks_exact_mut(width);
        pieces.zip(slots).for_each(|(piece, slot)| piece.copy_from_slice(slot));
    }
    Ok(())
}

/// `dx[i] = dy[.., i, ..]`.
#[register_op(grad_of = Stack, grad = Multilinear, inferred, infallible, any_dtype)]
pub struct StackGrad<V = Var> {
    #[input(shape_only)]
    pub x: Vec<V>,
    pub dy: V,
    #[output]
    pub dx: Vec<Option<V>>,
    pub axis: i32,
}
impl Kernel for StackGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (n, width) = (self.dx.len(), width(&self.dy, self.axis));
        for (i, dx) in self.dx.iter_mut().enumerate() {
            dx.iter_mut().try_for_each(|dx| take_out(&self.dy, width, (i, n), dx))?;
        }
        Ok(())
    }
}
impl Composition for StackGrad<Expr> {
    fn compose(&mut self) {
        self.dx = elements(&self.dy, self.axis, self.dx.len()).map(Some).collect();
    }
}

/// Unstacking of a tensor along a dimension, which is dropped: `y[i] = x[.., i, ..]`.
#[register_op(grad = UnstackGrad, infallible, any_dtype)]
pub struct Unstack<V = Var> {
    /// At least one dimension, any dtype.
    #[input]
    pub x: V,
    /// As many as the length of that dimension of `x`.
    #[output]
    pub y: Vec<V>,
    /// The dimension; negative values count from the end.
    #[attr(default = 0)]
    pub axis: i32,
    /// Its length.
    #[attr(min = 1)]
    pub num: i32,
}
impl Infer for Unstack<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (x, num) = (&self.x, self.num as usize);
        let axis = x.axis("axis", self.axis.into())?;
        x.require(x.dims[axis].agrees(num.into()), || {
            format!("a length of {num} along axis {axis} is needed")
        })?;
        same_count("Y", self.y.len(), num)?;
        let others = || x.dims[..axis].iter().chain(&x.dims[axis + 1..]).copied();
        self.y.iter_mut().for_each(|y| y.set(x.dtype, others().collect::<Dims>()));
        Ok(())
    }
}
impl Kernel for Unstack<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (n, width) = (self.y.len(), width(&self.x, self.axis));
        self.y.iter_mut().enumerate().try_for_each(|(i, y)| take_out(&self.x, width, (i, n), y))
    }
}
impl Composition for Unstack<Expr> {
    fn compose(&mut self) {
        self.y = elements(&self.x, self.axis, self.y.len()).collect();
    }
}

/// The tensors at each of `n` indices of a dimension, which is dropped.
fn elements(x: &Expr, axis: i32, n: usize) -> impl Iterator<Item = Expr> {
    (0..n as i32).map(move |i| {
        let (axes, starts, ends) = (vec![axis], vec![i], vec![i + 1]);
        emit(Slice { axes, starts, ends, decrease_axis: vec![axis], ..Slice::of(x.into(), New) }).out
    })
}
crate::samples!(
    Unstack,
    [
        Unstack { x: uniform([2, 3]), y: vec![out(), out()], axis: 0, num: 2 },
        Unstack { x: uniform([2, 3, 4]), y: vec![out(), out(), out()], axis: 1, num: 3 },
        Unstack { x: uniform([4, 3]), y: vec![out(), out(), out()], axis: -1, num: 3 },
        Unstack { x: uniform([1]), y: vec![out()], axis: 0, num: 1 },
        Unstack { x: uniform([0, 2]), y: vec![out(), out()], axis: 1, num: 2 },
        Unstack { x: integers_below(9, [2, 3]), y: vec![out(), out()], axis: 0, num: 2 },
        Unstack { x: uniform([2, 3]), y: vec![out(), out()], axis: 1, num: 2 }
            .fails("`X`: a length of 2 along axis 1 is needed"),
        Unstack { x: uniform([2, 3]), y: vec![out()], axis: 0, num: 2 }
            .fails("`Y`: 2 variables are needed, not 1"),
    ]
);

/// `dx[.., i, ..] = dy[i]`.
#[register_op(grad_of = Unstack, grad = Multilinear, infallible, any_dtype)]
pub struct UnstackGrad<V = Var> {
    pub dy: Vec<V>,
    #[output]
    pub dx: V,
    pub axis: i32,
    pub num: i32,
}
impl Infer for UnstackGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        same_count("Y@GRAD", self.dy.len(), self.num as usize)?;
        stacked(&self.dy, self.axis, &mut self.dx)
    }
}
impl Kernel for UnstackGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        side_by_side(&self.dy, &mut self.dx, self.axis)
    }
}
impl Composition for UnstackGrad<Expr> {
    fn compose(&mut self) {
        let x = self.dy.iter().map(Into::into).collect();
        self.dx = emit(Stack { x, y: New, axis: self.axis }).y;
    }
}
