//! Messages that nodes receive.

use autobwd::{
    Composed, Composition, DType, Dims, Error, Expr, Infer, Meta, Result, Var, check::*,
    operators::constant_ints_of_tensor, register_op, tensor::Dim,
};

use super::{ENDS, MessageKind, SOURCES, edge_rows, message_dims, messages, same_edges};
use crate::{
    DimExpr, Math,
    math::given_integers,
    segments::{GroupReduction, GroupedRows},
};

/// Messages to neighbours in a graph: `out[j, ..]` is the reduction of `x[src_index[e], ..]` over all edges `e` with
/// `dst_index[e] = j`, 0 for nodes without such edges.
///
/// Of equal messages, one has the gradient of the largest or smallest.
#[register_op(grad = Composed, composed)]
pub struct GraphSendRecv<V = Var> {
    /// A row for each node, `[n, ..]`.
    #[input]
    pub x: V,
    /// The node at which each edge starts, int64 or int32, `[edges]` or `[edges, 1]`.
    #[input("Src_index")]
    pub src_index: V,
    /// The node at which each edge ends; same dtype and shape.
    #[input("Dst_index")]
    pub dst_index: V,
    /// The number of rows of `out`, in place of the attribute: int64 or int32, one element.
    #[input("Out_size", constant)]
    pub out_size_tensor: Option<V>,
    /// `[m, ..]`, with `m = n` by default.
    #[output]
    pub out: V,
    /// The number of edges that end at each node, int32, `[m]`.
    #[output("Dst_count")]
    pub dst_count: Option<V>,
    /// The reduction (`SUM`, `MEAN`, `MAX`, `MIN`).
    #[attr(default = GroupReduction::Sum)]
    pub reduce_op: GroupReduction,
    /// The number of rows of `out`, one number; 0 for `n`.
    #[attr(default = vec![0])]
    pub out_size: Vec<i64>,
}
impl Infer for GraphSendRecv<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let mut dims = edge_rows(&self.x, &self.src_index)?;
        same_edges(&self.src_index, &self.dst_index)?;
        dims[0] = receivers(&self.x, self.out_size_tensor.as_ref(), &self.out_size)?;
        self.dst_count.iter_mut().for_each(|count| count.set(DType::I32, Dims::from_iter([dims[0]])));
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for GraphSendRecv<Expr> {
    fn compose(&mut self) {
        let count = receiving(&self.x, self.out_size_tensor.as_ref(), &self.out_size);
        let [sources, groups] = [&self.src_index, &self.dst_index].map(|index| index.flatten(0, -1));
        let grouped = GroupedRows { rows: &self.x.gather(&sources, 0), groups: &groups, count };
        self.out = grouped.reduced(self.reduce_op);
        self.dst_count = Some(grouped.sizes(DType::F64).cast(DType::I32));
    }
}
autobwd::samples!(
    GraphSendRecv,
    [
        send_recv(uniform([4, 3]), GroupReduction::Sum),
        send_recv(uniform([4, 2, 3]), GroupReduction::Mean),
        send_recv(distinct([4, 3]), GroupReduction::Max),
        send_recv(distinct([4, 2, 3]), GroupReduction::Min),
        send_recv(distinct([4]), GroupReduction::Max),
        GraphSendRecv { out_size: vec![3], ..send_recv(uniform([4, 2]), GroupReduction::Mean) },
        GraphSendRecv {
            out_size: vec![6],
            dst_count: None,
            ..send_recv(distinct([4, 2]), GroupReduction::Min)
        },
        GraphSendRecv {
            out_size_tensor: Some(integers(&[5])),
            ..send_recv(uniform([4]), GroupReduction::Sum)
        },
        GraphSendRecv {
            src_index: given([3, 1], [1.0, 0.0, 1.0]).of(DType::I32),
            dst_index: given([3, 1], [0.0, 0.0, 1.0]).of(DType::I32),
            out_size: vec![],
            ..send_recv(uniform([2, 3]), GroupReduction::Sum)
        },
        GraphSendRecv {
            src_index: integers_below(3, [0]),
            dst_index: integers_below(3, [0]),
            ..send_recv(uniform([3, 2]), GroupReduction::Max)
        },
        send_recv(uniform([4, 0]), GroupReduction::Max),
        send_recv(uniform([3, 2]), GroupReduction::Sum).fails("`Index`: 3 is not within 0..3"),
        GraphSendRecv { out_size: vec![2], ..send_recv(uniform([4, 2]), GroupReduction::Sum) }
            .fails("`Index`: 2 is not within 0..2"),
        GraphSendRecv {
            dst_index: integers_below(2, [2]),
            ..send_recv(uniform([4, 2]), GroupReduction::Sum)
        }
        .fails("`Dst_index`: dtype and shape of `Src_index`, int64 [5], are needed"),
        GraphSendRecv { src_index: uniform([5]), ..send_recv(uniform([4, 2]), GroupReduction::Sum) }
            .fails("`Src_index`: int64 or int32 is needed"),
        GraphSendRecv { src_index: integers_below(2, []), ..send_recv(uniform([4, 2]), GroupReduction::Sum) }
            .fails("`Src_index`: one dimension is needed"),
        GraphSendRecv {
            src_index: integers_below(2, [2, 2]),
            ..send_recv(uniform([4, 2]), GroupReduction::Sum)
        }
        .fails("`Src_index`: one dimension is needed"),
        GraphSendRecv { out_size: vec![2, 3], ..send_recv(uniform([4, 2]), GroupReduction::Sum) }
            .fails("attribute `out_size`: at most one number is needed, not 2"),
        GraphSendRecv {
            out_size_tensor: Some(integers(&[-1])),
            ..send_recv(uniform([4]), GroupReduction::Sum)
        }
        .fails("`Out_size`: a positive number is needed, not -1"),
        send_recv(integers_below(9, [4]), GroupReduction::Sum)
            .fails("`X`: floating point numbers are needed"),
        send_recv(uniform([]), GroupReduction::Sum).fails("`X`: at least one dimension is needed"),
    ]
);

