//! Sums for all ranks.

use std::ops::AddAssign;

use autobwd_core::{
    Buf, Cx, DType, Dim, Error, ErrorKind, Expr, GemmElement, GradCx, GradRule, Infer, Kernel, Meta, New,
    Result, Transport, Var, emit, operators::add_up_rows, register_op, sample::*, with_float, with_signed,
};

use super::{
    expected,
    sums::{SumPlan, add_tensors},
    transport,
};
use crate::collective::{all_gather, gather_parts};

/// Sums tensors over all ranks: `out[i] = 0 + x[i] of rank 0 + x[i] of rank 1 + …`, in this order on every rank.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd::parallel::{all_reduce_sum, threads};
///
/// let net = Builder::new();
/// let total = all_reduce_sum(&net.input("x", DType::F32, &[2])).name();
/// let program = net.program()?.clone();
/// let sums = threads::run(2, |transport| {
///     let x = Tensor::from_vec([2], vec![transport.rank() as f32, 1.0])?;
///     let mut executor = Executor::with_threads(1).with_transport(transport);
///     Ok(executor.run(&program, &mut Scope::new(), &[("x", &x)], &[&total])?[0].to_f64s())
/// })?;
/// assert_eq!(sums, [[1.0, 2.0], [1.0, 2.0]]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[register_op(grad = CAllreduceSumGrad, primitive)]
pub struct CAllreduceSum<V = Var> {
    /// Tensors of any shapes and one dtype, which are exchanged together; sums of integers wrap around. Or one
    /// row-sparse tensor.
    #[input(sparse)]
    pub x: Vec<V>,
    /// Same shapes. Of a row-sparse tensor: the rows that any rank has.
    #[output]
    pub out: Vec<V>,
    /// The group of ranks; there is one, 0, of all.
    #[attr(default = 0, min = 0, max = 0)]
    pub ring_id: i32,
    /// The number of ranks that the program is made for; 0 if it suits any, which row-sparse tensors do not allow.
    #[attr(default = 0, min = 0)]
    pub nranks: i32,
    /// Accepted for compatibility: operators run one after the other.
    #[attr(default = false)]
    pub use_calc_stream: bool,
    /// Accepted for compatibility.
    #[attr(default = false)]
    pub use_model_parallel: bool,
}
impl Infer for CAllreduceSum<Meta> {
    fn infer(&mut self) -> Result<()> {
        let CAllreduceSum { x, out, nranks, .. } = self;
        if x.len() != out.len() {
            let text = format!(
                "`X` and `Out`: one output for each input is needed, not {} for {}",
                out.len(),
                x.len()
            );
            return Err(Error::new(ErrorKind::Slot, text));
        }
        let alone = x.len() == 1;
        for (x, out) in x.iter().zip(out) {
            x.signed()?;
            out.like(x);
            if let Some(rows) = x.rows {
                x.float()?;
                x.require(alone, || "a row-sparse tensor must be the only input".into())?;
                x.require(*nranks > 0, || "attribute `nranks` is needed for row-sparse tensors".into())?;
                out.rows = Some(rows * Dim::from(expected(*nranks)));
            }
        }
        x.iter().skip(1).try_for_each(|other| other.same_dtype(&x[0]))
    }
}
impl Kernel for CAllreduceSum<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let transport = transport(cx, self.nranks)?;
        let Some(first) = self.x.first() else { return Ok(()) };
        if first.is_sparse() {
            return with_float!(first, T => add_rows::<T>(cx, transport, first, &mut self.out[0]));
        }
        match transport {
            None => self.x.iter().zip(&mut self.out).try_for_each(|(x, out)| out.copy_from(x)),
            Some(transport) => {
                with_signed!(first, T => add_tensors::<T>(cx, transport, &self.x, &mut self.out))
            }
        }
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let ranks = expected(self.nranks);
        match self.x.first() {
            Some(x) if ranks > 1 && !x.is_sparse() => {
                let [packed, received] = SumPlan::new(&self.x, x.dtype().size(), ranks).scratch();
                (2 * packed + received) * x.dtype().size()
            }
            _ => 0,
        }
    }
}

