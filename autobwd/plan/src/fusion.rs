//! Fusion of elementwise operators over the same elements into fused kernels, by greedy list scheduling.
//!
//! An operator may move across independent ones (none reads or overwrites what the other writes) into an earlier fused
//! kernel, if it allocates no more bytes there than it frees. Shapes alone decide whether a reduction is split into
//! elementwise operators, and positions alone decide the order of sums in a fused kernel, so fusion changes no bit.

use std::{mem, ops::Range};

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::value_graph::{Graph, Instruction, ValueId, decompose::parts, widening};
use autobwd_core::{
    __private, __private::internals::*, DType, Dims, Error, ErrorKind, OpInfoMap, Origin, Result, Shape, Var,
    runtime::CHUNK, tensor::LINE,
};

/// The iteration space of a formula.
#[derive(Clone, Debug, PartialEq)]
pub struct IterationSpace {
    /// The type of the computation; values of other dtypes are converted on load and store.
    pub dtype: DType,
    pub dims: Shape,
}

impl IterationSpace {
    /// Whether the same blocks run over both.
    fn matches(&self, other: &IterationSpace) -> bool {
        let dtypes = self.dtype == other.dtype || [self.dtype, other.dtype].contains(&DType::Bool);
        dtypes && self.dims == other.dims
    }
}

/// Operators that run as one group.
#[derive(Debug)]
pub struct FusionGroup {
    pub nodes: Range<usize>,
    /// The iteration space of a fused kernel; `None` for a kernel.
    pub space: Option<IterationSpace>,
    /// Whether the fused kernel shares an instruction with the previous one.
    pub shares_instruction: bool,
}

/// Dimensions of a formula's operand in the iteration space, with ones where it is broadcast.
pub fn operand_dims(
    graph: &Graph,
    node: &Instruction,
    value: ValueId,
    space: &IterationSpace,
) -> Option<Shape> {
    if let Some((_, dims)) = node.part.iter().flat_map(|part| &part.aligned).find(|(id, _)| *id == value) {
        return Some(dims.clone());
    }
    let own = graph.values[value].meta.dims.known()?;
    let (info, desc) = node.runs();
    __private::aligned(&own, space.dims.len(), __private::broadcast_axis(info.schema(), desc), 1)
}

/// Whether the operand has every element of the iteration space.
pub(crate) fn is_whole(graph: &Graph, node: &Instruction, value: ValueId, space: &IterationSpace) -> bool {
    let own = &graph.values[value].meta.dims;
    if node.part.is_none() && own.len() == space.dims.len() {
        return own.iter().zip(&space.dims).all(|(own, full)| own == full);
    }
    operand_dims(graph, node, value, space).is_some_and(|dims| dims == space.dims)
}

/// Whether the value has the same type in memory and in lanes.
pub fn is_native(graph: &Graph, value: ValueId, space: &IterationSpace) -> bool {
    let dtype = graph.values[value].meta.dtype;
    dtype.is_float() && dtype == space.dtype
}

/// The preferred iteration space of a formula.
pub fn extent(graph: &Graph, node: &Instruction) -> Option<IterationSpace> {
    iteration_spaces(graph, node).into_iter().next()
}

