//! The collective operators, in which all ranks of a run take part.
//!
//! All ranks run one program, so that their collective operators meet in the same order. A run without a
//! [transport](autobwd_core::Transport) has one rank.

mod all_gather;
mod all_reduce;
mod broadcast;
mod reduce;
mod reduce_scatter;
mod sums;

use autobwd_core::{Cx, Dim, Error, ErrorKind, Meta, Result, Transport};

pub use all_gather::{CAllgather, CAllgatherGrad};
pub use all_reduce::{CAllreduceSum, CAllreduceSumGrad, all_reduce_sum};
pub use broadcast::{CBroadcast, CBroadcastGrad};
pub use reduce::{CReduceSum, CReduceSumGrad};
pub use reduce_scatter::{CReducescatter, CReducescatterGrad};

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

/// Sets an output with another first dimension than its input.
fn with_rows(x: &Meta, out: &mut Meta, rows: impl FnOnce(Dim) -> Result<Dim>) -> Result<()> {
    x.require(x.rank() > 0, || "at least one dimension is needed".into())?;
    let mut dims = x.dims.clone();
    dims[0] = rows(dims[0])?;
    out.set(x.dtype, dims);
    Ok(())
}