fn send_recv(x: Draw, reduce_op: GroupReduction) -> GraphSendRecv<Draw> {
    let [src_index, dst_index] = [integers(&SOURCES), integers(&ENDS)];
    let (out, dst_count) = (out(), Some(out()));
    GraphSendRecv {
        x,
        src_index,
        dst_index,
        out_size_tensor: None,
        out,
        dst_count,
        reduce_op,
        out_size: vec![0],
    }
}

/// Messages to neighbours in a graph with rows for edges: `out[j, ..]` is the reduction of `x[src_index[e], ..] + y[e, ..]`, or of
/// the product, over all edges `e` with `dst_index[e] = j`, 0 for nodes without such edges.
///
/// Rows broadcast against each other. Of equal messages, one has the gradient of the largest or smallest.
#[register_op(grad = Composed, composed)]
pub struct GraphSendUeRecv<V = Var> {
    /// A row for each node, `[n, ..]`; one dimension counts as `[n, 1]`.
    #[input]
    pub x: V,
    /// A row for each edge, `[edges, ..]`; one dimension counts as `[edges, 1]`.
    #[input]
    pub y: V,
    /// The node at which each edge starts, int64 or int32, `[edges]` or `[edges, 1]`.
    #[input("Src_index")]
    pub src_index: V,
    /// The node at which each edge ends; same dtype and shape.
    #[input("Dst_index")]
    pub dst_index: V,
    /// The number of rows of `out`, in place of the attribute: int64 or int32, one element.
    #[input("Out_size", constant)]
    pub out_size_tensor: Option<V>,
    /// `[m, ..]`, with `m = n` by default, and the broadcast shape of rows.
    #[output]
    pub out: V,
    /// The number of edges that end at each node, int32, `[m]`.
    #[output("Dst_count")]
    pub dst_count: Option<V>,
    /// What a message is (`ADD`, `MUL`).
    #[attr(default = MessageKind::Add)]
    pub message_op: MessageKind,
    /// The reduction (`SUM`, `MEAN`, `MAX`, `MIN`).
    #[attr(default = GroupReduction::Sum)]
    pub reduce_op: GroupReduction,
    /// The number of rows of `out`, one number; 0 for `n`.
    #[attr(default = vec![0])]
    pub out_size: Vec<i64>,
}
impl Infer for GraphSendUeRecv<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.y.same_dtype(&self.x)?;
        let sources = edge_rows(&self.x, &self.src_index)?;
        same_edges(&self.src_index, &self.dst_index)?;
        let edges = sources[0];
        self.y.require(self.y.dims.first().is_some_and(|n| n.agrees(edges)), || {
            format!("{edges} rows are needed, one for each edge")
        })?;
        let mut dims = message_dims([(&self.x, sources), (&self.y, self.y.dims.clone())])?;
        dims[0] = receivers(&self.x, self.out_size_tensor.as_ref(), &self.out_size)?;
        self.dst_count.iter_mut().for_each(|count| count.set(DType::I32, Dims::from_iter([dims[0]])));
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for GraphSendUeRecv<Expr> {
    fn compose(&mut self) {
        let count = receiving(&self.x, self.out_size_tensor.as_ref(), &self.out_size);
        let [sources, groups] = [&self.src_index, &self.dst_index].map(|index| index.flatten(0, -1));
        let rows = &messages([&self.x.gather(&sources, 0), &self.y], self.message_op);
        let grouped = GroupedRows { rows, groups: &groups, count };
        self.out = grouped.reduced(self.reduce_op);
        self.dst_count = Some(grouped.sizes(DType::F64).cast(DType::I32));
    }
}
autobwd::samples!(
    GraphSendUeRecv,
    [
        send_ue_recv(uniform([4, 3]), uniform([5, 3]), MessageKind::Add, GroupReduction::Sum),
        send_ue_recv(uniform([4, 3]), uniform([5]), MessageKind::Mul, GroupReduction::Mean),
        send_ue_recv(apart([4, 2], 0.618), apart([5, 1], 0.414), MessageKind::Add, GroupReduction::Max),
        send_ue_recv(apart([4, 1], 0.618), apart([5, 2, 3], 0.414), MessageKind::Mul, GroupReduction::Min),
        send_ue_recv(uniform([4, 2, 3]), uniform([5, 3]), MessageKind::Mul, GroupReduction::Sum),
        send_ue_recv(uniform([4]), uniform([5]), MessageKind::Add, GroupReduction::Mean),
        GraphSendUeRecv {
            out_size: vec![3],
            ..send_ue_recv(uniform([4]), uniform([5, 2]), MessageKind::Mul, GroupReduction::Sum)
        },
        GraphSendUeRecv {
            out_size_tensor: Some(integers(&[6]).of(DType::I32)),
            dst_count: None,
            ..send_ue_recv(uniform([4]), uniform([5, 2]), MessageKind::Add, GroupReduction::Sum)
        },
        GraphSendUeRecv {
            src_index: integers_below(3, [0, 1]),
            dst_index: integers_below(3, [0, 1]),
            ..send_ue_recv(uniform([3, 2]), uniform([0, 2]), MessageKind::Add, GroupReduction::Max)
        },
        send_ue_recv(uniform([3]), uniform([5]), MessageKind::Add, GroupReduction::Sum)
            .fails("`Index`: 3 is not within 0..3"),
        send_ue_recv(uniform([4, 2]), uniform([3, 2]), MessageKind::Add, GroupReduction::Sum)
            .fails("`Y`: 5 rows are needed, one for each edge"),
        send_ue_recv(uniform([4, 2]), uniform([5, 3]), MessageKind::Add, GroupReduction::Sum)
            .fails("`Y`: a shape that broadcasts with [2] of `X` is needed"),
        send_ue_recv(uniform([4]), integers_below(2, [5]), MessageKind::Add, GroupReduction::Sum)
            .fails("`Y`: dtype int64 does not match"),
        send_ue_recv(integers_below(2, [4]), integers_below(2, [5]), MessageKind::Add, GroupReduction::Sum)
            .fails("`X`: floating point numbers are needed"),
        GraphSendUeRecv {
            dst_index: integers_below(2, [2]),
            ..send_ue_recv(uniform([4, 2]), uniform([5, 2]), MessageKind::Add, GroupReduction::Sum)
        }
        .fails("`Dst_index`: dtype and shape of `Src_index`, int64 [5], are needed"),
        GraphSendUeRecv {
            out_size: vec![2, 3],
            ..send_ue_recv(uniform([4, 2]), uniform([5, 2]), MessageKind::Add, GroupReduction::Sum)
        }
        .fails("attribute `out_size`: at most one number is needed, not 2"),
    ]
);