/// Sums row-sparse tensors: gathers the rows of all ranks, and adds up rows with the same index.
fn add_rows<T: GemmElement + AddAssign>(
    cx: &Cx,
    transport: Option<&dyn Transport>,
    x: &Buf<'_>,
    out: &mut Buf<'_>,
) -> Result<()> {
    let x = x.rows::<T>()?;
    let Some(transport) = transport else {
        return add_up_rows(cx, out, || x.iter());
    };
    // The number of rows changes from step to step, so this memory is not planned.
    let mut counts = vec![0_i64; transport.ranks()];
    all_gather(transport, &[x.indices().len() as i64], &mut counts)?;
    let counts: Vec<usize> = counts.into_iter().map(|count| usize::try_from(count).unwrap_or(0)).collect();
    let rows = counts.iter().sum();
    let mut numbers = vec![0_i64; rows];
    let mut values = vec![T::default(); rows * x.width()];
    gather_parts(transport, x.indices(), &counts, 1, &mut numbers)?;
    gather_parts(transport, x.values(), &counts, x.width(), &mut values)?;
    let (width, numbers, values) = (x.width(), &numbers, &values);
    add_up_rows(cx, out, || {
        numbers.iter().enumerate().map(move |(i, number)| (*number as usize, &values[i * width..][..width]))
    })
}

/// Returns the sum of `x` over all ranks ([`CAllreduceSum`]), for a metric of all batches, say.
#[track_caller]
pub fn all_reduce_sum(x: &Expr) -> Expr {
    let sum = emit(CAllreduceSum {
        x: vec![x.into()],
        out: vec![New],
        ring_id: 0,
        nranks: 0,
        use_calc_stream: false,
        use_model_parallel: false,
    });
    let mut out = sum.out;
    out.pop().unwrap_or_else(|| x.clone())
}

/// `dx = c_allreduce_sum(dout)`: of the sum of the losses of all ranks.
#[derive(Debug)]
pub struct CAllreduceSumGrad;
impl GradRule<CAllreduceSum> for CAllreduceSumGrad {
    fn emit(fwd: &CAllreduceSum, g: &mut GradCx<'_>) {
        let pairs = fwd.x.iter().zip(&fwd.out);
        let wanted: Vec<_> = pairs.filter_map(|(x, out)| Some((g.wanted(*x)?, *out))).collect();
        if wanted.is_empty() {
            return;
        }
        let x = wanted.iter().map(|(_, out)| g.grad(*out)).collect();
        let out = wanted.into_iter().map(|(dx, _)| dx).collect();
        let CAllreduceSum { ring_id, nranks, use_calc_stream, use_model_parallel, .. } = *fwd;
        g.push(CAllreduceSum { x, out, ring_id, nranks, use_calc_stream, use_model_parallel });
    }
}
autobwd_core::samples!(
    CAllreduceSum,
    [
        all_reduce(vec![uniform([2, 3]), uniform([4])], 1),
        all_reduce(vec![uniform([])], 0),
        all_reduce(vec![uniform([0, 3])], 0),
        all_reduce(vec![integers_below(9, [3])], 0),
        all_reduce(vec![uniform([2]), integers_below(9, [3])], 0).fails("`X`: "),
        all_reduce(vec![integers_below(2, [2]).of(DType::Bool)], 0)
            .fails("signed or floating point numbers are needed"),
        all_reduce(vec![uniform([2])], 2).fails("the program is made for 2 ranks, not 1"),
    ]
);

fn all_reduce(x: Vec<Draw>, nranks: i32) -> CAllreduceSum<Draw> {
    let out = x.iter().map(|_| out()).collect();
    CAllreduceSum { x, out, ring_id: 0, nranks, use_calc_stream: false, use_model_parallel: false }
}
