//! Memory planning: every value gets a location in the scope, in a block register, or at an offset in one arena.
//!
//! Lifetimes and sizes determine offsets. An output takes over the memory of an input where the operator allows it and
//! no later operator reads the input.

use rustc_hash::FxHashMap;

use crate::{
    fusion::{FusionGroup, IterationSpace, is_whole},
    offsets::{Buffer, live_bytes, offsets},
    value_graph::{Graph, GraphValue, Instruction, ValueId, ValueSource},
};
use autobwd_core::{Var, tensor::padded};

/// The location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In a block register of its fused kernel.
    Register,
    /// At that byte offset of the arena.
    Arena(usize),
    /// In the scope, under the variable's name.
    Scope(Var),
    /// In the outer block, by index among the captured values.
    Outer(usize),
    /// In a cell, because it is not a tensor: each such variable has one cell.
    Cell(Var),
}

/// A copy between the arena and the scope.
#[derive(Debug)]
pub struct PlannedCopy {
    /// The group after which it is copied.
    pub after: usize,
    pub value: ValueId,
    pub from: Location,
    pub to: Location,
}

/// The memory plan.
#[derive(Debug, Default)]
pub struct MemoryPlan {
    /// By value.
    pub locations: Vec<Location>,
    /// Locations of fetches at the end.
    pub fetched_at: FxHashMap<ValueId, Location>,
    pub copies: Vec<PlannedCopy>,
    /// By instruction with a sub-block: the byte offset of the arena of that block in this one.
    pub sub_arenas: FxHashMap<usize, usize>,
    /// Buffers of the arena, each with its offset and the values that use it in turn.
    pub(crate) buffers: Vec<(Buffer, usize, Vec<ValueId>)>,
    pub arena_bytes: usize,
    /// Maximum of the sum of bytes of live buffers: a lower bound for any arena.
    pub live_bytes: usize,
}

/// Assigns locations: in place where an input dies (unless `unoptimized`), offsets by lifetimes.
pub(crate) fn place(
    graph: &Graph,
    groups: &[FusionGroup],
    constants: usize,
    unoptimized: bool,
) -> MemoryPlan {
    let mut last_read = last_reads(graph, groups);
    // Constants stay from run to run.
    for node in groups[..constants].iter().flat_map(|group| &graph.instructions[group.nodes.clone()]) {
        node.writes().for_each(|v| last_read[v] = Some(groups.len()));
    }
    let mut planner = MemoryPlanner {
        graph,
        unoptimized,
        constants,
        last_read,
        buffers: vec![],
        buffer_of: vec![None; graph.values.len()],
        inside: vec![false; graph.values.len()],
        written_back: vec![],
        taken: vec![],
        reads: FxHashMap::default(),
        kept_reads: FxHashMap::default(),
        sub_arenas: vec![],
    };
    for feed in &graph.feeds {
        planner.allocate(*feed, 0);
    }
    for (g, group) in groups.iter().enumerate() {
        planner.group(g, group);
    }
    planner.finish(groups.len())
}

struct MemoryPlanner<'a> {
    graph: &'a Graph,
    /// Whether outputs always get their own memory.
    unoptimized: bool,
    /// The number of groups that compute constants.
    constants: usize,
    /// As in [`last_reads`].
    last_read: Vec<Option<usize>>,
    buffers: Vec<Buffer>,
    /// A buffer may be used by several values in turn.
    buffer_of: Vec<Option<usize>>,
    /// Values used by one fused kernel only.
    inside: Vec<bool>,
    written_back: Vec<(usize, ValueId)>,
    /// Buffers that an output of the current group has reused.
    taken: Vec<usize>,
    /// The values that the current group reads, if it is a fused kernel: the position of the last reader, and whether
    /// all read it element by element.
    reads: FxHashMap<ValueId, (usize, bool)>,
    /// The values that are in the scope, by variable.
    kept_reads: FxHashMap<Var, Vec<ValueId>>,
    /// Instructions with a sub-block, each with the buffer of its arena.
    sub_arenas: Vec<(usize, usize)>,
}

