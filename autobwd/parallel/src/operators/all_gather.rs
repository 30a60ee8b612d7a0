//! The tensors of all ranks for all.

use autobwd_core::{
    Buf, Cx, Dim, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, register_op, sample::*,
};

use super::{CReducescatter, expected, transport, with_rows};
use crate::collective::all_gather;

/// Joins the tensors of all ranks along the first axis, in the order of ranks.
#[register_op(grad = CAllgatherGrad, any_dtype, primitive)]
pub struct CAllgather<V = Var> {
    /// At least one dimension; the same shape on all ranks.
    #[input]
    pub x: V,
    /// The first dimension is `nranks` times the first dimension of `x`.
    #[output]
    pub out: V,
    /// The number of ranks.
    #[attr(min = 1)]
    pub nranks: i32,
    /// The group of ranks; there is one, 0, of all.
    #[attr(default = 0, min = 0, max = 0)]
    pub ring_id: i32,
    /// Accepted for compatibility: operators run one after the other.
    #[attr(default = false)]
    pub use_calc_stream: bool,
}
impl Infer for CAllgather<Meta> {
    fn infer(&mut self) -> Result<()> {
        with_rows(&self.x, &mut self.out, |rows| Ok(rows * Dim::from(expected(self.nranks))))
    }
}
impl Kernel for CAllgather<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        match transport(cx, self.nranks)? {
            None => self.out.copy_from(&self.x),
            Some(transport) => all_gather(transport, self.x.bytes()?, self.out.bytes_mut()?),
        }
    }
}
autobwd_core::samples!(
    CAllgather,
    [
        gathered(uniform([2, 3]), 1),
        gathered(uniform([0, 3]), 1),
        gathered(integers_below(9, [4]), 1),
        gathered(uniform([]), 1).fails("`X`: at least one dimension is needed"),
        gathered(uniform([2]), 3).fails("the program is made for 3 ranks, not 1"),
    ]
);

fn gathered(x: Draw, nranks: i32) -> CAllgather<Draw> {
    CAllgather { x, out: out(), nranks, ring_id: 0, use_calc_stream: false }
}

/// `dx = c_reducescatter(dout)`: of the sum of the losses of all ranks.
#[derive(Debug)]
pub struct CAllgatherGrad;
impl GradRule<CAllgather> for CAllgatherGrad {
    fn emit(fwd: &CAllgather, g: &mut GradCx<'_>) {
        let CAllgather { x, out, nranks, ring_id, use_calc_stream } = *fwd;
        if let Some(dx) = g.wanted(x) {
            g.push(CReducescatter { x: g.grad(out), out: dx, nranks, ring_id, use_calc_stream });
        }
    }
}
