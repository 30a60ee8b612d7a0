//! Messages along the edges of a graph: `graph_send_recv`, `graph_send_ue_recv` and `graph_send_uv`.

mod edges;
mod nodes;

use autobwd::{Dims, Expr, Meta, Result, op::attr_enum, operators::broadcast, tensor::Dim};

pub use edges::GraphSendUv;
pub use nodes::{GraphSendRecv, GraphSendUeRecv};

use crate::{Math, gather::gathered};

attr_enum! {
    /// What a message is.
    pub enum MessageKind {
        /// The sum of both operands.
        Add = "ADD",
        /// The product of both operands.
        Mul = "MUL",
    }
}

/// Five edges between four nodes.
const SOURCES: [i64; 5] = [0, 3, 1, 0, 2];
const ENDS: [i64; 5] = [1, 0, 1, 2, 1];

/// The dimensions of the rows that edges read.
fn edge_rows(x: &Meta, index: &Meta) -> Result<Dims> {
    x.require(x.rank() > 0, || "at least one dimension is needed".into())?;
    index.require(index.rank() > 0, || "one dimension is needed".into())?;
    gathered(x, index, 0)
}

fn same_edges(src_index: &Meta, dst_index: &Meta) -> Result<()> {
    let fits = dst_index.dtype == src_index.dtype && dst_index.dims.agrees(&src_index.dims);
    dst_index.require(fits, || {
        let (dtype, dims, slot) = (src_index.dtype, &src_index.dims, src_index.slot());
        format!("dtype and shape of `{slot}`, {dtype} {dims}, are needed")
    })
}

/// The dimensions of messages from rows with these dimensions.
fn message_dims(operands: [(&Meta, Dims); 2]) -> Result<Dims> {
    let edges = operands[0].1[0].or(operands[1].1[0]);
    let [x, y] = operands.map(|(x, dims)| {
        let one = [Dim::from(1)];
        let of_row = if dims.len() > 1 { &dims[1..] } else { &one[..] };
        let mut row = x.clone();
        row.dims = of_row.iter().copied().collect();
        row
    });
    let row = broadcast(&x, &y, -1)?;
    Ok(std::iter::once(edges).chain(row.iter().copied()).collect())
}

/// Messages from rows, which broadcast against each other.
fn messages(operands: [&Expr; 2], kind: MessageKind) -> Expr {
    let rank = operands.iter().map(|x| x.dims().len().max(2)).max().unwrap_or(2);
    let [x, y] = operands.map(|x| {
        let own = x.dims().len();
        // Rows of one number, then added dimensions ahead of others.
        let axes: Vec<i32> = (1..=(rank - own) as i32).collect();
        if axes.is_empty() { x.clone() } else { x.unsqueeze(&axes) }
    });
    match kind {
        MessageKind::Add => x + y,
        MessageKind::Mul => x * y,
    }
}
