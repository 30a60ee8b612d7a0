//! Truth of any or of all elements.

use autobwd::{
    Attrs, Buf, Composition, Cx, DType, Error, Expr, Infer, Kernel, Meta, New, Result, Var, ZeroGrad,
    check::*, emit, op::with_dtype, register_op, tensor::Bool,
};

use super::{
    ReduceAttrs, ReduceSum,
    tiling::{cut, result_dims},
};
use crate::{Math, math::in_dtype};

/// The attributes of reductions of truth values.
#[derive(Attrs, Clone, Debug)]
pub struct LogicalReduceAttrs {
    /// The dimensions to reduce; negative counts from the end, empty means all.
    #[attr(default = [0])]
    pub dim: Vec<i64>,
    /// Keep the number of dimensions.
    #[attr(default = false)]
    pub keep_dim: bool,
    /// Reduce all dimensions; `dim` is ignored.
    #[attr(default = false)]
    pub reduce_all: bool,
    /// The dtype of `x`; −1 means any.
    #[attr(default = None)]
    pub in_dtype: Option<DType>,
    /// The dtype of `out`, bool; −1 means the same.
    #[attr(default = None)]
    pub out_dtype: Option<DType>,
}

impl LogicalReduceAttrs {
    /// Reduces and drops these dimensions; all if empty.
    pub fn over(dim: impl Into<Vec<i64>>) -> LogicalReduceAttrs {
        LogicalReduceAttrs::default().dim(dim)
    }

    fn is_full(&self) -> bool {
        self.reduce_all || self.dim.is_empty()
    }

    fn infer(&self, x: &Meta, out: &mut Meta) -> Result<()> {
        if let Some(dtype) = self.in_dtype.filter(|dtype| *dtype != x.dtype) {
            return Err(x.wrong(&format!("{dtype} is needed, as attribute `in_dtype` says")));
        }
        if let Some(dtype) = self.out_dtype.filter(|dtype| *dtype != DType::Bool) {
            return Err(Error::attr("out_dtype", format!("{dtype} is not bool")));
        }
        out.set(DType::Bool, result_dims(x, self.dim.iter().copied(), self.is_full(), self.keep_dim)?);
        Ok(())
    }

    /// Whether any of these truth values holds, in a composition: their number is not 0.
    fn any(&self, truths: &Expr) -> Expr {
        let reduce = ReduceAttrs::over(self.dim.iter().map(|axis| *axis as i32).collect::<Vec<_>>());
        let reduce = reduce.keep_dim(self.keep_dim).reduce_all(self.reduce_all).out_dtype(Some(DType::I32));
        emit(ReduceSum { x: truths.into(), out: New, reduce }).out.cast(DType::Bool)
    }

    /// Finds a term whose truth is `wanted`; the result is `wanted` where there is one.
    fn find_truth(&self, cx: &Cx, x: &Buf<'_>, out: &mut Buf<'_>, wanted: bool) -> Result<()> {
        let cut = cut(x, self.dim.iter().copied(), self.is_full());
        let out = out.slice_mut::<Bool>()?;
        with_dtype!(x.dtype(), T => {
            let x = x.slice::<T>()?;
            cut.fold(cx, out, |i| {
                let found = cut.terms_of(i).any(|at| (x[at] != T::default()) == wanted);
                Bool::from(found == wanted)
            });
            Ok(())
        })
    }
}

/// Samples shared by both operators.
macro_rules! logical_samples {
    ($op:ident) => {
        const _: () = {
            fn row(x: Draw, reduce: LogicalReduceAttrs) -> $op<Draw> {
                $op { x, out: out(), reduce }
            }
            fn booleans<const N: usize>(dims: [usize; N]) -> Draw {
                integers_below(2, dims).of(DType::Bool)
            }
            autobwd::samples!(
                $op,
                [
                    row(booleans([2, 3, 4]), LogicalReduceAttrs::over([0])),
                    row(booleans([2, 3, 4]), LogicalReduceAttrs::over([-1]).keep_dim(true)),
                    row(booleans([2, 3, 4]), LogicalReduceAttrs::over([2, 0]).in_dtype(DType::Bool)),
                    row(booleans([2, 3]), LogicalReduceAttrs::over([]).out_dtype(DType::Bool)),
                    row(booleans([2, 3]), LogicalReduceAttrs::over([1]).keep_dim(true).reduce_all(true)),
                    row(given([4], [0.0; 4]).of(DType::Bool), LogicalReduceAttrs::over([0])),
                    row(given([4], [1.0; 4]).of(DType::Bool), LogicalReduceAttrs::over([0])),
                    row(booleans([]), LogicalReduceAttrs::over([0])),
                    row(booleans([0, 3]), LogicalReduceAttrs::over([0])),
                    row(booleans([0, 3]), LogicalReduceAttrs::over([1])),
                    row(integers_below(3, [2, 3]), LogicalReduceAttrs::over([1])),
                    row(given([2, 2], [0.0, f64::NAN, 0.0, -0.0]), LogicalReduceAttrs::over([1])),
                    row(booleans([2, 3]), LogicalReduceAttrs::over([2])).fails("attribute `dim` = 2"),
                    row(booleans([2]), LogicalReduceAttrs::over([0]).out_dtype(DType::I64))
                        .fails("attribute `out_dtype`: int64 is not bool"),
                    row(booleans([2]), LogicalReduceAttrs::over([0]).in_dtype(DType::I64))
                        .fails("`X`: int64 is needed, as attribute `in_dtype` says"),
                ]
            );
        };
    };
}

/// Whether any element is true: `out = x[0] | x[1] | …`.
#[register_op(grad = ZeroGrad, infallible, any_dtype)]
pub struct ReduceAny<V = Var> {
    /// Any shape and dtype; values other than 0 are true.
    #[input]
    pub x: V,
    /// Bools: `x` without the reduced dimensions, or with 1 in their place if `keep_dim`; false for no elements.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: LogicalReduceAttrs,
}
impl Infer for ReduceAny<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer(&self.x, &mut self.out)
    }
}
impl Kernel for ReduceAny<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.find_truth(cx, &self.x, &mut self.out, true)
    }
}
impl Composition for ReduceAny<Expr> {
    fn compose(&mut self) {
        self.out = self.reduce.any(&in_dtype(&self.x, DType::Bool));
    }
}
logical_samples!(ReduceAny);

/// Whether all elements are true: `out = x[0] & x[1] & …`.
#[register_op(grad = ZeroGrad, infallible, any_dtype)]
pub struct ReduceAll<V = Var> {
    /// Any shape and dtype; values other than 0 are true.
    #[input]
    pub x: V,
    /// Bools: `x` without the reduced dimensions, or with 1 in their place if `keep_dim`; true for no elements.
    #[output]
    pub out: V,
    /// Which dimensions are reduced.
    #[attrs]
    pub reduce: LogicalReduceAttrs,
}
impl Infer for ReduceAll<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.reduce.infer(&self.x, &mut self.out)
    }
}
impl Kernel for ReduceAll<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.reduce.find_truth(cx, &self.x, &mut self.out, false)
    }
}
impl Composition for ReduceAll<Expr> {
    fn compose(&mut self) {
        self.out = self.reduce.any(&in_dtype(&self.x, DType::Bool).logical_not()).logical_not();
    }
}
logical_samples!(ReduceAll);
