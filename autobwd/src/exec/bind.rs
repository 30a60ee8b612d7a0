//! From plan to frames: every slot gets its memory, every frame is proven sound.

use super::{Scope, finite::Probe};
use crate::{
    BlockId, Buf, Cx, Error, Kernel, Origin, Program, Result, frame,
    lanes::{Region, Regions},
    plan::{Node, Plan, Spot, ValueId, Wires},
    tensor::{Binder, Memory, Place, Reach},
};

/// Something to call while running.
pub(super) struct Frame {
    pub(super) kernel: Box<dyn Kernel + Send>,
    /// The operator (the first one of a region), for messages.
    pub(super) node: usize,
}

/// Copies one buffer to another.
struct CopyFrame {
    from: Buf<'static>,
    to: Buf<'static>,
}
impl Kernel for CopyFrame {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.to.copy_from(&self.from)
    }
}

/// The frames of a plan, in order.
pub(super) struct Bound {
    pub(super) frames: Vec<Frame>,
    /// How many frames at the beginning compute constants.
    pub(super) constants: usize,
    /// Tensor memory that regions hold, in bytes.
    pub(super) scratch_bytes: usize,
    /// The most that is lent to a kernel while it runs, in bytes.
    pub(super) lent_bytes: usize,
}

pub(super) fn bind(
    program: &Program,
    plan: &Plan,
    arena: &Memory,
    scope: &mut Scope,
    check_finite: bool,
    workers: usize,
) -> Result<Bound> {
    let (graph, spots) = (&plan.graph, &plan.layout.spots);
    let mut bind = Bind { program, plan, arena, scope };
    let mut bound = Bound { frames: vec![], constants: 0, scratch_bytes: 0, lent_bytes: 0 };
    for (first, groups) in plan.frames() {
        let node = groups[0].nodes.start;
        let mut place = |v| bind.place(v, spots[v]);
        let regions = groups.iter().filter_map(|group| Some((group, group.region.as_ref()?)));
        let regions = regions.map(|(group, extent)| {
            frame::region(graph, &graph.nodes[group.nodes.clone()], extent, workers, &mut place)
        });
        let kernel: Box<dyn Kernel + Send> = match regions.collect::<Result<Vec<_>>>()? {
            regions if regions.is_empty() => frame::kernel(graph, &graph.nodes[node], &mut place)?,
            regions => {
                bound.scratch_bytes += regions.iter().map(Region::scratch_bytes).sum::<usize>();
                Box::new(Regions::new(regions)?)
            }
        };
        bound.lent_bytes = bound.lent_bytes.max(kernel.scratch_bytes(workers));
        bound.frames.push(Frame { kernel, node });
        if check_finite {
            let kernel = Box::new(bind.probe(&graph.nodes[node])?);
            bound.frames.push(Frame { kernel, node });
        }
        for copy in plan.layout.copies.iter().filter(|c| (first..first + groups.len()).contains(&c.after)) {
            let kernel = Box::new(bind.copy(copy.value, copy.from, copy.to)?);
            bound.frames.push(Frame { kernel, node });
        }
        if first < plan.constants {
            bound.constants = bound.frames.len();
        }
    }
    Ok(bound)
}

struct Bind<'a> {
    program: &'a Program,
    plan: &'a Plan,
    arena: &'a Memory,
    scope: &'a mut Scope,
}

impl Bind<'_> {
    /// Where a value lives; `None` for a block register.
    fn place(&mut self, value: ValueId, spot: Spot) -> Result<Option<Place>> {
        let meta = &self.plan.graph.values[value].meta;
        match spot {
            Spot::Register => Ok(None),
            Spot::Arena(at) => self.arena.place(at, meta.bytes().unwrap_or(0)).map(Some),
            Spot::Kept(var) => self.scope.place(self.program.name(var), meta).map(Some),
        }
    }

    fn memory(&mut self, value: ValueId, spot: Spot) -> Result<Place> {
        self.place(value, spot)?.ok_or_else(|| Error::internal("a block register is no memory"))
    }

    /// A look at what an operator has written, in a plan that keeps all values apart.
    fn probe(&mut self, node: &Node) -> Result<Probe> {
        let mut binder = Binder::default();
        let mut buf = |(slot, value): (&'static str, ValueId)| -> Result<(String, Buf<'static>)> {
            let known = &self.plan.graph.values[value];
            let (name, meta) = (self.program.name(known.var).into(), known.meta.clone().in_slot(slot));
            let place = self.memory(value, self.plan.layout.spots[value])?;
            Ok((name, binder.input(&meta, place, Reach::Read)?))
        };
        let values = |wires: &Wires| {
            let values = wires.iter().filter_map(|(slot, value)| Some((*slot, (*value)?)));
            values.collect::<Vec<_>>()
        };
        // The memory of what is read for its shape alone may hold something else by now.
        let shape_only = |slot: &str| node.runs().0.schema().input(slot).is_some_and(|s| s.shape_only);
        let inputs = values(&node.inputs).into_iter().filter(|(slot, _)| !shape_only(slot));
        let inputs = inputs.map(&mut buf).collect::<Result<_>>()?;
        let outputs = values(&node.outputs).into_iter().map(&mut buf).collect::<Result<_>>()?;
        binder.finish()?;
        let forward = match node.desc.origin {
            Origin::Gradient { of } => self.program.root().ops.get(of).map(|fwd| (of, fwd)),
            _ => None,
        };
        let forward = forward.map(|(of, fwd)| self.program.describe_op(BlockId::ROOT, of, fwd));
        Ok(Probe { inputs, outputs, forward })
    }

    fn copy(&mut self, value: ValueId, from: Spot, to: Spot) -> Result<CopyFrame> {
        let meta = self.plan.graph.values[value].meta.clone();
        let (from, to) = (self.memory(value, from)?, self.memory(value, to)?);
        let mut binder = Binder::default();
        let frame =
            CopyFrame { from: binder.input(&meta, from, Reach::Read)?, to: binder.output(&meta, to)? };
        binder.finish()?;
        Ok(frame)
    }
}
