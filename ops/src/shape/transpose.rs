//! Permuting and flipping dimensions.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, Multilinear, New, Result, Var,
    check::*,
    emit,
    op::{SelfAdjoint, with_dtype},
    operators::{MAX_RANK, StridedLayout, few_dims, remembered, set_x_shape},
    register_op,
};

use super::StridedSlice;
use crate::{Math, kernel_helpers::outer_axis_inner};

/// Implements the kernel of an operator that copies elements without moving them.
macro_rules! copies {
    ($op:ident, $to:ident from $from:ident) => {
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, _: &Cx) -> Result<()> {
                self.$to.copy_from(&self.$from)
            }
        }
    };
}
pub(super) use copies;

/// Permutes dimensions: dimension `i` of `out` is dimension `axis[i]` of `x`.
#[register_op(grad = Transpose2Grad, infallible, any_dtype, primitive)]
pub struct Transpose2<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub x: V,
    /// `x` with its dimensions permuted.
    #[output]
    pub out: V,
    /// Records the shape of `x`: `[0]` and its dimensions, so it has no elements.
    #[output]
    pub x_shape: V,
    /// Every dimension of `x` once; negative counts from the end.
    #[attr]
    pub axis: Vec<i32>,
}
impl Infer for Transpose2<Meta> {
    fn infer(&mut self) -> Result<()> {
        let axes = permutation(&self.axis, self.x.rank())?;
        self.out.set(self.x.dtype, axes.iter().map(|axis| self.x.dims[*axis]).collect::<Dims>());
        set_x_shape(&self.x, &mut self.x_shape);
        Ok(())
    }
}
impl Kernel for Transpose2<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_dtype!(self.x.dtype(), T => {
            let mut loops = StridedLayout::default();
            for axis in &self.axis {
                let (_, n, stride) = outer_axis_inner(self.x.dims(), self.x.axis(i64::from(*axis)));
                loops.push(n, stride as isize);
            }
            loops.gather::<T>(cx, self.x.slice()?, self.out.slice_mut()?);
            Ok(())
        })
    }
}
autobwd::samples!(
    Transpose2,
    [
        Transpose2 { x: uniform([2, 3]), out: out(), x_shape: out(), axis: vec![1, 0] },
        Transpose2 { x: uniform([2, 3, 4]), out: out(), x_shape: out(), axis: vec![1, 0, 2] },
        Transpose2 { x: uniform([2, 3, 4]), out: out(), x_shape: out(), axis: vec![2, 0, 1] },
        Transpose2 { x: uniform([2, 3, 4]), out: out(), x_shape: out(), axis: vec![-1, 1, 0] },
        Transpose2 { x: uniform([2, 3, 4, 5]), out: out(), x_shape: out(), axis: vec![0, 2, 1, 3] },
        Transpose2 { x: uniform([2, 3, 4, 5]), out: out(), x_shape: out(), axis: vec![2, 0, 3, 1] },
        Transpose2 { x: uniform([40, 33]), out: out(), x_shape: out(), axis: vec![1, 0] },
        Transpose2 { x: uniform([2, 3]), out: out(), x_shape: out(), axis: vec![0, 1] },
        Transpose2 { x: uniform([]), out: out(), x_shape: out(), axis: vec![] },
        Transpose2 { x: uniform([0, 3]), out: out(), x_shape: out(), axis: vec![1, 0] },
        Transpose2 {
            x: integers_below(9, [2, 3]).of(DType::U8),
            out: out(),
            x_shape: out(),
            axis: vec![1, 0]
        },
        Transpose2 { x: uniform([2, 3]), out: out(), x_shape: out(), axis: vec![1, 1] }
            .fails("attribute `axis`: each of the 2 dimensions is needed once, not [1, 1]"),
    ]
);

fn permutation(axis: &[i32], rank: usize) -> Result<Vec<usize>> {
    if rank > MAX_RANK {
        return Err(Error::attr(
            "axis",
            format!("at most {MAX_RANK} dimensions can be permuted, not {rank}"),
        ));
    }
    let at = |axis: &i32| {
        usize::try_from(if *axis < 0 { i64::from(*axis) + rank as i64 } else { i64::from(*axis) })
    };
    let axes: Vec<usize> = axis.iter().filter_map(|axis| at(axis).ok()).collect();
    let complete = axis.len() == rank && (0..rank).all(|axis| axes.contains(&axis));
    let refuse =
        || Error::attr("axis", format!("each of the {rank} dimensions is needed once, not {axis:?}"));
    if complete { Ok(axes) } else { Err(refuse()) }
}

