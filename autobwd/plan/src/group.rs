//! Elementwise operators over the same elements become one region, also when others stand between them.

use std::{mem, ops::Range};

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::graph::{Graph, Node, ValueId, decompose::parts};
use autobwd_core::{
    DType, Dims, Error, OpInfoMap, Origin, Result, Shape, Var, cx::CHUNK, lanes, tensor::LINE,
};

/// The elements that a formula runs over.
#[derive(Clone, Debug, PartialEq)]
pub struct Extent {
    /// What is computed with; values of other dtypes are converted on their way from and to memory.
    pub dtype: DType,
    pub dims: Shape,
}

impl Extent {
    /// Whether the same blocks run over both.
    fn meets(&self, other: &Extent) -> bool {
        let dtypes = self.dtype == other.dtype || [self.dtype, other.dtype].contains(&DType::Bool);
        dtypes && self.dims == other.dims
    }
}

/// Operators that run as one frame.
#[derive(Debug)]
pub struct Group {
    pub nodes: Range<usize>,
    /// What a region runs over; `None` for a kernel.
    pub region: Option<Extent>,
    /// A region that shares a frame with the one before it.
    pub beside: bool,
}

/// How a formula's operand lies in the extent: its dimensions with ones where it is broadcast.
pub fn operand_dims(graph: &Graph, node: &Node, value: ValueId, extent: &Extent) -> Option<Shape> {
    if let Some((_, dims)) = node.part.iter().flat_map(|part| &part.aligned).find(|(id, _)| *id == value) {
        return Some(dims.clone());
    }
    let own = graph.values[value].meta.dims.known()?;
    let (info, desc) = node.runs();
    lanes::aligned(&own, extent.dims.len(), lanes::broadcast_axis(info.schema(), desc), 1)
}

/// Whether the operand has every element of the extent.
pub(crate) fn is_whole(graph: &Graph, node: &Node, value: ValueId, extent: &Extent) -> bool {
    let own = &graph.values[value].meta.dims;
    if node.part.is_none() && own.len() == extent.dims.len() {
        return own.iter().zip(&extent.dims).all(|(own, full)| own == full);
    }
    operand_dims(graph, node, value, extent).is_some_and(|dims| dims == extent.dims)
}

/// Whether the value is in memory what it is in lanes.
pub fn is_native(graph: &Graph, value: ValueId, extent: &Extent) -> bool {
    let dtype = graph.values[value].meta.dtype;
    dtype.is_float() && dtype == extent.dtype
}

/// What a formula runs over first of all.
pub fn extent(graph: &Graph, node: &Node) -> Option<Extent> {
    extents(graph, node).into_iter().next()
}

/// What a formula can run over: more than one where its values have several dtypes to compute with.
fn extents(graph: &Graph, node: &Node) -> SmallVec<[Extent; 2]> {
    let of = |dtypes: &[DType], dims: Option<Shape>| {
        let of_dtype =
            |dims: &Shape| dtypes.iter().map(|dtype| Extent { dtype: *dtype, dims: dims.clone() }).collect();
        dims.as_ref().map_or(smallvec![], of_dtype)
    };
    let (info, desc) = node.runs();
    // A formula takes and makes whole tensors: with others, it is the operator's kernel that runs.
    if info.lanes().is_none() || node.reads().chain(node.writes()).any(|v| !graph.is_whole_tensor(v)) {
        return smallvec![];
    }
    let meta = |value: ValueId| &graph.values[value].meta;
    if let Some(part) = node.part.as_ref().filter(|part| !part.aligned.is_empty()) {
        let mut wires = node.inputs.iter().chain(&node.outputs).filter_map(|(_, v)| *v);
        let full = wires.find(|v| part.aligned.iter().all(|(id, _)| id != v));
        return full.map_or(smallvec![], |full| of(&[meta(full).dtype], meta(full).dims.known()));
    }
    let mut floats: SmallVec<[DType; 2]> = smallvec![];
    let mut others: SmallVec<[DType; 2]> = smallvec![];
    for (_, value) in node.inputs.iter().chain(&node.outputs) {
        let Some(dtype) = value.map(|v| meta(v).dtype) else { continue };
        let known = if dtype.is_float() { &mut floats } else { &mut others };
        if !known.contains(&dtype) {
            known.push(dtype);
        }
    }
    // Booleans are 1 and 0 of whatever the others are. Other conversions are for operators that can do without.
    let converted = floats.len() > 1 || others.iter().any(|dtype| *dtype != DType::Bool);
    if converted && !info.has_kernel() {
        return smallvec![];
    }
    if floats.is_empty() && !converted {
        floats.push(DType::Bool);
    }
    let inputs: Vec<_> = node.inputs.iter().filter_map(|(_, v)| *v).map(|v| meta(v).clone()).collect();
    let dims = lanes::broadcast_dims(&inputs, lanes::broadcast_axis(info.schema(), desc)).ok();
    let dims = dims.filter(|dims| !info.has_kernel() || writes_as_formula(graph, node, dims));
    of(&floats, dims.and_then(|dims| dims.known()))
}

