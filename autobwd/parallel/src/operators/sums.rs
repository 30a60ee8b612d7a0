//! Sums over all ranks, in the order of ranks.

use autobwd_core::{Buf, Cx, Element, Result, Transport};

use crate::collective::{all_gather, all_to_others, share_parts};

/// Up to this many bytes, every rank sums everything: one exchange of messages instead of two.
const SMALL: usize = 1 << 14;

/// Elements of a block are a multiple of this: whole cache lines.
const LINE: usize = 16;

/// How tensors of one dtype are summed.
#[derive(Clone, Copy)]
pub(super) struct SumPlan {
    ranks: usize,
    /// Elements of all tensors together.
    len: usize,
    /// Elements that each rank sums; `None` if every rank sums all.
    share: Option<usize>,
    /// Whether the tensors are copied into one, which the ranks can divide.
    packs: bool,
}

impl SumPlan {
    pub(super) fn new(x: &[Buf<'_>], size: usize, ranks: usize) -> SumPlan {
        let len: usize = x.iter().map(Buf::numel).sum();
        let share = (len * size > SMALL).then(|| len.div_ceil(ranks).next_multiple_of(LINE));
        SumPlan { ranks, len, share, packs: x.len() > 1 || share.is_none_or(|share| share * ranks != len) }
    }

    /// Elements of the packed tensors and of their sums, and of what other ranks send.
    pub(super) fn scratch(self) -> [usize; 2] {
        let (whole, received) = match self.share {
            None => (self.len, self.len * self.ranks),
            Some(share) => (share * self.ranks, share * (self.ranks - 1)),
        };
        [if self.packs { whole } else { 0 }, received]
    }
}

/// An element that sums: integers wrap around.
pub(super) trait Summand: Element {
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

/// `sum = 0 + terms[0] + terms[1] + …`, element by element.
fn add_up<T: Summand>(cx: &Cx, terms: &[&[T]], sum: &mut [T]) {
    const PART: usize = 1 << 14;
    cx.chunks_mut(sum, PART, |part, sum| {
        sum.fill(T::default());
        for term in terms {
            let term = &term[part * PART..][..sum.len()];
            sum.iter_mut().zip(term).for_each(|(sum, x)| *sum = sum.plus(*x));
        }
    });
}

/// Sums `x` over all ranks; each gets a part of the sum. `received` has room for the parts of the other ranks.
pub(super) fn reduce_scatter<T: Summand>(
    cx: &Cx,
    transport: &dyn Transport,
    x: &[T],
    received: &mut [T],
    sum: &mut [T],
) -> Result<()> {
    let (rank, len) = (transport.rank(), sum.len());
    if len == 0 {
        return Ok(());
    }
    all_to_others(transport, x, received)?;
    let mut terms: Vec<&[T]> = received.chunks_exact(len).collect();
    terms.insert(rank, &x[rank * len..][..len]);
    add_up(cx, &terms, sum);
    Ok(())
}

/// Sums `x` over all ranks. `share` is the number of elements that each rank sums.
fn all_reduce<T: Summand>(
    cx: &Cx,
    transport: &dyn Transport,
    x: &[T],
    share: Option<usize>,
    received: &mut [T],
    sum: &mut [T],
) -> Result<()> {
    match share {
        None => {
            all_gather(transport, x, received)?;
            let terms: Vec<&[T]> = received.chunks_exact(x.len().max(1)).collect();
            add_up(cx, &terms, sum);
            Ok(())
        }
        Some(share) => {
            let own = &mut sum[transport.rank() * share..][..share];
            reduce_scatter(cx, transport, x, received, own)?;
            share_parts(transport, sum, share)
        }
    }
}

/// Sums dense tensors of one dtype, which are exchanged together.
pub(super) fn add_tensors<T: Summand>(
    cx: &Cx,
    transport: &dyn Transport,
    x: &[Buf<'_>],
    out: &mut [Buf<'_>],
) -> Result<()> {
    let plan = SumPlan::new(x, size_of::<T>(), transport.ranks());
    let [packed, received] = plan.scratch();
    cx.scratch::<T, _>(2 * packed + received, |all| {
        let (packed, rest) = all.split_at_mut(packed);
        let (received, sum) = rest.split_at_mut(received);
        if let ([x], [out], false) = (x, &mut *out, plan.packs) {
            return all_reduce(cx, transport, x.slice()?, plan.share, received, out.slice_mut()?);
        }
        let mut rest = &mut *packed;
        for x in x {
            let (part, after) = rest.split_at_mut(x.numel());
            part.copy_from_slice(x.slice()?);
            rest = after;
        }
        rest.fill(T::default());
        all_reduce(cx, transport, packed, plan.share, received, sum)?;
        let mut rest = &*sum;
        for out in out {
            let (part, after) = rest.split_at(out.numel());
            out.slice_mut()?.copy_from_slice(part);
            rest = after;
        }
        Ok(())
    })
}
