//! Rotation of dimensions.

use autobwd::{
    Buf, Composition, Cx, Error, Expr, Infer, Kernel, Meta, Multilinear, Result, Var,
    check::*,
    op::with_dtype,
    operators::{MAX_RANK, constant_ints},
    register_op,
};

use crate::{
    Math, concat,
    kernel_helpers::PART,
    math::{all_sizes, given_integers},
};

/// Rotates elements along dimensions: `out[i] = x[(i - shift) mod n]`.
#[register_op(grad = RollGrad, infallible, any_dtype)]
pub struct Roll<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub x: V,
    /// The shifts, in place of attribute `shifts`: int32 or int64, of one dimension.
    #[input(constant)]
    pub shifts_tensor: Option<V>,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The shifts; negative ones move elements towards the start.
    #[attr(default = [])]
    pub shifts: Vec<i64>,
    /// The dimension of each shift; negative counts from the end. Empty means that of a flat `x`, for one shift.
    #[attr(default = [])]
    pub axis: Vec<i64>,
}
impl Infer for Roll<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        check(&self.x, self.shifts_tensor.as_ref(), &self.shifts, &self.axis)
    }
}
impl Kernel for Roll<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let shifts = self.shifts_tensor.as_ref();
        rotate(cx, (&self.x, &mut self.out), (shifts, &self.shifts, &self.axis), false)
    }
}
impl Composition for Roll<Expr> {
    fn compose(&mut self) {
        self.out = rotated(&self.x, self.shifts_tensor.as_ref(), &self.shifts, &self.axis, false);
    }
}

/// Rotates, or reverses the rotation.
fn rotated(x: &Expr, tensor: Option<&Expr>, shifts: &[i64], axis: &[i64], back: bool) -> Expr {
    let mut out = if axis.is_empty() { x.reshape(&[-1]) } else { x.clone() };
    for (i, shift) in given_integers(tensor, &[], shifts.iter().copied()).into_iter().enumerate() {
        let at = axis.get(i).map_or(0, |axis| *axis as i32);
        let n = out.dim(at);
        let shift = shift % n.max(1);
        // The first element of the result.
        let first = if back { shift } else { &n - shift };
        out = concat(&[&out.slice_to(at, &first, &n), &out.slice_to(at, &0.into(), &first)], at);
    }
    out.reshape_to(&all_sizes(x))
}
autobwd::samples!(
    Roll,
    [
        roll(uniform([3, 4]), &[1], &[]),
        roll(uniform([3, 4]), &[1, -2], &[0, 1]),
        roll(uniform([2, 3, 4]), &[-7], &[-1]),
        roll(uniform([2, 5, 3]), &[2, 9], &[1, 1]),
        roll(uniform([0, 3]), &[1], &[1]),
        roll(uniform([]), &[3], &[]),
        roll(integers_below(9, [5]), &[i64::MIN], &[0]),
        Roll { shifts_tensor: Some(integers(&[1, -1])), ..roll(uniform([4, 3]), &[0, 0], &[0, 1]) },
        roll(uniform([3, 4]), &[1], &[2]).fails("attribute `axis` = 2"),
        roll(uniform([3, 4]), &[1, 2], &[0])
            .fails("attribute `shifts`: one for each of `axis` is needed, not 2"),
        roll(uniform([3, 4]), &[], &[]).fails("attribute `shifts`: one for each of `axis` is needed, not 0"),
        Roll { shifts_tensor: Some(uniform([1])), ..roll(uniform([4, 3]), &[], &[0]) }
            .fails("`ShiftsTensor`: int32 or int64 is needed"),
    ]
);

fn roll(x: Draw, shifts: &[i64], axis: &[i64]) -> Roll<Draw> {
    Roll { x, shifts_tensor: None, out: out(), shifts: shifts.to_vec(), axis: axis.to_vec() }
}

fn check(x: &Meta, tensor: Option<&Meta>, shifts: &[i64], axis: &[i64]) -> Result<()> {
    x.require(x.rank() <= MAX_RANK, || format!("at most {MAX_RANK} dimensions are possible"))?;
    let given = constant_ints(&[], tensor, shifts.iter().copied())?;
    for axis in axis {
        x.axis("axis", *axis)?;
    }
    if given.len() != axis.len().max(1) {
        let text = format!("one for each of `axis` is needed, not {}", given.len());
        return Err(Error::attr("shifts", text));
    }
    Ok(())
}

/// Rotates, or reverses the rotation.
fn rotate(
    cx: &Cx,
    (x, out): (&Buf<'_>, &mut Buf<'_>),
    (tensor, shifts, axis): (Option<&Buf<'_>>, &[i64], &[i64]),
    back: bool,
) -> Result<()> {
    let flat = [x.numel()];
    let dims = if axis.is_empty() { &flat[..] } else { x.dims() };
    let given = constant_ints(&[], tensor, shifts.iter().copied())?;
    let mut starts = [0; MAX_RANK];
    for (i, shift) in given.iter().enumerate() {
        let at = axis.get(i).map_or(0, |axis| x.axis(*axis));
        let n = dims[at].max(1);
        let shift = shift.unwrap_or(0).rem_euclid(n as i64) as usize;
        // The first element of the result is element `n - shift`.
        starts[at] = (starts[at] + if back { shift } else { n - shift }) % n;
    }
    let (row, outer) = dims.split_last().map_or((1, dims), |(row, outer)| (*row, outer));
    if x.numel() == 0 {
        return Ok(());
    }
    let (start, rows) = (starts[outer.len()], PART.div_ceil(row));
    with_dtype!(x.dtype(), T => {
        let x = x.slice::<T>()?;
        cx.chunks_mut(out.slice_mut::<T>()?, rows * row, |part, out| {
            for (i, out) in out.chunks_exact_mut(row).enumerate() {
                let (mut rest, mut from, mut stride) = (part * rows + i, 0, 1);
                for (axis, n) in outer.iter().enumerate().rev() {
                    from += (rest % n + starts[axis]) % n * stride;
                    (rest, stride) = (rest / n, stride * n);
                }
                let (head, tail) = x[from * row..][..row].split_at(start);
                let (first, second) = out.split_at_mut(tail.len());
                first.copy_from_slice(tail);
                second.copy_from_slice(head);
            }
        });
        Ok(())
    })
}

/// `dx` = `dout` rotated back.
#[register_op(grad_of = Roll, grad = Multilinear, infallible, any_dtype)]
pub struct RollGrad<V = Var> {
    #[input(shape_only)]
    pub x: V,
    #[input(constant)]
    pub shifts_tensor: Option<V>,
    pub dout: V,
    #[output]
    pub dx: V,
    pub shifts: Vec<i64>,
    pub axis: Vec<i64>,
}
impl Infer for RollGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.dout.same_as(&self.x)?;
        self.x.float()?;
        self.dx.like(&self.x);
        check(&self.x, self.shifts_tensor.as_ref(), &self.shifts, &self.axis)
    }
}
impl Kernel for RollGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let shifts = self.shifts_tensor.as_ref();
        rotate(cx, (&self.dout, &mut self.dx), (shifts, &self.shifts, &self.axis), true)
    }
}
impl Composition for RollGrad<Expr> {
    fn compose(&mut self) {
        self.dx = rotated(&self.dout, self.shifts_tensor.as_ref(), &self.shifts, &self.axis, true);
    }
}
