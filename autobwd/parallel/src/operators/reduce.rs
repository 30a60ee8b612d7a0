//! Sums for one rank.

use autobwd_core::{Buf, Cx, GradCx, GradRule, Kernel, Result, Var, register_op, sample::*, with_signed};

use super::{CBroadcast, existing_rank, sums::add_tensors, transport};

/// Sums tensors over all ranks for one of them: rank `root_id` gets the sum, in the order of ranks, and all others get
/// zeros.
#[register_op(grad = CReduceSumGrad, primitive)]
pub struct CReduceSum<V = Var> {
    /// Any shape, the same on all ranks; sums of integers wrap around.
    #[input]
    pub x: V,
    /// Same shape.
    #[output(like = x)]
    pub out: V,
    /// The group of ranks; there is one, 0, of all.
    #[attr(default = 0, min = 0, max = 0)]
    pub ring_id: i32,
    /// The rank that gets the sum.
    #[attr(default = 0, min = 0)]
    pub root_id: i32,
    /// Accepted for compatibility: operators run one after the other.
    #[attr(default = false)]
    pub use_calc_stream: bool,
    /// Accepted for compatibility.
    #[attr(default = false)]
    pub use_model_parallel: bool,
}
impl Kernel for CReduceSum<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let CReduceSum { x, out, root_id, .. } = self;
        let transport = transport(cx, 0)?;
        let root = existing_rank(transport, "root_id", *root_id)?;
        let Some(transport) = transport else { return out.copy_from(x) };
        let (x, out) = (std::slice::from_ref(x), std::slice::from_mut(out));
        with_signed!(x[0], T => add_tensors::<T>(cx, transport, x, out))?;
        if transport.rank() != root {
            out[0].bytes_mut()?.fill(0);
        }
        Ok(())
    }
}
autobwd_core::samples!(
    CReduceSum,
    [
        reduced(uniform([2, 3]), 0),
        reduced(integers_below(9, [3]), 0),
        reduced(uniform([0]), 0),
        reduced(uniform([2]), 1).fails("attribute `root_id`: must be below the number of ranks, 1"),
    ]
);

fn reduced(x: Draw, root_id: i32) -> CReduceSum<Draw> {
    CReduceSum { x, out: out(), ring_id: 0, root_id, use_calc_stream: false, use_model_parallel: false }
}

/// `dx = c_broadcast(dout)`: of the loss of rank `root_id`.
#[derive(Debug)]
pub struct CReduceSumGrad;
impl GradRule<CReduceSum> for CReduceSumGrad {
    fn emit(fwd: &CReduceSum, g: &mut GradCx<'_>) {
        let CReduceSum { x, out, ring_id, root_id, use_calc_stream, .. } = *fwd;
        if let Some(dx) = g.wanted(x) {
            g.push(CBroadcast { x: g.grad(out), out: dx, ring_id, root: root_id, use_calc_stream });
        }
    }
}