/// The possible iteration spaces: several if its values have several floating point dtypes.
fn iteration_spaces(graph: &Graph, node: &Instruction) -> SmallVec<[IterationSpace; 2]> {
    let of = |dtypes: &[DType], dims: Option<Shape>| {
        let of_dtype = |dims: &Shape| {
            dtypes.iter().map(|dtype| IterationSpace { dtype: *dtype, dims: dims.clone() }).collect()
        };
        dims.as_ref().map_or(smallvec![], of_dtype)
    };
    let (info, desc) = node.runs();
    // Formulas support whole tensors only; for others, the operator's kernel runs.
    if info.lanes().is_none() || node.reads().chain(node.writes()).any(|v| !graph.is_whole_tensor(v)) {
        return smallvec![];
    }
    let meta = |value: ValueId| &graph.values[value].meta;
    if let Some(part) = node.part.as_ref().filter(|part| !part.aligned.is_empty()) {
        let mut wires = node.inputs.iter().chain(&node.outputs).filter_map(|(_, v)| *v);
        let full = wires.find(|v| part.aligned.iter().all(|(id, _)| id != v));
        return full
            .map_or(smallvec![], |full| of(&[meta(full).dtype.arithmetic()], meta(full).dims.known()));
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
    // A bool is 1 or 0 in any type. Other conversions are for operators that allow them. Values between the parts of an
    // operator have more bits than its operands of 16.
    let converted =
        floats.len() > 1 && node.part.is_none() || others.iter().any(|dtype| *dtype != DType::Bool);
    if converted && !info.has_kernel() {
        return smallvec![];
    }
    if floats.iter().any(|dtype| dtype.is_half()) {
        // Rounded to `f32` first, a double would be rounded twice.
        let has_double = floats.contains(&DType::F64);
        floats = smallvec![if has_double { DType::F64 } else { DType::F32 }];
    }
    if floats.is_empty() && !converted {
        floats.push(DType::Bool);
    }
    let inputs: Vec<_> = node.inputs.iter().filter_map(|(_, v)| *v).map(|v| meta(v).clone()).collect();
    let dims = __private::broadcast_dims(&inputs, __private::broadcast_axis(info.schema(), desc)).ok();
    let dims = dims.filter(|dims| !info.has_kernel() || writes_as_formula(graph, node, dims));
    of(&floats, dims.and_then(|dims| dims.known()))
}

/// Whether the outputs of an operator have the shapes of its formula. The shape rule of an operator that also has a
/// kernel may give other shapes; then the kernel runs.
fn writes_as_formula(graph: &Graph, node: &Instruction, full: &Dims) -> bool {
    let schema = node.runs().0.schema();
    let dims = |value: ValueId| &graph.values[value].meta.dims;
    node.outputs.iter().filter_map(|(slot, v)| Some(((*slot)?, (*v)?))).all(|(slot, value)| {
        let like = schema.outputs[slot].like.and_then(|like| schema.input_number(like));
        let input = like.and_then(|like| node.input(like));
        dims(value) == input.map_or(full, dims)
    })
}

/// Rejects a part that cannot run block by block: the author of the decomposition is responsible for its shapes, and
/// there is no shape rule.
fn check_alignment(graph: &Graph, part: &Instruction) -> Result<()> {
    let wrong = || {
        let text = format!("a decomposition has a part `{}` whose shapes do not match", part.desc.ty);
        Error::new(ErrorKind::Operator, text)
    };
    let space = extent(graph, part).ok_or_else(wrong)?;
    for value in part.inputs.iter().chain(&part.outputs).filter_map(|(_, v)| *v) {
        let dims = operand_dims(graph, part, value, &space).ok_or_else(wrong)?;
        let mut pairs = dims.iter().zip(&space.dims);
        let fits = dims.len() == space.dims.len() && pairs.all(|(own, full)| own == full || *own == 1);
        if !fits || graph.values[value].meta.dtype.arithmetic() != space.dtype {
            return Err(wrong());
        }
    }
    Ok(())
}

/// Sorts the operators into groups in dependency order; if `unoptimized`, each is a group of its own in its original place.
/// Returns the number of leading groups that compute constants.
pub fn group(graph: &mut Graph, ops: &OpInfoMap, unoptimized: bool) -> Result<(Vec<FusionGroup>, usize)> {
    let nodes = mem::take(&mut graph.instructions);
    let mut builder = GroupBuilder {
        unoptimized,
        constants: vec![],
        drafts: vec![],
        constant: vec![false; graph.values.len()],
        written: vec![None; graph.values.len()],
        read: vec![None; graph.values.len()],
        unread: vec![0; graph.values.len()],
        in_formulas: vec![false; graph.values.len()],
        in_scope: FxHashMap::default(),
    };
    nodes
        .iter()
        .flat_map(Instruction::reads)
        .chain(graph.fetches.iter().copied())
        .for_each(|v| builder.unread[v] += 1);
    for node in nodes.iter().filter(|n| n.info.lanes().is_some() || n.info.is_decomposed()) {
        node.reads().for_each(|v| builder.in_formulas[v] = true);
    }
    for node in nodes {
        let parts = parts(graph, ops, &node)?.unwrap_or_default();
        for part in &parts {
            check_alignment(graph, part)?;
        }
        builder.grow(graph.values.len());
        match builder.runs_in_parts(graph, &parts) {
            true => parts.into_iter().for_each(|part| builder.add(graph, part)),
            false => builder.add(graph, node),
        }
    }
    let constants = builder.constants.len();
    let mut groups = vec![];
    for draft in builder.constants.into_iter().chain(builder.drafts) {
        let start = graph.instructions.len();
        // An operator with a kernel uses its formula only inside a larger fused kernel.
        let alone = matches!(&draft.nodes[..], [node] if node.part.is_none() && node.info.has_kernel());
        let space = draft.space.into_iter().next().filter(|_| !alone);
        graph.instructions.extend(draft.nodes);
        groups.push(FusionGroup { nodes: start..graph.instructions.len(), space, shares_instruction: false });
    }
    for group in groups.iter().filter(|group| group.space.is_none()) {
        group.nodes.clone().for_each(|position| widening::add(graph, position));
    }
    graph.index_writers();
    Ok((groups, constants))
}

/// A group under construction.
struct GroupDraft {
    nodes: Vec<Instruction>,
    /// Possible iteration spaces; empty for a kernel.
    space: SmallVec<[IterationSpace; 2]>,
}

struct GroupBuilder {
    unoptimized: bool,
    constants: Vec<GroupDraft>,
    drafts: Vec<GroupDraft>,
    /// By value: whether it is constant, and computed once.
    constant: Vec<bool>,
    /// By value: the draft that writes it, and whether element by element; otherwise it is complete only at the draft's
    /// end.
    written: Vec<Option<(usize, bool)>>,
    /// By value: the last draft that reads it.
    read: Vec<Option<usize>>,
    /// By value: the number of remaining reads.
    unread: Vec<usize>,
    /// By value: whether an elementwise operator reads it.
    in_formulas: Vec<bool>,
    /// The last draft that reads or writes a variable of the scope.
    in_scope: FxHashMap<Var, usize>,
}

impl GroupBuilder {
    /// Adds the values between parts: each is read once, by a formula.
    fn grow(&mut self, values: usize) {
        self.constant.resize(values, false);
        self.written.resize(values, None);
        self.read.resize(values, None);
        self.unread.resize(values, 1);
        self.in_formulas.resize(values, true);
    }

    /// Whether an operator is decomposed: if it has elementwise neighbours and the bits stay the same; for a reduction,
    /// by its shapes alone, because parts sum in another order.
    fn runs_in_parts(&self, graph: &Graph, parts: &[Instruction]) -> bool {
        let [part, rest @ ..] = parts else { return false };
        let Some(space) = extent(graph, part) else { return false };
        let reduced = part.writes().find(|v| !is_whole(graph, part, *v, &space));
        let Some(reduced) = reduced else {
            let read = rest.last().unwrap_or(part).writes().any(|v| self.in_formulas[v]);
            return read || self.fusion_target(graph, part, &space).is_some();
        };
        if !rest.is_empty() {
            return false;
        }
        let numel = |dims: &Shape| dims.iter().product::<usize>();
        let sums = graph.values[reduced].meta.dims.known().map_or(0, |dims| numel(&dims));
        // With more sums, chunks would wait for each other.
        sums.saturating_mul(numel(&space.dims).div_ceil(CHUNK)) <= numel(&space.dims)
    }

    fn add(&mut self, graph: &Graph, node: Instruction) {
        if self.is_constant(graph, &node) {
            node.writes().for_each(|v| self.constant[v] = true);
            let space = iteration_spaces(graph, &node);
            self.constants.push(GroupDraft { nodes: vec![node], space });
            return;
        }
        let spaces = iteration_spaces(graph, &node);
        let target = spaces.iter().find_map(|space| Some((self.fusion_target(graph, &node, space)?, space)));
        let (at, space) = target.map_or((self.drafts.len(), spaces.first()), |(at, space)| (at, Some(space)));
        for value in node.reads() {
            self.read[value] = self.read[value].max(Some(at));
            self.unread[value] = self.unread[value].saturating_sub(1);
        }
        for value in node.writes() {
            let whole = space.is_none_or(|space| is_whole(graph, &node, value, space));
            self.written[value] = Some((at, whole));
        }
        for value in node.reads().chain(node.writes()).filter(|v| graph.values[*v].in_scope) {
            let last = self.in_scope.entry(graph.values[value].var).or_insert(at);
            *last = (*last).max(at);
        }
        match (self.drafts.get_mut(at), space) {
            (Some(draft), Some(space)) => {
                draft.space.retain(|own| own.matches(space));
                for own in draft.space.iter_mut().filter(|own| own.dtype == DType::Bool) {
                    own.dtype = space.dtype;
                }
                draft.nodes.push(node);
            }
            _ => self.drafts.push(GroupDraft { nodes: vec![node], space: spaces }),
        }
    }

    /// Whether it depends on attributes only and is small: constants stay in memory permanently.
    fn is_constant(&self, graph: &Graph, node: &Instruction) -> bool {
        let small = |v: ValueId| {
            let value = &graph.values[v];
            !value.in_scope && !value.meta.array && value.meta.bytes().is_some_and(|bytes| bytes <= LINE)
        };
        !self.unoptimized
            && node.sub_block.is_none()
            && node.reads().all(|v| self.constant[v])
            && node.writes().all(small)
    }

    /// The fused kernel that an operator can join: the latest that shares a value with it, or the last one.
    fn fusion_target(&self, graph: &Graph, node: &Instruction, space: &IterationSpace) -> Option<usize> {
        let last = self.drafts.len().checked_sub(1).filter(|_| !self.unoptimized)?;
        // Recomputed operators are placed late on purpose.
        let is_recomputed = matches!(node.desc.origin, Origin::Recompute { .. });
        let moves = !is_recomputed && self.grows_no_lifetime(graph, node);
        let earliest = self.earliest_position(graph, node);
        let shared = node.reads().flat_map(|v| [self.written[v].map(|(at, _)| at), self.read[v]]).flatten();
        let targets = shared.filter(|_| moves).chain([last]);
        targets.filter(|at| *at >= earliest && self.can_fuse(graph, node, space, *at)).max()
    }

    /// The last draft that an operator depends on.
    fn earliest_position(&self, graph: &Graph, node: &Instruction) -> usize {
        let written = node.reads().filter_map(|v| Some(self.written[v]?.0));
        let writes = node.writes().filter(|v| graph.values[*v].in_scope);
        let before = writes.filter_map(|v| self.in_scope.get(&graph.values[v].var).copied());
        written.chain(before).max().unwrap_or(0)
    }

    /// Whether running it early allocates no more bytes than it frees.
    fn grows_no_lifetime(&self, graph: &Graph, node: &Instruction) -> bool {
        let bytes = |v: ValueId| graph.values[v].meta.bytes().unwrap_or(0);
        let takes: usize = node.writes().filter(|v| !graph.values[*v].in_scope).map(bytes).sum();
        let frees: usize = node.reads().filter(|v| self.unread[*v] == 1).map(bytes).sum();
        takes <= frees
    }

    fn can_fuse(&self, graph: &Graph, node: &Instruction, space: &IterationSpace, at: usize) -> bool {
        // Within the fused kernel that writes it, a sum is incomplete, a broadcast operand partial, and a converted
        // number not converted, unless it is rounded to 16 bits.
        let is_converted = |v: ValueId| {
            let dtype = graph.values[v].meta.dtype;
            dtype == DType::Bool || dtype.is_half() || is_native(graph, v, space)
        };
        let is_there = |v: ValueId| match self.written[v] {
            Some((writer, whole)) if writer == at => {
                whole && is_whole(graph, node, v, space) && is_converted(v)
            }
            _ => true,
        };
        self.drafts[at].space.iter().any(|own| own.matches(space)) && node.reads().all(is_there)
    }
}
