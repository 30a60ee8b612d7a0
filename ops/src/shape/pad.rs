//! Padding, and triangular parts of matrices.

use autobwd::{
    Buf, Composition, Cx, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*,
    emit,
    op::{SelfAdjoint, with_dtype},
    operators::{Slice, StridedLayout, few_dims},
    register_op,
    tensor::Dim,
};

use crate::{
    Math,
    kernel_helpers::{AnyNumber, ConvertElement, PART, outer_axis_inner, pieces},
    math::{all_sizes, filled, like, positions},
};

/// Padding with a constant.
#[register_op(grad = PadGrad, infallible, any_dtype, primitive)]
pub struct Pad<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub x: V,
    /// `x`, extended by the padding.
    #[output]
    pub out: V,
    /// Number of elements added before and after, for each dimension.
    #[attr]
    pub paddings: Vec<i32>,
    /// Value of the padding.
    #[attr(default = 0.0)]
    pub pad_value: f32,
}
impl Infer for Pad<Meta> {
    fn infer(&mut self) -> Result<()> {
        few_dims(&self.x)?;
        let added = added(&self.x, &self.paddings)?;
        let dims = self
            .x
            .dims
            .iter()
            .zip(added)
            .map(|(n, (before, behind))| *n + Dim::from(before) + Dim::from(behind));
        self.out.set(self.x.dtype, dims.collect::<Dims>());
        Ok(())
    }
}
impl Kernel for Pad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let inner = inner(self.out.dims(), self.x.dims(), &self.paddings);
        with_dtype!(self.x.dtype(), T => {
            let out = self.out.slice_mut::<T>()?;
            out.fill(T::narrow(AnyNumber::Float(self.pad_value.into())));
            inner.scatter::<T>(self.x.slice()?, out);
            Ok(())
        })
    }
}
autobwd::samples!(
    Pad,
    [
        Pad { x: uniform([2, 3]), out: out(), paddings: vec![0, 1, 2, 0], pad_value: 0.5 },
        Pad { x: uniform([3]), out: out(), paddings: vec![1, 2], pad_value: 0.0 },
        Pad { x: uniform([2, 3, 4]), out: out(), paddings: vec![1, 1, 0, 0, 2, 1], pad_value: -1.5 },
        Pad { x: uniform([]), out: out(), paddings: vec![], pad_value: 1.0 },
        Pad { x: uniform([0, 2]), out: out(), paddings: vec![1, 1, 0, 1], pad_value: 2.0 },
        Pad { x: uniform([2, 0]), out: out(), paddings: vec![1, 0, 0, 0], pad_value: 2.0 },
        Pad { x: integers_below(9, [2, 3]), out: out(), paddings: vec![1, 0, 0, 2], pad_value: 7.0 },
        Pad { x: uniform([2, 3]), out: out(), paddings: vec![1, 1], pad_value: 0.0 }
            .fails("attribute `paddings`: 4 numbers are needed"),
        Pad { x: uniform([3]), out: out(), paddings: vec![1, -1], pad_value: 0.0 }
            .fails("attribute `paddings`: -1 is not a length"),
    ]
);

/// Padding before and after each dimension.
fn added(x: &Meta, paddings: &[i32]) -> Result<Vec<(usize, usize)>> {
    if paddings.len() != 2 * x.rank() {
        let text = format!("{} numbers are needed, two for each dimension", 2 * x.rank());
        return Err(Error::attr("paddings", text));
    }
    let length =
        |n: i32| usize::try_from(n).map_err(|_| Error::attr("paddings", format!("{n} is not a length")));
    paddings.chunks_exact(2).map(|pair| Ok((length(pair[0])?, length(pair[1])?))).collect()
}

/// The part of the padded tensor with dimensions `dims` of the original.
fn inner(frame: &[usize], dims: &[usize], paddings: &[i32]) -> StridedLayout {
    let mut loops = StridedLayout::default();
    for (axis, n) in dims.iter().enumerate() {
        let (_, _, stride) = outer_axis_inner(frame, axis);
        loops.skip(paddings[2 * axis] as isize * stride as isize);
        loops.push(*n, stride as isize);
    }
    loops
}

