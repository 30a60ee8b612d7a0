//! The tensor of one rank for all.

use autobwd_core::{Buf, Cx, GradCx, GradRule, Kernel, Result, Var, register_op, sample::*};

use super::{CReduceSum, existing_rank, transport};
use crate::collective::broadcast;

/// Copies the tensor of one rank to all others: `out = x` of rank `root`.
#[register_op(grad = CBroadcastGrad, any_dtype, primitive)]
pub struct CBroadcast<V = Var> {
    /// Any shape, the same on all ranks.
    #[input]
    pub x: V,
    /// Same shape.
    #[output(inplace = x, like = x)]
    pub out: V,
    /// The group of ranks; there is one, 0, of all.
    #[attr(default = 0, min = 0, max = 0)]
    pub ring_id: i32,
    /// The rank whose tensor is copied.
    #[attr(default = 0, min = 0)]
    pub root: i32,
    /// Accepted for compatibility: operators run one after the other.
    #[attr(default = false)]
    pub use_calc_stream: bool,
}
impl Kernel for CBroadcast<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)?;
        let transport = transport(cx, 0)?;
        let root = existing_rank(transport, "root", self.root)?;
        transport.map_or(Ok(()), |transport| broadcast(transport, self.out.bytes_mut()?, root))
    }
}
autobwd_core::samples!(
    CBroadcast,
    [
        copy_of(uniform([2, 3]), 0),
        copy_of(integers_below(9, []), 0),
        copy_of(uniform([0]), 0),
        copy_of(uniform([2]), 1).fails("attribute `root`: must be below the number of ranks, 1"),
    ]
);

fn copy_of(x: Draw, root: i32) -> CBroadcast<Draw> {
    CBroadcast { x, out: out(), ring_id: 0, root, use_calc_stream: false }
}

/// `dx = c_reduce_sum(dout)`: of the sum of the losses of all ranks.
#[derive(Debug)]
pub struct CBroadcastGrad;
impl GradRule<CBroadcast> for CBroadcastGrad {
    fn emit(fwd: &CBroadcast, g: &mut GradCx<'_>) {
        let CBroadcast { x, out, ring_id, root, use_calc_stream } = *fwd;
        if let Some(dx) = g.wanted(x) {
            let use_model_parallel = false;
            g.push(CReduceSum {
                x: g.grad(out),
                out: dx,
                ring_id,
                root_id: root,
                use_calc_stream,
                use_model_parallel,
            });
        }
    }
}
