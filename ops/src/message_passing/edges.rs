//! Messages that edges keep.

use autobwd::{Composed, Composition, DType, Expr, Infer, Meta, Result, Var, check::*, register_op};

use super::{ENDS, MessageKind, SOURCES, edge_rows, message_dims, messages, same_edges};
use crate::Math;

/// A row for each edge of a graph, from the rows of both of its nodes: `out[e, ..] = x[src_index[e], ..] + y[dst_index[e], ..]`, or
/// the product. Rows broadcast against each other.
#[register_op(grad = Composed, composed)]
pub struct GraphSendUv<V = Var> {
    /// A row for each node, `[n, ..]`; one dimension counts as `[n, 1]`.
    #[input("x")]
    pub x: V,
    /// Another row for each node, `[n, ..]`; one dimension counts as `[n, 1]`.
    #[input("y")]
    pub y: V,
    /// The node at which each edge starts, int64 or int32, `[edges]` or `[edges, 1]`.
    #[input("src_index")]
    pub src_index: V,
    /// The node at which each edge ends; same dtype and shape.
    #[input("dst_index")]
    pub dst_index: V,
    /// `[edges, ..]`, with the broadcast shape of rows.
    #[output("out")]
    pub out: V,
    /// What a message is (`ADD`, `MUL`).
    #[attr(default = MessageKind::Add)]
    pub message_op: MessageKind,
}
impl Infer for GraphSendUv<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.y.same_dtype(&self.x)?;
        let (sources, ends) = (edge_rows(&self.x, &self.src_index)?, edge_rows(&self.y, &self.dst_index)?);
        same_edges(&self.src_index, &self.dst_index)?;
        self.out.set(self.x.dtype, message_dims([(&self.x, sources), (&self.y, ends)])?);
        Ok(())
    }
}
impl Composition for GraphSendUv<Expr> {
    fn compose(&mut self) {
        let sources = self.x.gather(&self.src_index.flatten(0, -1), 0);
        let ends = self.y.gather(&self.dst_index.flatten(0, -1), 0);
        self.out = messages([&sources, &ends], self.message_op);
    }
}
autobwd::samples!(
    GraphSendUv,
    [
        send_uv(uniform([4, 3]), uniform([4, 3]), MessageKind::Add),
        send_uv(uniform([4, 2, 3]), uniform([3]), MessageKind::Mul),
        send_uv(uniform([4]), uniform([4]), MessageKind::Mul),
        send_uv(uniform([4, 3]), uniform([3, 2, 1]), MessageKind::Add),
        GraphSendUv {
            src_index: integers_below(3, [0]).of(DType::I32),
            dst_index: integers_below(3, [0]).of(DType::I32),
            ..send_uv(uniform([3, 2]), uniform([3, 2]), MessageKind::Add)
        },
        GraphSendUv {
            src_index: integers_below(3, [2, 1]),
            dst_index: integers_below(3, [2, 1]),
            ..send_uv(uniform([3, 0]), uniform([3, 1]), MessageKind::Add)
        },
        send_uv(uniform([3, 2]), uniform([4, 2]), MessageKind::Add).fails("`Index`: 3 is not within 0..3"),
        send_uv(uniform([4, 2]), uniform([4, 3]), MessageKind::Add)
            .fails("`y`: a shape that broadcasts with [2] of `x` is needed"),
        send_uv(uniform([4, 2]), integers_below(2, [4, 2]), MessageKind::Add)
            .fails("`y`: dtype int64 does not match"),
        send_uv(integers_below(2, [4]), integers_below(2, [4]), MessageKind::Add)
            .fails("`x`: floating point numbers are needed"),
        GraphSendUv {
            dst_index: integers_below(2, [2]),
            ..send_uv(uniform([4, 2]), uniform([4, 2]), MessageKind::Add)
        }
        .fails("`dst_index`: dtype and shape of `src_index`, int64 [5], are needed"),
    ]
);

fn send_uv(x: Draw, y: Draw, message_op: MessageKind) -> GraphSendUv<Draw> {
    GraphSendUv { x, y, src_index: integers(&SOURCES), dst_index: integers(&ENDS), out: out(), message_op }
}
