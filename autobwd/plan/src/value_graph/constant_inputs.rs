//! Constant folding on demand: values of slots declared `constant`, such as the shape of a reshape, computed from shapes
//! and attributes while a program is planned.
//!
//! An operator's kernel runs on memory of its own if all inputs whose elements it reads are known and everything is
//! small. The walk has its own stack, and every value is computed at most once.

use std::{rc::Rc, sync::Arc};

use rustc_hash::FxHashMap;

use super::{
    ValueId, ValueSource, Wires,
    builder::GraphBuilder,
    constants::{Evaluated, Unknown},
    widening,
};
use autobwd_core::{
    __private::{MAX_CONSTANT, Memory, internals::*},
    BlockId, Cx, Error, ErrorKind, Meta, OpInfo, Result, Tensor,
    operators::{AnyNumber, ConvertElement},
    tensor::padded,
    with_dtype,
};

/// Bytes of all values computed for one plan.
const MAX_BYTES: usize = 1 << 28;

fn is_small(meta: &Meta) -> bool {
    meta.dims.numel().get().is_some_and(|numel| numel <= MAX_CONSTANT)
}

impl GraphBuilder<'_> {
    /// Computes the values of an operator's slots declared `constant`.
    pub(super) fn constant_inputs(&mut self, info: &OpInfo, inputs: &Wires) -> Result<()> {
        let schema = info.schema();
        for (number, value) in inputs {
            let slot = number.map(|number| &schema.inputs[number]).filter(|slot| slot.constant);
            let (Some(slot), Some(value)) = (slot, *value) else { continue };
            self.constants.used.push(value);
            if let Some(unknown) = self.find_constant(value) {
                let (name, of) = (self.name(value), self.name(unknown.value));
                let text = format!(
                    "`{}`: the value of `{name}` must be known when the program is planned, but it depends on \
                     data: `{of}` {}",
                    slot.name, unknown.why
                );
                return Err(Error::new(ErrorKind::Shape, text));
            }
        }
        Ok(())
    }

    fn name(&self, value: ValueId) -> &str {
        self.graph.values[value].name(self.program)
    }

    /// Makes the elements of a value known to shape rules, or returns why they are unknown.
    pub(super) fn find_constant(&mut self, value: ValueId) -> Option<Unknown> {
        if self.graph.values[value].meta.constant().is_some() {
            return None;
        }
        let memory = match self.evaluated(value) {
            Ok(memory) => memory,
            Err(unknown) => return Some(unknown),
        };
        let meta = &mut self.graph.values[value].meta;
        match Tensor::copy_of(&memory, 0, meta) {
            Ok(tensor) => *meta = meta.clone().with_constant(Some(Arc::from(tensor.to_f64s()))),
            Err(e) => return Some(Unknown { value, why: e.message().into() }),
        }
        None
    }

    fn evaluated(&mut self, value: ValueId) -> Evaluated {
        let mut stack = vec![value];
        while let Some(top) = stack.last().copied() {
            if self.constants.known.contains_key(&top) {
                stack.pop();
                continue;
            }
            let outcome = match self.producer(top) {
                Ok(Some(position)) => match self.constants.pending(&self.graph.instructions[position]) {
                    Ok(pending) if pending.is_empty() => {
                        if let Err(e) = self.evaluate(position) {
                            let why = format!("cannot be computed then: {}", e.message());
                            self.constants.known.insert(top, Err(Unknown { value: top, why: why.into() }));
                        }
                        continue;
                    }
                    Ok(pending) => {
                        stack.extend(pending);
                        continue;
                    }
                    Err(unknown) => Err(unknown),
                },
                Ok(None) => self.given_constant(top),
                Err(why) => Err(Unknown { value: top, why: why.into() }),
            };
            self.constants.known.insert(top, outcome);
            stack.pop();
        }
        self.constants.known[&value].clone()
    }

    /// The operator that computes a value, if it may run now; `None` for a value given with its elements.
    fn producer(&self, value: ValueId) -> Result<Option<usize>, String> {
        let known = &self.graph.values[value];
        if known.meta.array || known.meta.rows.is_some() {
            return Err("is not a dense tensor".into());
        }
        if !is_small(&known.meta) {
            return Err(format!("is {}, and at most {MAX_CONSTANT} elements are computed then", known.meta));
        }
        if known.meta.constant().is_some() {
            return Ok(None);
        }
        let why = match known.source {
            ValueSource::Instruction(position) => {
                let node = &self.graph.instructions[position];
                let whole =
                    |v: ValueId| self.graph.is_whole_tensor(v) && is_small(&self.graph.values[v].meta);
                if node.sub_block.is_none() && !node.info.needs_program() && node.writes().all(whole) {
                    return Ok(Some(position));
                }
                return Err(format!("is computed by operator `{}`", node.desc.ty));
            }
            ValueSource::Feed if self.request.block != BlockId::ROOT => "changes from step to step",
            ValueSource::Feed => "is fed",
            ValueSource::Scope => "is a value of the scope",
            ValueSource::Outer(_) => "is computed outside of the block, from data",
            _ => "has no value yet",
        };
        Err(why.into())
    }

    /// Memory of a value whose elements are given.
    fn given_constant(&self, value: ValueId) -> Evaluated {
        let meta = &self.graph.values[value].meta;
        let elements = meta.constant().unwrap_or_default();
        let filled = || -> Result<Memory> {
            let mut memory = Memory::zeroed(meta.bytes().unwrap_or(0))?;
            with_dtype!(meta.dtype, T => {
                for (to, from) in memory.slice_mut::<T>(0, elements.len()).iter_mut().zip(elements) {
                    *to = T::narrow(AnyNumber::Float(*from));
                }
            });
            Ok(memory)
        };
        filled().map(Rc::new).map_err(|e| Unknown { value, why: e.message().into() })
    }

    /// Runs an operator whose inputs are known.
    fn evaluate(&mut self, position: usize) -> Result<()> {
        widening::add(&mut self.graph, position);
        let (graph, constants) = (&self.graph, &mut self.constants);
        let node = &graph.instructions[position];
        let bytes = |value: ValueId| graph.values[value].meta.bytes().unwrap_or(0);
        let own = || node.writes().chain(node.scratch.iter().copied());
        let total: usize = own().map(|v| padded(bytes(v))).sum();
        constants.bytes = constants.bytes.saturating_add(total);
        if constants.bytes > MAX_BYTES {
            let text = format!("constants of the program take more than {MAX_BYTES} bytes");
            return Err(Error::new(ErrorKind::OutOfMemory, text));
        }
        let mut made: FxHashMap<ValueId, Rc<Memory>> = FxHashMap::default();
        for value in own() {
            made.insert(value, Rc::new(Memory::zeroed(bytes(value))?));
        }
        let known = &constants.known;
        let mut place = |value: ValueId| {
            let memory = made.get(&value).or_else(|| known.get(&value)?.as_ref().ok());
            let memory = memory.ok_or_else(|| Error::internal("an unknown input of a constant"))?;
            // SAFETY: the kernel runs before this function returns, and is dropped by then; `made` and `known` hold the
            // memory until after, and nothing else uses it meanwhile.
            #[allow(unsafe_code)]
            unsafe { memory.place(0, bytes(value)) }.map(Some)
        };
        let cx = constants.cx.get_or_insert_with(|| Cx::new(1));
        (self.run)(graph, node, cx, &mut place)?;
        let values: Vec<ValueId> = node.writes().collect();
        constants.known.extend(values.into_iter().filter_map(|v| Some((v, Ok(made.remove(&v)?)))));
        Ok(())
    }
}
