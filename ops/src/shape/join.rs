//! Tensors joined to one, and one cut into several.

use autobwd::{
    Buf, Cx, Dim, Error, ErrorKind, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op,
};

use crate::{common::check_grad, fill::FillZerosLike};

/// Tensors joined along an axis: `out = x[0], x[1], …`.
#[register_op(grad = ConcatGrad)]
pub struct Concat<V = Var> {
    /// At least one, of one dtype, any; shapes differ in dimension `axis` alone.
    #[input]
    pub x: Vec<V>,
    /// As long in dimension `axis` as all of them together.
    #[output]
    pub out: V,
    /// The dimension, negative from behind.
    #[attr(default = 0)]
    pub axis: i32,
}
impl Infer for Concat<Meta> {
    fn infer(&mut self) -> Result<()> {
        joined(&self.x, self.axis, &mut self.out)
    }
}
impl Kernel for Concat<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let axis = self.out.axis(self.axis.into());
        let (mut at, row) = (0, row_bytes(&self.out, axis));
        let out = self.out.bytes_mut()?;
        for x in &self.x {
            let width = row_bytes(x, axis);
            if width > 0 {
                let rows = out.chunks_exact_mut(row).zip(x.bytes()?.chunks_exact(width));
                rows.for_each(|(row, x)| row[at..][..width].copy_from_slice(x));
            }
            at += width;
        }
        Ok(())
    }
}
autobwd::samples!(
    Concat,
    [
        Concat { x: vec![uniform([2, 3]), uniform([4, 3])], out: out(), axis: 0 },
        Concat { x: vec![uniform([2, 3]), uniform([2, 1]), uniform([2, 4])], out: out(), axis: 1 },
        Concat { x: vec![uniform([2, 3, 4]), uniform([2, 5, 4])], out: out(), axis: -2 },
        Concat { x: vec![uniform([2, 3]), uniform([2, 0])], out: out(), axis: -1 },
        Concat { x: vec![uniform([5])], out: out(), axis: 0 },
        Concat { x: vec![integers_below(9, [2]), integers_below(9, [3])], out: out(), axis: 0 },
        Sample::fails(Concat { x: vec![], out: out(), axis: 0 }, "at least one"),
        Sample::fails(
            Concat { x: vec![uniform([2, 3]), uniform([4, 5])], out: out(), axis: 0 },
            "`X`: dimensions [-1, 3] are needed, not",
        ),
        Sample::fails(Concat { x: vec![uniform([2, 3])], out: out(), axis: 2 }, "attribute `axis` = 2"),
    ]
);

/// Dtype and dimensions of tensors that are joined along an axis.
fn joined(x: &[Meta], axis: i32, out: &mut Meta) -> Result<()> {
    let Some((first, others)) = x.split_first() else {
        return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
    };
    let axis = first.axis("axis", axis.into())?;
    out.like(first);
    let mut length = first.dims[axis];
    for other in others {
        other.same_dtype(first)?;
        out.dims[axis] = Dim::UNKNOWN;
        if !other.dims.agrees(&out.dims) {
            return Err(other.wrong(&format!("dimensions {} are needed", out.dims)));
        }
        out.dims.iter_mut().zip(&*other.dims).for_each(|(dim, other)| *dim = dim.or(*other));
        length = length + other.dims[axis];
    }
    out.dims[axis] = length;
    Ok(())
}

/// Bytes from one step of the dimensions before `axis` to the next.
fn row_bytes(x: &Buf<'_>, axis: usize) -> usize {
    x.dims()[axis..].iter().product::<usize>() * x.dtype().size()
}

