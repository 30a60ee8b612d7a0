//! The collective operators, in which all ranks of a run take part.
//!
//! All ranks run one program, so that their collective operators meet in the same order. A run without a
//! [transport](autobwd_core::Transport) has one rank.

use std::ops::AddAssign;

use autobwd_core::{
    Buf, Cx, DType, Dim, Element, Error, ErrorKind, Expr, GemmElement, GradCx, GradRule, Infer, Kernel, Meta,
    New, Result, Transport, Var, emit, operators::add_up_rows, register_op, sample::*, with_float,
    with_signed,
};

use crate::collective::{all_gather, all_to_all, broadcast, gather_parts};

/// Up to this many bytes, every rank sums everything: one exchange of messages instead of two.
const SMALL: usize = 1 << 14;

/// Elements of a block are a multiple of this: whole cache lines.
const LINE: usize = 16;

/// The connection to the other ranks; `None` if there are none.
fn transport(cx: &Cx, nranks: i32) -> Result<Option<&dyn Transport>> {
    let transport = cx.transport().filter(|transport| transport.ranks() > 1);
    let ranks = transport.map_or(1, |transport| transport.ranks());
    match usize::try_from(nranks) {
        Ok(expected) if expected != 0 && expected != ranks => {
            Err(Error::new(ErrorKind::Rank, format!("the program is made for {expected} ranks, not {ranks}")))
        }
        _ => Ok(transport),
    }
}

/// The rank that an attribute names.
fn existing_rank(transport: Option<&dyn Transport>, attr: &str, rank: i32) -> Result<usize> {
    let ranks = transport.map_or(1, |transport| transport.ranks());
    let rank = usize::try_from(rank).ok().filter(|rank| *rank < ranks);
    rank.ok_or_else(|| Error::attr(attr, format!("must be below the number of ranks, {ranks}")))
}

/// The number of ranks that shapes and scratch memory count with.
fn expected(nranks: i32) -> usize {
    usize::try_from(nranks).unwrap_or(0).max(1)
}

/// How the sum of `len` elements is made.
enum SumPlan {
    /// By every rank, of all elements.
    Whole,
    /// By every rank, of that many elements.
    Share(usize),
}

impl SumPlan {
    fn new(len: usize, size: usize, ranks: usize) -> SumPlan {
        match len * size <= SMALL {
            true => SumPlan::Whole,
            false => SumPlan::Share(len.div_ceil(ranks).next_multiple_of(LINE)),
        }
    }

    /// Elements of the packed tensors, and of what other ranks send.
    fn scratch(&self, len: usize, ranks: usize) -> [usize; 2] {
        match self {
            SumPlan::Whole => [len, len * ranks],
            SumPlan::Share(share) => [share * ranks; 2],
        }
    }
}

/// An element that sums: integers wrap around.
trait Summand: Element {
    fn plus(self, other: Self) -> Self;
}
macro_rules! summands {
    ($($t:ty, $plus:expr;)*) => {$(
        impl Summand for $t {
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                let plus: fn($t, $t) -> $t = $plus;
                plus(self, other)
            }
        }
    )*};
}
summands! {
    f32, |a, b| a + b;
    f64, |a, b| a + b;
    i32, i32::wrapping_add;
    i64, i64::wrapping_add;
}

/// `sum = 0 + terms[0] + terms[1] + …`, element by element, where terms have the length of `sum`.
fn add_up<T: Summand>(cx: &Cx, terms: &[T], sum: &mut [T]) {
    const PART: usize = 1 << 14;
    let len = sum.len();
    cx.chunks_mut(sum, PART, |part, sum| {
        sum.fill(T::default());
        for term in terms.chunks_exact(len) {
            let term = &term[part * PART..][..sum.len()];
            sum.iter_mut().zip(term).for_each(|(sum, x)| *sum = sum.plus(*x));
        }
    });
}

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
#[register_op(grad = CAllreduceSumGrad)]
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
                x.require(alone, || "a row-sparse tensor is summed alone".into())?;
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
                let (len, size) = (self.x.iter().map(Buf::numel).sum(), x.dtype().size());
                SumPlan::new(len, size, ranks).scratch(len, ranks).iter().sum::<usize>() * size
            }
            _ => 0,
        }
    }
}

