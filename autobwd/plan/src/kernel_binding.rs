//! Construction of kernels and fused kernels from groups of a plan, on memory of the caller.
//!
//! Must not decide anything: groups and locations are given.

use std::{iter, slice, sync::Arc};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{Graph, Instruction, IterationSpace, ValueId, Wires, extent, is_native, operand_dims};
use autobwd_core::{
    __private::{
        AccessMode, Binder, BroadcastMap, FusedKernel, FusedKernelSpec, FusedKernels, FusedOp,
        Implementation, OperandLocation, Place, ValueCell, copy_converted, internals::*,
    },
    Buf, Cx, DType, Error, Kernel, Meta, Result, Role, Var,
};

/// Returns the location of a value; `None` for a block register.
pub(crate) type PlaceOf<'a> = &'a mut dyn FnMut(ValueId) -> Result<Option<Place>>;

/// The kernel of an operator; `cells` are the values in its slots that are not tensors.
pub fn kernel(
    graph: &Graph,
    node: &Instruction,
    cells: &[(ValueId, Arc<ValueCell>)],
    place: PlaceOf<'_>,
) -> Result<Box<dyn Kernel + Send>> {
    let (Implementation::Kernel(make) | Implementation::Formula { others: Some(make) }) = node.info.run()
    else {
        return Err(Error::internal("a formula without fused kernel"));
    };
    let mut place =
        |value| place(value)?.ok_or_else(|| Error::internal("a block register was asked for its place"));
    let mut binder = Binder::default();
    // The conversion requests slots in the schema's order, which the wires also have.
    let schema = node.info.schema();
    let widened = node.widened.iter().copied().chain(iter::repeat(None));
    let wires = |wires: &Wires, first: usize| {
        let wires = wires.clone().into_iter().zip(widened.clone().skip(first));
        wires.filter_map(|((slot, v), wide)| Some((slot?, v?, wide)))
    };
    let (mut inputs, mut outputs) = (wires(&node.inputs, 0), wires(&node.outputs, node.inputs.len()));
    let overwritten = &node.widened[node.inputs.len().min(node.widened.len())..];
    let mut scratch = node.scratch.iter().copied();
    let (mut sparse, mut decided, mut widening, mut rounding) = (vec![], vec![], vec![], vec![]);
    let mut ready: SmallVec<[ValueId; 4]> = SmallVec::new();
    let kernel = make(&node.desc, binder.lease(), &mut |role, slot, var| {
        if var == Var::EMPTY {
            let value =
                scratch.next().ok_or_else(|| Error::internal("scratch memory without a slot of its size"))?;
            return binder.output(&graph.values[value].meta, place(value)?);
        }
        let (slots, next) = match role {
            Role::Input => (schema.inputs, inputs.next()),
            Role::Output => (schema.outputs, outputs.next()),
        };
        let next = next.filter(|(number, ..)| slots[*number].name == slot);
        let (number, value, wide) = next.ok_or_else(|| Error::internal("slots out of order"))?;
        let mut meta = graph.values[value].meta.clone().in_slot(slot);
        if let Some((_, cell)) = cells.iter().find(|(id, _)| *id == value) {
            return Ok(binder.cell(&meta, cell.clone()));
        }
        let narrow = meta.clone();
        let as_stored = match role {
            Role::Input => node.info.takes_halves(),
            Role::Output => node.info.gives_halves(),
        };
        if !as_stored {
            meta.dtype = meta.dtype.arithmetic();
        }
        match role {
            Role::Output => {
                let at = place(wide.unwrap_or(value))?;
                if wide.is_some() {
                    rounding.push(HalfCopy::new((&meta, at), (&narrow, place(value)?))?);
                }
                if meta.rows.is_some() {
                    // A binder of its own: it is read when the kernel has finished.
                    sparse.push(Binder::default().input(&meta, at, AccessMode::Read)?);
                }
                if meta.is_decided() {
                    decided.push(Binder::default().output(&meta, at)?);
                }
                binder.output(&meta, at)
            }
            // Its memory may hold another value by now.
            Role::Input if slots[number].shape_only => binder.shape_only(&meta),
            Role::Input => {
                let at = place(wide.unwrap_or(value))?;
                if let Some(wide) = wide.filter(|wide| !ready.contains(wide)) {
                    widening.push(HalfCopy::new((&narrow, place(value)?), (&meta, at))?);
                    ready.push(wide);
                }
                let taken = match wide {
                    Some(_) => overwritten.contains(&wide),
                    None => shares_memory(graph, node, number, at, &mut place)?,
                };
                binder.input(&meta, at, if taken { AccessMode::TakenOver } else { AccessMode::Read })
            }
        }
    })?;
    binder.finish()?;
    let kernel = if sparse.is_empty() { kernel } else { Box::new(SparseKernel { kernel, sparse }) };
    let kernel = if decided.is_empty() { kernel } else { Box::new(DecidingKernel { kernel, decided }) };
    let is_widened = !(widening.is_empty() && rounding.is_empty());
    Ok(if is_widened { Box::new(WideningKernel { kernel, widening, rounding }) } else { kernel })
}

/// A kernel that computes in `f32`, on values of 16 bits: inputs are widened before it, results rounded after it.
struct WideningKernel {
    kernel: Box<dyn Kernel + Send>,
    widening: Vec<HalfCopy>,
    rounding: Vec<HalfCopy>,
}
impl Kernel for WideningKernel {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.widening.iter_mut().try_for_each(|copy| copy.run(cx))?;
        self.kernel.run(cx)?;
        self.rounding.iter_mut().try_for_each(|copy| copy.run(cx))
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        self.kernel.scratch_bytes(workers)
    }
}