/// `dx` = `dout` with the inverse permutation.
#[register_op(grad_of = Transpose2, grad = Multilinear, infallible, any_dtype)]
pub struct Transpose2Grad<V = Var> {
    #[input(shape_only)]
    pub x_shape: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub axis: Vec<i32>,
}
impl Infer for Transpose2Grad<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = remembered(&self.x_shape)?;
        let axes = permutation(&self.axis, dims.len())?;
        if !self.dout.dims.agrees(&axes.iter().map(|axis| dims[*axis]).collect::<Dims>()) {
            return Err(self.dout.wrong("the shape of the transposed `X` is needed"));
        }
        self.dx.set(self.dout.dtype, dims.iter().copied().collect::<Dims>());
        Ok(())
    }
}
impl Kernel for Transpose2Grad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_dtype!(self.dout.dtype(), T => {
            let mut loops = StridedLayout::default();
            for to in 0..self.axis.len() {
                let from = self.axis.iter().position(|axis| self.dx.axis(i64::from(*axis)) == to).unwrap_or(to);
                let (_, n, stride) = outer_axis_inner(self.dout.dims(), from);
                loops.push(n, stride as isize);
            }
            loops.gather::<T>(cx, self.dout.slice()?, self.dx.slice_mut()?);
            Ok(())
        })
    }
}
impl Composition for Transpose2Grad<Expr> {
    fn compose(&mut self) {
        let axes = permutation(&self.axis, self.axis.len()).unwrap_or_default();
        let mut back = vec![0; axes.len()];
        axes.into_iter().enumerate().for_each(|(to, from)| back[from] = to as i32);
        self.dx = self.dout.transpose(&back);
    }
}

/// Reverses dimensions: `out[i] = x[n - 1 - i]` along each `axis`.
#[register_op(grad = SelfAdjoint, infallible, any_dtype)]
pub struct Flip<V = Var> {
    /// Any shape of at most 9 dimensions, any dtype.
    #[input]
    pub x: V,
    /// Same shape and dtype.
    #[output]
    pub out: V,
    /// The dimensions to reverse; negative counts from the end.
    #[attr]
    pub axis: Vec<i32>,
}
impl Infer for Flip<Meta> {
    fn infer(&mut self) -> Result<()> {
        few_dims(&self.x)?;
        let mut reversed = 0;
        for axis in &self.axis {
            let bit = 1 << self.x.axis("axis", i64::from(*axis))?;
            if reversed & bit != 0 {
                return Err(Error::attr("axis", format!("{axis} is given twice")));
            }
            reversed |= bit;
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Flip<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_dtype!(self.x.dtype(), T => {
            let mut loops = StridedLayout::default();
            for axis in 0..self.x.dims().len() {
                let (_, n, stride) = outer_axis_inner(self.x.dims(), axis);
                let stride = stride as isize;
                if self.axis.iter().any(|reversed| self.x.axis(i64::from(*reversed)) == axis) {
                    loops.skip(n.saturating_sub(1) as isize * stride);
                    loops.push(n, -stride);
                } else {
                    loops.push(n, stride);
                }
            }
            loops.gather::<T>(cx, self.x.slice()?, self.out.slice_mut()?);
            Ok(())
        })
    }
}
impl Composition for Flip<Expr> {
    fn compose(&mut self) {
        let from_last = || vec![-1; self.axis.len()];
        // The end −1 is before the first element.
        let [starts, ends, strides] = [from_last(), from_last(), from_last()];
        let op = StridedSlice {
            axes: self.axis.clone(),
            starts,
            ends,
            strides,
            ..StridedSlice::of((&self.x).into(), New)
        };
        self.out = emit(op).out;
    }
}
autobwd::samples!(
    Flip,
    [
        Flip { x: uniform([5]), out: out(), axis: vec![0] },
        Flip { x: uniform([2, 3]), out: out(), axis: vec![0] },
        Flip { x: uniform([2, 3, 4]), out: out(), axis: vec![1] },
        Flip { x: uniform([2, 3, 4]), out: out(), axis: vec![-1, 0] },
        Flip { x: uniform([2, 3, 4]), out: out(), axis: vec![1, 2] },
        Flip { x: uniform([2, 3]), out: out(), axis: vec![] },
        Flip { x: uniform([]), out: out(), axis: vec![] },
        Flip { x: uniform([0, 3]), out: out(), axis: vec![0, 1] },
        Flip { x: integers_below(9, [4, 3]).of(DType::Bool), out: out(), axis: vec![0] },
        Flip { x: uniform([2, 3]), out: out(), axis: vec![2] }.fails("attribute `axis` = 2"),
        Flip { x: uniform([2, 3]), out: out(), axis: vec![1, -1] }
            .fails("attribute `axis`: -1 is given twice"),
    ]
);
