//! Sums over all ranks, in the order of ranks.

use autobwd_core::{Buf, Cx, Element, Result, Transport};

use crate::collective::{all_gather, all_to_all};

/// Up to this many bytes, every rank sums everything: one exchange of messages instead of two.
const SMALL: usize = 1 << 14;

/// Elements of a block are a multiple of this: whole cache lines.
const LINE: usize = 16;

/// How the sum of `len` elements is made.
pub(super) enum SumPlan {
    /// By every rank, of all elements.
    Whole,
    /// By every rank, of that many elements.
    Share(usize),
}

impl SumPlan {
    pub(super) fn new(len: usize, size: usize, ranks: usize) -> SumPlan {
        match len * size <= SMALL {
            true => SumPlan::Whole,
            false => SumPlan::Share(len.div_ceil(ranks).next_multiple_of(LINE)),
        }
    }

    /// Elements of the packed tensors, and of what other ranks send.
    pub(super) fn scratch(&self, len: usize, ranks: usize) -> [usize; 2] {
        match self {
            SumPlan::Whole => [len, len * ranks],
            SumPlan::Share(share) => [share * ranks; 2],
        }
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

/// `sum = 0 + terms[0] + terms[1] + …`, element by element, where terms have the length of `sum`.
pub(super) fn add_up<T: Summand>(cx: &Cx, terms: &[T], sum: &mut [T]) {
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

/// Sums dense tensors of one dtype, which are exchanged together.
pub(super) fn add_tensors<T: Summand>(
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