/// Numbers between −1 and 1 whose sums and products differ.
fn apart<const N: usize>(dims: [usize; N], turn: f64) -> Draw {
    let numel: usize = dims.iter().product();
    given(dims, (1..=numel).map(|i| 2.0 * (i as f64 * turn).fract() - 1.0))
}

fn send_ue_recv(
    x: Draw,
    y: Draw,
    message_op: MessageKind,
    reduce_op: GroupReduction,
) -> GraphSendUeRecv<Draw> {
    GraphSendUeRecv {
        x,
        y,
        src_index: integers(&SOURCES),
        dst_index: integers(&ENDS),
        out_size_tensor: None,
        out: out(),
        dst_count: Some(out()),
        message_op,
        reduce_op,
        out_size: vec![0],
    }
}

/// The number of nodes that receive messages.
fn receivers(x: &Meta, tensor: Option<&Meta>, attr: &[i64]) -> Result<Dim> {
    if attr.len() > 1 {
        let text = format!("at most one number is needed, not {}", attr.len());
        return Err(Error::attr("out_size", text));
    }
    let Some(tensor) = tensor else {
        let given = attr.iter().copied().find(|n| *n > 0);
        return Ok(given.map_or(x.dims[0], |n| (n as usize).into()));
    };
    tensor.require(tensor.dims.numel().agrees(1.into()), || "one element is needed".into())?;
    let given = constant_ints_of_tensor(Some(tensor), &[], attr.iter().copied())?;
    match given.first().copied().flatten() {
        Some(n) if n < 1 => Err(tensor.wrong(&format!("a positive number is needed, not {n}"))),
        n => Ok(n.map_or(Dim::UNKNOWN, |n| (n as usize).into())),
    }
}

/// As [`receivers`], in a composition.
fn receiving(x: &Expr, tensor: Option<&Expr>, attr: &[i64]) -> DimExpr {
    let given = given_integers(tensor, &[], attr.iter().copied()).into_iter();
    given.into_iter().find(|n| n.known().is_none_or(|n| n > 0)).unwrap_or_else(|| x.dim(0))
}
