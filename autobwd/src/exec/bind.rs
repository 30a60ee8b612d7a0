//! From plan to frames: every slot gets its memory, every frame is proven sound.

use std::collections::HashMap;

use super::{Scope, finite::Probe};
use crate::{
    BlockId, Buf, Cx, DType, Error, Kernel, Origin, Program, Result, Role,
    lanes::{Home, Region, RegionSpec, Regions, Spread, Step},
    plan::{Extent, Graph, Group, Node, Plan, Spot, ValueId, Wires, operand_dims},
    registry::Run,
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
    let mut bind = Bind { program, plan, arena, scope };
    let mut bound = Bound { frames: vec![], constants: 0, scratch_bytes: 0, lent_bytes: 0 };
    for (first, groups) in plan.frames() {
        let node = groups[0].nodes.start;
        let regions = groups.iter().filter_map(|group| Some((group, group.region.as_ref()?)));
        let regions = regions.map(|(group, extent)| bind.region(group, extent, workers));
        let kernel: Box<dyn Kernel + Send> = match regions.collect::<Result<Vec<_>>>()? {
            regions if regions.is_empty() => bind.kernel(&plan.graph.nodes[node])?,
            regions => {
                bound.scratch_bytes += regions.iter().map(Region::scratch_bytes).sum::<usize>();
                Box::new(Regions::new(regions)?)
            }
        };
        bound.lent_bytes = bound.lent_bytes.max(kernel.scratch_bytes(workers));
        bound.frames.push(Frame { kernel, node });
        if check_finite {
            let kernel = Box::new(bind.probe(&plan.graph.nodes[node])?);
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
    fn graph(&self) -> &Graph {
        &self.plan.graph
    }

    fn place(&mut self, value: ValueId, spot: Spot) -> Result<Place> {
        let meta = &self.plan.graph.values[value].meta;
        match spot {
            Spot::Register => Err(Error::internal("a block register was asked for its place")),
            Spot::Arena(at) => self.arena.place(at, meta.bytes().unwrap_or(0)),
            Spot::Kept(var) => self.scope.place(self.program.name(var), meta),
        }
    }

    fn kernel(&mut self, node: &Node) -> Result<Box<dyn Kernel + Send>> {
        let (Run::Kernel(make) | Run::Formula { rows: Some(make) }) = node.info.run() else {
            return Err(Error::internal("a formula without region"));
        };
        let mut binder = Binder::default();
        // The conversion asks for slots in the order of the schema, as the wires are.
        let mut inputs = node.inputs.iter().filter_map(|(slot, v)| Some((*slot, (*v)?)));
        let mut outputs = node.outputs.iter().filter_map(|(slot, v)| Some((*slot, (*v)?)));
        let kernel = make(&node.desc, &mut |role, slot, _| {
            let next = match role {
                Role::Input => inputs.next(),
                Role::Output => outputs.next(),
            };
            let (_, value) =
                next.filter(|(s, _)| *s == slot).ok_or_else(|| Error::internal("slots out of order"))?;
            let meta = self.graph().values[value].meta.clone().in_slot(slot);
            let schema = node.info.schema();
            if role == Role::Input && schema.input(slot).is_some_and(|s| s.shape_only) {
                // Nobody may look at this place; the arena's first byte is as good as any.
                return binder.input(&meta, self.arena.place(0, 0)?, Reach::ShapeOnly);
            }
            let place = self.place(value, self.plan.layout.spots[value])?;
            match role {
                Role::Output => binder.output(&meta, place),
                Role::Input => {
                    let taken = self.taken_over(node, slot, place)?;
                    binder.input(&meta, place, if taken { Reach::TakenOver } else { Reach::Read })
                }
            }
        })?;
        binder.finish()?;
        Ok(kernel)
    }

    /// Whether an output that declares this input as its partner has been given its memory.
    fn taken_over(&mut self, node: &Node, slot: &str, place: Place) -> Result<bool> {
        for (out, value) in node.outputs.iter().filter_map(|(s, v)| Some((*s, (*v)?))) {
            let partner = node.info.schema().output(out).and_then(|s| s.inplace);
            if partner == Some(slot) && self.place(value, self.plan.layout.spots[value])? == place {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A look at what an operator has written, in a plan that keeps all values apart.
    fn probe(&mut self, node: &Node) -> Result<Probe> {
        let mut binder = Binder::default();
        let mut buf = |(slot, value): (&'static str, ValueId)| -> Result<(String, Buf<'static>)> {
            let known = &self.plan.graph.values[value];
            let (name, meta) = (self.program.name(known.var).into(), known.meta.clone().in_slot(slot));
            let place = self.place(value, self.plan.layout.spots[value])?;
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
        let meta = self.graph().values[value].meta.clone();
        let (from, to) = (self.place(value, from)?, self.place(value, to)?);
        let mut binder = Binder::default();
        let frame =
            CopyFrame { from: binder.input(&meta, from, Reach::Read)?, to: binder.output(&meta, to)? };
        binder.finish()?;
        Ok(frame)
    }

    fn region(&mut self, group: &Group, extent: &Extent, workers: usize) -> Result<Region> {
        let plan = self.plan;
        let mut values = vec![];
        // A value is one operand, unless operators line it up differently.
        let mut known: HashMap<(ValueId, Option<Spread>), usize> = HashMap::new();
        let mut steps = vec![];
        for node in &plan.graph.nodes[group.nodes.clone()] {
            let (info, desc) = node.runs();
            let Some(entry) = info.lanes() else {
                return Err(Error::internal("a kernel in a region"));
            };
            let mut home = |value: ValueId| -> Result<usize> {
                let dims = operand_dims(&plan.graph, node, value, extent);
                let dims = dims.ok_or_else(|| Error::internal("an operand that does not broadcast"))?;
                let spread = (dims != extent.dims).then(|| Spread::new(&extent.dims, &dims));
                let key = (value, spread);
                if let Some(id) = known.get(&key) {
                    return Ok(*id);
                }
                let spot = plan.layout.spots[value];
                let mask = plan.graph.values[value].meta.dtype == DType::Bool;
                values.push(match (spot, &key.1) {
                    (Spot::Register, _) => Home::Register,
                    (spot, spread) if mask => {
                        let spread =
                            spread.clone().unwrap_or_else(|| Spread::new(&extent.dims, &extent.dims));
                        Home::Mask(self.place(value, spot)?, spread)
                    }
                    (spot, None) => Home::Whole(self.place(value, spot)?),
                    (spot, Some(spread)) => Home::Spread(self.place(value, spot)?, spread.clone()),
                });
                known.insert(key, values.len() - 1);
                Ok(values.len() - 1)
            };
            let schema = info.schema();
            let find =
                |wires: &Wires, slot: &str| wires.iter().find(|(s, _)| *s == slot).and_then(|(_, v)| *v);
            let mut inputs = vec![];
            for slot in schema.inputs {
                let value = find(&node.inputs, slot.name).filter(|_| !slot.shape_only);
                inputs.push(value.map(&mut home).transpose()?);
            }
            let mut outputs = vec![];
            for slot in schema.outputs {
                outputs.push(find(&node.outputs, slot.name).map(&mut home).transpose()?);
            }
            steps.push(Step { entry, desc, inputs, outputs });
        }
        let numel = extent.dims.iter().product();
        // Lanes are of floating point numbers, also where all is booleans.
        let dtype = if extent.dtype == DType::Bool { DType::F32 } else { extent.dtype };
        Region::new(RegionSpec { dtype, numel, values, steps }, workers)
    }
}