/// `dx` = the unpadded part of `dout`.
#[register_op(grad_of = Pad, grad = Multilinear, infallible, any_dtype)]
pub struct PadGrad<V = Var> {
    pub dout: V,
    #[output]
    pub dx: V,
    pub paddings: Vec<i32>,
}
impl Infer for PadGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        few_dims(&self.dout)?;
        let mut dims = Dims::default();
        for (n, (before, behind)) in self.dout.dims.iter().zip(added(&self.dout, &self.paddings)?) {
            let rest = n.get().map(|n| n.checked_sub(before).and_then(|n| n.checked_sub(behind)));
            let refuse = || self.dout.wrong("a shape longer than `paddings` is needed");
            dims.push(rest.map_or(Ok(Dim::UNKNOWN), |rest| rest.map(Dim::from).ok_or_else(refuse))?);
        }
        self.dx.set(self.dout.dtype, dims);
        Ok(())
    }
}
impl Kernel for PadGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let inner = inner(self.dout.dims(), self.dx.dims(), &self.paddings);
        with_dtype!(self.dout.dtype(), T => inner.gather::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?));
        Ok(())
    }
}
impl Composition for PadGrad<Expr> {
    fn compose(&mut self) {
        let from_end = |after: i32| if after == 0 { i32::MAX } else { -after };
        let (starts, ends) = self.paddings.chunks_exact(2).map(|pair| (pair[0], from_end(pair[1]))).unzip();
        let axes = (0..self.dout.dims().len() as i32).collect();
        self.dx = emit(Slice { axes, starts, ends, ..Slice::of((&self.dout).into(), New) }).out;
    }
}

/// Triangular part of matrices, with 0 elsewhere: keeps `x[i][j]` where `j ≤ i + diagonal` if `lower`, else where
/// `j ≥ i + diagonal`.
#[register_op(grad = TrilTriuGrad, infallible, any_dtype)]
pub struct TrilTriu<V = Var> {
    /// At least two dimensions, the last two for matrices; any dtype.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Offset of the diagonal to the right of the main diagonal.
    #[attr(default = 0)]
    pub diagonal: i32,
    /// Keep the lower part, not the upper one.
    #[attr(default = false)]
    pub lower: bool,
}
impl Infer for TrilTriu<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.require(self.x.rank() > 1, || "matrices are needed".into())?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for TrilTriu<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let &[.., rows, cols] = self.x.dims() else { return Err(self.x.wrong("matrices are needed")) };
        let (diagonal, lower) = (i64::from(self.diagonal), self.lower);
        with_dtype!(self.x.dtype(), T => {
            let x = self.x.slice::<T>()?;
            let size = PART.div_ceil(cols.max(1)) * cols;
            cx.chunks_mut(self.out.slice_mut::<T>()?, size, |part, out| {
                pieces(out, part * size, cols, usize::MAX, |row, _, out| {
                    // Column at which the diagonal, or its successor, cuts the row.
                    let cut = (row % rows) as i64 + diagonal + i64::from(lower);
                    let cut = cut.clamp(0, cols as i64) as usize;
                    let kept = if lower { 0..cut } else { cut..cols };
                    out.fill(T::default());
                    out[kept.clone()].copy_from_slice(&x[row * cols..][kept]);
                });
            });
            Ok(())
        })
    }
}
impl Composition for TrilTriu<Expr> {
    fn compose(&mut self) {
        let (x, builder) = (&self.x, self.x.builder());
        let [row, column] = [-2, -1].map(|axis| positions(builder, &x.dim(axis)));
        let to_the_right = column - row.unsqueeze(&[1]);
        let diagonal = filled(builder, to_the_right.dtype(), &self.diagonal.to_string(), &[1.into()]);
        let is_kept = match self.lower {
            true => to_the_right.less_equal(&diagonal),
            false => to_the_right.greater_equal(&diagonal),
        };
        self.out = is_kept.expand_to(&all_sizes(x)).where_cond(x, &like(x, 0.0));
    }
}
autobwd::samples!(
    TrilTriu,
    [
        TrilTriu { x: uniform([3, 4]), out: out(), diagonal: 0, lower: true },
        TrilTriu { x: uniform([3, 4]), out: out(), diagonal: 0, lower: false },
        TrilTriu { x: uniform([2, 4, 3]), out: out(), diagonal: -2, lower: true },
        TrilTriu { x: uniform([2, 4, 3]), out: out(), diagonal: 1, lower: false },
        TrilTriu { x: uniform([2, 3]), out: out(), diagonal: 9, lower: true },
        TrilTriu { x: uniform([2, 3]), out: out(), diagonal: i32::MAX, lower: false },
        TrilTriu { x: uniform([2, 0]), out: out(), diagonal: 0, lower: true },
        TrilTriu { x: integers_below(9, [3, 2]), out: out(), diagonal: 0, lower: true },
        TrilTriu { x: uniform([3]), out: out(), diagonal: 0, lower: true }.fails("`X`: matrices are needed"),
    ]
);

/// `dx` = the triangular part of `dout`, with 0 elsewhere.
#[register_op(grad_of = TrilTriu, grad = SelfAdjoint, composed)]
pub struct TrilTriuGrad<V = Var> {
    pub dout: V,
    #[output(like = dout)]
    pub dx: V,
    pub diagonal: i32,
    pub lower: bool,
}
impl Composition for TrilTriuGrad<Expr> {
    fn compose(&mut self) {
        let TrilTriuGrad { diagonal, lower, .. } = *self;
        self.dx = emit(TrilTriu { x: (&self.dout).into(), out: New, diagonal, lower }).out;
    }
}