/// Whether the outputs of an operator have the shapes that its formula gives them. The shape rule beside a kernel is the
/// author's, and may say something else: the kernel then makes of it what it can.
fn writes_as_formula(graph: &Graph, node: &Node, full: &Dims) -> bool {
    let schema = node.runs().0.schema();
    let dims = |value: ValueId| &graph.values[value].meta.dims;
    node.outputs.iter().filter_map(|(slot, v)| Some(((*slot)?, (*v)?))).all(|(slot, value)| {
        let like = schema.outputs[slot].like.and_then(|like| schema.input_number(like));
        let input = like.and_then(|like| node.input(like));
        dims(value) == input.map_or(full, dims)
    })
}

/// Refuses a part that blocks cannot run over: whoever wrote it answers for its shapes, and there is no shape rule to
/// ask.
fn line_up(graph: &Graph, part: &Node) -> Result<()> {
    let wrong = || Error::internal(format!("the parts of operator `{}` do not line up", part.desc.ty));
    let extent = extent(graph, part).ok_or_else(wrong)?;
    for value in part.inputs.iter().chain(&part.outputs).filter_map(|(_, v)| *v) {
        let dims = operand_dims(graph, part, value, &extent).ok_or_else(wrong)?;
        let mut pairs = dims.iter().zip(&extent.dims);
        let fits = dims.len() == extent.dims.len() && pairs.all(|(own, full)| own == full || *own == 1);
        if !fits || graph.values[value].meta.dtype != extent.dtype {
            return Err(wrong());
        }
    }
    Ok(())
}

/// Sorts the operators into groups, in an order in which each runs after those that it depends on; when `apart`, each
/// is a group of its own and stays where it is. Returns how many groups at the beginning compute constants.
pub fn group(graph: &mut Graph, ops: &OpInfoMap, apart: bool) -> Result<(Vec<Group>, usize)> {
    let nodes = mem::take(&mut graph.nodes);
    let mut sort = Sort {
        apart,
        constants: vec![],
        drafts: vec![],
        constant: vec![false; graph.values.len()],
        written: vec![None; graph.values.len()],
        read: vec![None; graph.values.len()],
        unread: vec![0; graph.values.len()],
        in_formulas: vec![false; graph.values.len()],
        kept: FxHashMap::default(),
    };
    nodes.iter().flat_map(Node::reads).chain(graph.fetches.iter().copied()).for_each(|v| sort.unread[v] += 1);
    for node in nodes.iter().filter(|n| n.info.lanes().is_some() || n.info.decompose().is_some()) {
        node.reads().for_each(|v| sort.in_formulas[v] = true);
    }
    for node in nodes {
        let parts = parts(graph, ops, &node)?.unwrap_or_default();
        for part in &parts {
            line_up(graph, part)?;
        }
        sort.grow(graph.values.len());
        match sort.runs_in_parts(graph, &parts) {
            true => parts.into_iter().for_each(|part| sort.add(graph, part)),
            false => sort.add(graph, node),
        }
    }
    let constants = sort.constants.len();
    let mut groups = vec![];
    for draft in sort.constants.into_iter().chain(sort.drafts) {
        let start = graph.nodes.len();
        // Beside a kernel, a formula is there for the sake of neighbours.
        let alone = matches!(&draft.nodes[..], [node] if node.part.is_none() && node.info.has_kernel());
        let region = draft.region.into_iter().next().filter(|_| !alone);
        graph.nodes.extend(draft.nodes);
        groups.push(Group { nodes: start..graph.nodes.len(), region, beside: false });
    }
    graph.number_writers();
    Ok((groups, constants))
}

/// A group to be.
struct Draft {
    nodes: Vec<Node>,
    /// What formulas can run over; nothing for a kernel.
    region: SmallVec<[Extent; 2]>,
}

struct Sort {
    apart: bool,
    constants: Vec<Draft>,
    drafts: Vec<Draft>,
    /// By value: whether it is the same in every run, and computed once.
    constant: Vec<bool>,
    /// By value: the draft that writes it, and whether element for element; else it is not complete before the end.
    written: Vec<Option<(usize, bool)>>,
    /// By value: the last draft that reads it.
    read: Vec<Option<usize>>,
    /// By value: how many reads are still to come.
    unread: Vec<usize>,
    /// By value: whether an elementwise operator reads it.
    in_formulas: Vec<bool>,
    /// The last draft that reads or writes a variable of the scope.
    kept: FxHashMap<Var, usize>,
}

impl Sort {
    /// Makes room for the values between parts: each is read once, by a formula.
    fn grow(&mut self, values: usize) {
        self.constant.resize(values, false);
        self.written.resize(values, None);
        self.read.resize(values, None);
        self.unread.resize(values, 1);
        self.in_formulas.resize(values, true);
    }