/// Fills `piece` with what lies in each row of `whole` from byte `at` on, and moves on to the next piece.
fn cut_out(
    whole: &Buf<'_>,
    axis: usize,
    at: &mut usize,
    width: usize,
    piece: Option<&mut Buf<'_>>,
) -> Result<()> {
    if let Some(piece) = piece.filter(|_| width > 0) {
        let rows = whole.bytes()?.chunks_exact(row_bytes(whole, axis));
        let pieces = piece.bytes_mut()?.chunks_exact_mut(width);
        pieces.zip(rows).for_each(|(piece, row)| piece.copy_from_slice(&row[*at..][..width]));
    }
    *at += width;
    Ok(())
}

/// `dx[i]` = the part of `dout` that `x[i]` went to.
#[register_op(grad_of = Concat, grad = ConcatGradGrad)]
pub struct ConcatGrad<V = Var> {
    #[input(shape_only)]
    pub x: Vec<V>,
    pub dout: V,
    #[output]
    pub dx: Vec<Option<V>>,
    pub axis: i32,
}
impl Infer for ConcatGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let mut out = self.dout.clone();
        joined(&self.x, self.axis, &mut out)?;
        check_grad(&self.x[0], &self.dout, &out.dims)?;
        like_each(&self.x, &mut self.dx)
    }
}
impl Kernel for ConcatGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (axis, mut at) = (self.dout.axis(self.axis.into()), 0);
        for (x, dx) in self.x.iter().zip(&mut self.dx) {
            cut_out(&self.dout, axis, &mut at, row_bytes(x, axis), dx.as_mut())?;
        }
        Ok(())
    }
}

/// Gradients of a list of inputs have their shapes.
pub(super) fn like_each(x: &[Meta], dx: &mut [Option<Meta>]) -> Result<()> {
    same_count("X@GRAD", dx.len(), x.len())?;
    for (x, dx) in x.iter().zip(dx) {
        dx.iter_mut().for_each(|dx| dx.like(x));
    }
    Ok(())
}

pub(super) fn same_count(slot: &str, got: usize, needed: usize) -> Result<()> {
    if got == needed {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Slot, format!("`{slot}`: {needed} variables are needed, not {got}")))
}

/// `ddout = concat(ddx)`, with zeros for a `dx` that nobody wanted.
pub struct ConcatGradGrad;
impl GradRule<ConcatGrad> for ConcatGradGrad {
    fn emit(fwd: &ConcatGrad, g: &mut GradCx<'_>) {
        let Some(ddout) = g.wanted(fwd.dout) else { return };
        let mut ddx = vec![];
        for (x, dx) in fwd.x.iter().zip(&fwd.dx) {
            ddx.push(match dx {
                Some(dx) => g.grad(*dx),
                None => {
                    let zeros = g.fresh("zeros");
                    g.push(FillZerosLike { x: *x, out: zeros });
                    zeros
                }
            });
        }
        g.push(Concat { x: ddx, out: ddout, axis: fwd.axis });
    }
}

