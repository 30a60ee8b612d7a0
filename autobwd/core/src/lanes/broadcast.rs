//! Broadcasting of a formula's inputs.

use smallvec::SmallVec;

use crate::{Attr, Dim, Dims, Error, ErrorKind, Meta, OpDesc, Result, Schema};

/// The dimension of the full shape at which an input of lower rank starts; `None` aligns the last dimensions, as NumPy
/// does.
pub fn broadcast_axis(schema: &Schema, desc: &OpDesc) -> Option<usize> {
    match desc.attrs.get("axis") {
        Some(Attr::I32(axis)) if schema.broadcast => usize::try_from(*axis).ok(),
        _ => None,
    }
}

/// An operand's dimensions extended to the full rank, with 1 for each added dimension.
pub fn aligned<D: Copy + PartialEq>(
    own: &[D],
    rank: usize,
    axis: Option<usize>,
    one: D,
) -> Option<SmallVec<[D; 4]>> {
    let mut own = own;
    let start = match axis {
        Some(axis) if own.len() < rank => axis,
        _ => rank.checked_sub(own.len())?,
    };
    // The reference drops trailing ones of the shorter operand.
    while start + own.len() > rank && own.last() == Some(&one) {
        own = &own[..own.len() - 1];
    }
    if start + own.len() > rank {
        return None;
    }
    let mut dims = SmallVec::from_elem(one, rank);
    dims[start..start + own.len()].copy_from_slice(own);
    Some(dims)
}

/// The broadcast shape of the inputs.
pub fn broadcast_dims(inputs: &[Meta], axis: Option<usize>) -> Result<Dims> {
    let one = Dim::from(1);
    let rank = inputs.iter().map(Meta::rank).max().unwrap_or(0);
    let mut full: Dims = std::iter::repeat_n(one, rank).collect();
    for (i, input) in inputs.iter().enumerate() {
        let refuse = || {
            // The first input can also be the wrong one.
            let others = if i == 0 { &inputs[1..] } else { &inputs[..i] };
            let others = others.iter().map(|m| format!("`{}` {}", m.slot(), m.dims)).collect::<Vec<_>>();
            let axis = axis.map(|a| format!(" from axis {a} on")).unwrap_or_default();
            let text = format!(
                "`{}`: shape {} does not broadcast{axis} with {}",
                input.slot(),
                input.dims,
                others.join(", ")
            );
            Error::new(ErrorKind::Shape, text)
        };
        for (full, own) in full.iter_mut().zip(aligned(&input.dims, rank, axis, one).ok_or_else(refuse)?) {
            *full = full.broadcast(own).ok_or_else(refuse)?;
        }
    }
    Ok(full)
}