    /// Whether an operator runs as its parts: where it has elementwise neighbours, with the same results; what reduces
    /// something, by its shapes alone, because parts add up in another order.
    fn runs_in_parts(&self, graph: &Graph, parts: &[Node]) -> bool {
        let [part, rest @ ..] = parts else { return false };
        let Some(extent) = extent(graph, part) else { return false };
        let reduced = part.writes().find(|v| !is_whole(graph, part, *v, &extent));
        let Some(reduced) = reduced else {
            let read = rest.last().unwrap_or(part).writes().any(|v| self.in_formulas[v]);
            return read || self.home(graph, part, &extent).is_some();
        };
        if !rest.is_empty() {
            return false;
        }
        let numel = |dims: &Shape| dims.iter().product::<usize>();
        let sums = graph.values[reduced].meta.dims.known().map_or(0, |dims| numel(&dims));
        // More sums would make chunks wait for each other.
        sums.saturating_mul(numel(&extent.dims).div_ceil(CHUNK)) <= numel(&extent.dims)
    }

    fn add(&mut self, graph: &Graph, node: Node) {
        if self.is_constant(graph, &node) {
            node.writes().for_each(|v| self.constant[v] = true);
            let region = extents(graph, &node);
            self.constants.push(Draft { nodes: vec![node], region });
            return;
        }
        let extents = extents(graph, &node);
        let home = extents.iter().find_map(|extent| Some((self.home(graph, &node, extent)?, extent)));
        let (at, extent) =
            home.map_or((self.drafts.len(), extents.first()), |(at, extent)| (at, Some(extent)));
        for value in node.reads() {
            self.read[value] = self.read[value].max(Some(at));
            self.unread[value] = self.unread[value].saturating_sub(1);
        }
        for value in node.writes() {
            let whole = extent.is_none_or(|extent| is_whole(graph, &node, value, extent));
            self.written[value] = Some((at, whole));
        }
        for value in node.reads().chain(node.writes()).filter(|v| graph.values[*v].kept) {
            let last = self.kept.entry(graph.values[value].var).or_insert(at);
            *last = (*last).max(at);
        }
        match (self.drafts.get_mut(at), extent) {
            (Some(draft), Some(extent)) => {
                draft.region.retain(|region| region.meets(extent));
                for region in draft.region.iter_mut().filter(|region| region.dtype == DType::Bool) {
                    region.dtype = extent.dtype;
                }
                draft.nodes.push(node);
            }
            _ => self.drafts.push(Draft { nodes: vec![node], region: extents }),
        }
    }

    /// Values that depend on nothing but attributes are computed once and kept; larger ones would take memory for good.
    fn is_constant(&self, graph: &Graph, node: &Node) -> bool {
        let small = |v: ValueId| {
            let value = &graph.values[v];
            !value.kept && !value.meta.array && value.meta.bytes().is_some_and(|bytes| bytes <= LINE)
        };
        !self.apart
            && node.called.is_none()
            && node.reads().all(|v| self.constant[v])
            && node.writes().all(small)
    }

    /// The region that an operator can join: the latest of those that share a value with it, or that stand last.
    fn home(&self, graph: &Graph, node: &Node, extent: &Extent) -> Option<usize> {
        let last = self.drafts.len().checked_sub(1).filter(|_| !self.apart)?;
        // What is computed again late was meant to be.
        let again = matches!(node.desc.origin, Origin::Recompute { .. });
        let moves = !again && self.frees_what_it_takes(graph, node);
        let earliest = self.earliest(graph, node);
        let shared = node.reads().flat_map(|v| [self.written[v].map(|(at, _)| at), self.read[v]]).flatten();
        let homes = shared.filter(|_| moves).chain([last]);
        homes.filter(|at| *at >= earliest && self.joins(graph, node, extent, *at)).max()
    }

    /// The first draft that all come before or are in which an operator depends on.
    fn earliest(&self, graph: &Graph, node: &Node) -> usize {
        let written = node.reads().filter_map(|v| Some(self.written[v]?.0));
        let kept = node.writes().filter(|v| graph.values[*v].kept);
        let before = kept.filter_map(|v| self.kept.get(&graph.values[v].var).copied());
        written.chain(before).max().unwrap_or(0)
    }

    /// Whether running it early makes no more memory wait than it frees.
    fn frees_what_it_takes(&self, graph: &Graph, node: &Node) -> bool {
        let bytes = |v: ValueId| graph.values[v].meta.bytes().unwrap_or(0);
        let takes: usize = node.writes().filter(|v| !graph.values[*v].kept).map(bytes).sum();
        let frees: usize = node.reads().filter(|v| self.unread[*v] == 1).map(bytes).sum();
        takes <= frees
    }

    fn joins(&self, graph: &Graph, node: &Node, extent: &Extent, at: usize) -> bool {
        // A sum is not complete, a broadcast operand not whole, and a number not converted, before the region ends.
        let is_converted =
            |v: ValueId| graph.values[v].meta.dtype == DType::Bool || is_native(graph, v, extent);
        let is_there = |v: ValueId| match self.written[v] {
            Some((writer, whole)) if writer == at => {
                whole && is_whole(graph, node, v, extent) && is_converted(v)
            }
            _ => true,
        };
        self.drafts[at].region.iter().any(|region| region.meets(extent)) && node.reads().all(is_there)
    }
}
