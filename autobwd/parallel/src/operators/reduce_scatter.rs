//! Parts of sums, one for each rank.

use autobwd_core::{
    Buf, Cx, Dim, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, register_op, sample::*, with_signed,
};

use super::{CAllgather, expected, sums::reduce_scatter, transport, with_rows};

/// Sums tensors over all ranks, and leaves one part of the sum to each: rank `i` gets part `i` of the first axis.
#[register_op(grad = CReducescatterGrad, primitive)]
pub struct CReducescatter<V = Var> {
    /// The first dimension is a multiple of `nranks`; the same shape on all ranks. Sums of integers wrap around.
    #[input]
    pub x: V,
    /// The first dimension is the first dimension of `x` divided by `nranks`.
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
impl Infer for CReducescatter<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.signed()?;
        let (ranks, CReducescatter { x, out, .. }) = (expected(self.nranks), self);
        with_rows(x, out, |rows| {
            let Some(known) = rows.get() else { return Ok(rows) };
            let text = || format!("a first dimension that {ranks} divides is needed");
            x.require(known.is_multiple_of(ranks), text)?;
            Ok(Dim::from(known / ranks))
        })
    }
}
impl Kernel for CReducescatter<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let Some(transport) = transport(cx, self.nranks)? else { return self.out.copy_from(&self.x) };
        let received = self.x.numel() - self.out.numel();
        with_signed!(self.x, T => cx.scratch::<T, _>(received, |received| {
            reduce_scatter(cx, transport, self.x.slice()?, received, self.out.slice_mut()?)
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        (self.x.numel() - self.out.numel()) * self.x.dtype().size()
    }
}
autobwd_core::samples!(
    CReducescatter,
    [
        scattered(uniform([2, 3]), 1),
        scattered(uniform([0, 3]), 1),
        scattered(integers_below(9, [4]), 1),
        scattered(uniform([]), 1).fails("`X`: at least one dimension is needed"),
        scattered(uniform([3]), 2).fails("`X`: a first dimension that 2 divides is needed"),
        scattered(uniform([4]), 2).fails("the program is made for 2 ranks, not 1"),
    ]
);

fn scattered(x: Draw, nranks: i32) -> CReducescatter<Draw> {
    CReducescatter { x, out: out(), nranks, ring_id: 0, use_calc_stream: false }
}

/// `dx = c_allgather(dout)`: of the sum of the losses of all ranks.
#[derive(Debug)]
pub struct CReducescatterGrad;
impl GradRule<CReducescatter> for CReducescatterGrad {
    fn emit(fwd: &CReducescatter, g: &mut GradCx<'_>) {
        let CReducescatter { x, out, nranks, ring_id, use_calc_stream } = *fwd;
        if let Some(dx) = g.wanted(x) {
            g.push(CAllgather { x: g.grad(out), out: dx, nranks, ring_id, use_calc_stream });
        }
    }
}