/// By value: the last group that reads its elements; one past the last group for fetches.
pub(super) fn last_reads(graph: &Graph, groups: &[FusionGroup]) -> Vec<Option<usize>> {
    let mut last = vec![None; graph.values.len()];
    for (g, group) in groups.iter().enumerate() {
        let nodes = &graph.instructions[group.nodes.clone()];
        nodes.iter().flat_map(Instruction::reads).for_each(|v| last[v] = Some(g));
        nodes.iter().flat_map(|node| &node.scratch).for_each(|v| last[*v] = Some(g));
    }
    graph.fetches.iter().for_each(|v| last[*v] = Some(groups.len()));
    last
}

impl MemoryPlanner<'_> {
    fn bytes(&self, value: ValueId) -> usize {
        padded(self.graph.values[value].meta.bytes().unwrap_or(0))
    }

    fn allocate(&mut self, value: ValueId, first: usize) {
        let first = if first < self.constants { 0 } else { first };
        let last = self.last_read[value].unwrap_or(first).max(first);
        self.buffer_of[value] = Some(self.buffers.len());
        self.buffers.push(Buffer { bytes: self.bytes(value), first, last });
    }

    fn group(&mut self, g: usize, group: &FusionGroup) {
        self.taken.clear();
        if let Some(space) = &group.space {
            self.record_reads(group, space);
        }
        for position in group.nodes.clone() {
            let node = &self.graph.instructions[position];
            for value in node.scratch.iter().filter(|_| group.space.is_none()) {
                self.allocate(*value, g);
            }
            if let Some(sub_block) = &node.sub_block {
                self.sub_arenas.push((position, self.buffers.len()));
                self.buffers.push(Buffer { bytes: sub_block.arena_bytes(), first: g, last: g });
            }
            for (slot, value) in node.outputs.iter().filter_map(|(slot, v)| Some((*slot, (*v)?))) {
                if self.graph.values[value].meta.array {
                    continue;
                }
                let whole = group.space.as_ref().is_none_or(|space| is_whole(self.graph, node, value, space));
                if self.graph.values[value].in_scope {
                    if !self.unoptimized && self.writes_directly(group, node, slot, value, whole) {
                        continue;
                    }
                    self.written_back.push((g, value));
                } else if !self.unoptimized
                    && group.space.is_some()
                    && whole
                    && self.last_read[value].is_none_or(|last| last == g)
                {
                    self.inside[value] = true;
                    continue;
                }
                match self.reuses_input(g, group, position, slot, value, whole) {
                    Some(buffer) => {
                        self.taken.push(buffer);
                        self.buffers[buffer].last = self.last_read[value].unwrap_or(g).max(g);
                        self.buffer_of[value] = Some(buffer);
                    }
                    None => self.allocate(value, g),
                }
            }
        }
    }

    fn record_reads(&mut self, group: &FusionGroup, space: &IterationSpace) {
        self.reads.clear();
        self.kept_reads.clear();
        for position in group.nodes.clone() {
            let node = &self.graph.instructions[position];
            for value in node.reads() {
                let whole = is_whole(self.graph, node, value, space);
                let known = self.reads.entry(value).or_insert_with(|| {
                    let GraphValue { var, in_scope, .. } = &self.graph.values[value];
                    if *in_scope {
                        self.kept_reads.entry(*var).or_default().push(value);
                    }
                    (position, true)
                });
                *known = (position, known.1 && whole);
            }
        }
    }

    /// Whether an operator may write its output to the scope directly: no later read in its group needs the old value,
    /// except element by element, or as the partner of an in-place operator.
    fn writes_directly(
        &self,
        group: &FusionGroup,
        node: &Instruction,
        slot: Option<usize>,
        value: ValueId,
        whole: bool,
    ) -> bool {
        let var = self.graph.values[value].var;
        let old = |v: ValueId| self.graph.values[v].var == var && self.graph.values[v].in_scope && v != value;
        match &group.space {
            Some(_) => {
                let read = self.kept_reads.get(&var).into_iter().flatten();
                whole && read.filter(|v| old(**v)).all(|v| self.reads[v].1)
            }
            None => match node.reads().filter(|v| old(*v)).count() {
                0 => true,
                1 => partner(node, slot).is_some_and(old),
                _ => false,
            },
        }
    }

    /// The buffer of a dying input that the output may reuse.
    fn reuses_input(
        &self,
        g: usize,
        group: &FusionGroup,
        position: usize,
        slot: Option<usize>,
        value: ValueId,
        whole: bool,
    ) -> Option<usize> {
        if self.unoptimized {
            return None;
        }
        let node = &self.graph.instructions[position];
        let fits = |x: ValueId| {
            let buffer = self.buffer_of[x]?;
            let dies = self.last_read[x] == Some(g) && self.buffers[buffer].last == g;
            let metas = [x, value].map(|v| &self.graph.values[v].meta);
            let [a, b] = metas.map(|meta| (meta.dtype, meta.dims.numel()));
            // Buffers are whole cache lines, so equal sizes in bytes may mean different numbers of elements.
            let alike = metas.iter().all(|meta| meta.rows.is_none()) && a == b;
            (alike && dies && !self.taken.contains(&buffer) && self.bytes(x) == self.bytes(value))
                .then_some(buffer)
        };
        match &group.space {
            // Read element by element only, and not after that position.
            Some(_) if whole => node.reads().find_map(|x| {
                let (last, whole) = self.reads[&x];
                fits(x).filter(|_| whole && last <= position)
            }),
            Some(_) => None,
            None => {
                let x = partner(node, slot)?;
                let once = node.reads().filter(|v| *v == x).count() == 1;
                fits(x).filter(|_| once)
            }
        }
    }

    fn finish(mut self, end: usize) -> MemoryPlan {
        // Fetches from the scope or the outer block are copied at the end, so that reading them needs no scope.
        let mut fetch_buffers = vec![];
        for value in &self.graph.fetches {
            let kept = self.buffer_of[*value].is_none();
            fetch_buffers.push(kept.then_some(self.buffers.len()));
            if kept {
                self.buffers.push(Buffer { bytes: self.bytes(*value), first: end, last: end });
            }
        }
        let (offsets, arena_bytes) = offsets(&self.buffers);
        let location = |value: ValueId| match (&self.graph.values[value], self.buffer_of[value]) {
            _ if self.inside[value] => Location::Register,
            (_, Some(buffer)) => Location::Arena(offsets[buffer]),
            (GraphValue { meta, var, .. }, _) if meta.array => Location::Cell(*var),
            (GraphValue { source: ValueSource::Outer(k), .. }, _) => Location::Outer(*k),
            (GraphValue { var, .. }, _) => Location::Scope(*var),
        };
        let locations: Vec<Location> = (0..self.graph.values.len()).map(location).collect();
        let mut copies = vec![];
        for (after, value) in &self.written_back {
            let to = Location::Scope(self.graph.values[*value].var);
            copies.push(PlannedCopy { after: *after, value: *value, from: locations[*value], to });
        }
        let mut fetched_at = FxHashMap::default();
        for (value, buffer) in self.graph.fetches.iter().zip(fetch_buffers) {
            let to = buffer.map_or(locations[*value], |b| Location::Arena(offsets[b]));
            if to != locations[*value] {
                copies.push(PlannedCopy {
                    after: end.saturating_sub(1),
                    value: *value,
                    from: locations[*value],
                    to,
                });
            }
            fetched_at.entry(*value).or_insert(to);
        }
        debug_assert!(
            self.graph
                .values
                .iter()
                .zip(&locations)
                .all(|(v, s)| v.source != ValueSource::Feed || *s != Location::Register)
        );
        let live_bytes = live_bytes(&self.buffers);
        let sub_arenas =
            self.sub_arenas.iter().map(|(position, buffer)| (*position, offsets[*buffer])).collect();
        let mut buffers: Vec<_> =
            self.buffers.into_iter().zip(offsets).map(|(buffer, at)| (buffer, at, vec![])).collect();
        for (value, buffer) in self.buffer_of.iter().enumerate().filter_map(|(v, b)| Some((v, (*b)?))) {
            buffers[buffer].2.push(value);
        }
        MemoryPlan { live_bytes, locations, fetched_at, copies, sub_arenas, buffers, arena_bytes }
    }
}

/// The value in the input slot whose memory the output slot may reuse.
fn partner(node: &Instruction, slot: Option<usize>) -> Option<ValueId> {
    node.input(node.partner(slot?)?)
}