fn add_tensors<T: Summand>(
    cx: &Cx,
    transport: &dyn Transport,
    x: &[Buf<'_>],
    out: &mut [Buf<'_>],
) -> Result<()> {
    let (len, ranks) = (x.iter().map(Buf::numel).sum(), transport.ranks());
    let plan = SumPlan::new(len, size_of::<T>(), ranks);
    let [packed, received] = plan.scratch(len, ranks);
    cx.scratch::<T, _>(packed + received, |all| {
        let (packed, received) = all.split_at_mut(packed);
        let mut rest = &mut *packed;
        for x in x {
            let (part, after) = rest.split_at_mut(x.numel());
            part.copy_from_slice(x.slice()?);
            rest = after;
        }
        rest.fill(T::default());
        let sum = match plan {
            SumPlan::Whole => {
                all_gather(transport, packed, received)?;
                add_up(cx, received, packed);
                packed
            }
            SumPlan::Share(share) => {
                all_to_all(transport, packed, received)?;
                let own = &mut packed[transport.rank() * share..][..share];
                add_up(cx, received, own);
                all_gather(transport, own, received)?;
                received
            }
        };
        let mut rest = &*sum;
        for out in out {
            let (part, after) = rest.split_at(out.numel());
            out.slice_mut()?.copy_from_slice(part);
            rest = after;
        }
        Ok(())
    })
}

/// Sums row-sparse tensors: gathers the rows of all ranks, and adds up those of one number.
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

/// Copies the tensor of one rank to all others: `out = x` of rank `root`.
#[register_op(grad = CBroadcastGrad)]
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

/// Sums tensors over all ranks for one of them: rank `root_id` gets the sum, in the order of ranks, and all others get
/// zeros.
#[register_op(grad = CReduceSumGrad)]
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

/// Joins the tensors of all ranks along the first axis, in the order of ranks.
#[register_op(grad = CAllgatherGrad)]
pub struct CAllgather<V = Var> {
    /// At least one dimension; the same shape on all ranks.
    #[input]
    pub x: V,
    /// The first dimension is `nranks` times that of `x`.
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
        self.x.require(self.x.rank() > 0, || "at least one dimension is needed".into())?;
        let mut dims = self.x.dims.clone();
        dims[0] = dims[0] * Dim::from(expected(self.nranks));
        self.out.set(self.x.dtype, dims);
        Ok(())
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

/// Sums tensors over all ranks, and leaves one part of the sum to each: rank `i` gets part `i` of the first axis.
#[register_op(grad = CReducescatterGrad)]
pub struct CReducescatter<V = Var> {
    /// The first dimension is a multiple of `nranks`; the same shape on all ranks. Sums of integers wrap around.
    #[input]
    pub x: V,
    /// The first dimension is that of `x` divided by `nranks`.
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
        self.x.require(self.x.rank() > 0, || "at least one dimension is needed".into())?;
        let ranks = expected(self.nranks);
        let mut dims = self.x.dims.clone();
        if let Some(rows) = dims[0].get() {
            let text = || format!("a first dimension that {ranks} divides is needed");
            self.x.require(rows.is_multiple_of(ranks), text)?;
            dims[0] = Dim::from(rows / ranks);
        }
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for CReducescatter<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let Some(transport) = transport(cx, self.nranks)? else { return self.out.copy_from(&self.x) };
        with_signed!(self.x, T => cx.scratch::<T, _>(self.x.numel(), |received| {
            all_to_all(transport, self.x.slice::<T>()?, received)?;
            add_up(cx, received, self.out.slice_mut()?);
            Ok(())
        }))
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        if self.nranks > 1 { self.x.numel() * self.x.dtype().size() } else { 0 }
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