/// A copy from 16 bits to `f32`, or back.
struct HalfCopy {
    from: Buf<'static>,
    to: Buf<'static>,
}

impl HalfCopy {
    fn new(from: (&Meta, Place), to: (&Meta, Place)) -> Result<HalfCopy> {
        // A binder of its own: it runs before the kernel, or after it.
        let mut binder = Binder::default();
        let from = binder.input(from.0, from.1, AccessMode::Read)?;
        let to = binder.output(to.0, to.1)?;
        binder.finish()?;
        Ok(HalfCopy { from, to })
    }

    fn run(&mut self, cx: &Cx) -> Result<()> {
        copy_converted(cx, &self.from, &mut self.to)
    }
}

/// A kernel with row-sparse outputs, whose row indices are checked after it.
struct SparseKernel {
    kernel: Box<dyn Kernel + Send>,
    sparse: Vec<Buf<'static>>,
}
impl Kernel for SparseKernel {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.kernel.run(cx)?;
        self.sparse.iter().try_for_each(Buf::check_rows)
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        self.kernel.scratch_bytes(workers)
    }
}

/// A kernel that decides the shapes of outputs, which it must do in every run.
struct DecidingKernel {
    kernel: Box<dyn Kernel + Send>,
    decided: Vec<Buf<'static>>,
}
impl Kernel for DecidingKernel {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        self.decided.iter_mut().for_each(Buf::undecide);
        self.kernel.run(cx)?;
        self.decided.iter().try_for_each(Buf::check_decided)
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        self.kernel.scratch_bytes(workers)
    }
}

/// Runs an instruction once.
pub(crate) fn run(graph: &Graph, node: &Instruction, cx: &Cx, place: PlaceOf<'_>) -> Result<()> {
    match extent(graph, node).filter(|_| !node.info.has_kernel()) {
        Some(space) => {
            let kernel = fused_kernel(graph, slice::from_ref(node), &space, cx.threads(), place)?;
            FusedKernels::new(vec![kernel])?.run(cx)
        }
        None => kernel(graph, node, &[], place)?.run(cx),
    }
}

/// Whether an output that declares this input as its partner has reused its memory.
fn shares_memory(
    graph: &Graph,
    node: &Instruction,
    input: usize,
    at: Place,
    place: &mut dyn FnMut(ValueId) -> Result<Place>,
) -> Result<bool> {
    for (slot, value) in node.outputs.iter().filter_map(|(slot, v)| Some(((*slot)?, (*v)?))) {
        if node.partner(slot) == Some(input) && !graph.values[value].meta.array && place(value)? == at {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The fused kernel of a fused kernel of elementwise operators.
pub fn fused_kernel(
    graph: &Graph,
    nodes: &[Instruction],
    space: &IterationSpace,
    workers: usize,
    place: PlaceOf<'_>,
) -> Result<FusedKernel> {
    let mut values = vec![];
    // A value is one operand, unless operators broadcast it differently.
    let mut known: FxHashMap<(ValueId, Option<BroadcastMap>), usize> = FxHashMap::default();
    let mut steps = vec![];
    for node in nodes {
        let (info, desc) = node.runs();
        let Some(entry) = info.lanes() else {
            return Err(Error::internal("a kernel in a fused kernel"));
        };
        let mut home = |value: ValueId| -> Result<usize> {
            let dims = operand_dims(graph, node, value, space);
            let dims = dims.ok_or_else(no_broadcast)?;
            let spread = if dims == space.dims { None } else { Some(spread(space, &dims)?) };
            let key = (value, spread);
            if let Some(id) = known.get(&key) {
                return Ok(*id);
            }
            let dtype = graph.values[value].meta.dtype;
            values.push(match (place(value)?, &key.1) {
                (None, _) => OperandLocation::Register(dtype),
                (Some(place), spread) if !is_native(graph, value, space) => {
                    let whole = || self::spread(space, &space.dims);
                    OperandLocation::Converted(place, spread.clone().map_or_else(whole, Ok)?, dtype)
                }
                (Some(place), None) => OperandLocation::FullShape(place),
                (Some(place), Some(spread)) => OperandLocation::Spread(place, spread.clone()),
            });
            known.insert(key, values.len() - 1);
            Ok(values.len() - 1)
        };
        let schema = info.schema();
        let mut inputs = vec![];
        for (slot, def) in schema.inputs.iter().enumerate() {
            let value = node.input(slot).filter(|_| !def.shape_only);
            inputs.push(value.map(&mut home).transpose()?);
        }
        let outputs = (0..schema.outputs.len()).map(|slot| node.output(slot).map(&mut home).transpose());
        let outputs = outputs.collect::<Result<_>>()?;
        steps.push(FusedOp { entry, desc, inputs, outputs });
    }
    let numel = space.dims.iter().copied().try_fold(1, usize::checked_mul);
    let numel = numel.ok_or_else(|| Error::internal("more elements than can be counted"))?;
    // Lanes are floating point numbers, even if all values are bool.
    let dtype = if space.dtype == DType::Bool { DType::F32 } else { space.dtype };
    FusedKernel::new(FusedKernelSpec { dtype, numel, values, steps }, workers)
}

/// The broadcast of an operand of these dimensions in a fused kernel.
fn spread(space: &IterationSpace, dims: &[usize]) -> Result<BroadcastMap> {
    BroadcastMap::new(&space.dims, dims).ok_or_else(no_broadcast)
}

fn no_broadcast() -> Error {
    Error::internal("an operand that does not broadcast")
}