/// A tensor cut into pieces along an axis: `out[0], out[1], … = x`.
#[register_op(grad = SplitGrad)]
pub struct Split<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// The pieces, which differ from `x` in dimension `axis` alone.
    #[output]
    pub out: Vec<V>,
    /// The dimension, negative from behind.
    #[attr(default = 0)]
    pub axis: i32,
    /// How many equal pieces, whatever `sections` says; 0 when `sections` says it.
    #[attr(default = 0, min = 0)]
    pub num: i32,
    /// Lengths of the pieces; one −1 stands for what remains.
    #[attr(default = [])]
    pub sections: Vec<i32>,
}
impl Infer for Split<Meta> {
    fn infer(&mut self) -> Result<()> {
        let axis = self.x.axis("axis", self.axis.into())?;
        let (num, sections) = (self.num as usize, &self.sections);
        if num == 0 && sections.is_empty() {
            return Err(Error::attr("num", "0 needs `sections` to say how many pieces"));
        }
        same_count("Out", self.out.len(), if num == 0 { sections.len() } else { num })?;
        let lengths =
            if num == 0 { lengths(&self.x, axis, sections)? } else { vec![equal(&self.x, axis, num)?; num] };
        for (out, length) in self.out.iter_mut().zip(lengths) {
            out.like(&self.x);
            out.dims[axis] = length;
        }
        Ok(())
    }
}
impl Kernel for Split<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (axis, mut at) = (self.x.axis(self.axis.into()), 0);
        for out in &mut self.out {
            let width = row_bytes(out, axis);
            cut_out(&self.x, axis, &mut at, width, Some(out))?;
        }
        Ok(())
    }
}
autobwd::samples!(
    Split,
    [
        Split { x: uniform([4, 3]), out: vec![out(), out()], axis: 0, num: 2, sections: vec![] },
        Split { x: uniform([2, 6]), out: vec![out(), out(), out()], axis: -1, num: 3, sections: vec![] },
        Split {
            x: uniform([2, 6, 3]),
            out: vec![out(), out(), out()],
            axis: 1,
            num: 0,
            sections: vec![1, -1, 2]
        },
        Split { x: uniform([5]), out: vec![out(), out()], axis: 0, num: 0, sections: vec![5, 0] },
        Split { x: integers_below(9, [2, 4]), out: vec![out(), out()], axis: 1, num: 2, sections: vec![] },
        Split { x: uniform([3, 4]), out: vec![out(), out()], axis: 1, num: 2, sections: vec![1, 2, 1] },
        Sample::fails(
            Split { x: uniform([4]), out: vec![out(), out()], axis: 0, num: 0, sections: vec![] },
            "attribute `num`: 0 needs `sections`"
        ),
        Sample::fails(
            Split { x: uniform([5, 2]), out: vec![out(), out()], axis: 0, num: 2, sections: vec![] },
            "`X`: a length that 2 divides is needed",
        ),
        Sample::fails(
            Split { x: uniform([5, 2]), out: vec![out(), out()], axis: 0, num: 0, sections: vec![3, 3] },
            "`X`: a length of 6 is needed",
        ),
        Sample::fails(
            Split { x: uniform([4, 2]), out: vec![out(), out(), out()], axis: 0, num: 2, sections: vec![] },
            "`Out`: 2 variables are needed, not 3",
        ),
    ]
);

/// Length of each of `num` equal pieces.
fn equal(x: &Meta, axis: usize, num: usize) -> Result<Dim> {
    match x.dims[axis].get() {
        Some(n) if n % num != 0 => Err(x.wrong(&format!("a length that {num} divides is needed"))),
        n => Ok(n.map_or(Dim::UNKNOWN, |n| (n / num).into())),
    }
}

/// Lengths of the pieces that `sections` says.
fn lengths(x: &Meta, axis: usize, sections: &[i32]) -> Result<Vec<Dim>> {
    let (mut lengths, mut rest, mut sum) = (vec![], None, 0);
    for (i, length) in sections.iter().enumerate() {
        match usize::try_from(*length) {
            Ok(length) => {
                sum += length;
                lengths.push(length.into());
            }
            Err(_) if *length < -1 => return Err(Error::attr("sections", format!("{length} is no length"))),
            Err(_) if rest.replace(i).is_some() => return Err(Error::attr("sections", "-1 is given twice")),
            Err(_) => lengths.push(Dim::UNKNOWN),
        }
    }
    match (x.dims[axis].get(), rest) {
        (Some(n), Some(rest)) if n >= sum => lengths[rest] = (n - sum).into(),
        (Some(_), Some(_)) => return Err(x.wrong(&format!("a length of at least {sum} is needed"))),
        (Some(n), None) if n != sum => return Err(x.wrong(&format!("a length of {sum} is needed"))),
        _ => {}
    }
    Ok(lengths)
}

/// `dx = concat(dout)`.
pub struct SplitGrad;
impl GradRule<Split> for SplitGrad {
    fn emit(fwd: &Split, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            let dout = fwd.out.iter().map(|out| g.grad(*out)).collect();
            g.push(Concat { x: dout, out: dx, axis: fwd.axis });
        }
    }
}
